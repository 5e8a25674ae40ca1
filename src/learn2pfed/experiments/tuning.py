"""Tuning on validation data: the same number of trials for every method, the first with its defaults."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import BaseModel

from learn2pfed.errors import DivergenceError, Learn2pFedError
from learn2pfed.experiments.base import Config, Experiment
from learn2pfed.experiments.registry import find, put
from learn2pfed.search import Choice, Space, Span


class Trial(BaseModel):
    """Values, and what they gave on validation data; None where the models left the finite numbers."""

    values: dict[str, Any]
    error: float | None


class Tuned(BaseModel):
    """All trials of one method."""

    method: str
    trials: list[Trial]

    @property
    def best(self) -> Trial:
        """The first trial with the smallest error."""
        found = [(trial.error, place) for place, trial in enumerate(self.trials) if trial.error is not None]
        if not found:
            raise Learn2pFedError(f"{self.method}: no trial stayed within the finite numbers: narrow its search.")
        return self.trials[min(found)[1]]


class Tunings(BaseModel):
    """`trials.json`."""

    experiment: str
    preset: str
    n_trials: int
    versions: dict[str, str]
    config: dict[str, Any]
    tuned: list[Tuned] = []


class Search(NamedTuple):
    """One method to tune."""

    method: str
    space: Space


def searches(experiment: Experiment, config: Config) -> list[Search]:
    """Every method that can be tuned."""
    found = [Search(*item) for item in experiment.tunable(config).items()]
    if not found:
        raise Learn2pFedError(f"{experiment.name} has nothing to tune.")
    return found


def tune(name: str, config: dict[str, Any], n_trials: int, search: Search) -> Tuned:
    """So many trials of one method: its defaults first, then what a tree-structured Parzen estimator proposes."""
    import optuna  # here, as it takes long and only tuning needs it

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    experiment = find(name)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.enqueue_trial({key: _at(config, f"{search.method}.{key}") for key in search.space})
    trials = []
    for _ in range(n_trials):
        trial = study.ask()
        values = {key: _suggest(trial, key, where) for key, where in search.space.items()}
        chosen = experiment.config_class.model_validate(config).model_dump()
        for key, value in values.items():
            put(chosen, f"{search.method}.{key}", value)
        try:
            error = experiment.validate(experiment.config_class.model_validate(chosen), search.method)
            study.tell(trial, error)
            trials.append(Trial(values=values, error=error))
        except DivergenceError:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            trials.append(Trial(values=values, error=None))
    return Tuned(method=search.method, trials=trials)


def _suggest(trial: Any, key: str, where: Span | Choice) -> Any:
    if isinstance(where, Span):
        return float(f"{trial.suggest_float(key, where.low, where.high, log=True):.4g}")
    return trial.suggest_categorical(key, where.options)


def _at(tree: dict[str, Any], name: str) -> Any:
    for part in name.split("."):
        tree = tree[part]
    return tree


def chosen_values(tunings: Tunings) -> dict[str, Any]:
    """The best trial of each method, as a tree of tables: what a tuned file says."""
    tree: dict[str, Any] = {}
    for tuned in tunings.tuned:
        table = tree
        for part in tuned.method.split("."):
            table = table.setdefault(part, {})
        table.update({key: "none" if value is None else value for key, value in tuned.best.values.items()})
    return tree
