"""Which runs a comparison needs, and what to say where some of them are missing."""

from collections.abc import Sequence

import pandas as pd

from smallinit.analysis.ladder import BASE, SMALL, Arms

GAMMAS = (BASE, SMALL)


def lacking(arms: Arms, size: str, variants: Sequence[str], gammas: Sequence[float] = GAMMAS) -> list[str]:
    """Names of the runs that a comparison of all these arms lacks at a size: missing or diverged."""
    wanted = [(gamma, variant) for gamma in gammas for variant in variants]
    return [f"{size}-{gamma}-{variant}" for gamma, variant in wanted if arms.run(size, gamma, variant) is None]


def complete(arms: Arms, variants: Sequence[str], gammas: Sequence[float] = GAMMAS) -> list[str]:
    """Sizes, small to large, at which every one of these arms has run to its end."""
    return [size for size in arms.sizes() if not lacking(arms, size, variants, gammas)]


def chosen(arms: Arms, sizes: Sequence[str], variants: Sequence[str], gammas: Sequence[float] = GAMMAS) -> pd.DataFrame:
    """The rows of these arms, as many as there are, of the first seed and not diverged, in this order."""
    wanted = [arms.run(size, gamma, variant) for size in sizes for gamma in gammas for variant in variants]
    names = [name for name in wanted if name is not None]
    return arms.results.runs.set_index("run").loc[names].reset_index()


def note(arms: Arms, variants: Sequence[str], gammas: Sequence[float] = GAMMAS) -> str:
    """What is left out of a comparison and what would bring it in, Markdown; empty if nothing is left out."""
    there, lines = set(arms.results.runs["run"]), []
    for size in arms.sizes():
        names = lacking(arms, size, variants, gammas)
        diverged = [f"`{name}`" for name in names if name in there]
        missing = [f"`{name}`" for name in names if name not in there]
        if diverged:
            lines.append(f"* Size {size} is left out: {', '.join(diverged)} diverged.")
        if missing:
            lines.append(
                f"* Size {size} is left out: add {', '.join(missing)} to `runs` in `params.yaml`, then `make repro`."
            )
    return "\n".join(lines)
