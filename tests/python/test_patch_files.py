"""`deepreduce patch`: model files of all kinds, written whole or not at all, and its output."""

import errno
import hashlib
import io
import json
import os
import pathlib
import struct
import subprocess
import sys
import zipfile

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce._files import _npz  # noqa: E402
from deepreduce.patch import _model_files, _patch_command, _patch_file, _tensor_header  # noqa: E402

PACKAGE = pathlib.Path(deepreduce.__file__).resolve().parents[1]
TYPES = {"float32": "F32", "uint16": "BF16", "int8": "F8_E4M3", "int64": "I64", "float16": "F16"}


def write_safetensors(path, tensors, metadata=None, names=None):
    """Without the code under test. tensors: name -> array, whose type is that of TYPES, or of `names`."""
    at, header = 0, {"__metadata__": metadata} if metadata else {}
    for name, x in tensors.items():
        dtype = (names or {}).get(name, TYPES[str(x.dtype)])
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(x.tobytes() for x in tensors.values()))
    return path


def model(seed=0):
    rng = numpy.random.default_rng(seed)
    return {
        "embed": rng.integers(0, 2**16, (500, 100)).astype(numpy.uint16),
        "layer.0.weight": rng.normal(0, 0.02, (90, 90)).astype(numpy.float32),
        "scale": numpy.array(3, numpy.int64),
        "none": numpy.zeros((0, 4), numpy.float16),
        "quantised": rng.integers(-128, 128, 40_000).astype(numpy.int8),
    }


def stepped(tensors, seed=1):
    rng = numpy.random.default_rng(seed)
    new = {name: x.copy() for name, x in tensors.items()}
    for x in new.values():
        raw = x.reshape(-1).view(numpy.uint8)
        raw[rng.random(raw.size) < 0.01] ^= 1
    return new


def run(*words, status=0):
    made = _patch_command.main([str(word) for word in words])
    assert made == status
    return made


def files(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.fixture(params=[None, 1 << 14])
def pieces(request, monkeypatch):
    """Tensors in one piece, and in many."""
    if request.param:
        monkeypatch.setattr(_patch_file, "PIECE", request.param)


@pytest.fixture
def pair(tmp_path):
    old = model()
    write_safetensors(tmp_path / "old.safetensors", old, {"format": "pt"})
    write_safetensors(tmp_path / "new.safetensors", stepped(old), {"format": "pt"})
    return tmp_path


def shards(folder, tensors, name="model"):
    folder.mkdir()
    names = list(tensors)
    places = {tensor: f"{name}-{1 + (i > 1)}.safetensors" for i, tensor in enumerate(names)}
    for file in set(places.values()):
        write_safetensors(folder / file, {tensor: tensors[tensor] for tensor in names if places[tensor] == file})
    index = folder / f"{name}.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return index


# ---- Files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_a_file_becomes_the_other(pair, pieces, threads):
    run(pair / "old.safetensors", pair / "new.safetensors", "-o", pair / "p", "--threads", threads)
    run("apply", pair / "old.safetensors", pair / "p", "-o", pair / "made.safetensors", "--threads", threads)
    made = files(pair)
    assert made["made.safetensors"] == made["new.safetensors"] != made["old.safetensors"]
    assert set(made) == {"old.safetensors", "new.safetensors", "made.safetensors", "p"}
    assert (pair / "p").stat().st_size < 0.2 * (pair / "old.safetensors").stat().st_size


def test_in_place(pair, pieces):
    os.chmod(pair / "old.safetensors", 0o640)
    run(pair / "old.safetensors", pair / "new.safetensors", "-o", pair / "p")
    run("apply", pair / "old.safetensors", pair / "p")
    assert files(pair)["old.safetensors"] == files(pair)["new.safetensors"]
    assert (pair / "old.safetensors").stat().st_mode & 0o777 == 0o640
    before = files(pair)
    run("apply", pair / "old.safetensors", pair / "p", status=1)
    assert files(pair) == before


def test_a_full_disk_in_the_sync_of_a_shard_leaves_all_shards_as_they_were(pair, monkeypatch):
    """The bytes of some file systems find no room only when they are synced."""
    shards(pair / "a", model())
    shards(pair / "b", stepped(model()))
    run(pair / "a", pair / "b", "-o", pair / "p")
    before, fsync, left = files(pair / "a"), os.fsync, 0

    def full(handle):
        nonlocal left
        left -= os.path.isfile(f"/proc/self/fd/{handle}")
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    for number in (1, 2):
        left = number
        run("apply", pair / "a", pair / "p", status=2)
        assert files(pair / "a") == before, number
    run("apply", pair / "a", pair / "p")
    assert files(pair / "a") == files(pair / "b") and left == -2


def test_a_patch_does_not_depend_on_the_kind_of_file(pair, capsys):
    """A .safetensors file, shards of it, and their folder."""
    old = shards(pair / "a", model())
    shards(pair / "b", stepped(model()))
    whole = pair / "p"
    run(pair / "old.safetensors", pair / "new.safetensors", "-o", whole)
    run(old, pair / "b", "-o", pair / "q")
    parts = [_patch_file.Patch(memoryview(path.read_bytes())) for path in (whole, pair / "q")]
    assert [bytes(frame) for _, frame in parts[0].frames()] == [bytes(frame) for _, frame in parts[1].frames()]
    assert parts[0].entries == {name: parts[1].entries[name] for name in parts[0].entries}
    run("apply", old, whole, "-o", pair / "made")
    assert files(pair / "made") == files(pair / "b")
    run("apply", pair / "a", whole)
    assert files(pair / "a") == files(pair / "b")
    run("apply", pair / "b", whole, "-o", pair / "made", status=2)
    assert "exists already" in capsys.readouterr().err
    assert not list(pair.glob(".*"))


def test_npz(pair):
    arrays = {"w": numpy.linspace(0, 1, 9000, dtype=numpy.float32), "b": numpy.zeros((3, 3), "V2")}
    numpy.savez(pair / "old.npz", **arrays)
    numpy.savez(pair / "new.npz", **{**arrays, "w": arrays["w"] * 2})
    run(pair / "old.npz", pair / "new.npz", "-o", pair / "p")
    run("apply", pair / "old.npz", pair / "p", "-o", pair / "made.safetensors")
    with _model_files.open_model(str(pair / "made.safetensors")) as made:
        assert made.tensors["w"].part(0, 9000, "x").view(numpy.float32).tobytes() == (arrays["w"] * 2).tobytes()
        assert made.tensors["b"].dtype == "BF16" and made.tensors["b"].shape == (3, 3)
    run("apply", pair / "old.npz", pair / "p", status=2)


def test_what_no_safetensors_can_have_is_refused_when_it_is_written(pair, capsys):
    for name, status in (("__metadata__", 2), ("sound", 0)):
        old = {name: numpy.ones(4, numpy.float32)}
        numpy.savez(pair / "old.npz", **old)
        numpy.savez(pair / "new.npz", **{name: 2 * old[name]})
        run(pair / "old.npz", pair / "new.npz", "-o", pair / "p", status=status)
    assert "a tensor has the name __metadata__" in capsys.readouterr().err
    with pytest.raises(deepreduce.ArgumentError, match="deep: 65 dimensions, at most 64"):
        _tensor_header.write_entries({}, [_tensor_header.Entry("deep", "F32", (1,) * 65, 0, 4)])
    strange = pair / os.fsdecode(b"b\xff.npz")
    (pair / "new.npz").rename(strange)
    run(pair / "old.npz", strange, "-o", pair / "p")
    twice = b'{"w":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    with pytest.raises(deepreduce.ArgumentError, match="^here: a key occurs twice .*; the header is damaged$") as caught:
        _tensor_header.read_entries(twice, 4, "here")
    assert str(caught.value).count("damaged") == 1
    run("checkout", pair, "9" * 5000, "-o", pair / "made.safetensors", status=2)
    assert "not a number" in capsys.readouterr().err


def test_an_npz_that_is_damaged_or_none(pair, capsys):
    numpy.savez_compressed(pair / "old.npz", w=numpy.linspace(0, 1, 9000, dtype=numpy.float32))
    data = (pair / "old.npz").read_bytes()
    numpy.save(pair / "one.npy", numpy.zeros(3, numpy.float32))
    others = [(other, "") for other in (b"no zip" * 9, data[:200], data[:200] + bytes(200) + data[400:], b"")]
    others.append(((pair / "one.npy").read_bytes(), "not a zip archive but one array"))
    for header, why in (
        (f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**28},)}}", r"w.npy: its header states the shape (268435456,) of float32, and it has "),
        (f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**80},)}}", "its header states the shape"),
        (f"{{'descr': '<V0', 'fortran_order': False, 'shape': ({2**80},)}}", ""),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-5,)}", ""),
        ("{'descr': '<f4', 'shape': (", ""),
        ("'''", ""),
        ("(" * 5000, ""),
    ):
        for version, length in ((1, "<H"), (2, "<I"), (3, "<I")):
            text = header.encode() + b"\n"
            file = io.BytesIO()
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("w.npy", b"\x93NUMPY" + bytes([version, 0]) + struct.pack(length, len(text)) + text + bytes(8))
            others.append((file.getvalue(), why))
    for other, why in others:
        (pair / "new.npz").write_bytes(other)
        run(pair / "old.npz", pair / "new.npz", "-o", pair / "p", status=2)
        words = capsys.readouterr().err
        assert f"{pair / 'new.npz'}: cannot be read: " in words and why in words and "pickle" not in words, words
    assert not (pair / "p").exists()


def test_an_npz_that_unpacks_to_more_than_its_file_may_hold_is_refused(pair, capsys, monkeypatch):
    monkeypatch.setattr(_npz, "_BYTES_FREE", 1 << 16)
    numpy.savez_compressed(pair / "old.npz", w=numpy.zeros(16_000, numpy.float32))
    run(pair / "old.npz", pair / "old.npz", "-o", pair / "p")
    numpy.savez_compressed(pair / "new.npz", w=numpy.zeros(1_000_000, numpy.float32))
    run(pair / "new.npz", pair / "old.npz", "-o", pair / "p", status=2)
    size = (pair / "new.npz").stat().st_size
    assert f"new.npz: cannot be read: its members have 4000128 bytes, and a file of {size} bytes may hold {(1 << 16) + 16 * size}" in capsys.readouterr().err


def test_pt(pair):
    torch = pytest.importorskip("torch", reason="torch is missing: ./dev setup")
    old = {"w": torch.randn(100, 100, dtype=torch.bfloat16), "b": torch.zeros(3)}
    torch.save(old, pair / "old.pt")
    torch.save({**old, "b": old["b"] + 1}, pair / "new.pt")
    run(pair / "old.pt", pair / "new.pt", "-o", pair / "p")
    run("apply", pair / "old.pt", pair / "p", "-o", pair / "made.safetensors")
    with _model_files.open_model(str(pair / "made.safetensors")) as made:
        assert made.tensors["b"].part(0, 3, "x").view(numpy.float32).tolist() == [1, 1, 1]


def test_pt_of_every_type_is_exact_and_complete(pair, capsys):
    torch = pytest.importorskip("torch", reason="torch is missing: ./dev setup")
    kinds = "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu uint16 uint32 uint64 complex64".split()
    kinds = [kind for kind in kinds if hasattr(torch, kind)]
    old = {kind: torch.arange(1, 201, dtype=torch.uint8).repeat(40).view(getattr(torch, kind)) for kind in kinds}
    old["w"], old["sparse"] = torch.ones(5), torch.eye(40).to_sparse()
    new = {name: x.clone() for name, x in old.items()}
    for kind in kinds:
        new[kind].view(torch.uint8)[::97] ^= 1
    torch.save(old, pair / "old.pt")
    torch.save({**new, "step": 7}, pair / "new.pt")
    run(pair / "old.pt", pair / "new.pt", "-o", pair / "p")
    assert capsys.readouterr().err == f"deepreduce: note: {pair / 'new.pt'}: step: skipped, is not a tensor but int\n"
    run("apply", pair / "old.pt", pair / "p", "-o", pair / "made.safetensors")
    with _model_files.open_model(str(pair / "made.safetensors")) as made:
        assert set(made.tensors) == {*kinds, "w", "sparse.indices", "sparse.values", "sparse.shape"}
        for kind in kinds:
            found = made.tensors[kind]
            assert found.part(0, found.length, "x").tobytes() == new[kind].view(torch.uint8).numpy().tobytes(), kind


def test_weights_of_a_pt_that_cannot_be_patched_are_an_error_that_names_them(pair, capsys):
    torch = pytest.importorskip("torch", reason="torch is missing: ./dev setup")
    whole = {"w": torch.ones(5)}
    for kind, bad in {
        "complex128": torch.ones(3, dtype=torch.complex128),
        "torch.qint8": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "on the device meta": torch.empty(3, device="meta"),
    }.items():
        torch.save({**whole, "bad": bad}, pair / "old.pt")
        run(pair / "old.pt", pair / "old.pt", "-o", pair / "p", status=2)
        words = capsys.readouterr().err
        assert words.startswith(f"deepreduce: {pair / 'old.pt'}: bad") and kind in words
    assert not (pair / "p").exists()


def test_a_pt_that_is_missing_or_damaged_is_told_so(pair, capsys):
    pytest.importorskip("torch", reason="torch is missing: ./dev setup")
    run(pair / "nix.pt", pair / "nix.pt", "-o", pair / "p", status=2)
    assert capsys.readouterr().err == f"deepreduce: {pair / 'nix.pt'}: cannot be read: No such file or directory\n"
    (pair / "bad.pt").write_bytes(b"no zip")
    run(pair / "bad.pt", pair / "bad.pt", "-o", pair / "p", status=2)
    assert capsys.readouterr().err.endswith("save tensors alone: torch.save(model.state_dict(), path)\n")


def test_a_store_on_the_command_line(pair, capsys):
    numbers = model()
    with deepreduce.patch.Store(pair / "store") as store:
        for step in (3, 4, 8):
            store.put(step, numbers)
            expected = {name: x.tobytes() for name, x in numbers.items()}
            numbers = stepped(numbers, step)
    run("log", pair / "store")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["3", "anchor"], ["4", "patch"], ["8", "patch"]]
    run("checkout", pair / "store", 8, "-o", pair / "made.safetensors")
    with _model_files.open_model(str(pair / "made.safetensors")) as made:
        for name, tensor in made.tensors.items():
            assert tensor.part(0, tensor.length, "x").tobytes() == expected[name]
    run("checkout", pair / "store", 5, "-o", pair / "other.safetensors", status=2)
    assert "step 5: the store has no such step; it has 3 from 3 to 8" in capsys.readouterr().err
    run("checkout", pair / "store", "last", "-o", pair / "other.safetensors", status=2)
    run("log", pair / "none", status=2)
    run("log", pair, status=2)
    assert capsys.readouterr().err.endswith(f"deepreduce: {pair}: not a store: it has no manifest.json\n")
    assert not (pair / "other.safetensors").exists()


# ---- Its output ----------------------------------------------------------------------------------


def test_show(pair, capsys):
    """Lists tensors, and all names of those that share a frame: how much each of them changed depends on the base."""
    old, new = model(), stepped(model())
    for file, tensors in (("old", old), ("new", new)):
        write_safetensors(pair / f"{file}.safetensors", {**tensors, "bias": numpy.full(5, file == "new", numpy.uint16)})
    run(pair / "old.safetensors", pair / "new.safetensors", "-o", pair / "p")
    run("show", pair / "p")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "old.safetensors -> new.safetensors"
    size, changed, words = (pair / "p").stat().st_size, 5, 5
    differ = {name: int((x.reshape(-1) != new[name].reshape(-1)).sum()) for name, x in old.items()}
    changed, words = changed + sum(differ.values()), words + sum(x.size for x in old.values())
    assert lines[1].startswith(f"{size} bytes: {changed} of {words} words changed") and f"{8 * size / changed:.2f} bits each" in lines[1]
    rows = {line.split("  ")[0]: line.split() for line in lines[3:]}
    assert set(rows) == {"bias, embed", "layer.0.weight", "scale", "none", "quantised"}
    for name in ("layer.0.weight", "quantised", "scale"):
        assert rows[name][2] == str(differ[name])  # behind the type, which a tensor that did not change has, too
    assert rows["bias, embed"][3] == str(5 + differ["embed"])


def test_show_does_not_count_what_is_sent_whole_as_changed(pair, capsys):
    old, new = ({"a": numpy.zeros(10_000, numpy.uint16), "w": numpy.random.default_rng(seed).integers(0, 1 << 32, 4000, numpy.uint32).view(numpy.float32)} for seed in (1, 2))
    new["a"][:1000] = 1
    write_safetensors(pair / "old.safetensors", old)
    write_safetensors(pair / "new.safetensors", new)
    run(pair / "old.safetensors", pair / "new.safetensors", "-o", pair / "p")
    run("show", pair / "p")
    lines = capsys.readouterr().out.splitlines()
    *row, size, bits = next(line for line in lines if line.startswith("w ")).split()[:5]
    assert row == ["w", "F32", "whole"] and bits == "-"
    assert "bytes: 1000 of 10000 words changed (10 %), " in lines[1] and lines[1].endswith(f"; 4000 others are sent whole, in {size} bytes")
    assert f"{8 * ((pair / 'p').stat().st_size - int(size)) / 1000:.2f} bits each" in lines[1]


def test_show_of_a_patch_without_names(pair, capsys):
    old = model()
    (pair / "p").write_bytes(deepreduce.patch.encode({**old, "more": old["embed"]}, {**stepped(old), "more": old["embed"]}, base="3"))
    run("show", pair / "p")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 -> (no name)" and [line.split("  ")[0] for line in lines[3:]] == ["1", "2", "3", "4", "5: 2 tensors"]


def test_status_and_sentence_of_each_failure(pair, capsys):
    old, new, p = pair / "old.safetensors", pair / "new.safetensors", pair / "p"
    run(old, new, "-o", p)
    whole = p.read_bytes()
    (pair / "cut").write_bytes(whole[:-9])
    (pair / "empty").write_bytes(b"")
    (pair / "short.safetensors").write_bytes(old.read_bytes()[:-1])
    (pair / "text.safetensors").write_text("no weights")
    write_safetensors(pair / "less.safetensors", {"embed": model()["embed"]})
    before = files(pair)
    for words, status, why in (
        (["apply", new, p, "-o", pair / "x.safetensors"], 1, "embed: its check is"),
        (["apply", old, pair / "cut", "-o", pair / "x.safetensors"], 1, "damaged"),
        (["apply", old, pair / "empty", "-o", pair / "x.safetensors"], 1, "the file is empty"),
        (["apply", old, old, "-o", pair / "x.safetensors"], 1, "not a patch"),
        (["apply", pair / "less.safetensors", p], 2, "'layer.0.weight'"),
        (["apply", old, pair / "none", "-o", pair / "x.safetensors"], 2, "none: "),
        (["apply", old, p, "-o", pair / "x.bin"], 2, "must end in .safetensors"),
        (["apply", old, p, "-o", pair / "no" / "x.safetensors"], 2, "cannot be written"),
        ([old, pair / "less.safetensors", "-o", pair / "x"], 2, "'layer.0.weight'"),
        ([old, pair / "short.safetensors", "-o", pair / "x"], 2, "short.safetensors: cut off: quantised ends at byte"),
        ([old, pair / "text.safetensors", "-o", pair / "x"], 2, "not a .safetensors file"),
        ([old, pair / "none.safetensors", "-o", pair / "x"], 2, "none.safetensors: cannot be read: No such file"),
        ([old, pair / "p", "-o", pair / "x"], 2, "p: not a .safetensors"),
        ([old, pair, "-o", pair / "x"], 2, "has 5 .safetensors files"),
        ([old, new, "-o", pair / "x", "--plan", "index=golomb"], 2, "cannot make patches"),
        ([old, new, "-o", pair / "x", "--plan", "nonsense"], 2, "nonsense"),
        (["show", old], 1, "not a patch"),
    ):
        run(*words, status=status)
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.startswith("deepreduce: ") and printed.err.count("\n") == 1, printed.err
        assert why in printed.err, printed.err
        assert files(pair) == before


def test_an_output_that_names_an_input_is_refused(pair, capsys):
    old, new, p = pair / "old.safetensors", pair / "new.safetensors", pair / "p"
    run(old, new, "-o", p)
    shards(pair / "shards", model())
    with deepreduce.patch.Store(pair / "store") as store:
        store.put(0, model())
    (pair / "link").symlink_to(new)
    capsys.readouterr()
    shard = pair / "shards" / "model-1.safetensors"
    before = [files(folder) for folder in (pair, pair / "shards", pair / "store")]
    for words in (
        (old, new, "-o", old),
        (old, new, "-o", pair / "link"),
        (pair / "shards", new, "-o", shard),
        ("apply", old, p, "-o", p),
        ("checkout", pair / "store", 0, "-o", pair / "store" / "manifest.json"),
    ):
        run(*words, status=2)
        assert capsys.readouterr().err == f"deepreduce: {words[-1]}: it is an input, which the output would replace\n"
    assert [files(folder) for folder in (pair, pair / "shards", pair / "store")] == before


@pytest.mark.parametrize(
    "places, why",
    [
        ([], "no weight_map"),
        ({"embed": 3}, "not a .safetensors file beside it"),
        ({"embed": "../old.safetensors"}, "not a .safetensors file beside it"),
        ({"embed": "old.safetensors"}, "has 'layer.0.weight', which weight_map has in another file or not at all"),
        ({**dict.fromkeys(model(), "old.safetensors"), "more": "old.safetensors"}, "does not have 'more'"),
    ],
)
def test_a_hostile_index_is_refused(pair, capsys, places, why):
    (pair / "m.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    run(pair / "m.safetensors.index.json", pair / "new.safetensors", "-o", pair / "x", status=2)
    assert why in capsys.readouterr().err


def test_a_folder_that_is_missing_is_named_and_not_a_file_beside_the_output(pair, capsys):
    run(pair / "old.safetensors", pair / "new.safetensors", "-o", pair / "p")
    shards(pair / "shards", model())
    with deepreduce.patch.Store(pair / "store") as store:
        store.put(0, model())
    capsys.readouterr()
    for words in (
        (pair / "old.safetensors", pair / "new.safetensors", "-o", pair / "none" / "p"),
        ("apply", pair / "old.safetensors", pair / "p", "-o", pair / "none" / "made.safetensors"),
        ("apply", pair / "shards", pair / "p", "-o", pair / "none" / "made"),
        ("checkout", pair / "store", 0, "-o", pair / "none" / "made.safetensors"),
    ):
        run(*words, status=2)
        assert capsys.readouterr().err == f"deepreduce: patch: {pair / 'none'}: cannot be written or read: No such file or directory\n"


def test_a_file_that_shrinks_meanwhile_is_an_error(pair):
    with _model_files.open_model(str(pair / "old.safetensors")) as opened:
        os.truncate(pair / "old.safetensors", 2000)
        with pytest.raises(deepreduce.ArgumentError, match="old.safetensors: cut off: byte [0-9]+ is missing"):
            opened.tensors["quantised"].part(0, 40_000, "x")


def test_names_of_files_do_not_steer_a_terminal(pair, capsys):
    for file, tensors in (("a", model()), ("b", stepped(model()))):
        write_safetensors(pair / f"{file}.safetensors", {"\x1b[31mred": tensors["embed"]})
    run(pair / "a.safetensors", pair / "b.safetensors", "-o", pair / "p")
    run("show", pair / "p")
    run("apply", pair / "b.safetensors", pair / "p", status=1)
    printed = capsys.readouterr()
    assert "?[31mred" in printed.out and "?[31mred" in printed.err and "\x1b" not in printed.out + printed.err


def test_progress_is_for_terminals(monkeypatch):
    from deepreduce.patch import _progress

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    now = iter([0.0, 0.05, 1.0, 2.0])
    monkeypatch.setattr(_progress.time, "monotonic", lambda: next(now))
    for stream, output in ((Terminal(), "\r\033[K[50 %, 1 s left] layer?\r\033[K[75 %, 1 s left] last\r\033[K"), (io.StringIO(), "")):
        now = iter([0.0, 0.05, 1.0, 2.0])
        monkeypatch.setattr(sys, "stderr", stream)
        with _progress.Progress(1000) as progress:
            for name, size in (("first", 100), ("layer\x1b", 400), ("last", 250)):
                progress(name, size)
        assert stream.getvalue() == output


def test_the_command(pair):
    path = os.pathsep.join(filter(None, (str(PACKAGE), os.environ.get("PYTHONPATH"))))

    def called(*words):
        return subprocess.run(
            [sys.executable, "-B", "-m", "deepreduce", *words], cwd=pair, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
        )

    assert called("patch", "old.safetensors", "new.safetensors", "-o", "p").returncode == 0
    assert called("patch", "apply", "old.safetensors", "p").returncode == 0
    assert files(pair)["old.safetensors"] == files(pair)["new.safetensors"]
    assert called("patch", "apply", "old.safetensors", "p").returncode == 1
    done = called("patch", "old.safetensors")
    assert done.returncode == 2 and "usage: deepreduce patch" in done.stderr
    for words in (("patch", "--help"), ("help", "patch")):
        done = called(*words)
        assert done.returncode == 0 and "patch apply BASE FILE" in done.stdout
