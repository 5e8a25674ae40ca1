"""F_i for a block of clients: squared loss through statistics, and any differentiable loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from learn2pfed.unrolled.adjoint import Eigen, SquaredPass, split_clients
from learn2pfed.unrolled.cell import State, Theta, v_gradient_step, v_step


@dataclass(frozen=True)
class SquaredLoss:
    """F_i(v) = ½‖X_i v - Y_i‖² = ½ (vᵀA_i v - 2 b_iᵀv + c_i), from A = XᵀX, b = XᵀY, c = YᵀY; n counts rows.

    Any leading axes; usually (S, M). Once these are formed, nothing touches a row again.
    """

    A: Tensor  # (..., k, k)
    b: Tensor  # (..., k)
    c: Tensor  # (...)
    n: Tensor  # (...)

    @classmethod
    def of_rows(cls, X: Tensor, y: Tensor) -> SquaredLoss:
        """The statistics of one client's rows."""
        return cls(X.mT @ X, X.mT @ y, y @ y, torch.tensor(float(len(y)), dtype=X.dtype))

    @classmethod
    def stack(cls, parts: Sequence[SquaredLoss]) -> SquaredLoss:
        """Put parts side by side on a new leading axis."""
        return cls(*(torch.stack([getattr(part, name) for part in parts]) for name in ("A", "b", "c", "n")))

    @classmethod
    def join(cls, parts: Sequence[SquaredLoss]) -> SquaredLoss:
        """Many blocks of clients, (S, M), as one."""
        return cls(*(torch.cat([getattr(part, name) for part in parts], 1) for name in ("A", "b", "c", "n")))

    def __add__(self, other: SquaredLoss) -> SquaredLoss:
        """The statistics of both sets of rows together."""
        return SquaredLoss(self.A + other.A, self.b + other.b, self.c + other.c, self.n + other.n)

    def scaled(self, scale: Tensor) -> SquaredLoss:
        """The same rows with feature j divided by scale_j (so that v_j is multiplied by it)."""
        return SquaredLoss(self.A / (scale[:, None] * scale), self.b / scale, self.c, self.n)

    @cached_property
    def _eigen(self) -> tuple[Tensor, Tensor]:
        curvature, basis = torch.linalg.eigh(self.A)
        return curvature.clamp_min(0.0), basis

    @property
    def curvature(self) -> Tensor:
        """Eigenvalues of A, rounding below zero removed."""
        return self._eigen[0]

    @property
    def basis(self) -> Tensor:
        """Eigenvectors of A, in columns."""
        return self._eigen[1]

    def value(self, v: Tensor) -> Tensor:
        """F_i(v_i)."""
        Av = (self.A @ v.unsqueeze(-1)).squeeze(-1)
        return 0.5 * (((Av - 2.0 * self.b) * v).sum(-1) + self.c)

    def cells(self, thetas: Sequence[Theta], state: State, w: Tensor, detach: bool = False) -> tuple[State, Tensor]:
        """L cells as a single node of the autograd graph; cells may share a Θ."""
        distinct = list({id(theta): theta for theta in thetas}.values())
        which = [next(at for at, other in enumerate(distinct) if other is theta) for theta in thetas]
        node: Any = SquaredPass.apply
        *after, w = node(self._blocks, which, detach, *state, w, *(group for theta in distinct for group in theta))
        return State(*after), w

    @cached_property
    def _blocks(self) -> list[Eigen]:
        parts = (split_clients(self.b), split_clients(self.curvature), split_clients(self.basis, -3))
        return [Eigen(*(tensor.contiguous() for tensor in part)) for part in zip(*parts, strict=True)]

    def v_step(self, v: Tensor, target: Tensor, rho: Tensor) -> Tensor:
        """Eq. (10); the exact minimiser does not depend on the start v."""
        return v_step(self.b, self.curvature, self.basis, target, rho)


@dataclass(frozen=True)
class DifferentiableLoss:
    """Any F_i that torch can differentiate; its v step is eq. (14), `n_steps` times with step size `rate`.

    `function` takes v (..., M, k) and returns each client's loss (..., M); client i's value may depend on v_i only.
    """

    function: Callable[[Tensor], Tensor]
    rate: float
    n_steps: int = 1

    def value(self, v: Tensor) -> Tensor:
        """F_i(v_i)."""
        return self.function(v)

    def gradient(self, v: Tensor) -> Tensor:
        """∂F_i/∂v_i, itself differentiable where v is."""
        with torch.enable_grad():
            at = v if v.requires_grad else v.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.function(at).sum(), at, create_graph=v.requires_grad)
        return slope

    def v_step(self, v: Tensor, target: Tensor, rho: Tensor) -> Tensor:
        """Eq. (14)."""
        for _ in range(self.n_steps):
            v = v_gradient_step(v, target, rho, self.gradient, self.rate)
        return v
