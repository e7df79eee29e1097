"""deepreduce.exchange over its loopback: all ranks in one thread."""

import json

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce.exchange import Exchange, Loopback, Transport  # noqa: E402

TOP = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw"


def gradient(rank, step, d=3000):
    return numpy.random.default_rng([rank, step]).standard_cauchy(d).astype(numpy.float32)


def ranks_of(n, plan, x, loopback=None, **options):
    loopback = loopback or Loopback(n)
    return loopback, [Exchange(x[rank], plan, loopback.transport(rank), **options) for rank in range(n)]


def run(loopback, ranks, step=0):
    for each in ranks:
        each.start(step)
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
        assert len({each.out.tobytes() for each in ranks}) == 1
    assert ranks[0].info().calls == 3


def test_gather_is_merge_in_rank_order():
    x = [gradient(rank, 0) for rank in range(3)]
    loopback, ranks = ranks_of(3, TOP, x)
    assert run(loopback, ranks) == [None] * 3
    frames = [deepreduce.encode(each, TOP, state=deepreduce.State(TOP, each)) for each in x]
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


def test_residual_of_a_checkpoint():
    x = [gradient(rank, 0) for rank in range(2)]
    loopback, ranks = ranks_of(2, f"{TOP} exchange=owner", x)
    run(loopback, ranks)
    kept = [(each.residual(), each.residual(which="sum")) for each in ranks]
    assert kept[0][0].any() and kept[0][1].any()
    again, fresh = ranks_of(2, f"{TOP} exchange=owner", x)
    for each, (own, of_sum) in zip(fresh, kept):
        each.set_residual(own)
        each.set_residual(of_sum, which="sum")
    run(loopback, ranks, 1)
    run(again, fresh, 1)
    assert numpy.array_equal(ranks[0].out, fresh[0].out)
    for wrong in (lambda: ranks[0].residual(1), lambda: ranks[0].residual(which="x"), lambda: ranks[0].set_residual(x[0][:5])):
        with pytest.raises(deepreduce.ArgumentError):
            wrong()


def test_residuals_and_warm_start_are_a_checkpoint_of_powersgd():
    plan, rng = "transform=lowrank(rank=2) feedback=residual", numpy.random.default_rng(6)
    x = [rng.standard_normal((24, 15)).astype(numpy.float32) for _ in range(2)]
    loopback, ranks = ranks_of(2, plan, x)
    run(loopback, ranks)
    again, fresh = ranks_of(2, plan, x)
    for each, old in zip(fresh, ranks):
        assert old.residual(which="warm_start")[:30].any() and not old.residual(which="warm_start")[30:].any()
        each.set_residual(old.residual())
        each.set_residual(old.residual(which="warm_start"), which="warm_start")
    run(loopback, ranks, 1)
    run(again, fresh, 1)
    assert numpy.array_equal(ranks[0].out, fresh[0].out)


def test_the_guilty_rank_is_named():
    x = [gradient(rank, 0) for rank in range(4)]
    x[2][5] = numpy.nan
    loopback, ranks = ranks_of(4, "sparsify=topr(ratio=0.1) value=log_quant exchange=owner", x)
    before = [each.out.tobytes() for each in ranks]
    errors = run(loopback, ranks)
    assert [type(each) for each in errors] == [deepreduce.PeerError] * 2 + [deepreduce.ArgumentError, deepreduce.PeerError]
    assert all(each.rank == 2 and "NaN" in str(each) for each in errors)
    assert [each.out.tobytes() for each in ranks] == before


def test_a_rank_that_is_not_there():
    x = [gradient(rank, 0) for rank in range(3)]
    loopback, ranks = ranks_of(3, f"{TOP} exchange=ring", x, timeout=0.5)
    for each in ranks[:2]:
        each.start()
    errors = loopback.run([*ranks[:2], None])
    assert all(isinstance(each, deepreduce.MissingRank) and each.rank == 2 for each in errors[:2]) and errors[2] is None
    assert 0 < loopback.now(0) < 0.6


def test_cancel():
    x = [gradient(rank, 0) for rank in range(2)]
    loopback, ranks = ranks_of(2, TOP, x)
    for each in ranks:
        each.start()
    ranks[1].cancel()
    errors = loopback.run(ranks)
    assert all(each is not None and each.rank == 1 for each in errors)
    assert run(loopback, ranks) == [None, None]


def test_trace():
    x = [gradient(rank, 0) for rank in range(2)]
    loopback, ranks = ranks_of(2, TOP, x, trace=True)
    run(loopback, ranks)
    told = json.loads(ranks[0].trace_json())
    events = told["traceEvents"] if isinstance(told, dict) else told
    assert {"encode", "send", "merge"} <= {each["name"] for each in events}
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

    def test(self, request):
        raise ConnectionResetError("the cable is gone")

    def cancel(self, request):
        return True


def test_an_exception_of_a_transport_is_the_cause():
    exchange = Exchange(gradient(0, 0), TOP, Broken(), timeout=5)
    exchange.start()
    with pytest.raises(deepreduce.Error, match="rank 1") as raised:
        while not exchange.advance():
            pass
    assert isinstance(raised.value.__cause__, ConnectionResetError) and raised.value.rank == 1


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
