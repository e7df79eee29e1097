#!/usr/bin/env python3
"""The results of a run of `./dev gpu`, as Markdown: steps, then the rows of gpu_bench with gates and peers.

    gpu_table.py DIR > DIR/table.md

Reads gpu.json, gpu_bench.json and torch_topk.json in DIR, as far as they are there.
"""
import json
import sys
from pathlib import Path


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


def rows_of(report):
    head = ["", "graph µs", "p10 – p90", "stream µs", "one behind the other µs", "floor µs", "of copy", "launches", "gate µs", "aim µs",
            "verified against"]
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
            us(row.get("back_to_back_us")), us(row.get("floor_us")), f"{100 * row['share_of_copy']:.0f} %" if "share_of_copy" in row else "", launches,
            gate, limit(row, "aim"), row.get("verified", "")]) + " |"


def peers_of(report, torch):
    ours = {row["name"]: row for row in report["rows"]} if report else {}
    yield f"torch {torch['torch']}, `torch.topk` of the sizes and a gather, no frame made; verified likewise."
    yield ""
    yield "| | torch graph µs | torch stream µs | ours, to the frame, graph µs | torch ÷ ours |"
    yield "|---|---|---|---|---|"
    for row in torch["rows"]:
        if "failed" in row:
            yield f"| {row['name']} | **failed**: {row['failed']} | | | |"
            continue
        theirs = row.get("graph_us") or row["stream_us"]
        own = ours.get(row["name"], {}).get("graph_us")
        yield "| " + " | ".join([row["name"], us(row.get("graph_us", {}).get("median")), us(row["stream_us"]["median"]), us(own and own["median"]),
                                 f"{theirs['median'] / own['median']:.1f}" if own and own["median"] else ""]) + " |"


def table(directory):
    run, report, torch = (read(directory / f"{name}.json") for name in ("gpu", "gpu_bench", "torch_topk"))
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
        yield (f"{report['device']}; {report['compiler']}; commit {report['commit']}, {report['date']}. A copy moves "
               f"{1e-12 * report['copy_bytes_per_second']:.2f} TB/s, reads and writes counted: of it the floor of a row, the bytes that it must move at the least.")
        yield "Medians of CUDA graph replays; *stream* is one call at a time from an idle GPU. Peers and variants are indented and were replayed in turn with the row above."
        yield ""
        yield from rows_of(report)
        yield ""
    if torch:
        yield "## torch"
        yield ""
        yield from peers_of(report, torch)
        yield ""
    if not (run or report or torch):
        yield "Nothing was measured."


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print("\n".join(table(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
