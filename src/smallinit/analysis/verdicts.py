"""All claims of the paper and our own controls, each with its effects.

`claims` has the rule; each claim here names its effects, the runs that it compares, and what to say where some are
missing. Everything is computed once, by `examine`; `verdict_tables` has views of that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from smallinit.analysis import (
    answers,
    benchmarks,
    claims,
    condensation,
    confounds,
    controls,
    longer,
    sweep,
    token_pairs,
)
from smallinit.analysis.claim_needs import (
    BOTH,
    absent,
    family_lacks,
    ladder_lacks,
    or_stage,
    pairs_of,
    seeds_of,
    span,
    sweep_lacks,
)
from smallinit.analysis.claims import Effect, judge, named
from smallinit.analysis.family import EXPERTS, LAYERNORM, same_gain
from smallinit.analysis.ladder import BASE, SMALL, Arms
from smallinit.analysis.statistics import MIN_SEEDS, Interval
from smallinit.reasoning import stage
from smallinit.reasoning import verdict as reasoning

Rule = Callable[[Arms], list[Effect]]


@dataclass(frozen=True)
class Claim:
    """A statement that some effects are positive.

    `lacks` says in words why there are no effects, `seeds` how many seeds each of them has, `unit` what they are in.
    """

    number: str
    says: str
    rule: Rule
    lacks: Callable[[Arms], str]
    seeds: Callable[[Arms], str] = lambda arms: "–"
    unit: str = "nats per token"


@dataclass(frozen=True)
class Finding:
    """A claim with what was measured of it."""

    claim: Claim
    effects: list[Effect]
    reason: str  # why there are no effects, else empty
    seeds: str  # how many seeds its effects have, least and most

    @property
    def verdict(self) -> str:
        """One of the four of `claims`."""
        return judge(self.effects)

    @property
    def weakest(self) -> Effect:
        """The effect that is least, or least surely, above zero."""
        return min(self.effects, key=lambda effect: (effect.sign, effect.strength))


# -------------------------------------------------------------------------------------------------- rules elsewhere
def task_effects(task: str, effects: Callable[[pd.DataFrame, float], dict[str, Interval | None]]) -> Rule:
    """The rule of one of the two small reasoning tasks, none of whose runs are in `arms`."""

    def rule(arms: Arms) -> list[Effect]:
        try:
            curves, runs = stage.read(task, "curves"), stage.read(task, "runs")
        except FileNotFoundError:
            return []
        table = reasoning.milestones(curves, runs) if task == "anchor" else reasoning.final(curves)
        return named(effects(table, arms.config.confidence))

    return rule


def task_seeds(task: str) -> Callable[[Arms], str]:
    """How many seeds a small task has."""
    return lambda arms: str(stage.read(task, "runs")["seed"].nunique())


def beyond_luck(arms: Arms) -> list[Effect]:
    """The gain over seeds in the direction of its mean, wherever there are enough seeds: above zero if luck is out."""
    effects = []
    for size in arms.sizes():
        for variant in arms.results.runs["variant"].unique():
            each = claims.seed_interval(arms, claims.gain(size, variant))
            if each is not None:
                lost = each.value < 0
                folded = Interval(-each.value, -each.high, -each.low, each.units) if lost else each
                effects.append(Effect(f"{size} {variant}, γ = {BASE if lost else SMALL:g} ahead", folded))
    return effects


def luck_seeds(arms: Arms) -> str:
    """How many seeds the comparisons of `beyond_luck` have."""
    pairs = arms.results.runs[["size", "variant"]].drop_duplicates().itertuples(index=False)
    counts = [len(arms.seeds(size, variant)) for size, variant in pairs]
    return span([count for count in counts if count >= MIN_SEEDS])


def beside_gpt2(arms: Arms) -> list[Effect]:
    """GPT-2's loss minus that of gamma = 1 with both interventions, at each size that has the baseline."""
    runs = arms.results.runs
    sizes = [size for size in arms.sizes() if ((runs["size"] == size) & (runs["variant"] == controls.GPT2)).any()]
    parts = {size: {(size, BASE, controls.GPT2): 1.0, (size, SMALL, BOTH): -1.0} for size in sizes}
    return claims.contrasts(arms, parts)


def literal_is_harmless(arms: Arms) -> list[Effect]:
    """What the matched eps costs gamma = 1 beyond the literal one, at each size that has the latter."""
    runs = arms.results.runs
    sizes = [size for size in arms.sizes() if ((runs["size"] == size) & (runs["variant"] == controls.LITERAL)).any()]
    parts = {size: {(size, SMALL, "standard"): 1.0, (size, SMALL, controls.LITERAL): -1.0} for size in sizes}
    return claims.contrasts(arms, parts)


def where_the_gain_sits(arms: Arms) -> list[Effect]:
    """C8: the gap of medium-to-hard tokens is larger than that of easy ones and of the null; the premise: a gain."""
    gains, gaps = token_pairs.granted(arms), named(token_pairs.concentration(arms))
    return [*gains, *gaps] if gains and gaps else []


def benchmark_gains(arms: Arms) -> list[Effect]:
    """C9: fewer bits per byte of the right answers; the premise: no lower accuracy where there are choices."""
    asked = answers.load(arms)
    gains = named(benchmarks.reasoning_gains(arms, asked))
    choices = named(benchmarks.rank_accuracy(arms, asked), at_least=True, premise=True)
    return [*gains, *choices] if gains and choices else []


CLAIMS = [
    Claim(
        "C1",
        "γ = 1 beats γ = 0.5 under standard settings",
        claims.gain_under_standard,
        ladder_lacks("standard"),
        pairs_of("standard"),
    ),
    Claim(
        "C2",
        "that gain shrinks as the emulated size grows",
        claims.gain_shrinks,
        ladder_lacks("standard"),
        pairs_of("standard"),
    ),
    Claim(
        "C3",
        "ε = 1e-12 restores the gain",
        claims.eps_restores,
        ladder_lacks("standard", "eps"),
        pairs_of("standard", "eps"),
    ),
    Claim(
        "C4",
        "small initialization sharpens the sink; the gate removes it and lowers the loss",
        claims.sink_and_gate,
        ladder_lacks("eps", "both"),
        seeds_of((BASE, "eps"), (SMALL, "eps"), (SMALL, "both")),
        "shares of attention; nats per token",
    ),
    Claim("C5", "with both, the gain no longer shrinks", claims.gain_with_both, ladder_lacks(BOTH), pairs_of(BOTH)),
    Claim(
        "C6",
        "the best γ is 1, and above it gets worse",
        lambda arms: named(sweep.best_is_one(arms), null=sweep.luck(arms)),
        sweep_lacks,
        lambda arms: "1",
    ),
    Claim(
        "C7",
        "the residual flow scales as d^(1-γ) (attention, GELU networks; SwiGLU: see 11_theory)",
        claims.residual_flow,
        lambda arms: "needs what the stage `theory` measures: `dvc repro theory`",
        unit="powers of the width, what is left of a margin",
    ),
    Claim(
        "C8",
        "the gain sits in medium-to-hard tokens",
        where_the_gain_sits,
        token_pairs.missing,
        pairs_of(BOTH),
        "symmetric gap of probabilities; gain in nats per token",
    ),
    Claim(
        "C9",
        "gains on reasoning benchmarks",
        benchmark_gains,
        or_stage("benchmark"),
        pairs_of(BOTH),
        "bits per byte of the right answer; accuracy",
    ),
    Claim(
        "C10",
        "condense, then expand; γ = 0.5 does not",
        lambda arms: named(condensation.effects(arms)),
        or_stage("train"),
        pairs_of(BOTH),
        "halvings of the stable rank",
    ),
    Claim(
        "C11",
        "the same in mixture-of-experts models",
        lambda arms: same_gain(arms, EXPERTS),
        family_lacks(EXPERTS),
        pairs_of(EXPERTS[BOTH]),
    ),
    Claim(
        "C12",
        "the same with LayerNorm",
        lambda arms: same_gain(arms, LAYERNORM),
        family_lacks(LAYERNORM),
        pairs_of(LAYERNORM[BOTH]),
    ),
]

# What the paper does not claim, but its claims lean on: reasoning in the same group's small tasks, and what else could
# make the difference between two gammas.
CONTROLS = [
    Claim(
        "R1",
        "a small start learns a rule before a list (anchor sequences)",
        task_effects("anchor", reasoning.anchor_effects),
        lambda arms: "needs what the stage `train_anchor` measures: `dvc repro train_anchor`",
        task_seeds("anchor"),
        unit="doublings; shares; nats",
    ),
    Claim(
        "R2",
        "a small start composes and does not mirror (composite functions)",
        task_effects("composite", reasoning.composite_effects),
        lambda arms: "needs what the stage `train_composite` measures: `dvc repro train_composite`",
        task_seeds("composite"),
        unit="shares of answers",
    ),
    Claim(
        "K1",
        "differences between γ, in either direction, are more than luck of the seed",
        beyond_luck,
        lambda arms: f"needs {MIN_SEEDS} seeds of both γ at one size: names such as `s-1.0-both-seed1` in `runs`",
        luck_seeds,
    ),
    Claim(
        "K2",
        "γ = 1 with both beats GPT-2's recipe (its start, norm, network and tied head at once)",
        beside_gpt2,
        lambda arms: absent(arms, [controls.GPT2], [BASE], arms.sizes()[:1]) or absent(arms, [BOTH], [SMALL]),
        seeds_of((BASE, controls.GPT2), (SMALL, BOTH)),
    ),
    Claim(
        "K3",
        "at our widths it is the matched ε, not the literal 1e-5, that costs γ = 1",
        literal_is_harmless,
        lambda arms: absent(arms, ["standard", controls.LITERAL], [SMALL], arms.sizes()[:1]),
        seeds_of((SMALL, "standard"), (SMALL, controls.LITERAL)),
    ),
    Claim(
        "K4",
        "the gain with both is there at the best of three learning rates for each γ",
        confounds.gain_at_best_rates,
        confounds.lacks_rates,
        lambda arms: "1",
    ),
    Claim(
        "K5",
        "the gain with both is there without weight decay",
        confounds.gain_without_decay,
        confounds.lacks_decay,
        pairs_of(confounds.UNDECAYED),
    ),
    Claim(
        "K6",
        "the gain with both is there after a longer training",
        longer.gain_when_longer,
        longer.lacks_longer,
        pairs_of(longer.LONG),
    ),
]


def examine(arms: Arms, asked: Sequence[Claim]) -> list[Finding]:
    """Measure each claim, once."""
    found = []
    for claim in asked:
        effects = claim.rule(arms)
        reason = (
            "" if effects else claim.lacks(arms).rstrip(".") or "could not be measured from the runs that there are"
        )
        found.append(Finding(claim, effects, reason, claim.seeds(arms) if effects else "–"))
    return found
