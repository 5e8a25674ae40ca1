"""Table IV: image classification, clients with classes of their own, all of them or some a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator, Field

from learn2pfed.algorithms.registry import BASELINES, OURS, method_named
from learn2pfed.algorithms.rounds import Rounds
from learn2pfed.algorithms.settings import LayerName
from learn2pfed.algorithms.whole_network import WholeNetwork
from learn2pfed.data.partition import samples_of
from learn2pfed.engines.rounds import Simulator, marks_of
from learn2pfed.experiments.base import Column, Done, Task, rows_of
from learn2pfed.experiments.comparing import Comparison, Fitted, OwnSettings, every_method, fit, looks, spaces_of
from learn2pfed.experiments.shared_images import (
    POINTS,
    QUICK,
    Setting,
    SharedOut,
    Study,
    columns_of,
    for_table,
    leave_parts,
    measures,
    notes_of,
    notes_on_learning,
    refuse_draws,
    refuse_missing,
    study_of,
    with_network,
)
from learn2pfed.models.network import Network
from learn2pfed.results.records import Detail, Row, rounded
from learn2pfed.search import Choice, Space, Span, not_searched

METHODS = tuple(BASELINES | OURS)

TITLES = {name: method_named(name).title for name in METHODS}
"""In the order of the table."""

RATES = ("lr", "ft_lr")
RATE, RATE_SPAN = 2e-3, Span(3e-4, 0.03)
"""Step sizes of these networks: where tuning starts, and where it looks."""

START = {
    name: {rate: RATE for rate in RATES if rate in method_named(name).settings_class.model_fields} for name in METHODS
}
START["cfl"]["first_split"] = 5  # of rounds; there are few

TUNING_SEED, TUNING_IMAGES, TUNING_ROUNDS = 500, 4000, 25
"""Settings are tuned on fewer images, with ten clients."""

TUNING_CLIENTS = 10
"""All of them take part in a round."""

LAST_PASS = Choice((0, 1, 2, 5))
"""Epochs of a last pass at home, for every method that keeps something there and has no search of its own for it."""


class ImagesConfig(SharedOut):
    """What can be set; `own.` holds the methods' own settings."""

    head: LayerName | None = Field("head", description="the part that FedPer and FedRep keep")
    algorithms: tuple[str, ...] = Field(METHODS, min_length=1, description="methods (--algorithms)")
    own: Annotated[OwnSettings, BeforeValidator(every_method(METHODS, **START))] = Field({}, validate_default=True)


def algorithm_of(config: ImagesConfig, name: str, study: Study, seed: int) -> Rounds:
    """A method with the network of its data; its head is one layer."""
    return with_network(config, name, config.own[name], study, seed, lambda module: Network(module, config.head))


class ImagesExperiment(Comparison):
    """Table IV."""

    name = "images"
    title = "Image classification"
    about = (
        "Images shared out among clients so that each has classes of its own mix (Dirichlet: class by class, shares "
        "drawn for the clients), a fifth of each client's images kept for testing, class by class (the rules of two "
        "libraries, pfllib and fl-bench, have their own tests). Where not all images are shared out, a client's test "
        "images are filled up by others in its own mix of classes, so that chance has less to say (`n_judged`). "
        "Networks are the paper's unless `model` says otherwise. With ten clients all take part in a round; with a "
        "hundred, ten. Accuracy is each client's own model's on its own test images after the last round, all clients. "
        "Learn2pFed sets some training images aside to learn by, until it has learned how far to share, and then "
        "trains on all."
    )
    config_class = ImagesConfig
    titles = TITLES
    costs_by_setting = True
    notes_stand_apart = True
    finalists = 4
    validation = "error on images that are for tuning alone, mean over data sets, ten clients"
    tuning = (
        f"Settings were tuned on draws of {TUNING_IMAGES:,} images that no test part has (a table of all images trains "
        f"on them), ten clients, {TUNING_ROUNDS} rounds, every data set with one of the Dirichlet parameters, and are "
        "the same in all columns. Every method had the same number of trials, of which the four best were tried again "
        "on another draw, every data set with every Dirichlet parameter and all images for tuning that nobody trains "
        "on; that decided. Learn2pFed was developed on the same images."
    )
    presets = {  # noqa: RUF012
        "quick": QUICK,
        "all-images": {
            "data": ("cifar10",),
            "betas": (0.5,),
            "clients": (10,),
            "n_rounds": 100,
            "n_seeds": 1,
            "algorithms": ("local-only", "fedavg-ft", "fedper", "ditto", "learn2pfed"),
        },
        "ten-rounds": {
            **QUICK,
            "n_rounds": 10,
            "clients": (10,),
            "algorithms": (
                *("local-only", "fedavg-ft", "fedprox-ft", "fedper", "fedrep", "ditto"),
                *("own-frequencies", "fixed-share", "learn2pfed"),
            ),
        },
        "paper": {"n_rounds": 500},
    }

    def tasks(self, config: ImagesConfig) -> list[Task]:
        """Setting by setting, so that a column is whole before the next begins."""
        self.refuse_unknown(config.algorithms)
        refuse_missing(config.data)
        refuse_draws(config)
        for setting in config.names().values():  # refuses what can't be, before anything runs
            study = study_of(config, setting, config.first_seed)
            for name in config.algorithms:
                algorithm_of(config, name, study, config.first_seed).check(study.train)
        return [
            Task(setting, TITLES[name], seed)
            for setting in config.names()
            for seed in config.seeds
            for name in METHODS
            if name in config.algorithms
        ]

    def behind(self, config: Mapping[str, Any], task: Task) -> Any:
        """Neither other settings nor other methods."""
        apart = {"n_seeds", "data", "betas", "clients", "algorithms", "own"}
        common = {key: value for key, value in config.items() if key not in apart}
        return common, config.get("own", {}).get(self.name_of(task.algorithm))

    def run(self, config: ImagesConfig, task: Task) -> Done:
        """Fit, and judge on the test images."""
        study = study_of(config, config.names()[task.setting], task.seed)
        name = self.name_of(task.algorithm)
        algorithm = algorithm_of(config, name, study, task.seed)
        first = task.seed == config.first_seed
        n_rounds = algorithm.settings.n_rounds
        learner = algorithm if first and isinstance(algorithm, WholeNetwork) and algorithm.learns else None
        at = looks(n_rounds, POINTS) if first else ()
        fitted = fit(algorithm, config.engine, study.train, study.judged, at, shares_of(learner) if learner else None)
        measured = measures(fitted, study, n_rounds)
        series = dict(fitted.series)
        if learner:
            series |= {"shares": fitted.watched, "blocks": list(learner.names)}
        if first:
            series["counts"] = study.parts.counts(study.images.labels).tolist()
        if first and name == [known for known in METHODS if known in config.algorithms][-1]:
            series["confusion"] = confusion(algorithm, fitted.outcome.models, study)
        detail = Detail(**task._asdict(), series=series) if series else None
        return Done(rows_of(task, fitted.outcome, fitted.seconds, measured), detail)

    def tunable(self, config: ImagesConfig) -> dict[str, Space]:
        """Every method."""
        found = {}
        for key, space in spaces_of(("own",), METHODS, config.algorithms).items():
            how = method_named(key.partition(".")[2]).settings_class
            has_one = "final_epochs" in how.model_fields and "final_epochs" not in {*space, *not_searched(how)}
            last = {"final_epochs": LAST_PASS} if has_one else {}
            found[key] = {name: RATE_SPAN if name in RATES else where for name, where in (space | last).items()}
        return found

    def validate(self, config: ImagesConfig, key: str) -> float:
        """Share of held-out images that are wrong; data sets and Dirichlet parameters go through in turn."""
        data, betas, found = config.data, config.betas, []
        for i in range(max(len(data), len(betas))):
            setting = Setting(data[i % len(data)], betas[i % len(betas)], TUNING_CLIENTS)
            _, fitted, study = _to_tune(config, key, setting, TUNING_SEED)
            found.append(1 - np.average(fitted.marks, weights=study.judged.sizes))
        return float(np.mean(found))

    def validate_again(self, config: ImagesConfig, key: str) -> float:
        """The same of another draw, every data set with every Dirichlet parameter. Each client is judged on all images
        for tuning that nobody trains on, class by class, weighted by its own mix: that leaves far less to chance.
        """
        found = []
        for data, beta in product(config.data, config.betas):
            algorithm, fitted, study = _to_tune(config, key, Setting(data, beta, TUNING_CLIENTS), TUNING_SEED + 1)
            labels = study.images.labels
            unseen = np.setdiff1d(for_table(labels, tuning=True), np.concatenate(study.parts.train))
            study = study._replace(judged=samples_of(study.images, [unseen] * TUNING_CLIENTS))
            tables = np.array(confusion(algorithm, fitted.outcome.models, study))
            there = tables.sum(2) > 0
            right = tables.diagonal(axis1=1, axis2=2) / tables.sum(2).clip(min=1)
            mix = study.parts.counts(labels).T * there
            found.append(1 - np.average(right, axis=1, weights=mix).mean())
        return float(np.mean(found))

    def untunable(self, config: ImagesConfig) -> str:
        """A file says nothing of the images for tuning."""
        return "images are tuned on a draw of their own: leave the file of index lists out." * config.from_file

    def notes(self, config: ImagesConfig) -> list[str]:
        """Which file says who has what; and whether s can be learned."""
        learns = WholeNetwork.name in config.algorithms
        return notes_of(config) + (notes_on_learning(config, config.own[WholeNetwork.name]) if learns else [])

    def leave(self, config: ImagesConfig, folder: Path) -> None:
        """Who had which images."""
        leave_parts(config, folder)

    def columns(self, rows: Sequence[Row]) -> list[Column]:
        """Each metric over the settings."""
        return columns_of(rows)


def _to_tune(config: ImagesConfig, key: str, setting: Setting, seed: int) -> tuple[Rounds, Fitted, Study]:
    """A method fitted to a draw of images that are for tuning."""
    changes = {"n_images": TUNING_IMAGES, "n_rounds": TUNING_ROUNDS, "n_judged": None}
    small = config.model_copy(update=changes)
    study = study_of(small, setting, seed, tuning=True)._replace(join=1.0)
    algorithm = algorithm_of(small, key.partition(".")[2], study, seed)
    return algorithm, fit(algorithm, config.engine, study.train, study.judged), study


def shares_of(learner: WholeNetwork) -> Callable[[Simulator], list[float]]:
    """s of every block as it stands."""

    def now(simulator: Simulator) -> list[float]:
        found: list[float] = rounded(learner.learned(simulator.server)["share"][0].tolist())
        return found

    return now


def confusion(algorithm: Rounds, models: torch.Tensor, study: Study) -> list[list[list[int]]]:
    """How often each client's images of a class (row) are taken for another (column)."""
    said = marks_of(algorithm, models, study.train, study.judged, lambda scores, _: scores.argmax(-1)).long()
    n = study.images.n_classes
    pairs = (study.judged.owner * n + study.judged.y) * n + said
    found: list[list[list[int]]] = torch.bincount(pairs, minlength=len(study.judged) * n * n).view(-1, n, n).tolist()
    return found
