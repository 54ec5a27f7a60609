"""The stages `anchor` and `composite`: train all small runs of a task, and write its tables.

Each finished run is kept in `state/` until the tables are written, under the hash of its own values and of the code: a
stage that is stopped loses at most the run that it was in.
"""

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from smallinit import paths
from smallinit.files import read_json, replacing, write_csv, write_json
from smallinit.progress import Progress
from smallinit.reasoning.config import SmallRun

Run = TypeVar("Run", bound=SmallRun)
NOTEBOOKS = {"anchor": "09_anchor", "composite": "09_composite"}


def folder(task: str) -> Path:
    """Where the artifacts of a task lie."""
    return paths.RESULTS / task


def kept(task: str) -> Path:
    """Where the finished runs of a task wait for the others."""
    return paths.STATE / f"reasoning-{task}"


def train(task: str, runs: Sequence[Run], one: Callable[[Run], dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of all runs, in their order; those that are finished already are read instead of trained.

    Args:
        task: anchor or composite.
        runs: what to train.
        one: trains one run, `anchor.train` or `composite.train`.
    """
    code = hashlib.sha256((paths.PLAN / "code" / f"{NOTEBOOKS[task]}.json").read_bytes()).hexdigest()[:16]
    files = [kept(task) / code / f"{run.digest()}.json" for run in runs]
    steps = [run.learn.steps for run in runs]
    found = sum(count for count, file in zip(steps, files, strict=True) if file.exists())
    with Progress(sum(steps), task, "steps", start=found) as bar:
        for run, file in zip(runs, files, strict=True):
            if not file.exists():
                write_json(file, one(run))
                bar.update(run.learn.steps)
    return [read_json(file) for file in files]


def save(task: str, runs: Sequence[SmallRun], results: Sequence[dict[str, Any]], names: Mapping[str, str]) -> None:
    """Write `curves.csv` (a row a run and measured step) and `runs.csv` (a row a run); drop what was kept in `state/`.

    Pictures (matrices in hundredths) of runs with seed 0 become `<picture>.npy`, int8, in the order of `runs.csv`.

    Args:
        task: anchor or composite.
        runs: what was trained.
        results: what `train` returned.
        names: the values of a run that name it, and their columns.
    """
    curves, rows = [], []
    pictures: dict[str, list[np.ndarray]] = {}
    for run, result in zip(runs, results, strict=True):
        identity = {column: getattr(run, key) for key, column in names.items()}
        curves += [identity | point for point in result["curve"]]
        rows.append(identity | {key: value for key, value in result.items() if not isinstance(value, list)})
        for key, value in result.items():
            if isinstance(value, list) and key != "curve" and run.seed == 0:
                pictures.setdefault(key, []).append(np.array(value, dtype=np.int8))
    write_csv(folder(task) / "curves.csv", pd.DataFrame(curves))
    write_csv(folder(task) / "runs.csv", pd.DataFrame(rows))
    for key, matrices in pictures.items():
        with replacing(folder(task) / f"{key}.npy") as temporary, temporary.open("wb") as handle:
            np.save(handle, np.stack(matrices))
    shutil.rmtree(kept(task), ignore_errors=True)


def read(task: str, name: str) -> pd.DataFrame:
    """A table of a task: `curves` or `runs`.

    Raises:
        FileNotFoundError: the stage has not run.
    """
    return pd.read_csv(_existing(task, f"{name}.csv"))


def read_pictures(task: str, name: str) -> np.ndarray:
    """Cosines of the runs with seed 0, (runs, n, n), between -1 and 1.

    Raises:
        FileNotFoundError: the stage has not run.
    """
    matrices: np.ndarray = np.load(_existing(task, f"{name}.npy")) / 100
    return matrices


def _existing(task: str, name: str) -> Path:
    file = folder(task) / name
    if not file.exists():
        raise FileNotFoundError(f"{file.relative_to(paths.ROOT)} is missing: run `dvc repro {task}`")
    return file
