"""`python -m smallinit bench`: the comparison, the scaling and the thread table, or a profile of one step of ours."""

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from smallinit import paths
from smallinit.batches import Tokens
from smallinit.bench import losses, peers, report
from smallinit.bench.case import Case, Shape
from smallinit.bench.driver import START_UNITS, Crew
from smallinit.bench.setup import find_tokens, run_config
from smallinit.files import write_csv, write_json
from smallinit.progress import Progress

CONTESTANTS = ("ours", "ours-eager", "hf-trainer", "hf-eager", "hf-compiled", "litgpt-eager", "litgpt-compiled")


@dataclass(frozen=True)
class Plan:
    """How much to measure. `scaling` changes one value of `shape` at a time."""

    shape: Shape
    scaling: dict[str, list[int]]
    square: int  # side of the products that measure the ceiling
    steps: int  # of one measurement
    repeats: int
    scaling_repeats: int
    thread_repeats: int
    losses: Shape  # of the runs whose losses are compared
    loss_seeds: int
    loss_steps: int

    def shapes(self) -> list[tuple[str, Shape]]:
        """What is varied, and the model: first the one of the comparison."""
        varied = [(name, {name: value}) for name, values in self.scaling.items() for value in values]
        return [("–", self.shape)] + [(name, self.shape.model_copy(update=change)) for name, change in varied]


FULL = Plan(
    shape=Shape(),
    scaling={
        "d_model": [64, 96, 192],
        "n_layers": [2, 8],
        "seq_len": [128, 512],
        "vocab_size": [8192, 16384],
        "batch_size": [4, 32],
    },
    square=2048,
    steps=2,
    repeats=7,
    scaling_repeats=3,
    thread_repeats=15,
    losses=Shape(d_model=64),
    loss_seeds=5,
    loss_steps=100,
)
QUICK = Plan(
    shape=Shape(d_model=32, n_layers=1, seq_len=32, batch_size=4),
    scaling={"d_model": [64]},
    square=128,
    steps=1,
    repeats=2,
    scaling_repeats=1,
    thread_repeats=2,
    losses=Shape(d_model=32, n_layers=1, seq_len=32, batch_size=4),
    loss_seeds=2,
    loss_steps=3,
)


class Bench:
    """One run of the benchmark: a plan, its tokens, and a folder for logs and compile caches."""

    def __init__(self, plan: Plan, folder: Path):
        self.plan, self.folder = plan, folder
        self.tokens, self.data = find_tokens(folder, plan.shape.vocab_size)
        self.litgpt: str | None = None  # the folder of its packages

    def case(self, contestant: str, shape: Shape | None = None, threads: int = 1, **changes: Any) -> Case:
        run = run_config(shape or self.plan.shape, Tokens(self.tokens), threads)
        fixed = {"contestant": contestant, "run": run, "tokens": str(self.tokens), "square": self.plan.square}
        return Case.model_validate(fixed | {"packages": self.litgpt} | changes)

    def compare(self) -> tuple[pd.DataFrame, dict[str, float]]:
        """Every contestant with the system's allocator settings and with ours, in turn; and the ceilings, in GFLOP/s.

        The first start of a contestant compiles into an empty cache, its second finds that cache.
        """
        cases = [self.case(name) for name in CONTESTANTS]
        float32 = cases[0].run.train.model_copy(update={"precision": "float32"})
        ceilings = [self.case("square"), self.case("shapes")]
        if cases[0].run.train.precision != "float32":
            ceilings.append(self.case("square", run=cases[0].run.model_copy(update={"train": float32})))
        count = 2 * len(cases) + len(ceilings)
        bar = Progress(count * (START_UNITS + self.plan.repeats + 1), "bench: compare", "units")
        with bar, Crew(self.folder, bar) as crew:
            for tuned in (False, True):
                for case in cases:
                    crew.start(case, tuned=tuned)
            for case in ceilings:
                crew.start(case)
            crew.measure([[worker] for worker in crew.workers], self.plan.steps, self.plan.repeats)
        split = len(crew.workers) - len(ceilings)
        rates = report.ceilings(crew.workers[split:], self.plan.shape)
        return report.comparison(crew.workers[:split], self.plan.shape, rates), rates

    def scale(self, ceiling: float) -> pd.DataFrame:
        """Our cost when one of d, L, T, V and the batch changes. Workers start two at a time, but step alone."""
        varied = self.plan.shapes()
        bar = Progress(len(varied) * (START_UNITS + self.plan.scaling_repeats + 1), "bench: scaling", "units")
        with bar, Crew(self.folder, bar) as crew:
            cases = [self.case("ours", shape) for _, shape in varied]
            for first in range(0, len(cases), 2):
                crew.start(*cases[first : first + 2])
            crew.measure([[worker] for worker in crew.workers], self.plan.steps, self.plan.scaling_repeats)
        return report.scaling(crew.workers, varied, ceiling)

    def share_cores(self) -> pd.DataFrame:
        """Two runs of one thread at the same time, against one run of two threads, and one of one thread alone."""
        bar = Progress(4 * START_UNITS + 3 * (self.plan.thread_repeats + 1), "bench: threads", "units")
        with bar, Crew(self.folder, bar) as crew:
            single = self.case("ours")
            alone, left, right = (crew.start(single)[0] for _ in range(3))
            (double,) = crew.start(self.case("ours", threads=2))
            teams = {
                "one run, one thread": [alone],
                "two runs side by side, one thread each": [left, right],
                "one run, two threads": [double],
            }
            crew.measure(list(teams.values()), self.plan.steps, self.plan.thread_repeats)
        return report.threads(teams, self.plan.shape)

    def losses(self) -> pd.DataFrame:
        """Losses and gradients of our kernels beside PyTorch's own, seed by seed."""
        tokens = Tokens(self.tokens)
        return losses.compare(run_config(self.plan.losses, tokens), tokens, self.plan.loss_seeds, self.plan.loss_steps)

    def profile(self) -> pd.DataFrame:
        """Where a compiled step of ours spends its time, by operator."""
        steps = max(self.plan.steps, 2)
        bar = Progress(START_UNITS, "bench: profile", "units")
        with bar, Crew(self.folder, bar) as crew:
            (worker,) = crew.start(self.case("ours", kernel_names=True))
            worker.send(json.dumps({"steps": steps}))  # warms up
            worker.receive()
            worker.send(json.dumps({"profile": steps}))
            answer = worker.receive()
        return report.profile(worker, answer)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m smallinit bench`."""
    parser.add_argument("--quick", action="store_true", help="a tiny model, a few minutes: shows that everything works")
    parser.add_argument("--profile", action="store_true", help="only show where a step of ours spends its time")
    parser.add_argument("--losses", action="store_true", help="only compare what is learned, not how fast")
    parser.add_argument("--offline", action="store_true", help="do not download litgpt; without it, its rows say so")


def main(options: argparse.Namespace) -> str:
    """Measure and write `results/bench`, or `logs/bench` for a quick run; returns the tables as Markdown.

    Needs about 14 GB of memory, because the contestants of a comparison stay loaded beside one another.

    Raises:
        ConfigError: `params.yaml` cannot be used.
        BenchFailed: our own contestant did not run; the message says why.
    """
    plan, target = (QUICK, paths.LOGS / "bench") if options.quick else (FULL, paths.RESULTS / "bench")
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(plan, Path(name))
        if options.profile:
            table = bench.profile()
            write_csv(target / "bench_profile.csv", table)
            return report.profile_markdown(table)
        if options.losses:
            table = bench.losses()
            write_csv(target / "bench_losses.csv", table)
            return losses.text(table)
        missing = None
        try:
            if not options.offline:
                peers.install_litgpt()
        except OSError as error:
            missing = str(error)
        if peers.litgpt_folder().exists():
            bench.litgpt = str(peers.litgpt_folder())
        comparison, rates = bench.compare()
        if missing:
            comparison.loc[comparison["contestant"].str.startswith("litgpt"), "problem"] = missing
        ceiling = rates[f"square {bench.case('ours').run.train.precision}"]
        scaling, threads = bench.scale(ceiling), bench.share_cores()
        machine = report.machine(bench.case("ours").run, plan.shape, rates, bench.data, missing is None)
    write_csv(target / "bench.csv", comparison)
    write_csv(target / "bench_scaling.csv", scaling)
    write_csv(target / "bench_threads.csv", threads)
    write_json(target / "bench_machine.json", machine)
    return report.markdown(target)
