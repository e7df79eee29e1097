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

# Page: script, from the root, and its function where that is not `remade`. (Whole names, so that `./dev quick` finds the test of what changed.)
PAGES: Dict[str, str] = {
    "README.md": "bench/results/readme.py:readme_text",
    "docs/RESULTS.md": "bench/results/readme.py:results_text",
    "docs/PYTORCH.md": "bench/results/readme.py:pytorch_text",
    "docs/PAYS.md": "bench/results/readme.py:pays_text",
    "tool/compare/page/training.json": "bench/results/train_report.py",
    "bench/results/accumulated.md": "bench/results/accumulated.py",
    "bench/results/avx2.md": "bench/results/avx2.py",
    "bench/results/comm.md": "bench/results/comm.py",
    "bench/results/control.md": "bench/results/control_traces.py",
    "bench/results/energy.md": "bench/results/energy.py",
    "bench/results/fig8.md": "bench/results/fig8.py",
    "bench/results/fuzz.md": "tests/fuzz/fuzzing.py",
    "bench/results/gpu.md": "bench/results/gpu.py",
    "bench/results/hook_steps.md": "bench/train/hook_steps.py",
    "bench/results/index_contexts.md": "bench/results/index_contexts.py",
    "bench/results/methods.md": "bench/results/methods_page.py",
    "bench/results/momentum_correction.md": "bench/train/momentum_correction.py",
    "bench/results/outer.md": "bench/results/outer.py",
    "bench/results/outer_rounds.md": "bench/results/outer_rounds.py",
    "bench/results/owner_steps.md": "bench/train/owner_steps.py",
    "bench/results/paper.md": "bench/results/paper.py",
    "bench/results/patch.md": "bench/results/patch_page.py",
    "bench/results/peers.md": "bench/results/peers.py",
    "bench/results/predictions.md": "bench/results/predictions.py",
    "bench/results/predictions_book.md": "bench/predict_proof/proof_book.py",
    "bench/results/reach.md": "bench/results/reach.py",
    "bench/results/sizes.md": "bench/results/sizes.py",
    "bench/results/train.md": "bench/results/train.py",
    "bench/results/tuned.md": "bench/results/tuned.py",
    "bench/results/utility.md": "bench/results/utility.py",
    "bench/results/weights.md": "bench/results/weights_page.py",
    "bench/results/which_plan.md": "bench/results/which_plan_page.py",
}
BY_HAND = ("README.md", "calls.md", "exchange.md")  # of this folder


def remade(page: str) -> str:
    """What the page's script makes of what is kept."""
    for folder in (root / "bindings" / "python", root / "tests" / "fuzz", root, here):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    script, _, function = PAGES[page].partition(":")
    path = Path(script)
    module = path.stem if path.parts[-2] in ("results", "fuzz") else ".".join(path.with_suffix("").parts)  # of scripts, which are on the path, or of a package
    return str(getattr(importlib.import_module(module), function or "remade")())


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
