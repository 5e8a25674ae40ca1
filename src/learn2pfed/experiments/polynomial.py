"""Table I and fig. Λ: three settings of polynomial regression, ten clients, five trials; and our quality table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from learn2pfed.algorithms.base import Outcome
from learn2pfed.algorithms.closed_form import exact_inner, local_only, one_for_all, oracle, reml
from learn2pfed.algorithms.learn2pfed import Learn2pFed
from learn2pfed.data.polynomial import BASE, Polynomial, polynomial
from learn2pfed.engines.plain import run_plain
from learn2pfed.engines.simulation import run_simulation
from learn2pfed.errors import Learn2pFedError
from learn2pfed.experiments.base import (
    Column,
    Config,
    Done,
    Experiment,
    Task,
    by_setting_and_metric,
    curve_errors,
    rows_of,
    timed,
)
from learn2pfed.results.records import Detail, Row, rounded
from learn2pfed.unrolled.settings import Settings

Sizes = Literal["equal", "random"]


class StudyConfig(Config):
    """What can be set, on the command line with --set NAME=VALUE."""

    settings: tuple[Literal[1, 2, 3], ...] = Field((1, 2, 3), min_length=1, description="how many coefficients differ")
    sizes: tuple[Sizes, ...] = Field(("equal",), min_length=1, description="client sizes: equal, random")
    n_clients: int = Field(10, ge=1, description="M")
    n_rows: int = Field(1000, ge=1, description="of all clients together")
    min_rows: int = Field(8, ge=1, description="fewest rows of a client, sizes = random")
    noise: float = Field(0.1, ge=0, description="standard deviation")
    first_seed: int = Field(0, ge=0, description="of the first trial")
    n_seeds: int = Field(5, ge=1, description="trials (--seeds)")
    engine: Literal["simulation", "plain"] = Field(
        "simulation", description="all clients at once, or one by one through encoded messages (plain, slow)"
    )
    learn2pfed: Settings = Settings()
    paper: Settings = Settings.paper()

    @property
    def seeds(self) -> range:
        """The seeds, one a trial."""
        return range(self.first_seed, self.first_seed + self.n_seeds)

    def study(self, setting: str, seed: int) -> Polynomial:
        """The data of one trial; `setting` is '1', '2', '3', or '1 random' where sizes vary."""
        number, _, sizes = setting.partition(" ")
        return polynomial(
            seed,
            int(number),
            n_clients=self.n_clients,
            n_rows=self.n_rows,
            sizes="random" if sizes == "random" else "equal",
            min_rows=self.min_rows,
            noise=self.noise,
        )

    def setting_names(self) -> list[str]:
        """'1' where all sizes are equal; '1 equal', '1 random' where both occur."""
        if self.sizes == ("equal",):
            return [str(number) for number in self.settings]
        return [f"{number} {sizes}" for sizes in self.sizes for number in self.settings]


class PolynomialConfig(StudyConfig):
    """The study with its methods."""

    algorithms: tuple[str, ...] = Field(
        ("local-only", "global", "paper", "learn2pfed", "reml", "oracle"),
        min_length=1,
        description="methods (--algorithms); also exact-inner",
    )


def talk(config: StudyConfig, settings: Settings, study: Polynomial, seed: int) -> Outcome:
    """Learn2pFed on the chosen engine, its folds and draws seeded by the trial."""
    algorithm = Learn2pFed(settings.changed(seed=seed))
    run = run_plain if config.engine == "plain" else run_simulation
    return run(algorithm, study.data)


Method = Callable[[PolynomialConfig, Polynomial, int], Outcome]

METHODS: dict[str, Method] = {
    "local-only": lambda config, study, seed: local_only(study.data),
    "global": lambda config, study, seed: one_for_all(study.data),
    "reml": lambda config, study, seed: reml(study.data),
    "oracle": lambda config, study, seed: oracle(study.data, torch.from_numpy(study.shared)),
    "learn2pfed": lambda config, study, seed: talk(config, config.learn2pfed, study, seed),
    "exact-inner": lambda config, study, seed: exact_inner(study.data, config.learn2pfed.changed(seed=seed)),
    "paper": lambda config, study, seed: talk(config, config.paper, study, seed),
}
"""In the order in which they run, quickest first."""

NEED_ROWS = ("reml", "exact-inner")
"""Left out where there are no more rows than coefficients in all."""

TITLES = {
    "local-only": "Local-Only",
    "global": "One global model",
    "paper": "Learn2pFed (paper)",
    "learn2pfed": "Learn2pFed",
    "exact-inner": "Learn2pFed (exact inner)",
    "reml": "REML (limit)",
    "oracle": "Oracle (limit)",
}
"""In the order of the table."""


SMALLEST = "share of clients at which x³ has the smallest Λ"
"""In setting 1, where x³ is the one coefficient that differs, it should be 1."""


class PolynomialExperiment(Experiment):
    """Table I."""

    name = "polynomial"
    title = "Polynomial regression"
    about = (
        "Ten clients, each with a cubic curve on its own stretch of x; in setting 1, 2, 3 the last 1, 2, 3 "
        "coefficients differ between clients. Local-Only and the global model are least squares. The oracle is told "
        "which coefficients are shared and leaves the others to each client; REML is the random-effects model with "
        "diagonal covariance. Both know more than we do, and still can be beaten: the oracle does not shrink the "
        "clients' own coefficients, and in setting 3 these move together, which no diagonal covariance says. Errors "
        "are to the noise-free curve on each client's own x, averaged over clients."
    )
    config_class = PolynomialConfig
    presets = {  # noqa: RUF012
        "quick": {},
        "paper": {},
    }

    def tasks(self, config: PolynomialConfig) -> list[Task]:
        """Method by method, quickest first."""
        unknown = [name for name in config.algorithms if name not in METHODS]
        if unknown:
            raise Learn2pFedError(f"algorithms: unknown {unknown[0]!r}; there are {', '.join(METHODS)}.")
        return [
            Task(setting, TITLES[name], seed)
            for name in METHODS
            if name in config.algorithms and not (name in NEED_ROWS and config.n_rows <= len(BASE))
            for setting in config.setting_names()
            for seed in config.seeds
        ]

    def run(self, config: PolynomialConfig, task: Task) -> Done:
        """Fit and compare with the noise-free curves."""
        name = next(name for name, title in TITLES.items() if title == task.algorithm)
        study = config.study(task.setting, task.seed)
        outcome, seconds = timed(lambda: METHODS[name](config, study, task.seed))
        detail = None
        if task.seed == config.first_seed or "lam" in outcome.insight:
            detail = Detail(**task._asdict(), series=_series(config, study, task, outcome))
        measured = curve_errors(study, outcome)
        if task.setting.startswith("1") and "lam" in outcome.insight:
            measured[SMALLEST] = float((pull(study, outcome.insight["lam"]).argmin(1) == 3).double().mean())
        return Done(rows_of(task, outcome, seconds, measured), detail)

    def rank(self, algorithm: str) -> float:
        """References, the paper, ours, limits."""
        return list(TITLES.values()).index(algorithm)

    def columns(self, rows: Sequence[Row]) -> list[Column]:
        """Each metric over the settings."""
        return by_setting_and_metric(rows)


def pull(study: Polynomial, lam: Tensor) -> Tensor:
    """Λ in units of a typical client's curvature, in which it says how far a coefficient follows the others."""
    return lam / torch.stack([client.X.square().sum(0) for client in study.data.clients]).mean(0)


def _series(config: PolynomialConfig, study: Polynomial, task: Task, outcome: Outcome) -> dict[str, Any]:
    """What the figures show: learned Λ of every trial; data, truth and models of the first."""
    series: dict[str, Any] = {}
    if "lam" in outcome.insight:
        series["pull"] = rounded(pull(study, outcome.insight["lam"]).tolist())
    if "lam_start" in outcome.insight:
        series["pull_start"] = rounded(pull(study, outcome.insight["lam_start"])[0].tolist())
    if task.seed == config.first_seed:
        series["history"] = rounded(outcome.history)
        series["models"] = rounded(outcome.models.tolist())
        series["truth"] = rounded(study.coefficients.tolist())
        clients = study.data.clients
        series["rows"] = [{"x": rounded(c.X[:, 1].tolist()), "y": rounded(c.y.tolist())} for c in clients]
    return series


class QualityExperiment(PolynomialExperiment):
    """How near to the statistical limit, over twenty seeds that neither tests nor tuning use."""

    name = "quality"
    title = "How near to the limit"
    about = (
        "The polynomial settings with equal and with random client sizes over twenty seeds that neither tests nor "
        "tuning use. REML is the statistical limit for a Λ common to all clients; the exact inner solution is what "
        "infinitely many cells would give."
    )
    presets = {  # noqa: RUF012
        "quick": {
            "sizes": ("equal", "random"),
            "first_seed": 1000,
            "n_seeds": 20,
            "algorithms": tuple(TITLES),
        },
    }
