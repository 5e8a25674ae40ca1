"""The simulator of baselines: exchanges carried in memory; small networks for all clients at once, others one by one.

The numbers are those of the plain engine to rounding, and so are the bytes that it says would have travelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learn2pfed.algorithms.base import Exchange, Message, Moment, Outcome, Progress, Spec, Traffic, Verdict, tree
from learn2pfed.algorithms.local import Local
from learn2pfed.algorithms.rounds import Rounds, Told
from learn2pfed.data.federated import Samples
from learn2pfed.engines.messages import size
from learn2pfed.engines.plain import following
from learn2pfed.errors import Learn2pFedError

Observe = Callable[[int, "Simulator", Told], None]
"""Called after every round with its number, the simulator, and what all would be told if the run ended here."""

STEP_ROWS = 2**13
"""Most rows of a step of clients that are computed together."""

SCORED_ROWS = 2**17
"""Most rows of clients that are scored together."""


class Snapshot(NamedTuple):
    """All state between two rounds: a run that starts from it goes on as if it had never stopped."""

    round: int
    server: Any
    kept: Any
    joined: Tensor
    traffic: Traffic
    missing: Mapping[int, int]


class Simulator:
    """The state of all clients, on a leading axis."""

    def __init__(self, algorithm: Rounds, data: Samples, start: Snapshot | None = None) -> None:
        algorithm.check(data)
        self.algorithm, self.data = algorithm, data
        self.axis = algorithm.network.runs_for_all_at_once(data.X)
        if not self.axis:
            keep_memory()
        if start is None:
            kept = tree(lambda x: x.expand(len(data), *x.shape), algorithm.begin())
            joined = torch.zeros(len(data), dtype=torch.int64)
            start = Snapshot(0, algorithm.opening(len(data)), kept, joined, Traffic(), {})
        if len(start.joined) != len(data):
            raise Learn2pFedError(f"The snapshot is of {len(start.joined)} clients and the data of {len(data)}.")
        self.round, self.server, self.joined, self.traffic = start.round, start.server, start.joined, start.traffic
        self.kept = tree(torch.clone, start.kept)
        self.missing = dict(start.missing)

    def run(self, progress: Progress | None, observe: Observe | None) -> Outcome:
        """All rounds that are left."""
        algorithm, data = self.algorithm, self.data
        programme = algorithm.rounds(self.server, self.round, self.joined, progress)
        models = algorithm.network.start.repeat(len(data), 1)
        step: Exchange | Moment | Verdict = next(programme)
        while not isinstance(step, Verdict):
            if isinstance(step, Moment):
                self.round, self.server, self.joined = step.round, step.server, step.joined
                if observe is not None:
                    observe(step.round, self, step.told)
                step = following(programme, {})
            elif step.kind == "finish":
                self._count(step)
                models[list(step.clients)] = self.personal([(step.broadcast, step.clients)])[list(step.clients)]
                step = following(programme, {i: {} for i in step.clients})
            else:
                self._count(step)
                step = following(programme, self._answers(step))
        return Outcome(models, step.global_model, step.history, step.insight, self.traffic, self.missing)

    def snapshot(self) -> Snapshot:
        """What a run needs to go on later."""
        kept = tree(torch.clone, self.kept)
        return Snapshot(self.round, self.server, kept, self.joined, self.traffic, dict(self.missing))

    def personal(self, told: Told) -> Tensor:
        """Every client's own model, given what each is told; nothing is kept."""
        models = self.algorithm.network.start.repeat(len(self.data), 1)
        for said, clients in told:
            for group in self._groups(clients):
                kept, local = self._home(group, said)
                models[self._rows(group)] = self.algorithm.personal(kept, local, said)
        return models

    def _answers(self, exchange: Exchange) -> dict[int, Message]:
        """What each client replies; what is not finite is refused, as a message would be."""
        replies: dict[int, Message] = {}
        for group in self._groups(exchange.clients):
            kept, local = self._home(group, exchange.broadcast)
            after, reply, sound = self.algorithm.answer(kept, local, exchange.broadcast)
            rows = self._rows(group)
            tree(lambda old, new, rows=rows: old.__setitem__(rows, new), self.kept, after)
            for place, (i, usable) in enumerate(zip(group, sound.reshape(-1).tolist(), strict=True)):
                if usable:
                    replies[i] = {name: x[place] for name, x in reply.items()} if self.axis else reply
                else:
                    self.missing[i] = self.missing.get(i, 0) + 1
        return replies

    def _home(self, group: tuple[int, ...], said: Message) -> tuple[Any, Local]:
        kept = tree(lambda x: x[self._rows(group)], self.kept)
        time = self.algorithm.time(kept, said)
        return kept, home(self.algorithm, self.data, group, axis=self.axis, time=time)

    def _rows(self, group: tuple[int, ...]) -> Any:
        return list(group) if self.axis else group[0]

    def _groups(self, clients: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Clients that are computed together: of similar size, so that few wait for others; or each alone."""
        if not self.axis:
            return [(i,) for i in clients]
        sizes, wide = self.data.sizes, self.algorithm.settings.batch_size
        batches = {i: -(-sizes[i] // wide) for i in clients}
        return similar(batches, STEP_ROWS // min(wide, max(sizes)))

    def ended(self, told: Told) -> Traffic:
        """All that is sent if the run ends here and everybody is told that."""
        return self.traffic + Traffic(0, sum(_down(said) * len(clients) for said, clients in told), len(told))

    def _count(self, exchange: Exchange) -> None:
        m = len(exchange.clients)
        self.traffic += Traffic(_bytes(tuple(exchange.reply.items())) * m, _down(exchange.broadcast) * m, 1)


def run_rounds(
    algorithm: Rounds,
    data: Samples,
    progress: Progress | None = None,
    observe: Observe | None = None,
    start: Snapshot | None = None,
) -> Outcome:
    """A baseline on all clients' training rows."""
    return Simulator(algorithm, data, start).run(progress, observe)


def marks_of(
    algorithm: Rounds, models: Tensor, train: Samples, test: Samples, mark: Callable[..., Tensor] | None = None
) -> Tensor:
    """How well each client's own model does on its own samples, (N,): squared errors, or 1 where it is right.

    Or whatever else `mark` makes of scores and targets.
    """
    mark = algorithm.task.marks if mark is None else mark
    if not test.names == train.names or len(models) != len(train):
        raise Learn2pFedError(
            f"There are {len(models)} models, and clients {_few(train)} to train and {_few(test)} to test: "
            "give all three the same clients in the same order."
        )
    algorithm.check(test)
    axis = algorithm.network.runs_for_all_at_once(test.X) and not algorithm.scores_alone
    marks = torch.empty(len(test.y), dtype=models.dtype)
    sizes = dict(enumerate(test.sizes))
    for group in similar(sizes, SCORED_ROWS // max(test.sizes)) if axis else [(i,) for i in sizes]:
        local = home(algorithm, train, group, axis=axis)
        steps, count = torch.arange(max(sizes[i] for i in group)), torch.tensor([sizes[i] for i in group])
        rows = test.starts[list(group), None] + steps.minimum(count[:, None] - 1)  # the last row fills up
        at: Any = rows if axis else rows[0]
        scores = algorithm.scores(models[list(group) if axis else group[0]], local, test.X[at])
        marks[at] = mark(scores, test.y[at]).to(marks.dtype)
    return marks


def _few(samples: Samples) -> str:
    return ", ".join(samples.names[:3]) + (f" .. ({len(samples)})" if len(samples) > 3 else "")


def home(algorithm: Rounds, data: Samples, group: tuple[int, ...], *, axis: bool, time: int = 0) -> Local:
    """Some clients' rows."""
    places = [(int(data.starts[i]), data.sizes[i], i) for i in group]
    return algorithm.at_home(data.X, data.y, places, axis=axis, time=time)


def similar(sizes: Mapping[int, int], most: int) -> list[tuple[int, ...]]:
    """Clients by size in groups of at most so many: the largest has less than twice the smallest's, or at most 3.

    >>> similar({0: 1, 1: 100, 2: 3, 3: 150}, most=10), similar({0: 1, 1: 1, 2: 1}, most=2)
    ([(0, 2), (1, 3)], [(0, 1), (2,)])
    """
    groups: list[list[int]] = []
    for i in sorted(sizes, key=lambda i: (sizes[i], i)):
        if not groups or sizes[i] >= 2 * max(2, sizes[groups[-1][0]]) or len(groups[-1]) >= max(1, most):
            groups.append([])
        groups[-1].append(i)
    return [tuple(sorted(group)) for group in groups]


@cache
def keep_memory() -> None:
    """Once a block of 31 MB was freed, glibc keeps what a step frees for the next one instead of giving it back."""
    torch.empty(31 << 20, dtype=torch.uint8)


def _down(said: Message) -> int:
    return _bytes(tuple((name, Spec(tuple(x.shape), x.dtype)) for name, x in said.items()))


@cache
def _bytes(specs: tuple[tuple[str, Spec], ...]) -> int:
    return size(dict(specs))
