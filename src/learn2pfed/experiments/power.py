"""Table III: electricity forecasting on real meters, with all clients, with some a round, and for newcomers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learn2pfed.algorithms.base import Outcome, Traffic
from learn2pfed.algorithms.closed_form import local_only, one_for_all
from learn2pfed.algorithms.learn2pfed import Learn2pFed
from learn2pfed.algorithms.local_only import LocalOnly
from learn2pfed.algorithms.registry import BASELINES
from learn2pfed.algorithms.rounds import Rounds
from learn2pfed.algorithms.settings import RoundSettings
from learn2pfed.data.federated import FederatedData, Samples
from learn2pfed.data.forecasting import Windows
from learn2pfed.engines.rounds import run_rounds
from learn2pfed.engines.simulation import run_simulation
from learn2pfed.errors import DivergenceError, Learn2pFedError
from learn2pfed.experiments.base import (
    Column,
    Done,
    Task,
    over_clients,
    pull,
    rows_of,
    squared_errors,
    timed,
)
from learn2pfed.experiments.comparing import (
    FOR_NUMBERS,
    Comparison,
    fit,
    looks,
    never_joined,
    spaces_of,
)
from learn2pfed.experiments.power_study import (
    HISTORIES,
    SCARCE,
    SETTINGS,
    TUNING_SEED,
    WITH_NETWORKS,
    BodySettings,
    PowerConfig,
    Study,
    loads_at,
    loads_of,
    study_of,
)
from learn2pfed.models.modules import build
from learn2pfed.models.network import Network
from learn2pfed.results.records import Detail, Row, rounded
from learn2pfed.search import Space, search_space
from learn2pfed.tasks import Regression
from learn2pfed.unrolled.losses import SQUARED
from learn2pfed.unrolled.settings import Settings

LSTM, LINEAR = "LSTM", "linear"


def errors(models: Tensor, test: Windows) -> NDArray[np.float64]:
    """Mean squared error of each client's linear model, (M,)."""
    return np.concatenate([squared_errors(models[list(some)], test.subset(some)) for some in test.parts()])


def ridge_alone(train: FederatedData) -> Tensor:
    """Each client's own ridge regression, its penalty chosen by leave-one-out; (M, k), the constant not shrunk."""
    from sklearn.linear_model import RidgeCV  # here, as it takes long to import

    models = []
    for client in train.clients:
        fitted = RidgeCV(alphas=np.logspace(-3, 4, 15)).fit(client.X[:, 1:].numpy(), client.y.numpy())
        models.append(torch.from_numpy(np.r_[fitted.intercept_, fitted.coef_]))
    return torch.stack(models)


class Made(NamedTuple):
    """What a method gives on a study."""

    mse: NDArray[np.float64]  # (M,), of those who are judged
    outcome: Outcome
    seconds: float
    series: Mapping[str, Any] = {}  # for figures


def _closed(fitted: Callable[[FederatedData], Tensor]) -> Callable[[PowerConfig, Study, int], Made]:
    """A method whose models follow from the judged clients' own rows."""

    def make(config: PowerConfig, study: Study, seed: int) -> Made:
        rows = study.judged
        models, seconds = timed(lambda: fitted(rows.train.all))
        return Made(errors(models, rows.test), Outcome(models, models.mean(0), [], {}), seconds)

    return make


def naive(config: PowerConfig, study: Study, seed: int) -> Made:
    """The same hour of the latest day that is known."""
    rows = study.judged
    yesterday = torch.nn.functional.one_hot(torch.tensor(rows.day), rows.train.n_features).double()
    models = yesterday.repeat(len(rows.train), 1)
    return Made(errors(models, rows.test), Outcome(models, models[0], [], {}), 0.0)


def together(config: PowerConfig, study: Study, seed: int) -> Made:
    """One least-squares model for all; newcomers take it as it is."""
    rows = study.judged
    outcome, seconds = timed(lambda: one_for_all(study.rows.train.all))
    models = outcome.global_model.expand(len(rows.train), -1)
    return Made(errors(models, rows.test), replace(outcome, models=models), seconds)


def follow(data: Windows, w: Tensor, lam: Tensor) -> Tensor:
    """v_i = (X_iᵀX_i + Λ)⁻¹ (X_iᵀY_i + Λ w): what clients that took no part make of the others' w and Λ."""
    rows = (data.subset(some) for some in data.parts())
    losses = (SQUARED.loss(few, torch.ones(1, len(few.y), dtype=torch.float64)) for few in rows)
    return torch.cat([loss.follow(lam, w[None])[0] for loss in losses])


def head_settings(config: PowerConfig, study: Study, seed: int) -> Settings:
    """Learn2pFed's settings for this study."""
    some = {} if study.join == 1.0 else {"join": study.join, "n_epochs": config.crowd_epochs}
    return config.learn2pfed.changed(seed=seed, **some)


def learn2pfed_linear(config: PowerConfig, study: Study, seed: int) -> Made:
    """Learn2pFed on the lags; clients that took no part follow w as far as Λ says."""
    algorithm = Learn2pFed(head_settings(config, study, seed))
    outcome, seconds = timed(lambda: run_simulation(algorithm, study.rows.train))
    lam, w, rows = outcome.insight["lam"][0], outcome.global_model, study.judged
    models = outcome.models if study.newcomers is None else follow(study.newcomers.train, w, lam)
    some = study.rows.train.subset(next(iter(study.rows.train.parts())))
    series: dict[str, Any] = {"lam": rounded(pull(some, lam).tolist())}
    series["lags"] = list(study.rows.lags)
    if study.apart is not None:
        series["apart"] = _weeks(study.apart.test, follow(study.apart.train, w, lam), rows.per_day)
    if study.plane is not None:
        series |= {"weeks": _weeks(rows.test, models, rows.per_day), "plane": rounded(study.plane.tolist())}
        series |= {"picked": list(study.picked), "names": list(rows.train.names)}
    return Made(errors(models, rows.test), replace(outcome, models=models), seconds, series)


def series_of(rows: Windows) -> Samples:
    """The lags in the order of time, as a network reads them."""
    data = rows.all
    return Samples(data.names, data.X[:, 1:].flip(1).float(), data.y.float(), data.sizes)


def network_of(config: PowerConfig, variant: str, n_lags: int, seed: int) -> Network:
    """The LSTM, or a linear model."""
    if variant == LSTM:
        return build("lstm", (n_lags,), 1, seed, hidden=config.hidden)
    return build("linear", (n_lags,), 1, seed)


def algorithm_of(config: PowerConfig, name: str, variant: str, seed: int, study: Study) -> Rounds:
    """A baseline with either model, in the protocol of the study's setting."""
    own = (config.lstm if variant == LSTM else config.linear)[name]
    network = network_of(config, variant, len(study.rows.lags), seed)
    return config.algorithm(name, own, study.join, seed, network, Regression(), len(study.rows.train.times))


def features_of(network: Network, models: Tensor, rows: Samples) -> Tensor:
    """What each client's own network makes of its rows, (N, F)."""
    found = [network.in_parts(network.features, models[i], client.X) for i, client in enumerate(rows.clients)]
    return torch.cat(found).double()


def unseen_features(
    network: Network, tuning: RoundSettings, n_parts: int, train: Samples, test: Samples
) -> tuple[Tensor, Tensor]:
    """Features of rows that a network was not fine-tuned on, as it is for every row to come.

    Each client fine-tunes the network `n_parts` times, each time without one stretch of its rows. Rows of a stretch get
    the features of the network that has not seen it, other rows the mean over the networks: a head that learned from
    features of rows seen would trust them too far.
    """
    part = torch.cat([torch.arange(n) * n_parts // n for n in train.sizes])
    alone = LocalOnly(tuning, network, Regression())
    models = [run_rounds(alone, train.pick(part != k)).models for k in range(n_parts)]
    if not bool(torch.stack(models).isfinite().all()):
        raise DivergenceError("Learn2pFed's LSTM left the finite numbers: lower body.lr or body.ft_lr.")
    found = torch.cat([features_of(network, models[k], train.pick(part == k)) for k in range(n_parts)])
    learned = torch.empty_like(found)
    learned[part.argsort(stable=True)] = found
    return learned, torch.stack([features_of(network, of_part, test) for of_part in models]).mean(0)


def learn2pfed_on_body(config: PowerConfig, study: Study, seed: int) -> Made:
    """Learn2pFed on the lags and on what an LSTM makes of them, trained by FedAvg and fine-tuned at home."""
    train, test = series_of(study.rows.train), series_of(study.rows.test)
    how = config.body
    own = config.lstm | {"fedavg": config.lstm["fedavg"] | {"lr": how.lr}}
    together = algorithm_of(config.model_copy(update={"lstm": own}), "fedavg", LSTM, seed, study)
    body = fit(together, config.engine, train, test)
    network = together.network.starting_at(body.outcome.global_model)
    tuning = together.settings.changed(n_rounds=1, epochs=how.ft_epochs, lr=how.ft_lr, join=1.0)
    features, spent = timed(lambda: unseen_features(network, tuning, how.n_parts, train, test))

    def beside(data: FederatedData, found: Tensor) -> FederatedData:
        units = tuple(f"unit {j + 1}" for j in range(config.hidden))
        return FederatedData(data.names, torch.cat([data.X, found], 1), data.y, data.sizes, data.features + units)

    learned, judged = beside(study.rows.train.all, features[0]), beside(study.rows.test.all, features[1])
    head = Learn2pFed(head_settings(config, study, seed))
    outcome, seconds = timed(lambda: run_simulation(head, learned))
    both: Traffic = outcome.traffic + body.outcome.traffic
    lam = pull(learned, outcome.insight["lam"][0])
    series = {"lam": rounded(lam.tolist()), "lags": list(study.rows.lags)}
    mse = squared_errors(outcome.models, judged)
    return Made(mse, replace(outcome, traffic=both), seconds + spent + body.seconds, series)


SOLVERS: dict[str, Callable[[PowerConfig, Study, int], Made]] = {
    "naive": naive,
    "least-squares": _closed(lambda data: local_only(data).models),
    "ridge": _closed(ridge_alone),
    "global": together,
}
"""What needs no rounds."""

TITLES = {
    "naive": "Seasonal naive",
    "least-squares": "Least squares, alone",
    "ridge": "Ridge, alone",
    "global": "Least squares, together",
    **{name: BASELINES[name].title for name in FOR_NUMBERS},
    "learn2pfed": "Learn2pFed",
}
"""In the order of the table."""

POINTS = 6
"""Rounds after which the first trial is looked at."""


ABOUT: tuple[tuple[Collection[str], str], ...] = (
    (
        SETTINGS,
        "The next record of real meters from the day before and from the same hour of the days of a week, each meter "
        "in units of its own training part, cut 9:1 in time.",
    ),
    (("1",), "Setting 1: the most distinct meters, all take part."),
    (("2",), "Setting 2: all meters, some of them a round."),
    (
        WITH_NETWORKS,
        "There every baseline runs with the paper's LSTM on the lags in their order, and with a linear model on the "
        "same lags; Learn2pFed on the lags, and as the head on the lags and on an LSTM's features.",
    ),
    (
        HISTORIES,
        "Setting 3: newcomers with one day, three days, one week of rows to learn from (the lags of these rows reach a "
        "week further back), after the others have learned; they follow the others' model as far as the learned "
        "participation says, and errors are theirs.",
    ),
    ((SCARCE,), "Scarce: a week of rows at the source's own clock."),
    (SETTINGS, "Errors are after the last round, each in units of the records that the client learned from."),
)
"""Sentences, and the settings that they are about."""


def _about(settings: Collection[str]) -> str:
    """What these settings are."""
    return " ".join(sentence for about, sentence in ABOUT if any(setting in about for setting in settings))


class PowerExperiment(Comparison):
    """Table III."""

    name = "power"
    title = "Electricity forecasting"
    about = _about(SETTINGS)
    validation = "log of the RMSE on the last tenth of the training records, mean over settings 1 and 2"
    tuning = (
        "Settings were tuned on the last tenth of the training records (of 60 meters in setting 2), with as many "
        "trials for every method."
    )
    config_class = PowerConfig
    costs_by_setting = True
    titles = TITLES
    presets = {  # noqa: RUF012
        "quick": {"n_rounds": 20, "batch_size": 128, "n_joining": 5, "n_seeds": 3},
        "households": {
            "n_rounds": 20,
            "batch_size": 128,
            "crowd": "households",
            "settings": ("1", "2", SCARCE, *HISTORIES),
        },
        "paper": {"n_rounds": 500, "source": "ecl", "crowd": "ecl", "minutes": 15},
    }

    def variants(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """The LSTM, and the linear model."""
        return LSTM, LINEAR

    def introduction(self, settings: Collection[str]) -> str:
        """Of the settings that were run."""
        return _about(settings) or self.about

    def notes(self, config: PowerConfig) -> list[str]:
        """Sources, and the meters that a rule dropped, for all settings or for some."""
        used = {setting: config.source if setting == "1" else config.crowd for setting in config.settings}
        found = []
        for source in dict.fromkeys(used.values()):
            loads = loads_at(source, None)
            found += loads.words
            only: dict[str, dict[str, None]] = {}  # what is so in some settings: in which
            for setting in (setting for setting, own in used.items() if own == source):
                for line in loads_of(config, setting).words[1:]:
                    if line not in loads.words:
                        only.setdefault(line, {})[setting.partition(":")[0]] = None
            found += [f"Setting {', '.join(settings)}: {line}" for line, settings in only.items()]
        return found

    def tasks(self, config: PowerConfig) -> list[Task]:
        """Method by method, quickest first."""
        self.refuse_unknown(config.algorithms)
        strange = [setting for setting in config.settings if setting not in SETTINGS]
        if strange:
            raise Learn2pFedError(f"settings: unknown {strange[0]!r}; there are {', '.join(SETTINGS)}.")
        for setting in config.settings:  # refuses what can't be, before anything runs
            study_of(config, setting, config.first_seed)
        found = [
            Task(setting, title, seed)
            for title, name, variant in self._rows(config)
            for setting in config.settings
            for seed in config.seeds
            if (variant == LINEAR and name == "learn2pfed") or not variant or setting in WITH_NETWORKS
            if not (setting in WITH_NETWORKS and name == "ridge")
        ]
        if not found:
            raise Learn2pFedError(
                "There is nothing to do: baselines run in settings 1 and 2, ridge in the others, the rest in all."
            )
        return found

    def _rows(self, config: PowerConfig) -> list[tuple[str, str, str]]:
        """Title, method and variant, in the order in which they run."""
        quick = [(TITLES[name], name, "") for name in SOLVERS if name in config.algorithms]
        slow = [name for name in ("learn2pfed", *FOR_NUMBERS) if name in config.algorithms]
        return quick + [(f"{TITLES[name]}, {variant}", name, variant) for variant in (LINEAR, LSTM) for name in slow]

    def run(self, config: PowerConfig, task: Task) -> Done:
        """Fit and judge on the last tenth."""
        _, name, variant = next(row for row in self._rows(config) if row[0] == task.algorithm)
        study = study_of(config, task.setting, task.seed)
        made = self.made(config, name, variant, study, task.seed, first=task.seed == config.first_seed)
        rows = study.judged
        rmse = np.sqrt(made.mse)
        measured = over_clients("RMSE", rmse, [len(rows.test.times)] * len(rmse), larger_is_better=False)
        if rows.unit is not None:
            measured[f"RMSE in {rows.unit}"] = float((rmse * rows.scale).mean())
        if study.join < 1:
            measured |= never_joined(made.outcome)
        series = dict(made.series)
        if task.seed == config.first_seed:
            series["errors"] = rounded(rmse.tolist())
        detail = Detail(**task._asdict(), series=series) if series else None
        return Done(rows_of(task, made.outcome, made.seconds, measured), detail)

    def made(self, config: PowerConfig, name: str, variant: str, study: Study, seed: int, first: bool = False) -> Made:
        """What a method gives on a study."""
        if name in SOLVERS:
            return SOLVERS[name](config, study, seed)
        if name == "learn2pfed":
            return (learn2pfed_on_body if variant == LSTM else learn2pfed_linear)(config, study, seed)
        algorithm = algorithm_of(config, name, variant, seed, study)
        at = looks(config.n_rounds, POINTS) if first else ()
        fitted = fit(algorithm, config.engine, series_of(study.rows.train), series_of(study.rows.test), at)
        return Made(fitted.marks, fitted.outcome, fitted.seconds, fitted.series)

    def tunable(self, config: PowerConfig) -> dict[str, Space]:
        """Learn2pFed, the LSTM under its head, and every baseline with either model."""
        networks = bool(WITH_NETWORKS & set(config.settings))
        spaces: dict[str, Space] = {}
        if "learn2pfed" in config.algorithms:
            spaces = {"learn2pfed": search_space(Settings)} | ({"body": search_space(BodySettings)} if networks else {})
        return spaces | (spaces_of(("linear", "lstm"), FOR_NUMBERS, config.algorithms) if networks else {})

    def untunable(self, config: PowerConfig) -> str:
        """Other settings than 1 and 2 have no say."""
        known = WITH_NETWORKS & set(config.settings)
        return "" if known else "power is tuned in settings 1 and 2: name one of them."

    def also_set(self, config: PowerConfig) -> tuple[str, ...]:
        """The epochs where some take part."""
        some = "learn2pfed" in config.algorithms and set(config.settings) - {"1", SCARCE}
        return ("crowd_epochs",) if some else ()

    def validate(self, config: PowerConfig, key: str) -> float:
        """log RMSE on the last tenth of the training records, averaged over settings 1 and 2."""
        group, _, name = key.partition(".")
        name, variant = {"learn2pfed": ("learn2pfed", LINEAR), "body": ("learn2pfed", LSTM)}.get(
            group, (name, LSTM if group == "lstm" else LINEAR)
        )
        found = []
        for setting in ("1", "2"):
            if setting in config.settings:
                study = study_of(config, setting, TUNING_SEED, tuning=True)
                found.append(np.log(np.sqrt(self.made(config, name, variant, study, TUNING_SEED).mse).mean()))
        return float(np.mean(found))

    def columns(self, rows: Sequence[Row]) -> list[Column]:
        """Each metric over the settings, in their order."""
        metrics = list(dict.fromkeys(row.metric for row in rows))
        return sorted(
            super().columns(rows), key=lambda column: (metrics.index(column.metric), SETTINGS.index(column.setting))
        )


def _weeks(test: Windows, models: Tensor, per_day: int) -> list[dict[str, Any]]:
    """Truth and forecast of the last week, of up to three clients."""
    found, last = [], slice(-7 * per_day, None)
    for i in range(min(3, len(test))):
        client = test.subset([i])
        truth, forecast = client.y[last], (client.X[last] @ models[i])
        found.append({"name": test.names[i], "truth": rounded(truth.tolist()), "forecast": rounded(forecast.tolist())})
    return found
