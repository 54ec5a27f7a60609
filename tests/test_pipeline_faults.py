"""The pipeline when somebody pulls at it: promises 4-6, 8, 10, 12, 15, 16, 18 and 20 of the design."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import micro
import pandas as pd
import pytest


@pytest.fixture
def project(built: micro.Project, tmp_path: Path) -> micro.Project:
    """A copy of the built project, to be broken by one test."""
    return built.copy(tmp_path / "copy")


def test_independent_runs_side_by_side(project: micro.Project) -> None:
    """Promise 4: two plain `dvc repro -s` at once."""
    pair = ["train@s-0.5-both", "train@s-1.0-both"]
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "--single-item", "--force"]
    started = [
        subprocess.Popen([*command, name], cwd=project.root, env=project.environment(), stdout=subprocess.DEVNULL)
        for name in pair
    ]
    assert [process.wait() for process in started] == [0, 0]
    changed = project.dvc("status", *pair).stdout
    assert "up to date" in changed


def test_a_run_of_two_processes_is_a_stage_like_any_other(project: micro.Project) -> None:
    """Promise 20 through the pipeline: the notebook starts torchrun; losses are those of one process."""
    losses = project.root / "results" / "train" / "xs-1.0-both" / "heldout.csv"
    one = pd.read_csv(losses)
    project.set_params(train={"processes": 2, "micro_batch": 8})
    project.dvc("repro", "train@xs-1.0-both")
    assert json.loads((losses.parent / "provenance.json").read_text())["processes"] == 2
    assert pd.read_csv(losses)["loss"].to_numpy() == pytest.approx(one["loss"].to_numpy(), rel=1e-4)
    assert "train@xs-1.0-both" not in project.dvc("status").stdout


def test_removed_run_leaves_the_tables(project: micro.Project) -> None:
    """Promise 6: its rows are gone, its folder is named."""
    project.set_params(runs=["xs-0.5-both", "xs-1.0-both"], snapshots=[])
    project.smallinit("repro", "ladder", "summary")
    assert "s-1.0-both" in (project.root / "results" / "train").joinpath("s-1.0-both").name
    table = (project.root / "figures" / "ladder" / "losses.csv").read_text()
    assert not re.search(r"^s,", table, re.MULTILINE)
    assert re.search(r"^xs,", table, re.MULTILINE)
    notebook = (project.root / "results" / "notebooks" / "10_ladder.ipynb").read_text()
    assert "left out: results of s-1.0-both" in notebook


def test_droppings_make_nothing_stale(project: micro.Project) -> None:
    """Promise 10."""
    for folder in (
        "notebooks",
        "src/smallinit",
        "results/plan",
        "results/train/s-1.0-both",
        "data/tokens",
        "figures/ladder",
    ):
        for name in ("__pycache__/x.pyc", ".ipynb_checkpoints/04_train-checkpoint.ipynb", ".DS_Store"):
            path = project.root / folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("dropped")
    assert "up to date" in project.dvc("status").stdout
    assert project.git("status", "--porcelain") == ""


def test_failed_stage_leaves_git_clean(project: micro.Project) -> None:
    """Promise 12: no data path, no ignore file, no half-written output shows up."""
    for archive in (project.root / "data" / "archives").iterdir():
        archive.unlink()
        archive.write_bytes(b"damaged")
    done = project.dvc("repro", "--single-item", "--force", "tokenize", check=False)
    assert done.returncode != 0
    shown = project.git("status", "--porcelain")
    assert "data/" not in shown and ".gitignore" not in shown and "models/" not in shown


def test_typo_in_params_stops_before_anything_runs(project: micro.Project) -> None:
    """Promise 8, end to end."""
    project.edit("params.yaml", "grad_clip:", "grad_clp:")
    done = project.smallinit("repro", check=False)
    assert done.returncode != 0
    assert "train.grad_clp" in done.stdout and "train.grad_clip" in done.stdout
    assert "Traceback" not in done.stdout


def test_other_kernels_do_not_matter(project: micro.Project, tmp_path: Path) -> None:
    """Promise 15: a `python3` kernel that cannot work is first on the Jupyter path."""
    spec = tmp_path / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["/bin/false"], "display_name": "broken", "language": "python"}))
    project.smallinit("run", "03_corpus", JUPYTER_PATH=str(tmp_path))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise SystemExit(0)", "SystemExit"),
        ("import os\nos.kill(os.getpid(), 9)", "kernel died"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_partial_success_is_failure(project: micro.Project, source: str, words: str) -> None:
    """Promise 16: non-zero exit, the log is kept and named, the last good copy stays."""
    good = (project.root / "results" / "notebooks" / "03_corpus.ipynb").read_bytes()
    path = project.root / "notebooks" / "03_corpus.ipynb"
    first = next(cell["id"] for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code")
    project.edit_cell("03_corpus", first, source)
    project.smallinit("plan")
    done = project.smallinit("run", "03_corpus", check=False)
    assert done.returncode == 1
    assert words in done.stdout and "logs/03_corpus.log" in done.stdout
    assert (project.root / "logs" / "03_corpus.log").exists()
    assert (project.root / "results" / "notebooks" / "03_corpus.ipynb").read_bytes() == good


def test_stale_plan_is_refused(project: micro.Project) -> None:
    """`dvc repro -s` skips the stage `plan`: running old fingerprints with new code must not happen."""
    project.edit("src/smallinit/plots/style.py", '"savefig.dpi": 150', '"savefig.dpi": 151')
    done = project.dvc("repro", "--single-item", "--force", "corpus", check=False)
    assert done.returncode != 0 and "dvc repro plan" in done.stdout


@pytest.mark.parametrize("place", ["notebooks", "/"])
def test_notebook_runs_from_any_folder(project: micro.Project, place: str) -> None:
    """Promise 18: as in JupyterLab, whose kernels start beside the notebook, and from outside of the project."""
    before = project.files("figures/corpus")
    source = project.root / "notebooks" / "03_corpus.ipynb"
    code = (
        "import nbformat, sys; from nbclient import NotebookClient; "
        f"nb = nbformat.read({str(source)!r}, 4); "
        f"NotebookClient(nb, kernel_name='python3', "
        f"resources={{'metadata': {{'path': {str(project.root / place)!r}}}}}).execute()"
    )
    project.run(sys.executable, "-c", code)
    assert project.files("figures/corpus") == before


def test_interrupted_run_continues(project: micro.Project) -> None:
    """Promise 5, end to end: SIGTERM to the pipeline, then the same command again; the weights are those of one go."""
    # Many small steps: the run must still be going when the signal arrives, however fast the machine.
    project.set_params(sizes={"s": {"tokens": 65536}}, train={"batch_tokens": 32, "micro_batch": 1})
    run, stage = "s-1.0-both", "train@s-1.0-both"
    command = [sys.executable, "-m", "smallinit", "repro", stage]
    process = subprocess.Popen(
        command,
        cwd=project.root,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"{run}:"):
            process.send_signal(signal.SIGTERM)
            break
    message = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert "Interrupted" in message and "run the same command again" in message
    assert len(list((project.root / "state").glob(f"{run}-*"))) == 1
    project.smallinit("repro", stage)
    weights = project.root / "models" / run / "model.safetensors"
    continued = weights.read_bytes()
    assert not list((project.root / "state").glob(f"{run}-*"))
    project.dvc("repro", "--single-item", "--force", stage)
    assert weights.read_bytes() == continued


def test_profile_leaves_tracked_results_alone(project: micro.Project) -> None:
    """A profile works in a folder of its own."""
    (project.root / "profiles" / "tiny.yaml").write_text("runs: [xs-0.5-both]\nsnapshots: []\n")
    before = project.files("results", "figures")
    started = time.monotonic()
    project.smallinit("repro", "corpus", "--profile", "tiny")
    assert time.monotonic() - started < 120
    assert project.files("results", "figures") == before
    assert (project.root / "workspaces" / "tiny" / "figures" / "corpus").is_dir()
    project.git("add", "profiles")
    assert project.git("status", "--porcelain").splitlines() == ["A  profiles/tiny.yaml"]
