"""The gamma rule: every matrix starts at fan_in^-gamma, from numbers that depend on nothing but seed and name."""

import hashlib

import numpy as np
import pytest
import torch
from conftest import run_config
from torch import nn

from smallinit import init
from smallinit.config import ModelConfig
from smallinit.init import audit, initialize, rule_for
from smallinit.model import Decoder

GAMMAS = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5]
SIZES = [{"d_model": 32, "n_heads": 2, "d_ff": 96}, {"d_model": 64, "n_heads": 4, "d_ff": 176, "n_layers": 2}]
GATES = ["none", "headwise", "elementwise"]


def started(gamma: float = 1.0, seed: int = 0, **changes: object) -> Decoder:
    model = Decoder(run_config(**changes).model)
    initialize(model, gamma, seed)
    return model


def fan_in(name: str, config: ModelConfig) -> int:
    """The design's table, written down a second time."""
    return (
        config.d_ff if "ffn_down" in name else config.n_heads * config.head_dim if "o_proj" in name else config.d_model
    )


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("size", SIZES, ids=["d32", "d64"])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_every_matrix_starts_at_its_fan_in_to_the_minus_gamma(gamma: float, size: dict[str, int], gate: str) -> None:
    model = started(gamma, gate=gate, **size)
    matrices = {name: p.detach() for name, p in model.named_parameters() if "norm" not in name}
    layers = size.get("n_layers", 1)
    assert len(matrices) == 2 + layers * (7 + (gate != "none"))
    for name, matrix in matrices.items():
        target = fan_in(name, model.config) ** -gamma
        error = target / (2 * matrix.numel()) ** 0.5
        assert abs(matrix.std().item() - target) < 4.5 * error, name
        assert abs(matrix.mean().item()) < 4.5 * target / matrix.numel() ** 0.5, name


@pytest.mark.parametrize("gamma", GAMMAS)
def test_norm_gains_are_exactly_one(gamma: float) -> None:
    gains = [p for name, p in started(gamma).named_parameters() if "norm" in name]
    assert len(gains) == 3 and all(torch.equal(gain, torch.ones(16)) for gain in gains)


def test_the_entries_are_normal_and_not_merely_of_the_right_scale() -> None:
    values = started(0.5, d_model=64).embed.weight.detach().flatten() * 8
    assert values.pow(4).mean().item() == pytest.approx(3, rel=0.1)
    assert (values.abs() > 1.96).float().mean().item() == pytest.approx(0.05, abs=0.006)


def test_an_unknown_parameter_is_refused_by_name() -> None:
    model = started()
    model.blocks[0].extra = nn.Linear(4, 4)
    with pytest.raises(KeyError, match=r"blocks\.0\.extra\.weight.*no known kind.*embed\.weight"):
        initialize(model, 1.0, 0)
    with pytest.raises(KeyError, match="bias"):
        rule_for("blocks.0.attention.q_proj.bias", (4,), 1.0)


def test_no_parameter_is_left_as_it_was() -> None:
    model = Decoder(run_config().model)
    for parameter in model.parameters():
        nn.init.constant_(parameter, float("nan"))
    initialize(model, 1.0, 0)
    assert all(p.isfinite().all() for p in model.parameters())


def from_meta() -> Decoder:
    with torch.device("meta"):
        model = Decoder(run_config().model)
    model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        nn.init.constant_(tensor, float("nan"))  # to_empty promises nothing: make sure that nothing survives by luck
    initialize(model, 1.0, 0)
    return model


def test_meta_device_construction_gives_the_plain_weights() -> None:
    for (name, a), (_, b) in zip(started().named_parameters(), from_meta().named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_a_model_from_the_meta_device_computes_what_a_plain_one_does() -> None:
    ids = torch.arange(16)[None]
    assert torch.equal(from_meta()(ids), started()(ids))


def test_a_model_without_memory_is_refused() -> None:
    with torch.device("meta"):
        model = Decoder(run_config().model)
    with pytest.raises((RuntimeError, ValueError)):
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
    "changes", [{"d_ff": 64}, {"n_layers": 3}, {"gate": "none"}, {"norm_eps": 1e-5}, {"seq_len": 32}]
)
def test_a_change_of_the_model_leaves_unrelated_weights_alone(changes: dict[str, object]) -> None:
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
    model = Decoder(run_config().model).bfloat16()
    initialize(model, 1.0, 0)
    assert torch.equal(model.embed.weight, started().embed.weight.bfloat16())


def test_step_0_has_the_hash_it_always_had() -> None:
    """A changed generator, seed, name or scale makes every earlier result incomparable: then this number changes."""
    model = started(1.0, d_model=32, d_ff=64)  # powers of two: the scaling is exact on every machine
    content = b"".join(p.detach().numpy().tobytes() for _, p in sorted(model.named_parameters()))
    assert hashlib.sha256(content).hexdigest()[:16] == "c41167806dae2c14"


def test_the_audit_says_what_is_in_the_model() -> None:
    model = started(0.5, d_model=32, d_ff=96)
    table = audit(model, initialize(model, 0.5, 0)).set_index("name")
    down = model.blocks[0].ffn.ffn_down.weight.detach()
    row = table.loc["blocks.0.ffn.ffn_down.weight"]
    assert (row["kind"], row["shape"], row["fan_in"]) == ("ffn_down", "32x96", 96)
    assert row["target_std"] == pytest.approx(96**-0.5)
    assert row["realised_std"] == pytest.approx(down.pow(2).mean().sqrt().item())
    assert row["sha256"] == hashlib.sha256(down.numpy().tobytes()).hexdigest()[:16]
    assert set(table.index) == {name for name, _ in model.named_parameters()}
    assert (table.loc[table["kind"] == "norm", ["target_std", "realised_std", "deviation"]] == 0).all(axis=None)


def test_the_audit_notices_a_matrix_at_the_wrong_scale() -> None:
    model = started()
    rules = initialize(model, 1.0, 0)
    with torch.no_grad():
        model.head.weight *= 1.1
        model.final_norm.weight += 0.5
    deviation = audit(model, rules).set_index("name")["deviation"]
    assert deviation["head.weight"] > 4.5 and deviation["final_norm.weight"] > 0.4
    assert np.abs(deviation.drop(["head.weight", "final_norm.weight"])).max() < 4.5


def test_the_known_kinds_are_those_of_the_design() -> None:
    matrices = {"embedding", "head", "query", "key", "value", "attention_gate", "attention_out"}
    assert {kind for kind, _ in init.KINDS.values()} == matrices | {"ffn_gate", "ffn_up", "ffn_down", "norm"}
