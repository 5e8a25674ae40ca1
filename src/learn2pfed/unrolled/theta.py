"""Θ, what is learned: six groups, positive by construction, common to all clients or each client's own.

Each group but θ is exp(common + own): `common` is held by the server and sent to all, `own` never leaves its client. θ,
a step size, is bounded too: THETA_MAX sigmoid(own). Fixed groups have the same form and are never moved.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from learn2pfed.unrolled.cell import Theta
from learn2pfed.unrolled.losses import ClientLoss
from learn2pfed.unrolled.settings import GROUPS, GroupName, Settings

THETA_MAX = (1 + 5**0.5) / 2
"""The golden ratio: longer dual steps are not known to converge (Fortin, Glowinski); θ learned freely takes them."""

Raw = dict[GroupName, Tensor]
"""Logarithms of Θ's groups (for θ the logit of θ / THETA_MAX): (M, C, k) for Λ, (M, C, 1) else; C = 1 (tied) or L."""


def learned_by_server(settings: Settings) -> tuple[GroupName, ...]:
    """Groups whose common part moves."""
    return ("lam",) if "lam" in settings.learn and settings.sharing != "per-client" else ()


def learned_by_client(settings: Settings) -> tuple[GroupName, ...]:
    """Groups whose own part moves."""
    return tuple(name for name in settings.learn if name != "lam" or settings.sharing != "common")


def start_common(settings: Settings, n_parameters: int) -> Tensor:
    """log Λ that all clients start from, shape (C, k)."""
    start = torch.full((1, n_parameters), settings.lam_start, dtype=torch.float64)
    if settings.lam_random:
        start = start * torch.from_numpy(np.random.default_rng([settings.seed, 1]).uniform(0, 1, n_parameters))
    return start.log().expand(1 if settings.tied else settings.n_cells, -1).clone()


def start_own(settings: Settings, full: ClientLoss, conditioning: float) -> Raw:
    """The clients' own part at the start; Λ's is 0, a deviation from the common one. `full` has all rows.

    `rho_relative` multiplies ρ by the mean curvature of the rows that a client learns from, and by `conditioning`:
    ill-conditioned features want a smaller ρ.
    """
    _, n_clients, n_parameters = full.shape
    rho = torch.full((n_clients,), settings.rho_start, dtype=torch.float64)
    if settings.rho_relative:
        size = settings.training_share * full.gram[0].diagonal(dim1=-2, dim2=-1).mean(-1)
        rho = rho * conditioning * torch.where(size > 0, size, torch.ones_like(size))
    theta = rho.clamp_max(1.6) if settings.theta_start is None else torch.full_like(rho, settings.theta_start)
    p = torch.ones_like(rho) if settings.p_start == "equal" else full.n[0]
    values: dict[GroupName, Tensor] = {"p": p, "rho": rho, "eta": rho, "gamma": rho, "theta": theta}
    n_copies = 1 if settings.tied else settings.n_cells
    raw = {name: value.log() for name, value in values.items()} | {"theta": (theta / THETA_MAX).logit()}
    own: Raw = {name: value[:, None, None].repeat(1, n_copies, 1) for name, value in raw.items()}
    own["lam"] = torch.zeros(n_clients, n_copies, n_parameters, dtype=torch.float64)
    return own


def theta_of_cells(common: Tensor, own: Raw, n_cells: int) -> list[Theta]:
    """Θ of cell 1 .. L. Tied cells share the very tensors, so that their gradients add up."""
    values = {name: own[name].exp() for name in GROUPS if name not in ("lam", "theta")}
    values |= {"lam": (common + own["lam"]).exp(), "theta": THETA_MAX * own["theta"].sigmoid()}
    n_copies = common.shape[0]
    copies = [Theta(**{name: value[:, copy] for name, value in values.items()}) for copy in range(n_copies)]
    return copies * n_cells if n_copies == 1 else copies


def penalty_gradients(settings: Settings, common: Tensor, own: Raw) -> tuple[Tensor, Tensor]:
    """Gradients of the weak prior  Σ (log Λ)² / (2 spread²)  for the common part and for the own part of Λ."""
    weight = 0.0 if settings.lam_spread is None else settings.lam_spread**-2
    if settings.sharing == "per-client":
        return torch.zeros_like(common), weight * (own["lam"] + common)
    return weight * common, own["lam"] / settings.deviation_spread**2


class Moments(NamedTuple):
    """Adam's memory for a set of tensors."""

    first: list[Tensor]
    second: list[Tensor]
    steps: list[Tensor]  # by leading axes: clients that sit out have taken fewer

    @classmethod
    def zeros(cls, tensors: list[Tensor]) -> Moments:
        """Before the first step."""
        zeros = [torch.zeros_like(tensor) for tensor in tensors]
        return cls(zeros, [zero.clone() for zero in zeros], [zero[..., :1].clone() for zero in zeros])

    def pick(self, clients: Tensor | slice) -> Moments:
        """The memory of some clients."""
        return Moments(*([tensor[clients] for tensor in part] for part in self))

    def put(self, clients: Tensor | slice, memory: Moments) -> None:
        """Their new memory, in its place."""
        for part, new in zip(self, memory, strict=True):
            for tensor, value in zip(part, new, strict=True):
                tensor[clients] = value


def adam_step(
    settings: Settings, epoch: int, tensors: list[Tensor], gradients: list[Tensor], moments: Moments
) -> tuple[list[Tensor], Moments]:
    """One step of Adam that changes nothing in place: new tensors, new memory. None while warming up.

    As torch has it, but that each client counts its own steps.
    """
    rate, beta1, beta2 = settings.rate(epoch), settings.beta1, settings.beta2
    if rate == 0.0 or not tensors:
        return tensors, moments
    steps = [count + 1 for count in moments.steps]
    first = [torch.lerp(mean, slope, 1 - beta1) for mean, slope in zip(moments.first, gradients, strict=True)]
    second = [torch.lerp(mean, slope**2, 1 - beta2) for mean, slope in zip(moments.second, gradients, strict=True)]
    moved = [
        at - rate * (mean / (1 - beta1**count)) / ((square / (1 - beta2**count)).sqrt() + 1e-8)
        for at, mean, square, count in zip(tensors, first, second, steps, strict=True)
    ]
    return moved, Moments(first, second, steps)


class Effective(NamedTuple):
    """What the cells converge to: at a fixed point they solve P_f with this Λ and these weights."""

    lam: Tensor  # ρ_i Λ_i / η_i, (M, k)
    p: Tensor  # p_i γ_i / ρ_i, (M, 1)


def effective(theta: Theta) -> Effective:
    """At a fixed point α_i = -Λ_i z_i/η_i and A_i v_i - b_i = ρ_i α_i, so ρ/η rescales Λ and γ/ρ rescales p."""
    return Effective(theta.rho * theta.lam / theta.eta, theta.p * theta.gamma / theta.rho)
