"""Tables of many runs, read at once: the same as one by one."""

from pathlib import Path

import pandas as pd
import pytest

from smallinit.analysis.collect import read_tables

TABLES = {
    "s-0.5-both": "step,name,gate\n0,embed.weight,\n1,head.weight,0.5\n",
    "s-1.0-both": "step,name,gate\n0,embed.weight,0.1234567\n",
    "m-0.5-moe": "step,name,gate,load\n2,router,1e-12,3\n",  # another header
    "m-1.0-moe": "step,name,gate\n",  # diverged
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    for run, text in TABLES.items():
        (tmp_path / run).write_text(text)
    return {run: tmp_path / run for run in TABLES}


def test_tables_of_all_runs_are_those_of_each_one_below_the_other(files: dict[str, Path]) -> None:
    one_by_one = [pd.read_csv(file).assign(run=run) for run, file in files.items()][:3]
    wanted = pd.concat(one_by_one, ignore_index=True)
    found = read_tables(files)
    pd.testing.assert_frame_equal(found[wanted.columns], wanted, check_exact=True)
    assert found["step"].dtype == "int64", "an empty table blurs no type"


def test_where_all_runs_diverged_there_are_columns_and_no_rows(files: dict[str, Path]) -> None:
    found = read_tables({"m-1.0-moe": files["m-1.0-moe"]})
    assert found.empty and list(found.columns) == ["step", "name", "gate", "run"]
    assert read_tables({}).empty
