"""Who takes part: this repository with and without compilation, and plain matrix products, the ceiling for all.

A contestant is built from a `Case` and gives two functions. `train(tick)` takes optimizer steps for ever and calls
`tick()` after each; `tick` ends it by raising. `loss()` is the mean loss in nats on the run's first batch with the
weights as they are then: it proves that all contestants trained the same model on the same data.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from smallinit.batches import Batches
from smallinit.bench.case import Case, Shape

Tick = Callable[[], None]


@dataclass(frozen=True)
class Contestant:
    """How to train and what it came to; the ceiling trains nothing and has no loss."""

    train: Callable[[Tick], None]
    loss: Callable[[], float | None]


def order(case: Case) -> Batches:
    """The batches that every contestant sees, in their order."""
    run = case.run
    return Batches(case.read_tokens().train, run.model.seq_len, run.batch_size, run.steps, run.seed)


@torch.no_grad()
def first_loss(case: Case, logits: Callable[[Tensor], Tensor]) -> float:
    """Mean next-token loss in nats on the first batch; `logits` maps ids (B, T) to (B, T, V)."""
    ids = order(case).batch(0)  # (B, T + 1)
    on = case.run.train.precision == "bfloat16"
    with torch.autocast("cpu", torch.bfloat16, enabled=on, cache_enabled=False):
        found = logits(ids[:, :-1]).float()
    return F.cross_entropy(found.flatten(0, 1), ids[:, 1:].flatten()).item()


def ours(case: Case, compiled: bool = True) -> Contestant:
    """The steps that the notebook 04_train takes, as they are."""
    from smallinit.model import Decoder
    from smallinit.train import Training

    run = case.run.model_copy(update={"train": case.run.train.model_copy(update={"compile": compiled})})
    training = Training(run, case.read_tokens())

    def train(tick: Tick) -> None:
        training.measure()  # as every run does before its first step
        while True:
            training.advance()
            if training.diverged_at is not None:  # from then on it takes no steps, only tens of microseconds
                raise RuntimeError(f"training diverged at step {training.diverged_at}")
            tick()

    def loss() -> float:
        model = Decoder(run.model)  # a fresh one, because the trained one would be compiled again for this
        model.load_state_dict(training.model.state_dict())
        return first_loss(case, model)

    return Contestant(train, loss)


def square(case: Case) -> Contestant:
    """One large square product a step, in the run's precision: the highest rate that this machine reaches."""
    dtype = getattr(torch, case.run.train.precision)
    left, right = torch.randn(2, case.square, case.square, dtype=torch.float32).to(dtype)
    return products(case, [(left, right)])


def shapes(case: Case) -> Contestant:
    """The products of one optimizer step at their own sizes and nothing else, forward and backward."""
    model, train = case.run.model, case.run.train
    dtype = getattr(torch, train.precision)
    sizes = Shape(
        **{name: getattr(model, name) for name in ("d_model", "n_layers", "seq_len", "vocab_size")},
        batch_size=case.run.batch_size,
    ).matrices()
    pairs: list[tuple[Tensor, Tensor]] = []
    for out, fan_in in sizes:
        x, weight = torch.randn(train.batch_tokens, fan_in).to(dtype), torch.randn(out, fan_in).to(dtype)
        y = torch.randn(train.batch_tokens, out).to(dtype)
        pairs += [(x, weight.T), (y, weight), (y.T, x)]
    return products(case, pairs)


def products(case: Case, pairs: list[tuple[Tensor, Tensor]]) -> Contestant:
    """All matrix products of `pairs` as one step."""
    torch.set_num_threads(case.run.train.threads)

    def train(tick: Tick) -> None:
        while True:
            for left, right in pairs:
                torch.mm(left, right)
            tick()

    return Contestant(train, lambda: None)
