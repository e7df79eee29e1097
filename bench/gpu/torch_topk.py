#!/usr/bin/env python3
"""The peer that most people have: torch.topk of the sizes, and a gather, on the shapes of gpu_bench.

    torch_topk.py [--json FILE] [--quick]

Times are of CUDA graph replays where torch can capture the call, and of plain calls; medians with p10 and p90, inputs in turn from several
tensors past the L2. A frame's bytes are not made here: this is selection alone. Exit 77 without torch or without a GPU.
"""
import argparse
import json
import statistics
import sys

SHAPES = [("25.6e6, 1 %", 25_600_000, 256_000), ("25.6e6, 10 %", 25_600_000, 2_560_000), ("25.6e6, 0.1 %", 25_600_000, 25_600),
          ("1e8, 1 %", 100_000_000, 1_000_000), ("1e9, 0.1 %", 1_000_000_000, 1_000_000), ("36,864, 1 %", 36_864, 368)]


def spread(times):
    times = sorted(times)

    def at(share):
        return times[round(share * (len(times) - 1))]

    return {"median": statistics.median(times), "p10": at(0.1), "p90": at(0.9), "n": len(times)}


def top_k(gradient, k):
    """Top-k as sparsifiers in training code compute it (GRACE's, for example)."""
    import torch

    _, indices = torch.topk(gradient.abs(), k, sorted=False)
    return torch.gather(gradient, 0, indices), indices


def verified(gradient, k, values, indices):
    import torch

    if not torch.equal(gradient[indices], values) or indices.unique().numel() != k:
        return False
    return int((gradient.abs() > values.abs().min()).sum()) < k


def time_of(calls, repeats):
    """Microseconds of each, between events, one call after the other without a wait."""
    import torch

    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for i, (begin, end) in enumerate(marks):
        begin.record()
        calls[i % len(calls)]()
        end.record()
    torch.cuda.synchronize()
    return spread([1e3 * begin.elapsed_time(end) for begin, end in marks])


def captured(gradient, k):
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        top_k(gradient, k)
    return graph.replay


def measure(name, d, k, repeats):
    import torch

    row = {"group": "torch", "name": name, "elements": d, "kept": k, "plan": "torch.topk(|g|) and gather"}
    sets = max(2, min(16, 2 * 60_000_000 // (4 * d) + 1))
    generator = torch.Generator("cuda").manual_seed(1)
    gradients = []
    for _ in range(sets):
        g = torch.empty(d, device="cuda").exponential_(1000.0, generator=generator)
        gradients.append(g * (torch.randint(0, 2, (d,), device="cuda", generator=generator, dtype=torch.int8) * 2 - 1))
    values, indices = top_k(gradients[0], k)
    if not verified(gradients[0], k, values, indices):
        return {**row, "failed": "torch.topk left out a larger value"}
    row["verified"] = "none left out is larger"
    del values, indices
    plain = [lambda g=g: top_k(g, k) for g in gradients]
    time_of(plain, 3)
    row["stream_us"] = time_of(plain, repeats)
    try:
        graphs = [captured(g, k) for g in gradients]
        time_of(graphs, 3)
        row["graph_us"] = time_of(graphs, repeats)
    except RuntimeError as error:  # some sizes take a path of torch's that waits
        row["graph_missing"] = str(error).splitlines()[0]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"skipped: no torch ({error})")
        return 77
    if not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device")
        return 77
    rows = []
    for name, d, k in SHAPES:
        if args.quick and d > 100_000_000:
            continue
        try:
            rows.append(measure(name, d, k, 20 if args.quick else 60))
        except RuntimeError as error:
            rows.append({"group": "torch", "name": name, "elements": d, "kept": k, "failed": str(error).splitlines()[0]})
        torch.cuda.empty_cache()
        row = rows[-1]
        time = row.get("graph_us") or row.get("stream_us")
        print(f"{name:20} " + (f"{time['median']:10.1f} us" if time else row["failed"]))
    report = {"benchmark": "torch_topk", "device": torch.cuda.get_device_name(0), "torch": torch.__version__, "rows": rows}
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    return 1 if any("failed" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
