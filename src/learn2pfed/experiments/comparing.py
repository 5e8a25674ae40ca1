"""What experiments that compare methods share: the protocol, baselines by name, and fitting one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

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
from learn2pfed.errors import DivergenceError
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
    engine: Literal["simulation", "plain"] = Field(
        "simulation", description="all clients at once, or one by one through encoded messages (plain, slow)"
    )

    def algorithm(self, name: str, own: dict[str, Any], seed: int, network: Network, task: Task) -> Rounds:
        """The baseline with its own settings, the common ones and the seed of the trial."""
        method = baseline(name)
        common = {field: getattr(self, field) for field in PROTOCOL if field in method.settings_class.model_fields}
        return method(method.settings_class.of(**own, **common, seed=seed), network, task)


def _own_settings(given: Any) -> Any:
    """Each method's settings in full, without those of the protocol; unknown names are refused."""
    full = {name: baseline(name).settings_class.of(**own).model_dump() for name, own in dict(given).items()}
    aside = (*PROTOCOL, "seed")
    return {name: {key: own[key] for key in own if key not in aside} for name, own in full.items()}


OwnSettings = Annotated[dict[str, dict[str, Any]], BeforeValidator(_own_settings)]
"""By baseline: the settings that are its own, all of them."""


Points = dict[int, float]
"""A metric by round."""


def fit(
    algorithm: Rounds, engine: str, train: Samples, test: Samples, rounds: frozenset[int] = frozenset()
) -> tuple[Outcome, NDArray[np.float64], Points]:
    """The outcome, each client's mean mark on its own test samples, and the metric after some rounds.

    All clients are judged, and the models of the last round count; what is seen along the way chooses nothing.
    """
    seen: Points = {}

    def observe(t: int, simulator: Simulator, personal: Any) -> None:
        if t in rounds:
            seen[t] = float(algorithm.task.value(torch.from_numpy(_means(algorithm, personal(), train, test))).mean())

    if engine == "plain":
        outcome = run_plain(algorithm, train)
    else:
        outcome = run_rounds(algorithm, train, observe=observe if rounds else None)
    return outcome, _means(algorithm, outcome.models, train, test), seen


def _means(algorithm: Rounds, models: torch.Tensor, train: Samples, test: Samples) -> NDArray[np.float64]:
    marks = marks_of(algorithm, models, train, test).double()
    if not bool(torch.isfinite(marks).all()):
        raise DivergenceError(f"{algorithm.title} left the finite numbers: lower its step size.")
    sums = torch.zeros(len(test), dtype=torch.float64).index_add_(0, test.owner, marks)
    means: NDArray[np.float64] = (sums / torch.tensor(test.sizes)).numpy()
    return means
