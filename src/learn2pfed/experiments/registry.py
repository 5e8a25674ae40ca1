"""Every experiment by name, and the runner that does its tasks on all cores."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from learn2pfed.errors import DivergenceError, Learn2pFedError, instead, sentence
from learn2pfed.experiments.ablation import AblationExperiment
from learn2pfed.experiments.base import Config, Done, Experiment, Task
from learn2pfed.experiments.checkpoints import kept_in
from learn2pfed.experiments.images import ImagesExperiment
from learn2pfed.experiments.joining import JoiningExperiment
from learn2pfed.experiments.layers import LayersExperiment
from learn2pfed.experiments.panels import PanelsExperiment
from learn2pfed.experiments.polynomial import PolynomialExperiment, QualityExperiment
from learn2pfed.experiments.power import PowerExperiment
from learn2pfed.experiments.processes import spread
from learn2pfed.experiments.resources import ResourcesExperiment
from learn2pfed.experiments.sharing import SharingExperiment
from learn2pfed.experiments.start_layer import StartLayerExperiment
from learn2pfed.results.records import DIVERGED, Row

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        PolynomialExperiment(),
        AblationExperiment(),
        LayersExperiment(),
        QualityExperiment(),
        PanelsExperiment(),
        PowerExperiment(),
        JoiningExperiment(),
        ImagesExperiment(),
        SharingExperiment(),
        StartLayerExperiment(),
        ResourcesExperiment(),
    )
}


def find(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise Learn2pFedError(f"There is no experiment {name!r}; {instead(name, EXPERIMENTS)}")
    return EXPERIMENTS[name]


def configure(
    experiment: Experiment, preset: str, changes: dict[str, Any], tuned: dict[str, Any] | None = None
) -> Config:
    """A preset, with tuned values (those that come along, if not given), with changes; names are dotted if nested."""
    if preset not in experiment.presets:
        raise Learn2pFedError(f"{experiment.name} has no preset {preset!r}; {instead(preset, experiment.presets)}")
    tuned = tuned_for(experiment) if tuned is None else tuned
    try:
        chosen = experiment.config_class.model_validate(experiment.presets[preset]).model_dump()
        for name, value in (tuned | changes).items():
            put(chosen, name, value)
        return experiment.config_class.model_validate(chosen)
    except ValidationError as error:
        raise Learn2pFedError(sentence(error)) from error


def tuned_file(experiment: Experiment) -> Path:
    """Where the values that were tuned for an experiment are kept."""
    return Path(__file__).parent / "tuned" / f"{experiment.tuned_as or experiment.name}.toml"


def tuned_for(experiment: Experiment, file: Path | None = None) -> dict[str, Any]:
    """The tuned values that come along, by dotted name, and on top of them those of a file."""
    along = tuned_values(tuned_file(experiment))
    if experiment.tuned_as:
        plain = experiment.config_class().model_dump()
        along = {name: value for name, value in along.items() if _has(plain, name)}
    return along | (tuned_values(file) if file else {})


def _has(tree: dict[str, Any], name: str) -> bool:
    """Whether the nested tables have the dotted name.

    >>> _has({"own": {"ditto": {"lam": 1.0}}}, "own.ditto.lam"), _has({"own": {}}, "own.ditto.lam")
    (True, False)
    """
    part, _, rest = name.partition(".")
    inside = tree.get(part)
    return part in tree if not rest else isinstance(inside, dict) and _has(inside, rest)


def tuned_values(file: Path) -> dict[str, Any]:
    """What a tuned file says, by dotted name; nothing where there is no such file."""
    try:
        content = tomllib.loads(file.read_text()) if file.exists() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise Learn2pFedError(
            f"{file} is not a file of tuned values ({error}): make one with learn2pfed tune."
        ) from error

    def walk(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, value in tree.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{name}.")
            else:
                yield prefix + name, None if value == "none" else value

    return dict(walk(content, ""))


def parse(text: str) -> Any:
    """A value as typed: TOML where it is such, `none`, text otherwise.

    >>> parse("3"), parse("[1, 2]"), parse("none"), parse("equal")
    (3, [1, 2], None, 'equal')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return None if text.strip() == "none" else text.strip()


def differences(
    experiment: Experiment, preset: str, config: dict[str, Any], tuned: dict[str, Any] | None = None
) -> list[str]:
    """The NAME=VALUE that lead from the preset with tuned values to this configuration."""
    plain = configure(experiment, preset, {}, tuned).model_dump(mode="json")

    def walk(old: dict[str, Any], new: dict[str, Any], prefix: str) -> Iterator[str]:
        for name, value in new.items():
            if isinstance(value, dict):
                yield from walk(old.get(name, {}), value, f"{prefix}{name}.")
            elif old.get(name) != value:
                shown = ",".join(map(str, value)) if isinstance(value, list) else value
                yield f"{prefix}{name}={'none' if value is None else shown}"

    return list(walk(plain, config, ""))


def restore(experiment: Experiment, config: dict[str, Any]) -> Config:
    """A configuration as a run folder keeps it."""
    try:
        return experiment.config_class.model_validate(config)
    except ValidationError as error:
        raise Learn2pFedError(f"The run was begun by another version: {sentence(error)}") from error


def put(tree: dict[str, Any], name: str, value: Any) -> None:
    """Set the dotted name, which must exist, in nested tables."""
    *path, last = name.split(".")
    for place, part in enumerate(path):
        if not isinstance(tree.get(part), dict):
            raise _unknown(name, place, tree)
        tree = tree[part]
    if last not in tree:
        raise _unknown(name, len(path), tree)
    is_list = isinstance(tree[last], (list, tuple))
    if is_list and isinstance(value, str):
        value = [parse(part) for part in value.split(",")]
    tree[last] = [value] if is_list and not isinstance(value, list) else value


def _unknown(name: str, place: int, tree: dict[str, Any]) -> Learn2pFedError:
    """Says what was meant, or what there is; the part of the name at `place` is not in `tree`."""
    before, part, after = (parts := name.split("."))[:place], parts[place], parts[place + 1 :]
    groups = [group for group, inside in tree.items() if isinstance(inside, dict) and part in inside]
    meant = [f"{group}.{part}" for group in groups] or get_close_matches(part, tree, n=1)
    if meant:
        said = " or ".join(repr(".".join((*before, found, *after))) for found in meant)
        return Learn2pFedError(f"There is no setting {name!r}; did you mean {said}?")
    known = ", ".join(f"{known}.*" if isinstance(inside, dict) else known for known, inside in tree.items())
    return Learn2pFedError(f"There is no setting {name!r}; there are {known}.")


def work(name: str, config: dict[str, Any], partial_in: Path | None, task: Task) -> Done:
    """One task, in a process of its own; a complaint says which task it was. That a method diverges is a result."""
    experiment = find(name)
    try:
        with kept_in(partial_in, task):
            return experiment.run(experiment.config_class.model_validate(config), task)
    except Learn2pFedError as error:
        complaint = f"{task.algorithm}, setting {task.setting}, seed {task.seed}: {error}"
        if not isinstance(error, DivergenceError):
            raise type(error)(complaint) from error
        row = Row(**task._asdict(), metric=DIVERGED, value=1.0, seconds=0.0, bytes_up=0, bytes_down=0)
        return Done([row], None, complaint)


def run_all(
    experiment: Experiment, config: Config, tasks: list[Task], n_jobs: int, partial_in: Path | None = None
) -> Iterator[tuple[Task, Done]]:
    """Do the tasks on `n_jobs` processes of one thread each and yield each as it ends; what is not done rests there."""
    return spread(partial(work, experiment.name, config.model_dump(), partial_in), tasks, n_jobs)
