"""Condense, then expand: how the stable rank of every matrix falls and rises again, and the rule that judges it.

The stable rank ||W||_F^2 / ||W||_2^2 counts the directions that carry a matrix. Its *ratio* to the value of a random
matrix of the same shape is near 1 at every start, whatever gamma. `fall` and `rise` are in halvings and doublings:

    fall = log2(ratio at step 0 / lowest ratio in the early part of training)
    rise = log2(ratio at the end / lowest ratio in the early part of training)

The lowest is looked for in the early part only, so a matrix that falls to the very end has a negative rise.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from smallinit.analysis.collect import Results
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.ladder import BASE, SMALL, Arms
from smallinit.analysis.needed import complete
from smallinit.analysis.statistics import MIN_SEEDS, Interval, bootstrap_ratio, over_seeds

if TYPE_CHECKING:  # imports torch, which takes seconds: only where pictures are loaded
    from smallinit.evaluation.similarity import Similarity

VARIANT = "both"  # the claim is about the paper's recommended settings
EARLY = 0.25  # of the training tokens: the part in which a matrix has to condense
FALL = 1.0  # halvings that count as condensing
RISE = np.log2(1.1)  # doublings that count as expanding again: by a tenth
FAMILIES = {  # kinds that do the same thing, drawn together
    "embedding": ("embedding",),
    "W_q, W_k, W_v": ("query", "key", "value"),
    "attention gate": ("attention_gate",),
    "W_o": ("attention_out",),
    "FFN gate and up": ("ffn_gate", "ffn_up"),
    "FFN down": ("ffn_down",),
    "router": ("router",),
    "head": ("head",),
}
FAMILY = {kind: name for name, kinds in FAMILIES.items() for kind in kinds}
# Columns that there have to be, even where nothing was measured; `measures.MATRICES` has all, and imports torch.
NEEDED = ["step", "tokens", "name", "kind", "layer", "stable_rank_ratio", "weight_norm", "update_norm"]
OUTSIDE = ("embedding", "head", "router")  # not judged: most of their rows wait for a token, or there are few of them


def trajectories(results: Results, size: str, variant: str, gammas: Sequence[float] = (BASE, SMALL)) -> pd.DataFrame:
    """The measures of all matrices of one size and variant, a row a matrix, run and step.

    Columns: those of `results.matrices`, gamma, seed, family, and update_ratio: the norm of an update over that of the
    matrix. Diverged runs are left out.
    """
    runs = results.runs
    chosen = runs[(runs["size"] == size) & (runs["variant"] == variant) & runs["gamma"].isin(gammas)]
    chosen = chosen[~chosen["diverged"]]
    columns = results.matrices.columns.union(["run", *NEEDED], sort=False)  # also where nothing was measured
    measured = results.matrices.reindex(columns=columns)
    measured = measured[measured["run"].isin(chosen["run"])]
    table = measured.merge(chosen[["run", "gamma", "seed"]], on="run")
    return table.assign(
        family=table["kind"].map(FAMILY), update_ratio=table["update_norm"] / table["weight_norm"]
    ).sort_values(["run", "name", "step"], ignore_index=True)


def turning_points(table: pd.DataFrame) -> pd.DataFrame:
    """Where each matrix of each run turns; one row a run and matrix.

    Columns: gamma, seed, run, name, kind, layer; start, lowest (in the early part) and end, ratios of the stable rank
    to that of a random matrix; at_step, that of the lowest; fall and rise.

    Args:
        table: as `trajectories` gives it.
    """
    columns = ["gamma", "seed", "run", "name", "kind", "layer"]
    table = table.reset_index(drop=True)
    matrices = table.groupby(columns)
    early = table[table["tokens"] <= EARLY * matrices["tokens"].transform("max")]
    lowest = early.loc[early.groupby(columns)["stable_rank_ratio"].idxmin()].set_index(columns)
    low, ratio = lowest["stable_rank_ratio"], matrices["stable_rank_ratio"]
    found = {"start": ratio.first(), "lowest": low, "at_step": lowest["step"].astype(int), "end": ratio.last()}
    points = pd.DataFrame(found)
    return points.assign(
        fall=np.log2(points["start"] / points["lowest"]), rise=np.log2(points["end"] / points["lowest"])
    ).reset_index()


def mean_by(table: pd.DataFrame, group: str, column: str) -> pd.DataFrame:
    """Mean of a measure over all matrices and seeds: one row a `group` (kind or family), gamma and step.

    The geometric mean for norms and ranks, which differ by factors between matrices; the plain one for cosines.
    """
    plain = column.startswith("row_cosine")
    values = table.assign(value=table[column] if plain else np.log(table[column].where(table[column] > 0)))
    means = values.groupby([group, "gamma", "step"], as_index=False)["value"].mean()
    return means if plain else means.assign(value=np.exp(means["value"]))


def judged(points: pd.DataFrame) -> pd.DataFrame:
    """The matrices that the claim is judged on: all of the blocks but routers."""
    return points[~points["kind"].isin(OUTSIDE)]


def interval(values: pd.DataFrame, settings: AnalysisConfig) -> Interval:
    """A mean with its interval: over seeds where there are enough of them, else over the matrices of the model.

    Args:
        values: a row a matrix, a column a seed, (matrices, seeds).
    """
    if values.shape[1] >= MIN_SEEDS:
        found = over_seeds(values.mean(axis=0).tolist(), settings.confidence)
        assert found is not None
        return found
    means = values.mean(axis=1).to_numpy()
    return bootstrap_ratio(means, np.ones_like(means), "matrices", settings)


def pivoted(points: pd.DataFrame, gamma: float, column: str) -> pd.DataFrame:
    """(matrices, seeds): a column of the turning points at one gamma."""
    return points[points["gamma"] == gamma].pivot(index="name", columns="seed", values=column)


def effects_of(points: pd.DataFrame, settings: AnalysisConfig) -> dict[str, Interval | None]:
    """What the claim says of one size, in halvings or doublings, positive where it says so; None: a gamma is missing.

    * gamma = 1 condenses: its stable rank falls by more than half in the early part;
    * and expands: from there it rises by more than a tenth until the end;
    * gamma = 0.5 does not: the same matrix falls less there.
    """
    names = ("γ=1 falls beyond half", "γ=1 rises beyond a tenth", "γ=1 falls more than γ=0.5")
    chosen = judged(points)
    if set(chosen["gamma"]) != {BASE, SMALL}:
        return dict.fromkeys(names)
    fall, rise = pivoted(chosen, SMALL, "fall"), pivoted(chosen, SMALL, "rise")
    more = (fall - pivoted(chosen, BASE, "fall")).dropna(axis=1, how="all")  # seeds that both have
    if more.empty:
        return dict.fromkeys(names)
    values = (fall - FALL, rise - RISE, more)
    return {name: interval(value, settings) for name, value in zip(names, values, strict=True)}


def effects(arms: Arms, variant: str = VARIANT) -> dict[str, Interval | None]:
    """Claim C10 for every size: see `effects_of`."""
    found: dict[str, Interval | None] = {}
    for size in arms.sizes():
        points = turning_points(trajectories(arms.results, size, variant))
        found |= {f"{size} {name}": value for name, value in effects_of(points, arms.config).items()}
    return found


def measured_sizes(arms: Arms, variant: str = VARIANT) -> list[str]:
    """Sizes of which both gammas ran to their end: those with more seeds last, then the larger ones."""
    return sorted(complete(arms, [variant]), key=lambda size: len(arms.seeds(size, variant)))


def pictured(arms: Arms, variant: str = VARIANT) -> "dict[float, Similarity]":
    """Row cosines at gamma = 0.5 and 1 of the last of `measured_sizes` that has them; empty if none has."""
    from smallinit.evaluation import similarity

    for size in reversed(measured_sizes(arms, variant)):
        runs = {gamma: arms.run(size, gamma, variant) for gamma in (BASE, SMALL)}
        pair = {gamma: similarity.load(run) for gamma, run in runs.items() if run}
        found = {gamma: pictures for gamma, pictures in pair.items() if pictures}
        if len(found) == len(runs):
            return found
    return {}


def changes(pair: "Mapping[float, Similarity]") -> pd.DataFrame:
    """What training has added to every matrix: `similarity.CHANGES`, gamma and family, of both gammas."""
    table = pd.concat([pictures.changes.assign(gamma=gamma) for gamma, pictures in pair.items()], ignore_index=True)
    return table.assign(family=table["kind"].map(FAMILY))


def change_sentence(table: pd.DataFrame) -> str:
    """How the shape of what training adds develops at each gamma, in words, from the step at which all have moved.

    Args:
        table: as `changes` gives it.
    """
    blocks = judged(table)
    count = blocks.groupby(["gamma", "step"])["name"].transform("nunique")
    means = mean_by(blocks[count == count.max()].assign(all="all"), "all", "change_ratio")
    parts = []
    for gamma, mean in means.groupby("gamma"):
        low, last = mean.loc[mean["value"].idxmin()], mean["value"].iloc[-1]
        parts.append(f"γ = {gamma:g}: {low['value']:.2f} (step {low['step']:,}), {last:.2f} at the end")
    return "Stable rank of what training adds, lowest and last: " + "; ".join(parts[::-1])


def first_step(arms: Arms, size: str, variant: str = VARIANT) -> pd.DataFrame:
    """The first step at gamma = 1 over that at gamma = 0.5: name, kind, gradient and update, quotients of norms.

    Both runs must exist. If the first update is blind to the gradient's size, `update` is `learning_rate`, the quotient
    of the peak learning rates.
    """
    names = [arms.run(size, gamma, variant) for gamma in (SMALL, BASE)]
    measured = arms.results.matrices[arms.results.matrices["step"] == 1].set_index(["name", "kind"])
    small, base = (measured[measured["run"] == name] for name in names)
    rates = arms.results.runs.set_index("run")["peak_lr"]
    columns = {"grad_norm": "gradient", "update_norm": "update"}
    quotients = (small[list(columns)] / base[list(columns)]).rename(columns=columns)
    return quotients.assign(learning_rate=rates[names[0]] / rates[names[1]]).reset_index()


def overview(results: Results, sizes: Sequence[str]) -> pd.DataFrame:
    """One row a size, variant and gamma: means over the judged matrices and seeds, for people.

    Columns: size, variant, γ, seeds, matrices; lowest, in the early part, and end (ratios to a random matrix); at step
    (median); condensed and then expanded (shares of matrices beyond FALL, and of those beyond FALL and RISE).
    """
    rows = []
    variants, gammas = (results.runs[column].unique() for column in ("variant", "gamma"))
    for size in sizes:
        for variant in variants:
            table = judged(turning_points(trajectories(results, size, variant, gammas)))
            for gamma, points in table.groupby("gamma"):
                condensed = points["fall"] > FALL
                rows.append(
                    {
                        **{"size": size, "variant": variant, "γ": gamma, "seeds": points["seed"].nunique()},
                        **{"matrices": points["name"].nunique(), "lowest": stats.gmean(points["lowest"])},
                        **{"at step": int(points["at_step"].median()), "end": stats.gmean(points["end"])},
                        **{"condensed": condensed.mean()},
                        "then expanded": (condensed & (points["rise"] > RISE)).mean(),
                    }
                )
    return pd.DataFrame(rows)


def sentence(points: pd.DataFrame) -> str:
    """What the turning points of one size say, for both gammas."""
    parts = []
    for gamma, matrices in judged(points).groupby("gamma", sort=True):
        low, end = (stats.gmean(matrices[column]) for column in ("lowest", "end"))
        parts.append(f"γ = {gamma:g}: {low:.2f} early on, {end:.2f} at the end")
    return "Stable rank over that of a random matrix: " + "; ".join(parts[::-1])
