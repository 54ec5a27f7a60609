"""Attention sink, gate and attention maps: how much attention rests on which token, and how open the gates are."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from smallinit.evaluation.config import EvaluateConfig
from smallinit.evaluation.inputs import layer_inputs
from smallinit.measures import sink
from smallinit.model import Attention, Decoder

COLUMNS = ["window", "layer", "head", "sink", "gate", "gate_below_0.1"]
CELLS = 32  # of a map, in each direction: a model with 24 heads leaves 50 kB


def uniform_sink(seq_len: int) -> float:
    """The sink value of uniform attention: the mean of 1 / (t + 1) over t >= T/2."""
    return float(np.mean([1 / (t + 1) for t in range(seq_len // 2, seq_len)]))


def cell_starts(seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """First position of each cell of a map: of its C rows, groups of queries, and of its columns, groups of keys.

    Both are cut at the same places, C = min(CELLS, T) groups as even as can be; but the first token, where sinks are,
    is a column of its own, so that there are C + 1 columns, or C if every token is one anyway.
    """
    count = min(CELLS, seq_len)
    queries = np.arange(count) * seq_len // count
    return queries, np.unique([0, 1, *queries])


def in_cells(probabilities: np.ndarray) -> np.ndarray:
    """Attention matrices (..., T, T) in cells (..., C, columns): what a query of the row gives the keys of the column.

    A mean over queries and a sum over keys, so that each row still adds up to 1. See `cell_starts`.
    """
    seq_len = probabilities.shape[-1]
    queries, keys = cell_starts(seq_len)
    shares = np.add.reduceat(probabilities, keys, axis=-1)  # (..., T, columns)
    sums: np.ndarray = np.add.reduceat(shares, queries, axis=-2)  # (..., C, columns)
    return sums / np.diff([*queries, seq_len])[:, None]


def uniform_map(seq_len: int) -> np.ndarray:
    """The map (C, columns) of uniform attention, 1 / (t + 1) to each token up to t: what to compare a map with."""
    return in_cells(np.tri(seq_len) / np.arange(1, seq_len + 1)[:, None])


@torch.no_grad()
def maps(model: Decoder, tokens: np.ndarray, config: EvaluateConfig) -> np.ndarray:
    """The mean attention matrix of every head over the first held-out windows, in cells: (L, H, C, columns) float16.

    `in_cells` says what an entry is.

    Raises:
        ValueError: the held-out text has fewer windows.
    """
    layers = []
    for attention, x in layer_inputs(model, Attention, tokens, config):
        mean: Tensor = attention.probabilities(x, *model.rotary(x)).mean(dim=0)  # (H, T, T)
        layers.append(in_cells(mean.double().numpy()))
    return np.stack(layers).astype(np.float16)


@torch.no_grad()
def measure(model: Decoder, tokens: np.ndarray, config: EvaluateConfig) -> pd.DataFrame:
    """Sink and gate of every head in each of the first held-out windows: one row a window, layer and head.

    Columns: window, layer, head, sink, gate (mean), gate_below_0.1 (share); gate columns are empty without a gate.
    Compare the sink with `uniform_sink`: what a head that attends to all tokens equally would give.

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
