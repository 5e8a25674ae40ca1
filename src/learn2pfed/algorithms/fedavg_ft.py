"""FedAvg + FT: FedAvg, then each client fine-tunes the last w on its own rows.

Objective:  w = argmin Σ_i (n_i / n) F_i(w);  then  min over v_i of F_i(v_i) + (λ/2) ‖v_i - w‖², from v_i = w.

Update:
1. rounds: as FedAvg.
2. client, once at the end, every client, also one that never took part: E_ft epochs from w, of the whole network or
   of its head. The result stays at home.

Deviations: there is no one paper to deviate from. Whole network or head is a setting, as they are two baselines.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from learn2pfed.algorithms.base import Message
from learn2pfed.algorithms.fedavg import FedAvg
from learn2pfed.algorithms.local import Local, LocalSettings, towards
from learn2pfed.algorithms.rounds import Nothing
from learn2pfed.algorithms.settings import RoundSettings
from learn2pfed.errors import Learn2pFedError
from learn2pfed.models.network import Network
from learn2pfed.search import Choice, Span
from learn2pfed.tasks import Task


class FineTuneSettings(LocalSettings):
    """FedAvg's, and those of fine-tuning."""

    ft_epochs: Annotated[int, Choice((1, 2, 5, 10, 20, 50))] = Field(10, ge=0, description="E_ft, its epochs")
    ft_lr: Annotated[float, Span(1e-3, 1.0)] = Field(0.01, gt=0, description="step size of fine-tuning")
    ft_part: Literal["all", "head"] = Field("all", description="fine-tune the whole network or its head")
    ft_lam: float = Field(0.0, ge=0, description="λ, the pull to w while fine-tuning")


class FedAvgFT(FedAvg):
    """FedAvg + FT."""

    name = "fedavg-ft"
    title = "FedAvg + FT"
    objective = "FedAvg, then min F_i(v_i) + (λ/2)‖v_i - w‖² from w"
    citation = "McMahan et al., AISTATS 2017, and fine-tuning"
    settings: FineTuneSettings
    settings_class = FineTuneSettings

    def __init__(self, settings: RoundSettings, network: Network, task: Task) -> None:
        super().__init__(settings, network, task)
        if self.settings.ft_part == "head" and not network.head:
            raise Learn2pFedError("ft_part = 'head' needs a network with a head: name it, or use ft_part = 'all'.")

    def personal(self, kept: Nothing, local: Local, heard: Message) -> Tensor:
        """Step 2."""
        how, w = self.settings, heard["w"]
        pull = towards(w, how.ft_lam) if how.ft_lam else None
        tuning = replace(self.optimizer, lr=how.ft_lr)
        return local.descend(w, local.batches(how.ft_epochs), tuning, pull, how.ft_part)[0]
