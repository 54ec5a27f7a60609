"""The planner's arithmetic against built models, the paper profile, refusals, and its SLURM file."""

import argparse
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from conftest import run_config

from smallinit import kernels, model, params, paths, planner, resolve
from smallinit.config import ConfigError, ModelConfig, RunConfig
from smallinit.model import Decoder
from smallinit.planner import Layout, Machine

ROOT = Path(__file__).resolve().parents[1]
PAPER = params.load(ROOT / "params.yaml", "paper")
NAMES = [params.RunName.parse(run) for run in PAPER.runs]
RUNS = planner.representatives(PAPER)
H100 = Machine(gpus=8, rate=989e12, capacity=80e9, mfu=0.4)


def paper(size: str, variant: str) -> RunConfig:
    return resolve.run(PAPER, f"{size}-1.0-{variant}")


def built(config: ModelConfig) -> dict[str, int]:
    """Numbers of parameters of the model itself, made without memory."""
    with torch.device("meta"):
        return {name: value.numel() for name, value in Decoder(config).named_parameters()}


# -------------------------------------------------------------------------------------------------- parameters, FLOPs


@pytest.mark.parametrize("size", dict.fromkeys(run.size for run in NAMES))
@pytest.mark.parametrize("variant", dict.fromkeys(run.variant for run in NAMES))
def test_parameters_are_those_of_the_built_model(size: str, variant: str) -> None:
    run = paper(size, variant)
    sizes, counts = built(run.model), planner.count_parameters(run.model)
    vocabulary = sum(n for name, n in sizes.items() if name in ("embed.weight", "head.weight"))
    experts = sum(n for name, n in sizes.items() if ".experts_" in name)
    assert counts.total == sum(sizes.values())
    assert counts.without_embeddings == sum(sizes.values()) - vocabulary
    assert counts.active == sum(sizes.values()) - experts * 6 // 8, "of 8 experts 2 are active"
    assert (experts > 0) == variant.startswith("moe")


@pytest.mark.parametrize(
    "changes",
    [
        {"gate": "none"},
        {"gate": "headwise"},
        {"tied_head": True},
        {"mlp": "gelu"},
        {"n_kv_heads": 1},
        {"norm": "layernorm"},
        {"mlp": "gelu", "moe": {"n_experts": 4, "top_k": 1, "balance_coef": 0.0, "z_coef": 0.0}},
    ],
    ids=str,
)
def test_parameters_of_every_kind_of_model_are_counted(changes: dict[str, Any]) -> None:
    config = run_config(**changes).model
    assert planner.count_parameters(config).total == sum(built(config).values())


def test_sizes_are_named_as_in_the_paper() -> None:
    """0.4B and 1.5B by all parameters, 0.1B and 0.7B by those outside embedding and head."""
    for size, without in (("0.1B", True), ("0.4B", False), ("0.7B", True), ("1.5B", False)):
        counts = planner.count_parameters(paper(size, "standard").model)
        assert f"{(counts.without_embeddings if without else counts.total) / 1e9:.1f}B" == size


def plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention whose products PyTorch's counter sees; the mask changes no count."""
    return (q @ k.mT).softmax(dim=-1) @ v


def test_flops_are_those_that_torch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward pass of a small model; products over all T keys, where ours are (T + 1) / 2 on average."""
    from torch.utils.flop_counter import FlopCounterMode

    monkeypatch.setattr(model, "causal_attention", plain_attention)
    config = run_config(gate="elementwise", n_layers=2).model
    network = filled(config)
    ids = torch.randint(config.vocab_size, (4, config.seq_len))
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(network(ids).flatten(0, 1), ids.flatten()).backward()
    masked = 6 * config.n_layers * config.d_model * (2 * config.seq_len - (config.seq_len + 1))
    assert counter.get_total_flops() == ids.numel() * (planner.flops_per_token(config) + masked)


def filled(config: ModelConfig) -> Decoder:
    network = Decoder(config)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return network


def test_flops_of_experts_are_those_of_the_chosen_ones() -> None:
    dense, moe = paper("0.1B", "standard").model, paper("0.1B", "moe_standard").model
    more = planner.flops_per_token(moe) - planner.flops_per_token(dense)
    assert more == 6 * dense.n_layers * (planner.feed_forward_parameters(dense) + 8 * dense.d_model), "one more, router"


# ------------------------------------------------------------------------------------------------------------- memory


def test_the_chunk_of_the_head_is_that_of_the_training_code() -> None:
    assert planner.HEAD_CHUNK == kernels.HEAD_CHUNK


def test_weights_gradients_and_moments_are_16_bytes_a_parameter_on_one_gpu() -> None:
    run = paper("0.4B", "both")
    total = planner.count_parameters(run.model).total
    kept = planner.memory(run, Layout(1, "ddp", True, 1))
    copies = kept["weights"] - 4 * total
    assert kept["gradients"] == 4 * total and kept["optimizer"] == 8 * total and 0 < copies < 2 * total
    assert planner.memory(run, Layout(1, "fsdp", True, 1)) == kept, "one process has nothing to share"


def test_sharding_and_recomputing_need_less_and_more_tokens_need_more() -> None:
    for run, _ in RUNS:
        ddp = [sum(planner.memory(run, Layout(8, "ddp", on, 4)).values()) for on in (False, True)]
        fsdp = [sum(planner.memory(run, Layout(8, "fsdp", on, 4)).values()) for on in (False, True)]
        assert ddp[1] < ddp[0] and fsdp[1] < fsdp[0] and fsdp[0] < ddp[0] and fsdp[1] < ddp[1]
        assert planner.memory(run, Layout(64, "fsdp", False, 4))["optimizer"] * 8 == pytest.approx(
            planner.memory(run, Layout(8, "fsdp", False, 4))["optimizer"]
        )
        assert sum(planner.memory(run, Layout(8, "fsdp", False, 8)).values()) > fsdp[0]


@pytest.mark.parametrize(
    "changes", [{"gate": "none"}, {"gate": "elementwise"}, {"mlp": "gelu"}, {"n_layers": 3}], ids=str
)
def test_activations_are_between_half_and_all_of_what_eager_code_keeps(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What autograd really keeps under bfloat16 autocast, without the parameters and their bfloat16 copies."""
    monkeypatch.setattr(
        model, "causal_attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    )
    shape = {"d_model": 64, "d_ff": 176, "seq_len": 128, "n_layers": 2}
    config = ModelConfig.model_validate(run_config().model.model_dump() | shape | changes)
    network, kept = filled(config), {}
    own = {parameter.shape for parameter in network.parameters()} | {
        p.T.shape for p in network.parameters() if p.ndim == 2
    }

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape not in own:
            kept[tensor.untyped_storage().data_ptr()] = (tensor.untyped_storage().nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t), torch.autocast("cpu", torch.bfloat16):
        network.hidden(torch.zeros(2, config.seq_len, dtype=torch.int64))
    found = sum(size for size, _ in kept.values()) / (2 * config.seq_len * config.n_layers)
    estimate = planner.activations_per_token(config)
    assert 0.5 * found < estimate < found


# ------------------------------------------------------------------------------------------------- table and refusals


def estimate(*arguments: str) -> str:
    parser = argparse.ArgumentParser()
    planner.add_arguments(parser)
    return planner.main(parser.parse_args([*arguments]))


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(paths, "PARAMS", ROOT / "params.yaml")
    monkeypatch.setattr(paths, "RESULTS", tmp_path)


def test_the_paper_profile_fits_on_eight_gpus_of_80_gb(repository: None) -> None:
    text = estimate("--profile", "paper", "--gpus", "8", "--tflops", "400", "--memory", "80", "--mfu", "0.4")
    rows = [line for line in text.splitlines() if line.endswith("True")]
    assert len(rows) == len({(run.size, run.variant) for run in NAMES}) == 24


def test_days_follow_from_the_stated_rate() -> None:
    table = planner.gpu_table(RUNS, H100)
    first = table.iloc[0]
    assert first.days == pytest.approx(first.flops / (8 * 989e12 * 0.4) / 86400)
    assert (table.all_days == 2 * table.days).all(), "one run for each gamma"
    twice = planner.gpu_table(RUNS, Machine(16, 989e12, 80e9, 0.4))
    assert (twice.days * 2).tolist() == pytest.approx(table.days.tolist())
    slower = [(run.model_copy(update={"train": changed(run, activation_checkpointing=True)}), n) for run, n in RUNS]
    assert planner.gpu_table(slower, H100).days[0] == pytest.approx(first.days * 4 / 3)


def changed(run: RunConfig, **values: Any) -> Any:
    return run.train.model_copy(update=values)


def test_what_cannot_fit_is_refused_with_what_to_change(repository: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        ConfigError, match=r"1\.5B-\*-moe: needs \d+ GB on each GPU as configured.*set train\.\w+: "
    ) as e:
        estimate("--profile", "paper", "--gpus", "8", "--memory", "64")
    assert "0.1B-*-standard" not in str(e.value)
    assert "FSDP2 GB" in capsys.readouterr().out, "the table is printed all the same"


@pytest.mark.parametrize("gpus", [1, 8, 64])
@pytest.mark.parametrize("capacity", [16e9, 24e9, 40e9, 80e9])
def test_advice_that_is_followed_makes_a_run_fit(gpus: int, capacity: float) -> None:
    for run, _ in RUNS:
        if planner.fits(run, planner.layout_of(run, gpus), capacity):
            continue
        text = planner.advice(run, gpus, capacity)
        if text.startswith("set "):
            todo = dict(part.split(": ") for part in text.removeprefix("set train.").split(", train."))
            values = {key: {"true": True, "false": False}.get(value, value) for key, value in todo.items()}
            values |= {key: int(value) for key, value in todo.items() if value.isdigit()}
            mended = run.model_copy(update={"train": changed(run, **values)})
            assert planner.fits(mended, planner.layout_of(mended, gpus), capacity)
        elif text.startswith("use "):
            more = int(text.split()[1])
            assert more > gpus and planner.fits(run, Layout(more, "fsdp", True, 1), capacity)
        else:
            assert not planner.fits(run, Layout(run.batch_size, "fsdp", True, 1), capacity)


def test_gpus_that_cannot_share_a_step_are_refused(repository: None) -> None:
    with pytest.raises(ConfigError, match="256 micro batches, which 7 GPUs cannot share evenly"):
        estimate("--profile", "paper", "--gpus", "7")


@pytest.mark.parametrize("option", [("--mfu", "1.5"), ("--tflops", "0"), ("--memory", "-1"), ("--gpus", "-1")])
def test_options_out_of_range_are_refused(repository: None, option: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="--gpus must be 0 or more"):
        estimate("--gpus", "8", *option)


def test_an_unknown_profile_is_named_with_those_that_exist(repository: None) -> None:
    with pytest.raises(ConfigError, match=r"no profile 'papre' \(profiles: paper, quick, workstation\)"):
        estimate("--profile", "papre")


def test_hours_on_the_processor_follow_from_the_benchmark(repository: None, tmp_path: Path) -> None:
    assert "make bench" in estimate()
    rows = [("ours", "system", 1.0), ("ours", "ours", 1000.0), ("hf-trainer", "ours", 2.0)]
    (tmp_path / "bench").mkdir()
    pd.DataFrame(rows, columns=["contestant", "allocator", "tokens_per_second"]).to_csv(
        tmp_path / "bench" / "bench.csv"
    )
    rate = planner.measured_rate()
    runs = planner.representatives(params.load(paths.PARAMS))
    table = planner.cpu_table(runs, rate)
    assert rate is not None and table.hours[0] == pytest.approx(table.flops[0] / rate / 3600)
    shape = {
        "d_model": 128,
        "n_layers": 4,
        "n_heads": 4,
        "n_kv_heads": 4,
        "d_ff": 344,
        "vocab_size": 4096,
        "seq_len": 256,
    }
    alike = ModelConfig.model_validate(run_config(gate="none").model.model_dump() | shape)
    assert planner.flops_per_token(alike) * 1000 == rate, "the benchmark's model, by the same formula"
    assert "hours of one process" in estimate()


# ------------------------------------------------------------------------------------------------------------ profile


def test_the_profile_is_the_papers_grid_and_pins_its_corpora() -> None:
    plan = resolve.plan(PAPER)
    shapes = {run.size: (run.model.n_layers, run.model.d_model) for run, _ in RUNS}
    assert shapes == {"0.1B": (12, 768), "0.4B": (24, 1024), "0.7B": (24, 1536), "1.5B": (24, 2048)}
    tokenize: Any = plan["tokenize"]
    assert tokenize.vocab_size == 60_000 and {s.language for s in tokenize.sources.values()} == {"en", "zh"}
    assert all(len(source.revision) == 40 for source in tokenize.sources.values())
    assert plan["fetch"].model_dump() == {"archives": {}}, "nothing to download beforehand"
    for run, _ in RUNS:
        assert run.model.norm_eps in (1e-5, 1e-12), "at its own width, `matched` is the literal eps"
        assert run.model.head_dim in (64, 128) and run.model.d_ff % 128 == 0
        assert 0 <= run.model.d_ff - 8 * run.model.d_model / 3 < 128
        assert run.steps * run.batch_size < (tokenize.tokens - 1) // run.model.seq_len, "the corpus lasts for one epoch"


def test_a_corpus_is_sources_or_streams_and_needs_its_notebook(tmp_path: Path) -> None:
    text = (ROOT / "params.yaml").read_text()
    quick = next(part for part in re.findall(r"sources: \[wiki, law\]\n    generated: .*\n", text))
    for old, new, message in (
        (quick, f"{quick}    mix: {{a: 1.0}}\n", "name either `sources`"),
        (quick, "mix: {a: 1.0}\n", "`tokens` goes with a `mix`"),
        (quick, "mix: {a: 1.0}\n    tokens: 10\n", r"corpora.quick.mix: 'a' is not defined"),
        ("notebook: 02_tokenize", "notebook: 02_stream", "corpus 'default' needs '02_tokenize'"),
    ):
        assert old in text
        (tmp_path / "params.yaml").write_text(text.replace(old, new))
        with pytest.raises(ConfigError, match=message):
            params.load(tmp_path / "params.yaml")


# -------------------------------------------------------------------------------------------------------------- SLURM


COMMANDS = {
    "scontrol": '[ "$1" = show ] && printf "node1\\nnode2\\n" || echo "$@" >>"$LOG"',
    "scancel": 'kill -TERM "$(cat "$LOG.pid")"',
    "srun": 'exec "$@"',
    "python": 'trap "sleep 0.3; exit 1" TERM; echo "$PWD $@" >>"$LOG"; echo $$ >"$LOG.pid"; '
    'for i in $(seq "$TENTHS_TO_RUN"); do sleep 0.1; done; exit "$STATUS"',
}


class Cluster:
    """The commands of SLURM that the file uses, and a python that only writes down what it was told."""

    def __init__(self, root: Path):
        self.root, self.log = root, root / "log"
        (root / "bin").mkdir()
        (root / "workspaces" / "paper").mkdir(parents=True)
        for name, body in COMMANDS.items():
            (root / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
            (root / "bin" / name).chmod(0o755)

    def start(self, tenths: int, status: int = 0) -> subprocess.Popen[bytes]:
        slurm = {"SLURM_SUBMIT_DIR": str(self.root), "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2"}
        own = {"LOG": str(self.log), "TENTHS_TO_RUN": str(tenths), "STATUS": str(status), "SLURM_JOB_ID": "12"}
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        command = ["bash", str(ROOT / "profiles" / "paper.sbatch"), "1.5B-1.0-both"]
        return subprocess.Popen(command, env={**os.environ, **slurm, **own, "PATH": path})


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    if not shutil.which("bash"):
        pytest.skip("no bash on this machine")
    return Cluster(tmp_path)


def test_the_sbatch_file_starts_torchrun_in_the_workspace(cluster: Cluster) -> None:
    assert cluster.start(tenths=0).wait() == 0
    words = cluster.log.read_text().split()
    assert words[0].endswith("workspaces/paper") and words[1:3] == ["-m", "torch.distributed.run"]
    assert words[-3:] == ["-m", "smallinit.launch", "1.5B-1.0-both"]
    for option, value in (("--nnodes", "2"), ("--nproc-per-node", "8"), ("--rdzv-endpoint", "node1:20012")):
        assert words[words.index(option) + 1] == value


def test_a_failed_job_fails_and_is_not_queued_again(cluster: Cluster) -> None:
    assert cluster.start(tenths=0, status=3).wait() == 3
    assert "requeue" not in cluster.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_job_at_its_end_lets_training_save_and_queues_again(cluster: Cluster, number: signal.Signals) -> None:
    process = cluster.start(tenths=600)
    deadline = time.monotonic() + 30
    while not (cluster.root / "log.pid").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(timeout=30) == 0
    assert cluster.log.read_text().splitlines()[-1] == "requeue 12"
