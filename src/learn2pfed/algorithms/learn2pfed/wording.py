"""What is said: the shape of every broadcast and every reply, by kind."""

from __future__ import annotations

import torch

from learn2pfed.algorithms.base import Spec, Specs, Talk
from learn2pfed.unrolled.settings import Settings
from learn2pfed.unrolled.theta import learned_by_server


def count_splits(settings: Settings) -> int:
    """S, while Θ is learned."""
    return settings.n_folds * settings.n_repeats if settings.supervision == "crossval" else 1


def broadcasts(settings: Settings, n_splits: int, n_features: int) -> dict[str, Specs]:
    """What the server says."""
    lam = Spec((1 if settings.tied else settings.n_cells, n_features))
    w, one, count = Spec((n_splits, n_features)), Spec((1,)), Spec((1,), torch.int64)
    return {
        "describe": {},
        "prepare": {"scale": Spec((n_features,)), "conditioning": one},
        "epoch": {"lam": lam, "epoch": count},
        "cell": {"w": w, "cell": count},
        "loss": {},
        "adjoint": {"total": w, "weight": one, "loss": one, "cell": count},
        "learn": {"loss": one, "epoch": count},
        "refit": {"lam": lam, "epoch": count},
    }


def replies(settings: Settings, n_splits: int, n_features: int) -> dict[str, Specs]:
    """What a client answers."""
    lam = Spec((1 if settings.tied else settings.n_cells, n_features))
    w, one = Spec((n_splits, n_features)), Spec((1,))
    return {
        "describe": {"gram": Spec((n_features, n_features))},
        "prepare": {},
        "epoch": {},
        "cell": {"total": w, "weight": one, "moved": Spec((2,))},
        "loss": {"loss": one, "size": Spec((3,))},
        "adjoint": {"w": w},
        "learn": {"lam": lam} if learned_by_server(settings) else {},
        "refit": {},
    }


def talks(settings: Settings, n_features: int, n_refit_cells: int) -> tuple[Talk, ...]:
    """What a whole conversation says, and how often."""
    n_epochs, n_cells = settings.n_epochs, settings.n_cells
    back = settings.gradient == "exact" and bool(settings.learn)
    learning = {
        "describe": 1,
        "prepare": 1,
        "epoch": n_epochs,
        "cell": n_epochs * n_cells,
        "loss": n_epochs,
        "adjoint": n_epochs * n_cells if back else 0,
        "learn": n_epochs,
    }
    said = []
    for n_splits, counts in ((count_splits(settings), learning), (1, {"refit": 1, "cell": n_refit_cells})):
        asked, answered = broadcasts(settings, n_splits, n_features), replies(settings, n_splits, n_features)
        said += [Talk(asked[kind], answered[kind], times) for kind, times in counts.items()]
    return tuple(said)
