"""Learn2pFed for whole networks: every tensor learns how far it is the client's own.

Objective:  client i predicts with  v_i = w + o_i + s ∘ d_i,  d_i what training on the client's rows makes of w + o_i;
s, one number in [0, 1] for each block of parameters, minimises the loss of the v_i on rows that were set aside.

In the cell's terms s = η / (Λ + η): 0 follows the others, 1 is the client's own. o_i needs no learning: log class
frequencies of the client's rows, added to the last bias, so that what is shared need not know who has which classes.

Update:
1. client: u_i by E epochs from w + o_i, on all rows but a part that is set aside, another in each round until all have
   had their turn; blocks that went private start where the client left them.
2. client: g_ij = ⟨∇F_i(w + o_i + s ∘ (u_i - w - o_i))_j, (u_i - w - o_i)_j⟩ for each block j, F_i over the rows set
   aside: the slope of s_j.
3. client sends u_i - o_i in the blocks that are shared, g_i, n_i and n_ic, its rows of each class.
4. server: w = Σ n_i (u_i - o_i) / Σ n_i, in the last layer's row of class c with n_ic for n_i (`by_class`): there a
   client without that class has learned nothing, and would only hold the others back;  logit(s) by Adam on the mean of
   the g_i;  a block whose s passes `private_at` goes private: from then on it is neither sent nor averaged.

At the end every client takes step 1 once more, on all rows, and has v_i. d_i is the mean of its u_i - w - o_i, a round
counting β times as much as the next (`remember`), also those that the client sat out: what one round draws at random
goes, what is the client's own stays, and what it learned from a w of long ago counts little. Models travel as numbers
of 16 bits (`half`), which halves the bytes: their rounding is far below what batches draw at random.

Corners, without o_i, β, n_ic, rounding and rows set aside, and with s held fixed: s = 0 is FedAvg, s = 1 FedAvg + FT;
without the last pass, s = 0 with a private head is FedPer, and all private is Local-Only with an optimiser that forgets
between rounds. One s between 0 and 1 for all blocks is, like Ditto's λ, one number for how far the client follows w.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from learn2pfed.algorithms.base import Message, Replies, Spec, Specs
from learn2pfed.algorithms.local import Local, LocalSettings, Memory, Optimizer
from learn2pfed.algorithms.rounds import Home, Rounds, Told
from learn2pfed.algorithms.settings import RoundSettings
from learn2pfed.errors import Learn2pFedError, MessageError
from learn2pfed.models.network import Network
from learn2pfed.search import Choice
from learn2pfed.tasks import Classification, Task


class WholeNetworkSettings(LocalSettings):
    """Learned by default; `share` holds s fixed, `private` names layers that are the client's own from the start."""

    own_frequencies: bool = Field(True, description="o_i; false: nothing is added")
    smoothing: float = Field(0.1, gt=0, description="of the frequencies, in rows a class")
    by_class: bool = Field(True, description="the last layer averaged by rows of each class; false: by rows")
    half: bool = Field(True, description="models travel in half precision; false: as the network has them")
    set_aside: float = Field(
        1 / 7, ge=0, le=0.5, description="share of a client's rows that is set aside in a round; 0: s stays as it is"
    )
    share: Annotated[float | None, Field(ge=0, le=1)] = Field(None, description="s of all blocks, fixed; none: learned")
    share_lr: float = Field(0.1, gt=0, description="step size for logit(s)")
    private: tuple[str, ...] = Field((), description="layers that are private from the start")
    private_at: float = Field(0.95, gt=0, le=1, description="1: no block goes")
    private_after: float = Field(0.3, ge=0, le=1, description="share of the rounds before which no block goes private")
    head_blocks: Literal["tensor", "parameter"] = Field(
        "tensor", description="whether each tensor of the head is a block, or each of its parameters"
    )
    remember: Annotated[float, Choice((0.0, 0.5, 0.8))] = Field(
        0.8, ge=0, lt=1, description="β; 0: the last round alone"
    )
    final_epochs: Annotated[int, Choice((1, 2, 5))] = Field(2, ge=0, description="epochs of the last u_i")


class Kept(NamedTuple):
    """What a client keeps."""

    own: Tensor  # (P,), its last u_i - o_i
    moved: Tensor  # (P,), Σ of u_i - w - o_i, weighted
    weight: Tensor  # (1,), of that sum
    last: Tensor  # (1,), the round of its last term


class Server(NamedTuple):
    """What the server holds."""

    w: Tensor  # (P,); private blocks as they were when they went
    logit: Tensor  # (B,), of s
    private: Tensor  # (B,), bool
    memory: Memory  # of s's optimiser
    met: Tensor  # (M,), bool: who has answered, and so has a model of its own


class WholeNetwork(Rounds):
    """Learn2pFed for whole networks."""

    name = "learn2pfed"
    title = "Learn2pFed"
    objective = "v_i = w + o_i + s ∘ d_i, s by rows set aside"
    citation = "this package"
    settings: WholeNetworkSettings
    settings_class = WholeNetworkSettings

    def __init__(self, settings: RoundSettings, network: Network, task: Task) -> None:
        super().__init__(settings, network, task)
        how = self.settings
        apart = network.names["head"] if how.head_blocks == "parameter" else frozenset()
        blocks = [
            (name, 1 if name in apart else size)
            for name, size in zip(network.shapes, network.sizes, strict=True)
            for _ in range(size if name in apart else 1)
        ]
        self.names, sizes = zip(*blocks, strict=True)
        self.n_blocks = len(blocks)
        self.block = torch.repeat_interleave(torch.arange(self.n_blocks), torch.tensor(sizes))
        unknown = [layer for layer in how.private if not any(name.startswith(f"{layer}.") for name in self.names)]
        if unknown:
            layers = ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in self.names))
            raise Learn2pFedError(f"private: the network has no layer {unknown[0]!r}; there are {layers}.")
        self.learns = how.share is None
        self.travels = torch.float16 if how.half else network.dtype
        self.learner = Optimizer("adam", how.share_lr)
        needed = isinstance(task, Classification) and (how.own_frequencies or how.by_class)
        self.last_bias = self._last_bias() if needed else None
        self.n_counts = task.n_outputs if needed and how.by_class else 0
        self.counted = self._counted()

    def _last_bias(self) -> str:
        """The bias that has a number for each class."""
        last = [name for name in self.network.shapes if name in self.network.names["head"] and name.endswith("bias")]
        name = last[-1] if last else ""
        if self.network.shapes.get(name) != (self.task.n_outputs,):
            raise Learn2pFedError(
                "own_frequencies and by_class need a head whose last layer has a bias for each class: give it one, or "
                "set both to false."
            )
        return name

    def _counted(self) -> Tensor:
        """(P,): the class whose rows a parameter is averaged by, -1 for all rows."""
        last = self.last_bias.rpartition(".")[0] if self.last_bias and self.n_counts else None
        found = [
            torch.arange(shape[0]).repeat_interleave(size // shape[0])
            if name.rpartition(".")[0] == last and shape[:1] == (self.n_counts,)
            else torch.full((size,), -1)
            for (name, shape), size in zip(self.network.shapes.items(), self.network.sizes, strict=True)
        ]
        return torch.cat(found)

    def counts(self, local: Local) -> Tensor:
        """Rows of each class that are trained on, (..., C): what is set aside is not known."""
        rows = [local.y[local.split(i)[0]] for i in range(len(local.clients))]
        counts = torch.stack([torch.bincount(y, minlength=self.task.n_outputs) for y in rows])
        return counts if local.axis else counts[0]

    def offset(self, local: Local) -> Tensor:
        """o_i, (..., P)."""
        if self.last_bias is None or not self.settings.own_frequencies:
            return self.network.start.new_zeros(*local.lead, self.network.n_parameters)
        smooth = self.counts(local).to(self.network.start.dtype) + self.settings.smoothing
        return self.network.flatten({self.last_bias: (smooth / smooth.sum(-1, keepdim=True)).log()})

    # what travels

    def begin(self) -> Kept:
        """The common start."""
        start = self.network.start
        return Kept(start, torch.zeros_like(start), start.new_zeros(1), start.new_zeros(1))

    def opening(self, n_clients: int) -> Server:
        """s = ½, or as it is fixed."""
        start, how = self.network.start, self.settings
        share = start.new_full((self.n_blocks,), 0.5 if how.share is None else how.share)
        private = torch.tensor([any(name.startswith(f"{layer}.") for layer in how.private) for name in self.names])
        met = torch.zeros(n_clients, dtype=torch.bool)
        return Server(start, share.logit(), private, self.learner.fresh(share), met)

    def tells(self, server: Server, clients: tuple[int, ...]) -> Told:
        """s, which blocks are private, and w: without these blocks, to those who have their own."""
        common, w = {"share": server.logit.sigmoid(), "private": server.private}, server.w.to(self.travels)
        known = tuple(i for i in clients if server.met[i])
        new = tuple(i for i in clients if not server.met[i])
        told = [({**common, "w": w[~server.private[self.block]]}, known), ({**common, "w": w}, new)]
        return [(said, group) for said, group in told if group]

    def expects(self, kind: str, state: Home) -> Specs:
        """w may come without the blocks that are private."""
        specs = dict(super().expects(kind, state))
        return specs | {"w": specs["w"]._replace(or_shorter=True)}

    def sends(self, server: Server) -> Specs:
        """u_i - o_i in the blocks that are shared, the slope of s, and the rows of each class."""
        w = Spec((int((~server.private[self.block]).sum()),), self.travels)
        slope = self.vector(self.n_blocks if self.learns else 0)
        return {"w": w, "slope": slope, "counts": Spec((self.n_counts,), torch.int64)}

    # what is done

    def common(self, kept: Kept, local: Local, heard: Message) -> tuple[Tensor, Tensor, Tensor]:
        """Where the client starts, without o_i; s of every parameter, 1 in private blocks; which parameters are shared.

        Whoever is told all of w has no model of its own yet and starts from it in private blocks too.
        """
        shared = ~heard["private"][self.block]
        own, w = kept.own, heard["w"].to(self.network.dtype)
        if len(w) not in (len(shared), int(shared.sum())):
            raise MessageError(f"w came with {len(w)} numbers where {int(shared.sum())} or {len(shared)} were agreed.")
        if len(w) == len(shared):
            start = local.each(w)
        else:
            start = own.clone()
            start[..., shared] = w
        share = torch.where(shared, heard["share"][self.block], 1.0)
        return start, share, shared

    def work(self, kept: Kept, local: Local, heard: Message) -> tuple[Kept, Message]:
        """Steps 1 to 3."""
        start, share, shared = self.common(kept, local, heard)
        seen = replace(local, set_aside=self.settings.set_aside, in_turn=True) if self.learns else local
        kept = self.trained(kept, seen, start, self.settings.epochs)
        slope = self.slope(kept.own - start, seen, start, share, shared) if self.learns else start[..., :0]
        counts = self.counts(seen) if self.n_counts else torch.zeros(*local.lead, 0, dtype=torch.int64)
        return kept, {"w": kept.own[..., shared].to(self.travels), "slope": slope, "counts": counts}

    def slope(self, d: Tensor, seen: Local, start: Tensor, share: Tensor, shared: Tensor) -> Tensor:
        """Step 2, (..., B): zero in private blocks, and for a client of which nothing is set aside."""
        judged = next(replace(seen, only_aside=True, batch_size=max(seen.sizes)).batches(1))
        at = seen.gradient(start + share * d + self.offset(seen), judged)
        able = torch.tensor([len(seen.split(i)[1]) > 0 for i in range(len(seen.clients))]).view(*seen.lead, 1)
        found = start.new_zeros(*seen.lead, self.n_blocks)
        return found.index_add_(-1, self.block, at * d * shared * able)

    def trained(self, kept: Kept, local: Local, start: Tensor, epochs: int) -> Kept:
        """Step 1."""
        offset, beta = self.offset(local), self.settings.remember
        u, _ = local.descend(start + offset, local.batches(epochs), self.optimizer)
        now = torch.full_like(kept.last, local.round)
        old = beta ** (now - kept.last)
        moved = old * kept.moved + (1 - beta) * (u - start - offset)
        return Kept(u - offset, moved, old * kept.weight + (1 - beta), now)

    def mixed(self, kept: Kept, start: Tensor, share: Tensor, shared: Tensor) -> Tensor:
        """v_i - o_i."""
        d = kept.moved / kept.weight.where(kept.weight > 0, 1.0)
        return torch.where(shared, start + share * d, kept.own)

    def gather(self, server: Server, t: int, replies: Replies) -> Server:
        """Step 4."""
        how, w, met = self.settings, server.w.clone(), server.met.clone()
        shared = ~server.private[self.block]
        w[shared] = self.mean(replies, self.counted[shared], w[shared])
        met[list(replies)] = True
        server = server._replace(w=w, met=met)
        if not self.learns:
            return server
        s = server.logit.sigmoid()
        slope = torch.stack([reply["slope"] for reply in replies.values()]).mean(0) * s * (1 - s)
        logit, memory = self.learner.step(server.logit, slope, server.memory)
        logit = torch.where(server.private, server.logit, logit)
        going = (logit.sigmoid() > how.private_at) & (t + 1 >= how.private_after * how.n_rounds)
        return server._replace(logit=logit, memory=memory, private=server.private | going)

    def learned(self, server: Server) -> dict[str, Tensor]:
        """s of every block, 1 where it went private; `names` has their names."""
        share = torch.where(server.private, 1.0, server.logit.sigmoid())
        return {"share": share.expand(len(server.met), -1)}

    def mean(self, replies: Replies, counted: Tensor, before: Tensor) -> Tensor:
        """Σ n_i w_i / Σ n_i, with n_ic where a class is counted; as before where nobody has that class."""
        stacked = torch.stack([reply["w"] for reply in replies.values()]).to(before.dtype)
        n = torch.stack([torch.cat([reply["counts"], reply["n"].view(1)]) for reply in replies.values()])
        weight = n.to(stacked.dtype) / n.sum(0).clamp(min=1)
        mean = weight[:, -1] @ stacked
        own = counted >= 0
        mean[own] = (weight[:, counted[own]] * stacked[:, own]).sum(0)
        return torch.where(n.sum(0)[counted] > 0, mean, before)

    def personal(self, kept: Kept, local: Local, heard: Message) -> Tensor:
        """v_i, from all rows."""
        start, share, shared = self.common(kept, local, heard)
        epochs = self.settings.final_epochs
        last = self.trained(kept, local, start, epochs) if epochs else kept._replace(own=start)
        return self.mixed(last, start, share, shared) + self.offset(local)


class FixedShareSettings(WholeNetworkSettings):
    """One s for all blocks."""

    share: Annotated[float, Choice((0.1, 0.25, 0.5, 0.75, 1.0))] = Field(0.5, ge=0, le=1, description="s of all blocks")


class FixedShare(WholeNetwork):
    """What learning s adds, is what this lacks."""

    name = "fixed-share"
    title = "Learn2pFed, one s, fixed"
    objective = "v_i = w + o_i + s d_i, s given"
    settings: FixedShareSettings
    settings_class = FixedShareSettings


class OwnFrequenciesSettings(FixedShareSettings):
    """s = 0."""

    NOT_SEARCHED: ClassVar[tuple[str, ...]] = ("share", "remember", "final_epochs")
    by_class: bool = Field(False, description="the last layer averaged by rows of each class; false: by rows")
    half: bool = Field(False, description="models travel in half precision; false: as the network has them")
    share: float = Field(0.0, ge=0, le=1, description="s of all blocks")
    final_epochs: int = Field(0, ge=0, description="epochs of the last u_i, of which nothing is kept")


class OwnFrequencies(WholeNetwork):
    """What o_i alone does: FedAvg, with each client's log frequencies added to the last bias."""

    name = "own-frequencies"
    title = "FedAvg, own frequencies"
    objective = "min Σ (n_i / n) F_i(w + o_i)"
    settings: OwnFrequenciesSettings
    settings_class = OwnFrequenciesSettings
