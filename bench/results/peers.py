"""Runs bench/peers at both levels of instructions, keeps the json, and makes peers.md from it.

    python3 bench/results/peers.py build/bench/peers/peers [--rounds N]     # measure, then write: 25 minutes
    python3 bench/results/peers.py                                          # write from what is kept
    python3 bench/results/peers.py --all FILE.md                            # the same of all sets, 1,200 lines

peers.md has one set of each kind; what is kept is the median of five runs, each of both levels. ./dev bench peers does it all. What python_peers.py kept is part of peers.md if it is there.
"""

import json
import os
import pathlib
import statistics
import sys

from runs import keep, median_ratio, one_run, runs_of

here = pathlib.Path(__file__).parent
RUNS = 5
STREAMVBYTE = "streamvbyte delta, SSSE3"
SHOWN = [("indices", "uniform, d = 2.5e+07, r = 250000"), ("indices", "resnet20_digits_step0150, Top-r 1 %"),
         ("values", "laplace, Top-r 1 % of d = 2.5e+07")]  # and all frames
LEVELS = {"peers": None, "peers_avx2": "avx2"}  # file: DEEPREDUCE_CPU


def measure(tool, arguments, levels=LEVELS):
    documents = {name: [] for name in levels}
    for _ in range(RUNS):
        for name, level in levels.items():
            environment = {k: v for k, v in os.environ.items() if k != "DEEPREDUCE_CPU"} | ({"DEEPREDUCE_CPU": level} if level else {})
            documents[name].append(one_run([tool, *arguments, "--json"], environment))
    for name, made in documents.items():
        keep(here / f"{name}.json", made)
        missing = sorted({row["of"] for row in made[0]["rows"] if row.get("missing", "").startswith("built without")})
        if missing:
            print(f"peers: not here: {', '.join(missing)}", file=sys.stderr)


def speed(row, way):
    """The median and quartiles of one run; of several runs the median, the slowest and the fastest."""
    runs = runs_of(row[way], "median")
    low, high = (min(runs), max(runs)) if len(runs) > 1 else (row[way]["low"], row[way]["high"])
    return f"{statistics.median(runs):.3g} ({low:.3g} – {high:.3g})"


def times(rows):
    """For each codec of a set, encode and decode × StreamVByte's of the same run, if that is in it."""
    peer = next((r for r in rows if r["codec"] == STREAMVBYTE and "bits" in r), None)
    if peer is None:
        return {}
    return {r["codec"]: " / ".join(f"{median_ratio(r[way], peer[way]):.2f}" for way in ("encode", "decode")) for r in rows if "bits" in r}


def table(rows, with_avx2):
    """Rows of a set at the best level, beside what was measured of them with AVX2 only."""
    slower = {r["codec"]: r for r in with_avx2 if "bits" in r}
    ratios, slower_ratios = times(rows), times(with_avx2)
    values = rows[0]["group"] == "values"
    local = "local_entropy" in rows[0]
    frames = rows[0]["group"] == "frames"
    columns = ["codec", "of", "bits"]
    columns += ["rel. L2 error"] if values else [] if frames else ["over log2 C(d, r) / r"] + (["over the local entropy"] if local else [])
    more = ["encode G/s", "decode G/s", "AVX2: encode G/s", "decode G/s"] + (["× StreamVByte's, encode / decode", "AVX2: the same"] if ratios else [])
    lines = ["| " + " | ".join(columns + more) + " |", "|---|---" + "|---:" * (len(columns) + len(more) - 2) + "|"]
    for row in rows:
        if "bits" not in row:
            continue
        bits = f"{row['bits']:.3f}" + (f" + {row['order_bits']:.0f} of order" if "order_bits" in row else "")
        cells = [f"`{row['codec']}`" if row["of"] == "deepreduce" else row["codec"], row["of"], bits]
        if values:
            cells.append(f"{row['relative_l2_error']:.2e}" if row["relative_l2_error"] else "0")
        elif not frames:
            note = f" (tells {row['support']:,})" if "support" in row else ""
            cells.append(f"{row['bits_over']:+.3f}{note}")
            if local:
                cells.append(f"{row['bits_over_local']:+.3f}")
        cells += [speed(row, "encode"), speed(row, "decode")]
        cells += [speed(slower[row["codec"]], way) if row["codec"] in slower else "" for way in ("encode", "decode")]
        cells += [ratios[row["codec"]], slower_ratios.get(row["codec"], "")] if ratios else []
        lines.append("| " + " | ".join(cells) + " |")
    missing = [f"`{row['codec']}` ({row['missing']})" for row in rows if "missing" in row and not row["missing"].startswith("no such codec")]
    if missing:
        lines += ["", "Not here: " + ", ".join(missing) + "."]
    return "\n".join(lines)


def sets_of(made):
    sets = {}
    for row in made["rows"]:
        sets.setdefault((row["group"], row["set"]), []).append(row)
    return sets


def title(rows):
    first = rows[0]
    unit = {"indices": "an index", "values": "a value", "frames": "a pair"}[first["group"]]
    facts = f"d = {first['d']:,}, r = {first['r']:,}"
    if "bound" in first:
        facts += f"; log2 C(d, r) / r = {first['bound']:.3f}"
    if "local_entropy" in first:
        facts += f"; local entropy {first['local_entropy']:.3f}"
    return f"### {first['group'].capitalize()}: {first['set']}\n\n{facts}. Bits {unit}; speeds in 10⁹ {first['group'] if first['group'] != 'frames' else 'pairs'} a second."


def facts(made):
    return f"Commit {made['commit']}, {made['date']}, {made['machine'].get('cpu')}, {made['build'].get('compiler')}, {made['rounds']} rounds, runs: {made.get('runs', 1)}."


def remade(shown=SHOWN):
    """peers.md, of what is kept. shown: sets; None: all."""
    parts = ["# Beside peers\n\nMade by `peers.py` from `peers.json`, `peers_avx2.json` and `python_peers.json`; README.md says how to repeat it. One thread; all rows of a table were timed in turn in one run, "
             "after their round trips were checked: the thread's CPU time, of several runs the median (slowest – fastest), of one its median (quartiles). Compare within a table, not between them: the machine is shared. "
             "The columns of AVX2 are of runs of their own, with `DEEPREDUCE_CPU=avx2`: compare them with each other, or by what they are of StreamVByte's in the same run.\n\n"
             "`reference` is plain code of this benchmark. Debian's libstreamvbyte and libroaring are built without SSSE3 and AVX2, so StreamVByte also stands in our own SSSE3 lines, which write the "
             "library's bytes. Codecs that reorder need their order beside, in the bits that are said."]
    made = json.loads((here / "peers.json").read_text())
    slower = here / "peers_avx2.json"
    with_avx2 = json.loads(slower.read_text()) if slower.exists() else {"rows": []}
    parts.append(f"## At the best level of instructions, and with AVX2 only\n\n{facts(made)}" + (f" With AVX2: {facts(with_avx2)}" if with_avx2["rows"] else ""))
    others = sets_of(with_avx2)
    sets = sets_of(made)
    if shown:
        groups = {group: sum(g == group for g, _ in sets) for group, _ in sets}
        parts.append(f"Below are {len(shown)} of the {len(sets)} sets: {groups.get('indices', 0)} of indices, {groups.get('values', 0)} of values. The json has all; "
                     "`python3 bench/results/peers.py --all FILE.md` writes their tables.")
    for key, rows in sets.items():
        if shown and key[0] != "frames" and key not in shown:
            continue
        parts.append(f"{title(rows)}\n\n{table(rows, others.get(key, []))}")
    if (here / "python_peers.json").exists():
        made = json.loads((here / "python_peers.json").read_text())
        lines = ["| task | what | of | bits | encode or select ms | decode ms |", "|---|---|---|---:|---:|---:|"]
        for row in made["rows"]:
            if "missing" in row:
                lines.append(f"| {row['task']} | {row['what']} | {row['of']} | not here: {row['missing']} | | |")
                continue
            cell = lambda way, row=row: f"{row[way]['median']:.3g} ({row[way]['low']:.3g} – {row[way]['high']:.3g})" if way in row else ""
            lines.append(f"| {row['task']} | {row['what']} | {row['of']} | {row.get('bits', '')} | {cell('encode_ms')} | {cell('decode_ms')} |")
        parts.append(f"## From Python\n\nCommit {made['commit']}, {made['date']}, {made['cpu']}; CPU time of one thread, {made['rounds']} rounds.\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--all"]:
        pathlib.Path(sys.argv[2]).write_text(remade(None), "utf-8")
    else:
        if len(sys.argv) > 1:
            measure(sys.argv[1], sys.argv[2:])
        (here / "peers.md").write_text(remade(), "utf-8")
