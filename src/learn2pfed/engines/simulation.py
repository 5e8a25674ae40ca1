"""The simulator: one process, all clients at once, no messages; bytes as if they had travelled."""

from __future__ import annotations

from dataclasses import replace

from learn2pfed.algorithms.base import Fused, Outcome, Progress, Talk, Traffic
from learn2pfed.data.federated import FederatedData, Streamed
from learn2pfed.engines.messages import size


def run_simulation(algorithm: Fused, data: FederatedData | Streamed, progress: Progress | None = None) -> Outcome:
    """The algorithm's fused computation, with the bytes that the conversation would have cost."""
    outcome = algorithm.fused(data, progress)
    return replace(outcome, traffic=traffic_of(outcome.talks))


def traffic_of(talks: tuple[Talk, ...]) -> Traffic:
    """Bytes of every exchange, all that were asked answering."""
    total = Traffic()
    for talk in talks:
        down, up = size(talk.broadcast), size(talk.reply)
        total += Traffic(up * talk.times * talk.n_clients, down * talk.times * talk.n_clients, talk.times)
    return total
