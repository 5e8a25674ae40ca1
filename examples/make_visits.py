"""Writes visits.csv, new.csv and first_week.csv: hospitals that keep patients longer or shorter, for shared reasons."""

import numpy as np
import pandas as pd


def visits(seed: int, levels: dict[str, float], n_rows: int) -> pd.DataFrame:
    """`n_rows` visits of each hospital; the level is its own, what age, dose and ward do is the same in all."""
    rng = np.random.default_rng(seed)
    hospital = np.repeat(list(levels), n_rows)
    age, dose = rng.integers(20, 90, len(hospital)), rng.uniform(0, 5, len(hospital)).round(1)
    ward = rng.choice(["medical", "surgical", "children"], len(hospital), p=[0.5, 0.35, 0.15])
    days = 2 + np.repeat(list(levels.values()), n_rows) + 0.05 * age - 0.4 * dose + 1.5 * (ward == "surgical")
    days = (days + rng.normal(size=len(hospital))).round(1)
    return pd.DataFrame({"hospital": hospital, "age": age, "dose": dose, "ward": ward, "days": days})


names = ["Aare", "Birs", "Doubs", "Emme", "Inn", "Kander", "Limmat", "Reuss", "Rhine", "Saane", "Thur", "Töss"]
levels = dict(zip(names, 2 * np.random.default_rng(1).normal(size=len(names)), strict=True))
visits(2, levels, 25).to_csv("visits.csv", index=False)
visits(3, levels, 3).drop(columns="days").to_csv("new.csv", index=False)
visits(4, {"north": 5.0}, 2).to_csv("first_week.csv", index=False)
print("visits.csv, new.csv and first_week.csv are written.")
