"""The generated parts of README.md: the headline, tables and the graph, between markers, never typed."""

import re
from pathlib import Path

import pandas as pd
from dvc.repo import Repo
from ruamel.yaml import YAML

from smallinit import paths
from smallinit.errors import Refused
from smallinit.files import read_json, replacing

MARKED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end of generated -->)", re.DOTALL)


class OutOfDate(Refused):
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


def cost() -> str:
    """What the tracked runs took: minutes by size, the machines, the versions; from their own records."""
    runs = read_json(paths.PLAN / "runs.json")["runs"]
    rows = []
    for run in runs:
        resolved, small = read_json(paths.PLAN / "runs" / f"{run}.json"), paths.RESULTS / "train" / run
        kind = "with experts" if resolved["model"]["moe"] else "dense"
        metrics, record = read_json(small / "metrics.json"), read_json(small / "provenance.json")
        width = resolved["model"]["d_model"]
        tokens = f"{metrics['tokens'] / 1e6:.1f}"
        rows.append([resolved["size"], width, kind, tokens, record["seconds"] / 60, record["cpu"]])
    table = pd.DataFrame(rows, columns=["size", "d_model", "kind", "tokens", "minutes", "cpu"])
    lines = ["| size | d_model | model | runs | million tokens each | minutes each, least to most |"]
    lines += ["| --- | ---: | --- | ---: | ---: | --- |"]
    for (size, width, kind, tokens), own in table.groupby(["size", "d_model", "kind", "tokens"], sort=False):
        took = f"{own['minutes'].min():.1f}–{own['minutes'].max():.1f}"
        lines.append(f"| {size} | {width} | {kind} | {len(own)} | {tokens} | {took} |")
    pilot = [read_json(path) for path in pilot_records()]
    trials, spent = sum(record["trials"] for record in pilot), sum(record["seconds"] for record in pilot) / 3600
    versions = read_json(paths.RESULTS / "train" / runs[0] / "provenance.json")["versions"]
    said = (
        f"Training took {table['minutes'].sum() / 60:.1f} core-hours, the {trials} trials of the pilot {spent:.1f}; "
        f"one thread a run, two runs side by side, on {', '.join(sorted(table['cpu'].unique()))}. "
        f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}."
    )
    return "\n".join([*lines, "", said]) + "\n"


def pilot_records() -> list[Path]:
    """The records of the pilot's sizes, those in the plan."""
    sizes = read_json(paths.PLAN / "pilot.json")["sizes"]
    return [paths.RESULTS / "pilot" / size / "provenance.json" for size in sizes]


PARTS = {"headline": headline, "losses": losses, "cost": cost, "bench": bench, "stages": stages, "graph": graph}


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
