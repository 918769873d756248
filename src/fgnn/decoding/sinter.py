"""Decoders for sinter: ``sinter.collect(decoders=["fgnn-relay"], custom_decoders=fgnn.decoding.sinter_decoders())``."""

from __future__ import annotations

from typing import Any

import numpy as np

from fgnn.decoding.basis import one_basis
from fgnn.decoding.circuit import parse_dem
from fgnn.decoding.decode import decode
from fgnn.errors import need

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


def sinter_decoders(**options: Any) -> dict[str, Any]:
    """Return fgnn's decoders by name, for ``custom_decoders`` of sinter; options are passed to `decode`."""
    base = need("sinter").Decoder

    class FgnnDecoder(base):  # type: ignore[misc, valid-type]
        """Compiles a decoder for sinter's workers."""

        def __init__(self, method: str, options: dict[str, Any]) -> None:
            self.method, self.options = method, options

        def compile_decoder_for_dem(self, *, dem: Any) -> Any:
            return _Compiled(dem, self.method, self.options)

    # sinter pickles decoders for its worker processes
    FgnnDecoder.__qualname__ = FgnnDecoder.__name__
    globals()[FgnnDecoder.__name__] = FgnnDecoder
    return {name: FgnnDecoder(method, {**own, **options}) for name, (method, own) in _DECODERS.items()}
