"""Local-Only: every client for itself.

Objective:  min over v_i of F_i(v_i), for each client i.

Update:
1. client: E epochs from its own v_i; model and optimiser state persist.
2. server: nothing; nothing is ever sent.

Deviations: none. Every client trains in every round, whatever `join` says, as there is nothing to take part in.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from learn2pfed.algorithms.base import Message, Replies, Specs
from learn2pfed.algorithms.local import Local, LocalSettings, Memory
from learn2pfed.algorithms.rounds import Nothing, Rounds, Told


class Kept(NamedTuple):
    """v_i, its optimiser's memory, and the rounds done."""

    v: Tensor
    memory: Memory
    t: Tensor


class LocalOnly(Rounds):
    """Local-Only."""

    name = "local-only"
    title = "Local-Only"
    objective = "min F_i(v_i), each client alone"
    citation = "folklore"
    settings: LocalSettings
    settings_class = LocalSettings

    def begin(self) -> Kept:
        """v_i = the common start."""
        start = self.network.start
        return Kept(start, self.optimizer.fresh(start), torch.zeros(1, dtype=torch.int64))

    def opening(self, n_clients: int) -> Nothing:
        """The server holds nothing."""
        return Nothing()

    def tells(self, server: Nothing, clients: tuple[int, ...]) -> Told:
        """Nothing."""
        return [({}, clients)]

    def asks(self, t: int, n_clients: int) -> tuple[int, ...]:
        """Everybody."""
        return tuple(range(n_clients))

    def time(self, kept: Kept, heard: Message) -> int:
        """Counted at home."""
        return int(kept.t.max())

    def sends(self, server: Nothing) -> Specs:
        """Nothing."""
        return {}

    def work(self, kept: Kept, local: Local, heard: Message) -> tuple[Kept, Message]:
        """Step 1."""
        batches = local.batches(self.settings.epochs)
        v, memory = local.descend(kept.v, batches, self.optimizer, memory=kept.memory)
        return Kept(v, memory, kept.t + 1), {}

    def gather(self, server: Nothing, t: int, replies: Replies) -> Nothing:
        """Step 2."""
        return server

    def personal(self, kept: Kept, local: Local, heard: Message) -> Tensor:
        """v_i."""
        return kept.v
