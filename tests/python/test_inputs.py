"""What the command reads: sparse matrices, .pt files, casts; and deepreduce.compare on arrays."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce import comparing  # noqa: E402
from deepreduce._native import _tool  # noqa: E402
from deepreduce._files import _torch_arrays  # noqa: E402
from deepreduce._files._npz import write_npz  # noqa: E402
from tool_runs import EXACT, NO_SPARSIFIER, SYNTH, TOOL, compare, needs_tool, refusal, rows_of, run  # noqa: E402

pytestmark = needs_tool
PACKAGE = pathlib.Path(deepreduce.__file__).resolve().parents[1]
QUICK = ("--repeat", "1", "--format", "json")


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is missing: pip install torch")


def command(*words, status=0, **variables):
    """`python -m deepreduce` of this package."""
    done = subprocess.run([sys.executable, "-m", "deepreduce", *map(str, words)], capture_output=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(PACKAGE), **variables})  # fmt: skip
    assert done.returncode == status, done.stderr.decode(errors="replace")
    return done


def read(path, *options, folder):
    """name -> [d], as the tool reads a file."""
    run("convert", path, *options, "--output", folder / "read.safetensors")
    return comparing.read_safetensors(folder / "read.safetensors")


# ---- Sparse -------------------------------------------------------------------------------------


def test_scipys_matrices_are_what_scipy_says_they_are(tmp_path):
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is missing: pip install scipy")
    random = numpy.random.default_rng(1)
    row, column = random.integers(0, 50, 400), random.integers(0, 70, 400)  # in no order, and some come again
    matrix = sparse.coo_matrix((random.integers(-8, 9, 400).astype("f4"), (row, column)), (50, 70))
    for form in ("coo", "csr", "csc"):
        for array in (matrix, matrix.astype("f8")):
            sparse.save_npz(tmp_path / "m.npz", array.asformat(form), compressed=form == "csr")
            (name, found), = read(tmp_path / "m.npz", folder=tmp_path).items()
            assert name == "" and numpy.array_equal(found, matrix.toarray().ravel())
    unordered = matrix.tocsr()[:, ::-1]  # indices of a row descend
    sparse.save_npz(tmp_path / "m.npz", unordered)
    assert numpy.array_equal(read(tmp_path / "m.npz", folder=tmp_path)[""], unordered.toarray().ravel())
    sparse.save_npz(tmp_path / "m.npz", sparse.block_diag([numpy.ones((2, 2))], format="bsr"))
    assert "format 'bsr' is not read; save x.tocsr()" in refusal("compare", tmp_path / "m.npz", "--plan", EXACT)
    # Arrays of one dimension or of three have `coords`.
    for shape in ((90,), (50, 70), (4, 5, 6)):
        places = numpy.array([random.integers(0, extent, 400) for extent in shape])
        dense = numpy.zeros(shape, "f4")
        numpy.add.at(dense, tuple(places), 1)
        parts = {"format": b"coo", "shape": shape, "data": numpy.ones(400, "f4"), "_is_array": True}
        numpy.savez(tmp_path / "m.npz", coords=places, **parts)
        assert numpy.array_equal(read(tmp_path / "m.npz", folder=tmp_path)[""], dense.ravel())
        numpy.savez(tmp_path / "m.npz", coords=places[1:], **parts)
        assert "do not go with a tensor of" in refusal("compare", tmp_path / "m.npz", "--plan", EXACT)
        places[0, 7] = shape[0]
        numpy.savez(tmp_path / "m.npz", coords=places, **parts)
        assert f"index {shape[0]} of entry 7 is not below {shape[0]}" in refusal("compare", tmp_path / "m.npz", "--plan", EXACT)


def test_two_tensors_that_rows_would_show_alike_are_refused_and_may_be_joined(tmp_path):
    """Their total had one of them."""
    numpy.savez(tmp_path / "g.npz", **{"w": numpy.ones(3000, "f4"), "v": numpy.ones(2000, "f4"), "w.indices": numpy.arange(0, 5000, 10),
                                       "w.values": numpy.ones(500, "f4"), "w.shape": [5000]})  # fmt: skip
    for how in ("--per-tensor", "--tensor=w"):
        assert "two tensors have the name 'w' in rows" in refusal("compare", tmp_path / "g.npz", how, "--plan", NO_SPARSIFIER)
    assert rows_of(compare(tmp_path / "g.npz", "--tensor", "v", plans=(NO_SPARSIFIER,)))[0]["d"] == 2000
    for how, d in (("--batch", 10000), ("--flat", 10000)):
        row, = rows_of(compare(tmp_path / "g.npz", how, plans=(NO_SPARSIFIER,)))
        assert row["d"] == d
    # One file given twice has none.
    numpy.savez(tmp_path / "h.npz", w=numpy.ones(3000, "f4"), v=numpy.ones(2000, "f4"))
    assert len(rows_of(compare(tmp_path / "h.npz", tmp_path / "h.npz", "--per-tensor", plans=(NO_SPARSIFIER,)))) == 4


def test_what_is_stored_as_sparse_is_not_sparsified_again(tmp_path):
    """A fifth of it is there, which in a dense array would be dense."""
    there = numpy.arange(0, 4000, 5)
    write_npz(tmp_path / "g.npz", {"indices": there, "values": numpy.ones(800, "f4"), "shape": numpy.array([4000])})
    plans = {row["plan"] for row in rows_of(compare(tmp_path / "g.npz", plans=(), repeat=1))}
    assert plans and not any("topr" in plan for plan in plans)
    row, = rows_of(compare(tmp_path / "g.npz", plans=("index=golomb value=raw",), repeat=1))
    assert (row["d"], row["r"], row["tensor"]) == (4000, 800, "")


def peak_memory(*words):
    """Bytes that the tool takes at most. (A child begins with the peak of its parent, so a small process stands between.)"""
    script = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run([sys.executable, "-c", script, TOOL, *map(str, words)], capture_output=True, timeout=120, check=True)
    return 1024 * int(done.stdout)


def test_a_sparse_matrix_takes_the_memory_of_its_file_and_of_the_dense_tensor(tmp_path):
    """Though all of its elements are entries, in no order, and some come again."""
    rows, columns = 1024, 4096
    dense = numpy.random.default_rng(2).standard_normal((rows, columns)).astype("f4")
    order = numpy.random.default_rng(3).permutation(dense.size + 1000) % dense.size
    forms = {
        "csr": {"indices": numpy.tile(numpy.arange(columns, dtype="i4"), rows), "indptr": numpy.arange(rows + 1, dtype="i4") * columns, "data": dense.ravel()},
        "coo": {"row": (order // columns).astype("i4"), "col": (order % columns).astype("i4"), "data": dense.ravel()[order]},
    }  # fmt: skip
    for form, arrays in forms.items():
        file = tmp_path / f"{form}.npz"
        numpy.savez(file, format=numpy.array(form.encode()), shape=numpy.array([rows, columns]), **arrays)
        for cast in ((), ("--cast", "bf16")):
            peak = peak_memory("convert", file, *cast, "--output", tmp_path / "read.safetensors")
            assert peak < file.stat().st_size + 2 * dense.nbytes + 2**24, form
    dense.ravel()[:1000] *= 2  # (those whose positions come again; twice a number is exact)
    assert numpy.array_equal(read(file, folder=tmp_path)[""], dense.ravel())


# ---- Types --------------------------------------------------------------------------------------


def test_float64_is_converted_with_a_word_and_integers_by_a_cast(tmp_path):
    numpy.save(tmp_path / "d.npy", numpy.linspace(0.1, 1, 2000))
    done = run("compare", tmp_path / "d.npy", "--plan", EXACT, *QUICK)
    assert b"d.npy: float64, converted to float32: largest relative change 6e-08" in done.stderr
    numpy.save(tmp_path / "i.npy", numpy.arange(2000))
    assert "--cast f32" in refusal("compare", tmp_path / "i.npy", "--plan", EXACT)
    done = run("compare", tmp_path / "i.npy", "--plan", EXACT, "--cast", "f16", *QUICK)
    assert b"int64, converted to float16: no relative change" in done.stderr
    numpy.save(tmp_path / "big.npy", numpy.full(2000, 10**6))
    done = run("compare", tmp_path / "big.npy", "--plan", EXACT, "--cast", "f16", *QUICK)
    assert b"float16: 2000 values too large: became infinite; no relative change of the others" in done.stderr
    assert [row["dtype"] for row in json.loads(done.stdout)["rows"]] == ["f16", "f16"]
    assert "'f8' is not one of f32, f16, bf16" in refusal("compare", tmp_path / "i.npy", "--cast", "f8")
    x = numpy.linspace(-3, 3, 1001).astype("f4")
    numpy.save(tmp_path / "x.npy", x)
    assert numpy.array_equal(read(tmp_path / "x.npy", "--cast", "f16", folder=tmp_path)[""], x.astype("f2"))


def test_whole_numbers_of_64_bits_are_rounded_once(tmp_path):
    """Just above the middle of two numbers in bf16; as a double it is the middle itself."""
    numpy.save(tmp_path / "i.npy", numpy.array([2**62 + 2**54 + 1, -(2**62) - 2**54 - 1, 2**62 + 2**54, 3], "i8"))
    run("convert", tmp_path / "i.npy", "--cast", "bf16", "--output", tmp_path / "o.safetensors")
    assert (tmp_path / "o.safetensors").read_bytes()[-8:] == numpy.array([0x5E81, 0xDE81, 0x5E80, 0x4040], "<u2").tobytes()


@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3), (5, 1, 4), (1, 1), (3, 0, 2), (2, 3, 4, 5), (600, 700)])
def test_both_orders_of_bytes_and_of_dimensions_are_read_as_numpy_flattens_them(tmp_path, shape):
    x = numpy.random.default_rng(4).standard_normal(shape)
    for kind in ("<f2", ">f2", "<f4", ">f4", "<f8", ">f8", ">i4", ">u8", "|i1"):
        array = (x if kind[1] == "f" else numpy.abs(10 * x)).astype(kind)
        cast = () if kind[1] == "f" else ("--cast", "f32")
        numpy.savez(tmp_path / "g.npz", c=numpy.ascontiguousarray(array), f=numpy.asfortranarray(array))
        numpy.save(tmp_path / "g.npy", numpy.asfortranarray(array))
        expected = array.astype("f2" if kind[1:] == "f2" else "f4").flatten()
        if expected.size:
            assert numpy.array_equal(read(tmp_path / "g.npy", *cast, folder=tmp_path)[""], expected), kind
            found = read(tmp_path / "g.npz", *cast, folder=tmp_path)
            assert list(found) == ["c", "f"], kind
            assert all(numpy.array_equal(array, expected) for array in found.values()), kind
        else:
            assert "g.npy holds no elements; nothing to compare" in refusal("convert", tmp_path / "g.npy", *cast)


def test_indices_and_values_of_a_sparse_tensor_may_have_any_order(tmp_path):
    indices, values = numpy.array([[2, 0, 1], [0, 3, 1]]), numpy.arange(1, 7, dtype="f8").reshape(3, 2)
    dense = numpy.zeros((3, 4, 2), "f4")
    dense[tuple(indices)] = values
    for order, end in (("C", ">"), ("F", "<"), ("F", ">")):
        arrays = {"indices": indices.astype(f"{end}i8"), "values": values.astype(f"{end}f8"), "shape": numpy.array(dense.shape, f"{end}i4")}
        numpy.savez(tmp_path / "g.npz", **{f"emb.{name}": numpy.asarray(array, order=order) for name, array in arrays.items()})
        assert numpy.array_equal(read(tmp_path / "g.npz", folder=tmp_path)["emb"], dense.ravel()), (order, end)


def test_an_array_in_fortran_order_takes_the_memory_of_its_file_and_of_the_tensor(tmp_path):
    x = numpy.asfortranarray(numpy.random.default_rng(5).standard_normal((2048, 1024)).astype(">f8"))
    numpy.save(tmp_path / "x.npy", x)
    # convert: the file's bytes, the tensor, and the file that is written.
    assert peak_memory("convert", tmp_path / "x.npy", "--output", tmp_path / "read.safetensors") < x.nbytes + 2 * (x.nbytes // 2) + 2**24
    assert numpy.array_equal(comparing.read_safetensors(tmp_path / "read.safetensors")[""], x.astype("f4").flatten())


def test_a_long_double_is_skipped_in_an_archive_and_in_a_directory(tmp_path):
    arrays = {"w": numpy.ones(20, "f4"), "wide": numpy.ones(20, numpy.longdouble)}
    numpy.savez(tmp_path / "g.npz", **arrays)
    (tmp_path / "folder").mkdir()
    for name, array in arrays.items():
        numpy.save(tmp_path / "folder" / f"{name}.npy", array)
    for given in ("g.npz", "folder"):
        done = run("convert", tmp_path / given, "--output", tmp_path / "read.safetensors")
        assert b"note: skipped: " in done.stderr and b"wide.npy: byte 10: dtype '<f16' is not read" in done.stderr
        assert [array.size for array in comparing.read_safetensors(tmp_path / "read.safetensors").values()] == [20]
    assert "dtype '<f16' is not read" in refusal("convert", tmp_path / "folder" / "wide.npy")


def test_a_directory_skips_an_array_of_integers_and_goes_on(tmp_path):
    numpy.save(tmp_path / "ids.npy", numpy.arange(20))
    numpy.save(tmp_path / "x.npy", numpy.ones(20, "f4"))
    done = run("compare", tmp_path, "--plan", EXACT, *QUICK)
    assert b"note: skipped: " in done.stderr and b"ids.npy" in done.stderr
    assert {row["input"] for row in json.loads(done.stdout)["rows"]} == {str(tmp_path / "x.npy")}


def test_an_infinite_gradient_is_called_inf(tmp_path):
    numpy.save(tmp_path / "x.npy", numpy.array([1, numpy.inf] * 50, "f4"))
    numpy.save(tmp_path / "h.npy", numpy.array([1, -numpy.inf] * 50, "f2"))
    for name, value in (("x", "value inf)"), ("h", "value -inf)")):
        message = refusal("encode", tmp_path / f"{name}.npy", "--plan", "index=raw value=qsgd", status=1)
        assert value in message and "at 1," in message


# ---- convert ------------------------------------------------------------------------------------


def test_convert_writes_what_was_read(tmp_path):
    arrays = {"b": numpy.arange(6, dtype="f4").reshape(2, 3), "a.small": numpy.array(2.5, "f2"), "long": numpy.ones(5)}
    numpy.savez(tmp_path / "g.npz", **arrays)
    found = read(tmp_path / "g.npz", folder=tmp_path)
    assert list(found) == ["b", "a.small", "long"]
    assert all(numpy.array_equal(found[name], array.ravel()) for name, array in arrays.items())
    assert list(read(tmp_path / "g.npz", "--tensor", "a.*", folder=tmp_path)) == ["a.small"]
    assert read(tmp_path / "g.npz", "--flat", folder=tmp_path)["* (f32)"].size == 11
    run("compare", tmp_path / "read.safetensors", "--plan", EXACT, *QUICK)
    message = refusal("convert", tmp_path / "g.npz", tmp_path / "g.npz", "--output", tmp_path / "x")
    assert "two tensors are called 'b'" in message and not (tmp_path / "x").exists()


def test_convert_keeps_names_as_they_are_and_compare_shows_them_with_escapes(tmp_path):
    names = ["größe", 'a b"c', "back\\slash", "\\u0041", "line\nend", "層.0/重み"]
    numpy.savez(tmp_path / "g.npz", **{name: numpy.full(3, i, "f4") for i, name in enumerate(names)})
    found = read(tmp_path / "g.npz", folder=tmp_path)
    assert [found[name].tolist() for name in names] == [[i] * 3 for i in range(len(names))] and len(found) == len(names)
    first = (tmp_path / "read.safetensors").read_bytes()
    run("convert", tmp_path / "read.safetensors", "--output", tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == first
    assert list(read(tmp_path / "read.safetensors", "--tensor", "grö*", "--tensor", "line*", folder=tmp_path)) == ["größe", "line\nend"]
    rows = rows_of(compare(tmp_path / "again.safetensors", "--tensor", "*", plans=("index=raw value=raw",), repeat=1))
    assert [row["tensor"] for row in rows] == [json.dumps(name)[1:-1] for name in names]
    sparse = {"é.indices": numpy.array([1]), "é.values": numpy.ones(1, "f4"), "é.shape": numpy.array([2])}
    numpy.savez(tmp_path / "s.npz", **sparse)
    assert list(read(tmp_path / "s.npz", folder=tmp_path)) == ["é"]


def test_convert_refuses_a_tensor_of_the_name_that_the_format_keeps_for_itself(tmp_path):
    numpy.savez(tmp_path / "g.npz", w=numpy.ones(3, "f4"), __metadata__=numpy.ones(3, "f4"))
    message = refusal("convert", tmp_path / "g.npz", "--output", tmp_path / "x")
    assert "'__metadata__'" in message and "rename it" in message and not (tmp_path / "x").exists()
    assert list(read(tmp_path / "g.npz", "--flat", folder=tmp_path)) == ["*"]


def test_bytes_are_not_written_to_a_terminal(tmp_path):
    numpy.save(tmp_path / "x.npy", numpy.ones(3, "f4"))
    for words in (("convert",), ("encode", "--plan", "index=raw value=raw")):
        ours, theirs = os.openpty()
        done = subprocess.run([TOOL, *words, tmp_path / "x.npy"], stdout=theirs, stderr=subprocess.PIPE, timeout=120)
        os.close(theirs), os.close(ours)
        assert done.returncode == 2 and words[0].encode() in done.stderr and b"standard output is a terminal" in done.stderr


def test_a_files_name_cannot_steer_the_terminal(tmp_path):
    numpy.save(tmp_path / "\x1b[31mred.npy", numpy.arange(3))
    numpy.save(tmp_path / "two\nlines\x9b31m.npy", numpy.arange(3))
    numpy.save(tmp_path / "x.npy", numpy.ones(3, "f4"))
    note = run("convert", tmp_path, "--output", tmp_path / "o").stderr
    error = refusal("convert", tmp_path / "\x1b[31mred.npy").encode()
    for text in (note, error):
        assert b"?[31mred.npy" in text and b"\x1b" not in text
    assert b"two?lines?31m.npy" in note


def test_a_name_that_is_no_text_is_written_with_escapes(tmp_path):
    numpy.savez(tmp_path / "g.npz", xy=numpy.ones(3, "f4"))
    (tmp_path / "g.npz").write_bytes((tmp_path / "g.npz").read_bytes().replace(b"xy.npy", b"x\xff.npy"))
    assert list(read(tmp_path / "g.npz", folder=tmp_path)) == ["x\\ufffd"]


# ---- .pt ----------------------------------------------------------------------------------------


def test_pt_files_are_read_by_the_command_and_named_in_the_rows(torch, tmp_path):
    torch.manual_seed(0)
    embedding = torch.sparse_coo_tensor(torch.tensor([[7, 2, 7]]), torch.randn(3, 4), (9, 4))
    weight = torch.randn(30, 40).t()
    state = {"model": {"weight": weight, "layers": [torch.ones(3), torch.ones(2, dtype=torch.bfloat16)]},
             "emb": embedding, "seen": torch.tensor(3), "step": 7, "name": "x"}  # fmt: skip
    torch.save(state, tmp_path / "g.pt")
    done = command("compare", tmp_path / "g.pt", "--tensor", "*", "--plan", "index=raw value=raw", *QUICK)
    rows = rows_of(json.loads(done.stdout))
    assert {row["input"] for row in rows} == {str(tmp_path / "g.pt")}
    assert f"{tmp_path / 'g.pt'}: seen.npy".encode() in done.stderr  # (of integers)
    assert [(row["tensor"], row["dtype"], row["d"]) for row in rows] == [
        ("model.weight", "f32", 1200), ("model.layers.0", "f32", 3), ("model.layers.1", "bf16", 2), ("emb", "f32", 36)]
    assert b"step: skipped, is not a tensor but int" in done.stderr and b"come again, added up" in done.stderr
    command("convert", tmp_path / "g.pt", "--cast", "f32", "--output", tmp_path / "g.safetensors")
    found = comparing.read_safetensors(tmp_path / "g.safetensors")
    assert numpy.array_equal(found["model.weight"], weight.contiguous().numpy().ravel())
    assert numpy.allclose(found["emb"], embedding.to_dense().numpy().ravel(), rtol=1e-6)
    message = refusal("compare", tmp_path / "g.pt")
    assert "pickles" in message and "`python -m deepreduce convert FILE.pt --output FILE.safetensors` reads it safely" in message


@pytest.mark.parametrize("name", [b"\xffg.pt", b"\xffg.npz", "é.pt".encode(), b'"g".pt'])
def test_files_of_odd_names_are_read(torch, name, tmp_path):
    """torch reads no path that is not UTF-8, and rows have the names of .pt files with escapes."""
    (tmp_path / "codec.py").write_text(
        "import deepreduce.codec, numpy\n"
        "@deepreduce.codec.value('plain')\n"
        "class Plain:\n"
        "    def encode(self, values): return values.tobytes()\n"
        "    def decode(self, data, count, dtype): return numpy.frombuffer(data, dtype)\n"
    )
    path = os.fsencode(tmp_path) + b"/" + name
    with open(path, "wb") as file:
        g = numpy.random.default_rng(0).standard_normal(3000).astype("f4")
        torch.save({"w": torch.from_numpy(g)}, file) if name.endswith(b".pt") else numpy.savez(file, w=g)
    plans = [word for value in ("raw", "plain") for word in ("--plan", f"sparsify=topr(ratio=0.1) index=golomb value={value}")]
    done = command("compare", os.fsdecode(path), "--python-codec", tmp_path / "codec.py", *plans, *QUICK)
    rows = rows_of(json.loads(done.stdout))
    assert len(rows) == 2 and rows[0]["bytes"] == rows[1]["bytes"]


def test_a_pickle_is_never_run(torch, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"x": torch.ones(3), "y": Evil()}, tmp_path / "evil.pth")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "evil.pth").read_bytes()[:100])
    torch.save({"lr": 0.1}, tmp_path / "none.pt")
    for name, sentence in (("evil.pth", "not tensors alone"), ("cut.pt", "it is damaged"), ("none.pt", "holds no tensor")):
        done = command("compare", tmp_path / name, status=2)
        assert sentence in done.stderr.decode() and name in done.stderr.decode() and b"Traceback" not in done.stderr
        assert b"\x1b" not in done.stderr and b"trust" not in done.stderr  # nothing of torch's advice
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("innermost", ["tensor", "empty"])
def test_a_small_pt_file_of_shared_lists_is_refused_at_once(torch, tmp_path, innermost):
    """40 lists in one another, each of twice the next, are 2^40 tensors, or as many empty lists."""
    nested = [torch.ones(1)] if innermost == "tensor" else []
    for _ in range(40):
        nested = [nested, nested]
    torch.save(nested, tmp_path / "g.pt")
    begin = time.monotonic()
    done = command("compare", tmp_path / "g.pt", "--plan", EXACT, status=2)
    assert b"g.pt: 0.0." in done.stderr and b"more than 1000000 members" in done.stderr and b"Traceback" not in done.stderr
    assert time.monotonic() - begin < 240


def test_a_small_pt_file_of_a_huge_tensor_is_refused_by_name(torch, tmp_path):
    huge = torch.zeros(1).expand(10**13)
    for name, tensors in (("dense", {"small": torch.ones(3), "w": huge}), ("shared", {"w": [torch.zeros(1).expand(10**8)] * 4}),
                          ("sparse", {"w": torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1).expand(1, 10**9), (2, 10**9))})):  # fmt: skip
        torch.save(tensors, tmp_path / f"{name}.pt")
        done = command("compare", tmp_path / f"{name}.pt", "--plan", EXACT, status=2)
        assert f"{name}.pt: w".encode() in done.stderr and b"bytes may hold" in done.stderr and b"Traceback" not in done.stderr
    torch.save({"w": torch.ones(1).expand(3000), "far": torch.empty(10**13, device="meta")}, tmp_path / "fine.pt")
    assert [row["d"] for row in deepreduce.compare(tmp_path / "fine.pt", EXACT, repeat=1)] == [3000, 3000]


def test_a_pt_file_with_tensors_and_names_that_no_npz_has(torch, tmp_path):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    torch.save({"w": torch.arange(5.0), "deep": torch.zeros([1] * 70), "nested": nested}, tmp_path / "g.pt")
    found, notes = _torch_arrays.read_file(tmp_path / "g.pt")
    assert list(found) == ["w"] and found["w"].tolist() == [0, 1, 2, 3, 4]
    assert [note.partition(".pt: ")[2] for note in notes] == [
        "deep: skipped, torch.float32 of 70 dimensions is not read", "nested: skipped, a nested tensor is not read"]
    torch.save({"\ud800": torch.ones(3)}, tmp_path / "g.pt")
    done = command("compare", tmp_path / "g.pt", "--plan", EXACT, status=2)
    assert b"it cannot be that of a member" in done.stderr and b"Traceback" not in done.stderr


def test_a_pt_file_without_room_for_its_copy(torch, tmp_path):
    torch.save({"w": torch.ones(10_000)}, tmp_path / "g.pt")
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); from deepreduce.__main__ import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", limit, "compare", str(tmp_path / "g.pt")], capture_output=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(PACKAGE)})  # fmt: skip
    assert done.returncode == 2 and b"g.pt: its copy in " in done.stderr and b"File too large; set TMPDIR" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_pt_file_that_an_option_names_is_no_input(torch, tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "out.pt")
    torch.save({"w": torch.arange(5.0)}, tmp_path / "g.pt")
    command("convert", tmp_path / "g.pt", "--output", tmp_path / "out.pt")
    assert comparing.read_safetensors(tmp_path / "out.pt")["w"].tolist() == [0, 1, 2, 3, 4]


def test_an_output_that_names_a_pt_input_is_refused(torch, tmp_path):
    """The tool reads a copy of it, and so cannot know."""
    torch.save({"w": torch.ones(3)}, tmp_path / "g.pt")
    (tmp_path / "codec.py").write_text("")
    (tmp_path / "link.pt").symlink_to("g.pt")
    before = (tmp_path / "g.pt").read_bytes()
    coded = ("compare", "--python-codec", tmp_path / "codec.py", SYNTH, "--plan", EXACT)
    for words, file in (
        (("encode", tmp_path / "g.pt", "--plan", EXACT, "-o"), "g.pt"),
        (("encode", tmp_path / "link.pt", "--plan", EXACT, "--output"), "g.pt"),
        (("compare", tmp_path / "g.pt", "--plan", EXACT, "--report"), "g.pt"),
        ((*coded, "-o"), "codec.py"),
    ):
        assert f"{file}: it is an input" in command(*words, tmp_path / file, status=2).stderr.decode()
    assert b"it is an input" in command("encode", tmp_path / "g.pt", "--plan", EXACT, f"--output={tmp_path / 'link.pt'}", status=2).stderr
    assert (tmp_path / "g.pt").read_bytes() == before and (tmp_path / "codec.py").read_text() == ""


# ---- The command, and the function --------------------------------------------------------------


def test_python_m_deepreduce_is_the_tool():
    assert command("--version").stdout == run("--version").stdout == run("-V").stdout
    assert command("presets").stdout == run("presets").stdout
    assert b"no index codec is called 'nope'" in command("compare", SYNTH, "--plan", "index=nope", status=2).stderr
    help_text = command("--help").stdout.decode()
    assert "compare" in help_text and "capture" in help_text and "figure" in help_text
    assert b"--limit SIZE" in command("help", "capture").stdout
    message = command("presets", status=2, DEEPREDUCE_TOOL="/no/such/tool").stderr.decode()
    assert "tried:\n  /no/such/tool" in message


def test_standard_output_that_cannot_be_written_is_an_error_in_the_tools_words(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    weights = numpy.zeros(100, numpy.float32)
    (tmp_path / "p").write_bytes(deepreduce.patch.encode({"w": weights}, {"w": weights + 1}))
    help_of_patch, show = ("patch", "--help"), ("patch", "show", str(tmp_path / "p"))
    closed, full = (">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")
    for words, (to, why), unbuffered in ((("codecs",), closed, ""), (("--help",), full, ""), (help_of_patch, full, ""), (help_of_patch, full, "1"),
                                         (("help", "codec"), closed, ""), (show, closed, ""), (show, full, "")):  # fmt: skip
        variables = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(["sh", "-c", f'exec "$@" {to}', "sh", sys.executable, "-m", "deepreduce", *words], stderr=subprocess.PIPE, timeout=120, env=variables)
        assert (done.returncode, done.stderr.decode()) == (2, f"deepreduce: cannot write standard output: {why}\n"), (words, to, unbuffered)


def test_the_tool_says_which_options_take_a_value():
    """The options that packaging/cli_help.py finds with a value are those that the package knows."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "packaging"))
    import cli_help

    for command in cli_help.read_program(TOOL):
        if command.name in ("compare", "encode", "convert"):
            valued = {name for option in command.options if option.argument for name in option.names}
            assert _tool.options_with_values(command.name) == valued, command.name


def test_compare_takes_arrays_paths_and_sparse_tensors(tmp_path):
    x = numpy.random.default_rng(0).standard_normal(3000).astype("f4")
    memcpy, exact = deepreduce.compare(x, EXACT, repeat=1)
    assert memcpy["plan"] == "memcpy" and (exact["plan"], exact["r"], exact["input"]) == (EXACT, 30, "array")
    numpy.save(tmp_path / "x.npy", x)
    assert deepreduce.compare(tmp_path / "x.npy", [EXACT], repeat=1)[1]["bytes"] == exact["bytes"]
    rows = deepreduce.compare({"a": x, "b": x.astype("f2"), "c": None}, EXACT, repeat=1, tensor=["a", "b"])
    assert [(row["tensor"], row["dtype"]) for row in rows if row["plan"] == EXACT] == [("a", "f32"), ("b", "f16")]
    sparse = deepreduce.Sparse(numpy.array([5, 1]), numpy.ones((2, 3), "f4"), (9, 3))
    row = deepreduce.compare({"emb": sparse}, "index=raw value=raw", repeat=1)[1]
    assert (row["tensor"], row["d"], row["r"]) == ("emb", 27, 6)
    with pytest.raises(deepreduce.ArgumentError, match="no index codec is called 'nope'"):
        deepreduce.compare(x, "index=nope")
    with pytest.warns(UserWarning, match="qsgd"):
        rows = deepreduce.compare(numpy.full(100, numpy.nan, "f4"), ["index=raw value=qsgd", "index=raw value=raw"], repeat=1)
    assert [row["plan"] for row in rows] == ["memcpy", "index=raw value=raw"]


def test_compare_takes_one_plan_and_several_gradients():
    x = numpy.random.default_rng(0).standard_normal(3000).astype("f4")
    expected, = rows_of({"rows": deepreduce.compare(x, EXACT, repeat=1)})
    row, = rows_of({"rows": deepreduce.compare(x, deepreduce.Plan(EXACT), repeat=1)})
    assert (row["plan"], row["bytes"]) == (EXACT, expected["bytes"])
    rows = rows_of({"rows": deepreduce.compare([x, None, x[:2000].reshape(40, 50), x], [deepreduce.Plan(EXACT)], repeat=1, tensor="*")})
    assert [(row["tensor"], row["d"]) for row in rows] == [("0", 3000), ("2", 2000), ("3", 3000)]
    rows = deepreduce.compare(x, [EXACT, NO_SPARSIFIER], repeat=1, pareto="bytes")
    assert [row["plan"] for row in rows] == [EXACT]


@pytest.mark.parametrize("inputs, sentence", [
    ([1.0, 2.0], "'0' is a float, not an array"),
    ({"w": [1.0, 2.0]}, "'w' is a list, not an array"),
    (["g.npz", numpy.ones(3, "f4")], "the inputs mix paths .'g.npz'. and arrays"),
    ([], "the inputs have no tensor to compare"),
    ({3: numpy.ones(3, "f4"), "3": numpy.ones(3, "f4")}, "'3': two tensors have this name"),
    ({"w": deepreduce.Sparse(numpy.array([1]), numpy.ones(1, "f4"), (3,)), "w.indices": numpy.ones(3, "f4")}, "'w.indices': two tensors have"),
    ({"a\0b": numpy.ones(3, "f4")}, "it cannot be that of a member"),
    ({"\ud800": numpy.ones(3, "f4")}, "it cannot be that of a member"),
    ({"x" * 70_000: numpy.ones(3, "f4")}, "it cannot be that of a member"),
    ({"w": numpy.array([None])}, "'w' is of object, which is not a type of numbers"),
], ids=lambda given: str(given)[:30].encode("ascii", "backslashreplace").decode())  # fmt: skip
def test_what_compare_does_not_take_is_said(inputs, sentence):
    with pytest.raises(deepreduce.ArgumentError, match=sentence):
        deepreduce.compare(inputs, EXACT)


def test_compare_takes_sparse_tensors_of_torch(torch):
    indices = torch.tensor([5, 1])
    for values, dtype in ((torch.ones(2, dtype=torch.bfloat16), "bf16"), (torch.ones(2, requires_grad=True), "f32")):
        row = deepreduce.compare(deepreduce.Sparse(indices, values, (2000,)), "index=raw value=raw", repeat=1)[1]
        assert (row["d"], row["r"], row["dtype"]) == (2000, 2, dtype)
