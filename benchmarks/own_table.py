"""What `learn2pfed fit` costs from the CSV file to the report: CPU seconds and peak memory of the whole process.

python benchmarks/own_table.py                # both sizes
python benchmarks/own_table.py 1000 100 20    # clients, rows each, features
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

SIZES = ((1_000, 100, 20), (100_000, 20, 8))


def write_table(path: Path, n_clients: int, n_rows: int, n_features: int) -> None:
    """Shops whose coefficients scatter around common ones, each coefficient by its own measure."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(n_clients), n_rows)
    X = rng.normal(size=(len(owner), n_features)).round(4)
    spread = 10.0 ** rng.uniform(-2, 0, n_features)
    own = rng.normal(size=n_features) + spread * rng.normal(size=(n_clients, n_features))
    y = rng.normal(size=n_clients)[owner] + (X * own[owner]).sum(1) + rng.normal(size=len(owner))
    frame = pd.DataFrame(X, columns=[f"f{j}" for j in range(n_features)])
    frame.insert(0, "shop", [f"shop {i}" for i in owner])
    frame["sales"] = y.round(4)
    frame.to_csv(path, index=False)


def measure(n_clients: int, n_rows: int, n_features: int) -> dict[str, float]:
    """Fit in a process of its own; its CPU time, peak memory and errors."""
    with tempfile.TemporaryDirectory() as place:
        table, out = Path(place) / "shops.csv", Path(place) / "out"
        write_table(table, n_clients, n_rows, n_features)
        command = [sys.executable, "-c", "from learn2pfed.cli import main; main()", "fit", str(table)]
        command += ["--client", "shop", "--target", "sales", "--out", str(out)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"fit ended with status {status}.")
        rows = json.loads((out / "results.json").read_text())["rows"]
        errors = {f"RMSE {row['algorithm']}": row["value"] for row in rows if row["metric"] == "RMSE"}
        size = {"clients": n_clients, "rows each": n_rows, "features": n_features}
        cost = {"CPU seconds": used.ru_utime + used.ru_stime, "peak GB": used.ru_maxrss * 1024 / 1e9}
        return size | {"CSV MB": table.stat().st_size / 1e6} | cost | errors


def main() -> None:
    """Print a line a size, and the records as JSON."""
    asked = [tuple(map(int, sys.argv[1:4]))] if len(sys.argv) == 4 else list(SIZES)
    found = []
    for size in asked:
        found.append(measure(*size))
        print(", ".join(f"{name} {value:.4g}" for name, value in found[-1].items()), flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
