"""`params.yaml`: its schema.

There is one way for a value into a stage: `params.yaml` -> strict types -> one resolved JSON file a stage or run under
`results/plan` (see `resolve.py`) -> the notebook. DVC and papermill pass nothing but a run's name, so `1e-12` stays a
number and `false` a boolean, and a run is stale exactly when its own resolved values change.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from smallinit import paths
from smallinit.analysis.config import AnalysisConfig
from smallinit.config import (
    ConfigError,
    InitConfig,
    Kind,
    MoEConfig,
    Strict,
    TrainSettings,
    explain,
)
from smallinit.data.config import (
    Archive,
    Generator,
    Source,
    StreamSource,
    TokenizeSettings,
    check_generated,
)
from smallinit.evaluation.benchmarks.config import BenchmarksParams
from smallinit.evaluation.config import EvaluateConfig
from smallinit.pilot.config import PilotConfig
from smallinit.reasoning.config import AnchorConfig, CompositeConfig
from smallinit.theory.config import TheoryConfig
from smallinit.tracking import TrackingConfig


class Size(Strict):
    """Width and depth of a model, the paper-scale width it stands for, and how long it trains."""

    d_model: int = Field(ge=8)
    n_layers: int = Field(ge=1)
    n_heads: int = Field(ge=1)
    n_kv_heads: int | None = Field(default=None, ge=1, description="None: as many as n_heads")
    d_ff: int = Field(ge=8)
    d_ref: int = Field(ge=8)
    tokens: int = Field(ge=1)


class Variant(Strict):
    """`norm_eps` is a number, or `matched`: the eps that attenuates as much here as `reference_eps` does at d_ref.

    The other keys are those of `model` and `init`, and three for `train`; one that is given holds for this variant.
    """

    norm_eps: Annotated[float, Field(ge=0)] | Literal["matched"]
    gate: Literal["none", "headwise", "elementwise"]
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    mlp: Literal["swiglu", "gelu"] = "swiglu"
    tied_head: bool = False
    n_kv_heads: int | None = Field(default=None, ge=1)
    moe: MoEConfig | None = None
    overrides: dict[Kind, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    residual_scaling: bool = False
    fixed_std: Annotated[float, Field(gt=0)] | None = None
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    rate_factor: float = Field(default=1.0, gt=0, description="times the peak learning rate that the run would have")
    token_factor: float = Field(default=1.0, gt=0, description="times the tokens that the run would be trained on")

    def given(self, *names: str) -> dict[str, Any]:
        """The values among `names` that the variant sets itself."""
        return self.model_dump(include=set(names) & self.model_fields_set)


class RunName(NamedTuple):
    """What the name of a run says: `m-1.0-both`, or `m-1.0-both-seed1` for another seed than `train.seed`."""

    size: str
    gamma: float
    variant: str
    seed: int | None

    @classmethod
    def parse(cls, name: str) -> "RunName":
        """Take a name apart.

        Raises:
            ValueError: it is not of that form.
        """
        found = re.fullmatch(r"([^-]+)-(\d+\.\d+)-([^-]+?)(?:-seed(\d+))?", name)
        parsed = found and cls(found[1], float(found[2]), found[3], int(found[4]) if found[4] else None)
        if not parsed or name != str(parsed):
            raise ValueError(
                f"runs: {name!r} is not of the form size-gamma-variant, for instance s-1.0-both, or with another seed "
                "than train.seed s-1.0-both-seed1; gamma has a decimal point and no zeros to spare"
            )
        return parsed

    def __str__(self) -> str:
        return f"{self.size}-{self.gamma}-{self.variant}" + (f"-seed{self.seed}" if self.seed is not None else "")


class PeakRate(Strict):
    """The peak learning rate of some runs: each arm has its own.

    It holds for the runs of a gamma, of one `size` only if that is given, of some `variants` only if these are. With a
    `d_model` it is the rate at that width, and that of another width is (width / d_model)^width_power times as high.
    """

    gamma: float
    size: str | None = None
    variants: list[str] | None = Field(default=None, min_length=1)
    peak_lr: float = Field(gt=0)
    d_model: int | None = Field(default=None, ge=1)
    width_power: float = 0.0

    @model_validator(mode="after")
    def _power_of_something(self) -> "PeakRate":
        if self.width_power and self.d_model is None:
            raise ValueError(f"width_power = {self.width_power} needs `d_model`, the width that peak_lr is for")
        return self

    def fits(self, size: str, gamma: float, variant: str) -> bool:
        """Whether a run is among those that this is the rate of."""
        named = self.variants is None or variant in self.variants
        return self.gamma == gamma and self.size in (None, size) and named

    def at(self, d_model: int) -> float:
        """The rate at a width; to three digits where it is not given but follows."""
        if self.d_model is None or not self.width_power:
            return self.peak_lr
        return float(f"{self.peak_lr * (d_model / self.d_model) ** self.width_power:.3g}")


class TrainParams(TrainSettings):
    """Training settings shared by all runs, and the peak rates: a run's is the first that fits it."""

    seed: int = Field(ge=0)
    peak_lrs: list[PeakRate] = Field(min_length=1)


class ModelParams(Strict):
    """What all models share."""

    seq_len: int = Field(ge=8)
    rope_theta: float = Field(gt=0)
    reference_eps: float = Field(gt=0)
    norm: Literal["rmsnorm", "layernorm"]
    mlp: Literal["swiglu", "gelu"]
    tied_head: bool
    moe: MoEConfig | None


class Corpus(Strict):
    """A choice of sources, which lie in archives, or a mix of streams.

    All of a source is used, but for `max_documents`. To sources, `generated` adds texts made by rule, each until it has
    the given share of the whole text in UTF-8 bytes. Streams are larger than anybody needs: `tokens` of training text
    are taken, in the proportions of the weights in `mix`.
    """

    sources: list[str] = Field(default_factory=list)
    max_documents: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    generated: dict[str, Annotated[float, Field(gt=0, lt=1)]] = Field(default_factory=dict)
    mix: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    tokens: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _sources_or_streams(self) -> "Corpus":
        if bool(self.sources) == bool(self.mix):
            raise ValueError("name either `sources`, which lie in archives, or a `mix` of streams with their weights")
        if (self.tokens is None) == bool(self.mix):
            raise ValueError("`tokens` goes with a `mix` of streams: how many are taken for training")
        if self.generated and self.mix:
            raise ValueError("`generated` texts go with `sources` in archives, a `mix` of streams cannot have them")
        check_generated(self.generated, self.sources)
        return self


class TokenizeParams(TokenizeSettings):
    """How texts become tokens, and the notebook that does it: texts in archives and streams have one each."""

    notebook: Literal["02_tokenize", "02_stream"] = "02_tokenize"


class Params(Strict):
    """The whole of `params.yaml`."""

    corpus: str
    runs: list[str] = Field(min_length=1)
    snapshots: list[str]
    sizes: dict[str, Size]
    variants: dict[str, Variant]
    model: ModelParams
    init: InitConfig
    train: TrainParams
    tracking: TrackingConfig
    evaluate: EvaluateConfig
    benchmarks: BenchmarksParams
    pilot: PilotConfig
    anchor: AnchorConfig
    composite: CompositeConfig
    analysis: AnalysisConfig
    theory: TheoryConfig
    tokenize: TokenizeParams
    corpora: dict[str, Corpus]
    sources: dict[str, Source]
    generators: dict[str, Generator] = Field(default_factory=dict)
    streams: dict[str, StreamSource] = Field(default_factory=dict)
    archives: dict[str, Archive]

    @model_validator(mode="after")
    def _names_exist(self) -> "Params":
        _known("corpus", [self.corpus], self.corpora)
        _once("runs", self.runs)
        names = [RunName.parse(name) for name in self.runs]
        _known("runs (size)", [name.size for name in names], self.sizes)
        _known("runs (variant)", [name.variant for name in names], self.variants)
        _known("snapshots", self.snapshots, self.runs)
        if same := [str(name) for name in names if name.seed == self.train.seed]:
            raise ValueError(f"runs: {same[0]!r} names train.seed = {self.train.seed}: leave the seed out of the name")
        for name, corpus in self.corpora.items():
            _known(f"corpora.{name}.sources", corpus.sources, self.sources)
            _known(f"corpora.{name}.generated", corpus.generated, self.generators)
            _known(f"corpora.{name}.mix", corpus.mix, self.streams)
            _known(f"corpora.{name}.max_documents", corpus.max_documents, dict.fromkeys(corpus.sources))
        needed = "02_stream" if self.corpora[self.corpus].mix else "02_tokenize"
        if self.tokenize.notebook != needed:
            raise ValueError(f"tokenize.notebook = {self.tokenize.notebook!r}: corpus {self.corpus!r} needs {needed!r}")
        for name, source in self.sources.items():
            _known(f"sources.{name}.archive", [source.archive], self.archives)
        self.benchmarks.split(self.archives)
        rates = self.train.peak_lrs
        _known("train.peak_lrs (gamma)", [n.gamma for n in names], {rate.gamma: rate for rate in rates})
        _known("train.peak_lrs (size)", [rate.size for rate in rates if rate.size], self.sizes)
        _known("train.peak_lrs (variant)", [name for rate in rates for name in rate.variants or []], self.variants)
        _once("train.peak_lrs", [(rate.gamma, rate.size, *(rate.variants or ["any"])) for rate in rates])
        arms = [RunName.parse(name) for name in self.pilot.arms]
        _once("pilot.arms", self.pilot.arms)
        _known("pilot.arms (size)", [arm.size for arm in arms], self.pilot.sizes)
        _known("pilot.sizes", self.pilot.sizes, self.sizes)
        _known("pilot.sizes (without an arm)", self.pilot.sizes, [arm.size for arm in arms])
        _known("pilot.arms (variant)", [arm.variant for arm in arms], self.variants)
        _known("pilot.batches.arms", self.pilot.batches.arms, self.pilot.arms)
        return self


def _once(key: str, values: list[Any]) -> None:
    if len(set(values)) < len(values):
        raise ValueError(f"{key} = {values} names an entry twice")


def _known(key: str, names: Any, allowed: Any) -> None:
    for name in names:
        if name not in allowed:
            raise ValueError(f"{key}: {name!r} is not defined (allowed: {', '.join(str(a) for a in allowed)})")


def load(path: Path | None = None, profile: str | None = None) -> Params:
    """Read `params.yaml` as YAML 1.2 into its strict types, with the values of a profile laid over it if one is named.

    Raises:
        ConfigError: there is no such profile; or naming each key that is unknown, missing, of the wrong type or out
            of range.
    """
    path = path or paths.PARAMS
    content, source = _read(path), path.name
    if profile:
        overlay = path.parent / "profiles" / f"{profile}.yaml"
        if not overlay.exists():
            known = ", ".join(sorted(p.stem for p in overlay.parent.glob("*.yaml"))) or "none"
            raise ConfigError(f"no profile {profile!r} (profiles: {known})")
        content, source = merged(content, _read(overlay)), f"{path.name} with profile {profile}"
    try:
        return Params.model_validate(content)
    except ValidationError as error:
        raise ConfigError(explain(error, source)) from None


def _read(path: Path) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(path)
    except YAMLError as error:
        raise ConfigError(f"{path.name} is not valid YAML: {error}") from None


def merged(base: Any, overlay: Any) -> Any:
    """`base` with the values of `overlay` put in its place, maps merged key by key."""
    if isinstance(base, dict) and isinstance(overlay, dict):
        return {**base, **{key: merged(base.get(key), value) for key, value in overlay.items()}}
    return overlay
