"""One process or many, the same training code: what torchrun starts, shared by DDP or sharded by FSDP2.

With one process nothing here does anything. With several, the micro batches of a step are dealt out in turn and the
gradients added up, so that the numbers are those of one process up to the order of additions.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from smallinit import machine
from smallinit.config import ConfigError, RunConfig

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The processes that train one model together, as one of them sees it."""

    rank: int
    size: int
    device: torch.device

    def share(self, parts: Sequence[T]) -> Sequence[T]:
        """The parts that are this process's to do: every size-th one."""
        return parts[self.rank :: self.size]

    def sum(self, *values: float) -> list[float]:
        """Each value added up over all processes."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def tell(self, value: T) -> T:
        """The value that process 0 has."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


ALONE = World(0, 1, torch.device("cpu"))


@contextlib.contextmanager
def join(run: RunConfig) -> Iterator[World]:
    """The world of this process: alone, or as torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK) says.

    Raises:
        ConfigError: the micro batches of a step cannot be dealt out evenly.
    """
    rank, size, local_rank = (int(os.environ.get(name, 0)) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    device = machine.device(run.train.device, local_rank)
    if size <= 1:
        yield World(0, 1, device)
        return
    parts = run.batch_size // run.train.micro_batch
    if parts % size:
        raise ConfigError(
            f"{parts} micro batches of a step cannot be dealt out to {size} processes: change train.micro_batch"
        )
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(rank, size, device)
    finally:
        dist.destroy_process_group()


def distribute(model: nn.Module, blocks: Iterable[nn.Module], strategy: str, world: World) -> nn.Module:
    """The model as `world` trains it; for FSDP2 each block is a unit, gathered while it computes."""
    if world.size == 1:
        return model
    if strategy == "ddp":
        return DistributedDataParallel(model, device_ids=[world.device.index] if world.device.type == "cuda" else None)
    mesh = init_device_mesh(world.device.type, (world.size,))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def sync_gradients(model: nn.Module, on: bool) -> None:
    """Add up gradients over processes in the next backward pass, or keep them for a later one."""
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = on
    elif isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(on)


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be sharded; every process must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
