"""The adviser: what a model's eps, dtype and initialization do at step 0, and what the paper would set instead.

It knows closed forms only (`theory/formulas.py`), so it needs neither weights nor torch. Ask it with numbers,
`advise(Network(...))`, or with the config.json of a Hugging Face model, `advise(from_config(json.load(file)))`.
"""

import argparse
import json
import math
import textwrap
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from smallinit.config import ConfigError, Strict, explain
from smallinit.theory import formulas
from smallinit.theory.formulas import SMALL_EPS, USUAL_EPS

WIDTH = 96  # characters of a line of advice
# The smallest normal and the smallest positive number of each floating-point type.
FLOATS = {
    "float16": (2.0**-14, 2.0**-24),
    "bfloat16": (2.0**-126, 2.0**-133),
    "float32": (2.0**-126, 2.0**-149),
}
# What the configurations of `transformers` call our fields, in the order of preference.
HF_KEYS = {
    "d_model": ("hidden_size", "n_embd", "d_model"),
    "d_ff": ("moe_intermediate_size", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "n_layers": ("num_hidden_layers", "n_layer"),
    "n_heads": ("num_attention_heads", "n_head"),
    "norm_eps": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "activation": ("hidden_act", "hidden_activation", "activation_function", "activation"),
    "std": ("initializer_range", "init_std"),
    "dtype": ("dtype", "torch_dtype"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
}
POST_NORM = ("gemma2", "gemma3", "olmo2", "olmo3", "glm4")  # beginnings of model types


class Network(Strict):
    """What the advice depends on. Either `std`, one for all matrices, or `gamma`, std = fan_in^(-gamma)."""

    d_model: int = Field(ge=2)
    d_ff: int = Field(ge=2, description="hidden width of the feed-forward network, or of one expert")
    heads_width: int = Field(ge=2, description="heads times head_dim, the fan_in of W_o")
    mlp: Literal["swiglu", "geglu", "gelu", "relu"]
    norm_eps: float = Field(ge=0)
    dtype: Literal["float16", "bfloat16", "float32"]
    std: float | None = Field(default=None, gt=0)
    gamma: float | None = Field(default=None, ge=0, le=4)
    stream_scale: float = Field(default=1.0, gt=0, description="RMS of the first stream over the embedding's std")
    residual_scale: float = Field(default=1.0, gt=0, description="factor on the std of W_o and FFN down")
    post_norm: bool = Field(default=False, description="updates are normalised before they are added")
    experts: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_scale(self) -> "Network":
        if (self.std is None) == (self.gamma is None):
            raise ValueError(f"give one of std = {self.std} and gamma = {self.gamma}, and not the other")
        return self


class Setting(Strict):
    """One choice of initialization and eps, and what follows from it at step 0.

    `flow`s are RMS of an update over RMS of the stream, in the first block, for a first token, the attenuated stream
    going into both sublayers.
    """

    gamma: float
    std: float  # of a matrix with fan_in = d_model
    norm_eps: float
    attenuation: float
    attention_flow: float
    feedforward_flow: float


class Advice(Strict):
    """The network as it is, with gamma = 1 alone, and as the paper would set it."""

    network: Network
    now: Setting
    small: Setting
    paper: Setting
    eps_in_dtype: Literal["normal", "subnormal", "zero"]
    paper_eps_in_dtype: Literal["normal", "subnormal", "zero"]
    notes: list[str]


def in_dtype(value: float, dtype: str) -> Literal["normal", "subnormal", "zero"]:
    """What becomes of a number >= 0 in a floating-point type; below half of the smallest positive one it is zero."""
    normal, positive = FLOATS[dtype]
    return "zero" if value <= positive / 2 else "subnormal" if value < normal else "normal"


def setting(network: Network, norm_eps: float) -> Setting:
    """The consequences of the network's initialization under `norm_eps`."""
    d, heads, d_ff = network.d_model, network.heads_width, network.d_ff
    if network.gamma is None:
        assert network.std is not None
        gamma, stds = formulas.effective_gamma(network.std, d), dict.fromkeys((d, heads, d_ff), network.std)
    else:
        gamma = network.gamma
        stds = {fan_in: fan_in**-gamma for fan_in in (d, heads, d_ff)}
    stream = network.stream_scale * stds[d]
    x = formulas.attenuation(stream, norm_eps)
    attention = formulas.attention_update(x, d, heads, stds[d], stds[heads])
    feedforward = formulas.feedforward_update(network.mlp, x, d, d_ff, stds[d], stds[d_ff])
    return Setting(
        gamma=gamma,
        std=stds[d],
        norm_eps=norm_eps,
        attenuation=x,
        attention_flow=attention * network.residual_scale / stream,
        feedforward_flow=feedforward * network.residual_scale / stream,
    )


def advise(network: Network) -> Advice:
    """What the network's eps and initialization do, beside what the paper would set."""
    changed = network.model_copy(update={"std": None, "gamma": 1.0, "residual_scale": 1.0})
    small, paper = setting(changed, network.norm_eps), setting(changed, SMALL_EPS)
    return Advice(
        network=network,
        now=setting(network, network.norm_eps),
        small=small,
        paper=paper,
        eps_in_dtype=in_dtype(network.norm_eps, network.dtype),
        paper_eps_in_dtype=in_dtype(SMALL_EPS, network.dtype),
        notes=notes(network, small, paper),
    )


def notes(network: Network, small: Setting, paper: Setting) -> list[str]:
    """What to look out for, a sentence or two each."""
    dtype, square = network.dtype, (network.stream_scale * small.std) ** 2
    found = []
    numbers = {"this ε": network.norm_eps, "the paper's ε": SMALL_EPS, "the stream's mean square at γ = 1": square}
    for name, value in numbers.items():
        state = in_dtype(value, dtype)
        if state != "normal":
            fate = "0, refuse this combination" if state == "zero" else "subnormal, with few digits or flushed to 0"
            found.append(
                f"{name}, {value:.3g}, is {fate}, in a norm that computes in {dtype}; let norms compute in float32, as "
                "most models of transformers do, or use bfloat16"
            )
    if small.attenuation < 0.9:
        found.append(
            f"ε first: with γ = 1 alone the first norm would pass {small.attenuation:.1%} of its usual output, because "
            f"ε = {network.norm_eps:g} outweighs the stream's mean square {square:.2g}; the paper's ε passes "
            f"{paper.attenuation:.1%}"
        )
    if formulas.FEEDFORWARDS[network.mlp].gated:
        found.append(
            f"{network.mlp} multiplies two small branches, so at γ = 1 its update is of order d^(-1/2) of the stream, "
            "not of order 1; it is balanced at γ = 3/4. Whether that is better is for training to say"
        )
    if network.stream_scale != 1:
        found.append(
            f"the stream starts at {network.stream_scale:.3g} times the embedding's std, so all flows are that much "
            "smaller: γ = 1 does not balance this architecture as it does a plain one"
        )
    if network.post_norm:
        found.append(
            "its updates are normalised once more before they are added, so the flows above do not hold for it"
        )
    if network.residual_scale != 1:
        found.append(f"now W_o and FFN down are scaled by {network.residual_scale:.3g}; the γ rule does without")
    if network.experts:
        found.append(f"the flow is that of one of {network.experts} experts; a mean of k of them is 1/sqrt(k) of it")
    return found


def text(advice: Advice) -> str:
    """The advice for people: a table of three columns, then sentences."""
    network, columns = advice.network, (advice.now, advice.small, advice.paper)
    rows: list[tuple[str, ...]] = [("", "now", "γ = 1, this ε", "the paper")]
    labels = {
        "gamma": "γ (std = d_model^-γ)",
        "std": "std of a d_model matrix",
        "norm_eps": "ε of the norms",
        "attenuation": "RMS after the first norm",
        "attention_flow": "attention update / stream",
        "feedforward_flow": f"{network.mlp} update / stream",
    }
    for field, label in labels.items():
        rows.append((label, *(f"{getattr(column, field):.3g}" for column in columns)))
    table = ["".join([row[0].ljust(28), *(cell.rjust(16) for cell in row[1:])]) for row in rows]
    lines = [f"d_model {network.d_model}, d_ff {network.d_ff}, {network.mlp}, {network.dtype}", "", *table, ""]
    sentences = (
        f"The paper would set γ = 1, ε = {SMALL_EPS:g}, and a gate on the attention output. γ = 1 is std = 1 / fan_in: "
        f"{1 / network.d_model:.3g} for d_model inputs, {1 / network.d_ff:.3g} for d_ff. It makes attention's first "
        "update as large as the stream (flow d^(1-γ)); the small ε keeps norms from shrinking a small stream; the gate "
        "counters the attention sink, which a small initialization sharpens."
    )
    lines += textwrap.wrap(sentences, WIDTH)
    for note in advice.notes:
        lines += textwrap.wrap(f"* {note}.", WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def from_config(content: dict[str, Any]) -> dict[str, Any]:
    """The fields of `Network` from a Hugging Face configuration (config.json), as far as it tells them.

    Known peculiarities: GPT-2 adds learned positions to the embedding and scales residual outputs by 1 / sqrt(2 L);
    Gemma multiplies the embedding by sqrt(d_model), Granite by `embedding_multiplier`; POST_NORM normalise updates. A
    null or absent dtype is float32.
    """
    if isinstance(content.get("text_config"), dict) and "hidden_size" not in content:
        content = {**content, **content["text_config"]}  # models of images and text
    found: dict[str, Any] = {}
    for field, keys in HF_KEYS.items():
        found[field] = next((content[key] for key in keys if content.get(key) is not None), None)
    kind, d = str(content.get("model_type", "")), found["d_model"]
    found["mlp"] = mlp_of(found.pop("activation"), kind)
    found["dtype"] = str(found["dtype"] or "float32").removeprefix("torch.")
    layers, heads = found.pop("n_layers"), found.pop("n_heads")
    if content.get("head_dim") and heads:
        found["heads_width"] = heads * content["head_dim"]
    if kind == "gpt2":
        found["stream_scale"] = math.sqrt(2)
        found["residual_scale"] = 1 / math.sqrt(2 * layers) if layers else None
    elif kind.startswith("gemma") and d:
        found["stream_scale"] = math.sqrt(d)
    elif content.get("embedding_multiplier"):
        found["stream_scale"] = float(content["embedding_multiplier"])
    found["post_norm"] = kind.startswith(POST_NORM)
    return {field: value for field, value in found.items() if value is not None}


def mlp_of(activation: Any, model_type: str) -> str | None:
    """The type of feed-forward network; gated where silu is, and in Gemma. None if it cannot be told."""
    name = str(activation)
    if name in ("silu", "swish"):
        return "swiglu"
    if name.startswith("gelu"):
        return "geglu" if model_type.startswith("gemma") else "gelu"
    return "relu" if name == "relu" else None


def network(values: dict[str, Any]) -> Network:
    """A network from what is known of it; widths that are not given follow from d_model.

    Raises:
        ConfigError: naming each key that is missing or not allowed, and where to give it.
    """
    values = dict(values)
    if isinstance(d := values.get("d_model"), int):
        values.setdefault("heads_width", d)
        values.setdefault("d_ff", 8 * d // 3 if values.get("mlp") in ("swiglu", "geglu") else 4 * d)
    wanted = {"d_model": "--d-model", "mlp": "--mlp", "norm_eps": "--eps", "std": "--std or --gamma"}
    if "gamma" in values:
        wanted.pop("std")
    lines = []
    for field, option in wanted.items():
        if field not in values:
            names = ", ".join(HF_KEYS["activation" if field == "mlp" else field])
            lines.append(f"advise: {field} is missing: no known value under {names} in a config.json; give {option}")
    if lines:
        raise ConfigError("\n".join(lines))
    try:
        return Network.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, "advise")) from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m smallinit advise`."""
    parser.add_argument("config", nargs="?", type=Path, help="config.json of a Hugging Face model")
    parser.add_argument("--d-model", type=int, help="width; needed without a config.json")
    parser.add_argument("--d-ff", type=int, help="hidden feed-forward width; default 8/3 d (gated) or 4 d")
    parser.add_argument("--mlp", choices=list(formulas.FEEDFORWARDS), help="default swiglu")
    parser.add_argument("--eps", type=float, dest="norm_eps", help=f"of the norms; default {USUAL_EPS:g}")
    parser.add_argument("--dtype", choices=list(FLOATS), help="that norms compute in; default float32")
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument("--gamma", type=float, help="std = fan_in^(-gamma); default 0.5")
    scale.add_argument("--std", type=float, help="one standard deviation for all matrices, such as 0.02")
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> str:
    """What `python -m smallinit advise` prints.

    Raises:
        ConfigError: the file cannot be read, or a value is missing or not allowed.
    """
    values: dict[str, Any] = {"mlp": "swiglu", "norm_eps": USUAL_EPS, "dtype": "float32", "gamma": 0.5}
    if options.config is not None:
        try:
            values = from_config(json.loads(options.config.read_text()))
        except (OSError, json.JSONDecodeError, AttributeError) as error:
            raise ConfigError(f"{options.config}: not a config.json of a model ({error})") from None
    names = ("d_model", "d_ff", "mlp", "norm_eps", "dtype", "gamma", "std")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if given.keys() & {"gamma", "std"}:
        values = {name: value for name, value in values.items() if name not in ("gamma", "std", "residual_scale")}
    advice = advise(network(values | given))
    return json.dumps(advice.model_dump(mode="json"), indent=1, ensure_ascii=False) if options.json else text(advice)
