"""Compiled inner loops, for methods; see `fgnn.runtime.jit`."""

from fgnn.runtime.jit import Background, compiled

__all__ = ["Background", "compiled"]
