"""The limit of infinitely many cells: P_f of eq. (2) solved exactly, and a common Λ learned through that solution.

The test oracle of the network, and what `10 unrolled cells` are measured against.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learn2pfed.unrolled.losses import SquaredLoss
from learn2pfed.unrolled.settings import Settings
from learn2pfed.unrolled.supervision import Supervised, judged, outer_objective
from learn2pfed.unrolled.theta import Moments, adam_step, penalty_gradients, start_common


def solve(loss: SquaredLoss, lam: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """The minimiser (v, w) of  Σ_i p_i ( F_i(v_i) + ½ (v_i - w)ᵀ Λ_i (v_i - w) ),  lam (M or 1, k), p (M, 1).

    v_i = (A_i + Λ_i)⁻¹ (b_i + Λ_i w), and w solves the k x k system
    Σ_i p_i Λ_i (A_i + Λ_i)⁻¹ A_i w = Σ_i p_i Λ_i (A_i + Λ_i)⁻¹ b_i.
    """
    k = loss.b.shape[-1]
    system = client_system(loss, lam, p).sum(-3)
    w = torch.linalg.solve(system[..., :k], system[..., k:]).squeeze(-1)
    return loss.follow(lam, w), w


def client_system(loss: SquaredLoss, lam: Tensor, p: Tensor) -> Tensor:
    """Each client's part of the system for w,  p_i Λ_i (A_i + Λ_i)⁻¹ [A_i, b_i],  (S, M, k, k + 1)."""
    right = torch.cat([loss.A, loss.b.unsqueeze(-1)], -1)
    solved = torch.linalg.solve(loss.A + torch.diag_embed(lam.expand(loss.b.shape)), right)
    part: Tensor = (p * lam).unsqueeze(-1) * solved
    return part


def solve_system(system: Tensor) -> Tensor:
    """w from the clients' parts summed, (k, k + 1), whose left is symmetric; the shortest where features repeat.

    >>> solve_system(torch.tensor([[2.0, 2.0, 4.0], [2.0, 2.0, 4.0]], dtype=torch.float64)).round(decimals=9)
    tensor([1., 1.], dtype=torch.float64)
    """
    left, right = system[:, :-1], system[:, -1]
    size = left.diagonal().clamp_min(1e-300).rsqrt()
    values, vectors = torch.linalg.eigh((left + left.T) / 2 * size[:, None] * size)
    inverse = torch.where(values > 1e-12 * values.max(), 1.0 / values, torch.zeros_like(values))
    w: Tensor = size * (vectors @ (inverse * (vectors.T @ (size * right))))
    return w


def learn_common_lam(problem: Supervised[SquaredLoss], settings: Settings) -> Tensor:
    """Common Λ learned through the exact solution (problem already scaled), shape (1, k).

    The same supervision, prior, start, steps and step sizes as through the cells, so that only the cells differ.
    """
    weight = torch.ones(problem.train.b.shape[-2], 1, dtype=torch.float64)
    raw = start_common(settings.changed(tied=True), problem.train.b.shape[-1])
    memory = Moments.zeros([raw])
    for epoch in range(settings.n_warmup, settings.n_epochs):
        leaf = raw.detach().requires_grad_()
        v, _ = solve(problem.train, leaf.exp(), weight)
        value = outer_objective(settings, judged(problem, settings, v, leaf.exp()).sum(-1), problem.size)
        (slope,) = torch.autograd.grad(value, leaf)
        prior, _ = penalty_gradients(settings, raw, {"lam": raw})
        (raw,), memory = adam_step(settings, epoch, [raw], [slope + prior], memory)
    return raw.exp()
