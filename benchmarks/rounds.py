"""What a round costs, in CPU time, one thread, both sides of every comparison taking turns.

(a) FedAvg on Fashion-MNIST against Apple's simulator `pfl` 0.6.0 on the same work, evaluation included
(b) 100 clients with the MLP, all at once against one after another
(c) what the simulator adds to the bare forward and backward steps of the same network in the same layout
(d) what FedAvg and FedPer reach after ten rounds on that split

python benchmarks/rounds.py --images FOLDER --split FILE --pfl VENV/bin/python    # all
python benchmarks/rounds.py                                                       # (b) alone

FOLDER has the four idx .gz files of Fashion-MNIST (Debian: apt-get install dataset-fashion-mnist). FILE has index lists
train0.. and test0.. into the 70,000 images (npz). VENV is a virtual environment of its own: pip install pfl==0.6.0.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from learn2pfed.algorithms.fedavg import FedAvg
from learn2pfed.algorithms.fedper import FedPer
from learn2pfed.algorithms.local import LocalSettings
from learn2pfed.algorithms.rounds import Told
from learn2pfed.data.federated import Samples
from learn2pfed.engines.rounds import Simulator, home, marks_of, run_rounds
from learn2pfed.models.modules import CNN, MLP, build
from learn2pfed.tasks import Classification, Regression

SETTINGS = {"epochs": 2, "batch_size": 64, "optimizer": "sgd", "lr": 0.05}
DATA = """\
(a), (c), (d): ten clients of Fashion-MNIST, cnn-32-64 (conv 32, conv 64, fc 512), 2 epochs, batches of 64, SGD 0.05
(b): 100 clients of 100 random rows, MLP (two hidden layers of 32), 2 epochs, batches of 64, Adam 0.01"""
FILES = ("train-images-idx3", "t10k-images-idx3", "train-labels-idx1", "t10k-labels-idx1")


def load(images: Path, split: Path) -> tuple[Samples, Samples]:
    """Training and test samples of the ten clients, pixels between -1 and 1."""
    parts = [gzip.decompress((images / f"{name}-ubyte.gz").read_bytes()) for name in FILES]
    arrays = [np.frombuffer(part, np.uint8, offset=4 + 4 * part[3]) for part in parts]
    pixels, labels = np.concatenate(arrays[:2]).reshape(-1, 1, 28, 28), np.concatenate(arrays[2:])

    def samples(lists: Any, part: str) -> Samples:
        rows = [(f"client {i}", lists[f"{part}{i}"]) for i in range(10)]
        return Samples.join(
            [(n, torch.from_numpy(pixels[r]).float() / 127.5 - 1, torch.from_numpy(labels[r]).long()) for n, r in rows]
        )

    with np.load(split) as lists:
        return samples(lists, "train"), samples(lists, "test")


def clock(work: Callable[[], Any]) -> float:
    """CPU seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


class Pfl:
    """The other simulator, in a process of its own."""

    def __init__(self, python: str, images: Path, split: Path, *more: str) -> None:
        script = Path(__file__).with_name("rounds_pfl.py")
        command = [python, str(script), "--images", str(images), "--split", str(split), "--warmup", *more]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version = self._hear()["pfl"]

    def round(self) -> dict[str, float]:
        """CPU seconds and accuracy of one more round."""
        print(file=self.process.stdin, flush=True)
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            sys.exit("pfl stopped: see its message above.")
        heard: dict[str, Any] = json.loads(line)
        return heard


def against_pfl(train: Samples, test: Samples, pfl: Pfl, n_rounds: int, what: str) -> None:
    """(a)"""
    settings = LocalSettings.of(n_rounds=n_rounds, **SETTINGS)
    algorithm = FedAvg(settings, build("cnn-32-64", (1, 28, 28), 10), Classification(10))
    ours, theirs, start = [], [], time.process_time()

    def observe(t: int, simulator: Simulator, told: Told) -> None:
        nonlocal start
        reached = float(marks_of(algorithm, simulator.personal(told), train, test).mean())
        ours.append(time.process_time() - start)
        theirs.append(pfl.round())
        other = theirs[-1]
        print(
            f"    round {t}: {ours[-1]:.2f} s, {reached:.3f}; pfl {other['cpu']:.2f} s, {other['accuracy']:.3f}",
            flush=True,
        )
        start = time.process_time()

    run_rounds(algorithm, train, observe=observe)
    compare(
        f"(a) FedAvg round with evaluation, ours / pfl {pfl.version}{what}", ours, [heard["cpu"] for heard in theirs]
    )


def clients_at_once(n_rounds: int) -> None:
    """(b)"""
    draw = torch.Generator().manual_seed(0)
    train = Samples.join(
        [(str(i), torch.randn(100, 1, generator=draw), torch.randn(100, generator=draw)) for i in range(100)]
    )
    algorithm = FedAvg(LocalSettings.of(n_rounds=1), build("mlp", (1,), 1), Regression())

    def simulate(axis: bool) -> None:
        simulator = Simulator(algorithm, train)
        simulator.axis = axis
        simulator.run(None, None)

    def bare() -> None:
        for i in range(len(train)):
            module = MLP(1, 1)
            optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
            for batch in home(algorithm, train, (i,), axis=False).batches(epochs=2):
                optimizer.zero_grad()
                (module(batch.X)[:, 0] - batch.y).square().mean().backward()
                optimizer.step()

    together, alone, plain = [], [], []
    for _ in range(n_rounds):
        together.append(clock(lambda: simulate(True)))
        alone.append(clock(lambda: simulate(False)))
        plain.append(clock(bare))
    compare("(b) 100 clients with the MLP, one after another / all at once", alone, together)
    compare("    the same, a plain torch loop with torch.optim / all at once", plain, together)


def overhead(train: Samples, n_rounds: int) -> None:
    """(c)"""
    network = build("cnn-32-64", (1, 28, 28), 10)
    algorithm = FedAvg(LocalSettings.of(n_rounds=1, **SETTINGS), network, Classification(10))

    def bare() -> None:
        module = CNN((1, 28, 28), 10, (32, 64), (512,)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        for i in range(len(train)):
            for batch in home(algorithm, train, (i,), axis=False).batches(epochs=2):
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(batch.X), batch.y).backward()
                optimizer.step()

    run_rounds(algorithm, train)
    ours, theirs = [], []
    for _ in range(n_rounds):
        ours.append(clock(lambda: run_rounds(algorithm, train)))
        theirs.append(clock(bare))
    compare("(c) FedAvg round without evaluation / bare steps, channels last", ours, theirs)


def compare(what: str, ours: list[float], theirs: list[float]) -> None:
    """The ratio of medians, with the spread of the ratios turn by turn."""
    turns = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    a, b = statistics.median(ours), statistics.median(theirs)
    print(f"{what}: {a / b:.3f}  ({a:.3f} s / {b:.3f} s; turn by turn {turns[0]:.3f} to {turns[-1]:.3f})", flush=True)


def accuracy(train: Samples, test: Samples) -> None:
    """(d)"""
    for method in (FedAvg, FedPer):
        network = build("cnn-32-64", (1, 28, 28), 10)
        algorithm = method(method.settings_class.of(n_rounds=10, **SETTINGS), network, Classification(10))
        reached = marks_of(algorithm, run_rounds(algorithm, train).models, train, test).mean()
        print(f"(d) {method.title} after 10 rounds, sample-weighted test accuracy: {reached:.4f}", flush=True)


def main() -> None:
    """All that the arguments allow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--split", type=Path)
    parser.add_argument("--pfl", help="the python of a virtual environment with pfl 0.6.0")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, CPU time, medians over {options.rounds} turns")
    print(DATA)
    clients_at_once(options.rounds)
    if options.images and options.split:
        train, test = load(options.images, options.split)
        overhead(train, options.rounds)
        if options.pfl:
            for more, what in (((), ""), (("--channels-last",), " told to use channels_last")):
                pfl = Pfl(options.pfl, options.images, options.split, *more)
                against_pfl(train, test, pfl, options.rounds, what)
                pfl.process.kill()
        accuracy(train, test)


if __name__ == "__main__":
    main()
