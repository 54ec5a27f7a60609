"""Attention sink and gate: how a head can be silent, what our heads do in the end, and what a gate gains."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import expit, softmax

from smallinit import paths
from smallinit.analysis import nulls
from smallinit.analysis.claims import Effect
from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.ladder import BASE, SMALL, Arms
from smallinit.analysis.statistics import Interval, bootstrap_ratio
from smallinit.evaluation.attention import uniform_map

PAIRS = {"matched ε": ("standard", "gate"), "ε = 1e-12": ("eps", "both")}  # without the gate, with it
PLAIN, GATED = PAIRS["ε = 1e-12"]  # the pair of which the claim speaks


# ------------------------------------------------------------------------------------------------- how a head is silent
def silence(scores: Sequence[float], lengths: Sequence[int]) -> pd.DataFrame:
    """What is left of a head's output if it wants none: by a sink among n tokens, and by a gate. Both from one score.

    A sink: the first token, which has nothing to say, gets a score this much above the n - 1 others, all equal; what is
    left is the attention on the others. A gate: the sigmoid of minus the score.

    Returns:
        Columns way, tokens (0 for the gate), score, left.
    """
    rows = [["gate", 0, score, float(expit(-score))] for score in scores]
    for tokens in lengths:
        for score in scores:
            attention = softmax([score, *np.zeros(tokens - 1)])
            rows.append([f"sink among {tokens} tokens", tokens, score, float(attention[1:].sum())])
    return pd.DataFrame(rows, columns=["way", "tokens", "score", "left"])


# ------------------------------------------------------------------------------------------------------------ the start
def starts(runs: pd.DataFrame, blocks: pd.DataFrame, uniform: float) -> pd.DataFrame:
    """Sink and gate of every layer before the first step, and how far they may be from uniform and from a half.

    A score has a standard deviation of d^(1 - 2 gamma) at most, and moves the attention of its token by that share.
    The logit of a gate has d^(1/2 - gamma), and the sigmoid a slope of 1/4. Bounds are four of these, generous for
    means over heads, queries and features; they say little at gamma = 0.5, where scores are of size 1.

    Columns: run, gamma, layer, sink, sink_bound (relative to uniform), gate, gate_bound.
    """
    first = blocks[(blocks["step"] == 0) & (blocks["part"] == "attention")]
    table = runs[["run", "gamma", "d_model"]].merge(first[["run", "layer", "sink", "gate"]], on="run")
    table["sink"] = table["sink"] / uniform
    table["sink_bound"] = 4 * table["d_model"] ** (1 - 2 * table["gamma"])
    table["gate_bound"] = table["d_model"] ** (0.5 - table["gamma"])
    return table[["run", "gamma", "layer", "sink", "sink_bound", "gate", "gate_bound"]]


# -------------------------------------------------------------------------------------------------------------- the end
SINK = 0.3  # a head that gives the first token this share counts as a sink (Gu et al., arXiv 2410.10781)


def heads(runs: pd.DataFrame, attention: pd.DataFrame) -> pd.DataFrame:
    """One row a run, layer and head, means over windows: run, size, gamma, variant, layer, head, sink, gate, shut.

    `shut` is the share of gate values below 0.1; gate and shut are empty without a gate.
    """
    means = attention.groupby(["run", "layer", "head"], as_index=False)[["sink", "gate", "gate_below_0.1"]].mean()
    table = runs[["run", "size", "gamma", "variant"]].merge(means, on="run")
    return table.rename(columns={"gate_below_0.1": "shut"})


def sinks(runs: pd.DataFrame, attention: pd.DataFrame, uniform: float, config: AnalysisConfig) -> pd.DataFrame:
    """The sink of each run, with an interval over windows, beside that of uniform attention.

    Columns: size, γ, variant, sink, low, high (means over heads), uniform, strongest head (its sink), where (which
    one), above uniform and sinks (how many heads), heads.
    """
    rows = []
    for row in runs.to_dict("records"):
        of_run = attention[attention["run"] == row["run"]]
        windows = of_run.groupby("window")["sink"].mean().to_numpy()
        mean = bootstrap_ratio(windows, np.ones_like(windows), "windows", config)
        by_head = of_run.groupby(["layer", "head"])["sink"].mean()
        layer, head = by_head.idxmax()
        entry = {"size": row["size"], "γ": row["gamma"], "variant": row["variant"]}
        entry |= {"sink": mean.value, "low": mean.low, "high": mean.high, "uniform": uniform}
        entry |= {"strongest head": by_head.max(), "where": f"block {layer + 1}, head {head + 1}"}
        entry |= {"above uniform": int((by_head > uniform).sum()), "sinks": int((by_head > SINK).sum())}
        rows.append(entry | {"heads": len(by_head)})
    return pd.DataFrame(rows)


def sinks_text(table: pd.DataFrame) -> str:
    """Whether there are sinks, Markdown: a sentence on all runs, and a line a size and gamma. table: of `sinks`."""
    found, total, uniform = int(table["sinks"].sum()), int(table["heads"].sum()), table["uniform"].iloc[0]
    best = table.loc[table["strongest head"].idxmax()]
    lines = [
        f"Of {total} heads in {len(table)} runs {found or 'none'} {'is a sink' if found in (0, 1) else 'are sinks'}, "
        f"by the usual mark of {SINK:.0%}. Uniform attention gives the first token {uniform:.2%}; the strongest head, "
        f"{best['where']} of {best['size']}-{best['γ']}-{best['variant']}, gives it {best['strongest head']:.2%}.",
        "",
    ]
    for (size, gamma), group in table.groupby(["size", "γ"], sort=False):
        shares = [f"{row['sink'] / uniform:.2f} in `{row['variant']}`" for row in group.to_dict("records")]
        lines.append(f"* **Size {size}, γ = {gamma:g}**, mean over heads, in units of uniform: {', '.join(shares)}.")
    return "\n".join(lines)


def sinks_null_text(arms: Arms, parts: Sequence[Effect]) -> str:
    """How many differences of sinks exceed what seeds move, Markdown. parts: of `claims.sink_and_gate`."""
    found = [[part.name.split()[0], part.interval.value, part.null] for part in parts if "sink" in part.name]
    table = pd.DataFrame(found, columns=["size", "value", "null"])
    null = nulls.attention(arms.results, "sink", "shares of the attention")
    return null.text(table, "value", "differences of sinks")


def gates(runs: pd.DataFrame, attention: pd.DataFrame) -> pd.DataFrame:
    """Mean gate and share shut of each layer of the runs that have a gate: size, γ, variant, block, gate, below 0.1."""
    table = heads(runs, attention).dropna(subset=["gate"])
    means = table.groupby(["size", "gamma", "variant", "layer"], sort=False, as_index=False)[["gate", "shut"]].mean()
    means["layer"] += 1
    return means.rename(columns={"gamma": "γ", "layer": "block", "shut": "below 0.1"})


def gates_text(table: pd.DataFrame) -> str:
    """Where the gates are most closed, Markdown: a line a size and variant. table: of `gates`."""
    lines = []
    for (size, variant), group in table.groupby(["size", "variant"], sort=False):
        parts = []
        for gamma, arm in group.groupby("γ"):
            least = arm.loc[arm["gate"].idxmin()]
            shut = f"{arm['below 0.1'].mean():.0%} of its values below 0.1"
            lowest = f"lowest in block {least['block']:.0f}, {least['gate']:.2f}"
            parts.append(f"{arm['gate'].mean():.2f} at γ = {gamma:g} ({shut}; {lowest})")
        lines.append(f"* **Size {size}, `{variant}`**: the mean gate is {', '.join(parts)}.")
    return "\n".join(lines)


def gates_null_text(arms: Arms, table: pd.DataFrame) -> str:
    """How many differences of the mean gate between the gammas exceed what seeds move, Markdown. table: of `gates`."""
    means = table.groupby(["size", "variant", "γ"], sort=False)["gate"].mean().unstack("γ")
    more = (means.reindex(columns=[SMALL])[SMALL] - means.reindex(columns=[BASE])[BASE]).rename("value").reset_index()
    null = nulls.attention(arms.results, "gate", "units of the gate")
    compared = [{"size": [row["size"]], "variant": [row["variant"]]} for row in more.to_dict("records")]
    return null.text(null.beside(more, compared), "value", "differences of the mean gate between the γ")


# ------------------------------------------------------------------------------------------------------------- the maps
def read_maps(run: str) -> np.ndarray | None:
    """The attention maps (L, H, C, columns) of a run, as `evaluation.attention.maps` made them; None if it has none."""
    path = paths.RESULTS / "evaluate" / run / "attention_maps.npy"
    if not path.exists():
        return None
    maps: np.ndarray = np.load(path).astype(np.float64)
    return maps if maps.size else None


def strongest(maps: np.ndarray, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each layer, the head that gives the first token most: (L,) its number, (L, C, columns) its map over uniform.

    1 is what uniform attention gives; cells of the future are nan.
    """
    sink = maps[:, :, maps.shape[2] // 2 :, 0].mean(axis=-1)  # (L, H)
    head = sink.argmax(axis=1)
    uniform = uniform_map(seq_len)
    ratio = maps[np.arange(len(maps)), head] / np.where(uniform > 0, uniform, np.nan)
    return head, ratio


# ------------------------------------------------------------------------------------------------------------- the loss
MORE = "difference"  # of the gains of the gate at the two gammas


def effects(arms: Arms) -> pd.DataFrame:
    """What the gate gains, wherever both runs are there: loss without it minus loss with it (nats per token).

    Columns: eps (a key of PAIRS), size, arm (γ = 0.5, γ = 1, or their difference: how much more at γ = 1), value, low,
    high, null (the largest difference of two seeds in the same quantity, see `nulls`).
    """
    rows, compared = [], []
    for eps, (plain, gated) in PAIRS.items():
        for size in arms.sizes():
            base, small = ({(size, gamma, plain): 1.0, (size, gamma, gated): -1.0} for gamma in (BASE, SMALL))
            more = small | {arm: -weight for arm, weight in base.items()}
            for arm, weights in (("γ = 0.5", base), ("γ = 1", small), (MORE, more)):
                interval = arms.contrast(weights)
                if interval is not None:
                    rows.append([eps, size, arm, interval.value, interval.low, interval.high])
                    gammas = {gamma for _, gamma, _ in weights}
                    compared.append({"size": [size], "variant": (plain, gated), "gamma": gammas})
    table = pd.DataFrame(rows, columns=["eps", "size", "arm", "value", "low", "high"])
    return nulls.beside(table, arms.results, table["arm"] == MORE, compared)


def effects_null_text(arms: Arms, table: pd.DataFrame) -> str:
    """How many of the effects exceed what seeds move, Markdown. table: of `effects`."""
    names = ("gains of the gate", "differences between the γ")
    return nulls.text(table, arms.results, table["arm"] == MORE, names)


def effects_text(table: pd.DataFrame) -> str:
    """What the gate gains, Markdown: a line a size and eps. table: of `effects`."""
    lines = []
    for (eps, size), group in table.groupby(["eps", "size"], sort=False):
        gains = [f"{row['arm']}: {_shown(row)}" for row in group.to_dict("records") if row["arm"] != MORE]
        line = f"* **Size {size}, {eps}**: the gate lowers the loss by ({'; '.join(gains)}) nats"
        more = group[group["arm"] == MORE].to_dict("records")
        if more:
            sign = 1 if more[0]["low"] > 0 else -1 if more[0]["high"] < 0 else 0
            line += f", {({1: 'more', -1: 'less', 0: 'neither more nor less'})[sign]} at γ = 1 ({_shown(more[0])})"
        lines.append(line + ".")
    return "\n".join(lines)


def _shown(effect: dict[str, float]) -> str:
    return str(Interval(effect["value"], effect["low"], effect["high"], "documents"))
