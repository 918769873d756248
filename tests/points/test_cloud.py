"""Cloud files: every format keeps every field, and a broken file gives one line."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgnn.errors import InputError
from fgnn.points.cloud import Cloud, open_cloud, read_cloud, write_chunks, write_cloud

SUFFIXES = [".ply", ".las", ".laz", ".pcd", ".xyz", ".txt", ".csv", ".npy", ".npz"]


def sample(count: int = 50, seed: int = 0) -> Cloud:
    rng = np.random.default_rng(seed)
    # survey coordinates: float32 would lose the decimetres
    xyz = np.round(rng.uniform(0, 30, size=(count, 3)) + np.array([512_000, 5_403_000, 210]), 4)
    fields = {
        "red": rng.integers(0, 256, count).astype(np.uint8),
        "green": rng.integers(0, 256, count).astype(np.uint8),
        "blue": rng.integers(0, 256, count).astype(np.uint8),
        "weird_field": rng.normal(size=count),
        "label": rng.integers(-1, 4, count).astype(np.int32),
    }
    return Cloud(xyz, fields)


def test_repr_lists_points_and_fields() -> None:
    assert repr(sample(1200)) == "Cloud(1,200 points; red, green, blue, weird_field, label)"
    assert repr(Cloud(np.zeros((0, 3)))) == "Cloud(0 points; no fields)"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_field_is_kept(tmp_path: Path, suffix: str) -> None:
    cloud = sample()
    write_cloud(cloud, tmp_path / f"a{suffix}")
    back = read_cloud(tmp_path / f"a{suffix}")
    np.testing.assert_allclose(back.xyz, cloud.xyz, rtol=0, atol=1e-9 if suffix not in (".las", ".laz") else 5.1e-5)
    for name, values in cloud.fields.items():
        np.testing.assert_array_equal(back.fields[name], values, err_msg=name)
    assert back.rgb is not None
    np.testing.assert_allclose(back.rgb, cloud.rgb)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rewriting_a_file_only_adds_fields(tmp_path: Path, suffix: str) -> None:
    write_cloud(sample(), tmp_path / f"a{suffix}")
    first = read_cloud(tmp_path / f"a{suffix}")
    labels = np.arange(len(first)).astype(np.uint8)
    write_cloud(first.with_fields(label=labels, confidence=np.ones(len(first), np.float32)), tmp_path / f"b{suffix}")
    second = read_cloud(tmp_path / f"b{suffix}")
    np.testing.assert_array_equal(second.xyz, first.xyz)
    np.testing.assert_array_equal(second.fields["label"], labels)
    np.testing.assert_array_equal(second.fields["label_original"], first.fields["label"])
    np.testing.assert_array_equal(second.fields["weird_field"], first.fields["weird_field"])
    np.testing.assert_array_equal(second.fields["confidence"], 1)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_chunks_concatenate_to_the_cloud(tmp_path: Path, suffix: str) -> None:
    cloud = sample(100)
    write_cloud(cloud, tmp_path / f"a{suffix}")
    parts = list(open_cloud(tmp_path / f"a{suffix}").chunks(size=33))
    assert sum(map(len, parts)) == 100
    np.testing.assert_array_equal(np.concatenate([p.xyz for p in parts]), read_cloud(tmp_path / f"a{suffix}").xyz)
    write_chunks(parts, tmp_path / f"b{suffix}", count=100)
    np.testing.assert_array_equal(read_cloud(tmp_path / f"b{suffix}").xyz, np.concatenate([p.xyz for p in parts]))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("count", [0, 1])
def test_clouds_of_zero_and_one_points(tmp_path: Path, suffix: str, count: int) -> None:
    write_cloud(sample(count), tmp_path / f"a{suffix}")
    assert len(read_cloud(tmp_path / f"a{suffix}")) == count


@pytest.mark.parametrize("suffix", [".ply", ".pcd", ".csv", ".npz"])
def test_points_without_coordinates_are_kept(tmp_path: Path, suffix: str) -> None:
    cloud = Cloud(np.array([[0.0, 1.0, 2.0], [np.nan, 0.0, 0.0]]))
    write_cloud(cloud, tmp_path / f"a{suffix}")
    back = read_cloud(tmp_path / f"a{suffix}")
    np.testing.assert_array_equal(back.xyz, cloud.xyz)
    assert back.valid.tolist() == [True, False]


def test_las_rejects_points_without_coordinates(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="finite coordinates"):
        write_cloud(Cloud(np.array([[0.0, 1.0, np.nan]])), tmp_path / "a.las")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("order", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_ply_keeps_its_encoding_and_its_faces(tmp_path: Path, order: str) -> None:
    head = (
        f"ply\nformat {order} 1.0\ncomment made by hand\nelement vertex 3\nproperty float x\nproperty float y\n"
        "property float z\nproperty uchar quality\nelement face 1\nproperty list uchar int vertex_indices\nend_header\n"
    )
    sign = ">" if order.endswith("big_endian") else "<"
    rows = np.array([(0, 0, 0, 7), (1, 0, 0, 8), (0, 1, 0, 9)], dtype=[(a, sign + "f4") for a in "xyz"] + [("q", "u1")])
    if order == "ascii":
        body = b"0 0 0 7\n1 0 0 8\n0 1 0 9\n3 0 1 2\n"
        tail = b"3 0 1 2\n"
    else:
        tail = b"\x03" + np.array([0, 1, 2], dtype=sign + "i4").tobytes()
        body = rows.tobytes() + tail
    (tmp_path / "a.ply").write_bytes(head.encode() + body)
    cloud = read_cloud(tmp_path / "a.ply")
    assert cloud.fields["quality"].tolist() == [7, 8, 9]
    write_cloud(cloud.with_fields(label=np.zeros(3, np.uint8)), tmp_path / "b.ply")
    written = (tmp_path / "b.ply").read_bytes()
    assert written.endswith(tail)
    assert f"format {order}".encode() in written
    assert b"comment made by hand" in written
    assert b"property list uchar int vertex_indices" in written
    np.testing.assert_array_equal(read_cloud(tmp_path / "b.ply").xyz, cloud.xyz)


@pytest.mark.parametrize("encoding", ["ascii", "binary", "binary_compressed"])
def test_an_organised_pcd_stays_an_image_seen_from_its_viewpoint(tmp_path: Path, encoding: str) -> None:
    write_cloud(sample(12), tmp_path / "a.pcd")
    head, data, points = (tmp_path / "a.pcd").read_bytes().partition(b"DATA binary\n")
    head = head.replace(b"WIDTH 12", b"WIDTH 4").replace(b"HEIGHT 1", b"HEIGHT 3")
    head = head.replace(b"VIEWPOINT 0 0 0 1 0 0 0", b"VIEWPOINT 1 2 3 0.5 0.5 0.5 0.5")
    (tmp_path / "b.pcd").write_bytes(head + data + points)
    cloud = read_cloud(tmp_path / "b.pcd")
    assert cloud.header is not None
    cloud = replace(cloud, header=replace(cloud.header, keep={**cloud.keep, "encoding": encoding}))
    write_cloud(cloud.with_fields(confidence=np.ones(12, np.float32)), tmp_path / "c.pcd")
    lines = (tmp_path / "c.pcd").read_bytes().split(b"DATA")[0].decode().splitlines()
    assert {"WIDTH 4", "HEIGHT 3", "POINTS 12", "VIEWPOINT 1 2 3 0.5 0.5 0.5 0.5"} <= set(lines)
    write_cloud(read_cloud(tmp_path / "c.pcd")[:8], tmp_path / "d.pcd")  # no image any more
    assert b"WIDTH 8\nHEIGHT 1\n" in (tmp_path / "d.pcd").read_bytes()


def test_colour_packed_into_a_float_is_read() -> None:
    bits = np.array([0x00FF8000], dtype=np.uint32)
    cloud = Cloud(np.zeros((1, 3)), {"rgb": bits.view(np.float32)})
    np.testing.assert_allclose(cloud.rgb, [[1.0, 128 / 255, 0.0]], atol=1e-6)


def test_local_coordinates_keep_millimetres() -> None:
    cloud = Cloud(np.array([[512_000.123, 5_403_000.456, 10.0], [512_001.123, 5_403_000.457, 11.0]]))
    assert cloud.origin.tolist() == [512_000.0, 5_403_000.0, 10.0]
    assert cloud.local()[1, 1] - cloud.local()[0, 1] == pytest.approx(0.001, abs=1e-6)


PLY = b"ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
BROKEN = [
    ("a.ply", b"", "starts with 'ply'"),
    ("a.ply", b"ply\nformat ascii 1.0\n", "end_header"),
    ("a.ply", PLY + b"0.0000 0.0000 0.0000\n", "ends after 1 of 2 points"),
    ("a.ply", PLY + b"0 0 0\n1 x 1\n", "Expected 3 numbers a line"),
    ("a.ply", PLY.replace(b"vertex 2", b"vertex 99999999999") + b"0 0 0\n", "declares 99999999999 points"),
    ("a.ply", PLY.replace(b"ascii", b"binary_middle_endian"), "Expected a format among"),
    ("a.ply", PLY.replace(b"float z", b"float w") + b"0 0 0\n1 1 1\n", "Expected vertex properties x, y and z"),
    ("a.ply", PLY.replace(b"property float z", b"property list uchar int z"), "Expected scalar vertex properties"),
    ("a.ply", PLY.replace(b"ascii", b"binary_little_endian") + b"\0" * 20, "declares 2 points but has only 20 bytes"),
    ("a.las", b"LASF junk", "cannot be read as LAS/LAZ"),
    ("a.laz", bytes(range(256)) * 4, "cannot be read as LAS/LAZ"),
    ("a.pcd", b"VERSION .7\n", "ends with DATA"),
    ("a.pcd", b"FIELDS x y\nSIZE 4 4\nTYPE F F\nPOINTS 1\nDATA ascii\n0 0\n", "Expected fields x, y and z"),
    ("a.pcd", b"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nPOINTS 99999999\nDATA binary\n0", "declares 99999999 points"),
    ("a.pcd", b"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nPOINTS 1\nDATA zip\n0", "Expected DATA ascii"),
    (
        "a.pcd",
        b"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH " + b"9" * 5000 + b"\nHEIGHT 1\nPOINTS 1\nDATA binary\n0",
        "1 point",
    ),
    ("a.xyz", b"0 0 0\n1 2\n", "line 2"),
    ("a.csv", b"x,y,w\n1,2,3\n", "Expected columns x, y and z"),
    ("a.txt", b"\xff\xfe\x00 junk", "Expected columns x, y and z"),
    ("a.npy", b"\x93NUMPY junk", "cannot be read as .npy"),
    ("a.npz", b"PK junk", "cannot be read as .npz"),
    ("a.obj", b"v 0 0 0", "Expected a cloud in .ply"),
]


@pytest.mark.parametrize(("name", "data", "message"), BROKEN)
def test_a_broken_file_gives_one_line_that_names_it(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_cloud(tmp_path / name)
    assert message in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_cloud(tmp_path / "none.ply")
    with pytest.raises(InputError, match="got a folder"):
        read_cloud(tmp_path)


def test_pickled_arrays_are_rejected(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError):
        read_cloud(tmp_path / "a.npy")


@given(data=st.binary(max_size=300), suffix=st.sampled_from(SUFFIXES), cut=st.integers(0, 400))
def test_junk_and_truncation_raise_only_input_errors(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("junk")
    write_cloud(sample(5), folder / f"good{suffix}")
    good = (folder / f"good{suffix}").read_bytes()
    for text in (data, good[:cut] + data, good[:cut]):
        (folder / f"bad{suffix}").write_bytes(text)
        with suppress(InputError):  # anything else escapes and fails the test
            read_cloud(folder / f"bad{suffix}")


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("Megaplot.laz", 81590),
        ("laspy_autzen_trim.laz", 110000),
        ("cgal_b9_training.ply", 22300),
        ("open3d_fragment.pcd", 113662),
        ("pcl_room_scan1.pcd", 112586),
    ],
)
def test_real_scans_are_rewritten_unchanged(data_dir: Path, tmp_path: Path, name: str, count: int) -> None:
    cloud = read_cloud(data_dir / "scans" / name)
    assert len(cloud) == count
    out = tmp_path / name
    write_cloud(cloud, out)
    back = read_cloud(out)
    np.testing.assert_array_equal(back.xyz, cloud.xyz)
    for field, values in cloud.fields.items():
        np.testing.assert_array_equal(back.fields[field], values)
