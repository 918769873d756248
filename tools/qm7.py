"""Atomisation energies of QM7 molecules, an FGNN beside PyG's NNConv and GINE: `python -m tools.qm7 ARCHIVE`.

Atoms are variables, bonds and rings are factors. All networks read the same features of the same split, have about the
same number of parameters, the same read-out (a sum over atoms) and the same training. The archive is a tar file with
molecules as ``NAME.xyz`` and their energies in a text file of lines ``NAME.xyz ENERGY ...``, in kcal/mol.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor, nn
from torch.utils.data import DataLoader

import fgnn
from fgnn.bench.common import RESULTS, describe, show
from fgnn.errors import InputError, need
from fgnn.files import atomic_write
from fgnn.nn import GraphPool, build, count_parameters
from fgnn.runtime.environment import environment
from fgnn.runtime.progress import ProgressBar

ELEMENTS = {"H": 0.31, "C": 0.76, "N": 0.71, "O": 0.66, "S": 1.05}  # covalent radii in ångström
RINGS = range(3, 9)  # sizes of rings that are factors
_SLACK = 1.3  # atoms closer than this times the sum of their radii are bonded
_CENTRES = torch.linspace(0.8, 2.4, 16)  # of the Gaussians that encode a bond's length, in ångström
_ATOM = len(ELEMENTS) + len(RINGS)


@dataclass(frozen=True)
class Molecule:
    """One molecule: element symbols, positions in ångström (N, 3), and its energy in kcal/mol."""

    symbols: tuple[str, ...]
    positions: np.ndarray
    energy: float


def read_molecules(path: str | Path) -> list[Molecule]:
    """The molecules of an archive that have an energy, by name."""
    try:
        with tarfile.open(path) as archive:
            texts = {m.name: archive.extractfile(m).read().decode() for m in archive if m.isfile()}  # type: ignore[union-attr]
    except (OSError, tarfile.TarError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: Expected a tar file of molecules (got: {error})") from None
    energies: dict[str, float] = {}
    for name, text in texts.items():
        if name.endswith(".txt"):
            energies |= {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line.strip()}
    by_name = {Path(name).name: text for name, text in texts.items() if name.endswith(".xyz")}
    return [_molecule(name, by_name[name], energies[name], path) for name in sorted(by_name) if name in energies]


def _molecule(name: str, text: str, energy: float, path: str | Path) -> Molecule:
    rows = [line.split() for line in text.splitlines()[2:] if line.strip()]
    unknown = {row[0] for row in rows} - set(ELEMENTS)
    if unknown:
        raise InputError(f"{path}: {name}: Expected elements among {list(ELEMENTS)} (got {sorted(unknown)})")
    return Molecule(tuple(row[0] for row in rows), np.array([row[1:4] for row in rows], dtype=np.float64), energy)


def to_sample(molecule: Molecule) -> fgnn.Data:
    """Atoms with element and rings; bonds with their length; rings with their size."""
    x = molecule.positions
    radii = np.array([ELEMENTS[symbol] for symbol in molecule.symbols])
    distance = np.linalg.norm(x[:, None] - x[None], axis=-1)
    bonds = np.argwhere(np.triu(distance < _SLACK * (radii[:, None] + radii[None]), 1))
    nx = need("networkx")
    rings = [r for r in nx.minimum_cycle_basis(nx.Graph(bonds.tolist())) if len(r) in RINGS]
    lengths = torch.from_numpy(distance[bonds[:, 0], bonds[:, 1]]).float()
    encoded = torch.exp(-((lengths[:, None] - _CENTRES) ** 2) / 0.02)
    element = torch.eye(len(ELEMENTS))[[list(ELEMENTS).index(symbol) for symbol in molecule.symbols]]
    in_rings = torch.zeros(len(molecule.symbols), len(RINGS))
    for ring in rings:
        in_rings[ring, len(ring) - RINGS[0]] += 1
    size = torch.eye(len(RINGS))[[len(ring) - RINGS[0] for ring in rings]].view(-1, len(RINGS))
    scopes, offsets = torch.tensor([i for ring in rings for i in ring], dtype=torch.long), [0]
    for ring in rings:
        offsets.append(offsets[-1] + len(ring))
    groups = {
        "bond": fgnn.FactorGroup(torch.from_numpy(bonds)),
        "ring": fgnn.FactorGroup.ragged(scopes, torch.tensor(offsets)),
    }
    graph = fgnn.FactorGraph(len(molecule.symbols), groups)
    edges = {"bond": encoded.repeat_interleave(2, 0)}
    return fgnn.Data(graph, torch.cat([element, in_rings], 1), {"bond": encoded, "ring": size}, edges, molecule.energy)


# ---- networks -----------------------------------------------------------------------------------------------------


class FGNNEnergy(nn.Module):
    """Four FGNN layers from the paper's notation, then a sum over atoms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        block = f"Res[FC({width}) - FGNN({width}) - FC({width})]"
        self.atoms = build(
            f"FGNN({width}) - {block} - {block} - {block} - FC({width}) - FC(1)",
            variable_in=_ATOM, factor_in={"bond": len(_CENTRES), "ring": len(RINGS)},
            edge_in={"bond": len(_CENTRES)}, aggregate="sum", norm="batch", q_options={"bases": 4, "hidden": (16,)},
        )  # fmt: skip
        self.pool = GraphPool("sum")

    def forward(self, batch: fgnn.Data) -> Tensor:
        """The energy of each molecule.  # shape: (G,)"""
        energy: Tensor = self.pool(batch.graph, self.atoms(*batch.inputs)).squeeze(-1)
        return energy


class PyGEnergy(nn.Module):
    """Four layers of PyG on the graph of bonds, with residuals and batch norm, then a sum over atoms."""

    def __init__(self, make: Callable[[int], nn.Module], width: int) -> None:
        super().__init__()
        self.first = nn.Linear(_ATOM, width)
        self.layers = nn.ModuleList(make(width) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(4))
        self.last = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        self.pool = GraphPool("sum")

    def forward(self, batch: fgnn.Data) -> Tensor:
        """The energy of each molecule.  # shape: (G,)"""
        assert batch.f is not None
        bonds = batch.graph.groups["bond"].scopes
        index, attributes = torch.cat([bonds, bonds.flip(1)]).T, batch.gs["bond"].repeat(2, 1)
        x = self.first(batch.f).relu()
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + norm(layer(x, index, attributes)).relu()
        energy: Tensor = self.pool(batch.graph, self.last(x)).squeeze(-1)
        return energy


def nn_conv(width: int) -> nn.Module:
    """PyG's NNConv, whose matrix is an MLP of the bond's length."""
    net = nn.Sequential(nn.Linear(len(_CENTRES), 16), nn.ReLU(), nn.Linear(16, width * width))
    layer: nn.Module = need("torch_geometric.nn").NNConv(width, width, net, aggr="add")
    return layer


def gine(width: int) -> nn.Module:
    """PyG's GINEConv: GIN with edge features."""
    net = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
    layer: nn.Module = need("torch_geometric.nn").GINEConv(net, edge_dim=len(_CENTRES))
    return layer


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "FGNN": FGNNEnergy,
    "NNConv": lambda width: PyGEnergy(nn_conv, width),
    "GINE": lambda width: PyGEnergy(gine, width),
}


def sized(make: Callable[[int], nn.Module], parameters: int) -> nn.Module:
    """The network whose width makes its number of parameters closest to ``parameters``."""
    widths = range(8, 257, 2)
    width = min(widths, key=lambda w: abs(count_parameters(make(w)) - parameters))
    return make(width)


# ---- training -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Samples whose targets are energies less a linear fit on the composition, in units of ``scale`` kcal/mol."""

    train: list[fgnn.Data]
    validation: list[fgnn.Data]
    test: list[fgnn.Data]
    scale: float
    linear_mae: float


def make_split(samples: Sequence[fgnn.Data], seed: int) -> Split:
    """80 / 10 / 10 % at random. The linear fit uses the training samples only."""
    order = np.random.default_rng(seed).permutation(len(samples)).tolist()
    tenth = max(len(samples) // 10, 1)
    counts = torch.stack([sample.f[:, : len(ELEMENTS)].sum(0) for sample in samples]).double()  # type: ignore[index]
    energy = torch.stack([sample.y for sample in samples]).double()
    train, rest = order[2 * tenth :], order[: 2 * tenth]
    inputs = torch.cat([counts, torch.ones(len(samples), 1)], 1)
    fit = torch.linalg.lstsq(inputs[train], energy[train, None], driver="gelsd").solution
    residual = energy - (inputs @ fit).squeeze(1)
    scale = float(residual[train].std())
    targets = (residual / scale).float()
    made = [fgnn.Data(*sample.inputs, targets[k]) for k, sample in enumerate(samples)]
    train_part, validation, test = ([made[k] for k in part] for part in (train, rest[:tenth], rest[tenth:]))
    return Split(train_part, validation, test, scale, float(residual[rest[tenth:]].abs().mean()))


def train_network(
    net: nn.Module,
    split: Split,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    seed: int,
    device: str = "cpu",
    name: str = "",
) -> dict[str, Any]:
    """Train with Adam and a cosine schedule; the error on the test molecules after the best epoch on validation.

    ``name`` begins the lines of progress.
    """
    generator = torch.Generator().manual_seed(seed)
    loader: DataLoader[fgnn.Data] = DataLoader(
        split.train,  # type: ignore[arg-type]
        batch_size,
        shuffle=True,
        generator=generator,
        collate_fn=fgnn.collate,
        drop_last=True,
    )
    net = net.to(device)
    parts = (("validation", split.validation), ("test", split.test))
    held_out = {name: [batch.to(device) for batch in _batches(part)] for name, part in parts}
    optimiser = torch.optim.Adam(net.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, lr, total_steps=max(epochs * len(loader), 1))
    best, started = {"validation": float("inf"), "test": float("inf"), "epoch": 0.0}, time.perf_counter()
    bar = ProgressBar(name, wait=True)
    for epoch in range(1, epochs + 1):
        net.train()
        for samples in loader:
            batch = samples.to(device)
            loss = nn.functional.l1_loss(net(batch), batch.y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        errors = {name: _mae(net, batches) * split.scale for name, batches in held_out.items()}
        if errors["validation"] < best["validation"]:
            best = {**errors, "epoch": epoch}
        left = (time.perf_counter() - started) / epoch * (epochs - epoch)
        bar.update(f"epoch {epoch} of {epochs}, {errors['validation']:.2f} kcal/mol on validation", epoch, epochs, left)
    bar.close()
    return {**best, "seconds": time.perf_counter() - started, "parameters": count_parameters(net)}


def _batches(samples: Sequence[fgnn.Data]) -> list[fgnn.Data]:
    return [fgnn.collate(samples[k : k + 256]) for k in range(0, len(samples), 256)]


@torch.no_grad()
def _mae(net: nn.Module, batches: Sequence[fgnn.Data]) -> float:
    net.eval()
    errors = torch.cat([(net(batch) - batch.y).abs() for batch in batches])
    return float(errors.mean())


@dataclass(frozen=True)
class Job:
    """One training run; ``samples`` is a file of all samples."""

    network: str
    seed: int
    samples: str
    epochs: int
    parameters: int
    batch_size: int
    lr: float
    device: str

    def __call__(self) -> dict[str, Any]:
        """Train; the errors, and that of the linear fit."""
        torch.set_num_threads(1)
        with torch.serialization.safe_globals([fgnn.Data]):  # a new process has not imported it yet
            split = make_split(torch.load(self.samples, weights_only=True), self.seed)
        torch.manual_seed(self.seed)
        net = sized(NETWORKS[self.network], self.parameters)
        name = f"{self.network}, seed {self.seed}"
        row = train_network(
            net, split, epochs=self.epochs, batch_size=self.batch_size, lr=self.lr, seed=self.seed, device=self.device,
            name=name,
        )  # fmt: skip
        print(f"{name}: {row['test']:.2f} kcal/mol on test", flush=True)
        sizes = [len(part) for part in (split.train, split.validation, split.test)]
        return {"network": self.network, "seed": self.seed, **row, "linear": split.linear_mae, "molecules": sizes}


def run(
    archive: Annotated[Path, typer.Argument(help="Tar file with NAME.xyz and a list of energies.")],
    networks: Annotated[str, typer.Option(help="Which networks to train, with commas.")] = ",".join(NETWORKS),
    epochs: Annotated[int, typer.Option(help="Epochs of every network.")] = 20,
    parameters: Annotated[int, typer.Option(help="About how many parameters every network has.")] = 120_000,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat with so many seeds of the split, weights and order.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Train so many networks at a time, each in a process.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="The JSON file to write.")] = RESULTS / "qm7.json",
) -> None:
    """Train every network on the same splits and print the mean absolute errors."""
    unknown = sorted(set(networks.split(",")) - set(NETWORKS))
    if unknown:
        raise InputError(f"--networks: Expected names among {', '.join(NETWORKS)} (got {unknown[0]!r})")
    samples = [to_sample(molecule) for molecule in read_molecules(archive)]
    if len(samples) < 20:
        raise InputError(f"{archive}: Expected at least 20 molecules with energies (got {len(samples)})")
    head = environment(device)
    print(describe(head))
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/samples.pt"
        torch.save(samples, file)
        work = [
            Job(name, seed, file, epochs, parameters, 64, 2e-3, device)
            for seed in range(seeds) for name in networks.split(",")
        ]  # fmt: skip
        if jobs == 1:
            rows = [job() for job in work]
        else:
            with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
                rows = list(pool.map(Job.__call__, work))
    result = {
        "benchmark": "qm7", "environment": head, "epochs": epochs, "lr": work[0].lr, "jobs": jobs,
        "batch_size": work[0].batch_size, "runs": rows,
    }  # fmt: skip
    _print(result)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as stream:
        json.dump(result, stream, indent=2)
        stream.write("\n")


def _print(result: dict[str, Any]) -> None:
    runs = result["runs"]

    def over_seeds(values: list[float]) -> str:
        spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
        return f"{np.mean(values):.2f}{spread}"

    first = {row["seed"]: row["linear"] for row in runs}
    rows: list[tuple[str | None, ...]] = [
        ("linear fit on the composition", None, None, over_seeds([*first.values()]), None)
    ]
    for name in dict.fromkeys(row["network"] for row in runs):
        mine = [row for row in runs if row["network"] == name]
        errors = (over_seeds([row[part] for row in mine]) for part in ("validation", "test"))
        rows.append((name, f"{mine[0]['parameters']:,}", *errors, f"{np.mean([row['seconds'] for row in mine]):.0f}"))
    columns = ("network", "parameters", "validation MAE", "test MAE", "seconds")
    title = f"QM7 atomisation energies in kcal/mol, {result['epochs']} epochs, {len(first)} seeds (± deviation)"
    show(title, columns, rows)


if __name__ == "__main__":
    try:
        typer.run(run)
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
