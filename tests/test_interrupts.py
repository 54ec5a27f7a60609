"""Real processes that are killed at random moments, again and again, end bitwise as if they had never been.

Starting Python and importing torch takes seconds, so one process (`main` below) imports it once and forks the runs.
"""

import inspect
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from typing import Any

import pytest
from conftest import project, run_config
from training import moe, place, saved_step, watch

from smallinit import launch, paths
from smallinit.batches import Tokens
from smallinit.config import RunConfig
from smallinit.files import write_json
from smallinit.train import Interrupted, Training, fit

STEPS = 60
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "dense": {},
    "experts": {**moe(), "norm": "layernorm"},
    "bfloat16": {"precision": "bfloat16", "tied_head": True, "mlp": "gelu", "activation_checkpointing": True},
}
INSIDE, OUTSIDE = 6, 2  # SIGKILLs of each configuration: by a count of events in the process; from another process
STOPPED = 75  # exit status of a run that has been asked to stop


def run_of(name: str) -> RunConfig:
    return run_config(run=name, tokens=STEPS * 128, eval_every=25, **CONFIGURATIONS[name])


# ------------------------------------------------------------------------------------------------- one training process
class Events:
    """Counts what Python does, each call and return; kills its own process at number `fatal`."""

    def __init__(self, fatal: int | None):
        self.count, self.fatal = 0, fatal

    def __call__(self, *event: Any) -> None:
        self.count += 1
        if self.count == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)


def start(run: RunConfig, events: Events | None = None) -> int:
    """Fork a process that trains `run` and writes what came out; returns its id."""
    process = os.fork()
    if process:
        return process
    try:
        os.fsync = lambda handle: None  # type: ignore[assignment]  # for power cuts, which are not tested
        advance = Training.advance

        def noted(self: Training) -> float:
            (paths.LOGS / f"{run.run}.begun").write_text(str(self.step))
            Training.advance = advance  # type: ignore[method-assign]
            return advance(self)

        Training.advance = noted  # type: ignore[method-assign]
        tokens = Tokens()
        sys.setprofile(events)
        outcome = fit(run, tokens)
        sys.setprofile(None)
        exact = {name: getattr(outcome, name).to_numpy().tolist() for name in ("curve", "heldout")}
        launch.save(run, tokens, outcome)
        write_json(paths.LOGS / f"{run.run}.json", {"events": events.count if events else None, **exact})
        os._exit(0)
    except Interrupted:
        os._exit(STOPPED)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def end(process: int) -> int:
    """Wait for it; its exit status, negative for the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def signal_after_a_save(run: RunConfig, number: int, pause: float) -> int:
    """Start, wait until a state is saved, and for `pause` of the time that took; then send the signal."""
    newest = place(run) / "newest" / "manifest.json"

    def stamp() -> int:
        try:
            return newest.stat().st_ino
        except FileNotFoundError:
            return 0

    before, begun = stamp(), time.monotonic()
    process = start(run)
    while stamp() in (0, before) and time.monotonic() - begun < 60:
        time.sleep(0.001)
    time.sleep(pause * min(time.monotonic() - begun, 0.5))
    os.kill(process, number)
    return end(process)


# ------------------------------------------------------------------------------------------------------- a run's ordeal
def ordeal(run: RunConfig) -> dict[str, Any]:
    """Train `run` undisturbed, then with kills and signals at random moments; returns what was seen."""
    chance = random.Random(run.run)
    files = [paths.MODELS / run.run / "model.safetensors", paths.RESULTS / "train" / run.run / "metrics.json"]
    report: dict[str, Any] = {"undisturbed": end(start(run, Events(None))), "attempts": []}
    undisturbed = [path.read_bytes() for path in files]
    result = paths.LOGS / f"{run.run}.json"
    whole = json.loads(result.read_text())
    result.unlink()

    def attempt(kind: str, status: int, saved: int) -> None:
        begun = paths.LOGS / f"{run.run}.begun"
        first = int(begun.read_text()) if begun.exists() else None  # None: dead before its first step
        begun.unlink(missing_ok=True)
        seen = {"kind": kind, "status": status, "saved": saved, "first": first, "after": saved_step(place(run))}
        report["attempts"].append(seen)

    (paths.LOGS / f"{run.run}.begun").unlink()
    kinds = ["inside"] * INSIDE + ["outside"] * OUTSIDE + ["SIGTERM", "SIGINT"]
    for kind in chance.sample(kinds, len(kinds)):
        saved = saved_step(place(run))
        if kind == "inside":
            status = end(start(run, Events(chance.randrange(1, 10 * whole["events"] // STEPS))))
        else:
            number = signal.SIGKILL if kind == "outside" else getattr(signal, kind)
            status = signal_after_a_save(run, number, chance.random())
        attempt(kind, status, saved)
    saved = saved_step(place(run))
    attempt("last", end(start(run)), saved)
    again = json.loads(result.read_text())
    report["same"] = {
        **{path.name: path.read_bytes() == before for path, before in zip(files, undisturbed, strict=True)},
        **{name: again[name] == whole[name] for name in ("curve", "heldout")},
    }
    return report


def main() -> None:
    """In a project's folder: every configuration's ordeal; the reports go to stdout as JSON."""
    paths.LOGS.mkdir(exist_ok=True)
    print(json.dumps({name: ordeal(run_of(name)) for name in CONFIGURATIONS}))


if __name__ == "__main__":
    main()


# --------------------------------------------------------------------------------------------------------------- tests
@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        making = inspect.unwrap(project)(tmp_path_factory.mktemp("interrupts"), patch)
        root = next(making)
        watch(save_seconds=1e-9)  # after each step
    done = subprocess.run(
        [sys.executable, __file__], cwd=root, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    for name, report in found.items():
        print(name, *report["attempts"], sep="\n  ")
    return found


def test_at_least_twenty_processes_were_killed_at_different_moments(reports: dict[str, Any]) -> None:
    attempts = [(name, attempt) for name, report in reports.items() for attempt in report["attempts"]]
    killed = [(name, attempt["after"]) for name, attempt in attempts if attempt["status"] == -signal.SIGKILL]
    assert len(killed) >= 20
    assert len(set(killed)) >= 10


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_run_killed_again_and_again_ends_bitwise_as_if_never_killed(reports: dict[str, Any], name: str) -> None:
    report = reports[name]
    assert report["undisturbed"] == 0 and report["attempts"][-1]["status"] == 0
    assert report["same"] == {"model.safetensors": True, "metrics.json": True, "curve": True, "heldout": True}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_each_start_continues_from_the_newest_saved_state_and_loses_no_other(
    reports: dict[str, Any], name: str
) -> None:
    attempts = reports[name]["attempts"]
    for attempt in attempts:
        assert attempt["first"] in (attempt["saved"], None), attempt
    *killed, last = attempts
    assert all(attempt["after"] >= attempt["saved"] for attempt in killed)
    assert 0 < last["saved"] < STEPS and last["after"] == 0  # a finished run leaves no state


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_process_that_is_asked_to_stop_saves_and_says_so(reports: dict[str, Any], name: str) -> None:
    asked = [attempt for attempt in reports[name]["attempts"] if attempt["kind"].startswith("SIG")]
    assert len(asked) == 2 and all(attempt["status"] == STOPPED for attempt in asked)
    assert all(attempt["after"] > attempt["saved"] for attempt in asked)
