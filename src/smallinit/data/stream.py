"""Corpora larger than memory: web corpora, streamed from a hub or from local files and tokenized by several workers.

Workers turn each input file into one *shard*: its cleaned documents as tokens, and a table of them. This process then
reads shards in a fixed order, always from the source that is furthest behind its share, drops exact duplicates and
fills train.bin and heldout.bin until there are as many tokens as asked for. What a shard holds depends on its file
alone, and which shards are used on nothing but their order: the number of workers changes no byte. Finished shards
stay in `state`, so a run that was killed continues with the others.

What is not done: near-duplicates stay (only documents equal up to white space and case are dropped), nothing is
filtered by quality, and the merges are learned from the first documents of each source, not from a random sample.
The documents in train.bin are not shuffled one by one, because training draws its windows in random order. The
digests of all documents are in memory: about 100 bytes each, 3 GB for 30 G tokens of web text, 100 GB for 1 T.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from smallinit.data import shards
from smallinit.data.config import StreamConfig
from smallinit.data.documents import FATES
from smallinit.data.shards import COLUMNS, Job
from smallinit.data.sources import CorpusError
from smallinit.data.text import uniform
from smallinit.data.tokenize import (
    SPLITS,
    length_histogram,
    make_manifest,
    replacing_folder,
    sizes_by_source,
    write_artifacts,
    write_manifest,
)
from smallinit.progress import Progress

TOKEN_BYTES = 2  # uint16


def tokenize(
    config: StreamConfig, tokens: Path, artifacts: Path, state: Path, workers: int | None = None
) -> dict[str, Any]:
    """The whole stage for a streamed corpus: the files that `data.tokenize.tokenize` writes, from streams.

    Args:
        config: which files, in what mix, how many tokens.
        tokens: the folder to write train.bin, heldout.bin, tokenizer.json and manifest.json to.
        artifacts: the folder for the small tables.
        state: where finished shards wait; see `discard`.
        workers: processes; default: one for each processor that this process may use.

    Returns:
        The manifest, as in manifest.json.

    Raises:
        CorpusError: a file cannot be read, a source has too few tokens, a worker died, the disk is too small.
    """
    workers = workers or processors()
    place = state / "stream" / short_hash(config.model_dump(mode="json"))
    place.mkdir(parents=True, exist_ok=True)
    check_space(config, place, tokens)
    with shards.pool_of(workers, config.uses_hub) as pool, replacing_folder(tokens) as temporary:
        listed = {
            name: pool.submit(shards.list_files, name, source, config.seed) for name, source in config.sources.items()
        }
        files = {name: shards.outcome(future) for name, future in listed.items()}
        tokenizer = place / f"tokenizer-{short_hash(files)}.json"
        shards.outcome(pool.submit(shards.make_tokenizer, config, files, tokenizer))
        shutil.copyfile(tokenizer, temporary / "tokenizer.json")
        made = {
            name: shards.in_order(pool, shards.jobs(config, name, files[name], place / name, tokenizer), workers)
            for name in config.sources
        }
        with (temporary / "train.bin").open("wb") as handle, Progress(config.tokens, "stream", "tokens") as bar:
            corpus = Corpus(config, handle)
            while source := corpus.furthest_behind():
                if (job := next(made[source], None)) is None:
                    raise too_small(config, source, corpus.filled[source])
                before = corpus.filled.total()
                corpus.add(job)
                bar.update(corpus.filled.total() - before, documents=len(corpus.seen))
        heldout = corpus.write_heldout(temporary / "heldout.bin")
        manifest = make_manifest(config, corpus.counts, corpus.sizes())
        write_manifest(temporary, manifest)
    write_artifacts(artifacts, config, manifest, heldout, corpus.lengths(), pd.DataFrame(columns=["source", "key"]))
    return manifest


def discard(state: Path) -> None:
    """Forget all shards: the token files hold what they held."""
    shutil.rmtree(state / "stream", ignore_errors=True)


def short_hash(value: Any) -> str:
    """A hash of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def processors() -> int:
    """Processors that this process may use: on a cluster, those of its allocation."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_space(config: StreamConfig, place: Path, tokens: Path) -> None:
    """Refuse before the first download what cannot be stored: every token once in its shard and once in train.bin."""
    have = sum(path.stat().st_size for path in place.rglob("*.bin"))
    tokens.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(tokens.parent).free
    needed = 2 * TOKEN_BYTES * config.tokens - have
    if free < needed:
        raise CorpusError(
            f"{config.tokens:,} tokens need {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free in {tokens.parent}: "
            f"free some space or lower corpora.{config.corpus}.tokens"
        )


def too_small(config: StreamConfig, name: str, found: int) -> CorpusError:
    """The error for a source that ends before its budget is full."""
    return CorpusError(
        f"source {name!r} has only {found:,} different training tokens in all its files; its share of the mix is "
        f"{config.budget(name):,.0f}: lower corpora.{config.corpus}.tokens or its weight, or add to its `files`"
    )


class Corpus:
    """The token files as they grow, shard by shard."""

    def __init__(self, config: StreamConfig, train: BinaryIO):
        self.config, self.train = config, train
        self.filled: Counter[str] = Counter()  # training tokens by source
        self.counts = {name: Counter(dict.fromkeys(FATES, 0)) for name in config.sources}
        self.seen: set[bytes] = set()
        self.heldout: list[tuple[Any, np.ndarray]] = []  # a row of COLUMNS and its tokens, <|endoftext|> included
        self._sizes: dict[str, list[pd.DataFrame]] = {part: [] for part in SPLITS}
        self._lengths: list[pd.DataFrame] = []

    def furthest_behind(self) -> str | None:
        """The source with the smallest part of its budget filled; None if all are full."""
        filled = {name: self.filled[name] / self.config.budget(name) for name in sorted(self.config.mix)}
        return min((name for name in filled if filled[name] < 1), key=lambda name: filled[name], default=None)

    def add(self, job: Job) -> None:
        """Give each document of a shard its fate, in the order of the file."""
        tokens = np.fromfile(job.path("bin"), dtype=np.uint16)
        table = pd.read_parquet(job.path("parquet"))
        receipt = json.loads(job.path("json").read_text())
        budget, fates = self.config.budget(job.source), []
        for row in table.itertuples(index=False):
            fate = self._fate(row, self.filled[job.source] < budget)
            fates.append(fate)
            if fate == "train":
                self.train.write(tokens[row.start - 1 : row.end].tobytes())
                self.filled[job.source] += row.end - row.start + 1
            elif fate == "heldout":
                self.heldout.append((row, tokens[row.start - 1 : row.end].copy()))
        fate_of = pd.Series(fates, dtype=str)
        self.counts[job.source].update({"read": receipt["read"], "short": receipt["read"] - len(table)})
        self.counts[job.source].update(fates)
        for part in SPLITS:
            self._sizes[part].append(sizes_by_source(table[fate_of == part]))
        self._lengths.append(length_histogram(table[fate_of.isin(SPLITS)]))

    def _fate(self, row: Any, wanted: bool) -> str:
        same = bytes.fromhex(row.digest)
        if not wanted:
            return "capped"
        if same in self.seen:
            return "duplicate"
        self.seen.add(same)
        return "heldout" if row.heldout else "train"

    def write_heldout(self, path: Path) -> pd.DataFrame:
        """Write held-out documents in random order, so that any prefix is a fair sample; returns where each lies."""
        if not self.heldout:
            raise CorpusError("no document is left for heldout: raise `tokenize.heldout_share`")
        dice = {row.digest: uniform(self.config.seed, "order", row.digest) for row, _ in self.heldout}
        self.heldout.sort(key=lambda document: (dice[document[0].digest], document[0].digest))
        rows, position = [], 0
        with path.open("wb") as handle:
            for row, ids in self.heldout:
                handle.write(ids.tobytes())
                rows.append((row.source, row.key, position + 1, position + len(ids), row.bytes, row.characters))
                position += len(ids)
        return pd.DataFrame(rows, columns=COLUMNS[:6])

    def sizes(self) -> dict[str, pd.DataFrame]:
        """For train and heldout, sums over the documents of each source."""
        return {part: pd.concat(tables).groupby(level=0).sum() for part, tables in self._sizes.items()}

    def lengths(self) -> pd.DataFrame:
        """Documents by source and length, as `length_histogram`."""
        return pd.concat(self._lengths).groupby(["source", "low", "high"], as_index=False).sum()
