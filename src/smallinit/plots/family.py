"""Figures of a family of models beside the usual ones: gains of small initialization, and training curves."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from smallinit.analysis.collect import Results
from smallinit.analysis.family import message
from smallinit.plots import nulls
from smallinit.plots.style import GREEN, OTHER, gamma_color, headline


def gain_figure(table: pd.DataFrame, name: str) -> Figure:
    """Gain of gamma = 1 with its interval and null, a panel a size: the family's beside the usual.

    table: of `family.gains`.
    """
    sizes = list(table["size"].unique())
    figure, panels = plt.subplots(
        1, len(sizes), figsize=(max(9.5, 4.4 * len(sizes) + 2), 3.4), sharey=True, squeeze=False, layout="constrained"
    )
    usual = list(table["usual"].unique())
    for axes, size in zip(panels[0], sizes, strict=True):
        for own, color, marker, label in ((False, OTHER, "s", "usual models"), (True, GREEN, "o", name)):
            rows = table[(table["size"] == size) & (table["family"] == own)]
            places = np.array([usual.index(each) for each in rows["usual"]]) + (0.08 if own else -0.08)
            nulls.bars(axes, places, rows["null"], 0.14)
            spread = np.abs(rows[["low", "high"]].to_numpy().T - rows["gain"].to_numpy())
            axes.errorbar(places, rows["gain"], yerr=spread, fmt=marker, ms=7, capsize=4, color=color, label=label)
        axes.axhline(0, color="black", lw=0.8)
        words = {"standard": "standard\n(matched ε, no gate)", "both": "both\n(ε = 1e-12 and gate)"}
        axes.set_xticks(range(len(usual)), [words.get(each, each) for each in usual])
        axes.set(xlim=(-0.6, len(usual) - 0.4), title=f"size {size}")
    panels[0][0].set_ylabel("loss(γ = 0.5) − loss(γ = 1)\n(nats per token)")
    panels[0][-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    headline(
        figure,
        f"{name}: {message(table)}",
        f"above zero: γ = 1 wins; bars: interval over held-out documents; one seed; {nulls.note(table['null'])}",
    )
    return figure


def curves(runs: pd.DataFrame, results: Results) -> Figure:
    """Held-out loss over training, a column a variant, a row a size, a line a gamma. runs: rows of `Results.runs`."""
    sizes, variants = list(runs["size"].unique()), list(runs["variant"].unique())
    shape = len(sizes), len(variants)
    figure, panels = plt.subplots(
        *shape, figsize=(max(7.0, 3 * shape[1] + 0.6), 2.8 * shape[0] + 0.4), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for row, size in zip(panels, sizes, strict=True):
        for axes, variant in zip(row, variants, strict=True):
            for run in runs[(runs["size"] == size) & (runs["variant"] == variant)].to_dict("records"):
                curve = results.heldout[(results.heldout["run"] == run["run"]) & (results.heldout["tokens"] > 0)]
                color, label = gamma_color(run["gamma"]), f"γ = {run['gamma']:g}"
                axes.plot(curve["tokens"], curve["loss"], marker="o", ms=3, color=color, label=label)
            axes.set(xscale="log", xlabel="training tokens", title=f"{size}, {variant}")
            axes.legend()
        row[0].set_ylabel("held-out loss (nats per token)")
    ends = runs.loc[runs["loss"].idxmin()]
    headline(figure, f"The lowest loss at the end is {ends['loss']:.3f} nats per token, of {ends['run']}", "one seed")
    return figure
