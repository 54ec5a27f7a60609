"""The machine a run used: what it can do, and a record of it beside the results."""

import platform
import shutil
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch


def has_bfloat16(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 run in hardware here (otherwise they are emulated, and slow)."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("bf16"))


def resolve_precision(
    wanted: Literal["auto", "bfloat16", "float32"], device: torch.device
) -> Literal["bfloat16", "float32"]:
    """`auto` becomes bfloat16 where the hardware has it; anything else is taken at its word."""
    if wanted != "auto":
        return wanted
    return "bfloat16" if has_bfloat16(device) else "float32"


def device(wanted: Literal["auto", "cpu", "cuda"], local_rank: int = 0) -> torch.device:
    """`auto` becomes a GPU if there is one; several processes on one machine take one GPU each.

    Raises:
        RuntimeError: a GPU is wanted and there is none.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("train.device = 'cuda', but PyTorch sees no GPU here; use 'auto' or 'cpu'")
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def can_compile(device: torch.device) -> bool:
    """Whether torch.compile has what it needs: a C++ compiler, or on a GPU Triton, which comes with PyTorch."""
    return device.type == "cuda" or any(shutil.which(name) for name in ("c++", "g++", "clang++"))


def cpu_name() -> str:
    """The processor's name, as the kernel tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def provenance(device: torch.device) -> dict[str, Any]:
    """Processor, threads, versions and time: what a reader needs to judge a difference in the last digits."""
    return {
        "cpu": cpu_name(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "numpy", "tokenizers", "datasets", "dvc", "papermill")},
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
