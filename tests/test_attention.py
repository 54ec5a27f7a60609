"""Attention maps against matrices whose cells can be added up by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, run_config
from torch import nn

from smallinit.evaluation import attention
from smallinit.evaluation.config import EvaluateConfig
from smallinit.init import initialize
from smallinit.model import Decoder

SETTINGS = EvaluateConfig(tokens=10**9, slice_tokens=64, attention_windows=3, micro_batch=4, threads=1)
TEXT = np.random.default_rng(0).integers(0, VOCABULARY, 64 * 4 + 5).astype(np.uint16)


def decoder(**changes: Any) -> Decoder:
    model = Decoder(run_config(n_layers=2, batch_tokens=1024, **changes).model)
    initialize(model, 0.25, 0)
    return model.eval()


def random_attention(seq_len: int) -> np.ndarray:
    scores = np.where(np.tri(seq_len) > 0, np.random.default_rng(1).normal(0, 2, (seq_len, seq_len)), -np.inf)
    weights = np.exp(scores)
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("seq_len", [8, 32, 33, 50, 64, 100, 256])
def test_groups_are_even_and_the_first_token_is_a_column_of_its_own(seq_len: int) -> None:
    queries, keys = attention.cell_starts(seq_len)
    sizes = np.diff([*queries, seq_len])
    assert len(queries) == min(attention.CELLS, seq_len) and sizes.sum() == seq_len and np.ptp(sizes) <= 1
    assert keys[0] == 0 and keys[1] == 1 and set(queries) <= set(keys)
    assert len(keys) == len(queries) + (sizes[0] > 1)


@pytest.mark.parametrize("seq_len", [16, 50, 64])
def test_a_cell_is_the_mean_over_its_queries_of_what_they_give_to_its_keys(seq_len: int) -> None:
    matrix = random_attention(seq_len)
    cells = attention.in_cells(matrix)
    queries, keys = attention.cell_starts(seq_len)
    ends = [*queries[1:], seq_len], [*keys[1:], seq_len]
    for row, (first, last) in enumerate(zip(queries, ends[0], strict=True)):
        for column, (left, right) in enumerate(zip(keys, ends[1], strict=True)):
            assert cells[row, column] == pytest.approx(matrix[first:last, left:right].sum(axis=1).mean())
    np.testing.assert_allclose(cells.sum(axis=-1), 1)
    np.testing.assert_allclose(cells[:, 0], [matrix[a:b, 0].mean() for a, b in zip(queries, ends[0], strict=True)])


def test_a_sink_and_a_local_head_are_seen_where_they_are() -> None:
    sink = np.zeros((64, 64))
    sink[:, 0] = 1
    local = np.eye(64)
    cells = attention.in_cells(np.stack([sink, local]))
    assert cells.shape == (2, 32, 33)
    assert (cells[0][:, 0] == 1).all() and (cells[0][:, 1:] == 0).all()
    assert cells[1][0].tolist()[:3] == [0.5, 0.5, 0] and (np.diag(cells[1][1:, 2:]) == 1).all()


@pytest.mark.parametrize("seq_len", [16, 64])
def test_attention_without_queries_is_the_uniform_map_whatever_the_window(seq_len: int) -> None:
    model = decoder(seq_len=seq_len)
    for block in model.blocks:
        nn.init.zeros_(block.attention.q_proj.weight)  # type: ignore[union-attr,arg-type]
    found = attention.maps(model, TEXT, SETTINGS)
    uniform = attention.uniform_map(seq_len)
    assert found.dtype == np.float16 and found.shape == (2, 2, *uniform.shape)
    np.testing.assert_allclose(found, np.broadcast_to(uniform, found.shape), rtol=2e-3)


@torch.no_grad()
def test_a_map_is_the_mean_over_windows_of_its_layer_and_head() -> None:
    model = decoder(seq_len=64)
    found = attention.maps(model, TEXT, SETTINGS)
    ids = torch.from_numpy(TEXT[: 3 * 64].astype(np.int64)).view(3, 64)
    cos, sin = model.rotary(ids)
    x, _ = model.blocks[0](model.embed(ids), cos, sin)
    block: Any = model.blocks[1]
    wanted = block.attention.probabilities(block.attention_norm(x), cos, sin)[:, 1].mean(dim=0)
    np.testing.assert_allclose(found[1, 1], attention.in_cells(wanted.numpy()), rtol=2e-3, atol=1e-6)
    assert not np.allclose(found[1, 1], found[1, 0], rtol=2e-3)


def test_the_maps_of_a_large_model_stay_small() -> None:
    assert 24 * attention.uniform_map(256).size * 2 < 100_000  # bytes in float16


def test_more_windows_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match=r"evaluate\.attention_windows = 50, .* 16 windows"):
        attention.maps(decoder(), TEXT, SETTINGS.model_copy(update={"attention_windows": 50}))
