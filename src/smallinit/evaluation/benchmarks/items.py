"""A benchmark item, and the files of items: `data/items/<task>.jsonl`, described by `results/items/manifest.json`.

The texts are not in git, only their hashes are. So a run is measured on exactly the items that the manifest describes.
"""

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from smallinit import paths
from smallinit.config import Strict, explain
from smallinit.data.checksum import sha256
from smallinit.data.config import Language
from smallinit.files import read_json, replacing


class ItemsError(RuntimeError):
    """Items that are missing, damaged or not those of the manifest; the message says what to do."""


class Item(Strict):
    """One question: how likely is each continuation after its context? A question without choices has only one.

    Contexts are the same for all choices, but for tasks that put the choice into the context (WinoGrande). White space
    between the two belongs to the continuation, because tokens begin with their space.
    """

    task: str
    item: str = Field(min_length=1, description="its id in the task")
    language: Language
    level: int | None = Field(default=None, description="difficulty, where the task has one")
    contexts: list[str]
    continuations: list[str] = Field(min_length=1)
    gold: int = Field(ge=0, description="index of the right continuation")

    @model_validator(mode="after")
    def _is_whole(self) -> "Item":
        if len(self.contexts) != len(self.continuations):
            raise ValueError(f"{len(self.contexts)} contexts for {len(self.continuations)} continuations")
        if self.gold >= len(self.continuations):
            raise ValueError(f"gold = {self.gold}, but there are {len(self.continuations)} continuations")
        if not all(self.continuations):
            raise ValueError("a continuation is empty")
        if any(context != context.rstrip() for context in self.contexts):
            raise ValueError("a context ends in white space: it belongs to the continuation")
        return self

    @property
    def choices(self) -> int:
        """Number of choices; 0 if the item is not a choice."""
        return len(self.continuations) if len(self.continuations) > 1 else 0

    @property
    def group(self) -> str:
        """Items with the same chance of a lucky guess: `4 choices`, or `open` without any."""
        return f"{self.choices} choices" if self.choices else "open"

    @property
    def answer(self) -> str:
        """The right continuation."""
        return self.continuations[self.gold]


def make(task: str, item: str, language: Language, pairs: list[tuple[str, str]], gold: int, **more: Any) -> Item:
    """An item of pairs (context, continuation), white space moved to where it belongs.

    Raises:
        ValueError: it is not whole.
    """
    contexts = [context.rstrip() for context, _ in pairs]
    rests = [context[len(context.rstrip()) :] + rest for context, rest in pairs]
    return Item(task=task, item=item, language=language, contexts=contexts, continuations=rests, gold=gold, **more)


def folder() -> Path:
    """Where the items lie, one file a task."""
    return paths.ROOT / "data" / "items"


def manifest_file() -> Path:
    """The tracked receipt: counts, hashes, chance levels, licences."""
    return paths.RESULTS / "items" / "manifest.json"


def write(path: Path, items: list[Item]) -> None:
    """One line of JSON an item."""
    with replacing(path) as temporary:
        temporary.write_text("".join(item.model_dump_json() + "\n" for item in items))


def read(path: Path) -> list[Item]:
    """The items of one file.

    Raises:
        ItemsError: there is no such file, or a line is not an item; the message names file and line.
    """
    if not path.exists():
        raise ItemsError(f"{path.name}: not in {path.parent}; run `dvc repro items`")
    items = []
    for number, line in enumerate(path.read_text().removesuffix("\n").split("\n"), start=1):
        try:
            items.append(Item.model_validate_json(line))
        except ValidationError as error:
            raise ItemsError(f"{explain(error, f'{path.name}, line {number}')}\nrun `dvc repro items`") from None
    return items


def load(manifest: dict[str, Any]) -> list[Item]:
    """The items of all tasks of the manifest, in its order.

    Raises:
        ItemsError: a file is missing, damaged or another one than the manifest describes.
    """
    items = []
    for entry in manifest["tasks"]:
        path = folder() / f"{entry['task']}.jsonl"
        items += read(path)
        if sha256(path) != entry["sha256"]:
            raise ItemsError(
                f"{path.name} is not the file that {manifest_file().name} describes: run `dvc repro items`"
            )
    return items


def read_manifest() -> dict[str, Any]:
    """The receipt of the stage `items`.

    Raises:
        ItemsError: it is not there.
    """
    if not manifest_file().exists():
        raise ItemsError(f"{manifest_file().relative_to(paths.ROOT)} is missing: run `dvc repro items`")
    manifest: dict[str, Any] = read_json(manifest_file())
    return manifest
