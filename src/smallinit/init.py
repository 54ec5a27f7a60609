"""The gamma rule: every matrix is drawn as N(0, sigma^2) with sigma = fan_in^(-gamma).

gamma = 0.5 is the usual Xavier-like scale, gamma = 1 the paper's small initialization (Hang et al., arXiv 2606.17945).
Each tensor is drawn in full from a generator of its own, seeded by (seed, name): the weights depend neither on the
order of modules, nor on the dtype they are stored in, nor on how many processes hold them.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

# How a parameter's name ends -> (kind, the axis that holds fan_in). Shapes are (out, in).
# The embedding's fan_in is d_model, not the vocabulary: only then does the residual flow follow d^(1 - gamma).
KINDS: dict[str, tuple[str, int]] = {
    "embed.weight": ("embedding", 1),  # (V, d)
    "head.weight": ("head", 1),  # (V, d)
    "q_proj.weight": ("query", 1),  # (n_heads * head_dim, d)
    "k_proj.weight": ("key", 1),  # (n_heads * head_dim, d)
    "v_proj.weight": ("value", 1),  # (n_heads * head_dim, d)
    "gate_proj.weight": ("attention_gate", 1),  # (n_heads or n_heads * head_dim, d)
    "o_proj.weight": ("attention_out", 1),  # (d, n_heads * head_dim)
    "ffn_gate.weight": ("ffn_gate", 1),  # (d_ff, d)
    "ffn_up.weight": ("ffn_up", 1),  # (d_ff, d)
    "ffn_down.weight": ("ffn_down", 1),  # (d, d_ff)
    "norm.weight": ("norm", 0),  # (d,), exactly one
}


@dataclass(frozen=True)
class Rule:
    """What one parameter starts from: `std` is 0 for norm gains, which are exactly 1."""

    name: str
    kind: str
    fan_in: int
    std: float


def rule_for(name: str, shape: torch.Size | tuple[int, ...], gamma: float) -> Rule:
    """The gamma rule for one parameter.

    Raises:
        KeyError: the name ends in none of the known kinds; no parameter is left at a default silently.
    """
    ending = next((key for key in KINDS if f".{name}".endswith((f".{key}", f"_{key}"))), None)
    if ending is None:
        raise KeyError(f"parameter {name!r} {tuple(shape)} is of no known kind; known endings: {', '.join(KINDS)}")
    kind, axis = KINDS[ending]
    fan_in = shape[axis]
    return Rule(name, kind, fan_in, 0.0 if kind == "norm" else fan_in**-gamma)


def draw(rule: Rule, shape: torch.Size | tuple[int, ...], seed: int) -> torch.Tensor:
    """The initial value of one parameter, float32, a function of (rule, shape, seed) alone."""
    if rule.kind == "norm":
        return torch.ones(shape, dtype=torch.float32)
    key = hashlib.sha256(f"{seed}/{rule.name}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(key, "little")))  # the same bits on every machine
    return torch.from_numpy((generator.standard_normal(shape) * rule.std).astype(np.float32))


@torch.no_grad()
def initialize(model: nn.Module, gamma: float, seed: int) -> list[Rule]:
    """Fill every parameter of `model` by the gamma rule; returns the rule of each, in the model's order.

    Raises:
        KeyError: a parameter is of no known kind.
        ValueError: a parameter has no memory yet (meta device).
    """
    rules = []
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ValueError(f"parameter {name!r} is on the meta device: call model.to_empty(device=...) first")
        rule = rule_for(name, parameter.shape, gamma)
        parameter.copy_(draw(rule, parameter.shape, seed))
        rules.append(rule)
    return rules


def audit(model: nn.Module, rules: list[Rule]) -> pd.DataFrame:
    """Target against realised standard deviation of every parameter at step 0, with a hash of its values.

    `deviation` is (realised - target) in units of the sampling error target / sqrt(2 n): beyond 4 something is wrong.
    """
    rows: list[dict[str, Any]] = []
    parameters = dict(model.named_parameters())
    for rule in rules:
        value = parameters[rule.name].detach().float().cpu()
        realised = value.pow(2).mean().sqrt().item() if rule.std else (value - 1).abs().max().item()
        error = rule.std / (2 * value.numel()) ** 0.5
        rows.append(
            {
                "name": rule.name,
                "kind": rule.kind,
                "shape": "x".join(str(n) for n in value.shape),
                "fan_in": rule.fan_in,
                "target_std": rule.std,
                "realised_std": realised,
                "deviation": (realised - rule.std) / error if error else realised,
                "sha256": hashlib.sha256(value.numpy().tobytes()).hexdigest()[:16],
            }
        )
    return pd.DataFrame(rows)
