"""deepreduce.exchange over its loopback: all ranks in one thread."""

import ctypes
import gc
import json
import math
import os
import threading
import weakref

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce._native._testing import Emulated, emulated  # noqa: E402
from deepreduce.control import AdaptiveExchange  # noqa: E402
from deepreduce.exchange import Exchange, Loopback, Transport  # noqa: E402

TOP = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw"


def gradient(rank, step, d=3000):
    return numpy.random.default_rng([rank, step]).standard_cauchy(d).astype(numpy.float32)


def ranks_of(n, plan, x, loopback=None, **options):
    loopback = loopback or Loopback(n)
    return loopback, [Exchange(x[rank], plan, loopback.transport(rank), **options) for rank in range(n)]


def run(loopback, ranks, step=0):
    for rank in ranks:
        rank.start(step)
    return loopback.run(ranks)


@pytest.mark.parametrize("schedule", ["gather", "gather(parts=3)", "owner(parts=2)", "ring", "hierarchy(inner=2)"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_all_ranks_have_the_same_bits(n, schedule):
    if schedule.startswith("hierarchy") and n == 1:
        pytest.skip("a hierarchy of one rank is gather")
    x = [gradient(rank, 0) for rank in range(n)]
    loopback, ranks = ranks_of(n, f"{TOP} exchange={schedule}", x)
    for step in range(3):
        for rank in range(n):
            x[rank][:] = gradient(rank, step)
        assert run(loopback, ranks, step) == [None] * n
        assert len({rank.out.tobytes() for rank in ranks}) == 1
    assert ranks[0].info.calls == 3


@pytest.mark.parametrize("schedule", ["gather(parts=2)", "owner", "ring"])
def test_on_a_gpu_the_bits_are_those_of_the_cpu(schedule):
    plan = f"{TOP} exchange={schedule}"
    x = [[gradient(rank, 0), gradient(rank, 1, 40)] for rank in range(3)]
    loopback, ranks = ranks_of(3, plan, x)
    with emulated(3):
        there = [[Emulated(array.copy()) for array in arrays] for arrays in x]
        net, on_gpu = ranks_of(3, plan, there)
        for step in range(3):
            for rank in range(3):
                for t, array in enumerate(x[rank]):
                    array[:] = gradient(rank, step, array.size)
                    there[rank][t].array[:] = array
            assert run(loopback, ranks, step) == run(net, on_gpu, step) == [None] * 3
            for a, b in zip(ranks, on_gpu):
                for t in range(2):
                    assert b.out[t].to_host() == a.out[t].tobytes()
                    assert numpy.array_equal(a.residual(t), b.residual(t))


def test_on_a_gpu_arrays_stay_where_the_exchange_was_made():
    x = gradient(0, 0, 3000)
    with emulated():
        there, out = Emulated(x.copy()), Emulated(numpy.zeros(3000, numpy.float32))
        loopback = Loopback(1)
        exchange = Exchange(there, TOP, loopback.transport(0), out)
        assert exchange.out is out
        exchange.start()
        assert loopback.run([exchange]) == [None]
        assert numpy.count_nonzero(out.array) == 300
        with pytest.raises(deepreduce.ArgumentError, match="x is on the CPU; the exchange was made on cuda:0, stream 0x"):
            exchange.rebind(x)
        with pytest.raises(deepreduce.ArgumentError, match="x is on cuda:1, stream 0x.*; the exchange was made on cuda:0"):
            exchange.rebind(Emulated(x, 1))
        with pytest.raises(deepreduce.ArgumentError, match="all arrays of a call must be in one place"):
            Exchange(there, TOP, loopback.transport(0), x)
        with pytest.raises(deepreduce.Unsupported, match="gap_huffman runs on the CPU only"):
            Exchange(there, "index=gap_huffman value=raw sparsify=topr(ratio=0.1)", loopback.transport(0))
    with pytest.raises(deepreduce.ArgumentError, match="nccl is for exchange=hierarchy with a place on a device"):
        Exchange(x, TOP, loopback.transport(0), nccl=1)


def test_several_gpus_a_host_sum_by_nccl(monkeypatch):
    path = os.environ.get("DEEPREDUCE_EMULATED_NCCL")
    if not path:
        pytest.skip("DEEPREDUCE_EMULATED_NCCL is not set: the library of tests/exchange/emulated_nccl.cpp")
    monkeypatch.setenv("DEEPREDUCE_NCCL", path)
    library, plan = ctypes.CDLL(path), "sparsify=none index=raw value=raw exchange=hierarchy(inner=2)"
    hosts = [(ctypes.c_void_p * 2)() for _ in range(2)]
    for host in hosts:
        assert library.ncclCommInitAll(host, 2, None) == 0
    communicators = [host[i] for host in hosts for i in range(2)]
    x = [numpy.random.default_rng(rank).integers(-99, 99, 5000).astype(numpy.float32) for rank in range(4)]
    with emulated():
        net = Loopback(4)
        ranks = [Exchange(Emulated(x[r]), plan, net.transport(r), sum=True, nccl=communicators[r]) for r in range(4)]
        for step in range(2):
            assert run(net, ranks, step) == [None] * 4
            for rank in ranks:
                assert numpy.array_equal(numpy.frombuffer(rank.out.to_host(), numpy.float32), sum(x))
        with pytest.raises(deepreduce.ArgumentError, match="requires nccl, a communicator of the 2 ranks of this host"):
            Exchange(Emulated(x[0]), plan, net.transport(0))
        del rank, ranks
    for communicator in communicators:
        library.ncclCommDestroy(ctypes.c_void_p(communicator))


def test_gather_is_merge_in_rank_order():
    x = [gradient(rank, 0) for rank in range(3)]
    loopback, ranks = ranks_of(3, TOP, x)
    assert run(loopback, ranks) == [None] * 3
    frames = [deepreduce.encode(array, TOP, state=deepreduce.State(array, TOP)) for array in x]
    expected = deepreduce.merge(frames, weights=[numpy.float32(1) / numpy.float32(3)] * 3)
    assert numpy.array_equal(ranks[1].out, expected)


def test_the_step_is_the_number_of_the_call():
    plan = "sparsify=random(ratio=0.1) index=golomb value=raw"
    x = [gradient(rank, 0) for rank in range(2)]
    loopback, ranks = ranks_of(2, plan, x)
    other, again = ranks_of(2, plan, x)
    made = []
    for step in range(2):
        run(loopback, ranks, None)
        run(other, again, step)
        assert ranks[0].out.tobytes() == again[0].out.tobytes()
        made.append(ranks[0].out.tobytes())
    assert made[0] != made[1]


def test_sum_list_shapes_and_in_place():
    x = [[numpy.full((2, 3), rank, numpy.float32), numpy.ones(5, numpy.float16)] for rank in range(2)]
    loopback, ranks = ranks_of(2, "index=all value=raw exchange=owner", x, sum=True)
    assert run(loopback, ranks) == [None, None]
    assert ranks[0].out[0].shape == (2, 3) and (ranks[0].out[0] == 1).all()
    assert ranks[0].out[1].dtype == numpy.float32 and (ranks[0].out[1] == 2).all()
    y = [numpy.full(4, rank, numpy.float32) for rank in range(2)]
    loopback = Loopback(2)
    ranks = [Exchange(y[r], "index=all value=raw", loopback.transport(r), y[r]) for r in range(2)]
    assert run(loopback, ranks) == [None, None]
    assert ranks[0].out is y[0] and (y[0] == 0.5).all()


def test_sparse_and_rebind():
    def sparse(rank):
        return deepreduce.Sparse(numpy.array([rank, 7]), numpy.array([1, 1], numpy.float32), (8,))

    out = [numpy.zeros(8, numpy.float32) for _ in range(2)]
    loopback = Loopback(2)
    ranks = [Exchange(sparse(r), "index=golomb value=raw", loopback.transport(r), out[r]) for r in range(2)]
    assert run(loopback, ranks) == [None, None]
    assert out[0].tolist() == [0.5, 0.5, 0, 0, 0, 0, 0, 1]
    other = numpy.zeros(8, numpy.float32)
    ranks[0].rebind(sparse(3), other)
    assert run(loopback, ranks) == [None, None]
    assert ranks[0].out is other and other.tolist() == [0, 0.5, 0, 0.5, 0, 0, 0, 1]
    with pytest.raises(deepreduce.ArgumentError):
        ranks[0].rebind(numpy.zeros(9, numpy.float32), other)


ROWS = [[], [1, 6], [0, 1, 3, 5, 7]]  # of three ranks


def sparse_of(rank, width=2, indices=numpy.int64):
    values = 10.0 ** rank * numpy.arange(1, width * len(ROWS[rank]) + 1, dtype=numpy.float32)
    return deepreduce.Sparse(numpy.array(ROWS[rank], indices), values.reshape(-1, width), (8, width))


@pytest.mark.parametrize("schedule", ["gather", "owner", "owner(parts=2)"])
def test_ranks_have_as_many_rows_of_a_sparse_as_they_like_below_rows(schedule):
    expected = sum(sparse_of(rank).to_dense() for rank in range(3))
    plan, loopback = f"index=golomb value=raw exchange={schedule}", Loopback(3)
    ranks = [Exchange(sparse_of(r), plan, loopback.transport(r), sum=True, rows=5) for r in range(3)]
    assert run(loopback, ranks) == [None] * 3
    assert all(numpy.array_equal(rank.out, expected) for rank in ranks)
    for rank in range(3):  # each has now what the next one had
        ranks[rank].rebind(sparse_of((rank + 1) % 3), ranks[rank].out)
    assert run(loopback, ranks) == [None] * 3
    assert all(numpy.array_equal(rank.out, expected) for rank in ranks)
    x = deepreduce.Sparse(numpy.arange(6), numpy.ones((6, 2), numpy.float32), (8, 2))
    for call in (lambda: ranks[0].rebind(x), lambda: Exchange(x, plan, loopback.transport(0), rows=5)):
        with pytest.raises(deepreduce.ArgumentError, match="x has 6 rows, more than rows = 5") as caught:
            call()
        assert caught.value.tensor == 0
    with pytest.raises(deepreduce.ArgumentError, match="rows = 5 requires a Sparse, and x has none"):
        Exchange(gradient(0, 0), plan, loopback.transport(0), rows=5)
    with pytest.raises(deepreduce.ArgumentError, match=r"rows = -1 is not in"):
        Exchange(x, plan, loopback.transport(0), rows=-1)


def test_an_empty_sparse_of_torch_may_have_rows_later():
    torch = pytest.importorskip("torch", reason="torch is missing: pip install torch")
    loopback = Loopback(1)
    empty = deepreduce.Sparse(torch.empty(0, dtype=torch.int32), torch.empty(0, 2), (8, 2))
    assert empty.values.data_ptr() == 0
    exchange = Exchange(empty, "index=golomb value=raw", loopback.transport(0), rows=5)
    assert run(loopback, [exchange]) == [None] and not exchange.out.any()
    x = sparse_of(2, indices=numpy.int32)
    exchange.rebind(deepreduce.Sparse(torch.tensor(x.indices), torch.tensor(x.values), x.shape))
    assert run(loopback, [exchange]) == [None] and numpy.array_equal(exchange.out, x.to_dense())


@pytest.mark.parametrize("schedule", ["gather", "owner"])
def test_a_rank_with_other_rows_is_named_by_all(schedule):
    plan, loopback = f"index=golomb value=raw exchange={schedule}", Loopback(3)
    ranks = [Exchange(sparse_of(r), plan, loopback.transport(r), rows=6 if r == 2 else 5) for r in range(3)]
    for error in run(loopback, ranks):
        assert isinstance(error, deepreduce.ArgumentError) and error.rank == 2
        assert "sparse counts differ from those of rank 0" in str(error)


def test_the_rungs_of_a_ladder_share_rows():
    loopback, ladder = Loopback(3), [None, "index=golomb value=half"]
    ranks = [AdaptiveExchange(sparse_of(r), ladder, "fit(target_ms=1)", loopback.transport(r), rows=5) for r in range(3)]
    for rank in ranks:
        rank.start()
    assert loopback.run([rank.exchange for rank in ranks]) == [None] * 3
    assert numpy.allclose(ranks[0].out, sum(sparse_of(rank).to_dense() for rank in range(3)) / 3)


def test_outputs_live_though_the_callers_list_is_cleared():
    x = [[numpy.full(3000, rank + 1, numpy.float32)] for rank in range(2)]
    loopback = Loopback(2)
    ranks = [Exchange(x[0], "index=all value=raw", loopback.transport(0), out := [numpy.zeros(3000, numpy.float32)])]
    ranks.append(Exchange(x[1], "index=all value=raw", loopback.transport(1)))
    references = [weakref.ref(out[0]), weakref.ref(ranks[1].out[0])]
    out.clear(), ranks[1].out.clear()
    gc.collect()
    assert all(reference() is not None for reference in references)
    assert run(loopback, ranks) == [None, None]
    assert all((reference() == 1.5).all() for reference in references)


def test_rebind_lets_go_of_the_arrays_before():
    loopback = Loopback(1)
    exchange = Exchange(gradient(0, 0), TOP, loopback.transport(0))
    for step in range(3):
        x = gradient(0, step)
        before = weakref.ref(x), weakref.ref(exchange.out)
        exchange.rebind(x)
        assert before[1]() is None
        del x
        exchange.rebind(gradient(0, step))
        assert before[0]() is None
    assert run(loopback, [exchange]) == [None]


def test_an_exchange_of_factors_takes_other_arrays():
    loopback, x = Loopback(1), numpy.random.default_rng(1).standard_normal((24, 15)).astype(numpy.float32)
    exchange = Exchange(numpy.zeros_like(x), "transform=lowrank(rank=15)", loopback.transport(0))
    exchange.rebind(x)
    assert run(loopback, [exchange]) == [None] and numpy.allclose(exchange.out, x, atol=1e-4)


def test_a_loopback_runs_one_exchange_for_each_rank():
    x = [gradient(rank, 0) for rank in range(3)]
    loopback, ranks = ranks_of(3, TOP, x)
    for wrong in ([], ranks[:2], [*ranks, None]):
        with pytest.raises(deepreduce.ArgumentError, match=f"there are {len(wrong)} exchanges, the loopback has 3 ranks"):
            loopback.run(wrong)
    for wrong in (ranks[::-1], ranks_of(3, TOP, x)[1]):
        with pytest.raises(deepreduce.ArgumentError, match="not of this loopback, or not of the rank at its place"):
            loopback.run(wrong)
    assert run(loopback, ranks) == [None] * 3


def test_a_loopback_ends_after_its_exchanges_also_in_a_cycle_of_garbage():
    """The collector of a cycle ends the loopback first, which is older."""
    ended = []

    def leave_a_cycle():
        loopback = Loopback(2)
        gc.collect()
        loopback.ranks = [Exchange(gradient(0, rank), TOP, loopback.transport(rank)) for rank in range(2)]
        for exchange in loopback.ranks:
            exchange.start()
            own = exchange._context._owned
            own.update({key: (handle, lambda given, end=end: (ended.append("exchange"), end(given)), at) for key, (handle, end, at) in own.items()})
        destroy = loopback._destroy
        loopback._destroy = lambda handle: (ended.append("loopback"), destroy(handle))

    leave_a_cycle()
    gc.collect()
    assert ended == ["exchange", "exchange", "loopback"]
    loopback = Loopback(1)
    exchange = Exchange(gradient(0, 0), TOP, loopback.transport(0))
    assert len(loopback._users) == 1
    del exchange
    gc.collect()
    assert not loopback._users


def test_a_residual_is_finite_float32():
    exchange = Exchange(gradient(0, 0, 4), TOP, Loopback(1).transport(0))
    good = numpy.array([[1, 2], [3, 4]], numpy.float32)
    exchange.set_residual(good)
    infinite = numpy.array([0, 0, numpy.inf, numpy.nan], numpy.float32)
    for wrong, words in (
        (numpy.full(4, 1e300), "residual is float64, not float32$"),
        (numpy.ones(4, numpy.complex64), "residual is complex64, not float32"),
        (numpy.array(["1"] * 4), "not float32"),
        ([1.0] * 4, "residual is a list, not an array"),
        (infinite, "residual: element 2 is inf, not finite"),
        (good[0], "has 2 elements, the tensor 4"),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=words) as caught:
            exchange.set_residual(wrong)
        assert caught.value.tensor == 0
    assert caught.value.where == 0 and exchange.residual().tolist() == [1, 2, 3, 4]


def test_a_residual_of_torch_may_require_grad():
    torch = pytest.importorskip("torch", reason="torch is missing: pip install torch")
    exchange = Exchange(gradient(0, 0, 4), TOP, Loopback(1).transport(0))
    exchange.set_residual(torch.arange(4.0, requires_grad=True))
    assert exchange.residual().tolist() == [0, 1, 2, 3]


def test_residual_of_a_checkpoint():
    x = [gradient(rank, 0) for rank in range(2)]
    loopback, ranks = ranks_of(2, f"{TOP} exchange=owner", x)
    run(loopback, ranks)
    residuals = [(rank.residual(), rank.residual(which="sum")) for rank in ranks]
    assert residuals[0][0].any() and residuals[0][1].any()
    again, fresh = ranks_of(2, f"{TOP} exchange=owner", x)
    for exchange, (own, of_sum) in zip(fresh, residuals):
        exchange.set_residual(own)
        exchange.set_residual(of_sum, which="sum")
    run(loopback, ranks, 1)
    run(again, fresh, 1)
    assert numpy.array_equal(ranks[0].out, fresh[0].out)
    for wrong in (lambda: ranks[0].residual(1), lambda: ranks[0].residual(which="x"), lambda: ranks[0].set_residual(x[0][:5])):
        with pytest.raises(deepreduce.ArgumentError):
            wrong()


def test_a_state_whose_loading_is_interrupted_changes_nothing(monkeypatch):
    x = [[gradient(rank, 0), gradient(rank, 1)] for rank in range(2)]
    loopback, ranks = ranks_of(2, f"{TOP} exchange=owner", x)
    run(loopback, ranks)
    (exchange, _), (fresh, _) = ranks, ranks_of(2, f"{TOP} exchange=owner", x)[1]
    saved, before, place, calls = exchange.state_dict(), fresh.state_dict(), deepreduce.exchange._residual, []

    def interrupt(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        with pytest.raises(deepreduce.ConcurrentUse):
            fresh.cancel()
        return place(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(deepreduce.exchange, "_residual", interrupt)
        patch.setattr(fresh, "state_dict", lambda: before, raising=False)
        with pytest.raises(KeyboardInterrupt):
            fresh.load_state_dict(saved)
    assert list(fresh.state_dict()) == list(before) == ["step"] and len(calls) > 2
    fresh.load_state_dict(saved)
    assert numpy.array_equal(fresh.residual(1), exchange.residual(1)) and fresh.residual(1).any()


def test_residuals_and_warm_start_are_a_checkpoint_of_powersgd():
    plan, rng = "transform=lowrank(rank=2) feedback=residual", numpy.random.default_rng(6)
    x = [rng.standard_normal((24, 15)).astype(numpy.float32) for _ in range(2)]
    loopback, ranks = ranks_of(2, plan, x)
    run(loopback, ranks)
    again, fresh = ranks_of(2, plan, x)
    for exchange, old in zip(fresh, ranks):
        assert old.residual(which="warm_start")[:30].any() and not old.residual(which="warm_start")[30:].any()
        exchange.set_residual(old.residual())
        exchange.set_residual(old.residual(which="warm_start"), which="warm_start")
    run(loopback, ranks, 1)
    run(again, fresh, 1)
    assert numpy.array_equal(ranks[0].out, fresh[0].out)


def test_the_guilty_rank_is_named():
    x = [gradient(rank, 0) for rank in range(4)]
    x[2][5] = numpy.nan
    loopback, ranks = ranks_of(4, "sparsify=topr(ratio=0.1) value=log_quant exchange=owner", x)
    before = [rank.out.tobytes() for rank in ranks]
    errors = run(loopback, ranks)
    assert [type(error) for error in errors] == [deepreduce.PeerError] * 2 + [deepreduce.ArgumentError, deepreduce.PeerError]
    assert all(error.rank == 2 and "NaN" in str(error) for error in errors)
    assert [rank.out.tobytes() for rank in ranks] == before


def test_a_rank_that_is_not_there():
    x = [gradient(rank, 0) for rank in range(3)]
    loopback, ranks = ranks_of(3, f"{TOP} exchange=ring", x, timeout=0.5)
    for rank in ranks[:2]:
        rank.start()
    errors = loopback.run([*ranks[:2], None])
    assert all(isinstance(error, deepreduce.MissingRank) and error.rank == 2 for error in errors[:2]) and errors[2] is None
    assert 0 < loopback.now(0) < 0.6


def test_cancel():
    x = [gradient(rank, 0) for rank in range(2)]
    loopback, ranks = ranks_of(2, TOP, x)
    for rank in ranks:
        rank.start()
    ranks[1].cancel()
    errors = loopback.run(ranks)
    assert all(error is not None and error.rank == 1 for error in errors)
    assert run(loopback, ranks) == [None, None]


def test_trace():
    x = [gradient(rank, 0) for rank in range(2)]
    loopback, ranks = ranks_of(2, TOP, x, trace=True)
    run(loopback, ranks)
    trace = json.loads(ranks[0].trace_json())
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    assert {"encode", "send", "merge"} <= {event["name"] for event in events}
    _, plain = ranks_of(2, TOP, x)
    with pytest.raises(deepreduce.ArgumentError):
        plain[0].trace_json()


def test_latency_and_rate_are_of_the_virtual_clock():
    x = [numpy.ones(25000, numpy.float32) for _ in range(2)]
    loopback, ranks = ranks_of(2, "index=all value=raw", x, Loopback(2, latency=1e-3, bytes_per_second=1e7))
    assert run(loopback, ranks) == [None, None]
    assert 0.011 < loopback.now(0) < 0.02  # 100 kB at 10 MB/s, and the verdicts


class Broken(Transport):
    """Sends into nothing; what comes is an exception."""

    ranks, rank = 2, 0

    def send(self, peer, tag, address, size):
        return 1

    def recv(self, peer, tag, address, capacity):
        return 2

    def __init__(self, error):
        self.error = error

    def test(self, request):
        raise self.error

    def cancel(self, request):
        return True


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ConnectionResetError("the cable is gone"), deepreduce.PeerError), (TimeoutError("no answer"), deepreduce.MissingRank)],
)
def test_an_exception_of_a_transport_is_the_cause(error, kind):
    exchange = Exchange(gradient(0, 0), TOP, Broken(error), timeout=5)
    exchange.start()
    with pytest.raises(deepreduce.Error, match="rank 1") as raised:
        while not exchange.advance():
            pass
    assert type(raised.value) is kind and raised.value.__cause__ is error and raised.value.rank == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda t: Exchange([1.0, 2.0], TOP, t),
        lambda t: Exchange(numpy.ones((4, 4), numpy.float32)[:, ::2], TOP, t),
        lambda t: Exchange(numpy.ones(4, numpy.float32), TOP, t, numpy.ones(5, numpy.float32)),
        lambda t: Exchange(numpy.ones(4, numpy.float32), TOP, t, timeout=0),
        lambda t: Exchange(numpy.ones(4, numpy.float32), TOP, t, timeout=float("nan")),
        lambda t: Exchange(numpy.ones(4, numpy.float32), "index=all value=raw exchange=star", t),
        lambda t: Exchange([numpy.ones(4, numpy.float32)], [TOP], t),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments(make):
    with pytest.raises(deepreduce.ArgumentError):
        make(Loopback(2).transport(0))
    with pytest.raises(deepreduce.ArgumentError):
        Loopback(2).transport(2)


def test_wrong_arguments_are_refused_in_words():
    x, loopback = gradient(0, 0), Loopback(2)
    for call, words in (
        (lambda: Exchange(x, TOP, loopback), r"transport is a Loopback; pass its transport\(rank\)"),
        (lambda: Exchange(x, TOP, "mpi"), "transport is a str, not a Transport"),
        (lambda: Exchange(x, TOP, loopback.transport(0), timeout=math.inf), "timeout = inf s is not above 0 and at most 2"),
        (lambda: Exchange(x, TOP, loopback.transport(0), timeout=None), "timeout is None, not a number"),
        (lambda: Exchange(x, TOP, loopback.transport(0), budget=math.inf), "budget = inf s is not in 0 … 2"),
        (lambda: Exchange(x, TOP, loopback.transport(0), budget=-1), "budget = -1.0 s is not in 0 … 2"),
        (lambda: Loopback(2, latency=-1e-6), "latency = -1e-06 s is not in 0 … 2"),
        (lambda: Loopback(2, latency=math.nan), "latency = nan s is not in 0 … 2"),
        (lambda: Loopback(2, bytes_per_second="1"), "bytes_per_second is '1', not a number"),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=f"^{words}"):
            call()


def test_an_exchange_in_use_says_so_and_tells_how_the_last_one_went():
    met = []

    def on_another_thread(rank, step, elements, size):
        exchange = ranks[rank]
        calls = [exchange.start, exchange.advance, exchange.cancel, exchange.residual, exchange.trace_json, lambda: exchange.rebind(x[rank]),
                 lambda: exchange.set_residual(numpy.zeros(3000, numpy.float32)), lambda: loopback.run(ranks)]  # fmt: skip

        def tried():
            for call in calls:
                try:
                    met.append(call())
                except deepreduce.Error as error:
                    met.append(type(error))
            met.append(exchange.info.calls)

        thread = threading.Thread(target=tried)
        thread.start()
        thread.join()
        return 0.0

    x = [gradient(rank, 0) for rank in range(2)]
    loopback, ranks = ranks_of(2, TOP, x, Loopback(2, cost=on_another_thread), trace=True)
    assert run(loopback, ranks) == [None, None]
    assert met and set(met) == {deepreduce.ConcurrentUse, 0}
    assert ranks[0].info.calls == 1
