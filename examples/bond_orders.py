"""Recover the bond orders of molecules in an SD file by MAP inference under valency budgets.

    python examples/bond_orders.py molecules.sdf.gz --count 100

The model is explained in docs/problems/bond-orders.md.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import fgnn

# Textbook lengths in ångström of single, double and triple bonds.
LENGTHS = {
    "CC": (1.54, 1.34, 1.20),
    "CN": (1.47, 1.29, 1.16),
    "CO": (1.43, 1.21, 1.13),
    "CS": (1.82, 1.60, 1.53),
    "NN": (1.45, 1.25, 1.10),
    "NO": (1.40, 1.21, 1.15),
    "NS": (1.70, 1.52, 1.45),
    "OS": (1.58, 1.43, 1.40),
}
SPREAD = 0.05
VALENCY = {"H": 1, "C": 4, "N": 3, "O": 2}
REWARD = 20.0


@dataclass(frozen=True, eq=False)
class Molecule:
    """Atoms, bonds as pairs of atoms, and the bond orders in the file."""

    elements: list[str]
    xyz: NDArray[np.float64]  # shape: (A, 3)
    bonds: list[tuple[int, int]]
    orders: list[int]

    @property
    def lengths(self) -> list[float]:
        return [float(np.linalg.norm(self.xyz[i] - self.xyz[j])) for i, j in self.bonds]

    def open_valencies(self, orders: list[int]) -> int:
        """The number of atoms whose valency is not filled."""
        total, neighbours = np.zeros((2, len(self.elements)), dtype=int)
        for bond, order in zip(self.bonds, orders, strict=True):
            total[list(bond)] += order
            neighbours[list(bond)] += 1
        expected = [valency(e, int(n)) for e, n in zip(self.elements, neighbours, strict=True)]
        return int((total != expected).sum())


def read_sdf(path: str | Path) -> Iterator[Molecule]:
    """Read the molecules of an SD file (V2000), plain or compressed."""
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        entries = file.read().split("$$$$\n")
    for entry in entries:
        lines = entry.splitlines()
        if len(lines) < 4:
            continue
        atoms, bonds = int(lines[3][:3]), int(lines[3][3:6])
        rows = lines[4 : 4 + atoms]
        links = [[int(line[at : at + 3]) for at in (0, 3, 6)] for line in lines[4 + atoms : 4 + atoms + bonds]]
        yield Molecule(
            elements=[row[31:34].strip() for row in rows],
            xyz=np.array([[float(row[at : at + 10]) for at in (0, 10, 20)] for row in rows]),
            bonds=[(i - 1, j - 1) for i, j, _ in links],
            orders=[order for _, _, order in links],
        )


def valency(element: str, neighbours: int) -> int:
    """The sum of an atom's bond orders; two, four or six for sulphur, depending on its neighbours."""
    return {3: 4, 4: 6}.get(neighbours, 2) if element == "S" else VALENCY[element]


def bond_model(elements: list[str], bonds: list[tuple[int, int]], lengths: list[float]) -> fgnn.GraphicalModel:
    """Build a model with two variables ("at least double", "triple") and a table per bond, and a budget per atom."""
    model = fgnn.GraphicalModel([2, 2] * len(bonds))
    around: dict[int, list[int]] = {}
    for b, ((i, j), length) in enumerate(zip(bonds, lengths, strict=True)):
        usual = LENGTHS.get("".join(sorted(elements[i] + elements[j])))
        scores = [0.0, -np.inf, -np.inf]
        if usual is not None:
            scores = [-0.5 * ((length - u) / SPREAD) ** 2 for u in usual]
        table = [[scores[0], -np.inf], [scores[1] + REWARD, scores[2] + 2 * REWARD]]
        model.add_table((2 * b, 2 * b + 1), table)
        for atom in (i, j):
            around.setdefault(atom, []).extend((2 * b, 2 * b + 1))
    for atom, variables in around.items():
        neighbours = len(variables) // 2
        model.add_budget(variables, at_most=max(0, valency(elements[atom], neighbours) - neighbours))
    return model


@dataclass
class Tally:
    """Counts of molecules; ``complete`` are those with no open valency in the file."""

    molecules: int = 0
    proved: int = 0
    complete: int = 0
    equal: int = 0
    filled: int = 0
    mended: int = 0


def compare(molecules: Iterator[Molecule], count: int | None = None) -> Tally:
    """Recover the bond orders of each molecule and compare them with the file's."""
    tally = Tally()
    for molecule in molecules:
        if count is not None and tally.molecules == count:
            break
        solution = fgnn.solve(bond_model(molecule.elements, molecule.bonds, molecule.lengths))
        orders = (1 + solution.assignment.reshape(-1, 2).sum(1)).tolist()
        complete = molecule.open_valencies(molecule.orders) == 0
        filled = molecule.open_valencies(orders) == 0
        tally.molecules += 1
        tally.proved += solution.status == "optimal"
        tally.complete += complete
        tally.equal += complete and orders == molecule.orders
        tally.filled += filled
        tally.mended += filled and not complete
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path, help="an SD file, plain or .gz, with hydrogens and coordinates")
    parser.add_argument("--count", type=int, help="use only the first COUNT molecules")
    arguments = parser.parse_args()
    t = compare(read_sdf(arguments.file), arguments.count)
    print(f"{t.molecules} molecules, {t.proved} proved optimal")
    print(f"{t.complete} have no open valency in the file; {t.equal} of them get the same orders")
    print(f"{t.molecules - t.complete} have open valencies in the file; {t.mended} of them get none")


if __name__ == "__main__":
    main()
