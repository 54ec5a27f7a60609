"""State of an unfinished run: saved atomically outside every DVC output, found again by the configuration's hash.

A generation is a folder: tensors by torch.distributed.checkpoint (so that another number of processes can read them),
progress as JSON, and a manifest with the SHA-256 of each file, written last. Two generations are kept. One that is
truncated, damaged or of another run is refused with a reason and the one before it is used, so an interrupt costs at
most the time since the last save.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException

from smallinit import paths
from smallinit.config import RunConfig
from smallinit.files import replacing
from smallinit.parallel import World

GENERATIONS = ("incoming", "newest", "previous")  # in the order of age; `incoming` is complete if its manifest is


class StateRefused(ValueError):
    """A saved state that cannot be used; the message says why."""


class StateInUse(RuntimeError):
    """Another process is training the same run."""


def folder(run: RunConfig, data: str) -> Path:
    """Where `run` on the tokens with hash `data` keeps its state.

    Another configuration, corpus or training code (by the fingerprints in the plan) has another folder: work of the
    one is never continued by the other.
    """
    plan = paths.PLAN / "code" / "04_train.json"
    code = plan.read_bytes() if plan.exists() else b""
    return paths.STATE / f"{run.run}-{run.digest()}-{data}-{hashlib.sha256(code).hexdigest()[:16]}"


@contextlib.contextmanager
def claimed(place: Path) -> Iterator[None]:
    """Hold the state of a run for this process alone; the claim ends with the process, however that ends.

    Raises:
        StateInUse: another process holds it.
    """
    place.mkdir(parents=True, exist_ok=True)
    handle = os.open(place, os.O_RDONLY)  # the folder itself is what is locked: no other file is left behind
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise StateInUse(f"{place.name} is being trained by another process: wait for it, or stop it") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            place.rmdir()  # if there is nothing in it
        os.close(handle)


def snapshot(place: Path, step: int, weights: dict[str, Tensor], world: World) -> None:
    """Keep the weights of one step, in bfloat16, beside the saved states: `kept` finds them when the run has ended."""
    if world.rank == 0:
        with replacing(place / "snapshots" / f"step-{step:08d}.safetensors") as temporary:
            save_file({name: weight.to(torch.bfloat16) for name, weight in weights.items()}, temporary)


def kept(place: Path) -> list[Path]:
    """The snapshots of a run, the first step first."""
    return sorted((place / "snapshots").glob("step-*.safetensors"))


def digests(generation: Path) -> dict[str, str]:
    """SHA-256 of each file of a generation but its manifest."""
    files = (path for path in sorted(generation.iterdir()) if path.name != "manifest.json")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def save(place: Path, tensors: dict[str, Any], progress: dict[str, Any], world: World) -> None:
    """Write a new generation; the newest becomes `previous` only when the new one is complete.

    Raises:
        OSError: not enough room; the states that are there stay as they are.
    """
    incoming = place / "incoming"
    if world.rank == 0:
        if (incoming / "manifest.json").exists():
            promote(place)  # complete, but a kill came before it was renamed
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir(parents=True)
    world.tell(None)  # nobody writes before the folder is there
    try:
        with warnings.catch_warnings(action="ignore"):  # that one process is one process
            dcp.save(tensors, checkpoint_id=incoming, no_dist=world.size == 1)
        if world.rank == 0:
            with replacing(incoming / "progress.json") as temporary:
                temporary.write_text(json.dumps(progress))
            with replacing(incoming / "manifest.json") as temporary:
                temporary.write_text(json.dumps({"state": place.name, "files": digests(incoming)}))
            promote(place)
    except BaseException as error:
        if world.rank == 0 and not (incoming / "manifest.json").exists():
            shutil.rmtree(incoming, ignore_errors=True)
        if not isinstance(error, OSError | CheckpointException):
            raise
        cause = next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error
        raise OSError(f"{place.name} was not saved, older states are kept; is the disk full? ({cause})") from error
    world.tell(None)


def promote(place: Path) -> None:
    """`incoming` -> `newest` -> `previous`; a kill between the renames leaves every generation findable."""
    incoming, newest, previous = (place / name for name in GENERATIONS)
    if newest.exists():
        shutil.rmtree(previous, ignore_errors=True)
        newest.replace(previous)
    incoming.replace(newest)


def check(generation: Path) -> None:
    """Whether a generation is whole and belongs where it lies.

    Raises:
        StateRefused: it does not.
    """
    try:
        manifest = json.loads((generation / "manifest.json").read_text())
        state, files = manifest["state"], dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError):
        raise StateRefused(f"{generation.name} has no readable manifest: it was not written to its end") from None
    if state != generation.parent.name:
        raise StateRefused(f"{generation.name} is of another run, {state}")
    try:
        now = digests(generation)
    except OSError as error:
        raise StateRefused(f"{generation.name} cannot be read: {error}") from None
    wrong = sorted(name for name in files.keys() | now.keys() if files.get(name) != now.get(name))
    if wrong:
        raise StateRefused(f"{generation.name} is truncated or damaged: {', '.join(wrong)} differs from its manifest")


def usable(place: Path) -> Path | None:
    """The newest generation that is whole, or None; what is refused is said on stderr."""
    for name in GENERATIONS:
        if (place / name).exists():
            try:
                check(place / name)
                return place / name
            except StateRefused as error:
                print(f"state refused: {error}; trying the one before it", file=sys.stderr)
    return None


def load(generation: Path, tensors: dict[str, Any], world: World) -> dict[str, Any]:
    """Fill `tensors` in place from a generation, written by whatever number of processes; returns its progress."""
    with warnings.catch_warnings(action="ignore"):
        dcp.load(tensors, checkpoint_id=generation, no_dist=world.size == 1)
    progress: dict[str, Any] = json.loads((generation / "progress.json").read_text())
    return progress


def discard(place: Path) -> None:
    """Forget the state of a finished run."""
    shutil.rmtree(place, ignore_errors=True)
