"""What training measures beside the loss: the shape of every matrix, and what each block does to the residual stream.

All of it on float32 weights without autocast, at the steps at which held-out loss is measured, on a few held-out
windows: a few per cent of the training time. Shapes use B batch, T sequence, d d_model, H n_heads, E n_experts.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from smallinit.model import Attention, Block, Decoder, LayerNorm, RMSNorm
from smallinit.parallel import whole

ROWS = 512  # of a matrix whose cosines are taken, evenly spaced: an embedding has thousands
ALIGNED = 0.7  # rows with a larger |cosine| count as pointing the same way
MATRICES = [
    *("step", "tokens", "name", "kind", "layer", "stable_rank", "stable_rank_ratio", "row_cosine"),
    *("row_cosine_above", "weight_norm", "grad_norm", "update_norm"),
]
BLOCKS = [
    *("step", "tokens", "layer", "part", "hidden_rms", "attenuation", "flow", "sink", "gate", "gate_below_0.1"),
]


def stable_rank(weight: Tensor) -> float:
    """||W||_F^2 / ||W||_2^2 of a matrix (n, m), between 1 and its rank; the mean over a stack of experts (E, n, m).

    NaN if all is zero.
    """
    weight = weight / weight.abs().max()  # else squares of very small or, before a run diverges, large numbers are lost
    short = weight if weight.shape[-2] <= weight.shape[-1] else weight.mT
    gram = (short @ short.mT).double()  # (..., s, s): its eigenvalues are the squared singular values
    if not gram.isfinite().all():
        return math.nan
    largest = torch.linalg.eigvalsh(gram)[..., -1]
    return (gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1) / largest).mean().item()


def gaussian_stable_rank(n: int, m: int) -> float:
    """The stable rank of a large matrix (n, m) of independent Gaussian numbers: nm / (sqrt(n) + sqrt(m))^2.

    Its Frobenius norm is sigma sqrt(nm), its spectral norm sigma (sqrt(n) + sqrt(m)) (Bai & Yin, 1993).
    """
    return n * m / (math.sqrt(n) + math.sqrt(m)) ** 2


def row_cosine(weight: Tensor) -> Tensor:
    """Cosine similarity of the rows of a matrix (n, m): (r, r), r = n, or ROWS evenly spaced rows if there are more."""
    rows = weight[:: math.ceil(weight.shape[0] / ROWS)]
    unit = nn.functional.normalize(rows.float(), dim=1, eps=1e-30)  # not 1e-12: rows at gamma = 1 may be as small
    return unit @ unit.T


def alignment(weight: Tensor) -> tuple[float, float]:
    """Of a matrix (n, m): the mean |cosine| of two different rows, and the share of pairs above ALIGNED.

    The mean over the experts of a stack (E, n, m).
    """
    if weight.ndim == 3:
        means, shares = zip(*map(alignment, weight), strict=True)
        return sum(means) / len(means), sum(shares) / len(shares)
    cosine = row_cosine(weight).abs()
    pairs = cosine[~torch.eye(len(cosine), dtype=torch.bool, device=cosine.device)]
    return pairs.mean().item(), (pairs > ALIGNED).float().mean().item()


def sink(probabilities: Tensor) -> Tensor:
    """Mean attention to token 0 of the queries t >= T/2. probabilities: (B, H, T, T); returns (B, H)."""
    half = probabilities.shape[-2] // 2
    return probabilities[:, :, half:, 0].mean(dim=2)


def layer_of(name: str) -> int:
    """The number of the block that a parameter lies in, from its name; -1 for embedding, head and final norm."""
    parts = name.split(".")
    return int(parts[parts.index("blocks") + 1]) if "blocks" in parts else -1


def matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every matrix by its name in `model.Decoder`, also where the model is wrapped for several processes."""
    return {name.removeprefix("module."): p for name, p in model.named_parameters() if p.ndim >= 2}


def norms(model: nn.Module, gradients: bool = False) -> dict[str, float]:
    """Frobenius norm of every matrix, or of its gradient; of shards as one, so every process must ask."""
    found = {}
    for name, parameter in matrices(model).items():
        tensor = parameter.grad if gradients else parameter.detach()
        found[name] = math.nan if tensor is None else whole(torch.linalg.vector_norm(tensor)).item()
    return found


class Step:
    """One optimizer step seen from both sides: the norm of the gradient and of the update of every matrix."""

    def __init__(self, model: nn.Module):
        self.gradients = norms(model, gradients=True)
        self.before = {name: parameter.detach().clone() for name, parameter in matrices(model).items()}

    def close(self, model: nn.Module) -> dict[str, tuple[float, float]]:
        """After the step: the two norms of each matrix, by name."""
        after = matrices(model)
        moved = {name: torch.linalg.vector_norm(after[name].detach() - old) for name, old in self.before.items()}
        return {name: (self.gradients[name], whole(norm).item()) for name, norm in moved.items()}


@torch.no_grad()
def measure_matrices(
    model: nn.Module, kinds: Mapping[str, str], moved: Mapping[str, tuple[float, float]]
) -> list[list[Any]]:
    """One row a matrix: MATRICES from `name` on. `moved` is what `Step.close` gives, empty at step 0.

    Every process must ask.
    """
    weight_norms, rows = norms(model), []
    for name, parameter in matrices(model).items():
        weight = whole(parameter.detach()).float()
        rank = stable_rank(weight)
        ratio = rank / gaussian_stable_rank(weight.shape[-2], weight.shape[-1])
        gradient, update = moved.get(name, (None, None))
        shape = [rank, ratio, *alignment(weight), weight_norms[name]]
        rows.append([name, kinds[name], layer_of(name), *shape, gradient, update])
    return rows


def norm_measures(norm: RMSNorm, x: Tensor) -> dict[str, float]:
    """Of a norm and its input (B, T, d): `hidden_rms`, and `attenuation`, the mean RMS of what leaves it.

    Without its gain a norm gives sqrt(v / (v + eps)), v the variance of a token's hidden state: 1 as long as v is far
    above eps, sqrt(v / eps) below.
    """
    x = x.float()
    centred = x - x.mean(dim=-1, keepdim=True) if isinstance(norm, LayerNorm) else x
    variance = centred.square().mean(dim=-1)  # (B, T)
    return {
        "hidden_rms": x.square().mean().sqrt().item(),
        "attenuation": (variance / (variance + norm.eps)).sqrt().mean().item(),
    }


def attention_measures(attention: Attention, x: Tensor, cos: Tensor, sin: Tensor) -> dict[str, float]:
    """Of an attention layer and its normalised input (B, T, d): its sink, the mean of its gate and the share shut."""
    found = {"sink": sink(attention.probabilities(x, cos, sin)).mean().item()}
    gate = attention.gate_values(x)
    if gate is not None:
        found |= {"gate": gate.mean().item(), "gate_below_0.1": (gate < 0.1).float().mean().item()}
    return found


@contextlib.contextmanager
def hooks(model: Decoder) -> Iterator[dict[tuple[int, str], dict[str, float]]]:
    """While it is open, a forward pass notes the measures of each norm and layer, by (layer, part)."""
    seen: dict[tuple[int, str], dict[str, float]] = {}
    handles = []

    def watch(norm: RMSNorm, layer: nn.Module | None, key: tuple[int, str]) -> None:
        def at_norm(module: RMSNorm, args: tuple[Tensor, ...], output: Tensor) -> None:
            seen[key] = norm_measures(module, args[0])

        def at_layer(module: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
            update = output[0] if isinstance(output, tuple) else output  # experts return their auxiliary loss as well
            seen[key]["flow"] = update.float().square().mean().sqrt().item() / seen[key]["hidden_rms"]
            if isinstance(module, Attention):
                seen[key] |= attention_measures(module, *args)

        handles.append(norm.register_forward_hook(at_norm))
        if layer is not None:
            handles.append(layer.register_forward_hook(at_layer))

    for number, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        watch(block.attention_norm, block.attention, (number, "attention"))
        watch(block.ffn_norm, block.ffn, (number, "ffn"))
    watch(model.final_norm, None, (len(model.blocks), "final"))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
@torch.compiler.set_stance("force_eager")  # hooks see every layer, and nothing is compiled for so few windows
def measure_blocks(model: nn.Module, ids: Tensor) -> list[list[Any]]:
    """One row a norm: BLOCKS from `layer` on, from a forward pass over ids (B, T); every process must ask.

    `flow` is the RMS of what attention or the feed-forward network adds, over that of the identity path it is added to.
    """
    decoder = cast(Decoder, getattr(model, "module", model))  # inside DDP
    with hooks(decoder) as seen:
        decoder(ids, ids)
    return [[layer, part, *(found.get(name) for name in BLOCKS[4:])] for (layer, part), found in sorted(seen.items())]
