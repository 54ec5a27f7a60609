"""Which runs are compared token by token, with which null, and what the claim about hard tokens needs."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields

import numpy as np
import pandas as pd

from smallinit.analysis import claims, collect, tokens
from smallinit.analysis.claims import Effect
from smallinit.analysis.ladder import BASE, SMALL, Arms
from smallinit.analysis.statistics import Interval

VARIANTS = ("both", "standard")  # compared token by token; the claim is about the first


@dataclass(frozen=True)
class Pair:
    """Two runs, `base` and `small`, to compare: two gammas of one seed or, for a null, two seeds of one gamma."""

    size: str
    variant: str
    seed: int  # of `small`
    null: float | None  # the gamma of a null; None where two gammas are compared
    base: str
    small: str

    def tokens(self) -> pd.DataFrame:
        """The comparison token by token, see `compare`."""
        return tokens.compare(
            collect.token_losses(self.base), collect.token_losses(self.small), tokens.heldout_documents()
        )


def seeds(arms: Arms) -> list[int]:
    """All seeds, that of the first run first."""
    return [int(seed) for seed in arms.results.runs["seed"].unique()]


def gammas(arms: Arms, size: str, variant: str) -> list[Pair]:
    """gamma = 1 against 0.5 for each seed that has both, the first run's seed first."""
    runs = {seed: [arms.run(size, gamma, variant, seed) for gamma in (BASE, SMALL)] for seed in seeds(arms)}
    return [Pair(size, variant, seed, None, a, b) for seed, (a, b) in runs.items() if a and b]


def nulls(arms: Arms, size: str, variant: str) -> list[Pair]:
    """Each further seed of a gamma against its first one; empty without a second seed."""
    found = []
    for gamma in (BASE, SMALL):
        runs = [(seed, run) for seed in seeds(arms) if (run := arms.run(size, gamma, variant, seed))]
        found += [Pair(size, variant, seed, gamma, runs[0][1], run) for seed, run in runs[1:]]
    return found


def pairs(arms: Arms) -> list[Pair]:
    """All comparisons of two gammas that can be made, those of a size followed by its nulls."""
    found = []
    for variant in VARIANTS:
        for size in arms.sizes():
            if compared := gammas(arms, size, variant):
                found += [*compared, *nulls(arms, size, variant)]
    return found


def claimed(arms: Arms) -> list[Pair]:
    """The comparisons that the claim is about: both interventions, the first seed that has both gammas, each size."""
    return [pair for size in arms.sizes() for pair in gammas(arms, size, VARIANTS[0])[:1]]


def ends(sizes: Iterable[str]) -> list[str]:
    """The first and the last of some sizes, for figures: of many sizes, those between would be ever smaller panels."""
    distinct = list(dict.fromkeys(sizes))
    return list(dict.fromkeys([*distinct[:1], *distinct[-1:]]))


def missing(arms: Arms) -> str:
    """Which runs would complete the comparison, in a sentence of Markdown; empty if none is missing."""
    sizes = [size for size in arms.sizes() if not gammas(arms, size, VARIANTS[0])]
    names = [f"{size}-{gamma}-{VARIANTS[0]}" for size in sizes for gamma in (BASE, SMALL)]
    needs = [f"No pair of γ = {BASE} and {SMALL} at size {', '.join(sizes)} (missing or diverged)."] if sizes else []
    if not any(nulls(arms, size, VARIANTS[0]) for size in arms.sizes()):
        names += [f"{arms.sizes()[0]}-{gamma}-{VARIANTS[0]}-seed{max(seeds(arms)) + 1}" for gamma in (BASE, SMALL)]
        needs.append("No second seed yet, hence no null: what two equal models would show is unknown.")
    new = [f"`{name}`" for name in names if name not in set(arms.results.runs["run"])]
    return " ".join([*needs, f"Add to `runs` in `params.yaml`: {', '.join(new)}."] if new else needs)


def of_pairs(chosen: list[Pair], table: Callable[[pd.DataFrame], pd.DataFrame]) -> pd.DataFrame:
    """`table(tokens)` of each pair, stacked, with the pair's own columns (see `Pair`) in front."""
    frames = [pd.DataFrame(columns=[field.name for field in fields(Pair)])]
    for pair in chosen:
        frame = table(pair.tokens()).reset_index(drop=True)
        frames.append(pd.DataFrame([asdict(pair)] * len(frame)).join(frame))
    return pd.concat(frames[1:] or frames, ignore_index=True)


def other_judges(arms: Arms) -> pd.DataFrame:
    """`above_easy` with difficulty from elsewhere: from the two runs of the other variant, which share no training.

    A row a comparison of two gammas, first seed, and judge, itself included. The mean loss of the two compared
    runs is not quite neutral: where one of them spreads its losses wider, its own spread sorts tokens, too.
    """
    rows = []
    for size in arms.sizes():
        found = {variant: pair for variant in VARIANTS for pair in gammas(arms, size, variant)[:1]}
        tables = {variant: pair.tokens() for variant, pair in found.items()}
        for own, other in ((own, other) for own in tables for other in tables):
            judged = tables[own].assign(difficulty=tables[other]["difficulty"])
            effect = tokens.above_easy(judged, arms.config)
            row = {"size": size, "variant": own, "difficulty from": other, "std γ = 0.5": judged["base"].std()}
            value = effect.value if effect else np.nan
            rows.append(row | {"std γ = 1": judged["small"].std()} | tokens.columns("above easy", effect, value))
    return pd.DataFrame(rows)


def granted(arms: Arms) -> list[Effect]:
    """What the claim takes for granted: at each size there is a gain, in loss, that can sit somewhere."""
    parts = {f"gain {size}": claims.gain(size, VARIANTS[0]) for size in arms.sizes()}
    return claims.contrasts(arms, parts, premise=True)


def concentration(arms: Arms) -> dict[str, Interval | None]:
    """The rule for "the gain sits in medium-to-hard tokens", variant `both`; effects should be positive.

    For each size, first seed: the mean gap of medium-to-hard tokens minus that of easy ones; and, where there is a
    second seed, minus that of the null. None where runs are missing or diverged. At one size at least there must be a
    second seed.
    """
    effects: dict[str, Interval | None] = {}
    for size in arms.sizes():
        pair = next(iter(gammas(arms, size, VARIANTS[0])), None)
        table = pair.tokens() if pair else None
        effects[f"{size} above easy"] = None if table is None else tokens.above_easy(table, arms.config)
        others = [null.tokens() for null in nulls(arms, size, VARIANTS[0])]
        if table is not None and others:
            effects[f"{size} above null"] = tokens.above_null(table, others, arms.config)
    return effects if any("null" in name for name in effects) else effects | {"above null": None}
