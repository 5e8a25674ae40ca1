"""What an experiment is: a configuration, a list of independent tasks, and a function that does one of them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from learn2pfed.algorithms.base import Outcome
from learn2pfed.data.polynomial import Polynomial
from learn2pfed.results.records import Detail, Row


class Task(NamedTuple):
    """One fit: a method on one drawing of the data."""

    setting: str
    algorithm: str
    seed: int


class Done(NamedTuple):
    """What a task gives."""

    rows: list[Row]
    detail: Detail | None


class Column(NamedTuple):
    """A column of the experiment's table."""

    setting: str
    metric: str


class Config(BaseModel):
    """An experiment's configuration; unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Experiment(ABC):
    """A table or figure of the paper, or one of ours."""

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    config_class: ClassVar[type[Config]]
    presets: ClassVar[dict[str, dict[str, Any]]]

    @abstractmethod
    def tasks(self, config: Any) -> list[Task]:
        """All fits, the quickest first, so that the first numbers show at once."""

    @abstractmethod
    def run(self, config: Any, task: Task) -> Done:
        """Do one fit."""

    @abstractmethod
    def rank(self, algorithm: str) -> float:
        """Where the table lists this method; those of equal rank stay in the order in which they ran."""

    @abstractmethod
    def columns(self, rows: Sequence[Row]) -> list[Column]:
        """The columns of the table, in order."""


def timed(fit: Callable[[], Outcome]) -> tuple[Outcome, float]:
    """The outcome and the CPU seconds that it took."""
    start = time.process_time()
    return fit(), time.process_time() - start


def curve_errors(study: Polynomial, outcome: Outcome) -> dict[str, float]:
    """MSE and RMSE to the noise-free function on each client's own x, each averaged over clients."""
    by_client = np.array(
        [
            np.mean((client.X.numpy() @ outcome.models[i].numpy() - study.truth(i)) ** 2)
            for i, client in enumerate(study.data.clients)
        ]
    )
    return {"RMSE": float(np.sqrt(by_client).mean()), "MSE": float(by_client.mean())}


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
    for row in rows:
        settings.setdefault(row.metric, set()).add(row.setting)
    return [Column(setting, metric) for metric, found in settings.items() for setting in sorted(found)]
