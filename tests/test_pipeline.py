"""The pipeline as its users meet it, in a micro project: promises 1-4, 6, 7, 9-13, 15-19 and 21 of the design."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import micro
import nbformat
import pandas as pd
import pytest

RUNS = [f"{size}-{gamma}-both" for size in ("xs", "s") for gamma in ("0.5", "1.0")]
NOTEBOOKS = sorted(path.stem for path in (micro.REPOSITORY / "notebooks").glob("*.ipynb"))
DRAWING = {"corpus", "ladder", "theory", "summary"}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> micro.Project:
    """A micro project whose whole pipeline has run once, two stages at a time, from a bare clone without a cache."""
    project = micro.create(tmp_path_factory.mktemp("micro"))
    blocker = tmp_path_factory.mktemp("blocker")
    (blocker / "sitecustomize.py").write_text(NO_NETWORK)
    refused = blocker / "refused.txt"
    path = os.pathsep.join([str(blocker), str(project.root / "src")])
    log = project.smallinit("repro", "--jobs", "2", PYTHONPATH=path, REFUSED=str(refused)).stdout
    project.log, project.refused = log, refused  # type: ignore[attr-defined]
    project.changed_by_run = project.git("status", "--porcelain").splitlines()  # type: ignore[attr-defined]
    project.git("add", "--all")
    project.git("commit", "--quiet", "--message", "results")
    return project


@pytest.fixture
def project(built: micro.Project, tmp_path: Path) -> micro.Project:
    """A copy of the built project, to be broken by one test."""
    return built.copy(tmp_path / "copy")


# Connections to other machines are refused and noted; kernels talk over files or loopback.
NO_NETWORK = """
import os, socket
connect = socket.socket.connect
def guarded(self, address):
    if self.family != socket.AF_UNIX and not str(address[0]).startswith(("127.", "::1", "localhost")):
        open(os.environ["REFUSED"], "a").write(f"{address}\\n")
        raise ConnectionRefusedError(f"no network in this test: {address}")
    return connect(self, address)
socket.socket.connect = guarded
lookup = socket.getaddrinfo
def no_lookup(host, *rest, **more):
    if host not in (None, "localhost", "127.0.0.1", "::1", socket.gethostname()):
        open(os.environ["REFUSED"], "a").write(f"{host}\\n")
        raise socket.gaierror(f"no network in this test: {host}")
    return lookup(host, *rest, **more)
socket.getaddrinfo = no_lookup
"""


def test_whole_pipeline_runs_from_a_bare_clone(built: micro.Project) -> None:
    """Promises 9 and 19: every stage has run, every notebook was executed, figures and tables are there."""
    executed = {
        path.stem if path.parent.name == "notebooks" else path.parent.name
        for path in (built.root / "results" / "notebooks").rglob("*.ipynb")
    }
    assert executed == set(NOTEBOOKS) - {"02_stream"}  # which takes the place of 02_tokenize: see test_stream
    for name in ("summary/headline.svg", "summary/headline.png", "summary/claims.md", "ladder/losses.csv"):
        assert (built.root / "figures" / name).stat().st_size > 100
    assert "nothing to run" in built.smallinit("repro", "--dry").stdout


def test_default_path_touches_no_network(built: micro.Project) -> None:
    """Promise 21: with the archives present, no connection was even tried."""
    assert not built.refused.exists(), built.refused.read_text()  # type: ignore[attr-defined]


def test_run_changes_results_figures_and_the_lock_only(built: micro.Project) -> None:
    """Promise 13."""
    changed = {line[3:].split("/")[0] for line in built.changed_by_run}  # type: ignore[attr-defined]
    assert changed == {"dvc.lock", "results", "figures"}


def test_stage_names_are_readable(built: micro.Project) -> None:
    """Promise 7: size-gamma-variant, in the same words as the files."""
    stages = {line.split()[0] for line in built.dvc("stage", "list", "--name-only").stdout.splitlines()}
    assert {f"train@{run}" for run in RUNS} | {f"evaluate@{run}" for run in RUNS} < stages
    assert {path.name for path in (built.root / "results" / "train").iterdir()} == set(RUNS)


def test_prose_and_outputs_retrain_nothing(project: micro.Project) -> None:
    """Promise 1: editing Markdown, saving with outputs, and comments in training code."""
    project.edit_cell("04_train", "title", "# Another title\n\nand other prose")
    path = project.root / "notebooks" / "04_train.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = 7
            cell.outputs = [nbformat.v4.new_output("stream", text="run by hand\n")]
    nbformat.write(notebook, path)
    project.edit("src/smallinit/model.py", "class SwiGLU(nn.Module):\n", "class SwiGLU(nn.Module):  # a remark\n")
    assert project.would_run() == set()


def test_code_retrains(project: micro.Project) -> None:
    """The other side of promise 1: what training runs does make it stale, in notebook and modules."""
    project.edit("src/smallinit/optimizer.py", "0.5 * (1 + math.cos", "0.25 * (1 + math.cos")
    assert {f"train@{run}" for run in RUNS} <= project.would_run()


def test_a_plot_redraws_and_retrains_nothing(project: micro.Project) -> None:
    """Promise 11."""
    project.edit("src/smallinit/plots/style.py", '"savefig.dpi": 150', '"savefig.dpi": 151')
    assert project.would_run() == DRAWING


def test_a_changed_size_reruns_that_size(project: micro.Project) -> None:
    """Narrow parameters: tokens of one size, and nothing of the other."""
    project.set_params(sizes={"s": {"tokens": 4096}})
    out = project.smallinit("repro", "--dry").stdout
    certain = set(re.findall(r"^would run: (\S+)", out, re.MULTILINE))
    possible = set(re.findall(r"^would run if what it reads changes: (\S+)", out, re.MULTILINE))
    own = {run for run in RUNS if run.startswith("s-")}
    assert certain == {f"{stage}@{run}" for stage in ("train", "evaluate") for run in own} | {"ladder", "summary"}
    assert possible <= {"ladder", "summary"}


def test_a_changed_gamma_reruns_that_gamma(project: micro.Project) -> None:
    """One gamma of the grid becomes another: its runs are new, those of the other gamma stay."""
    project.set_params(
        ladder={"gammas": [0.5, 0.9]},
        train={"peak_lrs": [{"gamma": 0.5, "peak_lr": 8e-3}, {"gamma": 0.9, "peak_lr": 4e-3}]},
    )
    new = {f"{size}-0.9-both" for size in ("xs", "s")}
    assert project.would_run() == {f"{stage}@{run}" for stage in ("train", "evaluate") for run in new} | {
        "ladder",
        "summary",
    }


def test_plain_dvc_agrees_with_the_plan(project: micro.Project) -> None:
    """`dvc repro --dry` after the one-second stage says the same; the other size is not planned."""
    project.set_params(sizes={"s": {"tokens": 4096}})
    project.dvc("repro", "--single-item", "plan")
    planned = set(re.findall(r"Running stage '(\S+)'", project.dvc("repro", "--dry").stdout))
    own = {run for run in RUNS if run.startswith("s-")}
    assert planned == {f"{stage}@{run}" for stage in ("train", "evaluate") for run in own} | {"ladder", "summary"}


def test_clone_is_clean_and_plans_missing_data_only(built: micro.Project, tmp_path: Path) -> None:
    """Promise 2, and figures from git alone: the same bytes."""
    clone = built.clone(tmp_path / "clone")
    assert "nothing to run" in clone.smallinit("repro", "--dry").stdout
    assert "Running stage" not in clone.dvc("repro", "--dry", "--allow-missing").stdout
    planned = set(re.findall(r"Running stage '([^'@]+)", clone.dvc("repro", "--dry").stdout))
    assert planned == {"fetch", "tokenize", "train"}  # what makes the data that git does not hold
    assert clone.git("status", "--porcelain") == ""
    clone.smallinit("figures")
    assert clone.git("status", "--porcelain") == ""


def test_clone_restores_only_what_a_change_needs(built: micro.Project, tmp_path: Path) -> None:
    """An empty cache and one changed run: tokens are made again, no other run is trained."""
    clone = built.clone(tmp_path / "clone")
    clone.set_params(sizes={"s": {"tokens": 4096}})
    log = clone.smallinit("repro", "train@s-1.0-both").stdout
    started = re.findall(r"\] (\S+) starts", log)
    assert started == ["fetch", "tokenize", "train@s-1.0-both"]
    clone.set_params(evaluate={"tokens": 2048})
    log = clone.smallinit("repro", "evaluate@xs-1.0-both").stdout
    assert re.findall(r"\] (\S+) starts", log) == [
        "train@xs-1.0-both",
        "evaluate@xs-1.0-both",
    ]  # its weights are missing


def test_tokens_of_another_corpus_are_refused(project: micro.Project) -> None:
    """Training depends on the receipt of the tokens: tokens that do not fit it must not be used."""
    project.edit("data/tokens/manifest.json", '"seed": 0', '"seed": 1')
    done = project.smallinit("run", "05_evaluate", "s-1.0-both", check=False)
    assert done.returncode == 1 and "dvc repro tokenize" in done.stdout


def test_forced_stages_give_the_same_bytes(project: micro.Project) -> None:
    """Promise 3: executed notebooks, figures and measures; only provenance (wall time) may differ."""
    before = project.files("results", "figures")
    for stage in ("tokenize", "train@s-1.0-both", "evaluate@s-1.0-both", "ladder", "theory", "summary"):
        project.dvc("repro", "--single-item", "--force", stage)
    after = project.files("results", "figures")
    assert before.keys() == after.keys()
    differing = {name for name in before if before[name] != after[name]}
    assert differing <= {"results/train/s-1.0-both/provenance.json"}


def test_executed_notebooks_name_no_machine(built: micro.Project) -> None:
    """Promises 3 and 17: no absolute path, no timing metadata, small, no carriage returns, no widgets."""
    for name, content in built.files("results/notebooks").items():
        text = content.decode()
        assert len(content) < 1_000_000, name
        for unwanted in (
            str(built.root),
            str(Path.home()),
            "\\r",
            "application/vnd.jupyter.widget",
            "start_time",
            'papermill"',
            " ETA ",
        ):
            assert unwanted not in text, f"{name} has {unwanted!r}"


def test_logs_are_short_and_show_time_left(built: micro.Project) -> None:
    """Promise 17."""
    for log in (built.root / "logs").glob("*.log"):
        assert len(log.read_text().splitlines()) < 120, log.name
    assert re.search(r"\] train@s-1.0-both starts", built.log)  # type: ignore[attr-defined]


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
    project.set_params(ladder={"sizes": ["xs"]})
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
    assert not list((project.root / "state").glob("*"))
    project.dvc("repro", "--single-item", "--force", stage)
    assert weights.read_bytes() == continued


def test_profile_leaves_tracked_results_alone(project: micro.Project) -> None:
    """A profile works in a folder of its own."""
    (project.root / "profiles" / "tiny.yaml").write_text("ladder: {sizes: [xs]}\nsizes: {xs: {tokens: 2048}}\n")
    before = project.files("results", "figures")
    started = time.monotonic()
    project.smallinit("repro", "corpus", "--profile", "tiny")
    assert time.monotonic() - started < 120
    assert project.files("results", "figures") == before
    assert (project.root / "workspaces" / "tiny" / "figures" / "corpus").is_dir()
    project.git("add", "profiles")
    assert project.git("status", "--porcelain").splitlines() == ["A  profiles/tiny.yaml"]
