"""The pilot: short trainings of each arm at several peak learning rates, to find the one that suits it.

Every arm is tried at the same few rates, so that any two arms can be compared at one fixed rate, and then at more of
them, each FACTOR beyond the last, until its lowest loss has a higher one on both sides. Each finished trial is kept in
`state/` until the table is written: a stage that is stopped loses nothing but the last seconds of one trial.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from smallinit import checkpoint, config, machine, paths
from smallinit.batches import Tokens
from smallinit.config import RunConfig
from smallinit.files import read_json, write_csv, write_json
from smallinit.parallel import ALONE
from smallinit.pilot.config import FACTOR, PilotPlan
from smallinit.train import fit

BEYOND = 3  # rates that are tried beyond the given ones, on each side, at most
COLUMNS = ["size", "d_model", "gamma", "variant", "gate", "batch_tokens", "peak_lr", "steps", "loss"]


def load(size: str) -> PilotPlan:
    """The pilot's plan for one size.

    Raises:
        ConfigError: the pilot has no such size, or the plan is out of date.
    """
    return config.read_config(PilotPlan, paths.PLAN / "pilot" / f"{size}.json")


def folder(size: str) -> Path:
    """Where the pilot's artifacts of one size lie."""
    return paths.RESULTS / "pilot" / size


def bracket(loss: Callable[[float], float], rates: Sequence[float]) -> dict[float, float]:
    """The loss at each of `rates`, and at more of them until the lowest is not the first or last.

    Stops after BEYOND more on a side: then the lowest loss is at an end. A loss may be infinite (the run diverged).
    """
    found = {rate: loss(rate) for rate in rates}
    for _ in range(BEYOND):
        lowest = min(found, key=lambda rate: (found[rate], rate))
        if lowest == max(found):
            found[lowest * FACTOR] = loss(lowest * FACTOR)
        elif lowest == min(found):
            found[lowest / FACTOR] = loss(lowest / FACTOR)
        else:
            break
    return dict(sorted(found.items()))


def at_rate(arm: RunConfig, rate: float) -> RunConfig:
    """One trial: the arm at a peak learning rate, under a name of its own."""
    train = arm.train.model_copy(update={"peak_lr": rate})
    name = f"pilot-{arm.run}-batch{train.batch_tokens}-rate{rate:.3g}"
    return arm.model_copy(update={"train": train, "run": name})


def outcome(trial: RunConfig, tokens: Tokens) -> dict[str, Any]:
    """What is kept of one trial, trained, or read if it was before: loss (None if it diverged) and seconds."""
    place = checkpoint.folder(trial, tokens.digest())
    kept = paths.STATE / "pilot" / f"{place.name}.json"
    if not kept.exists():
        with checkpoint.claimed(place):
            done = fit(trial, tokens, ALONE)
            loss = None if done.diverged_at is not None else float(done.heldout["loss"].iloc[-1])
            write_json(kept, {"loss": loss, "seconds": done.provenance["seconds"]})
            checkpoint.discard(place)
    found: dict[str, Any] = read_json(kept)
    return found


def explore(arm: RunConfig, rates: Sequence[float], tokens: Tokens) -> tuple[dict[float, float], float]:
    """The held-out loss of one arm by its peak learning rate, and the seconds that it took."""
    seconds = 0.0

    def loss(rate: float) -> float:
        nonlocal seconds
        found = outcome(at_rate(arm, rate), tokens)
        seconds += found["seconds"]
        return float("inf") if found["loss"] is None else float(found["loss"])

    return bracket(loss, rates), seconds


def run(size: str) -> pd.DataFrame:
    """Train all trials of one size and write their table and the machine's record.

    Returns:
        A row a trial, COLUMNS; loss in nats per token, missing where a trial diverged.
    """
    plan, tokens = load(size), Tokens()
    rows, total = [], 0.0
    for number, arm in enumerate(plan.arms, 1):
        losses, seconds = explore(arm, plan.peak_lrs, tokens)
        said = "  ".join(f"{rate:.3g}: {loss:.3f}" for rate, loss in losses.items())
        print(f"arm {number} of {len(plan.arms)}: {arm.run}, {arm.train.batch_tokens} a step: {said}", file=sys.stderr)
        same = [size, arm.model.d_model, arm.gamma, arm.variant, arm.model.gate, arm.train.batch_tokens]
        rows += [[*same, rate, arm.steps, loss] for rate, loss in losses.items()]
        total += seconds
    table = pd.DataFrame(rows, columns=COLUMNS).replace(float("inf"), float("nan"))
    write_csv(folder(size) / "trials.csv", table)
    device = machine.device(plan.arms[0].train.device)
    record = machine.provenance(device) | {"trials": len(table), "seconds": round(total, 1)}
    write_json(folder(size) / "provenance.json", record)
    return table
