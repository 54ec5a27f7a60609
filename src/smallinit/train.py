"""The training loop: AdamW, warm-up and cosine, gradient clipping, held-out loss, interrupt safety.

`fit` is the whole story; what it calls stands above it, in the order of use. The same code runs in a notebook and on
many GPUs, see `launch`.
"""

import contextlib
import math
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from smallinit import checkpoint, machine, measures, parallel, tracking
from smallinit.batches import Batches, Tokens, take, windows
from smallinit.config import RunConfig
from smallinit.init import GammaRule, audit, initialize
from smallinit.model import Decoder
from smallinit.optimizer import adam_eps_share, adamw, learning_rate
from smallinit.parallel import ALONE, World
from smallinit.progress import Progress

PROGRESS = ("step", "seconds", "measuring", "curve", "heldout", "matrices", "blocks", "moved")
CURVE = ["step", "tokens", "learning_rate", "loss", "grad_norm", "adam_eps_share"]


class Interrupted(RuntimeError):
    """Training was asked to stop; its state is saved and the same run continues from there."""


@dataclass
class Outcome:
    """What a run leaves behind. A diverged run is a result: `diverged_at` is its step, else None."""

    weights: dict[str, Tensor]  # all of them in process 0, whatever their number
    audit: pd.DataFrame  # step 0, one row a parameter: see init.audit
    curve: pd.DataFrame  # columns CURVE
    heldout: pd.DataFrame  # step, tokens, loss
    matrices: pd.DataFrame  # columns measures.MATRICES, one row a matrix and measured step
    blocks: pd.DataFrame  # columns measures.BLOCKS, one row a norm and measured step
    diverged_at: int | None
    provenance: dict[str, Any]


def heldout_steps(steps: int, every: int) -> set[int]:
    """When to measure held-out loss: 0, 1, 2, 4, 8, ... (gamma acts at the start), then regularly, and at the end."""
    doubling = {2**k for k in range(steps.bit_length()) if 2**k <= steps}
    return {0, steps} | doubling | set(range(every, steps, every))


@torch.no_grad()
@torch.compiler.set_stance("force_eager")  # compiling the pass without gradients as well costs more than it saves
def heldout_loss(model: nn.Module, ids: Tensor, micro_batch: int, world: World = ALONE) -> float:
    """Mean next-token loss in nats over the windows `ids` (N, T + 1), shared among the processes of `world`."""
    parts = ids.split(micro_batch)
    model.eval()
    total = 0.0
    for first in range(0, len(parts), world.size):  # the same number of forward passes in every process
        mine = first + world.rank
        part = parts[mine % len(parts)].to(world.device)
        loss, _ = model(part[:, :-1], part[:, 1:])
        total += loss.item() if mine < len(parts) else 0.0
    model.train()
    return world.sum(total)[0] / ids[:, 1:].numel()


def accumulate_gradients(model: nn.Module, batch: Tensor, micro_batch: int, world: World = ALONE) -> Tensor:
    """Add up the gradients of the batch's mean loss, one micro batch after the other.

    Returns this process's part of that loss in nats, (). DDP and FSDP2 average gradients over processes, so that each
    part is multiplied by their number.
    """
    parts = batch.split(micro_batch)
    mine = world.share(parts)
    total = torch.zeros((), device=world.device)
    for number, part in enumerate(mine, 1):
        parallel.sync_gradients(model, number == len(mine))
        part = part.to(world.device)
        loss, auxiliary = model(part[:, :-1], part[:, 1:])
        loss = loss / batch[:, 1:].numel()
        ((loss + auxiliary / len(parts)) * world.size).backward()
        total += loss.detach()
    return total


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


def build(run: RunConfig, world: World, compiled: bool) -> tuple[nn.Module, pd.DataFrame]:
    """The model at step 0 as `world` trains it, and its audit.

    Under FSDP2 the model is made without memory, sharded, and filled: no process ever holds all of it.
    """
    rule = GammaRule(run.gamma, **run.init.model_dump())
    sharded = world.size > 1 and run.train.strategy == "fsdp"
    with torch.device("meta" if sharded else "cpu"):
        model = Decoder(run.model, run.train.activation_checkpointing)
    if compiled:
        model.compile_parts()
    if sharded:
        parallel.distribute(model, model.blocks, "fsdp", world)
        model.to_empty(device=world.device)
        return model, audit(model, initialize(model, rule, run.seed))
    table = audit(model, initialize(model, rule, run.seed))
    return parallel.distribute(model.to(world.device), model.blocks, "ddp", world), table


class Training:
    """One run in progress: what a saved state holds, and how one step changes it."""

    def __init__(self, run: RunConfig, tokens: Tokens, world: World = ALONE):
        torch.set_num_threads(run.train.threads)
        self.run, self.config, self.world, self.tokens = run, run.train, world, tokens
        self.autocast = machine.resolve_precision(run.train.precision, world.device) == "bfloat16"
        self.batches = Batches(tokens.train, run.model.seq_len, run.batch_size, run.steps, run.seed)
        count = min(self.config.eval_tokens // run.model.seq_len, windows(tokens.heldout, run.model.seq_len))
        self.heldout_ids = take(tokens.heldout, np.arange(count), run.model.seq_len)  # (N, T + 1)
        self.compiled = run.train.compile and machine.can_compile(world.device)
        if run.train.compile and not self.compiled:
            print("no C++ compiler (c++, g++, clang++) here: training uncompiled, about half as fast", file=sys.stderr)
        self.model, self.audit = build(run, world, self.compiled)
        self.optimizer = adamw(self.model, self.config)
        self.kinds = dict(zip(self.audit["name"], self.audit["kind"], strict=True))
        self.measure_at = heldout_steps(run.steps, run.train.eval_every)
        self.step, self.seconds, self.measuring = 0, 0.0, 0.0
        self.diverged_at: int | None = None
        self.curve: list[list[float]] = []
        self.heldout: list[list[float]] = []
        self.matrices: list[list[Any]] = []
        self.blocks: list[list[Any]] = []
        self.moved: dict[str, tuple[float, float]] = {}

    def tensors(self) -> dict[str, Any]:
        """Weights and optimizer, as a checkpoint holds them whatever the number of processes."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def save(self, place: Path) -> None:
        """Everything that a resumed run needs to end bitwise as if never interrupted."""
        if self.step:  # at step 0 there is nothing to lose
            progress = {name: getattr(self, name) for name in PROGRESS}
            checkpoint.save(place, self.tensors(), progress, self.world)

    def resume(self, place: Path) -> None:
        """Continue from the newest usable state, if there is one."""
        generation = self.world.tell(checkpoint.usable(place) if self.world.rank == 0 else None)
        if generation is None:
            return
        tensors = self.tensors()
        progress = checkpoint.load(generation, tensors, self.world)
        set_state_dict(
            self.model, self.optimizer, model_state_dict=tensors["model"], optim_state_dict=tensors["optimizer"]
        )
        for name, value in progress.items():
            setattr(self, name, value)

    def precision(self) -> torch.autocast:
        """Where the model computes. Weights are cast anew each time: FSDP2 frees them after use, and with autocast's
        cache of casts the gradients of all but one micro batch would be lost."""
        device = self.world.device.type
        return torch.autocast(device, torch.bfloat16, enabled=self.autocast, cache_enabled=False)

    def measure(self) -> None:
        """Note the held-out loss of the weights as they are now, and their other measures."""
        with self.precision():
            loss = heldout_loss(self.model, self.heldout_ids, self.config.micro_batch, self.world)
        now = [self.step, self.step * self.config.batch_tokens]
        self.heldout.append([*now, loss])
        if self.has_diverged(loss):
            self.diverged_at = self.step
            return
        begun = time.monotonic()
        ids = self.heldout_ids[: self.config.measure_windows, :-1].to(self.world.device)  # (B, T)
        self.matrices += [now + row for row in measures.measure_matrices(self.model, self.kinds, self.moved)]
        self.blocks += [now + row for row in measures.measure_blocks(self.model, ids)]
        self.measuring += time.monotonic() - begun

    def has_diverged(self, loss: float) -> bool:
        """Not finite, or far above both the uniform guess and the loss at step 0: from there no run comes back."""
        return not math.isfinite(loss) or loss > 3 * max(math.log(self.run.model.vocab_size), self.heldout[0][-1])

    def advance(self) -> float:
        """One optimizer step; returns the loss in nats before it. A run that has diverged takes no step."""
        rate = learning_rate(self.step, self.run.steps, self.config)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = self.batches.batch(self.step)
        with self.precision():
            part = accumulate_gradients(self.model, batch, self.config.micro_batch, self.world)
        watched = measures.Step(self.model) if self.step + 1 in self.measure_at else None
        norm = parallel.whole(nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip)).item()
        loss = self.world.sum(part.item())[0]
        if self.has_diverged(loss) or not math.isfinite(norm):
            self.diverged_at = self.step
            return loss
        self.optimizer.step()
        if watched:
            self.moved = watched.close(self.model)
        self.optimizer.zero_grad()
        self.step += 1
        if self.step % self.config.log_every == 0 or self.step in (1, self.run.steps):
            share = adam_eps_share(self.optimizer, self.config.adam_eps, self.world)
            self.curve.append([self.step, self.step * self.config.batch_tokens, rate, loss, norm, share])
        return loss

    def weights(self) -> dict[str, Tensor]:
        """All weights in process 0, whatever the number of processes; every one must ask."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return cast(dict[str, Tensor], get_model_state_dict(self.model, options=options))

    def outcome(self) -> Outcome:
        trained = self.step * self.config.batch_tokens
        record = machine.provenance(self.world.device) | {
            "data": self.tokens.digest(),
            "processes": self.world.size,
            "strategy": self.config.strategy if self.world.size > 1 else None,
            "precision": "bfloat16" if self.autocast else "float32",
            "compiled": self.compiled,
            "seconds": round(self.seconds, 1),
            "seconds_measuring": round(self.measuring, 1),  # without held-out loss, which every training has
            "tokens_per_second": round(trained / self.seconds) if self.seconds else None,
        }

        def table(rows: list[list[Any]], columns: list[str]) -> pd.DataFrame:
            return pd.DataFrame(rows, columns=columns).astype({"step": int, "tokens": int})

        return Outcome(
            weights=self.weights(),
            audit=self.audit,
            curve=table(self.curve, CURVE),
            heldout=table(self.heldout, ["step", "tokens", "loss"]),
            matrices=table(self.matrices, measures.MATRICES),
            blocks=table(self.blocks, measures.BLOCKS),
            diverged_at=self.diverged_at,
            provenance=record,
        )


def fit(run: RunConfig, tokens: Tokens, world: World = ALONE) -> Outcome:
    """Train one run, from its saved state if it was interrupted before.

    Raises:
        Interrupted: SIGTERM or SIGINT arrived; the state is saved, running again continues.
        ValueError: the run wants more than one epoch of the corpus.
    """
    training, watch = Training(run, tokens, world), tracking.load()
    place = checkpoint.folder(run, tokens.digest())
    training.resume(place)
    saved = begun = time.monotonic()
    earlier, start = training.seconds, training.step
    with (
        Progress(run.steps * run.train.batch_tokens, run.run, "tokens", start * run.train.batch_tokens) as bar,
        tracking.trackers(run.run, watch, start, world.rank) as log,
        deferred_signals() as received,
    ):
        while True:
            measured = bool(training.heldout) and training.heldout[-1][0] == training.step
            if training.step in training.measure_at and not measured:
                training.measure()
                if run.train.snapshots:
                    checkpoint.snapshot(place, training.step, training.weights(), world)
                log(training.step, {"heldout_loss": training.heldout[-1][-1]})
            training.seconds = earlier + time.monotonic() - begun
            if training.step == run.steps or training.diverged_at is not None:
                break
            # All processes must agree: a signal reaches one of them first, and their clocks differ.
            stop, due = world.sum(len(received), time.monotonic() - saved > watch.save_seconds)
            if stop or due:
                training.save(place)
                saved = time.monotonic()
            if stop:
                raise Interrupted(f"{run.run} stopped at step {training.step} of {run.steps}; run it again to continue")
            loss = training.advance()
            if training.curve and training.curve[-1][0] == training.step:
                log(training.step, dict(zip(CURVE[2:], training.curve[-1][2:], strict=True)))
            if world.rank == 0:
                bar.update(run.train.batch_tokens, step=training.step, loss=loss, heldout=training.heldout[-1][-1])
    return training.outcome()
