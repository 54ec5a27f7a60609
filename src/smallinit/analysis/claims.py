"""The rule by which measurements decide on a claim, and the claims that are about the ladder.

One rule for all: a claim states that some effects are positive. It is *replicated* if every effect is above zero,
*contradicted* if every one is below, else *not seen at this scale*. A part that says "not less" also holds where its
effect is undecided. A premise (there is a gain, if the claim is that the gain shrinks) decides nothing by itself, but
where it does not hold the claim is not replicated. A claim without measurements is *not tested*.

An effect is above zero if its interval is. Losses have two intervals: over held-out documents, and over seeds where
there are enough. The two cover different luck, that of the text and that of the training, and neither contains the
other; so both are stated, and an effect is above (below) zero only if both are. Where seeds are too few for an interval
of their own, the effect has to be larger than the null: the largest difference of two seeds of one arm (see `nulls`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from smallinit.analysis import nulls
from smallinit.analysis.ladder import BASE, SMALL, Arms
from smallinit.analysis.resamples import mean_losses
from smallinit.analysis.statistics import MIN_SEEDS, Interval, over_seeds, window_contrast
from smallinit.theory.verdict import agreement

REPLICATED, NOT_SEEN, CONTRADICTED, NOT_TESTED = "replicated", "not seen at this scale", "contradicted", "not tested"
Weights = Mapping[tuple[str, float, str], float]  # of the losses of (size, gamma, variant)


@dataclass(frozen=True)
class Effect:
    """One measured part of a claim, positive where the claim says so.

    `at_least` marks a part that says "not less than zero": it holds unless the effect is below zero. `premise` marks
    what the claim takes for granted. `seeds` is the interval over seeds beside `interval`, if there is one; else `null`
    is as far as two seeds of one arm differ in the same quantity, if that is known.
    """

    name: str
    interval: Interval
    at_least: bool = False
    premise: bool = False
    seeds: Interval | None = None
    null: float | None = None

    @property
    def intervals(self) -> list[Interval]:
        """All that have a say."""
        return [self.interval, *([self.seeds] if self.seeds else [])]

    @property
    def sign(self) -> int:
        """+1 for the claim, -1 against it, 0 undecided."""
        signs = {interval.sign for interval in self.intervals}
        sign = signs.pop() if len(signs) == 1 and not self.may_be_luck else 0
        return 1 if self.at_least and sign == 0 else sign

    @property
    def may_be_luck(self) -> bool:
        """Whether two seeds of one arm differ by as much."""
        return self.null is not None and abs(self.interval.value) <= self.null

    @property
    def strength(self) -> float:
        """The weaker estimate, in units of its distance to the bound on the side of zero: within 1 if undecided.

        Or of the null, if there is one.
        """
        found = [self.interval.value / self.null] if self.null else []
        for each in self.intervals:
            width = each.value - each.low if each.value > 0 else each.high - each.value
            found.append(each.value / width if width > 0 else float(np.sign(each.value)) * np.inf)
        return min(found)

    def __str__(self) -> str:
        part = " (premise)" if self.premise else " (not less)" if self.at_least else ""
        luck = "" if self.null is None else f", null ±{nulls.digits(self.null)}"
        return f"{self.name}{part}: {self.interval}{luck}" + (f", over seeds {self.seeds}" if self.seeds else "")


def judge(effects: Sequence[Effect]) -> str:
    """The verdict on a claim from its effects."""
    signs = {effect.sign for effect in effects if not effect.premise}
    if not signs:
        return NOT_TESTED
    granted = all(effect.sign == 1 for effect in effects if effect.premise)
    return CONTRADICTED if signs == {-1} else REPLICATED if signs == {1} and granted else NOT_SEEN


def named(
    parts: Mapping[str, Interval | None], at_least: bool = False, premise: bool = False, null: float | None = None
) -> list[Effect]:
    """Effects that could be measured; one that could not makes the whole claim untested."""
    if any(interval is None for interval in parts.values()):
        return []
    known = [(name, interval) for name, interval in parts.items() if interval is not None]
    return [Effect(name, interval, at_least, premise, null=null) for name, interval in known]


# ------------------------------------------------------------------------------------------------------------- losses
def seed_interval(arms: Arms, weights: Weights) -> Interval | None:
    """The weighted sum of losses over the seeds that all these arms have; None for fewer than MIN_SEEDS of them."""
    values = []
    for seed in arms.results.runs["seed"].unique():
        runs = [arms.run(*arm, seed=int(seed)) for arm in weights]
        if all(runs):
            losses = mean_losses(arms.results.documents, [str(run) for run in runs])
            values.append(float(losses @ np.array(list(weights.values()))))
    return over_seeds(values, arms.config.confidence) if len(values) >= MIN_SEEDS else None


def seed_null(arms: Arms, weights: Weights) -> float | None:
    """As far as two seeds differ in such a sum: of two losses, or of the four in a difference of gains."""
    null = arms.gain_null if len(weights) > 2 else arms.loss_null
    sizes, gammas, variants = (set(values) for values in zip(*weights, strict=True))
    return null.reach({"size": sizes, "gamma": gammas, "variant": variants})


def contrasts(arms: Arms, parts: Mapping[str, Weights], at_least: bool = False, premise: bool = False) -> list[Effect]:
    """Weighted sums of losses (nats per token) as effects; empty if an arm of one is missing.

    Each has both intervals, or that over documents and the null.
    """
    found = []
    for name, weights in parts.items():
        interval = arms.contrast(dict(weights))
        if interval is None:
            return []
        seeds = seed_interval(arms, weights)
        found.append(Effect(name, interval, at_least, premise, seeds, None if seeds else seed_null(arms, weights)))
    return found


def gain(size: str, variant: str) -> Weights:
    """Loss at gamma = 0.5 minus loss at gamma = 1."""
    return {(size, BASE, variant): 1.0, (size, SMALL, variant): -1.0}


def change(after: tuple[str, str], before: tuple[str, str]) -> Weights:
    """Gain at (size, variant) `after` minus the gain at `before`."""
    return {**gain(*after), **{arm: -weight for arm, weight in gain(*before).items()}}


# ------------------------------------------------------------------------------------------------------------- claims
def gain_under_standard(arms: Arms) -> list[Effect]:
    """C1: the loss falls from gamma = 0.5 to gamma = 1, at every size."""
    return contrasts(arms, {size: gain(size, "standard") for size in arms.sizes()})


def gain_shrinks(arms: Arms) -> list[Effect]:
    """C2: the gain is smaller at each larger size; the premise: there is one at the smallest."""
    sizes = arms.sizes()
    first = contrasts(arms, {f"gain {sizes[0]}": gain(sizes[0], "standard")}, premise=True)
    pairs = pairwise(sizes)
    lost = contrasts(arms, {f"loss of gain {a}→{b}": change((a, "standard"), (b, "standard")) for a, b in pairs})
    return [*first, *lost] if first and lost else []


def eps_restores(arms: Arms) -> list[Effect]:
    """C3: the gain is larger with eps = 1e-12 than with the attenuating eps; the premise: then there is one."""
    sizes = arms.sizes()
    gains = contrasts(arms, {f"gain {size}": gain(size, "eps") for size in sizes}, premise=True)
    more = contrasts(arms, {f"{size} more than standard": change((size, "eps"), (size, "standard")) for size in sizes})
    return [*gains, *more] if gains and more else []


def sink_and_gate(arms: Arms) -> list[Effect]:
    """C4: gamma = 1 sharpens the sink, the gate removes it, and the gate lowers the loss (eps = 1e-12)."""
    effects: list[Effect] = []
    null = nulls.attention(arms.results, "sink", "shares of attention")
    for size in arms.sizes():
        base, small, gated = (size, BASE, "eps"), (size, SMALL, "eps"), (size, SMALL, "both")
        for name, more, less in (("sharper", small, base), ("removed by the gate", small, gated)):
            runs = arms.run(*more), arms.run(*less)
            if runs[0] is None or runs[1] is None:
                return []
            found = window_contrast(arms.results.attention, "sink", runs[0], runs[1], arms.config)
            reach = null.reach({"size": [size], "gamma": {more[1], less[1]}, "variant": {more[2], less[2]}})
            effects.append(Effect(f"{size} sink {name}", found, null=reach))
        effects += contrasts(arms, {f"{size} loss lowered": {small: 1, gated: -1}})
    return effects


def gain_with_both(arms: Arms) -> list[Effect]:
    """C5: with both interventions gamma = 1 wins at every size, and by no less at the larger ones."""
    sizes = arms.sizes()
    gains = contrasts(arms, {size: gain(size, "both") for size in sizes})
    pairs = pairwise(sizes)
    changes = {f"change {a}→{b}": change((b, "both"), (a, "both")) for a, b in pairs}
    no_less = contrasts(arms, changes, at_least=True)
    return [*gains, *no_less] if gains and no_less else []


def residual_flow(arms: Arms) -> list[Effect]:
    """C7: each measured exponent lies within half a step of gamma of 1 - gamma, for attention and GELU networks.

    Measured at initial weights, whatever was trained; `theory.verdict` has the margin and the reason for it.
    """
    return [] if arms.exponents is None else named(dict(agreement(arms.exponents)))
