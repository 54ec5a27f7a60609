"""The gamma rule: every matrix is drawn as N(0, sigma^2) with sigma = fan_in^(-gamma).

gamma = 0.5 is the usual Xavier-like scale, gamma = 1 the paper's small initialization (Hang et al., arXiv 2606.17945).
Each tensor is drawn in full from a generator of its own, seeded by (seed, name): the weights depend neither on the
order of modules, nor on the dtype they are stored in, nor on how many processes hold them.

It works on any torch module. Read KINDS (what there is), NAMES (how a name tells the kind), GammaRule, initialize.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn


class Kind(NamedTuple):
    """What a parameter does in the model."""

    shape: str  # (out, in): the last one is fan_in
    residual: bool = False  # its output is added to the residual stream
    constant: float | None = None  # the exact start of what is not a matrix


# h head_dim, f d_ff; experts put a first axis E before their shape.
KINDS: dict[str, Kind] = {
    "embedding": Kind("(V, d)"),  # fan_in is d, not V: only then does the residual flow follow d^(1 - gamma)
    "position": Kind("(T, d)"),  # learned positions are added to the embedding, so they start like it
    "head": Kind("(V, d)"),
    "query": Kind("(heads*h, d)"),
    "key": Kind("(kv_heads*h, d)"),
    "value": Kind("(kv_heads*h, d)"),
    "attention_gate": Kind("(heads or heads*h, d)"),
    "attention_out": Kind("(d, heads*h)", residual=True),
    "ffn_gate": Kind("(f, d)"),
    "ffn_up": Kind("(f, d)"),
    "ffn_down": Kind("(d, f)", residual=True),
    "router": Kind("(E, d)"),
    "shared_expert_gate": Kind("(1, d)"),
    "norm": Kind("(d,)", constant=1.0),
    "bias": Kind("(out,)", constant=0.0),
}

# How a parameter's name ends, in whole dotted parts, -> its kind; * stands for anything, + joins the kinds of a fused
# matrix. The name alone does not tell Llama's gate_proj (of its FFN) from ours (of the attention), hence the parents.
NAMES: dict[str, str] = {
    # our Decoder, and many others
    "embed.weight": "embedding",
    "head.weight": "head",
    "q_proj.weight": "query",
    "k_proj.weight": "key",
    "v_proj.weight": "value",
    "attention.gate_proj.weight": "attention_gate",
    "o_proj.weight": "attention_out",
    "ffn_gate.weight": "ffn_gate",
    "ffn_up.weight": "ffn_up",
    "ffn_down.weight": "ffn_down",
    "router.weight": "router",
    "experts_gate": "ffn_gate",  # (E, f, d)
    "experts_up": "ffn_up",  # (E, f, d)
    "experts_down": "ffn_down",  # (E, d, f)
    "*norm.weight": "norm",
    "bias": "bias",
    # transformers 5: Llama, Mistral, Qwen2, Qwen3, and their mixtures of experts with Mixtral
    "embed_tokens.weight": "embedding",
    "lm_head.weight": "head",
    "mlp.gate_proj.weight": "ffn_gate",
    "up_proj.weight": "ffn_up",
    "down_proj.weight": "ffn_down",
    "mlp.gate.weight": "router",
    "experts.gate_up_proj": "ffn_gate+ffn_up",  # (E, 2f, d)
    "experts.down_proj": "ffn_down",  # (E, d, f)
    "shared_expert.gate_proj.weight": "ffn_gate",
    "shared_expert_gate.weight": "shared_expert_gate",
    # transformers 5: GPT-2, whose matrices are (in, out)
    "wte.weight": "embedding",
    "wpe.weight": "position",
    "attn.c_attn.weight": "query+key+value",
    "attn.c_proj.weight": "attention_out",
    "mlp.c_fc.weight": "ffn_up",
    "mlp.c_proj.weight": "ffn_down",
    "ln_*.weight": "norm",
    # transformers 5: GPT-NeoX (Pythia)
    "embed_in.weight": "embedding",
    "embed_out.weight": "head",
    "attention.query_key_value.weight": "query+key+value",
    "attention.dense.weight": "attention_out",
    "mlp.dense_h_to_4h.weight": "ffn_up",
    "mlp.dense_4h_to_h.weight": "ffn_down",
}


@dataclass(frozen=True)
class GammaRule:
    """sigma = fan_in^(-gamma), and the three ways to depart from it; by default none.

    Args:
        gamma: the exponent; 0.5 Xavier-like, 1 the paper's recommendation.
        overrides: a gamma of its own for some kinds of matrices.
        residual_scaling: divide sigma of attention_out and ffn_down by sqrt(2 L), L blocks (GPT-2).
        fixed_std: one sigma for all matrices in place of fan_in^(-gamma); GPT-2: 0.02 with residual scaling.

    Raises:
        ValueError: a value is out of range, an override is for no kind of matrix, both overrides and fixed_std.
    """

    gamma: float
    overrides: Mapping[str, float] = field(default_factory=dict)
    residual_scaling: bool = False
    fixed_std: float | None = None

    def __post_init__(self) -> None:
        matrices = [kind for kind, known in KINDS.items() if known.constant is None]
        for key, gamma in {"gamma": self.gamma, **self.overrides}.items():
            if not (isinstance(gamma, int | float) and math.isfinite(gamma) and gamma >= 0):
                raise ValueError(f"{key} = {gamma!r}: must be a finite number >= 0, such as 0.5 or 1")
        if other := [kind for kind in self.overrides if kind not in matrices]:
            raise ValueError(f"overrides: {other} are no kinds of matrices; allowed: {', '.join(matrices)}")
        if self.fixed_std is not None and not (math.isfinite(self.fixed_std) and self.fixed_std > 0):
            raise ValueError(f"fixed_std = {self.fixed_std!r}: must be a finite number > 0, such as 0.02, or None")
        if self.fixed_std is not None and self.overrides:
            raise ValueError("overrides and fixed_std exclude each other: with one std for all no gamma has an effect")

    def std(self, kind: str, fan_in: int, n_layers: int = 0) -> float:
        """sigma of a matrix with `fan_in` inputs in a model of `n_layers` blocks; 0 for the constant kinds.

        Raises:
            ValueError: residual scaling lacks n_layers, or the parts of a fused matrix (joined by +) would differ.
        """
        if "+" in kind:
            stds = {part: self.std(part, fan_in, n_layers) for part in kind.split("+")}
            if len(set(stds.values())) > 1:
                raise ValueError(f"{kind} share one matrix, but would start at different std {stds}: use one gamma")
            return stds.popitem()[1]
        if KINDS[kind].constant is not None:
            return 0.0
        std = fan_in ** -self.overrides.get(kind, self.gamma) if self.fixed_std is None else self.fixed_std
        if self.residual_scaling and KINDS[kind].residual:
            if n_layers < 1:
                raise ValueError("residual_scaling lacks the number of blocks: no parameter is of kind attention_out")
            std /= math.sqrt(2 * n_layers)
        return std


@dataclass(frozen=True)
class Start:
    """What one parameter starts from: N(0, std^2), or exactly `constant`, and then `std` is 0."""

    name: str
    kind: str
    shape: tuple[int, ...]
    fan_in: int
    std: float

    @property
    def constant(self) -> float | None:
        """1 for norm gains, 0 for biases, None for matrices."""
        return KINDS[self.kind].constant if self.kind in KINDS else None


def plan(model: nn.Module, rule: GammaRule | float, names: Mapping[str, str] | None = None) -> list[Start]:
    """How `initialize` would start every parameter; tied ones once, as the embedding if that is one of them.

    Raises:
        ValueError: parameters are of no known kind (all are listed), or of a kind that their shape does not fit.
    """
    for pattern, kind in (names or {}).items():
        parts = kind.split("+")
        if any(part not in KINDS or (len(parts) > 1 and KINDS[part].constant is not None) for part in parts):
            raise ValueError(f"names: {pattern!r} is said to be of kind {kind!r}, which is none. {_kinds()}")
    rule = rule if isinstance(rule, GammaRule) else GammaRule(rule)
    uses: dict[nn.Parameter, dict[str, str | None]] = {}  # each parameter once, with all its names and their kinds
    for name, parameter in model.named_parameters(remove_duplicate=False):
        uses.setdefault(parameter, {})[name] = kind_of(name, names)
    if unknown := {next(iter(use)): tuple(p.shape) for p, use in uses.items() if not any(use.values())}:
        raise ValueError(_unknown(unknown))
    known = [[(name, kind) for name, kind in use.items() if kind] for use in uses.values()]
    chosen = [min(use, key=lambda name_kind: name_kind[1] != "embedding") for use in known]
    n_layers = sum(kind == "attention_out" for _, kind in chosen)
    starts = []
    for parameter, (name, kind) in zip(uses, chosen, strict=True):
        shape = tuple(parameter.shape)
        fan_in = _fan_in(name, kind, shape, model.get_submodule(name.rpartition(".")[0]))
        starts.append(Start(name, kind, shape, fan_in, rule.std(kind, fan_in, n_layers)))
    return starts


def kind_of(name: str, names: Mapping[str, str] | None = None) -> str | None:
    """The kind of a parameter by its name, `names` before NAMES, the first match first; None if none matches."""
    patterns = chain((names or {}).items(), NAMES.items())
    return next((kind for pattern, kind in patterns if fnmatchcase(f".{name}", f"*.{pattern}")), None)


def _kinds() -> str:
    kinds = ", ".join(f"{kind} {known.shape}" for kind, known in KINDS.items())
    return f'Kinds: {kinds}; a fused matrix joins several, as in "query+key+value". Norm gains become 1, biases 0.'


def _unknown(shapes: Mapping[str, tuple[int, ...]]) -> str:
    ending = ".".join(next(iter(shapes)).split(".")[-2:])
    lines = [f"nothing was changed, for {len(shapes)} of the parameters are of no known kind:"]
    lines += [f"  {name} {shape}" for name, shape in shapes.items()]
    lines += [f'Say what each is by the ending of its name, * for anything: names={{"{ending}": "ffn_up"}}.', _kinds()]
    return "\n".join(lines)


def _fan_in(name: str, kind: str, shape: tuple[int, ...], module: nn.Module) -> int:
    """The number of inputs: the last axis, but the one before where a class of transformers stores (in, out)."""
    if kind in KINDS and KINDS[kind].constant is not None:
        return math.prod(shape)
    if len(shape) not in (2, 3):
        raise ValueError(f"{name} {shape} cannot be of kind {kind}: a matrix has 2 axes, a stack of experts has 3")
    is_conv1d = any(base.__name__ == "Conv1D" for base in type(module).__mro__)  # GPT-2's
    return shape[-2 if is_conv1d or getattr(module, "is_transposed", False) else -1]  # is_transposed: of experts


def draw(start: Start, seed: int) -> torch.Tensor:
    """The initial value of one parameter, float32, a function of (start, seed) alone."""
    if start.constant is not None:
        return torch.full(start.shape, start.constant, dtype=torch.float32)
    key = hashlib.sha256(f"{seed}/{start.name}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(key, "little")))  # the same on every device
    values = generator.standard_normal(start.shape, dtype=np.float32)
    values *= np.float32(start.std)
    return torch.from_numpy(values)


@torch.no_grad()
def initialize(
    model: nn.Module, rule: GammaRule | float, seed: int = 0, names: Mapping[str, str] | None = None
) -> list[Start]:
    """Fill every parameter of `model` by the gamma rule; returns the start of each, in the model's order.

    Call it before torch.compile or DistributedDataParallel, which rename parameters. Sharding (FSDP2) may come before:
    each process then draws the full tensors and keeps its shards, without communication. Buffers are left alone.

    Args:
        model: any torch module.
        rule: gamma, or a GammaRule.
        seed: with the name of a parameter it determines the draw.
        names: what NAMES does not know, or knows otherwise: {"my_proj.weight": "ffn_up"}. A norm that multiplies by
            1 + weight (Gemma, Qwen3-Next) needs {"*norm.weight": "bias"}.

    Raises:
        ValueError: as `plan`; or a parameter has no memory yet (meta device). No value has been changed then.
    """
    if callable(tie := getattr(model, "tie_weights", None)):  # of transformers: model.to_empty() parts tied weights
        tie()
    starts = plan(model, rule, names)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if meta := [name for name, parameter in parameters.items() if parameter.is_meta]:
        raise ValueError(f"{', '.join(meta)}: on the meta device; call model.to_empty(device=...) first")
    for start in starts:
        _fill(parameters[start.name], draw(start, seed))
    return starts


def _fill(parameter: Any, value: torch.Tensor) -> None:
    if hasattr(parameter, "device_mesh"):  # a shard: a DTensor
        from torch.distributed.tensor import distribute_tensor  # takes a second to import

        value = value.to(parameter.dtype)  # rounding commutes with cutting, and halves what is moved
        value = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(value)


def audit(model: nn.Module, starts: Iterable[Start]) -> pd.DataFrame:
    """Target against realised standard deviation of every parameter at step 0, with a hash of its values.

    `deviation` is (realised - target) in units of the sampling error target / sqrt(2 n): beyond 4 something is wrong.
    For norm gains and biases `realised_std` and `deviation` are the largest distance from 1 or 0. Shards are gathered,
    so all processes must call it.
    """
    rows: list[dict[str, Any]] = []
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for start in starts:
        value: Any = parameters[start.name].detach()
        value = (value.full_tensor() if hasattr(value, "full_tensor") else value).float().cpu()
        off = value if start.constant is None else value - start.constant
        realised = (off.pow(2).mean().sqrt() if start.constant is None else off.abs().max()).item()
        error = start.std / (2 * value.numel()) ** 0.5
        rows.append(
            {
                **{"name": start.name, "kind": start.kind},
                **{"shape": "x".join(str(n) for n in value.shape), "fan_in": start.fan_in},
                "target_std": start.std,
                "realised_std": realised,
                "deviation": (realised - start.std) / error if error else realised,
                "sha256": hashlib.sha256(value.numpy().tobytes()).hexdigest()[:16],
            }
        )
    return pd.DataFrame(rows)
