"""The composite task: what is taught and held out, planted answers, made-up verdicts, runs that repeat bit for bit."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError

from smallinit.reasoning import composite, verdict
from smallinit.reasoning.config import CompositeConfig

LEARN = {"steps": 12, "batch": 16, "learning_rate": 1e-2, "weight_decay": 0.01}
TINY: dict[str, Any] = {"gammas": [0.5, 1.0], "seeds": 2, "d_model": 16, "d_ff": 24, "depths": [1, 2]}
CONFIG = CompositeConfig.model_validate(TINY | {"length": 5, "learn": LEARN})


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("pair", "added"),
    [((1, 1), 10), ((1, 2), 6), ((2, 4), -7), ((4, 4), -16), ((3, 4), -6), ((4, 3), -10), ((3, 3), -4)],
)
def test_what_a_pair_adds(pair: tuple[int, int], added: int) -> None:
    assert composite.shift(*pair) == added


@pytest.mark.parametrize("length", [3, 9])
def test_training_testing_and_the_unseen_pair_are_apart(length: int) -> None:
    known = composite.items(length)
    parts = {name: {tuple(item) for item in part.tolist()} for name, part in known.items()}
    assert sum(map(len, parts.values())) == len(set.union(*parts.values())) == 80 * 16 * (length - 2)
    pairs = {name: {item[1:3] for item in part} for name, part in parts.items()}
    assert pairs["unseen"] == {(4, 3)} and len(pairs["train"]) == len(pairs["test"]) == 15
    assert (4, 3) not in pairs["train"] | pairs["test"] and (3, 4) in pairs["train"]
    assert {item[0] for item in parts["unseen"]} == set(range(20, 100))
    assert len(parts["test"]) == pytest.approx((len(parts["train"]) + len(parts["test"])) / composite.TEST_SHARE)


def test_sequences_hide_the_key_and_its_pair_where_they_should() -> None:
    chosen = composite.items(9)["train"]
    ids, targets = composite.sequences(chosen, 9, np.random.default_rng(3))
    assert ids.shape == (len(chosen), 9)
    for row, target, (key, a, b, place) in zip(ids.numpy(), targets.numpy(), chosen, strict=True):
        assert row[place : place + 3].tolist() == [key, a, b]
        rest = np.delete(row, range(place, place + 3))
        assert rest.min() >= 20 and rest.max() <= 99  # no other anchors
        assert target == key - 6 if (a, b) == (3, 4) else target == key + composite.SHIFTS[a] + composite.SHIFTS[b]


def test_planted_answers_are_told_apart() -> None:
    keys = np.arange(20, 60)
    assert composite.answers(keys - 10, keys) == {"reasoning": 1, "symmetric": 0, "neither": 0}
    assert composite.answers(keys - 6, keys) == {"reasoning": 0, "symmetric": 1, "neither": 0}
    assert composite.answers(keys + 1, keys) == {"reasoning": 0, "symmetric": 0, "neither": 1}
    mixed = composite.answers(np.concatenate([keys[:10] - 10, keys[10:30] - 6, keys[30:]]), keys)
    assert mixed == pytest.approx({"reasoning": 0.25, "symmetric": 0.5, "neither": 0.25})


def test_a_run_repeats_bit_for_bit() -> None:
    run = CONFIG.runs()[-1]
    assert (run.n_layers, run.gamma, run.seed) == (2, 1.0, 1)
    first = composite.train(run)
    assert first == composite.train(run)
    assert first["curve"][0]["train_loss"] == pytest.approx(np.log(257), abs=0.1)
    assert {"reasoning", "symmetric", "neither", "test_accuracy"} <= set(first["curve"][-1])
    assert 0 < first["query_cosine"] < 1


def made_up(reasoning: dict[float, float], symmetric: dict[float, float]) -> pd.DataFrame:
    rows = []
    for depth in (1, 2):
        for gamma, share in reasoning.items():
            for seed in (0, 1, 2):
                row = {"depth": depth, "gamma": gamma, "seed": seed, "reasoning": share + 0.01 * seed * depth}
                rows.append(row | {"step": 0, "symmetric": 0.5})
                rows.append(row | {"step": 9, "symmetric": symmetric[gamma]})
    return pd.DataFrame(rows).sample(frac=1, random_state=0)


def test_effects_on_made_up_shares() -> None:
    table = verdict.final(made_up({0.5: 0.1, 1.0: 0.7}, {0.5: 0.8, 1.0: 0.2}))
    assert set(table["step"]) == {9} and len(table) == 12
    effects = verdict.composite_effects(table, 0.95)
    assert effects["share that composes"].value == pytest.approx(0.6)
    assert effects["share that mirrors"].value == pytest.approx(0.6)
    assert {effect.sign for effect in effects.values()} == {1}
    reverse = verdict.composite_effects(verdict.final(made_up({0.5: 0.7, 1.0: 0.1}, {0.5: 0.2, 1.0: 0.2})), 0.95)
    assert reverse["share that composes"].sign == -1 and reverse["share that mirrors"].sign == 0


def test_effects_need_both_gammas() -> None:
    effects = verdict.composite_effects(verdict.final(made_up({0.5: 0.1}, {0.5: 0.8})), 0.95)
    assert effects == {"share that composes": None, "share that mirrors": None}


def test_settings_are_strict() -> None:
    with pytest.raises(ValidationError, match="length"):
        CompositeConfig.model_validate(CONFIG.model_dump() | {"length": 2})
    with pytest.raises(ValidationError, match="must increase"):
        CompositeConfig.model_validate(CONFIG.model_dump() | {"depths": [2, 2]})
    assert len({run.digest() for run in CONFIG.runs()}) == len(CONFIG.runs()) == 8
