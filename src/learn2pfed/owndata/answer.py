"""What is asked of a table and what came of it: fitted, and judged against alone and together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from learn2pfed.algorithms.base import Traffic
from learn2pfed.data.schema import Schema
from learn2pfed.data.tabular import hold_out
from learn2pfed.estimators import Learn2pFedClassifier, Learn2pFedRegressor
from learn2pfed.personal import Personal, Prepared, alone, together
from learn2pfed.results.records import Row
from learn2pfed.storage import Model

ALGORITHMS = {"local": "alone", "global": "one for all", "learn2pfed": "personalised"}
"""As rows of results.json call them, and as people do."""

Stage = Callable[[str, int], Callable[..., None]]
"""Called with what begins and how many steps it has; returns what is to be called after every step."""


@dataclass(frozen=True)
class Question:
    """What is asked of the table."""

    client: str
    target: str
    features: tuple[str, ...] | None = None
    task: Literal["regression", "classification"] = "regression"
    test: float = 0.2
    test_column: str | None = None
    time: str | None = None
    impute: bool = False
    seed: int = 0
    settings: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Answer:
    """What came of it."""

    question: Question
    table: Schema
    model: Model
    clients: pd.DataFrame  # by client: training and test rows, and the three errors
    rows: list[Row]  # of results.json

    @property
    def metric(self) -> str:
        """The error in the tables."""
        return "RMSE" if self.question.task == "regression" else "error rate"

    def total(self, algorithm: str) -> float | None:
        """The error over all test rows; None without any."""
        return next((r.value for r in self.rows if (r.algorithm, r.metric) == (algorithm, self.metric)), None)


def fit_table(frame: pd.DataFrame, question: Question, stage: Stage) -> Answer:
    """Fit on the training rows, judge all three on the test rows."""
    asked = question
    test = hold_out(
        frame,
        client=asked.client,
        fraction=asked.test,
        time=asked.time,
        test_column=asked.test_column,
        seed=asked.seed,
    )
    table = Schema.learn(
        frame,
        ~test,
        client=asked.client,
        target=asked.target,
        features=asked.features,
        leave_out=[name for name in (asked.time, asked.test_column) if name is not None],
        task=asked.task,
        impute=asked.impute,
    )
    X, y, names = table.encode(frame), table.answers(frame), table.clients(frame)
    n_classes = len(table.classes)
    kind = Learn2pFedClassifier if n_classes else Learn2pFedRegressor
    model: Model = kind(random_state=asked.seed, settings=asked.settings)
    n_epochs = (asked.settings or {}).get("n_epochs", model.n_epochs)
    step = stage("learning what is shared", n_epochs if isinstance(n_epochs, int) else 1)
    named = pd.DataFrame(X[~test], columns=list(table.features))
    started = time.process_time()
    model.fit_with_progress(named, y[~test] if not n_classes else np.array(table.classes)[y[~test]], names[~test], step)
    seconds = {"learn2pfed": time.process_time() - started}
    owner = model.places_of(names, len(names))
    prepared = Prepared.of(
        torch.from_numpy(X[~test]),
        torch.from_numpy(y[~test].astype(np.float64)),
        owner[~test],
        n_classes=n_classes,
        names=table.features,
    )
    fitted = {"learn2pfed": model.personal_}
    for name, how in {"local": alone, "global": together}.items():
        step = stage(f"{ALGORITHMS[name]}, to compare", 1)
        started = time.process_time()
        fitted[name] = how(prepared)
        seconds[name] = time.process_time() - started
        step()
    errors = {name: row_errors(fitted[name], X[test], y[test], owner[test]) for name in ALGORITHMS}
    counts = {
        what: np.bincount(owner[part], minlength=len(model.clients_))
        for what, part in (("training rows", ~test), ("test rows", test))
    }
    by_client = pd.DataFrame({"client": model.clients_, **counts})
    for name in ALGORITHMS:
        by_client[name] = _by_client(errors[name], owner[test], counts["test rows"], n_classes)
    rows = [
        row
        for name in ALGORITHMS
        for row in _rows(name, errors[name], by_client[name], question, fitted[name].traffic, seconds[name])
    ]
    return Answer(question, table, model, by_client, rows)


def row_errors(personal: Personal, X: NDArray[Any], y: NDArray[Any], owner: NDArray[np.int64]) -> NDArray[np.float64]:
    """By row: how far it is off; for classes whether it is wrong, 0 or 1, and -log of the right one's chance."""
    scores = personal.scores(torch.from_numpy(X), torch.from_numpy(owner))
    if personal.n_classes == 0:
        off: NDArray[np.float64] = scores[:, 0].numpy() - y
        return off[None]
    if personal.n_classes == 2:
        scores = torch.cat([torch.zeros_like(scores), scores], 1)
    label = torch.from_numpy(y)
    nll = torch.nn.functional.cross_entropy(scores, label, reduction="none")
    return torch.stack([(scores.argmax(1) != label).double(), nll]).numpy()


def _by_client(
    errors: NDArray[np.float64], owner: NDArray[np.int64], n_rows: NDArray[np.int64], n_classes: int
) -> NDArray[np.float64]:
    """RMSE or error rate of each client; NaN for those without a test row."""
    sums = np.bincount(owner, errors[0] if n_classes else errors[0] ** 2, minlength=len(n_rows))
    mean: NDArray[np.float64] = np.divide(sums, n_rows, out=np.full(len(n_rows), np.nan), where=n_rows > 0)
    return mean if n_classes else np.asarray(np.sqrt(mean))


def _rows(
    name: str,
    errors: NDArray[np.float64],
    by_client: pd.Series,
    question: Question,
    traffic: Traffic,
    seconds: float,
) -> list[Row]:
    """Rows of results.json; none without test rows."""
    if errors.shape[1] == 0:
        return []
    each = np.sort(by_client.dropna().to_numpy())
    metric = "RMSE" if question.task == "regression" else "error rate"
    if question.task == "regression":
        measured = {metric: np.sqrt(np.mean(errors[0] ** 2)), "MAE": np.mean(np.abs(errors[0]))}
    else:
        measured = {metric: np.mean(errors[0]), "log loss": np.mean(errors[1])}
    measured |= {
        f"{metric}, mean over clients": each.mean(),
        f"{metric}, worst tenth of clients": each[-max(1, len(each) // 10) :].mean(),
    }
    return [
        Row(
            setting="all clients",
            algorithm=name,
            seed=question.seed,
            metric=what,
            value=float(value),
            seconds=round(seconds, 4),
            bytes_up=traffic.bytes_up,
            bytes_down=traffic.bytes_down,
        )
        for what, value in measured.items()
    ]
