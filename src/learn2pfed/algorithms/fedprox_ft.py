"""FedProx + FT: FedProx, then each client fine-tunes the last w on its own rows.

Objective:  w by FedProx;  then  min over v_i of F_i(v_i) + (λ/2) ‖v_i - w‖², from v_i = w.

Update:
1. rounds: as FedProx.
2. client, once at the end: as FedAvg + FT.

Deviations: as FedProx and FedAvg + FT.
"""

from __future__ import annotations

from learn2pfed.algorithms.fedavg_ft import FedAvgFT, FineTuneSettings
from learn2pfed.algorithms.fedprox import FedProx, FedProxSettings


class FedProxFTSettings(FineTuneSettings, FedProxSettings):
    """Those of both."""


class FedProxFT(FedAvgFT, FedProx):
    """FedProx + FT: rounds of the one, the end of the other."""

    name = "fedprox-ft"
    title = "FedProx + FT"
    objective = "FedProx, then min F_i(v_i) + (λ/2)‖v_i - w‖² from w"
    citation = "Li et al., MLSys 2020, and fine-tuning"
    settings: FedProxFTSettings
    settings_class = FedProxFTSettings
