"""`dvc repro` with two things added: independent runs side by side, and clones whose cache is empty.

DVC does the work: each stage runs as `dvc repro -s STAGE` in a process of its own. This module only decides the order.
A stage whose values and code are unchanged is left alone even if its cached data is missing; the missing data is
restored (from the cache, else by running its stage) only where a stage that did change needs it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dvc.repo import Repo

from smallinit import paths
from smallinit.errors import Refused
from smallinit.params import merged
from smallinit.progress import duration

DVC = [sys.executable, "-m", "dvc", "--wait-for-lock"]


class PipelineFailed(Refused):
    """A stage failed; the message names it and what was not run because of it."""


def environment() -> dict[str, str]:
    """This interpreter first on the path, so that a stage's `python` is this one; downloads shared by all profiles."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "SMALLINIT_DOWNLOADS": str(paths.DOWNLOADS)}


def started(root: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a command in `root`, in a session of its own: `interrupt` decides when it is stopped, and how."""
    return subprocess.Popen(command, cwd=root, env=environment(), start_new_session=True)


def dvc(root: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a DVC command, as `started` does."""
    return started(root, [*DVC, *arguments])


def interrupt(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Stop DVC commands as Ctrl-C would, so that training saves its state, and wait for them."""
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
    for process in processes:
        process.wait()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM (from a scheduler, say) do what Ctrl-C does."""
    old = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def call(root: Path, *arguments: str) -> None:
    """Run a DVC command to its end.

    Raises:
        PipelineFailed: it returned an error; its own message stands above.
    """
    process = dvc(root, *arguments)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        interrupt([process])
        raise PipelineFailed("interrupted; run the same command again to continue") from None
    if code:
        raise PipelineFailed(f"`dvc {' '.join(arguments)}` failed: see the messages above")


class Graph:
    """The stages as DVC sees them at this moment, by name, upstream first."""

    def __init__(self, root: Path, targets: list[str]):
        import networkx

        self.repo = Repo(str(root), _wait_for_lock=True)
        with self.repo.lock:  # a stage that ends at this moment may be writing dvc.lock
            graph: Any = self.repo.index.graph  # edges point upstream
        order = list(networkx.lexicographical_topological_sort(graph.reverse(), key=lambda stage: stage.name))
        self.stages = self.every = {stage.name: stage for stage in order}
        self.upstream = {name: [up.name for up in graph.successors(stage)] for name, stage in self.stages.items()}
        if targets:
            wanted = self._with_upstream(targets)
            self.stages = {name: stage for name, stage in self.stages.items() if name in wanted}

    def _with_upstream(self, targets: list[str]) -> set[str]:
        wanted: set[str] = set()
        waiting = []
        for target in targets:
            matches = [name for name in self.stages if name == target or name.startswith(f"{target}@")]
            if not matches:
                raise PipelineFailed(f"no stage {target!r} (stages: {', '.join(self.stages)})")
            waiting += matches
        while waiting:
            name = waiting.pop()
            wanted.add(name)
            waiting += [up for up in self.upstream[name] if up not in wanted]
        return wanted

    def changed(self, name: str) -> bool:
        """Whether a stage has to run for another reason than missing data."""
        up = [self.every[other] for other in self.upstream[name]]
        with self.repo.lock:
            return bool(self.stages[name].changed(allow_missing=True, upstream=up))

    def missing_producers(self, name: str) -> list[str]:
        """Upstream stages with outputs that are not on disk, unless `name` reads nothing but what is in git."""
        if name in self.redrawn():
            return []
        return [up for up in self.upstream[name] if not all(out.exists for out in self.every[up].outs)]

    def redrawn(self) -> list[str]:
        """Stages that read nothing but what is in git."""
        return [name for name, stage in self.stages.items() if (stage.meta or {}).get("redraw")]


class Schedule:
    """What is still to be settled. A stage is settled when it is known to be unchanged, or has run."""

    def __init__(self, root: Path, targets: list[str]):
        self.root, self.targets = root, targets
        self.graph = Graph(root, targets)
        self.settled: set[str] = set()
        self.forced: set[str] = set()  # to run because another stage needs their missing outputs
        self.checked: set[str] = set()
        self.failed: list[str] = []

    def ready(self, running: set[str]) -> str | None:
        """The next stage to run now, or None; settles what is unchanged on the way."""
        progress = True
        while progress:
            progress = False
            for name in self.graph.stages:
                if name in self.settled or name in running or name in self.failed:
                    continue
                if not all(up in self.settled for up in self.graph.upstream[name]):
                    continue
                if name not in self.forced and not self.graph.changed(name):
                    self.settled.add(name)
                    progress = True
                elif missing := self.graph.missing_producers(name):
                    self.settled.difference_update(missing)
                    self.forced.update(missing)
                    progress = True
                else:
                    return name
        return None

    def finish(self, name: str, code: int) -> None:
        """Note the end of a stage and look at the pipeline afresh: outputs may have changed what follows."""
        if code:
            self.failed.append(name)
        else:
            self.settled.add(name)
            self.forced.discard(name)
        self.graph = Graph(self.root, self.targets)

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Run one stage; one that is only missing its data is first looked for in the cache."""
        if name in self.forced:
            call(self.root, "checkout", "--quiet", "--allow-missing", name)
        return dvc(self.root, "repro", "--single-item", name)

    def left(self) -> list[str]:
        return [name for name in self.graph.stages if name not in self.settled]


def repro(targets: list[str], jobs: int, profile: str | None, dry: bool) -> None:
    """Bring `targets` (default: everything) up to date, at most `jobs` stages at a time.

    Raises:
        PipelineFailed: stages failed; all that do not depend on them were still run.
    """
    root = workspace(profile) if profile else paths.ROOT
    call(root, "repro", "--single-item", "plan")
    schedule = Schedule(root, targets)
    if dry:
        print_plan(schedule)
        return
    with interruptible():
        work(schedule, jobs)


def work(schedule: Schedule, jobs: int) -> None:
    """Run what is ready, at most `jobs` stages at a time, until nothing is left."""
    if jobs < 1:
        raise PipelineFailed(f"--jobs {jobs}: must be 1 or more")
    running: dict[str, subprocess.Popen[bytes]] = {}
    begun, count = time.monotonic(), 0

    def say(text: str) -> None:
        print(f"[{duration(time.monotonic() - begun)}] {text}", file=sys.stderr, flush=True)

    try:
        while True:
            while len(running) < jobs and (name := schedule.ready(set(running))):
                say(f"{name} starts")
                running[name] = schedule.start(name)
            if not running:
                break
            ended = [name for name, process in running.items() if process.poll() is not None]
            for name in ended:
                code = running.pop(name).returncode
                schedule.finish(name, code)
                count += 1
                say(f"{name} {'FAILED' if code else 'done'}, {len(schedule.left())} stages left to look at")
            if not ended:
                time.sleep(0.1)
    except KeyboardInterrupt:
        interrupt(running.values())
        raise PipelineFailed("interrupted; run the same command again to continue") from None
    if schedule.failed:
        left = ", ".join(name for name in schedule.left() if name not in schedule.failed) or "nothing"
        raise PipelineFailed(f"failed: {', '.join(schedule.failed)}; not run because of that: {left}")
    print(f"up to date: {count} stages run in {duration(time.monotonic() - begun)}")


def print_plan(schedule: Schedule) -> None:
    """Say what would run and why nothing else would."""
    certain = [name for name in schedule.graph.stages if schedule.graph.changed(name)]
    possible: list[str] = []
    for name, upstream in schedule.graph.upstream.items():
        if name in schedule.graph.stages and name not in certain and any(up in certain + possible for up in upstream):
            possible.append(name)
    for name in certain:
        print(f"would run: {name}")
    for name in possible:
        print(f"would run if what it reads changes: {name}")
    if not certain:
        print("nothing to run: all results are those of params.yaml and the code as they are now")


def workspace(profile: str) -> Path:
    """A project folder of its own for `profiles/<profile>.yaml`: same code and notebooks, other parameters.

    Raises:
        PipelineFailed: there is no such profile.
    """
    from ruamel.yaml import YAML

    overlay = paths.ROOT / "profiles" / f"{profile}.yaml"
    if not overlay.exists():
        known = ", ".join(sorted(p.stem for p in overlay.parent.glob("*.yaml")))
        raise PipelineFailed(f"no profile {profile!r} (profiles: {known})")
    root = paths.ROOT / "workspaces" / profile
    (root / "src").mkdir(parents=True, exist_ok=True)
    for shared in ("src/smallinit", "notebooks", "dvc.yaml", ".dvcignore"):
        link = root / shared
        if not link.is_symlink():
            link.symlink_to(paths.ROOT / shared)
    yaml = YAML(typ="safe", pure=True)
    params = merged(yaml.load(paths.PARAMS), yaml.load(overlay))
    with (root / "params.yaml").open("w") as handle:
        handle.write(f"# Written from params.yaml and profiles/{profile}.yaml: edit those.\n")
        yaml.dump(params, handle)
    if not (root / ".dvc").exists():
        call(root, "init", "--no-scm", "--quiet")
        settings = (paths.ROOT / ".dvc" / "config").read_text()
        (root / ".dvc" / "config").write_text(settings.replace("[core]\n", "[core]\n    no_scm = true\n"))
    return root
