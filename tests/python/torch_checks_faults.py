"""What ranks know of one another after a fault that one of them alone has met."""

import contextlib

import torch
import torch.distributed as dist
from torch_ranks import check, gradients, make_model, parameters_of, raises, residual_sum, same, same_on_all_ranks, steps_of, wrapped

import deepreduce
from deepreduce.torch import _slots
from deepreduce.torch import AllReduce, DDPHook, OutOfStep, ReduceScatter, state_for_new_rank

EXACT_TOP = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=raw"


@contextlib.contextmanager
def sending(rank, change):
    """On that rank `change` gets each slot before it is sent."""
    gather = _slots.all_gather

    def changed(group, timeout, receive, send):
        change(send)
        return gather(group, timeout, receive, send)

    if dist.get_rank() == rank:
        _slots.all_gather = changed
    try:
        yield
    finally:
        _slots.all_gather = gather


@check("two")
def a_rank_whose_own_slot_is_damaged_numbers_the_step_as_all_do():
    rank, reduce = dist.get_rank(), AllReduce(EXACT_TOP, dense_below=0, frame_bytes=4000)
    reduce(gradients(0, rank))
    before = [state.residual.copy() for state in reduce._states.values()]

    def flip(slot):  # the last unit's, in the memory that is taken back, too
        if slot.data_ptr() == reduce._units[-1]._slots.data_ptr():
            slot[61] ^= 4

    with sending(1, flip), raises(deepreduce.CorruptFrame, "rank 1") as caught:
        reduce(gradients(1, rank))
    assert caught[0].rank == 1 and reduce.state_dict()["step"] == 2
    # All units but the damaged one have the step's gradient in their residuals.
    given = gradients(1, rank)
    for name, old in zip(reduce._states, before):
        residual = torch.from_numpy(reduce._states[name].residual)
        damaged = rank == 1 and name in [item.name for item in reduce._units[-1].items]
        assert torch.allclose(residual, torch.from_numpy(old) + given[int(name)], atol=1e-6) != damaged, name
    x = gradients(2, rank)
    reduce(x)
    other = x[0].clone()
    dist.broadcast(other, 0)
    assert same(other, x[0]) and reduce.state_dict()["step"] == 3


@contextlib.contextmanager
def receiving(rank, change):
    """On that rank `change` gets what has arrived of each exchange, before it is looked at: uint8 [ranks, slot]."""
    from deepreduce.torch._engine import Engine

    issue, wait, pending = Engine.issue, Engine.wait, {}

    def noting(self, what, collective, *tensors):
        work = issue(self, what, collective, *tensors)
        pending[id(work)] = tensors[0].view(self.size, -1) if tensors[0].dtype == torch.uint8 else None
        return work

    def changed(self, what, work, deadline):
        wait(self, what, work, deadline)
        received = pending.pop(id(work))
        if received is not None:
            change(received)

    if dist.get_rank() == rank:
        Engine.issue, Engine.wait = noting, changed
    try:
        yield
    finally:
        Engine.issue, Engine.wait = issue, wait


def flip_a_frame(slots):
    """One bit of rank 1's frame, behind head and sizes."""
    if slots.shape[1] > 128:
        slots[1, 100] ^= 4


@check("two")
def a_step_that_one_rank_alone_lost_is_named_by_all_in_the_next():
    rank, n = dist.get_rank(), dist.get_world_size()
    for plan in (EXACT_TOP, EXACT_TOP.replace("residual", "residual(beta=0.5)"), EXACT_TOP + " bucket=flat", "index=all value=uniform_quant(bits=8) feedback=residual"):
        for options in ({}, {"frame_bytes": 4000}):
            reduce, twin = AllReduce(plan, dense_below=0, **options), AllReduce(plan, dense_below=0, **options)
            applied = torch.zeros(3540)

            def step(number, reduce=reduce):
                x = gradients(number, rank)
                reduce(x)
                return torch.cat(x)

            for number in range(3):
                applied += step(number)
            with receiving(0, flip_a_frame), raises(deepreduce.CorruptFrame, "rank 1") if rank == 0 else contextlib.nullcontext():
                applied += step(3)
            x = gradients(4, rank)
            with raises(OutOfStep, "rank 0 is behind", "did not complete step 3, which rank 1 completed", "copy") as caught:
                reduce(x)
            error = caught[0]
            assert (error.rank, error.ranks, error.source, error.step) == (0, (0,), 1, 3)
            assert all(map(same, x, gradients(4, rank)))  # nothing was applied
            # Rank 0 copies what the other has, and all go on: no gradient is lost, none is there twice.
            dist.broadcast(applied, 1)
            for number in (5, 6):
                applied += step(number)
            assert same_on_all_ranks(applied) and reduce.state_dict()["step"] == 7
            # As one that nothing happened to, and that sent nothing in step 4.
            expected = torch.zeros(3540)
            for number in (0, 1, 2, 3, 5, 6):
                if number == 5:  # what step 4 encoded went back whole
                    for state, given in zip(twin._states.values(), gradients(4, rank)):
                        beta = 0.5 if "beta" in plan else 1
                        state.residual[:] = beta * state.residual + given.numpy()
                    twin._number += 1
                expected += step(number, twin)
            assert torch.allclose(applied, expected, atol=1e-3), (plan, (applied - expected).abs().max())
            assert torch.allclose(residual_sum(reduce), residual_sum(twin), atol=1e-3)
    assert n == 2


@check("two")
def a_step_that_one_rank_alone_cancels_is_named_by_all_in_the_next():
    """It takes part in what the others still need of the step: the rest of frames, sums, second factors."""
    rank, owner = dist.get_rank(), "index=all value=uniform_quant(bits=4) feedback=residual exchange=owner"
    for plan in ("index=all value=raw", EXACT_TOP, owner, "index=all value=half", "transform=lowrank(rank=2) feedback=residual", None):
        for first in (0, 2):  # the first slots have no room for frames
            reduce, given = AllReduce(plan, dense_below=0, timeout=10), lambda number: [x.view(-1, 20) for x in gradients(number, rank)]
            for number in range(first):
                reduce(given(number))
            reduce.start(given(first))
            reduce.cancel() if rank == 0 else reduce.finish()
            with raises(OutOfStep, "rank 0 is behind", f"step {first}"):
                reduce(given(first + 1))
            for number in (first + 2, first + 3):
                x = given(number)
                reduce(x)
                assert same_on_all_ranks(torch.cat([tensor.view(-1) for tensor in x])), plan


@check("two")
def ranks_decide_together_after_a_step_that_one_of_them_lost():
    rank, ladder = dist.get_rank(), ["index=all value=uniform_quant(bits=8) feedback=residual", EXACT_TOP]
    for dense in (False, True):
        reduce = AllReduce([None, *ladder] if dense else ladder, control="steps(each=3)", dense_below=0, timeout=10)
        for number in range(5):
            reduce(gradients(number, rank))
        with receiving(0, flip_a_frame), raises(deepreduce.CorruptFrame, "rank 1") if rank == 0 else contextlib.nullcontext():
            reduce(gradients(5, rank))  # and then a decision is due
        assert reduce.control.rung == 1 + dense
        with raises(OutOfStep, "rank 0 is behind", "step 5"):
            reduce(gradients(6, rank))
        reduce.start(gradients(7, rank))
        reduce.cancel() if rank == 0 else reduce.finish()
        with raises(OutOfStep, "rank 0 is behind", "step 7"):
            reduce(gradients(8, rank))
        for number in (9, 10):
            x = gradients(number, rank)
            reduce(x)
            assert same_on_all_ranks(torch.cat(x))


@check("two")
def a_lost_step_is_named_whatever_travels():
    """Rows, a dense frame, a reduce-scatter, and factors beside a frame."""
    rank = dist.get_rank()

    def rows():
        return torch.sparse_coo_tensor([[1, 2, 3]], torch.randn(3, 50), (20, 50))

    reduces = {
        "rows": (AllReduce(EXACT_TOP), lambda reduce: reduce({"0": rows()})),
        "dense": (AllReduce(None), lambda reduce: reduce([torch.randn(400)])),
        "factors": (
            AllReduce({"0": "transform=lowrank(rank=2) feedback=residual", "*": EXACT_TOP}, dense_below=0),
            lambda reduce: reduce([torch.randn(30, 20), torch.randn(900)]),
        ),
        "shards": (
            ReduceScatter(EXACT_TOP, dense_below=0),
            lambda reduce: reduce(torch.empty(2000), torch.randn(4000), dist.group.WORLD, dist.ReduceOp.AVG),
        ),
    }
    for name, (reduce, call) in reduces.items():
        for _ in range(3):
            call(reduce)
        with receiving(0, flip_a_frame), raises(deepreduce.CorruptFrame, "rank 1") if rank == 0 else contextlib.nullcontext():
            call(reduce)
        with raises(OutOfStep, "rank 0 is behind", "step 3"):
            call(reduce)
        call(reduce)
        assert reduce.state_dict()["step"] == 6, name


@check("two")
def a_state_says_that_its_rank_is_behind():
    """So does a hook that goes on from it; a state from the rank that is not behind is one that is not."""
    rank, hook = dist.get_rank(), DDPHook(EXACT_TOP, dense_below=0)
    ddp = wrapped(make_model(), hook, bucket_cap_mb=25)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    steps_of(ddp, optimizer, 0, 3)
    with receiving(0, flip_a_frame), raises(deepreduce.CorruptFrame, "rank 1") if rank == 0 else contextlib.nullcontext():
        steps_of(ddp, optimizer, 3, 4)
    states = [None, None]
    dist.all_gather_object(states, hook.state_dict())
    for recovered in (False, True):
        again = DDPHook(EXACT_TOP, dense_below=0)
        again.load_state_dict(state_for_new_rank(states[1]) if recovered and rank == 0 else states[rank])
        ddp = wrapped(make_model(), again, bucket_cap_mb=25)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        with contextlib.nullcontext() if recovered else raises(OutOfStep, "rank 0 is behind", "step 3"):
            steps_of(ddp, optimizer, 4, 6)
    assert same_on_all_ranks(parameters_of(ddp)) and again.state_dict()["step"] == 6


@check("two")
def a_damaged_head_names_its_rank():
    rank, reduce = dist.get_rank(), AllReduce(EXACT_TOP, dense_below=0)
    for _ in range(2):
        reduce(gradients(0, rank))
    for byte in range(20):

        def flip(slot, byte=byte):
            slot[byte] ^= 64

        with sending(1, flip), raises(deepreduce.CorruptFrame, "rank 1", "header of its slot"):
            reduce(gradients(1, rank))
    reduce(gradients(2, rank))


@check("two")
def ranks_that_call_exchanges_in_another_order_are_named():
    rank, reduces = dist.get_rank(), [AllReduce(EXACT_TOP, dense_below=0) for _ in range(2)]
    sizes = (3000, 3001)
    for reduce, size in zip(reduces, sizes):
        for step in range(2):
            reduce(gradients(step, 0, (size,)))
    with raises(deepreduce.ArgumentError, "rank 1 sends other tensors", "another order"):
        reduces[rank](gradients(2, 0, (sizes[rank],)))
