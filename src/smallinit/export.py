"""A trained run as a folder that Hugging Face transformers loads: weights, configuration, tokenizer and a model card.

    python -m smallinit export m-1.0-both exported/m-1.0-both

The card is written from what the pipeline left in `models/` and `results/`: no number in it is typed.
"""

import argparse
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError
from tokenizers import Tokenizer

from smallinit import paths
from smallinit.config import ConfigError, RunConfig, explain
from smallinit.data.tokenize import replacing_folder
from smallinit.evaluation.heldout import load_model
from smallinit.files import read_json
from smallinit.init import GammaRule
from smallinit.plots.style import markdown

FORMATS = ("auto", "llama", "mixtral", "smallinit")

CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
{languages}tags:
- small-initialization
---
# {run}

A decoder-only language model of {parameters} parameters ({inner} of them outside the vocabulary's matrices), trained on
{tokens} tokens to study how the scale of the initial weights matters, in a reproduction of
*Small Initialization Matters for Large Language Models* (arXiv 2606.17945).

{start}

## How to load it

In this folder it is a `{architecture}`{registration}.

```python
{imports}from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "{run}"  # where this folder lies
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
prompt = tokenizer(tokenizer.bos_token + "{prompt}", return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=20)[0]))
```

In training `{end}` stood before each document, so a prompt should begin with it; the tokenizer does not add it.

## Losses

{losses}{evaluation}
## Model

{model}
## Training

{training}
## Limits

A model for research on initialization and training, not for use: it follows no instructions, and what it
writes is neither true nor safe. It has never seen more than {seq_len} tokens at a time.

## Data and licence

{data}
The program that made this model is under the licence {licence}. That says nothing about the weights: they are derived
from texts that have terms of their own, which decide what may be done with them.
"""


def export(run: str, folder: Path, family: str = "auto") -> str:
    """Write `models/<run>` to the new `folder` as a model of transformers; returns the name of its class.

    Args:
        run: a trained run, for instance m-1.0-both.
        folder: does not exist yet, or is empty.
        family: one of FORMATS, see `hf.family_of`.

    Raises:
        ConfigError: the folder holds something; the run is unknown, diverged, or not what `family` says; a file of the
            run or transformers is missing.
    """
    folder = folder.absolute()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"{folder.name}: exists and is not an empty folder; name a new one, or remove it first")
    config, metrics = read_run(run)
    file = tokenizer_file(config)
    try:
        from smallinit import hf
    except ImportError as error:
        raise ConfigError(str(error)) from None
    rule = GammaRule(config.gamma, **config.init.model_dump())
    model = hf.to_transformers(load_model(config), family, rule)  # type: ignore[arg-type]
    with replacing_folder(folder) as temporary:
        model.save_pretrained(temporary)
        hf.to_tokenizer(file, config.model.seq_len).save_pretrained(temporary)
        (temporary / "README.md").write_text(card(config, metrics, type(model).__name__))
    return type(model).__name__


def read_run(run: str) -> tuple[RunConfig, dict[str, Any]]:
    """The configuration and the training metrics of a trained run.

    Raises:
        ConfigError: the run is not trained, diverged, or is of an earlier version.
    """
    file, results = paths.MODELS / run / "config.json", paths.RESULTS / "train" / run / "metrics.json"
    for needed in (file, file.with_name("model.safetensors"), results):
        if not needed.exists():
            known = ", ".join(sorted(path.parent.name for path in paths.MODELS.glob("*/model.safetensors"))) or "none"
            raise ConfigError(
                f"run = {run!r}: no {needed.relative_to(paths.ROOT)} (runs with weights: {known}); check the name, get "
                f"it with `dvc pull train@{run}`, or train it with `dvc repro train@{run}`"
            )
    metrics = read_json(results)
    if metrics["diverged"]:
        raise ConfigError(f"run = {run!r}: diverged at step {metrics['diverged_at']}; there is no model to export")
    try:
        return RunConfig.model_validate_json(file.read_text()), metrics
    except ValidationError as error:
        raise ConfigError(f"{explain(error, f'models/{run}/config.json')}\ntrain the run again") from None


def tokenizer_file(config: RunConfig) -> Path:
    """The tokenizer of the corpus.

    Raises:
        ConfigError: it is missing, or has another vocabulary than the model.
    """
    file = paths.TOKENS / "tokenizer.json"
    if not file.exists():
        raise ConfigError(f"no {file.relative_to(paths.ROOT)}: get it with `dvc pull tokenize` or `dvc repro tokenize`")
    size = Tokenizer.from_file(str(file)).get_vocab_size()
    if size != config.model.vocab_size:
        raise ConfigError(
            f"{file.relative_to(paths.ROOT)} has {size} tokens, vocab_size of {config.run} is "
            f"{config.model.vocab_size}: get the tokenizer that it was trained with"
        )
    return file


# ----------------------------------------------------------------------------------------------------------------- card
def card(config: RunConfig, metrics: dict[str, Any], architecture: str) -> str:
    """The model card: README.md of the folder, in Markdown with the hub's YAML header.

    Args:
        config: of the run.
        metrics: of its training.
        architecture: the class of transformers that loads it.
    """
    moe = config.model.moe
    evaluated, corpus = (_optional(name) for name in (f"evaluate/{config.run}/metrics.json", "corpus/manifest.json"))
    provenance = _optional(f"train/{config.run}/provenance.json") or {}
    languages = [entry["language"] for entry in corpus["languages"]] if corpus else []
    own = architecture.startswith("SmallInit")
    return CARD.format(
        run=config.run,
        languages="language:\n" + "".join(f"- {language}\n" for language in languages) if languages else "",
        parameters=f"{metrics['parameters']:,}",
        inner=f"{metrics['parameters_without_embeddings']:,}",
        tokens=f"{metrics['tokens']:,}",
        start=start(config),
        architecture=architecture,
        registration=", a class of this project that `import smallinit.hf` makes known to transformers" * own,
        imports="import smallinit.hf\n" * own,
        prompt="The" if "en" in languages or not languages else "中国",
        end="<|endoftext|>",
        losses=markdown(losses(metrics, evaluated)),
        evaluation="" if evaluated else "\nThere was no evaluation of this run when it was exported.\n",
        model=markdown(_pairs(config.model.model_dump(exclude={"moe"}) | (moe.model_dump() if moe else {"moe": None}))),
        training=markdown(_pairs(training(config, metrics, provenance))),
        seq_len=config.model.seq_len,
        data=data(corpus),
        licence=metadata("smallinit")["License-Expression"],
    )


def start(config: RunConfig) -> str:
    """A sentence on the initialization."""
    init = config.init
    if init.fixed_std is not None:
        text = f"Every matrix started as N(0, σ²) with σ = {init.fixed_std}"
    else:
        text = f"Every matrix started as N(0, σ²) with σ = fan_in^(-γ), γ = {config.gamma}"
        text += "".join(f", but γ = {gamma} for {kind}" for kind, gamma in sorted(init.overrides.items()))
    return text + (
        "; matrices that write to the residual stream divided by sqrt(2L)." if init.residual_scaling else "."
    )


def losses(metrics: dict[str, Any], evaluated: dict[str, Any] | None) -> pd.DataFrame:
    """Losses by text: of training, and of the evaluation if there is one."""
    rows: list[dict[str, Any]] = [
        {"text": "training, at its end", "tokens": None, "nats per token": metrics["train_loss"]},
        {"text": "held-out, a sample, at the end", "tokens": None, "nats per token": metrics["heldout_loss"]},
    ]
    if evaluated:
        parts = {"held-out, whole documents": evaluated["documents"]}
        parts |= {f"held-out, {language}": part for language, part in evaluated["language"].items()}
        for text, part in parts.items():
            numbers = {"tokens": f"{part['tokens']:,}", "nats per token": part["loss"]}
            rows.append({"text": text} | numbers | {"bits per byte": part["bits_per_byte"]})
    return pd.DataFrame(rows, columns=["text", "tokens", "nats per token", "bits per byte"])


def training(config: RunConfig, metrics: dict[str, Any], provenance: dict[str, Any]) -> dict[str, Any]:
    """What the run was and what it ran on."""
    return {
        "size, variant, seed": f"{config.size}, {config.variant}, {config.seed}",
        "stands for a width of": config.d_ref,
        "tokens": f"{metrics['tokens']:,}",
        "steps": f"{metrics['steps']:,}",
        "tokens of a step": f"{config.train.batch_tokens:,}",
        "peak learning rate": config.train.peak_lr,
        "weight decay": config.train.weight_decay,
        "precision": provenance.get("precision"),
        "ran on": provenance.get("gpu") or provenance.get("cpu"),
        "seconds of training": provenance.get("seconds"),
        "PyTorch": provenance.get("versions", {}).get("torch"),
        "finished": provenance.get("finished"),
    }


def data(corpus: dict[str, Any] | None) -> str:
    """The texts that the model saw a part of, and their licences."""
    if corpus is None:
        return "There was no record of the corpus when this run was exported.\n"
    rows = [
        {"source": entry["source"], "language": entry["language"], "tokens": f"{entry['train']['tokens']:,}"}
        | {"licence": entry["licence"]}
        for entry in corpus["sources"]
        if entry["train"]["tokens"]
    ]
    total = f"{corpus['train']['tokens']:,}"
    return f"The training text, corpus `{corpus['corpus']}`, has {total} tokens:\n\n{markdown(pd.DataFrame(rows))}"


def _pairs(values: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([(name, str(value)) for name, value in values.items()], columns=["", "value"])


def _optional(name: str) -> Any:
    file = paths.RESULTS / name
    return read_json(file) if file.exists() else None


# -------------------------------------------------------------------------------------------------------------- command
def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `python -m smallinit export`."""
    parser.add_argument("run", help="a trained run, for instance m-1.0-both")
    parser.add_argument("folder", type=Path, help="a new folder")
    text = "auto: a Llama or Mixtral where the model is one, else the project's own class"
    parser.add_argument("--format", choices=FORMATS, default="auto", help=text)


def main(options: argparse.Namespace) -> str:
    """Export and say what was written."""
    architecture = export(options.run, options.folder, options.format)
    return f"{options.folder}: {options.run} as {architecture}, with tokenizer and model card"
