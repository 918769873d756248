"""Data sets: generated families of graphical models with exact labels, generated scans, and published point clouds."""

from fgnn.data.chain import ChainMAP
from fgnn.data.generated import GeneratedModels
from fgnn.data.grid import GridMAP
from fgnn.data.s3dis import BlockSet, Room, load_blocks, load_room
from fgnn.data.scenes import make_room, make_shapes, make_terrain
from fgnn.data.shapenet import Shapes, load_shapenet_part
from fgnn.data.stored import StoredModels, load_models

__all__ = [
    "BlockSet",
    "ChainMAP",
    "GeneratedModels",
    "GridMAP",
    "Room",
    "Shapes",
    "StoredModels",
    "load_blocks",
    "load_models",
    "load_room",
    "load_shapenet_part",
    "make_room",
    "make_shapes",
    "make_terrain",
]
