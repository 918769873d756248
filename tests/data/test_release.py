"""Published files are recognised by their md5."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fgnn.data import release
from fgnn.data.release import check_release, published
from fgnn.data.s3dis import md5
from fgnn.errors import InputError


def test_thirty_three_hdf5_files_are_listed() -> None:
    names = [name for sums in published().values() for name in sums if name.endswith(".h5")]
    assert len(names) == 33
    assert all(len(value) == 32 for sums in published().values() for value in sums.values())


def test_a_file_is_as_published_differs_or_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.h5").write_bytes(b"right")
    (tmp_path / "b.h5").write_bytes(b"wrong")
    sums = {"a.h5": md5(tmp_path / "deep" / "a.h5"), "b.h5": "0" * 32, "c.h5": "0" * 32}
    monkeypatch.setattr(release, "published", lambda: {"it": sums, "other": {"z.h5": "0" * 32}})
    status = {file.name: file.status for file in check_release(tmp_path)}
    assert status == {"a.h5": "as published", "b.h5": "differs", "c.h5": "missing"}


def test_folders_without_published_files_give_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got none of their names"):
        check_release(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        check_release(tmp_path / "nowhere")


@pytest.mark.data
def test_the_real_list_of_rooms_is_as_published_and_missing_files_are_reported(data_dir: Path, tmp_path: Path) -> None:
    shutil.copy(data_dir / "s3dis_meta" / "room_filelist.txt", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "fgnn", "data", "check", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "as published   room_filelist.txt" in done.stdout
    assert done.stdout.count("missing") == 24
    assert "1 of 25 files" in done.stdout
