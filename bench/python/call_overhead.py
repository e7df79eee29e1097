"""What a call costs beside the library's own time: the functions, a Batch, and a Batch that is bound to its arrays.

    DEEPREDUCE_LIBRARY=build/capi/libdeepreduce.so python bench/python/call_overhead.py [--rounds N] [--json FILE] [--quick]

CPU time of one thread, in microseconds a call. In each round all ways are called in turn, so that a slow phase of the
machine falls on all of them; a row has the median of the rounds and the quartiles. Every frame and every result is
compared before it is timed.

  total   the call, as a caller writes it
  c       the library's own time: dr_binding_encode (_decode, _merge), called through ctypes with arguments that were
          made once, less the crossing: the same function with NULL for the binding, which is refused at once
  own     total - c of the same round. So it is all that Python adds to the bound call: its own code, ctypes' crossing,
          and for the ways that are not bound the library's reading of tensors and outputs, which a binding has behind
          it. It is a difference: beside a c of 100 and more it is as inexact as c, and may be below zero
"""

import argparse
import ctypes
import datetime
import json
import pathlib
import platform
import subprocess
import sys
import time

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is missing: pip install numpy")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bindings" / "python"))
import deepreduce  # noqa: E402

PLAN = "sparsify=topr(ratio=0.01) index=golomb value=qsgd"
# ResNet-20 for CIFAR: three stages of six convolutions and their two batch norms each, the first layer, the last one.
RESNET20 = (
    [432, 16, 16]
    + [2304, 16, 16] * 6
    + [4608, 32, 32]
    + [9216, 32, 32] * 5
    + [18432, 64, 64]
    + [36864, 64, 64] * 5
    + [640, 10]
)
TASKS = {
    "100 elements": [100],
    "1,000 elements": [1000],
    "10,000 elements": [10000],
    "ResNet-20, 59 tensors, 269,722 elements": RESNET20,
    "161 tensors of 1,000 elements": [1000] * 161,
}
MERGED = 4


def ways_of(sizes):
    """{(what, way): function}, and {what: (kept, crossing)}; all verified."""
    rng = np.random.Generator(np.random.PCG64(1))
    x = [rng.laplace(size=n).astype(np.float32) for n in sizes]
    out = [np.empty_like(array) for array in x]
    if len(sizes) == 1:
        x, out = x[0], out[0]
    batch = deepreduce.Batch(x, PLAN, frames=MERGED)
    bound = batch.bind(x, out, frames=MERGED)
    room, weights = np.empty(batch.bound, np.uint8), [1 / MERGED] * MERGED
    frame = deepreduce.encode(x, PLAN, step=1)
    frames = [frame] * MERGED

    ways = {
        ("encode", "function"): lambda: deepreduce.encode(x, PLAN, step=1),
        ("encode", "Batch"): lambda: batch.encode(x, step=1),
        ("encode", "Bound"): lambda: bound.encode(step=1),
        ("encode", "Bound, into an array"): lambda: bound.encode(room, step=1),
        ("decode", "function"): lambda: deepreduce.decode(frame),
        ("decode", "Batch"): lambda: batch.decode(frame, out),
        ("decode", "Bound"): lambda: bound.decode(frame),
        (f"merge of {MERGED}", "function"): lambda: deepreduce.merge(frames, weights=weights),
        (f"merge of {MERGED}", "Batch"): lambda: batch.merge(frames, out, weights, add=False),
        (f"merge of {MERGED}", "Bound"): lambda: bound.merge(frames, weights, add=False),
    }
    expected = {
        "encode": frame,
        "decode": deepreduce.decode(frame),
        f"merge of {MERGED}": deepreduce.merge(frames, weights=weights),
    }
    for (what, way), run in ways.items():
        assert same(run(), expected[what]), (what, way)

    # The bound calls, by ctypes with kept arguments.
    library = ctypes.CDLL(deepreduce._native._library.load()._name)
    abi, p, size = deepreduce._native._abi, ctypes.c_void_p, ctypes.c_size_t
    call, result, options = (deepreduce._native._call.new(kind) for kind in (abi.dr_call, abi.dr_result, abi.dr_decode_options))
    call.step, call.flags = 1, abi.DR_CALL_LIST if isinstance(x, list) else 0
    listed = (abi.dr_bytes * MERGED)(*(abi.dr_bytes(at(frame), len(frame)) for _ in range(MERGED)))
    factors = (ctypes.c_float * MERGED)(*weights)
    binding = ctypes.cast(bound._handle, p).value
    alive = {}
    for what, name, types, arguments in (
        ("encode", "encode", (p, p, size, p), (ctypes.addressof(call), at(room), room.size, ctypes.addressof(result))),
        ("decode", "decode", (p, size, p, p), (at(frame), len(frame), None, None)),
        (
            f"merge of {MERGED}",
            "merge",
            (p, p, size, p, p),
            (ctypes.addressof(listed), ctypes.addressof(factors), MERGED, ctypes.addressof(options), None),
        ),
    ):
        function = ctypes.CFUNCTYPE(ctypes.c_int32, p, *types)((f"dr_binding_{name}", library))
        keep = (x, out, room, frame, call, result, options, listed, factors)
        assert function(binding, *arguments) == 0 and function(None, *arguments) == abi.DR_E_ARGUMENT
        alive[what] = tuple(
            lambda function=function, first=first, arguments=arguments, keep=keep: function(first, *arguments)
            for first in (binding, None)
        )
    assert result.size == len(frame) and room[: len(frame)].tobytes() == frame
    return ways, alive


def at(data):
    return np.frombuffer(data, np.uint8).ctypes.data


def same(a, b):
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bytes(a) == bytes(b)


def microseconds(run, calls):
    begin = time.thread_time_ns()
    for _ in range(calls):
        run()
    return (time.thread_time_ns() - begin) / calls / 1e3


def measured(ways, alive, rounds, min_us):
    """{key: [microseconds of each round]}"""
    runs = {}
    for what, (whole, crossing) in alive.items():
        runs[what, "crossing"], runs[what, "kept"] = crossing, whole
        runs.update({key: run for key, run in reversed(ways.items()) if key[0] == what})  # beside it the bound ones
    calls, times = {}, {key: [] for key in runs}
    for key, run in runs.items():
        microseconds(run, 3)
        calls[key] = max(1, int(min_us / max(microseconds(run, 3), 0.1)))
    for _ in range(rounds):
        for key, run in runs.items():
            times[key].append(microseconds(run, calls[key]))
    return times


def quartiles(samples):
    return dict(zip(("low", "median", "high"), (float(f"{q:.4g}") for q in np.percentile(samples, [25, 50, 75]))))


def cpu():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def commit():
    answer = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True
    )
    return answer.stdout.strip() or "unversioned"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="a few calls each: whether it still runs")
    options = parser.parse_args()
    rounds, min_us = (2, 100) if options.quick else (options.rounds, 4000)
    rows = []
    print(f"{'':44}{'':14}{'':22}{'total µs':>22}{'own µs':>22}{'C µs':>8}")
    for task, sizes in TASKS.items():
        ways, alive = ways_of(sizes)
        times = measured(ways, alive, rounds, min_us)
        for what, way in ways:
            c = np.subtract(times[what, "kept"], times[what, "crossing"])
            row = {
                "task": task, "tensors": len(sizes), "elements": sum(sizes), "what": what, "way": way,
                "total_us": quartiles(times[what, way]), "c_us": quartiles(c), "own_us": quartiles(times[what, way] - c),
            }  # fmt: skip
            rows.append(row)
            shown = ("{median:.1f} ({low:.1f}–{high:.1f})".format(**row[key]) for key in ("total_us", "own_us"))
            print(
                f"{task:44}{what:14}{way:22}"
                + "".join(f"{name:>22}" for name in shown)
                + f"{row['c_us']['median']:>8.1f}"
            )
    if options.json:
        head = {
            "date": datetime.date.today().isoformat(), "commit": commit(), "cpu": cpu(), "python": platform.python_version(),
            "numpy": np.__version__, "library": deepreduce._native._library.load().dr_version().decode(), "clock": "CPU time of the thread",
            "plan": PLAN, "rounds": rounds,
        }  # fmt: skip
        body = ",\n  ".join(json.dumps(row) for row in rows)
        options.json.write_text(
            json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n  ' + body + "\n ]\n}\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
