"""The adviser: the paper's sizes, the configurations of real model classes, number formats, and what is missing."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from smallinit import adviser
from smallinit.adviser import advise, from_config, in_dtype, network
from smallinit.config import ConfigError
from smallinit.theory import formulas

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
PLAIN: dict[str, Any] = {"d_model": 2048, "mlp": "swiglu", "norm_eps": 1e-5, "dtype": "bfloat16", "gamma": 0.5}


def said(*arguments: str) -> str:
    parser = argparse.ArgumentParser()
    adviser.add_arguments(parser)
    return adviser.main(parser.parse_args(arguments))


def hf(name: str, **changes: Any) -> dict[str, Any]:
    transformers = pytest.importorskip("transformers")
    content: dict[str, Any] = getattr(transformers, name)(**changes).to_dict()
    return json.loads(json.dumps(content))  # what a config.json would hold


# ------------------------------------------------------------------------------------------------------------- numbers
@pytest.mark.parametrize(("d", "passed"), [(768, 0.38), (1024, 0.30), (1536, 0.20), (2048, 0.15)])
def test_at_the_papers_sizes_small_initialization_alone_is_attenuated(d: int, passed: float) -> None:
    advice = advise(network(PLAIN | {"d_model": d}))
    assert advice.small.attenuation == pytest.approx(passed, abs=0.006)
    assert advice.now.attenuation > 0.98 and advice.paper.attenuation == pytest.approx(1, abs=1e-5)
    assert advice.now.attention_flow == pytest.approx(d**0.5, rel=0.02)
    assert advice.paper.attention_flow == pytest.approx(1, abs=1e-5)
    assert advice.paper.feedforward_flow == pytest.approx(formulas.flow("swiglu", d, 1.0, 8 * d // 3), rel=1e-5)


def test_a_fixed_std_is_the_gamma_that_it_amounts_to() -> None:
    values = {key: value for key, value in PLAIN.items() if key != "gamma"}
    fixed = advise(network(values | {"std": 2048**-0.6})).now
    ruled = advise(network(PLAIN | {"gamma": 0.6})).now
    assert fixed.gamma == pytest.approx(0.6) and fixed.attention_flow == pytest.approx(ruled.attention_flow)
    # the rule gives FFN down a smaller std than d_model matrices, a fixed one does not
    assert fixed.feedforward_flow / ruled.feedforward_flow == pytest.approx((8 * 2048 // 3 / 2048) ** 0.6)


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_number_formats_are_those_of_torch(dtype: str) -> None:
    info = torch.finfo(DTYPES[dtype])
    assert adviser.FLOATS[dtype] == (info.tiny, info.smallest_normal * info.eps)
    for exponent in range(-160, 0):
        value = 2.0**exponent
        stored = torch.tensor(value, dtype=torch.float64).to(DTYPES[dtype]).item()
        wanted = "zero" if stored == 0 else "subnormal" if value < info.tiny else "normal"
        assert in_dtype(value, dtype) == wanted, value


def test_the_papers_eps_is_refused_in_float16_and_nowhere_else() -> None:
    assert [in_dtype(1e-12, dtype) for dtype in DTYPES] == ["zero", "normal", "normal"]
    assert in_dtype(1e-5, "float16") == "subnormal" and in_dtype(0.0, "float32") == "zero"
    assert any("1e-12, is 0, refuse" in note for note in advise(network(PLAIN | {"dtype": "float16"})).notes)
    assert not any("refuse" in note for note in advise(network(PLAIN)).notes)


# ------------------------------------------------------------------------------------------------- real configurations
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("LlamaConfig", {"d_model": 4096, "d_ff": 11008, "mlp": "swiglu", "norm_eps": 1e-6}),
        ("Qwen3Config", {"d_model": 4096, "d_ff": 22016, "mlp": "swiglu", "heads_width": 4096}),
        ("MixtralConfig", {"d_model": 4096, "d_ff": 14336, "mlp": "swiglu", "norm_eps": 1e-5, "experts": 8}),
        ("GPT2Config", {"d_model": 768, "d_ff": 3072, "mlp": "gelu", "norm_eps": 1e-5, "stream_scale": 2**0.5}),
        ("GPTNeoXConfig", {"d_model": 6144, "d_ff": 24576, "mlp": "gelu", "norm_eps": 1e-5, "experts": None}),
        ("Gemma2Config", {"d_model": 2304, "mlp": "geglu", "stream_scale": 48.0, "post_norm": True}),
        ("Starcoder2Config", {"d_model": 3072, "mlp": "gelu", "std": 0.018042}),
        ("FalconConfig", {"d_model": 4544, "d_ff": 18176, "mlp": "gelu"}),
    ],
)
def test_configurations_of_transformers_are_understood(name: str, wanted: dict[str, Any]) -> None:
    advice = advise(network(from_config(hf(name))))
    found = advice.network.model_dump()
    assert {key: found[key] for key in wanted} == wanted
    assert found["std"] == wanted.get("std", 0.02) and found["dtype"] == "float32"
    assert advice.now.gamma == pytest.approx(formulas.effective_gamma(found["std"], found["d_model"]))


def test_gpt2_scales_its_residual_outputs_and_the_rule_does_not() -> None:
    advice = advise(network(from_config(hf("GPT2Config"))))
    assert advice.network.residual_scale == pytest.approx(24**-0.5)
    now = advice.now.attenuation * 768**0.5 * 0.02 * 768**0.5 / 2**0.5 / 24**0.5
    assert advice.now.attention_flow == pytest.approx(now)
    assert advice.paper.attention_flow == pytest.approx(2**-0.5, rel=1e-5)  # positions double the stream's square


def test_a_dtype_is_read_whatever_its_spelling() -> None:
    config = hf("LlamaConfig")
    for key, value, wanted in [
        ("dtype", "bfloat16", "bfloat16"),
        ("torch_dtype", "torch.float16", "float16"),
        ("dtype", None, "float32"),
    ]:
        config.pop("dtype", None)
        assert from_config(config | {key: value})["dtype"] == wanted


def test_a_model_of_images_and_text_is_read_by_its_text_part() -> None:
    found = network(from_config(hf("Gemma3Config")))
    assert found.d_model == hf("Gemma3Config")["text_config"]["hidden_size"] and found.mlp == "geglu"


# ------------------------------------------------------------------------------------------------------ command, errors
def test_the_command_reads_a_file_and_options_win(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(hf("LlamaConfig", hidden_size=2048, rms_norm_eps=1e-5)))
    text = said(str(file))
    assert "d_model 2048" in text and "swiglu update / stream" in text and "15.3%" in text
    content = json.loads(said(str(file), "--gamma", "1", "--eps", "1e-12", "--json"))
    assert content["now"] == content["paper"] == content["small"] and content["network"]["std"] is None
    assert content["now"]["norm_eps"] == 1e-12 and content["paper_eps_in_dtype"] == "normal"


def test_the_command_answers_to_numbers_alone() -> None:
    text = said("--d-model", "768", "--mlp", "gelu", "--std", "0.02", "--dtype", "float16")
    assert "γ (std = d_model^-γ)" in text and "0.589" in text and "refuse" in text
    assert "d_ff 3072" in text and "swiglu" not in text


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("rms_norm_eps", "norm_eps is missing.*rms_norm_eps, layer_norm_eps.*--eps"),
        ("hidden_size", "d_model is missing.*hidden_size.*--d-model"),
        ("hidden_act", "mlp is missing.*hidden_act.*--mlp"),
        ("initializer_range", "std is missing.*initializer_range.*--std or --gamma"),
    ],
)
def test_a_missing_key_is_named(tmp_path: Path, without: str, message: str) -> None:
    config = hf("LlamaConfig")
    del config[without]
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message):
        said(str(file))


def test_values_that_are_not_allowed_are_named() -> None:
    with pytest.raises(ConfigError, match=r"advise: dtype: .*'float16', 'bfloat16' or 'float32'.*'int8'"):
        network(PLAIN | {"dtype": "int8"})
    with pytest.raises(ConfigError, match=r"advise: norm_eps.*greater than or equal to 0.*-1"):
        network(PLAIN | {"norm_eps": -1.0})
    with pytest.raises(ConfigError, match="one of std"):
        network(PLAIN | {"std": 0.02})
    with pytest.raises(ConfigError, match="d_model is missing"):
        said()


def test_what_is_no_configuration_is_refused(tmp_path: Path) -> None:
    for number, content in enumerate(("{", "[1]")):
        (tmp_path / f"{number}.json").write_text(content)
        with pytest.raises(ConfigError, match=rf"{number}\.json: not a config\.json"):
            said(str(tmp_path / f"{number}.json"))
    with pytest.raises(ConfigError, match=r"none\.json"):
        said(str(tmp_path / "none.json"))


def test_the_adviser_does_without_torch() -> None:
    script = "import sys, smallinit.adviser; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
