"""The generated parts of README.md: the headline, the stage table and the graph, between markers, never typed."""

import re

from dvc.repo import Repo
from ruamel.yaml import YAML

from smallinit import paths
from smallinit.files import replacing

MARKED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end of generated -->)", re.DOTALL)


class OutOfDate(RuntimeError):
    """README.md has no place for a generated part, or names one that does not exist."""


def headline() -> str:
    """The headline figure and the claims table, from `figures/`."""
    picture = (
        '<p align="center"><img src="figures/summary/headline.svg" width="820" '
        'alt="Held-out loss against model size for each gamma and variant"></p>\n'
    )
    return picture + "\n" + (paths.FIGURES / "summary" / "claims.md").read_text()


def losses() -> str:
    """Held-out losses of the default runs."""
    return (paths.FIGURES / "ladder" / "losses.md").read_text()


def stages() -> str:
    """One row a stage of dvc.yaml."""
    content = YAML(typ="safe", pure=True).load(paths.ROOT / "dvc.yaml")["stages"]
    lines = ["| stage | what it does | notebook |", "| --- | --- | --- |"]
    for name, stage in content.items():
        words = stage["cmd"].replace("${tokenize.notebook}", "02_tokenize").split()  # or 02_stream, in its place
        notebook = f"[{words[4]}](notebooks/{words[4]}.ipynb)" if words[3] == "run" else "–"
        shown = f"`{name}@size-gamma-variant`" if "matrix" in stage else f"`{name}`"
        lines.append(f"| {shown} | {stage['desc']} | {notebook} |")
    return "\n".join(lines) + "\n"


def graph() -> str:
    """`dvc dag` as Mermaid, the runs of a matrix drawn as one node."""
    edges: set[tuple[str, str]] = set()
    for stage, upstream in Repo(str(paths.ROOT)).index.graph.edges:
        edges.add((upstream.name.split("@")[0], stage.name.split("@")[0]))
    content = YAML(typ="safe", pure=True).load(paths.ROOT / "dvc.yaml")["stages"]
    nodes = [
        f'    {name}[["{name}@…"]]' if "matrix" in stage else f"    {name}[{name}]" for name, stage in content.items()
    ]
    arrows = [f"    {upstream} --> {name}" for upstream, name in sorted(edges)]
    return "\n".join(["```mermaid", "flowchart TD", *nodes, *arrows, "```"]) + "\n"


def bench() -> str:
    """Speed, as `make bench` has measured it; imported here, because it needs torch."""
    from smallinit.bench import report

    return report.markdown()


PARTS = {"headline": headline, "losses": losses, "bench": bench, "stages": stages, "graph": graph}


def rendered(text: str) -> str:
    """README's text with every generated part made anew.

    Raises:
        OutOfDate: a marker names a part that does not exist, or a part has no marker.
    """
    found = [match[2] for match in MARKED.finditer(text)]
    if sorted(found) != sorted(PARTS):
        raise OutOfDate(f"README.md marks the generated parts {sorted(found)}, expected {sorted(PARTS)}")
    return MARKED.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}{match[3]}", text)


def refresh() -> None:
    """Write the generated parts into README.md."""
    path = paths.ROOT / "README.md"
    with replacing(path) as temporary:
        temporary.write_text(rendered(path.read_text()))
