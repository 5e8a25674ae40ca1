"""What is done with a fitted model afterwards: predict, judge, adapt."""

from __future__ import annotations

import numpy as np
import pandas as pd

from learn2pfed.data.schema import Schema
from learn2pfed.errors import Learn2pFedError
from learn2pfed.estimators import Learn2pFedClassifier
from learn2pfed.owndata.answer import row_errors
from learn2pfed.storage import Model


def predict_table(frame: pd.DataFrame, model: Model, table: Schema) -> tuple[pd.DataFrame, int]:
    """The table with predictions (and the chance of each class); how many rows had to take the global model."""
    X = pd.DataFrame(table.encode(frame), columns=list(table.features))
    names = table.clients(frame)
    which = model.places_of(names, len(names))
    out = frame.copy()
    out[free_name(frame, f"predicted {table.target}")] = model.predict(X, clients=names)
    if isinstance(model, Learn2pFedClassifier):
        for label, chance in zip(model.classes_, model.predict_proba(X, clients=names).T, strict=True):
            out[free_name(frame, f"chance of {label}")] = chance
    out[free_name(frame, "model")] = np.where(which < 0, "global", "personal")
    return out, int((which < 0).sum())


def free_name(frame: pd.DataFrame, name: str) -> str:
    """The name, or with underscores until no column has it."""
    while name in frame.columns:
        name += "_"
    return name


def judge_table(frame: pd.DataFrame, model: Model, table: Schema) -> float | None:
    """RMSE or error rate where the table has the target, on the rows that have it; None where none can be judged."""
    if table.target not in frame.columns:
        return None
    frame = frame[frame[table.target].notna()]
    try:
        right = table.answers(frame)
    except Learn2pFedError:  # labels never seen, or no numbers
        return None
    if len(frame) == 0:
        return None
    which = model.places_of(table.clients(frame), len(frame))
    errors = row_errors(model.personal_, table.encode(frame), right, which)
    return float(errors[0].mean() if table.classes else np.sqrt((errors[0] ** 2).mean()))


def adapt_table(frame: pd.DataFrame, model: Model, table: Schema, client: str) -> int:
    """A model for the newcomer from its rows, those with its name or all if no column says whose; returns how many."""
    if table.client in frame.columns:
        own = table.clients(frame) == client
        if not own.any():
            raise Learn2pFedError(f"No row has {table.client} {client!r}: name the newcomer as the table does.")
        frame = frame[own]
    X, y = pd.DataFrame(table.encode(frame), columns=list(table.features)), table.answers(frame)
    model.adapt(X, np.array(table.classes)[y] if table.classes else y, client=client)
    return len(frame)
