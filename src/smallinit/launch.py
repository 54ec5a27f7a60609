"""Run a training where it shall run, and keep what it leaves: here, or in several processes of torchrun.

On a cluster, without a notebook: `torchrun --nproc-per-node 8 -m smallinit.launch RUN` on each machine.
"""

import contextlib
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import pandas as pd
from safetensors.torch import save_file

from smallinit import checkpoint, parallel, paths
from smallinit.batches import Tokens
from smallinit.config import RunConfig, load_run
from smallinit.files import read_json, replacing, write_csv, write_json
from smallinit.train import Interrupted, Outcome, deferred_signals, fit

VOCABULARY = ("embed.weight", "head.weight")  # the matrices whose size grows with the vocabulary


def metrics(run: RunConfig, outcome: Outcome) -> dict[str, Any]:
    """The few numbers of a run; losses of a diverged run are None."""
    diverged = outcome.diverged_at is not None
    steps = run.steps if outcome.diverged_at is None else outcome.diverged_at
    sizes = {name: weight.numel() for name, weight in outcome.weights.items()}
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
    place = checkpoint.folder(run, tokens.digest())
    with replacing(weights / "model.safetensors") as temporary:
        save_file(outcome.weights, temporary)
    shutil.rmtree(weights / "snapshots", ignore_errors=True)
    for source in checkpoint.kept(place):  # copied, not moved: a kill here costs nothing
        with replacing(weights / "snapshots" / source.name) as temporary:
            shutil.copyfile(source, temporary)
    write_json(weights / "config.json", run.model_dump(mode="json"))
    write_csv(small / "init_audit.csv", outcome.audit)
    write_csv(small / "curve.csv", outcome.curve)
    write_csv(small / "heldout.csv", outcome.heldout)
    write_csv(small / "matrices.csv", outcome.matrices)
    write_csv(small / "blocks.csv", outcome.blocks)
    write_json(small / "metrics.json", metrics(run, outcome))
    write_json(small / "provenance.json", outcome.provenance)
    checkpoint.discard(place)


@dataclass
class Report:
    """What a run left in `results/train/<run>`, read back for its notebook."""

    metrics: dict[str, Any]
    audit: pd.DataFrame
    curve: pd.DataFrame
    heldout: pd.DataFrame
    matrices: pd.DataFrame
    blocks: pd.DataFrame


def work(run: RunConfig) -> None:
    """Fit and save one run, as one of torchrun's processes or as the only one."""
    with parallel.join(run) as world:
        tokens = Tokens()
        with (
            checkpoint.claimed(checkpoint.folder(run, tokens.digest())) if world.rank == 0 else contextlib.nullcontext()
        ):
            outcome = fit(run, tokens, world)
            if world.rank == 0:
                save(run, tokens, outcome)


def torchrun(run: RunConfig) -> None:
    """Fit and save one run in `run.train.processes` processes on this machine; signals are handed on to them.

    Raises:
        Interrupted: SIGTERM or SIGINT arrived; the state is saved.
        RuntimeError: a process failed; its message is in the log.
    """
    processes = run.train.processes
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    with deferred_signals() as received:
        process = subprocess.Popen([*launcher, "-m", "smallinit.launch", run.run], cwd=paths.ROOT)
        told = False
        while process.poll() is None:
            if received and not told:
                process.terminate()
                told = True
            time.sleep(0.1)
    if received and process.returncode:  # else it was done before the signal reached it
        raise Interrupted(f"{run.run} stopped; run it again to continue")
    if process.returncode:
        raise RuntimeError(
            f"torchrun with {processes} processes ended with {process.returncode}: the first error in the log above "
            f"says why; run {run.run} again to continue from its last saved state"
        )


def launch(run: RunConfig) -> Report:
    """Train one run in as many processes as it asks for, and read what it left."""
    if run.train.processes == 1:
        work(run)
    else:
        torchrun(run)
    folder = paths.RESULTS / "train" / run.run
    tables = (pd.read_csv(folder / f"{name}.csv") for name in ("init_audit", "curve", "heldout", "matrices", "blocks"))
    return Report(read_json(folder / "metrics.json"), *tables)


if __name__ == "__main__":
    work(load_run(sys.argv[1]))
