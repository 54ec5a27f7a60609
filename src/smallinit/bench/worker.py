"""One contestant in a process of its own: it builds its model, takes its first step, then steps on command.

It reads one JSON line at a time from stdin, first its `Case`, and answers with one line each:

    (after its first step)   -> {"seconds": 1.2}
    {"steps": 3}             -> {"seconds": 0.9}
    {"profile": 3}           -> {"seconds": 0.9, "operators": [{"operator": "aten::mm", ...}, ...]}
    {"finish": true}         -> {"loss": 5.1, "peak_bytes": 600000000}, and ends
    (whatever goes wrong)    -> {"problem": "ImportError: ..."}, and ends

It also ends when stdin closes, so that no worker outlives its driver.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from smallinit.bench.case import Case


class Finished(BaseException):
    """The driver wants no more steps; not an Exception, so that no trainer takes it for a fault of its own."""


class Pacer:
    """Counts steps: `tick` returns at once while there are steps left, else it reports and waits for a command."""

    def __init__(self, commands: TextIO, answers: TextIO):
        self.commands, self.answers = commands, answers
        self.steps = self.left = 1
        self.begun = time.perf_counter()
        self.profiler: Any = None

    def answer(self, **content: Any) -> None:
        print(json.dumps(content), file=self.answers, flush=True)

    def tick(self) -> None:
        self.left -= 1
        if self.left:
            return
        seconds = time.perf_counter() - self.begun
        if self.profiler is None:
            self.answer(seconds=seconds)
        else:
            self.profiler.stop()
            self.answer(seconds=seconds, operators=operators(self.profiler, self.steps))
            self.profiler = None
        command = json.loads(self.commands.readline() or '{"finish": true}')
        if "finish" in command:
            raise Finished
        if "profile" in command:
            from torch.profiler import ProfilerActivity, profile

            self.profiler = profile(activities=[ProfilerActivity.CPU])
            self.profiler.start()
        self.steps = self.left = command.get("steps") or command["profile"]
        self.begun = time.perf_counter()


def operators(profiler: Any, steps: int) -> list[dict[str, Any]]:
    """Where the time of a step went: calls and milliseconds of each operator's own, the largest first."""
    rows = [
        {"operator": event.key, "calls": event.count / steps, "milliseconds": event.self_cpu_time_total / 1e3 / steps}
        for event in profiler.key_averages()
    ]
    return sorted(rows, key=lambda row: -row["milliseconds"])


def peak_bytes() -> int:
    """The most memory that this process held.

    Linux counts the parent's memory into `ru_maxrss` of a process that it starts, but not into VmHWM.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def contestants() -> dict[str, Callable[[Case], Any]]:
    """All of them by name, this repository's first."""
    from smallinit.bench import contestants as own
    from smallinit.bench import peers

    return {
        "ours": own.ours,
        "ours-eager": partial(own.ours, compiled=False),
        "hf-trainer": peers.hf_trainer,
        "hf-eager": partial(peers.hf_loop, compiled=False),
        "hf-compiled": partial(peers.hf_loop, compiled=True),
        "litgpt-eager": partial(peers.litgpt_loop, compiled=False),
        "litgpt-compiled": partial(peers.litgpt_loop, compiled=True),
        "square": own.square,
        "shapes": own.shapes,
    }


def main() -> None:
    """Serve the driver until it has no more to ask."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr, never between the answers
    pacer = Pacer(sys.stdin, answers)
    try:
        case = Case.model_validate_json(sys.stdin.readline())
        if case.kernel_names:
            import torch._inductor.config

            torch._inductor.config.cpp.enable_kernel_profile = True
        contestant = contestants()[case.contestant](case)
        try:
            contestant.train(pacer.tick)
        except Finished:
            pacer.answer(loss=contestant.loss(), peak_bytes=peak_bytes())
    except Exception as error:
        pacer.answer(problem=f"{type(error).__name__}: {error}".splitlines()[0])


if __name__ == "__main__":
    main()
