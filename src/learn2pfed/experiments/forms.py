"""One method in several forms, on the images of Table IV."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from learn2pfed.algorithms.rounds import Rounds
from learn2pfed.experiments.base import Column, Done, Experiment, Task, rows_of
from learn2pfed.experiments.comparing import Fitted, fit, looks
from learn2pfed.experiments.shared_images import (
    POINTS,
    QUICK,
    Study,
    columns_of,
    leave_parts,
    measures,
    notes_of,
    refuse_draws,
    refuse_missing,
    study_of,
)
from learn2pfed.results.records import Detail, Row

Form = Callable[[Study, int], Rounds]
"""The method for images and a seed."""


class Forms(Experiment):
    """Who has what, protocol and judging are those of `learn2pfed run images`."""

    tuned_as = "images"
    notes_stand_apart = True
    in_titles: ClassVar[tuple[str, ...]]  # what can be set that the title of a form says
    presets = {"quick": QUICK, "paper": {"n_rounds": 500}}  # noqa: RUF012

    @abstractmethod
    def forms(self, config: Any) -> Mapping[str, Form]:
        """By the titles of the table's rows."""

    @abstractmethod
    def beside(self, algorithm: Rounds, fitted: Fitted) -> dict[str, float]:
        """What is measured besides accuracy and bytes."""

    def tasks(self, config: Any) -> list[Task]:
        """Setting by setting."""
        refuse_missing(config.data)
        refuse_draws(config)
        forms = self.forms(config)
        for setting in config.names().values():  # refuses what can't be, before anything runs
            study = study_of(config, setting, config.first_seed)
            for form in forms.values():
                form(study, config.first_seed).check(study.train)
        return [Task(*each) for each in product(config.names(), forms, config.seeds)]

    def run(self, config: Any, task: Task) -> Done:
        """Fit, and judge on the test images."""
        study = study_of(config, config.names()[task.setting], task.seed)
        algorithm = self.forms(config)[task.algorithm](study, task.seed)
        n_rounds = algorithm.settings.n_rounds
        at = looks(n_rounds, POINTS) if task.seed == config.first_seed else ()
        fitted = fit(algorithm, config.engine, study.train, study.judged, at)
        measured = measures(fitted, study, n_rounds) | self.beside(algorithm, fitted)
        detail = Detail(**task._asdict(), series=fitted.series) if fitted.series else None
        return Done(rows_of(task, fitted.outcome, fitted.seconds, measured), detail)

    def behind(self, config: Mapping[str, Any], task: Task) -> Any:
        """Neither other settings nor other forms."""
        apart = {"n_seeds", "data", "betas", "clients", *self.in_titles}
        return {name: value for name, value in config.items() if name not in apart}

    def notes(self, config: Any) -> list[str]:
        """Which file says who has what."""
        return notes_of(config)

    def leave(self, config: Any, folder: Path) -> None:
        """Who had which images."""
        leave_parts(config, folder)

    def rank(self, algorithm: str) -> float:
        """In the order in which they ran."""
        return 0.0

    def columns(self, rows: Sequence[Row]) -> list[Column]:
        """Each metric over the settings."""
        return columns_of(rows)
