"""F_i for a block of clients: squared loss through statistics, and any differentiable loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from learn2pfed.data.federated import FederatedData
from learn2pfed.unrolled.adjoint import Eigen, SquaredPass, split_clients
from learn2pfed.unrolled.cell import Rest, State, Theta, v_gradient_step, v_step


class ClientLoss(Protocol):
    """F_i for a block of clients, with all that learning Θ asks of it. Axes (S, M): splits, clients."""

    @property
    def n(self) -> Tensor:
        """Rows, (S, M)."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """S, M and the number of parameters of a client's model."""

    @property
    def zero(self) -> Tensor:
        """F_i(0), (S, M)."""

    @property
    def gram(self) -> Tensor:
        """Curvature by feature, (S, M, k, k): XᵀX, times what makes it the Hessian of F_i at 0."""

    def value(self, v: Tensor) -> Tensor:
        """F_i(v_i), (S, M)."""

    def gradient(self, v: Tensor) -> Tensor:
        """∂F_i/∂v_i, differentiable."""

    def hessian(self, v: Tensor) -> Tensor:
        """∂²F_i/∂v_i², (S, M, P, P) for P parameters."""

    def pick(self, clients: Tensor) -> Self:
        """The loss of some of the clients."""

    def parts(self) -> Iterator[tuple[Tensor, Self]]:
        """Some clients and their loss, then others, so few at a time that their Hessians fit in memory."""

    def v_step(self, v: Tensor, target: Tensor, rho: Tensor) -> Tensor:
        """Minimise (or lower) F_i(v) + ½ρ_i‖target_i - v‖², starting from v."""

    def follow(self, lam: Tensor, w: Tensor) -> Tensor:
        """The minimiser of F_i(v) + ½ (v - w)ᵀ Λ_i (v - w) for each client, (S, M, P): its model, given the others'."""

    def scaled(self, scale: Tensor) -> Self:
        """The same rows with feature j divided by scale_j (so that v_j is multiplied by it)."""


L = TypeVar("L", bound=ClientLoss)
L_co = TypeVar("L_co", bound=ClientLoss, covariant=True)


class Family(Protocol[L_co]):
    """A kind of loss: what a model is, and how F_i is made from rows."""

    @property
    def is_likelihood(self) -> bool:
        """Whether F is a negative log-likelihood as it stands; squared loss is one only up to the noise."""

    def n_parameters(self, n_features: int) -> int:
        """P, the length of v."""

    def loss(self, data: FederatedData, weight: Tensor) -> L_co:
        """F_i over rows that count `weight` times, (S, N)."""

    def join(self, parts: Sequence[Any]) -> L_co:
        """The losses of some clients and of others, side by side."""

    def by_parameter(self, by_feature: Tensor) -> Tensor:
        """A value per feature, (..., k), as one per parameter, (..., P)."""


HESSIANS = 2**25
"""Numbers in the Hessians of clients that are solved at once."""


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
    def of_data(cls, data: FederatedData, weight: Tensor) -> SquaredLoss:
        """The statistics of all clients, rows counting `weight` times, (S, N): a few products a block of clients."""
        n_splits, k = len(weight), data.n_features
        A = torch.empty(n_splits, len(data), k, k, dtype=torch.float64)
        b, c, n = A.new_empty(n_splits, len(data), k), A.new_empty(n_splits, len(data)), A.new_empty(A.shape[:2])
        for clients, rows, present in data.blocks:
            X, y = data.X[rows], data.y[rows]
            for split in range(n_splits):
                counted = weight[split, rows] * present
                weighted = (X * counted.unsqueeze(-1)).mT
                A[split, clients] = weighted @ X
                b[split, clients] = (weighted @ y.unsqueeze(-1)).squeeze(-1)
                c[split, clients] = (counted * y.square()).sum(-1)
                n[split, clients] = counted.sum(-1)
        return cls(A, b, c, n)

    @classmethod
    def stack(cls, parts: Sequence[SquaredLoss]) -> SquaredLoss:
        """Put parts side by side on a new leading axis."""
        return cls(*(torch.stack([getattr(part, name) for part in parts]) for name in ("A", "b", "c", "n")))

    def __add__(self, other: SquaredLoss) -> SquaredLoss:
        """The statistics of both sets of rows together."""
        return SquaredLoss(self.A + other.A, self.b + other.b, self.c + other.c, self.n + other.n)

    def scaled(self, scale: Tensor) -> SquaredLoss:
        """The same rows with feature j divided by scale_j (so that v_j is multiplied by it)."""
        return SquaredLoss(self.A / (scale[:, None] * scale), self.b / scale, self.c, self.n)

    @property
    def shape(self) -> tuple[int, int, int]:
        """S, M, k."""
        n_splits, n_clients, k = self.b.shape
        return n_splits, n_clients, k

    @property
    def zero(self) -> Tensor:
        """F_i(0) = ½ YᵀY."""
        return self.c / 2

    @property
    def gram(self) -> Tensor:
        """XᵀX."""
        return self.A

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

    def gradient(self, v: Tensor) -> Tensor:
        """A v - b."""
        return (self.A @ v.unsqueeze(-1)).squeeze(-1) - self.b

    def hessian(self, v: Tensor) -> Tensor:
        """A, wherever v is."""
        return self.A

    def parts(self) -> Iterator[tuple[Tensor, SquaredLoss]]:
        """A few clients at a time; the tensors are views."""
        n_clients, k = self.shape[1:]
        most = max(1, HESSIANS // k**2)
        for start in range(0, n_clients, most):
            few = slice(start, start + most)
            clients = torch.arange(start, min(start + most, n_clients))
            yield clients, SquaredLoss(self.A[:, few], self.b[:, few], self.c[:, few], self.n[:, few])

    def follow(self, lam: Tensor, w: Tensor) -> Tensor:
        """(A_i + Λ_i)⁻¹ (b_i + Λ_i w)."""
        regularised = self.A + torch.diag_embed(lam.expand(self.b.shape))
        v: Tensor = torch.linalg.solve(regularised, self.b + lam * w.unsqueeze(-2))
        return v

    def pick(self, clients: Tensor) -> SquaredLoss:
        """Some of the clients; what is decomposed already is not decomposed again."""
        some = SquaredLoss(self.A[:, clients], self.b[:, clients], self.c[:, clients], self.n[:, clients])
        if "_eigen" in self.__dict__:
            some.__dict__["_eigen"] = tuple(part[:, clients] for part in self._eigen)
        return some

    def cells(
        self, thetas: Sequence[Theta], state: State, w: Tensor, detach: bool = False, rest: Rest | None = None
    ) -> tuple[State, Tensor]:
        """L cells as a single node of the autograd graph; cells may share a Θ."""
        distinct = list({id(theta): theta for theta in thetas}.values())
        which = [next(at for at, other in enumerate(distinct) if other is theta) for theta in thetas]
        node: Any = SquaredPass.apply
        *after, w = node(
            self._blocks, which, detach, rest, *state, w, *(group for theta in distinct for group in theta)
        )
        return State(*after), w

    @cached_property
    def _blocks(self) -> list[Eigen]:
        parts = (split_clients(self.b), split_clients(self.curvature), split_clients(self.basis, -3))
        return [Eigen(*(tensor.contiguous() for tensor in part)) for part in zip(*parts, strict=True)]

    def v_step(self, v: Tensor, target: Tensor, rho: Tensor) -> Tensor:
        """Eq. (10); the exact minimiser does not depend on the start v."""
        return v_step(self.b, self.curvature, self.basis, target, rho)


@dataclass(frozen=True)
class Squared:
    """Regression: F_i(v) = ½‖X_i v - Y_i‖², one parameter a feature."""

    is_likelihood = False

    def n_parameters(self, n_features: int) -> int:
        """k."""
        return n_features

    def loss(self, data: FederatedData, weight: Tensor) -> SquaredLoss:
        """Statistics, once."""
        return SquaredLoss.of_data(data, weight)

    def join(self, parts: Sequence[SquaredLoss]) -> SquaredLoss:
        """Side by side."""
        return SquaredLoss(*(torch.cat([getattr(part, name) for part in parts], 1) for name in ("A", "b", "c", "n")))

    def by_parameter(self, by_feature: Tensor) -> Tensor:
        """As it is."""
        return by_feature


SQUARED = Squared()


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
