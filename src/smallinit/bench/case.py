"""What every contestant of the benchmark trains: one model, one batch, one stream of tokens, and its cost in FLOPs."""

import math
from pathlib import Path

from smallinit.batches import Tokens
from smallinit.config import RunConfig, Strict

FORMULA = "6 (L (4 d^2 + 3 d d_ff) + V d) + 6 L d (T + 1) a token: matrices, and causal attention without masked scores"


class Shape(Strict):
    """Sizes of a Llama-like model and of its batch: multi-head attention with heads of 32, SwiGLU, untied head."""

    d_model: int = 128
    n_layers: int = 4
    seq_len: int = 256
    vocab_size: int = 4096
    batch_size: int = 16  # sequences of one optimizer step, in one forward pass

    @property
    def d_ff(self) -> int:
        """8/3 d_model, rounded up to a multiple of 8."""
        return 8 * math.ceil(self.d_model / 3)

    @property
    def step_tokens(self) -> int:
        return self.batch_size * self.seq_len

    def matrices(self) -> list[tuple[int, int]]:
        """(out, in) of every matrix that a token is multiplied with; the embedding is a look-up."""
        d, f = self.d_model, self.d_ff
        block = [(d, d)] * 4 + [(f, d)] * 2 + [(d, f)]
        return block * self.n_layers + [(self.vocab_size, d)]

    def step_flops(self) -> int:
        """Floating-point operations of one optimizer step by `FORMULA`; the backward pass costs twice the forward."""
        weights = sum(rows * columns for rows, columns in self.matrices())
        attention = self.n_layers * self.d_model * (self.seq_len + 1)
        return 6 * (weights + attention) * self.step_tokens


class Case(Strict):
    """What one worker is told to do."""

    contestant: str
    run: RunConfig
    tokens: str  # the folder of the token files
    packages: str | None = None  # a folder with packages that the project's environment does not have
    square: int = 2048  # side of the square products that measure the ceiling
    kernel_names: bool = False  # compiled kernels show in a profile under their own names

    def read_tokens(self) -> Tokens:
        return Tokens(Path(self.tokens))
