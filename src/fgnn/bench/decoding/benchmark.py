"""Decoders against their peers on the same shots: error rates with intervals, and shots per second of one core.

A run keeps the tables of the result file that it does not measure, so that the benchmark can be run in slices.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fgnn.bench.anytime.instances import data_folder
from fgnn.bench.common import RESULTS, describe, number, show, write_result
from fgnn.bench.decoding.circuits import circuit_table, surface_table
from fgnn.bench.decoding.codes import base_graph_table, burst_table, code_table
from fgnn.errors import InputError
from fgnn.files import is_file, read_text
from fgnn.runtime.environment import environment
from fgnn.runtime.progress import Stages

CODES = ("aff3ct_CCSDS_64_128.alist",)
BURSTS = "mackay_96.3.963.alist"
BASE_GRAPH = "sionna_5G_NR_bg1.csv"
CIRCUITS = ("bb_72_12_6_memory_Z_p0.003", "bb_144_12_12_memory_Z_p0.003")
DISTANCES = (3, 5, 7)


def run(
    device: str = "cpu",
    seed: int = 0,
    out: str | Path | None = None,
    *,
    data: Path | None = None,
    only: Sequence[str] = (),
    shots: int = 2000,
    seconds: float = 30.0,
    weights: Sequence[str] = (),
    quiet: bool = False,
) -> dict[str, Any]:
    """Decode with one thread, print the tables and write them as JSON.

    Args:
        device: Of ours and of Sionna; other peers run on a CPU.
        data: A folder with ``ldpc`` and ``quantum``.
        only: Tables by pattern, such as ``surface*``; those without Sionna by default.
        shots: Shots of each circuit; codes and surface codes have fifty times as many.
        seconds: Each decoder takes as many of the first shots as this allows.
        weights: Of learned decoders for the codes at 4 dB and for the bursts.
    """
    tables = make_tables(data_folder(data), shots, seed, device, seconds, (*weights, "", "")[:2])
    chosen = [n for n in tables if (any(fnmatch(n, p) for p in only) if only else not n.startswith("5G"))]
    if not chosen:
        raise InputError(f"Expected tables among {', '.join(tables)} (got none that match)")
    name = f"decoding-{torch.device(device).type}"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for title in chosen:
            with Stages("bench decoding", quiet=quiet) as stage:
                stage(f"{title} ({chosen.index(title) + 1} of {len(chosen)})")
                rows = tables[title]()
            # read now: another slice may have been written meanwhile
            result = earlier(out, name) or {"benchmark": "decoding", "tables": {}, "environments": {}}
            result["tables"][title], result["environments"][title] = rows, environment(device)
            result |= {"environment": result["environments"][title], "seed": seed}
            if not quiet:
                _print(title, result)
            file = write_result(name, result, out)
    finally:
        torch.set_num_threads(threads)
    return {**result, "file": str(file)}


def make_tables(
    folder: Path, shots: int, seed: int, device: str, seconds: float, weights: tuple[str, ...]
) -> dict[str, Callable[[], dict[str, Any]]]:
    """What can be measured, by title."""
    ldpc, many = folder / "ldpc", 50 * shots
    tables: dict[str, Callable[[], dict[str, Any]]] = {
        f"{code}, 4 dB": partial(code_table, ldpc / code, many, seed, device, seconds, weights[0]) for code in CODES
    }
    tables[f"{BURSTS}, bursts"] = partial(burst_table, ldpc / BURSTS, many, seed, device, seconds, weights[1])
    for circuit in CIRCUITS:
        file = folder / "quantum" / f"{circuit}.stim.xz"
        tables[circuit] = partial(circuit_table, file, shots, seed, device, seconds)
    for distance in DISTANCES:
        title = f"surface code, d = {distance}, p = 0.005"
        tables[title] = partial(surface_table, distance, many, seed, device, seconds)
    tables["5G NR BG1, Z = 384"] = partial(base_graph_table, ldpc / BASE_GRAPH, shots, seed, device, seconds)
    return tables


def earlier(out: str | Path | None, name: str) -> dict[str, Any] | None:
    """The result of an earlier run, if there is one."""
    target = Path(out) if out is not None else RESULTS
    file = target if target.suffix == ".json" else target / f"{name}.json"
    if not is_file(file):
        return None
    try:
        value = json.loads(read_text(file, 16 << 20))
        if not all(isinstance(value[key], dict) for key in ("tables", "environments")):
            raise ValueError
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("Expected the result of an earlier run; name another --out", file=file) from error
    return {key: value[key] for key in ("benchmark", "tables", "environments") if key in value}


def _print(title: str, result: dict[str, Any]) -> None:
    print(describe(result["environments"][title]))
    table = [
        (name, str(row["shots"]), f"{row['rate']:.2e}", "{:.1e} - {:.1e}".format(*row["interval"]),
         number(row["shots per second"]), f"{row['shot by shot']['same answer']:.4f}" if "shot by shot" in row else "")
        for name, row in result["tables"][title].items()
    ]  # fmt: skip
    show(title, ("decoder", "shots", "error rate", "95 %", "shots/s", "same as ours"), table)
