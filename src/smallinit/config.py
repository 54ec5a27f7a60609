"""The resolved configuration of one training run: strict types, nothing implicit.

`params.yaml` is what people edit; the stage `plan` resolves it (see `params.py`) into one `RunConfig` a run, written to
`results/plan/runs/<run>.json`. Training and evaluation read nothing else, so a run is stale exactly when its own
resolved configuration changes.
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from smallinit import paths


class Strict(BaseModel):
    """Unknown keys, missing keys, wrong types and values out of range are errors; instances do not change."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key, the value and what is allowed."""


class MoEConfig(Strict):
    """A mixture of experts in place of each feed-forward network; every expert has the width d_ff."""

    n_experts: int = Field(ge=2)
    top_k: int = Field(ge=1, description="experts that each token chooses")
    balance_coef: float = Field(ge=0, description="weight of the load-balancing loss; 0: off")
    z_coef: float = Field(ge=0, description="weight of the router z-loss; 0: off")

    @model_validator(mode="after")
    def _choices_exist(self) -> "MoEConfig":
        if self.top_k > self.n_experts:
            raise ValueError(f"top_k = {self.top_k} must be at most n_experts = {self.n_experts}")
        return self


class ModelConfig(Strict):
    """A decoder: every choice of `model.py` and `moe.py`, in any combination."""

    vocab_size: int = Field(ge=257, le=65536)
    d_model: int = Field(ge=8)
    n_layers: int = Field(ge=1)
    n_heads: int = Field(ge=1)
    n_kv_heads: int = Field(ge=1, description="n_heads: usual attention; fewer: groups of heads share keys and values")
    d_ff: int = Field(ge=8)
    seq_len: int = Field(ge=8)
    rope_theta: float = Field(gt=0)
    norm: Literal["rmsnorm", "layernorm"]
    norm_eps: float = Field(ge=0)
    gate: Literal["none", "headwise", "elementwise"]
    mlp: Literal["swiglu", "gelu"]
    tied_head: bool
    moe: MoEConfig | None

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "ModelConfig":
        if self.d_model % self.n_heads or self.head_dim % 2:
            raise ValueError(
                f"d_model = {self.d_model} must be n_heads = {self.n_heads} times an even head_dim; "
                "change one of the two"
            )
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads = {self.n_heads} must be a multiple of n_kv_heads = {self.n_kv_heads}")
        return self


# The kinds of matrices that `init.KINDS` knows and our models have.
Kind = Literal[
    "embedding",
    "head",
    "query",
    "key",
    "value",
    "attention_gate",
    "attention_out",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "router",
]


class InitConfig(Strict):
    """How a run departs from sigma = fan_in^(-gamma); see `init.GammaRule`. Nothing of it by default."""

    overrides: dict[Kind, Annotated[float, Field(ge=0)]] = Field(description="a gamma of its own, by kind of matrix")
    residual_scaling: bool = Field(description="divide the std of residual outputs by sqrt(2 n_layers)")
    fixed_std: Annotated[float, Field(gt=0)] | None = Field(description="one std for all matrices, as GPT-2's 0.02")

    @model_validator(mode="after")
    def _one_or_the_other(self) -> "InitConfig":
        if self.overrides and self.fixed_std is not None:
            raise ValueError("overrides and fixed_std exclude each other: with one std for all, no gamma has an effect")
        return self


class TrainSettings(Strict):
    """Data, optimizer, execution and logging, as far as all runs share them."""

    batch_tokens: int = Field(ge=8, description="tokens of one optimizer step")
    micro_batch: int = Field(ge=1, description="sequences of one forward pass; gradients add up over a step")
    warmup_fraction: float = Field(ge=0, lt=1)
    final_lr_fraction: float = Field(ge=0, le=1)
    weight_decay: float = Field(ge=0)
    adam_beta1: float = Field(ge=0, lt=1)
    adam_beta2: float = Field(ge=0, lt=1)
    adam_eps: float = Field(gt=0)
    grad_clip: float = Field(gt=0)
    precision: Literal["auto", "bfloat16", "float32"]
    device: Literal["auto", "cpu", "cuda"]
    threads: int = Field(ge=1)
    compile: bool
    processes: int = Field(ge=1, description="of torchrun; 1: in the notebook's own process")
    strategy: Literal["ddp", "fsdp"] = Field(description="how several processes share the work")
    activation_checkpointing: bool = Field(description="recompute blocks in the backward pass to save memory")
    log_every: int = Field(ge=1)
    eval_every: int = Field(ge=1, description="steps between held-out losses, after the log-spaced ones")
    eval_tokens: int = Field(ge=1)
    measure_windows: int = Field(
        ge=1, description="held-out sequences on which norms, flow, sink and gate are measured"
    )

    @field_validator("precision", mode="before")
    @classmethod
    def _float16_cannot_hold_it(cls, value: Any) -> Any:
        if value == "float16":
            raise ValueError(
                "float16 is refused: its smallest positive number is 6e-8, so a norm_eps of 1e-12 is zero in it, and "
                "gradients of small weights vanish; use 'auto', 'bfloat16' or 'float32'"
            )
        return value


class TrainConfig(TrainSettings):
    """The settings of one run. Tokens are training targets; steps follow from them."""

    tokens: int = Field(ge=1)
    peak_lr: float = Field(gt=0)
    snapshots: bool = Field(description="keep the weights of each measured step, in bfloat16")


class RunConfig(Strict):
    """Everything that determines the weights of one run, apart from the tokens themselves."""

    run: str
    size: str
    gamma: float = Field(ge=0, le=4)
    variant: str
    seed: int = Field(ge=0)
    d_ref: int = Field(ge=8, description="the paper-scale width that this size stands for")
    model: ModelConfig
    init: InitConfig
    train: TrainConfig

    @model_validator(mode="after")
    def _batch_is_whole(self) -> "RunConfig":
        sequence = self.model.seq_len * self.train.micro_batch
        if self.train.batch_tokens % sequence:
            raise ValueError(
                f"train.batch_tokens = {self.train.batch_tokens} must be a multiple of "
                f"seq_len x micro_batch = {self.model.seq_len} x {self.train.micro_batch} = {sequence}"
            )
        if (self.train.batch_tokens // sequence) % self.train.processes:
            raise ValueError(
                f"train.processes = {self.train.processes} must divide the micro batches of a step, batch_tokens / "
                f"(seq_len x micro_batch) = {self.train.batch_tokens // sequence}: lower micro_batch or processes"
            )
        if self.train.eval_tokens < self.model.seq_len:
            raise ValueError(
                f"train.eval_tokens = {self.train.eval_tokens} is less than one window, seq_len = {self.model.seq_len}"
            )
        if self.train.tokens < self.train.batch_tokens:
            raise ValueError(
                f"tokens = {self.train.tokens} of size {self.size!r} is less than one step of {self.train.batch_tokens}"
            )
        return self

    @property
    def steps(self) -> int:
        """Optimizer steps: whole batches within `tokens`."""
        return self.train.tokens // self.train.batch_tokens

    @property
    def batch_size(self) -> int:
        """Sequences of one optimizer step."""
        return self.train.batch_tokens // self.model.seq_len

    def digest(self) -> str:
        """A hash of all that the weights depend on, the key under which an interrupted run keeps its state.

        Not of `processes` and `strategy`: a run may continue on another number of machines.
        """
        values = self.model_dump(mode="json", exclude={"train": {"processes", "strategy"}})
        text = json.dumps(values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


Config = TypeVar("Config", bound=BaseModel)


def explain(error: ValidationError, source: str) -> str:
    """One line a problem: the key, the value and what is allowed."""
    lines = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"]) or "(whole file)"
        simple = item["type"] != "missing" and not isinstance(item["input"], dict | list)
        value = f" (value: {item['input']!r})" if simple else ""
        lines.append(f"{source}: {key}: {item['msg']}{value}")
    return "\n".join(lines)


def read_config(kind: type[Config], path: Path) -> Config:
    """Read one file of the plan into its strict type.

    Raises:
        ConfigError: the file is missing or older than `params.yaml`, or a value does not fit its type.
    """
    advice = "write the plan with `dvc repro plan`"
    if not path.exists():
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.json"))) or "none"
        raise ConfigError(f"{path.name}: no such entry in the plan (known: {known}); check the name, or {advice}")
    stamp = paths.PLAN / "params.sha256"
    if not stamp.exists() or stamp.read_text().split()[0] != params_digest():
        raise ConfigError(f"params.yaml has changed since the plan was written; {advice}")
    try:
        return kind.model_validate_json(path.read_text())
    except ValidationError as error:
        raise ConfigError(explain(error, path.name)) from None


def params_digest() -> str:
    """SHA-256 of `params.yaml` as it is now."""
    return hashlib.sha256(paths.PARAMS.read_bytes()).hexdigest()


def load_run(run: str) -> RunConfig:
    """The resolved configuration of `run`, for instance `m-1.0-both`."""
    return read_config(RunConfig, paths.PLAN / "runs" / f"{run}.json")
