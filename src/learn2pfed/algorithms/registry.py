"""Every method with rounds by name: the baselines, and Learn2pFed for networks."""

from __future__ import annotations

from learn2pfed.algorithms.cfl import CFL
from learn2pfed.algorithms.ditto import Ditto
from learn2pfed.algorithms.fedavg import FedAvg
from learn2pfed.algorithms.fedavg_ft import FedAvgFT
from learn2pfed.algorithms.fedper import FedPer
from learn2pfed.algorithms.fedprox import FedProx
from learn2pfed.algorithms.fedprox_ft import FedProxFT
from learn2pfed.algorithms.fedrep import FedRep
from learn2pfed.algorithms.knn_per import KNNPer
from learn2pfed.algorithms.local_only import LocalOnly
from learn2pfed.algorithms.lp_proj import LpProj
from learn2pfed.algorithms.pfedme import PFedMe
from learn2pfed.algorithms.plug_in import PlugIn
from learn2pfed.algorithms.rounds import Rounds
from learn2pfed.algorithms.whole_network import FixedShare, OwnFrequencies, WholeNetwork
from learn2pfed.errors import Learn2pFedError, instead

BASELINES: dict[str, type[Rounds]] = {
    method.name: method
    for method in (
        LocalOnly,
        FedAvg,
        FedProx,
        FedAvgFT,
        FedProxFT,
        FedPer,
        FedRep,
        PFedMe,
        Ditto,
        LpProj,
        CFL,
        KNNPer,
    )
}
"""In the order of the paper's tables."""


OURS: dict[str, type[Rounds]] = {method.name: method for method in (PlugIn, OwnFrequencies, FixedShare, WholeNetwork)}
"""Learn2pFed where the model is a network: the paper's, two references to hold ours against, and ours."""


def method_named(name: str) -> type[Rounds]:
    """The baseline of that name, or ours."""
    known = BASELINES | OURS
    if name not in known:
        raise Learn2pFedError(f"There is no algorithm {name!r}; {instead(name, known)}")
    return known[name]
