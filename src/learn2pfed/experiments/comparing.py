"""What experiments that compare methods share: the protocol, baselines by name, and fitting one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from learn2pfed.algorithms.base import Outcome
from learn2pfed.algorithms.registry import baseline
from learn2pfed.algorithms.rounds import Rounds
from learn2pfed.data.federated import Samples
from learn2pfed.engines.plain import run_plain
from learn2pfed.engines.rounds import Simulator, marks_of, run_rounds
from learn2pfed.errors import DivergenceError, Learn2pFedError, SettingError
from learn2pfed.experiments.base import Config
from learn2pfed.models.network import Network
from learn2pfed.tasks import Task

PROTOCOL = ("n_rounds", "join", "epochs", "batch_size")
"""Settings that are the same for every method."""


class ProtocolConfig(Config):
    """The protocol of baselines, the same for all."""

    n_rounds: int = Field(500, ge=1, description="T, rounds of the baselines")
    join: float = Field(1.0, gt=0, le=1, description="share of the clients that take part in a round")
    epochs: int = Field(2, ge=1, description="E, local epochs a round")
    batch_size: int = Field(64, ge=1, description="B")

    def algorithm(self, name: str, own: dict[str, Any], seed: int, network: Network, task: Task, rows: int) -> Rounds:
        """The baseline with its own settings, the common ones and the seed of the trial; a client has so many rows."""
        method = baseline(name)
        how = method.settings_class
        common = {field: getattr(self, field) for field in PROTOCOL if field in how.model_fields}
        as_many = how.of_steps(self.epochs * -(-rows // self.batch_size))  # batches as the others' epochs have
        return method(how.of(**own, **common, **as_many, seed=seed), network, task)


def _own_settings(given: Any) -> Any:
    """Each method's settings in full, without those that are the same for all; unknown names are refused."""
    if not (isinstance(given, Mapping) and all(isinstance(own, Mapping) for own in given.values())):
        raise ValueError("give settings by method, as in fedavg.lr=0.1")
    found = {}
    for name, own in given.items():
        method = baseline(name)
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


Points = dict[int, float]
"""A metric by round."""


class Fitted(NamedTuple):
    """What fitting a baseline gives."""

    outcome: Outcome
    marks: NDArray[np.float64]  # (M,), each client's mean mark on its own test samples
    curve: Points  # the metric after some rounds
    seconds: float  # CPU time, without scoring


def fit(algorithm: Rounds, engine: str, train: Samples, test: Samples, rounds: Collection[int] = ()) -> Fitted:
    """All clients are judged, and the models of the last round count; what is seen along the way chooses nothing."""
    curve: Points = {}
    looking = 0.0

    def observe(t: int, simulator: Simulator, personal: Any) -> None:
        nonlocal looking
        if t in rounds:
            begun = time.process_time()
            curve[t] = float(algorithm.task.value(torch.from_numpy(_means(algorithm, personal(), train, test))).mean())
            looking += time.process_time() - begun

    begun = time.process_time()
    if engine == "plain":
        outcome = run_plain(algorithm, train)
    else:
        outcome = run_rounds(algorithm, train, observe=observe if rounds else None)
    seconds = time.process_time() - begun - looking
    if outcome.missing:
        raise DivergenceError(
            f"{algorithm.title}: {len(outcome.missing)} client(s) left the finite numbers: lower the step size."
        )
    return Fitted(outcome, _means(algorithm, outcome.models, train, test), curve, seconds)


def _means(algorithm: Rounds, models: torch.Tensor, train: Samples, test: Samples) -> NDArray[np.float64]:
    marks = marks_of(algorithm, models, train, test).double()
    if not bool(torch.isfinite(marks).all()):
        raise DivergenceError(f"{algorithm.title} left the finite numbers: lower its step size.")
    sums = torch.zeros(len(test), dtype=torch.float64).index_add_(0, test.owner, marks)
    means: NDArray[np.float64] = (sums / torch.tensor(test.sizes)).numpy()
    return means
