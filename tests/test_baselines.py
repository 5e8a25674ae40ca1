"""The twelve baselines: limits, rounds by hand, known optima, engines that agree, order, seeds, losses, bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learn2pfed.algorithms.base import Outcome, Traffic
from learn2pfed.algorithms.registry import BASELINES, OURS, method_named
from learn2pfed.algorithms.rounds import Rounds, Told
from learn2pfed.data.federated import ClientData, Samples
from learn2pfed.engines.messages import decode, size
from learn2pfed.engines.plain import run_plain
from learn2pfed.engines.rounds import Simulator, Snapshot, home, marks_of, run_rounds, similar
from learn2pfed.errors import DivergenceError, Learn2pFedError
from learn2pfed.models.modules import Linear, build
from learn2pfed.models.network import Network, Part
from learn2pfed.tasks import Classification, Regression, Task

METHODS = BASELINES | OURS
ALL = list(METHODS)
OF_THE_TABLE = [*BASELINES, "plug-in"]
KNOWN = {key for method in METHODS.values() for key in method.settings_class.model_fields}
CLASSES = Classification(3)
SIZES = (9, 4, 1, 6, 2)
"""With batches of 4: two that need several, one exactly one, and two that are smaller, one of them a single row."""

PLAIN = {"optimizer": "sgd"}
MOMENTUM = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
ADAM = {"optimizer": "adam"}

QUICK: dict[str, dict[str, Any]] = {
    "fedavg-ft": {"ft_epochs": 2},
    "fedprox-ft": {"ft_epochs": 2, "ft_part": "head", "ft_lam": 0.1},
    "fedrep": {"head_epochs": 2, "final_epochs": 1},
    "ditto": {"final_epochs": 1},
    "pfedme": {"n_batches": 3, "n_inner": 2},
    "lp-proj": {"n_local": 2, "n_inner": 3, "n_projected": 3, "lam": 0.1},
    "cfl": {"eps1": 1e9, "eps2": 0.0, "first_split": 1},
    "knn-per": {"k": 2},
    "learn2pfed": {
        "epochs": 6,  # 3 rounds of 2 would learn no s
        "spread": 5.0,
        "private_at": 0.3,
        "final_passes": 2,
        "learn_from": 0.2,
        "learn_until": 0.6,
    },
    "plug-in": {"set_aside": 0.2, "n_steps": 4, "backbone": "shared", "n_cells": 3, "theta_lr": 0.1},
}


def quick(name: str, network: Network | None = None, task: Task = CLASSES, **changes: Any) -> Rounds:
    """Three rounds; a change that the method knows nothing of is left out."""
    method, settings = method_named(name), {"n_rounds": 3, "batch_size": 4} | QUICK.get(name, {}) | changes
    assert settings.keys() <= KNOWN
    own = {key: value for key, value in settings.items() if key in method.settings_class.model_fields}
    return method(method.settings_class.of(**own), mlp() if network is None else network, task)


def mlp(n_outputs: int = 3) -> Network:
    return build("mlp", (3,), n_outputs, hidden=(4,)).to(torch.float64)


def with_head(head: str | None) -> Network:
    return Network(mlp().module, head)


def clients(sizes: tuple[int, ...] = SIZES, shape: tuple[int, ...] = (3,), task: Task = CLASSES) -> Samples:
    rng, rows = np.random.default_rng(0), []
    for i, n in enumerate(sizes):
        y = rng.normal(size=n) if isinstance(task, Regression) else rng.integers(3, size=n)
        rows.append((f"c{i}", torch.from_numpy(rng.normal(size=(n, *shape))), torch.from_numpy(y)))
    return Samples.join(rows)


def slope(algorithm: Rounds, x: Tensor, X: Tensor, y: Tensor) -> Tensor:
    """∇ of the mean loss at x by plain autograd."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(algorithm.task.losses(algorithm.network.scores(x, X), y).mean(), x)[0]


def descent(algorithm: Rounds, x: Tensor, client: ClientData, lr: float, steps: int) -> Tensor:
    for _ in range(steps):
        x = x - lr * slope(algorithm, x, client.X, client.y)
    return x


def batches(algorithm: Rounds, data: Samples, i: int, t: int, epochs: int) -> list[tuple[Tensor, Tensor]]:
    return [(batch.X, batch.y) for batch in home(algorithm, data, (i,), axis=False, time=t).batches(epochs)]


def agree(one: Outcome, two: Outcome, atol: float = 1e-10) -> None:
    torch.testing.assert_close(one.models, two.models, rtol=0, atol=atol)
    torch.testing.assert_close(one.global_model, two.global_model, rtol=0, atol=atol)
    assert torch.equal(one.insight["joined"], two.insight["joined"])
    assert (one.traffic, one.missing) == (two.traffic, two.missing)


def close(found: Tensor, expected: object, atol: float = 1e-9) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=atol)


# limits

FIXED: dict[str, Any] = {
    "epochs": 2,
    "rho": 0.0,
    "own_frequencies": False,
    "by_class": False,
    "half": False,
    "share": 0.0,
    "theta": 0.0,
    "remember": 0.0,
    "final_passes": 0,
}
"""Nothing of Learn2pFed is learned."""

SAME: dict[str, tuple[tuple[str, dict[str, Any]], tuple[str, dict[str, Any]]]] = {
    "FedProx, μ = 0, is FedAvg": (("fedprox", {"mu": 0.0}), ("fedavg", {})),
    "FedProx + FT, μ = 0, is FedAvg + FT": (
        ("fedprox-ft", {"mu": 0.0, "ft_part": "all", "ft_lam": 0.0}),
        ("fedavg-ft", {}),
    ),
    "FedAvg + FT without epochs is FedAvg": (("fedavg-ft", {"ft_epochs": 0}), ("fedavg", {})),
    "FedProx + FT without epochs is FedProx": (("fedprox-ft", {"ft_epochs": 0}), ("fedprox", {})),
    "FedPer without a head is FedAvg": (("fedper", {"network": with_head(None)}), ("fedavg", {})),
    "Learn2pFed, s = 0, is FedAvg": (("learn2pfed", FIXED | {"share": 0.0, "final_passes": 2}), ("fedavg", {})),
    "Learn2pFed, s = 0, with ρ is FedProx": (
        ("learn2pfed", FIXED | {"rho": 0.5, "final_passes": 2}),
        ("fedprox", {"mu": 0.5}),
    ),
    "FedAvg, own frequencies, without these is FedAvg": (
        ("own-frequencies", {"own_frequencies": False}),
        ("fedavg", {}),
    ),
    "Learn2pFed with a private head is FedPer": (("learn2pfed", FIXED | {"private": ("head",)}), ("fedper", {})),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("join", [1.0, 0.6])
@pytest.mark.parametrize("how", [MOMENTUM, ADAM], ids=["sgd", "adam"])
def test_limits_that_hold_to_the_last_bit(name: str, join: float, how: dict[str, Any]) -> None:
    one, two = (run_rounds(quick(method, **changes, **how, join=join), clients()) for method, changes in SAME[name])
    assert torch.equal(one.models, two.models)
    assert torch.equal(one.insight["joined"], two.insight["joined"])
    moved = run_rounds(quick("fedprox-ft", **how, join=join), clients())
    assert not torch.equal(one.models, moved.models)


@pytest.mark.parametrize("how", [PLAIN, MOMENTUM, ADAM], ids=["plain", "momentum", "adam"])
def test_ditto_without_pull_is_local_only(how: dict[str, Any]) -> None:
    ditto = run_rounds(quick("ditto", **how, lam=0.0, final_epochs=0), clients())
    assert torch.equal(ditto.models, run_rounds(quick("local-only", **how), clients()).models)


@pytest.mark.parametrize("how", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_ditto_without_pull_is_local_only_in_the_rounds_it_joins(how: dict[str, Any]) -> None:
    data, rounds = clients(), 6
    ditto = quick("ditto", **how, lam=0.0, final_epochs=0, join=0.4, n_rounds=rounds)
    models = []
    for i in range(len(data)):
        x = ditto.network.start.clone().requires_grad_()
        optimizer = torchs(how, ditto, x)
        for t in (t for t in range(rounds) if i in ditto.asks(t, len(data))):
            for X, y in batches(ditto, data, i, t, epochs=2):
                x.grad = slope(ditto, x, X, y)
                optimizer.step()
        models.append(x.detach())
    close(run_rounds(ditto, data).models, torch.stack(models), atol=1e-12)


def torchs(how: dict[str, Any], algorithm: Rounds, x: Tensor) -> torch.optim.Optimizer:
    settings: Any = algorithm.settings
    if how["optimizer"] == "adam":
        return torch.optim.Adam([x], settings.lr)
    return torch.optim.SGD([x], settings.lr, settings.momentum, weight_decay=settings.weight_decay)


@pytest.mark.parametrize("how", [PLAIN, MOMENTUM, ADAM], ids=["plain", "momentum", "adam"])
def test_fedavg_with_one_client_is_centralised_training(how: dict[str, Any]) -> None:
    data, fedavg = clients((10,)), quick("fedavg", **how, epochs=2)
    x = fedavg.network.start.clone().requires_grad_()
    for t in range(3):
        optimizer = torchs(how, fedavg, x)
        for X, y in batches(fedavg, data, 0, t, epochs=2):
            x.grad = slope(fedavg, x, X, y)
            optimizer.step()
    close(run_rounds(fedavg, data).models[0], x.detach(), atol=1e-12)


def test_a_pass_sees_every_row_once_in_an_order_of_its_own() -> None:
    rows = torch.arange(10.0)[:, None].double()
    algorithm, data = quick("fedavg"), Samples.join([(name, rows, torch.zeros(10)) for name in "ab"])
    seen = [X[:, 0].tolist() for t in (0, 1) for i in (0, 1) for X, _ in batches(algorithm, data, i, t, epochs=2)]
    assert [len(batch) for batch in seen] == [4, 4, 2] * 8
    passes = [[*seen[s], *seen[s + 1], *seen[s + 2]] for s in range(0, 24, 3)]
    assert [sorted(once) for once in passes] == [list(range(10))] * 8
    assert len(set(map(tuple, passes))) == 8


def test_a_batch_of_many_clients_has_the_rows_of_each_alone_and_is_filled_up_with_its_own() -> None:
    algorithm, data, numbers = quick("fedavg"), clients(), (4, 0, 2, 3)
    alone = [batches(algorithm, data, i, 5, epochs=2) for i in numbers]
    for batch in home(algorithm, data, numbers, axis=True, time=5).batches(2):
        for place, i in enumerate(numbers):
            assert (batch.X[place][:, None] == data.clients[i].X).all(-1).any(1).all()
            if batch.active is None or batch.active[place]:
                X, y = alone[place].pop(0)
                weight = torch.full((4,), 0.25).double() if batch.weight is None else batch.weight[place]
                close(weight[weight > 0], [1 / len(y)] * len(y), atol=1e-15)
                assert torch.equal(batch.X[place][weight > 0], X)
                assert torch.equal(batch.y[place][weight > 0], y)
    assert not any(alone)


def test_rows_set_aside_are_the_same_in_every_round_and_never_trained_on() -> None:
    algorithm, data = quick("fedavg"), clients()
    for t in (0, 1):
        local = replace(home(algorithm, data, (3, 0), axis=True, time=t), set_aside=0.4)
        for place, n in enumerate((6, 9)):
            seen, aside = local.split(place)
            own = replace(home(algorithm, data, ((3, 0)[place],), axis=False), set_aside=0.4)
            assert [part.tolist() for part in own.split(0)] == [seen.tolist(), aside.tolist()]
            assert abs(len(aside) - 0.4 * n) < 1
            assert len(seen) + len(aside) == len({*seen, *aside}) == n
            trained = torch.cat([batch.X for batch in replace(own, round=t).batches(2)])
            assert not (trained[:, None] == data.X[aside]).all(-1).any()
            assert len(trained) == 2 * len(seen)


@pytest.mark.parametrize("sizes", [(1,), (2,), (20,)])
def test_something_is_left_to_train_on(sizes: tuple[int, ...]) -> None:
    local = home(quick("fedavg"), clients(sizes), (0,), axis=False)
    for seed in range(20):
        seen, aside = replace(local, set_aside=0.99, seed=seed).split(0)
        assert len(seen) >= 1
        assert len(seen) + len(aside) == sizes[0]


def test_rows_are_set_aside_class_by_class() -> None:
    y = torch.tensor([0] * 35 + [1] * 14 + [2] * 7 + [3] + [4])[
        torch.randperm(58, generator=torch.Generator().manual_seed(0))
    ]
    for client in range(20):
        local = quick("fedavg").at_home(torch.zeros(60, 2), torch.cat([y[:2], y]), [(2, 58, client)], axis=False)
        aside = replace(local, set_aside=1 / 7).split(0)[1]
        counts = torch.bincount(y[aside - 2], minlength=5).tolist()
        assert counts[3:] == [0, 0]  # nobody's only row
        assert max(abs(count - expected) for count, expected in zip(counts, (5, 2, 1), strict=False)) <= 1


def test_no_class_is_set_aside_more_often_than_others() -> None:
    """Of a client of few rows a seventh: of one row in seven whichever its class."""
    algorithm, y = quick("fedavg"), torch.tensor([5, 5, 6, 6, 7, 7, 7])
    counts, n_draws = torch.zeros(8, dtype=torch.float64), 700
    for client in range(n_draws):
        local = algorithm.at_home(torch.zeros(7, 2), y, [(0, 7, client)], axis=False)
        counts += torch.bincount(y[replace(local, set_aside=1 / 7).split(0)[1]], minlength=8)
    assert counts.sum() == n_draws
    close(counts[5:] / n_draws, [2 / 7, 2 / 7, 3 / 7], atol=0.07)  # four deviations


@pytest.mark.parametrize("group", [(0,), (3,), (3, 0), (0, 2)])  # client 2 has one row, which is not set aside
def test_the_gradient_of_rows_set_aside_is_of_all_of_them_batch_by_batch(group: tuple[int, ...]) -> None:
    algorithm, data, axis = quick("fedavg", batch_size=2), clients(), len(group) > 1
    local = replace(home(algorithm, data, group, axis=axis), set_aside=0.5)
    x = torch.stack([(1 + i) * algorithm.network.start for i in group])
    found = local.gradient_aside(x if axis else x[0])
    for i, gradient in enumerate(found if axis else [found]):
        seen, aside = map(torch.from_numpy, local.split(i))
        rows = aside if len(aside) else seen
        close(gradient, slope(algorithm, x[i], data.X[rows], data.y[rows]), atol=1e-12)
    assert max(len(local.split(i)[1]) for i in range(len(group))) > 2  # several batches


def test_a_strong_pull_keeps_ditto_at_w() -> None:
    gaps = []
    for lam in (0.1, 1e4):
        algorithm = quick("ditto", **PLAIN, lr=5e-5, lam=lam, final_epochs=50, n_rounds=20)
        found = run_rounds(algorithm, clients())
        gaps.append((found.models - found.global_model).abs().max())
    assert gaps[1] < 1e-3 < gaps[0]


def test_pfedme_without_pull_leaves_w_where_it_was() -> None:
    algorithm = quick("pfedme", lam=0.0)
    found = run_rounds(algorithm, clients())
    assert torch.equal(found.global_model, algorithm.network.start)
    assert (found.models != found.global_model).any(1).all()


def test_fedper_with_nothing_but_a_head_is_local_only() -> None:
    network = build("linear", (3,), 3).to(torch.float64)
    fedper, alone = (run_rounds(quick(name, network, **PLAIN), clients()) for name in ("fedper", "local-only"))
    assert torch.equal(fedper.models, alone.models)
    assert not torch.equal(fedper.models[0], fedper.models[1])


def test_fedrep_keeps_the_half_fixed_that_has_no_epochs() -> None:
    cases: list[tuple[Part, dict[str, Any]]] = [
        ("head", {"head_epochs": 0, "final_epochs": 0}),
        ("body", {"epochs": 0}),
    ]
    for still, changes in cases:
        algorithm = quick("fedrep", **MOMENTUM, **changes)
        found, start = run_rounds(algorithm, clients()).models, algorithm.network.start
        inside = algorithm.network.mask(still)
        close(found[:, inside], start[inside].expand(len(SIZES), -1), atol=1e-15)
        assert (found[:, ~inside] != start[~inside]).any(1).all()


@pytest.mark.parametrize("name", ["fedavg-ft", "fedprox-ft"])
def test_fine_tuning_of_the_head_leaves_the_body_at_w(name: str) -> None:
    algorithm = quick(name, **MOMENTUM, ft_part="head")
    found, head = run_rounds(algorithm, clients()), algorithm.network.is_head
    assert torch.equal(found.models[:, ~head], found.global_model[~head].expand(len(SIZES), -1))
    assert (found.models[:, head] != found.global_model[head]).any(1).all()


def test_lp_proj_without_pull_is_local_only() -> None:
    """Eight rows are two batches, so that R K = 4 steps are two epochs."""
    data = clients((8, 8, 8))
    projected = quick("lp-proj", lam=0.0, n_local=2, n_inner=2, alpha=0.05, clip=1e9)
    alone = run_rounds(quick("local-only", **PLAIN, lr=0.05, epochs=2), data)
    close(run_rounds(projected, data).models, alone.models, atol=1e-12)


def test_cfl_that_never_splits_is_fedavg_on_clients_of_one_size() -> None:
    data = clients((6, 6, 6))
    cfl, fedavg = (run_rounds(quick(name, **PLAIN, eps1=0.0), data) for name in ("cfl", "fedavg"))
    close(cfl.models, fedavg.models, atol=1e-12)


@pytest.mark.parametrize("how", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_cfl_with_one_client_is_local_only_since_both_keep_the_optimisers_memory(how: dict[str, Any]) -> None:
    cfl, alone = (run_rounds(quick(name, **how), clients((9,))) for name in ("cfl", "local-only"))
    close(cfl.models, alone.models, atol=1e-12)


def test_knn_per_without_neighbours_scores_as_fedavg() -> None:
    data, other = clients(), clients((3, 2, 4, 1, 5))
    knn, fedavg = quick("knn-per", lam=0.0, set_aside=0.0), quick("fedavg")
    models, same = (run_rounds(algorithm, data).models for algorithm in (knn, fedavg))
    assert torch.equal(models, same)
    one, two = (a.scores(models[1], home(a, data, (1,), axis=False), other.X) for a in (knn, fedavg))
    close(one, two.log_softmax(-1), atol=1e-14)
    assert torch.equal(*(marks_of(algorithm, models, data, other) for algorithm in (knn, fedavg)))


# one round by hand

W = 2 / 3
"""Client a has a row (1, 2), so its gradient at v is 2 v - 4; b has (1, 1) and (3, 1), and 10 v - 4. Steps of 0.1."""


def pair() -> Samples:
    rows = [("a", [[1.0]], [2.0]), ("b", [[1.0], [3.0]], [1.0, 1.0])]
    return Samples.join([(name, *(torch.tensor(part, dtype=torch.float64) for part in xy)) for name, *xy in rows])


def line(*weights: float) -> Network:
    """score = v x, or with body φ and head h:  score = h φ x."""
    layers = [nn.Linear(1, 1, bias=False) for _ in weights]
    module = nn.Sequential(*layers)
    for layer, weight in zip(layers, weights, strict=True):
        nn.init.constant_(layer.weight, weight)
    return Network(module.double(), head=str(len(weights) - 1))


HAND: dict[str, tuple[dict[str, Any], list[Any], list[float]]] = {
    # two rounds of one step from 1:  a: 1 + .2 = 1.2, 1.2 + .16 = 1.36;  b: 1 - .6 = .4, .4 - 0 = .4
    "local-only": ({"n_rounds": 2}, [1.36, 0.4], [1.0]),
    # (1 · 1.2 + 2 · .4) / 3
    "fedavg": ({}, [W, W], [W]),
    # two steps, μ = 1:  a: 1.2, 1.2 - .1 (-1.6 + .2) = 1.34;  b: .4, .4 - .1 (0 - .6) = .46;  (1.34 + .92) / 3
    "fedprox": ({"epochs": 2, "mu": 1.0}, [2.26 / 3] * 2, [2.26 / 3]),
    # w = 2/3;  two steps of .3, λ = 1:  a: w + .8, then - .3 (2 w + 1.6 - 4 + .8);  b: w - .8, - .3 (10 w - 8 - 4 - .8)
    "fedavg-ft": (
        {"ft_epochs": 2, "ft_lr": 0.3, "ft_lam": 1.0},
        [W + 0.8 - 0.3 * (2 * W - 1.6), W - 0.8 - 0.3 * (10 * W - 12.8)],
        [W],
    ),
    # w as FedProx;  one step of .3:  a: w - .3 (2 w - 4);  b: w - .3 (10 w - 4)
    "fedprox-ft": (
        {"epochs": 2, "mu": 1.0, "ft_epochs": 1, "ft_lr": 0.3},
        [0.4 * 2.26 / 3 + 1.2, -2 * 2.26 / 3 + 1.2],
        [2.26 / 3],
    ),
    # φ = .5, h = 2, so v = 1;  ∂φ = h g, ∂h = φ g.  a: g = -2: φ = .9, h = 2.1;  b: g = 6: φ = -.7, h = 1.7
    "fedper": ({}, [[-0.5 / 3, 2.1], [-0.5 / 3, 1.7]], [-0.5 / 3]),
    # a: h = 2.1, v = 1.05, g = -1.9: φ = .5 + .1 · 2.1 · 1.9 = .899;  b: h = 1.7, v = .85, g = 4.5: φ = .5 - .765
    "fedrep": ({"head_epochs": 1}, [[0.123, 2.1], [0.123, 1.7]], [(0.899 - 2 * 0.265) / 3]),
    # v as FedProx's u, since the anchor is the w that was sent;  w by one step
    "ditto": ({"lam": 1.0, "personal_epochs": 2}, [1.34, 0.46], [W]),
    # λ = 2, K = 1, R = 2, η λ = .5.  a: θ = 1.2, w_a = 1.1; θ = 1.2 - .1 (-1.6 + .2) = 1.34, w_a = 1.22;
    # b: θ = .4, w_b = .7; θ = .4 - .1 (0 - .6) = .46, w_b = .58;  w = (1 - 2) 1 + 2 · .9 = .8.  Then from .8:
    # a: θ = 1.04, w_a = .92, θ = 1.04 - .1 (-1.92 + .24) = 1.208;  b: θ = .4, w_b = .6, θ = .4 - .1 (0 - .4) = .44
    "pfedme": (
        {"lam": 2.0, "eta": 0.25, "alpha": 0.1, "n_inner": 1, "n_batches": 2, "beta": 2.0},
        [1.208, 0.44],
        [0.8],
    ),
    # ρ = ½‖·‖², P = ±1, λ = .5, K = 2, R = 1, η λ = .2, gradients cut at 4.
    # a: 1 - .1 (-2 + .5) = 1.15, 1.15 - .1 (-1.7 + .575) = 1.2625;  b: 1 - .1 (4 + .5) = .55, .55 - .1 (1.5 + .275)
    # = .3725;  P w = .5 · 0 + .5 · .2 · (1.2625 + .3725) / 2
    "lp-proj": (
        {"p": 2, "lam": 0.5, "eta": 0.4, "beta": 0.5, "alpha": 0.1, "n_inner": 2, "n_local": 1, "clip": 4.0},
        [1.2625, 0.3725],
        [0.08175],
    ),
}


@pytest.mark.parametrize("name", HAND)
def test_one_round_by_hand(name: str) -> None:
    changes, models, held = HAND[name]
    network = line(0.5, 2.0) if name in ("fedper", "fedrep") else line(1.0)
    how = {"n_rounds": 1, "epochs": 1, "final_epochs": 0, "lr": 0.1, "n_projected": 1} | PLAIN | changes
    algorithm: Any = quick(name, network, Regression(), **how)
    sign = algorithm.P.item() if name == "lp-proj" else 1.0
    for run in (run_rounds, run_plain):
        found = run(algorithm, pair())
        close(found.models, [model if isinstance(model, list) else [model] for model in models], atol=1e-14)
        close(sign * found.global_model, held, atol=1e-14)


def test_lp_proj_with_one_norm_by_hand() -> None:
    """λ = .5, K = 2, η λ = .2. a: 1 + .15, then 1.15 - .1 (-1.7 + .5); b: 1 - .65, .35 - .1 (-.5 + .5); w = ± .2."""
    how = {"p": 1, "lam": 0.5, "eta": 0.4, "alpha": 0.1, "n_inner": 2, "n_local": 1, "n_projected": 1, "n_rounds": 1}
    algorithm: Any = quick("lp-proj", line(1.0), Regression(), **how)
    found = run_rounds(algorithm, pair())
    close(found.models, [[1.27], [0.35]], atol=1e-14)
    close(algorithm.P.item() * found.global_model, [0.2], atol=1e-14)


def test_the_projection_has_rows_of_length_one_and_comes_from_the_seed() -> None:
    drawn: list[Any] = [quick("lp-proj", seed=seed, n_projected=5) for seed in (0, 0, 1)]
    P, again, other = (algorithm.P for algorithm in drawn)
    assert P.shape == (5, drawn[0].network.n_parameters)
    close(P.norm(dim=1), torch.ones(5))
    assert torch.equal(P, again)
    assert not torch.equal(P, other)


def labelled(rows: list[tuple[list[float], list[int]]]) -> Samples:
    """One feature, and classes."""
    parts = [(torch.tensor(x, dtype=torch.float64)[:, None], torch.tensor(y)) for x, y in rows]
    return Samples.join([(f"c{i}", *part) for i, part in enumerate(parts)])


def zeros(n_features: int, n_classes: int) -> Network:
    module = Linear(n_features, n_classes, bias=False).double()
    nn.init.zeros_(module.head.weight)
    return Network(module)


@pytest.mark.parametrize(
    ("bounds", "splits"),
    [
        ({}, True),
        ({"eps1": 0.47}, False),
        ({"eps2": 1.42}, False),
        ({"first_split": 1}, False),
        ({"min_size": 3}, False),
    ],
    ids=str,
)
def test_a_round_of_cfl_by_hand(bounds: dict[str, Any], splits: bool) -> None:
    """At 0 a row (x, class 0) has Δ = (x/2, -x/2), and class 1 the opposite: .5, 1 (two rows, one vote), -.5.
    So a = √2 / 3 = .471 and b = √2 = 1.414."""
    data = labelled([([1.0], [0]), ([2.0, 2.0], [0, 0]), ([1.0], [1])])
    how = {"n_rounds": 1, "epochs": 1, "lr": 1.0, "eps1": 0.48, "eps2": 1.41, "first_split": 0} | bounds
    expected = [0.75, 0.75, -0.5] if splits else [1 / 3] * 3
    for run in (run_rounds, run_plain):
        found = run(quick("cfl", zeros(1, 2), Classification(2), **PLAIN, **how), data)
        close(found.models, [[a, -a] for a in expected], atol=1e-14)
        assert found.global_model.shape == (1 + splits, 2)


def test_an_update_speaks_in_cfl_for_so_many_rounds_and_moves_the_group_once() -> None:
    ways = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]).double()
    for changes, last in (({"max_age": 1}, 4), ({"max_age": 2}, 5), ({"join": 0.5}, 7), ({}, 5)):
        cfl: Any = quick("cfl", zeros(1, 2), Classification(2), **changes, eps1=9.0)
        for t in (4, 5, 6, 7, 8):
            assert cfl.splits(ways, torch.tensor([t, 3, t]), t) == (t <= last)  # the second spoke in round 3
    cfl = quick("cfl", zeros(1, 2), Classification(2), eps1=0.0)
    server = cfl.opening(3)
    for t, i in enumerate((0, 1)):
        server = cfl.gather(server, t, {i: {"delta": ways[0]}})
    close(server.w, [[2.0, 0.0]])


def test_cfl_splits_by_complete_linkage() -> None:
    """Ways at 0°, 20° | 45°, 75°, 110°; single linkage would leave the last alone."""
    angle = torch.tensor([0.0, 20.0, 45.0, 75.0, 110.0]).double().deg2rad()
    cfl: Any = method_named("cfl")
    ways = torch.stack([angle.cos(), angle.sin()], 1) * torch.arange(1, 6)[:, None]
    assert cfl.second_half(ways).tolist() == [False, False, True, True, True]


def knn_by_hand(known: np.ndarray, labels: np.ndarray, x: np.ndarray, k: int, sigma: float) -> np.ndarray:
    """q(c) of one row, the network being linear, so that features are the row itself."""
    square = ((known - x) ** 2).sum(1)
    near = square.argsort()[:k]
    weight = np.exp(-square[near] / (known.shape[1] * sigma))
    return np.array([weight[labels[near] == c].sum() for c in range(3)]) / weight.sum()


@pytest.mark.parametrize(("share", "enough"), [(0.0, 2), (0.3, 2), (0.3, 4)], ids=["given", "chosen", "too few"])
def test_knn_per_by_hand(share: float, enough: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of FedAvg from 0, where every class has 1/3, without the rows set aside; then the mixture, λ given or
    that of 101 under which the rows set aside are likeliest."""
    monkeypatch.setattr("learn2pfed.algorithms.knn_per.ENOUGH", enough)
    data, test, lr = clients((9, 8), (2,)), clients((4, 3), (2,)), 0.5
    data = Samples(data.names, data.X, (data.X[:, 0] > 0) + (data.X[:, 1] > 1).long(), data.sizes)
    how = {"n_rounds": 1, "epochs": 1, "batch_size": 9, "lr": lr, "k": 3, "sigma": 0.7, "lam": 0.3, "set_aside": share}
    algorithm = quick("knn-per", zeros(2, 3), **PLAIN, **how)
    models = run_rounds(algorithm, data).models
    locals_ = [home(algorithm, data, (i,), axis=False) for i in range(2)]
    splits = [replace(local, set_aside=share).split(0) for local in locals_]
    X, y = data.X.numpy(), data.y.numpy()
    slopes = [(1 / 3 - np.eye(3)[y[seen]]).T @ X[seen] / len(seen) for seen, _ in splits]
    weight = -lr * (9 * slopes[0] + 8 * slopes[1]) / 17
    close(models, np.tile(weight.reshape(-1), (2, 1)), atol=1e-14)

    def both(store: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        score = np.exp(x @ weight.T)
        return knn_by_hand(X[store], y[store], x, 3, 0.7), score / score.sum()

    chosen = []
    for i, (seen, aside) in enumerate(splits):
        lam = 0.3
        if len(aside) >= enough:
            pairs = [(q[y[j]], p[y[j]]) for j in aside for q, p in [both(seen, X[j])]]
            grid = np.linspace(0, 1, 101)
            lam = grid[np.argmax([sum(np.log(max(g * q + (1 - g) * p, 1e-300)) for q, p in pairs) for g in grid])]
        chosen.append(lam)
        for x, score in zip(test.clients[i].X, algorithm.scores(models[i], locals_[i], test.clients[i].X), strict=True):
            near, own = both(np.concatenate([seen, aside]), x.numpy())
            close(score.exp(), lam * near + (1 - lam) * own, atol=1e-12)
    assert (0.3 in chosen) == (not share or enough == 4)


# known optima: F_a = (v - 2)², F_b = ½ (v - 1)² + ½ (3 v - 1)²; own minima 2 and .4; prox_λ(w) = (4 + λ w) / (a_i + λ)


def prox(w: float, lam: float) -> list[float]:
    return [(4 + lam * w) / (2 + lam), (4 + lam * w) / (10 + lam)]


JOINT = 6 / 11  # 1 (2 w - 4) + 2 (10 w - 4) = 0
PROXIMAL = 34 / 41  # w = prox_a(w) / 3 + 2 prox_b(w) / 3 with μ = 1
OPTIMA: dict[str, tuple[dict[str, Any], list[float], float | None]] = {
    "local-only": ({}, [2.0, 0.4], None),
    "fedavg": ({}, [JOINT] * 2, JOINT),
    "fedprox": ({"epochs": 45, "mu": 1.0, "n_rounds": 14}, [PROXIMAL] * 2, PROXIMAL),
    "fedavg-ft": ({"ft_epochs": 70, "ft_lam": 1.0}, prox(JOINT, 1.0), JOINT),
    "fedprox-ft": (
        {"epochs": 45, "mu": 1.0, "n_rounds": 14, "ft_epochs": 70, "ft_lam": 2.0, "ft_part": "all"},
        prox(PROXIMAL, 2.0),
        PROXIMAL,
    ),
    "ditto": ({"lam": 3.0, "personal_epochs": 1, "final_epochs": 0, "lr": 0.1}, prox(JOINT, 3.0), JOINT),
    # the envelopes' minimiser has w = mean of prox(w): with λ = 2, w = 1
    "pfedme": (
        {"lam": 2.0, "eta": 0.5, "alpha": 0.125, "n_inner": 34, "n_batches": 1, "n_rounds": 24},
        [1.5, 0.5],
        1.0,
    ),
    # the same objective, P = ±1
    "lp-proj": (
        {"p": 2, "lam": 2.0, "eta": 0.25, "alpha": 0.1, "n_inner": 5, "n_local": 1, "n_projected": 1},
        [1.5, 0.5],
        1.0,
    ),
}


@pytest.mark.parametrize("name", OPTIMA)
def test_two_clients_reach_the_known_optimum(name: str) -> None:
    changes, models, held = OPTIMA[name]
    how = {"n_rounds": 100, "epochs": 1, "lr": 0.14, "ft_lr": 0.14} | PLAIN | changes
    algorithm: Any = quick(name, line(1.0), Regression(), **how)
    found = run_rounds(algorithm, pair())
    close(found.models[:, 0], models)
    if held is not None:
        close(found.global_model * (algorithm.P.item() if name == "lp-proj" else 1.0), [held])


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_body_and_heads_reach_a_stationary_point(name: str) -> None:
    """Each head's own gradient and the body's, summed by rows, vanish; the body's of one client alone do not."""
    torch.manual_seed(0)
    network = Network(nn.Sequential(nn.Linear(3, 1, bias=False), nn.Linear(1, 1, bias=False)).double(), head="1")
    X, best = 3**0.5 * torch.eye(3).double(), torch.tensor([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0]]).double()
    data = Samples.join([("a", X.repeat(2, 1), X.repeat(2, 1) @ best[0]), ("b", X, X @ best[1])])
    how = {"n_rounds": 150, "epochs": 1, "head_epochs": 2, "final_epochs": 0, "lr": 0.1, "batch_size": 9}
    algorithm = quick(name, network, Regression(), **PLAIN, **how)
    models = run_rounds(algorithm, data).models  # F_i = ‖h_i φ - best_i‖²
    slopes = torch.stack([slope(algorithm, v, c.X, c.y) for v, c in zip(models, data.clients, strict=True)])
    bodies, heads = network.cut(slopes)
    close(heads, torch.zeros(2, 1))
    close(torch.tensor([6.0, 3.0]).double() @ bodies, torch.zeros(3))
    assert bodies.norm(dim=1).min() > 0.1


def test_the_model_beneath_knn_per_is_the_minimiser_of_all_rows_loss() -> None:
    data = clients((30, 12), (2,))
    how = {"n_rounds": 400, "epochs": 1, "lr": 1.0, "batch_size": 99, "set_aside": 0.0}
    algorithm = quick("knn-per", zeros(2, 3), **PLAIN, **how)
    found = run_rounds(algorithm, data)
    close(slope(algorithm, found.global_model, data.X, data.y), torch.zeros(6))


R, S, T = [(8, 1, 1), (16, 2, 2)], [(1, 6, 3), (2, 13, 5)], [(1, 3, 6), (2, 5, 13)]
GROUPS = {
    "two": ([R[0], S[0], R[1], S[1]], [0, 1, 0, 1]),
    "three, so that a group which lacks the first client is split again": (
        [R[0], S[0], T[0], T[1], R[1], S[1]],
        [0, 1, 2, 2, 0, 1],
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_cfl_finds_the_groups_and_each_groups_optimum(name: str) -> None:
    """With x = 1 the optimum has softmax(w_c) = the uniform mean of its members' shares of classes."""
    counts, truth = GROUPS[name]
    data = labelled([([1.0] * sum(c), [k for k in range(3) for _ in range(c[k])]) for c in counts])
    how = {"n_rounds": 120, "epochs": 1, "lr": 2.0, "batch_size": 99, "eps1": 0.05, "eps2": 0.15, "min_size": 1}
    found = run_rounds(quick("cfl", zeros(1, 3), **PLAIN, **how, first_split=2), data)
    assert len(found.global_model) == len(set(truth))
    share = torch.tensor(counts).double()
    share = share / share.sum(1, keepdim=True)
    expected = [share[[other == own for other in truth]].mean(0) for own in truth]
    close(found.models.softmax(-1), torch.stack(expected))


# what is scored


def test_pfedme_scores_theta() -> None:
    algorithm: Any = quick("pfedme")
    data = clients()
    found = run_rounds(algorithm, data)
    for i in range(len(data)):
        theta, own = algorithm.solve(home(algorithm, data, (i,), axis=False, time=3), found.global_model)
        close(found.models[i], theta, atol=1e-12)
        assert (found.models[i] - own).abs().max() > 1e-3
        assert (found.models[i] - found.global_model).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["fedavg", "knn-per", "regression"])
def test_marks_are_those_of_a_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learn2pfed.models.network.AT_ONCE", 4)
    monkeypatch.setattr("learn2pfed.engines.rounds.SCORED_ROWS", 40)
    task = Regression() if name == "regression" else CLASSES
    train, test = clients(task=task), clients((3, 9, 5, 1, 2), task=task)
    algorithm = quick("fedavg" if name == "regression" else name, mlp(task.n_outputs), task)
    models = algorithm.network.start + torch.from_numpy(np.random.default_rng(0).normal(size=(5, 1)))
    expected = []
    for i, client in enumerate(test.clients):
        for x, y in zip(client.X, client.y, strict=True):
            score = algorithm.scores(models[i], home(algorithm, train, (i,), axis=False), x[None])[0]
            expected.append((score[0] - y).square() if name == "regression" else (score.argmax() == y).double())
    close(marks_of(algorithm, models, train, test), torch.stack(expected), atol=1e-12)


# engines, seeds, threads, order, type

MODELS = {"mlp": ((3,), {"hidden": (4,)}), "lstm": ((4,), {"hidden": 3}), "cnn-10-20": ((1, 12, 12), {})}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("how", "join"), [(MOMENTUM, 1.0), (ADAM, 0.6)], ids=["sgd, all", "adam, some"])
def test_both_engines_give_the_same(name: str, model: str, how: dict[str, Any], join: float) -> None:
    shape, options = MODELS[model]
    network = build(model, shape, 3, **options).to(torch.float64)
    algorithm, data = quick(name, network, **how, join=join), clients(shape=shape)
    one = run_rounds(algorithm, data)
    agree(one, run_plain(algorithm, data))
    assert (one.models != network.start).any()


@pytest.mark.parametrize("name", [name for name in ALL if not method_named(name).only_classification])
def test_both_engines_give_the_same_for_numbers(name: str) -> None:
    data = clients(task=Regression())
    algorithm = quick(name, mlp(1), Regression(), **ADAM, join=0.6)
    agree(run_rounds(algorithm, data), run_plain(algorithm, data))


@pytest.mark.parametrize("name", ALL)
def test_same_seed_same_result_to_the_last_bit(name: str) -> None:
    one, again, other = (run_rounds(quick(name, seed=seed, join=0.6), clients()) for seed in (1, 1, 2))
    assert torch.equal(one.models, again.models)
    assert not torch.equal(one.models, other.models)


def test_who_takes_part_is_drawn_from_seed_and_round_alike_for_every_method() -> None:
    def draws(name: str, seed: int = 0) -> list[tuple[int, ...]]:
        algorithm = quick(name, join=0.4, seed=seed)
        return [algorithm.asks(t, 10) for t in range(50)]

    found = draws("fedavg")
    assert all(draws(name) == found for name in ALL if name != "local-only")
    assert all(len(set(drawn)) == 4 for drawn in found)
    assert np.bincount(np.ravel(found), minlength=10).min() > 8  # 20 on average
    assert draws("fedavg", seed=1) != found


@pytest.mark.parametrize("name", ALL)
def test_threads_change_nothing_but_rounding(name: str) -> None:
    algorithm = quick(name, build("mlp", (3,), 3, hidden=(64,)).to(torch.float64), batch_size=64, n_rounds=1, epochs=1)
    data, found = clients((60, 50, 1)), []
    try:
        for n_threads in (1, 2):
            torch.set_num_threads(n_threads)
            found.append(run_rounds(algorithm, data))
    finally:
        torch.set_num_threads(1)
    agree(*found)


@pytest.mark.parametrize("name", ALL)
def test_the_order_of_clients_does_not_matter(name: str) -> None:
    """As long as nothing is drawn, which goes by a client's number: no small batches, nothing set aside, all join."""
    algorithm, data, order = quick(name, batch_size=9, set_aside=0.0), clients(), [3, 0, 4, 2, 1]
    turned = Samples.join([(c.name, c.X, c.y) for c in (data.clients[i] for i in order)])
    one, two = run_rounds(algorithm, data), run_rounds(algorithm, turned)
    close(two.models, one.models[order], atol=1e-11)
    assert one.traffic == two.traffic
    method = type(algorithm)
    one_for_all = method.personal is Rounds.personal and method.tells is Rounds.tells
    assert (len(one.models.unique(dim=0)) == 1) == one_for_all


@pytest.mark.parametrize("name", ALL)
def test_precision_is_kept_and_nothing_is_changed_in_place(name: str) -> None:
    for dtype in (torch.float32, torch.float64):
        data = clients()
        data = Samples(data.names, data.X.to(dtype), data.y, data.sizes)
        X, algorithm = data.X.clone(), quick(name, mlp().to(dtype))
        start = algorithm.network.start.clone()
        found = run_rounds(algorithm, data)
        assert found.models.dtype == found.global_model.dtype == dtype
        assert marks_of(algorithm, found.models, data, data).dtype == dtype
        assert torch.equal(algorithm.network.start, start)
        assert torch.equal(data.X, X)


@pytest.mark.parametrize("name", ["local-only", "fedavg", "cfl"])
def test_what_a_run_gives_is_not_the_networks_own_memory(name: str) -> None:
    algorithm = quick(name, epochs=0)
    found, start = run_rounds(algorithm, clients()), algorithm.network.start.clone()
    found.global_model.zero_()
    found.models.zero_()
    assert torch.equal(algorithm.network.start, start)


def never_joined(algorithm: Rounds, client: ClientData, w: Tensor) -> Tensor:
    """The model of a client that never took part, by the table in BASELINES.md; w is what the server holds."""
    start, how = algorithm.network.start, cast(Any, algorithm.settings)
    n_steps = {"local-only": 4, "fedavg-ft": 2, "fedprox-ft": 2}
    if algorithm.name in n_steps:
        return descent(algorithm, start if algorithm.name == "local-only" else w, client, 0.1, n_steps[algorithm.name])
    if algorithm.name in ("fedper", "fedrep"):
        return algorithm.network.join(w, start[algorithm.network.is_head])
    if algorithm.name in ("ditto", "lp-proj"):
        return start
    if algorithm.name == "pfedme":
        theta = own = w
        for _ in range(how.n_batches):
            for _ in range(how.n_inner):
                pull = how.lam * (theta - own)
                theta = theta - how.alpha * (slope(algorithm, theta, client.X, client.y) + pull)
            own = own + how.eta * how.lam * (theta - own)
        return theta
    return w[0] if algorithm.name == "cfl" else w


@pytest.mark.parametrize("name", OF_THE_TABLE)
@pytest.mark.parametrize("run", [run_rounds, run_plain])
def test_who_never_took_part_has_the_model_of_the_table(name: str, run: Callable[..., Outcome]) -> None:
    data, how = clients(), {"n_rounds": 2, "join": 0.4, "final_epochs": 0, "lr": 0.1, "ft_lr": 0.1, "batch_size": 9}
    algorithm = quick(name, **PLAIN, **how | {"ft_part": "all", "ft_lam": 0.0, "epochs": 2})
    drawn = [algorithm.asks(t, 5) for t in range(2)]
    found = run(algorithm, data)
    assert found.insight["joined"].tolist() == [sum(i in clients for clients in drawn) for i in range(5)]
    left_out = [i for i in range(5) if not any(i in quick("fedavg", **how).asks(t, 5) for t in range(2))]
    assert left_out
    for i in left_out:
        close(found.models[i], never_joined(algorithm, data.clients[i], found.global_model), atol=1e-12)


# going on after a stop


class Look(NamedTuple):
    state: Snapshot
    models: Tensor  # if the run ended here
    traffic: Traffic


def looked_at(algorithm: Rounds, data: Samples) -> tuple[Outcome, dict[int, Look]]:
    looks: dict[int, Look] = {}

    def observe(t: int, simulator: Simulator, told: Told) -> None:
        looks[t] = Look(simulator.snapshot(), simulator.personal(told), simulator.ended(told))

    return run_rounds(algorithm, data, observe=observe), looks


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("how", [MOMENTUM, ADAM], ids=["sgd", "adam"])
def test_a_run_goes_on_from_a_snapshot_as_if_it_had_never_stopped(name: str, how: dict[str, Any]) -> None:
    algorithm, data = quick(name, **how, join=0.6, n_rounds=4), clients()
    whole, looks = looked_at(algorithm, data)
    assert list(looks) == [1, 2, 3, 4]
    for t in (2, 2, 4):  # a snapshot serves twice
        again = run_rounds(algorithm, data, start=looks[t].state)
        assert torch.equal(again.models, whole.models)
        agree(again, whole)
    assert torch.equal(run_rounds(algorithm, data).models, whole.models)  # looking changed nothing
    assert torch.equal(looks[4].models, whole.models)
    assert not torch.equal(looks[2].models, whole.models)


@pytest.mark.parametrize("name", ALL)
def test_a_look_counts_what_a_run_sends_that_ends_there(name: str) -> None:
    how: dict[str, Any] = {"join": 0.6} | ({"share": 0.5} if name == "learn2pfed" else {})  # else it learns by a clock
    whole, looks = looked_at(quick(name, **how, n_rounds=4), clients())
    assert looks[4].traffic == whole.traffic
    assert looks[2].traffic == run_rounds(quick(name, **how, n_rounds=2), clients()).traffic
    assert looks[2].traffic.bytes == looks[2].traffic.bytes_up + looks[2].traffic.bytes_down


# what gets lost, and what leaves the finite numbers


@pytest.mark.parametrize("name", ALL)
def test_a_lost_or_damaged_reply_leaves_the_others_going_on(name: str) -> None:
    def wire(number: int, client: int, reply: bytes, lost: bool) -> bytes | None:
        return reply if (number, client) != (0, 1) else None if lost else reply[:-1] + b"!!"

    algorithm, data = quick(name), clients()
    whole = run_rounds(algorithm, data)
    for lost in (True, False):
        found = run_plain(algorithm, data, wire=partial(wire, lost=lost))
        assert found.missing == {1: 1}
        assert found.insight["joined"].tolist() == [3, 2, 3, 3, 3]
        assert torch.isfinite(found.models).all()
        assert torch.allclose(found.models, whole.models, rtol=0, atol=1e-10) == (name == "local-only")


@pytest.mark.parametrize("name", ALL)
def test_a_client_that_never_answers_has_no_influence(name: str) -> None:
    data = clients()
    other = Samples(data.names, data.X.index_fill(0, torch.arange(13), 7.0), data.y, data.sizes)
    found = [
        run_plain(quick(name), rows, wire=lambda _, i, reply: None if i in (0, 1) else reply) for rows in (data, other)
    ]
    assert torch.equal(found[0].models[2:], found[1].models[2:])
    assert torch.equal(found[0].global_model, found[1].global_model)
    assert found[0].missing.keys() == {0, 1}
    assert found[0].insight["joined"].tolist() == [0, 0, 3, 3, 3]


@pytest.mark.parametrize("name", ALL)
def test_three_rounds_without_an_answer_end_a_run_and_two_do_not(name: str) -> None:
    algorithm = quick(name, n_rounds=6, eps1=0.0)  # one group, so that every round is one exchange

    def run(*silent: int) -> Outcome:
        return run_plain(algorithm, clients(), wire=lambda number, _, reply: None if number in silent else reply)

    for rounds in ((0, 1, 2), (2, 3, 4)):
        with pytest.raises(DivergenceError, match=f"usable answer in rounds {rounds[0] + 1} to {rounds[-1] + 1}: if"):
            run(*rounds)
    assert torch.isfinite(run(0, 1, 3, 4).models).all()


@pytest.mark.parametrize("name", ALL)
def test_what_leaves_the_finite_numbers_is_treated_alike_by_both_engines(name: str) -> None:
    """Where it is sent, nobody's answer is usable; where it stays at home, or only its sign is sent, models are NaN."""
    task = CLASSES if method_named(name).only_classification else Regression()
    wild = PLAIN | {"lr": 1e200, "alpha": 1e200, "n_rounds": 4, "eps1": 0.0, "set_aside": 0.0}
    algorithm, data = quick(name, mlp(task.n_outputs), task, **wild), clients(task=task)
    for run in (run_rounds, run_plain):
        if name in ("local-only", "lp-proj"):
            assert run(algorithm, data).models.isnan().any(1).all()
            continue
        with pytest.raises(DivergenceError, match=f"^{re.escape(algorithm.title)}: nobody .* lower the step size"):
            run(algorithm, data)


def test_a_short_run_in_which_nobody_answered_is_no_result() -> None:
    algorithm, data = quick("fedavg", mlp(1), Regression(), **PLAIN, lr=1e200, n_rounds=2), clients(task=Regression())
    for run in (run_rounds, run_plain):
        with pytest.raises(DivergenceError, match="nobody ever gave a usable answer"):
            run(algorithm, data)


@pytest.mark.parametrize("name", ["fedavg", "fedper", "ditto"])
def test_one_wild_client_keeps_what_it_had_and_leaves_the_others_going_on(name: str) -> None:
    data = clients(task=Regression())
    wild = Samples(data.names, data.X.index_fill(0, torch.arange(9), 1e200), data.y, data.sizes)
    algorithm = quick(name, mlp(1), Regression(), **PLAIN, final_epochs=0)
    one, two = run_rounds(algorithm, wild), run_plain(algorithm, wild)
    agree(one, two)
    assert one.missing == {0: 3}
    assert torch.isfinite(one.models).all()
    start, head = algorithm.network.start, algorithm.network.is_head
    assert torch.equal(one.models[0][head], start[head]) == (name != "fedavg")
    assert torch.equal(one.models[0], start) == (name == "ditto")
    assert (one.models[1:] != start).any(1).all()


# bytes


@pytest.mark.parametrize("name", OF_THE_TABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_as_many_bytes_travel_as_the_table_says(name: str, dtype: torch.dtype) -> None:
    network, data, up = mlp().to(dtype), clients(), []
    data = Samples(data.names, data.X.to(dtype), data.y, data.sizes)
    algorithm = quick(name, network, join=0.6, first_split=9)
    P, P_b = network.n_parameters, int((~network.is_head).sum())
    numbers = {"local-only": 0, "fedper": P_b, "fedrep": P_b, "lp-proj": 3}.get(name, P)
    beside = int(name == "plug-in")  # a weight goes up with the model

    def wire(number: int, client: int, reply: bytes) -> bytes:
        if number < 3:
            up.append(decode(reply) if reply else {})
        return reply

    found = run_plain(algorithm, data, wire=wire)
    m = 5 if name == "local-only" else 3
    assert len(up) == 3 * m
    for message in up:
        floating = [x for key, x in message.items() if key != "n"]
        assert sum(x.numel() * x.element_size() for x in floating) == (numbers + beside) * dtype.itemsize
    ((said, told),) = algorithm.tells(algorithm.opening(5), tuple(range(5)))
    assert told == tuple(range(5))
    assert sum(x.numel() * x.element_size() for x in said.values()) == numbers * dtype.itemsize
    home = algorithm.enter(0, data.clients[0])
    reply, broadcast = size(algorithm.reply_specs(algorithm.opening(5))), size(algorithm.expects("round", home))
    assert (found.traffic.bytes_up, found.traffic.bytes_down) == (3 * m * reply, (3 * m + 5) * broadcast)
    assert found.traffic.n_exchanges == 4
    for total in (reply, broadcast):
        assert 0 <= total - numbers * dtype.itemsize <= (300 if numbers else 0)
    assert run_rounds(algorithm, data).traffic == found.traffic


def test_clients_of_similar_size_are_computed_together() -> None:
    assert similar(dict(enumerate([2, 3, 4, 8, 8, 25])), 9) == [(0, 1), (2,), (3, 4), (5,)]
    assert similar(dict(enumerate([4, 1, 1, 3])), 9) == [(1, 2, 3), (0,)]
    assert similar(dict(enumerate([4, 1, 1, 3])), 2) == [(1, 2), (0, 3)]


# bad input


class OneRow(nn.Module):
    """Takes one row and no two."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, X: Tensor) -> Tensor:
        scores: Tensor = self.layer(X.reshape(1, -1))
        return scores


WRONG: dict[str, Callable[[], object]] = {
    r"no algorithm 'nope'; there are local-only, fedavg, .*, knn-per, plug-in, .*, learn2pfed\.": lambda: method_named(
        "nope"
    ),
    "nope: there is no such setting; there are n_rounds, join": lambda: method_named("fedavg").settings_class.of(
        nope=1
    ),
    "mu: there is no such setting": lambda: method_named("ditto").settings_class.of(mu=1.0),
    "lr: input should be greater than 0, got -1": lambda: method_named("fedavg").settings_class.of(lr=-1),
    "join: input should be less than or equal to 1, got 2": lambda: method_named("fedavg").settings_class.of(join=2),
    "lr: .* finite": lambda: method_named("fedavg").settings_class.of(lr=float("nan")),
    "optimizer: input should be 'sgd' or 'adam'": lambda: method_named("fedavg").settings_class.of(optimizer="lion"),
    "p: input should be 1 or 2": lambda: method_named("lp-proj").settings_class.of(p=3),
    "n_rounds: input should be greater than or equal to 1": lambda: quick("fedavg").settings.changed(n_rounds=0),
    "no parameters in a part called 'nope'; there are layers.0, head": lambda: with_head("nope"),
    "kNN-Per needs classes to predict": lambda: quick("knn-per", mlp(1), Regression()),
    "CFL needs classes to predict": lambda: quick("cfl", mlp(1), Regression()),
    "join = 0.05 of 5 clients is no client at all: use at least 0.2": lambda: run_rounds(
        quick("fedavg", join=0.05), clients()
    ),
    "pFedMe takes PFedMeSettings, got LocalSettings": lambda: method_named("pfedme")(
        quick("fedavg").settings, mlp(), CLASSES
    ),
    "ft_part = 'head' needs a network with a head": lambda: quick("fedavg-ft", with_head(None), ft_part="head"),
    "n_projected = 32 is more than the network has: 31": lambda: quick("lp-proj", n_projected=32),
    "There are 5 models, and clients c0, c1 to train": lambda: marks_of(
        quick("fedavg"), mlp().start.repeat(5, 1), clients((3, 3)), clients()
    ),
    "snapshot is of 2 clients and the data of 5": lambda: run_rounds(
        quick("fedavg"), clients(), start=Simulator(quick("fedavg"), clients((3, 3))).snapshot()
    ),
    "has no head of one layer, so nothing says": lambda: with_head(None).features(mlp().start, clients().X),
    "kNN-Per needs what the head of the network receives": lambda: run_rounds(
        quick("knn-per", with_head(None)), clients()
    ),
    "and there is no head of one layer that can be taken off: name the last layer": lambda: run_rounds(
        quick("knn-per", with_head("layers")), clients()
    ),
    r"takes? samples of shape \(3,\) \(.*: choose one that is made": lambda: run_rounds(
        quick("fedavg", Network(OneRow(), None)), clients()
    ),
    "scores are not finite where it starts": lambda: run_rounds(
        quick("fedavg", mlp().starting_at(mlp().start * torch.nan)), clients()
    ),
    r"The samples are torch.uint8 .*: convert them, as by X.to\(torch.float64\)": lambda: run_rounds(
        quick("fedavg"), replace(clients(), X=clients().X.to(torch.uint8))
    ),
    r"The samples are empty, of shape \(22, 0\)": lambda: run_rounds(
        quick("fedavg"), replace(clients(), X=clients().X[:, :0])
    ),
    "kind 'gossip' came": lambda: quick("fedavg").expects("gossip", quick("fedavg").enter(0, clients().clients[0])),
}


@pytest.mark.parametrize("reason", WRONG)
def test_what_is_wrong_is_refused_with_a_reason(reason: str) -> None:
    with pytest.raises(Learn2pFedError, match=reason):
        WRONG[reason]()
