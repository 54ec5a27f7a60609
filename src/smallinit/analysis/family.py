"""The paper's question asked again in another family of models: does small initialization win there too?

A family has two variants that correspond to the outer ones of the ladder, `standard` and `both`; one of them is enough.
"""

from collections.abc import Mapping

import pandas as pd

from smallinit.analysis import claims, nulls
from smallinit.analysis.claims import Effect
from smallinit.analysis.ladder import Arms
from smallinit.analysis.needed import lacking

# The usual variant -> the family's variant with the same eps and gate.
Family = Mapping[str, str]
EXPERTS: Family = {"standard": "moe_standard", "both": "moe"}
LAYERNORM: Family = {"standard": "layernorm_standard", "both": "layernorm"}


def sizes_of(arms: Arms, family: Family) -> list[str]:
    """Sizes, small to large, that have any run of the family, whether it finished or not."""
    runs = arms.results.runs
    there = set(runs.loc[runs["variant"].isin(family.values()), "size"])
    return [size for size in arms.sizes() if size in there]


def gains(arms: Arms, family: Family) -> pd.DataFrame:
    """Gain of gamma = 1 (nats per token) in the family and in the usual models of the same size and intervention.

    A row a comparison that could be made: size, usual (the variant's counterpart in the ladder), variant, family
    (whether the row is of the family), gain, low, high, null (the largest difference of two seeds of that arm, or of
    the usual models if the family has one seed).
    """
    columns = ["size", "usual", "variant", "family", "gain", "low", "high"]
    rows = []
    for size in sizes_of(arms, family):
        for usual, variant in measured_variants(arms, family, size).items():
            for name in (usual, variant):
                gain = arms.gain(size, name)
                if gain is not None:
                    rows.append([size, usual, name, name == variant, gain.value, gain.low, gain.high])
    return arms.loss_null.beside(pd.DataFrame(rows, columns=columns))


def measured_variants(arms: Arms, family: Family, size: str) -> dict[str, str]:
    """The part of the family that has any run at a size: usual variant to the family's."""
    runs = arms.results.runs
    there = set(runs.loc[runs["size"] == size, "variant"])
    return {usual: variant for usual, variant in family.items() if variant in there}


def same_gain(arms: Arms, family: Family) -> list[Effect]:
    """Claims C11 and C12: the gain of gamma = 1 in each variant of the family, at each size that has it.

    Positive where small initialization wins; empty where the other run of a pair diverged or is missing. A variant that
    nobody has run says nothing for or against.
    """
    sizes = sizes_of(arms, family)
    parts = [(size, variant) for size in sizes for variant in measured_variants(arms, family, size).values()]
    return claims.contrasts(arms, {f"{size} {variant}": claims.gain(size, variant) for size, variant in parts})


def missing(arms: Arms, family: Family) -> str:
    """Pairs of the family that cannot be compared, and what would bring them in; Markdown."""
    there, lines = set(arms.results.runs["run"]), []
    for size in sizes_of(arms, family) or arms.sizes()[:1]:  # a family need not be run at every size
        for variant in family.values():
            names = [f"`{name}`" for name in lacking(arms, size, [variant]) if name not in there]
            if names:
                lines.append(f"* Size {size}, `{variant}`: add {' and '.join(names)} to `runs` in `params.yaml`.")
    return (
        "\n".join(["Not compared, because runs are missing:", "", *lines]) if lines else "Every pair of runs is there."
    )


def text(arms: Arms, family: Family) -> str:
    """The gains in words, Markdown: a line a size and variant of the family."""
    lines = []
    for size in sizes_of(arms, family):
        for usual, variant in measured_variants(arms, family, size).items():
            gain = claims.contrasts(arms, {"gain": claims.gain(size, variant)})
            if not gain:
                lines.append(f"* **Size {size}, `{variant}`**: not measured, a run of the pair diverged or is missing.")
                continue
            verdict = {1: "γ = 1 wins", -1: "γ = 0.5 wins", 0: "neither γ wins"}[gain[0].sign]
            line = f"* **Size {size}, `{variant}`**: {verdict}, {gain[0]} nats per token"
            for more in claims.contrasts(arms, {"difference": claims.change((size, variant), (size, usual))}):
                beside = {1: "more", -1: "less", 0: "neither more nor less"}[more.sign]
                line += f"; {beside} than in `{usual}`, {more}"
            lines.append(f"{line}.")
    return "\n".join(lines) or "No run of this family is there."


def message(table: pd.DataFrame) -> str:
    """In how many comparisons each arm wins, in the family and beside it. table: of `gains`."""
    own, usual = table[table["family"]], table[~table["family"]]
    if own.empty:
        return "No comparison could be made: in each pair a run diverged or is missing"
    won = nulls.signs(own, "gain")
    return (
        f"γ = 1 wins in {(won > 0).sum()} of {len(own)} comparisons and loses in {(won < 0).sum()}; "
        f"in the usual models it wins in {(nulls.signs(usual, 'gain') > 0).sum()} of {len(usual)}"
    )
