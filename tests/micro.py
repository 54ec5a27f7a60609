"""A whole project in miniature: this repository's code and notebooks on made-up texts, with models of a few thousand
numbers. Everything runs through the real commands, in a git repository of its own, without a network."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_archives
import fake_benchmarks
from ruamel.yaml import YAML

from smallinit.pipeline import merged

REPOSITORY = Path(__file__).resolve().parents[1]
SIZE = {"n_layers": 2, "tokens": 8192}
OVERLAY: dict[str, Any] = {
    "corpus": "default",
    "runs": ["xs-0.5-both", "xs-1.0-both", "s-0.5-both", "s-1.0-both"],
    "snapshots": ["s-0.5-both", "s-1.0-both"],
    "sizes": {
        "xs": {"d_model": 16, "n_heads": 1, "d_ff": 40, "d_ref": 768, **SIZE},
        "s": {"d_model": 32, "n_heads": 2, "d_ff": 80, "d_ref": 1024, **SIZE},
    },
    "model": {"seq_len": 32},
    "train": {
        "batch_tokens": 512,
        "micro_batch": 16,
        "precision": "float32",
        "eval_tokens": 512,
        "eval_every": 4,
        "compile": False,
        "peak_lrs": [{"gamma": 0.5, "peak_lr": 8e-3}, {"gamma": 1.0, "peak_lr": 4e-3}],
    },
    "tracking": {"dvclive": False},
    "evaluate": {"tokens": 4096, "slice_tokens": 1024, "attention_windows": 4},
    "benchmarks": {"items": 4, "micro_batch": 16, "arithmetic": {"per_level": 1}, "generate": {"max_tokens": 8}},
    "pilot": {
        **{"sizes": ["xs"], "tokens": 2048, "eval_tokens": 512, "peak_lrs": [8e-3, 1.6e-2]},
        **{"arms": ["xs-0.5-both", "xs-1.0-both"], "batches": {"arms": [], "batch_tokens": []}},
    },
    "anchor": {
        **{"gammas": [0.5, 1.0], "seeds": 2, "d_model": 16, "d_ff": 32, "n_layers": 1},
        **{"embedding_mlp": {"steps": 20, "batch": 32}, "decoder": {"steps": 20, "batch": 32}},
    },
    "composite": {
        **{"gammas": [0.5, 1.0], "seeds": 2, "d_model": 16, "d_ff": 32, "depths": [1]},
        **{"learn": {"steps": 20, "batch": 32}},
    },
    "analysis": {"bootstrap_samples": 100},
    "theory": {"widths": [32, 64, 128], "seeds": 2, "coordinate": {"widths": [32, 64], "steps": 2}},
    "tokenize": {"vocab_size": 512, "heldout_share": 0.1},
}


class Project:
    """A micro project on disk and the commands that people use in it."""

    def __init__(self, root: Path, downloads: Path):
        self.root, self.downloads = root, downloads

    def environment(self, **more: str) -> dict[str, str]:
        # As after activating the environment; src of this very project comes first, so that tests may edit it.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        own = {"PATH": path, "PYTHONPATH": str(self.root / "src"), "SMALLINIT_DOWNLOADS": str(self.downloads)}
        return {**os.environ, **own, **more}

    def run(self, *command: str, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the project; its stdout and stderr are captured together."""
        done = subprocess.run(
            command,
            cwd=self.root,
            env=self.environment(**more),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-6000:]}")
        return done

    def smallinit(self, *arguments: str, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "smallinit", *arguments, check=check, **more)

    def dvc(self, *arguments: str, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "dvc", *arguments, check=check, **more)

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
        return self.run("git", *identity, *arguments).stdout

    def would_run(self) -> set[str]:
        """Stages that `make plan` names as certain to run."""
        lines = self.smallinit("repro", "--dry").stdout.splitlines()
        return {line.removeprefix("would run: ") for line in lines if line.startswith("would run: ")}

    def set_params(self, **changes: Any) -> None:
        yaml = YAML(typ="safe", pure=True)
        path = self.root / "params.yaml"
        content = merged(yaml.load(path), changes)
        with path.open("w") as handle:
            yaml.dump(content, handle)

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        text = path.read_text()
        assert old in text, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new))

    def edit_cell(self, notebook: str, cell_id: str, source: str) -> None:
        path = self.root / "notebooks" / f"{notebook}.ipynb"
        content = json.loads(path.read_text())
        cell = next(cell for cell in content["cells"] if cell["id"] == cell_id)
        cell["source"] = source
        path.write_text(json.dumps(content))

    def files(self, *folders: str) -> dict[str, bytes]:
        found = [path for folder in folders for path in (self.root / folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(self.root)): path.read_bytes() for path in sorted(found)}

    def copy(self, root: Path) -> "Project":
        shutil.copytree(self.root, root, symlinks=True)
        return Project(root, self.downloads)

    def clone(self, root: Path) -> "Project":
        """What somebody gets who clones: tracked files only, an empty cache."""
        self.git("clone", "--quiet", str(self.root), str(root))
        return Project(root, self.downloads)


def create(folder: Path) -> Project:
    """A bare micro project: nothing has run, everything is committed, archives are in the downloads folder."""
    root, downloads = folder / "project", folder / "downloads"
    downloads.mkdir(parents=True)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split("\0"):
        built = name.startswith(("results/", "figures/", "tests/")) or name in ("", "dvc.lock")
        if not built and (REPOSITORY / name).is_file():
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, target)
    project = Project(root, downloads)
    fake = fake_archives.build(downloads, documents=60)
    params = root / "params.yaml"
    yaml = YAML(typ="safe", pure=True)
    content = merged(yaml.load(params), OVERLAY)
    asked = fake_benchmarks.build(downloads)
    content["archives"], content["sources"] = fake["archives"] | asked["archives"], fake["sources"]
    content["benchmarks"] |= {"tasks": asked["tasks"], "ask": sorted(asked["tasks"])}
    made = {"arithmetic_en": 0.05, "arithmetic_zh": 0.05}
    content["corpora"] = {"default": {"sources": sorted(fake["sources"]), "generated": made}}
    with params.open("w") as handle:
        yaml.dump(content, handle)
    project.git("init", "--quiet", "--initial-branch=main")
    project.git("add", "--all")
    project.git("commit", "--quiet", "--message", "micro project")
    return project
