"""Atomic writes: permissions of ordinary files, whatever other threads do."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fgnn.files import atomic_write


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_written_file_has_the_permissions_of_any_new_file(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with atomic_write(tmp_path / "new") as file:
            file.write("x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~mask


def test_the_umask_of_the_process_is_never_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for a moment: a file that another thread creates then would be open to everyone."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("umask was set"))
    with atomic_write(tmp_path / "new", "wb") as file:
        file.write(b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["new"]
