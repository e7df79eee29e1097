"""Settings of Sphinx. docs/site/build_site.py gives the folder of sources, with the pages of the tree in their places."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bindings" / "python"))

project = "DeepReduce"
author = "the DeepReduce authors"
copyright = "the DeepReduce authors, Apache-2.0"
release = version = re.search(r'DR_VERSION_STRING "(.*)"', (ROOT / "include/deepreduce/version.h").read_text()).group(1)

extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"DeepReduce {release}"
html_copy_source = False
html_show_sphinx = False
highlight_language = "text"
default_role = "code"

# The pages are written for a reader of the tree: any heading may be linked to, a heading may skip a level, and C may have an ellipsis.
myst_heading_anchors = 5
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
autodoc_mock_imports = ["mpi4py", "cupy"]
autodoc_type_aliases = {"Array": "numpy.ndarray", "Plans": "Plans"}


def keep_columns(app, what, name, obj, options, lines):
    """Docstrings are plain text, with tables by columns of spaces: paragraphs stay prose, indented or aligned lines stay as they are."""
    lines[:] = plain_text(lines)


def plain_text(lines):
    found, block = [], []

    def flush():
        aligned = any(re.search(r"\S {3,}\S|^ {2,}\S", line) for line in block)
        if block and block[0].startswith(">>>"):
            found.extend(block)
        elif aligned:
            found.extend(["::", "", *("   " + line for line in block)])
        else:
            found.extend(re.sub(r"([*|\\])|(?<=\w)(_)(?!\w)", r"\\\1\2", line) for line in block)
        found.append("")
        block.clear()

    for line in lines:
        if line.strip():
            block.append(line)
        else:
            flush()
    flush()
    return found


def setup(app):
    app.connect("autodoc-process-docstring", keep_columns)
