"""From the pilot to the rates of all runs: a rate for each width, and the block of `train.peak_lrs` that says so."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from smallinit.analysis.rates import at_main_batch, common_power, main_batch, powers, stands_for
from smallinit.analysis.variants import SHARED
from smallinit.config import RunConfig

NEAR = 1.3  # factor between a run's rate and the pilot's that rounding may explain, and that hardly costs any loss
COLUMNS = ["run", "size", "d_model", "gamma", "variant", "arm", "how", "pilot", "factor", "peak_lr", "ratio", "at_end"]


@dataclass(frozen=True)
class Law:
    """The best peak learning rate of an arm at any width."""

    gamma: float
    variant: str
    d_model: int  # the smallest width tried
    rate: float  # at that width
    power: float | None  # of the width, from two of them; None: there is only one
    common: float | None  # the power of all arms together, for wider models than those tried; None: no arm has any
    widest: int  # the largest width tried
    measured: dict[str, float]  # best rates by size, from the smallest width to the largest
    at_end: bool  # one of them is that of the lowest trial only

    def at(self, size: str, d_model: int) -> tuple[float, str]:
        """The rate at a size, and where it comes from."""
        if size in self.measured:
            return self.measured[size], "measured"
        if self.power is not None and d_model < self.widest:
            return self.rate * (d_model / self.d_model) ** self.power, "own power of the width"
        rate = list(self.measured.values())[-1]
        if self.common is None:
            return rate, f"as at d = {self.widest}"
        return rate * (d_model / self.widest) ** self.common, f"common power of the width, from d = {self.widest}"


def laws(best: pd.DataFrame) -> dict[tuple[float, str], Law]:
    """What the pilot says about each gamma and variant that was tried. best: of `rates.best_table`.

    An arm tried at two widths has a power law of its own, which holds between them. Beyond the widest a line through
    two noisy points is no guide, and an arm tried at one width has none: both go on from there by the common power.
    """
    own = powers(best)
    common = common_power(own)
    own = own.set_index(["gamma", "variant"])["power"]
    found = {}
    tried = at_main_batch(best).dropna(subset="rate")
    for key, arm in tried.sort_values("d_model", kind="stable").groupby(["gamma", "variant"], sort=False):
        first = arm.iloc[0]
        found[key] = Law(
            *(float(first["gamma"]), str(first["variant"]), int(first["d_model"]), float(first["rate"])),
            power=float(own[key]) if key in own.index else None,
            common=common,
            widest=int(arm["d_model"].max()),
            measured=dict(zip(arm["size"], arm["rate"].astype(float), strict=True)),
            at_end=bool(arm["at_end"].any()),
        )
    return found


def transfer(best: pd.DataFrame, runs: Sequence[RunConfig], factors: Mapping[str, float] | None = None) -> pd.DataFrame:
    """The rate of each run beside the one that follows from the pilot.

    Args:
        best: of `rates.best_table`.
        runs: of the plan; of several seeds only the first is listed.
        factors: variants whose rate is this many times too high on purpose; `ratio` leaves the factor out.

    Returns:
        COLUMNS; `arm` stands for the run, `how` says by which rule its rate holds at this width, `pilot` is that rate,
        `ratio` the run's rate over it. Missing where no arm stands for a run.
    """
    known, rows = laws(best), []
    first: dict[tuple[str, float, str], RunConfig] = {}
    for run in runs:
        first.setdefault((run.size, run.gamma, run.variant), run)
    for run in first.values():
        factor, width, actual = (factors or {}).get(run.variant, 1.0), run.model.d_model, run.train.peak_lr
        same = [run.run, run.size, width, run.gamma, run.variant]
        arm = stands_for(run.variant, run.gamma, set(known))
        if arm is None:
            rows.append([*same, None, None, np.nan, factor, actual, np.nan, False])
            continue
        law = known[run.gamma, arm]
        rate, how = law.at(run.size, width)
        rows.append([*same, f"{run.gamma:g} {arm}", how, rate, factor, actual, actual / factor / rate, law.at_end])
    return pd.DataFrame(rows, columns=COLUMNS)


def transfer_text(table: pd.DataFrame) -> str:
    """Whether all runs train at the pilot's rates, else which do not and what to put there; Markdown."""
    judged = table[(table["factor"] == 1) & table["arm"].notna()]
    off = judged[np.abs(np.log(judged["ratio"])) > np.log(NEAR)]
    lines = [
        f"Of {len(judged)} arms of the plan, {len(judged) - len(off)} train at a rate within a factor {NEAR:g} of the "
        + ("pilot's." if off.empty else "pilot's. In `train.peak_lrs` in `params.yaml` these need another:\n")
    ]
    for row in off.to_dict("records"):
        lines.append(
            f"* `{row['run']}` has {row['peak_lr']:.2g}, put {row['pilot']:.2g} (arm {row['arm']}, {row['how']})"
        )
    if len(without := table[table["arm"].isna()]):
        lines.append(f"\nNo arm of the pilot stands for {', '.join(f'`{run}`' for run in without['run'])}.")
    if len(exempt := table[table["factor"] != 1]):
        lines.append(f"\nAt another rate on purpose: {', '.join(f'`{run}`' for run in exempt['run'])}.")
    return "\n".join(lines)


def other_batches(best: pd.DataFrame, runs: Sequence[RunConfig]) -> str:
    """A warning if runs take other steps than the pilot did, else nothing; Markdown."""
    batch = main_batch(best)
    others = sorted({run.train.batch_tokens for run in runs} - {batch})
    named = ", ".join(f"{other:,}" for other in others)
    return f"The pilot took {batch:,} tokens a step, runs of the plan take {named}: rates may differ." if others else ""


# ------------------------------------------------------------------------------------------------------- params.yaml
def peak_lrs_yaml(
    best: pd.DataFrame, variants: Collection[str] | None = None, widths: Mapping[str, int] | None = None
) -> str:
    """The block `train.peak_lrs` of `params.yaml` that follows from the pilot.

    Args:
        best: of `rates.best_table`.
        variants: those that `params.yaml` defines; None: those tried and all that an arm can stand for.
        widths: d_model of the sizes that runs have; those wider than all tried get entries of their own.
    """
    known = laws(best)
    names = list(dict.fromkeys([*(variant for _, variant in known), *SHARED, "standard", "gate"]))
    lines = ["  peak_lrs:"]
    for (gamma, arm), law in sorted(known.items(), key=lambda item: item[0][0]):
        own = [name for name in names if stands_for(name, gamma, set(known)) == arm and name in (variants or names)]
        if not own:
            continue
        head = f"gamma: {gamma}, variants: [{', '.join(own)}],"
        wider = {size: d for size, d in (widths or {}).items() if law.power is not None and d > law.widest}
        apart = {size: law.measured[size] for size in list(law.measured)[1:-1]}  # its power goes through the outer two
        apart |= {size: law.at(size, d)[0] for size, d in wider.items()}
        for size, rate in apart.items():
            lines.append(entry(head, f"size: {size}, peak_lr: {scientific(rate)}"))
        power = law.common if law.power is None else law.power
        at_others = "" if power is None else f", d_model: {law.d_model}, width_power: {round(power, 2) + 0.0}"
        lines.append(entry(head, f"peak_lr: {scientific(law.rate)}{at_others}"))
    return "\n".join(lines)


def entry(head: str, rest: str) -> str:
    """An entry of the list, on two lines if it is long."""
    between = " " if len(head) + len(rest) < 110 else "\n       "
    return f"    - {{{head}{between}{rest}}}"


def scientific(rate: float) -> str:
    """A rate to two digits as YAML writes it, for instance 3.1e-3."""
    digits, exponent = f"{rate:.1e}".split("e")
    return f"{digits}e{int(exponent)}"
