"""From `params.yaml` to the plan: each run and stage gets its own values, resolved, nothing implicit."""

from typing import Any

from pydantic import ValidationError

from smallinit.config import ConfigError, RunConfig, Strict, TrainConfig, explain
from smallinit.data.config import FetchConfig, Generated, StreamConfig, TokenizeConfig
from smallinit.params import Params, RunName
from smallinit.pilot.config import PilotPlan
from smallinit.theory.config import TheoryPlan
from smallinit.theory.formulas import matched_eps


def peak_lr(params: Params, name: RunName) -> float:
    """The rate for a run: that of the first entry which fits it.

    Raises:
        ConfigError: none does.
    """
    for rate in params.train.peak_lrs:
        if rate.fits(name.size, name.gamma, name.variant):
            return rate.at(params.sizes[name.size].d_model) * params.variants[name.variant].rate_factor
    raise ConfigError(
        f"train.peak_lrs has no entry that fits gamma = {name.gamma}, size {name.size!r}, variant {name.variant!r}"
    )


def run(params: Params, name: str) -> RunConfig:
    """All values of one run, nothing implicit."""
    parsed = RunName.parse(name)
    return assemble(params, parsed, {"peak_lr": peak_lr(params, parsed), "snapshots": name in params.snapshots})


def assemble(params: Params, name: RunName, own: dict[str, Any]) -> RunConfig:
    """The run of that name, with training settings of its `own` beside those that all share."""
    size, variant, shared = params.sizes[name.size], params.variants[name.variant], params.train
    eps = variant.norm_eps
    if eps == "matched":
        eps = matched_eps(params.model.reference_eps, size.d_ref, size.d_model, name.gamma)
    tokens = {"tokens": round(size.tokens * variant.token_factor)}
    train = shared.model_dump(exclude={"seed", "peak_lrs"}) | tokens | variant.given("weight_decay") | own
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
            "run": str(name),
            "size": name.size,
            "gamma": name.gamma,
            "variant": name.variant,
            "seed": shared.seed if name.seed is None else name.seed,
            "d_ref": size.d_ref,
            "model": model,
            "init": init,
            "train": TrainConfig.model_validate(train),
        }
    )


def pilot(params: Params, size: str) -> PilotPlan:
    """The trials of the pilot at one size: its arms, and the same again at other batch sizes."""
    chosen = params.pilot
    own: dict[str, Any] = {"tokens": chosen.tokens, "eval_tokens": chosen.eval_tokens, "peak_lr": chosen.peak_lrs[0]}
    own |= {"eval_every": chosen.tokens, "measure_windows": 1, "snapshots": False}  # at log-spaced steps and the end
    own |= {"processes": 1, "strategy": "ddp"}  # a trial is small

    def arms(names: list[str], batch_tokens: int) -> list[RunConfig]:
        micro_batch = min(params.train.micro_batch, max(batch_tokens // params.model.seq_len, 1))
        batch = {"batch_tokens": batch_tokens, "micro_batch": micro_batch}
        parsed = [RunName.parse(name) for name in names]
        return [assemble(params, arm, own | batch) for arm in parsed if arm.size == size]

    found = arms(chosen.arms, params.train.batch_tokens)
    for batch_tokens in chosen.batches.batch_tokens:
        if batch_tokens != params.train.batch_tokens:
            found += arms(chosen.batches.arms, batch_tokens)
    return PilotPlan(arms=found, peak_lrs=chosen.peak_lrs)


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
        "pilot": params.pilot,
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
    for size in params.pilot.sizes:
        try:
            files[f"pilot/{size}"] = pilot(params, size)
        except ValidationError as error:
            raise ConfigError(explain(error, f"params.yaml, pilot at size {size}")) from None
    return files
