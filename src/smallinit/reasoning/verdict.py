"""What the two tasks say about the claim that a small start learns to reason rather than to memorise.

Effects are differences between gamma = 0.5 and gamma = 1 with the same seed, and positive where the papers
(arXiv 2502.04375 and 2405.05409) say so; their intervals are over seeds. Needs neither torch nor models.
"""

import numpy as np
import pandas as pd

from smallinit.analysis.statistics import Interval, over_seeds

BASE, SMALL = 0.5, 1.0
MODELS = {"embedding_mlp": "embedding MLP", "decoder": "decoder"}
FITTED = 0.9  # accuracy on seen pairs below which what a model says of an unseen pair means little


def crossing(steps: np.ndarray, losses: np.ndarray, level: float) -> float:
    """The step at which a loss first falls to `level`, by interpolation in log(1 + step); infinite if it never does.

    Args:
        steps: measured steps, increasing, (n,).
        losses: the loss at each of them, (n,).
        level: where the line is drawn, in the units of the losses.
    """
    below = np.flatnonzero(losses <= level)
    if len(below) == 0:
        return float("inf")
    after = below[0]
    if after == 0:
        return float(steps[0])
    x, y = np.log1p(steps[after - 1 : after + 1]), losses[after - 1 : after + 1]
    return float(np.expm1(x[0] + (x[1] - x[0]) * (y[0] - level) / (y[0] - y[1])))


def milestones(curves: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """When each task of the anchor runs is half learned: its loss is half of that of guessing by frequency.

    Args:
        curves: columns model, gamma, seed, step, memory, reasoning, unseen: losses in nats.
        runs: columns model, gamma, seed, guess: the loss of guessing.

    Returns:
        A row a run. memory_steps, reasoning_steps: infinite if not reached. doublings: log2 of memory over reasoning
        steps, where a task that was not reached counts with the last step, so that `doublings` is a lower bound if
        `censored`. memorised: the share of the memory task learned by the time when reasoning was half learned.
        unseen: final loss on unseen pairs. Where reasoning was not half learned, doublings and memorised are missing.
    """
    rows = []
    for run in runs.to_dict("records"):
        same = (curves["model"] == run["model"]) & (curves["gamma"] == run["gamma"]) & (curves["seed"] == run["seed"])
        curve = curves[same].sort_values("step")
        steps, last = curve["step"].to_numpy(dtype=float), float(curve["step"].iloc[-1])
        memory, reasoning = (
            crossing(steps, curve[task].to_numpy(), run["guess"] / 2) for task in ("memory", "reasoning")
        )
        row = {key: run[key] for key in ("model", "gamma", "seed")}
        row |= {"memory_steps": memory, "reasoning_steps": reasoning, "censored": np.isinf(memory)}
        row |= {"doublings": np.nan, "memorised": np.nan}
        if np.isfinite(reasoning):
            row["doublings"] = float(np.log2(min(memory, last) / reasoning)) if reasoning > 0 else np.nan
            loss = np.interp(np.log1p(reasoning), np.log1p(steps), curve["memory"])
            row["memorised"] = float(1 - loss / run["guess"])
        rows.append(row | {"unseen": float(curve["unseen"].iloc[-1])})
    return pd.DataFrame(rows)


def final(curves: pd.DataFrame) -> pd.DataFrame:
    """The last measured row of each run of either task: the columns that name it, and what was measured."""
    names = [column for column in ("model", "depth", "gamma", "seed") if column in curves]
    rows: pd.DataFrame = curves.loc[curves.groupby(names, sort=False)["step"].idxmax()]
    return rows.reset_index(drop=True)


def difference(table: pd.DataFrame, column: str, a: float, b: float, confidence: float) -> Interval | None:
    """Mean over seeds of column(gamma = a) - column(gamma = b), which are averaged over all else first.

    None where one of the two was not measured, or there is one seed only.
    """
    means = table.pivot_table(index="seed", columns="gamma", values=column, dropna=False)
    if not {a, b} <= set(means.columns) or means[[a, b]].isna().any(axis=None):
        return None
    return over_seeds(list(means[a] - means[b]), confidence)


def anchor_effects(table: pd.DataFrame, confidence: float) -> dict[str, Interval | None]:
    """Three effects a model: reasoning comes first at gamma = 1; less is memorised meanwhile; unseen pairs are solved.

    Args:
        table: from `milestones`.
        confidence: of the intervals over seeds.

    Returns:
        By name: doublings of the steps (a lower bound if memory was not half learned), shares, nats.
    """
    effects: dict[str, Interval | None] = {}
    for model, name in MODELS.items():
        own = table[table["model"] == model]
        first = list(own.loc[own["gamma"] == SMALL, "doublings"])
        effects[f"{name}, reasoning before memory"] = None if np.isnan(first).any() else over_seeds(first, confidence)
        effects[f"{name}, memorised meanwhile"] = difference(own, "memorised", BASE, SMALL, confidence)
        effects[f"{name}, loss on unseen pairs"] = difference(own, "unseen", BASE, SMALL, confidence)
    return effects


def composite_effects(table: pd.DataFrame, confidence: float) -> dict[str, Interval | None]:
    """Two effects on the unseen pair: a small start composes more, and takes it less for its mirror image.

    Args:
        table: from `final`; shares are averaged over depths.
        confidence: of the intervals over seeds.
    """
    return {
        "share that composes": difference(table, "reasoning", SMALL, BASE, confidence),
        "share that mirrors": difference(table, "symmetric", BASE, SMALL, confidence),
    }


def table(effects: dict[str, Interval | None]) -> pd.DataFrame:
    """One row an effect: its value and interval, empty where it could not be measured."""
    rows = []
    for name, interval in effects.items():
        known = (interval.value, interval.low, interval.high) if interval else (np.nan,) * 3
        rows.append({"effect": name} | dict(zip(("value", "low", "high"), known, strict=True)))
    return pd.DataFrame(rows)


def sentence(effects: dict[str, Interval | None], judged: str) -> str:
    """The verdict and what it rests on, as Markdown."""
    said = "; ".join(f"{name} {interval or 'not measured'}" for name, interval in effects.items())
    return f"**{judged.capitalize()}**: {said}."
