"""What a run records: flat rows that any tool can read, and the curves behind its figures."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

DIVERGED = "diverged"
"""The one metric, 1, of a fit that left the finite numbers."""


class Row(BaseModel):
    """One number: which method on which data gave which error, at what cost."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    setting: str
    algorithm: str
    seed: int
    metric: str
    value: float
    seconds: float = Field(description="CPU time of fitting")
    bytes_up: int
    bytes_down: int


class Detail(BaseModel):
    """What a figure needs of one fit: named arrays as lists."""

    setting: str
    algorithm: str
    seed: int
    series: dict[str, Any]


def rounded(values: Any) -> Any:
    """Numbers in nested lists to six significant digits: enough for a figure, and a file that stays small.

    >>> rounded([1.23456789, [1e-9 / 3]])
    [1.23457, [3.33333e-10]]
    """
    return float(f"{values:.6g}") if isinstance(values, float) else [rounded(value) for value in values]


class Results(BaseModel):
    """`results.json`."""

    experiment: str
    preset: str
    versions: dict[str, str]
    config: dict[str, Any]
    tuned: str | None = Field(None, description="the file of --tuned")
    notes: list[str] = Field([], description="of the data: what was dropped or mended, by which rule")
    rows: list[Row] = []

    def done(self) -> set[tuple[str, str, int]]:
        """(setting, algorithm, seed) that are finished."""
        return {(row.setting, row.algorithm, row.seed) for row in self.rows}

    @property
    def made_with(self) -> str:
        """The versions in one line."""
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())

    @property
    def empty(self) -> bool:
        """Whether nothing was measured."""
        return all(row.metric == DIVERGED for row in self.rows)


class Details(BaseModel):
    """`details.json`."""

    details: list[Detail] = []


def versions(*more: str) -> dict[str, str]:
    """Python and the packages that decide the numbers."""
    names = ("learn2pfed", "torch", "numpy", "scipy", *more)
    return {"python": platform.python_version()} | {name: version(name) for name in names}
