"""What AllReduce promises, and what an exchange does about faults."""

import os
import signal
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch_ranks import (
    LOSSLESS,
    LOSSY,
    DDP,
    check,
    gradients,
    make_model,
    parameters_of,
    raises,
    residual_sum,
    same,
    same_on_all_ranks,
    steps_of,
    train,
    wrapped,
)

import deepreduce
import deepreduce.torch
from deepreduce.torch._engine import Engine
from deepreduce.torch import AllReduce, DDPHook, MissingRank, OutOfStep, ReduceScatter, state_for_new_rank

EXACT_TOP = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=raw"


# ---- Loops without DDP --------------------------------------------------------------------------


@check("two", "four")
def all_reduce_is_the_sum_in_rank_order():
    n, rank = dist.get_world_size(), dist.get_rank()
    expected = [torch.zeros_like(gradient) for gradient in gradients(0, 0)]
    for other in range(n):
        for total, gradient in zip(expected, gradients(0, other)):
            total += torch.tensor(1 / n) * gradient
    for options in ({}, {"flat": False}, {"dense_below": 0, "frame_bytes": 4000}):
        x = gradients(0, rank)
        deepreduce.torch.all_reduce(x, LOSSLESS, **options)
        assert all(map(same, x, expected)), options
        x = {f"w{i}": gradient.view(-1, 10) for i, gradient in enumerate(gradients(0, rank))}
        deepreduce.torch.all_reduce(x, LOSSLESS, **options)
        assert all(same(a.view(-1), b) for a, b in zip(x.values(), expected)), options
    with raises(deepreduce.ArgumentError, "AllReduce stores"):
        deepreduce.torch.all_reduce(x, LOSSY)


@check("two", "four")
def each_call_of_all_reduce_draws_again():
    """All calls selected the same elements, and the others were never sent. Ranks need not have made the same number of calls."""
    rank, n = dist.get_rank(), dist.get_world_size()
    groups, alone, drawn = [dist.new_group([2 * i, 2 * i + 1]) for i in range(n // 2)], dist.new_group([0]), []

    def draw(group=None):
        x = torch.ones(4000)
        deepreduce.torch.all_reduce([x], "sparsify=random(ratio=0.05) index=golomb value=raw", group)
        drawn.append(x.bool())

    for step in range(20):
        draw()
        assert same_on_all_ranks(drawn[-1].float()), step
        if step == 5 and rank == 1:
            with raises(deepreduce.ArgumentError, "tensor 0 is None"):
                deepreduce.torch.all_reduce([None], LOSSLESS)
        if step == 8:
            for _ in range(1 + rank // 2):
                draw(groups[rank // 2])
            for _ in range(3 if rank == 0 else 0):
                draw(alone)
        if step == 11:
            with raises(deepreduce.PeerError, "rank 1: "):
                deepreduce.torch.all_reduce([torch.full((2000,), float("nan") if rank == 1 else 1.0)], "index=all value=log_quant")
    assert torch.stack(drawn).sum(dim=0).max() < 15 and torch.stack(drawn).any(dim=0).float().mean() > 0.6
    for _ in range(2):  # `start` counts from 0 in each call
        x = torch.randn(4000)
        mean = x.clone()
        dist.all_reduce(mean)
        deepreduce.torch.all_reduce([x], "sparsify=random(ratio=0.05)", start=1)
        assert torch.allclose(x, mean / n, atol=1e-6)


@check("two", "four")
def what_was_sent_and_residuals_are_the_gradients():
    n, rank = dist.get_world_size(), dist.get_rank()
    for flat in (True, False):
        reduce, sent, given = AllReduce(EXACT_TOP, dense_below=0, flat=flat), 0, 0
        for step in range(4):
            x = gradients(step, rank)
            given = given + sum(torch.cat(gradients(step, other)).double() for other in range(n))
            reduce(x)
            sent = sent + n * torch.cat(x).double()
        assert torch.allclose(sent + residual_sum(reduce), given, atol=1e-4)


@check("two")
def other_tensors_than_the_first_are_refused():
    reduce = AllReduce(LOSSY)
    reduce(gradients(0, 0))
    with raises(deepreduce.ArgumentError, "2: not the tensors of the first call"):
        reduce(gradients(1, 0)[:2])
    with raises(deepreduce.ArgumentError, "1: not the tensors"):
        reduce(gradients(1, 0, (3000, 41, 500)))
    with raises(deepreduce.ArgumentError, "not contiguous"):
        reduce([torch.zeros(100, 60)[:, ::2], *gradients(1, 0)[1:]])
    with raises(deepreduce.Unsupported, "meta"):
        AllReduce(LOSSY)([torch.empty(10, device="meta")])
    with raises(deepreduce.Unsupported, "sparse"):
        AllReduce(LOSSY)([torch.eye(10).to_sparse()])


@check("two")
def what_is_no_tensor_of_this_rank_is_refused_by_name():
    with raises(deepreduce.ArgumentError, "tensor 1 is None: a parameter without a gradient"):
        AllReduce(LOSSY)([torch.ones(10), None])
    with raises(deepreduce.ArgumentError, "tensors is one tensor of shape (7,), not a list of tensors"):
        AllReduce(LOSSY)(torch.zeros(7))
    with raises(deepreduce.ArgumentError, "tensor w is of type ndarray, not a torch.Tensor"):
        AllReduce(LOSSY)({"w": torch.ones(10).numpy()})
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with raises(deepreduce.Unsupported, "tensor 0 is a DTensor", ".to_local()", "ReduceScatter"):
        AllReduce(LOSSY)([distribute_tensor(torch.ones(10), mesh)])


@check("two")
def arguments_that_are_no_such_number_are_refused_by_name():
    for arguments, words in [({"timeout": 0}, "timeout = 0.0 s"), ({"timeout": -1}, "timeout = -1.0 s"), ({"timeout": float("nan")}, "timeout = nan s"),
                             ({"timeout": "a"}, "timeout"), ({"start": -1}, "start = -1"), ({"start": 1.5}, "start is 1.5, not an integer"),
                             ({"frame_bytes": -1}, "frame_bytes = -1")]:  # fmt: skip
        for kind in (AllReduce, DDPHook):
            with raises(deepreduce.ArgumentError, words):
                kind(LOSSY, **arguments)


@check("two")
def memory_that_is_given_twice_is_refused_by_both_names():
    x, flat = torch.randn(3000), torch.randn(4000)
    for plan, start in ((None, 0), (LOSSY, 1), (LOSSY, 0), ("transform=lowrank(rank=2)", 0)):
        with raises(deepreduce.ArgumentError, "tensors emb and head have memory in common", "tied weights"):
            AllReduce(plan, start=start)({"emb": x, "h": torch.ones(7), "head": x})
        with raises(deepreduce.ArgumentError, "tensors 0 and 1 have memory in common"):
            AllReduce(plan, start=start)([flat[:3000], flat[2999:]])
        AllReduce(plan, start=start)([flat[:3000], flat[3000:3000], flat[3000:]])


@check("two")
def a_book_without_lines_leaves_all_dense():
    x = gradients(0, dist.get_rank())
    expected = [tensor.clone() for tensor in x]
    AllReduce(None)(expected)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with tempfile.NamedTemporaryFile("w", suffix=".book") as file:
            file.write("# nothing\n")
            file.flush()
            AllReduce(f"book:{file.name}")(x)
    assert all(map(same, x, expected)) and "all tensors are dense" in str(caught[0].message)


@check("two")
def a_state_of_another_kind_is_refused_by_what_it_lacks():
    reduce, saver = AllReduce(LOSSY), ReduceScatter(LOSSY)
    out = torch.empty(2000)
    saver(out, torch.ones(2000 * dist.get_world_size()), dist.group.WORLD, dist.ReduceOp.AVG)
    other, mine = saver.state_dict(), f"rank{dist.get_rank()}"
    for _ in range(2):  # before the tensors are known, and then
        with raises(deepreduce.ArgumentError, "no step, ranks or residuals, but", f"{mine}.states", "it is not a state of AllReduce"):
            reduce.load_state_dict(other)
        with raises(deepreduce.ArgumentError, "the state has no step, ranks or residuals, but version:"):
            reduce.load_state_dict({"version": 1})
        reduce(gradients(0, dist.get_rank()))
    with raises(deepreduce.ArgumentError, "the state has no step, ranks or states, but"):
        ReduceScatter(LOSSY).load_state_dict(reduce.state_dict())


@check("two")
def the_second_half_of_a_call_needs_the_first():
    rank = dist.get_rank()
    for start in (0, 9):
        reduce, other = AllReduce(LOSSY, start=start), AllReduce(LOSSY, start=start)
        for step in range(3):
            for half in (reduce.finish, reduce.cancel):
                with raises(deepreduce.ArgumentError, f"{half.__name__} without start"):
                    half()
            assert reduce.state_dict()["step"] == reduce.stats().steps == step
            x, y = gradients(step, rank), gradients(step, rank)
            reduce.start(x), other(y)
            for under_way in (reduce.state_dict, reduce.reset, lambda reduce=reduce, x=x: reduce.start(x)):
                with raises(deepreduce.ArgumentError, "a step is under way: finish or cancel it first"):
                    under_way()
            reduce.finish()
            assert all(map(same, x, y))
        with raises(deepreduce.ArgumentError, "not the tensors of the first call"):
            reduce.start(gradients(3, rank)[:2])
        with raises(deepreduce.ArgumentError, "finish without start"):
            reduce.finish()
        reduce.start(gradients(3, rank))
        reduce.cancel()
        with raises(deepreduce.ArgumentError, "cancel without start"):
            reduce.cancel()
        assert reduce.stats().steps == 4
    for plan in (LOSSY, None):
        empty = AllReduce(plan, start=0 if plan else 9)
        for _ in range(2):
            empty.start([])
            with raises(deepreduce.ArgumentError, "a step is under way"):
                empty.start([])
            empty.finish()
            with raises(deepreduce.ArgumentError, "finish without start"):
                empty.finish()
        empty.start([])
        empty.cancel()
        assert empty.state_dict()["step"] == 3
    bad = AllReduce("index=all value=log_quant", dense_below=0)
    bad.start([torch.full((2000,), float("nan") if rank else 1.0)])
    bad.cancel()  # (its error is of a step that is abandoned)
    bad = AllReduce("index=all value=log_quant", dense_below=0)  # (a call that fails has ended)
    with raises(deepreduce.PeerError, "rank 1"):
        bad([torch.full((2000,), float("nan") if rank else 1.0)])
    with raises(deepreduce.ArgumentError, "finish without start"):
        bad.finish()
    assert bad.stats().steps == 1


@check("two")
def later_calls_may_pass_the_tensors_in_another_order():
    """Means go to the tensors of their names. (Dense steps sent them in the order of the call.)"""
    rank = dist.get_rank()
    for names, plan, start in (
        *[(("a", "b"), plan, start) for plan, start in ((None, 9), (LOSSLESS, 2), (LOSSLESS, 0))],
        *[(("a", "rows", "b"), LOSSLESS, start) for start in (2, 0)],
    ):
        reduce = AllReduce(plan, start=start, frame_bytes=4000)
        for step in range(4):
            x = {name: torch.full((1000,), 10.0 * i + rank + step) for i, name in enumerate(names)}
            if "rows" in x:
                x["rows"] = torch.sparse_coo_tensor(torch.tensor([[4]]), x["rows"][None], (7, 1000), check_invariants=False)
            reduce(dict(reversed(x.items())) if step and rank else x)
            for i, name in enumerate(names):
                found = x[name].coalesce().values() if name == "rows" else x[name]
                assert bool((found == 10 * i + 0.5 + step).all()), (plan, start, step, name)


@check("two")
def empty_and_tiny_tensors_work():
    for below in (0, 1000):
        x = [torch.zeros(0), torch.full((1,), 2.0 * dist.get_rank()), torch.zeros(0, 3)]
        AllReduce(LOSSLESS, dense_below=below)(x)
        assert x[1].item() == 1.0 and x[0].numel() == 0
        AllReduce(LOSSLESS, dense_below=below)([torch.zeros(0)])
    AllReduce(LOSSY)([])


@check("two")
def tensors_elsewhere_are_copied_and_slots_go_there():
    """Like a GPU with NCCL, except that everything is in the CPU's memory."""
    from deepreduce.torch import _engine

    expected, lossy = train(None), train(DDPHook(LOSSY, dense_below=0))
    half = gradients(0, dist.get_rank())[0].bfloat16()
    halves = [half.clone(), half.clone()]
    AllReduce(LOSSY)([halves[0]])
    _engine.HOST.clear()
    try:
        assert Engine(None, 1.0).slot_device(half.device) == half.device
        assert same(train(DDPHook(LOSSLESS)), expected)
        assert same(train(DDPHook(LOSSY, dense_below=0)), lossy)
        AllReduce(LOSSY)([halves[1]])
        assert torch.equal(*halves)
    finally:
        _engine.HOST.add("cpu")


@check("two")
def tensors_that_come_back_from_elsewhere_are_not_overwritten_by_their_old_copies():
    from deepreduce.torch import _engine

    rank = dist.get_rank()
    for plan in (LOSSY, "index=all value=half(type=bf16) feedback=residual", "transform=lowrank(rank=2) feedback=residual"):
        here, there = (AllReduce(plan, dense_below=100) for _ in range(2))
        for step in range(4):
            x, y = ([gradient.view(-1, 10) for gradient in gradients(step, rank)] for _ in range(2))
            here(x)
            if step % 2 == 0:
                _engine.HOST.clear()
            try:
                there(y)
            finally:
                _engine.HOST.add("cpu")
            assert all(map(same, x, y)), (plan, step)


# ---- Slots and faults ---------------------------------------------------------------------------


@check("two")
def a_frame_that_outgrows_its_slot_is_sent_again():
    rank, reduce = dist.get_rank(), AllReduce("sparsify=threshold(value=0.5) index=golomb value=raw", dense_below=0)
    for step, (count, repeats) in enumerate([(10, 0), (10, 0), (4000, 1), (4000, 0), (10, 0), (12, 0)]):
        x = torch.zeros(20000)
        x[:count] = torch.arange(1, count + 1) * (1 if rank else 3)
        if rank and count == 4000:
            x.zero_()  # only one of them outgrows it
        expected = torch.zeros(20000)
        expected[:count] = torch.arange(1, count + 1) * (1.5 if count == 4000 else 2)
        reduce([x])
        assert same(x, expected), step
        assert reduce.stats().last.repeats == repeats, (step, reduce.stats())
    assert reduce.stats().last.sent < 1000


@check("two")
def a_rank_that_cannot_encode_is_named_by_all():
    for flat in (True, False):
        hook = DDPHook(LOSSY, flat=flat, dense_below=0)
        ddp = wrapped(make_model(), hook, bucket_cap_mb=25)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        steps_of(ddp, optimizer, 0, 2)
        handle = ddp.module[3].weight.register_hook(
            lambda gradient: gradient * (float("nan") if dist.get_rank() else 1)
        )
        with raises(deepreduce.PeerError, "rank 1", "3.weight", "NaN") as caught:
            steps_of(ddp, optimizer, 2, 3)
        assert caught[0].rank == 1
        assert hook.stats().steps == 3
        # DDP is of no use after an exception in backward. Another one, of a copy of the model, goes on.
        handle.remove()
        model = make_model()
        model.load_state_dict(ddp.module.state_dict())
        again = DDPHook(LOSSY, flat=flat, dense_below=0)
        again.load_state_dict(hook.state_dict())
        steps_of(wrapped(model, again), torch.optim.SGD(model.parameters(), lr=0.01), 3, 5)
        assert again.state_dict()["step"] == 5 and same_on_all_ranks(parameters_of(model))


@check("two")
def what_a_failed_step_sent_goes_back_to_the_residuals():
    plan = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=uniform_quant"
    rank, n = dist.get_rank(), dist.get_world_size()
    reduce, given, sent = AllReduce(plan, dense_below=0, frame_bytes=4000), 0, 0
    for step in range(6):
        x = gradients(step, rank)
        ours = torch.cat(gradients(step, rank)).double()
        if step == 3:
            if rank == 0:
                x[1][7] = float("nan")
                ours[3000:] = 0  # its unit was not encoded: the gradient of the step is lost
            with raises(deepreduce.PeerError, "rank 0: could not encode (ARGUMENT): 1: "):
                reduce(x)
        else:
            reduce(x)
            sent = sent + n * torch.cat(x).double()
        given = given + ours
    dist.all_reduce(given)
    assert torch.allclose(sent + residual_sum(reduce), given, atol=1e-4)
    assert reduce.stats().steps == 6


@check("two")
def a_damaged_frame_is_named_by_all():
    from deepreduce.torch import _slots

    gather, reduce = _slots.all_gather, AllReduce(LOSSY, dense_below=0)
    reduce(gradients(0, 0))

    def flipping(group, timeout, receive, send):
        send = send.clone()
        send[-len(send) // 2] ^= 4
        return gather(group, timeout, receive, send)

    try:
        if dist.get_rank() == 1:
            _slots.all_gather = flipping
        with raises(deepreduce.CorruptFrame, "rank 1") as caught:
            reduce(gradients(1, 0))
        assert caught[0].rank == 1
        # A size that no frame can have.
        if dist.get_rank() == 1:

            def lying(group, timeout, receive, send):
                send = send.clone()
                send[40 + 5] = 1
                return gather(group, timeout, receive, send)

            _slots.all_gather = lying
        with raises(deepreduce.CorruptFrame, "rank 1", "header"):
            reduce(gradients(2, 0))
        # The frame fits in the slot, its stated size does not: no rank may read past the slot.
        if dist.get_rank() == 1:

            def growing(group, timeout, receive, send):
                send = send.clone()
                send[40:48] = torch.tensor([len(send) - 47]).view(torch.uint8)
                return gather(group, timeout, receive, send)

            _slots.all_gather = growing
        with raises(deepreduce.CorruptFrame, "rank 1"):
            AllReduce(LOSSY, dense_below=0)(gradients(3, 0))
    finally:
        _slots.all_gather = gather
    reduce(gradients(4, 0))


@check("two")
def ranks_that_are_out_of_step_are_told():
    reduce = AllReduce(LOSSY)
    reduce(gradients(0, 0))
    if dist.get_rank() == 1:
        reduce._number += 1
    for _ in range(2):  # until the user loads states of one step
        with raises(OutOfStep, "rank 0 is at step ", ", rank 1 at step ") as caught:
            reduce(gradients(1, 0))
        assert caught[0].rank == 0 and caught[0].ranks == (0,) and caught[0].source == 1 and caught[0].step is None
    states = [None, None]
    dist.all_gather_object(states, reduce.state_dict())
    reduce.load_state_dict(states[0] if dist.get_rank() == 0 else state_for_new_rank(states[0]))
    reduce(gradients(2, 0))


@check("two", "four")
def a_rank_with_other_tensors_is_named_by_all_in_the_first_call():
    odd = dist.get_rank() == 1
    x = {"a": torch.ones(30000), "b": torch.ones(20000)}
    for control in (None, "fit(target_ms=20)"):
        for given, plan, options, words in (
            ({"a": x["a"]}, LOSSY, {}, "has no tensor b, which others have (1 tensors, others 2)"),
            (dict(reversed(x.items())), LOSSY, {}, "has tensor b at place 0, others a"),
            ({"a": x["a"], "c": x["b"]}, LOSSY, {}, "has no tensor b, which others have and a tensor c, which others have not"),
            ({"a": x["a"], "b": x["b"][1:]}, LOSSY, {}, "has the tensor b 1 x 19999 torch.float32, "),
            ({"a": x["a"], "b": x["b"].half()}, LOSSY, {}, "torch.float16, "),
            (x, LOSSY, {"start": 1}, "has start 1, others 0;"),
            (x, LOSSY, {"seed": 5}, "has seed 5, others 0;"),
            (x, LOSSY, {"dense_below": 30000}, "has dense_below 30000, others "),
            (x, LOSSY, {"nonfinite": "skip"}, "has nonfinite skip, others error;"),
            (x, LOSSY, {"frame_bytes": 1000}, "has frame_bytes 1000, others 4194304;"),
            (x, LOSSLESS, {}, "has plan '*': "),
            (x, [("b", LOSSLESS), ("*", LOSSY)] if control is None else LOSSLESS, {}, "has plan '"),
        ):  # fmt: skip
            plan, options = (plan, options) if odd else (LOSSY, {})
            reduce = AllReduce(plan if control is None else [plan], control=control, **options)
            with raises(deepreduce.ArgumentError, "rank 1 ", words) as caught:
                reduce(given if odd else x)
            assert caught[0].rank == 1
    reduce = AllReduce(LOSSY)
    reduce(x)


@check("two")
def a_rank_that_is_not_in_the_group_is_told_so():
    group, x = dist.new_group([0]), torch.ones(3000)
    if dist.get_rank() == 0:
        AllReduce(LOSSLESS, group=group)([x])
        return
    with raises(deepreduce.ArgumentError, "rank 1 is not in the group"):
        AllReduce(LOSSLESS, group=group)([x])
    with raises(deepreduce.ArgumentError, "rank 1 is not in the group"):
        ReduceScatter(LOSSLESS)(x, torch.ones(6000), group, dist.ReduceOp.SUM)


# ---- Ranks that are gone ------------------------------------------------------------------------


@check("four")
def subgroups_exchange_apart():
    rank = dist.get_rank()
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    x = torch.full((2000,), float(rank))
    AllReduce(LOSSLESS, group=groups[rank // 2])([x])
    assert (x == (0.5 if rank < 2 else 2.5)).all()
    ddp = DDP(make_model(), process_group=groups[rank // 2])
    DDPHook(LOSSY, dense_below=0).register(ddp)
    steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.01), 0, 3)
    mine, other = parameters_of(ddp), parameters_of(ddp)
    dist.broadcast(other, rank // 2 * 2, group=groups[rank // 2])
    assert same(mine, other)
    with raises(deepreduce.PeerError, f"rank {1 if rank < 2 else 3}:"):  # of the default group
        x = torch.randn(2000)
        if rank % 2:
            x[0] = float("nan")
        deepreduce.torch.all_reduce([x], "index=all value=log_quant", groups[rank // 2])


# Each happens within a group of its own, which was made before. GONE in torch_ranks.py lists them.
groups: dict = {}  # by the rank that will be gone


def lose(signal_number, rank, timeout, *words):
    """The rank gets the signal between two steps; the others of its group must name it, in time."""
    if not groups:
        groups.update({2: dist.group.WORLD, 1: dist.new_group([0, 1, 3]), 0: dist.new_group([0, 3])})
    reduce = AllReduce(LOSSY, timeout=timeout, group=groups[rank])
    reduce(gradients(0, 0))
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal_number)
    begin = time.monotonic()
    with raises(MissingRank, f"rank {rank}", *words) as caught:
        reduce(gradients(1, 0))
    assert caught[0].ranks == (rank,) and time.monotonic() - begin < 10


@check("four")
def a_rank_that_stops_is_named_by_all():
    lose(signal.SIGSTOP, 2, 1.5, "does not answer", "timed out", "timeout 1.5 s")


@check("four")
def a_rank_that_is_killed_is_named_by_all():
    lose(signal.SIGKILL, 1, 30, "does not answer", "onnection")


@check("four")
def the_rank_that_serves_the_store_is_named():
    lose(signal.SIGSTOP, 0, 1.5, "which serves the store")
