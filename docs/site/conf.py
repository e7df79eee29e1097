"""Settings of Sphinx. docs/site/build_site.py gives the folder of sources, with the pages of the tree in their places."""

import builtins
import re
import sys
from pathlib import Path

from sphinx import addnodes

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bindings" / "python"), str(ROOT / "bindings" / "grace")]

project = "DeepReduce"
author = "the DeepReduce authors"
copyright = "the DeepReduce authors, Apache-2.0"
release = version = re.search(r'DR_VERSION_STRING "(.*)"', (ROOT / "include/deepreduce/version.h").read_text()).group(1)

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = f"DeepReduce {release}"
html_copy_source = False
html_show_sphinx = False
highlight_language = "text"
default_role = "code"

# The pages are written for a reader of the tree: any heading may be linked to, a heading may skip a level, and C may have an ellipsis.
myst_heading_anchors = 5
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

# Commands in tables have a button, too: code of three words or more.
copybutton_selector = "div.highlight pre, td code.literal:has(> span.pre:nth-of-type(3))"

autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
autodoc_mock_imports = ["torch", "torchft", "hivemind", "mpi4py", "cupy", "jax", "tensorflow", "keras", "flwr", "lightning", "accelerate", "transformers"]


def read_docstring(app, what, name, obj, options, lines):
    """Docstrings are plain text: paragraphs, examples, and columns (a name, spaces, what it is)."""
    blocks = re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))
    lines[:] = "\n\n".join(docstring_block(block) for block in blocks).split("\n") + [""]


def docstring_block(block):
    if block.lstrip().startswith(">>>"):
        return block
    rows = columns(block.split("\n"))
    if rows:
        return "\n".join(f"{escaped(name)}\n   {escaped(text)}" for name, text in rows)
    if re.search(r"\S {3,}\S|^ {2,}\S", block, flags=re.M):
        return "::\n\n" + re.sub(r"^", "   ", block, flags=re.M)
    return escaped(block)


def columns(block):
    """[(name, text)] of lines that have a text at one column, some of them a name before it; else []. The text of a longer name begins
    two spaces behind it."""
    starts = [match.end() for line in block if (match := re.match(r"(?:\S.*?\S|\S)? {2,}(?=\S)", line))]
    named = {match.end() for line in block if (match := re.match(r"(?:\S.*?\S|\S) {2,}(?=\S)", line))}
    if not re.match(r"\S+( |$)", block[0]) or not named.intersection(starts):
        return []
    at, rows = max(sorted(named), key=starts.count), []
    for line in block:
        name, text = line[:at], line[at:]
        if name.strip() and not name.endswith("  "):
            longer = re.match(r"(\S.*?\S) {2,}(\S.*)", line)
            if longer:
                name, text = longer.groups()
            elif not name.endswith(" "):
                return []
        if not text.strip() or text[0] == " ":
            return []
        if name.strip():
            rows.append([name.strip(), text.strip()])
        elif rows:
            rows[-1][1] += " " + text.strip()
        else:
            return []
    return rows


def escaped(text):
    return re.sub(r"([*|\\])|(?<=\w)(_)(?!\w)", r"\\\1\2", text)


def leave_builtins(app, doctree):
    """`bytes` in a signature is Python's: Sphinx would look for any attribute of that name, and find several."""
    for node in list(doctree.findall(addnodes.pending_xref)):
        if node.get("refdomain") == "py" and hasattr(builtins, node["reftarget"]):
            node.replace_self(node.children)


def setup(app):
    app.connect("doctree-read", leave_builtins)
    app.connect("autodoc-process-docstring", read_docstring)
