"""Figures of the token level: the gap by difficulty beside its null, the trap of one-sided bins, languages, sources."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from smallinit.analysis.token_pairs import ends
from smallinit.analysis.tokens import MEDIUM_TO_HARD
from smallinit.plots.style import (
    BLUE,
    GREEN,
    LANGUAGE_COLORS,
    LANGUAGE_NAMES,
    OTHER,
    RED,
    gamma_color,
    headline,
    size_color,
)

INK = "#222222"
MEASURES = {"gap": "Δ, mean over tokens", "gain": "gain (nats per token)", "relative": "gain / loss"}
DIFFICULTY = "tokens from easy to hard (percentile)"


def bars(rows: pd.DataFrame, measure: str) -> np.ndarray:
    """Lengths of error bars below and above, (2, rows); not a number where there is no interval."""
    lengths: np.ndarray = np.abs(rows[[f"{measure}_low", f"{measure}_high"]].to_numpy().T - rows[measure].to_numpy())
    return lengths


def draw_levels(axes: Axes) -> None:
    """Shade what the claim calls medium to hard, and mark zero."""
    axes.axvspan(*(100 * edge for edge in MEDIUM_TO_HARD), color=OTHER, alpha=0.1, lw=0)
    axes.axhline(0, color="black", lw=0.8)
    axes.set(xlim=(0, 100), xlabel=DIFFICULTY)


def draw_profile(axes: Axes, profile: pd.DataFrame, measure: str) -> None:
    """One measure by difficulty: gammas of the first seed with intervals, other seeds thin, nulls dotted."""
    draw_levels(axes)
    first = profile.loc[profile["null"].isna(), "seed"].iloc[0]
    for _, rows in profile.groupby(["base", "small"], sort=False):
        null, seed = rows["null"].iloc[0], rows["seed"].iloc[0]
        share, value = 100 * rows["share"], rows[measure]
        if not pd.isna(null):
            label = f"null: two seeds of γ = {null:g}"
            axes.plot(share, value, ":", lw=1.6, color=gamma_color(null), label=label)
        elif seed != first:
            axes.plot(share, value, lw=0.9, color=OTHER, label="the same, another seed")
        else:
            axes.plot(share, value, marker="o", ms=4, color=INK, label="γ = 1 against γ = 0.5")
            if f"{measure}_low" in rows:
                axes.errorbar(share, value, yerr=bars(rows, measure), fmt="none", color=INK, capsize=2, lw=1)


def mark_sides(axes: Axes) -> None:
    """Which side of zero speaks for which gamma, beside the panel; both sides are always in view."""
    low, high = axes.get_ylim()
    reach = max(abs(low), abs(high))
    axes.set_ylim(min(low, -0.3 * reach), max(high, 0.3 * reach))
    for place, side, text, color in ((1, "top", "γ = 1 better", RED), (0, "bottom", "γ = 0.5 better", BLUE)):
        axes.text(1.01, place, text, color=color, fontsize=8, rotation=90, va=side, transform=axes.transAxes)


def by_difficulty(profile: pd.DataFrame) -> Figure:
    """A row a size, the smallest and the largest, a column a measure, of the pairs of one variant.

    Args:
        profile: as `token_pairs.of_pairs` stacks it.
    """
    sizes = ends(profile["size"])
    figure, panels = plt.subplots(
        len(sizes), 3, figsize=(11, 2.8 * len(sizes)), layout="constrained", sharex=True, squeeze=False
    )
    for row, size in zip(panels, sizes, strict=True):
        for axes, (measure, label) in zip(row, MEASURES.items(), strict=True):
            draw_profile(axes, profile[profile["size"] == size], measure)
            mark_sides(axes)
            axes.set(ylabel=label, xlabel=DIFFICULTY if size == sizes[-1] else "", title=f"size {size}")
    lines = [line for axes in panels[:, 0] for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    named = {str(line.get_label()): line for line in lines}  # each name once
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=len(named))
    return figure


def message(levels: pd.DataFrame, variant: str) -> str:
    """Where the gap is largest at each size, first seed; `levels` as `tokens.levels` of all pairs, stacked."""
    rows = levels[(levels["variant"] == variant) & levels["null"].isna() & (levels["level"] != "all")]
    first = rows.groupby("size")["seed"].transform("first")
    best = rows[rows["seed"] == first].sort_values("gap").groupby("size").last()["level"]
    order = best.loc[rows["size"].unique()]
    peaks = [f"{level} tokens at size {', '.join(own.index)}" for level, own in order.groupby(order, sort=False)]
    return f"{variant}: Δ is largest among the {', the '.join(peaks)}"


def note(levels: pd.DataFrame, variant: str) -> str:
    """What a figure of this variant is made from."""
    rows = levels[(levels["variant"] == variant) & (levels["level"] == "all")]
    sizes = list(rows["size"].unique())
    missing = [size for size in sizes if rows.loc[rows["size"] == size, "null"].isna().all()]
    between = [size for size in sizes if size not in ends(sizes)]
    low, high = MEDIUM_TO_HARD
    text = f"bars: interval over {rows['documents'].iloc[0]} documents; shaded: medium to hard, {low:.0%} to {high:.0%}"
    text += f"; no second seed and hence no null at size {', '.join(missing)}" if missing else ""
    return text + (f"; sizes between, {', '.join(between)}: in the table" if between else "")


def trap(panels: dict[str, tuple[pd.DataFrame, pd.DataFrame]]) -> Figure:
    """Two models that do not differ, binned by one of them and by both; a panel a pair: (by one, by both)."""
    figure, axes = plt.subplots(
        1, len(panels), figsize=(5.6 * len(panels), 3.4), layout="constrained", sharey=True, squeeze=False
    )
    for place, (title, (one, both)) in zip(axes[0], panels.items(), strict=True):
        place.axhline(0, color="black", lw=0.8)
        for table, color, marker, label in (
            (one, GREEN, "o", "by the loss of the first alone"),
            (both, INK, "s", "by the mean loss of both"),
        ):
            share, error = 100 * table["share"], bars(table, "gain")
            place.errorbar(share, table["gain"], yerr=error, color=color, marker=marker, ms=4, capsize=2, label=label)
        place.set(xlim=(0, 100), xlabel=DIFFICULTY, title=title)
    axes[0][0].set_ylabel("“gain” of the second\n(nats per token)")
    axes[0][0].legend(title="sorted", alignment="left", title_fontsize=9)
    title, (one, both) = next(iter(panels.items()))
    headline(
        figure,
        f"Sorted by one model, equals seem to differ by {one['gain'].abs().max():.2f} nats",
        f"{title}, largest mean of a bin; by both: {both['gain'].abs().max():.2f} nats; bars: interval over documents",
    )
    return figure


def draw_sources(axes: Axes, sources: pd.DataFrame) -> None:
    """Mean gap of each source with its interval, sizes side by side; an open marker has no interval."""
    names = list(sources.groupby("source")["gap"].mean().sort_values().index)
    sizes = list(sources["size"].unique())
    for number, size in enumerate(sizes):
        rows = sources[sources["size"] == size].set_index("source").loc[names]
        place = np.arange(len(names)) + (number - (len(sizes) - 1) / 2) * 0.6 / len(sizes)
        known = rows["gap_low"].notna().to_numpy()
        shade = size_color(number, len(sizes))
        error = bars(rows, "gap")
        gap = rows["gap"].to_numpy()
        axes.errorbar(
            gap[known], place[known], xerr=error[:, known], fmt="o", ms=5, color=shade, capsize=2, label=f"size {size}"
        )
        axes.plot(gap[~known], place[~known], "o", mfc="white", color=shade)
    axes.set_yticks(
        np.arange(len(names)),
        [f"{name} ({sources.set_index('source').loc[[name], 'documents'].iloc[0]})" for name in names],
    )
    axes.axvline(0, color="black", lw=0.8)
    axes.set(xlabel=MEASURES["gap"], title="by source (documents); open: no interval")
    axes.margins(x=0.1)
    axes.locator_params(axis="x", nbins=5)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def by_text(languages: pd.DataFrame, sources: pd.DataFrame) -> Figure:
    """The gap by difficulty for each language, a panel a size, and by source, all sizes in one panel.

    Both tables are as `token_pairs.of_pairs` stacks them; `languages` may have fewer sizes.
    """
    sizes = list(languages["size"].unique())
    figure, panels = plt.subplots(
        1,
        len(sizes) + 1,
        figsize=(3.6 * len(sizes) + 5.5, 3.5),
        layout="constrained",
        width_ratios=[*[1] * len(sizes), 1.2],
    )
    for axes, size in zip(panels, sizes, strict=False):
        draw_levels(axes)
        for language, rows in languages[languages["size"] == size].groupby("language"):
            axes.errorbar(
                100 * rows["share"],
                rows["gap"],
                yerr=bars(rows, "gap"),
                marker="o",
                ms=4,
                capsize=2,
                color=LANGUAGE_COLORS.get(str(language), OTHER),
                label=LANGUAGE_NAMES.get(str(language), str(language)),
            )
        axes.set(title=f"size {size}", ylabel=MEASURES["gap"] if axes is panels[0] else "")
    panels[0].legend()
    draw_sources(panels[-1], sources)
    known = sources.dropna(subset=["gap_low"])
    ordered = (sources if known.empty else known).sort_values("gap")
    worst, best = ordered.iloc[0], ordered.iloc[-1]
    headline(
        figure,
        f"By source Δ goes from {worst['gap']:+.3f} ({worst['source']}, {worst['size']}) to "
        f"{best['gap']:+.3f} ({best['source']}, {best['size']})",
        "percentiles within each language; bars: interval over documents, one seed",
    )
    return figure
