"""From archives to token files: read, clean, split, train the tokenizer, encode, write.

Each document is `<|endoftext|>` followed by its tokens. Two runs write the same bytes; one that fails writes none.
Corpora too large for memory go through `stream.py`, which writes the same files.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tokenizers import Tokenizer

from smallinit.data import bpe
from smallinit.data.checksum import sha256
from smallinit.data.config import Generated, Source, StreamConfig, StreamSource, TokenizeConfig
from smallinit.data.documents import FATES, Document, Split, read_documents, split_documents
from smallinit.data.passages import find_passages
from smallinit.data.sources import CorpusError
from smallinit.files import write_csv, write_json
from smallinit.progress import Progress

SPLITS = ("train", "heldout")
SIZES = ["documents", "tokens", "bytes", "characters"]
# Lengths from 8 to 131,072 tokens in steps of a factor sqrt(2); the first bin begins at one token.
LENGTH_EDGES = [1, *(round(2 ** (half / 2)) for half in range(6, 35))]


def tokenize(config: TokenizeConfig, archives: Path, tokens: Path, artifacts: Path) -> dict[str, Any]:
    """The whole stage; returns the manifest.

    Raises:
        CorpusError: an archive cannot be read, or the texts are too few.
    """
    split = split_documents(read_documents(config, archives), config)
    tokenizer = bpe.train_tokenizer(bpe.sample(split.train, config.tokenizer_characters), config.vocab_size)
    return write_corpus(split, tokenizer, config, tokens, artifacts)


def write_corpus(
    split: Split, tokenizer: Tokenizer, config: TokenizeConfig, tokens: Path, artifacts: Path
) -> dict[str, Any]:
    """Write the folder `tokens` (train.bin, heldout.bin, tokenizer.json, manifest.json) and the small `artifacts`.

    Returns:
        The manifest: counts, sizes and hashes, as in manifest.json.
    """
    for name in SPLITS:
        if not getattr(split, name):
            raise CorpusError(f"no document is left for {name}: change `tokenize.heldout_share` or `corpus`")
    with replacing_folder(tokens) as temporary:
        tables = {name: write_tokens(temporary / f"{name}.bin", getattr(split, name), tokenizer) for name in SPLITS}
        tokenizer.save(str(temporary / "tokenizer.json"))
        sizes = {part: sizes_by_source(table) for part, table in tables.items()}
        manifest = make_manifest(config, split.counts, sizes)
        write_manifest(temporary, manifest)
    reserved = pd.DataFrame([(d.source, d.key) for d in split.reserved], columns=["source", "key"])
    lengths = length_histogram(pd.concat(tables.values()))
    write_artifacts(artifacts, config, manifest, tables["heldout"], lengths, reserved.drop_duplicates())
    quoted = find_passages(split.heldout, tables["heldout"], tokenizer, config)
    write_json(artifacts / "passages.json", quoted)
    return manifest


@contextlib.contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that takes the place of `folder` if the block succeeds, and is deleted if it fails."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):  # of a run that was killed
        shutil.rmtree(leftover)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        if folder.exists():
            shutil.rmtree(folder)
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Add the hashes of all files in `folder` to the manifest and write it there."""
    manifest["files"] = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    write_json(folder / "manifest.json", manifest)


def write_artifacts(
    folder: Path,
    config: TokenizeConfig | StreamConfig,
    manifest: dict[str, Any],
    heldout: pd.DataFrame,
    lengths: pd.DataFrame,
    reserved: pd.DataFrame,
) -> None:
    """Write what goes to git: the manifest, the places of held-out documents, lengths, keys of reserved documents."""
    write_json(folder / "manifest.json", manifest)
    heldout = heldout.rename_axis("document").reset_index()
    languages = {name: source.language for name, source in config.texts.items()}
    heldout.insert(2, "language", heldout["source"].map(languages))
    write_csv(folder / "heldout_documents.csv", heldout)
    write_csv(folder / "lengths.csv", lengths)
    write_csv(folder / "reserved.csv", reserved)


def write_tokens(path: Path, documents: list[Document], tokenizer: Tokenizer) -> pd.DataFrame:
    """Write the documents' tokens as uint16, each document after an <|endoftext|>.

    Returns:
        One row a document: source, key, start, end (its tokens in the file, <|endoftext|> left out), bytes, characters.
    """
    rows, position = [], 0
    texts = [document.text for document in documents]
    end = np.array([bpe.END_ID], dtype=np.uint16)
    with path.open("wb") as handle, Progress(sum(map(len, texts)), f"encode {path.stem}", "characters") as bar:
        for document, ids in zip(documents, bpe.encode(tokenizer, texts), strict=True):
            handle.write(end.tobytes() + ids.tobytes())
            start, position = position + 1, position + 1 + len(ids)
            size = len(document.text.encode())
            rows.append((document.source, document.key, start, position, size, len(document.text)))
            bar.update(len(document.text))
    return pd.DataFrame(rows, columns=["source", "key", "start", "end", "bytes", "characters"])


def sizes_by_source(table: pd.DataFrame) -> pd.DataFrame:
    """Sums of SIZES over the documents of each source, which is the index; <|endoftext|> counts as a token."""
    counted = table.assign(documents=1, tokens=table.end - table.start + 1)
    return counted.groupby("source")[SIZES].sum()


def make_manifest(
    config: TokenizeConfig | StreamConfig, counts: Mapping[str, Mapping[str, int]], sizes: dict[str, pd.DataFrame]
) -> dict[str, Any]:
    """Counts and sizes by source and by language.

    Args:
        config: names, languages and licences.
        counts: documents by source and fate.
        sizes: for train and heldout what `sizes_by_source` returns.
    """

    def total(names: list[str]) -> dict[str, dict[str, int]]:
        sums = {part: table.reindex(names, fill_value=0).sum() for part, table in sizes.items()}
        return {part: {size: int(row[size]) for size in SIZES} for part, row in sums.items()}

    known: Mapping[str, Source | Generated | StreamSource] = config.texts
    sources = []
    for name, source in sorted(known.items()):
        entry: dict[str, Any] = {"source": name, "language": source.language, "licence": source.licence}
        sources.append(entry | {"documents": {fate: counts[name][fate] for fate in FATES}} | total([name]))
    languages = []
    for language in sorted({source.language for source in known.values()}):
        own = [name for name, source in known.items() if source.language == language]
        languages.append({"language": language} | total(own))
    settings = config.model_dump(include={"corpus", "vocab_size", "seed", "heldout_share"})
    return settings | total(list(known)) | {"languages": languages, "sources": sources}


def length_histogram(table: pd.DataFrame) -> pd.DataFrame:
    """Documents of each source whose length in tokens is in [low, high), train and held-out together."""
    rows = []
    edges = [*LENGTH_EDGES, 2**31]
    for name, group in table.groupby("source"):
        counts, _ = np.histogram(group.end - group.start, bins=edges)
        rows += [(name, *row) for row in zip(edges[:-1], edges[1:], counts.tolist(), strict=True)]
    return pd.DataFrame(rows, columns=["source", "low", "high", "documents"])
