"""Table V: where Learn2pFed's plug-in starts, at the first, second or third fully connected layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from learn2pfed.algorithms.plug_in import Backbone, PlugIn
from learn2pfed.algorithms.rounds import Rounds
from learn2pfed.experiments.base import Column, Done, Experiment, Task, rows_of
from learn2pfed.experiments.comparing import OwnSettings, every_method, fit, looks
from learn2pfed.experiments.images import (
    POINTS,
    QUICK,
    START,
    SharedOut,
    Study,
    columns_of,
    leave_parts,
    measures,
    notes_of,
    parts_of,
    refuse_missing,
    study_of,
    with_network,
)
from learn2pfed.models.network import attach
from learn2pfed.results.records import Detail, Row

BACKBONES: tuple[Backbone, ...] = ("local", "shared")


class StartLayerConfig(SharedOut):
    """The images of Table IV, with the layers to start at."""

    data: tuple[str, ...] = Field(("cifar10",), min_length=1, description="cifar10, fashion-mnist, or a path")
    clients: tuple[int, ...] = Field((10,), min_length=1, description="numbers of clients")
    starts: tuple[str, ...] = Field(
        ("layers.0", "layers.1", "head"),
        min_length=1,
        description="layers; of the paper's LeNet the three connected ones (that of Fashion-MNIST has head alone)",
    )
    backbones: tuple[Backbone, ...] = Field(
        BACKBONES, min_length=1, description="whether the layers before it stay at home or are averaged"
    )
    own: Annotated[OwnSettings, BeforeValidator(every_method((PlugIn.name,), **START))] = Field(
        {}, validate_default=True
    )


def title(start: str, backbone: str) -> str:
    """As the table lists it."""
    return f"from {start}, {backbone}"


class StartLayerExperiment(Experiment):
    """Table V."""

    name = "start-layer"
    title = "Where the plug-in starts"
    about = (
        "Learn2pFed as the paper has it for networks: its cells run on all layers from the named one on, the layers "
        "before it are trained along, at home (local) or averaged (shared). Images, clients and network as in "
        "`learn2pfed run images`. The shared ratio is the part of the parameters that travels."
    )
    config_class = StartLayerConfig
    tuned_as = "images"
    tuning = "Settings of the plug-in are those of `learn2pfed run images`."
    presets = {  # noqa: RUF012
        "quick": QUICK,
        "paper": {"n_rounds": 500},
    }

    def variants(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """The layers before it at home, or averaged."""
        return BACKBONES

    def tasks(self, config: StartLayerConfig) -> list[Task]:
        """Setting by setting."""
        refuse_missing(config.data)
        for setting, seed in product(config.names().values(), config.seeds):
            parts_of(config, setting, seed)
        for setting, how in product(config.names().values(), product(config.starts, config.backbones)):
            study = study_of(config, setting, config.first_seed)  # refuses what can't be, before anything runs
            algorithm_of(config, *how, study, config.first_seed).check(study.train)
        return [
            Task(setting, title(start, backbone), seed)
            for setting in config.names()
            for seed in config.seeds
            for start in config.starts
            for backbone in config.backbones
        ]

    def run(self, config: StartLayerConfig, task: Task) -> Done:
        """Fit, and judge on the test images."""
        study = study_of(config, config.names()[task.setting], task.seed)
        how = next(how for how in product(config.starts, config.backbones) if title(*how) == task.algorithm)
        algorithm = algorithm_of(config, *how, study, task.seed)
        n_rounds = algorithm.settings.n_rounds
        at = looks(n_rounds, POINTS) if task.seed == config.first_seed else ()
        fitted = fit(algorithm, config.engine, study.train, study.judged, at)
        sent = len(fitted.outcome.global_model) / algorithm.network.n_parameters
        measured = measures(fitted, study, n_rounds) | {"shared ratio": sent}
        detail = Detail(**task._asdict(), series=fitted.series) if fitted.series else None
        return Done(rows_of(task, fitted.outcome, fitted.seconds, measured), detail)

    def notes(self, config: StartLayerConfig) -> list[str]:
        """Which file says who has what."""
        return notes_of(config)

    def leave(self, config: StartLayerConfig, folder: Path) -> None:
        """Who had which images."""
        leave_parts(config, folder)

    def rank(self, algorithm: str) -> float:
        """In the order in which they ran."""
        return 0.0

    def columns(self, rows: Sequence[Row]) -> list[Column]:
        """Each metric over the settings."""
        return columns_of(rows)


def algorithm_of(config: StartLayerConfig, start: str, backbone: str, study: Study, seed: int) -> Rounds:
    """The plug-in from that layer on."""
    own = {**config.own[PlugIn.name], "backbone": backbone}
    return with_network(config, PlugIn.name, own, study, seed, partial(attach, start=start))
