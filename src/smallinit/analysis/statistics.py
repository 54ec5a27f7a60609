"""Intervals: paired bootstraps over held-out documents or windows (scipy), and what they do not cover."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from smallinit.analysis.config import AnalysisConfig

MIN_SEEDS = 3  # for an interval over seeds: that of two is 13 standard errors wide to each side


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval; `units` says what was resampled."""

    value: float
    low: float
    high: float
    units: str

    def __str__(self) -> str:
        digits = 3 if max(abs(self.low), abs(self.high)) >= 0.01 else 5
        return f"{self.value:+.{digits}f} [{self.low:+.{digits}f}, {self.high:+.{digits}f}]"

    @property
    def sign(self) -> int:
        """+1 or -1 if the interval lies on one side of zero, else 0."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


def ratio(numerator: np.ndarray, denominator: np.ndarray, axis: int = -1) -> np.ndarray:
    """Sum over sum: a mean over tokens, from sums over documents."""
    value: np.ndarray = numerator.sum(axis=axis) / denominator.sum(axis=axis)
    return value


def bootstrap(data: Sequence[np.ndarray], statistic: Callable[..., Any], config: AnalysisConfig, paired: bool) -> Any:
    """scipy's percentile bootstrap with the settings of `config`; `statistic` takes the arrays of `data` and an axis.

    `paired` resamples all arrays together, else each on its own. Returns scipy's BootstrapResult.
    """
    return stats.bootstrap(
        data,
        statistic,
        paired=paired,
        vectorized=True,
        n_resamples=config.bootstrap_samples,
        batch=100,
        confidence_level=config.confidence,
        method="percentile",
        rng=np.random.default_rng(config.seed),
    )


def bootstrap_ratio(numerator: np.ndarray, denominator: np.ndarray, units: str, config: AnalysisConfig) -> Interval:
    """Percentile bootstrap of sum(numerator) / sum(denominator) over their common units, (n,) each.

    Raises:
        ValueError: fewer than two units.
    """
    if len(numerator) < 2:
        raise ValueError(f"an interval needs at least two {units}, got {len(numerator)}: raise `evaluate.tokens`")
    interval = bootstrap((numerator, denominator), ratio, config, paired=True).confidence_interval
    return Interval(float(ratio(numerator, denominator)), float(interval.low), float(interval.high), units)


def loss_contrast(documents: pd.DataFrame, weights: dict[str, float], config: AnalysisConfig) -> Interval:
    """A weighted sum of runs' mean losses (nats per token), with an interval over the documents that all share.

    `{"a": 1, "b": -1}` is the loss of a minus that of b; four runs make a difference of differences. The runs saw the
    same documents, so what is hard for all of them cancels. Variation between seeds is not in this interval.
    """
    chosen = documents[documents["run"].isin(weights)]
    losses, tokens = (chosen.pivot(index="document", columns="run", values=key) for key in ("loss_sum", "tokens"))
    missing = set(weights) - set(losses.columns)
    if missing or losses.isna().any(axis=None) or (tokens.nunique(axis=1) > 1).any():
        raise ValueError(f"runs do not share the same documents; without any: {sorted(missing) or 'none'}")
    contrast = sum(weight * losses[run].to_numpy() for run, weight in weights.items())
    return bootstrap_ratio(np.asarray(contrast), tokens.iloc[:, 0].to_numpy(dtype=float), "documents", config)


def window_contrast(attention: pd.DataFrame, column: str, a: str, b: str, config: AnalysisConfig) -> Interval:
    """Difference a - b of a head-averaged attention measure, with an interval over the windows that both saw."""
    means = attention[attention["run"].isin([a, b])].groupby(["run", "window"])[column].mean()
    if not means[a].index.equals(means[b].index):
        raise ValueError(f"{a} and {b} were not measured on the same windows: evaluate both again")
    difference = (means[a] - means[b]).to_numpy()
    return bootstrap_ratio(difference, np.ones_like(difference), "windows", config)


def over_seeds(values: Sequence[float], confidence: float) -> Interval | None:
    """Student's interval of a mean over seeds; None for a single seed, which has no interval."""
    if len(values) < 2:
        return None
    mean = float(np.mean(values))
    if np.ptp(values) == 0:
        return Interval(mean, mean, mean, "seeds")
    low, high = stats.t.interval(confidence, len(values) - 1, loc=mean, scale=stats.sem(values))
    return Interval(mean, float(low), float(high), "seeds")
