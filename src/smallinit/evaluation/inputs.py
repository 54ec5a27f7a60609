"""What the layers of a model see on held-out text."""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from smallinit.batches import take, windows
from smallinit.evaluation.config import EvaluateConfig
from smallinit.model import Decoder

Layer = TypeVar("Layer", bound=nn.Module)


@torch.no_grad()
def layer_inputs(
    model: Decoder, kind: type[Layer], tokens: np.ndarray, config: EvaluateConfig
) -> list[tuple[Layer, Tensor]]:
    """Each layer of a kind, first block first, with its normalised input (B, T, d), B = `attention_windows`.

    Raises:
        ValueError: the held-out text has fewer windows.
    """
    seq_len = model.config.seq_len
    if config.attention_windows > (available := windows(tokens, seq_len)):
        raise ValueError(
            f"evaluate.attention_windows = {config.attention_windows}, but the held-out text has {available} windows"
        )
    seen: list[tuple[Layer, Tensor]] = []
    layers = [module for module in model.modules() if isinstance(module, kind)]
    hooks = [layer.register_forward_pre_hook(lambda layer, args: seen.append((layer, args[0]))) for layer in layers]
    try:
        model(take(tokens, np.arange(config.attention_windows), seq_len)[:, :-1])  # (B, T)
    finally:
        for hook in hooks:
            hook.remove()
    return seen
