"""A long fit on disk between two rounds, so that a run that was stopped goes on where it stopped: never pickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from learn2pfed.algorithms.base import Traffic, tensors_of, tree
from learn2pfed.engines.rounds import Snapshot
from learn2pfed.experiments.base import Task
from learn2pfed.results.store import write_whole

EVERY = 60.0
"""Seconds from one state on disk to the next."""

_place: ContextVar[Path | None] = ContextVar("_place", default=None)


@contextmanager
def kept_in(folder: Path | None, task: Task) -> Iterator[None]:
    """While this task runs, its state rests in the folder; when it is done, nothing is left there."""
    name = hashlib.sha256(json.dumps(task).encode()).hexdigest()[:16]
    place = None if folder is None else folder / f"{name}.safetensors"
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)
    if place is not None:
        place.unlink(missing_ok=True)


def place() -> Path | None:
    """Where the state of this fit rests, if anywhere."""
    return _place.get()


class Stop(NamedTuple):
    """Where a fit stopped."""

    snapshot: Snapshot
    notes: dict[str, Any]  # what was seen until then, as JSON has it


def put(path: Path, stop: Stop, of: str) -> None:
    """All tensors by their place in the state; everything else beside them as JSON. `of` says which fit it is."""
    state = stop.snapshot
    traffic = [state.traffic.bytes_up, state.traffic.bytes_down, state.traffic.n_exchanges]
    said = {
        "round": state.round,
        "traffic": traffic,
        "missing": list(state.missing.items()),
        "notes": stop.notes,
        "of": of,
    }
    named = {str(place): tensor.clone().contiguous() for place, tensor in enumerate(_tensors(state))}
    write_whole(path, save(named, {"said": json.dumps(said)}))


def _tensors(state: Snapshot) -> list[Tensor]:
    return [tensor for part in (state.server, state.kept, state.joined) for tensor in tensors_of(part)]


def _shapes(*parts: Any) -> list[torch.Size]:
    return [tensor.shape for part in parts for tensor in tensors_of(part)]


def get(path: Path, begin: Callable[[], Snapshot], of: str) -> Stop | None:
    """What was put there, in the form of a state at the beginning; None where nothing of this fit can be used."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            said = json.loads(file.metadata()["said"])
            tensors = [file.get_tensor(str(place)) for place in range(len(file.keys()))]
    except (OSError, safetensors.SafetensorError, KeyError, ValueError, TypeError):
        return None
    like, rest = begin(), iter(tensors)
    if said.get("of") != of or [tensor.dtype for tensor in tensors] != [tensor.dtype for tensor in _tensors(like)]:
        return None
    server, kept, joined = (tree(lambda _: next(rest), part) for part in (like.server, like.kept, like.joined))
    if _shapes(kept, joined) != _shapes(like.kept, like.joined):  # the server's may change from round to round
        return None
    traffic, missing = Traffic(*said["traffic"]), {int(i): count for i, count in said["missing"]}
    return Stop(Snapshot(said["round"], server, kept, joined, traffic, missing), said["notes"])
