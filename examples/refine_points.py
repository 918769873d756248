"""Refine the labels of point clouds with a CRF over nearest neighbours, beside the network alone.

    python examples/refine_points.py

A network sees each point's own features. A CRF learns from the same clouds how labels of neighbours go together, by
pseudo-likelihood, because the graph is far too wide for elimination. Every cloud has a graph of its own.
docs/problems/learning.md explains it.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import Tensor, nn

import fgnn

CLASSES = 3  # floor, wall, box
Cloud = tuple[Tensor, Tensor, Tensor]  # positions (P, 3), features (P, 4), labels (P,)


def cloud(points: int, generator: torch.Generator) -> Cloud:
    """A corner of a room with a box in it: positions with noise, and an unreliable normal."""
    label = torch.randint(CLASSES, (points,), generator=generator)
    xyz = torch.rand(points, 3, generator=generator)
    corner = 0.2 + 0.4 * torch.rand(2, generator=generator)
    floor, wall, box = (label == k for k in range(CLASSES))
    xyz[floor, 2] = 0.0
    xyz[wall, 0] = 0.0
    xyz[box] = torch.cat([corner, torch.zeros(1)]) + 0.3 * xyz[box]
    xyz = xyz + 0.01 * torch.randn(xyz.shape, generator=generator)
    normal = torch.zeros(points, 3)
    normal[floor, 2] = normal[wall, 0] = 1.0
    normal[box, 1] = 1.0
    normal = normal + 0.9 * torch.randn(points, 3, generator=generator)
    return xyz, torch.cat([normal, xyz[:, 2:]], 1), label


def neighbour_graph(xyz: Tensor, k: int) -> fgnn.GraphicalModel:
    """A table for every pair of points of which one is among the k nearest of the other."""
    index, _ = fgnn.points.knn(xyz[None], k + 1)
    first = torch.arange(len(xyz))[:, None].expand(-1, k)
    pairs = torch.stack([first, index[0, :, 1:]], 2).view(-1, 2).sort(1).values
    scopes = torch.unique(pairs, dim=0)
    model = fgnn.GraphicalModel([CLASSES] * len(xyz))
    model.add_tables(scopes.tolist(), np.zeros((len(scopes), CLASSES, CLASSES)))
    return model


def train_network(clouds: list[Cloud], steps: int) -> nn.Module:
    network = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
    features, labels = torch.cat([c[1] for c in clouds]), torch.cat([c[2] for c in clouds])
    for _ in range(steps):
        loss = nn.functional.cross_entropy(network(features), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network


def train_crf(graphs: list[fgnn.nn.CRF], clouds: list[Cloud], network: nn.Module, steps: int) -> nn.Parameter:
    """Learn the shared table and how far to trust the network."""
    trust = nn.Parameter(torch.ones(()))
    optimiser = torch.optim.Adam([*graphs[0].parameters(), trust], lr=0.05)
    scores = [network(c[1]).detach() for c in clouds]
    for _ in range(steps):
        total = torch.zeros(())
        for crf, (_, _, label), unary in zip(graphs, clouds, scores, strict=True):
            total = total - crf.pseudo_log_likelihood(label[None], trust * unary[None])[0] / len(label)
        optimiser.zero_grad()
        (total / len(clouds)).backward()
        optimiser.step()
    return trust


def mean_iou(predicted: Tensor, label: Tensor) -> float:
    both = [(predicted == k) & (label == k) for k in range(CLASSES)]
    either = [(predicted == k) | (label == k) for k in range(CLASSES)]
    return 100 * float(np.mean([float(b.sum()) / max(1, int(e.sum())) for b, e in zip(both, either, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clouds", type=int, default=8, help="to train on; as many are held out")
    parser.add_argument("--points", type=int, default=1500)
    parser.add_argument("--neighbours", type=int, default=6)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(options.seed)
    torch.manual_seed(options.seed)
    clouds = [cloud(options.points, generator) for _ in range(2 * options.clouds)]
    train, held_out = clouds[: options.clouds], clouds[options.clouds :]
    start = time.perf_counter()
    network = train_network(train, 5 * options.steps)
    first = fgnn.nn.CRF(neighbour_graph(train[0][0], options.neighbours), method="sum-product", iterations=50)
    graphs = [first] + [first.on(neighbour_graph(c[0], options.neighbours)) for c in train[1:]]
    trust = train_crf(graphs, train, network, options.steps)
    before, after = [], []
    with torch.no_grad():
        for xyz, features, label in held_out:
            scores = network(features)
            crf = first.on(neighbour_graph(xyz, options.neighbours))
            beliefs = torch.stack(crf.marginals(trust * scores[None]).variables, 1)[0]  # shape: (P, K)
            before.append(mean_iou(scores.argmax(1), label))
            after.append(mean_iou(beliefs.argmax(1), label))
    print(f"{options.clouds} clouds of {options.points} points held out, seed {options.seed}")
    print(f"network        mean IoU {np.mean(before):.2f} %")
    print(f"network + CRF  mean IoU {np.mean(after):.2f} %  ({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()
