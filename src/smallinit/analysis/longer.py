"""How the gain of gamma = 1 depends on how long the models are trained."""

import pandas as pd

from smallinit.analysis import claims
from smallinit.analysis.claim_needs import BOTH
from smallinit.analysis.claims import Effect
from smallinit.analysis.confounds import having
from smallinit.analysis.ladder import BASE, SMALL, Arms

LONG = "long"  # as `both`, and more tokens: `token_factor` in params.yaml


def gain_when_longer(arms: Arms) -> list[Effect]:
    """Gain of gamma = 1 after the longer training, at each size that has it."""
    return claims.contrasts(arms, {size: claims.gain(size, LONG) for size in having(arms, (LONG,))})


def lacks_longer(arms: Arms) -> str:
    """What is missing for that."""
    names = " and ".join(f"`{arms.sizes()[-1]}-{gamma}-{LONG}`" for gamma in (BASE, SMALL))
    return f"needs two runs at one size: add {names} to `runs` in params.yaml"


def gains(arms: Arms) -> pd.DataFrame:
    """Gain of gamma = 1 at the end of training, a row a size and length of training.

    Columns: size, variant (`both` or `long`), tokens, gain, low, high (nats per token, over documents), null (the
    largest difference of two seeds). Sizes from small to large.
    """
    runs, rows = arms.results.runs.set_index("run"), []
    for size in arms.sizes():
        for variant in (BOTH, LONG):
            gain, run = arms.gain(size, variant), arms.run(size, SMALL, variant)
            if gain is not None:
                rows.append([size, variant, runs.loc[str(run), "tokens"], gain.value, gain.low, gain.high])
    return arms.loss_null.beside(pd.DataFrame(rows, columns=["size", "variant", "tokens", "gain", "low", "high"]))


def along(arms: Arms) -> pd.DataFrame:
    """Gain of gamma = 1 during training, at the steps where both models' held-out loss was taken.

    The losses are of the small held-out piece that training looks at, while the learning rate is still on its way.
    Columns: size, variant, step, tokens, gain (nats per token).
    """
    losses, tables = arms.results.heldout, []
    for row in gains(arms).to_dict("records"):
        base, small = (
            losses[losses["run"] == arms.run(row["size"], gamma, row["variant"])].set_index("step")
            for gamma in (BASE, SMALL)
        )
        gain = (base["loss"] - small["loss"]).dropna()
        table = pd.DataFrame({"step": gain.index, "tokens": small.loc[gain.index, "tokens"], "gain": gain})
        tables.append(table.assign(size=row["size"], variant=row["variant"]))
    columns = ["size", "variant", "step", "tokens", "gain"]
    return pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)


def text(arms: Arms) -> str:
    """What the longer training changes, Markdown: a line a size."""
    lines = []
    for size in having(arms, (BOTH, LONG)):
        usual, longer = arms.gain(size, BOTH), arms.gain(size, LONG)
        change = arms.gain_change((size, LONG), (size, BOTH))
        tokens = gains(arms).query("size == @size").set_index("variant")["tokens"] / 1e6
        lines.append(
            f"* **Size {size}**: gain of γ = 1 after {tokens[LONG]:.0f} million tokens {longer} nats per token, after "
            f"{tokens[BOTH]:.0f} million {usual}; change {change}"
        )
    return "\n".join(lines) or f"No longer training: {lacks_longer(arms)}."
