"""Who gets which images, for training, validation and testing: made by a rule, or read from a file.

All randomness comes from (seed, purpose) or (seed, client, purpose).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import default_rng
from numpy.typing import NDArray

from learn2pfed.data.dirichlet import RULES, Indices, Mask, shares_of_enough, stratified
from learn2pfed.data.federated import Samples
from learn2pfed.data.images import Images
from learn2pfed.data.ways import beside, writing
from learn2pfed.errors import Learn2pFedError, instead

PARTS = ("train", "validation", "test")

VALIDATION_SHARE = 0.15
"""Of a client's training images."""

FEWEST = 4
"""Images that can be parted, by every rule."""

CHOOSING, SHARING, SHUFFLING, TESTING, VALIDATING, FILLING = range(11, 17)
"""Purposes, which keep draws apart."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Each client's images, by their places among all: no image twice, no part empty, except validation for all."""

    train: tuple[Indices, ...]
    validation: tuple[Indices, ...]
    test: tuple[Indices, ...]

    def __post_init__(self) -> None:
        if not len(self.train) == len(self.validation) == len(self.test) > 0:
            sizes = ", ".join(f"{part} for {len(getattr(self, part))}" for part in PARTS)
            raise Learn2pFedError(f"there is {sizes} clients: give every client every part.")
        for name, rows in self.lists():
            if rows.ndim != 1 or rows.dtype.kind not in "iu":
                raise Learn2pFedError(f"{name} is no list of whole numbers: give places of images.")
            if not len(rows):
                raise Learn2pFedError(f"{name} is empty: give every client at least one image there.")
        places, counts = np.unique(np.concatenate([rows for _, rows in self.lists()]), return_counts=True)
        if places[0] < 0:
            raise Learn2pFedError(f"{self._holders(places[0])} has image {places[0]}: places count from 0.")
        if counts.max() > 1:
            twice = places[counts.argmax()]
            raise Learn2pFedError(f"image {twice} is twice in {self._holders(twice)}: give it to one client once.")

    def __len__(self) -> int:
        """M."""
        return len(self.train)

    @property
    def validates(self) -> bool:
        """Whether there is a validation part."""
        return any(len(rows) for rows in self.validation)

    def lists(self) -> Iterator[tuple[str, Indices]]:
        """All index lists with their names: train0, .., validation0, .. where there is such a part, test0, .."""
        for part in PARTS:
            if part != "validation" or self.validates:
                yield from ((f"{part}{i}", rows) for i, rows in enumerate(getattr(self, part)))

    def _holders(self, place: int) -> str:
        return " and ".join(name for name, rows in self.lists() if place in rows)

    def check(self, n_images: int) -> None:
        """Refuse places beyond so many images."""
        last = max(int(rows.max()) for _, rows in self.lists())
        if last >= n_images:
            raise Learn2pFedError(
                f"{self._holders(last)} has image {last}, but there are only {n_images}, counted from 0: give the "
                "images that the partition was made for."
            )

    def counts(self, labels: NDArray[Any]) -> Indices:
        """How many images of each class each client has, all parts together, (classes, M)."""
        self.check(len(labels))
        every = (np.concatenate(parts) for parts in zip(self.train, self.validation, self.test, strict=True))
        return np.stack([np.bincount(labels[rows], minlength=int(labels.max()) + 1) for rows in every], 1)

    def with_validation(self, labels: NDArray[Any], seed: int, share: float = VALIDATION_SHARE) -> Partition:
        """This share of each client's training images, class by class, set aside; a validation part of old goes."""
        self.check(len(labels))
        held_out = stratified(share)
        masks = [held_out(labels[rows], default_rng([seed, i, VALIDATING])) for i, rows in enumerate(self.train)]
        train, validation = _parted(self.train, masks)
        return replace(self, train=train, validation=validation)

    def without_validation(self) -> Partition:
        """The validation part goes back to training."""
        if not self.validates:
            return self
        train = tuple(np.sort(np.concatenate(pair)) for pair in zip(self.train, self.validation, strict=True))
        return replace(self, train=train, validation=(np.empty(0, dtype=np.int64),) * len(self))

    def save(self, path: Path) -> None:
        """As .npz, without pickle."""
        path, lists = Path(path), dict[str, Any](self.lists())
        with writing(path, "choose another place"), beside(path) as whole:
            with whole.open("wb") as file:
                np.savez_compressed(file, **lists)
            os.replace(whole, path)

    @classmethod
    def load(cls, path: Path, n_images: int | None = None) -> Partition:
        """What `save` wrote, or train0, .., test0, .. from elsewhere; checked against the number of images, if any."""
        lists = _index_lists(Path(path))
        parts = {part for part, _ in lists} | {"train", "test"}
        n_clients = 1 + max(i for _, i in lists)
        missing = [f"{part}{i}" for i in range(n_clients) for part in PARTS if part in parts and (part, i) not in lists]
        if missing:
            raise Learn2pFedError(f"{path} lacks {missing[0]}: give every client from 0 to {n_clients - 1} every part.")
        none = np.empty(0, dtype=np.int64)
        try:
            found = cls(*(tuple(lists.get((part, i), none) for i in range(n_clients)) for part in PARTS))
            if n_images is not None:
                found.check(n_images)
        except Learn2pFedError as error:
            raise Learn2pFedError(f"{path}: {error}") from error
        return found


def _index_lists(path: Path) -> dict[tuple[str, int], NDArray[Any]]:
    """The arrays of an .npz by part and client; whole numbers of any width as int64."""
    try:
        with path.open("rb") as file, np.load(file) as held:
            arrays = {name: held[name] for name in held.files}
    except FileNotFoundError as error:
        raise Learn2pFedError(f"there is no file {path}: check the path.") from error
    except PermissionError as error:
        raise Learn2pFedError(f"{path} can't be read: check who may read it.") from error
    except Exception as error:  # whatever numpy may say of a file that is none of its own
        raise Learn2pFedError(f"{path} is no .npz of index lists, or damaged: make it again.") from error
    lists = {}
    for name, rows in arrays.items():
        if not isinstance(rows, np.ndarray):
            raise Learn2pFedError(f"{path} holds {name!r}, which is no array: make it again.")
        known = re.fullmatch(rf"({'|'.join(PARTS)})(0|[1-9]\d{{0,5}})", name)
        if known is None:
            raise Learn2pFedError(
                f"{path} holds {name!r}: index lists are called train0, validation0, test0, train1 and so on."
            )
        lists[known[1], int(known[2])] = rows.astype(np.int64) if rows.dtype.kind in "iu" else rows
    if not lists:
        raise Learn2pFedError(f"{path} holds nothing: make it again.")
    return lists


def partition(
    labels: NDArray[Any],
    n_clients: int,
    beta: float,
    rule: str = "dirichlet",
    seed: int = 0,
    min_size: int | None = None,
    n_images: int | None = None,
    among: Indices | None = None,
) -> Partition:
    """Share images out among clients: the smaller beta, the fewer classes has each.

    The rule is "dirichlet", our own, or that of a library, "pfllib" or "fl-bench" (see `RULES`). Draws are repeated
    until every client has `min_size` images: 40, or what the library has for it. With `n_images` only so many take
    part, drawn from all, or from those at the places `among`. Our own rule tests on a fifth of a client's images and
    sets 15 % of the rest aside for validation, both class by class; the libraries test on a quarter, whatever the
    classes, and don't validate.

    >>> made = partition(np.arange(1000) % 10, n_clients=3, beta=0.5)
    >>> int(made.counts(np.arange(1000) % 10).sum())
    1000
    """
    _check(labels if among is None else labels[among], n_clients, beta, rule, seed, min_size, n_images)
    chosen = np.arange(len(labels)) if among is None else among
    if n_images is not None:
        chosen = np.sort(default_rng([seed, CHOOSING]).choice(chosen, n_images, replace=False))
    by = RULES[rule]
    least = max(FEWEST, by.least(len(chosen), n_clients)) if min_size is None else min_size
    classes, sizes = np.unique(labels[chosen], return_counts=True)
    counts = shares_of_enough(sizes, n_clients, beta, by.capped, least, default_rng([seed, SHARING]))
    rng = default_rng([seed, SHUFFLING])
    pieces = [
        np.split(rng.permutation(chosen[labels[chosen] == each]), np.cumsum(row)[:-1])
        for each, row in zip(classes, counts, strict=True)
    ]
    own = tuple(np.sort(np.concatenate(parts)) for parts in zip(*pieces, strict=True))
    masks = [by.held_out(labels[rows], default_rng([seed, i, TESTING])) for i, rows in enumerate(own)]
    train, test = _parted(own, masks)
    made = Partition(train, (np.empty(0, dtype=np.int64),) * n_clients, test)
    return made.with_validation(labels, seed) if by.validates else made


def _check(
    labels: NDArray[Any],
    n_clients: int,
    beta: float,
    rule: str,
    seed: int,
    min_size: int | None,
    n_images: int | None,
) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels) or labels.min() < 0:
        raise Learn2pFedError("labels: give one class, a whole number from 0, for each image.")
    if rule not in RULES:
        raise Learn2pFedError(f"there is no rule {rule!r}: {instead(rule, RULES)}")
    if not (beta > 0 and math.isfinite(beta)):
        raise Learn2pFedError(f"beta = {beta} is no positive number: 0.1 gives a client few classes, 100 gives it all.")
    for name, value, low, high in (
        ("n_clients", n_clients, 1, len(labels)),
        ("seed", seed, 0, None),
        ("min_size", min_size, FEWEST, len(labels)),
        ("n_images", n_images, 1, len(labels)),
    ):
        if value is not None and (value < low or (high is not None and value > high)):
            limits = f"at least {low}" if high is None else f"from {low} to {high}"
            raise Learn2pFedError(f"{name} = {value} can't be: give a whole number {limits}.")


def _parted(own: tuple[Indices, ...], masks: list[Mask]) -> tuple[tuple[Indices, ...], tuple[Indices, ...]]:
    """What is kept and what is held out."""
    pairs = list(zip(own, masks, strict=True))
    return tuple(rows[~mask] for rows, mask in pairs), tuple(rows[mask] for rows, mask in pairs)


def samples(images: Images, partition: Partition, part: str) -> Samples:
    """One part of every client's images, "train", "validation" or "test": pixels as float32 from -1 to 1."""
    if part not in PARTS:
        raise Learn2pFedError(f"there is no part {part!r}: {instead(part, PARTS)}")
    partition.check(len(images))
    if part == "validation" and not partition.validates:
        raise Learn2pFedError("the partition has no validation part: make one by with_validation.")
    return samples_of(images, getattr(partition, part))


def samples_of(images: Images, lists: Sequence[Indices]) -> Samples:
    """Each client's images, by their places."""
    rows = np.concatenate(lists)
    X = torch.from_numpy(images.pixels[rows]).float().div_(127.5).sub_(1)
    names = tuple(f"client {i}" for i in range(len(lists)))
    return Samples(names, X, torch.from_numpy(images.labels[rows]), tuple(len(each) for each in lists))


def filled_up(labels: NDArray[Any], partition: Partition, size: int, among: Indices, seed: int) -> list[Indices]:
    """Test parts of about so many images each: a client's own, and images of `among` that nobody has, in its mix.

    Several clients may get the same image. A class gives no more than it has.
    """
    owned = np.concatenate([rows for _, rows in partition.lists()])
    unowned = np.setdiff1d(among, owned)
    pools = [unowned[labels[unowned] == c] for c in range(int(labels.max()) + 1)]
    found = []
    for i, (own, counts) in enumerate(zip(partition.test, partition.counts(labels).T, strict=True)):
        rng = default_rng([seed, i, FILLING])
        wanted = counts / counts.sum() * max(0, size - len(own))
        rounded = np.floor(wanted + rng.random(len(wanted))).astype(np.int64)
        more = [rng.permutation(pool)[:n] for pool, n in zip(pools, rounded, strict=True)]
        found.append(np.concatenate([own, *more]))
    return found
