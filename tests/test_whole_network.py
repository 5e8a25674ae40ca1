"""Learn2pFed for whole networks: corners, what s learns, what goes private, own frequencies, and what travels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learn2pfed.algorithms.base import Outcome
from learn2pfed.algorithms.ditto import Ditto, DittoSettings
from learn2pfed.algorithms.fedavg_ft import FedAvgFT, FineTuneSettings
from learn2pfed.algorithms.local import LocalSettings
from learn2pfed.algorithms.local_only import LocalOnly
from learn2pfed.algorithms.rounds import Told
from learn2pfed.algorithms.whole_network import Kept, Server, WholeNetwork, WholeNetworkSettings, least
from learn2pfed.data.federated import Samples
from learn2pfed.engines.messages import decode, encode, receive
from learn2pfed.engines.plain import run_plain
from learn2pfed.engines.rounds import Simulator, home, run_rounds
from learn2pfed.errors import Learn2pFedError, MessageError
from learn2pfed.models.modules import build
from learn2pfed.models.network import Network
from learn2pfed.tasks import Classification, Regression
from tests.test_baselines import FIXED, agree

CLASSES = Classification(3)


def mlp() -> Network:
    return build("mlp", (4,), 3, hidden=(6,)).to(torch.float64)


def clients(sizes: tuple[int, ...] = (24, 15, 18, 30), shift: float = 1.0, noise: float = 0.0) -> Samples:
    """Each client turns the scores that decide the class in its own way, the more so the larger `shift`."""
    draw = torch.Generator().manual_seed(0)
    normal = torch.randn(4, 3, dtype=torch.float64, generator=draw)
    rows = []
    for i, n in enumerate(sizes):
        X = torch.randn(n, 4, dtype=torch.float64, generator=draw)
        own = shift * torch.randn(4, 3, dtype=torch.float64, generator=draw)
        blur = noise * torch.randn(n, 3, dtype=torch.float64, generator=draw) if noise else 0.0
        rows.append((f"c{i}", X, (X @ (normal + own) + blur).argmax(1)))
    return Samples.join(rows)


def whole(network: Network | None = None, **changes: Any) -> WholeNetwork:
    settings = {
        "n_rounds": 3,
        "epochs": 2 if "share" in changes else 6,  # 3 rounds of 2 would learn no s
        "batch_size": 8,
        "lr": 0.05,
        "rho": 0.0,
        "half": False,
        "set_aside": 1 / 7,
        "learn_from": 0.2,
        "learn_until": 0.6,
    }
    settings |= changes
    return WholeNetwork(WholeNetworkSettings.of(**settings), mlp() if network is None else network, CLASSES)


def test_all_private_is_local_only() -> None:
    alone = LocalOnly(LocalSettings(n_rounds=3, batch_size=8, lr=0.05, optimizer="sgd"), mlp(), CLASSES)
    found = run_rounds(whole(**FIXED, private=("layers.0", "head"), optimizer="sgd"), clients())
    assert torch.equal(found.models, run_rounds(alone, clients()).models)


def test_an_s_between_lies_between_fedavg_and_fine_tuning() -> None:
    tuned = FedAvgFT(FineTuneSettings(n_rounds=3, batch_size=8, lr=0.05, ft_lr=0.05, ft_epochs=2), mlp(), CLASSES)
    theirs = run_rounds(tuned, clients())
    found = run_rounds(whole(**FIXED | {"share": 0.25, "final_passes": 1}), clients())
    expected = torch.lerp(theirs.global_model.expand_as(theirs.models), theirs.models, 0.25)
    torch.testing.assert_close(found.models, expected, rtol=0, atol=1e-12)


def test_s_at_one_is_fine_tuning() -> None:
    tuned = FedAvgFT(FineTuneSettings(n_rounds=3, batch_size=8, lr=0.05, ft_lr=0.05, ft_epochs=2), mlp(), CLASSES)
    found = run_rounds(whole(**FIXED | {"share": 1.0, "final_passes": 1}), clients())
    torch.testing.assert_close(found.models, run_rounds(tuned, clients()).models, rtol=0, atol=1e-12)


def test_s_at_one_with_a_pull_is_dittos_step_from_w() -> None:
    """v_i by E epochs on  F_i(v) + (λ/2) ‖v - w‖²  from w, ρ = λ."""
    ditto = Ditto(DittoSettings(n_rounds=3, batch_size=8, lr=0.05, lam=0.7), mlp(), CLASSES)
    ours = whole(**FIXED | {"share": 1.0, "final_passes": 1, "rho": 0.7})
    data, w = clients(), run_rounds(ours, clients()).global_model
    for i in range(len(data)):
        local = home(ours, data, (i,), axis=False)
        theirs = ditto.personalise(ditto.begin()._replace(v=w), local, w, ours.settings.final_epochs).v
        heard = {"w": w, "share": torch.ones(ours.n_blocks), "private": torch.zeros(ours.n_blocks, dtype=torch.bool)}
        torch.testing.assert_close(ours.personal(ours.begin(), local, heard), theirs, rtol=0, atol=1e-12)
        assert (theirs - w).abs().max() > 0.01


def test_a_strong_pull_holds_a_client_where_it_starts() -> None:
    algorithm, data = whole(rho=1e4, optimizer="sgd", lr=1e-4), clients()
    ((heard, _),) = algorithm.tells(algorithm.opening(4), (0,))
    kept, _ = algorithm.work(algorithm.begin(), home(algorithm, data, (0,), axis=False), heard)
    moved = kept.own - algorithm.network.start  # not to be taken for o_i, of which the pull knows
    assert 0 < moved.abs().max() < 1e-3 < algorithm.offset(home(algorithm, data, (0,), axis=False)).abs().max()


def test_nothing_is_kept_for_what_is_not_there() -> None:
    """In an s that is held fixed, and without α."""
    for learns, corrects in product((False, True), (False, True)):
        kept = whole(share=None if learns else 0.5, theta=0.5 if corrects else 0.0, epochs=6).begin()
        found = [bool(len(each)) for each in (kept.told, kept.alpha, kept.apart)]
        assert found == [learns or corrects, corrects, learns]


@pytest.mark.parametrize("axis", [False, True])
def test_alpha_is_what_a_clients_training_has_beyond_the_step_of_all_and_is_taken_off_step_by_step(axis: bool) -> None:
    algorithm, data = whole(share=0.5, theta=0.3, fade=0.8, rho=0.2, optimizer="sgd", n_rounds=9), clients()
    server, group = algorithm.opening(4), (1, 3) if axis else (3,)
    kept = algorithm.begin()
    kept = Kept(*(x.expand(2, *x.shape) for x in kept)) if axis else kept
    alpha, before = torch.zeros_like(kept.own), None
    for t, scale in ((0, 1.0), (1, 1.2), (4, 0.7)):  # they sit out rounds 2 and 3
        w = algorithm.network.start * scale
        local = home(algorithm, data, group, axis=axis, time=t)
        if before is not None:
            then, told, own = before
            alpha = 0.8 * alpha + 0.3 * (own - told - (w - told) / (t - then))
            assert alpha.abs().max() > 1e-2
        expected = w + algorithm.offset(local, 0.1) * torch.ones_like(alpha)
        start, n_steps = expected, local.n_steps(2)
        assert n_steps.flatten().tolist() == [-(-data.sizes[i] // 8) * 2 for i in group]
        for batch in local.batches(2):
            slope = local.gradient(expected, batch) + 0.2 * (expected - start)
            expected = batch.keep(expected - 0.05 * slope - alpha / n_steps, expected)
        kept, _ = algorithm.work(kept, local, algorithm.tells(server._replace(w=w), group)[0][0])
        torch.testing.assert_close(kept.own, expected - algorithm.offset(local, 0.1), rtol=0, atol=1e-12)
        torch.testing.assert_close(kept.alpha, alpha, rtol=0, atol=1e-12)
        before = t, w, kept.own


@pytest.mark.parametrize("join", [1.0, 0.5])
def test_alpha_is_alike_on_both_engines(join: float) -> None:
    algorithm, data = whole(n_rounds=6, theta=0.5, join=join), clients()
    agree(run_rounds(algorithm, data), run_plain(algorithm, data))
    without = run_rounds(whole(n_rounds=6, theta=0.0, join=join), data)
    assert not torch.allclose(run_rounds(algorithm, data).models, without.models)


def test_private_blocks_have_no_alpha() -> None:
    algorithm, data = whole(**FIXED | {"theta": 0.5}, private=("head",), join=0.5, n_rounds=8), clients()
    seen: list[Any] = []
    run_rounds(algorithm, data, observe=lambda t, simulator, told: seen.append(simulator.kept))
    head = algorithm.network.mask("head")
    assert not seen[-1].alpha[:, head].any()
    assert seen[-1].alpha[:, ~head].any(1).all()


@pytest.mark.parametrize("passes", [0, 1, 3])
def test_private_blocks_are_the_mean_of_the_last_passes(passes: int) -> None:
    """Each begins where the client left them, in an order of its own."""
    algorithm, data = whole(**FIXED | {"final_passes": passes, "final_epochs": 3}, private=("head",)), clients()
    network, head = algorithm.network, algorithm.network.mask("head")
    kept = algorithm.begin()._replace(own=3 * network.start)
    start = torch.where(head, kept.own, network.start)
    local = home(algorithm, data, (0,), axis=False)
    orders = [algorithm.trained(replace(local, round=k), start, 3) for k in range(passes)] or [start]
    assert all(not torch.allclose(one[head], start[head]) for one in orders[:passes])
    server = algorithm.opening(4)._replace(met=torch.ones(4, dtype=torch.bool))
    ((heard, _),) = algorithm.closes(server, (0,))
    found = algorithm.personal(kept, local, heard)
    torch.testing.assert_close(found[head], torch.stack(orders).mean(0)[head])
    assert torch.equal(found[~head], start[~head])  # s = 0


@pytest.mark.parametrize("blocks", ["tensor", "parameter"])
def test_the_slopes_of_s_are_those_of_the_loss_on_rows_set_aside(blocks: str) -> None:
    how = {"set_aside": 0.3, "n_rounds": 10, "learn_from": 0.3, "remember": 0.8, "theta": 0.5}
    algorithm, data = whole(head_blocks=blocks, **how), clients()
    network, server, kept = algorithm.network, algorithm.opening(4), algorithm.begin()
    assert algorithm.n_blocks == (4 if blocks == "tensor" else 2 + 21)
    told: dict[int, Tensor] = {}
    beyond: dict[int, Tensor] = {}
    for t in (0, 1, 3, 5, 6):  # it sits out rounds 2 and 4
        told[t] = network.start * (1 + t**2)
        ((heard, _),) = algorithm.tells(server._replace(w=told[t]), (1,))
        local = home(algorithm, data, (1,), axis=False, time=t)
        kept, reply = algorithm.work(kept, local, heard | {"round": torch.tensor(t)})
        if t not in (3, 5):  # s is not learned yet, or no more
            assert not reply["slopes"].any()
            assert not reply["aside"]
            assert kept.alpha.any() == (t > 0)
            at = replace(local, set_aside=0.3 if t < 6 else 0.0)
            u, batches = told[t] + algorithm.offset(at, 0.1), list(at.batches(6))
            u, _ = at.descend(u, iter(batches), algorithm.optimizer, shift=-kept.alpha / len(batches))
            torch.testing.assert_close(kept.own, u - algorithm.offset(at, 0.1))
            continue
        before, seen = max(r for r in told if r < t), replace(local, set_aside=0.3)
        torch.testing.assert_close(kept.own, algorithm.trained(seen, told[t], 6))
        own = kept.own
        beyond[t] = own - told[t] - (told[t] - told[before]) / (t - before)
        rows = torch.from_numpy(seen.split(0)[1])
        assert 3 <= len(rows) <= 5
        assert reply["aside"] == len(rows)
        weight = torch.tensor([0.8 ** (t - r) for r in beyond], dtype=torch.float64)
        a = (weight / weight.sum()) @ torch.stack(list(beyond.values()))
        for found, x in zip(reply["slopes"].view(-1, 3).T, (0.0, 0.5, 1.0), strict=True):
            share = torch.full((algorithm.n_blocks,), x, dtype=torch.float64).requires_grad_()
            scores = network.scores(told[t] + algorithm.offset(seen) + share[algorithm.block] * a, data.X[rows])
            expected = torch.autograd.grad(CLASSES.losses(scores, data.y[rows]).sum(), share)[0]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
            assert expected.abs().mean() > 1e-3
    # and α_i begins anew
    torch.testing.assert_close(kept.alpha, 0.5 * (own - told[5] - (told[6] - told[5])))


def test_a_first_round_is_no_part_of_what_s_is_learned_from() -> None:
    algorithm, data = whole(learn_from=0.0, learn_until=1.0), clients()
    kept, server, w = algorithm.begin(), algorithm.opening(4), algorithm.network.start
    for t in (1, 2):  # it sat out round 0, in which nobody says anything
        ((heard, _),) = algorithm.tells(server._replace(w=t * w), (0,))
        kept, _ = algorithm.work(kept, home(algorithm, data, (0,), axis=False, time=t), heard)
        assert kept.weight == (t == 2)
    torch.testing.assert_close(kept.apart, kept.own - 2 * w - w)


def reply_of(slopes: Tensor, aside: int) -> dict[str, Tensor]:
    """A client's, of which nothing but the slopes of its rows set aside matters."""
    none, n = torch.zeros(0, dtype=torch.int64), torch.tensor([aside])
    w, sums = torch.zeros(51).double(), aside * slopes.double().flatten()
    return {"w": w, "slopes": sums, "aside": n, "counts": none, "n": torch.tensor(99)}


def straight(*roots: float) -> Tensor:
    """Slopes of (s - root)² at 0, ½, 1, for each block."""
    return torch.stack([2 * (x - torch.tensor(roots)) for x in (0.0, 0.5, 1.0)], -1)


def test_s_is_where_the_loss_of_all_rounds_and_rows_is_least() -> None:
    algorithm = whole(by_class=False, n_rounds=10, spread=1e9)
    server = algorithm.opening(4)
    one, other = straight(0.2, 0.4, 0.6, 9.0), straight(0.6, 0.4, -9.0, 9.0)
    assert torch.equal(algorithm.gather(server, 1, {0: reply_of(one, 5)}).share, server.share)  # not yet
    assert torch.equal(algorithm.gather(server, 6, {0: reply_of(one, 5)}).share, server.share)  # no more
    server = algorithm.gather(server, 2, {0: reply_of(one, 30)})
    assert server.share.tolist() == pytest.approx([0.2, 0.4, 0.6, 1.0])
    server = algorithm.gather(server, 3, {0: reply_of(one, 10), 1: reply_of(other, 40)})
    assert server.share.tolist() == pytest.approx([0.4, 0.4, 0.0, 1.0])


def test_the_slopes_between_the_points_lie_on_a_parabola() -> None:
    x = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    slope = (x - 0.3) * (x + 2)
    assert least(slope[None], 1e9).tolist() == pytest.approx([0.3])
    barrier = -(x - 0.1) * (x - 0.8)  # falls again after 0.8, but not as low as at 0.1
    assert least(torch.stack([barrier, -barrier.flip(0)]), 1e9).tolist() == pytest.approx([0.1, 0.9])


ROOTS = (0.1, 0.3, 0.5, 0.9)


@pytest.mark.parametrize("rows", [0.0, 1.0, 1e3])
def test_blocks_are_alike_and_halfway_unless_rows_tell(rows: float) -> None:
    together = least(rows * straight(*ROOTS), 1e-4)
    # the least of 4 N (c - 0.45)² + (c - ½)² / (2 · 0.2²), 0.45 being the mean of the roots
    kept = 4 * rows / (4 * rows + 1 / (2 * 0.2**2))
    assert together.tolist() == pytest.approx([0.5 - 0.05 * kept] * 4, abs=0.006)


def test_rows_tell_blocks_apart() -> None:
    # the least of N (s - root)² + (s - c)² / (2 τ²); N = 6 · 4, τ = 0.25, c near the mean of the roots
    algorithm = whole(by_class=False, n_rounds=10, spread=0.25)
    found = algorithm.gather(algorithm.opening(4), 2, {i: reply_of(straight(*ROOTS), n) for i, n in ((0, 9), (1, 3))})
    own = 24 / (24 + 1 / (2 * 0.25**2))
    expected = [own * root + (1 - own) * 0.465 for root in ROOTS]
    assert found.share.tolist() == pytest.approx(expected, abs=0.011)
    assert 0.6 < own < 0.8


def test_parameters_of_the_head_are_around_their_tensors_s() -> None:
    # of each the least of  N_j (s_j - root)² + (s_j - s)² / (2 τ²),  s that of the tensor with N = Σ N_j; τ = 0.25
    algorithm = whole(spread=0.25, head_blocks="parameter")
    roots, sizes = torch.tensor(ROOTS)[algorithm.tensor], algorithm.tensor.bincount()[algorithm.tensor]
    slopes = 24 * straight(*roots.tolist()).double() / sizes[:, None]
    first = algorithm.names.index("head.weight")
    slopes[first] += 20  # and its neighbour the other way: the tensor's s is as before
    slopes[first + 1] -= 20
    s = whole(spread=0.25).shares(24 * straight(*ROOTS).double())[algorithm.tensor]
    found = algorithm.shares(slopes)
    rows = 24 / sizes
    own = rows / (rows + 1 / (2 * 0.25**2))
    expected = torch.where(algorithm.is_part, own * roots + (1 - own) * s, s)
    gap = 20 / (2 * rows[first] + 1 / 0.25**2)
    expected[first], expected[first + 1] = max(0, expected[first] - gap), min(1, expected[first] + gap)
    assert found.tolist() == pytest.approx(expected.tolist())
    assert found[first] < 0.1 < 0.9 < found[first + 1]
    assert torch.equal(found[:2], s[:2])


def test_of_a_parameter_whose_loss_bends_down_the_slope_alone_counts() -> None:
    algorithm = whole(spread=0.25, head_blocks="parameter")
    slopes, first = torch.zeros(algorithm.n_blocks, 3).double(), algorithm.names.index("head.weight")
    slopes[first] = torch.tensor([10.0, 5.0, 0.0])
    slopes[first + 1] = -slopes[first]  # so that their tensor's s is ½
    found = algorithm.shares(slopes)
    assert found[first].item() == pytest.approx(0.5 - 5 * 0.25**2)
    assert found[first + 1].item() == pytest.approx(0.5 + 5 / (10 + 1 / 0.25**2))


def second_round(algorithm: WholeNetwork, data: Samples, group: tuple[int, ...], axis: bool) -> list[dict[str, Tensor]]:
    """What these clients, who are told other things in two rounds, send in each."""
    kept, server = algorithm.begin(), algorithm.opening(len(data))
    mine = type(kept)(*(tensor.expand(len(group), -1) for tensor in kept)) if axis else kept
    replies = []
    for t in range(2):
        ((heard, _),) = algorithm.tells(server._replace(w=server.w * (1 + t)), group)
        mine, reply = algorithm.work(mine, home(algorithm, data, group, axis=axis, time=t), heard)
        replies.append(reply)
    return replies


@pytest.mark.parametrize("axis", [False, True])
def test_a_client_of_which_nothing_is_set_aside_or_in_its_first_round_says_nothing_of_s(axis: bool) -> None:
    algorithm, data = whole(learn_from=0.0, learn_until=1.0), clients((1, 20))
    found = [second_round(algorithm, data, group, axis) for group in (((0, 1),) if axis else ((0,), (1,)))]
    first, second = (torch.cat([replies[t]["slopes"].view(-1, 12) for replies in found]) for t in range(2))
    aside = torch.cat([replies[1]["aside"].view(-1) for replies in found])
    assert not first.any()
    assert not any(replies[0]["aside"].any() for replies in found)
    assert not second[0].any()
    assert second[1].all()
    n_aside = len(replace(home(algorithm, data, (1,), axis=False), set_aside=1 / 7).split(0)[1])
    assert aside.tolist() == [0, n_aside]
    assert n_aside in (2, 3)


def test_who_says_nothing_of_s_does_not_count() -> None:
    algorithm = whole(by_class=False, n_rounds=10, spread=1e9)
    silent = {i: reply_of(straight(*ROOTS), 0) for i in (1, 2)}
    nobody = algorithm.gather(algorithm.opening(4), 2, silent)
    assert torch.equal(nobody.share, algorithm.opening(4).share)
    told = algorithm.gather(nobody, 3, {0: reply_of(straight(*ROOTS), 60)} | silent)
    assert told.share.tolist() == pytest.approx(ROOTS, abs=0.011)


def test_all_rounds_say_how_many_rows_there_are() -> None:
    # N = 4 · 12 / 2 from either side of a round in which nobody has anything to say, as in the test above
    algorithm = whole(by_class=False, n_rounds=10, spread=0.25)
    silent, telling = {1: reply_of(straight(*ROOTS), 0)}, {0: reply_of(straight(*ROOTS), 12)}
    shares = []
    for first, then in ((silent, telling), (telling, silent), ({}, telling | silent)):
        server = algorithm.opening(4)
        for t, replies in ((2, first), (3, then)):
            server = algorithm.gather(server, t, replies) if replies else server
        shares.append(server.share.tolist())
    assert shares[0] == shares[1] == shares[2]
    own = 24 / (24 + 1 / (2 * 0.25**2))
    assert shares[0] == pytest.approx([own * root + (1 - own) * 0.465 for root in ROOTS], abs=0.011)


def test_a_run_of_few_epochs_ends_alone() -> None:
    """All of u_i counts, by steps that get smaller, on all rows and the loss alone; o_i for e_i."""
    algorithm, data = whole(n_rounds=5, epochs=4, rho=5.0, learn_from=0.2, learn_until=0.8), clients()
    looks: dict[int, Tensor] = {}
    ends: dict[int, Tensor] = {}

    def observe(t: int, simulator: Simulator, told: Told) -> None:
        looks[t], ends[t] = simulator.personal(told), told[0][0]["w"]

    run_rounds(algorithm, data, observe=observe)
    for t in (1, 4, 5):
        for i in range(len(data)):
            local = home(algorithm, data, (i,), axis=False, time=t)
            u, memory = ends[t] + algorithm.offset(local, 0.1), None
            for k in range(16):
                at = replace(local, round=t + k)
                slower = replace(algorithm.optimizer, lr=0.025 * (1 - k / 16))
                u, memory = at.descend(u, at.batches(1), slower, memory=memory)
            expected = u - algorithm.offset(local, 0.1) + algorithm.offset(local)
            same = torch.allclose(looks[t][i], expected, rtol=0, atol=1e-9)
            assert same == (t < 5)  # of 20 epochs; s is learned from the second round on


@pytest.mark.parametrize("join", [1.0, 0.5])
def test_clients_end_alone_alike_on_both_engines(join: float) -> None:
    algorithm, data = whole(n_rounds=2, epochs=4, join=join), clients()
    assert algorithm.settings.ends_alone(2)
    agree(run_rounds(algorithm, data), run_plain(algorithm, data))


def test_of_few_epochs_are_half_as_many_where_some_take_part() -> None:
    border = {join: [whole(join=join, epochs=2).settings.ends_alone(t) for t in (4, 5, 8, 9)] for join in (1.0, 0.5)}
    assert border == {1.0: [True, True, True, False], 0.5: [True, False, False, False]}


def test_s_is_said_to_be_1_where_a_block_is_private_or_clients_end_alone() -> None:
    cases: tuple[tuple[dict[str, Any], list[float]], ...] = (
        ({"share": 0.25, "private": ("head",)}, [0.25, 0.25, 1.0, 1.0]),
        ({"n_rounds": 2, "epochs": 8}, [1.0] * 4),
        ({"n_rounds": 2, "epochs": 8, "set_aside": 0.0}, [0.5] * 4),
    )
    for how, said in cases:
        assert run_rounds(whole(**how), clients()).insight["share"].tolist() == [said] * 4


@pytest.mark.parametrize("how", [{"share": 0.5}, {"set_aside": 0.0}], ids=["fixed", "nothing set aside"])
def test_an_s_that_is_not_to_be_learned_holds_from_the_first_round(how: dict[str, Any]) -> None:
    whole_run, ended = whole(n_rounds=10, **how), whole(n_rounds=1, **how)
    looks: list[Tensor] = []
    run_rounds(whole_run, clients(), observe=lambda t, simulator, told: looks.append(simulator.personal(told)))
    assert torch.equal(looks[0], run_rounds(ended, clients()).models)
    assert not torch.equal(looks[0], run_rounds(whole(n_rounds=1), clients()).models)


def test_without_a_round_to_learn_in_nothing_is_set_aside() -> None:
    in_time = {1: False, 2: False, 3: True}
    for n_rounds, epochs in product(in_time, (5, 17)):
        learns = in_time[n_rounds] and n_rounds * epochs > 16
        algorithm = whole(n_rounds=n_rounds, epochs=epochs, learn_from=0.2, learn_until=0.4)
        assert algorithm.learns == learns
        ((heard, _),) = algorithm.tells(algorithm.opening(4), (0,))
        assert heard["share"].tolist() == [0.5] * 4
        _, reply = algorithm.work(algorithm.begin(), home(algorithm, clients(), (0,), axis=False), heard)
        assert (reply["counts"].sum() < 24) == learns


@pytest.mark.parametrize(("join", "n_rounds", "learns"), [(0.1, 24, False), (0.1, 25, True), (0.5, 5, True)])
def test_s_is_learned_where_clients_take_part_once_by_then(join: float, n_rounds: int, learns: bool) -> None:
    how = whole(join=join, n_rounds=n_rounds, learn_from=0.2, learn_until=0.4).settings
    assert how.learns == learns
    assert not how.ends_alone(n_rounds)


def test_nobody_speaks_of_s_in_the_first_round() -> None:
    assert not whole(n_rounds=20, learn_from=0.0, learn_until=0.05).learns
    assert whole(n_rounds=20, learn_from=0.0, learn_until=0.1).learns


def test_private_blocks_have_no_slopes() -> None:
    algorithm, data = whole(learn_from=0.0, learn_until=1.0, private=("head",)), clients()
    reply = second_round(algorithm, data, (0,), axis=False)[1]
    seen = replace(home(algorithm, data, (0,), axis=False, time=1), set_aside=1 / 7)
    kept = algorithm.begin()
    for t in range(2):  # as in `second_round`
        ((heard, _),) = algorithm.tells(algorithm.opening(4)._replace(w=algorithm.network.start * (1 + t)), (0,))
        kept, _ = algorithm.work(kept, home(algorithm, data, (0,), axis=False, time=t), heard)
    rows = torch.from_numpy(seen.split(0)[1])
    s = torch.zeros(4).double().requires_grad_()
    moved = kept.told + s[algorithm.block] * kept.apart / kept.weight
    point = torch.where(algorithm.network.is_head, kept.own, moved) + algorithm.offset(seen)
    loss = CLASSES.losses(algorithm.network.scores(point, data.X[rows]), data.y[rows]).sum()
    torch.testing.assert_close(reply["slopes"].view(-1, 3)[:, 0], torch.autograd.grad(loss, s)[0])
    slopes = dict(zip(algorithm.names, reply["slopes"].view(-1, 3), strict=True))
    assert {name: bool(found.any()) for name, found in slopes.items()} == {
        name: name.startswith("layers") for name in slopes
    }


def share_of_weights(algorithm: WholeNetwork, data: Samples) -> float:
    """Mean s of the weights after the last round; it is in these that the clients differ."""
    s = run_rounds(algorithm, data).insight["share"][0]
    return float(s[torch.tensor([name.endswith("weight") for name in algorithm.names])].mean())


def test_s_falls_where_clients_are_alike_and_rises_where_they_differ() -> None:
    how = {"n_rounds": 60, "lr": 0.05, "batch_size": 32, "learn_from": 0.2, "learn_until": 0.4, "private_at": 1.0}
    how |= {"epochs": 2, "own_frequencies": False}
    alike, apart = (share_of_weights(whole(**how), clients((50,) * 30, shift, noise=2.0)) for shift in (0.0, 3.0))
    assert alike < 0.35 < 0.85 < apart


@pytest.mark.parametrize("run", [run_rounds, run_plain])
def test_private_blocks_are_sent_to_nobody_but_newcomers(run: Callable[..., Outcome]) -> None:
    algorithm, data = whole(**FIXED, private=("head",), join=0.5, n_rounds=4), clients()
    found, everything = run(algorithm, data), run(whole(**FIXED, join=0.5, n_rounds=4), data)
    drawn = [algorithm.asks(t, 4) for t in range(4)]
    head = 21 * 8
    saved = sum(i in {j for before in drawn[:t] for j in before} for t, now in enumerate(drawn) for i in now)
    never = 4 - len({i for now in drawn for i in now})
    assert 0 < saved < 8
    assert everything.traffic.bytes_up - found.traffic.bytes_up == pytest.approx(8 * head, abs=64)
    down = everything.traffic.bytes_down - found.traffic.bytes_down
    assert down == pytest.approx((saved + 4 - never) * head, abs=128)
    body = found.models[:, ~algorithm.network.is_head]
    assert (body == body[0]).all()


def test_means_are_over_a_fifth_of_the_rounds_two_to_five() -> None:
    found = {n: whole(n_rounds=n).settings.beta for n in (1, 10, 15, 20, 25, 100)}
    assert found == pytest.approx({1: 1 / 2, 10: 1 / 2, 15: 2 / 3, 20: 3 / 4, 25: 4 / 5, 100: 4 / 5})
    assert [whole(n_rounds=10, remember=beta).settings.beta for beta in (0.0, 0.8)] == [0.0, 0.8]
    spoken, silent = (run_rounds(whole(n_rounds=15, remember=beta), clients()).models for beta in (2 / 3, None))
    torch.testing.assert_close(spoken, silent)
    assert not torch.allclose(spoken, run_rounds(whole(n_rounds=15, remember=0.8), clients()).models)


def test_blocks_go_private_when_s_is_learned() -> None:
    algorithm = whole(private_at=0.9, n_rounds=5, by_class=False, spread=1e9)
    slopes = straight(0.95, 0.1, 2.0, 0.9)

    def gathered(server: Server, t: int) -> Server:
        shared = int((~server.private[algorithm.block]).sum())
        return algorithm.gather(server, t, {0: reply_of(slopes, 5) | {"w": torch.ones(shared).double()}})

    assert not gathered(algorithm.opening(2), 0).private.any()
    early = gathered(algorithm.opening(2), 1)
    assert not early.private.any()
    done = gathered(early, 2)
    assert done.private.tolist() == [True, False, True, False]
    assert gathered(early, 3).private.tolist() == done.private.tolist()  # nobody answered when s was learned last
    again = gathered(done._replace(w=torch.zeros_like(done.w)), 3)
    assert again.private.tolist() == done.private.tolist()
    assert torch.equal(again.w, (~done.private[algorithm.block]).double())  # private blocks stay as they went
    assert torch.equal(again.share, done.share)
    assert again.met.tolist() == [True, False]


def test_at_the_end_the_mean_of_the_rounds_is_told() -> None:
    algorithm, data = whole(remember=0.5, final_passes=0, share=0.5, own_frequencies=False), clients()
    rounds: list[Tensor] = []
    found = run_rounds(algorithm, data, observe=lambda t, simulator, told: rounds.append(simulator.server.w))
    expected = (rounds[0] + 2 * rounds[1] + 4 * rounds[2]) / 7
    torch.testing.assert_close(found.global_model, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.models, expected.expand_as(found.models), rtol=0, atol=1e-12)


def test_the_last_passes_begin_at_the_same_place_in_other_orders() -> None:
    algorithm, data = whole(remember=0.5, share=1.0, own_frequencies=False, final_passes=2, lr=0.01), clients()
    kept, home_ = algorithm.begin(), home(algorithm, data, (0,), axis=False, time=3)
    ((heard, _),) = algorithm.closes(algorithm.opening(4), (0,))
    start = algorithm.network.start
    passes = [
        home_.descend(start, replace(home_, round=3 + k).batches(2), algorithm.optimizer)[0] - start for k in (0, 1)
    ]
    assert not torch.allclose(*passes)
    expected = start + (passes[0] + passes[1]) / 2
    torch.testing.assert_close(algorithm.personal(kept, home_, heard), expected, rtol=0, atol=1e-12)


def test_own_frequencies_are_added_to_the_last_bias_and_nowhere_else() -> None:
    algorithm, data = whole(smoothing=0.5), clients()
    client = data.clients[2]
    counts = torch.bincount(client.y, minlength=3) + 0.5
    offset = algorithm.offset(home(algorithm, data, (2,), axis=False))
    named = algorithm.network.unflatten(offset)
    torch.testing.assert_close(named.pop("head.bias"), (counts / counts.sum()).log().double())
    assert all((tensor == 0).all() for tensor in named.values())
    both = algorithm.offset(home(algorithm, data, (1, 2), axis=True))
    assert torch.equal(both[1], offset)
    assert not algorithm_for_numbers().offset(home(algorithm, data, (2,), axis=False)).any()


def test_in_training_frequencies_are_made_more_even() -> None:
    data = Samples.join([("a", torch.ones(4, 4).double(), torch.tensor([0, 0, 0, 1]))])
    algorithm = whole(smoothing=1e-9, even=0.3, optimizer="sgd", final_passes=0, own_frequencies=True)
    start, local = algorithm.network.start, home(algorithm, data, (0,), axis=False)
    e, o = (algorithm.offset(local, even) for even in (0.3, 0.0))
    expected = [0.7 * 0.75 + 0.1, 0.7 * 0.25 + 0.1, 0.1]
    assert algorithm.network.unflatten(e)["head.bias"].exp().tolist() == pytest.approx(expected)
    step = 0.05 * local.gradient(start + e, next(local.batches(1)))
    torch.testing.assert_close(algorithm.trained(local, start, 1), start - step)
    ((heard, _),) = algorithm.closes(algorithm.opening(1), (0,))
    torch.testing.assert_close(algorithm.personal(algorithm.begin(), local, heard), start + o)  # predicts as it is


def algorithm_for_numbers() -> WholeNetwork:
    return WholeNetwork(WholeNetworkSettings(), build("mlp", (4,), 1).to(torch.float64), Regression())


@pytest.mark.parametrize("run", [run_rounds, run_plain])
def test_who_never_took_part_has_what_is_shared_and_its_own_frequencies(run: Callable[..., Outcome]) -> None:
    algorithm, data = whole(join=0.25, n_rounds=1, final_passes=0), clients()
    found = run(algorithm, data)
    left_out = [i for i in range(4) if i not in algorithm.asks(0, 4)]
    for i in left_out:
        expected = found.global_model + algorithm.offset(home(algorithm, data, (i,), axis=False))
        torch.testing.assert_close(found.models[i], expected, rtol=0, atol=1e-12)


def test_what_is_set_aside_is_trained_on_when_s_is_learned() -> None:
    algorithm, data = whole(set_aside=0.3, n_rounds=5), clients()
    aside = replace(home(algorithm, data, (0,), axis=False), set_aside=0.3).split(0)[1]
    changed = Samples(data.names, data.X.clone(), data.y, data.sizes)
    changed.X[aside] += 1
    ((heard, _),) = algorithm.tells(algorithm.opening(4), (0,))
    for t in range(5):
        locals_ = [home(algorithm, rows, (0,), axis=False, time=t) for rows in (data, changed)]
        replies = [algorithm.work(algorithm.begin(), local, heard)[1] for local in locals_]
        n = 24 if t >= 3 else 24 - len(aside)
        assert [int(reply["counts"].sum()) for reply in replies] == [n, n]
        assert torch.equal(replies[0]["w"], replies[1]["w"]) == (t < 3)
    personal = [algorithm.personal(algorithm.begin(), local, heard) for local in locals_]
    assert (personal[0] - personal[1]).abs().max() > 1e-3


def test_a_class_is_averaged_over_those_who_have_it() -> None:
    algorithm = whole()
    network, server = algorithm.network, algorithm.opening(2)
    values = torch.tensor([1.0, 2.0]).double()
    counts = torch.tensor([[3, 1, 0], [1, 9, 0]])
    replies = {
        i: reply_of(torch.zeros(12), 0) | {"w": values[i].expand(51), "counts": counts[i], "n": counts[i].sum()}
        for i in range(2)
    }
    found = network.unflatten(algorithm.gather(server, 0, replies).w)
    before = network.unflatten(server.w)
    for name in ("head.weight", "head.bias"):
        for c, expected in enumerate((5 / 4, 19 / 10)):
            torch.testing.assert_close(found[name][c], torch.full_like(found[name][c], expected))
        assert torch.equal(found[name][2], before[name][2])  # nobody has it
    for name in ("layers.0.weight", "layers.0.bias"):
        torch.testing.assert_close(found[name], torch.full_like(found[name], 24 / 14))


def test_only_rows_of_classes_are_counted_by_class() -> None:
    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3, dtype=torch.float64)
            self.scale = nn.Parameter(torch.ones(4, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * self.scale)

    network = Network(nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), Scaled()), head="1")
    named = network.unflatten(whole(network).counted)
    assert named["1.weight"].tolist() == [[c] * 4 for c in range(3)]
    assert named["1.bias"].tolist() == [0, 1, 2]
    assert (torch.cat([named["1.scale"], named["0.weight"].flatten(), named["0.bias"]]) == -1).all()


def test_models_travel_in_half_the_bytes() -> None:
    network, data = build("mlp", (4,), 3, hidden=(64, 64)), clients()
    single = Samples(data.names, data.X.float(), data.y, data.sizes)
    full, half = (
        run_rounds(whole(network, half=half, final_passes=0, optimizer="sgd"), single) for half in (False, True)
    )
    assert half.traffic.bytes_up < 0.6 * full.traffic.bytes_up
    assert half.traffic.bytes_down < 0.6 * full.traffic.bytes_down
    torch.testing.assert_close(half.models, full.models, rtol=0, atol=0.01)
    assert not torch.equal(half.models, full.models)
    same = run_plain(whole(network, half=True, final_passes=0, optimizer="sgd"), single)
    torch.testing.assert_close(half.models, same.models, rtol=0, atol=1e-5)
    assert half.traffic == same.traffic


@pytest.mark.parametrize("run", [run_rounds, run_plain])
def test_what_predicts_large_numbers_travels_whole(run: Callable[..., Outcome]) -> None:
    """Beyond 65,504 numbers of 16 bits are infinite, and near 20,000 they are 16 apart."""
    X = torch.linspace(-1, 1, 20).double().expand(4, 20).T
    network = build("mlp", (4,), 1, hidden=()).to(torch.float64)
    settings = {"n_rounds": 3, "share": 0.0, "half": True, "optimizer": "sgd", "lr": 0.5, "rho": 0.0}
    for level in (20_003.0, 200_000.0):
        data = Samples.join([(name, X, torch.full((20,), level).double()) for name in ("a", "b")])
        algorithm = WholeNetwork(WholeNetworkSettings.of(**settings, batch_size=20), network, Regression())
        models = run(algorithm, data).models
        scores = torch.stack([network.scores(model, X) for model in models])
        assert (scores - level).abs().max() < 1


@pytest.mark.parametrize("axis", [False, True])
def test_a_client_sends_its_rows_of_each_class(axis: bool) -> None:
    algorithm, data = whole(), clients()
    local = home(algorithm, data, (2,), axis=axis)
    ((heard, _),) = algorithm.tells(algorithm.opening(4), (2,))
    kept = algorithm.begin()
    if axis:
        kept = type(kept)(*(tensor[None] for tensor in kept))
    _, reply = algorithm.work(kept, local, heard)
    trained = replace(local, set_aside=algorithm.settings.set_aside).split(0)[0]
    assert len(trained) < 18
    assert reply["counts"].view(-1).tolist() == torch.bincount(data.y[trained], minlength=3).tolist()
    assert algorithm_for_numbers().n_counts == 0


def test_a_run_goes_on_with_private_blocks() -> None:
    algorithm, data = whole(private_at=0.2, n_rounds=6, join=0.5), clients()
    kept: dict[int, Any] = {}

    def observe(t: int, simulator: Simulator, told: Told) -> None:
        kept[t] = simulator.snapshot()

    found = run_rounds(algorithm, data, observe=observe)
    assert kept[4].server.private.any()
    again = run_rounds(algorithm, data, start=kept[4])
    assert torch.equal(again.models, found.models)
    assert again.traffic == found.traffic


def test_a_message_that_is_too_long_or_of_a_wrong_length_is_refused() -> None:
    algorithm, data = whole(private=("head",)), clients()
    state = algorithm.enter(0, data.clients[0])
    ((heard, _),) = algorithm.tells(algorithm.opening(4), (0,))
    heard = heard | {"round": torch.tensor(0)}
    specs = algorithm.expects("round", state)
    assert receive(encode(heard), specs).keys() == heard.keys()
    with pytest.raises(MessageError, match="bytes came where at most"):
        receive(encode(heard | {"w": torch.zeros(99).double()}), specs)
    with pytest.raises(MessageError, match="'w' came as"):
        receive(encode(heard | {"w": torch.tensor(1.0).double()}), specs)
    short = decode(encode(heard | {"w": torch.zeros(7).double()}))
    assert receive(encode(short), specs).keys() == heard.keys()
    with pytest.raises(MessageError, match="w came with 7 numbers where 30 or 51 were agreed"):
        algorithm.handle("round", state, data.clients[0], short)


def test_what_is_wrong_is_refused_with_a_reason() -> None:
    with pytest.raises(Learn2pFedError, match=r"private: the network has no layer 'tail'; there are layers.0, head\."):
        whole(private=("tail",))
    headless = Network(nn.Linear(4, 3).double(), None)
    with pytest.raises(Learn2pFedError, match="own_frequencies and by_class need a head whose last layer has a bias"):
        whole(headless)
    with pytest.raises(
        Learn2pFedError,
        match=r"set both to false \(in experiments own.learn2pfed.own_frequencies and own.learn2pfed.by_class\)",
    ):
        whole(headless, own_frequencies=False)
    assert whole(headless, own_frequencies=False, by_class=False).last_bias is None
    with pytest.raises(Learn2pFedError, match=r"learn_from = 0\.7 and learn_until = 0\.6 leave no round to learn s in"):
        whole(learn_from=0.7)
    with pytest.raises(Learn2pFedError, match="leave no round to learn s in"):
        whole(learn_from=0.6)
    with pytest.raises(Learn2pFedError, match="share: input should be less than or equal to 1, got 2"):
        whole(share=2)


def test_of_numbers_a_seventh_is_set_aside_even_if_two_coincide() -> None:
    y = torch.linspace(0, 1, 70).double()
    y[3] = y[50]
    data = Samples.join([("a", torch.zeros(70, 4).double(), y)])
    algorithm = algorithm_for_numbers()
    assert len(replace(home(algorithm, data, (0,), axis=False), set_aside=1 / 7).split(0)[1]) == 10
