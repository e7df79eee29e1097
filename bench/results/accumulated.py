"""What indices and values cost in training: raw gradients beside what a sparsifier sees, all exact index codecs, and how much is left.

    PYTHONPATH=bindings/python python3 bench/results/accumulated.py [NAME…]     # trains (minutes), keeps accumulated.json, writes accumulated.md
    python3 bench/results/accumulated.py --table                                # writes accumulated.md from what is kept

Trains as datasets/accumulate.py does, whose models NAME may pick. At its recorded steps the gradient and the accumulator of the same step,
rounded as the bundled file, go through the library; the context model (context_model.py) sees every step.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
from typing import Any, Dict, List

import numpy as np

here = pathlib.Path(__file__).resolve().parent
root = here.parents[1]
sys.path[:0] = [str(root / "datasets"), str(here)]
document = here / "accumulated.json"

INDEX = ["raw", "bitmap", "rle", "delta_varint", "delta_bitpack", "delta_pfor", "elias_fano", "rice", "golomb", "golomb(adaptive=1)", "gap_huffman", "chunks"]
VALUE = ["log_quant", "uniform_quant", "qsgd", "raw+deflate"]
WHOLE = {"golomb, raw": "index=golomb value=raw", "golomb, log_quant": "index=golomb value=log_quant",
         "auto(error=0.07)": "index=auto value=auto(error=0.07)"}
LEARNERS = ["golomb", "golomb(adaptive=1)", "gap_huffman"]  # beside the context model, on a step in EVERY
EVERY = 10
KINDS = ["gradient", "seen"]


# ---- measuring -----------------------------------------------------------------------------------


def encoded(x: np.ndarray, ratio: float, streams: str) -> Any:
    """The header of the frame of x, and its bytes."""
    import deepreduce

    frame = deepreduce.encode(x, f"sparsify=topr(ratio={ratio:g}) {streams}")
    info = deepreduce.inspect(frame).tensors[0]
    if info.fallback != "none":
        raise RuntimeError(f"{streams}: the frame fell back to {info.fallback}")
    return info, len(frame)


def index_bits(x: np.ndarray, ratio: float, codec: str) -> float:
    info, _ = encoded(x, ratio, f"index={codec} value=log_quant")
    return round(8 * info.index_size / info.count, 3)


def costs(x: np.ndarray, ratio: float) -> Dict[str, Any]:
    """Bits an index, bits a value, and whole frames as a share of dense f32."""
    value = {}
    for codec in VALUE:
        info, _ = encoded(x, ratio, f"index=golomb value={codec}")
        value[codec] = round(8 * info.value_size / info.count, 3)
    return {
        "zeros": round(float(np.mean(x == 0)), 4),
        "index": {codec: index_bits(x, ratio, codec) for codec in INDEX},
        "value": value,
        "volume": {name: round(encoded(x, ratio, plan)[1] / (4 * x.size), 7) for name, plan in WHOLE.items()},
    }


def check_list() -> None:
    """INDEX has every exact index codec that a plan can name."""
    import deepreduce

    def named(codec: str) -> bool:
        try:
            deepreduce.Plan(f"index={codec}")
            return True
        except deepreduce.Error:
            return False

    exact = {codec.name for codec in deepreduce.codecs() if codec.role == "index" and "exact" in codec.traits and named(codec.name)}
    if exact != {codec.split("(")[0] for codec in INDEX}:
        raise RuntimeError(f"exact index codecs are {sorted(exact)}, the table has {INDEX}")


def measure(recipe: str, run: Any, last: int) -> Dict[str, Any]:
    """Trains `last` steps. Means are over the last two thirds of them."""
    import accumulate
    from context_model import CONTEXTS, ContextModel

    models: Dict[str, ContextModel] = {}
    steps: List[Dict[str, Any]] = []
    bits: Dict[str, Dict[str, List[float]]] = {kind: {} for kind in KINDS}
    for step in accumulate.train(run, seed=1):
        for kind in KINDS:
            x = getattr(step, kind)
            support = step.sent if kind == "seen" else accumulate.top_r(x, run.ratio)
            if not models.get(kind):
                models[kind] = ContextModel([tuple(p.shape) for p in step.module.parameters()])
            found = models[kind].step(support)
            if 3 * step.number > last:
                for name in ("uniform", *CONTEXTS):
                    bits[kind].setdefault(name, []).append(found[name])
                if step.number % EVERY == 0:
                    for codec in LEARNERS:
                        bits[kind].setdefault(codec, []).append(index_bits(x, run.ratio, codec))
            if step.number in run.steps:
                made = {"step": step.number, "kind": kind, **costs(accumulate.rounded(x), run.ratio)}
                made["context"] = {name: round(found[name], 3) for name in ("uniform", *CONTEXTS)}
                steps.append(made)
                print(recipe, run.memory, run.ratio, made["step"], kind, made["index"]["golomb(adaptive=1)"], made["context"], flush=True)
        if step.number == last:
            break
    mean = {kind: {name: round(statistics.fmean(of), 3) for name, of in bits[kind].items()} for kind in KINDS}
    return {"model": recipe, "memory": run.memory, "ratio": run.ratio, "last": last, "steps": steps, "mean": mean}


# ---- the tables ----------------------------------------------------------------------------------

HEAD = """# Raw gradients and accumulators: what an index and a value cost

Training with feedback sends parts of the gradient *plus* what the steps before have not sent. Made by `accumulated.py` from `accumulated.json`: {models} trained on one rank as
[datasets](../../datasets/README.md) says, seed 1, commit {commit}, torch {torch}. Cells are *gradient → accumulator* of the same step, Top-r of all parameters joined. Sizes are exact and repeat; nothing is timed.
"""

INDEX_TEXT = """
## Bits an index, all exact index codecs

`bound` is log2 C(d, r) / r, that of a uniform support; `context` the least of the context models below, at this step.
"""

CONTEXT_TEXT = """
## What an exact index code has left

Bits an index, mean over the last two thirds of training, Top-1 %. An adaptive model that knows which elements every step before has sent (`context_model.py`: layer; the row's decayed rate; steps since the element was
last sent; its own decayed rate) and how many of the 32 elements before are sent now (`near`), as an ideal arithmetic coder would pay. It keeps counts of every element on every rank: a yardstick, no codec, and **no bound**.
`left` is what the best context saves of the best codec of ours; below 0, `gap_huffman` sees more in the step itself than the model. (Codecs: every {every}th step.)

**Better models save more.** An independent reader measured two steps of each accumulator with boosted trees, fitted to the five or six steps before, and an ideal coder, against the best codec of ours: ResNet-20 7.62 → 7.01 and 7.70 → 7.03 bits (8.0, 8.8 %), LSTM 5.74 → 4.83 and 5.10 → 4.31 (15.9, 15.4 %),
recommender 6.19 → 5.17 and 6.29 → 5.31 (16.5, 15.7 %), transformer 5.44 → 4.59 and 6.71 → 6.07 (15.6, 9.6 %). On the recommender the features of the table below save 8.8 % in such trees; columns make it 11.4, and the place in the row, the row's sends so far, the row before and the last step's neighbours
15.6. Without any history (layer, place in the row, this step's sends before) 11.5 % are left, on the transformer 9.4. These figures are not of `accumulated.json`.
"""

VALUE_TEXT = """
## Bits a value, and whole frames as a share of dense f32

`zeros`: share of elements that are 0. Both kinds are rounded to 8 significant bits, as the bundled files, so `raw+deflate` is smaller than on full float32; the others cannot tell.
"""


def arrow(a: float, b: float, form: str) -> str:
    return f"{a:{form}} → {b:{form}}"


def line(cells: List[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def ruled(head: List[str], rows: List[List[str]]) -> str:
    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)]) + "\n"


def data_of(made: Dict[str, Any]) -> List[Any]:
    """(name, step, of the gradient, of the accumulator) of each recorded step"""
    found = []
    for run in made["runs"]:
        name = f"{run['model']}, {run['memory']}, Top-{100 * run['ratio']:g} %"
        by = {(step["step"], step["kind"]): step for step in run["steps"]}
        for step in sorted({number for number, _ in by}):
            found.append((name, step, by[step, "gradient"], by[step, "seen"]))
    return found


def report(made: Dict[str, Any]) -> str:
    models = ", ".join(dict.fromkeys(run["model"] for run in made["runs"]))
    text = HEAD.format(models=models, commit=made["commit"], torch=made["torch"])
    data = data_of(made)
    head = ["data", "step", "bound", *(f"`{codec}`" for codec in INDEX), "context"]
    rows = []
    for name, step, a, b in data:
        cells = [arrow(a["index"][codec], b["index"][codec], ".2f") for codec in INDEX]
        smallest = arrow(min(a["context"].values()), min(b["context"].values()), ".2f")
        rows.append([name, str(step), f"{b['context']['uniform']:.2f}", *cells, smallest])
    text += INDEX_TEXT + "\n" + ruled(head, rows)

    contexts = [name for name in made["runs"][0]["mean"]["seen"] if name not in LEARNERS]
    head = ["model, memory", "of", *contexts, *(f"`{codec}`" for codec in LEARNERS), "left"]
    rows = []
    for run in made["runs"]:
        for kind, label in zip(KINDS, ["gradient", "accumulator"]):
            mean = run["mean"][kind]
            if run["ratio"] != 0.01:
                continue
            smallest, ours = min(mean[name] for name in contexts), min(mean[name] for name in LEARNERS)
            rows.append([f"{run['model']}, {run['memory']}", label, *(f"{mean[name]:.2f}" for name in [*contexts, *LEARNERS]),
                         f"{100 * (1 - smallest / ours):.1f} %"])
    text += CONTEXT_TEXT.format(every=EVERY) + "\n" + ruled(head, rows)

    head = ["data", "step", "zeros", *(f"`{codec}`" for codec in VALUE), *(f"`{name}`" for name in WHOLE)]
    rows = []
    for name, step, a, b in data:
        values = [arrow(a["value"][codec], b["value"][codec], ".2f") for codec in VALUE]
        volumes = [arrow(100 * a["volume"][plan], 100 * b["volume"][plan], ".3f") + " %" for plan in WHOLE]
        rows.append([name, str(step), arrow(100 * a["zeros"], 100 * b["zeros"], ".1f") + " %", *values, *volumes])
    return text + VALUE_TEXT + "\n" + ruled(head, rows)


def remade() -> str:
    """accumulated.md, of what is kept."""
    return report(json.loads(document.read_text("utf-8")))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures raw gradients beside accumulators.")
    parser.add_argument("recipe", nargs="*", help="models of datasets/accumulate.py; default: all")
    parser.add_argument("--table", action="store_true", help="only write accumulated.md from accumulated.json")
    arguments = parser.parse_args()
    if not arguments.table:
        import accumulate
        import torch
        from runs import refuse_changes, refuse_unrepeatable

        check_list()
        git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
        refuse_changes()
        commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
        refuse_unrepeatable({"commit": commit})
        for recipe in arguments.recipe or list(accumulate.RECIPES):
            last = max(step for run in accumulate.RECIPES[recipe] for step in run.steps)
            runs = [measure(recipe, run, last if run.ratio == 0.01 else run.steps[-1]) for run in accumulate.RECIPES[recipe]]
            made = json.loads(document.read_text()) if document.exists() else {"runs": []}  # by now another model may be in it
            made.update(commit=commit, torch=str(torch.__version__))
            made["runs"] = [run for run in made["runs"] if run["model"] != recipe] + runs
            order = list(accumulate.RECIPES)
            made["runs"].sort(key=lambda run: order.index(run["model"]))
            document.write_text(json.dumps(made, indent=1) + "\n")
    (here / "accumulated.md").write_text(remade(), encoding="utf-8")


if __name__ == "__main__":
    main()
