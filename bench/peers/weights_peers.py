"""Weights without loss: value=planes beside ZipNN, OpenZL and Zstandard, from Python, in turn in one run.

    DEEPREDUCE_LIBRARY=build/capi/libdeepreduce.so python bench/peers/weights_peers.py [--rounds N] [--megabytes N] [--level avx2] [--json FILE]

Needs numpy and torch; uses zipnn, openzl and zstandard if they are installed, and prints it if not. One thread each; CPU time of the process, for ZipNN decodes on a thread of its own; and its user time alone, for
the others have new memory for each result, whose pages the kernel clears. Normally distributed weights, standard deviation 0.02, and the recorded ones of datasets/weights. Each result is checked before it is
timed. Ours pays for whole frames with their checks. FILE gets the run under the name of its level, beside those of others: bench/results/weights_page.py makes a page of it.
"""

import argparse
import datetime
import importlib
import json
import os
import pathlib
import platform
import resource
import subprocess
import sys

if "--level" in sys.argv[:-1]:  # before the library asks
    os.environ["DEEPREDUCE_CPU"] = sys.argv[sys.argv.index("--level") + 1]
import numpy as np
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bindings" / "python"))
import deepreduce  # noqa: E402
from deepreduce._native import _abi, _library  # noqa: E402

LEVELS = ("unknown", "scalar", "avx2", "avx512")
PLAN = deepreduce.Plan("sparsify=none index=all value=planes")


def optional(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def bytes_of(tensor):
    return tensor.contiguous().view(torch.uint8).numpy()


def ours(x):
    room = np.empty(x.numel() * x.element_size() + 65536, np.uint8)
    back = torch.empty_like(x)
    frame = deepreduce.encode(x, PLAN, out=room)
    return len(frame), lambda: deepreduce.encode(x, PLAN, out=room), lambda: deepreduce.decode(frame, out=back), lambda: bytes_of(back)


def zipnn(x):
    name = {torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float16: "float16"}[x.dtype]
    codec = importlib.import_module("zipnn").ZipNN(input_format="byte", bytearray_dtype=name, threads=1)
    # It overwrites what it is given, even bytes: each call has a copy, made before the clock starts.
    raw, copies, last = bytes_of(x), [], []

    def encode():
        return codec.compress(copies.pop())

    encode.prepare = lambda: copies.append(bytearray(raw))
    encode.prepare()
    coded = bytes(encode())

    def decode():
        last[:] = [codec.decompress(coded)]

    return len(coded), encode, decode, lambda: np.frombuffer(last[0], np.uint8)


def zstandard(x):
    module = importlib.import_module("zstandard")
    raw, last = bytes_of(x).tobytes(), []
    coder, reader = module.ZstdCompressor(level=3), module.ZstdDecompressor()
    coded = coder.compress(raw)

    def decode():
        last[:] = [reader.decompress(coded)]

    return len(coded), lambda: coder.compress(raw), decode, lambda: np.frombuffer(last[0], np.uint8)


def openzl(entropy):
    def peer(x):
        zl = importlib.import_module("openzl.ext")
        node = {torch.bfloat16: zl.nodes.BFloat16Deconstruct, torch.float32: zl.nodes.Float32Deconstruct}[x.dtype]()
        words = bytes_of(x).view({2: np.uint16, 4: np.uint32}[x.element_size()])
        compressor, last = zl.Compressor(), []
        compressor.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
        compressor.select_starting_graph(node(compressor, sign_frac=zl.graphs.Store(), exponent=getattr(zl.graphs, entropy)()))
        source = [zl.Input(zl.Type.Numeric, words)]

        def encode():
            context = zl.CCtx()
            context.ref_compressor(compressor)
            return context.compress(source)

        coded = encode()

        def decode():
            last[:] = zl.DCtx().decompress(coded)

        return len(coded), encode, decode, lambda: np.ascontiguousarray(np.asarray(last[0].content.as_nparray())).view(np.uint8)

    return peer


# Name: the package, and what it does.
PEERS = {"deepreduce": ("deepreduce", ours), "zipnn": ("zipnn", zipnn), "openzl, FSE": ("openzl", openzl("Fse")),
         "openzl, Huffman": ("openzl", openzl("Huffman")), "zstandard -3": ("zstandard", zstandard)}


def alternate(runs, rounds):
    """{name: (seconds of CPU, of these the user's) of each call}: called in turn, after a warm-up."""
    times = {name: [] for name in runs}
    for turn in range(-1, rounds):
        for name, run in runs.items():
            getattr(run, "prepare", lambda: None)()
            begin = resource.getrusage(resource.RUSAGE_SELF)
            run()
            end = resource.getrusage(resource.RUSAGE_SELF)
            user = end.ru_utime - begin.ru_utime
            if turn >= 0:
                times[name].append((user + end.ru_stime - begin.ru_stime, user))
    return times


def normal(dtype, megabytes):
    size = torch.empty(0, dtype=dtype).element_size()
    return (torch.randn(megabytes * 2**20 // size, generator=torch.Generator().manual_seed(1)) * 0.02).to(dtype)


def recorded(name):
    """The base of a recording, bf16."""
    with np.load(ROOT / "datasets" / "weights" / f"{name}.npz") as arrays:
        turned = arrays["base.high"].astype(np.uint16) << 8 | arrays["base.low"]
    return torch.from_numpy((turned >> 1 | turned << 15).view(np.int16)).view(torch.bfloat16)


def compare(weights, x, rounds):
    """Rows of the tensor x, which is called `weights`."""
    dtype, raw, rows, runs = str(x.dtype).removeprefix("torch."), x.numel() * x.element_size(), [], {}
    repeat = max(1, 2**24 // raw)  # of small ones, so that the clock's ticks are nothing beside them
    for name, (package, peer) in PEERS.items():
        if optional(package) is None:
            rows.append({"what": name, "weights": weights, "missing": f"pip install {package}"})
            continue
        coded, encode, decode, got = peer(x)
        decode()
        assert np.array_equal(got(), bytes_of(x)), name
        rows.append({"what": name, "weights": weights, "dtype": dtype, "bytes": raw, "share": round(coded / raw, 5)})
        runs[name, "encode"], runs[name, "decode"] = encode, decode
    copy = np.empty(raw, np.uint8)
    runs["memcpy", "encode"] = lambda: np.copyto(copy, bytes_of(x))
    rows.append({"what": "memcpy", "weights": weights, "dtype": dtype, "bytes": raw, "share": 1.0})
    times = alternate({name: repeated(run, repeat) for name, run in runs.items()}, rounds)
    for row in rows:
        for way in ("encode", "decode"):
            if (row["what"], way) not in times:
                continue
            for key, k in ((way, 0), (f"{way}_user", 1)):
                low, median, high = np.percentile(raw * repeat / np.maximum(np.array(times[row["what"], way])[:, k], 1e-9) / 1e9, [25, 50, 75])
                row[key] = {"low": round(low, 3), "median": round(median, 3), "high": round(high, 3)}  # GB/s of the weights
    return rows


def repeated(run, times):
    prepare = getattr(run, "prepare", None)

    def all_of_them():
        for _ in range(times):
            run()

    if prepare:
        all_of_them.prepare = lambda: [prepare() for _ in range(times)]
    return all_of_them


def machine():
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    return {
        "date": datetime.date.today().isoformat(),
        "commit": os.environ.get("DR_COMMIT") or subprocess.run(git, capture_output=True, text=True).stdout.strip(),
        "cpu": next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine()),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--level", choices=("scalar", "avx2", "avx512"), help="of our instructions, at most; others have what they detect")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    made = {**machine(), "rounds": options.rounds, "level": LEVELS[_library.load().dr_feature(_abi.DR_FEATURE_CPU)]}
    inputs = {"normal bf16": normal(torch.bfloat16, options.megabytes), "normal f32": normal(torch.float32, options.megabytes), "recorded GPT, bf16": recorded("gpt")}
    made["rows"] = [row for name, x in inputs.items() for row in compare(name, x, options.rounds)]
    for row in made["rows"]:
        speeds = "  ".join(f"{way} {row[way]['median']:6.2f} ({row[way]['low']:.2f} to {row[way]['high']:.2f}; user {row[way + '_user']['median']:.2f})" for way in ("encode", "decode") if way in row)
        print(f"{row['what']:<16} {row['weights']:<18} {row.get('missing', '')}{row.get('share', '')!s:<8} GB/s: {speeds}")
    if options.json:
        runs = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(json.dumps({**runs, made["level"]: made}, indent=1) + "\n")


if __name__ == "__main__":
    main()
