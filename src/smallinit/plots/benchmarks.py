"""Figures of the benchmarks of a single run."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from smallinit.plots.style import LANGUAGE_COLORS, LANGUAGE_NAMES, OTHER


def run_overview(summary: pd.DataFrame, run: str) -> Figure:
    """Accuracy of each choice task against chance (left), and bits per byte of the right answers of all tasks (right).

    `summary` is what `benchmarks.score.summarize` returns. Bars of error: two standard errors, and the bootstrap's
    interval.
    """
    choice = summary.dropna(subset=["accuracy"]).reset_index(drop=True)
    height = 1.4 + 0.22 * len(summary)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, height), layout="constrained")
    for row in choice.itertuples():
        color = LANGUAGE_COLORS[row.language]
        left.errorbar(row.accuracy, row.Index, xerr=2 * row.accuracy_se, fmt="o", ms=5, color=color, capsize=2)
        left.plot(row.accuracy_norm, row.Index, "o", ms=5, mfc="white", mec=color)
        left.plot([row.chance] * 2, [row.Index - 0.4, row.Index + 0.4], color=OTHER, lw=2)
    above = int((choice["accuracy"] - 2 * choice["accuracy_se"] > choice["chance"]).sum())
    left.set(xlabel="accuracy, ± 2 standard errors", title=f"{run}: {above} of {len(choice)} choice tasks above chance")
    for row in summary.reset_index(drop=True).itertuples():
        color = LANGUAGE_COLORS[row.language]
        right.plot([row.bits_per_byte_low, row.bits_per_byte_high], [row.Index] * 2, color=color)
        right.plot(row.bits_per_byte, row.Index, "o", ms=5, color=color)
    right.set(xlabel="bits per byte of the right answer", title="lower is better; bars: bootstrap over items")
    left.set_ylabel("task (items)")
    for axes, table in ((left, choice), (right, summary)):
        axes.set_yticks(range(len(table)), [f"{row.task} ({row.items})" for row in table.itertuples()])
        axes.set_ylim(len(table) - 0.5, -0.5)
    for language in summary["language"].unique():
        right.plot([], [], "o", color=LANGUAGE_COLORS[language], label=LANGUAGE_NAMES[language])
    left.plot([], [], "o", color="black", label="by log p")
    left.plot([], [], "o", mfc="white", mec="black", label="by log p per byte")
    left.plot([], [], color=OTHER, lw=2, label="chance")
    for axes in (left, right):  # below the axis, where it hides no task
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)
    return figure
