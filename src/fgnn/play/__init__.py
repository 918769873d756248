"""The playground: draw a factor graph, solve it and watch messages pass, on a local page."""

from fgnn.play.server import Playground

__all__ = ["Playground"]
