"""What the eps of a norm does: on made-up inputs, at the start of our runs, while they train, and to their loss."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from smallinit.analysis import nulls
from smallinit.analysis.ladder import BASE, SMALL, Arms
from smallinit.analysis.statistics import Interval
from smallinit.model import RMSNorm
from smallinit.theory.formulas import PAPER_WIDTHS, USUAL_EPS, attenuation

SATURATED = 0.5**0.5  # the attenuation at which eps equals the mean square; below it, eps outweighs the input
STANDARD, SMALL_EPS_VARIANT, LITERAL = "standard", "eps", "literal"
PAIR = (STANDARD, SMALL_EPS_VARIANT)


# ---------------------------------------------------------------------------------------------------- on made-up inputs
def probe(epsilons: Sequence[float], stds: Sequence[float], d_model: int, tokens: int, seed: int = 0) -> pd.DataFrame:
    """The real `RMSNorm` on Gaussian inputs of each std, and on gradients of RMS 1 that come back through it.

    Returns:
        One row an eps and std: eps, std, output and gradient (RMS, measured), and by formula output_formula and
        gradient_formula. Measured numbers have four digits: the rest depends on how a processor adds up.
    """
    random = np.random.default_rng(seed)
    shape = (tokens, d_model)
    unit, back = (torch.from_numpy(random.standard_normal(shape, dtype=np.float32)) for _ in range(2))
    rows = []
    for eps in epsilons:
        norm = RMSNorm(d_model, eps)
        torch.nn.init.ones_(norm.weight)
        for std in stds:
            x = (unit * std).requires_grad_()
            y = norm(x)
            (gradient,) = torch.autograd.grad(y, x, back)
            output = attenuation(std, eps)
            rows.append([eps, std, _rms(y.detach()), output, _rms(gradient), output / std])
    return pd.DataFrame(rows, columns=["eps", "std", "output", "output_formula", "gradient", "gradient_formula"])


def _rms(x: torch.Tensor) -> float:
    return float(f"{x.double().square().mean().sqrt().item():.4g}")


def rms_bound(d_model: int, tokens: int) -> float:
    """How far a measured RMS after a norm may be from the formula, relatively.

    The mean square of n tokens fluctuates by sqrt(2 / (d n)), so four standard errors of an RMS are 4 / sqrt(2 d n).
    The bend of the formula adds at most 1 / (3 d), the direction along x, which a norm takes out of a gradient,
    1 / (2 d).
    """
    return 4 / float(2 * d_model * tokens) ** 0.5 + 1 / d_model


# ------------------------------------------------------------------------------------------------------------ the start
def paper_sizes() -> pd.DataFrame:
    """What eps = 1e-5 does at the paper's sizes: size, d_model, gamma, ratio (eps over mean square), attenuation."""
    rows = [[name, width, gamma] for gamma in (BASE, SMALL) for name, width in PAPER_WIDTHS.items()]
    table = pd.DataFrame(rows, columns=["size", "d_model", "gamma"]).assign(norm_eps=USUAL_EPS)
    return _with_formula(table)


def _with_formula(table: pd.DataFrame) -> pd.DataFrame:
    """Adds ratio = eps d^(2 gamma) and the attenuation of the first norm that follows from it."""
    ratio = table["norm_eps"] * table["d_model"] ** (2 * table["gamma"])
    return table.assign(ratio=ratio, attenuation=1 / np.sqrt(1 + ratio))


def starts(runs: pd.DataFrame, blocks: pd.DataFrame) -> pd.DataFrame:
    """The first norm of each of these runs before the first step. runs: rows of `Results`, weights by the gamma rule.

    Columns: run, size, gamma, variant, d_model, d_ref, norm_eps, ratio, attenuation (formula, from d and gamma),
    at_d_ref (the same at the width that the size stands for, with eps = 1e-5), measured, from_rms (formula, from the
    measured RMS of the hidden state).
    """
    columns = ["run", "size", "gamma", "variant", "d_model", "d_ref", "norm_eps"]
    ours = _with_formula(runs[columns])
    ours["at_d_ref"] = 1 / np.sqrt(1 + USUAL_EPS * ours["d_ref"] ** (2 * ours["gamma"]))
    first = blocks[(blocks["step"] == 0) & (blocks["layer"] == 0) & (blocks["part"] == "attention")]
    ours = ours.merge(first[["run", "hidden_rms"]].assign(measured=first["attenuation"]), on="run")
    ours["from_rms"] = 1 / np.sqrt(1 + ours["norm_eps"] / ours["hidden_rms"] ** 2)
    return ours.drop(columns="hidden_rms")


# ------------------------------------------------------------------------------------------------------- while training
def releases(blocks: pd.DataFrame) -> pd.DataFrame:
    """When each norm leaves saturation, one row a run and norm.

    Columns: run, layer, part; start, lowest and end, the attenuation at the first step, at its lowest and at the last
    step; released, the first measured step from which on it is never below SATURATED again (0: it never was, missing:
    it still is at the end); share, the same as a share of the training.
    """
    rows = []
    for (run, layer, part), norm in blocks.sort_values("step").groupby(["run", "layer", "part"]):
        values, steps = norm["attenuation"].to_numpy(), norm["step"].to_numpy()
        saturated = np.flatnonzero(values < SATURATED)
        after = saturated[-1] + 1 if len(saturated) else 0
        released = float(steps[after]) if after < len(steps) else None
        share = None if released is None else released / max(steps[-1], 1)
        rows.append([run, layer, part, values[0], values.min(), values[-1], released, share])
    columns = ["run", "layer", "part", "start", "lowest", "end", "released", "share"]
    return pd.DataFrame(rows, columns=columns).astype({"released": float, "share": float})


def norm_name(layer: int, part: str) -> str:
    """A norm in words; blocks are counted from 1."""
    return "the final norm" if part == "final" else f"the {part} norm of block {layer + 1}"


def saturation(runs: pd.DataFrame, released: pd.DataFrame) -> pd.DataFrame:
    """`releases` for people, one row a run, in the order of `runs`.

    Columns: size, γ, variant, norms (how many), saturated at step 0 (how many), first norm at step 0 (attenuation),
    lowest (attenuation of any norm at any step), last to leave (which norm), free from step (of that norm), share of
    training, saturated at the end (how many).
    """
    rows = []
    for row in runs.itertuples():
        norms = released[released["run"] == row.run]
        first = norms.loc[(norms["layer"] == 0) & (norms["part"] == "attention"), "start"]
        entry = {"size": row.size, "γ": row.gamma, "variant": row.variant, "norms": len(norms)}
        entry["saturated at step 0"] = int((norms["start"] < SATURATED).sum())
        entry |= {"first norm at step 0": first.iloc[0], "lowest": norms["lowest"].min()}
        last = norms.loc[norms["released"].fillna(np.inf).idxmax()]
        entry["last to leave"] = "–" if last["released"] == 0 else norm_name(last["layer"], last["part"])
        entry |= {"free from step": last["released"], "share of training": last["share"]}
        rows.append(entry | {"saturated at the end": int((norms["end"] < SATURATED).sum())})
    return pd.DataFrame(rows)


def saturation_text(table: pd.DataFrame) -> str:
    """What the matched eps does to the norms of each size and gamma, Markdown: a line each."""
    lines = []
    for row in table[table["variant"] == STANDARD].to_dict("records"):
        line = f"* **Size {row['size']}, γ = {row['γ']:g}**: "
        if not row["saturated at step 0"] and row["lowest"] >= SATURATED:
            line += f"no norm is ever saturated; the first one passes {row['first norm at step 0']:.1%} at step 0."
        else:
            line += (
                f"{row['saturated at step 0']} of {row['norms']} norms are saturated at step 0, where the first one "
            )
            line += f"passes {row['first norm at step 0']:.0%}; "
            if row["saturated at the end"]:
                count, one = row["saturated at the end"], row["saturated at the end"] == 1
                line += f"{count} still {'is' if one else 'are'} at the end ({'' if one else 'among them '}"
                line += f"{row['last to leave']})."
            else:
                line += (
                    f"none is after step {row['free from step']:.0f}, {row['share of training']:.1%} of the training; "
                )
                line += f"the last to leave is {row['last to leave']}."
        lines.append(line)
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------------- to the loss
CHANGE = "difference of the gains"
EFFECTS = {
    "gain, standard": lambda arms, size: arms.gain(size, STANDARD),
    "gain, ε = 1e-12": lambda arms, size: arms.gain(size, SMALL_EPS_VARIANT),
    CHANGE: lambda arms, size: arms.gain_change((size, SMALL_EPS_VARIANT), (size, STANDARD)),
    "cost of the matched ε at γ = 0.5": lambda arms, size: _cost(arms, size, BASE, STANDARD),
    "cost of the matched ε at γ = 1": lambda arms, size: _cost(arms, size, SMALL, STANDARD),
}
VARIANTS = dict(zip(EFFECTS, ((STANDARD,), (SMALL_EPS_VARIANT,), PAIR, PAIR, PAIR), strict=True))  # that each compares
GAMMAS = dict(zip(EFFECTS, (*3 * ((BASE, SMALL),), (BASE,), (SMALL,)), strict=True))


def _cost(arms: Arms, size: str, gamma: float, variant: str) -> Interval | None:
    """Loss with the variant's eps minus the loss with eps = 1e-12, everything else the same (nats per token)."""
    return arms.contrast({(size, gamma, variant): 1, (size, gamma, SMALL_EPS_VARIANT): -1})


def effects(arms: Arms, sizes: list[str]) -> pd.DataFrame:
    """Each of EFFECTS at each size, in nats per token, with its interval: effect, size, value, low, high, null.

    `null` is the largest difference of two seeds in the same quantity, see `nulls`.
    """
    found = [(name, size, effect(arms, size)) for name, effect in EFFECTS.items() for size in sizes]
    table = _table([(name, size, interval) for name, size, interval in found if interval is not None])
    named = zip(table["effect"], table["size"], strict=True)
    compared = [{"size": [size], "variant": VARIANTS[name], "gamma": GAMMAS[name]} for name, size in named]
    return nulls.beside(table, arms.results, table["effect"] == CHANGE, compared)


def null_text(arms: Arms, table: pd.DataFrame) -> str:
    """How many of the effects exceed what seeds move, Markdown. table: of `effects`."""
    return nulls.text(table, arms.results, table["effect"] == CHANGE, ("gains and costs", "differences of the gains"))


def literal_costs(arms: Arms) -> pd.DataFrame:
    """What eps = 1e-5 costs beside 1e-12, wherever both were run: effect, size, value, low, high, gamma and null."""
    arms_there = [(size, gamma) for size in arms.sizes() for gamma in (BASE, SMALL)]
    costs = [(gamma, size, _cost(arms, size, gamma, LITERAL)) for size, gamma in arms_there]
    known = [(gamma, size, interval) for gamma, size, interval in costs if interval is not None]
    table = _table([(f"cost of ε = 1e-5 at γ = {gamma:g}", size, interval) for gamma, size, interval in known])
    compared = [{"size": [size], "variant": (LITERAL, SMALL_EPS_VARIANT), "gamma": [g]} for g, size, _ in known]
    return arms.loss_null.beside(table.assign(gamma=[gamma for gamma, _, _ in known]), compared)


def _table(found: Sequence[tuple[str, str, Interval]]) -> pd.DataFrame:
    rows = [[name, size, interval.value, interval.low, interval.high] for name, size, interval in found]
    return pd.DataFrame(rows, columns=["effect", "size", "value", "low", "high"])


def effects_text(table: pd.DataFrame) -> str:
    """What the effects say about the claim, Markdown: a line a size. table: of `effects`."""
    lines = []
    for size, group in table.groupby("size", sort=False):
        before, after, change, base, small = group.set_index("effect").loc[list(EFFECTS)].to_dict("records")
        lines.append(
            f"* **Size {size}**: γ = 1 {_wins(before)} under standard settings and {_wins(after)} with ε = 1e-12. "
            f"The change, {_shown(change)} nats, is what the matched ε costs γ = 1, {_shown(small)}, less what it "
            f"costs γ = 0.5, {_shown(base)}."
        )
    return "\n".join(lines)


def _wins(gain: dict[str, float]) -> str:
    result = "wins" if gain["low"] > 0 else "loses" if gain["high"] < 0 else "neither wins nor loses"
    return f"{result} ({_shown(gain)} nats)"


def _shown(effect: dict[str, float]) -> str:
    return str(Interval(effect["value"], effect["low"], effect["high"], "documents"))


def literal_text(costs: pd.DataFrame, standard: pd.DataFrame) -> str:
    """The literal eps beside the matched one, Markdown: a line a run. standard: of `effects`."""
    lines = []
    for row in costs.to_dict("records"):
        line = f"* Size {row['size']}, γ = {row['gamma']:g}: ε = 1e-5 costs {_shown(row)} nats beside ε = 1e-12"
        matched = standard[standard["effect"] == f"cost of the matched ε at γ = {row['gamma']:g}"]
        of_size = matched[matched["size"] == row["size"]].to_dict("records")
        lines.append(line + (f"; the matched ε costs {_shown(of_size[0])}." if of_size else "."))
    return "\n".join(lines)
