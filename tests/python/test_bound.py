"""What the Python package promises of a Bound, and of what serves one call at a time. Expected values come from the
calls that are not bound, which test_api.py tests."""

import gc
import os
import pickle
import sys
import threading
import tracemalloc
from array import array as PlainArray

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce import Batch, Sparse, State, decode, encode, inspect, merge  # noqa: E402
from deepreduce._native import _memory  # noqa: E402

F32 = numpy.float32
RAW = "index=raw value=raw"
TOPR = "sparsify=topr(ratio=0.1) "
KEEP = TOPR + "feedback=residual index=golomb value=qsgd"
PLANS = [
    RAW,
    TOPR + "index=golomb value=qsgd",
    TOPR + "index=bloom(policy=p0,fpr=0.01) value=raw",
    "bucket=flat index=golomb",
]
SEED = int(os.environ.get("DEEPREDUCE_TEST_SEED", 20211))


@pytest.fixture
def rng():
    print(f"DEEPREDUCE_TEST_SEED={SEED}")
    return numpy.random.default_rng(SEED)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is missing: pip install torch")


def gradients(rng, *sizes):
    return [rng.laplace(size=n).astype(F32) for n in sizes]


def same_bits(a, b):
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


# ---- Bound --------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS)
def test_a_bound_batch_does_what_a_batch_does(plan, rng):
    x = gradients(rng, 700, 50, 1)
    batch = Batch(x, plan, frames=3, seed=2)
    out = [numpy.full_like(array, 9) for array in x]
    bound = batch.bind(x, out, frames=3)
    frames = []
    for step in range(3):
        for array in x:
            array[...] = rng.laplace(size=array.size)
        expected = batch.encode(x, step=step, private_seed=3, tag=4)
        frame = bound.encode(step=step, private_seed=3, tag=4)
        assert type(frame) is bytes and frame == expected == encode(x, plan, step=step, seed=2, private_seed=3, tag=4)
        assert bound.decode(frame) is out
        assert all(map(same_bits, out, batch.decode(expected)))
        frames.append(frame)
    for weights in (None, [1, 0.5, -2], (1, 2, 3), numpy.array([1, 2, 3], F32), [numpy.float64(1), 2, 3]):
        for add in (True, False):
            start = [numpy.ones_like(array) for array in out]
            for array in out:
                array[...] = 1
            assert bound.merge(frames, weights, add=add) is out
            assert all(map(same_bits, out, batch.merge(frames, start, weights, add=add)))
    bound.merge(frames[:1], add=False)
    assert all(map(same_bits, out, batch.decode(frames[0])))
    bound.check()


def test_one_tensor_is_no_list(rng):
    (x,) = gradients(rng, 100)
    out = numpy.empty((10, 10), F32)
    bound = Batch(x, RAW).bind(x, out)
    frame = bound.encode()
    assert not inspect(frame).is_list and frame == encode(x, RAW)
    assert bound.decode(frame) is out and out.reshape(-1).tolist() == x.tolist()


def test_the_tensors_are_read_where_they_lie(rng):
    x = numpy.zeros((4, 6), F32)
    batch = Batch(x, RAW)
    bound = batch.bind(x)
    x[...] = 7
    assert decode(bound.encode()).tolist() == [7] * 24
    with pytest.raises(deepreduce.ArgumentError, match="read in place"):
        batch.bind(numpy.zeros((6, 4), F32).T)
    with pytest.raises(deepreduce.ArgumentError, match=r"x\[1\].*read in place"):
        Batch([x, x], RAW).bind([x, numpy.zeros((4, 12), F32)[:, ::2]])
    odd = numpy.frombuffer(b"\0" + bytes(96), numpy.uint8)[1:].view(F32)
    if not odd.flags.aligned:
        with pytest.raises(deepreduce.ArgumentError, match="aligned"):
            batch.bind(odd)


def test_the_arrays_live_as_long_as_the_bound(rng):
    x = gradients(rng, 3000)[0]
    expected = encode(x, RAW)
    bound = Batch(x, RAW).bind(x.copy(), numpy.empty(3000, F32))  # no one else has a reference to them or the batch
    gc.collect()
    assert bound.encode() == expected
    assert same_bits(bound.decode(expected), x)


def test_the_memory_of_outputs_is_there_as_long_as_the_bound(rng):
    x = gradients(rng, 300)[0]
    out = PlainArray("f", bytes(1200))
    bound = Batch(x, RAW).bind(x, out)
    with pytest.raises(BufferError):
        out.extend(out)
    bound.decode(bound.encode())
    assert out.tobytes() == x.tobytes()
    bound.rebind(out=numpy.empty_like(x))
    out.extend(out)


def test_a_bound_batch_goes_on_with_other_arrays(rng):
    sizes = (700, 50, 1)
    x, y = gradients(rng, *sizes), gradients(rng, *sizes)
    batch, plain = Batch(x, KEEP, frames=2), Batch(x, KEEP)
    states, same = State.of(x, KEEP), State.of(x, KEEP)
    first, second = ([numpy.full_like(array, 9) for array in x] for _ in range(2))
    bound = batch.bind(x, first, state=states, frames=2)
    for step, (now, out) in enumerate([(x, first), (y, second), (x, second), (y, first)]):
        bound.rebind(now, out)
        frame = bound.encode(step=step, private_seed=3)
        assert frame == plain.encode(now, step=step, private_seed=3, state=same)  # the states went on
        assert bound.decode(frame) is out and all(map(same_bits, out, decode(frame)))
    bound.rebind(out=second)
    assert bound.merge([frame, frame], add=False) is second
    bound.rebind(x=[array.copy() for array in x])  # no one else has a reference to them
    gc.collect()
    assert bound.encode(step=9) == plain.encode(x, step=9, state=same)
    # What is refused changes nothing.
    for wrong in ({"x": x[:2]}, {"x": gradients(rng, 701, 50, 1)}, {"x": x[0]}, {"out": [second[0]] * 3}, {"out": first[:1]}):
        with pytest.raises(deepreduce.ArgumentError):
            bound.rebind(**wrong)
        assert bound.encode(step=1) == plain.encode(x, step=1, state=same)
        assert bound.decode(frame) is second
    with pytest.raises(deepreduce.ArgumentError):
        batch.bind(x).rebind(out=first)  # bound to encode alone
    bound.close()
    with pytest.raises(deepreduce.ArgumentError):
        bound.rebind(x)


@pytest.mark.parametrize("kind", ["f4", "f2"])
def test_decode_adds_where_it_is_asked_to(kind, rng):
    x = gradients(rng, 300, 40)
    frame = encode(x, TOPR + "index=golomb value=qsgd")
    sent = decode(frame)
    batch = Batch(x, TOPR + "index=golomb value=qsgd")
    start = [rng.laplace(size=array.size).astype(kind) for array in x]
    expected = [(a.astype(F32) + b).astype(kind) for a, b in zip(start, sent)]
    for function in (decode, batch.decode, None):
        out = [array.copy() for array in start]
        bound = batch.bind(None, out)
        if function is None:
            assert bound.decode(frame, add=True) is out
        else:
            assert function(frame, out=out, add=True) is out
        assert all(map(same_bits, out, expected))
        damaged = bytearray(frame)
        damaged[-1] ^= 1
        with pytest.raises(deepreduce.CorruptFrame):
            bound.decode(damaged, add=True) if function is None else function(damaged, out=out, add=True)
        assert all(map(same_bits, out, expected))
    for function in (decode, batch.decode):
        with pytest.raises(deepreduce.ArgumentError, match="add=True requires out="):
            function(frame, add=True)


def test_a_closed_bound_lets_go_of_its_states(rng):
    x = gradients(rng, 300)[0]
    batch, state = Batch(x, KEEP), State(x, KEEP)
    bound = batch.bind(x, state=state)
    bound.encode()
    with pytest.raises(deepreduce.ArgumentError, match="bound to another"):
        batch.bind(x, state=state)
    x[3] = numpy.nan
    with pytest.raises(deepreduce.ArgumentError, match="NaN"):
        bound.encode()
    x[3] = 0
    bound.close()
    for call in (bound.encode, lambda: bound.decode(b""), lambda: bound.merge([b""]), lambda: bound.rebind(x)):
        with pytest.raises(deepreduce.ArgumentError, match="^the bound batch is closed$"):
            call()
    bound.close()
    assert batch.bind(x, state=state).encode() and bound is not None


def test_a_bound_tells_what_it_kept_and_whether_it_failed(rng):
    x = gradients(rng, 300)[0]
    bound = Batch(x, TOPR + "index=golomb value=qsgd").bind(x)
    bound.encode()
    assert bound.kept == 30 and not bound.failed
    x[7] = numpy.nan
    bound.encode(status_frame=True)
    assert bound.failed


def test_sparse_tensors(rng):
    x = Sparse(numpy.array([3, 1, 7]), numpy.array([1, 2, 3], F32), (10,))
    batch = Batch([x], "index=golomb")
    out = [numpy.empty(10, F32)]
    bound = batch.bind([x], out)
    frame = bound.encode()
    assert frame == encode([x], "index=golomb") and bound.decode(frame)[0].tolist() == [0, 2, 0, 1, 0, 0, 0, 3, 0, 0]
    x.values[0] = 5
    assert bound.decode(bound.encode())[0][3] == 5


def test_states_go_on(rng):
    x = gradients(rng, 500, 40)
    here, there = State.of(x, KEEP), State.of(x, KEEP)
    bound = Batch(x, KEEP).bind(x, state=there)
    for step in range(4):
        assert bound.encode(step=step) == encode(x, KEEP, step=step, state=here)
        assert [state.state_dict()["state"].tobytes() for state in there] == [state.state_dict()["state"].tobytes() for state in here]
    encode(x, KEEP, step=4, state=there)  # in turn with the bound one
    encode(x, KEEP, step=4, state=here)
    assert bound.encode(step=5) == encode(x, KEEP, step=5, state=here)


def test_keys(rng):
    x = gradients(rng, 500, 500)
    plan = "sparsify=random(ratio=0.02) index=raw"
    batch = Batch(x, plan, seed=1)
    keyed = encode(x, plan, seed=1, key=[7, 9])
    assert batch.bind(x, key=[7, 9]).encode() == keyed == batch.encode(x, key=[7, 9])
    assert batch.bind(x).encode() == encode(x, plan, seed=1) != keyed


def test_out_may_be_what_a_collective_sends(rng, torch):
    x = gradients(rng, 500, 40)
    batch = Batch(x, PLANS[1])
    bound, expected = batch.bind(x), batch.encode(x)
    for out in (
        bytearray(batch.bound),
        memoryview(bytearray(batch.bound)),
        numpy.zeros(batch.bound, numpy.uint8),
        numpy.zeros((1, batch.bound), numpy.int8),
        torch.zeros(batch.bound, dtype=torch.uint8),
    ):
        for call in (bound.encode, lambda out: batch.encode(x, out), lambda out: encode(x, PLANS[1], out=out)):
            for _ in range(2):
                part = call(out)
                assert bytes(part) == expected and len(part) == len(expected)
                kind = type(out) if not isinstance(out, (bytearray, memoryview)) else memoryview
                assert type(part) is kind
            if isinstance(out, torch.Tensor):
                assert part.data_ptr() == out.data_ptr() and part.dtype == torch.uint8
    grown = bytearray(batch.bound)
    bound.encode(grown)
    grown.extend(b"nobody holds it")
    for bad, words in (
        (bytes(batch.bound), "read-only"),
        (numpy.empty((4, 4), F32).T, "bytes"),
        (torch.zeros(9), "uint8"),
        (5, "bytes"),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=words):
            bound.encode(bad)
    with pytest.raises(deepreduce.CapacityError) as caught:
        bound.encode(bytearray(10))
    assert caught.value.needed is None or caught.value.needed >= len(expected)
    assert bound.encode() == expected


def test_a_tensor_that_was_moved_is_found_again(rng, torch):
    x = gradients(rng, 500)[0]
    bound, expected = Batch(x, RAW).bind(x), encode(x, RAW)
    out = torch.zeros(len(expected), dtype=torch.uint8)
    bound.encode(out)
    out.set_(torch.zeros(2 * len(expected), dtype=torch.uint8))
    assert bytes(bound.encode(out)) == expected


def test_frames_of_every_kind(rng, torch):
    x = gradients(rng, 500)[0]
    out = numpy.empty(500, F32)
    bound = Batch(x, RAW, frames=5).bind(x, out, frames=5)
    frame = bound.encode()
    padded = numpy.frombuffer(frame + b"behind", numpy.uint8).copy()
    kinds = [frame, bytearray(frame), memoryview(frame), padded, torch.from_numpy(padded)]
    for kind in kinds:
        out[...] = 9
        assert same_bits(bound.decode(kind), x)
    assert same_bits(bound.merge(kinds, add=False), merge([frame] * 5))
    assert same_bits(bound.merge(torch.from_numpy(numpy.stack([padded, padded])), add=False), merge([frame] * 2))
    assert same_bits(bound.merge((kind for kind in kinds[:3]), add=False), merge([frame] * 3))


def test_errors(rng):
    x = gradients(rng, 50, 40)
    batch, stateful = Batch(x, "value=qsgd"), Batch(x, "sparsify=topr(count=2) feedback=residual")
    out = [numpy.empty_like(array) for array in x]
    bound = batch.bind(x, out, frames=2)
    frame = bound.encode()
    bad = bytearray(frame)
    bad[-1] ^= 1
    for call, kind, words in (
        (lambda: bound.encode(step=-1), deepreduce.ArgumentError, "step"),
        (lambda: Batch(x, "value=qsgd", seed=2**64), deepreduce.ArgumentError, "seed"),
        (lambda: bound.encode(private_seed=1.5), deepreduce.ArgumentError, "private_seed"),
        (lambda: bound.encode(tag="a"), deepreduce.ArgumentError, "tag"),
        (lambda: bound.encode(fit=True), deepreduce.ArgumentError, "fit"),
        (lambda: bound.decode(bytes(bad)), deepreduce.CorruptFrame, "."),
        (lambda: bound.decode(frame[:-1]), deepreduce.CorruptFrame, "."),
        (lambda: bound.decode(b""), deepreduce.CorruptFrame, "."),
        (lambda: bound.decode(None), deepreduce.ArgumentError, "frame is None"),
        (lambda: bound.merge(frame), deepreduce.ArgumentError, "list"),
        (lambda: bound.merge([]), deepreduce.ArgumentError, "0 frames"),
        (lambda: bound.merge(5), deepreduce.ArgumentError, "not a int"),
        (lambda: batch.merge(5), deepreduce.ArgumentError, "not a int"),
        (lambda: batch.bind(x, frames=2**20 + 1), deepreduce.ArgumentError, "frames"),
        (lambda: stateful.bind(x), deepreduce.ArgumentError, "pass state=State"),
        (lambda: stateful.encode(x), deepreduce.ArgumentError, "pass state=State"),
        (lambda: bound.merge([frame] * 3), deepreduce.ArgumentError, "3 frames"),
        (lambda: bound.merge([frame], [1, 2]), deepreduce.ArgumentError, "2 weights for 1"),
        (lambda: bound.merge([frame], ["a"]), deepreduce.ArgumentError, "weights"),
        (lambda: bound.merge([frame], [10**400]), deepreduce.ArgumentError, r"weights\[0\] is 1000"),
        (lambda: batch.merge([frame], weights=[10**400]), deepreduce.ArgumentError, r"weights\[0\] is 1000"),
        (lambda: merge([frame], weights=[10**400]), deepreduce.ArgumentError, r"weights\[0\] is 1000"),
        (lambda: bound.merge([frame], iter([1])), deepreduce.ArgumentError, "not a list of 1 numbers"),
        (lambda: bound.merge([frame], [float("nan")]), deepreduce.ArgumentError, "weight"),
        (lambda: bound.merge([frame, bytes(bad)]), deepreduce.CorruptFrame, "1"),
        (lambda: batch.bind(), deepreduce.ArgumentError, "neither"),
        (lambda: batch.bind(None, out, state=[None, None]), deepreduce.ArgumentError, "state"),
        (lambda: batch.bind(x[0]), deepreduce.ArgumentError, "list"),
        (lambda: batch.bind(x[:1]), deepreduce.ArgumentError, "1 tensors"),
        (lambda: batch.bind(x[::-1]), deepreduce.ArgumentError, "."),
        (lambda: batch.bind(x, out[:1]), deepreduce.ArgumentError, "1 arrays"),
        (lambda: batch.bind(x, frames=-1), deepreduce.ArgumentError, "frames"),
    ):
        with pytest.raises(kind, match=words):
            call()
    with pytest.raises(deepreduce.Error) as caught:
        bound.merge([frame, bytes(bad)])
    assert caught.value.frame == 1
    x[1][3] = numpy.nan
    with pytest.raises(deepreduce.ArgumentError) as caught:
        bound.encode()
    assert (caught.value.tensor, caught.value.where, caught.value.stream) == (1, 3, "value")
    status = bound.encode(status_frame=True)
    assert inspect(status).status == "ARGUMENT"
    with pytest.raises(deepreduce.PeerError):
        bound.decode(status)
    x[1][3] = 0
    assert bound.encode(step=numpy.int64(3)) == batch.encode(x, step=3)  # after all that


def test_what_is_not_bound_is_not_used(rng):
    x = gradients(rng, 50)[0]
    batch = Batch(x, RAW)
    frame = batch.encode(x)
    with pytest.raises(deepreduce.Error):
        batch.bind(x).decode(frame)
    with pytest.raises(deepreduce.Error):
        batch.bind(x).merge([frame])
    with pytest.raises(deepreduce.Error):
        batch.bind(None, numpy.empty(50, F32)).encode()


def test_tags_are_compared(rng):
    x = gradients(rng, 50)[0]
    out = numpy.empty(50, F32)
    bound = Batch(x, RAW, frames=2).bind(x, out, frames=2)
    seven, eight, none = bound.encode(tag=7), bound.encode(tag=8), bound.encode()
    assert bound.decode(seven, tag=7) is out and bound.merge([seven, seven], tag=7, add=False) is out
    for call in (
        lambda: bound.decode(eight, tag=7),
        lambda: bound.decode(none, tag=0),
        lambda: bound.merge([seven, eight], tag=7),
    ):
        with pytest.raises(deepreduce.ArgumentError):
            call()
    assert same_bits(bound.decode(none), x)


def test_a_call_takes_no_memory(rng):
    x = gradients(rng, *[100] * 50)
    out = [numpy.empty_like(array) for array in x]
    bound = Batch(x, PLANS[1], frames=2).bind(x, out, frames=2)
    frame, room = bound.encode(), numpy.empty(1 << 16, numpy.uint8)

    def steps():
        for step in range(20):
            bound.encode(room, step=step)
            bound.decode(frame)
            bound.merge([frame, frame], [0.5, 0.5], add=False)

    steps()
    tracemalloc.start()
    try:
        steps()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        steps()
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert now - before < 2000 and peak - before < 5000  # nothing for each of the 50


def test_a_call_does_as_much_python_for_many_tensors_as_for_one(rng):
    """Counted, not timed: calls of functions, Python's and C's."""

    def count(n):
        x = gradients(rng, *[10] * n)
        out = [numpy.empty_like(array) for array in x]
        bound, room = Batch(x, RAW, frames=2).bind(x, out, frames=2), bytearray(1 << 16)
        frame, calls = bound.encode(), []
        sys.setprofile(lambda frame, event, arg: calls.append(event))
        try:
            bound.encode(room)
            bound.decode(frame)
            bound.merge([frame, frame], [1, 1])
        finally:
            sys.setprofile(None)
        return len(calls)

    assert count(1) == count(100) < 100


# ---- One call at a time -------------------------------------------------------------------------


class Second:
    """Tries a call on another thread while the first is at work."""

    def __init__(self, call):
        self.call, self.met = call, []

    def __call__(self, _trace):
        def run():
            try:
                self.call()
                self.met.append(None)
            except deepreduce.Error as error:
                self.met.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()


def test_a_state_in_use_says_so(rng):
    x = gradients(rng, 3000)[0]
    state, here = State(x, KEEP), State(x, KEEP)
    bound_state = State(x, KEEP)
    for call in (
        lambda: encode(x, KEEP, state=state),
        lambda: Batch(x, KEEP).encode(x, state=state),
        lambda: Batch(x, KEEP).bind(x, state=state),
        lambda: encode([x, x], KEEP, state=[bound_state, state]),
        lambda: state.state_dict()["state"].tobytes(),
        lambda: state.residual,
        lambda: pickle.dumps(state),
    ):
        second = Second(call)
        before = state.state_dict()["state"].tobytes()
        frame = encode(x, KEEP, state=state, trace=second)
        assert second.met and all(type(error) is deepreduce.ConcurrentUse for error in second.met)
        assert frame == encode(x, KEEP, state=here) and state.state_dict()["state"].tobytes() == here.state_dict()["state"].tobytes() != before
    encode(x, KEEP, state=bound_state)  # the one that was not in use was let go
    error = second.met[0]
    assert isinstance(error, RuntimeError) and "one at a time" in str(error)


def test_a_batch_in_use_says_so(rng):
    x = gradients(rng, 3000)[0]
    batch, other = Batch(x, RAW), Batch(x, RAW)
    frame = batch.encode(x)
    out = numpy.empty(3000, F32)
    for first in (
        lambda trace: batch.encode(x, trace=trace),
        lambda trace: batch.decode(frame, trace=trace),
        lambda trace: batch.merge([frame], trace=trace),
    ):
        for call in (lambda: batch.encode(x), lambda: batch.decode(frame), lambda: batch.merge([frame], out)):
            second = Second(call)
            first(second)
            assert second.met and all(type(error) is deepreduce.ConcurrentUse for error in second.met)
        second = Second(lambda: other.decode(frame))
        first(second)
        assert second.met and not any(second.met)


def test_a_merge_without_memory_leaves_the_batch_the_memory_that_it_has(rng, monkeypatch):
    x = gradients(rng, 300)[0]
    batch, other = Batch(x, TOPR + "index=golomb"), Batch(x, TOPR + "index=golomb", frames=300)
    frames, before = [batch.encode(x)] * 300, batch.workspace

    def refuse(shape, dtype):
        raise deepreduce.OutOfMemory("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(_memory, "empty", refuse)
        with pytest.raises(deepreduce.OutOfMemory):
            batch.merge(frames, numpy.zeros_like(x))
    assert batch.workspace == before <= batch._memory.size
    assert same_bits(batch.merge(frames), other.merge(frames)) and batch.workspace == other.workspace <= batch._memory.size


def test_a_bound_state_waits_for_its_bound(rng):
    x = gradients(rng, 3000)[0]
    state, here = State(x, KEEP), State(x, KEEP)
    bound = Batch(x, KEEP).bind(x, state=state)
    second = Second(bound.encode)
    assert encode(x, KEEP, state=state, trace=second) == encode(x, KEEP, state=here)
    assert second.met and all(type(error) is deepreduce.ConcurrentUse for error in second.met)
    assert state.state_dict()["state"].tobytes() == here.state_dict()["state"].tobytes()
    with pytest.raises(deepreduce.ArgumentError, match="bound to another"):
        Batch(x, KEEP).bind(x, state=state)
    del bound, second
    gc.collect()
    assert Batch(x, KEEP).bind(x, state=state).encode() == encode(x, KEEP, state=here)


def test_states_that_were_bound_together_part(rng):
    x = gradients(rng, 300, 300)
    states = State.of(x, KEEP)
    bound = Batch(x, KEEP).bind(x, state=states)
    bound.encode()
    assert states[0].lock is states[1].lock is bound.lock
    del bound
    gc.collect()
    second = Second(lambda: encode(x[1], KEEP, state=states[1]))
    encode(x[0], KEEP, state=states[0], trace=second)
    assert second.met and not any(second.met)


def test_what_a_trace_raises_is_raised(rng):
    x = gradients(rng, 300)[0]

    def refuse(trace):
        raise KeyError(trace.stage)

    state = State(x, KEEP)
    with pytest.raises(KeyError, match="sparsify|feedback"):
        encode(x, KEEP, state=state, trace=refuse)
    assert state.residual.any()  # it was encoded
    frame = encode(x, KEEP, state=State(x, KEEP))
    # A trace may call what it likes: it has a context of its own.
    again = []
    encode(x, KEEP, state=state, trace=lambda trace: again.append(encode(x, KEEP, state=State(x, KEEP))))
    assert set(again) == {frame}


@pytest.mark.parametrize("what", ["state", "batch", "bound"])
def test_two_threads_neither_crash_nor_lose_anything(what, rng):
    x = gradients(rng, 20_000)[0]
    out = numpy.empty_like(x)
    state, batch = State(x, KEEP), Batch(x, KEEP)
    bound = batch.bind(x, out, state=state)
    plain = encode(x, KEEP, state=State(x, KEEP))
    met, done, wrong = [], [], []
    start = threading.Barrier(3)

    def run(number):
        mine = State(x, KEEP)
        start.wait()
        for _ in range(150):
            try:
                if what == "state":
                    done.append(encode(x, KEEP, state=state))
                elif what == "bound":
                    done.append(bound.encode())
                else:
                    fresh = pickle.loads(pickle.dumps(mine)) if number else State(x, KEEP)
                    frame = batch.encode(x, state=fresh)
                    done.append(frame)
                    if frame != plain:
                        wrong.append(frame)
            except deepreduce.ConcurrentUse as error:
                met.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done and not wrong and len(met) + len(done) == 450
    if what != "batch":
        # A frame that was sent was subtracted from the residual once: as many steps in sequence have the same result.
        here = State(x, KEEP)
        expected = [encode(x, KEEP, state=here) for _ in done]
        assert sorted(done) == sorted(expected) and state.state_dict()["state"].tobytes() == here.state_dict()["state"].tobytes()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_encode_writes_where_out_is_now(rng, kind):
    x = gradients(rng, 3000)[0]
    bound = Batch(x, "index=golomb value=raw").bind(x)
    frame, size = bound.encode(), 20_000
    if kind == "torch":
        torch = pytest.importorskip("torch", reason="torch is missing: pip install torch")
        out = torch.zeros(size, dtype=torch.uint8)
        elsewhere = lambda: torch.zeros(size, dtype=torch.uint8)  # noqa: E731
        moves = [lambda: out.set_(elsewhere()), lambda: setattr(out, "data", elsewhere()), lambda: out.resize_(1 << 20), lambda: None]
    else:
        out = numpy.zeros(size, numpy.uint8)
        moves = [lambda: out.resize(1 << 22, refcheck=False), lambda: setattr(out, "shape", (2, -1)), lambda: None]
    bound.encode(out)
    for move in moves:
        move()
        bound.encode(out)
        assert bytes(out.reshape(-1)[: len(frame)].tolist()) == frame  # (numpy's views would make a tensor's size fixed)
    if kind == "torch":
        out.resize_(10)
        with pytest.raises(deepreduce.CapacityError):
            bound.encode(out)
    else:
        out.flags.writeable = False
        with pytest.raises(deepreduce.ArgumentError, match="out is read-only"):
            bound.encode(out)


def test_numbers_of_one_element_are_numbers(rng):
    x = gradients(rng, 3000)[0]
    bound = Batch(x, "index=golomb value=qsgd").bind(x)
    for number in (numpy.array(3), pytest.importorskip("torch", reason="torch is missing: pip install torch").tensor(3)):
        assert bound.encode(step=number, private_seed=number) == bound.encode(step=3, private_seed=3)
    with pytest.raises(deepreduce.ArgumentError, match="step is .*, not an integer"):
        bound.encode(step=numpy.array([3, 4]))
