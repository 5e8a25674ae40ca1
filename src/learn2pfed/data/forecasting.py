"""Load curves as rows to learn from: what was, to what comes next, each meter in units of its own.

A row's target is the load at time t, `horizon` records after the last that is known. Its features are the day that ends
with that last record, and the load at the target's hour of day 2, 3, .. 7 days before. Mean and standard deviation of a
meter come from the records of its training part alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from learn2pfed.data.federated import FederatedData
from learn2pfed.data.loads import STILL, Loads, counted, without
from learn2pfed.errors import Learn2pFedError

DAY = 24 * 60
"""Minutes."""

TEST = 0.1
"""The share of the records, the last ones, that are tests."""


def lags_of(minutes: int, horizon: int = 1, n_days: int = 7) -> tuple[int, ...]:
    """How many records before the target each feature lies: a whole day, then the target's hour of days 2 to `n_days`.

    >>> lags_of(60)[:2], lags_of(60)[-7:], lags_of(360, horizon=2, n_days=2)
    ((1, 2), (24, 48, 72, 96, 120, 144, 168), (2, 3, 4, 5, 8))
    """
    day = DAY // minutes
    known = [horizon + step for step in range(day)]
    return (*known, *(days * day for days in range(2, n_days + 1) if days * day > known[-1]))


def every(loads: Loads, minutes: int) -> Loads:
    """On a coarser clock: energy (kWh) adds up, power and standardised loads are averaged.

    Its steps are counted from the first record; of one that a break cuts into, and of a last one that is not whole, the
    records are left out, and counted in `notes`.
    """
    if minutes == loads.minutes:
        return loads
    if minutes % loads.minutes or DAY % minutes:
        raise Learn2pFedError(
            f"minutes = {minutes} is no multiple of the {loads.minutes} minutes of {loads.source} that divides a day: "
            f"set minutes to {loads.minutes} or to such a multiple."
        )
    n = minutes // loads.minutes
    parts, clock = _whole(loads.values, loads.clock, n)
    values = parts.sum(2) if loads.unit == "kWh" else parts.mean(2)
    left = len(loads.clock) - n * len(clock)
    notes = (
        [f"{counted(left, 'record')} left out: of steps of {minutes} minutes that a break or the end cuts"]
        if left
        else []
    )
    return replace(loads, values=values.astype(np.float32), minutes=minutes, clock=clock, notes=(*loads.notes, *notes))


def _whole(
    values: NDArray[np.float32], clock: NDArray[np.int64], n: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Records (M, parts, n) of those n steps of the clock of which none is missing, and which n steps these are."""
    part, count = np.unique(clock // n, return_counts=True)
    inside = np.repeat(count == n, count)
    return values[:, inside].reshape(len(values), -1, n), part[count == n]


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


class Cut(NamedTuple):
    """Which records are for what."""

    n_records: int  # what comes later is left out
    lags: tuple[int, ...]
    train: NDArray[np.int64]  # times of the targets
    test: NDArray[np.int64]
    seen: slice  # the records that units come from: the training targets, their lags, and all in between


def _cut(loads: Loads, horizon: int, n_days: int, test_share: float, until: float, rows: int | None) -> Cut:
    """As `forecasting` says."""
    if horizon < 1:
        raise Learn2pFedError(f"horizon = {horizon}: forecast at least one record ahead.")
    lags = lags_of(loads.minutes, horizon, n_days)
    n_records = int(loads.values.shape[1] * until)
    cut = n_records - round(n_records * test_share)
    times = _times(loads.stretches, n_records, max(lags))
    train, test = times[times < cut], times[times >= cut]
    if rows is not None:
        train = train[-rows:]
    if not len(train) or not len(test):
        raise Learn2pFedError(
            f"{loads.source}: {n_records} records leave {len(train)} rows to learn from and {len(test)} to test, each "
            f"needs {max(lags)} records before it without a break: give longer curves."
        )
    return Cut(n_records, lags, train, test, slice(int(train[0]) - max(lags), cut))


def _still(loads: Loads, cut: Cut) -> NDArray[np.bool_]:
    """Which meters never change in the records that units come from."""
    seen = loads.values[:, cut.seen]
    still: NDArray[np.bool_] = seen.min(1) == seen.max(1)
    return still


def changing(loads: Loads, horizon: int = 1, n_days: int = 7, until: float = 1.0, rows: int | None = None) -> Loads:
    """Without the meters that never change in the records that `forecasting` takes units from."""
    cut = _cut(loads, horizon, n_days, TEST, until, rows)
    found = without(loads, {STILL: _still(loads, cut)})
    reach = max(cut.lags)
    lost = cut.n_records - reach - len(_times(loads.stretches, cut.n_records, reach))
    notes = (f"{counted(lost, 'row')} left out: lags over a break",) if lost else ()
    return replace(found, notes=(*found.notes, *notes))


def forecasting(
    loads: Loads,
    horizon: int = 1,
    n_days: int = 7,
    test_share: float = TEST,
    until: float = 1.0,
    rows: int | None = None,
) -> Forecasting:
    """Cut in time: the last `test_share` of the records are tests, the `rows` targets before them train (None: all).

    `until` less than 1 leaves out what comes later altogether, so that settings can be chosen without a look at it.
    """
    cut = _cut(loads, horizon, n_days, test_share, until, rows)
    still = np.flatnonzero(_still(loads, cut))
    if len(still):
        raise Learn2pFedError(
            f"meter {loads.names[still[0]]!r} never changes in its training part ({len(still)} such): leave it out."
        )
    seen = loads.values[:, cut.seen].astype(np.float64)
    mean, scale = seen.mean(1), seen.std(1)
    curves = ((loads.values[:, : cut.n_records] - mean[:, None]) / scale[:, None]).astype(np.float32)
    train, test = (Windows(loads.names, curves, cut.lags, times) for times in (cut.train, cut.test))
    return Forecasting(train, test, mean, scale, loads.unit, DAY // loads.minutes)


def _times(stretches: Sequence[int], n_records: int, reach: int) -> NDArray[np.int64]:
    """Targets whose features lie in the same unbroken stretch."""
    ends = (*stretches[1:], n_records)
    found = [np.arange(start + reach, min(end, n_records)) for start, end in zip(stretches, ends, strict=True)]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def most_distinct(loads: Loads, n: int, seed: int = 0) -> tuple[tuple[int, ...], NDArray[np.float64]]:
    """The n meters that lie farthest apart on a t-SNE map of their average week, and the map, (M, 2).

    Each profile is the mean load by hour of the week, over the weeks of the training part that no break cuts into,
    standardised. On the map, the first is
    the one farthest from the middle, and each next the one farthest from those that are chosen already.
    """
    from sklearn.manifold import TSNE  # here, as it takes long to import

    n_meters = len(loads.names)
    if not 1 <= n <= n_meters:
        raise Learn2pFedError(
            f"{n} meters are asked for where {loads.source} has {n_meters}: set n_distinct to {n_meters} or less, or "
            "leave out setting 1."
        )
    week = 7 * DAY // loads.minutes
    training = int(loads.values.shape[1] * 0.9)
    weeks, _ = _whole(loads.values[:, :training], loads.clock[:training], week)
    if not weeks.shape[1]:
        raise Learn2pFedError(
            f"{loads.source} has no week without a break to learn from, counted from its first record, which the map "
            "of setting 1 needs: leave out setting 1 or mend the records."
        )
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
