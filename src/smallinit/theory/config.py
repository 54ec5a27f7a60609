"""Settings of the theory notebook."""

from pydantic import Field, field_validator

from smallinit.config import Strict


class CoordinateConfig(Strict):
    """The coordinate check: models of several widths take their first AdamW steps at one learning rate."""

    widths: list[int] = Field(min_length=2)
    gammas: list[float] = Field(min_length=1)
    seeds: int = Field(ge=2)
    steps: int = Field(ge=1)
    learning_rate: float = Field(gt=0)


class TheoryConfig(Strict):
    """Widths, exponents and draws of the simulations; a head has 32 dimensions, so widths are multiples of it."""

    widths: list[int] = Field(min_length=3)
    gammas: list[float] = Field(min_length=1)
    seeds: int = Field(ge=2, description="draws of the weights: intervals are over them")
    tokens: int = Field(ge=2, le=257, description="different tokens that the weights are applied to")
    coordinate: CoordinateConfig

    @field_validator("widths")
    @classmethod
    def _whole_heads(cls, widths: list[int]) -> list[int]:
        if any(width % 32 or width <= 0 for width in widths) or sorted(set(widths)) != widths:
            raise ValueError(f"{widths} must be increasing multiples of 32, such as [64, 128, 256]")
        return widths


class TheoryPlan(TheoryConfig):
    """The settings with what the notebook needs to know of our own models."""

    sizes: list[tuple[int, int]] = Field(description="d_model and d_ref of each size of the ladder")
