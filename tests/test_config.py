"""The resolved configuration: complete in its digest, strict in its types, read only from a plan that is current."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import run_config
from pydantic import ValidationError

from smallinit import config, paths, plan
from smallinit.config import ConfigError, RunConfig

MOE = {"n_experts": 4, "top_k": 2, "balance_coef": 0.01, "z_coef": 0.001}


def other(value: Any) -> Any:
    """Another value; whether it is allowed does not matter."""
    if isinstance(value, bool):
        return not value
    if value is None or isinstance(value, dict):
        return 0.5 if value is None else {"embedding": 0.5}
    return value + "x" if isinstance(value, str) else value + 1 if isinstance(value, int) else 2 * value + 1


@pytest.mark.parametrize("part", ["run", "model", "moe", "init", "train"])
def test_the_digest_changes_with_every_field_but_the_number_of_machines(part: str) -> None:
    run = run_config(moe=MOE)
    places: dict[str, Any] = {
        "run": run,
        "model": run.model,
        "moe": run.model.moe,
        "init": run.init,
        "train": run.train,
    }
    digests = {}
    for name in type(places[part]).model_fields.keys() - {"model", "init", "train", "moe"}:
        changed = places[part].model_copy(update={name: other(getattr(places[part], name))})
        if part == "moe":
            changed = run.model_copy(update={"model": run.model.model_copy(update={"moe": changed})})
        elif part != "run":
            changed = run.model_copy(update={part: changed})
        digests[name] = changed.digest()
    unchanged = {name for name, digest in digests.items() if digest == run.digest()}
    assert unchanged == ({"processes", "strategy"} if part == "train" else set())
    assert len(set(digests.values()) - {run.digest()}) == len(digests) - len(unchanged) > 2


def test_experts_are_part_of_the_digest() -> None:
    assert run_config(moe=MOE).digest() != run_config().digest()


def test_the_digest_is_that_of_the_values_whatever_their_order() -> None:
    run = run_config()
    backwards = json.dumps(dict(reversed(run.model_dump().items())))
    assert RunConfig.model_validate_json(backwards).digest() == run.digest()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_tokens": 100}, "batch_tokens = 100 must be a multiple of seq_len x micro_batch = 16 x 4 = 64"),
        ({"micro_batch": 3}, "16 x 3 = 48"),
        ({"tokens": 127}, "tokens = 127 of size 't' is less than one step of 128"),
        ({"n_heads": 16}, "d_model = 16 must be n_heads = 16 times an even head_dim"),
        ({"n_heads": 3}, "d_model = 16 must be n_heads = 3"),
        ({"n_heads": 4, "n_kv_heads": 3}, "n_heads = 4 must be a multiple of n_kv_heads = 3"),
        ({"n_kv_heads": 4}, "n_heads = 2 must be a multiple of n_kv_heads = 4"),
        ({"gamma": 4.5}, "less than or equal to 4"),
        ({"gate": "sigmoid"}, "'none', 'headwise' or 'elementwise'"),
        ({"norm": "batchnorm"}, "'rmsnorm' or 'layernorm'"),
        ({"mlp": "relu"}, "'swiglu' or 'gelu'"),
        ({"tied_head": 1}, "valid boolean"),
        ({"moe": {**MOE, "top_k": 5}}, "top_k = 5 must be at most n_experts = 4"),
        ({"moe": {**MOE, "n_experts": 1, "top_k": 1}}, "greater than or equal to 2"),
        ({"moe": {**MOE, "balance_coef": -0.1}}, "greater than or equal to 0"),
        ({"moe": {"n_experts": 4, "top_k": 2}}, "balance_coef"),
        ({"overrides": {"norm": 1.0}}, "'embedding', 'head', 'query', 'key', 'value', 'attention_gate'"),
        ({"overrides": {"query": -1.0}}, "greater than or equal to 0"),
        ({"fixed_std": 0.0}, "greater than 0"),
        ({"fixed_std": 0.02, "overrides": {"query": 1.0}}, "overrides and fixed_std exclude each other"),
        ({"precision": "float16"}, "smallest positive number is 6e-8, so a norm_eps of 1e-12 is zero in it"),
        ({"precision": "float64"}, "'auto', 'bfloat16' or 'float32'"),
        ({"device": "tpu"}, "'auto', 'cpu' or 'cuda'"),
        ({"strategy": "dp"}, "'ddp' or 'fsdp'"),
        (
            {"processes": 3},
            "processes = 3 must divide the micro batches of a step, batch_tokens / (seq_len x micro_batch) = 2",
        ),
        ({"peak_lr": float("nan")}, "finite number"),
        ({"vocab_size": 65537}, "less than or equal to 65536"),
        ({"gamma": True}, "valid number"),
        ({"seed": True}, "valid integer"),
    ],
)
def test_values_that_cannot_be_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        run_config(**changes)


def test_float16_is_refused_with_the_advice_what_to_use() -> None:
    with pytest.raises(ValidationError, match=r"float16 is refused.*use 'auto', 'bfloat16' or 'float32'"):
        run_config(precision="float16")
    assert torch.tensor(1e-12).half() == 0 and torch.tensor(6e-8).half() > 0  # as the message says
    assert torch.tensor(1e-12).bfloat16() > 0


@pytest.mark.parametrize(("processes", "fits"), [(1, True), (2, True), (4, False), (8, False)])
def test_the_micro_batches_of_a_step_are_dealt_out_evenly(processes: int, fits: bool) -> None:
    if fits:
        assert run_config(processes=processes).train.processes == processes
    else:
        with pytest.raises(ValidationError, match="lower micro_batch or processes"):
            run_config(processes=processes)


def test_steps_are_the_whole_batches_within_the_tokens() -> None:
    run = run_config(tokens=5 * 128 + 127)
    assert (run.steps, run.batch_size) == (5, 8)


def test_a_configuration_does_not_change_once_made() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        run_config().gamma = 0.5


def test_a_run_read_from_the_plan_is_the_run_that_was_written(project: Path) -> None:
    plan.write()
    path = paths.PLAN / "runs" / "s-1.0-both.json"
    assert config.load_run("s-1.0-both").model_dump(mode="json") == json.loads(path.read_text())


def test_a_run_that_is_not_in_the_plan_is_refused_with_those_that_are(project: Path) -> None:
    plan.write()
    with pytest.raises(
        ConfigError, match=r"s-2\.0-both\.json: no such entry .*m-0\.5-both, m-0\.5-standard, .*s-1\.0-both"
    ):
        config.load_run("s-2.0-both")


def test_without_a_plan_the_advice_is_to_write_one(project: Path) -> None:
    with pytest.raises(ConfigError, match=r"known: none.*dvc repro plan"):
        config.load_run("s-1.0-both")


def test_a_plan_older_than_params_yaml_is_refused(project: Path) -> None:
    plan.write()
    paths.PARAMS.write_text(paths.PARAMS.read_text() + "# edited\n")
    with pytest.raises(ConfigError, match="changed since the plan was written"):
        config.load_run("s-1.0-both")


def test_a_plan_that_was_not_finished_is_refused(project: Path) -> None:
    plan.write()
    (paths.PLAN / "params.sha256").unlink()
    with pytest.raises(ConfigError, match="dvc repro plan"):
        config.load_run("s-1.0-both")


def test_a_plan_edited_by_hand_is_refused_by_key(project: Path) -> None:
    plan.write()
    path = paths.PLAN / "runs" / "s-1.0-both.json"
    path.write_text(path.read_text().replace('"adam_eps": 1e-12', '"adam_eps": "1e-12"'))
    with pytest.raises(ConfigError, match=r"s-1\.0-both\.json: train\.adam_eps: .*'1e-12'"):
        config.load_run("s-1.0-both")
