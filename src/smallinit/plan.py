"""The stage `plan`: in a second, everything that later stages depend on, one small file a stage or run.

* `results/plan/runs/<run>.json`, `fetch.json`, ...: values resolved from `params.yaml` (see `params.py`);
* `results/plan/code/<notebook>.json`: fingerprints of what code it runs (see `fingerprints.py`).

Stages depend on these files instead of on `params.yaml`, notebooks and sources, so they rerun only for what matters.
"""

import shutil

from smallinit import fingerprints, params, paths, resolve
from smallinit.analysis.config import RunList
from smallinit.config import params_digest
from smallinit.files import replacing, write_json


def write() -> list[str]:
    """Write the whole plan; returns the names of its runs.

    Raises:
        ConfigError: `params.yaml` does not fit its schema.
    """
    chosen = params.load()
    content = resolve.plan(chosen)
    shutil.rmtree(paths.PLAN, ignore_errors=True)
    for name, config in content.items():
        write_json(paths.PLAN / f"{name}.json", config.model_dump(mode="json"))
    write_json(paths.PLAN / "runs.json", RunList(runs=chosen.runs).model_dump())
    for notebook in sorted(paths.NOTEBOOKS.glob("*.ipynb")):
        write_json(paths.PLAN / "code" / f"{notebook.stem}.json", fingerprints.code_of(notebook))
    with replacing(paths.PLAN / "params.sha256") as temporary:
        temporary.write_text(f"{params_digest()}  params.yaml\n")
    return chosen.runs
