"""What the benchmark trains, made from `params.yaml` and from the project's tokens if they are there."""

from pathlib import Path

import numpy as np
import torch

from smallinit import machine, params, paths, resolve
from smallinit.batches import Tokens, windows
from smallinit.bench.case import Shape
from smallinit.config import RunConfig
from smallinit.files import write_json

HEAD_DIM = 32


def run_config(shape: Shape, tokens: Tokens, threads: int = 1) -> RunConfig:
    """A run of `params.yaml` at another shape, ungated, at a constant learning rate, as long as the corpus is.

    Constant, so that every contestant can follow it exactly; what is not named here is as users train.

    Raises:
        ConfigError: `params.yaml` cannot be used.
    """
    project = params.load()
    values = resolve.run(project, project.runs[0]).model_dump()
    values["run"] = f"bench-d{shape.d_model}-L{shape.n_layers}-T{shape.seq_len}-V{shape.vocab_size}-B{shape.batch_size}"
    heads = shape.d_model // HEAD_DIM
    values["model"] |= shape.model_dump(exclude={"batch_size"})
    values["model"] |= {"n_heads": heads, "n_kv_heads": heads, "d_ff": shape.d_ff, "norm_eps": 1e-5, "gate": "none"}
    values["model"] |= {"norm": "rmsnorm", "mlp": "swiglu", "tied_head": False, "moe": None}
    values["init"] = {"overrides": {}, "residual_scaling": False, "fixed_std": None}
    steps = windows(tokens.train, shape.seq_len) // shape.batch_size
    values["train"] |= {
        **{"tokens": steps * shape.step_tokens, "batch_tokens": shape.step_tokens, "micro_batch": shape.batch_size},
        **{"peak_lr": 1e-3, "warmup_fraction": 0.0, "final_lr_fraction": 1.0, "eval_tokens": shape.step_tokens},
        **{"device": "cpu", "precision": machine.resolve_precision("auto", torch.device("cpu")), "threads": threads},
        **{"compile": True, "processes": 1, "activation_checkpointing": False, "snapshots": False},
    }
    return RunConfig.model_validate(values)


def find_tokens(folder: Path, vocab_size: int) -> tuple[Path, str]:
    """Where the token files are, and what they hold: the project's corpus, else ids made up in `folder`."""
    try:
        tokens = Tokens()
        if tokens.train.max() < vocab_size:
            return paths.TOKENS, "the project's corpus"
    except FileNotFoundError:
        pass
    random = np.random.default_rng(0)
    for name, count in (("train", 2_000_000), ("heldout", 100_000)):
        ids = (vocab_size * random.random(count) ** 3).astype(np.uint16)  # some are frequent, as in text
        (folder / f"{name}.bin").write_bytes(ids.tobytes())
    write_json(folder / "manifest.json", {"vocab_size": vocab_size, "files": {}})
    return folder, "ids made up at random, because data/tokens has none for this vocabulary"
