"""Table VI: what a round asks of a client: memory, arithmetic, and what it sends and hears."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from learn2pfed.algorithms.base import Message, Outcome, Spec, tensors_of
from learn2pfed.algorithms.rounds import Rounds
from learn2pfed.algorithms.whole_network import WholeNetwork
from learn2pfed.data.federated import Samples
from learn2pfed.engines.messages import size
from learn2pfed.engines.rounds import home
from learn2pfed.errors import Learn2pFedError, instead
from learn2pfed.experiments.base import Done, Task, rows_of, timed
from learn2pfed.experiments.comparing import Comparison, OwnSettings, ProtocolConfig, every_method
from learn2pfed.experiments.images import METHODS, START, TITLES
from learn2pfed.experiments.shared_images import MODELS
from learn2pfed.models.modules import build
from learn2pfed.tasks import Classification

SHAPES = {"cifar10": (3, 32, 32), "fashion-mnist": (1, 28, 28)}
"""Of one image; what is on it does not matter here."""

N_CLASSES = 10


class ResourcesConfig(ProtocolConfig):
    """A client of Table IV; `own.` holds the methods' own settings."""

    data: tuple[str, ...] = Field(tuple(SHAPES), min_length=1, description=f"of {', '.join(SHAPES)}")
    n_rows: int = Field(1000, ge=20, description="images of the client")
    algorithms: tuple[str, ...] = Field(METHODS, min_length=1, description="methods (--algorithms)")
    own: Annotated[OwnSettings, BeforeValidator(every_method(METHODS, **START))] = Field({}, validate_default=True)
    n_seeds: int = Field(1, ge=1, le=1, description="trials (--seeds); there is nothing to repeat")


class Client:
    """One client, as it is before its first round, in a round in which s is learned if that is what it does."""

    def __init__(self, config: ResourcesConfig, data: str, name: str) -> None:
        network = build(MODELS[data], SHAPES[data], N_CLASSES)
        rows = (torch.randn(config.n_rows, *SHAPES[data]), torch.arange(config.n_rows) % N_CLASSES)
        self.algorithm: Rounds = config.algorithm(
            name, config.own[name], 1.0, 0, network, Classification(N_CLASSES), config.n_rows
        )
        self.samples = Samples.join([("client", *rows)])
        self.kept = self.algorithm.begin()
        told = self.algorithm.tells(self.algorithm.opening(1), (0,))
        said = told[0][0] if told else {}
        learner = self.algorithm if isinstance(self.algorithm, WholeNetwork) else None
        self.time = next((t for t in range(config.n_rounds) if learner and learner.learning(t)), 0)
        self.heard: Message = {**said, "round": torch.tensor(self.time)} if said else {}

    def work(self) -> tuple[Any, Message]:
        """A round."""
        local = home(self.algorithm, self.samples, (0,), axis=False, time=self.time)
        kept, reply, _ = self.algorithm.answer(self.kept, local, self.heard)
        return kept, reply


class Memory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the tensors that come to be while it is on, and are alive together: how many at most."""

    def __init__(self, before: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in before}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Notes every new storage; one that is freed gives its bytes back."""
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self.known:
                storage = tensor.untyped_storage()
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        return made

    def _free(self, place: int, n_bytes: int) -> None:
        self.known.discard(place)
        self.now -= n_bytes


class ResourcesExperiment(Comparison):
    """Table VI."""

    name = "resources"
    title = "What a round asks of a client"
    about = (
        "One round of one client, on the paper's networks: floating-point operations as torch counts them, megabytes "
        "of tensors that are alive together at most, beyond data and network, what the client keeps between rounds, "
        "and the bytes that it sends and hears. kNN-Per and Learn2pFed set rows aside, and train on fewer in a round."
    )
    config_class = ResourcesConfig
    tuned_as = "images"
    tuning = "Settings of the methods are those of `learn2pfed run images`."
    titles = TITLES
    presets = {"quick": {}, "paper": {"n_rows": 4800}}  # noqa: RUF012

    def tasks(self, config: ResourcesConfig) -> list[Task]:
        """Data by data."""
        self.refuse_unknown(config.algorithms)
        strange = next((data for data in config.data if data not in SHAPES), None)
        if strange is not None:
            raise Learn2pFedError(f"data: unknown {strange!r}; {instead(strange, SHAPES)}")
        return [Task(data, TITLES[name], 0) for data in config.data for name in METHODS if name in config.algorithms]

    def run(self, config: ResourcesConfig, task: Task) -> Done:
        """Count while it works."""
        name = self.name_of(task.algorithm)
        client = Client(config, task.setting, name)
        there = [client.samples.X, client.samples.y, client.algorithm.network.start, *tensors_of(client.kept)]
        with Memory([*there, *client.heard.values()]) as memory, FlopCounterMode(display=False) as counter:
            (kept, reply), seconds = timed(client.work)
        measured = {
            "GFLOP": counter.get_total_flops() / 1e9,
            "thousand parameters": client.algorithm.network.n_parameters / 1e3,
            "MB at most": memory.most / 1e6,
            "MB kept": held(kept) / 1e6,
            "kB sent": sent(reply) / 1e3,
            "kB heard": sent(client.heard) / 1e3,
        }
        model = client.algorithm.network.start
        return Done(rows_of(task, Outcome(model[None], model), seconds, measured), None)


def held(kept: Any) -> int:
    """Bytes of all its tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(kept))


def sent(message: Message) -> int:
    """Bytes as encoded."""
    return size({name: Spec(tuple(tensor.shape), tensor.dtype) for name, tensor in message.items()})
