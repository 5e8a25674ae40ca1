"""The methods of Table III on one trial's data: what each gives, and the LSTM under Learn2pFed's head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from learn2pfed.algorithms.rounds import Rounds
from learn2pfed.algorithms.settings import RoundSettings
from learn2pfed.data.federated import FederatedData, Samples
from learn2pfed.data.forecasting import Windows
from learn2pfed.engines.rounds import run_rounds
from learn2pfed.engines.simulation import run_simulation
from learn2pfed.errors import DivergenceError
from learn2pfed.experiments.base import pull, squared_errors, timed
from learn2pfed.experiments.comparing import fit
from learn2pfed.experiments.power_study import PowerConfig, Study
from learn2pfed.models.modules import build
from learn2pfed.models.network import Network
from learn2pfed.results.records import rounded
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
    fedavg = algorithm_of(config.model_copy(update={"lstm": own}), "fedavg", LSTM, seed, study)
    body = fit(fedavg, config.engine, train, test)
    network = fedavg.network.starting_at(body.outcome.global_model)
    tuning = fedavg.settings.changed(n_rounds=1, epochs=how.ft_epochs, lr=how.ft_lr)
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


def _weeks(test: Windows, models: Tensor, per_day: int) -> list[dict[str, Any]]:
    """Truth and forecast of the last week, of up to three clients."""
    found, last = [], slice(-7 * per_day, None)
    for i in range(min(3, len(test))):
        client = test.subset([i])
        truth, forecast = client.y[last], (client.X[last] @ models[i])
        found.append({"name": test.names[i], "truth": rounded(truth.tolist()), "forecast": rounded(forecast.tolist())})
    return found
