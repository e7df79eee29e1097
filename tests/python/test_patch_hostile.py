"""Patches that are damaged or forged: all are refused before the first write, or right."""

import json
import os
import struct
import zlib

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

from patch_weights import bits, copied, stepped, weights  # noqa: E402

import deepreduce  # noqa: E402
from deepreduce import _patch_call, _patch_file, patch  # noqa: E402


def with_header(document, frames=b"", size=None, crc=None):
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return struct.pack("<8sII", b"DRPATCH\x01", len(text) if size is None else size, zlib.crc32(text) if crc is None else crc) + text + frames


NAMES = {"__metadata__": {"base": "", "result": ""}}
TENSOR = {"dtype": "F32", "shape": [3], "data_offsets": [0, 0]}


def resealed(frame):
    """The frame with the check that its bytes have: that of a base is made in the same way."""
    frame[4:12] = bytes(8)
    check = _patch_call.check_of(_patch_call.new_sums(numpy.frombuffer(bytes(frame), numpy.uint8)))
    return bytes(frame[:4]) + struct.pack("<Q", check) + bytes(frame[12:])


def forged(data, at):
    """A patch of which a byte of the last frame's sections is another, and the frame's own check right again."""
    opened = _patch_file.Patch(memoryview(data))
    entry = list(opened.entries.values())[-1]
    begin = len(data) - entry.end + entry.begin
    frame = bytearray(data[begin:])
    frame[deepreduce.inspect(bytes(frame)).header_size + 16 + at] ^= 1  # 16: checks of base and result
    return data[:begin] + resealed(frame)


def test_a_dict_is_patched_all_or_nothing():
    """The last frame has a right check and right sizes, and makes other values than its sender had, or none."""
    old = weights()
    data = patch.encode(old, stepped(old), "sparsify=changed index=raw value=raw")
    some = patch.changes(data, old)["bias"][0].size
    for at in (0, 4 * some, 4 * some + 3):  # of the first value, and of the first index
        for threads in (None, 2):
            held = copied(old)
            with pytest.raises(deepreduce.CorruptFrame, match="bias"):
                patch.apply(held, forged(data, at), threads=threads)
            assert bits(held) == bits(old)


def test_sums_stay_if_a_call_fails():
    old, new = weights(), stepped(weights())
    sums = patch.Sums(old)
    data = patch.encode(old, new, "sparsify=changed index=raw value=raw")
    with pytest.raises(deepreduce.CorruptFrame):
        patch.apply(copied(old), forged(data, 0), sums=sums)
    assert bits(patch.apply(copied(old), data, sums=sums)) == bits(new)
    with pytest.raises(deepreduce.WrongBase):
        patch.apply(copied(old), data, sums=sums)  # they are of the result now
    with pytest.raises(deepreduce.ArgumentError, match="sums: of other weights"):
        patch.apply(copied(old), data, sums=patch.Sums(old["embed"]))


def test_every_damage_is_refused_and_nothing_written():
    old = weights()
    data = patch.encode(old, stepped(old))
    rng, held = numpy.random.default_rng(5), copied(old)
    for _ in range(2000):
        wrong = bytearray(data)
        if rng.random() < 0.2:
            del wrong[rng.integers(len(wrong)) :]
        else:
            wrong[rng.integers(len(wrong))] ^= 1 << rng.integers(8)
        with pytest.raises(deepreduce.Error):
            patch.apply(held, bytes(wrong))
        assert bits(held) == bits(old)
    assert bits(patch.apply(held, data)) == bits(stepped(old))


def reforged(data, rng):
    """A patch with a few bytes changed, of which the checks of header and frames are right again."""
    size = struct.unpack_from("<I", data, 8)[0]
    text, frames = bytearray(data[16 : 16 + size]), data[16 + size :]
    if rng.random() < 0.3:
        text[rng.integers(len(text))] = rng.integers(256)
        return with_header(bytes(text), frames)
    opened = _patch_file.Patch(memoryview(data))
    entry = list(opened.entries.values())[rng.integers(len(opened.entries))]
    frame = bytearray(frames[entry.begin : entry.end])
    for _ in range(rng.integers(1, 4)):
        at = rng.integers(len(frame)) if rng.random() < 0.5 else rng.integers(min(64, len(frame)))
        frame[at] = rng.integers(256) if rng.random() < 0.7 else frame[at] ^ 1 << rng.integers(8)
    return with_header(bytes(text), frames[: entry.begin] + resealed(frame) + frames[entry.end :])


@pytest.mark.parametrize("plan", ["patch", "sparsify=changed index=magnitude value=xor", "sparsify=changed index=raw value=raw"])
def test_a_forged_patch_is_refused_or_right(plan):
    """DEEPREDUCE_FORGED=1000000 forges so many."""
    old = weights()
    new = stepped(old)
    data, held = patch.encode(old, new, plan), copied(old)
    wanted, before = (bits(new), bits(old))
    (piece,) = _patch_file.Patch(memoryview(data)).pieces(_patch_file.Patch(memoryview(data)).entries["bias"])
    assert resealed(bytearray(piece.frame)) == piece.frame  # the checks that are forged are right ones
    rng, refused = numpy.random.default_rng(7), 0
    count = int(os.environ.get("DEEPREDUCE_FORGED", 1500))
    for _ in range(count):
        wrong = reforged(data, rng)
        try:
            patch.apply(held, wrong)
        except deepreduce.Error:
            refused += 1
            assert bits(held) == before
        else:
            assert bits(held) == wanted
            held = copied(old)
    assert refused > 0.8 * count


# ---- Headers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data, why",
    [
        (b"", "no patch"),
        (b"DR" + bytes(30), "no patch"),
        (b"DRPATCH\x01" + bytes(4), "no patch"),
        (with_header(b"{}", size=2**32 - 1), "cut off"),
        (with_header(b"{}", crc=0), "check does not match"),
        (with_header(b""), "no JSON object"),
        (with_header(b"[]"), "no JSON object"),
        (with_header(b'{"a":' * 100_000), "no JSON"),
        (with_header(b"\xff{}"), "no JSON object"),
        (with_header(b'{"\xff": 1}'), "no JSON"),
        (with_header(b'{"a": NaN}'), "NaN"),
        (with_header(b'{"a": 1, "a": 2}'), "stands twice"),
        (with_header({}), "names no base and result"),
        (with_header({"__metadata__": {"base": 1, "result": ""}}), "no object of strings"),
        (with_header({**NAMES, "w": 3}), "needs dtype, shape and data_offsets"),
        (with_header({**NAMES, "w": {**TENSOR, "more": 1}}), "needs dtype, shape and data_offsets"),
        (with_header({**NAMES, "w": {**TENSOR, "dtype": "F7"}}), "dtype is 'F7'"),
        (with_header({**NAMES, "w": {**TENSOR, "dtype": ["F32"]}}), "dtype is"),
        (with_header({**NAMES, "w": {**TENSOR, "shape": [-1]}}), "shape is no list of sizes"),
        (with_header({**NAMES, "w": {**TENSOR, "shape": [True]}}), "shape is no list of sizes"),
        (with_header({**NAMES, "w": {**TENSOR, "shape": [1.5]}}), "shape is no list of sizes"),
        (with_header({**NAMES, "w": {**TENSOR, "shape": [2**62, 2**62]}}), "too many"),
        (with_header({**NAMES, "w": {**TENSOR, "shape": [1] * 65}}), "65 dimensions"),
        (with_header({**NAMES, "w": {**TENSOR, "dtype": "F4", "shape": [3]}}), "does not end at a byte"),
        (with_header({**NAMES, "w": {**TENSOR, "data_offsets": [0]}}), "data_offsets"),
        (with_header({**NAMES, "w": {**TENSOR, "data_offsets": [0, 9]}}, bytes(8)), "end by 8"),
        (with_header({**NAMES, "w": {**TENSOR, "data_offsets": [1, 8]}}, bytes(8)), "should begin at 0"),
        (with_header({**NAMES, "w": {**TENSOR, "data_offsets": [0, 4]}}, bytes(8)), "4 bytes behind the last tensor"),
        (with_header(b'{"__metadata__":{"base":"","result":""},"\\ud800":{}}'), "needs dtype"),
        (with_header({**NAMES, "\ud800": TENSOR}), "no text"),
        (with_header({**NAMES, "": {**TENSOR, "data_offsets": [0, 8]}}, bytes(8)), "patch"),
        (with_header({**NAMES, "": TENSOR}), "frames of 0 words, of 3"),
    ],
)
def test_a_hostile_header_is_refused(data, why):
    held = numpy.zeros(3, numpy.float32)
    with pytest.raises(deepreduce.CorruptFrame, match=why):
        patch.apply(held, data)
    assert not held.any()


def test_another_version_is_unsupported():
    with pytest.raises(deepreduce.Unsupported, match="version 2 of patches; this library reads version 1"):
        patch.apply(numpy.zeros(3, numpy.float32), b"DRPATCH\x02" + bytes(8))


def test_frames_that_do_not_fit_their_tensor_are_refused():
    """Each frame is sound in itself: of another type, of too many words, or not of all."""
    x = numpy.arange(8, dtype=numpy.float32)
    opened = _patch_file.Patch(memoryview(patch.encode(x, x + 1)))
    frame = bytes(opened.pieces(opened.entries[""])[0].frame)
    gradient = deepreduce.encode(x, "index=raw value=raw")
    assert deepreduce.inspect(frame).patch and not deepreduce.inspect(gradient).patch
    wrong = ("U32", 8, frame), ("F32", 7, frame), ("F32", 9, frame), ("F32", 16, frame + frame), ("F32", 8, gradient)
    for dtype, shape, frames in wrong:
        entry = {"dtype": dtype, "shape": [shape], "data_offsets": [0, len(frames)]}
        held = numpy.zeros(shape, {"U32": numpy.uint32, "F32": numpy.float32}[dtype])
        with pytest.raises(deepreduce.CorruptFrame, match="patch|frame"):
            patch.apply(held, with_header({**NAMES, "": entry}, frames))
        assert not held.any()
