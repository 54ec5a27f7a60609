"""Saved states: a damaged one is refused with a reason, and no failure while writing loses the one before."""

import errno
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import run_config

from smallinit import checkpoint


def state(step: int) -> dict[str, Any]:
    return {"step": step, "model": {"w": torch.full((50,), float(step))}, "curve": [[1, 2.5]]}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the states of steps 1 and 2."""
    for step in (1, 2):
        checkpoint.save(tmp_path, state(step))
    return tmp_path


def step_of(place: Path) -> int | None:
    loaded = checkpoint.load(place)
    return None if loaded is None else loaded["step"]


def test_the_newest_state_comes_back_as_it_was(place: Path) -> None:
    loaded = checkpoint.load(place)
    assert loaded is not None and loaded["step"] == 2 and loaded["curve"] == [[1, 2.5]]
    assert torch.equal(loaded["model"]["w"], state(2)["model"]["w"])


def test_two_states_are_kept_and_nothing_else(place: Path) -> None:
    checkpoint.save(place, state(3))
    assert sorted(path.name for path in place.iterdir()) == ["newest.pt", "previous.pt"]
    assert checkpoint.read(place / "previous.pt")["step"] == 2


def foreign() -> bytes:
    buffer = io.BytesIO()
    torch.save(state(9), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("keep", [0, 10, 40, -1, -33])
def test_a_truncated_state_is_refused_and_the_one_before_is_used(
    place: Path, capsys: pytest.CaptureFixture[str], keep: int
) -> None:
    newest = place / "newest.pt"
    newest.write_bytes(newest.read_bytes()[:keep])
    assert step_of(place) == 1
    assert "newest.pt is truncated or damaged" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"garbage" * 100, foreign()], ids=["empty", "garbage", "foreign"])
def test_a_foreign_file_is_refused_and_without_any_other_there_is_no_state(
    place: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (place / "newest.pt").write_bytes(content)
    assert step_of(place) == 1
    (place / "previous.pt").write_bytes(content)
    assert step_of(place) is None
    assert "previous.pt is truncated or damaged" in capsys.readouterr().err


def test_a_flipped_bit_is_noticed(place: Path) -> None:
    content = bytearray((place / "newest.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (place / "newest.pt").write_bytes(content)
    assert step_of(place) == 1


def test_no_state_is_no_error(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path / "none") is None
    checkpoint.discard(tmp_path / "none")


def test_a_full_disk_leaves_the_states_that_are_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bytes = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        write_bytes(path, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(place, state(3))
    assert sorted(path.name for path in place.iterdir()) == ["newest.pt", "previous.pt"]
    assert step_of(place) == 2 and checkpoint.read(place / "previous.pt")["step"] == 1


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_kill_between_any_two_renames_leaves_the_old_or_the_new_state(
    place: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    replace, done = Path.replace, []

    def killed(path: Path, target: Path) -> Path:
        if len(done) == renames:
            raise KeyboardInterrupt
        done.append(target)
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(place, state(3))
    assert step_of(place) == (3 if renames else 2)
    checkpoint.save(place, state(4))
    assert step_of(place) == 4 and not (place / "incoming.pt").exists()


def test_every_run_and_corpus_has_a_folder_of_its_own(project: Path) -> None:
    folders = [
        checkpoint.folder(run, data)
        for run in (run_config(), run_config(gamma=0.5), run_config(adam_eps=1e-8), run_config(seed=1))
        for data in ("a" * 64, "b" * 64)
    ]
    assert len(set(folders)) == 8 and all(folder.parent == project / "state" for folder in folders)
