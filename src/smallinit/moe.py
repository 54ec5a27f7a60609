"""A mixture of experts: each token chooses its top-k feed-forward networks (Shazeer et al., arXiv 1701.06538).

The router works in float32, ties go to the expert with the lower number, no token is dropped, and the experts are
visited in order: the same inputs give the same outputs, bit by bit. Shapes use
N tokens, d d_model, f d_ff, E n_experts, k top_k.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smallinit.config import ModelConfig

# An expert's share of the tokens is padded to a multiple of this many. On a CPU the first bfloat16 product of each new
# shape is prepared for milliseconds, many times what it takes to multiply some rows of zeros.
ROWS = 128


class Routing(NamedTuple):
    """What the router decides for N tokens."""

    logits: Tensor  # (N, E) float32
    chosen: Tensor  # (N, k) int64, the experts of each token, best first
    weights: Tensor  # (N, k) float32, the softmax over the chosen ones: they add up to 1


def route(logits: Tensor, top_k: int) -> Routing:
    """The k experts with the largest logits (N, E), equal ones by their number, and their softmax weights."""
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    return Routing(logits, order[:, :top_k], values[:, :top_k].softmax(dim=-1))


def expert_load(routing: Routing) -> Tensor:
    """Share of all choices that fell on each expert: (E,), adds up to 1, uniform 1 / E."""
    return F.one_hot(routing.chosen, routing.logits.shape[1]).float().mean(dim=(0, 1))


def router_entropy(routing: Routing) -> Tensor:
    """Mean entropy of the router's softmax over all experts, in nats: log E when it does not discriminate; ()."""
    log_p = routing.logits.log_softmax(dim=-1)  # (N, E)
    return -(log_p.exp() * log_p).sum(dim=-1).mean()


def balance_loss(routing: Routing) -> Tensor:
    """E * sum over experts of load x mean probability (Fedus et al., arXiv 2101.03961, for top-k): ().

    1 when either is uniform; E / k when all tokens are sure of the same k experts.
    """
    probability = routing.logits.softmax(dim=-1).mean(dim=0)  # (E,)
    return routing.logits.shape[1] * (expert_load(routing) * probability).sum()


def z_loss(routing: Routing) -> Tensor:
    """Mean squared log-sum-exp of the logits, which keeps them small (Zoph et al., arXiv 2202.08906): ()."""
    return routing.logits.logsumexp(dim=-1).square().mean()


class MixtureOfExperts(nn.Module):
    """sum over the chosen experts e of weight_e * W_down,e act(W x): SwiGLU or GELU experts, all of one shape."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        assert config.moe is not None
        self.moe, n_experts, d, f = config.moe, config.moe.n_experts, config.d_model, config.d_ff
        device = torch.get_default_device()  # skip_init alone would take the CPU, also where "meta" is asked for
        self.router = nn.utils.skip_init(nn.Linear, d, n_experts, bias=False, device=device)  # (E, d)
        self.experts_gate = nn.Parameter(torch.empty(n_experts, f, d)) if config.mlp == "swiglu" else None  # (E, f, d)
        self.experts_up = nn.Parameter(torch.empty(n_experts, f, d))  # (E, f, d)
        self.experts_down = nn.Parameter(torch.empty(n_experts, d, f))  # (E, d, f)

    def routing(self, x: Tensor) -> Routing:  # x: (N, d), normalised
        with torch.autocast(x.device.type, enabled=False):
            return route(F.linear(x.float(), self.router.weight.float()), self.moe.top_k)

    def networks(self) -> list[tuple[Tensor | None, Tensor, Tensor]]:
        """Each expert's own (f, d), (f, d), (d, f); by unbind, since the gradient of a slice is a whole (E, f, d)."""
        gates = [None] * self.moe.n_experts if self.experts_gate is None else self.experts_gate.unbind()
        return [*zip(gates, self.experts_up.unbind(), self.experts_down.unbind(), strict=True)]

    @staticmethod
    def expert(x: Tensor, gate: Tensor | None, up: Tensor, down: Tensor) -> Tensor:  # (n, d) -> (n, d)
        padded = F.pad(x, (0, 0, 0, -len(x) % ROWS))  # (n', d)
        hidden = F.linear(padded, up)  # (n', f)
        act = F.gelu(hidden) if gate is None else F.silu(F.linear(padded, gate)) * hidden
        return F.linear(act, down)[: len(x)]

    @torch.compiler.disable  # how many tokens an expert gets is new in each batch: it would be compiled for each
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, d), normalised -> (B, T, d) and the weighted auxiliary loss ()."""
        tokens = x.flatten(0, 1)  # (N, d)
        routing = self.routing(tokens)
        chosen = routing.chosen.flatten()  # (N k)
        order = chosen.argsort(stable=True)  # the choices, those of the first expert first
        counts = chosen.bincount(minlength=self.moe.n_experts).tolist()
        shares = tokens[order // self.moe.top_k].split(counts)  # (n_e, d) for each expert
        outputs = [self.expert(share, *own) for share, own in zip(shares, self.networks(), strict=True)]
        unsorted = torch.cat(outputs)[order.argsort()].view(len(tokens), self.moe.top_k, -1)  # (N, k, d)
        y = (unsorted * routing.weights[..., None]).sum(dim=1)  # (N, d)
        auxiliary = self.moe.balance_coef * balance_loss(routing) + self.moe.z_coef * z_loss(routing)
        return y.to(x.dtype).view_as(x), auxiliary
