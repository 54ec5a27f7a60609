"""Two gammas on made-up items: planted gains are found, equal models are not told apart, and the claim is judged."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import made_up_results

from smallinit import paths
from smallinit.analysis import answers, benchmarks, claims
from smallinit.analysis.answers import Answers
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.ladder import Arms
from smallinit.analysis.token_pairs import Pair
from smallinit.files import write_csv
from smallinit.plots import benchmark_gains as draw

CONFIG = AnalysisConfig(bootstrap_samples=200, confidence=0.95, seed=0, difficulty_bins=10)
COUNT = 60
CHOICES = {"gsm8k": 0, "math500": 0, "hellaswag": 4, "piqa": 2, "arithmetic_en": 0}
PAIR = Pair("s", "both", 0, None, "s-0.5-both", "s-1.0-both")


def made(
    run: str, gain: float, accuracy: float = 0.25, seed: int = 0, tasks: tuple[str, ...] = tuple(CHOICES)
) -> pd.DataFrame:
    """Items as the stage writes them; the right answers of this run cost `gain` fewer bits per byte, noise apart."""
    frames = []
    for number, task in enumerate(tasks):
        shared, own = np.random.default_rng(number), np.random.default_rng([number, seed])
        sizes = shared.integers(20, 60, COUNT)
        bits = sizes * (4 + shared.normal(0, 1, COUNT) - gain + own.normal(0, 0.05, COUNT))
        choice, level = CHOICES[task] > 0, task.startswith("arithmetic")
        hits = own.random(COUNT) < accuracy
        frame = pd.DataFrame({"task": task, "item": [f"{i}" for i in range(COUNT)], "language": "en"})
        frame = frame.assign(choices=CHOICES[task], gold_nats=bits * np.log(2), gold_bytes=sizes, truncated=0)
        frame["level"] = np.arange(COUNT) // 20 + 1 if level else np.nan
        frame["correct"] = frame["correct_norm"] = hits.astype(float) if choice else np.nan
        frames.append(frame.assign(exact=hits.astype(float) if level else np.nan, run=run))
    return pd.concat(frames, ignore_index=True)


def summary(items: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for task, own in items.groupby("task", sort=False):
        bits, hits = own["gold_nats"].sum() / np.log(2) / own["gold_bytes"].sum(), own["correct"].mean()
        row = {"task": task, "language": "en", "items": len(own), "truncated": 0, "exact": own["exact"].mean()}
        row |= {"chance": 1 / own["choices"].iloc[0] if own["choices"].iloc[0] else np.nan, "bits_per_byte": bits}
        row |= {f"{name}{end}": hits for name in ("accuracy", "accuracy_norm") for end in ("", "_se")}
        rows.append(row | {"exact_se": 0.05, "run": own["run"].iloc[0]})
    return pd.DataFrame(rows)


def experiment(
    gain: float, accuracy: float = 0.25, null: float | None = None, **more: tuple[str, ...]
) -> tuple[Arms, Answers]:
    """Size s: gamma = 1 is better by `gain` bits per byte; second seeds of both gammas by `null`."""
    results = made_up_results({("s", 0.5, "both"): 5.0, ("s", 1.0, "both"): 4.9})
    asked = [made("s-0.5-both", 0.0, seed=1, **more), made("s-1.0-both", gain, accuracy, seed=2, **more)]
    if null is not None:
        again = results.runs.assign(seed=1, run=results.runs["run"] + "-seed1")
        results.runs = pd.concat([results.runs, again], ignore_index=True)
        asked += [made("s-0.5-both-seed1", null, seed=3, **more), made("s-1.0-both-seed1", gain + null, seed=4, **more)]
    items = pd.concat(asked, ignore_index=True)
    tables = pd.concat([summary(own) for own in asked], ignore_index=True)
    return Arms(results, CONFIG), Answers(items, tables, [])


def verdict(arms: Arms, asked: Answers) -> str:
    gains = claims.named(benchmarks.reasoning_gains(arms, asked))
    granted = claims.named(benchmarks.rank_accuracy(arms, asked), at_least=True, premise=True)
    return claims.judge([*gains, *granted] if gains and granted else [])


# ------------------------------------------------------------------------------------------------------ the differences
def test_a_difference_by_hand_is_positive_where_gamma_1_is_better() -> None:
    rows = {"task": "t", "item": ["a", "b"], "gold_bytes": [4, 6], "correct": [0, 1], "correct_norm": [1, 1]}
    base = pd.DataFrame(rows | {"gold_nats": np.log(2) * np.array([8.0, 12.0]), "exact": np.nan, "run": "s-0.5-both"})
    small = base.assign(gold_nats=np.log(2) * np.array([6.0, 9.0]), correct=[1, 1], run="s-1.0-both").iloc[::-1]
    asked = Answers(pd.concat([base, small]), pd.DataFrame(), [])
    bits, hits = (answers.paired(asked, PAIR, "t", measure) for measure in ("bits_per_byte", "accuracy"))
    assert bits is not None and hits is not None
    assert bits["gain"].to_dict() == pytest.approx({"a": 2.0, "b": 3.0})  # items meet by id, not by row
    assert bits["gain"].sum() / bits["weight"].sum() == pytest.approx(0.5)  # 2.0 - 1.5 bits per byte
    assert hits["gain"].to_dict() == {"a": 1, "b": 0}
    assert answers.paired(asked, PAIR, "t", "exact") is None
    with pytest.raises(ValueError, match=r"same items of t: run `dvc repro`.*benchmark@s-0\.5-both"):
        answers.paired(Answers(pd.concat([base, small.head(1)]), pd.DataFrame(), []), PAIR, "t", "accuracy")


def test_a_planted_gain_is_recovered_and_pairing_sees_through_the_difficulty_of_items() -> None:
    arms, asked = experiment(0.1)
    frame = benchmarks.differences(arms, asked).query("measure == 'bits_per_byte'")
    assert len(frame) == len(CHOICES) and frame["gain"].to_numpy() == pytest.approx(0.1, abs=0.04)
    assert (frame["gain_low"] > 0).all() and (frame["p_holm"] < 0.01).all() and frame["null_reach"].isna().all()
    assert answers.narrowing(asked, PAIR, CONFIG).min() > 5  # items differ by 1 bit, runs by 0.05


def test_equal_models_are_not_told_apart() -> None:
    frame = benchmarks.differences(*experiment(0.0))
    assert (frame["p_holm"].dropna() > 0.05).all()


def test_the_p_value_of_few_items_is_the_exact_one() -> None:
    table = pd.DataFrame({"gain": [1.0, 2.0, 3.0, 4.0, 5.0]})
    assert benchmarks.p_value(table, CONFIG) == pytest.approx(2 / 2**5)
    assert benchmarks.p_value(table * 0, CONFIG) == 1


def test_holm_by_hand() -> None:
    p = pd.Series([0.04, 0.01, np.nan, 0.03], index=list("abcd"))
    assert benchmarks.holm(p).to_dict() == pytest.approx({"a": 0.06, "b": 0.03, "c": np.nan, "d": 0.06}, nan_ok=True)


def test_a_null_is_the_largest_difference_of_two_seeds_whatever_its_sign() -> None:
    arms, asked = experiment(0.0, null=-0.3)
    rows = benchmarks.differences(arms, asked).query("claimed and measure == 'bits_per_byte'")
    assert rows["null_reach"].to_numpy() == pytest.approx(0.3, abs=0.05)


def test_groups_average_tasks_not_items() -> None:
    arms, asked = experiment(0.2)
    table = benchmarks.groups(arms, asked, benchmarks.differences(arms, asked)).query("measure == 'bits_per_byte'")
    frame = benchmarks.differences(arms, asked).query("measure == 'bits_per_byte'").set_index("task")["gain"]
    reasoning, other = frame[["gsm8k", "math500", "arithmetic_en"]].mean(), frame[["hellaswag", "piqa"]].mean()
    assert table["gain"].tolist() == pytest.approx([reasoning, other, reasoning - other])
    assert table["tasks"].tolist() == [3, 2, 5] and table["gain_low"].iloc[0] > 0.1 and table["gain_low"].iloc[2] < 0


def test_levels_are_those_of_the_items_and_an_exact_match_of_none_has_an_interval() -> None:
    arms, asked = experiment(0.2, accuracy=0.0)
    table = benchmarks.levels(arms, asked)
    exact, bits = table[table["measure"] == "exact"], table[table["measure"] == "bits_per_byte"]
    assert (
        exact["level"].tolist() == [1, 2, 3] and set(table["items"]) == {20} and set(table["task"]) == {"arithmetic_en"}
    )
    assert (exact["small"] == 0).all() and (exact["small_high"] > 0.1).all() and (bits["gain_low"] > 0.1).all()


# ------------------------------------------------------------------------------------------------------------ the claim
@pytest.mark.parametrize(
    ("gain", "accuracy", "null", "expected"),
    [
        (0.2, 0.25, None, claims.REPLICATED),
        (0.2, 0.25, 0.02, claims.REPLICATED),
        (0.0, 0.25, None, claims.NOT_SEEN),
        (-0.2, 0.25, None, claims.CONTRADICTED),
        (0.2, 0.0, None, claims.NOT_SEEN),  # fewer bits, but fewer right answers
        (0.2, 0.25, 0.4, claims.NOT_SEEN),  # two seeds differ by more than the two gammas
    ],
)
def test_verdicts(gain: float, accuracy: float, null: float | None, expected: str) -> None:
    assert verdict(*experiment(gain, accuracy, null)) == expected


def test_a_missing_task_or_run_leaves_the_claim_untested() -> None:
    assert verdict(*experiment(0.2, tasks=("gsm8k", "hellaswag"))) == claims.NOT_TESTED
    arms, asked = experiment(0.2)
    one = Answers(asked.items[asked.items["run"] == "s-1.0-both"], asked.summary, ["s-0.5-both"])
    assert verdict(arms, one) == claims.NOT_TESTED and benchmarks.differences(arms, one).empty


# ------------------------------------------------------------------------------------------------------ files, pictures
@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "RESULTS", tmp_path)
    return tmp_path / "benchmark"


def test_runs_that_were_not_asked_are_named_and_ids_stay_text(folder: Path) -> None:
    arms, asked = experiment(0.2)
    write_csv(folder / "s-1.0-both" / "items.csv", asked.items[asked.items["run"] == "s-1.0-both"].drop(columns="run"))
    write_csv(folder / "s-1.0-both" / "summary.csv", asked.summary.drop(columns="run").head(len(CHOICES)))
    found = answers.load(arms)
    assert found.missing == ["s-0.5-both"] and found.tasks == list(CHOICES)
    assert found.items["item"].iloc[1] == "1" and answers.pairs(arms, found) == []
    assert answers.load(Arms(made_up_results({("s", 1.0, "eps"): 4.0}), CONFIG)).items.empty


def test_the_table_for_people_has_both_gammas_beside_each_other() -> None:
    table = answers.readable(answers.overview(*experiment(0.2))).set_index("task")
    assert list(table.index) == list(CHOICES) and table.loc["hellaswag", "chance"] == "25.0%"
    assert table.loc["gsm8k", "accuracy, γ = 0.5"] == "–" and " ± " in table.loc["hellaswag", "accuracy, γ = 1"]


@pytest.mark.parametrize(("gain", "wins"), [(0.2, "in 5 of 5 tasks, more in 0"), (-0.2, "in 0 of 5 tasks, more in 5")])
def test_titles_say_what_the_data_say(gain: float, wins: str) -> None:
    arms, asked = experiment(gain, null=0.02)
    frame, levels = benchmarks.differences(arms, asked), benchmarks.levels(arms, asked)
    assert wins in draw.message(frame[frame["size"] == "s"])
    said = "at 3 of 3 levels, more at 0" if gain > 0 else "at 0 of 3 levels, more at 3"
    assert said in draw.arithmetic_message(levels, "s")


def test_one_far_task_does_not_squeeze_the_others_and_says_how_far_it_is() -> None:
    arms, asked = experiment(0.2, null=0.02)
    frame = benchmarks.differences(arms, asked)
    bits = (frame["measure"] == "bits_per_byte") & frame["claimed"]
    near = draw.window(frame[bits])
    assert near > frame.loc[bits, "gain_high"].max()  # alike: nothing is beyond
    far = bits & (frame["task"] == "piqa")
    frame.loc[far, ["gain", "gain_low", "gain_high"]] = [-9.0, -9.5, -8.5]
    frame.loc[far, "null_reach"] = 7.0
    assert draw.window(frame[bits]) < 2 * near
    figure = draw.gains(frame, "s", 0.1)
    assert {text.get_text() for text in figure.axes[0].texts} == {"±7.00", "-9.00"}
    assert figure.texts[1].get_text().endswith("numbers: beyond the axis")
    draw.plt.close(figure)


def test_every_figure_can_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    arms, asked = experiment(0.2, null=0.02)
    frame = benchmarks.differences(arms, asked)
    figures: list[Callable[[], object]] = [
        lambda: draw.gains(frame, "s", 0.1),
        lambda: draw.chance(answers.overview(arms, asked).query("seed == 0"), "s"),
        lambda: draw.arithmetic(benchmarks.levels(arms, asked), "s"),
        lambda: draw.groups(benchmarks.groups(arms, asked, frame)),
    ]
    for make in figures:
        figure = make()
        figure.canvas.draw()  # type: ignore[attr-defined]
        draw.plt.close(figure)  # type: ignore[arg-type]
