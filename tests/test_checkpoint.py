"""Saved states: a damaged one is refused with a reason, and no failure while writing loses the one before."""

import contextlib
import json
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import run_config
from torch import Tensor

from smallinit import checkpoint, paths
from smallinit.parallel import ALONE


def tensors(step: int) -> dict[str, Any]:
    """As many bytes as a file of a small state: 40 kB."""
    return {"model": {"w": torch.full((10_000,), float(step))}, "optimizer": {"lr": 0.1 * step}}


def save(place: Path, step: int, **progress: Any) -> None:
    checkpoint.save(place, tensors(step), {"step": step, **progress}, ALONE)


def load(generation: Path) -> tuple[int, Tensor]:
    """The step that a generation is of, and its weights."""
    into = tensors(0)
    step: int = checkpoint.load(generation, into, ALONE)["step"]
    assert into["optimizer"]["lr"] == 0.1 * step  # what is no tensor comes back too
    return step, into["model"]["w"]


def step_of(place: Path) -> int | None:
    """The step of the newest usable state, whose weights must be those of that step."""
    generation = checkpoint.usable(place)
    if generation is None:
        return None
    step, weights = load(generation)
    assert torch.equal(weights, tensors(step)["model"]["w"])
    return step


def generations(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the states of steps 1 and 2."""
    for step in (1, 2):
        save(tmp_path / "run", step, curve=[[1, 2.5]])
    return tmp_path / "run"


def test_the_newest_state_comes_back_as_it_was(place: Path) -> None:
    newest = checkpoint.usable(place)
    assert newest == place / "newest"
    into = tensors(0)
    assert checkpoint.load(newest, into, ALONE) == {"step": 2, "curve": [[1, 2.5]]}
    assert torch.equal(into["model"]["w"], tensors(2)["model"]["w"])


def test_two_states_are_kept_and_nothing_else(place: Path) -> None:
    save(place, 3)
    assert generations(place) == ["newest", "previous"]
    assert load(place / "previous")[0] == 2


def test_a_state_holds_tensors_progress_and_a_manifest_of_both(place: Path) -> None:
    files = {path.name for path in (place / "newest").iterdir()}
    assert files == {".metadata", "__0_0.distcp", "progress.json", "manifest.json"}
    manifest = json.loads((place / "newest" / "manifest.json").read_text())
    assert manifest["state"] == "run" and set(manifest["files"]) == files - {"manifest.json"}


FILES = [".metadata", "__0_0.distcp", "progress.json", "manifest.json"]


@pytest.mark.parametrize("keep", [0, 10, -1])
@pytest.mark.parametrize("file", FILES)
def test_a_truncated_file_is_refused_and_the_state_before_is_used(
    place: Path, capsys: pytest.CaptureFixture[str], file: str, keep: int
) -> None:
    path = place / "newest" / file
    path.write_bytes(path.read_bytes()[:keep])
    assert step_of(place) == 1
    said = "newest has no readable manifest" if file == "manifest.json" else f"newest is truncated or damaged: {file}"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("file", FILES)
def test_a_lost_file_is_refused_and_without_any_other_there_is_no_state(
    place: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    for name, left in (("newest", 1), ("previous", None)):
        (place / name / file).unlink()
        assert step_of(place) == left
        assert f"state refused: {name} " in capsys.readouterr().err


@pytest.mark.parametrize("file", FILES[:3])
def test_a_flipped_bit_is_noticed(place: Path, file: str) -> None:
    content = bytearray((place / "newest" / file).read_bytes())
    content[len(content) // 2] ^= 1
    (place / "newest" / file).write_bytes(content)
    assert step_of(place) == 1


@pytest.mark.parametrize("content", ["", "garbage", "[]", "{}", '{"state": "run"}', '{"state": "run", "files": []}'])
def test_a_foreign_manifest_is_refused(place: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    (place / "newest" / "manifest.json").write_text(content)
    assert step_of(place) == 1
    assert "state refused: newest " in capsys.readouterr().err


def test_a_state_of_another_run_is_refused_by_its_name(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(place.with_name("other"), 9)
    shutil.rmtree(place / "newest")
    shutil.copytree(place.with_name("other") / "newest", place / "newest")
    assert step_of(place) == 1
    assert "newest is of another run, other" in capsys.readouterr().err


def test_a_file_or_folder_that_does_not_belong_there_is_noticed(place: Path) -> None:
    (place / "newest" / "more").mkdir()
    assert step_of(place) == 1
    (place / "previous" / "more").write_text("")
    assert step_of(place) is None
    shutil.rmtree(place / "newest")
    (place / "newest").write_text("not a folder")
    assert step_of(place) is None


def test_a_damaged_state_does_not_stop_the_next_one_from_being_saved(place: Path) -> None:
    (place / "newest" / "progress.json").unlink()
    save(place, 3)
    assert step_of(place) == 3 and generations(place) == ["newest", "previous"]


def test_no_state_is_no_error(tmp_path: Path) -> None:
    assert checkpoint.usable(tmp_path / "none") is None
    checkpoint.discard(tmp_path / "none")


# ---------------------------------------------------------------------------------------------- failures while writing
@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The operating system refuses to write more than `size` bytes into any one file, as a full disk would."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize(
    ("size", "progress"), [(0, {}), (20_000, {}), (50_000, {"curve": [0.1] * 20_000})], ids=["all", "tensors", "curve"]
)
def test_a_full_disk_is_an_error_and_leaves_the_states_that_are_there(
    place: Path, size: int, progress: dict[str, Any]
) -> None:
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    with files_of_at_most(size), pytest.raises(OSError, match="was not saved, older states are kept; is the disk full"):
        save(place, 3, **progress)
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    assert step_of(place) == 2
    save(place, 4)  # room again
    assert step_of(place) == 4


STEPS = ["tensors written", "progress.json", "manifest.json", "newest -> previous", "incoming -> newest"]


@pytest.mark.parametrize("lived", range(len(STEPS)), ids=STEPS)
def test_a_kill_between_any_two_renames_leaves_the_old_or_the_new_state(
    place: Path, monkeypatch: pytest.MonkeyPatch, lived: int
) -> None:
    """It dies instead of the rename number `lived`, and nothing that a finally clause would do gets done."""
    copies: list[Path] = []
    replace = Path.replace

    def killed(path: Path, target: Path) -> Path:
        if ".metadata" not in target.name:  # of torch
            if len(copies) == lived:
                shutil.copytree(place, place.with_name("killed") / place.name)  # what the dead leave
            copies.append(target)
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        save(place, 3)
    assert len(copies) == 4  # progress, manifest, newest -> previous, incoming -> newest
    left = place if lived == 4 else place.with_name("killed") / place.name
    assert step_of(left) == (3 if lived >= 2 else 2)
    save(left, 4)
    assert step_of(left) == 4 and generations(left) == ["newest", "previous"]
    assert load(left / "previous")[0] == (3 if lived >= 2 else 2)


def test_a_kill_while_the_oldest_state_is_deleted_costs_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(folder: Path, ignore_errors: bool = False) -> None:
        if folder.name == "previous":
            (folder / "manifest.json").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            save(place, 3)
    assert generations(place) == ["incoming", "newest", "previous"] and step_of(place) == 3
    save(place, 4)
    assert step_of(place) == 4 and load(place / "previous")[0] == 3


# ------------------------------------------------------------------------------------------------------ whose state
def test_every_run_corpus_and_code_has_a_folder_of_its_own(project: Path) -> None:
    runs = (run_config(), run_config(gamma=0.5), run_config(adam_eps=1e-8), run_config(seed=1))
    folders = [checkpoint.folder(run, data) for run in runs for data in ("a" * 16, "b" * 16)]
    code = paths.PLAN / "code" / "04_train.json"
    code.parent.mkdir(parents=True)
    code.write_text("{}")
    folders.append(checkpoint.folder(runs[0], "a" * 16))
    assert len(set(folders)) == 9 and all(folder.parent == project / "state" for folder in folders)


def test_the_number_of_processes_does_not_change_the_folder(project: Path) -> None:
    alone, shared = run_config(), run_config(processes=2, strategy="fsdp")
    assert checkpoint.folder(alone, "a") == checkpoint.folder(shared, "a")
