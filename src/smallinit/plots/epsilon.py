"""Figures of the norm's eps: a norm on made-up inputs, where every start lies, and what happens while models train."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from smallinit.analysis.epsilon import EFFECTS, LITERAL, PAIR, SATURATED, STANDARD
from smallinit.analysis.ladder import BASE, SMALL
from smallinit.plots import nulls
from smallinit.plots.style import BLUE, GREEN, ORANGE, OTHER, gamma_color, headline
from smallinit.theory.formulas import PAPER_WIDTHS

EPS_COLORS = (ORANGE, GREEN, BLUE)  # not those of a gamma that is drawn beside them
DEPTHS = plt.get_cmap("viridis")
VARIANT_MARKS = {STANDARD: ("D", "matched ε"), PAIR[1]: ("s", "ε = 1e-12"), LITERAL: ("^", "ε = 1e-5")}


def short(eps: float) -> str:
    """1e-05 as people write it: 1e-5."""
    return f"{eps:.0e}".replace("e-0", "e-")


def probe(table: pd.DataFrame) -> Figure:
    """What leaves a norm (left) and what comes back through it (right) against the input's RMS; dots are measured.

    table: of `analysis.epsilon.probe`.
    """
    figure, panels = plt.subplots(1, 2, figsize=(11.5, 4), layout="constrained")
    widths = list(PAPER_WIDTHS.values())
    for axes in panels:
        axes.set(xscale="log", yscale="log", xlabel="RMS of the input")
        for gamma in (BASE, SMALL):
            low, high = max(widths) ** -gamma, min(widths) ** -gamma
            label = f"embeddings at the paper's\nsizes, γ = {gamma:g}"
            axes.axvspan(low, high, color=gamma_color(gamma), alpha=0.25, lw=0, label=label)
    for color, (eps, group) in zip(EPS_COLORS, table.groupby("eps", sort=False), strict=False):
        for axes, quantity in zip(panels, ("output", "gradient"), strict=True):
            axes.plot(group["std"], group[f"{quantity}_formula"], color=color, lw=1.2)
            axes.plot(group["std"], group[quantity], "o", ms=5, color=color, label=f"ε = {short(float(str(eps)))}")
            axes.axvline(float(str(eps)) ** 0.5, color=color, ls=":", lw=1)
    panels[0].set(ylabel="RMS of the output", title="forward: 1 is normalised")
    panels[1].set(ylabel="RMS of the gradient", title="backward: a gradient of RMS 1 comes in")
    panels[1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    largest = float(table["eps"].max())
    headline(
        figure,
        f"With ε = {short(largest)} a norm stops normalising below {largest**0.5:.1g}, and gradients come back weaker",
        "the real RMSNorm; dots measured, lines by formula; dotted verticals: RMS of the input = √ε",
    )
    return figure


def one_curve(paper: pd.DataFrame, ours: pd.DataFrame) -> Figure:
    """Attenuation of the first norm against eps over mean square: the paper's sizes and ours, before any training.

    Args:
        paper: of `analysis.epsilon.paper_sizes`.
        ours: of `analysis.epsilon.starts`; may be empty.
    """
    figure, axes = plt.subplots(figsize=(9.5, 4.2), layout="constrained")
    ratios = np.geomspace(min([1e-4, *ours["ratio"]]) / 3, 300, 300)
    axes.plot(ratios, 1 / np.sqrt(1 + ratios), color="black", lw=1)
    axes.axvspan(1, ratios[-1], color=OTHER, alpha=0.1, lw=0)
    axes.axvline(1, color=OTHER, lw=0.8, ls=":")
    axes.text(1.2, 1.04, "ε outweighs", color=OTHER, fontsize=9)
    for gamma, sizes in paper.groupby("gamma"):
        axes.plot(sizes["ratio"], sizes["attenuation"], "o", ms=6, color=gamma_color(float(str(gamma))))
    for row in paper[paper["ratio"] > 1].to_dict("records"):
        axes.annotate(row["size"], (row["ratio"], row["attenuation"]), (6, 5), textcoords="offset points", fontsize=8)
    handles = [Line2D([], [], ls="", marker="o", color=OTHER, label="the paper's sizes, ε = 1e-5")]
    for variant, (mark, name) in VARIANT_MARKS.items():
        starts = ours[ours["variant"] == variant]
        for row in starts.to_dict("records"):
            color = gamma_color(row["gamma"])
            axes.plot(row["ratio"], row["measured"], mark, ms=11, mec=color, mfc="none", mew=1.6)
        if len(starts):
            handles.append(
                Line2D([], [], ls="", marker=mark, ms=9, mfc="none", mec=OTHER, mew=1.6, label=f"ours, {name}")
            )
    gammas = sorted({*paper["gamma"], *ours["gamma"]})
    handles += [Line2D([], [], ls="", marker="s", color=gamma_color(gamma), label=f"γ = {gamma:g}") for gamma in gammas]
    axes.set(xscale="log", xlabel=r"ε over mean square, $\varepsilon\,d^{2\gamma}$", ylabel="RMS after the first norm")
    axes.set_ylim(0, 1.12)
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1))
    at_one = paper[paper["gamma"] == paper["gamma"].max()]["attenuation"]
    headline(
        figure,
        f"At γ = {paper['gamma'].max():g} the paper's sizes start where the first norm passes {at_one.max():.0%} to "
        f"{at_one.min():.0%}",
        "line: formula; open marks: our runs, measured before the first step",
    )
    return figure


def step_axis(axes: Axes, blocks: pd.DataFrame) -> None:
    """Steps on a log axis that has room for step 0 at its left end."""
    axes.set_xscale("symlog", linthresh=1, linscale=0.4)
    axes.set_xlim(-0.05, 1.1 * max(blocks["step"].max(), 1))


def attenuation_in_training(runs: pd.DataFrame, blocks: pd.DataFrame) -> Figure:
    """Attenuation of every norm over training under matched eps: a row a gamma, a column a size, a line a norm.

    Args:
        runs: those of variant `standard` that are drawn, with size and gamma.
        blocks: of `Results`.
    """
    sizes, gammas = list(runs["size"].unique()), sorted(runs["gamma"].unique())
    figure, panels = plt.subplots(
        len(gammas),
        len(sizes),
        figsize=(3.6 * len(sizes) + 2.6, 2.5 * len(gammas) + 0.4),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for run in runs.to_dict("records"):
        axes = panels[gammas.index(run["gamma"])][sizes.index(run["size"])]
        of_run = blocks[blocks["run"] == run["run"]].sort_values("step")
        last = of_run["layer"].max()
        for (layer, part), norm in of_run.groupby(["layer", "part"]):
            color = "black" if part == "final" else DEPTHS(0.9 * layer / max(last - 1, 1))
            axes.plot(norm["step"], norm["attenuation"], "--" if part == "ffn" else "-", color=color, lw=1.4)
        axes.axhline(SATURATED, color=OTHER, lw=0.8, ls=":")
        axes.set_title(f"size {run['size']}, γ = {run['gamma']:g}", color=gamma_color(run["gamma"]))
        step_axis(axes, blocks[blocks["run"].isin(runs["run"])])
    panels[0][0].set_ylim(0, 1.05)
    for axes in panels[-1]:
        axes.set_xlabel("optimizer step")
    figure.supylabel("RMS after the norm, before its gain", fontsize=10)
    handles = [Line2D([], [], color=DEPTHS(0.0), label="first block"), Line2D([], [], color=DEPTHS(0.9))]
    handles[1].set_label("last block")
    handles += [Line2D([], [], color="black", label="final norm")]
    handles += [
        Line2D([], [], color=OTHER, ls=style, label=part) for part, style in (("attention", "-"), ("FFN", "--"))
    ]
    handles += [Line2D([], [], color=OTHER, ls=":", label="mean square = ε")]
    panels[0][-1].legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), title="norm of", title_fontsize=9)
    return figure


def saturation_message(table: pd.DataFrame) -> str:
    """The title of `attenuation_in_training`. table: of `analysis.epsilon.saturation`."""
    small = table[(table["variant"] == STANDARD) & (table["γ"] == table["γ"].max())]
    gamma = f"At γ = {small['γ'].iloc[0]:g} the matched ε"
    if (small["lowest"] >= SATURATED).all():
        return f"{gamma} saturates no norm"
    saturated, norms, late = (small[name].sum() for name in ("saturated at step 0", "norms", "saturated at the end"))
    start = f"{gamma} saturates {saturated} of {norms} norms at the start"
    if late:
        return f"{start}, and {late} to the end"
    shares = small["share of training"]
    return f"{start}; the last is free after {_span(list(100 * shares))} % of the training"


def hidden_against_eps(runs: pd.DataFrame, blocks: pd.DataFrame) -> Figure:
    """RMS of what enters the first and the last norm, over training, beside the root of eps: a column a size.

    Args:
        runs: those of variants `standard` and `eps` that are drawn, with size, gamma, variant and norm_eps.
        blocks: of `Results`.
    """
    sizes = list(runs["size"].unique())
    places = {"first norm (the embedding)": 0, "final norm": None}
    figure, panels = plt.subplots(
        2,
        len(sizes),
        figsize=(3.6 * len(sizes) + 2.6, 5.4),
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for run in runs.to_dict("records"):
        of_run = blocks[blocks["run"] == run["run"]].sort_values("step")
        color, style = gamma_color(run["gamma"]), "-" if run["variant"] == STANDARD else "--"
        for number, (place, layer) in enumerate(places.items()):
            axes = panels[number][sizes.index(run["size"])]
            part = "final" if layer is None else "attention"
            norm = of_run[
                (of_run["part"] == part) & (of_run["layer"] == (of_run["layer"].max() if layer is None else 0))
            ]
            axes.plot(norm["step"], norm["hidden_rms"], style, color=color, lw=1.6)
            if run["variant"] == STANDARD:
                axes.axhline(run["norm_eps"] ** 0.5, color=color, lw=1, ls=":")
            axes.set_title(f"size {run['size']}: {place}")
            axes.set_yscale("log")
            step_axis(axes, blocks[blocks["run"].isin(runs["run"])])
    for axes in panels[-1]:
        axes.set_xlabel("optimizer step")
    figure.supylabel("RMS of the hidden state that enters", fontsize=10)
    gammas = sorted(runs["gamma"].unique())
    handles = [Line2D([], [], color=gamma_color(gamma), label=f"γ = {gamma:g}") for gamma in gammas]
    marks = (("-", "matched ε"), ("--", "ε = 1e-12"), (":", "√ε, matched"))
    handles += [Line2D([], [], color=OTHER, ls=style, label=name) for style, name in marks]
    panels[0][-1].legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def hidden_message(runs: pd.DataFrame, blocks: pd.DataFrame) -> str:
    """The title of `hidden_against_eps`: how far the smallest embedding grows under matched eps, and how far √ε is."""
    arms = runs[(runs["gamma"] == runs["gamma"].max()) & (runs["variant"] == STANDARD)]
    first = blocks[(blocks["layer"] == 0) & (blocks["part"] == "attention")].sort_values("step")
    grown, needed = [], []
    for arm in arms.to_dict("records"):
        rms = first.loc[first["run"] == arm["run"], "hidden_rms"]
        grown.append(rms.iloc[-1] / rms.iloc[0])
        needed.append(arm["norm_eps"] ** 0.5 / rms.iloc[0])
    return (
        f"Training multiplies the RMS of a γ = {arms['gamma'].iloc[0]:g} embedding by {_span(grown)}; "
        f"to reach √ε takes {_span(needed)}"
    )


def _span(values: list[float]) -> str:
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} to {high}"


def effects(table: pd.DataFrame, literal: pd.DataFrame) -> Figure:
    """The gain of gamma = 1 under both eps (left), and what eps costs each gamma (right), by size, beside the null.

    Args:
        table: of `analysis.epsilon.effects`.
        literal: of `analysis.epsilon.literal_costs`; may be empty.
    """
    sizes, names = list(table["size"].unique()), list(EFFECTS)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
    lines = [(left, names[0], OTHER, "D"), (left, names[1], GREEN, "s")]
    lines += [(right, names[3], gamma_color(0.5), "D"), (right, names[4], gamma_color(1.0), "D")]
    for number, (axes, name, color, mark) in enumerate(lines):
        of_name = table[table["effect"] == name]
        _bars(axes, of_name, sizes, -0.08 if number % 2 == 0 else 0.08, color, mark, name)
    for number, (gamma, costs) in enumerate(literal.groupby("gamma") if len(literal) else []):
        name = f"cost of ε = 1e-5 at γ = {float(str(gamma)):g}"
        known = costs[costs["size"].isin(sizes)]
        _bars(right, known, sizes, 0.24 + 0.16 * number, gamma_color(float(str(gamma))), "^", name)
    for axes in (left, right):
        axes.axhline(0, color="black", lw=0.8)
        axes.set_xticks(range(len(sizes)), sizes)
        axes.set(xlim=(-0.6, len(sizes) - 0.4), xlabel="size")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=8.5)
    left.set(ylabel="nats per token", title="loss(γ = 0.5) − loss(γ = 1): above 0, γ = 1 wins")
    right.set(ylabel="nats per token", title="loss(this ε) − loss(ε = 1e-12)")
    changes = table[table["effect"] == names[2]]
    grows, falls = (changes["low"] > 0).sum(), (changes["high"] < 0).sum()
    headline(
        figure,
        f"ε = 1e-12 moves the difference towards γ = 1 at {grows} of {len(changes)} sizes, away from it at {falls}",
        f"one seed; bars: interval over held-out documents; {nulls.note(table['null'])}",
    )
    return figure


def _bars(axes: Axes, table: pd.DataFrame, sizes: list[str], offset: float, color: str, mark: str, label: str) -> None:
    places = [sizes.index(size) + offset for size in table["size"]]
    spread = np.abs(table[["low", "high"]].to_numpy().T - table["value"].to_numpy())
    nulls.bars(axes, places, table["null"], 0.14)
    axes.errorbar(places, table["value"], yerr=spread, fmt=mark, color=color, capsize=3, ms=6, label=label)
