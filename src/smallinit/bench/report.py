"""From seconds to the tables of the benchmark, and from the tables to the text of the README."""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch

from smallinit import machine as this_machine
from smallinit import paths
from smallinit.bench import losses, peers
from smallinit.bench.case import FORMULA, Shape
from smallinit.bench.driver import ALLOCATOR, Worker
from smallinit.config import ConfigError, RunConfig
from smallinit.plots.style import markdown as table

LABELS = {
    "ours": "this repository",
    "ours-eager": "this repository, `compile: false`",
    "hf-trainer": "Transformers `Trainer`",
    "hf-eager": "Transformers Llama, plain loop",
    "hf-compiled": "Transformers Llama, plain loop, `torch.compile`",
    "litgpt-eager": "litgpt `GPT`, plain loop",
    "litgpt-compiled": "litgpt `GPT`, plain loop, `torch.compile`",
}
SHAPE = ["d_model", "n_layers", "seq_len", "vocab_size", "batch_size"]


class BenchFailed(ConfigError):
    """Our own contestant did not run, so that there is nothing to compare."""


def rates(seconds: list[float], work: float) -> tuple[float, float, float]:
    """`work` a second: median, least and most. One value a measurement, `seconds` of one step each."""
    return work / median(seconds), work / max(seconds), work / min(seconds)


def require(workers: list[Worker]) -> None:
    """Raise if a worker that must run had a problem."""
    for worker in workers:
        if worker.problem:
            raise BenchFailed(f"bench: contestant {worker.case.contestant!r} did not run: {worker.problem}")


def ceilings(workers: list[Worker], shape: Shape) -> dict[str, float]:
    """GFLOP/s of plain matrix products, by kind and precision, for instance `square bfloat16`."""
    require(workers)
    found = {}
    for worker in workers:
        products = 6 * shape.step_tokens * sum(rows * columns for rows, columns in shape.matrices())
        flops = 2 * worker.case.square**3 if worker.case.contestant == "square" else products
        found[f"{worker.case.contestant} {worker.case.run.train.precision}"] = rates(worker.seconds, flops)[0] / 1e9
    return found


def comparison(workers: list[Worker], shape: Shape, ceiling: dict[str, float]) -> pd.DataFrame:
    """One row a contestant and allocator setting; a contestant that did not run has its reason as `problem`."""
    require([worker for worker in workers if worker.case.contestant == "ours"])
    rows: list[dict[str, Any]] = []
    for worker in workers:
        row: dict[str, Any] = {
            "contestant": worker.case.contestant,
            "allocator": "ours" if worker.tuned else "system",
            "problem": worker.problem,
        }
        if not worker.problem and worker.peak_bytes:
            speed, least, most = rates(worker.seconds, shape.step_tokens)
            square = ceiling[f"square {worker.case.run.train.precision}"]
            row |= {
                "tokens_per_second": speed,
                "tokens_per_second_min": least,
                "tokens_per_second_max": most,
                "share_of_ceiling": speed / shape.step_tokens * shape.step_flops() / 1e9 / square,
                "peak_mib": worker.peak_bytes / 2**20,
                "startup_seconds": worker.startup_seconds,
                "compile_cache": "warm" if worker.tuned else "cold",
                "loss": worker.loss,
            }
        rows.append(row)
    return pd.DataFrame(rows)


def scaling(workers: list[Worker], varied: list[tuple[str, Shape]], ceiling: float) -> pd.DataFrame:
    """Seconds of one step of ours, one row a shape; `ceiling` in GFLOP/s."""
    require(workers)
    rows = []
    for worker, (name, shape) in zip(workers, varied, strict=True):
        step = median(worker.seconds)
        rows.append(
            {
                "varied": name,
                **{key: getattr(shape, key) for key in SHAPE},
                "seconds_per_step": step,
                "seconds_per_step_min": min(worker.seconds),
                "seconds_per_step_max": max(worker.seconds),
                "tokens_per_second": shape.step_tokens / step,
                "share_of_ceiling": shape.step_flops() / step / 1e9 / ceiling,
            }
        )
    return pd.DataFrame(rows)


def threads(teams: dict[str, list[Worker]], shape: Shape) -> pd.DataFrame:
    """Tokens a second of all runs of a team together."""
    rows = []
    for name, team in teams.items():
        require(team)
        together = [max(seconds) for seconds in zip(*(worker.seconds for worker in team), strict=True)]
        speed, least, most = rates(together, len(team) * shape.step_tokens)
        row = {"arrangement": name, "tokens_per_second": speed}
        rows.append(row | {"tokens_per_second_min": least, "tokens_per_second_max": most})
    return pd.DataFrame(rows)


def profile(worker: Worker, answer: dict[str, Any]) -> pd.DataFrame:
    """Operators of one step by their own time, those above a thousandth of it."""
    require([worker])
    frame = pd.DataFrame(answer["operators"])
    frame["share"] = frame["milliseconds"] / frame["milliseconds"].sum()
    return frame[frame["share"] >= 1e-3].reset_index(drop=True)


def machine(run: RunConfig, shape: Shape, ceiling: dict[str, float], data: str, with_litgpt: bool) -> dict[str, Any]:
    """What the numbers were measured on and how."""
    record = this_machine.provenance(torch.device("cpu"))
    for name in ("transformers", "accelerate"):
        try:
            record["versions"][name] = version(name)
        except PackageNotFoundError:
            record["versions"][name] = None
    record["versions"]["litgpt"] = peers.LITGPT[0].split("==")[1] if with_litgpt else None
    return record | {
        "threads": run.train.threads,
        "precision": run.train.precision,
        "shape": shape.model_dump() | {"d_ff": shape.d_ff},
        "data": data,
        "allocator": ALLOCATOR,
        "flops_per_step": shape.step_flops(),
        "flops_formula": FORMULA,
        "ceilings_gflops": ceiling,
    }


def markdown(folder: Path | None = None) -> str:
    """The text of the README about speed, from the files in `results/bench`."""
    folder = folder or paths.RESULTS / "bench"
    frame = pd.read_csv(folder / "bench.csv")
    about = json.loads((folder / "bench_machine.json").read_text())
    parts = [
        introduction(about),
        table(compared(frame)),
        verdict(frame),
        "What a step of ours costs when one value changes:\n",
        table(scaled(pd.read_csv(folder / "bench_scaling.csv"))),
        "How to use two cores:\n",
        table(shared(pd.read_csv(folder / "bench_threads.csv"))),
    ]
    for name, text in (("bench_profile", spent), ("bench_losses", losses.text)):  # of options, so perhaps not there
        if (folder / f"{name}.csv").exists():
            parts.append(text(pd.read_csv(folder / f"{name}.csv")))
    return "\n".join(parts)


def introduction(about: dict[str, Any]) -> str:
    """What was measured, where, and what the ceiling is."""
    shape, ceiling = about["shape"], about["ceilings_gflops"]
    square = ceiling[f"square {about['precision']}"]
    versions = ", ".join(f"{k} {about['versions'][k]}" for k in ("torch", "transformers", "accelerate", "litgpt"))
    precision = "bfloat16 autocast" if about["precision"] == "bfloat16" else "float32"
    return (
        f"One optimizer step of the same Llama (d = {shape['d_model']}, L = {shape['n_layers']}, V = "
        f"{shape['vocab_size']}, T = {shape['seq_len']}, {shape['batch_size']} sequences) from the same weights "
        f"on the same batches, {precision}, one thread ({about['cpu']}), all contestants in turn in one run; "
        f"medians, least and most in brackets. Data: {about['data']}. {versions}.\n\n"
        f"Share: of {square:.0f} GFLOP/s, what large square products reach in that precision (those of this model's "
        f"own sizes: {ceiling['shapes ' + about['precision']]:.0f}; square in float32: "
        f"{ceiling['square float32']:.0f}). FLOPs: {about['flops_formula']}. Memory: the process's peak. Start-up: "
        "from the start of the process to the end of its first step, first with an empty and then with a filled "
        "compile cache.\n"
    )


def as_shipped(frame: pd.DataFrame) -> pd.DataFrame:
    """The row that users get: our runs come with our allocator settings, other people's with the system's."""
    own = frame["contestant"].str.startswith("ours")
    return frame[own == (frame["allocator"] == "ours")].set_index("contestant")


def compared(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a contestant, as text; what users get is bold."""
    shipped = as_shipped(frame)
    settings = {name: frame[frame["allocator"] == name].set_index("contestant") for name in ("system", "ours")}
    rows = []
    for name, row in shipped.loc[[name for name in LABELS if name in shipped.index]].iterrows():
        cells = {}
        for setting, values in settings.items():
            text = speeds(values.loc[name])
            cells[setting] = f"**{text}**" if text != "–" and row["allocator"] == setting else text
        startups = [settings[setting].loc[name, "startup_seconds"] for setting in ("system", "ours")]
        rows.append(
            {
                "trainer": LABELS[str(name)],
                "tokens/s, system's allocator": cells["system"],
                "tokens/s, our allocator settings": cells["ours"],
                "share": number(100 * row["share_of_ceiling"], "%"),
                "memory": number(row["peak_mib"], " MiB"),
                "start-up": " / ".join(number(seconds, " s") for seconds in startups),
            }
        )
    return pd.DataFrame(rows)


def speeds(row: pd.Series) -> str:
    """`9,000 (8,800–9,100)`."""
    if pd.isna(row["tokens_per_second"]):
        return "–"
    low, high = row["tokens_per_second_min"], row["tokens_per_second_max"]
    return f"{row['tokens_per_second']:,.0f} ({low:,.0f}–{high:,.0f})"


def number(value: float, unit: str) -> str:
    """A whole number with its unit, or a dash."""
    return "–" if pd.isna(value) else f"{value:,.0f}{unit}"


def verdict(frame: pd.DataFrame) -> str:
    """How much faster ours is, whether all trained the same, and who could not take part."""
    ran = frame[frame["tokens_per_second"].notna()]
    shipped, tuned = as_shipped(ran)["tokens_per_second"], ran[ran["allocator"] == "ours"].set_index("contestant")
    lines = ["Bold: as it ships."]
    peers_shipped, peers_tuned = (
        speed[~speed.index.str.startswith("ours")] for speed in (shipped, tuned["tokens_per_second"])
    )
    if len(peers_shipped) and len(peers_tuned):
        best, best_tuned = str(peers_shipped.idxmax()), str(peers_tuned.idxmax())
        ours = shipped["ours"]
        trainer = (
            f"{ours / shipped['hf-trainer']:.2f} times {LABELS['hf-trainer']}, " if "hf-trainer" in shipped else ""
        )
        lines.append(
            f"Tokens/s of this repository: {trainer}{ours / peers_shipped[best]:.2f} times the best peer as it ships "
            f"({LABELS[best]}), {ours / peers_tuned[best_tuned]:.2f} times the best peer under our allocator settings "
            f"({LABELS[best_tuned]})."
        )
    low, high = ran["loss"].min(), ran["loss"].max()
    lines.append(f"After the same steps the losses of all lie between {low:.3f} and {high:.3f} nats.")
    for name, reason in frame.dropna(subset="problem").groupby("contestant")["problem"].first().items():
        lines.append(f"{LABELS[str(name)]}: {reason}.")
    return "\n".join(lines) + "\n"


def scaled(frame: pd.DataFrame) -> pd.DataFrame:
    """The scaling table as text."""
    names = {"d_model": "d", "n_layers": "L", "seq_len": "T", "vocab_size": "V", "batch_size": "sequences"}
    shown = frame[SHAPE].rename(columns=names)
    shown["seconds a step"] = frame["seconds_per_step"].map("{:.3f}".format)
    shown["tokens/s"] = frame["tokens_per_second"].map("{:,.0f}".format)
    shown["share"] = frame["share_of_ceiling"].map("{:.0%}".format)
    return shown


def shared(frame: pd.DataFrame) -> pd.DataFrame:
    """The thread table as text."""
    return pd.DataFrame({"arrangement": frame["arrangement"], "tokens/s, all runs": frame.apply(speeds, axis=1)})


def spent(frame: pd.DataFrame) -> str:
    """Where a step goes, in a sentence: what is left of the ceiling lies between the products."""
    operator = frame["operator"]
    parts = {
        "matrix products": operator.isin(["aten::mm", "aten::bmm", "aten::addmm"]),
        "fused elementwise kernels": operator.str.startswith("graph_"),
        "the optimizer": operator.str.contains("adamw"),
    }
    shares = {name: frame.loc[chosen, "share"].sum() for name, chosen in parts.items()}
    shown = ", ".join(
        f"{name} {share:.1%}" for name, share in (shares | {"the rest": 1 - sum(shares.values())}).items()
    )
    return f"Where a step of ours goes, under the profiler: {shown}.\n"


def profile_markdown(frame: pd.DataFrame) -> str:
    """The 25 most expensive operators of one step."""
    shown = frame.head(25).copy()
    shown["milliseconds"] = shown["milliseconds"].map("{:.2f}".format)
    shown["share"] = shown["share"].map("{:.1%}".format)
    return table(shown)
