"""Two processes train the model that one trains: DDP and FSDP2 on gloo, here on the processor.

Starting processes takes seconds, so torchrun is started once (`main` below) and the tests look at what it wrote.
"""

import inspect
import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import project, run_config
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from training import moe, place, saved_step

from smallinit import parallel, paths, train
from smallinit.batches import Tokens
from smallinit.config import ConfigError, RunConfig
from smallinit.files import read_json, write_json
from smallinit.parallel import ALONE, World

STRATEGIES = ("ddp", "fsdp")
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "dense": {},  # 257 tokens and 1 layer: no matrix of the embedding is cut evenly
    "experts": {**moe(), "n_layers": 2},
    "tied": {"tied_head": True, "norm": "layernorm", "mlp": "gelu", "activation_checkpointing": True},
    "headwise": {"d_model": 18, "n_heads": 3, "gate": "headwise", "n_kv_heads": 1},  # 3 gates for 2 processes
    "bfloat16": {"precision": "bfloat16", "adam_eps": 1e-6},  # an eps that damps some coordinates and not others
}
# Relative, of losses: the same sums in another order, and after that steps from weights that differ by as much.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-4}
STOP_AT = 7


def run_of(name: str, strategy: str = "ddp", processes: int = 2) -> RunConfig:
    """12 steps of four micro batches; the clip is in reach, so that it acts."""
    changes = {"micro_batch": 2, "tokens": 12 * 128, "grad_clip": 0.3, **CONFIGURATIONS[name.split("-")[0]]}
    return run_config(run=name, strategy=strategy, processes=processes, **changes)


def keep(run: RunConfig, outcome: train.Outcome, label: str) -> None:
    """What the tests compare, with all digits."""
    for name in ("curve", "heldout", "audit", "matrices", "blocks"):
        getattr(outcome, name).to_json(
            paths.LOGS / f"{run.run}.{label}.{name}.json", orient="split", double_precision=15
        )
    save_file(outcome.weights, paths.LOGS / f"{run.run}.{label}.safetensors")
    write_json(paths.LOGS / f"{run.run}.{label}.json", outcome.provenance)


def interrupted(run: RunConfig, tokens: Tokens, world: World, by: int = 0) -> None:
    """Train until STOP_AT, when process `by` is asked to stop."""
    advance = train.Training.advance

    def stopping(self: train.Training) -> float:
        if self.step == STOP_AT - 1 and world.rank == by:
            os.kill(os.getpid(), signal.SIGTERM)
        return advance(self)

    train.Training.advance = stopping  # type: ignore[method-assign]
    try:
        with pytest.raises(train.Interrupted, match=f"stopped at step {STOP_AT} of 12; run it again"):
            train.fit(run, tokens, world)
    finally:
        train.Training.advance = advance  # type: ignore[method-assign]


def reductions(run: RunConfig, tokens: Tokens, world: World) -> int:
    """How often the processes add up gradients in one step."""
    training = train.Training(run, tokens, world)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        train.accumulate_gradients(training.model, training.batches.batch(0), run.train.micro_batch, world)
    return sum(event.count for event in seen.key_averages() if event.key.startswith("c10d::") and "reduce" in event.key)


# --------------------------------------------------------------------------------------------- one of torchrun's two
def main() -> None:
    tokens = Tokens()
    with parallel.join(run_of("dense")) as world:
        for name, strategy in product(CONFIGURATIONS, STRATEGIES):
            run = run_of(name, strategy)
            outcome = train.fit(run, tokens, world)
            if world.rank == 0:
                keep(run, outcome, strategy)
        for strategy in STRATEGIES:
            down, up = run_of(f"experts-down-{strategy}", strategy), run_of(f"experts-up-{strategy}", strategy)
            interrupted(down, tokens, world, by=1)
            outcome = train.fit(up, tokens, world)  # which one process has begun
            if world.rank == 0:
                keep(up, outcome, strategy)
        counts = {
            strategy: [
                reductions(run_config(micro_batch=n, strategy=strategy, processes=2), tokens, world) for n in (4, 2, 1)
            ]
            for strategy in STRATEGIES
        }
        shared = {"sum": world.sum(world.rank + 1, 0.5), "tell": world.tell(f"from {world.rank}")}
        if world.rank == 0:
            write_json(paths.LOGS / "seen.json", {"reductions": counts, **shared})


if __name__ == "__main__":
    main()


# --------------------------------------------------------------------------------------------------------------- tests
@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Everything that one and two processes have done, by files."""
    with pytest.MonkeyPatch.context() as patch:
        making = inspect.unwrap(project)(tmp_path_factory.mktemp("parallel"), patch)
        root: Path = next(making)
        paths.LOGS.mkdir()
        tokens = Tokens()
        for name in CONFIGURATIONS:
            run = run_of(name, processes=1)
            keep(run, train.fit(run, tokens), "one")
        for strategy in STRATEGIES:
            interrupted(run_of(f"experts-up-{strategy}", processes=1), tokens, ALONE)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
        done = subprocess.run(
            torchrun, cwd=root, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert done.returncode == 0, done.stderr[-6000:]
        for strategy in STRATEGIES:
            run = run_of(f"experts-down-{strategy}", processes=1)
            assert saved_step(place(run)) == STOP_AT
            keep(run, train.fit(run, tokens), "one")
        yield paths.LOGS


def table(logs: Path, label: str, name: str) -> pd.DataFrame:
    return pd.read_json(logs / f"{label}.{name}.json", orient="split", precise_float=True)


def worst(a: pd.Series, b: pd.Series) -> float:
    """The largest relative difference."""
    return float(np.max(np.abs(a.to_numpy() / b.to_numpy() - 1)))


CASES = [(name, strategy) for name in CONFIGURATIONS for strategy in STRATEGIES]


@pytest.mark.parametrize(("name", "strategy"), CASES)
def test_two_processes_have_the_losses_of_one(logs: Path, name: str, strategy: str) -> None:
    tolerance = TOLERANCE[CONFIGURATIONS[name].get("precision", "float32")]
    for kind in ("curve", "heldout"):
        one, two = table(logs, f"{name}.one", kind), table(logs, f"{name}.{strategy}", kind)
        assert one["step"].equals(two["step"]) and one["tokens"].equals(two["tokens"])
        print(f"{name} {strategy} {kind}: {worst(two['loss'], one['loss']):.1e}")
        assert worst(two["loss"], one["loss"]) < tolerance
    assert one["loss"].iloc[-1] < one["loss"].iloc[0] - 0.1  # there was something to learn


@pytest.mark.parametrize(("name", "strategy"), CASES)
def test_the_norm_that_is_clipped_and_adams_share_are_those_of_one_process(
    logs: Path, name: str, strategy: str
) -> None:
    one, two = table(logs, f"{name}.one", "curve"), table(logs, f"{name}.{strategy}", "curve")
    assert (one["grad_norm"] > 0.3).any()
    assert worst(two["grad_norm"], one["grad_norm"]) < 50 * TOLERANCE[run_of(name).train.precision]
    np.testing.assert_allclose(two["adam_eps_share"], one["adam_eps_share"], atol=1e-3)


def test_the_share_that_is_compared_above_is_neither_zero_nor_one(logs: Path) -> None:
    assert table(logs, "bfloat16.one", "curve")["adam_eps_share"].between(0.05, 0.95).any()


@pytest.mark.parametrize(("name", "strategy"), CASES)
def test_initial_weights_are_the_same_bit_by_bit(logs: Path, name: str, strategy: str) -> None:
    one, two = table(logs, f"{name}.one", "audit"), table(logs, f"{name}.{strategy}", "audit")
    assert one["sha256"].tolist() == two["sha256"].tolist() and one["name"].tolist() == two["name"].tolist()


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """|a - b| / |b| over all weights."""
    assert a.keys() == b.keys() and all(a[name].shape == b[name].shape for name in b)
    difference = sum((a[name] - b[name]).double().square().sum() for name in b)
    return float((difference / sum(b[name].double().square().sum() for name in b)) ** 0.5)


@pytest.mark.parametrize(("name", "strategy"), CASES)
def test_gathered_final_weights_are_those_of_one_process(logs: Path, name: str, strategy: str) -> None:
    one, two = load_file(logs / f"{name}.one.safetensors"), load_file(logs / f"{name}.{strategy}.safetensors")
    print(f"{name} {strategy}: {distance(two, one):.1e}")
    assert distance(two, one) < 100 * TOLERANCE[run_of(name).train.precision]
    assert read_json(logs / f"{name}.{strategy}.json")["processes"] == 2


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_run_continues_with_another_number_of_processes(logs: Path, strategy: str, direction: str) -> None:
    """up: begun by one process, continued by two; down: the reverse."""
    label = f"experts-{direction}-{strategy}.{strategy if direction == 'up' else 'one'}"
    for kind in ("curve", "heldout"):
        one, two = table(logs, "experts.one", kind), table(logs, label, kind)
        assert one["step"].equals(two["step"])
        assert worst(two["loss"], one["loss"]) < TOLERANCE["float32"]
    if direction == "up":  # what one process did is kept as it was
        assert table(logs, label, "curve")["loss"][:STOP_AT].equals(
            table(logs, "experts.one", "curve")["loss"][:STOP_AT]
        )
    weights = [load_file(logs / f"{name}.safetensors") for name in (label, "experts.one")]
    assert distance(*weights) < 100 * TOLERANCE["float32"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_are_added_up_once_a_step_however_many_micro_batches(logs: Path, strategy: str) -> None:
    one, two, four = read_json(logs / "seen.json")["reductions"][strategy]
    assert one > 0 and one == two == four


def test_sums_and_values_reach_every_process(logs: Path) -> None:
    seen = read_json(logs / "seen.json")
    assert seen["sum"] == [3.0, 1.0] and seen["tell"] == "from 0"


def test_parts_are_dealt_out_in_turn_and_each_once() -> None:
    shares = [World(rank, 3, torch.device("cpu")).share(range(6)) for rank in range(3)]
    assert [list(share) for share in shares] == [[0, 3], [1, 4], [2, 5]]
    assert list(ALONE.share(range(6))) == list(range(6))


def test_micro_batches_that_cannot_be_dealt_out_are_refused_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(
            ConfigError, match=r"^2 micro batches of a step cannot be dealt out to 3 processes: change train\.micro_"
        ),
        parallel.join(run_config()),
    ):
        raise AssertionError("it was let in")


def test_alone_nothing_is_shared() -> None:
    assert ALONE.sum(1.5, 2) == [1.5, 2] and ALONE.tell("x") == "x"
    model = torch.nn.Linear(2, 2)
    assert parallel.distribute(model, [], "fsdp", ALONE) is model
    assert parallel.whole(model.weight) is model.weight and parallel.local(model.weight) is model.weight
