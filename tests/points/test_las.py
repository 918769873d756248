"""LAS and LAZ of every version and kind, by laspy as the witness: what a file says besides its points is kept."""

from __future__ import annotations

import struct
from pathlib import Path
from uuid import UUID

import laspy
import numpy as np
import pytest

from fgnn.errors import InputError
from fgnn.points.cloud import read_cloud, write_cloud

WKT = 'COMPOUNDCRS["RGF93 + NGF-IGN69"]'
PROJECT = UUID("12345678-1234-5678-1234-567812345678")


def make(path: Path, *, version: str = "1.2", point_format: int = 1, records: tuple[laspy.VLR, ...] = ()) -> Path:
    """A file of 500 points as laspy writes it; ``records`` lie behind the points."""
    rng = np.random.default_rng(0)
    header = laspy.LasHeader(point_format=point_format, version=version)
    header.scales, header.uuid = np.full(3, 0.01), PROJECT
    las = laspy.LasData(header)
    las.x, las.y, las.z = rng.uniform(0, 100, (3, 500))
    las.intensity, las.classification = rng.integers(0, 1000, 500), rng.integers(0, 10, 500)
    if records:
        las.evlrs = laspy.vlrs.vlrlist.VLRList(records)
    las.write(str(path))
    return path


def rewrite(path: Path, suffix: str) -> laspy.LasData:
    """The file read by us, labelled and written by us, read by laspy."""
    cloud = read_cloud(path)
    out = path.with_name(f"out{suffix}")
    write_cloud(cloud.with_fields(label=np.arange(len(cloud), dtype=np.uint16)), out)
    return laspy.read(str(out))


def same_points(mine: laspy.LasData, path: Path) -> bool:
    wanted = laspy.read(str(path))
    names = ("X", "Y", "Z", "intensity", "classification", "gps_time", "return_number")
    return all(np.array_equal(mine[name], wanted[name]) for name in names)


@pytest.mark.parametrize("suffix", [".las", ".laz"])
@pytest.mark.parametrize("minor", [0, 1, 2])
def test_older_versions_are_read_and_written(tmp_path: Path, minor: int, suffix: str) -> None:
    path = make(tmp_path / f"a{suffix}")
    data = bytearray(path.read_bytes())
    data[25] = minor
    path.write_bytes(data)
    back = rewrite(path, suffix)
    assert back.header.version.minor == (minor or 2)
    assert same_points(back, path)
    assert np.array_equal(back["label"], np.arange(500))


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_records_behind_the_points_and_the_project_are_kept(tmp_path: Path, suffix: str) -> None:
    records = (
        laspy.VLR("LASF_Projection", 2112, "WKT", WKT.encode() + b"\0"),
        laspy.VLR("someone", 7, "their own", bytes(range(256)) * 300),  # too long for a record before the points
    )
    path = make(tmp_path / "a.laz", version="1.4", point_format=6, records=records)
    back = rewrite(path, suffix)
    assert back.header.uuid == PROJECT
    assert same_points(back, path)
    assert back.evlrs is not None
    assert [(v.user_id, v.record_id, v.record_data_bytes()) for v in back.evlrs] == [
        (v.user_id, v.record_id, v.record_data_bytes()) for v in records
    ]


def test_copc_is_read_as_points_and_written_without_its_octree(tmp_path: Path) -> None:
    hierarchy = laspy.VLR("copc", 1000, "EPT hierarchy", bytes(32))
    crs = laspy.VLR("LASF_Projection", 2112, "WKT", WKT.encode() + b"\0")
    header = laspy.LasHeader(point_format=6, version="1.4")
    header.vlrs.append(laspy.VLR("copc", 1, "copc info", bytes(160)))
    las = laspy.LasData(header)
    las.x = las.y = las.z = np.arange(50.0)
    las.evlrs = laspy.vlrs.vlrlist.VLRList([hierarchy, crs])
    path = tmp_path / "a.copc.laz"
    las.write(str(path))
    back = rewrite(path, ".laz")
    assert same_points(back, path)
    assert back.evlrs is not None
    assert [v.user_id for v in (*back.vlrs, *back.evlrs) if v.user_id != "laszip encoded"] == [
        "LASF_Spec",
        "LASF_Projection",
    ]
    with pytest.raises(InputError, match=r"COPC.*use \.laz"):
        write_cloud(read_cloud(path), tmp_path / "b.copc.laz")


def in_one_run(path: Path, chunk: int) -> bytes:
    """The same LAZ as the first compressors wrote it: one run of points, without chunks and their table."""
    data = bytearray(path.read_bytes())
    begin = int.from_bytes(data[96:100], "little")
    record = data.index(b"laszip encoded") - 2 + 54
    struct.pack_into("<H", data, record, 1)
    struct.pack_into("<I", data, record + 12, chunk)
    (table,) = struct.unpack_from("<q", data, begin)
    return bytes(data[:begin] + data[begin + 8 : table])


@pytest.mark.parametrize("chunk", [100, 50_000])
def test_points_compressed_in_one_run_are_read(tmp_path: Path, chunk: int) -> None:
    path = make(tmp_path / "a.laz")
    wanted = read_cloud(path)
    data = bytearray(in_one_run(path, chunk))
    data[25] = 0  # such files are of LAS 1.0
    (tmp_path / "b.laz").write_bytes(data)
    cloud = read_cloud(tmp_path / "b.laz")
    assert np.array_equal(cloud.xyz, wanted.xyz)
    assert np.array_equal(cloud.fields["intensity"], wanted.fields["intensity"])


@pytest.mark.parametrize("chunk", [0, 0xFFFFFFFF])
def test_a_run_in_chunks_of_no_length_is_refused(tmp_path: Path, chunk: int) -> None:
    path = make(tmp_path / "a.laz")
    path.write_bytes(in_one_run(path, chunk))
    with pytest.raises(InputError, match=f"chunks of {chunk} points"):
        read_cloud(path)


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.99])
def test_a_run_cut_short_is_one_line(tmp_path: Path, kept: float) -> None:
    path = make(tmp_path / "a.laz")
    data = in_one_run(path, 50_000)
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(InputError, match=r"a\.laz"):
        read_cloud(path)
