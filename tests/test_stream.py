"""Streamed corpora, from local Parquet files in place of a hub: workers, kills, damage, mix, duplicates."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML
from tokenizers import Tokenizer

from smallinit import params
from smallinit.batches import Tokens
from smallinit.config import explain
from smallinit.data import shards, stream
from smallinit.data.config import StreamConfig, StreamSource
from smallinit.data.documents import FATES
from smallinit.data.sources import CorpusError
from smallinit.data.text import digest

REPOSITORY = Path(__file__).resolve().parents[1]
WORDS = {
    "en": [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "oo") for c in ("n", "st", "rd", "ll")],
    "zh": [chr(code) + chr(code + 7) for code in range(0x4E00, 0x4E00 + 600, 5)],
}
SOURCE: dict[str, Any] = {"files": ["a/*.parquet"], "text_field": "text", "language": "en", "licence": "none"}
REPEATED = "This document stands in both sources and in several files. 重复的文本。"


def made_up(language: str, count: int, seed: int) -> list[str]:
    """Texts of 10 to 60 words, frequent words first, that a tokenizer can learn from."""
    random = np.random.default_rng(seed)
    words = WORDS[language]
    glue = " " if language == "en" else ""
    chosen = random.zipf(1.3, (count, 60)) % len(words)
    return [glue.join(words[i] for i in row[: random.integers(10, 61)]) + f" {seed}." for row in chosen]


def write_files(folder: Path, files: int = 3, documents: int = 200) -> None:
    """`files` Parquet files in each of two languages; each holds a repeated, a short and an empty document too."""
    folder.mkdir(parents=True, exist_ok=True)
    for language in WORDS:
        for number in range(files):
            texts = [REPEATED, "short", None, *made_up(language, documents, seed=number)]
            frame = pd.DataFrame({"content": texts, "score": [number] * len(texts)})
            frame.to_parquet(folder / f"{language}-{number:02d}.parquet")


def stream_config(folder: Path, **changes: Any) -> StreamConfig:
    sources = {
        f"web_{language}": {
            **{"files": [str(folder / f"{language}-*.parquet")], "text_field": "content"},
            **{"language": language, "licence": "made up"},
        }
        for language in WORDS
    }
    values = {
        **{"corpus": "web", "sources": sources, "mix": {"web_en": 3.0, "web_zh": 1.0}, "tokens": 24_000},
        **{"vocab_size": 400, "seed": 0, "heldout_share": 0.05, "min_characters": 20, "tokenizer_characters": 20_000},
    }
    return StreamConfig.model_validate(values | changes)


class Made:
    """The outcome of one run."""

    def __init__(self, root: Path, config: StreamConfig, workers: int = 1):
        self.config = config
        self.tokens, self.artifacts, self.state = root / "tokens", root / "corpus", root / "state"
        self.manifest = stream.tokenize(config, self.tokens, self.artifacts, self.state, workers)
        self.heldout = pd.read_csv(self.artifacts / "heldout_documents.csv", dtype={"key": str})

    def files(self) -> dict[str, bytes]:
        return {
            path.name + path.parent.name: path.read_bytes()
            for f in (self.tokens, self.artifacts)
            for path in f.iterdir()
        }

    def ids(self, name: str) -> np.ndarray:
        return np.fromfile(self.tokens / f"{name}.bin", dtype=np.uint16)

    def texts(self, name: str) -> list[str]:
        """The documents of a token file, decoded."""
        tokenizer = Tokenizer.from_file(str(self.tokens / "tokenizer.json"))
        ids = self.ids(name)
        assert ids[0] == 0, "a file begins with <|endoftext|>"
        return tokenizer.decode_batch([part[1:].tolist() for part in np.split(ids, np.flatnonzero(ids == 0)[1:])])

    def shards(self) -> dict[str, int]:
        """When each shard was written."""
        return {
            str(path): path.stat().st_mtime_ns for path in sorted(self.state.rglob("*.json")) if path.stem.isdigit()
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("web")
    write_files(place)
    return place


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"), stream_config(folder))


# ------------------------------------------------------------------------------------------------------ token files


def test_two_workers_write_the_bytes_of_one(made: Made, folder: Path, tmp_path: Path) -> None:
    assert Made(tmp_path, made.config, workers=2).files() == made.files()


def test_the_files_are_those_that_training_and_evaluation_read(made: Made) -> None:
    tokens = Tokens(made.tokens)
    assert len(tokens.train) == made.manifest["train"]["tokens"] and tokens.train.dtype == np.uint16
    assert len(tokens.heldout) == made.manifest["heldout"]["tokens"]
    assert tokens.manifest == made.manifest and set(made.manifest["files"]) == {
        "train.bin",
        "heldout.bin",
        "tokenizer.json",
    }
    columns = ["document", "source", "language", "key", "start", "end", "bytes", "characters"]
    assert list(made.heldout) == columns, "as for a corpus from packages"
    for row, text in zip(made.heldout.itertuples(), made.texts("heldout"), strict=True):
        assert len(text.encode()) == row.bytes and len(text) == row.characters and row.source.endswith(row.language)
    assert made.heldout["end"].iloc[-1] == len(tokens.heldout)
    lengths = pd.read_csv(made.artifacts / "lengths.csv")
    assert lengths["documents"].sum() == made.manifest["train"]["documents"] + made.manifest["heldout"]["documents"]


def test_documents_come_back_unchanged_from_their_tokens(made: Made, folder: Path) -> None:
    frames = [pd.read_parquet(path) for path in sorted(folder.glob("*.parquet"))]
    originals = set(pd.concat(frames)["content"].dropna())
    assert set(made.texts("train")) | set(made.texts("heldout")) <= originals


def test_the_mix_is_that_of_the_weights(made: Made) -> None:
    longest = 200  # tokens of a document, at most: the last one may cross the line
    for entry in made.manifest["sources"]:
        budget = made.config.budget(entry["source"])
        assert budget <= entry["train"]["tokens"] < budget + longest
    assert made.config.budget("web_en") == 18_000 and made.config.budget("web_zh") == 6000
    even = stream_config(Path("/nowhere"), mix={"web_en": 1.0, "web_zh": 1.0})
    assert even.budget("web_en") == 12_000


def test_every_document_that_was_read_has_one_fate(made: Made) -> None:
    for entry in made.manifest["sources"]:
        counts = entry["documents"]
        assert counts["read"] == sum(counts[fate] for fate in FATES if fate != "read")
        assert counts["short"] >= 2
    # Which files come first follows from their paths, a temporary folder here: a budget may end with a file by chance.
    assert sum(entry["documents"]["capped"] for entry in made.manifest["sources"]) > 0, "a budget ends within a file"


def test_duplicates_are_dropped_across_files_and_sources(made: Made) -> None:
    texts = made.texts("train") + made.texts("heldout")
    assert texts.count(REPEATED) == 1
    same = [digest(text) for text in texts]
    assert len(set(same)) == len(same)
    assert sum(entry["documents"]["duplicate"] for entry in made.manifest["sources"]) >= 2


def test_heldout_documents_of_all_sources_are_mixed(made: Made) -> None:
    sources = made.heldout["source"].tolist()
    assert sources != sorted(sources) and sources != sorted(sources, reverse=True)


def test_the_tokenizer_learns_from_the_languages_in_the_proportions_of_the_mix(folder: Path) -> None:
    config = stream_config(folder, mix={"web_en": 1.0, "web_zh": 1.0}, tokenizer_characters=6000)
    streams = {f"web_{language}": iter(made_up(language, 500, 0)) for language in WORDS}
    texts = list(shards.sample(config, streams))
    sizes = [sum(len(t.encode()) for t in texts if t.isascii() is english) for english in (True, False)]
    assert abs(sizes[0] - sizes[1]) < 500 and min(sizes) > 2000
    assert not any(shards.is_heldout(config, digest(text)) for text in texts), "never from held-out text"
    assert sum(map(len, texts)) <= 6000


# --------------------------------------------------------------------------------------------- interrupts and damage


def run_in_background(config: StreamConfig, root: Path) -> subprocess.Popen[bytes]:
    program = (
        "import sys; from pathlib import Path; from smallinit.data import stream; "
        "from smallinit.data.config import StreamConfig; root = Path(sys.argv[2]); "
        "config = StreamConfig.model_validate_json(sys.argv[1]); "
        "stream.tokenize(config, root / 'tokens', root / 'corpus', root / 'state', 2)"
    )
    return subprocess.Popen([sys.executable, "-c", program, config.model_dump_json(), str(root)])


def until(condition: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return False


def test_a_killed_run_leaves_no_worker_and_continues_with_the_finished_shards(tmp_path: Path) -> None:
    folder, root = tmp_path / "web", tmp_path / "run"
    write_files(folder, files=5, documents=800)
    config = stream_config(folder, tokens=240_000)
    process = run_in_background(config, root)
    assert until(lambda: list(root.rglob("000001.json")), 60), "no shard was finished"
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert not (root / "tokens").exists(), "killed too late for this test to mean something"
    assert until(lambda: not any(child.is_running() for child in children), 20), "workers outlive the run"
    done = {str(path): path.stat().st_mtime_ns for path in root.rglob("*.json") if path.stem.isdigit()}
    resumed = Made(root, config, workers=2)
    assert done and {name: resumed.shards()[name] for name in done} == done, "finished shards are made only once"
    assert len(resumed.shards()) > len(done)
    assert list(root.glob(".tokens.*")) == []
    assert resumed.files() == Made(tmp_path / "whole", config, workers=1).files()


def test_a_damaged_shard_is_made_again(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.state, tmp_path / "state")
    files = sorted((tmp_path / "state").rglob("web_en/*.*"))
    content = bytearray(files[0].read_bytes())
    content[100] ^= 1
    files[0].write_bytes(content)
    os.truncate(files[5], 50)
    assert [file.name for file in (files[0], files[5])] == ["000000.bin", "000001.parquet"]
    receipts = [file for file in (tmp_path / "state").rglob("*.json") if file.stem.isdigit()]
    before = {file: file.stat().st_mtime_ns for file in receipts}
    again = Made(tmp_path, made.config)
    redone = sorted(file for file, when in before.items() if file.stat().st_mtime_ns != when)
    assert redone == [file.with_suffix(".json") for file in (files[0], files[5])] and len(before) > 2
    assert again.files() == made.files()
    stream.discard(again.state)
    assert again.shards() == {}


def test_a_shard_is_used_only_for_the_file_and_tokenizer_it_was_made_from(made: Made, tmp_path: Path) -> None:
    place = next(made.state.glob("stream/*"))
    (address, stamp), *_ = shards.list_files("web_en", made.config.sources["web_en"], made.config.seed)
    job = shards.Job(made.config, "web_en", 0, address, stamp, place / "web_en", next(place.glob("tokenizer-*.json")))
    assert job.receipt() is not None
    (tmp_path / "other.json").write_text("{}")
    for change in ({"stamp": "later"}, {"address": "file:///b"}, {"tokenizer": tmp_path / "other.json"}, {"number": 9}):
        assert dataclasses.replace(job, **change).receipt() is None, change
    file = tmp_path / "en-00.parquet"
    source = made.config.sources["web_en"].model_copy(update={"files": [str(file)]})
    stamps = set()
    for documents in (10, 11):
        write_files(tmp_path, files=1, documents=documents)
        stamps.add(shards.list_files("web_en", source, 0)[0])
    assert len(stamps) == 2, "a local file's stamp changes with it"


def test_a_damaged_file_is_named_and_finished_shards_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "web"
    write_files(folder)
    config = stream_config(folder)
    order = [address for address, _ in shards.list_files("web_en", config.sources["web_en"], config.seed)]
    damaged = Path(order[1].removeprefix("file://"))
    damaged.write_bytes(damaged.read_bytes()[:-100])
    with pytest.raises(CorpusError, match=rf"{damaged.name}: cannot be read"):
        Made(tmp_path, config)
    assert not (tmp_path / "tokens").exists() and not (tmp_path / "corpus").exists()
    assert list((tmp_path / "state").rglob("web_en/000000.json"))


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Path, Path, Path, int]]:
    yield tmp_path / "tokens", tmp_path / "corpus", tmp_path / "state", 1


def test_a_source_that_is_too_small_is_named_with_what_it_has(folder: Path, places: Any) -> None:
    with pytest.raises(CorpusError, match=r"source 'web_en' has only [\d,]+ .* 600,000: lower corpora.web.tokens"):
        stream.tokenize(stream_config(folder, tokens=800_000), *places)
    assert not places[0].exists()


def test_a_wrong_field_and_an_empty_pattern_are_named(folder: Path) -> None:
    with pytest.raises(CorpusError, match=r"en-00\.parquet: cannot be read with text_field = 'txt'"):
        list(shards.read_texts([str(folder / "en-00.parquet")], "txt"))
    with pytest.raises(CorpusError, match=r"streams.web.files: nothing matches 'a/\*.parquet'"):
        shards.list_files("web", StreamSource.model_validate(SOURCE), seed=0)


def test_what_the_disk_cannot_hold_is_refused_at_once(folder: Path, places: Any) -> None:
    with pytest.raises(CorpusError, match=r"need 4,?000,?000.* GB, .* GB are free"):
        stream.tokenize(stream_config(folder, tokens=10**15), *places)


def test_a_worker_that_is_killed_is_an_error_and_not_a_hang() -> None:
    with shards.pool_of(1, uses_hub=False) as pool, pytest.raises(CorpusError, match="a worker died"):
        shards.outcome(pool.submit(os._exit, 9))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hub": "owner/name"}, "needs a revision"),
        ({"revision": "a" * 40}, "name it with `hub`"),
        ({"hub": "owner/name", "revision": "main"}, "revision"),
        ({"hub": "name", "revision": "a" * 40}, "hub"),
        ({"files": []}, "files"),
        ({"text": "text"}, "text"),
    ],
)
def test_sources_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        StreamSource.model_validate(SOURCE | change)
    assert message in explain(caught.value, "params.yaml")


def test_weights_belong_to_sources_and_60k_tokens_fit(folder: Path) -> None:
    with pytest.raises(ValidationError, match="mix names"):
        stream_config(folder, mix={"web_en": 1.0})
    with pytest.raises(ValidationError, match="greater than 0"):
        stream_config(folder, mix={"web_en": 1.0, "web_zh": 0.0})
    assert stream_config(folder, vocab_size=60_000).vocab_size == 60_000
    with pytest.raises(ValidationError, match="65536"):
        stream_config(folder, vocab_size=70_000)


# ---------------------------------------------------------------------------------------------------------------- hub


@pytest.mark.parametrize("uses_hub", [False, True])
def test_only_a_source_on_a_hub_lets_workers_go_online(uses_hub: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with shards.pool_of(1, uses_hub) as pool:
        offline = pool.submit(eval, "__import__('huggingface_hub').constants.HF_HUB_OFFLINE").result()
    assert offline is not uses_hub
    assert os.environ["HF_HUB_OFFLINE"] == "1", "the stage itself stays offline"


def test_a_hub_source_is_addressed_by_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of the hub's file system, with that file system replaced: nothing is downloaded."""
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    asked: list[str] = []

    class Hub(MemoryFileSystem):
        protocol = ("hf",)

        def glob(self, path: str, **options: Any) -> list[str]:
            asked.append(path)
            return [path.replace("*", "000"), path.replace("*", "001")]

    monkeypatch.setattr(fsspec, "url_to_fs", lambda url: (Hub(), url.removeprefix("hf://")))
    source = StreamSource.model_validate(SOURCE | {"hub": "owner/name", "revision": "b" * 40})
    found = shards.list_files("web", source, seed=0)
    assert asked == [f"datasets/owner/name@{'b' * 40}/a/*.parquet"]
    assert sorted(found) == [(f"hf://datasets/owner/name@{'b' * 40}/a/00{i}.parquet", "") for i in (0, 1)]
    assert stream_config(Path("x"), mix={"w": 1.0}, sources={"w": source.model_dump()}).uses_hub


def test_receipts_say_what_a_shard_was_made_from(made: Made) -> None:
    receipts = [json.loads(Path(name).read_text()) for name in made.shards()]
    assert len({receipt["made_from"]["address"] for receipt in receipts}) == len(receipts) >= 2
    assert all(len(receipt["files"]["bin"]) == 64 for receipt in receipts)


# ------------------------------------------------------------------------------------------------------------ notebook


def test_the_notebooks_run_on_a_streamed_corpus(tmp_path: Path) -> None:
    """The real notebooks in a project of their own: nothing to fetch, then the stream; no trace of this machine."""
    write_files(tmp_path / "web")
    overlay = {
        "corpus": "web",
        "corpora": {"web": {"mix": {"web_en": 3.0, "web_zh": 1.0}, "tokens": 24_000}},
        "tokenize": {
            **{"notebook": "02_stream", "vocab_size": 400, "heldout_share": 0.05, "tokenizer_characters": 20_000}
        },
        "streams": {
            f"web_{language}": {
                **{"files": [f"web/{language}-*.parquet"], "text_field": "content"},
                **{"language": language, "licence": "made up"},
            }
            for language in WORDS
        },
    }
    yaml = YAML(typ="safe", pure=True)
    with (tmp_path / "params.yaml").open("w") as handle:
        yaml.dump(params.merged(yaml.load(REPOSITORY / "params.yaml"), overlay), handle)
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "notebooks").mkdir()
    for name in ("01_fetch", "02_stream"):
        shutil.copy(REPOSITORY / "notebooks" / f"{name}.ipynb", tmp_path / "notebooks")
    for command in (["plan"], ["run", "01_fetch"], ["run", "02_stream"]):
        done = subprocess.run(
            [sys.executable, "-m", "smallinit", *command], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "results" / "archives.json").read_text()) == []
    assert Tokens(tmp_path / "data" / "tokens").manifest["train"]["tokens"] >= 24_000
    assert not (tmp_path / "state" / "stream").exists()
    assert str(tmp_path) not in (tmp_path / "results" / "notebooks" / "02_stream.ipynb").read_text()
