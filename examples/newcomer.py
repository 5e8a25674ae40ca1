"""A newcomer: a shop that opens today gets a model from its first day and what the others have in common."""

import numpy as np

from learn2pfed import Learn2pFedRegressor

rng = np.random.default_rng(0)
shop = np.repeat([f"shop {i}" for i in range(30)], 40)
X = rng.normal(size=(len(shop), 2))  # temperature, weekend
level = np.repeat(100 + 30 * rng.normal(size=30), 40)  # each shop's own
sales = level + X @ [8.0, 15.0] + 5 * rng.normal(size=len(shop))
model = Learn2pFedRegressor().fit(X, sales, clients=shop)

first_day, first_sales = np.array([[0.5, -1.0]]), np.array([180 + 0.5 * 8 - 15])  # a large shop: level 180
days = rng.normal(size=(200, 2))
truth = 180 + days @ [8.0, 15.0]
before = np.abs(model.predict(days, clients=["new shop"] * 200) - truth).mean()  # unknown: the global model
model.adapt(first_day, first_sales, client="new shop")
after = np.abs(model.predict(days, clients=["new shop"] * 200) - truth).mean()
print(f"mean error before its first day, by the global model: {before:.1f}")
print(f"after it, by its own: {after:.1f}")
