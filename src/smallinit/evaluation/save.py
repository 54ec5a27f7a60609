"""What the evaluate stage leaves behind in `results/evaluate/<run>`."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from smallinit import paths
from smallinit.evaluation import attention, router
from smallinit.files import replacing, write_csv, write_json

DOCUMENT_COLUMNS = ["document", "source", "language", "tokens", "bytes", "loss_sum"]


def folder(run: str) -> Path:
    """Where the evaluation of `run` lies."""
    return paths.RESULTS / "evaluate" / run


def save(
    run: str,
    metrics: dict[str, Any],
    documents: pd.DataFrame,
    tokens: np.ndarray,
    heads: pd.DataFrame,
    maps: np.ndarray,
    routers: pd.DataFrame | None = None,
) -> None:
    """Write the measures of one run: metrics, losses by document, single token losses (float16, nats), attention.

    `maps` are those of `attention.maps`. `routers` is for mixtures of experts only: a dense run has no `router.csv`.
    """
    write_json(folder(run) / "metrics.json", {"run": run, **metrics})
    write_csv(folder(run) / "documents.csv", documents.reindex(columns=DOCUMENT_COLUMNS))
    write_csv(folder(run) / "attention.csv", heads)
    if routers is not None:
        write_csv(folder(run) / "router.csv", routers)
    for name, array in (("token_losses", tokens), ("attention_maps", maps)):
        with replacing(folder(run) / f"{name}.npy") as temporary, temporary.open("wb") as handle:
            np.save(handle, array.astype(np.float16))


def save_diverged(run: str, experts: bool = False) -> None:
    """A diverged run, one with experts or a dense one, has the same files, empty: it stays in every table."""
    metrics: dict[str, Any] = {
        "diverged": True,
        "tokens": 0,
        "loss": None,
        "documents": None,
        "language": {},
        "source": {},
    }
    heads, routers = (pd.DataFrame(columns=module.COLUMNS) for module in (attention, router))
    save(run, metrics, pd.DataFrame(), np.zeros(0), heads, np.zeros(0), routers if experts else None)
