"""Log-likelihoods and greedy decoding against sums, softmaxes and loops written out by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import run_config
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from smallinit.data import bpe
from smallinit.evaluation.config import EvaluateConfig
from smallinit.evaluation.heldout import heldout_losses
from smallinit.evaluation.scoring import Scorer
from smallinit.init import initialize
from smallinit.model import Decoder

VOCAB, SEQ_LEN = 330, 16
TEXTS = [
    "The cat sat on the mat, and the dog sat there too. ",
    "小猫坐在垫子上，小狗也坐在那里。什么人？中国人。",
    "3 + 4 = 7\n",
]
EXACT = {"rtol": 0, "atol": 2e-5}  # sums of about ten losses in float32, in another order
MOE = {"n_experts": 4, "top_k": 2, "balance_coef": 0.01, "z_coef": 0.001}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return bpe.train_tokenizer(TEXTS * 5, VOCAB)


def decoder(**changes: Any) -> Decoder:
    """Two blocks with weights so strong that every token of the context matters."""
    model = Decoder(run_config(**{"vocab_size": VOCAB, "seq_len": SEQ_LEN, "n_layers": 2} | changes).model)
    initialize(model, 0.3, 0)
    return model.eval()


@pytest.fixture(scope="module")
def scorer(tokenizer: Tokenizer) -> Scorer:
    return Scorer(decoder(), tokenizer, micro_batch=2)


@torch.no_grad()
def by_hand(model: Decoder, ids: list[int], count: int) -> tuple[float, bool]:
    """-log p of the last `count` of `ids` and whether each is the likeliest: a softmax a token, a forward pass each."""
    nats, greedy = 0.0, True
    for place in range(len(ids) - count, len(ids)):
        p = model(torch.tensor([ids[:place]]))[0, -1].double().softmax(dim=-1)
        nats -= math.log(p[ids[place]])
        greedy &= int(p.argmax()) == ids[place]
    return nats, greedy


# ------------------------------------------------------------------------------------------------------ log-likelihoods
@pytest.mark.parametrize("changes", [{}, {"gate": "none"}, {"tied_head": True}, {"moe": MOE}], ids=str)
def test_a_continuation_scores_as_its_softmaxes_one_by_one_whatever_is_beside_it(
    changes: dict[str, Any], tokenizer: Tokenizer
) -> None:
    model = decoder(**changes)
    pairs = [("The cat", " sat"), ("", "小猫坐"), ("3 + 4 =", " 7\n"), ("The dog", " sat on the mat"), ("什么", "？")]
    scores = Scorer(model, tokenizer, micro_batch=2).loglikelihoods(pairs)
    assert list(scores) == ["nats", "tokens", "greedy", "truncated"] and not scores["truncated"].any()
    for (context, rest), row in zip(pairs, scores.itertuples(), strict=True):
        before, after = (tokenizer.encode(text).ids for text in (context, rest))
        nats, greedy = by_hand(model, [bpe.END_ID, *before, *after], len(after))
        np.testing.assert_allclose(row.nats, nats, **EXACT)
        assert (row.tokens, row.greedy) == (len(after), greedy)


def test_the_probabilities_of_all_single_tokens_add_up_to_one(scorer: Scorer) -> None:
    scores = scorer.score([([bpe.END_ID, 70, 80], [token]) for token in range(VOCAB)])
    np.testing.assert_allclose(np.exp(-scores["nats"]).sum(), 1, atol=1e-5)
    assert scores["greedy"].sum() == 1 and scores["greedy"].idxmax() == scores["nats"].idxmin()


def test_what_greedy_decoding_writes_is_greedy_and_nothing_else_is(scorer: Scorer) -> None:
    context = [bpe.END_ID, 70]
    for _ in range(5):
        context.append(int(scorer.model(torch.tensor([context]))[0, -1].argmax()))
    first, last = context[2:], [*context[2:-1], (context[-1] + 1) % VOCAB]
    assert scorer.score([(context[:2], first), (context[:2], last)])["greedy"].tolist() == [True, False]


def test_a_long_context_is_cut_on_the_left_and_the_continuation_never_is(scorer: Scorer) -> None:
    random = np.random.default_rng(0)
    rest = random.integers(1, VOCAB, 5).tolist()
    contexts = [random.integers(1, VOCAB, length).tolist() for length in (SEQ_LEN - 4, SEQ_LEN - 3, 3 * SEQ_LEN)]
    scores = scorer.score([(context, rest) for context in contexts])
    assert scores["truncated"].tolist() == [0, 1, 2 * SEQ_LEN + 4]
    for context, nats in zip(contexts, scores["nats"], strict=True):
        seen = context[-(SEQ_LEN - 4) :]  # the last token of the continuation is no input
        np.testing.assert_allclose(nats, by_hand(scorer.model, seen + rest, 5)[0], **EXACT)
    whole = scorer.score([([7], [*rest] * 3 + [9])])  # exactly seq_len tokens
    assert whole["tokens"].tolist() == [SEQ_LEN] and whole["truncated"].tolist() == [0]


def test_a_text_counts_the_end_of_text_token_before_it_among_the_truncated(scorer: Scorer) -> None:
    digits = "1" * SEQ_LEN  # a token each
    assert scorer.loglikelihoods([(digits[1:], "2"), (digits, "2")])["truncated"].tolist() == [0, 1]


def test_a_continuation_longer_than_a_window_is_predicted_half_a_window_at_a_time(scorer: Scorer) -> None:
    ids = np.random.default_rng(2).integers(1, VOCAB, 5 + 2 * SEQ_LEN + 3).tolist()
    context, half = 5, SEQ_LEN // 2
    nats = by_hand(scorer.model, ids[: context + half], half)[0]
    for start in range(context + half, len(ids), half):
        piece = ids[start : start + half]
        nats += by_hand(scorer.model, ids[max(0, start + len(piece) - SEQ_LEN - 1) : start] + piece, len(piece))[0]
    scores = scorer.score([(ids[:context], ids[context:])])
    np.testing.assert_allclose(scores["nats"], nats, rtol=1e-6)
    assert scores[["tokens", "truncated"]].values.tolist() == [[2 * SEQ_LEN + 3, 0]]


def test_a_continuation_that_is_empty_is_an_error_that_names_it(scorer: Scorer) -> None:
    with pytest.raises(ValueError, match="pair 1: its continuation has no tokens"):
        scorer.loglikelihoods([("The", " cat"), ("The cat", "")])


def test_order_batches_and_repetition_do_not_matter(scorer: Scorer, tokenizer: Tokenizer) -> None:
    random = np.random.default_rng(1)
    ids = [random.integers(1, VOCAB, length).tolist() for length in random.integers(2, 24, 40)]
    pairs = [(part[: len(part) // 2], part[len(part) // 2 :][:SEQ_LEN]) for part in ids]
    one = scorer.score(pairs)
    assert one.equals(scorer.score(pairs))
    order = random.permutation(len(pairs))
    other = Scorer(scorer.model, tokenizer, micro_batch=7).score([pairs[i] for i in order])
    np.testing.assert_allclose(other["nats"], one["nats"].iloc[order], **EXACT)
    assert other.drop(columns="nats").equals(one.drop(columns="nats").iloc[order].reset_index(drop=True))


def test_nothing_to_score_is_an_empty_table(scorer: Scorer) -> None:
    assert scorer.loglikelihoods([]).empty and scorer.rolling([]).empty and scorer.generate([], 3) == []


# ------------------------------------------------------------------------------------------ where a continuation begins
def lm_eval_split(tokenizer: Tokenizer, context: str, rest: str) -> tuple[list[int], list[int]]:
    """lm-eval's rule in its own words: encode the whole, split after as many tokens as the context has alone."""
    spaces = len(context) - len(context.rstrip())
    if spaces:
        context, rest = context[:-spaces], context[-spaces:] + rest
    before = tokenizer.encode(context).ids
    return before, tokenizer.encode(context + rest).ids[len(before) :]


@pytest.mark.parametrize(
    ("context", "rest"),
    [
        ("The cat", " sat"),
        ("The cat ", "sat"),
        ("那里。", "中国人"),
        ("a\n", "小"),
        ("(", "A)"),
        ("4 =\u3000", "7"),
        ("1", "2"),
    ],
)
def test_texts_split_as_in_lm_eval(context: str, rest: str, scorer: Scorer) -> None:
    [(before, after)] = scorer.split([(context, rest)])
    assert before[0] == bpe.END_ID and (before[1:], after) == lm_eval_split(scorer.tokenizer, context, rest)


def test_a_token_across_the_boundary_costs_the_continuation_no_letter(scorer: Scorer) -> None:
    assert lm_eval_split(scorer.tokenizer, "小猫", "坐在")[1] == []  # the whole has no more tokens than the context
    [(before, after)] = scorer.split([("小猫", "坐在")])
    assert [scorer.tokenizer.decode(ids) for ids in (before[1:], after)] == ["小猫", "坐在"]


@settings(max_examples=300, deadline=None)
@given(*[st.text(alphabet="The catsonm 小猫坐在什么人中国，1 \n'", max_size=12)] * 2)
def test_no_letter_is_lost_and_lm_eval_agrees_unless_a_token_spans_the_boundary(
    scorer: Scorer, context: str, rest: str
) -> None:
    [(before, after)] = scorer.split([(context, rest)])
    bare, tail = context.rstrip(), context[len(context.rstrip()) :] + rest
    encode, decode = scorer.tokenizer.encode, scorer.tokenizer.decode
    assert (decode(before[1:]), decode(after)) == (bare, tail)
    if encode(context + rest).ids[: len(before) - 1] == encode(bare).ids:
        assert (before[1:], after) == lm_eval_split(scorer.tokenizer, context, rest)


def test_a_context_that_begins_with_the_end_of_text_token_gets_no_second_one(scorer: Scorer) -> None:
    one, two = scorer.loglikelihoods([("The cat", " sat"), ("<|endoftext|>The cat", " sat")])["nats"]
    assert one == two


# ---------------------------------------------------------------------------------------------------------- whole texts
@pytest.mark.parametrize("windows", [1, 3])
def test_the_nats_of_a_text_are_its_loss_times_its_tokens(windows: int, scorer: Scorer) -> None:
    """The same text as a held-out document: <|endoftext|> before it, windows side by side."""
    ids = scorer.tokenizer.encode("".join(TEXTS) * 3).ids
    while len(scorer.tokenizer.encode(text := scorer.tokenizer.decode(ids[: windows * SEQ_LEN])).ids) % SEQ_LEN:
        ids = ids[1:]
    ids = scorer.tokenizer.encode(text).ids
    settings = EvaluateConfig(tokens=len(ids), slice_tokens=1, attention_windows=1, micro_batch=2, threads=1)
    losses = heldout_losses(scorer.model, np.array([bpe.END_ID, *ids]), SEQ_LEN, settings)
    score = scorer.rolling([text]).iloc[0]
    assert score["tokens"] == len(ids) == windows * SEQ_LEN
    np.testing.assert_allclose(score["nats"], losses.mean(dtype=np.float64) * len(ids), rtol=1e-6)


def test_each_token_of_a_text_is_predicted_once_with_as_much_before_it_as_fits(scorer: Scorer) -> None:
    text = "".join(TEXTS) + "1234"
    ids = [bpe.END_ID, *scorer.tokenizer.encode(text).ids]
    full, rest = divmod(len(ids) - 1, SEQ_LEN)
    assert full >= 2 and rest
    nats = sum(by_hand(scorer.model, ids[k * SEQ_LEN : (k + 1) * SEQ_LEN + 1], SEQ_LEN)[0] for k in range(full))
    nats += by_hand(scorer.model, ids[-SEQ_LEN - 1 :], rest)[0]
    scores = scorer.rolling(["", text, "1"])
    assert scores["tokens"].tolist() == [0, len(ids) - 1, 1]
    one = by_hand(scorer.model, scorer.contexts(["1"])[0], 1)[0]
    np.testing.assert_allclose(scores["nats"], [0, nats, one], rtol=1e-6)


# --------------------------------------------------------------------------------------------------------------- greedy
@torch.no_grad()
def naive(scorer: Scorer, prompt: str, max_tokens: int, stop: list[str]) -> str:
    """One prompt, one token at a time, the whole sequence each time."""
    ids, text = scorer.contexts([prompt])[0][-(SEQ_LEN - max_tokens) :], ""
    written: list[int] = []
    for _ in range(max_tokens):
        token = int(scorer.model(torch.tensor([ids + written]))[0, -1].argmax())
        if token == bpe.END_ID:
            break
        written.append(token)
        text = scorer.tokenizer.decode(written)
        if any(string in text for string in stop):
            return min((text.split(string)[0] for string in stop), key=len)
    return text


@pytest.mark.parametrize("changes", [{}, {"gate": "none", "n_kv_heads": 1}, {"moe": MOE, "norm": "layernorm"}], ids=str)
def test_generation_is_that_of_a_loop_over_single_tokens(changes: dict[str, Any], tokenizer: Tokenizer) -> None:
    scorer = Scorer(decoder(**changes), tokenizer, micro_batch=2)
    before = scorer.loglikelihoods([("The", " cat")])
    prompts = ["", "The cat sat", "小猫", "3 + 4 =", "The dog sat there too. " * 9, "什么人"]
    free = [naive(scorer, prompt, 9, []) for prompt in prompts]
    assert scorer.generate(prompts, 9) == free and len(set(free)) > 3
    stop = [free[1][2:4], free[2][1], "never"]
    stopped = scorer.generate(prompts, 9, stop)
    assert stopped == [naive(scorer, prompt, 9, stop) for prompt in prompts] and stopped[1] != free[1]
    assert scorer.loglikelihoods([("The", " cat")]).equals(before)  # the model is as it was


def test_generation_ends_before_the_end_of_text_token(tokenizer: Tokenizer) -> None:
    """The head is made to prefer <|endoftext|> once it has seen a certain token."""
    model = decoder()
    assert model.head is not None
    free = Scorer(model, tokenizer, 2).generate(["The cat"], 6)[0]
    with torch.no_grad():
        seen = tokenizer.encode("The cat" + free).ids
        x = model.hidden(torch.tensor([[bpe.END_ID, *seen]]))[0][0, -3]  # (d,)
        model.head.weight[bpe.END_ID] = 100 * x / x.norm() * (model.head.weight @ x).abs().max() / x.norm()
    scorer = Scorer(model, tokenizer, 2)
    short = scorer.generate(["The cat"], 6)[0]
    assert short == naive(scorer, "The cat", 6, []) and free.startswith(short) and len(short) < len(free)


def test_max_tokens_must_leave_room_for_a_prompt(scorer: Scorer) -> None:
    for wrong in (0, SEQ_LEN):
        with pytest.raises(ValueError, match=rf"max_tokens = {wrong}: must be 1 \.\.\. 15 at seq_len 16"):
            scorer.generate(["The"], wrong)
