"""Classification: banks whose customers repay for the same reasons, but not equally often."""

import numpy as np
from sklearn.metrics import log_loss

from learn2pfed import Learn2pFedClassifier

rng = np.random.default_rng(0)
bank = np.repeat(np.arange(25), 80)
X = rng.normal(size=(len(bank), 3))  # income, debt, age
level = 1.5 * rng.normal(size=25)  # each bank's own
chance = 1 / (1 + np.exp(-(level[bank] + X @ [1.2, -0.8, 0.3])))
repaid = np.where(rng.uniform(size=len(bank)) < chance, "yes", "no")
train = np.arange(len(bank)) % 80 < 15  # fifteen customers a bank to learn from

model = Learn2pFedClassifier().fit(X[train], repaid[train], clients=bank[train])
together = Learn2pFedClassifier().fit(X[train], repaid[train])

for name, chances in (
    ("one model for all", together.predict_proba(X[~train])),
    ("a model for each bank", model.predict_proba(X[~train], clients=bank[~train])),
):
    print(f"{name}: log loss {log_loss(repaid[~train], chances):.3f}")
for name, shared in zip(model.parameters_, np.median(model.participation_, axis=0), strict=True):
    print(f"{name}: participation {shared:.2f}")
