"""The norm's eps: against closed forms, made-up trajectories and made-up losses."""

from typing import Any

import made_up_variants
import numpy as np
import pandas as pd
import pytest
from conftest import Arm, made_up_results
from made_up_variants import pair

from smallinit.analysis import epsilon, needed
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.ladder import Arms
from smallinit.plots import epsilon as draw
from smallinit.theory.formulas import matched_eps

CONFIG = AnalysisConfig(bootstrap_samples=200, confidence=0.95, seed=0, difficulty_bins=10)
LOSSES: dict[Arm, float | None] = {
    **{("s", 0.5, "standard"): 5.0, ("s", 1.0, "standard"): 5.2, ("s", 0.5, "eps"): 5.0, ("s", 1.0, "eps"): 4.7},
    **{("m", 0.5, "standard"): 4.8, ("m", 1.0, "standard"): 5.2, ("m", 0.5, "eps"): 4.7, ("m", 1.0, "eps"): 4.7},
    **{("s", 1.0, "literal"): 4.75, ("l", 0.5, "eps"): 4.5, ("l", 1.0, "eps"): None},
}
D_REF = {64: 768, 128: 1024, 192: 1536}
RELEASE = {0: 8, 1: 4}  # of each block in `trajectories`


def arms() -> Arms:
    results = made_up_results(LOSSES)
    runs = results.runs
    runs["d_ref"] = runs["d_model"].map(D_REF)
    matched = [matched_eps(1e-5, run.d_ref, run.d_model, run.gamma) for run in runs.itertuples()]
    runs["norm_eps"] = np.select([runs["variant"] == "standard", runs["variant"] == "literal"], [matched, 1e-5], 1e-12)
    results.blocks = pd.concat([trajectories(run) for run in runs[~runs["diverged"]].to_dict("records")])
    return Arms(results, CONFIG)


def trajectories(run: dict[str, Any]) -> pd.DataFrame:
    """Two blocks whose hidden states grow tenfold, each at its own step, from what the gamma rule gives."""
    rows = []
    for step in (0, 1, 2, 4, 8, 16):
        for layer, part in ((0, "attention"), (0, "ffn"), (1, "attention"), (1, "ffn"), (2, "final")):
            rms = run["d_model"] ** -run["gamma"] * (10 if step >= RELEASE.get(layer, 2) else 1)
            attenuation = (1 + run["norm_eps"] / rms**2) ** -0.5
            rows.append([run["run"], step, layer, part, rms, attenuation])
    return pd.DataFrame(rows, columns=["run", "step", "layer", "part", "hidden_rms", "attenuation"])


# ---------------------------------------------------------------------------------------------------------------- probe
def test_the_real_norm_follows_both_formulas_from_tiny_to_large_inputs() -> None:
    table = epsilon.probe([1e-5, 1e-12], np.geomspace(1e-8, 1, 9), 768, 64)
    bound = epsilon.rms_bound(768, 64)
    assert len(table) == 18 and bound < 0.02
    for quantity in ("output", "gradient"):
        assert ((table[quantity] / table[f"{quantity}_formula"] - 1).abs() < bound).all()
    at = table.set_index(["eps", "std"])
    assert at.loc[(1e-12, 1.0), "output"] == pytest.approx(1, rel=0.02)
    tiny = at.xs(1e-8, level="std")
    assert tiny["output"].tolist() == pytest.approx([1e-8 / 1e-5**0.5, 1e-2], rel=0.02)
    assert tiny["gradient"].tolist() == pytest.approx([1e-5**-0.5, 1e6], rel=0.02)


def test_probing_twice_gives_the_same_numbers() -> None:
    pd.testing.assert_frame_equal(*(epsilon.probe([1e-5], [1e-3], 64, 8) for _ in range(2)))


# ---------------------------------------------------------------------------------------------------------------- start
def test_the_papers_sizes_have_their_known_attenuation() -> None:
    table = epsilon.paper_sizes().set_index(["gamma", "size"])
    known = [0.38, 0.30, 0.20, 0.15]
    assert table.loc[1.0, "attenuation"].tolist() == pytest.approx(known, abs=0.006)
    assert table.loc[(1.0, "1.5B"), "ratio"] == pytest.approx(1e-5 * 2048**2) and table.loc[0.5, "ratio"].max() < 0.021


def test_matched_starts_attenuate_as_their_reference_and_the_others_do_not() -> None:
    found = arms()
    table = epsilon.starts(needed.chosen(found, found.sizes(), ["standard", "eps"]), found.results.blocks)
    standard, small = (table[table["variant"] == variant] for variant in ("standard", "eps"))
    assert len(standard) == 4 and len(small) == 5  # one of the six diverged
    np.testing.assert_allclose(standard["attenuation"], standard["at_d_ref"])
    np.testing.assert_allclose(table["measured"], table["from_rms"])
    np.testing.assert_allclose(table["measured"], table["attenuation"])
    assert (small["attenuation"] > 1 - 1e-6).all()


# ------------------------------------------------------------------------------------------------------------- releases
def steps(*attenuations: float) -> pd.DataFrame:
    table = pd.DataFrame({"step": [0, 1, 2, 4, 8][: len(attenuations)], "attenuation": attenuations})
    return table.assign(run="r", layer=0, part="ffn")


@pytest.mark.parametrize(
    ("attenuations", "released", "share"),
    [
        ((0.9, 0.9, 0.9, 0.9, 0.9), 0, 0),  # never saturated
        ((0.3, 0.5, 0.8, 0.9, 0.9), 2, 0.25),
        ((0.9, 0.3, 0.8, 0.6, 0.9), 8, 1),  # it comes back: what counts is the last time
        ((0.3, 0.8, 0.9, 0.9, 0.6), None, None),  # saturated at the end
        ((0.9,), 0, 0),  # measured once
    ],
)
def test_a_norm_is_free_from_the_step_after_which_it_never_saturates_again(
    attenuations: tuple[float, ...], released: float | None, share: float | None
) -> None:
    (row,) = epsilon.releases(steps(*attenuations).sample(frac=1, random_state=0)).to_dict("records")
    assert (row["start"], row["lowest"], row["end"]) == (attenuations[0], min(attenuations), attenuations[-1])
    for value, wanted in ((row["released"], released), (row["share"], share)):
        assert pd.isna(value) if wanted is None else value == wanted


def test_the_table_says_which_norm_leaves_last_and_the_text_agrees() -> None:
    found = arms()
    runs = needed.chosen(found, ["s"], ["standard"])
    table = epsilon.saturation(runs, epsilon.releases(found.results.blocks)).set_index("γ")
    assert table.loc[1.0, ["norms", "saturated at step 0", "free from step"]].tolist() == [5, 5, 8]
    assert (
        table.loc[1.0, "last to leave"] == "the attention norm of block 1"
        and table.loc[1.0, "share of training"] == 0.5
    )
    assert table.loc[0.5, ["saturated at step 0", "free from step", "last to leave"]].tolist() == [0, 0, "–"]
    text = epsilon.saturation_text(table.reset_index())
    assert "**Size s, γ = 0.5**: no norm is ever saturated" in text
    assert "5 of 5 norms are saturated at step 0, where the first one passes 38%; none is after step 8, 50.0%" in text
    assert draw.saturation_message(table.reset_index()) == (
        "At γ = 1 the matched ε saturates 5 of 5 norms at the start; the last is free after 50 % of the training"
    )


def test_norms_that_never_leave_are_counted() -> None:
    blocks = pd.concat([steps(0.3, 0.4, 0.5, 0.6, 0.6), steps(0.3, 0.9, 0.9, 0.9, 0.9).assign(layer=1)])
    runs = pd.DataFrame([{"run": "r", "size": "s", "gamma": 1.0, "variant": "standard"}])
    first = steps(0.3, 0.9, 0.9, 0.9, 0.9).assign(part="attention")
    table = epsilon.saturation(runs, epsilon.releases(pd.concat([blocks, first])))
    assert table["saturated at the end"].tolist() == [1] and table["last to leave"].tolist() == [
        "the ffn norm of block 1"
    ]
    assert table["free from step"].isna().all()
    assert "1 still is at the end (the ffn norm of block 1)." in epsilon.saturation_text(table)
    assert draw.saturation_message(table).endswith("saturates 3 of 3 norms at the start, and 1 to the end")


# -------------------------------------------------------------------------------------------------------------- effects
def test_effects_have_their_known_sizes_and_add_up() -> None:
    table = epsilon.effects(arms(), ["s", "m"]).set_index(["size", "effect"])["value"]
    known = {"s": [-0.2, 0.3, 0.5, 0.0, 0.5], "m": [-0.4, 0.0, 0.4, 0.1, 0.5]}
    for size, values in known.items():
        assert [table[(size, name)] for name in epsilon.EFFECTS] == pytest.approx(values, abs=0.02)
        change, base, small = (table[(size, name)] for name in list(epsilon.EFFECTS)[2:])
        assert change == pytest.approx(small - base, abs=1e-9)


def test_the_null_of_an_effect_is_of_what_it_compares() -> None:
    losses = {"standard": pair(4.7, 4.6) | pair(4.72, 4.7, seed=1), "eps": pair(4.7, 4.4), "literal": pair(4.7, 4.5)}
    found = Arms(made_up_variants.results(losses), CONFIG)
    table = epsilon.effects(found, ["s"])
    assert table["null"].tolist() == pytest.approx([0.1, 0.1, 0.08, 0.02, 0.1])  # gains 0.1 and 0.02 of the two seeds
    assert epsilon.literal_costs(found)["null"].tolist() == pytest.approx([0.02, 0.1])
    first, second = epsilon.null_text(found, table).split("\n\n")
    assert "their null: 2 of 4 gains and costs." in first and "0.080 in `s-standard`" in second
    assert epsilon.null_text(arms(), epsilon.effects(arms(), ["s"])).count("No null: no arm has two seeds") == 2
    figure = draw.effects(table, epsilon.literal_costs(found))
    assert "grey: as far as two seeds" in figure.texts[1].get_text()
    assert [axes.get_legend_handles_labels()[1].count("two seeds, same γ") for axes in figure.axes] == [1, 1]


def test_the_text_of_the_effects_names_the_winner() -> None:
    table = epsilon.effects(arms(), ["s"])
    text = epsilon.effects_text(table)
    assert "γ = 1 loses (-0.2" in text and "and wins (+0.3" in text
    table.loc[0, ["low", "high"]] = [-1.0, 1.0]
    assert "γ = 1 neither wins nor loses (" in epsilon.effects_text(table)


def test_the_literal_eps_is_compared_where_it_was_run() -> None:
    found = arms()
    costs = epsilon.literal_costs(found)
    assert costs[["size", "gamma"]].to_numpy().tolist() == [["s", 1.0]]
    assert costs["value"].iloc[0] == pytest.approx(0.05, abs=0.02)
    assert "; the matched ε costs +0." in epsilon.literal_text(costs, epsilon.effects(found, ["s"]))
    alone = epsilon.literal_text(costs, epsilon.effects(found, []))
    assert alone.startswith("* Size s, γ = 1: ε = 1e-5 costs +0.0") and "matched" not in alone


# --------------------------------------------------------------------------------------------------------------- needed
def test_a_size_is_complete_if_all_its_runs_ended() -> None:
    assert needed.complete(arms(), epsilon.PAIR) == ["s", "m"]
    assert needed.complete(arms(), ["moe"]) == []


def test_what_is_missing_is_named_as_in_params_and_what_diverged_is_told_apart() -> None:
    lines = needed.note(arms(), epsilon.PAIR).splitlines()
    assert lines == [
        "* Size l is left out: `l-1.0-eps` diverged.",
        "* Size l is left out: add `l-0.5-standard`, `l-1.0-standard` to `runs` in `params.yaml`, then `make repro`.",
    ]
    assert needed.note(Arms(made_up_results({("s", 0.5, "eps"): 5.0}), CONFIG), ["eps"], [0.5]) == ""


def test_chosen_runs_come_in_the_order_asked_for() -> None:
    found = needed.chosen(arms(), ["m", "l"], ["eps", "standard"])
    assert found["run"].tolist() == ["m-0.5-eps", "m-0.5-standard", "m-1.0-eps", "m-1.0-standard", "l-0.5-eps"]


# -------------------------------------------------------------------------------------------------------------- figures
def test_figures_can_be_drawn_and_their_titles_are_true() -> None:
    found = arms()
    pair = needed.chosen(found, ["s", "m"], epsilon.PAIR)
    standard, blocks = pair[pair["variant"] == "standard"], found.results.blocks
    assert draw.hidden_message(pair, blocks) == (
        "Training multiplies the RMS of a γ = 1 embedding by 10; to reach √ε takes 2.4 to 3.2"
    )
    effects = epsilon.effects(found, ["s", "m"])
    probe = epsilon.probe([1e-5, 1e-12], [1e-4, 1.0], 64, 8)
    for figure in (
        draw.probe(probe),
        draw.one_curve(epsilon.paper_sizes(), epsilon.starts(pair, blocks)),
        draw.one_curve(epsilon.paper_sizes(), epsilon.starts(pair.iloc[:0], blocks)),
        draw.attenuation_in_training(standard, blocks),
        draw.hidden_against_eps(pair, blocks),
        draw.effects(effects, epsilon.literal_costs(found)),
        draw.effects(effects, epsilon.literal_costs(found).iloc[:0]),
    ):
        figure.canvas.draw()
    assert (
        "towards γ = 1 at 2 of 2 sizes, away from it at 0"
        in draw.effects(effects, effects.iloc[:0]).texts[0].get_text()
    )
