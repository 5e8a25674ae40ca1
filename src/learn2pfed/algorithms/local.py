"""What a client does at home: batches, gradients, descent. For one client, or for several on a leading axis.

Algorithms are written once: `x`, `w`, `v` are (P,) for one client and (m, P) for m clients, and every method here
gives back what it was given. Batches come from (seed, round, client), so that every engine draws the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from learn2pfed.algorithms.settings import RoundSettings
from learn2pfed.models.network import Network, Part
from learn2pfed.search import Span
from learn2pfed.tasks import Task

BATCHES, ASIDE = 1, 2
"""Keep draws for different ends apart."""


class LocalSettings(RoundSettings):
    """Rounds in which clients descend on their loss; the defaults are the protocol of the Learn2pFed paper."""

    epochs: int = Field(2, ge=0, description="E, passes over the client's rows a round")
    optimizer: Literal["sgd", "adam"] = Field("adam", description="of the local steps")
    lr: Annotated[float, Span(1e-3, 1.0)] = Field(0.01, gt=0, description="its step size")
    momentum: float = Field(0.0, ge=0, lt=1, description="of sgd")
    weight_decay: float = Field(0.0, ge=0, description="added to the gradient, times the parameters")


class Batch(NamedTuple):
    """Rows to take one step on."""

    X: Tensor  # (B, ...) or (m, B, ...)
    y: Tensor  # (B,) or (m, B)
    weight: Tensor | None = None  # (m, B), sums to 1 for each client that has rows here; None: the plain mean
    active: Tensor | None = None  # (m, 1), which clients have rows here; None: all

    @property
    def rows(self) -> Tensor | int:
        """How many there are, (m, 1) where they are weighted."""
        return self.y.shape[-1] if self.weight is None else (self.weight > 0).sum(-1, keepdim=True)

    def keep(self, new: Tensor, old: Tensor) -> Tensor:
        """The new value where the client took part in this step."""
        return new if self.active is None else torch.where(self.active, new, old)


class Memory(NamedTuple):
    """What an optimiser remembers from step to step."""

    first: Tensor  # (..., P): momentum, or Adam's mean of gradients
    second: Tensor  # (..., P): Adam's mean of squared gradients
    steps: Tensor  # (..., 1)


Pull = Callable[[Tensor], Tensor]
"""The gradient of what is added to the loss, at x."""


def towards(anchor: Tensor, strength: float) -> Pull:
    """∇ of (strength / 2) ‖x - anchor‖²."""
    return lambda x: strength * (x - anchor)


@dataclass(frozen=True)
class Optimizer:
    """SGD with momentum, or Adam, as torch has them, written for vectors with or without a client axis."""

    kind: Literal["sgd", "adam"]
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def fresh(self, x: Tensor) -> Memory:
        """Nothing remembered yet; what this optimiser does not need takes no room."""
        none, zero = x.new_zeros(*x.shape[:-1], 0), torch.zeros_like(x)
        first = zero if self.kind == "adam" or self.momentum else none
        return Memory(first, zero if self.kind == "adam" else none, x.new_zeros(*x.shape[:-1], 1))

    def step(self, x: Tensor, gradient: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """x after one step, and what to remember."""
        first, second, steps = memory
        if self.weight_decay:
            gradient = gradient + self.weight_decay * x
        if self.kind == "sgd":
            if not self.momentum:
                return torch.sub(x, gradient, alpha=self.lr), memory
            first = self.momentum * first + gradient
            return torch.sub(x, first, alpha=self.lr), Memory(first, second, steps + 1)
        steps = steps + 1
        first = torch.lerp(first, gradient, 0.1)
        second = 0.999 * second + 0.001 * gradient.square()
        size = (second / (1 - 0.999**steps)).sqrt() + 1e-8
        return x - self.lr / (1 - 0.9**steps) * first / size, Memory(first, second, steps)


@dataclass(frozen=True)
class Local:
    """One client's rows, or those of several on a leading axis, with the network and the loss."""

    network: Network
    task: Task
    X: Tensor  # rows of these clients, perhaps among others'
    y: Tensor
    starts: tuple[int, ...]  # where each client's rows begin
    sizes: tuple[int, ...]  # and how many there are
    clients: tuple[int, ...]  # their numbers in the federation
    axis: bool  # whether tensors have a leading client axis
    seed: int
    round: int
    batch_size: int
    set_aside: float = 0.0  # share of each client's rows that is not trained on

    @property
    def lead(self) -> tuple[int, ...]:
        """(m,) with a client axis, () without."""
        return (len(self.clients),) if self.axis else ()

    @property
    def n(self) -> Tensor:
        """Rows of each client."""
        sizes = torch.tensor(self.sizes)
        return sizes if self.axis else sizes[0]

    def each(self, w: Tensor) -> Tensor:
        """What all were told, once for each client."""
        return w.expand(*self.lead, w.shape[-1])

    def split(self, i: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of client i to train on, and those set aside: evenly spaced in the order of classes, from a drawn start.

        So both parts have the same mix of classes. Else a class of which many rows are set aside would be one of which
        few are trained on, and training would look worse on what is set aside than on anything to come. For the same
        reason no class gives its only row, unless all have only one, and no client. Numbers to predict are no classes.
        """
        rows = np.arange(self.starts[i], self.starts[i] + self.sizes[i])
        if not self.set_aside:
            return rows, rows[:0]
        y, draw = self.y[rows].numpy(), np.random.default_rng([self.seed, self.clients[i], ASIDE])
        mixed = draw.permutation(len(rows))
        place = np.empty(len(rows))
        place[mixed[y[mixed].argsort(kind="stable")]] = np.arange(len(rows)) + draw.random() / self.set_aside
        aside = place * self.set_aside % 1 < self.set_aside
        _, own, counts = np.unique(y, return_inverse=True, return_counts=True)
        if counts.max() > 1 and not self.y.is_floating_point():
            aside &= counts[own] > 1
        aside[place.argmin()] &= not aside.all()  # something is left to train on
        return rows[~aside], rows[aside]

    def _rows(self, i: int, aside: bool) -> NDArray[np.int64]:
        """Rows of client i of which batches are made."""
        seen, others = self.split(i)
        return others if aside and len(others) else seen

    def n_steps(self, epochs: int) -> Tensor:
        """K, the steps of so many passes over the rows to train on, (..., 1)."""
        sizes = [len(self.split(i)[0]) for i in range(len(self.clients))]
        return torch.tensor([epochs * -(-n // min(self.batch_size, n)) for n in sizes]).view(*self.lead, 1)

    def batches(self, epochs: int | None = None, steps: int | None = None, aside: bool = False) -> Iterator[Batch]:
        """So many passes over the rows, each in a new order, or so many steps; a pass may end in a small batch.

        Of the rows to train on, or `aside` of those set aside; where there are none, of all.
        """
        rows = [self._rows(i, aside) for i in range(len(self.clients))]
        draws = [np.random.default_rng([self.seed, self.round, i, BATCHES]) for i in self.clients]
        if steps is not None:
            yield from self._served([self._plan(*of, steps) for of in zip(rows, draws, strict=True)])
        for _ in range(epochs or 0):
            yield from self._served([self._plan(*of) for of in zip(rows, draws, strict=True)])

    def _plan(self, rows: NDArray[np.int64], draw: np.random.Generator, steps: int | None = None) -> NDArray[np.int64]:
        """Rows of each step of one client, (steps, batch size), -1 where a batch is not full; one pass by default."""
        wide = min(self.batch_size, len(rows))
        n_batches = -(-len(rows) // wide)
        passes = 1 if steps is None else -(-steps // n_batches)
        table = np.full((passes, n_batches * wide), -1)
        table[:, : len(rows)] = draw.permuted(np.tile(rows, (passes, 1)), axis=1)
        return table.reshape(-1, wide)[:steps]

    def _served(self, plans: list[NDArray[np.int64]]) -> Iterator[Batch]:
        """The samples of each step; with a client axis, those who have none left wait."""
        if not self.axis:
            for rows in plans[0]:
                chosen = torch.from_numpy(rows[rows >= 0])
                yield Batch(self.X[chosen], self.y[chosen])
            return
        table = np.full((len(plans), max(len(plan) for plan in plans), max(plan.shape[1] for plan in plans)), -1)
        for i, plan in enumerate(plans):
            table[i, : len(plan), : plan.shape[1]] = plan
        at = torch.from_numpy(table)
        present = at >= 0
        counts = present.sum(-1)
        share = present.to(self.network.dtype) / counts.clamp(min=1).unsqueeze(-1)
        at = torch.where(present, at, torch.tensor(self.starts)[:, None, None])  # padding is of the client's own
        whole, everyone = present.all(0).all(-1).tolist(), counts.all(0).tolist()
        for s in range(at.shape[1]):
            weight = None if whole[s] else share[:, s]
            active = None if everyone[s] else counts[:, s, None] > 0
            yield Batch(self.X[at[:, s]], self.y[at[:, s]], weight, active)

    def gradient(self, x: Tensor, batch: Batch, part: Part = "all") -> Tensor:
        """∇ of the mean loss over the batch at x, each client's own; zero outside `part`."""
        tensors, wanted = self.network.leaves(x, part)
        if not wanted:
            return torch.zeros_like(x)
        losses = self.task.losses(self.network.scores(tensors, batch.X), batch.y)
        total = losses.mean(-1).sum() if batch.weight is None else (losses * batch.weight).sum()
        found = torch.autograd.grad(total, list(wanted.values()), allow_unused=True, materialize_grads=True)
        return self.network.flatten(dict(zip(wanted, found, strict=True)))

    def gradient_aside(self, x: Tensor) -> Tensor:
        """∇ of the mean loss over the rows set aside at x, each client's own, no more rows at a time than in a step."""
        total, n = torch.zeros_like(x), torch.zeros_like(x[..., :1])
        for batch in self.batches(1, aside=True):
            total, n = total + batch.rows * self.gradient(x, batch), n + batch.rows
        return total / n

    def descend(
        self,
        x: Tensor,
        batches: Iterator[Batch],
        optimizer: Optimizer,
        pull: Pull | None = None,
        part: Part = "all",
        memory: Memory | None = None,
        shift: Tensor | None = None,
    ) -> tuple[Tensor, Memory]:
        """x ← x - lr · step( ∇f(x; batch) + pull(x) ) + shift for each batch, in `part` alone."""
        x = self.each(x)
        memory = optimizer.fresh(x) if memory is None else memory
        inside = None if part == "all" else self.network.mask(part)
        for batch in batches:
            gradient = self.gradient(x, batch, part)
            if pull is not None:
                gradient = gradient + pull(x)
            new, after = optimizer.step(x, gradient, memory)
            if shift is not None:
                new = new + shift
            if inside is not None:
                new = torch.where(inside, new, x)
            x = batch.keep(new, x)
            memory = after if batch.active is None else Memory(*map(batch.keep, after, memory))
        return x, memory
