#!/usr/bin/env python3
"""The results of a run of `./dev gpu`, as Markdown: steps, then the rows of gpu_bench with gates, a profile, peers.

    gpu_table.py DIR > DIR/table.md

Reads gpu.json, gpu_gates.json or gpu_bench.json, gpu_profile.json and gpu_peers.json in DIR, as far as they are there.
"""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gpu_profile  # noqa: E402


def read(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def shown(name):
    return name.replace("|", "\\|") if not name.startswith(" ") else "· " + name.strip().replace("|", "\\|")


def us(value):
    return "" if value is None else f"{value:,.1f}"


def limit(row, name):
    value = row.get(f"{name}_us")
    if value is None:
        return ""
    met = row.get(f"{name}_met")
    return f"{value:,.0f} " + ("not measured" if met is None else "met" if met else "**missed**")


def costs(report):
    """What a dense encode costs for each byte, and once: from 1e8 and 1e9 elements with as many kept. {(group, name): microseconds once}, bytes per second."""
    rows = {(row["group"], row["name"]): row for row in report["rows"] if "graph_us" in row and not report.get("rehearsal")}
    small, large = rows.get(("larger", "1e8, 1 %")), rows.get(("largest", "1e9, 0.1 %"))
    if not small or not large or large["graph_us"]["median"] <= small["graph_us"]["median"]:
        return {}, None
    rate = (large["bytes"] - small["bytes"]) / (large["graph_us"]["median"] - small["graph_us"]["median"])
    return {key: row["graph_us"]["median"] - row["bytes"] / rate for key, row in rows.items()
            if "topr" in row["plan"] and row["group"] != "frames to a dense tensor"}, 1e6 * rate


def rows_of(report):
    head = ["", "graph µs", "p10 – p90", "stream µs", "one behind the other µs", "floor µs", "of copy", "once µs", "launches", "gate µs", "aim µs",
            "verified against"]
    once, _ = costs(report)
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    group = None
    for row in report["rows"]:
        if row["group"] != group:
            group = row["group"]
            yield f"| **{group}** |" + " |" * (len(head) - 1)
        if "failed" in row or "missing" in row:
            yield f"| {shown(row['name'])} | " + ("**failed**: " + row["failed"] if "failed" in row else "not here: " + row["missing"]) + " |" + " |" * (len(head) - 2)
            continue
        graph, stream = row.get("graph_us", {}), row.get("stream_us", {})
        launches = str(row.get("launches", ""))
        if row.get("launches_most") and row["launches"] > row["launches_most"]:
            launches += f" (**{row['launches_most']} at most**)"
        gate = limit(row, "gate") + (f"; stream {limit(row, 'stream_gate')}" if "stream_gate_us" in row else "")
        yield "| " + " | ".join([
            shown(row["name"]), us(graph.get("median")), f"{us(graph['p10'])} – {us(graph['p90'])}" if graph else "", us(stream.get("median")),
            us(row.get("back_to_back_us")), us(row.get("floor_us")), f"{100 * row['share_of_copy']:.0f} %" if "share_of_copy" in row else "", us(once.get((row["group"], row["name"]))), launches,
            gate, limit(row, "aim"), row.get("verified", "")]) + " |"


def peers_of(report, peers):
    ours = {row["name"]: row for row in report["rows"]} if report else {}
    yield f"torch {peers['torch']}: `torch.topk` of the sizes and a gather, which make no frame; `index_add_` of pairs that are decoded already; and single passes over 25.6e6."
    yield ""
    yield "| | torch graph µs | torch stream µs | ours, with the frame, graph µs | torch ÷ ours |"
    yield "|---|---|---|---|---|"
    for row in peers["rows"]:
        if row["group"] == "nvCOMP":
            continue
        name = shown(row["name"] if row["group"] != "index_add_" else f"{row['name']}: index_add_")
        if "failed" in row:
            yield f"| {name} | **failed**: {row['failed']} | | | |"
            continue
        theirs = row.get("graph_us") or row["stream_us"]
        own = ours.get(row["name"], {}).get("graph_us") if row["group"] != "plain" else None
        yield "| " + " | ".join([name, us(row.get("graph_us", {}).get("median")), us(row["stream_us"]["median"]), us(own and own["median"]),
                                 f"{theirs['median'] / own['median']:.1f}" if own and own["median"] else ""]) + " |"
    coded = [row for row in peers["rows"] if row["group"] == "nvCOMP"]
    if not coded:
        return
    yield ""
    yield f"nvCOMP {peers.get('nvcomp', '')}, plain calls; bytes of the same pairs, which are 4 bytes each as gaps and as values."
    yield ""
    yield "| | bytes | of 4 a pair | encode µs | GB/s | decode µs | GB/s |"
    yield "|---|---|---|---|---|---|---|"
    for row in coded:
        if "failed" in row:
            yield f"| {row['name']} | **failed**: {row['failed']} | | | | | |"
            continue
        there, back = row["stream_us"]["median"], row["decode_us"]["median"]
        yield (f"| {row['name']} | {row['bytes']:,} | {100 * row['bytes'] / row['raw_bytes']:.0f} % | {us(there)} | {row['raw_bytes'] / there / 1e3:.1f} | {us(back)} "
               f"| {row['raw_bytes'] / back / 1e3:.1f} |")


def table(directory):
    run, report, gates, profile, peers = (read(directory / f"{name}.json") for name in ("gpu", "gpu_bench", "gpu_gates", "gpu_profile", "gpu_peers"))
    report = report if report and report.get("rows") else gates
    if run:
        machine = run["machine"]
        yield "# A run on a GPU"
        yield ""
        yield "Commit {}, {}; {}.".format(run["commit"], run["date"], ", ".join(f"{k} {v}" for k, v in machine.items() if v))
        yield ""
        yield "| step | result | seconds | |"
        yield "|---|---|---|---|"
        for step in run["steps"]:
            result = "**failed**" if step["result"] == "failed" else step["result"]
            yield f"| {step['name']} | {result} | {step['seconds']} | {shown(step.get('note', ''))} |"
        yield ""
    if report:
        yield "## Times"
        yield ""
        if report.get("rehearsal"):
            yield "**A rehearsal: the CPU played the GPU, and no time means anything.**"
            yield ""
        moved = ", ".join(f"{what} {1e-12 * report[key]:.2f}" for what, key in (("reading alone", "read_bytes_per_second"), ("writing alone", "write_bytes_per_second")) if report.get(key))
        yield (f"{report['device']}; {report['compiler']}; commit {report['commit']}, {report['date']}. A copy moves {1e-12 * report['copy_bytes_per_second']:.2f} TB/s, reads and writes "
               f"counted{'; ' + moved if moved else ''}: of the copy's rate the floor of a row, the bytes that it must move at the least.")
        yield "Medians of CUDA graph replays; *stream* is one call at a time from an idle GPU. Peers and variants are indented and were replayed in turn with the row above."
        if (rate := costs(report)[1]) is not None:
            yield f"From 1e8 to 1e9 elements with a million kept, a byte more costs as at {1e-12 * rate:.2f} TB/s; *once* is what is left of a row without its bytes at that rate."
        if first := report.get("first_call_ms"):
            yield "Milliseconds of the host: start of the driver {start:,.0f}, `dr_batch_create` {create:,.1f}, first encode {first:,.2f}, second {second:,.2f}.".format(**first)
        yield ""
        yield from rows_of(report)
        yield ""
    if profile:
        yield "## Kernels"
        yield ""
        yield "One call each, kernels one at a time and caches as the call leaves them (ncu): a sum is more than the call takes."
        yield ""
        yield from gpu_profile.table(profile)
        yield ""
    if peers:
        yield "## Peers"
        yield ""
        yield from peers_of(report, peers)
        yield ""
    if not (run or report or peers):
        yield "Nothing was measured."


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print("\n".join(table(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
