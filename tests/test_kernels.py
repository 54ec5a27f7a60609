"""Attention by blocks and the chunked head loss against plain formulas: values, gradients, dtypes, compilation."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smallinit import kernels
from smallinit.kernels import BlockAttention, causal_attention, chunk_gradients, head_loss


def normal(*shape: int, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale).to(dtype)


def leaves(*tensors: Tensor, dtype: torch.dtype) -> list[Tensor]:
    return [t.detach().to(dtype).requires_grad_() for t in tensors]


def relative_error(value: Tensor, exact: Tensor) -> float:
    return ((value.double() - exact.double()).norm() / exact.double().norm()).item()


def masked_softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The definition, with the whole attention matrix."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ v


@pytest.fixture
def compiler(tmp_path: Path) -> Iterator[None]:
    """A working C++ compiler, or skip; and nothing that other tests compiled."""
    source = tmp_path / "probe.cpp"
    source.write_text("int main() { return 0; }\n")
    try:
        subprocess.run(["c++", source, "-o", tmp_path / "probe"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no working C++ compiler: {error}")
    torch.compiler.reset()
    yield
    torch.compiler.reset()


# ------------------------------------------------------------------------------------------------------------ attention
def attention_and_gradients(attention: Callable[..., Tensor], inputs: list[Tensor], upstream: Tensor) -> list[Tensor]:
    y = attention(*inputs)
    return [y, *torch.autograd.grad(y, inputs, upstream.to(y.dtype))]


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 200, 256, 300])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6), (torch.bfloat16, 2e-2)]
)
def test_attention_by_blocks_is_masked_softmax_attention(length: int, dtype: torch.dtype, tolerance: float) -> None:
    q, k, v, g = (normal(2, 3, length, 8, seed=s).to(dtype).double() for s in range(4))  # exactly what bfloat16 sees
    exact = attention_and_gradients(masked_softmax_attention, leaves(q, k, v, dtype=torch.float64), g)
    results = attention_and_gradients(BlockAttention.apply, leaves(q, k, v, dtype=dtype), g)
    for result, reference in zip(results, exact, strict=True):
        assert result.dtype == dtype and result.shape == reference.shape
        if length > 1 or reference.norm() > 0:  # one token attends to itself alone: q and k have no gradient
            assert relative_error(result, reference) < tolerance
        else:
            assert result.abs().max() < tolerance


def test_attention_by_blocks_has_the_gradient_of_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "QUERY_BLOCK", 3)
    assert torch.autograd.gradcheck(
        BlockAttention.apply, leaves(*(normal(1, 2, 7, 4, seed=s) for s in range(3)), dtype=torch.float64)
    )


def test_no_output_of_attention_depends_on_a_later_token() -> None:
    q, k, v = (normal(1, 1, 200, 8, seed=s, dtype=torch.bfloat16) for s in range(3))
    before = BlockAttention.apply(q, k, v)
    for z in (q, k, v):
        z[:, :, 150:] = 7.0
    after = BlockAttention.apply(q, k, v)
    assert torch.equal(before[:, :, :150], after[:, :, :150])
    assert not torch.equal(before[:, :, 150:], after[:, :, 150:])


def test_attention_survives_scores_that_overflow_an_unshifted_exponential() -> None:
    q, k, v = (normal(1, 1, 130, 8, seed=s, scale=60.0, dtype=torch.bfloat16) for s in range(3))
    assert (
        relative_error(BlockAttention.apply(q, k, v), masked_softmax_attention(q.double(), k.double(), v.double()))
        < 0.1
    )


@pytest.mark.parametrize("pays", [True, False])
@pytest.mark.parametrize("length", [64, 600])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_are_used_only_where_they_pay(
    pays: bool, length: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "CPU_BLOCKS_PAY", pays)
    y = causal_attention(*leaves(*(normal(1, 1, length, 8, seed=s) for s in range(3)), dtype=dtype))
    assert y.grad_fn is not None
    by_blocks = pays and length <= kernels.LONGEST and dtype == torch.bfloat16
    assert (y.grad_fn.name() == "BlockAttentionBackward") == by_blocks


# ------------------------------------------------------------------------------------------------------------ head loss
def loss_and_gradients(inputs: list[Tensor], targets: Tensor, factor: float) -> list[Tensor]:
    loss = head_loss(inputs[0], inputs[1], targets)
    return [loss, *torch.autograd.grad(loss * factor, inputs)]


def exact_loss_and_gradients(x: Tensor, weight: Tensor, targets: Tensor, factor: float) -> list[Tensor]:
    x, weight = leaves(x, weight, dtype=torch.float64)
    loss = F.cross_entropy(x @ weight.T, targets, reduction="sum")
    return [loss, *torch.autograd.grad(loss * factor, (x, weight))]


def head_case(n: int = 50, d: int = 16, vocabulary: int = 37) -> tuple[Tensor, Tensor, Tensor]:
    targets = torch.randint(vocabulary, (n,), generator=torch.Generator().manual_seed(2))
    return normal(n, d), normal(vocabulary, d, seed=1), targets


@pytest.mark.parametrize("chunk", [1, 7, 25, 50, 1024])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6)])
def test_the_head_loss_is_the_cross_entropy_for_every_chunk_size(
    chunk: int, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "HEAD_CHUNK", chunk)
    x, weight, targets = head_case()
    results = loss_and_gradients(leaves(x, weight, dtype=dtype), targets, factor=-0.3)
    for result, exact in zip(results, exact_loss_and_gradients(x, weight, targets, -0.3), strict=True):
        assert result.dtype == dtype and result.shape == exact.shape
        assert relative_error(result, exact) < tolerance


def test_the_head_loss_has_the_gradient_of_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "HEAD_CHUNK", 4)
    x, weight, targets = head_case(n=10, d=3, vocabulary=6)
    assert torch.autograd.gradcheck(lambda x, w: head_loss(x, w, targets), leaves(x, weight, dtype=torch.float64))


def test_under_autocast_the_head_casts_itself_and_keeps_float32_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "HEAD_CHUNK", 64)
    x, weight, targets = head_case(n=300, d=32, vocabulary=512)
    inputs = leaves(x, weight * 0.3, dtype=torch.float32)
    seen = []

    def watched(part: Tensor, narrow: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen.append((part.dtype, narrow.dtype, len(part)))
        return chunk_gradients(part, narrow, target)

    with torch.autocast("cpu", torch.bfloat16):
        loss = head_loss(inputs[0], inputs[1], targets, watched)
    results = [loss, *torch.autograd.grad(loss, inputs)]
    assert seen == [(torch.bfloat16, torch.bfloat16, 64)] * 4 + [(torch.bfloat16, torch.bfloat16, 44)]
    exact = exact_loss_and_gradients(x.bfloat16(), (weight * 0.3).float().bfloat16(), targets, 1.0)
    for result, reference, tolerance in zip(results, exact, (2e-3, 1e-2, 1e-2), strict=True):
        assert result.dtype == torch.float32
        assert relative_error(result, reference) < tolerance


def test_a_confident_token_keeps_its_small_gradient_in_bfloat16() -> None:
    x, weight, targets = torch.tensor([[1.0, 0.0]]), torch.tensor([[9.0, 0.0], [0.0, 1.0]]), torch.tensor([0])
    narrow = leaves(x, weight, dtype=torch.bfloat16)
    exact = exact_loss_and_gradients(
        x, weight, targets, 1.0
    )  # softmax - onehot is 1.2e-4: far below bfloat16's 1 - 2^-8
    for result, reference in zip(loss_and_gradients(narrow, targets, 1.0), exact, strict=True):
        assert relative_error(result, reference) < 1e-2


@pytest.mark.parametrize("autocast", [True, False])
def test_without_gradients_the_loss_is_the_same_and_none_are_computed(autocast: bool) -> None:
    x, weight, targets = head_case()
    inputs = leaves(x, weight, dtype=torch.float32)

    def forbidden(part: Tensor, narrow: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        raise AssertionError("gradients were computed")

    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        trained = head_loss(inputs[0], inputs[1], targets)
        with torch.no_grad():
            measured = head_loss(inputs[0], inputs[1], targets, forbidden)
        frozen = head_loss(inputs[0].detach(), inputs[1].detach(), targets, forbidden)
    assert trained.requires_grad and not measured.requires_grad and not frozen.requires_grad
    assert measured.item() == frozen.item() == pytest.approx(trained.item(), rel=1e-6)


@pytest.mark.parametrize("frozen", [0, 1])
def test_what_needs_no_gradient_gets_none(frozen: int) -> None:
    x, weight, targets = head_case()
    inputs = leaves(x, weight, dtype=torch.float32)
    inputs[frozen].requires_grad_(False)
    head_loss(inputs[0], inputs[1], targets).backward()
    assert inputs[frozen].grad is None
    exact = exact_loss_and_gradients(x, weight, targets, 1.0)[1:][1 - frozen]
    assert relative_error(inputs[1 - frozen].grad, exact) < 2e-6  # type: ignore[arg-type]


def test_a_tied_embedding_gets_both_gradients() -> None:
    embed = nn.Embedding(37, 16)
    ids = torch.arange(20)
    plain = F.cross_entropy(embed(ids) @ embed.weight.T, ids + 1, reduction="sum")
    (expected,) = torch.autograd.grad(plain, (embed.weight,))
    head_loss(embed(ids), embed.weight, ids + 1).backward()
    torch.testing.assert_close(embed.weight.grad, expected)


# ------------------------------------------------------------------------------------------------------------- compiled
@pytest.mark.usefixtures("compiler")
def test_compiled_kernels_give_the_values_and_gradients_of_uncompiled_ones() -> None:
    inputs = leaves(*(normal(1, 2, 140, 8, seed=s) for s in range(3)), dtype=torch.bfloat16)
    upstream = normal(1, 2, 140, 8, seed=3, dtype=torch.bfloat16)
    compiled = torch.compile(lambda q, k, v: BlockAttention.apply(q * 1, k, v), dynamic=False, fullgraph=True)
    plain = attention_and_gradients(BlockAttention.apply, inputs, upstream)
    for result, reference in zip(attention_and_gradients(compiled, inputs, upstream), plain, strict=True):
        assert relative_error(result, reference) < 1e-2
    x, weight, targets = head_case()
    x, weight = leaves(x, weight, dtype=torch.float32)
    fused = torch.compile(chunk_gradients, dynamic=False, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        losses = [head_loss(x, weight, targets), head_loss(x, weight, targets, fused)]
    first, second = ([loss, *torch.autograd.grad(loss, (x, weight))] for loss in losses)
    for result, reference in zip(second, first, strict=True):
        assert relative_error(result, reference) < 1e-2
