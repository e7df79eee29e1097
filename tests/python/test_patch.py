"""Patches of arrays in memory: exact for every type, all tensors or none, and what is wrong is named."""

import json
import struct
import sys
import zlib
from pathlib import Path

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))
import decoder as reference  # noqa: E402

import deepreduce  # noqa: E402
from deepreduce import _patch_file, patch  # noqa: E402

TYPES = "float32 float16 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64 bool complex64 V2".split()
# (words with at least 4096 * 3 elements have several blocks)
SIZES = (0, 1, 3, 4096, 20_001)


def words(dtype, count, seed=0):
    """Random bits of a type, so NaNs with all payloads, infinities and both zeros, too."""
    raw = numpy.random.default_rng(seed).integers(0, 256, count * numpy.dtype(dtype).itemsize, numpy.uint8)
    return raw.view(dtype) if dtype != "bool" else raw % 2 == 1


def changed(x, share, seed=1):
    """x with so many elements of other bits."""
    rng = numpy.random.default_rng(seed)
    other, y = words(x.dtype.str.replace("|b1", "bool"), x.size, seed + 1), x.copy()
    where = rng.random(x.size) < share
    y[where] = other[where]
    return y


def weights(scale=1.0):
    """Three tensors of a model, normal weights of float32."""
    rng = numpy.random.default_rng(3)
    return {
        "embed": rng.normal(0, 0.02 * scale, (300, 32)).astype(numpy.float32),
        "layer.0": rng.normal(0, 0.02 * scale, (64, 64)).astype(numpy.float32),
        "bias": rng.normal(0, 0.02 * scale, 7).astype(numpy.float32),
    }


def stepped(model, seed=0):
    """The model after a step: some elements of each tensor differ, the first among them."""
    rng, new = numpy.random.default_rng(seed), {}
    for name, x in model.items():
        where = rng.random(x.shape) < 0.02
        where.reshape(-1)[0] = True
        new[name] = numpy.where(where, x * numpy.float32(1.001) + numpy.float32(1e-6), x)
    return new


def bits(model):
    return {name: x.tobytes() for name, x in model.items()}


def copied(model):
    return {name: x.copy() for name, x in model.items()}


@pytest.mark.parametrize("dtype", TYPES)
def test_a_patch_is_exact_for_all_bits_of_a_type(dtype):
    for size in SIZES:
        for share in (0, 0.01, 0.5, 1):
            old = words(dtype, size)
            new = changed(old, share)
            data = patch.encode(old, new)
            held = old.copy()
            assert patch.apply(held, data) is held
            assert held.tobytes() == new.tobytes(), (size, share)


@pytest.mark.parametrize("index", ["auto", "magnitude", "golomb", "bitmap", "raw", "all"])
@pytest.mark.parametrize("value", ["ulp", "xor", "raw"])
def test_plans_of_patches(index, value):
    old = weights()
    new = stepped(old)
    plan = deepreduce.Plan(f"sparsify=changed index={index} value={value}")
    assert plan.info.patch
    assert bits(patch.apply(copied(old), patch.encode(old, new, plan))) == bits(new)


def test_a_plan_without_a_base_makes_no_patch():
    assert not deepreduce.Plan("index=golomb").info.patch
    with pytest.raises(deepreduce.ArgumentError, match="makes no patches: they have sparsify=changed"):
        patch.encode(weights(), weights(), "index=golomb")


def test_a_frame_of_a_patch_is_no_gradient():
    x = numpy.zeros(8, numpy.float32)
    with pytest.raises(deepreduce.ArgumentError, match="base"):
        deepreduce.encode(x, "patch")
    opened = _patch_file.Patch(memoryview(patch.encode(x, x + 1)))
    (piece,) = opened.pieces(opened.entries[""])
    with pytest.raises(deepreduce.ArgumentError, match="a patch of weights: deepreduce.patch.apply"):
        deepreduce.decode(piece.frame)


# ---- All or nothing ------------------------------------------------------------------------------


def test_a_patch_for_another_base_names_the_tensor_and_both_checks():
    old, new = weights(), stepped(weights())
    data = patch.encode(old, new, base="step 4", result="step 5")
    held = copied(old)
    held["bias"][3] += 1
    before = bits(held)
    here, there = patch.Sums(held).check("bias"), patch.Sums(old).check("bias")
    assert here != there
    with pytest.raises(deepreduce.WrongBase, match=rf"bias: its check is {here:016x}; .* a base of check {there:016x}"):
        patch.apply(held, data)
    assert bits(held) == before


def test_a_patch_is_applied_once():
    old, new = weights(), stepped(weights())
    data, held = patch.encode(old, new), copied(old)
    patch.apply(held, data)
    with pytest.raises(deepreduce.WrongBase, match="embed"):
        patch.apply(held, data)
    assert bits(held) == bits(new)


def forged(data, at):
    """A patch of which a byte of the last frame's sections is another, and the frame's own check right again."""
    opened = _patch_file.Patch(memoryview(data))
    entry = list(opened.entries.values())[-1]
    begin = len(data) - entry.end + entry.begin
    frame = bytearray(data[begin:])
    frame[deepreduce.inspect(bytes(frame)).header_size + 16 + at] ^= 1  # 16: checks of base and result
    frame[4:12] = bytes(8)
    frame[4:12] = struct.pack("<Q", reference.check(bytes(frame)))
    return data[:begin] + bytes(frame)


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


# ---- Hostile headers -----------------------------------------------------------------------------


def with_header(document, frames=b"", size=None, crc=None):
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return struct.pack("<8sII", b"DRPATCH\x01", len(text) if size is None else size, zlib.crc32(text) if crc is None else crc) + text + frames


NAMES = {"__metadata__": {"base": "", "result": ""}}
TENSOR = {"dtype": "F32", "shape": [3], "data_offsets": [0, 0]}


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
    for dtype, shape, frames in (("U32", 8, frame), ("F32", 7, frame), ("F32", 9, frame), ("F32", 16, frame + frame)):
        entry = {"dtype": dtype, "shape": [shape], "data_offsets": [0, len(frames)]}
        held = numpy.zeros(shape, {"U32": numpy.uint32, "F32": numpy.float32}[dtype])
        with pytest.raises(deepreduce.CorruptFrame, match="frame"):
            patch.apply(held, with_header({**NAMES, "": entry}, frames))
        assert not held.any()


# ---- What does not go together -------------------------------------------------------------------


def test_what_differs_is_named():
    old, data = weights(), patch.encode(weights(), stepped(weights()))
    fewer = {name: x for name, x in old.items() if name != "bias"}
    for held, why in (
        (fewer, "patch has 'bias', weights does not"),
        ({**old, "more": old["bias"]}, "weights has 'more', patch does not"),
        ({**old, "bias": old["bias"][:6].copy()}, r"'bias': weights has F32 of shape \[6\], patch F32 of shape \[7\]"),
        ({**old, "bias": old["bias"].view(numpy.int32)}, r"'bias': weights has I32 .* patch F32"),
        ({**old, "embed": old["embed"].reshape(-1)}, r"'embed': .* shape \[9600\], .* \[300, 32\]"),
        (old["bias"], "patch"),
        ({**old, 3: old["bias"]}, "the name 3, which is no text"),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=why):
            patch.apply(held, data)
        with pytest.raises(deepreduce.ArgumentError):
            patch.encode(old, held)


def test_what_cannot_be_written_is_refused():
    old = weights()["embed"]
    data = patch.encode(old, old * 2)
    fixed = old.copy()
    fixed.flags.writeable = False
    with pytest.raises(deepreduce.ArgumentError, match="weights is read-only"):
        patch.apply(fixed, data)
    with pytest.raises(deepreduce.ArgumentError, match="not contiguous"):
        patch.apply(numpy.asfortranarray(old), data)
    assert patch.encode(numpy.asfortranarray(old), old * 2) == data  # of what is read a copy is made
    with pytest.raises(deepreduce.ArgumentError, match="another order"):
        patch.encode(old.astype(">f4"), old.astype(">f4"))
    with pytest.raises(deepreduce.ArgumentError, match="complex128"):
        patch.encode(old.astype(complex), old.astype(complex))


def test_tied_weights_are_patched_once():
    one = weights()["embed"]
    two = stepped({"": one})[""]
    data = patch.encode({"in": one, "out": one}, {"in": two, "out": two})
    held = one.copy()
    sums = patch.Sums({"in": held, "out": held})
    patch.apply({"in": held, "out": held}, data, sums=sums)
    assert held.tobytes() == two.tobytes()
    assert sums.check("in") == sums.check("out") == patch.Sums(two).check()


def test_tied_weights_that_the_patch_makes_differ_are_refused():
    one = weights()["embed"]
    data = patch.encode({"in": one, "out": one}, {"in": one * 2, "out": one * 3})
    held = one.copy()
    with pytest.raises(deepreduce.ArgumentError, match="'in' and 'out' are the same memory"):
        patch.apply({"in": held, "out": held}, data)
    data = patch.encode({"a": one[:200], "b": one[100:]}, {"a": one[:200], "b": one[100:]})
    with pytest.raises(deepreduce.ArgumentError, match="share a part of their memory"):
        patch.apply({"a": held[:200], "b": held[100:]}, data)
    assert held.tobytes() == one.tobytes()


# ---- Pieces, threads, sums, pairs ----------------------------------------------------------------


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(_patch_file, "PIECE", 1 << 14)


def test_a_tensor_of_many_pieces(small_pieces):
    old = {"a": words("uint16", 50_000), "b": words("float32", 9000), "c": words("uint8", 16_385), "d": words("float64", 0)}
    new = {name: changed(x, 0.05) for name, x in old.items()}
    data = patch.encode(old, new)
    opened = _patch_file.Patch(memoryview(data))
    assert [len(opened.pieces(each)) for each in opened.entries.values()] == [7, 3, 2, 1]
    assert patch.encode(old, new, threads=3) == data
    for threads in (None, 3):
        held, sums = copied(old), patch.Sums(old)
        patch.apply(held, data, threads=threads, sums=sums)
        assert bits(held) == bits(new)
        assert [sums.check(name) for name in new] == [patch.Sums(new).check(name) for name in new]
    held = copied(old)
    held["b"][8999] += 1
    before = bits(held)
    with pytest.raises(deepreduce.WrongBase, match="b, words from 8192: its check"):
        patch.apply(held, data, threads=2)
    assert bits(held) == before
    indices, values = patch.changes(data, old)["a"]
    assert (indices == numpy.flatnonzero(old["a"] != new["a"])).all() and (values == new["a"][indices]).all()


def test_sums_follow_a_chain():
    sent = weights()
    held = copied(sent)
    ours, theirs = patch.Sums(sent), patch.Sums(held)
    for step in range(5):
        new = stepped(sent, step)
        data = patch.encode(sent, new, sums=ours)
        assert data == patch.encode(sent, new)
        patch.apply(held, data, sums=theirs)
        sent = new
    assert bits(held) == bits(sent)
    assert [ours.check(name) for name in sent] == [theirs.check(name) for name in sent] == [patch.Sums(sent).check(name) for name in sent]


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


def test_changes_are_pairs_and_write_nothing():
    old, new = weights(), stepped(weights())
    before = bits(old)
    for name, (indices, values) in patch.changes(patch.encode(old, new), old).items():
        assert indices.dtype == numpy.int64 and values.dtype == old[name].dtype
        assert (indices == numpy.flatnonzero(old[name].reshape(-1) != new[name].reshape(-1))).all()
        assert values.tobytes() == new[name].reshape(-1)[indices].tobytes()
    assert bits(old) == before
    indices, values = patch.changes(patch.encode(old["bias"], old["bias"]), old["bias"])
    assert len(indices) == len(values) == 0
    with pytest.raises(deepreduce.WrongBase):
        patch.changes(patch.encode(old, new), new)


def test_a_patch_bears_its_names():
    x = numpy.zeros(3, numpy.float32)
    opened = _patch_file.Patch(memoryview(patch.encode(x, x, base="step 3", result="schritt \u00e4")))
    assert (opened.base, opened.result) == ("step 3", "schritt \u00e4")


# ---- Frameworks ----------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is missing: ./dev setup")


def test_torch_types(torch):
    for name in "bfloat16 float16 float32 float64 float8_e4m3fn float8_e5m2 int8 uint8 int16 int32 int64 bool".split():
        dtype = getattr(torch, name)
        raw = torch.randint(0, 2 if name == "bool" else 256, (9000 * dtype.itemsize,), dtype=torch.uint8)
        old = raw.view(dtype).reshape(90, 100)
        new = old.clone()
        new.view(torch.uint8)[::7] = new.view(torch.uint8)[::7].flip(0)
        held = old.clone()
        data = patch.encode(old, new)
        indices, values = patch.changes(data, held)
        assert values.dtype == dtype
        assert torch.equal(values.view(torch.uint8), new.reshape(-1)[torch.from_numpy(indices)].view(torch.uint8))
        assert patch.apply(held, data) is held
        assert torch.equal(held.view(torch.uint8), new.view(torch.uint8)), name


def test_a_state_dict_of_torch(torch):
    torch.manual_seed(0)
    sender = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 8)).to(torch.bfloat16)
    receiver = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 8)).to(torch.bfloat16)
    receiver.load_state_dict(sender.state_dict())
    before = {name: x.clone() for name, x in sender.state_dict().items()}
    sender(torch.randn(32, 64, dtype=torch.bfloat16)).square().mean().backward()
    torch.optim.SGD(sender.parameters(), 0.1).step()
    data = patch.encode(before, sender.state_dict())
    patch.apply(receiver.state_dict(), data)
    assert all(torch.equal(a, b) for a, b in zip(receiver.state_dict().values(), sender.state_dict().values()))
    with pytest.raises(deepreduce.ArgumentError, match="not contiguous"):
        patch.apply(torch.zeros(4, 4).t(), patch.encode(torch.zeros(4, 4), torch.ones(4, 4)))
    with pytest.raises(deepreduce.ArgumentError, match="meta"):
        patch.encode(torch.zeros(3, device="meta"), torch.zeros(3, device="meta"))


def test_torch_and_numpy_make_the_same_patch(torch):
    old, new = weights(), stepped(weights())
    data = patch.encode(old, new)
    assert patch.encode({name: torch.from_numpy(x) for name, x in old.items()}, new) == data
    assert patch.encode(torch.zeros(9, dtype=torch.bfloat16), torch.ones(9, dtype=torch.bfloat16)) == patch.encode(
        numpy.zeros(9, "V2"), numpy.full(9, 0x3F80, numpy.uint16).view("V2")
    )


def test_jax_arrays_are_returned_anew():
    jax = pytest.importorskip("jax", reason="jax is missing: pip install jax")
    old = {"w": jax.numpy.arange(5000, dtype=jax.numpy.bfloat16), "b": jax.numpy.zeros(3)}
    new = {"w": old["w"] * 2, "b": old["b"] + 1}
    made = patch.apply(old, patch.encode(old, new))
    assert isinstance(made["w"], jax.Array) and made["w"].dtype == old["w"].dtype
    assert all((made[name] == new[name]).all() for name in new) and not old["b"].any()
    assert (patch.apply(old["b"], patch.encode(old["b"], new["b"])) == 1).all()
