"""Initialization of the whole model family, as `params.yaml` names it: every gamma x size x variant, dense and MoE."""

import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

from smallinit import config, init, params, resolve
from smallinit.config import ModelConfig, RunConfig
from smallinit.init import GammaRule, audit, initialize
from smallinit.model import Decoder

TRACKED = params.load(Path(__file__).parents[1] / "params.yaml")
GAMMAS = sorted({0.25, 0.5, 0.75, 1.0, 1.5, *(params.RunName.parse(run).gamma for run in TRACKED.runs)})
MOE = {"n_experts": 4, "top_k": 2, "balance_coef": 0.01, "z_coef": 0.0}
BOUND = 4  # sampling errors; the seeds are fixed, so what passes does so always


def resolved(size: str, gamma: float, variant: str) -> RunConfig:
    """A run of the tracked params.yaml, whether or not `runs` names it; any learning rate will do."""
    rates = [params.PeakRate(gamma=gamma, peak_lr=1e-3)]
    with_rate = TRACKED.model_copy(update={"train": TRACKED.train.model_copy(update={"peak_lrs": rates})})
    return resolve.run(with_rate, f"{size}-{gamma}-{variant}")


def started(run: RunConfig, model: ModelConfig) -> tuple[Decoder, list[init.Start]]:
    decoder = Decoder(model)
    return decoder, initialize(decoder, GammaRule(run.gamma, **run.init.model_dump()), run.seed)


def expected_std(name: str, run: RunConfig, model: ModelConfig) -> float:
    """The design's table and options, written down a second time."""
    output = "o_proj" in name or "down" in name
    fan_in = model.d_ff if "down" in name else model.d_model
    std = fan_in**-run.gamma if run.init.fixed_std is None else run.init.fixed_std
    return std / math.sqrt(2 * model.n_layers) if output and run.init.residual_scaling else std


@pytest.mark.parametrize("ffn", ["as it is", "moe"])
@pytest.mark.parametrize("variant", TRACKED.variants)
@pytest.mark.parametrize("size", TRACKED.sizes)
def test_every_variant_of_every_size_starts_at_the_std_of_the_paper(size: str, variant: str, ffn: str) -> None:
    run = resolved(size, 1.0, variant)
    changes: dict[str, Any] = {"vocab_size": 257, "n_layers": 1}  # the rest as in params.yaml; drawing takes time
    changes |= {"moe": MOE} if ffn == "moe" else {}
    model = ModelConfig.model_validate(run.model.model_dump() | changes)
    for gamma in GAMMAS:
        run = resolved(size, gamma, variant)
        decoder, starts = started(run, model)
        table = audit(decoder, starts)
        assert table["name"].tolist() == [name for name, _ in decoder.named_parameters()]
        assert table["deviation"].abs().max() < BOUND
        matrices = table[table["kind"] != "norm"].set_index("name")["target_std"]
        assert matrices.to_dict() == pytest.approx({name: expected_std(name, run, model) for name in matrices.index})


@pytest.mark.parametrize("variant", TRACKED.variants)
def test_construction_on_the_meta_device_takes_no_memory_and_gives_the_plain_weights(variant: str) -> None:
    run = resolved(next(iter(TRACKED.sizes)), 1.0, variant)
    model = run.model.model_copy(update={"vocab_size": 257, "n_layers": 2})
    rule = GammaRule(run.gamma, **run.init.model_dump())
    with torch.device("meta"):
        decoder = Decoder(model)
    assert all(tensor.is_meta for tensor in (*decoder.parameters(), *decoder.buffers()))
    decoder.to_empty(device="cpu")
    for tensor in (*decoder.parameters(), *decoder.buffers()):
        nn.init.constant_(tensor, float("nan"))
    initialize(decoder, rule, run.seed)
    plain = started(run, model)[0].state_dict()
    assert plain.keys() == decoder.state_dict().keys()
    assert all(torch.equal(value, plain[name]) for name, value in decoder.state_dict().items())


@pytest.mark.parametrize("variant", TRACKED.variants)
@pytest.mark.parametrize("size", TRACKED.sizes)
def test_every_variant_of_every_size_resolves_and_builds_as_named(size: str, variant: str) -> None:
    run = resolved(size, 1.0, variant)
    with torch.device("meta"):
        decoder = Decoder(run.model)
    assert run.run == f"{size}-1.0-{variant}" and decoder.embed.weight.shape[1] == TRACKED.sizes[size].d_model
    plain = resolved(size, 1.0, "both").train.peak_lr
    for key in TRACKED.variants[variant].model_fields_set - {"norm_eps", "moe"}:
        given = getattr(TRACKED.variants[variant], key)
        if key == "rate_factor":  # of the rate of the variant that is the same otherwise
            assert run.train.peak_lr == given * plain
            continue
        if key == "token_factor":  # of the size's tokens
            assert run.train.tokens == given * TRACKED.sizes[size].tokens
            continue
        place = next(part for part in (run.init, run.train, run.model) if hasattr(part, key))
        assert getattr(place, key) == given
    assert run.model.moe == TRACKED.variants[variant].moe


def test_building_a_model_draws_nothing() -> None:
    before = torch.get_rng_state()
    Decoder(resolved(next(iter(TRACKED.sizes)), 1.0, "moe").model)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_kinds_that_params_yaml_may_override_are_those_of_our_models() -> None:
    ours = set()
    for variant in TRACKED.variants:
        with torch.device("meta"):
            decoder = Decoder(resolved(next(iter(TRACKED.sizes)), 1.0, variant).model)
        ours |= {start.kind for start in init.plan(decoder, 1.0)}
    assert set(get_args(config.Kind)) == {kind for kind in ours if init.KINDS[kind].constant is None}
