"""The baselines' contract: rounds of telling, working at home, and gathering.

A baseline says, in a file of its own, what a client keeps, what the server tells, what a client does with it, how the
server gathers, and which model is the client's own. Everything is vector arithmetic on flat parameters, so that one
text serves one client, (P,), and many on a leading axis, (m, P). Sampling, batches, messages, engines and scoring are
not its business.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from learn2pfed.algorithms.base import (
    Conversation,
    Exchange,
    Message,
    Moment,
    Programme,
    Progress,
    Replies,
    Spec,
    Specs,
    Verdict,
    tree,
)
from learn2pfed.algorithms.local import Local, Optimizer
from learn2pfed.algorithms.settings import RoundSettings
from learn2pfed.data.federated import ClientData, Samples, cohort
from learn2pfed.errors import DivergenceError, Learn2pFedError, MessageError
from learn2pfed.models.network import Network
from learn2pfed.tasks import Classification, Task

PATIENCE = 3
"""So many rounds without a single answer end a run."""


class Nothing(NamedTuple):
    """What a client keeps where it keeps nothing."""


class Server(NamedTuple):
    """What the server holds."""

    w: Tensor  # (P,)


class Home(NamedTuple):
    """A client between messages."""

    number: int
    kept: Any  # a NamedTuple of tensors, never sent
    personal: Tensor  # the model that is its own once the server has said goodbye


Told = list[tuple[Message, tuple[int, ...]]]
"""What is said to whom."""


class Rounds(Conversation[Home]):
    """A baseline; the defaults are FedAvg's."""

    title: ClassVar[str]
    objective: ClassVar[str]
    citation: ClassVar[str]
    settings: RoundSettings
    settings_class: ClassVar[type[RoundSettings]]
    only_classification: ClassVar[bool] = False
    scores_alone: ClassVar[bool] = False  # whether `scores` takes one client at a time

    def __init__(self, settings: RoundSettings, network: Network, task: Task) -> None:
        if not isinstance(settings, self.settings_class):
            raise Learn2pFedError(f"{self.title} takes {self.settings_class.__name__}, got {type(settings).__name__}.")
        if self.only_classification and not isinstance(task, Classification):
            raise Learn2pFedError(f"{self.title} needs classes to predict, not numbers: leave it out for regression.")
        self.settings = settings
        self.network = network
        self.task = task

    # what a baseline says in its own file

    def begin(self) -> Any:
        """What a client keeps before the first round, common to all."""
        return Nothing()

    def opening(self, n_clients: int) -> Any:
        """What the server holds before the first round."""
        return Server(self.network.start)

    def tells(self, server: Any, clients: tuple[int, ...]) -> Told:
        """What the server says to these clients at a round's start."""
        return [({"w": server.w}, clients)]

    def closes(self, server: Any, clients: tuple[int, ...]) -> Told:
        """What it says at the end; what it says at a round's start, unless a method says otherwise."""
        return self.tells(server, clients)

    @abstractmethod
    def work(self, kept: Any, local: Local, heard: Message) -> tuple[Any, Message]:
        """A client's part of a round: what it keeps, and what it sends."""

    def gather(self, server: Any, t: int, replies: Replies) -> Any:
        """The server's part of a round."""
        return server._replace(w=mean_by_rows(replies, "w"))

    def personal(self, kept: Any, local: Local, heard: Message) -> Tensor:
        """The client's own model, given what the server says at the end."""
        return local.each(heard["w"])

    def learned(self, server: Any) -> Mapping[str, Tensor]:
        """What the server knows of each client in the end, (M, ...)."""
        return {}

    def scores(self, model: Tensor, local: Local, X: Tensor) -> Tensor:
        """What the client's own model makes of X."""
        return self.network.in_parts(self.network.scores, model, X)

    def sends(self, server: Any) -> Specs:
        """What a client's reply looks like, as the server stands, beside its number of rows."""
        return {"w": self.vector()}

    def time(self, kept: Any, heard: Message) -> int:
        """Which round it is."""
        return int(heard["round"])

    def asks(self, t: int, n_clients: int) -> tuple[int, ...]:
        """Who takes part in round t: a draw from (seed, t), the same for every method."""
        return cohort(n_clients, self.settings.join, self.settings.seed, t)

    # what they all share

    def vector(self, size: int | None = None) -> Spec:
        """A vector of so many numbers, P by default."""
        return Spec((self.network.n_parameters if size is None else size,), self.network.dtype)

    @property
    def optimizer(self) -> Optimizer:
        """Of the local steps, by the settings."""
        how: Any = self.settings
        return Optimizer(how.optimizer, how.lr, how.momentum, how.weight_decay)

    def at_home(
        self, X: Tensor, y: Tensor, places: Sequence[tuple[int, int, int]], *, axis: bool, time: int = 0
    ) -> Local:
        """The rows of some clients, each place being (where they begin, how many, whose)."""
        starts, sizes, clients = (tuple(part) for part in zip(*places, strict=True))
        seed, batch_size = self.settings.seed, self.settings.batch_size
        return Local(self.network, self.task, X, y, starts, sizes, clients, axis, seed, time, batch_size)

    def reply_specs(self, server: Any) -> Specs:
        """What a reply looks like where it arrives."""
        sends = self.sends(server)
        return {**sends, "n": Spec((), torch.int64)} if sends else {}

    def answer(self, kept: Any, local: Local, heard: Message) -> tuple[Any, Message, Tensor]:
        """A round's work with the number of rows, and whether it is finite; whoever's is not keeps what was."""
        after, reply = self.work(kept, local, heard)
        if not reply:
            return after, {}, torch.ones(local.lead, dtype=torch.bool)
        sound = torch.stack([torch.isfinite(x).all(-1) for x in reply.values()]).all(0)
        kept = tree(lambda new, old: torch.where(sound.unsqueeze(-1), new, old), after, kept)
        return kept, {**reply, "n": local.n}, sound

    # the conversation, one client at a time

    def check(self, data: Samples | ClientData) -> None:
        """Refuse samples that the network or the task can't take."""
        self.task.check(data)
        X, dtype = data.X, self.network.dtype
        if X.dtype != dtype:
            raise Learn2pFedError(
                f"The samples are {X.dtype} and the network is {dtype}: convert "
                + (f"one, as by network.to({X.dtype})." if X.is_floating_point() else f"them, as by X.to({dtype}).")
            )
        if not X.numel():
            raise Learn2pFedError(f"The samples are empty, of shape {tuple(X.shape)}: give each some values.")
        if not bool(torch.stack(torch.aminmax(X)).isfinite().all()):
            raise Learn2pFedError("The samples have missing or infinite values: fill or drop those.")
        try:
            scores = self.network.scores(self.network.start, X[:1])
            pair = self.network.scores(self.network.start, X[:2])
        except Exception as error:  # whatever a module of one's own may raise
            shape, why = tuple(X.shape[1:]), str(error).rstrip(".")
            raise Learn2pFedError(
                f"The network does not take samples of shape {shape} ({why}): choose one that is made for them."
            ) from error
        found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        if found != (1, n := self.task.n_outputs):
            raise Learn2pFedError(
                f"The network gives {found} for one sample where (1, {n}) is needed: let it give a row of {n} outputs "
                "for each sample."
            )
        if not bool(scores.isfinite().all()):
            raise Learn2pFedError("The network's scores are not finite where it starts: give it another start.")
        if not torch.allclose(pair[:1], scores, rtol=1e-3, atol=1e-5):
            raise Learn2pFedError("The network mixes the rows of a batch: each row's scores must be its own alone.")

    def enter(self, index: int, data: ClientData) -> Home:
        """Before the first message."""
        self.check(data)
        return Home(index, self.begin(), self.network.start)

    def expects(self, kind: str, state: Home) -> Specs:
        """What the server says, by kind."""
        if kind not in ("round", "finish"):
            raise MessageError(f"a message of kind {kind!r} came where round, finish are known.")
        said = _at(self.tells(self.opening(1), (0,)), 0)[0][0]
        return {name: Spec(tuple(tensor.shape), tensor.dtype) for name, tensor in said.items()}

    def handle(self, kind: str, state: Home, data: ClientData, broadcast: Message) -> tuple[Home, Message]:
        """Work for a round, or settle for a model at the end."""
        time = self.time(state.kept, broadcast)
        local = self.at_home(data.X, data.y, [(0, data.n_rows, state.number)], axis=False, time=time)
        if kind == "finish":
            return state._replace(personal=self.personal(state.kept, local, broadcast)), {}
        kept, reply, _ = self.answer(state.kept, local, broadcast)
        return state._replace(kept=kept), reply

    def model(self, state: Home) -> Tensor:
        """The client's own model."""
        return state.personal

    def insight(self, state: Home) -> Mapping[str, Tensor]:
        """Nothing beside the model."""
        return {}

    def programme(self, n_clients: int, n_features: int, progress: Progress | None) -> Programme:
        """All rounds from the start."""
        return self.rounds(self.opening(n_clients), 0, torch.zeros(n_clients, dtype=torch.int64), progress)

    def rounds(self, server: Any, first: int, joined: Tensor, progress: Progress | None) -> Programme:
        """The rounds from `first` on: tell, wait for answers, gather; at the end tell everybody."""
        n_clients, joined = len(joined), joined.clone()
        everyone, silent = tuple(range(n_clients)), 0
        for t in range(first, self.settings.n_rounds):
            replies: dict[int, Message] = {}
            specs = self.reply_specs(server)
            for said, clients in _at(self.tells(server, self.asks(t, n_clients)), t):
                replies |= yield Exchange("round", said, specs, clients)
            joined[list(replies)] += 1
            silent = 0 if replies else silent + 1
            if silent == PATIENCE:
                raise DivergenceError(
                    f"{self.title}: nobody gave a usable answer in rounds {t - PATIENCE + 2} to {t + 1}: "
                    "if models left the finite numbers, lower the step size."
                )
            if replies:
                server = self.gather(server, t, dict(sorted(replies.items())))
            yield Moment(t + 1, _at(self.closes(server, everyone), t + 1), server, joined.clone())
            if progress is not None:
                progress(t + 1, float("nan"))
        for said, clients in _at(self.closes(server, everyone), self.settings.n_rounds):
            yield Exchange("finish", said, {}, clients)
        if not joined.any():
            raise DivergenceError(f"{self.title}: nobody ever gave a usable answer: lower the step size.")
        held = server[0] if server else self.network.start.clone()
        return Verdict(held, [], frozenset(everyone), {"joined": joined, **self.learned(server)})


def _at(told: Told, t: int) -> Told:
    """With the number of the round, where anything is said at all."""
    return [({**said, "round": torch.tensor(t)} if said else said, clients) for said, clients in told]


def mean_by_rows(replies: Replies, name: str) -> Tensor:
    """Σ n_i x_i / Σ n_i over those that answered."""
    stacked = torch.stack([reply[name] for reply in replies.values()])
    n = torch.stack([reply["n"] for reply in replies.values()]).to(stacked.dtype)
    return (n / n.sum()) @ stacked


def part_way(w: Tensor, replies: Replies, beta: float) -> Tensor:
    """(1 - β) w + β Σ w_i / m over those that answered."""
    return (1 - beta) * w + beta * torch.stack([reply["w"] for reply in replies.values()]).mean(0)
