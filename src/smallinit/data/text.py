"""What is done to the text of a document, and the hashes that compare documents and decide about them."""

import functools
import hashlib
import re
import unicodedata

END = "<|endoftext|>"
LINE_ENDS = "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


@functools.cache
def _table() -> dict[int, str | None]:
    """A `str.translate` table: every line end to \\n, every white space to a space, no control characters."""
    table: dict[int, str | None] = {}
    for code in (*range(0x10000), *range(0xE0000, 0xE0080)):
        category = unicodedata.category(chr(code))
        if category == "Zs":  # no-break, ideographic, thin ...
            table[code] = " "
        elif category in ("Cc", "Cf", "Cs", "Co"):  # control, invisible format, lone surrogate, private use
            table[code] = None
    return table | {ord("\t"): " ", ord("\n"): "\n"} | {ord(end): "\n" for end in LINE_ENDS}


def clean(text: str) -> str:
    """Composed (NFC) text with plain spaces and line ends, at most one blank line in a row, no control characters.

    The separator of documents, should a text contain it, goes too: it must only ever be a separator.
    """
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").translate(_table())).replace(END, " ")
    text = re.sub(r" *\n *", "\n", re.sub(r" {2,}", " ", text))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def digest(text: str) -> str:
    """A hash of the text without white space and case; documents with the same one are duplicates."""
    bare = "".join(text.casefold().split())
    return hashlib.blake2b(bare.encode(), digest_size=16).hexdigest()


def uniform(*parts: str | int) -> float:
    """A number in [0, 1) that depends on `parts` alone: the dice of every decision about a document."""
    text = "\0".join(str(part) for part in parts)
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
    return (number >> 11) / 2**53  # 53 bits: more would round up to 1
