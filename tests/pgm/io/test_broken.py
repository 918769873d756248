"""Every broken file is refused in one line that names the file and the place, quickly and in little memory."""

from __future__ import annotations

import re
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from fgnn import read_model
from fgnn.errors import InputError
from tests.pgm.io.broken import BROKEN, EVIDENCE
from tests.pgm.io.samples import EVID, GOOD, UAI


def refused(path: Path, **options: Any) -> tuple[str, float, float]:
    """The error message, the seconds and the peak memory."""
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(InputError) as caught:
        read_model(path, **options)
    seconds = time.perf_counter() - start
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return str(caught.value), seconds, memory


def check(line: str, file: Path, place: str, what: str, seconds: float, memory: float) -> None:
    assert "\n" not in line
    assert line.isprintable()
    where, _, reason = line.partition(": ")
    assert where.startswith(str(file))
    assert place in where.removeprefix(str(file)), line
    assert what in reason, line
    assert len(reason) < 250
    assert seconds < 5  # generous: a busy machine and the memory tracer
    assert memory < 200e6


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    file, data, place, what = BROKEN[name]
    path = tmp_path / file
    path.write_bytes(data)
    line, seconds, memory = refused(path)
    check(line, path, place, what, seconds, memory)


@pytest.mark.parametrize("name", EVIDENCE)
def test_wrong_evidence_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    data, place, what = EVIDENCE[name]
    (tmp_path / "a.uai").write_bytes(UAI)
    path = tmp_path / "a.uai.evid"
    path.write_bytes(data)
    line, seconds, memory = refused(tmp_path / "a.uai", evidence=path)
    check(line, path, place, what, seconds, memory)


def test_there_are_many_broken_files_and_their_originals_are_valid(tmp_path: Path) -> None:
    assert len(BROKEN) + len(EVIDENCE) >= 45
    for name, data in GOOD.items():
        (tmp_path / name).write_bytes(data)
        assert read_model(tmp_path / name).num_variables in (2, 3, 4)
    (tmp_path / "good.evid").write_bytes(EVID)
    read_model(tmp_path / "good.uai", evidence=tmp_path / "good.evid")


@pytest.mark.parametrize("name", [n for n in GOOD if not n.endswith((".gz", ".xz"))])
def test_a_truncated_file_is_refused_or_still_valid(tmp_path: Path, name: str) -> None:
    data = GOOD[name].rstrip()
    path = tmp_path / name
    path.write_bytes(data)
    whole = read_model(path)
    step = 1 if len(data) < 500 else 7
    for size in range(0, len(data), step):
        path.write_bytes(data[:size])
        try:
            model = read_model(path)
        except InputError as error:
            line = str(error)
        else:
            # a cut in the last number, or between two blocks of a network, leaves a valid file
            assert model.num_variables <= whole.num_variables
            assert size > len(data) - 6 or name == "good.bif"
            continue
        assert re.match(rf"{re.escape(str(path))}(, [^:]+)?: ", line)
