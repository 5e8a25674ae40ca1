"""What came of it in tables and in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from learn2pfed.estimators import Learn2pFedClassifier
from learn2pfed.owndata.answer import ALGORITHMS, Answer
from learn2pfed.report.tables import Table, number
from learn2pfed.storage import Model

SHARED, OWN = 0.8, 0.2
"""From which participation on a parameter counts as shared, and up to which as each client's own."""


def error_table(answer: Answer, most: int) -> Table:
    """By client: rows, error alone, of one model for all, personalised; and all together."""
    head = ("client", "rows", "tested", *ALGORITHMS.values())
    frame = answer.clients
    if len(frame) > most:
        frame = frame.nlargest(most, "training rows", keep="first")
    body = [
        (str(row.client), str(row[1]), str(row[2]), *("" if np.isnan(e) else number(e) for e in row[3:]))
        for row in frame.itertuples(index=False)
    ]
    if len(answer.clients) > len(frame):
        body.append((f"… and {len(answer.clients) - len(frame)} more, in clients.csv", *[""] * 5))
    sums = [str(int(answer.clients[what].sum())) for what in ("training rows", "test rows")]
    totals = [answer.total(name) for name in ALGORITHMS]
    if None not in totals:
        body.append(("all rows", *sums, *(number(total) for total in totals if total is not None)))
        means = [answer.clients[name].mean() for name in ALGORITHMS]
        body.append(("mean over clients", "", "", *(number(mean) for mean in means)))
    return Table(f"Held-out rows: {answer.metric}", head, tuple(body))


def by_parameter(model: Model) -> pd.DataFrame:
    """By parameter: the common value, the clients' lowest and highest, and how far it is shared (median, lowest)."""
    part = model.participation_
    own = with_level(model, model.coef_, model.intercept_).reshape(len(part), -1)
    common = with_level(model, model.global_coef_, model.global_intercept_).reshape(-1)
    return pd.DataFrame(
        {
            "parameter": [name.replace("intercept", "level at average x") for name in model.parameters_],
            "common": common,
            "lowest": own.min(0),
            "highest": own.max(0),
            "participation": np.median(part, 0).round(2),
            "least": part.min(0).round(2),
        }
    )


def with_level(model: Model, coef: NDArray[Any], intercept: NDArray[Any]) -> NDArray[np.float64]:
    """Coefficients and, last, the level at the average x: what the intercept's participation is about."""
    level = intercept + coef @ model.personal_.design.mean.numpy()
    return np.concatenate([coef, level[..., None]], -1)


def parameter_table(model: Model) -> Table:
    """What is shared, by parameter."""
    body = []
    for row in by_parameter(model).itertuples(index=False):
        share = row.participation
        said = "own" if share <= OWN else "in between" if share < SHARED else "shared"
        if said == "shared" and row.least < SHARED / 2:
            said = "mostly shared"
        numbers = (number(value) for value in (row.common, row.lowest, row.highest))
        body.append((row.parameter, *numbers, f"{share:.2f}", f"{row.least:.2f}", said))
    head = ("parameter", "common", "lowest", "highest", "participation", "least", "it is")
    what = "What is shared (participation 1: follows the others, 0: the client's own)"
    if isinstance(model, Learn2pFedClassifier) and len(model.classes_) == 2:
        what += f"; log odds of {str(model.classes_[1])!r}"
    return Table(what, head, tuple(body))


def client_table(model: Model, place: int) -> Table:
    """One client's parameters beside the common ones."""
    own = with_level(model, model.coef_[place], model.intercept_[place]).reshape(-1)
    body = [
        (row.parameter, number(value), number(row.common), f"{share:.2f}")
        for row, value, share in zip(
            by_parameter(model).itertuples(index=False), own, model.participation_[place], strict=True
        )
    ]
    name = str(model.clients_[place])
    return Table(f"{name}: its parameters", ("parameter", name, "in common", "participation"), tuple(body))


def sharing_words(model: Model) -> list[str]:
    """Which parameters are shared and which are personal, and who goes its own way."""
    if len(model.clients_) == 1:
        return ["There is only one client: nothing to share."]
    frame = by_parameter(model)
    share, least = frame["participation"].to_numpy(), frame["least"].to_numpy()
    groups = {
        "Shared by all clients": (share >= SHARED) & (least >= SHARED / 2),
        "Shared by most clients": (share >= SHARED) & (least < SHARED / 2),
        "In between": (share > OWN) & (share < SHARED),
        "Each client's own": share <= OWN,
    }
    said = []
    for words, chosen in groups.items():
        names = [f"{name} ({value:.2f})" for name, value in zip(frame["parameter"][chosen], share[chosen], strict=True)]
        if names:
            more = f" and {len(names) - 12} more" if len(names) > 12 else ""
            said.append(f"{words}: {', '.join(names[:12])}{more}.")
    by_client = model.participation_.mean(1)
    if np.ptp(by_client) > 0.1:
        least, most = (str(model.clients_[int(at)]) for at in (by_client.argmin(), by_client.argmax()))
        said.append(
            f"{least} goes its own way the most (mean participation {by_client.min():.2f}), "
            f"{most} follows the others the most ({by_client.max():.2f})."
        )
    return said


def gain_words(answer: Answer) -> list[str]:
    """How the personalised models compare, in one sentence each."""
    ours = answer.total("learn2pfed")
    if ours is None:
        return ["No rows were held out, so nothing was judged: give clients more rows, or hold out a larger --test."]
    said = []
    for name, words in (("local", "each client alone"), ("global", "one model for all")):
        other = answer.total(name)
        if other is None:
            continue
        change = 0.0 if other == ours else (other - ours) / max(other, 1e-300)
        compared = "the same as" if abs(change) < 5e-4 else f"{abs(change):.1%} {'below' if change > 0 else 'above'}"
        said.append(f"Personalised, the {answer.metric} is {number(ours)}: {compared} {words} ({number(other)}).")
    tested = answer.clients.dropna(subset=["learn2pfed"])
    better = int((tested["learn2pfed"] <= tested[["local", "global"]].min(axis=1)).sum())
    said.append(f"The personalised model is the best of the three, or level, for {better} of {len(tested)} clients.")
    return said


def shown_clients(names: Sequence[str], most: int = 8) -> str:
    """A few names and how many more."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
