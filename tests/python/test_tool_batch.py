"""The tool `deepreduce`: tensors of an input in one frame."""

import json

import pytest

from tool_runs import DATASETS, EXACT, LOSSY, TOPR, compare, needs_tool, refusal, rows_of, run, words_of, write_npy, write_npz

pytestmark = needs_tool

PLANS = (EXACT, LOSSY, TOPR + "index=auto value=auto(error=0.05)", "sparsify=random(ratio=0.02) index=bloom(policy=p0,fpr=0.01) value=raw",
         "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw", TOPR + "index=golomb value=fit_poly bucket=flat")


def encoded(file, plan, folder, *arguments):
    frame = folder / "frame"
    run("encode", file, "--plan", plan, "--output", frame, *arguments)
    return frame.stat().st_size


def test_a_batch_has_the_bytes_that_encode_gives(tmp_path):
    file = sorted((DATASETS / "gradients").glob("resnet20*.npz"))[0]
    rows = rows_of(compare(file, "--batch", "--seed", 5, plans=PLANS, repeat=1))
    assert [row["plan"] for row in rows] == list(PLANS)
    for row in rows:
        assert row["bytes"] == encoded(file, row["plan"], tmp_path, "--seed", 5), row["plan"]
        assert row["tensor"] == "[59 tensors]" and row["d"] == 269722
        assert row["bytes"] == row["index_bytes"] + row["value_bytes"] + row["order_bytes"] + row["header_bytes"]
    exact, lossy, auto, _, residual, _ = rows
    assert exact["relative_l2_error"] == residual["relative_l2_error"] == 0 and exact["index_recall"] == 1
    assert exact["total_error"] == residual["total_error"] < lossy["total_error"] < 1
    assert auto["choice"].startswith("index=")


def test_a_batch_is_the_sum_of_its_tensors(tmp_path):
    arrays = {name: write_npy(tmp_path / f"{name}.npy", [((i * k) % 101 - 50) / 8 for i in range(2000 * k)]) for k, name in enumerate("abc", 1)}
    file = write_npz(tmp_path / "g.npz", **arrays)
    plan = "sparsify=topr(ratio=0.1) index=golomb value=qsgd"
    whole, = rows_of(compare(file, "--batch", plans=(plan,)))
    rows = rows_of(compare(file, "--per-tensor", plans=(plan,)))
    for name in ("d", "r", "support", "index_bytes", "value_bytes"):
        assert whole[name] == sum(row[name] for row in rows)
    bound = sum(row["index_bound_bits_per_nonzero"] * row["r"] for row in rows) / whole["r"]
    assert whole["index_bound_bits_per_nonzero"] == pytest.approx(bound)
    table = compare(file, "--batch", plans=(plan,), form="table")
    assert "g.npz  [3 tensors], d = 12,000, 48 kB as f32\n" in table


def test_empty_tensors_other_types_and_single_ones_are_as_encode_has_them(tmp_path):
    mixed = write_npz(tmp_path / "mixed.npz", a=write_npy(tmp_path / "a.npy", [1.0, 0.0, 2.0] * 400), e=write_npy(tmp_path / "e.npy", []),
                      h=write_npy(tmp_path / "h.npy", [0.5, -3.0] * 400, "<f2", "e"))
    single = write_npz(tmp_path / "single.npz", a=tmp_path / "a.npy")
    for file, dtype, tensor in ((mixed, "f16+f32", "[3 tensors]"), (single, "f32", "a"), (tmp_path / "a.npy", "f32", "")):
        row, = rows_of(compare(file, "--batch", plans=(EXACT,)))
        assert (row["dtype"], row["tensor"]) == (dtype, tensor)
        assert row["bytes"] == encoded(file, EXACT, tmp_path)
    assert "holds no elements; nothing to compare" in refusal("compare", tmp_path / "e.npy", "--batch")


def test_a_table_says_that_tensors_are_joined_and_encode_that_they_are_not(tmp_path):
    file = write_npz(tmp_path / "g.npz", a=write_npy(tmp_path / "a.npy", [1.0, 0.0, 2.0] * 400), b=tmp_path / "a.npy")
    assert "g.npz, its tensors joined (--batch: one by one, as `encode`), d = 2,400" in words_of(compare(file, form="table"))
    assert "joined" not in compare(file, "--batch", form="table") + compare(tmp_path / "a.npy", form="table")
    printed = run("encode", file, "--plan", EXACT, "-o", tmp_path / "frame").stderr.decode()
    assert printed == "deepreduce: note: 2 tensors in one frame, each with its own share of elements; `compare` joins them, `compare --batch` measures this frame\n"
    for plan in (EXACT + " bucket=flat", "index=all value=raw"):
        assert run("encode", file, "--plan", plan, "-o", tmp_path / "frame").stderr == b""


@pytest.mark.parametrize("stage", ["", " bucket=flat"])
def test_decode_gives_tensors_the_names_and_shapes_of_an_input(tmp_path, stage):
    numpy = pytest.importorskip("numpy")
    tensors = {"a/b": numpy.arange(12, dtype="f4").reshape(3, 4), "c": numpy.float32(5), "d": numpy.arange(7, dtype="f4")}
    numpy.savez(tmp_path / "g.npz", **tensors)
    run("encode", tmp_path / "g.npz", "--plan", "index=all value=raw" + stage, "-o", tmp_path / "frame")
    run("decode", tmp_path / "frame", "--like", tmp_path / "g.npz", "-o", tmp_path / "x.npz")
    found = numpy.load(tmp_path / "x.npz")
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].shape == tensor.shape and numpy.array_equal(found[name], tensor)
    write_npy(tmp_path / "other.npy", [1.0] * 5)
    assert "--like " in refusal("decode", tmp_path / "frame", "--like", tmp_path / "other.npy", "-o", tmp_path / "y.npz")
    run("encode", tmp_path / "other.npy", "--plan", "index=all value=raw", "-o", tmp_path / "one")
    run("decode", tmp_path / "one", "--like", tmp_path / "other.npy", "-o", tmp_path / "one.npy")
    assert numpy.array_equal(numpy.load(tmp_path / "one.npy"), numpy.ones(5, "f4"))
    assert "use .npz with --like" in refusal("decode", tmp_path / "one", "--like", tmp_path / "other.npy", "-o", tmp_path / "one.f32")
    numpy.savez(tmp_path / "short.npz", **{**tensors, "d": numpy.zeros(6, "f4")})
    assert "elements" in refusal("decode", tmp_path / "frame", "--like", tmp_path / "short.npz", "-o", tmp_path / "y.npz") or stage


def test_decode_gives_any_name_of_an_input_that_an_npz_can_hold(tmp_path):
    numpy = pytest.importorskip("numpy")
    tensors = {"café": numpy.arange(3, dtype="f4"), "b": numpy.ones(4, "f4")}
    numpy.savez(tmp_path / "g.npz", **tensors)
    run("encode", tmp_path / "g.npz", "--plan", "index=all value=raw", "-o", tmp_path / "frame")
    run("decode", tmp_path / "frame", "--like", tmp_path / "g.npz", "-o", tmp_path / "x.npz")
    found = numpy.load(tmp_path / "x.npz")
    assert {name: found[name].tolist() for name in found} == {name: tensor.tolist() for name, tensor in tensors.items()}
    header = json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}, "x" * 65532: {"dtype": "F32", "shape": [4], "data_offsets": [12, 28]}}).encode()
    (tmp_path / "long.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(28))
    words = ("decode", tmp_path / "frame", "--like", tmp_path / "long.safetensors", "-o", tmp_path / "y.npz")
    assert b"names of at most 65,531 bytes; one has 65532" in run(*words, status=1).stderr
    (tmp_path / "two").mkdir()
    for file, size in (("a.npz", 3), ("b.npz", 4)):
        numpy.savez(tmp_path / "two" / file, w=numpy.zeros(size, "f4"))
    assert "two tensors are called 'w'" in refusal("decode", tmp_path / "frame", "--like", tmp_path / "two", "-o", tmp_path / "y.npz")
    assert not (tmp_path / "y.npz").exists()


def test_a_batch_goes_through_steps(tmp_path):
    files = []
    for step in range(3):
        parts = {name: write_npy(tmp_path / f"{name}.npy", [((i + 7 * step) % 64 - 32) / 4 for i in range(n)]) for name, n in (("a", 1000), ("b", 500))}
        files.append(write_npz(tmp_path / f"{step}.npz", **parts))
    plans = ("sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw", "sparsify=topr(ratio=0.1) index=golomb value=raw")
    with_residual, without = rows_of(compare(*files, "--batch", "--steps", 9, plans=plans))
    assert with_residual["step"] == 9 and with_residual["total_error"] < without["total_error"]
    other = write_npz(tmp_path / "other.npz", a=tmp_path / "a.npy")
    assert "1 tensors, but 2" in refusal("compare", *files, other, "--batch", "--steps", 4)


def test_a_failing_tensor_fails_its_batch_alone(tmp_path):
    bad = write_npz(tmp_path / "bad.npz", a=write_npy(tmp_path / "a.npy", [1.0] * 1000), n=write_npy(tmp_path / "n.npy", [float("nan")] * 1000))
    done = run("compare", bad, "--batch", "--plan", LOSSY, "--plan", EXACT, "--repeat", 1, "--format", "json", status=1)
    report = json.loads(done.stdout)
    assert [row["plan"] for row in rows_of(report)] == [EXACT] and [f["plan"] for f in report["failures"]] == [LOSSY]
