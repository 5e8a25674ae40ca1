"""Fitted models on disk: numbers as safetensors, everything else as JSON. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import safetensors
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors.torch import load, save
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from learn2pfed.algorithms.base import Traffic
from learn2pfed.data.design import Design
from learn2pfed.data.schema import Schema
from learn2pfed.errors import Learn2pFedError
from learn2pfed.estimators import Learn2pFedClassifier, Learn2pFedRegressor
from learn2pfed.personal import Personal
from learn2pfed.results.records import versions
from learn2pfed.results.store import write_whole

FORMAT = "learn2pfed model"
VERSION = 1
CARD = "model.json"

Model = Learn2pFedRegressor | Learn2pFedClassifier


class Card(BaseModel):
    """`model.json`: what the numbers beside it mean."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    format: Literal["learn2pfed model"]
    version: Literal[1]
    made_by: dict[str, str]
    kind: Literal["regressor", "classifier"]
    parameters: dict[str, Any] = Field(description="of the estimator")
    clients: list[int] | list[str]
    n_features: int = Field(ge=1)
    features: list[str] | None = Field(description="names, if X had them")
    classes: list[bool] | list[int] | list[float] | list[str] = []
    n_rows: int = Field(ge=1)
    history: list[float]
    traffic: Traffic
    table: Schema | None = Field(None, description="how a table becomes X and y, if the model was fitted to one")
    digest: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the numbers, and the name of their file")

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        features = self.features or [str(j) for j in range(self.n_features)]
        if len(set(map(str, self.clients))) < len(self.clients) or not self.clients:
            raise ValueError("clients")
        if len(features) != self.n_features or len(set(features)) < self.n_features:
            raise ValueError("features")
        if (self.kind == "classifier") != (len(self.classes) >= 2):
            raise ValueError("classes")
        if self.table and (list(self.table.features) != features or list(self.table.classes) != self.classes):
            raise ValueError("table")
        return self


class Saved(NamedTuple):
    """A model as it comes back, and how a table becomes its X and y."""

    model: Model
    table: Schema | None


def save_model(model: Model, folder: Path | str, table: Schema | None = None) -> Path:
    """Write the numbers, model-DIGEST.safetensors, and model.json into the folder.

    The card is written after the numbers it names, and older numbers go last: a model that is replaced is never lost.
    """
    check_is_fitted(model)
    personal: Personal = model.personal_
    numbers = {name: getattr(personal, name).contiguous() for name in ("v", "w", "lam", "participation")}
    numbers |= {f"design.{name}": part.contiguous() for name, part in personal.design._asdict().items()}
    blob = save(numbers)
    parameters = {name: _plain(value) for name, value in model.get_params().items()}
    if not isinstance(parameters["random_state"], int):
        parameters["random_state"] = None
    names = getattr(model, "feature_names_in_", None)
    card = Card(
        format=FORMAT,
        version=VERSION,
        made_by=versions(),
        kind="classifier" if personal.n_classes else "regressor",
        parameters=parameters,
        clients=model.clients_.tolist(),
        n_features=model.n_features_in_,
        features=None if names is None else list(names),
        classes=model.classes_.tolist() if personal.n_classes else [],
        n_rows=personal.n_rows,
        history=list(personal.history),
        traffic=personal.traffic,
        table=table,
        digest=hashlib.sha256(blob).hexdigest(),
    )
    text = card.model_dump_json(indent=1)
    folder = Path(folder)
    write_whole(folder / _numbers(card), blob)
    write_whole(folder / CARD, text)
    for old in folder.glob("model-*.safetensors"):
        if old.name != _numbers(card):
            old.unlink()
    return folder / CARD


def _numbers(card: Card) -> str:
    """The file beside the card."""
    return f"model-{card.digest[:12]}.safetensors"


def _plain(value: Any) -> Any:
    """A value of numpy as Python's own, also inside settings."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def load_model(folder: Path | str) -> Saved:
    """The model in a folder; a damaged, foreign or newer one is refused with a sentence."""
    folder = Path(folder)
    card = _card(folder / CARD)
    file = folder / _numbers(card)
    blob = _read(file)
    if hashlib.sha256(blob).hexdigest() != card.digest:
        raise Learn2pFedError(f"{file} is damaged, or not of {CARD} beside it: fit the model again.")
    kind = Learn2pFedClassifier if card.kind == "classifier" else Learn2pFedRegressor
    try:
        personal, model = _personal(card, load(blob)), kind(**card.parameters)
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise Learn2pFedError(f"{file} does not fit {CARD} beside it ({error}): fit again.") from error
    model.n_features_in_ = card.n_features
    if card.features is not None:
        model.feature_names_in_ = np.array(card.features, dtype=object)
    if card.kind == "classifier":
        model.classes_ = np.array(card.classes)
    model.clients_ = np.array(card.clients)
    model.publish(personal)
    return Saved(model, card.table)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Learn2pFedError(
            f"{path} can't be read ({error.strerror}): give the folder that learn2pfed fit wrote."
        ) from error


def _card(path: Path) -> Card:
    text = _read(path)
    try:
        known = _Kind.model_validate_json(text)
    except ValidationError as error:
        raise Learn2pFedError(f"{path} is damaged, or no model of learn2pfed: fit the model again.") from error
    if known.version > VERSION:
        maker = known.made_by.get("learn2pfed", "unknown")
        raise Learn2pFedError(f"{path} was written by a newer learn2pfed ({maker}): upgrade to read it.")
    try:
        return Card.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or first["msg"].removeprefix("Value error, ")
        raise Learn2pFedError(f"{path} is damaged at {place!r}: fit the model again.") from error


class _Kind(BaseModel):
    """What every version of the card says."""

    format: Literal["learn2pfed model"]
    version: int
    made_by: dict[str, str]


def _personal(card: Card, numbers: dict[str, Tensor]) -> Personal:
    """The models, with every shape as the card says."""
    design = Design(*(numbers[f"design.{name}"] for name in Design._fields))
    n_classes, n_clients = len(card.classes), len(card.clients)
    n_parameters = (1 + int(design.kept.sum())) * (n_classes if n_classes > 2 else 1)
    shapes = {
        "design.mean": (card.n_features,),
        "design.spread": (card.n_features,),
        "design.level": (),
        "design.unit": (),
        "v": (n_clients, n_parameters),
        "w": (n_parameters,),
        "lam": (n_parameters,),
        "participation": (n_clients, n_parameters),
    }
    for name, shape in shapes.items():
        tensor = numbers[name]
        if tuple(tensor.shape) != shape or tensor.dtype != torch.float64 or not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} should be {shape}, finite, of float64")
    return Personal(
        design=design,
        n_classes=n_classes,
        **{name: numbers[name] for name in ("v", "w", "lam", "participation")},
        n_rows=card.n_rows,
        history=tuple(card.history),
        traffic=card.traffic,
    )
