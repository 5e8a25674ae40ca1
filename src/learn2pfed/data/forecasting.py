"""Load curves as rows to learn from: what was, to what comes next, each meter in units of its own.

A row's target is the load at time t, `horizon` records after the last that is known. Its features are the day that ends
with that last record, and the load at the target's hour of day 2, 3, .. 7 days before. Mean and standard deviation of a
meter come from the records of its training part alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from learn2pfed.data.federated import FederatedData
from learn2pfed.data.loads import Loads
from learn2pfed.errors import Learn2pFedError

DAY = 24 * 60
"""Minutes."""


def lags_of(minutes: int, horizon: int = 1, n_days: int = 7) -> tuple[int, ...]:
    """How many records before the target each feature lies: a whole day, then the target's hour of days 2 to `n_days`.

    >>> lags_of(60)[:2], lags_of(60)[-7:], lags_of(360, horizon=2, n_days=2)
    ((1, 2), (24, 48, 72, 96, 120, 144, 168), (2, 3, 4, 5, 8))
    """
    day = DAY // minutes
    known = [horizon + step for step in range(day)]
    return (*known, *(days * day for days in range(2, n_days + 1) if days * day > known[-1]))


def every(loads: Loads, minutes: int) -> Loads:
    """On a coarser clock: energy (kWh) adds up, power and standardised loads are averaged."""
    if minutes == loads.minutes:
        return loads
    if minutes % loads.minutes or DAY % minutes:
        raise Learn2pFedError(
            f"minutes = {minutes} is no multiple of the {loads.minutes} minutes of {loads.source} that divides a day."
        )
    n = minutes // loads.minutes
    if any(place % n for place in loads.stretches):
        raise Learn2pFedError(f"{loads.source} has breaks inside {minutes} minutes: keep minutes = {loads.minutes}.")
    whole = loads.values.shape[1] // n * n
    parts = loads.values[:, :whole].reshape(len(loads.names), -1, n)
    values = parts.sum(2) if loads.unit == "kWh" else parts.mean(2)
    stretches = tuple(place // n for place in loads.stretches if place < whole)
    return replace(loads, values=values.astype(np.float32), minutes=minutes, stretches=stretches)


def chosen(loads: Loads, clients: Sequence[int]) -> Loads:
    """Some of the meters."""
    names = tuple(loads.names[i] for i in clients)
    return replace(loads, names=names, values=loads.values[list(clients)])


PART = 2**23
"""Numbers in the rows that are made at once."""


@dataclass(frozen=True)
class Windows:
    """Rows of standardised curves, made when they are needed; feature 0 is the constant 1, the others are the lags."""

    names: tuple[str, ...]
    curves: NDArray[np.float32]  # (M, T)
    lags: tuple[int, ...]
    times: NDArray[np.int64]  # (n,) of the targets, the same for all

    def __len__(self) -> int:
        """M."""
        return len(self.names)

    @property
    def n_features(self) -> int:
        """k."""
        return 1 + len(self.lags)

    def parts(self) -> Iterator[Sequence[int]]:
        """All clients, a few at a time."""
        most = max(1, PART // (len(self.times) * self.n_features))
        for start in range(0, len(self), most):
            yield range(start, min(start + most, len(self)))

    def subset(self, chosen: Sequence[int]) -> FederatedData:
        """The rows of some of the clients."""
        curves = torch.from_numpy(self.curves[list(chosen)]).double()
        at = torch.from_numpy(self.times)
        X = torch.ones(len(chosen), len(at), self.n_features, dtype=torch.float64)
        for place, lag in enumerate(self.lags):
            X[:, :, 1 + place] = curves[:, at - lag]
        names = tuple(self.names[i] for i in chosen)
        features = ("1", *(f"lag {lag}" for lag in self.lags))
        sizes = (len(at),) * len(chosen)
        return FederatedData(names, X.flatten(0, 1), curves[:, at].flatten(), sizes, features)

    @cached_property
    def all(self) -> FederatedData:
        """The rows of all clients."""
        return self.subset(range(len(self)))


@dataclass(frozen=True)
class Forecasting:
    """What clients learn from and what they are tested on, in standardised units."""

    train: Windows
    test: Windows
    mean: NDArray[np.float64]  # (M,), of each meter's training records
    scale: NDArray[np.float64]  # (M,), their standard deviation
    unit: str | None
    per_day: int  # records

    @property
    def lags(self) -> tuple[int, ...]:
        """How many records before the target each feature lies, the latest first."""
        return self.train.lags

    @property
    def day(self) -> int:
        """Where the feature stands that has the target's hour of the latest day that is known."""
        return 1 + self.lags.index(-(-self.lags[0] // self.per_day) * self.per_day)


def forecasting(
    loads: Loads,
    horizon: int = 1,
    n_days: int = 7,
    test_share: float = 0.1,
    until: float = 1.0,
    rows: int | None = None,
) -> Forecasting:
    """Cut in time: the last `test_share` of the records are tests, the `rows` targets before them train (None: all).

    `until` less than 1 leaves out what comes later altogether, so that settings can be chosen without a look at it.
    """
    if horizon < 1:
        raise Learn2pFedError(f"horizon = {horizon}: forecast at least one record ahead.")
    lags = lags_of(loads.minutes, horizon, n_days)
    n_records = int(loads.values.shape[1] * until)
    cut = n_records - round(n_records * test_share)
    times = _times(loads.stretches, n_records, max(lags))
    train_times, test_times = times[times < cut], times[times >= cut]
    if rows is not None:
        train_times = train_times[-rows:]
    if not len(train_times) or not len(test_times):
        raise Learn2pFedError(
            f"{loads.source}: {n_records} records leave {len(train_times)} rows to learn from and {len(test_times)} to "
            f"test, each needs {max(lags)} records before it: give longer curves."
        )
    first = int(train_times[0]) - max(lags)
    seen = loads.values[:, first:cut].astype(np.float64)
    mean, scale = seen.mean(1), seen.std(1)
    still = np.flatnonzero(scale <= 1e-9 * np.abs(mean))
    if len(still):
        raise Learn2pFedError(
            f"meter {loads.names[still[0]]!r} never changes in its training part ({len(still)} such): leave it out."
        )
    curves = ((loads.values[:, :n_records] - mean[:, None]) / scale[:, None]).astype(np.float32)
    train, test = (Windows(loads.names, curves, lags, times) for times in (train_times, test_times))
    return Forecasting(train, test, mean, scale, loads.unit, DAY // loads.minutes)


def _times(stretches: Sequence[int], n_records: int, reach: int) -> NDArray[np.int64]:
    """Targets whose features lie in the same unbroken stretch."""
    ends = (*stretches[1:], n_records)
    found = [np.arange(start + reach, min(end, n_records)) for start, end in zip(stretches, ends, strict=True)]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def most_distinct(loads: Loads, n: int, seed: int = 0) -> tuple[tuple[int, ...], NDArray[np.float64]]:
    """The n meters that lie farthest apart on a t-SNE map of their average week, and the map, (M, 2).

    Each profile is the mean load by hour of the week over the training part, standardised. On the map, the first is
    the one farthest from the middle, and each next the one farthest from those that are chosen already.
    """
    from sklearn.manifold import TSNE  # here, as it takes long to import

    n_meters = len(loads.names)
    if not 1 <= n <= n_meters:
        raise Learn2pFedError(f"{n} meters are asked for where {loads.source} has {n_meters}.")
    week = 7 * DAY // loads.minutes
    training = loads.values[:, : int(loads.values.shape[1] * 0.9)]
    weeks = training[:, : training.shape[1] // week * week].reshape(n_meters, -1, week)
    if not weeks.shape[1]:
        raise Learn2pFedError(f"{loads.source} has less than a week to learn from: a profile needs one.")
    profile = weeks.mean(1).astype(np.float64)
    profile = (profile - profile.mean(1, keepdims=True)) / profile.std(1, keepdims=True).clip(1e-12)
    if n_meters < 4:
        return tuple(range(n)), np.zeros((n_meters, 2))
    around = min(30.0, (n_meters - 1) / 3)
    plane = TSNE(perplexity=around, init="pca", random_state=seed).fit_transform(profile).astype(np.float64)
    picked = [int(np.linalg.norm(plane - plane.mean(0), axis=1).argmax())]
    while len(picked) < n:
        nearest = np.linalg.norm(plane[:, None] - plane[picked], axis=2).min(1)
        picked.append(int(nearest.argmax()))
    return tuple(sorted(picked)), plane
