"""Settings of the analysis notebooks."""

from pydantic import Field

from smallinit.config import Strict


class AnalysisConfig(Strict):
    """How intervals are computed: a percentile bootstrap over held-out documents."""

    bootstrap_samples: int = Field(ge=100)
    confidence: float = Field(gt=0.5, lt=1)
    seed: int = Field(ge=0)
    difficulty_bins: int = Field(ge=10, le=20, description="bins of equal numbers of tokens, from easy to hard")


class RunList(Strict):
    """The explicit list of runs that tables and figures are made from."""

    runs: list[str]
