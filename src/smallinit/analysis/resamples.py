"""For statistics that are more than a contrast of losses: the losses on resampled documents, and refusals in words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.statistics import Interval, bootstrap


@dataclass(frozen=True)
class Refusal:
    """Why a number is not stated, in words for the reader of a table."""

    reason: str

    def __str__(self) -> str:
        return self.reason


def resampled_losses(documents: pd.DataFrame, runs: Sequence[str], config: AnalysisConfig) -> np.ndarray:
    """Mean losses (nats per token) of runs on resampled held-out documents, (bootstrap_samples, runs) float64.

    One resample is the same documents for all runs, so what is hard for all of them cancels in any comparison.

    Raises:
        ValueError: the runs do not share at least two documents.
    """
    chosen = documents[documents["run"].isin(runs)]
    sums, tokens = (chosen.pivot(index="document", columns="run", values=key) for key in ("loss_sum", "tokens"))
    missing = set(runs) - set(sums.columns)
    if missing or len(sums) < 2 or sums.isna().any(axis=None) or (tokens.nunique(axis=1) > 1).any():
        raise ValueError(f"runs do not share two documents or more; without any: {sorted(missing) or 'none'}")

    def means(*columns: np.ndarray, axis: int) -> np.ndarray:
        totals = np.stack([column.sum(axis=axis) for column in columns])
        return totals[:-1] / totals[-1]

    data = (*(sums[run].to_numpy() for run in runs), tokens.iloc[:, 0].to_numpy(dtype=float))
    result = bootstrap(data, means, config, paired=True)
    samples: np.ndarray = result.bootstrap_distribution.T
    return samples


def mean_losses(documents: pd.DataFrame, runs: Sequence[str]) -> np.ndarray:
    """Mean loss (nats per token) of each run over its held-out documents, (runs,) float64."""
    totals = documents.groupby("run")[["loss_sum", "tokens"]].sum().loc[list(runs)]
    means: np.ndarray = (totals["loss_sum"] / totals["tokens"]).to_numpy(dtype=float)
    return means


def percentile(value: float, samples: np.ndarray, config: AnalysisConfig) -> Interval:
    """The percentile interval of an estimate from its values on resampled documents, (bootstrap_samples,)."""
    tail = (1 - config.confidence) / 2
    low, high = np.quantile(samples, [tail, 1 - tail])
    return Interval(value, float(low), float(high), "documents")
