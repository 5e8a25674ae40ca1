"""Table III: electricity forecasting on real meters, with all clients, with some a round, and for newcomers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from learn2pfed.algorithms.registry import BASELINES
from learn2pfed.errors import Learn2pFedError
from learn2pfed.experiments.base import Column, Done, Task, over_clients, rows_of
from learn2pfed.experiments.comparing import FOR_NUMBERS, Comparison, fit, looks, never_joined, spaces_of
from learn2pfed.experiments.power_methods import (
    LINEAR,
    LSTM,
    SOLVERS,
    Made,
    algorithm_of,
    learn2pfed_linear,
    learn2pfed_on_body,
    series_of,
)
from learn2pfed.experiments.power_study import (
    HISTORIES,
    SCARCE,
    SETTINGS,
    TUNING_SEED,
    WITH_NETWORKS,
    BodySettings,
    PowerConfig,
    Study,
    loads_at,
    loads_of,
    study_of,
)
from learn2pfed.results.records import Detail, Row, rounded
from learn2pfed.search import Space, search_space
from learn2pfed.unrolled.settings import Settings

TITLES = {
    "naive": "Seasonal naive",
    "least-squares": "Least squares, alone",
    "ridge": "Ridge, alone",
    "global": "Least squares, together",
    **{name: BASELINES[name].title for name in FOR_NUMBERS},
    "learn2pfed": "Learn2pFed",
}
"""In the order of the table."""

POINTS = 6
"""Rounds after which the first trial is looked at."""


ABOUT: tuple[tuple[Collection[str], str], ...] = (
    (
        SETTINGS,
        "The next record of real meters from the day before and from the same hour of the days of a week, each meter "
        "in units of its own training part, cut 9:1 in time.",
    ),
    (("1",), "Setting 1: the most distinct meters, all take part."),
    (("2",), "Setting 2: all meters, some of them a round."),
    (
        WITH_NETWORKS,
        "There every baseline runs with the paper's LSTM on the lags in their order, and with a linear model on the "
        "same lags; Learn2pFed on the lags, and as the head on the lags and on an LSTM's features.",
    ),
    (
        HISTORIES,
        "Setting 3: newcomers with one day, three days, one week of rows to learn from (the lags of these rows reach a "
        "week further back), after the others have learned; they follow the others' model as far as the learned "
        "participation says, and errors are theirs.",
    ),
    (
        (SCARCE,),
        "Scarce: 672 rows to learn from (`scarce_rows`) at the source's own clock; of quarters of an hour a week.",
    ),
    (SETTINGS, "Errors are after the last round, each in units of the records that the client learned from."),
)
"""Sentences, and the settings that they are about."""


def _about(settings: Collection[str]) -> str:
    """What these settings are."""
    return " ".join(sentence for about, sentence in ABOUT if any(setting in about for setting in settings))


class PowerExperiment(Comparison):
    """Table III."""

    name = "power"
    title = "Electricity forecasting"
    about = _about(SETTINGS)
    validation = "log of the RMSE on the last tenth of the training records, mean over settings 1 and 2"
    tuning = (
        "Settings were tuned on the last tenth of the training records of the 20 meters that come along (setting 1) "
        "and of 60 Swiss households (setting 2), both together, with as many trials for every method."
    )
    config_class = PowerConfig
    costs_by_setting = True
    titles = TITLES
    presets = {  # noqa: RUF012
        "quick": {"n_rounds": 20, "batch_size": 128, "n_joining": 5, "n_seeds": 3},
        "households": {
            "n_rounds": 20,
            "batch_size": 128,
            "crowd": "households",
            "settings": ("1", "2", SCARCE, *HISTORIES),
        },
        "paper": {"n_rounds": 500, "source": "ecl", "crowd": "ecl", "minutes": 15},
    }

    def variants(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """The LSTM, and the linear model."""
        return LSTM, LINEAR

    def introduction(self, settings: Collection[str]) -> str:
        """Of the settings that were run."""
        return _about(settings) or self.about

    def notes(self, config: PowerConfig) -> list[str]:
        """Sources, and the meters that a rule dropped, for all settings or for some."""
        used = {setting: config.source if setting == "1" else config.crowd for setting in config.settings}
        found = []
        for source in dict.fromkeys(used.values()):
            loads = loads_at(source, None)
            found += loads.words
            only: dict[str, dict[str, None]] = {}  # what is so in some settings: in which
            for setting in (setting for setting, own in used.items() if own == source):
                for line in loads_of(config, setting).words[1:]:
                    if line not in loads.words:
                        only.setdefault(line, {})[setting.partition(":")[0]] = None
            found += [f"Setting {', '.join(settings)}: {line}" for line, settings in only.items()]
        return found

    def tasks(self, config: PowerConfig) -> list[Task]:
        """Method by method, quickest first."""
        self.refuse_unknown(config.algorithms)
        strange = [setting for setting in config.settings if setting not in SETTINGS]
        if strange:
            raise Learn2pFedError(f"settings: unknown {strange[0]!r}; there are {', '.join(SETTINGS)}.")
        for setting in config.settings:  # refuses what can't be, before anything runs
            study_of(config, setting, config.first_seed)
        found = [
            Task(setting, title, seed)
            for title, name, variant in self._rows(config)
            for setting in config.settings
            for seed in config.seeds
            if (variant == LINEAR and name == "learn2pfed") or not variant or setting in WITH_NETWORKS
            if not (setting in WITH_NETWORKS and name == "ridge")
        ]
        if not found:
            raise Learn2pFedError(
                "There is nothing to do: baselines run in settings 1 and 2, ridge in the others, the rest in all."
            )
        return found

    def _rows(self, config: PowerConfig) -> list[tuple[str, str, str]]:
        """Title, method and variant, in the order in which they run."""
        quick = [(TITLES[name], name, "") for name in SOLVERS if name in config.algorithms]
        slow = [name for name in ("learn2pfed", *FOR_NUMBERS) if name in config.algorithms]
        return quick + [(f"{TITLES[name]}, {variant}", name, variant) for variant in (LINEAR, LSTM) for name in slow]

    def run(self, config: PowerConfig, task: Task) -> Done:
        """Fit and judge on the last tenth."""
        _, name, variant = next(row for row in self._rows(config) if row[0] == task.algorithm)
        study = study_of(config, task.setting, task.seed)
        made = self.made(config, name, variant, study, task.seed, first=task.seed == config.first_seed)
        rows = study.judged
        rmse = np.sqrt(made.mse)
        measured = over_clients("RMSE", rmse, [len(rows.test.times)] * len(rmse), larger_is_better=False)
        if rows.unit is not None:
            measured[f"RMSE in {rows.unit}"] = float((rmse * rows.scale).mean())
        if study.join < 1:
            measured |= never_joined(made.outcome)
        series = dict(made.series)
        if task.seed == config.first_seed:
            series["errors"] = rounded(rmse.tolist())
        detail = Detail(**task._asdict(), series=series) if series else None
        return Done(rows_of(task, made.outcome, made.seconds, measured), detail)

    def made(self, config: PowerConfig, name: str, variant: str, study: Study, seed: int, first: bool = False) -> Made:
        """What a method gives on a study."""
        if name in SOLVERS:
            return SOLVERS[name](config, study, seed)
        if name == "learn2pfed":
            return (learn2pfed_on_body if variant == LSTM else learn2pfed_linear)(config, study, seed)
        algorithm = algorithm_of(config, name, variant, seed, study)
        at = looks(config.n_rounds, POINTS) if first else ()
        fitted = fit(algorithm, config.engine, series_of(study.rows.train), series_of(study.rows.test), at)
        return Made(fitted.marks, fitted.outcome, fitted.seconds, fitted.series)

    def tunable(self, config: PowerConfig) -> dict[str, Space]:
        """Learn2pFed, the LSTM under its head, and every baseline with either model."""
        networks = bool(WITH_NETWORKS & set(config.settings))
        spaces: dict[str, Space] = {}
        if "learn2pfed" in config.algorithms:
            spaces = {"learn2pfed": search_space(Settings)} | ({"body": search_space(BodySettings)} if networks else {})
        return spaces | (spaces_of(("linear", "lstm"), FOR_NUMBERS, config.algorithms) if networks else {})

    def untunable(self, config: PowerConfig) -> str:
        """Other settings than 1 and 2 have no say."""
        known = WITH_NETWORKS & set(config.settings)
        return "" if known else "power is tuned in settings 1 and 2: name one of them."

    def also_set(self, config: PowerConfig) -> tuple[str, ...]:
        """The epochs where some take part."""
        some = "learn2pfed" in config.algorithms and set(config.settings) - {"1", SCARCE}
        return ("crowd_epochs",) if some else ()

    def validate(self, config: PowerConfig, key: str) -> float:
        """log RMSE on the last tenth of the training records, averaged over settings 1 and 2."""
        group, _, name = key.partition(".")
        name, variant = {"learn2pfed": ("learn2pfed", LINEAR), "body": ("learn2pfed", LSTM)}.get(
            group, (name, LSTM if group == "lstm" else LINEAR)
        )
        found = []
        for setting in ("1", "2"):
            if setting in config.settings:
                study = study_of(config, setting, TUNING_SEED, tuning=True)
                found.append(np.log(np.sqrt(self.made(config, name, variant, study, TUNING_SEED).mse).mean()))
        return float(np.mean(found))

    def columns(self, rows: Sequence[Row]) -> list[Column]:
        """Each metric over the settings, in their order."""
        metrics = list(dict.fromkeys(row.metric for row in rows))
        return sorted(
            super().columns(rows), key=lambda column: (metrics.index(column.metric), SETTINGS.index(column.setting))
        )
