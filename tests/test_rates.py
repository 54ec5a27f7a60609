"""The pilot's analysis: planted best rates, powers of the width and turning signs come out, and gaps are named."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import run_config
from ruamel.yaml import YAML

from smallinit.analysis import rate_transfer, rates
from smallinit.analysis.variants import SHARED
from smallinit.params import PeakRate
from smallinit.pilot.trials import COLUMNS
from smallinit.plots import rates as draw

RATES = [5e-4 * 2.0**k for k in range(8)]  # 5e-4 to 6.4e-2
WIDTHS = {"s": 64, "m": 96, "l": 128}
Arm = tuple[str, float, str]  # size, gamma, variant


def trials(
    optima: Mapping[Arm, float], depth: Mapping[Arm, float] | None = None, batch: int = 4096, curvature: float = 0.3
) -> pd.DataFrame:
    """Losses on parabolas with these best rates and, by default, 4.5 nats at the best."""
    rows = []
    for (size, gamma, variant), best in optima.items():
        gate = "elementwise" if variant in ("both", "gate") else "none"
        low = (depth or {}).get((size, gamma, variant), 4.5)
        for rate in RATES:
            loss = low + curvature * np.log2(rate / best) ** 2
            rows.append([size, WIDTHS[size], gamma, variant, gate, batch, rate, 100, loss])
    return pd.DataFrame(rows, columns=COLUMNS)


def lose(table: pd.DataFrame, rate: float, gamma: float = 1.0) -> pd.DataFrame:
    """The same, but the trials of a gamma at a rate diverged."""
    return table.assign(loss=table["loss"].mask(np.isclose(table["peak_lr"], rate) & (table["gamma"] == gamma)))


def run(size: str, gamma: float, variant: str, peak_lr: float, **more: Any) -> Any:
    name = f"{size}-{gamma}-{variant}"
    place = {"d_model": WIDTHS[size], "run": name, "size": size, "gamma": gamma, "variant": variant}
    return run_config(**place, peak_lr=peak_lr, **more)


# ---------------------------------------------------------------------------------------------------------- best rates
@pytest.mark.parametrize("best", [3e-3, 4e-3, 5.5e-3, 0.011])
def test_a_planted_best_rate_is_found_with_its_loss_and_how_flat_it_is(best: float) -> None:
    found = rates.best_of(trials({("s", 1.0, "both"): best}))
    half = (rates.FLAT / 0.3) ** 0.5
    assert (found.rate, found.loss, found.curvature) == pytest.approx((best, 4.5, 0.3))
    assert (found.low, found.high) == pytest.approx((best * 2**-half, best * 2**half)) and not found.at_end


def test_the_flat_range_ends_at_the_neighbours() -> None:
    found = rates.best_of(trials({("s", 1.0, "both"): 4e-3}, curvature=1e-3))
    assert (found.low, found.high) == pytest.approx((2e-3, 8e-3))


@pytest.mark.parametrize(("best", "end"), [(1e-5, RATES[0]), (1.0, RATES[-1])])
def test_a_lowest_loss_at_an_end_is_taken_as_it_is_and_flagged(best: float, end: float) -> None:
    found = rates.best_of(trials({("s", 1.0, "both"): best}))
    assert found.at_end and found.rate == end and np.isnan([found.low, found.high, found.curvature]).all()


def test_a_lowest_loss_beside_a_diverged_trial_is_flagged() -> None:
    found = rates.best_of(lose(trials({("s", 1.0, "both"): 4.2e-3}), 8e-3))
    assert found.at_end and found.rate == pytest.approx(4e-3)
    further = rates.best_of(lose(trials({("s", 1.0, "both"): 4.2e-3}), 1.6e-2))
    assert not further.at_end and further.rate == pytest.approx(4.2e-3)


def test_an_arm_that_always_diverged_has_no_best_rate_and_no_law() -> None:
    table = trials({("s", 0.5, "both"): 8e-3, ("s", 1.0, "both"): 4e-3})
    best = rates.best_table(table.assign(loss=table["loss"].mask(table["gamma"] == 1)))
    assert best["rate"].isna().tolist() == [False, True] and best["at_end"].tolist() == [False, True]
    assert set(rate_transfer.laws(best)) == {(0.5, "both")}
    assert "diverged at every rate" in rates.fixed_verdict(rates.at_fixed(table.assign(loss=np.nan)))


def test_trials_are_read_from_the_sizes_named_and_a_missing_one_names_its_stage(tmp_path: Path) -> None:
    for size in ("s", "l"):
        (tmp_path / size).mkdir()
        trials({(size, 1.0, "both"): 4e-3}).to_csv(tmp_path / size / "trials.csv", index=False)
    assert rates.read(tmp_path, ["s"])["size"].unique().tolist() == ["s"]
    assert len(rates.read(tmp_path, ["l", "s"])) == 2 * len(RATES)
    with pytest.raises(FileNotFoundError, match="dvc repro train_pilot@m"):
        rates.read(tmp_path, ["s", "m"])


# ------------------------------------------------------------------------------------------------------ rate and width
def law(power: float, sizes: tuple[str, ...] = ("s", "l"), arm: tuple[float, str] = (1.0, "both")) -> dict[Arm, float]:
    """Best rates of an arm that go with a power of the width, from 4e-3 at d = 64."""
    return {(size, *arm): 4e-3 * (WIDTHS[size] / 64) ** power for size in sizes}


def test_a_planted_power_of_the_width_is_found_with_what_flatness_leaves_open() -> None:
    table = rates.powers(rates.best_table(trials(law(-0.7))))
    row = table.iloc[0]
    open_to = 2 * (rates.FLAT / 0.3) ** 0.5  # both ends move, over one doubling of the width
    assert (row["power"], row["low"], row["high"]) == pytest.approx((-0.7, -0.7 - open_to, -0.7 + open_to))
    assert "γ = 1, both**: rate ∝ d^-0.70 [-1.22, -0.18]" in rates.powers_text(table)


def test_other_batch_sizes_do_not_enter_and_one_width_has_no_power() -> None:
    other = trials({("l", 0.5, "both"): 1e-3}, batch=8192)
    best = rates.best_table(pd.concat([trials(law(-0.7)), trials(law(0, ("s",), (0.5, "both"))), other]))
    assert rates.powers(best)["gamma"].tolist() == [1.0]
    assert "not known" in rates.powers_text(rates.powers(best[best["size"] == "s"]))


def test_a_power_from_an_end_of_the_rates_is_flagged_and_no_model_for_others() -> None:
    arms = law(-0.5) | {("s", 0.5, "both"): 1.0, ("l", 0.5, "both"): 1e-2} | law(0, ("s",), (1.5, "both"))
    best = rates.best_table(trials(arms))
    table = rates.powers(best).set_index("gamma")
    assert table["at_end"].to_dict() == {1.0: False, 0.5: True} and np.isnan(table.loc[0.5, "low"])
    assert rate_transfer.laws(best)[1.5, "both"].common == pytest.approx(-0.5)


# ------------------------------------------------------------------------------------------------- rates of other runs
TRIED = {(0.5, "both"), (0.5, "eps"), (1.0, "both"), (1.0, "eps"), (1.0, "standard"), (1.0, "gate")}


@pytest.mark.parametrize(
    ("variant", "gamma", "arm"),
    [
        ("both", 1.0, "both"),
        ("moe", 0.5, "both"),
        ("layernorm", 1.0, "both"),
        ("standard", 1.0, "standard"),
        ("standard", 0.5, "eps"),
        ("moe_standard", 1.0, "standard"),
        ("moe_standard", 0.5, "eps"),
        ("gate", 1.0, "gate"),
        ("gate", 0.5, "both"),
        ("literal", 1.0, "eps"),
        ("both", 0.75, None),
        ("gpt2", 0.5, None),
    ],
)
def test_an_arm_with_the_same_gate_and_eps_stands_for_a_variant(variant: str, gamma: float, arm: str | None) -> None:
    assert rates.stands_for(variant, gamma, TRIED) == arm


def test_every_stand_in_ends_at_an_arm_of_the_pilot() -> None:
    for variant in SHARED:
        assert rates.stands_for(variant, 1.0, TRIED) in ("both", "eps", "standard", "gate")
        assert rates.stands_for(variant, 0.5, TRIED) in ("both", "eps")


OWN, COMMON = "own power of the width", "common power of the width, from d = 64"


def test_runs_get_the_rate_of_their_arm_at_their_width() -> None:
    best = rates.best_table(trials(law(-0.6) | law(0, ("s",), (1.0, "gate"))))
    between = 4e-3 * 1.5**-0.6
    runs = [run("s", 1.0, "both", 4e-3), run("s", 1.0, "both", 4e-3, seed=1), run("m", 1.0, "moe", between)]
    runs += [run("m", 1.0, "gate", 2 * between), run("s", 0.5, "both", 8e-3), run("l", 1.0, "fast", 4e-3 * 2**0.4)]
    table = rate_transfer.transfer(best, runs, {"fast": 2.0}).set_index("run")
    assert len(table) == 5, "seeds of one arm make one row"
    assert table["how"].dropna().tolist() == ["measured", OWN, COMMON, "measured"]
    assert table["ratio"].dropna().tolist() == pytest.approx([1, 1, 2, 1])
    text = rate_transfer.transfer_text(table.reset_index())
    assert text.startswith("Of 3 arms of the plan, 2 train")
    assert f"`m-1.0-gate` has {2 * between:.2g}, put {between:.2g} (arm 1 gate, {COMMON})" in text
    assert "stands for `s-0.5-both`" in text and "on purpose: `l-1.0-fast`" in text


def test_rates_that_are_rounded_pass_and_another_batch_size_is_said() -> None:
    best = rates.best_table(trials(law(-0.6)))
    runs = [run("s", 1.0, "both", 3.6e-3)]
    assert rate_transfer.transfer_text(rate_transfer.transfer(best, runs)).endswith("of the pilot's.")
    assert "4,096 tokens a step, runs of the plan take 128" in rate_transfer.other_batches(best, runs)
    assert rate_transfer.other_batches(best.assign(batch_tokens=128), runs) == ""


def parsed(text: str) -> list[PeakRate]:
    return [PeakRate.model_validate(entry) for entry in YAML(typ="safe", pure=True).load(text)["peak_lrs"]]


def test_the_block_for_params_yaml_parses_and_gives_the_rates() -> None:
    optima = law(-0.63) | law(-0.2, arm=(0.5, "both")) | law(0.4, arm=(1.0, "eps")) | law(0, ("s",), (1.5, "both"))
    best = rates.best_table(trials(optima))
    entries = parsed(rate_transfer.peak_lrs_yaml(best))
    for (size, gamma, variant), rate in optima.items():
        first = next(entry for entry in entries if entry.fits(size, gamma, variant))
        assert first.at(WIDTHS[size]) == pytest.approx(rate, rel=0.02)
    moe = next(entry for entry in entries if entry.fits("m", 1.0, "moe"))
    assert (moe.d_model, moe.width_power, moe.at(96)) == (64, -0.63, pytest.approx(4e-3 * 1.5**-0.63, rel=0.02))
    assert next(entry for entry in entries if entry.fits("m", 1.5, "both")).width_power == -0.14  # the mean of three
    assert next(entry for entry in entries if entry.fits("m", 1.0, "literal")).width_power == pytest.approx(0.4)
    assert not any(entry.fits("s", 1.0, "standard") for entry in entries), "nothing tried stands for it at γ = 1"


def test_runs_with_the_rates_of_the_block_pass_the_check() -> None:
    best = rates.best_table(trials(law(-0.8, ("s", "l")) | {("m", 1.0, "both"): 2e-3}))
    entries = parsed(rate_transfer.peak_lrs_yaml(best))
    runs = []
    for size in WIDTHS:
        first = next(entry for entry in entries if entry.fits(size, 1.0, "both"))
        runs.append(run(size, 1.0, "both", first.at(WIDTHS[size])))
    assert rate_transfer.transfer(best, runs)["ratio"].tolist() == pytest.approx([1, 1, 1], abs=0.03)


def test_beyond_the_widest_all_arms_go_on_by_the_power_that_they_have_in_common() -> None:
    arms = law(-1.0) | law(0.6, arm=(0.5, "both"))
    best = rates.best_table(trials(arms))
    law_of = rate_transfer.laws(best)
    for key in ((1.0, "both"), (0.5, "both")):
        at_l = arms["l", *key]
        assert law_of[key].at("xl", 192) == (pytest.approx(at_l * 1.5**-0.2), "common power of the width, from d = 128")
        entries = parsed(rate_transfer.peak_lrs_yaml(best, widths={"s": 64, "xl": 192}))
        wide = next(entry for entry in entries if entry.fits("xl", *key))
        assert wide.at(192) == pytest.approx(at_l * 1.5**-0.2, rel=0.03)
        between = next(entry for entry in entries if entry.fits("m", *key))
        assert between.at(96) == pytest.approx(law_of[key].at("m", 96)[0], rel=0.02)


def test_a_flat_minimum_has_little_say_in_the_common_power() -> None:
    table = rates.powers(rates.best_table(trials(law(-1.0) | law(0.6, arm=(0.5, "both")))))
    assert rates.common_power(table) == pytest.approx(-0.2)
    wider = 9.0 * (table["gamma"] == 0.5)
    blurred = table.assign(low=table["low"] - wider, high=table["high"] + wider)
    assert -1.0 < rates.common_power(blurred) < -0.95
    assert rates.common_power(table.assign(at_end=True)) is None


def test_one_width_makes_a_block_without_a_power_and_names_only_known_variants() -> None:
    best = rates.best_table(trials(law(0, ("s",))))
    assert rate_transfer.peak_lrs_yaml(best, ["both", "moe"]).splitlines() == [
        "  peak_lrs:",
        "    - {gamma: 1.0, variants: [both, moe], peak_lr: 4.0e-3}",
    ]
    assert rate_transfer.laws(best)[1.0, "both"].at("l", 128) == (pytest.approx(4e-3), "as at d = 64")


# ------------------------------------------------------------------------------------------------------------ one rate
PAIR: dict[Arm, float] = {("s", 0.5, "both"): 1e-2, ("s", 1.0, "both"): 2.5e-3}


def test_a_gain_at_one_rate_turns_its_sign_where_only_the_best_rates_differ() -> None:
    fixed = rates.at_fixed(trials(PAIR))
    assert fixed["tuned"].tolist() == pytest.approx([0.0] * len(RATES), abs=1e-9)
    won = fixed["gain"] > 0
    assert won.tolist() == [rate < 5e-3 for rate in RATES], "it turns at the geometric mean of the best rates"
    assert rates.flips(fixed) == (1, 1)
    text = rates.fixed_verdict(fixed)
    assert "γ = 1 against 0.5 wins at 0.0005 to 0.004, loses at 0.008 to 0.064; each at its own rate" in text


def test_where_nothing_differs_nobody_wins() -> None:
    same = trials({("s", 0.5, "both"): 4e-3, ("s", 1.0, "both"): 4e-3})
    fixed = rates.at_fixed(same)
    assert fixed["gain"].tolist() == [0.0] * len(RATES) and rates.flips(fixed) == (0, 1)
    assert "neither wins nor loses at 0.0005 to 0.064; each at its own rate, its gain is +0.000" in rates.fixed_verdict(
        fixed
    )


def test_gains_within_the_difference_between_seeds_are_none() -> None:
    fixed = rates.at_fixed(trials(PAIR, {("s", 1.0, "both"): 4.49}))
    assert rates.flips(fixed, null=1e3) == (0, 1) and rates.flips(fixed, null=0.02) == (1, 1)
    assert "neither wins nor loses at 0.0005 to 0.064" in rates.fixed_verdict(fixed, null=1e3)


def test_a_diverged_arm_loses_and_two_of_them_say_nothing() -> None:
    table = lose(trials(PAIR), RATES[-1])
    fixed = rates.at_fixed(table)
    assert fixed["gain"].iloc[-1] == -np.inf
    assert np.isnan(rates.at_fixed(lose(table, RATES[-1], gamma=0.5))["gain"].iloc[-1])
    assert "diverged like the other at 0.064" in rates.fixed_verdict(rates.at_fixed(lose(table, RATES[-1], gamma=0.5)))


def test_only_common_rates_are_compared() -> None:
    table = trials(PAIR)
    few = table[(table["gamma"] == 1) | (table["peak_lr"] > 3e-3)]
    assert rates.at_fixed(few)["peak_lr"].min() == pytest.approx(4e-3)


def test_the_best_gamma_and_variants_without_an_arm_at_the_base_are_compared_too() -> None:
    arms = {
        ("s", 0.75, "both"): 4e-3,
        ("s", 0.5, "eps"): 8e-3,
        ("s", 1.0, "standard"): 4e-3,
        ("s", 1.0, "literal"): 4e-3,
    }
    table = rates.at_fixed(trials(PAIR | arms, {("s", 0.75, "both"): 4.3}))
    found = table.drop_duplicates(["variant", "gamma"])[["variant", "base", "gamma"]].to_numpy().tolist()
    assert found == [["both", "both", 1.0], ["both", "both", 0.75], ["standard", "eps", 1.0], ["literal", "eps", 1.0]]
    assert "0.75 against 0.5" in rates.fixed_verdict(table) and "against 0.5 of `eps`" in rates.fixed_verdict(table)


def test_without_a_pair_there_is_nothing_to_compare() -> None:
    assert rates.fixed_verdict(rates.at_fixed(trials(law(0)))).startswith("No rate")


# ------------------------------------------------------------------------------------------------------ batch, figures
def batches() -> pd.DataFrame:
    """Three batch sizes, the best rate going with the square root."""
    parts = [
        trials({arm: rate * (batch / 4096) ** 0.5 for arm, rate in PAIR.items()}, batch=batch) for batch in (2048, 8192)
    ]
    return pd.concat([trials(law(-0.5) | law(-0.2, arm=(0.5, "both")) | PAIR), *parts], ignore_index=True)


def test_the_map_has_the_arms_with_several_batches_and_the_best_rate_of_each() -> None:
    table = rates.batch_map(batches())
    assert set(table["size"]) == {"s"} and sorted(table["batch_tokens"].unique()) == [2048, 4096, 8192]
    best = table[table["best"]]
    assert best.groupby("gamma")["peak_lr"].apply(list).to_dict() == {
        0.5: [8e-3, 8e-3, 1.6e-2],
        1.0: [2e-3, 2e-3, 4e-3],
    }
    assert rates.batch_map(trials(PAIR)).empty


def test_figures_can_be_drawn_with_diverged_trials_and_rates_at_an_end() -> None:
    more = {("s", 0.25, "both"): 1.0, ("s", 1.0, "gate"): 5e-3, ("s", 0.5, "eps"): 8e-3, ("s", 0.5, "gpt2"): 6e-3}
    table = lose(pd.concat([batches(), trials(more)], ignore_index=True), RATES[-1])
    best = rates.best_table(table)
    draw.loss_against_rate(table, best).canvas.draw()
    draw.rate_against_width(best, rates.powers(best), [64, 96, 192]).canvas.draw()
    fixed = rates.at_fixed(table)
    for null, title in ((None, "in 3 of 3 comparisons"), (100.0, "in 0 of 3 comparisons")):
        figure = draw.gain_at_one_rate(fixed, null)
        figure.canvas.draw()
        assert title in figure.texts[0].get_text()
    draw.batch_and_rate(rates.batch_map(table)).canvas.draw()


def test_the_main_figure_can_be_drawn_from_one_arm_and_says_no_more_than_it_knows() -> None:
    table = trials({("s", 1.0, "literal"): 4e-3})
    draw.loss_against_rate(table, rates.best_table(table)).canvas.draw()
    assert draw.message(rates.best_table(table)) == "Every arm has a learning rate of its own"


def test_the_title_compares_best_rates_and_losses() -> None:
    best = rates.best_table(trials(PAIR, {("s", 1.0, "both"): 4.37}))
    assert (
        draw.message(best)
        == "The best rate of γ = 1 is 0.25 times that of γ = 0.5; each at its own, its gain is +0.13 nats"
    )


def test_losses_far_above_the_lowest_do_not_squeeze_the_axis() -> None:
    table = trials(PAIR)
    low, top = draw.loss_limits(table, rates.best_table(table))
    assert low == pytest.approx(4.5) and 4.6 < top < 5.5 < table["loss"].max()
