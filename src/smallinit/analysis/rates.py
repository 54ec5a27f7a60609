"""The pilot: at which learning rate each arm is at its best, and what a comparison at one rate for all would say."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd

from smallinit.analysis.ladder import BASE, SMALL
from smallinit.analysis.sweep import parabola
from smallinit.analysis.variants import SHARED

FLAT = 0.02  # nats: rates whose loss is this near to the lowest, two percent of perplexity, count as equally good
ARM = ["size", "gamma", "variant", "batch_tokens"]
MAP = ["size", "variant", "gamma", "batch_tokens", "peak_lr", "steps", "loss", "best"]  # of `batch_map`
FIXED = ["size", "variant", "base", "batch_tokens", "gamma", "peak_lr", "gain", "tuned", "at_end"]  # of `at_fixed`

# As SHARED, for starts that are not small, gamma <= BASE, whose hidden states are far larger than the matched eps.
MILD = {
    "standard": ("eps", "no gate; the matched ε hardly attenuates at this γ"),
    "gate": ("both", "same gate; the matched ε hardly attenuates at this γ"),
}


def stands_for(variant: str, gamma: float, tried: set[tuple[float, str]]) -> str | None:
    """The variant of the arm, among those `tried` (gamma, variant), that stands for a variant; None if there is none.

    A variant that was tried stands for itself; others follow SHARED and MILD, on and on if need be.
    """
    known = SHARED | (MILD if gamma <= BASE else {})
    while (gamma, variant) not in tried:
        if variant not in known:
            return None
        variant, _ = known[variant]
    return variant


# ------------------------------------------------------------------------------------------------------ the best rates
def read(root: Path, sizes: Sequence[str]) -> pd.DataFrame:
    """The trials of these sizes, a row a trial: `pilot.trials.COLUMNS`; a loss is missing where a trial diverged.

    Raises:
        FileNotFoundError: naming the stage that makes what is missing.
    """
    tables = []
    for size in sizes:
        path = root / size / "trials.csv"
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing: run `dvc repro train_pilot@{size}`")
        tables.append(pd.read_csv(path).astype({"loss": float}))
    return pd.concat(tables, ignore_index=True)


def main_batch(table: pd.DataFrame) -> int:
    """The tokens of a step that most rows of `table` have; the others are there for the map over batch sizes."""
    return int(table["batch_tokens"].mode().iloc[0])


def at_main_batch(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `table` at its `main_batch`."""
    return table[table["batch_tokens"] == main_batch(table)]


@dataclass(frozen=True)
class Best:
    """The peak learning rate at which one arm is at its best: the lowest point of a parabola in log2(rate).

    The parabola goes through the lowest loss and its two neighbours. Where there are no two neighbours, because the
    lowest is at an end of the rates tried or a trial beside it diverged, `at_end` is set, rate and loss are those of
    the lowest trial, and what belongs to the parabola is missing (NaN). If all trials diverged, all is missing.
    """

    size: str
    d_model: int
    gamma: float
    variant: str
    gate: str
    batch_tokens: int
    rate: float
    loss: float  # nats per token
    low: float  # from `low` to `high` the parabola is within FLAT of its lowest; at most up to the neighbours
    high: float
    curvature: float  # nats per token, for a factor of two in the rate
    at_end: bool


def best_of(arm: pd.DataFrame) -> Best:
    """The best rate of one arm. arm: its trials, a row a rate."""
    arm = arm.sort_values("peak_lr")
    rates, losses = arm["peak_lr"].to_numpy(float), arm["loss"].fillna(np.inf).to_numpy(float)
    same = {key: arm[key].iloc[0] for key in ("size", "d_model", "gamma", "variant", "gate", "batch_tokens")}
    lowest, unknown = int(np.argmin(losses)), float("nan")
    inside = 0 < lowest < len(rates) - 1 and bool(np.isfinite(losses[lowest - 1 : lowest + 2]).all())
    found = parabola(np.log2(rates), losses) if inside else None
    if found is None:
        known = bool(np.isfinite(losses[lowest]))
        measured = (float(rates[lowest]), float(losses[lowest])) if known else (unknown, unknown)
        return Best(
            **same, rate=measured[0], loss=measured[1], low=unknown, high=unknown, curvature=unknown, at_end=True
        )
    vertex, loss, curvature = found
    half = (FLAT / curvature) ** 0.5
    low, high = max(2 ** (vertex - half), rates[lowest - 1]), min(2 ** (vertex + half), rates[lowest + 1])
    return Best(**same, rate=2**vertex, loss=loss, low=low, high=high, curvature=curvature, at_end=False)


def best_table(trials: pd.DataFrame) -> pd.DataFrame:
    """The best rate of every arm, a row an arm: the fields of `Best`."""
    return pd.DataFrame([asdict(best_of(arm)) for _, arm in trials.groupby(ARM, sort=False)])


# ------------------------------------------------------------------------------------------------- power of the width
def powers(best: pd.DataFrame) -> pd.DataFrame:
    """How the best rate goes with the width d, as rate ∝ d^power, between the outer two widths that an arm has.

    Returns:
        A row a gamma and variant: gamma, variant, gate, d_small, d_large, rate_small, rate_large, power, and low and
        high, the powers if both rates move to the ends of what is equally good; missing if `at_end` (one of the two
        best rates is that of the lowest trial only).
    """
    rows = []
    known = at_main_batch(best).dropna(subset="rate")
    for (gamma, variant), arm in known.groupby(["gamma", "variant"], sort=False):
        a, b = (arm.loc[end()] for end in (arm["d_model"].idxmin, arm["d_model"].idxmax))
        if a["d_model"] == b["d_model"]:
            continue
        doublings = np.log2(b["d_model"] / a["d_model"])
        power, low, high = (
            float(np.log2(large / small) / doublings)
            for large, small in ((b["rate"], a["rate"]), (b["low"], a["high"]), (b["high"], a["low"]))
        )
        ends = [gamma, variant, a["gate"], a["d_model"], b["d_model"], a["rate"], b["rate"]]
        rows.append([*ends, power, low, high, bool(a["at_end"] or b["at_end"])])
    columns = ["gamma", "variant", "gate", "d_small", "d_large", "rate_small", "rate_large", "power", "low", "high"]
    return pd.DataFrame(rows, columns=[*columns, "at_end"]).astype({"power": float, "at_end": bool})


def common_power(table: pd.DataFrame) -> float | None:
    """One power of the width for all arms: their mean, each with the weight 1 / (high - low)²; None without any.

    The bracket of a power is wide where the minimum is flat and the power therefore mostly noise. table: of `powers`.
    """
    known = table[~table["at_end"]]
    if known.empty:
        return None
    return float(np.average(known["power"], weights=(known["high"] - known["low"]) ** -2))


def powers_text(table: pd.DataFrame) -> str:
    """The powers of the width in words, Markdown."""
    if table.empty:
        return "No arm was tried at two widths: how the best rate goes with the width is not known."
    lines = []
    for row in table.to_dict("records"):
        law = f"* **γ = {row['gamma']:g}, {row['variant']}**: rate ∝ d^{row['power']:+.2f}"
        bounds = "; at one width the best rate lies beyond those tried" if row["at_end"] else ""
        lines.append(law + (bounds or f" [{row['low']:+.2f}, {row['high']:+.2f}]"))
    if (common := common_power(table)) is not None:
        lines.append(f"\nAll together, each weighted by how narrow its bracket is: **d^{common:+.2f}**.")
    return "\n".join(lines)


# -------------------------------------------------------------------------------------------- one rate for both gammas
def at_fixed(trials: pd.DataFrame) -> pd.DataFrame:
    """What gamma = 0.5 and another one would say about each other at one and the same rate, beside the tuned answer.

    The other is gamma = 1, and the gamma with the lowest loss of all if that is neither. Where a variant was not tried
    at gamma = 0.5, the one that stands for it there is the `base`.

    Returns:
        A row a rate at which both were tried, FIXED; gain: loss of gamma = 0.5 minus loss of `gamma` at this rate,
        infinite where one of the two diverged, missing where both did; tuned: the same, each at its own best rate;
        at_end: one of these two is that of the lowest trial only.
    """
    rows = []
    best = best_table(trials).set_index(ARM)
    for (size, batch), group in trials.groupby(["size", "batch_tokens"], sort=False):
        arms = {key: arm for key, arm in group.groupby(["gamma", "variant"], sort=False)}
        for variant in group["variant"].unique():
            base = stands_for(variant, BASE, set(arms))
            own = [gamma for gamma, other in arms if other == variant]
            leader = min(
                own, key=lambda gamma: np.nan_to_num(best.loc[(size, gamma, variant, batch), "loss"], nan=np.inf)
            )
            for gamma in [each for each in dict.fromkeys((SMALL, leader)) if base and each in own and each != BASE]:
                a, b = best.loc[(size, BASE, base, batch)], best.loc[(size, gamma, variant, batch)]
                same = [size, variant, base, batch, gamma]
                for rate, gain in differences(arms[BASE, base], arms[gamma, variant]).items():
                    rows.append([*same, rate, gain, a["loss"] - b["loss"], bool(a["at_end"] or b["at_end"])])
    return pd.DataFrame(rows, columns=FIXED)


def differences(a: pd.DataFrame, b: pd.DataFrame) -> dict[float, float]:
    """Loss of arm a minus that of arm b at each peak learning rate that both have; a diverged loss is infinite."""
    one, other = (arm.set_index("peak_lr")["loss"].fillna(np.inf).sort_index() for arm in (a, b))
    return {float(rate): float(one[rate]) - float(other[rate]) for rate in one.index if rate in other.index}


def sign(gain: float, null: float | None) -> int | None:
    """+1 or -1 for a gain beyond `null` (nats; None: beyond zero), else 0; None where both arms diverged."""
    if np.isnan(gain):
        return None
    return 0 if abs(gain) <= (null or 0.0) else int(np.sign(gain))


def flips(fixed: pd.DataFrame, null: float | None = None) -> tuple[int, int]:
    """In how many comparisons one gamma wins at some common rates and loses at others, and of how many."""
    groups = [own for _, own in fixed.groupby(FIXED[:5], sort=False)]
    return sum({1, -1} <= {sign(gain, null) for gain in own["gain"]} for own in groups), len(groups)


def tuned_words(row: pd.Series) -> str:
    """The gain with each gamma at its own best rate, in words. row: of `at_fixed`."""
    if np.isnan(row["tuned"]):
        return "one of the two diverged at every rate"
    end = " (the best rate of one of the two is at the end of those tried)" if row["at_end"] else ""
    return f"each at its own rate, its gain is {row['tuned']:+.3f} nats{end}"


def fixed_verdict(fixed: pd.DataFrame, null: float | None = None) -> str:
    """At which common rates which gamma wins, and which when each has its own rate; Markdown, a line a comparison.

    Args:
        fixed: of `at_fixed`.
        null: gains up to this one (nats per token) are called none, such as the difference between seeds.
    """
    words = {1: "wins at", -1: "loses at", 0: "neither wins nor loses at", None: "has diverged like the other at"}
    lines = []
    for (size, variant, base, batch, gamma), own in fixed.groupby(FIXED[:5], sort=False):
        stretches = []
        for kind, part in groupby(own[["peak_lr", "gain"]].to_numpy().tolist(), key=lambda row: sign(row[1], null)):
            rates = [rate for rate, _ in part]
            stretches.append(
                f"{words[kind]} {' to '.join(f'{rate:.2g}' for rate in dict.fromkeys((rates[0], rates[-1])))}"
            )
        against = f"γ = {gamma:g} against {BASE:g}" + ("" if base == variant else f" of `{base}`")
        lines.append(
            f"* **{size}, {variant}, {batch:,} tokens a step**: {against} {', '.join(stretches)}; "
            f"{tuned_words(own.iloc[0])}."
        )
    return "\n".join(lines) or "No rate was tried at both γ: there is nothing to compare."


# ----------------------------------------------------------------------------------------------------- batch and rate
def batch_map(trials: pd.DataFrame) -> pd.DataFrame:
    """The arms that were tried at several batch sizes, a row a trial: MAP; `best` marks the lowest loss of a batch."""
    several = trials.groupby(ARM[:3])["batch_tokens"].transform("nunique") > 1
    arms = trials[several].sort_values(["size", "variant", "gamma", "batch_tokens", "peak_lr"])
    lowest = arms.groupby(ARM)["loss"].transform("min")
    return arms.assign(best=arms["loss"] == lowest)[MAP].reset_index(drop=True)
