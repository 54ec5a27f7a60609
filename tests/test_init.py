"""The gamma rule: every matrix starts at fan_in^-gamma, from numbers that depend on nothing but seed and name."""

import ast
import hashlib
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from smallinit import init
from smallinit.config import ModelConfig
from smallinit.init import GammaRule, audit, initialize, kind_of, plan
from smallinit.model import Decoder

GAMMAS = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5]
SIZES: dict[str, dict[str, Any]] = {
    "d32": {"d_model": 32, "n_heads": 2, "d_ff": 96},
    "d64": {"d_model": 64, "d_ff": 176, "n_layers": 2},
}
GATES = ["none", "headwise", "elementwise"]
MOE = {"n_experts": 4, "top_k": 2, "balance_coef": 0.01, "z_coef": 0.0}
FFNS: dict[str, dict[str, Any]] = {"dense": {}, "moe": {"moe": MOE}}
BOUND = 4  # sampling errors; the seeds are fixed, so a test that passes does so always


def model_config(**changes: Any) -> ModelConfig:
    values: dict[str, Any] = {
        **{"vocab_size": 257, "d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "seq_len": 16},
        **{"rope_theta": 10000.0, "norm": "rmsnorm", "norm_eps": 1e-12, "gate": "elementwise"},
        **{"mlp": "swiglu", "tied_head": False, "moe": None},
        **changes,
    }
    return ModelConfig.model_validate({"n_kv_heads": values["n_heads"], **values})


def started(rule: GammaRule | float = 1.0, seed: int = 0, **changes: Any) -> Decoder:
    model = Decoder(model_config(**changes))
    initialize(model, rule, seed)
    return model


def fan_in(name: str, config: ModelConfig) -> int:
    """The design's table, written down a second time."""
    return config.d_ff if "down" in name else config.n_heads * config.head_dim if "o_proj" in name else config.d_model


def assert_drawn_at(matrix: torch.Tensor, std: float, name: str) -> None:
    assert abs(matrix.std().item() - std) < BOUND * std / (2 * matrix.numel()) ** 0.5, name
    assert abs(matrix.mean().item()) < BOUND * std / matrix.numel() ** 0.5, name


def content(model: nn.Module) -> str:
    values = (p.detach().numpy().tobytes() for _, p in sorted(model.named_parameters()))
    return hashlib.sha256(b"".join(values)).hexdigest()[:16]


@pytest.mark.parametrize("ffn", FFNS)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("gamma", GAMMAS)
def test_every_matrix_starts_at_its_fan_in_to_the_minus_gamma(gamma: float, size: str, gate: str, ffn: str) -> None:
    model = started(gamma, gate=gate, **SIZES[size], **FFNS[ffn])
    matrices = {name: p.detach() for name, p in model.named_parameters() if "norm" not in name}
    of_a_layer = 4 + (gate != "none") + 3 + (ffn == "moe")  # attention, gate, feed-forward, router
    assert len(matrices) == 2 + model.config.n_layers * of_a_layer
    for name, matrix in matrices.items():
        assert_drawn_at(matrix, fan_in(name, model.config) ** -gamma, name)
        experts = matrix if matrix.ndim == 3 else matrix[None]
        for expert in experts:  # a stack that is right as a whole could still hold unequal experts
            assert_drawn_at(expert, fan_in(name, model.config) ** -gamma, name)


@pytest.mark.parametrize("changes", [{"mlp": "gelu"}, {"norm": "layernorm"}, {"n_kv_heads": 1}, {"tied_head": True}])
@pytest.mark.parametrize("ffn", FFNS)
def test_the_other_choices_of_the_model_follow_the_rule_too(ffn: str, changes: dict[str, Any]) -> None:
    model = started(0.7, d_model=32, n_layers=2, **changes, **FFNS[ffn])
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert torch.equal(parameter, torch.ones(32)), name
        else:
            assert_drawn_at(parameter.detach(), fan_in(name, model.config) ** -0.7, name)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_norm_gains_are_exactly_one(gamma: float) -> None:
    gains = [p for name, p in started(gamma).named_parameters() if "norm" in name]
    assert len(gains) == 3 and all(torch.equal(gain, torch.ones(16)) for gain in gains)


def test_the_entries_are_normal_and_not_merely_of_the_right_scale() -> None:
    values = started(0.5, d_model=64).embed.weight.detach().flatten() * 8
    assert values.pow(4).mean().item() == pytest.approx(3, rel=0.1)
    assert (values.abs() > 1.96).float().mean().item() == pytest.approx(0.05, abs=0.006)


def with_extras() -> Any:
    model: Any = started()
    model.blocks[0].mix = nn.Linear(4, 6)
    model.blocks[0].register_parameter("temperature", nn.Parameter(torch.full((1,), 0.3)))
    return model


def test_unknown_parameters_are_refused_all_at_once_and_nothing_is_changed() -> None:
    model = with_extras()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="2 of the parameters are of no known kind") as error:
        initialize(model, 0.5, 0)
    message = str(error.value)
    assert "blocks.0.mix.weight (6, 4)" in message and "blocks.0.temperature (1,)" in message
    assert all(f"{kind} (" in message for kind in init.KINDS)
    assert 'names={"0.temperature": "ffn_up"}' in message  # what to do about it, in a form to copy
    assert "q_proj" not in message  # what is known is not complained of
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_names_heal_an_unknown_parameter_by_ending_or_pattern() -> None:
    model = with_extras()
    starts = {
        start.name: start for start in initialize(model, 0.5, 0, {"mix.weight": "ffn_up", "blocks.*.temp*": "norm"})
    }
    assert starts["blocks.0.mix.weight"] == init.Start("blocks.0.mix.weight", "ffn_up", (6, 4), 4, 0.5)
    assert model.blocks[0].temperature.item() == 1
    assert torch.equal(model.blocks[0].mix.bias, torch.zeros(6))


def test_names_come_before_what_is_known() -> None:
    rule = GammaRule(1.0, {"ffn_down": 0.0})
    starts = plan(Decoder(model_config()), rule, {"head.weight": "ffn_down"})
    assert starts[-1].name == "head.weight" and (starts[-1].kind, starts[-1].std) == ("ffn_down", 1.0)


@pytest.mark.parametrize("kind", ["ffn_middle", "query+norm", "", "Query"])
def test_names_of_no_kind_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"mix\.weight.*which is none.*Kinds: embedding"):
        initialize(with_extras(), 1.0, 0, {"mix.weight": kind})


def test_an_ending_matches_whole_parts_of_a_name_only() -> None:
    assert kind_of("q_proj.weight") == kind_of("a.b.q_proj.weight") == "query"
    assert kind_of("a.seq_proj.weight") is None and kind_of("q_proj.weight_v") is None
    assert kind_of("blocks.0.attention.gate_proj.weight") == "attention_gate"
    assert kind_of("model.layers.0.mlp.gate_proj.weight") == "ffn_gate"


def test_no_two_endings_claim_the_same_name() -> None:
    """So the order of the table means nothing."""
    for pattern, kind in init.NAMES.items():
        name = f"part.{pattern.replace('*', 'x')}"
        claimed = {p for p in init.NAMES if init.fnmatchcase(f".{name}", f"*.{p}")}
        assert claimed == {pattern} and kind_of(name) == kind


def test_a_vector_cannot_be_of_a_kind_of_matrices() -> None:
    with pytest.raises(ValueError, match=r"blocks\.0\.temperature \(1,\) cannot be of kind router"):
        initialize(with_extras(), 1.0, 0, {"mix.weight": "ffn_up", "temperature": "router"})


def test_no_parameter_is_left_as_it_was() -> None:
    model = Decoder(model_config(moe=MOE))
    for parameter in model.parameters():
        nn.init.constant_(parameter, float("nan"))
    initialize(model, 1.0, 0)
    assert all(bool(torch.isfinite(value).all()) for value in model.state_dict().values())


def from_meta(**changes: Any) -> Decoder:
    with torch.device("meta"):
        model = Decoder(model_config(**changes))
    model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        nn.init.constant_(tensor, float("nan"))  # to_empty promises nothing: make sure that nothing survives by luck
    initialize(model, 1.0, 0)
    return model


@pytest.mark.parametrize("changes", [{}, {"moe": MOE}, {"tied_head": True}], ids=["dense", "moe", "tied"])
def test_meta_device_construction_gives_the_plain_weights(changes: dict[str, Any]) -> None:
    plain, meta = started(**changes), from_meta(**changes)
    for (name, a), (_, b) in zip(plain.named_parameters(), meta.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_a_model_from_the_meta_device_computes_what_a_plain_one_does() -> None:
    ids = torch.arange(16)[None]
    assert torch.equal(from_meta()(ids), started()(ids))


def test_a_model_without_memory_can_be_planned_but_not_filled() -> None:
    with torch.device("meta"):
        model = Decoder(model_config(moe=MOE))
    assert plan(model, 1.0) == plan(Decoder(model_config(moe=MOE)), 1.0)
    with pytest.raises(ValueError, match=r"embed\.weight.*router\.weight.*head\.weight.*to_empty"):
        initialize(model, 1.0, 0)


def test_weights_do_not_depend_on_the_order_of_modules() -> None:
    def build(*names: str) -> nn.Module:
        model = nn.Module()
        for name in names:
            model.add_module(name, nn.Linear(8, 8, bias=False))
        initialize(model, 1.0, 0)
        return model

    a, b = build("q_proj", "v_proj", "o_proj"), build("o_proj", "q_proj", "v_proj")
    assert all(torch.equal(value, b.state_dict()[name]) for name, value in a.state_dict().items())
    assert not torch.equal(a.q_proj.weight, a.v_proj.weight)  # type: ignore[union-attr,arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        *({"d_ff": 64}, {"n_layers": 3}, {"gate": "none"}, {"norm_eps": 1e-5}, {"seq_len": 32}),
        *({"mlp": "gelu"}, {"norm": "layernorm"}, {"tied_head": True}),
    ],
)
def test_a_change_of_the_model_leaves_unrelated_weights_alone(changes: dict[str, Any]) -> None:
    changed = started(**changes).state_dict()
    same = {name: value for name, value in started().state_dict().items() if "d_ff" not in changes or "ffn" not in name}
    assert all(torch.equal(value, changed[name]) for name, value in same.items() if name in changed)
    assert len(same.keys() & changed.keys()) >= len(same) - 1


def test_gammas_share_one_draw() -> None:
    large, small = started(0.5, d_model=64), started(1.0, d_model=64)
    assert torch.equal(large.embed.weight, small.embed.weight * 8)  # 64^-0.5 / 64^-1, exact in binary


def test_seeds_give_different_weights() -> None:
    a, b = started(seed=0).embed.weight, started(seed=1).embed.weight
    assert torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1].abs() < 0.1


def test_bfloat16_weights_are_the_rounded_float32_weights() -> None:
    model = Decoder(model_config()).bfloat16()
    initialize(model, 1.0, 0)
    assert torch.equal(model.embed.weight, started().embed.weight.bfloat16())


@pytest.mark.parametrize(
    ("changes", "golden"), [({}, "f3d68e7bc557633c"), ({"moe": MOE}, "57c0b141de55d2b2")], ids=["dense", "moe"]
)
def test_step_0_has_the_hash_it_always_had(changes: dict[str, Any], golden: str) -> None:
    """A changed generator, seed, name or scale makes every earlier result incomparable: then this number changes."""
    assert content(started(1.0, d_model=32, d_ff=64, **changes)) == golden  # powers of two: the scaling is exact


# --- GammaRule: overrides, residual scaling, one std for all


def test_the_rule_without_options_is_the_formula() -> None:
    assert GammaRule(0.5).std("query", 64) == 0.125 and GammaRule(1).std("head", 64) == 1 / 64
    assert GammaRule(0).std("ffn_down", 96, n_layers=4) == 1
    assert GammaRule(1.0).std("norm", 64) == GammaRule(1.0, fixed_std=0.02).std("bias", 64) == 0


def test_overrides_give_some_kinds_a_gamma_of_their_own() -> None:
    table = audit_of(GammaRule(1.0, {"embedding": 0.5, "router": 0.0}), moe=MOE)
    assert table["target_std"]["embed.weight"] == 16**-0.5
    assert table["target_std"]["blocks.0.ffn.router.weight"] == 1
    assert table["target_std"]["head.weight"] == table["target_std"]["blocks.0.attention.q_proj.weight"] == 1 / 16
    assert table["deviation"].abs().max() < BOUND


def audit_of(rule: GammaRule | float, **changes: Any) -> pd.DataFrame:
    model = Decoder(model_config(**changes))
    return audit(model, initialize(model, rule, 0)).set_index("name")


@pytest.mark.parametrize("ffn", FFNS)
def test_residual_scaling_divides_what_is_added_to_the_stream_by_the_root_of_twice_the_depth(ffn: str) -> None:
    plain = audit_of(0.5, n_layers=3, **FFNS[ffn])
    scaled = audit_of(GammaRule(0.5, residual_scaling=True), n_layers=3, **FFNS[ffn])
    for name, ratio in (plain["target_std"] / scaled["target_std"])[plain["target_std"] > 0].items():
        outputs = "o_proj" in name or "down" in name
        assert ratio == pytest.approx(math.sqrt(6) if outputs else 1), name
    assert scaled["deviation"].abs().max() < BOUND


def test_the_gpt2_baseline_is_one_std_for_all_with_residual_scaling() -> None:
    table = audit_of(GammaRule(1.0, residual_scaling=True, fixed_std=0.02), n_layers=2, d_model=32, d_ff=96)
    matrices = table[table["kind"] != "norm"]
    outputs = matrices["kind"].isin(["attention_out", "ffn_down"])
    assert outputs.sum() == 4
    assert (matrices["target_std"][~outputs] == 0.02).all()
    assert matrices["target_std"][outputs].to_numpy() == pytest.approx(0.01)
    assert matrices["deviation"].abs().max() < BOUND


def test_residual_scaling_needs_to_know_the_depth() -> None:
    model = nn.Module()
    model.add_module("down_proj", nn.Linear(8, 8, bias=False))
    with pytest.raises(ValueError, match="number of blocks"):
        initialize(model, GammaRule(1.0, residual_scaling=True))
    initialize(model, GammaRule(1.0))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gamma": -0.1}, r"gamma = -0\.1: must be a finite number >= 0"),
        ({"gamma": math.inf}, "gamma = inf"),
        ({"gamma": math.nan}, "gamma = nan"),
        ({"gamma": "0.5"}, "gamma = '0.5'"),
        ({"gamma": 1.0, "overrides": {"query": -1.0}}, r"query = -1\.0"),
        ({"gamma": 1.0, "overrides": {"quary": 1.0}}, "'quary'.*allowed: embedding, position, head, query"),
        ({"gamma": 1.0, "overrides": {"norm": 1.0}}, "'norm'.*no kinds of matrices"),
        ({"gamma": 1.0, "fixed_std": 0.0}, r"fixed_std = 0\.0"),
        ({"gamma": 1.0, "fixed_std": 0.02, "overrides": {"query": 1.0}}, "exclude each other"),
    ],
)
def test_a_rule_out_of_range_is_refused_with_what_is_allowed(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GammaRule(**values)


# --- tied weights and shards


def test_a_tied_weight_is_drawn_once_as_the_embedding_whatever_comes_first() -> None:
    model: Any = nn.Module()
    model.add_module("head", nn.Linear(8, 32, bias=False))
    model.add_module("embed", nn.Embedding(32, 8))
    model.embed.weight = model.head.weight
    starts = initialize(model, GammaRule(1.0, {"embedding": 0.5}))
    assert [(start.name, start.kind, start.std) for start in starts] == [("embed.weight", "embedding", 8**-0.5)]
    assert model.embed.weight is model.head.weight
    assert audit(model, starts)["deviation"].abs().max() < BOUND


def fill_shards(rank: int, folder: str) -> None:
    """One of two processes: its shards of every parameter are bitwise those of the plain model."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    store, timeout = f"file://{folder}/store", timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timeout)
    mesh = init_device_mesh("cpu", (2,))
    changes = {"n_heads": 1, "gate": "headwise", "moe": {**MOE, "n_experts": 3}}  # axes of 257, 1 and 3: uneven shards
    with torch.device("meta"):
        model: Any = Decoder(model_config(**changes))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.constant_(parameter.to_local(), float("nan"))
    starts = initialize(model, 1.0, 0)
    if rank == 0:
        initialize(model, 1.0, 0)  # without its peer: anything that communicates would hang until the time is over
    plain = started(1.0, 0, **changes)
    for name, value in plain.named_parameters():
        pieces = value.detach().chunk(2)
        mine = model.get_parameter(name).to_local().detach()
        assert torch.equal(mine, pieces[rank] if rank < len(pieces) else value.detach()[:0]), name
    pd.testing.assert_frame_equal(audit(model, starts), audit(plain, plan(plain, 1.0)))
    dist.destroy_process_group()


def test_two_processes_hold_bitwise_the_weights_of_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(fill_shards, args=(str(tmp_path),), nprocs=2)


# --- the audit


def test_the_audit_says_what_is_in_the_model() -> None:
    model = started(0.5, d_model=32, d_ff=96)
    table = audit(model, initialize(model, 0.5, 0)).set_index("name")
    down = model.blocks[0].ffn.ffn_down.weight.detach()  # type: ignore[union-attr,operator]
    row = table.loc["blocks.0.ffn.ffn_down.weight"]
    assert (row["kind"], row["shape"], row["fan_in"]) == ("ffn_down", "32x96", 96)
    assert row["target_std"] == pytest.approx(96**-0.5)
    assert row["realised_std"] == pytest.approx(down.pow(2).mean().sqrt().item())
    assert row["sha256"] == hashlib.sha256(down.numpy().tobytes()).hexdigest()[:16]
    assert set(table.index) == {name for name, _ in model.named_parameters()}
    assert (table.loc[table["kind"] == "norm", ["target_std", "realised_std", "deviation"]] == 0).all(axis=None)
    columns = "name kind shape fan_in target_std realised_std deviation sha256"
    assert [table.index.name, *table.columns] == columns.split()


def test_the_audit_notices_a_matrix_at_the_wrong_scale() -> None:
    model: Any = started()
    starts = initialize(model, 1.0, 0)
    with torch.no_grad():
        model.head.weight *= 1.1
        model.final_norm.weight += 0.5
    deviation = audit(model, starts).set_index("name")["deviation"]
    assert deviation["head.weight"] > 4.5 and deviation["final_norm.weight"] > 0.4
    assert np.abs(deviation.drop(["head.weight", "final_norm.weight"])).max() < BOUND


def test_the_known_kinds_are_those_of_the_design() -> None:
    assert list(init.KINDS) == [
        *("embedding", "position", "head", "query", "key", "value", "attention_gate", "attention_out"),
        *("ffn_gate", "ffn_up", "ffn_down", "router", "shared_expert_gate", "norm", "bias"),
    ]
    assert {kind for kind, known in init.KINDS.items() if known.residual} == {"attention_out", "ffn_down"}
    assert set("+".join(init.NAMES.values()).split("+")) == set(init.KINDS)  # each kind is reached by some name


def test_the_rule_can_be_copied_without_the_rest_of_this_package() -> None:
    nodes = list(ast.walk(ast.parse(Path(init.__file__).read_text())))
    imported: set[str] = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {"." * node.level + (node.module or "") for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {"numpy", "torch", "dataclasses"} <= imported
    assert not [name for name in imported if name.startswith((".", "smallinit", "transformers"))]
