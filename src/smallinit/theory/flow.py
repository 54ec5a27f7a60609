"""Residual flow and attenuation measured on the real modules at their initial weights: no training, no data.

Weights are drawn once for each width and seed and rescaled for each gamma: with gamma only their std changes.
"""

from collections.abc import Iterator

import pandas as pd
import torch
from torch import Tensor, nn

from smallinit.analysis.statistics import over_seeds
from smallinit.config import ModelConfig
from smallinit.init import Start, initialize
from smallinit.model import Block, Decoder, RMSNorm
from smallinit.theory import formulas
from smallinit.theory.config import TheoryConfig
from smallinit.theory.formulas import SMALL_EPS

MLPS = ("gelu", "swiglu")
PARTS = ("attention", *MLPS)
DRAWN_AT = 1.0  # the gamma at which weights are drawn


def model_config(d_model: int, mlp: str = "swiglu", n_layers: int = 1) -> ModelConfig:
    """A model of the usual proportions: heads of 32, d_ff = 8/3 d (SwiGLU) or 4 d (GELU), the smallest vocabulary."""
    d_ff = 8 * d_model // 3 if mlp == "swiglu" else 4 * d_model
    shape = {
        "d_model": d_model,
        "n_layers": n_layers,
        "n_heads": d_model // 32,
        "n_kv_heads": d_model // 32,
        "d_ff": d_ff,
    }
    choices = {"norm": "rmsnorm", "norm_eps": SMALL_EPS, "gate": "none", "mlp": mlp, "tied_head": False, "moe": None}
    return ModelConfig.model_validate({"vocab_size": 257, "seq_len": 257, "rope_theta": 10000.0, **shape, **choices})


def drawn(config: ModelConfig, seed: int) -> tuple[Decoder, list[Start]]:
    """A decoder with the weights of gamma = DRAWN_AT, and what each started from."""
    model = Decoder(config)
    return model.eval(), initialize(model, DRAWN_AT, seed)


@torch.no_grad()
def rescale(model: nn.Module, starts: list[Start], before: float, after: float) -> None:
    """Turn the initial weights of one gamma into those of another, up to rounding: std is fan_in^(-gamma)."""
    parameters = dict(model.named_parameters())
    for start in starts:
        if start.constant is None:
            parameters[start.name].mul_(start.fan_in ** (before - after))


def at_gammas(config: ModelConfig, seed: int, gammas: list[float]) -> Iterator[tuple[float, Decoder]]:
    """One draw of the model at each gamma in turn; do not keep it, it changes in place."""
    model, starts = drawn(config, seed)
    before = DRAWN_AT
    for gamma in gammas:
        rescale(model, starts, before, gamma)
        before = gamma
        yield gamma, model


def rounded(table: pd.DataFrame) -> pd.DataFrame:
    """Measured numbers to four digits: how sums round, which differs between processors, is far below."""
    return table.map(lambda value: float(f"{value:.4g}") if isinstance(value, float) else value)


def rms(x: Tensor) -> float:
    """Root of the mean square over all entries."""
    return x.double().square().mean().sqrt().item()


@torch.no_grad()
def sublayers(model: Decoder, ids: Tensor) -> Iterator[tuple[int, str, Tensor, Tensor]]:
    """For every sublayer in order: layer, part, the stream and what the part adds to it, (B, T, d). ids: (B, T)."""
    rotary = model.rotary(ids)
    stream = model.embed(ids)
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        update = block.attention(block.attention_norm(stream), *rotary)
        yield layer, "attention", stream, update
        stream = stream + update
        update = block.ffn(block.ffn_norm(stream))
        yield layer, model.config.mlp, stream, update
        stream = stream + update


def flows(config: TheoryConfig) -> pd.DataFrame:
    """Residual flow of the first block, one row a seed, width, gamma and part, beside the formula.

    Each token is a sequence of its own: a first token attends to itself, so attention is W_o W_v and nothing else.
    """
    ids = torch.arange(config.tokens)[:, None]  # (B, 1)
    rows = []
    for width in config.widths:
        for mlp in MLPS:
            shape = model_config(width, mlp)
            for seed in range(config.seeds):
                for gamma, model in at_gammas(shape, seed, config.gammas):
                    embedding = rms(model.embed.weight[: config.tokens].detach())
                    for _, part, _, update in sublayers(model, ids):
                        if part == "attention" and mlp != MLPS[0]:
                            continue  # the same draw again
                        formula = formulas.flow(part, width, gamma, shape.d_ff)
                        row = {"seed": seed, "d_model": width, "gamma": gamma, "part": part}
                        rows.append(row | {"flow": rms(update) / embedding, "formula": formula})
    return rounded(pd.DataFrame(rows))


def exponents(table: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """The power of d that flows follow, one row a part and gamma.

    Columns: `asymptotic` of wide models; `formula` the slope of the exact formula over these very widths; `measured`
    with its interval over seeds, `low` to `high`.
    """
    rows = []
    for (part, gamma), group in table.groupby(["part", "gamma"]):
        slopes = [formulas.slope(list(seed["d_model"]), list(seed["flow"])) for _, seed in group.groupby("seed")]
        first = group[group["seed"] == 0]
        interval = over_seeds(slopes, confidence)
        assert interval is not None  # the configuration has at least two seeds
        row = {"part": part, "gamma": gamma, "asymptotic": formulas.flow_exponent(str(part), float(gamma))}
        row["formula"] = formulas.slope(list(first["d_model"]), list(first["formula"]))
        rows.append(row | {"measured": interval.value, "low": interval.low, "high": interval.high})
    return pd.DataFrame(rows)


def through_depth(d_model: int, n_layers: int, gammas: list[float], tokens: int, mlp: str) -> pd.DataFrame:
    """Update over the stream it is added to, for every sublayer of a deep model, measured and by formula.

    The formula adds up squares: a stream has the mean square of the embedding and of all updates before it.
    """
    shape = model_config(d_model, mlp, n_layers)
    ids = torch.arange(tokens)[:, None]
    rows = []
    for gamma, model in at_gammas(shape, 0, gammas):
        square = d_model ** (-2 * gamma)  # of the stream
        for number, (layer, part, stream, update) in enumerate(sublayers(model, ids)):
            predicted = formulas.flow(part, d_model, gamma, shape.d_ff) * d_model**-gamma
            row = {"gamma": gamma, "sublayer": number + 1, "layer": layer, "part": part}
            rows.append(row | {"ratio": rms(update) / rms(stream), "formula": predicted / square**0.5})
            square += predicted**2
    return rounded(pd.DataFrame(rows))


def averaging(widths: list[int], gammas: list[float], length: int, seeds: int) -> pd.DataFrame:
    """What averaging over earlier tokens does to attention's update: one row a width, gamma and first or last token.

    Columns: `flow` as above; `attended` how many tokens share the attention, 1 / sum_j A_tj^2 (mean over heads of the
    sum); `formula` the flow of a first token over the root of that number. All are means over seeds.
    """
    rows = []
    for width in widths:
        for seed in range(seeds):
            order = torch.stack([torch.randperm(257, generator=torch.Generator().manual_seed(n)) for n in range(16)])
            ids = order[:, :length]  # (B, T), different tokens within a sequence
            for gamma, model in at_gammas(model_config(width), seed, gammas):
                _, _, stream, update = next(sublayers(model, ids))
                shares = attention_shares(model, ids)
                for token in (0, length - 1):
                    flow = rms(update[:, token]) / rms(stream)
                    formula = formulas.flow("attention", width, gamma) * shares[token] ** 0.5
                    row = {"d_model": width, "gamma": gamma, "token": token, "flow": flow, "formula": formula}
                    rows.append(row | {"attended": 1 / shares[token]})
    return rounded(pd.DataFrame(rows).groupby(["d_model", "gamma", "token"], as_index=False).mean())


@torch.no_grad()
def attention_shares(model: Decoder, ids: Tensor) -> list[float]:
    """sum_j A_tj^2 of the first block for each position t, mean over sequences and heads: 1 / (t + 1) if uniform."""
    block = model.blocks[0]
    assert isinstance(block, Block)
    probabilities = block.attention.probabilities(block.attention_norm(model.embed(ids)), *model.rotary(ids))
    shares: list[float] = probabilities.square().sum(-1).mean((0, 1)).tolist()  # (B, H, T, T) -> (T,)
    return shares


@torch.no_grad()
def attenuations(widths: list[int], gammas: list[float], epsilons: list[float], tokens: int = 64) -> pd.DataFrame:
    """RMS after the first norm, of `tokens` embedding rows, measured with the real norm, beside the formula."""
    rows = []
    for width in widths:
        noise = torch.randn(tokens, width, generator=torch.Generator().manual_seed(width))
        for gamma in gammas:
            for eps in epsilons:
                norm = RMSNorm(width, eps)
                nn.init.ones_(norm.weight)
                measured = rms(norm(noise * width**-gamma))
                formula = formulas.attenuation(width**-gamma, eps)
                rows.append({"d_model": width, "gamma": gamma, "eps": eps, "measured": measured, "formula": formula})
    return rounded(pd.DataFrame(rows))
