"""Training: the schedule, the groups, and that no interrupt, kill or divergence changes or loses a result."""

import json
import math
import os
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import micro
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import VOCABULARY, chain, run_config, write_tokens
from safetensors.torch import load_file
from torch import Tensor
from training import moe, place, same, watch

from smallinit import checkpoint, launch, machine, measures, params, paths, planner, resolve, train
from smallinit.batches import Batches, Tokens
from smallinit.config import RunConfig
from smallinit.init import initialize
from smallinit.model import Decoder
from smallinit.optimizer import adam_eps_share, adamw, learning_rate, parameter_groups
from smallinit.plots.training import run_overview


def decoder(run: RunConfig) -> Decoder:
    """The model of a run at step 0."""
    model = Decoder(run.model, run.train.activation_checkpointing)
    initialize(model, run.gamma, run.seed)
    return model


def sequences(count: int) -> Tensor:
    """(count, T + 1) token ids."""
    return torch.from_numpy(chain(count * 17, seed=0).astype(np.int64)).view(count, 17)


def gradient(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


# ---------------------------------------------------------------------------------------------------------------- parts
def test_the_learning_rate_warms_up_and_falls_as_a_cosine() -> None:
    config = run_config(peak_lr=1.0, warmup_fraction=0.1, final_lr_fraction=0.2).train
    rates = [learning_rate(step, 100, config) for step in range(101)]
    assert rates[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert rates[10] == pytest.approx(1.0) and max(rates) == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.6)  # half-way between 1 and 0.2
    assert rates[100] == pytest.approx(0.2)
    assert all(a > b for a, b in pairwise(rates[10:]))


@pytest.mark.parametrize("warmup", [0.0, 0.99])
def test_the_schedule_has_no_gap_without_warm_up_or_after_a_long_one(warmup: float) -> None:
    config = run_config(peak_lr=1.0, warmup_fraction=warmup).train
    assert all(0 < learning_rate(step, 10, config) <= 1 for step in range(10))


def test_held_out_loss_is_measured_at_powers_of_two_then_regularly_and_at_the_end() -> None:
    assert sorted(train.heldout_steps(70, 25)) == [0, 1, 2, 4, 8, 16, 25, 32, 50, 64, 70]
    assert sorted(train.heldout_steps(1, 25)) == [0, 1]


@pytest.mark.parametrize("changes", [{}, {"tied_head": True}, {"norm": "layernorm"}, moe()], ids=str)
def test_matrices_are_decayed_norm_gains_are_not_and_each_comes_once(changes: dict[str, Any]) -> None:
    model = Decoder(run_config(**changes).model)
    decayed, kept = parameter_groups(model, 0.1)
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    assert set(kept["names"]) == {"blocks.0.attention_norm.weight", "blocks.0.ffn_norm.weight", "final_norm.weight"}
    named = dict(model.named_parameters())
    assert sorted(decayed["names"] + kept["names"]) == sorted(named)
    for group in (decayed, kept):
        assert all(parameter is named[name] for parameter, name in zip(group["params"], group["names"], strict=True))


def test_the_optimizer_has_the_betas_and_the_epsilon_of_the_run() -> None:
    run = run_config(adam_beta1=0.8, adam_beta2=0.9, adam_eps=1e-10, weight_decay=0.3)
    groups = adamw(decoder(run), run.train).param_groups
    assert [(g["betas"], g["eps"], g["weight_decay"]) for g in groups] == [
        ((0.8, 0.9), 1e-10, 0.3),
        ((0.8, 0.9), 1e-10, 0.0),
    ]


@pytest.mark.parametrize("micro_batch", [1, 3, 8])
@pytest.mark.parametrize("changes", [{}, {"tied_head": True}], ids=str)
def test_gradients_of_micro_batches_add_up_to_those_of_the_batch(micro_batch: int, changes: dict[str, Any]) -> None:
    results = []
    for size in (8, micro_batch):
        model = decoder(run_config(gamma=0.5, **changes))
        results.append((train.accumulate_gradients(model, sequences(8), size).item(), gradient(model)))
    (whole, gradients), (again, added) = results
    assert again == pytest.approx(whole, rel=1e-6)
    torch.testing.assert_close(added, gradients, rtol=1e-4, atol=1e-7)


def test_the_gradient_is_that_of_the_mean_loss_and_the_routers_auxiliary_loss() -> None:
    model, batch = decoder(run_config(gamma=0.5, **moe(balance_coef=0.5, z_coef=0.1))), sequences(4)
    loss = train.accumulate_gradients(model, batch, 4)
    added = gradient(model)
    model.zero_grad()
    mean = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    _, auxiliary = model(batch[:, :-1], batch[:, 1:])
    (mean + auxiliary).backward()
    assert auxiliary.item() > 0.1 and loss.item() == pytest.approx(mean.item(), rel=1e-6)  # the loss is without it
    torch.testing.assert_close(added, gradient(model), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("changes", [{}, moe()], ids=str)
def test_activation_checkpointing_gives_the_same_gradients_bit_by_bit(changes: dict[str, Any]) -> None:
    gradients = []
    for on in (False, True):
        model = decoder(run_config(activation_checkpointing=on, n_layers=2, **changes))
        train.accumulate_gradients(model, sequences(8), 4)
        gradients.append(gradient(model))
    assert torch.equal(*gradients)


@pytest.mark.parametrize("changes", [{}, {"tied_head": True}, moe()], ids=str)
def test_the_held_out_loss_is_the_mean_over_tokens_also_with_an_uneven_last_part(changes: dict[str, Any]) -> None:
    model, ids = decoder(run_config(gamma=0.5, **changes)), sequences(7)
    with torch.no_grad():
        direct = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).item()
    assert train.heldout_loss(model, ids, 3) == pytest.approx(direct, rel=1e-6)


def test_the_share_of_coordinates_that_adams_epsilon_damps_has_its_known_value() -> None:
    weights = [torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.zeros(6))]
    optimizer = torch.optim.AdamW(weights)
    assert adam_eps_share(optimizer, 1e-3) == 0  # no step yet
    optimizer.state[weights[0]] = {"exp_avg_sq": torch.tensor([0.0, 0.9e-4, 1.1e-4, 1.0])}  # 10 eps = 1e-2 = sqrt(1e-4)
    optimizer.state[weights[1]] = {"exp_avg_sq": torch.ones(6)}
    assert adam_eps_share(optimizer, 1e-3) == 0.2


# ---------------------------------------------------------------------------------------------------------- a whole run
@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_the_loss_falls_on_text_that_can_be_learned(project: Path, gamma: float) -> None:
    run = run_config(gamma=gamma, tokens=150 * 128, eval_tokens=1024, eval_every=100)
    losses = train.fit(run, Tokens()).heldout["loss"]
    assert losses.iloc[0] == pytest.approx(math.log(VOCABULARY), abs=0.6)
    assert losses.iloc[-1] < losses.iloc[0] - 1.5


def test_the_curve_says_what_happened_at_each_step(project: Path) -> None:
    run = run_config(log_every=8)
    outcome = train.fit(run, Tokens())
    assert outcome.curve["step"].tolist() == [1, 8, 16, 20]
    assert outcome.curve["tokens"].tolist() == [128, 1024, 2048, 2560]
    assert outcome.curve["learning_rate"].tolist() == [learning_rate(n, 20, run.train) for n in (0, 7, 15, 19)]
    assert outcome.heldout["step"].tolist() == [0, 1, 2, 4, 5, 8, 10, 15, 16, 20]
    first = Batches(Tokens().train, 16, 8, 20, 0).batch(0)
    assert outcome.curve["loss"].iloc[0] == pytest.approx(train.heldout_loss(decoder(run), first, 8), rel=1e-6)


def test_a_run_that_learns_nothing_ends_with_the_weights_that_its_audit_lists(project: Path) -> None:
    run = run_config(peak_lr=1e-30, weight_decay=0.0, tokens=2 * 128)
    outcome = train.fit(run, Tokens())
    named = dict(decoder(run).named_parameters())
    assert outcome.audit["name"].tolist() == list(outcome.weights) == list(named)
    assert all(torch.equal(weight, named[name]) for name, weight in outcome.weights.items())


VARIANTS: list[dict[str, Any]] = [
    {},
    {"precision": "bfloat16", "gate": "headwise", "n_kv_heads": 1},
    {"norm": "layernorm", "mlp": "gelu", "tied_head": True, "activation_checkpointing": True},
    moe(),
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_the_same_run_twice_is_bitwise_the_same_and_another_seed_is_not(project: Path, changes: dict[str, Any]) -> None:
    first = train.fit(run_config(**changes), Tokens())
    assert same(first, train.fit(run_config(**changes), Tokens()))
    assert not same(first, train.fit(run_config(seed=1, **changes), Tokens()))


THREADS_TOLERANCE = 1e-4  # relative, of losses in float32: sums come in another order


def test_one_and_two_threads_agree_within_the_stated_tolerance(project: Path) -> None:
    changes: dict[str, Any] = {"d_model": 64, "d_ff": 176, "micro_batch": 8}  # large enough to be shared among threads
    try:
        one, two = (train.fit(run_config(threads=n, **changes), Tokens()) for n in (1, 2))
    finally:
        torch.set_num_threads(1)
    assert [outcome.provenance["threads"] for outcome in (one, two)] == [1, 2]
    for name in ("curve", "heldout"):
        a, b = getattr(one, name)["loss"].to_numpy(), getattr(two, name)["loss"].to_numpy()
        print(f"{name}: largest relative difference between 1 and 2 threads {np.max(np.abs(a / b - 1)):.1e}")
        np.testing.assert_allclose(a, b, rtol=THREADS_TOLERANCE)


def test_provenance_says_what_a_reader_needs_to_judge_the_last_digits(project: Path) -> None:
    record = train.fit(run_config(), Tokens()).provenance
    assert record["cpu"] and record["threads"] == 1 and record["versions"]["torch"] == torch.__version__
    assert (record["processes"], record["strategy"], record["precision"], record["compiled"]) == (
        *(1, None, "float32", False),
    )


def test_more_than_one_epoch_is_refused_before_any_step(project: Path) -> None:
    with pytest.raises(ValueError, match="lower `tokens` of this size"):
        train.fit(run_config(tokens=10**6), Tokens())


def test_less_held_out_text_than_one_window_is_refused_by_key(project: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.eval_tokens = 15"):
        train.fit(run_config(eval_tokens=15), Tokens())


def test_saving_writes_everything_and_forgets_the_state(project: Path) -> None:
    run = run_config()
    (place(run) / "newest").mkdir(parents=True)
    (place(run) / "newest" / "manifest.json").write_text("damaged: the run starts from step 0")
    outcome = train.fit(run, Tokens())
    launch.save(run, Tokens(), outcome)
    assert not place(run).exists()
    small = paths.RESULTS / "train" / run.run
    names = ["blocks.csv", "curve.csv", "heldout.csv", "init_audit.csv", "matrices.csv", "metrics.json"]
    assert sorted(p.name for p in small.iterdir()) == [*names, "provenance.json"]
    weights = load_file(paths.MODELS / run.run / "model.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in outcome.weights.items())
    assert weights.keys() == outcome.weights.keys()
    assert RunConfig.model_validate_json((paths.MODELS / run.run / "config.json").read_text()) == run
    metrics = json.loads((small / "metrics.json").read_text())
    assert (metrics["diverged"], metrics["steps"], metrics["tokens"]) == (False, 20, 2560)
    assert metrics["heldout_loss"] == pytest.approx(pd.read_csv(small / "heldout.csv")["loss"].iloc[-1], rel=1e-6)
    assert metrics["parameters"] - metrics["parameters_without_embeddings"] == 2 * VOCABULARY * 16
    assert metrics["parameters_without_embeddings"] == 5 * 16 * 16 + 3 * 16 * 32 + 3 * 16


def test_snapshots_are_the_weights_of_each_measured_step_and_survive_an_interrupt(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_config(snapshots=True)
    with monkeypatch.context() as patch:
        at_step(patch, 6, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(train.Interrupted):
            train.fit(run, Tokens())
    outcome = train.fit(run, Tokens())
    launch.save(run, Tokens(), outcome)
    files = sorted((paths.MODELS / run.run / "snapshots").iterdir())
    steps = outcome.heldout["step"].tolist()
    assert [file.name for file in files] == [f"step-{step:08d}.safetensors" for step in steps]
    assert steps == [0, 1, 2, 4, 5, 8, 10, 15, 16, 20]
    first, last = load_file(files[0]), load_file(files[-1])
    for name, weight in outcome.weights.items():
        assert torch.equal(last[name], weight.to(torch.bfloat16)) and first[name].dtype == torch.bfloat16
    started = dict(zip(outcome.audit["name"], outcome.audit["realised_std"], strict=True))
    assert first["embed.weight"].float().pow(2).mean().sqrt().item() == pytest.approx(started["embed.weight"], rel=1e-2)
    launch.save(run_config(), Tokens(), outcome)  # no snapshots any more
    assert not (paths.MODELS / run.run / "snapshots").exists()


def test_a_run_is_trained_by_one_process_at_a_time(project: Path) -> None:
    run = run_config()
    with checkpoint.claimed(place(run)), pytest.raises(checkpoint.StateInUse, match=r"t-1\.0-both.* another process"):
        launch.work(run)
    launch.work(run)  # the claim has ended
    assert not place(run).exists()


# ---------------------------------------------------------------------------------------------------------- interrupted
def at_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], object]) -> None:
    """Do `action` once, just before that step."""
    advance = train.Training.advance
    done: list[int] = []

    def advance_or_act(self: train.Training) -> float:
        if self.step == step and not done:
            done.append(step)
            action()
        return advance(self)

    monkeypatch.setattr(train.Training, "advance", advance_or_act)


def steps_taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that the runs from here on take, in order."""
    advance, steps = train.Training.advance, []

    def noted(self: train.Training) -> float:
        steps.append(self.step)
        return advance(self)

    monkeypatch.setattr(train.Training, "advance", noted)
    return steps


@pytest.mark.parametrize("step", [0, 1, 5, 13, 18])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_that_continues_to_bitwise_the_same(
    project: Path, monkeypatch: pytest.MonkeyPatch, number: int, step: int
) -> None:
    run, handlers = run_config(), [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    whole = train.fit(run, Tokens())
    with monkeypatch.context() as patch:
        at_step(patch, step, lambda: os.kill(os.getpid(), number))
        with pytest.raises(train.Interrupted, match=f"stopped at step {step + 1} of 20; run it again"):
            train.fit(run, Tokens())
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers
    taken = steps_taken(monkeypatch)
    assert same(train.fit(run, Tokens()), whole)
    assert taken == list(range(step + 1, 20))


def test_a_crash_costs_at_most_the_work_since_the_last_save(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, whole = run_config(), train.fit(run_config(), Tokens())
    watch(save_seconds=1e-9)

    def crash() -> None:
        raise MemoryError

    for step in (4, 11):
        with monkeypatch.context() as patch:
            at_step(patch, step, crash)
            with pytest.raises(MemoryError):
                train.fit(run, Tokens())
    taken = steps_taken(monkeypatch)
    assert same(train.fit(run, Tokens()), whole)
    assert taken == list(range(11, 20))


def test_a_changed_configuration_or_corpus_starts_from_step_0(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_step(monkeypatch, 7, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(train.Interrupted):
        train.fit(run_config(), Tokens())
    taken = steps_taken(monkeypatch)
    changed = run_config(gamma=0.5)
    assert changed.run == run_config().run
    train.fit(changed, Tokens())
    write_tokens(chain(40_000, seed=3), chain(2_000, seed=2))
    train.fit(run_config(), Tokens())
    assert taken == [*range(20), *range(20)]


def test_changed_held_out_text_starts_from_step_0(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_step(monkeypatch, 7, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(train.Interrupted):
        train.fit(run_config(), Tokens())
    write_tokens(chain(40_000, seed=1), chain(2_000, seed=4))
    continued = train.fit(run_config(), Tokens())
    checkpoint.discard(place(run_config()))
    assert same(continued, train.fit(run_config(), Tokens()))


def test_a_full_disk_ends_the_run_with_a_reason_and_a_later_start_continues(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train.fit(run_config(), Tokens())
    watch(save_seconds=1e-9)

    def full(path: Path, text: str) -> int:
        raise OSError("No space left on device")

    at_step(monkeypatch, 7, lambda: patch.setattr(Path, "write_text", full))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="older states are kept; is the disk full"):
        train.fit(run_config(), Tokens())
    taken = steps_taken(monkeypatch)
    assert same(train.fit(run_config(), Tokens()), whole) and taken == list(range(7, 20))


# ------------------------------------------------------------------------------------------------------------- diverged
def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def diverged(**changes: Any) -> tuple[RunConfig, train.Outcome]:
    run = run_config(peak_lr=1e3, warmup_fraction=0.0, tokens=100 * 128, **changes)
    outcome = train.fit(run, Tokens())
    launch.save(run, Tokens(), outcome)
    return run, outcome


@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_a_diverged_run_ends_normally_and_leaves_no_nan_in_any_artifact(project: Path, gamma: float) -> None:
    run, outcome = diverged(gamma=gamma)
    small = paths.RESULTS / "train" / run.run
    metrics = json.loads((small / "metrics.json").read_text(), parse_constant=refuse)
    assert metrics["diverged"] is True and 0 < metrics["diverged_at"] < 100
    assert metrics["train_loss"] is None and metrics["heldout_loss"] is None
    for path in small.iterdir():
        assert not any(word in path.read_text().lower().split(",") for word in ("nan", "inf", "-inf")), path
    weights = load_file(paths.MODELS / run.run / "model.safetensors")
    assert all(value.isfinite().all() for value in weights.values())
    run_overview(outcome.curve, outcome.heldout, run).canvas.draw()


def test_a_run_that_is_lost_before_its_first_step_has_all_its_files(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "accumulate_gradients", lambda *arguments: torch.tensor(float("nan")))
    run, outcome = diverged()
    assert outcome.diverged_at == 0 and len(outcome.curve) == 0
    assert len(list((paths.RESULTS / "train" / run.run).iterdir())) == 7


def test_a_run_that_is_lost_before_its_first_step_can_be_drawn(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "accumulate_gradients", lambda *arguments: torch.tensor(float("nan")))
    run, outcome = diverged()
    run_overview(outcome.curve, outcome.heldout, run).canvas.draw()


def test_a_gradient_that_is_not_finite_never_reaches_the_weights(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accumulate = train.accumulate_gradients

    def poisoned(model: Decoder, *arguments: Any) -> Tensor:
        loss = accumulate(model, *arguments)
        next(model.parameters()).grad[0, 0] = float("inf")  # type: ignore[index]
        return loss

    monkeypatch.setattr(train, "accumulate_gradients", poisoned)
    outcome = train.fit(run_config(), Tokens())
    assert outcome.diverged_at == 0 and all(p.isfinite().all() for p in outcome.weights.values())


def test_a_high_but_falling_loss_is_no_divergence(project: Path) -> None:
    outcome = train.fit(run_config(gamma=0.0, d_model=64), Tokens())  # starts far above the uniform guess
    assert outcome.heldout["loss"].iloc[0] > 3 * math.log(VOCABULARY) and outcome.diverged_at is None


# ------------------------------------------------------------------------------------------------------------- compiled
@pytest.mark.skipif(not machine.can_compile(torch.device("cpu")), reason="torch.compile needs a C++ compiler")
def test_a_compiled_run_has_the_gradients_and_losses_of_one_that_is_not(project: Path) -> None:
    """Of one model each, because compiling is most of the time."""
    runs = [run_config(compile=on, micro_batch=8) for on in (False, True)]
    plain, compiled = (train.Training(run, Tokens()) for run in runs)
    assert (plain.compiled, compiled.compiled) == (False, True)
    for training in (plain, compiled):
        train.accumulate_gradients(training.model, training.batches.batch(0), 8)
    torch.testing.assert_close(gradient(compiled.model), gradient(plain.model), rtol=1e-4, atol=1e-7)
    for training in (plain, compiled):
        training.optimizer.zero_grad()
        training.measure()
        while training.step < 10:
            training.advance()
        training.measure()
    a, b = plain.outcome(), compiled.outcome()
    assert b.provenance["compiled"] and a.weights.keys() == b.weights.keys()
    np.testing.assert_allclose(b.curve["loss"], a.curve["loss"], rtol=1e-4)
    np.testing.assert_allclose(b.heldout["loss"], a.heldout["loss"], rtol=1e-4)


def test_the_papers_smallest_model_takes_real_steps_on_a_processor(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.1B of the profile `paper`, as it is but for short batches: the code path that waits for GPUs."""
    monkeypatch.setattr(measures, "stable_rank", lambda weight: 1.0)  # half a minute a step here; tested on small ones
    chosen = params.load(micro.REPOSITORY / "params.yaml", profile="paper")
    run = resolve.run(chosen, "0.1B-1.0-both")
    short = {"device": "cpu", "processes": 1, "batch_tokens": 128, "micro_batch": 1, "tokens": 4 * 128}
    train_config = run.train.model_copy(update={**short, "eval_tokens": 128, "peak_lr": 1e-4, "compile": False})
    model_config = run.model.model_copy(update={"seq_len": 128})
    run = run.model_copy(update={"model": model_config, "train": train_config})
    ids = np.random.default_rng(0).integers(0, 300, 129 * 5)  # of 60,000: that only few occur is soon learned
    write_tokens(ids, ids[:200])
    outcome = train.fit(run, Tokens())
    losses = outcome.heldout["loss"]
    assert losses.iloc[0] == pytest.approx(math.log(run.model.vocab_size), abs=0.1)
    assert losses.iloc[-1] < losses.iloc[0] - 0.02
    assert launch.metrics(run, outcome)["parameters"] == planner.count_parameters(run.model).total > 1e8
