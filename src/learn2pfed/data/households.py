"""The Swiss households: elcons_15min.rda of an R package."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd

from learn2pfed.data.archives import opened
from learn2pfed.data.loads import Loads, counted, kept
from learn2pfed.data.sources import HOUSEHOLDS
from learn2pfed.errors import Learn2pFedError

MINUTES = 15
WEEK = 7 * 24 * 60 // MINUTES
"""Records of a week."""


def read_households(path: Path) -> Loads:
    """elcons_15min.rda of the R package ResidentialEnergyConsumption, in its .tar.gz or alone: kWh of a quarter.

    One table a week, w44 to w50 of a year that is not given, from Monday 0:00, and in each a row per household: VID,
    its pseudonym, and V001 to V672. Weeks that follow one another make one stretch: where one ends the next goes on.
    """
    with opened(path, HOUSEHOLDS.file) as stream:
        found = _r_objects(path, stream)
    weeks = found.get("elcons_15min")
    if not isinstance(weeks, dict) or not weeks or not all(isinstance(each, pd.DataFrame) for each in weeks.values()):
        raise Learn2pFedError(f"{path} holds no elcons_15min, a table for each week: give {HOUSEHOLDS.file}.")
    tables = {str(week): _week(path, str(week), frame) for week, frame in weeks.items()}
    first, *_ = tables.values()
    for week, table in tables.items():
        strange = first.index.symmetric_difference(table.index)
        if len(strange):
            raise Learn2pFedError(
                f"{path}: {len(strange)} households are not in every week, the first {strange[0]} (week {week}): give "
                "the file as its source ships it."
            )
    numbers = [int(re.sub(r"\D", "", week) or -1) for week in tables]
    twice = sum(map(len, weeks.values())) - sum(map(len, tables.values()))
    notes = [f"{counted(twice, 'row')} there twice, with the same loads: kept once"] if twice else []
    steps = [later - week if later > week else 2 for week, later in pairwise(numbers)]  # a new year: who knows how far
    gaps = sum(step > 1 for step in steps)
    notes += [f"{counted(gaps, 'gap')} between weeks"] if gaps else []
    return kept(
        Loads(
            tuple(map(str, first.index)),
            np.concatenate([table.loc[first.index].to_numpy(np.float32) for table in tables.values()], axis=1),
            MINUTES,
            None,
            "kWh",
            "Swiss households, ResidentialEnergyConsumption 1.1.0 (CRAN), Hopf, Weigert, Staake (2021), CC BY-SA 4.0",
            (WEEK * np.cumsum([0, *steps])[:, None] + np.arange(WEEK)).flatten(),
            {},
            tuple(notes),
        )
    )


def _r_objects(path: Path, stream: IO[bytes]) -> Mapping[str, object]:
    """What an .rda file holds, by name; it is parsed as data, no code of it runs."""
    try:
        import rdata
    except ImportError as error:
        raise Learn2pFedError(f"{path} is a file of R: pip install 'learn2pfed[households]' to read it.") from error
    try:
        found: Mapping[str, object] = rdata.read_rda(stream)
    except Exception as error:  # a damaged file makes the parser stumble anywhere
        raise Learn2pFedError(f"{path} is truncated, damaged or no .rda file ({error}): get it again.") from error
    return found


def _week(path: Path, week: str, frame: pd.DataFrame) -> pd.DataFrame:
    """A week's loads, a row per household."""
    wanted = ["VID", *(f"V{place:03d}" for place in range(1, WEEK + 1))]
    if list(frame.columns) != wanted:
        raise Learn2pFedError(
            f"{path}: week {week} has {frame.shape[1]} columns, not VID and V001 to V{WEEK}: give the file as its "
            "source ships it."
        )
    table = frame.drop_duplicates().set_index("VID")
    if table.index.has_duplicates:
        twice = table.index[table.index.duplicated()][0]
        raise Learn2pFedError(f"{path}: household {twice} is twice in week {week} with other loads: keep one.")
    if not all(dtype.kind in "iuf" for dtype in table.dtypes):
        raise Learn2pFedError(
            f"{path}: week {week} has text where loads should be: give the file as its source ships it."
        )
    return table
