"""Tables of all runs, from the artifacts in git. Runs come from an explicit list, never from a look into a folder."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from smallinit import config, paths
from smallinit.analysis.config import RunList
from smallinit.config import RunConfig
from smallinit.files import read_json

# The tables of a run that are collected, and the stage that writes each.
TABLES = {
    **{"curve": "train", "heldout": "train", "documents": "evaluate", "attention": "evaluate"},
    **{"matrices": "train", "blocks": "train", "router": "evaluate"},
}


@dataclass
class Results:
    """Everything that figures and claims are made from.

    `orphans` are folders of runs that `params.yaml` no longer asks for: left alone, in no table, worth a warning.
    """

    runs: pd.DataFrame  # one row a run, see `row`
    curves: pd.DataFrame  # run, step, tokens, loss, ...: training
    heldout: pd.DataFrame  # run, step, tokens, loss: held-out loss during training
    documents: pd.DataFrame  # run, document, source, language, tokens, bytes, loss_sum
    attention: pd.DataFrame  # run, window, layer, head, sink, gate, gate_below_0.1
    matrices: pd.DataFrame  # run, and measures.MATRICES: every matrix at the measured steps of training
    blocks: pd.DataFrame  # run, and measures.BLOCKS: every norm and what follows it
    routers: pd.DataFrame  # run, layer, expert, load, entropy, balance_loss; of mixtures of experts
    orphans: list[str]


def row(run: RunConfig, trained: dict[str, Any], evaluated: dict[str, Any]) -> dict[str, Any]:
    """The numbers of one run that tables show; losses of a diverged run are missing, the run is not."""
    languages = evaluated["language"]
    documents = evaluated["documents"] or {}
    return {
        "run": run.run,
        "size": run.size,
        "gamma": run.gamma,
        "variant": run.variant,
        "seed": run.seed,
        "d_model": run.model.d_model,
        "d_ref": run.d_ref,
        "parameters": trained["parameters"],
        "parameters_without_embeddings": trained["parameters_without_embeddings"],
        "tokens": trained["tokens"],
        "peak_lr": run.train.peak_lr,
        "norm_eps": run.model.norm_eps,
        "gate": run.model.gate,
        "diverged": trained["diverged"],
        "loss": evaluated["loss"],
        "bits_per_byte": documents.get("bits_per_byte"),
        "bits_per_byte_en": languages.get("en", {}).get("bits_per_byte"),
        "bits_per_byte_zh": languages.get("zh", {}).get("bits_per_byte"),
    }


def artifact(path: Path) -> Any:
    """One JSON artifact.

    Raises:
        FileNotFoundError: naming the stage that makes it.
    """
    if not path.exists():
        stage, run = path.parent.parent.name, path.parent.name
        raise FileNotFoundError(f"{path.relative_to(paths.ROOT)} is missing: run `dvc repro {stage}@{run}`")
    return read_json(path)


def read_tables(files: Mapping[str, Path]) -> pd.DataFrame:
    """The tables of several runs as one, with a last column `run`. files: by run; lines must not be broken in quotes.

    Files with one header are read at once, which is four times as fast as one by one. Those of diverged runs are empty
    and would only blur the types of columns.
    """
    rows: dict[str, list[str]] = {}
    for run, file in files.items():
        header, *lines = file.read_text().rstrip("\n").split("\n")
        rows.setdefault(header, []).extend(f"{line},{run}" for line in lines)
    tables = [pd.read_csv(io.StringIO("\n".join([f"{header},run", *lines]))) for header, lines in rows.items()]
    return pd.concat([table for table in tables if len(table)] or tables or [pd.DataFrame()], ignore_index=True)


def load() -> Results:
    """Collect the artifacts of every run in `results/plan/runs.json`."""
    names = config.read_config(RunList, paths.PLAN / "runs.json").runs
    rows = []
    for name in names:
        metrics = (artifact(paths.RESULTS / stage / name / "metrics.json") for stage in ("train", "evaluate"))
        rows.append(row(config.load_run(name), *metrics))
    whole = {}
    for kind, stage in TABLES.items():
        files = {name: paths.RESULTS / stage / name / f"{kind}.csv" for name in names}
        there = {name: file for name, file in files.items() if file.exists() or kind != "router"}  # of experts only
        whole[kind] = read_tables(there)
    folders = {
        path.name for stage in ("train", "evaluate") for path in (paths.RESULTS / stage).iterdir() if path.is_dir()
    }
    runs = pd.DataFrame(rows).astype({"loss": float, "bits_per_byte": float})
    whole["curves"], whole["routers"] = whole.pop("curve"), whole.pop("router")
    return Results(runs=runs, **whole, orphans=sorted(folders - set(names)))


def token_losses(run: str) -> np.ndarray:
    """Loss of each token of the fixed held-out slice, (n,) float32 nats; comparable token by token between runs."""
    losses: np.ndarray = np.load(paths.RESULTS / "evaluate" / run / "token_losses.npy")
    return losses.astype(np.float32)
