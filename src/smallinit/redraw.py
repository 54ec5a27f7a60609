"""Draw every figure, table and page once more from what git holds: no data, no models, no network.

Stages marked `redraw` in `dvc.yaml` read nothing else. Their commands are run directly, after removing their outputs as
DVC would, and it is told in the end of what came out differently: its start and end take longer than most of these
notebooks, and where nothing has changed there is nothing for it to note.
"""

import shlex
import subprocess
from pathlib import Path

from smallinit import paths
from smallinit.pipeline import Schedule, call, interruptible, started, work


class Redrawing(Schedule):
    """All stages that read nothing but what is in git, changed or not, one after the stages that it reads."""

    def __init__(self, root: Path):
        super().__init__(root, [])
        self.graph.stages = {name: self.graph.stages[name] for name in self.graph.redrawn()}

    def ready(self, running: set[str]) -> str | None:
        """The next stage to run now, or None."""
        waiting = [name for name in self.left() if name not in running and name not in self.failed]
        return next((name for name in waiting if not set(self.graph.upstream[name]) & set(self.left())), None)

    def start(self, name: str) -> "subprocess.Popen[bytes]":
        """Run a stage's command whether it has changed or not."""
        stage = self.graph.stages[name]
        stage.remove_outs()
        return started(self.root, shlex.split(stage.cmd))

    def finish(self, name: str, code: int) -> None:
        """Note the end of a stage."""
        (self.failed.append if code else self.settled.add)(name)


def figures(jobs: int) -> None:
    """Redraw all of them, at most `jobs` at a time.

    Raises:
        PipelineFailed: stages failed; all that do not depend on them were still redrawn.
    """
    schedule = Redrawing(paths.ROOT)
    try:
        with interruptible(), schedule.graph.repo.lock:  # other DVC commands wait
            work(schedule, jobs)
    finally:
        if changed := [name for name in sorted(schedule.settled) if schedule.graph.changed(name)]:
            call(paths.ROOT, "commit", "--quiet", "--force", *changed)
