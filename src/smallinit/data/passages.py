"""Held-out passages to look at, token by token: from sources whose licence lets them be shown."""

from collections import defaultdict
from typing import Any

import pandas as pd
from tokenizers import Tokenizer

from smallinit.data.config import TokenizeConfig
from smallinit.data.documents import Document

REACH = 60_000  # tokens from the start of heldout.bin, for which evaluation keeps every loss
SHORTEST, LONGEST = 60, 180  # tokens of a document that is shown whole
CUT = 120  # tokens that are shown of a longer one
EACH = 3  # passages of a source, at most


def find_passages(
    documents: list[Document], places: pd.DataFrame, tokenizer: Tokenizer, config: TokenizeConfig
) -> list[dict[str, Any]]:
    """The first suitable passages of each source that may be quoted, in the order of heldout.bin.

    A source shows whole documents if it has any of suitable length within reach, else the beginnings of longer ones.

    Args:
        documents: the held-out ones, in the order of the file.
        places: their column `start`, the position of a document's first token in heldout.bin.
        tokenizer: the corpus's own.
        config: which sources are quotable.

    Returns:
        Passages with source, language, document (its number in heldout_documents.csv), start, ids, and pieces: the text
        of each token, see `cut_pieces`. Empty if nothing may be shown.
    """
    whole: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    begun: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for number, (document, start) in enumerate(zip(documents, places["start"].tolist(), strict=True)):
        if start >= REACH:
            break
        source = config.texts[document.source]
        if not source.quotable:
            continue
        ids, pieces = cut_pieces(tokenizer, document.text)
        fits = len(ids) <= LONGEST
        if not fits:
            ids, pieces = up_to_a_character(ids[:CUT], pieces[:CUT])
        if len(ids) >= SHORTEST and start + len(ids) <= REACH:
            found = {"source": document.source, "language": source.language, "document": number, "start": start}
            (whole if fits else begun)[document.source].append(found | {"ids": ids, "pieces": pieces})
    chosen = [passage for own in (begun | whole).values() for passage in own[:EACH]]  # whole ones, where there are any
    return sorted(chosen, key=lambda passage: passage["start"])


def cut_pieces(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[str]]:
    """The tokens of a text and the text of each token.

    The pieces joined are the text. A character of several tokens goes to the last of them, the others have none of it.
    """
    encoding = tokenizer.encode(text, add_special_tokens=False)
    offsets = encoding.offsets  # in characters; tokens that share a character overlap
    following = [start for start, _ in offsets[1:]] + [len(text)]
    ends = [min(end, start) for (_, end), start in zip(offsets, following, strict=False)]
    return encoding.ids, [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def up_to_a_character(ids: list[int], pieces: list[str]) -> tuple[list[int], list[str]]:
    """The same without tokens at the end that begin a character but do not end it."""
    while pieces and not pieces[-1]:
        ids, pieces = ids[:-1], pieces[:-1]
    return ids, pieces
