"""Wrong usage, at the command line and in Python: one line that says what to do instead, and exit code 2."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fgnn
from fgnn.cli import main
from fgnn.data.scenes import make_terrain
from fgnn.points.cloud import write_cloud

MODEL = "MARKOV\n3\n2 2 2\n2\n2 0 1\n2 1 2\n4  1.0 0.5  0.5 2.0\n4  3.0 0.1  0.1 1.0\n"
RECIPE = """
name: x
batch: 8
steps: 2
log_every: 1
schedule: {name: constant}
data: {chain: {kinds: [1], length: 8, window: 4, budget: 2}}
network: {architecture: deep, width: 8, blocks: 1}
"""
SCANS = "data: {scans: {root: scans, field: classification, points: 64}}\npoints: {architecture: fgnn}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Valid and broken input files."""
    place = tmp_path_factory.mktemp("wrong")
    (place / "tiny.uai").write_text(MODEL)
    (place / "scope.uai").write_text(MODEL.replace("2 1 2\n", "2 1 7\n"))
    (place / "nine.evid").write_text("1 9 0\n")
    (place / "folder").mkdir()
    scan = make_terrain(points=300, seed=0)
    write_cloud(scan, place / "scan.ply")
    write_cloud(scan, place / "scan.las")
    (place / "cut.ply").write_bytes((place / "scan.ply").read_bytes()[:900])
    np.save(place / "flat.npy", np.zeros((5, 2)))
    np.save(place / "words.npy", np.array([["a", "b", "c"]]))
    for name, classes in {"scans": "a: 2\nb: 5\n", "strange": "a: 77\nb: 78\n", "one": "a: 2\n"}.items():
        (place / name).mkdir()
        write_cloud(scan, place / name / "a.ply")
        write_cloud(scan, place / name / "b.ply")
        (place / name / "classes.txt").write_text(classes)
    head = RECIPE.split("data:")[0]
    for name, text in {
        "key": RECIPE.replace("network:", "netwrok:"),
        "kind": RECIPE.replace("kinds: [1]", "kinds: [7]"),
        "number": RECIPE.replace("batch: 8", "batch: eight"),
        "yaml": "name: [x\n",
        "notation": RECIPE.replace("architecture: deep", "architecture: 'FGNN(8) - Ress[FC(8)] - FGNN(N)'"),
        "nothing": head + "data: {}\n",
        "wide": RECIPE.replace("width: 8", "width: 8192, bases: 64"),
        "batch": RECIPE.replace("batch: 8", "batch: 7").replace("kinds: [1]", "kinds: [1, 2]"),
        "field": head + SCANS.replace("field: classification", "field: klass"),
        "values": head + SCANS.replace("root: scans", "root: strange"),
        "single": head + SCANS.replace("root: scans", "root: one"),
        "noclasses": head + SCANS.replace("root: scans", "root: folder"),
    }.items():
        (place / f"{name}.yaml").write_text(text)
    return place


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # a machine without a GPU
    monkeypatch.delenv("FGNN_DEBUG", raising=False)
    yield folder
    assert not list(folder.glob("**/*.part"))
    assert not (folder / "runs").exists()  # no run is begun by a mistake


def command(words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command, in this process."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["fgnn", *words.split()]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
            main()
    finally:
        sys.argv = before
    return int(end.value.code or 0), out.getvalue(), err.getvalue()


def check_says(message: str, expected: str) -> None:
    """Check that the pieces between the dots occur in this order: the place, the value, what to do instead."""
    at = 0
    for piece in expected.split("…"):
        assert piece in message[at:], f"{piece!r} is missing in {message[at:]!r} of {message!r}"
        at = message.index(piece, at) + len(piece)


COMMANDS = {
    # commands, options and values
    "sovle tiny.uai": "'solve'?…'fgnn --help'",
    "bench layr": "'layer'?…'fgnn bench --help'",
    "data chane --out d": "'chain'?…'fgnn data --help'",
    "solve tiny.uai --methd exact": "'--methd'…'--method'?…'fgnn solve --help'",
    "info --jsn": "'--json'?",
    "--verison": "'--verison'…'--version'?…'fgnn --help'",
    "solve": "'models'…'fgnn solve --help'",
    "data chain --count 3": "'--out'…'fgnn data chain --help'",
    "solve tiny.uai --time-limit soon": "'--time-limit'…'fgnn solve --help'",
    "solve tiny.uai --time-limit -3": "time limit…(got -3.0)",
    "solve tiny.uai --jobs 0": "--jobs…(got 0)",
    "solve tiny.uai -m max-product -o damping": "name=value…(got 'damping')",
    "solve tiny.uai -m max-product -o damping=2": "damping…[0, 1)…(got 2.0)",
    "solve tiny.uai -m max-product -o damping=high": "damping…float…(got 'high')",
    "solve tiny.uai -m ad3 -o iterations=2.5": "iterations…int…(got '2.5')",
    "solve tiny.uai -m toulbar2 -o settings=3": "settings…(got '3')",
    "solve tiny.uai -m exact -o memory=much": "memory…int | None…(got 'much')",
    "solve tiny.uai -m max-product -o dampng=0.5": "max-product…iterations, damping…'dampng'",
    "evaluate deep-map-joint --grid 8by8": "8x8…(got '8by8')",
    "evaluate deep-map-joint --kind 7": "kinds…7",
    "data chain --kind 4 --out d": "1, 2, 3…(got 4)",
    "reproduce table9": "table1, ablation…table9",
    "reproduce table1 --window 7": "8 or 9 (got 7)",
    "play --port 99999": "65535…99999",
    # methods and devices
    "solve tiny.uai --method exat": "exact?",
    "solve tiny.uai --device cuda": "got cuda…use --device cpu",
    "bench layer --device cuda": "got cuda…use --device cpu",
    "train tiny --device cuda --out r": "got cuda…use --device cpu",
    "segment scan.ply --device cuda": "got cuda…use --device cpu",
    "solve tiny.uai --device tpu": "device…(got 'tpu')",
    # files
    "solve tyni.uai": "tyni.uai: no such file…tiny.uai?",
    "solve nowhere/tiny.uai": "nowhere/tiny.uai: no such file…folder nowhere",
    "solve tiny.uai --evidence seen.evd": "seen.evd: no such file",
    "solve folder": "folder: …folder/*.uai",
    "solve scan.ply": ".fgm, .uai, .fg, .bif, .wcsp, .cfn",
    "solve scope.uai": "scope.uai, line 6, scope 1: …0..2…(got 7)",
    "solve tiny.uai --evidence nine.evid": "nine.evid, line 1, observation 0: …3…(got 9)",
    "solve tiny.uai tiny.uai --evidence nine.evid": "--evidence…(got 2)",
    "bench page tiny.uai": "fgnn bench…JSON",
    # recipes, runs and weights
    "train paper-map1": "paper-map1…'paper-map-1'?",
    "train none": "none: …paper-map-1",
    "train key.yaml": "key.yaml, netwrok: …'network'?",
    "train kind.yaml": "kind.yaml, data.chain.kinds[0]: …(got 7)",
    "train number.yaml": "number.yaml, batch: …(got 'eight')",
    "train yaml.yaml": "yaml.yaml, line 2: …YAML",
    "train notation.yaml": "network.architecture: line 1, column 11: …FGNN, FC, MLP",
    "train wide.yaml": "wide.yaml: network: …100,000,000 numbers",
    "train batch.yaml": "batch.yaml: …(got 7)",
    "train nothing.yaml": "chain, grid, folder, shapes, rooms, scans, samples, codes (got none)",
    "train folder": "folder: …(got none)",
    "train tiny --resume": "config.yaml…--resume",
    "evaluate deep-map-join": "'deep-map-joint'?",
    "evaluate folder": "folder: …best.safetensors or last.safetensors",
    "evaluate tiny.uai": "tiny.uai: …weights",
    # scans and their classes
    "segment scna.ply": "scna.ply: no such file…scan.ply?",
    "segment tiny.uai": ".ply .las .laz .pcd",
    "segment cut.ply": "cut.ply: ",
    "segment flat.npy": "flat.npy: …(N, 3+)",
    "segment words.npy": "words.npy, …numbers",
    "segment scan.ply --model deep-map-joint": "point network…'deep-map-joint'",
    "segment scan.ply --out scan.ply": "--out",
    "segment scan.ply --out scan.obj": ".ply .las .laz",
    "train field.yaml": "'klass'…intensity, classification",
    "train values.yaml": "classes.txt…'ground: 2'",
    "train single.yaml": "(got 1)",
    "train noclasses.yaml": "classes.txt: no such file",
}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_wrong_command_is_one_line_that_helps(words: str, here: Path) -> None:
    code, out, err = command(words)
    assert code == 2
    assert out == ""
    check_says(err.replace("MODELS...", "models"), COMMANDS[words])  # typer before 0.25 writes it in capitals
    assert err.startswith("fgnn: ")
    assert err.count("\n") == 1, err


def test_a_group_without_a_command_shows_its_help(here: Path) -> None:
    code, out, err = command("bench")
    assert code in (0, 2)
    assert "solvers" in out + err


# ---- missing extras ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("pytoulbar2", "solve tiny.uai --method toulbar2", "solvers"),
        ("joblib", "solve tiny.uai tiny.uai --jobs 2", "solvers"),
        ("laspy", "segment scan.las", "points"),
        ("matplotlib", "solve tiny.uai --plot curve.png", "viz"),
    ],
)
def test_a_missing_extra_is_named(
    package: str, words: str, extra: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n == package or n.startswith(package + ".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # an import of it now fails
    code, _, err = command(words)
    assert code == 2
    assert f"{package} is needed here: pip install 'fgnn[{extra}]'" in err


# ---- in Python --------------------------------------------------------------------------------------------------


def model() -> fgnn.GraphicalModel:
    m = fgnn.GraphicalModel([2, 2, 3])
    m.add_table((0, 1), [[0, 0.1], [0.2, 1.0]])
    return m


PAIRS = torch.tensor([[0, 1], [1, 2]])
SIZES: dict[str, Any] = {"variable_in": 2, "factor_in": {"pair": 4}, "edge_in": {"pair": 2}}


def layer(f: Any, g: Any, t: Any, name: str = "pair") -> Any:
    graph = fgnn.FactorGraph(3, {"pair": fgnn.FactorGroup(PAIRS)})
    return fgnn.nn.FGNNLayer(2, {"pair": 4}, {"pair": 2}, out=8)(graph, f, {name: g}, {"pair": t})


F, G, T = torch.zeros(3, 2), torch.zeros(2, 4), torch.eye(2)
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "no states": (lambda: fgnn.GraphicalModel([2, 0]), "state…variable"),
    "half a state": (lambda: fgnn.GraphicalModel([2.5]), "integer cardinalities (got float64)"),
    "one number": (lambda: fgnn.GraphicalModel(3), "cardinality"),
    "unary too long": (lambda: model().add_unary(0, [0, 1, 2]), "2 log-potentials…variable 0"),
    "unary NaN": (lambda: model().add_unary(0, [0, np.nan]), "log-potentials"),
    "table's shape": (lambda: model().add_table((0, 1), np.zeros((2, 3))), "table…(2, 2)…(2, 3)"),
    "scope too far": (lambda: model().add_table((0, 9), np.zeros((2, 2))), "3…9"),
    "scope twice": (lambda: model().add_table((0, 0), np.zeros((2, 2))), "distinct"),
    "budget of three": (lambda: model().add_budget((0, 2), 1), "binary…budget"),
    "budget negative": (lambda: model().add_budget((0, 1), -1), "at_least <= at_most"),
    "score of fewer": (lambda: model().score([0, 1]), "3 variables"),
    "score of halves": (lambda: model().score([0.5, 1, 1]), "integer states (got float64)"),
    "method": (lambda: fgnn.solve(model(), "exakt"), "exact?"),
    "option": (lambda: fgnn.solve(model(), "max-product", iteration=5), "max-product…'iteration'"),
    "a path": (lambda: fgnn.solve("tiny.uai"), "GraphicalModel…ModelBatch (got str)"),
    "limit as text": (lambda: fgnn.solve(model(), time_limit="10"), "time limit…(got '10')"),
    "device": (lambda: fgnn.solve(model(), device="gpu"), "device…(got 'gpu')"),
    "too large": (lambda: fgnn.solve(fgnn.GraphicalModel([2] * 40), "brute-force"), "max_states="),
    "structures": (
        lambda: fgnn.ModelBatch.stack([model(), fgnn.GraphicalModel([2, 2])]),
        "cardinalities…model 1",
    ),
    "suffix": (lambda: fgnn.write_model(model(), "a.bif"), ".fgm, .uai"),
    "scopes as floats": (lambda: fgnn.FactorGroup(PAIRS.float()), "integer scopes (got torch.float32)"),
    "scopes flat": (lambda: fgnn.FactorGroup(PAIRS[0]), "scopes of shape (C, A)"),
    "groups as a list": (lambda: fgnn.FactorGraph(3, [PAIRS]), "{'pair': FactorGroup(scopes)}"),
    "too few variables": (
        lambda: fgnn.FactorGraph(2, {"pair": fgnn.FactorGroup(PAIRS)}),
        "0 to 1…'pair' (got 2…factor 1",
    ),
    "width": (lambda: layer(torch.zeros(3, 5), G, T), "(3, 2)…(got (3, 5))"),
    "variables": (lambda: layer(torch.zeros(4, 2), G, T), "(B, 3, 2)…variables…(got (4, 2))"),
    "factors": (lambda: layer(F, torch.zeros(5, 4), T), "(2, 4)…factors…'pair' (got (5, 4))"),
    "edges": (lambda: layer(F, G, torch.eye(3)), "edges['pair']…(C, A, 2)"),
    "group": (lambda: layer(F, G, T, "pairs"), "['pair'] in gs (got ['pairs'])"),
    "integers": (lambda: layer(F.long(), G, T), "(got torch.int64)….float()"),
    "double": (lambda: layer(F.double(), G, T), "(got torch.float64)….to(torch.float32)…autocast"),
    "an array": (lambda: layer(F.numpy(), G, T), "(got ndarray)…torch.as_tensor"),
    "q": (lambda: fgnn.nn.FGNNLayer(2, {"a": 4}, {"a": 2}, out=8, q="bases"), "'dense', 'basis', 'table'"),
    "aggregate": (
        lambda: fgnn.nn.FGNNLayer(2, {"a": 4}, {"a": 2}, out=8, aggregate="maximum"),
        "['max', 'sum', 'mean', 'softmax']",
    ),
    "notation's word": (lambda: fgnn.nn.build("FGMN(64)", **SIZES), "line 1, column 1: …FGNN"),
    "notation's bracket": (lambda: fgnn.nn.build("FGNN(64", **SIZES), "')'…FGNN(64"),
    "notation's width": (lambda: fgnn.nn.build("Res[FGNN(8)]", **SIZES), "Res"),
    "variant": (
        lambda: fgnn.theory.max_product_network(model(), iterations=2, variant="papper"),
        "paper or standard (got 'papper')",
    ),
    "a flat cloud": (lambda: fgnn.points.Cloud(np.zeros((5, 2))), "(N, 3) (got (5, 2))"),
    "neighbours": (lambda: fgnn.points.knn(torch.zeros(1, 5, 3), 9), "k from 1 to 5"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_says_what_was_expected(name: str, here: Path) -> None:
    call, expected = CALLS[name]
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    check_says(str(caught.value), expected)
    assert "\n" not in str(caught.value)


def test_at_least_thirty_of_each_are_covered() -> None:
    assert len(COMMANDS) >= 30
    assert len(CALLS) >= 30
