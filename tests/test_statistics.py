"""Intervals: they cover what is true, see what is planted, and are refused where they would compare unlike things."""

import numpy as np
import pandas as pd
import pytest

from smallinit.analysis import statistics
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.statistics import Interval

CONFIG = AnalysisConfig(bootstrap_samples=300, confidence=0.95, seed=0, difficulty_bins=10)


def documents(difference: float, seed: int, noise: float = 0.05, count: int = 80) -> pd.DataFrame:
    """Runs a and b on the same documents of very unequal difficulty; a loses `difference` nats per token more."""
    random = np.random.default_rng(seed)
    tokens, hard = random.integers(20, 400, count), random.normal(4, 1, count)
    tables = [
        pd.DataFrame(
            {
                **{"run": run, "document": range(count), "tokens": tokens},
                "loss_sum": tokens * (hard + extra + random.normal(0, noise, count)),
            }
        )
        for run, extra in (("a", difference), ("b", 0.0))
    ]
    return pd.concat(tables, ignore_index=True)


def test_the_interval_covers_the_true_difference_as_often_as_it_says() -> None:
    intervals = [statistics.loss_contrast(documents(0.02, seed), {"a": 1, "b": -1}, CONFIG) for seed in range(60)]
    covered = np.mean([interval.low <= 0.02 <= interval.high for interval in intervals])
    assert 0.85 <= covered < 1.0


def test_a_planted_difference_is_seen_and_its_absence_is_not() -> None:
    planted = statistics.loss_contrast(documents(0.1, 0), {"a": 1, "b": -1}, CONFIG)
    assert planted.sign == 1 and planted.value == pytest.approx(0.1, abs=0.02) and planted.units == "documents"
    assert statistics.loss_contrast(documents(0.1, 0), {"a": -1, "b": 1}, CONFIG).sign == -1
    assert statistics.loss_contrast(documents(0.0, 0), {"a": 1, "b": -1}, CONFIG).sign == 0


def test_the_value_is_the_difference_of_mean_losses_over_tokens() -> None:
    table = documents(0.1, 0)
    by_run = table.groupby("run")[["loss_sum", "tokens"]].sum()
    means = by_run["loss_sum"] / by_run["tokens"]
    found = statistics.loss_contrast(table, {"a": 1, "b": -1}, CONFIG)
    assert found.value == pytest.approx(means["a"] - means["b"], rel=1e-12)


def test_pairing_cancels_what_is_hard_for_both() -> None:
    table = documents(0.1, 0)
    paired = statistics.loss_contrast(table, {"a": 1, "b": -1}, CONFIG)
    alone = statistics.loss_contrast(table, {"a": 1}, CONFIG)
    assert paired.high - paired.low < (alone.high - alone.low) / 5


def test_each_document_is_resampled_with_its_own_tokens() -> None:
    same = statistics.loss_contrast(documents(0.1, 0, noise=0.0), {"a": 1, "b": -1}, CONFIG)
    assert (same.low, same.value, same.high) == pytest.approx((0.1, 0.1, 0.1))


def test_the_order_of_rows_does_not_matter() -> None:
    table = documents(0.1, 0)
    shuffled = table.sample(frac=1, random_state=0)
    assert statistics.loss_contrast(table, {"a": 1, "b": -1}, CONFIG) == statistics.loss_contrast(
        shuffled, {"a": 1, "b": -1}, CONFIG
    )


def test_a_higher_confidence_gives_a_wider_interval() -> None:
    wide, narrow = (
        statistics.loss_contrast(documents(0.1, 0), {"a": 1, "b": -1}, CONFIG.model_copy(update={"confidence": c}))
        for c in (0.99, 0.8)
    )
    assert wide.low < narrow.low < narrow.high < wide.high


def test_runs_on_different_documents_are_refused() -> None:
    table = documents(0.1, 0)
    with pytest.raises(ValueError, match="do not share the same documents"):
        statistics.loss_contrast(table.iloc[:-1], {"a": 1, "b": -1}, CONFIG)
    with pytest.raises(ValueError, match=r"without any: \['c'\]"):
        statistics.loss_contrast(table, {"a": 1, "c": -1}, CONFIG)


def test_runs_with_other_token_counts_of_the_same_documents_are_refused() -> None:
    table = documents(0.1, 0)
    table.loc[table["run"] == "b", "tokens"] += 1
    with pytest.raises(ValueError, match="documents"):
        statistics.loss_contrast(table, {"a": 1, "b": -1}, CONFIG)


def test_a_single_document_has_no_interval() -> None:
    with pytest.raises(ValueError, match=r"at least two documents, got 1.*evaluate\.tokens"):
        statistics.loss_contrast(documents(0.1, 0, count=1), {"a": 1, "b": -1}, CONFIG)


def windows(counts: dict[str, int]) -> pd.DataFrame:
    random = np.random.default_rng(0)
    hard = random.normal(0, 0.2, 20)
    rows = [
        {"run": run, "window": window, "head": head, "sink": hard[window] + shift + random.normal(0, 0.01)}
        for (run, count), shift in zip(counts.items(), (0.1, 0.0), strict=True)
        for window in range(count)
        for head in range(2)
    ]
    return pd.DataFrame(rows)


def test_a_difference_of_attention_is_paired_over_windows() -> None:
    table = windows({"a": 20, "b": 20})
    found = statistics.window_contrast(table, "sink", "a", "b", CONFIG)
    means = table.groupby("run")["sink"].mean()
    assert found.value == pytest.approx(means["a"] - means["b"]) and found.units == "windows"
    assert 0.08 < found.low < 0.1 < found.high < 0.12


def test_runs_with_different_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="windows"):
        statistics.window_contrast(windows({"a": 20, "b": 19}), "sink", "a", "b", CONFIG)


def test_one_seed_has_no_interval_and_three_have_students() -> None:
    assert statistics.over_seeds([1.0], 0.95) is None
    found = statistics.over_seeds([1.0, 2.0, 3.0], 0.95)
    half = 4.302652729911275 * 1.0 / 3**0.5  # t(0.975, 2 degrees of freedom) x s / sqrt(n), s = 1
    assert found is not None and found.units == "seeds"
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2 - half, 2 + half))


def test_seeds_that_agree_have_an_interval_of_no_width() -> None:
    assert statistics.over_seeds([1.0, 1.0], 0.95) == Interval(1.0, 1.0, 1.0, "seeds")


@pytest.mark.parametrize(("low", "high", "sign"), [(0.1, 0.2, 1), (-0.2, -0.1, -1), (-0.1, 0.2, 0), (0.0, 0.2, 0)])
def test_an_interval_that_touches_zero_has_no_sign(low: float, high: float, sign: int) -> None:
    assert Interval(0.1, low, high, "documents").sign == sign


def test_an_interval_is_written_with_its_bounds() -> None:
    assert str(Interval(0.12345, -0.1, 0.3, "documents")) == "+0.123 [-0.100, +0.300]"
