"""Greedy decoding of several prompts at a time, with a cache of keys and values."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from smallinit.data.bpe import END_ID
from smallinit.model import Attention, Block, Decoder, rotary_table


class CachedAttention(nn.Module):
    """Stands in for an Attention: keeps the keys and values of what it has seen, of B sequences of their own lengths.

    `positions` (B, T) says where the T new tokens of each sequence belong; what lies beyond a token is never looked at,
    so that padding on the right is overwritten before it counts.
    """

    def __init__(self, attention: Attention, batch: int, table: tuple[Tensor, Tensor]):
        super().__init__()
        self.attention, self.cos, self.sin = attention, *table  # (S, h/2) each
        shape = (batch, attention.n_heads, len(self.cos), attention.head_dim)  # (B, H, S, h)
        self.keys, self.values = (self.cos.new_zeros(shape) for _ in range(2))
        self.positions = torch.empty(0, dtype=torch.long)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x (B, T, d), normalised -> (B, T, d). The angles given are those of positions 0 ... T - 1: not used."""
        angles = (table[self.positions][:, None] for table in (self.cos, self.sin))  # (B, 1, T, h/2) each
        q, k = self.attention.queries_keys(x, *angles)  # (B, H, T, h) each
        index = self.positions[:, None, :, None].expand_as(k)
        self.keys.scatter_(2, index, k)
        self.values.scatter_(2, index, self.attention.values(x))
        seen = torch.arange(len(self.cos), device=x.device) <= self.positions[:, None, :, None]  # (B, 1, T, S)
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)  # (B, H, T, h)
        gate = self.attention.gate_values(x)
        if gate is not None:
            y = y * gate
        return cast(Tensor, self.attention.o_proj(y.transpose(1, 2).flatten(2)))  # (B, T, d)


@contextlib.contextmanager
def cached(model: Decoder, batch: int, length: int) -> Iterator[list[CachedAttention]]:
    """`model` with a cache for `batch` sequences of at most `length` tokens in each of its blocks."""
    config, blocks = model.config, [cast(Block, block) for block in model.blocks]
    table = rotary_table(length, config.head_dim, config.rope_theta, model.embed.weight.device)
    caches = [CachedAttention(block.attention, batch, table) for block in blocks]
    try:
        for block, cache in zip(blocks, caches, strict=True):
            block.attention = cache  # type: ignore[assignment]
        yield caches
    finally:
        for block, cache in zip(blocks, caches, strict=True):
            block.attention = cache.attention


@torch.no_grad()
def continue_greedily(
    model: Decoder, tokenizer: Tokenizer, prompts: list[list[int]], max_tokens: int, stop: Sequence[str]
) -> list[str]:
    """The likeliest next token again and again after each prompt of token ids (at least one); see `Scorer.generate`."""
    device, count = model.embed.weight.device, len(prompts)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)  # (B,)
    longest = int(lengths.max())
    ids = torch.tensor([prompt + [END_ID] * (longest - len(prompt)) for prompt in prompts], device=device)  # (B, T)
    positions = torch.arange(longest, device=device).expand(count, -1)  # (B, T)
    last = lengths - 1  # (B,) of the columns in hand: whose hidden state says what comes next
    written: list[list[int]] = [[] for _ in prompts]
    texts: dict[int, str] = {}
    head = model.embed.weight if model.head is None else model.head.weight  # (V, d)
    with cached(model, count, longest + max_tokens) as caches:
        for step in range(max_tokens):
            for cache in caches:
                cache.positions = positions
            x = model.hidden(ids)[0][torch.arange(count, device=device), last]  # (B, d)
            token = F.linear(x, head).argmax(dim=-1)  # (B,)
            for row in set(range(count)) - set(texts):
                written[row].append(int(token[row]))
                text = finished(tokenizer, written[row], stop, step == max_tokens - 1)
                if text is not None:
                    texts[row] = text
            if len(texts) == count:
                break
            ids, positions, last = token[:, None], (lengths + step)[:, None], torch.zeros_like(last)
    return [texts[row] for row in range(count)]


def finished(tokenizer: Tokenizer, ids: list[int], stop: Sequence[str], full: bool) -> str | None:
    """The text of `ids` up to a stop string or <|endoftext|>, None if neither is there and it is not yet `full`."""
    ended = ids[-1] == END_ID
    text: str = tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=False)
    found = [place for string in stop if (place := text.find(string)) >= 0]
    if found:
        return text[: min(found)]
    return text if ended or full else None
