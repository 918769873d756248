"""One harness per parser: it takes bytes and returns, or raises an `InputError` that names the file in one line."""

from __future__ import annotations

import gzip
import lzma
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fgnn.errors import InputError
from tests.fuzz import answers, calls
from tests.fuzz.folder import folder as folder
from tests.fuzz.mutate import mutated, overwritten
from tests.fuzz.seeds import SHAPE_TEXT, seeds

# Small limits prevent mutations that build a valid large model, so that high time or memory is always a fault.
_DECOMPRESSED = 1 << 20
_ENTRIES = 1 << 16
_LONGEST = 12_288


@dataclass(frozen=True, eq=False)
class Harness:
    """A parser under test.

    Args:
        read: Reads the bytes of an input.
        words: Keywords of the format, for replacing words.
        unpack, pack: For a compressed format, to mutate the uncompressed content too.
        points: Whether the format contains offsets, so that most mutations must preserve positions.
    """

    name: str
    read: Callable[[bytes], None]
    words: tuple[bytes, ...] = ()
    unpack: Callable[[bytes], bytes] | None = None
    pack: Callable[[bytes], bytes] | None = None
    points: bool = False

    @cached_property
    def seeds(self) -> tuple[bytes, ...]:
        """Valid inputs, and inputs that once triggered faults."""
        return seeds(self.name) + tuple(file.read_bytes() for file in regressions(self.name))

    def mutated(self, data: bytes, rng: random.Random) -> bytes:
        """A mutated input of limited size."""
        if self.unpack is not None and self.pack is not None and rng.random() < 0.6:
            try:
                return self.pack(mutated(self.unpack(data), rng, self.words))[:_LONGEST]
            except (OSError, EOFError, lzma.LZMAError, zlib.error, ValueError):
                pass
        if self.points and rng.random() < 0.8:
            return overwritten(data, rng)[:_LONGEST]
        return mutated(data, rng, self.words, self.seeds)[:_LONGEST]


def regressions(name: str) -> list[Path]:
    """The regression inputs of one parser."""
    return sorted((Path(__file__).parent / "corpus" / name).glob("*"))


def _from_file(name: str, use: Callable[[Path], None]) -> Callable[[bytes], None]:
    """Pass the bytes as a file, which errors must name."""

    def read(data: bytes) -> None:
        path = folder() / name
        path.write_bytes(data)
        try:
            use(path)
        except InputError as error:
            _named(path, error)
            raise

    return read


def _named(path: Path, error: InputError) -> None:
    assert str(path) in str(error), f"an error that does not name the file: {str(error)[:100]}"


# ---- models -----------------------------------------------------------------------------------------------------


def _model(path: Path) -> None:
    from fgnn import read_model
    from fgnn.pgm import Limits

    model = read_model(path, limits=Limits(decompressed=_DECOMPRESSED, entries=_ENTRIES))
    # the model is usable
    assert not model.num_variables or model.score([0] * model.num_variables) < float("inf")


def _code(path: Path) -> None:
    from fgnn.decoding import read_code

    read_code(path)


def _circuit(path: Path) -> None:
    from fgnn.decoding import read_circuit

    read_circuit(path, most_errors=1 << 12)


def _evidence(path: Path) -> None:
    from fgnn.pgm.io import read_evidence

    read_evidence(path, np.array([2, 3, 2]))


# ---- clouds -----------------------------------------------------------------------------------------------------


def _cloud(path: Path) -> None:
    from fgnn.points.cloud import read_cloud

    cloud = read_cloud(path)
    assert cloud.valid.shape == (len(cloud),)
    assert cloud.rgb is None or cloud.rgb.shape == (len(cloud), 3)


# ---- data sets --------------------------------------------------------------------------------------------------


def _in_folder(
    folder_name: str, name: str, use: Callable[[Path], None], others: dict[str, str]
) -> Callable[[bytes], None]:
    """Pass the bytes as one file of a data set; errors must name its folder or a file in it."""

    def read(data: bytes) -> None:
        root = folder() / folder_name
        if not root.exists():
            for other, text in others.items():
                (root / other).parent.mkdir(parents=True, exist_ok=True)
                (root / other).write_text(text)
            (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
        try:
            use(root)
        except InputError as error:
            _named(root, error)
            raise

    return read


@cache
def _hdf5_reader() -> Any:
    """One for all cases, since starting one takes most of the time."""
    from fgnn.data.hdf5 import Hdf5Reader

    return Hdf5Reader()


def _blocks(path: Path) -> None:
    from fgnn.data.s3dis import _block_file

    features, label = _block_file(_hdf5_reader(), path)
    assert features.dtype == np.float32
    assert features.shape[:2] == label.shape


def _shape_hdf5(path: Path) -> None:
    from fgnn.data.shapenet import _shape_file, _uniform

    xyz, label, category = _shape_file(_hdf5_reader(), path)
    _usable(_uniform(xyz, label, category, category.astype(str)))


def _shapes(root: Path) -> None:
    from fgnn.data.shapenet import load_shapenet_part

    _usable(load_shapenet_part(root, "train"))


def _usable(shapes: Any) -> None:
    assert np.isfinite(shapes.normalised().xyz).all()
    assert len(shapes[len(shapes) - 1][0])


def _room(path: Path) -> None:
    from fgnn.data.s3dis import load_room

    room = load_room(path)
    assert room.xyz.shape == room.rgb.shape == (len(room.label), 3)


def _raw_room(root: Path) -> None:
    from fgnn.data.s3dis import collect_room

    assert len(collect_room(root / "Area_1" / "office_1").label)


# ---- settings, weights, archives --------------------------------------------------------------------------------


def _recipe(path: Path) -> None:
    from fgnn.tasks.recipe import read_recipe, recipe_yaml

    recipe_yaml(read_recipe(path))


def _plan(path: Path) -> None:
    from tools.sweep import read_plan

    read_plan(path)


def _classes(path: Path) -> None:
    from fgnn.data.labelled import Classes

    Classes.read(path).of(np.arange(10))


def _weights(path: Path) -> None:
    from fgnn.weights import load_weights

    weights = load_weights(path)
    assert isinstance(weights.name, str)


def _card(path: Path) -> None:
    from fgnn.weights.cards import parse_card

    assert isinstance(parse_card(path.read_bytes(), path).name, str)


def _checkpoint(path: Path) -> None:
    from fgnn.train.checkpoint import load_checkpoint

    load_checkpoint(path).part("a")


def _stored(data: bytes) -> None:
    from fgnn.data.stored import load_models

    about, _, tensors = data.partition(b"\0")
    root = folder() / "stored"
    root.mkdir(exist_ok=True)
    (root / "dataset.json").write_bytes(about)
    (root / "models.safetensors").write_bytes(tensors)
    try:
        load_models(root)
    except InputError as error:
        _named(root, error)
        raise


def _archive(path: Path) -> None:
    from tools.learning_curves import curves
    from tools.ship import ship_sweep

    out = folder() / "shipped"
    (out / "records.json").unlink(missing_ok=True)
    ship_sweep([path], keep=(), folder=out)
    curves([path])


# ---- text -------------------------------------------------------------------------------------------------------


def _notation(data: bytes) -> None:
    from fgnn.nn.notation import parse, to_text

    text = data.decode("utf-8", "replace")
    items = parse(text)
    assert parse(to_text(items))


def _playground(data: bytes) -> None:
    """A request to the server: a route and its body in one JSON list."""
    import functools
    from unittest import mock

    from fgnn.infer import solve
    from fgnn.play import api
    from fgnn.play.model_json import parse_json
    from fgnn.play.reply import ROUTES, to_json

    path, _, body = data.partition(b", ")
    route = ROUTES.get(path.decode("latin-1").strip('["'))
    if route is None:
        raise InputError("no such call")
    with mock.patch.object(api, "solve", functools.partial(_quick, solve)):  # only validation is tested here
        to_json(route(parse_json(body.rstrip()[:-1])))


def _quick(solve: Any, model: Any, method: str, time_limit: float) -> Any:
    return solve(model, "max-product", iterations=3, time_limit=time_limit)


def _of_files(name: str, use: Callable[[Path], None], file: str, words: tuple[bytes, ...] = ()) -> Harness:
    return Harness(name, _from_file(file, use), words)


_RULE_WORDS = (b"salldiff", b"sgcc", b"samong", b"max", b"knapsack", b"knapsackp", b"clique", b"disj", b"sdisj", b"-1")
_CFN_WORDS = (*_RULE_WORDS, b"costs", b"type", b"params", b"scope", b"defaultcost", b"hard", b"dec", b"wdec", b"bounds")
_E57_WORDS = (
    b'type="Integer"', b'type="ScaledInteger"', b'type="Float"', b'minimum="0"', b'maximum="1"', b'recordCount="9"',
    b"<vectorChild>", b"<prototype>", b"<!ENTITY", b'precision="single"', b'scale="1e300"',
)  # fmt: skip
_LIST = "train_test_split/shuffled_train_file_list.json"
_TEXT_SHAPE = {"02691156/a.txt": SHAPE_TEXT.decode()}
_NPY_WORDS = (
    b"'<f8'",
    b"'|O'",
    b"'|V0'",
    b"'<M8[s]'",
    b"'<U9'",
    b"'|b1'",
    b"'<c16'",
    b"True",
    b"(3,)",
    b"(0, 3)",
    b"(-1, 3)",
)
_JSON_WORDS = (
    b'"F64"',
    b'"I64"',
    b'"BF16"',
    b'"BOOL"',
    b'"shape"',
    b"[0,0]",
    b'"data_offsets"',
    b'"__metadata__"',
    b'"a"',
)
_YAML_WORDS = (
    b"data:",
    b"- ",
    b"{}",
    b"[]",
    b"<<:",
    b"&a ",
    b"*a",
    b"!!python/object:os.system",
    b"2001-99-99",
    b"? ",
    b"!!int ",
)

_DEM_WORDS = (
    b"error(", b"D1", b"L0", b"^", b"repeat 3 {", b"}", b"shift_detectors 2", b"detector", b"logical_observable", b"#",
)  # fmt: skip
_HTTP_WORDS = (
    b"GET", b"POST", b"HEAD", b"Host: 127.0.0.1:8473", b"Host: evil", b"Origin: null", b"Content-Length: ", b"HTTP/1.0",
    b"Transfer-Encoding: chunked", b"application/json", b"/api/solve", b"/..", b"\r\n", b"\r\n\r\n",
)  # fmt: skip
_OPTION_WORDS = (
    b"-o", b"damping=", b"iterations=", b"max_states=", b"tolerance=", b"--seed", b"--method", b"-m", b"exact", b"ad3",
    b"max-product", b"brute-force", b"--json", b"-t", b"=", b"true", b"none", b"high", b"1e999", b"--device", b"cpu",
)  # fmt: skip
_MARGINAL_WORDS = (
    b"-o", b"damping=", b"iterations=", b"max_states=", b"--pr", b"-m", b"exact", b"sum-product", b"brute-force",
    b"--json", b"dtype=", b"tables=1", b"schedule=", b"residual", b"-e", b"nan", b"1e999", b"--seed", b"-1", b"cpu",
)  # fmt: skip
_EVIDENCE_WORDS = (
    b"network", b"variable", b"probability", b"table", b"default", b"BAYES", b"MARKOV", b"\0", b"0", b"1", b"-1",
)  # fmt: skip
_SAMPLE_WORDS = (
    b'"variables"', b'"groups"', b'"edges"', b'"gs"', b'"f"', b'"y"', b"[]", b"{}", b"null", b"[[0, 1]]", b"[2, 2]",
)  # fmt: skip
_TILE_WORDS = (b"property", b"element", b"vertex", b"\0", b"\x1b[31m", b"..", b"1e300", b"nan")
_NAME_WORDS = (
    b"X", b"Y", b"Z", b"x", b"height", b"xyz", b"a b", b"\n", b"\r", b",", b";", b"\0", b"\xff", b"\x1b[31m", b"#",
    b"\xc3\xa9", b"red", b"intensity", b"return_number", b"bit_fields", b"label", b".npy", b"n" * 32,
)  # fmt: skip

HARNESSES: dict[str, Harness] = {
    h.name: h
    for h in (
        _of_files("uai", _model, "fuzz.uai", words=(b"MARKOV", b"BAYES")),
        _of_files("evidence", _evidence, "fuzz.evid"),
        _of_files("fg", _model, "fuzz.fg"),
        _of_files("alist", _code, "fuzz.alist"),
        _of_files("qc", _code, "fuzz.qc"),
        _of_files("dem", _circuit, "fuzz.dem", words=_DEM_WORDS),
        _of_files("bif", _model, "fuzz.bif", words=(b"network", b"variable", b"probability", b"table", b"default")),
        _of_files("wcsp", _model, "fuzz.wcsp", words=_RULE_WORDS),
        _of_files("cfn", _model, "fuzz.cfn", words=_CFN_WORDS),
        _of_files("fgm", _model, "fuzz.fgm", words=_JSON_WORDS),
        Harness(
            "gz", _from_file("fuzz.uai.gz", _model), (), gzip.decompress, lambda d: gzip.compress(d, 1, mtime=0)
        ),
        Harness("xz", _from_file("fuzz.fgm.xz", _model), (), lzma.decompress, lambda d: lzma.compress(d, preset=0)),
        _of_files("ply", _cloud, "fuzz.ply", words=(b"property", b"element", b"list", b"uchar", b"format")),
        _of_files("las", _cloud, "fuzz.las"),
        _of_files("laz", _cloud, "fuzz.laz"),
        _of_files("pcd", _cloud, "fuzz.pcd", words=(b"FIELDS", b"SIZE", b"TYPE", b"COUNT", b"POINTS", b"DATA")),
        Harness("e57", _from_file("fuzz.e57", _cloud), _E57_WORDS, points=True),
        _of_files("bin", _cloud, "fuzz.bin"),
        _of_files("txt", _cloud, "fuzz.xyz"),
        _of_files("csv", _cloud, "fuzz.csv"),
        _of_files("npy", _cloud, "fuzz.npy", words=_NPY_WORDS),
        _of_files("npz", _cloud, "fuzz.npz", words=_NPY_WORDS),
        Harness("blocks", _from_file("fuzz.h5", _blocks), points=True),
        Harness("shapes", _from_file("fuzz.h5", _shape_hdf5), points=True),
        Harness("packed", _in_folder("packed", "train_0.npz", _shapes, {}), _NPY_WORDS),
        Harness("listed", _in_folder("listed", _LIST, _shapes, _TEXT_SHAPE)),
        Harness("shape-text", _in_folder("shape-text", "02691156/a.txt", _shapes, {_LIST: '["x/02691156/a"]'})),
        _of_files("room", _room, "Area_1_office_1.npy", words=_NPY_WORDS),
        Harness("room-text", _in_folder("room-text", "Area_1/office_1/Annotations/wall_1.txt", _raw_room, {})),
        _of_files("recipe", _recipe, "fuzz.yaml", words=_YAML_WORDS),
        _of_files("plan", _plan, "fuzz.yaml", words=_YAML_WORDS),
        Harness("notation", _notation, (b"FGNN(", b"Res[", b"]", b"DR(", b"FC(", b" - ")),
        _of_files("classes", _classes, "classes.txt"),
        _of_files("weights", _weights, "fuzz.safetensors", words=_JSON_WORDS),
        _of_files("card", _card, "card.json", words=_JSON_WORDS),
        _of_files("checkpoint", _checkpoint, "fuzz.safetensors", words=_JSON_WORDS),
        Harness("stored", _stored, _JSON_WORDS),
        _of_files("tar", _archive, "fuzz.tar"),
        Harness("playground", _playground, (b'"-inf"', b"1e300", b"null", b"[]", b"{}")),
        Harness("http", calls.http, _HTTP_WORDS),
        Harness("options", calls.options, _OPTION_WORDS),
        Harness("marginal-options", lambda data: calls.options(data, "marginals"), _MARGINAL_WORDS),
        Harness("marginals", answers.marginals, _EVIDENCE_WORDS),
        Harness("samples", answers.samples, _SAMPLE_WORDS),
        Harness("tiles", answers.tiles, _TILE_WORDS),
        Harness("names", calls.names, _NAME_WORDS),
        Harness("units", calls.units, (b"1e-12", b"1e12", b"1e308", b"-1e39", b"5e-324", b"12", b"-12", b"0")),
    )
}  # fmt: skip
