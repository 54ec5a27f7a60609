"""A decoder-only transformer: pre-norm blocks of attention with an optional output gate, and a feed-forward network.

Read it from the bottom up: `Decoder` is embedding -> blocks -> norm -> head. Shapes use
B batch, T sequence, V vocabulary, d d_model, H n_heads, K n_kv_heads, h head_dim, f d_ff.
Weights are set by `init.initialize` and by nothing else: modules are built with empty tensors, and no layer has a bias.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from smallinit.config import ModelConfig
from smallinit.kernels import causal_attention, chunk_gradients, head_loss
from smallinit.moe import MixtureOfExperts


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


class LayerNorm(RMSNorm):
    """(x - mean(x)) / sqrt(var(x) + eps) * weight, in float32 (Ba et al., arXiv 1607.06450): RMSNorm of x - mean(x)."""

    def forward(self, x: Tensor) -> Tensor:  # (B, T, d) -> (B, T, d) float32
        x = x.float()
        return super().forward(x - x.mean(dim=-1, keepdim=True))


def norm(config: ModelConfig) -> RMSNorm:
    """The norm that the configuration names."""
    return {"rmsnorm": RMSNorm, "layernorm": LayerNorm}[config.norm](config.d_model, config.norm_eps)


def linear(d_in: int, d_out: int) -> nn.Linear:
    """A bias-free linear layer with an uninitialised weight (d_out, d_in) on the default device."""
    return nn.utils.skip_init(nn.Linear, d_in, d_out, bias=False, device=torch.get_default_device())


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
    """Causal attention; a gate sigmoid(x W_g) multiplies its output before W_o (Qwen, arXiv 2505.06708).

    With n_kv_heads < n_heads each key and value head serves a group of query heads (Ainslie et al., arXiv 2305.13245).
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        d, self.head_dim = config.d_model, config.head_dim
        self.n_heads, self.groups = config.n_heads, config.n_heads // config.n_kv_heads
        self.q_proj = linear(d, config.n_heads * self.head_dim)  # (H h, d)
        self.k_proj = linear(d, config.n_kv_heads * self.head_dim)  # (K h, d)
        self.v_proj = linear(d, config.n_kv_heads * self.head_dim)  # (K h, d)
        self.o_proj = linear(config.n_heads * self.head_dim, d)  # (d, H h)
        gate_width = {"none": 0, "headwise": 1, "elementwise": self.head_dim}[config.gate]  # of one head
        self.gate_proj = linear(d, self.n_heads * gate_width) if gate_width else None  # (H or H h, d)

    def queries_keys(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:  # 2 x (B, H, T, h)
        q, k = (proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for proj in (self.q_proj, self.k_proj))
        return rotate(q, cos, sin), rotate(k, cos, sin).repeat_interleave(self.groups, dim=1)

    def values(self, x: Tensor) -> Tensor:  # (B, H, T, h)
        v = self.v_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        return v.repeat_interleave(self.groups, dim=1)

    def gate_values(self, x: Tensor) -> Tensor | None:  # (B, H, T, 1 or h), each in (0, 1)
        if self.gate_proj is None:
            return None
        return torch.sigmoid(self.gate_proj(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # x: (B, T, d), normalised
        q, k = self.queries_keys(x, cos, sin)
        y = causal_attention(q, k, self.values(x))  # (B, H, T, h)
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


class GELU(nn.Module):
    """W_down gelu(W_up x), the two-matrix network of GPT-2 (Hendrycks & Gimpel, arXiv 1606.08415)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.ffn_up = linear(config.d_model, config.d_ff)  # (f, d)
        self.ffn_down = linear(config.d_ff, config.d_model)  # (d, f)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, d) -> (B, T, d)
        return self.ffn_down(F.gelu(self.ffn_up(x)))


class Block(nn.Module):
    """Pre-norm residual block: x + attention(norm(x)), then x + ffn(norm(x))."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attention_norm = norm(config)
        self.attention = Attention(config)
        self.ffn_norm = norm(config)
        dense = {"swiglu": SwiGLU, "gelu": GELU}[config.mlp]
        self.ffn = MixtureOfExperts(config) if config.moe else dense(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, d) -> (B, T, d), and the routers' auxiliary loss (): zero in a dense block."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        if isinstance(self.ffn, MixtureOfExperts):
            y, auxiliary = self.ffn(self.ffn_norm(x))
            return x + y, auxiliary
        return x + self.ffn(self.ffn_norm(x)), x.new_zeros(())


class Decoder(nn.Module):
    """Token ids (B, T) to next-token logits (B, T, V), or to their loss."""

    def __init__(self, config: ModelConfig, activation_checkpointing: bool = False):
        super().__init__()
        self.config, self.activation_checkpointing = config, activation_checkpointing
        device = torch.get_default_device()  # skip_init alone would take the CPU, also where "meta" is asked for
        self.embed = nn.utils.skip_init(nn.Embedding, config.vocab_size, config.d_model, device=device)  # (V, d)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.final_norm = norm(config)
        self.head = None if config.tied_head else linear(config.d_model, config.vocab_size)  # (V, d)
        self.chunk_gradients = chunk_gradients

    def compile_parts(self) -> None:
        """torch.compile, in parts: as fast as the whole, and compiled once for all blocks instead of for each."""
        for part in (*self.blocks, self.final_norm):
            part.compile(dynamic=False)
        self.chunk_gradients = torch.compile(chunk_gradients, dynamic=False)

    def rotary(self, ids: Tensor) -> tuple[Tensor, Tensor]:  # ids: (B, T) -> cos, sin: (T, h/2)
        return rotary_table(ids.shape[1], self.config.head_dim, self.config.rope_theta, ids.device)

    def hidden(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What the head sees, (B, T, d) float32, and the routers' auxiliary loss (), the mean over the blocks."""
        cos, sin = self.rotary(ids)
        x, auxiliary = self.embed(ids), torch.zeros((), device=ids.device)  # x (B, T, d): the residual stream, float32
        for block in self.blocks:
            if self.activation_checkpointing and torch.is_grad_enabled():
                x, routing = checkpoint(block, x, cos, sin, use_reentrant=False)
            else:
                x, routing = block(x, cos, sin)
            auxiliary = auxiliary + routing / len(self.blocks)
        return self.final_norm(x), auxiliary

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Without targets: logits (B, T, V). With targets (B, T): (sum of the next-token losses in nats, auxiliary)."""
        x, auxiliary = self.hidden(ids)
        weight = self.embed.weight if self.head is None else self.head.weight  # (V, d)
        if targets is None:
            return F.linear(x, weight)
        return head_loss(x.flatten(0, 1), weight, targets.flatten(), self.chunk_gradients), auxiliary


def token_losses(model: nn.Module, ids: Tensor) -> Tensor:
    """Next-token loss in nats of each target. ids: (B, T + 1); returns (B, T) float32."""
    logits = model(ids[:, :-1]).float()  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(ids.shape[0], -1)
