"""The items of the stage `items` as tasks of lm-eval: `local_<task>` is `data/items/<task>.jsonl`, no network."""

from typing import Any

from datasets import Dataset

from smallinit.evaluation.benchmarks import items
from smallinit.evaluation.benchmarks.items import Item

PREFIX = "local_"
Doc = dict[str, Any]  # the fields of an Item


def available() -> list[str]:
    """Names of the local tasks; none before the stage `items` has run."""
    if not items.manifest_file().exists():
        return []
    return [PREFIX + entry["task"] for entry in items.read_manifest()["tasks"]]


def local(name: str) -> dict[str, Any]:
    """lm-eval's configuration of a local task, one of `available`.

    Raises:
        ItemsError: its file is missing, or not the one of the manifest.
    """
    task = name.removeprefix(PREFIX)
    entries = [entry for entry in items.read_manifest()["tasks"] if entry["task"] == task]
    found = items.load({"tasks": entries})
    return {
        "task": name,
        "custom_dataset": lambda **_: {"test": Dataset.from_list([item.model_dump() for item in found])},
        "test_split": "test",
        "target_delimiter": "",  # a continuation brings its own space
        "num_fewshot": 0,
        **kind(found[0]),
    }


def kind(item: Item) -> dict[str, Any]:
    """What is asked: a choice between continuations, between contexts (WinoGrande), or the likelihood of the answer."""
    if not item.choices:
        return OPEN
    return CONTINUATIONS if len(set(item.contexts)) == 1 else CONTEXTS


def first_context(doc: Doc) -> str:
    """The one context of all continuations."""
    context: str = doc["contexts"][0]
    return context


def first_continuation(doc: Doc) -> str:
    """The one continuation of all contexts, or the answer itself."""
    continuation: str = doc["continuations"][0]
    return continuation


def likelihood(doc: Doc, results: list[tuple[float, bool]]) -> dict[str, Any]:
    """Of an open question: log p and size of the answer, and whether greedy decoding writes it."""
    [(log_p, greedy)] = results
    return {"bits_per_byte": (log_p, len(doc["continuations"][0].encode())), "greedy": float(greedy)}


def mean_of(*metrics: str) -> list[dict[str, Any]]:
    """Metrics whose mean over the items counts, the larger the better."""
    return [{"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in metrics]


CONTINUATIONS: dict[str, Any] = {
    "output_type": "multiple_choice",
    "doc_to_text": first_context,
    "doc_to_choice": "continuations",
    "doc_to_target": "gold",
    "metric_list": mean_of("acc", "acc_bytes"),  # the likeliest continuation; the likeliest one per byte
}
CONTEXTS: dict[str, Any] = {
    "output_type": "multiple_choice",
    "doc_to_text": "gold",  # a number here tells lm-eval that the choices are contexts
    "doc_to_choice": "contexts",
    "doc_to_target": first_continuation,
    "metric_list": mean_of("acc"),
}
OPEN: dict[str, Any] = {
    "output_type": "loglikelihood",
    "doc_to_text": first_context,
    "doc_to_target": first_continuation,
    "process_results": likelihood,
    "metric_list": [
        {"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False},
        *mean_of("greedy"),
    ],
}
