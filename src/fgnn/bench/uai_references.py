"""Instances of the UAI competitions with reference answers: log10 Z (.PR) and marginals (.MAR)."""

from __future__ import annotations

import math
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import InputError
from fgnn.names import check_file_name

_MOST_MEMBERS, _MOST_BYTES = 10_000, 1 << 28


@dataclass(frozen=True)
class Reference:
    """A model file, its evidence and the reference answer of a task, PR or MAR."""

    model: Path
    task: str

    @property
    def name(self) -> str:
        return self.model.name.removesuffix(".uai")

    @property
    def evidence(self) -> Path | None:
        """The evidence file; one without evidence may be empty."""
        file = Path(f"{self.model}.evid")
        return file if file.exists() and file.read_text().split() else None

    @property
    def answer(self) -> Path:
        return Path(f"{self.model}.{self.task}")

    def log10_z(self) -> float:
        """The reference of PR."""
        return float(self._values()[-1])

    def marginals(self) -> list[NDArray[np.float64]]:
        """The reference of MAR."""
        values = self._values()
        at = values.index("MAR") + 1 if "MAR" in values else 0
        numbers = [float(v) for v in values[at:]]
        # Some files begin with the number of samples of evidence.
        skip = 1 if numbers[0] == 1 and len(numbers) > 1 + 1 + int(numbers[1]) else 0
        position, out = skip + 1, []
        for _ in range(int(numbers[skip])):
            size = int(numbers[position])
            out.append(np.array(numbers[position + 1 : position + 1 + size]))
            position += 1 + size
        return out

    def _values(self) -> list[str]:
        try:
            values = self.answer.read_text().split()
            float(values[-1])
        except (OSError, ValueError, IndexError) as error:
            raise InputError(f"Expected a reference answer of {self.task}", file=self.answer) from error
        return values


def _unpack(archive: Path, folder: Path) -> None:
    """Write the regular files of an archive into a folder, each in the folder that it was in."""
    with tarfile.open(archive) as members:
        for number, member in enumerate(members):
            content = members.extractfile(member) if member.isreg() else None
            if content is None:
                continue
            if number >= _MOST_MEMBERS or member.size > _MOST_BYTES:
                raise InputError(f"Expected at most {_MOST_MEMBERS} files of {_MOST_BYTES} bytes", file=archive)
            *_, task, name = ("", "", *PurePosixPath(member.name).parts)
            inside = folder / check_file_name(task or "models")
            inside.mkdir(exist_ok=True)
            (inside / check_file_name(name)).write_bytes(content.read())


@contextmanager
def references(place: Path) -> Iterator[list[Reference]]:
    """All instances with a reference in a folder, or in an archive that is unpacked for the time of use."""
    if not place.exists():
        raise InputError("Expected a folder or an archive of UAI instances", file=place)
    with tempfile.TemporaryDirectory() as temporary:
        folder = place
        if place.is_file():
            folder = Path(temporary)
            try:
                _unpack(place, folder)
            except (tarfile.TarError, OSError, EOFError, ValueError) as error:
                raise InputError("Expected a folder or an archive of UAI instances", file=place) from error
        found = [
            Reference(model, task)
            for model in sorted(folder.rglob("*.uai"))
            for task in ("PR", "MAR")
            if Path(f"{model}.{task}").exists()
        ]
        if not found:
            raise InputError("Expected .uai files with references .PR or .MAR", file=place)
        yield found


def pr_error(log_z: float, reference: float) -> float:
    """The absolute difference of log10 Z."""
    return abs(log_z / math.log(10) - reference)


def mar_errors(ours: list[NDArray[np.float64]], reference: list[NDArray[np.float64]]) -> tuple[float, float]:
    """The Hellinger distance and the absolute difference of marginals, both averaged over the variables."""
    hellinger = [
        math.sqrt(max(0.0, 0.5 * float(((np.sqrt(np.clip(p, 0, None)) - np.sqrt(q)) ** 2).sum())))
        for p, q in zip(ours, reference, strict=True)
    ]
    absolute = [float(np.abs(p - q).mean()) for p, q in zip(ours, reference, strict=True)]
    return float(np.mean(hellinger)), float(np.mean(absolute))
