"""Makes comm.md of comm_100mbit.json, comm_1gbit.json, comm_unshaped.json, comm_shm.json and comm_parts.json: python3 bench/results/comm.py"""

import json
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
LINKS = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "unshaped": "namespaces, unshaped", "shm": "shared memory"}
# rehearsal's targets at 100 Mbit/s: (ratio, value, most, of MPI_Iallreduce)
AIMS = [("0.1", "raw", 0.08), ("0.1", "log_quant", 0.035), ("0.01", "raw", 0.01), ("0.01", "log_quant", 0.01)]

HEAD = """# All-reduce over MPI

4 ranks on this machine's 2 cores, 5,812,288 f32 (the size of a word LSTM), made gradients; `sparsify=topr(ratio=…) feedback=residual index=golomb`. Milliseconds, the median of the slowest rank, [p10, p90] and × the time of
`MPI_Iallreduce`, which took its turn in the same run. All rows verified bit by bit ([bench/comm](../comm/README.md) says how). Made by `comm.py` from `comm_*.json`.
The load when each run began, which the run before it had left: {load}. `MPI_Iallreduce` is MPICH's, and no ring: one that filled the link all the time would take {ring:.0f} ms at 100 Mbit/s, and {half:.0f} of bf16: beside a good all-reduce the ratios there are {more:.1f} times, and beside bf16 {more_half:.1f} times as large. Where nothing is shaped the cores are the limit, not the link.

To repeat, with `--rate 1000`, `--rate 0` and without `--rate` for the others:

```
T='feedback=residual index=golomb'
./dev bench comm --rate 100 --elements 5812288 -n 7 --json bench/results/comm_100mbit.json \\
  --plan "sparsify=topr(ratio=0.1) $T value=raw" --plan "sparsify=topr(ratio=0.1) $T value=log_quant" \\
  --plan "sparsify=topr(ratio=0.01) $T value=raw" --plan "sparsify=topr(ratio=0.01) $T value=log_quant" \\
  --exchange gather --exchange 'owner(parts=4)' --exchange 'owner(parts=8)'
```

and with the first plan, `--exchange 'owner(parts=8)'`, 12, 16, 32 and `--json bench/results/comm_parts.json` for the second table.

"""


def parts(plan):
    """(ratio, value, exchange) of a plan's text; of the dense row its name."""
    found = [re.search(rf"{name}=([^\s]+?)(?=\)? |$)", plan) for name in ("ratio", "value", "exchange")]
    if not found[0]:
        return None
    return found[0].group(1).rstrip(")"), found[1].group(1) if found[1] else "raw", found[2].group(1) if found[2] else "gather"


def cell(row):
    return f"{1e3 * row['time_s']:.0f} [{1e3 * row['p10_s']:.0f}, {1e3 * row['p90_s']:.0f}]"


def remade():
    """comm.md, of what is kept."""
    runs = {link: json.loads((HERE / f"comm_{link}.json").read_text()) for link in LINKS}
    rows = {link: {parts(row["plan"]): row for row in run["rows"]} for link, run in runs.items()}
    order = [parts(row["plan"]) for row in runs["100mbit"]["rows"]]
    slow = runs["100mbit"]
    ring = 8e-3 * rows["100mbit"][None]["sent"] / slow["megabits"]
    over = 1e3 * rows["100mbit"][None]["time_s"] / ring
    head = HEAD.format(load=", ".join(f"{run['load']:.0f}" for run in runs.values()), ring=ring, half=ring / 2, more=over, more_half=2 * over)
    lines = [head.rstrip("\n"), "", "| ratio, value | exchange | bytes sent | " + " | ".join(LINKS.values()) + " |", "|---|---|---|" + "---|" * len(LINKS)]
    for key in order:
        what = f"{key[0]}, {key[1]} | {key[2]}" if key else "`MPI_Iallreduce` |"
        times = [cell(rows[link][key]) + (f" × {rows[link][key]['times_dense']:.4f}" if key else "") for link in LINKS]
        lines.append(f"| {what} | {rows['100mbit'][key]['sent']:,.0f} | " + " | ".join(times) + " |")
    smaller = {parts(row["plan"]): row for row in json.loads((HERE / "comm_parts.json").read_text())["rows"]}
    lines += ["", "Smaller parts, 100 Mbit/s, in a run of their own: the first travels sooner, and less is merged after the last.", "", "| ratio, value | exchange | bytes sent | 100 Mbit/s |", "|---|---|---|---|"]
    for key, row in smaller.items():
        what = f"{key[0]}, {key[1]} | {key[2]}" if key else "`MPI_Iallreduce` |"
        lines.append(f"| {what} | {row['sent']:,.0f} | {cell(row)}" + (f" × {row['times_dense']:.4f} |" if key else " |"))
    lines += ["", "| set out to reach, 100 Mbit/s, of `MPI_Iallreduce` | limit | reached, by | of a full ring, f32 |", "|---|---|---|---|"]
    times = {key: row["time_s"] for some in (smaller, rows["100mbit"]) for key, row in some.items()}
    ratios = {key: row["times_dense"] for some in (smaller, rows["100mbit"]) for key, row in some.items() if key and key[2].startswith("owner")}
    for ratio, value, limit in AIMS:
        best = min((key for key in ratios if key[:2] == (ratio, value)), key=ratios.__getitem__)
        got = ratios[best]
        lines.append(f"| `owner`, {ratio}, {value} | {limit} | {got:.4f}{'' if got <= limit else ', **not reached**'}, `{best[2]}` | {1e3 * times[best] / ring:.4f} |")
    dirty = [link for link, run in runs.items() if run["commit"].endswith("-dirty")]
    lines += ["", f"{slow['mpi']}; commit {slow['commit']}, {slow['date']}; {slow['machine']}; rank 0 to rank 1: " + ", ".join(f"{run['megabits']:.0f}" for run in runs.values()) + " Mbit/s."
              + (f" Of builds with changes that were not committed, to be measured again: {'; '.join(LINKS[link] for link in dirty)}." if dirty else ""), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    (HERE / "comm.md").write_text(remade(), "utf-8")
