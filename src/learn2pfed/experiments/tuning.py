"""Tuning on validation data: the same number of trials for every method, the first with its defaults.

Where an experiment has finalists, the few best trials of a method are tried again on other validation data, which
alone decides between them: the best of many is partly the luckiest, and what made it so does not count twice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from pydantic import BaseModel

from learn2pfed.errors import DivergenceError, Learn2pFedError
from learn2pfed.experiments.base import Config, Experiment
from learn2pfed.experiments.registry import find, put
from learn2pfed.search import Choice, Space, Span


class Trial(BaseModel):
    """Values, and what they gave on validation data; None where the models left the finite numbers.

    `error` is what the experiment's `validate` gives, smaller being better. Its `validation` says what that is: for
    polynomial the logarithm of a mean squared error, which is negative where that is below 1. `again` is what its
    `validate_again` gives: finalists have it.
    """

    values: dict[str, Any]
    error: float | None
    again: float | None = None


class Tuned(BaseModel):
    """All trials of one method."""

    method: str
    trials: list[Trial]

    @property
    def best(self) -> Trial | None:
        """The finalist that did best again, or where there is none the trial with the smallest error, the first of
        equals; none where all left the finite numbers.
        """
        again = [(trial.again, place) for place, trial in enumerate(self.trials) if trial.again is not None]
        once = [(trial.error, place) for place, trial in enumerate(self.trials) if trial.error is not None]
        found = again or once
        return self.trials[min(found)[1]] if found else None

    def finalists(self, n: int) -> list[Trial]:
        """The n trials with the smallest errors."""
        found = [(trial.error, place) for place, trial in enumerate(self.trials) if trial.error is not None]
        return [self.trials[place] for _, place in sorted(found)[:n]]

    def complete(self, n_trials: int, n_finalists: int) -> bool:
        """Whether there is nothing left to try."""
        last = self.finalists(n_finalists)
        return len(self.trials) >= n_trials and all(trial.again is not None for trial in last)


class Tunings(BaseModel):
    """`trials.json`."""

    experiment: str
    preset: str
    n_trials: int
    versions: dict[str, str]
    config: dict[str, Any]
    tuned: list[Tuned]


class Search(NamedTuple):
    """One method to tune."""

    method: str
    space: Space
    known: tuple[Trial, ...] = ()  # its first trials, if they were run before


def searches(experiment: Experiment, config: Config) -> list[Search]:
    """Every method that can be tuned."""
    if why := experiment.untunable(config):
        raise Learn2pFedError(why)
    found = [Search(*item) for item in experiment.tunable(config).items()]
    if not found:
        raise Learn2pFedError(f"{experiment.name} has nothing to tune.")
    return found


def tune(name: str, config: dict[str, Any], n_trials: int, search: Search) -> Tuned:
    """So many trials of one method: what it is set to first, then what a tree-structured Parzen estimator proposes.

    The estimator proposes by the trials alone, so those that are known need not be run again.
    """
    import optuna  # here, as it takes long and only tuning needs it

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    start = {key: _at(config, f"{search.method}.{key}") for key in search.space}
    trials = [_judged(name, config, search, start, 0)]
    with suppress(ValueError):  # a start outside the search says nothing to the estimator
        study.add_trial(
            optuna.trial.create_trial(
                params=trials[0].values,
                distributions={key: _distribution(optuna, where) for key, where in search.space.items()},
                value=trials[0].error,
                state=optuna.trial.TrialState.FAIL if trials[0].error is None else optuna.trial.TrialState.COMPLETE,
            )
        )
    for place in range(1, n_trials):
        trial = study.ask()
        values = {key: _suggest(trial, key, where) for key, where in search.space.items()}
        trials.append(_judged(name, config, search, values, place))
        error = trials[-1].error
        study.tell(trial, error, state=optuna.trial.TrialState.FAIL if error is None else None)
    tuned, experiment = Tuned(method=search.method, trials=trials), find(name)
    while not tuned.complete(n_trials, experiment.finalists):
        finalist = next(found for found in tuned.finalists(experiment.finalists) if found.again is None)
        finalist.again = _error(experiment, experiment.validate_again, config, search, finalist.values)
        if finalist.again is None:
            finalist.error = None  # it left the finite numbers after all
    last = [id(finalist) for finalist in tuned.finalists(experiment.finalists)]
    for tried in tuned.trials:
        tried.again = tried.again if id(tried) in last else None  # of an earlier tuning with fewer trials
    return tuned


def _judged(name: str, config: dict[str, Any], search: Search, values: dict[str, Any], place: int) -> Trial:
    """What these values give on validation data."""
    if search.known[place : place + 1] and search.known[place].values == values:
        return search.known[place].model_copy()
    experiment = find(name)
    return Trial(values=values, error=_error(experiment, experiment.validate, config, search, values))


def _error(
    experiment: Experiment,
    validate: Callable[[Any, str], float],
    config: dict[str, Any],
    search: Search,
    values: dict[str, Any],
) -> float | None:
    """None where the models leave the finite numbers."""
    chosen = experiment.config_class.model_validate(config).model_dump()
    for key, value in values.items():
        put(chosen, f"{search.method}.{key}", value)
    try:
        return validate(experiment.config_class.model_validate(chosen), search.method)
    except DivergenceError:
        return None


def _distribution(optuna: Any, where: Span | Choice) -> Any:
    if isinstance(where, Span):
        return optuna.distributions.FloatDistribution(where.low, where.high, log=True)
    return optuna.distributions.CategoricalDistribution(where.options)


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
        if tuned.best is None:
            continue
        table = tree
        for part in tuned.method.split("."):
            table = table.setdefault(part, {})
        table.update({key: "none" if value is None else value for key, value in tuned.best.values.items()})
    return tree
