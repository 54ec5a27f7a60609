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

from smallinit import config, params, paths, plan, resolve
from smallinit.config import ConfigError
from smallinit.theory.formulas import matched_eps

ROOT = Path(__file__).parents[1]


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
    return {name: value.model_dump(mode="json") for name, value in resolve.plan(params.load()).items()}


def message(changes: dict[str, str | None]) -> str:
    """The error that these changes lead to on the way to the plan."""
    write(changes)
    with pytest.raises(ConfigError) as raised:
        resolve.plan(params.load())
    return str(raised.value)


def test_the_tracked_params_yaml_fits_its_schema_and_resolves() -> None:
    chosen = params.load(ROOT / "params.yaml")
    assert {f"runs/{name}" for name in chosen.runs} < resolve.plan(chosen).keys()


@pytest.mark.parametrize("profile", sorted(path.stem for path in (ROOT / "profiles").glob("*.yaml")))
def test_every_profile_fits_the_schema_and_resolves(profile: str) -> None:
    chosen = params.load(ROOT / "params.yaml", profile)
    assert {f"runs/{name}" for name in chosen.runs} < resolve.plan(chosen).keys()


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
        "runes",
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
        "model.norms",
        "init.override",
        "variants.both.moes",
        "tracking.dvc",
    ],
)
def test_an_unknown_key_is_named_with_its_value(project: Path, key: str) -> None:
    text = message({key: "12345"})
    assert key in text and "12345" in text


@pytest.mark.parametrize(
    "key",
    [
        "corpus",
        "runs",
        "snapshots",
        "sizes.m.d_ff",
        "variants.standard.gate",
        "train.adam_eps",
        "train.peak_lrs.0.peak_lr",
        "evaluate.threads",
        "model.rope_theta",
        "corpora",
        "sources.law.reader",
        "archives.wiki.sha256",
        "init",
        "init.fixed_std",
        "model.moe",
        "model.norm",
        "train.compile",
        "tracking.save_seconds",
    ],
)
def test_a_missing_key_is_named(project: Path, key: str) -> None:
    text = message({key: None})
    assert key in text and "required" in text


def test_a_corpus_without_sources_is_named(project: Path) -> None:
    text = message({"corpora.quick.sources": None})
    assert "corpora.quick" in text and "`sources`" in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("corpus", "3"),
        ("runs", "s"),
        ("runs.0", "1.5"),
        ("snapshots", "true"),
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
        ("model.norm", "batchnorm"),
        ("model.mlp", "true"),
        ("model.tied_head", "1"),
        ("model.moe", "8"),
        ("sizes.s.n_kv_heads", "1.0"),
        ("variants.both.tied_head", "null"),
        ("variants.both.n_kv_heads", "true"),
        ("init.residual_scaling", '"true"'),
        ("init.fixed_std", "true"),
        ("init.overrides.query", "true"),
        ("train.device", "tpu"),
        ("train.compile", "1"),
        ("train.processes", "2.0"),
        ("train.strategy", "dp"),
        ("train.activation_checkpointing", '"yes"'),
        ("tracking.dvclive", "yes"),
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
        ("sizes.s.n_kv_heads", "0"),
        ("init.fixed_std", "0.0"),
        ("init.overrides.embedding", "-1.0"),
        ("variants.both.fixed_std", "-0.02"),
        ("train.processes", "0"),
        ("tracking.save_seconds", "0.0"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_value(project: Path, key: str, value: str) -> None:
    text = message({key: value})
    assert key in text and value in text


MOE = "{n_experts: 4, top_k: 2, balance_coef: 0.01, z_coef: 0.0}"


@pytest.mark.parametrize("place", ["model.moe", "variants.both.moe"])
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("top_k: 2", "top_k: 5", "top_k = 5 must be at most n_experts = 4"),
        ("top_k: 2", "k: 2", "k: Extra inputs are not permitted (value: 2)"),
        (", z_coef: 0.0", "", "z_coef: Field required"),
        ("n_experts: 4", "n_experts: 4.0", "n_experts: Input should be a valid integer (value: 4.0)"),
        ("balance_coef: 0.01", "balance_coef: -0.01", "balance_coef: Input should be greater than or equal to 0"),
    ],
)
def test_a_mistake_about_experts_is_named(project: Path, place: str, old: str, new: str, said: str) -> None:
    assert old in MOE
    text = message({place: MOE.replace(old, new)})
    assert f"params.yaml: {place}" in text and said in text


@pytest.mark.parametrize("place", ["init.overrides", "variants.both.overrides"])
def test_an_override_of_an_unknown_kind_is_named_with_the_kinds_there_are(project: Path, place: str) -> None:
    text = message({place: "{qeury: 0.5}"})
    assert place in text and "qeury" in text
    assert "'embedding', 'head', 'query', 'key', 'value'" in text and "'router'" in text


def test_float16_is_refused_with_its_reason(project: Path) -> None:
    text = message({"train.precision": "float16"})
    assert "train.precision" in text and "1e-12 is zero in it" in text and "'bfloat16'" in text


def test_processes_that_do_not_divide_the_micro_batches_are_refused(project: Path) -> None:
    assert "train.processes = 3 must divide the micro batches of a step" in message({"train.processes": "3"})
    write({"train.processes": "2"})
    assert resolve.run(params.load(), "s-1.0-both").train.processes == 2


@pytest.mark.parametrize("place", ["init", "variants.both"])
def test_one_std_for_all_excludes_a_gamma_of_its_own(project: Path, place: str) -> None:
    """Also when one is shared and the other of a variant: then the run is named."""
    text = message({"init.overrides": "{query: 0.5}", f"{place}.fixed_std": "0.02"})
    assert "overrides and fixed_std exclude each other" in text
    assert ("params.yaml: init:" if place == "init" else "params.yaml, run s-0.5-both: init:") in text


def test_heads_that_share_keys_unevenly_are_refused_by_run(project: Path) -> None:
    text = message({"sizes.m.n_kv_heads": "2"})
    assert "run m-0.5-standard" in text and "n_heads = 3 must be a multiple of n_kv_heads = 2" in text


def test_a_gamma_out_of_range_is_named(project: Path) -> None:
    text = message({"runs": "[s-7.5-both]", "train.peak_lrs.1.gamma": "7.5"})
    assert "gamma" in text and "7.5" in text


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("corpus", "pile", "corpus: 'pile' is not defined (allowed: other, quick)"),
        ("runs.0", "xl-0.5-both", "runs (size): 'xl' is not defined (allowed: m, s)"),
        ("runs.1", "s-1.0-gated", "runs (variant): 'gated' is not defined (allowed: both, standard)"),
        ("runs.2", "s-0.75-both", "train.peak_lrs (gamma): 0.75 is not defined (allowed: 0.5, 1.0)"),
        ("runs.0", "s-1.0-both-seed0", "runs: 's-1.0-both-seed0' names train.seed = 0: leave the seed out"),
        ("snapshots", "[s-1.0-gpt2]", "snapshots: 's-1.0-gpt2' is not defined (allowed: s-0.5-standard,"),
        (
            "corpora.other.sources.0",
            "talk",
            "corpora.other.sources: 'talk' is not defined (allowed: law, speech, wiki)",
        ),
        ("corpora.quick.max_documents.speech", "5", "corpora.quick.max_documents: 'speech' is not defined"),
        ("sources.wiki.archive", "zip", "sources.wiki.archive: 'zip' is not defined (allowed: law, sotu, wiki)"),
        ("runs", "[s-1.0-both, s-1.0-both]", "runs = ['s-1.0-both', 's-1.0-both'] names an entry twice"),
    ],
)
def test_a_name_that_does_not_exist_or_comes_twice_is_named(project: Path, key: str, value: str, said: str) -> None:
    assert said in message({key: value})


def test_a_message_is_short_enough_to_read(project: Path) -> None:
    assert len(message({"runs.0": "xl-0.5-both"})) < 400


def test_two_peak_rates_for_one_gamma_are_refused(project: Path) -> None:
    message({"train.peak_lrs": "[{gamma: 0.5, peak_lr: 0.1}, {gamma: 0.5, peak_lr: 0.2}, {gamma: 1.0, peak_lr: 0.1}]"})


@pytest.mark.parametrize(
    "name",
    ["s-1-both", "s-1.00-both", "s-01.0-both", "s-1.0", "s-1.0-both-1", "s-1.0-both-seed", "s-1.0-both-seed01", "-"],
)
def test_a_run_whose_name_has_another_form_is_refused_with_an_example(project: Path, name: str) -> None:
    text = message({"runs": f"[{name}]"})
    assert f"runs: '{name}' is not of the form size-gamma-variant, for instance s-1.0-both" in text


def test_a_seed_in_the_name_is_the_runs_and_changes_nothing_else(project: Path) -> None:
    write({"runs": "[s-1.0-both, s-1.0-both-seed12]", "snapshots": "[s-1.0-both-seed12]"})
    plain, seeded = (resolve.run(params.load(), name) for name in ("s-1.0-both", "s-1.0-both-seed12"))
    assert (plain.seed, seeded.seed, plain.train.snapshots, seeded.train.snapshots) == (0, 12, False, True)
    own = {"run": plain.run, "seed": 0, "train": plain.train}
    assert seeded.model_copy(update=own) == plain and seeded.variant == "both"


@pytest.mark.parametrize("text", ["corpus: [", "corpus: quick\ncorpus: other\n", "", "- a\n"])
def test_a_file_that_is_no_map_of_unique_keys_is_one_message(project: Path, text: str) -> None:
    paths.PARAMS.write_text(text)
    with pytest.raises(ConfigError, match=r"params\.yaml"):
        params.load()


def test_a_run_whose_values_do_not_fit_together_is_named(project: Path) -> None:
    text = message({"sizes.m.n_heads": "5"})
    assert "run m-0.5-standard" in text and "n_heads = 5" in text and "d_model = 24" in text


# ------------------------------------------------------------------------------------ one file of the plan for a change
def test_runs_stay_in_the_order_in_which_they_are_written(project: Path) -> None:
    write({"runs": "[s-1.0-both, m-0.5-standard, s-0.5-both]"})
    assert plan.write() == ["s-1.0-both", "m-0.5-standard", "s-0.5-both"]
    assert json.loads((paths.PLAN / "runs.json").read_text())["runs"] == ["s-1.0-both", "m-0.5-standard", "s-0.5-both"]


@pytest.mark.parametrize(
    ("key", "value", "concerned"),
    [
        ("sizes.m.tokens", "4096", "runs/m-"),
        ("train.peak_lrs.0.peak_lr", "1e-3", "-0.5-"),
        ("variants.both.gate", "headwise", "-both pilot/"),
        ("model.reference_eps", "1e-6", "-standard"),
        ("pilot.tokens", "2048", "pilot"),
        ("train.adam_eps", "1e-8", "runs/ pilot/"),
        ("train.seed", "1", "runs/ pilot/"),
        ("sizes.s.d_ref", "1536", "runs/s- theory pilot/"),
        ("evaluate.tokens", "256", "evaluate"),
        ("analysis.confidence", "0.9", "analysis"),
        ("tokenize.seed", "1", "tokenize"),
        ("sources.wiki.licence", "MIT", "tokenize"),
        ("corpora.quick.max_documents.law", "60", "tokenize"),
        ("archives.law.version", "9.9.9", "fetch tokenize"),
        ("tokenize.vocab_size", "400", "tokenize runs/ pilot/"),
        ("model.norm", "layernorm", "runs/ pilot/"),
        ("init.fixed_std", "0.02", "runs/ pilot/"),
        ("train.compile", "true", "runs/ pilot/"),
        ("sizes.s.n_kv_heads", "1", "runs/s- pilot/"),
        ("variants.both.mlp", "gelu", "-both pilot/"),
        ("tracking.dvclive", "true", "tracking"),
        ("tracking.save_seconds", "5.0", "tracking"),
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
    before, after = resolved({}), resolved({"runs": "[s-1.0-standard, s-1.0-both, m-1.0-standard, m-1.0-both]"})
    assert before.keys() - after.keys() == {name for name in before if "-0.5-" in name}
    assert all(before[name] == after[name] for name in after)


def test_writing_the_plan_again_removes_runs_that_are_gone(project: Path) -> None:
    plan.write()
    write({"runs": "[s-0.5-both, s-1.0-both, m-0.5-both, m-1.0-both]"})
    plan.write()
    assert sorted(p.stem for p in (paths.PLAN / "runs").iterdir()) == [
        "m-0.5-both",
        "m-1.0-both",
        "s-0.5-both",
        "s-1.0-both",
    ]


def test_every_value_of_a_size_variant_and_arm_ends_in_its_run(project: Path) -> None:
    run = resolve.run(params.load(), "m-0.5-both")
    assert (run.model.d_model, run.model.n_heads, run.model.d_ff, run.d_ref) == (24, 3, 64, 1024)
    assert (run.model.vocab_size, run.model.seq_len, run.model.norm_eps, run.model.gate) == (
        300,
        16,
        1e-12,
        "elementwise",
    )
    assert (run.train.peak_lr, run.train.tokens, run.steps, run.batch_size) == (8e-3, 2048, 16, 8)


# --------------------------------------------------------------------------------------------- model, init and training
EXPERTS = {"n_experts": 4, "top_k": 2, "balance_coef": 0.01, "z_coef": 0.0}
CHOICES = [  # key of `model`, `init` or `train`, how it is spelled, what the run gets
    ("model.norm", "layernorm", "layernorm"),
    ("model.mlp", "gelu", "gelu"),
    ("model.tied_head", "true", True),
    ("model.moe", MOE, EXPERTS),
    ("init.overrides", "{embedding: 0.5, router: 0.0}", {"embedding": 0.5, "router": 0.0}),
    ("init.residual_scaling", "true", True),
    ("init.fixed_std", "0.02", 0.02),
    ("train.precision", "bfloat16", "bfloat16"),
    ("train.device", "cuda", "cuda"),
    ("train.compile", "true", True),
    ("train.processes", "2", 2),
    ("train.strategy", "fsdp", "fsdp"),
    ("train.activation_checkpointing", "true", True),
]


def value_of(plan_of_run: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        plan_of_run = plan_of_run[part]
    return plan_of_run


@pytest.mark.parametrize(("key", "text", "wanted"), CHOICES)
def test_every_choice_reaches_every_run_and_nothing_else_of_it(project: Path, key: str, text: str, wanted: Any) -> None:
    before, after = resolved({}), resolved({key: text})
    section, name = key.split(".")
    for run in (name for name in before if name.startswith("runs/")):
        assert value_of(before[run], key) != wanted == value_of(after[run], key)
        assert after[run] == before[run] | {section: before[run][section] | {name: wanted}}


@pytest.mark.parametrize(("key", "text", "wanted"), [c for c in CHOICES if not c[0].startswith("train")])
def test_a_variant_may_choose_for_itself_what_model_and_init_say_for_all(
    project: Path, key: str, text: str, wanted: Any
) -> None:
    after = resolved({f"variants.both.{key.split('.')[1]}": text})
    assert value_of(after["runs/s-1.0-both"], key) == wanted
    assert value_of(after["runs/s-1.0-standard"], key) != wanted


@pytest.mark.parametrize(
    ("key", "shared", "own"),
    [
        ("model.norm", "layernorm", "rmsnorm"),
        ("model.mlp", "gelu", "swiglu"),
        ("model.tied_head", "true", "false"),
        ("model.moe", MOE, "null"),
        ("init.overrides", "{query: 0.5}", "{}"),
        ("init.residual_scaling", "true", "false"),
        ("init.fixed_std", "0.02", "null"),
    ],
)
def test_a_variant_may_choose_the_default_where_the_others_do_not(
    project: Path, key: str, shared: str, own: str
) -> None:
    plain = resolved({})
    after = resolved({key: shared, f"variants.both.{key.split('.')[1]}": own})
    assert value_of(after["runs/m-0.5-both"], key) == value_of(plain["runs/m-0.5-both"], key)
    assert value_of(after["runs/m-0.5-standard"], key) != value_of(plain["runs/m-0.5-standard"], key)


def test_key_and_value_heads_are_the_variants_else_the_sizes_else_as_many_as_heads(project: Path) -> None:
    def heads(**changes: str) -> list[int]:
        runs = resolved(
            {"runs": "[s-1.0-standard, s-1.0-both]"} | {key.replace("__", "."): value for key, value in changes.items()}
        )
        return [runs[f"runs/s-1.0-{variant}"]["model"]["n_kv_heads"] for variant in ("standard", "both")]

    assert heads() == [2, 2]
    assert heads(sizes__s__n_kv_heads="1") == [1, 1]
    assert heads(variants__both__n_kv_heads="1") == [2, 1]
    assert heads(sizes__s__n_kv_heads="1", variants__both__n_kv_heads="2") == [1, 2]
    assert heads(sizes__s__n_kv_heads="1", variants__both__n_kv_heads="null") == [1, 2]


GENERATORS = "{made: {generator: arithmetic, language: en, licence: MIT}}"


def test_generated_texts_are_resolved_and_checked(project: Path) -> None:
    found = resolved({"corpora.quick.generated": "{made: 0.1}", "generators": GENERATORS})
    made = {"generator": "arithmetic", "language": "en", "licence": "MIT", "quotable": False, "share": 0.1}
    assert found["tokenize"]["generated"] == {"made": made}
    assert "corpora.quick.generated: 'made' is not defined" in message({"corpora.quick.generated": "{made: 0.1}"})
    many = "{generator: arithmetic, language: en, licence: MIT}"
    shares = {"corpora.quick.generated": "{made: 0.6, more: 0.4}", "generators": f"{{made: {many}, more: {many}}}"}
    assert "less than 1" in message(shares)
    assert "a source has that name" in message({"corpora.quick.generated": "{wiki: 0.1}", "generators": GENERATORS})
    mix = "{mix: {a: 1.0}, tokens: 1000, generated: {made: 0.1}}"
    assert "cannot have them" in message({"corpora.quick": mix, "generators": GENERATORS})


def test_tracking_is_in_the_plan_and_no_stage_depends_on_it(project: Path) -> None:
    plan.write()
    assert json.loads((paths.PLAN / "tracking.json").read_text())["save_seconds"] == 30.0
    stages = YAML(typ="safe", pure=True).load(Path(__file__).parents[1] / "dvc.yaml")["stages"]
    depends = [str(dependency) for stage in stages.values() for dependency in stage["deps"]]
    assert "results/plan/evaluate.json" in depends and "results/plan" not in depends
    assert not [dependency for dependency in depends if "tracking" in dependency]


# -------------------------------------------------------------------------------------------------------------- matched
@given(d=st.integers(8, 4096), d_ref=st.integers(8, 4096), gamma=st.floats(0, 2), reference=st.floats(1e-12, 1e-3))
def test_matched_eps_attenuates_as_at_the_papers_width(d: int, d_ref: int, gamma: float, reference: float) -> None:
    here = (1 + matched_eps(reference, d_ref, d, gamma) * d ** (2 * gamma)) ** -0.5
    there = (1 + reference * d_ref ** (2 * gamma)) ** -0.5
    assert here == pytest.approx(there, rel=1e-9)


def test_matched_eps_has_the_value_of_the_design(project: Path) -> None:
    assert matched_eps(1e-5, 768, 64, 1.0) == pytest.approx(1.44e-3)
    assert matched_eps(1e-5, 768, 64, 0.5) == pytest.approx(1.2e-4)
    assert resolve.run(params.load(), "s-1.0-standard").model.norm_eps == pytest.approx(1e-5 * 48**2)


def rates_of(entries: str, *names: str) -> list[float]:
    """The peak rates of runs under `train.peak_lrs: [entries]`."""
    write({"train.peak_lrs": f"[{{gamma: 0.5, peak_lr: 8.0e-3}}, {entries}]"})
    chosen = params.load()
    return [resolve.run(chosen, name).train.peak_lr for name in names]


def test_the_first_peak_rate_that_fits_is_the_one(project: Path) -> None:
    entries = (
        "{gamma: 1.0, size: m, variants: [both], peak_lr: 2.0e-3}, {gamma: 1.0, variants: [both], peak_lr: 3.0e-3}"
    )
    names = ["m-1.0-both", "s-1.0-both", "m-1.0-standard", "s-0.5-both"]
    assert rates_of(f"{entries}, {{gamma: 1.0, peak_lr: 4.0e-3}}", *names) == [2e-3, 3e-3, 4e-3, 8e-3]
    said = r"train\.peak_lrs has no entry that fits gamma = 1\.0, size 'm', variant 'standard'"
    with pytest.raises(ConfigError, match=said):
        rates_of(entries, "m-1.0-standard")


def test_a_peak_rate_follows_a_power_of_the_width(project: Path) -> None:
    entry = "{gamma: 1.0, peak_lr: 4.0e-3, d_model: 16, width_power: -1.0}"
    assert rates_of(entry, "s-1.0-both", "m-1.0-both") == [4e-3, 2.67e-3]  # d_model 16 and 24, three digits


def test_a_power_without_its_width_is_refused(project: Path) -> None:
    text = message({"train.peak_lrs": "[{gamma: 0.5, peak_lr: 0.1}, {gamma: 1.0, peak_lr: 0.1, width_power: -0.5}]"})
    assert "width_power = -0.5 needs `d_model`" in text


def test_a_variant_may_have_its_own_decay_and_a_factor_on_the_rate(project: Path) -> None:
    write({"variants.both": "{norm_eps: 1.0e-12, gate: elementwise, rate_factor: 0.5, weight_decay: 0.0}"})
    run, other = (resolve.run(params.load(), name).train for name in ("s-1.0-both", "s-1.0-standard"))
    assert (run.peak_lr, other.peak_lr, run.weight_decay, other.weight_decay) == (2e-3, 4e-3, 0.0, 0.1)


def test_a_variant_may_train_on_more_tokens(project: Path) -> None:
    usual = resolve.run(params.load(), "s-1.0-both").train
    write({"variants.both": "{norm_eps: 1.0e-12, gate: elementwise, token_factor: 2.5}"})
    longer = resolve.run(params.load(), "s-1.0-both").train
    assert longer == usual.model_copy(update={"tokens": round(2.5 * usual.tokens)})
    assert resolve.pilot(params.load(), "s").arms[0].train.tokens == 1024, "trials have a length of their own"


def test_the_pilot_tries_its_arms_and_other_batches(project: Path) -> None:
    plan = resolve.pilot(params.load(), "s")
    assert [(arm.run, arm.train.batch_tokens, arm.train.micro_batch) for arm in plan.arms] == [
        ("s-0.5-both", 128, 4),
        ("s-1.0-both", 128, 4),
        ("s-1.0-both", 64, 4),
    ]
    assert {arm.train.tokens for arm in plan.arms} == {1024} and plan.arms[0].train.peak_lr == plan.peak_lrs[0] == 4e-3
    assert resolve.plan(params.load())["pilot/s"] == plan


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("pilot.sizes", "[s, m]", "pilot.sizes (without an arm): 'm' is not defined"),
        ("pilot.arms", "[s-0.5-both, m-0.5-both, s-1.0-both]", "pilot.arms (size): 'm' is not defined"),
        ("pilot.arms", "[s-0.5-gated, s-1.0-both]", "pilot.arms (variant): 'gated' is not defined"),
        ("pilot.batches.arms", "[s-1.5-both]", "pilot.batches.arms: 's-1.5-both' is not defined"),
        ("pilot.peak_lrs", "[1.0e-3, 3.0e-3]", "each must be 2 times the one before"),
        ("pilot.batches.batch_tokens", "[72]", "must be a multiple of"),
    ],
)
def test_a_pilot_that_cannot_be_is_refused(project: Path, key: str, value: str, said: str) -> None:
    assert said in message({key: value})


def test_a_peak_rate_for_an_unknown_size_is_named(project: Path) -> None:
    text = message({"train.peak_lrs": "[{gamma: 0.5, peak_lr: 0.1}, {gamma: 1.0, size: xl, peak_lr: 0.1}]"})
    assert "train.peak_lrs (size): 'xl' is not defined" in text
