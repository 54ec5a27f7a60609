"""Sink and gate: against closed forms, planted heads, hand-made maps and made-up losses."""

from pathlib import Path

import made_up_variants
import numpy as np
import pandas as pd
import pytest
from conftest import Arm, made_up_results
from made_up_variants import pair

from smallinit import paths
from smallinit.analysis import claims, gate, needed
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.ladder import Arms
from smallinit.evaluation.attention import uniform_map, uniform_sink
from smallinit.plots import gate as draw

CONFIG = AnalysisConfig(bootstrap_samples=200, confidence=0.95, seed=0, difficulty_bins=10)
UNIFORM = uniform_sink(64)
LOSSES: dict[Arm, float | None] = {
    **{("s", 0.5, "standard"): 5.0, ("s", 1.0, "standard"): 5.2, ("s", 0.5, "gate"): 4.9, ("s", 1.0, "gate"): 4.8},
    **{("s", 0.5, "eps"): 5.0, ("s", 1.0, "eps"): 4.7, ("s", 0.5, "both"): 4.9, ("s", 1.0, "both"): None},
}


def arms() -> Arms:
    """Two blocks of two heads; the second head of block 2 is a sink; gates halve towards the end."""
    results = made_up_results(LOSSES)
    window, layer, head = (place.ravel() for place in np.indices((4, 2, 2)))
    heads, blocks = [], []
    for run in results.runs[~results.runs["diverged"]].to_dict("records"):
        gated = run["variant"] in ("gate", "both")
        table = pd.DataFrame({"run": run["run"], "window": window, "layer": layer, "head": head})
        sink = np.where(layer * head == 1, 0.4, 0.01) + 0.001 * window
        opening = np.where(layer == 1, 0.2, 0.4) if gated else np.nan
        heads.append(table.assign(sink=sink, gate=opening, **{"gate_below_0.1": 0.25 if gated else np.nan}))
        for step in (0, 8):
            for block in (0, 1):
                row = {"run": run["run"], "step": step, "layer": block, "part": "attention", "sink": UNIFORM}
                row |= {
                    "gate": (0.25 if step else 0.5) if gated else np.nan,
                    "gate_below_0.1": 0.1 if gated else np.nan,
                }
                blocks.append(row)
    results.attention, results.blocks = pd.concat(heads, ignore_index=True), pd.DataFrame(blocks)
    return Arms(results, CONFIG)


def four(found: Arms) -> pd.DataFrame:
    return needed.chosen(found, ["s"], [variant for pair in gate.PAIRS.values() for variant in pair])


def test_a_sink_needs_a_score_that_grows_with_the_text_and_a_gate_does_not() -> None:
    table = gate.silence([0.0, 2.0], [16, 256]).set_index(["tokens", "score"])["left"]
    assert table[(0, 0.0)] == 0.5 and table[(0, 2.0)] == pytest.approx(1 / (1 + np.exp(2)))
    assert table[(16, 0.0)] == pytest.approx(15 / 16) and table[(256, 2.0)] == pytest.approx(255 / (np.exp(2) + 255))


def test_starts_are_in_units_of_uniform_with_bounds_from_width_and_gamma() -> None:
    found = arms()
    table = gate.starts(four(found), found.results.blocks, UNIFORM)
    assert len(table) == 14 and (table["sink"] == 1).all() and set(table["gate"].dropna()) == {0.5}
    small, base = (table[table["gamma"] == gamma].iloc[0] for gamma in (1.0, 0.5))
    assert (small["sink_bound"], small["gate_bound"]) == pytest.approx((4 / 64, 1 / 8))
    assert (base["sink_bound"], base["gate_bound"]) == (4, 1)


def test_the_planted_sink_is_found_in_its_place_and_said() -> None:
    found = arms()
    table = gate.sinks(four(found), found.results.attention, UNIFORM, CONFIG)
    assert len(table) == 7 and (table["where"] == "block 2, head 2").all()
    assert (table[["above uniform", "sinks", "heads"]].to_numpy() == [1, 1, 4]).all()
    assert table["sink"].to_numpy() == pytest.approx((0.4 + 0.03) / 4 + 0.0015)
    assert (table["low"] < table["sink"]).all() and (table["sink"] < table["high"]).all()
    assert gate.sinks_text(table).startswith("Of 28 heads in 7 runs 7 are sinks, by the usual mark of 30%.")
    assert "runs none is a sink" in gate.sinks_text(table.assign(sinks=0))


def test_gates_are_of_runs_that_have_them_and_the_lowest_block_is_named() -> None:
    found = arms()
    table = gate.gates(four(found), found.results.attention)
    assert set(table["variant"]) == {"gate", "both"} and table["gate"].tolist() == pytest.approx([0.4, 0.2] * 3)
    assert "0.30 at γ = 0.5 (25% of its values below 0.1; lowest in block 2, 0.20)" in gate.gates_text(table)


def test_the_gain_of_the_gate_is_what_the_losses_say_and_a_diverged_run_is_left_out() -> None:
    table = gate.effects(arms()).set_index(["eps", "arm"])["value"]
    assert table["matched ε"].to_dict() == pytest.approx({"γ = 0.5": 0.1, "γ = 1": 0.4, "difference": 0.3}, abs=0.02)
    assert table["ε = 1e-12"].to_dict() == pytest.approx({"γ = 0.5": 0.1}, abs=0.02)
    assert ", more at γ = 1 (+0.3" in gate.effects_text(gate.effects(arms()))


def test_the_null_of_a_gain_of_the_gate_is_of_its_pair_and_gamma() -> None:
    losses = {"eps": pair(4.7, 4.6), "both": pair(4.7, 4.5) | pair(4.73, 4.51, seed=1)}
    found = Arms(made_up_variants.results(losses), CONFIG)
    table = gate.effects(found)
    assert table["null"].tolist() == pytest.approx([0.03, 0.01, 0.02])  # gains of γ = 1: 0.2 and 0.22
    first, second = gate.effects_null_text(found, table).split("\n\n")
    assert "null: 1 of 2 gains of the gate." in first and "null: 1 of 1 differences between the γ." in second
    assert "grey: as far as two seeds" in draw.effects(table).texts[1].get_text()


def test_sinks_and_gates_stand_beside_what_a_second_seed_moves() -> None:
    losses = {"eps": pair(4.7, 4.6), "both": pair(4.7, 4.5) | pair(4.7, 4.5, seed=1)}
    found = Arms(made_up_variants.results(losses), CONFIG)
    shares = {"s-0.5-eps": 0.1, "s-1.0-eps": 0.3, "s-0.5-both": 0.1, "s-1.0-both": 0.28}
    shares |= {"s-0.5-both-seed1": 0.15, "s-1.0-both-seed1": 0.31}
    rows = [[run, window, 0, 0, share + 0.001 * window] for run, share in shares.items() for window in range(4)]
    heads = pd.DataFrame(rows, columns=["run", "window", "layer", "head", "sink"])
    opening = heads["sink"].where(heads["run"].str.contains("both"))
    found.results.attention = heads.assign(gate=opening, **{"gate_below_0.1": opening})
    text = gate.sinks_null_text(
        found, claims.sink_and_gate(found)
    )  # sharper by 0.2, null 0.05; removed by 0.02, null 0.03
    assert "0.050 in `s-0.5-both`" in text and "null: 1 of 2 differences of sinks." in text
    table = gate.gates(found.results.runs[found.results.runs["seed"] == 0], found.results.attention)
    assert "null: 1 of 1 differences of the mean gate between the γ." in gate.gates_null_text(found, table)
    assert gate.sinks_null_text(arms(), []).startswith("No null")


def test_of_each_layer_the_head_with_the_strongest_sink_is_shown_over_uniform() -> None:
    uniform = uniform_map(64)
    maps = np.broadcast_to(uniform, (2, 3, *uniform.shape)).copy()
    maps[0, 1, :, 0] *= 3
    maps[1, 2, :, 0] *= 5
    head, ratio = gate.strongest(maps, 64)
    assert head.tolist() == [1, 2] and ratio.shape == (2, *uniform.shape)
    np.testing.assert_allclose(ratio[:, :, 0], [[3] * 32, [5] * 32])
    assert np.isnan(ratio[0, 0, -1]) and np.isnan(ratio).sum() == 2 * (uniform == 0).sum()
    assert draw.maps({"γ = 1\nno gate": (head, ratio)}, 64).texts[0].get_text() == (
        "The strongest sink is 5.0 times uniform attention (γ = 1 no gate)"
    )


def test_maps_that_are_missing_or_of_a_diverged_run_are_none(project: Path) -> None:
    assert gate.read_maps("t") is None
    folder = paths.RESULTS / "evaluate" / "t"
    folder.mkdir(parents=True)
    np.save(folder / "attention_maps.npy", np.zeros(0, dtype=np.float16))
    assert gate.read_maps("t") is None
    np.save(folder / "attention_maps.npy", np.ones((1, 2, 3, 4), dtype=np.float16))
    found = gate.read_maps("t")
    assert found is not None and found.dtype == np.float64 and found.shape == (1, 2, 3, 4)


def test_figures_can_be_drawn_and_their_titles_are_true() -> None:
    found = arms()
    runs, blocks = four(found), found.results.blocks
    pair = runs[runs["variant"].isin(["eps", "both"])]
    titles = [
        (draw.silence(gate.silence(np.linspace(0, 14, 57), [16])), "a gate needs a score of 2.2, a sink among 16"),
        (draw.sink_in_training(pair, blocks, UNIFORM), "1.0 times uniform"),
        (draw.sinks(gate.heads(runs, found.results.attention), UNIFORM), "25% at γ = 0.5, 25% at γ = 1"),
        (draw.gate_in_training(pair[pair["variant"] == "both"], blocks), "from a half to 0.25 at γ = 0.5"),
        (draw.effects(gate.effects(found)), "lowers the loss in 3 of 3 comparisons and raises it in 0"),
    ]
    for figure, title in titles:
        figure.canvas.draw()
        assert title in " ".join(text.get_text() for text in figure.texts)
