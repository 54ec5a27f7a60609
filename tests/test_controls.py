"""Controls: planted differences are found, the null is counted, and missing runs leave gaps and not errors."""

import made_up_variants
import numpy as np
import pandas as pd
import pytest
from made_up_variants import pair

from smallinit.analysis import controls, family, longer, rate_controls
from smallinit.analysis.claims import CONTRADICTED, NOT_SEEN, NOT_TESTED, REPLICATED, judge
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.ladder import Arms
from smallinit.plots import controls as draw
from smallinit.plots import longer as draw_longer
from smallinit.plots import rate_grid as draw_rates

CONFIG = AnalysisConfig(bootstrap_samples=200, confidence=0.95, seed=0, difficulty_bins=10)
USUAL = {"standard": pair(4.7, 4.6), "both": pair(4.7, 4.5)}
SEEDS = pair(4.7, 4.5) | pair(4.8, 4.5, seed=1) | pair(4.7, 4.6, seed=2)  # gains 0.2, 0.3, 0.1


def arms(losses: made_up_variants.Losses, noise: float = 0.0) -> Arms:
    return Arms(made_up_variants.results(losses, noise), CONFIG)


def test_each_control_is_put_beside_the_usual_runs_of_its_gamma() -> None:
    found = arms(USUAL | {"gpt2": {("s", 0.5, 0): 4.65}, "literal": pair(4.7, None)})
    table = controls.control_table(found).set_index("run")
    assert set(table.index) == {"s-0.5-gpt2", "s-0.5-literal", "s-1.0-literal"}
    assert table.loc["s-0.5-gpt2", "minus standard"].startswith("-0.050 [-0.050")
    assert table.loc["s-1.0-literal", ["loss", "minus standard", "minus both"]].tolist() == ["diverged", "–", "–"]


def test_another_seed_is_a_control_and_the_ladder_is_not() -> None:
    assert set(controls.control_table(arms({"both": SEEDS}))["run"]) == {
        f"s-{gamma}-both-seed{seed}" for gamma in (0.5, 1.0) for seed in (1, 2)
    }
    assert controls.control_table(arms(USUAL)).empty


def test_rates_that_gammas_share_are_found_if_both_finished() -> None:
    runs = pd.DataFrame({"gamma": [0.5, 1.0, 0.5, 1.0], "peak_lr": [8e-3, 4e-3, 4e-3, 8e-3], "diverged": [False] * 4})
    assert rate_controls.shared_rates(runs) == [4e-3, 8e-3]
    runs.loc[3, "diverged"] = True
    assert rate_controls.shared_rates(runs) == [4e-3]
    assert rate_controls.rates_text(runs.head(2)).startswith("No learning rate")


# ---------------------------------------------------------------------------------------------------------- other rates
def rated(slow: made_up_variants.Losses, fast: made_up_variants.Losses) -> Arms:
    """Runs of `both` at losses of 4.7 and 4.5, and the same at half and at twice their rate."""
    found = arms(USUAL | {"slow": slow, "fast": fast})
    runs = found.results.runs
    runs["peak_lr"] = runs["gamma"].map({0.5: 8e-3, 1.0: 4e-3}) * runs["variant"].map({"slow": 0.5, "fast": 2}).fillna(
        1
    )
    return found


def test_every_combination_of_rates_has_a_gain() -> None:
    table = rate_controls.rate_grid(rated(pair(4.9, 4.6), pair(4.6, 4.8)))
    gains = table.pivot(index="base_times", columns="small_times", values="gain")
    assert gains.index.tolist() == gains.columns.tolist() == [0.5, 1, 2]
    assert np.allclose(gains, [[0.3, 0.4, 0.1], [0.1, 0.2, -0.1], [0.0, 0.1, -0.2]])
    best = rate_controls.best_rates(table)
    assert best is not None and best["gain"] == pytest.approx(0.1)  # each at its lowest loss, 4.6 and 4.5
    assert [best["base_rate"], best["small_rate"]] == pytest.approx([16e-3, 4e-3])
    text = rate_controls.rate_grid_text(table)
    assert "of 9 combinations of rates γ = 1 wins in 6 and loses in 2" in text
    assert "+0.200 [+0.200, +0.200] nats per token at the tuned rates, and +0.100" in text
    assert "0.016 for γ = 0.5 and 0.004 for γ = 1." in text
    assert text.endswith("The best rate of γ = 0.5 is the end of those tried.")
    figure = draw_rates.rate_grid(table)
    figure.canvas.draw()
    assert figure.texts[0].get_text().startswith("γ = 1 wins in 6 of 9 combinations of rates, loses in 2; each at its")


def test_a_rate_at_which_a_run_diverged_has_no_gain_and_is_no_end() -> None:
    table = rate_controls.rate_grid(rated(pair(4.9, 4.6), pair(None, 4.8)))
    assert table["gain"].isna().sum() == 3 and set(table.loc[table["gain"].isna(), "base_times"]) == {2}
    best = rate_controls.best_rates(table)
    assert best is not None and [best["base_times"], best["small_times"]] == [1, 1]
    assert "end of those tried" not in rate_controls.rate_grid_text(table)
    lost = rate_controls.rate_grid(rated(pair(4.9, None), pair(4.6, None))).query("small_times != 1")
    assert rate_controls.best_rates(lost) is None
    assert "in every combination a run diverged" in rate_controls.rate_grid_text(lost)
    draw_rates.rate_grid(lost).canvas.draw()


def test_without_another_rate_there_is_no_grid() -> None:
    table = rate_controls.rate_grid(arms(USUAL))
    assert table.empty and rate_controls.rate_grid_text(table) == "No arm was run at another than its tuned rate."


def test_an_arm_that_is_better_at_another_rate_is_named_unless_seeds_move_as_much() -> None:
    eps = {"eps": pair(4.6, 4.4) | pair(4.65, 4.4, seed=1), "slow_eps": pair(4.57, 4.3)}
    found = arms(USUAL | {"slow": pair(4.9, 4.4), "fast": pair(4.6, None)} | eps)
    table = rate_controls.other_rates(found).set_index(["variant", "gamma"])
    assert table["lower"].round(6).tolist() == [-0.2, 0.1, 0.1, 0.03, 0.1] and "fast" not in table.index
    assert table.loc["eps", "null"].round(6).tolist() == [0.05, 0.0]
    text = rate_controls.other_rates_text(table.reset_index())
    assert text.startswith("At another rate than the tuned one, 3 of 5 runs have a lower loss:")
    assert "`eps`, γ = 1**: by +0.100" in text and "`eps`, γ = 0.5" not in text, "what seeds move is no better rate"
    assert "no arm was run" in rate_controls.other_rates_text(rate_controls.other_rates(arms(USUAL))).lower()


def test_the_gain_without_decay_stands_beside_that_with_it() -> None:
    text = controls.undecayed_text(arms(USUAL | {"undecayed": pair(4.7, 4.6)}))
    assert "without weight decay +0.100" in text and "with it +0.200" in text and "change -0.100" in text
    assert "add `s-0.5-undecayed` and `s-1.0-undecayed`" in controls.undecayed_text(arms(USUAL))


# ------------------------------------------------------------------------------------------------------ longer training
def lengths() -> Arms:
    """At size m gamma = 1 is behind after the usual training, and ahead after one of three times the tokens."""
    found = arms({"both": pair(4.7, 4.5) | pair(4.4, 4.5, "m"), "long": pair(4.2, 4.0, "m")})
    longer_runs = found.results.runs["variant"] == "long"
    found.results.runs.loc[longer_runs, "tokens"] *= 3
    return found


def test_a_longer_training_stands_beside_the_usual_one() -> None:
    table = longer.gains(lengths())
    assert table[["size", "variant", "tokens"]].to_numpy().tolist() == [
        ["s", "both", 128], ["m", "both", 128], ["m", "long", 384],
    ]  # fmt: skip
    assert table["gain"].tolist() == pytest.approx([0.2, -0.1, 0.2])
    assert "change +0.300" in longer.text(lengths())
    assert "-0.100 after 0 and +0.200 after 0 million tokens (size m)" in longer.sentence(lengths())
    assert judge(longer.gain_when_longer(lengths())) == REPLICATED


def test_the_gain_is_followed_from_the_start_of_training_to_its_end() -> None:
    along = longer.along(lengths())
    assert along.groupby(["size", "variant"])["gain"].first().eq(0).all()  # made-up losses start at one value
    assert along.groupby(["size", "variant"])["gain"].last().to_dict() == pytest.approx(
        {("m", "both"): -0.1, ("m", "long"): 0.2, ("s", "both"): 0.2}
    )


def test_without_a_longer_training_the_runs_it_needs_are_named() -> None:
    found = arms(USUAL)
    assert longer.text(found) == (
        "No longer training: needs two runs at one size: add `s-0.5-long` and `s-1.0-long` to `runs` in params.yaml."
    )
    assert "not measured: needs two runs" in longer.sentence(found)
    assert longer.gain_when_longer(found) == [] and longer.along(arms({"standard": USUAL["standard"]})).empty


def test_the_figure_of_longer_training_counts_who_ends_ahead() -> None:
    figure = draw_longer.gain_over_training(longer.along(lengths()), longer.gains(lengths()))
    assert "2 of 3" in figure.texts[0].get_text()
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert any(label.startswith("m, 0 M tokens: +0.200") for label in labels)


# --------------------------------------------------------------------------------------------------------------- seeds
def test_gains_are_paired_by_seed_and_their_mean_has_students_interval() -> None:
    found = arms({"both": SEEDS, "standard": pair(4.7, 4.6)})
    gains = controls.seed_gains(found)
    assert set(gains["variant"]) == {"both"} and gains["gain"].tolist() == pytest.approx([0.2, 0.3, 0.1])
    row = controls.seed_table(found).iloc[0]
    half = 4.303 * 0.1 / np.sqrt(3)  # t with two degrees of freedom
    assert row["mean, over seeds"] == f"+0.200 [{0.2 - half:+.3f}, {0.2 + half:+.3f}]"
    assert row["first seed, over documents"].startswith("+0.200 [+0.200")
    assert (row["sd γ=0.5"], row["sd γ=1"]) == pytest.approx((np.std([4.7, 4.8, 4.7], ddof=1),) * 2)


def test_the_null_counts_differences_that_documents_alone_would_claim() -> None:
    nulls = controls.seed_nulls(arms({"both": SEEDS}))
    assert len(nulls) == 6  # three pairs of seeds at each gamma
    assert nulls["found"].sum() == 4  # two pairs at each gamma differ by 0.1, one by nothing
    text = controls.nulls_text(nulls, controls.seed_gains(arms({"both": SEEDS})))
    assert "Of 6 differences" in text and "4 have an interval" in text and "0.100 nats, the smallest gain" in text


def test_a_seed_whose_other_arm_diverged_has_no_gain() -> None:
    found = arms({"both": pair(4.7, 4.5) | pair(4.8, None, seed=1) | pair(4.7, 4.6, seed=2)})
    assert controls.seed_gains(found)["seed"].tolist() == [0, 2]


def test_one_seed_is_said_to_tell_nothing_about_luck() -> None:
    one = arms(USUAL)
    assert controls.seed_gains(one).empty and controls.seed_nulls(one).empty
    assert "not known" in controls.nulls_text(controls.seed_nulls(one), controls.seed_gains(one))


# ----------------------------------------------------------------------------------------------------------- LayerNorm
@pytest.mark.parametrize(
    ("standard", "both", "wanted"),
    [
        (pair(4.7, 4.6), pair(4.7, 4.4), REPLICATED),
        (pair(4.6, 4.7), pair(4.4, 4.7), CONTRADICTED),
        (pair(4.6, 4.7), pair(4.7, 4.4), NOT_SEEN),
        (pair(None, 4.7), pair(4.7, 4.4), NOT_TESTED),
    ],
)
def test_the_claim_about_layernorm_is_judged_by_both_gains(
    standard: made_up_variants.Losses, both: made_up_variants.Losses, wanted: str
) -> None:
    found = arms(USUAL | {"layernorm_standard": standard, "layernorm": both}, noise=0.01)
    assert judge(family.same_gain(found, family.LAYERNORM)) == wanted
    assert judge(family.same_gain(arms(USUAL), family.LAYERNORM)) == NOT_TESTED


# --------------------------------------------------------------------------------------------------------------- others
def test_arms_beside_gpt2_are_negative_where_they_are_better() -> None:
    table = controls.beside_gpt2(arms(USUAL | {"gpt2": {("s", 0.5, 0): 4.65}}))
    values = {(row["variant"], row["gamma"]): row["value"] for row in table.to_dict("records")}
    assert values == pytest.approx(
        {("standard", 0.5): 0.05, ("standard", 1.0): -0.05, ("both", 0.5): 0.05, ("both", 1.0): -0.15}
    )
    assert controls.beside_gpt2(arms(USUAL)).empty


def test_the_literal_eps_is_put_between_the_others_with_what_the_norm_keeps() -> None:
    table = controls.literal_gains(arms(USUAL | {"literal": pair(4.7, 4.55), "eps": pair(4.7, 4.5)}))
    assert table["variant"].tolist() == ["standard", "literal", "eps"]
    assert table["gain"].tolist() == pytest.approx([0.1, 0.15, 0.2])
    assert table["attenuation"].tolist() == pytest.approx([(1 + 64**2 * eps) ** -0.5 for eps in (1e-3, 1e-5, 1e-12)])
    assert controls.literal_gains(arms(USUAL | {"eps": pair(4.7, 4.5)})).empty


def test_decay_of_an_idle_weight_follows_the_rates() -> None:
    steps = np.arange(1, 201)
    ramp = pd.DataFrame({"run": "r", "step": steps, "tokens": steps, "learning_rate": 1e-4 * steps})
    runs = pd.DataFrame([{"run": "r", "gamma": 1.0, "variant": "both"}])
    left = controls.shrinkage(runs, ramp, {"r": 0.1})["left"]
    assert left.iloc[-1] == pytest.approx(np.prod(1 - 0.1 * ramp["learning_rate"]), rel=2e-3)
    sparse = controls.shrinkage(runs, ramp[ramp["step"] % 4 == 0], {"r": 0.1})["left"]
    assert sparse.iloc[-1] == pytest.approx(left.iloc[-1])  # a ramp is not changed by logging every fourth step


def test_the_share_that_adam_damps_is_read_in_the_order_of_steps() -> None:
    results = made_up_variants.results({"both": pair(4.7, 4.5)})
    shuffled = results.curves.sample(frac=1, random_state=0)
    table = controls.eps_shares(results.runs, shuffled)
    assert table[["first", "largest", "last"]].to_numpy().tolist() == [[0.5, 0.5, 0.1]] * 2


def test_figures_can_be_drawn() -> None:
    found = arms(
        USUAL | {"both": SEEDS, "literal": pair(4.7, 4.55), "eps": pair(4.7, 4.5), "gpt2": {("s", 0.5, 0): None}}
        | {"gpt2": {("s", 0.5, 0): 4.65}, "gate": pair(None, 4.6)}
    )  # fmt: skip
    runs, curves = found.results.runs, found.results.curves
    finished = runs[~runs["diverged"]]
    draw.learning_rates(runs).canvas.draw()
    figure = draw.seeds(controls.seed_gains(found), controls.seed_nulls(found), {("s", "both"): (0.2, -0.05, 0.45)})
    figure.canvas.draw()
    assert (
        figure.texts[0].get_text().startswith("Over seeds, 0 of 1 gains are told from zero; over documents, so are 4")
    )
    draw.gpt2(controls.beside_gpt2(found)).canvas.draw()
    draw.literal(controls.literal_gains(found)).canvas.draw()
    draw.decay(controls.shrinkage(finished, curves, dict.fromkeys(finished["run"], 0.1))).canvas.draw()
    draw.adam(finished, curves).canvas.draw()
