"""Figures of a sweep over gamma: loss against gamma with its optimum, and training curves."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from smallinit.analysis.collect import Results
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.resamples import Refusal
from smallinit.analysis.sweep import FLAT, Optimum, Sweep, difference
from smallinit.plots.style import OTHER, gamma_color, headline


def message(sweep: Sweep, best: Optimum | Refusal) -> str:
    """Where the loss is lowest, in one sentence."""
    if isinstance(best, Refusal):
        return f"The loss is lowest at γ = {sweep.lowest['gamma']:g}, the end of the sweep ({sweep})"
    gamma = best.gamma
    return f"The loss is lowest near γ = {gamma.value:.2f} [{gamma.low:.2f}, {gamma.high:.2f}] ({sweep})"


def draw_sweep(axes: Axes, sweep: Sweep, best: Optimum | Refusal, results: Results, config: AnalysisConfig) -> None:
    """Loss against gamma: bars for the difference to the lowest point, the parabola, other seeds as rings."""
    if isinstance(best, Optimum):
        lowest = int(np.argmin(sweep.runs["loss"]))
        near = np.linspace(sweep.gammas[lowest - 1], sweep.gammas[lowest + 1], 100)
        axes.axvspan(best.gamma.low, best.gamma.high, color=OTHER, alpha=0.2, lw=0, label="optimum, interval")
        axes.axvline(best.gamma.value, color=OTHER, lw=1)
        axes.plot(near, best.curve(near), "--", color=OTHER, lw=1.2, label="parabola through three points")
        axes.plot(best.near, [best.loss] * 2, color="black", lw=3, alpha=0.5, label=f"within {FLAT:g} nats of it")
    axes.plot(sweep.gammas, sweep.runs["loss"], color=OTHER, lw=0.8, zorder=1)
    for run in sweep.runs.to_dict("records"):
        more = difference(sweep, run["gamma"], float(sweep.lowest["gamma"]), results, config)
        bars = None if more is None else [[more.value - more.low], [more.high - more.value]]
        axes.errorbar(run["gamma"], run["loss"], yerr=bars, fmt="none", ecolor="black", capsize=3, lw=1)
        axes.plot(run["gamma"], run["loss"], "o", ms=8, color=gamma_color(run["gamma"]), mec="black", mew=0.5)
    for run in sweep.others.to_dict("records"):
        axes.plot(run["gamma"] + 0.05, run["loss"], "o", ms=5, mfc="none", mew=1, color=gamma_color(run["gamma"]))
    for gamma in sweep.diverged:
        axes.plot(gamma, 0.96, "x", ms=8, color=gamma_color(gamma), transform=axes.get_xaxis_transform())
    rates = sweep.runs.set_index("gamma")["peak_lr"].to_dict()
    ticks = sorted({*sweep.gammas, *sweep.diverged})
    axes.set_xticks(ticks, [f"{tick:g}\n{rates[tick]:.2g}" if tick in rates else f"{tick:g}\nlost" for tick in ticks])
    axes.tick_params(axis="x", labelsize=8.5)
    axes.set(xlabel="γ, and below it its peak learning rate", title=str(sweep))


def loss_against_gamma(
    found: Sequence[tuple[Sweep, Optimum | Refusal]], results: Results, config: AnalysisConfig
) -> Figure:
    """One panel a sweep; the first one makes the title."""
    columns = len(found)
    figure, panels = plt.subplots(1, columns, figsize=(max(7.5, 6 * columns), 4), layout="constrained", squeeze=False)
    for axes, (sweep, best) in zip(panels[0], found, strict=True):
        draw_sweep(axes, sweep, best, results, config)
    panels[0][0].set_ylabel("held-out loss (nats per token,\nwhole documents)")
    for handles, labels in [axes.get_legend_handles_labels() for axes in panels[0]][:1]:
        panels[0][-1].legend(handles, labels, loc="upper left", bbox_to_anchor=(1, 1))
    seeds = pd.concat([part["seed"] for sweep, _ in found for part in (sweep.runs, sweep.others)]).nunique()
    rings = "one seed" if seeds == 1 else "rings beside: other seeds"
    headline(
        figure, message(*found[0]), f"bars: interval of the difference to the lowest point, over documents; {rings}"
    )
    return figure


def curves_by_gamma(sweep: Sweep, results: Results) -> Figure:
    """Held-out loss during training, a panel a gamma with the others in grey behind."""
    columns = len(sweep.runs)
    figure, panels = plt.subplots(1, columns, figsize=(2.4 * columns, 3), sharey=True, layout="constrained")
    heldout = results.heldout[results.heldout["tokens"] > 0]
    curves = {run: heldout[heldout["run"] == run] for run in sweep.runs["run"]}
    for axes, run in zip(panels, sweep.runs.to_dict("records"), strict=True):
        for other in curves.values():
            axes.plot(other["tokens"], other["loss"], color="#bbbbbb", lw=0.8)
        own = curves[run["run"]]
        axes.plot(own["tokens"], own["loss"], color=gamma_color(run["gamma"]), lw=2.2)
        axes.set(xscale="log", xlabel="training tokens")
        axes.minorticks_off()  # they take most of the drawing
        axes.set_title(f"γ = {run['gamma']:g}\nlearning rate {run['peak_lr']:.2g}", fontsize=10)
    panels[0].set_ylabel("held-out loss\n(nats per token)")
    first = leader(sweep, results, 0.1)
    headline(
        figure,
        f"After a tenth of training γ = {first:g} leads, at the end γ = {sweep.lowest['gamma']:g} ({sweep})",
        "one panel a γ, the others in grey; one seed",
    )
    return figure


def leader(sweep: Sweep, results: Results, share: float) -> float:
    """The gamma with the lowest held-out loss at the first measurement after this share of the training tokens."""
    heldout = results.heldout[results.heldout["run"].isin(sweep.runs["run"])]
    late = heldout[heldout["tokens"] >= share * heldout["tokens"].max()]
    at = late[late["tokens"] == late["tokens"].min()].set_index("run")["loss"]
    return float(sweep.runs.set_index("run").loc[str(at.idxmin()), "gamma"])
