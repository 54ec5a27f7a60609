"""The claims of the paper, and the rule by which our measurements decide on each.

One rule for all: a claim states that some effects are positive. It is *replicated* if every effect's interval lies
above zero, *contradicted* if every one lies below zero, else *not seen at this scale*. A part that says "not less" also
holds where its interval includes zero. A premise (there is a gain, if the claim is that the gain shrinks) decides
nothing by itself, but where it does not hold the claim is not replicated. A claim without measurements is *not tested*,
with the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pandas as pd

from smallinit.analysis.ladder import BASE, SMALL, Arms
from smallinit.analysis.statistics import Interval, window_contrast
from smallinit.theory.verdict import UNITS, agreement

REPLICATED, NOT_SEEN, CONTRADICTED, NOT_TESTED = "replicated", "not seen at this scale", "contradicted", "not tested"


@dataclass(frozen=True)
class Effect:
    """One measured part of a claim, positive where the claim says so.

    `at_least` marks a part that says "not less than zero": it holds unless the interval lies below zero. `premise`
    marks what the claim takes for granted.
    """

    name: str
    interval: Interval
    at_least: bool = False
    premise: bool = False

    @property
    def sign(self) -> int:
        """+1 for the claim, -1 against it, 0 undecided."""
        return 1 if self.at_least and self.interval.sign == 0 else self.interval.sign

    def __str__(self) -> str:
        return f"{self.name}: {self.interval}"


def judge(effects: list[Effect]) -> str:
    """The verdict on a claim from its effects."""
    signs = {effect.sign for effect in effects if not effect.premise}
    if not signs:
        return NOT_TESTED
    granted = all(effect.sign == 1 for effect in effects if effect.premise)
    return CONTRADICTED if signs == {-1} else REPLICATED if signs == {1} and granted else NOT_SEEN


def named(parts: dict[str, Interval | None], at_least: bool = False, premise: bool = False) -> list[Effect]:
    """Effects that could be measured; one that could not makes the whole claim untested."""
    if any(interval is None for interval in parts.values()):
        return []
    known = [(name, interval) for name, interval in parts.items() if interval is not None]
    return [Effect(name, interval, at_least, premise) for name, interval in known]


def gain_under_standard(arms: Arms) -> list[Effect]:
    """C1: the loss falls from gamma = 0.5 to gamma = 1, at every size."""
    return named({size: arms.gain(size, "standard") for size in arms.sizes()})


def gain_shrinks(arms: Arms) -> list[Effect]:
    """C2: the gain is smaller at each larger size; the premise: there is one at the smallest."""
    sizes = arms.sizes()
    first = named({f"gain {sizes[0]}": arms.gain(sizes[0], "standard")}, premise=True)
    pairs = pairwise(sizes)
    lost = named({f"loss of gain {a}→{b}": arms.gain_change((a, "standard"), (b, "standard")) for a, b in pairs})
    return [*first, *lost] if first and lost else []


def eps_restores(arms: Arms) -> list[Effect]:
    """C3: the gain is larger with eps = 1e-12 than with the attenuating eps; the premise: then there is one."""
    gains = named({f"gain {size}": arms.gain(size, "eps") for size in arms.sizes()}, premise=True)
    parts = {f"{size} more than standard": arms.gain_change((size, "eps"), (size, "standard")) for size in arms.sizes()}
    more = named(parts)
    return [*gains, *more] if gains and more else []


def sink_and_gate(arms: Arms) -> list[Effect]:
    """C4: gamma = 1 sharpens the sink, the gate removes it, and the gate lowers the loss (eps = 1e-12)."""
    parts: dict[str, Interval | None] = {}
    for size in arms.sizes():
        base, small = arms.run(size, BASE, "eps"), arms.run(size, SMALL, "eps")
        gated = arms.run(size, SMALL, "both")
        for name, more, less in (("sink sharper", small, base), ("sink removed by the gate", small, gated)):
            known = more is not None and less is not None
            parts[f"{size} {name}"] = (
                window_contrast(arms.results.attention, "sink", str(more), str(less), arms.config) if known else None
            )
        parts[f"{size} loss lowered"] = arms.contrast({(size, SMALL, "eps"): 1, (size, SMALL, "both"): -1})
    return named(parts)


def gain_with_both(arms: Arms) -> list[Effect]:
    """C5: with both interventions gamma = 1 wins at every size, and by no less at the larger ones."""
    sizes = arms.sizes()
    gains = named({size: arms.gain(size, "both") for size in sizes})
    pairs = pairwise(sizes)
    changes = named({f"change {a}→{b}": arms.gain_change((b, "both"), (a, "both")) for a, b in pairs}, at_least=True)
    return [*gains, *changes] if gains and changes else []


def residual_flow(arms: Arms) -> list[Effect]:
    """C7: each measured exponent lies within half a step of gamma of 1 - gamma, for attention and GELU networks.

    Measured at initial weights, whatever was trained; `theory.verdict` has the margin and the reason for it.
    """
    return [] if arms.exponents is None else named(dict(agreement(arms.exponents)))


Rule = Callable[[Arms], list[Effect]]
CLAIMS: list[tuple[str, str, Rule | str]] = [
    ("C1", "γ = 1 beats γ = 0.5 under standard settings", gain_under_standard),
    ("C2", "that gain shrinks as the emulated size grows", gain_shrinks),
    ("C3", "ε = 1e-12 restores the gain", eps_restores),
    ("C4", "small initialization sharpens the sink; the gate removes it and lowers the loss", sink_and_gate),
    ("C5", "with both, the gain no longer shrinks", gain_with_both),
    ("C6", "the best γ is 1, and above it gets worse", "needs a sweep over γ"),
    ("C7", "the residual flow scales as d^(1-γ) (attention, GELU networks; SwiGLU: see 11_theory)", residual_flow),
    ("C8", "the gain sits in medium-to-hard tokens", "needs a second seed for its null"),
    ("C9", "gains on reasoning benchmarks", "needs the benchmarks"),
    ("C10", "condense, then expand; γ = 0.5 does not", "needs snapshots of weights during training"),
    ("C11", "the same in mixture-of-experts models", "needs mixture-of-experts runs"),
    ("C12", "the same with LayerNorm", "needs LayerNorm runs"),
]


def table(arms: Arms) -> pd.DataFrame:
    """One row a claim: what was measured, with intervals, and the verdict.

    Effects are in nats per token, of the sink in shares of attention, of the residual flow in what is left of a margin.
    """
    seeds = arms.results.runs["seed"].nunique()
    evidence = "one seed" if seeds == 1 else f"{seeds} seeds"
    rows = []
    for number, claim, rule in CLAIMS:
        effects = [] if isinstance(rule, str) else rule(arms)
        reason = rule if isinstance(rule, str) else "needs measurements that are missing, or of a run that diverged"
        units = sorted({effect.interval.units for effect in effects})
        rows.append(
            {
                "claim": number,
                "the paper says": claim,
                "we measure": "; ".join(map(str, effects)) or reason,
                "interval over": ", ".join(
                    [" and ".join(units) or "–", *([] if units in ([], [UNITS]) else [evidence])]
                ),
                "verdict": judge(effects),
            }
        )
    return pd.DataFrame(rows)
