"""What is said: the shape of every broadcast and every reply, by kind."""

from __future__ import annotations

from typing import NamedTuple

import torch

from learn2pfed.algorithms.base import Spec, Specs, Talk
from learn2pfed.unrolled.settings import Settings
from learn2pfed.unrolled.theta import learned_by_server


class Sizes(NamedTuple):
    """What the shapes of messages depend on."""

    n_splits: int  # S
    n_features: int  # k
    n_parameters: int  # P


def broadcasts(settings: Settings, sizes: Sizes) -> dict[str, Specs]:
    """What the server says."""
    n_splits, n_features, n_parameters = sizes
    lam = Spec((1 if settings.tied else settings.n_cells, n_parameters))
    w, one, count = Spec((n_splits, n_parameters)), Spec((1,)), Spec((1,), torch.int64)
    terms = Spec((settings.n_terms,))
    return {
        "describe": {},
        "prepare": {"scale": Spec((n_features,)), "conditioning": one},
        "epoch": {"lam": lam, "epoch": count},
        "cell": {"w": w, "cell": count},
        "loss": {},
        "adjoint": {"total": w, "weight": one, "loss": terms, "cell": count},
        "learn": {"loss": terms, "epoch": count},
        "refit": {"lam": lam, "epoch": count},
        "system": {"lam": lam},
        "solution": {"w": w},
    }


def replies(settings: Settings, sizes: Sizes) -> dict[str, Specs]:
    """What a client answers."""
    n_splits, n_features, n_parameters = sizes
    lam = Spec((1 if settings.tied else settings.n_cells, n_parameters))
    w, one = Spec((n_splits, n_parameters)), Spec((1,))
    return {
        "describe": {"gram": Spec((n_features, n_features))},
        "prepare": {},
        "epoch": {},
        "cell": {"total": w, "weight": one, "moved": Spec((2,))},
        "loss": {"loss": Spec((settings.n_terms,)), "size": Spec((3,))},
        "adjoint": {"w": w},
        "learn": {"lam": lam} if learned_by_server(settings) else {},
        "refit": {},
        "system": {"system": Spec((n_parameters, n_parameters + 1))},
        "solution": {},
    }


def talks(settings: Settings, sizes: Sizes, n_clients: int, n_learners: int, n_refit_cells: int) -> tuple[Talk, ...]:
    """What a whole conversation says, how often and to how many."""
    n_epochs, n_cells = settings.n_epochs, settings.n_cells
    back = settings.gradient == "exact" and bool(settings.learn)
    learning = {
        "epoch": n_epochs,
        "cell": n_epochs * n_cells,
        "loss": n_epochs,
        "adjoint": n_epochs * n_cells if back else 0,
        "learn": n_epochs,
    }
    ending = {"system": 1, "solution": 1} if settings.refit == "exact" else {"refit": 1, "cell": n_refit_cells}
    refit_cells = ending.pop("cell", 0)
    phases = (
        (sizes.n_splits, n_clients, {"describe": 1, "prepare": 1}),
        (sizes.n_splits, round(settings.join * n_learners), learning),
        (1, n_clients, ending),
        (1, n_clients if settings.start == "redrawn" else round(settings.join * n_clients), {"cell": refit_cells}),
    )
    said = []
    for n_splits, n_parties, counts in phases:
        shapes = sizes._replace(n_splits=n_splits)
        asked, answered = broadcasts(settings, shapes), replies(settings, shapes)
        said += [Talk(asked[kind], answered[kind], times, n_parties) for kind, times in counts.items()]
    return tuple(said)
