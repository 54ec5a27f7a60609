"""What the stage `benchmark` leaves behind in `results/benchmark/<run>`: items.csv, summary.csv, metrics.json."""

from pathlib import Path
from typing import Any

import pandas as pd

from smallinit import paths
from smallinit.evaluation.benchmarks.score import COLUMNS, SUMMARY
from smallinit.files import write_csv, write_json


def folder(run: str) -> Path:
    """Where the benchmarks of `run` lie."""
    return paths.RESULTS / "benchmark" / run


def save(run: str, table: pd.DataFrame, summary: pd.DataFrame, diverged: bool = False) -> None:
    """Write the measures of every item, their summary by task, and the same summary as JSON."""
    write_csv(folder(run) / "items.csv", table)
    write_csv(folder(run) / "summary.csv", summary)
    tasks = {row["task"]: _plain(row) for row in summary.to_dict("records")}
    write_json(folder(run) / "metrics.json", {"run": run, "diverged": diverged, "tasks": tasks})


def save_diverged(run: str) -> None:
    """A diverged run has the same files, empty."""
    save(run, pd.DataFrame(columns=COLUMNS), pd.DataFrame(columns=SUMMARY), diverged=True)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row without its name; what does not apply is null."""
    return {key: None if pd.isna(value) else value for key, value in row.items() if key != "task"}
