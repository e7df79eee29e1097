"""deepreduce.mpi under mpiexec: every schedule, numpy arrays and torch tensors, errors that name the rank.

    mpiexec -n N python python_ranks.py N [kill]
"""

import copy
import gc
import importlib.util
import os
import pathlib
import re
import signal
import sys
import time
import weakref

for package in ("numpy", "mpi4py"):
    if not importlib.util.find_spec(package):
        print(f"skipped: {sys.executable} has no {package}")
        sys.exit(0)
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bindings" / "python"))
sys.dont_write_bytecode = True

import numpy  # noqa: E402

import deepreduce  # noqa: E402
import deepreduce.mpi  # noqa: E402
from deepreduce.mpi import MPI, AllReduce, NamedAllReduce, all_reduce, wait_all  # noqa: E402

COMM = MPI.COMM_WORLD
RANK, RANKS = COMM.Get_rank(), COMM.Get_size()
TOP = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw"
SCHEDULES = ["gather", "gather(parts=3)", "owner", "owner(parts=2)", "ring", "hierarchy(inner=2)"]


def gradient(rank, step, d=5000):
    return numpy.random.default_rng([rank, step]).standard_cauchy(d).astype(numpy.float32)


def same_everywhere(array):
    return len(set(COMM.allgather(numpy.ascontiguousarray(array).tobytes()))) == 1


def raised(kind, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError(f"no {kind}")


def schedules():
    for schedule in SCHEDULES:
        x = numpy.empty(5000, numpy.float32)
        mean = AllReduce(x, f"{TOP} exchange={schedule}", timeout=30)
        states = [deepreduce.State(x, TOP) for _ in range(RANKS)]
        for step in range(4):
            x[:] = gradient(RANK, step)
            if step % 2:
                out = mean(step)
            else:
                mean.start(step)
                while not mean.test():
                    time.sleep(1e-4)
                out = mean.out
            assert same_everywhere(out), (schedule, step)
            if schedule == "gather":  # what merge makes of all ranks' frames
                frames = [deepreduce.encode(gradient(rank, step), TOP, state=states[rank], step=step) for rank in range(RANKS)]
                expected = deepreduce.merge(frames, weights=[1 / RANKS] * RANKS)
                assert numpy.array_equal(out, expected), (schedule, step)
        info = mean.exchange.info
        assert info.calls == 4 and info.failures == 0 and 0 < info.sent <= info.sent_max
        residual = mean.exchange.residual()
        assert residual.any() or (schedule.startswith("hierarchy") and RANK % 2)  # who does not encode drops nothing
        mean.exchange.set_residual(numpy.zeros_like(residual))
        assert not mean.exchange.residual().any()
        mean.close()


def books():
    """Tensors by name, each by the plan of its book, are what senders of all ranks make of them in one process."""
    sizes = {"conv.weight": 4000, "conv.bias": 40, "fc.weight": 3000, "fc.bias": 10, "head": 5000}
    lines = f"*.bias: dense\nfc.*: {TOP} exchange=owner\nhead: value=qsgd(levels=7)\n*: {TOP}\n"
    book = deepreduce.book.parse(lines)
    x = {name: numpy.empty(d, numpy.float32) for name, d in sizes.items()}
    mean = NamedAllReduce(x, book, unit_bytes=20000, timeout=30)
    senders = [deepreduce.Sender(x, book, unit_bytes=20000, ranks=RANKS, rank=rank) for rank in range(RANKS)]
    expected = {name: numpy.empty_like(array) for name, array in x.items()}
    kinds = {unit.kind for unit in senders[0].units}
    assert kinds == {"frames", "owner"} and len(senders[0].units) > 2
    for step in range(3):
        all_slots, outs = [], None
        for rank, sender in enumerate(senders):
            sender.place({name: gradient(rank, 10 * step + i, d) for i, (name, d) in enumerate(sizes.items())}, expected)
            slots = [numpy.zeros((unit.slots, unit.bound), numpy.uint8) for unit in sender.units]
            for i, slot in enumerate(slots):
                sender.encode(i, step, slot.reshape(-1))
            all_slots.append(slots)
        sums = [[numpy.zeros(unit.sum_bound, numpy.uint8) for unit in sender.units] for sender in senders]
        for i, unit in enumerate(senders[0].units):
            if unit.kind == "owner":
                for rank, sender in enumerate(senders):
                    sender.sum(i, step, [slots_of_rank[i][rank] for slots_of_rank in all_slots], sums[rank][i])
                outs = [slots_of_rank[i] for slots_of_rank in sums]
            else:
                outs = [slots_of_rank[i][0] for slots_of_rank in all_slots]
            for sender in senders:
                sender.merge(i, step, outs)
        for i, (name, d) in enumerate(sizes.items()):
            x[name][:] = gradient(RANK, 10 * step + i, d)
        out = mean(step)
        assert out is mean.out and list(out) == list(sizes)
        for name in sizes:
            assert same_everywhere(out[name]), name
            assert numpy.array_equal(out[name], expected[name]), (name, step)
    assert "value=raw" in str(mean.plans["conv.bias"]) and mean.plans["fc.weight"].name_of("exchange") == "owner"
    saved = mean.state_dict()
    again = NamedAllReduce(x, book, unit_bytes=20000, timeout=30)
    again.load_state_dict(saved)
    assert again.state_dict()["step"] == mean.state_dict()["step"]
    again()  # from the same step on
    mean()
    assert all(numpy.array_equal(again.out[name], mean.out[name]) for name in x)
    again.close()
    mean.close()
    plan = book if RANK else "book:/nowhere/x.book"
    error = raised(deepreduce.PeerError if RANK else deepreduce.ArgumentError, NamedAllReduce, x, plan, timeout=30)
    assert ("rank 0: it cannot prepare the exchange" if RANK else "nowhere") in str(error), error
    assert error.rank == (0 if RANK else None)
    error = raised(deepreduce.ArgumentError, NamedAllReduce, x, TOP if RANK == 1 else book, timeout=30)
    assert RANKS == 2 or (error.rank == 1 and "rank 1 has other tensors" in str(error)), error
    error = raised(deepreduce.Unsupported, NamedAllReduce, x, f"{TOP} exchange=ring", timeout=30)
    assert "exchange=owner" in str(error) and error.tensor is not None, error
    # Factors of a transform go beside frames.
    x = {"matrix": numpy.ones((40, 50), numpy.float32), "vector": numpy.full(9, RANK, numpy.float32)}
    mean = NamedAllReduce(x, {"matrix": "transform=lowrank(rank=2) feedback=residual", "*": None}, timeout=30)
    mean()
    assert numpy.allclose(mean.out["matrix"], 1, atol=1e-3) and (mean.out["vector"] == (RANKS - 1) / 2).all()
    mean.close()
    # A step whose factors fail fails for all tensors: what the others sent goes back.
    x["top"] = gradient(RANK, 0)
    mean = NamedAllReduce(x, {"matrix": "transform=lowrank(rank=2) feedback=residual", "top": TOP, "*": None}, timeout=30)
    x["matrix"][3, 3] = numpy.nan if RANK == 1 else 1
    error = raised(deepreduce.ArgumentError if RANK == 1 else deepreduce.PeerError, mean)
    assert error.rank == 1 and "nan" in str(error), error
    assert (mean._sender.read_state("top").view(numpy.float32)[-5000:] == x["top"]).all()
    x["matrix"][3, 3] = 1
    mean()
    assert numpy.isfinite(mean.out["matrix"]).all() and same_everywhere(mean.out["top"]) and mean.out["top"].any()
    mean.close()


def named_tensors_go_on_after_a_step_that_failed():
    x = {name: numpy.ones(3000, numpy.float32) for name in ("quantised", "exact", "top")}
    plans = {"quantised": "value=qsgd(levels=127)", "exact": "index=all value=raw", "top": f"{TOP} exchange=owner"}
    mean, sound = (NamedAllReduce(x, plans, timeout=30) for _ in range(2))
    for _ in range(2):
        x["quantised"][7] = numpy.nan if RANK == 1 else 1
        error = raised(deepreduce.PeerError, mean)
        assert error.rank == 1 and error.tensor == "quantised" and "NaN" in str(error), error
        x["quantised"][7] = 1
        mean()
        assert (mean.out["exact"] == 1).all() and same_everywhere(mean.out["quantised"])
    # What the steps that failed had sent of `top` is in its residuals: 4 gradients went in, two means went out.
    assert same_everywhere(mean.out["top"]) and mean.out["top"].any()
    sound.start(100)
    raised(deepreduce.ArgumentError, sound.start)  # under way: it goes on
    assert (sound.wait()["exact"] == 1).all()
    sound.start()
    assert wait_all([sound]) == [sound.out]
    sound.close()
    assert "closed" in str(raised(deepreduce.ArgumentError, sound))
    mean.close()


def named_killed():
    """Rank 1 is killed in the third step by name."""
    x = {"a": gradient(RANK, 0), "b": gradient(RANK, 1)}
    mean = NamedAllReduce(x, {"a": TOP, "b": f"{TOP} exchange=owner"}, timeout=4)
    mean(0)
    mean(1)
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    before, begin = {name: array.copy() for name, array in mean.out.items()}, time.monotonic()
    error = raised((deepreduce.MissingRank, deepreduce.PeerError), mean, 2)
    assert error.rank == 1, error
    assert time.monotonic() - begin < 2 * 4
    assert all(numpy.array_equal(before[name], mean.out[name]) for name in x)
    assert raised(type(error), mean, 3) is error  # its messages could come later


def several_at_once():
    plans = [f"{TOP} exchange=owner", "index=all value=raw exchange=ring", "sparsify=topr(ratio=0.05) index=golomb value=log_quant"]
    x = [numpy.empty(3000, numpy.float32) for _ in plans]
    alone, together = ([AllReduce(array, plan, timeout=60) for array, plan in zip(x, plans)] for _ in range(2))
    for step in range(4):
        for i, array in enumerate(x):
            array[:] = gradient(RANK, 10 * step + i, 3000)
        if step == 2 and RANK == RANKS - 1:
            x[2][7] = numpy.nan
        for mean in together:
            mean.start(step)
        try:
            outs = wait_all(together)
            assert step != 2 and [id(out) for out in outs] == [id(mean.out) for mean in together]
        except deepreduce.Error as error:
            assert step == 2 and error.rank == RANKS - 1, error
        for i, mean in enumerate(alone):
            if step != 2 or i != 2:
                assert numpy.array_equal(mean(step), together[i].out), (step, i)
    for mean in [*alone, *together]:
        mean.close()


def dense_sums():
    x = [numpy.full((3, 5), RANK, numpy.float32), numpy.arange(7, dtype=numpy.float32)]
    plain = "index=all value=raw exchange=owner"
    mean = all_reduce(x, plain)
    assert (mean[0] == (RANKS - 1) / 2).all() and mean[0].shape == (3, 5) and numpy.allclose(mean[1], x[1])
    total = all_reduce(x, plain, sum=True)
    assert (total[0] == RANKS * (RANKS - 1) / 2).all()
    all_reduce(x, plain, out=x)  # in place
    assert (x[0] == (RANKS - 1) / 2).all()
    half = COMM.Split(RANK % 2, RANK)
    part = all_reduce(numpy.full(9, RANK, numpy.float32), plain, half)
    assert (part == numpy.mean(range(RANK % 2, RANKS, 2))).all()
    raised(deepreduce.ArgumentError, all_reduce, x, TOP)
    half.Free()


def torch_tensors():
    if not importlib.util.find_spec("torch"):
        return
    import torch

    x = torch.full((4, 6), float(RANK))
    mean = AllReduce(x, "index=all value=raw exchange=gather")
    out = mean()
    assert isinstance(out, torch.Tensor) and out.shape == (4, 6) and (out == (RANKS - 1) / 2).all()
    x += 1
    assert (mean() == (RANKS + 1) / 2).all()
    mean.close()


def faults():
    x = gradient(RANK, 0)
    if RANK == 1:
        x[17] = numpy.nan
    mean = AllReduce(x, "sparsify=topr(ratio=0.1) value=log_quant exchange=owner", timeout=30)
    error = raised(deepreduce.ArgumentError if RANK == 1 else deepreduce.PeerError, mean)
    assert error.rank == 1 and "NaN" in str(error), error
    x[:] = gradient(RANK, 1)
    assert same_everywhere(mean())
    mean.close()
    # One rank cannot prepare: all raise.
    wrong = "index=all value=raw exchange=" + ("ring" if RANK else "ring(parts=0)")
    error = raised(deepreduce.ArgumentError if RANK == 0 else deepreduce.PeerError, AllReduce, x, wrong)
    assert RANK == 0 or error.rank == 0
    raised(deepreduce.ArgumentError, AllReduce, x, TOP, MPI.COMM_NULL)


def interrupted():
    """MPI may still write to the memory of a collective whose wait Ctrl-C ends."""

    class Pending:
        def Test(self):
            raise KeyboardInterrupt

    words = numpy.zeros(3, numpy.uint64)
    mean = AllReduce(gradient(RANK, 0), TOP, timeout=30)
    raised(KeyboardInterrupt, mean.transport._until, Pending(), "MPI_Iallgather", words)
    assert any(type(left) is tuple and left[1] is words for left in deepreduce.mpi._LEFT)
    mean.transport.gather_words([1])
    assert not deepreduce.mpi._UNDER_WAY
    dropped = weakref.ref(mean.transport.begin_words([RANK]).words)
    gc.collect()
    assert dropped() is not None and len(deepreduce.mpi._UNDER_WAY) == 1
    mean.close()


def no_step():
    """A wrong number begins no step."""
    mean = NamedAllReduce({"a": numpy.ones(3000, numpy.float32)}, "index=all value=raw", timeout=30)
    for wrong in (-1, 2**64, 1.5, "1"):
        assert str(raised(deepreduce.ArgumentError, mean, wrong)).startswith("step "), wrong
    assert mean.state_dict()["step"] == 0 and (mean(numpy.int64(3))["a"] == 1).all() and mean.state_dict()["step"] == 4
    raised(deepreduce.ArgumentError, mean.load_state_dict, [mean.state_dict()])
    mean.close()


def refused_often():
    """What all ranks refuse gives its communicators back: MPICH has 2048 of them."""
    x, named = gradient(RANK, 0), {"a": numpy.ones((40, 50), numpy.float32), "b": numpy.ones(50, numpy.float32)}
    factors = "transform=lowrank(rank=2) feedback=residual"
    for _ in range(800):
        raised(deepreduce.ArgumentError if RANK == 1 else deepreduce.PeerError, AllReduce, x, TOP, out=x[RANK == 1 :], timeout=30)
        raised(deepreduce.ArgumentError, AllReduce, x, [None, TOP], control="fit(target_ms=1)" if RANK else None, timeout=30)
        raised(deepreduce.ArgumentError, NamedAllReduce, named, factors if RANK else TOP, timeout=30)
    assert (AllReduce(numpy.ones(4, numpy.float32), "index=all value=raw", timeout=30)() == 1).all()


def sparse_rows():
    """Each rank has rows of its own; their number is at most the maximum that all ranks agreed on."""
    indices = numpy.arange(RANK + 1)
    x = deepreduce.Sparse(indices, numpy.ones(RANK + 1, numpy.float32), (9,))
    for schedule in ("gather", "owner"):
        plan = f"index=golomb value=raw exchange={schedule}"
        total = AllReduce(x, plan, sum=True, rows=RANKS, timeout=30)
        assert total().tolist() == [max(0, RANKS - i) for i in range(9)]
        total.close()
        error = raised(deepreduce.ArgumentError, AllReduce(x, plan, rows=RANKS + (RANK == 1), timeout=30))
        assert error.rank == 1 and "counts" in str(error), error


def closed():
    mean = AllReduce(numpy.ones(4, numpy.float32), "index=all value=raw", timeout=30)
    for owner in (mean, mean.transport):
        for how in (copy.copy, copy.deepcopy):
            error = raised(TypeError, how, owner)
            assert "neither copied nor pickled" in str(error), error
    assert mean().tolist() == [1] * 4 and mean.control is None
    mean.close()
    for call in (mean, mean.start, mean.test, mean.wait, mean.close, lambda: mean.out, lambda: mean.control, lambda: mean.exchange):
        error = raised(deepreduce.ArgumentError, call)
        assert "the AllReduce is closed" in str(error), error


def control():
    """The plan follows what transfers take, the same on all ranks, and nothing is lost on the way."""
    for schedule, options in (("gather", "aimd(target_ms=0.000001)"), ("owner", "fit(target_ms=0.000001)"), ("gather", "aimd(target_ms=10000,start=1)")):
        x = numpy.empty(5000, numpy.float32)
        plan = f"{TOP} exchange={schedule}"
        mean = AllReduce(x, [None, plan, plan.replace("0.1", "0.01")], control=options, timeout=30)
        given, received, rungs = 0, 0, []
        for step in range(8):
            x[:] = gradient(RANK, step).clip(-100, 100)
            given = given + sum(gradient(rank, step).clip(-100, 100).astype(float) for rank in range(RANKS))
            rungs.append(mean.exchange.rung)
            received = received + RANKS * mean().astype(float)
            assert same_everywhere(mean.out)
            left = sum(COMM.allgather(mean.exchange.residual().astype(float) + RANKS * mean.exchange.residual(0, "sum")))
            assert numpy.allclose(given - received, left, atol=0.01), (schedule, step, abs(given - received - left).max())
        assert COMM.allgather(rungs) == [rungs] * RANKS
        assert COMM.allgather(mean.control.state_dict()["trace"]) == [mean.control.state_dict()["trace"]] * RANKS
        assert rungs == ([1, 1, 1] + [0] * 5 if "start" in options else [0, 1] + [2] * 6), rungs
        mean.close()
    error = raised(deepreduce.ArgumentError, AllReduce, x, plan, control="fit(target_ms=1)")
    assert "ladder" in str(error), error
    # A poll does not wait for another rank, nor does the one that agrees on the next rung.
    x[:] = gradient(RANK, 0)
    mean = AllReduce(x, ladder := [None, plan, plan.replace("0.1", "0.01")], control="aimd(target_ms=0.000001)", timeout=30)
    mean.start()
    if RANK == 0:
        end = time.monotonic() + 20
        while mean._pending is None and time.monotonic() < end:  # the others have ended the exchange, and rank 1 has sent no words yet
            assert not mean.test()
        assert not mean.test() and mean.control.info.decisions == 0
        raised(deepreduce.ArgumentError, mean.start)
    elif RANK == 1:
        while not mean.exchange.advance():
            pass
    else:
        while mean._pending is None:
            assert not mean.test()
    COMM.Barrier()
    if RANK == 1:
        mean._pending = mean.transport.begin_words(mean.exchange.report())
    mean.wait()
    assert mean.control.rung == 1 and mean.control.info.decisions == 1
    assert same_everywhere(mean())
    mean.close()
    # A rank with other terms is named by all, at once.
    options = "fit(target_ms=1)"
    for its, its_options, words in (
        (ladder, "fit(target_ms=1,interval=2)", "other options"),
        (ladder[:2], options, "a ladder of 2 rungs, others one of 3"),
        ([*ladder[:2], plan.replace("0.1", "0.02")], options, "other plans in its ladder"),
        (plan, None, "no control, and others have"),
    ):
        begin = time.monotonic()
        taken = (its, its_options) if RANK == 1 else (ladder, options)
        error = raised(deepreduce.ArgumentError, AllReduce, x, taken[0], control=taken[1], timeout=30)
        assert error.rank == 1 and f"rank 1 has {words}" in str(error) and time.monotonic() - begin < 10, error
    error = raised(deepreduce.PeerError if RANK else deepreduce.ArgumentError, AllReduce, x, ladder,
                   control=options if RANK else "dc2(target_ms=1)", timeout=30)  # fmt: skip
    assert RANK == 0 or error.rank == 0


def documented():
    text = (ROOT / "docs" / "MPI.md").read_text(encoding="utf-8")
    (block,) = (example for example in re.findall(r"^```python\n(.*?)^```", text, re.S | re.M) if "deepreduce.mpi" in example)
    names = {}
    exec(compile(block, "docs/MPI.md", "exec"), names)
    assert same_everywhere(names["update"])


def killed():
    """Rank 1 is killed in the third exchange."""
    x = gradient(RANK, 0)
    mean = AllReduce(x, TOP + " exchange=owner", timeout=4)
    mean(0)
    mean(1)
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    before, begin = mean.out.copy(), time.monotonic()
    error = raised((deepreduce.MissingRank, deepreduce.PeerError), mean, 2)  # PeerError if MPI reports that it is gone
    assert error.rank == 1, error
    assert time.monotonic() - begin < 2 * 4
    assert numpy.array_equal(before, mean.out)


def main():
    if RANKS != int(sys.argv[1]):
        print(f"skipped: mpiexec and mpi4py are of different MPIs ({MPI.Get_library_version().splitlines()[0]})")
        return
    if sys.argv[2:]:
        {"kill": killed, "kill named": named_killed}[sys.argv[2]]()
        print(f"rank {RANK}: good", flush=True)
        time.sleep(10)
        os._exit(0)  # MPI_Finalize would wait for rank 1
    for test in (schedules, several_at_once, books, named_tensors_go_on_after_a_step_that_failed, dense_sums, torch_tensors, faults, interrupted, no_step, refused_often, sparse_rows, closed, control, documented):
        test()
    print(f"rank {RANK}: good", flush=True)


try:
    main()
except BaseException:
    import traceback

    traceback.print_exc()
    sys.stderr.flush()
    COMM.Abort(1)
