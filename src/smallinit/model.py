"""A decoder-only transformer: RMSNorm, rotary positions, multi-head attention with an optional output gate, SwiGLU.

Read it from the bottom up: `Decoder` is embedding -> blocks -> norm -> head. Shapes use
B batch, T sequence, V vocabulary, d d_model, H n_heads, h head_dim, f d_ff.
Weights are set by `init.initialize` and by nothing else: modules are built with empty tensors.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smallinit.config import ModelConfig


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, in float32 whatever comes in (Zhang & Sennrich, arXiv 1910.07467).

    eps matters here: once mean(x^2) falls below it, the output shrinks with the input instead of being normalised.
    """

    def __init__(self, d_model: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(d_model))  # (d,)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, d) -> (B, T, d) float32
        x = x.float()
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self.eps) * self.weight


def linear(d_in: int, d_out: int) -> nn.Linear:
    """A bias-free linear layer with an uninitialised weight (d_out, d_in)."""
    return nn.utils.skip_init(nn.Linear, d_in, d_out, bias=False)


def rotary_table(seq_len: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of position x frequency, each (T, h/2) float32 (Su et al., arXiv 2104.09864).

    Made anew in each forward pass, which costs nothing, so that a model's state is its parameters alone.
    """
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim)  # (h/2,)
    angle = torch.arange(seq_len, dtype=torch.float64, device=device)[:, None] * frequency  # (T, h/2)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x_i, x_{i + h/2}) by their position's angle. x: (B, H, T, h); cos, sin: (T, h/2)."""
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    first, second = x.chunk(2, dim=-1)  # (B, H, T, h/2) each
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Causal multi-head attention; a gate sigmoid(x W_g) multiplies its output before W_o (Qwen, arXiv 2505.06708)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        d, self.n_heads, self.head_dim = config.d_model, config.n_heads, config.head_dim
        self.q_proj = linear(d, d)  # (H h, d)
        self.k_proj = linear(d, d)  # (H h, d)
        self.v_proj = linear(d, d)  # (H h, d)
        self.o_proj = linear(d, d)  # (d, H h)
        gate_width = {"none": 0, "headwise": self.n_heads, "elementwise": d}[config.gate]
        self.gate_proj = linear(d, gate_width) if gate_width else None  # (H or H h, d)

    def split(self, x: Tensor) -> Tensor:  # (B, T, H n) -> (B, H, T, n)
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def queries_keys(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:  # 2 x (B, H, T, h)
        return rotate(self.split(self.q_proj(x)), cos, sin), rotate(self.split(self.k_proj(x)), cos, sin)

    def gate_values(self, x: Tensor) -> Tensor | None:  # (B, H, T, 1 or h), each in (0, 1)
        return None if self.gate_proj is None else torch.sigmoid(self.split(self.gate_proj(x)))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # x: (B, T, d), normalised
        q, k = self.queries_keys(x, cos, sin)
        y = F.scaled_dot_product_attention(q, k, self.split(self.v_proj(x)), is_causal=True)  # (B, H, T, h)
        gate = self.gate_values(x)
        if gate is not None:
            y = y * gate
        return self.o_proj(y.transpose(1, 2).flatten(2))  # (B, T, d)

    def probabilities(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The attention matrix A (B, H, T, T) in float32 that `forward` applies without keeping it; for measuring."""
        q, k = (z.float() for z in self.queries_keys(x, cos, sin))
        scores = q @ k.transpose(-1, -2) / self.head_dim**0.5  # (B, H, T, T)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)  # (T, T)
        return scores.masked_fill(future, float("-inf")).softmax(dim=-1)


class SwiGLU(nn.Module):
    """W_down (silu(W_gate x) * W_up x) (Shazeer, arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.ffn_gate = linear(config.d_model, config.d_ff)  # (f, d)
        self.ffn_up = linear(config.d_model, config.d_ff)  # (f, d)
        self.ffn_down = linear(config.d_ff, config.d_model)  # (d, f)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, d) -> (B, T, d)
        return self.ffn_down(F.silu(self.ffn_gate(x)) * self.ffn_up(x))


class Block(nn.Module):
    """Pre-norm residual block: x + attention(norm(x)), then x + ffn(norm(x))."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attention_norm = RMSNorm(config.d_model, config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = RMSNorm(config.d_model, config.norm_eps)
        self.ffn = SwiGLU(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # (B, T, d) -> (B, T, d)
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Decoder(nn.Module):
    """Token ids (B, T) to next-token logits (B, T, V)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embed = nn.utils.skip_init(nn.Embedding, config.vocab_size, config.d_model)  # (V, d)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.final_norm = RMSNorm(config.d_model, config.norm_eps)
        self.head = linear(config.d_model, config.vocab_size)  # (V, d)

    def rotary(self, ids: Tensor) -> tuple[Tensor, Tensor]:  # ids: (B, T) -> cos, sin: (T, h/2)
        return rotary_table(ids.shape[1], self.config.head_dim, self.config.rope_theta, ids.device)

    def forward(self, ids: Tensor) -> Tensor:  # (B, T) int64 -> (B, T, V)
        cos, sin = self.rotary(ids)
        x = self.embed(ids)  # (B, T, d): the residual stream, float32
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.final_norm(x))


def token_losses(model: nn.Module, ids: Tensor) -> Tensor:
    """Next-token loss in nats of each target. ids: (B, T + 1); returns (B, T) float32."""
    logits = model(ids[:, :-1]).float()  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(ids.shape[0], -1)
