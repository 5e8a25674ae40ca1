"""Table IV: image classification, clients with classes of their own, all of them or some a round."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator
from torch import nn

from learn2pfed.algorithms.registry import BASELINES, OURS, method_named
from learn2pfed.algorithms.rounds import Rounds
from learn2pfed.algorithms.whole_network import WholeNetwork
from learn2pfed.data.federated import Samples
from learn2pfed.data.images import SOURCES, Images, load_images
from learn2pfed.data.partition import Partition, filled_up, partition, samples, samples_of
from learn2pfed.data.sources import digest_of
from learn2pfed.engines.rounds import Simulator, marks_of
from learn2pfed.errors import Learn2pFedError
from learn2pfed.experiments.base import Column, Done, Task, Trials, by_setting_and_metric, over_clients, rows_of
from learn2pfed.experiments.comparing import (
    Comparison,
    Fitted,
    OwnSettings,
    ProtocolConfig,
    every_method,
    fit,
    looks,
    never_joined,
    spaces_of,
)
from learn2pfed.models.modules import build
from learn2pfed.models.network import Network
from learn2pfed.results.records import Detail, Row, rounded
from learn2pfed.search import Choice, Space, Span, not_searched
from learn2pfed.tasks import Classification

METHODS = tuple(BASELINES | OURS)

TITLES = {name: method_named(name).title for name in METHODS}
"""In the order of the table."""

MODELS = {"cifar10": "lenet", "fashion-mnist": "cnn-10-20"}
"""The paper's networks."""

RATES = ("lr", "ft_lr")
RATE, RATE_SPAN = 2e-3, Span(3e-4, 0.03)
"""Step sizes of these networks: where tuning starts, and where it looks."""

START = {
    name: {rate: RATE for rate in RATES if rate in method_named(name).settings_class.model_fields} for name in METHODS
}
START["cfl"]["first_split"] = 5  # of rounds; there are few

TUNING_SEED, TUNING_IMAGES, TUNING_ROUNDS = 500, 4000, 25
"""Settings are tuned on fewer images, with ten clients."""

TUNING_JUDGED = 3000
"""Test images where the best trials are tried again."""

TUNING_CLIENTS = 10
"""All of them take part in a round."""

FOR_TUNING = 10
"""Of so many images one is for tuning alone; a table of all there are trains on it, and is not judged by it."""

LAST_PASS = Choice((0, 1, 2, 5))
"""Epochs of a last pass at home, for every method that keeps something there and has no search of its own for it."""

QUICK = {"n_rounds": 25, "some_rounds": 100, "n_images": 6_000, "min_size": 5, "n_judged": 20_000}
"""Of this and of `start-layer`."""

POINTS = 6
"""Rounds after which the first trial is looked at."""


class SharedOut(Trials, ProtocolConfig):
    """Images shared out among clients, and the protocol."""

    data: tuple[str, ...] = Field(
        tuple(MODELS), min_length=1, description=f"{', '.join(SOURCES)}, or a path of such files"
    )
    betas: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (0.1, 0.5), min_length=1, description="Dirichlet parameters: the smaller, the fewer classes has each client"
    )
    clients: tuple[Annotated[int, Field(ge=1)], ...] = Field((10, 100), min_length=1, description="numbers of clients")
    n_joining: int = Field(10, ge=1, description="clients a round, if there are more")
    some_rounds: int = Field(500, ge=1, description="rounds where not all take part")
    rule: str = Field(
        "dirichlet", description="how images are shared out: dirichlet, pfllib, fl-bench, or an .npz of index lists"
    )
    min_size: int = Field(
        40, ge=4, description="fewest images of a client, by the rule dirichlet; others have their own"
    )
    n_images: int | None = Field(None, ge=1, description="images in all, drawn with the trial's seed; none: all")
    n_judged: int | None = Field(
        None,
        ge=1,
        description="test images in all: each client's own, filled up by others that nobody has, in its own mix of "
        "classes; none: its own alone",
    )
    model: str | None = Field(None, description="learn2pfed list models, or package.module:function; none: the paper's")
    engine: Literal["simulation", "plain"] = Field("simulation", description="in memory, or through encoded messages")
    n_seeds: int = Field(3, ge=1, description="trials (--seeds)")

    @property
    def from_file(self) -> bool:
        """Whether index lists say who has what."""
        return self.rule.endswith(".npz")

    @model_validator(mode="after")
    def _one_file_for_one_setting(self) -> Self:
        if self.from_file and len(self.data) * len(self.betas) * len(self.clients) > 1:
            raise ValueError(f"rule = {self.rule} is of one setting: give data, betas and clients one value each")
        return self

    def names(self) -> dict[str, Setting]:
        """Settings by name, as "cifar10, 0.1, 10 clients"."""
        return {
            f"{data}, {beta:g}, {n} clients": Setting(data, beta, n)
            for n in self.clients
            for data in self.data
            for beta in self.betas
        }


class ImagesConfig(SharedOut):
    """What can be set; `own.` holds the methods' own settings."""

    head: str | None = Field("head", coerce_numbers_to_str=True, description="the part that FedPer and FedRep keep")
    algorithms: tuple[str, ...] = Field(METHODS, min_length=1, description="methods (--algorithms)")
    own: Annotated[OwnSettings, BeforeValidator(every_method(METHODS, **START))] = Field({}, validate_default=True)


class Setting(NamedTuple):
    """A column of the table."""

    data: str
    beta: float
    n_clients: int


class Study(NamedTuple):
    """The images of one trial."""

    images: Images
    parts: Partition
    train: Samples
    judged: Samples
    join: float


def refuse_missing(data: Sequence[str]) -> None:
    """Say at once how to get all that is not in the cache."""
    missing = [name for name in data if name in SOURCES and not SOURCES[name][0].cached]
    if missing:
        how = " and ".join(f"learn2pfed data get {name}" for name in missing)
        raise Learn2pFedError(f"{' and '.join(missing)} not in the cache: get with {how}.")


@cache
def _images(source: str) -> Images:
    return load_images(source)


def study_of(config: SharedOut, setting: Setting, seed: int, tuning: bool = False) -> Study:
    """Who has which images: to tune, others than the table is judged by."""
    images = _images(setting.data)
    parts = parts_of(config, setting, seed, tuning).without_validation()
    train, join = samples(images, parts, "train"), min(1.0, config.n_joining / setting.n_clients)
    if config.from_file:  # whoever lists test images wants these
        return Study(images, parts, train, samples(images, parts, "test"), join)
    clean = parts if tuning else _not_for_tuning(parts)
    judged = samples(images, clean, "test")
    if config.n_judged is not None:
        each, among = config.n_judged // setting.n_clients, for_table(images.labels, tuning)
        judged = samples_of(images, filled_up(images.labels, clean, each, among, seed))
    return Study(images, parts, train, judged, join)


def _not_for_tuning(parts: Partition) -> Partition:
    """Who is judged by which images, besides those for tuning."""
    test = tuple(rows[rows % FOR_TUNING > 0] for rows in parts.test)
    bare = next((i for i, rows in enumerate(test) if not len(rows)), None)
    if bare is not None:
        raise Learn2pFedError(
            f"client {bare} has no test images but some that are for tuning (every {FOR_TUNING}th is): raise min_size, "
            "or have fewer clients."
        )
    return replace(parts, test=test)


def for_table(labels: NDArray[np.int64], tuning: bool = False) -> NDArray[np.int64]:
    """Places of the images that are not for tuning, or of those that are."""
    return np.flatnonzero((np.arange(len(labels)) % FOR_TUNING == 0) == tuning)


def parts_of(config: SharedOut, setting: Setting, seed: int, tuning: bool = False) -> Partition:
    """By the rule of the configuration, or from its file."""
    labels = _images(setting.data).labels
    if config.from_file:
        made = Partition.load(Path(config.rule), len(labels))
        if len(made) != setting.n_clients:
            raise Learn2pFedError(f"{config.rule} is of {len(made)} clients: set clients={len(made)}.")
        return made
    among = np.arange(len(labels)) if config.n_images is None and not tuning else for_table(labels, tuning)
    n_images = config.n_images
    if n_images is not None and tuning:
        n_images = min(n_images, len(among))
    elif n_images is not None and n_images > len(among):
        raise Learn2pFedError(
            f"n_images = {n_images:,}: {setting.data} has {len(among):,} besides those for tuning: set n_images to "
            "that or less, or to none for all."
        )
    n, beta, rule = setting.n_clients, setting.beta, config.rule
    min_size = config.min_size if rule == "dirichlet" else None
    return partition(labels, n, beta, rule, seed, min_size, n_images, among)


def algorithm_of(config: ImagesConfig, name: str, study: Study, seed: int) -> Rounds:
    """A method with the network of its data; its head is one layer."""
    return with_network(config, name, config.own[name], study, seed, lambda module: Network(module, config.head))


def with_network(
    config: SharedOut,
    name: str,
    own: dict[str, Any],
    study: Study,
    seed: int,
    headed: Callable[[nn.Module], Network],
) -> Rounds:
    """A method with the network of its data, whose head is chosen by `headed`."""
    n_classes = study.images.n_classes
    model = config.model or MODELS.get(study.images.name)
    if model is None:
        raise Learn2pFedError(f"model: name a network for {study.images.name}: learn2pfed list models.")
    network = headed(build(model, tuple(study.train.X.shape[1:]), n_classes, seed, head=None).module)
    n_rows = int(np.median(study.train.sizes))
    if study.join < 1:
        config = config.model_copy(update={"n_rounds": config.some_rounds})
    return config.algorithm(name, own, study.join, seed, network, Classification(n_classes), n_rows)


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
    finalists = 4
    validation = "error on images that are for tuning alone, mean over data sets, ten clients"
    tuning = (
        f"Settings were tuned on draws of {TUNING_IMAGES:,} images that no test part has (a table of all images trains "
        f"on them), ten clients, {TUNING_ROUNDS} rounds, every data set with one of the Dirichlet parameters, and are "
        "the same in all columns. Every method had the same number of trials, of which the four best were tried again "
        "on another draw, with more test images and each data set with the other Dirichlet parameter. Learn2pFed was "
        "developed on the same images."
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
        "paper": {"n_rounds": 500},
    }

    def tasks(self, config: ImagesConfig) -> list[Task]:
        """Setting by setting, so that a column is whole before the next begins."""
        self.refuse_unknown(config.algorithms)
        refuse_missing(config.data)
        for setting in config.names().values():  # refuses what can't be, before anything runs
            for seed in config.seeds:
                parts_of(config, setting, seed)
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
        """Neither other settings nor other methods; the first method's fits say who has which images."""
        name = self.name_of(task.algorithm)
        apart = {"n_seeds", "data", "betas", "clients", "algorithms", "own"}
        common = {key: value for key, value in config.items() if key not in apart}
        return (
            common,
            config["own"].get(name),
            next(known for known in METHODS if known in config["algorithms"]) == name,
        )

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
            series["confusion"] = confusion(learner, fitted.outcome.models, study)
        if first and name == next(name for name in METHODS if name in config.algorithms):
            series["counts"] = study.parts.counts(study.images.labels).tolist()
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
        return self._wrong(config, key, TUNING_SEED, None, 0)

    def validate_again(self, config: ImagesConfig, key: str) -> float:
        """The same of another draw, each data set with another Dirichlet parameter, test parts filled up alike: so
        every client counts the same, as in the table.
        """
        return self._wrong(config, key, TUNING_SEED + 1, TUNING_JUDGED, 1)

    def _wrong(self, config: ImagesConfig, key: str, seed: int, n_judged: int | None, shift: int) -> float:
        changes = {"n_images": TUNING_IMAGES, "n_rounds": TUNING_ROUNDS, "n_judged": n_judged}
        small = config.model_copy(update=changes)
        data, betas = config.data, config.betas
        found = []
        for i in range(max(len(data), len(betas))):
            setting = Setting(data[i % len(data)], betas[(i + shift) % len(betas)], TUNING_CLIENTS)
            study = study_of(small, setting, seed, tuning=True)._replace(join=1.0)
            algorithm = algorithm_of(small, key.partition(".")[2], study, seed)
            marks = fit(algorithm, config.engine, study.train, study.judged).marks
            found.append(1 - np.average(marks, weights=study.judged.sizes))
        return float(np.mean(found))

    def untunable(self, config: ImagesConfig) -> str:
        """A file says nothing of the images for tuning."""
        return "images are tuned on a draw of their own: leave the file of index lists out." * config.from_file

    def notes(self, config: ImagesConfig) -> list[str]:
        """Which file says who has what."""
        return notes_of(config)

    def leave(self, config: ImagesConfig, folder: Path) -> None:
        """Who had which images."""
        leave_parts(config, folder)

    def columns(self, rows: Sequence[Row]) -> list[Column]:
        """Each metric over the settings."""
        return columns_of(rows)


def notes_of(config: SharedOut) -> list[str]:
    """Images of one's own, and a file of index lists, by what is in them: whoever changes them makes another run."""
    own = [(source, _images(source)) for source in config.data if source not in SOURCES]
    found = [
        f"The images of {source} have the SHA-256 digests {digest_of(images.pixels)[:12]} and "
        f"{digest_of(images.labels)[:12]}."
        for source, images in own
    ]
    if config.from_file:
        digest = hashlib.sha256(Path(config.rule).read_bytes()).hexdigest()
        found.append(f"Who has what is as in {config.rule} (SHA-256 {digest[:12]}).")
    return found


def leave_parts(config: SharedOut, folder: Path) -> None:
    """Index lists of every setting and trial, partitions/DATA-BETA-CLIENTS-SEED.npz; validation is trained on."""
    (folder / "partitions").mkdir(exist_ok=True)
    for setting, seed in product(config.names().values(), config.seeds):
        data = setting.data.strip("/").replace("/", "_")
        name = f"{data}-{setting.beta:g}-{setting.n_clients}-{seed}.npz"
        parts_of(config, setting, seed).without_validation().save(folder / "partitions" / name)


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """Each metric over the settings: fewer clients first, then by data and Dirichlet parameter."""
    metrics = list(dict.fromkeys(row.metric for row in rows))

    def place(column: Column) -> tuple[int, int, str, float]:
        data, beta, clients = column.setting.rsplit(", ", 2)
        return metrics.index(column.metric), int(clients.split()[0]), data, float(beta)

    return sorted(by_setting_and_metric(rows), key=place)


def shares_of(learner: WholeNetwork) -> Callable[[Simulator], list[float]]:
    """s of every block as it stands."""

    def now(simulator: Simulator) -> list[float]:
        found: list[float] = rounded(learner.learned(simulator.server)["share"][0].tolist())
        return found

    return now


def measures(fitted: Fitted, study: Study, n_rounds: int) -> dict[str, float]:
    """Accuracy over clients, and what a round sends, all clients together, the last message to everybody included."""
    traffic = fitted.outcome.traffic
    return {
        **over_clients("accuracy", fitted.marks, [len(rows) for rows in study.parts.test], larger_is_better=True),
        "kB up a round": traffic.bytes_up / n_rounds / 1000,
        "kB down a round": traffic.bytes_down / n_rounds / 1000,
        **(never_joined(fitted.outcome) if study.join < 1 else {}),
    }


def confusion(algorithm: Rounds, models: torch.Tensor, study: Study) -> list[list[list[int]]]:
    """How often each client's images of a class (row) are taken for another (column)."""
    said = marks_of(algorithm, models, study.train, study.judged, lambda scores, _: scores.argmax(-1)).long()
    n = study.images.n_classes
    pairs = (study.judged.owner * n + study.judged.y) * n + said
    found: list[list[list[int]]] = torch.bincount(pairs, minlength=len(study.judged) * n * n).view(-1, n, n).tolist()
    return found
