#!/usr/bin/env python3
"""The size of the tree, room by room, and the number of files of a DDP step: figures by which a change of rooms is judged.

    rooms.py [--json] [--step] [TREE]

Prints files and lines of each room, the Python package as python_rooms.py counts it, and the public names of C and Python. It counts tracked
files, without generated tables, pictures and data. --step: also the files of the package that a DDP step enters between a bucket and its mean,
on two ranks over gloo with the usual plans. That needs torch, and DEEPREDUCE_LIBRARY as in tests.
"""
import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import python_rooms  # noqa: E402

CODE = {".h", ".hpp", ".c", ".cpp", ".cu", ".cuh", ".py", ".pyi", ".sh", ".js", ".css", ".html", ".build", ".txt", ".md", ""}
DATA = re.compile(r"^(bench/results/.*\.md|tests/(golden|fuzz/corpus|ratio)/|datasets/.*\.(txt|npz))")
PLANS = {"top-k": "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=log_quant", "8 bits": "index=all value=uniform_quant(bits=8) feedback=residual",
         "8 bits, owner": "index=all value=uniform_quant(bits=8) feedback=residual exchange=owner", "halves": "index=all value=half(type=bf16)",
         "low rank": "transform=lowrank(rank=4) feedback=residual"}


def room(path):
    """The folder that holds an idea: lib/NAME, codecs/ROLE, tool/NAME, bench/NAME, tests/NAME; of the Python package its folders."""
    parts = path.parts
    if parts[0] == "bindings":
        return "/".join(parts[:-1][:4])
    deep = 2 if parts[0] in {"lib", "codecs", "tool", "bench", "tests", "include", "packaging"} else 1
    return "/".join(parts[:-1][:deep]) or "."


def sizes(tree):
    """{room: (files, lines)} of the tracked files that people write."""
    names = subprocess.run(["git", "-C", tree, "ls-files"], check=True, capture_output=True, text=True).stdout.splitlines()
    found = {}
    for path in map(Path, names):
        if path.suffix not in CODE or DATA.match(str(path)) or not (tree / path).is_file() or (tree / path).is_symlink():
            continue
        try:
            lines = len((tree / path).read_text(encoding="utf-8").splitlines())
        except UnicodeDecodeError:
            continue
        files, before = found.get(room(path), (0, 0))
        found[room(path)] = (files + 1, before + lines)
    return found


def c_names(tree):
    """Public names of the C headers: functions, types, and constants."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((tree / "include" / "deepreduce").glob("*.h")))
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    types = set(re.findall(r"^typedef (?:struct|enum|union) (\w+)", text, re.M)) | set(re.findall(r"^\} (\w+);", text, re.M))
    return {"headers": len(list((tree / "include" / "deepreduce").glob("*.h"))), "functions": len(re.findall(r"^DR_API\b", text, re.M)),
            "types": len({name for name in types if name.startswith("dr_")}), "constants": len(set(re.findall(r"\bDR_[A-Z0-9_]+\b(?=\s*(?:=|,|\}))", text)))}


def python_names(tree):
    package = tree / "bindings" / "python" / "deepreduce"
    known, sees = python_rooms.modules(package), python_rooms.arrows(package)
    texts = [path.read_text(encoding="utf-8") for path in known.values()]
    return {"modules": len(known), "at the top": len(list(package.glob("*.py"))), "lines": sum(len(text.splitlines()) for text in texts),
            "floors": max(python_rooms.floors(sees).values()), "imports": sum(map(len, sees.values())),
            "circles": sum(len(group) > 1 for group in python_rooms.circles(sees)), "public names": python_rooms.public_names(package, known),
            "uses of Any": sum(len(re.findall(r"\bAny\b", text)) for text in texts)}


# ---- the way of a step ------------------------------------------------------------------------------------

RANK = """
import json, sys, threading
from pathlib import Path
import torch, torch.distributed as dist
import deepreduce.torch
from torch.nn.parallel import DistributedDataParallel

store, rank, plan, package = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(deepreduce.__file__).parent
torch.set_num_threads(1)
dist.init_process_group("gloo", "file://" + store, rank=rank, world_size=2)
torch.manual_seed(0)
module = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.ReLU(), torch.nn.Linear(200, 300)))
hook = deepreduce.torch.DDPHook(plan).register(module)
entered = {}

def seen(frame, event, _):
    if event == "call" and package in Path(frame.f_code.co_filename).parents:
        name = Path(frame.f_code.co_filename).relative_to(package).as_posix()
        entered[name] = entered.get(name, 0) + 1

for step in range(6):
    loss = module(torch.randn(8, 300)).square().mean()
    if step == 5:
        threading.setprofile(seen)
        sys.setprofile(seen)
    loss.backward()
sys.setprofile(None)
if rank == 0:
    print(json.dumps(entered))
dist.barrier()
"""


def way(tree, plan, folder):
    """{file of the package: calls} of one step, in the order in which it enters them."""
    store = Path(folder) / re.sub(r"\W+", "_", plan)
    environment = {**os.environ, "PYTHONPATH": str(tree / "bindings" / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [[sys.executable, "-c", RANK, str(store), str(rank), plan] for rank in range(2)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for command in words]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit(f"no step by {plan}")
    return json.loads(outputs[0].splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--step", action="store_true")
    parser.add_argument("tree", type=Path, nargs="?", default=Path(__file__).resolve().parents[2])
    asked = parser.parse_args()
    tree = asked.tree.resolve()
    figures = {"rooms": {name: list(size) for name, size in sorted(sizes(tree).items())}, "python": python_names(tree), "c": c_names(tree)}
    if asked.step:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            figures["step"] = {name: way(tree, plan, folder) for name, plan in PLANS.items()}
    if asked.json:
        print(json.dumps(figures, indent=1))
        return
    for name, (files, lines) in figures["rooms"].items():
        print(f"{name:32} {files:4} files {lines:7,} lines")
    print(f"{'all':32} {sum(f for f, _ in figures['rooms'].values()):4} files {sum(n for _, n in figures['rooms'].values()):7,} lines")
    for what in ("python", "c"):
        print(f"{what}: {', '.join(f'{number:,} {name}' for name, number in figures[what].items())}")
    for name, entered in figures.get("step", {}).items():
        print(f"a step by {name}: {len(entered)} files, {sum(entered.values())} calls: {' '.join(f'{file} {calls}' for file, calls in entered.items())}")


if __name__ == "__main__":
    main()
