"""The resolved configuration: complete in its digest, strict in its types, read only from a plan that is current."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import run_config
from pydantic import ValidationError

from smallinit import config, paths, plan
from smallinit.config import ConfigError, RunConfig


def other(value: Any) -> Any:
    return value + "x" if isinstance(value, str) else value + 1 if isinstance(value, int) else 2 * value + 1


@pytest.mark.parametrize("part", ["run", "model", "train"])
def test_the_digest_changes_with_every_field(part: str) -> None:
    run = run_config()
    values = run if part == "run" else getattr(run, part)
    seen = {run.digest()}
    fields = [name for name in type(values).model_fields if name not in ("model", "train")]
    for name in fields:
        changed = values.model_copy(update={name: other(getattr(values, name))})
        seen.add((changed if part == "run" else run.model_copy(update={part: changed})).digest())
    assert len(seen) == len(fields) + 1


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
        ({"gamma": 4.5}, "less than or equal to 4"),
        ({"gate": "sigmoid"}, "'none', 'headwise' or 'elementwise'"),
        ({"precision": "float16"}, "'auto', 'bfloat16' or 'float32'"),
        ({"peak_lr": float("nan")}, "finite number"),
        ({"vocab_size": 65537}, "less than or equal to 65536"),
        ({"gamma": True}, "valid number"),
        ({"seed": True}, "valid integer"),
    ],
)
def test_values_that_cannot_be_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said.replace("(", r"\(")):
        run_config(**changes)


def test_steps_are_the_whole_batches_within_the_tokens() -> None:
    run = run_config(tokens=5 * 128 + 127)
    assert (run.steps, run.batch_size) == (5, 8)


def test_a_configuration_does_not_change_once_made() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        run_config().gamma = 0.5  # type: ignore[misc]


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
