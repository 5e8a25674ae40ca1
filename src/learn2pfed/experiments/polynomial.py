"""Table I and fig. Λ: three settings of polynomial regression, ten clients, five trials; and our quality table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from learn2pfed.algorithms.base import Outcome
from learn2pfed.algorithms.closed_form import exact_inner, local_only, one_for_all, oracle, reml
from learn2pfed.algorithms.learn2pfed import Learn2pFed
from learn2pfed.algorithms.registry import BASELINES
from learn2pfed.algorithms.rounds import Rounds
from learn2pfed.algorithms.settings import LayerName
from learn2pfed.data.federated import Samples
from learn2pfed.data.polynomial import BASE, Polynomial, polynomial
from learn2pfed.engines.plain import run_plain
from learn2pfed.engines.simulation import run_simulation
from learn2pfed.errors import Learn2pFedError
from learn2pfed.experiments.base import Done, Task, Trials, over_clients, pull, rows_of, squared_errors, timed
from learn2pfed.experiments.comparing import (
    FOR_NUMBERS,
    Comparison,
    OwnSettings,
    ProtocolConfig,
    every_method,
    fit,
    looks,
    never_joined,
    spaces_of,
)
from learn2pfed.models.modules import build, notes_on
from learn2pfed.results.records import Detail, rounded
from learn2pfed.search import Space, search_space
from learn2pfed.tasks import Regression
from learn2pfed.unrolled.settings import Settings

Sizes = Literal["equal", "random"]


class StudyConfig(Trials):
    """What can be set, on the command line with --set NAME=VALUE."""

    settings: tuple[Literal[1, 2, 3], ...] = Field((1, 2, 3), min_length=1, description="how many coefficients differ")
    sizes: tuple[Sizes, ...] = Field(("equal",), min_length=1, description="client sizes: equal, random")
    n_clients: int = Field(10, ge=1, description="M")
    n_rows: int = Field(1000, ge=1, description="of all clients together")
    min_rows: int = Field(8, ge=1, description="fewest rows of a client, sizes = random")
    noise: float = Field(0.1, ge=0, description="standard deviation")
    engine: Literal["simulation", "plain"] = Field(
        "simulation", description="all clients at once, or one by one through encoded messages (plain, slow)"
    )
    learn2pfed: Settings = Settings()
    paper: Settings = Settings.paper()

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


FEW = {"lp-proj": {"n_projected": 2}}
"""A polynomial of four coefficients has no room for lp_proj's ten numbers."""


class PolynomialConfig(StudyConfig, ProtocolConfig):
    """The study with its methods; `mlp.` and `polynomial.` hold the baselines' own settings with either model."""

    algorithms: tuple[str, ...] = Field(
        (*FOR_NUMBERS, "least-squares", "global", "paper", "learn2pfed", "reml", "oracle"),
        min_length=1,
        description="methods (--algorithms); also exact-inner",
    )
    join: float = Field(1.0, gt=0, le=1, description="share of the clients that take part in a round")
    model: str = Field(
        "mlp", description="the baselines' network on x: learn2pfed list models, or package.module:function"
    )
    head: LayerName | None = Field(
        "head",
        description="the part of that network that FedPer and FedRep keep at home; none: all of it is shared",
    )
    mlp: Annotated[OwnSettings, BeforeValidator(every_method(FOR_NUMBERS))] = Field({}, validate_default=True)
    polynomial: Annotated[OwnSettings, BeforeValidator(every_method(FOR_NUMBERS, **FEW))] = Field(
        {}, validate_default=True
    )


def talk(config: StudyConfig, settings: Settings, study: Polynomial, seed: int) -> Outcome:
    """Learn2pFed on the chosen engine, its folds and draws seeded by the trial."""
    algorithm = Learn2pFed(settings.changed(seed=seed))
    run = run_plain if config.engine == "plain" else run_simulation
    return run(algorithm, study.data)


Reference = Callable[[PolynomialConfig, Polynomial, int], Outcome]

REFERENCES: dict[str, Reference] = {
    "least-squares": lambda config, study, seed: local_only(study.data),
    "global": lambda config, study, seed: one_for_all(study.data),
    "reml": lambda config, study, seed: reml(study.data),
    "oracle": lambda config, study, seed: oracle(study.data, torch.from_numpy(study.shared)),
    "learn2pfed": lambda config, study, seed: talk(config, config.learn2pfed, study, seed),
    "exact-inner": lambda config, study, seed: exact_inner(study.data, config.learn2pfed.changed(seed=seed)),
    "paper": lambda config, study, seed: talk(config, config.paper, study, seed),
}
"""What has a model linear in the polynomial's powers, in the order in which they run, quickest first."""

NEED_ROWS = ("reml", "exact-inner")
"""Left out where there are no more rows than coefficients in all."""

TITLES = {name: BASELINES[name].title for name in FOR_NUMBERS} | {
    "paper": "Learn2pFed (paper)",
    "learn2pfed": "Learn2pFed",
    "exact-inner": "Learn2pFed (exact inner)",
    "least-squares": "Least squares, alone",
    "global": "Least squares, together",
    "reml": "REML (limit)",
    "oracle": "Oracle (limit)",
}
"""In the order of the table."""

POLYNOMIAL = "polynomial"


def _label(model: str) -> str:
    return {"mlp": "MLP", "lstm": "LSTM"}.get(model, model)


def samples(study: Polynomial, variant: str) -> Samples:
    """Training rows: the network sees x, the linear model the powers of x, scaled over all clients as in Learn2pFed."""
    X = study.data.X
    inputs = X / X.square().mean(0).sqrt() if variant == POLYNOMIAL else X[:, 1:2]
    return Samples(study.data.names, inputs.float(), study.data.y.float(), study.data.sizes)


S = TypeVar("S", bound=Samples)


def noise_free(study: Polynomial, rows: S) -> S:
    """The same places with the curve itself, by which methods are judged."""
    truth = np.concatenate([study.truth(i) for i in range(len(study.data))])
    return replace(rows, y=torch.from_numpy(truth).to(rows.y.dtype))


def algorithm_of(config: PolynomialConfig, name: str, variant: str, seed: int) -> Rounds:
    """A baseline with the polynomial, or with the network."""
    if variant == POLYNOMIAL:
        network, own = build("linear", (len(BASE),), 1, seed, bias=False), config.polynomial[name]
    else:
        network, own = build(config.model, (1,), 1, seed, config.head), config.mlp[name]
    n_rows = max(1, config.n_rows // config.n_clients)
    return config.algorithm(name, own, config.join, seed, network, Regression(), n_rows)


SMALLEST = "share of clients at which x³ has the smallest Λ"
"""In setting 1, where x³ is the one coefficient that differs, it should be 1."""


POINTS = 11
"""Rounds after which the first trial is looked at."""

TUNING_SEEDS = (500, 501)
"""Draws of the data on whose held-out rows settings are tuned."""


class PolynomialExperiment(Comparison):
    """Table I."""

    name = "polynomial"
    title = "Polynomial regression"
    about = (
        "Ten clients, each with a cubic curve on its own stretch of x; in setting 1, 2, 3 the last 1, 2, 3 "
        "coefficients differ between clients. Every baseline runs with an MLP on x, as in the paper, and with a model "
        "linear in the powers of x, as Learn2pFed has; all of that model is head, so that FedPer and FedRep share "
        "nothing there: what travels is the number of the round and how many rows a client has. Least squares alone "
        "and together need no rounds. The oracle is told which coefficients are shared and leaves the others to each "
        "client; REML is the random-effects model with diagonal covariance. Both know more than we do, and still can "
        "be beaten: the oracle does not shrink the clients' own coefficients, and in setting 3 these move together, "
        "which no diagonal covariance says. Errors are to the noise-free curve on each client's own x, of all "
        "clients, after the last round."
    )
    config_class = PolynomialConfig
    titles = TITLES
    validation = "log of the mean squared error on held-out rows, mean over settings and draws"
    tuning = (
        "Settings of the baselines and of Learn2pFed were tuned on held-out rows of other draws, in the preset quick, "
        "with as many trials for each; the paper's recipe is its own."
    )
    presets = {  # noqa: RUF012
        "quick": {"n_rounds": 100},
        "paper": {"n_rounds": 500},
    }

    def variants(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """The network on x, and the polynomial."""
        return _label(config.get("model", "mlp")), POLYNOMIAL

    def notes(self, config: PolynomialConfig) -> list[str]:
        """Which file a network of one's own is made in."""
        return notes_on(config.model)

    def tasks(self, config: PolynomialConfig) -> list[Task]:
        """Method by method, quickest first."""
        self.refuse_unknown(config.algorithms)
        if set(config.seeds) & set(TUNING_SEEDS):
            raise Learn2pFedError(f"seeds {' and '.join(map(str, TUNING_SEEDS))} are for tuning alone: choose others.")
        titles = [
            TITLES[name]
            for name in REFERENCES
            if name in config.algorithms and not (name in NEED_ROWS and config.n_rows <= len(BASE))
        ]
        variants = self.variants(config.model_dump())[::-1]
        build(config.model, (1,), 1, 0, config.head)  # this and the next refuse what can't be, before anything runs
        for name, variant in product(set(config.algorithms) & set(FOR_NUMBERS), variants):
            algorithm_of(config, name, variant, 0).asks(0, config.n_clients)
        titles += [
            f"{TITLES[name]}, {variant}" for variant in variants for name in FOR_NUMBERS if name in config.algorithms
        ]
        return [
            Task(setting, title, seed)
            for title in titles
            for setting in config.setting_names()
            for seed in config.seeds
        ]

    def run(self, config: PolynomialConfig, task: Task) -> Done:
        """Fit and compare with the noise-free curves."""
        title, _, variant = task.algorithm.rpartition(", ")
        study = config.study(task.setting, task.seed)
        if variant in self.variants(config.model_dump()):
            return self.run_baseline(config, task, self.name_of(title), variant, study)
        name = self.name_of(task.algorithm)
        outcome, seconds = timed(lambda: REFERENCES[name](config, study, task.seed))
        detail = None
        if task.seed == config.first_seed or "lam" in outcome.insight:
            detail = Detail(**task._asdict(), series=_series(config, study, task, outcome))
        measured = measures(by_client(study, outcome), study)
        if task.setting.startswith("1") and "lam" in outcome.insight:
            measured[SMALLEST] = float((pull(study.data, outcome.insight["lam"]).argmin(1) == 3).double().mean())
        return Done(rows_of(task, outcome, seconds, measured), detail)

    def run_baseline(self, config: PolynomialConfig, task: Task, name: str, variant: str, study: Polynomial) -> Done:
        """One baseline in one variant; the first trial is also looked at along the way."""
        algorithm = algorithm_of(config, name, variant, task.seed)
        train = samples(study, variant)
        test = noise_free(study, train)
        rounds = looks(config.n_rounds, POINTS) if task.seed == config.first_seed else ()
        fitted = fit(algorithm, config.engine, train, test, rounds)
        detail = Detail(**task._asdict(), series=fitted.series) if fitted.series else None
        measured = measures(fitted.marks, study) | (never_joined(fitted.outcome) if config.join < 1 else {})
        return Done(rows_of(task, fitted.outcome, fitted.seconds, measured), detail)

    def tunable(self, config: PolynomialConfig) -> dict[str, Space]:
        """Learn2pFed, and every baseline with either model."""
        ours = {"learn2pfed": search_space(Settings)} if "learn2pfed" in config.algorithms else {}
        return ours | spaces_of(("polynomial", "mlp"), FOR_NUMBERS, config.algorithms)

    def validate(self, config: PolynomialConfig, key: str) -> float:
        """log MSE on held-out rows, averaged over settings and draws that no table uses."""
        draws = [(setting, seed) for setting in config.setting_names() for seed in TUNING_SEEDS]
        return float(np.mean([np.log(held_out_error(config, key, *draw)) for draw in draws]))


def held_out_error(config: PolynomialConfig, key: str, setting: str, seed: int) -> float:
    """MSE on a quarter of each client's rows, the method having seen the rest."""
    study = config.study(setting, seed)
    aside = study.data.held_out(0.25, seed)
    if key == "learn2pfed":
        seen = Polynomial(study.data.pick(~aside), study.coefficients, study.shared)
        models = talk(config, config.learn2pfed, seen, seed).models
        return float(squared_errors(models, study.data.pick(aside)).mean())
    group, _, name = key.partition(".")
    variant = POLYNOMIAL if group == "polynomial" else _label(config.model)
    rows = samples(study, variant)
    algorithm = algorithm_of(config, name, variant, seed)
    return float(fit(algorithm, "simulation", rows.pick(~aside), rows.pick(aside)).marks.mean())


def measures(mse: NDArray[np.float64], study: Polynomial) -> dict[str, float]:
    """RMSE of each client over clients, and the mean of their MSE."""
    measured = over_clients("RMSE", np.sqrt(mse), study.data.sizes, larger_is_better=False)
    return {"RMSE": measured.pop("RMSE"), "MSE": float(mse.mean())} | measured


def by_client(study: Polynomial, outcome: Outcome) -> NDArray[np.float64]:
    """Mean squared error to the noise-free curve on each client's own x, (M,)."""
    return squared_errors(outcome.models, noise_free(study, study.data))


def curve_errors(study: Polynomial, outcome: Outcome) -> dict[str, float]:
    """RMSE and MSE to the noise-free curve, each averaged over clients."""
    mse = by_client(study, outcome)
    return {"RMSE": float(np.sqrt(mse).mean()), "MSE": float(mse.mean())}


def _series(config: PolynomialConfig, study: Polynomial, task: Task, outcome: Outcome) -> dict[str, Any]:
    """What the figures show: learned Λ of every trial; data, truth and models of the first."""
    series: dict[str, Any] = {}
    if "lam" in outcome.insight:
        series["pull"] = rounded(pull(study.data, outcome.insight["lam"]).tolist())
    if "lam_start" in outcome.insight:
        series["pull_start"] = rounded(pull(study.data, outcome.insight["lam_start"])[0].tolist())
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
            "algorithms": tuple(REFERENCES),
        },
    }
