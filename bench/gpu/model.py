#!/usr/bin/env python3
"""What each launch of a gated row should take, and why; printed before a run, and beside what a run measured.

    model.py [--row TEXT]                     launches: blocks, waves, bytes, expected microseconds on an H100 and an H200
    model.py --predict                        a table of rows for PREDICTIONS.md
    model.py --compare BENCH.json             the predictions of PREDICTIONS.md beside a run's gpu_gates.json or gpu_bench.json
    model.py --profile PROFILE.json [--gpu H100]  the same, kernel by kernel, beside a run's gpu_profile.json

launches.csv has kernels and blocks (tests/device/launches.cpp keeps it true), tests/cuda/resources.csv registers and shared memory. A launch takes
its bytes of memory at the rate that a copy has, plus what its chain of dependent steps takes for each wave of blocks, plus instructions that grow
with the candidates or pairs. COSTS has the last two, fitted to the profile of 2026-11-22 on an H100 (bench/results/gpu.md); they do not scale with
the memory, so an H200 has the same. A change of a kernel changes its line here, before it is measured.
"""
import argparse
import csv
import json
import math
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Bytes per second of a copy (both ways counted) and of reading alone, and multiprocessors.
GPUS = {"H100": {"copy": 2.99e12, "read": 3.01e12, "sms": 132}, "H200": {"copy": 4.23e12, "read": 4.37e12, "sms": 132}}
BOUNDARY = 0.3  # microseconds between launches that start early, less what they overlap
# Microseconds: once, for each wave, and for each million of candidates or pairs that the launch handles. Changed since they were fitted, and not run: a
# microsecond less for look-back by a warp (refine, compact, golomb_encode); three less for the filter, of which 17 MB are prefetched; half a one more a wave
# of golomb_decode, which finds where tiles begin, so that judge_supports has only faults to look at (it was 5 and 7.5 a million); half a one less for
# select_bracket, which clears its bins while the sample is on its way, four at once; unpack_frames copies no sections (it was 3.7). small_encode: the five
# kernels that it is made of, less four launches of 1.2 (what an empty one took, back to back).
COSTS = {
    "begin_call": (1.3, 0, 0), "select_bracket": (2, 7.5, 0), "select_filter": (2, 0, 17), "select_refine": (6.5, 0, 1.5), "select_compact": (8, 0, 13.4),
    "select_fallback": (1.2, 0, 0), "select_adopt": (4, 2, 2), "golomb_encode_tile": (0.5, 8.3, 0), "qsgd_encode": (3.2, 2.4, 0), "pack_frame": (6, 0, 6),
    "open_states": (1.5, 0, 0), "subtract_rows": (3, 0, 10), "index_raw_encode": (2, 1, 1), "reorder_keys": (3, 1, 0), "open_frames": (6.5, 0, 3.7),
    "unpack_frames": (6, 0, 2.5), "golomb_decode_tile": (1, 10.3, 0), "qsgd_decode": (4, 0, 7.7), "judge_supports": (4, 0, 0), "tell_decoded": (2, 0, 0),
    "add_rows": (3, 0, 30), "merge_tiles": (6, 0, 0), "fit_poly_keys": (3, 0, 4), "fit_poly_fit_sorted": (30, 0, 20),
    # These have not run on a device: as their likes.
    "log_quant_range": (2.5, 1.5, 0), "log_quant_levels": (2.5, 2, 0), "log_quant_code": (3.2, 3, 0), "find_changes": (5, 0, 17), "value_raw": (2, 0, 2),
    "golomb_sum_groups": (4, 1, 0), "select_solve": (3.5, 0, 250), "small_encode": (20.4, 0, 250), "check_bases": (5, 0, 15), "assign_changes": (3, 0, 10)}
# Microseconds for each block that finds nothing to do, where launches have room for more than there is: a threshold's 52,000 such blocks took 62.
IDLE = 1.2e-3
VALUES = {"find_changes": 0, "check_bases": 0, "begin_call": 0, "golomb_sum_groups": 0, "open_frames": 0, "assign_changes": 1024}  # a block of a patch; others 4096
# Of two launches that run beside each other the shorter one's time counts a fifth, but no more than 6 µs are saved: launches that fill the device share it.
BESIDE, BESIDE_LIMIT = 0.8, 6
INDICES = {"golomb_encode_tile", "index_raw_encode", "golomb_decode_tile"}
BESIDE_INDICES = ("qsgd", "log_quant", "value_raw", "fit_poly", "unpack_frames")
SORT = 45  # cub's sort of 256,000 pairs of 64 bits: eight passes; no launch of ours
FALLS_BACK = {"constant": 140, "two values": 60}  # six phases that wait for all blocks, and atomics of few words
# Structs, by which the compiler and a profiler know a kernel, where its name is another.
STRUCTS = {"golomb_encode": "golomb_encode_tile", "golomb_decode": "golomb_decode_tile", "fit_poly_fit": "fit_poly_fit_sorted"}


def names(cell):
    return re.split(r"[<(]", cell)[0]


def resources(arch="sm_90"):
    """kernel -> (registers, shared), of f32 and one job where there are several."""
    out = {}
    with (HERE.parents[1] / "tests/cuda/resources.csv").open() as file:
        for r in csv.DictReader(line for line in file if not line.startswith("#")):
            # (Golomb blocks are of 2^12 indices unless a plan says otherwise.)
            if r["arch"] == arch and not (names(r["kernel"]) in out and ("unsigned short" in r["kernel"] or ", 13>" in r["kernel"])):
                out[names(r["kernel"])] = int(r["registers"]), int(r["shared"])
    return out


def launches():
    rows = {}
    with (HERE / "launches.csv").open() as file:
        for r in csv.DictReader(file):
            rows.setdefault(r["row"], []).append((r["kernel"], int(r["blocks"]), int(r["lanes"])))
    return rows


class Row:
    """Sizes of a gated row, from its name."""

    def __init__(self, name):
        self.name = name
        self.d = next((d for start, d in {"1e8": 100_000_000, "1e9": 1_000_000_000, "36,864": 36_864, "ResNet-50": 25_557_032}.items() if name.startswith(start)), 25_600_000)
        share = re.search(r"([\d.]+) %", name)
        self.frames = next((int(n) for n in re.findall(r"^(\d+) frames", name)), 1 if name.startswith("a frame") else 0)
        self.sparse = "pairs" in name
        self.selected = 1_000_000 if name.startswith("1e6") else 256_000 if self.sparse or self.frames else round(self.d * float(share.group(1)) / 100) if share else 256_000
        self.patch = "bf16" in name
        if self.patch:
            self.d = 60 << 24
            self.selected = self.d // 50
        self.residual, self.fresh = "residual" in name, "fresh" in name
        self.fails = next((us for word, us in FALLS_BACK.items() if word in name), 0)

    def work(self, kernel):
        """(bytes of memory, read alone, millions of candidates or pairs) of a launch."""
        sampled = min(self.d / 32, 524288 if self.selected > 4e6 else 262144) * self.selected / self.d  # of those that are selected
        candidates, pairs = (1 + 6 / math.sqrt(sampled)) * self.selected, self.selected * max(1, self.frames)
        # (With a residual three streams are at four fifths of the copy's rate.)
        read = 4 * self.d * 3 / 0.8 if self.residual else 4 * self.d
        sectors = 2 * self.d * (1 - 0.98**16)  # in which one of 16 values changed
        largest = self.d if self.d <= 65536 else 8192  # of the tensors of which each has one block (solve_most)
        size, reads, amount = {
            "find_changes": (4 * self.d + 6 * self.selected, True, self.selected), "check_bases": (2 * self.d, True, self.selected),
            "assign_changes": (2 * sectors, False, self.selected),
            "select_filter": (read + 8 * candidates, not self.residual, candidates), "select_refine": (0, False, candidates), "select_compact": (0, False, candidates),
            "select_adopt": (12 * self.selected, True, self.selected), "pack_frame": (0, False, self.selected), "subtract_rows": (0, False, self.selected),
            "select_solve": (4 * largest, True, largest), "small_encode": (4 * largest, True, largest),
            "merge_tiles": ((4 if self.fresh else 8) * self.d + 8 * pairs * (self.frames > 1), False, 0),
            "fit_poly_keys": (12 * self.selected, False, self.selected), "fit_poly_fit_sorted": (12 * self.selected, False, self.selected),
            "select_fallback": (5 * 4 * self.d if self.fails else 0, True, 0)}.get(kernel, (0, False, pairs))
        if self.patch and not size:  # pairs of 6 bytes do not stay in the L2
            size = 6 * self.selected
        return size, reads, amount / 1e6

    def idle(self, kernel, blocks):
        """Of the blocks of a launch those that find nothing: a patch has room for all weights."""
        changes = VALUES.get(kernel, 4096) if self.patch else 0
        return max(0, blocks - math.ceil(self.selected / changes)) if changes else 0


def per_processor(registers, shared, lanes):
    """Blocks that one multiprocessor of compute capability 9.0 holds."""
    by_registers = 65536 // max(1, math.ceil(registers / 8) * 8 * lanes)
    return max(1, min(2048 // lanes, by_registers, 227 * 1024 // (shared + 1024), 32))


def table(row, gpu):
    """Yields {kernel, blocks, lanes, registers, shared, resident, waves, bytes, us} of each launch of a row."""
    of, about = GPUS[gpu], Row(row)
    known = resources()
    for name, blocks, lanes in launches()[row]:
        kernel = STRUCTS.get(name, name)
        registers, shared = known.get(kernel, (32, 0))
        resident = per_processor(registers, shared, lanes)
        if kernel == "select_fallback":
            blocks = min(resident, 4) * of["sms"]
        idle = about.idle(kernel, blocks)
        waves = math.ceil((blocks - idle) / (resident * of["sms"]))
        once, wave, million = COSTS.get(kernel, (3, 1, 0))
        size, reads, amount = about.work(kernel)
        if kernel == "select_fallback":
            once += about.fails
        if kernel.startswith("golomb") and waves > 1:
            wave *= 1.2  # a third block on a processor, since they are of 2^12 indices
        if kernel == "qsgd_decode" and amount > 1.05:
            million /= 2  # four steps a block, of which the beginning takes three (from the profile, not run)
        us = once + wave * waves + IDLE * idle + million * amount + 1e6 * size / (of["read"] if reads else of["copy"])
        yield {"kernel": kernel, "blocks": blocks, "lanes": lanes, "registers": registers, "shared": shared, "resident": resident, "waves": waves, "bytes": size, "us": us}


def expected(row, gpu):
    all_of = list(table(row, gpu))
    beside = sum(min(BESIDE_LIMIT, BESIDE * min(a["us"], b["us"])) for a, b in zip(all_of, all_of[1:])
                 if b["kernel"] == "select_solve" and a["kernel"] == "select_filter"
                 or b["kernel"] == "tell_decoded" or (b["kernel"] == "select_fallback" and not Row(row).fails)
                 or (a["kernel"], b["kernel"]) == ("pack_frame", "qsgd_decode")
                 or any(i["kernel"] in INDICES and v["kernel"].startswith(BESIDE_INDICES) for i, v in ((a, b), (b, a))))
    return sum(launch["us"] for launch in all_of) + BOUNDARY * (len(all_of) - 1) - beside + (SORT if "fit_poly" in row else 0)


def shown(row):
    yield f"{row}: {expected(row, 'H100'):.0f} µs on an H100, {expected(row, 'H200'):.0f} on an H200"
    yield f"  {'kernel':24} {'blocks':>7} {'lanes':>5} {'regs':>4} {'shared':>6} {'an SM':>5} {'waves':>5} {'MB':>8} {'H100':>7} {'H200':>7}"
    for a, b in zip(table(row, "H100"), table(row, "H200")):
        yield (f"  {a['kernel']:24} {a['blocks']:7} {a['lanes']:5} {a['registers']:4} {a['shared']:6} {a['resident']:5} {a['waves']:5} {a['bytes'] / 1e6:8.1f} "
               f"{a['us']:7.1f} {b['us']:7.1f}")


# ---- Predictions, and what became of them ---------------------------------------------------------------------


def predictions(text):
    """{row: {gpu: microseconds}} of the table in PREDICTIONS.md, and the commit that it is about."""
    out, head = {}, []
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if line.startswith("| row |"):
            head = cells
        elif head and line.startswith("|") and not line.startswith("|---"):
            out[cells[0]] = {gpu: float(value.replace(",", "")) for gpu, value in zip(head[1:], cells[1:]) if gpu in GPUS and value}
    return out


def gpu_of(device):
    return next((gpu for gpu in GPUS if gpu in device), None)


def compare(report, predicted):
    """Lines; and what is wrong: a floor above its measurement, a gated row without a prediction."""
    gpu = gpu_of(report["device"])
    wrong, near, all_of = [], 0, 0
    lines = [f"{'microseconds':40} {'predicted':>9} {'measured':>9} {'ratio':>6} {'floor':>8}"]
    for row in report["rows"]:
        if row["group"] == "machine" or "graph_us" not in row:
            continue
        measured, floor = row["graph_us"]["median"], row.get("floor_us", 0)
        if floor > 1.02 * measured and not report.get("rehearsal"):
            wrong.append(f"{row['name']}: measured {measured:.1f} µs, below its floor of {floor:.1f}")
        if "gate_us" not in row:
            continue
        guess = predicted.get(row["name"])
        if guess is None:
            wrong.append(f"{row['name']}: has no prediction")
        if not guess or not gpu or gpu not in guess or report.get("rehearsal"):
            continue
        ratio = measured / guess[gpu]
        all_of += 1
        near += 0.85 <= ratio <= 1.15
        lines.append(f"{row['name']:40} {guess[gpu]:9.1f} {measured:9.1f} {ratio:6.2f} {floor:8.1f}" + ("" if 0.85 <= ratio <= 1.15 else "  <-- why?"))
    lines += wrong
    lines.append("a rehearsal: nothing is predicted for it" if report.get("rehearsal") else f"no predicted times for {report['device']}" if not gpu
                 else f"{near} of {all_of} rows within 15 % of what was predicted")
    return lines, wrong


def compare_profile(profile, gpu):
    rows = {}
    for launch in profile["rows"]:
        rows.setdefault(launch["row"], []).append(launch)
    for row, seen in rows.items():
        yield f"{row}:"
        guesses = {}
        for launch in table(row, gpu) if row in launches() else []:
            guesses.setdefault(launch["kernel"], []).append(launch["us"])
        for launch in seen:
            guess = guesses.get(launch["kernel"], [])
            text = f"{guess.pop(0):8.1f}" if guess else " " * 8
            yield f"  {launch['kernel']:24} {text} {launch['us'] or 0:8.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", default="")
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--gpu", default="H100", choices=GPUS)
    args = parser.parse_args()
    if args.compare:
        lines, wrong = compare(json.loads(args.compare.read_text(encoding="utf-8")), predictions((HERE / "PREDICTIONS.md").read_text(encoding="utf-8")))
        print("\n".join(lines))
        return 1 if wrong else 0
    if args.profile:
        print("\n".join(compare_profile(json.loads(args.profile.read_text(encoding="utf-8")), args.gpu)))
        return 0
    for row in launches():
        if args.predict:
            print(f"| {row} | " + " | ".join(f"{expected(row, gpu):,.0f}" for gpu in GPUS) + " | |")
        elif args.row in row:
            print("\n".join(shown(row)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
