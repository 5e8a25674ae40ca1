"""The data of Table III: what can be set, and the rows of every setting."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field

from learn2pfed.data.electricity import load
from learn2pfed.data.forecasting import DAY, Forecasting, changing, chosen, every, forecasting, most_distinct
from learn2pfed.data.loads import Loads
from learn2pfed.errors import Learn2pFedError
from learn2pfed.experiments.base import Config, Trials
from learn2pfed.experiments.comparing import FOR_NUMBERS, OwnSettings, ProtocolConfig, every_method
from learn2pfed.search import Choice, Span
from learn2pfed.unrolled.settings import Settings

HISTORIES = {"3: one day": 1, "3: three days": 3, "3: one week": 7}
"""Newcomers: days of rows that they learn from."""

SCARCE = "scarce"
SETTINGS = ("1", "2", SCARCE, *HISTORIES)

WITH_NETWORKS = {"1", "2"}
"""Where the baselines run, and Learn2pFed on an LSTM."""


def _in_full(settings: tuple[str, ...]) -> tuple[str, ...]:
    """Each once, and all histories where "3" stands."""
    found = [name for setting in settings for name in (HISTORIES if setting == "3" else (setting,))]
    return tuple(dict.fromkeys(found))


class BodySettings(Config):
    """The LSTM under Learn2pFed's head: trained together, then fine-tuned at home."""

    lr: Annotated[float, Span(1e-3, 0.03)] = Field(0.01, gt=0, description="step size of FedAvg")
    ft_lr: Annotated[float, Span(1e-3, 0.03)] = Field(0.01, gt=0, description="step size of fine-tuning")
    ft_epochs: Annotated[int, Choice((2, 5, 10))] = Field(10, ge=0, description="its epochs")
    n_parts: int = Field(4, ge=2, description="networks of a client, each fine-tuned without one stretch of its rows")


class PowerConfig(Trials, ProtocolConfig):
    """What can be set; `lstm.` and `linear.` hold the baselines' own settings with either model."""

    settings: Annotated[tuple[Annotated[str, Field(coerce_numbers_to_str=True)], ...], AfterValidator(_in_full)] = (
        Field(("1", "2", *HISTORIES), min_length=1, description=f"of {', '.join(SETTINGS)}; 3 is its three histories")
    )
    source: str = Field("sample", description="setting 1: sample, ecl, ecl-20, households, or a file")
    crowd: str = Field("sample", description="the other settings: likewise")
    minutes: int = Field(60, ge=1, description="records are brought to this clock; setting scarce keeps the source's")
    horizon: int = Field(1, ge=1, description="records ahead")
    n_days: int = Field(7, ge=1, description="a day of lags, and the same hour of so many days")
    n_distinct: int = Field(5, ge=2, description="clients of setting 1, the most distinct by t-SNE")
    n_joining: int = Field(50, ge=1, description="clients a round in setting 2")
    n_scarce: int = Field(50, ge=2, description="clients of setting scarce, drawn with the trial's seed")
    scarce_rows: int = Field(672, ge=2, description="rows that each of them learns from, with a day of lags")
    newcomers: float = Field(0.2, gt=0, lt=1, description="share of the clients that come later in setting 3")
    hidden: int = Field(32, ge=1, description="units of the LSTM")
    engine: Literal["simulation"] = Field("simulation", description="all clients at once")
    algorithms: tuple[str, ...] = Field(
        ("naive", "least-squares", "ridge", "global", *FOR_NUMBERS, "learn2pfed"),
        min_length=1,
        description="methods (--algorithms)",
    )
    learn2pfed: Settings = Settings(refit="exact", n_repeats=3)
    crowd_epochs: int = Field(600, ge=0, description="epochs of Learn2pFed where only some clients take part in each")
    body: BodySettings = BodySettings()
    lstm: Annotated[OwnSettings, BeforeValidator(every_method(FOR_NUMBERS))] = Field({}, validate_default=True)
    linear: Annotated[OwnSettings, BeforeValidator(every_method(FOR_NUMBERS))] = Field({}, validate_default=True)


@cache
def loads_at(source: str, minutes: int | None) -> Loads:
    """By name or from a file; on its own clock without minutes."""
    found = load(source)
    return found if minutes is None else every(found, minutes)


def loads_of(config: PowerConfig, setting: str, until: float = 1.0) -> Loads:
    """Of a setting: on its clock, without meters that never change in what its shortest history has of them."""
    if setting == SCARCE:
        return changing(loads_at(config.crowd, None), config.horizon, 1, until, config.scarce_rows)
    loads = loads_at(config.source if setting == "1" else config.crowd, config.minutes)
    rows = min(HISTORIES.values()) * DAY // loads.minutes if setting in HISTORIES else None
    return changing(loads, config.horizon, config.n_days, until, rows)


class Study(NamedTuple):
    """The data of one trial."""

    rows: Forecasting
    join: float  # share of the clients that take part in a round
    newcomers: Forecasting | None = None  # setting 3: who come after the others have learned
    apart: Forecasting | None = None  # setting 1: the meters that take no part
    plane: NDArray[np.float64] | None = None  # setting 1: t-SNE map of all meters
    picked: tuple[int, ...] = ()  # the meters on it that take part

    @property
    def judged(self) -> Forecasting:
        """Of whom the errors are: in setting 3 the newcomers."""
        return self.rows if self.newcomers is None else self.newcomers


TUNING_SEED = 500
"""Draws the meters on which settings are tuned, where not all are."""

TUNING_CLIENTS = 60
"""Meters of setting 2 on which settings are tuned; as large a share of them takes part in a round."""


def study_of(config: PowerConfig, setting: str, seed: int, tuning: bool = False) -> Study:
    """The rows of a setting; to tune, without the last tenth of the records, and with fewer clients in setting 2."""
    until = 0.9 if tuning else 1.0

    def cut(loads: Loads, n_days: int = config.n_days, rows: int | None = None) -> Forecasting:
        return forecasting(loads, config.horizon, n_days, until=until, rows=rows)

    loads = loads_of(config, setting, until)
    n_meters = len(loads.names)
    if n_meters < 2:
        raise Learn2pFedError(f"{loads.source} has one usable meter, {loads.names[0]!r}: give others to learn with.")
    if setting == "1":
        picked, plane = most_distinct(loads, config.n_distinct)
        others = [i for i in range(n_meters) if i not in picked]
        apart = cut(chosen(loads, others)) if others else None
        return Study(cut(chosen(loads, picked)), 1.0, apart=apart, plane=plane, picked=picked)
    if setting == SCARCE:
        drawn = np.random.default_rng(seed).choice(n_meters, min(config.n_scarce, n_meters), False)
        return Study(cut(chosen(loads, drawn.tolist()), 1, config.scarce_rows), 1.0)
    join = min(1.0, config.n_joining / n_meters)
    if setting == "2":
        if tuning and n_meters > TUNING_CLIENTS:
            drawn = np.random.default_rng(TUNING_SEED).choice(n_meters, TUNING_CLIENTS, replace=False)
            loads, join = chosen(loads, drawn.tolist()), max(join, 1 / TUNING_CLIENTS)
        return Study(cut(loads), join)
    order = np.random.default_rng([seed, 1]).permutation(n_meters).tolist()
    n_new = max(1, round(config.newcomers * n_meters))
    if n_new >= n_meters:
        raise Learn2pFedError(
            f"newcomers = {config.newcomers} of {n_meters} clients leaves nobody to learn from: set newcomers lower."
        )
    late = cut(chosen(loads, order[:n_new]), rows=HISTORIES[setting] * DAY // loads.minutes)
    return Study(cut(chosen(loads, order[n_new:])), join, late)
