"""Images shared out among clients, and how a fit on them is judged: what Table IV, Table V and `sharing` have alike."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import nn

from learn2pfed.algorithms.rounds import Rounds
from learn2pfed.algorithms.whole_network import WholeNetworkSettings
from learn2pfed.data.federated import Samples
from learn2pfed.data.images import SOURCES, Images, load_images
from learn2pfed.data.partition import Partition, filled_up, partition, samples, samples_of
from learn2pfed.data.sources import digest_of
from learn2pfed.data.ways import writing
from learn2pfed.errors import Learn2pFedError
from learn2pfed.experiments.base import Column, Trials, by_setting_and_metric, over_clients
from learn2pfed.experiments.comparing import Fitted, ProtocolConfig, never_joined
from learn2pfed.models.modules import build, notes_on
from learn2pfed.models.network import Network
from learn2pfed.results.records import Row
from learn2pfed.tasks import Classification

MODELS = {"cifar10": "lenet", "fashion-mnist": "cnn-10-20"}
"""The paper's networks."""

FOR_TUNING = 10
"""Of so many images one is for tuning alone; a table of all there are trains on it, and is not judged by it."""

QUICK = {"n_rounds": 25, "some_rounds": 100, "n_images": 6_000, "min_size": 5, "n_judged": 20_000}
"""The preset of all three."""

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
    some_rounds: int = Field(500, ge=1, description="rounds, instead of n_rounds, where not all take part")
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

    def joining(self, n_clients: int) -> float:
        """Share of so many clients that takes part in a round."""
        return min(1.0, self.n_joining / n_clients)

    def names(self) -> dict[str, Setting]:
        """Settings by name, as "cifar10, 0.1, 10 clients"."""
        return {
            f"{data}, {beta:.12g}, {n} clients": Setting(data, beta, n)
            for n in self.clients
            for data in self.data
            for beta in self.betas
        }


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
def images_of(source: str) -> Images:
    """Read once."""
    return load_images(source)


def study_of(config: SharedOut, setting: Setting, seed: int, tuning: bool = False) -> Study:
    """Who has which images: to tune, others than the table is judged by."""
    images = images_of(setting.data)
    parts = parts_of(config, setting, seed, tuning).without_validation()
    train, join = samples(images, parts, "train"), config.joining(setting.n_clients)
    return Study(images, parts, train, samples_of(images, _judged(config, parts, images, seed, tuning)), join)


def refuse_draws(config: SharedOut) -> None:
    """Make every trial's draw before anything runs, so that what can't be shared out or judged is said at once."""
    for (name, setting), seed in product(config.names().items(), config.seeds):
        try:
            _judged(config, parts_of(config, setting, seed), images_of(setting.data), seed)
        except Learn2pFedError as error:
            raise Learn2pFedError(f"{name}, seed {seed}: {error}") from error


def _judged(
    config: SharedOut, parts: Partition, images: Images, seed: int, tuning: bool = False
) -> Sequence[NDArray[np.int64]]:
    """Places of the images that each client is judged by."""
    if config.from_file:  # whoever lists test images wants these
        return parts.test
    clean = parts if tuning else _not_for_tuning(parts)
    if config.n_judged is None:
        return clean.test
    return filled_up(images.labels, clean, config.n_judged // len(parts), for_table(images.labels, tuning), seed)


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
    labels = images_of(setting.data).labels
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


def notes_of(config: SharedOut) -> list[str]:
    """Images of one's own, a file of index lists, and a network of one's own, by what is in them: whoever changes them
    makes another run.
    """
    own = [(source, images_of(source)) for source in config.data if source not in SOURCES]
    found = [
        f"The images of {source} have the SHA-256 digests {digest_of(images.pixels)[:12]} and "
        f"{digest_of(images.labels)[:12]}."
        for source, images in own
    ]
    if config.from_file:
        digest = hashlib.sha256(Path(config.rule).read_bytes()).hexdigest()
        found.append(f"Who has what is as in {config.rule} (SHA-256 {digest[:12]}).")
    return found + notes_on(config.model)


def notes_on_learning(config: SharedOut, own: Mapping[str, Any]) -> list[str]:
    """Rounds so few that Learn2pFed can't learn s in them, or makes no use of it."""
    hows = {}
    for join in map(config.joining, config.clients):
        who, n_rounds = ("all", config.n_rounds) if join == 1 else ("some", config.some_rounds)
        protocol = {"n_rounds": n_rounds, "join": join, "epochs": config.epochs}
        hows[who] = WholeNetworkSettings.of(**{**own, **protocol})
    few = "are few for Learn2pFed: every client ends alone, from what is shared by then"
    none = (
        "have none in which s is learned (learn_from, learn_until), or clients take part too seldom by then, or there "
        "is no use for it (final_passes): it stays at one half"
    )
    return [
        f"{how.n_rounds} rounds of {how.epochs} epochs, {who} taking part, "
        f"{few if how.ends_alone(how.n_rounds) else none}."
        for who, how in hows.items()
        if how.share is None and how.set_aside and not how.learns
    ]


def leave_parts(config: SharedOut, folder: Path) -> None:
    """Index lists of every setting and trial, partitions/DATA-BETA-CLIENTS-SEED.npz; validation is trained on."""
    place = folder / "partitions"
    with writing(place, "choose another folder with --out"):
        place.mkdir(exist_ok=True)
    for setting, seed in product(config.names().values(), config.seeds):
        name = f"{_short(setting.data)}-{setting.beta:.12g}-{setting.n_clients}-{seed}.npz"
        parts_of(config, setting, seed).without_validation().save(place / name)


def _short(source: str) -> str:
    """A name for files: of a path its end, and what tells it from others that end alike."""
    if source in SOURCES:
        return source
    return f"{Path(source).name[:40]}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """Each metric over the settings: fewer clients first, then by data and Dirichlet parameter."""
    metrics = list(dict.fromkeys(row.metric for row in rows))

    def place(column: Column) -> tuple[int, int, str, float]:
        data, beta, clients = column.setting.rsplit(", ", 2)
        return metrics.index(column.metric), int(clients.split()[0]), data, float(beta)

    return sorted(by_setting_and_metric(rows), key=place)


def measures(fitted: Fitted, study: Study, n_rounds: int) -> dict[str, float]:
    """Accuracy over clients, and what a round sends, all clients together, the last message to everybody included."""
    traffic = fitted.outcome.traffic
    return {
        **over_clients("accuracy", fitted.marks, [len(rows) for rows in study.parts.test], larger_is_better=True),
        "kB up a round": traffic.bytes_up / n_rounds / 1000,
        "kB down a round": traffic.bytes_down / n_rounds / 1000,
        **(never_joined(fitted.outcome) if study.join < 1 else {}),
    }
