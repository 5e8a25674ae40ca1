"""What learning participation adds: the same method, with s learned and with s held at one value after another."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from learn2pfed.algorithms.rounds import Rounds
from learn2pfed.algorithms.settings import LayerName
from learn2pfed.algorithms.whole_network import WholeNetwork
from learn2pfed.experiments.comparing import Fitted, OwnSettings, every_method
from learn2pfed.experiments.forms import Form, Forms
from learn2pfed.experiments.images import START
from learn2pfed.experiments.shared_images import SharedOut, Study, notes_on_learning, with_network
from learn2pfed.models.network import Network

LEARNED, BY_PARAMETER = "s learned", "s learned, head by parameter"


class SharingConfig(SharedOut):
    """The images of Table IV, with the values of s."""

    clients: tuple[int, ...] = Field((10,), min_length=1, description="numbers of clients")
    shares: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        (0.0, 0.1, 0.25, 0.5, 0.75, 1.0), min_length=1, description="values of s; beside them it is learned"
    )
    head: LayerName | None = Field("head", description="the part that is last")
    own: Annotated[OwnSettings, BeforeValidator(every_method((WholeNetwork.name,), **START))] = Field(
        {}, validate_default=True
    )


class SharingExperiment(Forms):
    """Rows by s."""

    name = "sharing"
    title = "What learning participation adds"
    about = (
        "Learn2pFed with s held at one value for all tensors, 0 for all shared and 1 for the client's own, and with s "
        "learned, one for every tensor, or in the head one for every parameter. All else is the same, but that with s "
        "learned some images are set aside until it is, and nothing is held against clients in the rounds in which it "
        "is, and that a run of very few rounds does not learn it. Images, "
        "clients and networks as in `learn2pfed run images`."
    )
    config_class = SharingConfig
    in_titles = ("shares",)
    tuning = "Settings are those of Learn2pFed in `learn2pfed run images`, where s is learned."

    def forms(self, config: SharingConfig) -> Mapping[str, Form]:
        """s at every value, and learned."""
        forms: dict[str, dict[str, Any]] = {f"s = {share:g}": {"share": share} for share in config.shares}
        forms |= {LEARNED: {"share": None}, BY_PARAMETER: {"share": None, "head_blocks": "parameter"}}
        return {title: partial(_algorithm_of, config, changes) for title, changes in forms.items()}

    def notes(self, config: SharingConfig) -> list[str]:
        """Also whether s can be learned."""
        return super().notes(config) + notes_on_learning(config, {**config.own[WholeNetwork.name], "share": None})

    def beside(self, algorithm: Rounds, fitted: Fitted) -> dict[str, float]:
        """s, the mean over blocks, and how far the blocks are apart."""
        share = fitted.outcome.insight["share"][0]
        return {"s": float(share.mean()), "s, std over blocks": float(share.std(correction=0))}


def _algorithm_of(config: SharingConfig, changes: dict[str, Any], study: Study, seed: int) -> Rounds:
    """Learn2pFed so changed."""
    own = config.own[WholeNetwork.name] | changes
    return with_network(config, WholeNetwork.name, own, study, seed, lambda module: Network(module, config.head))
