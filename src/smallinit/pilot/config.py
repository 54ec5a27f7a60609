"""Settings of the pilot, and what they resolve to at one size."""

from itertools import pairwise
from typing import Annotated

from pydantic import Field, field_validator

from smallinit.config import RunConfig, Strict

FACTOR = 2.0  # between neighbouring rates


class BatchMap(Strict):
    """Which arms are tried at other batch sizes too."""

    arms: list[str]
    batch_tokens: list[Annotated[int, Field(ge=8)]]


class PilotConfig(Strict):
    """Which arms are tried, at which rates, for how long."""

    sizes: list[str] = Field(min_length=1, description="two of them give a rule for all widths")
    tokens: int = Field(ge=1, description="of one trial")
    eval_tokens: int = Field(ge=1, description="held-out tokens of its loss")
    peak_lrs: list[Annotated[float, Field(gt=0)]] = Field(min_length=1, description="rates that every arm is tried at")
    arms: list[str] = Field(min_length=1, description="names of runs, size-gamma-variant")
    batches: BatchMap

    @field_validator("peak_lrs")
    @classmethod
    def _evenly_spaced(cls, rates: list[float]) -> list[float]:
        if any(abs(b / a - FACTOR) > 1e-6 for a, b in pairwise(rates)):
            raise ValueError(f"{rates}: each must be {FACTOR:g} times the one before, such as [2e-3, 4e-3, 8e-3]")
        return rates


class PilotPlan(Strict):
    """What the pilot does at one size."""

    arms: list[RunConfig] = Field(min_length=1, description="each at the first of the rates; the others replace it")
    peak_lrs: list[float]
