#!/usr/bin/env python3
"""Follows every link of a folder of HTML files, to files and to places in them.

    html_links.py FOLDER        prints broken links; exit 1 if there are any
"""

import html.parser
import sys
from pathlib import Path
from typing import Dict, List, Set, Tuple
from urllib.parse import unquote, urlsplit


class Page(html.parser.HTMLParser):
    """Where a page leads, and the places in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: List[str] = []
        self.places: Set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: "list[tuple[str, str | None]]") -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif value and (name == "id" or name == "name" and tag == "a"):
                self.places.add(value)


def check(folder: Path) -> Tuple[List[str], List[str]]:
    """(broken links as sentences, external links). External ones are not fetched."""
    folder = folder.resolve()
    pages: Dict[Path, Page] = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    broken, external = [], set()
    if not pages:
        broken.append(f"{folder}: no page")
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if parts.scheme not in ("data", "mailto"):
                    external.add(link)
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            name = path.relative_to(folder)
            if not target.is_file():
                broken.append(f"{name}: the link to {link} leads nowhere")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places:
                broken.append(f"{name}: {link}: there is no such place in the page")
    return broken, sorted(external)


if __name__ == "__main__":
    found, _ = check(Path(sys.argv[1]))
    print("\n".join(found) or "every link leads somewhere")
    sys.exit(bool(found))
