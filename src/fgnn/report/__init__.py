"""Results as tables, figures and self-contained HTML pages."""

from fgnn.report.html import Page
from fgnn.report.picture import draw_model
from fgnn.report.tables import Table
from fgnn.report.viewer import write_viewer

__all__ = ["Page", "Table", "draw_model", "write_viewer"]
