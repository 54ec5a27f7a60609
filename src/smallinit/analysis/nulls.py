"""The same-gamma null: how far two runs lie apart when nothing but the seed differs, so that no effect is to be found.

Beside every difference of two runs stands that of two seeds of one arm, treated in the same way. An interval over
documents or windows does not cover what seeds move. The null is generous: two seeds differ in the order of the data
too, which the two gammas of one seed share.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from smallinit.analysis.collect import Results
from smallinit.analysis.resamples import mean_losses
from smallinit.analysis.variants import SHARED

ARM = ("size", "variant", "gamma")  # runs that agree in these differ in nothing but the seed
GAMMAS = (0.5, 1.0)  # of a gain; `ladder`, which names them, imports this module
NONE = "no null: no arm has two seeds"
Compared = Mapping[str, Collection[Any]]  # by key of ARM, the values that a comparison involves


@dataclass(frozen=True)
class Null:
    """Differences in one quantity between two seeds of the same arm; there may be none."""

    differences: pd.DataFrame  # a row two seeds: size, variant, gamma (not of gains), a and b (seeds), difference
    unit: str

    def of(self, compared: Compared) -> pd.DataFrame:
        """The differences nearest to a comparison: of its variants, gammas and sizes, each as far as there are any.

        Variants come first, since seeds of one can differ far more than those of another. A variant without two seeds
        at its own size takes those of another size; one that has none at all takes those of the arm that stands for it
        (SHARED), and if there are none either, those of all variants.
        """
        found = self.differences
        for key in ("variant", "gamma", "size"):
            if key in found and key in compared:
                own = found[found[key].isin(compared[key])]
                if own.empty and key == "variant":
                    own = found[found[key].isin({SHARED[each][0] for each in compared[key] if each in SHARED})]
                found = found if own.empty else own
        return found

    def reach(self, compared: Compared) -> float | None:
        """The largest of these differences, whatever its sign; None without any."""
        found = self.of(compared)["difference"].abs()
        return None if found.empty else float(found.max())

    def beside(self, table: pd.DataFrame, compared: Sequence[Compared] | None = None) -> pd.DataFrame:
        """Adds a column `null`, the `reach` of what each row compares; missing if no arm has two seeds.

        Without `compared` that is the row's own size, variant and gamma; where there is no gamma, both of a gain.
        """
        if compared is None:
            compared = [
                {key: [row[key]] for key in ARM if key in row} | ({} if "gamma" in row else {"gamma": GAMMAS})
                for row in table.to_dict("records")
            ]
        return table.assign(null=pd.Series(map(self.reach, compared), index=table.index, dtype=float))

    def text(self, table: pd.DataFrame, value: str, name: str) -> str:
        """The null in words, and how many differences of a table exceed it; Markdown.

        Args:
            table: a row a difference, with its `size` and the `null` that `beside` has added.
            value: the column of the difference; rows without one are left out.
            name: what the differences are called, in the plural.
        """
        if self.differences.empty:
            return f"{NONE.capitalize()}, so how much of the {name} is luck is not known."
        arms = [key for key in ARM if key in self.differences]
        parts = []
        for arm, group in self.differences.groupby(arms, sort=False)["difference"]:
            arm_name = "-".join(str(each) for each in (arm[0], *arm[2:], arm[1]))  # as runs are named
            sd = digits(float(np.sqrt((group**2).mean())))  # about zero: which seed comes first is arbitrary
            parts.append(f"{digits(group.abs().max())} in `{arm_name}` (standard deviation {sd})")
        text = (
            f"**Beside the null**: {len(self.differences)} differences between two seeds of one arm, where there is "
            f"nothing to find, reach {_listed(parts)}, in {self.unit}."
        )
        known = table.dropna(subset=[value])
        if len(known):
            beyond = int((known[value].abs() > known["null"]).sum())
            text += f" Further from zero than their null: {beyond} of {len(known)} {name}."
        measured = self.differences["size"].unique()
        if others := [size for size in known["size"].unique() if size not in measured]:
            text += f" There is one seed at {_sizes(others)}; the null is that of {_sizes(measured)}."
        return text


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _sizes(names: Sequence[str]) -> str:
    return f"size{'s' if len(names) > 1 else ''} {_listed(names)}"


def digits(value: float) -> str:
    """A null in words: to thousandths, small ones to two digits."""
    return f"{value:.3f}" if value >= 0.01 or value == 0 else f"{value:.2g}"


def signs(table: pd.DataFrame, value: str) -> "pd.Series[int]":
    """+1 or -1 where an interval, `low` to `high`, lies on one side of zero and `value` beyond its `null`, else 0."""
    beyond = ~(table[value].abs() <= table["null"])  # so too where there is no null
    return ((table["low"] > 0) & beyond).astype(int) - ((table["high"] < 0) & beyond).astype(int)


def pairs(rows: pd.DataFrame, same: Sequence[str] = ARM) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every two rows that agree in these columns; rows: one a seed."""
    for _, group in rows.groupby(list(same), sort=False):
        yield from combinations(group.to_dict("records"), 2)


def between(rows: pd.DataFrame, unit: str, same: Sequence[str] = ARM) -> Null:
    """The null of `value`, a column of rows of which each is of one seed; rows without a value are left out."""
    found = [
        [*(a[key] for key in same), a["seed"], b["seed"], a["value"] - b["value"]]
        for a, b in pairs(rows.dropna(subset=["value"]), same)
    ]
    return Null(pd.DataFrame(found, columns=[*same, "a", "b", "difference"]).astype({"difference": float}), unit)


# ------------------------------------------------------------------------------------------------------------ of losses
def _with_losses(results: Results) -> pd.DataFrame:
    """Runs that finished, with `value`, the mean loss over whole held-out documents (nats per token)."""
    runs = results.runs[~results.runs["diverged"]]
    return runs.assign(value=mean_losses(results.documents, runs["run"].tolist()) if len(runs) else None)


def losses(results: Results) -> Null:
    """Of a difference of two losses, such as the gain of gamma = 1."""
    return between(_with_losses(results), "nats per token")


def gains(results: Results) -> Null:
    """Of a difference of two gains, hence of four losses: the gain of gamma = 1 with one seed minus that of another."""
    runs = _with_losses(results)
    runs = runs[runs["gamma"].isin(GAMMAS)]
    keys = ["size", "variant", "seed"]
    wide = runs.pivot(index=keys, columns="gamma", values="value").reindex(runs.set_index(keys).index.unique())
    wide = wide.reindex(columns=GAMMAS)
    value = (wide[GAMMAS[0]] - wide[GAMMAS[1]]).rename("value")
    return between(value.reset_index(), "nats per token", ("size", "variant"))


def beside(table: pd.DataFrame, results: Results, of_gains: pd.Series, compared: Sequence[Compared]) -> pd.DataFrame:
    """Adds a column `null` to a table of differences of losses; where `of_gains` is true they are of two gains."""
    two, four = (null.beside(table, compared)["null"] for null in (losses(results), gains(results)))
    return table.assign(null=four.where(of_gains, two))


def text(table: pd.DataFrame, results: Results, of_gains: pd.Series, names: tuple[str, str]) -> str:
    """`Null.text` of both parts of such a table; names: of its differences of losses, and of gains. Markdown."""
    parts = (losses(results), table[~of_gains], names[0]), (gains(results), table[of_gains], names[1])
    return "\n\n".join(null.text(part, "value", name) for null, part, name in parts if len(part))


# --------------------------------------------------------------------------------------------------------- of attention
def attention(results: Results, column: str, unit: str) -> Null:
    """Of a difference in a measure of attention (`sink` or `gate`), mean over windows and heads."""
    if results.attention.empty:
        return between(results.runs.assign(value=np.nan), unit)
    means = results.attention.groupby("run")[column].mean()
    return between(results.runs.assign(value=results.runs["run"].map(means)), unit)
