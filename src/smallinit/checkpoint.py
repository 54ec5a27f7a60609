"""State of an unfinished run: saved atomically outside every DVC output, found again by the configuration's hash.

Two generations are kept. A state that is truncated, damaged or of another configuration is refused with a reason and
the one before it is used, so an interrupt costs at most the time since the last save.
"""

import hashlib
import io
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from smallinit import paths
from smallinit.config import RunConfig
from smallinit.files import replacing

SAVE_SECONDS = 30.0  # at most so much work is lost by a kill


def folder(run: RunConfig, data: str) -> Path:
    """Where `run` on the tokens with hash `data` keeps its state.

    Another configuration, corpus or training code (by the fingerprints in the plan) has another folder: work of the
    one is never continued by the other.
    """
    plan = paths.PLAN / "code" / "04_train.json"
    code = plan.read_bytes() if plan.exists() else b""
    return paths.STATE / f"{run.run}-{run.digest()}-{data}-{hashlib.sha256(code).hexdigest()[:16]}"


def save(place: Path, state: dict[str, Any]) -> None:
    """Write `state` beside its SHA-256; the newest state becomes `previous` only when the new one is complete.

    Raises:
        OSError: not enough room; the states that are there stay as they are.
    """
    place.mkdir(parents=True, exist_ok=True)
    newest, previous = place / "newest.pt", place / "previous.pt"
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = buffer.getvalue()
    with replacing(place / "incoming.pt") as temporary:
        temporary.write_bytes(body + hashlib.sha256(body).digest())
    if newest.exists():
        newest.replace(previous)
    (place / "incoming.pt").replace(newest)


def read(path: Path) -> dict[str, Any]:
    """One saved state.

    Raises:
        ValueError: the file is truncated or damaged.
    """
    content = path.read_bytes()
    body, digest = content[:-32], content[-32:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError(f"{path.name} is truncated or damaged (its checksum does not fit)")
    state: dict[str, Any] = torch.load(io.BytesIO(body), weights_only=True)
    return state


def load(place: Path) -> dict[str, Any] | None:
    """The newest usable state, or None; what is refused is said on stderr."""
    for path in (place / "incoming.pt", place / "newest.pt", place / "previous.pt"):
        if path.exists():
            try:
                return read(path)
            except ValueError as error:
                print(f"state refused: {error}; trying the one before it", file=sys.stderr)
    return None


def discard(place: Path) -> None:
    """Forget the state of a finished run."""
    shutil.rmtree(place, ignore_errors=True)
