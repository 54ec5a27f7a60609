"""Loss against gamma at one size: where it is lowest, how flat it is there, and whether gamma = 1 is the best."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from smallinit.analysis.collect import Results
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.ladder import SMALL, Arms
from smallinit.analysis.resamples import Refusal, mean_losses, percentile, resampled_losses
from smallinit.analysis.statistics import Interval, loss_contrast, over_seeds

GRID = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)  # what a sweep should have
FLAT = 0.01  # nats: losses this near to the lowest, one percent of perplexity, count as equally good
PREFERRED = ("both", "standard")  # variants in the order in which they are shown; the claim is judged by the first


@dataclass(frozen=True)
class Sweep:
    """Runs of one size and variant that differ in gamma, and with it in the learning rate.

    `loss` is the mean over the tokens of whole held-out documents here, since documents are what is resampled.
    """

    size: str
    variant: str
    runs: pd.DataFrame  # as `Results.runs`, a row a gamma, ascending: of one seed, without diverged runs
    others: pd.DataFrame  # the same of other seeds
    diverged: list[float]  # gammas of the one seed that have no loss

    @property
    def gammas(self) -> np.ndarray:
        """(n,) ascending."""
        return self.runs["gamma"].to_numpy(dtype=float)

    @property
    def lowest(self) -> pd.Series:
        """The run with the lowest loss."""
        return self.runs.loc[self.runs["loss"].idxmin()]

    def run(self, gamma: float) -> str | None:
        """The name of the run at this gamma."""
        found = self.runs[self.runs["gamma"] == gamma]
        return None if found.empty else str(found["run"].iloc[0])

    def __str__(self) -> str:
        return f"size {self.size}, {self.variant}"


def find(results: Results) -> list[Sweep]:
    """Every size and variant with at least three gammas that finished with one seed, preferred variants first."""
    found = []
    for (size, variant), group in results.runs.groupby(["size", "variant"], sort=False):
        finished = group[~group["diverged"]].sort_values("gamma", kind="stable")
        finished = finished.assign(loss=mean_losses(results.documents, finished["run"]))
        for seed in group["seed"].unique():
            one = finished["seed"] == seed
            if one.sum() >= 3:
                lost = sorted(group.loc[group["diverged"] & (group["seed"] == seed), "gamma"])
                found.append(Sweep(str(size), str(variant), finished[one], finished[~one], lost))
                break
    order = {variant: number for number, variant in enumerate(PREFERRED)}
    return sorted(found, key=lambda sweep: (order.get(sweep.variant, len(order)), -len(sweep.runs)))


def overview(results: Results) -> str:
    """Which sweeps there are, or what is missing for one, in Markdown."""
    lines = [f"* **{each}**: γ = {', '.join(f'{gamma:g}' for gamma in each.gammas)}" for each in find(results)]
    return "\n".join(lines) or missing(results)


def missing(results: Results) -> str:
    """What to add to `runs` for a sweep, in Markdown: the gammas that the smallest size lacks."""
    runs = results.runs
    size = runs.sort_values("parameters")["size"].iloc[0]
    variant = PREFERRED[0] if PREFERRED[0] in set(runs["variant"]) else runs["variant"].iloc[0]
    finished = runs[(runs["size"] == size) & (runs["variant"] == variant) & ~runs["diverged"]]
    names = ", ".join(f"`{size}-{gamma}-{variant}`" for gamma in GRID if gamma not in set(finished["gamma"]))
    return (
        "There is no sweep yet: no size and variant has finished runs with three values of γ. Add those of "
        f"{names} that are missing to `runs` in `params.yaml`, with a learning rate for each new γ in "
        "`train.peak_lrs`; then `make repro` trains what is new."
    )


@dataclass(frozen=True)
class Optimum:
    """The lowest point of the parabola through the lowest loss and its two neighbours.

    The standard deviation of a start is fan_in^(-gamma), so a parabola in gamma is one in its logarithm too.
    """

    gamma: Interval
    loss: float  # at the optimum, nats per token
    curvature: float  # half the second derivative, nats per token
    near: tuple[float, float]  # where the parabola's loss is within FLAT of its lowest, cut to the three points
    seeds: Interval | None  # of the optima of seeds that have a sweep of their own

    def curve(self, gamma: np.ndarray) -> np.ndarray:
        """The parabola's loss."""
        return self.loss + self.curvature * (gamma - self.gamma.value) ** 2


def parabola(gammas: np.ndarray, losses: np.ndarray) -> tuple[float, float, float] | None:
    """Vertex (gamma, loss) and curvature through the lowest point and its neighbours; None if it is at an end."""
    lowest = int(np.argmin(losses))
    if lowest in (0, len(gammas) - 1):
        return None
    near = slice(lowest - 1, lowest + 2)
    curvature, slope, level = np.polyfit(gammas[near] - gammas[lowest], losses[near], 2)
    shift = -slope / (2 * curvature)
    return float(gammas[lowest] + shift), float(level + slope * shift / 2), float(curvature)


def best_gamma(gammas: np.ndarray, losses: np.ndarray) -> float:
    """The gamma of the parabola's vertex, or the end of the sweep at which the loss is lowest."""
    found = parabola(gammas, losses)
    return float(gammas[np.argmin(losses)]) if found is None else found[0]


def optimum(sweep: Sweep, results: Results, config: AnalysisConfig) -> Optimum | Refusal:
    """The best gamma with its interval over held-out documents, chosen and fitted again on each resample."""
    gammas, losses = sweep.gammas, sweep.runs["loss"].to_numpy(dtype=float)
    found = parabola(gammas, losses)
    if found is None:
        end = sweep.lowest["gamma"]
        step = 0.25 if end == gammas[-1] else -0.25
        return Refusal(
            f"the loss is lowest at γ = {end:g}, the end of the sweep, so the best γ may lie beyond: add "
            f"{sweep.size}-{end + step}-{sweep.variant} to `runs` in params.yaml"
        )
    best, loss, curvature = found
    samples = resampled_losses(results.documents, sweep.runs["run"].tolist(), config)
    interval = percentile(best, np.array([best_gamma(gammas, sample) for sample in samples]), config)
    lowest = int(np.argmin(losses))
    half = (FLAT / curvature) ** 0.5
    near = max(best - half, gammas[lowest - 1]), min(best + half, gammas[lowest + 1])
    whole = [group for _, group in sweep.others.groupby("seed") if len(group) >= 3]
    optima = [best_gamma(group["gamma"].to_numpy(), group["loss"].to_numpy()) for group in whole]
    return Optimum(interval, loss, curvature, near, over_seeds([best, *optima], config.confidence))


def difference(sweep: Sweep, gamma: float, other: float, results: Results, config: AnalysisConfig) -> Interval | None:
    """Loss at gamma minus loss at another one, over the same documents; None if there is no such run."""
    a, b = sweep.run(gamma), sweep.run(other)
    return loss_contrast(results.documents, {a: 1, b: -1}, config) if a and b and a != b else None


def least(intervals: Sequence[Interval]) -> Interval | None:
    """The smallest of several effects, lower and upper bounds taken apart; above zero only if all are."""
    if not intervals:
        return None
    value, low, high = (min(getattr(each, key) for each in intervals) for key in ("value", "low", "high"))
    return Interval(value, low, high, intervals[0].units)


def best_is_one(arms: Arms) -> dict[str, Interval | None]:
    """Claim C6 as effects: how far the loss of the best gamma below 1, and of the best above, exceeds that at 1.

    Both positive: no other gamma is as good, and above 1 it gets worse. Both negative: there are better ones on both
    sides. None where no run on that side, or none at 1, is there. Judged by the first of `find`.
    """
    results, config = arms.results, arms.config
    effects: dict[str, Interval | None] = {"each γ < 1 is worse": None, "each γ > 1 is worse": None}
    for sweep in find(results)[:1]:
        sides = (sweep.gammas[sweep.gammas < SMALL], sweep.gammas[sweep.gammas > SMALL])
        for name, side in zip(effects, sides, strict=True):
            found = [difference(sweep, float(gamma), SMALL, results, config) for gamma in side]
            effects[name] = least([each for each in found if each is not None])
    return effects


def luck(arms: Arms) -> float | None:
    """As far as two seeds at one gamma differ, in the sweep by which the claim is judged or, if it has one seed, in the
    arms nearest to it; None without a sweep or any second seed.
    """
    for sweep in find(arms.results)[:1]:
        return arms.loss_null.reach({"size": [sweep.size], "variant": [sweep.variant]})
    return None


def table(sweep: Sweep, results: Results, config: AnalysisConfig) -> pd.DataFrame:
    """One row a gamma: learning rate, loss, and by how much the loss is above that at gamma = 1, with its interval."""
    rows = []
    for run in sweep.runs.to_dict("records"):
        more = difference(sweep, run["gamma"], SMALL, results, config)
        same = sweep.others[sweep.others["gamma"] == run["gamma"]]
        rows.append(
            {
                **{"size": sweep.size, "variant": sweep.variant, "γ": run["gamma"], "learning rate": run["peak_lr"]},
                **{"loss": f"{run['loss']:.3f}", "bits/byte": f"{run['bits_per_byte']:.3f}"},
                **{"loss above γ=1": "–" if more is None else str(more), "seeds": 1 + len(same)},
            }
        )
    for gamma in sweep.diverged:
        rows.append({"size": sweep.size, "variant": sweep.variant, "γ": gamma, "loss": "diverged"})
    return pd.DataFrame(rows)


def seed_spread(sweep: Sweep) -> float | None:
    """The largest difference in loss (nats per token) between seeds at one gamma; None with one seed everywhere."""
    both = pd.concat([sweep.runs, sweep.others]).groupby("gamma")["loss"]
    spread = (both.max() - both.min())[both.size() > 1]
    return None if spread.empty else float(spread.max())


def sentence(sweep: Sweep, best: Optimum | Refusal) -> str:
    """Where the loss is lowest, how flat it is there, and what seeds say, in Markdown."""
    if isinstance(best, Refusal):
        return f"* **{sweep}**: {best}."
    gamma = best.gamma
    text = (
        f"* **{sweep}**: the loss is lowest at γ = {gamma.value:.2f} [{gamma.low:.2f}, {gamma.high:.2f}] (over "
        f"documents), and within {FLAT:g} nats of that for γ from {best.near[0]:.2f} to {best.near[1]:.2f}."
    )
    if best.seeds is not None:
        text += f" Over seeds, the best γ is {best.seeds.value:.2f} [{best.seeds.low:.2f}, {best.seeds.high:.2f}]."
    spread = seed_spread(sweep)
    if spread is None:
        return f"{text} There is one seed: how far luck moves these losses is not known."
    return f"{text} Seeds at one γ differ by up to {spread:.3f} nats; smaller differences between γ may be luck."


def effects(arms: Arms) -> str:
    """The effects of `best_is_one`, or that they could not be measured, in Markdown."""
    unknown, null = "could not be measured: needs finished runs on this side and at γ = 1", luck(arms)
    lines = [f"* {name}: {unknown if each is None else each}" for name, each in best_is_one(arms).items()]
    return "\n".join(lines + ([] if null is None else [f"* null, two seeds at one γ: up to {null:.3f}"]))
