"""Figures of the attention sink and the gate: how to be silent, heads during training and at the end, maps, losses."""

from typing import Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from smallinit.analysis.gate import GATED, PAIRS, PLAIN
from smallinit.evaluation.attention import cell_starts
from smallinit.plots import nulls
from smallinit.plots.epsilon import step_axis
from smallinit.plots.ladder import variant_name
from smallinit.plots.style import BLUE, GREEN, ORANGE, OTHER, PURPLE, gamma_color, headline

FLOOR = 1e-6  # of attention to the first token: what is less is as good as nothing


def silence(table: pd.DataFrame) -> Figure:
    """What is left of a head's output against the score spent on silence. table: of `analysis.gate.silence`."""
    figure, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
    colors = [GREEN, ORANGE, PURPLE, BLUE]
    for color, (way, group) in zip(colors, table.groupby("way", sort=False), strict=False):
        axes.plot(group["score"], group["left"], "-" if way == "gate" else "--", color=color, lw=2, label=way)
    axes.axhline(0.1, color=OTHER, lw=0.8, ls=":")
    axes.set(yscale="log", xlabel="score", ylabel="left of the output")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    needed = table[table["left"] <= 0.1].groupby("tokens")["score"].min()
    longest = int(table["tokens"].max())
    headline(
        figure,
        f"To shut up by nine tenths a gate needs a score of {needed[0]:.1f}, a sink among {longest} tokens one of "
        f"{needed[longest]:.1f}",
        "dashed: the first token gets this score above all others; solid: sigmoid of minus the score",
    )
    return figure


def _grid(rows: int, columns: int, sharey: Literal["all", "row"] = "all") -> tuple[Figure, np.ndarray]:
    size = (3 * columns + 2.2, 2.3 * rows + 0.6)
    return plt.subplots(rows, columns, figsize=size, sharex=True, sharey=sharey, squeeze=False, layout="constrained")


def _legend(axes: Axes, gammas: list[float], others: list[Line2D]) -> None:
    handles = [Line2D([], [], color=gamma_color(gamma), label=f"γ = {gamma:g}") for gamma in gammas]
    axes.legend(handles=handles + others, loc="upper left", bbox_to_anchor=(1, 1))


def _trajectories(axes: Axes, runs: pd.DataFrame, blocks: pd.DataFrame, column: str) -> None:
    """A thin line a layer and a thick one for their mean, in the colour of the run's gamma."""
    for run in runs.to_dict("records"):
        of_run = blocks[(blocks["run"] == run["run"]) & (blocks["part"] == "attention")].sort_values("step")
        color = gamma_color(run["gamma"])
        for _, layer in of_run.groupby("layer"):
            axes.plot(layer["step"], layer[column], color=color, lw=0.8, alpha=0.5)
        axes.plot(of_run.groupby("step")[column].mean(), color=color, lw=2.4)
    step_axis(axes, blocks)


def sink_in_training(runs: pd.DataFrame, blocks: pd.DataFrame, uniform: float) -> Figure:
    """Attention to the first token over training: a row without and one with the gate, a column a size."""
    sizes, blocks = list(runs["size"].unique()), blocks[blocks["run"].isin(runs["run"])]
    figure, panels = _grid(2, len(sizes))
    for row, variant in zip(panels, (PLAIN, GATED), strict=True):
        for axes, size in zip(row, sizes, strict=True):
            arm = runs[(runs["size"] == size) & (runs["variant"] == variant)]
            _trajectories(axes, arm, blocks, "sink")
            axes.axhline(uniform, color="black", lw=1, ls=":")
            axes.set(yscale="log", title=f"size {size}, {'no gate' if variant == PLAIN else 'gate'}")
    for axes in panels[-1]:
        axes.set_xlabel("optimizer step")
    panels[0][0].set_ylim(bottom=max(panels[0][0].get_ylim()[0], FLOOR))
    figure.supylabel("attention to the first token", fontsize=10)
    _legend(panels[0][-1], sorted(runs["gamma"].unique()), [*_layers(), _line("black", ":", "uniform attention")])
    shown = blocks[blocks["part"] == "attention"]
    highest = shown.loc[shown["sink"].idxmax()]
    headline(
        figure,
        f"A block's strongest sink at any time is {highest['sink']:.1%}, {highest['sink'] / uniform:.1f} times uniform",
        f"{highest['run']}, block {highest['layer'] + 1}, step {highest['step']}. "
        "ε = 1e-12, one seed, means over heads and late queries",
    )
    return figure


def _line(color: str, style: str, label: str, width: float = 1.5) -> Line2D:
    return Line2D([], [], color=color, ls=style, lw=width, label=label)


def _layers() -> list[Line2D]:
    return [_line(OTHER, "-", "a block", 0.8), _line(OTHER, "-", "mean of blocks", 2.4)]


def sinks(heads: pd.DataFrame, uniform: float) -> Figure:
    """Attention of every head to the first token at the end: a row a size, a column a variant, heads by block.

    heads: of `analysis.gate.heads`.
    """
    sizes = list(heads["size"].unique())
    variants = [name for pair in PAIRS.values() for name in pair if name in set(heads["variant"])]
    figure, panels = _grid(len(sizes), len(variants))
    gammas = sorted(heads["gamma"].unique())
    for number, size in enumerate(sizes):
        for axes, variant in zip(panels[number], variants, strict=True):
            arm = heads[(heads["size"] == size) & (heads["variant"] == variant)]
            for place, gamma in enumerate(gammas):
                of_gamma = arm[arm["gamma"] == gamma]
                places = of_gamma["layer"] + 1 + 0.24 * (place - (len(gammas) - 1) / 2)
                below = of_gamma["sink"] < FLOOR
                for marker, shown in (("o", ~below), ("v", below)):
                    sink = of_gamma["sink"].clip(lower=FLOOR)[shown]
                    axes.plot(places[shown], sink, marker, ms=5, alpha=0.7, color=gamma_color(gamma))
            axes.axhline(uniform, color="black", lw=1, ls=":")
            axes.set(yscale="log", title="" if number else variant_name(variant))
            axes.set_xticks(range(1, int(heads["layer"].max()) + 2))
    for axes, size in zip(panels[:, 0], sizes, strict=True):
        axes.set_ylabel(f"size {size}")
    for axes in panels[-1]:
        axes.set_xlabel("block")
    figure.supylabel("attention to the first token", fontsize=10)
    _legend(panels[0][-1], gammas, [_line("black", ":", "uniform attention")])
    above = (heads["sink"] > uniform).groupby(heads["gamma"]).mean()
    shares = ", ".join(f"{share:.0%} at γ = {gamma:g}" for gamma, share in above.items())
    headline(
        figure,
        f"Heads that attend to the first token more than uniform attention would: {shares}",
        f"a dot is a head, mean over windows and late queries; triangles: below {FLOOR:g}; one seed",
    )
    return figure


def gate_in_training(runs: pd.DataFrame, blocks: pd.DataFrame) -> Figure:
    """Mean gate (above) and share of gates below 0.1 (below) over training, a column a size; variant `both`."""
    sizes, blocks = list(runs["size"].unique()), blocks[blocks["run"].isin(runs["run"])]
    figure, panels = _grid(2, len(sizes), sharey="row")
    for row, (column, title) in zip(
        panels, (("gate", "mean gate"), ("gate_below_0.1", "share below 0.1")), strict=True
    ):
        for axes, size in zip(row, sizes, strict=True):
            _trajectories(axes, runs[runs["size"] == size], blocks, column)
            axes.set_title(f"size {size}: {title}")
        row[0].set_ylim(0, 1 if column == "gate" else None)
    for axes in panels[-1]:
        axes.set_xlabel("optimizer step")
    _legend(panels[0][-1], sorted(runs["gamma"].unique()), _layers())
    ends = blocks[blocks["part"] == "attention"].sort_values("step")
    last = ends.groupby(["run", "layer"], as_index=False)["gate"].last().merge(runs[["run", "gamma"]], on="run")
    means = ", ".join(f"{mean:.2f} at γ = {gamma:g}" for gamma, mean in last.groupby("gamma")["gate"].mean().items())
    headline(figure, f"The mean gate goes from a half to {means}", "ε = 1e-12 and gate; one seed")
    return figure


def maps(rows: dict[str, tuple[np.ndarray, np.ndarray]], seq_len: int) -> Figure:
    """Attention maps over uniform attention, a row a run, a column a block: of each the head with the strongest sink.

    Args:
        rows: title of a row to the heads (L,) and ratios (L, C, columns) of `analysis.gate.strongest`.
        seq_len: T, for the axes.
    """
    layers = len(next(iter(rows.values()))[0])
    figure, panels = plt.subplots(
        len(rows), layers, figsize=(2.3 * layers + 1.5, 2.3 * len(rows) + 0.3), squeeze=False, layout="constrained"
    )
    queries, keys = cell_starts(seq_len)
    edges = np.arange(len(keys) + 1)
    edges[0] = -1  # the first token's column twice as wide, to be seen
    for row, (name, (heads, ratios)) in zip(panels, rows.items(), strict=True):
        for layer, axes in enumerate(row):
            shown = np.clip(ratios[layer], 1 / 16, 16)
            image = axes.pcolormesh(
                edges, np.arange(len(queries) + 1), shown, cmap="RdBu_r", norm=LogNorm(1 / 16, 16), rasterized=True
            )
            axes.axvline(1, color="black", lw=0.6)
            axes.set(ylim=(len(queries), 0), xticks=[], yticks=[])
            axes.set_title(f"block {layer + 1}, head {heads[layer] + 1}", fontsize=9)
            axes.grid(visible=False)
        row[0].set_ylabel(name, fontsize=9)
    bar = figure.colorbar(image, ax=panels, shrink=0.6, ticks=[1 / 16, 1 / 4, 1, 4, 16])
    bar.ax.set_yticklabels(["1/16", "1/4", "1", "4", "16"])
    bar.ax.minorticks_off()
    bar.set_label("attention / uniform attention (clipped)", fontsize=9)
    last = {name: ratios[:, len(queries) // 2 :, 0].mean(axis=1).max() for name, (_, ratios) in rows.items()}
    most = max(last, key=lambda name: last[name])
    headline(
        figure,
        f"The strongest sink is {last[most]:.1f} times uniform attention ({' '.join(most.split())})",
        f"down: queries 1 to {seq_len}; across: keys, the first in a column of its own; mean over windows, one seed",
    )
    return figure


def effects(table: pd.DataFrame) -> Figure:
    """What the gate gains for each gamma, by size, beside the null, a panel an eps. table: of `gate.effects`."""
    names, sizes = list(table["eps"].unique()), list(table["size"].unique())
    figure, panels = plt.subplots(
        1, len(names), figsize=(4.2 * len(names) + 1.5, 3.4), sharey=True, squeeze=False, layout="constrained"
    )
    arms = {"γ = 0.5": gamma_color(0.5), "γ = 1": gamma_color(1.0)}
    for axes, name in zip(panels[0], names, strict=True):
        for number, (arm, color) in enumerate(arms.items()):
            gains = table[(table["eps"] == name) & (table["arm"] == arm)]
            places = [sizes.index(size) + 0.16 * (number - 0.5) for size in gains["size"]]
            spread = np.abs(gains[["low", "high"]].to_numpy().T - gains["value"].to_numpy())
            nulls.bars(axes, places, gains["null"], 0.14)
            axes.errorbar(places, gains["value"], yerr=spread, fmt="o", ms=6, capsize=3, color=color, label=arm)
        axes.axhline(0, color="black", lw=0.8)
        axes.set_xticks(range(len(sizes)), sizes)
        axes.set(xlim=(-0.6, len(sizes) - 0.4), xlabel="size", title=name)
    panels[0][0].set_ylabel("loss without gate − loss with it\n(nats per token)")
    panels[0][-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    gains = table[table["arm"] != "difference"]
    lower, higher = (gains["low"] > 0).sum(), (gains["high"] < 0).sum()
    headline(
        figure,
        f"The gate lowers the loss in {lower} of {len(gains)} comparisons and raises it in {higher}",
        f"one seed; bars: interval over held-out documents; {nulls.note(table['null'])}",
    )
    return figure
