"""A panel: Grunfeld's firms, each with its own investment rule, twenty years each (data ships with statsmodels)."""

import numpy as np
from statsmodels.datasets import grunfeld

from learn2pfed import Learn2pFedRegressor

data = grunfeld.load_pandas().data
X, y, firm = data[["value", "capital"]], data["invest"], data["firm"]
test = data["year"] % 2 == 0  # every other year judges

model = Learn2pFedRegressor().fit(X[~test], y[~test], clients=firm[~test])
together = Learn2pFedRegressor().fit(X[~test], y[~test])  # no clients: one model for all


def rmse(predicted: np.ndarray) -> float:
    """Root mean squared error on the years that judge."""
    return float(np.sqrt(np.mean((predicted - y[test]) ** 2)))


print(f"one model for all: {rmse(together.predict(X[test])):.1f}")
print(f"a model for each firm: {rmse(model.predict(X[test], clients=firm[test])):.1f}")
for name, shared in zip(model.parameters_, np.median(model.participation_, axis=0), strict=True):
    print(f"{name}: participation {shared:.2f}")
