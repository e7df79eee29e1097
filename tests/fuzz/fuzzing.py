#!/usr/bin/env python3
"""Runs the fuzz targets and keeps account of it (`./dev fuzz`).

    fuzzing.py run BUILD --minutes N [-j JOBS] [TARGET…]   fuzzes all targets in turn, or those named, and appends a line a target to
                                                           bench/results/fuzz.jsonl; exit 1 if one of them found something
    fuzzing.py minimise BUILD [TARGET…]                    what was found, as corpus/TARGET.pack: the least that reaches the same code
    fuzzing.py coverage BUILD [TARGET…]                    lines that the corpora reach, by folder; those that they do not reach
    fuzzing.py table                                       bench/results/fuzz.md of bench/results/fuzz.jsonl

BUILD: for coverage a build with clang's coverage, else one with -Dfuzzing=true. What fuzzing finds lies in BUILD/found/TARGET, which the
next run begins with; an input that crashes is BUILD/crashes/TARGET-….
"""
import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pack

here = Path(__file__).resolve().parent
sys.path.insert(0, str(here.parent))
import suite  # noqa: E402

root = here.parent.parent
corpus = here / "corpus"
record = root / "bench" / "results" / "fuzz.jsonl"
table_file = record.with_suffix(".md")

TARGETS = {
    "fuzz_decode": "inspect, decode and merge of one frame",
    "fuzz_merge": "merge of several frames, dense and to a union",
    "fuzz_codec": "each codec alone: decode of any payload, round trip",
    "fuzz_round_trip": "plans and tensors: encode, inspect, decode, prepared",
    "fuzz_exchange": "messages of a hostile rank",
    "fuzz_sender": "slots of a hostile rank, states of a damaged file",
    "fuzz_transform": "factors of a hostile rank, states of a damaged file",
    "fuzz_control": "options, measurements and words of a hostile rank",
    "fuzz_plan": "text of plans",
    "fuzz_npy": "`.npy`",
    "fuzz_npz": "`.npz`",
    "fuzz_safetensors": "`.safetensors`",
    "fuzz_raw": "raw f32 files",
    "fuzz_synth": "`synth:` texts",
    "fuzz_book": "plan books",
    "fuzz_profile": "profiles and models of `predict`",
}
# Bytes that an input is made of at most. Longer ones are slower, and reach nothing more.
LENGTHS = {"fuzz_decode": 2048, "fuzz_merge": 4096, "fuzz_exchange": 2048, "fuzz_sender": 1024, "fuzz_synth": 128, "fuzz_book": 512, "fuzz_raw": 64, "fuzz_plan": 1024, "fuzz_profile": 4096}
PACK_MAX = 200_000
LEVELS = ("scalar", "avx2", "avx512")  # of instructions: each has decoders of its own
SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1:abort_on_error=0",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}
NICE = ["nice", "-n", "19"]
SOURCES = [f"{folder}/**/*.{ending}" for folder in ("lib", "codecs", "capi", "include", "tool", "tests/fuzz") for ending in ("cpp", "hpp", "h")]


def commit():
    """The last commit that changed the fuzzed sources, so that runs of the same code count together; -dirty if they have uncommitted changes."""

    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False).stdout.strip()

    there = ["--", *(f":(glob){path}" for path in SOURCES)]
    changed = git("status", "--porcelain", *there)
    return (git("log", "-1", "--format=%h", "--abbrev=12", *there) or "unknown") + ("-dirty" if changed else "")


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M")


def build_targets(build, names):
    subprocess.run(["ninja", "-C", build, *(f"tests/fuzz/{name}" for name in names)], check=True, stdout=sys.stderr)


def seeds_of(name, folder):
    """Folders: the seeds and what was found before, unpacked; and frames that are worth beginning with."""
    pack.unpack(corpus / f"{name}.seeds.pack", folder / "seeds")
    pack.unpack(corpus / f"{name}.pack", folder / "found")
    return [folder / "seeds", folder / "found", *([here.parent / "golden" / "frames"] if name == "fuzz_decode" else [])]


# ---- run ------------------------------------------------------------------------------------------------


def start(build, name, seconds, unpacked):
    found, crashes = Path(build) / "found" / name, Path(build) / "crashes"
    for folder in (found, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    command = [*NICE, str(Path(build) / "tests" / "fuzz" / name), f"-max_total_time={seconds}", f"-artifact_prefix={crashes}/{name}-"]
    # A sparse tensor may stand for a dense one of 4 GiB, of which no more is touched than its entries: the limit is on memory that is used.
    # (Beside other work a fuzzer may have a fiftieth of a core, so an input of half a second takes 25.)
    command += [f"-max_len={LENGTHS.get(name, 1024)}", "-timeout=120", "-report_slow_units=20", "-rss_limit_mb=2048", "-malloc_limit_mb=8192"]
    # libFuzzer's entropic schedule walks all rare features for every new one: of so many edges, 86 % of the time of fuzz_exchange.
    command += ["-print_final_stats=1", "-use_value_profile=1", "-entropic=0"]
    command += [str(path) for path in [found, *seeds_of(name, unpacked)]]
    log = (Path(build) / f"{name}.log").open("w+", errors="replace")
    return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | SANITIZERS), log


def keep(row):
    """Adds a row to the record, unless it is of code that no commit has."""
    if row["commit"].endswith("-dirty"):
        print(f"{row['commit']}: the sources have changes, so {record.name} gets no row of this run", flush=True)
        return
    with record.open("a") as out:
        out.write(json.dumps(row) + "\n")


def finish(name, process, log, built):
    """Waits for the job and writes its result to the record."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    log.seek(0)
    text = log.read()
    log.close()
    covered = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", text) or [("0", "0", "0")]
    executed = re.findall(r"stat::number_of_executed_units:\s*(\d+)", text)
    finds = [path for path in re.findall(r"Test unit written to (\S+)", text) if "slow-unit" not in path]  # no fault: a busy machine
    row = {
        "target": name,
        "date": now(),
        "commit": built,
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "executions": int(executed[-1]) if executed else int((re.findall(r"^#(\d+)", text, re.MULTILINE) or ["0"])[-1]),
        "edges": int(covered[-1][0]),
        "features": int(covered[-1][1]),
        "corpus": int(covered[-1][2]),
        "finds": [Path(path).name for path in finds],
    }
    keep(row)
    print(f"{name}: {row['executions']:,} executions in {row['cpu_seconds']:.0f} s of CPU, {row['edges']} edges", flush=True)
    if process.returncode:
        print(f"{name}: exit {process.returncode}; {' '.join(finds) or 'no input was kept'}\n{text[-3000:]}", flush=True)
    return process.returncode == 0


def run(options):
    names = options.targets or list(TARGETS)
    build_targets(options.build, names)
    built = commit()
    seconds = max(1, int(options.minutes * 60 * options.jobs / len(names)))
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        waiting, running = list(names), []
        while waiting or running:
            while waiting and len(running) < options.jobs:
                name = waiting.pop(0)
                running.append((name, *start(options.build, name, seconds, Path(temporary) / name)))
            while all(process.returncode is None for _, process, _ in running):
                for name, process, log in running:
                    if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                        good = finish(name, process, log, built) and good
                time.sleep(0.5)
            running = [job for job in running if job[1].returncode is None]
    table(options)
    return not good


# ---- minimise -------------------------------------------------------------------------------------------


def minimise(options):
    names = options.targets or list(TARGETS)
    build_targets(options.build, names)
    for name in names:
        with tempfile.TemporaryDirectory() as temporary:
            minimal, unpacked = Path(temporary) / "minimal", Path(temporary) / "unpacked"
            minimal.mkdir()
            # The seeds of the tree come first, so that the pack holds what they do not reach.
            folders = [path for path in [*seeds_of(name, unpacked), Path(options.build) / "found" / name] if path.is_dir()]
            seed_folders = [path for path in folders if path.name in ("seeds", "frames")]
            for folder in seed_folders:
                for path in folder.iterdir():
                    shutil.copy(path, minimal / f"{folder.name}-{path.name}")
            before = {path.name for path in minimal.iterdir()}
            command = [*NICE, str(Path(options.build) / "tests" / "fuzz" / name), "-merge=1", "-timeout=20", str(minimal)]
            subprocess.run([*command, *map(str, folders)], check=True, stderr=subprocess.DEVNULL, env=os.environ | SANITIZERS)
            inputs = sorted((path.read_bytes() for path in minimal.iterdir() if path.name not in before), key=lambda data: (len(data), data))
        size = pack.write(corpus / f"{name}.pack", inputs, PACK_MAX)
        print(f"{name}: {len(inputs)} inputs, {size} bytes", flush=True)
    return 0


# ---- coverage -------------------------------------------------------------------------------------------

# What reads bytes, texts or calls of others on the CPU; tests/device and tests/cuda see to a GPU's side.
FOLDERS = ("lib/api", "lib/core", "lib/primitive", "lib/container", "lib/split", "lib/stage", "lib/merge", "lib/plan", "lib/pipeline", "lib/patch", "lib/feedback", "lib/sparsify", "lib/dct", "lib/transform",
           "lib/exchange", "lib/sender", "lib/control", "capi", "codecs/index", "codecs/value", "codecs/order", "codecs/bytes", "codecs/family", "tool/read", "tool/predict")
NOT_OURS = re.compile(r"(/device_\w+\.[ch]pp|_device\.[ch]pp|_tile\.[ch]pp|_cuda\.cu|/launch_own\.hpp)$")  # of a device
READERS = re.compile(r"tool/(read/(inputs|npy|npz|sparse_npz|safetensors|synth)|predict/(profile|plan_book|training_model|link_text))\.[ch]pp$")
HAS_AVX512 = "avx512f" in Path("/proc/cpuinfo").read_text()
# Tests whose inputs are hostile, or calls that are wrong: suites, and tests of other suites.
SUITES = {"unit", "abi", "plugin", "exchange", "sender", "transform", "golden"}
TESTS = {"sparsifiers"}
# Functions of an encode, by what is in their (mangled) names: of files that hold both sides, the rest is what decodes.
ENCODES = re.compile(r"(?i)encode|resolve|\bcost|writer|put_|append|choose|fit_|sort|tell|keep|select|level_of|plan|bound|make_codec|param")


def profile_corpora(options, names, out):
    for name in names:
        program = Path(options.build) / "tests" / "fuzz" / name.replace("fuzz_", "replay_")
        inputs = [path for path in (corpus / f"{name}.seeds.pack", corpus / f"{name}.pack") if path.exists()]
        if name == "fuzz_decode":
            inputs.append(here.parent / "golden" / "frames")
        for level in LEVELS:
            env = os.environ | {"LLVM_PROFILE_FILE": f"{out}/{name}-{level}-%m.profraw", "DEEPREDUCE_CPU": level}
            subprocess.run([*NICE, program, *inputs], check=True, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_programs(build):
    """{name: (words, environment)} of these tests that are programs of C++, except unit tests of a device's kernels."""
    tests = suite.introspect(build, "--tests")
    ours = str(Path(build).resolve() / "tests") + os.sep
    return {test["name"]: (test["cmd"], test["env"]) for test in tests
            if (test["name"] in TESTS or test["suite"][0].split(":")[-1] in SUITES) and str(Path(test["cmd"][0]).resolve()).startswith(ours) and not test["name"].startswith("device_")}  # fmt: skip


def profile_tests(options, out):
    for number, (name, (words, env)) in enumerate(test_programs(options.build).items()):
        print(f"runs {name}", file=sys.stderr, flush=True)
        env = os.environ | env | {"LLVM_PROFILE_FILE": f"{out}/test-{number}-%p-%m.profraw"}
        done = subprocess.run([*NICE, *words], check=False, cwd=options.build, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if done.returncode:
            print(f"{name}: exit {done.returncode}", file=sys.stderr, flush=True)


def lines_of(function):
    """Lines of a function, each with whether it ran. A region: [line, column, end line, end column, count, file, expanded file, kind]."""
    counts = {}
    for line, _, end, _, count, file, _, kind in function["regions"]:
        if kind == 0 and file == 0:  # code, not an expansion or a gap; inner regions come after outer ones
            for number in range(line, end + 1):
                counts[number] = count
    return counts


def counted(options, names, raw):
    """({(path, line): times that it ran}, those of its functions that are not an encode's), of the profiles that lie in a folder."""
    data = raw / "all.profdata"
    subprocess.run(["llvm-profdata-14", "merge", "-sparse", "-o", data, *raw.glob("*.profraw")], check=True)
    objects = [Path(options.build) / "tests" / "fuzz" / name.replace("fuzz_", "replay_") for name in names]
    words = ["llvm-cov-14", "export", f"-instr-profile={data}", Path(options.build) / "capi" / "libdeepreduce.so", *(part for path in objects for part in ("-object", path))]
    ran, of_decode = {}, set()
    for function in json.loads(subprocess.run(words, check=True, capture_output=True).stdout)["data"][0]["functions"]:
        path = os.path.relpath(function["filenames"][0], root)
        if not path.startswith(FOLDERS) or NOT_OURS.search(path) or (path.endswith("_avx512.cpp") and not HAS_AVX512) or (path.startswith("tool/") and not READERS.search(path)):
            continue
        for line, count in lines_of(function).items():
            ran[path, line] = max(ran.get((path, line), 0), count)
            if not ENCODES.search(function["name"]):
                of_decode.add((path, line))
    return ran, of_decode


def coverage(options):
    names = options.targets or list(TARGETS)
    everything = [f"tests/fuzz/{name.replace('fuzz_', 'replay_')}" for name in names]
    if not options.targets:
        subprocess.run(["ninja", "-C", options.build, "build.ninja"], check=True, stdout=sys.stderr)  # so that Meson tells of new tests
        everything += suite.files_for(options.build, list(test_programs(options.build)))
    subprocess.run(["ninja", "-C", options.build, *everything], check=True, stdout=sys.stderr)
    with tempfile.TemporaryDirectory() as temporary:
        raw = Path(temporary)
        profile_corpora(options, names, raw)
        ran, of_decode = counted(options, names, raw)
        with_tests = ran
        if not options.targets:
            profile_tests(options, raw)
            with_tests, _ = counted(options, names, raw)
    reached = {}
    for folder in FOLDERS:
        lines = [key for key in with_tests if key[0].startswith(folder + "/")]
        decode = [key for key in lines if key in of_decode]
        reached[folder] = [len(lines), sum(ran.get(key, 0) > 0 for key in lines), len(decode), sum(ran.get(key, 0) > 0 for key in decode), sum(with_tests[key] > 0 for key in lines)]
    print("\n".join(coverage_table(reached)), end="\n\n")
    if not options.targets:
        keep({"date": now(), "commit": commit(), "avx512": HAS_AVX512, "reached": reached})
        table(options)
    missed = {}
    for path, line in sorted(with_tests):
        if not with_tests[path, line]:
            missed.setdefault(path, []).append(line)
    for path, lines in missed.items():
        print(f"not reached: {path}: {spans(lines)}")
    return 0


def coverage_table(reached):
    """The table of folders: lines, reached lines, lines of decode, reached ones, lines that tests reach, too."""
    rows = ["| folder | lines | corpora reach | of those not of encode | corpora reach | corpora and tests reach |", "|---|---|---|---|---|---|"]
    for folder, (lines, ran, decode, decode_ran, tested) in reached.items():
        rows.append(f"| {folder} | {lines} | {share(ran, lines)} | {decode} | {share(decode_ran, decode)} | {share(tested, lines)} |")
    return rows


def names_of(folders):
    return ", ".join(f"`{folder}`" for folder in folders)


def share(part, of):
    return f"{100 * part / of:.1f} %" if of else "-"


def spans(lines):
    text, first = [], lines[0]
    for line, following in zip(lines, [*lines[1:], None]):
        if following != line + 1:
            text.append(str(first) if first == line else f"{first}-{line}")
            first = following
    return " ".join(text)


# ---- table ----------------------------------------------------------------------------------------------

ASKED = 8  # hours of CPU of one state, all targets
COVERED = 0.95  # of the lines of each folder


def clean_seconds(rows):
    """Seconds of CPU since the last find. (Add `why` to a line by hand if the find is not a fault of the library.)"""
    since = next((i for i, row in enumerate(reversed(rows)) if row["finds"] and "why" not in row), len(rows))
    return sum(row["cpu_seconds"] for row in rows[len(rows) - since:])


def by_commit(rows):
    """The table of commits: what each was fuzzed for, the last one first."""
    lines = ["| commit | last run | targets | executions | CPU minutes | finds that are faults |", "|---|---|---|---|---|---|"]
    for name in dict.fromkeys(row["commit"] for row in reversed(rows)):
        mine = [row for row in rows if row["commit"] == name]
        faults = sum(len(row["finds"]) for row in mine if "why" not in row)
        targets = len({row["target"] for row in mine})
        lines.append(f"| {name} | {mine[-1]['date']} | {targets} | {sum(row['executions'] for row in mine):,} | {sum(row['cpu_seconds'] for row in mine) / 60:.1f} | {faults} |")
    return lines


def remade():
    """fuzz.md, of what is kept."""
    rows = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    covered = [row for row in rows if "avx512" in row]  # (Older ones have other columns.)
    rows = [row for row in rows if "target" in row]
    lines = ["# Fuzzing", "", "Made by `./dev fuzz --table` of `fuzz.jsonl`, to which every `./dev fuzz` adds a line a target. libFuzzer of clang under ASan and UBSan;",
             "`edges` of the instrumented code that the last run reached, `corpus` its inputs then, `commit` that of the library. A find is an input that crashed, hung, leaked or broke a promise;",
             "`clean minutes` of CPU are those since the target's last find that was a fault of the library. **They are added up over commits, whose code differs**: [below](#by-commit) is how long each commit was fuzzed.", "",
             "| target | of | runs | executions | CPU minutes | clean minutes | edges | corpus | finds | commit |", "|---|---|---|---|---|---|---|---|---|---|"]
    clean = 0
    for name, what in TARGETS.items():
        mine = [row for row in rows if row["target"] == name]
        if not mine:
            lines.append(f"| {name} | {what} | 0 | | | | | | | |")
            continue
        last = mine[-1]
        clean += clean_seconds(mine)
        lines.append(f"| {name} | {what} | {len(mine)} | {sum(row['executions'] for row in mine):,} | {sum(row['cpu_seconds'] for row in mine) / 60:.1f} | "
                     f"{clean_seconds(mine) / 60:.1f} | {last['edges']} | {last['corpus']} | {sum(len(row['finds']) for row in mine)} | {last['commit']} |")
    hours = sum(row["cpu_seconds"] for row in rows) / 3600
    newest = [row for row in rows if row["commit"] == rows[-1]["commit"]] if rows else []
    minutes = sum(row["cpu_seconds"] for row in newest) / 60
    lines += ["", f"In all {sum(row['executions'] for row in rows):,} executions in {hours:.2f} hours of CPU, of {len({row['commit'] for row in rows})} states of the code: {clean / 3600:.2f} if each target counts from its own last fault, "
              f"{clean_seconds(rows) / 3600:.2f} if all count from the last fault of any. **Of one state**: the last that was fuzzed, {rows[-1]['commit'] if rows else 'none'}, has {minutes / 60:.1f} hours of CPU over {len({row['target'] for row in newest})} targets ({ASKED} hours were asked for); what changed these sources since has none.", ""]
    for row in rows:
        if row["finds"]:
            why = f" (no fault of the library: {row['why']})" if "why" in row else ""
            lines.append(f"- {row['date']}, {row['target']} at {row['commit']}: {', '.join(row['finds'])}{why}")
    lines += ["", "## By commit", "", *by_commit(rows)]
    if covered:
        last = covered[-1]
        reached = last["reached"]
        below = [[folder for folder, counts in reached.items() if counts[which] < COVERED * counts[0]] for which in (1, 4)]
        absent = [folder for folder in FOLDERS if folder not in reached]
        verdict = f"Asked: {100 * COVERED:g} % of each folder's lines. With the tests {len(reached) - len(below[1])} of {len(reached)} folders have them{f', not {names_of(below[1])}' if below[1] else ''}; by the corpora alone {len(reached) - len(below[0])}."
        lines += ["", "## Coverage", "", verdict + (f" Not counted yet: {names_of(absent)}." if absent else ""), "", f"Lines that the corpora of the tree reach, and those that tests of hostile inputs and wrong calls ({', '.join(sorted(SUITES | TESTS))}) reach beside them, at {last['commit']} ({last['date']}; what changed these sources since is not counted),",
                  "by `./dev fuzz --coverage` (clang's source-based coverage, all targets at each level of instructions that the CPU has" + ("" if last["avx512"] else ": it has no AVX-512, whose files are left out") + ").",
                  "Files that serve a device alone (`device_*`, `*_tile.hpp`, `*_cuda.cu`) are left out: tests/device and tests/cuda run them. `bindings/python`, which reads stores of patches, has tests of forged and damaged ones and no count of lines.",
                  "What a compiler evaluates (tables) and what only another thread could cause are among the lines that are not reached. Of the tool: readers of files and texts.", ""]
        lines += coverage_table(reached)
    return "\n".join(lines).rstrip() + "\n"


def table(_):
    table_file.write_text(remade(), "utf-8")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "minimise", "coverage", "table"))
    parser.add_argument("build", nargs="?", default="build-fuzz")
    parser.add_argument("--minutes", type=float, default=11, help="of all targets together, on each of the jobs (11)")
    parser.add_argument("-j", "--jobs", type=int, default=1)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    options = parser.parse_intermixed_args()
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no target {unknown[0]}; there are {', '.join(TARGETS)}")
    return {"run": run, "minimise": minimise, "coverage": coverage, "table": table}[options.what](options)


if __name__ == "__main__":
    sys.exit(main())
