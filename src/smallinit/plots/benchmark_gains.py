"""Figures that compare two gammas on benchmarks: gains by task, accuracy beside chance, arithmetic by level."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from smallinit.analysis.answers import MEASURES
from smallinit.analysis.benchmarks import KINDS
from smallinit.analysis.ladder import BASE, SMALL
from smallinit.plots.style import LANGUAGE_NAMES, OTHER, gamma_color, headline, size_color
from smallinit.plots.tokens import bars

INK = "#222222"
USUAL, WIDER = 0.8, 1.5  # an axis reaches 1.5 times as far as four of five gains with their intervals
MARKS = {
    "accuracy": ("o", INK, "plain"),
    "accuracy_norm": ("o", "white", "per byte"),
    "exact": ("D", INK, "exact match"),
}


def ordered(frame: pd.DataFrame) -> list[str]:
    """Tasks of the figure from top to bottom: kind by kind, in the order of the manifest."""
    return [task for kind in KINDS for task in frame.loc[frame["kind"] == kind, "task"].unique()]


def draw_gains(axes: Axes, rows: pd.DataFrame, tasks: list[str], mark: tuple[str, str, str], shift: float) -> None:
    """Gains of one measure with intervals; grey: as far as two seeds of one gamma differ; rings: other seeds."""
    own = rows[rows["claimed"]]
    place = np.array([tasks.index(task) for task in own["task"]]) + shift
    axes.barh(place, 2 * own["null_reach"], left=-own["null_reach"], height=0.22, color=OTHER, alpha=0.3, lw=0)
    axes.use_sticky_edges = False  # else grey bars end at the frame
    shape, face, label = mark
    known = own["gain_low"].notna().to_numpy()
    axes.errorbar(
        own["gain"][known], place[known], xerr=bars(own[known], "gain"), fmt="none", color=INK, capsize=2, lw=1
    )
    axes.plot(own["gain"], place, shape, ms=5, mfc=face, mec=INK, label=label)
    others = rows[~rows["claimed"] & rows["null"].isna()]
    axes.plot(
        others["gain"],
        [tasks.index(task) + shift for task in others["task"]],
        "o",
        ms=3.5,
        mfc="none",
        mec=INK,
        mew=0.5,
    )


def window(rows: pd.DataFrame) -> float:
    """How far to each side an axis of gains and their intervals reaches; the few that go far beyond are left out.

    Else one task would squeeze all others. How far its seeds differ has no say. rows: claimed, of one measure.
    """
    ends = rows[["gain", "gain_low", "gain_high"]].abs().max(axis=1)
    usual, most = WIDER * ends.quantile(USUAL, interpolation="lower"), ends.max()
    reach = float(most if most < 2 * usual else usual)
    return 1.1 * reach or 1.0


def clip(axes: Axes, own: pd.DataFrame, tasks: list[str]) -> bool:
    """Narrow an axis to its `window` and say at its edges how far what lies beyond goes; whether anything does."""
    reach = window(own)
    beyond = own[["gain", "gain_low", "gain_high", "null_reach"]].abs().max(axis=1) > reach
    axes.set_xlim(-reach, reach)
    look: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8, "annotation_clip": False}
    for row in own[beyond].to_dict("records"):
        at = tasks.index(row["task"])
        if row["null_reach"] > reach:
            axes.plot([-reach, reach], [at, at], ls="", marker="s", ms=4, color=OTHER, clip_on=False)
            axes.annotate(f"±{row['null_reach']:.2f}", (-reach, at), (6, 8), color=OTHER, **look)
        if abs(row["gain"]) > 0.95 * reach:  # a dot at the edge would be cut
            side = np.sign(row["gain"])
            axes.plot(side * reach, at, ">" if side > 0 else "<", ms=7, color=INK, clip_on=False, zorder=4)
            put: dict[str, Any] = {"xytext": (-6 * side, -8), "ha": "right" if side > 0 else "left", "color": INK}
            axes.annotate(f"{row['gain']:+.2f}", (side * reach, at), **put, **look)
    return bool(beyond.any())


def gains(frame: pd.DataFrame, size: str, heldout: float) -> Figure:
    """Every task at one size: gain in bits per byte (left), in accuracy and exact match (right).

    Args:
        frame: what `analysis.benchmarks.differences` returns.
        size: which size.
        heldout: the gain on held-out text in bits per byte, dotted.
    """
    own = frame[frame["size"] == size]
    tasks = ordered(own)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 1.5 + 0.3 * len(tasks)), sharey=True, layout="constrained", width_ratios=[1.2, 1]
    )
    bits = own[own["measure"] == "bits_per_byte"]
    draw_gains(left, bits, tasks, ("o", INK, ""), 0.0)
    clipped = clip(left, bits[bits["claimed"]], tasks)
    left.axvline(heldout, ls=":", color=gamma_color(SMALL), label="gain on held-out text")
    for number, (measure, mark) in enumerate(MARKS.items()):
        draw_gains(right, own[own["measure"] == measure], tasks, mark, (-0.2, 0.2, 0.0)[number])
    for axes in (left, right):
        axes.axvline(0, color="black", lw=0.8)
        axes.axhspan(-0.5, sum(kind_of(own, task) == KINDS[0] for task in tasks) - 0.5, color=OTHER, alpha=0.08, lw=0)
        axes.set_ylim(len(tasks) - 0.5, -0.5)
    counts = own.drop_duplicates("task").set_index("task")["items"]
    left.set_yticks(range(len(tasks)), [f"{task} ({counts[task]})" for task in tasks])
    left.set(xlabel="fewer bits per byte at γ = 1", ylabel="task (items); shaded: reasoning")
    right.set(xlabel="more right answers at γ = 1 (share)")
    figure.legend(loc="outside lower center", ncols=4)
    headline(
        figure, message(own), "right of zero: γ = 1 is better; bars: paired interval over items; grey: how far two "
        "seeds of one γ differ; rings: other seeds" + ("; numbers: beyond the axis" if clipped else ""),
    )  # fmt: skip
    return figure


def kind_of(frame: pd.DataFrame, task: str) -> str:
    """The kind of a task in a frame of differences."""
    return str(frame.loc[frame["task"] == task, "kind"].iloc[0])


def message(own: pd.DataFrame) -> str:
    """In how many tasks of a size the right answer costs fewer bits, in one sentence."""
    rows = own[own["claimed"] & (own["measure"] == "bits_per_byte")]
    wins, losses = int((rows["gain_low"] > 0).sum()), int((rows["gain_high"] < 0).sum())
    return (
        f"Size {own['size'].iloc[0]}: the right answer costs fewer bits at γ = 1 in {wins} of {len(rows)} tasks, "
        f"more in {losses}"
    )


def chance(table: pd.DataFrame, size: str) -> Figure:
    """Accuracy of both gammas with two standard errors beside chance; `table` as `answers.overview`, one seed."""
    own = table[(table["size"] == size) & table["accuracy"].notna()]
    tasks = list(own["task"].unique())
    figure, panels = plt.subplots(1, 2, figsize=(11, 1.4 + 0.35 * len(tasks)), sharey=True, layout="constrained")
    for axes, measure in zip(panels, ("accuracy", "accuracy_norm"), strict=True):
        for shift, (gamma, arm) in zip((-0.15, 0.15), own.groupby("gamma"), strict=False):
            place = np.array([tasks.index(task) for task in arm["task"]]) + shift
            look = {"fmt": "o", "ms": 5, "capsize": 2, "color": gamma_color(float(gamma))}
            axes.errorbar(arm[measure], place, xerr=2 * arm[f"{measure}_se"], label=f"γ = {gamma:g}", **look)
        for row in own.drop_duplicates("task").itertuples():
            at = tasks.index(row.task)
            axes.plot([row.chance] * 2, [at - 0.42, at + 0.42], color="black", lw=1.5)
        axes.set(xlabel=f"{MEASURES[measure]}, ± 2 standard errors", ylim=(len(tasks) - 0.5, -0.5))
    counts = own.drop_duplicates("task").set_index("task")["items"]
    panels[0].set_yticks(range(len(tasks)), [f"{task} ({counts[task]})" for task in tasks])
    panels[1].plot([], [], color="black", lw=1.5, label="chance")
    panels[1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    off = int(((own["accuracy_norm"] - own["chance"]).abs() <= 2 * own["accuracy_norm_se"]).sum())
    headline(
        figure,
        f"Size {size}: {off} of {len(own)} accuracies are within two standard errors of chance",
        "counted on the right, both γ; right answer likeliest as it is (left) and per byte (right); one seed",
    )
    return figure


def arithmetic(levels: pd.DataFrame, size: str) -> Figure:
    """Our own problems by level: bits per byte (top) and exact match (bottom), a column a language."""
    own = levels[levels["size"] == size]
    languages = list(own["language"].unique())
    measures = [measure for measure in ("bits_per_byte", "exact") if measure in set(own["measure"])]
    figure, panels = plt.subplots(
        len(measures), len(languages), figsize=(5 * len(languages) + 1, 2.7 * len(measures)), sharex=True, sharey="row",
        layout="constrained", squeeze=False,
    )  # fmt: skip
    for row, measure in zip(panels, measures, strict=True):
        for axes, language in zip(row, languages, strict=True):
            rows = own[(own["language"] == language) & (own["measure"] == measure)]
            for arm, gamma, shift in (("base", BASE, -0.06), ("small", SMALL, 0.06)):
                look = {"color": gamma_color(gamma), "capsize": 2, "marker": "o", "ms": 6, "mfc": "white"}
                axes.errorbar(rows["level"] + shift, rows[arm], yerr=bars(rows, arm), label=f"γ = {gamma:g}", **look)
                apart = (rows["gain_low"] > 0) | (rows["gain_high"] < 0)
                axes.plot(rows["level"][apart] + shift, rows[arm][apart], "o", ms=6, color=gamma_color(gamma), zorder=3)
            axes.set_xticks(sorted(rows["level"].unique()))
            if axes is row[0]:
                axes.set_ylabel(
                    "bits per byte of the\nright answer" if measure == "bits_per_byte" else "exact match (share)"
                )
    for axes, language in zip(panels[0], languages, strict=True):
        axes.set_title(LANGUAGE_NAMES.get(language, language))
    for axes in panels[-1]:
        axes.set_xlabel("level of difficulty")
    panels[0][-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    count = own["items"].iloc[0]
    headline(
        figure,
        arithmetic_message(own, size),
        f"{count} problems a point; bars: interval over problems; filled: the two γ differ, paired; one seed",
    )
    return figure


def arithmetic_message(own: pd.DataFrame, size: str) -> str:
    """How many levels each gamma wins in bits per byte, and the best exact match; one sentence."""
    bits, exact = own[own["measure"] == "bits_per_byte"], own[own["measure"] == "exact"]
    wins, losses = int((bits["gain_low"] > 0).sum()), int((bits["gain_high"] < 0).sum())
    text = f"Size {size}: γ = 1 spends fewer bits at {wins} of {len(bits)} levels, more at {losses}"
    best = exact[["base", "small"]].max().max() if len(exact) else np.nan
    return text if pd.isna(best) else f"{text}; the best exact match of a level is {best:.0%}"


def groups(table: pd.DataFrame) -> Figure:
    """Mean gain by kind of task, a panel a measure, sizes side by side; `table` as `analysis.benchmarks.groups`."""
    measures, names = list(table["measure"].unique()), list(table["group"].unique())
    sizes = list(table["size"].unique())
    figure, panels = plt.subplots(
        1, len(measures), figsize=(5 * len(measures) + 1, 2.8), sharey=True, layout="constrained", squeeze=False
    )
    for axes, measure in zip(panels[0], measures, strict=True):
        for number, size in enumerate(sizes):
            rows = table[(table["measure"] == measure) & (table["size"] == size)]
            shift = (number - (len(sizes) - 1) / 2) * 0.7 / len(sizes)
            place = np.array([names.index(name) for name in rows["group"]]) + shift
            shade = size_color(number, len(sizes))
            axes.barh(place, 2 * rows["null_reach"], left=-rows["null_reach"], height=0.2, color=OTHER, alpha=0.3, lw=0)
            axes.errorbar(
                rows["gain"], place, xerr=bars(rows, "gain"), fmt="o", color=shade, capsize=3, label=f"size {size}"
            )
        axes.use_sticky_edges = False
        axes.axvline(0, color="black", lw=0.8)
        axes.set(xlabel=f"gain of γ = 1: {MEASURES[measure]}", ylim=(len(names) - 0.5, -0.5))
        axes.locator_params(axis="x", nbins=6)
    panels[0][0].set_yticks(range(len(names)), names)
    panels[0][-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    note = "bars: interval over items, one seed; grey: as far as two seeds of one γ differ, where there are two"
    headline(figure, groups_message(table), note)
    return figure


def groups_message(table: pd.DataFrame) -> str:
    """How far reasoning is ahead of knowledge in bits per byte, or the one gain that there is; one sentence."""
    bits = table[table["measure"] == "bits_per_byte"]
    last = bits[bits["group"] == bits["group"].iloc[-1]]
    said = ", ".join(f"{row['gain']:+.3f} ({row['size']})" for row in last.to_dict("records"))
    return f"Mean gain in bits per byte by size, {last['group'].iloc[0]}: {said}"


def luck(own: pd.DataFrame, confidence: float) -> str:
    """How many tasks of one size and measure differ, and how many would by luck; Markdown."""
    known = own.dropna(subset=["p"])
    named, size = MEASURES[str(own["measure"].iloc[0])], own["size"].iloc[0]
    if known.empty:
        return f"Size {size}, {named}: too few items for an interval."
    apart = int(((known["gain_low"] > 0) | (known["gain_high"] < 0)).sum())
    after = known[known["p_holm"] < 1 - confidence]
    better = int((after["gain"] > 0).sum())
    return (
        f"Size {size}, {named}: of {len(known)} tasks {apart} have an interval off zero, and "
        f"{len(known) * (1 - confidence):.1f} would by luck. After Holm's correction {better} are better at γ = 1 and "
        f"{len(after) - better} worse."
    )
