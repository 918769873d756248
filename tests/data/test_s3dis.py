"""S3DIS in its three forms, on generated rooms and on the real index."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fgnn.data.s3dis import (
    CLASSES,
    Room,
    area_of,
    collect_room,
    cut_rooms,
    load_blocks,
    load_room,
    rooms,
    save_blocks,
    save_room,
)
from fgnn.data.scenes import make_room
from fgnn.errors import InputError
from fgnn.points.blocks import sampled_blocks


def write_raw(room: Room, folder: Path) -> Path:
    """A room in the layout of the raw release."""
    area, name = f"Area_{room.area}", room.name.split("_", 2)[2]
    notes = folder / area / name / "Annotations"
    notes.mkdir(parents=True)
    for kind in np.unique(room.label):
        inside = room.label == kind
        rows = np.concatenate([room.xyz[inside], np.round(room.rgb[inside] * 255)], axis=1)
        np.savetxt(notes / f"{CLASSES[kind]}_1.txt", rows, fmt="%.3f %.3f %.3f %d %d %d")
    return folder / area / name


def test_raw_and_collected_rooms_agree(tmp_path: Path) -> None:
    room = make_room("Area_3_office_2", seed=5, density=30)
    raw = collect_room(write_raw(room, tmp_path / "raw"))
    assert raw.name == "Area_3_office_2"
    assert raw.xyz.min(0).tolist() == [0, 0, 0]
    assert np.bincount(raw.label, minlength=13).tolist() == np.bincount(room.label, minlength=13).tolist()
    (tmp_path / "npy").mkdir()
    again = load_room(save_room(raw, tmp_path / "npy"))
    np.testing.assert_array_equal(again.xyz, raw.xyz)
    np.testing.assert_allclose(again.rgb, raw.rgb)
    np.testing.assert_array_equal(again.label, raw.label)
    for root in (tmp_path / "raw", tmp_path / "npy"):
        assert [r.name for r in rooms(root)] == ["Area_3_office_2"]
        with pytest.raises(InputError, match="Expected rooms of Area_1"):
            list(rooms(root, areas=(1,)))


def test_unknown_classes_become_clutter(tmp_path: Path) -> None:
    notes = tmp_path / "Area_1" / "hallway_1" / "Annotations"
    notes.mkdir(parents=True)
    (notes / "stairs_1.txt").write_text("0 0 0 10 20 30\n1 1 1 10 20 30\n")
    assert collect_room(notes.parent).label.tolist() == [12, 12]


def test_the_known_corrupt_byte_is_repaired_and_others_are_rejected(tmp_path: Path) -> None:
    for area, room, repaired in (("Area_5", "hallway_6", True), ("Area_2", "office_1", False)):
        notes = tmp_path / area / room / "Annotations"
        notes.mkdir(parents=True)
        (notes / "ceiling_1.txt").write_bytes(b"0 0 0 1 2 3\n1 1 1 4\x105 6\n")
        if repaired:
            assert collect_room(notes.parent).rgb[1].tolist() == [4 / 255, 5 / 255, 6 / 255]
        else:
            with pytest.raises(InputError, match=r"ceiling_1\.txt, line 2"):
                collect_room(notes.parent)


def test_blocks_round_trip_through_the_hdf5_layout(tmp_path: Path) -> None:
    generated = [make_room(f"Area_{a}_office_1", seed=a, density=150) for a in (1, 2)]
    blocks = cut_rooms(generated, 0.5)
    save_blocks(blocks, tmp_path, per_file=20)
    back = load_blocks(tmp_path)
    np.testing.assert_array_equal(back.features, blocks.features)
    np.testing.assert_array_equal(back.label, blocks.label)
    assert back.room.tolist() == blocks.room.tolist()
    train, test = back.fold(2, train=True), back.fold(2, train=False)
    assert {area_of(back.room[i]) for i in train} == {1}
    assert {area_of(back.room[i]) for i in test} == {2}
    with pytest.raises(InputError, match="Expected md5 0"):
        load_blocks(tmp_path, checksums={"ply_data_all_0.h5": "0"})


def test_broken_rooms_give_one_line(tmp_path: Path) -> None:
    (tmp_path / "Area_1_office_1.npy").write_bytes(b"junk")
    with pytest.raises(InputError, match="collected room"):
        list(rooms(tmp_path))
    with pytest.raises(InputError, match="Annotations"):
        collect_room(tmp_path)
    with pytest.raises(ValueError, match="Area_<k>"):
        area_of("kitchen")


@pytest.mark.data
def test_the_real_index_has_the_published_blocks_per_area(data_dir: Path) -> None:
    names = (data_dir / "s3dis_meta" / "room_filelist.txt").read_text().split()
    assert len(names) == 23585
    assert [sum(area_of(n) == a for n in names) for a in range(1, 7)] == [3687, 4440, 1650, 3662, 6852, 3294]
    meta = json.loads((data_dir / "s3dis_meta" / "meta.json").read_text())
    assert sum(meta["s3dis_blocks_per_room"].values()) == 23585


@pytest.mark.data
def test_the_real_office_becomes_blocks(data_dir: Path) -> None:
    with np.load(data_dir / "scans" / "s3dis_room.npz") as data:
        xyz, label = data["xyz_mm"] / 1000.0, data["label"].astype(np.int64)
        assert data["class_names"].tolist() == list(CLASSES)
    blocks = list(sampled_blocks(xyz, np.zeros_like(xyz), label, stride=1.0))
    assert len(blocks) > 10
    assert all(b.features.shape == (4096, 9) and np.isfinite(b.features).all() for b in blocks)
