"""The machine a run used: what it can do, and a record of it beside the results."""

import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch


def has_bfloat16() -> bool:
    """Whether matrix products in bfloat16 run in hardware here (otherwise they are emulated, and slow)."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("bf16"))


def resolve_precision(wanted: Literal["auto", "bfloat16", "float32"]) -> Literal["bfloat16", "float32"]:
    """`auto` becomes bfloat16 where the hardware has it; anything else is taken at its word."""
    if wanted != "auto":
        return wanted
    return "bfloat16" if has_bfloat16() else "float32"


def cpu_name() -> str:
    """The processor's name, as the kernel tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def provenance() -> dict[str, Any]:
    """CPU, threads, versions and time: what a reader needs to judge a difference in the last digits."""
    return {
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "numpy", "tokenizers", "datasets", "dvc", "papermill")},
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
