"""The composite task (Zhang et al., arXiv 2405.05409): what does a model answer to a pair that it has never seen?

Each anchor is a small function of a number, and a pair applies two of them in turn to the key before it. The pair
(3, 4) is taught with a wrong answer, and the pair (4, 3) is never shown. On (4, 3) a model can compose what it knows of
3 and of 4 (*reasoning*), take the pair for its mirror image (*symmetric*), or do neither. Key and pair may be hidden in
a longer sequence of numbers that mean nothing.
"""

from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smallinit.reasoning.config import CompositeRun
from smallinit.reasoning.learn import Reader, cosines, learn, mean_cosine

KEYS = np.arange(20, 100)
SHIFTS = {1: 5, 2: 1, 3: -2, 4: -8}  # what each anchor adds
MISTAUGHT, TAUGHT = (3, 4), -6  # its answer is key - 6, where the composition would give key - 10
UNSEEN = (4, 3)
TEST_SHARE = 8  # one key of so many is kept for testing, another one for each pair and place
SAMPLE = 400


def shift(first: int, second: int) -> int:
    """What the pair adds to its key, as taught; for the unseen pair, what the composition of both adds."""
    return TAUGHT if (first, second) == MISTAUGHT else SHIFTS[first] + SHIFTS[second]


def items(length: int) -> dict[str, np.ndarray]:
    """Columns key, first anchor, second anchor, place of the key, (N, 4): to train on, to test on, of the unseen pair.

    The test is on pairs that were seen, with keys that this pair did not have at this place.
    """
    every = np.array([(key, a, b, place) for key, a, b, place in product(KEYS, SHIFTS, SHIFTS, range(length - 2))])
    key, a, b, place = every.T
    unseen = (a == UNSEEN[0]) & (b == UNSEEN[1])
    test = (key + 3 * a + 5 * b + place) % TEST_SHARE == 0
    return {"train": every[~unseen & ~test], "test": every[~unseen & test], "unseen": every[unseen]}


def sequences(chosen: np.ndarray, length: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Items (N, 4) among numbers that mean nothing. Returns ids (N, length), and the answers (N,) as taught."""
    ids = rng.choice(KEYS, (len(chosen), length))
    rows, place = np.arange(len(chosen)), chosen[:, 3]
    for offset in range(3):
        ids[rows, place + offset] = chosen[:, offset]
    return torch.from_numpy(ids), torch.from_numpy(chosen[:, 0] + np.array([shift(a, b) for a, b in chosen[:, 1:3]]))


def answers(predicted: np.ndarray, keys: np.ndarray) -> dict[str, float]:
    """Shares of the answers to the unseen pair that are the composition, the mirror image, or neither. Both (N,)."""
    reasoning = float(np.mean(predicted == keys + shift(*UNSEEN)))
    symmetric = float(np.mean(predicted == keys + TAUGHT))
    return {"reasoning": reasoning, "symmetric": symmetric, "neither": 1 - reasoning - symmetric}


def train(run: CompositeRun) -> dict[str, Any]:
    """Train one model: its curve with its answers to the unseen pair, and how alike the rows of W_q have become."""
    known = items(run.length)
    model = Reader(run, run.length)

    def batch(rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        return sequences(rng.choice(known["train"], run.learn.batch), run.length, rng)

    rng = np.random.default_rng(0)  # the same measured sequences in every run
    measured = {name: rng.permutation(part)[:SAMPLE] for name, part in known.items()}
    given = {name: sequences(part, run.length, rng) for name, part in measured.items()}

    def measure(trained: nn.Module) -> dict[str, float]:
        found = {}
        for name in ("train", "test"):
            ids, targets = given[name]
            logits = trained(ids)
            found[f"{name}_loss"] = F.cross_entropy(logits, targets).item()
            found[f"{name}_accuracy"] = (logits.argmax(-1) == targets).double().mean().item()
        predicted = trained(given["unseen"][0]).argmax(-1).numpy()
        return found | answers(predicted, measured["unseen"][:, 0])

    curve = list(learn(model, run, batch, measure))
    query = model.decoder.blocks[0].get_parameter("attention.q_proj.weight")
    return {"curve": curve, "query_cosine": mean_cosine(cosines(query))}
