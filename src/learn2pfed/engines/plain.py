"""The plain engine: every client's handlers one by one, through encoded messages. Slow, and the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from learn2pfed.algorithms.base import (
    Conversation,
    Exchange,
    Message,
    Outcome,
    Programme,
    Progress,
    Traffic,
    Verdict,
)
from learn2pfed.data.federated import FederatedData
from learn2pfed.engines.messages import encode, receive
from learn2pfed.errors import MessageError

S = TypeVar("S")

Wire = Callable[[int, int, bytes], bytes | None]
"""(number of the exchange, client, reply) -> the reply as it arrives, or None if it is lost."""


def run_plain(
    algorithm: Conversation[S],
    data: FederatedData,
    progress: Progress | None = None,
    wire: Wire | None = None,
) -> Outcome:
    """Carry the whole conversation; `wire` lets a test lose or damage replies."""
    states = [algorithm.enter(index, client) for index, client in enumerate(data.clients)]
    programme = algorithm.programme(len(data), data.n_features, progress)
    traffic = Traffic()
    missing: dict[int, int] = {}
    exchange = next(programme)
    while True:
        replies: dict[int, Message] = {}
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
        verdict = _next(programme, replies)
        if isinstance(verdict, Verdict):
            break
        exchange = verdict
    served = sorted(verdict.served)
    models = verdict.global_model.repeat(len(data), 1)
    models[served] = torch.stack([algorithm.model(states[i]) for i in served])
    insight = _stack([algorithm.insight(states[i]) for i in served])
    return Outcome(models, verdict.global_model, verdict.history, insight, traffic, missing)


def _arrive(up: bytes, number: int, client: int, wire: Wire | None) -> bytes:
    arrived = up if wire is None else wire(number, client, up)
    if arrived is None:
        raise MessageError(f"the reply of client {client} was lost.")
    return arrived


def _next(programme: Programme, replies: dict[int, Message]) -> Exchange | Verdict:
    """The programme's next exchange, or its verdict when it has ended."""
    try:
        return programme.send(replies)
    except StopIteration as end:
        verdict: Verdict = end.value
        return verdict


def _stack(insights: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([insight[name] for insight in insights]) for name in insights[0]}
