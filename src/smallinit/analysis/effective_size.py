"""What a gain in loss is worth in model size: how much larger a gamma = 0.5 model would have to be to match it.

A curve L(N) is fitted to the gamma = 0.5 runs of a variant and inverted at the gamma = 1 losses. N counts all
parameters. Where embeddings are most of a small model, as here, that gives the smaller, more cautious factor: the rest
of a model grows with the square of the width, embeddings only in proportion to it. It is also the count in which loss
follows a power law down to small models (Pearce and Song, arXiv 2406.12907). The other count, `WITHOUT_EMBEDDINGS`, is
the one to compare with models whose embeddings are a small share, as the paper's are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from smallinit.analysis.ladder import BASE, SMALL, Arms
from smallinit.analysis.resamples import Refusal, mean_losses, percentile, resampled_losses
from smallinit.analysis.statistics import Interval, over_seeds

PARAMETERS, WITHOUT_EMBEDDINGS = "parameters", "parameters_without_embeddings"
MISFIT = 0.1  # a fit explains its points if it misses none by more than this share of the fall from first to last
REACH = 2.0  # a curve is trusted up to this factor beyond the sizes that it was fitted to
POWERS = (1e-3, 4.0)  # where alpha is searched
FACTORS = (0.01, 100.0)  # where N_eff / N is searched
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Curve:
    """L(N) = offset + scale (N / unit)^(-power), one or many at once; offset and scale are not negative.

    The parameters are (..., 1), so that they go with sizes and losses (..., n).
    """

    offset: np.ndarray
    scale: np.ndarray
    power: np.ndarray
    unit: float

    def loss(self, size: np.ndarray) -> np.ndarray:
        """Loss (nats per token) at sizes N."""
        return np.asarray(self.offset + self.scale * (size / self.unit) ** -self.power)

    def size(self, loss: np.ndarray) -> np.ndarray:
        """The sizes N at which the curve has these losses; infinite at or below the offset."""
        with np.errstate(divide="ignore", invalid="ignore"):
            above = np.maximum(loss - self.offset, 0) / self.scale
            return np.nan_to_num(self.unit * above ** (-1 / self.power), nan=np.inf, posinf=np.inf)


def minimum(
    function: Callable[[np.ndarray], np.ndarray], low: float, high: float, shape: tuple[int, ...]
) -> np.ndarray:
    """Where each of many functions with a single valley is lowest, by golden-section search for all at once."""
    a, b = np.full(shape, low), np.full(shape, high)
    for _ in range(50):  # narrows each interval by a factor of 3e-11
        c, d = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
        left = function(c) < function(d)
        a, b = np.where(left, a, c), np.where(left, d, b)
    return np.asarray((a + b) / 2)


def fit(sizes: np.ndarray, losses: np.ndarray) -> Curve:
    """The power law nearest to the points in least squares; sizes (n,), losses (..., n), n >= 3.

    Four points or more have an offset; three would then be met exactly, and nothing would test the curve. For a given
    power the rest is linear regression, so only the power is searched.
    """
    unit = float(np.exp(np.log(sizes).mean()))

    def curve(power: np.ndarray) -> Curve:
        term = (sizes / unit) ** -power
        mean, level = term.mean(axis=-1, keepdims=True), losses.mean(axis=-1, keepdims=True)
        slope = ((term - mean) * (losses - level)).sum(axis=-1, keepdims=True)
        slope = np.maximum(slope / np.square(term - mean).sum(axis=-1, keepdims=True), 0)
        through_zero = (term * losses).sum(axis=-1, keepdims=True) / np.square(term).sum(axis=-1, keepdims=True)
        free = (level - slope * mean > 0) & (len(sizes) >= 4)
        return Curve(np.where(free, level - slope * mean, 0), np.where(free, slope, through_zero), power, unit)

    def miss(power: np.ndarray) -> np.ndarray:
        return np.square(curve(power).loss(sizes) - losses).sum(axis=-1, keepdims=True)

    return curve(minimum(miss, *POWERS, (*losses.shape[:-1], 1)))


def objection(names: Sequence[str], sizes: np.ndarray, losses: np.ndarray) -> str | None:
    """Why no curve is drawn through these points, from small to large; None if one may be."""
    if len(names) < 3:
        known = f"only {' and '.join(names)} " + ("has" if len(names) == 1 else "have") if names else "no size has"
        return f"needs at least 3 sizes with both γ; {known} them: add runs of other sizes to `runs` in params.yaml"
    if (np.diff(losses) >= 0).any():
        worse = int(np.argmax(np.diff(losses) >= 0))
        return f"at γ = {BASE:g} the loss does not fall from size {names[worse]} to {names[worse + 1]}"
    miss, fall = np.abs(fit(sizes, losses).loss(sizes) - losses).max(), losses[0] - losses[-1]
    if miss > MISFIT * fall:
        return (
            f"the fitted curve misses a point at γ = {BASE:g} by {miss:.3f} nats, {miss / fall:.0%} of the fall from "
            f"size {names[0]} to {names[-1]}; allowed are {MISFIT:.0%}"
        )
    return None


def factors(sizes: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """N_eff / N of each size, and last the one factor k for all, with L_1(N) = L_0.5(k N) in least squares.

    Args:
        sizes: (n,) parameters.
        losses: (..., 2n) those at gamma = 0.5, then those at gamma = 1.

    Returns:
        (..., n + 1), cut to the range `FACTORS`.
    """
    base, small = np.split(losses, 2, axis=-1)
    curve = fit(sizes, base)

    def miss(log_factor: np.ndarray) -> np.ndarray:
        return np.square(curve.loss(sizes * np.exp(log_factor)) - small).sum(axis=-1, keepdims=True)

    low, high = np.log(FACTORS)
    common = np.exp(minimum(miss, low, high, (*losses.shape[:-1], 1)))
    return np.concatenate([np.clip(curve.size(small) / sizes, *FACTORS), common], axis=-1)


def within(factor: np.ndarray | float) -> np.ndarray:
    """Whether factors lie within the range that is searched, not at its ends, which stand for any factor beyond."""
    return np.asarray((factor > 1.01 * FACTORS[0]) & (factor < 0.99 * FACTORS[1]))


def factors_by_seed(
    arms: Arms, variant: str, names: list[str], sizes: np.ndarray, losses: np.ndarray
) -> list[list[float]]:
    """`factors` for each seed: of a size, from the seeds with both gammas there; the common one, from complete seeds.

    Where a seed has no runs of a size, the curve keeps the losses of the default seed. A seed whose points allow no
    curve, or that has no such size on it, is NaN.
    """
    columns: list[list[float]] = [[] for _ in range(len(names) + 1)]
    seeds = {name: arms.seeds(name, variant) for name in names}
    for seed in sorted(set().union(*seeds.values())):
        there = [number for number, name in enumerate(names) if seed in seeds[name]]
        changed = losses.copy()
        for number in there:
            pair = [str(arms.run(names[number], gamma, variant, seed)) for gamma in (BASE, SMALL)]
            changed[[number, len(names) + number]] = mean_losses(arms.results.documents, pair)
        values = factors(sizes, changed)
        allowed = objection(names, sizes, changed[: len(names)]) is None
        values = np.where(allowed & within(values), values, np.nan)
        for number in [*there, *([len(names)] if len(there) == len(names) else [])]:
            columns[number].append(float(values[number]))
    return columns


@dataclass(frozen=True)
class Worth:
    """What gamma = 1 is worth in model size; every interval is of N_eff / N - 1, 0.44 being 44 percent.

    `intervals` (over held-out documents) and `seeds` (over seeds; None where there is one) have an entry for each of
    `names` and a last one for the one factor of all sizes.
    """

    names: list[str]
    sizes: np.ndarray  # (n,) parameters
    base: np.ndarray  # (n,) losses at gamma = 0.5
    small: np.ndarray  # (n,) losses at gamma = 1
    curve: Curve
    intervals: list[Interval | Refusal]
    seeds: list[Interval | None]

    @property
    def pooled(self) -> Interval | Refusal:
        """The one factor for all sizes."""
        return self.intervals[-1]

    def extrapolated(self, number: int) -> bool:
        """Whether the effective size lies beyond the sizes that the curve was fitted to."""
        loss = self.small[number]
        return not bool(self.base[-1] <= loss <= self.base[0])


def judged(value: float, samples: np.ndarray, allowed: tuple[float, float], arms: Arms) -> Interval | Refusal:
    """A factor as an interval of factor - 1, or why it is not stated. `allowed`: factors within reach of the curve."""
    interval = percentile(float(value) - 1, samples - 1, arms.config)
    for factor, bound, side in ((value, interval.low, "smaller"), (value, interval.high, "larger")):
        if (factor < allowed[0]) if side == "smaller" else (factor > allowed[1]):
            return Refusal(f"worth a model more than {REACH:g} times {side} than any in the fit: too far to say")
        if not within(bound + 1):
            return Refusal("held-out documents leave it open: in some resamples no size on the curve has such a loss")
    return interval


def effective_size(arms: Arms, variant: str, count: str = PARAMETERS) -> Worth | Refusal:
    """What gamma = 1 is worth in model size under one variant, from runs of the default seed.

    Intervals are over held-out documents, with everything fitted again on each resample. Those over seeds vary the
    losses of the sizes that have several, and keep the default seed's curve elsewhere.

    Args:
        arms: runs and settings.
        variant: whose sizes with both gammas are used.
        count: `PARAMETERS` or `WITHOUT_EMBEDDINGS`.
    """
    runs = arms.results.runs.set_index("run")
    pairs = {size: [arms.run(size, gamma, variant) for gamma in (BASE, SMALL)] for size in arms.sizes()}
    found = {size: (str(base), str(small)) for size, (base, small) in pairs.items() if base and small}
    names = list(found)
    sizes = np.array([runs.loc[base, count] for base, _ in found.values()], dtype=float)
    order = [base for base, _ in found.values()] + [small for _, small in found.values()]
    losses = mean_losses(arms.results.documents, order)
    if reason := objection(names, sizes, losses[: len(names)]):
        return Refusal(reason)
    values = factors(sizes, losses)
    samples = factors(sizes, resampled_losses(arms.results.documents, order, arms.config))
    reach = [(sizes[0] / REACH / size, sizes[-1] * REACH / size) for size in sizes] + [(1 / REACH, REACH)]
    intervals = [judged(*parts, arms) for parts in zip(values, samples.T, reach, strict=True)]
    columns = factors_by_seed(arms, variant, names, sizes, losses)
    seeds = [
        None if np.isnan(column).any() else over_seeds([factor - 1 for factor in column], arms.config.confidence)
        for column in columns
    ]
    base, small = np.split(losses, 2)
    return Worth(names, sizes, base, small, fit(sizes, base), intervals, seeds)


def worth(arms: Arms, variant: str = "both") -> Interval | Refusal:
    """The one factor for all sizes, N_eff / N - 1, with its interval over held-out documents; or why there is none."""
    found = effective_size(arms, variant)
    return found if isinstance(found, Refusal) else found.pooled


def percent(found: Interval | Refusal | None) -> str:
    """An interval of N_eff / N - 1 in percent, a refusal in its words, nothing as a dash."""
    if isinstance(found, Interval):
        return f"{found.value:+.0%} [{found.low:+.0%}, {found.high:+.0%}]"
    return "–" if found is None else str(found)


def table(arms: Arms, found: Mapping[str, Worth | Refusal]) -> pd.DataFrame:
    """One row a size and variant, and one for all sizes of a variant; one row with the reason where there is no fit.

    `found` is what `effective_size` says of each variant.
    """
    rows = []
    for variant, each in found.items():
        if isinstance(each, Refusal):
            rows.append({"variant": variant, "size": "all", "worth in parameters": str(each)})
            continue
        other = effective_size(arms, variant, WITHOUT_EMBEDDINGS)
        for number, name in enumerate([*each.names, "all"]):
            beyond = number < len(each.names) and each.extrapolated(number)
            rest = other if isinstance(other, Refusal) else other.intervals[number]
            rows.append(
                {
                    **{"variant": variant, "size": name, "worth in parameters": percent(each.intervals[number])},
                    **{"over seeds": percent(each.seeds[number]), "without embeddings": percent(rest)},
                    **{"beyond the fitted sizes": "yes" if beyond else "no"},
                }
            )
    columns = ["variant", "size", "worth in parameters", "over seeds", "without embeddings", "beyond the fitted sizes"]
    return pd.DataFrame(rows, columns=columns).fillna("–")
