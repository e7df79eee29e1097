#!/usr/bin/env python3
"""Builds the site of the documentation: the pages of the tree, the C headers and the Python package, by Sphinx.

    build_site.py [--check] OUT       OUT/html/index.html

Links among the pages and to files of the tree are followed; a broken one is an error. --check also looks at every link of the HTML, and
lists the external ones, which are not fetched.
"""

import argparse
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
import c_headers  # noqa: E402
import html_links  # noqa: E402

sys.path[:0] = [str(ROOT / "bindings" / "python"), str(ROOT / "bindings" / "grace")]

HEADERS = ("version.h", "codec.h", "deepreduce.h", "exchange.h", "sender.h", "transform.h", "control.h", "mpi.h")
MODULES = ("patch", "torch", "outer", "stats", "mpi", "book", "sender", "control", "transform", "grace", "jax", "keras", "flower", "lightning", "accelerate")
# What each header is about, for its page's title.
TITLES = {
    "version.h": "versions of library and format",
    "codec.h": "the interface of codecs",
    "deepreduce.h": "plans, frames, states",
    "exchange.h": "all-reduce of frames",
    "sender.h": "exchange of named tensors",
    "transform.h": "factors in place of frames",
    "control.h": "plans chosen at run time",
    "mpi.h": "exchanges over MPI",
}
# The pages of the package itself: title, and what of deepreduce.__all__ is on it. (A Sender is on its module's page.)
PACKAGE = {
    "python_frames": (
        "Python: encode, decode, merge",
        ("encode", "decode", "merge", "Sparse", "inspect", "Frame", "FrameTensor", "frame_size", "DeviceFrame", "Trace", "trim"),
    ),
    "python_plans": ("Python: plans and codecs", ("Plan", "PlanInfo", "Stage", "presets", "codecs", "Codec", "Parameter", "load_plugin")),
    "python_compare": ("Python: compare and its rows", ("compare", "Rows")),
    "python_batch": ("Python: Batch, Bound, State", ("Batch", "Bound", "State")),
}  # fmt: skip
ERRORS = "python_errors"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#:\s]+)(#[^)]*)?\)")


def tracked(*patterns: str) -> List[Path]:
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:  # a source archive
        sys.exit(f"the site is made of the files that git tracks, and git says: {done.stderr.strip()}")
    return [Path(name) for name in done.stdout.splitlines() if (ROOT / name).is_file() and not (ROOT / name).is_symlink()]


def stage_page(page: Path, stage: Path) -> None:
    """Copies a page; what it links to goes along. A link to a folder leads to its README.md, or is no link."""

    def link(match: "re.Match[str]") -> str:
        image, words, target, anchor = match.groups()
        path = (ROOT / page.parent / target).resolve()
        if not path.exists():
            return match[0]  # for Sphinx to report
        if path.is_dir():
            return f"[{words}]({target.rstrip('/')}/README.md)" if (path / "README.md").is_file() else words
        if path.suffix != ".md":
            copy(path.relative_to(ROOT), stage)
        return match[0]

    text = (ROOT / page).read_text(encoding="utf-8")
    fenced = re.split(r"(^```.*?^```$)", text, flags=re.S | re.M)
    fenced[::2] = [LINK.sub(link, part) for part in fenced[::2]]
    (stage / page).parent.mkdir(parents=True, exist_ok=True)
    (stage / page).write_text("".join(fenced), encoding="utf-8")


def copy(path: Path, stage: Path) -> None:
    (stage / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / path, stage / path)


def stage_reference(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    texts = {name: (ROOT / "include/deepreduce" / name).read_text(encoding="utf-8") for name in HEADERS}
    names = set().union(*(c_headers.declared_names(text) for text in texts.values()))
    for name, text in texts.items():
        (folder / (name.replace(".", "_") + ".rst")).write_text(c_headers.page(name, text, names, TITLES[name]), encoding="utf-8")
    for name, page in package_pages().items():
        (folder / f"{name}.rst").write_text(page, encoding="utf-8")
    import deepreduce

    for module in MODULES:
        elsewhere = ", ".join([*deepreduce.__all__, *(["OutOfStep"] if module == "outer" else [])])  # (of the package, and of torch)
        page = heading(f"deepreduce.{module}")
        page += f".. automodule:: deepreduce.{module}\n   :members:\n   :imported-members:\n   :exclude-members: {elsewhere}\n"
        if module == "sender":
            page += "\n.. autoclass:: deepreduce.Sender\n   :members:\n"
        (folder / f"python_{module}.rst").write_text(page, encoding="utf-8")


def heading(title: str) -> str:
    return f"{title}\n{'=' * len(title)}\n\n"


def package_pages() -> Dict[str, str]:
    """{name: text} of the pages of the package itself: an overview, and what it says is public, by subject."""
    import deepreduce

    errors = [name for name in deepreduce.__all__ if inspect.isclass(getattr(deepreduce, name)) and issubclass(getattr(deepreduce, name), Exception)]
    pages = {**PACKAGE, ERRORS: ("Python: errors", tuple(sorted(errors, key=lambda name: name != "Error")))}
    placed = [name for _, names in pages.values() for name in names]
    public = {name for name in deepreduce.__all__ if callable(getattr(deepreduce, name))} - {"Sender"}
    if set(placed) != public or len(placed) != len(public):
        sys.exit(f"build_site.py: PACKAGE and deepreduce.__all__ differ in {', '.join(sorted(set(placed) ^ public)) or 'a name that is twice'}")
    made = {}
    for page, (title, names) in pages.items():
        made[page] = heading(title) + "\n".join(documented(getattr(deepreduce, name), name) for name in names)
    lists = [f"* :doc:`{title} <{page}>`: " + ", ".join(f":py:obj:`~deepreduce.{name}`" for name in names) for page, (title, names) in pages.items()]
    lists.append("* :doc:`python_sender`: :py:obj:`~deepreduce.Sender`")
    made["python"] = heading("Python: the package deepreduce") + ".. automodule:: deepreduce\n   :no-members:\n\n" + "\n".join(lists) + "\n"
    return made


def documented(thing: object, name: str) -> str:
    kind = ("exception" if issubclass(thing, Exception) else "class") if inspect.isclass(thing) else "function"
    return f".. auto{kind}:: deepreduce.{name}\n" + ("   :members:\n" if kind == "class" else "")


def build(out: Path) -> None:
    stage = out / "source"
    shutil.rmtree(stage, ignore_errors=True)
    for page in tracked("*.md"):
        stage_page(page, stage)
    shutil.copyfile(HERE / "index.rst", stage / "index.rst")
    stage_reference(stage / "reference")
    words = ["-m", "sphinx", "-q", "-W", "--keep-going", "-c", HERE, "-d", out / "doctrees", stage, out / "html"]
    subprocess.run([sys.executable, *map(str, words)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    try:
        build(asked.out.resolve())
    except subprocess.CalledProcessError:
        print("docs: Sphinx has warnings, see above", file=sys.stderr)
        return 1
    if asked.check:
        broken, external = html_links.check(asked.out / "html")
        print("\n".join(f"external: {link}" for link in external))
        print("\n".join(broken) or "every link within the site leads somewhere")
        return bool(broken)
    print(asked.out / "html" / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
