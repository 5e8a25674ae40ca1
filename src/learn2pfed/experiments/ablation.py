"""Table II: which of the six groups are learned, twelve rows, in the paper's recipe and in ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

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
from learn2pfed.results.records import Row
from learn2pfed.unrolled.settings import GROUPS, GroupName

SYMBOLS: dict[GroupName, str] = {"lam": "Λ", "p": "p", "rho": "ρ", "eta": "η", "gamma": "γ", "theta": "θ"}

LEARNED: tuple[tuple[GroupName, ...], ...] = (
    (),
    ("lam",),
    ("p",),
    ("lam", "p"),
    ("rho", "eta", "gamma", "theta"),
    ("rho",),
    ("eta",),
    ("gamma",),
    ("theta",),
    ("p", "rho", "eta", "gamma", "theta"),
    ("lam", "rho", "eta", "gamma", "theta"),
    GROUPS,
)
"""The rows of Table II, in its order."""


class AblationConfig(StudyConfig):
    """As the polynomial study, with the recipes to compare."""

    recipes: tuple[Literal["paper", "learn2pfed"], ...] = Field(
        ("paper", "learn2pfed"), min_length=1, description="whose other settings to use"
    )


def title(learned: tuple[GroupName, ...], recipe: str) -> str:
    """How a row is called.

    >>> title(("lam", "p"), "paper")
    'paper: Λ p'
    """
    return f"{recipe}: {' '.join(SYMBOLS[name] for name in learned) or 'nothing'}"


class AblationExperiment(Experiment):
    """Table II."""

    name = "ablation"
    title = "What learning each group adds"
    about = (
        "Some of the six groups learned, the others fixed at their start: in the paper's recipe (supervised by the "
        "training loss, redrawn start, one Λ per client) and in ours (supervised by held-out halves, warm start, "
        "common Λ)."
    )
    config_class = AblationConfig
    presets = {"quick": {}, "paper": {"recipes": ("paper",)}}  # noqa: RUF012

    def tasks(self, config: AblationConfig) -> list[Task]:
        """Row by row."""
        return [
            Task(setting, title(learned, recipe), seed)
            for recipe in config.recipes
            for learned in LEARNED
            for setting in config.setting_names()
            for seed in config.seeds
        ]

    def run(self, config: AblationConfig, task: Task) -> Done:
        """One recipe with these groups learned."""
        learned, recipe = next(
            (groups, recipe)
            for recipe in config.recipes
            for groups in LEARNED
            if title(groups, recipe) == task.algorithm
        )
        settings = (config.paper if recipe == "paper" else config.learn2pfed).changed(learn=learned)
        study = config.study(task.setting, task.seed)
        outcome, seconds = timed(lambda: talk(config, settings, study, task.seed))
        return Done(rows_of(task, outcome, seconds, curve_errors(study, outcome)), None)

    def rank(self, algorithm: str) -> float:
        """As Table II, the paper's recipe first."""
        return [title(learned, by) for by in ("paper", "learn2pfed") for learned in LEARNED].index(algorithm)

    def columns(self, rows: Sequence[Row]) -> list[Column]:
        """Each metric over the settings."""
        return by_setting_and_metric(rows)
