"""Errors that a person can act on: one sentence that names the thing and says what to do."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from pydantic import ValidationError


class Learn2pFedError(ValueError):
    """Something the user can mend; the command line prints its sentence and exits with code 2."""


class SettingError(Learn2pFedError):
    """A wrong value inside a group of settings; the message begins with its dotted name within the group."""


class DivergenceError(Learn2pFedError):
    """Models left the finite numbers; the message says where."""


class MessageError(Learn2pFedError):
    """A message that does not have the shape, type, size or finiteness that was agreed."""


def sentence(error: ValidationError) -> str:
    """The first complaint of a settings check as one sentence.

    >>> from pydantic import BaseModel, Field
    >>> class S(BaseModel):
    ...     n_cells: int = Field(10, ge=1)
    >>> try:
    ...     S(n_cells=0)
    ... except ValidationError as e:
    ...     sentence(e)
    'n_cells: input should be greater than or equal to 1, got 0.'
    """
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    got = "" if first["type"] in ("value_error", "extra_forbidden") else f", got {first['input']!r}"
    between = "." if isinstance(first.get("ctx", {}).get("error"), SettingError) else ": "
    where = f"{name}{between}" if name else ""  # what is wrong with all together says of itself what it is about
    return f"{where}{message.rstrip('.')}{got}."


def instead(name: str, known: Collection[str]) -> str:
    """How a sentence about an unknown name goes on: what was meant, or what there is.

    >>> instead("dito", ["ditto", "fedavg"]), instead("magic", ["ditto", "fedavg"])
    ("did you mean 'ditto'?", 'there are ditto, fedavg.')
    """
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
