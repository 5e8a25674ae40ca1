"""What experiments that compare methods share: the protocol, baselines by name, and fitting one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from learn2pfed.algorithms.base import Outcome
from learn2pfed.algorithms.registry import BASELINES, method_named
from learn2pfed.algorithms.rounds import Rounds, Told
from learn2pfed.data.federated import Samples
from learn2pfed.engines.plain import run_plain
from learn2pfed.engines.rounds import Simulator, marks_of, run_rounds
from learn2pfed.errors import DivergenceError, Learn2pFedError, SettingError, instead
from learn2pfed.experiments import checkpoints
from learn2pfed.experiments.base import Column, Config, Experiment, by_setting_and_metric
from learn2pfed.models.network import Network
from learn2pfed.results.records import Row, rounded, versions
from learn2pfed.search import Space, search_space
from learn2pfed.tasks import Task

PROTOCOL = ("n_rounds", "join", "epochs", "batch_size")
"""Settings that are the same for every method."""


class ProtocolConfig(Config):
    """The protocol of baselines, the same for all."""

    n_rounds: int = Field(500, ge=1, description="T, rounds of the baselines")
    epochs: int = Field(2, ge=1, description="E, local epochs a round")
    batch_size: int = Field(64, ge=1, description="B")

    def algorithm(
        self, name: str, own: dict[str, Any], join: float, seed: int, network: Network, task: Task, rows: int
    ) -> Rounds:
        """The baseline with its own settings, the common ones, the share of clients that take part in a round and the
        seed of the trial; a client has so many rows.
        """
        method = method_named(name)
        how = method.settings_class
        protocol = self.model_dump(include=set(PROTOCOL)) | {"join": join}
        common = {field: value for field, value in protocol.items() if field in how.model_fields}
        as_many = how.of_steps(self.epochs * -(-rows // self.batch_size))  # batches as the others' epochs have
        return method(how.of(**own, **common, **as_many, seed=seed), network, task)


def _own_settings(given: Any) -> Any:
    """Each method's settings in full, without those that are the same for all; unknown names are refused."""
    if not (isinstance(given, Mapping) and all(isinstance(own, Mapping) for own in given.values())):
        raise ValueError("give settings by method, as in fedavg.lr=0.1")
    found = {}
    for name, own in given.items():
        method = method_named(name)
        try:
            how = method.settings_class.of(**own)
        except Learn2pFedError as error:
            raise SettingError(f"{name}.{error}") from error
        found[name] = how.model_dump(exclude={*PROTOCOL, "seed", *how.of_steps(1)})
    return found


def every_method(names: Collection[str], **given: dict[str, Any]) -> Callable[[Any], Any]:
    """All these baselines, those that are not given with what is given here."""
    every = {name: given.get(name, {}) for name in names}
    return lambda own: every | own if isinstance(own, dict) else own


OwnSettings = Annotated[dict[str, dict[str, Any]], BeforeValidator(_own_settings)]
"""By baseline: the settings that are its own, all of them."""


FOR_NUMBERS = tuple(name for name, method in BASELINES.items() if not method.only_classification)
"""The baselines that can predict numbers."""


class Comparison(Experiment):
    """An experiment with many methods, each with a title."""

    titles: ClassVar[dict[str, str]]  # by name, in the order of the table

    def refuse_unknown(self, algorithms: Sequence[str]) -> None:
        """Every name must be one of the titles'."""
        unknown = next((name for name in algorithms if name not in self.titles), None)
        if unknown in BASELINES:
            raise Learn2pFedError(
                f"algorithms: {unknown} needs classes to predict, and here are numbers: leave it out."
            )
        if unknown is not None:
            others = [f"{name} (only for classes)" for name in BASELINES if name not in self.titles]
            raise Learn2pFedError(f"algorithms: unknown {unknown!r}; {instead(unknown, [*self.titles, *others])}")

    def name_of(self, title: str) -> str:
        """The method of that title."""
        return next(name for name, known in self.titles.items() if known == title)

    def rank(self, algorithm: str) -> float:
        """In the order of the titles, a variant where its method is."""
        places = {title: place for place, title in enumerate(self.titles.values())}
        return places.get(algorithm, places.get(algorithm.rpartition(", ")[0], len(places)))

    def columns(self, rows: Sequence[Row]) -> list[Column]:
        """Each metric over the settings."""
        return by_setting_and_metric(rows)


def spaces_of(groups: Sequence[str], methods: Collection[str], chosen: Collection[str]) -> dict[str, Space]:
    """Where tuning may look: the settings of every chosen baseline, group by group."""
    found = [name for name in methods if name in chosen]
    return {f"{group}.{name}": search_space(method_named(name).settings_class) for group in groups for name in found}


def looks(n_rounds: int, points: int) -> list[int]:
    """So many rounds, evenly spaced, the first and the last among them."""
    found: list[int] = np.linspace(1, n_rounds, points).round().astype(int).tolist()
    return found


def never_joined(outcome: Outcome) -> dict[str, float]:
    """How many clients were never drawn, where a method counted."""
    joined = outcome.insight.get("joined")
    return {} if joined is None else {"clients that never took part": float((joined == 0).sum())}


Points = dict[int, float]
"""A metric by round."""


class Fitted(NamedTuple):
    """What fitting a baseline gives."""

    outcome: Outcome
    marks: NDArray[np.float64]  # (M,), each client's mean mark on its own test samples
    curve: Points  # the metric after some rounds
    sent: Points  # megabytes, to and from all clients if it ended then, the last message to everybody included
    seconds: float  # CPU time, without scoring
    watched: list[Any]  # what was noted after every round

    @property
    def series(self) -> dict[str, Any]:
        """The curve as figures take it; nothing where nobody looked."""
        curves = {"curve": rounded(list(self.curve.values())), "sent": rounded(list(self.sent.values()))}
        return {"rounds": list(self.curve), **curves} if self.curve else {}


def fit(
    algorithm: Rounds,
    engine: str,
    train: Samples,
    test: Samples,
    rounds: Collection[int] = (),
    watch: Callable[[Simulator], Any] | None = None,
) -> Fitted:
    """All clients are judged, and the models of the last round count; what is seen along the way chooses nothing.

    After some rounds the metric is noted, and after every round what `watch` makes of the state, as JSON has it. In the
    simulator a fit that was stopped goes on where it was (see `checkpoints`).
    """
    path = checkpoints.place() if engine == "simulation" else None
    of = "" if path is None else _identity(algorithm, train)
    stop = None if path is None else checkpoints.get(path, lambda: Simulator(algorithm, train).snapshot(), of)
    curve: Points = dict(stop.notes["curve"]) if stop else {}
    sent: Points = dict(stop.notes["sent"]) if stop else {}
    watched: list[Any] = stop.notes["watched"] if stop else []
    earlier, looking, begun, put = stop.notes["seconds"] if stop else 0.0, 0.0, time.process_time(), time.monotonic()

    def spent() -> float:
        return float(earlier + time.process_time() - begun - looking)

    def observe(t: int, simulator: Simulator, told: Told) -> None:
        nonlocal looking, put
        since = time.process_time()
        if watch is not None:
            watched.append(watch(simulator))
        if t in rounds:
            sent[t] = simulator.ended(told).bytes / 1e6
            means = _means(algorithm, simulator.personal(told), train, test)
            curve[t] = float(algorithm.task.value(torch.from_numpy(means)).mean())
        looking += time.process_time() - since
        if path is not None and time.monotonic() - put > checkpoints.EVERY:
            notes = {"curve": list(curve.items()), "sent": list(sent.items()), "watched": watched, "seconds": spent()}
            checkpoints.put(path, checkpoints.Stop(simulator.snapshot(), notes), of)
            put = time.monotonic()

    if engine == "plain":
        outcome = run_plain(algorithm, train)
    else:
        outcome = run_rounds(algorithm, train, observe=observe, start=stop.snapshot if stop else None)
    seconds = spent()
    if outcome.missing:
        raise DivergenceError(
            f"{algorithm.title}: {len(outcome.missing)} client(s) left the finite numbers: lower the step size."
        )
    return Fitted(outcome, _means(algorithm, outcome.models, train, test), curve, sent, seconds, watched)


def _identity(algorithm: Rounds, train: Samples) -> str:
    """What must be the same for a fit to go on."""
    settings = algorithm.settings.model_dump_json()
    return f"{versions()} {algorithm.name} {settings} {algorithm.network.shapes} {train.sizes}"


def _means(algorithm: Rounds, models: torch.Tensor, train: Samples, test: Samples) -> NDArray[np.float64]:
    """Each client's mean mark; a model that is not finite has none, though a class can be read off it too."""
    marks = marks_of(algorithm, models, train, test).double()
    if not (bool(models.isfinite().all()) and bool(marks.isfinite().all())):
        raise DivergenceError(f"{algorithm.title} left the finite numbers: lower its step size.")
    means: NDArray[np.float64] = test.means(marks).numpy()
    return means
