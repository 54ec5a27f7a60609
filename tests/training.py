"""What the tests of training share: the same outcome, bit by bit; where a run keeps its state; how it is watched."""

import json
from pathlib import Path
from typing import Any

import torch

from smallinit import checkpoint, paths
from smallinit.batches import Tokens
from smallinit.config import RunConfig
from smallinit.files import write_json
from smallinit.train import Outcome


def same(a: Outcome, b: Outcome) -> bool:
    """Bitwise: weights, curve, held-out losses and measures."""
    weights = all(torch.equal(weight, b.weights[name]) for name, weight in a.weights.items())
    tables = ("curve", "heldout", "matrices", "blocks")
    alike = all(getattr(a, name).equals(getattr(b, name)) for name in tables)
    return weights and a.weights.keys() == b.weights.keys() and alike


def place(run: RunConfig) -> Path:
    """The folder of the state of `run` on the tokens of this project."""
    return checkpoint.folder(run, Tokens().digest())


def watch(save_seconds: float = 30.0, **trackers: bool) -> None:
    """What the plan says about saving and watching; a tiny `save_seconds` saves after each step."""
    off = {"dvclive": False, "tensorboard": False}
    write_json(paths.PLAN / "tracking.json", {"save_seconds": save_seconds, **off, **trackers})


def saved_step(states: Path) -> int:
    """The step of the newest whole state; 0 without one."""
    generation = checkpoint.usable(states)
    return json.loads((generation / "progress.json").read_text())["step"] if generation else 0


def moe(**changes: Any) -> dict[str, Any]:
    """`moe` for run_config: four small experts, two a token, both auxiliary losses on."""
    return {"moe": {"n_experts": 4, "top_k": 2, "balance_coef": 0.01, "z_coef": 0.001, **changes}}
