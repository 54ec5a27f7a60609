"""Tokens on disk and the order in which training sees them: a batch is a pure function of (seed, step)."""

import hashlib
import json
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from smallinit import paths


class Tokens:
    """A corpus as uint16 memory maps, `train.bin` and `heldout.bin`, beside their `manifest.json`.

    Raises:
        FileNotFoundError: the corpus is not there.
    """

    def __init__(self, folder: Path | None = None):
        self.folder = folder or paths.TOKENS
        manifest = self.folder / "manifest.json"
        if not manifest.exists():
            raise FileNotFoundError(f"no tokens in {self.folder}: run `dvc repro tokenize` first")
        self.manifest = json.loads(manifest.read_text())

    def digest(self) -> str:
        """A hash of all token files: what a saved state of training belongs to."""
        return hashlib.sha256(json.dumps(self.manifest["files"], sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def train(self) -> np.ndarray:  # (n_tokens,) uint16
        return np.memmap(self.folder / "train.bin", dtype=np.uint16, mode="r")

    @cached_property
    def heldout(self) -> np.ndarray:  # (n_tokens,) uint16
        return np.memmap(self.folder / "heldout.bin", dtype=np.uint16, mode="r")


def windows(tokens: np.ndarray, seq_len: int) -> int:
    """How many non-overlapping windows of `seq_len` inputs and their next tokens fit into `tokens`."""
    return (len(tokens) - 1) // seq_len


def take(tokens: np.ndarray, index: np.ndarray, seq_len: int) -> Tensor:
    """Windows `index` of `tokens`: (len(index), seq_len + 1) int64, inputs and the target that follows the last."""
    rows = [tokens[i * seq_len : (i + 1) * seq_len + 1] for i in index]
    return torch.from_numpy(np.stack(rows).astype(np.int64))


class Batches:
    """The training order: all windows of the corpus once, in an order set by `seed`, the same for every model.

    Raises:
        ValueError: `steps` batches are more than one epoch.
    """

    def __init__(self, tokens: np.ndarray, seq_len: int, batch_size: int, steps: int, seed: int):
        count, needed = windows(tokens, seq_len), steps * batch_size
        if needed > count:
            raise ValueError(
                f"{steps} steps of {batch_size} windows need {needed} windows of {seq_len} tokens, the corpus has "
                f"{count}: lower `tokens` of this size in params.yaml, or choose a larger `corpus`"
            )
        self.tokens, self.seq_len, self.batch_size = tokens, seq_len, batch_size
        self.order = np.random.Generator(np.random.PCG64(seed)).permutation(count)  # (n_windows,)

    def batch(self, step: int) -> Tensor:
        """Batch of `step` (from 0): (batch_size, seq_len + 1) int64."""
        return take(self.tokens, self.order[step * self.batch_size : (step + 1) * self.batch_size], self.seq_len)
