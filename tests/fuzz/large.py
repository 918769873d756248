"""Inputs that need memory: valid ones of a megabyte or more, and hostile ones that declare or expand to far more."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fgnn import GraphicalModel, write_model
from tests.fuzz import seeds
from tests.pgm.io.samples import CFN, FG, UAI, WCSP

_RNG = np.random.default_rng(0)
_COUNT = 20_000


def _numbers(count: int) -> list[str]:
    return [f"{v:.6g}" for v in _RNG.random(count).tolist()]


def _uai() -> bytes:
    scopes = "".join(f"2 {i} {i + 1}\n" for i in range(_COUNT))
    four = _numbers(4 * _COUNT)
    tables = "".join("4\n " + " ".join(four[4 * c : 4 * c + 4]) + "\n" for c in range(_COUNT))
    return f"MARKOV\n{_COUNT + 1}\n{' '.join(['2'] * (_COUNT + 1))}\n{_COUNT}\n{scopes}{tables}".encode()


def _fg() -> bytes:
    four = _numbers(4 * _COUNT)
    factors = (
        f"\n2\n{i} {i + 1}\n2 2\n4\n" + "".join(f"{k} {four[4 * i + k]}\n" for k in range(4)) for i in range(_COUNT)
    )
    return (f"{_COUNT}\n" + "".join(factors)).encode()


def _alist() -> bytes:
    from fgnn.decoding.regular import alist, regular_code

    return alist(regular_code(600, 3, 6)).encode()


def _bif() -> bytes:
    count = _COUNT // 2
    names = "".join(f"variable v{i} {{ type discrete [ 2 ] {{ a, b }}; }}\n" for i in range(count))
    rows = "".join(
        f"probability ( v{i} | v{i - 1} ) {{\n (a) 0.25, 0.75;\n (b) 0.5, 0.5;\n}}\n" for i in range(1, count)
    )
    return f"{names}probability ( v0 ) {{ table 0.2, 0.8; }}\n{rows}".encode()


def _wcsp() -> bytes:
    functions = "".join(f"2 {i} {i + 1} 0 2\n0 1 {i % 90}\n1 0 7\n" for i in range(_COUNT))
    return f"large {_COUNT + 1} 2 {_COUNT} 999999999\n{' '.join(['2'] * (_COUNT + 1))}\n{functions}".encode()


def _cfn() -> bytes:
    names = " ".join(f"v{i}: 2" for i in range(_COUNT))
    functions = "\n".join(f"f{i}: {{scope: [v{i} v{i + 1}] costs: [0 1.5 2 {i % 9}]}}" for i in range(_COUNT - 1))
    return f"{{problem: {{name: large mustbe: <1e9}}\nvariables: {{{names}}}\nfunctions: {{{functions}}}}}".encode()


def _written(suffix: str) -> bytes:
    def write(path: Path) -> None:
        model = GraphicalModel([2] * 2000)
        model.add_tables(np.stack([np.arange(1999), np.arange(1, 2000)], 1).repeat(40, 0), _RNG.random((79_960, 2, 2)))
        write_model(model, path)

    return seeds._packed(write, suffix)


def _cloud(suffix: str) -> bytes:
    from fgnn.points.cloud import Cloud, write_cloud

    count = 30_000
    fields = {n: _RNG.integers(0, 256, count).astype(np.uint8) for n in ("red", "green", "blue")}
    cloud = Cloud(np.round(_RNG.uniform(0, 90, (count, 3)), 3), {**fields, "gps": _RNG.random(count)})
    return seeds._packed(lambda path: write_cloud(cloud, path), suffix)


def _pcd(encoding: str) -> bytes:
    rows = np.zeros(60_000, [(a, "<f4") for a in "xyz"] + [("label", "<u2")])
    rows["x"] = _RNG.random(len(rows))
    head = seeds.PCD_HEAD.replace(" 3\n", f" {len(rows)}\n").format(encoding).encode()
    if encoding == "ascii":
        return head + "".join(f"{x:.6g} 0 0 0\n" for x in rows["x"].tolist()).encode()
    if encoding == "binary":
        return head + rows.tobytes()
    import lzf

    columns = b"".join(np.ascontiguousarray(rows[n]).tobytes() for n in rows.dtype.names or ())
    packed = lzf.compress(columns)
    return head + np.array([len(packed), len(columns)], "<u4").tobytes() + packed


def _tensors(kind: str) -> bytes:
    import torch

    from fgnn.weights.store import save_tensors

    return seeds._packed(
        lambda path: save_tensors(path, {"w": torch.rand(1 << 20)}, {"name": "x"}, kind), ".safetensors"
    )


def _tar(members: dict[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _log() -> bytes:
    return b"".join(b'{"step": %d, "agreement": 0.5}\n' % k for k in range(1, 500))


def _many(columns: int, labels: str) -> dict[str, Any]:
    return {"data": _RNG.random((99, 512, columns)).astype(np.float32), labels: np.ones((99, 512), np.uint8)}


_CARD = b'{"recipe": {"batch": 4}}'

# reader, suffix, bytes
VALID: list[tuple[str, str, Callable[[], bytes]]] = [
    ("uai", ".uai", _uai),
    ("fg", ".fg", _fg),
    ("bif", ".bif", _bif),
    ("wcsp", ".wcsp", _wcsp),
    ("cfn", ".cfn", _cfn),
    ("alist", ".alist", _alist),
    ("qc", ".qc", lambda: b"200 100 64\n" + b" ".join(b"%d" % (k % 80 if k % 80 < 64 else -1) for k in range(20_000))),
    ("dem", ".dem", lambda: b"".join(b"error(0.01) D%d D%d L0\n" % (k, k + 1) for k in range(40_000))),
    ("fgm", ".fgm", partial(_written, ".fgm")),
    ("gz", ".uai.gz", lambda: gzip.compress(_uai())),
    ("xz", ".uai.xz", lambda: lzma.compress(_uai(), preset=1)),
    ("evidence", ".evid", lambda: (f"{_COUNT} " + " ".join(f"{i} 1" for i in range(_COUNT))).encode()),
    *((s[1:], s, partial(_cloud, s)) for s in (".ply", ".las", ".laz", ".csv", ".npy", ".npz")),
    ("txt", ".xyz", partial(_cloud, ".xyz")),
    ("bin", ".bin", lambda: _RNG.random((100_000, 4)).astype("<f4").tobytes()),
    ("ply", ".ply", lambda: seeds._ply()[0].split(b"element")[0] + b"element vertex 60000\nproperty float x\nproperty "
     b"float y\nproperty float z\nend_header\n" + b"0.25 0.5 0.75\n" * 60_000),
    *(("pcd", ".pcd", partial(_pcd, e)) for e in ("ascii", "binary", "binary_compressed")),
    ("weights", ".safetensors", partial(_tensors, "fgnn-weights-1")),
    ("checkpoint", ".safetensors", partial(_tensors, "fgnn-checkpoint-1")),
    ("blocks", ".h5", lambda: seeds.hdf5(_many(9, "label"), compression="gzip", chunks=(8, 128, 9))),
    ("shapes", ".h5", lambda: seeds.hdf5(_many(3, "pid") | {"label": np.zeros((99, 1), "u1")})),
    ("packed", ".npz", lambda: seeds._shape_planes(400, 1024)),
    ("listed", ".json", lambda: json.dumps([f"shape_data/02691156/{k:032x}" for k in range(20_000)]).encode()),
    ("shape-text", ".txt", lambda: seeds.SHAPE_TEXT * 20_000),
    ("room", ".npy", lambda: seeds._array(np.save, np.ones((40_000, 7)))),
    ("room-text", ".txt", lambda: b"12.345 1.234 0.123 100 200 50\n" * 40_000),
    ("card", ".json", lambda: json.dumps({f"key {k}": [k, str(k)] for k in range(20_000)}).encode()),
    ("recipe", ".yaml", lambda: b"# a comment\n" * 20_000 + seeds.RECIPE),
    ("classes", ".txt", lambda: "".join(f"class {k}: {k}  # {'-' * 4000}\n" for k in range(255)).encode()),
    ("tar", ".tar", lambda: _tar({"a/a.json": _CARD, "a/metrics.jsonl": _log(), "a/w.bin": bytes(4 << 20)})),
    ("playground", ".json", lambda: b'["/api/solve", ' + json.dumps({"model": _play(19_000)}).encode() + b"]"),
]  # fmt: skip


def _play(entries: int) -> dict[str, Any]:
    variables = [{"states": 2} for _ in range(400)]
    tables = [{"kind": "table", "scope": [k, k + 1], "values": [0.123456, 1, 2, 3]} for k in range(399)] * 5
    return {"variables": variables, "factors": tables}


# ---- hostile ----------------------------------------------------------------------------------------------------


def _bombs() -> Iterator[tuple[str, str, str, Callable[[], bytes]]]:
    gz, xz = partial(gzip.compress, compresslevel=2), partial(lzma.compress, preset=0)
    for what, filler, suffix, pack in (
        ("blanks", b" ", ".gz", gz),
        ("numbers", b"0 ", ".gz", gz),
        ("one word", b"0", ".xz", xz),
        ("brackets", b"{", ".xz", xz),
    ):
        for kind in ("uai", "fg", "bif", "wcsp", "cfn", "fgm"):
            if filler != b"{" or kind in ("bif", "cfn"):
                yield (
                    f"{what} in a {kind}{suffix}",
                    suffix[1:],
                    f".{kind}{suffix}",
                    partial(_expanding, pack, filler),
                )


_PACKED: dict[tuple[str, bytes], bytes] = {}


def _expanding(pack: Callable[[bytes], bytes], filler: bytes) -> bytes:
    key = (str(pack), filler)
    if key not in _PACKED:
        _PACKED[key] = pack(filler * ((66 << 20) // len(filler)))
    return _PACKED[key]


def _zip(name: str, data: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        file.writestr(name, data)
    return buffer.getvalue()


def _npy_header(shape: str, kind: str = "<f8") -> bytes:
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode()


def _laz_bomb() -> bytes:
    import laspy

    def write(path: Path) -> None:
        header = laspy.LasHeader(point_format=0, version="1.2")
        with laspy.open(path, mode="w", header=header, do_compress=True) as out:
            record = laspy.ScaleAwarePointRecord.zeros(1_000_000, header=header)
            for _ in range(5):
                out.write_points(record)

    return seeds._packed(write, ".laz")


def _patched(data: bytes, at: int, form: str, *values: int) -> bytes:
    return data[:at] + struct.pack(form, *values) + data[at + struct.calcsize(form) :]


def _laz_chunks() -> bytes:
    """A LAZ file that declares four billion chunks."""
    data = seeds._las(6, "1.4", ".laz")
    (begin,) = struct.unpack_from("<I", data, 96)
    (table,) = struct.unpack_from("<q", data, begin)
    return _patched(data, table, "<II", 0, 0xFFFFFFFF)


def _laz_layers() -> bytes:
    """A LAZ file with a layer of four gigabytes."""
    data = seeds._las(6, "1.4", ".laz")
    (begin,) = struct.unpack_from("<I", data, 96)
    return _patched(data, begin + 8 + 30 + 4, "<I", 0xFFFFFFF0)


def _pcd_bomb() -> bytes:
    head = seeds.PCD_HEAD.replace(" 3\n", " 9\n").format("binary_compressed").encode()
    return head + struct.pack("<II", 16, 0xFFFFFFFF) + bytes(16)


def _yaml_merges() -> bytes:
    lines = ["l0: &l0 {a: 1, b: 2}"]
    lines += [f"l{k}: &l{k} {{<<: [{', '.join([f'*l{k - 1}'] * 9)}]}}" for k in range(1, 12)]
    return "\n".join(lines).encode()


def _hdf5(**options: Any) -> bytes:
    """Blocks whose features are declared but never written."""
    h5py = pytest.importorskip("h5py")

    def write(path: Path) -> None:
        with h5py.File(path, "w", libver=options.pop("libver", "earliest")) as file:
            file.create_dataset("data", dtype="f4", **options)
            file["label"] = np.zeros(options["shape"][:2] if np.prod(options["shape"]) < 100 else (1, 1), np.uint8)

    return seeds._packed(write, ".h5")


def _hdf5_chunk_bomb() -> bytes:
    """A chunk of 144 bytes that contains a stream of 40 megabytes."""
    h5py = pytest.importorskip("h5py")

    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            dataset = file.create_dataset("data", (1, 4, 9), "f4", chunks=(1, 4, 9), compression="gzip")
            dataset.id.write_direct_chunk((0, 0, 0), zlib.compress(bytes(40_000_000)))
            file["label"] = np.zeros((1, 4), np.uint8)

    return seeds._packed(write, ".h5")


def _hdf5_heap() -> bytes:
    """A heap whose free list is a cycle."""
    data = seeds.seeds("blocks")[0]
    heap = data.index(b"HEAP")
    segment, free = struct.unpack_from("<Q", data, heap + 24)[0], 32
    data = _patched(data, heap + 16, "<Q", free)
    return _patched(data, segment + free, "<QQ", free, 16)


def _e57_scans(count: int) -> bytes:
    """An E57 file whose scans all share the same bytes."""

    def change(xml: bytes) -> bytes:
        begin, end = xml.index(b"<vectorChild"), xml.index(b"</vectorChild>") + len(b"</vectorChild>")
        return xml[:begin] + xml[begin:end] * count + xml[end:]

    return seeds.e57(change)


# description, bytes, and expected message
HOSTILE_HDF5: list[tuple[str, Callable[[], bytes], str]] = [
    ("an absurd shape", lambda: _hdf5(shape=(1 << 50, 4, 9)), "Expected"),
    ("an absurd shape in chunks", lambda: _hdf5(shape=(1 << 50, 4, 9), chunks=(1, 4, 9)), "chunks that a file of"),
    ("a large shape in large chunks", lambda: _hdf5(shape=(1 << 22, 4, 9), chunks=(1 << 22, 4, 9)), "Expected"),
    ("many chunks", lambda: _hdf5(shape=(1 << 21, 4, 9), chunks=(1, 4, 9)), "chunks that a file of"),
    ("chunks that are not there", lambda: _hdf5(shape=(2, 4, 9), chunks=(1, 4, 9)), "all chunks of /data in the file"),
    ("large chunks of small arrays", lambda: _hdf5(shape=(2, 4, 9), chunks=(1 << 20, 4, 9), maxshape=(None, 4, 9)),
     "all chunks of /data in the file"),
    ("a bomb", _hdf5_chunk_bomb, "Expected a chunk of 144 bytes"),
    ("a heap that leads back to itself", _hdf5_heap, "cannot be read as HDF5"),
]  # fmt: skip

_BIG = b"1000000000000"

# description, reader, suffix, bytes
HOSTILE: list[tuple[str, str, str, Callable[[], bytes]]] = [
    *_bombs(),
    ("many variables", "uai", ".uai", lambda: UAI.replace(b"\n3\n", b"\n" + _BIG + b"\n", 1)),
    ("many states", "uai", ".uai", lambda: UAI.replace(b"2 3 2\n", b"2 99999999999 2\n", 1)),
    ("many factors", "fg", ".fg", lambda: FG.replace(b"2\n\n2", _BIG + b"\n\n2", 1)),
    ("a large table", "fg", ".fg", lambda: b"1\n\n2\n0 1\n99999 99999\n0\n"),
    ("many tuples", "wcsp", ".wcsp", lambda: WCSP.replace(b"2 0 1 1 2\n", b"2 0 1 1 " + _BIG + b"\n", 1)),
    ("a domain of thousands of millions", "cfn", ".cfn", lambda: CFN.replace(b'"b": 3', b'"b": 2147483647', 1)),
    ("many points", "ply", ".ply", lambda: seeds._ply()[1].replace(b"vertex 2", b"vertex 99999999999", 1)),
    ("many points", "pcd", ".pcd", lambda: seeds._pcd()[1].replace(b"POINTS 3", b"POINTS 99999999999", 1)),
    ("a bomb", "pcd", ".pcd", _pcd_bomb),
    ("many points", "las", ".las", lambda: _patched(seeds._las(0, "1.2", ".las"), 107, "<I", 0xFFFFFFFF)),
    ("many records", "las", ".las", lambda: _patched(seeds._las(0, "1.2", ".las"), 100, "<I", 0xFFFFFFFF)),
    ("a bomb", "laz", ".laz", _laz_bomb),
    ("many chunks", "laz", ".laz", _laz_chunks),
    ("large layers", "laz", ".laz", _laz_layers),
    ("a large shape", "npy", ".npy", lambda: _npy_header("(1000000000000, 3)") + bytes(48)),
    ("a million million columns of no rows", "npy", ".npy", lambda: _npy_header("(0, 1000000000000)")),
    ("a million columns of no rows", "npy", ".npy", lambda: _npy_header("(0, 1000000)")),
    ("rows of no columns", "npy", ".npy", lambda: _npy_header("(1000000000000, 0)")),
    ("values of no bytes", "npy", ".npy", lambda: _npy_header("(1000000000000, 3)", "|V0")),
    ("many columns of no rows", "npz", ".npz", lambda: _zip("xyz.npy", _npy_header("(0, 1000000000000)"))),
    ("many columns of no rows", "room", ".npy", lambda: _npy_header("(0, 1000000000000)")),
    ("many shapes of no points", "packed", ".npz", lambda: _zip("planes.npy", _npy_header("(2, 3, 0, 9999999999)"))),
    ("many arrays", "npz", ".npz", lambda: _many_members(20_000)),
    ("many models that share all", "stored", "", lambda: _shared_models(1 << 34)),
    ("many models of no variables", "stored", "", lambda: _shared_models(1 << 34, variables=0)),
    ("a bomb", "npz", ".npz", lambda: _zip("xyz.npy", _npy_header("(1500000, 3)") + bytes(36_000_000))),
    ("a bomb by bzip2", "npz", ".npz", lambda: _zip("xyz.npy", bytes(20_000_000), zipfile.ZIP_BZIP2)),
    ("a large shape", "npz", ".npz", lambda: _zip("xyz.npy", _npy_header("(10000000000, 3)") + bytes(48))),
    ("a long line", "txt", ".xyz", lambda: b"1 " * 4_000_000),
    ("scans that share their bytes", "e57", ".e57", lambda: _e57_scans(9000)),
    ("columns of no bits", "e57", ".e57", lambda: seeds.e57(_no_bits)),
    *((what, "blocks", ".h5", make) for what, make, _ in HOSTILE_HDF5),
    ("a large shape", "room", ".npy", lambda: _npy_header("(1000000000000, 7)") + bytes(56)),
    ("a bomb", "packed", ".npz", lambda: _zip("planes.npy", _npy_header("(2, 3, 1, 4000000)") + bytes(24 << 20))),
    ("a large shape", "packed", ".npz", lambda: _zip("planes.npy", _npy_header("(2, 3, 1, 10000000000)", "|u1"))),
    ("deep lists", "listed", ".json", lambda: b"[" * 1_000_000),
    ("a long line", "room-text", ".txt", lambda: b"1 " * 4_000_000),
    ("a long line", "shape-text", ".txt", lambda: b"1 " * 4_000_000),
    ("merged anchors", "recipe", ".yaml", _yaml_merges),
    ("deep lists", "recipe", ".yaml", lambda: b"[" * 100_000),
    ("a large file", "recipe", ".yaml", lambda: b"a: 1\n" * 1_000_000),
    ("deep lists", "card", ".json", lambda: b"[" * 1_000_000),
    ("a large header", "weights", ".safetensors", lambda: struct.pack("<Q", 1 << 40) + bytes(100)),
    ("a large tensor", "weights", ".safetensors", lambda: _large_tensor()),
    ("gzip inside", "tar", ".tar", lambda: _tar({"a/w.safetensors": bytes(20 << 20)}, "w:gz")),
    ("bzip2 inside", "tar", ".tar", lambda: bz2.compress(_tar({"a/w.safetensors": bytes(2 << 20)}))),
    ("names outside", "tar", ".tar", lambda: _tar({"../../outside.safetensors": b"x"})),
    ("absolute names", "tar", ".tar", lambda: _tar({"/outside.safetensors": b"x"})),
    ("deep lists", "playground", ".json", lambda: b'["/api/solve", ' + b"[" * 1_000_000 + b"]"),
    ("deep notation", "notation", ".txt", lambda: b"Res[" * 100_000),
    ("long notation", "notation", ".txt", lambda: b" - ".join([b"FC(64)"] * 200_000)),
]  # fmt: skip


def _many_members(count: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for k in range(count):
            file.writestr(f"{k}.npy", _npy_header("(0,)"))
    return buffer.getvalue()


def _shared_models(count: int, variables: int = 1) -> bytes:
    """A stored set whose description declares ``count`` models, all tensors shared."""
    import torch
    from safetensors.torch import save

    tensors = {
        "cardinalities": torch.full((variables,), 2), "unary": torch.zeros(1, variables, 2 if variables else 1),
        "constant": torch.zeros(1), "labels": torch.zeros(1, variables, dtype=torch.int64),
    }  # fmt: skip
    about = json.loads(seeds.seeds("stored")[0].partition(b"\0")[0])
    about |= {"count": count, "tables": 0, "budgets": 0, "shared": list(tensors)}
    return json.dumps(about).encode() + b"\0" + save(tensors)


def _no_bits(xml: bytes) -> bytes:
    field = b'<a%d type="Integer" minimum="0" maximum="0"/>'
    return xml.replace(b"</prototype>", b"".join(field % k for k in range(30_000)) + b"</prototype>")


def _large_tensor() -> bytes:
    head = json.dumps({"__metadata__": {"format": "fgnn-weights-1", "values": "{}"},
                       "w": {"dtype": "F32", "shape": [1 << 34], "data_offsets": [0, 1 << 36]}}).encode()  # fmt: skip
    return struct.pack("<Q", len(head)) + head + bytes(64)
