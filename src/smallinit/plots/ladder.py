"""Figures of the ladder: loss against size, the gain of small initialization, curves."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from smallinit.analysis.collect import Results
from smallinit.analysis.ladder import BASE, SMALL, Arms
from smallinit.analysis.needed import lacking
from smallinit.plots import nulls
from smallinit.plots.style import BLUE, gamma_color, headline, size_color

VARIANT_NAMES = {  # the variants of the ladder, in the order of panels
    "standard": "standard\n(matched ε, no gate)",
    "eps": "ε = 1e-12",
    "gate": "gate\n(matched ε)",
    "both": "both\n(ε = 1e-12 and gate)",
}
ASIDE = 1.06  # factor by which the marks of other seeds are moved to the right, beside the line's


def variant_name(variant: str) -> str:
    """What a variant changes, for a panel's title."""
    return VARIANT_NAMES.get(variant, variant)


def ladder_runs(results: Results) -> pd.DataFrame:
    """Runs of the ladder's variants at both gammas, or all runs if there is none of them.

    Adds `default`: whether a run has the first run's seed, which lines and comparisons are made of.
    """
    runs = results.runs.assign(default=results.runs["seed"] == results.runs["seed"].iloc[0])
    chosen = runs[runs["variant"].isin(VARIANT_NAMES) & runs["gamma"].isin((BASE, SMALL))]
    return runs if chosen.empty else chosen


def variants_of(runs: pd.DataFrame) -> list[str]:
    """Variants that there are, in the ladder's order."""
    there = list(runs["variant"].unique())
    return [variant for variant in VARIANT_NAMES if variant in there] or there


def missing(arms: Arms) -> str:
    """Which runs of the ladder are in no comparison, and what would bring them in; a sentence."""
    names = ", ".join(name for size in arms.sizes() for name in lacking(arms, size, list(VARIANT_NAMES)))
    if not names:
        return "Every run of the ladder is there."
    return f"In no comparison, because they diverged or are not in `runs` in `params.yaml`, where to add them: {names}."


def seeds_note(runs: pd.DataFrame) -> str:
    """How many seeds a figure shows, in words."""
    seeds = runs["seed"].nunique()
    return (
        "one seed" if seeds == 1 else f"lines: the first of {seeds} seeds; rings beside: the others; bars: means of all"
    )


def draw_losses(axes: Axes, runs: pd.DataFrame, variant: str) -> None:
    """Held-out loss against parameters for one variant, a line a gamma; a diverged run is a cross at the top."""
    runs = runs[runs["variant"] == variant]
    for gamma, arm in runs.groupby("gamma"):
        color, line = gamma_color(float(gamma)), arm[arm["default"]].sort_values("parameters")
        axes.plot(line["parameters"] / 1e6, line["loss"], marker="o", color=color, label=f"γ = {gamma:g}")
        others = arm[~arm["default"]]
        axes.plot(others["parameters"] * ASIDE / 1e6, others["loss"], "o", ms=4, mfc="none", mew=0.8, color=color)
        several = arm[arm["parameters"].isin(others["parameters"])].groupby("parameters")["loss"].mean()
        axes.plot(several.index * ASIDE**2 / 1e6, several, "_", ms=10, mew=1.5, color="black")
        for _, lost in arm[arm["diverged"]].iterrows():
            axes.plot(lost["parameters"] / 1e6, 0.97, "x", color=color, transform=axes.get_xaxis_transform())
    axes.set(xscale="log", xlabel="parameters (millions)", title=variant_name(variant))
    ticks = sorted(runs["parameters"].unique() / 1e6)
    axes.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
    axes.margins(x=0.15)
    if len(ticks) == 1:
        axes.set_xlim(ticks[0] / ASIDE**8, ticks[0] * ASIDE**8)  # else what stands beside seems to be of another size
    axes.minorticks_off()


def loss_against_size(results: Results) -> Figure:
    """One panel a variant, on a common scale."""
    runs = ladder_runs(results)
    variants = variants_of(runs)
    width = max(5.0, 2.75 * len(variants))
    figure, panels = plt.subplots(
        1, len(variants), figsize=(width, 3.4), sharey=True, layout="constrained", squeeze=False
    )
    for axes, variant in zip(panels[0], variants, strict=True):
        draw_losses(axes, runs, variant)
    panels[0][0].set_ylabel("held-out loss (nats per token)")
    panels[0][0].legend()
    return figure


def other_gains(runs: pd.DataFrame) -> pd.DataFrame:
    """Gain of gamma = 1 for each seed but the default one, columns variant, size, seed, gain."""
    others = runs[~runs["default"]].pivot(index=["variant", "size", "seed"], columns="gamma", values="loss")
    if not {BASE, SMALL} <= set(others.columns):
        return pd.DataFrame(columns=["variant", "size", "seed", "gain"])
    return (others[BASE] - others[SMALL]).rename("gain").dropna().reset_index()


def draw_gains(axes: Axes, gains: pd.DataFrame, others: pd.DataFrame) -> None:
    """Gain of gamma = 1 with its interval and null, a group a variant, sizes side by side; other seeds as rings."""
    variants, sizes = variants_of(gains), list(gains["size"].unique())
    width = 0.7 / len(sizes)
    for number, size in enumerate(sizes):
        of_size = gains[gains["size"] == size].set_index("variant").reindex(variants)
        place = np.arange(len(variants)) + (number - (len(sizes) - 1) / 2) * width
        shade = BLUE if len(sizes) == 1 else size_color(number, len(sizes))
        nulls.bars(axes, place, of_size["null"], 0.9 * width)
        value = of_size["gain"].astype(float)
        error = np.abs(of_size[["low", "high"]].astype(float).to_numpy().T - value.to_numpy())
        label = f"d = {of_size['d_model'].dropna().iloc[0]:g}"
        axes.errorbar(place, value, yerr=error, fmt="o", color=shade, capsize=3, label=label)
        seeds = others[(others["size"] == size) & others["variant"].isin(variants)]
        beside = place[[variants.index(variant) for variant in seeds["variant"]]] + 0.25 * width
        axes.plot(beside, seeds["gain"].astype(float), "o", ms=4, mfc="none", mew=0.8, color=shade)
    axes.axhline(0, color="black", lw=0.8)
    names = [variant_name(v).replace("\n", " ").replace(" (", "\n(").replace(" and ", "\nand ") for v in variants]
    axes.set_xticks(np.arange(len(variants)), names)
    axes.set_xlim(-0.6, len(variants) - 0.4)
    axes.set_ylabel("loss(γ = 0.5) − loss(γ = 1)\n(nats per token)")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def gain_figure(results: Results, gains: pd.DataFrame) -> Figure:
    """The gains alone."""
    runs = ladder_runs(results)
    figure, axes = plt.subplots(figsize=(10.5, 3.8), layout="constrained")
    draw_gains(axes, gains, other_gains(runs))
    low, high = axes.get_ylim()
    axes.axhspan(0, high, color=gamma_color(SMALL), alpha=0.06, lw=0)
    axes.set_ylim(low, high)
    rings = "" if runs["default"].all() else "; rings: other seeds"
    headline(
        figure,
        message(gains),
        f"red: small initialization wins; {nulls.note(gains['null'])}; bars: interval over held-out documents{rings}",
    )
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
    runs = ladder_runs(results)
    variants = variants_of(runs)
    gains = gains[gains["variant"].isin(variants)]  # the headline is about the ladder, whatever else was run
    outer = list(dict.fromkeys([variants[0], variants[-1]]))
    figure = plt.figure(figsize=(12, 3.7), layout="constrained")
    *panels, last = figure.subplots(1, len(outer) + 1, width_ratios=[*(1 for _ in outer), 2.2])
    shown = runs.loc[runs["variant"].isin(outer), "loss"]
    low, high = shown.min(), shown.max()
    for axes, variant in zip(panels, outer, strict=True):
        draw_losses(axes, runs, variant)
        if high > low:
            axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    panels[0].set_ylabel("held-out loss (nats per token)")
    panels[0].legend()
    draw_gains(last, gains, other_gains(runs))
    last.set_title("gain of γ = 1 (above zero: it wins)")
    tokens = runs["tokens"].max() / 1e6
    headline(
        figure,
        message(gains),
        f"{tokens:.1f} M training tokens a run, {seeds_note(runs)}; bars on gains: interval over held-out documents",
    )
    return figure


def curves(results: Results, size: str) -> Figure:
    """Held-out loss during training for all variants of one size, both gammas; seeds but the default one thin."""
    runs = ladder_runs(results)
    runs = runs[runs["size"] == size]
    variants = variants_of(runs)
    width = max(5.0, 2.75 * len(variants))
    figure, panels = plt.subplots(
        1, len(variants), figsize=(width, 3.2), sharey=True, layout="constrained", squeeze=False
    )
    for axes, variant in zip(panels[0], variants, strict=True):
        for _, run in runs[runs["variant"] == variant].iterrows():
            curve = results.heldout[(results.heldout["run"] == run["run"]) & (results.heldout["tokens"] > 0)]
            look = {"marker": "o", "ms": 3} if run["default"] else {"lw": 0.7, "alpha": 0.6}
            label = f"γ = {run['gamma']:g}" if run["default"] else None
            axes.plot(curve["tokens"], curve["loss"], color=gamma_color(run["gamma"]), label=label, **look)
        axes.set(xscale="log", xlabel="training tokens", title=variant_name(variant))
    panels[0][0].set_ylabel("held-out loss (nats per token)")
    panels[0][0].legend()
    return figure


def curves_message(results: Results, size: str) -> str:
    """How often the arm that leads after a tenth of training also leads at the end, for one size."""
    runs = ladder_runs(results)
    runs = runs[(runs["size"] == size) & runs["default"]]
    same = compared = 0
    for _, arms in runs.groupby("variant"):
        curves = results.heldout[results.heldout["run"].isin(arms["run"])].pivot(
            index="tokens", columns="run", values="loss"
        )
        curves = curves.dropna()
        if len(arms) != 2 or curves.shape[1] != 2 or curves.empty:
            continue
        early = curves[curves.index >= 0.1 * curves.index.max()].iloc[0]
        same, compared = same + (early.idxmin() == curves.iloc[-1].idxmin()), compared + 1
    if not compared:
        return f"Size {size}: no variant has both γ to its end"
    return f"Size {size}: the γ that leads after a tenth of training leads at the end in {same} of {compared} variants"
