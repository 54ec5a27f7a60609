"""Training of the small models: AdamW, batches that are a pure function of (seed, step), log-spaced measures."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smallinit.config import ModelConfig
from smallinit.init import initialize
from smallinit.measures import row_cosine
from smallinit.model import Decoder, linear
from smallinit.optimizer import parameter_groups, schedule
from smallinit.reasoning.config import VOCABULARY, SmallRun

WARMUP, FINAL = 0.05, 0.1  # share of the steps, share of the peak rate
CLIP = 1.0
MARKS_PER_DOUBLING = 3

Batch = Callable[[np.random.Generator], tuple[Tensor, Tensor]]  # -> ids (B, T), targets (B,)
Measure = Callable[[nn.Module], dict[str, float]]


class EmbeddingMLP(nn.Module):
    """W_head relu(W_up sum of embeddings): no attention and no order of tokens. ids (B, T) -> logits (B, V)."""

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.embed = nn.utils.skip_init(nn.Embedding, VOCABULARY, d_model)  # (V, d)
        self.ffn_up = linear(d_model, d_ff)  # (f, d)
        self.head = linear(d_ff, VOCABULARY)  # (V, f)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(F.relu(self.ffn_up(self.embed(ids).sum(dim=1))))


class Reader(nn.Module):
    """A decoder that answers at its last position. ids (B, T) -> logits (B, V).

    LayerNorm, GELU and a single head, as in arXiv 2405.05409; norms come first, and positions are rotary.
    """

    def __init__(self, run: SmallRun, length: int):
        super().__init__()
        model: dict[str, Any] = {
            "vocab_size": VOCABULARY,
            "d_model": run.d_model,
            "d_ff": run.d_ff,
            "n_layers": run.n_layers,
        }
        model |= {"n_heads": 1, "n_kv_heads": 1, "seq_len": max(length, 8), "rope_theta": 1e4, "moe": None}
        model |= {"norm": "layernorm", "norm_eps": 1e-12, "gate": "none", "mlp": "gelu", "tied_head": False}
        self.decoder = Decoder(ModelConfig.model_validate(model))

    def forward(self, ids: Tensor) -> Tensor:
        assert self.decoder.head is not None
        return self.decoder.head(self.decoder.hidden(ids)[0][:, -1])


def marks(steps: int) -> list[int]:
    """The steps at which to measure: 0, then MARKS_PER_DOUBLING in each doubling, and the last."""
    exponents = range(math.ceil(math.log2(steps) * MARKS_PER_DOUBLING))
    return sorted({0, *(round(2 ** (exponent / MARKS_PER_DOUBLING)) for exponent in exponents), steps})


def learn(model: nn.Module, run: SmallRun, batch: Batch, measure: Measure) -> Iterator[dict[str, Any]]:
    """Start `model` by the gamma rule and train it; yields what `measure` says at each of the `marks`.

    Deterministic on one thread: the batch of a step is drawn from a generator seeded by (run.seed, step).
    """
    initialize(model, run.gamma, run.seed)
    settings = run.learn
    groups = parameter_groups(model, settings.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
    measured = set(marks(settings.steps))
    for step in range(settings.steps + 1):
        if step in measured:
            with torch.no_grad():
                yield {"step": step, **measure(model)}
        if step == settings.steps:
            return
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * schedule(step, settings.steps, WARMUP, FINAL)
        ids, targets = batch(np.random.default_rng([run.seed, step]))
        F.cross_entropy(model(ids), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()


def cosines(rows: Tensor) -> np.ndarray:
    """Cosine similarity of all pairs of rows: (n, d) -> (n, n), between -1 and 1."""
    return row_cosine(rows.detach()).clamp(-1, 1).numpy()


def mean_cosine(similarity: np.ndarray) -> float:
    """Mean |cosine| of two different rows. similarity: (n, n)."""
    n = len(similarity)
    return float((np.abs(similarity).sum() - np.abs(np.diag(similarity)).sum()) / (n * (n - 1)))
