"""The repository as it is checked in: notebooks, README, environment, and tracked results that fit code and values."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import micro
import nbformat
import pytest
from ruamel.yaml import YAML

from smallinit import params, paths, readme
from smallinit.pipeline import Graph

ROOT = micro.REPOSITORY
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TOKENIZERS = get_args(params.TokenizeParams.model_fields["notebook"].annotation)  # which of them, params.yaml says
STAGES = YAML(typ="safe", pure=True).load(ROOT / "dvc.yaml")["stages"]


def cells(notebook: Path, kind: str) -> list[str]:
    return [cell.source for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == kind]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_source_notebooks_are_sources(notebook: Path) -> None:
    """No outputs, no counts, short code cells, and a word on what to try at the end."""
    content = nbformat.read(notebook, as_version=4)
    nbformat.validate(content)
    for cell in content.cells:
        if cell.cell_type == "code":
            assert not cell.outputs and cell.execution_count is None, cell.id
            assert len(cell.source.splitlines()) <= 16, cell.id
    assert "Try this" in content.cells[-1].source


def test_every_notebook_is_a_stage_that_depends_on_its_code() -> None:
    for notebook in NOTEBOOKS:

        def chosen(text: str, name: str = notebook.stem) -> str:
            return text.replace("${tokenize.notebook}", name if name in TOKENIZERS else "-")

        own = [stage for stage in STAGES.values() if f"run {notebook.stem}" in chosen(stage["cmd"])]
        assert len(own) == 1, notebook.stem
        assert f"results/plan/code/{notebook.stem}.json" in map(chosen, own[0]["deps"])


def test_named_stages_and_commands_exist() -> None:
    """What README and notebooks tell people to type."""
    texts = [(ROOT / "README.md").read_text(), *("\n".join(cells(path, "markdown")) for path in NOTEBOOKS)]
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for text in texts:
        for name in re.findall(r"dvc repro ([a-z]+)", text):
            assert name in STAGES, name
        for name in re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE):
            assert name in targets, name


def test_readme_parts_are_current() -> None:
    """Headline, tables and graph in README.md are those of figures/ and dvc.yaml: `make readme` refreshes them."""
    text = (ROOT / "README.md").read_text()
    assert readme.rendered(text) == text


def test_environment_is_pinned_and_installed() -> None:
    """environment.yml is the one list: every entry has a version, and this environment has that version."""
    sections = YAML(typ="safe", pure=True).load(ROOT / "environment.yml")["dependencies"]
    packages = next(section["pip"] for section in sections if isinstance(section, dict))
    assert packages[-1] == "-e ."
    for entry in packages[:-1]:
        name, _, pinned = entry.partition("==")
        assert version(name).split("+")[0] == pinned


def test_tracked_results_fit_code_and_values() -> None:
    """`dvc status`: nothing has changed but data that git does not hold."""
    graph = Graph(ROOT, [])
    assert [name for name in graph.stages if graph.changed(name)] == []


def test_figures_redraw_to_the_same_bytes(tmp_path: Path) -> None:
    """All figures, tables, the summary and its notebooks from what git holds, in a folder with nothing else."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    copy = micro.Project(tmp_path, tmp_path / "none")
    copy.git("init", "--quiet")
    before = copy.files("figures", "results")
    assert len(before) > 100
    copy.smallinit("figures", "--jobs", "2")
    after = copy.files("figures", "results")
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == set()


def test_commands_explain_themselves() -> None:
    done = subprocess.run([sys.executable, "-m", "smallinit", "--help"], capture_output=True, text=True, check=True)
    for word in ("plan", "run", "repro", "figures", "readme"):
        assert re.search(rf"^\s+{word}\s+\S", done.stdout, re.MULTILINE), word


def test_paths_find_the_root_from_below() -> None:
    assert paths.find_root(ROOT / "notebooks") == ROOT
    assert paths.find_root(ROOT / "src" / "smallinit" / "data") == ROOT
