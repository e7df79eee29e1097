"""The experiments of DeepReduce's paper (Xu et al. 2021), as far as two cores go, on one page. `./dev paper`

    python -m bench.paper                 trains what is not in bench/results yet, then the federation, then the page
    python -m bench.paper --federated     the federated experiment only (12 minutes of one core), then the page
    python -m bench.paper --page          the page from what is kept
    python -m bench.paper --quick --out DIR   a few rounds of each plan, the json in DIR (30 seconds)

Kept: bench/results/train_paper.jsonl, train_policies.jsonl and train_zeros.jsonl (./dev train --set paper, …), paper.json, paper.md and its pictures. Fig. 8 and volumes
are taken from fig8_laplace.json and sizes.json, which ./dev results measures; NCF from paper_ncf.json, which
bench/results/paper_ncf.py predicts. Exit 1 if a step fails, 2 for a wrong argument.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

from bench.paper import federated_runs, volumes
from bench.train import train_results
from bench.train.task import ROOT

RESULTS = ROOT / "bench" / "results"


def keep(path: Path, document: Dict[str, Any]) -> None:
    """A row of a list has a line, so that a change shows."""
    sys.path.insert(0, str(RESULTS))
    from runs import text_of

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(document), "utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev paper", description="The experiments of DeepReduce's paper, on one page.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--federated", action="store_true", help="the federated experiment only, then the page")
    what.add_argument("--page", action="store_true", help="the page from what is kept")
    what.add_argument("--quick", action="store_true", help="a few rounds of each plan; wants --out")
    parser.add_argument("--plan", nargs="+", metavar="NAME", choices=federated_runs.WIRES, help="of the federation")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="of the federation: 1 to N (3)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where paper.json goes (bench/results)")
    given = parser.parse_args()
    if given.quick and given.out is None:
        parser.error("--quick wants --out: a few rounds are no result to keep")
    if given.seeds < 1:
        parser.error(f"--seeds {given.seeds}: at least 1")
    return given


def main() -> int:
    given = arguments()
    sys.path.insert(0, str(ROOT / "bindings" / "python"))
    if not given.page:
        train_results.refuse_unrepeatable((given.out or RESULTS) / "paper.json")
    if not (given.page or given.quick or given.federated):
        for runs in ("paper", "policies", "zeros"):
            status = subprocess.run([sys.executable, "-m", "bench.train", "--set", runs], cwd=ROOT).returncode
            if status:
                return status
    if not given.page:
        where = train_results.context()
        measured = federated_runs.measure(given.plan or list(federated_runs.WIRES), given.seeds, given.quick)
        made = {**where, **measured, "volumes": volumes.measure(1 if given.quick else 5)}
        keep((given.out or RESULTS) / "paper.json", made)
    if not given.out:
        subprocess.run([sys.executable, str(RESULTS / "paper.py")], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
