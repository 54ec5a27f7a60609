"""How the gain of gamma = 1 depends on how long the models are trained."""

import pandas as pd

from smallinit.analysis.claim_needs import BOTH
from smallinit.analysis.claims import Effect
from smallinit.analysis.confounds import gain_in
from smallinit.analysis.ladder import BASE, SMALL, Arms
from smallinit.analysis.needed import lacking
from smallinit.analysis.statistics import Interval

LONG = "long"  # as `both`, and more tokens: `token_factor` in params.yaml


def gain_when_longer(arms: Arms) -> list[Effect]:
    """Gain of gamma = 1 after the longer training, at each size that has it."""
    return gain_in(arms, LONG)


def lacks_longer(arms: Arms) -> str:
    """What is missing for that."""
    names = " and ".join(f"`{arms.sizes()[-1]}-{gamma}-{LONG}`" for gamma in (BASE, SMALL))
    return f"needs two runs at one size: add {names} to `runs` in params.yaml"


def lengths(arms: Arms) -> list[tuple[str, str]]:
    """Size and variant, `both` or `long`, of every pair of runs that finished; sizes from small to large."""
    return [(size, variant) for size in arms.sizes() for variant in (BOTH, LONG) if not lacking(arms, size, [variant])]


def gains(arms: Arms) -> pd.DataFrame:
    """Gain of gamma = 1 at the end of training, a row for each of `lengths`.

    Columns: size, variant, tokens, gain, low, high (nats per token, over documents), null (the largest difference of
    two seeds).
    """
    tokens, rows = arms.results.runs.set_index("run")["tokens"], []
    for size, variant in lengths(arms):
        gain = arms.gain(size, variant)
        assert gain is not None  # both runs are there
        rows.append([size, variant, tokens[str(arms.run(size, SMALL, variant))], gain.value, gain.low, gain.high])
    return arms.loss_null.beside(pd.DataFrame(rows, columns=["size", "variant", "tokens", "gain", "low", "high"]))


def along(arms: Arms) -> pd.DataFrame:
    """Gain of gamma = 1 during training, at the steps where both models' held-out loss was taken.

    The losses are of the small held-out piece that training looks at, while the learning rate is still on its way.
    Columns: size, variant, step, tokens, gain (nats per token).
    """
    losses, tables = arms.results.heldout, []
    for size, variant in lengths(arms):
        base, small = (
            losses[losses["run"] == arms.run(size, gamma, variant)].set_index("step") for gamma in (BASE, SMALL)
        )
        gain = (base["loss"] - small["loss"]).dropna()
        table = pd.DataFrame({"step": gain.index, "tokens": small.loc[gain.index, "tokens"], "gain": gain})
        tables.append(table.assign(size=size, variant=variant))
    columns = ["size", "variant", "step", "tokens", "gain"]
    return pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)


def pairs(arms: Arms) -> dict[str, pd.DataFrame]:
    """Rows `both` and `long` of `gains`, by variant, for each size that has both; `tokens` in millions."""
    table = gains(arms)
    table = table.assign(tokens=table["tokens"] / 1e6)
    found = {str(size): own.set_index("variant") for size, own in table.groupby("size", sort=False)}
    return {size: own for size, own in found.items() if {BOTH, LONG} <= set(own.index)}


def text(arms: Arms) -> str:
    """What the longer training changes, Markdown: a line a size."""
    lines = []
    for size, row in pairs(arms).items():
        usual, after = (
            Interval(row["gain"][name], row["low"][name], row["high"][name], "documents") for name in (BOTH, LONG)
        )
        change = arms.gain_change((size, LONG), (size, BOTH))
        lines.append(
            f"* **Size {size}**: gain of γ = 1 after {row['tokens'][LONG]:.0f} million tokens {after} nats per token, "
            f"after {row['tokens'][BOTH]:.0f} million {usual}; change {change}"
        )
    return "\n".join(lines) or f"No longer training: {lacks_longer(arms)}."


def sentence(arms: Arms) -> str:
    """The same in one sentence."""
    parts = [
        f"{row['gain'][BOTH]:+.3f} after {row['tokens'][BOTH]:.0f} and {row['gain'][LONG]:+.3f} after "
        f"{row['tokens'][LONG]:.0f} million tokens (size {size})"
        for size, row in pairs(arms).items()
    ]
    if not parts:
        return f"Whether the gain depends on it was not measured: {lacks_longer(arms)}."
    return f"With both interventions the gain of γ = 1 is {'; '.join(parts)}, in nats per token."
