"""The networks that have a name: linear, MLP, LSTM, and three CNNs. The last layer of each is called `head`."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from learn2pfed.errors import Learn2pFedError
from learn2pfed.models.network import Network

Shape = tuple[int, ...]
"""Of one sample, as (4,) for four features, (96,) for a series of 96 values, (1, 28, 28) for a grey image."""


def _check_units(*hidden: int) -> None:
    if any(units < 1 for units in hidden):
        raise Learn2pFedError(f"A hidden layer needs at least one unit, got {min(hidden)}.")


class Linear(nn.Module):
    """scores = x W' (+ b): all of it is head."""

    def __init__(self, n_inputs: int, n_outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.head = nn.Linear(n_inputs, n_outputs, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(n, k) to (n, outputs)."""
        scores: Tensor = self.head(x.flatten(1))
        return scores


class CNN(nn.Module):
    """Convolutions 5 x 5 with ReLU, each followed by a 2 x 2 maximum, then fully connected layers with ReLU between."""

    def __init__(
        self, shape: Shape, n_outputs: int, channels: Sequence[int], hidden: Sequence[int], first_padding: int = 0
    ) -> None:
        super().__init__()
        _check_units(*hidden)
        depth, *space = shape
        self.convolutions = nn.ModuleList()
        for place, wide in enumerate(channels):
            padding = 0 if place else first_padding
            self.convolutions.append(nn.Conv2d(depth, wide, 5, padding=padding))
            depth, space = wide, [(size + 2 * padding - 4) // 2 for size in space]
        if min(space, default=1) < 1:
            raise Learn2pFedError(
                f"Images of {shape[1]} x {shape[2]} pixels are too small for this network: give larger ones, or set "
                "model to another."
            )
        units = (depth * prod(space), *hidden)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(units))
        self.head = nn.Linear(units[-1], n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(n, colours, height, width) to (n, outputs)."""
        for convolution in self.convolutions:
            x = torch.relu(nn.functional.max_pool2d(convolution(x), 2))
        x = x.flatten(1)
        for layer in self.layers:
            x = torch.relu(layer(x))
        scores: Tensor = self.head(x)
        return scores


class MLP(CNN):
    """Fully connected layers with ReLU between: no convolutions."""

    def __init__(self, n_inputs: int, n_outputs: int, hidden: Sequence[int] = (32, 32)) -> None:
        super().__init__((n_inputs,), n_outputs, (), hidden)


class LSTM(nn.Module):
    """One layer of LSTM over a series, then a linear head on its last state."""

    def __init__(self, n_inputs: int, n_outputs: int, hidden: int = 32) -> None:
        super().__init__()
        _check_units(hidden)
        self.series = nn.LSTM(n_inputs, hidden, batch_first=True)
        self.head = nn.Linear(hidden, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(n, T) or (n, T, inputs) to (n, outputs)."""
        states, _ = self.series(x.unsqueeze(-1) if x.ndim == 2 else x)
        scores: Tensor = self.head(states[:, -1])
        return scores


def _series(shape: Shape) -> int:
    """Inputs at one time: (T,) has one, (T, f) has f."""
    return shape[1] if len(shape) == 2 else 1


MODELS: dict[str, tuple[str, int | None, Callable[..., nn.Module]]] = {
    "linear": (
        "one linear layer; bias = false: no constant",
        None,
        lambda s, n, **o: Linear(prod(s), n, **o),
    ),
    "mlp": ("fully connected, hidden = [32, 32]", None, lambda s, n, **o: MLP(prod(s), n, **o)),
    "lstm": ("one LSTM layer over a series, hidden = 32", None, lambda s, n, **o: LSTM(_series(s), n, **o)),
    "lenet": (
        "CIFAR-10 in the paper: conv 6, conv 16, fc 120, fc 84; 62,006 parameters",
        3,
        lambda s, n: CNN(s, n, (6, 16), (120, 84)),
    ),
    "cnn-10-20": (
        "Fashion-MNIST in the paper: conv 10, conv 20; 10,290 parameters",
        3,
        lambda s, n: CNN(s, n, (10, 20), (), first_padding=2),
    ),
    "cnn-32-64": (
        "the public libraries': conv 32, conv 64, fc 512; 582,026 parameters on Fashion-MNIST",
        3,
        lambda s, n: CNN(s, n, (32, 64), (512,)),
    ),
}
"""By name: what it is, how many axes a sample must have, and how it is made from a sample's shape."""


def build(
    name: str, shape: Shape, n_outputs: int, seed: int = 0, head: str | None = "head", **options: object
) -> Network:
    """A network by name for samples of this shape, its parameters drawn with the seed.

    The name is one of MODELS, or `package.module:function` for one's own: a function of (shape, outputs) that gives an
    `nn.Module`. `head` names the part of it that personalised methods keep at home.

    >>> build("lenet", (3, 32, 32), 10).n_parameters, build("cnn-10-20", (1, 28, 28), 10).n_parameters
    (62006, 10290)
    """
    if ":" in name:
        about, n_axes, make = "", None, _imported(name)
    elif name in MODELS:
        about, n_axes, make = MODELS[name]
    else:
        raise Learn2pFedError(
            f"There is no model {name!r}; there are {', '.join(MODELS)}, and package.module:function for your own."
        )
    if n_axes is not None and len(shape) != n_axes:
        raise Learn2pFedError(f"model {name!r} takes images (colours, height, width), got samples of shape {shape}.")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        try:
            module = make(shape, n_outputs, **options)
        except Learn2pFedError:
            raise
        except (Exception, SystemExit) as error:  # whatever one's own function may raise
            raise Learn2pFedError(
                f"model {name!r} does not take {options} ({error}): {about}."
                if name in MODELS
                else f"model {name!r} must be a function of (shape, outputs) that gives an nn.Module; "
                f"called with {', '.join(map(repr, (shape, n_outputs)))} it says: {_words(error)}."
            ) from error
    if not isinstance(module, nn.Module):
        raise Learn2pFedError(f"{name} gives {type(module).__name__}, not an nn.Module.")
    return Network(module, head)


def _imported(name: str) -> Callable[..., nn.Module]:
    """The function that `package.module:function` names."""
    place, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a file beside which the command is run
    try:
        found: Callable[..., nn.Module] = getattr(import_module(place), function)
    except (Exception, SystemExit) as error:  # whatever one's own file may raise, or a script that ends
        raise Learn2pFedError(
            f"model {name!r} can't be imported ({_words(error)}): use package.module:function."
        ) from error
    return found


def _words(error: BaseException) -> str:
    """What went wrong, and of what kind it is."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def notes_on(name: str | None) -> list[str]:
    """A network of one's own, by what is in its file (not in those that it imports): whoever changes it makes another
    run.
    """
    if name is None or ":" not in name:
        return []
    _imported(name)
    file = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else "unknown"
    return [f"The network {name} is made in a file with the SHA-256 digest {digest[:12]}."]
