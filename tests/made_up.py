"""Made-up results with chosen losses, over several seeds, for statistics that fit something to them."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from smallinit.analysis.collect import Results

Arm = tuple[str, float, int]  # size, gamma, seed; all of one variant


def results(
    losses: Mapping[Arm, float | None],
    parameters: Mapping[str, float],
    *,
    noise: float = 0.0,
    seed: int = 0,
    count: int = 60,
    variant: str = "both",
) -> Results:
    """Runs with these losses (None: diverged) in expectation over documents, which are unequal but the same for all.

    `noise` is the standard deviation, over documents, of what is a run's own in its loss; without it means are exact.
    """
    random = np.random.default_rng(seed)
    tokens, difficulty = random.integers(50, 150, count), random.normal(0, 1, count)
    difficulty -= (tokens * difficulty).sum() / tokens.sum()
    rows, documents, curves = [], [], []
    for (size, gamma, number), loss in losses.items():
        run = f"{size}-{gamma}-{variant}" + (f"-seed{number}" if number else "")
        rows.append(
            {
                **{
                    "run": run,
                    "size": size,
                    "gamma": gamma,
                    "variant": variant,
                    "seed": number,
                    "diverged": loss is None,
                },
                **{
                    "d_model": 64,
                    "parameters": parameters[size],
                    "parameters_without_embeddings": parameters[size] / 2,
                },
                **{"tokens": 128, "peak_lr": 0.004 / gamma, "loss": loss, "bits_per_byte": loss},
            }
        )
        if loss is not None:
            sums = tokens * (loss + difficulty + random.normal(0, noise, count))
            documents.append(pd.DataFrame({"run": run, "document": range(count), "tokens": tokens, "loss_sum": sums}))
            curves.append(
                pd.DataFrame({"run": run, "step": [0, 1, 2], "tokens": [0, 64, 128], "loss": [8.3, 6.0, loss]})
            )
    runs = pd.DataFrame(rows).astype({"loss": float, "bits_per_byte": float})
    trained, texts = (pd.concat(tables, ignore_index=True) for tables in (curves, documents))
    none = pd.DataFrame()
    return Results(
        runs=runs, curves=trained, heldout=trained, documents=texts, attention=none, matrices=none, blocks=none,
        routers=none, orphans=[],
    )  # fmt: skip
