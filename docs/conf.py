"""Configuration of the documentation: ``sphinx-build -W docs docs/_build/html``."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent / "_ext")]

from psframe import __version__  # noqa: E402

project = "psframe"
author = "The psframe authors"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "generated_reference"]
exclude_patterns = ["_build"]
myst_heading_anchors = 4
myst_enable_extensions = ["deflist", "colon_fence"]

autodoc_member_order = "bysource"
autodoc_mock_imports = [] if find_spec("sklearn") else ["sklearn"]  # which only psframe.sklearn needs
autodoc_typehints = "none"  # docstrings give types with shapes
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

html_theme = "furo"
html_title = "psframe"
html_static_path = ["_static"]
html_css_files = ["psframe.css"]
html_show_sphinx = False
html_copy_source = False
