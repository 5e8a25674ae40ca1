"""Learn2pFed on meters in the shape of the paper's: 313 clients x 94,694 rows x 97 features, made at random.

The rows, 23 GB if they were all there, are made a client at a time and used once: after that nothing touches them, so
that an epoch costs the same for a hundredth of the rows.

python benchmarks/electricity.py
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import torch

from learn2pfed.data.forecasting import forecasting
from learn2pfed.data.loads import Loads
from learn2pfed.unrolled.losses import SQUARED
from learn2pfed.unrolled.settings import Settings
from learn2pfed.unrolled.supervision import supervise, units
from learn2pfed.unrolled.training import learn


def made(n_clients: int, n_records: int) -> Loads:
    """Daily curves with noise that remembers."""
    rng = np.random.default_rng(0)
    day = np.sin(2 * np.pi * np.arange(n_records, dtype=np.float32) / 96)
    values = np.empty((n_clients, n_records), dtype=np.float32)
    for i in range(n_clients):
        noise = rng.standard_normal(n_records, dtype=np.float32)
        values[i] = 5 + rng.uniform(0.5, 2) * day + noise + rng.uniform(0.2, 0.8) * np.roll(noise, 1)
    names = tuple(f"meter {i}" for i in range(n_clients))
    return Loads(names, values, 15, None, "kW", "made", np.arange(values.shape[1]), {})


def main() -> None:
    """Prints memory and CPU seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=313)
    parser.add_argument("--records", type=int, default=105_322)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = Settings(n_repeats=1, n_epochs=options.epochs)
    for n_records in (options.records, options.records // 100 + 96):
        rows = forecasting(made(options.clients, n_records), n_days=1).train
        start = time.process_time()
        given = supervise(rows, settings, SQUARED)
        read = time.process_time() - start
        scale, conditioning = units(settings, given.full.gram.sum((0, 1)), len(rows))
        problem = given.scaled(scale)
        learn(problem, settings.changed(n_epochs=1), conditioning)  # decomposes, once
        start = time.process_time()
        learn(problem, settings, conditioning)
        epoch = (time.process_time() - start) / options.epochs
        print(
            f"{len(rows)} clients x {len(rows.times):,} rows x {rows.n_features} features: "
            f"statistics of {1 + 2 * settings.n_splits} sets of rows {read:.1f} s, an epoch {epoch:.3f} s",
            flush=True,
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"CPU time, one thread, L = {settings.n_cells}, {settings.n_splits} splits; peak memory {peak:.2f} GB")


if __name__ == "__main__":
    main()
