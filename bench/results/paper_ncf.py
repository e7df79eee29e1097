"""An iteration of NCF by the paper's plans over links of 100 Mbit/s to 10 Gbit/s, predicted: writes paper_ncf.json, a section of paper.md.

    bench/results/paper_ncf.py             measures frames (nothing is timed), predicts with the costs that utility.json has; then `./dev paper --page`

Wants DEEPREDUCE_TOOL, or build/tool/deepreduce. Plans without a stored cost are predicted with codecs that take no time.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Sequence

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import utility  # noqa: E402
from runs import text_of  # noqa: E402

from bench.predict_proof import published_models  # noqa: E402
from bench.train import train_results  # noqa: E402

Json = Dict[str, Any]

TOP = "sparsify=topr(ratio=0.1) "
BLOOM = "index=bloom(policy={},fpr=0.01) "
PLANS = {
    "Top-10 %, raw": "index=raw value=raw",
    "BF-P0": BLOOM.format("p0") + "value=raw",
    "BF-P2": BLOOM.format("p2") + "value=raw",
    "Fit-Poly": "index=raw value=fit_poly",
    "BF-P2 + QSGD": BLOOM.format("p2") + "value=qsgd",
    "BF-P2 + Fit-Poly (both)": BLOOM.format("p2") + "value=fit_poly",
    "Golomb (ours)": "index=golomb value=raw",
    "Golomb + QSGD (ours)": "index=golomb value=qsgd",
}
FULL = {name: f"{TOP}{plan} feedback=residual" for name, plan in PLANS.items()}
LINKS = ("100 Mbit/s", "1 Gbit/s", "10 Gbit/s")
TYPES = ("f32", "f16")
EMBEDDINGS = tuple(count * width for width in (64, 128) for count in (26_744, 138_493))
SIZES = (65_536, *EMBEDDINGS)  # elements of a frame: the hook joins the small tensors and sends an embedding by itself
RANKS = 4
COMPUTING_NS = 1e9


def frame_bytes(cast: str) -> Dict[str, List[List[int]]]:
    """Of each plan [elements, bytes of its frame], of Laplace values on a uniform support."""
    found: Dict[str, List[List[int]]] = {name: [] for name in PLANS}
    for name, plan in PLANS.items():
        for size in sorted(SIZES):
            words = [utility.tool(), "encode", f"synth:d={size},values=laplace,seed=1", "--cast", cast, "--plan", TOP + plan]
            found[name].append([size, len(subprocess.run(words, check=True, capture_output=True, timeout=600).stdout)])
    return found


def same_plan(one: str, other: str) -> bool:
    return sorted(one.split()) == sorted(other.split())


def profile_of(stored: Json, frames: Dict[str, List[List[int]]]) -> Json:
    """The stored profile with these frames; a plan that it has no costs of costs nothing."""
    whole = {"r2": 1.0, "from": min(SIZES), "to": max(SIZES), "samples": []}
    costs, sizes = list(stored["costs"]), []
    for name, plan in FULL.items():
        if not is_timed(stored, plan):
            costs += [{"plan": plan, "operation": operation, "floor_ns": 0, "base_ns": 0, "per_element_ns": 0, **whole} for operation in ("encode", "decode", "merge")]
        (n, small), (m, large) = frames[name][0], frames[name][-1]
        slope = (large - small) / (m - n)
        sizes.append({"plan": plan, "base_bytes": max(0.0, small - slope * n), "per_element_bytes": slope, "sum_growth": [], **whole, "samples": frames[name]})
    others = [frame for frame in stored["frames"] if not any(same_plan(frame["plan"], plan) for plan in FULL.values())]
    return {**stored, "costs": costs, "frames": others + sizes}


def is_timed(stored: Json, plan: str) -> bool:
    return any(same_plan(cost["plan"], plan) for cost in stored["costs"])


def model() -> Json:
    return published_models.model_file("neumf", published_models.neumf(), COMPUTING_NS, None)


def predicted(stored: Json, frames: Dict[str, Dict[str, List[List[int]]]]) -> List[Json]:
    """A row for each type, link and candidate: {free: ns of a step whose codecs take no time, step: with them, or None}."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.json"
        path.write_text(json.dumps(model()), "utf-8")
        for kind in TYPES:
            folder = Path(name) / kind
            folder.mkdir()
            predictor = utility.Predictor(folder, profile_of(stored, frames[kind]), FULL, "ddp")
            for link in LINKS:
                free, steps = (predictor.steps(path, utility.LINKS[link], RANKS, without) for without in (True, False))
                dense = free["f32" if kind == "f32" else "bf16"]["step_ns"]
                rows.append({"type": kind, "link": link, "method": "dense", "free": dense, "step": dense})
                for method, plan in FULL.items():
                    timed = kind == "f32" and is_timed(stored, plan)  # the stored costs are of f32
                    rows.append({"type": kind, "link": link, "method": method, "free": free[method]["step_ns"], "step": steps[method]["step_ns"] if timed else None})
    return rows


def made() -> Json:
    stored = json.loads((HERE / "utility.json").read_text("utf-8"))
    frames = {kind: frame_bytes(kind) for kind in TYPES}
    version = subprocess.run([utility.tool(), "--version"], check=True, capture_output=True, text=True).stdout.split()
    return {
        "date": train_results.context()["date"],
        "commit": version[version.index("commit") + 1],
        "profile": {"date": stored["profile"]["date"], "commit": stored["profile"]["commit"], "cpu": stored["cpu"]},
        "ranks": RANKS,
        "computing_ns": COMPUTING_NS,
        "elements": sum(tensor["elements"] for tensor in model()["tensors"]),
        "frames": [{"type": kind, "method": name, "samples": samples} for kind in TYPES for name, samples in frames[kind].items()],
        "rows": predicted(stored["profile"], frames),
    }


# ---- The section ----


def embedding_bytes(frame: Json) -> int:
    return sum(count for size, count in frame["samples"] if size in EMBEDDINGS)


def cell(row: Json) -> str:
    return f"{row['step'] / 1e9:.2f}" if row["step"] is not None else f"> {row['free'] / 1e9:.2f}"


def room(rows: Sequence[Json], kind: str, link: str) -> str:
    """By how much codecs may lengthen a step until the dense ring is as fast; by how much those do whose costs are stored."""
    here = [row for row in rows if row["type"] == kind and row["link"] == link]
    dense, plans = here[0]["step"], here[1:]
    nearest, farthest = (choose(plans, key=lambda row: dense - row["free"]) for choose in (min, max))
    limits = [f"{(dense - row['free']) / 1e9:.2f} s ({row['method']})" for row in (nearest, farthest)]
    timed = [f"those of {row['method']} add {(row['step'] - row['free']) / 1e9:.2f} s" for row in plans if row["step"] is not None]
    return "; ".join([f"- {kind}, {link}: codecs may add {limits[0]} to {limits[1]} until the dense ring is as fast", *timed]) + "."


def section(document: Json) -> str:
    rows = document["rows"]
    at = {(row["type"], row["link"], row["method"]): row for row in rows}
    volume = {(frame["type"], frame["method"]): embedding_bytes(frame) / (4 * sum(EMBEDDINGS)) for frame in document["frames"]}
    volume.update({("f32", "dense"): 1.0, ("f16", "dense"): 0.5})
    head = ["method", "plan", *(f"{kind}: {what}" for kind in TYPES for what in ("bytes of dense f32", *LINKS))]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * 2 + "---:|" * (len(head) - 2)]
    for method in ("dense", *PLANS):
        cells = [method, f"`{PLANS[method]}`" if method in PLANS else "ring all-reduce"]
        for kind in TYPES:
            cells += [f"{volume[kind, method]:.4f}", *(cell(at[kind, link, method]) for link in LINKS)]
        lines.append("| " + " | ".join(cells) + " |")
    table, verdicts = "\n".join(lines), "\n".join(room(rows, kind, link) for kind in TYPES for link in LINKS)
    profile = document["profile"]
    return f"""## Fig. 7 and 19: one iteration of NCF, predicted

**These are predictions: no iteration of NCF was run, and nothing was sent.** They are those of `deepreduce predict` ([the model of a step](../../docs/STEP_MODEL.md); [how far it is off](../../docs/CALIBRATE.md#do-predictions-hold)), of {document['ranks']} ranks, one a host, behind DDP's hook. **Assumed of the link**: its nominal rate both
ways at once, 50 µs, no loss; dense gradients by a ring all-reduce, in f16 the tool's bf16 ring, whose bytes are the same; frames by an all-gather. **Assumed of the model**: NeuMF's published shapes on ML-20m, {document['elements']:,} parameters, 99.7 % of them embeddings, whose gradients are ready when backward ends; {document['computing_ns'] / 1e9:.0f} s of
computing in either type, a round number of ours: another moves all rows of a column nearly alike.

**Of the gradient**: Top-10 % of Laplace values on a uniform support, bytes of frames of the four embeddings' sizes, of `synth:`; a recommender's support is clustered a little, so that exact index codes take less of it ([reach.md](reach.md)). Costs are those of [utility.md](utility.md) ({profile['date'][:10]}, {profile['cpu']}, of which one works; f32, up to 16.8 million elements, of which the largest embedding has 6 % more). It has none of most of these plans, and none of f16:
**their times are not predicted**, and `> x` is the step with codecs that take no time: with theirs (an encode, a decode, three merges, of which the link hides a part) it is longer, and below the table is by how much it may be. Codecs of Bloom filters take a core far longer than Golomb's ([fig8.md](fig8.md)). The paper's bars are not beside these rows.

Seconds of a step:

{table}

{verdicts}
- Repeat: `python3 bench/results/paper_ncf.py`, then `./dev paper --page`. {document['date']}, commit {document['commit']}.
"""


def saved_section() -> str:
    return section(json.loads((HERE / "paper_ncf.json").read_text("utf-8")))


if __name__ == "__main__":
    os.environ.setdefault("DEEPREDUCE_LIBRARY", str(utility.ROOT / "build" / "capi" / "libdeepreduce.so"))
    (HERE / "paper_ncf.json").write_text(text_of(made()), "utf-8")
