#!/usr/bin/env python3
"""Compares what ptxas reports of our kernels with tests/cuda/resources.csv: registers and shared memory within budget, no new spills, no new stack.

    resources.py CSV NVCC_VERSION REPORT…            compares; with --joined first, of a fast build, which compiles several sources as one
    resources.py --update CSV NVCC_VERSION REPORT…   rewrites the file

Compilers differ: with another nvcc than the one that the file names, only what needs no budget is checked. CUB's own kernels are CUB's. Budgets are of the
architectures in ARCHITECTURES, of others nothing has been tuned or run yet: what is above the limits there is printed.
"""
import csv
import re
import subprocess
import sys
from pathlib import Path

REGISTERS_LIMIT, REGISTERS_SLACK = 128, 4
JOINED_SLACK = 16  # bytes of shared memory: alignment differs with the kernels that are compiled beside
ARCHITECTURES = ["sm_80", "sm_90"]
COLUMNS = ["kernel", "arch", "registers", "shared", "spills", "stack"]
COMPILING = re.compile(r"Compiling entry function '(\S+)' for '(sm_\d+)'")
PROPERTIES = re.compile(r"Function properties for (\S+)")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(.*)")
SHARED = re.compile(r"(\d+) bytes smem")


def parse(report):
    """(mangled, arch) -> [registers, shared, spills, stack] of the entries; what functions that they call spill is theirs."""
    kernels, key = {}, None
    for line in report.read_text().splitlines():
        if found := COMPILING.search(line):
            key = found.groups()
            kernels[key] = [0, 0, 0, 0]
        elif key and (found := FRAME.search(line)):
            stack, stores, loads = map(int, found.groups())
            kernels[key][2] += stores + loads
            kernels[key][3] += stack
        elif key and (found := USED.search(line)):
            kernels[key][0] = int(found.group(1))
            shared = SHARED.search(found.group(2))
            kernels[key][1] = int(shared.group(1)) if shared else 0
    return kernels


def readable(names):
    """void dr::entry<dr::value_raw_copy<dr::tile_args<dr::value_raw_common, 40ul> > >(…) -> value_raw_copy<tile_args<value_raw_common, 40>>"""
    names = sorted(names)
    lines = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    out = {}
    for name, text in zip(names, lines):
        if not text.startswith("void dr::entry<"):
            continue
        text = text[len("void dr::entry<"):]
        depth = 1
        for end, c in enumerate(text):  # noqa: B007 (read behind the loop)
            depth += {"<": 1, ">": -1}.get(c, 0)
            if depth == 0:
                break
        text = text[:end].strip().replace("> >", ">>").replace("> >", ">>").replace("dr::", "").replace("(anonymous namespace)::", "")
        out[name] = re.sub(r"(\d)ul?\b", r"\1", text)
    return out


def measure(reports):
    kernels = {}
    for report in reports:
        kernels.update(parse(report))
    names = readable({name for name, _ in kernels})
    return {(names[name], arch): numbers for (name, arch), numbers in kernels.items() if name in names}


def read(path):
    lines = path.read_text().splitlines()
    rows = csv.DictReader(lines[1:])
    return lines[0].removeprefix("# nvcc "), {(r["kernel"], r["arch"]): [int(r[c]) for c in COLUMNS[2:]] for r in rows}


def write(path, version, kernels):
    with path.open("w", newline="") as file:
        file.write(f"# nvcc {version}\n")
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        out.writerows([*key, *numbers] for key, numbers in sorted(kernels.items()) if key[1] in ARCHITECTURES)


def complaints(kernels, budgets, compares, shared_slack):
    for key, (registers, shared, spills, stack) in sorted(kernels.items()):
        name = " ".join(key)
        if key[1] not in ARCHITECTURES:
            continue
        if registers > REGISTERS_LIMIT:
            yield f"{name}: {registers} registers; the limit is {REGISTERS_LIMIT}"
        # None of either is the aim. What is in the file is known, and may not grow.
        _, _, spills_known, stack_known = budgets.get(key, (0, 0, 0, 0))
        if spills > spills_known:
            yield f"{name}: spills {spills} bytes; {spills_known} are known"
        if stack > stack_known:
            yield f"{name}: a stack frame of {stack} bytes (arrays with indices that are not constants?); {stack_known} are known"
        if key not in budgets:
            yield f"{name}: has no budget; resources.py --update gives it one"
        elif compares:
            registers_limit, shared_limit = budgets[key][0] + REGISTERS_SLACK, budgets[key][1] + shared_slack
            if registers > registers_limit:
                yield f"{name}: {registers} registers; its budget is {budgets[key][0]} + {REGISTERS_SLACK}"
            if shared > shared_limit:
                yield f"{name}: {shared} bytes of shared memory; its budget is {shared_limit}"
    compiled = {arch for _, arch in kernels}
    for key in sorted(key for key in budgets.keys() - kernels.keys() if key[1] in compiled):
        yield f"{' '.join(key)}: has a budget but was not compiled"


def main(args):
    update, joined = args[:1] == ["--update"], args[:1] == ["--joined"]
    path, version, *reports = args[update or joined :]
    kernels = measure(Path(r) for r in reports)
    if not kernels:
        sys.exit("no kernel in any report")
    if update:
        write(Path(path), version, kernels)
        return 0
    of, budgets = read(Path(path))
    for (name, arch), (registers, _, spills, _) in sorted(kernels.items()):
        if arch not in ARCHITECTURES and (spills or registers > REGISTERS_LIMIT):
            print(f"{name} {arch}: {registers} registers, spills {spills} bytes; nothing has run there yet")
    wrong = list(complaints(kernels, budgets, of == version, JOINED_SLACK if joined else 0))
    if wrong:
        print(*wrong, sep="\n")
        return 1
    if of != version:
        print(f"skipped: budgets are of nvcc {of}, this is {version}; there are no new spills and no new stack frames")
        return 77
    print(f"{len(kernels)} kernels, {max(k[0] for k in kernels.values())} registers at most")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
