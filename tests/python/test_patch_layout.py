"""The layout of a patch as docs/PATCH.md has it, read by plain code."""

import hashlib
import json
import struct
import zlib

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

from patch_weights import stepped  # noqa: E402

import deepreduce  # noqa: E402
from deepreduce import patch  # noqa: E402
from deepreduce.patch import _store_files  # noqa: E402

Q, MASK, PHI = 65521, 2**64 - 1, 0x9E3779B97F4A7C15


def mix64(x):
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x = (x ^ x >> shift) * factor & MASK
    return x


def check(data):
    """The check of bytes, as lib/container/FORMAT.md defines it."""
    total = 0
    for c in range(-(-len(data) // 4096)):
        words = numpy.frombuffer(data[4096 * c : 4096 * (c + 1)] + bytes(-len(data) % 4 if 4096 * (c + 1) >= len(data) else 0), "<u4").tolist()
        total += mix64(sum((w + 1) * (mix64((i + 1) * PHI & MASK) >> 32 | 1) for i, w in enumerate(words)) + c * PHI & MASK)
    return total & MASK


def sums(checks):
    return sum(checks) % Q, sum((i + 1) * check for i, check in enumerate(checks)) % Q


def hashed(text):
    return 1 + int.from_bytes(hashlib.sha256(text).digest()[:4], "little") % (Q - 1)


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self):
        number = shift = 0
        while True:
            (byte,) = self.take(1)
            number, shift = number | (byte & 127) << shift, shift + 7
            if byte < 128:
                return number


def read(data):
    assert data[:8] == b"DRPATCH\x01"
    size, crc = struct.unpack("<II", data[-8:])
    index = Reader(data[-8 - size : -8])
    assert zlib.crc32(index.data) == crc
    made = {"names": [index.take(index.varint()).decode() for _ in range(2)], "list_check": struct.unpack("<HH", index.take(4))}
    (flags,) = index.take(1)
    made["p"] = flags & 31
    made["unchanged"] = struct.unpack("<QHH", index.take(12)) if flags & 64 else None
    made["list"] = json.loads(zlib.decompress(index.take(index.varint()))) if flags & 128 else None
    units, at = [], 8
    while index.at < size:
        n, length = index.varint(), index.varint()
        units.append((n, data[at : at + length], struct.unpack("<HH", index.take(4)) if n > 1 and length else None))
        at += length
    assert at == len(data) - 8 - size
    return made, units


def test_the_index_is_as_the_page_says():
    rng = numpy.random.default_rng(0)
    old = {"z": rng.normal(0, 1, 5), "b.\u00e4": rng.normal(0, 1, (3, 4)).astype("f4"), "a": rng.normal(0, 1, 50).astype("f4"), "i": numpy.arange(9, dtype="i1")}
    new = {**stepped(old), "i": old["i"], "z": old["z"]}
    made, units = read(patch.encode(old, new, base="step 3", result="\u00e4"))
    assert made["names"] == ["step 3", "\u00e4"] and made["p"] == 25 and made["list"] is None
    types = {"z": b"F64", "b.\u00e4": b"F32", "a": b"F32", "i": b"I8"}
    pairs = [(hashed(n.encode()), hashed(n.encode() + b"\0" + types[n] + b"\0" + ",".join(map(str, x.shape)).encode())) for n, x in old.items()]
    assert made["list_check"] == (sum(whole for _, whole in pairs) % Q, sum(name * whole for name, whole in pairs) % Q)
    (both, frame, locator), *rest = units  # F32: 48 bytes before 200; then F64, then I8, which are as they were
    assert both == 2 and rest == [(1, b"", None)] * 2
    checks = [check(old[name].tobytes()) for name in ("b.\u00e4", "a")]
    assert locator == sums(checks)
    (tensor,) = deepreduce.inspect(frame).tensors
    words = numpy.concatenate([old["b.\u00e4"].ravel(), old["a"]])
    assert (tensor.universe, tensor.dtype) == (62, "float32") and struct.pack("<Q", check(words.tobytes())) in frame
    still = [check(old[name].tobytes()) for name in ("z", "i")]
    assert made["unchanged"] == (sum(mix64(position + i * PHI & MASK) for i, position in enumerate(still)) & MASK, *sums(still))


def test_an_anchor_has_a_list(tmp_path):
    with deepreduce.patch.Store(tmp_path) as store:
        store.put(7, {"w": numpy.ones((3, 4), numpy.float32), "a": numpy.ones(2, numpy.int8)})
    (anchor,) = _store_files.read_manifest(tmp_path).anchors
    made, units = read((tmp_path / anchor.file).read_bytes())
    assert made["names"] == ["", "7"] and made["list"] == [["w", "F32", [3, 4]], ["a", "I8", [2]]]
    assert [n for n, _, _ in units] == [1, 1] and made["unchanged"] is None
