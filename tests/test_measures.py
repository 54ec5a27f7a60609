"""What training measures on weights and blocks, against matrices and networks whose values are known."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import run_config
from training import moe

from smallinit import measures, train
from smallinit.batches import Tokens
from smallinit.init import audit, initialize
from smallinit.model import Decoder


def with_spectrum(values: list[float], n: int, m: int, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    left, _ = torch.linalg.qr(torch.randn(n, n, generator=random))
    right, _ = torch.linalg.qr(torch.randn(m, m, generator=random))
    diagonal = torch.zeros(n, m)
    diagonal[range(len(values)), range(len(values))] = torch.tensor(values)
    return left @ diagonal @ right


@pytest.mark.parametrize("n, m", [(12, 30), (30, 12), (12, 12)])
@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize("values, known", [([3.0], 1.0), ([2.0] * 5, 5.0), ([2.0, 1.0, 1.0], 1.5), ([1.0] * 12, 12.0)])
def test_the_stable_rank_of_a_known_spectrum(n: int, m: int, scale: float, values: list[float], known: float) -> None:
    assert measures.stable_rank(scale * with_spectrum(values, n, m)) == pytest.approx(known, rel=1e-4)


def test_the_stable_rank_of_experts_is_their_mean() -> None:
    stack = torch.stack([with_spectrum([1.0], 8, 6), with_spectrum([1.0] * 5, 8, 6)])
    assert measures.stable_rank(stack) == pytest.approx(3.0, rel=1e-4)


def test_numbers_of_any_size_are_no_obstacle_and_zero_has_no_rank() -> None:
    for scale in (1e-30, 1e30):
        assert measures.stable_rank(scale * with_spectrum([1.0] * 4, 6, 9)) == pytest.approx(4.0, rel=1e-4)
    assert math.isnan(measures.stable_rank(torch.zeros(3, 4)))


@pytest.mark.parametrize("n, m", [(400, 400), (900, 300)])
def test_a_large_gaussian_matrix_has_the_gaussian_stable_rank(n: int, m: int) -> None:
    matrix = 1e-3 * torch.randn(n, m, generator=torch.Generator().manual_seed(1))
    assert measures.stable_rank(matrix) == pytest.approx(measures.gaussian_stable_rank(n, m), rel=0.03)


def test_planted_clusters_of_rows_are_seen_as_blocks() -> None:
    random = torch.Generator().manual_seed(0)
    centres, _ = torch.linalg.qr(torch.randn(64, 2, generator=random))
    rows = torch.cat([centres[:, 0].repeat(10, 1), -3e-9 * centres[:, 1].repeat(5, 1)])  # tiny rows count as much
    cosine = measures.row_cosine(rows)
    assert torch.allclose(cosine[:10, :10], torch.ones(10, 10), atol=1e-5)
    assert torch.allclose(cosine[10:, 10:], torch.ones(5, 5), atol=1e-5)
    assert cosine[:10, 10:].abs().max() < 1e-5
    mean, above = measures.alignment(rows)
    share = (10 * 9 + 5 * 4) / (15 * 14)
    assert (mean, above) == (pytest.approx(share, abs=1e-5), pytest.approx(share, abs=1e-6))
    opposite = torch.cat([rows[:10], -rows[:10]])
    assert measures.alignment(opposite) == (pytest.approx(1.0, abs=1e-5), 1.0)  # one line is one direction


def test_many_rows_are_thinned_out_evenly() -> None:
    rows = torch.eye(4)[torch.arange(4096) // 1024]
    assert measures.row_cosine(rows).shape == (512, 512)
    assert measures.alignment(rows)[1] == pytest.approx((4 * 128 * 127) / (512 * 511))


def test_alignment_of_experts_is_their_mean() -> None:
    stack = torch.stack([torch.ones(3, 4), torch.eye(4)[:3]])
    assert measures.alignment(stack) == (pytest.approx(0.5, abs=1e-6), 0.5)


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
@pytest.mark.parametrize("rms, eps, known", [(1.0, 0.0, 1.0), (1e-3, 1e-6, 0.5**0.5), (1e-5, 1e-4, 1e-3)])
def test_a_norm_attenuates_what_is_below_its_eps(norm: str, rms: float, eps: float, known: float) -> None:
    decoder = Decoder(run_config(norm=norm, norm_eps=eps).model)
    x = rms * torch.tensor([1.0, -1.0]).repeat(8).expand(2, 3, 16)  # mean 0, so that both norms see the same variance
    found = measures.norm_measures(decoder.final_norm, x)
    assert found["hidden_rms"] == pytest.approx(rms)
    assert found["attenuation"] == pytest.approx(known, rel=1e-3)
    torch.nn.init.ones_(decoder.final_norm.weight)
    assert decoder.final_norm(x).square().mean().sqrt().item() == pytest.approx(found["attenuation"], rel=1e-4)


def test_flow_sink_and_gate_of_a_planted_decoder() -> None:
    run = run_config(n_layers=2)
    decoder = Decoder(run.model)
    initialize(decoder, 0.5, 0)
    ids = torch.arange(32).view(2, 16)
    with torch.no_grad():
        for name in ("q_proj", "gate_proj"):
            getattr(decoder.blocks[0].attention, name).weight.zero_()  # uniform attention, gates of one half
        decoder.blocks[1].attention.o_proj.weight.zero_()  # adds nothing
    rows = pd.DataFrame(measures.measure_blocks(decoder, ids), columns=measures.BLOCKS[2:])
    rows = rows.set_index(["layer", "part"])
    assert rows.index.tolist() == [(0, "attention"), (0, "ffn"), (1, "attention"), (1, "ffn"), (2, "final")]
    first = rows.loc[(0, "attention")]
    assert first["sink"] == pytest.approx(np.mean([1 / (t + 1) for t in range(8, 16)]), rel=1e-5)
    assert (first["gate"], first["gate_below_0.1"]) == (0.5, 0.0)
    x = decoder.embed(ids)
    update = decoder.blocks[0].attention(decoder.blocks[0].attention_norm(x), *decoder.rotary(ids))
    assert first["flow"] == pytest.approx((update.norm() / x.norm()).item(), rel=1e-5)
    assert rows.loc[(0, "ffn"), "hidden_rms"] == pytest.approx((x + update).square().mean().sqrt().item(), rel=1e-5)
    assert rows.loc[(1, "attention"), "flow"] == 0
    assert rows.loc[(1, "attention"), "hidden_rms"] == rows.loc[(1, "ffn"), "hidden_rms"]
    assert rows["flow"].isna().tolist() == [False] * 4 + [True] and rows["sink"].isna().sum() == 3
    assert not decoder.final_norm._forward_hooks  # nothing is left behind


def test_norms_of_gradient_and_update_are_those_of_the_step() -> None:
    decoder = Decoder(run_config().model)
    initialize(decoder, 1.0, 0)
    ids = torch.arange(17)[None]
    decoder(ids[:, :-1], ids[:, 1:])[0].backward()
    gradient = decoder.head.weight.grad.clone()  # type: ignore[union-attr]
    before = decoder.head.weight.detach().clone()  # type: ignore[union-attr]
    step = measures.Step(decoder)
    with torch.no_grad():
        decoder.head.weight.add_(torch.full_like(before, 0.5))  # type: ignore[union-attr]
    moved = step.close(decoder)
    assert moved["head.weight"] == (
        pytest.approx(gradient.norm().item(), rel=1e-5),
        pytest.approx(0.5 * math.sqrt(before.numel())),
    )
    assert moved["embed.weight"][1] == 0 and moved["embed.weight"][0] > 0
    assert not any("norm" in name for name in moved)


def test_a_row_for_every_matrix_with_its_kind_and_layer() -> None:
    decoder = Decoder(run_config(n_layers=2, **moe()).model)
    table = audit(decoder, initialize(decoder, 1.0, 0))
    kinds = dict(zip(table["name"], table["kind"], strict=True))
    rows = pd.DataFrame(measures.measure_matrices(decoder, kinds, {}), columns=measures.MATRICES[2:])
    assert set(rows["name"]) == {name for name, kind in kinds.items() if kind != "norm"}
    of = rows.set_index("name")
    assert of.loc["embed.weight", "layer"] == of.loc["head.weight", "layer"] == -1
    assert of.loc["blocks.1.ffn.router.weight", ["kind", "layer"]].tolist() == ["router", 1]
    assert of["grad_norm"].isna().all() and of["update_norm"].isna().all()
    target = dict(zip(table["name"], table["target_std"], strict=True))
    for name, parameter in decoder.named_parameters():
        if parameter.ndim > 1:
            assert of.loc[name, "weight_norm"] == pytest.approx(target[name] * parameter.numel() ** 0.5, rel=0.25)


@pytest.mark.parametrize("changes", [{}, moe(), {"norm": "layernorm", "mlp": "gelu", "tied_head": True}])
def test_training_measures_at_the_steps_of_the_held_out_loss(project: Path, changes: dict[str, object]) -> None:
    outcome = train.fit(run_config(**changes), Tokens())
    steps = outcome.heldout["step"].tolist()
    assert list(outcome.matrices) == measures.MATRICES and list(outcome.blocks) == measures.BLOCKS
    for table, rows in ((outcome.matrices, "name"), (outcome.blocks, "part")):
        assert table["step"].unique().tolist() == steps
        assert table.groupby("step")[rows].count().nunique() == 1
    later = outcome.matrices[outcome.matrices["step"] > 0]
    assert later[["grad_norm", "update_norm"]].notna().all(axis=None)
    # Of the first step: the gradient of all matrices and gains together is what the curve has.
    first = later[later["step"] == 1]
    assert first["grad_norm"].pow(2).sum() ** 0.5 == pytest.approx(outcome.curve["grad_norm"].iloc[0], rel=0.1)
    assert (first["grad_norm"].pow(2).sum() ** 0.5) <= outcome.curve["grad_norm"].iloc[0] * (1 + 1e-6)


def test_measuring_changes_no_number_of_the_training(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = train.fit(run_config(), Tokens())
    monkeypatch.setattr(measures, "measure_matrices", lambda *rest: [])
    monkeypatch.setattr(measures, "measure_blocks", lambda *rest: [])
    blind = train.fit(run_config(), Tokens())
    assert all(torch.equal(weight, blind.weights[name]) for name, weight in watched.weights.items())
    assert watched.curve.equals(blind.curve) and watched.heldout.equals(blind.heldout)
