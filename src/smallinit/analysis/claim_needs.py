"""What the comparisons of a claim have, seeds, and what they lack, runs: in words for the table of verdicts."""

from collections.abc import Callable, Sequence

from smallinit.analysis import sweep
from smallinit.analysis.family import Family, sizes_of
from smallinit.analysis.ladder import Arms
from smallinit.analysis.needed import GAMMAS, lacking

BOTH = "both"


# -------------------------------------------------------------------------------------------------------------- seeds
def span(counts: Sequence[int]) -> str:
    """The least and the most of some counts that are not zero."""
    known = sorted(set(counts) - {0})
    return "–" if not known else str(known[0]) if len(known) == 1 else f"{known[0]}–{known[-1]}"


def seeds_of(*compared: tuple[float, str]) -> Callable[[Arms], str]:
    """How many seeds have all of these arms (gamma, variant), over sizes."""

    def shared(arms: Arms, size: str) -> int:
        seeds = arms.results.runs["seed"].unique()
        return sum(all(arms.run(size, *arm, seed=int(seed)) for arm in compared) for seed in seeds)

    return lambda arms: span([shared(arms, size) for size in arms.sizes()])


def pairs_of(*variants: str) -> Callable[[Arms], str]:
    """The same for both gammas of these variants."""
    return seeds_of(*((gamma, variant) for variant in variants for gamma in GAMMAS))


# --------------------------------------------------------------------------------------------------------- missing runs
def absent(
    arms: Arms, variants: Sequence[str], gammas: Sequence[float] = GAMMAS, sizes: Sequence[str] | None = None
) -> str:
    """Which of these runs are missing, and where to add them, or diverged; empty if all are there."""
    names = [name for size in sizes or arms.sizes() for name in lacking(arms, size, variants, gammas)]
    there = set(arms.results.runs["run"])
    new, lost = ([f"`{name}`" for name in names if (name in there) == known] for known in (False, True))
    parts = [f"add {', '.join(new)} to `runs` in params.yaml"] if new else []
    return "; ".join(parts + ([f"{', '.join(lost)} diverged"] if lost else []))


def ladder_lacks(*variants: str) -> Callable[[Arms], str]:
    """What a claim about these variants at every size, or about a change with size, lacks."""
    return lambda arms: absent(arms, variants) or "needs these runs at a second size: add one to `sizes` and `runs`"


def sweep_lacks(arms: Arms) -> str:
    """What the sweep lacks: the gammas of the grid at the size and variant by which the claim is judged."""
    found = sweep.find(arms.results)
    size, variant = (found[0].size, found[0].variant) if found else (arms.sizes()[0], sweep.PREFERRED[0])
    return absent(arms, [variant], sweep.GRID, [size])


def family_lacks(family: Family) -> Callable[[Arms], str]:
    """What the family lacks, at the smallest size if it has no run yet."""

    def lacks(arms: Arms) -> str:
        sizes = sizes_of(arms, family) or arms.sizes()[:1]
        there = set(arms.results.runs["variant"])
        return absent(arms, [name for name in family.values() if name in there or name == family[BOTH]], sizes=sizes)

    return lacks


def or_stage(name: str) -> Callable[[Arms], str]:
    """What a claim about `both` lacks: a run, or else what a stage writes about it."""
    return lambda arms: absent(arms, [BOTH]) or f"needs what the stage `{name}` measures: `dvc repro {name}`"
