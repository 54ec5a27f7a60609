"""What gamma = 1 is worth in model size: arrows from its losses to the curve of gamma = 0.5."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from smallinit.analysis.effective_size import REACH, Worth
from smallinit.analysis.ladder import BASE, SMALL
from smallinit.analysis.statistics import Interval
from smallinit.plots.ladder import variant_name
from smallinit.plots.style import gamma_color, headline


def message(found: Mapping[str, Worth]) -> str:
    """What the common factors of all variants say, in one sentence."""
    stated = {variant: each.pooled for variant, each in found.items() if isinstance(each.pooled, Interval)}
    if not stated:
        return "No common factor could be stated: the losses of γ = 1 lie too far beyond the curve"
    parts = [f"{interval.value:+.0%} ({variant})" for variant, interval in stated.items()]
    return f"In loss, γ = 1 is worth a change of model size by {', '.join(parts)}"


def draw_worth(axes: Axes, found: Worth, variant: str) -> None:
    """Both arms' losses against parameters, the fitted curve (dotted beyond its points), an arrow a size."""
    base, small = gamma_color(BASE), gamma_color(SMALL)
    inside = np.geomspace(found.sizes[0], found.sizes[-1], 100)
    wide = np.geomspace(found.sizes[0] / REACH, found.sizes[-1] * REACH, 200)
    axes.plot(wide / 1e6, found.curve.loss(wide), ":", color=base, lw=1)
    axes.plot(inside / 1e6, found.curve.loss(inside), color=base, lw=1)
    axes.plot(found.sizes / 1e6, found.base, "o", color=base, label=f"γ = {BASE:g}, with fitted curve")
    axes.plot(found.sizes / 1e6, found.small, "o", color=small, label=f"γ = {SMALL:g}")
    for size, loss, interval in zip(found.sizes / 1e6, found.small, found.intervals[:-1], strict=True):
        if not isinstance(interval, Interval):
            axes.annotate("?", (size, loss), (6, 3), textcoords="offset points", fontsize=9, color=small)
            continue
        end = size * (1 + interval.value)
        axes.annotate("", (end, loss), (size, loss), arrowprops={"arrowstyle": "->", "color": small, "lw": 1.3})
        aside = 1 if interval.value < 0 else -1  # on the side of the arrow that the curve does not cross
        label = axes.annotate(
            f"{interval.value:+.0%}",
            ((size * end) ** 0.5, loss),
            (0, 4 * aside),
            textcoords="offset points",
            fontsize=9,
        )
        label.set(ha="center", va="bottom" if aside > 0 else "top")
    axes.set(xscale="log", xlabel="parameters (millions)", title=variant_name(variant))
    axes.set_xticks(found.sizes / 1e6, [f"{size / 1e6:.2g}" for size in found.sizes])
    axes.set_xlim(wide[0] / 1e6, wide[-1] / 1e6)
    low, high = (edge(np.concatenate([found.base, found.small])) for edge in (np.min, np.max))
    axes.set_ylim(low - 0.15 * (high - low), high + 0.15 * (high - low))
    axes.minorticks_off()


def effective_size_figure(found: Mapping[str, Worth]) -> Figure:
    """One panel a variant whose curve could be fitted."""
    columns = len(found)
    figure, panels = plt.subplots(1, columns, figsize=(max(5.5, 4 * columns), 3.8), layout="constrained", squeeze=False)
    for axes, (variant, worth) in zip(panels[0], found.items(), strict=True):
        draw_worth(axes, worth, variant)
    panels[0][0].set_ylabel("held-out loss (nats per token,\nwhole documents)")
    panels[0][0].legend(loc="upper right", fontsize=8)
    headline(
        figure,
        message(found),
        f"arrows: from γ = {SMALL:g} to the size at which γ = {BASE:g} has the same loss; dotted: beyond the points",
    )
    return figure
