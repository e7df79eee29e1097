"""Step times: every method in turn, over the loopback or over shaped links, and a verdict on ours."""

import statistics
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from bench.train import train_plan, train_results
from bench.train.rank_pool import RankError, RankPool
from bench.train.shaped_links import ShapedLinks, Unsupported, WrongRate

WARM_UP = 4  # steps: buckets are cut, slots find their sizes, PowerSGD begins
# Of each method in turn. On links of 100 Mbit/s, where a dense step takes seconds, half the rounds.
ROUNDS, STEPS = 8, 3
TIMEOUT = 1500.0  # seconds, of all methods on one link
LINKS = ("100mbit", "1gbit", "unshaped")
LINKED = {"lstm_large": (2, 4), "lstm": (2,), "resnet20": (2,)}
LINKED_METHODS = ["local", "dense", "fp16", "bf16", "powersgd1", "top1", "top1_log", "top1_auto", "top10_log"]
BASES = ("dense", "bf16", "powersgd1")
HEADER = "model, ranks, link, method: median [p10, p90] ms, bytes a step, verdict"


def measure(
    out: Path,
    links: bool,
    again: bool,
    models: Optional[Sequence[str]],
    methods: Optional[Sequence[str]],
    ranks: Optional[Sequence[int]],
) -> int:
    """Adds a row a model, number of ranks, link and method; `again`: if there is one, too. Returns an exit status."""
    plan = LINKED if links else dict.fromkeys(train_plan.GRID, (2,))
    rows = [row for row in train_results.read(out) if row["kind"] == "times"]
    done = {(row["model"], row["ranks"], row["link"], row["method"]) for row in rows}
    failed = 0
    names = methods or (LINKED_METHODS if links else train_plan.TIMED)
    print(
        f"{'links' if links else 'loopback'}: on a quiet machine about {15 if links else 8} minutes in all\n{HEADER}",
        flush=True,
    )
    for model in models or plan:
        for n in ranks or plan.get(model, (2,)):
            for link in LINKS if links else ["loopback"]:
                if not again and all((model, n, link, m) in done for m in names):
                    continue
                try:
                    for row in measure_one(model, n, link, names):
                        train_results.add(out, row)
                        failed += not row["identical"]
                except Unsupported as error:
                    print(f"unsupported here: {error}", file=sys.stderr)
                    return 77
                except (RankError, WrongRate) as error:
                    failed += 1
                    print(f"{model}, {n} ranks, {link}: {error}", file=sys.stderr, flush=True)
    return int(failed > 0)


def measure_one(
    model: str, ranks: int, link: str, methods: Sequence[str], rounds: Optional[int] = None, steps: int = STEPS, check: int = 0
) -> List[Dict[str, Any]]:
    """rounds: of `steps` steps of each method. None: as many as there is time for on the link. check: steps, see one_run.times."""
    rounds = rounds or (ROUNDS // 2 if link == "100mbit" else ROUNDS)
    job = {
        "kind": "times",
        "model": model,
        "methods": list(methods),
        "seed": 1,
        "warm_up": WARM_UP,
        "rounds": rounds,
        "steps": steps,
        "check": check,
    }
    where = train_results.context()
    if link == "loopback":
        with RankPool(ranks) as pool:
            answers, rate = pool.run(job, TIMEOUT), None
    else:
        with ShapedLinks(ranks, link) as links, links.pool() as pool:
            answers, rate = pool.run(job, TIMEOUT), round(links.measured)
    rows = [row_of(model, ranks, link, rate, m, [a[m] for a in answers], where) for m in methods]
    by_method = {row["method"]: row for row in rows}
    for row in rows:
        sentence = "; ".join(
            f"{base}: {verdict(row, by_method[base])}" for base in BASES if base in by_method and base != row["method"]
        )
        print(
            f"{model}, {ranks}, {link}{f' ({rate / 1e6:.0f} Mbit/s)' if rate else ''}, {row['method']}: {row['median']:.1f} "
            f"[{row['p10']:.1f}, {row['p90']:.1f}] ms, {row['sent']:,} bytes; {sentence}",
            flush=True,
        )
    return rows


def row_of(
    model: str,
    ranks: int,
    link: str,
    rate: Optional[int],
    method: str,
    reports: List[Dict[str, Any]],
    where: Dict[str, Any],
) -> Dict[str, Any]:
    """A step is over when its slowest rank is done. rounds: the median of each. parts: milliseconds, medians of the
    steps, mean of the ranks."""
    rounds = [[1e3 * max(step) for step in zip(*ranks_round)] for ranks_round in zip(*(t["seconds"] for t in reports))]
    slowest = sorted(step for round_ in rounds for step in round_)
    at = lambda share: round(slowest[min(len(slowest) - 1, int(share * len(slowest)))], 3)
    return {
        "kind": "times",
        "model": model,
        "ranks": ranks,
        "link": link,
        "rate": rate,
        "method": method,
        "steps": len(slowest),
        "median": round(statistics.median(slowest), 3),
        "p10": at(0.1),
        "p90": at(0.9),
        "rounds": [round(statistics.median(round_), 3) for round_ in rounds],
        "sent": round(statistics.fmean(t["sent"] for t in reports)),
        "parts": {k: round(1e3 * statistics.fmean(t["parts"][k] for t in reports), 3) for k in reports[0]["parts"]},
        **{name: round(statistics.fmean(t[name] for t in reports)) for name in ("frame", "repeats", "wire") if name in reports[0]},
        **({"error": round(max(t["error"] for t in reports), 6)} if "error" in reports[0] else {}),
        "identical": method == "local" or len({t["hash"] for t in reports}) == 1,
        **where,
    }


def verdict(row: Dict[str, Any], base: Dict[str, Any]) -> str:
    """Beyond the spread: in every round, in which both took their turn, the same one is faster. A slow phase of the
    machine falls on both."""
    ratios = [mine / other for mine, other in zip(row["rounds"], base["rounds"])]
    sentence = f"{row['median'] / base['median']:.2f} x [{min(ratios):.2f}, {max(ratios):.2f}]"
    if max(ratios) < 1:
        return f"faster, {sentence}"
    return f"does not pay, {sentence}" if min(ratios) > 1 else f"within the spread, {sentence}"
