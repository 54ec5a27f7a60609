"""What code a stage runs: fingerprints of a notebook's code cells and of the modules that they import.

Comments, docstrings and pictures do not count, so that prose can be improved without retraining.
"""

import ast
import functools
import hashlib
import io
import json
import tokenize
from collections.abc import Iterator
from pathlib import Path

import nbformat

from smallinit import paths
from smallinit.errors import Refused

PACKAGE = Path(__file__).parent


class StalePlan(Refused):
    """The plan on disk is not that of the code as it is now."""


def bare_code(source: str) -> str:
    """`source` without comments, docstrings, blank lines and trailing space: its text for the interpreter.

    Works on the text and not on a dumped syntax tree, so that all Python versions agree. Lines inside other string
    literals stay as they are.
    """
    lines = source.split("\n")
    tree = ast.parse(source)
    docstrings = list(docstrings_of(tree))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    literal: set[int] = set()  # rows whose end lies inside a string
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.Constant) and node not in docstrings:
            literal |= set(range(node.lineno, node.end_lineno or node.lineno))
    for node in docstrings:
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        before = lines[first].encode()[: node.col_offset].decode()  # the syntax tree counts bytes
        after = lines[last].encode()[node.end_col_offset :].decode()
        lines[first : last + 1] = [before + after] + [""] * (last - first)
    kept = [
        line if row in literal else line.rstrip() for row, line in enumerate(lines, 1) if line.strip() or row in literal
    ]
    return "\n".join(kept) + "\n"


def docstrings_of(tree: ast.Module) -> Iterator[ast.Constant]:
    """The docstrings of a module, its classes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield first.value


@functools.cache  # notebooks share most of their modules
def fingerprint(source: str) -> str:
    """SHA-256 of the bare code."""
    return hashlib.sha256(bare_code(source).encode()).hexdigest()


def module_file(name: str) -> Path | None:
    """The file of `smallinit.a.b`, a module or a package, or None if there is no such module."""
    place = PACKAGE.joinpath(*name.split(".")[1:])
    return next((p for p in (place.with_suffix(".py"), place / "__init__.py") if p.is_file()), None)


def imported_modules(source: str) -> set[str]:
    """Modules of this package that `source` imports directly, the packages around them included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    own = {name for name in names if name.split(".")[0] == "smallinit"}
    around = {".".join(name.split(".")[:depth]) for name in own for depth in range(1, name.count(".") + 2)}
    return {name for name in around if module_file(name)}


def all_modules(source: str) -> dict[str, Path]:
    """Modules of this package that `source` imports directly or through others, by name."""
    found: dict[str, Path] = {}
    waiting = imported_modules(source)
    while waiting:
        name = waiting.pop()
        file = module_file(name)
        assert file is not None
        found[name] = file
        waiting |= imported_modules(file.read_text()) - found.keys()
    return dict(sorted(found.items()))


def notebook_code(notebook: Path) -> str:
    """The code cells of a notebook, one after the other.

    Cells tagged `picture` only show what a stage has already saved: they do not count, so that a plot retrains nothing.
    """
    cells = nbformat.read(notebook, as_version=4).cells
    code = [
        cell.source for cell in cells if cell.cell_type == "code" and "picture" not in cell.metadata.get("tags", [])
    ]
    return "\n".join(code) + "\n"


def code_of(notebook: Path) -> dict[str, str]:
    """What a stage runs: fingerprints of the notebook's code and of each module that it imports."""
    code = notebook_code(notebook)
    modules = {name: fingerprint(file.read_text()) for name, file in all_modules(code).items()}
    return {notebook.name: fingerprint(code), **modules}


def check(notebook: str, now: dict[str, str]) -> None:
    """Refuse to run a notebook whose code is not the one in the plan (`dvc repro -s` skips the stage `plan`).

    Args:
        notebook: its name, for instance 04_train.
        now: its code as it is, of `code_of`.

    Raises:
        StalePlan: naming what has changed.
    """
    written = paths.PLAN / "code" / f"{notebook}.json"
    known = json.loads(written.read_text()) if written.exists() else {}
    changed = sorted(name for name in known.keys() | now.keys() if known.get(name) != now.get(name))
    if changed:
        raise StalePlan(f"{', '.join(changed)} changed since the plan was written: run `dvc repro plan` first")
