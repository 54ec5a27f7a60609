"""Made-up results of several variants and seeds, with what controls and mixtures of experts are described by."""

from collections.abc import Mapping
from dataclasses import fields

import made_up
import numpy as np
import pandas as pd

from smallinit.analysis.collect import Results

NORM_EPS = {"standard": 1e-3, "layernorm_standard": 1e-3, "moe_standard": 1e-3, "literal": 1e-5, "gpt2": 1e-5}
PARAMETERS = {"s": 1e6, "m": 2e6}
Losses = Mapping[str, Mapping[made_up.Arm, float | None]]  # by variant, then by size, gamma and seed


def results(losses: Losses, noise: float = 0.0) -> Results:
    """Runs of several variants with these losses, on the same made-up documents; experts have even routers."""
    parts = [made_up.results(own, PARAMETERS, noise=noise, variant=variant) for variant, own in losses.items()]
    names = [field.name for field in fields(Results) if field.name != "orphans"]
    whole = {name: pd.concat([getattr(part, name) for part in parts], ignore_index=True) for name in names}
    runs = whole["runs"]
    runs["norm_eps"] = runs["variant"].map(NORM_EPS).fillna(1e-12)
    curves = whole["curves"]
    curves["learning_rate"], curves["grad_norm"] = 0.01, 1.0
    curves["adam_eps_share"] = curves["step"].map({0: 0.5, 1: 0.2, 2: 0.1})
    of_experts = runs.loc[runs["variant"].str.startswith("moe") & ~runs["diverged"], "run"]
    routers = [router(run, [[0.25] * 4, [0.4, 0.3, 0.2, 0.1]]) for run in of_experts]
    whole["routers"] = pd.concat(routers, ignore_index=True) if routers else pd.DataFrame()
    return Results(**whole, orphans=[])


def router(run: str, loads: list[list[float]]) -> pd.DataFrame:
    """Routers of one run with these loads by layer; their entropy is a half of ln E."""
    tables = [
        pd.DataFrame({"layer": layer, "expert": range(len(load)), "load": load}).assign(
            entropy=np.log(len(load)) / 2, balance_loss=1.0 + layer / 10
        )
        for layer, load in enumerate(loads)
    ]
    return pd.concat(tables, ignore_index=True).assign(run=run)


def pair(base: float | None, small: float | None, size: str = "s", seed: int = 0) -> dict[made_up.Arm, float | None]:
    """Losses of both gammas of one seed."""
    return {(size, 0.5, seed): base, (size, 1.0, seed): small}
