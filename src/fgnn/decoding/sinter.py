"""Decoders for sinter: ``sinter.collect(decoders=["fgnn-relay"], custom_decoders=fgnn.decoding.sinter_decoders())``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fgnn.decoding.basis import one_basis
from fgnn.decoding.circuit import parse_dem
from fgnn.decoding.decode import decode

_DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "fgnn-min-sum": ("min-sum", {}),
    "fgnn-relay": ("relay", {}),
    "fgnn-osd": ("osd", {}),
}


class _Compiled:
    """A decoder for one detector error model."""

    def __init__(self, dem: Any, method: str, options: dict[str, Any]) -> None:
        self.observables = int(dem.num_observables)
        self.detectors = int(dem.num_detectors)
        self.problem = one_basis(parse_dem(str(dem)))
        self.method, self.options = method, options

    def decode_shots_bit_packed(self, *, bit_packed_detection_event_data: Any) -> Any:
        """Decode packed syndromes to packed observables."""
        bits = np.unpackbits(bit_packed_detection_event_data, axis=1, bitorder="little")[:, : self.detectors]
        # trailing detectors that no error flips are not in the problem
        width = self.problem.detectors or self.problem.code.num_checks
        found = decode(self.problem, np.ascontiguousarray(bits[:, :width]), self.method, **self.options)
        flips = np.zeros((len(bits), self.observables), np.uint8)
        assert found.observables is not None
        flips[:, : found.observables.shape[1]] = found.observables
        return np.packbits(flips, axis=1, bitorder="little")


@dataclass(frozen=True)
class SinterDecoder:
    """What sinter calls, in its own processes, to get a decoder for a model; it need not derive from sinter's class."""

    method: str
    options: dict[str, Any]

    def compile_decoder_for_dem(self, *, dem: Any) -> Any:
        """Return the decoder for a detector error model."""
        return _Compiled(dem, self.method, self.options)


def sinter_decoders(**options: Any) -> dict[str, SinterDecoder]:
    """Return fgnn's decoders by name, for ``custom_decoders`` of sinter; options are passed to `decode`."""
    return {name: SinterDecoder(method, {**own, **options}) for name, (method, own) in _DECODERS.items()}
