"""Figures of the controls: learning rate, seeds, GPT-2's initialization, literal eps, weight decay, AdamW's eps."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.typing import ColorType

from smallinit.analysis.controls import REFERENCES
from smallinit.analysis.rate_controls import rates_text
from smallinit.plots.style import GREEN, OTHER, PURPLE, gamma_color, headline

NATS = "(nats per token)"


def bars(axes: Axes, table: pd.DataFrame, column: str, places: list[float], color: ColorType, **look: object) -> None:
    """Points with their intervals, `low` to `high`, across at `places`."""
    spread = np.abs(table[["low", "high"]].to_numpy(dtype=float).T - table[column].to_numpy(dtype=float))
    axes.errorbar(places, table[column], yerr=spread, capsize=3, color=color, **{"fmt": "o", "ms": 6, **look})  # type: ignore[arg-type]


def learning_rates(runs: pd.DataFrame) -> Figure:
    """Loss against peak learning rate, a panel a size, a dot a run; diverged ones are crosses at the top."""
    sizes = list(runs.sort_values("parameters")["size"].unique())
    figure, panels = plt.subplots(
        1, len(sizes), figsize=(min(4 * len(sizes), 11) + 1.5, 3.4), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, size in zip(panels[0], sizes, strict=True):
        of_size = runs[runs["size"] == size]
        for number, (gamma, arm) in enumerate(of_size.groupby("gamma")):
            aside = 1.03 ** (number - (of_size["gamma"].nunique() - 1) / 2)  # else dots of two gammas hide each other
            color, label = gamma_color(float(gamma)), f"γ = {gamma:g}"
            axes.plot(arm["peak_lr"] * aside, arm["loss"], "o", alpha=0.7, color=color, label=label)
            lost = arm.loc[arm["diverged"], "peak_lr"]
            axes.plot(lost * aside, [0.97] * len(lost), "x", color=color, transform=axes.get_xaxis_transform())
        axes.set(xscale="log", xlabel="peak learning rate", title=f"size {size}")
        low, high = of_size["peak_lr"].min(), of_size["peak_lr"].max()
        ticks = [tick for tick in 1e-3 * 2.0 ** np.arange(-7, 8) if low / 1.5 < tick < high * 1.5]
        axes.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
        axes.minorticks_off()
        axes.margins(x=0.2)
    panels[0][0].set_ylabel(f"held-out loss {NATS}")
    handles = {label: line for axes in panels[0] for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    panels[0][-1].legend(list(handles.values()), list(handles), loc="upper left", bbox_to_anchor=(1, 1))
    headline(figure, rates_text(runs).removesuffix("."), "a dot is a run, of any variant and seed")
    return figure


def seeds(gains: pd.DataFrame, nulls: pd.DataFrame, means: dict[tuple[str, str], tuple[float, float, float]]) -> Figure:
    """Gains of all seeds and their mean (left), differences between seeds of one arm (right), on one scale.

    Args:
        gains, nulls: of `controls.seed_gains` and `controls.seed_nulls`.
        means: size and variant to the mean gain over seeds and its interval.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), sharey=True, layout="constrained")
    arms = list(means)
    for number, (size, variant) in enumerate(arms):
        own = gains[(gains["size"] == size) & (gains["variant"] == variant)]
        first = number == 0
        bars(left, own, "gain", [number - 0.2 + 0.1 * place for place in range(len(own))], GREEN,
             label="a seed; bar: over documents" if first else None)  # fmt: skip
        mean = pd.DataFrame([means[size, variant]], columns=["gain", "low", "high"])
        bars(
            left,
            mean,
            "gain",
            [number + 0.25],
            "black",
            fmt="D",
            label="their mean; bar: over seeds" if first else None,
        )
    left.set_xticks(range(len(arms)), [f"{size}, {variant}" for size, variant in arms])
    left.set(xlim=(-0.6, len(arms) - 0.4), title="gain of γ = 1", ylabel=f"difference in loss {NATS}")
    groups = list(nulls.groupby(["size", "variant", "gamma"], sort=False))
    for number, ((_, _, gamma), own) in enumerate(groups):
        bars(right, own, "difference", [number - 0.2 + 0.15 * place for place in range(len(own))], gamma_color(gamma))
    right.set_xticks(range(len(groups)), [f"{size}, {variant}\nγ = {gamma:g}" for (size, variant, gamma), _ in groups])
    right.set(title="null: two seeds of the same arm")
    for axes in (left, right):
        axes.axhline(0, color="black", lw=0.8)
    left.legend()
    sure = sum(low > 0 or high < 0 for _, low, high in means.values())
    headline(
        figure,
        f"Over seeds, {sure} of {len(means)} gains are told from zero; "
        f"over documents, so are {nulls['found'].sum()} of {len(nulls)} differences without an effect",
        "both panels on one scale",
    )
    return figure


def gpt2(table: pd.DataFrame) -> Figure:
    """The arms' losses above that of GPT-2's initialization. table: of `controls.beside_gpt2`."""
    sizes = list(table["size"].unique())
    figure, axes = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    labels = [f"{size}, {variant}" for size in sizes for variant in REFERENCES]
    for shift, (gamma, arm) in zip((-0.08, 0.08), table.groupby("gamma"), strict=False):
        places = [labels.index(f"{row['size']}, {row['variant']}") + shift for row in arm.to_dict("records")]
        bars(axes, arm, "value", places, gamma_color(float(gamma)), label=f"γ = {gamma:g}")
    axes.axhline(0, color="black", lw=0.8)
    axes.set_xticks(range(len(labels)), labels)
    axes.set(xlim=(-0.6, len(labels) - 0.4), ylabel=f"loss − loss of GPT-2's start\n{NATS}")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    better = (table["high"] < 0).sum()
    headline(
        figure,
        f"{better} of {len(table)} arms have a lower loss than GPT-2's initialization",
        "below zero: better than GPT-2's; bars: interval over held-out documents; one seed",
    )
    return figure


def literal(table: pd.DataFrame) -> Figure:
    """Gain of gamma = 1 against what the first norm's output keeps at the start. table: of `controls.literal_gains`."""
    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    names = {"standard": "matched ε", "literal": "ε = 1e-5 as it is", "eps": "ε = 1e-12"}
    sizes, colors = list(table["size"].unique()), {"standard": OTHER, "literal": PURPLE, "eps": GREEN}
    for number, size in enumerate(sizes):
        for variant, own in table[table["size"] == size].groupby("variant", sort=False):
            place = list(names).index(str(variant)) + 0.12 * (number - (len(sizes) - 1) / 2)
            bars(axes, own, "gain", [place], colors[str(variant)])
            words, point = f"{size}: keeps {own['attenuation'].iloc[0]:.2f}", (place, own["gain"].iloc[0])
            axes.annotate(words, point, (8, 0), textcoords="offset points", fontsize=9, va="center")
    axes.axhline(0, color="black", lw=0.8)
    axes.set_xticks(range(len(names)), list(names.values()))
    axes.set(xlim=(-0.5, len(names) - 0.4), ylabel=f"gain of γ = 1\n{NATS}")
    parts = ", ".join(
        f"{names[str(v)]} {gain:+.3f}" for v, gain in table.groupby("variant", sort=False)["gain"].mean().items()
    )
    headline(
        figure,
        f"Gain of γ = 1: {parts}",
        "no gate; keeps: RMS of the first norm's output at the start, γ = 1; bars: over documents; one seed",
    )
    return figure


def decay(table: pd.DataFrame) -> Figure:
    """What weight decay alone leaves of a weight, over training, a line a gamma. table: of `controls.shrinkage`."""
    figure, axes = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    for (gamma, _), run in table.groupby(["gamma", "run"]):
        axes.plot(run["tokens"], run["left"], color=gamma_color(gamma), lw=1.8, alpha=0.8)
    ends = table.groupby(["gamma", "run"])["left"].last().groupby("gamma").mean()
    for gamma, end in ends.items():
        axes.plot([], [], color=gamma_color(float(gamma)), label=f"γ = {gamma:g}: {end:.3f}")
    axes.set(xlabel="training tokens", ylabel="share of an idle weight that is left")
    axes.legend(title="left at the end", loc="upper left", bbox_to_anchor=(1, 1))
    parts = ", ".join(f"{1 - end:.1%} at γ = {gamma:g}" for gamma, end in ends.items())
    headline(
        figure,
        f"Weight decay alone takes {parts}",
        "of a weight without gradient, mean of runs; same decay, different learning rates; lines: runs",
    )
    return figure


def adam(runs: pd.DataFrame, curves: pd.DataFrame) -> Figure:
    """Share of coordinates that AdamW's eps damps (left) and gradient norm (right), over training, a line a run."""
    figure, panels = plt.subplots(1, 2, figsize=(10.5, 3.4), layout="constrained")
    labelled: set[float] = set()
    for run in runs.to_dict("records"):
        curve, gamma = curves[curves["run"] == run["run"]], run["gamma"]
        label = None if gamma in labelled else f"γ = {gamma:g}"
        labelled.add(gamma)
        for axes, column in zip(panels, ("adam_eps_share", "grad_norm"), strict=True):
            axes.plot(curve["tokens"], curve[column], color=gamma_color(gamma), lw=1.2, alpha=0.7, label=label)
    panels[0].set(xscale="log", xlabel="training tokens", ylabel="share of coordinates", title="√v below 10 ε of AdamW")
    panels[0].set_ylim(0)
    panels[1].set(xscale="log", yscale="log", xlabel="training tokens", ylabel="gradient norm", title="before clipping")
    panels[1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    last = curves[curves["run"].isin(runs["run"])].sort_values("step").groupby("run")["adam_eps_share"].last()
    ends = last.groupby(runs.set_index("run")["gamma"]).mean()
    parts = ", ".join(f"{end:.2%} at γ = {gamma:g}" for gamma, end in ends.items())
    headline(
        figure, f"At the end AdamW's ε damps {parts} of the coordinates", "variants standard and both; lines: runs"
    )
    return figure
