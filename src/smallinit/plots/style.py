"""One look for every figure, and one way to save it: SVG and PNG, the same bytes each time."""

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from IPython.display import Image as DisplayedImage
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation
from PIL import Image

from smallinit import paths
from smallinit.files import replacing

# Okabe & Ito's colours, told apart with every common colour-vision deficiency. A gamma has the same colour everywhere.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#F0E442",
)
INDIGO, FOREST = "#332288", "#117733"  # of Tol's palette, for two more gammas
GAMMA_COLORS = {0.25: PURPLE, 0.3: INDIGO, 0.5: BLUE, 0.75: SKY, 0.8: FOREST, 1.0: RED, 1.25: ORANGE, 1.5: YELLOW}
LANGUAGE_COLORS = {"en": BLUE, "zh": ORANGE}
LANGUAGE_NAMES = {"en": "English", "zh": "Chinese"}
OTHER = "#666666"


def gamma_color(gamma: float) -> str:
    """The colour of a gamma; one that is not in the palette is grey."""
    return GAMMA_COLORS.get(gamma, OTHER)


def size_color(number: int, count: int) -> tuple[float, float, float, float]:
    """The colour of one of `count` sizes, numbered from small to large."""
    return mpl.colormaps["cividis"](0.15 + 0.7 * number / max(count - 1, 1))


def use() -> None:
    """Set the style for the figures that follow."""
    pd.set_option("display.max_colwidth", None)  # sentences in tables are shown whole
    sns.set_theme(context="notebook", style="ticks", palette=[BLUE, RED, GREEN, ORANGE, PURPLE, SKY])
    mpl.rcParams.update(
        {
            "figure.dpi": 90,
            "savefig.dpi": 150,
            "savefig.bbox": "tight",
            "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
            "axes.titlelocation": "left",
            "axes.titlesize": 11,
            "axes.labelsize": 10,
            "xtick.labelsize": 9,
            "ytick.labelsize": 9,
            "legend.fontsize": 9,
            "legend.frameon": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "svg.hashsalt": "smallinit",  # else element ids differ between runs
            "svg.fonttype": "path",
        }
    )


def headline(figure: Figure, title: str, subtitle: str = "") -> None:
    """Put the message of a figure above all its panels, and what it is made from in small print below the message."""

    def write(points: float, text: str, **look: Any) -> None:  # points above the figure, however tall it is
        above = figure.transFigure + ScaledTranslation(0, points / 72, figure.dpi_scale_trans)
        figure.text(0.0, 1.0, text, ha="left", va="bottom", transform=above, **look)

    write(22 if subtitle else 4, title, fontsize=13, fontweight="bold")
    if subtitle:
        write(4, subtitle, fontsize=9.5, color="#444444")


def save(figure: Figure, name: str, folder: Path | None = None) -> DisplayedImage:
    """Write `figures/<name>.svg` and `.png`, without dates; returns the picture for a notebook to show."""
    folder = folder or paths.FIGURES
    for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
        with replacing(folder / f"{name}.{kind}") as temporary:
            figure.savefig(temporary, format=kind, metadata=metadata)
    plt.close(figure)  # else a notebook shows it once more
    return reduced(folder / f"{name}.png", figure.dpi / mpl.rcParams["savefig.dpi"])


def reduced(file: Path, scale: float) -> DisplayedImage:
    """A PNG scaled down, in 256 colours: light enough for a page, and much faster than drawing it once more."""
    with Image.open(file) as whole:
        width, height = (round(scale * side) for side in whole.size)
        small = whole.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    small.quantize(256, dither=Image.Dither.NONE).save(content, "png")
    return DisplayedImage(content.getvalue())


def save_table(frame: pd.DataFrame, name: str, folder: Path | None = None) -> pd.DataFrame:
    """Write `figures/<name>.csv` and the same table as Markdown; returns the frame."""
    folder = folder or paths.FIGURES
    with replacing(folder / f"{name}.csv") as temporary:
        frame.to_csv(temporary, index=False, lineterminator="\n", float_format="%.6g")
    with replacing(folder / f"{name}.md") as temporary:
        temporary.write_text(markdown(frame))
    return frame


def markdown(frame: pd.DataFrame) -> str:
    """`frame` as a Markdown table; numbers right-aligned, missing values as a dash."""
    numeric = [pd.api.types.is_numeric_dtype(frame[column]) for column in frame]
    lines = [
        "| " + " | ".join(str(column) for column in frame) + " |",
        "| " + " | ".join("---:" if right else "---" for right in numeric) + " |",
    ]
    for row in frame.itertuples(index=False):
        lines.append("| " + " | ".join(_cell(value) for value in row) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("|", "\\|")
