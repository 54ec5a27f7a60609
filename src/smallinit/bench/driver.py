"""Start workers, let them step in turn, and collect their times: only one works at a time, whatever is compared."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from smallinit.bench.case import Case
from smallinit.notebook import ENVIRONMENT
from smallinit.progress import Progress

WORKER = [sys.executable, "-m", "smallinit.bench.worker"]
START_UNITS = 10  # of progress: starting a worker takes about as long as ten measurements
ALLOCATOR = {key: value for key, value in ENVIRONMENT.items() if key.startswith("MALLOC_")}


def environment(tuned: bool, cache: Path, threads: int) -> dict[str, str]:
    """What a worker's process starts with: our allocator settings or the system's, and a compile cache of its own."""
    own = {"OMP_NUM_THREADS": str(threads), "TORCHINDUCTOR_CACHE_DIR": str(cache), "HF_HUB_OFFLINE": "1"}
    kept = {key: value for key, value in os.environ.items() if key not in ALLOCATOR}
    return kept | own | (ALLOCATOR if tuned else {})


class Worker:
    """A contestant's process. What goes wrong in it becomes `problem`; it then answers nothing more."""

    def __init__(self, case: Case, tuned: bool, cache: Path, log: Path):
        self.case, self.tuned, self.log = case, tuned, log
        self.problem: str | None = None
        self.startup_seconds: float | None = None  # from the start of the process to the end of the first step
        self.seconds: list[float] = []  # of one step, one value a measurement
        self.loss: float | None = None
        self.peak_bytes: int | None = None
        self.begun = time.perf_counter()
        with log.open("w") as handle:
            self.process = subprocess.Popen(
                WORKER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=handle,
                text=True,
                env=environment(tuned, cache, case.run.train.threads),
                start_new_session=True,  # a group of its own, with the processes that compile for it
            )

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: `receive` reads what it said last
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The next answer; empty once there is a problem."""
        assert self.process.stdout is not None
        if self.problem:
            return {}
        line = self.process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
        else:
            said = self.log.read_text().strip().splitlines()
            code = self.process.wait()
            answer = {"problem": f"the process ended with code {code}: {said[-1] if said else 'it said nothing'}"}
        self.problem = answer.get("problem")
        return {} if self.problem else answer

    def started(self) -> None:
        """Wait for the end of the first step."""
        if self.receive():
            self.startup_seconds = time.perf_counter() - self.begun

    def measured(self, steps: int, keep: bool) -> None:
        """Wait for the steps that it was told to take, and note the seconds of one."""
        answer = self.receive()
        if answer and keep:
            self.seconds.append(answer["seconds"] / steps)

    def finish(self) -> None:
        """Ask for the loss and the peak memory; the process ends."""
        self.send('{"finish": true}')
        if answer := self.receive():
            self.loss, self.peak_bytes = answer["loss"], answer["peak_bytes"]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class Crew:
    """The workers of one comparison; however its block ends, by ctrl-C too, none outlives it."""

    def __init__(self, folder: Path, bar: Progress):
        self.folder, self.bar = folder, bar
        self.workers: list[Worker] = []

    def __enter__(self) -> "Crew":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.kill()

    def start(self, *cases: Case, tuned: bool = True) -> list[Worker]:
        """Start a worker for each case, all at once, and wait until each has taken its first step."""
        new = []
        for case in cases:
            name = f"{case.contestant}-{case.run.run}-threads{case.run.train.threads}"
            log = self.folder / f"{name}-{len(self.workers)}.log"
            self.workers.append(Worker(case, tuned, self.folder / f"cache-{case.contestant}", log))
            new.append(self.workers[-1])
            new[-1].send(case.model_dump_json())
        for worker in new:
            worker.started()
            self.bar.update(START_UNITS)
        return new

    def measure(self, teams: list[list[Worker]], steps: int, repeats: int) -> None:
        """Let the teams step in turn, `repeats` times; the members of one team work at the same time.

        A round before warms up and is not kept. Each round begins with another team: none always follows the same one.
        """
        for number in range(repeats + 1):
            shift = number % len(teams)
            for team in teams[shift:] + teams[:shift]:
                for worker in team:
                    worker.send(json.dumps({"steps": steps}))
                for worker in team:
                    worker.measured(steps, keep=number > 0)
                self.bar.update(1)
        for worker in self.workers:
            worker.finish()
