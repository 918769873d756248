"""`fgnn decode`: decode received words or the shots of a circuit, or measure error rates."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fgnn.cli.complete import complete_decoder, complete_decoder_option, complete_device, one_of
from fgnn.cli.options import method_options
from fgnn.errors import InputError
from fgnn.runtime.progress import ProgressBar, Stages, log_line

if TYPE_CHECKING:
    from fgnn.decoding import Channel, Code, ErrorRate, Problem

_CHANNELS = ("awgn", "bsc", "erasure", "bursts")
_MOST_WORDS = 4 << 30  # bytes of a file of words
_KEEP_EVERY = 5.0  # seconds


def decode(
    code: Annotated[
        Path, typer.Argument(help="A code (.alist .qc .csv .npy .npz) or a circuit (.stim .dem), also .gz and .xz.")
    ],
    words: Annotated[
        Path | None,
        typer.Argument(help="What was received, .npy: log-likelihood ratios, hard bits (with --p), or syndromes."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            "-m",
            help="min-sum, sum-product, memory, relay, osd, fgnn, lp or exact.",
            autocompletion=complete_decoder,
        ),
    ] = "min-sum",
    shots: Annotated[int, typer.Option(help="Without WORDS: random shots to decode.")] = 10_000,
    channel: Annotated[
        str, typer.Option(help="Noise of a code: awgn, bsc, erasure or bursts.", autocompletion=one_of(*_CHANNELS))
    ] = "awgn",
    snr: Annotated[float, typer.Option(help="E_b / N_0 in decibels, for awgn and bursts.")] = 3.0,
    p: Annotated[float, typer.Option("--p", help="Probability of a flip or an erasure.")] = 0.05,
    burst: Annotated[float, typer.Option(help="Standard deviation of the bursts, which hit 5 % of the bits.")] = 3.0,
    sweep: Annotated[
        str | None, typer.Option(help="FROM:TO:STEP of --snr, or of --p for bsc and erasure: a curve of error rates.")
    ] = None,
    max_errors: Annotated[int | None, typer.Option(help="Stop once this many words are wrong.")] = None,
    lifting: Annotated[int | None, typer.Option(help="The lifting size of a 5G NR base graph.")] = None,
    all_detectors: Annotated[
        bool, typer.Option("--all-detectors", help="Decode both bases of a CSS circuit together.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Decoded words as .npy, or the rates as .json; a sweep continues from it, also with more shots."
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the rates of a sweep: .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
    device: Annotated[
        str | None,
        typer.Option(help="cpu or cuda; a GPU by default, if its kernels can run it.", autocompletion=complete_device),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seeds noise and shots.")] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            help="An option of the method: -o iterations=100. Repeatable.",
            autocompletion=complete_decoder_option,
        ),
    ] = None,
) -> None:
    """Decode words of a parity-check code, or the errors of a quantum circuit.

    With WORDS, decodes them and writes the result to --out. Without, decodes random shots and prints the error rate
    with its 95 % interval. Exit 0: done; 2: bad input.

    Examples: fgnn decode code.alist --snr 4 --shots 100000; fgnn decode circuit.stim --method relay
    """
    from fgnn.decoding import METHODS

    options = {**method_options(option or [], method, METHODS), **({"device": device} if device is not None else {})}
    problem = _read(code, lifting, all_detectors)
    _check_files(words, sweep, out, plot)
    if words is not None:
        _decode_file(problem, words, p, method, options, out, as_json)
        return
    points = _known(out, sweep)
    for value in [None] if sweep is None else _values(sweep):
        chosen = _at({"channel": channel, "snr": snr, "p": p, "burst": burst}, value)
        row = {"code": code.name, "method": method, "options": {k: str(v) for k, v in options.items()}, "seed": seed,
               **_noise(problem, chosen)}  # fmt: skip
        at = next((k for k, q in enumerate(points) if {key: q.get(key) for key in row} == row), len(points))
        goal = _Goal(method, options, shots, seed, max_errors)
        begin = _counted(points[at]) if at < len(points) else None

        def keep(rate: ErrorRate, at: int = at, row: dict[str, Any] = row) -> None:
            points[at:] = [{**row, **_record(rate)}, *points[at + 1 :]]
            _write(points, out)

        if begin is None or not goal.reached(begin):
            keep(_measure(problem, code, chosen, goal, begin, keep))
        _print(points[at], as_json)
    if plot is not None:
        _draw(points, plot)


class _Goal(NamedTuple):
    """How to decode, and how much."""

    method: str
    options: dict[str, Any]
    shots: int
    seed: int
    max_errors: int | None

    def reached(self, rate: ErrorRate) -> bool:
        return rate.shots >= self.shots or (self.max_errors is not None and rate.errors >= self.max_errors)


def _read(file: Path, lifting: int | None, all_detectors: bool) -> Code | Problem:
    from fgnn.decoding import read_circuit, read_code

    plain = file.with_suffix("") if file.suffix.lower() in (".gz", ".xz") else file
    if plain.suffix.lower() in (".stim", ".dem"):
        return read_circuit(file, all_detectors=all_detectors)
    return read_code(file, lifting=lifting)


def _check_files(words: Path | None, sweep: str | None, out: Path | None, plot: Path | None) -> None:
    """Refuse files that could not be written, before the work."""
    if out is not None and out.suffix.lower() != (".json" if words is None else ".npy"):
        raise InputError(f"Expected --out with the suffix {'.json' if words is None else '.npy'}", file=out)
    if plot is not None and (plot.suffix.lower() != ".svg" or sweep is None):
        raise InputError("Expected --plot as .svg, with --sweep", file=plot)
    for file in (out, plot):
        if file is not None and not file.parent.is_dir():
            raise InputError("Expected a folder that exists (got none)", file=file)


def _decode_file(
    problem: Code | Problem, file: Path, p: float, method: str, options: dict[str, Any], out: Path | None, as_json: bool
) -> None:
    import numpy as np

    from fgnn.arrays import read_arrays
    from fgnn.decoding import Code, decode
    from fgnn.files import atomic_write, write_npy

    arrays = read_arrays(file, _MOST_WORDS)
    if len(arrays) != 1:
        raise InputError("Expected one array of words", file=file)
    received = next(iter(arrays.values()))
    if isinstance(problem, Code) and received.dtype.kind in "biu":
        if not 0 < p < 0.5:
            raise InputError(f"Expected --p in (0, 0.5) for hard bits (got {p})")
        if not np.isin(received, (0, 1)).all():
            raise InputError("Expected bits of zeros and ones", file=file)
        received = (1 - 2 * received.astype(np.float32)) * float(np.log((1 - p) / p))
    try:
        with Stages("decode") as stage:
            stage(f"{len(received):,} words by {method}")
            found = decode(problem, received, method, **options)
    except ValueError as error:
        raise InputError(str(error), file=file) from None
    if out is not None:
        with atomic_write(out, "wb") as target:
            write_npy(target, found.words if found.observables is None else found.observables)
    facts = {
        "file": str(file), "words": len(found), "converged": int(found.converged.sum()), "method": method,
        "mean iterations": float(found.iterations.mean()) if len(found) else 0.0, "seconds": round(found.seconds, 6),
    }  # fmt: skip
    if as_json:
        print(json.dumps(facts))
    else:
        speed = len(found) / max(found.seconds, 1e-9)
        print(f"{facts['words']} words, {facts['converged']} satisfy all checks, {speed:,.0f} words/s ({method})")


def _values(sweep: str) -> list[float | None]:
    try:
        first, last, step = (float(word) for word in sweep.split(":"))
        count = int((last - first) / step + 1.5) if step > 0 and last >= first else 0
    except (ValueError, OverflowError):
        count = 0
    if not 1 <= count <= 1000:
        raise InputError(f"Expected --sweep FROM:TO:STEP of 1 to 1000 values (got {sweep!r})")
    return [round(first + k * step, 10) for k in range(count)]


def _at(setting: dict[str, Any], value: float | None) -> dict[str, Any]:
    if setting["channel"] not in _CHANNELS:
        raise InputError(f"Expected a channel among {', '.join(_CHANNELS)} (got {setting['channel']!r})")
    if value is None:
        return setting
    return {**setting, "p" if setting["channel"] in ("bsc", "erasure") else "snr": value}


def _noise(problem: Code | Problem, setting: dict[str, Any]) -> dict[str, Any]:
    """What is known about the noise, for the record."""
    from fgnn.decoding import Code

    if not isinstance(problem, Code):
        return {}
    used = {"awgn": ("snr",), "bsc": ("p",), "erasure": ("p",), "bursts": ("snr", "burst")}[setting["channel"]]
    return {key: setting[key] for key in ("channel", *used)}


def _channel(code: Code, setting: dict[str, Any]) -> Channel:
    from fgnn.decoding import AWGN, BSC, Bursts, Erasure, noise_of

    makers: dict[str, Any] = {
        "awgn": lambda: AWGN(noise_of(setting["snr"], code.rate)),
        "bsc": lambda: BSC(setting["p"]),
        "erasure": lambda: Erasure(setting["p"]),
        "bursts": lambda: Bursts(noise_of(setting["snr"], code.rate), setting["burst"]),
    }
    channel: Channel = makers[setting["channel"]]()
    return channel


def _measure(
    problem: Code | Problem, file: Path, setting: dict[str, Any], goal: _Goal, begin: ErrorRate | None,
    keep: Callable[[ErrorRate], None],
) -> ErrorRate:  # fmt: skip
    """Count errors; what was counted so far is kept every few seconds."""
    from fgnn.decoding import Code, sample_circuit, simulate

    bar, start, before = ProgressBar("decode", wait=True), time.monotonic(), begin.shots if begin else 0
    kept = start

    def show(rate: ErrorRate) -> None:
        nonlocal kept
        now = time.monotonic()
        left = (now - start) * (goal.shots - rate.shots) / (rate.shots - before)
        bar.update(f"{rate.errors} errors in {rate.shots} shots", rate.shots, goal.shots, left)
        if now - kept > _KEEP_EVERY:
            keep(rate)
            kept = now

    channel = _channel(problem, setting) if isinstance(problem, Code) else None
    circuit = not isinstance(problem, Code) and ".stim" in file.suffixes
    sample = (lambda count, number: sample_circuit(file, count, number)) if circuit else None
    try:
        return simulate(
            problem, goal.shots, channel, goal.method, seed=goal.seed, most_errors=goal.max_errors, sample=sample,
            progress=show, begin=begin, **goal.options,
        )  # fmt: skip
    except ValueError as error:
        raise InputError(str(error)) from None
    finally:
        bar.close()


def _record(rate: ErrorRate) -> dict[str, Any]:
    from fgnn.runtime.environment import environment

    low, high = rate.interval()
    return {
        "shots": rate.shots, "errors": rate.errors, "rate": rate.rate, "interval": [low, high],
        "bit rate": rate.bit_rate, "violating words": rate.failures, "mean iterations": rate.iterations / rate.shots,
        "shots per second": round(rate.shots / max(rate.seconds, 1e-9), 1), "counted": asdict(rate),
        "environment": environment(),
    }  # fmt: skip


def _counted(point: dict[str, Any]) -> ErrorRate:
    from fgnn.decoding import ErrorRate

    return ErrorRate(**point["counted"])


def _known(out: Path | None, sweep: str | None) -> list[dict[str, Any]]:
    """The points that an earlier run of the sweep has written."""
    from fgnn.files import is_file, read_text

    if out is None or sweep is None or not is_file(out):
        return []
    try:
        points = json.loads(read_text(out, 16 << 20))["points"]
        for point in points:
            counted = asdict(_counted(point))
            if not all(isinstance(n, int | float) and n >= 0 for n in counted.values()) or counted["shots"] < 1:
                raise ValueError
            point |= _record(_counted(point)) | {"environment": point["environment"]}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("Expected the results of an earlier sweep; name another --out", file=out) from error
    return list(points)


def _write(points: list[dict[str, Any]], out: Path | None) -> None:
    from fgnn.files import atomic_write

    if out is not None:
        with atomic_write(out) as file:
            json.dump({"points": points}, file, indent=1)


def _print(point: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(point))
        return
    at = "  ".join(f"{key} {point[key]}" for key in ("channel", "snr", "p", "burst") if key in point)
    low, high = point["interval"]
    print(f"{at}  {point['method']}: error rate {point['rate']:.3g} [{low:.2g}, {high:.2g}], "
          f"bits {point['bit rate']:.2g}, {point['shots']} shots, {point['mean iterations']:.1f} iterations, "
          f"{point['shots per second']:,.0f} shots/s".strip())  # fmt: skip


def _draw(points: list[dict[str, Any]], plot: Path) -> None:
    from fgnn.files import atomic_write
    from fgnn.report.charts import lines, standalone

    curves: dict[str, list[tuple[float, float]]] = {}
    label = "p" if "p" in points[0] else "E_b / N_0 (dB)"
    for point in points:
        x = float(point.get("snr", point.get("p", 0.0)))
        curves.setdefault(f"{point['method']}, words", []).append((x, point["rate"]))
        curves.setdefault(f"{point['method']}, bits", []).append((x, point["bit rate"]))
    with atomic_write(plot) as file:
        file.write(standalone(lines({k: sorted(v) for k, v in curves.items()}, label, "error rate", log_y=True)))
    log_line(f"wrote {plot}")
