"""Held-out measures against models whose loss and attention are known token by token."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import VOCABULARY, run_config
from torch import Tensor, nn

from smallinit import paths, train
from smallinit.batches import Tokens
from smallinit.evaluation import attention, heldout, save
from smallinit.evaluation.config import EvaluateConfig
from smallinit.init import initialize
from smallinit.model import Decoder, token_losses

SETTINGS = EvaluateConfig(tokens=10**9, slice_tokens=64, attention_windows=3, micro_batch=4, threads=1)
TEXT = np.random.default_rng(0).integers(0, VOCABULARY, 16 * 13 + 5).astype(np.uint16)  # 13 whole windows of 16


class Bigram(nn.Module):
    """A model that knows only the token before: its loss at each place can be looked up."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(1)
        self.table = torch.from_numpy(random.normal(0, 2, (VOCABULARY, VOCABULARY))).float().log_softmax(-1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table[ids]

    def losses(self, text: np.ndarray) -> np.ndarray:
        """Entry i is the loss of token i + 1."""
        return -self.table.numpy()[text[:-1].astype(int), text[1:].astype(int)]


def measured(**changes: int) -> np.ndarray:
    return heldout.heldout_losses(Bigram(), TEXT, 16, SETTINGS.model_copy(update=changes))


def documents(*bounds: tuple[int, int]) -> pd.DataFrame:
    table = pd.DataFrame(bounds, columns=["start", "end"])
    return table.assign(document=range(len(table)), source="a", language="en", bytes=7)


# --------------------------------------------------------------------------------------------------------------- losses
@pytest.mark.parametrize("micro_batch", [1, 4, 13, 100])
def test_every_token_gets_the_loss_of_its_own_place(micro_batch: int) -> None:
    losses = measured(micro_batch=micro_batch)
    assert losses.dtype == np.float32 and len(losses) == 13 * 16
    np.testing.assert_allclose(losses, Bigram().losses(TEXT)[: 13 * 16], rtol=1e-5, atol=1e-6)


def test_only_as_many_tokens_are_measured_as_asked_for() -> None:
    losses = measured(tokens=50)
    assert len(losses) == 48  # three whole windows
    np.testing.assert_array_equal(losses, measured()[:48])


def test_the_sum_over_documents_is_the_sum_over_tokens() -> None:
    losses = measured()
    table = heldout.document_losses(losses, documents((1, 2), (2, 40), (40, 41), (41, 150), (150, 209)))
    assert table["tokens"].tolist() == [1, 38, 1, 109, 59] and table["tokens"].sum() == len(losses)
    assert table["loss_sum"].sum() == pytest.approx(losses.sum(dtype=np.float64), rel=1e-12)


def test_a_documents_losses_are_those_of_its_tokens_and_not_of_their_neighbours() -> None:
    table = heldout.document_losses(measured(), documents((1, 2), (17, 30), (100, 101)))
    direct = Bigram().losses(TEXT)
    exact = [direct[start - 1 : end - 1].sum() for start, end in ((1, 2), (17, 30), (100, 101))]
    assert table["loss_sum"].tolist() == pytest.approx(exact, rel=1e-5)


def test_documents_that_are_cut_off_are_left_out() -> None:
    losses = measured()  # tokens 1 ... 208 are predicted
    table = heldout.document_losses(losses, documents((0, 5), (150, 209), (150, 210), (209, 212)))
    assert table[["start", "end"]].to_numpy().tolist() == [[150, 209]]


def test_bits_per_byte_by_hand() -> None:
    table = pd.DataFrame({"loss_sum": [math.log(2) * 6, math.log(2) * 10], "bytes": [3, 5]})
    assert heldout.bits_per_byte(table) == pytest.approx(2.0)


def test_the_report_separates_languages_and_sources_and_weighs_by_token() -> None:
    table = pd.DataFrame(
        {
            **{"source": ["news", "law", "wiki"], "language": ["en", "zh", "en"], "tokens": [1, 2, 3]},
            **{"loss_sum": [6.0, 2.0, 6.0], "bytes": [2, 6, 10]},
        }
    )
    report = heldout.report(np.array([1.0, 2.0, 6.0], dtype=np.float32), table)
    assert (report["loss"], report["tokens"], report["diverged"]) == (3.0, 3, False)
    assert (report["documents"]["loss"], report["documents"]["documents"]) == (14 / 6, 3)
    assert report["language"]["en"]["loss"] == 3.0 and report["language"]["zh"]["loss"] == 1.0
    assert report["language"]["en"]["bits_per_byte"] == pytest.approx(1 / math.log(2))
    assert {name: part["tokens"] for name, part in report["source"].items()} == {"law": 2, "news": 1, "wiki": 3}


# ------------------------------------------------------------------------------------------------------------ attention
def decoder(**changes: Any) -> Decoder:
    model = Decoder(run_config(n_layers=2, **changes).model)
    initialize(model, 0.25, 0)
    return model.eval()


def test_the_sink_of_planted_attention_has_its_known_value() -> None:
    planted = torch.zeros(1, 2, 4, 4)
    planted[0, 0, :, 0] = torch.tensor([1.0, 0.9, 0.2, 0.6])  # only the queries of the second half count
    planted[0, 1, :, 0] = torch.tensor([1.0, 0.0, 0.0, 0.5])
    assert attention.sink(planted).tolist() == [[pytest.approx(0.4), pytest.approx(0.25)]]
    assert attention.uniform_sink(4) == pytest.approx((1 / 3 + 1 / 4) / 2)


@pytest.mark.parametrize("gate", ["none", "headwise", "elementwise"])
def test_without_queries_attention_is_uniform_and_zero_gates_are_half_open(gate: str) -> None:
    model = decoder(gate=gate)
    for layer in attention.attention_layers(model):
        nn.init.zeros_(layer.q_proj.weight)
        if layer.gate_proj is not None:
            nn.init.zeros_(layer.gate_proj.weight)
    table = attention.measure(model, TEXT, SETTINGS)
    assert list(table.columns) == attention.COLUMNS
    assert sorted(zip(table["window"], table["layer"], table["head"], strict=True)) == sorted(np.ndindex(3, 2, 2))
    np.testing.assert_allclose(table["sink"], attention.uniform_sink(16), rtol=1e-5)
    if gate == "none":
        assert table[["gate", "gate_below_0.1"]].isna().all(axis=None)
    else:
        assert (table["gate"] == 0.5).all() and (table["gate_below_0.1"] == 0).all()


def test_each_row_is_the_measure_of_its_window_layer_and_head() -> None:
    model = decoder()
    table = attention.measure(model, TEXT, SETTINGS).set_index(["window", "layer", "head"])
    ids = torch.from_numpy(TEXT[16:32].astype(np.int64))[None]  # window 1
    cos, sin = model.rotary(ids)
    x = model.blocks[0](model.embed(ids), cos, sin)
    block = model.blocks[1]
    h = block.attention_norm(x)
    probabilities = block.attention.probabilities(h, cos, sin)
    gates = torch.sigmoid(h @ block.attention.gate_proj.weight.T)[0, :, :8]  # of head 0
    assert table.loc[(1, 1, 0), "sink"] == pytest.approx(probabilities[0, 0, 8:, 0].mean().item(), rel=1e-4)
    assert table.loc[(1, 1, 0), "gate"] == pytest.approx(gates.mean().item(), rel=1e-4)
    assert table.loc[(1, 1, 0), "gate_below_0.1"] == pytest.approx((gates < 0.1).float().mean().item(), rel=1e-4)


def test_measuring_leaves_no_hook_behind() -> None:
    model = decoder()
    attention.measure(model, TEXT, SETTINGS)
    assert not any(module._forward_pre_hooks for module in model.modules())


# ---------------------------------------------------------------------------------------------------------------- files
def test_a_saved_model_loads_bitwise_and_gives_the_loss_that_training_reported(project: Path) -> None:
    run = run_config(eval_tokens=10**6)
    outcome = train.fit(run, Tokens())
    train.save(run, Tokens(), outcome)
    model = heldout.load_model(run)
    assert not model.training and not heldout.has_diverged(run.run)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), outcome.model.parameters(), strict=True))
    ids = torch.from_numpy(TEXT[:17].astype(np.int64))[None]
    assert torch.equal(token_losses(model, ids), token_losses(outcome.model, ids))
    losses = heldout.heldout_losses(model, Tokens().heldout, 16, SETTINGS)
    assert losses.mean() == pytest.approx(outcome.heldout["loss"].iloc[-1], rel=1e-5)


def test_without_weights_the_message_says_what_to_run(project: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"dvc repro train@t-1\.0-both"):
        heldout.load_model(run_config())


def test_what_is_saved_comes_back(project: Path) -> None:
    losses = measured()
    table = heldout.document_losses(losses, documents((1, 40), (40, 209)))
    save.save("t", heldout.report(losses, table), table, losses[:64], attention.measure(decoder(), TEXT, SETTINGS))
    folder = paths.RESULTS / "evaluate" / "t"
    assert json.loads((folder / "metrics.json").read_text())["run"] == "t"
    assert pd.read_csv(folder / "documents.csv")["loss_sum"].tolist() == pytest.approx(
        table["loss_sum"].tolist(), rel=1e-6
    )
    assert len(pd.read_csv(folder / "attention.csv")) == 3 * 2 * 2
    kept = np.load(folder / "token_losses.npy")
    assert kept.dtype == np.float16 and np.allclose(kept, losses[:64], rtol=1e-3, atol=1e-3)


def test_a_diverged_run_is_saved_with_nulls_and_empty_tables(project: Path) -> None:
    save.save_diverged("t")
    folder = paths.RESULTS / "evaluate" / "t"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["diverged"] is True and metrics["loss"] is None and metrics["documents"] is None
    assert list(pd.read_csv(folder / "documents.csv").columns) == save.DOCUMENT_COLUMNS
    assert len(pd.read_csv(folder / "attention.csv")) == 0 and len(np.load(folder / "token_losses.npy")) == 0


@pytest.mark.parametrize(
    "settings",
    [{"tokens": 8}, {"attention_windows": 50}],
    ids=["fewer tokens than a window", "more windows than there are"],
)
def test_an_amount_of_text_that_does_not_fit_is_named(settings: dict[str, int]) -> None:
    changed = SETTINGS.model_copy(update=settings)
    with pytest.raises(ValueError, match=f"{next(iter(settings))}"):
        heldout.heldout_losses(Bigram(), TEXT, 16, changed)
        attention.measure(decoder(), TEXT, changed)
