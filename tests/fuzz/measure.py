"""Memory and time of reading a file in its own process: `measured([(reader, path, limit), ...])`.

The parent imports everything, and each child reads a small input first, so that only the file itself is measured. Then
the child may map only ``limit`` more bytes: what needs more fails with a MemoryError, which is not a refusal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_MODELS = ("uai", "fg", "bif", "wcsp", "cfn", "fgm", "gz", "xz")
# Address space is mapped in larger pieces than it is used: arenas of the allocator, files mapped beside their copies.
SLACK = 48 << 20
_CLOUDS = ("ply", "las", "laz", "pcd", "e57", "bin", "txt", "csv", "npy", "npz")


def reader(name: str) -> Callable[[Path], Any]:
    """The reader of a kind of file, with its default limits."""
    from fgnn import read_model
    from fgnn.data import s3dis, shapenet
    from fgnn.data.values import read_rows
    from fgnn.decoding import read_circuit
    from fgnn.pgm.io import read_evidence
    from fgnn.points.cloud import read_cloud
    from tests.fuzz import harnesses

    if name in _MODELS:
        return read_model
    if name in _CLOUDS:
        return read_cloud
    if name == "evidence":
        return lambda path: read_evidence(path, np.full(100_000, 2))
    by_path: dict[str, Callable[[Path], Any]] = {
        "alist": harnesses._code,
        "qc": harnesses._code,
        "dem": read_circuit,
        "blocks": harnesses._blocks,
        "shapes": harnesses._shape_hdf5,
        "packed": shapenet._unpack,
        "listed": lambda path: list(shapenet._listed(path)),
        "shape-text": lambda path: read_rows(path, 7),
        "room": harnesses._room,
        "room-text": s3dis._annotation,
        "recipe": harnesses._recipe,
        "classes": harnesses._classes,
        "weights": harnesses._weights,
        "card": harnesses._card,
        "checkpoint": harnesses._checkpoint,
        "tar": harnesses._archive,
    }
    if name in by_path:
        return by_path[name]
    by_bytes = {
        "playground": harnesses._playground, "notation": harnesses._notation, "stored": harnesses._stored,
    }[name]  # fmt: skip
    return lambda path: by_bytes(path.read_bytes())


def measured(files: Sequence[tuple[str, Path, int | None]]) -> list[dict[str, Any]]:
    """For each file: the error message if it was rejected, CPU seconds and additional peak memory."""
    request = json.dumps([(name, str(path), limit) for name, path, limit in files])
    process = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.measure"], input=request, capture_output=True, text=True, check=False,
        cwd=Path(__file__).resolve().parents[2], env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines()]


def _child(name: str, path: Path, limit: int | None) -> dict[str, Any]:
    import contextlib
    import gc
    import time

    from fgnn.errors import InputError
    from fgnn.runtime.memory_limit import limit_memory
    from tests.fuzz.harnesses import HARNESSES, folder
    from tests.fuzz.seeds import seeds
    from tests.fuzz.watch import Peak

    use = reader(name)
    suffix = "".join(path.suffixes[-2:]) if path.suffix in (".gz", ".xz") else path.suffix
    small = folder() / f"small-{os.getpid()}{suffix}"
    small.write_bytes(seeds(name)[0])
    for warm in (lambda: use(small), lambda: HARNESSES[name].read(seeds(name)[0])):
        with contextlib.suppress(InputError):
            warm()
    gc.collect()
    peak = Peak()
    if limit is not None:
        limit_memory(limit + SLACK)
    before, start, line = peak.start(), time.process_time(), ""
    try:
        content = use(path)
    except InputError as error:
        content, line = None, str(error)
    seconds, grown = time.process_time() - start, peak.now() - before
    del content
    small.unlink()
    return {"refused": line, "seconds": seconds, "grown": max(0, grown), "known": peak.known}


def main() -> None:
    from tests.fuzz.harnesses import HARNESSES, folder

    folder()
    assert HARNESSES
    for name, path, limit in json.loads(sys.stdin.read()):
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            with os.fdopen(send, "w") as out:
                try:
                    out.write(json.dumps(_child(name, Path(path), limit)))
                except BaseException as error:  # must not return to the parent's loop
                    out.write(json.dumps({"ended": f"{type(error).__name__}: {error}"}))
            os._exit(0)
        os.close(send)
        with os.fdopen(receive) as pipe:
            text = pipe.read()
        _, status = os.waitpid(child, 0)
        print(text if status == 0 and text else json.dumps({"ended": status}), flush=True)


if __name__ == "__main__":
    main()
