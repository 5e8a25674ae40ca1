"""A person's own table: fitted, judged against alone and together, explained in words, written down as a folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from learn2pfed.algorithms.base import Traffic
from learn2pfed.data.schema import Schema
from learn2pfed.data.tabular import hold_out
from learn2pfed.errors import Learn2pFedError
from learn2pfed.estimators import Learn2pFedClassifier, Learn2pFedRegressor
from learn2pfed.personal import Personal, Prepared, alone, together
from learn2pfed.report.drawing import COLOURS, Dumbbell, Figure, Heat
from learn2pfed.report.html import Page, write_page
from learn2pfed.report.tables import Table, number
from learn2pfed.results.records import Results, Row, versions
from learn2pfed.results.store import to_toml, write_results, write_whole
from learn2pfed.storage import Model, save_model

ALGORITHMS = {"local": "alone", "global": "one for all", "learn2pfed": "personalised"}
"""As rows of results.json call them, and as people do."""

MOST_SHOWN = 60
"""Clients in a figure; a table in the terminal has fewer."""

SHARED, OWN = 0.8, 0.2
"""From which participation on a parameter counts as shared, and up to which as each client's own."""

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
    owner = model._which(names, len(names))
    prepared = Prepared.of(
        torch.from_numpy(X[~test]),
        torch.from_numpy(y[~test].astype(np.float64)),
        owner[~test],
        n_classes=n_classes,
        names=table.features,
    )
    fitted = {"learn2pfed": model._personal}
    for name, how in {"local": alone, "global": together}.items():
        step = stage(f"{ALGORITHMS[name]}, to compare", 1)
        started = time.process_time()
        fitted[name] = how(prepared)
        seconds[name] = time.process_time() - started
        step()
    errors = {name: _errors(fitted[name], X[test], y[test], owner[test]) for name in ALGORITHMS}
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


def _errors(personal: Personal, X: NDArray[Any], y: NDArray[Any], owner: NDArray[np.int64]) -> NDArray[np.float64]:
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


# ---------------------------------------------------------------- in words and tables


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
    level = intercept + coef @ model._personal.design.mean.numpy()
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


# ---------------------------------------------------------------- on disk


def figures_of(answer: Answer) -> list[Figure]:
    """The participation of every client and parameter, and the error of every client before and after."""
    model, frame = answer.model, answer.clients
    order = np.argsort(model.participation_.mean(1), kind="stable")
    chosen = order[np.linspace(0, len(order) - 1, min(MOST_SHOWN, len(order))).astype(int)]
    which = "" if len(chosen) == len(order) else f" {len(chosen)} of {len(order)} clients, from the least to the most."
    heat = Heat(
        "",
        [str(name) for name in model.clients_[chosen]],
        list(model.parameters_),
        model.participation_[chosen].tolist(),
        label="0: its own · 1: follows the others",
    )
    made = [
        Figure(
            "participation",
            "How far each parameter of each client follows the others",
            "Blue: the client's parameter follows the others'. Orange: it is the client's own." + which,
            (heat,),
            1,
        )
    ]
    tested = frame.dropna(subset=["learn2pfed"])
    if len(tested):
        shown = tested.nlargest(MOST_SHOWN, "test rows", keep="first").sort_values("learn2pfed", kind="stable")
        colours = (COLOURS[1], COLOURS[6], COLOURS[0])
        marks = [
            (words, colour, shown[name].tolist())
            for (name, words), colour in zip(ALGORITHMS.items(), colours, strict=True)
        ]
        some = "" if len(shown) == len(tested) else f" The {len(shown)} clients with most test rows."
        made.append(
            Figure(
                "errors",
                f"{answer.metric[0].upper()}{answer.metric[1:]} of each client",
                "Alone, with one model for all, and personalised, on rows that were held out." + some,
                (Dumbbell("", [str(name) for name in shown["client"]], marks, answer.metric),),
                1,
            )
        )
    return made


def page_of(answer: Answer, command: str) -> Page:
    """The report."""
    asked, model = answer.question, answer.model
    about = (
        f"A model of {asked.target!r} for each of {len(model.clients_)} clients ({asked.client!r}), in which every "
        "parameter learns how far it follows the other clients'."
    )
    held = f"the latest rows by {asked.time!r}" if asked.time else "a random part"
    lead = (
        f"{int(answer.clients['training rows'].sum())} rows to learn from, {int(answer.clients['test rows'].sum())} "
        f"held out ({'marked by ' + repr(asked.test_column) if asked.test_column else held} of each client's)."
    )
    return Page(
        title=f"{asked.target} by {asked.client}",
        about=about,
        lead=lead,
        tables=[error_table(answer, MOST_SHOWN), parameter_table(model)],
        figures=figures_of(answer),
        command=command,
        config=config_of(asked),
        versions=versions(),
        words=[("In words", [*gain_words(answer), *sharing_words(model)])],
        highlight="all rows",
    )


def config_of(question: Question) -> dict[str, Any]:
    """What was asked, as config.toml keeps it."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(question).items()}


def write_answer(folder: Path, answer: Answer, command: str) -> Path:
    """Everything into a new folder, which appears whole or not at all; returns the report."""
    with new_folder(folder) as place:
        save_model(answer.model, place, answer.table)
        write_results(
            place / "results.json",
            Results(
                experiment="fit",
                preset="none",
                versions=versions(),
                config=config_of(answer.question),
                rows=answer.rows,
            ),
        )
        write_whole(place / "config.toml", to_toml(config_of(answer.question)))
        write_participation(place, answer.model)
        write_whole(place / "clients.csv", answer.clients.to_csv(index=False))
        write_page(place, page_of(answer, command))
    return folder / "report.html"


def write_participation(folder: Path, model: Model) -> None:
    """participation.csv: clients by parameters."""
    frame = pd.DataFrame(model.participation_, index=model.clients_, columns=model.parameters_)
    write_whole(folder / "participation.csv", frame.to_csv(index_label="client"))


@contextmanager
def new_folder(folder: Path) -> Any:
    """A place beside `folder` that becomes it at the end, and is gone if anything goes wrong."""
    check_free(folder)
    folder = folder.resolve()
    given = folder.exists()  # an empty folder, perhaps another disk: it is filled in place
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=folder if given else folder.parent, prefix=f".{folder.name}."))
    except OSError as error:
        raise Learn2pFedError(f"{folder} can't be made ({error.strerror}): choose another with --out.") from error
    try:
        yield place
        if given:
            for entry in place.iterdir():
                os.replace(entry, folder / entry.name)
            place.rmdir()
        else:
            place.chmod(0o755)
            os.replace(place, folder)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def check_free(folder: Path) -> None:
    """Refuse a folder with something in it, before any work is done."""
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise Learn2pFedError(f"{folder} can't be used ({error.strerror}): choose another with --out.") from error
    if taken:
        raise Learn2pFedError(f"{folder} already holds something: choose another folder with --out.")
    above = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise Learn2pFedError(f"{folder} can't be made in {above}: choose another folder with --out.")


# ---------------------------------------------------------------- afterwards


def predict_table(frame: pd.DataFrame, model: Model, table: Schema) -> tuple[pd.DataFrame, int]:
    """The table with predictions (and the chance of each class); how many rows had to take the global model."""
    X = pd.DataFrame(table.encode(frame), columns=list(table.features))
    names = table.clients(frame)
    which = model._which(names, len(names))
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
    which = model._which(table.clients(frame), len(frame))
    errors = _errors(model._personal, table.encode(frame), right, which)
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


def shown_clients(names: Sequence[str], most: int = 8) -> str:
    """A few names and how many more."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
