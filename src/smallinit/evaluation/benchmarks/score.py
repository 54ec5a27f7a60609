"""Measures of every item, and their summary by task.

* Bits per byte of the right answer: what the OLMo team uses where accuracy is still chance; every model has one.
* Choice: is the right continuation the likeliest one? `correct` compares log p, `correct_norm` log p per byte.
* Exact match: does the model, writing greedily, state the right answer?
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from smallinit.analysis.config import AnalysisConfig
from smallinit.analysis.statistics import bootstrap_ratio
from smallinit.evaluation.benchmarks.answers import EXTRACT, STOPS
from smallinit.evaluation.benchmarks.config import Answer, Generate
from smallinit.evaluation.benchmarks.items import Item
from smallinit.evaluation.scoring import Scorer

COLUMNS = [
    *("task", "item", "language", "group", "level", "choices", "gold", "correct", "correct_norm"),
    *("gold_nats", "gold_bytes", "generated", "exact", "truncated"),
]


def score(items: Sequence[Item], scorer: Scorer, answers: dict[str, Answer | None], generate: Generate) -> pd.DataFrame:
    """Every measure of every item: one row an item, COLUMNS.

    Args:
        items: of any tasks.
        scorer: the model.
        answers: how the answer is found in a text, by task.
        generate: the tasks whose answers the model has to write.
    """
    pairs = [pair for item in items for pair in zip(item.contexts, item.continuations, strict=True)]
    scores = scorer.loglikelihoods(pairs)
    written = _written(items, scorer, answers, generate)
    rows, start = [], 0
    for item in items:
        own = scores.iloc[start : start + len(item.continuations)]
        start += len(own)
        row = measures(item, own["nats"].to_numpy())
        row |= {"generated": None, "exact": None, "truncated": int((own["truncated"] > 0).any())}
        if answers[item.task] == "greedy":
            row["exact"] = int(own["greedy"].iloc[item.gold])
        elif (item.task, item.item) in written:
            text = written[item.task, item.item]
            row |= {"generated": text, "exact": int(is_right(item, text, answers[item.task]))}
        rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS).astype(
        {key: "Int64" for key in ("level", "correct", "correct_norm", "exact")}
    )


def measures(item: Item, nats: np.ndarray) -> dict[str, Any]:
    """What the likelihoods of its continuations, (n,) nats, say about an item."""
    sizes = np.array([len(continuation.encode()) for continuation in item.continuations])
    best, best_norm = int(nats.argmin()), int((nats / sizes).argmin())
    return {
        **{"task": item.task, "item": item.item, "language": item.language, "group": item.group, "level": item.level},
        **{"choices": item.choices, "gold": item.gold},
        "correct": int(best == item.gold) if item.choices else None,
        "correct_norm": int(best_norm == item.gold) if item.choices else None,
        **{"gold_nats": float(nats[item.gold]), "gold_bytes": int(sizes[item.gold])},
    }


def is_right(item: Item, text: str, answer: str | None) -> bool:
    """Whether `text` states the answer that the published solution states."""
    extract = EXTRACT[answer or ""]
    return extract(text) == extract(item.answer)


def _written(
    items: Sequence[Item], scorer: Scorer, answers: dict[str, Answer | None], generate: Generate
) -> dict[tuple[str, str], str]:
    """What the model writes after the context of each item of the tasks to generate for, by task and item."""
    written: dict[tuple[str, str], str] = {}
    for task in generate.tasks:
        own = [item for item in items if item.task == task]
        prompts = [item.contexts[item.gold] for item in own]
        texts = scorer.generate(prompts, min(generate.max_tokens, scorer.seq_len // 2), STOPS[answers[task] or ""])
        written |= {(task, item.item): text for item, text in zip(own, texts, strict=True)}
    return written


# ------------------------------------------------------------------------------------------------------------- summary

SUMMARY = [
    *("task", "language", "items", "truncated", "chance", "accuracy", "accuracy_se", "accuracy_norm"),
    *("accuracy_norm_se", "exact", "exact_se", "bits_per_byte", "bits_per_byte_low", "bits_per_byte_high"),
]


def summarize(table: pd.DataFrame, config: AnalysisConfig) -> pd.DataFrame:
    """One row a task, SUMMARY: accuracies with standard error and chance, bits per byte with an interval over items.

    Args:
        table: what `score` returns.
        config: of the bootstrap.
    """
    rows = []
    for task, own in table.groupby("task", sort=False):
        bits, sizes = own["gold_nats"].to_numpy() / math.log(2), own["gold_bytes"].to_numpy(dtype=float)
        row = {"task": task, "language": own["language"].iloc[0], "items": len(own)}
        row |= {"truncated": int(own["truncated"].sum()), "bits_per_byte": float(bits.sum() / sizes.sum())}
        row["chance"] = float((1 / own["choices"]).mean()) if own["choices"].iloc[0] else None
        for name, column in (("accuracy", "correct"), ("accuracy_norm", "correct_norm"), ("exact", "exact")):
            row[name], row[f"{name}_se"] = share(own[column])
        if len(own) > 1:
            interval = bootstrap_ratio(bits, sizes, "items", config)
            row |= {"bits_per_byte_low": interval.low, "bits_per_byte_high": interval.high}
        rows.append(row)
    return pd.DataFrame(rows, columns=SUMMARY)


def share(hits: pd.Series) -> tuple[float | None, float | None]:
    """The mean of zeros and ones and its standard error sqrt(p (1 - p) / n); None where the measure does not apply."""
    known = hits.dropna().astype(float)
    if known.empty:
        return None, None
    p = float(known.mean())
    return p, math.sqrt(p * (1 - p) / len(known))
