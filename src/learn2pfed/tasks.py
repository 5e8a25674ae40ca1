"""What is learned: the loss that trains, and the number that judges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from learn2pfed.data.federated import ClientData, Samples
from learn2pfed.errors import Learn2pFedError


class Task(Protocol):
    """A loss per sample and a metric."""

    metric: ClassVar[str]
    larger_is_better: ClassVar[bool]

    @property
    def n_outputs(self) -> int:
        """Scores per sample."""

    def check(self, samples: Samples | ClientData) -> None:
        """Refuse targets that are not of this task."""

    def losses(self, scores: Tensor, y: Tensor) -> Tensor:
        """Loss of each sample, (..., n), from scores (..., n, outputs)."""

    def marks(self, scores: Tensor, y: Tensor) -> Tensor:
        """What is averaged over a client's samples, (n,)."""

    def value(self, mean_mark: Tensor) -> Tensor:
        """The metric, from a client's mean mark."""


@dataclass(frozen=True)
class Regression:
    """Squared error; judged by its root."""

    metric: ClassVar[str] = "RMSE"
    larger_is_better: ClassVar[bool] = False

    @property
    def n_outputs(self) -> int:
        """One number."""
        return 1

    def check(self, samples: Samples | ClientData) -> None:
        """Numbers that are finite."""
        if not samples.y.is_floating_point():
            raise Learn2pFedError(
                f"Regression needs targets of a floating-point type, got {samples.y.dtype}: convert them, "
                "as by y.float(); for classes use Classification."
            )
        if not bool(torch.isfinite(samples.y).all()):
            raise Learn2pFedError("Regression needs finite targets; some are missing or infinite: fill or drop those.")

    def losses(self, scores: Tensor, y: Tensor) -> Tensor:
        """(score - y)²."""
        return (scores.squeeze(-1) - y).square()

    def marks(self, scores: Tensor, y: Tensor) -> Tensor:
        """(score - y)²."""
        return self.losses(scores, y)

    def value(self, mean_mark: Tensor) -> Tensor:
        """The root of the mean."""
        return mean_mark.sqrt()


@dataclass(frozen=True)
class Classification:
    """Cross-entropy; judged by accuracy."""

    n_classes: int
    metric: ClassVar[str] = "accuracy"
    larger_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.n_classes < 2:
            raise Learn2pFedError(f"Classification needs at least two classes, got {self.n_classes}.")

    @property
    def n_outputs(self) -> int:
        """One score a class."""
        return self.n_classes

    def check(self, samples: Samples | ClientData) -> None:
        """Classes 0 .. C-1."""
        y = samples.y
        if y.dtype != torch.int64 or int(y.min()) < 0 or int(y.max()) >= self.n_classes:
            raise Learn2pFedError(
                f"Classification needs targets 0 to {self.n_classes - 1} as torch.int64, "
                f"got {y.dtype} from {y.min().item()} to {y.max().item()}."
            )

    def losses(self, scores: Tensor, y: Tensor) -> Tensor:
        """-log softmax(scores)_y."""
        flat = functional.cross_entropy(scores.flatten(0, -2), y.flatten(), reduction="none")
        return flat.view(y.shape)

    def marks(self, scores: Tensor, y: Tensor) -> Tensor:
        """1 where the largest score is the true class."""
        return (scores.argmax(-1) == y).to(scores.dtype)

    def value(self, mean_mark: Tensor) -> Tensor:
        """The share that is right."""
        return mean_mark
