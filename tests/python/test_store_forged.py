"""Stores that are forged: whatever bytes manifest and files have, a step is an error of the package, or as it was put."""

import json
import os
import pathlib
import struct
import tempfile
import zlib
from random import Random

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce.patch import _word_frames, _patch_file, _store_files  # noqa: E402
from deepreduce.patch import Store  # noqa: E402

MEMORY = pathlib.Path("/dev/shm")  # where there is one, files are made a thousand times as fast


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as made:
        yield pathlib.Path(made)


def steps_of(number):
    """Three tensors: two share a frame, of the last step only one is another."""
    x = numpy.arange(50, dtype=numpy.float32)
    return {"a": x + number, "b": x[:7] * min(number, 2), "n": numpy.full(9, number)}


def bits(weights):
    return {name: x.tobytes() for name, x in weights.items()}


def forged_text(whole, rng):
    """A few bytes of a manifest are others."""
    wrong = bytearray(whole)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(wrong))
        wrong[at] = rng.choice(b'0123456789",:{}[]') if rng.random() < 0.5 else rng.randrange(256)
    return bytes(wrong)


def forged_document(whole, rng):
    """JSON as it has to be: fields of rows are swapped or others, rows are gone or there twice, a file is another's."""
    document = json.loads(whole)
    for _ in range(rng.randrange(1, 4)):
        rows = document[rng.choice(("anchors", "patches"))]
        if not rows:
            continue
        row, other = rng.choice(rows), rng.choice(document[rng.choice(("anchors", "patches"))] or rows)
        kind = rng.randrange(5)
        field = rng.choice(list(row))
        if kind == 0 and field in other:
            row[field], other[field] = other[field], row[field]
        elif kind == 1:
            row[field] = rng.choice((0, 1, 2, 3, 4, -1, 2**63 - 1, 2**63, True, None, 1.5, "", "x", "..", [], {}, "sparsify=changed ", "safetensors"))
        elif kind == 2:
            rows.remove(row)
        elif kind == 3:
            rows.insert(rng.randrange(len(rows) + 1), dict(other if rng.random() < 0.3 else row))
        else:
            row["file"] = other.get("file", "")
    return json.dumps(document).encode()


def forged_file(data, rng):
    """Bytes of a patch, or of an anchor that is one, are others: of its index or of a frame, with checks that are right again."""
    size = struct.unpack_from("<I", data, len(data) - 8)[0]
    frames, index = bytearray(data[8 : len(data) - 8 - size]), bytearray(data[len(data) - 8 - size : -8])
    if rng.random() < 0.5 or not frames:
        for _ in range(rng.randrange(1, 3)):
            index[rng.randrange(len(index))] = rng.randrange(256)
    else:
        ends = [0]
        for row in _patch_file.Patch(memoryview(data)).index.units:
            ends.append(ends[-1] + row.size)
        begin, end = rng.choice([(a, b) for a, b in zip(ends, ends[1:]) if a < b])
        at = rng.randrange(begin, end)
        frames[at] ^= 1 << rng.randrange(8)
        frame = frames[begin : begin + 4] + bytes(8) + frames[begin + 12 : end]
        check = _word_frames.check_of(_word_frames.new_sums(numpy.frombuffer(bytes(frame), numpy.uint8)))
        frames[begin : begin + 12] = frame[:4] + struct.pack("<Q", check)
    return data[:8] + bytes(frames) + bytes(index) + struct.pack("<II", len(index), zlib.crc32(index))


@pytest.mark.parametrize("plan", ["safetensors", _store_files.ANCHOR_PLAN])
def test_a_forged_store_is_refused_or_right(folder, plan, monkeypatch):
    """DEEPREDUCE_FORGED=1000000 forges so many, of both together; DEEPREDUCE_SEED another million."""
    monkeypatch.setattr(_store_files, "ANCHOR_PLAN", plan)
    with Store(folder, anchor_every=3) as store:
        for step in range(5):
            store.put(step, steps_of(step))
    expected = [bits(steps_of(step)) for step in range(5)]
    manifest = folder / _store_files.MANIFEST
    whole = {path: path.read_bytes() for path in folder.iterdir() if path.name != _store_files.LOCK}
    patches = [path for path in whole if path.suffix == ".drpatch"]
    count, rng = int(os.environ.get("DEEPREDUCE_FORGED", 6000)) // 2, Random(f"{os.environ.get('DEEPREDUCE_SEED', 3)} {plan}")
    refused = [0, 0, 0]
    for number in range(count):
        kind = number % 3
        if kind < 2:
            path, wrong = manifest, (forged_text, forged_document)[kind](whole[manifest], rng)
        else:
            path = rng.choice(patches)
            wrong = forged_file(whole[path], rng)
        path.write_bytes(wrong)
        step = rng.randrange(5)
        try:
            made = Store(folder).read(step)
        except (deepreduce.Error, OSError):
            refused[kind] += 1
        else:
            assert bits(made) == expected[step], (number, path.name, wrong)
        if kind == 2:
            path.write_bytes(whole[path])
            manifest.write_bytes(whole[manifest])
    assert all(0.2 * count < 3 * number < count for number in refused)  # some of each kind are read, some refused
