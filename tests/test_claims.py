"""Verdicts: each claim is replicated, contradicted, not seen or not tested where made-up results say so."""

from typing import Any

import pandas as pd
import pytest
from conftest import Arm, made_up_results

from smallinit.analysis import claims
from smallinit.analysis.claims import CONTRADICTED, NOT_SEEN, NOT_TESTED, REPLICATED, Effect, judge
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.ladder import Arms
from smallinit.analysis.statistics import Interval

CONFIG = AnalysisConfig(bootstrap_samples=200, confidence=0.95, seed=0)
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


def verdict(claim: str, found: Arms) -> str:
    rule = next(rule for number, _, rule in claims.CLAIMS if number == claim)
    assert not isinstance(rule, str)
    return judge(rule(found))


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


def test_the_table_has_a_row_for_each_claim_with_evidence_or_the_reason_for_none() -> None:
    table = claims.table(arms({}, without=("m", 1.0, "eps"))).set_index("claim")
    assert list(table.index) == [f"C{n}" for n in range(1, 13)]
    assert table.loc["C1", "we measure"].startswith("s: +0.3") and "; m: +0.1" in table.loc["C1", "we measure"]
    assert table.loc["C1", "interval over"] == "documents, one seed"
    assert table.loc["C3", "we measure"] == "needs measurements that are missing, or of a run that diverged"
    assert table.loc["C7", "we measure"] == table.loc["C3", "we measure"]  # nobody has handed over exponents
    assert table.loc["C6", "we measure"] == "needs a sweep over γ"
    assert table["verdict"].tolist() == [REPLICATED] * 2 + [NOT_TESTED] * 2 + [REPLICATED] + [NOT_TESTED] * 7


@pytest.mark.parametrize(("off", "verdict"), [(0.0, REPLICATED), (0.2, NOT_SEEN), (0.5, CONTRADICTED)])
def test_the_residual_flow_is_judged_by_its_exponents_whatever_was_trained(off: float, verdict: str) -> None:
    rows = []
    for part in ("attention", "gelu"):
        for gamma in (0.5, 1.0):
            wrong = off if off == 0.5 or part == "gelu" else 0.0
            value = 1 - gamma + wrong
            rows.append({"part": part, "gamma": gamma, "measured": value, "low": value - 0.01, "high": value + 0.01})
    made_up = arms({})
    measured = claims.table(Arms(made_up.results, made_up.config, pd.DataFrame(rows))).set_index("claim").loc["C7"]
    assert (measured["verdict"], measured["interval over"]) == (verdict, "draws of the weights")


def test_the_sink_claim_names_both_things_that_were_resampled() -> None:
    table = claims.table(arms({})).set_index("claim")
    assert table.loc["C4", "interval over"] == "documents and windows, one seed"
