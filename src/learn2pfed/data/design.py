"""From a table's columns to what is fitted: standardised features with a column of ones in front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from learn2pfed.errors import Learn2pFedError

CONSTANT = 1e-13
"""A column whose spread is below this share of its mean carries rounding, not information."""


class Design(NamedTuple):
    """x → (1, (x - mean)/spread) and y → (y - level)/unit; columns that never change are left out.

    All four come from sums over rows, hence from sums over clients: Σ n, Σ x, Σ y, then Σ (x - mean)², Σ (y - level)².
    """

    mean: Tensor  # (k,)
    spread: Tensor  # (k,); 0 where the column never changes
    level: Tensor  # ()
    unit: Tensor  # ()

    @classmethod
    def learn(cls, X: Tensor, y: Tensor, names: Sequence[str]) -> Design:
        """Of all rows, (N, k) and (N,); of a target in classes take only the features."""
        mean, level = X.mean(0), y.mean()
        spread, unit = (X - mean).square().mean(0).sqrt(), (y - level).square().mean().sqrt()
        for name, value in (*zip(names, spread.tolist(), strict=True), ("the target", float(unit))):
            if not value < float("inf"):
                raise Learn2pFedError(f"{name} has values too large to be squared: express it in a larger unit.")
        spread = torch.where(spread > CONSTANT * mean.abs(), spread, torch.zeros_like(spread))
        return cls(mean, spread, level, unit if unit > CONSTANT * level.abs() else torch.ones_like(unit))

    @property
    def kept(self) -> Tensor:
        """Which columns change, (k,)."""
        return self.spread > 0

    def features(self, X: Tensor) -> Tensor:
        """(N, k) to (N, 1 + number kept)."""
        standard = (X[:, self.kept] - self.mean[self.kept]) / self.spread[self.kept]
        return torch.cat([torch.ones(len(X), 1, dtype=X.dtype), standard], 1)

    def target(self, y: Tensor) -> Tensor:
        """Centred and scaled."""
        return (y - self.level) / self.unit

    def by_column(self, by_feature: Tensor, missing: float) -> Tensor:
        """(..., 1 + kept) to (..., k + 1): the k columns, `missing` for those left out, and last the intercept."""
        out = by_feature.new_full((*by_feature.shape[:-1], len(self.mean) + 1), missing)
        out[..., :-1][..., self.kept] = by_feature[..., 1:]
        out[..., -1] = by_feature[..., 0]
        return out

    def in_given_units(self, v: Tensor, *, of_target: bool) -> tuple[Tensor, Tensor]:
        """Coefficients (..., k) and intercept (...) for x and y as they were given; `of_target` if y was scaled too."""
        unit, level = (self.unit, self.level) if of_target else (torch.ones(()), torch.zeros(()))
        slopes = self.by_column(v, 0.0)[..., :-1]
        coef = unit * slopes / torch.where(self.kept, self.spread, torch.ones_like(self.spread))
        return coef, level + unit * v[..., 0] - (coef * self.mean).sum(-1)
