"""The stage `items`: read every task, check that it is complete, choose a subset, write the items and their receipt."""

from pathlib import Path
from typing import Any

import pandas as pd

from smallinit.data.checksum import sha256
from smallinit.data.sources import problem
from smallinit.data.text import uniform
from smallinit.evaluation.benchmarks import items, readers
from smallinit.evaluation.benchmarks.answers import EXTRACT
from smallinit.evaluation.benchmarks.config import ItemsConfig, Task
from smallinit.evaluation.benchmarks.items import Item, ItemsError
from smallinit.files import write_json

OWN = "made by this project"


def read_task(name: str, task: Task, archive: Path) -> list[Item]:
    """All items of a published task.

    Raises:
        CorpusError: the archive is damaged, or the items in it are not as many as they must be.
    """
    found = list(readers.READERS[task.reader](archive, name, task))
    if len(found) != task.count:
        raise problem(archive, ", ".join(task.members), f"{len(found)} items, {name} must have {task.count}")
    return found


def usable(found: list[Item], keys: set[str] | None) -> tuple[list[Item], dict[str, int]]:
    """The items that may be used, and how many were left out why.

    An item that asks just what another one asks counts once. And with `keys` only those items are used, because the
    others stand in the training text.
    """
    allowed = [item for item in found if keys is None or item.item in keys]
    different: dict[tuple[tuple[str, ...], tuple[str, ...]], Item] = {}
    for item in allowed:
        different.setdefault((tuple(item.contexts), tuple(item.continuations)), item)
    kept = list(different.values())
    return kept, {"in_training": len(found) - len(allowed), "duplicates": len(allowed) - len(kept)}


def reserved_keys(task: Task, reserved: pd.DataFrame, sources: set[str]) -> set[str] | None:
    """The ids that were kept out of training, or None if nothing of the task was ever in it.

    Args:
        task: the task.
        reserved: source and key of each document that the corpus has reserved.
        sources: those that the corpus is made of.
    """
    if task.reserved not in sources:
        return None
    return set(reserved.loc[reserved["source"] == task.reserved, "key"].astype(str))


def subset(found: list[Item], size: int | None) -> list[Item]:
    """The `size` items with the smallest hash of task and id, in order: larger subsets hold the smaller."""
    chosen = sorted(found, key=lambda item: uniform("benchmark", item.task, item.item))[:size]
    names = {item.item for item in chosen}
    return [item for item in found if item.item in names]


def chance(found: list[Item]) -> float | None:
    """Accuracy of guessing: the mean of 1 / choices; None where nothing is chosen."""
    return sum(1 / item.choices for item in found) / len(found) if found and found[0].choices else None


def prepare(config: ItemsConfig, archives: Path, corpus: dict[str, Any], reserved: pd.DataFrame) -> dict[str, Any]:
    """Write `data/items` and the receipt; returns the receipt.

    Args:
        config: tasks and archives.
        archives: folder of the archives.
        corpus: the manifest of the corpus that models are trained on.
        reserved: its reserved documents, columns source and key.

    Raises:
        CorpusError: an archive cannot be read.
        ItemsError: nothing is left of a task, or an answer cannot be found in its own solution.
    """
    sources, answers, entries = {entry["source"] for entry in corpus["sources"]}, config.answers(), []
    for name, task in config.tasks.items():
        found = read_task(name, task, archives / config.archives[task.archive].file)
        kept, left_out = usable(found, reserved_keys(task, reserved, sources))
        chosen = subset(kept, config.items)
        entry = {"language": task.language, "licence": task.licence, "archive": task.archive, "found": len(found)}
        entries.append(_write(name, chosen, answers[name], entry | left_out))
    for name, chosen in readers.arithmetic(config.arithmetic).items():
        entry = {"language": chosen[0].language, "licence": OWN, "archive": None, "found": len(chosen)}
        entries.append(_write(name, chosen, answers[name], entry | {"in_training": 0, "duplicates": 0}))
    for other in items.folder().glob("*.jsonl"):
        if other.stem not in answers:
            other.unlink()
    manifest = {"corpus": corpus["corpus"], "items": config.items, "tasks": entries}
    write_json(items.manifest_file(), manifest)
    return manifest


def _write(name: str, chosen: list[Item], answer: str | None, entry: dict[str, Any]) -> dict[str, Any]:
    """Write one task; returns its entry of the receipt."""
    if not chosen:
        raise ItemsError(f"no item of {name} is left: all of them stand in the training text; leave the task out")
    for item in chosen if answer in EXTRACT else []:
        if EXTRACT[answer](item.answer) is None:  # type: ignore[index]
            raise ItemsError(f"{name}, item {item.item}: rule {answer!r} finds no answer in the published solution")
    path = items.folder() / f"{name}.jsonl"
    items.write(path, chosen)
    shape = {"items": len(chosen), "groups": sorted({item.group for item in chosen}), "chance": chance(chosen)}
    return {"task": name, "answer": answer, **entry, **shape, "sha256": sha256(path)}
