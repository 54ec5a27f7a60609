"""Our Decoder behind the interface of transformers: `SmallInitForCausalLM`, known to the Auto classes."""

import contextlib
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput
from transformers.utils import can_return_tuple

from smallinit.config import ConfigError, ModelConfig, explain
from smallinit.data.bpe import END_ID
from smallinit.init import GammaRule, draw, plan
from smallinit.model import Decoder


class SmallInitConfig(PreTrainedConfig):
    """The fields of `config.ModelConfig`, and the gamma rule by which weights start that no checkpoint fills."""

    model_type = "smallinit"
    attribute_map = {  # noqa: RUF012 - declared so by transformers
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "intermediate_size": "d_ff",
        "max_position_embeddings": "seq_len",
    }

    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_ff: int
    seq_len: int
    rope_theta: float
    norm: str
    norm_eps: float
    gate: str
    mlp: str
    tied_head: bool
    moe: dict[str, Any] | None
    gamma: float = 1.0
    init: dict[str, Any] | None = None  # the other arguments of GammaRule
    bos_token_id: int | None = END_ID
    eos_token_id: int | None = END_ID
    pad_token_id: int | None = None

    def decoder_config(self) -> ModelConfig:
        """What `Decoder` is built from.

        Raises:
            ConfigError: a value is not possible.
        """
        return validated({name: getattr(self, name) for name in ModelConfig.model_fields}, "config.json")


def validated(values: dict[str, Any], source: str) -> ModelConfig:
    """A ModelConfig of `values`.

    Raises:
        ConfigError: a value is not possible; the message names its key, after `source`.
    """
    try:
        return ModelConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, source)) from None


class SmallInitForCausalLM(PreTrainedModel, GenerationMixin):
    """Our Decoder as a model of transformers: loads, saves, generates, and computes a loss from labels.

    It keeps no cache: `generate` runs the whole sequence for each new token, which is exact and slow on long ones.
    Padding is allowed on either side. A tied head is no second parameter, so that there is nothing to tie.
    """

    config_class = SmallInitConfig
    base_model_prefix = "decoder"
    _no_split_modules = ["Block"]  # noqa: RUF012 - declared so by transformers
    _supports_sdpa = True

    def __init__(self, config: SmallInitConfig):
        super().__init__(config)
        self.decoder = Decoder(config.decoder_config())
        self.post_init()

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Called for a new model and after loading: start what no checkpoint has filled, from torch's seed."""
        parameters = dict(self.decoder.named_parameters())
        starts = plan(self.decoder, GammaRule(self.config.gamma, **(self.config.init or {})))
        missing = [start for start in starts if not getattr(parameters[start.name], "_is_hf_initialized", False)]
        if missing:
            seed = int(torch.randint(2**62, (), device="cpu"))
            for start in missing:
                parameters[start.name].copy_(draw(start, seed))

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.decoder.embed

    def set_input_embeddings(self, value: torch.nn.Module) -> None:
        self.decoder.embed = value

    def get_output_embeddings(self) -> torch.nn.Module | None:
        return self.decoder.head

    def set_output_embeddings(self, value: torch.nn.Linear) -> None:
        self.decoder.head = value

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, logits_to_keep: int = 1, **kwargs: Any
    ) -> dict[str, Any]:
        """The whole sequence in each step: there is no cache."""
        return {"input_ids": input_ids, "attention_mask": attention_mask, "logits_to_keep": logits_to_keep}

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutput:
        """Logits, and with labels the mean next-token loss in nats.

        Args:
            input_ids: (B, T).
            attention_mask: (B, T), 0 on padding, which is before or after the text.
            labels: (B, T), usually input_ids: they are shifted here; -100 is not predicted. In training mode the loss
                of a mixture of experts includes the weighted auxiliary losses of its routers.
            logits_to_keep: compute logits at the last so many positions only (0: at all), or at these positions.
            kwargs: of the loss (num_items_in_batch). Positions, embeddings and caches cannot be given.

        Raises:
            ValueError: an argument that is not supported; padding within the text; float16 with an eps that is 0 in it.
        """
        unsupported = ("position_ids", "inputs_embeds", "cache", "past_key_values")
        if given := [name for name in unsupported if kwargs.get(name) is not None]:
            raise ValueError(f"{', '.join(given)}: not supported by SmallInitForCausalLM; leave out, give input_ids")
        shift = None if attention_mask is None else left_padding(attention_mask)  # (B,)
        with self._precision():
            # Positions count from the first token that is no padding; what then follows the text changes nothing in it.
            x, auxiliary = self.decoder.hidden(input_ids if shift is None else roll_rows(input_ids, -shift))
            x = x if shift is None else roll_rows(x, shift)  # (B, T, d)
            x = x[:, -logits_to_keep:] if isinstance(logits_to_keep, int) else x[:, logits_to_keep]
            logits = torch.nn.functional.linear(x, (self.decoder.head or self.decoder.embed).weight)  # (B, T, V)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
            loss = loss + auxiliary if self.training else loss
        return CausalLMOutput(loss=loss, logits=logits)

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        """Norms give float32: with weights in half precision, matrix products convert it as in our training."""
        if self.dtype not in (torch.bfloat16, torch.float16):
            return contextlib.nullcontext()
        eps = self.config.norm_eps
        if eps and torch.tensor(eps, dtype=self.dtype) == 0:
            raise ValueError(f"norm_eps = {eps} is 0 in float16: load the model with dtype=torch.bfloat16 or float32")
        return torch.autocast(self.device.type, self.dtype)


def left_padding(mask: Tensor) -> Tensor | None:
    """How many zeros each row (B, T) begins with: (B,), None if none does.

    Raises:
        ValueError: the mask has another shape, or zeros between ones.
    """
    if mask.dim() != 2:
        raise ValueError(f"attention_mask of shape {tuple(mask.shape)}: only (batch, sequence) is supported")
    shift = (mask.cumsum(dim=1) == 0).sum(dim=1)  # (B,)
    text_first = roll_rows(mask, -shift)
    if (text_first[:, 1:] > text_first[:, :-1]).any():
        raise ValueError("attention_mask has padding within a text; only before or after it is supported")
    return shift if shift.any() else None


def roll_rows(x: Tensor, shift: Tensor) -> Tensor:
    """Each row of x (B, T, ...) rolled to the right by its own shift (B,)."""
    batch, length = x.shape[:2]
    index = (torch.arange(length, device=x.device) - shift[:, None]) % length  # (B, T)
    return x[torch.arange(batch, device=x.device)[:, None], index]


AutoConfig.register(SmallInitConfig.model_type, SmallInitConfig, exist_ok=True)
AutoModelForCausalLM.register(SmallInitConfig, SmallInitForCausalLM, exist_ok=True)
