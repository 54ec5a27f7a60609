"""What runs have answered to the benchmarks' items, and two of them side by side on the same items.

Every gain is taken so that it is positive where the second run of a pair, gamma = 1, is better.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from smallinit import paths
from smallinit.analysis import token_pairs
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.ladder import BASE, SMALL, Arms
from smallinit.analysis.statistics import Interval, bootstrap_ratio
from smallinit.analysis.token_pairs import Pair

VARIANT = "both"  # with both interventions, as in the claim
MEASURES = {
    "bits_per_byte": "bits per byte of the right answer",
    "accuracy": "accuracy",
    "accuracy_norm": "accuracy, log p per byte",
    "exact": "exact match",
}
HITS = {"accuracy": "correct", "accuracy_norm": "correct_norm", "exact": "exact"}  # columns of zeros and ones
FEWEST = 5  # items; of fewer, drawing with replacement says nothing


@dataclass(frozen=True)
class Answers:
    """What the compared runs have answered."""

    items: pd.DataFrame  # run, and a row an item as the stage `benchmark` writes it
    summary: pd.DataFrame  # run, and a row a task
    missing: list[str]  # runs that have not been asked

    @property
    def tasks(self) -> list[str]:
        """Tasks in the order of the manifest."""
        return list(self.items["task"].unique())

    @cached_property
    def tables(self) -> dict[tuple[str, str], pd.DataFrame]:
        """The items of each run and task, by their id."""
        grouped = self.items.groupby(["run", "task"], sort=False)
        return {(str(run), str(task)): own.set_index("item") for (run, task), own in grouped}


def load(arms: Arms) -> Answers:
    """The answers of all runs of the variant at both gammas that did not diverge."""
    runs = arms.results.runs
    wanted = (runs["variant"] == VARIANT) & runs["gamma"].isin((BASE, SMALL)) & ~runs["diverged"]
    items, summaries, missing = [], [], []
    for run in runs.loc[wanted, "run"]:
        folder = paths.RESULTS / "benchmark" / run
        if not (folder / "items.csv").exists():
            missing.append(str(run))
            continue
        items.append(pd.read_csv(folder / "items.csv", dtype={"task": str, "item": str}).assign(run=run))
        summaries.append(pd.read_csv(folder / "summary.csv").assign(run=run))
    nothing = pd.DataFrame(columns=["run", "task", "item", "language", "level"])
    return Answers(
        pd.concat(items, ignore_index=True) if items else nothing,
        pd.concat(summaries, ignore_index=True) if summaries else nothing,
        missing,
    )


def pairs(arms: Arms, answers: Answers) -> list[Pair]:
    """All comparisons, size by size: gamma = 1 against 0.5, the first seed first, then two seeds of one gamma."""
    asked = set(answers.items["run"])
    found = [
        pair
        for size in arms.sizes()
        for pair in (*token_pairs.gammas(arms, size, VARIANT), *token_pairs.nulls(arms, size, VARIANT))
    ]
    return [pair for pair in found if {pair.base, pair.small} <= asked]


def claimed(arms: Arms, answers: Answers) -> dict[str, Pair]:
    """The comparison that the claim is about, by size: gamma = 1 against 0.5, first seed that has both."""
    first: dict[str, Pair] = {}
    for pair in pairs(arms, answers):
        if pair.null is None:
            first.setdefault(pair.size, pair)
    return first


def paired(answers: Answers, pair: Pair, task: str, measure: str) -> pd.DataFrame | None:
    """Both runs on every item of a task: base and small (bits, or 0 and 1), weight (bytes, or 1) and gain.

    The measure is sum over sum: bits by bytes, hits by items. None where a run was not asked, or it does not apply.

    Raises:
        ValueError: the runs were not asked the same items.
    """
    tables = [answers.tables.get((run, task)) for run in (pair.base, pair.small)]
    if any(table is None for table in tables):
        return None
    base, small = (table for table in tables if table is not None)
    if set(base.index) != set(small.index):
        raise ValueError(
            f"{pair.base} and {pair.small} were not asked the same items of {task}: run `dvc repro` for the stages "
            f"benchmark@{pair.base} and benchmark@{pair.small}"
        )
    small = small.loc[base.index]
    if measure == "bits_per_byte":
        bits = [table["gold_nats"].to_numpy(dtype=float) / np.log(2) for table in (base, small)]
        weight, gain = base["gold_bytes"].to_numpy(dtype=float), bits[0] - bits[1]
        return pd.DataFrame({"base": bits[0], "small": bits[1], "weight": weight, "gain": gain}, index=base.index)
    hits = [table[HITS[measure]].to_numpy(dtype=float) for table in (base, small)]
    table = pd.DataFrame({"base": hits[0], "small": hits[1], "weight": 1.0, "gain": hits[1] - hits[0]}, base.index)
    return None if table["gain"].isna().any() else table


def interval(table: pd.DataFrame | None, config: AnalysisConfig) -> Interval | None:
    """The gain with its interval over items; None without a table or with fewer than FEWEST items."""
    if table is None or len(table) < FEWEST:
        return None
    return bootstrap_ratio(table["gain"].to_numpy(), table["weight"].to_numpy(), "items", config)


def narrowing(answers: Answers, pair: Pair, config: AnalysisConfig) -> pd.Series:
    """By which factor pairing narrows the interval of a difference in bits per byte; a number a task.

    Without pairing, the two runs would have been asked different items, and the variances of both would add up.
    """
    factors = {}
    for task in answers.tasks:
        table = paired(answers, pair, task, "bits_per_byte")
        found = (
            [interval(table.assign(gain=table[name]), config) for name in ("base", "small", "gain")]
            if table is not None
            else []
        )
        widths = [each.high - each.low for each in found if each is not None]
        if len(widths) == 3 and widths[2] > 0:
            factors[task] = float(np.hypot(widths[0], widths[1]) / widths[2])
    return pd.Series(factors, dtype=float)


# ------------------------------------------------------------------------------------------------------------- tables
def overview(arms: Arms, answers: Answers) -> pd.DataFrame:
    """One row a run and task: size, gamma, seed, then the columns of the stage's summary."""
    runs = arms.results.runs[["run", "size", "gamma", "seed"]]
    joined = runs.merge(answers.summary, on="run", how="inner")
    order = {task: number for number, task in enumerate(answers.tasks)}
    return joined.sort_values("task", key=lambda task: task.map(order), kind="stable", ignore_index=True)


def readable(table: pd.DataFrame, gammas: tuple[float, float] = (BASE, SMALL)) -> pd.DataFrame:
    """Both gammas of one size and seed side by side, for people; `table` as `overview` makes it."""
    rows = []
    for task, own in table.groupby("task", sort=False):
        any_row = own.iloc[0]
        row = {
            "task": task,
            "items": any_row["items"],
            "cut": any_row["truncated"],
            "chance": percent(any_row["chance"]),
        }
        for name, label in (
            ("accuracy", "accuracy"),
            ("accuracy_norm", "per byte"),
            ("exact", "exact"),
            ("bits_per_byte", "bits/byte"),
        ):
            for gamma in gammas:
                arm = own[own["gamma"] == gamma].iloc[:1].to_dict("records")
                row[f"{label}, γ = {gamma:g}"] = _cell(arm[0], name) if arm else "–"
        rows.append(row)
    return pd.DataFrame(rows)


def percent(share: float) -> str:
    """A share as a percentage, a dash where there is none."""
    return "–" if pd.isna(share) else f"{share:.1%}"


def _cell(row: dict[str, float], measure: str) -> str:
    if measure == "bits_per_byte":
        return f"{row[measure]:.3f}"
    return "–" if pd.isna(row[measure]) else f"{row[measure]:.1%} ± {row[f'{measure}_se']:.1%}"
