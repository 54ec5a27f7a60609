"""Launching a run: one process or two, the same files; a failure and an interrupt say what to do."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training import place, saved_step, watch

from smallinit import launch, paths, plan
from smallinit.config import RunConfig, load_run
from smallinit.train import Interrupted

RUN = "s-1.0-both"
FILES = [
    *("blocks.csv", "curve.csv", "heldout.csv", "init_audit.csv", "matrices.csv", "metrics.json", "provenance.json")
]


def planned(processes: int, steps: int = 16) -> RunConfig:
    """The run as params.yaml and the plan say it."""
    text = paths.PARAMS.read_text()
    text = text.replace("processes: 1", f"processes: {processes}").replace("strategy: ddp", "strategy: fsdp")
    paths.PARAMS.write_text(text.replace("d_ref: 768, tokens: 2048", f"d_ref: 768, tokens: {steps * 128}"))
    plan.write()
    return load_run(RUN)


def files() -> list[str]:
    models = sorted(path.name for path in (paths.MODELS / RUN).iterdir())
    assert models == ["config.json", "model.safetensors"]
    return sorted(path.name for path in (paths.RESULTS / "train" / RUN).iterdir())


def test_one_process_trains_here_and_reports_what_it_left(project: Path) -> None:
    report = launch.launch(planned(1))
    assert files() == FILES and report.metrics["steps"] == 16 and not report.metrics["diverged"]
    assert report.curve["step"].iloc[-1] == report.heldout["step"].iloc[-1] == 16
    assert report.metrics["heldout_loss"] == pytest.approx(report.heldout["loss"].iloc[-1], rel=1e-6)
    assert report.audit["name"].tolist()[0] == "embed.weight"


def test_two_processes_that_are_stopped_save_and_end_with_the_numbers_of_one(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = planned(1, steps=100)
    one = launch.launch(run)
    weights = load_file(paths.MODELS / RUN / "model.safetensors")
    run, done = planned(2, steps=100), threading.Event()
    watch(save_seconds=1e-9)

    def stop_when_saved() -> None:
        while not done.is_set():
            if (place(run) / "newest").exists():
                os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(0.01)

    watcher = threading.Thread(target=stop_when_saved)
    watcher.start()
    try:
        with pytest.raises(Interrupted, match=f"{RUN} stopped; run it again to continue"):
            launch.launch(run)
    finally:
        done.set()
        watcher.join()
    assert 0 < saved_step(place(run)) < 100
    watch()
    two = launch.launch(run)
    assert files() == FILES and not place(run).exists()
    for name in ("curve", "heldout"):
        a, b = getattr(one, name), getattr(two, name)
        assert a["step"].equals(b["step"])
        np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-4)
    assert one.audit.equals(two.audit) and one.metrics["parameters"] == two.metrics["parameters"]
    again = load_file(paths.MODELS / RUN / "model.safetensors")
    for name, weight in weights.items():
        torch.testing.assert_close(again[name], weight, rtol=1e-2, atol=1e-3)


def test_a_process_that_fails_ends_all_with_an_error_that_says_what_to_do(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError, match=f"2 processes ended with 1: the first error .*run {RUN} again to continue"):
        launch.launch(planned(2, steps=1000))  # more than an epoch
    assert "lower `tokens` of this size" in capfd.readouterr().err


class Finished:
    """A torchrun that is done although the signal came: its last step was its last."""

    returncode: int

    def __init__(self, status: int):
        self.returncode = status

    def poll(self) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return self.returncode


@pytest.mark.parametrize("status", [0, 1])
def test_a_signal_that_comes_when_all_is_done_loses_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    run = planned(2)
    monkeypatch.setattr(subprocess, "Popen", lambda *command, **more: Finished(status))
    if status:
        with pytest.raises(Interrupted):
            launch.torchrun(run)
    else:
        launch.torchrun(run)
