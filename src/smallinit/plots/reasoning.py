"""Figures of the two tasks: what is learned first, what is answered to an unseen pair, how alike the weights become."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from smallinit.plots.style import BLUE, GREEN, ORANGE, OTHER, PURPLE, gamma_color, headline
from smallinit.reasoning.verdict import BASE, FITTED, MODELS, SMALL

TASKS = {"memory": ("memory, in training", ORANGE), "reasoning": ("reasoning, in training", BLUE)}
TASKS |= {"unseen": ("reasoning, unseen pairs", GREEN)}
ANSWERS = {"reasoning": ("composes", BLUE), "symmetric": ("mirrors", ORANGE), "neither": ("neither", "#BBBBBB")}


def _band(axes: Axes, curves: pd.DataFrame, column: str, color: str, style: str = "-") -> None:
    """Mean over seeds as a line and their range as a band, against 1 + step."""
    of_step = curves.groupby("step")[column]
    x = of_step.mean().index.to_numpy() + 1
    axes.plot(x, of_step.mean(), style, color=color, lw=1.8)
    axes.fill_between(x, of_step.min(), of_step.max(), color=color, alpha=0.2, lw=0)


def anchor_curves(curves: pd.DataFrame, guess: float, table: pd.DataFrame) -> Figure:
    """Losses of both tasks and of unseen pairs against steps; a row a model, a panel a gamma.

    Args:
        curves: columns model, gamma, seed, step, memory, reasoning, unseen.
        guess: the loss in nats of guessing by frequency.
        table: from `verdict.milestones`, for the headline.
    """
    models, gammas = [m for m in MODELS if m in set(curves["model"])], sorted(curves["gamma"].unique())
    size = (3.1 * len(gammas) + 0.4, 2.7 * len(models) + 0.5)
    figure, panels = plt.subplots(
        len(models), len(gammas), figsize=size, sharey=True, sharex="row", layout="constrained", squeeze=False
    )
    for row, model in zip(panels, models, strict=True):
        for axes, gamma in zip(row, gammas, strict=True):
            chosen = curves[(curves["model"] == model) & (curves["gamma"] == gamma)]
            for task, (_, color) in TASKS.items():
                _band(axes, chosen, task, color)
            for level, style in ((guess, ":"), (guess / 2, "--")):
                axes.axhline(level, color=OTHER, lw=0.9, ls=style)
            axes.set(xscale="log", ylim=(0, 1.35 * guess), title=f"{MODELS[model]}, γ = {gamma:g}")
            axes.minorticks_off()  # they take most of the drawing
        row[0].set_ylabel("loss (nats)")
    for axes in panels[-1]:
        axes.set_xlabel("1 + step")
    handles = [Line2D([], [], color=color, label=name) for name, color in TASKS.values()]
    handles += [Line2D([], [], color=OTHER, ls=":", label="guessing by frequency")]
    handles += [Line2D([], [], color=OTHER, ls="--", label="half of it")]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    counts = " and ".join(
        f"{(own['doublings'] > 0).sum()} of {len(own)} {MODELS[model]}s" for model, own in _small(table)
    )
    message = f"At γ = {SMALL:g} reasoning is half learned before memory in {counts}" if counts else "Two tasks at once"
    headline(figure, message, f"mean and range of {curves['seed'].nunique()} seeds; both tasks are in every batch")
    return figure


def _small(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(model), own) for model, own in table[table["gamma"] == SMALL].groupby("model", sort=False)]


def order(table: pd.DataFrame) -> Figure:
    """Steps until each task is half learned, and what is memorised meanwhile, against gamma; one dot a run.

    Args:
        table: from `verdict.milestones`; a memory task that was not half learned is drawn as a triangle at the top.
    """
    models = [model for model in MODELS if model in set(table["model"])]
    gammas = sorted(table["gamma"].unique())
    figure, panels = plt.subplots(
        2, len(models), figsize=(4.6 * len(models), 6), sharex=True, sharey="row", layout="constrained", squeeze=False
    )
    finite = table[["memory_steps", "reasoning_steps"]].replace(np.inf, np.nan)
    top = 2 * float(np.nanmax(finite.to_numpy(), initial=1.0))
    for (above, below), model in zip(panels.T, models, strict=True):
        own = table[table["model"] == model].reset_index(drop=True)
        x = own["gamma"].map({gamma: place for place, gamma in enumerate(gammas)}) + 0.12 * (own["seed"] % 3 - 1)
        for task, height in (("memory", top), ("reasoning", top / 1.2)):
            color, steps = TASKS[task][1], own[f"{task}_steps"]
            never = np.isinf(steps)
            above.plot(x[~never], steps[~never], "o", color=color, ms=6, alpha=0.85)
            above.plot(x[never], np.full(never.sum(), height), "^", color=color, mfc="white", ms=7)
        above.set(yscale="log", title=MODELS[model], xlim=(-0.5, len(gammas) - 0.5))
        above.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        above.yaxis.set_major_formatter("{x:g}")
        above.yaxis.set_minor_locator(NullLocator())
        below.axhline(0, color=OTHER, lw=0.8)
        below.plot(x, 100 * own["memorised"], "o", color=PURPLE, ms=6, alpha=0.85)
        below.set(xlabel="γ")
        for axes in (above, below):
            axes.set_xticks(range(len(gammas)), [f"{gamma:g}" for gamma in gammas])
    panels[0][0].set_ylabel("steps until half learned")
    panels[1][0].set_ylabel("memorised when reasoning\nis half learned (%)")
    handles = [Line2D([], [], ls="", marker="o", color=color, label=name) for name, color in list(TASKS.values())[:2]]
    handles += [Line2D([], [], ls="", marker="^", mfc="white", color=OTHER, label="not within the run")]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    shares = table[table["model"] == models[0]].groupby("gamma")["memorised"].mean().dropna().clip(lower=0)
    message = "What is half learned first"
    if len(shares) > 1:
        small, large = (f"{shares.iloc[place]:.0%} at γ = {shares.index[place]:g}" for place in (0, -1))
        message = f"Half way to the rule, the {MODELS[models[0]]} has memorised {small} and {large}"
    headline(figure, message, f"a dot a run, {table['seed'].nunique()} seeds; half learned: half the loss of guessing")
    return figure


def similarities(pictures: np.ndarray, names: list[str], message: str, split: int | None = None) -> Figure:
    """Cosines of rows of weight matrices, a panel a run.

    Args:
        pictures: (n, rows, rows), between -1 and 1.
        names: of the panels, n of them.
        message: the headline.
        split: draw a line after so many rows, where one group ends and the next begins.
    """
    columns = min(4, len(names))
    lines = -(-len(names) // columns)
    figure, panels = plt.subplots(
        lines, columns, figsize=(2.7 * columns + 0.7, 2.8 * lines), layout="constrained", squeeze=False
    )
    for axes in panels.flat[len(names) :]:
        axes.set_axis_off()
    for axes, name, picture in zip(panels.flat, names, pictures, strict=False):
        image = axes.imshow(picture, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest", rasterized=True)
        axes.set(title=name, xticks=[], yticks=[])
        axes.grid(False)
        if split is not None:
            axes.axhline(split - 0.5, color="black", lw=1)
            axes.axvline(split - 0.5, color="black", lw=1)
    figure.colorbar(image, ax=panels, shrink=0.8, label="cosine similarity")
    headline(figure, message, "one run each, seed 0, after training")
    return figure


def reordered(picture: np.ndarray) -> np.ndarray:
    """Rows and columns in the order of the leading eigenvector: groups of like rows become blocks. (n, n)."""
    by_leader = np.argsort(np.linalg.eigh(picture)[1][:, -1])
    ordered: np.ndarray = picture[np.ix_(by_leader, by_leader)]
    return ordered


def phases(table: pd.DataFrame) -> Figure:
    """Shares of the three answers to the unseen pair for each gamma and depth, stacked, means over seeds.

    Args:
        table: from `verdict.final`; columns depth, gamma, seed, reasoning, symmetric, neither, train_accuracy.
    """
    depths, gammas = sorted(table["depth"].unique()), sorted(table["gamma"].unique())
    figure, panels = plt.subplots(
        1, len(depths), figsize=(3.4 * len(depths) + 0.5, 3.6), sharey=True, layout="constrained", squeeze=False
    )
    for axes, depth in zip(panels[0], depths, strict=True):
        for place, gamma in enumerate(gammas):
            own = table[(table["depth"] == depth) & (table["gamma"] == gamma)]
            bottom = 0.0
            for answer, (_, color) in ANSWERS.items():
                share = own[answer].mean()
                axes.bar(place, share, 0.8, bottom=bottom, color=color, edgecolor="white")
                if share >= 0.08:
                    ink = "white" if color == BLUE else "black"
                    axes.text(
                        place, bottom + share / 2, f"{share:.0%}", ha="center", va="center", fontsize=9, color=ink
                    )
                bottom += share
            fitted = (own["train_accuracy"] >= FITTED).sum()
            axes.text(place, 1.02, f"{fitted}/{len(own)}", ha="center", va="bottom", fontsize=8.5, color=OTHER)
        axes.set(ylim=(0, 1.12), xlabel="γ", title=f"{depth} block{'s' if depth > 1 else ''}")
        axes.set_xticks(range(len(gammas)), [f"{gamma:g}" for gamma in gammas])
        axes.grid(False)
    panels[0][0].set_ylabel("share of answers to (4, 3)")
    handles = [plt.Rectangle((0, 0), 1, 1, color=color, label=name) for name, color in ANSWERS.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    headline(
        figure,
        phase_message(table),
        f"means of {table['seed'].nunique()} seeds; above each bar: models that know {FITTED:.0%} of the training set",
    )
    return figure


def phase_message(table: pd.DataFrame) -> str:
    """What the phase diagram says, in a sentence: shares at the gammas that are compared, means over depths."""
    shares = table.groupby("gamma")[["reasoning", "symmetric"]].mean()
    said = [
        f"{shares.loc[gamma, 'reasoning']:.0%} compose, {shares.loc[gamma, 'symmetric']:.0%} mirror at γ = {gamma:g}"
        for gamma in (BASE, SMALL)
        if gamma in shares.index
    ]
    return "Unseen pair: " + "; ".join(said) if said else "Answers to the unseen pair"


def composite_curves(curves: pd.DataFrame) -> Figure:
    """Training loss, and the share of each answer to the unseen pair, against steps; a column a depth, a line a gamma.

    Args:
        curves: columns depth, gamma, seed, step, train_loss, reasoning, symmetric.
    """
    depths, gammas = sorted(curves["depth"].unique()), sorted(curves["gamma"].unique())
    rows = {"train_loss": "training loss (nats)", "reasoning": "share that composes", "symmetric": "share that mirrors"}
    figure, panels = plt.subplots(
        len(rows),
        len(depths),
        figsize=(3.4 * len(depths) + 0.8, 7),
        sharex=True,
        sharey="row",
        layout="constrained",
        squeeze=False,
    )
    for line, (column, label) in zip(panels, rows.items(), strict=True):
        for axes, depth in zip(line, depths, strict=True):
            for gamma in gammas:
                own = curves[(curves["depth"] == depth) & (curves["gamma"] == gamma)]
                _band(axes, own, column, gamma_color(gamma), _dash(gamma))
            axes.set(xscale="log", ylim=(0, None if column == "train_loss" else 1.02))
            axes.minorticks_off()  # they take most of the drawing
        line[0].set_ylabel(label)
    for axes, depth in zip(panels[0], depths, strict=True):
        axes.set_title(f"{depth} block{'s' if depth > 1 else ''}")
        axes.set_ylim(0, 1.3 * np.log(len(range(4, 110))))
    for axes in panels[-1]:
        axes.set_xlabel("1 + step")
    handles = [Line2D([], [], color=gamma_color(g), ls=_dash(g), label=f"γ = {g:g}") for g in gammas]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    ends = curves[curves["step"] == curves["step"].max()].groupby("gamma")["train_loss"].mean()
    said = ", ".join(f"{loss:.2f} at γ = {gamma:g}" for gamma, loss in ends.items())
    headline(figure, f"Training loss at the end: {said}", f"mean and range of {curves['seed'].nunique()} seeds")
    return figure


def _dash(gamma: float) -> str:
    """Gammas that are not in the palette share one grey, so their lines differ in dashes."""
    return {0.3: "--", 0.8: ":"}.get(gamma, "-")


def anchor_message(runs: pd.DataFrame) -> str:
    """How alike the embeddings of each kind of anchors are, at the largest and the smallest start, in a sentence.

    Args:
        runs: columns gamma, memory_cosine, reasoning_cosine: mean |cos| of two different anchors.
    """
    means = runs.groupby("gamma")[["memory_cosine", "reasoning_cosine"]].mean()
    said = [
        f"memory {row.memory_cosine:.2f}, reasoning {row.reasoning_cosine:.2f} at γ = {gamma:g}"
        for gamma, row in means.iloc[[0, -1]].iterrows()
    ]
    return "Mean |cos| of two anchors: " + "; ".join(said)
