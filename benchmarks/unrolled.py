"""CPU time of one epoch of Learn2pFed: L cells forward and the exact gradient for all six groups.

    .venv/bin/python benchmarks/unrolled.py            # everything, a few minutes
    .venv/bin/python benchmarks/unrolled.py --quick    # up to 1e5 clients

One process, one thread, CPU time. The straightforward way is a Python loop over clients that forms XᵀX and a
pseudo-inverse in
every cell. Both sides alternate in the same run and the medians are compared.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from learn2pfed.unrolled.losses import SquaredLoss
from learn2pfed.unrolled.network import zero_state
from learn2pfed.unrolled.settings import GROUPS, Settings
from learn2pfed.unrolled.supervision import Supervised
from learn2pfed.unrolled.theta import start_common, start_own
from learn2pfed.unrolled.training import pass_and_gradient

SETTINGS = Settings(
    learn=GROUPS, sharing="per-client", supervision="train", objective="sum", lam_spread=None, carry_adjoint=False
)


def rows(n_clients: int, n_features: int, n_rows: int) -> tuple[Tensor, Tensor]:
    """X (M, n, k) and y (M, n)."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n_clients, n_rows, n_features, dtype=torch.float64, generator=generator)
    return X, X.sum(-1) + torch.randn(n_clients, n_rows, dtype=torch.float64, generator=generator)


def statistics_of(X: Tensor, y: Tensor) -> Supervised:
    """All clients' statistics at once; (1, M)."""
    n = torch.full((len(X),), float(X.shape[1]), dtype=X.dtype)
    loss = SquaredLoss(X.mT @ X, (X.mT @ y.unsqueeze(-1)).squeeze(-1), y.square().sum(-1), n)
    return whole(loss)


def whole(loss: SquaredLoss) -> Supervised:
    """Trained and judged by the same rows."""
    full = SquaredLoss.stack([loss])
    return Supervised(full, full, full)


def fused_epoch(problem: Supervised, settings: Settings = SETTINGS) -> Callable[[], Tensor]:
    """Ours; the eigendecompositions are made before the first epoch."""
    _, n_clients, n_features = problem.train.b.shape
    common, own = start_common(settings, n_features), start_own(settings, problem.full, 1.0)
    state = zero_state(1, n_clients, n_features)
    w = torch.zeros(1, n_features, dtype=torch.float64)
    _ = problem.train.curvature

    def epoch() -> Tensor:
        *_, gradients = pass_and_gradient(problem, settings, common, own, state, w, ())
        return gradients.own["lam"]

    return epoch


def straightforward_epoch(X: Tensor, y: Tensor, problem: Supervised) -> Callable[[], Tensor]:
    """The loop: every client, every cell, XᵀX and a pseudo-inverse anew."""
    n_clients, _, n_features = X.shape
    common, raw = start_common(SETTINGS, n_features), start_own(SETTINGS, problem.full, 1.0)
    identity = torch.eye(n_features, dtype=torch.float64)

    def epoch() -> Tensor:
        leaves = {name: value[:, 0].detach().requires_grad_() for name, value in raw.items()}
        lam = (leaves["lam"] + common).exp()
        p, rho, eta, gamma = (leaves[name].exp() for name in ("p", "rho", "eta", "gamma"))
        theta = 1.618033988749895 * leaves["theta"].sigmoid()
        v = [torch.zeros(n_features, dtype=torch.float64) for _ in range(n_clients)]
        z, alpha = list(v), list(v)
        w = torch.zeros(n_features, dtype=torch.float64)
        for _ in range(SETTINGS.n_cells):
            total, weight = torch.zeros(n_features, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
            for i in range(n_clients):
                alpha[i] = alpha[i] + theta[i] * (z[i] - v[i] + w)
                inverse = torch.linalg.pinv(X[i].T @ X[i] + rho[i] * identity)
                v[i] = inverse @ (rho[i] * (w + z[i] + alpha[i]) + X[i].T @ y[i])
                z[i] = eta[i] * torch.linalg.pinv(torch.diag(lam[i]) + eta[i] * identity) @ (v[i] - w - alpha[i])
                c = p[i] * gamma[i]
                total, weight = total + c * (v[i] - z[i] - alpha[i]), weight + c
            w = total / weight
        loss = torch.stack([0.5 * (X[i] @ v[i] - y[i]).square().sum() for i in range(n_clients)]).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return gradients[list(leaves).index("lam")]

    return epoch


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def median_cpu(work: Callable[[], object], repeats: int = 5) -> float:
    """After one call to warm up."""
    work()
    return statistics.median(cpu(work) for _ in range(repeats))


def against_the_loop(n_clients: int, n_features: int, n_rows: int, target: float, repeats: int) -> dict[str, float]:
    """Both sides alternate; their gradients must agree."""
    X, y = rows(n_clients, n_features, n_rows)
    problem = statistics_of(X, y)
    ours, loop = fused_epoch(problem), straightforward_epoch(X, y, problem)
    gap = float((ours()[:, 0] - loop()).abs().max() / ours().abs().max())
    pairs = [(statistics.median(cpu(ours) for _ in range(20)), cpu(loop)) for _ in range(repeats)]
    fast, slow = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(
        f"{n_clients} clients, k = {n_features}, n = {n_rows}: loop {slow:.3f} s, ours {fast * 1e3:.2f} ms, "
        f"ratio {slow / fast:.0f} (target {target:.0f}); gradients agree to {gap:.1e}"
    )
    return {"clients": n_clients, "k": n_features, "n": n_rows, "loop": slow, "ours": fast, "ratio": slow / fast}


def many_clients(n_clients: int, n_features: int = 8) -> Supervised:
    """Statistics of made-up clients, without their rows."""
    generator = torch.Generator().manual_seed(0)
    G = torch.randn(n_clients, n_features, 2 * n_features, dtype=torch.float64, generator=generator)
    b = torch.randn(n_clients, n_features, dtype=torch.float64, generator=generator)
    ones = torch.ones(n_clients, dtype=torch.float64)
    return whole(SquaredLoss(G @ G.mT, b, 100 * ones, 16 * ones))


def peak_gigabytes() -> float:
    """The process's largest memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def growth(name: str, sizes: list[int], make: Callable[[int], Callable[[], object]]) -> list[dict[str, float]]:
    """An epoch's CPU time by size, and as a multiple of the step before."""
    table: list[dict[str, float]] = []
    for size in sizes:
        seconds = median_cpu(make(size), 3 if size > 50_000 else 9)
        step = f", {seconds / table[-1]['seconds']:.2f} times the last" if table else ""
        print(f"  {name} = {size:>9,}: {seconds * 1e3:10.2f} ms{step}; peak memory {peak_gigabytes():.2f} GB")
        table.append({name: size, "seconds": seconds, "peak_GB": peak_gigabytes()})
    span = math.log(table[-1]["seconds"] / table[0]["seconds"]) / math.log(sizes[-1] / sizes[0])
    print(f"  from {sizes[0]:,} to {sizes[-1]:,}: as {name} to the power {span:.2f} (0 is flat, 1 is linear)")
    return table


def main() -> None:
    """Print everything; --out keeps it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="stop at 1e5 clients, fewer repeats")
    parser.add_argument("--out", type=Path, help="write the measurements there as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 2 if arguments.quick else 5
    measured: dict[str, object] = {
        "against the loop": [
            against_the_loop(100, 4, 100, 100, repeats),
            against_the_loop(50, 97, 4000, 60, 1 if arguments.quick else 2),
        ]
    }
    print("An epoch by n (100 clients, k = 8):")
    measured["n"] = growth("n", [100, 1_000, 10_000], lambda n: fused_epoch(statistics_of(*rows(100, 8, n))))
    print("by L (1,000 clients, k = 8):")
    deep = many_clients(1_000)
    measured["L"] = growth(
        "L", [1, 5, 10, 20, 40], lambda n: fused_epoch(deep, SETTINGS.model_copy(update={"n_cells": n}))
    )
    print("by k (100 clients):")
    measured["k"] = growth("k", [4, 8, 16, 32, 64, 128], lambda k: fused_epoch(many_clients(100, k)))
    print("by M (k = 8):")
    counts = [10**power for power in range(2, 6 if arguments.quick else 7)]
    measured["M"] = growth("M", counts, lambda m: fused_epoch(many_clients(m)))
    if arguments.out:
        arguments.out.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
