"""Effective model size: known answers on made-up power laws, coverage of the interval, refusals in words."""

from typing import Any

import made_up
import numpy as np
import pytest
from scipy.optimize import curve_fit

from smallinit.analysis import effective_size
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.effective_size import WITHOUT_EMBEDDINGS, Refusal, Worth
from smallinit.analysis.ladder import Arms
from smallinit.analysis.statistics import Interval, over_seeds
from smallinit.plots import effective_size as draw

CONFIG = AnalysisConfig(bootstrap_samples=200, confidence=0.95, seed=0, difficulty_bins=10)
SIZES = {"s": 0.7e6, "m": 1.2e6, "l": 2.0e6, "xl": 3.5e6}


def law(size: Any, offset: float = 3.0) -> Any:
    return offset + 1.5 * (size / 1e6) ** -0.4


def losses(factor: float, sizes: dict[str, float] = SIZES) -> dict[made_up.Arm, float | None]:
    """Arms that follow the law, gamma = 1 as if it were larger by a factor."""
    base = {(name, 0.5, 0): law(size) for name, size in sizes.items()}
    return base | {(name, 1.0, 0): law(factor * size) for name, size in sizes.items()}


def arms(chosen: dict[made_up.Arm, float | None], noise: float = 0.0, seed: int = 0) -> Arms:
    return Arms(made_up.results(chosen, SIZES, noise=noise, seed=seed), CONFIG)


def measured(chosen: dict[made_up.Arm, float | None], noise: float = 0.0, seed: int = 0) -> Worth:
    found = effective_size.effective_size(arms(chosen, noise, seed), "both")
    assert isinstance(found, Worth), found
    return found


def values(found: Worth) -> list[float]:
    assert all(isinstance(each, Interval) for each in found.intervals), found.intervals
    return [each.value for each in found.intervals if isinstance(each, Interval)]


# ------------------------------------------------------------------------------------------------------------- answers
@pytest.mark.parametrize("factor", [0.6, 1.0, 1.44, 1.9])
def test_a_known_factor_is_found_at_every_size_and_for_all_together(factor: float) -> None:
    assert values(measured(losses(factor))) == pytest.approx([factor - 1] * 5, abs=1e-5)


def test_a_curve_through_three_sizes_has_no_offset() -> None:
    sizes = {name: SIZES[name] for name in ("s", "m", "l")}
    plain = {(name, 0.5, 0): law(size, 0) for name, size in sizes.items()}
    plain |= {(name, 1.0, 0): law(1.44 * size, 0) for name, size in sizes.items()}
    found = measured(plain)
    assert values(found) == pytest.approx([0.44] * 4, abs=1e-5) and (found.curve.offset == 0).all()


def test_a_step_along_the_curve_is_another_factor_in_another_count_of_parameters() -> None:
    found = arms(losses(1.44))
    found.results.runs["parameters_without_embeddings"] = found.results.runs["parameters"] ** 1.5
    inner = effective_size.effective_size(found, "both", WITHOUT_EMBEDDINGS)
    assert isinstance(inner, Worth) and values(inner) == pytest.approx([1.44**1.5 - 1] * 5, abs=1e-4)


def test_the_fit_is_that_of_scipy_where_the_offset_is_free_and_zero_where_it_would_be_negative() -> None:
    sizes = np.array([0.7, 1.2, 2.0, 3.5, 6.0])
    points = law(1e6 * sizes) + np.array([0.01, -0.02, 0.015, -0.01, 0.008])
    best, _ = curve_fit(lambda n, offset, scale, power: offset + scale * n**-power, sizes, points, p0=[3, 1.5, 0.4])
    ours = effective_size.fit(sizes, points)
    assert ours.loss(sizes) == pytest.approx(best[0] + best[1] * sizes ** -best[2], abs=1e-5)
    straight = effective_size.fit(sizes, 5 - 1.5 * np.log(sizes))
    assert straight.offset == 0 and straight.scale > 0


def test_many_fits_at_once_are_the_same_as_one_after_the_other() -> None:
    sizes, random = np.array(list(SIZES.values())), np.random.default_rng(0)
    base = law(sizes)
    points = np.tile(base, 2) - np.repeat([0, 0.1], 4) + random.normal(0, 0.01, (5, 8))
    single = [effective_size.factors(sizes, row) for row in points]
    assert np.allclose(effective_size.factors(sizes, points), single, rtol=1e-9)


def test_a_curve_and_its_inverse_agree_and_no_size_reaches_the_offset() -> None:
    curve = effective_size.fit(np.array(list(SIZES.values())), law(np.array(list(SIZES.values()))))
    assert curve.size(curve.loss(np.array([1e6, 5e6]))) == pytest.approx([1e6, 5e6], rel=1e-6)
    assert np.isinf(curve.size(np.array([2.0]))).all()


@pytest.mark.parametrize(("place", "wanted"), [(0.3, 0.3), (-1.0, 0.0), (2.0, 1.0)])
def test_a_minimum_is_found_inside_and_at_both_ends(place: float, wanted: float) -> None:
    found = effective_size.minimum(lambda x: (x - place) ** 2, 0.0, 1.0, (2, 1))
    assert found == pytest.approx(np.full((2, 1), wanted), abs=1e-6)


# ------------------------------------------------------------------------------------------------------------ interval
def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    inside, below = np.zeros(5), np.zeros(5)
    for seed in range(80):
        found = measured(losses(1.3), noise=0.03, seed=seed)
        for number, each in enumerate(found.intervals):
            assert isinstance(each, Interval) and each.units == "documents"
            inside[number] += each.low <= 0.3 <= each.high
            below[number] += each.value < 0.3
    assert (inside / 80 > 0.8).all() and (inside / 80).mean() > 0.88
    assert (below / 80 > 0.25).all() and (below / 80 < 0.75).all()  # and the estimate is on neither side too often


def test_more_noise_between_documents_makes_a_wider_interval() -> None:
    narrow, wide = (measured(losses(1.3), noise=noise).pooled for noise in (0.01, 0.04))
    assert isinstance(narrow, Interval) and isinstance(wide, Interval)
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def with_seeds(sizes: list[str]) -> dict[made_up.Arm, float | None]:
    """Seeds 1 and 2 at these sizes, in which gamma = 1 is worth more than in seed 0; gamma = 0.5 is the same."""
    more = {(name, 0.5, seed): law(SIZES[name]) for name in sizes for seed in (1, 2)}
    more |= {(name, 1.0, seed): law((1.44 + 0.1 * seed) * SIZES[name]) for name in sizes for seed in (1, 2)}
    return losses(1.44) | more


def test_seeds_have_an_interval_where_there_are_several() -> None:
    found = measured(with_seeds(["s"]))
    wanted = over_seeds([0.44, 0.54, 0.64], CONFIG.confidence)
    assert wanted is not None and found.seeds[1:] == [None] * 4
    assert found.seeds[0] is not None and found.seeds[0].units == "seeds"
    assert (found.seeds[0].value, found.seeds[0].high) == pytest.approx((wanted.value, wanted.high), abs=1e-5)
    assert values(found)[0] == pytest.approx(0.44, abs=1e-5)  # the estimate stays that of the first seed


def test_seeds_at_every_size_give_an_interval_of_the_common_factor() -> None:
    common = measured(with_seeds(list(SIZES))).seeds[-1]
    assert common is not None and common.value == pytest.approx(0.54, abs=1e-4)


def test_seeds_of_which_one_has_no_curve_have_no_interval() -> None:
    chosen = with_seeds(["s"]) | {("s", 0.5, 2): law(SIZES["m"]) - 0.01}
    assert measured(chosen).seeds[0] is None


# ------------------------------------------------------------------------------------------------------------ refusals
def refusal(chosen: dict[made_up.Arm, float | None]) -> str:
    found = effective_size.effective_size(arms(chosen), "both")
    assert isinstance(found, Refusal)
    assert effective_size.worth(arms(chosen)) == found
    return str(found)


def test_two_sizes_are_refused_with_what_to_add() -> None:
    assert refusal(losses(1.44, {"s": 0.7e6, "m": 1.2e6})) == (
        "needs at least 3 sizes with both γ; only s and m have them: add runs of other sizes to `runs` in params.yaml"
    )


def test_sizes_of_which_one_gamma_diverged_or_is_missing_do_not_count() -> None:
    chosen = losses(1.44) | {("s", 1.0, 0): None}
    del chosen["m", 0.5, 0]
    assert "only l and xl have them" in refusal(chosen)
    assert "no size has them" in refusal({("s", 0.5, 0): 5.0, ("m", 1.0, 0): 4.0})


def test_losses_that_do_not_fall_with_size_are_refused() -> None:
    assert refusal(losses(1.44) | {("l", 0.5, 0): law(1.2e6)}) == ("at γ = 0.5 the loss does not fall from size m to l")


def test_a_curve_that_does_not_explain_its_points_is_refused() -> None:
    steps = {("s", 0.5, 0): 5.0, ("m", 0.5, 0): 4.99, ("l", 0.5, 0): 4.21, ("xl", 0.5, 0): 4.2}
    assert "misses a point at γ = 0.5 by 0." in refusal(losses(1.44) | steps)


def test_a_factor_out_of_reach_is_refused_and_one_just_outside_is_flagged() -> None:
    far = measured(losses(2.4))
    assert [isinstance(each, Refusal) for each in far.intervals] == [False, False, False, True, True]
    assert "more than 2 times larger" in str(far.pooled) and isinstance(
        effective_size.worth(arms(losses(2.4))), Refusal
    )
    small = measured(losses(0.4))
    assert [isinstance(each, Refusal) for each in small.intervals] == [True, False, False, False, True]
    assert "more than 2 times smaller" in str(small.intervals[0])
    assert [measured(losses(1.44)).extrapolated(number) for number in range(4)] == [False, False, False, True]


def test_a_loss_that_the_curve_never_reaches_is_out_of_reach() -> None:
    found = measured(losses(1.44) | {("xl", 1.0, 0): 2.9})
    assert isinstance(found.intervals[3], Refusal)


def test_an_interval_that_runs_to_infinity_is_refused() -> None:
    samples = np.concatenate([np.full(90, 1.5), np.full(10, effective_size.FACTORS[1])])
    found = effective_size.judged(1.5, samples, (0.5, 2.0), arms(losses(1.44)))
    assert isinstance(found, Refusal) and "leave it open" in str(found)


# ----------------------------------------------------------------------------------------------------- table and figure
def test_the_table_states_every_size_the_common_factor_and_refusals_in_words() -> None:
    found = arms(with_seeds(["s"]))
    worths = {"both": effective_size.effective_size(found, "both"), "gate": Refusal("no such runs")}
    table = effective_size.table(found, worths).set_index(["variant", "size"])
    assert list(table.index) == [("both", name) for name in (*SIZES, "all")] + [("gate", "all")]
    assert table.loc[("both", "m"), "worth in parameters"] == "+44% [+44%, +44%]"
    assert table["beyond the fitted sizes"].tolist() == ["no", "no", "no", "yes", "no", "–"]
    assert table.loc[("both", "s"), "over seeds"].startswith("+54% [") and table.loc[("both", "m"), "over seeds"] == "–"
    assert table.loc[("gate", "all"), "worth in parameters"] == "no such runs" and not table.isna().any(axis=None)


def test_the_title_says_the_common_factors_or_that_there_are_none() -> None:
    assert "by +44% (both)" in draw.message({"both": measured(losses(1.44))})
    assert draw.message({"both": measured(losses(2.4))}).startswith("No common factor")


def test_figures_can_be_drawn_with_sizes_that_are_out_of_reach() -> None:
    draw.effective_size_figure({"both": measured(losses(2.4)), "eps": measured(losses(0.9))}).canvas.draw()
