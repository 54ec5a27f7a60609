"""Held-out language modelling: loss of every token, sums over documents, bits per byte by language and source."""

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file
from torch import nn

from smallinit import paths
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.statistics import bootstrap_ratio
from smallinit.batches import take, windows
from smallinit.config import RunConfig
from smallinit.evaluation.config import EvaluateConfig
from smallinit.model import Decoder, token_losses
from smallinit.progress import Progress


def has_diverged(run: str) -> bool:
    """Whether training of `run` ended in a loss that is not finite: such a run has nothing to evaluate."""
    return bool(json.loads((paths.RESULTS / "train" / run / "metrics.json").read_text())["diverged"])


def load_model(run: RunConfig) -> Decoder:
    """The trained model of `run`, for evaluation.

    Raises:
        FileNotFoundError: its weights are not there.
    """
    weights = paths.MODELS / run.run / "model.safetensors"
    if not weights.exists():
        raise FileNotFoundError(f"no weights of {run.run}: run `dvc repro train@{run.run}` first")
    model = Decoder(run.model)
    model.load_state_dict(load_file(weights))
    return model.eval()


@torch.no_grad()
def heldout_losses(model: nn.Module, tokens: np.ndarray, seq_len: int, config: EvaluateConfig) -> np.ndarray:
    """Loss in nats of each held-out token, float32, from windows of `seq_len` side by side.

    Entry i belongs to token i + 1: the first token has no context and is not predicted.

    Raises:
        ValueError: there is not even one window.
    """
    torch.set_num_threads(config.threads)
    count = min(config.tokens // seq_len, windows(tokens, seq_len))
    if not count:
        raise ValueError(
            f"evaluate.tokens = {config.tokens} and {len(tokens)} held-out tokens: at least one window of "
            f"model.seq_len = {seq_len} is needed"
        )
    losses = np.empty((count, seq_len), dtype=np.float32)
    with Progress(count * seq_len, "held-out loss", "tokens") as bar:
        for first in range(0, count, config.micro_batch):
            index = np.arange(first, min(first + config.micro_batch, count))
            losses[index] = token_losses(model, take(tokens, index, seq_len)).numpy()
            bar.update(len(index) * seq_len)
    return losses.ravel()


def document_losses(losses: np.ndarray, documents: pd.DataFrame) -> pd.DataFrame:
    """Sum of losses over each document that lies wholly within `losses`.

    `documents` has start and end, token positions in the held-out file; adds `tokens` and `loss_sum` (nats).
    """
    whole = documents[(documents["end"] - 1 <= len(losses)) & (documents["start"] >= 1)].copy()
    sums = np.concatenate([[0.0], np.cumsum(losses, dtype=np.float64)])
    whole["tokens"] = whole["end"] - whole["start"]
    whole["loss_sum"] = sums[whole["end"] - 1] - sums[whole["start"] - 1]
    return whole


def summarize(documents: pd.DataFrame, config: AnalysisConfig) -> dict[str, Any]:
    """Size, loss (nats per token) and bits per byte of a set of documents, the last two with bootstrap intervals.

    Bits per byte compare between tokenizers, losses per token do not. Intervals are over documents, as `config` says;
    they are None for a single document, which has none.
    """
    sums = documents["loss_sum"].to_numpy()
    summary: dict[str, Any] = {"documents": len(documents), "tokens": int(documents["tokens"].sum())}
    for name, unit, scale in (("loss", "tokens", 1.0), ("bits_per_byte", "bytes", math.log(2))):
        units = documents[unit].to_numpy() * scale
        summary[name] = float(sums.sum() / units.sum())
        interval = bootstrap_ratio(sums, units, "documents", config) if len(documents) > 1 else None
        summary[f"{name}_low"], summary[f"{name}_high"] = (interval.low, interval.high) if interval else (None, None)
    return summary


def report(losses: np.ndarray, documents: pd.DataFrame, config: AnalysisConfig) -> dict[str, Any]:
    """All held-out numbers of one run: over all tokens, over whole documents, by language and by source."""
    return {
        "diverged": False,
        "tokens": len(losses),
        "loss": float(losses.mean(dtype=np.float64)),
        "documents": summarize(documents, config),
        "language": {str(name): summarize(group, config) for name, group in documents.groupby("language")},
        "source": {str(name): summarize(group, config) for name, group in documents.groupby("source")},
    }
