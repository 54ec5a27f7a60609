"""A Decoder as Llama, Mixtral or SmallInitForCausalLM, and back: names, weights, configurations, tokenizer."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.initialization import no_init_weights

from smallinit.config import ConfigError, ModelConfig, MoEConfig
from smallinit.data.bpe import END_ID
from smallinit.data.text import END
from smallinit.hf.model import SmallInitConfig, SmallInitForCausalLM, validated
from smallinit.init import GammaRule
from smallinit.model import Decoder

Family = Literal["auto", "llama", "mixtral", "smallinit"]


# ------------------------------------------------------------------------------------------- names of Llama and Mixtral
OUTER = {
    "embed.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
INNER = {  # blocks.N. -> model.layers.N.
    "attention_norm.weight": "input_layernorm.weight",
    "attention.q_proj.weight": "self_attn.q_proj.weight",
    "attention.k_proj.weight": "self_attn.k_proj.weight",
    "attention.v_proj.weight": "self_attn.v_proj.weight",
    "attention.o_proj.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn.ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn.ffn_up.weight": "mlp.up_proj.weight",
    "ffn.ffn_down.weight": "mlp.down_proj.weight",
    "ffn.router.weight": "mlp.gate.weight",
    "ffn.experts_gate": "mlp.experts.gate_up_proj",  # (E, 2f, d): gate, then up
    "ffn.experts_up": "mlp.experts.gate_up_proj",
    "ffn.experts_down": "mlp.experts.down_proj",
}


def their_name(name: str) -> str:
    """What Llama and Mixtral call our parameter `name`."""
    if name in OUTER:
        return OUTER[name]
    _, block, inner = name.split(".", 2)
    return f"model.layers.{block}.{INNER[inner]}"


def their_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our weights under their names; experts' gate and up matrices joined."""
    theirs: dict[str, Tensor] = {}
    for name, weight in weights.items():  # in the model's order: gate before up
        key = their_name(name)
        theirs[key] = torch.cat((theirs[key], weight), dim=1) if key in theirs else weight
    return theirs


def our_weights(theirs: dict[str, Tensor], model: Decoder) -> dict[str, Tensor]:
    """The inverse of `their_weights`, for `model`.

    Raises:
        ConfigError: parameters are missing or left over.
    """
    config, names = model.config, {name: their_name(name) for name in model.state_dict()}
    wanted = set(names.values()) | ({"lm_head.weight"} if config.tied_head else set())
    if wanted != set(theirs):
        missing, more = (", ".join(sorted(keys)) or "none" for keys in (wanted - set(theirs), set(theirs) - wanted))
        raise ConfigError(
            f"the weights are not those of a Decoder of this configuration: missing {missing}; more {more}"
        )
    halves = {"experts_gate": slice(0, config.d_ff), "experts_up": slice(config.d_ff, None)}
    return {
        name: theirs[key][:, halves[ending]] if (ending := name.rpartition(".")[2]) in halves else theirs[key]
        for name, key in names.items()
    }


# ----------------------------------------------------------------------------------------------------------- conversion
FITS = {"norm": "rmsnorm", "gate": "none", "mlp": "swiglu"}  # what Llama and Mixtral are


def family_of(config: ModelConfig, wanted: Family = "auto") -> Literal["llama", "mixtral", "smallinit"]:
    """The class that `config` becomes: with `auto` one of transformers' own if it computes exactly the same.

    Raises:
        ConfigError: it does not fit what is wanted; the message names each key that does not.
    """
    if wanted == "smallinit":
        return "smallinit"
    off = [
        f"{key} = {getattr(config, key)!r}, not {only!r}" for key, only in FITS.items() if getattr(config, key) != only
    ]
    if wanted == "auto":
        return "smallinit" if off else "mixtral" if config.moe else "llama"
    if wanted == "llama" and config.moe:
        off.append("moe is set (that is 'mixtral')")
    if wanted == "mixtral" and not config.moe:
        off.append("moe = None (that is 'llama')")
    if off:
        raise ConfigError(f"this model is no {wanted}: {'; '.join(off)}. Use the format 'smallinit' or 'auto'")
    return wanted


def to_transformers(model: Decoder, family: Family = "auto", rule: GammaRule | float = 1.0) -> PreTrainedModel:
    """A copy of `model` as a class of transformers that gives the same logits.

    Args:
        model: any Decoder; weights become float32 on the CPU.
        family: see `family_of`.
        rule: how the weights started; only `smallinit` keeps it.

    Raises:
        ConfigError: the model does not fit the family.
    """
    config = model.config
    weights = {name: weight.detach().float().cpu() for name, weight in model.state_dict().items()}
    with no_init_weights():
        if family_of(config, family) == "smallinit":
            copy = _ours(config, rule if isinstance(rule, GammaRule) else GammaRule(rule))
            theirs = {f"decoder.{name}": weight for name, weight in weights.items()}
        else:
            copy = _theirs(config)
            tied = {"head.weight": weights["embed.weight"]} if config.tied_head else {}
            theirs = their_weights(weights | tied)
    copy.load_state_dict(theirs)
    copy.tie_weights()
    # Padding is never looked at, so any token will do for it.
    copy.generation_config = GenerationConfig(bos_token_id=END_ID, eos_token_id=END_ID, pad_token_id=END_ID)
    return copy.eval()


def _ours(config: ModelConfig, rule: GammaRule) -> PreTrainedModel:
    """A SmallInitForCausalLM whose weights are still to be loaded."""
    init = asdict(rule)
    return SmallInitForCausalLM(SmallInitConfig(**config.model_dump(), gamma=init.pop("gamma"), init=init))


def _theirs(config: ModelConfig) -> PreTrainedModel:
    """A Llama or Mixtral whose weights are still to be loaded."""
    common: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "max_position_embeddings": config.seq_len,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": END_ID,
        "eos_token_id": END_ID,
    }
    if config.moe is None:
        return LlamaForCausalLM(LlamaConfig(**common))
    return MixtralForCausalLM(
        MixtralConfig(
            **common,
            num_local_experts=config.moe.n_experts,
            num_experts_per_tok=config.moe.top_k,
            # They add up the loads of the k choices, we take their mean; and they average over layers before they
            # multiply load and probability. The loss includes it only if output_router_logits is set.
            router_aux_loss_coef=config.moe.balance_coef / config.moe.top_k,
        )
    )


# What a Decoder can be, of what Llama and Mixtral can be.
SUPPORTED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "sliding_window": None,
    "router_jitter_noise": 0.0,
}


def model_config(config: PreTrainedConfig) -> ModelConfig:
    """The configuration of the Decoder that computes what a model of transformers with `config` does.

    Raises:
        ConfigError: there is none; the message names each key that does not fit and what is supported.
    """
    if isinstance(config, SmallInitConfig):
        return config.decoder_config()
    if not isinstance(config, LlamaConfig | MixtralConfig):
        raise ConfigError(f"model_type = {config.model_type!r}: supported are 'llama', 'mixtral' and 'smallinit'")
    found = {key: (getattr(config, key, only), only) for key, only in SUPPORTED.items()}
    rope: dict[str, Any] = {**(config.rope_parameters or {})}
    head_dim = config.hidden_size // config.num_attention_heads
    found["rope_parameters.rope_type"] = (rope["rope_type"], "default")
    found["rope_parameters.partial_rotary_factor"] = (rope.get("partial_rotary_factor", 1.0), 1.0)
    found["head_dim"] = (config.head_dim or head_dim, head_dim)
    if off := [f"{key} = {value!r} (supported: {only!r})" for key, (value, only) in found.items() if value != only]:
        raise ConfigError(f"this {config.model_type} model does not fit a Decoder: {'; '.join(off)}")
    moe = None
    if isinstance(config, MixtralConfig):
        experts, top_k, balance = config.num_local_experts, config.num_experts_per_tok, config.router_aux_loss_coef
        moe = MoEConfig(n_experts=experts, top_k=top_k, balance_coef=balance * top_k, z_coef=0.0)
    values = {
        "vocab_size": config.vocab_size,
        "d_model": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads,
        "d_ff": config.intermediate_size,
        "seq_len": config.max_position_embeddings,
        "rope_theta": float(rope["rope_theta"]),
        "norm_eps": config.rms_norm_eps,
        "tied_head": config.tie_word_embeddings,
        "moe": moe,
    }
    return validated(values | FITS, f"this {config.model_type} model")


def from_transformers(source: PreTrainedModel | str | Path) -> Decoder:
    """A Decoder in float32 with the weights of a Llama, a Mixtral or a SmallInitForCausalLM.

    Args:
        source: a model, or the folder of one (never a name on a hub: nothing is downloaded).

    Raises:
        ConfigError: no Decoder computes the same, see `model_config`.
        OSError: there is no model in the folder.
    """
    if not isinstance(source, PreTrainedModel):
        model_config(AutoConfig.from_pretrained(source, local_files_only=True))  # before the weights are read
        source = AutoModelForCausalLM.from_pretrained(source, local_files_only=True, dtype=torch.float32)
    model = Decoder(model_config(source.config))
    if isinstance(source, SmallInitForCausalLM):
        model.load_state_dict(source.decoder.state_dict())
    else:
        model.load_state_dict(our_weights(source.state_dict(), model))
    return model.eval()


def to_tokenizer(file: Path, seq_len: int) -> PreTrainedTokenizerFast:
    """The tokenizer of `data/tokens/tokenizer.json`; <|endoftext|> stands before each document of the training text.

    It is not put before a text by itself: prompts should begin with `tokenizer.bos_token`.
    """
    return PreTrainedTokenizerFast(
        tokenizer_file=str(file),
        bos_token=END,
        eos_token=END,
        model_max_length=seq_len,
        clean_up_tokenization_spaces=False,
    )
