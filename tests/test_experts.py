"""Mixtures of experts: what a token meets, what routers do, and how the claim about the gain is judged."""

import made_up_variants
import numpy as np
import pandas as pd
import pytest
from made_up_variants import pair

from smallinit.analysis import experts, family
from smallinit.analysis.claims import CONTRADICTED, NOT_SEEN, NOT_TESTED, REPLICATED, judge
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.ladder import Arms
from smallinit.plots import experts as draw
from smallinit.plots import family as draw_family

CONFIG = AnalysisConfig(bootstrap_samples=200, confidence=0.95, seed=0, difficulty_bins=10)
DENSE = {"standard": pair(4.7, 4.6), "both": pair(4.7, 4.5)}


def arms(standard: tuple[float | None, float | None], both: tuple[float | None, float | None]) -> Arms:
    losses = {"moe_standard": pair(*standard), "moe": pair(*both)}
    return Arms(made_up_variants.results(DENSE | losses, noise=0.01), CONFIG)


@pytest.mark.parametrize(
    ("standard", "both", "wanted"),
    [
        ((4.6, 4.5), (4.6, 4.3), REPLICATED),
        ((4.5, 4.6), (4.3, 4.6), CONTRADICTED),
        ((4.5, 4.6), (4.6, 4.3), NOT_SEEN),
        ((4.5, 4.5), (4.6, 4.3), NOT_SEEN),
        ((4.6, None), (4.6, 4.3), NOT_TESTED),
    ],
)
def test_the_claim_is_judged_by_the_gain_of_both_variants(
    standard: tuple[float, float | None], both: tuple[float, float], wanted: str
) -> None:
    assert judge(family.same_gain(arms(standard, both), family.EXPERTS)) == wanted


def test_dense_models_alone_leave_the_claim_untested_and_say_so() -> None:
    dense = Arms(made_up_variants.results(DENSE), CONFIG)
    assert judge(family.same_gain(dense, family.EXPERTS)) == NOT_TESTED
    assert family.gains(dense, family.EXPERTS).empty and experts.expert_runs(dense).empty
    assert family.text(dense, family.EXPERTS) == "No run of this family is there."
    assert experts.router_text(experts.router_table(dense.results.runs, dense.results.routers)).startswith("No router")
    assert experts.parameter_table(experts.expert_runs(dense)).empty


def test_a_variant_that_nobody_ran_is_named_and_does_not_hold_up_the_claim() -> None:
    found = Arms(made_up_variants.results(DENSE | {"moe": pair(4.6, 4.3)}, noise=0.01), CONFIG)
    assert judge(family.same_gain(found, family.EXPERTS)) == REPLICATED
    assert "add `s-0.5-moe_standard` and `s-1.0-moe_standard` to" in family.missing(found, family.EXPERTS)
    assert family.missing(arms((4.6, 4.5), (4.6, 4.3)), family.EXPERTS) == "Every pair of runs is there."


def test_a_size_without_any_mixture_does_not_count_against_the_claim() -> None:
    losses = {"both": pair(4.7, 4.5) | pair(4.4, 4.2, "m"), "moe_standard": pair(4.6, 4.5), "moe": pair(4.6, 4.3)}
    found = Arms(made_up_variants.results(losses), CONFIG)
    assert [effect.name for effect in family.same_gain(found, family.EXPERTS)] == ["s moe_standard", "s moe"]
    with_one = losses | {"moe": losses["moe"] | {("m", 0.5, 0): 4.3}}  # begun at m, not completed
    assert family.same_gain(Arms(made_up_variants.results(with_one), CONFIG), family.EXPERTS) == []


def test_gains_stand_beside_those_of_the_usual_models() -> None:
    exact = Arms(
        made_up_variants.results(DENSE | {"moe_standard": pair(4.6, 4.55), "moe": pair(4.6, 4.1)}), CONFIG
    )  # fmt: skip
    table = family.gains(exact, family.EXPERTS).set_index("variant")
    assert table["gain"].to_dict() == pytest.approx({"standard": 0.1, "moe_standard": 0.05, "both": 0.2, "moe": 0.5})
    assert table.index[table["family"]].tolist() == ["moe_standard", "moe"]
    lines = family.text(exact, family.EXPERTS).splitlines()
    assert "; less than in `standard`, difference: -0.050" in lines[0]
    assert "; more than in `both`, difference: +0.300" in lines[1]
    assert family.message(table.reset_index()).startswith("γ = 1 wins in 2 of 2 comparisons and loses in 0")


def test_routers_are_described_relative_to_even_loads_and_full_entropy() -> None:
    results = made_up_variants.results({"moe": pair(4.6, 4.3)})
    table = experts.router_table(results.runs, results.routers)
    assert len(table) == 4 and table["entropy"].tolist() == pytest.approx([0.5] * 4)
    second = table[table["layer"] == 1].iloc[0]
    assert (second["most"], second["least"], second["balance_loss"]) == pytest.approx((1.6, 0.4, 1.1))
    assert table.loc[table["layer"] == 0, "most"].tolist() == pytest.approx([1.0, 1.0])
    sure = results.routers.assign(entropy=np.log(4) / 10)
    assert "below 0.5 in 2 of 2 blocks" in experts.router_text(experts.router_table(results.runs, sure))


def test_active_parameters_leave_out_the_experts_that_a_token_does_not_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    from conftest import run_config

    moe = {"n_experts": 4, "top_k": 1, "balance_coef": 0.01, "z_coef": 0.0}
    configs = {"dense": run_config(), "mixed": run_config(moe=moe)}
    monkeypatch.setattr("smallinit.config.load_run", lambda run: configs[run])
    table = experts.parameter_table(pd.DataFrame({"run": ["dense", "mixed"]})).set_index("run")
    expert, router = 3 * 16 * 32, 4 * 16  # one block of SwiGLU, d = 16, d_ff = 32
    assert table.loc["dense", "active share"] == 1
    assert table.loc["mixed", "parameters"] == table.loc["dense", "parameters"] + 3 * expert + router
    assert table.loc["mixed", "active"] == table.loc["dense", "active"] + router


def test_a_mixture_without_seeds_is_given_the_null_of_the_dense_models_beside_it() -> None:
    seeds = {"both": pair(4.7, 4.5) | pair(4.73, 4.5, seed=1), "standard": pair(4.7, 4.6) | pair(4.71, 4.6, seed=1)}
    losses = seeds | {"moe": pair(4.6, 4.3), "moe_standard": pair(4.6, 4.5)}
    found = Arms(made_up_variants.results(losses), CONFIG)
    table = family.gains(found, family.EXPERTS).set_index("variant")["null"]
    wanted = {"both": 0.03, "moe": 0.03, "standard": 0.01, "moe_standard": 0.01}
    assert table.to_dict() == pytest.approx(wanted)
    losses["moe"] = pair(4.6, 4.3) | pair(4.6, 4.32, seed=1)
    own = family.gains(Arms(made_up_variants.results(losses), CONFIG), family.EXPERTS)
    assert own.set_index("variant").loc["moe", "null"] == pytest.approx(0.02)
    figure = draw_family.gain_figure(own, "Mixtures of experts")
    figure.canvas.draw()
    assert "grey: as far as two seeds" in figure.texts[1].get_text() and len(figure.axes[0].patches) == 4


def test_a_gain_no_larger_than_what_seeds_move_is_no_win() -> None:
    seeds = {"both": pair(4.7, 4.5) | pair(4.73, 4.5, seed=1)}
    lucky = Arms(made_up_variants.results(seeds | {"moe": pair(4.6, 4.58)}), CONFIG)
    sure = Arms(made_up_variants.results(seeds | {"moe": pair(4.6, 4.5)}), CONFIG)
    assert judge(family.same_gain(lucky, family.EXPERTS)) == NOT_SEEN
    assert judge(family.same_gain(sure, family.EXPERTS)) == REPLICATED
    assert "neither γ wins, gain: +0.020" in family.text(lucky, family.EXPERTS)
    assert family.message(family.gains(lucky, family.EXPERTS)).startswith("γ = 1 wins in 0 of 1")
    assert family.message(family.gains(sure, family.EXPERTS)).startswith("γ = 1 wins in 1 of 1")


def test_figures_can_be_drawn() -> None:
    found = arms((4.6, 4.5), (4.6, 4.3))
    runs, routers = experts.expert_runs(found), found.results.routers
    assert runs["run"].tolist() == ["s-0.5-moe", "s-1.0-moe", "s-0.5-moe_standard", "s-1.0-moe_standard"]
    figure = draw_family.gain_figure(family.gains(found, family.EXPERTS), "Experts")
    figure.canvas.draw()
    assert figure.texts[1].get_text().endswith("no null: no arm has two seeds")
    draw_family.curves(runs, found.results).canvas.draw()
    loads = draw.loads(runs, routers)
    loads.canvas.draw()
    assert any("1.60 times" in text.get_text() and "block 2" in text.get_text() for text in loads.texts)
    draw.routers_by_layer(experts.router_table(runs, routers)).canvas.draw()
