"""Attention sink and gate: how much attention rests on the first token, and how open the gates are."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from smallinit.evaluation.config import EvaluateConfig
from smallinit.evaluation.inputs import layer_inputs
from smallinit.model import Attention, Decoder

COLUMNS = ["window", "layer", "head", "sink", "gate", "gate_below_0.1"]


def sink(probabilities: Tensor) -> Tensor:
    """Mean attention to token 0 of the queries t >= T/2. probabilities: (B, H, T, T); returns (B, H).

    Compare with `uniform_sink`: what a head that attends to all tokens equally would give.
    """
    half = probabilities.shape[-2] // 2
    return probabilities[:, :, half:, 0].mean(dim=2)


def uniform_sink(seq_len: int) -> float:
    """The sink value of uniform attention: the mean of 1 / (t + 1) over t >= T/2."""
    return float(np.mean([1 / (t + 1) for t in range(seq_len // 2, seq_len)]))


@torch.no_grad()
def measure(model: Decoder, tokens: np.ndarray, config: EvaluateConfig) -> pd.DataFrame:
    """Sink and gate of every head in each of the first held-out windows: one row a window, layer and head.

    Columns: window, layer, head, sink, gate (mean), gate_below_0.1 (share); gate columns are empty without a gate.

    Raises:
        ValueError: the held-out text has fewer windows.
    """
    tables = []
    for layer, (attention, x) in enumerate(layer_inputs(model, Attention, tokens, config)):
        sinks = sink(attention.probabilities(x, *model.rotary(x)))  # (B, H)
        gates = attention.gate_values(x)  # (B, H, T, 1 or h)
        window, head = np.indices(sinks.shape)
        table = pd.DataFrame(
            {"window": window.ravel(), "layer": layer, "head": head.ravel(), "sink": sinks.flatten().numpy()}
        )
        table["gate"] = np.nan if gates is None else gates.mean(dim=(2, 3)).flatten().numpy()
        table["gate_below_0.1"] = np.nan if gates is None else (gates < 0.1).float().mean(dim=(2, 3)).flatten().numpy()
        tables.append(table)
    return pd.concat(tables, ignore_index=True)[COLUMNS]
