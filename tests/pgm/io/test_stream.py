"""Opening files: compression and its limits, and paths that are not files."""

from __future__ import annotations

import gzip
import lzma
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fgnn import read_model
from fgnn.errors import InputError
from fgnn.pgm import Limits
from fgnn.pgm.io.stream import ByteStream
from tests.pgm.io.samples import GOOD, UAI


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_several_members_are_concatenated(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    suffix = ".gz" if pack is gzip.compress else ".xz"
    path = tmp_path / f"a{suffix}"
    path.write_bytes(pack(UAI[:50]) + pack(UAI[50:]))
    assert bytes(ByteStream(path).whole()) == UAI


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 5 << 20])
@pytest.mark.parametrize("suffix", [".gz", ".xz", ".txt"])
def test_every_byte_comes_through(tmp_path: Path, size: int, suffix: str) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    pack = {".gz": gzip.compress, ".xz": lzma.compress, ".txt": bytes}[suffix]
    (tmp_path / f"a{suffix}").write_bytes(pack(data))
    blocks = list(ByteStream(tmp_path / f"a{suffix}").blocks())
    assert b"".join(blocks) == data
    assert max(map(len, blocks), default=0) <= 1 << 20


@pytest.fixture(scope="module")
def bombs() -> dict[tuple[str, bytes], bytes]:
    packs = {".gz": gzip.compress, ".xz": lzma.compress}
    return {(s, f): pack(f * ((6 << 20) // len(f))) for s, pack in packs.items() for f in (b" ", b"0 ", b"0")}


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("filler", [b" ", b"0 ", b"0"])
@pytest.mark.parametrize("kind", [".uai", ".fg", ".bif", ".cfn", ".wcsp", ".fgm"])
def test_a_bomb_is_refused_at_once(
    tmp_path: Path, bombs: dict[tuple[str, bytes], bytes], suffix: str, filler: bytes, kind: str
) -> None:
    path = tmp_path / f"bomb{kind}{suffix}"
    path.write_bytes(bombs[suffix, filler])
    start = time.perf_counter()
    with pytest.raises(InputError, match="bomb"):
        read_model(path, limits=Limits(decompressed=4 << 20))
    assert time.perf_counter() - start < 5  # generous: a busy machine


def test_a_bomb_of_evidence_is_refused_as_well(tmp_path: Path, bombs: dict[tuple[str, bytes], bytes]) -> None:
    (tmp_path / "a.uai").write_bytes(UAI)
    (tmp_path / "bomb.evid.gz").write_bytes(bombs[".gz", b"0 "])
    with pytest.raises(InputError, match="bomb"):
        read_model(tmp_path / "a.uai", evidence=tmp_path / "bomb.evid.gz")


def test_the_limit_is_stated_and_can_be_raised(tmp_path: Path) -> None:
    path = tmp_path / "a.uai.gz"
    path.write_bytes(gzip.compress(b" " * 10_000 + UAI))
    with pytest.raises(InputError, match=r"a\.uai\.gz, byte \d+: expands to more than the 5000 bytes allowed"):
        read_model(path, limits=Limits(decompressed=5000))
    assert read_model(path, limits=Limits(decompressed=20_000)).num_variables == 3


def test_by_default_a_file_may_expand_to_64_mebibytes_or_256_fold(tmp_path: Path) -> None:
    small = tmp_path / "a.gz"
    small.write_bytes(gzip.compress(UAI))
    assert ByteStream(small).most_bytes == 64 << 20
    large = tmp_path / "b.gz"
    large.write_bytes(bytes(1 << 20))
    assert ByteStream(large).most_bytes == 256 << 20


@pytest.mark.parametrize("name", [n for n in GOOD if n.endswith((".gz", ".xz"))])
def test_a_truncated_compressed_file_is_refused(tmp_path: Path, name: str) -> None:
    for size in range(0, len(GOOD[name]), 7):
        (tmp_path / name).write_bytes(GOOD[name][:size])
        with pytest.raises(InputError, match=name):
            read_model(tmp_path / name)


def test_a_path_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.uai").mkdir()
    for path, what in [
        (tmp_path / "none.uai", "no such file"),
        (tmp_path / "folder.uai", "Expected a file"),
        (Path("/dev/zero"), "Expected a suffix"),
        (tmp_path / "a.txt", r"Expected a suffix among \.fgm, \.uai"),
        (tmp_path / "a.gz", "Expected a suffix"),
        (Path("nul\0.uai"), "."),
    ]:
        with pytest.raises(InputError, match=what):
            read_model(path)


def test_a_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "zero.uai").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="Expected a file"):
        read_model(tmp_path / "zero.uai")


@pytest.mark.parametrize("name", GOOD)
def test_suffixes_are_read_in_any_case(tmp_path: Path, name: str) -> None:
    upper = name.upper()
    (tmp_path / name).write_bytes(GOOD[name])
    (tmp_path / upper).write_bytes(GOOD[name])
    assert read_model(tmp_path / upper) == read_model(tmp_path / name)
