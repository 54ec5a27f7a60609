"""Figures and tables: the same bytes each time, nothing of the day or the machine in them."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from smallinit.plots import style


def drawn() -> Figure:
    style.use()
    figure, axes = plt.subplots(layout="constrained")
    axes.plot([1, 2, 3], [1, 4, 9], color=style.gamma_color(1.0), label="γ = 1", marker="o")
    axes.fill_between([1, 2], [1, 2], [2, 3], alpha=0.2, hatch="//")
    axes.legend()
    style.headline(figure, "a title", "small print")
    return figure


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_a_figure_saved_twice_has_the_same_bytes_with_no_date_inside(tmp_path: Path, kind: str) -> None:
    for name in ("a", "b"):
        style.save(drawn(), name, tmp_path)
    first, second = ((tmp_path / f"{name}.{kind}").read_bytes() for name in ("a", "b"))
    assert first == second and len(first) > 1000
    assert not re.search(rb"20\d\d-\d\d-\d\d|dc:date|tEXt(Software|Creation)|tIME", first)


def test_a_figure_has_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    style.save(drawn(), "here", tmp_path)
    script = (
        "import pathlib, sys, test_style; test_style.style.save(test_style.drawn(), 'there', pathlib.Path(sys.argv[1]))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Shanghai", "SOURCE_DATE_EPOCH": "0"}
    subprocess.run([sys.executable, "-c", script, tmp_path], cwd=Path(__file__).parent, env=environment, check=True)
    for kind in ("svg", "png"):
        assert (tmp_path / f"here.{kind}").read_bytes() == (tmp_path / f"there.{kind}").read_bytes()


def test_figures_go_to_the_projects_folder_and_are_closed(project: Path) -> None:
    before = plt.get_fignums()
    style.save(drawn(), "ladder/x")
    assert sorted(p.name for p in (project / "figures" / "ladder").iterdir()) == ["x.png", "x.svg"]
    assert plt.get_fignums() == before


def test_a_page_shows_the_saved_picture_at_the_size_on_screen(tmp_path: Path) -> None:
    style.use()
    shown = style.save(drawn(), "x", tmp_path)
    whole, small = Image.open(tmp_path / "x.png"), Image.open(io.BytesIO(shown.data))
    assert small.size == tuple(round(side * 90 / 150) for side in whole.size) and small.mode == "P"
    again = np.asarray(whole.convert("RGB").resize(small.size), dtype=float)
    assert np.abs(np.asarray(small.convert("RGB"), dtype=float) - again).mean() < 3, "of 255: it is the same picture"


def test_every_gamma_has_a_colour_of_its_own_and_an_unknown_one_is_grey() -> None:
    assert len(set(style.GAMMA_COLORS.values())) == len(style.GAMMA_COLORS)
    assert style.gamma_color(0.33) == style.OTHER not in style.GAMMA_COLORS.values()


def test_a_table_is_saved_as_csv_and_as_markdown(tmp_path: Path) -> None:
    frame = pd.DataFrame({"run": ["a|b", "c"], "loss": [1.23456789, np.nan], "n": [1, 2]})
    style.save_table(frame, "t", tmp_path)
    assert (tmp_path / "t.csv").read_bytes() == b"run,loss,n\na|b,1.23457,1\nc,,2\n"
    assert (tmp_path / "t.md").read_text().splitlines() == [
        "| run | loss | n |",
        "| --- | ---: | ---: |",
        "| a\\|b | 1.235 | 1 |",
        "| c | – | 2 |",
    ]
