"""The sweep over gamma: where a planted optimum is found, and how the claim about it is judged."""

import made_up
import numpy as np
import pandas as pd
import pytest

from smallinit.analysis import sweep
from smallinit.analysis.claims import CONTRADICTED, NOT_SEEN, NOT_TESTED, REPLICATED, judge, named
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.ladder import Arms
from smallinit.analysis.resamples import Refusal
from smallinit.analysis.statistics import Interval
from smallinit.analysis.sweep import Optimum
from smallinit.plots import sweep as draw

CONFIG = AnalysisConfig(bootstrap_samples=200, confidence=0.95, seed=0, difficulty_bins=10)
PARAMETERS = {"s": 1e6, "m": 2e6}


def bowl(best: float, gammas: tuple[float, ...] = sweep.GRID, size: str = "s") -> dict[made_up.Arm, float | None]:
    """Losses of seed 0 on a parabola with this optimum."""
    return {(size, gamma, 0): 4.5 + 0.4 * (gamma - best) ** 2 for gamma in gammas}


def found(losses: dict[made_up.Arm, float | None], noise: float = 0.0, seed: int = 0) -> Optimum | Refusal:
    results = made_up.results(losses, PARAMETERS, noise=noise, seed=seed)
    return sweep.optimum(sweep.find(results)[0], results, CONFIG)


def optimum(losses: dict[made_up.Arm, float | None], noise: float = 0.0, seed: int = 0) -> Optimum:
    best = found(losses, noise, seed)
    assert isinstance(best, Optimum), best
    return best


# ------------------------------------------------------------------------------------------------------------- optimum
@pytest.mark.parametrize("best", [0.6, 0.93, 1.0, 1.3])
def test_a_planted_optimum_is_found_with_its_loss_and_curvature(best: float) -> None:
    fitted = optimum(bowl(best))
    assert (fitted.gamma.value, fitted.loss, fitted.curvature) == pytest.approx((best, 4.5, 0.4), abs=1e-6)
    assert (fitted.gamma.low, fitted.gamma.high) == pytest.approx((best, best), abs=1e-6)


def test_unequal_steps_of_gamma_are_no_obstacle() -> None:
    assert optimum(bowl(0.9, (0.25, 0.5, 1.0, 1.1, 1.5))).gamma.value == pytest.approx(0.9)


def test_points_far_from_the_lowest_do_not_move_it() -> None:
    assert optimum(bowl(0.95) | {("s", 0.25, 0): 8.0}).gamma.value == pytest.approx(0.95)


def test_the_interval_covers_the_optimum_about_as_often_as_it_says() -> None:
    fits = [optimum(bowl(0.95), noise=0.03, seed=seed).gamma for seed in range(60)]
    assert 0.85 <= np.mean([each.low <= 0.95 <= each.high for each in fits]) <= 1
    assert abs(np.mean([each.value for each in fits]) - 0.95) < 0.01


def test_the_flat_region_is_where_the_parabola_is_within_the_margin_cut_to_the_three_points() -> None:
    fitted = optimum(bowl(1.05))
    assert fitted.near == pytest.approx((1.05 - (sweep.FLAT / 0.4) ** 0.5, 1.05 + (sweep.FLAT / 0.4) ** 0.5))
    assert fitted.curve(np.array(fitted.near)) == pytest.approx([4.5 + sweep.FLAT] * 2)
    flat = {arm: 4.5 + 0.01 * (arm[1] - 1) ** 2 for arm in bowl(1.0)}
    assert optimum(flat).near == (0.75, 1.25)


@pytest.mark.parametrize(("best", "end", "name"), [(1.8, "1.5", "s-1.75-both"), (0.1, "0.25", "s-0.0-both")])
def test_an_optimum_at_the_end_of_the_sweep_is_refused_with_what_to_add(best: float, end: str, name: str) -> None:
    refused = found(bowl(best))
    assert isinstance(refused, Refusal) and f"γ = {end}" in str(refused) and name in str(refused)


def test_where_resampled_documents_disagree_the_interval_reaches_to_the_end() -> None:
    nearly = bowl(1.0, (0.5, 0.75, 1.0)) | {("s", 0.75, 0): 4.5, ("s", 1.0, 0): 4.501}
    assert optimum(nearly, noise=0.05, seed=0).gamma.high == 1.0


def test_seeds_with_sweeps_of_their_own_have_an_interval() -> None:
    others = {("s", gamma, seed): loss for seed in (1, 2) for (_, gamma, _), loss in bowl(1.0 + 0.03 * seed).items()}
    fitted = optimum(bowl(1.0) | others)
    assert fitted.seeds is not None and fitted.seeds.units == "seeds"
    assert fitted.seeds.value == pytest.approx(1.03) and fitted.gamma.value == pytest.approx(1.0)
    few = {("s", gamma, 1): 4.6 for gamma in (0.5, 1.0)}
    assert optimum(bowl(1.0) | few).seeds is None


# ------------------------------------------------------------------------------------------------- which runs, words
def test_two_gammas_are_no_sweep_and_what_to_add_is_named() -> None:
    results = made_up.results(bowl(1.0, (0.5, 1.0)) | bowl(1.0, (0.5, 1.0), "m"), PARAMETERS)
    assert sweep.find(results) == []
    text = sweep.overview(results)
    assert "`s-0.25-both`, `s-0.75-both`, `s-1.25-both`, `s-1.5-both`" in text and "s-1.0-both" not in text


def test_gammas_of_different_sizes_or_seeds_make_no_sweep_together() -> None:
    losses = bowl(1.0, (0.5, 1.0)) | bowl(1.0, (0.75,), "m") | {("s", 1.5, 1): 4.7}
    assert sweep.find(made_up.results(losses, PARAMETERS)) == []


def test_a_sweep_leaves_diverged_runs_out_and_names_them() -> None:
    results = made_up.results(bowl(1.0) | {("s", 0.25, 0): None}, PARAMETERS)
    one = sweep.find(results)[0]
    assert one.gammas.tolist() == [0.5, 0.75, 1.0, 1.25, 1.5] and one.diverged == [0.25]
    table = sweep.table(one, results, CONFIG).set_index("γ")
    assert table.loc[0.25, "loss"] == "diverged" and table.loc[1.0, "loss above γ=1"] == "–"
    assert table.loc[1.5, "loss above γ=1"].startswith("+0.100 [") and table.loc[0.5, "learning rate"] == 0.008


def test_the_preferred_variant_comes_first() -> None:
    parts = [made_up.results(bowl(1.0), PARAMETERS, variant=variant) for variant in ("gate", "standard", "both")]
    results = parts[0]
    results.runs = pd.concat([part.runs for part in parts], ignore_index=True)
    results.documents = pd.concat([part.documents for part in parts], ignore_index=True)
    assert [each.variant for each in sweep.find(results)] == ["both", "standard", "gate"]


def test_the_sentence_states_the_optimum_and_how_far_seeds_differ() -> None:
    results = made_up.results(bowl(1.0) | {("s", 1.0, 1): 4.52}, PARAMETERS)
    one = sweep.find(results)[0]
    text = sweep.sentence(one, sweep.optimum(one, results, CONFIG))
    assert "lowest at γ = 1.00 [1.00, 1.00]" in text and "differ by up to 0.020 nats" in text
    alone = made_up.results(bowl(1.0), PARAMETERS)
    one = sweep.find(alone)[0]
    assert "There is one seed" in sweep.sentence(one, sweep.optimum(one, alone, CONFIG))
    assert "the end of the sweep" in sweep.sentence(one, Refusal("the end of the sweep"))


# --------------------------------------------------------------------------------------------------------------- claim
def verdict(losses: dict[made_up.Arm, float | None]) -> str:
    return judge(named(sweep.best_is_one(Arms(made_up.results(losses, PARAMETERS, noise=0.01), CONFIG))))


@pytest.mark.parametrize(
    ("losses", "wanted"),
    [
        (bowl(1.0), REPLICATED),
        (bowl(1.4), NOT_SEEN),  # better above, worse below
        (bowl(0.7), NOT_SEEN),
        (bowl(1.0) | {("s", 1.0, 0): 4.7}, CONTRADICTED),  # better on both sides
        (bowl(1.0) | {("s", 1.5, 0): 4.4}, NOT_SEEN),  # one better gamma is enough, whatever the others are
        (bowl(1.0) | {("s", 1.25, 0): 4.5}, NOT_SEEN),  # as good as 1
        (bowl(1.0, (0.25, 0.5, 1.0)), NOT_TESTED),  # nothing above 1
        (bowl(1.0, (0.5, 0.75, 1.25)), NOT_TESTED),  # 1 is not there
        (bowl(1.0) | {("s", 1.0, 0): None}, NOT_TESTED),
        (bowl(1.0, (0.5, 1.0)), NOT_TESTED),
    ],
)
def test_the_claim_is_judged_by_the_best_gamma_on_either_side(
    losses: dict[made_up.Arm, float | None], wanted: str
) -> None:
    assert verdict(losses) == wanted


def test_the_effect_of_a_side_is_that_of_its_best_gamma() -> None:
    effects = sweep.best_is_one(Arms(made_up.results(bowl(1.0), PARAMETERS), CONFIG))
    assert [each.value for each in effects.values() if each] == pytest.approx([0.025, 0.025])
    one, other = Interval(0.1, 0.05, 0.2, "documents"), Interval(0.2, 0.01, 0.3, "documents")
    assert sweep.least([one, other]) == Interval(0.1, 0.01, 0.2, "documents") and sweep.least([]) is None


def test_effects_that_could_not_be_measured_are_said_to_be() -> None:
    arms = Arms(made_up.results(bowl(1.0, (0.25, 0.5, 1.0)), PARAMETERS), CONFIG)
    first, second = sweep.effects(arms).splitlines()
    assert first.startswith("* each γ < 1 is worse: +0.100") and "could not be measured" in second


# ------------------------------------------------------------------------------------------------------------- figures
def test_figures_can_be_drawn_with_a_diverged_run_and_with_an_optimum_at_the_end() -> None:
    for losses in (bowl(1.0) | {("s", 0.25, 0): None, ("s", 1.0, 1): 4.52}, bowl(1.8)):
        results = made_up.results(losses, PARAMETERS)
        one = sweep.find(results)[0]
        best = sweep.optimum(one, results, CONFIG)
        draw.loss_against_gamma([(one, best)], results, CONFIG).canvas.draw()
        draw.curves_by_gamma(one, results).canvas.draw()
        assert draw.message(one, best).startswith("The loss is lowest")


def test_who_leads_is_read_from_the_curves_and_not_from_the_end() -> None:
    results = made_up.results(bowl(1.0), PARAMETERS)
    results.heldout.loc[(results.heldout["run"] == "s-0.25-both") & (results.heldout["step"] == 1), "loss"] = 5.0
    one = sweep.find(results)[0]
    assert draw.leader(one, results, 0.1) == 0.25 and draw.leader(one, results, 1.0) == 1.0
