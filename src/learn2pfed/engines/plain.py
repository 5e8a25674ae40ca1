"""The plain engine: every client's handlers one by one, through encoded messages. Slow, and the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from learn2pfed.algorithms.base import (
    Conversation,
    Exchange,
    Message,
    Moment,
    Outcome,
    Programme,
    Progress,
    Traffic,
    Verdict,
)
from learn2pfed.data.federated import Samples
from learn2pfed.engines.messages import encode, receive
from learn2pfed.errors import MessageError

S = TypeVar("S")

Wire = Callable[[int, int, bytes], bytes | None]
"""(number of the exchange, client, reply) -> the reply as it arrives, or None if it is lost."""


def run_plain(
    algorithm: Conversation[S],
    data: Samples,
    progress: Progress | None = None,
    wire: Wire | None = None,
) -> Outcome:
    """Carry the whole conversation; `wire` lets a test lose or damage replies."""
    states = [algorithm.enter(index, client) for index, client in enumerate(data.clients)]
    programme = algorithm.programme(len(data), data.X.shape[1], progress)
    traffic = Traffic()
    missing: dict[int, int] = {}
    exchange: Exchange | Moment | Verdict = next(programme)
    while not isinstance(exchange, Verdict):
        replies: dict[int, Message] = {}
        if isinstance(exchange, Moment):  # nobody is looking
            exchange = following(programme, replies)
            continue
        down = encode(exchange.broadcast)
        for i in exchange.clients:
            traffic += Traffic(bytes_down=len(down))
            try:
                heard = receive(down, algorithm.expects(exchange.kind, states[i]))
                states[i], reply = algorithm.handle(exchange.kind, states[i], data.clients[i], heard)
                up = _arrive(encode(reply), traffic.n_exchanges, i, wire)
                traffic += Traffic(bytes_up=len(up))
                replies[i] = receive(up, exchange.reply)
            except MessageError:
                missing[i] = missing.get(i, 0) + 1
        traffic += Traffic(n_exchanges=1)
        exchange = following(programme, replies)
    verdict = exchange
    own = [algorithm.model(states[i]) if i in verdict.served else verdict.global_model for i in range(len(data))]
    insight = _stack([algorithm.insight(states[i]) for i in sorted(verdict.served)]) | dict(verdict.insight)
    return Outcome(torch.stack(own), verdict.global_model, verdict.history, insight, traffic, missing)


def _arrive(up: bytes, number: int, client: int, wire: Wire | None) -> bytes:
    arrived = up if wire is None else wire(number, client, up)
    if arrived is None:
        raise MessageError(f"the reply of client {client} was lost.")
    return arrived


def following(programme: Programme, replies: dict[int, Message]) -> Exchange | Moment | Verdict:
    """What the programme does next, or its verdict when it has ended."""
    try:
        return programme.send(replies)
    except StopIteration as end:
        verdict: Verdict = end.value
        return verdict


def _stack(insights: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([insight[name] for insight in insights]) for name in insights[0]}
