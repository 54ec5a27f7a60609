"""Controls: what else than the initialization could make the difference, and how much of it is luck."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from smallinit.analysis.claim_needs import BOTH
from smallinit.analysis.confounds import UNDECAYED
from smallinit.analysis.ladder import BASE, SMALL, Arms
from smallinit.analysis.nulls import pairs
from smallinit.analysis.statistics import Interval, loss_contrast, over_seeds

LADDER = ("standard", "eps", "gate", "both")
REFERENCES = ("standard", "both")  # of the same size and gamma, beside which every control is put
GPT2, LITERAL = "gpt2", "literal"


# ------------------------------------------------------------------------------------------------------- all controls
def control_table(arms: Arms) -> pd.DataFrame:
    """One row a run outside the ladder: by how much its loss exceeds that of `standard` and of `both`, same gamma.

    Columns: run, γ, learning rate, loss, and for each reference the difference with its interval over documents, in
    words; a dash where one of the two is missing or diverged.
    """
    runs = arms.results.runs
    usual = runs["variant"].isin(LADDER) & (runs["seed"] == runs["seed"].iloc[0])
    rows = []
    for run in runs[~usual].to_dict("records"):
        lost = bool(run["diverged"])
        row = {"run": run["run"], "γ": run["gamma"], "learning rate": run["peak_lr"]}
        row["loss"] = "diverged" if lost else f"{run['loss']:.3f}"
        for variant in REFERENCES:
            other = arms.run(run["size"], run["gamma"], variant)
            known = not lost and other is not None
            row[f"minus {variant}"] = str(contrast(arms, run["run"], str(other))) if known else "–"
        rows.append(row)
    return pd.DataFrame(rows, columns=["run", "γ", "learning rate", "loss", *(f"minus {each}" for each in REFERENCES)])


def contrast(arms: Arms, a: str, b: str) -> Interval:
    """Loss of run a minus that of run b (nats per token), over the documents of both."""
    return loss_contrast(arms.results.documents, {a: 1, b: -1}, arms.config)


# -------------------------------------------------------------------------------------------------------------- seeds
def seed_gains(arms: Arms) -> pd.DataFrame:
    """Gain of gamma = 1 for each seed that has both arms: size, variant, seed, gain, low, high (over documents).

    Only sizes and variants with two seeds or more.
    """
    rows = []
    for size in arms.sizes():
        for variant in arms.results.runs["variant"].unique():
            seeds = arms.seeds(size, variant)
            for seed in seeds if len(seeds) > 1 else []:
                base, small = (str(arms.run(size, gamma, variant, seed)) for gamma in (BASE, SMALL))
                gain = contrast(arms, base, small)
                rows.append([size, variant, seed, gain.value, gain.low, gain.high])
    return pd.DataFrame(rows, columns=["size", "variant", "seed", "gain", "low", "high"])


def seed_nulls(arms: Arms) -> pd.DataFrame:
    """Differences in loss between two seeds of the same arm, where there is no effect to find.

    Columns: size, variant, gamma, a, b (seeds), difference, low, high (over documents), found (the interval leaves
    zero out, though nothing but the seed differs).
    """
    columns = ["size", "variant", "gamma", "a", "b", "difference", "low", "high", "found"]
    runs, rows = arms.results.runs, []
    for a, b in pairs(runs[~runs["diverged"]]):
        null = contrast(arms, a["run"], b["run"])
        found = [null.value, null.low, null.high, null.sign != 0]
        rows.append([a["size"], a["variant"], a["gamma"], a["seed"], b["seed"], *found])
    return pd.DataFrame(rows, columns=columns)


def seed_table(arms: Arms) -> pd.DataFrame:
    """The two kinds of uncertainty side by side, a row a size and variant with several seeds.

    Columns: size, variant, seeds, sd γ=0.5 and sd γ=1 (of the loss between seeds), gain of the first seed with its
    interval over documents, mean gain with Student's interval over seeds.
    """
    runs, rows = arms.results.runs, []
    for (size, variant), group in seed_gains(arms).groupby(["size", "variant"], sort=False):
        row = {"size": size, "variant": variant, "seeds": len(group)}
        for gamma in (BASE, SMALL):
            arm = runs[(runs["size"] == size) & (runs["variant"] == variant) & (runs["gamma"] == gamma)]
            row[f"sd γ={gamma:g}"] = float(arm.loc[~arm["diverged"], "loss"].std())
        first = group.iloc[0]
        row["first seed, over documents"] = str(Interval(first["gain"], first["low"], first["high"], "documents"))
        row["mean, over seeds"] = str(over_seeds(group["gain"].tolist(), arms.config.confidence))
        rows.append(row)
    return pd.DataFrame(rows)


def nulls_text(nulls: pd.DataFrame, gains: pd.DataFrame) -> str:
    """How often documents alone would have claimed an effect between seeds, and how large it was; Markdown."""
    if nulls.empty:
        return "No arm has two seeds, so how much of a difference is luck is not known."
    text = (
        f"Of {len(nulls)} differences between two seeds of the same arm, {nulls['found'].sum()} have an interval over "
        f"documents that leaves zero out, though nothing but the seed differs. The largest is "
        f"{nulls['difference'].abs().max():.3f} nats"
    )
    return text + (f", the smallest gain of any seed {gains['gain'].min():+.3f}." if len(gains) else ".")


# -------------------------------------------------------------------------------------------------- GPT-2's baseline
def beside_gpt2(arms: Arms) -> pd.DataFrame:
    """By how much the arms' losses exceed that of GPT-2's initialization: size, variant, gamma, value, low, high."""
    runs, rows = arms.results.runs, []
    for baseline in runs[(runs["variant"] == GPT2) & ~runs["diverged"]].to_dict("records"):
        for variant in REFERENCES:
            for gamma in (BASE, SMALL):
                run = arms.run(baseline["size"], gamma, variant)
                if run is not None:
                    more = contrast(arms, run, baseline["run"])
                    rows.append([baseline["size"], variant, gamma, more.value, more.low, more.high])
    return pd.DataFrame(rows, columns=["size", "variant", "gamma", "value", "low", "high"])


# -------------------------------------------------------------------------------------------------------- literal eps
def literal_gains(arms: Arms) -> pd.DataFrame:
    """Gain of gamma = 1 under three eps, without a gate: size, variant, eps (at γ = 1), attenuation, gain, low, high.

    `attenuation` is of the first norm at the start of the gamma = 1 run, 1 / sqrt(1 + eps d^2); 1 is fully normalised.
    """
    rows = []
    for size in arms.sizes():
        for variant in ("standard", LITERAL, "eps"):
            gain, run = arms.gain(size, variant), arms.run(size, SMALL, variant)
            if gain is not None and arms.gain(size, LITERAL) is not None:
                own = arms.results.runs.set_index("run").loc[str(run)]
                left = (1 + own["norm_eps"] * own["d_model"] ** 2) ** -0.5
                rows.append([size, variant, own["norm_eps"], left, gain.value, gain.low, gain.high])
    return pd.DataFrame(rows, columns=["size", "variant", "eps", "attenuation", "gain", "low", "high"])


# ------------------------------------------------------------------------------------------------------- weight decay
def shrinkage(runs: pd.DataFrame, curves: pd.DataFrame, decay: Mapping[str, float]) -> pd.DataFrame:
    """What decoupled weight decay alone leaves of a weight that gets no gradient, over training.

    AdamW multiplies a weight by 1 - rate x decay each step, so after t steps exp(-decay x sum of rates) is left. The
    rates are logged every few steps; between these they are joined by lines.

    Args:
        decay: a run's weight decay, by its name.

    Returns:
        Columns run, gamma, variant, tokens, left.
    """
    tables = []
    for run in runs.to_dict("records"):
        curve = curves[curves["run"] == run["run"]].sort_values("step")
        steps = np.concatenate([[0], curve["step"]])
        rates = np.concatenate([[0], curve["learning_rate"]])
        total = np.cumsum(np.diff(steps) * (rates[1:] + rates[:-1]) / 2)
        tables.append(
            pd.DataFrame({"tokens": curve["tokens"], "left": np.exp(-decay[run["run"]] * total)}).assign(
                run=run["run"], gamma=run["gamma"], variant=run["variant"]
            )
        )
    return pd.concat(tables, ignore_index=True)


def undecayed_text(arms: Arms) -> str:
    """The gain of gamma = 1 without weight decay beside that with it, Markdown: a line a size."""
    lines, usual = [], BOTH
    for size in arms.sizes():
        without, decayed = arms.gain(size, UNDECAYED), arms.gain(size, usual)
        if without is not None and decayed is not None:
            more = arms.gain_change((size, UNDECAYED), (size, usual))
            lines.append(
                f"* **Size {size}, {usual}**: gain of γ = 1 without weight decay {without} nats per token, with it "
                f"{decayed}; change {more}"
            )
    names = " and ".join(f"`{arms.sizes()[0]}-{gamma}-{UNDECAYED}`" for gamma in (BASE, SMALL))
    return "\n".join(lines) or f"No gain without weight decay: add {names} to `runs` in `params.yaml`."


# ---------------------------------------------------------------------------------------------------------- Adam's eps
def eps_shares(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Share of coordinates that AdamW's own eps damps: run, γ, first, largest and last of those logged."""
    shares = curves.sort_values("step").groupby("run")["adam_eps_share"].agg(["first", "max", "last"])
    table = runs[["run", "gamma"]].merge(shares, left_on="run", right_index=True)
    return table.rename(columns={"gamma": "γ", "max": "largest"})
