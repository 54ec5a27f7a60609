"""Figures of mixtures of experts: how much each expert gets to do, how sure routers are."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from smallinit.plots.style import gamma_color, headline


def loads(runs: pd.DataFrame, routers: pd.DataFrame) -> Figure:
    """Load of every expert over the even one: a row a run, a column a block, experts from busy to idle."""
    routers = routers[routers["run"].isin(runs["run"])]
    layers = sorted(routers["layer"].unique())
    shape = len(runs), len(layers)
    figure, panels = plt.subplots(
        *shape, figsize=(2.2 * shape[1] + 1.6, 1.5 * shape[0] + 0.8), sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for row, run in zip(panels, runs.to_dict("records"), strict=True):
        for axes, layer in zip(row, layers, strict=True):
            block = routers[(routers["run"] == run["run"]) & (routers["layer"] == layer)]
            shares = (block["load"] * len(block)).sort_values(ascending=False)
            axes.bar(range(1, len(shares) + 1), shares, color=gamma_color(run["gamma"]))
            axes.axhline(1, color="black", lw=1, ls=":")
        row[0].set_ylabel(run["run"], rotation=0, ha="right", va="center", fontsize=9)
    for axes, layer in zip(panels[0], layers, strict=True):
        axes.set_title(f"block {layer + 1}")
    figure.supxlabel("experts of the block, from busy to idle", fontsize=10)
    even = routers.assign(share=routers["load"] * routers.groupby(["run", "layer"])["load"].transform("size"))
    most = even.loc[even["share"].idxmax()]
    where = f"{most['run']}, block {most['layer'] + 1:.0f}"
    headline(
        figure,
        f"The busiest expert gets {most['share']:.2f} times its even share ({where})",
        "load over the even share (dotted: 1), on held-out text; one seed",
    )
    return figure


def routers_by_layer(table: pd.DataFrame) -> Figure:
    """Entropy of the router (left) and balance loss (right) by block, a line a run. table: of `router_table`."""
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    lines = dict(zip(table["variant"].unique(), ("-", "--", ":"), strict=False))
    for (variant, gamma), own in table.groupby(["variant", "gamma"], sort=False):
        for _, run in own.groupby("run"):
            look = {"color": gamma_color(gamma), "ls": lines.get(variant, "-."), "label": f"{variant}, γ = {gamma:g}"}
            panels[0].plot(run["layer"] + 1, run["entropy"], marker="o", **look)
            panels[1].plot(run["layer"] + 1, run["balance_loss"], marker="o", **look)
    panels[0].set(ylim=(0, 1.05), title="entropy over its largest value (1: undecided)", ylabel="entropy / ln E")
    panels[1].set(title="balance loss (1: even)", ylabel="balance loss")
    for axes in panels:
        axes.axhline(1, color="black", lw=1, ls=":")
        axes.set(xlabel="block", xticks=sorted(table["layer"].unique() + 1))
    panels[1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    means = ", ".join(
        f"{mean:.2f} at γ = {gamma:g}" for gamma, mean in table.groupby("gamma")["entropy"].mean().items()
    )
    headline(figure, f"Mean entropy of the routers, of its largest value: {means}", "on held-out text; one seed")
    return figure
