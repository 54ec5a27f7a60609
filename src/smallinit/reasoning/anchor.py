"""The anchor task (Yao et al., arXiv 2502.04375): a rule and a list, learned by the same model at the same time.

A sequence is a key and two anchors. Behind a pair of *reasoning* anchors the answer is key + anchor + anchor. Behind a
pair of *memory* anchors it follows no rule. One pair of reasoning anchors, in both orders, never occurs in training.

The memory task has the same answers as the reasoning task, dealt out at random: so both are equally hard to guess, and
neither depends on the order of the two anchors, which the embedding network cannot see.
"""

from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smallinit.reasoning.config import AnchorRun
from smallinit.reasoning.learn import EmbeddingMLP, Reader, cosines, learn, mean_cosine

KEYS, MEMORY, REASONING = range(21, 121), range(1, 11), range(11, 21)
UNSEEN = ((11, 13), (13, 11))
SAMPLE = 500  # sequences of each training set that are measured
DRAWN = 128  # rows of W_q in the picture, at most


class Sequences(NamedTuple):
    """Sequences and their answers."""

    ids: Tensor  # (N, 3)
    targets: Tensor  # (N,)

    def sample(self, n: int) -> "Sequences":
        """At most n of them, the same every time."""
        chosen = np.random.default_rng(0).permutation(len(self.ids))[:n]
        return Sequences(self.ids[chosen], self.targets[chosen])


class Data(NamedTuple):
    """The training sets of both tasks, and the pairs that do not occur in them."""

    memory: Sequences
    reasoning: Sequences
    unseen: Sequences

    def training(self) -> Sequences:
        """Both training sets in one."""
        return Sequences(*(torch.cat(parts) for parts in zip(self.memory, self.reasoning, strict=True)))


def sequences(anchors: range) -> list[tuple[int, int, int]]:
    """All sequences of a key and an ordered pair of `anchors`."""
    return [(key, first, second) for key in KEYS for first in anchors for second in anchors]


def memory_answers(seed: int) -> dict[tuple[int, int, int], int]:
    """The answers of the memory task by key and pair (smaller anchor first): those of the reasoning task, shuffled."""
    pairs = list(combinations_with_replacement(REASONING, 2))
    answers = np.random.default_rng(seed).permutation([key + sum(pair) for key in KEYS for pair in pairs])
    places = [(key, *pair) for key in KEYS for pair in combinations_with_replacement(MEMORY, 2)]
    return dict(zip(places, map(int, answers), strict=True))


def data(seed: int) -> Data:
    """All sequences; the seed decides on the answers of the memory task and on nothing else."""
    answers = memory_answers(seed)
    memory = [(ids, answers[(ids[0], min(ids[1:]), max(ids[1:]))]) for ids in sequences(MEMORY)]
    reasoning = [(ids, sum(ids)) for ids in sequences(REASONING)]
    seen = [item for item in reasoning if item[0][1:] not in UNSEEN]
    unseen = [item for item in reasoning if item[0][1:] in UNSEEN]
    return Data(*map(_tensors, (memory, seen, unseen)))


def _tensors(items: Sequence[tuple[tuple[int, ...], int]]) -> Sequences:
    ids, targets = zip(*items, strict=True)
    return Sequences(torch.tensor(ids), torch.tensor(targets))


def guess(targets: Tensor) -> float:
    """The loss in nats of one who knows how often each answer occurs, and nothing else: the entropy of the answers."""
    share = targets.bincount().double() / len(targets)
    return float(-torch.xlogy(share, share).sum())


def scores(model: nn.Module, parts: Data) -> dict[str, float]:
    """Mean loss in nats and accuracy on each part."""
    found = {}
    for name, part in parts._asdict().items():
        logits = model(part.ids)
        found[name] = F.cross_entropy(logits, part.targets).item()
        found[f"{name}_accuracy"] = (logits.argmax(-1) == part.targets).double().mean().item()
    return found


def train(run: AnchorRun) -> dict[str, Any]:
    """Train one model: its curve, and how alike the embeddings of anchors and the rows of W_q have become."""
    known = data(run.seed)
    every = known.training()
    model = EmbeddingMLP(run.d_model, run.d_ff) if run.model == "embedding_mlp" else Reader(run, length=3)

    def batch(rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        chosen = rng.integers(0, len(every.ids), run.learn.batch)
        return every.ids[chosen], every.targets[chosen]

    parts = Data(*(part.sample(SAMPLE) for part in known))
    curve = list(learn(model, run, batch, lambda trained: scores(trained, parts)))
    return {"curve": curve, "guess": guess(every.targets), **condensation(model)}


def condensation(model: nn.Module) -> dict[str, Any]:
    """Cosines between embeddings of anchors (20, 20) and between rows of the first W_q, in hundredths; their means."""
    weights = dict(model.named_parameters())
    embedding = next(weight for name, weight in weights.items() if name.endswith("embed.weight"))
    anchors = cosines(embedding[MEMORY.start : REASONING.stop])
    split = len(MEMORY)
    found: dict[str, Any] = {
        "memory_cosine": mean_cosine(anchors[:split, :split]),
        "reasoning_cosine": mean_cosine(anchors[split:, split:]),
        "anchors": np.rint(100 * anchors).astype(int).tolist(),
    }
    query = next(
        (weight for name, weight in weights.items() if name.endswith("blocks.0.attention.q_proj.weight")), None
    )
    if query is not None:
        rows = cosines(query)
        found["query_cosine"] = mean_cosine(rows)
        found["query"] = np.rint(100 * rows[:DRAWN, :DRAWN]).astype(int).tolist()
    return found
