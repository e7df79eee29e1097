"""Pages that a script makes of what is kept beside it. All of them are written again, or compared with what is there; nothing is measured.

    python3 bench/results/pages.py                     # writes all pages
    python3 bench/results/pages.py --check [PAGE…]     # prints what differs, and fails (a test): avx2.md, README.md, …

A script has a function without arguments that returns the text of its page. Pictures are not compared: they differ between versions of matplotlib.
"""

import difflib
import importlib
import sys
from pathlib import Path
from typing import Dict, List, Sequence

here = Path(__file__).resolve().parent
root = here.parents[1]
FOLDER = "bench/results/"
SHOWN = 12  # lines of a difference

# page, from the root: module and function
PAGES: Dict[str, str] = {
    "README.md": "readme:readme_text",
    "docs/RESULTS.md": "readme:results_text",
    "tool/compare/page/training.json": "train_report:remade",
    **{
        f"{FOLDER}{page}.md": f"{module}:remade"
        for page, module in {
            "accumulated": "accumulated",
            "avx2": "avx2",
            "comm": "comm",
            "control": "control_traces",
            "energy": "energy",
            "fig8": "fig8",
            "fuzz": "fuzzing",
            "gpu": "gpu",
            "hook_steps": "bench.train.hook_steps",
            "methods": "methods_page",
            "momentum_correction": "bench.train.momentum_correction",
            "outer": "outer",
            "outer_rounds": "outer_rounds",
            "owner_steps": "bench.train.owner_steps",
            "paper": "paper",
            "patch": "patch_page",
            "peers": "peers",
            "predictions": "predictions",
            "predictions_book": "bench.predict_proof.proof_book",
            "reach": "reach",
            "sizes": "sizes",
            "train": "train",
            "weights": "weights_page",
        }.items()
    },
}
BY_HAND = ("README.md", "calls.md", "exchange.md")  # of this folder


def remade(page: str) -> str:
    """What the page's script makes of what is kept."""
    for folder in (root / "bindings" / "python", root / "tests" / "fuzz", root, here):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    module, function = PAGES[page].split(":")
    return str(getattr(importlib.import_module(module), function)())


def difference(page: str) -> List[str]:
    """Lines that tell the page from what its script makes: - is in the page, + what the script has. None: they are the same."""
    there, now = (root / page).read_text("utf-8"), remade(page)
    return list(difflib.unified_diff(there.splitlines(), now.splitlines(), page, "what is kept says", lineterm="", n=0)) or (["a line end"] if there != now else [])


def check(pages: Sequence[str] = ()) -> int:
    """1 if a page is not what its script makes."""
    stale = 0
    for page in pages or PAGES:
        if lines := difference(page):
            stale = 1
            print("\n".join([*lines[:SHOWN], *(["…"] if len(lines) > SHOWN else []), f"{page} has drifted: python3 bench/results/pages.py writes it again"]))
    return stale


def named(words: Sequence[str]) -> List[str]:
    """Pages by their names: `avx2.md`, or from the root."""
    found = [next((page for page in (FOLDER + word, word) if page in PAGES), "") for word in words]
    if "" in found:
        sys.exit(f"no script makes {words[found.index('')]}; there are {', '.join(page.removeprefix(FOLDER) for page in PAGES)}")
    return found


def main() -> int:
    words = sys.argv[1:]
    if "--check" in words:
        return check(named([word for word in words if word != "--check"]))
    for page in named(words) or PAGES:
        (root / page).write_text(remade(page), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
