"""Table V: where Learn2pFed's plug-in starts, at the first, second or third fully connected layer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from torch import nn

from learn2pfed.algorithms.plug_in import Backbone, PlugIn
from learn2pfed.algorithms.rounds import Rounds
from learn2pfed.algorithms.settings import LayerName
from learn2pfed.errors import Learn2pFedError
from learn2pfed.experiments.comparing import Fitted, OwnSettings, every_method
from learn2pfed.experiments.forms import Form, Forms
from learn2pfed.experiments.images import START
from learn2pfed.experiments.shared_images import SharedOut, Study, with_network
from learn2pfed.models.network import Network, attach

BACKBONES: tuple[Backbone, ...] = ("local", "shared")


class StartLayerConfig(SharedOut):
    """The images of Table IV, with the layers to start at."""

    data: tuple[str, ...] = Field(("cifar10",), min_length=1, description="cifar10, fashion-mnist, or a path")
    clients: tuple[int, ...] = Field((10,), min_length=1, description="numbers of clients")
    starts: tuple[LayerName, ...] = Field(
        ("layers.0", "layers.1", "head"),
        min_length=1,
        description="layers; of the paper's LeNet the three connected ones (that of Fashion-MNIST has head alone)",
    )
    backbones: tuple[Backbone, ...] = Field(
        BACKBONES, min_length=1, description="whether the layers before it stay at home or are averaged"
    )
    own: Annotated[OwnSettings, BeforeValidator(every_method((PlugIn.name,), **START))] = Field(
        {}, validate_default=True
    )


class StartLayerExperiment(Forms):
    """Table V."""

    name = "start-layer"
    title = "Where the plug-in starts"
    about = (
        "Learn2pFed as the paper has it for networks: its cells run on all layers from the named one on, the layers "
        "before it are trained along, at home (local) or averaged (shared). Images, clients and network as in "
        "`learn2pfed run images`. The shared ratio is the part of the parameters that travels."
    )
    config_class = StartLayerConfig
    in_titles = ("starts", "backbones")
    tuning = "Settings of the plug-in are those of `learn2pfed run images`."

    def variants(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """The layers before it at home, or averaged."""
        return BACKBONES

    def forms(self, config: StartLayerConfig) -> Mapping[str, Form]:
        """From every layer, with every backbone."""
        return {
            f"from {start}, {backbone}": partial(_algorithm_of, config, start, backbone)
            for start, backbone in product(config.starts, config.backbones)
        }

    def beside(self, algorithm: Rounds, fitted: Fitted) -> dict[str, float]:
        """How much travels."""
        return {"shared ratio": len(fitted.outcome.global_model) / algorithm.network.n_parameters}


def _algorithm_of(config: StartLayerConfig, start: str, backbone: str, study: Study, seed: int) -> Rounds:
    """The plug-in from that layer on."""
    own = {**config.own[PlugIn.name], "backbone": backbone}
    return with_network(config, PlugIn.name, own, study, seed, partial(_headed, start))


def _headed(start: str, module: nn.Module) -> Network:
    try:
        return attach(module, start)
    except Learn2pFedError as error:
        raise Learn2pFedError(f"starts: {error}") from error
