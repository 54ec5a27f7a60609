"""Closed forms: what a norm's eps and the gamma rule do to a transformer before its first step.

All of them follow from two facts. The sum of n independent products has the standard deviation sqrt(n) times theirs, so
a matrix of std sigma turns inputs of RMS x into outputs of RMS sqrt(fan_in) sigma x. And a normalised input has the RMS
1, or less where eps weighs (`attenuation`). RMS is the root of the mean square over features and tokens.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

PAPER_WIDTHS = {"0.1B": 768, "0.4B": 1024, "0.7B": 1536, "1.5B": 2048}  # the paper's models
USUAL_EPS, SMALL_EPS = 1e-5, 1e-12  # of norms: what is usual, what the paper recommends with small initialization


class Feedforward(NamedTuple):
    """A feed-forward network: gated is W_down (f(W_gate x) * W_up x), else W_down f(W_up x)."""

    activation: Callable[[np.ndarray], np.ndarray]
    gated: bool


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * np.vectorize(math.erfc)(-x / math.sqrt(2)) / 2


def _silu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.tanh(x / 2)) / 2


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


FEEDFORWARDS = {
    "swiglu": Feedforward(_silu, True),
    "geglu": Feedforward(_gelu, True),
    "gelu": Feedforward(_gelu, False),
    "relu": Feedforward(_relu, False),
}
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(101)  # for means over a standard normal z


def attenuation(stream: float, eps: float) -> float:
    """RMS of what a norm makes of a stream of this RMS: 1 / sqrt(1 + eps / stream^2), which is 1 if eps is negligible.

    The embedding's RMS is d^(-gamma), so at the first norm this is the paper's 1 / sqrt(1 + eps d^(2 gamma)).
    """
    return 1 / math.sqrt(1 + eps / stream**2)


def matched_eps(reference_eps: float, d_ref: int, d_model: int, gamma: float) -> float:
    """The eps that attenuates the first norm at width `d_model` as `reference_eps` does at the paper's width `d_ref`.

    It keeps eps d^(2 gamma) the same.
    """
    return reference_eps * (d_ref / d_model) ** (2 * gamma)


def effective_gamma(std: float, fan_in: int) -> float:
    """The gamma for which fan_in^(-gamma) is this std: -ln(std) / ln(fan_in)."""
    return -math.log(std) / math.log(fan_in)


def activation_rms(activation: Callable[[np.ndarray], np.ndarray], std: float) -> float:
    """sqrt(mean f(std z)^2) over a standard normal z. For small std it is std / 2: silu and gelu have the slope 1/2."""
    return math.sqrt(float(WEIGHTS @ activation(std * NODES) ** 2 / WEIGHTS.sum()))


def attention_update(x: float, d_model: int, heads_width: int, std_value: float, std_out: float) -> float:
    """RMS of W_o W_v x for an input of RMS x: of what the first token, which attends to itself alone, adds.

    Later tokens average values of other tokens: by sqrt(sum A^2) smaller, a factor between 1 and 1 / sqrt(t + 1).
    """
    return x * math.sqrt(d_model) * std_value * math.sqrt(heads_width) * std_out


def feedforward_update(mlp: str, x: float, d_model: int, d_ff: int, std_in: float, std_down: float) -> float:
    """RMS of what a feed-forward network adds for an input of RMS x. Exact for Gaussian weights, at any width."""
    network = FEEDFORWARDS[mlp]
    inner = x * math.sqrt(d_model) * std_in  # RMS of W_gate x and of W_up x
    hidden = activation_rms(network.activation, inner) * (inner if network.gated else 1)
    return math.sqrt(d_ff) * std_down * hidden


def flow(part: str, d_model: int, gamma: float, d_ff: int | None = None, x: float = 1.0) -> float:
    """Residual flow under the gamma rule: RMS of a sublayer's update over the RMS d^(-gamma) of the embedding.

    Args:
        part: "attention" (of a first token) or one of FEEDFORWARDS.
        d_ff: hidden width of the feed-forward network.
        x: RMS of the normalised input, below 1 where eps weighs.
    """
    std = d_model**-gamma
    if part == "attention":
        return attention_update(x, d_model, d_model, std, std) / std
    if d_ff is None:
        raise ValueError(f"flow of {part!r} needs d_ff, its hidden width")
    return feedforward_update(part, x, d_model, d_ff, std, d_ff**-gamma) / std


def flow_exponent(part: str, gamma: float) -> float:
    """The power of d that `flow` approaches for wide models: 1 - gamma, or 3/2 - 2 gamma if the network is gated.

    A gated network multiplies two branches of RMS d^(1/2 - gamma), one more such factor than the others.
    """
    gated = part != "attention" and FEEDFORWARDS[part].gated
    return 1.5 - 2 * gamma if gated else 1 - gamma


def slope(widths: list[int], values: list[float]) -> float:
    """The power of d in values ~ d^slope: least squares on logarithms."""
    return float(np.polyfit(np.log(widths), np.log(values), 1)[0])


def rms_error(d_model: int, tokens: int) -> float:
    """A bound on the relative standard error of one measured RMS, from how many numbers were drawn.

    A mean square over d rows of Gaussian weights and n tokens has the relative variance (c / d) (1 / n + 2 / d): rows
    are independent, tokens nearly so (their inner products are of order 1 / sqrt(d)). c is 2 for one matrix, 4 for two;
    the products of a gated network have heavier tails, so c = 8 bounds all. An RMS has a quarter of that variance.
    """
    return math.sqrt(8 / d_model * (1 / tokens + 2 / d_model)) / 2


def slope_error(widths: list[int], tokens: int, seeds: int) -> float:
    """A bound on the standard error of a mean over seeds of slopes, each fitted to one measured RMS a width."""
    errors = np.array([rms_error(width, tokens) for width in widths])
    centred = np.log(widths) - np.log(widths).mean()
    return float(np.sqrt((centred**2 * errors**2).sum()) / (centred**2).sum() / math.sqrt(seeds))
