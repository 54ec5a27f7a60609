"""Does speed change what is learned? Our kernels and compilation against PyTorch's own, seed by seed."""

import contextlib
from collections.abc import Iterator
from functools import partial
from unittest.mock import patch

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from smallinit import model
from smallinit.analysis.statistics import over_seeds
from smallinit.batches import Tokens
from smallinit.config import RunConfig
from smallinit.progress import Progress
from smallinit.train import Training, accumulate_gradients, heldout_loss

CONFIDENCE = 0.95


def cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, gradients: object) -> Tensor:
    """What `kernels.head_loss` computes, as everybody writes it."""
    return F.cross_entropy(F.linear(x, weight).float(), targets, reduction="sum")


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """PyTorch's attention and loss in place of `kernels.py`."""
    attention = partial(F.scaled_dot_product_attention, is_causal=True)
    with patch.object(model, "causal_attention", attention), patch.object(model, "head_loss", cross_entropy):
        yield


def changed(run: RunConfig, seed: int, **train: object) -> RunConfig:
    """`run` with another seed and other settings of training."""
    return run.model_copy(update={"seed": seed, "train": run.train.model_copy(update=train)})


def first_gradient(run: RunConfig, tokens: Tokens) -> Tensor:
    """The gradient of the first batch's loss for all parameters, as one vector."""
    training = Training(run, tokens)
    with training.precision():
        accumulate_gradients(training.model, training.batches.batch(0), run.train.micro_batch)
    return torch.cat([p.grad.flatten() for p in training.model.parameters() if p.grad is not None])


def final_loss(run: RunConfig, tokens: Tokens, steps: int, bar: Progress) -> float:
    """Held-out loss in nats after `steps` steps."""
    training = Training(run, tokens)
    training.measure()
    for _ in range(steps):
        bar.update(1, loss=training.advance())
    with training.precision():
        return heldout_loss(training.model, training.heldout_ids, run.train.micro_batch)


def compare(run: RunConfig, tokens: Tokens, seeds: int, steps: int) -> pd.DataFrame:
    """One row a seed: held-out losses, and the relative error of the first gradient against plain float32."""
    rows = []
    with Progress(2 * seeds * steps, "bench: losses", "steps") as bar:
        for seed in range(seeds):
            ours, theirs = (changed(run, seed, compile=own) for own in (True, False))
            with plain():
                exact = first_gradient(changed(run, seed, compile=False, precision="float32"), tokens)
                error = first_gradient(theirs, tokens) - exact
                row = {"seed": seed, "gradient_error_plain": (error.norm() / exact.norm()).item()}
                row["loss_plain"] = final_loss(theirs, tokens, steps, bar)
            row["gradient_error_ours"] = ((first_gradient(ours, tokens) - exact).norm() / exact.norm()).item()
            row["loss_ours"] = final_loss(ours, tokens, steps, bar)
            rows.append(row | {"steps": steps, "d_model": run.model.d_model})
    return pd.DataFrame(rows)


def text(frame: pd.DataFrame) -> str:
    """What the table says, in a sentence: the paired difference with its t-interval, and the spread of seeds."""
    difference = frame["loss_ours"] - frame["loss_plain"]
    found = over_seeds(difference.tolist(), CONFIDENCE)
    assert found is not None  # only a single seed has no interval
    steps, width = frame.loc[0, "steps"], frame.loc[0, "d_model"]
    errors = frame[["gradient_error_ours", "gradient_error_plain"]].mean()
    return (
        f"Does it change what is learned? Over {len(frame)} seeds, the held-out loss after {steps} steps at "
        f"d = {width} differs from that of PyTorch's own attention and loss, uncompiled, by {found.value:+.4f} "
        f"nats (interval [{found.low:+.4f}, {found.high:+.4f}]); the seeds themselves have a standard deviation of "
        f"{frame['loss_plain'].std():.4f}. The first gradient is off from float32 by {errors.iloc[0]:.2%} of its norm, "
        f"theirs by {errors.iloc[1]:.2%}.\n"
    )
