"""The same-gamma null in figures of differences: a grey bar around zero, as far as two seeds of one arm differ."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from smallinit.analysis.nulls import NONE
from smallinit.plots.style import OTHER

LABEL = "two seeds, same γ"
MEANING = "grey: as far as two seeds at the same γ differ"


def bars(axes: Axes, places: Sequence[float] | np.ndarray, null: pd.Series, width: float) -> None:
    """Draw the null behind the differences at these places; null: column `null` of their table, missing: no bar."""
    known = null.notna().to_numpy()
    if known.any():
        own, reach = np.asarray(places)[known], null.to_numpy(dtype=float)[known]
        label = None if LABEL in axes.get_legend_handles_labels()[1] else LABEL
        axes.use_sticky_edges = False  # else grey bars end at the frame
        axes.bar(own, 2 * reach, bottom=-reach, width=width, color=OTHER, alpha=0.25, lw=0, zorder=0, label=label)


def band(axes: Axes, null: float) -> None:
    """The same across the whole width, for one null."""
    axes.axhspan(-null, null, color=OTHER, alpha=0.2, lw=0, label=LABEL)


def note(null: pd.Series) -> str:
    """What the bars are, for the small print of a figure, or why there are none; null: column `null` of its table."""
    return MEANING if null.notna().any() else NONE
