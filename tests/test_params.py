"""`params.yaml` to plan to run: no value changes on the way, and every mistake is named by its key."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import PARAMS
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from smallinit import config, params, paths, plan
from smallinit.config import ConfigError


def step(place: Any, part: str) -> Any:
    return place[int(part) if isinstance(place, list) else part]


def edited(changes: dict[str, str | None]) -> str:
    """The parameters with some keys (dotted) spelled as given in YAML; None deletes a key."""
    content = YAML(typ="safe", pure=True).load(PARAMS)
    for number, (key, text) in enumerate(changes.items()):
        *above, last = key.split(".")
        place = content
        for part in above:
            place = step(place, part)
        if text is None:
            del place[last]
        else:
            place[int(last) if isinstance(place, list) else last] = f"PLACE{number}END"
    stream = io.StringIO()
    YAML(typ="safe", pure=True).dump(content, stream)
    written = stream.getvalue()
    for number, text in enumerate(changes.values()):
        written = written.replace(f"PLACE{number}END", text or "")
    return written


def write(changes: dict[str, str | None]) -> None:
    paths.PARAMS.write_text(edited(changes))


def resolved(changes: dict[str, str | None]) -> dict[str, Any]:
    write(changes)
    return {name: value.model_dump(mode="json") for name, value in params.resolve(params.load()).items()}


def message(changes: dict[str, str | None]) -> str:
    """The error that these changes lead to on the way to the plan."""
    write(changes)
    with pytest.raises(ConfigError) as raised:
        params.resolve(params.load())
    return str(raised.value)


def test_the_tracked_params_yaml_fits_its_schema_and_resolves() -> None:
    chosen = params.load(Path(__file__).parents[1] / "params.yaml")
    assert {f"runs/{name}" for name in params.run_names(chosen)} < params.resolve(chosen).keys()


# ------------------------------------------------------------------------------------------- values keep type and value
FLOATS = {  # key in params.yaml -> where it ends
    "train.weight_decay": ("train", "weight_decay"),
    "train.adam_eps": ("train", "adam_eps"),
    "train.peak_lrs.0.peak_lr": ("train", "peak_lr"),
    "variants.standard.norm_eps": ("model", "norm_eps"),
    "model.rope_theta": ("model", "rope_theta"),
}
INTEGERS = {"train.seed": ("seed",), "sizes.s.d_ref": ("d_ref",), "train.log_every": ("train", "log_every")}
positive = st.floats(min_value=1e-300, max_value=1e300)
spelled_floats = st.one_of(
    positive.map(repr),
    positive.map("{:e}".format),
    positive.map("{:.3E}".format),
    st.floats(0.1, 9).map("{:.4f}".format),
)
spelled_integers = st.integers(8, 10**9).map(str)
others = st.sampled_from(
    [
        "true",
        "false",
        "null",
        "~",
        '"1e-4"',
        "'12'",
        "yes",
        "off",
        "1e-4x",
        "0.1.2",
        ".nan",
        ".inf",
        "-.inf",
        "[1.0]",
        "",
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from([*FLOATS, *INTEGERS]), text=st.one_of(spelled_floats, spelled_integers, others))
@example(key="train.adam_eps", text="1e-12")
@example(key="train.weight_decay", text="1e-4")
@example(key="variants.standard.norm_eps", text="1E-12")
@example(key="train.weight_decay", text="1.0")
@example(key="train.weight_decay", text="1")
@example(key="train.weight_decay", text="true")
@example(key="train.seed", text="false")
@example(key="train.seed", text="8.0")
@example(key="variants.standard.norm_eps", text="true")
def test_a_value_reaches_the_run_with_its_type_or_fails_with_its_key(project: Path, key: str, text: str) -> None:
    try:
        number: float | int | None = int(text)
    except ValueError:
        try:
            number = float(text) if text[:1].isdigit() else None
        except ValueError:
            number = None
    if number is None or (key in INTEGERS and isinstance(number, float)):
        assert key in message({key: text})
        return
    wanted = float(number) if key in FLOATS else number
    write({key: text})
    plan.write()
    value: Any = json.loads((paths.PLAN / "runs" / "s-0.5-standard.json").read_text())
    run: Any = config.load_run("s-0.5-standard")
    for part in (FLOATS | INTEGERS)[key]:
        value, run = value[part], getattr(run, part)
    assert (value, type(value)) == (run, type(run)) == (wanted, type(wanted))


# --------------------------------------------------------------------------------------------------- mistakes are named
@pytest.mark.parametrize(
    "key",
    [
        "crpus",
        "ladder.size",
        "sizes.s.d_mdoel",
        "variants.both.eps",
        "train.lr",
        "train.peak_lrs.1.lr",
        "evaluate.token",
        "corpora.quick.source",
        "sources.wiki.lang",
        "archives.law.md5",
        "tokenize.vocab",
        "analysis.samples",
    ],
)
def test_an_unknown_key_is_named_with_its_value(project: Path, key: str) -> None:
    text = message({key: "12345"})
    assert key in text and "12345" in text


@pytest.mark.parametrize(
    "key",
    [
        "corpus",
        "ladder.gammas",
        "sizes.m.d_ff",
        "variants.standard.gate",
        "train.adam_eps",
        "train.peak_lrs.0.peak_lr",
        "evaluate.threads",
        "model.rope_theta",
        "corpora.quick.sources",
        "sources.law.reader",
        "archives.wiki.sha256",
    ],
)
def test_a_missing_key_is_named(project: Path, key: str) -> None:
    text = message({key: None})
    assert key in text and "required" in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("corpus", "3"),
        ("ladder.sizes", "s"),
        ("ladder.gammas.0", "true"),
        ("sizes.s.d_model", "true"),
        ("sizes.s.d_model", "16.0"),
        ("sizes.s.tokens", '"2048"'),
        ("variants.both.gate", "true"),
        ("variants.both.norm_eps", '"1e-12"'),
        ("train.weight_decay", "true"),
        ("train.weight_decay", '"1e-4"'),
        ("train.precision", "float16"),
        ("train.threads", "1.0"),
        ("train.peak_lrs.1.peak_lr", "null"),
        ("evaluate.tokens", "1.5"),
        ("corpora.quick.max_documents.law", "true"),
        ("sources.law.reserve", "false"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_its_value(project: Path, key: str, value: str) -> None:
    text = message({key: value})
    assert key in text and value.strip('"').lower().replace("null", "none") in text.lower()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sizes.s.d_model", "4"),
        ("sizes.s.tokens", "0"),
        ("train.seed", "-1"),
        ("train.peak_lrs.0.peak_lr", "0.0"),
        ("model.reference_eps", "-1e-05"),
        ("evaluate.tokens", "0"),
        ("analysis.confidence", "95"),
        ("sources.law.reserve", "1.0"),
        ("archives.wiki.sha256", "abc"),
        ("train.warmup_fraction", "1.5"),
        ("train.adam_beta2", "1.0"),
        ("train.threads", "0"),
        ("variants.both.norm_eps", "-1.0"),
        ("tokenize.vocab_size", "100"),
        ("tokenize.heldout_share", "2.0"),
        ("corpora.quick.max_documents.law", "0"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_value(project: Path, key: str, value: str) -> None:
    text = message({key: value})
    assert key in text and value in text


def test_a_gamma_out_of_range_is_named(project: Path) -> None:
    text = message({"ladder.gammas.1": "7.5", "train.peak_lrs.1.gamma": "7.5"})
    assert "gamma" in text and "7.5" in text


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("corpus", "pile", "corpus: 'pile' is not defined (allowed: other, quick)"),
        ("ladder.sizes.0", "xl", "ladder.sizes: 'xl' is not defined (allowed: m, s)"),
        ("ladder.variants.1", "gated", "ladder.variants: 'gated' is not defined (allowed: both, standard)"),
        ("ladder.gammas.0", "0.75", "train.peak_lrs (gamma): 0.75 is not defined (allowed: 0.5, 1.0)"),
        (
            "corpora.other.sources.0",
            "talk",
            "corpora.other.sources: 'talk' is not defined (allowed: law, speech, wiki)",
        ),
        ("corpora.quick.max_documents.speech", "5", "corpora.quick.max_documents: 'speech' is not defined"),
        ("sources.wiki.archive", "zip", "sources.wiki.archive: 'zip' is not defined (allowed: law, sotu, wiki)"),
        ("ladder.sizes", "[s, m, s]", "ladder.sizes = ['s', 'm', 's'] names an entry twice"),
        ("ladder.gammas", "[1.0, 0.5, 1.00]", "ladder.gammas = [1.0, 0.5, 1.0] names an entry twice"),
        ("ladder.variants", "[both, both]", "ladder.variants = ['both', 'both'] names an entry twice"),
    ],
)
def test_a_name_that_does_not_exist_or_comes_twice_is_named(project: Path, key: str, value: str, said: str) -> None:
    assert said in message({key: value})


def test_a_message_is_short_enough_to_read(project: Path) -> None:
    assert len(message({"ladder.sizes.0": "xl"})) < 400


def test_two_peak_rates_for_one_gamma_are_refused(project: Path) -> None:
    message({"train.peak_lrs": "[{gamma: 0.5, peak_lr: 0.1}, {gamma: 0.5, peak_lr: 0.2}, {gamma: 1.0, peak_lr: 0.1}]"})


def test_a_gamma_without_decimal_point_is_refused(project: Path) -> None:
    """DVC would name its run s-1-both, the plan s-1.0-both."""
    assert "ladder.gammas.0: Value error, write a decimal point, 1.0" in message({"ladder.gammas": "[1]"})


@pytest.mark.parametrize("text", ["corpus: [", "corpus: quick\ncorpus: other\n", "", "- a\n"])
def test_a_file_that_is_no_map_of_unique_keys_is_one_message(project: Path, text: str) -> None:
    paths.PARAMS.write_text(text)
    with pytest.raises(ConfigError, match=r"params\.yaml"):
        params.load()


def test_a_run_whose_values_do_not_fit_together_is_named(project: Path) -> None:
    text = message({"sizes.m.n_heads": "5"})
    assert "run m-0.5-standard" in text and "n_heads = 5" in text and "d_model = 24" in text


# ------------------------------------------------------------------------------------ one file of the plan for a change
def test_runs_are_listed_size_by_size_then_gamma_then_variant(project: Path) -> None:
    wanted = ["s-0.5-standard", "s-0.5-both", "s-1.0-standard", "s-1.0-both"]
    assert params.run_names(params.load()) == wanted + [name.replace("s-", "m-", 1) for name in wanted]


@pytest.mark.parametrize(
    ("key", "value", "concerned"),
    [
        ("sizes.m.tokens", "4096", "runs/m-"),
        ("train.peak_lrs.0.peak_lr", "1e-3", "-0.5-"),
        ("variants.both.gate", "headwise", "-both"),
        ("model.reference_eps", "1e-6", "-standard"),
        ("train.adam_eps", "1e-8", "runs/"),
        ("train.seed", "1", "runs/"),
        ("sizes.s.d_ref", "1536", "runs/s-"),
        ("evaluate.tokens", "256", "evaluate"),
        ("analysis.confidence", "0.9", "analysis"),
        ("tokenize.seed", "1", "tokenize"),
        ("sources.wiki.licence", "MIT", "tokenize"),
        ("corpora.quick.max_documents.law", "60", "tokenize"),
        ("archives.law.version", "9.9.9", "fetch tokenize"),
        ("tokenize.vocab_size", "400", "tokenize runs/"),
        ("sources.speech.licence", "MIT", "nothing"),
        ("archives.sotu.version", "9.9.9", "nothing"),
    ],
)
def test_a_change_reaches_only_what_it_concerns(project: Path, key: str, value: str, concerned: str) -> None:
    before, after = resolved({}), resolved({key: value})
    changed = {name for name in before if before[name] != after[name]}
    assert before.keys() == after.keys()
    assert changed == {name for name in before if any(part in name for part in concerned.split())}


def test_a_run_taken_out_leaves_the_others_as_they_are(project: Path) -> None:
    before, after = resolved({}), resolved({"ladder.gammas": "[1.0]"})
    assert before.keys() - after.keys() == {name for name in before if "-0.5-" in name}
    assert all(before[name] == after[name] for name in after)


def test_writing_the_plan_again_removes_runs_that_are_gone(project: Path) -> None:
    plan.write()
    write({"ladder.variants": "[both]"})
    plan.write()
    assert sorted(p.stem for p in (paths.PLAN / "runs").iterdir()) == [
        "m-0.5-both",
        "m-1.0-both",
        "s-0.5-both",
        "s-1.0-both",
    ]


def test_every_value_of_a_size_variant_and_arm_ends_in_its_run(project: Path) -> None:
    run = params.resolve_run(params.load(), "m", 0.5, "both")
    assert (run.model.d_model, run.model.n_heads, run.model.d_ff, run.d_ref) == (24, 3, 64, 1024)
    assert (run.model.vocab_size, run.model.seq_len, run.model.norm_eps, run.model.gate) == (
        300,
        16,
        1e-12,
        "elementwise",
    )
    assert (run.train.peak_lr, run.train.tokens, run.steps, run.batch_size) == (8e-3, 2048, 16, 8)


# -------------------------------------------------------------------------------------------------------------- matched
@given(d=st.integers(8, 4096), d_ref=st.integers(8, 4096), gamma=st.floats(0, 2), reference=st.floats(1e-12, 1e-3))
def test_matched_eps_attenuates_as_at_the_papers_width(d: int, d_ref: int, gamma: float, reference: float) -> None:
    here = (1 + params.matched_eps(reference, d_ref, d, gamma) * d ** (2 * gamma)) ** -0.5
    there = (1 + reference * d_ref ** (2 * gamma)) ** -0.5
    assert here == pytest.approx(there, rel=1e-9)


def test_matched_eps_has_the_value_of_the_design(project: Path) -> None:
    assert params.matched_eps(1e-5, 768, 64, 1.0) == pytest.approx(1.44e-3)
    assert params.matched_eps(1e-5, 768, 64, 0.5) == pytest.approx(1.2e-4)
    assert params.resolve_run(params.load(), "s", 1.0, "standard").model.norm_eps == pytest.approx(1e-5 * 48**2)


def test_a_peak_rate_for_one_size_goes_before_the_one_for_all() -> None:
    rates = [params.PeakRate(gamma=1.0, peak_lr=4e-3), params.PeakRate(gamma=1.0, size="m", peak_lr=2e-3)]
    assert [params.peak_lr(rates, size, 1.0) for size in ("s", "m")] == [4e-3, 2e-3]
    assert [params.peak_lr(rates[::-1], size, 1.0) for size in ("s", "m")] == [4e-3, 2e-3]
    with pytest.raises(ConfigError, match=r"train\.peak_lrs has no entry for gamma = 1\.0 at size 's'"):
        params.peak_lr(rates[1:], "s", 1.0)


def test_a_peak_rate_for_an_unknown_size_is_named(project: Path) -> None:
    text = message({"train.peak_lrs": "[{gamma: 0.5, peak_lr: 0.1}, {gamma: 1.0, size: xl, peak_lr: 0.1}]"})
    assert "train.peak_lrs (size): 'xl' is not defined" in text
