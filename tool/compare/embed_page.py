#!/usr/bin/env python3
"""Makes the page of `compare --report`, with Chart.js inside, a C++ file.

    embed_page.py PAGE_FOLDER CHART_JS OUT.cpp     CHART_JS: chart.min.js of Chart.js 3; "": the report is unsupported
    embed_page.py --version CHART_JS               its version; status 1 if the page cannot use it
"""

import base64
import hashlib
import json
import re
import sys
from pathlib import Path

SCRIPTS = ("page_columns.js", "page_rows.js", "page_names.js", "page_styles.js", "page_charts.js", "page_table.js", "page_result.js", "page.js", "page_start.js")
PLACES = ("@COLUMNS@", "@MEASURED@")  # where html_report puts the columns and the document
PIECE = 4000  # characters of one literal: compilers need take no more than 65,536 bytes


def chart_version(library: str) -> str:
    """Of Chart.js, from its banner. Raises ValueError."""
    found = re.search(r"Chart\.js v(\d+\.\d+\.\d+)", library[:500])
    if not found:
        raise ValueError("not a file of Chart.js: no 'Chart.js v…' at its start")
    if not found[1].startswith("3."):
        raise ValueError(f"Chart.js {found[1]}, but the page is for 3.x")
    return found[1]


def page(folder: Path, library: str) -> str:
    """The page with PLACES left in it. Only scripts and styles with these hashes run in it."""
    version = chart_version(library)
    style = (folder / "page.css").read_text("utf-8")
    parts = "\n".join((folder / name).read_text("utf-8") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{parts}}})();\n'
    library = library.replace("\r", "").split("//# sourceMappingURL=")[0]
    training = json.dumps(json.loads((folder / "training.json").read_text("utf-8")), ensure_ascii=False)
    for name, text in {"Chart.js": library, "the page's scripts": script}.items():
        if "</script" in text.lower() or "<!--" in text:
            raise ValueError(f"{name} would end the element that holds it")
    policy = f"default-src 'none'; img-src data:; script-src {digest(library)} {digest(script)}; style-src {digest(style)}"
    values = {
        "POLICY": policy,
        "STYLE": style,
        "CHART_VERSION": version,
        "TRAINING": training.replace("<", "\\u003c"),
        "LICENCE": (folder / "licences.txt").read_text("utf-8").replace("--", "- -"),
        "LIBRARY": library,
        "SCRIPT": script,
    }
    text = (folder / "page.html").read_text("utf-8")
    return re.sub(r"@([A-Z_]+)@", lambda found: values.get(found[1], found[0]), text)


def digest(text: str) -> str:
    """As a Content-Security-Policy names a script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def literal(text: str) -> str:
    pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
    return "\n".join(f'R"~page~({piece})~page~"' for piece in pieces) or '""'


def source(text: str) -> str:
    before, _, rest = text.partition(PLACES[0])
    between, _, after = rest.partition(PLACES[1])
    return (
        "// Made by embed_page.py.\n"
        '#include "page_text.hpp"\n\n'
        "namespace dr::compare {\n"
        f"const std::string_view page_before_columns = {literal(before)};\n"
        f"const std::string_view page_before_document = {literal(between)};\n"
        f"const std::string_view page_after_document = {literal(after)};\n"
        "}  // namespace dr::compare\n"
    )


def main(argv: "list[str]") -> int:
    try:
        if len(argv) == 2 and argv[0] == "--version":
            print(chart_version(Path(argv[1]).read_text("utf-8")))
            return 0
        if len(argv) != 3:
            print(__doc__, file=sys.stderr)
            return 2
        folder, library, out = argv
        text = page(Path(folder), Path(library).read_text("utf-8")) if library else ""
        Path(out).write_text(source(text), "utf-8")
    except (OSError, ValueError) as error:
        print(f"embed_page.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
