"""Weights without loss: value=planes beside ZipNN, OpenZL and Zstandard, from Python, in turn in one run.

    DEEPREDUCE_LIBRARY=build/capi/libdeepreduce.so python bench/peers/weights_peers.py [--rounds N] [--megabytes N] [--json FILE]

Wants numpy and torch; takes zipnn, openzl and zstandard if they are there, and says so if not. One thread each; CPU time of the process, for ZipNN decodes on a thread of its own. Normally distributed
weights, standard deviation 0.02. Each result is checked before it is timed. Ours pays for whole frames with their checks.
"""

import argparse
import importlib
import json
import pathlib
import platform
import sys
import time

import numpy as np
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bindings" / "python"))
import deepreduce  # noqa: E402

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
    """{name: seconds of each call}: called in turn, after a warm-up."""
    times = {name: [] for name in runs}
    for turn in range(-1, rounds):
        for name, run in runs.items():
            getattr(run, "prepare", lambda: None)()
            begin = time.process_time()
            run()
            if turn >= 0:
                times[name].append(time.process_time() - begin)
    return times


def compare(dtype, megabytes, rounds):
    size = torch.empty(0, dtype=dtype).element_size()
    x = (torch.randn(megabytes * 2**20 // size, generator=torch.Generator().manual_seed(1)) * 0.02).to(dtype)
    raw, rows, runs = x.numel() * size, [], {}
    for name, (package, peer) in PEERS.items():
        if optional(package) is None:
            rows.append({"what": name, "missing": f"pip install {package}"})
            continue
        coded, encode, decode, got = peer(x)
        decode()
        assert np.array_equal(got(), bytes_of(x)), name
        rows.append({"what": name, "dtype": str(dtype).removeprefix("torch."), "share": round(coded / raw, 5)})
        runs[name, "encode"], runs[name, "decode"] = encode, decode
    copy = np.empty(raw, np.uint8)
    runs["memcpy", "encode"] = lambda: np.copyto(copy, bytes_of(x))
    rows.append({"what": "memcpy", "dtype": str(dtype).removeprefix("torch."), "share": 1.0})
    times = alternate(runs, rounds)
    for row in rows:
        for way in ("encode", "decode"):
            if (row["what"], way) in times:
                low, median, high = np.percentile(raw / np.array(times[row["what"], way]) / 1e9, [25, 50, 75])
                row[way] = {"low": round(low, 3), "median": round(median, 3), "high": round(high, 3)}  # GB/s of the weights
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for dtype in (torch.bfloat16, torch.float32) for row in compare(dtype, options.megabytes, options.rounds)]
    for row in rows:
        speeds = "  ".join(f"{way} {row[way]['median']:6.2f} ({row[way]['low']:.2f} to {row[way]['high']:.2f})" for way in ("encode", "decode") if way in row)
        print(f"{row['what']:<16} {row.get('dtype', ''):<9} {row.get('missing', '')}{row.get('share', '')!s:<8} GB/s: {speeds}")
    if options.json:
        options.json.write_text(json.dumps({"machine": platform.processor() or platform.machine(), "numpy": np.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
