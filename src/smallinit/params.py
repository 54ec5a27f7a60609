"""`params.yaml`: its schema, and the plan that the stages of the pipeline depend on.

There is one way for a value into a stage: `params.yaml` -> strict types -> one resolved JSON file a stage or run under
`results/plan` -> the notebook. DVC and papermill pass nothing but a run's name, so `1e-12` stays a number and `false` a
boolean, and a run is stale exactly when its own resolved values change.
"""

from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from smallinit import paths
from smallinit.analysis.config import AnalysisConfig
from smallinit.config import ConfigError, RunConfig, Strict, TrainConfig, TrainSettings, explain
from smallinit.data.config import Archive, FetchConfig, Source, TokenizeConfig, TokenizeSettings
from smallinit.evaluation.config import EvaluateConfig


class Size(Strict):
    """Width and depth of a model, the paper-scale width it stands for, and how long it trains."""

    d_model: int = Field(ge=8)
    n_layers: int = Field(ge=1)
    n_heads: int = Field(ge=1)
    d_ff: int = Field(ge=8)
    d_ref: int = Field(ge=8)
    tokens: int = Field(ge=1)


class Variant(Strict):
    """`norm_eps` is a number, or `matched`: the eps that attenuates as much here as `reference_eps` does at d_ref."""

    norm_eps: Annotated[float, Field(ge=0)] | Literal["matched"]
    gate: Literal["none", "headwise", "elementwise"]


def _has_a_point(value: Any) -> Any:
    if type(value) is int:
        raise ValueError(f"write a decimal point, {value}.0, because runs are named after it")
    return value


WrittenOut = Annotated[float, BeforeValidator(_has_a_point)]


class Ladder(Strict):
    """The grid of runs: every size x gamma x variant, named `size-gamma-variant`."""

    sizes: list[str] = Field(min_length=1)
    gammas: list[WrittenOut] = Field(min_length=1)
    variants: list[str] = Field(min_length=1)


class PeakRate(Strict):
    """The peak learning rate of one gamma, everywhere or only at one size: each arm runs at its own."""

    gamma: float
    size: str | None = None
    peak_lr: float = Field(gt=0)


class TrainParams(TrainSettings):
    """Training settings shared by all runs, and the peak rate of each gamma."""

    seed: int = Field(ge=0)
    peak_lrs: list[PeakRate] = Field(min_length=1)


class ModelParams(Strict):
    """What all models share."""

    seq_len: int = Field(ge=8)
    rope_theta: float = Field(gt=0)
    reference_eps: float = Field(gt=0)


class Corpus(Strict):
    """A choice of sources; `max_documents` caps the large ones."""

    sources: list[str] = Field(min_length=1)
    max_documents: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)


class Params(Strict):
    """The whole of `params.yaml`."""

    corpus: str
    ladder: Ladder
    sizes: dict[str, Size]
    variants: dict[str, Variant]
    model: ModelParams
    train: TrainParams
    evaluate: EvaluateConfig
    analysis: AnalysisConfig
    tokenize: TokenizeSettings
    corpora: dict[str, Corpus]
    sources: dict[str, Source]
    archives: dict[str, Archive]

    @model_validator(mode="after")
    def _names_exist(self) -> "Params":
        _known("corpus", [self.corpus], self.corpora)
        _known("ladder.sizes", self.ladder.sizes, self.sizes)
        _known("ladder.variants", self.ladder.variants, self.variants)
        for name, corpus in self.corpora.items():
            _known(f"corpora.{name}.sources", corpus.sources, self.sources)
            _known(f"corpora.{name}.max_documents", corpus.max_documents, dict.fromkeys(corpus.sources))
        for name, source in self.sources.items():
            _known(f"sources.{name}.archive", [source.archive], self.archives)
        _known("train.peak_lrs (gamma)", self.ladder.gammas, {rate.gamma: rate for rate in self.train.peak_lrs})
        for key in ("sizes", "gammas", "variants"):
            _once(f"ladder.{key}", getattr(self.ladder, key))
        _known("train.peak_lrs (size)", [rate.size for rate in self.train.peak_lrs if rate.size], self.sizes)
        _once("train.peak_lrs (gamma, size)", [(rate.gamma, rate.size) for rate in self.train.peak_lrs])
        return self


def _once(key: str, values: list[Any]) -> None:
    if len(set(values)) < len(values):
        raise ValueError(f"{key} = {values} names an entry twice")


def _known(key: str, names: Any, allowed: Any) -> None:
    for name in names:
        if name not in allowed:
            raise ValueError(f"{key}: {name!r} is not defined (allowed: {', '.join(str(a) for a in allowed)})")


def load(path: Path | None = None) -> Params:
    """Read `params.yaml` as YAML 1.2 into its strict types.

    Raises:
        ConfigError: naming each key that is unknown, missing, of the wrong type or out of range.
    """
    path = path or paths.PARAMS
    try:
        content = YAML(typ="safe", pure=True).load(path)
    except YAMLError as error:
        raise ConfigError(f"{path.name} is not valid YAML: {error}") from None
    try:
        return Params.model_validate(content)
    except ValidationError as error:
        raise ConfigError(explain(error, path.name)) from None


def run_names(params: Params) -> list[str]:
    """The explicit list of runs, in the order of tables and of `dvc.yaml`."""
    grid = product(params.ladder.sizes, params.ladder.gammas, params.ladder.variants)
    return [f"{size}-{gamma}-{variant}" for size, gamma, variant in grid]


def matched_eps(reference_eps: float, d_ref: int, d_model: int, gamma: float) -> float:
    """The eps that attenuates the first norm at width `d_model` as `reference_eps` does at the paper's width `d_ref`.

    The embedding leaves the variance d^(-2 gamma), so the first norm's output RMS is 1 / sqrt(1 + eps d^(2 gamma)).
    """
    return reference_eps * (d_ref / d_model) ** (2 * gamma)


def peak_lr(rates: list[PeakRate], size: str, gamma: float) -> float:
    """The rate for a run: an entry for its very size, else the one for its gamma at any size.

    Raises:
        ConfigError: there is neither.
    """
    for wanted in (size, None):
        for rate in rates:
            if (rate.gamma, rate.size) == (gamma, wanted):
                return rate.peak_lr
    raise ConfigError(f"train.peak_lrs has no entry for gamma = {gamma} at size {size!r}, nor one without a size")


def resolve_run(params: Params, size_name: str, gamma: float, variant_name: str) -> RunConfig:
    """All values of one run, nothing implicit."""
    size, variant, shared = params.sizes[size_name], params.variants[variant_name], params.train
    eps = variant.norm_eps
    if eps == "matched":
        eps = matched_eps(params.model.reference_eps, size.d_ref, size.d_model, gamma)
    rate = peak_lr(shared.peak_lrs, size_name, gamma)
    train = shared.model_dump(exclude={"seed", "peak_lrs"}) | {"tokens": size.tokens, "peak_lr": rate}
    model = size.model_dump(exclude={"d_ref", "tokens"}) | {
        "vocab_size": params.tokenize.vocab_size,
        "seq_len": params.model.seq_len,
        "rope_theta": params.model.rope_theta,
        "norm_eps": eps,
        "gate": variant.gate,
    }
    return RunConfig.model_validate(
        {
            "run": f"{size_name}-{gamma}-{variant_name}",
            "size": size_name,
            "gamma": gamma,
            "variant": variant_name,
            "seed": shared.seed,
            "d_ref": size.d_ref,
            "model": model,
            "train": TrainConfig.model_validate(train),
        }
    )


def resolve_corpus(params: Params) -> tuple[FetchConfig, TokenizeConfig]:
    """The chosen corpus: which archives, and which texts in them."""
    corpus = params.corpora[params.corpus]
    sources = {
        name: params.sources[name].model_copy(update={"max_documents": corpus.max_documents.get(name)})
        for name in corpus.sources
    }
    archives = {source.archive: params.archives[source.archive] for source in sources.values()}
    settings = params.tokenize.model_dump()
    return FetchConfig(archives=archives), TokenizeConfig(
        corpus=params.corpus, sources=sources, archives=archives, **settings
    )


def resolve(params: Params) -> dict[str, Strict]:
    """Every file of the plan: its path under `results/plan` (without .json) and its content.

    Raises:
        ConfigError: a run's values do not fit together; the message names the run and the key.
    """
    fetch, tokenize = resolve_corpus(params)
    ladder = params.ladder
    plan: dict[str, Strict] = {
        "fetch": fetch,
        "tokenize": tokenize,
        "evaluate": params.evaluate,
        "analysis": params.analysis,
    }
    for size, gamma, variant in product(ladder.sizes, ladder.gammas, ladder.variants):
        name = f"{size}-{gamma}-{variant}"
        try:
            plan[f"runs/{name}"] = resolve_run(params, size, gamma, variant)
        except ValidationError as error:
            raise ConfigError(explain(error, f"params.yaml, run {name}")) from None
    return plan
