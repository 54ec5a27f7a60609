"""AdamW as all runs use it: which parameters are decayed, the learning rate of a step, the reach of its epsilon."""

import math
from typing import Any

import torch
from torch import nn

from smallinit.config import TrainConfig
from smallinit.parallel import ALONE, World, local


def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """The optimizer of a run (Loshchilov & Hutter, arXiv 1711.05101)."""
    betas = (config.adam_beta1, config.adam_beta2)
    groups = parameter_groups(model, config.weight_decay)
    return torch.optim.AdamW(groups, lr=config.peak_lr, betas=betas, eps=config.adam_eps, fused=True)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """AdamW's two groups by name: matrices are decayed, norm gains are not."""
    named = list(model.named_parameters())
    matrices = [(name, p) for name, p in named if p.ndim >= 2]
    gains = [(name, p) for name, p in named if p.ndim < 2]
    return [
        {"params": [p for _, p in matrices], "names": [n for n, _ in matrices], "weight_decay": weight_decay},
        {"params": [p for _, p in gains], "names": [n for n, _ in gains], "weight_decay": 0.0},
    ]


def schedule(step: int, steps: int, warmup_fraction: float, final_fraction: float) -> float:
    """The rate of a step as a share of the peak: linear warm-up, then a cosine down to `final_fraction`."""
    warmup = math.ceil(warmup_fraction * steps)
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(steps - warmup, 1)  # 0 ... 1
    return final_fraction + (1 - final_fraction) * 0.5 * (1 + math.cos(math.pi * done))


def learning_rate(step: int, steps: int, config: TrainConfig) -> float:
    """The rate of a step of a run, see `schedule`."""
    return config.peak_lr * schedule(step, steps, config.warmup_fraction, config.final_lr_fraction)


@torch.no_grad()
def adam_eps_share(optimizer: torch.optim.AdamW, eps: float, world: World = ALONE) -> float:
    """Share of coordinates whose sqrt(v) is below 10 eps, where AdamW's own epsilon damps the step."""
    moments = [local(state["exp_avg_sq"]) for state in optimizer.state.values()]
    damped = sum(int((moment.sqrt() < 10 * eps).sum()) for moment in moments)
    small, count = world.sum(damped, sum(moment.numel() for moment in moments))
    return small / max(count, 1)
