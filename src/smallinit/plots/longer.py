"""Figure of the gain of gamma = 1 over training, for several sizes and lengths of training."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from smallinit.analysis import nulls
from smallinit.analysis.longer import LONG
from smallinit.plots import nulls as draw_nulls
from smallinit.plots.controls import bars
from smallinit.plots.style import headline, size_color

FROM = 0.2  # million tokens: before that no model has learned anything


def gain_over_training(along: pd.DataFrame, ends: pd.DataFrame) -> Figure:
    """Gain of gamma = 1 against training tokens, a line a pair of runs; a dot with its interval where training ends.

    Args:
        along, ends: of `longer.along` and `longer.gains`.
    """
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    sizes = list(ends["size"].unique())
    along, ends = (table.assign(tokens=table["tokens"] / 1e6) for table in (along, ends))
    shown = along[along["tokens"] >= FROM]
    for number, row in enumerate(ends.to_dict("records")):
        size, longer = row["size"], row["variant"] == LONG
        line = shown[(shown["size"] == size) & (shown["variant"] == row["variant"])]
        color, dashes = size_color(sizes.index(size), len(sizes)), "--" if longer else "-"
        axes.plot(line["tokens"], line["gain"], lw=1.5, color=color, ls=dashes)
        aside = 1.02 ** (number - len(ends) / 2)  # ends of equal length would hide each other
        name = f"{size}, {row['tokens']:.0f} M tokens: {row['gain']:+.3f}"
        bars(axes, pd.DataFrame([row]), "gain", [row["tokens"] * aside], color, ls=dashes, label=name)
    null = ends["null"].max()
    if np.isfinite(null):
        draw_nulls.band(axes, null)
    axes.axhline(0, color="black", lw=0.8)
    axes.set(xscale="log", xlabel="training tokens (million)", ylabel="gain of γ = 1\n(nats per token)")
    ticks = [tick for tick in (0.2, 0.5, 1, 2, 4, 8, 16, 32) if tick <= 1.2 * ends["tokens"].max()]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.legend(title="at the end", loc="upper left", bbox_to_anchor=(1, 1))
    ahead = int((nulls.signs(ends, "gain") > 0).sum())
    headline(
        figure,
        f"γ = 1 ends ahead in {ahead} of {len(ends)} pairs of runs",
        "with both interventions; lines: held-out loss on the way; dots: at the end, bars over documents; one seed",
    )
    return figure
