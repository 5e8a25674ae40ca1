"""The cell backwards, by hand: one node of the autograd graph for a whole cell with squared loss.

With H = (A + ρI)⁻¹ and, going forward, r = z - v + w, α' = α + θr, t = w + z + α', v' = H(ρt + b), u = v' - w - α',
s = η/(Λ + η), z' = su, m = v' - z' - α', c = pγ, w' = Σ c m / Σ c, the adjoints (bars) going back are

    m̄ = c w̄'/Σc,   c̄ = Σ_k w̄'(m - w')/Σc,   p̄ = γ c̄,   γ̄ = p c̄
    z̄' -= m̄,   ū = s z̄',   Λ̄ = -z̄'u s/(Λ + η),   η̄ = Σ_k z̄'u (1 - s)/(Λ + η)
    g = H(v̄' + m̄ + ū),   ρ̄ = Σ_k g(t - v'),   t̄ = ρg
    ᾱ = ᾱ' - m̄ - ū + t̄,   θ̄ = Σ_k ᾱ r,   r̄ = θᾱ,   z̄ = t̄ + r̄,   v̄ = -r̄,   w̄ = Σ_i (t̄ - ū + r̄).

torch's own derivatives of the four equations give the same (tested) in more nodes and about twice the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from learn2pfed.unrolled.cell import State, Theta, alpha_step, contribution, solve_shifted, v_step, w_step, z_step

BLOCK = 4096
"""Clients computed at once: small enough for a processor's cache, so that a cell's cost stays linear in clients."""


class SquaredCell(torch.autograd.Function):
    """cell(): (α, v, z, w; Θ) → (α', v', z', w'), eq. (9)-(12), for F_i(v) = ½‖X_i v - Y_i‖²."""

    @staticmethod
    def forward(ctx: Any, b: Tensor, curvature: Tensor, basis: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The four equations, block by block."""
        alpha, v, z, w, *groups = inputs
        parts = [_forward(w, *block) for block in _blocks(basis, b, curvature, alpha, v, z, *groups)]
        *after, totals, weights = zip(*parts, strict=True)
        alpha_, v_, z_ = map(_join, after)
        w_ = w_step(sum(totals[1:], start=totals[0]), sum(weights[1:], start=weights[0]))
        ctx.save_for_backward(w, w_, curvature, v, z, alpha_, v_, z_, *groups, basis)
        return alpha_, v_, z_, w_

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> tuple[Tensor | None, ...]:
        """The adjoints above, block by block."""
        w, w_, *saved, basis = ctx.saved_tensors
        theta = Theta(*saved[-6:])
        wanted = Theta(*ctx.needs_input_grad[7:])
        *state_bars, w_bar = bars
        total_bar = (w_bar / (theta.p * theta.gamma).sum(-2)).unsqueeze(-2)
        blocks = _blocks(basis, *state_bars, *saved)
        parts = [_backward(wanted, total_bar, w, w_, *block) for block in blocks]
        *before, w_bars = zip(*(part[:4] for part in parts), strict=True)
        by_theta = (_join([part[4][name] for part in parts]) if name in parts[0][4] else None for name in Theta._fields)
        return None, None, None, *map(_join, before), sum(w_bars[1:], start=w_bars[0]), *by_theta


def _blocks(basis: Tensor, *others: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """The same tensors for BLOCK clients at a time."""
    if basis.shape[-3] <= BLOCK:
        return [(basis, *others)]
    return zip(torch.split(basis, BLOCK, -3), *(torch.split(other, BLOCK, -2) for other in others), strict=True)


def _join(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), -2)


def _forward(
    w: Tensor, basis: Tensor, b: Tensor, curvature: Tensor, alpha: Tensor, v: Tensor, z: Tensor, *groups: Tensor
) -> tuple[Tensor, ...]:
    """α', v', z' of a block, and its part of the two sums of eq. (12)."""
    theta = Theta(*groups)
    alpha_ = alpha_step(alpha, v, z, w, theta.theta)
    target = w.unsqueeze(-2) + z + alpha_
    v_ = v_step(b, curvature, basis, target, theta.rho)
    z_ = z_step(alpha_, v_, w, theta.lam, theta.eta)
    total, c = contribution(State(alpha_, v_, z_), theta.p, theta.gamma)
    return alpha_, v_, z_, total.sum(-2), c.sum(-2)


def _backward(
    wanted: Theta,
    total_bar: Tensor,  # w̄'/Σc
    w: Tensor,
    w_: Tensor,
    basis: Tensor,
    alpha_bar: Tensor,
    v_bar: Tensor,
    z_bar: Tensor,
    curvature: Tensor,
    v: Tensor,
    z: Tensor,
    alpha_: Tensor,
    v_: Tensor,
    z_: Tensor,
    *groups: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """ᾱ, v̄, z̄, the block's part of w̄, and the gradients of the wanted groups."""
    theta = Theta(*groups)
    w, w_ = w.unsqueeze(-2), w_.unsqueeze(-2)
    slopes: dict[str, Tensor] = {}

    m_bar = theta.p * theta.gamma * total_bar
    if wanted.p or wanted.gamma:
        c_bar = (total_bar * (v_ - z_ - alpha_ - w_)).sum((0, -1)).unsqueeze(-1)
        slopes |= {"p": theta.gamma * c_bar, "gamma": theta.p * c_bar}

    z_bar = z_bar - m_bar
    weight = theta.lam + theta.eta
    s = theta.eta / weight
    u_bar = s * z_bar
    if wanted.lam or wanted.eta:
        slope = (z_bar * (v_ - w - alpha_)).sum(0) / weight
        slopes |= {"lam": -slope * s, "eta": (slope * (1 - s)).sum(-1, keepdim=True)}

    moved = m_bar + u_bar
    g = solve_shifted(curvature, basis, v_bar + moved, theta.rho)
    if wanted.rho:
        slopes["rho"] = (g * (w + z + alpha_ - v_)).sum((0, -1)).unsqueeze(-1)
    t_bar = theta.rho * g

    alpha_bar = alpha_bar - moved + t_bar
    if wanted.theta:
        slopes["theta"] = (alpha_bar * (z - v + w)).sum((0, -1)).unsqueeze(-1)
    r_bar = theta.theta * alpha_bar
    z_before = t_bar + r_bar
    return alpha_bar, -r_bar, z_before, (z_before - u_bar).sum(-2), slopes
