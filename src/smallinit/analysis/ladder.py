"""The ladder's comparisons: the gain of gamma = 1 over gamma = 0.5 for every size and variant."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from smallinit.analysis import nulls
from smallinit.analysis.collect import Results
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.statistics import Interval, loss_contrast

BASE, SMALL = 0.5, 1.0  # the two arms that the paper compares


@dataclass(frozen=True)
class Arms:
    """Finds runs by size, gamma and variant, and contrasts their losses."""

    results: Results
    config: AnalysisConfig
    exponents: pd.DataFrame | None = None  # of the residual flow, as `theory` has measured them

    @cached_property
    def loss_null(self) -> nulls.Null:
        """`nulls.losses` of these results."""
        return nulls.losses(self.results)

    @cached_property
    def gain_null(self) -> nulls.Null:
        """`nulls.gains` of these results."""
        return nulls.gains(self.results)

    def run(self, size: str, gamma: float, variant: str, seed: int | None = None) -> str | None:
        """The run's name, or None if there is no such run or it diverged. Without a seed: that of the first run."""
        runs = self.results.runs
        seed = int(runs["seed"].iloc[0]) if seed is None else seed
        same = (runs["size"] == size) & (runs["gamma"] == gamma) & (runs["variant"] == variant) & (runs["seed"] == seed)
        found = runs[same & ~runs["diverged"]]
        return None if found.empty else str(found["run"].iloc[0])

    def seeds(self, size: str, variant: str) -> list[int]:
        """The seeds for which there is a run of both arms, the first run's seed first."""
        own = [int(seed) for seed in self.results.runs["seed"].unique()]
        return [seed for seed in own if all(self.run(size, gamma, variant, seed) for gamma in (BASE, SMALL))]

    def sizes(self) -> list[str]:
        """Sizes from small to large."""
        return list(self.results.runs.sort_values("parameters")["size"].unique())

    def contrast(self, weights: dict[tuple[str, float, str], float]) -> Interval | None:
        """A weighted sum of losses of (size, gamma, variant) arms; None if one of them is not there."""
        named = {self.run(*arm): weight for arm, weight in weights.items()}
        return None if None in named else loss_contrast(self.results.documents, named, self.config)  # type: ignore[arg-type]

    def gain(self, size: str, variant: str) -> Interval | None:
        """Loss at gamma = 0.5 minus loss at gamma = 1 (nats per token): positive where small initialization wins."""
        return self.contrast({(size, BASE, variant): 1, (size, SMALL, variant): -1})

    def gain_change(self, after: tuple[str, str], before: tuple[str, str]) -> Interval | None:
        """Gain at (size, variant) `after` minus the gain at `before`."""
        plus = {(after[0], BASE, after[1]): 1.0, (after[0], SMALL, after[1]): -1.0}
        minus = {(before[0], BASE, before[1]): -1.0, (before[0], SMALL, before[1]): 1.0}
        return self.contrast(plus | minus)


def gains(arms: Arms) -> pd.DataFrame:
    """One row a size and variant: the gain of gamma = 1 with its interval; empty where a run diverged or is missing.

    Columns: variant, size, d_model, gain, low, high, null (the largest difference of two seeds, see `nulls`).
    """
    rows = []
    for variant in arms.results.runs["variant"].unique():
        for size in arms.sizes():
            gain = arms.gain(size, variant)
            rows.append(
                {
                    "variant": variant,
                    "size": size,
                    "d_model": int(arms.results.runs.loc[arms.results.runs["size"] == size, "d_model"].iloc[0]),
                    "gain": gain.value if gain else None,
                    "low": gain.low if gain else None,
                    "high": gain.high if gain else None,
                }
            )
    return arms.loss_null.beside(pd.DataFrame(rows))


def loss_table(results: Results) -> pd.DataFrame:
    """One row a size and variant, both gammas side by side, for people."""
    rows = []
    for (size, variant), group in results.runs.groupby(["size", "variant"], sort=False):
        entry: dict[str, object] = {"size": size, "d_model": group["d_model"].iloc[0], "variant": variant}
        for gamma, arm in group.groupby("gamma"):
            lost = arm["diverged"].any()
            entry[f"loss γ={gamma}"] = "diverged" if lost else f"{arm['loss'].mean():.3f}"
            entry[f"bits/byte γ={gamma}"] = "–" if lost else f"{arm['bits_per_byte'].mean():.3f}"
        rows.append(entry | {"seeds": group["seed"].nunique()})
    order = {size: number for number, size in enumerate(results.runs["size"].unique())}
    return pd.DataFrame(rows).sort_values("size", key=lambda column: column.map(order), kind="stable")
