"""Execute a stage's notebook with papermill and keep a normalised copy: two runs give the same bytes.

Promises kept here: the runner's own interpreter is the kernel, whatever kernels are installed; a notebook that stops
half-way is a failure, even by `SystemExit(0)`; an interrupt reaches the kernel, so training saves its state; progress
(stderr) goes to the terminal and to `logs/`, never into the executed notebook.
"""

import contextlib
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import nbformat
import papermill
import psutil
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError
from traitlets.config import Config

from smallinit import fingerprints, paths
from smallinit.errors import Refused
from smallinit.files import replacing

KERNEL = "smallinit"
# Set before the kernel starts, because inside a running process they do nothing.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # one thread a run: two runs side by side beat one run on two threads
    "MALLOC_MMAP_THRESHOLD_": str(4 * 2**30),  # keep big buffers instead of returning them to the kernel each step
    "MALLOC_TRIM_THRESHOLD_": str(4 * 2**30),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
    "PYTHONHASHSEED": "0",
    "HF_HUB_OFFLINE": "1",  # the default path never touches a hub
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "true",
}


class StageFailed(Refused):
    """A notebook that did not run to its end; the message says where, why and what to do."""


class Tee:
    """Text to the terminal and to a log file."""

    def __init__(self, *targets: TextIO):
        self.targets = targets

    def write(self, text: str) -> None:
        for target in self.targets:
            target.write(text)

    def flush(self) -> None:
        for target in self.targets:
            target.flush()


@contextlib.contextmanager
def own_kernel() -> Iterator[Path]:
    """Register a kernel that is this interpreter, for this process only, ahead of all installed ones.

    Yields a folder for its sockets: files instead of ports, so that kernels which start at once never share one.
    """
    before = os.environ.get("JUPYTER_PATH")
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "kernels" / KERNEL / "kernel.json"
        spec.parent.mkdir(parents=True)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec.write_text(json.dumps({"argv": argv, "display_name": KERNEL, "language": "python", "env": ENVIRONMENT}))
        os.environ["JUPYTER_PATH"] = os.pathsep.join([folder, before] if before else [folder])
        try:
            yield Path(folder)
        finally:
            os.environ.pop("JUPYTER_PATH")
            if before:
                os.environ["JUPYTER_PATH"] = before


@contextlib.contextmanager
def forwarded_interrupts() -> Iterator[None]:
    """Hand SIGTERM and SIGINT on to the kernel, which may save its state before it ends."""

    def forward(number: int, frame: FrameType | None) -> None:
        for child in psutil.Process().children():
            child.send_signal(signal.SIGTERM)

    old = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def failure(notebook: nbformat.NotebookNode) -> str | None:
    """Why an executed notebook is not complete, or None."""
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        name = cell.get("id", index)
        for output in cell.outputs:
            if output.output_type == "error":
                return f"cell {name!r} raised {output.ename}: {output.evalue}"
        if cell.execution_count is None:
            return f"cell {name!r} did not run to its end"
    return None


def normalise(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Remove what differs between two equal runs: timings, random ids, versions, addresses, paths of this machine."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for index, cell in enumerate(notebook.cells):
        tags = cell.metadata.get("tags", [])
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        if "injected-parameters" in tags:
            cell.id = "injected-parameters"
        cell.setdefault("id", f"cell-{index}")
        if cell.cell_type == "code":
            cell.outputs = [clean_output(output) for output in joined(cell.outputs)]
    return notebook


def joined(outputs: list[Any]) -> list[Any]:
    """Outputs without stderr (progress and warnings are in the log), neighbouring pieces of stdout joined."""
    kept: list[Any] = []
    for output in outputs:
        if output.output_type == "stream" and output.name == "stderr":
            continue
        if output.output_type == "stream" and kept and kept[-1].output_type == "stream":
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def clean_output(output: Any) -> Any:
    """One output without addresses and without the path of the project."""
    if output.output_type == "stream":
        output.text = clean_text(output.text)
    elif "data" in output:
        output.metadata = nbformat.from_dict({})
        for kind in ("text/plain", "text/html", "text/markdown"):
            if kind in output.data:
                output.data[kind] = clean_text(output.data[kind])
    return output


def clean_text(text: str) -> str:
    """Text without carriage returns, memory addresses and the path of the project."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace(f"{paths.ROOT}/", "").replace(str(paths.ROOT), ".")
    return re.sub(r"\b0x[0-9a-f]{6,}\b", "0x...", text)


def find(name: str) -> Path:
    """The notebook called `name`, for instance `04_train`.

    Raises:
        StageFailed: there is none.
    """
    notebook = paths.NOTEBOOKS / f"{name}.ipynb"
    if not notebook.exists():
        known = ", ".join(sorted(p.stem for p in paths.NOTEBOOKS.glob("*.ipynb")))
        raise StageFailed(f"no notebook {name!r} (known: {known})")
    return notebook


def check_tokens() -> None:
    """Refuse to train or evaluate on other tokens than those that `results/corpus` describes.

    Raises:
        StageFailed: the two manifests differ.
    """
    made, described = paths.TOKENS / "manifest.json", paths.RESULTS / "corpus" / "manifest.json"
    if made.exists() and described.exists() and made.read_bytes() != described.read_bytes():
        raise StageFailed("data/tokens is not the corpus that results/corpus describes: run `dvc repro tokenize`")


def run(name: str, key: str | None = None) -> Path:
    """Execute notebook `name`, for run `key` if it is one of many; returns the normalised copy's path.

    Raises:
        StageFailed: the notebook did not run to its end; its log and what it had done are kept in `logs/`.
        StalePlan: the code is not the one in the plan.
    """
    source = find(name)
    code = fingerprints.code_of(source)
    fingerprints.check(name, code)
    if "smallinit.batches" in code:
        check_tokens()
    label = f"{name}@{key}" if key else name
    paths.LOGS.mkdir(exist_ok=True)
    log, partial = paths.LOGS / f"{label}.log", paths.LOGS / f"{label}.ipynb"
    target = paths.EXECUTED / (f"{name}/{key}.ipynb" if key else f"{name}.ipynb")
    with log.open("w") as handle:
        try:
            execute(source, partial, {"RUN": key} if key else {}, Tee(sys.stderr, handle))
            reason = failure(nbformat.read(partial, as_version=4))
        except PapermillExecutionError as error:
            handle.write(str(error))
            reason = f"cell {error.cell_index} raised {error.ename}: {error.evalue}"
        except DeadKernelError:
            reason = "the kernel died (killed, or out of memory); try fewer --jobs or smaller models"
    if reason:
        shown = [path.relative_to(paths.ROOT) for path in (log, partial)]
        raise StageFailed(
            f"{label}: {reason}\nlog: {shown[0]}, executed so far: {shown[1]}; run the stage again after mending"
        )
    executed = normalise(nbformat.read(partial, as_version=4))
    with replacing(target) as temporary:
        temporary.write_text(nbformat.writes(executed) + "\n")
    partial.unlink()
    return target


def lab() -> None:
    """Become JupyterLab on the notebooks, with this environment's kernel and the settings that stages run under.

    Its files are those of the project, so that executed notebooks can be opened too and find their figures.
    """
    own = {**ENVIRONMENT, "JUPYTER_PREFER_ENV_PATH": "1"}
    places = [f"--ServerApp.root_dir={paths.ROOT}", f"--ServerApp.preferred_dir={paths.NOTEBOOKS}"]
    command = [sys.executable, "-m", "jupyter", "lab", *places]
    os.execve(sys.executable, command, {**os.environ, **own})


def execute(source: Path, target: Path, parameters: dict[str, str], stderr: Tee) -> None:
    """Run `source` from the project's root in a kernel of this interpreter."""
    with own_kernel() as folder, forwarded_interrupts():
        papermill.execute_notebook(
            source,
            target,
            parameters=parameters,
            kernel_name=KERNEL,
            language="python",
            cwd=paths.ROOT,
            progress_bar=False,
            stderr_file=stderr,
            autosave_cell_every=0,
            config=Config({"KernelManager": {"transport": "ipc", "ip": str(folder / "socket")}}),
        )
