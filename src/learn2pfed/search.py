"""How a setting says where tuning may look: a note beside its type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True)
class Span:
    """Between these, evenly in the logarithm."""

    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """One of these."""

    options: tuple[Any, ...]


Space = dict[str, Span | Choice]


def search_space(settings: type[BaseModel]) -> Space:
    """Where tuning may look, by setting: what a type such as `Annotated[float, Span(0.001, 0.1)]` notes.

    A class of settings may name some in `NOT_SEARCHED`, since it does not use them or does as well without a search.
    """
    unused = not_searched(settings)
    return {
        name: note
        for name, field in settings.model_fields.items()
        for note in field.metadata
        if isinstance(note, (Span, Choice)) and name not in unused
    }


def not_searched(settings: type[BaseModel]) -> tuple[str, ...]:
    """Settings for which this class wants no search."""
    found: tuple[str, ...] = getattr(settings, "NOT_SEARCHED", ())
    return found
