"""Data sets: generated families of graphical models with exact labels, and point clouds."""

from fgnn.data.chain import ChainMAP
from fgnn.data.generated import GeneratedModels
from fgnn.data.grid import GridMAP
from fgnn.data.stored import StoredModels, load_models

__all__ = ["ChainMAP", "GeneratedModels", "GridMAP", "StoredModels", "load_models"]
