"""Readers: the items inside the archives, read in place.

A reader yields the items of a task in their published order. What is not as expected is an error that names archive,
member and line: a benchmark with a few items missing would be another benchmark.
"""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from smallinit.data.arithmetic import LEVELS, test_problems
from smallinit.data.sources import problem, read_members
from smallinit.data.text import clean
from smallinit.evaluation.benchmarks.config import Arithmetic, ItemReader, Task
from smallinit.evaluation.benchmarks.items import Item, make

# From this number on, rows repeat an item without its question, for a normalisation that is not used here.
UNCONDITIONAL = 1_000_000
LETTERS = "ABCDE"


def olmo(path: Path, name: str, task: Task) -> Iterator[Item]:
    """Requests as the OLMo team's evaluation makes them (Gu et al., arXiv 2406.08446): a row is one choice of an item.

    An item's id is its number in the published split, `doc_id`: `native_id` is missing in WinoGrande, and HellaSwag
    has it twice (its two sources count anew).
    """
    rows: dict[int, list[tuple[str, int, dict[str, Any]]]] = {}
    for member, line, row in json_lines(path, task.members):
        for field, kind in (("doc_id", int), ("doc", dict), ("request", dict)):
            if not isinstance(row.get(field), kind):
                raise problem(path, member, f"no {kind.__name__} field {field!r}", line)
        if row["doc_id"] < UNCONDITIONAL:
            rows.setdefault(row["doc_id"], []).append((member, line, row))
    for number, choices in rows.items():
        member, line, first = choices[0]
        expected = len(first["doc"].get("choices", ("option1", "option2")))
        if len(choices) != expected:
            raise problem(path, member, f"item {number} has {len(choices)} of its {expected} choices", line)
        pairs = [_pair(path, member, line, row, task.examples) for member, line, row in choices]
        gold = first.get("label") if expected > 1 else 0
        yield _whole(path, member, line, name, str(number), task, pairs, gold)


def _pair(path: Path, member: str, line: int, row: dict[str, Any], examples: bool) -> tuple[str, str]:
    request = row["request"]
    for field in ("context", "continuation"):
        if not isinstance(request.get(field), str):
            raise problem(path, member, f"no text field 'request.{field}'", line)
    context = request["context"]
    if not examples:
        context = without_examples(context, row["doc"])
        if context is None:
            raise problem(path, member, "the question of 'doc' is not in 'request.context'", line)
    return context, request["continuation"]


def without_examples(context: str, doc: dict[str, Any]) -> str | None:
    """The question alone: worked examples stand before it, with a blank line between; None if it is not there."""
    question = doc.get("query") or doc.get("question") or str(doc.get("sentence", "")).partition("_")[0]
    start = context.rfind(question)
    if start < 0:
        return None
    before = context.rfind("\n\n", 0, start)  # a label such as `Question:` may stand between
    return context[before + 2 :] if before >= 0 else context


def uhgeval(path: Path, name: str, task: Task) -> Iterator[Item]:
    """News of Xinhua: the real continuation against one that a language model made up (Liang et al., arXiv 2311.15296).

    Headline and beginning are the context, cleaned as the training text is. Both continuations follow in the way that
    the real one does, on a new line or not, so that the layout says nothing. The concise set repeats items of the full.
    """
    seen: set[str] = set()
    fields = ("id", "headLine", "newsBeginning", "hallucinatedContinuation", "realContinuation")
    for member, line, row in json_lines(path, task.members):
        for field in fields:
            if not isinstance(row.get(field), str) or not row[field].strip():
                raise problem(path, member, f"no text in field {field!r}", line)
        if row["id"] in seen:
            continue
        seen.add(row["id"])
        context = clean(f"{row['headLine']}\n{row['newsBeginning']}")
        space = "\n" if row["realContinuation"].lstrip(" ").startswith("\n") else ""
        real, invented = (space + clean(row[field]) for field in ("realContinuation", "hallucinatedContinuation"))
        gold = len(invented) % 2  # any rule that is fair will do
        pairs = [(context, rest) for rest in ((real, invented) if gold == 0 else (invented, real))]
        yield _whole(path, member, line, name, row["id"], task, pairs, gold)


def halluqa(path: Path, name: str, task: Task) -> Iterator[Item]:
    """Questions that invite a wrong answer, with two or five answers (Cheng et al., arXiv 2310.03368).

    The answers themselves are scored and not their letters: small models do not know what a letter stands for.
    """
    for member, content in read_members(path, task.members):
        rows = _json(path, member, content)
        if not isinstance(rows, list):
            raise problem(path, member, "not a JSON list of questions")
        for position, row in enumerate(rows, start=1):
            try:
                parts = re.split(rf"\s([{LETTERS}]):", row["question"].removeprefix("Question: "))
                item, gold = str(row["question_id"]), LETTERS.index(row["answer"].removeprefix("Answer: "))
            except (KeyError, TypeError, AttributeError, ValueError):
                raise problem(path, member, f"question {position} has no id, text or answer as expected") from None
            answers = [clean(part) for part in parts[2::2]]
            if "".join(parts[1::2]) != LETTERS[: len(answers)] or len(answers) < 2:
                raise problem(path, member, f"question {position} has no answers A:, B:, ... in this order")
            pairs = [(f"问题：{clean(parts[0])}\n答案：", answer) for answer in answers]
            yield _whole(path, member, None, name, item, task, pairs, gold)


READERS: dict[ItemReader, Callable[[Path, str, Task], Iterator[Item]]] = {
    "olmo": olmo,
    "uhgeval": uhgeval,
    "halluqa": halluqa,
}


def arithmetic(config: Arithmetic) -> dict[str, list[Item]]:
    """Our own test problems as one task a language; an item is called after its level: `3-17`."""
    tasks: dict[str, list[Item]] = {}
    for language in config.languages:
        name, made = f"arithmetic_{language}", test_problems(language, config.seed, config.per_level)
        counts = dict.fromkeys(LEVELS, 0)
        tasks[name] = []
        for each in made:
            key = f"{each.level}-{counts[each.level]}"
            tasks[name].append(make(name, key, language, [(each.prompt, each.gold)], 0, level=each.level))
            counts[each.level] += 1
    return tasks


def json_lines(path: Path, members: list[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Member, line number (from 1) and object of every line of JSON, in plain or gzipped members."""
    for member, content in read_members(path, members):
        if member.endswith(".gz"):
            try:
                content = gzip.decompress(content)
            except (EOFError, OSError, zlib.error) as error:
                raise problem(path, member, f"not gzipped, or cut off ({error})") from None
        for number, line in enumerate(content.split(b"\n"), start=1):
            if line.strip():
                row = _json(path, member, line, number)
                if not isinstance(row, dict):
                    raise problem(path, member, "not a JSON object", number)
                yield member, number, row


def _json(path: Path, member: str, content: bytes, line: int | None = None) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:  # not JSON, or not UTF-8
        raise problem(path, member, f"not JSON ({error})", line) from None


def _whole(
    path: Path, member: str, line: int | None, name: str, item: str, task: Task, pairs: list[tuple[str, str]], gold: Any
) -> Item:
    try:
        return make(name, item, task.language, pairs, gold)
    except ValueError as error:
        what = "; ".join(part["msg"] for part in error.errors()) if hasattr(error, "errors") else str(error)
        raise problem(path, member, f"item {item} is not whole: {what}", line) from None
