"""The two places where a plain implementation wastes a CPU's time: causal attention and the loss over the vocabulary.

Both are ordinary tensor operations with a backward pass of their own, so they run anywhere and under torch.compile.
Shapes use B batch, H n_heads, T sequence, h head_dim, N = B T tokens, V vocabulary, d d_model.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

QUERY_BLOCK = 128  # queries of one product: smaller skips more of the masked half, larger keeps the products efficient
LONGEST = 512  # beyond it the probabilities, H T^2 numbers a sequence that are kept for the backward pass, are too many
HEAD_CHUNK = 1024  # tokens whose logits exist at one time

# Where a CPU multiplies bfloat16 in hardware (AVX-512, with or without AMX) plain products beat the fused kernel;
# elsewhere they are emulated. A rule and not a timing, so that the same machine always computes the same digits.
CPU_BLOCKS_PAY = bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def query_blocks(seq_len: int) -> list[tuple[int, int]]:
    """Ranges of queries [a, b) that cover the sequence; queries [a, b) attend to keys [0, b)."""
    return [(a, min(a + QUERY_BLOCK, seq_len)) for a in range(0, seq_len, QUERY_BLOCK)]


class BlockAttention(torch.autograd.Function):
    """softmax(q k^T / sqrt(h) + causal mask) v by plain matrix products, a block of queries at a time.

    Softmax is in float32. Kept for the backward pass: the probabilities P, in the inputs' dtype. With g the gradient
    of the output, dP = g v^T and dS = P * (dP - sum(P * dP)) / sqrt(h), as for FlashAttention (arXiv 2205.14135).
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # 3 x (B, H, T, h) -> (B, H, T, h)
        outputs, probabilities = [], []
        key = torch.arange(k.shape[-2], device=k.device)
        for a, b in query_blocks(q.shape[-2]):
            scores = widen(q[..., a:b, :] @ k[..., :b, :].mT) * q.shape[-1] ** -0.5  # (B, H, b - a, b)
            scores = scores.masked_fill(key[:b] > key[a:b, None], float("-inf"))
            probabilities.append(scores.softmax(dim=-1).to(v.dtype))
            outputs.append(probabilities[-1] @ v[..., :b, :])
        ctx.save_for_backward(q, k, v, *probabilities)
        return torch.cat(outputs, dim=-2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # (B, H, T, h) -> 3 x (B, H, T, h)
        q, k, v, *probabilities = ctx.saved_tensors
        seq_len = q.shape[-2]
        dq, dk, dv = [], torch.zeros_like(k), torch.zeros_like(v)
        for (a, b), kept in zip(query_blocks(seq_len), probabilities, strict=True):
            p, dp = widen(kept), widen(g[..., a:b, :] @ v[..., :b, :].mT)  # (B, H, b - a, b)
            ds = (p * (dp - (p * dp).sum(dim=-1, keepdim=True)) * q.shape[-1] ** -0.5).to(q.dtype)
            dq.append(ds @ k[..., :b, :])
            dk = dk + F.pad(ds.mT @ q[..., a:b, :], (0, 0, 0, seq_len - b))
            dv = dv + F.pad(kept.mT @ g[..., a:b, :], (0, 0, 0, seq_len - b))
        return torch.cat(dq, dim=-2), dk, dv


def widen(x: Tensor) -> Tensor:
    """`x` in float32, or in float64 if it is that already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention with scale 1/sqrt(h) on q, k, v of one dtype, (B, H, T, h) each; returns (B, H, T, h).

    By blocks for bfloat16 on a CPU where that is faster, else PyTorch's own kernel; the two agree to rounding.
    """
    if CPU_BLOCKS_PAY and q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[-2] <= LONGEST:
        return BlockAttention.apply(q, k, v)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def chunk_gradients(x: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Summed cross-entropy of one chunk (), its gradients for x (C, d) and weight (V, d). targets: (C,).

    The gradient for the logits is softmax - onehot = (e - z onehot) / z with e = exp(logits - max) and z = sum(e). Its
    1/z is applied to the (C, d) sides of the two products, so that the (C, V) side is passed over only once.
    """
    logits = widen(x @ weight.mT)  # (C, V); compiled, only its low-precision original is ever in memory
    top = logits.amax(dim=-1, keepdim=True)  # (C, 1)
    e = (logits - top).exp()  # (C, V)
    z = e.sum(dim=-1, keepdim=True)  # (C, 1)
    right = logits.gather(1, targets[:, None]) - top  # (C, 1)
    g = e.to(x.dtype).scatter(1, targets[:, None], (right.exp() - z).to(x.dtype))  # (C, V)
    return (z.log() - right).sum(), (widen(g @ weight) / z).to(x.dtype), g.mT @ (widen(x) / z).to(x.dtype)


ChunkGradients = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


class HeadLoss(torch.autograd.Function):
    """Loss and gradients in one pass over the chunks; backward only multiplies by the upstream gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, gradients: ChunkGradients
    ) -> Tensor:
        narrow = weight.to(dtype)  # (V, d)
        dweight = torch.zeros_like(weight, dtype=torch.promote_types(dtype, torch.float32))  # (V, d): sums over chunks
        loss, dx = dweight.new_zeros(()), []
        for part, target in zip(x.to(dtype).split(HEAD_CHUNK), targets.split(HEAD_CHUNK), strict=True):
            loss_of_part, dx_of_part, dweight_of_part = gradients(part, narrow, target)
            loss += loss_of_part
            dweight += dweight_of_part
            dx.append(dx_of_part)
        ctx.save_for_backward(torch.cat(dx).to(x.dtype), dweight.to(weight.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        dx, dweight = ctx.saved_tensors
        return dx * upstream.to(dx.dtype), dweight * upstream.to(dweight.dtype), None, None, None


def head_loss(x: Tensor, weight: Tensor, targets: Tensor, gradients: ChunkGradients = chunk_gradients) -> Tensor:
    """Sum of the next-token losses in nats, (), of logits x W^T that never exist for the whole batch at once.

    Args:
        x: (N, d), what the head sees.
        weight: (V, d), the head or the tied embedding.
        targets: (N,) int64, each in [0, V).
        gradients: `chunk_gradients`, or what torch.compile makes of it; call `head_loss` itself uncompiled.

    Products are in autocast's dtype where autocast is on, else in that of `weight`; sums are in float32 at least.
    """
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return HeadLoss.apply(x, weight, targets, dtype, gradients)
    narrow = weight.to(dtype)
    parts = zip(x.to(dtype).split(HEAD_CHUNK), targets.split(HEAD_CHUNK), strict=True)
    return torch.stack(
        [F.cross_entropy(widen(part @ narrow.mT), target, reduction="sum") for part, target in parts]
    ).sum()
