"""What deepreduce.torch.DDPHook takes of a step of ResNet-20, beside plain DDP.

    DEEPREDUCE_LIBRARY=build/capi/libdeepreduce.so python bench/python/torch_hook.py [--ranks N] [--rounds N] [--json FILE] [--quick]

Real ranks over gloo on this machine, one thread each, 16 random images a rank (datasets/capture.py has the model: 59
tensors, 269,722 parameters). In each round all ways do a step in turn, so that a slow phase of the machine falls on all
of them. A row is of rank 0: the median of the rounds, and the quartiles.

  step          forward, backward with the exchange, and the optimizer
  encode merge  the library's
  wait          in collectives: to issue them, and to wait, for slower ranks, too
  own           what the hook takes beside these
  frame, sent   bytes that the library made; bytes that the collective sent, slots, to each of the other ranks

Before the times count, the ranks' parameters are compared: they are the same bits.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import sys
import tempfile
import time

import numpy as np

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing
except ImportError:
    print("skipped: torch is missing: pip install torch")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bindings" / "python"), str(ROOT / "datasets")]
import deepreduce  # noqa: E402
import deepreduce.torch  # noqa: E402
from capture import ResNet20  # noqa: E402

TOP = "sparsify=topr(ratio=0.01) feedback=residual index=golomb "
WAYS = {
    "plain DDP": None,
    "raw": {"plan": TOP + "value=raw"},
    "log_quant": {"plan": TOP + "value=log_quant"},
    "log_quant, dense_below=0": {"plan": TOP + "value=log_quant", "dense_below": 0},
    "log_quant, dense_below=0, flat=False": {"plan": TOP + "value=log_quant", "dense_below": 0, "flat": False},
}
TIMES = ("encode", "wait", "merge", "own")


def rank_of(rank, options, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=options.ranks, timeout=datetime.timedelta(seconds=120)
    )
    torch.manual_seed(0)
    models, optimizers, hooks = {}, {}, {}
    for name, how in WAYS.items():
        models[name] = torch.nn.parallel.DistributedDataParallel(ResNet20())
        optimizers[name] = torch.optim.SGD(models[name].parameters(), lr=0.1, momentum=0.9)
        if how is not None:
            hooks[name] = deepreduce.torch.DDPHook(**how).register(models[name])
    torch.manual_seed(rank + 1)
    found = {name: [] for name in WAYS}
    for round_number in range(-3, options.rounds):
        for name, model in models.items():
            x, y = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
            dist.barrier()
            begin = time.perf_counter()
            optimizers[name].zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizers[name].step()
            row = {"step": time.perf_counter() - begin}
            if name in hooks:
                last = hooks[name].stats().last
                row.update({field: getattr(last, field) for field in (*TIMES, "frame", "sent", "kept", "dense")})
            if round_number >= 0:
                found[name].append(row)
    for name, model in models.items():
        mine = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        gathered = [torch.empty_like(mine) for _ in range(options.ranks)]
        dist.all_gather(gathered, mine)
        assert all(torch.equal(mine, other) for other in gathered), f"{name}: ranks differ"
    dist.destroy_process_group()
    if rank == 0:
        pathlib.Path(folder, "rows").write_text(json.dumps(found))


def quartiles(samples, scale=1.0):
    low, median, high = np.percentile(samples, [25, 50, 75]) * scale
    return {"median": float(median), "low": float(low), "high": float(high)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="two steps each: whether it still runs")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 2
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_of, (options, folder), nprocs=options.ranks)
        found = json.loads(pathlib.Path(folder, "rows").read_text())
    rows = []
    print(f"{'ResNet-20, ' + str(options.ranks) + ' ranks':34}{'step ms':>20}", end="")
    print("".join(f"{name + ' µs':>20}" for name in TIMES) + f"{'frame B':>9}{'sent B':>9}")
    for name, samples in found.items():
        row = {"way": name, "step_ms": quartiles([sample["step"] for sample in samples], 1e3)}
        line = f"{name:34}" + shown(row["step_ms"])
        if "encode" in samples[0]:
            for name in TIMES:
                row[f"{name}_us"] = quartiles([sample[name] for sample in samples], 1e6)
                line += shown(row[f"{name}_us"])
            for name in ("frame", "sent"):
                row[f"{name}_bytes"] = float(np.median([sample[name] for sample in samples]))
                line += f"{row[f'{name}_bytes']:>9.0f}"
        print(line)
        rows.append(row)
    if options.json:
        head = {
            "date": datetime.date.today().isoformat(), "cpus": os.cpu_count(), "python": platform.python_version(),
            "torch": torch.__version__, "library": deepreduce._native._library.load().dr_version().decode(),
            "ranks": options.ranks, "rounds": options.rounds, "rows": rows,
        }  # fmt: skip
        options.json.write_text(json.dumps(head, indent=1) + "\n", encoding="utf-8")


def shown(spread):
    return "{:>20}".format("{median:.0f} ({low:.0f}–{high:.0f})".format(**spread))


if __name__ == "__main__":
    main()
