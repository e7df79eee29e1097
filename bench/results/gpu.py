#!/usr/bin/env python3
"""Writes gpu.md: rows of gpu_bench on two devices, beside their gates.

    python3 bench/results/gpu.py

Reads gpu_h100.json and gpu_h200.json here, which `./dev gpu --out DIR` leaves as DIR/gpu_bench.json; of the H100 also gpu_peers.json and
gpu_profile.json, once there are any, and until then gpu_torch_topk.json.
"""
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "gpu"))
import gpu_profile  # noqa: E402
import gpu_table  # noqa: E402


def read(name):
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def times(row):
    return [row[kind]["median"] for kind in ("graph_us", "stream_us") if kind in row]


def copy_rate(report):
    """Bytes per second, read and written, of the fastest copy: a node of a graph copies at two thirds of the rate of a plain call there."""
    return 1e6 * max(row["bytes"] / min(times(row)) for row in report["rows"] if row["name"].startswith("copy of 1 GiB"))


def median(report, row):
    found = next((r for r in report["rows"] if (r["group"], r["name"]) == (row["group"], row["name"])), {})
    return found.get("graph_us", {}).get("median")


def us(value):
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def named(row):
    return row["name"] if not row["name"].startswith(" ") else "· " + row["name"].strip()


def rate(report, what):
    """Bytes per second that a row of the machine moves: 1 GiB once."""
    return 1e6 * 2**30 / min(times(next(r for r in report["rows"] if r["name"] == what)))


def table(now, other):
    yield "| | H100 | p10 – p90 | floor | once | H200 | floor | once | gate (H200) |"
    yield "|---|---|---|---|---|---|---|---|---|"
    here, there_too = copy_rate(now), copy_rate(other)
    once, once_too = gpu_table.costs(now)[0], gpu_table.costs(other)[0]
    group = None
    for row in now["rows"]:
        if row["group"] == "machine":
            continue
        if row["group"] != group:
            group = row["group"]
            yield f"| **{group}** | | | | | | | | |"
        gate, there = row.get("gate_us"), median(other, row)
        if row.get("name", "").startswith("ResNet-50"):  # its gate is a multiple of its neighbour's time
            gate = 1.3 * next(r["graph_us"]["median"] for r in other["rows"] if r["name"].startswith("one tensor as large"))
        verdict = "" if gate is None else f"{gate:,.0f} {'met' if there <= gate else '**missed**'}"
        graph = row["graph_us"]
        yield (f"| {named(row)} | {us(graph['median'])} | {us(graph['p10'])} – {us(graph['p90'])} | {us(1e6 * row['bytes'] / here)} | {us(once.get((row['group'], row['name'])))} | {us(there)} "
               f"| {us(1e6 * row['bytes'] / there_too)} | {us(once_too.get((row['group'], row['name'])))} | {verdict} |")


def topk(now, torch):
    yield "| | `torch.topk` and a gather, no frame | ours, to the frame | |"
    yield "|---|---|---|---|"
    for row in torch["rows"]:
        ours = next((r["graph_us"]["median"] for r in now["rows"] if r["name"] == row["name"]), None)
        theirs = row.get("graph_us", {}).get("median")
        if ours and theirs:
            yield f"| {row['name']} | {us(theirs)} | {us(ours)} | {theirs / ours:.1f} × |"


def remade():
    """gpu.md, of what is kept."""
    now, other = read("gpu_h100"), read("gpu_h200")
    more = (HERE / "gpu_peers.json").exists()
    torch = read("gpu_peers" if more else "gpu_torch_topk")
    rows = list(table(now, other))
    missed, met = (sum(row.endswith(f" {word} |") for row in rows) for word in ("**missed**", "met"))
    lines = [
        "# On a GPU",
        "",
        f"Microseconds, medians of CUDA graph replays; every row was verified against the CPU to the byte before it was timed. {now['device']}; commit {now['commit']}, {now['date']}. "
        f"A device-to-device copy moves {copy_rate(now) / 1e12:.2f} TB/s there (reads and writes counted), reading alone {rate(now, 'reading 1 GiB') / 1e12:.2f}; "
        f"on the H200 {copy_rate(other) / 1e12:.2f} and {rate(other, 'reading 1 GiB') / 1e12:.2f}. *floor*: the bytes that must move, by the copy's rate. *once*: a dense encode without its bytes, "
        f"each of which costs what it costs from 1e8 to 1e9 elements ({gpu_table.costs(now)[1] / 1e12:.2f} and {gpu_table.costs(other)[1] / 1e12:.2f} TB/s).",
        "Gates were set for an H200 that copies 4.3 TB/s, before any device was at hand. Written by `gpu.py`; [bench/gpu](../gpu/README.md) says how a row is measured, `./dev gpu --out DIR` measures.",
        f"**{missed} of {missed + met} gates are missed.** Two machines, one day; the plan is `index=golomb value=qsgd` where the row names no other, on one device. Device code has changed since (`./dev results --age`).",
        "",
        *rows,
        "",
        f"## Beside {'others' if more else 'torch.topk'} ({torch.get('torch', 'torch')}, H100)",
        "",
        *(gpu_table.peers_of(now, torch) if more else topk(now, torch)),
        "",
        *(["## Kernels (H100)", "", *gpu_profile.table(read("gpu_profile")), ""] if (HERE / "gpu_profile.json").exists() else []),
        "## What limits it",
        "",
        "- **What is missed is a cost for each call, not for each byte**: a byte more costs no more than reading it (*once* has the rest).",
        "- **Dense to a frame, 1 %**: of 103 µs on the H100 the read (`select_filter`) takes about 45, of which 34 are the bytes; the other eight kernels are chains of latency of 3 to 14 µs each, with grids of a",
        "  hundred blocks. `select_bracket` 14, `compact` 14, `pack_frame` and `golomb_encode` 11 each, `refine` 10, `qsgd_encode` 7.",
        "- **10 %**: 2.6 million candidates are written and read once more (`filter` 95, `compact` 49), and `golomb_encode` is bound by instructions (32).",
        "- **Residual**: three of four replays take 230, the others fall back (p90). These runs added the same gradient each time, which no training does: accumulators crowd below the threshold, where the sample's bins are 3 % wide. The row has fresh gradients since, and the old one stands beside it.",
        "- **Constant, two-valued**: five reads of everything, and atomics of one word; all of it is exact.",
        "- **64 frames added**: the workspace of 37 MB is cleared first, `golomb_decode` fills two blocks a processor for 15 waves, and `judge_frames` is one block.",
        "- **Bloom**: 51 million look-ups of 32 bytes in a filter that is larger than shared memory's static part.",
        "- **A small tensor**: nine launches of about 5 µs; one launch would have to do it all.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    (HERE / "gpu.md").write_text(remade(), "utf-8")
