"""The four-layer cell of the paper, eq. (9)-(12), and eq. (14): one pure function per equation.

One cell is one iteration of ADMM on

    min  Σ_i p_i ( F_i(v_i) + ½ z_iᵀ Λ_i z_i )   subject to  z_i = v_i - w,

with the augmented Lagrangian, scaled dual α_i and the ½ in front of loss and regulariser,

    Σ_i p_i ( F_i(v_i) + ½ z_iᵀ Λ_i z_i + ½ρ_i ‖z_i - v_i + w + α_i‖² - ½ρ_i ‖α_i‖² ),   F_i(v) = ½‖X_i v - Y_i‖².

Shapes: v, z, alpha are (S, M, k): S training splits, M clients, k parameters; w is (S, k); lam is (M, k) or (1, k);
p, rho, eta, gamma, theta are (M, 1). Every function broadcasts, so one client is M = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

Map = Callable[[Tensor], Tensor]


class Theta(NamedTuple):
    """Θ of one cell, all positive: the paper's six learnable groups."""

    lam: Tensor  # Λ_i, diagonal
    p: Tensor  # p_i
    rho: Tensor  # ρ_i in the v step
    eta: Tensor  # η_i, the copy of ρ_i in the z step
    gamma: Tensor  # γ_i, the copy of ρ_i in the w step
    theta: Tensor  # θ_i, the dual step size


class State(NamedTuple):
    """What a client carries from cell to cell."""

    alpha: Tensor
    v: Tensor
    z: Tensor


class Rest(NamedTuple):
    """Where only some clients take part: what those who sit out last said, in eq. (12) and in the adjoint of w."""

    total: Tensor  # Σ c_i (v_i - z_i - α_i), (S, k)
    weight: Tensor  # Σ c_i, (1,)
    adjoint: Tensor  # Σ of their parts of the adjoint of the w that enters cell 1 .. L, (L, S, k)
    said: Tensor  # (L, S, m, k), into which those who take part put theirs on the way back


class Told(torch.autograd.Function):
    """w as each client that takes part is told it, (S, m, k); its adjoint is the sum of theirs and of the rest's."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, rest: Rest, ell: int) -> Tensor:
        """The same for everyone."""
        ctx.rest, ctx.ell = rest, ell
        return w.unsqueeze(-2).expand(rest.said.shape[1:])

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> tuple[Tensor, None, None]:
        """What each says is kept for the epochs that it sits out."""
        ctx.rest.said[ctx.ell] = bar
        return bar.sum(-2) + ctx.rest.adjoint[ctx.ell], None, None


class Loss(Protocol):
    """F_i for a block of clients: its value and its v step."""

    def value(self, v: Tensor) -> Tensor:
        """F_i(v_i), shape (S, M)."""

    def v_step(self, v: Tensor, target: Tensor, rho: Tensor) -> Tensor:
        """Minimise (or lower) F_i(v) + ½ρ_i‖target_i - v‖², starting from v."""


def alpha_step(alpha: Tensor, v: Tensor, z: Tensor, w: Tensor, theta: Tensor) -> Tensor:
    """Eq. (9), dual ascent:  α_i ← α_i + θ_i (z_i - v_i + w)."""
    return torch.addcmul(alpha, theta, z - v + _each(w, v))


def v_step(b: Tensor, curvature: Tensor, basis: Tensor, target: Tensor, rho: Tensor) -> Tensor:
    """Eq. (10), exactly:  v_i = (X_iᵀX_i + ρ_i I)⁻¹ (ρ_i (w + z_i + α_i) + X_iᵀY_i).

    The minimiser of ½‖X_i v - Y_i‖² + ½ρ_i‖target_i - v‖², target_i = w + z_i + α_i, through the eigendecomposition
    X_iᵀX_i = basis diag(curvature) basisᵀ, computed once: no cell and no epoch factors a matrix.
    """
    return solve_shifted(curvature, basis, torch.addcmul(b, rho, target), rho)


def solve_shifted(curvature: Tensor, basis: Tensor, right: Tensor, rho: Tensor) -> Tensor:
    """(basis diag(curvature) basisᵀ + ρI)⁻¹ right."""
    columns = basis.flatten(0, -3)  # bmm on one flat batch has less overhead than a broadcasting matmul
    rotated = torch.bmm(right.reshape(-1, 1, right.shape[-1]), columns).view(curvature.shape) / (curvature + rho)
    return torch.bmm(columns, rotated.view(len(columns), -1, 1)).view(right.shape)


def v_gradient_step(v: Tensor, target: Tensor, rho: Tensor, gradient: Map, rate: float | Map) -> Tensor:
    """Eq. (14), for any F_i:  v_i ← v_i - lr ∂h_i/∂v_i,  h_i(v) = F_i(v) + ½ρ_i‖target_i - v‖².

    The step size lr is a number or a linear map.
    """
    slope = gradient(v) + rho * (v - target)
    return v - (rate(slope) if callable(rate) else rate * slope)


def z_step(alpha: Tensor, v: Tensor, w: Tensor, lam: Tensor, eta: Tensor) -> Tensor:
    """Eq. (11):  z_i = η_i (Λ_i + η_i I)⁻¹ (v_i - w - α_i),  minimising ½zᵀΛ_i z + ½η_i‖z - v_i + w + α_i‖²."""
    return eta / (lam + eta) * (v - _each(w, v) - alpha)


def contribution(state: State, p: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """The client's half of eq. (12): c_i (v_i - z_i - α_i) and c_i = p_i γ_i."""
    c = p * gamma
    return c * (state.v - state.z - state.alpha), c


def w_step(total: Tensor, weight: Tensor) -> Tensor:
    """Eq. (12), the server's half:  w = Σ_i c_i (v_i - z_i - α_i) / Σ_i c_i.  It needs the two sums only."""
    return total / weight


def _each(w: Tensor, v: Tensor) -> Tensor:
    """w with a client axis, as v has it."""
    return w if w.ndim == v.ndim else w.unsqueeze(-2)


def client_cell(loss: Loss, state: State, w: Tensor, theta: Theta) -> State:
    """The three client layers of one cell: α, v, z, in that order."""
    alpha = alpha_step(state.alpha, state.v, state.z, w, theta.theta)
    v = loss.v_step(state.v, _each(w, state.v) + state.z + alpha, theta.rho)
    return State(alpha, v, z_step(alpha, v, w, theta.lam, theta.eta))


def cell(
    loss: Loss, state: State, w: Tensor, theta: Theta, rest: Rest | None = None, ell: int = 0
) -> tuple[State, Tensor]:
    """One whole cell for all clients at once: (α, v, z, w) of cell ℓ-1 to those of cell ℓ."""
    told: Tensor = w if rest is None else Told.apply(w, rest, ell)  # type: ignore[no-untyped-call]
    state = client_cell(loss, state, told, theta)
    weighted, c = contribution(state, theta.p, theta.gamma)
    total, weight = weighted.sum(-2), c.sum(-2)
    return state, w_step(total, weight) if rest is None else w_step(total + rest.total, weight + rest.weight)


def augmented_lagrangian(loss: Loss, state: State, w: Tensor, theta: Theta) -> Tensor:
    """The augmented Lagrangian above, divided by M as in eq. (4); Theorem 1 says when it falls. Shape (S,)."""
    gap = state.z - state.v + w.unsqueeze(-2)
    inner = (
        loss.value(state.v)
        + 0.5 * (theta.lam * state.z.square()).sum(-1)
        + 0.5 * (theta.rho * ((gap + state.alpha).square() - state.alpha.square())).sum(-1)
    )
    return (theta.p.squeeze(-1) * inner).mean(-1)
