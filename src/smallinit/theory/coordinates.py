"""Coordinate check as in muP (Yang et al., arXiv 2203.03466): how far the first AdamW steps move a model, by width."""

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from smallinit.config import ModelConfig
from smallinit.init import initialize
from smallinit.model import Decoder
from smallinit.theory.config import CoordinateConfig
from smallinit.theory.flow import model_config, rms, rounded
from smallinit.theory.formulas import slope

BATCH, LENGTH = 8, 32  # sequences and tokens of one step


def made_up_batch(seed: int, vocab_size: int) -> Tensor:
    """One batch of tokens that can be learned: nine in ten follow from the one before. (B, T + 1)."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab_size, (BATCH, LENGTH + 1), generator=generator)
    follows = torch.rand(BATCH, LENGTH + 1, generator=generator) < 0.9
    for t in range(1, LENGTH + 1):
        tokens[:, t] = torch.where(follows[:, t], (3 * tokens[:, t - 1] + 1) % vocab_size, tokens[:, t])
    return tokens


@torch.no_grad()
def coordinates(model: Decoder, ids: Tensor) -> dict[str, Tensor]:
    """Embedding and logits of the tokens `ids`, and the stream that the final norm sees."""
    seen: list[Tensor] = []
    handle = model.final_norm.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    logits = model(ids)
    handle.remove()
    return {"embedding": model.embed(ids), "stream": seen[0], "logits": logits}


def first_steps(config: ModelConfig, gamma: float, seed: int, steps: int, learning_rate: float) -> pd.DataFrame:
    """RMS of the change since step 0, one row for each of the steps 1, 2, 4, ... up to `steps`.

    Columns: `embedding` and `stream` over their own RMS at step 0, `logits` as they are, all of the first batch, and
    the `loss` (nats) of the next batch. AdamW without weight decay, warm-up or clipping, so that nothing hides a step.
    """
    model = Decoder(config)
    initialize(model, gamma, seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0, fused=True
    )
    probe = made_up_batch(0, config.vocab_size)[:, :-1]
    start = coordinates(model, probe)
    scale = {"embedding": rms(start["embedding"]), "stream": rms(start["stream"]), "logits": 1.0}
    rows = []
    for step in range(steps + 1):
        batch = made_up_batch(step, config.vocab_size)
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        if step and step & (step - 1) == 0:  # a power of two
            now = coordinates(model, probe)
            change = {name: rms(now[name] - start[name]) / scale[name] for name in now}
            rows.append({"step": step, "loss": loss.item(), **change})
        if step == steps:
            break
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return pd.DataFrame(rows)


def check(config: CoordinateConfig) -> pd.DataFrame:
    """`first_steps` of a model of two blocks, for every width, gamma and seed."""
    tables = []
    for width in config.widths:
        shape = model_config(width, n_layers=2)
        for gamma in config.gammas:
            for seed in range(config.seeds):
                table = first_steps(shape, gamma, seed, config.steps, config.learning_rate)
                tables.append(table.assign(d_model=width, gamma=gamma, seed=seed))
    return rounded(pd.concat(tables, ignore_index=True))


def growth(table: pd.DataFrame) -> pd.DataFrame:
    """The power of d that each change in the table of `check` follows: one row a gamma and step, means over seeds."""
    rows = []
    for (gamma, step), group in table.groupby(["gamma", "step"]):
        means = group.groupby("d_model")[["embedding", "stream", "logits"]].mean()
        powers = {name: slope(list(means.index), list(means[name])) for name in means}
        rows.append({"gamma": gamma, "step": step, **powers})
    return pd.DataFrame(rows)
