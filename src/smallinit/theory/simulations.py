"""What the stage `simulate` measures on models at their start, kept in `results/theory`.

Apart from drawing, because the last digits of a matrix product differ between processors: figures and tables are made
from the files, and so have the same bytes everywhere.
"""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from smallinit import paths
from smallinit.files import write_csv
from smallinit.theory import coordinates, flow
from smallinit.theory.config import TheoryPlan
from smallinit.theory.formulas import PAPER_WIDTHS, SMALL_EPS, USUAL_EPS

ATTENUATION_TOKENS = 64
DEPTH, DEPTH_TOKENS = 4, 64
AVERAGED = 64  # tokens of a sequence


def attenuations(settings: TheoryPlan) -> pd.DataFrame:
    """RMS after the first norm, at the widths of the settings and of the paper; see `flow.attenuations`."""
    widths = sorted({*settings.widths, *PAPER_WIDTHS.values()})
    return flow.attenuations(widths, settings.gammas, [USUAL_EPS, SMALL_EPS], ATTENUATION_TOKENS)


def depth(settings: TheoryPlan) -> pd.DataFrame:
    """Update over stream in each block of a deeper model; see `flow.through_depth`."""
    width = max(settings.coordinate.widths)
    return flow.through_depth(width, DEPTH, settings.gammas, tokens=DEPTH_TOKENS, mlp="swiglu")


def averaging(settings: TheoryPlan) -> pd.DataFrame:
    """The first and the last token of a sequence; see `flow.averaging`."""
    return flow.averaging(settings.coordinate.widths, settings.gammas, AVERAGED, settings.seeds)


def steps(settings: TheoryPlan) -> pd.DataFrame:
    """How far the first optimizer steps move models of several widths; see `coordinates.check`."""
    return coordinates.check(settings.coordinate)


SIMULATIONS: dict[str, Callable[[TheoryPlan], pd.DataFrame]] = {
    "attenuations": attenuations,
    "flows": flow.flows,
    "depth": depth,
    "averaging": averaging,
    "steps": steps,
}


def file(name: str) -> Path:
    """Where the table of one simulation lies."""
    return paths.RESULTS / "theory" / f"{name}.csv"


def run(name: str, settings: TheoryPlan) -> pd.DataFrame:
    """Simulate, write the table, and return it as it is on disk."""
    write_csv(file(name), SIMULATIONS[name](settings))
    return read(name)


def read(name: str) -> pd.DataFrame:
    """The table of one simulation.

    Raises:
        FileNotFoundError: the stage `simulate` has not run.
    """
    if not file(name).exists():
        raise FileNotFoundError(f"{file(name).relative_to(paths.ROOT)} is missing: run `dvc repro simulate`")
    return pd.read_csv(file(name))
