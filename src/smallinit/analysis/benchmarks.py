"""Two gammas on the same benchmark items: paired differences, what luck explains of them, and the rule of the claim.

Every difference is taken so that it is positive where gamma = 1 is better. Both models are asked the same items, so an
interval comes from drawing items, each with the answers of both: what makes an item hard for both cancels. Beside it
stands the null, the same difference between two seeds of one gamma.
"""

from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from smallinit.analysis.answers import FEWEST, MEASURES, Answers, claimed, interval, paired, pairs
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.ladder import Arms
from smallinit.analysis.statistics import Interval, bootstrap, bootstrap_ratio
from smallinit.analysis.token_pairs import Pair
from smallinit.analysis.tokens import columns

NAMED = ("gsm8k", "math500", "hellaswag")  # by the claim
# What has to be worked out step by step or by a rule. All other tasks ask what is known, or what is likely to follow.
REASONING = (
    *("gsm8k", "math500", "arithmetic_en", "arithmetic_zh", "basic_arithmetic", "basic_coding"),
    *("basic_logical_reasoning", "basic_pattern", "basic_string_operations"),
)
KINDS = ("reasoning", "knowledge and common sense")
LEAD = "reasoning − knowledge"
GROUPS = {KINDS[0]: (1, 0), KINDS[1]: (0, 1), LEAD: (1, -1)}  # weights of the two kinds' averages
FLIPS = 9_999  # random signs of a test: p values down to 1 / 10,000, enough for Holm's correction of a hundred tasks


def kind(task: str) -> str:
    """The group that a task belongs to, one of KINDS."""
    return KINDS[0] if task in REASONING else KINDS[1]


# -------------------------------------------------------------------------------------------------------- differences
@cache
def signs(items: int, seed: int) -> np.ndarray:
    """Signs, 1.0 or -1.0, of each of some items: FLIPS random ones, or all there are if these are no more; (n, items).

    Drawn once for all tasks with that many items, since drawing takes most of the time of a test.
    """
    if 2**items <= FLIPS:
        return np.array(list(product([1.0, -1.0], repeat=items)))
    pairs = np.tile([1.0, -1.0], (FLIPS, items, 1))
    drawn: np.ndarray = np.random.default_rng(seed).permuted(pairs, axis=-1)[..., 0].copy()
    return drawn


def p_value(table: pd.DataFrame, config: AnalysisConfig) -> float:
    """How often a sum of gains of random signs is as far from zero: both models alike on every item, but for luck.

    Twice the smaller tail, with the observed signs counted among random ones, as in scipy's `permutation_test`.
    """
    gain = table["gain"].to_numpy(dtype=float)
    drawn = signs(len(gain), config.seed)
    sums, seen, rounding = drawn @ gain, gain.sum(), 1e-12 * np.abs(gain).sum()
    tail = min((sums <= seen + rounding).sum(), (sums >= seen - rounding).sum())
    own = int(len(drawn) == FLIPS)
    return float(min(1.0, 2 * (tail + own) / (len(drawn) + own)))


def holm(p: pd.Series) -> pd.Series:
    """Holm's correction: as many tests as there are p values, and the chance of any false alarm stays what it was."""
    ordered = p.dropna().sort_values()
    adjusted = np.maximum.accumulate(ordered.to_numpy() * np.arange(len(ordered), 0, -1)).clip(max=1)
    return pd.Series(adjusted, index=ordered.index).reindex(p.index)


GAIN = ["gain", "gain_low", "gain_high"]
OWN = ["claimed", "task", "kind", "measure", "items", "base_value", "small_value", *GAIN, "p"]


def differences(arms: Arms, answers: Answers) -> pd.DataFrame:
    """One row a comparison, task and measure, with the gain; for the claimed comparisons with interval and tests.

    Returns:
        The columns of `Pair`; claimed (bool); task, kind, measure, items; the measure of both runs; gain, gain_low,
        gain_high; p, and p_holm for all tasks of that size and measure; null_reach: the largest difference of two
        seeds of one gamma, whatever its sign.
    """
    first, rows = claimed(arms, answers), []
    for pair in pairs(arms, answers):
        for task in answers.tasks:
            for measure in MEASURES:
                table = paired(answers, pair, task, measure)
                if table is not None:
                    rows.append(_row(pair, task, measure, table, arms.config if pair == first.get(pair.size) else None))
    frame = pd.DataFrame(rows, columns=[*(field.name for field in fields(Pair)), *OWN]).astype({"claimed": bool})
    frame["p_holm"] = frame.groupby(["size", "measure"], sort=False)["p"].transform(holm).astype(float)
    reach = frame[frame["null"].notna()].groupby(["size", "task", "measure"])["gain"].agg(lambda gain: gain.abs().max())
    return frame.join(reach.rename("null_reach").astype(float), on=["size", "task", "measure"])


def _row(pair: Pair, task: str, measure: str, table: pd.DataFrame, config: AnalysisConfig | None) -> dict[str, Any]:
    """One row of `differences`; interval and test with `config` only."""
    total = table.sum()
    row = asdict(pair) | {"claimed": config is not None, "task": task, "kind": kind(task), "measure": measure}
    row |= {f"{arm}_value": total[arm] / total["weight"] for arm in ("base", "small")} | {"items": len(table)}
    found = interval(table, config) if config else None
    row |= columns("gain", found, total["gain"] / total["weight"])
    return row | {"p": p_value(table, config) if config and found else np.nan}


# ------------------------------------------------------------------------------------------------------------- groups
def average(parts: Sequence[tuple[pd.DataFrame, float]], config: AnalysisConfig) -> Interval | None:
    """A weighted sum of the gains of tasks, (table, weight) each; the interval draws items within every task."""
    if any(len(table) < FEWEST for table, _ in parts):
        return None
    gains, sizes = ([table[name].to_numpy() for table, _ in parts] for name in ("gain", "weight"))
    weights = [weight for _, weight in parts]

    def weighted(*drawn: np.ndarray, axis: int = -1) -> Any:
        """Each of `drawn` (…, items) numbers items of one task; returns (…)."""
        means = [gain[d].sum(axis) / size[d].sum(axis) for gain, size, d in zip(gains, sizes, drawn, strict=True)]
        return sum(weight * mean for weight, mean in zip(weights, means, strict=True))

    everything = tuple(np.arange(len(table)) for table, _ in parts)
    drawn = bootstrap(everything, weighted, config, paired=False).confidence_interval
    return Interval(float(weighted(*everything)), float(drawn.low), float(drawn.high), "items")


def groups(arms: Arms, answers: Answers, frame: pd.DataFrame) -> pd.DataFrame:
    """The mean gain of the tasks of each kind, every task alike, and how far reasoning is ahead.

    Args:
        arms: the runs.
        answers: theirs.
        frame: what `differences` makes of them.

    Returns:
        size, measure, group (a key of GROUPS), tasks, gain, gain_low, gain_high, null_reach.
    """
    rows = []
    for (size, measure), own in frame[frame["measure"].isin(["bits_per_byte", "accuracy_norm"])].groupby(
        ["size", "measure"], sort=False
    ):
        pair, kinds = claimed(arms, answers)[size], own[own["claimed"]].set_index("task")["kind"]
        means = own.groupby(["base", "small", "kind"])["gain"].mean().unstack("kind")
        nulls = means.loc[own[own["null"].notna()].groupby(["base", "small"]).groups.keys()]
        for group, signs in GROUPS.items():
            sign = {name: weight for name, weight in zip(KINDS, signs, strict=True) if weight}
            if not set(sign) <= set(kinds):
                continue
            tables = {task: paired(answers, pair, task, measure) for task in kinds[kinds.isin(list(sign))].index}
            parts = [
                (t, sign[kinds[task]] / (kinds == kinds[task]).sum()) for task, t in tables.items() if t is not None
            ]
            value = sum(weight * table["gain"].sum() / table["weight"].sum() for table, weight in parts)
            row = {"size": size, "measure": measure, "group": group, "tasks": len(parts)}
            row |= columns("gain", average(parts, arms.config), value)
            rows.append(row | {"null_reach": sum(nulls[name] * weight for name, weight in sign.items()).abs().max()})
    return pd.DataFrame(rows, columns=["size", "measure", "group", "tasks", *GAIN, "null_reach"])


# ------------------------------------------------------------------------------------------------------------- levels
def levels(arms: Arms, answers: Answers) -> pd.DataFrame:
    """Tasks with levels of difficulty, claimed comparisons: base, small and gain with intervals over items.

    Returns:
        size, task, language, level, measure (bits_per_byte or exact), items, then three columns for each of the three.
        The intervals of an exact match are Wilson's, which also say something where no answer is right.
    """
    rows = []
    for size, pair in claimed(arms, answers).items():
        for task in answers.tasks:
            for measure in ("bits_per_byte", "exact"):
                table = paired(answers, pair, task, measure)
                asked = answers.tables.get((pair.base, task))
                if table is None or asked is None or asked["level"].isna().all():
                    continue
                for level, own in table.groupby(asked["level"].astype(int)):
                    row = {"size": size, "task": task, "language": asked["language"].iloc[0], "level": level}
                    row |= {"measure": measure, "items": len(own)}
                    for arm in ("base", "small"):
                        row |= columns(
                            arm, _single(own, arm, measure, arms.config), own[arm].sum() / own["weight"].sum()
                        )
                    rows.append(
                        row | columns("gain", interval(own, arms.config), own["gain"].sum() / own["weight"].sum())
                    )
    keys = ["size", "task", "language", "level", "measure", "items"]
    arms_of = [f"{arm}{end}" for arm in ("base", "small") for end in ("", "_low", "_high")]
    return pd.DataFrame(rows, columns=[*keys, *arms_of, *GAIN])


def _single(table: pd.DataFrame, arm: str, measure: str, config: AnalysisConfig) -> Interval | None:
    """The measure of one of the two runs with its interval over items."""
    if len(table) < FEWEST:
        return None
    if measure == "bits_per_byte":
        return bootstrap_ratio(table[arm].to_numpy(), table["weight"].to_numpy(), "items", config)
    hits = stats.binomtest(int(table[arm].sum()), len(table))
    low, high = hits.proportion_ci(config.confidence, method="wilson")
    return Interval(hits.statistic, float(low), float(high), "items")


# -------------------------------------------------------------------------------------------------------------- claim
def reasoning_gains(arms: Arms, answers: Answers) -> dict[str, Interval | None]:
    """The rule for "gains on reasoning benchmarks": what should be positive, at every size, first seed.

    The gain in bits per byte of the right answer on each of the benchmarks that the claim names; and where there is a
    second seed, the same gain minus the null's largest one. None where a run or a task is missing.
    """
    first, effects = claimed(arms, answers), {}
    for size in arms.sizes():
        null = [pair for pair in pairs(arms, answers) if pair.size == size and pair.null is not None]
        for task in NAMED:
            table = paired(answers, first[size], task, "bits_per_byte") if size in first else None
            effects[f"{size} {task}"] = interval(table, arms.config)
            others = [other for pair in null if (other := paired(answers, pair, task, "bits_per_byte")) is not None]
            if table is not None and others:
                largest = max(others, key=lambda other: abs(other["gain"].sum()))["gain"]
                beyond = table.assign(gain=table["gain"] - np.sign(largest.sum()) * largest.loc[table.index])
                effects[f"{size} {task} beyond seeds"] = interval(beyond, arms.config)
    return effects


def rank_accuracy(arms: Arms, answers: Answers) -> dict[str, Interval | None]:
    """What the claim takes for granted: no lower accuracy (log p per byte) where a named benchmark has choices."""
    effects: dict[str, Interval | None] = {}
    for size, pair in claimed(arms, answers).items():
        for task in NAMED:
            table = paired(answers, pair, task, "accuracy_norm")
            if table is not None:
                effects[f"{size} {task} accuracy"] = interval(table, arms.config)
    return effects
