"""The data order: a pure function of seed and step, every window at most once, targets one token on."""

from pathlib import Path

import numpy as np
import pytest
import torch

from smallinit import paths
from smallinit.batches import Batches, Tokens, take, windows

TOKENS = np.arange(16 * 40 + 1, dtype=np.uint16)  # a token's value is its place


def batches(seed: int = 0, steps: int = 10, batch_size: int = 4) -> Batches:
    return Batches(TOKENS, 16, batch_size, steps, seed)


def test_a_batch_is_a_function_of_seed_and_step_alone() -> None:
    first, second = batches(), batches()
    forward = [first.batch(step) for step in range(10)]
    for step in reversed(range(10)):  # asked in another order, from a fresh object, as after a restart
        assert torch.equal(second.batch(step), forward[step])
    assert not torch.equal(batches(seed=1).batch(0), forward[0])


def test_the_order_does_not_depend_on_how_long_a_run_is() -> None:
    assert torch.equal(batches(steps=3).batch(2), batches(steps=10).batch(2))


def test_no_window_comes_twice_within_an_epoch_and_none_is_left_out() -> None:
    starts = torch.cat([batches().batch(step)[:, 0] for step in range(10)])
    assert sorted(starts.tolist()) == [16 * i for i in range(40)]
    assert starts.tolist() != sorted(starts.tolist())


def test_the_target_is_the_next_token_also_at_a_windows_end() -> None:
    batch = batches().batch(3)
    assert batch.shape == (4, 17) and batch.dtype == torch.int64
    assert (batch.diff(dim=1) == 1).all()


def test_more_than_one_epoch_is_refused_with_what_to_change() -> None:
    with pytest.raises(
        ValueError, match="11 steps of 4 windows need 44 windows of 16 tokens, the corpus has 40: lower `tokens`"
    ):
        batches(steps=11)


@pytest.mark.parametrize(("length", "count"), [(16, 0), (17, 1), (32, 1), (33, 2)])
def test_a_window_needs_the_token_after_it(length: int, count: int) -> None:
    assert windows(TOKENS[:length], 16) == count
    if count:
        assert take(TOKENS[:length], np.arange(count), 16).shape == (count, 17)


def test_large_token_ids_are_not_negative() -> None:
    assert take(np.full(17, 65535, dtype=np.uint16), np.array([0]), 16).unique().tolist() == [65535]


def test_tokens_on_disk_are_those_that_were_written(project: Path) -> None:
    content = np.fromfile(paths.TOKENS / "train.bin", dtype="<u2")
    assert np.array_equal(Tokens().train, content) and len(Tokens().heldout) == 2000


def test_without_tokens_the_message_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="dvc repro tokenize"):
        Tokens(tmp_path)
