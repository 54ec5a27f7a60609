"""Claim C7, residual flow d^(1 - gamma): how well measured exponents agree with it. Needs neither torch nor models."""

import pandas as pd

from smallinit.analysis.statistics import Interval

UNITS = "draws of the weights"  # what its intervals are over: nothing was trained
MARGIN = 0.125  # half of a step of 1/4 in gamma
CLAIMED = ("attention", "gelu")  # the claim's derivation has one branch; a gated network has two


def agreement(exponents: pd.DataFrame, parts: tuple[str, ...] = CLAIMED) -> dict[str, Interval]:
    """How far within MARGIN of 1 - gamma each exponent lies: positive where it agrees, negative where it does not.

    The value is MARGIN - |exponent - (1 - gamma)|, its interval that of the exponent. An exponent that agrees is nearer
    to the prediction for its own gamma than to that for any other gamma of a grid with steps of 1/4.

    Args:
        exponents: columns part, gamma, measured, low, high, as `flow.exponents` makes and figures/theory holds.
        parts: which of them to judge.

    Raises:
        ValueError: one of the parts was not measured.
    """
    if missing := set(parts) - set(exponents["part"]):
        raise ValueError(f"no exponents of {sorted(missing)} (there are: {sorted(set(exponents['part']))})")
    found = {}
    for row in exponents[exponents["part"].isin(parts)].to_dict("records"):
        off, low, high = (row[key] - (1 - row["gamma"]) for key in ("measured", "low", "high"))
        nearest = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
        farthest = max(abs(low), abs(high))
        interval = Interval(MARGIN - abs(off), MARGIN - farthest, MARGIN - nearest, UNITS)
        found[f"{row['part']} γ={row['gamma']:g}"] = interval
    return found
