"""The gamma rule on the classes of `transformers`, built from small configurations: every parameter of each family."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from smallinit.init import GammaRule, audit, initialize

transformers = pytest.importorskip("transformers")

D, F, MOE_F, SHARED_F, H = 32, 96, 48, 80, 16  # widths that differ, so that a wrong axis shows
LLAMA = {
    **{"vocab_size": 128, "hidden_size": D, "intermediate_size": F, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None},
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": MOE_F}
GPT2 = {"vocab_size": 128, "n_embd": D, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": F}
MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
TIED_BIASED = {**LLAMA, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2}


class Family(NamedTuple):
    config: str  # its class
    values: dict[str, Any]
    wide: dict[str, int]  # ending of a matrix's name -> fan_in, where that is not d_model
    matrices: int
    weights: str  # hash at gamma = 1


FAMILIES = {
    "llama": Family("LlamaConfig", LLAMA, {"down_proj.weight": F}, 2 + 2 * 7, "f0f2dd171df8a1e3"),
    "llama_tied_biased": Family("LlamaConfig", TIED_BIASED, {"down_proj.weight": F}, 1 + 2 * 7, "69d76025f3734596"),
    "qwen2": Family("Qwen2Config", LLAMA, {"down_proj.weight": F}, 2 + 2 * 7, "38dd054ee0154691"),
    "qwen3": Family(
        "Qwen3Config",
        {**LLAMA, "head_dim": H},
        {"down_proj.weight": F, "o_proj.weight": 4 * H},
        2 + 2 * 7,
        "df8e9510193237b1",
    ),
    "gpt2": Family("GPT2Config", GPT2, {"mlp.c_proj.weight": F}, 2 + 2 * 4, "fb50e78f34ff9b0b"),  # the head is tied
    "gpt_neox": Family("GPTNeoXConfig", LLAMA, {"dense_4h_to_h.weight": F}, 2 + 2 * 4, "1cfecb855cfead58"),
    "mixtral": Family(
        "MixtralConfig", {**LLAMA, **MIXTRAL}, {"experts.down_proj": F}, 2 + 2 * (4 + 1 + 2), "6f0e43f5c885be43"
    ),
    "qwen2_moe": Family(
        "Qwen2MoeConfig",
        {**LLAMA, **MOE, "shared_expert_intermediate_size": SHARED_F},
        {"experts.down_proj": MOE_F, "shared_expert.down_proj.weight": SHARED_F},
        2 + 2 * (4 + 1 + 2 + 4),
        "c2150b343e73b8e5",
    ),
    "qwen3_moe": Family(
        "Qwen3MoeConfig",
        {**LLAMA, **MOE, "head_dim": H, "mlp_only_layers": [1]},  # the second layer is dense
        {"experts.down_proj": MOE_F, "mlp.down_proj.weight": F, "o_proj.weight": 4 * H},
        2 + (4 + 1 + 2) + (4 + 3),
        "f245d3b5fc4deea8",
    ),
}


def build(family: str) -> Any:
    config = getattr(transformers, FAMILIES[family].config)
    return transformers.AutoModelForCausalLM.from_config(config(**FAMILIES[family].values, **SPECIAL))


def matrices(model: nn.Module, family: str) -> Iterator[tuple[str, torch.Tensor, int]]:
    """name, value and fan_in of every matrix; everything else must be a vector."""
    wide = FAMILIES[family].wide
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            yield name, parameter.detach(), next((width for end, width in wide.items() if name.endswith(end)), D)


@pytest.mark.parametrize("gamma", [0.3, 1.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_matrix_of_a_family_starts_at_its_audited_std(family: str, gamma: float) -> None:
    model = build(family)
    table = audit(model, initialize(model, gamma)).set_index("name")
    found = list(matrices(model, family))
    assert len(found) == FAMILIES[family].matrices
    for name, value, fan_in in found:
        target, row = fan_in**-gamma, table.loc[name]
        assert (row["fan_in"], row["target_std"]) == (fan_in, pytest.approx(target)), name
        assert abs(value.std().item() - target) < 4 * target / (2 * value.numel()) ** 0.5, name
        assert row["realised_std"] == pytest.approx(value.pow(2).mean().sqrt().item()), name
    assert set(table.index) == {name for name, _ in model.named_parameters()}
    assert table["deviation"].abs().max() < 4


@pytest.mark.parametrize("family", FAMILIES)
def test_norm_gains_become_one_and_biases_zero(family: str) -> None:
    model = build(family)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    initialize(model, 1.0)
    vectors = {name: p for name, p in model.named_parameters() if p.ndim == 1}
    assert len(vectors) >= 5  # two norms a layer and the last one
    for name, vector in vectors.items():
        assert torch.equal(vector, torch.full_like(vector, 0.0 if name.endswith("bias") else 1.0)), name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_the_weights_it_always_had(family: str) -> None:
    model = build(family)
    initialize(model, 1.0, seed=0)
    values = (p.detach().numpy().tobytes() for _, p in sorted(model.named_parameters()))
    assert hashlib.sha256(b"".join(values)).hexdigest()[:16] == FAMILIES[family].weights


def test_gpt2_stores_its_matrices_transposed_and_that_is_seen() -> None:
    model = build("gpt2")
    initialize(model, 1.0)
    down = model.transformer.h[0].mlp.c_proj.weight
    assert down.shape == (F, D)  # (in, out)
    assert down.std().item() == pytest.approx(1 / F, rel=0.05)
    assert model.transformer.wpe.weight.std().item() == pytest.approx(1 / D, rel=0.05)


@pytest.mark.parametrize(("family", "fused"), [("gpt2", "c_attn"), ("gpt_neox", "query_key_value")])
def test_a_fused_matrix_has_one_std_and_refuses_two(family: str, fused: str) -> None:
    model = build(family)
    initialize(model, 1.0)
    weight = next(p for name, p in model.named_parameters() if f"{fused}.weight" in name).detach()
    thirds = weight.chunk(3, dim=1 if family == "gpt2" else 0)
    assert all(third.std().item() == pytest.approx(1 / D, rel=0.08) for third in thirds)
    before = weight.clone()
    with pytest.raises(ValueError, match=r"query\+key\+value share one matrix.*use one gamma"):
        initialize(model, GammaRule(1.0, {"value": 0.5}))
    assert torch.equal(weight, before)
    initialize(model, GammaRule(1.0, {"query": 0.5, "key": 0.5, "value": 0.5}))
    assert weight.std().item() == pytest.approx(D**-0.5, rel=0.05)


def test_experts_of_one_layer_are_at_one_scale_and_differ() -> None:
    model = build("mixtral")
    initialize(model, 1.0)
    experts = model.model.layers[0].mlp.experts
    for stack, std in ((experts.gate_up_proj, 1 / D), (experts.down_proj, 1 / F)):
        assert all(expert.std().item() == pytest.approx(std, rel=0.06) for expert in stack.detach())
        assert not torch.equal(stack[0], stack[1])


def test_experts_stored_the_other_way_round_are_seen_and_their_vectors_can_be_named() -> None:
    config = transformers.GptOssConfig(**LLAMA, **MIXTRAL, **SPECIAL, head_dim=H)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match=r"sinks \(4,\)") as error:
        initialize(model, 1.0)
    assert "experts.gate_up_proj_bias (4, 192)" in str(error.value)
    table = audit(model, initialize(model, 1.0, names={"sinks": "bias", "*_bias": "bias"})).set_index("name")
    assert table["fan_in"]["model.layers.0.mlp.experts.gate_up_proj"] == D  # (E, d, 2f)
    assert table["fan_in"]["model.layers.0.mlp.experts.down_proj"] == F  # (E, f, d)
    assert table["deviation"].abs().max() < 4


@pytest.mark.parametrize("family", ["gpt2", "llama_tied_biased"])
def test_tied_weights_are_drawn_as_the_embedding_and_stay_tied_even_from_the_meta_device(family: str) -> None:
    plain = build(family)
    initialize(plain, GammaRule(1.0, {"embedding": 0.5}))
    with torch.device("meta"):
        model: Any = build(family)
    model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        nn.init.constant_(tensor, float("nan"))
    initialize(model, GammaRule(1.0, {"embedding": 0.5}))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.get_output_embeddings().weight.std().item() == pytest.approx(D**-0.5, rel=0.05)
    values = dict(plain.named_parameters())
    assert all(torch.equal(p, values[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize(
    ("family", "outputs"),
    [("gpt2", ("c_proj.weight",)), ("qwen3_moe", ("o_proj.weight", "down_proj", "down_proj.weight"))],
)
def test_residual_scaling_counts_the_layers_of_a_family(family: str, outputs: tuple[str, ...]) -> None:
    model = build(family)
    plain = {start.name: start.std for start in initialize(model, 1.0)}
    for start in initialize(model, GammaRule(1.0, residual_scaling=True)):
        ratio = 2.0 if start.name.endswith(outputs) else 1.0  # sqrt(2 x 2 layers)
        assert start.std * ratio == pytest.approx(plain[start.name]), start.name


EXAMPLE = """
from transformers import AutoModelForCausalLM, Qwen3Config
from smallinit.init import GammaRule, audit, initialize

model = AutoModelForCausalLM.from_config(Qwen3Config(hidden_size=256, num_hidden_layers=4))  # or any torch module
starts = initialize(model, GammaRule(1.0), seed=0)  # every parameter; one that it does not know is an error
print(audit(model, starts))  # target and realised standard deviation of each
"""


def test_the_example_in_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    small = EXAMPLE.replace("hidden_size=256", "hidden_size=64, vocab_size=512, intermediate_size=64")
    assert small != EXAMPLE
    exec(small, {})
    assert "model.embed_tokens.weight" in capsys.readouterr().out
    assert EXAMPLE.strip() in (Path(__file__).parents[1] / "README.md").read_text()
