"""A network as a function of one flat vector of parameters, for one client or for many at once.

Federated mathematics (averages, proximal terms, projections) then is vector arithmetic, and the same formula serves one
client, (P,), and several on a leading axis, (m, P).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from learn2pfed.errors import Learn2pFedError, instead

Part = Literal["all", "body", "head"]

Tensors = Mapping[str, Tensor]

AT_ONCE = 250
"""Samples that are scored at once; with convolutions, larger batches are slower on a CPU."""

SMALL = 200_000
"""Networks with at most so many parameters and no convolution run for all clients at once."""


class Network:
    """Any `nn.Module`; `head` names the submodules that personalised methods keep at home (None: there are none).

    Parameters that do not require gradients stay as they are and are never sent.

    >>> network = Network(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)), head="2")
    >>> network.n_parameters, int(network.is_head.sum())
    (11, 3)
    >>> network.scores(network.start, torch.zeros(5, 3)).shape
    torch.Size([5, 1])
    """

    def __init__(self, module: nn.Module, head: str | Sequence[str] | None = "head") -> None:
        if not isinstance(module, nn.Module):
            raise Learn2pFedError(f"A network is made from an nn.Module, got {type(module).__name__}: see build().")
        _refuse_what_draws_or_remembers(module)
        self.module = copy.deepcopy(module)
        self.head = (head,) if isinstance(head, str) else tuple(head or ())
        parameters = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        if not parameters:
            raise Learn2pFedError(f"{type(module).__name__} has no parameters to learn.")
        self.shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        self.sizes = [parameter.numel() for parameter in parameters.values()]
        self.n_parameters = sum(self.sizes)
        self.has_convolutions = any(isinstance(part, nn.modules.conv._ConvNd) for part in self.module.modules())
        every = self.module.named_parameters(remove_duplicate=False)
        self.has_ties = sum(parameter.requires_grad for _, parameter in every) > len(parameters)
        self.names: dict[Part, frozenset[str]] = {"all": frozenset(parameters)}
        inside: set[str] = set()
        for part in self.head:
            found = {name for name in parameters if name.startswith(f"{part}.")}
            if not found:
                raise Learn2pFedError(
                    f"The network has no parameters in a part called {part!r}; there are "
                    f"{', '.join(layers_of(self.module)) or 'no parts'}. "
                    "For a network without a head: head=None in Python, --set head=none on the command line."
                )
            inside |= found
        self.names |= {"head": frozenset(inside), "body": self.names["all"] - inside}
        self.start = self.flatten({name: parameter.detach() for name, parameter in parameters.items()})

    def to(self, dtype: torch.dtype) -> Network:
        """The same network in another precision."""
        return Network(copy.deepcopy(self.module).to(dtype), self.head)

    def starting_at(self, parameters: Tensor) -> Network:
        """The same network with another start."""
        found = copy.copy(self)
        found.start = parameters
        return found

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters, and of what goes in."""
        return self.start.dtype

    @cached_property
    def is_head(self) -> Tensor:
        """Which entries of the flat vector belong to the head, (P,)."""
        return self.mask("head")

    def mask(self, part: Part) -> Tensor:
        """Which entries of the flat vector belong to the part, (P,)."""
        names, sizes = self.names[part], torch.tensor(self.sizes)
        return torch.repeat_interleave(torch.tensor([name in names for name in self.shapes]), sizes)

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of (..., P) by parameter, (..., *shape). Filters lie in memory with their channels last."""
        parts = zip(self.shapes.items(), torch.split_with_sizes(flat, self.sizes, -1), strict=True)
        return {name: _view(part, shape) for (name, shape), part in parts}

    def flatten(self, tensors: Tensors) -> Tensor:
        """The inverse; parameters that are not given are zero."""
        first = next(iter(tensors.items()))
        lead = first[1].shape[: first[1].ndim - len(self.shapes[first[0]])]
        parts = [
            _line(tensors[name], shape) if name in tensors else first[1].new_zeros(*lead, size)
            for (name, shape), size in zip(self.shapes.items(), self.sizes, strict=True)
        ]
        return torch.cat(parts, -1)

    def cut(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Body and head of (..., P)."""
        return flat[..., ~self.is_head], flat[..., self.is_head]

    def join(self, body: Tensor, head: Tensor) -> Tensor:
        """The inverse; either may lack the client axis that the other has."""
        lead = max(body.shape[:-1], head.shape[:-1], key=len)
        flat = body.new_empty(*lead, self.n_parameters)
        flat[..., ~self.is_head], flat[..., self.is_head] = body, head
        return flat

    def leaves(self, flat: Tensor, part: Part) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """All parameters as views, and those of `part`, by which a loss can be differentiated."""
        views = self.unflatten(flat.detach())
        wanted = {name: view.detach().requires_grad_() for name, view in views.items() if name in self.names[part]}
        return views | wanted, wanted

    def scores(self, parameters: Tensor | Tensors, X: Tensor) -> Tensor:
        """(n, ...) to (n, outputs); with a leading client axis in both where the parameters have one."""
        return self._call(self.module, parameters, X)

    def features(self, parameters: Tensor | Tensors, X: Tensor) -> Tensor:
        """What the head receives, (n, F)."""
        return self._call(self._without_head, parameters, X)

    def in_parts(self, function: Callable[[Tensor, Tensor], Tensor], parameters: Tensor, X: Tensor) -> Tensor:
        """`scores` or `features` of many samples, some at a time; nothing is differentiated."""
        axis = parameters.ndim - 1
        at_once = max(1, AT_ONCE // len(parameters)) if axis else AT_ONCE
        with torch.no_grad():
            return torch.cat([function(parameters, part) for part in torch.split(X, at_once, axis)], axis)

    @cached_property
    def _without_head(self) -> nn.Module:
        if len(self.head) != 1:
            raise Learn2pFedError(
                "The network has no head of one layer, so nothing says which layer gives the features: name its last "
                "layer as its head."
            )
        body = copy.deepcopy(self.module)
        body.set_submodule(self.head[0], nn.Identity())
        return body

    def _call(self, module: nn.Module, parameters: Tensor | Tensors, X: Tensor) -> Tensor:
        tensors = dict(self.unflatten(parameters) if isinstance(parameters, Tensor) else parameters)
        name, tensor = next(iter(tensors.items()))
        if module is not self.module:
            tensors = {name: tensor for name, tensor in tensors.items() if name in self.names["body"]}
        if tensor.ndim > len(self.shapes[name]):
            together: Tensor = vmap(lambda p, x: self._apply(module, p, x))(tensors, X)
            return together
        if self.has_convolutions and X.ndim == 4:
            X = X.contiguous(memory_format=torch.channels_last)
        return self._apply(module, tensors, X)

    def _apply(self, module: nn.Module, tensors: dict[str, Tensor], X: Tensor) -> Tensor:
        scores: Tensor = functional_call(module, tensors, (X,), tie_weights=self.has_ties)
        return scores

    def runs_for_all_at_once(self, X: Tensor) -> bool:
        """Whether clients share a leading axis: small networks without convolutions that torch can vectorise."""
        if self.has_convolutions or self.n_parameters > SMALL:
            return False
        try:
            self.scores(self.start.expand(2, -1), X[:1].expand(2, *X[:1].shape))
        except RuntimeError:
            return False
        return True


def layers_of(module: nn.Module) -> list[str]:
    """The parts that have parameters of their own to learn, in the order in which the module lists them."""
    found = (name.rpartition(".")[0] for name, parameter in module.named_parameters() if parameter.requires_grad)
    return list(dict.fromkeys(filter(None, found)))


def attach(module: nn.Module, start: str) -> Network:
    """The network whose head begins with the layer `start` and goes on to the last, in the order that it lists them.

    >>> attach(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)), "2").head
    ('2', '4')
    """
    if not isinstance(module, nn.Module):
        raise Learn2pFedError(f"attach takes an nn.Module, got {type(module).__name__}.")
    layers = layers_of(module)
    if not layers:
        raise Learn2pFedError(
            f"{type(module).__name__} has no layers with names to start at: put it into an nn.Sequential."
        )
    inside = [layer for layer in layers if layer.startswith(f"{start}.")]
    if start not in layers and inside:
        raise Learn2pFedError(f"{start!r} is no layer but has some: start at {', '.join(inside)}.")
    if start not in layers:
        raise Learn2pFedError(f"The network has no layer {start!r} with parameters; {instead(str(start), layers)}")
    return Network(module, layers[layers.index(start) :])


def _view(part: Tensor, shape: tuple[int, ...]) -> Tensor:
    if len(shape) != 4:
        return part.view((*part.shape[:-1], *shape))
    outputs, inputs, height, width = shape
    return part.view((*part.shape[:-1], outputs, height, width, inputs)).movedim(-1, -3)


def _line(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if len(shape) == 4:
        tensor = tensor.movedim(-3, -1)
    return tensor.flatten(tensor.ndim - len(shape)) if shape else tensor.unsqueeze(-1)


def _refuse_what_draws_or_remembers(module: nn.Module) -> None:
    for name, part in module.named_modules():
        known = f"Layer {name!r} ({type(part).__name__})" if name else type(part).__name__
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats:
            raise Learn2pFedError(
                f"{known} keeps running statistics, which belong to no client: use nn.GroupNorm or nn.LayerNorm."
            )
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise Learn2pFedError(f"{known} mixes the rows of a batch: use nn.GroupNorm or nn.LayerNorm.")
        if isinstance(part, nn.modules.lazy.LazyModuleMixin):
            raise Learn2pFedError(f"{known} does not know its sizes yet: run the module on a sample first.")
        drops = part.p if isinstance(part, nn.modules.dropout._DropoutNd) else int(isinstance(part, nn.RReLU))
        if isinstance(part, (nn.RNNBase, nn.MultiheadAttention)):
            drops = part.dropout
        if drops > 0:
            raise Learn2pFedError(f"{known} draws at random, so that no run could be repeated: use weight_decay.")
