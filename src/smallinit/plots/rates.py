"""Figures of the pilot: loss against learning rate, best rate against width, gains at one rate, batch and rate."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator

from smallinit.analysis.ladder import BASE, SMALL
from smallinit.analysis.rates import FLAT, at_main_batch, flips, main_batch
from smallinit.plots import nulls
from smallinit.plots.ladder import variant_name
from smallinit.plots.style import GREEN, INDIGO, ORANGE, OTHER, PURPLE, gamma_color, headline

NATS = "(nats per token)"
# A panel's variant, drawn at every gamma, and with it (dashed) those with the same gate.
PANELS = {"eps": ("standard", "gpt2"), "both": ("gate",)}
DASHES = {"standard": "--", "gate": "--", "gpt2": ":"}
# Colours and marks where a variant is a line, not those of the gammas that are compared.
VARIANT_LOOKS = {"standard": (ORANGE, "v"), "eps": (GREEN, "s"), "gate": (PURPLE, "^"), "both": (INDIGO, "o")}
LOSSES = plt.get_cmap("viridis_r")
ONE_SEED = "one seed a trial"


def rate_axis(axes: Axes, rates: Sequence[float]) -> None:
    """A logarithmic axis of peak learning rates with a tick at each rate tried."""
    ticks = sorted(set(rates))
    axes.set(xscale="log", xlabel="peak learning rate")
    axes.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks], rotation=45)
    axes.minorticks_off()
    axes.margins(x=0.08)


def one_line(variant: str) -> str:
    """What a variant changes, without a break."""
    return variant_name(variant).replace("\n", " ")


def span(values: Sequence[float], form: str) -> str:
    """The least and the greatest of some values, one number if they look alike."""
    return " to ".join(dict.fromkeys(f"{each:{form}}" for each in (min(values), max(values))))


# ----------------------------------------------------------------------------------------------------- loss and rate
def message(best: pd.DataFrame) -> str:
    """How the best rates of gamma = 1 and of gamma = 0.5 compare, and their losses; none at an end. A sentence."""
    known = best[~best["at_end"]]
    base, small = (known[known["gamma"] == gamma] for gamma in (BASE, SMALL))
    both = base.merge(small, on=["size", "variant", "batch_tokens"], suffixes=("_base", "_small"))
    if both.empty:
        return "Every arm has a learning rate of its own"
    ratios, gains = both["rate_small"] / both["rate_base"], both["loss_base"] - both["loss_small"]
    return (
        f"The best rate of γ = {SMALL:g} is {span(ratios, '.2f')} times that of γ = {BASE:g}; "
        f"each at its own, its gain is {span(gains, '+.2f')} nats"
    )


def loss_limits(trials: pd.DataFrame, best: pd.DataFrame) -> tuple[float, float]:
    """Limits of the loss axis: each arm's lowest loss and most arms' neighbours of it fit, not all that lies above."""
    tops = []
    for _, arm in trials.dropna(subset="loss").groupby(["gamma", "variant"]):
        losses = arm.sort_values("peak_lr")["loss"].to_numpy()
        lowest = int(np.argmin(losses))
        tops.append(losses[max(lowest - 1, 0) : lowest + 2].max())
    low = best["loss"].min()
    return low, max(best["loss"].max() + 2 * FLAT, float(np.median(tops)), low + 5 * FLAT)


def draw_arm(axes: Axes, arm: pd.DataFrame, best: pd.Series, top: float, line: str, label: str) -> None:
    """One arm's trials and its lowest point; losses above `top` are arrows there, diverged trials crosses."""
    color, arm = gamma_color(float(best["gamma"])), arm.sort_values("peak_lr")
    seen = arm["loss"] <= top
    axes.plot(arm["peak_lr"], arm["loss"], line, color=color, lw=1.3, alpha=0.6)
    if not best["at_end"]:
        near = np.linspace(-0.8, 0.8)  # doublings
        axes.plot(best["rate"] * 2**near, best["loss"] + best["curvature"] * near**2, color=color, lw=0.9)
    axes.plot(arm["peak_lr"][seen], arm["loss"][seen], "o", ms=4, color=color)
    for mark, rates in (("^", arm.loc[arm["loss"] > top, "peak_lr"]), ("x", arm.loc[arm["loss"].isna(), "peak_lr"])):
        axes.plot(rates, [0.97] * len(rates), mark, ms=6, color=color, transform=axes.get_xaxis_transform())
    hollow = "white" if best["at_end"] else color
    axes.plot(best["rate"], best["loss"], "D", ms=8, mfc=hollow, mec="black" if not best["at_end"] else color)
    axes.plot([], [], line, marker="D", ms=6, color=color, label=label)


def loss_against_rate(trials: pd.DataFrame, best: pd.DataFrame) -> Figure:
    """The main figure: a row a size, a column a variant, a line a gamma, at the batch size that most arms have.

    Args:
        trials: of `rates.read`.
        best: of `rates.best_table`.
    """
    batch = main_batch(best)
    trials, best = trials[trials["batch_tokens"] == batch], best[best["batch_tokens"] == batch]
    there = set(best["variant"])
    columns = {key: more for key, more in PANELS.items() if key in there} or {each: () for each in sorted(there)}
    widths = best.sort_values("d_model", kind="stable").groupby("size", sort=False)["d_model"].first()
    rows, wide = len(widths), 5 * len(columns) + 2
    figure, panels = plt.subplots(
        rows,
        len(columns),
        figsize=(wide, 3.2 * rows + 0.5),
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for line, (size, width) in zip(panels, widths.items(), strict=True):
        own, lowest = trials[trials["size"] == size], best[best["size"] == size]
        low, top = loss_limits(own, lowest)
        for axes, (variant, more) in zip(line, columns.items(), strict=True):
            draw_panel(axes, own, lowest, (variant, *more), top)
            rate_axis(axes, trials["peak_lr"])
            axes.set_ylim(low - 0.08 * (top - low), top + 0.06 * (top - low))
            axes.set_title(f"{one_line(variant)}, d = {width}")
        line[0].set_ylabel(f"held-out loss {NATS}")
    for axes in panels.flat:
        axes.label_outer()
    handles = {
        label: line for axes in panels.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    order = sorted(handles, key=lambda label: ("," in label, label))
    panels[0][-1].legend([handles[label] for label in order], order, loc="upper left", bbox_to_anchor=(1, 1))
    marks = "diamond: lowest point of a parabola (hollow: at an end); triangle: higher up; ×: diverged"
    headline(figure, message(best), f"{batch:,} tokens a step; {marks}; {ONE_SEED}")
    return figure


def draw_panel(axes: Axes, trials: pd.DataFrame, best: pd.DataFrame, variants: Sequence[str], top: float) -> None:
    """All arms of some variants at one size, the first one's lines solid."""
    for number, variant in enumerate(variants):
        for _, row in best[(best["variant"] == variant)].sort_values("gamma").iterrows():
            arm = trials[(trials["variant"] == variant) & (trials["gamma"] == row["gamma"])]
            label = f"γ = {row['gamma']:g}" + (f", {variant}" if number else "")
            draw_arm(axes, arm, row, top, DASHES.get(variant, "-") if number else "-", label)


# ---------------------------------------------------------------------------------------------------- rate and width
def rate_against_width(best: pd.DataFrame, powers: pd.DataFrame, widths: Sequence[int]) -> Figure:
    """Best rate against width, a panel a variant, with the power law of each gamma drawn over `widths`.

    Args:
        best: of `rates.best_table`.
        powers: of `rates.powers`.
        widths: that the law is wanted for.
    """
    best = at_main_batch(best)
    there = set(powers["variant"])
    variants = [name for name in VARIANT_LOOKS if name in there] + sorted(there - set(VARIANT_LOOKS))
    figure, panels = plt.subplots(
        1, len(variants), figsize=(3.2 * len(variants) + 1, 4.4), sharey=True, squeeze=False, layout="constrained"
    )
    ticks = sorted({*widths, *best["d_model"]})
    for axes, variant in zip(panels[0], variants, strict=True):
        laws = powers[powers["variant"] == variant].sort_values("gamma").to_dict("records")
        for number, law in enumerate(laws):
            own = best[(best["variant"] == variant) & (best["gamma"] == law["gamma"])]
            draw_law(axes, own, law, widths, aside=1.02 ** (number - (len(laws) - 1) / 2))
        axes.set(xscale="log", yscale="log", xlabel="width d", title=variant_name(variant))
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.xaxis.minorticks_off()
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18))
    panels[0][0].set_ylabel("best peak learning rate")
    panels[0][0].yaxis.set(major_locator=FixedLocator([1e-3 * 2.0**k for k in range(-7, 8)]), major_formatter="{x:.2g}")
    panels[0][0].yaxis.minorticks_off()
    parts = "; ".join(
        f"γ = {gamma:g}: power {span(group, '+.2f')}"
        for gamma, group in powers[powers["gamma"].isin((BASE, SMALL))].groupby("gamma")["power"]
    )
    marks = f"bar: rates within {FLAT:g} nats of the lowest loss; line: power law; hollow: at an end"
    headline(figure, f"Best rate against width, {parts}".removesuffix(", "), f"{marks}; {ONE_SEED}")
    return figure


def draw_law(axes: Axes, own: pd.DataFrame, law: dict[str, Any], widths: Sequence[int], aside: float) -> None:
    """Best rates of one arm, by a factor aside so that bars of two gammas do not hide each other, and its power law."""
    color = gamma_color(law["gamma"])
    bars = np.abs(own[["low", "high"]].to_numpy(float).T - own["rate"].to_numpy(float))
    axes.errorbar(own["d_model"] * aside, own["rate"], yerr=bars, fmt="none", ecolor=color, capsize=3, lw=1)
    for row in own.to_dict("records"):
        axes.plot(row["d_model"] * aside, row["rate"], "D", ms=6, color=color, mfc="white" if row["at_end"] else color)
    at = np.array(sorted({*widths, law["d_small"], law["d_large"]}))
    bounds = "at an end" if law["at_end"] else f"{law['low']:+.2f} to {law['high']:+.2f}"
    label = f"γ = {law['gamma']:g}: power {law['power']:+.2f} ({bounds})"
    axes.plot(at * aside, law["rate_small"] * (at / law["d_small"]) ** law["power"], color=color, lw=1.3, label=label)


# ---------------------------------------------------------------------------------------------------------- one rate
def gain_at_one_rate(fixed: pd.DataFrame, null: float | None = None) -> Figure:
    """Gain of gamma = 1 at one rate for both against that rate, a panel a size; dashed: each gamma at its own rate.

    Args:
        fixed: of `rates.at_fixed`; drawn are gamma = 1 and the batch size that most rows have.
        null: how far two seeds of one arm differ (nats per token), a band around zero; None: not known.
    """
    fixed = at_main_batch(fixed)
    fixed = fixed[fixed["gamma"] == SMALL]
    sizes = list(fixed["size"].unique())
    figure, panels = plt.subplots(
        1, len(sizes), figsize=(4.6 * len(sizes) + 2.2, 3.8), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, size in zip(panels[0], sizes, strict=True):
        axes.axhline(0, color="black", lw=0.8)
        if null is not None:
            nulls.band(axes, null)
        for variant, own in fixed[fixed["size"] == size].groupby("variant", sort=False):
            draw_gains(axes, own, str(variant))
        rate_axis(axes, fixed["peak_lr"])
        axes.set_title(f"size {size}")
    values = np.array([*fixed.loc[np.isfinite(fixed["gain"]), "gain"], *fixed["tuned"].dropna(), 0.0])
    room = 0.15 * max(np.ptp(values), 5 * FLAT)
    panels[0][0].set_ylim(values.min() - room, values.max() + room)
    panels[0][0].set_ylabel(f"loss of γ = {BASE:g} − loss of γ = {SMALL:g}\n{NATS}")
    panels[0][-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    turned, pairs = flips(fixed, null)
    luck = nulls.MEANING if null is not None else ONE_SEED
    headline(
        figure,
        f"Which γ wins at one rate for both turns with that rate in {turned} of {pairs} comparisons",
        f"above zero: γ = {SMALL:g} wins; dashed: each γ at its own rate; at the edge: one of the two diverged; {luck}",
    )
    return figure


def draw_gains(axes: Axes, own: pd.DataFrame, variant: str) -> None:
    """One comparison over rates; where one of the two diverged, a triangle at the edge towards the winner."""
    color, mark = VARIANT_LOOKS.get(variant, (OTHER, "D"))
    finite = own[np.isfinite(own["gain"])]
    axes.plot(finite["peak_lr"], finite["gain"], marker=mark, ms=5, color=color, label=one_line(variant))
    axes.axhline(own["tuned"].iloc[0], ls="--", lw=1.3, color=color)
    for row in own[np.isinf(own["gain"])].to_dict("records"):
        place, edge = (0.97, "^") if row["gain"] > 0 else (0.03, "v")
        axes.plot(row["peak_lr"], place, edge, ms=7, color=color, transform=axes.get_xaxis_transform())


# ---------------------------------------------------------------------------------------------------- batch and rate
def batch_and_rate(table: pd.DataFrame) -> Figure:
    """Loss on batch x rate, a panel an arm, all in one colour scale; the best rate of each batch size framed.

    Args:
        table: of `rates.batch_map`.
    """
    arms = list(table.groupby(["size", "variant", "gamma"], sort=False))
    batches, rates = sorted(table["batch_tokens"].unique()), sorted(table["peak_lr"].unique())
    size = 0.75 * len(rates) * len(arms) + 2.6, 0.55 * len(batches) + 1.6
    figure, panels = plt.subplots(1, len(arms), figsize=size, sharey=True, squeeze=False, layout="constrained")
    low = table["loss"].min()
    scale = Normalize(low, low + max(np.nanquantile(table["loss"] - low, 0.75), FLAT))
    for axes, ((size_name, variant, gamma), arm) in zip(panels[0], arms, strict=True):
        draw_map(axes, arm, batches, rates, scale)
        axes.set_title(f"γ = {gamma:g} ({size_name}, {variant})")
    panels[0][0].set_ylabel("tokens a step")
    bar = ScalarMappable(scale, LOSSES)
    figure.colorbar(bar, ax=panels[0], label=f"held-out loss\n{NATS}", extend="max")
    parts = []
    for gamma, own in table[table["best"]].sort_values("batch_tokens").groupby("gamma"):
        parts.append(f"γ = {gamma:g} from {own['peak_lr'].iloc[0]:.2g} to {own['peak_lr'].iloc[-1]:.2g}")
    headline(
        figure,
        f"From {batches[0]:,} to {batches[-1]:,} tokens a step the best rate goes: {', '.join(parts)}",
        f"frame: lowest loss of a batch size; the same tokens, so fewer steps in larger batches; {ONE_SEED}",
    )
    return figure


def draw_map(axes: Axes, arm: pd.DataFrame, batches: list[int], rates: list[float], scale: Normalize) -> None:
    """The map of one arm: a cell a trial with its loss, white where none was made."""
    grid = arm.pivot(index="batch_tokens", columns="peak_lr", values="loss").reindex(index=batches, columns=rates)
    axes.imshow(grid, cmap=LOSSES, norm=scale, aspect="auto", origin="lower")
    for row in arm.to_dict("records"):
        x, y = rates.index(row["peak_lr"]), batches.index(row["batch_tokens"])
        words = "lost" if np.isnan(row["loss"]) else f"{row['loss']:.2f}"
        color = "white" if scale(row["loss"]) > 0.6 else "black"
        axes.text(x, y, words, ha="center", va="center", fontsize=8.5, color=color)
        if row["best"]:
            axes.add_patch(
                Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, fill=False, lw=2.5, ec=gamma_color(row["gamma"]))
            )
    axes.set_xticks(range(len(rates)), [f"{rate:.2g}" for rate in rates], rotation=45)
    axes.set_yticks(range(len(batches)), [f"{batch:,}" for batch in batches])
    axes.set_xlabel("peak learning rate")
    axes.grid(False)
