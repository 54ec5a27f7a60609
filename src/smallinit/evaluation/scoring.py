"""What a model says about texts: log-likelihoods of continuations and of whole texts, and greedy continuations.

All of it works on token ids in float32, on the device of the model. <|endoftext|> stands before each document in
training, so it stands before each context here. Shapes use B sequences, T tokens, V vocabulary, d d_model.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from smallinit.data.bpe import END_ID
from smallinit.evaluation.generation import continue_greedily
from smallinit.kernels import HEAD_CHUNK
from smallinit.model import Decoder
from smallinit.progress import Progress

Ids = list[int]
Span = tuple[Ids, int]  # tokens, and how many of the last ones are predicted


class Scorer:
    """Scores texts with `model`, `micro_batch` windows of seq_len tokens at a time (shorter texts: more of them).

    The same requests give the same bits; other requests beside a text change its numbers by rounding alone.
    """

    def __init__(self, model: Decoder, tokenizer: Tokenizer, micro_batch: int):
        self.model, self.tokenizer = model.eval(), tokenizer
        self.seq_len, self.batch_tokens = model.config.seq_len, micro_batch * model.config.seq_len
        self.head = model.embed.weight if model.head is None else model.head.weight  # (V, d)

    # ------------------------------------------------------------------------------------------------------------ texts
    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Token ids of each text, without <|endoftext|>; a text that occurs more than once is encoded once."""
        unique = list(dict.fromkeys(texts))
        encodings = self.tokenizer.encode_batch_fast(unique, add_special_tokens=False)
        ids = {text: encoding.ids for text, encoding in zip(unique, encodings, strict=True)}
        return [ids[text] for text in texts]

    def contexts(self, texts: Sequence[str]) -> list[Ids]:
        """Token ids of each text after <|endoftext|>, which is put there unless the text begins with it."""
        return [ids if ids[:1] == [END_ID] else [END_ID, *ids] for ids in self.encode(texts)]

    def split(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[Ids, Ids]]:
        """Token ids of pairs (context, continuation).

        White space at the end of a context goes to the continuation, as in lm-eval: tokens begin with their space. Then
        each is encoded on its own. lm-eval encodes the whole and cuts off as many tokens as the context has alone: the
        same, unless a token spans the boundary (two Chinese characters, say). There lm-eval loses letters; here the
        continuation stays whole.
        """
        bare = [context.rstrip() for context, _ in pairs]
        rest = [context[len(start) :] + rest for (context, rest), start in zip(pairs, bare, strict=True)]
        return list(zip(self.contexts(bare), self.encode(rest), strict=True))

    def loglikelihoods(self, pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
        """How likely each continuation is after its context: one row a pair (context, continuation), in order.

        A context is cut on the left so that all fits into a window of seq_len; a continuation never is. One that is
        longer than a window is predicted half a window at a time, each after the half before it.

        Columns:
            nats: -log p(continuation | context).
            tokens: of the continuation, see `split`.
            greedy: whether greedy decoding would write just this continuation.
            truncated: tokens of the context that are cut off, the leading <|endoftext|> among them.

        Raises:
            ValueError: a continuation is empty; the message names the number of the pair.
        """
        return self.score(self.split(pairs))

    def rolling(self, texts: Sequence[str]) -> pd.DataFrame:
        """How likely each text is as a whole document: nats and tokens, one row a text.

        Every token is predicted once: windows of seq_len tokens, the first after <|endoftext|>, each further one after
        the last token of the one before; the last window reaches back as far as it can, as in lm-eval.
        """
        documents = [[END_ID, *ids] for ids in self.encode(texts)]
        scores = self._score([self._spans(ids, 1, self.seq_len) for ids in documents])
        return pd.DataFrame({"nats": scores["nats"], "tokens": [len(ids) - 1 for ids in documents]})

    def generate(self, prompts: Sequence[str], max_tokens: int, stop: Sequence[str] = ()) -> list[str]:
        """What greedy decoding writes after each prompt, at most `max_tokens` tokens of it.

        It ends before the first of the strings `stop` and before <|endoftext|>. A prompt is cut on the left to
        seq_len - max_tokens tokens.

        Raises:
            ValueError: max_tokens leaves no room for a prompt.
        """
        room = self.seq_len - max_tokens
        if not (max_tokens > 0 and room > 0):
            raise ValueError(f"max_tokens = {max_tokens}: must be 1 ... {self.seq_len - 1} at seq_len {self.seq_len}")
        ids = [context[-room:] for context in self.contexts(prompts)]
        written: dict[int, str] = {}
        with Progress(len(ids), "generation", "texts") as bar:
            for batch in self._batches([len(prompt) + max_tokens for prompt in ids]):
                texts = continue_greedily(self.model, self.tokenizer, [ids[i] for i in batch], max_tokens, stop)
                written.update(zip(batch, texts, strict=True))
                bar.update(len(batch))
        return [written[i] for i in range(len(ids))]

    # -------------------------------------------------------------------------------------------------------- token ids
    def score(self, pairs: Sequence[tuple[Ids, Ids]]) -> pd.DataFrame:
        """`loglikelihoods` of pairs of token ids; a context has at least one token.

        Raises:
            ValueError: as there.
        """
        for number, (_, rest) in enumerate(pairs):
            if not rest:
                raise ValueError(f"pair {number}: its continuation has no tokens, at least one is needed")
        sizes = [self.seq_len if len(rest) <= self.seq_len else max(1, self.seq_len // 2) for _, rest in pairs]
        spans = [
            self._spans(context + rest, len(context), size) for (context, rest), size in zip(pairs, sizes, strict=True)
        ]
        scores = self._score(spans)
        scores.insert(1, "tokens", [len(rest) for _, rest in pairs])
        needed = [len(c) + min(len(rest), size) for (c, rest), size in zip(pairs, sizes, strict=True)]
        return scores.assign(truncated=[max(0, need - self.seq_len - 1) for need in needed])

    def _spans(self, ids: Ids, begin: int, size: int) -> list[Span]:
        """What predicts ids[begin:], each token once: `size` of them at a time, each time after all that fits."""
        ends = [min(start + size, len(ids)) for start in range(begin, len(ids), size)]
        starts = [begin, *ends[:-1]]
        return [
            (ids[max(0, end - self.seq_len - 1) : end], end - start)  # the last one is predicted, but no input
            for start, end in zip(starts, ends, strict=False)
        ]

    @torch.no_grad()
    def _score(self, spans_of: Sequence[list[Span]]) -> pd.DataFrame:
        """Columns nats and greedy, one row a list of spans: the sum over them, and whether all of them are greedy.

        Sequences are padded on the right, where causal attention does not see it; logits are made only where a token
        is predicted.
        """
        owners = np.repeat(np.arange(len(spans_of)), [len(spans) for spans in spans_of])
        spans = [span for own in spans_of for span in own]
        nats, greedy = np.zeros(len(spans_of)), np.ones(len(spans_of), dtype=bool)
        lengths = [len(ids) - 1 for ids, _ in spans]
        with Progress(sum(lengths), "scoring", "tokens") as bar:
            for batch in self._batches(lengths):
                counts = [spans[i][1] for i in batch]
                ids = np.full((len(batch), lengths[batch[0]] + 1), END_ID)  # (B, T + 1)
                for row, i in enumerate(batch):
                    ids[row, : lengths[i] + 1] = spans[i][0]
                rows = np.repeat(np.arange(len(batch)), counts)  # (N,): where the N tokens to predict are
                columns = np.concatenate([np.arange(lengths[i] - spans[i][1], lengths[i]) for i in batch])
                hidden, _ = self.model.hidden(self._tensor(ids[:, :-1]))  # (B, T, d)
                x = hidden[self._tensor(rows), self._tensor(columns)]  # (N, d)
                losses, hits = self._losses(x, self._tensor(ids[rows, columns + 1]))
                np.add.at(nats, owners[batch][rows], losses)
                np.logical_and.at(greedy, owners[batch][rows], hits)
                bar.update(sum(lengths[i] for i in batch))
        return pd.DataFrame({"nats": nats, "greedy": greedy})

    def _losses(self, x: Tensor, targets: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Losses (N,) float64 in nats, and whether the target has the largest logit (N,). x: (N, d)."""
        losses, hits = [], []
        for part, target in zip(x.split(HEAD_CHUNK), targets.split(HEAD_CHUNK), strict=True):
            logits = F.linear(part, self.head)  # (n, V)
            losses.append(F.cross_entropy(logits, target, reduction="none"))
            hits.append(logits.gather(1, target[:, None])[:, 0] == logits.amax(dim=-1))
        return torch.cat(losses).double().cpu().numpy(), torch.cat(hits).cpu().numpy()

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Numbers of the sequences, longest first, in batches of at most `batch_tokens` tokens with padding."""
        order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        while order:
            count = max(1, self.batch_tokens // max(1, lengths[order[0]]))
            yield order[:count]
            order = order[count:]

    def _tensor(self, ids: np.ndarray) -> Tensor:
        return torch.from_numpy(ids).to(self.head.device)
