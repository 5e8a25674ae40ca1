"""L cells with squared loss as one node of the autograd graph: the cell backwards, by hand.

With H = (A + ρI)⁻¹ and, going forward, r = z - v + w, α' = α + θr, t = w + z + α', v' = H(ρt + b), u = v' - w - α',
s = η/(Λ + η), z' = su, m = v' - z' - α', c = pγ, w' = Σ c m / Σ c, the adjoints (bars) going back are

    m̄ = c w̄'/Σc,   c̄ = Σ_k w̄'(m - w')/Σc,   p̄ = γ c̄,   γ̄ = p c̄
    z̄' -= m̄,   ū = s z̄',   Λ̄ = -z̄'u s/(Λ + η),   η̄ = Σ_k z̄'u (1 - s)/(Λ + η)
    g = H(v̄' + m̄ + ū),   ρ̄ = Σ_k g(t - v') = Σ_k g(z - u),   t̄ = ρg
    ᾱ = ᾱ' - m̄ - ū + t̄,   θ̄ = Σ_k ᾱ r,   r̄ = θᾱ,   z̄ = t̄ + r̄,   v̄ = -r̄,   w̄ = Σ_i (t̄ - ū + r̄).

torch's own derivatives of the four equations give the same (tested), in more nodes, more memory and more time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from learn2pfed.unrolled.cell import (
    Rest,
    State,
    Theta,
    alpha_step,
    contribution,
    solve_shifted,
    v_step,
    w_step,
    z_step,
)

BLOCK = 8192
"""Clients computed at once. Larger temporaries cost more in fresh memory than they save in calls: see the benchmark."""


class Eigen(NamedTuple):
    """X_iᵀY_i and the eigendecomposition of X_iᵀX_i, of a block of clients."""

    b: Tensor
    curvature: Tensor
    basis: Tensor


def split_clients(tensor: Tensor, dim: int = -2) -> tuple[Tensor, ...]:
    """The tensor in blocks of clients."""
    return (tensor,) if tensor.shape[dim] <= BLOCK else torch.split(tensor, BLOCK, dim)


def _join(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), -2)


class SquaredPass(torch.autograd.Function):
    """(α⁰, v⁰, z⁰, w⁰; Θ) → (α, v, z, w) after L cells, eq. (9)-(12), for F_i(v) = ½‖X_i v - Y_i‖².

    `which` says for each cell which of the given Θ it has: all the same when tied. `detach` takes every w as constant.
    Clients in `rest` stand still: they count with what they last said in Σ c m, in Σ c and in w̄.
    """

    @staticmethod
    def forward(
        ctx: Any, eigen: Sequence[Eigen], which: Sequence[int], detach: bool, rest: Rest | None, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        """Cell by cell, block by block; what enters each cell is kept for the way back."""
        alpha, v, z, w, *groups = inputs
        states = [State(*parts) for parts in zip(*map(split_clients, (alpha, v, z)), strict=True)]
        thetas = [
            [Theta(*parts) for parts in zip(*map(split_clients, groups[at : at + 6]), strict=True)]
            for at in range(0, len(groups), 6)
        ]
        trail = [(states, w)]
        for copy in which:
            parts = [_forward(w, *part) for part in zip(eigen, states, thetas[copy], strict=True)]
            states = [after for after, _, _ in parts]
            total, weight = _add(total for _, total, _ in parts), _add(weight for _, _, weight in parts)
            w = w_step(total, weight) if rest is None else w_step(total + rest.total, weight + rest.weight)
            trail.append((states, w))
        ctx.eigen, ctx.which, ctx.detach, ctx.rest, ctx.thetas, ctx.trail = eigen, which, detach, rest, thetas, trail
        # Copies: an output that the context also held would keep itself alive.
        return *(torch.cat(parts, -2) for parts in zip(*states, strict=True)), w.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *bars: Tensor) -> tuple[Tensor | None, ...]:
        """The adjoints above, from the last cell to the first; gradients only of the groups that are learned."""
        *outer, w_bar = bars
        state_bars = [State(*parts) for parts in zip(*map(split_clients, outer), strict=True)]
        flags = ctx.needs_input_grad[8:]
        wanted = [Theta(*flags[at : at + 6]) for at in range(0, len(flags), 6)]
        slopes = [[Slopes(which) for _ in part] for which, part in zip(wanted, ctx.thetas, strict=True)]
        for ell in range(len(ctx.which), 0, -1):
            copy = ctx.which[ell - 1]
            (befores, w), (afters, w_) = ctx.trail[ell - 1], ctx.trail[ell]
            weight = _add((theta.p * theta.gamma).sum(-2) for theta in ctx.thetas[copy])
            total_bar = w_bar / (weight if ctx.rest is None else weight + ctx.rest.weight)
            blocks = zip(ctx.eigen, befores, afters, state_bars, ctx.thetas[copy], slopes[copy], strict=True)
            parts = [_backward(total_bar.unsqueeze(-2), w.unsqueeze(-2), w_.unsqueeze(-2), *block) for block in blocks]
            state_bars = [before for before, _ in parts]
            w_bar = torch.zeros_like(w) if ctx.detach else _add(part.sum(-2) for _, part in parts)
            if ctx.rest is not None and not ctx.detach:
                ctx.rest.said[ell - 1] = _join([part for _, part in parts])
                w_bar = w_bar + ctx.rest.adjoint[ell - 1]
        by_theta = [
            _join([slope.of(theta, name) for slope, theta in zip(*copy, strict=True)]) if needed else None
            for which, *copy in zip(wanted, slopes, ctx.thetas, strict=True)
            for name, needed in zip(Theta._fields, which, strict=True)
        ]
        return None, None, None, None, *map(_join, zip(*state_bars, strict=True)), w_bar, *by_theta


def _add(parts: Iterable[Tensor]) -> Tensor:
    first, *rest = parts
    return sum(rest, start=first)


def _forward(w: Tensor, eigen: Eigen, state: State, theta: Theta) -> tuple[State, Tensor, Tensor]:
    """α', v', z' of a block, and its part of the two sums of eq. (12)."""
    alpha_ = alpha_step(state.alpha, state.v, state.z, w, theta.theta)
    v_ = v_step(*eigen, w.unsqueeze(-2) + state.z + alpha_, theta.rho)
    after = State(alpha_, v_, z_step(alpha_, v_, w, theta.lam, theta.eta))
    total, c = contribution(after, theta.p, theta.gamma)
    return after, total.sum(-2), c.sum(-2)


class Slopes:
    """Sums over cells from which the gradients of one Θ follow: of what is learned, and reduced only once."""

    def __init__(self, wanted: Theta) -> None:
        self.wanted = wanted
        self.c = self.shrink = self.rho = self.theta = torch.zeros(())

    def of(self, theta: Theta, name: str) -> Tensor:
        """The gradient of one group, (M, k) or (M, 1)."""
        if name in ("p", "gamma"):
            other = theta.gamma if name == "p" else theta.p
            return other * self.c.sum((0, -1)).unsqueeze(-1)
        if name in ("lam", "eta"):
            weight = theta.lam + theta.eta
            slope = self.shrink.sum(0) / weight.square()
            return -slope * theta.eta if name == "lam" else (slope * theta.lam).sum(-1, keepdim=True)
        summed: Tensor = getattr(self, name)
        return summed.sum((0, -1)).unsqueeze(-1)


def _backward(
    total_bar: Tensor,  # w̄'/Σc, as w and w' with a client axis
    w: Tensor,
    w_: Tensor,
    eigen: Eigen,
    before: State,
    after: State,
    bar: State,
    theta: Theta,
    slopes: Slopes,
) -> tuple[State, Tensor]:
    """The adjoint of what entered the cell and each client's part of w̄; what gradients need is added to `slopes`."""
    alpha_, v_, z_ = after
    u = v_ - w - alpha_
    m_bar = theta.p * theta.gamma * total_bar
    if slopes.wanted.p or slopes.wanted.gamma:
        slopes.c = slopes.c + total_bar * (u - z_ + (w - w_))

    z_bar = bar.z - m_bar
    u_bar = theta.eta / (theta.lam + theta.eta) * z_bar
    if slopes.wanted.lam or slopes.wanted.eta:
        slopes.shrink = slopes.shrink + z_bar * u

    moved = m_bar.add_(u_bar)
    g = solve_shifted(eigen.curvature, eigen.basis, bar.v + moved, theta.rho)
    if slopes.wanted.rho:
        slopes.rho = slopes.rho + g * (before.z - u)
    t_bar = g.mul_(theta.rho)

    alpha_bar = (bar.alpha - moved).add_(t_bar)
    if slopes.wanted.theta:
        slopes.theta = slopes.theta + alpha_bar * (before.z - before.v + w)
    r_bar = theta.theta * alpha_bar
    z_before = t_bar.add_(r_bar)
    return State(alpha_bar, r_bar.neg_(), z_before), z_before - u_bar
