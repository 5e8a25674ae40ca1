"""Load curves of many meters, and the rules by which a meter is dropped: each that goes is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from learn2pfed.errors import Learn2pFedError

LATE = "no load on the first day: starts later"
BROKEN = "missing or infinite values"
CONSTANT = "constant"
STILL = "constant in the records to learn from"
MOSTLY_ZERO = "zero more than half of the time"
NEGATIVE = "negative loads"


@dataclass(frozen=True)
class Loads:
    """Load curves of M meters on one regular clock, T records each."""

    names: tuple[str, ...]
    values: NDArray[np.float32]  # (M, T), finite
    minutes: int  # from one record to the next
    start: pd.Timestamp | None  # of the first record, where the source says
    unit: str | None  # "kW", "kWh"; None where the source is standardised already
    source: str  # what it is, whose, licence
    clock: NDArray[np.int64]  # (T,): how many steps after the first each record stands; it jumps where some are missing
    dropped: Mapping[str, tuple[str, ...]]  # rule -> the meters that it dropped
    notes: tuple[str, ...] = ()  # what else was mended or is odd, counted

    def __post_init__(self) -> None:
        if not self.names:
            rules = ", ".join(f"{len(names)} by {rule!r}" for rule, names in self.dropped.items())
            raise Learn2pFedError(f"No meter of {self.source} is left ({rules}): give a file with usable meters.")

    @property
    def stretches(self) -> tuple[int, ...]:
        """Where an unbroken stretch of records begins; (0,) if there are no breaks."""
        return (0, *(np.flatnonzero(np.diff(self.clock) != 1) + 1).tolist())

    @property
    def words(self) -> list[str]:
        """What a reader must know of these records: how many there are, what was dropped or mended, by which rule."""
        found = [f"{self.source}: {counted(len(self.names), 'meter')}, {counted(len(self.clock), 'record')} each."]
        found += [f"{len(names)} dropped, {rule}: {', '.join(names)}." for rule, names in self.dropped.items()]
        return found + [f"{note}." for note in self.notes]


def counted(n: int, what: str) -> str:
    """So many of them.

    >>> counted(1, "gap"), counted(1234, "gap")
    ('1 gap', '1,234 gaps')
    """
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def kept(loads: Loads, also: Mapping[str, Any] = MappingProxyType({})) -> Loads:
    """Without the meters that a rule of this file drops.

    `also` has further rules, with masks of meters. Standardised loads may be negative.
    """
    values = loads.values
    rules: dict[str, Any] = {CONSTANT: (values == values[:, :1]).all(axis=1), **also}
    rules[BROKEN] = ~np.isfinite(values).all(axis=1)
    if loads.unit is not None:
        rules[MOSTLY_ZERO] = (values == 0).mean(axis=1) > 0.5
        rules[NEGATIVE] = (values < 0).any(axis=1)
    return without(loads, rules)


def without(loads: Loads, rules: Mapping[str, Any]) -> Loads:
    """Without the meters that a rule's mask hits, each named under the first that does."""
    out = np.zeros(len(loads.names), dtype=bool)
    dropped = dict(loads.dropped)
    for rule, hit in rules.items():
        if (hit & ~out).any():
            dropped[rule] = _chosen(loads.names, hit & ~out)
            out |= hit
    values = loads.values[~out] if out.any() else loads.values
    return replace(loads, names=_chosen(loads.names, ~out), values=values, dropped=dropped)


def _chosen(names: Sequence[str], mask: NDArray[np.bool_]) -> tuple[str, ...]:
    return tuple(name for name, chosen in zip(names, mask, strict=True) if chosen)
