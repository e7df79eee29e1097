#!/usr/bin/env python3
"""Makes the seeds of the fuzz targets, corpus/TARGET.seeds.pack (pack.py): of fuzz_decode and fuzz_merge from the golden frames, of the others
written here. An input that crashed becomes a seed here, too. corpus/TARGET.pack is what fuzzing.py found.

    make_corpus.py            writes
    make_corpus.py --check    compares with what is there (a test does)
    make_corpus.py --list     target, number and name of each seed: a replay prints the number of the one that fails
"""
import json
import random
import re
import struct
import sys
import zlib
from pathlib import Path

import pack

here = Path(__file__).parent
golden = here.parent / "golden"
seed_max = 160  # bytes: short seeds mutate better, and the golden frames are replayed anyway

PLANS = """
sparsify=topr(ratio=0.01) index=golomb value=qsgd(levels=127)
sparsify=topr(count=3) feedback=residual(beta=0.9,gamma=-1e-3) index=rice(block=9) value=fit_poly(degree=2) order=bitpack+deflate
sparsify=threshold(value=1e-3,max_ratio=0.5) index=bloom(policy=p0,fpr=1e-3,seed=4294967295,max_ratio=0.9) value=raw
sparsify=none index=bloom(policy=leftmost,fpr=0.3)+deflate(level=9) value=raw+deflate+deflate+deflate+deflate
index=bloom(policy=naive,fpr=0.1) value=qsgd(levels=1,bucket=1)
index=golomb value=fit_poly regather=off bucket=flat
index=raw value=fit_poly feedback=none regather=on bucket=none order=bitpack
value=raw
index=auto value=auto(error=0.01)
sparsify=dgc(ratio=0.01) index=golomb(adaptive=1) value=uniform_quant(error=0.02)
sparsify=random(ratio=0.01) index=bloom(policy=p2,bits=12,layout=split_block) value=lloyd(levels=4)
index=delta_varint+huffman value=sketch(buckets=64)+huffman
index=seeded(count=5) value=fit_dexp(sign=order) order=bitpack+zstd(level=19)
sparsify=blocks(ratio=0.5,block=4) index=golomb+zstd value=fit_poly
sparsify=blocks(count=3) feedback=residual index=auto value=auto(error=0.1) bucket=flat

sparsify=topr
index=raw index=raw
index = raw
index=raw(x=1,x=2)
value=qsgd(levels=+1.27e2)
value=qsgd(levels=0x7f)
sparsify=threshold(value=1e999)
sparsify=topr(ratio=-0)
transform=lowrank(rank=2) feedback=residual(beta=0.5)
sparsify=adaq(ratio=0.5) feedback=dgc(momentum=0.5,clip=2) index=golomb value=sign(scale=means)
index=all value=sign feedback=momentum merge=vote
index=all value=ternary+huffman feedback=efsignsgd(lr=0.1)
index=all value=natural feedback=dgc(masking=off)
transform=lowrank(rank=2) merge=vote
index=all value=inceptionn(error=0.01) bucket=flat
sparsify=changed index=auto value=ulp
sparsify=changed index=magnitude+huffman value=auto(error=0)
index=magnitude value=xor
sparsify=changed index=history value=history
sparsify=chunks(size=64,count=4) feedback=residual index=chunks(size=64) value=lloyd(levels=4)
sparsify=visible(type=f16,rate=0.5) feedback=residual index=golomb value=half
""".split("\n")[1:-1]

VALUES = struct.pack("<9f", 1.0, -2.5, 0.0, -0.0, 1e-42, 3e38, 0.125, 0.125, -1e-3)


def decode_seeds():
    """One short frame of each kind: of the same codecs, form and outcome the shortest."""
    kinds = {}
    for table in ("manifest.tsv", "patches.tsv"):
        for line in (golden / table).read_text().splitlines():
            name, status, noticed, *_ = line.split("\t") if not line.startswith("#") else ("", "", "")
            if not name or name.startswith("encode_"):
                continue
            data = (golden / "frames" / f"{name}.frame").read_bytes()
            if table == "patches.tsv" and len(data) <= 2 * seed_max and status == "OK":
                kinds[name,] = [(len(data), name, data)]  # each is of its own
                continue
            if len(data) > seed_max or (noticed == "inspect" and not name.startswith(("plan_", "status_", "width_", "bloom_bomb", "bloom_64_", "bloom_none", "block_"))):
                continue  # the checks are put right anyway, and most header faults are a mutation away
            kinds.setdefault((data[3], data[16:32] if data[3] & 1 else data[12:48]), []).append((len(data), name, data))
    return {name: data for _, name, data in (min(kind) for kind in kinds.values())}


def plan_seeds():
    return {f"plan_{i:02}": text.encode() + (b"\0" + VALUES if i % 2 == 0 else b"") for i, text in enumerate(PLANS)}


def merge_seeds():
    """Options, then the frame of a seed twice; and two frames that do not go together."""
    frames = {name: struct.pack("<H", len(data)) + data for name, data in decode_seeds().items() if not name.startswith("patch_")}
    names = sorted(frames)[::4]
    seeds = {name: bytes([0x40 | i * 7 % 64, i * 16 % 256]) + 2 * frames[name] for i, name in enumerate(names)}
    return seeds | {"two_kinds": bytes([4, 0]) + frames[names[0]] + frames[names[-1]]}


def script_seeds(name, count, size):
    """Random decisions, the same on every machine."""
    return {f"script_{i:02}": random.Random(f"{name} {i}").randbytes(size) for i in range(count)}


# Those that fuzz_codec takes: in the order of their registration, without block, which has no payload of its own.
CODECS = [
    name
    for name in re.findall(r"&(\w+)_codec\b", (here.parents[1] / "codecs" / "builtin.cpp").read_text())
    if name != "block"
]


def payload_seeds():
    """Payloads that a codec's decode refuses at a place that damage seldom reaches: codec, how many elements, fields, payload."""
    one, infinite, whole = struct.pack("<f", 1), struct.pack("<f", float("inf")), struct.pack("<I", 9)
    payloads = {
        "sketch_mean": ("sketch", 9, b"", b"\0" + infinite + bytes(9)),
        "sketch_code": ("sketch", 9, b"", b"\0" + one + bytes(8) + b"\1"),
        "fit_poly_no_piece": ("fit_poly", 9, bytes([1, 1, 0]), whole),
        "fit_poly_piece": ("fit_poly", 9, bytes([1, 1, 0]), whole + b"\2\x80"),
        "fit_poly_piece_zero": ("fit_poly", 9, bytes([1, 1, 0]), whole + b"\2\0"),
        "fit_poly_padding": ("fit_poly", 9, bytes([1, 1, 1]), b"\1" + 2 * one + b"\0\x80"),
        "uniform_quant_base": ("uniform_quant", 9, b"", b"\1" + infinite + one + bytes(2)),
        "uniform_quant_padding": ("uniform_quant", 9, b"", b"\1" + one + one + b"\0\x80"),
        "uniform_quant_block": ("uniform_quant", 9, b"", b"\1" + one + one + bytes(2)),
        "uniform_quant_raw": ("uniform_quant", 9, b"", b"\1" + one + one + bytes(2) + b"\0" + 8 * one + infinite),
        "sign_means_and_level": ("sign", 9, b"\1" + whole, bytes(6)),
        "sign_mean": ("sign", 9, b"\1" + struct.pack("<I", 0x3f7fffff), infinite + bytes(2)),
        "inceptionn_padding": ("inceptionn", 9, b"\x09", b"\0\0\xf0"),
        "inceptionn_raw": ("inceptionn", 9, b"\x09", b"\3\0\0" + infinite),
        "elias_fano_last": ("elias_fano", 9, struct.pack("<I", 9), b"\xff\0\0\0\x80"),
        # (Of 9 elements, or of 9 of 16.)
        "chunks_named": ("index_chunks", 9, struct.pack("<I", 4), b"\2\2\0\4\0\4\0"),
        "chunks_empty": ("index_chunks", 9, struct.pack("<I", 4), b"\0\3\0\3\0\3\0\3" + bytes(9)),
        "chunks_far": ("index_chunks", 9, struct.pack("<I", 32768), b"\x09\0" + bytes(40)),
        # (Of 9 words of f32.)
        "planes_mode": ("planes", 9, b"", b"\0\0\0\3" + bytes(36)),
        "planes_constant": ("planes", 9, b"", b"\2\0\0\2" + bytes(18) + b"\5"),
        "planes_names": ("planes", 9, b"", b"\0\0\0\1" + bytes(27) + b"\1\x80\x1c\x80\x7f\4\0\0\0\0\0\1\0"),
        "planes_frequency": ("planes", 9, b"", b"\0\0\0\1" + bytes(27) + b"\1\0\x7f\x80\4\0\0\0\0\0\1\0"),
        "planes_string": ("planes", 9, b"", b"\0\0\0\1" + bytes(27) + b"\1\x80\x1c\x7f\x80\5\0\0\0\0\0\1\0"),
        "planes_state": ("planes", 9, b"", b"\0\0\0\1" + bytes(27) + b"\1\x80\x1c\x7f\x80\4\0\0\0\1\0\1\0"),
        # (Of 5000 bytes, zeros and ones: eight streams of 79 bytes.)
        "huffman_no_sizes": ("huffman", 5000, b"", b"\x91\x4e\1\x0e" + bytes(3)),
        "huffman_long_stream": ("huffman", 5000, b"", b"\x91\x4e\1\x0e" + struct.pack("<8H", 79, 65535, 79, 79, 79, 79, 79, 79) + bytes(90)),
        "huffman_padding": ("huffman", 5000, b"", b"\x91\x4e\1\x0e" + struct.pack("<8H", *[79] * 8) + bytes(78) + b"\2" + bytes(7 * 79)),
    }  # fmt: skip
    seeds = {}
    for name, (codec, count, fields, payload) in payloads.items():
        of_index = CODECS.index(codec) < CODECS.index("value_raw")
        universe = b"" if of_index or CODECS.index(codec) >= CODECS.index("bitpack") else struct.pack("<I", 100)  # an index codec's stand where others have fields
        seeds[f"payload_{name}"] = bytes([CODECS.index(codec), 0]) + struct.pack("<H", count - 1) + universe + fields + payload
    return seeds


def codec_seeds():
    """For each of the codecs: an encode, and a payload."""
    seeds = payload_seeds()
    for codec in range(len(CODECS)):
        draws = random.Random(f"codec {codec}")
        # An encode (bit 0) of a few elements and of many, whose wide loops run; of each type; a payload of any bytes.
        for mode, count in ((0, 40), (8, 300), (1, 40), (1, 700), (9, 300), (9, 3000), (3, 1500), (5, 90)):
            head = bytes([codec, mode, count & 255, count >> 8])
            seeds[f"codec_{codec:02}_{mode}_{count}"] = head + draws.randbytes(12) + bytes(draws.randrange(64) for _ in range(160))
    return seeds


# Two ranks that gather, one of them hostile: its frame as it is, then what becomes of its verdict: a byte of its code, or of whom it blames.
EXCHANGES = {
    "undisturbed": bytes([0, 0, 0, 0, 40, 1]),
    "verdict_pending": bytes([0, 0, 0, 0, 40, 1, 0, 8, 32, 10]),
    "verdict_unknown": bytes([0, 0, 0, 0, 40, 1, 0, 8, 33, 1]),
    "verdict_of_nobody": bytes([0, 0, 0, 0, 40, 1, 0, 9, 32, 8, 36, 9]),
}


def sender_seeds():
    """For each method one tensor of it, f32 and a half type, on the CPU and on a device, undisturbed and with orders; then several tensors of any kind."""
    seeds = {}
    for method in range(15):
        for where, shape in (("cpu", 0), ("device", 6)):
            for flags in (0, 64 if method in (2, 3) else 16 if method == 8 else 8 if not shape else 2):  # halves, shards, skip, f32
                for kind in (0, 1):
                    head = bytes([shape, flags, 0, method, kind, 9, 40, 1])
                    orders = random.Random(f"sender {method} {where} {flags} {kind}").randbytes(40)
                    seeds |= {f"{where}_{method:02}_{flags}_{kind}": head, f"{where}_{method:02}_{flags}_{kind}_orders": head + b"\0" + orders}
    for i, (method, shape, flags, orders) in enumerate([(0, 0, 0, b""), (11, 8, 8, b""), (0, 1, 8, b"\1\0\0\0\200\177"), (2, 0, 2, b"")]):  # sparse rows
        seeds[f"rows_{i}"] = bytes([shape, flags, 0, 225 + method, 1, 20, 3, 1]) + orders
    return seeds | script_seeds("sender", 40, 120)


# Options of a controller, its ladder, and what ranks measure and send.
CONTROLS = [
    "aimd(target_ms=20)", "aimd(target_ms=0.01,interval=2,window=2,increase=1,decrease=0.9,patience=1,retry=2)", "fit(target_ms=5,samples=3,patience=1,retry=1)",
    "control=fit(target_ms=1e-3,band=0,start=2,share=0.5,agree=mean)", "fit(target_ms=1e9,agree=max,densest=1,smallest=2)", "aimd(target_ms=3,share=0)",
]  # fmt: skip


def control_seeds():
    seeds = {}
    for i, options in enumerate(CONTROLS):
        known = i % 2
        ladder = b"".join(bytes([8 * k]) + b"\xff" * (8 if k else 0) for k in (3, 2, 1, 0)) if known else b""
        history = random.Random(options).randbytes(240)
        seeds[f"control_{i}"] = options.encode() + b"\0" + bytes([4, known]) + ladder + history
    return seeds


# ---- files of arrays ------------------------------------------------------------------------------------

FLOATS = struct.pack("<6f", 0, 1, -2.5, 1e-3, float("inf"), float("nan"))


def npy(descr, shape, data, version=1, fortran=False):
    header = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2 if version == 1 else 4, "little") + header + data


NPY = {
    "f4": npy("<f4", "(2, 3)", FLOATS),
    "f8": npy("<f8", "(3,)", FLOATS),
    "f2": npy("<f2", "(12,)", FLOATS, 2),
    "big": npy(">f4", "(2, 3)", FLOATS),
    "fortran": npy("<f4", "(2, 1, 3)", FLOATS, fortran=True),
    "both": npy(">f8", "(3, 1)", FLOATS, fortran=True),
    "bf16": npy("<V2", "(2, 6, 1)", FLOATS, 3),
    "scalar": npy("<f4", "()", FLOATS[:4]),
    "empty": npy("<f4", "(0, 7)", b""),
    "long": npy("<f4", "(6L,)", FLOATS),
    "i8": npy("<i8", "(3,)", FLOATS),
    "object": npy("|O", "(3,)", FLOATS),
    "fields": b"\x93NUMPY\1\0\x4a\0{'descr': [('a', '<f4')], 'fortran_order': True, 'shape': (1, 2), }\n" + FLOATS,
}


def member(name, content, deflated=False, extra=b"", flags=0):
    packed = content
    if deflated:  # one block, stored: the bytes do not depend on a version of zlib
        packed = b"\1" + struct.pack("<HH", len(content), len(content) ^ 0xFFFF) + content
    return name.encode(), packed, zlib.crc32(content), len(content), 8 if deflated else 0, extra, flags


def archive(*members, zip64=False, comment=b""):
    body, directory = b"", b""
    for name, packed, crc, size, method, extra, flags in members:
        head = struct.pack("<HHHHHIIIHH", 20, flags, method, 0, 33, crc, len(packed), size, len(name), len(extra))
        directory += b"PK\1\2" + struct.pack("<H", 20) + head + struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + name + extra
        body += b"PK\3\4" + head + name + extra + packed
    n, at = len(members), len(body)
    end = b""
    if zip64:
        end = b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, n, n, len(directory), at)
        end += b"PK\6\7" + struct.pack("<IQI", 0, at + len(directory), 1)
    return body + directory + end + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, n, n, len(directory), at, len(comment)) + comment


def scipy(form, **arrays):
    """A file as scipy.sparse.save_npz writes it, for a matrix of 2 × 3 with four entries."""
    values = {name: npy("<i4", f"({len(ints)},)", struct.pack(f"<{len(ints)}i", *ints)) for name, ints in arrays.items()}
    values |= {"format": npy(f"|S{len(form)}", "()", form.encode()), "shape": npy("<i8", "(2,)", struct.pack("<qq", 2, 3)), "data": npy("<f4", "(4,)", FLOATS[:16])}
    return archive(*(member(name + ".npy", content) for name, content in values.items()))


def coordinates(shape, indices, values, dimensions=1, descr="<f4", stem="g."):
    """Arrays NAME.indices [k, r], NAME.values [r, …], NAME.shape."""
    entries = len(indices) // dimensions
    data = struct.pack(f"<{len(values)}{'d' if descr == '<f8' else 'f'}", *values)
    of_indices = f"({dimensions}, {entries})" if dimensions > 1 else f"({entries},)"
    arrays = {"indices": npy("<i8", of_indices, struct.pack(f"<{len(indices)}q", *indices)), "values": npy(descr, f"({entries}, {len(values) // entries})", data),
              "shape": npy("<i8", f"({len(shape)},)", struct.pack(f"<{len(shape)}q", *shape))}  # fmt: skip
    return archive(*(member(f"{stem}{name}.npy", content) for name, content in arrays.items()))


NPZ = {
    "rows": coordinates([9, 2], [5, 1], [1, 2, 3, 4]),
    "cells": coordinates([3, 4, 1], [0, 2, 1, 3], [1e-3, 2], 2, stem=""),
    "doubles": coordinates([9, 1], [5, 1, 5], [1, 2, 3.1], descr="<f8"),
    "outside": coordinates([9, 1], [5, 9], [1, 2]),
    "negative": coordinates([9, 1], [5, -1], [1, 2]),
    "huge": coordinates([2**33, 1], [5, 1], [1, 2]),
    "other_shape": coordinates([9, 3], [5, 1], [1, 2]),
    "offsets": scipy("csr", indices=[2, 0, 1, 1], indptr=[0, 3, 2]),
    "few_offsets": scipy("csr", indices=[2, 0, 1, 1], indptr=[0, 2]),
    "columns": scipy("coo", row=[0, 1, 0, 1], col=[2, 2, 0]),
    "dia": scipy("dia", offsets=[0]),
    "csr": scipy("csr", indices=[2, 0, 1, 1], indptr=[0, 2, 4]),
    "csc": scipy("csc", indices=[0, 1, 0, 1], indptr=[0, 1, 2, 4]),
    "coo": scipy("coo", row=[0, 1, 0, 1], col=[2, 2, 0, 1]),
    "stored": archive(member("a.npy", NPY["f4"])),
    "deflated": archive(member("a.npy", NPY["f4"], True), member("b.npy", NPY["f8"], True)),
    "mixed": archive(member("a.npy", NPY["i8"]), member("readme", b"hello"), member("c.npy", NPY["bf16"])),
    "zip64": archive(member("a.npy", NPY["f4"], extra=struct.pack("<HHQQ", 1, 16, 1, 1)), zip64=True),
    "comment": archive(member("a.npy", NPY["empty"]), comment=b"PK\5\6"),
    "orders": archive(member("g.indices.npy", npy(">i8", "(2, 2)", struct.pack(">4q", 0, 1, 2, 3), fortran=True)),
                      member("g.values.npy", npy(">f8", "(2, 1)", struct.pack(">2d", 1, 2), fortran=True)), member("g.shape.npy", npy("|i1", "(3,)", b"\3\4\1"))),
    "none": archive(),
}


def safetensors(header, data):
    return struct.pack("<Q", len(header)) + header.encode() + data


SAFETENSORS = {
    "two": safetensors('{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]}}', FLOATS),
    "f64": safetensors('{"a":{"dtype":"F64","shape":[3],"data_offsets":[0,24]}}', FLOATS),
    "f16": safetensors('{"a\\u00e9\\n":{"dtype":"F16","shape":[],"data_offsets":[0,2]}}', FLOATS[:2]),
    "skipped": safetensors('{"a":{"dtype":"I8","shape":[24],"data_offsets":[0,24]},"b":{"dtype":"X","shape":[0],"data_offsets":[24,24]}}', FLOATS),
    "none": safetensors("{}", b""),
    "nested": safetensors('{"a":{"dtype":{"x":[[1]]}}}', b""),
    "gap": safetensors('{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}', FLOATS[:12]),
}
SYNTH = ["synth:d=100", "synth:d=5000,density=0.01,support=clustered,values=gauss,seed=7", "synth:d=9000,density=0.3,support=powerlaw,values=student3",
         "synth:", "synth:d=1099511627777", "synth:density=1e-400,d=2", "synth:d=1,d=1", "synth:d=1,", "synth:d=8,seed=18446744073709551615,density=1"]


BOOKS = ["layer4.0.weight\n# a book\nlayer4.*: sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw\n*.bias: dense\n", "a\n*: index=all value=half",
         "[!a]b?c\n[[]!a]b[?]c: dense\r\n*[: dense\n", "x:y\nx:y: index=golomb value=qsgd exchange=owner(parts=4)", "a\n: dense", "a\na dense", "a\na: none=1",
         "aaaaaaaaaaaaaaaaaaaaaaaaab\n*a*a*a*a*a*a*a*a*c: dense", "\xef\xbb\xbf\n\xef\xbb\xbf*: dense # all\n"]


COST = {"floor_ns": 9, "base_ns": 8000, "per_element_ns": 0.5, "from": 1000, "to": 1e7, "samples": [[1000, 9000, 0.1], [1e6, 5e5, 0.2]]}
PLAN = "sparsify=topr(ratio=0.01) index=golomb value=raw"
LINK = {"transport": "gloo", "ranks": 2, "ranks_per_host": 1, "ranks_per_machine": 4, "latency_ns": 3e4, "bits_per_second": 2e10, "port_bits_per_second": 1e9,
        "hop_ns": 1e4, "message_ns": 500, "rest_ns": 7, "burst_bytes": 1e5, "burst_bits_per_second": 1e10,
        "allreduce": {"base_ns": 2e5, "per_byte_ns": 0.5}, "allgather": None}  # fmt: skip
PROFILE = {"schema": "deepreduce-profile-1", "date": "2026-11-22T00:00:00Z", "machine": {"cpu": "toy", "cores": 2}, "conditions": {"ranks": 2, "threads": 1},
           "costs": [COST | {"plan": PLAN, "operation": operation} for operation in ("encode", "merge", "decode", "add")],
           "frames": [{"plan": PLAN, "base_bytes": 60, "per_element_bytes": 0.04, "sum_growth": [[2, 1.5], [8, 3]]}], "links": [LINK],
           "overlap": {"slowdown": 1.5, "skew_ns": 100, "hook_ns": 5}}  # fmt: skip
MODEL = {"schema": "deepreduce-model-1", "name": "toy", "ranks": 4, "batch": 8, "forward_ns": 1e6, "backward_ns": 2e6, "rest_ns": 1e5, "skew_ns": 7,
         "tensors": [{"name": "a.weight", "elements": 6, "shape": [3, 2], "dtype": "f32", "ready_ns": 5e5, "energy": 0.1}, {"shape": [7]}]}  # fmt: skip


def profile_seeds():
    return {"profile": b"P" + json.dumps(PROFILE).encode(), "model": b"M" + json.dumps(MODEL).encode(), "half": b"M" + json.dumps(MODEL).replace("f32", "f16").encode(),
            "nothing": b"P{}", "deep": b"P" + b"[" * 40, "no_product": b"M" + json.dumps(MODEL | {"tensors": [{"shape": [1e308, 1e308, 0]}]}).encode()}  # fmt: skip


times_max = 45  # of fuzz_round_trip


def large_seeds():
    """Tensors beyond a block, and a stream, of every codec, with and without threads: written plans of fuzz_round_trip."""
    inverted, levels = "index=golomb value=", "sparsify=topr(ratio=0.3) index="
    indices = [
        "raw", "golomb", "golomb(adaptive=1)", "rice", "bitmap", "rle", "elias_fano", "delta_varint", "delta_bitpack", "delta_pfor", "gap_huffman",
        "all", "chunks", "chunks(size=100)", "golomb(block=9)", "rice(block=13)", "rle(code=runs8)", "rle(code=gaps16)", "seeded", "bloom(layout=split_block,fpr=0.01)",
        "bloom(policy=middle,fpr=0.01)", "bloom(policy=rightmost,bits=9)", "bloom(policy=p0,fpr=0.01)", "bloom(policy=p1,fpr=0.01)", "bloom(policy=p2,fpr=0.01)", "auto",
    ]  # fmt: skip
    values = [
        "raw", "qsgd", "qsgd(levels=7)", "qsgd(bucket=512)", "fit_poly", "fit_poly(degree=1)", "fit_poly(knots=chord,segments=0)", "fit_poly(knots=chord,degree=0)",
        "fit_poly(knots=jump,sign=order)", "fit_dexp(sign=order)", "half", "sketch", "three_lc", "fit_dexp", "rank_fit",
        "uniform_quant(bits=1)", "uniform_quant(bits=5)", "uniform_quant(bits=8)", "uniform_quant(bits=16)", "log_quant", "log_quant(bits=3)", "lloyd",
        "lloyd(price=0.35)", "lloyd(levels=16)", "sign", "sign(scale=mean)", "sign(scale=means)", "sign(scale=level,level=0.01)", "ternary", "ternary(clip=2.5)", "natural",
        "natural(rounding=nearest)", "dynamic_tree", "inceptionn", "inceptionn(error=0.01)",
    ]  # fmt: skip
    byte_codecs = ["deflate", "zstd", "huffman", "deflate(level=9)", "zstd(level=19)", "huffman+deflate"]
    sparsifiers = ["random(ratio=0.2)", "threshold(value=0.001)", "dgc(ratio=0.01)", "blocks(ratio=0.1,block=16)", "chunks(count=64)"]
    plans = [f"{levels}{index} value=raw" for index in indices] + [f"sparsify=topr(ratio=0.03) index={index} value=raw" for index in indices]
    plans += [f"sparsify=topr(ratio=0.5) {inverted}{value}" for value in values] + [f"index=all value={value}" for value in values]
    plans += [f"{levels}raw+{codec} value=raw+{codec}" for codec in byte_codecs] + [f"index=all value=uniform_quant(bits=4)+{codec}" for codec in byte_codecs]
    plans += [f"sparsify={sparsifier} feedback=residual index=golomb value=raw" for sparsifier in sparsifiers]
    plans += [f"sparsify=changed index={index} value={value}" for index in ("magnitude", "history", "auto", "golomb", "all") for value in ("ulp", "history", "xor", "raw", "ulp+huffman")]
    seeds = {}
    for i, plan in enumerate(plans):
        for kind in (0, 1 + i % 2):  # f32, f16, bf16: 12, 1 and 4 times 3000 elements, f16 of few kinds; f16 without threads
            times, few, flags = (11, 0, 3)[kind], kind == 1, 32 * (kind != 1)
            tensor = bytes([kind]) + struct.pack("<HI", 3000, times_max * (1000 + i) + times) + bytes([few])
            seeds[f"large_{i:03}_{kind}"] = written(plan, flags, tensor)
    # What the workers share one tensor of: 135,000 values; of a filter 2^20 elements, too.
    dense = b"\0" + struct.pack("<HI", 3000, times_max * 1000 + 44) + b"\0"
    many = bytes([4 | 16]) + struct.pack("<HII", 3000, times_max * 1000 + 44, 1 << 25) + b"\0"
    sparse = bytes([4 | 16]) + struct.pack("<HII", 3000, times_max * 1000, 1 << 20) + b"\0"
    for i, index in enumerate(["golomb", "golomb(adaptive=1)", "gap_huffman"]):
        seeds[f"shared_{i}"] = written(f"index={index} value=raw", 32, many)
    for value in ("lloyd", "sign(scale=means)"):
        seeds[f"shared_{value.partition('(')[0]}"] = written(f"index=all value={value}", 32, dense)
    for i, policy in enumerate(["p0", "p2", "rightmost", "p0,layout=split_block"]):
        seeds[f"filter_{i}"] = written(f"index=bloom(policy={policy},fpr=0.01) value=raw", 32, sparse)
    return seeds


def written(plan, flags, tensor):
    """An input of fuzz_round_trip whose plan is a text, of one tensor."""
    return b"\xff" + plan.encode() + b"\0" + bytes([flags, 0]) + tensor


def main():
    targets = {
        "fuzz_decode": decode_seeds(),
        "fuzz_merge": merge_seeds(),
        "fuzz_codec": codec_seeds(),
        "fuzz_round_trip": script_seeds("round trip", 80, 400) | large_seeds(),
        "fuzz_exchange": script_seeds("exchange", 16, 60) | EXCHANGES,
        "fuzz_sender": sender_seeds(),
        "fuzz_transform": script_seeds("transform", 16, 200),
        "fuzz_control": control_seeds(),
        "fuzz_plan": plan_seeds(),
        "fuzz_npy": NPY,
        "fuzz_npz": NPZ,
        "fuzz_safetensors": SAFETENSORS,
        "fuzz_raw": {"six": FLOATS, "odd": FLOATS[:7], "none": b""},
        "fuzz_synth": {f"text_{i}": text.encode() for i, text in enumerate(SYNTH)} | {"crash-control-characters": b"synth:d='" + bytes(7) + b"1\x8500"},
        "fuzz_book": {f"book_{i}": text.encode("latin-1") for i, text in enumerate(BOOKS)},
        "fuzz_profile": profile_seeds(),
    }
    wrong = []
    for target, seeds in targets.items():
        path, inputs = here / "corpus" / f"{target}.seeds.pack", [seeds[name] for name in sorted(seeds)]
        if "--list" in sys.argv[1:]:
            print("\n".join(f"{target} {number} {name}" for number, name in enumerate(sorted(seeds))))
        elif "--check" not in sys.argv[1:]:
            pack.write(path, inputs)
        elif not path.exists():
            wrong.append(f"{target}: no {path.name}")
        elif (there := pack.read(path)) != inputs:
            first = next((number for number, pair in enumerate(zip(there, inputs)) if pair[0] != pair[1]), min(len(there), len(inputs)))
            wrong.append(f"{target} from seed {first} on" + (f", {sorted(seeds)[first]}" if first < len(inputs) else ""))
    wrong += [f"{path.name}: no such target" for path in (here / "corpus").iterdir() if path.name.removesuffix(".pack").removesuffix(".seeds") not in targets]
    if wrong and "--check" in sys.argv[1:]:
        sys.exit(f"not what make_corpus.py makes: {'; '.join(wrong)}")
    if "--list" not in sys.argv[1:]:
        print(f"{sum(map(len, targets.values()))} seeds, {sum(len(data) for seeds in targets.values() for data in seeds.values())} bytes")


if __name__ == "__main__":
    main()
