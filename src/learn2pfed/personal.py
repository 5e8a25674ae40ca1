"""A personal model for everyone in a table: in what order, in what units, fitted how, and how a newcomer joins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from learn2pfed.algorithms.base import Progress, Traffic
from learn2pfed.algorithms.closed_form import least_squares, local_only, one_for_all
from learn2pfed.algorithms.learn2pfed import Learn2pFed
from learn2pfed.data.design import Design
from learn2pfed.data.federated import FederatedData
from learn2pfed.engines.simulation import run_simulation
from learn2pfed.errors import Learn2pFedError, sentence
from learn2pfed.unrolled.losses import SQUARED, ClientLoss, Family
from learn2pfed.unrolled.settings import Settings
from learn2pfed.unrolled.softmax import Softmax

RIDGE = 1.0
"""Of a classifier's coefficients of standardised features, over all rows: scikit-learn's default, C = 1."""

RIDGE_OF_INTERCEPT = 0.01
"""Only so much that a client with a single class has a finite model."""

NO_TRAFFIC = Traffic()

ROWS_AT_ONCE = 2**16
"""Rows whose models are gathered at once for prediction."""


@dataclass(frozen=True)
class Personal:
    """Models of M clients and the global one in the units of the design; P parameters: 1 + kept columns a class."""

    design: Design
    n_classes: int  # 0: regression
    v: Tensor  # (M, P)
    w: Tensor  # (P,)
    lam: Tensor  # (P,) the Λ by which a newcomer follows w
    participation: Tensor  # (M, P) diagonal of (H_i + Λ_i)⁻¹ Λ_i: 1 follows the others, 0 is the client's own
    n_rows: int  # N, of all clients
    history: tuple[float, ...] = ()
    traffic: Traffic = NO_TRAFFIC

    @property
    def family(self) -> Family[ClientLoss]:
        """The kind of loss."""
        return family_of(self.n_classes, int(self.design.kept.sum()), self.n_rows)

    @property
    def n_outputs(self) -> int:
        """Rows of coefficients in a model."""
        return self.n_classes if self.n_classes > 2 else 1

    def by_class(self, by_parameter: Tensor) -> Tensor:
        """(..., P) as (..., outputs, 1 + kept)."""
        return by_parameter.reshape(*by_parameter.shape[:-1], self.n_outputs, -1)

    def scores(self, X: Tensor, client: Tensor) -> Tensor:
        """v_i x by the model of each row's client (-1: the global one), (N, outputs); numbers in the target's units."""
        models = self.by_class(torch.cat([self.v, self.w[None]]))
        found = []
        for rows, which in zip(torch.split(X, ROWS_AT_ONCE), torch.split(client, ROWS_AT_ONCE), strict=True):
            found.append((models[which] @ self.design.features(rows).unsqueeze(-1)).squeeze(-1))
        scores = torch.cat(found)
        return scores if self.n_classes else self.design.level + self.design.unit * scores

    def join(self, X: Tensor, y: Tensor) -> Personal:
        """With a newcomer as client M + 1: it follows w by the learned Λ; nobody else changes."""
        data = FederatedData(
            ("newcomer",),
            self.design.features(X),
            y if self.n_classes else self.design.target(y),
            (len(y),),
            tuple(map(str, range(1 + int(self.design.kept.sum())))),
        )
        loss = self.family.loss(data, torch.ones(1, len(y), dtype=torch.float64))
        v = loss.follow(self.lam, self.w[None])
        part = participation(loss, v, self.lam)
        return replace(self, v=torch.cat([self.v, v[0]]), participation=torch.cat([self.participation, part]))


def family_of(n_classes: int, n_kept: int, n_rows: int) -> Family[ClientLoss]:
    """Squared loss, or a softmax with a ridge as weak as scikit-learn's default."""
    if n_classes == 0:
        return SQUARED
    return Softmax(n_classes, (RIDGE_OF_INTERCEPT / n_rows, *[RIDGE / n_rows] * n_kept))


def participation(loss: ClientLoss, v: Tensor, lam: Tensor) -> Tensor:
    """diag (H_i + Λ_i)⁻¹ Λ_i at each client's model, (M, P); `loss` has one split. With squared loss H_i = X_iᵀX_i."""
    lam = lam.expand(loss.shape[1:])
    share = torch.empty_like(lam)
    for clients, part in loss.parts():
        regularised = part.hessian(v[:, clients])[0] + torch.diag_embed(lam[clients])
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(regularised))
        share[clients] = inverse.diagonal(dim1=-2, dim2=-1) * lam[clients]
    return share.clamp(0.0, 1.0)


def settings_for(
    changes: Mapping[str, Any], n_clients: int, n_rows: int, n_parameters: int, n_classes: int
) -> Settings:
    """The settings asked for; what they leave open, by the size of the data.

    A few hundred clients tell a common Λ as well as thousands do, and the more there are, the fewer repeats of the
    folds it takes. An epoch costs M P³ operations with squared loss and N P with classes, a split.
    """
    n_learners = int(max(100, min(1000, 4e6 / n_parameters**3)))
    n_judges = min(n_clients, n_learners)
    cost = n_rows * n_judges / n_clients * n_parameters / 1e5 if n_classes else n_judges * n_parameters**3 / 4e6
    n_repeats = int(min(10, max(1, min(1000 / n_judges, 1 / cost))))
    given: dict[str, Any] = {"n_learners": n_learners, "n_repeats": n_repeats}
    if n_classes == 0:
        affordable = n_judges * n_parameters**3 <= 2e8  # a density takes factorisations in every epoch
        held_out = changes.get("supervision") != "train"
        given |= {"refit": "exact", "objective": "predictive" if held_out and affordable else "profiled"}
    given |= changes
    if n_clients == 1:
        given["n_epochs"] = 0
    for name in given.keys() - Settings.model_fields.keys():
        near = get_close_matches(name, Settings.model_fields, n=1)
        raise Learn2pFedError(
            f"There is no setting {name!r}{f'; did you mean {near[0]!r}?' if near else ': see learn2pfed list.'}"
        )
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        raise Learn2pFedError(sentence(error)) from error


def _fingerprints(X: NDArray[Any], y: NDArray[Any], owner: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A number for each client that depends on the set of its rows alone, and not on units.

    Distinct rows are numbered in the order of (y, x), each number is scrambled (splitmix64), a client's are added up.
    """
    order = np.lexsort((*X.T[::-1], y))
    new = np.zeros(len(y), dtype=bool)
    for column in (y, *X.T):
        new[1:] |= np.diff(column[order]) != 0
    scrambled = np.cumsum(new).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    scrambled = (scrambled ^ (scrambled >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    scrambled = (scrambled ^ (scrambled >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found = np.zeros(int(owner.max()) + 1, dtype=np.uint64)
    np.add.at(found, owner[order], scrambled ^ (scrambled >> np.uint64(31)))
    return found


@dataclass(frozen=True)
class Prepared:
    """Rows ready to be fitted: standardised, client after client, clients ordered by their content."""

    design: Design
    n_classes: int  # 0: regression
    data: FederatedData
    order: NDArray[np.int64]  # which client stands at each place of `data`

    @classmethod
    def of(
        cls, X: Tensor, y: Tensor, owner: NDArray[np.int64], *, n_classes: int = 0, names: Sequence[str]
    ) -> Prepared:
        """Rows (N, k) of clients `owner`, numbered from 0; with classes, y has their numbers; `names` are of columns.

        Folds are drawn by a client's place. An order by content, whatever the clients are called and however the rows
        came, makes the result depend on the data alone.
        """
        design = Design.learn(X, y, names)
        Z, target = design.features(X), y if n_classes else design.target(y)
        sizes = np.bincount(owner)
        order = np.lexsort((_fingerprints(X.numpy(), y.numpy(), owner), sizes))
        rows = torch.from_numpy(np.argsort(np.argsort(order)[owner], kind="stable"))
        places, features = tuple(map(str, range(len(sizes)))), tuple(map(str, range(Z.shape[1])))
        data = FederatedData(places, Z[rows], target[rows], tuple(sizes[order].tolist()), features)
        return cls(design, n_classes, data, order)

    @property
    def family(self) -> Family[ClientLoss]:
        """The kind of loss."""
        return family_of(self.n_classes, self.data.n_features - 1, len(self.data.y))

    @property
    def every_row(self) -> Tensor:
        """Each row counting once."""
        return torch.ones(1, len(self.data.y), dtype=torch.float64)

    def personal(self, v: Tensor, w: Tensor, lam: Tensor, part: Tensor) -> Personal:
        """Models (M, P), the Λ_i they obey and their participation, as clients were numbered."""
        back = torch.from_numpy(np.argsort(self.order))
        return Personal(self.design, self.n_classes, v[back], w, lam.log().mean(0).exp(), part[back], len(self.data.y))


@contextmanager
def one_thread() -> Iterator[None]:
    """Many small products: a second thread costs more than it gives."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def fit(prepared: Prepared, changes: Mapping[str, Any], progress: Progress | None = None) -> Personal:
    """Learn2pFed; `changes` are settings by name. One client alone gets the usual model."""
    data, family = prepared.data, prepared.family
    n_parameters = family.n_parameters(data.n_features)
    settings = settings_for(changes, len(data), len(data.y), n_parameters, prepared.n_classes)
    full = family.loss(data, prepared.every_row)
    if len(data) == 1:
        zero = torch.zeros(1, n_parameters, dtype=torch.float64)
        v = full.follow(zero, zero)[0] if prepared.n_classes else least_squares(data.X, data.y)[None]
        lam = family.by_parameter(full.gram[0].diagonal(dim1=-2, dim2=-1))
        return prepared.personal(v, v[0], lam, participation(full, v[None], lam))
    outcome = run_simulation(Learn2pFed(settings, family), data, progress)
    lam, w = outcome.insight["lam"], outcome.global_model
    v = full.follow(lam, w[None])[0] if prepared.n_classes else outcome.models
    found = prepared.personal(v, w, lam, participation(full, v[None], lam))
    return replace(found, history=tuple(outcome.history), traffic=outcome.traffic)


def alone(prepared: Prepared) -> Personal:
    """Each client from its own rows: least squares (the shortest, if rows are few), or a softmax."""
    v = local_only(prepared.data).models if prepared.n_classes == 0 else _softmax(prepared, prepared.data)
    return prepared.personal(v, v.mean(0), torch.ones_like(v), torch.zeros_like(v))


def together(prepared: Prepared) -> Personal:
    """One model from all rows."""
    data = prepared.data
    if prepared.n_classes == 0:
        w = one_for_all(data).global_model
    else:
        w = _softmax(prepared, FederatedData(("all",), data.X, data.y, (len(data.y),), data.features))[0]
    v = w.expand(len(data), -1)
    return prepared.personal(v, w, torch.ones_like(v), torch.ones_like(v))


def _softmax(prepared: Prepared, data: FederatedData) -> Tensor:
    """Each client's own, with the ridge of scikit-learn's default, (M, P)."""
    family = Softmax(prepared.n_classes, (0.0,) * data.n_features)
    ridge = torch.full((data.n_features,), RIDGE, dtype=torch.float64)
    ridge[0] = RIDGE_OF_INTERCEPT
    zero = torch.zeros(1, family.n_parameters(data.n_features), dtype=torch.float64)
    return family.loss(data, prepared.every_row).follow(family.by_parameter(ridge), zero)[0]
