"""The training loop: AdamW, warm-up and cosine, gradient clipping, held-out loss, interrupt safety.

`fit` is the whole story; what it calls stands above it, in the order of use.
"""

import contextlib
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from smallinit import checkpoint, machine, paths
from smallinit.batches import Batches, Tokens, take, windows
from smallinit.config import RunConfig, TrainConfig
from smallinit.files import replacing, write_csv, write_json
from smallinit.init import audit, initialize
from smallinit.model import Decoder, token_losses
from smallinit.progress import Progress

VOCABULARY = ("embed.weight", "head.weight")  # the matrices whose size grows with the vocabulary


class Interrupted(RuntimeError):
    """Training was asked to stop; its state is saved and the same run continues from there."""


@dataclass
class Outcome:
    """What a run leaves behind. A diverged run is a result: `diverged_at` is its step, else None."""

    model: Decoder
    audit: pd.DataFrame  # step 0, one row a parameter: see init.audit
    curve: pd.DataFrame  # step, tokens, learning_rate, loss, grad_norm, adam_eps_share
    heldout: pd.DataFrame  # step, tokens, loss
    diverged_at: int | None
    provenance: dict[str, Any]


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """AdamW's two groups by name: matrices are decayed, norm gains are not."""
    named = list(model.named_parameters())
    matrices = [(name, p) for name, p in named if p.ndim >= 2]
    gains = [(name, p) for name, p in named if p.ndim < 2]
    return [
        {"params": [p for _, p in matrices], "names": [n for n, _ in matrices], "weight_decay": weight_decay},
        {"params": [p for _, p in gains], "names": [n for n, _ in gains], "weight_decay": 0.0},
    ]


def learning_rate(step: int, steps: int, config: TrainConfig) -> float:
    """Linear warm-up over the first `warmup_fraction` of the steps, then cosine to `final_lr_fraction` of the peak."""
    warmup = math.ceil(config.warmup_fraction * steps)
    if step < warmup:
        return config.peak_lr * (step + 1) / warmup
    done = (step - warmup) / max(steps - warmup, 1)  # 0 ... 1
    floor = config.final_lr_fraction
    return config.peak_lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done)))


def heldout_steps(steps: int, every: int) -> set[int]:
    """When to measure held-out loss: 0, 1, 2, 4, 8, ... (gamma acts at the start), then regularly, and at the end."""
    doubling = {2**k for k in range(steps.bit_length()) if 2**k <= steps}
    return {0, steps} | doubling | set(range(every, steps, every))


@torch.no_grad()
def heldout_loss(model: nn.Module, ids: Tensor, micro_batch: int) -> float:
    """Mean next-token loss in nats over the windows `ids` (N, T + 1)."""
    model.eval()
    losses = torch.cat([token_losses(model, part).double() for part in ids.split(micro_batch)])
    model.train()
    return losses.mean().item()


def accumulate_gradients(model: nn.Module, batch: Tensor, micro_batch: int) -> float:
    """Add up the gradients of the batch's mean loss, one micro batch after the other; returns that loss in nats."""
    total = 0.0
    for part in batch.split(micro_batch):
        loss = token_losses(model, part).sum() / batch[:, 1:].numel()
        loss.backward()
        total += loss.item()
    return total


@torch.no_grad()
def adam_eps_share(optimizer: torch.optim.AdamW, eps: float) -> float:
    """Share of coordinates whose sqrt(v) is below 10 eps, where AdamW's own epsilon damps the step."""
    small = count = 0
    for state in optimizer.state.values():
        small += int((state["exp_avg_sq"].sqrt() < 10 * eps).sum())
        count += state["exp_avg_sq"].numel()
    return small / max(count, 1)


@contextlib.contextmanager
def deferred_signals() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT instead of acting on them, so that no optimizer step is cut in half."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    try:
        old = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not in the main thread: the caller keeps its handlers
        old = {}
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class Training:
    """One run in progress: what a saved state holds, and how one step changes it."""

    def __init__(self, run: RunConfig, tokens: Tokens):
        torch.set_num_threads(run.train.threads)
        self.run, self.config = run, run.train
        self.autocast = machine.resolve_precision(run.train.precision) == "bfloat16"
        self.batches = Batches(tokens.train, run.model.seq_len, run.batch_size, run.steps, run.seed)
        count = min(self.config.eval_tokens // run.model.seq_len, windows(tokens.heldout, run.model.seq_len))
        self.heldout_ids = take(tokens.heldout, np.arange(count), run.model.seq_len)  # (N, T + 1)
        self.model = Decoder(run.model)
        self.audit = audit(self.model, initialize(self.model, run.gamma, run.seed))
        groups = parameter_groups(self.model, self.config.weight_decay)
        betas = (self.config.adam_beta1, self.config.adam_beta2)
        self.optimizer = torch.optim.AdamW(
            groups, lr=self.config.peak_lr, betas=betas, eps=self.config.adam_eps, fused=True
        )
        self.step, self.seconds = 0, 0.0
        self.diverged_at: int | None = None
        self.curve: list[list[float]] = []
        self.heldout: list[list[float]] = []

    def state(self) -> dict[str, Any]:
        """Everything a resumed run needs to end bitwise as if never interrupted."""
        kept = {name: getattr(self, name) for name in ("step", "seconds", "curve", "heldout")}
        return {**kept, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name in ("step", "seconds", "curve", "heldout"):
            setattr(self, name, state[name])

    def measure(self) -> None:
        """Note the held-out loss of the weights as they are now."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = heldout_loss(self.model, self.heldout_ids, self.config.micro_batch)
        self.heldout.append([self.step, self.step * self.config.batch_tokens, loss])
        if self.has_diverged(loss):
            self.diverged_at = self.step

    def has_diverged(self, loss: float) -> bool:
        """Not finite, or far above both the uniform guess and the loss at step 0: from there no run comes back."""
        return not math.isfinite(loss) or loss > 3 * max(math.log(self.run.model.vocab_size), self.heldout[0][-1])

    def advance(self) -> float:
        """One optimizer step; returns the loss in nats before it. A run that has diverged takes no step."""
        rate = learning_rate(self.step, self.run.steps, self.config)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = accumulate_gradients(self.model, self.batches.batch(self.step), self.config.micro_batch)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip).item()
        if self.has_diverged(loss) or not math.isfinite(norm):
            self.diverged_at = self.step
            return loss
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        if self.step % self.config.log_every == 0 or self.step in (1, self.run.steps):
            share = adam_eps_share(self.optimizer, self.config.adam_eps)
            self.curve.append([self.step, self.step * self.config.batch_tokens, rate, loss, norm, share])
        return loss

    def outcome(self) -> Outcome:
        self.model.eval()
        trained = self.step * self.config.batch_tokens
        record = machine.provenance() | {
            "precision": "bfloat16" if self.autocast else "float32",
            "seconds": round(self.seconds, 1),
            "tokens_per_second": round(trained / self.seconds) if self.seconds else None,
        }
        curve_columns = ["step", "tokens", "learning_rate", "loss", "grad_norm", "adam_eps_share"]
        curve = pd.DataFrame(self.curve, columns=curve_columns).astype({"step": int, "tokens": int})
        heldout = pd.DataFrame(self.heldout, columns=["step", "tokens", "loss"]).astype({"step": int, "tokens": int})
        return Outcome(self.model, self.audit, curve, heldout, self.diverged_at, record)


def fit(run: RunConfig, tokens: Tokens) -> Outcome:
    """Train one run, from its saved state if it was interrupted before.

    Raises:
        Interrupted: SIGTERM or SIGINT arrived; the state is saved, running again continues.
        ValueError: the run wants more than one epoch of the corpus.
    """
    training = Training(run, tokens)
    place = checkpoint.folder(run, tokens.digest())
    if (state := checkpoint.load(place)) is not None:
        training.restore(state)
    measure_at = heldout_steps(run.steps, run.train.eval_every)
    saved = begun = time.monotonic()
    earlier = training.seconds
    start = training.step * run.train.batch_tokens
    with Progress(run.steps * run.train.batch_tokens, run.run, "tokens", start) as bar, deferred_signals() as received:
        while True:
            if training.step in measure_at and not (training.heldout and training.heldout[-1][0] == training.step):
                training.measure()
            training.seconds = earlier + time.monotonic() - begun
            if training.step == run.steps or training.diverged_at is not None:
                break
            if received or time.monotonic() - saved > checkpoint.SAVE_SECONDS:
                checkpoint.save(place, training.state())
                saved = time.monotonic()
            if received:
                raise Interrupted(f"{run.run} stopped at step {training.step} of {run.steps}; run it again to continue")
            loss = training.advance()
            bar.update(run.train.batch_tokens, step=training.step, loss=loss, heldout=training.heldout[-1][-1])
    return training.outcome()


def metrics(run: RunConfig, outcome: Outcome) -> dict[str, Any]:
    """The few numbers of a run; losses of a diverged run are None."""
    diverged = outcome.diverged_at is not None
    steps = run.steps if outcome.diverged_at is None else outcome.diverged_at
    sizes = {name: p.numel() for name, p in outcome.model.named_parameters()}
    tail = outcome.curve.tail(max(len(outcome.curve) // 20, 1))
    return {
        "run": run.run,
        "diverged": diverged,
        "diverged_at": outcome.diverged_at,
        "steps": steps,
        "tokens": steps * run.train.batch_tokens,
        "parameters": sum(sizes.values()),
        "parameters_without_embeddings": sum(n for name, n in sizes.items() if name not in VOCABULARY),
        "train_loss": None if diverged else float(tail["loss"].mean()),
        "heldout_loss": None if diverged else float(outcome.heldout["loss"].iloc[-1]),
    }


def save(run: RunConfig, tokens: Tokens, outcome: Outcome) -> None:
    """Write weights to `models/<run>` and small artifacts to `results/train/<run>`, then forget the saved state."""
    weights, small = paths.MODELS / run.run, paths.RESULTS / "train" / run.run
    with replacing(weights / "model.safetensors") as temporary:
        save_file(outcome.model.state_dict(), temporary)
    write_json(weights / "config.json", run.model_dump(mode="json"))
    write_csv(small / "init_audit.csv", outcome.audit)
    write_csv(small / "curve.csv", outcome.curve)
    write_csv(small / "heldout.csv", outcome.heldout)
    write_json(small / "metrics.json", metrics(run, outcome))
    write_json(small / "provenance.json", outcome.provenance)
    checkpoint.discard(checkpoint.folder(run, tokens.digest()))
