"""Table II: which of the six groups are learned, twelve rows, under the paper's supervision and under ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from learn2pfed.experiments.base import (
    Column,
    Done,
    Experiment,
    Task,
    by_setting_and_metric,
    curve_errors,
    rows_of,
    timed,
)
from learn2pfed.experiments.polynomial import PolynomialConfig, talk
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


class AblationConfig(PolynomialConfig):
    """As the polynomial study, with the supervisions to compare."""

    supervision: tuple[Literal["train", "crossval"], ...] = ("train", "crossval")


def title(learned: tuple[GroupName, ...], supervision: str) -> str:
    """How a row is called.

    >>> title(("lam", "p"), "train")
    'Λ p · train'
    """
    return f"{' '.join(SYMBOLS[name] for name in learned) or 'nothing'} · {supervision}"


class AblationExperiment(Experiment):
    """Table II."""

    name = "ablation"
    title = "What learning each group adds"
    about = (
        "The paper's recipe (a redrawn start, Adam at 0.01, 500 epochs) with some of the six groups learned and the "
        "others fixed. `train` supervises Θ by the training loss, as the paper does; `crossval` by held-out halves."
    )
    config_class = AblationConfig
    presets = {"quick": {}, "paper": {"supervision": ("train",)}}  # noqa: RUF012

    def tasks(self, config: AblationConfig) -> list[Task]:
        """Row by row."""
        return [
            Task(setting, title(learned, supervision), seed)
            for supervision in config.supervision
            for learned in LEARNED
            for setting in config.setting_names()
            for seed in config.seeds
        ]

    def run(self, config: AblationConfig, task: Task) -> Done:
        """The paper's recipe with these groups learned."""
        learned, supervision = next(
            (groups, supervision)
            for supervision in config.supervision
            for groups in LEARNED
            if title(groups, supervision) == task.algorithm
        )
        settings = config.paper.model_copy(update={"learn": learned, "supervision": supervision})
        study = config.study(task.setting, task.seed)
        outcome, seconds = timed(lambda: talk(config, settings, study, task.seed))
        return Done(rows_of(task, outcome, seconds, curve_errors(study, outcome)), None)

    def rank(self, algorithm: str) -> int:
        """As Table II, the paper's supervision first."""
        return [title(learned, by) for by in ("train", "crossval") for learned in LEARNED].index(algorithm)

    def columns(self, rows: Sequence[Row]) -> list[Column]:
        """Each metric over the settings."""
        return by_setting_and_metric(rows)
