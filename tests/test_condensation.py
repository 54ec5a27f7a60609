"""Condense, then expand: known trajectories give known falls, rises and verdicts; figures say what the data say."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import made_up_results
from matplotlib.figure import Figure
from PIL import Image

from smallinit.analysis import claims, condensation
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.ladder import Arms
from smallinit.evaluation import similarity
from smallinit.evaluation.similarity import SCALE, Matrix, Similarity
from smallinit.measures import MATRICES
from smallinit.plots import condensation as draw
from smallinit.plots import similarity as film

CONFIG = AnalysisConfig(bootstrap_samples=200, confidence=0.95, seed=0, difficulty_bins=10)
STEPS = np.array([0, 1, 4, 16, 64, 100])
EARLY = STEPS <= 25
KINDS = ["query", "key", "value", "attention_out", "ffn_up", "ffn_down", "embedding", "head"]
RANDOM_RANK = 16.0
Path_ = Callable[[np.random.Generator], list[float]]  # ratios to a random matrix, at STEPS


def wobble(*ratios: float) -> Path_:
    """The same trajectory for all matrices, but for a few per cent."""
    return lambda random: [ratios[0], *(ratio * np.exp(random.normal(0, 0.03)) for ratio in ratios[1:])]


PAPER = wobble(1.0, 1.0, 0.6, 0.1, 0.3, 0.5)  # condenses by step 16, then expands
FLAT = wobble(1.0, 1.0, 0.98, 0.95, 0.9, 0.8)
FALLING = wobble(1.0, 0.98, 0.9, 0.8, 0.3, 0.1)  # falls to the end
DIPS = wobble(1.0, 0.9, 0.4, 0.3, 0.35, 0.4)


def matrices(run: str, path: Path_, seed: int) -> pd.DataFrame:
    tables = []
    for number, kind in enumerate(KINDS):
        layer = -1 if kind in ("embedding", "head") else number % 2
        ratios = np.array(path(np.random.default_rng((seed, number))))
        table = pd.DataFrame({"step": STEPS, "tokens": STEPS * 128, "stable_rank_ratio": ratios})
        table["stable_rank"] = RANDOM_RANK * ratios
        table = table.assign(run=run, name=f"{layer}.{kind}", kind=kind, layer=layer, weight_norm=2.0)
        table = table.assign(row_cosine=0.1 / ratios.clip(0.2), row_cosine_above=1 - ratios.clip(0, 1))
        moved = table["step"].where(table["step"] > 0) * 0 + 1.0  # empty at step 0
        tables.append(table.assign(grad_norm=moved, update_norm=0.5 * moved))
    return pd.concat(tables)[["run", *MATRICES]]


def arms(base: Path_ | None, small: Path_ | None, seeds: int = 1, diverged: bool = False) -> Arms:
    """One size, variant `both`: the trajectories of gamma = 0.5 and 1, None for a run that is not there."""
    chosen = {gamma: path for gamma, path in ((0.5, base), (1.0, small)) if path}
    results = made_up_results({("s", gamma, "both"): 4.0 for gamma in chosen})
    runs = [results.runs.assign(seed=seed, run=results.runs["run"] + f"-seed{seed}") for seed in range(seeds)]
    table = pd.concat(runs, ignore_index=True)
    table["diverged"] = diverged & (table["gamma"] == 1.0)
    measured = [matrices(run.run, chosen[run.gamma], run.seed) for run in table.itertuples()]
    return Arms(replace(results, runs=table, matrices=pd.concat(measured, ignore_index=True)), CONFIG)


def verdict(found: Arms) -> str:
    return claims.judge(claims.named(condensation.effects(found)))


def points(found: Arms) -> pd.DataFrame:
    return condensation.turning_points(condensation.trajectories(found.results, "s", "both"))


# --------------------------------------------------------------------------------------------------------- trajectories
def exact(*ratios: float) -> Path_:
    return lambda random: list(ratios)


def test_fall_and_rise_are_in_halvings_from_the_lowest_of_the_early_part() -> None:
    table = points(arms(exact(1, 1, 0.5, 0.25, 0.0625, 0.5), exact(0.8, 0.4, 0.8, 0.4, 0.2, 0.1)))
    base, small = (table[table["gamma"] == gamma] for gamma in (0.5, 1.0))
    for row in base.itertuples():  # 0.0625 at step 64 comes too late to count
        assert (row.start, row.lowest, row.at_step, row.end) == (1, 0.25, 16, 0.5)
        assert (row.fall, row.rise) == pytest.approx((2, 1))
    assert small["fall"].tolist() == pytest.approx([1] * 8) and small["rise"].tolist() == pytest.approx([-2] * 8)
    assert set(small["at_step"]) == {1}  # the first of two equal ones


def test_means_are_geometric_for_ranks_and_plain_for_cosines() -> None:
    found = arms(exact(*[1.0] * 6), exact(*[0.25] * 6))
    table = condensation.trajectories(found.results, "s", "both").assign(all="x")
    whole = table.assign(gamma=0.0)
    ranks = condensation.mean_by(whole, "all", "stable_rank_ratio")
    cosines = condensation.mean_by(whole, "all", "row_cosine")
    assert ranks["value"].tolist() == pytest.approx([0.5] * 6) and ranks["step"].tolist() == STEPS.tolist()
    assert cosines["value"].tolist() == pytest.approx([(0.1 + 0.4) / 2] * 6)
    first = condensation.mean_by(table, "family", "update_ratio").query("step == 1")
    assert first["value"].tolist() == pytest.approx([0.25] * len(first)) and len(first) == 2 * 6


def test_an_update_is_relative_to_its_matrix_and_empty_at_the_start() -> None:
    table = condensation.trajectories(arms(FLAT, PAPER).results, "s", "both")
    assert table.loc[table["step"] == 0, "update_ratio"].isna().all()
    assert (table.loc[table["step"] > 0, "update_ratio"] == 0.25).all() and table["family"].notna().all()


# ------------------------------------------------------------------------------------------------------------- the rule
@pytest.mark.parametrize(
    ("base", "small", "wanted"),
    [
        (FLAT, PAPER, claims.REPLICATED),
        (PAPER, PAPER, claims.NOT_SEEN),  # gamma = 0.5 condenses as much
        (FLAT, FALLING, claims.NOT_SEEN),
        (FLAT, FLAT, claims.NOT_SEEN),
        (DIPS, FALLING, claims.CONTRADICTED),  # no early condensation, no expansion, and gamma = 0.5 has more of both
        (None, PAPER, claims.NOT_TESTED),
        (FLAT, None, claims.NOT_TESTED),
    ],
)
@pytest.mark.parametrize("seeds", [1, 3])
def test_made_up_trajectories_lead_to_their_verdicts(
    base: Path_ | None, small: Path_ | None, wanted: str, seeds: int
) -> None:
    assert verdict(arms(base, small, seeds)) == wanted


def test_effects_have_their_values_and_say_over_what_their_interval_is() -> None:
    one, two, three = (condensation.effects(arms(FLAT, PAPER, seeds)) for seeds in (1, 2, 3))
    names = ["s γ=1 falls beyond half", "s γ=1 rises beyond a tenth", "s γ=1 falls more than γ=0.5"]
    values = [np.log2(10) - 1, np.log2(5) - np.log2(1.1), np.log2(10) - np.log2(1 / 0.95)]
    for found, units in ((one, "matrices"), (two, "matrices"), (three, "seeds")):
        assert list(found) == names
        for interval, value in zip(found.values(), values, strict=True):
            assert interval is not None and interval.units == units
            assert interval.value == pytest.approx(value, abs=0.1) and interval.low < interval.value < interval.high


def test_embedding_and_head_are_shown_and_not_judged() -> None:
    found = arms(FLAT, PAPER)
    table = found.results.matrices
    outside = table["kind"].isin(["embedding", "head"])
    table.loc[outside, "stable_rank_ratio"] = 1.0
    changed = condensation.effects(found)
    assert changed == condensation.effects(arms(FLAT, PAPER)) and len(points(found)) == 2 * len(KINDS)


def test_a_diverged_run_and_missing_measures_leave_the_claim_untested() -> None:
    assert verdict(arms(FLAT, PAPER, diverged=True)) == claims.NOT_TESTED
    nothing = made_up_results({("s", gamma, "both"): 4.0 for gamma in (0.5, 1.0)})
    assert verdict(Arms(nothing, CONFIG)) == claims.NOT_TESTED
    assert condensation.overview(nothing, ["s"]).empty


def test_the_overview_counts_matrices_that_condensed_and_that_expanded_after_it() -> None:
    table = condensation.overview(arms(FALLING, PAPER, seeds=2).results, ["s"]).set_index("γ")
    assert table.loc[1.0, ["condensed", "then expanded", "matrices", "seeds"]].tolist() == [1, 1, 6, 2]
    assert table.loc[0.5, ["condensed", "then expanded"]].tolist() == [0, 0]
    assert table.loc[1.0, "lowest"] == pytest.approx(0.1, abs=0.01) and table.loc[1.0, "at step"] == 16


# ------------------------------------------------------------------------------------------------------------- pictures
def clusters(groups: np.ndarray) -> np.ndarray:
    """Cosines of rows that point one way (+1) or the opposite (-1)."""
    return np.outer(groups, groups).astype(np.int8) * SCALE


def pictures(late: np.ndarray) -> Similarity:
    start = (SCALE * np.eye(8)).astype(np.int8)
    found = [Matrix(f"blocks.0.{kind}", kind, 0, list(range(8))) for kind in ("query", "ffn_up")]
    cosines = np.stack([np.stack([start, start]), np.stack([late, start])])
    rows = []
    for kind in KINDS:
        for step, ratio in ((4, 0.2), (8, 0.1), (16, 0.4)):
            if step > 4 or kind == "value":  # the one that moves first
                rows.append([step, step * 128, f"0.{kind}", kind, 0, 0.5, 0.9, ratio])
    changes = pd.DataFrame(rows, columns=similarity.CHANGES)
    return Similarity([0, 4], [0, 512], found, [[8.0, 8.0], [1.0, 8.0]], cosines, changes)


INTERLEAVED = np.array([1, -1, 1, -1, -1, 1, 1, 1])


def test_rows_that_agree_lie_together_whatever_their_order() -> None:
    ordered = film.reordered(clusters(INTERLEAVED))
    assert np.array_equal(ordered, clusters(np.sort(INTERLEAVED)))
    assert np.array_equal(film.reordered(clusters(INTERLEAVED[::-1])), ordered)


def test_the_animation_has_the_same_bytes_twice_and_its_frames_differ(tmp_path: Path) -> None:
    pair = {0.5: pictures((SCALE * np.eye(8)).astype(np.int8)), 1.0: pictures(clusters(INTERLEAVED))}
    path = film.animate(pair, "a", tmp_path)
    again = film.animate(pair, "b", tmp_path)
    assert path.read_bytes() == again.read_bytes() and path.stat().st_size < 200_000
    with Image.open(path) as image:
        assert image.n_frames == 2
        frames = []
        for number in range(2):
            image.seek(number)
            frames.append(np.asarray(image.convert("RGB")).astype(int))
    changed = np.abs(frames[1] - frames[0]).sum(axis=(0, 2)) > 0
    width = changed.size
    assert changed[width // 2 :].mean() > 5 * changed[: width // 4].mean()  # gamma = 1 is on the right


def test_only_runs_with_pictures_of_both_gammas_are_pictured(project: Path) -> None:
    found = arms(FLAT, PAPER)
    assert condensation.pictured(found) == {}
    similarity.save("s-1.0-both-seed0", pictures(clusters(INTERLEAVED)))
    assert condensation.pictured(found) == {}
    similarity.save("s-0.5-both-seed0", pictures(clusters(INTERLEAVED)))
    assert list(condensation.pictured(found)) == [0.5, 1.0]


def title(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.texts)


def test_titles_of_figures_state_what_the_data_say() -> None:
    table = condensation.trajectories(arms(exact(1, 1, 0.5, 0.25, 0.3, 0.5), exact(*[0.2] * 6)).results, "s", "both")
    assert "γ = 1: 0.20 early on, 0.20 at the end; γ = 0.5: 0.25 early on, 0.50" in title(draw.stable_ranks(table, "s"))
    assert "γ = 1: 0.50 at step 0; γ = 0.5: 0.40 at step 16" in title(draw.alignment(table, "s"))
    assert "γ = 1: 25.0% at step 1" in title(draw.norms(table, "s"))
    pair = {0.5: pictures(clusters(INTERLEAVED)), 1.0: pictures(clusters(INTERLEAVED))}
    assert "γ = 1: 8.0 → 1.0 (step 4) → 1.0" in title(film.filmstrip(pair))


def test_the_title_on_what_training_adds_starts_where_all_matrices_have_moved() -> None:
    table = condensation.changes({gamma: pictures(clusters(INTERLEAVED)) for gamma in (0.5, 1.0)})
    assert (table["step"] == 4).sum() == 2 and len(table) == 2 * (2 * len(KINDS) + 1)
    assert "γ = 1: 0.10 (step 8), 0.40 at the end; γ = 0.5: 0.10 (step 8)" in title(draw.changes(table))


def test_the_first_step_is_compared_with_the_learning_rates() -> None:
    found = arms(FLAT, PAPER, seeds=2)
    found.results.runs["peak_lr"] = found.results.runs["gamma"].map({0.5: 8e-3, 1.0: 2e-3})
    small = found.results.matrices["run"] == "s-1.0-both-seed0"
    found.results.matrices.loc[small, "update_norm"] *= 0.25
    found.results.matrices.loc[small, "grad_norm"] *= 1e-3
    table = condensation.first_step(found, "s")
    assert len(table) == len(KINDS) and (table["learning_rate"] == 0.25).all()
    assert table["update"].tolist() == pytest.approx([0.25] * 8)
    assert table["gradient"].tolist() == pytest.approx([1e-3] * 8)


def test_figures_can_be_drawn_with_seeds() -> None:
    table = condensation.trajectories(arms(FLAT, PAPER, seeds=2).results, "s", "both")
    figure = draw.stable_ranks(table, "s")
    figure.canvas.draw()
    assert "2 seeds" in title(figure)
