"""The model against formulas: norm, rotary positions, attention, gate, loss."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import run_config
from torch import Tensor, nn

from smallinit.init import initialize
from smallinit.model import Attention, Decoder, LayerNorm, RMSNorm, rotary_table, rotate, token_losses

MOE = {"n_experts": 4, "top_k": 2, "balance_coef": 0.01, "z_coef": 0.001}
CHOICES: dict[str, dict[str, Any]] = {  # every combination of the model family, of two heads each
    "-".join(names): {
        **dict(zip(("norm", "mlp", "gate"), names, strict=False)),
        **{"tied_head": "tied" in names, "n_kv_heads": 1 if "grouped" in names else 2},
        **{"moe": MOE if "moe" in names else None},
    }
    for names in product(
        *(("rmsnorm", "layernorm"), ("swiglu", "gelu"), ("none", "headwise", "elementwise")),
        *(("tied", "untied"), ("grouped", "multihead"), ("dense", "moe")),
    )
}
every_choice = pytest.mark.parametrize("changes", CHOICES.values(), ids=CHOICES)


def decoder(gamma: float = 0.25, checkpointed: bool = False, **changes: Any) -> Any:  # a Decoder
    model = Decoder(run_config(**changes).model, activation_checkpointing=checkpointed)
    initialize(model, gamma, 0)
    return model.eval()


def layer(**changes: Any) -> tuple[Attention, Tensor, Tensor, Tensor]:
    """A first attention layer with strong weights, inputs for it, and its rotary tables."""
    model = decoder(**changes)
    x = torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(0))
    return model.blocks[0].attention, x, *model.rotary(ids())


def ids(batch: int = 2, length: int = 16) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 257, (batch, length)))


# ----------------------------------------------------------------------------------------------------------------- norm
tiny = pytest.mark.parametrize("std", [1e-8, 1e-6, 1e-4, 1e-2, 1.0])
in_either_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
small_eps = pytest.mark.parametrize("eps", [1e-12, 1e-5])


def noise(std: float, dtype: torch.dtype) -> Tensor:
    return (torch.randn(64, 96, generator=torch.Generator().manual_seed(0)) * std).to(dtype)


@tiny
@in_either_dtype
@small_eps
def test_the_norm_is_right_for_tiny_inputs(std: float, dtype: torch.dtype, eps: float) -> None:
    x, norm = noise(std, dtype), RMSNorm(96, eps)
    nn.init.constant_(norm.weight, 1.5)
    exact = 1.5 * x.double() / (x.double().square().mean(-1, keepdim=True) + eps).sqrt()
    assert norm(x).dtype == torch.float32
    torch.testing.assert_close(norm(x).double(), exact, rtol=2e-6, atol=0)


@tiny
@in_either_dtype
@small_eps
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_layer_norm_is_right_for_tiny_inputs(std: float, dtype: torch.dtype, eps: float, offset: float) -> None:
    x, norm = noise(std, dtype) + torch.tensor(offset * std, dtype=dtype), LayerNorm(96, eps)
    nn.init.constant_(norm.weight, 1.5)
    exact = F.layer_norm(x.double(), (96,), torch.full((96,), 1.5, dtype=torch.float64), eps=eps)
    assert norm(x).dtype == torch.float32 and [name for name, _ in norm.named_parameters()] == ["weight"]
    # An entry near the mean is a small difference of large numbers: right to the scale of its row.
    assert ((norm(x).double() - exact).abs() <= 1e-6 * exact.abs().amax(-1, keepdim=True)).all()


@pytest.mark.parametrize("gamma", [0.5, 1.0])
@pytest.mark.parametrize("eps", [1e-5, 1.44e-3, 1e-12])
def test_the_first_norm_attenuates_by_the_formula(eps: float, gamma: float) -> None:
    model = decoder(gamma, d_model=64, norm_eps=eps)
    output = model.blocks[0].attention_norm(model.embed.weight)
    formula = 1 / math.sqrt(1 + eps * 64 ** (2 * gamma))
    assert output.square().mean().sqrt().item() == pytest.approx(formula, rel=0.02)


@pytest.mark.parametrize(("d", "attenuation"), [(64, 0.98), (768, 0.38), (1024, 0.30), (2048, 0.15)])
def test_the_attenuation_at_the_papers_widths_is_that_of_the_design(d: int, attenuation: float) -> None:
    norm = RMSNorm(d, 1e-5)
    nn.init.ones_(norm.weight)
    x = torch.randn(256, d, generator=torch.Generator().manual_seed(0)) / d
    assert norm(x).square().mean().sqrt().item() == pytest.approx(attenuation, abs=0.01)


# ------------------------------------------------------------------------------------------------------------ attention
@every_choice
@torch.no_grad()
def test_a_later_token_never_changes_earlier_logits(changes: dict[str, Any]) -> None:
    model, before = decoder(n_layers=2, **changes), ids(1)
    a = model(before)
    for place in (1, 8, 15):
        after = before.clone()
        after[0, place] = (after[0, place] + 1) % 257
        b = model(after)
        torch.testing.assert_close(a[:, :place], b[:, :place], rtol=1e-5, atol=1e-5)
        assert (a[:, place] - b[:, place]).abs().max() > 1e-3


def test_rotary_scores_depend_on_relative_position_only() -> None:
    cos, sin = rotary_table(32, 8, 10000.0, torch.device("cpu"))
    q, k = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    queries, keys = (rotate(v.expand(1, 1, 32, 8), cos, sin)[0, 0] for v in (q, k))
    scores = queries @ keys.T
    for distance in range(-31, 32):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-5)
    assert scores[0].std() > 0.1
    assert scores[0, 0].item() == pytest.approx((q @ k).item(), rel=1e-5)


def test_rotary_angles_are_position_over_theta_to_the_share_of_the_head() -> None:
    cos, sin = rotary_table(5, 4, 100.0, torch.device("cpu"))
    angle = torch.atan2(sin, cos)
    torch.testing.assert_close(angle[:4, 0], torch.tensor([0.0, 1, 2, 3]))
    torch.testing.assert_close(angle[:, 1], torch.arange(5) * 0.1)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("gate", ["none", "headwise", "elementwise"])
def test_probabilities_are_those_that_forward_applies(gate: str, kv_heads: int) -> None:
    attention, x, cos, sin = layer(gate=gate, n_kv_heads=kv_heads)
    probabilities = attention.probabilities(x, cos, sin)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(2, 2, 16))
    assert (probabilities.triu(1) == 0).all() and probabilities.max() > 0.3
    y = probabilities @ attention.values(x)
    gates = attention.gate_values(x)
    y = y if gates is None else y * gates
    again = attention.o_proj(y.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, cos, sin), again, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("gate", "rows", "width"), [("headwise", 2, 1), ("elementwise", 16, 8)])
def test_a_gate_has_its_shape_and_halves_the_output_when_its_weights_are_zero(gate: str, rows: int, width: int) -> None:
    attention, x, cos, sin = layer(gate=gate)
    plain = layer(gate="none")[0]  # the same draws: a gate leaves the other weights alone
    assert attention.gate_proj is not None and attention.gate_proj.weight.shape == (rows, 16)
    assert attention.gate_values(x).shape == (2, 2, 16, width)  # type: ignore[union-attr]
    assert (attention(x, cos, sin) - plain(x, cos, sin)).abs().max() > 0.01
    nn.init.zeros_(attention.gate_proj.weight)
    torch.testing.assert_close(attention(x, cos, sin), plain(x, cos, sin) / 2)


def test_without_a_gate_there_are_no_gate_weights() -> None:
    attention, x, *_ = layer(gate="none")
    assert attention.gate_values(x) is None and not any("gate" in name for name, _ in attention.named_parameters())


def test_a_headwise_gate_shuts_its_own_head_only() -> None:
    attention, x, cos, sin = layer(gate="headwise")
    with torch.no_grad():
        attention.o_proj.weight.copy_(torch.eye(16))
        attention.gate_proj.weight.copy_(torch.stack([-1e4 * torch.ones(16), torch.zeros(16)]))  # type: ignore[union-attr]
        output = attention(x.abs() + 0.1, cos, sin)  # positive inputs: sigmoid(-large) = 0 for the first head
    assert output[..., :8].abs().max() == 0 and output[..., 8:].abs().max() > 0.1


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@torch.no_grad()
def test_grouped_heads_are_heads_with_repeated_keys_and_values(kv_heads: int) -> None:
    grouped, x, cos, sin = layer(n_heads=4, n_kv_heads=kv_heads)
    assert grouped.k_proj.weight.shape == grouped.v_proj.weight.shape == (kv_heads * 4, 16)
    whole = layer(n_heads=4)[0]
    for name, parameter in whole.named_parameters():
        source: Tensor = grouped.get_parameter(name)
        if name in ("k_proj.weight", "v_proj.weight"):  # query head i reads head i // (H / K), as in transformers
            source = torch.cat([source[4 * (i * kv_heads // 4) :][:4] for i in range(4)])
        parameter.copy_(source)
    torch.testing.assert_close(grouped(x, cos, sin), whole(x, cos, sin))


# ----------------------------------------------------------------------------------------------------------------- loss
@pytest.mark.parametrize("mlp", ["swiglu", "gelu"])
def test_the_stream_is_embedding_plus_attention_plus_feed_forward(mlp: str) -> None:
    model, tokens = decoder(mlp=mlp), ids()
    block, x = model.blocks[0], model.embed(tokens)
    x = x + block.attention(block.attention_norm(x), *model.rotary(tokens))
    ffn, h = block.ffn, block.ffn_norm(x)
    up = h @ ffn.ffn_up.weight.T
    if mlp == "swiglu":
        gate = h @ ffn.ffn_gate.weight.T
        act = gate * torch.sigmoid(gate) * up
    else:
        act = up * 0.5 * (1 + torch.erf(up / math.sqrt(2)))
    x = x + act @ ffn.ffn_down.weight.T
    torch.testing.assert_close(model(tokens), model.final_norm(x) @ model.head.weight.T, rtol=1e-4, atol=1e-4)
    assert sorted(name for name, _ in ffn.named_parameters()) == [
        *["ffn_down.weight"],
        *(["ffn_gate.weight"] if mlp == "swiglu" else []),
        *["ffn_up.weight"],
    ]


def test_token_losses_are_the_cross_entropy_of_the_next_token() -> None:
    model, tokens = decoder(), ids(3, 17)
    losses = token_losses(model, tokens)
    logits = model(tokens[:, :-1])
    direct = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    torch.testing.assert_close(losses, direct)
    by_hand = logits.double().exp().sum(-1).log() - logits.double().gather(-1, tokens[:, 1:, None])[..., 0]
    torch.testing.assert_close(losses.double(), by_hand, rtol=1e-5, atol=1e-5)


def test_a_model_whose_head_is_zero_guesses_uniformly() -> None:
    model = decoder()
    nn.init.zeros_(model.head.weight)
    torch.testing.assert_close(token_losses(model, ids(2, 17)), torch.full((2, 16), math.log(257)))


def gradients(model: Decoder, batch: Tensor) -> dict[str, Tensor]:
    """Of loss and auxiliary loss together; also the two by name."""
    model.zero_grad()
    loss, auxiliary = model(batch[:, :-1], batch[:, 1:])
    (loss / batch[:, 1:].numel() + auxiliary).backward()
    named = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), "auxiliary": auxiliary.detach(), **named}


@every_choice
def test_every_parameter_learns_and_the_loss_is_the_sum_over_tokens(changes: dict[str, Any]) -> None:
    model, batch = decoder(n_layers=2, **changes), ids(4, 17)
    found = gradients(model, batch)
    torch.testing.assert_close(found["loss"], token_losses(model, batch).detach().sum(), rtol=1e-5, atol=0)
    assert (found["auxiliary"] > 0) == (changes["moe"] is not None)
    assert found.keys() - {"loss", "auxiliary"} == {name for name, _ in model.named_parameters()}
    assert all(value.isfinite().all() and value.any() for name, value in found.items() if name != "auxiliary")


@every_choice
def test_activation_checkpointing_changes_no_number(changes: dict[str, Any]) -> None:
    batch = ids(4, 17)
    plain = gradients(decoder(n_layers=2, **changes), batch)
    again = gradients(decoder(n_layers=2, checkpointed=True, **changes), batch)
    assert plain.keys() == again.keys() and all(torch.equal(plain[name], again[name]) for name in plain)


def test_activation_checkpointing_keeps_less_for_the_backward_pass() -> None:
    def kept(checkpointed: bool) -> int:
        sizes: list[int] = []

        def note(tensor: Tensor) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            decoder(n_layers=4, checkpointed=checkpointed).hidden(ids())
        return sum(sizes)

    assert kept(True) < kept(False) / 5


# ----------------------------------------------------------------------------------------------------------- tied head
@pytest.mark.parametrize("ffn", [{}, {"moe": MOE}], ids=["dense", "moe"])
def test_a_tied_head_is_the_embedding_and_learns_from_both_uses(ffn: dict[str, Any]) -> None:
    tied, untied = decoder(tied_head=True, **ffn), decoder(**ffn)
    assert tied.head is None and not any("head" in name for name in tied.state_dict())
    assert sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters()) == 257 * 16
    untied.load_state_dict({**tied.state_dict(), "head.weight": tied.embed.weight})
    assert torch.equal(tied(ids()), untied(ids()))
    of_tied, of_untied = gradients(tied, ids(4, 17)), gradients(untied, ids(4, 17))
    both = of_untied["embed.weight"] + of_untied["head.weight"]
    torch.testing.assert_close(of_tied["embed.weight"], both)
    assert (of_untied["embed.weight"].abs().max() > 1e-3) and (of_untied["head.weight"].abs().max() > 1e-3)


# ------------------------------------------------------------------------------------------------------------ precision
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize(
    "changes", [{}, {"norm": "layernorm", "mlp": "gelu"}, {"moe": MOE}, {"tied_head": True, "n_kv_heads": 1}]
)
def test_under_autocast_the_residual_stream_stays_float32(changes: dict[str, Any], checkpointed: bool) -> None:
    model = decoder(n_layers=2, checkpointed=checkpointed, **changes)
    stream: list[torch.dtype] = []
    for module in (*model.blocks, model.final_norm):
        module.register_forward_pre_hook(lambda module, args: stream.append(args[0].dtype))
    products: list[torch.dtype] = []
    model.blocks[0].attention.register_forward_hook(lambda module, args, y: products.append(y.dtype))
    batch = ids(2, 17)
    with torch.autocast("cpu", torch.bfloat16):
        losses = token_losses(model, batch)
        loss, _ = model(batch[:, :-1], batch[:, 1:])
    assert set(stream) == {torch.float32} and len(stream) == 6 and set(products) == {torch.bfloat16}
    assert losses.dtype == loss.dtype == torch.float32
    exact = token_losses(model, batch).sum().item()
    assert loss.item() == pytest.approx(exact, rel=0.02) and losses.sum().item() == pytest.approx(exact, rel=0.02)
