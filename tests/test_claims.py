"""Verdicts: each claim is replicated, contradicted, not seen or not tested where made-up results say so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_up
import made_up_variants
import numpy as np
import pandas as pd
import pytest
import test_anchor
import test_benchmark_analysis as asked
import test_composite
import test_condensation as condensed
import test_rates
import test_tokens as by_token
from conftest import Arm, made_up_results
from made_up_variants import pair

from smallinit import paths
from smallinit.analysis import summary, verdict_tables, verdicts
from smallinit.analysis.claims import CONTRADICTED, NOT_SEEN, NOT_TESTED, REPLICATED, Effect, judge
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.ladder import Arms
from smallinit.analysis.statistics import MIN_SEEDS, Interval
from smallinit.files import write_csv
from smallinit.reasoning import stage

CONFIG = AnalysisConfig(bootstrap_samples=200, confidence=0.95, seed=0, difficulty_bins=10)
# Gains of gamma = 1 as the paper would have them, in nats per token; the noise of a made-up gain is about 0.002.
PAPER = {
    **{("s", "standard"): 0.3, ("m", "standard"): 0.1, ("s", "eps"): 0.5, ("m", "eps"): 0.5},
    **{("s", "gate"): 0.3, ("m", "gate"): 0.2, ("s", "both"): 0.5, ("m", "both"): 0.6},
}
START = {"standard": 5.0, "eps": 5.0, "gate": 4.9, "both": 4.9}  # loss at gamma = 0.5
SINKS = {"sharper": 0.2, "removed": 0.3}  # by how much
SIZES = ("s", "m")


def arms(gains: dict[Any, float], sinks: dict[str, float] | None = None, without: Arm | None = None) -> Arms:
    """Arms of made-up results with the paper's effects, except for those that are given."""
    losses: dict[Arm, float | None] = {}
    for (size, variant), gain in (PAPER | gains).items():
        losses[(size, 0.5, variant)], losses[(size, 1.0, variant)] = START[variant], START[variant] - gain
    chosen = SINKS | (sinks or {})
    attention = {(size, 1.0, "eps"): 0.1 + chosen["sharper"] for size in SIZES}
    attention |= {(size, 1.0, "both"): 0.1 + chosen["sharper"] - chosen["removed"] for size in SIZES}
    if without is not None:
        losses[without] = None
    return Arms(made_up_results(losses, attention), CONFIG)


def finding(number: str, found: Arms) -> verdicts.Finding:
    (claim,) = (claim for claim in (*verdicts.CLAIMS, *verdicts.CONTROLS) if claim.number == number)
    (examined,) = verdicts.examine(found, [claim])
    return examined


def verdict(number: str, found: Arms) -> str:
    return finding(number, found).verdict


def both_sizes(variant: str, s: float, m: float) -> dict[Any, float]:
    return {("s", variant): s, ("m", variant): m}


@pytest.mark.parametrize("claim", ["C1", "C2", "C3", "C4", "C5"])
def test_what_the_paper_reports_is_replicated(claim: str) -> None:
    assert verdict(claim, arms({})) == REPLICATED


@pytest.mark.parametrize(
    ("claim", "gains", "wanted"),
    [
        ("C1", both_sizes("standard", -0.3, -0.1), CONTRADICTED),
        ("C1", both_sizes("standard", 0.3, -0.1), NOT_SEEN),
        ("C1", both_sizes("standard", 0.0, 0.0), NOT_SEEN),
        ("C2", both_sizes("standard", 0.1, 0.3), CONTRADICTED),
        ("C2", both_sizes("standard", -0.3, -0.1), CONTRADICTED),
        ("C2", both_sizes("standard", 0.2, 0.2), NOT_SEEN),
        ("C2", both_sizes("standard", -0.1, -0.3), NOT_SEEN),  # it shrinks, but there never was a gain
        ("C3", both_sizes("eps", 0.0, 0.0), CONTRADICTED),
        ("C3", both_sizes("eps", 0.3, 0.1), NOT_SEEN),
        ("C3", both_sizes("standard", -0.5, -0.5) | both_sizes("eps", -0.1, -0.1), NOT_SEEN),  # better, but no gain
        ("C3", both_sizes("eps", 0.5, 0.0), NOT_SEEN),
        ("C5", both_sizes("both", 0.5, 0.5), REPLICATED),  # "no less" holds where no change is seen
        ("C5", both_sizes("both", 0.5, 0.3), NOT_SEEN),
        ("C5", both_sizes("both", 0.5, -0.1), NOT_SEEN),
        ("C5", both_sizes("both", -0.1, -0.3), CONTRADICTED),
    ],
)
def test_other_gains_lead_to_other_verdicts(claim: str, gains: dict[Any, float], wanted: str) -> None:
    assert verdict(claim, arms(gains)) == wanted


@pytest.mark.parametrize(
    ("gains", "sinks", "wanted"),
    [
        (both_sizes("both", 0.2, 0.2), {"sharper": -0.05, "removed": -0.2}, CONTRADICTED),
        (both_sizes("both", 0.5, 0.5), {"sharper": 0.0}, NOT_SEEN),
        (both_sizes("both", 0.5, 0.5), {"removed": -0.1}, NOT_SEEN),
        (both_sizes("both", 0.2, 0.2), {}, NOT_SEEN),  # the gate raises the loss
    ],
)
def test_the_sink_the_gate_and_the_loss_must_all_agree(gains: dict[Any, float], sinks: Any, wanted: str) -> None:
    assert verdict("C4", arms(gains, sinks)) == wanted


@pytest.mark.parametrize(
    ("claim", "without"),
    [
        ("C1", ("s", 0.5, "standard")),
        ("C2", ("m", 1.0, "standard")),
        ("C3", ("s", 1.0, "eps")),
        ("C4", ("m", 1.0, "both")),
        ("C4", ("s", 0.5, "eps")),
        ("C5", ("m", 0.5, "both")),
        ("C5", ("s", 1.0, "both")),
    ],
)
def test_a_claim_whose_run_diverged_is_not_tested(claim: str, without: Arm) -> None:
    assert verdict(claim, arms({}, without=without)) == NOT_TESTED


def test_a_run_that_is_not_in_the_plan_is_as_untested_as_a_diverged_one() -> None:
    results = made_up_results({("s", 0.5, "standard"): 5.0, ("m", 0.5, "standard"): 5.0, ("m", 1.0, "standard"): 4.0})
    assert all(verdict(claim, Arms(results, CONFIG)) == NOT_TESTED for claim in ("C1", "C2", "C3", "C4", "C5"))


def one_size() -> Arms:
    losses = {("s", gamma, variant): 5 - gamma for gamma in (0.5, 1.0) for variant in START}
    return Arms(made_up_results(losses), CONFIG)  # type: ignore[arg-type]


def test_one_size_says_nothing_about_a_change_with_size() -> None:
    assert verdict("C1", one_size()) == REPLICATED and verdict("C2", one_size()) == NOT_TESTED


def test_one_size_does_not_show_that_the_gain_no_longer_shrinks() -> None:
    assert verdict("C5", one_size()) == NOT_TESTED


def effect(low: float, high: float, at_least: bool = False) -> Effect:
    return Effect("x", Interval((low + high) / 2, low, high, "documents"), at_least)


@pytest.mark.parametrize(
    ("effects", "wanted"),
    [
        ([], NOT_TESTED),
        ([effect(1, 2), effect(3, 4)], REPLICATED),
        ([effect(-2, -1), effect(-4, -3)], CONTRADICTED),
        ([effect(1, 2), effect(-2, -1)], NOT_SEEN),
        ([effect(1, 2), effect(-1, 1)], NOT_SEEN),
        ([effect(-1, 1)], NOT_SEEN),
        ([effect(1, 2), effect(-1, 1, at_least=True)], REPLICATED),
        ([effect(1, 2), effect(-2, -1, at_least=True)], NOT_SEEN),
        ([effect(-2, -1), effect(-2, -1, at_least=True)], CONTRADICTED),
    ],
)
def test_the_rule_of_verdicts(effects: list[Effect], wanted: str) -> None:
    assert judge(effects) == wanted


# ------------------------------------------------------------------------------------------- documents and seeds
def seeded(gains: list[float], noise: float = 0.01) -> Arms:
    """Size s, variant standard, a gain for each seed."""
    losses: dict[made_up.Arm, float | None] = {}
    for seed, gain in enumerate(gains):
        losses |= pair(5.0, 5.0 - gain, seed=seed)
    return Arms(made_up.results(losses, {"s": 1e6}, variant="standard", noise=noise), CONFIG)


@pytest.mark.parametrize(
    ("gains", "wanted", "seeds"),
    [
        ([0.30], REPLICATED, "1"),
        ([0.30, 0.28], REPLICATED, "2"),
        ([0.30, -0.1], NOT_SEEN, "2"),  # no interval from two seeds, but they lie further apart
        ([0.30, 0.31, 0.29], REPLICATED, "3"),
        ([0.30, -0.2, 0.1], NOT_SEEN, "3"),  # the text leaves no doubt, other seeds do
        ([0.0, 0.10, 0.11, 0.10], NOT_SEEN, "4"),  # seeds agree, and the text leaves it open
        ([-0.3, -0.31, -0.29], CONTRADICTED, "3"),
    ],
)
def test_a_gain_must_hold_over_documents_and_over_seeds(gains: list[float], wanted: str, seeds: str) -> None:
    found = finding("C1", seeded(gains))
    (effect,) = found.effects
    assert (found.verdict, found.seeds) == (wanted, seeds)
    assert effect.interval.value == pytest.approx(gains[0], abs=0.01)
    if len(gains) >= MIN_SEEDS:
        assert effect.seeds is not None and effect.seeds.value == pytest.approx(np.mean(gains), abs=0.01)
        assert ", over seeds " in str(effect)
        assert verdict_tables.table([found])["interval over"].item() == "documents and seeds"
    else:
        assert effect.seeds is None and (effect.null is None) == (len(gains) == 1)


@pytest.mark.parametrize(("null", "wanted"), [(0.5, REPLICATED), (2.0, NOT_SEEN), (None, REPLICATED)])
def test_an_effect_no_larger_than_what_seeds_move_may_be_luck(null: float | None, wanted: str) -> None:
    sure = Interval(2.0, 1.9, 2.1, "documents")
    for sign, verdict in ((1, wanted), (-1, CONTRADICTED if wanted == REPLICATED else NOT_SEEN)):
        found = Interval(sign * sure.value, *sorted((sign * sure.low, sign * sure.high)), "documents")
        assert judge([Effect("x", found, null=null)]) == verdict
    lucky = Effect("x", sure, null=2.0)
    assert lucky.strength == 1 and "null ±2.000" in str(lucky)
    assert Effect("x", Interval(-2.0, -2.1, -1.9, "documents"), at_least=True, null=2.0).sign == 1  # not surely less
    assert verdict_tables.effects_table([verdicts.Finding(verdicts.CLAIMS[0], [lucky], "", "1")])["null"].item() == 2.0


def test_a_change_of_the_gain_has_the_null_of_four_losses() -> None:
    losses = {"both": pair(5.0, 4.7) | pair(5.1, 4.6, seed=1) | pair(4.5, 4.1, "m")}  # seeds: losses 0.1, gain 0.2
    found = finding("C5", Arms(made_up_variants.results(losses), CONFIG))
    assert [effect.name for effect in found.effects] == ["s", "m", "change s→m"]
    assert [effect.null for effect in found.effects] == pytest.approx([0.1, 0.1, 0.2])


def test_the_weakest_effect_is_the_one_nearest_to_turning_in_any_unit() -> None:
    sure, unsure = effect(0.001, 0.002), effect(0.1, 10)
    against = Effect("x", Interval(5, 4, 6, "documents"), seeds=Interval(1, -1, 3, "seeds"))
    claim = verdicts.CLAIMS[0]
    assert verdicts.Finding(claim, [sure, unsure], "", "1").weakest is unsure
    assert verdicts.Finding(claim, [sure, unsure, against], "", "1").weakest is against and against.sign == 0
    assert effect(1, 3).strength > 1 > effect(-1, 3).strength
    assert Effect("x", Interval(1, 1, 1, "seeds")).strength == np.inf
    assert Effect("x", Interval(-1, -9, -0.5, "seeds")).strength == -2  # the bound on the side of zero counts


# ------------------------------------------------------------------------------------- claims whose rules are elsewhere
def sweep_arms(losses: dict[float, float | None]) -> Arms:
    return Arms(made_up_results({("s", gamma, "both"): loss for gamma, loss in losses.items()}), CONFIG)


def family(*, standard: Any, both: Any, kind: str) -> Arms:
    names = {"experts": ("moe_standard", "moe"), "layernorm": ("layernorm_standard", "layernorm")}[kind]
    pairs = {name: pair(*losses) for name, losses in zip(names, (standard, both), strict=True) if losses}
    return Arms(made_up_variants.results({"both": pair(4.7, 4.5), **pairs}), CONFIG)


def benchmarked(gain: float) -> Arms:
    found, given = asked.experiment(gain)
    for run, items in given.items.groupby("run"):
        folder = paths.RESULTS / "benchmark" / str(run)
        write_csv(folder / "items.csv", items.drop(columns="run"))
        write_csv(folder / "summary.csv", given.summary[given.summary["run"] == run].drop(columns="run"))
    return found


def flow(off: float) -> Arms:
    parts, gammas = ("attention", "gelu"), (0.5, 1.0)
    rows = []
    for part, gamma in ((part, gamma) for part in parts for gamma in gammas):
        value = 1 - gamma + (off if off == 0.5 or part == "gelu" else 0.0)
        rows.append({"part": part, "gamma": gamma, "measured": value, "low": value - 0.01, "high": value + 0.01})
    return Arms(arms({}).results, CONFIG, pd.DataFrame(rows))


def small_task(task: str, curves: pd.DataFrame, runs: pd.DataFrame) -> Arms:
    for name, table in (("curves", curves), ("runs", runs)):
        write_csv(stage.folder(task) / f"{name}.csv", table)
    return arms({})


def anchor(lags: dict[float, int], worse: bool = False) -> Arms:
    tables = [table.sort_values("seed") for table in test_anchor.made_up(lags)]
    if worse:
        tables[0]["unseen"] = 4 + tables[0]["gamma"] + 0.01 * tables[0]["seed"]
    both = [pd.concat([table, table.assign(model="embedding_mlp")], ignore_index=True) for table in tables]
    return small_task("anchor", *both)


def composite(reasoning: tuple[float, float], symmetric: tuple[float, float]) -> Arms:
    shares = [dict(zip((0.5, 1.0), values, strict=True)) for values in (reasoning, symmetric)]
    return small_task("composite", test_composite.made_up(*shares), pd.DataFrame({"seed": [0]}))


def variants(**losses: dict[made_up.Arm, float | None]) -> Arms:
    return Arms(made_up_variants.results(losses), CONFIG)


def rates(base: list[float], small: list[float]) -> Arms:
    """Losses of both gammas at the tuned rate, at half and at twice of it."""
    return variants(**{name: pair(b, s) for name, b, s in zip(("both", "slow", "fast"), base, small, strict=True)})


WORSE = (4.3, 4.6)
BETTER = (4.6, 4.3)
CASES: list[tuple[str, Callable[[], Arms], str, str]] = [  # claim, results, verdict, what the table says of it
    ("C6", lambda: sweep_arms({0.5: 5.0, 1.0: 4.5, 1.5: 4.8}), REPLICATED, "each γ > 1 is worse: +0.3"),
    ("C6", lambda: sweep_arms({0.5: 4.5, 1.0: 5.0, 1.5: 4.7}), CONTRADICTED, "each γ < 1 is worse: -0.5"),
    ("C6", lambda: sweep_arms({0.5: 4.9, 1.0: 4.5, 1.5: 4.2}), NOT_SEEN, "each γ > 1 is worse: -0.3"),
    (
        "C6",
        lambda: sweep_arms({0.5: 4.9, 1.0: 4.5, 1.5: None}),
        NOT_TESTED,
        "`s-1.5-both` diverged",
    ),
    ("C7", lambda: flow(0.0), REPLICATED, "attention γ=0.5: +0.125"),
    ("C7", lambda: flow(0.2), NOT_SEEN, "gelu γ=1: -0.075"),
    ("C7", lambda: flow(0.5), CONTRADICTED, "gelu γ=1: -0.375"),
    ("C7", lambda: arms({}), NOT_TESTED, "`dvc repro theory`"),
    ("C8", lambda: by_token.arms(by_token.medium(0.6)), REPLICATED, "s above easy: +0.2"),
    ("C8", lambda: by_token.arms(by_token.medium(-0.6)), CONTRADICTED, "s above easy: -0.2"),
    ("C8", lambda: by_token.arms(lambda level: by_token.medium(0.6)(level) - 0.5), NOT_SEEN, "gain s (premise): -0."),
    (
        "C8",
        lambda: by_token.arms(by_token.medium(0.6), seeds=False),
        NOT_TESTED,
        "`s-0.5-both-seed1`, `s-1.0-both-seed1`",
    ),
    ("C9", lambda: benchmarked(0.3), REPLICATED, "s gsm8k: +0.3"),
    ("C9", lambda: benchmarked(-0.3), CONTRADICTED, "s gsm8k: -0.2"),
    ("C9", lambda: sweep_arms({0.5: 5.0, 1.0: 4.5}), NOT_TESTED, "`dvc repro benchmark`"),
    ("C9", lambda: sweep_arms({0.5: 5.0}), NOT_TESTED, "add `s-1.0-both` to `runs`"),
    ("C10", lambda: condensed.arms(condensed.FLAT, condensed.PAPER), REPLICATED, "s γ=1 falls beyond half: +2."),
    ("C10", lambda: condensed.arms(condensed.DIPS, condensed.FALLING), CONTRADICTED, "s γ=1 falls beyond half: -0."),
    ("C10", lambda: sweep_arms({0.5: 5.0, 1.0: 4.5}), NOT_TESTED, "`dvc repro train`"),
    ("C11", lambda: family(standard=BETTER, both=BETTER, kind="experts"), REPLICATED, "s moe: +0.3"),
    ("C11", lambda: family(standard=None, both=BETTER, kind="experts"), REPLICATED, "s moe: +0.3"),
    ("C11", lambda: family(standard=WORSE, both=WORSE, kind="experts"), CONTRADICTED, "s moe_standard: -0.3"),
    ("C11", lambda: family(standard=WORSE, both=BETTER, kind="experts"), NOT_SEEN, "s moe_standard: -0.3"),
    ("C11", lambda: family(standard=None, both=None, kind="experts"), NOT_TESTED, "`s-0.5-moe`, `s-1.0-moe`"),
    ("C11", lambda: family(standard=None, both=(4.6, None), kind="experts"), NOT_TESTED, "`s-1.0-moe` diverged"),
    ("C12", lambda: family(standard=BETTER, both=BETTER, kind="layernorm"), REPLICATED, "s layernorm: +0.3"),
    ("C12", lambda: family(standard=WORSE, both=WORSE, kind="layernorm"), CONTRADICTED, "s layernorm: -0.3"),
    ("C12", lambda: family(standard=None, both=None, kind="layernorm"), NOT_TESTED, "`s-1.0-layernorm` to `runs`"),
    ("R1", lambda: anchor({0.5: 0, 1.0: 3}), REPLICATED, "6 of 6 hold, 0 the other way"),
    ("R1", lambda: anchor({0.5: 3, 1.0: -2}, worse=True), CONTRADICTED, "0 of 6 hold, 6 the other way"),
    ("R1", lambda: arms({}), NOT_TESTED, "`dvc repro train_anchor`"),
    ("R2", lambda: composite((0.1, 0.7), (0.8, 0.2)), REPLICATED, "share that composes: +0.6"),
    ("R2", lambda: composite((0.7, 0.1), (0.2, 0.8)), CONTRADICTED, "share that composes: -0.6"),
    ("R2", lambda: arms({}), NOT_TESTED, "`dvc repro train_composite`"),
    ("K1", lambda: seeded([0.3, 0.31, 0.29]), REPLICATED, "s standard, γ = 1 ahead: +0.3"),
    (
        "K1",
        lambda: seeded([-0.3, -0.31, -0.29]),
        REPLICATED,
        "s standard, γ = 0.5 ahead: +0.3",
    ),  # a loss is no luck either
    ("K1", lambda: seeded([0.3, -0.2, 0.1]), NOT_SEEN, "s standard, γ = 1 ahead: +0.0"),
    ("K1", lambda: seeded([0.3, 0.31]), NOT_TESTED, "needs 3 seeds"),
    ("K2", lambda: variants(both=pair(4.7, 4.5), gpt2={("s", 0.5, 0): 4.8}), REPLICATED, "s: +0.3"),
    ("K2", lambda: variants(both=pair(4.7, 4.5), gpt2={("s", 0.5, 0): 4.3}), CONTRADICTED, "s: -0.2"),
    ("K2", lambda: variants(both=pair(4.7, 4.5)), NOT_TESTED, "add `s-0.5-gpt2` to `runs`"),
    ("K3", lambda: variants(standard=pair(4.7, 4.9), literal=pair(4.7, 4.6)), REPLICATED, "s: +0.3"),
    ("K3", lambda: variants(standard=pair(4.7, 4.4), literal=pair(4.7, 4.6)), CONTRADICTED, "s: -0.2"),
    ("K3", lambda: variants(standard=pair(4.7, 4.9)), NOT_TESTED, "add `s-1.0-literal` to `runs`"),
    ("K4", lambda: rates([4.7, 4.6, 4.8], [4.5, 4.6, 4.4]), REPLICATED, "s: +0.2"),  # 4.6 against 4.4
    ("K4", lambda: rates([4.7, 4.3, 4.8], [4.5, 4.6, 4.4]), CONTRADICTED, "s: -0.1"),  # tuned, 0.2 ahead
    ("K4", lambda: arms({}), NOT_TESTED, "add `s-0.5-slow`, `s-0.5-fast`, `s-1.0-slow`, `s-1.0-fast` to `runs`"),
    ("K5", lambda: variants(undecayed=pair(4.7, 4.6)), REPLICATED, "s: +0.1"),
    ("K5", lambda: variants(undecayed=pair(4.6, 4.7)), CONTRADICTED, "s: -0.1"),
    ("K5", lambda: arms({}), NOT_TESTED, "`s-0.5-undecayed`, `s-1.0-undecayed`"),
    ("K6", lambda: variants(long=pair(4.7, 4.6)), REPLICATED, "s: +0.1"),
    ("K6", lambda: variants(long=pair(4.6, 4.7)), CONTRADICTED, "s: -0.1"),
    ("K6", lambda: arms({}), NOT_TESTED, "`m-0.5-long` and `m-1.0-long`"),
]


@pytest.mark.parametrize(("number", "made", "wanted", "said"), CASES)
def test_every_other_claim_and_control_has_its_verdict(
    project: Path, number: str, made: Callable[[], Arms], wanted: str, said: str
) -> None:
    found = finding(number, made())
    row = verdict_tables.table([found]).iloc[0]
    assert (row["verdict"], found.verdict) == (wanted, wanted), row["we measure"]
    assert said in row["we measure"]
    assert (row["interval over"] == "–") == (wanted == NOT_TESTED) == bool(found.reason)


def test_every_claim_has_a_case_of_each_kind() -> None:
    kinds = {(number, verdict) for number, _, verdict, _ in CASES}
    for number in (f"C{n}" for n in range(6, 13)):
        assert {(number, REPLICATED), (number, CONTRADICTED), (number, NOT_TESTED)} <= kinds
    assert [claim.number for claim in verdicts.CLAIMS] == [f"C{n}" for n in range(1, 13)]


# ------------------------------------------------------------------------------------------------------------ tables
@pytest.fixture
def examined(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[verdicts.Finding]:
    """All claims on the paper's effects, but for one run that diverged; the token claim has no tokens to look at."""
    monkeypatch.setattr(verdicts.token_pairs, "concentration", lambda arms: {"s above null": None})
    return verdicts.examine(arms({}, without=("m", 1.0, "eps")), verdicts.CLAIMS)


def test_the_table_has_a_row_for_each_claim_with_evidence_or_the_reason_for_none(
    examined: list[verdicts.Finding],
) -> None:
    table = verdict_tables.table(examined).set_index("claim")
    assert table["verdict"].tolist() == [REPLICATED] * 2 + [NOT_TESTED] * 2 + [REPLICATED] + [NOT_TESTED] * 7
    assert table.loc["C1", "we measure"].startswith("s: +0.3") and "; m: +0.1" in table.loc["C1", "we measure"]
    assert table.loc["C1", ["unit", "interval over", "seeds"]].tolist() == ["nats per token", "documents", "1"]
    assert table.loc["C3", "we measure"] == "`m-1.0-eps` diverged"
    assert table.loc["C3", ["unit", "interval over", "seeds"]].tolist() == ["–", "–", "–"]
    assert "`s-0.25-both`" in table.loc["C6", "we measure"]
    assert "`s-0.5-both-seed1`" in table.loc["C8", "we measure"]


def test_many_effects_are_counted_and_the_weakest_is_written_out() -> None:
    found = finding("C4", arms({}))
    assert len(found.effects) == 6
    said = verdict_tables.described(found)
    assert said.startswith("6 of 6 hold, 0 the other way; weakest: ") and said.count("[") == 1
    mixed = verdict_tables.described(finding("C4", arms(both_sizes("both", 0.2, 0.2))))  # the gate raises the loss
    assert mixed.startswith("4 of 6 hold, 2 the other way; weakest: ") and "loss lowered: -0." in mixed
    table = verdict_tables.table([found])
    assert table["interval over"].item() == "documents and windows"


def test_every_interval_is_listed_with_its_part() -> None:
    table = verdict_tables.effects_table([finding("C5", arms({})), finding("C2", arms({}))])
    assert table["part"].tolist() == ["effect", "effect", "not less", "premise", "effect"]
    assert (table["low"] <= table["value"]).all() and (table["value"] <= table["high"]).all()
    two = verdict_tables.effects_table([finding("C1", seeded([0.3, 0.31, 0.29]))])
    assert two["interval over"].tolist() == ["documents", "seeds"]


@pytest.mark.parametrize(
    ("number", "gains", "said"),
    [
        ("C1", {}, "One effect that is not above zero. Nearest to it: "),
        ("C1", both_sizes("standard", -0.3, -0.1), "One effect that is not below zero. Nearest to it: m: -0.1"),
        ("C1", both_sizes("standard", 0.3, -0.1), "All effects on one side. Not above zero: m: -0.1"),
        ("C7", {}, "A first measurement: needs what the stage `theory` measures"),
    ],
)
def test_what_would_change_a_verdict_names_the_effect_next_to_turn(number: str, gains: Any, said: str) -> None:
    assert verdict_tables.what_would_change(finding(number, arms(gains))).startswith(said)


# --------------------------------------------------------------------------------------------------------- sentences
def test_verdicts_are_counted(examined: list[verdicts.Finding]) -> None:
    text = summary.counts(examined)
    assert "* **replicated**: 3 (C1, C2, C5)" in text and "* **contradicted**: 0\n" in text
    assert text.startswith("Of 12 claims") and "not tested**: 9 (C3, C4, C6" in text


def test_the_scope_tells_seeds_rates_and_tokens_per_parameter() -> None:
    losses = {"both": pair(4.7, 4.5) | pair(4.71, 4.49, seed=1) | pair(4.4, 4.2, "m"), "standard": pair(4.7, None)}
    text = summary.scope(variants(**losses))
    assert "8 runs of 2 sizes, 1.00 to 2.00 million parameters, of which embeddings are 50%" in text
    assert "Several of `s-…-both` (2). All other" in text and "Of 2 differences between two seeds" in text
    assert "0.008 at γ = 0.5, 0.004 at γ = 1" in text and "γ and rate change together" in text
    assert "**Diverged.** `s-1.0-standard`." in text
    assert "One of each run" in summary.scope(variants(both=pair(4.7, 4.5)))


def test_what_could_not_be_measured_beside_the_verdicts_is_said_in_words(project: Path) -> None:
    found = variants(both=pair(4.7, 4.5))
    assert "is not stated: needs at least 3 sizes" in summary.worth(found)
    assert "name the `both` runs of one size in `snapshots`" in summary.hidden(found)
    assert summary.chance(found) == "No model has been asked a benchmark with choices."
    said = summary.chance(benchmarked(0.3))  # made-up hits are near chance by construction, two tasks, two models
    assert said.startswith("Of 4 accuracies (2 tasks with choices, 2 models), ")


def test_what_one_rate_for_all_would_have_said_stands_beside_what_each_at_its_own_says() -> None:
    trials = test_rates.trials(test_rates.PAIR, {("s", 1.0, "both"): 4.45})
    text = summary.one_rate(variants(both=pair(4.7, 4.5)), trials)
    assert "turns with that rate in 1 of 1 comparison; with a rate for each, γ = 1 is ahead in 1 and" in text
    lucky = variants(both=pair(4.7, 4.5) | pair(4.8, 4.5, seed=1))
    assert "is ahead in 0 and behind in 0 of 1, gains up to 0.100 nats" in summary.one_rate(lucky, trials)
    assert summary.one_rate(lucky, trials[trials["gamma"] == 1.0]) == "The pilot has tried no rate at both γ."


def test_a_gain_that_a_larger_model_would_have_is_stated_as_such() -> None:
    sizes = {"s": 1e6, "m": 2e6, "l": 4e6}
    losses: dict[made_up.Arm, float | None] = {}
    for size, count in sizes.items():
        losses |= {(size, gamma, 0): 3 * (count * factor / 1e6) ** -0.1 for gamma, factor in ((0.5, 1), (1.0, 1.44))}
    text = summary.worth(Arms(made_up.results(losses, sizes), CONFIG))
    assert "**+44% [+44%, +44%]** in parameters" in text and "s, m, l" in text and "one seed" in text
