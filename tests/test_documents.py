"""What documents say can be done, can be done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]


def snippets(name: str) -> list[str]:
    return [part.partition("```")[0] for part in (ROOT / name).read_text().split("```python\n")[1:]]


def test_the_baseline_of_the_document_runs_on_both_engines() -> None:
    names: dict[str, Any] = {"__name__": "a_baseline"}
    for code in snippets("docs/adding_a_baseline.md"):
        exec(compile(code, "adding_a_baseline.md", "exec", dont_inherit=True), names)
    torch.testing.assert_close(names["outcome"].models, names["same"].models, rtol=1e-4, atol=1e-5)
    assert names["outcome"].traffic == names["same"].traffic
    assert names["outcome"].insight["joined"].sum() == 2 * 20
    plain = names["FedAvg"](names["LocalSettings"].of(n_rounds=3), names["network"], names["Regression"]())
    still = names["FedAvgM"](names["FedAvgMSettings"].of(n_rounds=3, beta=0), names["network"], names["Regression"]())
    found = [names["run_rounds"](algorithm, names["data"]).models for algorithm in (plain, still)]
    torch.testing.assert_close(*found)
