"""Learn2pFed's plug-in: a round by hand, what Θ learns, what travels, and where the head may begin."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learn2pfed.algorithms.local import Batch, Local
from learn2pfed.algorithms.plug_in import PlugIn, PlugInSettings, theta_of
from learn2pfed.data.federated import Samples
from learn2pfed.engines.plain import run_plain
from learn2pfed.engines.rounds import home, run_rounds
from learn2pfed.errors import Learn2pFedError
from learn2pfed.models.modules import build
from learn2pfed.models.network import Network, attach
from learn2pfed.tasks import Classification, Regression


def clients(n_outputs: int = 3) -> Samples:
    draw = torch.Generator().manual_seed(0)
    rows: list[tuple[str, Tensor, Tensor]] = []
    for i, n in enumerate((12, 7, 9)):
        X = torch.randn(n, 3, dtype=torch.float64, generator=draw)
        y = torch.randint(n_outputs, (n,), generator=draw) if n_outputs > 1 else X.sum(1) * (i + 1)
        rows.append((f"c{i}", X, y))
    return Samples.join(rows)


def plug_in(network: Network | None = None, **changes: Any) -> PlugIn:
    network = build("mlp", (3,), 3, hidden=(4,)).to(torch.float64) if network is None else network
    settings = PlugInSettings.of(**{"n_rounds": 2, "batch_size": 12, "n_steps": 1, "n_cells": 1} | changes)
    return PlugIn(settings, network, Classification(3))


@pytest.mark.parametrize("run", [run_rounds, run_plain])
def test_two_rounds_by_hand(run: Any) -> None:
    """One cell and one batch of all rows; the network is all head, so that eq. (9) to (12) are all there is."""
    network = Network(nn.Sequential(nn.Linear(3, 1)).double(), "0")
    how = PlugInSettings(n_rounds=2, batch_size=12, n_steps=1, n_cells=1, rho=0.3, lam=0.6, head_lr=0.1, theta_lr=0.0)
    data = clients(1)
    w = network.start
    alpha, v, z = [torch.zeros_like(w)] * 3, [w] * 3, [torch.zeros_like(w)] * 3
    for _ in range(2):
        for i, client in enumerate(data.clients):
            alpha[i] = alpha[i] + z[i] - v[i] + w
            at = v[i].clone().requires_grad_()
            loss = (network.scores(at, client.X)[:, 0] - client.y).square().mean()
            slope = torch.autograd.grad(loss, at)[0]
            v[i] = v[i] - 0.1 * (slope + 0.3 * (v[i] - w - z[i] - alpha[i]))
            z[i] = 0.3 / 0.9 * (v[i] - w - alpha[i])
        w = torch.stack([a - c - b for a, b, c in zip(v, alpha, z, strict=True)]).mean(0)
    found = run(PlugIn(how, network, Regression()), data)
    torch.testing.assert_close(found.models, torch.stack(v), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.global_model, w, rtol=0, atol=1e-12)


@pytest.mark.parametrize("join", [1.0, 0.34])
def test_it_settles_at_the_known_solution(join: float) -> None:
    """Squared loss, Θ fixed at the defaults:  v_i = argmin F_i + ½ (v - w)ᵀΛ(v - w),  w the mean of the v_i."""
    network = Network(nn.Sequential(nn.Linear(3, 1)).double(), "0")
    how = PlugInSettings(n_rounds=400, join=join, batch_size=12, n_steps=20, theta_lr=0.0, head_lr=0.2)
    data = clients(1)
    found = run_rounds(PlugIn(how, network, Regression()), data)
    X = [torch.cat([c.X, torch.ones(c.n_rows, 1).double()], 1) for c in data.clients]  # weights, then the bias
    A = [2 * x.T @ x / len(x) for x in X]
    b = [2 * x.T @ c.y / len(x) for x, c in zip(X, data.clients, strict=True)]
    eye = torch.eye(4).double()
    S = [torch.linalg.inv(a + eye) for a in A]
    w = torch.linalg.solve(3 * eye - sum(S), sum(s @ each for s, each in zip(S, b, strict=True)))
    torch.testing.assert_close(found.global_model, w, rtol=0, atol=1e-3)
    expected = torch.stack([s @ (each + w) for s, each in zip(S, b, strict=True)])
    torch.testing.assert_close(found.models, expected, rtol=0, atol=1e-3)


def test_theta_follows_the_slope_of_the_loss_through_the_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """With slopes that do not depend on v, first order is exact: held against finite differences."""
    algorithm, data = plug_in(n_cells=4, n_steps=9, theta_lr=0.1), clients()
    slope = torch.linspace(-1, 1, algorithm.network.n_parameters, dtype=torch.float64)
    monkeypatch.setattr(Local, "gradient", lambda self, x, batch, part="all": slope)
    kept, local = algorithm.begin(), home(algorithm, data, (0,), axis=False)
    w = {"w": algorithm.head + 0.5}
    kept = algorithm.work(kept, local, w)[0]  # a state in which z and α are not zero

    def judged(raw: Tensor) -> float:
        state, _ = algorithm.cells(local, kept.state, w["w"], theta_of(raw), kept.body)
        return float(state.v @ algorithm.network.cut(slope)[1])

    after = algorithm.work(kept, local, w)[0]
    learned = (after.memory.first - 0.9 * kept.memory.first) / 0.1  # the gradient that Adam was given
    for place in (0, 7, -5, -4, -3, -2, -1):
        nudge = torch.zeros_like(kept.raw)
        nudge[place] = 1e-5
        expected = (judged(kept.raw + nudge) - judged(kept.raw - nudge)) / 2e-5
        assert float(learned[place]) == pytest.approx(expected, abs=1e-8)
    assert learned[[0, 7, -4, -3, -1]].abs().min() > 1e-6
    assert learned[[-5, -2]].abs().max() == 0  # p and γ count only in w


def test_rows_set_aside_teach_theta_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, data = plug_in(n_steps=6, n_cells=2, set_aside=0.4), clients()
    local, seen = home(algorithm, data, (0,), axis=False), []
    gradient = Local.gradient

    def watched(self: Local, x: Tensor, batch: Batch, part: Any = "all") -> Tensor:
        seen.append({tuple(row) for row in batch.X.tolist()})
        return gradient(self, x, batch, part)

    monkeypatch.setattr(Local, "gradient", watched)
    algorithm.work(algorithm.begin(), local, {"w": algorithm.head})
    *trained, judged = seen
    assert (len(trained), len(judged) + len(set.union(*trained))) == (6, 12)
    assert abs(len(judged) - 0.4 * 12) < 1
    assert not judged & set.union(*trained)


@pytest.mark.parametrize("start", ["layers.0", "layers.1", "head"])
@pytest.mark.parametrize("backbone", ["local", "shared"])
def test_the_head_may_begin_at_any_layer_and_only_what_is_shared_travels(start: str, backbone: str) -> None:
    module = build("mlp", (3,), 3, hidden=(4, 5)).to(torch.float64).module
    network = attach(module, start)
    algorithm = plug_in(network, backbone=backbone, n_steps=4, n_cells=2)
    found = run_rounds(algorithm, clients())
    head = int(network.is_head.sum())
    assert len(found.global_model) == (network.n_parameters if backbone == "shared" else head)
    bodies = found.models[:, ~network.is_head]
    assert (bodies == bodies[0]).all() == (backbone == "shared" or start == "layers.0")
    assert (found.models[0] != found.models[1])[network.is_head].any()


def test_a_network_without_a_head_is_refused() -> None:
    with pytest.raises(Learn2pFedError, match="needs a network with a head: name it, or attach"):
        plug_in(Network(nn.Linear(3, 3).double(), None))
