"""Fields survive every format exactly, or the file is refused in one line before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fgnn.errors import InputError
from fgnn.points.cloud import Cloud, open_cloud, read_cloud, write_cloud

SUFFIXES = [".ply", ".las", ".laz", ".pcd", ".xyz", ".csv", ".npy", ".npz"]
AXIS_NAMES = ["X", "Y", "Z", "easting", "northing", "height", "#x", "//x"]
ODD_NAMES = [
    *AXIS_NAMES, "", " ", "a b", "a\nb", "a,b", "a;b", "a:b", "a\tb", "#a", "//", "1", "nan", "xyz", "points", "pos",
    "coord", "file", "a.npy", "a/b", "../a", "\0", "a\0b", "\x1b[31m", "é", "度", "\udc80", "\u2028", "property",
    "end_header", "DATA ascii", "intensity", "classification", "return_number", "bit_fields", "flag_byte", "gps_time",
    "red", "x_t", "scan_angle", "n" * 32, "n" * 33, "é" * 17, "_", "label", "__class__", "array",
]  # fmt: skip
KINDS = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]


def values_of(kind: str, count: int, seed: int) -> NDArray[Any]:
    """Values of a type, the extreme ones among them."""
    rng, dtype = np.random.default_rng(seed), np.dtype(kind)
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(bool)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            values = (rng.normal(size=count) * 10.0 ** rng.integers(-3, 6, count)).astype(dtype)
        values[: min(count, 3)] = [np.nan, np.finfo(dtype).max, np.finfo(dtype).tiny][:count]
        return values
    info = np.iinfo(dtype)
    values = rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    values[: min(count, 2)] = [info.min, info.max][:count]
    return values


def _refusal(cloud: Cloud, file: Path) -> str:
    try:
        write_cloud(cloud, file)
    except InputError as error:
        return str(error)
    return ""


def survives_or_is_refused(cloud: Cloud, file: Path) -> bool:
    """Write and read a cloud: True if every field is the same, False if it was refused and nothing was written."""
    before = sorted(p.name for p in file.parent.iterdir())
    refusal = _refusal(cloud, file)
    if refusal:
        assert refusal.isprintable()
        assert file.name in refusal
        assert sorted(p.name for p in file.parent.iterdir()) == before
        return False
    back = read_cloud(file)
    np.testing.assert_allclose(back.xyz, cloud.xyz, rtol=0, atol=5.1e-5 if file.suffix in (".las", ".laz") else 0)
    assert set(cloud.fields) <= set(back.fields)
    for name, values in cloud.fields.items():
        same = back.fields[name].astype(values.dtype) if values.dtype.kind in "bf" else back.fields[name]
        np.testing.assert_array_equal(same, values, err_msg=name)
        if values.dtype.kind in "iu" and len(values):
            assert int(same.max()) == int(values.max())
            assert int(same.min()) == int(values.min())
    return True


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("count", [0, 5])
def test_any_name(tmp_path: Path, suffix: str, count: int) -> None:
    xyz = np.arange(3.0 * count).reshape(-1, 3)
    kept = [
        name
        for name in ODD_NAMES
        if survives_or_is_refused(Cloud(xyz, {name: values_of("u1", count, 0) % 2}), tmp_path / f"a{suffix}")
    ]
    assert {"label", "_", "classification", "red"} <= set(kept)
    if suffix in (".las", ".laz"):
        assert not {"X", "Y", "Z"} & set(kept)
    else:
        assert set(AXIS_NAMES[:6]) <= set(kept)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", KINDS)
def test_any_type(tmp_path: Path, suffix: str, kind: str) -> None:
    cloud = Cloud(np.arange(30.0).reshape(-1, 3), {"field": values_of(kind, 10, 1)})
    kept = survives_or_is_refused(cloud, tmp_path / f"a{suffix}")
    assert kept or (suffix, kind) in {(".ply", "u8"), (".ply", "i8")}


@given(
    suffix=st.sampled_from(SUFFIXES),
    names=st.lists(st.sampled_from(ODD_NAMES) | st.text(max_size=40), max_size=5, unique=True),
    kinds=st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
    count=st.integers(0, 6),
)
@example(suffix=".csv", names=["height", "X"], kinds=["i8"] * 5, count=3)
@settings(max_examples=150)
def test_any_fields(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, names: list[str], kinds: list[str], count: int
) -> None:
    fields = {n: values_of(k, count, i) for i, (n, k) in enumerate(zip(names, kinds, strict=False))}
    survives_or_is_refused(
        Cloud(np.arange(3.0 * count).reshape(-1, 3), fields), tmp_path_factory.mktemp("f") / f"a{suffix}"
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_labelling_again_and_again_keeps_every_label(tmp_path: Path, suffix: str) -> None:
    write_cloud(Cloud(np.arange(12.0).reshape(-1, 3)), tmp_path / f"0{suffix}")
    for turn in range(1, 5):
        cloud = read_cloud(tmp_path / f"{turn - 1}{suffix}")
        write_cloud(cloud.with_fields(label=np.full(4, turn, np.uint8)), tmp_path / f"{turn}{suffix}")
    fields = read_cloud(tmp_path / f"4{suffix}").fields
    labels = {name: int(values[0]) for name, values in fields.items() if name.startswith("label")}
    assert labels == {"label": 4, "label_original": 1, "label_original_2": 2, "label_original_3": 3}


def test_a_field_named_like_a_coordinate_never_replaces_it(tmp_path: Path) -> None:
    xyz = np.arange(12.0).reshape(-1, 3)
    for name in ("X", "Y", "Z"):
        with pytest.raises(InputError, match=f"'{name}'"):
            write_cloud(Cloud(xyz, {name: np.zeros(4, np.int32)}), tmp_path / "a.las")
    for name in ("x", "y", "z"):
        with pytest.raises(InputError, match=f"'{name}'"):
            write_cloud(Cloud(xyz, {name: np.zeros(4)}), tmp_path / "a.ply")


def test_values_that_a_standard_dimension_cannot_hold_are_refused(tmp_path: Path) -> None:
    xyz = np.zeros((2, 3))
    for name, values in {
        "intensity": np.array([0.5, 1.0]),
        "red": np.array([70_000, 0]),
        "classification": np.array([-1, 2]),
        "return_number": np.array([1, 16]),
    }.items():
        with pytest.raises(InputError, match=name):
            write_cloud(Cloud(xyz, {name: values, "green": np.zeros(2), "blue": np.zeros(2)}), tmp_path / "a.las")
    write_cloud(
        Cloud(xyz, {"classification": np.array([255, 2]), "return_number": np.array([1, 15])}), tmp_path / "a.las"
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_several_values_per_point_stay_in_las_and_are_refused_elsewhere(tmp_path: Path) -> None:
    laspy = pytest.importorskip("laspy")
    header = laspy.LasHeader(point_format=6, version="1.4")
    header.add_extra_dim(laspy.ExtraBytesParams("normal", "3f4"))
    scaled = laspy.ExtraBytesParams("depth", "i4", scales=np.array([0.01]), offsets=np.array([5.0]))
    header.add_extra_dim(scaled)
    cloud = laspy.LasData(header)
    cloud.x, cloud.y, cloud.z = np.arange(6.0).reshape(3, 2)
    cloud["normal"], cloud["depth"] = np.arange(6.0).reshape(2, 3), np.array([5.25, -3.0])
    cloud.write(tmp_path / "a.las")
    read = read_cloud(tmp_path / "a.las").with_fields(label=np.ones(2, np.uint8))
    write_cloud(read, tmp_path / "b.las")
    back = read_cloud(tmp_path / "b.las").fields
    np.testing.assert_array_equal(back["normal"], np.arange(6.0).reshape(2, 3))
    np.testing.assert_allclose(back["depth"], [5.25, -3.0])
    for suffix in (".ply", ".pcd", ".csv", ".npy", ".npz"):
        for values in (read.fields["normal"], np.ones((2, 3), np.int32)):
            with pytest.raises(InputError, match="'normal': it has 3 values per point"):
                write_cloud(Cloud(read.xyz, {"normal": values}), tmp_path / f"b{suffix}")


def test_writing_leaves_the_header_of_the_source_alone(tmp_path: Path) -> None:
    write_cloud(Cloud(np.zeros((2, 3)), {"a": np.arange(2, dtype=np.uint8)}), tmp_path / "a.las")
    cloud = read_cloud(tmp_path / "a.las")
    write_cloud(cloud.with_fields(label=np.ones(2, np.uint8)), tmp_path / "b.las")
    write_cloud(cloud, tmp_path / "c.las")
    assert "label" not in open_cloud(tmp_path / "c.las").header.fields


def test_integers_in_text_that_float64_rounds_are_read_exactly(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("x,y,z,ns,big,mixed,small\n1,2,3,-9007199254740993,18446744073709551615,9007199254740993,7\n"
                    "1,2,3,1700000000123456789,3,0.5,8\n\n# a comment\n1,2,3,0,0,1,9\n")  # fmt: skip
    fields = read_cloud(file).fields
    assert fields["ns"].tolist() == [-9007199254740993, 1700000000123456789, 0]
    assert fields["big"].tolist() == [18446744073709551615, 3, 0]
    assert fields["mixed"].dtype == fields["small"].dtype == np.float64


def test_pcd_is_read_by_another_library(tmp_path: Path) -> None:
    pypcd4 = pytest.importorskip("pypcd4")
    cloud = Cloud(
        np.arange(30.0).reshape(-1, 3) / 7, {"id": np.arange(10, dtype=np.int64) << 40, "w": np.ones(10, np.float16)}
    )
    for encoding in ("ascii", "binary", "binary_compressed"):
        head = f"FIELDS x y z\nSIZE 8 8 8\nTYPE F F F\nPOINTS 0\nDATA {encoding}\n"
        (tmp_path / "empty.pcd").write_text(head)
        source = open_cloud(tmp_path / "empty.pcd").header
        write_cloud(Cloud(cloud.xyz, cloud.fields, source), tmp_path / "a.pcd")
        other = pypcd4.PointCloud.from_path(tmp_path / "a.pcd")
        np.testing.assert_array_equal(np.asarray(other.pc_data["x"]), cloud.xyz[:, 0])
        if encoding != "ascii":  # its ascii reader parses integers as float64
            np.testing.assert_array_equal(other.pc_data["id"], cloud.fields["id"])
        np.testing.assert_array_equal(read_cloud(tmp_path / "a.pcd").fields["id"], cloud.fields["id"])
