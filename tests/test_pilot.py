"""The pilot: how it searches for a learning rate, and what it keeps."""

import math
import os
import signal

import pandas as pd
import pytest
from conftest import run_config
from training import place, saved_step, watch

from smallinit import paths, plan, train
from smallinit.batches import Tokens
from smallinit.config import ConfigError, RunConfig
from smallinit.files import read_json
from smallinit.pilot import trials
from smallinit.train import Interrupted

RATES = [2e-3, 4e-3, 8e-3]


def valley(lowest: float) -> list[float]:
    """The rates that are tried where the loss is a valley around `lowest`, in order of trial."""
    asked: list[float] = []

    def loss(rate: float) -> float:
        asked.append(rate)
        return math.log(rate / lowest) ** 2

    found = trials.bracket(loss, RATES)
    assert list(found) == sorted(asked)
    return asked


@pytest.mark.parametrize(
    ("lowest", "beyond"),
    [
        (4e-3, []),  # inside: the given ones are enough
        (8e-3, [1.6e-2]),
        (1.7e-2, [1.6e-2, 3.2e-2]),
        (2e-3, [1e-3]),
        (1.1e-3, [1e-3, 5e-4]),
        (1.0, [1.6e-2, 3.2e-2, 6.4e-2]),  # gives up after three
    ],
)
def test_the_search_goes_on_where_the_loss_is_lowest(lowest: float, beyond: list[float]) -> None:
    assert valley(lowest) == pytest.approx([*RATES, *beyond])


def test_a_rate_that_diverges_is_not_the_lowest_and_of_two_equal_the_lower_is_taken() -> None:
    assert list(trials.bracket(lambda rate: math.inf if rate > 5e-3 else -rate, RATES)) == RATES
    assert min(trials.bracket(lambda rate: 1.0, RATES)) == pytest.approx(RATES[0] / 8)


def test_a_trial_is_the_arm_at_a_rate_under_its_own_name() -> None:
    arm = run_config()
    trial = trials.at_rate(arm, 0.0125)
    assert trial.run == "pilot-t-1.0-both-batch128-rate0.0125" and trial.train.peak_lr == 0.0125
    back = trial.model_copy(update={"run": arm.run, "train": arm.train})
    assert back == arm and trial.digest() != trials.at_rate(arm, 0.025).digest()


@pytest.fixture
def planned(project: object) -> None:
    """The plan of the project's pilot: two arms, one of them at another batch size too, at 4e-3 and 8e-3."""
    paths.NOTEBOOKS.mkdir()
    plan.write()


def test_a_size_leaves_a_row_a_trial_with_the_loss_of_its_training(planned: None) -> None:
    table = trials.run("s")
    written = pd.read_csv(trials.folder("s") / "trials.csv")
    assert written.columns.tolist() == trials.COLUMNS and len(written) == len(table) > 6
    arms = written.groupby(["gamma", "batch_tokens"], sort=False)["peak_lr"].apply(set)
    assert arms.index.tolist() == [(0.5, 128), (1.0, 128), (1.0, 64)]
    assert all({4e-3, 8e-3} <= rates for rates in arms)
    assert written["steps"].unique().tolist() == [8, 16] and set(written["gate"]) == {"elementwise"}
    arm = trials.load("s").arms[1]
    alone = train.fit(trials.at_rate(arm, 8e-3), Tokens()).heldout["loss"].iloc[-1]
    row = written[(written["gamma"] == 1.0) & (written["batch_tokens"] == 128) & (written["peak_lr"] == 8e-3)]
    assert row["loss"].item() == pytest.approx(alone, abs=1e-6)
    record = read_json(trials.folder("s") / "provenance.json")
    assert record["trials"] == len(table) and record["seconds"] > 0 and record["cpu"]


def test_what_is_done_is_not_done_again(planned: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle, the pilot goes on with the trial that it was in, and ends with the same table."""
    whole = trials.run("s")
    for kept in (paths.STATE / "pilot").iterdir():
        kept.unlink()
    watch(save_seconds=1e-9)
    asked: list[str] = []
    stop_in = len(whole) // 2

    def fit(run: RunConfig, *rest: object) -> train.Outcome:
        asked.append(run.run)
        if len(asked) == stop_in:
            with monkeypatch.context() as patch:
                patch.setattr(train.Training, "advance", stopping(train.Training.advance))
                return train.fit(run, *rest)  # type: ignore[arg-type]
        return train.fit(run, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(trials, "fit", fit)
    with pytest.raises(Interrupted):
        trials.run("s")
    stopped = next(trial for trial in planned_trials(whole) if trial.run == asked[-1])
    assert saved_step(place(stopped)) == 3
    pd.testing.assert_frame_equal(trials.run("s"), whole)
    assert len(asked) == len(whole) + 1 and not place(stopped).exists()


def stopping(advance):  # type: ignore[no-untyped-def]
    """An optimizer step after which, from the third on, the process is asked to stop."""

    def step(self: train.Training) -> float:
        loss = advance(self)
        if self.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return float(loss)

    return step


def planned_trials(table: pd.DataFrame) -> list[RunConfig]:
    """The trials behind the rows of a table."""
    arms = {(arm.gamma, arm.train.batch_tokens): arm for arm in trials.load("s").arms}
    rows = zip(table["gamma"], table["batch_tokens"], table["peak_lr"], strict=True)
    return [trials.at_rate(arms[gamma, batch], rate) for gamma, batch, rate in rows]


def test_a_trial_that_diverges_has_no_loss(planned: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train.Training, "has_diverged", lambda self, loss: self.config.peak_lr > 5e-3)
    table = trials.run("s")
    assert table.loc[table["peak_lr"] > 5e-3, "loss"].isna().all() and table["loss"].notna().any()
    assert "nan" not in (trials.folder("s") / "trials.csv").read_text()


def test_a_size_that_the_pilot_does_not_have_is_an_error(planned: None) -> None:
    with pytest.raises(ConfigError, match=r"m\.json: no such entry in the plan \(known: s\)"):
        trials.load("m")
