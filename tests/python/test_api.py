"""What the Python package promises. Expected values come from numpy, never from the library."""

import array
import ctypes.util
import math
import os
import pickle
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce import Plan, Sparse, State, decode, encode, inspect, merge  # noqa: E402
from deepreduce._native import _call, _memory  # noqa: E402

F32 = numpy.float32
RAW = "index=raw value=raw"
KEEP_2 = "sparsify=topr(count=2) feedback=residual"
SEED = int(os.environ.get("DEEPREDUCE_TEST_SEED", 20211))


@pytest.fixture
def rng():
    print(f"DEEPREDUCE_TEST_SEED={SEED}")
    return numpy.random.default_rng(SEED)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is missing: pip install torch")


@pytest.fixture
def bfloat16():
    return pytest.importorskip("ml_dtypes", reason="ml_dtypes is missing: pip install ml_dtypes").bfloat16


def f32(*values):
    return numpy.array(values, F32)


def largest(x, ratio):
    """Ascending positions of the topr of a 1-D x: of equals the lower one, never a zero."""
    count = min(x.size, max(1, int(ratio * x.size + 1e-9)))
    order = numpy.lexsort((numpy.arange(x.size), -numpy.abs(x)))[:count]
    return numpy.sort(order[x[order] != 0])


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# ---- Codecs -------------------------------------------------------------------------------------


def plans_of(role):
    """`name`, or `name(parameter=…)` with the least of what is required, for every codec of the role."""
    try:
        other = {"prefix", "needs_base"}  # of no plan alone; of patches: test_patch.py
        codecs = [codec for codec in deepreduce.codecs() if codec.role == role and not other & set(codec.traits)]
    except deepreduce.LibraryError:
        return ["no-library"]  # conftest.py skips these tests
    texts = []
    for codec in codecs:
        required = [f"{p.name}={p.choices[0] if p.choices else p.range[0]}" for p in codec.parameters if p.required]
        texts.append(codec.name + (f"({','.join(required)})" if required else ""))
    return texts


def codec_of(role, stage):
    name = stage.partition("(")[0]
    return next(codec for codec in deepreduce.codecs() if (codec.role, codec.name) == (role, name))


@pytest.mark.parametrize("value", plans_of("value"))
@pytest.mark.parametrize("index", plans_of("index"))
def test_every_index_codec_goes_with_every_value_codec(index, value, rng):
    x = rng.standard_normal(3000).astype(F32)
    frame = encode(x, f"sparsify=topr(ratio=0.1) index={index} value={value}")
    sparse = decode(frame, sparse=True)
    if "replaces_support" not in codec_of("index", index).traits:
        assert numpy.array_equal(sparse.indices, largest(x, 0.1))
    expected = numpy.zeros_like(x)
    expected[sparse.indices] = x[sparse.indices]
    dense = decode(frame)
    assert dense.shape == x.shape and dense.dtype == F32
    assert same_bits(dense, sparse.to_dense())
    if "exact" in codec_of("value", value).traits:
        assert same_bits(dense, expected)
    else:
        # Of two or three levels: those of three_lc are nearer than 0, ternary draws them. natural has a variance of at
        # most 1/8, which is a norm of 0.36; that of the 30 values of `seeded` strays from it.
        coarse = {"three_lc": 1, "sign": 0.95, "ternary": 1.1, "natural": 0.55}
        bound = coarse.get(value.partition("(")[0], 0.25)
        assert numpy.linalg.norm(dense - expected) < bound * numpy.linalg.norm(expected)


@pytest.mark.parametrize("stage", plans_of("bytes"))
def test_bytes_codecs_go_behind_others(stage, rng):
    x = rng.standard_normal(3000).astype(F32)
    frame = encode(x, f"sparsify=topr(ratio=0.1) index=golomb+{stage} value=raw+{stage}")
    assert numpy.array_equal(decode(frame, sparse=True).values, x[largest(x, 0.1)])


@pytest.mark.parametrize("policy", ["leftmost", "p0", "p2"])
def test_segments_have_a_bloom_filter_each(policy, rng):
    x = numpy.zeros(64_000, dtype=numpy.float32)
    for part, count in ((3, 400), (10, 1), (40, 50)):  # of 64 segments of 1000 rows; the others hold nothing
        x[1000 * part + rng.choice(1000, count, replace=False)] = rng.choice([-1, 1], count) + rng.random(count) / 2
    plan = f"sparsify=topr(count=451) index=bloom(fpr=0.01,policy={policy})"
    frame = deepreduce.encode(x, plan, segment_rows=1000)
    tensor, whole = (deepreduce.inspect(f).tensors[0] for f in (frame, deepreduce.encode(x, plan)))
    assert (tensor.segments, whole.segments) == (64, 1)
    per_index = numpy.log2(1 / 0.01) / numpy.log(2)
    filters = sum(max(4, -(-int(count * per_index) // 32) * 4) for count in (400, 1, 50))
    assert tensor.index_size == filters + (3 * 4 if policy == "p2" else 0)
    got = deepreduce.decode(frame, sparse=True)
    assert len(got.indices) == tensor.support
    selected = numpy.isin(numpy.flatnonzero(x), got.indices)
    if policy == "p0":
        assert selected.all() and set(got.indices // 1000) == {3, 10, 40}
    else:
        assert numpy.bincount(got.indices // 1000, minlength=64)[[3, 10, 40]].tolist() == [400, 1, 50]
        assert selected.mean() > {"leftmost": 0.9, "p2": 0.97}[policy]
    assert (x[got.indices] == got.values).all()
    batch = deepreduce.Batch(x, plan, segment_rows=1000)
    assert batch.encode(x) == frame and len(frame) <= batch.bound


def test_segments_are_a_number_of_rows():
    x = numpy.ones(8, dtype=numpy.float32)
    with pytest.raises(deepreduce.ArgumentError, match="segment_rows"):
        deepreduce.encode(x, "index=golomb", segment_rows=-1)
    assert deepreduce.decode(deepreduce.encode([x, x[:3]], "index=golomb", segment_rows=2))[1].tolist() == [1, 1, 1]


def test_codecs_tells_roles_and_parameters():
    found = {(codec.role, codec.name): codec for codec in deepreduce.codecs()}
    assert {("sparsify", "topr"), ("index", "raw"), ("index", "golomb"), ("value", "raw"), ("value", "qsgd")} <= set(
        found
    )
    levels = next(p for p in found["value", "qsgd"].parameters if p.name == "levels")
    assert (levels.type, levels.range, levels.default, levels.choices) == ("int", (1, 32767), 127, ())
    assert levels.summary and found["value", "qsgd"].summary
    policy = next(p for p in found["index", "bloom"].parameters if p.name == "policy")
    assert (policy.type, policy.range) == ("choice", None)
    assert {"leftmost", "p0"} <= set(policy.choices) and policy.default in policy.choices
    assert "exact" in found["index", "golomb"].traits
    assert "float32" in found["value", "raw"].dtypes


@pytest.mark.parametrize("path", ["/nonexistent/libcodec.so", os.devnull])
def test_what_is_no_plugin_is_unsupported(path):
    with pytest.raises(deepreduce.Unsupported, match=path):
        deepreduce.load_plugin(path)


# ---- Plans --------------------------------------------------------------------------------------


def test_a_plan_prints_canonically():
    plan = Plan("value=qsgd(bucket=512,levels=63)   index=golomb(block=12) sparsify=topr(ratio=0.0100)")
    assert str(plan) == "sparsify=topr(ratio=0.01) index=golomb value=qsgd(levels=63)"
    assert repr(plan) == f"Plan({str(plan)!r})"
    assert Plan(str(plan)) == plan


def test_plans_that_do_the_same_are_equal():
    a, b, c = Plan("index=golomb(block=12)"), Plan("value=raw index=golomb"), Plan("index=rice")
    assert a == b != c
    assert hash(a) == hash(b)
    assert a != str(a)
    assert len({a, b, c}) == 2
    assert pickle.loads(pickle.dumps(a)) == a


@pytest.mark.parametrize(
    "text",
    [
        "index",
        "index=",
        "index=nothing",
        "nothing=raw",
        "index=raw index=raw",
        "index=golomb(block=99)",
        "index=golomb(block=12",
        "index=golomb(nothing=1)",
        "index=golomb(block=x)",
        "value=qsgd(levels=0)",
        "sparsify=topr(ratio=nan)",
        "index=qsgd",
        "index=raw\0value=raw",
        None,
        7,
    ],
)
def test_what_is_no_plan_is_an_argument_error(text):
    with pytest.raises(deepreduce.ArgumentError) as caught:
        Plan(text)
    assert str(caught.value)
    with pytest.raises(ValueError):
        encode(f32(1), text)


@pytest.mark.parametrize(
    "text, flags",
    [
        ("index=raw", ""),
        ("index=golomb value=half", "lossy_values"),
        ("sparsify=topr(ratio=0.01) index=golomb", "sparsifies"),
        (
            "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=qsgd",
            "sparsifies feedback residual lossy_values private_random",
        ),
        ("sparsify=topr(ratio=0.01) index=bloom(policy=p0)", "sparsifies lossy_support"),
        ("sparsify=random(ratio=0.01) index=golomb", "sparsifies shared_random"),
        ("index=golomb+deflate value=raw", "host_only"),
        ("index=auto value=raw", "chooses"),
        ("bucket=flat index=golomb", "flat"),
        ("index=all value=raw", "fixed_size linear lossy_support"),
    ],
)
def test_a_plan_says_what_it_does(text, flags):
    info = Plan(text).info
    found = {name for name, value in vars(info).items() if value is True}
    expected = set(flags.split())
    # Sizes, sums, draws of filters and where it runs are the codecs' matter: what the plan is for is not.
    loose = {"fixed_size", "linear", "shared_random", "host_only"}
    assert found - loose == expected - loose and expected <= found
    assert "float32" in info.dtypes


def test_an_error_in_a_plan_names_the_culprit():
    with pytest.raises(deepreduce.ArgumentError, match="zipzap"):
        Plan("index=zipzap")
    with pytest.raises(deepreduce.ArgumentError, match="levels"):
        Plan("value=qsgd(levels=0)")


# ---- Inputs -------------------------------------------------------------------------------------


def test_float32_and_float16_keep_every_bit(rng):
    for dtype in (numpy.float32, numpy.float16):
        x = rng.standard_normal(500).astype(dtype)
        x[::3] = 0
        assert same_bits(decode(encode(x, RAW)), x)


def test_bfloat16_keeps_every_bit(bfloat16, rng):
    x = rng.standard_normal(500).astype(bfloat16)
    assert same_bits(decode(encode(x, RAW)), x)


def test_bfloat16_comes_as_float32_without_ml_dtypes(bfloat16, rng, monkeypatch):
    x = rng.standard_normal(500).astype(bfloat16)
    frame = encode(x, RAW)
    monkeypatch.setattr(_memory, "bfloat16", lambda: None)
    assert same_bits(decode(frame), x.astype(F32))
    assert same_bits(decode(frame, sparse=True).to_dense(), x.astype(F32))


def test_dense_input_is_taken_row_major(rng):
    x = rng.standard_normal((3, 4, 5)).astype(F32)
    frame = encode(x, RAW)
    assert same_bits(decode(frame), x.ravel())
    for other in (x.T.copy().T, numpy.asfortranarray(x), numpy.repeat(x, 2, axis=1)[:, ::2]):
        assert not other.flags.c_contiguous and encode(other, RAW) == frame


def test_unaligned_input_is_copied():
    data = numpy.frombuffer(b"\0" + f32(1, 2, 3).tobytes(), numpy.uint8)[1:]
    x = numpy.ndarray(3, F32, data)
    assert encode(x, RAW) == encode(f32(1, 2, 3), RAW)


def test_contiguous_input_is_not_copied():
    x = numpy.ones((3, 4), F32)
    assert _memory.borrow(x, "x").address == x.ctypes.data
    x.flags.writeable = False
    assert _memory.borrow(x, "x").address == x.ctypes.data
    y = array.array("f", [1, 2])
    assert _memory.borrow(y, "y").address == y.buffer_info()[0]


class OnlyDlpack:
    def __init__(self, x, device=None):
        self.x, self.device = x, device

    def __dlpack__(self, **arguments):
        return self.x.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.device or self.x.__dlpack_device__()


def test_arrays_of_other_kinds():
    x = f32(1, 0, -3)
    frame = encode(x, RAW)
    assert encode(array.array("f", x.tolist()), RAW) == frame
    assert encode(memoryview(x), RAW) == frame
    assert encode(OnlyDlpack(x), RAW) == frame
    assert encode(numpy.float32(1), RAW) == encode(f32(1), RAW)
    with pytest.raises(deepreduce.ArgumentError, match="CPU"):
        encode(OnlyDlpack(x, (8, 0)), RAW)
    with pytest.raises(deepreduce.ArgumentError, match="stream"):  # numpy has none
        encode(OnlyDlpack(x, (2, 0)), RAW)


@pytest.mark.parametrize(
    "x, word",
    [
        (numpy.ones(3), "float64"),
        (numpy.ones(3, numpy.int32), "int32"),
        (numpy.ones(3, ">f4"), ">f4"),
        (numpy.array([None]), "object"),
        (None, "None"),
        (1.5, "float"),
        ("text", "str"),
        (b"text", "int8"),
        ([1.0, 2.0], r"x\[0\]"),
        ([numpy.ones(1, F32), None], r"x\[1\]"),
    ],
)
def test_what_is_no_gradient_is_an_argument_error(x, word):
    with pytest.raises(deepreduce.ArgumentError, match=word):
        encode(x, RAW)


@pytest.mark.parametrize("plan", ["index=raw", "index=golomb", "index=rice value=qsgd", "sparsify=topr(ratio=0.5)"])
@pytest.mark.parametrize("x", [f32(), f32(0), f32(7), f32(0, 0, 0)], ids=["empty", "zero", "one", "zeros"])
def test_the_smallest_tensors(x, plan):
    assert numpy.array_equal(decode(encode(x, plan)), x)
    assert numpy.array_equal(decode(encode(x, plan), sparse=True).to_dense(), x)


# ---- Torch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torch_in_and_out(torch, dtype):
    x = torch.tensor([[0.0, 1.5], [-2.0, 0.0]], dtype=getattr(torch, dtype))
    frame = encode(x, RAW)
    out = torch.full_like(x, 9)
    assert decode(frame, out=out) is out
    assert torch.equal(out, x)
    wide = torch.empty(4)
    decode(frame, out=wide)
    assert torch.equal(wide, x.flatten().float())
    assert merge([frame, frame], out=out) is out
    assert torch.equal(out, 3 * x)


def test_torch_input_is_not_copied(torch):
    x = torch.ones(3, requires_grad=True)
    assert _memory.borrow(x, "x").address == x.data_ptr()
    assert encode(x, RAW) == encode(f32(1, 1, 1), RAW)


def test_torch_input_of_every_layout(torch):
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    assert encode(x.T, RAW) == encode(x.T.numpy().copy(), RAW)
    with pytest.raises(deepreduce.ArgumentError, match="layout"):
        encode(x.to_sparse(), RAW)
    with pytest.raises(deepreduce.ArgumentError, match="meta"):
        encode(x.to("meta"), RAW)
    with pytest.raises(deepreduce.ArgumentError, match="float64"):
        encode(x.double(), RAW)


def test_torch_values_that_are_to_be_negated(torch):
    z = torch.tensor([1 + 2j]).conj()
    assert z.imag.is_neg() and z.imag.is_contiguous()
    frame = encode(z.imag, RAW)
    assert decode(frame).tolist() == [-2]
    sparse = Sparse(torch.tensor([1]), z.imag, (3,))
    assert decode(encode(sparse, RAW)).tolist() == sparse.to_dense().tolist() == [0, -2, 0]
    batch = deepreduce.Batch(z.imag, RAW)
    for call in (lambda: decode(frame, out=z.imag), lambda: batch.decode(frame, z.imag)):
        with pytest.raises(deepreduce.ArgumentError, match=r"out has the negated values of its memory; pass out\.resolve_neg"):
            call()
    with pytest.raises(deepreduce.ArgumentError, match="read in place"):
        batch.bind(z.imag)


def test_torch_output_that_does_not_do(torch):
    frame = encode(f32(1, 2, 3, 4), RAW)
    with pytest.raises(deepreduce.ArgumentError, match="grad"):
        decode(frame, out=torch.ones(4, requires_grad=True))
    with pytest.raises(deepreduce.ArgumentError, match="contiguous"):
        decode(frame, out=torch.ones(2, 2).T)


def test_torch_sparse_parts(torch):
    x = Sparse(torch.tensor([4, 1]), torch.tensor([5.0, 6.0], dtype=torch.bfloat16), (6,))
    assert x.to_dense().astype(F32).tolist() == [0, 6, 0, 0, 5, 0]
    out = torch.empty(6, dtype=torch.bfloat16)
    assert decode(encode(x, RAW), out=out).tolist() == [0, 6, 0, 0, 5, 0]


def test_torch_frame(torch):
    frame = encode(f32(1, 2), RAW)
    padded = torch.tensor(list(frame) + [0] * 5, dtype=torch.uint8)
    assert decode(padded).tolist() == [1, 2]


# ---- Sparse -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint32", "int32", "uint64", "int64"])
def test_sparse_input_in_any_order_and_index_type(dtype, rng):
    indices = rng.choice(1000, 50, replace=False)
    values = rng.standard_normal(50).astype(F32)
    out = decode(encode(Sparse(indices.astype(dtype), values, (1000,)), "index=golomb"), sparse=True)
    order = numpy.argsort(indices)
    assert out.indices.dtype == numpy.int64 and numpy.array_equal(out.indices, indices[order])
    assert same_bits(out.values, values[order])
    assert out.shape == (1000,)


def test_sparse_rows(rng):
    indices, values = numpy.array([7, 2, 5]), rng.standard_normal((3, 4)).astype(F32)
    x = Sparse(indices, values, (9, 4))
    frame = encode(x, "index=golomb")
    out = decode(frame, sparse=True)
    assert out.indices.tolist() == [2, 5, 7] and same_bits(out.values, values[[1, 2, 0]]) and out.shape == (9, 4)
    assert same_bits(decode(frame), x.to_dense())
    flat = numpy.empty(36, F32)
    assert numpy.array_equal(decode(frame, out=flat).reshape(9, 4), x.to_dense())


def test_sparse_rows_of_one_come_back_flat():
    x = Sparse(numpy.array([1]), f32(5).reshape(1, 1), (3, 1))
    assert decode(encode(x, RAW)).tolist() == [0, 5, 0]
    assert x.to_dense().tolist() == [[0], [5], [0]]


def test_sparse_without_rows():
    x = Sparse(numpy.zeros(0, numpy.int64), numpy.zeros(0, F32), 5)
    assert x.shape == (5,)
    out = decode(encode(x, "index=golomb"), sparse=True)
    assert out.indices.size == 0 and out.to_dense().tolist() == [0] * 5


def test_sparse_keeps_a_zero_that_is_given():
    out = decode(encode(Sparse(numpy.array([3]), f32(0), (5,)), RAW), sparse=True)
    assert out.indices.tolist() == [3] and out.values.tolist() == [0]


def test_duplicates_are_refused_or_summed():
    x = Sparse(numpy.array([3, 1, 3, 3]), f32(1, 2, 10, 100), (5,))
    with pytest.raises(deepreduce.ArgumentError, match="3"):
        encode(x, RAW)
    assert decode(encode(x, RAW, sum_duplicates=True)).tolist() == [0, 2, 0, 111, 0]


@pytest.mark.parametrize(
    "indices, values, shape",
    [
        ([5], [1], (5,)),
        ([-1], [1], (5,)),
        ([2**40], [1], (5,)),
        ([1, 2], [1], (5,)),
        ([1], [[1, 2]], (5,)),
        ([1], [1], (5, 2)),
        ([[1]], [1], (5,)),
        ([1], [1], (2**64,)),
    ],
)
def test_sparse_that_does_not_fit(indices, values, shape):
    x = Sparse(numpy.array(indices), numpy.array(values, F32), shape)
    with pytest.raises(deepreduce.ArgumentError):
        encode(x, RAW)


@pytest.mark.parametrize("shape", [(), (1, 2, 3), (-1,), (5, 0), (5.5,), "ab", None])
def test_sparse_of_no_shape(shape):
    with pytest.raises(deepreduce.ArgumentError):
        Sparse(numpy.array([1]), f32(1), shape)


def test_sparse_indices_of_a_wrong_type():
    with pytest.raises(deepreduce.ArgumentError, match="indices"):
        encode(Sparse(numpy.array([1.0]), f32(1), (5,)), RAW)
    with pytest.raises(deepreduce.ArgumentError, match="values"):
        encode(Sparse(numpy.array([1]), numpy.array([1.0]), (5,)), RAW)


# ---- Lists --------------------------------------------------------------------------------------


def test_a_list_comes_back_as_a_list(rng):
    x = [rng.standard_normal(n).astype(F32) for n in (3, 0, 100)]
    x[1:1] = [Sparse(numpy.array([2, 0]), f32(1, 2), (4,)), f32(1, 2).astype(numpy.float16)]
    for given in (x, tuple(x)):
        out = decode(encode(given, RAW))
        assert isinstance(out, list) and len(out) == 5
        assert same_bits(out[0], x[0]) and same_bits(out[2], x[2]) and same_bits(out[4], x[4])
        assert out[1].tolist() == [2, 0, 1, 0] and out[3].shape == (0,)
    assert [type(item) for item in decode(encode(x, RAW), sparse=True)] == [Sparse] * 5


def test_a_list_of_one_and_of_none():
    assert [tensor.tolist() for tensor in decode(encode([f32(1, 2)], RAW))] == [[1, 2]]
    assert decode(encode([], RAW)) == []
    assert decode(encode([], RAW), sparse=True) == []
    assert merge([encode([], RAW)]) == []


def test_a_long_list():
    x = [f32(i) for i in range(200)]
    assert [tensor.tolist() for tensor in decode(encode(x, RAW))] == [[i] for i in range(200)]
    assert len(inspect(encode(x, RAW)).tensors) == 200


def test_a_plan_for_each_tensor():
    x = [f32(1, 2, 3), f32(1, 2, 3)]
    out = decode(encode(x, [RAW, Plan("sparsify=topr(count=1)")]))
    assert [tensor.tolist() for tensor in out] == [[1, 2, 3], [0, 0, 3]]
    with pytest.raises(deepreduce.ArgumentError, match="1 plans for 2"):
        encode(x, [RAW])
    with pytest.raises(deepreduce.ArgumentError):
        encode(x[0], [RAW])


def test_an_error_names_the_tensor():
    with pytest.raises(deepreduce.ArgumentError) as caught:
        encode([f32(1), f32(float("nan")), f32(2)], "value=qsgd")
    assert caught.value.tensor == 1
    with pytest.raises(deepreduce.ArgumentError) as caught:
        encode([f32(1), numpy.ones(1)], RAW)
    assert caught.value.tensor == 1


# ---- Encode -------------------------------------------------------------------------------------


def test_the_same_call_gives_the_same_frame(rng):
    x = rng.standard_normal(5000).astype(F32)
    plan = Plan("sparsify=topr(ratio=0.1) index=golomb value=qsgd")
    frame = encode(x, plan, step=3, seed=4, private_seed=5)
    assert encode(x, str(plan), step=3, seed=4, private_seed=5, threads=2) == frame
    assert encode(x, plan, step=4, seed=4, private_seed=5) != frame
    assert encode(x, plan, step=3, seed=4, private_seed=6) != frame


@pytest.mark.parametrize("size, ratio, count", [(100, 0.29, 29), (100, 0.57, 57), (50, 0.58, 29)])
def test_as_many_elements_as_max_ratio_says_are_sent_sparse(size, ratio, count):
    """Also where ratio · size is a little less than the number in binary."""
    for selected, fallback in ((count, "none"), (count + 1, "dense")):
        x = numpy.zeros(size, F32)
        x[:selected] = 1
        threshold = f"sparsify=threshold(value=0.5,max_ratio={ratio}) index=bitmap value=half"
        changed = f"sparsify=changed(max_ratio={ratio}) index=bitmap value=ulp"
        frames = [encode(x, threshold), encode(x + 1, changed, weights=numpy.ones(size, F32))]
        assert [inspect(frame).tensors[0].fallback for frame in frames] == [fallback, fallback]


@pytest.mark.parametrize(
    "plan, draws",
    [("sparsify=random(ratio=0.1)", True), ("sparsify=dgc(ratio=0.1) index=bloom(policy=p0)", True), ("index=seeded(ratio=0.1)", True), ("index=all value=qsgd", True), ("index=all value=natural", True), ("index=all value=natural(rounding=nearest)", False),
     ("sparsify=topr(ratio=0.1) index=bloom(policy=p0) value=qsgd", True), ("sparsify=topr(ratio=0.1) index=bloom(policy=p1,fpr=0.05)", True),
     *((f"sparsify=topr(ratio=0.1) index=bloom(policy={policy},fpr=0.05)", False) for policy in ("leftmost", "naive", "p0", "middle", "rightmost", "p2")),
     ("sparsify=topr(ratio=0.1) index=golomb value=log_quant", False)],
)  # fmt: skip
def test_a_plan_draws_if_its_frames_differ_from_step_to_step(plan, draws, rng):
    """And only then is a second encode without a step a warning."""
    x = rng.standard_normal(4000).astype(F32)
    plan = Plan(plan)
    frames = {encode(x, plan, step=step, seed=step, private_seed=step) for step in range(5)}
    assert plan.draws == draws and (len({decode(frame).tobytes() for frame in frames}) > 1) == draws
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        for _ in range(3):
            encode(x, plan)
    assert [w.category for w in met] == ([RuntimeWarning] if draws else [])



def test_threads_of_python_do_not_disturb_one_another(rng):
    x = [rng.standard_normal(20000).astype(F32) for _ in range(8)]
    plan = "sparsify=topr(ratio=0.05) index=golomb value=qsgd"
    expected = [encode(tensor, plan) for tensor in x]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda tensor: encode(tensor, plan), x)) == expected
        assert all(map(numpy.array_equal, pool.map(decode, expected), map(decode, expected)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no os.fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_context_of_its_own(rng):
    x = rng.standard_normal(5000).astype(F32)
    frame = encode(x, RAW, threads=2)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if encode(x, RAW, threads=2) == frame else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("plan", ["value=qsgd", "value=fit_poly"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_lossy_codecs_refuse_what_is_not_finite(plan, bad):
    with pytest.raises(deepreduce.ArgumentError) as caught:
        encode(f32(1, 2, bad, 4), plan)
    assert caught.value.tensor == 0 and caught.value.code == 1
    x = f32(1, bad)
    assert same_bits(decode(encode(x, RAW)), x)


@pytest.mark.parametrize("name", ["step", "seed", "private_seed", "tag"])
@pytest.mark.parametrize("bad", [-1, 2**64, 1.5, "1"])
def test_numbers_that_would_wrap_are_refused(name, bad):
    with pytest.raises(deepreduce.ArgumentError, match=name):
        encode(f32(1), RAW, **{name: bad})


def test_one_array_or_state_for_two_tensors_is_refused():
    x, plan = [f32(1, 2), f32(3, 4)], "sparsify=topr(count=1) feedback=residual"
    state = State(x[0], plan)
    with pytest.raises(deepreduce.ArgumentError, match=r"state\[1\] is that of x\[0\]") as raised:
        encode(x, plan, state=[state, state])
    assert raised.value.tensor == 1
    encode(x, RAW, state=[State(x[0], RAW)] * 2)  # without bytes, so it overlaps with nothing
    frame, room = encode(x, RAW), f32(0, 0)
    with pytest.raises(deepreduce.ArgumentError, match=r"out\[1\] is the memory of out\[0\]"):
        decode(frame, out=[room, room])
    with pytest.raises(deepreduce.ArgumentError, match=r"weights\[1\] is 'a', not a number"):
        merge([frame, frame], weights=[1, "a"])
    with pytest.raises(deepreduce.ArgumentError, match="weights is <generator .*>, not a list of 2 numbers"):
        merge([frame, frame], weights=(weight for weight in (1, 2)))
    with pytest.raises(deepreduce.ArgumentError, match=r"out\[1\] is int32"):
        decode(frame, out=[room, room.astype(numpy.int32)])


def test_threads_out_of_range():
    for bad in (-1, 10**6, 1.5):
        with pytest.raises(deepreduce.ArgumentError):
            encode(f32(1), RAW, threads=bad)


# ---- Encode into a buffer, keys, traces ---------------------------------------------------------


def test_out_takes_the_frame(torch):
    x = f32(0, 3, 0, -1)
    expected = encode(x, RAW)
    for out in (bytearray(100), numpy.zeros(100, numpy.uint8), torch.zeros(10, 10, dtype=torch.uint8)):
        part = encode(x, RAW, out=out)
        assert bytes(part) == expected
        assert type(part) is (memoryview if isinstance(out, bytearray) else type(out))
        assert same_bits(decode(part), x)
    exact = numpy.zeros(len(expected), numpy.uint8)
    assert encode(x, RAW, out=exact).tobytes() == expected
    for size in range(len(expected)):
        room = bytearray(b"\xaa" * size)
        with pytest.raises(deepreduce.CapacityError) as caught:
            encode(x, RAW, out=room)
        assert room == b"\xaa" * size
        assert caught.value.needed is None or caught.value.needed >= len(expected)
    for bad in (
        bytes(100),
        torch.zeros(100),
        numpy.zeros(200, numpy.uint8)[::2],
        torch.zeros(200, dtype=torch.uint8)[::2],
        (objects := numpy.array(["a"] + [None] * 99, object)),
    ):
        with pytest.raises(deepreduce.ArgumentError, match="out"):
            encode(x, RAW, out=bad)
    assert objects.tolist() == ["a"] + [None] * 99


def test_a_frame_that_does_not_fit_the_last_ones_room(rng):
    context = _call.context_of_thread(None)
    deepreduce.trim()
    x = rng.standard_normal(100_000).astype(F32)
    state, here = State(x, KEEP_2), State(x, KEEP_2)
    for _ in range(2):  # larger than the first room, and then not
        assert same_bits(decode(encode(x, RAW)), x)
        assert context.scratch.size > x.nbytes
    frame = encode(x, "feedback=residual index=raw", state=state)
    deepreduce.trim()
    assert context.scratch is None
    assert encode(x, "feedback=residual index=raw", state=here) == frame and here.state_dict()["state"].tobytes() == state.state_dict()["state"].tobytes()


def test_keys_name_tensors_in_random_numbers():
    x = numpy.ones(1000, F32)
    plan = "sparsify=random(ratio=0.02) index=raw"

    def positions(**arguments):
        return decode(encode(x, plan, seed=1, **arguments), sparse=True).indices.tolist()

    assert positions() == positions(key=0) == positions(key=None) == positions()
    assert len({tuple(positions(key=key)) for key in (0, 7, 8, 2**64 - 1)}) == 4
    both = decode(encode([x, x], plan, seed=1, key=[7, 8]), sparse=True)
    assert [item.indices.tolist() for item in both] == [positions(key=7), positions(key=8)]
    for bad in (-1, 2**64, "a", [7]):
        with pytest.raises(deepreduce.ArgumentError, match="key"):
            encode(x, plan, key=bad)
    with pytest.raises(deepreduce.ArgumentError, match="1 keys for 2"):
        encode([x, x], plan, key=[7])


def test_a_trace_tells_the_stages(rng):
    x = rng.standard_normal(5000).astype(F32)
    traces = []
    frame = encode(
        x,
        "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=qsgd",
        state=State(x, KEEP_2),
        trace=traces.append,
    )
    assert all(isinstance(trace, deepreduce.Trace) for trace in traces)
    assert {"sparsify", "index", "value", "container", "feedback"} <= {trace.stage for trace in traces}
    assert all(0 < trace.begin_ns <= trace.end_ns for trace in traces)
    encodes = [trace for trace in traces if trace.stage == "container"]
    assert len(encodes) == 1
    traces.clear()
    encode(rng.standard_normal(100_000).astype(F32), RAW, trace=traces.append)  # (more than a buffer has at first)
    assert len({trace.stage for trace in traces}) == len(traces)
    for call, stages in (
        (lambda: decode(frame, trace=traces.append), {"header", "decode", "deliver"}),
        (lambda: merge([frame, frame], trace=traces.append), {"header", "decode", "merge"}),
    ):
        traces.clear()
        call()
        assert {trace.stage for trace in traces} == stages
    with pytest.raises(deepreduce.ArgumentError, match="trace"):
        encode(x, RAW, trace=5)


def test_a_frame_is_made_to_fit(rng):
    x = [rng.standard_normal(n).astype(F32) for n in (3000, 200, 1000)]
    plan = "feedback=residual index=raw value=raw"
    states = State.of(x, plan)
    whole = len(encode(x, plan, state=State.of(x, plan)))
    slot = bytearray(whole - 1000)
    frame = encode(x, plan, state=states, out=slot, fit=True)
    assert len(frame) <= len(slot)
    for got, tensor, state in zip(decode(frame), x, states):
        left = state.residual if got.any() else tensor
        assert same_bits(got + left, tensor) and (got.any() or same_bits(state.residual, tensor))
    assert not all(got.any() for got in decode(frame)) and any(got.any() for got in decode(frame))
    with pytest.raises(deepreduce.ArgumentError, match="fit requires"):
        encode(x, plan, state=states, fit=True)
    with pytest.raises(deepreduce.Error):
        encode(x, RAW, out=slot, fit=True)  # without feedback something would be lost


# ---- Inspect ------------------------------------------------------------------------------------


def test_inspect_tells_what_is_in_a_frame():
    x = numpy.zeros(1000, F32)
    x[[3, 500]] = 1, 2
    frame = encode(x, "index=golomb value=raw")
    info = inspect(frame + b"behind")
    assert (info.size, info.status, info.tag, info.is_list) == (len(frame), None, None, False)
    (tensor,) = info.tensors
    assert (tensor.universe, tensor.width, tensor.dtype) == (1000, 1, "float32")
    assert (tensor.count, tensor.support, tensor.fallback, tensor.segments) == (2, 2, "none", 1)
    assert tensor.value_size == 8 and tensor.index_size > 0 and tensor.order_size == 0
    assert "golomb" in tensor.plan and "raw" in tensor.plan
    assert info.header_size + tensor.value_size + tensor.index_size <= len(frame)


@pytest.mark.parametrize("tag", [0, 1, 2**64 - 1])
def test_a_tag_comes_back(tag):
    assert inspect(encode(f32(1), RAW, tag=tag)).tag == tag


def test_inspect_tells_lists_and_rows():
    info = inspect(encode([f32(1), Sparse(numpy.array([1]), f32(1, 2).reshape(1, 2), (4, 2))], RAW))
    assert info.is_list and [(t.universe, t.width) for t in info.tensors] == [(1, 1), (4, 2)]
    assert info.segments == 2 and inspect(encode(f32(1, 2, 3), RAW, segment_rows=1)).segments == 3


def test_the_size_of_a_frame_is_in_its_header():
    frames = [encode(f32(*range(n)), RAW) for n in range(5)] + [encode([f32(1), f32(2)], RAW, tag=3)]
    row, sizes = b"".join(frames), []
    while row:
        sizes.append(deepreduce.frame_size(row))
        row = row[sizes[-1] :]
    assert sizes == list(map(len, frames))
    broken = bytearray(frames[-1])
    broken[-1] ^= 1
    assert deepreduce.frame_size(broken) == len(broken)  # no check is verified
    for bad in (frames[-1][:-1], b"", b"DR", bytes(100)):
        with pytest.raises(deepreduce.CorruptFrame):
            deepreduce.frame_size(bad)


def test_trim_gives_memory_back_and_takes_it_again(rng):
    x = rng.standard_normal(10_000).astype(F32)
    frame = encode(x, "sparsify=topr(ratio=0.1) index=auto value=auto(error=0.05)")
    deepreduce.trim()
    assert encode(x, "sparsify=topr(ratio=0.1) index=auto value=auto(error=0.05)") == frame
    deepreduce.trim()
    assert same_bits(decode(frame), decode(frame))


# ---- Decode -------------------------------------------------------------------------------------


def test_decode_takes_every_kind_of_buffer():
    frame = encode(f32(1, 2), RAW)
    shifted = memoryview(b"x" + frame)[1:]
    for source in (
        bytearray(frame),
        memoryview(frame),
        numpy.frombuffer(frame, numpy.uint8),
        shifted,
        frame + b"\0" * 99,
    ):
        assert decode(source).tolist() == [1, 2]


@pytest.mark.parametrize("frame", [None, 5, "text", [1], f32(1, 2)])
def test_decode_of_what_is_no_buffer_of_bytes(frame):
    with pytest.raises(deepreduce.ArgumentError, match="frame"):
        decode(frame)


def test_out_is_overwritten_whatever_its_shape():
    frame = encode(f32(1, 0, 0, 4), RAW)
    for out in (numpy.full(4, 9, F32), numpy.full((2, 2), 9, F32), numpy.full((1, 4, 1), 9, F32)):
        assert decode(frame, out=out) is out and out.ravel().tolist() == [1, 0, 0, 4]
    buffer = array.array("f", [9] * 4)
    assert decode(frame, out=buffer).tolist() == [1, 0, 0, 4]


def test_out_may_be_of_another_type_than_the_frame():
    frame = encode(numpy.array([1, 0.1], numpy.float16), RAW)
    assert decode(frame, out=numpy.empty(2, F32)).tolist() == [1, float(numpy.float16(0.1))]
    out = numpy.empty(2, numpy.float16)
    assert decode(encode(f32(1, 0.1), RAW), out=out).tolist() == [1, float(numpy.float16(0.1))]


def test_out_of_lists():
    frame = encode([f32(1), f32(2, 3)], RAW)
    out = [numpy.empty(1, F32), numpy.empty((2, 1), F32)]
    assert decode(frame, out=out) is out and out[0].tolist() == [1] and out[1].tolist() == [[2], [3]]


class Copies:
    """An array of n elements that gives others copies of its memory."""

    def __init__(self, n):
        self.memory = numpy.zeros(n, F32)

    def __array__(self, dtype=None, copy=None):
        return self.memory.copy()


def test_out_that_does_not_fit():
    one, many = encode(f32(1, 2), RAW), encode([f32(1, 2)], RAW)
    read_only = numpy.empty(2, F32)
    read_only.flags.writeable = False
    for frame, out, word in [
        (one, numpy.empty(3, F32), "3 elements"),
        (one, numpy.empty(2), "float64"),
        (one, numpy.empty(4, F32)[::2], "contiguous"),
        (one, read_only, "read-only"),
        (one, [numpy.empty(2, F32)], "single"),
        (many, numpy.empty(2, F32), "list"),
        (many, [], "0 arrays"),
        (one, 5, "out"),
        (one, Copies(2), "out is a Copies, which gives copies"),
        (encode(f32(1), RAW), F32(0), "out is a float32, which gives copies"),
    ]:
        with pytest.raises(deepreduce.ArgumentError, match=word):
            decode(frame, out=out)
    assert decode(one, out=memoryview(numpy.empty(2, F32))).tolist() == [1, 2]
    assert decode(one, out=array.array("f", [0, 0])).tolist() == [1, 2]
    with pytest.raises(deepreduce.ArgumentError, match="sparse"):
        decode(one, out=numpy.empty(2, F32), sparse=True)


def test_max_workspace():
    x = numpy.random.default_rng(3).laplace(size=5000).astype(F32)
    frame = encode(x, "sparsify=topr(ratio=0.1) index=golomb+huffman value=qsgd")
    for call in (
        lambda **limits: decode(frame, **limits),
        lambda **limits: merge([frame, frame], **limits),
        lambda **limits: decode(frame, sparse=True, **limits),
    ):
        for threshold in (0, 1, 3000):
            with pytest.raises(deepreduce.CapacityError, match=r"workspace of \d+ bytes|the header needs"):
                call(max_workspace=threshold)
        assert call(max_workspace=1 << 20) is not None
        with pytest.raises(deepreduce.ArgumentError, match="max_workspace"):
            call(max_workspace=-1)


def test_a_few_bytes_do_not_go_through_a_huge_universe_by_themselves():
    x = Sparse(numpy.array([5, 70_000_000], numpy.uint32), f32(1, 2), (100_000_000,))
    frame = encode(x, "index=bloom(policy=leftmost,fpr=1e-9)")
    with pytest.raises(deepreduce.CapacityError, match="scans 100000000 elements"):
        decode(frame, sparse=True)
    with pytest.raises(deepreduce.CapacityError):
        decode(frame, sparse=True, max_elements=99_999_999)
    assert decode(frame, sparse=True, max_elements=100_000_000).indices.tolist() == [5, 70_000_000]


def test_many_tensors_take_time_by_their_number():
    def seconds(n):
        frame = encode([numpy.zeros(0, F32)] * n, RAW)
        took = []
        for _ in range(3):
            begin = time.process_time()
            assert len(decode(frame)) == n
            took.append(time.process_time() - begin)
        return min(took)

    few, many = seconds(2_000), seconds(40_000)
    assert many < 100 * few, f"{few} s for 2,000, {many} s for 40,000"


def test_max_elements():
    frame = encode([f32(1, 2), f32(3)], RAW)
    assert len(decode(frame, max_elements=3)) == 2
    for count in (0, 2):
        with pytest.raises(deepreduce.CapacityError, match=f"max_elements is {count}"):
            decode(frame, max_elements=count)
        with pytest.raises(deepreduce.CapacityError):
            merge([frame], max_elements=count)


def test_a_batch_has_limits_too(rng):
    x = rng.standard_normal(100_000).astype(F32)
    batch = deepreduce.Batch(x, "sparsify=topr(ratio=0.1) index=golomb value=qsgd")
    frame = batch.encode(x)
    for call in (batch.decode, lambda frame, **limits: batch.merge([frame], **limits)):
        call(frame, max_elements=100_000, max_workspace=1 << 30)
        for limits in ({"max_elements": 99_999}, {"max_elements": 0}, {"max_workspace": 10}, {"max_workspace": 0}):
            with pytest.raises(deepreduce.CapacityError):
                call(frame, **limits)


def test_like_gives_the_kind_the_shape_and_the_type(torch):
    x = numpy.array([[0, 2], [0.1, 0]], F32)
    frame = encode(x, RAW)
    for like in (torch.empty(2, 2), torch.empty(4, dtype=torch.float16), torch.empty(2, 2, dtype=torch.bfloat16).T):
        got = decode(frame, like=like)
        assert type(got) is torch.Tensor and got.dtype == like.dtype and got.shape == like.shape
        assert torch.equal(got, torch.from_numpy(x).to(like.dtype).reshape(like.shape))
        assert torch.equal(merge([frame, frame], like=like), got + got)
    got = decode(frame, like=numpy.empty((1, 4), numpy.float16))
    assert same_bits(got, x.astype(numpy.float16).reshape(1, 4))
    assert decode(frame, like=torch.empty(4, requires_grad=True)).requires_grad is False
    got = decode(frame, like=torch.empty(4), dtype="float16")
    assert got.dtype == torch.float16
    sparse = decode(frame, like=torch.empty(4), sparse=True)
    assert type(sparse.indices) is type(sparse.values) is torch.Tensor and sparse.indices.tolist() == [1, 2]
    listed = decode(encode([x, x[0]], RAW), like=[torch.empty(4), numpy.empty(2, F32)])
    assert type(listed[0]) is torch.Tensor and same_bits(listed[1], x[0])
    for bad, words in (
        (torch.empty(3), "^like has 3 elements"),
        ([torch.empty(4)], "single tensor, and like does not"),
        (5, "like"),
        (torch.empty(4, dtype=torch.int32), "int32"),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=words):
            decode(frame, like=bad)
    with pytest.raises(deepreduce.ArgumentError, match="cannot be combined with out="):
        decode(frame, out=numpy.empty(4, F32), like=x)


def test_a_dtype_of_what_comes_out(torch):
    x = f32(1, 0.1, -3)
    frame = encode(x, RAW)
    for dtype in ("float16", numpy.float16, numpy.dtype("f2"), torch.float16):
        assert same_bits(decode(frame, dtype=dtype), x.astype(numpy.float16))
        assert same_bits(merge([frame], dtype=dtype), x.astype(numpy.float16))
        assert same_bits(decode(frame, dtype=dtype, sparse=True).values, x.astype(numpy.float16))
    assert decode(encode(x.astype(numpy.float16), RAW), dtype="float32").dtype == F32
    for bad in ("float64", "no type", int, 5, "f4,,(", "(2,", {"names": 1}):
        with pytest.raises(deepreduce.ArgumentError, match="dtype"):
            decode(frame, dtype=bad)


@pytest.mark.parametrize("wrong", ["index=raw\0", "\ud800", None, 5], ids=repr)
def test_what_is_no_text_is_no_plan(wrong):
    plan = Plan(RAW)
    for call in (lambda: Plan(wrong), lambda: encode(f32(1), wrong), lambda: plan.with_stages(wrong), lambda: deepreduce.plan.read_stages(wrong)):
        with pytest.raises(deepreduce.PlanError, match="^(the|stages) .*(a zero byte|surrogates|not a)"):
            call()
    for path in ("\ud800", 5):
        with pytest.raises(deepreduce.ArgumentError, match="^path (is|has) "):
            deepreduce.load_plugin(path)


def test_a_dtype_that_numpy_lacks(monkeypatch):
    frame = encode(f32(1), RAW)
    monkeypatch.setattr(_memory, "bfloat16", lambda: None)
    with pytest.raises(deepreduce.ArgumentError, match="ml_dtypes"):
        decode(frame, dtype="bfloat16")


def test_some_tensors_of_a_frame(rng):
    x = [rng.standard_normal(n).astype(F32) for n in (30, 1, 0, 200)]
    frame = encode(x, RAW)
    for i in range(-4, 4):
        assert same_bits(decode(frame, tensors=i), x[i])
        assert same_bits(merge([frame, frame], tensors=i), x[i] + x[i])
    for asked in (slice(1, 3), slice(None), slice(-2, None), range(1, 4), range(1)):
        expected = x[asked] if isinstance(asked, slice) else x[asked.start : asked.stop]
        got = decode(frame, tensors=asked)
        assert isinstance(got, list) and len(got) == len(expected) and all(map(same_bits, got, expected))
    assert same_bits(decode(frame, tensors=3, sparse=True).to_dense(), x[3])
    out = numpy.empty(200, F32)
    assert decode(frame, tensors=3, out=out) is out and same_bits(out, x[3])
    assert decode(encode(x[0], RAW), tensors=slice(0, 1))[0].shape == (30,)
    for bad in (4, -5, slice(2, 2), slice(0, 4, 2), range(2, 5), range(3, 0, -1), "a", 1.5, slice("a"), slice(0, 4, 0)):
        with pytest.raises(deepreduce.ArgumentError, match="tensors"):
            decode(frame, tensors=bad)
    bad = bytearray(frame)
    bad[-1] ^= 1  # of the last tensor
    with pytest.raises(deepreduce.CorruptFrame):
        decode(bad, tensors=0)


def test_a_tag_is_compared():
    x = f32(1, 2)
    seven, eight, none = encode(x, RAW, tag=7), encode(x, RAW, tag=8), encode(x, RAW)
    assert decode(seven, tag=7).tolist() == [1, 2] and merge([seven, seven], tag=7).tolist() == [2, 4]
    for call in (
        lambda: decode(eight, tag=7),
        lambda: decode(none, tag=0),
        lambda: merge([seven, eight], tag=7),
        lambda: deepreduce.Batch(x, RAW).decode(eight, tag=7),
        lambda: deepreduce.Batch(x, RAW).merge([seven, eight], tag=7),
    ):
        with pytest.raises(deepreduce.ArgumentError, match="tag"):
            call()
    with pytest.raises(deepreduce.ArgumentError) as caught:
        merge([seven, eight], tag=7)
    assert caught.value.frame == 1


def test_many_empty_tensors_take_no_time_to_speak_of():
    """Frames of a megabyte that claim 100,000 tensors took seven seconds. Counted, not timed."""
    n = 20_000
    frame = encode([f32()] * n, RAW)
    calls = 0

    def count(*_):
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        got = decode(frame)
    finally:
        sys.setprofile(None)
    assert len(got) == n and all(tensor.shape == (0,) for tensor in got)
    assert calls / n < 25


def test_every_changed_bit_is_noticed():
    frame = encode(f32(0, 3, 0, -1), "index=golomb value=raw")
    for i in range(8 * len(frame)):
        bad = bytearray(frame)
        bad[i // 8] ^= 1 << i % 8
        with pytest.raises((deepreduce.CorruptFrame, deepreduce.Unsupported)) as caught:
            decode(bad)
        assert str(caught.value)
        with pytest.raises(deepreduce.Error):
            merge([frame, bad])


def test_damage_is_told_before_what_the_damaged_header_claims():
    """A header is read without its check, which the decode verifies. What it claims must not hide that it is damaged."""
    frame = encode([f32(1, 2, 3), f32(4, 5)], RAW)
    for i in range(8 * len(frame)):
        bad = bytearray(frame)
        bad[i // 8] ^= 1 << i % 8
        for call in (
            lambda: decode(bad, max_elements=5),
            lambda: decode(bad, out=[numpy.empty(3, F32), numpy.empty(2, F32)]),
            lambda: decode(bad, like=[numpy.empty(3, F32), numpy.empty(2, F32)]),
            lambda: decode(bad, sparse=True, tensors=1),
            lambda: merge([frame, bad], max_elements=5),
            lambda: merge([bad, frame], sparse=True),
        ):
            with pytest.raises((deepreduce.CorruptFrame, deepreduce.Unsupported)):
                call()


def test_every_check_is_verified_once(monkeypatch):
    """Decode raises it; the header that decides the outputs is read without it."""
    frame = encode([f32(1, 2, 3), f32(4, 5)], RAW)
    library = deepreduce._native._library.load()
    monkeypatch.setattr(library, "dr_inspect", None)
    assert len(decode(frame)) == len(decode(frame, sparse=True)) == len(merge([frame, frame])) == 2


def test_every_truncation_is_noticed():
    frame = encode([f32(0, 3, 0, -1), f32(1)], "index=golomb value=raw")
    for size in range(len(frame)):
        for read in (decode, inspect):
            with pytest.raises(deepreduce.CorruptFrame):
                read(frame[:size])


def test_noise_is_no_frame(rng):
    for size in (0, 1, 11, 12, 100, 5000):
        with pytest.raises(deepreduce.CorruptFrame):
            decode(rng.bytes(size))


# ---- Status frames ------------------------------------------------------------------------------


def test_a_status_frame_is_an_error_on_every_rank():
    frame = encode([f32(1), f32(float("nan"))], "value=qsgd", status_frame=True)
    info = inspect(frame)
    assert info.status == "ARGUMENT" and info.message and info.tensors == []
    good = encode([f32(1), f32(2)], "value=qsgd", status_frame=True)
    assert len(decode(good)) == 2
    for read in (
        lambda: decode(frame),
        lambda: decode(frame, sparse=True),
        lambda: decode(frame, out=[numpy.empty(1, F32)] * 2),
        lambda: merge([frame, good]),
        lambda: merge([good, frame]),
        lambda: merge([frame]),
    ):
        with pytest.raises(deepreduce.PeerError) as caught:
            read()
        assert info.message in str(caught.value) and caught.value.code == 8


def test_a_status_frame_of_what_has_no_bound():
    x = Sparse(numpy.array([1]), f32(1, 2).reshape(1, 2), (4, 2))
    with pytest.raises((deepreduce.ArgumentError, deepreduce.Unsupported)):
        encode(x, "value=fit_poly")
    with pytest.raises(deepreduce.PeerError):
        decode(encode(x, "value=fit_poly", status_frame=True))


# ---- Merge --------------------------------------------------------------------------------------


def test_merge_adds_up(rng):
    x = [rng.standard_normal(300).astype(F32) for _ in range(3)]
    frames = [encode(tensor, "index=golomb") for tensor in x]
    expected = numpy.zeros(300, F32)
    for tensor in x:
        expected += tensor
    assert same_bits(merge(frames), expected)
    assert same_bits(merge(tuple(frames), threads=2), expected)


def test_merge_weighs():
    frames = [encode(f32(1, 0), RAW), encode(f32(2, 8), RAW)]
    assert merge(frames, weights=[0.5, -1]).tolist() == [-1.5, -8]
    assert merge(frames, weights=f32(0.25, 0.5)).tolist() == [1.25, 4]
    with pytest.raises(deepreduce.ArgumentError, match="1 weights for 2"):
        merge(frames, weights=[1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_weights_are_finite(bad):
    frame, out = encode(f32(1, 0), RAW), f32(7, 8)
    batch = deepreduce.Batch(f32(1, 0), RAW)
    for call in (merge, lambda frames, weights, out: batch.merge(frames, out, weights)):
        with pytest.raises(deepreduce.ArgumentError, match="not finite") as caught:
            call([frame, frame], weights=[1, bad], out=out)
        assert caught.value.frame == 1 and out.tolist() == [7, 8]


def test_merge_adds_to_out():
    frames = [encode(f32(1, 0, 0, 1), RAW), encode(f32(2, 8, 0, 0), RAW)]
    out = f32(100, 0, 1, 0).reshape(2, 2)
    assert merge(frames, out=out) is out and out.tolist() == [[103, 8], [1, 1]]
    with pytest.raises(deepreduce.ArgumentError):
        merge(frames, out=f32(1, 2, 3))


def test_merge_of_lists_halves_and_rows():
    half = encode(numpy.array([1, 2], numpy.float16), RAW)
    assert merge([half, encode(f32(10, 20), RAW)]).tolist() == [11, 22]
    assert merge([half]).dtype == F32
    lists = [encode([f32(1), f32(2, 3)], RAW)] * 2
    assert [tensor.tolist() for tensor in merge(lists)] == [[2], [4, 6]]
    rows = encode(Sparse(numpy.array([1]), f32(1, 2).reshape(1, 2), (2, 2)), RAW)
    assert merge([rows, rows]).tolist() == [[0, 0], [2, 4]]


def test_merge_of_sparse_sums_gives_the_union(rng):
    x = [rng.standard_normal(1000).astype(F32) for _ in range(3)]
    frames = [encode(tensor, "sparsify=topr(ratio=0.05) index=golomb") for tensor in x]
    weights = [1, 0.5, -2]
    expected, union = numpy.zeros(1000, F32), set()
    for tensor, weight in zip(x, weights):
        selected = largest(tensor, 0.05)
        expected[selected] += F32(weight) * tensor[selected]
        union |= set(selected.tolist())
    got = merge(frames, weights=weights, sparse=True)
    assert isinstance(got, Sparse) and got.indices.tolist() == sorted(union) and got.values.dtype == F32
    assert same_bits(got.to_dense(), expected)
    assert same_bits(
        merge(frames, weights=weights, sparse=True, dtype="float16").to_dense(), expected.astype(numpy.float16)
    )
    rows = Sparse(numpy.array([1, 5]), f32(1, 2, 3, 4).reshape(2, 2), (9, 2))
    lists = [encode([rows, x[0]], "index=golomb"), encode([Sparse(rows.indices + 3, rows.values, (9, 2)), x[1]], RAW)]
    got = merge([*lists, lists[0]], sparse=True)[0]
    assert got.indices.tolist() == [1, 4, 5, 8] and got.values.tolist() == [[2, 4], [1, 2], [6, 8], [3, 4]]
    with pytest.raises(deepreduce.ArgumentError):
        merge([frames[0], encode(x[0][:5], RAW)], sparse=True)
    with pytest.raises(deepreduce.ArgumentError):
        merge([frames[0], lists[0]], sparse=True)
    assert merge([encode([], RAW)] * 2, sparse=True) == []


def test_merge_leaves_out_alone_if_a_frame_is_unsound():
    good = encode(f32(1, 2, 3), RAW)
    bad = bytearray(good)
    bad[-1] ^= 1
    out = f32(7, 8, 9)
    for frames, error in [
        ([good, bad], deepreduce.CorruptFrame),
        ([bad, good], deepreduce.CorruptFrame),
        ([good, encode(f32(1), RAW)], deepreduce.ArgumentError),
        ([good, encode([f32(1, 2, 3)] * 2, RAW)], deepreduce.ArgumentError),
    ]:
        with pytest.raises(error) as caught:
            merge(frames, out=out)
        assert str(frames.index(bad) if bad in frames else 1) in str(caught.value)
        assert out.tolist() == [7, 8, 9]


@pytest.mark.parametrize("frames", [[], b"DR", 5, [None]])
def test_merge_of_what_is_no_list_of_frames(frames):
    with pytest.raises(deepreduce.ArgumentError):
        merge(frames)


# ---- State --------------------------------------------------------------------------------------


def test_the_residual_is_what_was_not_sent():
    x = f32(1, -5, 2, 4)
    state = State(x, KEEP_2)
    assert decode(encode(x, KEEP_2, state=state)).tolist() == [0, -5, 0, 4]
    assert state.residual.tolist() == [1, 0, 2, 0]
    assert decode(encode(x, KEEP_2, step=1, state=state)).tolist() == [0, -5, 4, 0]
    assert state.residual.dtype == F32 and state.residual.shape == (4,)


def test_a_saved_state_goes_on_as_if_nothing_had_happened(rng):
    plan = Plan("sparsify=topr(ratio=0.05) feedback=residual(beta=0.9) index=golomb value=qsgd(levels=31)")
    x = rng.standard_normal((8, 2000)).astype(F32)
    state = State.of(x[0], plan)
    for step in range(4):
        encode(x[step], plan, step=step, state=state)
    saved = state.state_dict()
    loaded, pickled = State(x[0], plan), pickle.loads(pickle.dumps(state))
    loaded.load_state_dict(saved)
    assert loaded.state_dict()["state"].tolist() == saved["state"].tolist()
    for step in range(4, 8):
        frame = encode(x[step], plan, step=step, state=state)
        assert encode(x[step], plan, step=step, state=loaded) == frame
        assert encode(x[step], plan, step=step, state=pickled) == frame
    assert state.state_dict()["state"].tobytes() == loaded.state_dict()["state"].tobytes() != saved["state"].tobytes()


def test_a_failed_encode_leaves_the_states_alone():
    plan = KEEP_2 + " value=qsgd"
    x = [f32(1, 2, 3), f32(4, 5, 6)]
    states = State.of(x, plan)
    encode(x, plan, state=states)
    before = [state.state_dict()["state"].tobytes() for state in states]
    for status_frame in (False, True):
        try:
            encode([x[0], f32(1, float("nan"), 2)], plan, state=states, status_frame=status_frame)
        except deepreduce.ArgumentError:
            assert not status_frame
    assert [state.state_dict()["state"].tobytes() for state in states] == before


def test_states_of_lists():
    x = [f32(1, 2, 3), f32(4, 5, 6)]
    states = State.of(x, KEEP_2)
    encode(x, KEEP_2, state=states)
    assert [state.residual.tolist() for state in states] == [[1, 0, 0], [4, 0, 0]]
    for bad in (states[:1], states[0], [1, 2]):
        with pytest.raises(deepreduce.ArgumentError):
            encode(x, KEEP_2, state=bad)
    with pytest.raises(deepreduce.ArgumentError):
        encode(x[0], KEEP_2, state=[states[0]])


def test_a_lost_frame_goes_back_into_the_residual():
    x = f32(1, -5, 2, 4)
    state = State(x, KEEP_2)
    merge([encode(x, KEEP_2, state=state)], out=state.residual)
    assert state.residual.tolist() == x.tolist()


def test_a_state_that_does_not_fit():
    x = f32(1, 2, 3, 4)
    with pytest.raises(deepreduce.ArgumentError):
        State(x, KEEP_2).residual
    with pytest.raises(deepreduce.ArgumentError):
        encode(f32(*range(100)), KEEP_2, state=State(x, KEEP_2))
    damaged = State(x, KEEP_2)
    damaged.memory[:] = 0xFF
    with pytest.raises(deepreduce.ArgumentError):
        encode(x, KEEP_2, state=damaged)


def test_a_saved_state_that_does_not_fit_is_refused_and_changes_nothing():
    x = f32(1, 2, 3, 4)
    state = State(x, KEEP_2)
    encode(x, KEEP_2, state=state)
    before, size = state.residual.tolist(), state.size
    other = State(f32(*range(100)), KEEP_2)
    encode(f32(*range(100)), KEEP_2, state=other)
    for wrong, words in (
        ({"state": numpy.full(size, 0xFF, numpy.uint8)}, "state"),
        (other.state_dict(), "the saved state has"),
        ({"bytes": state.state_dict()["state"]}, "the state has no 'state'.*its keys are .'bytes'"),
        (b"\0" * size, "the state is a dict with 'state'"),
        ({"state": "text"}, ""),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=words):
            state.load_state_dict(wrong)
        assert state.residual.tolist() == before


def test_a_plan_without_feedback_has_an_empty_state():
    x = f32(1, 2)
    state = State(x, RAW)
    assert state.state_dict()["state"].tobytes() == b""
    assert decode(encode(x, RAW, state=state)).tolist() == [1, 2]
    state.load_state_dict(state.state_dict())
    assert state.size == 0
    with pytest.raises(deepreduce.ArgumentError, match="the saved state has .* bytes, this one 0"):
        state.load_state_dict(State(x, KEEP_2).state_dict())


def test_memory_that_is_not_there_is_an_error_of_this_package():
    huge = Sparse(numpy.array([1]), f32(1), (2**56 - 1,))
    for call in (lambda: State(huge, KEEP_2), huge.to_dense, Sparse(huge.indices, f32(1), (2**62,)).to_dense):
        with pytest.raises(deepreduce.OutOfMemory, match="no memory for"):
            call()


@pytest.mark.parametrize("indices", [f32(1), numpy.array([True]), numpy.array(["1"])], ids=lambda x: x.dtype.name)
def test_indices_that_are_no_integers_are_refused(indices):
    with pytest.raises(deepreduce.ArgumentError, match="indices are .*, not integers"):
        Sparse(indices, f32(1), (4,)).to_dense()


def test_a_state_of_a_residual():
    x = f32(1, -5, 2, 4)
    for residual in (f32(1, 2, 3, 4), f32(1, 2, 3, 4).reshape(2, 2)):
        state = State.from_residual(x, KEEP_2, residual)
        assert state.residual.tolist() == [1, 2, 3, 4] and state.size == State(x, KEEP_2).size
    assert decode(encode(x, KEEP_2, state=state)).tolist() == [0, 0, 5, 8] and state.residual.tolist() == [2, -3, 0, 0]
    assert State.from_residual(x, KEEP_2).residual.tolist() == [0] * 4
    with pytest.raises(deepreduce.ArgumentError, match="3 elements"):
        State.from_residual(x, KEEP_2, f32(1, 2, 3))
    with pytest.raises(deepreduce.ArgumentError, match="residual is float16, not float32$"):
        State.from_residual(x, KEEP_2, numpy.ones(4, numpy.float16))
    with pytest.raises(deepreduce.ArgumentError):
        State.from_residual(x, RAW, x)


def test_states_are_cut_anew(rng):
    whole = State(numpy.empty(100, F32), KEEP_2)
    encode(rng.standard_normal(100).astype(F32), KEEP_2, state=whole)
    residual = whole.residual.copy()
    parts = [State.from_residual(numpy.empty(n, F32), KEEP_2) for n in (30, 70)]
    parts[0].copy_from(whole)
    parts[1].copy_from(whole, first=30)
    assert [part.residual.tolist() for part in parts] == [residual[:30].tolist(), residual[30:].tolist()]
    again = State.from_residual(numpy.empty(100, F32), KEEP_2)
    again.copy_from(parts[1], at=30)
    again.copy_from(parts[0], elements=30)
    assert again.state_dict()["state"].tobytes() == whole.state_dict()["state"].tobytes()
    again.copy_from(State(numpy.empty(100, F32), KEEP_2), at=10, elements=20)  # fresh: zeros
    assert not again.residual[10:30].any() and again.residual[:10].tolist() == residual[:10].tolist()
    again.copy_from(again, first=50, at=0, elements=10)
    assert again.residual[:10].tolist() == residual[50:60].tolist()
    for first, at, elements in (
        (0, 71, 30),
        (71, 0, 30),
        (0, 0, 101),
        (0, 101, None),
        (-1, 0, 1),
        (2**64 - 1, 0, 2),
        (0, 5, 10),
    ):
        with pytest.raises(deepreduce.ArgumentError):
            again.copy_from(again if (first, at) == (0, 5) else whole, first, at, elements)
    with pytest.raises(deepreduce.ArgumentError):
        State(numpy.empty(100, F32), KEEP_2).copy_from(whole)  # fresh: made by from_residual it would do


def test_a_part_of_a_state_that_is_not_there_is_named():
    whole, part = State.from_residual(numpy.empty(100, F32), KEEP_2), State.from_residual(numpy.empty(30, F32), KEEP_2)
    for first, at, words in (
        (101, 0, "first = 101 is not in 0 … 100"),
        (0, 31, "at = 31 is not in 0 … 30"),
        (-1, 0, "first = -1 is not in 0 … 100"),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=words):
            part.copy_from(whole, first=first, at=at)
    part.copy_from(whole, first=100)  # nothing, which is there
    with pytest.raises(deepreduce.ArgumentError, match="the source is a ndarray, not a State"):
        part.copy_from(whole.residual)


@pytest.mark.parametrize("factor", ["2", None, 1j, 10**400, numpy.ones(2)], ids=lambda factor: type(factor).__name__)
def test_a_factor_that_is_no_number_is_named(factor):
    state = State.from_residual(numpy.empty(4, F32), KEEP_2, f32(1, 2, 3, 4))
    with pytest.raises(deepreduce.ArgumentError, match="factor is .*, not a number"):
        state.scale(factor)
    state.scale(F32(2))
    assert state.residual.tolist() == [2, 4, 6, 8]


def test_the_norm_of_a_residual(rng):
    x = rng.standard_normal(1000).astype(F32)
    state = State(x, KEEP_2)
    assert state.norm() == 0
    encode(x, KEEP_2, state=state)
    assert state.norm() == pytest.approx(numpy.linalg.norm(state.residual.astype(numpy.float64)), rel=1e-12)
    with pytest.raises(deepreduce.ArgumentError):
        state.memory[:] = 0xFF
        state.norm()


# ---- Errors and the library ---------------------------------------------------------------------


def test_errors_are_what_python_expects():
    assert issubclass(deepreduce.ArgumentError, ValueError)
    assert issubclass(deepreduce.OutOfMemory, MemoryError)
    assert issubclass(deepreduce.LibraryError, ImportError)
    assert issubclass(deepreduce.ConcurrentUse, RuntimeError)
    error = deepreduce.CorruptFrame("why", tensor=3, where=7, what=5, frame=1, needed=9, stream="index")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code, again.tensor, again.where) == ("why", 3, 3, 7)
    assert (again.what, again.frame, again.needed, again.stream) == (5, 1, 9, "index")


def test_errors_tell_in_numbers_what_they_say():
    with pytest.raises(deepreduce.ArgumentError) as caught:
        encode([f32(1), f32(1, 2, float("nan"))], "value=qsgd")
    error = caught.value
    assert (error.tensor, error.where, error.stream, error.frame) == (1, 2, "value", None)
    assert math.isnan(error.what)
    for dtype in (F32, numpy.float16):
        with pytest.raises(deepreduce.ArgumentError, match="value -inf") as caught:
            encode(numpy.array([1, -numpy.inf], dtype), "index=all value=uniform_quant")
        assert caught.value.what == -math.inf
    good = encode(f32(1, 2), RAW)
    bad = bytearray(good)
    bad[-1] ^= 1
    for frames in ([good, good, bad], [bad]):
        with pytest.raises(deepreduce.CorruptFrame) as caught:
            merge(frames)
        assert caught.value.frame == len(frames) - 1
    with pytest.raises(deepreduce.CapacityError) as caught:
        decode(good, max_elements=1)
    assert caught.value.needed == 2


def test_a_gpus_bits_of_a_value_that_is_not_finite_have_its_name():
    for dtype, word in ((F32, numpy.uint32), (numpy.float16, numpy.uint16)):
        for value in (numpy.inf, -numpy.inf, numpy.nan, -numpy.nan):
            found = deepreduce.frame.unfinite(int(numpy.array(value, dtype).view(word)))
            assert found == value or (math.isnan(found) and numpy.isnan(value))
    assert [deepreduce.frame.unfinite(bits) for bits in (0x7F80, 0xFF80)] == [math.inf, -math.inf]  # bfloat16
    assert all(math.isnan(deepreduce.frame.unfinite(bits)) for bits in (0x7FC0, 0x7F800001, 0x7E00))


def run_python(code, **environment):
    package = os.path.dirname(os.path.dirname(deepreduce.__file__))
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-B", "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_missing_library_is_an_error_that_lists_the_paths():
    code = "import deepreduce\ntry: deepreduce.codecs()\nexcept deepreduce.LibraryError as e: print(e)"
    ran = run_python(code, DEEPREDUCE_LIBRARY="/nonexistent/libdeepreduce.so")
    assert ran.returncode == 0 and "/nonexistent/libdeepreduce.so: " in ran.stdout, ran.stderr
    other = ctypes.util.find_library("c")
    if other:
        ran = run_python(code, DEEPREDUCE_LIBRARY=other)
        assert ran.returncode == 0 and "not a libdeepreduce" in ran.stdout, ran.stderr


def test_torch_and_ml_dtypes_are_not_imported_without_need():
    code = (
        "import sys, numpy, deepreduce as d\n"
        f"d.decode(d.encode(numpy.ones(3, numpy.float32), {RAW!r}))\n"
        "print(sorted({'torch', 'ml_dtypes'} & set(sys.modules)))"
    )
    ran = run_python(code)
    assert ran.stdout.strip() == "[]", ran.stderr


@pytest.mark.parametrize("policy", ["leftmost", "middle", "p0", "p1", "p2"])
def test_a_bloom_filter_of_few_elements_fits_the_bound_of_many(policy):
    """Where positives are more than the support has room for, the keys go raw, however few they are."""
    x = numpy.zeros(300000, dtype=F32)
    x[numpy.random.default_rng(4).choice(x.size, 871, replace=False)] = 2
    plan = f"sparsify=threshold(value=1) index=bloom(fpr=0.1,policy={policy}) value=raw"
    batch = deepreduce.Batch(x, plan)
    found = batch.decode(batch.encode(x, bytearray(batch.bound)))
    assert numpy.count_nonzero(found) >= (871 if policy == "p0" else 1) and set(numpy.unique(found)) <= {0, 2}


def test_plans_of_one_text_are_equal():
    x = numpy.linspace(-1, 1, 500, dtype=F32)
    for long, short in (("value=fit_poly(segments=4)", "value=fit_poly"), ("index=seeded(ratio=0.01,count=0)", "index=seeded")):
        assert str(Plan(long)) == str(Plan(short)) and encode(x, long) == encode(x, short)


def test_rank_fit_is_as_near_at_any_scale():
    """Zeros count as magnitudes 24 octaves below the largest, also where f32 has fewer left."""
    x = numpy.random.default_rng(1).laplace(size=5000)
    x[numpy.random.default_rng(2).random(5000) < 0.9] = 0

    def error(scale):
        scaled = (scale * x).astype(F32)
        difference = decode(encode(scaled, "index=all value=rank_fit(bits=6)")).astype("f8") - scaled
        return numpy.linalg.norm(difference / scale)

    assert error(1e-33) < 1.05 * error(1)
