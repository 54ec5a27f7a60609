"""Files are whole or as they were, JSON is strict, CSV is stable."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from smallinit.files import replacing, write_csv, write_json


def test_a_failure_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as temporary:
        temporary.write_text("ne")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_the_old_file_stays_readable_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    for content in ("old", "new"):
        with replacing(path) as temporary:
            temporary.write_text(content)
            assert temporary.parent == path.parent  # a rename within one file system
            assert (path.read_text() if path.exists() else None) == {"old": None, "new": "old"}[content]
    assert path.read_text() == "new" and list(path.parent.iterdir()) == [path]


def test_a_block_that_writes_nothing_is_an_error_and_not_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "a.txt"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_are_not_finite_become_null_at_any_depth(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = {
        "a": math.nan,
        "b": [1.5, -math.inf, (np.float64("nan"), "NaN")],
        "c": {"d": math.inf, "e": True, "f": 1e-12},
    }
    write_json(path, value)
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {
        **{"a": None, "b": [1.5, None, [None, "NaN"]]},
        "c": {"d": None, "e": True, "f": 1e-12},
    }


def test_chinese_is_written_as_it_is(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"名": "法"})
    assert '"名": "法"' in (tmp_path / "a.json").read_text(encoding="utf-8")


def test_a_value_that_json_does_not_know_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", 1)
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert (tmp_path / "a.json").read_text() == "1\n" and len(list(tmp_path.iterdir())) == 1


def test_csv_has_seven_digits_no_index_and_empty_cells_for_nan(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", pd.DataFrame({"n": [1, 2], "x": [1 / 3, math.nan], "s": ["a", "b"]}))
    assert (tmp_path / "a.csv").read_bytes() == b"n,x,s\n1,0.3333333,a\n2,,b\n"
