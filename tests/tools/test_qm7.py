"""Molecules as factor graphs: bonds, rings, the split, and one short training run."""

from __future__ import annotations

import io
import tarfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch

from fgnn.errors import InputError
from fgnn.runtime.progress import ProgressBar
from tools.qm7 import NETWORKS, Job, Molecule, make_split, read_molecules, sized, to_sample, train_network


def ring(count: int, element: str, radius: float) -> Molecule:
    """A regular ring with a hydrogen on each atom, as benzene or cyclopropane without the rest."""
    angle = np.arange(count) * 2 * np.pi / count
    circle = np.stack([np.cos(angle), np.sin(angle), 0 * angle], 1)
    return Molecule(
        (element,) * count + ("H",) * count, np.concatenate([radius * circle, (radius + 1.08) * circle]), 5.0
    )


def archive(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:xz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def test_benzene_has_twelve_bonds_and_a_ring_of_six() -> None:
    sample = to_sample(ring(6, "C", 1.39))
    assert sample.graph.groups["bond"].num_factors == 12
    assert [sorted(scope) for scope in sample.graph.groups["ring"].lists()] == [[0, 1, 2, 3, 4, 5]]
    assert sample.gs["ring"].argmax(1).tolist() == [3]  # sizes from 3
    assert sample.f is not None
    assert sample.f[:, 5 + 3].tolist() == [1.0] * 6 + [0.0] * 6


def test_archives_are_read_with_their_energies(tmp_path: Path) -> None:
    water = "3\n\nO 0.0 0.0 0.1\nH 0.0 0.76 -0.48\nH 0.0 -0.76 -0.48\n"
    path = archive(tmp_path / "a.tar.xz", {"q/1.xyz": water, "q/2.xyz": water, "e.txt": "1.xyz -232.1 -230\n"})
    (molecule,) = read_molecules(path)
    assert (molecule.symbols, molecule.energy) == (("O", "H", "H"), -232.1)
    assert to_sample(molecule).graph.groups["bond"].lists() == [[0, 1], [0, 2]]
    assert to_sample(molecule).graph.groups["ring"].num_factors == 0


@pytest.mark.parametrize("files", [{"1.xyz": "1\n\nXe 0 0 0\n", "e.txt": "1.xyz -1\n"}])
def test_bad_archives_are_named(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(InputError, match="Xe"):
        read_molecules(archive(tmp_path / "a.tar", files))
    (tmp_path / "b.tar").write_text("no archive")
    with pytest.raises(InputError, match=r"b\.tar"):
        read_molecules(tmp_path / "b.tar")


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_equal_size_train(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch_geometric")
    samples = [
        to_sample(Molecule(m.symbols, m.positions, k * 1.0)) for k in range(10) for m in [ring(3 + k % 6, "C", 1.4)]
    ]
    split = make_split(samples * 3, seed=0)
    assert (len(split.train), len(split.validation), len(split.test)) == (24, 3, 3)
    monkeypatch.setattr("tools.qm7.ProgressBar", partial(ProgressBar, every=0.0))
    torch.manual_seed(0)
    net = sized(NETWORKS[name], 20_000)
    result = train_network(net, split, epochs=2, batch_size=8, lr=1e-3, seed=0, name=name)
    assert abs(result["parameters"] - 20_000) < 2_000
    assert np.isfinite(result["test"])
    assert f"{name}: epoch 2 of 2" in capsys.readouterr().err


@pytest.mark.slow  # starts a process
def test_a_process_of_its_own_reads_the_samples(tmp_path: Path) -> None:
    samples = [to_sample(ring(3 + k % 6, "C", 1.4)) for k in range(10)]
    torch.save(samples * 3, tmp_path / "samples.pt")
    job = Job("FGNN", 0, str(tmp_path / "samples.pt"), 1, 5_000, 8, 1e-3, "cpu")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert np.isfinite(pool.submit(job).result()["test"])
