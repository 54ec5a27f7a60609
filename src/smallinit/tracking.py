"""Curves while a run trains, for those who like to watch: DVCLive, TensorBoard. Files only, no network.

What the pipeline keeps is `results/train/<run>/curve.csv`; nothing reads what is written here.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import Field

from smallinit import paths
from smallinit.config import Strict

Log = Callable[[int, dict[str, float]], None]  # step, numbers by name


class TrackingConfig(Strict):
    """How a run is watched and saved while it trains: nothing here changes a result or makes one stale."""

    save_seconds: float = Field(gt=0, description="at most so much work is lost by a kill")
    dvclive: bool
    tensorboard: bool


def load() -> TrackingConfig:
    """The settings in the plan; without a plan no tracker runs."""
    file = paths.PLAN / "tracking.json"
    if file.exists():
        return TrackingConfig.model_validate_json(file.read_text())
    return TrackingConfig(save_seconds=30.0, dvclive=False, tensorboard=False)


@contextlib.contextmanager
def trackers(run: str, config: TrackingConfig, step: int, rank: int) -> Iterator[Log]:
    """Yield a function that hands numbers to every tracker that is switched on; of several processes only 0 writes.

    What an interrupted run has noted after `step`, from which it continues, is forgotten.

    Raises:
        ModuleNotFoundError: TensorBoard is on and not installed; the message says how to install it.
    """
    with contextlib.ExitStack() as stack:
        logs: list[Log] = []
        if config.dvclive and rank == 0:
            logs.append(dvclive_log(stack, run, step))
        if config.tensorboard and rank == 0:
            logs.append(tensorboard_log(stack, run, step))

        def log(step: int, numbers: dict[str, float]) -> None:
            for write in logs:
                write(step, numbers)

        yield log


def forget(folder: Path, step: int) -> None:
    """Drop what DVCLive has noted after `step`, and its summary, which a kill may have cut."""
    (folder / "metrics.json").unlink(missing_ok=True)
    for file in (folder / "plots" / "metrics").glob("*.tsv"):
        lines = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        kept = [row for row in lines[1:] if int(row.split("\t")[0]) <= step]
        file.write_text("".join([*lines[:1], *kept]))
        if not lines:
            file.unlink()  # without a header DVCLive would not write one


def dvclive_log(stack: contextlib.ExitStack, run: str, step: int) -> Log:
    """DVCLive under `logs/live/<run>`; it edits no dvc.yaml, saves no experiment and asks no server."""
    os.environ.setdefault("DVC_STUDIO_OFFLINE", "true")
    from dvclive import Live

    folder = paths.LOGS / "live" / run
    forget(folder, step)
    live = stack.enter_context(
        Live(
            str(folder),
            resume=step > 0,
            dvcyaml=None,
            save_dvc_exp=False,
            report=None,
            monitor_system=False,
        )
    )

    def log(step: int, numbers: dict[str, float]) -> None:
        live.step = step
        for name, number in numbers.items():
            live.log_metric(name, number)
        live.make_summary()

    return log


def tensorboard_log(stack: contextlib.ExitStack, run: str, step: int) -> Log:
    """TensorBoard under `logs/tensorboard/<run>`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "tracking.tensorboard = true needs TensorBoard: pip install tensorboard, or set it to false in params.yaml"
        ) from None
    folder = paths.LOGS / "tensorboard" / run
    writer = stack.enter_context(contextlib.closing(SummaryWriter(str(folder), purge_step=step + 1 if step else 0)))

    def log(step: int, numbers: dict[str, float]) -> None:
        for name, number in numbers.items():
            writer.add_scalar(name, number, step)

    return log
