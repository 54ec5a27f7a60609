"""Mixtures of experts: how many parameters work on a token, and whether routers use their experts evenly."""

import numpy as np
import pandas as pd

from smallinit import config
from smallinit.analysis.family import EXPERTS, sizes_of
from smallinit.analysis.ladder import Arms
from smallinit.planner import count_parameters

DECIDED = 0.5  # a router below this share of the largest entropy is called decided


def parameter_table(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a run: all its parameters, and those that one token meets; from the resolved configuration.

    Columns: run, experts, chosen (both 1 in a dense model), parameters, active, active share.
    """
    rows = []
    for run in runs["run"]:
        model = config.load_run(run).model
        counts = count_parameters(model)
        experts, chosen = (model.moe.n_experts, model.moe.top_k) if model.moe else (1, 1)
        rows.append([run, experts, chosen, counts.total, counts.active, counts.active / counts.total])
    return pd.DataFrame(rows, columns=["run", "experts", "chosen", "parameters", "active", "active share"])


def router_table(runs: pd.DataFrame, routers: pd.DataFrame) -> pd.DataFrame:
    """One row a run and layer: how evenly its router uses the experts, and how sure it is.

    Columns: run, gamma, variant, layer (from 0), experts, least and most (loads over the even one, 1/E), entropy (over
    its largest value ln E: 1 is undecided), balance_loss (1 is even).
    """
    columns = ["run", "gamma", "variant", "layer", "experts", "least", "most", "entropy", "balance_loss"]
    if routers.empty or runs.empty:
        return pd.DataFrame(columns=columns)
    groups = routers.groupby(["run", "layer"])
    table = groups.agg(
        experts=("load", "size"),
        least=("load", "min"),
        most=("load", "max"),
        entropy=("entropy", "first"),
        balance_loss=("balance_loss", "first"),
    ).reset_index()
    table["least"], table["most"] = table["least"] * table["experts"], table["most"] * table["experts"]
    table["entropy"] /= np.log(table["experts"])
    return runs[["run", "gamma", "variant"]].merge(table, on="run")[columns]


def router_text(table: pd.DataFrame) -> str:
    """What the routers do, Markdown: a line a run. table: of `router_table`."""
    lines = []
    for run, layers in table.groupby("run", sort=False):
        decided = int((layers["entropy"] < DECIDED).sum())
        lines.append(
            f"* **`{run}`**: the busiest expert of a block gets up to {layers['most'].max():.2f} times its even share, "
            f"the idlest down to {layers['least'].min():.2f} times; mean balance loss "
            f"{layers['balance_loss'].mean():.3f}; mean entropy {layers['entropy'].mean():.2f} of its largest value, "
            f"below {DECIDED:g} in {decided} of {len(layers)} blocks."
        )
    return "\n".join(lines) or "No router was measured."


def expert_runs(arms: Arms) -> pd.DataFrame:
    """Rows of the mixtures of experts that finished: of the first seed, by size, variant and gamma."""
    runs = arms.results.runs
    first = runs["seed"] == runs["seed"].iloc[0]
    own = runs[runs["variant"].isin(EXPERTS.values()) & first & ~runs["diverged"]]
    order = {size: number for number, size in enumerate(sizes_of(arms, EXPERTS))}
    return own.sort_values(["size", "variant", "gamma"], key=lambda c: c.map(order) if c.name == "size" else c)
