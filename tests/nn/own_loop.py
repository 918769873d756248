"""A loop of one's own in two processes; a separate module, because each process imports it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import fgnn
from fgnn.nn import FGNNLayer, GraphHead
from tests.nn.graphs import features, ragged_graph, uniform_graph

WIDTHS = {"pair": 3, "triple": 3, "any": 3}


class Energy(nn.Module):
    """A layer and a graph-level head."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = FGNNLayer(2, WIDTHS, WIDTHS, out=8, aggregate="sum")
        self.head = GraphHead(8, 1, hidden=(8,))

    def forward(self, batch: fgnn.Data) -> Tensor:
        f, _ = self.layer(*batch.inputs)
        energy: Tensor = self.head(batch.graph, f).squeeze(-1)
        return energy


def samples() -> list[fgnn.Data]:
    """Eight molecules of two structures, as it were; both processes draw the same."""
    made = []
    for k in range(8):
        graph = (uniform_graph, ragged_graph)[k // 2 % 2]()
        widths = {name: WIDTHS[name] for name in graph.groups}
        f, gs, edges = features(graph, 2, widths, widths, seed=k, dtype=torch.float32)
        made.append(fgnn.Data(graph, f, gs, edges, y=float(k) / 8))
    return made


def train(net: nn.Module, loader: DataLoader[fgnn.Data], epochs: int) -> None:
    """Plain steps of gradient descent on the mean squared error."""
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(epochs):
        for batch in loader:
            loss = nn.functional.mse_loss(net(batch), batch.y)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()


def one_process(rank: int, folder: str, compiled: bool) -> None:
    """Rank ``rank`` of two; rank 0 writes the parameters."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    torch.manual_seed(0)
    inside = Energy()
    if compiled:
        inside.compile(dynamic=True)
    # A batch may lack a group, whose parameters then get no gradient.
    net = DistributedDataParallel(inside, find_unused_parameters=True)
    data = samples()
    sampler: DistributedSampler[fgnn.Data] = DistributedSampler(data, shuffle=False)  # type: ignore[arg-type]
    train(net, DataLoader(data, batch_size=2, sampler=sampler, collate_fn=fgnn.collate), 2)  # type: ignore[arg-type]
    if rank == 0:
        torch.save(net.module.state_dict(), Path(folder) / "net.pt")
    dist.destroy_process_group()
