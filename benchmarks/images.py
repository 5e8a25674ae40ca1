"""CPU time of a round on Fashion-MNIST against the bare forward and backward steps of the same network.

(a) FedAvg
(b) Learn2pFed, in a round in which every tensor's share is learned
(c) Learn2pFed, in any other round but a client's first: with α_i

python benchmarks/images.py | tee docs/benchmarks/images.txt    # after: learn2pfed data get fashion-mnist

Ten clients, Dirichlet 0.5, 12,000 images, the paper's network, 2 epochs, batches of 64, Adam 0.001, one thread. Bare
steps are on as many images as the method trains on, with torch's own Adam, channels last in memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from learn2pfed.algorithms.fedavg import FedAvg
from learn2pfed.algorithms.local import LocalSettings
from learn2pfed.algorithms.rounds import Rounds
from learn2pfed.algorithms.whole_network import WholeNetwork, WholeNetworkSettings
from learn2pfed.data.federated import Samples
from learn2pfed.data.images import load_images
from learn2pfed.data.partition import partition, samples
from learn2pfed.engines.rounds import Snapshot, home, run_rounds
from learn2pfed.models.modules import CNN, build
from learn2pfed.tasks import Classification

SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 64, "lr": 0.001}
SHAPE = (1, 28, 28)


def clock(work: Callable[[], Any]) -> float:
    """CPU seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


def bare(algorithm: Rounds, train: Samples, set_aside: float) -> None:
    """The same batches through torch's module and optimiser."""
    for i in range(len(train)):
        module = CNN(SHAPE, 10, (10, 20), (), first_padding=2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.Adam(module.parameters(), lr=SETTINGS["lr"])
        local = replace(home(algorithm, train, (i,), axis=False), set_aside=set_aside)
        for batch in local.batches(epochs=SETTINGS["epochs"]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(batch.X), batch.y).backward()
            optimizer.step()


def before_the_last(algorithm: Rounds, train: Samples) -> Snapshot:
    """Where a run stands before its last round."""
    seen: list[Snapshot] = []
    run_rounds(algorithm, train, observe=lambda t, simulator, told: seen.append(simulator.snapshot()))
    return seen[-2]


def main() -> None:
    """Turn by turn, so that both sides meet the same weather; what is fastest met the least of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    n_turns = parser.parse_args().turns
    torch.set_num_threads(1)
    images = load_images("fashion-mnist")
    parts = partition(images.labels, n_clients=10, beta=0.5, n_images=12_000).without_validation()
    train, network, task = samples(images, parts, "train"), build("cnn-10-20", SHAPE, 10), Classification(10)
    learned = WholeNetworkSettings.of(n_rounds=2, final_passes=0, learn_from=0.5, learn_until=1.0, **SETTINGS)
    fixed = WholeNetworkSettings.of(n_rounds=2, final_passes=0, share=0.5, **SETTINGS)
    methods: dict[str, tuple[Rounds, float]] = {
        "(a) FedAvg": (FedAvg(LocalSettings.of(n_rounds=2, **SETTINGS), network, task), 0.0),
        "(b) Learn2pFed, learning": (WholeNetwork(learned, network, task), learned.set_aside),
        "(c) Learn2pFed": (WholeNetwork(fixed, network, task), 0.0),
    }
    if not learned.learns or not learned.in_time(1):
        raise SystemExit("No share is learned in the round that is timed.")
    how = f"one thread, CPU time, median of the ratios of {n_turns} turns, each in both orders"
    print(f"torch {torch.__version__}, {how}", flush=True)
    for title, (algorithm, aside) in methods.items():
        start = before_the_last(algorithm, train)  # warms up too
        whole, steps = partial(run_rounds, algorithm, train, start=start), partial(bare, algorithm, train, aside)
        # both orders make a turn: what slows the machine down bit by bit slows both sides alike
        turns = [(clock(whole), clock(steps), clock(steps), clock(whole)) for _ in range(n_turns)]
        ratios = sorted((a + d) / (b + c) for a, b, c, d in turns)
        fastest_whole, fastest_steps = min(min(a, d) for a, _, _, d in turns), min(min(b, c) for _, b, c, _ in turns)
        print(
            f"{title} round / bare steps: {statistics.median(ratios):.3f}, turn by turn {ratios[0]:.3f} to "
            f"{ratios[-1]:.3f}; the fastest of each {fastest_whole / fastest_steps:.3f} "
            f"({fastest_whole:.3f} s / {fastest_steps:.3f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
