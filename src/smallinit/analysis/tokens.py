"""Where the gain sits: two runs compared token by token on the same held-out text, by how hard a token is.

Two rules keep such a comparison honest. Difficulty is the mean loss of *both* runs: whoever sorts tokens by the loss of
one of them finds a gain of the other among the "hard" ones where there is none (regression to the mean). And beside the
comparison of two gammas stands that of two seeds of one gamma, the null, treated in the same way.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from smallinit import paths
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.statistics import Interval, bootstrap

# Shares of all tokens, from the easiest on: what the claim calls easy, and medium to hard. The hardest tenth is in
# neither: what no model can know, such as a new name, is left out of the rule and shown beside it.
EASY, MEDIUM_TO_HARD, HARDEST = (0.0, 0.3), (0.3, 0.9), (0.9, 1.0)
FEWEST = 5  # documents; of fewer, drawing with replacement says nothing


def symmetric_gap(base: np.ndarray, small: np.ndarray) -> np.ndarray:
    """(p_small - p_base) / (p_small + p_base), in (-1, 1), from losses in nats: p = exp(-loss).

    Computed as tanh((base - small) / 2), which is the same and exact for probabilities of any size.
    """
    gap: np.ndarray = np.tanh((base - small) / 2)
    return gap


def heldout_documents() -> pd.DataFrame:
    """Where held-out documents lie: document, source, language, start and end (token positions in the file)."""
    return pd.read_csv(paths.RESULTS / "corpus" / "heldout_documents.csv")


def compare(base: np.ndarray, small: np.ndarray, documents: pd.DataFrame) -> pd.DataFrame:
    """One row a token that lies in a document; the separators between documents are left out.

    Args:
        base: loss of each token of the slice in nats, (n,); entry i belongs to token i + 1 of the held-out file.
        small: the same of the run that is held against it.
        documents: as `heldout_documents` returns them.

    Returns:
        entry, document, source, language; base and small (nats), difficulty (nats: the mean of both), gain (nats:
        base - small, positive where `small` is better), gap (`symmetric_gap`).

    Raises:
        ValueError: the two do not cover the same slice.
    """
    if base.shape != small.shape or base.ndim != 1:
        raise ValueError(
            f"token losses of shapes {base.shape} and {small.shape}: both runs must have the same slice, (n,); "
            "evaluate both with one `evaluate.slice_tokens`"
        )
    inside = documents[documents["start"] <= len(base)]
    ends = np.minimum(inside["end"].to_numpy(), len(base) + 1)  # the last document may be cut
    lengths = ends - inside["start"].to_numpy()
    tokens = inside.loc[inside.index.repeat(lengths), ["document", "source", "language"]].reset_index(drop=True)
    spans = [np.arange(start, end) - 1 for start, end in zip(inside["start"], ends, strict=True)]
    entry = np.concatenate(spans) if spans else np.zeros(0, dtype=int)
    tokens.insert(0, "entry", entry)
    return with_losses(tokens, base[entry].astype(float), small[entry].astype(float))


def with_losses(tokens: pd.DataFrame, base: np.ndarray, small: np.ndarray) -> pd.DataFrame:
    """`tokens` with the columns that follow from the losses of the two runs, one number a row each."""
    return tokens.assign(
        base=base, small=small, difficulty=(base + small) / 2, gain=base - small, gap=symmetric_gap(base, small)
    )


def swapped(tokens: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Twins: the two losses of each token dealt to two "models" by the toss of a coin, so that neither is better."""
    heads = np.random.default_rng(seed).random(len(tokens)) < 0.5
    base, small = tokens["base"].to_numpy(), tokens["small"].to_numpy()
    return with_losses(tokens, np.where(heads, base, small), np.where(heads, small, base))


def ranks(values: pd.Series) -> np.ndarray:
    """The rank of each value, from 0; equal values in the order of the text, which favours neither run."""
    rank = np.empty(len(values), dtype=int)
    rank[np.argsort(values.to_numpy(), kind="stable")] = np.arange(len(values))
    return rank


def within(tokens: pd.DataFrame, limits: tuple[float, float], by: str = "difficulty") -> pd.DataFrame:
    """The tokens whose rank by `by` lies within these shares of all tokens, as [low, high)."""
    share = ranks(tokens[by]) / max(len(tokens), 1)
    return tokens[(share >= limits[0]) & (share < limits[1])]


def contrast(parts: Sequence[tuple[pd.DataFrame, float]], column: str, config: AnalysisConfig) -> Interval | None:
    """A weighted sum of means over tokens, with a percentile bootstrap over documents.

    Tokens of one document depend on each other, so whole documents are drawn, the same ones for all parts.

    Args:
        parts: tables of tokens, each with its weight.
        column: what is averaged.

    Returns:
        None where a part has no token, or there are fewer than FEWEST documents to draw from.
    """
    documents = np.unique(np.concatenate([tokens["document"] for tokens, _ in parts]))
    if len(documents) < FEWEST or any(tokens.empty for tokens, _ in parts):
        return None
    places = [np.searchsorted(documents, tokens["document"]) for tokens, _ in parts]
    counts = [np.bincount(place, minlength=len(documents)) for place in places]
    sums = [np.bincount(p, tokens[column], len(documents)) for p, (tokens, _) in zip(places, parts, strict=True)]
    weights = [weight for _, weight in parts]

    def weighted(drawn: np.ndarray, axis: int = -1) -> Any:
        """`drawn` (…, documents) numbers documents; returns (…)."""
        means = [s[drawn].sum(axis) / c[drawn].sum(axis) for s, c in zip(sums, counts, strict=True)]
        return sum(weight * mean for weight, mean in zip(weights, means, strict=True))

    everything = np.arange(len(documents))
    with np.errstate(invalid="ignore"):  # a draw without a single token of a part: the interval is then unknown
        drawn = bootstrap((everything,), weighted, config, paired=False).confidence_interval
    return Interval(float(weighted(everything)), float(drawn.low), float(drawn.high), "documents")


def columns(name: str, interval: Interval | None, value: float) -> dict[str, float]:
    """A mean and its interval as three columns of a table; the interval is missing where there is none."""
    low, high = (interval.low, interval.high) if interval else (np.nan, np.nan)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def means(tokens: pd.DataFrame, config: AnalysisConfig) -> dict[str, float]:
    """Tokens, documents, difficulty, gap and gain of a set of tokens; the latter two with intervals over documents.

    `relative` is the gain as a share of the difficulty: constant if all losses fell by the same factor.
    """
    row: dict[str, float] = {"tokens": len(tokens), "documents": tokens["document"].nunique()}
    row["difficulty"] = tokens["difficulty"].mean()
    for measure in ("gap", "gain"):
        row |= columns(measure, contrast([(tokens, 1)], measure, config), tokens[measure].mean())
    return row | {"relative": row["gain"] / row["difficulty"]}


def profile(tokens: pd.DataFrame, bins: int, config: AnalysisConfig, by: str = "difficulty") -> pd.DataFrame:
    """The comparison in bins of equal numbers of tokens, from the easiest: bin (1…), share (its middle), `means`.

    Raises:
        ValueError: fewer tokens than bins.
    """
    if len(tokens) < bins:
        raise ValueError(f"{len(tokens)} tokens for {bins} bins: lower `analysis.difficulty_bins`")
    number = ranks(tokens[by]) * bins // len(tokens)
    rows = [{"bin": b + 1, "share": (b + 0.5) / bins} | means(tokens[number == b], config) for b in range(bins)]
    return pd.DataFrame(rows)


def both_ways(tokens: pd.DataFrame, bins: int, config: AnalysisConfig) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`profile` of tokens sorted by the loss of the first run alone, which misleads, and by the mean loss of both."""
    return profile(tokens, bins, config, by="base"), profile(tokens, bins, config)


def by_language(tokens: pd.DataFrame, bins: int, config: AnalysisConfig) -> pd.DataFrame:
    """`profile` of each language that has a token for every bin; bins are those of the language."""
    languages = [(name, group) for name, group in tokens.groupby("language") if len(group) >= bins]
    return pd.concat([profile(group, bins, config).assign(language=name) for name, group in languages])


def groups(tokens: pd.DataFrame, column: str, config: AnalysisConfig) -> pd.DataFrame:
    """`means` for each value of `column` (source or language), one row each."""
    return pd.DataFrame([{column: name} | means(group, config) for name, group in tokens.groupby(column)])


def levels(tokens: pd.DataFrame, config: AnalysisConfig) -> pd.DataFrame:
    """The comparison over all tokens, and over the easy, the medium to hard and the hardest ones."""
    parts = {"all": (0.0, 1.0), "easy": EASY, "medium to hard": MEDIUM_TO_HARD, "hardest": HARDEST}
    rows = [{"level": name} | means(within(tokens, limits), config) for name, limits in parts.items()]
    return pd.DataFrame(rows)


def above_easy(tokens: pd.DataFrame, config: AnalysisConfig) -> Interval | None:
    """Mean gap of the medium-to-hard tokens minus that of the easy ones."""
    return contrast([(within(tokens, MEDIUM_TO_HARD), 1), (within(tokens, EASY), -1)], "gap", config)


def above_null(tokens: pd.DataFrame, others: list[pd.DataFrame], config: AnalysisConfig) -> Interval | None:
    """Mean gap of the medium-to-hard tokens minus that of the null with the largest one, whatever its sign.

    Which of two seeds is the first is arbitrary, so a null has no sign: it is turned against the claim.
    """
    parts = [within(other, MEDIUM_TO_HARD) for other in others]
    largest = max(parts, key=lambda part: abs(part["gap"].mean()))
    against = -float(np.sign(largest["gap"].mean()))
    return contrast([(within(tokens, MEDIUM_TO_HARD), 1), (largest, against)], "gap", config)
