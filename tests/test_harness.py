"""A run inside lm-eval: against its own `hf` model on the exported weights, against the stage's measures, by hand."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import run_config
from tokenizers import Tokenizer

pytest.importorskip("lm_eval")
pytest.importorskip("transformers", minversion="5")
import lm_eval
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from smallinit import hf, paths
from smallinit.config import ConfigError, RunConfig
from smallinit.data import bpe
from smallinit.data.checksum import sha256
from smallinit.evaluation.benchmarks import items
from smallinit.evaluation.benchmarks.items import Item, make
from smallinit.evaluation.benchmarks.score import measures
from smallinit.evaluation.scoring import Scorer
from smallinit.files import write_json
from smallinit.harness import command
from smallinit.harness.adapter import CheckpointLM
from smallinit.init import initialize
from smallinit.model import Decoder

transformers.utils.logging.disable_progress_bar()

VOCAB, SEQ_LEN = 330, 24
TEXTS = [
    "The cat sat on the mat, and the dog sat there too. ",
    "小猫坐在垫子上，小狗也坐在那里。什么人？中国人。",
    "3 + 4 = 7\n",
]
ROUNDING = {"rtol": 0, "atol": 1e-4}  # of transformers' rotary angles, and of sums in float32


class Pair(NamedTuple):
    """The same weights in two interfaces of lm-eval."""

    ours: CheckpointLM
    theirs: HFLM
    without_bos: HFLM


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return bpe.train_tokenizer(TEXTS * 5, VOCAB)


def trained(**changes: Any) -> tuple[RunConfig, Decoder]:
    """A run and a model whose weights are strong enough for every part of it to matter."""
    config = run_config(vocab_size=VOCAB, seq_len=SEQ_LEN, n_layers=2, batch_tokens=96, tokens=960, **changes)
    model = Decoder(config.model)
    initialize(model, 0.3, 0)
    return config, model.eval()


@pytest.fixture(scope="module", params=["none", "elementwise"], ids=["llama", "gated"])
def pair(request: pytest.FixtureRequest, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A Llama, and a model of our own class with a gate; the exported folder as `lm_eval --model hf` would load it."""
    _, model = trained(gate=request.param)
    folder = tmp_path_factory.mktemp("exported")
    tokenizer.save(str(folder / "source.json"))
    hf.to_transformers(model).save_pretrained(folder)
    hf.to_tokenizer(folder / "source.json", SEQ_LEN).save_pretrained(folder)
    theirs, without_bos = (
        HFLM(pretrained=str(folder), batch_size=3, device="cpu", dtype="float32", add_bos_token=add)
        for add in (True, None)
    )
    assert theirs.config.model_type == {"none": "llama", "elementwise": "smallinit"}[request.param]
    return Pair(CheckpointLM(Scorer(model, tokenizer, 2)), theirs, without_bos)


def requests(kind: str, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]


# ------------------------------------------------------------------------------------------------------ single requests
def test_log_likelihoods_are_those_of_lm_evals_own_model(pair: Pair) -> None:
    """With and without a context, cut on the left, in Chinese, with white space at the end of the context."""
    arguments = [
        *[("The cat", " sat"), ("The cat ", "sat on the mat"), ("", "小猫坐"), ("3 + 4 =", " 7\n")],
        *[("The dog sat there too. " * 5, " The cat sat"), ("什么人？", "中国人"), ("，", "小" * 7)],
        ("<|endoftext|>The", " cat"),
    ]
    ours, theirs = (lm.loglikelihood(requests("loglikelihood", arguments)) for lm in pair[:2])
    np.testing.assert_allclose([value for value, _ in ours], [value for value, _ in theirs], **ROUNDING)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]


def test_what_is_greedy_is_greedy_for_lm_evals_own_model(pair: Pair, tokenizer: Tokenizer) -> None:
    """Two tokens that greedy decoding writes, and two that it does not."""
    found = 0
    for word in ("The", "cat", "猫", "3", "人", "there", "7", "。", "dog", "mat"):
        [written] = pair.ours.scorer.generate([word], 2)
        if tokenizer.decode(tokenizer.encode(word + written).ids) == word + written and written.strip() == written:
            asked = requests("loglikelihood", [(word, written), (word, written[::-1] + "x")])
            ours, theirs = ([greedy for _, greedy in lm.loglikelihood(asked)] for lm in pair[:2])
            assert ours == theirs
            found += ours == [True, False]
    assert found


def test_whole_texts_are_those_of_lm_evals_own_model(pair: Pair) -> None:
    """Without add_bos_token, which would predict <|endoftext|> as the first token of a text."""
    asked = requests("loglikelihood_rolling", [("".join(TEXTS),), (TEXTS[0] * 4,), ("3",)])
    ours, theirs = (lm.loglikelihood_rolling(asked) for lm in (pair.ours, pair.without_bos))
    assert len(pair.without_bos.tok_encode(TEXTS[0] * 4)) > 2 * SEQ_LEN
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_texts_are_those_of_lm_evals_own_model(pair: Pair) -> None:
    prompts = ["The cat", "小猫", "3 + 4 =", "The dog sat there too. " * 4]
    asked = requests("generate_until", [(prompt, {"until": ["\n", "cat"], "max_gen_toks": 7}) for prompt in prompts])
    asked += requests("generate_until", [(prompts[0], {"until": [], "max_gen_toks": 3})])
    ours, theirs = (lm.generate_until(asked) for lm in pair[:2])
    assert ours == theirs and len(set(ours)) > 2


def test_a_text_may_be_half_a_window_long_and_must_be_greedy(pair: Pair) -> None:
    scorer = pair.ours.scorer
    [text] = pair.ours.generate_until(requests("generate_until", [("The", {"until": [], "max_gen_toks": 500})]))
    assert text == scorer.generate(["The"], SEQ_LEN // 2)[0]
    with pytest.raises(ValueError, match="do_sample"):
        pair.ours.generate_until(requests("generate_until", [("The", {"until": [], "do_sample": True})]))


# ---------------------------------------------------------------------------------------------------------------- tasks
def choice(name: str, number: int, contexts: list[str], rests: list[str], gold: int) -> Item:
    return make(name, str(number), "en", list(zip(contexts, rests, strict=True)), gold)


ITEMS = {
    "endings": [
        choice("endings", 0, ["The cat"] * 4, [" sat on the mat", " dog", " too", " 7"], 0),
        choice("endings", 1, ["小猫"] * 2, ["，坐在", "。人"], 1),
        choice("endings", 2, ["The dog sat"] * 4, [" there", " there too.", " mat", " and"], 1),
    ],
    "beginnings": [
        choice("beginnings", number, [f"{who} sat" for who in ("The cat", "The dog")], [rest] * 2, number % 2)
        for number, rest in enumerate([" there too.", " on the mat", " and sat"])
    ],
    "answers": [
        make("answers", "0", "en", [("3 + 4 =", " 7")], 0),
        make("answers", "1", "zh", [("什么人？", "中国人。" * 9)], 0),  # longer than a window
    ],
}


@pytest.fixture
def run(project: Path, tokenizer: Tokenizer) -> Iterator[tuple[str, Scorer]]:
    """A project with one trained run and the items of three tasks."""
    import safetensors.torch

    config, model = trained()
    (paths.MODELS / config.run).mkdir(parents=True)
    safetensors.torch.save_file(model.state_dict(), paths.MODELS / config.run / "model.safetensors")
    (paths.MODELS / config.run / "config.json").write_text(config.model_dump_json())
    write_json(paths.RESULTS / "train" / config.run / "metrics.json", {"diverged": False})
    tokenizer.save(str(paths.TOKENS / "tokenizer.json"))
    entries = []
    for name, found in ITEMS.items():
        items.write(items.folder() / f"{name}.jsonl", found)
        entries.append({"task": name, "sha256": sha256(items.folder() / f"{name}.jsonl")})
    write_json(items.manifest_file(), {"tasks": entries})
    yield config.run, Scorer(model, tokenizer, 2)


def call(run: str, tasks: str, **more: Any) -> str:
    """The command with its defaults."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    arguments = [run, "--tasks", tasks]
    for key, value in more.items():
        arguments += [f"--{key}", str(value)]
    return command.main(parser.parse_args(arguments))


def by_hand(scorer: Scorer, name: str) -> list[dict[str, Any]]:
    """What the stage `benchmark` measures on the items of a task."""
    pairs = [list(zip(item.contexts, item.continuations, strict=True)) for item in ITEMS[name]]
    nats = [scorer.loglikelihoods(own)["nats"].to_numpy() for own in pairs]
    return [measures(*each) for each in zip(ITEMS[name], nats, strict=True)]


def test_local_tasks_give_what_the_stage_measures_with_standard_errors_and_chance(
    run: tuple[str, Scorer], tmp_path: Path
) -> None:
    name, scorer = run
    file = tmp_path / "table.json"
    text = call(name, "local_endings,local_beginnings,local_answers", output=file)
    rows = json.loads(file.read_text())["tasks"]
    table = {(row["task"].removeprefix("local_"), row["metric"]): row for row in rows}
    keys = {("endings", "acc"): "correct", ("endings", "acc_bytes"): "correct_norm", ("beginnings", "acc"): "correct"}
    for (task, metric), key in keys.items():
        hits = np.array([each[key] for each in by_hand(scorer, task)], dtype=float)
        row = table[task, metric]
        assert (row["items"], row["value"]) == (3, pytest.approx(hits.mean()))
        assert row["stderr"] == pytest.approx(hits.std(ddof=1) / len(hits) ** 0.5)
        assert row["chance"] == pytest.approx({"endings": 1 / 3, "beginnings": 1 / 2}[task])  # (1/4 + 1/2 + 1/4) / 3
    answers = by_hand(scorer, "answers")
    bits = sum(each["gold_nats"] for each in answers) / np.log(2) / sum(each["gold_bytes"] for each in answers)
    assert table["answers", "bits_per_byte"]["value"] == pytest.approx(bits) and bits > 1
    assert table["answers", "bits_per_byte"]["chance"] is None and table["answers", "greedy"]["value"] == 0
    assert "| local_endings | 3 | acc |" in text and "stderr" in text


def test_the_same_table_twice_and_fewer_items_with_a_limit(run: tuple[str, Scorer], tmp_path: Path) -> None:
    first, second, limited = (tmp_path / name for name in ("first", "second", "limited"))
    for file, more in ((first, {}), (second, {}), (limited, {"limit": 2})):
        call(run[0], "local_endings", output=file, **more)
    assert first.read_bytes() == second.read_bytes()
    assert [row["items"] for row in json.loads(limited.read_text())["tasks"]] == [2, 2]


YAML = """\
task: mine
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}, cache_dir: CACHE}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{answers}}"
doc_to_target: "{{right}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


def test_a_task_in_yaml_scores_as_with_lm_evals_own_model(pair: Pair, tmp_path: Path, project: Path) -> None:
    rows = [{"question": "The cat", "answers": ["sat", "mat"], "right": number % 2} for number in range(2)]
    rows += [{"question": "3 + 4 =", "answers": ["7", "4", "3"], "right": number % 3} for number in range(4)]
    (tmp_path / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = YAML.replace("FILE", str(tmp_path / "rows.json")).replace("CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.yaml").write_text(text)
    [row] = command.evaluate(pair.ours.scorer, [str(tmp_path / "mine.yaml")]).to_dict("records")
    manager = lm_eval.tasks.TaskManager(include_path=tmp_path, include_defaults=False)
    theirs = lm_eval.simple_evaluate(pair.theirs, tasks=["mine"], task_manager=manager)
    assert row["value"] == theirs["results"]["mine"]["acc,none"] and 0 < row["value"] < 1
    assert row["stderr"] == pytest.approx(theirs["results"]["mine"]["acc_stderr,none"])
    assert row["chance"] == pytest.approx((2 / 2 + 4 / 3) / 6) and row["items"] == 6


# --------------------------------------------------------------------------------------------------------------- errors
def test_errors_name_what_is_wrong_and_what_to_do(run: tuple[str, Scorer]) -> None:
    name, _ = run
    with pytest.raises(ConfigError, match=r"run = 'x-1.0-both': no models/.*dvc pull"):
        call("x-1.0-both", "local_endings")
    with pytest.raises(ConfigError, match=r"local_nothing: unknown. Our own: local_endings, local_beginnings"):
        call(name, "local_endings,local_nothing")
    (items.folder() / "endings.jsonl").write_text(ITEMS["endings"][0].model_dump_json() + "\n")
    with pytest.raises(ConfigError, match=r"endings.jsonl is not the file .* describes: run `dvc repro items`"):
        call(name, "local_endings")


def test_without_a_network_a_task_of_the_hub_says_so(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'some/data' on the Hub")

    monkeypatch.setattr("datasets.load_dataset", refused)
    (tmp_path / "mine.yaml").write_text(YAML)
    with pytest.raises(
        ConfigError, match=r"did not arrive from the Hugging Face hub.* local_ need none.*Couldn't reach"
    ):
        command.evaluate(pair.ours.scorer, [str(tmp_path / "mine.yaml")])
