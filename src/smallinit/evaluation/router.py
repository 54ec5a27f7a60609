"""Routers of a mixture of experts: how evenly they use the experts, and how sure they are."""

import numpy as np
import pandas as pd
import torch

from smallinit.evaluation.config import EvaluateConfig
from smallinit.evaluation.inputs import layer_inputs
from smallinit.model import Decoder
from smallinit.moe import MixtureOfExperts, balance_loss, expert_load, router_entropy

COLUMNS = ["layer", "expert", "load", "entropy", "balance_loss"]


@torch.no_grad()
def measure(model: Decoder, tokens: np.ndarray, config: EvaluateConfig) -> pd.DataFrame | None:
    """The routers over all tokens of the first held-out windows, one row a layer and expert; None of a dense model.

    Columns: layer, expert, load (the expert's share of all choices; even: 1 / E); and of the layer as a whole entropy
    (mean over tokens, nats; undecided: ln E) and balance_loss (even: 1; collapsed onto the same k experts: E / k).

    Raises:
        ValueError: the held-out text has fewer windows.
    """
    tables = []
    for layer, (experts, x) in enumerate(layer_inputs(model, MixtureOfExperts, tokens, config)):
        routing = experts.routing(x.flatten(0, 1))
        table = pd.DataFrame({"load": expert_load(routing).numpy()}).rename_axis("expert").reset_index()
        measures = {"entropy": router_entropy(routing).item(), "balance_loss": balance_loss(routing).item()}
        tables.append(table.assign(layer=layer, **measures))
    return pd.concat(tables, ignore_index=True)[COLUMNS] if tables else None
