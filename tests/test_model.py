"""The model against formulas: norm, rotary positions, attention, gate, loss."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import run_config
from torch import Tensor, nn

from smallinit.init import initialize
from smallinit.model import Attention, Decoder, RMSNorm, rotary_table, rotate, token_losses


def decoder(gamma: float = 0.25, **changes: Any) -> Decoder:
    model = Decoder(run_config(**changes).model)
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
@pytest.mark.parametrize("eps", [1e-12, 1e-5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("std", [1e-8, 1e-6, 1e-4, 1e-2, 1.0])
def test_the_norm_is_right_for_tiny_inputs(std: float, dtype: torch.dtype, eps: float) -> None:
    x = (torch.randn(64, 96, generator=torch.Generator().manual_seed(0)) * std).to(dtype)
    norm = RMSNorm(96, eps)
    nn.init.constant_(norm.weight, 1.5)
    exact = 1.5 * x.double() / (x.double().square().mean(-1, keepdim=True) + eps).sqrt()
    assert norm(x).dtype == torch.float32
    torch.testing.assert_close(norm(x).double(), exact, rtol=2e-6, atol=0)


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
@pytest.mark.parametrize("gate", ["none", "headwise", "elementwise"])
def test_a_later_token_never_changes_earlier_logits(gate: str) -> None:
    model, before = decoder(gate=gate, n_layers=2), ids(1)
    for place in (1, 8, 15):
        after = before.clone()
        after[0, place] = (after[0, place] + 1) % 257
        a, b = model(before), model(after)
        torch.testing.assert_close(a[:, :place], b[:, :place], rtol=1e-5, atol=1e-6)
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


@pytest.mark.parametrize("gate", ["none", "headwise", "elementwise"])
def test_probabilities_are_those_that_forward_applies(gate: str) -> None:
    attention, x, cos, sin = layer(gate=gate)
    probabilities = attention.probabilities(x, cos, sin)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(2, 2, 16))
    assert (probabilities.triu(1) == 0).all() and probabilities.max() > 0.3
    y = probabilities @ attention.split(attention.v_proj(x))
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


# ----------------------------------------------------------------------------------------------------------------- loss
def test_the_stream_is_embedding_plus_attention_plus_feed_forward() -> None:
    model, tokens = decoder(), ids()
    block, x = model.blocks[0], model.embed(tokens)
    x = x + block.attention(block.attention_norm(x), *model.rotary(tokens))
    h = block.ffn_norm(x)
    ffn = block.ffn
    gated = h @ ffn.ffn_gate.weight.T
    x = x + (gated * torch.sigmoid(gated) * (h @ ffn.ffn_up.weight.T)) @ ffn.ffn_down.weight.T
    torch.testing.assert_close(model(tokens), model.final_norm(x) @ model.head.weight.T, rtol=1e-4, atol=1e-4)


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


def test_under_autocast_the_residual_stream_stays_float32() -> None:
    model, seen = decoder(), []
    model.final_norm.register_forward_pre_hook(lambda module, args: seen.append(args[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        losses = token_losses(model, ids(2, 17))
    assert seen == [torch.float32] and losses.dtype == torch.float32
