"""What was found of each claim, as tables for people."""

from collections.abc import Sequence

import pandas as pd

from smallinit.analysis.claims import CONTRADICTED, NOT_TESTED, REPLICATED
from smallinit.analysis.verdicts import Finding

WRITTEN = 4  # effects that are written out; of more, only how many hold, and the weakest


def described(finding: Finding) -> str:
    """The effects with their intervals, or how many of many hold and the weakest; without any, the reason."""
    effects = finding.effects
    if len(effects) <= WRITTEN:
        return "; ".join(map(str, effects)) or finding.reason
    hold, against = (sum(effect.sign == sign for effect in effects) for sign in (1, -1))
    return f"{hold} of {len(effects)} hold, {against} the other way; weakest: {finding.weakest}"


def table(findings: Sequence[Finding]) -> pd.DataFrame:
    """One row a claim: what was measured, with intervals, and the verdict."""
    rows = []
    for finding in findings:
        units = sorted({interval.units for effect in finding.effects for interval in effect.intervals})
        rows.append(
            {
                "claim": finding.claim.number,
                "the paper says": finding.claim.says,
                "we measure": described(finding),
                "unit": finding.claim.unit if finding.effects else "–",
                "interval over": " and ".join(units) or "–",
                "seeds": finding.seeds,
                "verdict": finding.verdict,
            }
        )
    return pd.DataFrame(rows)


def effects_table(findings: Sequence[Finding]) -> pd.DataFrame:
    """Every effect of every claim, a row an effect and interval.

    Columns: claim, effect, part (how it counts: effect, not less, or premise), interval over, value, low, high, and
    null, as far as two seeds of one arm differ; missing where that is not known or there is an interval over seeds.
    """
    rows = []
    for finding in findings:
        for effect in finding.effects:
            part = "premise" if effect.premise else "not less" if effect.at_least else "effect"
            for each in effect.intervals:
                row = {"claim": finding.claim.number, "effect": effect.name, "part": part, "interval over": each.units}
                rows.append(row | {"value": each.value, "low": each.low, "high": each.high, "null": effect.null})
    columns = ["claim", "effect", "part", "interval over", "value", "low", "high", "null"]
    return pd.DataFrame(rows, columns=columns).astype({"null": float})


def what_would_change(finding: Finding) -> str:
    """What would have to be measured for another verdict, in words."""
    if finding.verdict == NOT_TESTED:
        return f"A first measurement: {finding.reason}."
    if finding.verdict == REPLICATED:
        return f"One effect that is not above zero. Nearest to it: {finding.weakest}."
    if finding.verdict == CONTRADICTED:
        strongest = max(finding.effects, key=lambda effect: (effect.sign, effect.strength))
        return f"One effect that is not below zero. Nearest to it: {strongest}."
    open_ = sorted((effect for effect in finding.effects if effect.sign < 1), key=lambda effect: effect.strength)
    more = f"; and {len(open_) - 2} more" if len(open_) > 2 else ""
    return f"All effects on one side. Not above zero: {'; '.join(map(str, open_[:2]))}{more}."


def changes_table(findings: Sequence[Finding]) -> pd.DataFrame:
    """One row a claim: the verdict and what would change it."""
    rows = [[each.claim.number, each.verdict, what_would_change(each)] for each in findings]
    return pd.DataFrame(rows, columns=["claim", "verdict", "what would change it"])
