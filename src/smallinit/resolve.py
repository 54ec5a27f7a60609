"""From `params.yaml` to the plan: each run and stage gets its own values, resolved, nothing implicit."""

from pydantic import ValidationError

from smallinit.config import ConfigError, RunConfig, Strict, TrainConfig, explain
from smallinit.data.config import FetchConfig, Generated, StreamConfig, TokenizeConfig
from smallinit.params import Params, PeakRate, RunName
from smallinit.theory.config import TheoryPlan
from smallinit.theory.formulas import matched_eps


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


def run(params: Params, name: str) -> RunConfig:
    """All values of one run, nothing implicit."""
    size_name, gamma, variant_name, seed = RunName.parse(name)
    size, variant, shared = params.sizes[size_name], params.variants[variant_name], params.train
    eps = variant.norm_eps
    if eps == "matched":
        eps = matched_eps(params.model.reference_eps, size.d_ref, size.d_model, gamma)
    rate = peak_lr(shared.peak_lrs, size_name, gamma)
    train = shared.model_dump(exclude={"seed", "peak_lrs"}) | {"tokens": size.tokens, "peak_lr": rate}
    train["snapshots"] = name in params.snapshots
    model = (
        params.model.model_dump(exclude={"reference_eps"})
        | size.model_dump(exclude={"d_ref", "tokens"})
        | {"vocab_size": params.tokenize.vocab_size, "norm_eps": eps, "gate": variant.gate}
        | variant.given("norm", "mlp", "tied_head", "n_kv_heads", "moe")
    )
    model["n_kv_heads"] = model["n_kv_heads"] or size.n_heads
    init = params.init.model_dump() | variant.given("overrides", "residual_scaling", "fixed_std")
    return RunConfig.model_validate(
        {
            "run": name,
            "size": size_name,
            "gamma": gamma,
            "variant": variant_name,
            "seed": shared.seed if seed is None else seed,
            "d_ref": size.d_ref,
            "model": model,
            "init": init,
            "train": TrainConfig.model_validate(train),
        }
    )


def corpus(params: Params) -> tuple[FetchConfig, TokenizeConfig | StreamConfig]:
    """The chosen corpus: which archives, and which texts in them; or no archives, and which streams."""
    chosen = params.corpora[params.corpus]
    settings = {"corpus": params.corpus, **params.tokenize.model_dump(exclude={"notebook"})}
    if chosen.mix:
        assert chosen.tokens is not None  # as Corpus checks
        streams = {name: params.streams[name] for name in chosen.mix}
        return FetchConfig(archives={}), StreamConfig(sources=streams, mix=chosen.mix, tokens=chosen.tokens, **settings)
    sources = {
        name: params.sources[name].model_copy(update={"max_documents": chosen.max_documents.get(name)})
        for name in chosen.sources
    }
    generated = {
        name: Generated(share=share, **dict(params.generators[name])) for name, share in chosen.generated.items()
    }
    archives = {source.archive: params.archives[source.archive] for source in sources.values()}
    tokenize = TokenizeConfig(sources=sources, generated=generated, archives=archives, **settings)
    return FetchConfig(archives=archives), tokenize


def plan(params: Params) -> dict[str, Strict]:
    """Every file of the plan: its path under `results/plan` (without .json) and its content.

    Raises:
        ConfigError: a run's values do not fit together; the message names the run and the key.
    """
    fetch, tokenize = corpus(params)
    items, benchmark = params.benchmarks.split(params.archives)
    used = dict.fromkeys(RunName.parse(name).size for name in params.runs)
    sizes = [(params.sizes[name].d_model, params.sizes[name].d_ref) for name in used]
    files: dict[str, Strict] = {
        "fetch": fetch,
        "tokenize": tokenize,
        "evaluate": params.evaluate,
        "items": items,
        "benchmark": benchmark,
        "anchor": params.anchor,
        "composite": params.composite,
        "analysis": params.analysis,
        "theory": TheoryPlan(**dict(params.theory), sizes=sizes),
        "tracking": params.tracking,
    }
    for name in params.runs:
        try:
            files[f"runs/{name}"] = run(params, name)
        except ValidationError as error:
            raise ConfigError(explain(error, f"params.yaml, run {name}")) from None
    return files
