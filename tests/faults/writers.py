"""Everything the package writes, as functions of a folder; small enough to interrupt hundreds of times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fgnn
from fgnn.data import ChainMAP
from fgnn.data.s3dis import BlockSet, load_blocks, load_room, save_blocks, save_room
from fgnn.data.scenes import make_room, make_terrain
from fgnn.data.stored import load_models
from fgnn.points.cloud import read_cloud, write_cloud
from fgnn.report.html import Page
from fgnn.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fgnn.weights import load_weights, save_weights


def model(variables: int = 40) -> fgnn.GraphicalModel:
    chain = fgnn.GraphicalModel([2] * variables)
    chain.add_unaries(np.random.default_rng(0).normal(size=2 * variables))
    for i in range(variables - 1):
        chain.add_table((i, i + 1), [[0.0, 0.1], [0.2, 1.0]])
    chain.add_budget(range(8), at_most=3)
    return chain


def _tensors(write: Callable[..., Any], name: str, folder: Path) -> None:
    tensors = {"w": torch.arange(2000, dtype=torch.float32)}
    write(folder / name, Checkpoint(tensors, {"state": {}}) if write is save_checkpoint else tensors, *(
        () if write is save_checkpoint else ({"name": "w"},)
    ))  # fmt: skip


def _blocks(folder: Path) -> None:
    features = np.random.default_rng(0).random((3, 64, 9)).astype(np.float32)
    save_blocks(BlockSet(features, np.ones((3, 64), np.uint8), np.array(["Area_1_office_1"] * 3)), folder / "blocks")


def _page(folder: Path) -> None:
    page = Page("A page")
    page.heading("Numbers")
    page.code("x" * 3000)
    page.write(folder / "page.html")


def _page_is_whole(folder: Path) -> None:
    assert (folder / "page.html").read_text(encoding="utf-8").rstrip().endswith("</html>")


# By file name: a function that writes the file, and one that reads it and fails if it is incomplete.
WRITERS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    name: (
        partial(lambda name, folder: fgnn.write_model(model(), folder / name), name),
        partial(lambda name, folder: fgnn.read_model(folder / name), name),
    )
    for name in ("model.uai", "model.fgm", "model.uai.gz", "model.fgm.xz")
}
WRITERS |= {
    name: (
        partial(lambda name, folder: write_cloud(make_terrain(500, seed=0), folder / name), name),
        partial(lambda name, folder: read_cloud(folder / name), name),
    )
    for name in ("scan.ply", "scan.las", "scan.laz", "scan.pcd", "scan.xyz", "scan.npy", "scan.npz")
}
WRITERS |= {
    "weights.safetensors": (
        partial(_tensors, save_weights, "weights.safetensors"),
        lambda folder: load_weights(folder / "weights.safetensors"),
    ),
    "checkpoint.safetensors": (
        partial(_tensors, save_checkpoint, "checkpoint.safetensors"),
        lambda folder: load_checkpoint(folder / "checkpoint.safetensors"),
    ),
    "set/models.safetensors": (
        lambda folder: ChainMAP(kind=1, length=8, window=4).save(folder / "set", 20, seed=0),
        lambda folder: load_models(folder / "set"),
    ),
    "Area_1_office_1.npy": (
        lambda folder: save_room(make_room("Area_1_office_1", seed=0, density=5), folder),
        lambda folder: load_room(folder / "Area_1_office_1.npy"),
    ),
    "blocks/ply_data_all_0.h5": (_blocks, lambda folder: load_blocks(folder / "blocks")),
    "page.html": (_page, _page_is_whole),
}


def main(name: str) -> None:
    """Write one in the current folder; the fork server calls it instead of the command line."""
    WRITERS[name][0](Path.cwd())
