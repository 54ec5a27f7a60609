"""Redrawing, in a DVC project of three stages: what is run, what is left alone, and what DVC is told."""

import subprocess
import sys
from pathlib import Path

import pytest

from smallinit import paths, pipeline, redraw

DRAW = """
import pathlib, sys
source, picture = map(pathlib.Path, sys.argv[1:])
with open("log", "a") as log:
    print(picture.name, picture.exists(), file=log)
assert source.read_text() != "broken", "a source that cannot be drawn"
picture.write_text("drawn from " + source.read_text() + pathlib.Path("style").read_text())
"""
STAGE = "  {0}: {{cmd: python draw.py {1} {0}.txt, deps: [{1}], outs: [{0}.txt: {{cache: false}}], meta: {2}}}\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`first` and `second` are redrawn, one from the other; `apart` is redrawn too; `trained` is not."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    stages = [("second", "first.txt"), ("first", "source"), ("apart", "other"), ("trained", "source")]
    lines = [STAGE.format(name, source, f"{{redraw: {str(name != 'trained').lower()}}}") for name, source in stages]
    content = {"dvc.yaml": "stages:\n" + "".join(lines), "draw.py": DRAW, "source": "a", "other": "b", "style": ""}
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    dvc(tmp_path, "init", "--no-scm", "--quiet")
    dvc(tmp_path, "repro", "--quiet")
    (tmp_path / "log").unlink()
    return tmp_path


def dvc(root: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(
        command, cwd=root, env=pipeline.environment(), check=True, capture_output=True, text=True
    ).stdout


def test_what_git_holds_is_drawn_again_in_order_and_nothing_else(project: Path) -> None:
    lock = (project / "dvc.lock").read_bytes()
    redraw.figures(jobs=2)
    drawn = (project / "log").read_text().splitlines()
    assert sorted(drawn) == ["apart.txt False", "first.txt False", "second.txt False"], (
        "without what stood there before"
    )
    assert drawn.index("first.txt False") < drawn.index("second.txt False")
    assert (project / "dvc.lock").read_bytes() == lock


def test_dvc_is_told_of_what_came_out_differently(project: Path) -> None:
    (project / "style").write_text(", larger")
    redraw.figures(jobs=1)
    assert (project / "second.txt").read_text() == "drawn from drawn from a, larger, larger"
    assert "up to date" in dvc(project, "status")


def test_what_fails_is_named_and_does_not_keep_others_from_being_drawn(project: Path) -> None:
    (project / "source").write_text("broken")
    (project / "other").write_text("c")
    with pytest.raises(pipeline.PipelineFailed, match="failed: first; not run because of that: second"):
        redraw.figures(jobs=1)
    assert (project / "apart.txt").read_text() == "drawn from c"
    assert "apart:" not in dvc(project, "status")
