"""One or several processes: the environment of torchrun, and the collective operations of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fgnn.runtime.devices import pick_device


@dataclass(frozen=True)
class World:
    """This process among those that train together."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Return this rank's share of a global batch; shares are equal, so that the mean of their means is the mean."""
        if count % self.size:
            raise ValueError(f"Expected a batch divisible by the {self.size} processes (got {count})")
        each = count // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of a tensor over the ranks."""
        if self.size == 1:
            return values
        total = values.clone()
        torch.distributed.all_reduce(total)
        return total / self.size

    def agree(self, flag: bool, device: torch.device) -> bool:
        """Return the decision of the first rank on every rank."""
        if self.size == 1:
            return flag
        decision = torch.tensor([float(flag)], device=device)
        torch.distributed.broadcast(decision, 0)
        return bool(decision.item())

    def wrap(self, network: nn.Module, device: torch.device) -> nn.Module:
        """Return the network with gradients averaged over the ranks."""
        if self.size == 1:
            return network
        from torch.nn.parallel import DistributedDataParallel

        if device.type == "cuda":
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        elif any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules()):
            raise ValueError("Expected a network without batch norm for several processes on the CPU (got norm: batch)")
        return DistributedDataParallel(network, device_ids=[device.index] if device.type == "cuda" else None)


@contextmanager
def world(device: str) -> Iterator[tuple[World, torch.device]]:
    """Join the processes that torchrun started (RANK, WORLD_SIZE, LOCAL_RANK), if any, and pick this one's device.

    The backend is nccl on CUDA devices and gloo elsewhere.
    """
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World(), pick_device(device)
        return
    here = World(
        rank=int(os.environ["RANK"]),
        size=int(os.environ["WORLD_SIZE"]),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
    )
    chosen = pick_device(device)
    if chosen.type == "cuda":
        chosen = torch.device("cuda", here.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(chosen)
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    if "TORCHELASTIC_RESTART_COUNT" in os.environ:
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        # torchrun keeps one store over all attempts: without a prefix, an attempt may read the addresses of the last
        # attempt's dead processes and wait for them
        shared, _, _ = next(rendezvous("env://"))
        store = PrefixStore(f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}", shared)
        torch.distributed.init_process_group(backend, store=store, rank=here.rank, world_size=here.size)
    else:
        torch.distributed.init_process_group(backend)
    try:
        yield here, chosen
    finally:
        torch.distributed.destroy_process_group()


def restarted() -> bool:
    """True if torchrun restarted this process after one of its group died; the run then resumes by itself."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
