"""What ranks know of one another after a fault that one of them alone has met."""

import contextlib

import torch
import torch.distributed as dist
from torch_ranks import check, gradients, raises, same

import deepreduce
from deepreduce import _torch_unit
from deepreduce.torch import AllReduce

EXACT_TOP = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=raw"


@contextlib.contextmanager
def sending(rank, change):
    """On that rank `change` gets each slot before it is sent."""
    gather = _torch_unit.all_gather

    def changed(group, timeout, receive, send):
        change(send)
        return gather(group, timeout, receive, send)

    if dist.get_rank() == rank:
        _torch_unit.all_gather = changed
    try:
        yield
    finally:
        _torch_unit.all_gather = gather


@check("two")
def a_rank_whose_own_slot_is_damaged_numbers_the_step_as_all_do():
    rank, reduce = dist.get_rank(), AllReduce(EXACT_TOP, bypass=0, frame_bytes=4000)
    reduce(gradients(0, rank))
    before = [state.residual.copy() for state in reduce._states.values()]

    def flip(slot):  # the last unit's, in the memory that is taken back, too
        if len(slot) == len(reduce._units[-1]._send[: reduce._units[-1]._slot]) and slot.data_ptr() == reduce._units[-1]._at:
            slot[60] ^= 4

    with sending(1, flip), raises(deepreduce.CorruptFrame, "rank 1") as caught:
        reduce(gradients(1, rank))
    assert caught[0].rank == 1 and reduce.state_dict()["step"] == 2
    # All units but the damaged one have the step's gradient in their residuals.
    given = gradients(1, rank)
    for name, old in zip(reduce._states, before):
        kept = torch.from_numpy(reduce._states[name].residual)
        damaged = rank == 1 and name in [item.name for item in reduce._units[-1].items]
        assert torch.allclose(kept, torch.from_numpy(old) + given[int(name)], atol=1e-6) != damaged, name
    x = gradients(2, rank)
    reduce(x)
    other = x[0].clone()
    dist.broadcast(other, 0)
    assert same(other, x[0]) and reduce.state_dict()["step"] == 3
