"""Settings of the evaluate stage."""

from pydantic import Field

from smallinit.config import Strict


class EvaluateConfig(Strict):
    """How much held-out text is used for what; all runs see the same tokens."""

    tokens: int = Field(ge=1, description="held-out tokens for losses, from the start of the shuffled held-out text")
    slice_tokens: int = Field(ge=1, description="tokens whose individual losses are kept for the token analysis")
    attention_windows: int = Field(ge=1, description="sequences on which attention, gates and routers are measured")
    micro_batch: int = Field(ge=1)
    threads: int = Field(ge=1)
