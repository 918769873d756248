"""Memory and CPU time of each reader stay within `fgnn.bounds`, in processes that can map no more."""

from __future__ import annotations

import gzip
import lzma
import zipfile
from pathlib import Path

import pytest

from fgnn.bounds import BOUNDS, BROKEN
from fgnn.files import may_expand_to
from tests.fuzz.harnesses import HARNESSES
from tests.fuzz.large import HOSTILE, VALID
from tests.fuzz.measure import measured


def expanded(name: str, path: Path) -> int:
    """The uncompressed size of a file."""
    data = path.read_bytes()
    if name == "gz":
        return len(gzip.decompress(data))
    if name == "xz":
        return len(lzma.decompress(data))
    if name in ("npz", "packed"):
        with zipfile.ZipFile(path) as file:
            return sum(member.file_size for member in file.infolist())
    if name in ("blocks", "shapes"):
        h5py = pytest.importorskip("h5py")
        with h5py.File(path) as file:
            return int(sum(array.nbytes for array in file.values()))
    if name == "laz":
        laspy = pytest.importorskip("laspy")
        with laspy.open(path) as file:
            return int(file.header.point_count * file.header.point_format.size)
    return len(data)


def test_every_parser_has_a_stated_bound() -> None:
    calls = {"http", "options", "marginal-options", "marginals", "samples", "tiles", "names", "units"}
    assert set(HARNESSES) - calls - {"plan"} == set(BOUNDS)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_valid_files_stay_within_their_bounds(tmp_path: Path) -> None:
    files = []
    for k, (name, suffix, make) in enumerate(VALID):
        path = tmp_path / f"valid-{k}{suffix}"
        path.write_bytes(make())
        files.append((name, path, BOUNDS[name].of(expanded(name, path))))
    for (name, path, limit), cost in zip(files, measured(files), strict=True):
        context = f"{name}, {path.name}, {path.stat().st_size} bytes: {cost}"
        assert cost.get("refused") == "", context
        assert cost["seconds"] <= BOUNDS[name].seconds(expanded(name, path)), context
        if cost["known"]:
            assert cost["grown"] <= limit, context


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_hostile_files_are_refused_in_one_line_with_little_memory_and_time(tmp_path: Path) -> None:
    files = []
    for k, (_, name, suffix, make) in enumerate(HOSTILE):
        path = tmp_path / f"hostile-{k}{suffix}"
        path.write_bytes(make())
        files.append((name, path, min(BROKEN, BOUNDS[name].of(may_expand_to(path.stat().st_size, 64 << 20)))))
    for (what, *_), (name, path, limit), cost in zip(HOSTILE, files, measured(files), strict=True):
        context = f"{name}, {what}: {cost}"
        assert cost.get("refused"), context
        assert cost["refused"].isprintable(), context
        if name not in ("notation", "playground", "stored"):
            assert str(path) in cost["refused"], context
        assert cost["grown"] <= limit, context
        assert cost["seconds"] < 3, context  # CPU time; well below one second on an idle machine


def test_a_table_implied_by_a_short_file_stays_within_the_bound_or_is_refused(tmp_path: Path) -> None:
    short = {
        "fg": (".fg", "1\n\n2\n0 1\n{0} {0}\n1\n0 1\n"),
        "wcsp": (".wcsp", "t 2 {0} 1 99\n{0} {0}\n2 0 1 5 0\n"),
        "cfn": (".cfn", "{{{{t <9}} {{a {0} b {0}}} {{f {{[a b] 1.0 []}}}}}}"),
    }
    files = []
    for name, (suffix, text) in short.items():
        for states in (4090, 4097):
            path = tmp_path / f"{name}-{states}{suffix}"
            path.write_text(text.format(states))
            files.append((name, path, BOUNDS[name].of(path.stat().st_size)))
    for (name, path, _), cost in zip(files, measured(files), strict=True):
        if "4097" in path.name:
            assert "above the limit of 16777216" in cost["refused"], cost
            assert cost["grown"] < BROKEN
        else:
            assert cost["refused"] == "", cost
            assert cost["grown"] <= BOUNDS[name].of(path.stat().st_size), cost
