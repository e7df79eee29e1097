"""In how many set-ups does compression pay? Writes utility.json and utility.md beside it: predictions over a grid.

    bench/results/utility.py               calibrates and records, then predicts; on a quiet machine
    bench/results/utility.py --measure     steps of some set-ups over links that tbf shapes, as root on a quiet machine
    bench/results/utility.py --predict     predicts from the stored costs and models again
    bench/results/utility.py --table       only writes the page
    bench/results/utility.py --check       whether this tool predicts what is stored (pages.py --check compares the page)
    … --quick --folder X                   few rounds: whether it works; writes into the folder only

Exit 1 where --check finds a difference or something failed, 2 for a wrong argument, 77 where links cannot be shaped.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bindings" / "python")]

from bench.predict_proof import published_models  # noqa: E402
from bench.train import train_results  # noqa: E402
from bench.train.methods import METHODS  # noqa: E402
from bench.train.rank_pool import RankError, RankPool  # noqa: E402
from bench.train.shaped_links import Unsupported, WrongRate  # noqa: E402

Json = Dict[str, Any]

WIN = 0.95  # of the dense step: a win is at most as long
SLOWDOWN = 1.07  # of computing beside the link: the study has 1.04 to 1.1
QUIET = 0.5  # load of the minute before, up to which the machine is quiet
RANKS = (2, 4, 8, 16, 32, 64)
LINKS = {"100 Mbit/s": "100Mb/s,50us", "1 Gbit/s": "1Gb/s,50us", "10 Gbit/s": "10Gb/s,50us", "25 Gbit/s": "25Gb/s,15us", "100 Gbit/s": "100Gb/s,15us"}
FAST = ("10 Gbit/s", "25 Gbit/s", "100 Gbit/s")  # of a data centre
CPU_METHODS = ("top1_log", "top01_log", "qsgd", "terngrad", "signsgd", "onebit", "bits8_owner", "bits4_owner", "lowrank4")
SIZES = tuple(1 << power for power in range(10, 25, 2))
RECORDED = ("transformer", "byte_gpt", "lstm_large")  # on one core, by this project
# Name, layers, milliseconds of a step, what they rest on (HiPress's plotting scripts).
PUBLISHED: Dict[str, Tuple[Callable[[], List[published_models.Layer]], float, str]] = {
    "ResNet-50": (published_models.resnet50, 1e3 * 32 * 128 / 41946, "32 images at 41,946 / 128 images a second of a V100"),
    "VGG-19": (published_models.vgg19, 1e3 * 32 * 128 / 26438, "32 images at 26,438 / 128 images a second of a V100"),
    "BERT-base": (published_models.bert_base, 458.0, "458 ms of a 1080 Ti; at their 287,238 / 32 tokens a second these are 32 × 128 tokens"),
}
SPEEDS = (1, 4)  # of the published computing
GPUS = ("h100", "h200")
GPU_TITLES = {"top1": "Top-1 %, golomb + qsgd", "top01": "Top-0.1 %, golomb + qsgd", "top10": "Top-10 %, golomb + qsgd"}
GPU_RATIOS = {"top1": "0.01", "top01": "0.001", "top10": "0.1"}
MEASURED = (("byte_gpt", 2), ("byte_gpt", 4), ("transformer", 2), ("lstm_large", 2))
MEASURED_LINKS = ("100mbit", "1gbit")


def gpu_plan(method: str, feedback: str = " feedback=residual") -> str:
    return f"sparsify=topr(ratio={GPU_RATIOS[method]}) index=golomb value=qsgd{feedback}"


def cpu_plan(method: str) -> str:
    plan = METHODS[method].plan
    assert plan
    return plan


def tool() -> str:
    return os.environ.get("DEEPREDUCE_TOOL") or str(ROOT / "build" / "tool" / "deepreduce")


# ---- Costs and models ----


def calibrated(folder: Path, quick: bool) -> Json:
    """The profile of one rank. Costs and frames are of Laplace's distribution, for the bundled gradients have chunks of zeros; errors are of these, for random numbers have no rank."""
    plans = dict.fromkeys([cpu_plan(m).replace(" exchange=owner", "") for m in CPU_METHODS] + [gpu_plan(m) for m in GPU_TITLES] + ["index=all value=raw"])

    def run(name: str, *options: str) -> Json:
        path = folder / f"{name}.json"
        words = [tool(), "calibrate", "-o", str(path), *options, *(word for plan in plans for word in ("--plan", plan))]
        subprocess.run(words, check=True, env={"DEEPREDUCE_DATASETS": str(ROOT / "datasets"), **os.environ})
        return dict(json.loads(path.read_text("utf-8")))

    errors = run("errors", "--time", "0", "--sizes", "1024")["errors"]
    sizes = ",".join(map(str, SIZES[::2] if quick else SIZES))
    costs = run("profile", "--data", f"synth:d={SIZES[-1]},values=laplace,seed=1", "--evict", "64", "--time", "0.02" if quick else "0.3", "--sizes", sizes)
    return {**costs, "errors": errors}


def recorded(quick: bool) -> Dict[str, Json]:
    models: Dict[str, Json] = {}
    with RankPool(1) as pool:
        for name in RECORDED:
            job = {"kind": "times", "model": name, "methods": ["local"], "seed": 1, "record": "local", "warm_up": 4, "rounds": 1 if quick else 10, "steps": 3}
            models[name] = pool.run(job, 600.0)[0]["local"]["model"]
    return models


def gpu_profile(rows: Sequence[Json], errors: Sequence[Json]) -> Json:
    """Costs of the stored rows as a fixed part and a part of each element: what a larger tensor takes more is its bytes' part.

    A merge of one more frame is that of a batch of 8 frames; of 0.1 % it counts as of 1 %, of 10 % as ten times as long.
    """
    us = {(row["name"].strip(), row["plan"]): row["graph_us"]["median"] for row in rows if row["graph_us"]}
    frames = {row["name"].strip(): row["frame_bytes"] for row in rows}
    names = {"top1": "25.6e6, 1 %", "top01": "25.6e6, 0.1 %", "top10": "25.6e6, 10 %"}
    small, many, counted = 36_864, 25_600_000, "sparsify=topr(count=256000) index=golomb value=qsgd"
    plain = {m: us[name, gpu_plan(m, "")] for m, name in names.items()}
    slope = (us["1e8, 1 %", gpu_plan("top1", "")] - plain["top1"]) / (100_000_000 - many)
    residual = (us["25.6e6, 1 %, residual", "sparsify=topr(ratio=0.01) index=golomb value=qsgd feedback=residual"] - plain["top1"]) / many
    fixed = us["36,864, 1 %", gpu_plan("top1", "")] - slope * small
    added = us["its frame, added", gpu_plan("top1", "")]
    decode = (us["a frame of 256e3, to a fresh tensor", counted] - added) / (many - small)
    merge = (us["8 frames of 256e3, added", counted] - us["a frame of 256e3, added", counted]) / 7 / many
    costs: List[Json] = []
    for m in names:
        base = max(fixed, plain[m] - slope * many)
        for operation, floor, constant, per_element in (
            ("encode", fixed, base, slope + residual),
            ("decode", added, added, decode),
            ("merge", 0.0, 0.0, merge * (10 if m == "top10" else 1)),
        ):
            costs.append({"plan": gpu_plan(m), "operation": operation, "floor_ns": 1e3 * floor, "base_ns": 1e3 * constant, "per_element_ns": 1e3 * per_element})
    sizes = [{"plan": gpu_plan(m), "base_bytes": 0, "per_element_bytes": frames[name] / many, "sum_growth": []} for m, name in names.items()]
    whole = {"r2": 1.0, "from": small, "to": 1_000_000_000, "samples": []}
    return {
        "schema": "deepreduce-profile-1",
        "date": "2000-01-01T00:00:00Z",
        "commit": "unknown",
        "machine": {"cpu": "a GPU", "cores": 1},
        "conditions": {"ranks": 1, "threads": 1, "data": "of gpu_bench"},
        "costs": [{**cost, **whole} for cost in costs],
        "frames": [{**size, **whole} for size in sizes],
        "errors": list(errors),
    }


def without_costs(profile: Json) -> Json:
    """The same frames, of codecs that take no time."""
    free = [{**cost, "floor_ns": 0, "base_ns": 0, "per_element_ns": 0, "samples": []} for cost in profile["costs"]]
    return {**profile, "costs": free}


def scaled(model: Json, factor: float) -> Json:
    """The model whose computing takes `factor` times as long."""
    times = {key: round(model[key] * factor) for key in ("forward_ns", "backward_ns", "rest_ns")}
    return {**model, **times, "tensors": [{**tensor, "ready_ns": round(tensor["ready_ns"] * factor)} for tensor in model["tensors"]]}


def computing(model: Json) -> int:
    return int(model["forward_ns"] + model["backward_ns"] + model["rest_ns"])


# ---- Predictions ----


class Predictor:
    """One profile and its free twin, as files."""

    def __init__(self, folder: Path, profile: Json, plans: Dict[str, str], hook: str) -> None:
        import deepreduce

        self.plans, self.hook = {m: (plan, str(deepreduce.Plan(plan))) for m, plan in plans.items()}, hook
        self.paths = (folder / f"{hook}.json", folder / f"{hook}_free.json")
        for path, document in zip(self.paths, (profile, without_costs(profile))):
            path.write_text(json.dumps(document), "utf-8")

    def steps(self, model: Path, link: str, ranks: int, free: bool = False) -> Dict[str, Json]:
        """The rows of `deepreduce predict`, by method; the dense ones are dense f32 and dense bf16."""
        words = [tool(), "predict", str(self.paths[free]), "--model", str(model), "--link", link, "--ranks", str(ranks), "--hook", self.hook]
        words += ["--no-break-even", "--format", "json", *(["--slowdown", str(SLOWDOWN)] if self.hook == "ddp" else [])]
        words += [word for plan, _ in self.plans.values() for word in ("--plan", plan)]
        done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120)
        rows = {row["candidate"]: row for row in json.loads(done.stdout)["rows"]}
        names = {m: written for m, (_, written) in self.plans.items()}
        return {name: rows[written] for name, written in {**names, "f32": "dense f32", "bf16": "dense bf16"}.items()}


def all_models(stored: Json) -> Dict[str, Json]:
    """Of the grid, by title: as recorded, and as published at each speed."""
    models = {METHODS_TITLE.get(name, name): model for name, model in stored["models"].items()}
    for name, (layers, milliseconds, _) in PUBLISHED.items():
        for speed in SPEEDS:
            models[name if speed == 1 else f"{name}, ÷ {speed}"] = published_models.model_file(name, layers(), 1e6 * milliseconds / speed, 32)
    return models


METHODS_TITLE = {"transformer": "transformer, 0.6 M", "byte_gpt": "GPT, 3.3 M", "lstm_large": "LSTM, 5.8 M"}


def is_published(model: str) -> bool:
    return model.split(",")[0] in PUBLISHED


def predicted(stored: Json) -> List[Json]:
    """The grid: a row for each codecs' device, model, link and number of ranks, with [step, whole gradient, step of free codecs] of each method."""
    models, grid = all_models(stored), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        by_device = {"cpu": Predictor(folder, stored["profile"], {m: cpu_plan(m) for m in CPU_METHODS}, "ddp")}
        for gpu in GPUS:
            (folder / gpu).mkdir()
            rows = json.loads((HERE / f"gpu_{gpu}.json").read_text("utf-8"))["rows"]
            profile = gpu_profile(rows, stored["profile"]["errors"])
            by_device[gpu] = Predictor(folder / gpu, profile, {m: gpu_plan(m) for m in GPU_TITLES}, "exchange")
        for title, model in models.items():
            path = folder / "model.json"
            path.write_text(json.dumps(model), "utf-8")
            for (link, text), ranks in itertools.product(LINKS.items(), RANKS):
                dense: Optional[List[int]] = None
                for device, predictor in by_device.items():
                    if device != "cpu" and not is_published(title):
                        continue
                    steps, free = predictor.steps(path, text, ranks), predictor.steps(path, text, ranks, True)
                    dense = dense or [steps["f32"]["step_ns"], steps["bf16"]["step_ns"]]  # the hook's, which overlap with backward
                    methods = {m: [steps[m]["step_ns"], steps[m]["whole_ns"], free[m]["step_ns"]] for m in predictor.plans}
                    grid.append({"device": device, "model": title, "link": link, "ranks": ranks, "compute": computing(model), "dense": dense, "methods": methods})
    return grid


# ---- Counts ----


def wins(step: Optional[float], dense: float) -> bool:
    return step is not None and step <= WIN * dense


def book_error() -> float:
    """The median error of the predictions of plan books, the only ones that were made before what they predict was measured."""
    lines = (HERE / "predictions_book.jsonl").read_text("utf-8").splitlines()
    books = [json.loads(line)["candidates"]["book"] for line in lines]
    return statistics.median(abs(book["predicted_ns"] / book["measured_ns"] - 1) for book in books)


def setups(grid: Sequence[Json]) -> Iterator[Json]:
    """One for each method of each row, with what is won, and why not."""
    error = book_error()
    for row in grid:
        best = min(row["dense"])
        for method, (step, whole, free) in row["methods"].items():
            won = wins(step, best)
            if won:
                reason = "won"
            elif not wins(row["compute"], best):
                reason = "hidden"  # an exchange that takes no time would not win
            else:
                reason = "coding" if wins(free, best) else "bytes"
            yield {
                **{key: row[key] for key in ("device", "model", "link", "ranks")},
                "method": method,
                "won": won,
                "f32": wins(step, row["dense"][0]),
                "whole": wins(whole, best),
                "sure": wins(step / (1 - error), best),
                "free": wins(free, best),
                "reason": reason,
                "gain": best / step,
            }


def counted(some: Sequence[Json], key: str = "won") -> str:
    return f"{sum(one[key] for one in some):,}"


# ---- The page ----


def table(head: str, lines: Sequence[Sequence[str]]) -> List[str]:
    count = head.count("|") - 1
    return [head, "|" + "---|" + "---:|" * (count - 1), *("| " + " | ".join(line) + " |" for line in lines), ""]


def of_links(some: Sequence[Json]) -> List[str]:
    return [f"{counted(of)} of {len(of):,}" if of else "" for link in LINKS for of in [[one for one in some if one["link"] == link]]]


def lead(some: Sequence[Json], name: str) -> List[str]:
    return [name, f"{len(some):,}", *(counted(some, key) for key in ("won", "f32", "whole", "sure", "free"))]


def page(stored: Json) -> str:
    everything = list(setups(stored["grid"]))
    cpu = [one for one in everything if one["device"] == "cpu"]
    published = [one for one in cpu if is_published(one["model"])]
    own = [one for one in cpu if not is_published(one["model"])]
    gpu = [one for one in everything if one["device"] != "cpu"]
    fast_cpu, fast_gpu = ([one for one in some if one["link"] in FAST] for some in (published, gpu))
    now_cpu, now_gpu = ([one for one in some if one["model"] in PUBLISHED] for some in (fast_cpu, fast_gpu))
    slow = [one for one in everything if one["link"] not in FAST]
    titles = {**{m: METHODS[m].title for m in CPU_METHODS}, **GPU_TITLES}
    head = "| " + " | ".join(["", *LINKS]) + " |"
    error = book_error()
    busy = "**Made on a busy machine: to be made again.** " if stored["load"] > QUIET else ""
    models = all_models(stored)
    text = [
        "# In how many set-ups does compression pay?",
        "",
        f"{busy}Codecs and models of {stored['date']}, commit {stored['commit']}, load {stored['load']}, {stored['cpu']}. Made by `bench/results/utility.py` from `utility.json`.",
        "",
        "The utility study (Agarwal et al., MLSys 2022) looked at more than 200 set-ups; compression was faster than the dense exchange in 6 of them. This page has the same count for this library. Its models, GPUs and codecs are others, so compare the orders of magnitude.",
        f"A set-up is a method, a model, a link and a number of ranks. **A win is a step that is at least {100 * (1 - WIN):.0f} % shorter than the best dense one**, which is a ring all-reduce in f32 or in bf16.",
        "",
        *table(
            "| set-ups | number | wins | against f32 only | by whole gradients | wins if the prediction errs | if coding cost nothing |",
            [
                lead(everything, "**all**"),
                lead(cpu, "codecs on one CPU core"),
                lead(own, "· models of this project, computing on a CPU core"),
                lead(published, "· published models, computing on a GPU"),
                lead(gpu, "codecs on a GPU, published models"),
                lead(fast_cpu, "**published models, 10 Gbit/s and more**, codecs on a CPU core"),
                lead(now_cpu, "· computing as published, not four times as fast"),
                lead(fast_gpu, "**published models, 10 Gbit/s and more**, codecs on a GPU"),
                lead(now_gpu, "· computing as published, not four times as fast"),
            ],
        ),
        f"- **In a data centre**, with codecs on a CPU core, {counted(now_cpu)} of {len(now_cpu)} set-ups win (published models at their published speed, 10 Gbit/s and more), beside 6 of more than 200 in the study. With codecs on a GPU, whose encode of 25.6 million elements takes a tenth to a quarter of a millisecond, {counted(now_gpu)} of {len(now_gpu)} win in the time of a step,"
        f" but {counted(now_gpu, 'whole')} by whole gradients.",
        f"- **At 1 Gbit/s and less** {counted(slow)} of {len(slow):,} win, and {counted(slow, 'whole')} by whole gradients.",
        "- **At 25 Gbit/s and more** no codec on a CPU core wins." if not any(one["won"] for one in cpu if one["link"] in FAST[1:]) else "",
        "- *By whole gradients*: the step is divided by 1 − E², where E is the plan's error in one step ([PAYS](../../docs/PAYS.md#time-and-error)): the rest of the gradient comes later. Plans of unknown error, or one of 1 and more (`signsgd`), count as no win.",
        f"- *If the prediction errs*: predictions of plan books, which were measured after the model was settled, had a median error of {100 * error:.0f} %, and the steps took longer than predicted. Here every step by a method takes 1 / (1 − {error:.2f}) times as long as predicted, and the dense step does not.",
        "- *If coding cost nothing*: an upper bound, with the frames of the method and codecs that take no time.",
        "",
        "**Every number of these tables is predicted.** What was measured is the cost of the codecs, the bytes of their frames, the computing of this project's models, and what stands under [Measured](#measured).",
        "",
        "## Where it wins",
        "",
        "Codecs on one CPU core, by link:",
        "",
        *table(head, [[f"`{m}`: {titles[m]}", *of_links([one for one in cpu if one["method"] == m])] for m in CPU_METHODS]),
        "Codecs on a GPU:",
        "",
        *table(head, [[f"{gpu_.upper()}, {GPU_TITLES[m]}", *of_links([one for one in gpu if one["method"] == m and one["device"] == gpu_])] for gpu_ in GPUS for m in GPU_TITLES]),
        "By model, codecs on a CPU core and on a GPU:",
        "",
        *table(head, [
            [f"{model}, codecs on {place}", *of_links(of)]
            for model in models for place, some in (("a CPU core", cpu), ("a GPU", gpu)) for of in [[one for one in some if one["model"] == model]] if of
        ]),
        "By ranks:",
        "",
        *table("| " + " | ".join(["", *map(str, RANKS)]) + " |", [
            [name, *(f"{counted(of)} of {len(of):,}" for ranks in RANKS for of in [[one for one in some if one["ranks"] == ranks]])]
            for name, some in (("a CPU core", cpu), ("a GPU", gpu))
        ]),
        "The largest gain of a method on a link, in dense steps for a step:",
        "",
        *table(head, [[f"`{m}`", *(f"{max(one['gain'] for one in cpu if one['method'] == m and one['link'] == link):.2f}" for link in LINKS)] for m in CPU_METHODS]),
        "## Why it does not win",
        "",
        *table("| set-ups | number | won | nothing to gain | too many bytes | coding takes too long |", [
            [name, f"{len(some):,}", *(f"{sum(one['reason'] == reason for one in some):,}" for reason in ("won", "hidden", "bytes", "coding"))]
            for name, some in (("a CPU core, published models", published), ("a CPU core, models of this project", own), ("a GPU, published models", gpu))
        ]),
        "- *Nothing to gain*: computing alone takes more than 95 % of the dense step. An exchange that takes no time would not be a win.",
        "- *Too many bytes*: not a win with codecs that take no time, either. An all-gather brings N − 1 frames to a rank, a ring at most two tensors.",
        "- *Coding takes too long*: a win if coding cost nothing.",
        "",
        *measured_lines(stored),
        "## What this rests on",
        "",
        *table("| model | elements | tensors | computing of a step, ms | from |", [
            [name, f"{sum(t['elements'] for t in model['tensors']):,}", str(len(model["tensors"])), f"{1e-6 * computing(model):.1f}", source_of(name)] for name, model in models.items()
        ]),
        "- *÷ 4*: a what-if; the same model computes four times as fast, as with a faster GPU, or nearly as with a quarter of the batch.",
        "- *Published models*: the time of a step is that of linear scaling in the plotting scripts of HiPress's artifact (Bai et al., SOSP 2021). The batch of ResNet-50 is assumed. Forward takes a third of a step, and backward the rest, layer by layer in proportion to multiplications.",
        "- *Links*: the rate of a host's link, 50 µs of latency up to 10 Gbit/s and 15 µs beyond, one rank a host. Both are assumed; nothing was measured on a link of 10 Gbit/s or more.",
        f"- *Computing beside the link* takes {SLOWDOWN} times as long; the study has 1.04 to 1.1.",
        "- *Codecs on a CPU core*: `deepreduce calibrate`, one thread, cold caches, tensors of up to 16.8 million elements of Laplace's distribution; larger tensors are extrapolated. Copies between a GPU and its host are not counted, and such a copy takes time in practice.",
        "- *Codecs on a GPU*: of `gpu_h100.json` and `gpu_h200.json`, as a fixed cost and a cost of each element, one exchange behind backward, all-gather. Only these plans were measured there. An encode with a residual counts as its median; [gpu.md](gpu.md) has its slower replays. A merge is that of a batch of 8 frames; of 10 % it counts as ten times that of 1 %. The GPU that computes is older than the one that codes, which favours compression.",
        "- *Bytes* are those of Laplace's distribution (CPU) and of the benchmark's draws (GPU), not of these models' gradients. The bundled gradients have chunks of zeros, of which 8 bits take a quarter. *Errors* are those of the bundled gradients, in one step; gradients of larger models may have larger ones, and then fewer set-ups win by whole gradients.",
        "- *Not in the model*: shared switches, several GPUs a host, stragglers, what a method does to the loss.",
        "",
    ]
    return "\n".join(text)


def source_of(title: str) -> str:
    name = title.split(",")[0]
    if name not in PUBLISHED:
        return "recorded, one core"
    return PUBLISHED[name][2] + (", a quarter of it" if title != name else "")


def measured_lines(stored: Json) -> List[str]:
    """Stored measurements of predictions.json, then those of --measure."""
    by_place: Dict[Any, List[Json]] = {}
    for row in json.loads((HERE / "predictions.json").read_text("utf-8"))["rows"]:
        if row["kind"] == "steps":
            by_place.setdefault((row["what"], row["ranks"], row["link"]), []).append(row)
    lines = [
        "## Measured",
        "",
        *table("| set-ups | number | wins, measured | wins, predicted | predicted only | measured only |", [verdict_line("steps of [predictions.md](predictions.md), 2 and 4 ranks, up to an unshaped loopback", by_place.values())]
               + ([verdict_line("set-ups of this grid's methods, 2 and 4 ranks", [place["rows"] for place in stored["measured"]])] if stored.get("measured") else [])),
        "Steps of DDP on this machine's two cores, over links that tbf shapes to 100 Mbit/s and 1 Gbit/s. The model of a step was changed until it fitted the rows of predictions.md, so these are not out of sample.",
    ]
    if not stored.get("measured"):
        return [*lines, "The methods of this grid were not measured yet: `utility.py --measure`.", ""]
    rows = [row for place in stored["measured"] for row in place["rows"] if row["plan"] not in ("dense", "bf16")]
    errors = [row["predicted_ns"] / row["measured_ns"] - 1 for row in rows]
    busy = stored["measured"][0]["load"] > QUIET  # before the first place; the others have the load of the ranks themselves
    lines += [
        f"Of this grid's methods {len(rows)} steps were predicted with the rate that a socket got and the computing of the same run; the costs of codecs are the stored ones. The median error is {100 * statistics.median(map(abs, errors)):.0f} %,"
        f" from {100 * min(errors):+.0f} to {100 * max(errors):+.0f} %." + (" **Measured on a busy machine: to be made again.**" if busy else ""),
        "",
        *table("| model, ranks, link | best dense, ms | " + " | ".join(f"`{m}`" for m in CPU_METHODS) + " |", [
            [f"{METHODS_TITLE[place['model']]}, {place['ranks']}, {place['link']}", f"{1e-6 * best(place['rows'], 'measured_ns'):.1f}", *(ratio_cell(place["rows"], m) for m in CPU_METHODS)]
            for place in stored["measured"]
        ]),
        "Cells are steps over the best dense step: measured (predicted).",
    ]
    return [*lines, ""]


def best(rows: Sequence[Json], key: str) -> float:
    return float(min(row[key] for row in rows if row["plan"] in ("dense", "bf16")))


def ratio_cell(rows: Sequence[Json], method: str) -> str:
    row = next((row for row in rows if row["plan"] == method), None)
    return f"{row['measured_ns'] / best(rows, 'measured_ns'):.2f} ({row['predicted_ns'] / best(rows, 'predicted_ns'):.2f})" if row else ""


def verdict_line(name: str, places: Iterable[Sequence[Json]]) -> List[str]:
    keys = ("measured_ns", "predicted_ns")
    pairs = [[wins(row[key], best(rows, key)) for key in keys] for rows in places for row in rows if row["plan"] not in ("dense", "bf16")]
    counts = (len(pairs), sum(real for real, _ in pairs), sum(hoped for _, hoped in pairs), pairs.count([False, True]), pairs.count([True, False]))
    return [name, *map(str, counts)]


# ---- Measuring ----


def measured(stored: Json, quick: bool) -> List[Json]:
    """Steps over shaped links, and what is predicted of them: computing and the link's rate are of the same run, costs are the stored ones."""
    from bench.train import step_times

    places: List[Json] = []
    for (model, ranks), link in itertools.product(MEASURED[:1] if quick else MEASURED, MEASURED_LINKS[1:] if quick else MEASURED_LINKS):
        rows = step_times.measure_one(model, ranks, link, ["local", "dense", "bf16", *CPU_METHODS], 1 if quick else None, 2 if quick else step_times.STEPS)
        by_method = {row["method"]: row for row in rows}
        local, shared = 1e6 * by_method["local"]["median"], max(1.0, ranks / (os.cpu_count() or 1))
        profile = {**stored["profile"], "costs": [slower(cost, shared) for cost in stored["profile"]["costs"]]}
        with tempfile.TemporaryDirectory() as name:
            path = Path(name, "model.json")
            path.write_text(json.dumps(scaled(stored["models"][model], local / computing(stored["models"][model]))), "utf-8")
            steps = Predictor(Path(name), profile, {m: cpu_plan(m) for m in CPU_METHODS}, "ddp").steps(path, f"{rows[0]['rate']}b/s,50us", ranks)
        found = [
            {"plan": method, "measured_ns": round(1e6 * row["median"]), "predicted_ns": steps[{"dense": "f32"}.get(method, method)]["step_ns"]}
            for method, row in by_method.items()
            if method != "local"
        ]
        where = {key: rows[0][key] for key in ("rate", "date", "commit", "load")}
        places.append({"model": model, "ranks": ranks, "link": {"1gbit": "1 Gbit/s", "100mbit": "100 Mbit/s"}[link], "rows": found, **where})
    return places


def slower(cost: Json, factor: float) -> Json:
    """A cost where ranks share cores."""
    times = {key: factor * cost[key] for key in ("floor_ns", "base_ns", "per_element_ns")}
    return {**cost, **times, "samples": [[size, factor * median, spread] for size, median, spread in cost["samples"]]}


# ---- The command ----


def written(stored: Json) -> str:
    """utility.json: a line for each row, cost and tensor list."""
    rows = lambda items: "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False, separators=(",", ":")) for item in items) + "\n]"
    parts = {key: json.dumps(value, ensure_ascii=False) for key, value in stored.items() if key not in ("grid", "profile", "measured")}
    profile = {key: rows(value) if isinstance(value, list) else json.dumps(value) for key, value in stored["profile"].items()}
    parts["profile"] = "{\n" + ",\n".join(f'"{key}": {value}' for key, value in profile.items()) + "\n}"
    parts.update({key: rows(stored[key]) for key in ("measured", "grid") if stored.get(key)})
    return "{\n" + ",\n".join(f'"{key}": {value}' for key, value in parts.items()) + "\n}\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/results/utility.py", description="In how many set-ups compression pays.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--measure", action="store_true", help="steps of some set-ups, over shaped links")
    what.add_argument("--predict", action="store_true", help="predicts from the stored costs and models")
    what.add_argument("--table", action="store_true", help="only writes the page")
    what.add_argument("--check", action="store_true", help="whether this tool predicts what is stored")
    parser.add_argument("--quick", action="store_true", help="few rounds: whether it works")
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / "utility", help="of the profile; of all results with --quick")
    given = parser.parse_args()
    if given.quick and given.folder == parser.get_default("folder"):
        parser.error("--quick measures little: give it a --folder of its own")
    return given


def remade() -> str:
    return page(json.loads((HERE / "utility.json").read_text("utf-8")))


def main() -> int:
    given = arguments()
    os.environ.setdefault("DEEPREDUCE_TOOL", tool())
    os.environ.setdefault("DEEPREDUCE_LIBRARY", str(ROOT / "build" / "capi" / "libdeepreduce.so"))
    given.folder.mkdir(parents=True, exist_ok=True)
    folder = given.folder if given.quick else HERE
    path = folder / "utility.json"
    found_at = next((one for one in (path, HERE / "utility.json") if one.exists()), None)
    old = json.loads(found_at.read_text("utf-8")) if found_at else {}
    if given.check:
        same = predicted(old) == old["grid"]
        print("the same" if same else "this tool predicts otherwise: --predict")
        return int(not same)
    if not (given.table or given.predict):
        train_results.refuse_unrepeatable(path)
    try:
        if given.measure:
            stored = {**old, "measured": measured(old, given.quick)}
        elif given.table or given.predict:
            stored = old
        else:
            where = train_results.context()
            stored = {**where, "cpu": "", "profile": calibrated(given.folder, given.quick), "models": recorded(given.quick), **{key: old[key] for key in ("measured",) if key in old}}
            stored["cpu"] = f"{stored['profile']['machine']['cpu'] or platform.machine()}, {stored['profile']['machine']['cores']} cores"
        if not (given.table or given.measure):
            stored["grid"] = predicted(stored)
    except Unsupported as error:
        print(f"unsupported here: {error}", file=sys.stderr)
        return 77
    except (RankError, WrongRate, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 1
    path.write_text(written(stored), "utf-8")
    (folder / "utility.md").write_text(page(stored), "utf-8")
    print("\n".join(page(stored).splitlines()[7:17]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
