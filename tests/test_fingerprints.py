"""Fingerprints: prose never changes them, code always does, and they cover exactly the modules that a stage imports."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from smallinit import fingerprints

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
CODE = '''
"""A module."""
import os  # for paths


class Thing:
    """A thing."""

    size = 3

    def grow(self, by: int) -> str:
        """Grow."""
        text = "a # no comment"
        return text * by
'''


# ---------------------------------------------------------------------------------------------------------- source text
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A module."""', '"""Another\n\nmodule."""'),
        ('"""A module."""', ""),
        ("  # for paths", ""),
        ("  # for paths", '  # for \'nothing\' """ at all'),
        ("    size = 3\n", "    size = 3   \n\n\n    # three\n"),
        ('        """Grow."""\n', ""),
        ('"""A thing."""', "'''A thing\n\n    # that grows.\n    '''"),
    ],
)
def test_comments_docstrings_and_blank_lines_do_not_count(old: str, new: str) -> None:
    assert old in CODE and fingerprints.fingerprint(CODE.replace(old, new)) == fingerprints.fingerprint(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("size = 3", "size = 4"),
        ("import os", "import sys"),
        ("by: int", "by: float"),
        ("a # no comment", "a # a comment"),
        ("a # no comment", "a"),
        ("        return text * by", "    return text * by"),
        ("Thing", "Things"),
    ],
)
def test_code_counts_also_what_looks_like_a_comment_in_a_string(old: str, new: str) -> None:
    assert old in CODE and fingerprints.bare_code(CODE.replace(old, new)) != fingerprints.bare_code(CODE)


def test_what_is_left_still_means_the_same() -> None:
    def bare_tree(source: str) -> str:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        return ast.dump(tree)

    for file in sorted(fingerprints.PACKAGE.rglob("*.py")):
        source = file.read_text()
        bare = fingerprints.bare_code(source)
        if any(isinstance(n, ast.ClassDef) and len(n.body) == 1 for n in ast.walk(ast.parse(source))):
            continue  # a class of nothing but a docstring is no Python without it
        assert bare_tree(bare) == bare_tree(source), file


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(
            'x = """a\n\nb"""',
            'x = """a\nb"""',
            id="blank",
        ),
        pytest.param(
            'x = """a  \nb"""',
            'x = """a\nb"""',
            id="space",
        ),
        pytest.param(
            'def f(): "doc"; return 1',
            'def f(): "doc"; return 2',
            id="one line",
        ),
        pytest.param(
            'x = "\u2028"; y = 1\nz = 3  # a',
            'x = "\u2028"; y = 2\nz = 3  # a',
            id="line separator",
        ),
        pytest.param("x = f'{1}#a'", "x = f'{1}#b'", id="f-string"),
    ],
)
def test_a_change_of_code_in_an_unusual_place_counts(old: str, new: str) -> None:
    assert fingerprints.bare_code(old) != fingerprints.bare_code(new)


# -------------------------------------------------------------------------------------------------------------- imports
@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in place of this one: a -> b -> sub.c (inside a function), and d that nothing imports."""
    for name, source in {
        "__init__": "",
        "a": "import numpy\nfrom smallinit import b\n",
        "b": "def f():\n    from smallinit.sub.c import g\n    return g\n",
        "sub/__init__": "",
        "sub/c": "import smallinit.a as again\n",
        "d": "",
    }.items():
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(source)
    monkeypatch.setattr(fingerprints, "PACKAGE", tmp_path)
    return tmp_path


def test_imports_through_modules_functions_and_circles_are_found(package: Path) -> None:
    everything = ["smallinit", "smallinit.a", "smallinit.b", "smallinit.sub", "smallinit.sub.c"]
    for source in ("import smallinit.a", "from smallinit import a", "def f():\n    from smallinit.a import x"):
        assert list(fingerprints.all_modules(source)) == everything
    assert fingerprints.imported_modules("from smallinit import a, d\nimport json, numpy.linalg") == {
        "smallinit",
        "smallinit.a",
        "smallinit.d",
    }
    assert fingerprints.all_modules("import smallinitial\nimport json") == {}


def notebook(package: Path, *cells: nbformat.NotebookNode) -> Path:
    path = package / "05_look.ipynb"
    nbformat.write(new_notebook(cells=list(cells)), path)
    return path


def test_prose_outputs_and_pictures_of_a_notebook_do_not_count(package: Path) -> None:
    plain = fingerprints.code_of(notebook(package, new_code_cell("import smallinit.b\nx = 1")))
    picture = new_code_cell("from smallinit import d", metadata={"tags": ["picture"]})
    shown = new_code_cell(
        "import smallinit.b\n\nx = 1  # one", execution_count=7, outputs=[new_output("stream", text="1")]
    )
    assert fingerprints.code_of(notebook(package, new_markdown_cell("# *x* = 1"), shown, picture)) == plain
    modules = {"smallinit", "smallinit.a", "smallinit.b", "smallinit.sub", "smallinit.sub.c"}
    assert plain.keys() == {"05_look.ipynb"} | modules


@pytest.mark.parametrize("cells", [["x = 2"], ["x = 1", "y = 2"], ["import smallinit.b", "x = 1"]])
def test_code_cells_of_a_notebook_count(package: Path, cells: list[str]) -> None:
    before = fingerprints.code_of(notebook(package, new_code_cell("x = 1")))
    assert fingerprints.code_of(notebook(package, *map(new_code_cell, cells))) != before


def test_a_change_reaches_a_notebook_through_modules_and_others_not_at_all(package: Path) -> None:
    path = notebook(package, new_code_cell("import smallinit.a"))
    before = fingerprints.code_of(path)
    (package / "d.py").write_text("x = 1")
    (package / "sub" / "c.py").write_text("import smallinit.a as again\n# prose\n")
    assert fingerprints.code_of(path) == before
    (package / "sub" / "c.py").write_text("import smallinit.a as again\nx = 1")
    after = fingerprints.code_of(path)
    assert {name for name in before if before[name] != after[name]} == {"smallinit.sub.c"}


# --------------------------------------------------------------------------------------------------- the real notebooks
PRINT_IMPORTED = """
import json, sys
exec(sys.stdin.read())
print(json.dumps(sorted(name for name in sys.modules if name.split(".")[0] == "smallinit")))
"""


@pytest.mark.parametrize("name", ["04_train", "05_evaluate"])
def test_the_fingerprinted_modules_are_those_that_are_really_imported(name: str) -> None:
    code = fingerprints.notebook_code(NOTEBOOKS / f"{name}.ipynb")
    imports = [ast.unparse(node) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
    ended = subprocess.run(
        [sys.executable, "-c", PRINT_IMPORTED], input="\n".join(imports), capture_output=True, text=True, check=True
    )
    listed = fingerprints.code_of(NOTEBOOKS / f"{name}.ipynb").keys() - {f"{name}.ipynb"}
    assert sorted(listed) == json.loads(ended.stdout)
    unwanted = ["smallinit.plots", "smallinit.params", "smallinit.data", "smallinit.pipeline"]
    if name == "04_train":  # evaluation has intervals
        unwanted.append("smallinit.analysis")
    assert not [module for module in listed if module.startswith(tuple(unwanted))]


def saves(cell: str) -> bool:
    calls = [node.func for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Call)]
    names = [call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls]
    trains = "trials.run" in map(ast.unparse, calls)  # it saves what it trains, as launch.launch does
    return trains or any(name.startswith(("save", "write", "launch")) for name in names)


def for_stages(check: Callable[[list[nbformat.NotebookNode]], bool]) -> list[str]:
    """The notebooks with picture cells for whose code cells `check` does not hold."""
    failed, seen = [], 0
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        if any("picture" in cell.metadata.get("tags", []) for cell in cells):
            seen += 1
            failed += [] if check(cells) else [path.name]
    assert seen >= 2
    return failed


def is_picture(cell: nbformat.NotebookNode) -> bool:
    return "picture" in cell.metadata.get("tags", [])


def test_picture_cells_import_nothing_but_plots() -> None:
    def only_plots(cells: list[nbformat.NotebookNode]) -> bool:
        own = [fingerprints.imported_modules(cell.source) - {"smallinit"} for cell in cells if is_picture(cell)]
        return all(module.startswith("smallinit.plots") for modules in own for module in modules)

    assert for_stages(only_plots) == []


def test_picture_cells_come_after_everything_is_saved() -> None:
    def after(cells: list[nbformat.NotebookNode]) -> bool:
        first = next(n for n, cell in enumerate(cells) if is_picture(cell))
        return any(saves(cell.source) for cell in cells[:first]) and not any(
            saves(cell.source) or not is_picture(cell) for cell in cells[first:]
        )

    assert for_stages(after) == []
