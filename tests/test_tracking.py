"""Trackers write files and nothing else: no dvc.yaml, no network, no step twice after an interrupt."""

import csv
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import run_config
from dvc.repo import Repo
from training import watch

from smallinit import paths, plan, tracking, train
from smallinit.batches import Tokens
from smallinit.files import read_json

RUN = "t-1.0-both"
NUMBERS = {"learning_rate", "loss", "grad_norm", "adam_eps_share", "heldout_loss"}


@pytest.fixture
def inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory is the project, a DVC repository whose owner is logged in to DVC Studio."""
    Repo.init(str(project), no_scm=True).close()
    monkeypatch.chdir(project)
    monkeypatch.delenv("DVC_STUDIO_OFFLINE", raising=False)
    monkeypatch.setenv("DVC_STUDIO_TOKEN", "secret")
    monkeypatch.setenv("DVC_STUDIO_REPO_URL", "https://example.org/somebody/repository")
    return project


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Connections are refused; what was tried."""
    tried: list[Any] = []

    def refuse(*address: Any, **more: Any) -> None:
        tried.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tried


def tables() -> dict[str, list[int]]:
    """The steps in DVCLive's files, by the name of the number."""
    found = {}
    for file in (paths.LOGS / "live" / RUN / "plots" / "metrics").glob("*.tsv"):
        rows = list(csv.DictReader(file.open(), delimiter="\t"))
        assert all(float(row[file.stem]) is not None for row in rows)
        found[file.stem] = [int(row["step"]) for row in rows]
    return found


def top_files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}


def test_dvclive_writes_curves_and_no_more(inside: Path, no_network: list[Any]) -> None:
    before = top_files(inside)
    watch(dvclive=True)
    outcome = train.fit(run_config(log_every=4), Tokens())
    steps = tables()
    assert set(steps) == NUMBERS
    assert steps["loss"] == outcome.curve["step"].tolist() == [1, 4, 8, 12, 16, 20]
    assert steps["heldout_loss"] == outcome.heldout["step"].tolist()
    summary = read_json(paths.LOGS / "live" / RUN / "metrics.json")
    assert summary["step"] == 20 and summary["loss"] == outcome.curve["loss"].iloc[-1]
    assert top_files(inside) == before and "dvc.yaml" in before
    assert list(inside.rglob("dvc.yaml")) == [inside / "dvc.yaml"]
    assert no_network == []


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_after_an_interrupt_no_step_comes_twice_and_none_is_missing(
    inside: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    watch(dvclive=True)
    run, advance, save = run_config(), train.Training.advance, train.Training.save

    def save_once(self: train.Training, place: Path) -> None:
        if self.step == 5:
            save(self, place)

    def ends(self: train.Training) -> float:
        if self.step == 9 and ending == "killed":
            raise MemoryError
        if self.step == 9:
            os.kill(os.getpid(), 15)
        return advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(train.Training, "advance", ends)
        if ending == "killed":  # four steps after the only save
            patch.setattr(train.Training, "save", save_once)
            watch(save_seconds=1e-9, dvclive=True)
        with pytest.raises((train.Interrupted, MemoryError)):
            train.fit(run, Tokens())
    live = paths.LOGS / "live" / RUN
    assert max(tables()["loss"]) == (9 if ending == "killed" else 10)
    if ending == "killed":  # in the middle of writing
        (live / "metrics.json").write_text('{"loss": 5.')
        with (live / "plots" / "metrics" / "loss.tsv").open("a") as file:
            file.write("10\t5.")
    train.fit(run, Tokens())
    assert tables()["loss"] == list(range(1, 21))
    assert tables()["heldout_loss"] == [0, 1, 2, 4, 5, 8, 10, 15, 16, 20]


def test_a_run_that_starts_anew_forgets_the_curves_of_the_one_before(inside: Path) -> None:
    watch(dvclive=True)
    for _ in range(2):
        train.fit(run_config(tokens=3 * 128), Tokens())
    assert tables()["loss"] == [1, 2, 3]


def test_a_file_that_was_cut_before_its_header_was_whole_does_not_matter(project: Path) -> None:
    folder = project / "live" / "plots" / "metrics"
    folder.mkdir(parents=True)
    for name, text in {
        "empty": "",
        "cut": "ste",
        "header": "step\tloss\n",
        "rows": "step\tloss\n1\t5\n2\t4\n3",
    }.items():
        (folder / f"{name}.tsv").write_text(text)
    tracking.forget(project / "live", step=1)
    left = {path.stem: path.read_text() for path in folder.iterdir()}
    assert left == {"header": "step\tloss\n", "rows": "step\tloss\n1\t5\n"}
    tracking.forget(project / "nothing", step=1)


def test_tensorboard_writes_event_files_and_hides_steps_after_the_one_that_it_continues_from(
    project: Path, no_network: list[Any]
) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = tracking.TrackingConfig(save_seconds=1.0, dvclive=False, tensorboard=True)
    for start, steps in ((0, range(1, 8)), (4, range(5, 11))):
        with tracking.trackers(RUN, config, start, 0) as log:
            for step in steps:
                log(step, {"loss": float(step)})
    read = events.EventAccumulator(str(paths.LOGS / "tensorboard" / RUN))
    read.Reload()
    assert [event.step for event in read.Scalars("loss")] == list(range(1, 11))
    assert no_network == []


def test_without_a_tracker_and_in_all_processes_but_the_first_nothing_is_written(project: Path) -> None:
    train.fit(run_config(), Tokens())
    on = tracking.TrackingConfig(save_seconds=1.0, dvclive=True, tensorboard=True)
    with tracking.trackers(RUN, on, 0, rank=1) as log:
        log(1, {"loss": 5.0})
    assert not paths.LOGS.exists()


def test_a_missing_tensorboard_is_an_error_that_says_how_to_install_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    watch(tensorboard=True)
    with pytest.raises(ModuleNotFoundError, match=r"tracking\.tensorboard = true needs .*pip install tensorboard"):
        train.fit(run_config(), Tokens())


def test_the_settings_come_from_the_plan_and_without_one_nothing_is_tracked(project: Path) -> None:
    assert tracking.load() == tracking.TrackingConfig(save_seconds=30.0, dvclive=False, tensorboard=False)
    paths.PARAMS.write_text(
        paths.PARAMS.read_text().replace("save_seconds: 30.0, dvclive: false", "save_seconds: 5.0, dvclive: true")
    )
    plan.write()
    assert tracking.load() == tracking.TrackingConfig(save_seconds=5.0, dvclive=True, tensorboard=False)
