"""Our models as classes of Hugging Face transformers, and back.

What has an exact counterpart becomes it: an ungated model with RMSNorm and SwiGLU is a Llama, with a mixture of experts
a Mixtral, and neither needs this package any more. All others (gates, LayerNorm, GELU) are a `SmallInitForCausalLM`,
our Decoder behind the interface of transformers, known to its Auto classes once this module is imported:

    import smallinit.hf
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)

Read `convert.to_transformers` and `convert.from_transformers`. `smallinit.export` writes a trained run to a folder.
"""

try:
    from transformers import PreTrainedConfig  # noqa: F401 - of transformers 5; it had another name before
except ImportError as error:
    message = "smallinit.hf needs transformers 5, which this package does not require: pip install 'transformers>=5'"
    raise ImportError(f"{message} ({error})") from error

from smallinit.hf.convert import Family, family_of, from_transformers, model_config, to_tokenizer, to_transformers
from smallinit.hf.model import SmallInitConfig, SmallInitForCausalLM

__all__ = [
    "Family",
    "SmallInitConfig",
    "SmallInitForCausalLM",
    "family_of",
    "from_transformers",
    "model_config",
    "to_tokenizer",
    "to_transformers",
]
