"""Which runs there are, in which order, and how long they take."""

from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Sequence

from bench.train.grace_methods import missing_in_library
from bench.train.methods import METHODS
from bench.train.task import Setting

FIRST = ["dense", "top1", "powersgd1", "top1_log", "top1_none", "top1_auto", "top10_log"]  # all their seeds come before the others'
EVERYWHERE = FIRST + ["blocks", "blocks_half", "blocks_wide", "bf16", "p0", "p0_qsgd", "p2", "fit_poly", "top01_log", "fp16", "top1_log_none"]
WITHOUT_RESIDUAL = ["top1_auto_none", "p0_none", "p2_none", "fit_poly_none", "p0_qsgd_none"]
SLOW = FIRST + ["blocks", "bf16", "p0_qsgd"]
FOUR_RANKS = ["dense", "top1", "powersgd1", "top1_log", "top1_none"]
# model: methods of 2 ranks, methods of 4. Two cores have two hours: what was cut for that is what is not here.
GRID: Dict[str, "tuple[List[str], List[str]]"] = {
    "lstm": (EVERYWHERE + WITHOUT_RESIDUAL, FOUR_RANKS),
    "cnn": (EVERYWHERE, FOUR_RANKS),
    "neumf": (EVERYWHERE, []),
    "transformer": (EVERYWHERE, []),
    "resnet20": (SLOW, []),
    "lstm_large": (SLOW, []),
}
GRACE = [name for name, m in METHODS.items() if m.kind == "grace"]
FIG_15 = ["dense", "top1", "p0", "p2", "fit_poly", "p0_qsgd", "skcompress", "three_lc"]
# --set NAME: its models and methods, 2 ranks; its rows have a file of their own, train_NAME.jsonl.
SETS: Dict[str, "tuple[List[str], List[str]]"] = {
    "methods": (["resnet20", "lstm"], [*FIRST[:2], "bf16", *GRACE, "top1_log", "top1_auto", "blocks"]),
    "paper": (["resnet20", "cnn", "lstm"], FIG_15),
    "policies": (["cnn"], ["dense", "top1", "random1", *(name for name in METHODS if name.startswith(("top1_p", "random1_p")))]),
    "zeros": (["neumf"], ["dense", *(name for name in METHODS if name.startswith("zeros_"))]),
}
QUICK = {"lstm": ["dense", "top1", "top1_auto", "powersgd1"], "neumf": ["dense", "top1_log", "p0_qsgd"]}
TIMED = ["local", "dense", "fp16", "bf16", "powersgd1", "top1", "top1_log", "top1_auto", "p0", "p2", "fit_poly"]
TIMED += ["p0_qsgd", "top10_log"]


@dataclass(frozen=True)
class Run:
    """A quality run: its key in the results."""

    model: str
    method: str
    ranks: int
    seed: int
    steps: int


def quality_runs(
    settings: Dict[str, Setting],
    seeds: Sequence[int],
    models: Optional[Sequence[str]],
    methods: Optional[Sequence[str]],
    ranks: Optional[Sequence[int]],
    share: float,
) -> List[Run]:
    """All of the grid that the filters leave, in an order of which any beginning makes a table.

    methods that were asked for run on all models that were asked for, in the grid or not. share: of a model's steps
    """
    runs = []
    for seed in seeds:
        for model, (two, four) in GRID.items():
            for n in ranks or ((2, 4) if four else (2,)):
                names = methods or (two if n == 2 else four)
                steps = max(2, round(share * settings[model].steps))
                runs += [Run(model, m, n, seed, steps) for m in names if not models or model in models]
    # Ranks of one number run together: starting them takes longer than a run.
    return sorted(runs, key=lambda run: (run.method not in FIRST, run.ranks, run.seed))


def quick_runs(models: Optional[Sequence[str]], methods: Optional[Sequence[str]]) -> List[Run]:
    return [
        Run(model, m, 2, 1, 40)
        for model, names in QUICK.items()
        if not models or model in models
        for m in methods or names
    ]


def set_runs(
    name: str, settings: Dict[str, Setting], seeds: Sequence[int], share: float, quick: bool
) -> List[Run]:
    """The runs of a set, seed by seed. quick: one model, a few steps. What the library lacks is reported and left out."""
    mine, methods = SETS[name]
    there = []
    for method in methods:
        plan = METHODS[method].plan
        missing = missing_in_library(plan) if plan else None
        if missing:
            print(f"{method}: left out, unsupported by this library: {missing.split(';')[0]}", flush=True)
        else:
            there.append(method)
    if quick:
        return [Run("lstm", method, 2, 1, 6) for method in there]
    steps = {model: max(2, round(share * settings[model].steps)) for model in mine}
    return [Run(m, method, 2, seed, steps[m]) for seed in seeds for m in mine for method in there]


def seconds_of(run: Run, settings: Dict[str, Setting], took: Dict["tuple[str, int]", List[float]]) -> float:
    """The estimate from the steps of the same model and ranks so far; without any, from the known time of a dense step."""
    known = took.get((run.model, run.ranks))
    if known:
        return run.steps * sum(known) / len(known)
    return run.steps * settings[run.model].seconds * run.ranks / 2 + 3


def unknown(names: Optional[Iterable[str]], there: Iterable[str], what: str) -> Optional[str]:
    wrong = sorted(set(names or ()) - set(there))
    return f"no {what} {wrong[0]!r}; there are {', '.join(there)}" if wrong else None


def check_methods(names: Optional[Iterable[str]]) -> Optional[str]:
    missing = [f"{n}: unsupported: {METHODS[n].missing}" for n in names or () if n in METHODS and METHODS[n].missing]
    return unknown(names, METHODS, "method") or (missing[0] if missing else None)
