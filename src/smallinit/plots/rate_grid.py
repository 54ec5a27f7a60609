"""Gain of gamma = 1 at every combination of the two arms' learning rates, as a map."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch, Rectangle

from smallinit.analysis.rate_controls import best_rates
from smallinit.plots.passages import COLORS
from smallinit.plots.style import headline

TUNED: dict[str, Any] = {"fill": False, "ec": "black", "lw": 2.5}
BEST: dict[str, Any] = {"fill": False, "ec": "black", "lw": 1.5, "ls": "--"}


def ticks(rates: pd.Series, times: pd.Series) -> list[str]:
    """A rate and, below it, how many times the tuned one it is."""
    pairs = sorted(set(zip(rates, times, strict=True)))
    return [f"{rate:.2g}\n{factor:.3g} ×" for rate, factor in pairs]


def draw_grid(axes: Axes, own: pd.DataFrame, reach: float) -> AxesImage:
    """The grid of one size; thick: both arms at their tuned rates, dashed: each at the best of its own."""
    gains = own.pivot(index="base_rate", columns="small_rate", values="gain")
    image = axes.imshow(gains, cmap=COLORS, vmin=-reach, vmax=reach, aspect="auto", origin="lower")
    rows, columns = ({rate: place for place, rate in enumerate(index)} for index in (gains.index, gains.columns))
    for cell in own.to_dict("records"):
        known = not np.isnan(cell["gain"])
        text = f"{cell['gain']:+.3f}\n[{cell['low']:+.3f}, {cell['high']:+.3f}]" if known else "diverged"
        place = columns[cell["small_rate"]], rows[cell["base_rate"]]
        axes.text(*place, text, ha="center", va="center", fontsize=8.5)
        if cell["base_times"] == cell["small_times"] == 1:
            axes.add_patch(Rectangle((place[0] - 0.48, place[1] - 0.48), 0.96, 0.96, **TUNED))
    best = best_rates(own)
    if best is not None:
        corner = columns[best["small_rate"]] - 0.42, rows[best["base_rate"]] - 0.42
        axes.add_patch(Rectangle(corner, 0.84, 0.84, **BEST))
    axes.set_xticks(range(len(columns)), ticks(own["small_rate"], own["small_times"]))
    axes.set_yticks(range(len(rows)), ticks(own["base_rate"], own["base_times"]))
    axes.set(xlabel="peak learning rate of γ = 1", title=f"size {own['size'].iloc[0]}")
    axes.grid(False)
    return image


def message(table: pd.DataFrame) -> str:
    """In how many combinations each arm wins, and the gain where each arm is at its best; one sentence."""
    best = {size: best_rates(own) for size, own in table.groupby("size", sort=False)}
    parts = [f"{row['gain']:+.3f} at size {size}" for size, row in best.items() if row is not None]
    told = f"; each at its best: {', '.join(parts)}" if parts else ""
    wins, losses = (table["low"] > 0).sum(), (table["high"] < 0).sum()
    return f"γ = 1 wins in {wins} of {len(table)} combinations of rates, loses in {losses}{told}"


def rate_grid(table: pd.DataFrame) -> Figure:
    """A panel a size, a cell a combination of rates: the gain with its interval.

    table: of `rate_controls.rate_grid`.
    """
    sizes = list(table["size"].unique())
    figure, panels = plt.subplots(
        1, len(sizes), figsize=(4.4 * len(sizes) + 2.6, 3.9), layout="constrained", squeeze=False
    )
    reach = float(table["gain"].abs().max())
    for axes, size in zip(panels[0], sizes, strict=True):
        image = draw_grid(axes, table[table["size"] == size], reach if reach > 0 else 1.0)
    panels[0][0].set_ylabel("peak learning rate of γ = 0.5")
    figure.colorbar(image, ax=panels, label="gain of γ = 1 (nats per token)")
    frames = [Patch(**TUNED, label="tuned rates"), Patch(**BEST, label="each arm at the best of its rates")]
    figure.legend(handles=frames, loc="outside lower center", ncols=2)
    note = "both at half, once and twice its rates; above zero: γ = 1 is better; brackets: over documents; one seed"
    headline(figure, message(table), note)
    return figure
