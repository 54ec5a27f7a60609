"""What the evaluate stage leaves behind in `results/evaluate/<run>`."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from smallinit import paths
from smallinit.evaluation.attention import COLUMNS
from smallinit.files import replacing, write_csv, write_json

DOCUMENT_COLUMNS = ["document", "source", "language", "tokens", "bytes", "loss_sum"]


def folder(run: str) -> Path:
    """Where the evaluation of `run` lies."""
    return paths.RESULTS / "evaluate" / run


def save(
    run: str, metrics: dict[str, Any], documents: pd.DataFrame, tokens: np.ndarray, attention: pd.DataFrame
) -> None:
    """Write metrics, losses by document, single token losses (float16, nats) and attention measures of one run."""
    write_json(folder(run) / "metrics.json", {"run": run, **metrics})
    write_csv(folder(run) / "documents.csv", documents.reindex(columns=DOCUMENT_COLUMNS))
    write_csv(folder(run) / "attention.csv", attention)
    with replacing(folder(run) / "token_losses.npy") as temporary, temporary.open("wb") as handle:
        np.save(handle, tokens.astype(np.float16))


def save_diverged(run: str) -> None:
    """A diverged run has the same files, empty: it stays in every table, as diverged."""
    metrics: dict[str, Any] = {
        "diverged": True,
        "tokens": 0,
        "loss": None,
        "documents": None,
        "language": {},
        "source": {},
    }
    save(run, metrics, pd.DataFrame(), np.zeros(0), pd.DataFrame(columns=COLUMNS))
