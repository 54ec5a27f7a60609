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

from smallinit import launch, params, paths, resolve, train
from smallinit.analysis.config import AnalysisConfig
from smallinit.batches import Tokens
from smallinit.config import RunConfig
from smallinit.evaluation import attention, heldout, inputs, router, save
from smallinit.evaluation.config import EvaluateConfig
from smallinit.init import initialize
from smallinit.model import Attention, Decoder
from smallinit.moe import MixtureOfExperts, balance_loss, expert_load, router_entropy

SETTINGS = EvaluateConfig(tokens=10**9, slice_tokens=64, attention_windows=3, micro_batch=4, threads=1)
INTERVALS = AnalysisConfig(bootstrap_samples=2000, confidence=0.95, seed=0, difficulty_bins=10)
MOE = {"n_experts": 4, "top_k": 2, "balance_coef": 0.01, "z_coef": 0.001}
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


def test_loss_and_bits_per_byte_by_hand_lie_in_their_intervals() -> None:
    loss_sums, tokens, sizes = np.arange(1.0, 41), np.full(40, 4), np.full(40, 10)
    table = pd.DataFrame({"loss_sum": loss_sums, "tokens": tokens, "bytes": sizes})
    summary = heldout.summarize(table, INTERVALS)
    assert summary["loss"] == pytest.approx(20.5 / 4) and summary["bits_per_byte"] == pytest.approx(2.05 / math.log(2))
    error = np.std(loss_sums) / math.sqrt(40)  # of a mean over documents: what a bootstrap estimates
    for name, scale in (("loss", 4), ("bits_per_byte", 10 * math.log(2))):
        width = summary[f"{name}_high"] - summary[f"{name}_low"]
        assert summary[f"{name}_low"] < summary[name] < summary[f"{name}_high"]
        assert width == pytest.approx(2 * 1.96 * error / scale, rel=0.1)
    assert heldout.summarize(table, INTERVALS) == summary
    assert heldout.summarize(table[:1], INTERVALS)["loss_low"] is None  # one document has no interval


def test_the_report_separates_languages_and_sources_and_weighs_by_token() -> None:
    table = pd.DataFrame(
        {
            **{"source": ["news", "law", "wiki"], "language": ["en", "zh", "en"], "tokens": [1, 2, 3]},
            **{"loss_sum": [6.0, 2.0, 6.0], "bytes": [2, 6, 10]},
        }
    )
    report = heldout.report(np.array([1.0, 2.0, 6.0], dtype=np.float32), table, INTERVALS)
    assert (report["loss"], report["tokens"], report["diverged"]) == (3.0, 3, False)
    assert (report["documents"]["loss"], report["documents"]["documents"]) == (14 / 6, 3)
    assert report["language"]["en"]["loss"] == 3.0 and report["language"]["zh"]["loss"] == 1.0
    assert report["language"]["en"]["bits_per_byte"] == pytest.approx(1 / math.log(2))
    assert {name: part["tokens"] for name, part in report["source"].items()} == {"law": 2, "news": 1, "wiki": 3}


# ------------------------------------------------------------------------------------------------------------ attention
def decoder(**changes: Any) -> Any:  # a Decoder
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
    for block in model.blocks:
        nn.init.zeros_(block.attention.q_proj.weight)
        if block.attention.gate_proj is not None:
            nn.init.zeros_(block.attention.gate_proj.weight)
    table = attention.measure(model, TEXT, SETTINGS)
    assert list(table.columns) == attention.COLUMNS
    assert sorted(zip(table["window"], table["layer"], table["head"], strict=True)) == sorted(np.ndindex(3, 2, 2))
    np.testing.assert_allclose(table["sink"], attention.uniform_sink(16), rtol=1e-5)
    if gate == "none":
        assert table[["gate", "gate_below_0.1"]].isna().all(axis=None)
    else:
        assert (table["gate"] == 0.5).all() and (table["gate_below_0.1"] == 0).all()


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("gate", ["headwise", "elementwise"])
@torch.no_grad()
def test_each_row_is_the_measure_of_its_window_layer_and_head(gate: str, kv_heads: int) -> None:
    model = decoder(gate=gate, n_kv_heads=kv_heads)
    table = attention.measure(model, TEXT, SETTINGS).set_index(["window", "layer", "head"])
    ids = torch.from_numpy(TEXT[16:32].astype(np.int64))[None]  # window 1
    cos, sin = model.rotary(ids)
    x, _ = model.blocks[0](model.embed(ids), cos, sin)
    layer = model.blocks[1].attention
    h = model.blocks[1].attention_norm(x)
    probabilities = layer.probabilities(h, cos, sin)
    of_head_1 = slice(8, 16) if gate == "elementwise" else slice(1, 2)
    gates = torch.sigmoid(h @ layer.gate_proj.weight.T)[0, :, of_head_1]
    assert table.loc[(1, 1, 1), "sink"] == pytest.approx(probabilities[0, 1, 8:, 0].mean().item(), rel=1e-4)
    assert table.loc[(1, 1, 1), "gate"] == pytest.approx(gates.mean().item(), rel=1e-4)
    assert table.loc[(1, 1, 1), "gate_below_0.1"] == pytest.approx((gates < 0.1).float().mean().item(), rel=1e-4)


def test_measuring_leaves_no_hook_behind() -> None:
    model = decoder(moe=MOE)
    attention.measure(model, TEXT, SETTINGS)
    router.measure(model, TEXT, SETTINGS)
    assert not any(module._forward_pre_hooks for module in model.modules())


# -------------------------------------------------------------------------------------------------------------- routers
def routers(model: Decoder) -> pd.DataFrame:
    table = router.measure(model, TEXT, SETTINGS)
    assert table is not None and list(table.columns) == router.COLUMNS
    assert table[["layer", "expert"]].to_numpy().tolist() == [[layer, e] for layer in range(2) for e in range(4)]
    return table


def test_an_undecided_router_has_full_entropy_no_imbalance_and_uses_the_first_experts() -> None:
    model = decoder(moe=MOE)
    for block in model.blocks:
        nn.init.zeros_(block.ffn.router.weight)
    table = routers(model)
    np.testing.assert_allclose(table["entropy"], math.log(4), rtol=1e-6)
    np.testing.assert_allclose(table["balance_loss"], 1, rtol=1e-6)
    assert table["load"].tolist() == [0.5, 0.5, 0, 0] * 2


@torch.no_grad()
def test_a_collapsed_router_is_seen_in_its_layer_only() -> None:
    model = decoder(moe=MOE)
    model.embed.weight[:, 0] = 50.0  # so that coordinate 0 of all tokens is the same large number ...
    undecided, collapsed = (block.ffn.router.weight.zero_() for block in model.blocks)
    collapsed[1:3, 0] = 100.0  # ... by which two experts are chosen, and surely
    table = routers(model)
    assert (undecided == 0).all() and (table["balance_loss"][table["layer"] == 0] == 1).all()
    last = table[table["layer"] == 1]
    assert last["load"].tolist() == [0, 0.5, 0.5, 0]
    np.testing.assert_allclose(last["balance_loss"], 2, rtol=1e-3)
    np.testing.assert_allclose(last["entropy"], math.log(2), rtol=1e-3)


def test_the_table_is_that_of_the_routers_decisions_on_all_windows() -> None:
    model, found = decoder(moe=MOE), []
    for block in model.blocks:
        block.ffn.register_forward_pre_hook(lambda ffn, args: found.append(ffn.routing(args[0].flatten(0, 1))))
    with torch.no_grad():
        model(torch.from_numpy(TEXT[:48].astype(np.int64)).view(3, 16))
    kept = list(found)  # measuring fills it again
    table = routers(model).groupby("layer")
    for layer, routing in enumerate(kept):
        assert len(routing.logits) == 48
        rows = table.get_group(layer)
        np.testing.assert_allclose(rows["load"], expert_load(routing), rtol=1e-6)
        np.testing.assert_allclose(rows["entropy"], router_entropy(routing), rtol=1e-6)
        np.testing.assert_allclose(rows["balance_loss"], balance_loss(routing), rtol=1e-6)
        assert rows["load"].sum() == pytest.approx(1)


def test_a_dense_model_has_no_routers() -> None:
    assert router.measure(decoder(), TEXT, SETTINGS) is None


@pytest.mark.parametrize("kind", [Attention, MixtureOfExperts])
def test_layers_come_in_their_order_with_what_their_norm_gave_them(kind: type[nn.Module]) -> None:
    model = decoder(moe=MOE)
    seen = inputs.layer_inputs(model, kind, TEXT, SETTINGS)
    name = "attention" if kind is Attention else "ffn"
    assert [layer for layer, _ in seen] == [getattr(block, name) for block in model.blocks]
    for _, x in seen:
        assert x.shape == (3, 16, 16) and not x.requires_grad
        torch.testing.assert_close(x.square().mean(-1), torch.ones(3, 16), rtol=1e-3, atol=0)


# ---------------------------------------------------------------------------------------------------------------- files
TRACKED = params.load(Path(__file__).parents[1] / "params.yaml")


def tiny(variant: str) -> RunConfig:
    """A variant of the tracked params.yaml at the size of the tests."""
    real, small = resolve.run(TRACKED, f"{next(iter(TRACKED.sizes))}-1.0-{variant}").model_dump(), run_config()
    sizes = ("vocab_size", "d_model", "n_layers", "n_heads", "d_ff", "seq_len")
    real["model"] |= {name: getattr(small.model, name) for name in sizes}
    real["model"]["n_kv_heads"] = min(real["model"]["n_kv_heads"], small.model.n_heads)
    settings = small.train.model_dump() | {"tokens": 3 * 128, "eval_tokens": 10**6}
    return RunConfig.model_validate(real | {"train": settings})


@pytest.mark.parametrize("variant", TRACKED.variants)
def test_every_variant_is_saved_loaded_bitwise_and_evaluated(project: Path, variant: str) -> None:
    run, tokens = tiny(variant), Tokens()
    outcome = train.fit(run, tokens)
    launch.save(run, tokens, outcome)
    model = heldout.load_model(run)
    assert not model.training and not heldout.has_diverged(run.run)
    assert model.state_dict().keys() == outcome.weights.keys()
    assert all(torch.equal(value, outcome.weights[name]) for name, value in model.state_dict().items())
    losses = heldout.heldout_losses(model, tokens.heldout, 16, SETTINGS)
    assert losses.mean() == pytest.approx(outcome.heldout["loss"].iloc[-1], rel=1e-5)  # the loss that training saw
    table = heldout.document_losses(losses, documents((1, 40), (40, 209)))
    heads, load = (module.measure(model, tokens.heldout, SETTINGS) for module in (attention, router))
    maps = attention.maps(model, tokens.heldout, SETTINGS)
    save.save(run.run, heldout.report(losses, table, INTERVALS), table, losses[:64], heads, maps, load)
    written = pd.read_csv(paths.RESULTS / "evaluate" / run.run / "attention.csv")
    assert written["sink"].between(0, 1).all() and written["gate"].isna().all() == (run.model.gate == "none")
    assert (paths.RESULTS / "evaluate" / run.run / "router.csv").exists() == (run.model.moe is not None)


def test_without_weights_the_message_says_what_to_run(project: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"dvc repro train@t-1\.0-both"):
        heldout.load_model(run_config())


def test_what_is_saved_comes_back(project: Path) -> None:
    losses = measured()
    table = heldout.document_losses(losses, documents((1, 40), (40, 209)))
    model = decoder(moe=MOE)
    heads, load = attention.measure(model, TEXT, SETTINGS), routers(model)
    maps = attention.maps(model, TEXT, SETTINGS)
    save.save("t", heldout.report(losses, table, INTERVALS), table, losses[:64], heads, maps, load)
    folder = paths.RESULTS / "evaluate" / "t"
    assert json.loads((folder / "metrics.json").read_text())["run"] == "t"
    assert pd.read_csv(folder / "documents.csv")["loss_sum"].tolist() == pytest.approx(
        table["loss_sum"].tolist(), rel=1e-6
    )
    assert len(pd.read_csv(folder / "attention.csv")) == 3 * 2 * 2
    pd.testing.assert_frame_equal(pd.read_csv(folder / "router.csv"), load, check_dtype=False, rtol=1e-5)
    kept = np.load(folder / "token_losses.npy")
    assert kept.dtype == np.float16 and np.allclose(kept, losses[:64], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(np.load(folder / "attention_maps.npy"), maps, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("experts", [False, True])
def test_a_diverged_run_is_saved_with_nulls_and_empty_tables(project: Path, experts: bool) -> None:
    save.save_diverged("t", experts=experts)
    folder = paths.RESULTS / "evaluate" / "t"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["diverged"] is True and metrics["loss"] is None and metrics["documents"] is None
    empty = {"documents": save.DOCUMENT_COLUMNS, "attention": attention.COLUMNS}
    for name, columns in (empty | ({"router": router.COLUMNS} if experts else {})).items():
        table = pd.read_csv(folder / f"{name}.csv")
        assert len(table) == 0 and list(table.columns) == columns
    assert (folder / "router.csv").exists() == experts and len(np.load(folder / "token_losses.npy")) == 0


def test_less_text_than_a_window_is_named() -> None:
    with pytest.raises(ValueError, match=r"evaluate\.tokens = 8 .*model\.seq_len = 16"):
        heldout.heldout_losses(Bigram(), TEXT, 16, SETTINGS.model_copy(update={"tokens": 8}))


@pytest.mark.parametrize("module", [attention, router])
def test_more_windows_than_there_are_are_refused(module: Any) -> None:
    with pytest.raises(ValueError, match=r"evaluate\.attention_windows = 50, .* 13 windows"):
        module.measure(decoder(moe=MOE), TEXT, SETTINGS.model_copy(update={"attention_windows": 50}))
