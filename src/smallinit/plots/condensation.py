"""Figures of condensation: stable ranks, alignment of rows, norms of gradients and updates, what training adds."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from smallinit.analysis import condensation
from smallinit.analysis.condensation import EARLY, FAMILIES
from smallinit.plots.style import OTHER, gamma_color, headline

KIND_NAMES = {
    **{"embedding": "embedding", "head": "head", "query": "W_q", "key": "W_k", "value": "W_v"},
    **{"attention_gate": "attention gate", "attention_out": "W_o", "router": "router"},
    **{"ffn_gate": "FFN gate", "ffn_up": "FFN up", "ffn_down": "FFN down"},
}
DPI = 68  # in a notebook, which is to stay below a megabyte with all these lines; files have the style's
ORIGIN = 0.5  # where step 0 stands on the log axis


def step_axis(axes: Axes, steps: Sequence[int]) -> None:
    """A log axis of steps with step 0 at its left end."""
    axes.set(xscale="log", xlim=(ORIGIN * 0.8, max(steps) * 1.25))
    powers = [10**k for k in range(len(str(max(steps))))]
    axes.set_xticks([ORIGIN, *powers], ["0", *(f"{power:,}" for power in powers)])
    axes.minorticks_off()


def plain_numbers(axis: Axis) -> None:
    """1, 3, 10, ... on a log axis instead of powers of ten; without minor ticks, which take most of the drawing."""
    axis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def draw_measure(axes: Axes, table: pd.DataFrame, group: str, column: str) -> None:
    """A measure over training: every matrix of every run thin, the mean of a gamma thick, step 0 as a dot."""
    known = table.dropna(subset=[column])
    known = known.assign(place=np.maximum(known["step"], ORIGIN))
    for gamma, own in known.groupby("gamma"):
        lines = [matrix[["place", column]].to_numpy() for _, matrix in own.groupby(["run", "name"])]
        color = gamma_color(float(gamma))
        axes.add_collection(LineCollection(lines, colors=color, linewidths=0.6, alpha=0.35))  # far faster than lines
    for gamma, mean in condensation.mean_by(known, group, column).groupby("gamma"):
        place, color = np.maximum(mean["step"], ORIGIN), gamma_color(float(gamma))
        axes.plot(place, mean["value"], color=color, lw=2.2, label=f"γ = {gamma:g}")
        axes.plot(place.iloc[0], mean["value"].iloc[0], "o", ms=5, color=color)
    if len(known):
        step_axis(axes, known["step"].tolist())


def evidence(table: pd.DataFrame) -> str:
    """How many seeds there are, and what thin lines are."""
    seeds = table["seed"].nunique()
    return f"{'one seed' if seeds == 1 else f'{seeds} seeds'}; thin: single matrices, thick: their mean"


def stable_ranks(table: pd.DataFrame, size: str) -> Figure:
    """Stable rank over that of a random matrix, a panel a kind; the axis on the right has the stable rank itself."""
    kinds = [kind for kind in KIND_NAMES if kind in set(table["kind"])]
    rows = -(-len(kinds) // 4)
    figure = plt.figure(figsize=(13, 2.7 * rows), layout="constrained", dpi=DPI)
    panels = figure.subplots(rows, 4, sharey=True, squeeze=False)
    early = EARLY * table["step"].max()
    for axes, kind in zip(panels.ravel(), kinds, strict=False):
        of_kind = table[table["kind"] == kind]
        draw_measure(axes, of_kind, "kind", "stable_rank_ratio")
        axes.axvspan(ORIGIN * 0.8, early, color=OTHER, alpha=0.07, lw=0)
        axes.axhline(1, color="black", lw=0.8, ls=":")
        axes.set(yscale="log", title=KIND_NAMES[kind])
        plain_numbers(axes.yaxis)
        random = (of_kind["stable_rank"] / of_kind["stable_rank_ratio"]).median()
        raw = axes.secondary_yaxis("right", functions=(lambda y, r=random: y * r, lambda y, r=random: y / r))
        plain_numbers(raw.yaxis)
    for axes in panels.ravel()[len(kinds) :]:
        axes.set_visible(False)
    panels.ravel()[0].legend()
    figure.supxlabel("step", fontsize=10)
    figure.supylabel("stable rank / that of a random matrix", fontsize=10)
    note = f"size {size}; right axes: the stable rank itself; shaded: the part in which the claim has them condense"
    headline(figure, condensation.sentence(condensation.turning_points(table)), f"{note}; {evidence(table)}")
    return figure


def by_family(table: pd.DataFrame, measures: Mapping[str, tuple[str, str]]) -> Figure:
    """A grid: a row a measure (column -> label, scale), a column a family of matrices."""
    families = [family for family in FAMILIES if family in set(table["family"])]
    size = (1.9 * len(families) + 1, 2.3 * len(measures) + 0.4)
    figure = plt.figure(figsize=size, layout="constrained", dpi=DPI)
    panels = figure.subplots(len(measures), len(families), sharex=True, sharey="row", squeeze=False)
    for line, (column, (label, scale)) in zip(panels, measures.items(), strict=True):
        for axes, family in zip(line, families, strict=True):
            axes.set(yscale=scale)  # before drawing: steps come without minor ticks, on either axis
            draw_measure(axes, table[table["family"] == family], "family", column)
        line[0].set_ylabel(label)
    for axes, family in zip(panels[0], families, strict=True):
        axes.set_title(family)
    panels[0][0].legend()
    figure.supxlabel("step", fontsize=10)
    return figure


def alignment(table: pd.DataFrame, size: str) -> Figure:
    """How far rows point the same way: mean |cosine| of two rows, and the share of pairs above 0.7."""
    figure = by_family(
        table, {"row_cosine": ("mean |cosine|", "linear"), "row_cosine_above": ("share above 0.7", "linear")}
    )
    blocks = condensation.judged(table)
    peaks = blocks.groupby(["gamma", "step"])["row_cosine"].mean().groupby("gamma")
    parts = [f"γ = {gamma:g}: {mean.max():.2f} at step {mean.idxmax()[1]:,}" for gamma, mean in peaks]
    title = "Largest mean |cosine| of two rows, over the matrices of the blocks: " + "; ".join(parts[::-1])
    headline(figure, title, f"size {size}; {evidence(table)}")
    return figure


def norms(table: pd.DataFrame, size: str) -> Figure:
    """Norms of weights and gradients, and of updates relative to the weights, by family."""
    figure = by_family(
        table,
        {
            "weight_norm": ("‖W‖", "log"),
            "grad_norm": ("‖gradient‖", "log"),
            "update_ratio": ("‖update‖ / ‖W‖", "log"),
        },
    )
    largest = condensation.mean_by(condensation.judged(table).assign(all="all"), "all", "update_ratio")
    parts = []
    for gamma, mean in largest.dropna().groupby("gamma"):
        top = mean.loc[mean["value"].idxmax()]
        parts.append(f"γ = {gamma:g}: {top['value']:.1%} at step {top['step']:,.0f}")
    title = "Largest update of a block's matrix in one step, over its norm (mean): " + "; ".join(parts[::-1])
    headline(figure, title, f"size {size}; Frobenius norms; updates include weight decay; {evidence(table)}")
    return figure


def changes(table: pd.DataFrame) -> Figure:
    """Stable rank of every family's weights (solid) and of what training has added to them (dashed), means.

    Args:
        table: as `condensation.changes` gives it.
    """
    families = [family for family in FAMILIES if family in set(table["family"])]
    size = (1.9 * len(families) + 1, 3.3)
    figure = plt.figure(figsize=size, layout="constrained", dpi=DPI)
    panels = figure.subplots(1, len(families), sharey=True, squeeze=False)
    styles = {"weight_ratio": ("-", "the matrix"), "change_ratio": ("--", "what training added")}
    for axes, family in zip(panels[0], families, strict=True):
        for column, (style, _) in styles.items():
            means = condensation.mean_by(table[table["family"] == family], "family", column)
            for gamma, mean in means.groupby("gamma"):
                axes.plot(mean["step"], mean["value"], style, color=gamma_color(float(gamma)))
        axes.axhline(1, color="black", lw=0.8, ls=":")
        axes.set(yscale="log", title=family)
        plain_numbers(axes.yaxis)
        step_axis(axes, table["step"].tolist())
    panels[0][0].set_ylabel("stable rank /\nthat of a random matrix")
    handles = [Line2D([], [], color=gamma_color(gamma), label=f"γ = {gamma:g}") for gamma in table["gamma"].unique()]
    handles += [Line2D([], [], color=OTHER, ls=style, label=label) for style, label in styles.values()]
    panels[0][-1].legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1))
    figure.supxlabel("step", fontsize=10)
    note = "one seed, means over the matrices of a family; from where a matrix has moved by more than bfloat16 rounds"
    headline(figure, condensation.change_sentence(table), note)
    return figure
