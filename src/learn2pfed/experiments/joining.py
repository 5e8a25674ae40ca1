"""Partial participation: the more epochs, the nearer to what all clients together learn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from learn2pfed.algorithms.base import Outcome
from learn2pfed.algorithms.learn2pfed import Learn2pFed
from learn2pfed.data.electricity import load
from learn2pfed.data.federated import cohort
from learn2pfed.data.forecasting import changing, forecasting
from learn2pfed.data.loads import Loads
from learn2pfed.engines.simulation import run_simulation
from learn2pfed.experiments.base import (
    Column,
    Done,
    Experiment,
    Task,
    Trials,
    by_setting_and_metric,
    rows_of,
    squared_errors,
    timed,
)
from learn2pfed.results.records import Row
from learn2pfed.unrolled.settings import Settings

DISTANCE = "distance of the models to those with all clients"


class JoiningConfig(Trials):
    """What can be set."""

    source: str = Field("sample", description="meters: sample, ecl, ecl-20, households, or a file")
    shares: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        (0.1, 0.25, 0.5, 1.0), min_length=1, description="of the clients, that take part in an epoch"
    )
    epochs: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (300, 1000, 3000), min_length=1, description="numbers of epochs to compare"
    )
    reference: int = Field(
        3000, ge=1, description="epochs of the fit with all clients that the others are held against"
    )
    n_seeds: int = Field(3, ge=1, description="trials (--seeds)")
    learn2pfed: Settings = Settings(refit="exact", n_repeats=3)


@cache
def _loads(source: str) -> Loads:
    """Without meters that never change in the training part."""
    return changing(load(source), n_days=1)


def _name(share: float) -> str:
    """A share as a setting of the table.

    >>> _name(0.1), _name(0.101), _name(0.07)
    ('10% an epoch', '10.1% an epoch', '7% an epoch')
    """
    return f"{100 * share:.12g}% an epoch"


class JoiningExperiment(Experiment):
    """Does learning with some clients at a time end where learning with all does?"""

    name = "joining"
    title = "Some clients at a time"
    about = (
        "Learn2pFed on the next hour of real meters from the day before, with a share of them drawn for every epoch. "
        "Who sits out stands in every sum with what it last said, so that there is one limit for all shares. The "
        "distance is ‖v - v'‖/‖v'‖ over all clients, v' after many epochs with all; RMSE is on the last tenth of the "
        "hours."
    )
    config_class = JoiningConfig
    costs_by_setting = True
    presets = {"quick": {}}  # noqa: RUF012

    def notes(self, config: JoiningConfig) -> list[str]:
        """Of the meters; and of epochs so few that nothing is learned in them."""
        idle = [str(epochs) for epochs in sorted(set(config.epochs)) if epochs <= config.learn2pfed.n_warmup]
        warmup = f"Λ stays as it is in the first {config.learn2pfed.n_warmup} epochs (learn2pfed.n_warmup): after "
        return _loads(config.source).words + ([f"{warmup}{', '.join(idle)} nothing is learned yet."] if idle else [])

    def tasks(self, config: JoiningConfig) -> list[Task]:
        """By share and number of epochs."""
        rows = forecasting(_loads(config.source), n_days=1)  # refuses what can't be, before anything runs
        for share in config.shares:
            cohort(len(rows.train), share, config.first_seed, 0)  # likewise
        return [
            Task(_name(share), f"{epochs} epochs", seed)
            for epochs in sorted(set(config.epochs))
            for share in dict.fromkeys(config.shares)
            for seed in config.seeds
        ]

    def run(self, config: JoiningConfig, task: Task) -> Done:
        """Fit with some and with all."""
        rows = forecasting(_loads(config.source), n_days=1)
        share = next(share for share in config.shares if _name(share) == task.setting)

        def fitted(join: float, n_epochs: int) -> Outcome:
            settings = config.learn2pfed.changed(join=join, n_epochs=n_epochs, seed=task.seed)
            return run_simulation(Learn2pFed(settings), rows.train)

        outcome, seconds = timed(lambda: fitted(share, int(task.algorithm.split()[0])))
        everyone = fitted(1.0, config.reference).models
        measured = {
            DISTANCE: float(torch.linalg.norm(outcome.models - everyone) / torch.linalg.norm(everyone)),
            "RMSE": float(np.sqrt(squared_errors(outcome.models, rows.test.all)).mean()),
        }
        return Done(rows_of(task, outcome, seconds, measured), None)

    def rank(self, algorithm: str) -> float:
        """By epochs."""
        return float(algorithm.split()[0])

    def columns(self, rows: Sequence[Row]) -> list[Column]:
        """Each metric over the shares."""
        found = by_setting_and_metric(rows)
        return sorted(found, key=lambda column: (column.metric != DISTANCE, float(column.setting.partition("%")[0])))
