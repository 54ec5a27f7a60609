"""Settings of the two tasks, and the small runs that they resolve to."""

import hashlib
import json
from itertools import product
from typing import Any, Literal

from pydantic import Field, field_validator

from smallinit.config import Strict

VOCABULARY = 257  # the least that ModelConfig allows: more than every number below


class LearnConfig(Strict):
    """AdamW with a linear warm-up and a cosine decay; see `learn.py`."""

    steps: int = Field(ge=10)
    batch: int = Field(ge=1, description="sequences of one step, drawn with replacement")
    learning_rate: float = Field(gt=0)
    weight_decay: float = Field(ge=0)


class SmallRun(Strict):
    """One model to train on a task; everything that its result depends on."""

    gamma: float = Field(ge=0, le=4)
    seed: int = Field(ge=0, description="of the weights, of the batches and of the memory task's answers")
    d_model: int
    d_ff: int
    n_layers: int
    learn: LearnConfig

    def digest(self) -> str:
        """A hash of all values."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()[:16]


class AnchorRun(SmallRun):
    """A run of the anchor task."""

    model: Literal["embedding_mlp", "decoder"]


class CompositeRun(SmallRun):
    """A run of the composite task."""

    length: int


class TaskConfig(Strict):
    """What both tasks share: gammas, seeds and the width of the models."""

    gammas: list[float] = Field(min_length=2)
    seeds: int = Field(ge=2, le=100, description="number of seeds: intervals are over them")
    d_model: int = Field(ge=8, le=1024, multiple_of=2, description="attention has one head of this width")
    d_ff: int = Field(ge=8, le=4096)

    @field_validator("gammas")
    @classmethod
    def _increasing(cls, gammas: list[float]) -> list[float]:
        if sorted(set(gammas)) != gammas or gammas[0] < 0 or gammas[-1] > 4:
            raise ValueError(f"{gammas} must increase, from 0 to at most 4, such as [0.5, 1.0]")
        return gammas


class AnchorConfig(TaskConfig):
    """The anchor task (arXiv 2502.04375)."""

    n_layers: int = Field(ge=1, le=16, description="blocks of the decoder")
    embedding_mlp: LearnConfig
    decoder: LearnConfig

    def runs(self) -> list[AnchorRun]:
        """All runs: both models at each gamma with each seed."""
        shared: dict[str, Any] = {"d_model": self.d_model, "d_ff": self.d_ff, "n_layers": self.n_layers}
        return [
            AnchorRun(model=model, gamma=gamma, seed=seed, learn=learn, **shared)
            for (model, learn), gamma, seed in product(self.learners().items(), self.gammas, range(self.seeds))
        ]

    def learners(self) -> dict[Literal["embedding_mlp", "decoder"], LearnConfig]:
        """The models by name, and how each is trained."""
        return {"embedding_mlp": self.embedding_mlp, "decoder": self.decoder}


class CompositeConfig(TaskConfig):
    """The composite task (arXiv 2405.05409)."""

    depths: list[int] = Field(min_length=1, description="numbers of blocks")
    length: int = Field(ge=3, le=32, description="numbers of a sequence: a key, two anchors, the rest distract")
    learn: LearnConfig

    @field_validator("depths")
    @classmethod
    def _increasing_depths(cls, depths: list[int]) -> list[int]:
        if sorted(set(depths)) != depths or depths[0] < 1 or depths[-1] > 16:
            raise ValueError(f"{depths} must increase, from 1 to at most 16, such as [2, 4]")
        return depths

    def runs(self) -> list[CompositeRun]:
        """All runs: each depth at each gamma with each seed."""
        shared: dict[str, Any] = {
            "d_model": self.d_model,
            "d_ff": self.d_ff,
            "length": self.length,
            "learn": self.learn,
        }
        return [
            CompositeRun(n_layers=depth, gamma=gamma, seed=seed, **shared)
            for depth, gamma, seed in product(self.depths, self.gammas, range(self.seeds))
        ]
