"""From archives to token files: read, clean, split, train the tokenizer, encode, write.

Each document is `<|endoftext|>` followed by its tokens. Two runs write the same bytes; one that fails writes none.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tokenizers import Tokenizer

from smallinit.data import bpe
from smallinit.data.checksum import sha256
from smallinit.data.config import TokenizeConfig
from smallinit.data.documents import FATES, Document, Split, read_documents, split_documents
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

    The files are made in a temporary folder that takes the place of `tokens` once all are there.

    Returns:
        The manifest: counts, sizes and hashes, as in manifest.json.
    """
    for name in SPLITS:
        if not getattr(split, name):
            raise CorpusError(f"no document is left for {name}: change `tokenize.heldout_share` or `corpus`")
    tokens.parent.mkdir(parents=True, exist_ok=True)
    for leftover in tokens.parent.glob(f".{tokens.name}.*.tmp"):  # of a run that was killed
        shutil.rmtree(leftover)
    temporary = tokens.with_name(f".{tokens.name}.{os.getpid()}.tmp")
    temporary.mkdir()
    try:
        tables = {name: write_tokens(temporary / f"{name}.bin", getattr(split, name), tokenizer) for name in SPLITS}
        tokenizer.save(str(temporary / "tokenizer.json"))
        manifest = make_manifest(config, split, tables)
        manifest["files"] = {path.name: sha256(path) for path in sorted(temporary.iterdir())}
        write_json(temporary / "manifest.json", manifest)
        if tokens.exists():
            shutil.rmtree(tokens)
        temporary.replace(tokens)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    write_json(artifacts / "manifest.json", manifest)
    heldout = tables["heldout"].rename_axis("document").reset_index()
    languages = {name: source.language for name, source in config.sources.items()}
    heldout.insert(2, "language", heldout["source"].map(languages))
    write_csv(artifacts / "heldout_documents.csv", heldout)
    write_csv(artifacts / "lengths.csv", length_histogram(pd.concat(tables.values())))
    reserved = pd.DataFrame([(d.source, d.key) for d in split.reserved], columns=["source", "key"])
    write_csv(artifacts / "reserved.csv", reserved.drop_duplicates())
    return manifest


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


def make_manifest(config: TokenizeConfig, split: Split, tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Counts and sizes by source and by language. `tokens` count the <|endoftext|> before each document."""
    sources = []
    for name, source in sorted(config.sources.items()):
        entry: dict[str, Any] = {"source": name, "language": source.language, "licence": source.licence}
        entry["documents"] = {fate: split.counts[name][fate] for fate in FATES}
        for part, table in tables.items():
            entry[part] = _sizes(table[table.source == name])
        sources.append(entry)
    languages = []
    for language in sorted({source.language for source in config.sources.values()}):
        entry = {"language": language}
        own = [name for name, source in config.sources.items() if source.language == language]
        for part, table in tables.items():
            entry[part] = _sizes(table[table.source.isin(own)])
        languages.append(entry)
    settings = config.model_dump(include={"corpus", "vocab_size", "seed", "heldout_share"})
    total = {part: _sizes(table) for part, table in tables.items()}
    return settings | total | {"languages": languages, "sources": sources}


def _sizes(table: pd.DataFrame) -> dict[str, int]:
    tokens = int((table.end - table.start + 1).sum())
    return dict(zip(SIZES, (len(table), tokens, int(table.bytes.sum()), int(table.characters.sum())), strict=True))


def length_histogram(table: pd.DataFrame) -> pd.DataFrame:
    """Documents of each source whose length in tokens is in [low, high), train and held-out together."""
    rows = []
    edges = [*LENGTH_EDGES, 2**31]
    for name, group in table.groupby("source"):
        counts, _ = np.histogram(group.end - group.start, bins=edges)
        rows += [(name, *row) for row in zip(edges[:-1], edges[1:], counts.tolist(), strict=True)]
    return pd.DataFrame(rows, columns=["source", "low", "high", "documents"])
