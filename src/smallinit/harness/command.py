"""Any task of lm-eval on a trained run.

    python -m smallinit harness s-1.0-both --tasks local_hellaswag,local_lambada
    python -m smallinit harness s-1.0-both --tasks arc_easy --limit 100 --output arc.json

Tasks called `local_...` are our own items and need no network, the others are lm-eval's and load their data from the
Hugging Face hub. The path of a YAML file in lm-eval's format names a task as well.
"""

import argparse
import logging
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tokenizers import Tokenizer

from smallinit.config import ConfigError
from smallinit.evaluation.benchmarks.items import ItemsError
from smallinit.evaluation.heldout import load_model
from smallinit.evaluation.scoring import Scorer
from smallinit.export import read_run, tokenizer_file
from smallinit.files import write_json
from smallinit.plots.style import markdown

VERSION = "0.4.13"  # of lm-eval, as in environment.yml
BOOTSTRAP = 1000  # resamples for the standard errors that have no formula
COLUMNS = ["task", "items", "metric", "value", "stderr", "chance"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `python -m smallinit harness`."""
    parser.add_argument("run", help="a trained run, for instance m-1.0-both")
    parser.add_argument(
        "--tasks", required=True, help="names or YAML files, with commas between them; local_...: our own items"
    )
    parser.add_argument("--limit", type=int, help="only the first so many items of each task")
    parser.add_argument("--output", type=Path, help="write the table to this JSON file as well")
    parser.add_argument("--micro-batch", type=int, default=16, help="windows scored at a time (default 16)")
    parser.add_argument("--threads", type=int, default=1, help="of the processor (default 1)")


def main(options: argparse.Namespace) -> str:
    """Evaluate and return the table."""
    torch.set_num_threads(options.threads)
    config, _ = read_run(options.run)
    scorer = Scorer(load_model(config), Tokenizer.from_file(str(tokenizer_file(config))), options.micro_batch)
    table = evaluate(scorer, options.tasks.split(","), options.limit)
    if options.output:
        write_json(options.output, {"run": options.run, "limit": options.limit, "tasks": table.to_dict("records")})
    return markdown(table)


def evaluate(scorer: Scorer, names: list[str], limit: int | None = None) -> pd.DataFrame:
    """One row a task and metric, columns COLUMNS; lm-eval computes values and standard errors.

    Args:
        scorer: the model.
        names: of tasks and groups, our own and lm-eval's; or paths of YAML files in lm-eval's format.
        limit: only the first so many items of each task.

    Raises:
        ConfigError: lm-eval is not there, a task is unknown or not possible, or its data cannot be had.
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager

        from smallinit.harness import tasks
        from smallinit.harness.adapter import CheckpointLM
    except ImportError as error:
        raise ConfigError(f"`harness` needs lm-eval: pip install lm-eval=={VERSION} ({error})") from None
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    own = tasks.available()
    files = [name for name in names if name.endswith(".yaml") and Path(name).is_file()]
    theirs = any(not name.startswith(tasks.PREFIX) and name not in files for name in names)
    manager = TaskManager(include_defaults=theirs)  # to read lm-eval's thousands of tasks takes seconds
    if wrong := set(names) - {*own, *files, *manager.all_tasks}:
        ours = ", ".join(own) or "none before `dvc repro items`"
        raise ConfigError(
            f"--tasks: {', '.join(sorted(wrong))}: unknown. Our own: {ours}; all of lm-eval's: `lm-eval ls tasks`; or "
            "the path of a YAML file"
        )
    try:
        specs = [tasks.local(name) if name in own else name for name in names]
        results = simple_evaluate(
            CheckpointLM(scorer), tasks=specs, limit=limit, task_manager=manager, bootstrap_iters=BOOTSTRAP
        )
    except (ItemsError, ValueError) as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(
            f"--tasks: data of {', '.join(names)} did not arrive from the Hugging Face hub; is there a network? Tasks "
            f"that begin with {tasks.PREFIX} need none ({error})"
        ) from None
    return pd.DataFrame([row for name in results["results"] for row in rows(name, results)], columns=COLUMNS)


def rows(name: str, results: dict[str, Any]) -> list[dict[str, Any]]:
    """The metrics of one task in lm-eval's results."""
    found, level = results["results"][name], chance(name, results)
    items = results["n-samples"].get(name, {}).get("effective")
    table = []
    for key, value in found.items():
        metric, _, filtered = key.partition(",")
        if not filtered or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        error = found.get(f"{metric}_stderr,{filtered}")
        label = metric if filtered == "none" else f"{metric} ({filtered})"
        row = {"task": name, "items": items, "metric": label, "value": float(value)}
        row["stderr"] = error if isinstance(error, float) else None
        table.append(row | {"chance": level if metric.startswith("acc") else None})
    return table


def chance(name: str, results: dict[str, Any]) -> float | None:
    """The accuracy of guessing: the mean of 1 / choices; None where nothing is chosen."""
    if results["configs"].get(name, {}).get("output_type") != "multiple_choice":
        return None
    choices = [len(sample["arguments"]) for sample in results["samples"][name]]
    return sum(1 / count for count in choices) / len(choices)
