"""Patches of weights on a GPU: on the one that the CPU plays, whose results the CPU's own are compared with."""

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce import ArgumentError, Batch, CorruptFrame, Unsupported, WrongBase, encode, patch  # noqa: E402
from deepreduce._native import _device  # noqa: E402
from deepreduce._native._testing import Emulated, emulated  # noqa: E402

PLANS = [
    "sparsify=changed index=golomb value=ulp",
    "sparsify=changed index=rice value=raw",
    "sparsify=changed index=raw value=ulp",
]


@pytest.fixture(params=[0, 1], autouse=True)
def gpu(request):
    with emulated(request.param):
        yield


def host(x):
    framework = _device.framework_of(x)
    dtype = framework.view(x, "x", 1).dtype
    return numpy.frombuffer(framework.to_host(x), dtype).reshape(tuple(x.shape))


def weights(n, dtype=numpy.float32, seed=0):
    return numpy.random.default_rng(seed).normal(0, 0.02, n).astype(dtype)


def stepped(w, share, seed=1):
    random = numpy.random.default_rng(seed)
    bits = w.copy().view({2: numpy.uint16, 4: numpy.uint32}[w.dtype.itemsize])
    bits[random.random(w.size) < share] += 1
    return bits.view(w.dtype)


def model():
    old = {
        "a": weights(5000),
        "b": weights(30_000, numpy.float16, 1),
        "same": weights(700, numpy.float32, 2),
        "none": numpy.zeros(0, numpy.float32),
        "scalar": numpy.array(3, numpy.float32),
    }
    new = {name: stepped(w.reshape(-1), 0.05).reshape(w.shape) for name, w in old.items()}
    new["same"] = old["same"].copy()
    new["scalar"] = numpy.array(4, numpy.float32)
    return old, new


def on_gpu(arrays):
    """Copies, and the arrays on the played GPU over them."""
    held = {name: x.copy() for name, x in arrays.items()}
    return held, {name: Emulated(x) for name, x in held.items()}


def same(a, b):
    return all(a[name].tobytes() == b[name].tobytes() for name in b)


# ---- Frames -------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("share", [0, 0.02, 0.4, 1])
def test_frames_are_those_of_the_cpu_and_make_its_weights(plan, share):
    old, new = weights(20_000), stepped(weights(20_000), share)
    expected = encode(new, plan, weights=old)
    assert bytes(encode(Emulated(new), plan, weights=Emulated(old))) == expected
    base, held = old.copy(), Emulated(new)
    batch = Batch(held, plan)
    frame = batch.encode(held, batch.frame(), weights=Emulated(old))
    assert bytes(frame) == expected
    batch.apply(frame, Emulated(base))
    batch.check()
    assert base.tobytes() == new.tobytes()


def test_a_batch_of_a_list_says_which_base_is_another():
    old, new = model()
    names = ["a", "b", "same"]
    batch = Batch([Emulated(new[name]) for name in names], PLANS[0])
    frame = batch.encode([Emulated(new[name]) for name in names], batch.frame(), weights=[Emulated(old[name]) for name in names])
    wrong = {name: old[name].copy() for name in names}
    wrong["b"][7] += 1
    before = {name: x.copy() for name, x in wrong.items()}
    batch.apply(frame, [Emulated(wrong[name]) for name in names])
    with pytest.raises(WrongBase, match="tensor 1: its check is [0-9a-f]{16}; the patch is for a base of check [0-9a-f]{16}"):
        batch.check()
    assert same(wrong, before)


def test_a_batch_on_the_cpu_applies_too():
    old, new = weights(3000), stepped(weights(3000), 0.1)
    batch = Batch(new, PLANS[0])
    frame = batch.encode(new, weights=old)
    assert batch.apply(frame, old) is old and old.tobytes() == new.tobytes()
    with pytest.raises(WrongBase):
        batch.apply(frame, old)


# ---- deepreduce.patch ---------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [None, *PLANS])
def test_a_patch_of_weights_there_is_applied_there_and_on_the_cpu(plan):
    old, new = model()
    held, there = on_gpu(old)
    data = patch.encode(there, on_gpu(new)[1], plan)
    assert patch.apply(there, data) is there
    assert same(held, new)
    assert same(patch.apply(old, data), new)


def test_a_patch_of_the_cpu_whose_tensors_have_frames_of_their_own_is_applied_there():
    old, new = weights(5000), stepped(weights(5000), 0.03)
    data = patch.encode(old, new, PLANS[0])
    base = old.copy()
    patch.apply(Emulated(base), data)
    assert base.tobytes() == new.tobytes()


def test_all_tensors_change_or_none():
    old, new = model()
    data = patch.encode(on_gpu(old)[1], on_gpu(new)[1])
    for name in ("a", "b", "same"):
        wrong = {key: x.copy() for key, x in old.items()}
        wrong[name].reshape(-1)[5] += 1
        held, there = on_gpu(wrong)
        with pytest.raises(WrongBase, match=f"{name}: its check is"):
            patch.apply(there, data)
        assert same(held, wrong)
    held, there = on_gpu(old)
    patch.apply(there, data)
    with pytest.raises(WrongBase):
        patch.apply(there, data)
    for at in range(20, len(data), 97):
        damaged = bytearray(data)
        damaged[at] ^= 1
        held, there = on_gpu(old)
        with pytest.raises((CorruptFrame, WrongBase, Unsupported, ArgumentError)):
            patch.apply(there, bytes(damaged))
        assert same(held, old)


def test_changes_stay_there():
    old, new = model()
    data = patch.encode(on_gpu(old)[1], on_gpu(new)[1])
    held, there = on_gpu(old)
    found, expected = patch.changes(data, there), patch.changes(data, old)
    for name in old:
        indices, values = (host(x) for x in found[name])
        assert indices.tolist() == expected[name][0].tolist()
        assert values.tobytes() == expected[name][1].tobytes()
    assert same(held, old)


def test_pieces_of_a_tensor(monkeypatch):
    monkeypatch.setattr(patch._patch_file, "PIECE", 1 << 14)
    old, new = weights(20_000), stepped(weights(20_000), 0.03)
    base = old.copy()
    data = patch.encode(Emulated(old), Emulated(new))
    patch.apply(Emulated(base), data)
    assert base.tobytes() == new.tobytes()
    with pytest.raises(Unsupported, match="several pieces"):
        patch.changes(data, Emulated(old))


def test_tied_weights_are_written_once():
    old, new = weights(5000), stepped(weights(5000), 0.05)
    shared = old.copy()
    there = {"in": Emulated(shared), "out": Emulated(shared)}
    data = patch.encode({"in": Emulated(old), "out": Emulated(old)}, {"in": Emulated(new), "out": Emulated(new)})
    patch.apply(there, data)
    assert shared.tobytes() == new.tobytes()
    other = patch.encode({"in": Emulated(old), "out": Emulated(old)}, {"in": Emulated(new), "out": Emulated(stepped(new, 0.5))})
    shared[:] = old
    with pytest.raises(ArgumentError, match="'in' and 'out' are the same memory"):
        patch.apply(there, other)
    assert shared.tobytes() == old.tobytes()


def test_weights_that_share_a_part_of_their_memory_stay_as_they_are():
    old, new = weights(5000), stepped(weights(5000), 0.05)
    shared = old.copy()
    data = patch.encode({"a": Emulated(old), "b": Emulated(old[:2000].copy())}, {"a": Emulated(new), "b": Emulated(new[:2000].copy())})
    with pytest.raises(ArgumentError, match="'a' and 'b' share a part of their memory|'b' and 'a' share a part"):
        patch.apply({"a": Emulated(shared), "b": Emulated(shared[:2000])}, data)
    assert shared.tobytes() == old.tobytes()


def test_what_a_gpu_lacks_is_unsupported_by_name(tmp_path):
    old, new = model()
    there = on_gpu(old)[1]
    later = on_gpu(new)[1]
    with pytest.raises(Unsupported, match="auto runs on the CPU only"):
        patch.encode(there, later, "patch")
    with pytest.raises(Unsupported, match="xor runs on the CPU only"):
        patch.encode(there, later, "sparsify=changed index=golomb value=xor")
    with pytest.raises(Unsupported, match="w is int8 on cuda:0|old is int8 on cuda:0"):
        patch.encode(Emulated(numpy.zeros(3, numpy.int8)), Emulated(numpy.ones(3, numpy.int8)))
    for make in (patch.Sums, patch.History):
        with pytest.raises(Unsupported, match=f"{make.__name__}: 'a' is on cuda:0"):
            make(there)
    data = patch.encode(there, later)
    with pytest.raises(Unsupported, match="sums and histories: 'a' is on cuda:0"):
        patch.apply(there, data, sums=patch.Sums(old))
    with pytest.raises(Unsupported, match="'same', 'scalar'.* share a frame|share a frame"):
        patch.apply(there, patch.encode(old, new, PLANS[0]))
    with pytest.raises(Unsupported, match="magnitude runs on the CPU only"):
        patch.apply(Emulated(old["a"].copy()), patch.encode(old["a"], new["a"], "sparsify=changed index=magnitude value=ulp"))
    with pytest.raises(Unsupported, match="a store: 'a' is on cuda:0"), patch.Store(tmp_path) as store:
        store.put(0, there)
    with pytest.raises(ArgumentError, match="both must be on the CPU, or on one GPU"):
        patch.encode(there, new)
    with pytest.raises(ArgumentError, match="apply it by deepreduce.patch.apply"):
        deepreduce.decode(encode(Emulated(new["a"]), PLANS[0], weights=Emulated(old["a"])))
