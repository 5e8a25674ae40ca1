"""Everything that can be chosen about Learn2pFed, with the defaults that were measured and the paper's."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from learn2pfed.search import Choice, Span

GroupName = Literal["lam", "p", "rho", "eta", "gamma", "theta"]
GROUPS: tuple[GroupName, ...] = ("lam", "p", "rho", "eta", "gamma", "theta")


class Settings(BaseModel):
    """Settings of Learn2pFed; `Settings()` is what we recommend, `Settings.paper()` what the paper describes.

    >>> Settings(learn=["lam", "p"]).learn
    ('lam', 'p')
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # the network
    n_cells: Annotated[int, Choice((5, 10, 20))] = Field(10, ge=1, description="L, the number of unrolled cells")
    tied: bool = Field(True, description="one Θ for all cells, or one per cell")
    learn: tuple[GroupName, ...] = Field(("lam",), description="which groups of Θ are learned")
    sharing: Literal["common", "per-client", "mixed"] = Field(
        "common", description="Λ common to all clients, one per client (the paper), or common plus deviations"
    )
    start: Literal["warm", "redrawn"] = Field(
        "warm", description="carry (α, v, z, w) from epoch to epoch, or draw v and w anew in each (the demo)"
    )
    gradient: Literal["exact", "local"] = Field(
        "exact", description="adjoint messages, or each client treats every w as a constant"
    )
    carry_adjoint: bool = Field(
        True, description="with a warm start, carry the adjoint too: the gradient of infinitely many cells"
    )

    # what supervises Θ
    supervision: Literal["train", "holdout", "crossval"] = Field(
        "crossval", description="judge Θ by the training rows (the paper), by a held-out part, or by folds"
    )
    holdout: float = Field(0.25, gt=0, lt=1, description="fraction held out by supervision = holdout")
    n_folds: Annotated[int, Choice((2, 3, 5))] = Field(2, ge=2, description="folds of supervision = crossval")
    n_repeats: int = Field(10, ge=1, description="how often the folds are drawn anew")
    objective: Literal["profiled", "predictive", "sum"] = Field(
        "profiled",
        description="½n log ΣF (unit-free), that and the held-out rows' predictive density (squared loss), or eq. (13)",
    )
    lam_spread: Annotated[float | None, Choice((2.0, 5.0, 10.0))] = Field(
        5.0, gt=0, description="weak prior: standard deviation of log Λ around a typical client's curvature"
    )
    deviation_spread: float = Field(
        0.5, gt=0, description="sharing = mixed: standard deviation of a client's log Λ around the common one"
    )

    # where Θ starts
    scaling: bool = Field(True, description="divide each feature by its size over all clients (sums only)")
    lam_start: Annotated[float, Span(0.002, 0.2)] = Field(
        0.02, gt=0, description="Λ at the start, in units of a typical client's curvature"
    )
    lam_random: bool = Field(False, description="multiply the start of Λ by U(0, 1) draws, as the demo does")
    rho_start: float = Field(0.1, gt=0, description="ρ, η, γ at the start")
    rho_relative: bool = Field(True, description="rho_start times the client's mean curvature and the conditioning")
    theta_start: float | None = Field(1.0, gt=0, lt=1.6, description="θ at the start; none: equal to ρ, at most 1.6")
    p_start: Literal["equal", "rows"] = Field("equal", description="p_i at the start: 1, or n_i (only ratios count)")

    # how Θ is learned
    n_epochs: int = Field(300, ge=0, description="E, steps of learning Θ")
    n_warmup: int = Field(10, ge=0, description="epochs at the start in which Θ stays fixed")
    learning_rate: Annotated[float, Span(0.02, 0.5)] = Field(0.1, gt=0, description="Adam's step size on log Θ")
    beta1: float = Field(0.9, ge=0, lt=1, description="Adam's memory of gradients")
    beta2: float = Field(0.9, ge=0, lt=1, description="Adam's memory of squared gradients")
    decay: bool = Field(
        True, description="let the step size fall along a half cosine to 2 % (join < 1: 0) of its start"
    )

    join: float = Field(
        1.0, gt=0, le=1, description="share of the clients that take part in an epoch, and in a pass of the refit"
    )
    n_learners: int = Field(
        2000, ge=2, description="at most so many clients, drawn once, learn a common Λ; all take part in the final fit"
    )

    # the final models
    refit: Literal["cells", "exact"] = Field(
        "cells", description="by cells until the models rest, or (squared loss) by one k x k system"
    )
    refit_cells: int = Field(2000, ge=1, description="at most so many cells on all training data (warm start)")
    tolerance: float = Field(1e-9, gt=0, description="the refit stops when the models move by less, relatively")

    seed: int = Field(0, ge=0, description="of folds and draws; experiments set it to the trial's")

    @field_validator("learn", mode="before")
    @classmethod
    def _known_groups(cls, value: object) -> object:
        names = [part for part in value.replace(" ", "").split(",") if part] if isinstance(value, str) else value
        if isinstance(names, (list, tuple)):
            unknown = [name for name in names if name not in GROUPS]
            if unknown:
                raise ValueError(f"unknown group {unknown[0]!r}; there are {', '.join(GROUPS)}")
            return tuple(dict.fromkeys(names))
        return names

    @model_validator(mode="after")
    def _local_gradient_cannot_reach_the_weights(self) -> Self:
        blind = [name for name in ("p", "gamma") if name in self.learn]
        if self.gradient == "local" and blind:
            raise ValueError(
                f"{blind[0]} reaches the loss only through w, which gradient = 'local' takes as constant: "
                "use gradient = 'exact' or leave it out of learn"
            )
        return self

    @model_validator(mode="after")
    def _density_is_of_held_out_rows(self) -> Self:
        if self.objective == "predictive" and self.supervision == "train":
            raise ValueError("objective = 'predictive' judges held-out rows: use supervision = 'crossval' or 'holdout'")
        return self

    @classmethod
    def paper(cls, **changes: object) -> Self:
        """The paper's recipe: train-supervised, all six groups, a Λ per client, Adam at 0.01 for 500 epochs."""
        recipe: dict[str, object] = {
            "learn": GROUPS,
            "sharing": "per-client",
            "start": "redrawn",
            "carry_adjoint": False,
            "supervision": "train",
            "objective": "sum",
            "lam_spread": None,
            "scaling": False,
            "lam_start": 0.001,
            "lam_random": True,
            "rho_start": 0.01,
            "rho_relative": False,
            "theta_start": None,
            "p_start": "rows",
            "n_epochs": 500,
            "n_warmup": 0,
            "learning_rate": 0.01,
            "beta2": 0.999,
            "decay": False,
        }
        return cls.model_validate(recipe | changes)

    def changed(self, **changes: object) -> Self:
        """These settings with changes, checked."""
        return self.model_validate(self.model_dump() | changes)

    @property
    def n_splits(self) -> int:
        """S, while Θ is learned."""
        return self.n_folds * self.n_repeats if self.supervision == "crossval" else 1

    @property
    def n_terms(self) -> int:
        """How many sums over clients the outer objective is made of."""
        return 3 if self.objective == "predictive" else 1

    @property
    def n_passes(self) -> int:
        """Most passes of the refit; more where only some take part in each."""
        return math.ceil(max(1, self.refit_cells // self.n_cells) / self.join)

    @property
    def training_share(self) -> float:
        """The share of its rows that a client learns from while Θ is learned."""
        return {"train": 1.0, "holdout": 1.0 - self.holdout, "crossval": 1.0 - 1.0 / self.n_folds}[self.supervision]

    @property
    def carries_adjoint(self) -> bool:
        """Whether the adjoint of the start state is kept for the next epoch."""
        return self.carry_adjoint and self.start == "warm" and self.gradient == "exact"

    def rate(self, epoch: int) -> float:
        """Step size at `epoch`: zero while warming up, then flat or a half cosine down to 2 %, or to 0 with `join` < 1.

        Where some sit out, gradients are a little old, and only steps that vanish bring them to rest.
        """
        if epoch < self.n_warmup:
            return 0.0
        if not self.decay:
            return self.learning_rate
        done = (epoch - self.n_warmup) / max(1, self.n_epochs - self.n_warmup)
        least = 0.02 if self.join == 1 else 0.0
        return self.learning_rate * (least + (1 - least) * 0.5 * (1 + math.cos(math.pi * done)))
