"""Learn2pFed for whole networks: every tensor learns how far it is the client's own.

Objective:  client i predicts with  v_i = w̄ + o_i + s ∘ d_i,  w̄ the mean of w over rounds, d_i what training on the
client's rows makes of it; s, one number in [0, 1] for each block of parameters, is where the loss of w + o_i + s ∘ a_i
on rows that nobody trained on is least, a_i being what of d_i is the client's own.

In the cell's terms s = η / (Λ + η): 0 follows the others, 1 is the client's own. o_i needs no learning: log class
frequencies f_i of the client's rows, added to the last bias, so that what is shared need not know who has which
classes. In training it is  e_i = log((1 - ε) f_i + ε / C):  with f_i itself a client of one class has nothing to learn,
since it is told the answer.

Update, ' meaning the client's round before, t' its number:
1. client: α_i ← δ α_i + θ (u_i' - w' - e_i - (w - w') / (t - t')),  what its training has beyond the step that all take
   in a round; 0 in a client's first round, and in those in which it helps to learn s.
2. client: u_i by E epochs from w + e_i on  F_i(u) + (ρ/2) ‖u - w - e_i‖²,  after each of their K steps moved by
   -α_i / K: where it always drifts to, it does not go again, so that its gradients are those of where all go. F_i is
   over all rows but a part that is set aside until s is learned; blocks that went private start where the client left
   them, and have no α_i.

   In rounds in which s is learned:
3. client: a_i, the mean of  u_i - w - e_i - (w - w') / (t - t')  over these rounds, each counting β times as much as
   the next, also those that it sat out:  what d_i would have beyond the step of all, which is most of it while w is far
   from done. (With α_i in it training would not stop where the client's own rows are learned, and a_i be too long.)
4. client: g_ij(x) = ⟨∇F_i(w + o_i + x a_i)_j, a_ij⟩ for each block j and x = 0, ½, 1, F_i the sum over the N_i rows
   set aside: the slope of s_j where all blocks are at x; private ones are as they are.

5. client sends u_i - e_i in the blocks that are shared, g_i, N_i, n_i and n_ic, its rows of each class.
6. server: w = Σ n_i (u_i - e_i) / Σ n_i, in the last layer's row of class c with n_ic for n_i (`by_class`): there a
   client without that class has learned nothing, and would only hold the others back;  w̄, the mean over rounds,
   weighted as in a_i.
7. server: s_j, and c, the least of  N Σ_j ∫₀^{s_j} g_j(x) dx + Σ_j (s_j - c)² / (2 τ²) + (c - ½)² / (2 σ²),  g_j the
   sum of all g_ij so far by that of their N_i, a parabola through its three points, N the mean N_i times clients:
   without rows to tell, blocks are alike (τ, the `spread`) and halfway (σ = 0.2). Where each parameter of a tensor is a
   block (`head_blocks`), this gives their tensor's s, by the sum of their g_j, and one step of Newton from there the
   least of  N ∫ g_j(x) dx + (s_j - s)² / (2 τ²)  for each. When s is learned, blocks whose s is above `private_at` go
   private: neither sent nor averaged.

α_i is that of eq. (9), its sign turned, for a client that trains by steps: what its training has beyond the others' is
held against it in the next round. It costs no bytes: a client knows w - w' from what it was told.

At the end the server tells w̄ instead of w, and every client takes step 2 a few times more from there, without α_i, on
all its rows in other orders (`final_passes`, of `final_epochs`). d_i is the mean of their u_i - w̄ - e_i, and a private
block has s = 1. So what one round or one order draws at random goes, and what is common, or the client's own, stays. A
run that is to learn s and has H = 16 epochs or fewer in all its rounds (8, where some take part in a round) has a w̄
that is far from done, and an s that is not learned or learned too soon: from it every client trains alone, H epochs in
a row on F_i, the step size falling from half of `lr` to 0 (s = 1). Where classes are predicted, models travel as
numbers of 16 bits (`half`), which halves the bytes: their rounding is far below what batches draw at random. What
predicts numbers may need large ones.

Corners, without o_i, α_i, β, n_ic, rounding and rows set aside, with one last pass and s held fixed: s = 0 is FedProx,
and with ρ = 0 FedAvg; s = 1 then is FedAvg + FT, and with ρ its last pass is Ditto's step from w, λ = ρ; without the
last pass a private head is FedPer, all private is Local-Only with an optimiser that forgets between rounds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from learn2pfed.algorithms.base import Message, Replies, Spec, Specs
from learn2pfed.algorithms.local import Local, LocalSettings, towards
from learn2pfed.algorithms.rounds import Home, Rounds, Told
from learn2pfed.algorithms.settings import LayerName, RoundSettings
from learn2pfed.errors import Learn2pFedError, MessageError
from learn2pfed.models.network import Network
from learn2pfed.search import Choice
from learn2pfed.tasks import Classification, Task

POINTS = (0.0, 0.5, 1.0)
"""Where the slopes of s are looked at."""

FINE = 101
"""Values from 0 to 1 among which s is chosen."""

AROUND_HALF = 0.2
"""σ, how far from ½ the blocks are together before rows tell."""

ALONE = 16
"""H, epochs of a client at the end of a run that has few of them in all its rounds."""


class WholeNetworkSettings(LocalSettings):
    """Learned by default; `share` holds s fixed, `private` names layers that are the client's own from the start."""

    NOT_SEARCHED: ClassVar[tuple[str, ...]] = ("final_epochs",)
    rho: float = Field(0.03, ge=0, description="ρ, the pull to where a client starts")
    own_frequencies: bool = Field(True, description="o_i; false: nothing is added")
    even: float = Field(0.1, ge=0, lt=1, description="ε, how even the frequencies are made in training")
    smoothing: float = Field(0.1, gt=0, description="of the frequencies, in rows a class")
    by_class: bool = Field(True, description="the last layer averaged by rows of each class; false: by rows")
    half: bool = Field(
        True, description="models that predict classes travel in half precision; false: as the network has them"
    )
    set_aside: float = Field(
        0.05, ge=0, le=0.5, description="share of a client's rows that is set aside; 0: s stays as it is"
    )
    learn_from: float = Field(0.2, ge=0, le=1, description="share of the rounds before s is learned")
    learn_until: float = Field(
        0.4, ge=0, le=1, description="share of the rounds after which it is learned, and nothing set aside any more"
    )
    share: Annotated[float | None, Field(ge=0, le=1)] = Field(None, description="s of all blocks, fixed; none: learned")
    spread: float = Field(0.1, ge=1e-6, description="τ, how far apart the blocks are in s before rows tell")
    theta: float = Field(
        0.5,
        ge=0,
        le=1,
        description="θ, how fast α_i follows what a client's training has beyond everybody's; 0: no α_i",
    )
    fade: float = Field(0.9, ge=0, le=1, description="δ, what is left of α_i when the client takes part again")
    private: tuple[LayerName, ...] = Field((), description="layers that are private from the start")
    private_at: float = Field(0.95, gt=0, le=1, description="1: no block goes")
    head_blocks: Literal["tensor", "parameter"] = Field(
        "tensor", description="whether each tensor of the head is a block, or each of its parameters"
    )
    remember: Annotated[float | None, Field(ge=0, lt=1)] = Field(
        None,
        description="β; 0: the last round alone; none: so that means are over a fifth of the rounds, two to five",
    )
    final_passes: int = Field(
        4, ge=0, description="so many u_i at the end, from the same w̄; 0: none, ever, so that d_i is 0"
    )
    final_epochs: int = Field(2, ge=1, description="epochs of each of these")

    @model_validator(mode="after")
    def _time_to_learn(self) -> Self:
        if self.share is None and self.set_aside and self.learn_from >= self.learn_until:
            raise ValueError(
                f"learn_from = {self.learn_from:g} and learn_until = {self.learn_until:g} leave no round to learn s in"
                ": lower learn_from, or hold s fixed by share"
            )
        return self

    @property
    def beta(self) -> float:
        """β: `remember`, or of means over a fifth of the T rounds, two to five:  1 - 1 / min(max(T / 5, 2), 5)."""
        return 1 - 1 / min(max(self.n_rounds / 5, 2), 5) if self.remember is None else self.remember

    def in_time(self, t: int) -> bool:
        """Whether s would be learned in this round: in the first of all nobody has an a_i."""
        return t > 0 and self.learn_from <= t / self.n_rounds < self.learn_until

    @property
    def learns(self) -> bool:
        """Whether there is a round in which s is, and a use for it: a d_i, or blocks that may go private; and clients
        take part once, on average, by then: who does for the first time has no a_i.
        """
        used = self.final_passes > 0 or self.private_at < 1
        in_time = any(map(self.in_time, range(self.n_rounds))) and self.join * self.learn_until * self.n_rounds >= 1
        return self.share is None and self.set_aside > 0 and used and in_time and not self.ends_alone(self.n_rounds)

    def ends_alone(self, t: int) -> bool:
        """Whether a run that is to learn s, and has a last pass, is of few epochs if it ends after t rounds:
        t E ≤ H,  or H / 2 where some take part in a round: they have few rows to train alone on.
        """
        to_learn = self.share is None and self.set_aside > 0 and self.final_passes > 0
        return to_learn and t * self.epochs <= (ALONE if self.join == 1 else ALONE / 2)


class Kept(NamedTuple):
    """What a client keeps."""

    own: Tensor  # (P,), its last u_i - e_i
    last: Tensor  # (1,), the round of that, -1 before the first
    told: Tensor  # (P,) or (0,), the w of that round
    alpha: Tensor  # (P,) or (0,), α_i
    apart: Tensor  # (P,) or (0,), Σ behind a_i, weighted
    weight: Tensor  # (1,), of this sum


class Server(NamedTuple):
    """What the server holds."""

    mean: Tensor  # (P,), w̄
    w: Tensor  # (P,); private blocks as they were when they went
    weight: Tensor  # (1,), of all rounds in w̄
    share: Tensor  # (B,), s
    slopes: Tensor  # (B * 3,), Σ g_ij at all points
    rows: Tensor  # (1,), Σ N_i of these
    replies: Tensor  # (1,), how many they are
    private: Tensor  # (B,), bool
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
        places = {name: place for place, name in enumerate(network.shapes)}
        self.tensor = torch.tensor([places[name] for name in self.names])  # that a block is, or is a part of
        self.is_part = torch.tensor([name in apart for name in self.names])
        self.n_blocks = len(blocks)
        self.block = torch.repeat_interleave(torch.arange(self.n_blocks), torch.tensor(sizes))
        unknown = [layer for layer in how.private if not any(name.startswith(f"{layer}.") for name in self.names)]
        if unknown:
            layers = ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in self.names))
            raise Learn2pFedError(f"private: the network has no layer {unknown[0]!r}; there are {layers}.")
        self.learns = how.learns
        self.n_slopes = self.n_blocks * len(POINTS) if self.learns else 0
        classes = isinstance(task, Classification)
        self.travels = torch.float16 if how.half and classes else network.dtype
        needed = classes and (how.own_frequencies or how.by_class)
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
                f"set both to false (in experiments own.{self.name}.own_frequencies and own.{self.name}.by_class)."
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

    def offset(self, local: Local, even: float = 0.0) -> Tensor:
        """o_i, (..., P); with `even` e_i."""
        if self.last_bias is None or not self.settings.own_frequencies:
            return self.network.start.new_zeros(*local.lead, self.network.n_parameters)
        smooth = self.counts(local).to(self.network.start.dtype) + self.settings.smoothing
        frequencies = smooth / smooth.sum(-1, keepdim=True)
        return self.network.flatten({self.last_bias: ((1 - even) * frequencies + even / smooth.shape[-1]).log()})

    # what travels

    def begin(self) -> Kept:
        """The common start; what is there for α_i or for learning s is empty where there is neither."""
        start, corrects = self.network.start, self.settings.theta > 0
        none, never = torch.zeros_like(start), start.new_full((1,), -1)
        told, alpha, apart = (len(start) * wanted for wanted in (corrects or self.learns, corrects, self.learns))
        return Kept(start, never, start[:told], none[:alpha], none[:apart], start.new_zeros(1))

    def opening(self, n_clients: int) -> Server:
        """s = ½, or as it is fixed."""
        start, how = self.network.start, self.settings
        share = start.new_full((self.n_blocks,), 0.5 if how.share is None else how.share)
        private = torch.tensor([any(name.startswith(f"{layer}.") for layer in how.private) for name in self.names])
        met = torch.zeros(n_clients, dtype=torch.bool)
        none, slopes = start.new_zeros(1), start.new_zeros(self.n_slopes)
        return Server(start, start, none, share, slopes, none, none, private, met)

    def tells(self, server: Server, clients: tuple[int, ...]) -> Told:
        """w, s and which blocks are private."""
        return self.told(server, server.w, clients)

    def closes(self, server: Server, clients: tuple[int, ...]) -> Told:
        """w̄ instead of w."""
        return self.told(server, server.mean, clients)

    def told(self, server: Server, w: Tensor, clients: tuple[int, ...]) -> Told:
        """Without the private blocks of w to those who have their own."""
        common, w = {"share": server.share, "private": server.private}, w.to(self.travels)
        known = tuple(i for i in clients if server.met[i])
        new = tuple(i for i in clients if not server.met[i])
        groups = [({**common, "w": w[~server.private[self.block]]}, known), ({**common, "w": w}, new)]
        return [(said, group) for said, group in groups if group]

    def expects(self, kind: str, state: Home) -> Specs:
        """w may come without the blocks that are private."""
        specs = dict(super().expects(kind, state))
        return specs | {"w": specs["w"]._replace(or_shorter=True)}

    def sends(self, server: Server) -> Specs:
        """u_i - e_i in the blocks that are shared, the slopes of s and their rows, and the rows of each class."""
        w = Spec((int((~server.private[self.block]).sum()),), self.travels)
        counts = Spec((self.n_counts,), torch.int64)
        return {"w": w, "slopes": self.vector(self.n_slopes), "aside": Spec((1,), torch.int64), "counts": counts}

    # what is done

    def common(self, kept: Kept, local: Local, heard: Message) -> tuple[Tensor, Tensor, Tensor]:
        """Where the client starts, without e_i; s of every parameter; which parameters are shared.

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
        return start, heard["share"][self.block], shared

    def work(self, kept: Kept, local: Local, heard: Message) -> tuple[Kept, Message]:
        """Steps 1 to 5."""
        how, learning = self.settings, self.learning(local.round)
        start, _, shared = self.common(kept, local, heard)
        until_learned = self.learns and local.round / how.n_rounds < how.learn_until
        seen = replace(local, set_aside=how.set_aside) if until_learned else local
        step = self.step_of_all(kept, local, start)
        alpha = self.dual(kept, step) * shared if how.theta and not learning else None
        own = self.trained(seen, start, how.epochs, alpha)
        held = torch.zeros_like(kept.alpha) if alpha is None else alpha
        after = kept._replace(own=own, last=torch.full_like(kept.last, local.round), alpha=held)
        if kept.told.shape[-1]:
            after = after._replace(told=start.clone())
        slopes, aside = start.new_zeros(*local.lead, self.n_slopes), torch.zeros(*local.lead, 1, dtype=torch.int64)
        if learning:
            after = self.set_apart(kept, after, own - start - step)
            slopes, aside = self.slopes(after, seen, shared)
        counts = self.counts(seen) if self.n_counts else torch.zeros(*local.lead, 0, dtype=torch.int64)
        return after, {"w": own[..., shared].to(self.travels), "slopes": slopes, "aside": aside, "counts": counts}

    def learning(self, t: int) -> bool:
        """Whether s is learned in this round."""
        return self.learns and self.settings.in_time(t)

    def step_of_all(self, kept: Kept, local: Local, start: Tensor) -> Tensor:
        """(w - w') / (t - t'), the step that all take in a round; 0 for a client in its first."""
        if not kept.told.shape[-1]:
            return torch.zeros_like(start)
        return torch.where(kept.last >= 0, (start - kept.told) / (local.round - kept.last), 0.0)

    def dual(self, kept: Kept, step: Tensor) -> Tensor:
        """Step 1: α_i; 0 for a client in its first round, of which `own` and `told` are both the start."""
        return self.settings.fade * kept.alpha + self.settings.theta * (kept.own - kept.told - step)

    def trained(self, local: Local, start: Tensor, epochs: int, alpha: Tensor | None = None) -> Tensor:
        """Step 2: u_i - e_i; without an α_i where there is none, and at the end."""
        offset, rho = self.offset(local, self.settings.even), self.settings.rho
        pull = towards(start + offset, rho) if rho else None
        shift = None if alpha is None else -alpha / local.n_steps(epochs).clamp(min=1)
        u, _ = local.descend(start + offset, local.batches(epochs), self.optimizer, pull, shift=shift)
        return u - offset

    def set_apart(self, before: Kept, after: Kept, own: Tensor) -> Kept:
        """Step 3, `own` being this round's term; a client's first round of all has none."""
        met = before.last >= 0
        old = self.settings.beta ** (after.last - before.last)
        return after._replace(
            apart=old * before.apart + torch.where(met, own, 0.0), weight=old * before.weight + met.to(old.dtype)
        )

    def slopes(self, kept: Kept, seen: Local, shared: Tensor) -> tuple[Tensor, Tensor]:
        """Step 4, (..., B * 3), zero in private blocks, and N_i, (..., 1): none for a client in its first round."""
        met = kept.weight > 0
        a, offset = kept.apart / kept.weight.where(met, 1.0), self.offset(seen)
        sizes = torch.tensor([len(seen.split(i)[1]) for i in range(len(seen.clients))]).view(*seen.lead, 1)
        n = torch.where(met, sizes, 0)
        counts, none = a * shared * n, a.new_zeros(*seen.lead, self.n_blocks)
        points = [torch.where(shared, kept.told + x * a, kept.own) + offset for x in POINTS]
        at = [seen.gradient_aside(point) * counts for point in points]
        return torch.stack([none.index_add(-1, self.block, each) for each in at], -1).flatten(-2), n

    def gather(self, server: Server, t: int, replies: Replies) -> Server:
        """Steps 6 and 7."""
        w, met = server.w.clone(), server.met.clone()
        shared = ~server.private[self.block]
        w[shared] = self.mean(replies, self.counted[shared], w[shared])
        met[list(replies)] = True
        weight = self.settings.beta * server.weight + 1
        server = server._replace(w=w, mean=torch.lerp(server.mean, w, 1 / weight), weight=weight, met=met)
        server = self.learn(server, replies) if self.learning(t) else server
        done = (t + 1) / self.settings.n_rounds >= self.settings.learn_until and bool(server.rows)
        return server._replace(private=server.private | (server.share > self.settings.private_at) & done)

    def learn(self, server: Server, replies: Replies) -> Server:
        """Step 7."""
        slopes = server.slopes + torch.stack([reply["slopes"] for reply in replies.values()]).sum(0)
        rows = server.rows + sum(reply["aside"] for reply in replies.values())
        n_replies = server.replies + len(replies)
        server = server._replace(slopes=slopes, rows=rows, replies=n_replies)
        if not rows:
            return server
        by_all = len(server.met) * float(rows / n_replies)
        found = self.shares(by_all * (slopes / rows).view(-1, len(POINTS)))
        return server._replace(share=torch.where(server.private, server.share, found))

    def shares(self, slopes: Tensor) -> Tensor:
        """s, (B,), of the blocks' N g_j at `POINTS`, (B, 3); a parameter's is  s - g_j(s) / (g_j'(s) + 1 / τ²),  s its
        tensor's, and with no g_j' where that is negative.
        """
        spread = self.settings.spread
        tensors = slopes.new_zeros(len(self.network.shapes), len(POINTS)).index_add(0, self.tensor, slopes)
        s = least(tensors, spread)[self.tensor]
        # of the parabolas that are 1 at one of the points and 0 at the others
        value = torch.stack([(2 * s - 1) * (s - 1), 4 * s * (1 - s), s * (2 * s - 1)], -1)
        slope = torch.stack([4 * s - 3, 4 - 8 * s, 4 * s - 1], -1)
        step = (slopes * value).sum(-1) / ((slopes * slope).sum(-1).clamp(min=0) + 1 / spread**2)
        return torch.where(self.is_part, s - step, s).clamp(0, 1)

    def learned(self, server: Server) -> dict[str, Tensor]:
        """s of every block, 1 where it went private and where clients end alone; `names` has their names."""
        own = server.private | self.settings.ends_alone(self.settings.n_rounds)
        share = torch.where(own, 1.0, server.share)
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
        if self.settings.ends_alone(local.round):
            return self.alone(local, start) + self.offset(local)
        d, n_passes = torch.zeros_like(start), self.settings.final_passes
        for k in range(n_passes):
            in_turn = replace(local, round=local.round + k)
            d += (self.trained(in_turn, start, self.settings.final_epochs) - start) / n_passes
        return start + torch.where(shared, share, 1.0) * d + self.offset(local)

    def alone(self, local: Local, start: Tensor) -> Tensor:
        """u_i - e_i of a run of few epochs: H more from w̄, by steps  (lr / 2) (1 - k / H),  k from 0."""
        offset, memory = self.offset(local, self.settings.even), None
        u = start + offset
        for k in range(ALONE):
            slower = replace(self.optimizer, lr=self.settings.lr / 2 * (1 - k / ALONE))
            u, memory = local.descend(u, local.batches(1), slower, memory=memory)
            local = replace(local, round=local.round + 1)
        return u - offset


def least(slopes: Tensor, spread: float) -> Tensor:
    """s, (B,), the least of  Σ_j ∫₀^{s_j} g_j + (s_j - c)² / (2 τ²) + (c - ½)² / (2 σ²),  g_j at `POINTS`, (B, 3)."""
    x = torch.linspace(0, 1, FINE, dtype=slopes.dtype)
    # of the parabolas that are 1 at one of the points and 0 at the others
    integrals = torch.stack([x - 3 / 2 * x**2 + 2 / 3 * x**3, 2 * x**2 - 4 / 3 * x**3, 2 / 3 * x**3 - x**2 / 2])
    losses = slopes @ integrals
    found = [(losses + (x - c).square() / (2 * spread**2)).min(1) for c in x]
    best = torch.stack([at_c.values.sum() for at_c in found]).add((x - 0.5).square() / (2 * AROUND_HALF**2)).argmin()
    return x[found[best].indices]


class FixedShareSettings(WholeNetworkSettings):
    """One s for all blocks."""

    share: Annotated[float, Choice((0.1, 0.25, 0.5, 0.75, 1.0))] = Field(0.5, ge=0, le=1, description="s of all blocks")


class FixedShare(WholeNetwork):
    """What learning s adds, is what this lacks; it sets nothing aside, and has α_i in every round."""

    name = "fixed-share"
    title = "Learn2pFed, one s, fixed"
    objective = "v_i = w + o_i + s d_i, s given"
    settings: FixedShareSettings
    settings_class = FixedShareSettings


class OwnFrequenciesSettings(FixedShareSettings):
    """s = 0."""

    NOT_SEARCHED: ClassVar[tuple[str, ...]] = ("share", "final_epochs")
    rho: float = Field(0.0, ge=0, description="ρ, the pull to where a client starts")
    even: float = Field(0.0, ge=0, lt=1, description="ε, how even the frequencies are made in training")
    theta: float = Field(0.0, ge=0, le=1, description="θ, how fast α_i follows; 0: no α_i")
    by_class: bool = Field(False, description="the last layer averaged by rows of each class; false: by rows")
    half: bool = Field(False, description="models travel in half precision; false: as the network has them")
    share: float = Field(0.0, ge=0, le=1, description="s of all blocks")
    remember: float = Field(0.0, ge=0, lt=1, description="β; 0: the last round alone")
    final_passes: int = Field(0, ge=0, description="so many u_i at the end, of which nothing is kept")


class OwnFrequencies(WholeNetwork):
    """What o_i alone does: FedAvg, with each client's log frequencies added to the last bias."""

    name = "own-frequencies"
    title = "FedAvg, own frequencies"
    objective = "min Σ (n_i / n) F_i(w + o_i)"
    settings: OwnFrequenciesSettings
    settings_class = OwnFrequenciesSettings
