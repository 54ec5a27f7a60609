"""The tokenizer: byte-level byte-pair encoding, so any text in any language comes back from its tokens unchanged."""

from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from smallinit.data.documents import Document
from smallinit.data.sources import CorpusError
from smallinit.data.text import END

END_ID = 0
BATCH = 256  # documents encoded at a time


def sample(documents: Iterable[Document], characters: int) -> Iterator[str]:
    """Texts of the first documents that together have at most `characters`; the order is random already."""
    for document in documents:
        characters -= len(document.text)
        if characters < 0:
            return
        yield document.text


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn merges from `texts`: the same texts give the same tokenizer. Digits stand alone, spaces belong to words.

    Raises:
        CorpusError: the texts are too few for so many tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # all 256 bytes, seen or not: nothing is unknown
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    found = tokenizer.get_vocab_size()
    if found != vocab_size:
        raise CorpusError(
            f"the texts give only {found} tokens, not vocab_size = {vocab_size}: lower `tokenize.vocab_size`, raise "
            "`tokenize.tokenizer_characters` or choose a larger `corpus` in params.yaml"
        )
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> Iterator[np.ndarray]:
    """Token ids of each text, (n_tokens,) uint16, a batch at a time."""
    for first in range(0, len(texts), BATCH):
        for encoding in tokenizer.encode_batch_fast(texts[first : first + BATCH], add_special_tokens=False):
            yield np.array(encoding.ids, dtype=np.uint16)
