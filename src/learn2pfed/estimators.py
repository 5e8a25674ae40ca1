"""Learn2pFed as scikit-learn has it: `fit(X, y, clients=...)`, `predict(X, clients=...)`. No mathematics here."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from learn2pfed.algorithms.base import Progress
from learn2pfed.errors import Learn2pFedError
from learn2pfed.personal import Personal, Prepared, fit


class _Personalised(BaseEstimator):
    """What regressor and classifier have in common: who is who, and the models as attributes."""

    __metadata_request__fit: ClassVar = {"clients": True}
    __metadata_request__predict: ClassVar = {"clients": True}
    __metadata_request__score: ClassVar = {"clients": True}

    def __init__(
        self,
        *,
        n_cells: int = 10,
        n_epochs: int = 300,
        supervision: Literal["crossval", "holdout", "train"] = "crossval",
        sharing: Literal["common", "mixed", "per-client"] = "common",
        unknown: Literal["global", "error"] = "global",
        settings: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.n_cells = n_cells
        self.n_epochs = n_epochs
        self.supervision = supervision
        self.sharing = sharing
        self.unknown = unknown
        self.settings = settings
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, clients: ArrayLike | None = None) -> Self:
        """Learn how far each parameter is shared, and a model for each of `clients`, which says whose row each is.

        Without `clients` all rows are one client's, and the model is the usual one.
        """
        return self.fit_with_progress(X, y, clients, None)

    def fit_with_progress(
        self, X: ArrayLike, y: ArrayLike, clients: ArrayLike | None, progress: Progress | None
    ) -> Self:
        """`fit`, calling `progress(epoch, objective)` after every epoch."""
        if self.unknown not in ("global", "error"):
            raise Learn2pFedError(f"unknown must be 'global' or 'error', got {self.unknown!r}.")
        table, answers = self._checked(X, y, reset=True)
        target = self._learn_target(answers)
        names = np.zeros(len(answers), dtype=np.int64) if clients is None else _names(clients, len(answers))
        owner, self.clients_ = pd.factorize(names, sort=True)
        prepared = Prepared.of(torch.tensor(table), target, owner, n_classes=self._n_classes, names=self._columns())
        personal = fit(prepared, self._changes(), progress)
        self.publish(personal)
        return self

    def adapt(self, X: ArrayLike, y: ArrayLike, client: Any) -> Self:
        """Give a newcomer a model from the shared one and the learned Λ, from one row on; the others keep theirs."""
        check_is_fitted(self)
        name = _names([client], 1)[0]
        if str(name) in self._place:
            raise Learn2pFedError(f"client {str(name)!r} has a model already: choose another name, or fit again.")
        table, answers = self._checked(X, y, reset=False)
        joined = self.personal_.join(torch.tensor(table), self._target(answers))
        keeps_type = isinstance(name, np.integer) and np.issubdtype(self.clients_.dtype, np.integer)
        names = [*self.clients_.tolist(), name]
        self.clients_ = np.array(names if keeps_type else list(map(str, names)))
        self.publish(joined)
        return self

    def _scores(self, X: ArrayLike, clients: ArrayLike | None) -> Tensor:
        """v_i x of every row, (N, outputs)."""
        check_is_fitted(self)
        table = validate_data(self, X, dtype=np.float64, reset=False)
        return self.personal_.scores(torch.tensor(table), torch.from_numpy(self.places_of(clients, len(table))))

    def places_of(self, clients: ArrayLike | None, n_rows: int) -> NDArray[np.int64]:
        """The place of each row's client; -1 stands for the global model."""
        if clients is None:
            if len(self.clients_) > 1:
                self._miss_clients()
            return np.full(n_rows, -1 if len(self.clients_) > 1 else 0)
        codes, found = pd.factorize(_names(clients, n_rows))
        places = np.array([self._place.get(str(name), -1) for name in found], dtype=np.int64)
        if self.unknown == "error" and (places < 0).any():
            strange = found[int((places < 0).argmax())]
            raise Learn2pFedError(
                f"client {str(strange)!r} was not there when the model was fitted ({int((places < 0).sum())} such): "
                "adapt the model to it, or set unknown='global'."
            )
        which: NDArray[np.int64] = places[codes]
        return which

    def _miss_clients(self) -> None:
        """scikit-learn's own scorers and cross_val_predict pass no clients on: never judge the global model unseen."""
        if self.unknown == "error":
            raise Learn2pFedError("clients is missing: say whose row each is, or set unknown='global'.")
        warnings.warn("clients is missing, so the global model answers for every row.", UserWarning, stacklevel=4)

    def publish(self, personal: Personal) -> None:
        """The models as attributes, in the units that X and y were given in."""
        self.personal_ = personal
        self._place = {str(name): place for place, name in enumerate(self.clients_.tolist())}
        design, regression = personal.design, not personal.n_classes
        coef, intercept = design.in_given_units(personal.by_class(personal.v), of_target=regression)
        global_coef, global_intercept = design.in_given_units(personal.by_class(personal.w), of_target=regression)
        if regression:
            coef, intercept = coef.squeeze(-2), intercept.squeeze(-1)
            global_coef, global_intercept = global_coef.squeeze(-2), global_intercept.squeeze(-1)
        self.coef_, self.intercept_ = coef.numpy(), intercept.numpy()
        self.global_coef_, self.global_intercept_ = global_coef.numpy(), global_intercept.numpy()
        part = design.by_column(personal.by_class(personal.participation), 1.0)
        self.participation_ = part.flatten(1).numpy()
        self.parameters_ = np.array(self._parameters())
        self.history_ = np.array(personal.history)
        self.traffic_ = personal.traffic

    def _columns(self) -> list[str]:
        return list(getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)]))

    def _parameters(self) -> list[str]:
        """Names of the columns of `participation_`."""
        return [*self._columns(), "intercept"]

    def _changes(self) -> dict[str, Any]:
        """What the user chose of Settings."""
        state = self.random_state
        seed = int(state) if isinstance(state, Integral) else int(check_random_state(state).randint(2**31))
        chosen = {name: getattr(self, name) for name in ("n_cells", "n_epochs", "supervision", "sharing")}
        return chosen | {"seed": seed} | dict(self.settings or {})

    @abstractmethod
    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """X and y as arrays, by scikit-learn's rules."""

    @property
    @abstractmethod
    def _n_classes(self) -> int:
        """0 for regression."""

    @abstractmethod
    def _learn_target(self, y: NDArray[Any]) -> Tensor:
        """The target as numbers; of classes, learns which there are."""

    @abstractmethod
    def _target(self, y: NDArray[Any]) -> Tensor:
        """The target as numbers, once it is known which classes there are."""


class Learn2pFedRegressor(RegressorMixin, _Personalised):
    """A linear model for each client, in which every coefficient learns how far it follows the other clients'.

    Args:
        n_cells: L, unrolled cells of the network.
        n_epochs: E, steps of learning how much is shared.
        supervision: what judges that: halves of each client's rows (`crossval`), a part (`holdout`), or `train`.
        sharing: one Λ for all clients (`common`), one each (`per-client`, the paper), or `mixed`.
        unknown: what predicts for clients that were not there: the `global` model, or an `error`.
        settings: further settings of Learn2pFed by name, as `learn2pfed list` shows them.
        random_state: seed of the folds.

    Attributes:
        clients_: names of the M clients, sorted; newcomers at the end.
        coef_, intercept_: a model each, (M, k) and (M,).
        global_coef_, global_intercept_: what all have in common, (k,) and ().
        participation_: (M, k + 1); 1 where a parameter follows the others, 0 where it is the client's own.
        parameters_: names of the columns of participation_.
        history_: what supervises the learning, by epoch.
        traffic_: the bytes that clients and server would have exchanged.
        personal_: the same models in the units of the standardised design.

    >>> X, y, firm = [[0.0], [1.0], [2.0], [0.0], [1.0], [2.0]], [0.0, 1.0, 2.0, 5.0, 6.0, 7.0], list("aaabbb")
    >>> model = Learn2pFedRegressor().fit(X, y, clients=firm)
    >>> model.predict([[3.0], [3.0]], clients=["a", "b"]).round()
    array([3., 8.])
    """

    def predict(self, X: ArrayLike, clients: ArrayLike | None = None) -> NDArray[np.float64]:
        """The answer of each row's client; without `clients`, of the global model."""
        return self._scores(X, clients)[:, 0].numpy()

    def score(
        self, X: ArrayLike, y: ArrayLike, clients: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """R² of `predict`."""
        return float(r2_score(y, self.predict(X, clients), sample_weight=sample_weight))

    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[NDArray[np.float64], NDArray[Any]]:
        table, answers = validate_data(self, X, y, dtype=np.float64, y_numeric=True, reset=reset)
        return table, answers

    @property
    def _n_classes(self) -> int:
        return 0

    def _learn_target(self, y: NDArray[Any]) -> Tensor:
        return self._target(y)

    def _target(self, y: NDArray[Any]) -> Tensor:
        return torch.tensor(y, dtype=torch.float64)


class Learn2pFedClassifier(ClassifierMixin, _Personalised):
    """A softmax for each client, in which every coefficient learns how far it follows the other clients'.

    Arguments and attributes are those of Learn2pFedRegressor, and `classes_`. For C classes coef_ is (M, C, k), and for
    two (M, 1, k), as scikit-learn has it. Coefficients of standardised features carry scikit-learn's default ridge.
    """

    __metadata_request__predict_proba: ClassVar = {"clients": True}
    __metadata_request__decision_function: ClassVar = {"clients": True}

    def predict(self, X: ArrayLike, clients: ArrayLike | None = None) -> NDArray[Any]:
        """The class that each row's client finds most likely; without `clients`, that of the global model."""
        scores = self._scores(X, clients)
        best = scores.argmax(1) if self._n_classes > 2 else (scores[:, 0] > 0).long()
        chosen: NDArray[Any] = self.classes_[best.numpy()]
        return chosen

    def predict_proba(self, X: ArrayLike, clients: ArrayLike | None = None) -> NDArray[np.float64]:
        """The chance of every class, (N, C)."""
        scores = self._scores(X, clients)
        if self._n_classes == 2:
            scores = torch.cat([-scores, scores], 1)
            return scores.sigmoid().numpy()
        return scores.softmax(1).numpy()

    def decision_function(self, X: ArrayLike, clients: ArrayLike | None = None) -> NDArray[np.float64]:
        """The scores before the softmax, (N, C); for two classes (N,)."""
        scores = self._scores(X, clients).numpy()
        return scores if self._n_classes > 2 else scores[:, 0]

    def score(
        self, X: ArrayLike, y: ArrayLike, clients: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """The share of rows that `predict` gets right."""
        return float(accuracy_score(y, self.predict(X, clients), sample_weight=sample_weight))

    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[NDArray[np.float64], NDArray[Any]]:
        table, answers = validate_data(self, X, y, dtype=np.float64, reset=reset)
        return table, column_or_1d(answers)

    @property
    def _n_classes(self) -> int:
        return len(self.classes_)

    def _learn_target(self, y: NDArray[Any]) -> Tensor:
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise Learn2pFedError(f"y has only one class, {str(self.classes_[0])!r}: there is nothing to tell apart.")
        return torch.tensor(codes, dtype=torch.float64)

    def _target(self, y: NDArray[Any]) -> Tensor:
        codes = pd.Index(self.classes_).get_indexer(pd.Index(y))
        if (codes < 0).any():
            strange = y[int((codes < 0).argmax())]
            raise Learn2pFedError(f"class {str(strange)!r} was not there when the model was fitted: fit again with it.")
        return torch.tensor(codes, dtype=torch.float64)

    def _parameters(self) -> list[str]:
        names = super()._parameters()
        return names if self._n_classes == 2 else [f"{label}: {name}" for label in self.classes_ for name in names]


def _names(clients: Any, n_rows: int) -> NDArray[Any]:
    """Client names as integers or text, one a row."""
    given = np.asarray(clients)
    if given.ndim != 1 or len(given) != n_rows:
        raise Learn2pFedError(f"clients must name the client of each of the {n_rows} rows, got shape {given.shape}.")
    missing = pd.isna(given)
    if missing.any():
        raise Learn2pFedError(f"clients has {int(missing.sum())} missing name(s): name them or drop those rows.")
    if given.dtype == object:
        given = np.array(given.tolist())
    if np.issubdtype(given.dtype, np.floating) and (np.abs(given) < 2**53).all() and (given == np.floor(given)).all():
        given = given.astype(np.int64)
    return given if np.issubdtype(given.dtype, np.integer) else given.astype(str)
