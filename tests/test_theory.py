"""The theory: known answers of the formulas, simulations with the real modules within derived bounds, the verdict."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from smallinit.analysis.claims import CONTRADICTED, NOT_SEEN, REPLICATED, judge, named
from smallinit.init import audit, initialize
from smallinit.model import Decoder
from smallinit.plots import theory as draw
from smallinit.theory import coordinates, flow, formulas, simulations, verdict
from smallinit.theory.config import CoordinateConfig, TheoryConfig, TheoryPlan

GAMMAS = [0.5, 0.75, 1.0, 1.25]
WIDTHS = [64, 128, 256, 512]
COORDINATE = CoordinateConfig(widths=[32, 64], gammas=[0.5, 1.0], seeds=2, steps=2, learning_rate=1e-3)
SETTINGS = TheoryConfig(widths=WIDTHS, gammas=GAMMAS, seeds=4, tokens=32, coordinate=COORDINATE)


# ------------------------------------------------------------------------------------------------------------- formulas
@pytest.mark.parametrize(("d", "wanted"), [(64, 0.98), (768, 0.38), (1024, 0.30), (2048, 0.15)])
def test_attenuation_has_the_values_of_the_design(d: int, wanted: float) -> None:
    assert formulas.attenuation(1 / d, 1e-5) == pytest.approx(wanted, abs=0.006)
    assert formulas.attenuation(1 / d, 1e-12) == pytest.approx(1, abs=1e-5)
    assert formulas.attenuation(d**-0.5, 1e-5) > 0.989


@pytest.mark.parametrize("gamma", GAMMAS)
def test_matched_eps_attenuates_alike_at_both_widths(gamma: float) -> None:
    eps = formulas.matched_eps(1e-5, 768, 64, gamma)
    assert formulas.attenuation(64**-gamma, eps) == pytest.approx(formulas.attenuation(768**-gamma, 1e-5), rel=1e-12)
    assert formulas.matched_eps(1e-5, 768, 64, 1.0) == pytest.approx(1.44e-3)


@pytest.mark.parametrize(("name", "function"), [("swiglu", F.silu), ("gelu", F.gelu), ("relu", F.relu)])
def test_activations_are_those_of_torch(name: str, function: object) -> None:
    x = np.linspace(-30, 30, 601)
    wanted = function(torch.from_numpy(x)).numpy()  # type: ignore[operator]
    np.testing.assert_allclose(formulas.FEEDFORWARDS[name].activation(x), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["swiglu", "gelu", "relu"])
@pytest.mark.parametrize("std", [0.01, 0.3, 1.0, 2.0])
def test_the_rms_after_an_activation_is_that_of_many_normal_numbers(name: str, std: float) -> None:
    z = np.random.default_rng(0).standard_normal(400_000)
    activation = formulas.FEEDFORWARDS[name].activation
    assert formulas.activation_rms(activation, std) == pytest.approx((activation(std * z) ** 2).mean() ** 0.5, rel=0.01)


def test_small_arguments_are_halved_and_relu_passes_half_of_the_squares() -> None:
    for name in ("swiglu", "gelu"):
        assert formulas.activation_rms(formulas.FEEDFORWARDS[name].activation, 1e-4) == pytest.approx(5e-5, rel=1e-6)
    assert formulas.activation_rms(formulas.FEEDFORWARDS["relu"].activation, 3.0) == pytest.approx(3 / math.sqrt(2))


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("part", ["attention", "gelu", "swiglu", "geglu", "relu"])
def test_flow_reaches_its_power_of_d_in_wide_models(part: str, gamma: float) -> None:
    widths = [2**30, 2**31]
    values = [formulas.flow(part, width, gamma, 4 * width) for width in widths]
    assert formulas.slope(widths, values) == pytest.approx(formulas.flow_exponent(part, gamma), abs=1e-3)


def test_a_gated_network_is_balanced_at_three_quarters_and_attention_at_one() -> None:
    assert formulas.flow_exponent("swiglu", 0.75) == formulas.flow_exponent("attention", 1.0) == 0
    assert formulas.flow_exponent("swiglu", 1.0) == -0.5
    assert formulas.flow("attention", 512, 1.0) == pytest.approx(1.0)


def test_a_flow_of_a_network_needs_its_width() -> None:
    with pytest.raises(ValueError, match="d_ff"):
        formulas.flow("gelu", 64, 1.0)


def test_effective_gamma_inverts_the_rule() -> None:
    assert formulas.effective_gamma(768**-0.7, 768) == pytest.approx(0.7)
    assert formulas.effective_gamma(0.02, 768) == pytest.approx(0.589, abs=5e-4)


def test_the_bound_on_a_slope_is_above_the_scatter_of_made_up_flows_and_not_far() -> None:
    random = np.random.default_rng(0)
    errors = np.array([formulas.rms_error(width, 32) for width in WIDTHS])
    slopes = [formulas.slope(WIDTHS, list(np.exp(random.normal(0, errors)))) for _ in range(4000)]
    assert np.std(slopes) == pytest.approx(formulas.slope_error(WIDTHS, 32, seeds=1), rel=0.05)
    assert formulas.slope_error(WIDTHS, 32, 4) == pytest.approx(formulas.slope_error(WIDTHS, 32, 1) / 2)


# ---------------------------------------------------------------------------------------------------------- simulations
@pytest.fixture(scope="module")
def flows() -> pd.DataFrame:
    return flow.flows(SETTINGS)


def test_the_real_modules_follow_the_exact_formula_within_the_derived_bound(flows: pd.DataFrame) -> None:
    found = flow.exponents(flows, 0.95)
    assert len(found) == 3 * len(GAMMAS)
    bound = 4 * formulas.slope_error(WIDTHS, SETTINGS.tokens, SETTINGS.seeds)
    assert bound < verdict.MARGIN / 2
    assert (found["measured"] - found["formula"]).abs().max() < bound
    assert ((found["low"] < found["measured"]) & (found["measured"] < found["high"])).all()


def test_each_flow_lies_within_four_errors_of_the_formula(flows: pd.DataFrame) -> None:
    for (width, _, _), group in flows.groupby(["d_model", "part", "gamma"]):
        deviation = group["flow"].mean() / group["formula"].iloc[0] - 1
        assert abs(deviation) < 4 * formulas.rms_error(int(width), SETTINGS.tokens) / SETTINGS.seeds**0.5


def test_the_error_of_one_flow_is_bounded_by_its_formula() -> None:
    """The bound of the notebook's assertions: real scatter over many draws is below it, and above half of it."""
    settings = SETTINGS.model_copy(update={"widths": [64], "gammas": [1.0], "seeds": 40})
    scatter = flow.flows(settings).groupby("part")["flow"].agg(lambda values: np.log(values).std())
    bound = formulas.rms_error(64, SETTINGS.tokens)
    assert scatter.max() < 1.15 * bound  # forty draws know a standard deviation to 11 %
    assert scatter.min() > bound / 2.5


def test_an_attention_with_the_wrong_scale_would_be_seen(flows: pd.DataFrame) -> None:
    """The bound has teeth: the claim's power for a gated network fails it."""
    found = flow.exponents(flows, 0.95)
    gated = found[(found["part"] == "swiglu") & (found["gamma"] == 1.0)].iloc[0]
    assert abs(gated["measured"] - 0.0) > 4 * formulas.slope_error(WIDTHS, SETTINGS.tokens, SETTINGS.seeds)


@pytest.mark.parametrize("gamma", [0.5, 1.25])
def test_rescaled_weights_are_those_of_the_rule(gamma: float) -> None:
    config = flow.model_config(64, n_layers=2)
    direct = Decoder(config)
    starts = initialize(direct, gamma, 3)
    *_, (_, rescaled) = flow.at_gammas(config, 3, [0.75, gamma])
    for (name, wanted), value in zip(direct.named_parameters(), rescaled.parameters(), strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-6, atol=0, msg=name)
    matrices = audit(rescaled, starts)
    assert matrices.loc[matrices["kind"] != "norm", "deviation"].abs().max() < 4.5


def test_sublayers_add_up_to_the_models_own_stream() -> None:
    _, model = next(flow.at_gammas(flow.model_config(64, n_layers=3), 0, [0.5]))
    ids = torch.arange(20).view(2, 10)
    *_, (layer, part, stream, update) = flow.sublayers(model, ids)
    assert (layer, part) == (2, "swiglu")
    with torch.no_grad():
        torch.testing.assert_close(model.final_norm(stream + update), model.hidden(ids)[0])


def test_ratios_through_depth_follow_the_sum_of_squares() -> None:
    table = flow.through_depth(128, 4, GAMMAS, tokens=64, mlp="gelu")
    bound = 4 * 2**0.5 * formulas.rms_error(128, 64)
    assert (table["ratio"] / table["formula"] - 1).abs().max() < bound
    first = table[(table["gamma"] == 0.5) & (table["part"] == "attention")]["ratio"].tolist()
    assert first[0] > 10 and all(a > b for a, b in pairwise(first)) and first[-1] < 1  # buried once, not at each layer


def test_averaging_over_uniform_attention_shrinks_by_the_root_of_the_position() -> None:
    table = flow.averaging([128], [0.5, 1.0], length=32, seeds=2).set_index(["gamma", "token"])
    assert table.loc[(1.0, 31), "attended"] == pytest.approx(32, rel=1e-3)
    assert table.loc[(1.0, 31), "flow"] == pytest.approx(
        32**-0.5, rel=4 * 2**0.5 * formulas.rms_error(128, 16) / 2**0.5
    )
    assert 5 < table.loc[(0.5, 31), "attended"] < 25  # scores of size 1 prefer some tokens
    assert (table["attended"].xs(0, level="token") == 1).all()


def test_simulated_attenuation_follows_the_formula() -> None:
    table = flow.attenuations([64, 768, 2048], GAMMAS, [1e-5, 1e-12])
    bound = 4 / np.sqrt(2 * table["d_model"] * 64) + 1 / (4 * table["d_model"])
    assert ((table["measured"] / table["formula"] - 1).abs() < bound).all()
    assert table["formula"].min() < 0.05


def test_the_same_call_gives_the_same_numbers(flows: pd.DataFrame) -> None:
    again = flow.flows(SETTINGS.model_copy(update={"widths": [64]}))
    pd.testing.assert_frame_equal(flows[flows["d_model"] == 64].reset_index(drop=True), again)


# ----------------------------------------------------------------------------------------------------- coordinate check
@pytest.fixture(scope="module")
def steps() -> pd.DataFrame:
    return coordinates.check(COORDINATE)


def test_the_first_adam_step_moves_the_embedding_by_rate_times_d_to_the_gamma(steps: pd.DataFrame) -> None:
    first = steps[steps["step"] == 1]
    assert len(first) == 8
    for row in first.itertuples():
        assert row.embedding == pytest.approx(1e-3 * row.d_model**row.gamma, rel=4 / (2 * 16 * row.d_model) ** 0.5)
    growth = coordinates.growth(steps).set_index(["gamma", "step"])["embedding"]
    assert growth[(0.5, 1)] == pytest.approx(0.5, abs=0.1) and growth[(1.0, 1)] == pytest.approx(1.0, abs=0.1)


def test_made_up_tokens_can_be_learned_and_depend_on_the_seed_alone() -> None:
    batch = coordinates.made_up_batch(3, 257)
    assert batch.shape == (8, 33) and torch.equal(batch, coordinates.made_up_batch(3, 257))
    assert not torch.equal(batch, coordinates.made_up_batch(4, 257))
    assert 0.8 < (batch[:, 1:] == (3 * batch[:, :-1] + 1) % 257).float().mean() < 0.97
    table = coordinates.first_steps(flow.model_config(64), 1.0, 0, steps=64, learning_rate=3e-3)
    assert table["step"].tolist() == [1, 2, 4, 8, 16, 32, 64]
    assert table["loss"].iloc[0] == pytest.approx(math.log(257), abs=0.3) and table["loss"].iloc[-1] < 4


# -------------------------------------------------------------------------------------------------------------- verdict
def made_up(power: object, parts: tuple[str, ...] = ("attention", "gelu"), half: float = 0.02) -> pd.DataFrame:
    """Exponents that follow `power(gamma)`, with intervals of this half width."""
    rows = []
    for part in parts:
        for gamma in GAMMAS:
            value = power(gamma)  # type: ignore[operator]
            rows.append({"part": part, "gamma": gamma, "measured": value, "low": value - half, "high": value + half})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("power", "half", "wanted"),
    [
        (lambda gamma: 1 - gamma, 0.02, REPLICATED),
        (lambda gamma: 1 - gamma + 0.1, 0.02, REPLICATED),
        (lambda gamma: 1 - gamma + 0.1, 0.03, NOT_SEEN),  # too wide an interval to decide
        (lambda gamma: 1.5 - 2 * gamma, 0.02, NOT_SEEN),  # a gated network: right at 0.5, and nowhere else
        (lambda gamma: 1 - gamma + 0.25, 0.02, CONTRADICTED),  # off by a whole step of gamma, everywhere
        (lambda gamma: -gamma, 0.02, CONTRADICTED),
    ],
)
def test_the_verdict_follows_the_exponents(power: object, half: float, wanted: str) -> None:
    effects = named(dict(verdict.agreement(made_up(power, half=half))))
    assert len(effects) == 8 and judge(effects) == wanted


def test_only_the_parts_of_the_claim_are_judged_unless_asked() -> None:
    table = made_up(lambda gamma: 1 - gamma, ("attention", "gelu", "swiglu"))
    assert not any("swiglu" in name for name in verdict.agreement(table))
    assert len(verdict.agreement(table, ("swiglu",))) == len(GAMMAS)
    with pytest.raises(ValueError, match=r"no exponents of \['gelu'\]"):
        verdict.agreement(table[table["part"] != "gelu"])


def test_an_interval_of_agreement_holds_its_value() -> None:
    for interval in verdict.agreement(made_up(lambda gamma: 1 - gamma + 0.01)).values():
        assert interval.low < interval.value < interval.high == verdict.MARGIN


# --------------------------------------------------------------------------------------------------- settings, figures
@pytest.mark.parametrize("widths", [[64, 100, 128], [128, 64, 256], [64, 64, 128], [0, 32, 64]])
def test_widths_that_heads_do_not_divide_or_that_do_not_grow_are_refused(widths: list[int]) -> None:
    with pytest.raises(ValidationError, match="increasing multiples of 32"):
        TheoryConfig.model_validate({**SETTINGS.model_dump(), "widths": widths})


def test_figures_show_every_part_and_gamma(flows: pd.DataFrame, steps: pd.DataFrame) -> None:
    found = flow.exponents(flows, 0.95)
    figure = draw.flow_against_width(flows, found)
    assert [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes] == list(draw.PART_NAMES.values())
    assert all(len(axes.get_legend().get_texts()) == len(GAMMAS) for axes in figure.axes)  # type: ignore[union-attr]
    without = draw.flow_against_width(
        flows[flows["gamma"] < 1], found[found["gamma"] < 1]
    )  # no gamma = 1: no such title
    assert "follows the formulas" in without.texts[0].get_text()
    growth = coordinates.growth(steps)
    assert "γ = 1" in draw.coordinate_check(steps, growth, 1e-3).texts[0].get_text()
    ours = pd.DataFrame({"d_model": [64], "d_ref": [768], "gamma": [1.0], "norm_eps": [1.44e-3]})
    measured = flow.attenuations([64, 768], GAMMAS, [1e-5])
    assert "38%" in draw.attenuation_curves(measured, ours).texts[0].get_text()


def test_simulations_are_kept_and_read_as_they_are_on_disk(project: Path) -> None:
    """Figures are made from the files, so that they have the same bytes on every processor."""
    settings = TheoryPlan(**dict(SETTINGS) | {"widths": [32, 64, 128], "seeds": 2}, sizes=[(64, 768)])
    with pytest.raises(FileNotFoundError, match=r"results/theory/depth\.csv is missing: run `dvc repro simulate`"):
        simulations.read("depth")
    for name in simulations.SIMULATIONS:
        table = simulations.run(name, settings)
        assert len(table) > 3 and table.equals(simulations.read(name))
    exact = flow.through_depth(
        max(COORDINATE.widths), simulations.DEPTH, settings.gammas, simulations.DEPTH_TOKENS, "swiglu"
    )
    pd.testing.assert_frame_equal(simulations.read("depth"), exact, rtol=1e-6)
