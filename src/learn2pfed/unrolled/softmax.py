"""F_i for classification: the negative log-likelihood of a softmax, whose v step is eq. (14) in Böhning's metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from learn2pfed.data.federated import FederatedData
from learn2pfed.errors import DivergenceError, Learn2pFedError
from learn2pfed.unrolled import losses
from learn2pfed.unrolled.cell import v_gradient_step

NEWTON_STEPS = 100
"""More than any problem with a regulariser has been seen to need; most take ten."""


class Rows(NamedTuple):
    """The rows of a block of m clients, padded to n."""

    clients: Tensor  # (m,)
    X: Tensor  # (m, n, k)
    Y: Tensor  # (m, n, 1, C): the class as ones and zeros
    weight: Tensor  # (m, n, S, 1): how often a row counts in each split, 0 for padding


@dataclass(frozen=True)
class SoftmaxLoss:
    """F_i(v) = Σ_rows weight · ( -log p_y(x) + ½ Σ_j ridge_j ‖v_j‖² ),   p(x) = softmax(v x).

    A client's v has C rows of k numbers, one after the other. With two classes it has one row: p_1 = 1/(1 + exp(-v x)).
    The ridge is there because classes that a plane separates have no finite optimum. Once made, the rows are kept: a
    v step needs them.
    """

    rows: tuple[Rows, ...]
    ridge: Tensor  # (k,) by row
    n: Tensor  # (S, M)

    @classmethod
    def of_data(cls, data: FederatedData, weight: Tensor, n_classes: int, ridge: Sequence[float]) -> SoftmaxLoss:
        """All clients; y holds the number of the class, and rows count `weight` times, (S, N)."""
        found = []
        for clients, rows, present in data.blocks:
            label = data.y[rows].long()
            Y = label[..., None] == torch.arange(n_classes) if n_classes > 2 else label[..., None] == 1
            counted = (weight[:, rows] * present).permute(1, 2, 0)
            found.append(Rows(clients, data.X[rows], Y.double().unsqueeze(-2), counted.unsqueeze(-1)))
        n = torch.empty(len(weight), len(data), dtype=torch.float64)
        for part in found:
            n[:, part.clients] = part.weight.sum((1, 3)).T
        return cls(tuple(found), torch.tensor(ridge, dtype=torch.float64), n)

    def pick(self, clients: Tensor) -> SoftmaxLoss:
        """Some of the clients, in rising order; what is decomposed already is not decomposed again."""
        place = torch.full(self.n.shape[1:], -1).index_put((clients,), torch.arange(len(clients)))
        found = []
        for part in self.rows:
            inside = (place[part.clients] >= 0).nonzero().flatten()
            if len(inside):
                found.append(Rows(place[part.clients[inside]], *(rows[inside] for rows in part[1:])))
        some = SoftmaxLoss(tuple(found), self.ridge, self.n[:, clients])
        if "_bound" in self.__dict__:
            some.__dict__["_bound"] = tuple(part[:, clients] for part in self._bound)
        return some

    @property
    def n_outputs(self) -> int:
        """C, or 1 for two classes."""
        return self.rows[0].Y.shape[-1]

    @property
    def shape(self) -> tuple[int, int, int]:
        """S, M, C k."""
        return self.n.shape[0], self.n.shape[1], self.n_outputs * len(self.ridge)

    @property
    def zero(self) -> Tensor:
        """F_i(0): every class alike."""
        return self.value(torch.zeros(self.shape, dtype=torch.float64))

    @cached_property
    def cross(self) -> Tensor:
        """Σ weight x xᵀ, (S, M, k, k)."""
        k = len(self.ridge)
        out = torch.empty(*self.n.shape, k, k, dtype=torch.float64)
        for clients, X, _, weight in self.rows:
            for split in range(len(self.n)):
                out[split, clients] = (X * weight[:, :, split]).mT @ X
        return out

    @property
    def gram(self) -> Tensor:
        """The Hessian at 0 by feature: p (1 - p) XᵀX with p = 1/C."""
        n_classes = max(2, self.n_outputs)
        return (n_classes - 1) / n_classes**2 * self.cross

    def scaled(self, scale: Tensor) -> SoftmaxLoss:
        """With feature j divided by scale_j."""
        rows = tuple(part._replace(X=part.X / scale) for part in self.rows)
        return replace(self, rows=rows, ridge=self.ridge / scale.square())

    def _by_block(self, v: Tensor) -> Iterator[tuple[Rows, Tensor]]:
        """The scores v x of every row and split, (m, n, S, C), block by block."""
        n_splits, n_clients, _ = v.shape
        by_class = v.view(n_splits, n_clients, self.n_outputs, -1)
        for part in self.rows:
            columns = by_class[:, part.clients].permute(1, 3, 0, 2).flatten(2)
            yield part, (part.X @ columns).view(*part.X.shape[:2], n_splits, -1)

    def _in_order(self, parts: list[Tensor]) -> Tensor:
        """Blocks of clients, (S, m, ...), back in the order of the clients."""
        place = torch.cat([part.clients for part in self.rows]).argsort()
        return torch.cat(parts, 1)[:, place]

    def _penalty(self) -> Tensor:
        """ridge by parameter times rows, (S, M, C k)."""
        return self.n.unsqueeze(-1) * self.ridge.repeat(self.n_outputs)

    def value(self, v: Tensor) -> Tensor:
        """F_i(v_i)."""
        parts = []
        for part, score in self._by_block(v):
            if self.n_outputs == 1:
                nll = torch.nn.functional.softplus(score) - part.Y * score
            else:
                nll = score.logsumexp(-1, keepdim=True) - (part.Y * score).sum(-1, keepdim=True)
            parts.append((part.weight * nll).sum((1, 3)).T)
        return self._in_order(parts) + 0.5 * (self._penalty() * v.square()).sum(-1)

    def gradient(self, v: Tensor) -> Tensor:
        """Σ weight x (p - Y), and the ridge's."""
        parts = []
        for part, score in self._by_block(v):
            residual = part.weight * (_chances(score) - part.Y)
            slope = (part.X.mT @ residual.flatten(2)).view(*part.X.shape[::2], *residual.shape[2:])
            parts.append(slope.permute(2, 0, 3, 1).flatten(2))
        return self._in_order(parts) + self._penalty() * v

    def hessian(self, v: Tensor) -> Tensor:
        """Σ weight (diag(p) - p pᵀ) ⊗ x xᵀ, and the ridge's; one split."""
        k, C = len(self.ridge), self.n_outputs
        parts = []
        for part, score in self._by_block(v):
            p, weight = _chances(score)[:, :, 0], part.weight[:, :, 0]
            H = part.X.new_empty(len(part.clients), C, k, C, k)
            for c in range(C):
                for d in range(c + 1):
                    share = (p[..., c] * (1.0 - p[..., d]) if c == d else -p[..., c] * p[..., d]).unsqueeze(-1)
                    H[:, c, :, d] = H[:, d, :, c] = (part.X * share * weight).mT @ part.X
            parts.append(H.view(1, -1, C * k, C * k))
        return self._in_order(parts) + torch.diag_embed(self._penalty())

    @cached_property
    def _bound(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues and vectors of B = ½ XᵀX (¼ for two classes) with the ridge: F_i curves no more than that."""
        ridge = torch.diag_embed(self.n.unsqueeze(-1) * self.ridge)
        curvature, basis = torch.linalg.eigh((0.5 if self.n_outputs > 1 else 0.25) * self.cross + ridge)
        return curvature.clamp_min(0.0), basis

    def v_step(self, v: Tensor, target: Tensor, rho: Tensor) -> Tensor:
        """Eq. (14), once, with the matrix step size (B_i + ρ_i I)⁻¹: it lowers h_i from anywhere, with no rate to tune.

        B_i bounds the Hessian (Böhning 1992), so this is the minimiser of a quadratic that lies above h_i.
        """
        curvature, basis = self._bound

        def rate(slope: Tensor) -> Tensor:
            rotated = slope.view(*slope.shape[:2], self.n_outputs, -1) @ basis
            return ((rotated / (curvature + rho).unsqueeze(-2)) @ basis.mT).flatten(2)

        return v_gradient_step(v, target, rho, self.gradient, rate)

    def parts(self) -> Iterator[tuple[Tensor, SoftmaxLoss]]:
        """A few clients at a time."""
        most = max(1, losses.HESSIANS // self.shape[-1] ** 2)
        for block in self.rows:
            for start in range(0, len(block.clients), most):
                clients, *rest = (part[start : start + most] for part in block)
                yield clients, SoftmaxLoss((Rows(torch.arange(len(clients)), *rest),), self.ridge, self.n[:, clients])

    def follow(self, lam: Tensor, w: Tensor) -> Tensor:
        """argmin F_i(v) + ½ (v - w)ᵀ Λ_i (v - w) by Newton's method, each client's step halved until it lowers."""
        lam = lam.expand(self.shape[1:])
        v = torch.empty(self.shape, dtype=torch.float64)
        for clients, part in self.parts():
            v[:, clients] = part._newton(lam[clients], w.unsqueeze(-2))
        return v

    def _newton(self, lam: Tensor, w: Tensor) -> Tensor:
        """The same for all clients at once."""

        def value(at: Tensor) -> Tensor:
            return self.value(at) + 0.5 * (lam * (at - w).square()).sum(-1)

        v = w.expand(self.shape).clone()
        now = value(v)
        for _ in range(NEWTON_STEPS):
            slope = self.gradient(v) + lam * (v - w)
            step: Tensor = torch.linalg.solve(self.hessian(v) + torch.diag_embed(lam), slope)
            gain = (slope * step).sum(-1)
            if float(gain.max()) <= 1e-18 * (1.0 + float(now.sum())):
                return v - step
            length = torch.ones_like(now)
            for _ in range(40):
                after = value(v - length.unsqueeze(-1) * step)
                short = after > now - 1e-4 * length * gain + 1e-13 * now.abs()
                if not bool(short.any()):
                    break
                length = torch.where(short, length / 2, length)
            v = v - length.unsqueeze(-1) * step
            now = value(v)
        raise DivergenceError(f"A client's model did not settle in {NEWTON_STEPS} steps: look for extreme values in X.")


def _chances(score: Tensor) -> Tensor:
    return score.sigmoid() if score.shape[-1] == 1 else score.softmax(-1)


@dataclass(frozen=True)
class Softmax:
    """Classification into C classes, k parameters a class (k in all for two); `ridge` by feature, per row."""

    n_classes: int
    ridge: tuple[float, ...]
    is_likelihood = True

    def n_parameters(self, n_features: int) -> int:
        """C k, or k for two classes."""
        return n_features * (self.n_classes if self.n_classes > 2 else 1)

    def loss(self, data: FederatedData, weight: Tensor) -> SoftmaxLoss:
        """The rows in blocks."""
        return SoftmaxLoss.of_data(data, weight, self.n_classes, self.ridge)

    def join(self, parts: Sequence[SoftmaxLoss]) -> SoftmaxLoss:
        """Its v step needs the rows themselves, so they can't come and go."""
        raise Learn2pFedError("Classes are learned from the rows themselves: give all of them at once.")

    def by_parameter(self, by_feature: Tensor) -> Tensor:
        """The same for every class."""
        return by_feature.repeat((1,) * (by_feature.ndim - 1) + (self.n_parameters(1),))
