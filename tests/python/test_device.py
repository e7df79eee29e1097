"""What the Python package promises of arrays on a GPU.

Without a GPU: on the one that the CPU plays (deepreduce._native._testing), with memory of the CPU, whose results the CPU's own
are compared with. With one and with torch, what only that can show is tested, too.
"""

import ctypes
import pathlib
import pickle
import re
import sys
import types

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce import Batch, DeviceFrame, Sparse, State, decode, encode, inspect, merge  # noqa: E402
from deepreduce._native import _device, _dlpack, _driver, _memory  # noqa: E402
from deepreduce._native._testing import Emulated, emulated  # noqa: E402

F32 = numpy.float32
RAW = "index=raw value=raw"
TOPR = "sparsify=topr(ratio=0.1) "
PLANS = [
    RAW,
    TOPR + "index=golomb value=raw",
    TOPR + "index=rice value=qsgd",
    TOPR + "index=golomb value=fit_poly",
    TOPR + "index=bloom(policy=p0,fpr=0.02) value=qsgd(levels=7)",
]
HOST_ONLY = TOPR + "index=golomb value=raw+deflate"
KEEP = TOPR + "feedback=residual index=golomb value=qsgd"
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "GPU.md"


@pytest.fixture(params=[0, 1])
def gpu(request):
    with emulated(request.param):
        yield


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is missing: pip install torch")


def gradient(n=3000, seed=0, dtype=F32):
    return numpy.random.default_rng(seed).laplace(size=n).astype(dtype)


def f32(*values):
    return numpy.array(values, F32)


def host(x):
    """A copy of an array on the played GPU."""
    framework = _device.framework_of(x)
    dtype = framework.view(x, "x", 1).dtype
    return numpy.frombuffer(framework.to_host(x), dtype).reshape(tuple(x.shape))


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


class OnlyInterface:
    """An array that describes itself as Numba's do."""

    def __init__(self, array, stream=None, read_only=False, **others):
        self.array = array
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, read_only),
            "strides": array.strides,
            "stream": stream,
            **others,
        }


class OldDlpack(Emulated):
    """From before DLPack 1: no max_version, and a capsule without a version."""

    def __dlpack__(self, *, stream=None):
        super().__dlpack__(stream=stream)
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self._exported[-1].tensor), b"dltensor", None)


# ---- Encode, decode, merge, inspect -------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS)
def test_frames_and_tensors_are_those_of_the_cpu(plan, gpu):
    x = gradient()
    expected = encode(x, plan, step=3, seed=4, private_seed=5, tag=6)
    frame = encode(Emulated(x), plan, step=3, seed=4, private_seed=5, tag=6)
    assert isinstance(frame, DeviceFrame)
    assert frame.size() == len(expected) and bytes(frame) == frame.to_host() == expected
    assert inspect(frame) == inspect(expected) and not inspect(frame).tensors[0].host_only
    assert same_bits(host(decode(frame)), decode(expected))
    out = numpy.zeros((30, 100), F32)
    given = Emulated(out)
    assert decode(frame, out=given) is given
    assert same_bits(out.reshape(-1), decode(expected))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types(dtype, gpu):
    x = gradient(dtype=dtype if dtype == "float16" else pytest.importorskip("ml_dtypes").bfloat16)
    plan = TOPR + "index=golomb value=raw"
    frame = encode(Emulated(x), plan)
    assert bytes(frame) == encode(x, plan)
    for kind in (x.dtype, F32):
        out = numpy.empty(3000, kind)
        decode(frame, out=Emulated(out))
        assert same_bits(out.astype(F32), decode(encode(x, plan), out=numpy.empty(3000, F32)))


def test_lists_and_plans_for_each(gpu):
    xs, plans = [gradient(500, 1), gradient(40, 2), gradient(3, 3)], [PLANS[1], PLANS[2], RAW]
    frame = encode([Emulated(x) for x in xs], plans)
    assert bytes(frame) == encode(xs, plans)
    got, expected = decode(frame), decode(encode(xs, plans))
    assert isinstance(got, list) and all(same_bits(host(a), b) for a, b in zip(got, expected))
    outs = [Emulated(numpy.ones_like(x)) for x in xs]
    merge([frame, bytes_on_gpu(encode(xs, plans))], weights=[1, 0.5], out=outs)
    into = [numpy.ones_like(x) for x in xs]
    merge([encode(xs, plans)] * 2, weights=[1, 0.5], out=into)
    assert all(same_bits(a.array, b) for a, b in zip(outs, into))


def bytes_on_gpu(frame, behind=0):
    """A frame that was received: bytes aligned to 16, perhaps with others behind."""
    memory = numpy.full(len(frame) + behind + 16, 0xEE, numpy.uint8)
    begin = -memory.ctypes.data % 16
    memory[begin : begin + len(frame)] = numpy.frombuffer(frame, numpy.uint8)
    return Emulated(memory[begin : begin + len(frame) + behind])


@pytest.mark.parametrize("index", ["int32", "uint32", "int64", "uint64"])
def test_sparse_in_and_out(index, gpu):
    indices = numpy.array([1, 5, 70, 900], index)
    values = gradient(12).reshape(4, 3)
    x = Sparse(Emulated(indices), Emulated(values), (1000, 3))
    frame = encode(x, "index=golomb")
    assert bytes(frame) == encode(Sparse(indices, values, (1000, 3)), "index=golomb")
    got = decode(frame, sparse=True)
    assert isinstance(got, Sparse) and got.shape == (1000, 3)
    assert same_bits(host(got.indices), indices.astype(numpy.int64)) and same_bits(host(got.values), values)


def test_sparse_without_rows_and_tensors_without_elements(gpu):
    got = decode(encode(Emulated(f32(0, 0, 0)), "index=golomb"), sparse=True)
    assert host(got.indices).size == host(got.values).size == 0
    assert host(decode(encode(Emulated(f32()), RAW))).size == 0


def test_indices_on_a_gpu_must_ascend(gpu):
    x = Sparse(Emulated(numpy.array([4, 1])), Emulated(f32(1, 2)), (6,))
    frame = encode(x, "index=golomb")
    with pytest.raises(deepreduce.ArgumentError, match="ascend") as caught:
        frame.size()
    assert caught.value.tensor == 0
    with pytest.raises(deepreduce.Unsupported, match="DUPLICATES"):
        encode(x, "index=golomb", sum_duplicates=True)


def test_a_received_frame_may_be_longer(gpu):
    x = gradient(100_000)
    for plan in (TOPR + "index=golomb value=qsgd", RAW):  # below and above what is copied at first
        frame = encode(x, plan)
        for behind in (0, 5, 100_000):
            received = bytes_on_gpu(frame, behind)
            assert inspect(received) == inspect(frame)
            assert same_bits(host(decode(received)), decode(frame))


def test_of_a_long_frame_only_the_beginning_is_copied(gpu, monkeypatch):
    frame, copied = encode(Emulated(gradient(100_000)), RAW), []
    to_host = _device.Bare.to_host
    monkeypatch.setattr(_device.Bare, "to_host", lambda self, x: (copied.append(x.nbytes), to_host(self, x))[1])
    got = decode(frame)
    assert frame.size() > 400_000 and sum(copied) < 70_000
    monkeypatch.undo()
    assert same_bits(host(got), gradient(100_000))


def test_merge_without_out_is_a_new_sum(gpu):
    a, b = encode(gradient(seed=1), PLANS[1]), encode(gradient(seed=2), PLANS[2])
    assert same_bits(host(merge([bytes_on_gpu(a), bytes_on_gpu(b)])), merge([a, b]))


def test_what_has_no_cuda_operations_is_refused_by_name_or_goes_by_the_cpu(gpu):
    x = gradient()
    with pytest.raises(deepreduce.Unsupported, match="deflate runs on the CPU only; allow_host=True runs it there"):
        encode(Emulated(x), HOST_ONLY)
    frame = encode(Emulated(x), HOST_ONLY, allow_host=True)
    assert bytes(frame) == encode(x, HOST_ONLY) and inspect(frame).tensors[0].host_only
    with pytest.raises(deepreduce.Unsupported, match="deflate"):
        decode(frame)
    expected = decode(encode(x, HOST_ONLY))
    assert same_bits(host(decode(frame, allow_host=True)), expected)
    assert same_bits(host(merge([frame, frame], weights=[1, 0], allow_host=True)), expected)


def test_a_union_of_supports_goes_by_the_cpu_if_that_is_allowed(gpu):
    frames = [encode(gradient(seed=s), TOPR + "index=golomb") for s in (1, 2)]
    there = [bytes_on_gpu(f) for f in frames]
    with pytest.raises(deepreduce.Unsupported, match=r"output 0: is sparse; a union of supports is made on the CPU only"):
        merge(there, sparse=True)
    expected, got = merge(frames, weights=[1, -2], sparse=True), merge(there, weights=[1, -2], sparse=True, allow_host=True)
    assert same_bits(host(got.values), expected.values)
    assert host(got.indices).tolist() == expected.indices.tolist()


def test_damage_is_noticed(gpu):
    frame = bytearray(encode(gradient(50), TOPR + "index=golomb"))
    frame[-1] ^= 1
    for call in (decode, inspect, lambda f: merge([f])):
        with pytest.raises(deepreduce.CorruptFrame):
            call(bytes_on_gpu(bytes(frame)))
    with pytest.raises(deepreduce.CorruptFrame, match="frame 1"):
        merge([bytes_on_gpu(encode(gradient(50), RAW)), bytes_on_gpu(bytes(frame))])


# ---- Errors of the values ------------------------------------------------------------------------


def test_what_the_values_get_wrong_is_raised_when_one_asks(gpu):
    x = [f32(1, 2), f32(1, numpy.nan, 3)]
    frame = encode([Emulated(array) for array in x], "index=raw value=qsgd")
    for ask in (frame.size, frame.to_host, lambda: bytes(frame), lambda: decode(frame), lambda: merge([frame])):
        with pytest.raises(deepreduce.ArgumentError, match="tensor 1, value stream: .*NaN.*at 1, value") as caught:
            ask()
        assert (caught.value.tensor, caught.value.where) == (1, 1)
    with pytest.raises(deepreduce.ArgumentError) as caught:
        encode(x, "index=raw value=qsgd")
    assert (caught.value.tensor, caught.value.where) == (1, 1)


def test_a_status_frame_tells_every_rank(gpu):
    frame = encode(Emulated(f32(1, numpy.nan)), "index=raw value=qsgd", status_frame=True, tag=9)
    info = inspect(frame)
    assert (info.status, info.tag) == ("ARGUMENT", 9)
    for call in (lambda: decode(frame), lambda: decode(bytes(frame)), lambda: merge([frame])):
        with pytest.raises(deepreduce.PeerError):
            call()


# ---- Arrays, and where they are ------------------------------------------------------------------



def test_step_in_memory(gpu):
    x, plan, count = gradient(), TOPR + "index=golomb value=qsgd", numpy.array([5], numpy.int64)
    for here in (Emulated, numpy.asarray):
        batch = Batch(here(x), plan)
        for count[0] in (5, 6):
            frame = bytes(batch.encode(here(x), step=here(count), tag=1))
            assert frame == encode(x, plan, step=int(count[0]), tag=1 + int(count[0]))
        with pytest.raises(deepreduce.ArgumentError, match="step has 2 elements, not one"):
            batch.encode(here(x), step=here(numpy.zeros(2, numpy.int64)))
        with pytest.raises(deepreduce.ArgumentError, match="step"):
            batch.encode(here(x), step=here(numpy.zeros(1, F32)))


def test_the_producer_is_asked_for_the_stream_of_the_call(gpu):
    x = Emulated(gradient(100))
    frame = encode(x, PLANS[1])
    assert x.streams == [1]  # the legacy default stream, as DLPack counts
    out = Emulated(numpy.empty(100, F32))
    decode(frame, out=out)
    assert out.streams == [1]


def test_arrays_of_other_kinds(gpu):
    x = gradient(100)
    expected = encode(x, PLANS[1])
    assert bytes(encode(OldDlpack(x), PLANS[1])) == expected
    frame = encode(OnlyInterface(x), PLANS[1])
    assert bytes(frame) == expected
    assert frame.__cuda_array_interface__["shape"] == frame.buffer.shape
    out = numpy.empty(100, F32)
    decode(frame, out=OnlyInterface(out))
    assert same_bits(out, decode(expected))
    assert bytes(encode(decode(frame), RAW)) == encode(out, RAW)  # DeviceArrays go in, too


def test_the_stream_of_an_array_interface_is_the_calls(gpu, monkeypatch):
    seen = []
    struct = _device.Place.struct
    monkeypatch.setattr(_device.Place, "struct", lambda place, *a: (seen.append(place.stream), struct(place, *a))[1])
    x, y = gradient(100, 1), gradient(100, 2)
    frame = encode([OnlyInterface(x, stream=0x70), OnlyInterface(y, stream=0x70)], PLANS[1])
    assert seen == [0x70] and bytes(frame) == encode([x, y], PLANS[1])
    decode(frame)
    assert seen == [0x70, 0x70]
    encode(OnlyInterface(x, stream=2), PLANS[1])
    encode([OnlyInterface(x, stream=None), OnlyInterface(y, stream=1)], PLANS[1])
    assert seen[2:] == [2, 1]
    with pytest.raises(deepreduce.ArgumentError, match=r"x\[1\] is ready on stream 0x80, .* 0x70"):
        encode([OnlyInterface(x, stream=0x70), OnlyInterface(y, stream=0x80)], PLANS[1])


@pytest.mark.parametrize("kind", [Emulated, OldDlpack, OnlyInterface])
def test_arrays_that_do_not_do(kind, gpu):
    grid = numpy.zeros((4, 6), F32)
    for x in (grid.T, grid[:, ::2], grid[::2]):
        with pytest.raises(deepreduce.ArgumentError, match="x is not contiguous"):
            encode(kind(x), RAW)
        with pytest.raises(deepreduce.ArgumentError, match="out is not contiguous"):
            decode(bytes_on_gpu(encode(numpy.ones(x.size, F32), RAW)), out=kind(x))
    assert bytes(encode(kind(grid[:, :1].T[:, :1]), RAW)) == encode(grid[0, :1], RAW)  # strides of one element
    with pytest.raises(deepreduce.ArgumentError, match="x is float64, not float32"):
        encode(kind(numpy.ones(3)), RAW)
    with pytest.raises(deepreduce.ArgumentError, match="x.indices is float32"):
        encode(Sparse(kind(f32(1)), kind(f32(1)), (3,)), RAW)
    with pytest.raises(deepreduce.ArgumentError, match="frame is int32, not bytes"):
        decode(kind(numpy.ones(30, numpy.int32)))
    odd = numpy.zeros(9, numpy.uint8)[1:].view(F32) if kind is not OnlyInterface else None
    if odd is not None:
        with pytest.raises(deepreduce.ArgumentError, match="aligned"):
            encode(kind(odd), RAW)


def test_an_output_must_be_writable(gpu):
    frame, out = bytes_on_gpu(encode(f32(1, 2), RAW)), f32(0, 0)
    with pytest.raises(deepreduce.ArgumentError, match="out is read-only"):
        decode(frame, out=OnlyInterface(out, read_only=True))
    out.flags.writeable = False
    with pytest.raises(deepreduce.ArgumentError, match="out is read-only"):
        decode(frame, out=Emulated(out))
    assert bytes(encode(Emulated(out), RAW)) == encode(out, RAW)  # reading is fine


def test_all_arrays_of_a_call_are_in_one_place(gpu):
    x, out = gradient(40), numpy.empty(40, F32)
    frame, state = encode(Emulated(x), RAW), State(x, KEEP)
    for call, words in (
        (lambda: encode([Emulated(x), Emulated(x, device=1)], RAW), r"x\[1\] is on cuda:1, x\[0\] on cuda:0"),
        (lambda: encode([x, Emulated(x)], RAW), r"x\[1\] is on cuda:0, x\[0\] in the memory of the CPU"),
        (lambda: encode(Sparse(numpy.arange(40), Emulated(x), (50,)), RAW), "x.values is on cuda:0, x.indices in the"),
        (lambda: encode(Emulated(x), KEEP, state=state), "the state of x is in the memory of the CPU, x on cuda:0"),
        (lambda: decode(frame, out=out), "out is in the memory of the CPU, frame on cuda:0"),
        (lambda: decode(encode(x, RAW), out=Emulated(out)), "out is on cuda:0, frame in the memory of the CPU"),
        (lambda: merge([frame, bytes(frame)]), r"frames\[1\] is in the memory of the CPU"),
        (lambda: Batch(Emulated(x), RAW).encode(x), "x is in the memory of the CPU, the batch on cuda:0"),
        (lambda: Batch(x, RAW).encode(Emulated(x)), "x is on cuda:0, the batch in the memory of the CPU"),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=words):
            call()


def test_a_frame_must_be_aligned(gpu):
    memory = numpy.frombuffer(encode(f32(1, 2), RAW) + bytes(16), numpy.uint8).copy()
    memory = numpy.concatenate([numpy.zeros(1 + -memory.ctypes.data % 16, numpy.uint8), memory])
    begin = next(i for i in range(17) if (memory.ctypes.data + i) % 16 == 1)
    with pytest.raises(deepreduce.Error):
        decode(Emulated(memory[begin:]))


def test_results_do_not_fit(gpu):
    frame = encode([Emulated(f32(1, 2)), Emulated(f32(3))], RAW)
    for out, words in (
        (Emulated(f32(1, 2)), "list"),
        ([Emulated(f32(1, 2))], "2 tensors"),
        ([Emulated(f32(1, 2)), Emulated(f32(3, 4))], r"out\[1\] has 2 elements, the tensor 1"),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=words):
            decode(frame, out=out)
    with pytest.raises(deepreduce.CapacityError, match="max_elements"):
        decode(frame, max_elements=2)


def test_without_a_driver_it_is_a_device_error():
    if not real_gpu():
        pytest.skip("there is a GPU")
    with pytest.raises((deepreduce.DeviceError, deepreduce.Unsupported)):
        encode(Emulated(f32(1)), RAW)


# ---- States --------------------------------------------------------------------------------------


def test_a_state_lives_where_its_tensor_does(gpu):
    plan, steps = deepreduce.Plan(KEEP), [gradient(400, seed) for seed in range(4)]
    here, there = State(steps[0], plan), State(Emulated(steps[0]), plan)
    assert there.state_dict()["state"].tobytes() == here.state_dict()["state"].tobytes() == bytes(here.size)
    with pytest.raises(deepreduce.ArgumentError, match="fresh"):
        there.residual  # noqa: B018
    for step, x in enumerate(steps[:3]):
        frame = encode(Emulated(x), plan, step=step, state=there)
        assert bytes(frame) == encode(x, plan, step=step, state=here)
        assert there.state_dict()["state"].tobytes() == here.state_dict()["state"].tobytes()
    assert same_bits(host(there.residual), here.residual)
    merge([frame], out=there.residual)  # it never arrived
    merge([bytes(frame)], out=here.residual)
    assert there.state_dict()["state"].tobytes() == here.state_dict()["state"].tobytes()

    moved = State(Emulated(steps[0]), plan)
    moved.load_state_dict(here.state_dict())
    assert "cuda:0" in repr(moved)
    assert bytes(encode(Emulated(steps[3]), plan, state=moved)) == encode(steps[3], plan, state=here)
    assert pickle.loads(pickle.dumps(moved)).residual.tolist() == here.residual.tolist()


def test_states_of_lists_and_of_plans_without_feedback(gpu):
    xs = [gradient(200, 1), gradient(50, 2)]
    on_gpu = [Emulated(x) for x in xs]
    here, there = State.of(xs, KEEP), State.of(on_gpu, KEEP)
    for step in range(2):
        assert bytes(encode(on_gpu, KEEP, step=step, state=there)) == encode(xs, KEEP, step=step, state=here)
    assert encode(on_gpu[0], RAW, state=State(on_gpu[0], RAW)).size() == len(encode(xs[0], RAW))


def test_a_state_of_something_else_is_refused(gpu):
    x, y = gradient(50), gradient(60)
    state = State(Emulated(x), KEEP)
    with pytest.raises(deepreduce.ArgumentError, match="state"):
        encode(Emulated(y), KEEP, state=state)
    with pytest.raises(deepreduce.ArgumentError, match="state"):
        encode(Emulated(x), KEEP)
    before, noise = state.state_dict()["state"].tobytes(), {"state": numpy.ones(state.size, numpy.uint8)}
    with pytest.raises(deepreduce.ArgumentError, match="state"):
        state.load_state_dict(noise)
    assert state.state_dict()["state"].tobytes() == before
    noise = State(Emulated(x), KEEP)
    noise._put(_memory.borrow_bytes(b"\1" * noise.size))
    with pytest.raises(deepreduce.ArgumentError, match="state"):
        encode(Emulated(x), KEEP, state=noise).size()


# ---- Batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS)
def test_a_batch_does_what_the_functions_do(plan, gpu):
    xs = [gradient(700, 1).reshape(7, 100), gradient(50, 2)]
    on_gpu = [Emulated(x) for x in xs]
    batch = Batch(on_gpu, plan, frames=2)
    assert batch.launches > 0 and batch.workspace > 0 and batch.bound % 16 == 0
    frame = batch.encode(on_gpu, step=3, private_seed=4, tag=5)
    expected = encode(xs, plan, step=3, private_seed=4, tag=5)
    assert bytes(frame) == expected
    got = batch.decode(frame)
    assert [array.shape for array in got] == [(7, 100), (50,)]
    assert all(same_bits(host(a).reshape(-1), b) for a, b in zip(got, decode(expected)))
    batch.check()
    received = [frame.buffer, bytes_on_gpu(expected, 7)]
    into = [numpy.ones(700, F32), numpy.ones(50, F32)]
    for add in (True, False):
        outs = [Emulated(numpy.ones((7, 100), F32)), Emulated(numpy.ones(50, F32))]
        assert batch.merge(received, outs, [1, 0.5], add=add) is outs
        batch.check()
        merged = merge([expected] * 2, weights=[1, 0.5], out=[x.copy() for x in into] if add else None)
        assert all(same_bits(a.array.reshape(-1), b) for a, b in zip(outs, merged))
    assert same_bits(host(batch.merge(received)[1]), merge([expected] * 2)[1])
    room = batch.workspace
    assert same_bits(host(batch.merge([frame] * 5)[1]), merge([expected] * 5)[1])
    assert batch.workspace > room


def test_a_batch_on_the_cpu():
    xs = [gradient(700, 1).reshape(7, 100), gradient(50, 2)]
    batch = Batch(xs, PLANS[1], threads=2)
    expected = encode(xs, PLANS[1], step=1)
    assert batch.launches == 0
    assert batch.encode(xs, step=1) == expected
    room = bytearray(batch.bound)
    assert batch.encode(xs, room, step=1) == expected and room[: len(expected)] == expected
    assert [array.shape for array in batch.decode(expected)] == [(7, 100), (50,)]
    outs = [numpy.ones((7, 100), F32), numpy.ones(50, F32)]
    assert batch.merge([expected, expected], outs, [2, -1]) is outs
    assert same_bits(outs[1], decode(expected)[1] + 1)
    batch.merge([expected], outs, add=False)
    assert same_bits(outs[1], decode(expected)[1])
    batch.check()
    for call, words in (
        (lambda: batch.encode(xs[0]), "list"),
        (lambda: batch.encode([xs[1], xs[0]]), "its universe is 50; the batch was prepared for 700"),
        (lambda: batch.encode(xs, bytes(batch.bound)), "read-only"),
        (lambda: batch.encode(xs, numpy.empty((4, 4), F32).T), "bytes"),
        (lambda: batch.frame(), "CPU"),
        (lambda: batch.merge(expected), "list"),
        (lambda: batch.merge([]), "at least one"),
        (lambda: batch.merge([expected], weights=[1, 2]), "2 weights for 1"),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=words):
            call()
    with pytest.raises(deepreduce.CapacityError):
        batch.encode(xs, bytearray(10))
    with pytest.raises(deepreduce.CorruptFrame):
        batch.decode(expected[:-1])
    assert inspect(Batch(f32(1, numpy.nan), "value=qsgd").encode(f32(1, numpy.nan), status_frame=True)).status
    flat = Batch(xs, "bucket=flat index=golomb")  # one tensor in the frame, two that come out
    assert all(same_bits(a, b) for a, b in zip(flat.decode(flat.encode(xs)), xs))
    state = State(xs[1], KEEP)
    assert Batch(xs[1], KEEP).encode(xs[1], state=state) == encode(xs[1], KEEP, state=State(xs[1], KEEP))


def test_a_batch_takes_its_memory_once(gpu, monkeypatch):
    x = Emulated(gradient(500))
    out = Emulated(numpy.empty(500, F32))
    batch = Batch(x, KEEP, frames=2)
    state, frame = State(x, KEEP), batch.frame()
    with pytest.raises(deepreduce.ArgumentError, match="empty"):
        frame.size()
    monkeypatch.setattr(_driver.driver, "allocate", None)
    here = State(x.array, KEEP)
    for step in range(3):
        assert batch.encode(x, frame, step=step, state=state) is frame
        expected = encode(x.array, KEEP, step=step, state=here)
        assert bytes(frame) == expected
        batch.decode(frame, out)
        batch.check()
        assert same_bits(out.array, decode(expected))
        batch.merge([frame, frame], out, [0.5, 0.5], add=False)
        batch.check()
        assert same_bits(out.array, decode(expected))


def test_a_bound_batch_does_what_a_batch_does(gpu):
    xs = [gradient(700, 1).reshape(7, 100), gradient(50, 2)]
    on_gpu, outs = [Emulated(x) for x in xs], [Emulated(numpy.ones_like(x)) for x in xs]
    batch = Batch(on_gpu, KEEP, frames=2)
    here, there = State.of(xs, KEEP), State.of(on_gpu, KEEP)
    bound, frame = batch.bind(on_gpu, outs, state=there, key=[5, 6], frames=2), batch.frame()
    for step in range(3):
        expected = encode(xs, KEEP, step=step, private_seed=4, tag=5, key=[5, 6], state=here)
        assert bound.encode(frame, step=step, private_seed=4, tag=5) is frame and bytes(frame) == expected
        assert bound.decode(frame) is outs
        bound.check()
        assert all(same_bits(a.array.reshape(-1), b) for a, b in zip(outs, decode(expected)))
        bound.merge([frame, bytes_on_gpu(expected, 7)], [1, 0.5], add=False)
        bound.check()
        assert all(same_bits(a.array.reshape(-1), b) for a, b in zip(outs, merge([expected] * 2, weights=[1, 0.5])))
    assert [state.state_dict()["state"].tobytes() for state in there] == [state.state_dict()["state"].tobytes() for state in here]
    assert isinstance(bound.encode(step=9), DeviceFrame)
    before = [out.array.copy() for out in outs]
    bad = bytearray(expected)
    bad[-1] ^= 1
    for call in (
        lambda: bound.decode(bytes_on_gpu(bytes(bad))),
        lambda: bound.merge([frame, bytes_on_gpu(bytes(bad))]),
    ):
        call()
        with pytest.raises(deepreduce.CorruptFrame) as caught:
            bound.check()
        assert all(same_bits(a.array, b) for a, b in zip(outs, before))
    assert caught.value.frame == 1
    for call, words in (
        (lambda: bound.encode(bytearray(batch.bound)), "DeviceFrame"),
        (lambda: bound.decode(expected), "not on cuda:0"),
        (lambda: batch.bind(xs), "x\\[0\\] is in the memory of the CPU"),
        (lambda: batch.bind(on_gpu, xs), "out|x"),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=words):
            call()


def test_a_bound_batch_is_for_one_stream(played_torch, monkeypatch):
    torch = played_torch
    x, out = torch.from_numpy(gradient(500)), torch.empty(500)
    bound = Batch(x, RAW).bind(x, out)
    frame = bound.encode()
    assert torch.equal(bound.decode(frame), x)
    monkeypatch.setattr(type(_device.frameworks[0]), "stream", lambda self, number: 0x71)
    for call in (bound.encode, lambda: bound.decode(frame), lambda: bound.merge([frame])):
        with pytest.raises(deepreduce.ArgumentError, match="bound on stream 0x70, but the current one is 0x71"):
            call()


def test_encode_into_the_callers_buffer(gpu):
    x = Emulated(gradient(500))
    expected = encode(x.array, PLANS[1], key=3)
    memory = bytes_on_gpu(bytes(4096))
    frame = encode(x, PLANS[1], out=memory, key=3)
    assert isinstance(frame, DeviceFrame) and frame.buffer is memory and bytes(frame) == expected
    assert encode(x, PLANS[2], out=frame) is frame and bytes(frame) == encode(x.array, PLANS[2])
    with pytest.raises(deepreduce.CapacityError, match="16 bytes"):  # no call waits to learn how many it needs
        encode(x, PLANS[1], out=bytes_on_gpu(bytes(16)))
    with pytest.raises(deepreduce.ArgumentError, match="x is on cuda:0, out in the memory of the CPU"):
        encode(x, PLANS[1], out=bytearray(4096))


def test_states_are_cut_anew_on_a_gpu(gpu):
    x = gradient(100)
    here, there = State(x, KEEP), State(Emulated(x), KEEP)
    assert there.norm() == 0
    encode(x, KEEP, state=here)
    encode(Emulated(x), KEEP, state=there)
    assert there.norm() == here.norm() > 0
    part = State.from_residual(Emulated(x[:40]), KEEP, Emulated(x[:40].copy()))
    assert "cuda:0" in repr(part) and same_bits(host(part.residual), x[:40])
    part.copy_from(there, first=60)
    assert same_bits(host(part.residual), here.residual[60:])
    part.copy_from(here, first=10, at=30)  # from the CPU
    assert same_bits(host(part.residual), numpy.concatenate([here.residual[60:90], here.residual[10:20]]))


@pytest.mark.parametrize(
    "residual, words",
    [
        (numpy.ones(4, numpy.int32), "residual is int32, not float32$"),
        (numpy.ones(8, numpy.float16), "residual is float16, not float32$"),
        (numpy.ones((2, 4), F32)[:, ::2], "residual is not contiguous"),
        (numpy.ones(5, F32), "residual has 5 elements, the tensor 4"),
    ],
)
def test_a_residual_on_a_gpu_is_contiguous_float32(gpu, residual, words):
    with pytest.raises(deepreduce.ArgumentError, match=words):
        State.from_residual(Emulated(gradient(4)), KEEP, Emulated(residual))


def test_a_frame_in_the_callers_buffer(gpu):
    x = Emulated(gradient(500))
    batch = Batch(x, PLANS[1])
    memory = bytes_on_gpu(bytes(batch.bound))
    frame = batch.encode(x, batch.frame(memory))
    assert frame.buffer is memory and bytes(frame) == encode(x.array, PLANS[1])
    assert same_bits(host(decode(memory)), decode(bytes(frame)))
    with pytest.raises(deepreduce.ArgumentError, match="DeviceFrame"):
        batch.encode(x, memory)
    short = batch.frame(bytes_on_gpu(bytes(160)))
    with pytest.raises(deepreduce.CapacityError, match="buffer"):
        batch.encode(x, short).size()


def test_check_tells_what_a_decode_met(gpu):
    x = Emulated(gradient(500))
    batch = Batch(x, PLANS[1], frames=2)
    good = bytes(batch.encode(x))
    bad = bytearray(good)
    bad[-1] ^= 1
    out = Emulated(numpy.full(500, 7, F32))
    batch.decode(bytes_on_gpu(bytes(bad)), out)
    with pytest.raises(deepreduce.CorruptFrame):
        batch.check()
    batch.merge([bytes_on_gpu(good), bytes_on_gpu(bytes(bad))], out)
    with pytest.raises(deepreduce.CorruptFrame, match="frame 1"):
        batch.check()
    failed = Batch(x, "value=qsgd").encode(Emulated(numpy.full(500, numpy.nan, F32)), status_frame=True)
    batch.decode(failed, out)
    with pytest.raises(deepreduce.PeerError):
        batch.check()
    assert (out.array == 7).all()
    batch.decode(bytes_on_gpu(good), out)
    batch.check()
    assert not (out.array == 7).all()


def test_a_batch_that_goes_by_the_cpu(gpu):
    x = Emulated(gradient(500))
    with pytest.raises(deepreduce.Unsupported, match="deflate"):
        Batch(x, HOST_ONLY)
    batch = Batch(x, HOST_ONLY, allow_host=True)
    frame, expected = batch.encode(x), encode(x.array, HOST_ONLY)
    assert bytes(frame) == expected
    assert same_bits(host(batch.decode(frame)), decode(expected))
    assert same_bits(host(batch.merge([frame, frame])), merge([expected, expected]))
    batch.check()
    with pytest.raises(deepreduce.ArgumentError, match="finite|NaN"):
        Batch(x, HOST_ONLY.replace("raw+", "qsgd+"), allow_host=True).encode(Emulated(numpy.full(500, numpy.nan, F32)))


def test_a_sparse_batch_takes_fewer_rows(gpu):
    indices, values = numpy.arange(0, 90, 9), gradient(10)
    batch = Batch(Sparse(Emulated(indices), Emulated(values), (1000,)), "index=golomb")
    for n in (10, 3, 0):
        frame = batch.encode(Sparse(Emulated(indices[:n]), Emulated(values[:n]), (1000,)))
        expected = encode(Sparse(indices[:n], values[:n], (1000,)), "index=golomb")
        assert same_bits(host(decode(frame)), decode(expected))
        assert same_bits(host(batch.decode(frame)), decode(expected))
        batch.check()


# ---- Frameworks ----------------------------------------------------------------------------------


class PlayedTorch(_device.Torch):
    """torch, with tensors of the CPU that count as a GPU's."""

    def has(self, x):
        return deepreduce._native._memory.torch_tensor(x) and x.device.type == "cpu"

    def number(self, x):
        return 0

    def stream(self, number):
        return 0x70

    def device(self, number):
        return sys.modules["torch"].device("cpu")

    def hold(self, x):
        self.held.append(x.data_ptr())

    held: list = []


@pytest.fixture
def played_torch(torch, gpu, monkeypatch):
    monkeypatch.setattr(_device, "frameworks", [PlayedTorch(), _device.Bare()])
    return torch


def test_torch_holds_memory_that_a_stream_works_on(played_torch):
    torch, held = played_torch, PlayedTorch.held
    held.clear()
    x = torch.from_numpy(gradient())
    batch = Batch(x, PLANS[2])
    frame, out = batch.frame(), torch.empty_like(x)
    batch.encode(x, frame)
    assert {x.data_ptr(), frame.buffer.data_ptr()} <= set(held)
    held.clear()
    batch.decode(frame, out)
    assert {frame.buffer.data_ptr(), out.data_ptr()} <= set(held)


def test_torch_gives_the_memory_and_the_stream(played_torch):
    torch, x = played_torch, gradient()
    expected = encode(x, PLANS[2])
    guest = Emulated(x)
    frames = encode([torch.from_numpy(x), guest], PLANS[2])
    assert guest.streams == [0x70]
    assert bytes(frames) == encode([x, x], PLANS[2])
    frame = encode(torch.from_numpy(x).reshape(30, 100), PLANS[2])
    assert bytes(frame) == expected
    assert isinstance(frame.buffer, torch.Tensor) and frame.buffer.dtype == torch.uint8
    assert frame.buffer.numel() % 16 == 0
    got = decode(frame)
    assert isinstance(got, torch.Tensor) and same_bits(got.numpy(), decode(expected))
    assert same_bits(decode(frame.buffer.reshape(-1, 16)).numpy(), decode(expected))
    sparse = decode(frame, sparse=True)
    assert sparse.indices.dtype == torch.int64
    assert torch.equal(got[sparse.indices], sparse.values)
    assert same_bits(merge([frame, frame.buffer]).numpy(), merge([expected, expected]))


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_torch_types(played_torch, name):
    torch = played_torch
    x = torch.linspace(-1, 1, 300, dtype=getattr(torch, name), requires_grad=True)
    got = decode(encode(x, RAW))
    assert got.dtype == x.dtype and torch.equal(got, x)
    assert torch.equal(decode(encode(Sparse(torch.arange(300), x, (999,)), RAW), sparse=True).values, x)
    assert decode(encode(torch.empty(0, dtype=x.dtype), RAW)).shape == (0,)
    assert decode(encode(torch.zeros(5, dtype=x.dtype), RAW), sparse=True).values.shape == (0,)


def test_torch_like_torch(played_torch):
    torch, x = played_torch, gradient(500)
    frame = encode(torch.from_numpy(x), RAW)
    got = decode(frame, like=torch.empty(5, 100, dtype=torch.float16))
    assert got.shape == (5, 100) and same_bits(got.numpy().reshape(-1), x.astype(numpy.float16))
    assert decode(frame, dtype=torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(deepreduce.Unsupported, match="all tensors"):
        decode(encode([torch.from_numpy(x), torch.from_numpy(x[:5])], RAW), tensors=1)


def test_torch_tensors_that_do_not_do(played_torch):
    torch = played_torch
    x = torch.ones(4, 6)
    for bad, words in ((x.T, "x is not contiguous"), (x.double(), "float64"), (x.to_sparse(), "layout")):
        with pytest.raises(deepreduce.ArgumentError, match=words):
            encode(bad, RAW)
    with pytest.raises(deepreduce.ArgumentError, match=r"pass out.detach\(\)"):
        decode(encode(x, RAW), out=torch.ones(24, requires_grad=True))
    with pytest.raises(deepreduce.ArgumentError, match="meta"):
        encode(x.to("meta"), RAW)


def test_torch_states_and_batches(played_torch):
    torch, x = played_torch, gradient(500)
    tensor = torch.from_numpy(x)
    batch = Batch(tensor.reshape(5, 100), KEEP, frames=2)
    here, there = State(x, KEEP), State(tensor, KEEP)
    assert isinstance(there.memory, torch.Tensor)
    out, frame = torch.empty(5, 100), batch.frame()
    for step in range(3):
        expected = encode(x, KEEP, step=step, state=here)
        assert bytes(batch.encode(tensor, frame, step=step, state=there)) == expected
        assert same_bits(batch.decode(frame, out).numpy().reshape(-1), decode(expected))
        batch.check()
    assert there.state_dict()["state"].tobytes() == here.state_dict()["state"].tobytes() and same_bits(there.residual.numpy(), here.residual)
    there = State(tensor, KEEP)
    there.load_state_dict(here.state_dict())
    assert there.residual.tolist() == here.residual.tolist()
    # As after an all-gather: ranks, one frame behind the other.
    received = torch.stack([frame.buffer, frame.buffer])
    assert batch.decode(frame).shape == (5, 100)
    merged = batch.merge(received, weights=[1, 2])
    batch.check()
    assert same_bits(merged.numpy().reshape(-1), merge([expected] * 2, weights=[1, 2]))


def gpu_example():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.S | re.M)
    (block,) = [block for block in blocks if "cuda" in block]
    return block


def test_page(played_torch):
    exec(compile(gpu_example().replace('device="cuda"', 'device="cpu"'), str(PAGE), "exec"), {})


class FakeCupy(types.ModuleType):
    """The part of CuPy that the package uses, over numpy."""

    def __init__(self):
        super().__init__("cupy")

        class Device:
            id = 0

            def __init__(self, number=0):
                pass

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

        class ndarray:
            device = Device()

            def __init__(self, array):
                self.array = array
                self.dtype, self.shape, self.strides, self.nbytes = (
                    array.dtype,
                    array.shape,
                    array.strides,
                    array.nbytes,
                )
                self.data = types.SimpleNamespace(ptr=array.ctypes.data)

            def __getitem__(self, key):
                return ndarray(self.array[key])

            def __len__(self):
                return len(self.array)

            def reshape(self, *shape):
                return ndarray(self.array.reshape(*shape))

            def view(self, dtype):
                return ndarray(self.array.view(dtype))

            def fill(self, value):
                self.array.fill(value)

            def get(self):
                return self.array.copy()

            def set(self, array):
                self.array[...] = array

        stream = types.SimpleNamespace(ptr=0x90, synchronize=lambda: None)
        self.ndarray = ndarray
        self.empty = lambda shape, dtype: ndarray(aligned(shape, dtype))
        self.cuda = types.SimpleNamespace(
            Device=Device,
            get_current_stream=lambda: stream,
            memory=types.SimpleNamespace(OutOfMemoryError=MemoryError),
        )


def aligned(shape, dtype):
    size = int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize
    memory = numpy.full(size + 256, 0xA5, numpy.uint8)
    begin = -memory.ctypes.data % 256
    return memory[begin : begin + size].view(dtype).reshape(shape)


def test_cupy_gives_the_memory_and_the_stream(gpu, monkeypatch):
    cupy = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    x = gradient(500)
    guest = Emulated(x)
    expected = encode([x, x], KEEP, state=State.of([x, x], KEEP))
    mine = [cupy.ndarray(x), guest]
    states = State.of([mine[0], mine[0]], KEEP)
    frame = encode(mine, KEEP, state=states)
    assert guest.streams == [0x90] and bytes(frame) == expected
    assert isinstance(frame.buffer, cupy.ndarray) and isinstance(states[0].residual, cupy.ndarray)
    got = decode(frame)[0]
    assert isinstance(got, cupy.ndarray) and same_bits(got.array, decode(expected)[0])
    assert decode(frame, sparse=True)[0].indices.array.dtype == numpy.int64
    moved = State(mine[0], KEEP)
    moved.load_state_dict(states[0].state_dict())
    assert same_bits(moved.residual.array, states[0].residual.array)
    batch = Batch(mine[0], PLANS[1])
    assert same_bits(batch.decode(batch.encode(mine[0])).array, decode(encode(x, PLANS[1])))
    batch.check()
    with pytest.raises(deepreduce.ArgumentError, match="contiguous"):
        encode(cupy.ndarray(x[::2]), RAW)


class FakeLibcuda:
    """The part of the CUDA driver that the package uses, over the CPU's memory."""

    def __init__(self):
        self.held, self.contexts, self.freed = {}, [], 0

    def cuGetErrorString(self, status, text):
        text._obj.value = b"out of memory"

    def cuDeviceGet(self, number, ordinal):
        number._obj.value = ordinal.value
        return 0

    def cuDevicePrimaryCtxRetain(self, context, number):
        context._obj.value = 0x1000 + number.value
        return 0

    def cuCtxPushCurrent_v2(self, context):
        self.contexts.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context):
        context._obj.value = self.contexts.pop()
        return 0

    def cuPointerGetAttribute(self, number, attribute, address):
        assert attribute == 9
        number._obj.value = 0
        return 0

    def cuMemAlloc_v2(self, address, size):
        assert self.contexts
        if size.value > 2**40:
            return 2
        memory = aligned((size.value,), numpy.uint8)
        address._obj.value = memory.ctypes.data
        self.held[memory.ctypes.data] = memory
        return 0

    def cuMemFree_v2(self, address):
        del self.held[address.value]
        self.freed += 1
        return 0

    def cuMemsetD8Async(self, address, value, size, stream):
        ctypes.memset(address.value, value.value, size.value)
        return 0

    def cuMemcpyDtoHAsync_v2(self, to, address, size, stream):
        assert stream.value == 1
        ctypes.memmove(to.value, address.value, size.value)
        return 0

    def cuMemcpyHtoDAsync_v2(self, address, source, size, stream):
        ctypes.memmove(address.value, source.value, size.value)
        return 0

    def cuStreamSynchronize(self, stream):
        return 0


def test_the_driver_gives_the_memory_where_no_framework_does(gpu, monkeypatch):
    driver, library = _driver.Cuda(), FakeLibcuda()
    driver.kind, driver._library = deepreduce._native._abi.DR_PLACE_EMULATED, library
    monkeypatch.setattr(_driver, "driver", driver)
    x = gradient(500)
    for given in (Emulated(x), OnlyInterface(x)):
        here, there = State(x, KEEP), State(given, KEEP)
        frame = encode(given, KEEP, state=there)
        assert bytes(frame) == encode(x, KEEP, state=here) and there.state_dict()["state"].tobytes() == here.state_dict()["state"].tobytes()
        there.load_state_dict(here.state_dict())
        assert there.state_dict()["state"].tobytes() == here.state_dict()["state"].tobytes()
        array = decode(frame)
        assert "float32[500] on cuda:0" in repr(array)
        assert same_bits(host(array[100:200]), decode(bytes(frame))[100:200])
        for key in (3, slice(None, None, 2)):
            with pytest.raises(deepreduce.ArgumentError, match="slices"):
                array[key]
    del frame, there, array
    assert library.freed and not library.held and not library.contexts
    with pytest.raises(deepreduce.OutOfMemory, match="out of memory"):
        driver.allocate(0, 2**41)


def test_what_a_capsule_tells_is_checked():
    class Exporter:
        def __init__(self, **fields):
            self.tensor = _dlpack.Versioned(major=fields.pop("major", 1))
            for name, value in fields.items():
                setattr(self.tensor.tensor, name, value)

        def __dlpack__(self, *, stream, max_version):
            return Emulated._capsule(self.tensor)

    view = _dlpack.from_dlpack(Exporter(data=4096, byte_offset=64, code=4, bits=16, lanes=1, ndim=0), "x", 1)
    assert (view.address, view.dtype, view.itemsize, view.shape, view.strides) == (4160, "bfloat16", 2, (), None)
    with pytest.raises(deepreduce.ArgumentError, match="lanes"):
        _dlpack.from_dlpack(Exporter(bits=32, lanes=4), "x", 1)
    with pytest.raises(deepreduce.ArgumentError, match="DLPack 2.0"):
        _dlpack.from_dlpack(Exporter(major=2), "x", 1)
    with pytest.raises(deepreduce.ArgumentError, match="no DLPack capsule"):
        _dlpack.from_dlpack(types.SimpleNamespace(__dlpack__=lambda **_: 3), "x", 1)
    for interface, words in (
        (OnlyInterface(f32(1), mask=object()), "mask"),
        (OnlyInterface(numpy.ones(1, ">f4")), "big-endian"),
        (OnlyInterface(f32(1), strides=(3,)), "strides"),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=words):
            _dlpack.from_cuda_array_interface(interface, "x")


# ---- A real GPU ----------------------------------------------------------------------------------


def real_gpu():
    """Why there is none that can be used; empty if there is one."""
    try:
        import torch
    except ImportError:
        return "torch is missing"
    if not torch.cuda.is_available():
        return "no GPU (torch.cuda.is_available() is False)"
    try:
        encode(torch.ones(1, device="cuda"), RAW)
    except deepreduce.Unsupported as error:
        return str(error)
    return ""


@pytest.fixture
def cuda(torch):
    reason = real_gpu()
    if reason:
        pytest.skip(reason)
    return torch


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_a_gpu_does_what_the_cpu_does(cuda, plan, name):
    torch = cuda
    xs = [torch.from_numpy(gradient(n, n)).to(getattr(torch, name)) for n in (100_000, 777, 1)]
    on_gpu = [x.cuda() for x in xs]
    frame, expected = encode(on_gpu, plan, step=2), encode(xs, plan, step=2)
    assert bytes(frame) == expected and inspect(frame) == inspect(expected)
    outs = [torch.empty_like(x) for x in xs]
    decode(expected, out=outs)
    got = decode(frame)
    assert all(x.is_cuda and torch.equal(x.cpu(), out) for x, out in zip(got, outs))
    sums = merge([frame, frame.buffer], weights=[1, 0.5])
    assert all(numpy.array_equal(x.cpu().numpy(), y) for x, y in zip(sums, merge([expected] * 2, weights=[1, 0.5])))


def test_a_gpu_raises_what_the_values_get_wrong(cuda):
    frame = encode(cuda.tensor([1.0, float("nan")], device="cuda"), "value=qsgd")
    with pytest.raises(deepreduce.ArgumentError, match="NaN"):
        frame.size()
    with pytest.raises(deepreduce.Unsupported, match="deflate"):
        encode(cuda.ones(9, device="cuda"), HOST_ONLY)
    assert bytes(encode(cuda.ones(9, device="cuda"), HOST_ONLY, allow_host=True)) == encode(
        numpy.ones(9, F32), HOST_ONLY
    )


def test_a_gpu_works_on_the_current_stream(cuda):
    torch = cuda
    x = gradient(1_000_000)
    expected = encode(x, PLANS[2])
    source, y = torch.from_numpy(x).cuda(), torch.zeros(x.size, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)  # what comes before on the stream is waited for, or y is still zero
        y.copy_(source)
        frame = encode(y, PLANS[2])
        y.zero_()  # what comes behind it does not disturb
        assert bytes(frame) == expected
        assert same_bits(decode(frame).cpu().numpy(), decode(expected))


def test_a_graph_repeats_a_batch(cuda):
    torch = cuda
    x, out = torch.from_numpy(gradient(50_000)).cuda(), torch.empty(50_000, device="cuda")
    batch, state = Batch(x, KEEP, frames=2), State(x, KEEP)
    frame, here = batch.frame(), State(gradient(50_000), KEEP)

    def step():
        batch.encode(x, frame, step=5, state=state)
        batch.merge([frame, frame], out, [0.5, 0.5], add=False)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    state.memory.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for seed in range(3):
        fresh = gradient(50_000, seed)
        x.copy_(torch.from_numpy(fresh))
        graph.replay()
        expected = encode(fresh, KEEP, step=5, state=here)
        assert bytes(frame) == expected
        batch.check()
        assert same_bits(out.cpu().numpy(), merge([expected] * 2, weights=[0.5, 0.5]))
    assert state.state_dict()["state"].tobytes() == here.state_dict()["state"].tobytes()


@pytest.mark.parametrize("protocol", ["__dlpack__", "__cuda_array_interface__"])
def test_a_gpu_takes_arrays_of_no_framework(cuda, protocol):
    class Foreign:
        def __init__(self, tensor):
            self.tensor, self.shape = tensor, tuple(tensor.shape)

        def __getattr__(self, name):
            if name.startswith(protocol.rstrip("_")):  # __dlpack_device__, too
                return getattr(self.tensor, name)
            raise AttributeError(name)

    x = gradient(5000)
    given, out = Foreign(cuda.from_numpy(x).cuda()), Foreign(cuda.empty(5000, device="cuda"))
    here, there = State(x, KEEP), State(given, KEEP)
    frame, expected = encode(given, KEEP, state=there), encode(x, KEEP, state=here)
    assert bytes(frame) == expected and there.state_dict()["state"].tobytes() == here.state_dict()["state"].tobytes()
    decode(frame, out=out)
    assert same_bits(out.tensor.cpu().numpy(), decode(expected))
    assert same_bits(cuda.as_tensor(decode(frame), device="cuda").cpu().numpy(), decode(expected))


def test_a_gpu_takes_cupy_arrays(cuda):
    cupy = pytest.importorskip("cupy", reason="cupy is missing: pip install cupy-cuda12x")
    x = gradient(5000)
    with cupy.cuda.Stream(non_blocking=True):
        given = cupy.asarray(x)
        here, there = State(x, KEEP), State(given, KEEP)
        frame, expected = encode(given, KEEP, state=there), encode(x, KEEP, state=here)
        assert bytes(frame) == expected and there.state_dict()["state"].tobytes() == here.state_dict()["state"].tobytes()
        assert isinstance(frame.buffer, cupy.ndarray)
        assert same_bits(decode(frame).get(), decode(expected))


def test_page_on_a_gpu(cuda):
    exec(compile(gpu_example(), str(PAGE), "exec"), {})
