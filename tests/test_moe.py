"""The mixture of experts against formulas, a dense reference, and planted routers."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import run_config
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from smallinit.init import initialize
from smallinit.model import GELU, Decoder, SwiGLU
from smallinit.moe import MixtureOfExperts, Routing, balance_loss, expert_load, route, router_entropy, z_loss


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def decoder(mlp: str = "swiglu", n_layers: int = 1, **changes: Any) -> Any:  # a Decoder
    moe = {"n_experts": 4, "top_k": 2, "balance_coef": 0.0, "z_coef": 0.0, **changes}
    model = Decoder(run_config(mlp=mlp, n_layers=n_layers, moe=moe).model)
    initialize(model, 0.25, 0)
    return model


def experts(mlp: str = "swiglu", **changes: Any) -> MixtureOfExperts:
    return decoder(mlp, **changes).blocks[0].ffn


# ---------------------------------------------------------------------------------------------------------------- route
def test_each_token_gets_its_best_experts_and_the_softmax_over_them() -> None:
    routing = route(torch.tensor([[0.0, 2.0, 1.0, -1.0], [5.0, -5.0, 4.0, 4.5]]), 2)
    assert routing.chosen.tolist() == [[1, 2], [0, 3]]
    first = math.e / (1 + math.e), 1 / (1 + math.e)  # of logits that are 1 apart
    torch.testing.assert_close(routing.weights[0], torch.tensor(first))
    torch.testing.assert_close(routing.weights[1, 0] / routing.weights[1, 1], torch.tensor(0.5).exp())


@given(seed=st.integers(0, 999), n_experts=st.integers(2, 9), data=st.data())
@settings(max_examples=30, deadline=None)
def test_routing_is_top_k_of_the_softmax_renormalised(seed: int, n_experts: int, data: st.DataObject) -> None:
    top_k = data.draw(st.integers(1, n_experts))
    logits = normal(20, n_experts, seed=seed)
    routing = route(logits, top_k)
    best, chosen = logits.softmax(-1).topk(top_k)
    assert torch.equal(routing.chosen, chosen)
    torch.testing.assert_close(routing.weights, best / best.sum(-1, keepdim=True))
    assert expert_load(routing).sum().item() == pytest.approx(1)
    counts = torch.bincount(routing.chosen.flatten(), minlength=n_experts)
    torch.testing.assert_close(expert_load(routing), counts / (20 * top_k))


@pytest.mark.parametrize("n_experts", [4, 8, 64])
def test_ties_at_a_zero_router_go_to_the_lower_numbers(n_experts: int) -> None:
    routing = route(torch.zeros(1000, n_experts), 3)
    assert torch.equal(routing.chosen, torch.arange(3).expand(1000, 3))
    torch.testing.assert_close(routing.weights, torch.full((1000, 3), 1 / 3))


def test_a_tie_for_the_last_place_goes_to_the_lower_number() -> None:
    assert route(torch.tensor([[1.0, 3.0, 1.0, 1.0]]), 2).chosen.tolist() == [[1, 0]]


# --------------------------------------------------------------------------------------------------------------- losses
@pytest.mark.parametrize(("n_experts", "top_k"), [(4, 1), (8, 2), (6, 3)])
def test_the_balance_loss_of_even_use_is_1(n_experts: int, top_k: int) -> None:
    logits = 30 * torch.eye(n_experts).repeat(5, 1)
    for k in range(1, top_k):  # each expert is the first choice as often as any, and the second, and the third
        logits += (30 - k) * torch.eye(n_experts).roll(k, dims=1).repeat(5, 1)
    routing = route(logits, top_k)
    torch.testing.assert_close(expert_load(routing), torch.full((n_experts,), 1 / n_experts))
    assert balance_loss(routing).item() == pytest.approx(1)


@pytest.mark.parametrize(("n_experts", "top_k"), [(4, 1), (8, 2), (6, 3), (4, 4)])
def test_the_balance_loss_of_a_collapsed_router_is_experts_over_k(n_experts: int, top_k: int) -> None:
    logits = torch.zeros(10, n_experts)
    logits[:, n_experts - top_k :] = 40.0
    routing = route(logits, top_k)
    assert expert_load(routing).tolist() == pytest.approx([0.0] * (n_experts - top_k) + [1 / top_k] * top_k)
    assert balance_loss(routing).item() == pytest.approx(n_experts / top_k)


def test_the_balance_loss_of_a_router_without_preference_is_1_although_ties_collapse() -> None:
    assert balance_loss(route(torch.zeros(10, 8), 2)).item() == pytest.approx(1)


def test_the_balance_loss_by_hand() -> None:
    logits = torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]).log()  # their softmax is what is written
    loads, probabilities = (0.75, 0.25), (0.6, 0.4)
    by_hand = 2 * sum(f * p for f, p in zip(loads, probabilities, strict=True))
    assert balance_loss(route(logits, 1)).item() == pytest.approx(by_hand)


def test_the_gradient_of_the_balance_loss_moves_tokens_away_from_a_crowded_expert() -> None:
    logits = torch.tensor([[1.0, 0.0, 0.0]]).repeat(6, 1).requires_grad_()
    balance_loss(route(logits, 1)).backward()
    assert logits.grad is not None and (logits.grad[:, 0] > 0).all() and (logits.grad[:, 1:] < 0).all()


@pytest.mark.parametrize("shift", [0.0, 3.0, -3.0])
def test_the_z_loss_of_equal_logits_is_the_square_of_their_log_sum(shift: float) -> None:
    assert z_loss(route(torch.full((5, 8), shift), 2)).item() == pytest.approx((math.log(8) + shift) ** 2)


def test_the_entropy_is_that_of_the_whole_softmax() -> None:
    assert router_entropy(route(torch.zeros(5, 8), 2)).item() == pytest.approx(math.log(8))
    assert router_entropy(route(1e4 * torch.eye(4), 1)).item() == 0
    p = torch.tensor([0.5, 0.25, 0.25])
    assert router_entropy(route(p.log()[None], 1)).item() == pytest.approx(1.5 * math.log(2))


def test_the_auxiliary_loss_is_weighted_and_is_the_mean_over_the_blocks() -> None:
    ids = torch.arange(32).view(2, 16)
    model = decoder(n_layers=3, balance_coef=0.5, z_coef=0.25)
    parts: list[Routing] = []
    for block in model.blocks:
        block.ffn.register_forward_pre_hook(lambda ffn, args: parts.append(ffn.routing(args[0].flatten(0, 1))))
    _, auxiliary = model(ids, ids)
    by_hand = [0.5 * balance_loss(routing) + 0.25 * z_loss(routing) for routing in parts]
    assert len(parts) == 3 and auxiliary.item() == pytest.approx(sum(by_hand).item() / 3)  # type: ignore[union-attr]
    assert decoder()(ids, ids)[1].item() == 0


@pytest.mark.parametrize(("balance_coef", "z_coef"), [(1.0, 0.0), (0.0, 1.0)])
def test_each_auxiliary_loss_reaches_every_row_of_the_router_and_no_expert(balance_coef: float, z_coef: float) -> None:
    ffn = experts(balance_coef=balance_coef, z_coef=z_coef)
    ffn(normal(4, 16, 16))[1].backward()
    assert ffn.router.weight.grad is not None and (ffn.router.weight.grad.abs().sum(dim=1) > 0).all()
    assert ffn.experts_up.grad is None


# --------------------------------------------------------------------------------------------------------------- output
def reference(ffn: MixtureOfExperts, x: Tensor) -> Tensor:
    """Token by token and expert by expert, in float64."""
    y = torch.zeros_like(x, dtype=torch.float64)
    flat, out = x.double().flatten(0, 1), y.flatten(0, 1)
    for n, token in enumerate(flat):
        logits = ffn.router.weight.double() @ token
        best = sorted(range(len(logits)), key=lambda e: (-logits[e].item(), e))[: ffn.moe.top_k]
        total = sum(logits[e].exp() for e in best)
        for e in best:
            up = ffn.experts_up[e].double() @ token
            if ffn.experts_gate is None:
                act = up * 0.5 * (1 + torch.erf(up / math.sqrt(2)))
            else:
                gate = ffn.experts_gate[e].double() @ token
                act = gate / (1 + (-gate).exp()) * up
            out[n] += logits[e].exp() / total * (ffn.experts_down[e].double() @ act)
    return y


@pytest.mark.parametrize("mlp", ["swiglu", "gelu"])
@pytest.mark.parametrize("top_k", [1, 2, 4])
@torch.no_grad()
def test_the_output_is_the_weighted_sum_over_the_chosen_experts(top_k: int, mlp: str) -> None:
    ffn, x = experts(mlp, top_k=top_k), normal(2, 9, 16)
    y, _ = ffn(x)
    exact = reference(ffn, x)
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)
    assert y.shape == x.shape and y.dtype == torch.float32 and exact.abs().mean() > 0.1


@torch.no_grad()
def test_all_experts_chosen_is_the_softmax_mixture() -> None:
    ffn, x = experts(top_k=4), normal(2, 9, 16)
    flat = x.flatten(0, 1)
    each = torch.stack([ffn.expert(flat, *own).view_as(x) for own in ffn.networks()], dim=-2)  # (B, T, E, d)
    mixed = (F.linear(x, ffn.router.weight).softmax(-1)[..., None] * each).sum(dim=-2)
    torch.testing.assert_close(ffn(x)[0], mixed, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mlp", ["swiglu", "gelu"])
@torch.no_grad()
def test_equal_experts_are_the_dense_network_whatever_the_router_says(mlp: str) -> None:
    ffn, x = experts(mlp, n_experts=5, top_k=3), normal(2, 16, 16)
    dense = {"swiglu": SwiGLU, "gelu": GELU}[mlp](run_config(mlp=mlp).model)
    for name, parameter in dense.named_parameters():  # ffn_up.weight ...
        stack = ffn.get_parameter(name.replace("ffn", "experts").removesuffix(".weight"))
        parameter.copy_(stack[0])
        stack.copy_(parameter.expand_as(stack))
    torch.testing.assert_close(ffn(x)[0], dense(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_no_token_is_dropped_when_all_choose_the_same_expert() -> None:
    ffn, x = experts(top_k=1), normal(4, 16, 16).abs()
    nn.init.zeros_(ffn.router.weight)
    ffn.router.weight[2] = 1.0
    alone = ffn.expert(x.flatten(0, 1), *ffn.networks()[2]).view_as(x)
    torch.testing.assert_close(ffn(x)[0], alone, rtol=1e-5, atol=1e-5)
    assert (ffn(x)[0].abs().sum(-1) > 0).all()


def test_an_expert_without_tokens_gets_a_zero_gradient_and_the_others_their_own() -> None:
    ffn, x = experts(), normal(4, 16, 16).abs()
    with torch.no_grad():
        ffn.router.weight[3] = -1.0  # positive inputs: never among the best two
    y, auxiliary = ffn(x)
    (y.square().sum() + auxiliary).backward()
    for parameter in (ffn.experts_gate, ffn.experts_up, ffn.experts_down):
        assert parameter is not None and parameter.grad is not None
        assert (parameter.grad[3] == 0).all()
        assert all(parameter.grad[e].abs().max() > 0 for e in range(3))


@torch.no_grad()
def test_a_tokens_output_does_not_depend_on_its_neighbours() -> None:
    ffn, x = experts(), normal(2, 16, 16)
    torch.testing.assert_close(ffn(x[:1, 3:4])[0], ffn(x)[0][:1, 3:4], rtol=1e-5, atol=1e-6)


# ----------------------------------------------------------------------------------------- precision and repeatability
def passed(precision: torch.dtype) -> list[Tensor]:
    """Loss and gradients of one pass."""
    model = decoder(n_layers=2, balance_coef=0.01, z_coef=0.01)
    ids = torch.arange(128).view(8, 16) % 97
    with torch.autocast("cpu", precision, enabled=precision == torch.bfloat16):
        loss, auxiliary = model(ids, ids.roll(-1, 1))
        (loss + auxiliary).backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_same_pass_gives_the_same_bits_twice(precision: torch.dtype) -> None:
    once, again = passed(precision), passed(precision)
    assert len(once) == len(again) > 20 and all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_the_router_decides_in_float32_under_autocast() -> None:
    ffn, x = experts(), normal(64, 16)
    plain = ffn.routing(x)
    with torch.autocast("cpu", torch.bfloat16):
        cast = ffn.routing(x)
        assert ffn.expert(x, *ffn.networks()[0]).dtype == torch.bfloat16  # the experts do take part in it
        assert ffn(x[None])[0].dtype == torch.float32
    assert cast.logits.dtype == cast.weights.dtype == torch.float32
    assert all(torch.equal(a, b) for a, b in zip(plain, cast, strict=True))


def test_the_router_of_a_bfloat16_model_decides_in_float32_too() -> None:
    assert experts().bfloat16().routing(normal(8, 16).bfloat16()).logits.dtype == torch.float32
