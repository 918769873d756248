"""Factor graphs as pictures, and the small HTML tables that notebooks show."""

from fgnn.drawing.drawing import Drawing, draw
from fgnn.drawing.sketch import FactorMark, Sketch, States

__all__ = ["Drawing", "FactorMark", "Sketch", "States", "draw"]
