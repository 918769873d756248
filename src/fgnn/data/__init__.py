"""Data sets: generated families of graphical models with exact labels, generated scans, and published point clouds."""

from fgnn.data.chain import ChainMAP
from fgnn.data.generated import GeneratedModels
from fgnn.data.grid import GridMAP
from fgnn.data.scenes import make_room, make_shapes, make_terrain
from fgnn.data.stored import StoredModels, load_models

__all__ = [
    "ChainMAP",
    "GeneratedModels",
    "GridMAP",
    "StoredModels",
    "load_models",
    "make_room",
    "make_shapes",
    "make_terrain",
]
