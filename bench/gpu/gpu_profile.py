#!/usr/bin/env python3
"""What a profiler says of each kernel of a call: ncu's CSV in, a table out.

    gpu_profile.py CSV [--json FILE]     the table as Markdown

CSV has what `ncu --csv --page raw` (or without --page) printed, once for each row of gpu_bench, each behind a line "# row: NAME".
The other lines that ncu or the program print are passed over; an error of ncu is reported.
"""
import argparse
import csv
import json
import re
import sys
from pathlib import Path

# The rows of gpu_bench that are worth a profile, and what ncu is asked for: few passes, since every pass runs the kernel again.
ROWS = ["25.6e6, 1 %", "a frame of 256e3, added", "64 frames of 256e3, added", "25.6e6, 10 %", "36,864, 1 %", "one tensor as large as ResNet-50"]
SECTIONS = ["SpeedOfLight", "Occupancy", "LaunchStats", "WarpStateStats"]
METRICS = ["gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"]
FACTORS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
TIMES = {"s": 1e6, "second": 1e6, "ms": 1e3, "msecond": 1e3, "us": 1, "usecond": 1, "ns": 1e-3, "nsecond": 1e-3}
STALL = re.compile(r"^smsp__average_warps?_issue_stalled_(\w+?)_per_issue_active(?:\.ratio)?$")


def command(ncu, program, row):
    """Caches are left as the call leaves them, since a kernel mostly reads what the one before it wrote."""
    sections = [word for section in SECTIONS for word in ("--section", section)]
    return [ncu, "--config-file", "off", "--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "demangled", "--clock-control", "none", "--cache-control", "none",
            "--profile-from-start", "off", *sections, "--metrics", ",".join(METRICS), program, "--quick", "--profile", row]


def kernel_name(text):
    """void dr::entry<dr::select_filter<unsigned int, (bool)0, (unsigned long)40> >(T1::args) -> select_filter"""
    ours = re.search(r"\bentry<(?:\w+::)*(\w+)", text)
    return ours.group(1) if ours else re.sub(r"^void ", "", text).split("(")[0].split("<")[0].split("::")[-1]


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None  # "n/a", or words


def in_unit(value, unit):
    """Microseconds of times, bytes of sizes; other numbers as they are."""
    if value is None:
        return None
    if unit in TIMES:
        return value * TIMES[unit]
    size = re.fullmatch(r"([KMGT]?)(?:byte|B)(?:/block)?", unit)
    return value * FACTORS[size.group(1)] if size else value


def launches(text):
    """Yields (row, kernel, {column: text, metric: number}) of every launch, in order. Raises ValueError with ncu's own words."""
    row, table, trouble = "", [], []

    def flush():
        yield from launches_of(table)
        table.clear()

    for line in text.splitlines():
        if line.startswith("# row: "):
            yield from ((row, *launch) for launch in flush())
            row = line.removeprefix("# row: ")
        elif line.startswith('"'):
            if line.startswith('"ID"'):
                yield from ((row, *launch) for launch in flush())
            table.append(line)
        elif line.startswith("==ERROR=="):
            trouble.append(line.removeprefix("==ERROR==").strip())
    yield from ((row, *launch) for launch in flush())
    if trouble:
        raise ValueError("ncu: " + "; ".join(dict.fromkeys(trouble)))


def launches_of(lines):
    rows = list(csv.DictReader(lines))
    if not rows:
        return
    if "Metric Name" in rows[0]:  # a line for each metric
        all_of = {}
        for r in rows:
            values = all_of.setdefault(r["ID"], (kernel_name(r["Kernel Name"]), dict(r)))[1]
            if r["Metric Name"]:
                values[r["Metric Name"]] = in_unit(number(r["Metric Value"]), r["Metric Unit"])
        yield from all_of.values()
        return
    units = rows[0] if not rows[0]["ID"] else {}  # a line for each launch, behind a line of units
    for r in rows[1 if units else 0:]:
        yield kernel_name(r["Kernel Name"]), {name: text if name in ("Block Size", "Grid Size", "Kernel Name") else in_unit(number(text or ""), units.get(name) or "")
                                              for name, text in r.items() if name}


def product(text):
    """(132, 1, 1) -> 132"""
    total = 1
    for n in re.findall(r"\d+", text or ""):
        total *= int(n)
    return total if text else None


def summary(values):
    def of(*names):
        return next((values[n] for n in names if values.get(n) is not None), None)

    stalls = {m.group(1): v for name, v in values.items() if (m := STALL.match(name)) and v is not None and m.group(1) != "selected"}
    top = max(stalls, key=stalls.get) if stalls else None
    return {
        "blocks": of("launch__grid_size") or product(values.get("Grid Size")), "lanes": of("launch__block_size") or product(values.get("Block Size")),
        "registers": of("launch__registers_per_thread"), "shared": of("launch__shared_mem_per_block_static", "launch__shared_mem_per_block"),
        "us": of("gpu__time_duration.sum", "Duration"), "read": of("dram__bytes_read.sum"), "written": of("dram__bytes_write.sum"),
        "dram_percent": of("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "dram__throughput.avg.pct_of_peak_sustained_elapsed", "DRAM Throughput"),
        "sm_percent": of("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput"),
        "occupancy_percent": of("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy"),
        "stall": top, "stall_share": round(stalls[top] / sum(stalls.values()), 3) if top and sum(stalls.values()) else None}


def profile(text):
    """{"rows": [{"row", "kernel", "us", …}], "trouble": words or None}. What precedes an error is kept."""
    rows, trouble = [], None
    try:
        for row, kernel, values in launches(text):
            rows.append({"row": row, "kernel": kernel, **summary(values)})
    except ValueError as error:
        trouble = str(error)
    if not rows and not trouble:
        trouble = "there is no launch in it"
    return {"rows": rows, "trouble": trouble}


def shown(value, form):
    return "" if value is None else format(value, form)


def table(report):
    if report["trouble"]:
        yield f"**{report['trouble']}**"
        yield ""
    rows = report["rows"]
    if not rows:
        return
    yield "| kernel | µs | MB read | MB written | of DRAM | of SM | occupancy | most stalled by | blocks × lanes | registers | shared |"
    yield "|" + "---|" * 11
    for name in dict.fromkeys(r["row"] for r in rows):
        of = [r for r in rows if r["row"] == name]
        total = sum(r["us"] or 0 for r in of)
        yield f"| **{name}** | {total:.1f} | " + " | ".join(f"{sum(r[k] or 0 for r in of) / 1e6:.1f}" for k in ("read", "written")) + " |" + " |" * 7
        for r in of:
            stall = f"{r['stall'].replace('_', ' ')} {100 * r['stall_share']:.0f} %" if r["stall"] and r["stall_share"] is not None else ""
            yield "| " + " | ".join([r["kernel"], shown(r["us"], ".1f"), shown(r["read"] and r["read"] / 1e6, ".2f"), shown(r["written"] and r["written"] / 1e6, ".2f"),
                                     *(shown(r[k], ".0f") and shown(r[k], ".0f") + " %" for k in ("dram_percent", "sm_percent", "occupancy_percent")), stall,
                                     f"{shown(r['blocks'], '.0f')} × {shown(r['lanes'], '.0f')}", shown(r["registers"], ".0f"), shown(r["shared"], ",.0f")]) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report = profile(args.csv.read_text(encoding="utf-8", errors="replace"))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(report)))
    return 1 if report["trouble"] else 0


if __name__ == "__main__":
    sys.exit(main())
