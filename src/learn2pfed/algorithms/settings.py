"""What every baseline's settings have."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from learn2pfed.errors import Learn2pFedError, instead, sentence


def _layer_name(given: Any) -> Any:
    if isinstance(given, float):
        raise ValueError(f'a layer whose name looks like {given:g} is written in quotes, "0.10", or in a list ["0.10"]')
    return str(given) if isinstance(given, int) else given


LayerName = Annotated[str, BeforeValidator(_layer_name)]
"""Of a layer or a part, also where it is called by a number; 0.1 as a number could be 0.10."""


class RoundSettings(BaseModel):
    """Rounds with some or all clients; unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    n_rounds: int = Field(500, ge=1, description="T, rounds")
    join: float = Field(1.0, gt=0, le=1, description="share of the clients that take part in a round")
    batch_size: int = Field(64, ge=1, description="B, rows of a step; a client with fewer uses all it has")
    seed: int = Field(0, ge=0, description="of client draws and batches; experiments set it to the trial's")

    @classmethod
    def of(cls, **values: Any) -> Self:
        """From names and values; a wrong one is one sentence, and an unknown name lists those that there are."""
        unknown = [name for name in values if name not in cls.model_fields]
        if unknown:
            raise Learn2pFedError(f"{unknown[0]}: there is no such setting; {instead(unknown[0], cls.model_fields)}")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise Learn2pFedError(sentence(error)) from error

    @classmethod
    def of_steps(cls, steps: int) -> dict[str, int]:
        """Settings that make a round so many batches long, for a method that counts batches and not epochs."""
        return {}

    def changed(self, **values: Any) -> Self:
        """The same with some values changed."""
        return type(self).of(**(self.model_dump() | values))
