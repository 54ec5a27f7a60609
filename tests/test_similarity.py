"""Row cosines from snapshots: of the right rows of the right matrices, at log-spaced steps, small enough for git."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import run_config
from safetensors.torch import save_file
from torch import Tensor

from smallinit import paths
from smallinit.config import RunConfig
from smallinit.evaluation import similarity
from smallinit.evaluation.similarity import SCALE, Matrix, log_spaced
from smallinit.init import initialize
from smallinit.model import Decoder

HELDOUT = np.array([7] * 5 + [3] * 4 + [256] * 3 + [7, 0], dtype=np.uint16)  # most frequent: 7, 3, 256, 0


def weights(run: RunConfig) -> dict[str, Tensor]:
    model = Decoder(run.model)
    initialize(model, run.gamma, run.seed)
    return {name: weight.detach() for name, weight in model.state_dict().items()}


def write_snapshot(run: RunConfig, step: int, tensors: dict[str, Tensor]) -> None:
    path = paths.MODELS / run.run / "snapshots" / f"step-{step:08d}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}, path)


def condensed(shape: torch.Size) -> Tensor:
    """Every row along one direction, every third the other way, all of different length."""
    sign = torch.where(torch.arange(shape[0]) % 3 == 2, -1.0, 1.0)
    return (sign * torch.arange(1, shape[0] + 1))[:, None] * torch.linspace(-1, 2, shape[1])


def test_cosines_of_random_rows_are_small_and_those_of_condensed_rows_are_one(project: Path) -> None:
    run = run_config(n_layers=3)
    tensors = weights(run)
    write_snapshot(run, 0, tensors)
    name = "blocks.2.attention.q_proj.weight"
    write_snapshot(run, 4, tensors | {name: condensed(tensors[name].shape)})
    found = similarity.measure(run, HELDOUT)
    assert found is not None and found.steps == [0, 4] and found.tokens == [0, 4 * 128]
    number = [matrix.name for matrix in found.matrices].index(name)
    before, after = found.cosines[:, number].astype(int)
    sign = np.where(np.arange(16) % 3 == 2, -1, 1)
    assert (after == SCALE * np.outer(sign, sign)).all()
    assert (np.diag(before) == SCALE).all() and (before == before.T).all() and np.abs(before).mean() < SCALE / 2
    assert found.stable_ranks[1][number] == pytest.approx(1, abs=1e-3) and found.stable_ranks[0][number] > 2
    others = [index for index in range(len(found.matrices)) if index != number]
    assert (found.cosines[0, others] == found.cosines[1, others]).all()
    assert found.changes["name"].tolist() == [name] and found.changes["step"].tolist() == [4]


def test_a_low_rank_change_shows_in_the_change_where_a_large_start_hides_it() -> None:
    random = torch.randn(128, 128, generator=torch.Generator().manual_seed(0))
    start = {"blocks.1.attention.q_proj.weight": random}
    added = condensed(random.shape) / condensed(random.shape).norm() * random.norm()  # as large as the start
    rows = []
    for part in (0.01, 0.1, 10.0):
        now = {name: weight + part * added for name, weight in start.items()}
        rows += similarity.measure_changes(8, 1024, start, now)
    table = pd.DataFrame(rows, columns=similarity.CHANGES)  # a hundredth is below what bfloat16 can tell
    assert table["moved"].tolist() == pytest.approx([0.1, 10], rel=1e-4)
    one = 1 / similarity.gaussian_stable_rank(128, 128)
    assert table["change_ratio"].tolist() == pytest.approx([one, one], rel=1e-3)
    assert table["weight_ratio"].iloc[0] > 0.8 and table["weight_ratio"].iloc[1] < 1.2 * one
    assert (table["kind"] == "query").all() and (table["layer"] == 1).all()


def test_cosines_are_those_of_the_named_rows(project: Path) -> None:
    run = run_config(d_ff=100)
    tensors = weights(run)
    write_snapshot(run, 0, tensors)
    found = similarity.measure(run, HELDOUT)
    assert found is not None
    for matrix, cosines in zip(found.matrices, found.cosines[0], strict=True):
        rows = tensors[matrix.name].to(torch.bfloat16).double()[matrix.rows]
        rows /= rows.norm(dim=1, keepdim=True)
        assert np.abs(cosines / SCALE - (rows @ rows.T).numpy()).max() < 0.51 / SCALE


def test_rows_are_spread_over_a_matrix_and_those_of_the_embedding_are_of_frequent_tokens() -> None:
    embedding, up = similarity.chosen_rows({"embed.weight": 257, "blocks.0.ffn.ffn_up.weight": 7}, HELDOUT)
    assert embedding[:3] == ("embed.weight", "embedding", -1) and embedding.rows[:4] == [7, 3, 256, 0]
    assert up == Matrix("blocks.0.ffn.ffn_up.weight", "ffn_up", 0, list(range(7))) and len(embedding.rows) == 7
    (wide,) = similarity.chosen_rows({"blocks.0.ffn.ffn_up.weight": 1000}, HELDOUT)
    assert len(set(wide.rows)) == similarity.ROWS and (wide.rows[0], wide.rows[-1]) == (0, 999)
    assert set(np.diff(wide.rows)) == {15, 16}


@pytest.mark.parametrize("moe", [None, {"n_experts": 4, "top_k": 2, "balance_coef": 0.01, "z_coef": 0.0}])
@pytest.mark.parametrize("n_layers", [1, 2])
def test_the_pictured_matrices_exist_in_dense_models_and_in_mixtures(project: Path, moe: object, n_layers: int) -> None:
    run = run_config(n_layers=n_layers, moe=moe)
    write_snapshot(run, 0, weights(run))
    found = similarity.measure(run, HELDOUT)
    assert found is not None
    assert [matrix.kind for matrix in found.matrices] == ["embedding", *["query"] * n_layers, "ffn_up"]
    assert found.cosines.shape == (1, 2 + n_layers, 16, 16)


def test_a_run_without_snapshots_has_no_pictures(project: Path) -> None:
    assert similarity.measure(run_config(), HELDOUT) is None and similarity.load("t-1.0-both") is None


def test_what_is_saved_is_loaded_and_has_the_same_bytes_twice(project: Path) -> None:
    run = run_config()
    tensors = weights(run)
    write_snapshot(run, 0, tensors)
    write_snapshot(run, 2, {name: weight + weight.flip(0) for name, weight in tensors.items()})
    found = similarity.measure(run, HELDOUT)
    assert found is not None
    similarity.save(run.run, found)
    before = [path.read_bytes() for path in similarity.files(run.run)]
    loaded = similarity.load(run.run)
    assert loaded is not None and (loaded.steps, loaded.tokens) == (found.steps, found.tokens)
    assert loaded.matrices == found.matrices and np.array_equal(loaded.cosines, found.cosines)
    assert np.allclose(loaded.stable_ranks, found.stable_ranks, atol=1e-4)
    pd.testing.assert_frame_equal(loaded.changes, found.changes, rtol=1e-6)
    assert set(loaded.changes["kind"]) >= {"embedding", "head", "query", "ffn_down"} and len(loaded.changes) == 10
    similarity.save(run.run, loaded)
    assert before == [path.read_bytes() for path in similarity.files(run.run)]


def test_frames_are_log_spaced_and_few() -> None:
    assert log_spaced([0, 1, 2, 4], 4) == [0, 1, 2, 4]
    steps = [0, 1, 2, 4, 8, 16, 32, 64, 100, 128, 200, 256, 300, 400, 500, 512, 600, 700, 732]
    assert log_spaced(steps, 6) == [0, 2, 16, 64, 200, 732]
    many = log_spaced(range(5000), similarity.FRAMES)
    assert len(many) <= similarity.FRAMES and (many[0], many[-1]) == (0, 4999)


def test_a_run_keeps_less_than_400_kilobytes() -> None:
    assert similarity.FRAMES * 4 * similarity.ROWS**2 < 400_000
