"""Figures of the ladder: loss against size, the gain of small initialization, curves, attention sink and gate."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from smallinit.analysis.collect import Results
from smallinit.plots.style import BLUE, GREEN, ORANGE, OTHER, PURPLE, gamma_color, headline

VARIANT_NAMES = {
    "standard": "standard\n(matched ε, no gate)",
    "eps": "ε = 1e-12",
    "gate": "gate\n(matched ε)",
    "both": "both\n(ε = 1e-12 and gate)",
}
VARIANT_COLORS = {"standard": OTHER, "eps": GREEN, "gate": ORANGE, "both": PURPLE}


def variant_name(variant: str) -> str:
    """What a variant changes, for a panel's title."""
    return VARIANT_NAMES.get(variant, variant)


def seeds_note(runs: pd.DataFrame) -> str:
    """How many seeds a figure shows, in words."""
    seeds = runs["seed"].nunique()
    return "one seed" if seeds == 1 else f"{seeds} seeds"


def draw_losses(axes: Axes, runs: pd.DataFrame, variant: str) -> None:
    """Held-out loss against parameters for one variant, a line a gamma; a diverged run is a cross at the top."""
    for gamma, arm in runs[runs["variant"] == variant].groupby("gamma"):
        color = gamma_color(float(gamma))
        arm = arm.sort_values("parameters")
        axes.plot(arm["parameters"] / 1e6, arm["loss"], marker="o", color=color, label=f"γ = {gamma:g}")
        for _, lost in arm[arm["diverged"]].iterrows():
            axes.plot(lost["parameters"] / 1e6, 0.97, "x", color=color, transform=axes.get_xaxis_transform())
    axes.set(xscale="log", xlabel="parameters (millions)", title=variant_name(variant))
    ticks = sorted(runs.loc[runs["variant"] == variant, "parameters"].unique() / 1e6)
    axes.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
    axes.margins(x=0.15)
    axes.minorticks_off()


def loss_against_size(results: Results) -> Figure:
    """One panel a variant, on a common scale."""
    variants = list(results.runs["variant"].unique())
    figure, panels = plt.subplots(1, len(variants), figsize=(11, 3.4), sharey=True, layout="constrained", squeeze=False)
    for axes, variant in zip(panels[0], variants, strict=True):
        draw_losses(axes, results.runs, variant)
    panels[0][0].set_ylabel("held-out loss (nats per token)")
    panels[0][0].legend()
    return figure


def draw_gains(axes: Axes, gains: pd.DataFrame) -> None:
    """Gain of gamma = 1 with its interval, a group a variant, sizes side by side."""
    variants, sizes = list(gains["variant"].unique()), list(gains["size"].unique())
    width = 0.7 / len(sizes)
    for number, size in enumerate(sizes):
        of_size = gains[gains["size"] == size].set_index("variant").reindex(variants)
        place = np.arange(len(variants)) + (number - (len(sizes) - 1) / 2) * width
        shade = BLUE if len(sizes) == 1 else plt.get_cmap("cividis")(0.15 + 0.7 * number / (len(sizes) - 1))
        value = of_size["gain"].astype(float)
        error = np.abs(of_size[["low", "high"]].astype(float).to_numpy().T - value.to_numpy())
        label = f"d = {of_size['d_model'].dropna().iloc[0]:g}"
        axes.errorbar(place, value, yerr=error, fmt="o", color=shade, capsize=3, label=label)
    axes.axhline(0, color="black", lw=0.8)
    axes.set_xticks(
        np.arange(len(variants)), [variant_name(v).replace("\n", " ").replace(" (", "\n(") for v in variants]
    )
    axes.set_xlim(-0.6, len(variants) - 0.4)
    axes.set_ylabel("loss(γ = 0.5) − loss(γ = 1)\n(nats per token)")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def gain_figure(gains: pd.DataFrame) -> Figure:
    """The gains alone."""
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    draw_gains(axes, gains)
    axes.set_title("above zero: small initialization wins; bars: interval over held-out documents")
    return figure


def message(gains: pd.DataFrame) -> str:
    """What the gains say, in one sentence."""
    known = gains.dropna(subset=["gain"])
    if known.empty:
        return "No comparison could be made: in each pair a run diverged or is missing"
    wins, losses = int((known["low"] > 0).sum()), int((known["high"] < 0).sum())
    best = known.loc[known["gain"].idxmax()]
    return (
        f"γ = 1 has the lower loss in {wins} of {len(known)} comparisons, the higher in {losses}; "
        f"largest gain {best['gain']:+.2f} nats ({best['variant']}, d = {best['d_model']})"
    )


def headline_figure(results: Results, gains: pd.DataFrame) -> Figure:
    """Loss against size for the outer variants, and the gain of gamma = 1 everywhere."""
    variants = list(results.runs["variant"].unique())
    outer = list(dict.fromkeys([variants[0], variants[-1]]))
    figure = plt.figure(figsize=(12, 3.7), layout="constrained")
    *panels, last = figure.subplots(1, len(outer) + 1, width_ratios=[*(1 for _ in outer), 2.2])
    low, high = results.runs["loss"].min(), results.runs["loss"].max()
    for axes, variant in zip(panels, outer, strict=True):
        draw_losses(axes, results.runs, variant)
        axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    panels[0].set_ylabel("held-out loss (nats per token)")
    panels[0].legend()
    draw_gains(last, gains)
    last.set_title("gain of γ = 1 (above zero: it wins)")
    tokens = results.runs["tokens"].max() / 1e6
    headline(
        figure,
        message(gains),
        f"{tokens:.1f} M training tokens a run, {seeds_note(results.runs)}; bars: interval over held-out documents",
    )
    return figure


def curves(results: Results, size: str) -> Figure:
    """Held-out loss during training for all variants of one size, both gammas."""
    runs = results.runs[results.runs["size"] == size]
    variants = list(runs["variant"].unique())
    figure, panels = plt.subplots(1, len(variants), figsize=(11, 3.2), sharey=True, layout="constrained", squeeze=False)
    for axes, variant in zip(panels[0], variants, strict=True):
        for _, run in runs[runs["variant"] == variant].iterrows():
            curve = results.heldout[(results.heldout["run"] == run["run"]) & (results.heldout["tokens"] > 0)]
            axes.plot(
                curve["tokens"],
                curve["loss"],
                marker="o",
                ms=3,
                color=gamma_color(run["gamma"]),
                label=f"γ = {run['gamma']:g}",
            )
        axes.set(xscale="log", xlabel="training tokens", title=variant_name(variant))
    panels[0][0].set_ylabel("held-out loss (nats per token)")
    panels[0][0].legend()
    return figure


def sink_and_gate(results: Results, uniform: float) -> Figure:
    """Attention sink by variant and gamma (left), mean gate by layer (right); all sizes pooled as points."""
    attention = results.attention.merge(results.runs[["run", "size", "gamma", "variant", "d_model"]], on="run")
    variants = list(results.runs["variant"].unique())
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 3.6), layout="constrained", width_ratios=[1.7, 1])
    means = attention.groupby(["variant", "gamma", "d_model", "layer"])["sink"].mean().reset_index()
    gammas = sorted(means["gamma"].unique())
    for number, gamma in enumerate(gammas):
        offset = (number - (len(gammas) - 1) / 2) * 0.3
        for place, variant in enumerate(variants):
            layers = means[(means["gamma"] == gamma) & (means["variant"] == variant)]
            color = gamma_color(gamma)
            left.plot(np.full(len(layers), place + offset), layers["sink"], "o", ms=4, alpha=0.45, color=color)
            left.plot(
                place + offset,
                layers["sink"].mean(),
                "_",
                ms=26,
                mew=3,
                color=color,
                label=f"γ = {gamma:g}" if place == 0 else None,
            )
    left.axhline(uniform, color="black", ls=":", lw=1, label="uniform attention")
    left.set_xticks(range(len(variants)), [variant_name(v) for v in variants])
    left.set(yscale="log", ylabel="attention to the first token", title="sink: points are layers, bars their mean")
    left.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    gates = attention.dropna(subset=["gate"]).groupby(["gamma", "variant", "layer"])["gate"].mean().reset_index()
    for (gamma, variant), group in gates.groupby(["gamma", "variant"]):
        style = "-" if variant == "both" else "--"
        right.plot(
            group["layer"] + 1,
            group["gate"],
            style,
            marker="o",
            color=gamma_color(float(gamma)),
            label=f"γ = {gamma:g}, {variant}",
        )
    right.set(xlabel="layer", ylabel="mean gate", ylim=(0, 1), title="gate: 0.5 at the start, 0 shuts a head")
    right.set_xticks(sorted(gates["layer"].unique() + 1))
    right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    above = int((means["sink"] > uniform).sum())
    message = f"{above} of {len(means)} layers attend to the first token more than uniform attention would"
    headline(
        figure, message, f"{seeds_note(results.runs)}; mean over heads and over queries in the second half of a window"
    )
    return figure
