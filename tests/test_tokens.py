"""Token by token: what the rule says about planted gains, that bins by one model lie, and what a passage shows."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from conftest import Arm, made_up_results
from matplotlib.font_manager import get_font

from smallinit import paths
from smallinit.analysis import claims, passages, token_pairs, tokens
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.ladder import Arms
from smallinit.analysis.statistics import bootstrap_ratio
from smallinit.files import write_csv
from smallinit.plots import passages as draw_text
from smallinit.plots import tokens as draw

CONFIG = AnalysisConfig.model_validate(
    {"bootstrap_samples": 200, "confidence": 0.95, "seed": 0}
    | ({"difficulty_bins": 10} if "difficulty_bins" in AnalysisConfig.model_fields else {})
)
DOCUMENTS, LENGTH = 40, 50
COUNT = DOCUMENTS * (LENGTH + 1)  # each after a separator
Gain = Callable[[np.ndarray], np.ndarray]


def documents() -> pd.DataFrame:
    starts = np.arange(DOCUMENTS) * (LENGTH + 1) + 1
    frame = pd.DataFrame({"document": range(DOCUMENTS), "start": starts, "end": starts + LENGTH})
    return frame.assign(source=["wiki", "law"] * (DOCUMENTS // 2), language=["en", "zh"] * (DOCUMENTS // 2))


def difficulty() -> np.ndarray:
    return np.random.default_rng(0).uniform(0.1, 9, COUNT)


def noisy(losses: np.ndarray, seed: int, scale: float = 0.3) -> np.ndarray:
    return losses + np.random.default_rng(seed).normal(0, scale, losses.shape)


def test_the_gap_is_what_the_formula_says_also_for_tiny_probabilities() -> None:
    base, small = np.log([5.0, 2.0, 1e30]), np.log([2.5, 4.0, 1e10])
    np.testing.assert_allclose(tokens.symmetric_gap(base, small), [1 / 3, -1 / 3, 1.0])
    assert tokens.symmetric_gap(np.array([800.0]), np.array([800.0 - np.log(3)]))[0] == pytest.approx(0.5)


def test_a_loss_belongs_to_the_token_after_it_and_separators_and_what_lies_beyond_the_slice_are_left_out() -> None:
    places = pd.DataFrame({"document": [7, 8, 9], "source": "s", "language": "en"})
    places = places.assign(start=[1, 4, 7], end=[3, 6, 12])
    losses = np.arange(8.0)  # of tokens 1 to 8
    table = tokens.compare(losses, losses / 2, places)
    assert table["entry"].tolist() == [0, 1, 3, 4, 6, 7]
    assert table["document"].tolist() == [7, 7, 8, 8, 9, 9]
    assert table["base"].tolist() == [0, 1, 3, 4, 6, 7] and table["gain"].tolist() == [0, 0.5, 1.5, 2, 3, 3.5]
    assert table["difficulty"].tolist() == [0, 0.75, 2.25, 3, 4.5, 5.25]


def test_runs_with_different_slices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(9,\) and \(8,\).*evaluate\.slice_tokens"):
        tokens.compare(np.ones(9), np.ones(8), documents())


def test_bins_have_equal_counts_also_among_ties_and_levels_split_all_tokens() -> None:
    flat = np.round(difficulty())  # many ties
    table = tokens.compare(flat, flat, documents())
    profile = tokens.profile(table, 10, CONFIG)
    assert profile["tokens"].tolist() == [DOCUMENTS * LENGTH // 10] * 10
    assert profile["difficulty"].is_monotonic_increasing and profile["share"].iloc[[0, -1]].tolist() == [0.05, 0.95]
    levels = tokens.levels(table, CONFIG).set_index("level")["tokens"]
    assert levels.tolist() == [2000, 600, 1200, 200]
    with pytest.raises(ValueError, match=r"5 tokens for 10 bins: lower `analysis\.difficulty_bins`"):
        tokens.profile(table.head(5), 10, CONFIG)


def test_an_interval_draws_documents_as_the_other_statistics_do() -> None:
    table = tokens.compare(noisy(difficulty(), 1), noisy(difficulty(), 2), documents())
    sums = table.groupby("document")["gain"].agg(["sum", "size"])
    expected = bootstrap_ratio(sums["sum"].to_numpy(), sums["size"].to_numpy(float), "documents", CONFIG)
    found = tokens.contrast([(table, 1)], "gain", CONFIG)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((expected.value, expected.low, expected.high))


def test_tokens_of_one_document_do_not_count_as_independent() -> None:
    shift = np.random.default_rng(3).normal(0, 1, DOCUMENTS).repeat(LENGTH + 1)
    base = difficulty()
    together = tokens.contrast([(tokens.compare(base + shift, base, documents()), 1)], "gain", CONFIG)
    alone = tokens.contrast([(tokens.compare(noisy(base, 3, 1), base, documents()), 1)], "gain", CONFIG)
    assert together is not None and alone is not None
    assert together.high - together.low > 4 * (alone.high - alone.low)


def test_of_few_documents_there_is_a_mean_but_no_interval() -> None:
    table = tokens.compare(difficulty() + 0.5, difficulty(), documents().head(tokens.FEWEST - 1))
    assert tokens.contrast([(table, 1)], "gain", CONFIG) is None
    rows = tokens.groups(table, "source", CONFIG)
    assert rows["gain"].tolist() == pytest.approx([0.5, 0.5]) and rows[["gain_low", "gap_high"]].isna().all(axis=None)


def test_binned_by_one_model_two_equal_models_seem_to_differ_and_binned_by_both_they_do_not() -> None:
    table = tokens.compare(noisy(difficulty(), 1, 1), noisy(difficulty(), 2, 1), documents())
    one, both = tokens.both_ways(table, 10, CONFIG)
    assert one["gain_high"].iloc[0] < -0.3 and one["gain_low"].iloc[-1] > 0.3  # a gain on hard tokens out of nothing
    assert ((both["gain_low"] < 0) & (both["gain_high"] > 0)).sum() >= 8
    assert both["gain"].abs().max() < 0.3


def test_twins_dealt_by_a_coin_differ_nowhere_whatever_the_two_models_are() -> None:
    table = tokens.compare(difficulty() + 0.8, difficulty(), documents())
    twins = tokens.swapped(table, seed=0)
    assert twins["gain"].abs().to_numpy() == pytest.approx(0.8)
    assert twins["difficulty"].to_numpy() == pytest.approx(table["difficulty"].to_numpy())
    assert abs(twins["gain"].mean()) < 4 * 0.8 / len(twins) ** 0.5
    one, both = tokens.both_ways(twins, 10, CONFIG)
    assert one["gain"].iloc[-1] > 0.3 > both["gain"].abs().max()


def medium(size: float) -> Gain:
    """A gain of medium-to-hard tokens alone."""
    low, high = np.quantile(difficulty(), tokens.MEDIUM_TO_HARD)
    return lambda level: size * ((level >= low) & (level < high))


def arms(gain: Gain, null: float = 0.0, seeds: bool = True, arm: Arm = ("s", 1.0, "both")) -> Arms:
    """Two runs of size s, gamma 1 with this gain by difficulty; second seeds that are better by `null` everywhere."""
    known: dict[Arm, float | None] = {("s", 0.5, "both"): 5.0, arm: 5.0 - float(gain(difficulty()).mean())}
    results = made_up_results(known)
    losses = {"s-0.5-both": noisy(difficulty(), 1), "s-1.0-both": noisy(difficulty() - gain(difficulty()), 2)}
    if seeds:
        results.runs = pd.concat(
            [results.runs, results.runs.assign(seed=1, run=results.runs["run"] + "-seed1")], ignore_index=True
        )
        again = results.documents.assign(run=results.documents["run"] + "-seed1")
        results.documents = pd.concat([results.documents, again], ignore_index=True)
        losses |= {f"{run}-seed1": noisy(loss - null, 3 + i) for i, (run, loss) in enumerate(losses.items())}
    for run, loss in losses.items():
        folder = paths.RESULTS / "evaluate" / run
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "token_losses.npy", loss.astype(np.float16))
    write_csv(paths.RESULTS / "corpus" / "heldout_documents.csv", documents())
    return Arms(results, CONFIG)


@pytest.mark.parametrize(
    ("gain", "null", "verdict"),
    [
        (medium(0.6), 0.0, claims.REPLICATED),
        (medium(0.6), 0.3, claims.REPLICATED),
        (medium(-0.6), 0.0, claims.CONTRADICTED),
        (lambda level: np.full_like(level, 0.6), 0.0, claims.NOT_SEEN),  # a gain everywhere sits nowhere
        (medium(0.3), 0.6, claims.NOT_SEEN),  # two seeds differ by more
        (medium(0.3), -0.6, claims.NOT_SEEN),  # whichever of them comes first
        (lambda level: 0 * level, 0.0, claims.NOT_SEEN),
    ],
)
def test_the_rule_tells_planted_gains_apart(project: Path, gain: Gain, null: float, verdict: str) -> None:
    effects = token_pairs.concentration(arms(gain, null))
    assert list(effects) == ["s above easy", "s above null"]
    assert claims.judge(claims.named(effects)) == verdict, effects


def test_the_null_is_turned_against_the_claim(project: Path) -> None:
    for null in (0.4, -0.4):
        effect = token_pairs.concentration(arms(medium(0.6), null))["s above null"]
        assert effect is not None
        assert effect.value == pytest.approx(np.tanh(0.3) - np.tanh(0.2), abs=0.03)


def test_without_a_second_seed_or_an_arm_the_claim_is_not_tested_and_what_is_missing_is_named(project: Path) -> None:
    alone = arms(medium(0.6), seeds=False)
    effects = token_pairs.concentration(alone)
    assert effects["above null"] is None and claims.judge(claims.named(effects)) == claims.NOT_TESTED
    assert "Add to `runs` in `params.yaml`: `s-0.5-both-seed1`, `s-1.0-both-seed1`." in token_pairs.missing(alone)
    lacking = arms(medium(0.6), arm=("s", 1.0, "standard"))
    assert token_pairs.concentration(lacking)["s above easy"] is None and token_pairs.pairs(lacking) == []
    assert "at size s (missing or diverged)" in token_pairs.missing(lacking)
    assert "`params.yaml`: `s-1.0-both`" in token_pairs.missing(lacking)  # the other one is there
    assert token_pairs.of_pairs([], lambda table: table).columns[:3].tolist() == ["size", "variant", "seed"]
    assert token_pairs.missing(arms(medium(0.6))) == ""


def test_every_pair_of_gammas_and_every_null_is_compared_once(project: Path) -> None:
    found = [(pair.null, pair.base, pair.small) for pair in token_pairs.pairs(arms(medium(0.6)))]
    gammas = [(None, "s-0.5-both", "s-1.0-both"), (None, "s-0.5-both-seed1", "s-1.0-both-seed1")]
    nulls = [(0.5, "s-0.5-both", "s-0.5-both-seed1"), (1.0, "s-1.0-both", "s-1.0-both-seed1")]
    assert found == gammas + nulls


def test_titles_follow_the_data_and_every_line_of_the_figure_is_named(project: Path) -> None:
    known = arms(medium(0.6))
    chosen = token_pairs.pairs(known)
    levels = token_pairs.of_pairs(chosen, lambda table: tokens.levels(table, CONFIG))
    assert draw.message(levels, "both") == "both: Δ is largest among the medium to hard tokens at size s"
    assert "no second seed" not in draw.note(levels, "both")
    assert "no null at size s" in draw.note(levels[levels["null"].isna()], "both")
    profile = token_pairs.of_pairs(chosen, lambda table: tokens.profile(table, 10, CONFIG))
    figure = draw.by_difficulty(profile)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [
        *["γ = 1 against γ = 0.5", "the same, another seed"],
        *["null: two seeds of γ = 0.5", "null: two seeds of γ = 1"],
    ]
    languages = token_pairs.of_pairs(chosen[:1], lambda table: tokens.by_language(table, 10, CONFIG))
    sources = token_pairs.of_pairs(chosen[:1], lambda table: tokens.groups(table, "source", CONFIG))
    assert sorted(languages["language"].unique()) == ["en", "zh"] and len(languages) == 20
    figure = draw.by_text(languages, sources)
    assert {label.get_text() for label in figure.axes[-1].get_yticklabels()} == {"law (20)", "wiki (20)"}
    plt.close("all")


def test_of_many_sizes_the_outer_ones_are_drawn_and_the_message_has_all(project: Path) -> None:
    assert token_pairs.ends(["s", "s", "m", "l"]) == ["s", "l"]
    assert token_pairs.ends(["s"]) == ["s"] and token_pairs.ends([]) == []
    chosen = token_pairs.pairs(arms(medium(0.6)))
    levels = token_pairs.of_pairs(chosen, lambda table: tokens.levels(table, CONFIG))
    levels = pd.concat([levels, levels.assign(size="m"), levels.assign(size="l")], ignore_index=True)
    assert draw.message(levels, "both").endswith("among the medium to hard tokens at size s, m, l")
    assert draw.note(levels, "both").endswith("sizes between, m: in the table")
    profile = token_pairs.of_pairs(chosen[:1], lambda table: tokens.profile(table, 10, CONFIG))
    figure = draw.by_difficulty(pd.concat([profile.assign(size=size) for size in ("s", "m", "l")]))
    assert len(figure.axes) == 6  # two sizes, three measures
    plt.close(figure)


def test_parts_of_a_character_are_shown_as_one_and_their_probabilities_multiplied() -> None:
    pieces = ["a", "", "", "中", " b", "", ""]
    base = np.log([2.0, 2, 4, 5, 10, 3, 3])
    units = passages.merged(pieces, base, base / 2)
    assert units["text"].tolist() == ["a", "中", " b"] and units["tokens"].tolist() == [1, 3, 1]
    assert units["p_base"].tolist() == pytest.approx([1 / 2, 1 / 40, 1 / 10])
    p, q = 40**-0.5, 1 / 40
    assert units["gap"].iloc[1] == pytest.approx((p - q) / (p + q))


def passage_file(start: int) -> token_pairs.Pair:
    known = arms(medium(0.6), seeds=False)
    entry = {"source": "law", "language": "zh", "document": 3, "start": start}
    content = [entry | {"ids": [5, 6, 7, 8], "pieces": ["第", "", "一", "<b>\n"]}]
    (paths.RESULTS / "corpus" / "passages.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return token_pairs.claimed(known)[0]


def test_a_passage_has_the_losses_of_its_own_tokens_and_one_beyond_the_slice_is_left_out(project: Path) -> None:
    (passage,) = passages.read(passage_file(start=154))
    kept = np.load(paths.RESULTS / "evaluate" / "s-0.5-both" / "token_losses.npy").astype(float)
    np.testing.assert_allclose(passage.units["p_base"], np.exp([-kept[153], -kept[154] - kept[155], -kept[156]]))
    assert len(passages.read(passage_file(start=COUNT - 3))) == 1
    assert passages.read(passage_file(start=COUNT - 2)) == []
    (paths.RESULTS / "corpus" / "passages.json").unlink()
    assert passages.read(passage_file(start=1)) and not passages.read(passage_file(start=COUNT))


def test_the_page_is_self_contained_escaped_and_shows_both_probabilities(project: Path) -> None:
    texts = passages.read(passage_file(start=154))
    path = draw_text.save_page(texts, "a < b", "tokens/passages")
    page = path.read_text(encoding="utf-8")
    assert path == project / "figures" / "tokens" / "passages.html" and "<h1>a &lt; b</h1>" in page
    shown = re.findall(r'<span style="background:(#\w{6})" title="([^"]*)">([^<]*)</span>', page)
    assert [text for _, _, text in shown] == ["第", "一", "&lt;b&gt;\n"]
    unit = texts[0].units.iloc[1]
    assert f"p = {unit['p_base']:.3g}" in shown[1][1] and "one character of 2 tokens" in shown[1][1]
    assert shown[1][0] == draw_text.color(unit["gap"])
    assert not re.search(r"<script|https?://|src=", page)
    assert draw_text.page(texts, "a < b") == page


def test_colours_are_white_at_zero_and_go_to_each_gammas_side() -> None:
    red, blue = ([int(draw_text.color(gap)[i : i + 2], 16) for i in (1, 3, 5)] for gap in (1.0, -1.0))
    assert draw_text.color(0.0) == "#ffffff" and red[0] > red[2] and blue[2] > blue[0]


def test_the_picture_breaks_lines_within_its_width_and_has_every_character_of_both_languages() -> None:
    font = draw_text.cjk_font()
    characters = get_font(str(font.get_file())).get_charmap()
    assert all(ord(character) in characters for character in "aZ9.,$¶，。中国第条")
    text = [*"第一条 为了规范公司的组织和行为", " limited", " company", "\n"] * 5
    units = pd.DataFrame({"text": text, "tokens": 1, "p_base": 0.5, "p_small": 0.5, "gap": 0.0})
    passage = passages.Passage("law", "zh", 3, units)
    broken = draw_text.lines(passage, 200, font)
    assert "".join(text for line in broken for text, *_ in line) == "".join(text).replace("\n", "¶")
    assert len(broken) > 3 and all(line[-1][1] + line[-1][2] <= 200 for line in broken)
    assert draw_text.advance(" 中", font) > draw_text.advance("中", font) == pytest.approx(draw_text.SIZE, abs=0.1)


def test_a_picture_takes_passages_of_different_sources_first() -> None:
    units = pd.DataFrame()
    texts = [
        passages.Passage(*place, units) for place in (("a", "zh", 0), ("a", "zh", 1), ("b", "zh", 2), ("c", "en", 3))
    ]
    assert [passage.document for passage in draw_text.chosen(texts, 2)] == [3, 0, 2]
    assert [passage.document for passage in draw_text.chosen(texts, 9)] == [3, 0, 2, 1]


def test_a_missing_font_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"mplfonts as pinned in environment\.yml"):
        draw_text.cjk_font()
