"""The tables of `fgnn bench decoding`: error rates with 95 % intervals, and speed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fgnn.report import Table

Rows = Mapping[str, Mapping[str, Any]]
Maker = Callable[[dict[str, Any]], str]


def rate(row: Mapping[str, Any] | None) -> str:
    """An error rate and its interval with the same exponent: 3.1e-3 (2.7–3.4)."""
    if row is None:
        return "–"
    low, high = row["interval"]
    if not row["errors"]:
        return f"0 (below {high:.0e})"
    power = math.floor(math.log10(row["rate"]))
    middle, low, high = (x / 10**power for x in (row["rate"], low, high))
    if power >= -2:
        return f"{100 * row['rate']:.2f} % ({low * 10 ** (power + 2):.2f}–{high * 10 ** (power + 2):.2f})"
    return f"{middle:.1f}e{power} ({low:.1f}–{high:.1f})"


def speed(row: Mapping[str, Any] | None, per: str = "shots per CPU second") -> str:
    """Shots per second of a CPU's time, if it was measured, with three digits."""
    if row is None:
        return "–"
    value = row.get(per, row["shots per second"])
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _of(title: str, make: Callable[[Rows], Table]) -> Maker:
    """A table by its title in the file, with the machine and the time of its own measurement."""

    def markdown(payload: dict[str, Any]) -> str:
        if title not in payload["tables"]:
            return "This table is not stored yet.\n"
        payload["environment"] = payload["environments"][title]  # what the line below the table says
        return make(payload["tables"][title]).markdown()

    return markdown


def _pairs(rows: Rows, what: str) -> Table:
    """A row for each method of ours, beside the peer that does the same."""
    body = []
    for name, own in rows.items():
        if not name.startswith("ours: "):
            continue
        method = name.removeprefix("ours: ")
        peer = rows.get("relay-bp" if method == "relay" else f"ldpc: {method}")
        body.append([method, rate(own), speed(own), rate(peer), speed(peer)])
    head = ["decoder", "error rate, ours", f"{what}/s, ours", "error rate, peer", f"{what}/s, peer"]
    return Table(head, body)


def _alone(rows: Rows, per: str = "shots per CPU second") -> Table:
    """A row for each decoder."""
    body = [
        [name.removeprefix("ours: "), f"{row['shots']:,}", rate(row), speed(row, per)] for name, row in rows.items()
    ]
    return Table(["decoder", "shots", "error rate", "shots/s"], body)


def _bursts(rows: Rows) -> Table:
    """A row for each strength of the bursts, a column for each decoder."""
    split = [name.split(": ", 1) for name in rows]
    bursts, decoders = (list(dict.fromkeys(part)) for part in zip(*split, strict=True))
    body = [[burst, *(rate(rows.get(f"{burst}: {name}")) for name in decoders)] for burst in bursts]
    return Table(["bursts", *decoders], body)


def _base_graph(rows: Rows) -> Table:
    body = [[name, f"{row['shots']:,}", speed(row)] for name, row in rows.items()]
    return Table(["decoder", "words", "words/s"], body)


_MAKERS = {
    "cpu": {
        "codes": _of("aff3ct_CCSDS_64_128.alist, 4 dB", lambda rows: _pairs(rows, "words")),
        "bursts": _of("mackay_96.3.963.alist, bursts", _bursts),
        "base-graph": _of("5G NR BG1, Z = 384", _base_graph),
        "bb-72": _of("bb_72_12_6_memory_Z_p0.003", lambda rows: _pairs(rows, "shots")),
        "bb-144": _of("bb_144_12_12_memory_Z_p0.003", lambda rows: _pairs(rows, "shots")),
        **{f"surface-{d}": _of(f"surface code, d = {d}, p = 0.005", _alone) for d in (3, 5, 7)},
    },
    "cuda": {
        "codes": _of("aff3ct_CCSDS_64_128.alist, 4 dB", partial(_alone, per="shots per second")),
        "base-graph": _of("5G NR BG1, Z = 384", partial(_alone, per="shots per second")),
        "bb-72": _of("bb_72_12_6_memory_Z_p0.003", partial(_alone, per="shots per second")),
        "bb-144": _of("bb_144_12_12_memory_Z_p0.003", partial(_alone, per="shots per second")),
        "surface-5": _of("surface code, d = 5, p = 0.005", partial(_alone, per="shots per second")),
    },
}
DECODING: dict[str, tuple[str, Maker]] = {
    f"fgnn-decoding-{device}-{name}": (f"decoding-{device}", make)
    for device, makers in _MAKERS.items()
    for name, make in makers.items()
}
