"""The library against the second implementation: every frame of the one is decoded by the other, bit for bit."""

import itertools
import os
import sys
from pathlib import Path

import pytest

numpy = pytest.importorskip("numpy")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "bindings" / "python"))
if not os.environ.get("DEEPREDUCE_LIBRARY"):
    pytest.skip("no library: DEEPREDUCE_LIBRARY is not set", allow_module_level=True)

import decoder  # noqa: E402
import deepreduce  # noqa: E402
import encoder  # noqa: E402
import sparsifier  # noqa: E402
from sweep import part  # noqa: E402

INDEX = ["raw", "golomb", "golomb(block=9)", "golomb(adaptive=1)", "golomb(block=9,adaptive=1)", "rice", "gap_huffman", "bloom(fpr=0.01)", "bloom(policy=p0,fpr=0.02,seed=7)", "bloom(policy=middle,fpr=0.1)",
         "bloom(policy=rightmost,fpr=0.1)", "bloom(policy=p1,fpr=0.1)", "bloom(policy=p2,fpr=0.1)", "bloom(policy=p2,bits=8,layout=split_block)", "raw+deflate", "golomb+deflate", "golomb+zstd"]
VALUE = ["raw", "qsgd", "qsgd(levels=63,bucket=100)", "fit_poly", "fit_poly(degree=1)", "fit_poly(sign=order)", "fit_poly(degree=3,knots=chord)", "fit_poly(knots=jump)", "fit_poly(knots=jump,sign=order)", "fit_poly(knots=fractions)",
         "fit_poly(knots=chord,sign=order,segments=7)", "rank_fit", "rank_fit(bits=7,degree=7)", "fit_dexp",
         "fit_dexp(sign=order)", "raw+deflate", "uniform_quant", "uniform_quant(error=0.1)", "uniform_quant(bits=4)+deflate", "log_quant",
         "log_quant(bits=6,range=3)", "lloyd(levels=2)", "lloyd(levels=16)", "lloyd(price=0.35)",
         "raw+zstd(level=19)", "half", "half(type=bf16)", "sketch(buckets=16)+huffman", "three_lc(sparsity=1.75)",
         "natural", "natural(rounding=nearest)", "dynamic_tree", "inceptionn(error=0.0001)",
         "planes", "sign", "sign(scale=means)", "sign(scale=level,level=0.01)", "ternary"]
FLAT = part(itertools.product(INDEX, VALUE), {"raw"}, 11)


def gradient(d, seed, dtype="float32"):
    """Laplace, a few exact ties and zeros among it."""
    random = numpy.random.Generator(numpy.random.Philox(seed))
    g = random.laplace(scale=1e-3, size=d)
    g[::17] = 0
    g[5::31] = 2e-3
    return g.astype(dtype)


def bits(array):
    return numpy.ascontiguousarray(array).view({4: "u4", 2: "u2"}[array.dtype.itemsize]).ravel().tolist()


def same(frame, expected=None):
    """The frame read by both, sparse and dense, is the same."""
    theirs = decoder.decode_frame(frame).tensors
    ours = deepreduce.decode(frame, sparse=True)
    dense = deepreduce.decode(frame)
    if not isinstance(ours, list):
        ours, dense = [ours], [dense]
    assert len(ours) == len(theirs)
    for mine, flat, other in zip(ours, dense, theirs):
        assert mine.indices.tolist() == other.indices
        assert bits(mine.values) == [int(v) for v in numpy.ravel(other.values)]
        assert bits(flat) == decoder.dense(other)


@pytest.mark.parametrize("index,value", FLAT)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_pair_is_read_the_same(index, value, dtype):
    g = gradient(3000, seed=len(index) * 100 + len(value), dtype=dtype)
    same(deepreduce.encode(g, f"sparsify=topr(ratio=0.05) index={index} value={value}", seed=3, private_seed=5, step=9))


@pytest.mark.parametrize("index", [*INDEX, "bitmap", "rle", "elias_fano", "delta_varint", "delta_bitpack", "delta_pfor", "seeded(ratio=0.1)", "all", "auto"])
@pytest.mark.parametrize("block", ["2", "4", "8", "16", "32", "auto"])
def test_blocks_are_read_the_same(index, block):
    for d, value in [(3000, "raw"), (2999, "log_quant"), (1003, "raw" if index == "auto" else "fit_poly")]:
        same(deepreduce.encode(gradient(d, seed=d), f"sparsify=blocks(ratio=0.05,block={block}) index={index} value={value}", seed=3, step=9))
    same(deepreduce.encode([gradient(700, 2), gradient(9, 3), numpy.zeros(0, "f4")], f"sparsify=blocks(ratio=0.3,block={block}) index={index if 'bloom' not in index else 'golomb'} value=raw", segment_rows=100))


@pytest.mark.parametrize("index,value", [p for p in FLAT if not p[1].startswith("fit_")])
def test_a_list_with_rows_empty_and_tiny_tensors_is_read_the_same(index, value):
    random = numpy.random.Generator(numpy.random.Philox(1))
    rows = deepreduce.Sparse(numpy.array([40, 2, 17, 5]), random.laplace(size=(4, 4)).astype("f4"), (50, 4))
    tensors = [gradient(700, 2), numpy.zeros(0, "f4"), numpy.zeros(33, "f4"), rows, gradient(9, 3)]
    if "bloom" in index:
        tensors.pop()  # full tensors need no filter; one that small goes dense
    same(deepreduce.encode(tensors, f"index={index} value={value}", tag=77))


def short_frame(e, universe, count, sections, **sizes):
    payload = b"".join(sections)
    return encoder.short_frame(encoder.EncodedRow(e, 0, universe, count, count, payload=payload + bytes(-len(payload) % 4), **sizes))


def stored(data):
    """By huffman."""
    return encoder.varint(2 * len(data)) + data


# Behind a codec are as many bytes of 0xff as it may write, and one more: it refuses these, or the bytes codec does.
@pytest.mark.parametrize("codec", [c for c in decoder.CODECS.values() if (c.bound or c.grown) and not c.needs_base], ids=lambda c: f"{c.role}-{c.name}")
def test_a_bound_is_that_of_its_spec(codec):
    behind = "deflate" if codec.name == "huffman" else "huffman"
    coder, raw, keys = (encoder.stage(*names) for names in [("bytes", behind), ("value", "raw"), ("index", "raw")])
    ranges = [range(low, high + 1) if high - low < 8 else (low, default, high) for _, low, high, default in codec.fields]
    for (universe, count), dtype, numbers in itertools.product([(1000, 1), (9000, 9000), (70000, 4097)], ["f32", "bf16"], itertools.product(*ranges)):
        stages = [encoder.stage(codec.role, codec.name, **{name: number for (name, *_), number in zip(codec.fields, numbers)}), coder]
        size = codec.grown(count * decoder.VALUE_SIZE[dtype]) if codec.grown else codec.bound(decoder.Shape(universe, count, count, dtype=dtype), stages[0].fields)
        for more in (0, 1):
            section = (encoder.deflate if behind == "deflate" else stored)(bytes([255] * (size + more)))
            if codec.role == "index":
                frame = short_frame(encoder.entry(dtype, [raw], stages), universe, count, [bytes(count * decoder.VALUE_SIZE[dtype]), section], index=len(section))
            else:
                e = encoder.entry(dtype, [raw, *stages] if codec.grown else stages, [keys], carries=codec.reorders)
                frame = short_frame(e, universe, count, [section, numpy.arange(count, dtype="<u4").tobytes()], value=len(section))
            with pytest.raises(deepreduce.CorruptFrame) as error:
                deepreduce.decode(frame)
            assert (f": {behind}: " in str(error.value)) == bool(more), (universe, count, dtype, numbers, size, error.value)
            with pytest.raises(decoder.Corrupt) as error:
                decoder.decode_frame(frame)
            assert str(error.value).startswith(f"{behind}: more bytes than") == bool(more)


def test_deflate_by_itself_may_be_longer_than_its_bound():
    flushed = 100 * b"\0\0\0\xff\xff" + encoder.deflate(bytes(8))
    for behind in ([], ["huffman"]):
        value = [encoder.stage("value", "raw"), encoder.stage("bytes", "deflate"), *(encoder.stage("bytes", name) for name in behind)]
        section = stored(flushed) if behind else flushed
        frame = short_frame(encoder.entry("f32", value, [encoder.stage("index", "raw")]), 9, 2, [section, bytes([0, 0, 0, 0, 1, 0, 0, 0])], value=len(section))
        if behind:
            with pytest.raises(deepreduce.CorruptFrame, match="huffman: "):
                deepreduce.decode(frame)
        else:
            same(frame)


@pytest.mark.parametrize("plan", [f"index={index}+huffman value=raw" for index in ("golomb", "golomb(adaptive=1)", "golomb(block=9)", "rice", "rle", "rle(code=gaps8)", "elias_fano", "delta_varint", "delta_bitpack", "delta_pfor", "gap_huffman", "chunks(size=64)")]
                         + [f"index=raw value={value}+huffman" for value in ("fit_poly(knots=fractions)", "fit_poly(knots=fractions,sign=order,degree=0)", "fit_poly(knots=chord,segments=64)", "fit_poly(knots=jump)", "sketch(buckets=256)", "three_lc", "uniform_quant", "uniform_quant(bits=16)", "log_quant(bits=6)", "lloyd(levels=16)", "inceptionn(error=1e-9)", "planes")]
                         + [f"index=raw value=raw+{chain}+huffman" for chain in ("deflate", "zstd", "huffman", "deflate+zstd", "zstd+deflate")])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_no_payload_is_longer_than_its_bound(plan, dtype):
    random = numpy.random.Generator(numpy.random.Philox(14))
    for count, sparse in [(1, 1), (2, 40), (31, 1), (64, 3), (200, 1000), (1500, 1), (5000, 2)]:
        g = numpy.zeros(count * sparse, dtype)
        g[random.permutation(count * sparse)[:count]] = (random.normal(size=count) * 10.0 ** random.integers(-4, 4, count)).astype(dtype)
        same(deepreduce.encode(g, plan))


def test_fig_8_sized_frames_are_read_the_same():
    g = gradient(36864, 8)
    for index, value in [("golomb", "qsgd"), ("golomb", "fit_poly"), ("raw", "fit_poly"), ("bloom(policy=p0,fpr=0.001)", "fit_poly")]:
        same(deepreduce.encode(g, f"sparsify=topr(ratio=0.01) index={index} value={value}"))


def test_worked_polynomials_over_many_segments_are_read_the_same():
    g = gradient(60000, 4)
    same(deepreduce.encode(g, "index=golomb value=fit_poly(degree=9)"))


@pytest.mark.parametrize("value", ["uniform_quant", "uniform_quant(error=0.2)", "log_quant", "log_quant(bits=6)", "lloyd(levels=2)", "lloyd(levels=16)", "lloyd(price=0.35)"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_levels_of_all_codings_are_read_the_same(value, dtype):
    random = numpy.random.Generator(numpy.random.Philox(12))
    g = random.normal(size=9000).astype(dtype)
    g[::3] *= 0.01
    same(deepreduce.encode(g, f"sparsify=none index=golomb value={value}"))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_few_magnitudes_come_back_exactly_by_lloyd(dtype):
    random = numpy.random.Generator(numpy.random.Philox(13))
    g = random.choice(numpy.array([0.1, -0.1, 0.3, 1e-4, -65504], dtype), size=500)
    frame = deepreduce.encode(g, "sparsify=none index=all value=lloyd(levels=4)")
    same(frame)
    assert bits(deepreduce.decode(frame)) == bits(g)
    assert len(frame) < 500 + 64  # in levels


KEEPS = [  # a stage, and what it keeps of values of a type with a key
    ("none", lambda v, t, key: sparsifier.none(v, t)),
    ("topr(ratio=0.05)", lambda v, t, key: sparsifier.topr(v, t, ratio=0.05)),
    ("topr(count=7)", lambda v, t, key: sparsifier.topr(v, t, count=7)),
    ("topr(ratio=0.97)", lambda v, t, key: sparsifier.topr(v, t, ratio=0.97)),  # more than there are nonzeros
    ("threshold(value=0.001)", lambda v, t, key: sparsifier.threshold(v, t, 0.001)),
    ("threshold(value=0)", lambda v, t, key: sparsifier.threshold(v, t, 0)),
    ("random(ratio=0.05)", lambda v, t, key: sparsifier.random(v, t, key, ratio=0.05)),
    ("random(ratio=0.9)", lambda v, t, key: sparsifier.random(v, t, key, ratio=0.9)),  # those that are not drawn
    *((f"blocks(ratio=0.05,block={s})", lambda v, t, key, s=s: sparsifier.blocks(v, t, s, ratio=0.05)) for s in (1, 2, 8, 32)),
    ("blocks(count=70,block=16)", lambda v, t, key: sparsifier.blocks(v, t, 16, count=70)),
    ("chunks(count=64)", lambda v, t, key: sparsifier.chunks(v, t, count=64)),
    ("chunks(ratio=0.05,size=300)", lambda v, t, key: sparsifier.chunks(v, t, 300, ratio=0.05)),
    ("adaq(ratio=0.05)", lambda v, t, key: sparsifier.adaq(v, t, 0.05)),
    ("dgc(ratio=0.02)", lambda v, t, key: sparsifier.dgc(v, t, key, 0.02)),
    ("dgc(ratio=0.02,sample=0.3)", lambda v, t, key: sparsifier.dgc(v, t, key, 0.02, 0.3)),
    ("dgc(ratio=0.02,corrections=0)", lambda v, t, key: sparsifier.dgc(v, t, key, 0.02, corrections=0)),
    ("dgc(ratio=0.001)", lambda v, t, key: sparsifier.dgc(v, t, key, 0.001)),  # a threshold of one sampled value
]


@pytest.mark.parametrize("stage,options", [("visible", {}), ("visible(type=f16,rate=0.3)", {"of": "f16", "rate": 0.3})])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_visible_keeps_what_plain_python_keeps(stage, options, dtype):
    kind = {"f32": ("f4", "u4"), "f16": ("f2", "u2")}[dtype]
    g, w = (0.0005 * gradient(5000, 31)).astype(kind[0]), gradient(5000, 32).astype(kind[0])
    g[7], w[::50] = 0, 0
    expected = sparsifier.visible(g.view(kind[1]).tolist(), w.view(kind[1]).tolist(), dtype, **options)
    assert 0 < len(expected) < len(g) - 1
    frame = deepreduce.encode(g, f"sparsify={stage} index=raw value=raw", weights=w)
    assert deepreduce.decode(frame, sparse=True).indices.tolist() == expected
    same(frame)


@pytest.mark.parametrize("stage,keep", KEEPS, ids=[stage for stage, _ in KEEPS])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_sparsifiers_keep_what_plain_python_keeps(stage, keep, dtype):
    tensors = [gradient(9000, 21), gradient(700, 22)]
    if dtype == "bf16":
        torch = pytest.importorskip("torch", reason="torch is missing: pip install torch")
        tensors = [torch.tensor(g).to(torch.bfloat16) for g in tensors]
        values = [[v & 0xffff for v in g.view(torch.int16).tolist()] for g in tensors]
    else:
        tensors = [g.astype({"f32": "f4", "f16": "f2"}[dtype]) for g in tensors]
        values = [bits(g) for g in tensors]
    # Values of a byte, so that no frame falls back to a dense row, which has no support.
    frame = deepreduce.encode(tensors, f"sparsify={stage} index=bitmap value=qsgd", seed=3, private_seed=5, step=9)
    for i, tensor in enumerate(decoder.decode_frame(frame).tensors):
        key = sparsifier.key_of(stage.partition("(")[0], seed=3, step=9, tensor=i)
        assert tensor.indices == keep(values[i], dtype, key)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_sparsifiers_rank_nan_above_infinity_and_never_keep_zeros_of_either_sign(dtype):
    g = numpy.array([0, -0.0, 1, -numpy.inf, numpy.nan, 0.5, -2, 0, -numpy.nan] * 9, dtype)
    name = {"f4": "f32", "f2": "f16"}[dtype]
    for stage, selected in [("none", sparsifier.none(bits(g), name)), ("topr(count=20)", sparsifier.topr(bits(g), name, count=20)),
                        ("threshold(value=1)", sparsifier.threshold(bits(g), name, 1))]:
        ours = deepreduce.decode(deepreduce.encode(g, f"sparsify={stage} index=bitmap value=raw"))
        assert numpy.flatnonzero(bits(ours)).tolist() == selected


WORDS = {"f32": ("u4", 1), "f16": ("u2", 2), "bf16": ("u2", 3), "u32": ("u4", 4), "f64": ("u8", 8), "u8": ("u1", 9), "u16": ("u2", 10)}


def weights(dtype, rows, width=1, seed=1):
    """Words of small numbers of a type, or any bits."""
    random = numpy.random.Generator(numpy.random.Philox(seed))
    x = random.normal(scale=0.02, size=rows * width)
    if dtype == "bf16":
        return (x.astype("f4").view("u4") >> 16).astype("u2")
    if dtype in ("f32", "f16", "f64"):
        return x.astype({"f32": "f4", "f16": "f2", "f64": "f8"}[dtype]).view(WORDS[dtype][0])
    return random.integers(0, 2 ** (8 * numpy.dtype(WORDS[dtype][0]).itemsize), rows * width, dtype=WORDS[dtype][0])


def stepped(base, dtype, share, seed=2):
    """Small words change more often, most by a place or two."""
    random = numpy.random.Generator(numpy.random.Philox(seed))
    size = base.dtype.itemsize
    key = base >> {4: 23, 2: 7, 8: 52, 1: 3}[size] & {4: 255, 2: 255, 8: 2047, 1: 15}[size]
    chance = share * numpy.where(key <= numpy.median(key), 1.8, 0.2)
    chosen = random.random(base.size) < chance
    by = random.choice(numpy.array([1, 1, 1, 2, 2 ** (8 * size) - 1, 2 ** (8 * size - 2) + 5], base.dtype), base.size)
    return numpy.where(chosen, base + by, base).astype(base.dtype)


def library_patch(plan, dtype, base, new, width=1, segment_rows=0, history=None):
    """The bare frame: deepreduce.patch puts it into a file of its own. history: it advances."""
    import ctypes

    from deepreduce._native import _abi, _library

    library, context, made = _library.load(), ctypes.POINTER(_abi.dr_context)(), ctypes.POINTER(_abi.dr_plan)()
    assert library.dr_context_create(None, ctypes.byref(context), None) == 0
    assert library.dr_plan_parse(plan.encode(), ctypes.byref(made), None) == 0
    t = _abi.dr_tensor(struct_size=ctypes.sizeof(_abi.dr_tensor), dtype=WORDS[dtype][1], universe=new.size // width, width=width, values=new.ctypes.data, base=base.ctypes.data,
                       history=None if history is None else ctypes.cast(history.ctypes.data, ctypes.POINTER(ctypes.c_ubyte)))
    call = _abi.dr_call(struct_size=ctypes.sizeof(_abi.dr_call), segment_rows=segment_rows)
    room, result = ctypes.create_string_buffer(2 * new.nbytes + 65536), _abi.dr_result(struct_size=ctypes.sizeof(_abi.dr_result))
    status = library.dr_encode(context, made, ctypes.byref(call), None, ctypes.byref(t), ctypes.sizeof(t), 1, room, len(room), ctypes.byref(result))
    library.dr_plan_destroy(made)
    library.dr_context_destroy(context)
    assert status == 0
    return bytes(room[: result.size])


@pytest.mark.parametrize("plan", ["index=auto value=ulp", "index=magnitude value=ulp", "index=magnitude value=xor", "index=magnitude+huffman value=ulp+huffman", "index=history+huffman value=history+huffman", "index=raw value=xor+huffman", "index=golomb value=xor", "index=all value=ulp",
                                  "index=bitmap value=raw", "index=auto value=auto(error=0)", "index=history value=history", "index=golomb value=history"])
@pytest.mark.parametrize("dtype", WORDS)
def test_patches_are_read_the_same(plan, dtype):
    for rows, width, share, segment in [(3000, 1, 0.02, 0), (3000, 1, 0.3, 0), (9000, 1, 0.1, 4096), (40, 1, 0.5, 0), (700, 3, 0.05, 0), (500, 1, 0, 0)]:
        if width > 1 and ("magnitude" in plan or "index=history" in plan):
            continue
        base = weights(dtype, rows, width)
        new = stepped(base, dtype, share)
        data = library_patch(f"sparsify=changed {plan}", dtype, base, new, width, segment)
        (tensor,) = decoder.decode_frame(data, [base.tolist()]).tensors
        assert (tensor.universe, tensor.width, tensor.dtype) == (rows, width, dtype)
        got = base.reshape(rows, width).copy()
        got[tensor.indices] = numpy.array(tensor.values, base.dtype).reshape(-1, width)
        assert (got.ravel() == new).all()
        if len(tensor.indices) < rows:
            assert tensor.indices == sparsifier.changed(new.tolist(), base.tolist(), width)


def test_classes_of_a_large_patch_are_read_the_same():
    base = weights("bf16", 70000)
    for share in (0.02, 0.4):
        data = library_patch("sparsify=changed index=magnitude value=ulp", "bf16", base, stepped(base, "bf16", share))
        (tensor,) = decoder.decode_frame(data, [base.tolist()]).tensors
        got = base.copy()
        got[tensor.indices] = tensor.values
        assert (got == stepped(base, "bf16", share)).all()


@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("plan, width", [("index=history value=history", 1), ("index=golomb value=history", 3), ("index=all value=history", 1), ("index=golomb value=raw", 1)])
def test_chains_are_read_and_their_histories_go_on_the_same(plan, width, dtype):
    rows = 4500
    base = weights(dtype, rows, width)
    history = numpy.zeros(rows * width, "u1")
    lengths = []
    for step in range(8):
        new, before = stepped(base, dtype, 0.3 if step % 3 else 0.02, seed=step % 4), history.tolist()
        data = library_patch(f"sparsify=changed {plan}", dtype, base, new, width, 4096 if step == 5 else 0, history)
        (tensor,) = decoder.decode_frame(data, [base.tolist()], [before]).tensors
        got = base.reshape(rows, width).copy()
        got[tensor.indices] = numpy.array(tensor.values, base.dtype).reshape(-1, width)
        assert (got.ravel() == new).all()
        assert history.tolist() == decoder.later_history(before, base.tolist(), new.tolist(), dtype)
        if plan == "index=history value=history" and any(before):
            with pytest.raises(decoder.Corrupt, match="history"):
                decoder.decode_frame(data, [base.tolist()])
        lengths.append(len(data))
        base = new
    assert len(set(history.tolist())) > 8 and min(lengths) > 0
