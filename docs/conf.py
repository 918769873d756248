"""Sphinx configuration; `make docs` builds the site. The build needs no network."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src")]

import fgnn  # noqa: E402

project = "fgnn"
author = "the fgnn authors"
copyright = "the fgnn authors, MIT licence"
version = release = fgnn.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    # of docs/_ext
    "mathml",  # formulas without JavaScript
    "guarantees",  # tables of faults, load and bad input
    "generated",  # commands, recipes and weights
    "paper_tables",  # the paper's tables, from stored runs and records
    "measurements",  # other stored measurements as tables and charts
    "gallery",  # pictures of what the package does
]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
html_theme = "furo"
html_math_renderer = "mathml"
html_title = f"fgnn {release}"
html_static_path = ["_static"]
html_css_files = ["fgnn.css"]
html_js_files = [("copy.js", {"defer": "defer"})]

# A broken reference is an error (with -W). Types of other packages are not references.
nitpicky = True
nitpick_ignore_regex = [("py:(class|data|exc)", r".*"), ("py:obj", r"typing\..*")]
default_role = "code"

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
myst_update_mathjax = False
suppress_warnings = ["mystnb.unknown_mime_type"]

# Notebooks are shown with their stored outputs; `make notebooks` makes them, and a test
# finds stale ones.
nb_execution_mode = "off"
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 100
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Shapes"]
napoleon_use_rtype = False
napoleon_use_ivar = True
