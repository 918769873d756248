"""Valid inputs of every parser, the seeds of mutation; generated, so that they never go stale."""

from __future__ import annotations

import base64
import gzip
import io
import json
import lzma
import struct
import tarfile
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pgm.io.samples import BIF, CFN, EVID, FG, UAI, WCSP, native, structured

BAYES = b"BAYES 2\n2 2\n2\n1 0\n2 0 1\n2 0.2 0.8\n4 0.1 0.9 1 0\n"
RULES = (
    b"rules 4 3 6 50\n2 2 2 3\n3 0 1 2 -1 salldiff var 3\n2 0 1 -1 >= 1 0\n3 0 1 2 -1 knapsack 2 1 1 1\n"
    b"3 0 1 2 -1 knapsackp 2 1 1 2 1 1 2 1 1 2\n3 0 1 2 -1 samong var 4 1 2 1 1\n"
    b"4 0 1 2 3 -1 sgcc var 2 2 0 1 2 1 0 2\n"
)
CFN_PLAIN = b"{{t <5.0}{a 2 b [x y]}{f {[a b] 0.0 [0 x 1.5 1 y 2]} g {[a] [1 -2]}}}"
CFN_MAX = (
    b'{"problem":{"name":"m","mustbe":">-9"},"variables":{"v":["p","q"]},'
    b'"functions":{"f":{"scope":["v"],"costs":[1,2]}}}'
)
CFN_RULES = (
    b"{problem: {name: r, mustbe: <9}, variables: {a: 2 b: 2 c: 2}, functions: {\n"
    b"s: {scope: [a b c] type: salldiff params: {metric: var cost: 2}}\n"
    b"g: {scope: [a b c] type: sgcc params: {metric: var cost: 1 bounds: [[0 0 2][1 1 2]]}}\n"
    b"m: {scope: [a b] type: samong params: {metric: var cost: 9 min: 0 max: 1 values: [1]}}\n"
    b"q: {scope: [a b c] type: clique params: {rhs: 1 values: [[1][1][1]]}}\n}}"
)
RECIPE = (
    b"# a run\nname: run\ndata:\n  chain: {kinds: [1, 2], length: 30, window: 8}\n  instances: 100\nepochs: 2\n"
    b"batch: 10\n"
    b"optimiser: {name: adam, rate: 3e-3}\nschedule: {name: exponential, factor: 0.98}\nprecision: fp32\nlog_every: 5\n"
    b"checkpoint_every: 10\nnetwork: {architecture: paper}\n"
)
RECIPE_POINTS = (
    b"data: {scans: {root: scans, classes: classes.txt, size: 20, points: 4096, held_out: [a.laz]}}\n"
    b"points: {architecture: dgcnn, k: 20}\nsteps: 100\nema: 0.99\nschedule: {name: cosine, floor: 0.1}\n"
)
PLAN = (
    b"jobs:\n  - {name: one, recipe: paper-map-1, changes: ['batch=8', 'optimiser.rate=1e-3'], fit: 10}\n"
    b"  - {name: two, recipe: paper-map-2, after: one}\n"
)
CLASSES = "# what there is\nground: 2, 9\nvegetation: 3 4 5\nbuilding: 6  # roofs\nöther: 7\n".encode()
NOTATION = b"Input - FGNN(64) - Res[FC(64) - FGNN(64) - FC(64)] - MLP(128) - DR(0.5) - GlobalPooling - FGNN(N)"
TEXT_CLOUD = b"# x y z intensity\n0.5 1.25 -3e2 7\n1 2 3 8\n\n4 5 6 9\n"
CSV_CLOUD = b"x,y,z,red,green,blue,label\n0,0,0,255,0,0,1\n1.5,2.5,3.5,0,255,0,2\n"
PCD_HEAD = (
    "# .PCD v0.7\nVERSION 0.7\nFIELDS x y z label\nSIZE 4 4 4 2\nTYPE F F F U\nCOUNT 1 1 1 1\nWIDTH 3\nHEIGHT 1\n"
    "VIEWPOINT 0 0 0 1 0 0 0\nPOINTS 3\nDATA {}\n"
)
SHAPE_TEXT = b"0.5 1 0 0 1 0 0.000000\n1 2 3 0 0 1 3.000000\n"
PLAY_MODEL: dict[str, Any] = {
    "variables": [{"states": 2, "unary": [0, 0.5]}, {"states": 2}, {"states": 3, "unary": [0, "-inf", 1]}],
    "factors": [
        {"kind": "table", "scope": [0, 2], "values": [0, 1, 2, 3, 4, 5]},
        {"kind": "budget", "scope": [0, 1], "at_least": 0, "at_most": 1},
    ],
}


def _packed(write: Callable[[Any], object], suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"seed{suffix}"
        write(path)
        return path.read_bytes()


def _cloud(fields: bool = True) -> Any:
    from fgnn.points.cloud import Cloud

    rng = np.random.default_rng(0)
    xyz = np.round(rng.uniform(0, 9, (4, 3)), 2)
    more = {"red": np.arange(4, dtype=np.uint8), "label": np.arange(4, dtype=np.int32), "extra": rng.random(4)}
    return Cloud(xyz, more if fields else {})


def _las(point_format: int, version: str, suffix: str) -> bytes:
    import laspy

    def write(path: Path) -> None:
        header = laspy.LasHeader(point_format=point_format, version=version)
        header.scales = np.full(3, 0.01)
        header.vlrs.append(laspy.VLR(user_id="seed", record_id=7, description="a record", record_data=b"abc"))
        file = laspy.LasData(header)
        file.x, file.y, file.z = np.arange(5.0), np.arange(5.0), np.arange(5.0)
        file.classification = np.arange(5, dtype=np.uint8)
        file.write(path)

    return _packed(write, suffix)


def _array(save: Callable[..., None], *arrays: Any, **named: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, *arrays, **named)
    return buffer.getvalue()


def _pcd() -> tuple[bytes, ...]:
    rows = np.array([(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 1, 2)], dtype=[(a, "<f4") for a in "xyz"] + [("label", "<u2")])
    files = [PCD_HEAD.format("ascii").encode() + b"0 1 2 3\n4 5 6 7\n8 9 1 2\n"]
    files.append(PCD_HEAD.format("binary").encode() + rows.tobytes())
    try:
        import lzf
    except ImportError:
        return tuple(files)
    columns = b"".join(np.ascontiguousarray(rows[n]).tobytes() for n in rows.dtype.names or ()) * 2
    packed = lzf.compress(columns)
    if packed is not None:
        head = PCD_HEAD.replace("WIDTH 3", "WIDTH 6").replace("POINTS 3", "POINTS 6").format("binary_compressed")
        files.append(head.encode() + np.array([len(packed), len(columns)], "<u4").tobytes() + packed)
    return tuple(files)


def _ply() -> tuple[bytes, ...]:
    head = (
        "ply\nformat {} 1.0\ncomment by hand\nelement vertex 2\nproperty float x\nproperty float y\nproperty double z\n"
        "property uchar label\nelement face 1\nproperty list uchar int vertex_indices\nend_header\n"
    )
    files = [head.format("ascii").encode() + b"0 0 0 1\n1 1.5 1 2\n3 0 1 1\n"]
    for order, sign in (("binary_little_endian", "<"), ("binary_big_endian", ">")):
        rows = np.array(
            [(0, 0, 0, 1), (1, 1, 1, 2)], [("x", sign + "f4"), ("y", sign + "f4"), ("z", sign + "f8"), ("l", "u1")]
        )
        files.append(
            head.format(order).encode() + rows.tobytes() + b"\x03" + np.array([0, 1, 1], sign + "i4").tobytes()
        )
    return tuple(files)


def e57(change: Callable[[bytes], bytes] | None = None) -> bytes:
    """A small E57 file whose XML is changed and moved to the end."""
    data = (Path(__file__).parents[1] / "points" / "data" / "packed.e57").read_bytes()
    _, at, length, page = struct.unpack_from("<QQQQ", data, 16)
    inner = page - 4  # each page ends with a checksum
    logical = b"".join(data[k : k + inner] for k in range(0, len(data), page))
    begin = at // page * inner + at % page
    xml = logical[begin : begin + length]
    if change is not None:
        xml = change(xml)
    head = data[: at // page * page + page]
    pages = b"".join(xml[k : k + inner].ljust(page, b"\0") for k in range(0, len(xml), inner))
    whole = bytearray(head + pages)
    struct.pack_into("<QQQ", whole, 16, len(whole), len(head), len(xml))
    return bytes(whole)


def hdf5(arrays: dict[str, Any], libver: str = "earliest", **options: Any) -> bytes:
    """An HDF5 file of these arrays; ``options`` apply to the largest."""
    h5py = pytest.importorskip("h5py")

    def write(path: Path) -> None:
        with h5py.File(path, "w", libver=libver) as file:
            for k, (name, values) in enumerate(arrays.items()):
                file.create_dataset(name, data=values, **(options if k == 0 else {}))

    return _packed(write, ".h5")


def _hdf5(columns: int, **labels: Any) -> tuple[bytes, ...]:
    arrays = {"data": np.random.default_rng(0).random((2, 3, columns)).astype(np.float32), **labels}
    packed = {"chunks": (2, 2, columns), "compression": "gzip", "shuffle": True}
    return tuple(hdf5(arrays, libver, **kind) for libver in ("earliest", "latest") for kind in ({}, packed))


def _shape_planes(shapes: int = 2, points: int = 4) -> bytes:
    planes = np.random.default_rng(0).integers(0, 9, (2, 3, shapes, points)).astype(np.uint8)
    names = np.array([f"s/{k}" for k in range(shapes)])
    named = {"label": np.ones((shapes, points), np.uint8), "category": np.zeros(shapes, np.uint8), "name": names}
    return _array(np.savez_compressed, planes=planes, **named)


def _tensors(kind: str) -> bytes:
    import torch

    from fgnn.weights.store import save_tensors

    tensors = {"a/w": torch.ones(2, 3), "b": torch.arange(3), "c": torch.zeros(1, dtype=torch.bfloat16)}
    card = {"name": "seed", "task": "map", "network": {"architecture": "paper"}, "classes": ["a", "b"], "metrics": {}}
    return _packed(lambda path: save_tensors(path, tensors, card, kind), ".safetensors")


def _tar(*, compress: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{compress}" if compress else "w") as tar:
        members = {
            "seed/seed.safetensors": _tensors("fgnn-weights-1"),
            "seed/seed.json": json.dumps({"recipe": {"batch": 4}}).encode(),
            "seed/metrics.jsonl": b'{"step": 1, "agreement": 0.5}\n{"step": 2, "agreement": 0.75}\n',
        }
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _stored() -> bytes:
    from fgnn.data import ChainMAP

    with tempfile.TemporaryDirectory() as folder:
        ChainMAP(length=4, window=3, budget=2).save(folder, 2)
        return (Path(folder) / "dataset.json").read_bytes() + b"\0" + (Path(folder) / "models.safetensors").read_bytes()


def _requests() -> tuple[bytes, ...]:
    asked = [
        ["/api/solve", {"model": PLAY_MODEL, "method": "max-product", "seconds": 1}],
        ["/api/network", {"model": PLAY_MODEL}],
        ["/api/import", {"name": "a.uai", "base64": base64.b64encode(UAI).decode()}],
        ["/api/import", {"name": "a.uai.gz", "base64": base64.b64encode(gzip.compress(UAI, mtime=0)).decode()}],
    ]
    return tuple(json.dumps(entry).encode() for entry in asked)


@cache
def seeds(name: str) -> tuple[bytes, ...]:
    """The valid inputs of one parser."""
    inputs: tuple[bytes, ...] = MAKERS[name]()
    return inputs


# Formats, by number, and names that they keep; all formats keep the others.
_SPACED = b"scan angle\xffX"
_GOOD_NAMES = {(s, n) for s in range(8) for n in (b"label", b"height", b"\xc3\xa9")} | {(7, _SPACED), (5, _SPACED)}

MAKERS: dict[str, Callable[[], tuple[bytes, ...]]] = {
    "uai": lambda: (UAI, BAYES),
    "evidence": lambda: (EVID, b"1 2 0 1 1 0", b"0\n"),
    "fg": lambda: (FG,),
    "bif": lambda: (BIF,),
    "alist": lambda: (
        b"4 2\n2 3\n1 2 1 1\n3 2\n1 0\n1 2\n1 0\n2 0\n1 2 3\n2 4 0\n",
        b"3 1\n1 3\n1 1 1\n3\n1\n1\n1\n",
    ),
    "qc": lambda: (b"3 2 4\n\n0 1 -1\n-1 3 2\n",),
    "dem": lambda: (
        b"error(0.1) D0 D1 L0\nerror(0.2) D1 ^ D2\nrepeat 2 {\n error(0.1) D0\n"
        b" shift_detectors(1, 2) 3\n}\ndetector D1\n",
    ),
    "wcsp": lambda: (WCSP, RULES),
    "cfn": lambda: (CFN, CFN_PLAIN, CFN_MAX, CFN_RULES),
    "fgm": lambda: (native(), structured()),
    "gz": lambda: (gzip.compress(UAI, mtime=0), gzip.compress(UAI[:50], mtime=0) + gzip.compress(UAI[50:], mtime=0)),
    "xz": lambda: (lzma.compress(native()), lzma.compress(native(), preset=0)),
    "ply": _ply,
    "las": lambda: (_las(0, "1.2", ".las"), _las(7, "1.4", ".las"), _packed(_write(".las"), ".las")),
    "laz": lambda: (_las(3, "1.2", ".laz"), _las(6, "1.4", ".laz")),
    "pcd": _pcd,
    "e57": lambda: (e57(), e57(lambda xml: xml.replace(b'recordCount="700"', b'recordCount="5"'))),
    "bin": lambda: (np.arange(12, dtype="<f4").tobytes(), b""),
    "txt": lambda: (TEXT_CLOUD, b"1 2 3\n4 5 6\n", b"0;0;0;1\n1;1;1;2\n"),
    "csv": lambda: (CSV_CLOUD, b"easting,northing,height\n1,2,3\n"),
    "npy": lambda: (_array(np.save, np.zeros((3, 7))), _packed(_write(".npy"), ".npy")),
    "npz": lambda: (
        _array(np.savez, np.zeros((3, 4))),
        _array(np.savez_compressed, xyz=np.zeros((3, 3)), rgb=np.zeros((3, 3), np.uint8), label=np.arange(3)),
    ),
    "blocks": lambda: _hdf5(9, label=np.ones((2, 3), np.uint8)),
    "shapes": lambda: _hdf5(3, pid=np.ones((2, 3), np.uint8), label=np.ones((2, 1), np.uint8)),
    "packed": lambda: (_shape_planes(),),
    "listed": lambda: (b'["shape_data/02691156/a", "shape_data/02691156/a"]',),
    "shape-text": lambda: (SHAPE_TEXT,),
    "room": lambda: (_array(np.save, np.tile([1.0, 2, 3, 255, 0, 0, 2], (3, 1))),),
    "room-text": lambda: (b"0 0 0 10 20 30\n1.5 1 1 10 20 30\n",),
    "recipe": lambda: (RECIPE, RECIPE_POINTS),
    "plan": lambda: (PLAN,),
    "notation": lambda: (NOTATION,),
    "classes": lambda: (CLASSES, b"a\nb\nc\n"),
    "weights": lambda: (_tensors("fgnn-weights-1"),),
    "card": lambda: (b'{"name": "seed", "task": "points", "classes": ["a", "b"], "network": {"width": 3}}',),
    "checkpoint": lambda: (_tensors("fgnn-checkpoint-1"),),
    "stored": lambda: (_stored(),),
    "tar": lambda: (_tar(), _tar(compress="gz")),
    "playground": _requests,
    "http": lambda: (
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1:8473\r\n\r\n",
        b"POST /api/solve HTTP/1.1\r\nHost: localhost:8473\r\nOrigin: http://localhost:8473\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    ),
    "options": lambda: (
        b"-m max-product -o damping=0.5 -o iterations=20 --seed 3",
        b"-m exact -o max_states=1000 --json",
        b"-m brute-force --device cpu",
        b"-m ad3 -o iterations=5 -o tolerance=0.001 -t 1",
    ),
    "marginal-options": lambda: (
        b"-m exact -o max_states=1000 --json",
        b"-m sum-product -o damping=0.5 -o iterations=20 --seed 3",
        b"-m brute-force --pr --device cpu",
        b"--json -t 1",
    ),
    "marginals": lambda: (
        b"\x00" + BIF,
        b"\x00" + BIF + b"\x001 0 1",
        b"\x01" + UAI + b"\x002 0 1 1 2",
        b"\x01" + BAYES + b"\x001 1 0",
        b"\x02" + FG,
    ),
    "samples": lambda: (
        b'[{"variables": 3, "groups": {"p": [[0, 1], [1, 2]]}, "f": [3, 2], "gs": {"p": [2, 4]}, '
        b'"edges": {"p": [2, 2]}, "y": [3]}, '
        b'{"variables": 2, "groups": {"p": [[0, 1]]}, "f": [2, 2], "gs": {"p": [1, 4]}, "edges": {"p": [2, 2]}, '
        b'"y": [2]}]',
        b'[{"variables": 2, "groups": {}, "f": [2, 1]}]',
        b'[{"variables": 4, "groups": {"a": [[0, 1, 2]], "b": [[3]]}, "y": []}, '
        b'{"variables": 1, "groups": {}, "y": []}]',
    ),
    "tiles": lambda: (
        b"\x00tile\x00" + _ply()[0],
        b"\x02north east\x00" + TEXT_CLOUD,
        b"\x01a\x00" + _las(0, "1.2", ".las"),
        b"\x03b\x00" + _array(np.save, np.zeros((3, 7))),
    ),
    "names": lambda: tuple(
        bytes([suffix, kind]) + name
        for suffix in range(8)
        for kind, name in ((1, b"label"), (5, b"scan angle\xffX"), (8, b"height"), (10, b"\xc3\xa9"))
        if (suffix, name) in _GOOD_NAMES
    ),
    "units": lambda: (
        b"\x00-12 0 1 2 3 4 5 6 7 8",
        b"\x01 12 1e12 0.5 -1 2.25 3 4 -5 6 7",
        b"\x02 0 -3 0 0 1 1 0.1 0.2 0.3 0.4",
        b"\x03 3 0 1 -1 1 -1 2 -2 -2 2",
    ),
}


def _write(suffix: str) -> Callable[[Path], None]:
    from fgnn.points.cloud import write_cloud

    return lambda path: write_cloud(_cloud(), path)
