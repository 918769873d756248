"""Learn the bond orders of molecules in an SD file: bonds are variables, atoms are factors over their bonds.

    python examples/learn_bond_orders.py molecules.sdf.gz

The task and its results are described in docs/problems/bond-orders.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import fgnn

sys.path.insert(0, str(Path(__file__).parent))
from bond_orders import Molecule, bond_model, read_sdf

ELEMENTS = ("H", "C", "N", "O", "S")
CENTRES = torch.linspace(0.8, 2.0, 25)  # of the Gaussians that encode a bond's length, in ångström
NEIGHBOURS = 5
BOND, ATOM = 2 * len(ELEMENTS) + len(CENTRES), len(ELEMENTS) + NEIGHBOURS


def complete(molecules: Sequence[Molecule]) -> list[Molecule]:
    """Those whose bond orders in the file fill every valency."""
    return [molecule for molecule in molecules if molecule.open_valencies(molecule.orders) == 0]


def blurred(molecule: Molecule, noise: float, rng: np.random.Generator) -> Molecule:
    """The same molecule with an error on every coordinate, as in a structure of lower resolution."""
    xyz = molecule.xyz + noise * rng.normal(size=molecule.xyz.shape)
    return Molecule(molecule.elements, xyz, molecule.bonds, molecule.orders)


def to_sample(molecule: Molecule) -> fgnn.Data:
    """Bonds with their two elements and length, atoms with their element and number of neighbours; y is the order."""
    kind = torch.tensor([ELEMENTS.index(element) for element in molecule.elements])
    ends = kind[torch.tensor(molecule.bonds)].sort(1).values  # a bond has no direction
    lengths = torch.tensor(molecule.lengths)
    one_hot = nn.functional.one_hot(ends, len(ELEMENTS)).flatten(1).float()
    f = torch.cat([one_hot, torch.exp(-((lengths[:, None] - CENTRES) ** 2) / 0.005)], 1)
    around: list[list[int]] = [[] for _ in molecule.elements]
    for b, bond in enumerate(molecule.bonds):
        for atom in bond:
            around[atom].append(b)
    count = torch.tensor([min(len(bonds), NEIGHBOURS - 1) for bonds in around])
    g = torch.cat([nn.functional.one_hot(kind, len(ELEMENTS)), nn.functional.one_hot(count, NEIGHBOURS)], 1).float()
    graph = fgnn.FactorGraph(len(molecule.bonds), {"atom": fgnn.FactorGroup(around)})
    return fgnn.Data(graph, f.float(), {"atom": g}, y=torch.tensor(molecule.orders) - 1)


class Alone(nn.Module):
    """Each bond by itself, from the same features and those of its two atoms."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(BOND + ATOM, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
        )

    def forward(self, graph: fgnn.FactorGraph, f: Tensor, gs: dict[str, Tensor], edges: Any = None) -> Tensor:
        """Scores of the three orders.  # shape: (bonds, 3)"""
        edge = graph.incidence("atom")
        atoms = f.new_zeros(len(f), ATOM).index_add(0, edge.variable, gs["atom"][edge.factor])
        scores: Tensor = self.net(torch.cat([f, atoms], 1))
        return scores


def network() -> nn.Module:
    """Four FGNN layers; sums tell an atom how much its bonds claim together."""
    block = "Res[FC(64) - FGNN(64) - FC(64)]"
    return fgnn.nn.build(
        f"FGNN(64) - {block} - {block} - {block} - FC(64) - FC(3)",
        variable_in=BOND, factor_in={"atom": ATOM}, aggregate="sum", norm="batch",
    )  # fmt: skip


def fit(net: nn.Module, samples: list[fgnn.Data], epochs: int, seed: int) -> nn.Module:
    """Train with Adam and a one-cycle schedule on the cross-entropy of every bond."""
    order = torch.Generator().manual_seed(seed)
    loader: Any = DataLoader(samples, 32, shuffle=True, generator=order, collate_fn=fgnn.collate)  # type: ignore[arg-type]
    optimiser = torch.optim.Adam(net.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=epochs * len(loader))
    for _ in range(epochs):
        for batch in loader:
            loss = nn.functional.cross_entropy(net(*batch.inputs), batch.y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return net.eval()


def shares(molecules: Sequence[Molecule], found: Sequence[Sequence[int]]) -> dict[str, float]:
    """How many bonds between heavy atoms, and how many whole molecules, have the order of the file."""
    bonds = [
        (one, other)
        for molecule, orders in zip(molecules, found, strict=True)
        for (i, j), one, other in zip(molecule.bonds, orders, molecule.orders, strict=True)
        if "H" not in (molecule.elements[i], molecule.elements[j])
    ]
    whole = [list(orders) == list(m.orders) for m, orders in zip(molecules, found, strict=True)]
    filled = [m.open_valencies(list(orders)) == 0 for m, orders in zip(molecules, found, strict=True)]
    return {
        "bonds": sum(one == other for one, other in bonds) / len(bonds),
        "molecules": sum(whole) / len(whole),
        "valencies filled": sum(filled) / len(filled),
    }


def compare(molecules: Sequence[Molecule], *, noise: float, epochs: int, seed: int, copies: int = 4) -> dict[str, Any]:
    """Hold out a fifth of the molecules; the shares of each method on it."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(molecules)).tolist()
    cut = len(molecules) // 5
    test = [blurred(molecules[k], noise, rng) for k in order[:cut]]
    train = [to_sample(blurred(molecules[k], noise, rng)) for k in order[cut:] for _ in range(copies)]
    found: dict[str, Any] = {"train": len(molecules) - cut, "test": cut}
    for name, make in (("each bond alone", Alone), ("FGNN", network)):
        torch.manual_seed(seed)
        net = fit(make(), train, epochs, seed)
        with torch.no_grad():
            scores = [net(*to_sample(molecule).inputs) for molecule in test]
        found[name] = shares(test, [(1 + s.argmax(1)).tolist() for s in scores])
    solutions = [fgnn.solve(bond_model(m.elements, m.bonds, m.lengths)) for m in test]
    found["MAP under budgets"] = shares(test, [(1 + s.assignment.reshape(-1, 2).sum(1)).tolist() for s in solutions])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path, help="an SD file, plain or .gz, with hydrogens and coordinates")
    parser.add_argument("--noise", type=float, default=0.05, help="error of each coordinate in ångström")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of each network")
    parser.add_argument("--seeds", type=int, default=1, help="repeat with so many seeds of split, noise and weights")
    arguments = parser.parse_args()
    molecules = complete(list(read_sdf(arguments.file)))
    how = {"noise": arguments.noise, "epochs": arguments.epochs}
    runs = [compare(molecules, seed=seed, **how) for seed in range(arguments.seeds)]
    print(f"{runs[0]['train']} molecules to train, {runs[0]['test']} to test, {arguments.noise} ångström noise")
    for name in ("each bond alone", "FGNN", "MAP under budgets"):
        means = {what: np.mean([run[name][what] for run in runs]) for what in runs[0][name]}
        print(f"{name:20}", ", ".join(f"{what} {100 * share:.1f} %" for what, share in means.items()))


if __name__ == "__main__":
    main()
