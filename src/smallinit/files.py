"""Writing files so that nothing is ever half-written: to a temporary name in the same folder, then renamed."""

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it onto `path` if the block succeeds, delete it if it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def strict(value: Any) -> Any:
    """`value` with NaN and infinities turned into None: JSON knows neither."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Strict, indented JSON; numbers that are not finite become null."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(strict(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """What `write_json` wrote."""
    return json.loads(path.read_text())


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """CSV without index, floats to seven digits: enough for any figure, stable to read in a diff."""
    with replacing(path) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.7g", lineterminator="\n")
