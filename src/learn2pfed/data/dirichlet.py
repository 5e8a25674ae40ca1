"""How many images of each class a client gets, by a Dirichlet draw, and which of a client's images are held out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from learn2pfed.errors import Learn2pFedError

DRAWS = 20_000
"""Tries to give every client enough: a thousand are common at 100 clients and beta = 0.1."""

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Rule(NamedTuple):
    """One way to share images out."""

    capped: bool  # whether who has an equal share already gets nothing of the classes that follow
    least: Callable[[int, int], int]  # images that n of them and M clients leave each client at least
    held_out: Callable[[NDArray[Any], Generator], Mask]  # which of one client's images are for testing, by their labels
    validates: bool  # whether a part of the training images is set aside


def stratified(share: float) -> Callable[[NDArray[Any], Generator], Mask]:
    """This share, at least one, class by class.

    Each class gives its share rounded down; what is missing is given, one each, by the classes that were rounded most,
    ties drawn. No class gives its last image, unless every class has only one: what is judged was seen in training.
    """

    def held_out(labels: NDArray[Any], rng: Generator) -> Mask:
        _, own, counts = np.unique(labels, return_inverse=True, return_counts=True)
        spare = counts - 1 if counts.max() > 1 else counts
        total = min(max(1, round(share * len(labels))), spare.sum())
        given = np.floor(share * counts).astype(np.int64)
        tie = rng.random(len(counts)) * 1e-9
        while given.sum() < total:
            given[np.where(given < spare, share * counts - given + tie, -np.inf).argmax()] += 1
        mask = np.zeros(len(labels), dtype=np.bool_)
        for k, count in enumerate(given):
            mask[rng.permutation(np.flatnonzero(own == k))[:count]] = True
        return mask

    return held_out


def quarter(rounded: Callable[[float], Any]) -> Callable[[NDArray[Any], Generator], Mask]:
    """One in four, rounded up or down, whatever the classes."""

    def held_out(labels: NDArray[Any], rng: Generator) -> Mask:
        return rng.permutation(len(labels)) < int(rounded(len(labels) / 4))

    return held_out


RULES = {
    # Ours: Dir(beta) per class, cut where the rising sum of shares falls; a fifth for testing.
    "dirichlet": Rule(False, lambda n, M: 40, stratified(0.2), True),
    # PFLlib's: capped; at least 40 images, or half an equal share; a quarter for testing, whatever the classes.
    "pfllib": Rule(True, lambda n, M: min(40, -(-n // (2 * M))), quarter(np.ceil), False),
    # FL-bench's: not capped; at least 10 images; a quarter for testing, whatever the classes.
    "fl-bench": Rule(False, lambda n, M: 10, quarter(np.floor), False),
}


def shares(sizes: NDArray[Any], n_clients: int, beta: float, capped: bool, rng: Generator) -> Indices:
    """How many of each class, of these sizes, go to each client, (classes, M): one draw.

    Class after class: shares from Dir(beta), with a cap none for clients that hold n/M already, are summed up, times
    the size of the class, and rounded down: there the shuffled class is cut, and the last client takes the rest.
    """
    counts = np.zeros((len(sizes), n_clients), dtype=np.int64)
    for k, size in enumerate(sizes):
        share = rng.dirichlet(np.full(n_clients, beta))
        if capped:
            share = share * (counts.sum(0) < sizes.sum() / n_clients)
        total = share.sum()
        if not total > 0:
            return np.zeros_like(counts)  # so small a beta that nobody is left: a draw without a result
        cuts = (np.cumsum(share / total)[:-1] * size).astype(np.int64)
        counts[k] = np.diff(cuts, prepend=0, append=size)
    return counts


def shares_of_enough(
    sizes: NDArray[Any], n_clients: int, beta: float, capped: bool, least: int, rng: Generator
) -> Indices:
    """The first draw in which every client has enough."""
    n, needed, best = int(sizes.sum()), least * n_clients, 0
    for _ in range(DRAWS if n >= needed else 0):
        counts = shares(sizes, n_clients, beta, capped, rng)
        smallest = int(counts.sum(0).min())
        if smallest >= least:
            return counts
        best = max(best, smallest)
    why = f"that takes {needed}" if n < needed else f"in {DRAWS:,} draws the smallest client had {best} at best"
    raise Learn2pFedError(
        f"{n} images can't be shared among {n_clients} clients at beta = {beta} with at least {least} each ({why}): "
        "take fewer clients, more images, a larger beta, or with the rule dirichlet a smaller min_size."
    )
