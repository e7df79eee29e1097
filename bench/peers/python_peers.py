"""FastPFor's codecs, torch.topk and numpy beside DeepReduce, from Python, in turn in one run.

    DEEPREDUCE_LIBRARY=build/capi/libdeepreduce.so python bench/peers/python_peers.py [--rounds N] [--json FILE] [--quick]

Needs numpy; uses pyfastpfor (pip install pyfastpfor) and torch if they are installed, and prints it if not. CPU time of one thread. Each result is
checked before it is timed. Ours pays for Python's calls and for whole frames with their checks: see the C++ benchmark for codecs alone.
"""

import argparse
import datetime
import importlib
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bindings" / "python"))
import deepreduce  # noqa: E402

FASTPFOR = ["simdfastpfor256", "simdfastpfor128", "simdoptpfor", "simdbinarypacking", "BP32", "fastpfor256", "maskedvbyte", "streamvbyte",
            "varintg8iu", "simple8b"]


def optional(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def alternate(runs, rounds):
    """{name: milliseconds} of each function, called in turn; a call that is short is repeated to take 2 ms."""
    calls = {}
    for name, run in runs.items():
        run()
        begin = time.thread_time()
        run()
        calls[name] = max(1, int(2e-3 / max(time.thread_time() - begin, 1e-9)))
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            begin = time.thread_time()
            for _ in range(calls[name]):
                run()
            times[name].append(1e3 * (time.thread_time() - begin) / calls[name])
    low_median_high = {name: [float(f"{x:.5g}") for x in np.percentile(t, [25, 50, 75])] for name, t in times.items()}
    return {name: dict(zip(("low", "median", "high"), q)) for name, q in low_median_high.items()}


def row(task, what, of, **facts):
    return {"task": task, "what": what, "of": of, **facts}


def codecs(rows, d, r, rounds):
    """Sorted index sets, delta and all, as FastPFor's users have it: a copy, a pass of deltas, the codec."""
    task = f"indices, d = {d:,}, r = {r:,}"
    x = np.sort(np.random.Generator(np.random.PCG64(1)).choice(d, r, replace=False)).astype(np.uint32)
    out = np.empty_like(x)
    made, runs = [row(task, "memcpy", "numpy", bits=32.0)], {}
    runs["memcpy", "encode_ms"] = runs["memcpy", "decode_ms"] = lambda: np.copyto(out, x)
    fastpfor = optional("pyfastpfor")
    if fastpfor is None:
        made.append(row(task, "FastPFor's codecs", "pyfastpfor", missing="pip install pyfastpfor"))
    else:
        for name in FASTPFOR:
            codec = fastpfor.getCodec(name)
            words, gaps = np.zeros(2 * r + 1024, np.uint32), np.empty(r, np.uint32)

            def encode(codec=codec, gaps=gaps, words=words):
                np.copyto(gaps, x)
                fastpfor.delta1(gaps, r)
                return codec.encodeArray(gaps, r, words, words.size)

            size = encode()

            def decode(codec=codec, gaps=gaps, words=words, size=size):
                codec.decodeArray(words, size, gaps, r)
                fastpfor.prefixSum1(gaps, r)

            gaps[:] = 0
            decode()
            assert np.array_equal(gaps, x), name
            made.append(row(task, f"FastPFor {name}, delta", "pyfastpfor", bits=round(32 * size / r, 3)))
            runs[f"FastPFor {name}, delta", "encode_ms"], runs[f"FastPFor {name}, delta", "decode_ms"] = encode, decode
    plan, sparse = "index=golomb value=raw", deepreduce.Sparse(x, np.zeros(r, np.float32), (d,))
    frame = deepreduce.encode(sparse, plan)
    assert np.array_equal(deepreduce.decode(frame, sparse=True).indices, x)
    made.append(row(task, f"a frame of {plan}; bits of the indices", "deepreduce", bits=round(8 * deepreduce.inspect(frame).tensors[0].index_size / r, 3)))
    runs[made[-1]["what"], "encode_ms"] = lambda: deepreduce.encode(sparse, plan)
    runs[made[-1]["what"], "decode_ms"] = lambda: deepreduce.decode(frame, sparse=True)
    times = alternate(runs, rounds)
    for facts in made:
        for way in ("encode_ms", "decode_ms"):
            if (facts["what"], way) in times:
                facts[way] = times[facts["what"], way]
    rows += made


def selection(rows, d, ratio, rounds):
    """The r largest magnitudes of d, as positions that ascend and their values."""
    r = int(ratio * d)
    task = f"Top-r, d = {d:,}, r = {r:,}"
    random = np.random.Generator(np.random.PCG64(1))
    g = (random.exponential(size=d) * random.choice([-1.0, 1.0], d)).astype(np.float32)
    copy = np.empty_like(g)
    expected = np.sort(np.argpartition(np.abs(g), d - r)[d - r :])
    made = [row(task, "memcpy of the gradient", "numpy"), row(task, "argpartition", "numpy")]
    runs = {"memcpy of the gradient": lambda: np.copyto(copy, g)}

    def by_numpy():
        positions = np.argpartition(np.abs(g), d - r)[d - r :]
        positions.sort()
        return positions, g[positions]

    runs["argpartition"] = by_numpy
    torch = optional("torch")
    if torch is None:
        made.append(row(task, "topk, then sort", "torch", missing="pip install torch"))
    else:
        torch.set_num_threads(1)
        tensor = torch.from_numpy(g)

        def by_torch():
            positions = torch.topk(tensor.abs(), r, sorted=False).indices.sort().values
            return positions, tensor[positions]

        made.append(row(task, "topk, then sort", f"torch {torch.__version__}"))
        assert np.array_equal(by_torch()[0].numpy(), expected)
        runs["topk, then sort"] = by_torch
    plan = f"sparsify=topr(count={r}) index=raw value=raw"
    assert np.array_equal(deepreduce.decode(deepreduce.encode(g, plan), sparse=True).indices, expected)
    made.append(row(task, f"a frame of {plan}", "deepreduce"))
    runs[made[-1]["what"]] = lambda: deepreduce.encode(g, plan)
    times = alternate(runs, rounds)
    for facts in made:
        if facts["what"] in times:
            facts["encode_ms"] = times[facts["what"]]
    rows += made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="small sets, to see that it works")
    arguments = parser.parse_args()
    scale = 100 if arguments.quick else 1
    rows = []
    for ratio in (0.001, 0.01, 0.1):
        codecs(rows, 25_000_000 // scale, int(25_000_000 * ratio) // scale, arguments.rounds)
    for ratio in (0.001, 0.01, 0.1):
        selection(rows, 25_000_000 // scale, ratio, arguments.rounds)
    for r in rows:
        ways = [f"{w[:-3]} {r[w]['median']:.3g} ms" for w in ("encode_ms", "decode_ms") if w in r]
        print(f"{r['task']:<36} {r['what']:<58} {r.get('missing', '')} {r.get('bits', '')} {', '.join(ways)}")
    if arguments.json:
        commit = os.environ.get("DR_COMMIT") or subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
        cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
        head = {"date": datetime.date.today().isoformat(), "commit": commit, "cpu": cpu, "rounds": arguments.rounds}
        lines = ",\n  ".join(json.dumps(r) for r in rows)
        arguments.json.write_text(json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
