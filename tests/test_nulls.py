"""The same-gamma null: what planted seeds differ by is found, given to those without seeds, said and drawn."""

import made_up_variants
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from made_up_variants import pair

from smallinit.analysis import nulls
from smallinit.analysis.collect import Results
from smallinit.plots import nulls as draw

SEEDS = {
    "standard": pair(4.7, 4.6) | pair(4.75, 4.8, seed=1),  # seeds differ by 0.05 and 0.2, gains 0.1 and -0.05
    "both": pair(4.7, 4.5) | pair(4.72, 4.49, seed=1),  # by 0.02 and 0.01, gains 0.2 and 0.23
    "eps": pair(4.7, 4.4) | pair(4.6, 4.3, size="m"),
}
ONE = {"both": pair(4.7, 4.5)}


def with_attention(results: Results, shares: dict[str, float]) -> Results:
    """Two windows and two heads a run, whose mean is this share; no gate."""
    shape = [(window, head) for window in range(2) for head in range(2)]
    rows = [[run, window, head, share + 0.01 * (head - 0.5)] for run, share in shares.items() for window, head in shape]
    results.attention = pd.DataFrame(rows, columns=["run", "window", "head", "sink"]).assign(gate=np.nan)
    return results


def test_the_null_of_a_comparison_is_of_its_variant_and_gamma_where_these_have_two_seeds() -> None:
    null = nulls.losses(made_up_variants.results(SEEDS))
    assert len(null.differences) == 4
    assert null.reach({"variant": ["both"], "gamma": [0.5], "size": ["s"]}) == pytest.approx(0.02)
    assert null.reach({"variant": ["both"], "gamma": (0.5, 1.0), "size": ["m"]}) == pytest.approx(0.02)  # that of s
    assert null.reach({"variant": ("standard", "gate"), "gamma": [0.5]}) == pytest.approx(0.05)
    assert null.reach({"variant": ["eps"], "gamma": [0.5]}) == pytest.approx(0.05)  # of all variants
    assert null.reach({"variant": ["eps"]}) == pytest.approx(0.2) == null.reach({})


def test_the_null_of_a_difference_of_gains_is_of_two_gains() -> None:
    null = nulls.gains(made_up_variants.results(SEEDS))
    assert null.differences["difference"].abs().tolist() == pytest.approx([0.15, 0.03])
    table = pd.DataFrame({"size": ["s", "s"], "value": [0.1, 0.1]})
    compared = [{"size": ["s"], "variant": ["both"], "gamma": [1.0]}] * 2
    both = nulls.beside(table, made_up_variants.results(SEEDS), pd.Series([False, True]), compared)
    assert both["null"].tolist() == pytest.approx([0.01, 0.03])


def test_a_diverged_seed_is_in_no_null() -> None:
    results = made_up_variants.results({"both": pair(4.7, 4.5) | pair(4.8, None, seed=1)})
    assert nulls.losses(results).differences["gamma"].tolist() == [0.5]
    assert nulls.gains(results).differences.empty


def test_the_text_counts_what_exceeds_the_null_and_names_arms_and_sizes() -> None:
    null = nulls.losses(made_up_variants.results(SEEDS))
    table = pd.DataFrame({"size": ["s", "m", "m"], "gain": [0.1, -0.3, np.nan]})
    text = null.text(null.beside(table, [{}] * 3), "gain", "gains")
    assert "4 differences between two seeds of one arm" in text
    assert "0.050 in `s-0.5-standard` (standard deviation 0.050), 0.200 in `s-1.0-standard`" in text
    assert "Further from zero than their null: 1 of 2 gains. There is one seed at size m; the null is" in text
    few = null.text(null.beside(table.iloc[:1], [{}]), "gain", "gains")
    assert few.endswith("Further from zero than their null: 0 of 1 gains.")


def test_the_standard_deviation_is_about_zero_since_the_order_of_seeds_is_arbitrary() -> None:
    results = made_up_variants.results({"both": pair(4.7, 4.5) | pair(4.8, 4.5, seed=1) | pair(4.8, 4.5, seed=2)})
    text = nulls.losses(results).text(pd.DataFrame({"size": [], "gain": [], "null": []}), "gain", "gains")
    assert f"0.100 in `s-0.5-both` (standard deviation {0.1 * np.sqrt(2 / 3):.3f})" in text and text.endswith("token.")


def test_without_a_second_seed_there_is_no_null_and_this_is_said() -> None:
    null = nulls.losses(made_up_variants.results(ONE))
    table = null.beside(pd.DataFrame({"size": ["s"], "gain": [0.2]}), [{"size": ["s"]}])
    assert table["null"].isna().all() and table["null"].dtype == float
    assert null.text(table, "gain", "gains") == (
        "No null: no arm has two seeds, so how much of the gains is luck is not known."
    )
    assert nulls.gains(made_up_variants.results(ONE)).differences.empty
    assert draw.note(table["null"]) == nulls.NONE
    lost = made_up_variants.results({"both": pair(4.7, 4.5) | pair(None, None, seed=1)})
    assert nulls.losses(lost).differences.empty


def test_sinks_have_a_null_and_a_measure_that_nobody_has_does_not() -> None:
    shares = {"s-0.5-both": 0.1, "s-0.5-both-seed1": 0.13, "s-1.0-both": 0.2, "s-1.0-both-seed1": 0.2}
    results = with_attention(made_up_variants.results({"both": SEEDS["both"]}), shares)
    found = nulls.attention(results, "sink", "shares")
    assert found.differences["difference"].tolist() == pytest.approx([-0.03, 0])
    assert nulls.attention(results, "gate", "shares").differences.empty
    assert nulls.attention(made_up_variants.results(SEEDS), "sink", "shares").differences.empty


def test_bars_reach_as_far_as_the_null_to_both_sides_and_are_named_once() -> None:
    figure, axes = plt.subplots()
    for shift in (0, 0.5):
        draw.bars(axes, [shift, 1 + shift], pd.Series([0.1, np.nan]), 0.2)
    edges = [value for bar in axes.patches for value in (bar.get_y(), bar.get_height())]
    assert edges == pytest.approx([-0.1, 0.2] * 2)
    assert axes.get_legend_handles_labels()[1] == [draw.LABEL]
    draw.bars(axes, [2.0], pd.Series([np.nan]), 0.2)
    assert len(axes.patches) == 2
    plt.close(figure)
