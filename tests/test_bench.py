"""The benchmark: all contestants train the same model, workers are driven and ended, tables are right."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import psutil
import pytest
import torch
import torch._dynamo

from smallinit import paths
from smallinit.batches import Tokens
from smallinit.bench import command, losses, peers, report, worker
from smallinit.bench.case import Case, Shape
from smallinit.bench.driver import ALLOCATOR, Crew, environment
from smallinit.bench.setup import find_tokens, run_config
from smallinit.model import Decoder
from smallinit.progress import Progress

TINY = Shape(d_model=32, n_layers=2, seq_len=16, vocab_size=300, batch_size=4)


def tiny_case(contestant: str, shape: Shape = TINY) -> Case:
    """A case in float32, where equal training gives equal losses to many digits."""
    run = run_config(shape, Tokens())
    run = run.model_copy(update={"train": run.train.model_copy(update={"precision": "float32"})})
    litgpt = peers.litgpt_folder()
    packages = str(litgpt) if litgpt.exists() else None
    return Case(contestant=contestant, run=run, tokens=str(paths.TOKENS), packages=packages, square=32)


def train(contestant: str, steps: int) -> float | None:
    """The loss on the first batch after so many steps, in this process."""
    left = steps

    def tick() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise worker.Finished

    built = worker.contestants()[contestant](tiny_case(contestant))
    with pytest.raises(worker.Finished):
        built.train(tick)
    return built.loss()


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`torch.compile` does nothing, here and in workers: compiling takes minutes, and is not what is tested."""
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    with torch._dynamo.config.patch(disable=True):
        yield


def test_all_contestants_train_the_same_model_on_the_same_data(project: Path, uncompiled: None) -> None:
    names = [name for name in command.CONTESTANTS if not name.startswith("litgpt")]
    losses = {name: train(name, steps=8) for name in names}
    assert train("ours", steps=1) > losses["ours"] + 0.1
    assert losses == pytest.approx(dict.fromkeys(names, losses["ours"]), abs=1e-4)


def test_the_ceilings_take_steps_and_have_no_loss(project: Path) -> None:
    assert train("square", steps=2) is None
    assert train("shapes", steps=2) is None


def test_flops_count_the_matrices_of_the_built_model(project: Path) -> None:
    with torch.device("meta"):
        model = Decoder(tiny_case("ours").run.model)
    built = [p.shape for name, p in model.named_parameters() if p.ndim == 2 and name != "embed.weight"]
    assert sorted(TINY.matrices()) == sorted(tuple(shape) for shape in built)
    weights = sum(shape.numel() for shape in built)
    seen = sum(range(1, TINY.seq_len + 1))  # pairs of a query and a key that it sees, in one sequence
    scores = TINY.n_layers * TINY.batch_size * seen * 2 * TINY.d_model  # multiplications, for scores and for values
    assert TINY.step_flops() == 3 * 2 * (weights * TINY.step_tokens + scores)


def test_the_default_shape_is_a_llama_with_swiglu_of_8_3_d() -> None:
    assert [Shape(d_model=d).d_ff for d in (64, 96, 128, 192)] == [176, 256, 344, 512]


def test_made_up_tokens_stand_in_for_a_corpus_that_is_missing_or_too_large(project: Path, tmp_path: Path) -> None:
    assert find_tokens(tmp_path, 300)[0] == paths.TOKENS
    folder, said = find_tokens(tmp_path, 100)  # the project's ids go to 256
    assert folder == tmp_path and "made up" in said
    assert 90 <= Tokens(folder).train.max() < 100
    for path in paths.TOKENS.iterdir():
        path.unlink()
    assert find_tokens(tmp_path, 300)[0] == tmp_path


def test_workers_step_report_and_say_what_went_wrong(project: Path, tmp_path: Path, uncompiled: None) -> None:
    """Real processes: one that works, one whose package is missing, one that is killed."""
    with Crew(tmp_path, Progress(100, "test", "units")) as crew:
        good, killed = crew.start(tiny_case("ours"), tiny_case("ours-eager"))
        (missing,) = crew.start(tiny_case("litgpt-eager").model_copy(update={"packages": None}))
        killed.process.kill()
        crew.measure([[good], [killed, missing]], steps=2, repeats=3)
    assert good.problem is None and good.startup_seconds and len(good.seconds) == 3 and min(good.seconds) > 0
    assert good.loss == pytest.approx(train("ours", steps=1 + 2 * 4), abs=1e-6)
    assert good.peak_bytes and 50e6 < good.peak_bytes < 5e9
    assert missing.problem == "ImportError: litgpt is not installed" and not missing.seconds
    assert killed.problem and "code -9" in killed.problem


@pytest.fixture
def made_up_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that speak the protocol but train nothing: a step takes what `fake_worker.py` says."""
    script = Path(__file__).with_name("fake_worker.py")
    monkeypatch.setattr("smallinit.bench.driver.WORKER", [sys.executable, "-S", str(script)])


def test_no_worker_outlives_an_interrupt(project: Path, tmp_path: Path, made_up_workers: None) -> None:
    with pytest.raises(KeyboardInterrupt), Crew(tmp_path, Progress(100, "test", "units")) as crew:
        (worker,) = crew.start(tiny_case("ours"))
        assert psutil.pid_exists(worker.process.pid)
        raise KeyboardInterrupt
    assert not psutil.pid_exists(worker.process.pid)


def test_a_worker_ends_when_its_driver_is_gone(project: Path, tmp_path: Path, uncompiled: None) -> None:
    with Crew(tmp_path, Progress(100, "test", "units")) as crew:
        (worker,) = crew.start(tiny_case("square"))
        assert worker.process.stdin
        worker.process.stdin.close()
        assert worker.process.wait(timeout=60) == 0


def test_only_the_allocator_differs_between_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(name.startswith("MALLOC_") for name in ALLOCATOR) and ALLOCATOR
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1")  # as left in a shell
    system, tuned = (environment(flag, tmp_path, threads=1) for flag in (False, True))
    assert tuned == system | ALLOCATOR and not system.keys() & ALLOCATOR.keys()


def run_bench(*arguments: str) -> str:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.main(parser.parse_args(arguments))


def test_the_tables_follow_from_the_measured_seconds(project: Path, made_up_workers: None) -> None:
    text = run_bench("--quick", "--offline")
    folder = paths.LOGS / "bench"
    frame = pd.read_csv(folder / "bench.csv").set_index(["contestant", "allocator"])
    tokens = command.QUICK.shape.step_tokens
    assert frame.loc[("ours", "ours"), "tokens_per_second"] == pytest.approx(tokens / 0.01)
    assert frame.loc[("hf-trainer", "system"), "tokens_per_second"] == pytest.approx(tokens / 0.04)
    square = 2 * command.QUICK.square**3 / 0.001
    share = command.QUICK.shape.step_flops() / 0.01 / square
    assert frame.loc[("ours", "ours"), "share_of_ceiling"] == pytest.approx(share)
    assert frame.loc[("ours", "ours"), "peak_mib"] == 100
    assert list(frame.loc["litgpt-eager", "problem"]) == ["ImportError: litgpt is not installed"] * 2
    threads = pd.read_csv(folder / "bench_threads.csv").set_index("arrangement")["tokens_per_second"]
    assert threads["two runs side by side, one thread each"] == pytest.approx(2 * tokens / 0.01)
    scaling = pd.read_csv(folder / "bench_scaling.csv")
    assert list(scaling["d_model"]) == [32, 64] and list(scaling["varied"]) == ["–", "d_model"]
    assert "4.00 times Transformers `Trainer`, 2.00 times the best peer as it ships" in text
    assert "1.60 times the best peer under our allocator settings" in text  # made-up peers gain a fifth from them
    assert "litgpt `GPT`, plain loop: ImportError: litgpt is not installed." in text
    assert text == report.markdown(folder)
    about = json.loads((folder / "bench_machine.json").read_text())
    assert about["cpu"] and about["versions"]["transformers"] and about["shape"]["d_ff"] == 88


def test_without_our_own_contestant_nothing_is_written(
    project: Path, made_up_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PROBLEM", "ours")
    with pytest.raises(report.BenchFailed, match="'ours' did not run: RuntimeError: made up"):
        run_bench("--quick", "--offline")
    assert not (paths.LOGS / "bench").exists()


def test_litgpt_that_cannot_be_installed_is_a_reason_and_leaves_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(OSError, match="pip could not install litgpt"):
        peers.install_litgpt()
    assert not peers.litgpt_folder().exists() and not list(peers.litgpt_folder().parent.iterdir())


def test_losses_and_gradients_are_compared_seed_by_seed(project: Path, tmp_path: Path, uncompiled: None) -> None:
    bench = command.Bench(replace(command.QUICK, shape=TINY), tmp_path)
    table = losses.compare(run_config(TINY, Tokens(bench.tokens)), Tokens(bench.tokens), seeds=2, steps=2)
    assert table["seed"].tolist() == [0, 1] and table["loss_plain"].nunique() == 2
    assert table["loss_ours"].to_numpy() == pytest.approx(table["loss_plain"].to_numpy(), abs=1e-2)
    assert (table[["gradient_error_plain", "gradient_error_ours"]] < 0.05).all(axis=None)
    assert "Over 2 seeds, the held-out loss after 2 steps at d = 32" in losses.text(table)


def test_the_difference_of_losses_has_its_paired_interval() -> None:
    made_up = pd.DataFrame({"loss_plain": [5.0, 5.2, 5.4], "loss_ours": [5.01, 5.22, 5.43], "steps": 9, "d_model": 32})
    made_up["gradient_error_plain"], made_up["gradient_error_ours"] = 0.02, 0.03
    text = losses.text(made_up)  # mean 0.02, standard error 0.01 / sqrt(3), t(0.975, 2) = 4.303
    assert "+0.0200 nats (interval [-0.0048, +0.0448])" in text and "deviation of 0.2000" in text
    assert "by 3.00% of its norm, theirs by 2.00%" in text


def test_a_profile_names_the_operators_of_a_step(project: Path, tmp_path: Path, uncompiled: None) -> None:
    bench = command.Bench(replace(command.QUICK, shape=TINY), tmp_path)
    table = bench.profile()
    assert table["operator"].str.contains("mm").any()
    assert table["milliseconds"].is_monotonic_decreasing and 0.9 < table["share"].sum() <= 1
    assert report.profile_markdown(table).startswith("| operator | calls | milliseconds | share |")


def test_a_profile_is_summed_up_by_what_the_time_is_spent_on() -> None:
    rows = {
        "aten::mm": 0.5,
        "aten::bmm": 0.125,
        "graph_0_cpp_fused_add": 0.25,
        "aten::_fused_adamw_": 0.01,
        "aten::x": 0.1,
    }
    text = report.spent(pd.DataFrame({"operator": list(rows), "share": list(rows.values())}))
    assert "matrix products 62.5%, fused elementwise kernels 25.0%, the optimizer 1.0%, the rest 11.5%" in text
