"""The budget of every reader: upper bounds on the memory and the CPU time that reading a file may take.

Reading a file of n bytes takes at most ``free + per_byte · n`` bytes of additional memory, and ``SECONDS`` plus
``SECONDS_PER_MEGABYTE`` for every megabyte. For a compressed file n is its expanded size, which is limited to 64 MiB
for a model and 16 MiB for a cloud or a file of a data set, or to 256 times the file size if that is more. Readers keep
to it by checking declared sizes against the length of the file before they allocate or loop. Tests read large and
hostile files in processes that can map no more than this.
"""

from __future__ import annotations

from dataclasses import dataclass

_MB = 1_000_000
SECONDS = 2.0
SECONDS_PER_MEGABYTE = 2.0


@dataclass(frozen=True)
class Bound:
    """The bound of one reader.

    Attributes:
        what: The kind of file.
        free: Bytes that any input may take: buffers and, if a short file can imply a large table (sparse tables,
            default costs), that table, of at most 2^24 entries by default.
        per_byte: Bytes per byte of the (expanded) input.
        expands: Whether inputs are compressed.
    """

    what: str
    free: int
    per_byte: float
    expands: bool = False

    def of(self, size: int) -> int:
        """The bytes of memory for an input of ``size`` bytes (expanded)."""
        return int(self.free + self.per_byte * size)

    @staticmethod
    def seconds(size: int) -> float:
        """The seconds of CPU time for an input of ``size`` bytes (expanded)."""
        return SECONDS + SECONDS_PER_MEGABYTE * size / _MB


# The memory limit of the process that validates HDF5 files, plus a margin.
_HDF5 = 176 * _MB
# Broken files are rejected within this bound, before a whole model is built.
BROKEN = 200 * _MB

BOUNDS: dict[str, Bound] = {
    "uai": Bound("UAI models", 32 * _MB, 32),
    "evidence": Bound("UAI evidence", 32 * _MB, 64),
    "fg": Bound("libDAI factor graphs", 540 * _MB, 32),
    "bif": Bound("BIF networks", 540 * _MB, 32),
    "wcsp": Bound("toulbar2 .wcsp", 540 * _MB, 48),
    "cfn": Bound("toulbar2 .cfn", 540 * _MB, 32),
    "alist": Bound("codes as lists", 32 * _MB, 400),
    "qc": Bound("codes as blocks", 540 * _MB, 200),
    "dem": Bound("detector error models", 540 * _MB, 400),
    "fgm": Bound("native models", 16 * _MB, 6),
    "gz": Bound("models as .gz", 32 * _MB, 32, expands=True),
    "xz": Bound("models as .xz", 132 * _MB, 32, expands=True),
    "ply": Bound("PLY clouds", 16 * _MB, 16),
    "las": Bound("LAS clouds", 16 * _MB, 8),
    "laz": Bound("LAZ clouds", 64 * _MB, 8, expands=True),
    "pcd": Bound("PCD clouds", 16 * _MB, 32),
    "e57": Bound("E57 clouds", 64 * _MB, 8, expands=True),
    "bin": Bound("KITTI frames", 16 * _MB, 8),
    "txt": Bound("XYZ and TXT clouds", 16 * _MB, 16),
    "csv": Bound("CSV clouds", 16 * _MB, 16),
    "npy": Bound("NPY clouds", 16 * _MB, 8),
    "npz": Bound("NPZ clouds", 16 * _MB, 8, expands=True),
    "blocks": Bound("HDF5 blocks of S3DIS", _HDF5, 4, expands=True),
    "shapes": Bound("HDF5 files of ShapeNet-Part", _HDF5, 4, expands=True),
    "packed": Bound("packed files of ShapeNet-Part", 64 * _MB, 32, expands=True),
    "listed": Bound("lists of shapes", 16 * _MB, 32),
    "shape-text": Bound("shapes as text", 16 * _MB, 16),
    "room": Bound("collected rooms", 16 * _MB, 4),
    "room-text": Bound("rooms of the raw release", 16 * _MB, 32),
    "recipe": Bound("recipes and plans", 32 * _MB, 1000),
    "classes": Bound("classes files", 16 * _MB, 64),
    "weights": Bound("weights", 16 * _MB, 4),
    "card": Bound("cards of weights", 16 * _MB, 32),
    "checkpoint": Bound("checkpoints", 16 * _MB, 4),
    "stored": Bound("stored sets of models", 16 * _MB, 6),
    "tar": Bound("tar files of runs", 16 * _MB, 8),
    "notation": Bound("the notation of networks", 16 * _MB, 300),
    "playground": Bound("requests to the playground", 64 * _MB, 64),
}
