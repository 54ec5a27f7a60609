"""Figures of the theory: attenuation by eps, residual flow by width and through depth, the coordinate check."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from smallinit.plots.style import OTHER, gamma_color, headline
from smallinit.theory.formulas import PAPER_WIDTHS, SMALL_EPS, USUAL_EPS, attenuation

PART_NAMES = {"attention": "attention, first token", "gelu": "GELU network", "swiglu": "SwiGLU network"}
CHANGES = {  # of the coordinate check: title, label
    "embedding": ("embedding", "RMS of change / RMS at step 0"),
    "stream": ("stream before the last norm", "RMS of change / RMS at step 0"),
    "logits": ("logits", "RMS of change"),
}


def _signed(power: float) -> str:
    """Two decimals and a sign, but no sign of zero."""
    return f"{round(power, 2):+.2f}" if round(power, 2) else "0.00"


def _width_axis(axes: Axes, widths: list[int]) -> None:
    axes.set(xscale="log", xlabel="width d")
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.minorticks_off()


def attenuation_curves(measured: pd.DataFrame, ours: pd.DataFrame) -> Figure:
    """RMS after the first norm against width, a line a gamma: eps = 1e-5 solid, the paper's dashed; dots are measured.

    Args:
        measured: columns d_model, gamma, eps, measured.
        ours: columns d_model, d_ref, gamma, norm_eps: our sizes under the eps of equal attenuation, drawn as diamonds.
    """
    figure, axes = plt.subplots(figsize=(8.5, 4.2), layout="constrained")
    widths = np.geomspace(0.75 * min(64, *ours["d_model"]), 3000, 200)
    gammas = sorted(measured["gamma"].unique())
    for gamma in gammas:
        for eps, style in ((USUAL_EPS, "-"), (SMALL_EPS, "--")):
            line = [attenuation(width**-gamma, eps) for width in widths]
            axes.plot(widths, line, style, color=gamma_color(gamma), lw=1.5)
        dots = measured[(measured["gamma"] == gamma) & (measured["eps"] == USUAL_EPS)]
        axes.plot(dots["d_model"], dots["measured"], "o", ms=5, color=gamma_color(gamma))
    for name, width in PAPER_WIDTHS.items():
        axes.axvline(width, color=OTHER, lw=0.8, ls=":")
        axes.text(width, 1.03, name, ha="center", va="bottom", fontsize=8, color=OTHER)
    for size in ours.to_dict("records"):
        height, color = attenuation(size["d_model"] ** -size["gamma"], size["norm_eps"]), gamma_color(size["gamma"])
        axes.plot(size["d_model"], height, "D", ms=8, mec=color, mfc="white", mew=1.6)
        axes.plot([size["d_model"], size["d_ref"]], [height, height], color=color, lw=0.8, ls=(0, (1, 3)))
    _width_axis(axes, [64, 96, 128, 256, 512, *PAPER_WIDTHS.values()])
    axes.tick_params(axis="x", labelsize=8)
    axes.set(ylabel="RMS after the first norm", ylim=(0, 1.12))
    handles = [Line2D([], [], color=gamma_color(gamma), label=f"γ = {gamma:g}") for gamma in gammas]
    for eps, style in ((USUAL_EPS, "-"), (SMALL_EPS, "--")):
        handles.append(Line2D([], [], color=OTHER, ls=style, label=f"ε = {eps:g}"))
    handles.append(Line2D([], [], ls="", marker="o", color=OTHER, label="measured"))
    handles.append(Line2D([], [], ls="", marker="D", ms=8, mfc="white", mec=OTHER, label="our sizes, matched ε"))
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1))
    small, large = (attenuation(1 / PAPER_WIDTHS[name], USUAL_EPS) for name in ("0.1B", "1.5B"))
    headline(
        figure,
        f"At γ = 1 the usual ε lets the first norm pass {small:.0%} at 0.1B and {large:.0%} at 1.5B",
        "dotted verticals: the paper's sizes; diamonds: our sizes, with the ε that attenuates as ε = 1e-5 does there",
    )
    return figure


def flow_against_width(flows: pd.DataFrame, exponents: pd.DataFrame) -> Figure:
    """Residual flow of the first block against width, a panel a part: measured dots, the formula as lines.

    Args:
        flows: columns seed, d_model, gamma, part, flow, formula.
        exponents: columns part, gamma, asymptotic, measured, low, high.
    """
    figure, panels = plt.subplots(1, len(PART_NAMES), figsize=(12, 4.2), sharey=True, layout="constrained")
    for axes, (part, name) in zip(panels, PART_NAMES.items(), strict=True):
        lines = []
        for fit in exponents[exponents["part"] == part].to_dict("records"):
            color = gamma_color(fit["gamma"])
            of_gamma = flows[(flows["part"] == part) & (flows["gamma"] == fit["gamma"])]
            means = of_gamma.groupby("d_model")[["flow", "formula"]].mean()
            axes.plot(means.index, means["formula"], color=color, lw=1)
            axes.plot(of_gamma["d_model"], of_gamma["flow"], "o", ms=4, color=color, alpha=0.7)
            half = (fit["high"] - fit["low"]) / 2
            label = (
                f"γ = {fit['gamma']:g}: {_signed(fit['measured'])} ± {half:.2f} (theory {_signed(fit['asymptotic'])})"
            )
            lines.append(Line2D([], [], color=color, marker="o", ms=4, lw=1, label=label))
        axes.axhline(1, color="black", lw=0.8, ls=":")
        axes.set(yscale="log", title=name)
        _width_axis(axes, sorted(flows["d_model"].unique()))
        axes.legend(handles=lines, loc="upper center", bbox_to_anchor=(0.5, -0.2), title="power of d", fontsize=8.5)
    panels[0].set_ylabel("RMS of update / RMS of embedding")
    at_one = exponents[exponents["gamma"] == 1].set_index("part")["measured"]
    message = "Residual flow against width follows the formulas"
    if set(PART_NAMES) <= set(at_one.index):
        message = (
            f"At γ = 1 the flow goes as d^{_signed(at_one['attention'])} in attention, d^{_signed(at_one['gelu'])} in "
            f"GELU and d^{_signed(at_one['swiglu'])} in SwiGLU networks"
        )
    draws = f"dots: {flows['seed'].nunique()} draws of the weights at each width"
    headline(figure, message, f"{draws}; lines: formula, nothing fitted; no training")
    return figure


def flow_through_depth(table: pd.DataFrame, d_model: int) -> Figure:
    """Update over stream for each sublayer of a deep model. table: columns gamma, sublayer, part, ratio, formula."""
    parts = list(table["part"].unique())
    figure, panels = plt.subplots(1, len(parts), figsize=(9.5, 3.8), sharey=True, layout="constrained", squeeze=False)
    for axes, part in zip(panels[0], parts, strict=True):
        for gamma, group in table[table["part"] == part].groupby("gamma"):
            color = gamma_color(float(gamma))
            axes.plot(group["layer"] + 1, group["formula"], color=color, lw=1)
            axes.plot(group["layer"] + 1, group["ratio"], "o", ms=5, color=color, label=f"γ = {gamma:g}")
        axes.axhline(1, color="black", lw=0.8, ls=":")
        axes.set(yscale="log", xlabel="block", title=PART_NAMES[part], xticks=sorted(table["layer"].unique() + 1))
    panels[0][0].set_ylabel("RMS of update / RMS of stream")
    panels[0][-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    largest = table[(table["gamma"] == table["gamma"].min()) & (table["part"] == "attention")]
    first, last = largest["ratio"].iloc[0], largest["ratio"].iloc[-1]
    headline(
        figure,
        f"At γ = {largest['gamma'].iloc[0]:g} the first update is {first:.0f} times the stream, that of the last block "
        f"{last:.1f} times",
        f"d = {d_model}, dots measured, lines by formula: what was added becomes the stream of the next block",
    )
    return figure


def coordinate_check(table: pd.DataFrame, growth: pd.DataFrame, learning_rate: float) -> Figure:
    """Change since step 0 against width, a panel a quantity, a line a gamma and step (later steps darker).

    Args:
        table: columns gamma, step, d_model, seed and those of CHANGES; lines are means over seeds.
        growth: columns gamma, step and those of CHANGES: the power of d of each line.
        learning_rate: of all of them.
    """
    figure, panels = plt.subplots(1, len(CHANGES), figsize=(12, 3.8), layout="constrained")
    steps = sorted(table["step"].unique())
    shades = {step: 0.25 + 0.75 * (number + 1) / len(steps) for number, step in enumerate(steps)}
    for axes, (quantity, (title, label)) in zip(panels, CHANGES.items(), strict=True):
        for (gamma, step), group in table.groupby(["gamma", "step"]):
            means = group.groupby("d_model")[quantity].mean()
            axes.plot(means.index, means, "o-", ms=4, color=gamma_color(float(gamma)), alpha=shades[step], lw=1.5)
        axes.set(yscale="log", title=title, ylabel=label)
        _width_axis(axes, sorted(table["d_model"].unique()))
    handles = [
        Line2D([], [], color=gamma_color(gamma), label=f"γ = {gamma:g}") for gamma in sorted(table["gamma"].unique())
    ]
    handles += [Line2D([], [], color=OTHER, alpha=shades[step], label=f"step {step}") for step in steps]
    panels[-1].legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1))
    first = growth[growth["step"] == 1]
    powers = ", ".join(f"d^{row['embedding']:.2f} at γ = {row['gamma']:g}" for row in first.to_dict("records"))
    seeds = table["seed"].nunique()
    headline(
        figure,
        f"One learning rate is not one step size: the first step moves the embedding by {powers}",
        f"AdamW at {learning_rate:g} for every width, {seeds} seeds; a flat line would not depend on the width",
    )
    return figure
