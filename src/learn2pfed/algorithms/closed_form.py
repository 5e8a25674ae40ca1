"""References that need no conversation: alone, together, and the limits that no method should be expected to pass.

Each takes the data and returns an Outcome; nothing is sent, so traffic is zero.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from learn2pfed.algorithms.base import Outcome
from learn2pfed.data.federated import FederatedData
from learn2pfed.errors import Learn2pFedError
from learn2pfed.unrolled.limit import learn_common_lam, solve
from learn2pfed.unrolled.losses import SQUARED, SquaredLoss
from learn2pfed.unrolled.settings import Settings
from learn2pfed.unrolled.supervision import supervise_all

STARTS = (-6.0, -4.0, -2.0, 0.0, 2.0)
"""log Λ from which the search for REML's optimum sets out; there may be several."""

BOUND = 20.0


def local_only(data: FederatedData) -> Outcome:
    """min over v_i of ‖X_i v_i - Y_i‖² for each client alone (shortest solution if rows are few)."""
    models = torch.empty(len(data), data.n_features, dtype=torch.float64)
    for clients, rows, present in data.blocks:  # a row of zeros does not change the shortest minimiser
        models[clients] = least_squares(data.X[rows] * present.unsqueeze(-1), data.y[rows] * present)
    return Outcome(models, models.mean(0))


def one_for_all(data: FederatedData) -> Outcome:
    """min over one w of Σ_i ‖X_i w - Y_i‖²: least squares on all rows together."""
    w = least_squares(data.X, data.y)
    return Outcome(w.expand(len(data), -1), w)


def oracle(data: FederatedData, shared: Tensor) -> Outcome:
    """Least squares that is told which coefficients are `shared` (a mask, (k,)) and which are each client's own."""
    rows, own = [], int((~shared).sum())
    for i, client in enumerate(data.clients):
        blocks = [client.X[:, shared]] + [torch.zeros(client.n_rows, own, dtype=client.X.dtype)] * len(data)
        blocks[1 + i] = client.X[:, ~shared]
        rows.append(torch.cat(blocks, 1))
    solution = least_squares(torch.cat(rows), data.y)
    n_shared = int(shared.sum())
    models = torch.empty(len(data), data.n_features, dtype=solution.dtype)
    models[:, shared] = solution[:n_shared]
    models[:, ~shared] = solution[n_shared:].reshape(len(data), own)
    return Outcome(models, models.mean(0))


def least_squares(X: Tensor, y: Tensor) -> Tensor:
    """The shortest minimiser of ‖Xv - y‖², of each in a stack of problems."""
    solution: Tensor = torch.linalg.lstsq(X, y.unsqueeze(-1), driver="gelsd").solution
    return solution.squeeze(-1)


def reml_objective(full: SquaredLoss, lam: Tensor) -> Tensor:
    """-log restricted likelihood of  Y_i = X_i v_i + e,  v_i ~ N(w, σ²Λ⁻¹),  e ~ N(0, σ²I);  w and σ² are profiled out.

    ½ [ (n-k) log(RSS/(n-k)) + Σ_i log(|A_i + Λ| / |Λ|) + log|P| ],  P = Σ_i Λ(A_i + Λ)⁻¹A_i,
    RSS = Σ_i (c_i - b_iᵀ(A_i + Λ)⁻¹b_i) - qᵀP⁻¹q,  q = Σ_i Λ(A_i + Λ)⁻¹b_i.  `lam` is (k,), `full` has one split.
    """
    k = full.b.shape[-1]
    regularised = full.A + torch.diag(lam)
    solved = torch.linalg.solve(regularised, torch.cat([full.A, full.b.unsqueeze(-1)], -1))
    system = (lam.unsqueeze(-1) * solved).sum((0, 1))
    P, q = system[:, :k], system[:, k]
    residual = full.c.sum() - (full.b * solved[..., k]).sum() - q @ torch.linalg.solve(P, q)
    freedom = full.n.sum() - k
    spread = (torch.linalg.slogdet(regularised)[1] - lam.log().sum()).sum()
    value: Tensor = 0.5 * (freedom * (residual / freedom).log() + spread + torch.linalg.slogdet(P)[1])
    return value


def minimise_log(objective: Callable[[Tensor], Tensor], n_features: int) -> Tensor:
    """The best log Λ that L-BFGS finds from several starts."""

    def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
        raw = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        value = objective(raw)
        value.backward()  # type: ignore[no-untyped-call]
        return value.item(), raw.grad.numpy() if raw.grad is not None else np.zeros_like(x)

    bounds = [(-BOUND, BOUND)] * n_features
    runs = [minimize(evaluate, np.full(n_features, at), jac=True, method="L-BFGS-B", bounds=bounds) for at in STARTS]
    best = min(runs, key=lambda run: float(run.fun))
    return torch.from_numpy(best.x)


def reml(data: FederatedData) -> Outcome:
    """The random-effects model with diagonal covariance fitted by REML: the statistical limit for a common Λ."""
    _check_rows(data, "REML")
    problem, (scale, _) = supervise_all(data, Settings(supervision="train"), SQUARED)
    raw = minimise_log(lambda at: reml_objective(problem.full, at.exp()), data.n_features)
    return _solved(problem.full, raw.exp()[None], scale)


def exact_inner(data: FederatedData, settings: Settings) -> Outcome:
    """Learn2pFed's supervision and prior with the inner problem solved exactly, L → ∞."""
    _check_rows(data, "The exact inner solution")
    problem, (scale, _) = supervise_all(data, settings, SQUARED)
    return _solved(problem.full, learn_common_lam(problem, settings), scale)


def _check_rows(data: FederatedData, what: str) -> None:
    if sum(data.sizes) <= data.n_features:
        raise Learn2pFedError(
            f"{what} needs more rows than features, got {sum(data.sizes)} rows and {data.n_features} features."
        )


def _solved(full: SquaredLoss, lam: Tensor, scale: Tensor) -> Outcome:
    v, w = solve(full, lam, torch.ones(full.b.shape[-2], 1, dtype=torch.float64))
    models = v[0] / scale
    return Outcome(models, w[0] / scale, insight={"lam": (lam * scale.square()).expand(models.shape)})
