"""Shards: the input files of a streamed corpus, each tokenized by one of several worker processes.

Only the workers read files, and only they may reach a hub, if a source names one. A shard depends on its file and the
configuration alone; it is written atomically, with a receipt, so that a later run takes it as it is.
"""

import json
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tokenizers import Tokenizer

from smallinit import paths
from smallinit.data import bpe
from smallinit.data.checksum import sha256
from smallinit.data.config import StreamConfig, StreamSource
from smallinit.data.sources import CorpusError
from smallinit.data.text import clean, digest, uniform
from smallinit.files import replacing, write_json

COLUMNS = ["source", "key", "start", "end", "bytes", "characters", "digest", "heldout"]


_stopping: Event | None = None


@contextmanager
def pool_of(workers: int, uses_hub: bool) -> Iterator[ProcessPoolExecutor]:
    """Worker processes, which alone may reach a hub, and only if a source names one; they end with the block.

    The permission is an environment variable that counts at import, so the workers are new processes, not forks.
    """
    context = multiprocessing.get_context("spawn")
    stopping = context.Event()
    offline = "0" if uses_hub else "1"
    wanted = {"HF_HUB_OFFLINE": offline, "HF_DATASETS_OFFLINE": offline, "TOKENIZERS_PARALLELISM": "true"}
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    pool = ProcessPoolExecutor(workers, context, initializer=begin, initargs=(stopping,))
    try:
        yield pool
    finally:
        stopping.set()
        pool.shutdown(cancel_futures=True)
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})


def begin(stopping: Event) -> None:
    """Prepare a worker: it stops when told to, and when the process that started it is gone, however that ended."""
    global _stopping
    _stopping = stopping
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which tells its workers
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def outcome(future: Future[Any]) -> Any:
    """What a worker returns or raises."""
    try:
        return future.result()
    except BrokenProcessPool:
        raise CorpusError(
            "a worker died: killed, or out of memory. Finished shards are kept; run the stage again, on fewer "
            "processors if memory is short"
        ) from None


def list_files(name: str, source: StreamSource, seed: int) -> list[tuple[str, str]]:
    """Address and stamp of each file of a source, in random order: neighbours in a data set are often of one origin.

    The stamp of a local file changes with it; the files of a hub are pinned by their commit.

    Raises:
        CorpusError: a pattern matches nothing, or the hub does not answer.
    """
    import fsspec  # type: ignore[import-untyped]  # only workers need it

    root = f"hf://datasets/{source.hub}@{source.revision}/" if source.hub else f"file://{paths.ROOT}/"
    files: dict[str, str] = {}
    for pattern in source.files:
        try:
            system, path = fsspec.url_to_fs(root + pattern if source.hub else str(paths.ROOT / pattern))
            found = system.glob(path)
        except OSError as error:
            raise CorpusError(f"streams.{name}: cannot list {root}{pattern} ({error}); is there a network?") from None
        if not found:
            raise CorpusError(f"streams.{name}.files: nothing matches {pattern!r} in {root}")
        for each in found:
            files[system.unstrip_protocol(each)] = "" if source.hub else system.ukey(each)
    return sorted(files.items(), key=lambda file: uniform(seed, "file", file[0].removeprefix(root)))


def read_texts(addresses: list[str], text_field: str) -> Iterator[str]:
    """The cleaned texts of Parquet files, one after the other, read as a stream.

    Raises:
        CorpusError: a file is damaged, cannot be reached or has no such field.
    """
    import pyarrow  # type: ignore[import-untyped]
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        rows = load_dataset("parquet", data_files=addresses, split="train", streaming=True, columns=[text_field])
        for row in rows:
            yield clean(row[text_field] or "")
    except (pyarrow.ArrowException, OSError, DatasetsError) as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorpusError(
            f"{addresses[0]}{' and others' if addresses[1:] else ''}: cannot be read with text_field = "
            f"{text_field!r} ({what}); finished shards are kept, run the stage again once this is mended"
        ) from None


def make_tokenizer(config: StreamConfig, files: dict[str, list[tuple[str, str]]], path: Path) -> None:
    """Learn the merges from a sample of all sources, unless that is done."""
    if path.exists():
        return
    streams = {
        name: read_texts([address for address, _ in files[name]], source.text_field)
        for name, source in config.sources.items()
    }
    tokenizer = bpe.train_tokenizer(sample(config, streams), config.vocab_size)
    with replacing(path) as temporary:
        tokenizer.save(str(temporary))


def sample(config: StreamConfig, streams: dict[str, Iterator[str]]) -> Iterator[str]:
    """Training texts for the tokenizer, `tokenizer_characters` at most, by bytes in the proportions of the mix.

    Bytes, because a token holds about as many in Chinese as in English, but three times fewer characters.
    """
    left, given = config.tokenizer_characters, dict.fromkeys(sorted(streams), 0)
    while given:
        name = min(given, key=lambda source: given[source] / config.mix[source])
        text = next(streams[name], None)
        if text is None:  # a small source may end before the sample does
            del given[name]
        elif len(text) >= config.min_characters and not is_heldout(config, digest(text)):
            left -= len(text)
            if left < 0:
                return
            given[name] += len(text.encode())
            yield text


def is_heldout(config: StreamConfig, same: str) -> bool:
    """The dice for a document, by its digest."""
    return uniform(config.seed, "heldout", same) < config.heldout_share


# ------------------------------------------------------------------------------------------------------------ shards


@dataclass(frozen=True)
class Job:
    """One input file, to become the shard `folder`/`number`: .bin (uint16), .parquet (COLUMNS), .json (receipt)."""

    config: StreamConfig
    source: str
    number: int
    address: str
    stamp: str
    folder: Path
    tokenizer: Path

    def path(self, ending: str) -> Path:
        return self.folder / f"{self.number:06d}.{ending}"

    def made_from(self) -> dict[str, str]:
        """What the shard depends on beside the configuration, which names the folder."""
        return {"address": self.address, "stamp": self.stamp, "tokenizer": sha256(self.tokenizer)}

    def receipt(self) -> dict[str, Any] | None:
        """The receipt of a shard that is complete, undamaged and made from this very file, else None."""
        if not self.path("json").exists():
            return None
        receipt = json.loads(self.path("json").read_text())
        files = {ending: self.path(ending) for ending in ("bin", "parquet")}
        whole = all(file.exists() and sha256(file) == receipt["files"][ending] for ending, file in files.items())
        return receipt if whole and receipt["made_from"] == self.made_from() else None


def jobs(
    config: StreamConfig, source: str, files: list[tuple[str, str]], folder: Path, tokenizer: Path
) -> Iterator[Job]:
    """A job for each file of a source."""
    for number, (address, stamp) in enumerate(files):
        yield Job(config, source, number, address, stamp, folder, tokenizer)


def batches(texts: Iterable[str]) -> Iterator[list[tuple[int, str]]]:
    """Texts with their numbers, as many at a time as are encoded at a time."""
    numbered = iter(enumerate(texts))
    while batch := list(islice(numbered, bpe.BATCH)):
        yield batch


def make_shard(job: Job) -> None:
    """Make the shard of one file, unless it is there. It ends early once it fills its source's whole budget.

    Raises:
        CorpusError: the file cannot be read.
        InterruptedError: the pool is closing.
    """
    if job.receipt() is not None:
        return
    config = job.config
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one worker a processor is enough
    tokenizer = Tokenizer.from_file(str(job.tokenizer))
    end = np.array([bpe.END_ID], dtype=np.uint16).tobytes()
    rows: list[tuple[Any, ...]] = []
    read = position = filled = 0
    with replacing(job.path("bin")) as temporary, temporary.open("wb") as handle:
        for batch in batches(read_texts([job.address], config.sources[job.source].text_field)):
            if _stopping is not None and _stopping.is_set():
                raise InterruptedError
            read += len(batch)
            batch = [(number, text) for number, text in batch if len(text) >= config.min_characters]
            encoded = bpe.encode(tokenizer, [text for _, text in batch])
            for (number, text), ids in zip(batch, encoded, strict=True):
                handle.write(end + ids.tobytes())
                start, position = position + 1, position + 1 + len(ids)
                same = digest(text)
                aside = is_heldout(config, same)
                filled += 0 if aside else 1 + len(ids)
                key = f"{job.number}:{number}"
                rows.append((job.source, key, start, position, len(text.encode()), len(text), same, aside))
            if filled >= config.budget(job.source):
                break
    with replacing(job.path("parquet")) as temporary:
        pd.DataFrame(rows, columns=COLUMNS).to_parquet(temporary, index=False)
    files = {ending: sha256(job.path(ending)) for ending in ("bin", "parquet")}
    write_json(job.path("json"), {"made_from": job.made_from(), "read": read, "files": files})


def in_order(pool: ProcessPoolExecutor, coming: Iterator[Job], ahead: int) -> Iterator[Job]:
    """Jobs one after the other, each as soon as its shard is there; `ahead` of them are in the workers' hands."""
    waiting = deque((job, pool.submit(make_shard, job)) for job in islice(coming, ahead))
    while waiting:
        job, future = waiting.popleft()
        outcome(future)
        waiting.extend((later, pool.submit(make_shard, later)) for later in islice(coming, 1))
        yield job
