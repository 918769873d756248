"""Results as tables, figures and self-contained HTML pages."""

from fgnn.report.charts import bars, lines
from fgnn.report.html import Page
from fgnn.report.tables import Table, percent
from fgnn.report.viewer import write_viewer

__all__ = ["Page", "Table", "bars", "lines", "percent", "write_viewer"]
