"""Which documents are used, and for what: short, reserved, duplicate, over the cap, train or held-out.

Every decision is a function of the document's own content and the seed. The order of the sources in `params.yaml`, or
another source beside them, moves no document from one side of the split to the other.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from smallinit.data import arithmetic
from smallinit.data.config import Generated, TokenizeConfig
from smallinit.data.sources import clean_stream
from smallinit.data.text import clean, digest, uniform
from smallinit.progress import Progress

FATES = ("read", "short", "reserved", "duplicate", "capped", "train", "heldout")


@dataclass(frozen=True, slots=True)
class Document:
    """A cleaned text; `group` decides about the split, `digest` is equal for duplicates."""

    source: str
    key: str
    text: str
    group: str
    digest: str


@dataclass
class Split:
    """Documents by fate. `counts[source][fate]`: `read` is the sum of the other six."""

    train: list[Document] = field(default_factory=list)
    heldout: list[Document] = field(default_factory=list)
    reserved: list[Document] = field(default_factory=list)
    counts: dict[str, Counter[str]] = field(default_factory=dict)


def read_documents(config: TokenizeConfig, archives: Path) -> list[Document]:
    """All documents of all sources, cleaned, in the order of the sources' names; then those that are made by rule.

    Raises:
        CorpusError: an archive is missing, damaged or not laid out as expected.
    """
    documents: list[Document] = []
    with Progress(len(config.sources), "read", "sources") as bar:
        for name, source in sorted(config.sources.items()):
            for row in clean_stream(source, config.archives[source.archive], archives):
                same = digest(row["text"])
                documents.append(Document(name, row["key"], row["text"], row["group"] or same, same))
            bar.update(1, documents=len(documents))
    return documents + generated_documents(documents, config)


def generated_documents(documents: list[Document], config: TokenizeConfig) -> list[Document]:
    """As many documents made by rule as give each generator its share of the text, counted in UTF-8 bytes.

    A longer corpus gets more of them, but begins with the same ones.

    Args:
        documents: all the others, of which only those count that `split_documents` keeps.
        config: the generators and their shares.
    """
    if not config.generated:
        return []
    split = split_documents(documents, config)
    others = sum(len(document.text.encode()) for document in split.train + split.heldout)
    whole = others / (1 - sum(generated.share for generated in config.generated.values()))
    made: list[Document] = []
    with Progress(len(config.generated), "make", "sources") as bar:
        for name, generated in sorted(config.generated.items()):
            missing = generated.share * whole
            for document in _endless(name, generated, config.seed):
                if missing <= 0:
                    break
                missing -= len(document.text.encode())
                made.append(document)
            bar.update(1, documents=len(made))
    return made


def _endless(name: str, generated: Generated, seed: int) -> Iterator[Document]:
    """Documents of one generator; the key tells the level and the template, too."""
    for number, problem in enumerate(arithmetic.train_documents(generated.language, seed)):
        text = clean(problem.text)
        same = digest(text)
        yield Document(name, f"{problem.level} {problem.template} {number}", text, same, same)


def split_documents(documents: list[Document], config: TokenizeConfig) -> Split:
    """Decide the fate of each document; train and held-out come in an order shuffled by the seed.

    Reserved documents go first, so that a copy of one in another source is a duplicate, not a training text. After
    de-duplication no two documents have the same digest, so none in held-out equals one in train.
    """
    documents = sorted(documents, key=lambda document: document.source)  # stable: keeps the order within a source
    sources = config.texts
    result = Split(counts={name: Counter(dict.fromkeys(FATES, 0)) for name in sources})
    rest = []
    for document in documents:
        counts = result.counts[document.source]
        counts["read"] += 1
        if len(document.text) < config.min_characters:
            counts["short"] += 1
        elif uniform(config.seed, "reserve", document.group) < sources[document.source].reserve:
            counts["reserved"] += 1
            result.reserved.append(document)
        else:
            rest.append(document)
    seen = {document.digest for document in result.reserved}
    kept: dict[str, list[Document]] = {name: [] for name in sources}
    for document in rest:
        if document.digest in seen:
            result.counts[document.source]["duplicate"] += 1
        else:
            seen.add(document.digest)
            kept[document.source].append(document)
    for name, candidates in kept.items():
        chosen = _cap(candidates, sources[name].max_documents, config.seed)
        result.counts[name]["capped"] += len(candidates) - len(chosen)
        for document in chosen:
            fate = "heldout" if uniform(config.seed, "heldout", document.group) < config.heldout_share else "train"
            result.counts[name][fate] += 1
            getattr(result, fate).append(document)
    result.train = shuffle(result.train, config.seed, "order")
    result.heldout = shuffle(result.heldout, config.seed, "order")
    return result


def shuffle(documents: list[Document], seed: int, purpose: str) -> list[Document]:
    """`documents` in an order that depends on their content and the seed, not on the order they come in."""
    return sorted(documents, key=lambda document: (uniform(seed, purpose, document.digest), document.digest))


def _cap(documents: list[Document], limit: int | None, seed: int) -> list[Document]:
    """A random `limit` of the documents: the first ones would be the oldest, or one topic."""
    return documents if limit is None else shuffle(documents, seed, "cap")[:limit]
