"""Supplement fig. 7: convergence by the number of cells L; and Theorem 1, the augmented Lagrangian along cells."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import torch
from pydantic import Field

from learn2pfed.algorithms.base import Outcome
from learn2pfed.experiments.base import (
    Column,
    Done,
    Experiment,
    Task,
    by_setting_and_metric,
    rows_of,
    timed,
)
from learn2pfed.experiments.polynomial import StudyConfig, curve_errors, talk
from learn2pfed.results.records import Detail, Row, rounded
from learn2pfed.unrolled.cell import alpha_step, augmented_lagrangian
from learn2pfed.unrolled.losses import SQUARED
from learn2pfed.unrolled.network import unroll, zero_state
from learn2pfed.unrolled.settings import Settings
from learn2pfed.unrolled.supervision import supervise_all
from learn2pfed.unrolled.theta import start_common, start_own, theta_of_cells


class LayersConfig(StudyConfig):
    """As the polynomial study, with the depths to compare."""

    depths: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1, 2, 5, 10, 20), min_length=1, description="numbers of cells L"
    )
    penalties: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (0.003, 0.03, 0.3, 1.0, 3.0, 10.0), description="ρ, as multiples of mean curvature"
    )
    n_traced: int = Field(60, ge=2, description="cells along which the Lagrangian is traced")


RECIPES = {"paper": "as in the paper", "learn2pfed": "crossval"}


class LayersExperiment(Experiment):
    """Convergence by L, and the Lagrangian."""

    name = "layers"
    title = "How many cells"
    about = (
        "Learn2pFed with L = 1, 2, 5, 10, 20 unrolled cells: the outer objective by epoch and the error at the end; "
        "and the augmented Lagrangian along cells with Θ fixed, for several ρ (Theorem 1)."
    )
    config_class = LayersConfig
    presets = {"quick": {"n_seeds": 3}, "paper": {}}  # noqa: RUF012

    def tasks(self, config: LayersConfig) -> list[Task]:
        """The Lagrangian first: it takes no time."""
        traced = [
            Task(setting, f"Lagrangian, ρ = {penalty:g}", config.first_seed)
            for penalty in config.penalties
            for setting in config.setting_names()
        ]
        fits = [
            Task(setting, f"L = {depth}, {recipe}", seed)
            for depth in config.depths
            for recipe in RECIPES.values()
            for setting in config.setting_names()
            for seed in config.seeds
        ]
        return traced + fits

    def run(self, config: LayersConfig, task: Task) -> Done:
        """One depth, or one trace of the Lagrangian."""
        if task.algorithm.startswith("Lagrangian"):
            penalty = next(p for p in config.penalties if task.algorithm == f"Lagrangian, ρ = {p:g}")
            return lagrangian(config, task, penalty)
        depth, key = next(
            (depth, key)
            for depth in config.depths
            for key, recipe in RECIPES.items()
            if task.algorithm == f"L = {depth}, {recipe}"
        )
        chosen: Settings = getattr(config, key)
        settings = chosen.changed(n_cells=depth)
        study = config.study(task.setting, task.seed)
        outcome, seconds = timed(lambda: talk(config, settings, study, task.seed))
        detail = None
        if task.seed == config.first_seed:
            detail = Detail(**task._asdict(), series={"history": rounded(outcome.history)})
        return Done(rows_of(task, outcome, seconds, curve_errors(study, outcome)), detail)

    def rank(self, algorithm: str) -> float:
        """By recipe, then by the number in the name: L or ρ."""
        number = float(algorithm.partition(" = ")[2].partition(",")[0])
        return number + 1e6 * algorithm.endswith(RECIPES["learn2pfed"])

    def columns(self, rows: Sequence[Row]) -> list[Column]:
        """Each metric over the settings."""
        return by_setting_and_metric(rows)


def lagrangian(config: LayersConfig, task: Task, penalty: float) -> Done:
    """L(v^ℓ, z^ℓ, w^ℓ; α^(ℓ+1)) along cells with Θ fixed, Λ = 1; ρ in units of each client's mean curvature."""
    study = config.study(task.setting, task.seed)
    settings = Settings(supervision="train", rho_start=penalty, lam_start=1.0, n_cells=config.n_traced)
    loss = supervise_all(study.data, settings, SQUARED)[0].full
    own = start_own(settings, loss, conditioning=1.0)
    thetas = theta_of_cells(start_common(settings, study.data.n_features), own, config.n_traced)
    state = zero_state(1, len(study.data), study.data.n_features)
    values = []
    for theta, (after, w) in zip(
        thetas, unroll(loss, thetas, state, torch.zeros(1, study.data.n_features, dtype=torch.float64)), strict=True
    ):
        alpha = alpha_step(after.alpha, after.v, after.z, w, theta.theta)
        values.append(float(augmented_lagrangian(loss, after._replace(alpha=alpha), w, theta)))
    rises = [b - a for a, b in pairwise(values)]
    empty = Outcome(torch.empty(0), torch.empty(0))
    rows = rows_of(task, empty, 0.0, {"cells at which the Lagrangian rises": float(sum(rise > 0 for rise in rises))})
    return Done(rows, Detail(**task._asdict(), series={"lagrangian": rounded(values)}))
