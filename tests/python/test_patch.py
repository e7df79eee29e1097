"""Patches of arrays in memory: exact for every type, all tensors or none, and what is wrong is named."""

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

from patch_weights import bits, copied, stepped, weights  # noqa: E402

import deepreduce  # noqa: E402
from deepreduce import patch  # noqa: E402
from deepreduce.patch import _patch_file  # noqa: E402

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
    with pytest.raises(deepreduce.ArgumentError, match="cannot make patches: it needs sparsify=changed"):
        patch.encode(weights(), weights(), "index=golomb")


def test_a_frame_of_a_patch_is_no_gradient():
    x = numpy.zeros(8, numpy.float32)
    with pytest.raises(deepreduce.ArgumentError, match="base"):
        deepreduce.encode(x, "patch")
    ((_, frame),) = _patch_file.Patch(memoryview(patch.encode(x, x + 1))).frames()
    with pytest.raises(deepreduce.ArgumentError, match="a patch of weights: apply it by deepreduce.patch.apply"):
        deepreduce.decode(frame)


# ---- All or nothing ------------------------------------------------------------------------------


def layers(seed=0):
    """A model of many small tensors, some of one size, and of one that is cut with `small_pieces`."""
    rng = numpy.random.default_rng(seed)
    made = {f"layers.{i}.{part}": rng.normal(0, 0.02, n).astype(numpy.float32) for i in range(40) for part, n in (("bias", 48), ("w", 300 + i))}
    return {**made, "embed": rng.normal(0, 0.02, 9000).astype(numpy.float32), "count": numpy.array(3), "half": numpy.ones(50, numpy.float16)}


def test_a_patch_for_another_base_names_the_tensor_and_both_checks():
    """An array has a frame to itself."""
    old, new = weights()["embed"], stepped(weights())["embed"]
    data, held = patch.encode(old, new), old.copy()
    held[3] += 1
    before = held.tobytes()
    here, there = patch.Sums(held).check(), patch.Sums(old).check()
    assert here != there
    with pytest.raises(deepreduce.WrongBase, match=rf"^its check is {here:016x}; .* a base of check {there:016x}"):
        patch.apply(held, data)
    assert held.tobytes() == before


@pytest.mark.parametrize("share", [1, 3, 1000])
def test_whichever_tensor_is_another_is_named(share):
    """Tensors that share a frame, changed or not, and those that have none, for nothing of them changed."""
    old = layers()
    new = {name: x if i % share else stepped({"": x})[""] for i, (name, x) in enumerate(old.items())}
    data = patch.encode(old, new)
    for name in old:
        held = copied(old)
        held[name].reshape(-1)[-1] += 1
        before = bits(held)
        here, there = patch.Sums(held).check(name), patch.Sums(old).check(name)
        both = rf"{here:016x}, {here % 65521} modulo 65521; .* {there % 65521} modulo|{here:016x}; .* {there:016x}"
        with pytest.raises(deepreduce.WrongBase, match=rf"^{name}: its check is ({both})"):
            patch.apply(held, data)
        with pytest.raises(deepreduce.WrongBase, match=rf"^{name}: its check is ({both})"):
            patch.changes(data, held)
        assert bits(held) == before
    held = copied(old)
    for name in ("layers.3.bias", "layers.30.bias"):
        held[name][0] += 1
    with pytest.raises(deepreduce.WrongBase, match=r"^more than one of layers.0.bias … .* \(\d+ tensors\): (its|their) check is"):
        patch.apply(held, data)


def test_a_patch_is_applied_once():
    old, new = weights(), stepped(weights())
    data, held = patch.encode(old, new), copied(old)
    patch.apply(held, data)
    with pytest.raises(deepreduce.WrongBase, match="more than one of bias, layer.0, embed"):
        patch.apply(held, data)
    assert bits(held) == bits(new)


# ---- Bytes ---------------------------------------------------------------------------------------


def test_a_tensor_that_did_not_change_takes_two_bytes_at_most():
    """Large ones and small ones; neither a name, nor a frame, nor a header."""
    rng, embed = numpy.random.default_rng(0), weights()["embed"]
    many = {f"a_name_of_a_tensor.{i:03}": rng.integers(0, 2**16, 3_000_000 if i < 3 else 200, numpy.uint16) for i in range(300)}
    assert len(patch.encode(many, many)) < 60
    alone = len(patch.encode({"embed": embed}, {"embed": embed * 2}))
    data = patch.encode({**many, "embed": embed}, {**many, "embed": embed * 2})
    assert len(data) - alone < 60
    assert patch.apply({**copied(many), "embed": embed.copy()}, data)["embed"].tobytes() == (embed * 2).tobytes()


def test_a_model_of_small_tensors_takes_the_bytes_of_one_array():
    old = {name: x for name, x in layers().items() if x.dtype == numpy.float32}
    new = {name: (x.view(numpy.uint32) + (numpy.random.default_rng(i).random(x.size) < 0.02)).view(numpy.float32) for i, (name, x) in enumerate(old.items())}
    one = patch.encode(*(numpy.concatenate(list(x.values())) for x in (old, new)))
    data = patch.encode(old, new)
    assert len(data) < 1.03 * len(one) + 16
    assert bits(patch.apply(copied(old), data)) == bits(new)


def test_tensors_of_unlike_statistics_have_frames_of_their_own():
    """In one frame they would share tables: two f32 tensors, one changed in its low bits, the other replaced."""
    rng = numpy.random.default_rng(0)
    old = {name: rng.normal(0, 0.02, 100_000).astype(numpy.float32) for name in ("still", "wild")}
    new = {"still": (old["still"].view(numpy.uint32) ^ rng.integers(0, 2, 100_000, numpy.uint32)).view(numpy.float32), "wild": -2 * old["wild"]}
    data = patch.encode(old, new)
    assert [row.parts for row in _patch_file.Patch(memoryview(data)).index.units] == [1, 1]
    assert bits(patch.apply(copied(old), data)) == bits(new)


# ---- What does not go together -------------------------------------------------------------------


def test_what_differs_is_named():
    old, data = weights(), patch.encode(weights(), stepped(weights()))
    fewer = {name: x for name, x in old.items() if name != "bias"}
    for held, why in (
        (fewer, "weights: its 2 tensors are not those of patch: one is missing, or more than one differs"),
        ({f"module.{name}": x for name, x in old.items()}, "more than one differs; all names begin with 'module.', which those of patch may not$"),
        ({**old, "more": old["bias"]}, "weights has 'more', patch does not"),
        ({**old, "bias": old["bias"][:6].copy()}, r"'bias': weights has F32 of shape \[6\], patch another type or shape"),
        ({**old, "bias": old["bias"].view(numpy.int32)}, r"'bias': weights has I32 of shape \[7\], patch another"),
        ({**old, "embed": old["embed"].reshape(-1)}, r"'embed': weights has F32 of shape \[9600\], patch another"),
        (old["bias"], "patch"),
        ({**old, 3: old["bias"]}, "the name 3, which is not a string"),
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

    class Copies:
        def __array__(self, dtype=None, copy=None):
            return old.copy()

    one = patch.encode(numpy.float32(0), numpy.float32(1))
    for held, its in ((Copies(), data), (numpy.float32(0), one)):
        with pytest.raises(deepreduce.ArgumentError, match="gives copies of its memory"):
            patch.apply(held, its)
    with pytest.raises(deepreduce.ArgumentError, match="another order"):
        patch.encode(old.astype(">f4"), old.astype(">f4"))
    with pytest.raises(deepreduce.ArgumentError, match="complex128"):
        patch.encode(old.astype(complex), old.astype(complex))


def test_a_memory_under_names_of_two_word_sizes_has_no_common_history():
    def both(memory):
        return {"whole": memory, "halves": memory.view(numpy.uint16)}

    old, new = numpy.zeros(4096, numpy.float32), numpy.ones(4096, numpy.float32)
    data = patch.encode(copied(both(old)), both(new), history=patch.History(both(old)))
    with pytest.raises(deepreduce.ArgumentError, match="words of two sizes"):
        patch.apply(both(old), data, history=patch.History(both(old)))
    assert not old.any()


def test_the_work_of_joining_small_tensors_is_linear(monkeypatch):
    calls = []
    size = _patch_file.Part.size.fget
    monkeypatch.setattr(_patch_file.Part, "size", property(lambda part: calls.append(1) or size(part)))
    parts = [_patch_file.Part(str(i), "F32", 0, 8) for i in range(1000)]
    assert [len(group) for group in _patch_file._join(parts, 32 * 400)] == [400, 400, 200] and len(calls) == 1000


def test_tied_weights_are_patched_once():
    one = weights()["embed"]
    two = stepped({"": one})[""]
    data = patch.encode({"in": one, "out": one}, {"in": two, "out": two})
    held = one.copy()
    sums = patch.Sums({"in": held, "out": held})
    patch.apply({"in": held, "out": held}, data, sums=sums)
    assert held.tobytes() == two.tobytes()
    assert sums.check("in") == sums.check("out") == patch.Sums(two).check()


def test_tied_weights_in_other_frames_are_patched_once(monkeypatch):
    """Names of the same memory in frames of their own, in a shared one, and in two shared ones."""
    shared, alone = numpy.arange(200, dtype=numpy.float32), numpy.arange(5000, dtype=numpy.float32)
    old = {"a": shared, "b": shared.copy(), "c": shared, "d": shared, "e": alone, "f": alone}
    new = {name: x + (name != "b") for name, x in old.items()}
    for join in (1 << 22, 1600):
        monkeypatch.setattr(_patch_file, "JOIN", join)
        data = patch.encode(old, new)
        for threads in (None, 3):
            one, two = shared.copy(), alone.copy()
            held = {"a": one, "b": shared.copy(), "c": one, "d": one, "e": two, "f": two}
            sums = patch.Sums(held)
            assert bits(patch.apply(held, data, sums=sums, threads=threads)) == bits(new)
            assert [sums.check(name) for name in new] == [patch.Sums(new).check(name) for name in new]


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
    units = [[part.name for part in unit.parts] for unit in opened.units(patch.tensors_of(old, "old"))]
    assert sorted(units) == [["a"]] * 7 + [["b"]] * 3 + [["c"]] * 2 + [["d"]]
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


@pytest.mark.parametrize("model", [weights, layers])
def test_sums_follow_a_chain(model):
    sent = model()
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


@pytest.mark.parametrize("model", [weights, layers])
def test_changes_are_pairs_and_write_nothing(model):
    old = model()
    new = stepped(old)
    before = bits(old)
    for name, (indices, values) in patch.changes(patch.encode(old, new), old).items():
        assert indices.dtype == numpy.int64 and values.dtype == old[name].dtype
        assert (indices == numpy.flatnonzero(old[name].reshape(-1) != new[name].reshape(-1))).all()
        assert values.tobytes() == new[name].reshape(-1)[indices].tobytes()
    assert bits(old) == before
    embed = old["embed"]
    indices, values = patch.changes(patch.encode(embed, embed), embed)
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


def test_a_tensor_of_at_most_one_element_is_contiguous_by_any_strides(torch):
    old = torch.arange(25.0).reshape(5, 5)
    for x in (old[:1, 0], old[:, 1:][:0, 0], torch.ones(()).expand(1), torch.from_numpy(numpy.zeros(0, numpy.float32))):
        assert x.is_contiguous() and x.stride() != (1,)
        new = x + 1
        assert patch.Sums(new).check() == patch.Sums(new.clone(memory_format=torch.contiguous_format)).check()
        patch.History({"w": x})
        assert torch.equal(patch.apply(x, patch.encode(x, new)), new)


def test_a_conjugate_view_of_torch_is_refused_where_it_is_written(torch):
    old = torch.ones(8, dtype=torch.complex64)
    data = patch.encode(old.conj(), 2 * old)
    with pytest.raises(deepreduce.ArgumentError, match="a conjugate view"):
        patch.apply(old.conj(), data)


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
