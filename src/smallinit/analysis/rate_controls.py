"""Controls of the learning rate: which rates the runs had, and what others would have changed."""

from itertools import product

import numpy as np
import pandas as pd

from smallinit.analysis import nulls
from smallinit.analysis.confounds import RATES
from smallinit.analysis.controls import contrast
from smallinit.analysis.ladder import BASE, SMALL, Arms
from smallinit.analysis.statistics import Interval
from smallinit.analysis.variants import OTHER_RATES, SHARED


def shared_rates(runs: pd.DataFrame) -> list[float]:
    """Peak learning rates at which runs of gamma = 0.5 and of gamma = 1 both finished, of any size and variant."""
    finished = runs[~runs["diverged"]]
    base, small = (set(finished.loc[finished["gamma"] == gamma, "peak_lr"]) for gamma in (BASE, SMALL))
    return sorted(base & small)


def rates_text(runs: pd.DataFrame) -> str:
    """Whether rate and gamma can be told apart in these runs; a sentence."""
    shared = shared_rates(runs)
    if shared:
        return f"γ = 0.5 and γ = 1 were both run at {', '.join(f'{rate:g}' for rate in shared)}."
    return "No learning rate was run at both γ = 0.5 and γ = 1: γ and rate change together in every comparison."


# ---------------------------------------------------------------------------------------------- other learning rates
def rate_grid(arms: Arms) -> pd.DataFrame:
    """Gain of gamma = 1 at every combination of the two arms' learning rates, first seed; a row a combination.

    Returns:
        size; base_rate and small_rate (peak learning rates); base_times and small_times (the same over the arm's tuned
        rate); gain, low, high (nats per token, over documents; missing where one of the two runs diverged). Only sizes
        that have a run at another than the tuned rate.
    """
    columns = ["size", "base_rate", "small_rate", "base_times", "small_times", "gain", "low", "high"]
    runs, rows = arms.results.runs, []
    runs = runs[runs["variant"].isin(RATES) & (runs["seed"] == runs["seed"].iloc[0])]
    for size in arms.sizes():
        own = [
            runs[(runs["size"] == size) & (runs["gamma"] == gamma)].sort_values("peak_lr") for gamma in (BASE, SMALL)
        ]
        tuned = [arm.loc[arm["variant"] == RATES[0], "peak_lr"].tolist() for arm in own]
        if not all(tuned) or sum(map(len, own)) <= len(own):
            continue
        for a, b in product(*(arm.to_dict("records") for arm in own)):
            gain = None if a["diverged"] or b["diverged"] else contrast(arms, a["run"], b["run"])
            known = [gain.value, gain.low, gain.high] if gain else [np.nan] * 3
            rates = [a["peak_lr"], b["peak_lr"]]
            rows.append([size, *rates, *(rate / at[0] for rate, at in zip(rates, tuned, strict=True)), *known])
    return pd.DataFrame(rows, columns=columns)


def best_rates(table: pd.DataFrame) -> "pd.Series[float] | None":
    """The row of `rate_grid` at which each arm has its lowest loss, for a table of one size; None if all diverged.

    All combinations are about the same documents, so the lowest loss at gamma = 1 has the largest gain in each line,
    and the lowest at gamma = 0.5 is the line where this is least.
    """
    finished = table.dropna(subset=["gain"])
    if finished.empty:
        return None
    strongest = finished.loc[finished.groupby("base_rate")["gain"].idxmax()]
    return strongest.loc[strongest["gain"].idxmin()]


def rate_grid_text(table: pd.DataFrame) -> str:
    """The combinations in words, Markdown: a line a size. table: of `rate_grid`."""
    lines = []
    for size, own in table.groupby("size", sort=False):
        best = best_rates(own)
        if best is None:
            lines.append(f"* **Size {size}**: in every combination a run diverged.")
            continue
        tuned = own[(own["base_times"] == 1) & (own["small_times"] == 1)].iloc[0]
        at_end = [gamma for arm, gamma in (("base", BASE), ("small", SMALL)) if best[f"{arm}_rate"] in
                  (own[f"{arm}_rate"].min(), own[f"{arm}_rate"].max())]  # fmt: skip
        lines.append(
            f"* **Size {size}**: of {len(own)} combinations of rates γ = 1 wins in {(own['low'] > 0).sum()} and loses "
            f"in {(own['high'] < 0).sum()}. Its gain is {_gain(tuned)} nats per token at the tuned rates, and "
            f"{_gain(best)} where each arm has the best of its own, {best['base_rate']:.3g} for γ = 0.5 and "
            f"{best['small_rate']:.3g} for γ = 1."
            + "".join(f" The best rate of γ = {gamma:g} is the end of those tried." for gamma in at_end)
        )
    return "\n".join(lines) or "No arm was run at another than its tuned rate."


def _gain(row: "pd.Series[float]") -> str:
    """The gain of a row of `rate_grid` with its interval, or that there is none."""
    lost = pd.isna(row["gain"])
    return "unknown (diverged)" if lost else str(Interval(row["gain"], row["low"], row["high"], "documents"))


def other_rates(arms: Arms) -> pd.DataFrame:
    """How much lower the loss is at another than the tuned rate, for every arm that was run at one; a row a run.

    Columns: size, variant (the tuned arm's), gamma, tuned, other (peak learning rates), lower (nats per token, negative
    where the tuned rate is better), low, high (over documents), null (as far as two seeds of that arm differ).
    """
    runs, rows = arms.results.runs.set_index("run"), []
    for size in arms.sizes():
        for other, usual in ((other, SHARED[other][0]) for other in OTHER_RATES):
            for gamma in (BASE, SMALL):
                tuned, changed = arms.run(size, gamma, usual), arms.run(size, gamma, other)
                if tuned and changed:
                    lower = contrast(arms, tuned, changed)
                    peaks = runs.loc[[tuned, changed], "peak_lr"]
                    rows.append([size, usual, gamma, *peaks, lower.value, lower.low, lower.high])
    table = pd.DataFrame(rows, columns=["size", "variant", "gamma", "tuned", "other", "lower", "low", "high"])
    return arms.loss_null.beside(table)


def other_rates_text(table: pd.DataFrame) -> str:
    """Where another rate than the tuned one is better, Markdown. table: of `other_rates`."""
    if table.empty:
        return "No arm was run at another than its tuned rate."
    better = table[nulls.signs(table, "lower") > 0]
    lines = [f"At another rate than the tuned one, {len(better)} of {len(table)} runs have a lower loss:"]
    for row in better.to_dict("records"):
        lower = Interval(row["lower"], row["low"], row["high"], "documents")
        lines.append(
            f"* **size {row['size']}, `{row['variant']}`, γ = {row['gamma']:g}**: by {lower} nats per token at "
            f"{row['other']:.3g} instead of {row['tuned']:.3g}"
        )
    return "\n".join(lines) if len(better) else lines[0].rstrip(":") + "."
