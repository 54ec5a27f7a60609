"""Where things lie. The project's root is found from the working directory, so a notebook runs from anywhere."""

import os
from pathlib import Path


def find_root(start: Path | None = None) -> Path:
    """The nearest folder at or above `start` that holds `dvc.yaml` and `params.yaml`, else the package's own project.

    Raises:
        FileNotFoundError: neither exists.
    """
    start = (start or Path.cwd()).absolute()
    for folder in (start, *start.parents, Path(__file__).resolve().parents[2]):
        if (folder / "dvc.yaml").exists() and (folder / "params.yaml").exists():
            return folder
    raise FileNotFoundError(f"no dvc.yaml beside a params.yaml at or above {start}: run from inside the project")


try:
    ROOT = find_root()
except FileNotFoundError:  # imported as a library, by somebody who has no project: commands say what is missing
    ROOT = Path.cwd()
PARAMS = ROOT / "params.yaml"
NOTEBOOKS = ROOT / "notebooks"
FIGURES = ROOT / "figures"
RESULTS = ROOT / "results"
PLAN = RESULTS / "plan"
EXECUTED = RESULTS / "notebooks"
ARCHIVES = ROOT / "data" / "archives"
TOKENS = ROOT / "data" / "tokens"
MODELS = ROOT / "models"
STATE = ROOT / "state"  # of interrupted runs, outside every DVC output
LOGS = ROOT / "logs"
# Verified downloads, shared by all profiles; DVC never touches them.
DOWNLOADS = Path(os.environ.get("SMALLINIT_DOWNLOADS", ROOT / "data" / "downloads"))
