"""The example programs do what the pages say."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fgnn
from tests.docs.pages import DOCS, ROOT, Session, blocks

ACRYLONITRILE = """acrylonitrile
 by hand

  7  6  0  0  0  0  0  0  0  0999 V2000
    0.0000    0.0000    0.0000 C   0  0
    1.3400    0.0000    0.0000 C   0  0
    2.0550    1.2384    0.0000 C   0  0
    2.6350    2.2430    0.0000 N   0  0
   -0.5450    0.9440    0.0000 H   0  0
   -0.5450   -0.9440    0.0000 H   0  0
    1.8850   -0.9440    0.0000 H   0  0
  1  2  2  0
  2  3  1  0
  3  4  3  0
  1  5  1  0
  1  6  1  0
  2  7  1  0
M  END
$$$$
"""


@pytest.fixture(scope="module")
def bond_orders() -> Any:
    return example("bond_orders")


def test_bond_orders_of_a_molecule_written_by_hand(
    bond_orders: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.sdf"
    file.write_text(ACRYLONITRILE)
    (molecule,) = bond_orders.read_sdf(file)
    assert molecule.elements == ["C", "C", "C", "N", "H", "H", "H"]
    assert molecule.open_valencies([1] * 6) == 4
    monkeypatch.setattr(sys, "argv", ["bond_orders.py", str(file)])
    bond_orders.main()
    assert re.findall(r"\d+", capsys.readouterr().out) == ["1", "1", "1", "1", "0", "0"]


def test_the_page_builds_the_same_model_as_the_program(bond_orders: Any, tmp_path: Path) -> None:
    file = tmp_path / "one.sdf"
    file.write_text(ACRYLONITRILE)
    (molecule,) = bond_orders.read_sdf(file)
    session = Session(DOCS / "problems" / "bond-orders.md")
    for block in blocks(session.page)[:2]:
        session.python(block)
    on_page: Any = session.namespace["bond_model"]
    bonds = [(i, j, length) for (i, j), length in zip(molecule.bonds, molecule.lengths, strict=True)]
    assert on_page(molecule.elements, bonds) == bond_orders.bond_model(
        molecule.elements, molecule.bonds, molecule.lengths
    )


def test_molecules_become_samples_whose_atoms_join_their_bonds(bond_orders: Any, tmp_path: Path) -> None:
    learn = example("learn_bond_orders")
    file = tmp_path / "one.sdf"
    file.write_text(ACRYLONITRILE)
    (molecule,) = learn.complete(list(bond_orders.read_sdf(file)))
    sample = learn.to_sample(molecule)
    assert sample.graph.groups["atom"].lists() == [[0, 3, 4], [0, 1, 5], [1, 2], [2], [3], [4], [5]]
    assert sample.y.tolist() == [1, 0, 2, 0, 0, 0]


@pytest.mark.data
def test_bond_orders_of_real_molecules(bond_orders: Any, data_dir: Path) -> None:
    tally = bond_orders.compare(bond_orders.read_sdf(data_dir / "molecules" / "gdb1k_qm7.sdf.gz"), 60)
    assert tally.proved == tally.filled == 60
    assert tally.equal >= tally.complete - 1


@pytest.mark.data
@pytest.mark.slow
def test_the_page_s_figures_on_all_molecules(bond_orders: Any, data_dir: Path) -> None:
    tally = bond_orders.compare(bond_orders.read_sdf(data_dir / "molecules" / "gdb1k_qm7.sdf.gz"))
    assert tally.molecules == tally.proved == tally.filled == 1000
    page = (DOCS / "problems" / "bond-orders.md").read_text(encoding="utf-8")
    section = page[page.index("On 1,000 molecules") : page.index("## Learned")]
    numbers = [int(n.replace(",", "")) for n in re.findall(r"\b\d[\d,]*\b", section.replace("QM7", ""))]
    assert numbers == [1000, 1000 - tally.complete, tally.complete, tally.equal, tally.complete - tally.equal]


def test_the_scan_is_the_generated_one_and_the_grid_is_solved() -> None:
    scan, terrain = fgnn.points.read_cloud(ROOT / "examples" / "scan.ply"), fgnn.data.make_terrain(points=3000, seed=1)
    assert np.array_equal(scan.xyz, terrain.xyz)
    grid = fgnn.read_model(ROOT / "examples" / "grid.uai")
    assert grid.num_variables == 64
    assert fgnn.solve(grid).status == "optimal"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("tag_sequences", [], marks=pytest.mark.slow),
        ("refine_points", ["--clouds", "2", "--points", "300", "--steps", "30"]),
    ],
)
def test_a_crf_improves_on_its_network(
    name: str, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = example(name)
    monkeypatch.setattr(sys, "argv", [name, *options])
    module.main()
    network, crf = (
        [float(v) for v in re.findall(r"[\d.]+(?= %)", line)]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("network")
    )
    assert all(ours > theirs for ours, theirs in zip(crf, network, strict=True))


def test_sudoku_data_obey_the_rules_and_puzzles_have_one_solution() -> None:
    pytest.importorskip("numba")
    module = example("learn_sudoku")
    rng = np.random.default_rng(0)
    solved = module.solved_grids(3, rng)
    for grid in solved.reshape(3, 9, 9):
        boxes = grid.reshape(3, 3, 3, 3).swapaxes(1, 2).reshape(9, 9)
        for lines in (grid, grid.T, boxes):
            assert (np.sort(lines, 1) == np.arange(9)).all()
    # Not one grid with other digits: the cells that hold the first cell's digit differ.
    assert len({tuple(np.flatnonzero(grid == grid[0])) for grid in solved}) == 3
    questions = module.puzzles(solved, rng)
    assert ((questions == solved) | (questions < 0)).all()
    assert (questions >= 0).sum(1).max() < 40
    assert all(module._fill(q, rng, limit=2)[0] == 1 for q in questions)


def test_all_puzzles_are_solved_in_one_batch() -> None:
    pytest.importorskip("numba")
    pytest.importorskip("pytoulbar2")
    module = example("learn_sudoku")
    rng = np.random.default_rng(1)
    solved = module.solved_grids(3, rng)
    model = fgnn.GraphicalModel([9] * 81)
    for i, j in module.PAIRS:
        if i // 9 == j // 9 or i % 9 == j % 9 or (i // 27, i % 9 // 3) == (j // 27, j % 9 // 3):
            model.add_table((i, j), np.where(np.eye(9) > 0, -np.inf, 0.0))
    np.testing.assert_array_equal(module.solve(model, module.puzzles(solved, rng)), solved)


@pytest.mark.slow
def test_sudoku_is_learned_from_a_thousand_grids(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("numba")
    module = example("learn_sudoku")
    monkeypatch.setattr(sys, "argv", ["learn_sudoku", "--puzzles", "50"])
    module.main()
    assert "solved 50 of 50" in capsys.readouterr().out
