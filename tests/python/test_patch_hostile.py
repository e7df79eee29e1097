"""Patches that are damaged or forged: all are refused before the first write, or right."""

import json
import os
import struct
import zlib
from random import Random

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

from patch_weights import bits, copied, stepped, weights  # noqa: E402

import deepreduce  # noqa: E402
from deepreduce import patch  # noqa: E402
from deepreduce.patch import _patch_file, _patch_index, _tensor_header, _word_frames  # noqa: E402


def with_index(index, frames=b"", size=None, crc=None):
    end = struct.pack("<II", len(index) if size is None else size, zlib.crc32(index) if crc is None else crc)
    return b"DRPATCH\x01" + frames + index + end


def cut(data):
    """Frames and index of a patch."""
    size = struct.unpack_from("<I", data, len(data) - 8)[0]
    return data[8 : len(data) - 8 - size], data[len(data) - 8 - size : -8]


def resealed(frame):
    """The frame with the check that its bytes have: that of a base is made in the same way."""
    frame[4:12] = bytes(8)
    check = _word_frames.check_of(_word_frames.new_sums(numpy.frombuffer(bytes(frame), numpy.uint8)))
    return bytes(frame[:4]) + struct.pack("<Q", check) + bytes(frame[12:])


def forged(data, at):
    """A patch of which a byte of the last frame's sections is another, and the frame's own check right again."""
    frames, index = cut(data)
    *before, last = [bytes(frame) for _, frame in _patch_file.Patch(memoryview(data)).frames()]
    frame = bytearray(last)
    frame[deepreduce.inspect(last).header_size + 16 + at] ^= 1  # 16: checks of base and result
    return with_index(index, b"".join(before) + resealed(frame))


@pytest.mark.parametrize("join", [1 << 22, 40, 0])
def test_a_dict_is_patched_all_or_nothing(join, monkeypatch):
    """The last frame has a right check and right sizes, and makes other values than its sender had, or none."""
    monkeypatch.setattr(_patch_file, "JOIN", join)  # tensors share a frame, some share one, or none
    old = {**weights(), "scale": numpy.ones(2, numpy.float32)}
    data = patch.encode(old, stepped(old), "sparsify=changed index=raw value=raw")
    last = _patch_file.Patch(memoryview(data)).units(patch.tensors_of(old, "old"))[-1]
    assert [part.name for part in last.parts][-1] == "embed" and len(last.parts) == (4 if join > 40 else 1)
    for at in (0, 4 * last.changed, 4 * last.changed + 3):  # of the first value, and of the first index
        for threads in (None, 2):
            held = copied(old)
            with pytest.raises(deepreduce.CorruptFrame, match="embed|scale … embed"):
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
    with pytest.raises(deepreduce.ArgumentError, match="sums: they are of other weights"):
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


# ---- A million -----------------------------------------------------------------------------------


def reforged(frames, index, rows, rng):
    """A patch with a few bytes changed, of which the checks of index and frames are right again."""
    if rng.random() < 0.3:
        text = bytearray(index)
        for _ in range(rng.randrange(1, 3)):
            text[rng.randrange(len(text))] = rng.randrange(256)
        if rng.random() < 0.2:
            text = text[: rng.randrange(len(text))]
        return with_index(bytes(text), frames)
    begin, end = rng.choice(rows)
    frame = bytearray(frames[begin:end])
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(frame)) if rng.random() < 0.5 else rng.randrange(min(64, len(frame)))
        frame[at] = rng.randrange(256) if rng.random() < 0.7 else frame[at] ^ 1 << rng.randrange(8)
    return with_index(index, frames[:begin] + resealed(frame) + frames[end:])


@pytest.mark.parametrize("join", [1 << 22, 0])
@pytest.mark.parametrize("plan", ["patch", "sparsify=changed index=magnitude value=xor", "sparsify=changed index=raw value=raw"])
def test_a_forged_patch_is_refused_or_right(plan, join, monkeypatch):
    """DEEPREDUCE_FORGED=1000000 forges so many, of all six together; DEEPREDUCE_SEED another million."""
    monkeypatch.setattr(_patch_file, "JOIN", join)
    random = numpy.random.default_rng(0)
    old = {"w": random.normal(0, 0.02, 1200).astype(numpy.float32), "b": numpy.ones(7, numpy.float32), "i": numpy.arange(9), "n": numpy.ones(5)}
    new = {**stepped(old), "n": old["n"]}
    data, held = patch.encode(old, new, plan), copied(old)
    expected, before = bits(new), bits(old)
    frames, index = cut(data)
    ends = numpy.cumsum([0, *(row.size for row in _patch_file.Patch(memoryview(data)).index.units)]).tolist()
    rows = [(a, b) for a, b in zip(ends, ends[1:]) if a < b]
    assert all(resealed(bytearray(frames[a:b])) == frames[a:b] for a, b in rows)  # the checks that are forged are right ones
    rng, refused = Random(f"{os.environ.get('DEEPREDUCE_SEED', 7)} {plan} {join}"), 0
    count = int(os.environ.get("DEEPREDUCE_FORGED", 6000)) // 6
    for _ in range(count):
        wrong = reforged(frames, index, rows, rng)
        try:
            patch.apply(held, wrong)
        except deepreduce.Error:
            refused += 1
            assert bits(held) == before
        else:
            assert bits(held) == expected
            held = copied(old)
    assert refused > 0.8 * count


# ---- The index -----------------------------------------------------------------------------------

HEAD = b"\x00\x00" + struct.pack("<HH", *_patch_index.list_check_of(patch.tensors_of(numpy.zeros(3, numpy.float32), "w")))
STILL = HEAD + bytes([25 | 64]) + bytes(12)  # nothing changed, and the check is of other weights


def listed(rows, pack=zlib.compress):
    """An index with a list of tensors, of which the check is right where there can be one."""
    text = pack(rows if isinstance(rows, bytes) else json.dumps(rows).encode())
    return HEAD + bytes([25 | 128]) + _patch_index._varint(len(text)) + text


@pytest.mark.parametrize(
    "data, why",
    [
        (b"", "not a patch"),
        (b"DR" + bytes(30), "not a patch"),
        (b"DRPATCH\x01" + bytes(4), "not a patch"),
        (with_index(b"", size=2**32 - 1), "an index of 4294967295 bytes in 16"),
        (with_index(HEAD, crc=0), "the check of its index differs"),
        (with_index(b""), "the base's name at byte 0 has 1 bytes, but only 0"),
        (with_index(b"\x05abc"), "the base's name at byte 1 has 5 bytes, but only 3"),
        (with_index(b"\x01\xff" + HEAD), "the base's name is not valid text"),
        (with_index(b"\x80\x00" + HEAD), "the base's name before byte 2 is not a number"),
        (with_index(b"\xff" * 20), "the base's name before byte 9 is not a number"),
        (with_index(HEAD), "the check of the list"),
        (with_index(HEAD + bytes([25 | 32])), "flags are 0x39"),
        (with_index(HEAD + b"\x03"), "flags are 0x3"),
        (with_index(HEAD + bytes([25 | 64]) + bytes(11)), "what has not changed"),
        (with_index(HEAD + bytes([25]) + b"\x01\x00"), "unit 0 has neither a frame nor a check"),
        (with_index(HEAD + bytes([25]) + b"\x00\x00"), "unit 0 has 0 tensors"),
        (with_index(HEAD + bytes([25]) + b"\x01\x09", bytes(8)), "a frame of 9 bytes, but only 8"),
        (with_index(HEAD + bytes([25]) + b"\x02\x08", bytes(8)), "a locator"),
        (with_index(HEAD + bytes([25]) + b"\x01"), "a frame's size"),
        (with_index(HEAD + bytes([25]) + b"\x01\x04", bytes(8)), "4 bytes after the last frame"),
        (with_index(HEAD + bytes([25]) + b"\x01\x08", bytes(8)), "patch"),
        (with_index(STILL), "no unit has it; 1 tensors have no unit"),
        (with_index(STILL + b"\x02\x00"), "unit 0 has 2 tensors, but only 1 are left"),
        (with_index(STILL + b"\x01\x00\x01\x00"), "unit 1 has 1 tensors, but only 0 are left"),
        (with_index(listed(b"x", pack=bytes)), "cut off, or has more than 1048576 bytes"),
        (with_index(listed(b"no zlib", pack=bytes)), "cannot be read"),
        (with_index(listed(b"[" * 100_000)), "has 100000 lists in 100000 bytes, at most 15387"),
        (with_index(listed(b"[" + b"{}," * 300_000 + b"{}]")), "has 300002 lists in 900004 bytes"),
        (with_index(listed(b'[["w","F32",[' + b"[]," * 300_000 + b"3]]]")), "has 300003 lists"),
        (with_index(listed(b" " * (1 << 20) + b"[]")), "cut off, or has more than 1048576 bytes"),
        (with_index(listed(b"\xff[]")), "cannot be read"),
        (with_index(listed(b"[]", pack=lambda x: zlib.compress(x)[:-1])), "cut off, or has more than 1048576 bytes"),
        (with_index(listed(b"[]", pack=lambda x: zlib.compress(x) + b"x")), "cut off, or has more than 1048576 bytes"),
        (with_index(listed(3)), "a row that is not .name, type, shape."),
        (with_index(listed([3])), "a row that is not .name, type, shape."),
        (with_index(listed([[3, "F32", [3]]])), "a row that is not .name, type, shape."),
        (with_index(listed([["w", "F7", [3]]])), "dtype is 'F7'"),
        (with_index(listed([["w", ["F32"], [3]]])), "dtype is"),
        (with_index(listed([["w", "F32", 3]])), "shape is not a list of sizes"),
        (with_index(listed([["w", "F32", [-1]]])), "shape is not a list of sizes"),
        (with_index(listed([["w", "F32", [True]]])), "shape is not a list of sizes"),
        (with_index(listed([["w", "F32", [1.5]]])), "shape is not a list of sizes"),
        (with_index(listed([["w", "F32", [2**62, 2**62]]])), "too many"),
        (with_index(listed([["w", "F32", [1] * 65]])), "65 dimensions"),
        (with_index(listed([["w", "F4", [3]]])), "does not end at a byte"),
        (with_index(listed([["\ud800", "F32", [3]]])), "not valid text"),
        (with_index(listed([["w", "F32", [3]], ["w", "F32", [3]]])), "a name twice"),
        (with_index(listed([["w", "F32", [3]]])), "the list of tensors has another check"),
    ],
)
def test_a_hostile_index_is_refused(data, why):
    held = numpy.zeros(3, numpy.float32)
    with pytest.raises(deepreduce.CorruptFrame, match=why):
        patch.apply(held, data)
    assert not held.any()


@pytest.mark.parametrize("unit, why", [(b"\x01\x00", "no unit has it"), (b"\xff\xff\x7f\x00", "unit 0 has 2097151 tensors")])
def test_a_list_of_a_tensor_of_countless_pieces_is_refused(unit, why):
    """Of 2^46 pieces, in 100 bytes: they are not listed first."""
    entry = _tensor_header.Entry("w", "F32", (2**56,))
    check = struct.pack("<HH", *_patch_index.list_check_of({"w": entry}))
    text = zlib.compress(json.dumps([["w", "F32", [2**56]]]).encode())
    index = bytes(2) + check + bytes([12 | 64 | 128]) + bytes(12) + _patch_index._varint(len(text)) + text + unit
    opened = _patch_file.Patch(memoryview(with_index(index)))
    assert opened.entries == {"w": entry}
    with pytest.raises(deepreduce.CorruptFrame, match=why):
        opened.units(opened.entries)


def test_a_list_that_unpacks_to_too_much_is_refused(monkeypatch):
    """A thousand times its bytes."""
    monkeypatch.setattr(_patch_index, "MAX_HEADER", 1000)
    with pytest.raises(deepreduce.CorruptFrame, match="cannot be read|cut off, or has more than"):
        patch.apply(numpy.zeros(3, numpy.float32), with_index(listed(b" " * 10_000 + b"[]")))


def test_a_list_that_packs_beyond_its_limit_is_packed_less(monkeypatch):
    """Brackets and quotes in names do not count."""
    monkeypatch.setattr(_patch_index, "_BYTES_FREE", 1000)
    for names in ([f"{'long' * 700}{i}" for i in range(90)], [f'[[[{{"\\"[[" \\{i}' + "[[" * 20 for i in range(90)]):
        old = {name: numpy.zeros(3, numpy.float32) for name in names}
        entries = [_tensor_header.Entry(name, "F32", (3,)) for name in names]
        whole = _patch_index.Index("", "", _patch_index.list_check_of(patch.tensors_of(old, "w")), 1 << 25, [], None, entries)
        assert list(_patch_index.read_index(_patch_index.write_index(whole), 0, "patch").tensors) == entries
    monkeypatch.setattr(_patch_index, "_TENSORS_MAX", 89)
    with pytest.raises(deepreduce.ArgumentError, match="90 tensors: a patch that lists them has at most 89"):
        _patch_index.write_index(whole)


def test_tensors_that_cannot_share_a_frame_are_refused():
    """Tensors of two types, of too many bytes together, and pieces of a cut tensor."""
    old = {name: numpy.zeros(9000, numpy.float32) for name in "abc"}
    old["d"] = numpy.zeros(9000, numpy.int16)
    check = struct.pack("<HH", *_patch_index.list_check_of(patch.tensors_of(old, "w")))
    for log, units in ((25, [1, 1, 2]), (16, [1, 2, 1]), (14, [2, 1, 1, 1, 1, 1, 1, 1, 1]), (14, [1, 1, 2, 1, 1, 1, 1, 1, 1])):
        rows = b"".join(bytes([parts, 0]) for parts in units)
        with pytest.raises(deepreduce.CorruptFrame, match="a unit of tensors that cannot share a frame"):
            patch.apply(old, with_index(b"\x00\x00" + check + bytes([log | 64]) + bytes(12) + rows))


def test_another_version_is_unsupported():
    with pytest.raises(deepreduce.Unsupported, match="version 2 of patches; this library reads version 1"):
        patch.apply(numpy.zeros(3, numpy.float32), b"DRPATCH\x02" + bytes(8))


def test_frames_that_do_not_fit_their_tensor_are_refused():
    """Each frame is sound in itself: of another type, of too many words, or not of all."""
    x = numpy.arange(8, dtype=numpy.float32)
    ((_, frame),) = _patch_file.Patch(memoryview(patch.encode(x, x + 1))).frames()
    frame = bytes(frame)
    gradient = deepreduce.encode(x, "index=raw value=raw")
    assert deepreduce.inspect(frame).patch and not deepreduce.inspect(gradient).patch
    wrong = ("uint32", 8, frame), ("float32", 7, frame), ("float32", 9, frame), ("float32", 8, frame + frame), ("float32", 8, gradient)
    for dtype, shape, frames in wrong:
        held = numpy.zeros(shape, dtype)
        check = struct.pack("<HH", *_patch_index.list_check_of(patch.tensors_of(held, "w")))
        with pytest.raises(deepreduce.CorruptFrame, match="patch|frame"):
            patch.apply(held, with_index(b"\x00\x00" + check + bytes([25, 1]) + _patch_index._varint(len(frames)), frames))
        assert not held.any()
