"""`python -m smallinit estimate`: parameters, FLOPs, memory and time of runs before anything is trained.

Parameters are counted exactly; a test compares them with the built models. FLOPs follow from the shapes. Memory is an
estimate of what this repository's own training keeps on one GPU, term by term in `memory`; time is FLOPs over a rate
that you state. Everything here is arithmetic on a configuration: no model is built.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from smallinit import params, paths, resolve
from smallinit.config import ConfigError, ModelConfig, RunConfig

FLOAT32, BFLOAT16 = 4, 2  # bytes
HEAD_CHUNK = 1024  # tokens whose logits exist at one time, as in kernels.py
USABLE = 0.9  # of a GPU's memory; the rest is for CUDA, NCCL and fragmentation
RECOMPUTE = 4 / 3  # activation checkpointing runs the forward pass twice: 4 units of work instead of 3
DAY = 86400  # seconds


# -------------------------------------------------------------------------------------------------------- parameters


class Counts(NamedTuple):
    """Numbers of parameters."""

    total: int
    without_embeddings: int  # without token embedding and head
    active: int  # that one token meets: of the experts only the chosen ones


def count_parameters(model: ModelConfig) -> Counts:
    """Parameters of `Decoder(model)`, by its shapes (d d_model, f d_ff, V vocabulary)."""
    d, vocabulary = model.d_model, model.vocab_size * model.d_model
    embeddings = vocabulary * (1 if model.tied_head else 2)
    rest = d + model.n_layers * (2 * d + attention_parameters(model))  # norms and attention
    expert = feed_forward_parameters(model)
    if model.moe is None:
        rest += model.n_layers * expert
        return Counts(embeddings + rest, rest, embeddings + rest)
    router = model.moe.n_experts * d
    total = rest + model.n_layers * (router + model.moe.n_experts * expert)
    active = rest + model.n_layers * (router + model.moe.top_k * expert)
    return Counts(embeddings + total, total, embeddings + active)


def attention_parameters(model: ModelConfig) -> int:
    """W_q, W_k, W_v, W_o and the gate of one block."""
    d, heads = model.d_model, model.n_heads * model.head_dim
    gate = {"none": 0, "headwise": model.n_heads, "elementwise": heads}[model.gate]
    return d * (2 * heads + 2 * model.n_kv_heads * model.head_dim + gate)


def feed_forward_parameters(model: ModelConfig) -> int:
    """One feed-forward network, or one expert."""
    return (3 if model.mlp == "swiglu" else 2) * model.d_model * model.d_ff


# ------------------------------------------------------------------------------------------------------------- FLOPs


def flops_per_token(model: ModelConfig) -> float:
    """FLOPs of one training token: 6 (M + L H h (T + 1)).

    M are the parameters of the matrices that a token is multiplied with: attention, feed-forward network or chosen
    experts, router and head, but not the embedding, which is a look-up. Each costs 2 FLOPs forward and 4 backward.
    Causal attention has (T + 1) / 2 keys a query on average, and two products, q k^T and A v, of 2 h FLOPs a key and
    head. (The usual MFU convention of PaLM counts T keys instead, twice as much for attention.) Norms, activations
    and what is recomputed do not count.
    """
    counts = count_parameters(model)
    norms = model.d_model * (1 + 2 * model.n_layers)
    look_up = 0 if model.tied_head else model.vocab_size * model.d_model
    attention = model.n_layers * model.n_heads * model.head_dim * (model.seq_len + 1)
    return 6 * (counts.active - norms - look_up + attention)


# ------------------------------------------------------------------------------------------------------------ memory


@dataclass(frozen=True)
class Layout:
    """How one run is spread out."""

    gpus: int
    strategy: str  # ddp | fsdp
    checkpointing: bool
    micro_batch: int  # sequences of one forward pass on one GPU


def layout_of(run: RunConfig, gpus: int) -> Layout:
    """As the run is configured, on `gpus` GPUs."""
    return Layout(gpus, run.train.strategy, run.train.activation_checkpointing, run.train.micro_batch)


def activations_per_token(model: ModelConfig) -> float:
    """Bytes that one block keeps of one token for its backward pass, under bfloat16 autocast.

    Float32: the residual stream before each half. Bfloat16: both normalised inputs; q and, for every query head, k
    and v; the attention's output; the gate's input and the gated output; of each feed-forward network that the token
    goes through, all hidden vectors and their product. Compiled code keeps about that; eager code up to twice as much.
    The products of attention, T x T numbers, are recomputed by the fused kernels and never kept.
    """
    d, heads, chosen = model.d_model, model.n_heads * model.head_dim, model.moe.top_k if model.moe else 1
    gate = {"none": 0, "headwise": model.n_heads + heads, "elementwise": 2 * heads}[model.gate]
    hidden = (3 if model.mlp == "swiglu" else 2) * model.d_ff
    routed = 2 * d * chosen if model.moe else 0  # the inputs gathered for each expert, and its output
    return FLOAT32 * 2 * d + BFLOAT16 * (2 * d + 4 * heads + gate + chosen * hidden + routed)


def memory(run: RunConfig, layout: Layout) -> dict[str, float]:
    """Bytes on one GPU, by purpose, with P parameters, n GPUs and N tokens in one forward pass.

    weights: 4 P in float32, and under FSDP2 4 P / n, two gathered blocks (one in use, one on its way) and the gathered
        embedding and head. Autocast's bfloat16 copies, 2 P, are kept for the backward pass; with checkpointing, those
        of one block and of the head.
    gradients: 4 P, and under DDP as much again for its communication buckets. Under FSDP2 4 P / n and one block's
        before it is reduced; but all 4 P if a step has several micro batches, because they are reduced once a step.
    optimizer: AdamW's two moments, 8 P, under FSDP2 8 P / n.
    activations: see `activations_per_token`; with checkpointing each block's input and one block in full.
    head: logits of HEAD_CHUNK tokens in their stages, 12 bytes each; the head's gradient; the final norm's input
        and its gradient.
    """
    model = run.model
    counts = count_parameters(model)
    total, outside = counts.total, counts.total - counts.without_embeddings
    block = (counts.without_embeddings - model.d_model) / model.n_layers
    tokens = layout.micro_batch * model.seq_len
    sharded = layout.strategy == "fsdp" and layout.gpus > 1
    shared = layout.gpus if sharded else 1
    weights, gradients = FLOAT32 * total / shared, FLOAT32 * total / shared
    if sharded:
        weights += FLOAT32 * (2 * block + outside)
        gradients = (
            FLOAT32 * total if run.batch_size > layout.micro_batch * layout.gpus else gradients + FLOAT32 * block
        )
    elif layout.gpus > 1:
        gradients *= 2
    head = model.vocab_size * model.d_model
    weights += BFLOAT16 * (block + head if layout.checkpointing else counts.without_embeddings + head)
    one, inputs = activations_per_token(model), FLOAT32 * model.d_model
    per_token = model.n_layers * inputs + one if layout.checkpointing else model.n_layers * one
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": 2 * FLOAT32 * total / shared,
        "activations": tokens * per_token,
        "head": 12 * HEAD_CHUNK * model.vocab_size + FLOAT32 * head + 2 * FLOAT32 * tokens * model.d_model,
    }


def fits(run: RunConfig, layout: Layout, capacity: float) -> bool:
    """Whether a layout's memory is at most the usable part of `capacity` bytes."""
    return sum(memory(run, layout).values()) <= USABLE * capacity


def alternatives(run: RunConfig, gpus: int) -> Iterator[tuple[str, Layout]]:
    """Other ways to run it and what to change for each, the cheapest in time first."""
    halves = [run.train.micro_batch >> k for k in range(run.train.micro_batch.bit_length())]
    for checkpointing in (False, True):
        for strategy in ("ddp", "fsdp") if gpus > 1 else (run.train.strategy,):
            for micro_batch in halves:
                todo = {"activation_checkpointing": checkpointing, "strategy": strategy, "micro_batch": micro_batch}
                changes = [f"train.{key}: {value}" for key, value in todo.items() if value != getattr(run.train, key)]
                yield (
                    ", ".join(changes).replace("True", "true").replace("False", "false"),
                    Layout(gpus, strategy, checkpointing, micro_batch),
                )


def advice(run: RunConfig, gpus: int, capacity: float) -> str:
    """What to change so that a run that does not fit does."""
    for change, layout in alternatives(run, gpus):
        if fits(run, layout, capacity):
            return f"set {change}"
    parts = run.batch_size  # at a micro batch of one sequence, no more GPUs than that have work
    for more in (n for n in (2**k for k in range(1, 20)) if gpus < n <= parts):
        if fits(run, Layout(more, "fsdp", True, 1), capacity):
            return f"use {more} GPUs with train.strategy: fsdp, activation_checkpointing: true and micro_batch: 1"
    least = sum(memory(run, Layout(max(parts, gpus), "fsdp", True, 1)).values()) / USABLE
    return f"it needs GPUs with {least / 1e9:.0f} GB at least, or a smaller size"


# ------------------------------------------------------------------------------------------------------------- table


@dataclass(frozen=True)
class Machine:
    """GPUs as you state them: how many, FLOP/s each (dense bfloat16), bytes each, and the share of FLOP/s achieved."""

    gpus: int
    rate: float
    capacity: float
    mfu: float


def representatives(chosen: params.Params) -> list[tuple[RunConfig, int]]:
    """One run for each size and variant, and how many there are: gamma and seed change no cost."""
    alike: dict[tuple[str, str], list[str]] = {}
    for run in chosen.runs:
        name = params.RunName.parse(run)
        alike.setdefault((name.size, name.variant), []).append(run)
    return [(resolve.run(chosen, names[0]), len(names)) for names in alike.values()]


def size_columns(run: RunConfig, count: int) -> dict[str, Any]:
    """What does not depend on the machine."""
    counts, flops = count_parameters(run.model), flops_per_token(run.model)
    return {
        "size": run.size,
        "variant": run.variant,
        "runs": count,
        "parameters": counts.total,
        "active": counts.active,
        "without_embeddings": counts.without_embeddings,
        "tokens": run.train.tokens,
        "flops_per_token": flops,
        "flops": flops * run.train.tokens,
    }


def gpu_table(runs: list[tuple[RunConfig, int]], machine: Machine) -> pd.DataFrame:
    """One row a size and variant: size, FLOPs, bytes on one GPU in four layouts, days, whether it fits as configured.

    Columns: those of `size_columns`; ddp, ddp_checkpointing, fsdp, fsdp_checkpointing (bytes); days (of one run);
    all_days (of all its runs); fits.
    """
    rows = []
    for run, count in runs:
        row = size_columns(run, count)
        for strategy in ("ddp", "fsdp"):
            for checkpointing, ending in ((False, ""), (True, "_checkpointing")):
                layout = Layout(machine.gpus, strategy, checkpointing, run.train.micro_batch)
                row[strategy + ending] = sum(memory(run, layout).values())
        work = row["flops"] * (RECOMPUTE if run.train.activation_checkpointing else 1)
        row["days"] = work / (machine.gpus * machine.rate * machine.mfu) / DAY
        row["all_days"] = row["days"] * count
        rows.append(row | {"fits": fits(run, layout_of(run, machine.gpus), machine.capacity)})
    return pd.DataFrame(rows)


def refusals(runs: list[tuple[RunConfig, int]], machine: Machine) -> list[str]:
    """A line for each size and variant that cannot run as configured: why, and what to change."""
    lines = []
    for run, _ in runs:
        name, layout = f"{run.size}-*-{run.variant}", layout_of(run, machine.gpus)
        parts = run.batch_size // run.train.micro_batch
        if parts % machine.gpus:
            lines.append(
                f"{name}: a step has {parts} micro batches, which {machine.gpus} GPUs cannot share evenly: "
                "change train.micro_batch, train.batch_tokens or the number of GPUs"
            )
        if not fits(run, layout, machine.capacity):
            needs = sum(memory(run, layout).values())
            lines.append(
                f"{name}: needs {needs / 1e9:.0f} GB on each GPU as configured, {USABLE * machine.capacity / 1e9:.0f} "
                f"of {machine.capacity / 1e9:.0f} GB are usable: {advice(run, machine.gpus, machine.capacity)}"
            )
    return lines


def measured_rate() -> float | None:
    """FLOP/s of our training on this machine, one process, as `python -m smallinit bench` measured it; else None."""
    place = paths.RESULTS / "bench" / "bench.csv"
    if not place.exists():
        return None
    from smallinit.bench.case import Shape

    table = pd.read_csv(place)
    ours = table[(table["contestant"] == "ours") & (table["allocator"] == "ours")]["tokens_per_second"].iloc[0]
    return float(ours) * Shape().step_flops() / Shape().step_tokens


def cpu_table(runs: list[tuple[RunConfig, int]], rate: float | None) -> pd.DataFrame:
    """One row a size and variant: those of `size_columns`, and hours of one run and of all at `rate` FLOP/s."""
    rows = [size_columns(run, count) for run, count in runs]
    for row in rows:
        row["hours"] = row["flops"] / rate / 3600 if rate else float("nan")
        row["all_hours"] = row["hours"] * row["runs"]
    return pd.DataFrame(rows)


SHOWN = {  # column -> (its head, what it is divided by, how it is written)
    "parameters": ("parameters M", 1e6, "{:,.2f}"),
    "active": ("active M", 1e6, "{:,.2f}"),
    "without_embeddings": ("no embeddings M", 1e6, "{:,.2f}"),
    "tokens": ("tokens M", 1e6, "{:,.0f}"),
    "flops_per_token": ("GFLOP a token", 1e9, "{:.3g}"),
    "flops": ("FLOP", 1, "{:.2e}"),
    "ddp": ("DDP GB", 1e9, "{:.1f}"),
    "ddp_checkpointing": ("recomputing", 1e9, "{:.1f}"),
    "fsdp": ("FSDP2 GB", 1e9, "{:.1f}"),
    "fsdp_checkpointing": ("recomputing", 1e9, "{:.1f}"),
    "days": ("days a run", 1, "{:.2f}"),
    "all_days": ("days", 1, "{:.2f}"),
    "hours": ("hours a run", 1, "{:.2f}"),
    "all_hours": ("hours", 1, "{:.2f}"),
}


def readable(table: pd.DataFrame) -> str:
    """A table as text, in the units that its heads name; columns without a value are left out."""
    shown = table.dropna(axis="columns", how="all")
    heads = [SHOWN[name][0] if name in SHOWN else name for name in shown]
    texts = {name: (shown[name] / SHOWN[name][1]).map(SHOWN[name][2].format) for name in shown if name in SHOWN}
    return shown.assign(**texts).to_string(index=False, header=heads)


# ----------------------------------------------------------------------------------------------------------- command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m smallinit estimate`."""
    parser.add_argument("--profile", help="estimate the runs of profiles/PROFILE.yaml; default: of params.yaml")
    parser.add_argument("--gpus", type=int, default=0, help="how many; without GPUs: hours on this machine's processor")
    parser.add_argument("--tflops", type=float, default=989.0, help="peak of one GPU in dense bfloat16 (H100: 989)")
    parser.add_argument("--memory", type=float, default=80.0, help="of one GPU, in GB")
    parser.add_argument("--mfu", type=float, default=0.4, help="share of the peak that training reaches")


def main(options: argparse.Namespace) -> str:
    """The table as text.

    Raises:
        ConfigError: an option is out of range, or runs cannot fit; then the table has been printed already.
    """
    runs = representatives(params.load(profile=options.profile))
    if options.gpus < 0 or min(options.tflops, options.memory) <= 0 or not 0 < options.mfu <= 1:
        raise ConfigError("--gpus must be 0 or more, --tflops and --memory above 0, --mfu above 0 and at most 1")
    if not options.gpus:
        rate = measured_rate()
        table = cpu_table(runs, rate)
        if rate is None:
            return f"{readable(table)}\nhours on this machine are unknown: measure its speed with `make bench`"
        hours = f"together {table['all_hours'].sum():.1f}"
        return f"{readable(table)}\nhours of one process at {rate / 1e9:.0f} GFLOP/s, as measured here; {hours}"
    machine = Machine(options.gpus, options.tflops * 1e12, options.memory * 1e9, options.mfu)
    table = gpu_table(runs, machine)
    text = (
        f"{readable(table)}\nGB on each of {machine.gpus} GPUs; days on all of them at {options.mfu:.0%} of "
        f"{options.tflops:g} TFLOP/s, together {table['all_days'].sum():.1f}"
    )
    if problems := refusals(runs, machine):
        print(text)
        raise ConfigError("\n".join(["these runs cannot be trained so:", *problems]))
    return text
