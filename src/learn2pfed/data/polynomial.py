"""The paper's synthetic study (section V-B): cubic curves of which clients share some coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from learn2pfed.data.federated import FederatedData
from learn2pfed.errors import Learn2pFedError

BASE = (0.0, -6.0, 18.0, -12.0)
"""a_0 .. a_3 before a client's own b_i is added."""

FEATURES = ("1", "x", "x²", "x³")


@dataclass(frozen=True)
class Polynomial:
    """Data with its truth: `coefficients` (M, 4) and which of the four are `shared` by all clients."""

    data: FederatedData
    coefficients: NDArray[np.float64]
    shared: NDArray[np.bool_]

    def truth(self, i: int) -> NDArray[np.float64]:
        """The noise-free function on client i's own x."""
        noise_free: NDArray[np.float64] = self.data.clients[i].X.numpy() @ self.coefficients[i]
        return noise_free


def client_sizes(
    rng: np.random.Generator, n_clients: int, n_rows: int, sizes: Literal["equal", "random"], min_rows: int
) -> NDArray[np.int64]:
    """n_1 .. n_M: all n_rows / M, or proportional to uniform draws (redrawn until each has `min_rows`)."""
    if sizes == "equal":
        if n_rows < n_clients:
            raise Learn2pFedError(
                f"n_rows={n_rows} for n_clients={n_clients} leaves a client with no rows: raise n_rows."
            )
        return np.full(n_clients, n_rows // n_clients)
    for _ in range(10_000):
        share = rng.random(n_clients)
        drawn: NDArray[np.int64] = (share / share.sum() * n_rows).astype(np.int64)
        if drawn.min() >= min_rows:
            return drawn
    raise Learn2pFedError(
        f"n_rows={n_rows} can't be split at random over n_clients={n_clients} with min_rows={min_rows} each: "
        "raise n_rows or lower min_rows."
    )


def polynomial(
    seed: int,
    setting: int,
    *,
    n_clients: int = 10,
    n_rows: int = 1000,
    sizes: Literal["equal", "random"] = "equal",
    min_rows: int = 8,
    noise: float = 0.1,
) -> Polynomial:
    """Setting 1, 2 or 3: the last 1, 2 or 3 coefficients differ between clients.

    `n_rows` points x ~ U(0, 1) are sorted and cut into stretches, so that each client sees its own interval;
    client i adds one b_i ~ U(-10, 10) to each coefficient that is not shared; y gets Gaussian noise.
    """
    if setting not in (1, 2, 3):
        raise Learn2pFedError(f"setting: there are 1, 2 and 3, got {setting!r}.")
    rng = np.random.default_rng([seed, setting])
    x = np.sort(rng.uniform(0, 1, n_rows))
    rows_of = client_sizes(rng, n_clients, n_rows, sizes, min_rows)
    shared = np.arange(4) < 4 - setting
    b = rng.uniform(-10, 10, n_clients)
    coefficients = np.where(shared, np.array(BASE), np.array(BASE) + b[:, None])
    rows = []
    for i, stretch in enumerate(np.split(x[: rows_of.sum()], np.cumsum(rows_of)[:-1])):
        X = np.vander(stretch, 4, increasing=True)
        y = X @ coefficients[i] + noise * rng.standard_normal(len(stretch))
        rows.append((f"client {i + 1}", X, y))
    return Polynomial(FederatedData.build(rows, FEATURES), coefficients, shared)
