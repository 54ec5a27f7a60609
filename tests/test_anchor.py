"""The anchor task: data follow the rule, milestones of made-up curves are right, runs repeat bit for bit."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError

from smallinit import paths
from smallinit.reasoning import anchor, learn, stage, verdict
from smallinit.reasoning.config import AnchorConfig, AnchorRun

LEARN = {"steps": 12, "batch": 16, "learning_rate": 1e-2, "weight_decay": 0.01}
TINY: dict[str, Any] = {"gammas": [0.5, 1.0], "seeds": 2, "d_model": 16, "d_ff": 24, "n_layers": 1}
CONFIG = AnchorConfig.model_validate(TINY | {"embedding_mlp": LEARN, "decoder": LEARN})


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_rule_and_what_is_held_out() -> None:
    known = anchor.data(seed=0)
    for part, low, high in ((known.memory, 1, 10), (known.reasoning, 11, 20), (known.unseen, 11, 20)):
        assert part.ids[:, 0].min() == 21 and part.ids[:, 0].max() == 120
        assert part.ids[:, 1:].min() >= low and part.ids[:, 1:].max() <= high
    for part in (known.reasoning, known.unseen):
        assert torch.equal(part.targets, part.ids.sum(1))
    pairs = {tuple(pair) for pair in known.reasoning.ids[:, 1:].tolist()}
    assert {tuple(pair) for pair in known.unseen.ids[:, 1:].tolist()} == {(11, 13), (13, 11)}
    assert len(pairs) == 98 and not pairs & {(11, 13), (13, 11)}
    assert [len(part.ids) for part in known] == [10_000, 9_800, 200]


def test_memory_has_the_answers_of_reasoning_shuffled_and_blind_to_order() -> None:
    answers = {tuple(ids): target for ids, target in zip(*map(torch.Tensor.tolist, anchor.data(0).memory), strict=True)}
    assert all(answers[key, a, b] == answers[key, b, a] for key, a, b in answers)
    rule = Counter(key + a + b for key in range(21, 121) for a in range(11, 21) for b in range(a, 21))
    assert Counter(anchor.memory_answers(0).values()) == rule
    followed = np.mean([target == key + a + b + 20 for (key, a, b), target in answers.items()])
    assert followed < 0.03  # shuffled: the rule holds as often as by chance
    assert anchor.memory_answers(0) != anchor.memory_answers(1)


def test_guess_is_the_entropy() -> None:
    assert anchor.guess(torch.tensor([7, 7, 9, 9, 3, 3, 4, 4])) == pytest.approx(np.log(4))
    assert anchor.guess(torch.tensor([5, 5])) == 0


def test_the_embedding_network_cannot_see_the_order_and_the_decoder_can() -> None:
    mlp, decoder = (next(run for run in CONFIG.runs() if run.model == model) for model in ("embedding_mlp", "decoder"))
    there, back = torch.tensor([[30, 11, 15]]), torch.tensor([[30, 15, 11]])
    for run, model, blind in (
        (mlp, learn.EmbeddingMLP(16, 24), True),
        (decoder, learn.Reader(decoder, length=3), False),
    ):
        learn.initialize(model, 0.5, run.seed)
        assert model(there).shape == (1, 257)
        assert torch.allclose(model(there), model(back), atol=1e-5) == blind


def test_marks_and_rate() -> None:
    marks = learn.marks(1000)
    assert marks[:5] == [0, 1, 2, 3, 4] and marks[-1] == 1000 and len(set(marks)) == len(marks) < 35
    rates = [learn.schedule(step, 100, learn.WARMUP, learn.FINAL) for step in range(100)]
    assert rates[:5] == [0.2, 0.4, 0.6, 0.8, 1.0] and np.argmax(rates) == 4
    assert rates[-1] == pytest.approx(learn.FINAL, abs=1e-3)


def test_a_run_repeats_bit_for_bit_and_depends_on_its_seed() -> None:
    run = CONFIG.runs()[-1]
    first, again = anchor.train(run), anchor.train(run)
    assert first == again
    assert first["curve"][0]["memory"] == pytest.approx(np.log(257), abs=0.05)  # gamma = 1 starts from nothing
    assert np.shape(first["anchors"]) == (20, 20) and np.shape(first["query"]) == (16, 16)
    other = anchor.train(run.model_copy(update={"seed": 0}))
    assert other["curve"][-1] != first["curve"][-1]


def test_the_rule_is_learned_before_the_list() -> None:
    settings = LEARN | {"steps": 400, "batch": 256}
    config = AnchorConfig.model_validate(
        TINY | {"d_model": 32, "d_ff": 64, "embedding_mlp": settings, "decoder": LEARN}
    )
    run = next(run for run in config.runs() if run.gamma == 1.0)
    result = anchor.train(run)
    last = result["curve"][-1]
    assert last["reasoning"] < 0.6 * result["guess"] and last["unseen"] < 0.75 * result["guess"]
    assert last["memory"] > 0.95 * result["guess"]  # the list takes longer


def test_a_stopped_stage_continues_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLAN", "STATE", "RESULTS"):
        monkeypatch.setattr(paths, name, tmp_path / name)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    (paths.PLAN / "code").mkdir(parents=True)
    code = paths.PLAN / "code" / "09_anchor.json"
    code.write_text("{}")
    trained: list[AnchorRun] = []

    def one(run: AnchorRun) -> dict[str, Any]:
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(run)
        picture = {"anchors": [[100, run.seed], [0, 100]]}
        return {"curve": [{"step": 0, "memory": float("nan")}], "guess": run.gamma, **picture}

    runs = CONFIG.runs()[:3]
    with pytest.raises(KeyboardInterrupt):
        stage.train("anchor", runs, one)
    assert trained == runs[:2]
    trained.clear()
    results = stage.train("anchor", runs, one)
    assert trained == runs[2:] and [result["guess"] for result in results] == [0.5, 0.5, 1.0]
    assert results[0]["curve"] == [{"step": 0, "memory": None}]  # JSON knows no NaN
    trained.clear()
    code.write_text(json.dumps({"anchor": "changed"}))
    stage.train("anchor", runs[:1], one)
    assert trained == runs[:1]  # other code, other results

    stage.save("anchor", runs, results, {"model": "model", "gamma": "gamma", "seed": "seed"})
    assert not paths.STATE.exists() or not list(paths.STATE.iterdir())  # nothing is left, no empty folder either
    assert list(stage.read("anchor", "runs").columns) == ["model", "gamma", "seed", "guess"]
    assert stage.read_pictures("anchor", "anchors").tolist() == 2 * [[[1, 0], [0, 1]]]  # of seed 0 only
    with pytest.raises(FileNotFoundError, match="dvc repro anchor"):
        stage.read_pictures("anchor", "query")


def test_crossing() -> None:
    steps = np.array([0.0, 1, 3, 7])
    losses = np.array([4.0, 4, 2, 1])
    assert verdict.crossing(steps, losses, 3) == pytest.approx(2**1.5 - 1)  # half way between log 2 and log 4
    assert verdict.crossing(steps, losses, 2) == pytest.approx(3)
    assert verdict.crossing(steps, losses, 0.5) == float("inf")
    assert verdict.crossing(steps, losses, 4) == 0


def made_up(memory_lag: dict[float, int]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Curves that halve reasoning at step 8 and memory so many doublings later; the larger gamma ends better."""
    steps = [0, *(2**k for k in range(9))]
    curves, runs = [], []
    for gamma, lag in memory_lag.items():
        for seed in (0, 1, 2):
            at = 2 ** (3 + lag)
            for step in steps:
                row = {"model": "decoder", "gamma": gamma, "seed": seed, "step": step}
                row |= {"memory": 2.0 if step >= at else 4.0, "reasoning": 2.0 if step >= 8 else 4.0}
                curves.append(row | {"unseen": 4 - gamma - 0.01 * seed})
            runs.append({"model": "decoder", "gamma": gamma, "seed": seed, "guess": 4.0})
    return pd.DataFrame(curves), pd.DataFrame(runs)


def test_milestones_and_effects_on_made_up_curves() -> None:
    table = verdict.milestones(*made_up({0.5: 0, 1.0: 3}))
    assert table["reasoning_steps"].tolist() == pytest.approx(6 * [8])
    small = table[table["gamma"] == 1.0]
    assert small["doublings"].tolist() == pytest.approx([3, 3, 3]) and not table["censored"].any()
    assert small["memorised"].tolist() == pytest.approx([0, 0, 0])
    assert table[table["gamma"] == 0.5]["memorised"].tolist() == pytest.approx([0.5, 0.5, 0.5])
    effects = verdict.anchor_effects(table, 0.95)
    assert effects["decoder, reasoning before memory"].value == pytest.approx(3)
    assert effects["decoder, memorised meanwhile"].value == pytest.approx(0.5)
    assert effects["decoder, loss on unseen pairs"].value == pytest.approx(0.5)
    assert all(effect.sign == 1 for name, effect in effects.items() if name.startswith("decoder"))
    assert all(effect is None for name, effect in effects.items() if name.startswith("embedding"))  # not measured

    opposite = verdict.anchor_effects(verdict.milestones(*made_up({0.5: 3, 1.0: -2})), 0.95)
    assert opposite["decoder, reasoning before memory"].sign == -1
    assert opposite["decoder, memorised meanwhile"].sign == -1


def test_what_is_not_reached_is_a_bound_or_missing() -> None:
    curves, runs = made_up({0.5: 0, 1.0: 9})  # memory is not half learned by the last step, 256
    table = verdict.milestones(curves, runs)
    small = table[table["gamma"] == 1.0]
    assert small["censored"].all() and np.isinf(small["memory_steps"]).all()
    assert small["doublings"].tolist() == pytest.approx([5, 5, 5])
    curves.loc[curves["gamma"] == 1.0, "reasoning"] = 4.0
    effects = verdict.anchor_effects(verdict.milestones(curves, runs), 0.95)
    assert effects["decoder, reasoning before memory"] is None
    assert effects["decoder, loss on unseen pairs"] is not None


def test_settings_are_strict() -> None:
    with pytest.raises(ValidationError, match="must increase"):
        AnchorConfig.model_validate(CONFIG.model_dump() | {"gammas": [1.0, 0.5]})
    with pytest.raises(ValidationError, match="seeds"):
        AnchorConfig.model_validate(CONFIG.model_dump() | {"seeds": 1})
    assert len({run.digest() for run in CONFIG.runs()}) == len(CONFIG.runs()) == 8
