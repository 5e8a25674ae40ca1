"""What an experiment is: a configuration, a list of independent tasks, and a function that does one of them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from learn2pfed.algorithms.base import Outcome
from learn2pfed.data.federated import FederatedData
from learn2pfed.errors import Learn2pFedError
from learn2pfed.results.records import DIVERGED, Detail, Row
from learn2pfed.search import Space


class Task(NamedTuple):
    """One fit: a method on one drawing of the data."""

    setting: str
    algorithm: str
    seed: int


class Done(NamedTuple):
    """What a task gives."""

    rows: list[Row]
    detail: Detail | None
    complaint: str = ""  # of a fit that diverged


class Column(NamedTuple):
    """A column of the experiment's table."""

    setting: str
    metric: str


class Config(BaseModel):
    """An experiment's configuration; unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Trials(Config):
    """How often everything is done."""

    first_seed: int = Field(0, ge=0, le=2**62, description="of the first trial")
    n_seeds: int = Field(5, ge=1, description="trials (--seeds)")

    @property
    def seeds(self) -> range:
        """The seeds, one a trial."""
        return range(self.first_seed, self.first_seed + self.n_seeds)


class Experiment(ABC):
    """A table or figure of the paper, or one of ours."""

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    config_class: ClassVar[type[Config]]
    presets: ClassVar[dict[str, dict[str, Any]]]
    validation: ClassVar[str] = "error on validation data"  # what `validate` gives, in words
    finalists: ClassVar[int] = 0  # so many of the best trials are tried by `validate_again` too
    costs_by_setting: ClassVar[bool] = False  # whether a fit costs far more in some settings than in others
    notes_stand_apart: ClassVar[bool] = False  # whether each is about one thing that settings name: a run may have more
    tuned_as: ClassVar[str] = ""  # the experiment whose tuned values it takes, where it has none of its own
    tuning: ClassVar[str] = "Settings were tuned on validation data, with as many trials for every method."

    def variants(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Ways to run one method, recorded as "METHOD, VARIANT" and shown side by side in tables."""
        return ()

    @abstractmethod
    def tasks(self, config: Any) -> list[Task]:
        """All fits, the quickest first, so that the first numbers show at once."""

    @abstractmethod
    def run(self, config: Any, task: Task) -> Done:
        """Do one fit."""

    def behind(self, config: Mapping[str, Any], task: Task) -> Any:
        """What of a configuration decides the numbers of a fit: all but how many trials there are, unless it is known
        better. A fit of another run with the same behind it need not be done again.
        """
        return {name: value for name, value in config.items() if name != "n_seeds"}

    def leave(self, config: Any, folder: Path) -> None:  # noqa: B027
        """Files that a finished run has beside its results."""

    def introduction(self, settings: Collection[str]) -> str:
        """What the page of a run in these settings says first."""
        return self.about

    def notes(self, config: Any) -> list[str]:
        """What a reader must know of the data that are used: what was dropped or mended, by which rule."""
        return []

    def same_data(self, notes: Sequence[str], others: Sequence[str]) -> bool:
        """Whether fits of two runs with these notes are on the same data where their settings agree."""
        if self.notes_stand_apart:
            return set(notes) <= set(others) or set(others) <= set(notes)
        return notes == others

    def tunable(self, config: Any) -> dict[str, Space]:
        """Where tuning may look, by method as the configuration names it: only those that run."""
        return {}

    def untunable(self, config: Any) -> str:
        """Why `validate` can measure nothing with this configuration; nothing where it can."""
        return ""

    def also_set(self, config: Any) -> tuple[str, ...]:
        """Settings of methods that stand outside the groups that can be tuned."""
        return ()

    def validate(self, config: Any, key: str) -> float:
        """How well one of the tunable methods does on validation data with this configuration; smaller is better."""
        raise Learn2pFedError(f"{self.name} has nothing to tune.")

    def validate_again(self, config: Any, key: str) -> float:
        """The same on other validation data, for the few trials that were best."""
        raise Learn2pFedError(f"{self.name} tries nothing again.")

    @abstractmethod
    def rank(self, algorithm: str) -> float:
        """Where the table lists this method; those of equal rank stay in the order in which they ran."""

    @abstractmethod
    def columns(self, rows: Sequence[Row]) -> list[Column]:
        """The columns of the table, in order."""


T = TypeVar("T")


def timed(fit: Callable[[], T]) -> tuple[T, float]:
    """What it gives, and the CPU seconds that it took."""
    start = time.process_time()
    return fit(), time.process_time() - start


def squared_errors(models: Tensor, data: FederatedData) -> NDArray[np.float64]:
    """Mean squared error of each client's linear model on its rows, (M,)."""
    gaps = (data.X * models[data.owner]).sum(1) - data.y
    found: NDArray[np.float64] = data.means(gaps.square()).numpy()
    return found


def pull(data: FederatedData, lam: Tensor) -> Tensor:
    """Λ in units of a typical client's curvature, in which it says how far a coefficient follows the others."""
    return lam / (data.X.square().sum(0) / len(data))


def over_clients(
    metric: str, values: NDArray[np.float64], sizes: Sequence[int], *, larger_is_better: bool
) -> dict[str, float]:
    """A metric by client in four numbers: mean, weighted by samples, standard deviation, and the worst tenth's mean.

    >>> over_clients("RMSE", np.array([1.0, 3.0]), [3, 1], larger_is_better=False)["RMSE, weighted by samples"]
    1.5
    """
    worst = np.sort(values)[:: 1 if larger_is_better else -1][: max(1, round(len(values) / 10))]
    return {
        metric: float(values.mean()),
        f"{metric}, weighted by samples": float(np.average(values, weights=sizes)),
        f"{metric}, std over clients": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        f"{metric}, worst tenth of clients": float(worst.mean()),
    }


def rows_of(task: Task, outcome: Outcome, seconds: float, errors: dict[str, float]) -> list[Row]:
    """One row per metric."""
    return [
        Row(
            **task._asdict(),
            metric=metric,
            value=value,
            seconds=round(seconds, 4),
            bytes_up=outcome.traffic.bytes_up,
            bytes_down=outcome.traffic.bytes_down,
        )
        for metric, value in errors.items()
    ]


def by_setting_and_metric(rows: Sequence[Row]) -> list[Column]:
    """Every (setting, metric) in order of first appearance, settings sorted."""
    settings: dict[str, set[str]] = {}
    for row in (row for row in rows if row.metric != DIVERGED):
        settings.setdefault(row.metric, set()).add(row.setting)
    return [Column(setting, metric) for metric, found in settings.items() for setting in sorted(found)]
