"""The contract: an algorithm is a conversation between a server and clients.

It is defined once and runs unchanged on every engine:

- frozen settings;
- a client's private state, a frozen record of tensors that never leaves the client, and one pure handler per kind of
  message, `handle(kind, state, data, broadcast) -> (state, reply)`;
- the server's programme, a generator that yields an `Exchange` and is sent the replies of those that answered.

A missing reply is normal: the programme goes on with those that answered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from learn2pfed.data.federated import ClientData, FederatedData, Streamed

Message = dict[str, Tensor]
"""What travels: named tensors, nothing else."""

Progress = Callable[[int, float], None]
"""Called after every round (from 1) with the objective, where there is one."""


class Spec(NamedTuple):
    """What one tensor of a message must look like."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float64
    or_shorter: bool = False  # whether fewer numbers on the first axis will do


Specs = Mapping[str, Spec]


@dataclass(frozen=True)
class Exchange:
    """The server says `broadcast` to `clients` and waits for their replies, which must look like `reply`."""

    kind: str
    broadcast: Message
    reply: Specs
    clients: tuple[int, ...]


Replies = Mapping[int, Message]


@dataclass(frozen=True)
class Moment:
    """A pause between rounds in which an observer may look: nothing is sent, and the programme is sent nothing back."""

    round: int  # rounds done
    told: list[tuple[Message, tuple[int, ...]]]  # what each client would be told if this were the end
    server: Any  # what the server holds, a NamedTuple of tensors
    joined: Tensor  # in how many rounds each client took part so far, (M,)


@dataclass(frozen=True)
class Traffic:
    """Bytes of encoded messages, from and to clients, and how many exchanges carried them."""

    bytes_up: int = 0
    bytes_down: int = 0
    n_exchanges: int = 0

    @property
    def bytes(self) -> int:
        """Both ways."""
        return self.bytes_up + self.bytes_down

    def __add__(self, other: Traffic) -> Traffic:
        """Both together."""
        return Traffic(
            self.bytes_up + other.bytes_up,
            self.bytes_down + other.bytes_down,
            self.n_exchanges + other.n_exchanges,
        )


class Talk(NamedTuple):
    """A kind of exchange, how often it took place and with how many clients: what bytes are counted from."""

    broadcast: Specs
    reply: Specs
    times: int
    n_clients: int


@dataclass(frozen=True)
class Verdict:
    """What the server knows at the end."""

    global_model: Tensor  # (k,), in the units of the data; or whatever else the server holds
    history: list[float]  # objective by round
    served: frozenset[int]  # clients whose personal model is final; the others get the global one
    insight: Mapping[str, Tensor] = field(default_factory=dict)  # what the server noted of each client, (M, ...)


@dataclass(frozen=True)
class Outcome:
    """What a run gives: a personal model each, the global one, what was learned, and what it cost."""

    models: Tensor  # (M, k)
    global_model: Tensor  # (k,), or whatever else the server holds
    history: list[float] = field(default_factory=list)
    insight: Mapping[str, Tensor] = field(default_factory=dict)  # what the clients that were served learned, (M, ...)
    traffic: Traffic = Traffic()
    missing: Mapping[int, int] = field(default_factory=dict)  # client -> exchanges it did not answer
    talks: tuple[Talk, ...] = ()


Programme = Generator[Exchange | Moment, Replies, Verdict]


def tree(function: Callable[..., Any], *trees: Any) -> Any:
    """The function on every tensor of nested NamedTuples."""
    if isinstance(trees[0], Tensor):
        return function(*trees)
    return type(trees[0])(*(tree(function, *parts) for parts in zip(*trees, strict=True)))


def tensors_of(nested: Any) -> list[Tensor]:
    """All tensors of nested NamedTuples, in the order in which `tree` meets them."""
    found: list[Tensor] = []
    tree(found.append, nested)
    return found


S = TypeVar("S")


class Conversation(ABC, Generic[S]):
    """An algorithm whose parties talk; S is the client's private state."""

    name: ClassVar[str]

    @abstractmethod
    def enter(self, index: int, data: ClientData) -> S:
        """The client's state before the first message."""

    @abstractmethod
    def expects(self, kind: str, state: S) -> Specs:
        """What a broadcast of this kind must look like where it arrives."""

    @abstractmethod
    def handle(self, kind: str, state: S, data: ClientData, broadcast: Message) -> tuple[S, Message]:
        """Answer one message; pure."""

    @abstractmethod
    def programme(self, n_clients: int, n_features: int, progress: Progress | None) -> Programme:
        """The server's side."""

    @abstractmethod
    def model(self, state: S) -> Tensor:
        """The client's personal model, (k,), in the units of its data."""

    @abstractmethod
    def insight(self, state: S) -> Mapping[str, Tensor]:
        """What the client learned beside its model."""


class Fused(ABC):
    """An algorithm that has a way of its own to compute all clients at once."""

    @abstractmethod
    def fused(self, data: FederatedData | Streamed, progress: Progress | None) -> Outcome:
        """The same computation for all clients at once, without messages; `talks` says what would have travelled."""
