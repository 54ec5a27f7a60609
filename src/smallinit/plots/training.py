"""Figures of a single run: its curves and the distribution of its token losses."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from smallinit.config import RunConfig
from smallinit.plots.style import gamma_color


def run_overview(curve: pd.DataFrame, heldout: pd.DataFrame, run: RunConfig) -> Figure:
    """Training and held-out loss (left) and gradient norm before clipping (right) against tokens, on a log axis."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    color = gamma_color(run.gamma)
    left.plot(curve["tokens"], curve["loss"], color=color, alpha=0.35, lw=1, label="training")
    shown = heldout[heldout["tokens"] > 0]
    left.plot(shown["tokens"], shown["loss"], color=color, marker="o", ms=3.5, label="held out")
    left.axhline(np.log(run.model.vocab_size), color="#666666", lw=0.8, ls=":", label="uniform guess")
    left.set(xlabel="training tokens", ylabel="loss (nats per token)", title=f"{run.run}: loss")
    left.legend()
    right.plot(curve["tokens"], curve["grad_norm"], color=color, lw=1)
    right.axhline(run.train.grad_clip, color="#666666", lw=0.8, ls=":")
    right.set(xlabel="training tokens", ylabel="gradient norm", title="gradient norm, dotted: clipping")
    if len(curve):  # a run that is lost before its first step has nothing for a log axis
        left.set_xscale("log")
        right.set(xscale="log", yscale="log")
    return figure


def measures_overview(matrices: pd.DataFrame, blocks: pd.DataFrame, run: RunConfig) -> Figure:
    """What was measured beside the loss, a line a matrix or norm: stable rank, hidden RMS, residual flow."""
    figure, panels = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
    color = gamma_color(run.gamma)
    drawn = [
        (panels[0], matrices, "name", "stable_rank_ratio", "stable rank / Gaussian"),
        (panels[1], blocks, ["layer", "part"], "hidden_rms", "RMS of the hidden state"),
        (panels[2], blocks.dropna(subset=["flow"]), ["layer", "part"], "flow", "update / identity path"),
    ]
    for axes, table, key, column, label in drawn:
        for _, line in table.groupby(key):
            axes.plot(line["tokens"] + run.train.batch_tokens / 2, line[column], color=color, alpha=0.4, lw=1)
        axes.set(xlabel="training tokens", ylabel=label, xscale="log", yscale="log")
    panels[0].set_title(f"{run.run}: matrices")
    panels[1].set_title("residual stream, at each norm (left end: step 0)")
    panels[2].set_title("residual flow, by layer and part")
    return figure


def token_loss_histogram(losses: np.ndarray, run: RunConfig) -> Figure:
    """Distribution of held-out token losses, with their mean and median. losses: (n,) nats."""
    figure, axes = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
    axes.hist(losses, bins=list(np.linspace(0, 14, 57)), color=gamma_color(run.gamma), alpha=0.8)
    for value, style, name in ((losses.mean(), "-", "mean"), (np.median(losses), "--", "median")):
        axes.axvline(value, color="black", ls=style, lw=1, label=f"{name} {value:.2f}")
    axes.set(xlabel="loss (nats per token)", ylabel="held-out tokens", title=f"{run.run}: losses of single tokens")
    axes.legend()
    return figure
