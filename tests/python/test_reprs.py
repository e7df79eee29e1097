"""What a prompt prints of an object is one line that says what it is."""

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce import Batch, Sparse, inspect, patch  # noqa: E402

X = numpy.random.default_rng(0).standard_normal(100_000).astype("f4")
PLAN = "sparsify=topr(ratio=0.01) index=golomb value=uniform_quant(bits=8)"


def test_a_frame_has_a_line_of_its_size_shape_codecs_and_tag():
    frame = deepreduce.encode(X, PLAN, tag=7)
    assert repr(inspect(frame)) == f"<Frame {len(frame):,} B: 1 tensor f32[100,000], 1,000 selected, golomb+uniform_quant, tag 7>"
    frame = deepreduce.encode([X, X[:3000].astype("f2")], PLAN)
    assert repr(inspect(frame)) == f"<Frame {len(frame):,} B: 2 tensors of 103,000 f32 and f16, 1,030 selected, golomb+uniform_quant>"
    rows = Sparse(numpy.array([1, 2]), numpy.ones((2, 3), "f4"), (9, 3))
    frame = deepreduce.encode([rows, X], ["index=raw value=raw+deflate", PLAN])
    assert repr(inspect(frame)) == f"<Frame {len(frame):,} B: 2 tensors of 100,027 f32, 1,002 selected, 2 pairs of codecs>"
    assert "[9 x 3], 2 selected, raw+raw+deflate>" in repr(inspect(deepreduce.encode(rows, "index=raw value=raw+deflate")))


def test_a_frame_of_a_status_and_one_of_a_patch_say_so():
    bad = numpy.array([numpy.nan, 1], "f4")
    status = deepreduce.encode(bad, "index=raw value=qsgd", status_frame=True)
    assert repr(inspect(status)).startswith(f"<Frame {len(status)} B: status ARGUMENT: ")
    changed = X.copy()
    changed[5] += 1
    ((_, frame),) = patch._patch_file.Patch(memoryview(patch.encode(X, changed))).frames()
    assert repr(inspect(frame)).endswith(", patch>") and "1 selected" in repr(inspect(frame))


def test_sparse_batch_and_bound_are_a_line():
    frame = deepreduce.encode([X], PLAN)
    assert repr(deepreduce.decode(frame, sparse=True)) == "[<Sparse 1,000 of 100,000 f32>]"
    assert repr(Sparse(numpy.array([1]), numpy.ones((1, 64), "f2"), (9, 64))) == "<Sparse 1 of 9 rows of 64 f16>"
    assert repr(Sparse([1, 2], [3.0, 4.0], 5)) == "<Sparse 2 of 5>"
    batch = Batch([X, X, X[:50]], PLAN)
    size = f"{batch.bound / 1000:.4g} kB"
    assert repr(batch) == f"<Batch 3 tensors, bound {size}>"
    arrays = [X.copy(), X.copy(), X[:50].copy()]
    assert repr(batch.bind(arrays)) == f"<Bound 3 tensors, x, bound {size}>"
    assert repr(batch.bind(arrays, [array.copy() for array in arrays])) == f"<Bound 3 tensors, x and out, bound {size}>"
    assert repr(Batch(X, PLAN)).startswith("<Batch 1 tensor, bound ")


def test_the_properties_of_a_plan_are_those_that_it_has():
    info = deepreduce.Plan("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=qsgd").info
    assert repr(info) == "<PlanInfo sparsifies, feedback, residual, lossy_values, private_random; of float32, float16, bfloat16>"
