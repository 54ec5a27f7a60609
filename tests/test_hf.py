"""Our models in classes of transformers and back: the same logits, losses and texts; the exported folder."""

import argparse
import json
import re
import socket
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from conftest import run_config
from torch import Tensor

transformers = pytest.importorskip("transformers", minversion="5")
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, MixtralConfig  # noqa: E402

from smallinit import export, hf, launch, paths  # noqa: E402
from smallinit.batches import Tokens  # noqa: E402
from smallinit.config import ConfigError  # noqa: E402
from smallinit.data import bpe  # noqa: E402
from smallinit.files import read_json, write_json  # noqa: E402
from smallinit.init import GammaRule, initialize  # noqa: E402
from smallinit.model import Decoder, token_losses  # noqa: E402
from smallinit.train import fit  # noqa: E402

transformers.utils.logging.disable_progress_bar()

LENGTH = 64
# Logits have a std of about 1.3 here. Differences come from the angles of the rotary positions, which transformers
# rounds to float32 at each position, and from the order of additions.
ROUNDING = 5e-5
MOE = {"n_experts": 4, "top_k": 2, "balance_coef": 0.01, "z_coef": 0.001}
PLAIN = {"gate": "none"}
GROUPED = {"d_model": 32, "n_heads": 4, "n_kv_heads": 2}
FIT: dict[str, dict[str, Any]] = {  # what Llama and Mixtral can be
    "heads": PLAIN,
    "grouped heads": PLAIN | GROUPED,
    "one key head": PLAIN | GROUPED | {"n_kv_heads": 1},
    "tied": PLAIN | {"tied_head": True},
    "large eps": PLAIN | {"norm_eps": 0.3},
    "other angles": PLAIN | {"rope_theta": 50.0},
    "experts": PLAIN | {"moe": MOE},
    "one expert": PLAIN | {"moe": MOE | {"top_k": 1}},
    "three experts": PLAIN | GROUPED | {"moe": MOE | {"top_k": 3}, "tied_head": True},
}
OTHER: dict[str, dict[str, Any]] = {
    "elementwise gate": {"gate": "elementwise"},
    "headwise gate, grouped": GROUPED | {"gate": "headwise"},
    "layernorm": PLAIN | {"norm": "layernorm"},
    "gelu, tied": PLAIN | {"mlp": "gelu", "tied_head": True},
    "everything": GROUPED | {"norm": "layernorm", "mlp": "gelu", "tied_head": True, "moe": MOE, "gate": "elementwise"},
}


def decoder(changes: dict[str, Any]) -> Decoder:
    """Two blocks with weights that are strong enough for every part to matter, norm gains included."""
    model = Decoder(run_config(**{"n_layers": 2, "seq_len": LENGTH, "micro_batch": 2} | changes).model)
    initialize(model, 0.4, 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.mul_(torch.rand(parameter.shape, generator=generator) + 0.5)
    return model.eval()


def ids(batch: int = 2, length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(1, 257, (batch, length)))


def saved(model: Decoder, folder: Path, family: hf.Family = "auto") -> Any:
    """`model` after a way through files and the Auto class."""
    hf.to_transformers(model, family).save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder)


# --------------------------------------------------------------------------------------------------------- same numbers
@torch.no_grad()
@pytest.mark.parametrize("changes", FIT.values(), ids=FIT.keys())
def test_a_llama_or_mixtral_reloads_with_the_same_logits_and_comes_back_bit_by_bit(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    model = decoder(changes)
    loaded = saved(model, tmp_path)
    family = "mixtral" if changes.get("moe") else "llama"
    assert loaded.config.model_type == family and loaded.dtype == torch.float32
    torch.testing.assert_close(loaded(ids()).logits, model(ids()), rtol=0, atol=ROUNDING)
    back = hf.from_transformers(tmp_path)
    moe = model.config.moe and model.config.moe.model_copy(update={"z_coef": 0.0})  # Mixtral has no z-loss
    assert back.config == model.config.model_copy(update={"moe": moe})
    assert torch.equal(back(ids()), model(ids()))


@torch.no_grad()
@pytest.mark.parametrize("changes", [*FIT.values(), *OTHER.values()], ids=[*FIT, *OTHER])
def test_our_own_class_reloads_every_model_bit_by_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    model = decoder(changes)
    loaded = saved(model, tmp_path, "smallinit")
    assert isinstance(loaded, hf.SmallInitForCausalLM) and not loaded.training
    state = loaded.decoder.state_dict()
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(state[name], weight) for name, weight in model.state_dict().items())
    assert torch.equal(loaded(ids()).logits, model(ids()))
    back = hf.from_transformers(tmp_path)
    assert back.config == model.config and torch.equal(back(ids()), model(ids()))


@torch.no_grad()
def test_a_change_that_matters_breaks_the_equality() -> None:
    """The tolerance is far below what a wrong eps, angle, order of heads or of experts does."""
    model = decoder(FIT["three experts"])
    right = model(ids())
    for change in ("eps", "theta", "heads", "gate and up", "experts", "top_k"):
        wrong: Any = hf.to_transformers(model)
        layer = wrong.model.layers[0]
        if change == "eps":
            layer.input_layernorm.variance_epsilon = 1e-3
        elif change == "theta":
            wrong.model.rotary_emb.inv_freq.mul_(1.01)
        elif change == "heads":
            layer.self_attn.q_proj.weight.copy_(layer.self_attn.q_proj.weight.roll(8, 0))
        elif change == "gate and up":
            layer.mlp.experts.gate_up_proj.copy_(layer.mlp.experts.gate_up_proj.roll(32, 1))
        elif change == "experts":
            layer.mlp.gate.weight.copy_(layer.mlp.gate.weight.roll(1, 0))
        else:
            layer.mlp.gate.top_k = 2
        assert (wrong(ids()).logits - right).abs().max() > 30 * ROUNDING, change


@torch.no_grad()
def test_the_copy_is_the_callers_own_and_making_it_leaves_the_random_state_alone() -> None:
    for changes in (FIT["tied"], OTHER["everything"]):
        model = decoder(changes)
        before, random = model(ids()), torch.get_rng_state()
        copy = hf.to_transformers(model)
        assert torch.equal(torch.get_rng_state(), random)
        for parameter in copy.parameters():
            parameter.zero_()
        assert torch.equal(model(ids()), before)


def test_tied_weights_stay_one_tensor(tmp_path: Path) -> None:
    llama = saved(decoder(FIT["tied"]), tmp_path)
    assert llama.lm_head.weight is llama.model.embed_tokens.weight
    own = saved(decoder(OTHER["gelu, tied"]), tmp_path / "own")
    assert own.decoder.head is None and own.get_output_embeddings() is None
    resized = own.resize_token_embeddings(300)
    assert resized is own.decoder.embed and own(ids()).logits.shape[-1] == 300


@torch.no_grad()
def test_half_precision_works_and_float16_is_refused_where_eps_vanishes(tmp_path: Path) -> None:
    model = decoder(OTHER["everything"])
    hf.to_transformers(model).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert loaded.dtype == torch.bfloat16
    assert (loaded(ids()).logits - model(ids())).abs().mean() < 0.1
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float16)
    with pytest.raises(ValueError, match="norm_eps = 1e-12 is 0 in float16"):
        half(ids())


# ----------------------------------------------------------------------------------------------------------------- loss
@torch.no_grad()
@pytest.mark.parametrize("changes", [FIT["grouped heads"], FIT["experts"], OTHER["everything"]])
def test_the_loss_from_labels_is_our_loss(changes: dict[str, Any]) -> None:
    model, tokens = decoder(changes), ids()
    theirs: Any = hf.to_transformers(model)
    ours = token_losses(model, tokens)
    torch.testing.assert_close(theirs(tokens, labels=tokens).loss, ours.mean(), rtol=1e-5, atol=0)
    labels = tokens.clone()
    labels[:, :40] = -100
    torch.testing.assert_close(theirs(tokens, labels=labels).loss, ours[:, 39:].mean(), rtol=1e-5, atol=0)
    counted = theirs(tokens, labels=tokens, num_items_in_batch=torch.tensor(1000)).loss
    torch.testing.assert_close(counted, ours.sum() / 1000, rtol=1e-5, atol=0)


def test_training_adds_the_routers_loss_and_gradients_flow() -> None:
    model = decoder(OTHER["everything"])
    theirs: Any = hf.to_transformers(model)
    plain, auxiliary = theirs(ids(), labels=ids()).loss, model.hidden(ids())[1]
    trained = theirs.train()(ids(), labels=ids()).loss
    assert auxiliary > 0.01
    torch.testing.assert_close(trained, plain + auxiliary)
    trained.backward()
    assert all(parameter.grad is not None for parameter in theirs.parameters())


# ----------------------------------------------------------------------------------------------------------- generation
def greedy(model: Decoder, prompt: Tensor, count: int) -> Tensor:
    """What greedy decoding is: (B, T) -> (B, T + count)."""
    for _ in range(count):
        prompt = torch.cat((prompt, model(prompt)[:, -1:].argmax(-1)), dim=1)
    return prompt


@torch.no_grad()
@pytest.mark.parametrize("changes", [FIT["grouped heads"], FIT["experts"], *OTHER.values()])
def test_greedy_generation_picks_the_best_token_each_time(changes: dict[str, Any]) -> None:
    model, prompt = decoder(changes), ids(2, 10)
    theirs: Any = hf.to_transformers(model)
    settings = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "attention_mask": torch.ones(2, 10)}
    expected = greedy(model, prompt, 8)
    for use_cache in (True, False):
        assert torch.equal(theirs.generate(prompt, use_cache=use_cache, **settings), expected)


@torch.no_grad()
def test_sampling_follows_the_seed_and_the_probabilities() -> None:
    model, prompt = decoder(OTHER["elementwise gate"]), ids(1, 10)
    theirs: Any = hf.to_transformers(model)
    settings = {"max_new_tokens": 1, "do_sample": True, "top_k": 0, "num_return_sequences": 4000}
    mask = torch.ones(1, 10)

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return theirs.generate(prompt, attention_mask=mask, eos_token_id=None, **settings)[:, -1]

    sample = drawn(0)
    assert torch.equal(sample, drawn(0)) and not torch.equal(sample, drawn(1))
    p = model(prompt)[0, -1].softmax(-1)
    best = p.argmax()
    share = (sample == best).float().mean()
    assert abs(share - p[best]) < 4 * (p[best] * (1 - p[best]) / 4000) ** 0.5


@torch.no_grad()
@pytest.mark.parametrize("changes", [FIT["heads"], OTHER["everything"]])
def test_a_padded_batch_gives_what_each_text_gives_alone(changes: dict[str, Any]) -> None:
    model, texts = decoder(changes), [ids(1, 10, 1), ids(1, 6, 2)]
    theirs: Any = hf.to_transformers(model)
    pad = torch.zeros(1, 4, dtype=torch.long)
    batch = torch.cat((texts[0], torch.cat((pad, texts[1]), dim=1)))
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[1, :4] = 0
    settings = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    generated = theirs.generate(batch, attention_mask=mask, **settings)
    for row, text in zip(generated, texts, strict=True):
        assert row[10:].tolist() == greedy(model, text, 6)[0, -6:].tolist()


@torch.no_grad()
def test_padding_on_either_side_leaves_the_logits_of_the_text_alone() -> None:
    model, text = decoder(OTHER["everything"]), ids(1, 6)
    theirs: Any = hf.to_transformers(model)
    pad, ones, zeros = torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 6), torch.zeros(1, 4)
    left = theirs(torch.cat((pad, text), 1), attention_mask=torch.cat((zeros, ones), 1)).logits[:, 4:]
    right = theirs(torch.cat((text, pad), 1), attention_mask=torch.cat((ones, zeros), 1)).logits[:, :6]
    for logits in (left, right):
        torch.testing.assert_close(logits, model(text), rtol=0, atol=1e-5)
    unmasked = theirs(torch.cat((pad, text), 1)).logits[:, 4:]
    assert (unmasked - model(text)).abs().max() > 0.1


def test_arguments_that_we_cannot_honour_are_refused() -> None:
    theirs: Any = hf.to_transformers(decoder(OTHER["elementwise gate"]))
    mask = torch.ones(2, LENGTH)
    mask[:, 5] = 0
    with pytest.raises(ValueError, match="padding within a text"):
        theirs(ids(), attention_mask=mask)
    with pytest.raises(ValueError, match=r"attention_mask of shape \(2, 1, 64, 64\)"):
        theirs(ids(), attention_mask=torch.ones(2, 1, 64, 64))
    with pytest.raises(ValueError, match="position_ids: not supported"):
        theirs(ids(), position_ids=torch.arange(LENGTH)[None])


@torch.no_grad()
def test_only_the_wanted_logits_are_computed() -> None:
    theirs: Any = hf.to_transformers(decoder(OTHER["elementwise gate"]))
    whole = theirs(ids()).logits
    torch.testing.assert_close(theirs(ids(), logits_to_keep=3).logits, whole[:, -3:])
    torch.testing.assert_close(theirs(ids(), logits_to_keep=torch.tensor([0, 7])).logits, whole[:, [0, 7]])
    assert torch.equal(theirs(ids(), return_dict=False)[0], whole)


# ---------------------------------------------------------------------------------------------------------------- start
def own_config(**changes: Any) -> hf.SmallInitConfig:
    return hf.SmallInitConfig(**decoder(OTHER["everything"]).config.model_dump(), **changes)


def test_a_new_model_of_our_class_starts_by_its_gamma_rule() -> None:
    rule = {"overrides": {"embedding": 0.5}, "residual_scaling": True, "fixed_std": None}
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(own_config(gamma=0.75, init=rule))
    weights = model.decoder.state_dict()
    down = weights["blocks.0.ffn.experts_down"]
    assert down.std().item() == pytest.approx(32**-0.75 / 2, rel=4 / (2 * down.numel()) ** 0.5)  # 1/sqrt(2L) = 1/2
    assert weights["embed.weight"].std().item() == pytest.approx(32**-0.5, rel=0.05)
    assert (weights["final_norm.weight"] == 1).all()
    torch.manual_seed(0)
    again: Any = AutoModelForCausalLM.from_config(own_config(gamma=0.75, init=rule))
    other: Any = AutoModelForCausalLM.from_config(own_config(gamma=0.75, init=rule))
    assert torch.equal(again.decoder.embed.weight, weights["embed.weight"])
    assert not torch.equal(other.decoder.embed.weight, weights["embed.weight"])


def test_weights_that_a_checkpoint_lacks_start_by_the_rule_and_the_others_are_kept(tmp_path: Path) -> None:
    model = hf.to_transformers(decoder(OTHER["everything"]), rule=1.0)
    state = model.state_dict()
    lost = "decoder.blocks.1.ffn.experts_up"
    model.save_pretrained(tmp_path, state_dict={name: weight for name, weight in state.items() if name != lost})
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in state.items() if name != lost)
    assert loaded[lost].std().item() == pytest.approx(1 / 32, rel=4 / (2 * loaded[lost].numel()) ** 0.5)


def test_the_config_keeps_the_rule_and_answers_to_the_names_of_transformers(tmp_path: Path) -> None:
    rule = GammaRule(0.8, overrides={"head": 0.5})
    hf.to_transformers(decoder(OTHER["headwise gate, grouped"]), rule=rule).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert (config.gamma, config.init["overrides"]) == (0.8, {"head": 0.5})
    assert (config.hidden_size, config.num_hidden_layers, config.max_position_embeddings) == (32, 2, LENGTH)
    assert config.architectures == ["SmallInitForCausalLM"]
    with pytest.raises(ConfigError, match="n_kv_heads"):
        hf.SmallInitForCausalLM(own_config(num_key_value_heads=3))


# --------------------------------------------------------------------------------------------------------------- import
def foreign(kind: type, **changes: Any) -> Any:
    """A Llama or Mixtral as others make it."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    common = {"vocab_size": 300, "num_key_value_heads": 2, "initializer_range": 0.3}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(kind(**sizes | common | changes)).eval()


@torch.no_grad()
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", [LlamaConfig, MixtralConfig])
def test_a_model_of_others_becomes_a_decoder_with_the_same_logits(kind: type, tied: bool) -> None:
    theirs = foreign(kind, tie_word_embeddings=tied, rms_norm_eps=1e-3, rope_parameters={"rope_theta": 500.0})
    model = hf.from_transformers(theirs)
    assert (model.config.rope_theta, model.config.norm_eps, model.config.tied_head) == (500.0, 1e-3, tied)
    assert model(ids()).std() > 0.5
    torch.testing.assert_close(model(ids()), theirs(ids()).logits, rtol=0, atol=ROUNDING)


SCALED = {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (LlamaConfig, {"attention_bias": True}, r"attention_bias = True \(supported: False\)"),
        (LlamaConfig, {"mlp_bias": True, "hidden_act": "gelu"}, "hidden_act = 'gelu'.*mlp_bias = True"),
        (LlamaConfig, {"rope_parameters": SCALED}, r"rope_parameters.rope_type = 'linear' \(supported: 'default'\)"),
        (LlamaConfig, {"head_dim": 16}, r"head_dim = 16 \(supported: 8\)"),
        (LlamaConfig, {"attention_dropout": 0.1}, "attention_dropout = 0.1"),
        (LlamaConfig, {"vocab_size": 70_000}, r"vocab_size: .*65536 \(value: 70000\)"),
        (MixtralConfig, {"sliding_window": 8}, r"sliding_window = 8 \(supported: None\)"),
    ],
)
def test_a_model_that_no_decoder_can_be_is_refused_by_the_key(
    kind: type, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        hf.model_config(kind(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, **changes))


def test_a_folder_without_a_model_is_no_reason_to_look_on_a_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", lambda *_, **__: pytest.fail("the network was asked"))
    for missing in (tmp_path / "nothing", "some/model"):
        with pytest.raises(OSError):
            hf.from_transformers(missing)


def test_other_architectures_and_left_over_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match="model_type = 'gpt2': supported are 'llama', 'mixtral' and 'smallinit'"):
        hf.model_config(transformers.GPT2Config())
    llama = foreign(LlamaConfig)
    llama.model.layers[0].mlp.up_proj.bias = torch.nn.Parameter(torch.zeros(48))
    with pytest.raises(ConfigError, match=r"missing none; more model.layers.0.mlp.up_proj.bias"):
        hf.from_transformers(llama)


def test_a_model_that_does_not_fit_the_wanted_format_is_refused_by_the_key() -> None:
    gated = decoder(OTHER["everything"] | {"moe": None})
    with pytest.raises(ConfigError, match=r"no llama: norm = 'layernorm', not 'rmsnorm'; gate = .*; mlp = 'gelu'"):
        hf.to_transformers(gated, "llama")
    with pytest.raises(ConfigError, match="moe = None"):
        hf.to_transformers(decoder(FIT["heads"]), "mixtral")
    with pytest.raises(ConfigError, match="moe is set"):
        hf.to_transformers(decoder(FIT["experts"]), "llama")


# --------------------------------------------------------------------------------------------------- exported folder
TEXT = "In 1998, 12345 people said: “naïve café”!  中国人民的生活。\n\n\tTabs & 🙂 end "


def tokenizer_for(project: Path) -> None:
    """A tokenizer of 257 tokens, the end of document and all bytes, as tests' models have them."""
    bpe.train_tokenizer(["text"], 257).save(str(paths.TOKENS / "tokenizer.json"))


def trained(**changes: Any) -> str:
    """Train and save a run as the pipeline does; returns its name."""
    run = run_config(**changes)
    launch.save(run, Tokens(), fit(run, Tokens()))
    return run.run


def corpus_and_evaluation(run: str) -> None:
    """What the stages tokenize and evaluate would have left."""
    english = {"documents": 5, "tokens": 987, "loss": 4.321, "bits_per_byte": 2.345}
    parts = {"documents": english | {"tokens": 1987}, "language": {"en": english}}
    write_json(paths.RESULTS / "evaluate" / run / "metrics.json", {"run": run, "diverged": False, "loss": 4.4} | parts)
    sources = [{"source": "wiki", "language": "en", "licence": "CC BY-SA 4.0", "train": {"tokens": 123456}}]
    unused = [{"source": "law", "language": "zh", "licence": "none", "train": {"tokens": 0}}]
    corpus = {"corpus": "quick", "train": {"tokens": 123456}, "languages": [{"language": "en"}]}
    write_json(paths.RESULTS / "corpus" / "manifest.json", corpus | {"sources": sources + unused})


@pytest.mark.parametrize(("gate", "architecture"), [("none", "LlamaForCausalLM"), ("headwise", "SmallInitForCausalLM")])
def test_an_exported_run_loads_with_its_tokenizer_and_its_card_tells_the_runs_numbers(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gate: str, architecture: str
) -> None:
    tokenizer_for(project)
    run = trained(gate=gate, fixed_std=0.123)
    corpus_and_evaluation(run)
    folder = project / "exported" / run
    assert export.export(run, folder) == architecture
    wanted = {"README.md", "config.json", "generation_config.json", "model.safetensors"}
    assert {path.name for path in folder.iterdir()} == wanted | {"tokenizer.json", "tokenizer_config.json"}
    assert [path.name for path in folder.parent.iterdir()] == [run]
    for path in folder.glob("*.json"):
        assert str(project) not in path.read_text()

    model, ours = AutoModelForCausalLM.from_pretrained(folder), hf.from_transformers(folder)
    weights = Decoder(run_config(gate=gate).model)
    weights.load_state_dict({name: w for name, w in ours.state_dict().items()})
    assert torch.equal(weights.head.weight, hf.from_transformers(model).head.weight)  # type: ignore[union-attr]
    torch.testing.assert_close(model(ids(2, 16)).logits, ours(ids(2, 16)), rtol=0, atol=ROUNDING)

    text, metrics = (folder / "README.md").read_text(), read_json(paths.RESULTS / "train" / run / "metrics.json")
    told = [f"{metrics['parameters']:,}", f"{metrics['tokens']:,}", f"{metrics['heldout_loss']:.4g}", "σ = 0.123"]
    told += ["4.321", "2.345", "1,987", "123,456", "CC BY-SA 4.0", "language:\n- en\n", architecture, "1e-12", "MIT"]
    provenance = read_json(paths.RESULTS / "train" / run / "provenance.json")
    told += [str(provenance["cpu"]), provenance["finished"], provenance["versions"]["torch"]]
    assert [part for part in told if part not in text] == []
    assert "law" not in text and str(project) not in text and "{" not in text.replace("{}", "")

    code = re.findall("```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(folder.parent)
    exec(code[0], {})
    assert capsys.readouterr().out.startswith("<|endoftext|>The")
    assert ("import smallinit.hf" in code[0]) == (gate != "none")


def test_the_exported_weights_are_the_trained_ones(project: Path) -> None:
    from safetensors.torch import load_file

    tokenizer_for(project)
    run = trained(gate="none", moe=MOE, tied_head=True)
    assert export.export(run, project / "out") == "MixtralForCausalLM"
    theirs = hf.from_transformers(project / "out").state_dict()
    ours = load_file(paths.MODELS / run / "model.safetensors")
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name]) for name in ours)


def test_the_tokenizer_gives_the_ids_that_training_saw(project: Path) -> None:
    trained_on = bpe.train_tokenizer([TEXT, "the people of the country and the law 人民的法律"], 300)
    trained_on.save(str(paths.TOKENS / "tokenizer.json"))
    expected = next(bpe.encode(trained_on, [TEXT])).tolist()
    tokenizer = hf.to_tokenizer(paths.TOKENS / "tokenizer.json", 64)
    hf.to_transformers(decoder(FIT["heads"])).save_pretrained(project / "llama")  # AutoTokenizer looks at config.json
    tokenizer.save_pretrained(project / "llama")
    for one in (tokenizer, AutoTokenizer.from_pretrained(project / "llama")):
        assert one(TEXT)["input_ids"] == expected and one.decode(expected) == TEXT
        assert one("<|endoftext|>" + TEXT)["input_ids"] == [bpe.END_ID, *expected]
        assert one.decode([bpe.END_ID, *expected], skip_special_tokens=True) == TEXT
        assert one.bos_token_id == one.eos_token_id == bpe.END_ID and one.model_max_length == 64
        assert set(one(TEXT)) == {"input_ids", "attention_mask"}  # Llama refuses token_type_ids


def test_a_card_without_evaluation_and_corpus_says_so(project: Path) -> None:
    tokenizer_for(project)
    export.export(trained(overrides={"head": 0.5}), project / "out")
    text = (project / "out" / "README.md").read_text()
    assert "no evaluation of this run" in text and "no record of the corpus" in text
    assert "γ = 1.0, but γ = 0.5 for head." in text and "language:" not in text


def test_an_export_never_overwrites_and_leaves_nothing_when_it_fails(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer_for(project)
    run, folder = trained(), project / "out"
    folder.mkdir()
    (folder / "mine.txt").write_text("precious")
    with pytest.raises(ConfigError, match="out: exists and is not an empty folder"):
        export.export(run, folder)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    before = sorted(project.iterdir())
    monkeypatch.setattr(export, "card", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export.export(run, project / "new")
    assert sorted(project.iterdir()) == before


def test_runs_that_cannot_be_exported_are_refused_with_advice(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"run = 'x': no models/x/config.json \(runs with weights: none\).*dvc repro"):
        export.export("x", project / "out")
    run = trained()
    with pytest.raises(ConfigError, match=r"no data/tokens/tokenizer.json: get it with"):
        export.export(run, project / "out")
    bpe.train_tokenizer([TEXT * 2], 270).save(str(paths.TOKENS / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"has 270 tokens, vocab_size of t-1\.0-both is 257"):
        export.export(run, project / "out")
    tokenizer_for(project)
    with pytest.raises(ConfigError, match="gate = 'elementwise', not 'none'"):
        export.export(run, project / "out", "llama")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)
        for name in [name for name in sys.modules if name.startswith("smallinit.hf")]:
            patch.delitem(sys.modules, name)
        patch.delattr(sys.modules["smallinit"], "hf")
        with pytest.raises(ConfigError, match="pip install 'transformers>=5'"):
            export.export(run, project / "out")
    config = paths.MODELS / run / "config.json"
    content = json.loads(config.read_text())
    del content["model"]["norm"]
    config.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"models/t-1.0-both/config.json: model.norm: Field required"):
        export.export(run, project / "out")
    metrics = paths.RESULTS / "train" / run / "metrics.json"
    write_json(metrics, read_json(metrics) | {"diverged": True, "diverged_at": 7})
    with pytest.raises(ConfigError, match="diverged at step 7"):
        export.export(run, project / "out")
    assert not (project / "out").exists()


def test_the_command_exports_in_the_wanted_format(project: Path) -> None:
    tokenizer_for(project)
    run = trained(gate="none")
    parser = argparse.ArgumentParser()
    export.add_arguments(parser)
    options = parser.parse_args([run, str(project / "out"), "--format", "smallinit"])
    assert "t-1.0-both as SmallInitForCausalLM" in export.main(options)
    assert AutoConfig.from_pretrained(project / "out").model_type == "smallinit"
    assert get_args(hf.Family) == export.FORMATS
