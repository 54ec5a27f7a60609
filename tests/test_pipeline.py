"""The pipeline as its users meet it, in a micro project: promises 1-3, 7, 9, 11, 13, 17, 19 and 21 of the design."""

import re
from pathlib import Path

import micro
import nbformat
import pytest
from ruamel.yaml import YAML

RUNS = [f"{size}-{gamma}-both" for size in ("xs", "s") for gamma in ("0.5", "1.0")]
NOTEBOOKS = sorted(path.stem for path in (micro.REPOSITORY / "notebooks").glob("*.ipynb"))
STAGES = YAML(typ="safe", pure=True).load(micro.REPOSITORY / "dvc.yaml")["stages"]
DRAWING = {name for name, stage in STAGES.items() if stage.get("meta", {}).get("redraw")}
COMPARING = {name for name in DRAWING if "results/plan/runs" in STAGES[name]["deps"]}
OF_A_RUN = ("train", "evaluate", "benchmark")


@pytest.fixture
def project(built: micro.Project, tmp_path: Path) -> micro.Project:
    """A copy of the built project, to be broken by one test."""
    return built.copy(tmp_path / "copy")


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
    assert certain == {f"{stage}@{run}" for stage in OF_A_RUN for run in own} | COMPARING
    assert possible <= COMPARING


def test_a_changed_gamma_reruns_that_gamma(project: micro.Project) -> None:
    """One gamma becomes another: its runs are new, those of the other gamma stay."""
    project.set_params(
        runs=[run.replace("-1.0-", "-0.9-") for run in RUNS],
        snapshots=[],
        train={"peak_lrs": [{"gamma": 0.5, "peak_lr": 8e-3}, {"gamma": 0.9, "peak_lr": 4e-3}]},
    )
    new = {f"{size}-0.9-both" for size in ("xs", "s")}
    kept = {f"{stage}@s-0.5-both" for stage in OF_A_RUN}  # which has no snapshots any more
    assert project.would_run() == {f"{stage}@{run}" for stage in OF_A_RUN for run in new} | kept | COMPARING


def test_plain_dvc_agrees_with_the_plan(project: micro.Project) -> None:
    """`dvc repro --dry` after the one-second stage says the same; the other size is not planned."""
    project.set_params(sizes={"s": {"tokens": 4096}})
    project.dvc("repro", "--single-item", "plan")
    planned = set(re.findall(r"Running stage '(\S+)'", project.dvc("repro", "--dry").stdout))
    own = {run for run in RUNS if run.startswith("s-")}
    assert planned == {f"{stage}@{run}" for stage in OF_A_RUN for run in own} | COMPARING


def test_clone_is_clean_and_plans_missing_data_only(built: micro.Project, tmp_path: Path) -> None:
    """Promise 2, and figures from git alone: the same bytes."""
    clone = built.clone(tmp_path / "clone")
    assert "nothing to run" in clone.smallinit("repro", "--dry").stdout
    assert "Running stage" not in clone.dvc("repro", "--dry", "--allow-missing").stdout
    planned = set(re.findall(r"Running stage '([^'@]+)", clone.dvc("repro", "--dry").stdout))
    assert planned == {"fetch", "items", "tokenize", "train"}  # what makes the data that git does not hold
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
        assert not re.search(r"(?<!\\)(\\\\)*\\r", text), f"{name} has a carriage return"  # but \\rVert in a formula
        assert len(content) < 1_000_000, name
        for unwanted in (
            str(built.root),
            str(Path.home()),
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
