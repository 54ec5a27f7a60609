"""The ladder's tables and sentences, and that results are collected by list and not by looking into folders."""

import re
from dataclasses import replace

import made_up_variants
import numpy as np
import pandas as pd
import pytest
from conftest import Arm, made_up_results
from made_up_variants import pair

from smallinit import measures, paths, plan
from smallinit.analysis import collect, ladder
from smallinit.analysis.collect import Results
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.ladder import Arms
from smallinit.evaluation import save
from smallinit.files import write_csv, write_json
from smallinit.plots import ladder as draw

CONFIG = AnalysisConfig(bootstrap_samples=200, confidence=0.95, seed=0, difficulty_bins=10)
LOSSES: dict[Arm, float | None] = {
    **{
        ("m", 0.5, "standard"): 4.5,
        ("m", 1.0, "standard"): 4.7,
        ("s", 0.5, "standard"): 5.0,
        ("s", 1.0, "standard"): None,
    },
    **{("m", 0.5, "both"): 4.4, ("m", 1.0, "both"): 4.0, ("s", 0.5, "both"): 4.8, ("s", 1.0, "both"): 4.8},
}


def arms() -> Arms:
    results = made_up_results(LOSSES)
    results.runs["parameters"] = results.runs["size"].map({"s": 1e6, "m": 2e6})
    results.runs["d_model"] = results.runs["size"].map({"s": 64, "m": 96})
    return Arms(results, CONFIG)


def test_gains_are_positive_where_small_initialization_wins_and_empty_where_a_run_diverged() -> None:
    table = ladder.gains(arms()).set_index(["variant", "size"])
    assert table.loc[("both", "m"), "gain"] == pytest.approx(0.4, abs=0.02)
    assert table.loc[("standard", "m"), "gain"] == pytest.approx(-0.2, abs=0.02)
    assert table.loc[("standard", "m"), "high"] < 0 < table.loc[("both", "m"), "low"]
    assert table.loc[("standard", "s"), ["gain", "low", "high"]].isna().all() and len(table) == 4
    assert table.loc[("both", "s"), "d_model"] == 64


def test_a_change_of_gain_is_a_difference_of_differences() -> None:
    change = arms().gain_change(("m", "both"), ("m", "standard"))
    assert change is not None and change.value == pytest.approx(0.6, abs=0.02)
    assert arms().gain_change(("m", "both"), ("s", "standard")) is None


def test_sizes_go_from_small_to_large_whatever_their_order_in_the_plan() -> None:
    assert arms().sizes() == ["s", "m"]


def test_a_diverged_run_is_never_picked_for_a_comparison() -> None:
    assert arms().run("s", 1.0, "standard") is None
    assert arms().run("s", 0.5, "standard") == "s-0.5-standard"


def test_the_message_counts_what_the_gains_say() -> None:
    assert draw.message(ladder.gains(arms())) == (
        "γ = 1 has the lower loss in 1 of 3 comparisons, the higher in 1; largest gain +0.40 nats (both, d = 96)"
    )


def test_there_is_a_message_when_no_comparison_could_be_made() -> None:
    results = made_up_results({("s", 0.5, "both"): 5.0, ("s", 1.0, "both"): None})
    assert isinstance(draw.message(ladder.gains(Arms(results, CONFIG))), str)


def test_the_table_of_losses_shows_a_diverged_run_as_diverged() -> None:
    table = ladder.loss_table(arms().results).set_index(["size", "variant"])
    assert list(table.index) == [("m", "standard"), ("m", "both"), ("s", "standard"), ("s", "both")]
    assert table.loc[("s", "standard"), "loss γ=1.0"] == "diverged"
    assert table.loc[("s", "standard"), "loss γ=0.5"] == "5.000"
    assert table.loc[("m", "both"), ["loss γ=0.5", "bits/byte γ=1.0"]].tolist() == ["4.400", "2.000"]
    assert (table["seeds"] == 1).all()


def test_no_cell_of_the_table_of_losses_says_nan() -> None:
    assert not (ladder.loss_table(arms().results) == "nan").any(axis=None)


def test_figures_of_results_with_a_diverged_run_can_be_drawn() -> None:
    found = arms()
    for figure in (
        draw.loss_against_size(found.results),
        draw.gain_figure(found.results, ladder.gains(found)),
        draw.headline_figure(found.results, ladder.gains(found)),
        draw.curves(found.results, "s"),
    ):
        figure.canvas.draw()


def with_seeds() -> Results:
    """The ladder, a second seed of one pair and of half a pair, another variant and another gamma."""
    more = {("m", 0.5, "moe"): 4.0, ("m", 1.0, "moe"): 3.0, ("m", 0.75, "both"): 3.5}
    others = {("s", 0.5, "both"): 4.9, ("s", 1.0, "both"): 4.6, ("m", 0.5, "both"): 4.5}
    results, second = made_up_results(LOSSES | more), made_up_results(others)
    second.runs["seed"], second.runs["run"] = 1, second.runs["run"] + "-seed1"
    second.heldout["run"] += "-seed1"
    return replace(
        results,
        runs=pd.concat([results.runs, second.runs], ignore_index=True),
        heldout=pd.concat([results.heldout, second.heldout], ignore_index=True),
    )


def test_the_ladder_is_its_variants_at_two_gammas_and_its_lines_are_of_the_first_seed() -> None:
    runs = draw.ladder_runs(with_seeds())
    assert set(runs["variant"]) == {"standard", "both"} and set(runs["gamma"]) == {0.5, 1.0}
    assert runs.loc[~runs["default"], "run"].tolist() == ["s-0.5-both-seed1", "s-1.0-both-seed1", "m-0.5-both-seed1"]
    figure = draw.loss_against_size(with_seeds())
    lines = {line.get_label(): line.get_ydata().tolist() for line in figure.axes[1].lines}
    assert lines["γ = 0.5"] == [4.4, 4.8] and lines["γ = 1"] == [4.0, 4.8]  # m has fewer made-up parameters than s


def test_results_without_any_run_of_the_ladder_are_shown_as_they_are() -> None:
    results = made_up_results({("s", 0.75, "moe"): 4.0})
    assert draw.ladder_runs(results)["run"].tolist() == ["s-0.75-moe"]
    draw.loss_against_size(results).canvas.draw()


def test_other_seeds_have_a_gain_where_both_arms_were_run() -> None:
    others = draw.other_gains(draw.ladder_runs(with_seeds()))
    assert others[["variant", "size", "seed"]].to_numpy().tolist() == [["both", "s", 1]]
    assert others["gain"].tolist() == pytest.approx([0.3])
    assert draw.other_gains(draw.ladder_runs(arms().results)).empty


def test_beside_each_gain_stands_the_null_of_its_variant() -> None:
    losses = {"both": pair(4.7, 4.5) | pair(4.73, 4.5, seed=1) | pair(4.5, 4.4, size="m"), "eps": pair(4.7, 4.4)}
    found = Arms(made_up_variants.results(losses), CONFIG)
    table = ladder.gains(found).set_index(["variant", "size"])
    assert table["null"].tolist() == pytest.approx([0.03] * 4)  # of `both` at s, also where there is nothing to compare
    for figure, one in (
        (draw.gain_figure(found.results, ladder.gains(found)), False),
        (draw.headline_figure(found.results, ladder.gains(found)), False),
        (draw.gain_figure(arms().results, ladder.gains(arms())), True),
    ):
        assert ("no null" in figure.texts[1].get_text()) == one
        figure.canvas.draw()


def test_runs_that_are_missing_or_diverged_are_named() -> None:
    text = draw.missing(arms())
    assert "s-1.0-standard" in text and "m-0.5-gate" in text and "m-1.0-both" not in text
    whole = {(size, gamma, variant): 4.0 for size in "sm" for gamma in (0.5, 1.0) for variant in draw.VARIANT_NAMES}
    assert draw.missing(Arms(made_up_results(whole), CONFIG)) == "Every run of the ladder is there."


def test_the_curves_say_whether_who_leads_early_leads_at_the_end() -> None:
    results = made_up_results(LOSSES)
    early = results.heldout["step"] == 1
    late = results.heldout[early].assign(tokens=1280, step=10)
    results.heldout.loc[early & (results.heldout["run"] == "m-0.5-both"), "loss"] = 3.9  # ahead at first only
    results.heldout = pd.concat([results.heldout, late], ignore_index=True)
    assert "leads at the end in 1 of 2 variants" in draw.curves_message(results, "m")
    assert "leads at the end in 1 of 1 variants" in draw.curves_message(results, "s")
    assert "no variant has both" in draw.curves_message(made_up_results({("s", 0.5, "both"): 4.0}), "s")


# -------------------------------------------------------------------------------------------------------------- collect
def write_run(name: str, diverged: bool = False) -> None:
    """Artifacts of one run, as the stages train and evaluate leave them."""
    folder = paths.RESULTS / "train" / name
    known = {"parameters": 1000, "parameters_without_embeddings": 500, "tokens": 2048, "diverged": diverged}
    write_json(folder / "metrics.json", known)
    columns = ["step", "tokens", "learning_rate", "loss", "grad_norm", "adam_eps_share"]
    write_csv(folder / "curve.csv", pd.DataFrame([] if diverged else [[1, 128, 0.1, 5.0, 1.0, 0.0]], columns=columns))
    write_csv(folder / "heldout.csv", pd.DataFrame([[0, 0, 5.5]], columns=["step", "tokens", "loss"]))
    for kind, columns in (("matrices", measures.MATRICES), ("blocks", measures.BLOCKS)):
        write_csv(folder / f"{kind}.csv", pd.DataFrame(columns=columns))
    if diverged:
        save.save_diverged(name)
        return
    part = {"documents": 1, "tokens": 10, "loss": 4.0, "bits_per_byte": 2.0}
    metrics = {"diverged": False, "loss": 4.0, "documents": part, "language": {"en": part}, "source": {}}
    documents = pd.DataFrame([[0, "wiki", "en", 10, 20, 40.0]], columns=save.DOCUMENT_COLUMNS)
    heads = pd.DataFrame(
        [[0, 0, 0, 0.1, None, None]], columns=["window", "layer", "head", "sink", "gate", "gate_below_0.1"]
    )
    save.save(name, metrics, documents, documents["loss_sum"].to_numpy(), heads, np.zeros(0))


@pytest.fixture
def names(project: object) -> list[str]:
    """The runs of a written plan."""
    return plan.write()


def test_results_are_those_of_the_runs_in_the_plan_in_their_order(names: list[str]) -> None:
    for name in names:
        write_run(name, diverged=name == "m-1.0-both")
    results = collect.load()
    assert results.runs["run"].tolist() == names and results.orphans == []
    lost = results.runs.set_index("run").loc["m-1.0-both"]
    assert lost["diverged"] and pd.isna(lost["loss"]) and pd.isna(lost["bits_per_byte"])
    kept = results.runs.set_index("run").loc["s-0.5-standard"]
    assert (kept["gamma"], kept["peak_lr"], kept["loss"], kept["bits_per_byte_en"]) == (0.5, 8e-3, 4.0, 2.0)
    assert set(results.documents["run"]) == set(names) - {"m-1.0-both"} == set(results.attention["run"])


def test_results_of_a_run_that_was_removed_are_named_and_in_no_table(names: list[str]) -> None:
    for name in names:
        write_run(name)
    kept = [name for name in names if "-1.0-" in name]
    paths.PARAMS.write_text(re.sub(r"runs: \[[^]]*\]", f"runs: [{', '.join(kept)}]", paths.PARAMS.read_text()))
    left = plan.write()
    write_run("x-0.25-old")
    results = collect.load()
    assert results.orphans == sorted({"x-0.25-old", *names} - set(left))
    for table in (results.runs, results.curves, results.heldout, results.documents, results.attention):
        assert set(table["run"]) == set(left) == set(kept)


def test_a_missing_result_is_named_with_the_stage_that_makes_it(names: list[str]) -> None:
    for name in names[1:]:
        write_run(name)
    with pytest.raises(FileNotFoundError, match=f"run `dvc repro train@{names[0]}`"):
        collect.load()


def test_results_in_which_every_run_diverged_are_results(names: list[str]) -> None:
    for name in names:
        write_run(name, diverged=True)
    assert collect.load().runs["diverged"].all()


def test_token_losses_come_back_as_they_were_saved(names: list[str]) -> None:
    write_run(names[0])
    assert collect.token_losses(names[0]).tolist() == [40.0]
