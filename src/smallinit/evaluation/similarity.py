"""What the snapshots of a run show: how the rows of a few matrices align, and the shape of what training has added.

Condensation is what small initialization is said to begin with: rows that point into a few shared directions
(Hang et al., arXiv 2606.17945; Zhou et al., arXiv 2105.11686). A run that `snapshots` in params.yaml names keeps its
weights at the measured steps; this makes of them pictures and a table that are small enough for git.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from safetensors import safe_open
from torch import Tensor

from smallinit import paths
from smallinit.config import RunConfig
from smallinit.files import read_json, replacing, write_csv, write_json
from smallinit.init import kind_of
from smallinit.measures import gaussian_stable_rank, layer_of, row_cosine, stable_rank

ROWS = 64  # of a matrix at most: what a picture can show
FRAMES = 20  # steps at most; with four matrices of ROWS rows that is a third of a megabyte
SCALE = 127  # a cosine is kept as an integer of one byte
MOVED = 0.02  # of a matrix's norm: a smaller change drowns in the rounding of bfloat16, which is 0.0016 of it
CHANGES = ["step", "tokens", "name", "kind", "layer", "moved", "weight_ratio", "change_ratio"]


class Matrix(NamedTuple):
    """A matrix that is pictured, and which of its rows."""

    name: str
    kind: str
    layer: int  # -1 for the embedding
    rows: list[int]


@dataclass(frozen=True)
class Similarity:
    """Cosines of the rows of M matrices at F steps, in the order of the rows in the matrix, and changes of all."""

    steps: list[int]  # F
    tokens: list[int]  # F, seen in training until then
    matrices: list[Matrix]  # M
    stable_ranks: list[list[float]]  # (F, M), of the whole matrices
    cosines: np.ndarray  # (F, M, n, n) int8, SCALE times the cosine
    changes: pd.DataFrame  # columns CHANGES, see `measure_changes`


def snapshots(run: str) -> dict[int, Path]:
    """The snapshots of a run by their step, the first step first; empty if it keeps none."""
    found = sorted((paths.MODELS / run / "snapshots").glob("step-*.safetensors"))
    return {int(path.stem.removeprefix("step-")): path for path in found}


def log_spaced(steps: Sequence[int], most: int) -> list[int]:
    """At most `most` of the ascending `steps`, spread evenly over log(1 + step), the first and the last among them."""
    if len(steps) <= most:
        return list(steps)
    place = np.log1p(steps)
    nearest = {int(np.abs(place - wanted).argmin()) for wanted in np.linspace(place[0], place[-1], most)}
    return [steps[index] for index in sorted(nearest)]


def chosen_names(run: RunConfig) -> list[str]:
    """The pictured matrices: the embedding, W_q of the first and the last block, W_up of the first block."""
    up = "experts_up" if run.model.moe else "ffn_up.weight"
    last = run.model.n_layers - 1
    queries = dict.fromkeys(f"blocks.{layer}.attention.q_proj.weight" for layer in (0, last))
    return ["embed.weight", *queries, f"blocks.0.ffn.{up}"]


def chosen_rows(shapes: dict[str, int], heldout: np.ndarray) -> list[Matrix]:
    """The same number of rows of each matrix, ROWS or those of the smallest: evenly spaced ones.

    Of the embedding those of the most frequent tokens, since a row is trained only where its token occurs.

    Args:
        shapes: the number of rows of each matrix by its name.
        heldout: token ids of the held-out text, (n_tokens,).
    """
    count = min(ROWS, *shapes.values())
    chosen = []
    for name, available in shapes.items():
        kind = kind_of(name) or "unknown"
        if kind == "embedding":
            rows = np.argsort(-np.bincount(heldout, minlength=available), kind="stable")[:count]
        else:
            rows = np.linspace(0, available - 1, count).round().astype(int)
        chosen.append(Matrix(name, kind, layer_of(name), rows.tolist()))
    return chosen


def read(snapshot: Path, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """The named matrices of a snapshot, or all of them, float32 (n, m), by name; of a stack of experts the first."""
    with safe_open(snapshot, framework="pt") as stored:
        tensors = {name: stored.get_tensor(name).float() for name in names or stored.keys()}
    return {name: tensor[0] if tensor.ndim == 3 else tensor for name, tensor in tensors.items() if tensor.ndim > 1}


def measure_changes(step: int, tokens: int, start: dict[str, Tensor], now: dict[str, Tensor]) -> list[list[Any]]:
    """How every matrix differs from its start: rows of CHANGES, of those that have moved by more than MOVED.

    `moved` is ||W_t - W_0|| / ||W_0||; `weight_ratio` and `change_ratio` are the stable ranks of W_t and of W_t - W_0
    over that of a random matrix of their shape. A small W_0 hides less of the change than a large one.
    """
    rows: list[list[Any]] = []
    for name, weight in now.items():
        change = weight - start[name]
        moved = (change.norm() / start[name].norm()).item()
        if moved > MOVED:
            random = gaussian_stable_rank(*weight.shape)
            ratios = [stable_rank(weight) / random, stable_rank(change) / random]
            rows.append([step, tokens, name, kind_of(name), layer_of(name), moved, *ratios])
    return rows


@torch.no_grad()
def measure(run: RunConfig, heldout: np.ndarray) -> Similarity | None:
    """Row cosines of a few matrices and changes of all, at log-spaced steps; None if the run keeps no snapshots.

    Args:
        run: the run's configuration.
        heldout: token ids of the held-out text, (n_tokens,): they tell which tokens are frequent.
    """
    found = snapshots(run.run)
    if not found:
        return None
    steps, names = log_spaced(list(found), FRAMES), chosen_names(run)
    tokens = [step * run.train.batch_tokens for step in steps]
    start = read(found[steps[0]])
    matrices = chosen_rows({name: len(start[name]) for name in names}, heldout)
    ranks, frames, changes = [], [], []
    for step, seen in zip(steps, tokens, strict=True):
        weights = read(found[step])
        ranks.append([stable_rank(weights[name]) for name in names])
        cosines = torch.stack([row_cosine(weights[matrix.name][matrix.rows]) for matrix in matrices])
        frames.append((SCALE * cosines).round().clamp(-SCALE, SCALE).to(torch.int8).numpy())
        changes += measure_changes(step, seen, start, weights)
    return Similarity(steps, tokens, matrices, ranks, np.stack(frames), pd.DataFrame(changes, columns=CHANGES))


def files(run: str) -> tuple[Path, Path, Path]:
    """Where the cosines of a run lie, what they are of, and the changes."""
    folder = paths.RESULTS / "evaluate" / run
    return folder / "similarity.npy", folder / "similarity.json", folder / "changes.csv"


def save(run: str, similarity: Similarity) -> None:
    """Write `similarity.npy`, `similarity.json` and `changes.csv` to `results/evaluate/<run>`."""
    array, record, table = files(run)
    with replacing(array) as temporary, temporary.open("wb") as handle:
        np.save(handle, similarity.cosines)
    content = {"run": run, "steps": similarity.steps, "tokens": similarity.tokens}
    content["matrices"] = [matrix._asdict() for matrix in similarity.matrices]
    content["stable_ranks"] = [[round(rank, 4) for rank in ranks] for ranks in similarity.stable_ranks]
    write_json(record, content)
    write_csv(table, similarity.changes)


def load(run: str) -> Similarity | None:
    """What `save` wrote, or None if the run kept no snapshots."""
    array, record, table = files(run)
    if not array.exists():
        return None
    content = read_json(record)
    matrices = [Matrix(**matrix) for matrix in content["matrices"]]
    ranks = content["stable_ranks"]
    return Similarity(content["steps"], content["tokens"], matrices, ranks, np.load(array), pd.read_csv(table))
