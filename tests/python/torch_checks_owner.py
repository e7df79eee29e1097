"""exchange=owner over torch.distributed, and states that releases before the sender saved."""

import math
import pathlib

import torch
import torch.distributed as dist
from torch_ranks import check, gradients, make_model, parameters_of, raises, same, same_on_all_ranks, steps_of, train, wrapped

import deepreduce
from deepreduce import State
from deepreduce.torch import AllReduce, DDPHook, OutOfStep, ReduceScatter, _slots, state_for_new_rank

BITS4 = "index=all value=uniform_quant(bits=4) feedback=residual"
FILES = pathlib.Path(__file__).parent / "torch_states"


def sent_by(plan, steps=4, sizes=(100000, 400)):
    reduce = AllReduce(plan)
    for step in range(steps):
        x = gradients(step, dist.get_rank(), sizes)
        reduce(x)
        assert same_on_all_ranks(torch.cat(x))
    return reduce.stats().last.sent, x


@check("two", "four")
def owners_give_all_ranks_the_same_bits_near_the_mean():
    sizes = (30000, 400)
    x = gradients(7, dist.get_rank(), sizes)
    mean = torch.cat(x)
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    reduce = AllReduce(BITS4 + " exchange=owner")
    reduce(x)
    assert reduce._units[0].kind == "owner" and same_on_all_ranks(torch.cat(x))
    assert float((torch.cat(x) - mean).norm() / mean.norm()) < 0.4


@check("four")
def the_bytes_of_a_rank_with_owners_do_not_grow_with_the_ranks():
    n = dist.get_world_size()
    owner, _ = sent_by(BITS4 + " exchange=owner")
    gathered, _ = sent_by(BITS4)
    # Twice (n - 1) / n of a frame, rather than n - 1 of it. (A sum has fewer large values, so it takes more bits.)
    assert owner < 1.5 * gathered * 2 / n, (owner, gathered)


@check("two")
def ddp_trains_with_owners_and_goes_on_from_a_saved_state_bit_for_bit():
    plan = BITS4 + " exchange=owner"
    whole = train(DDPHook(plan, dense_below=0), 6, "SGD")
    hook = DDPHook(plan, dense_below=0)
    model = make_model()
    ddp = wrapped(model, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    steps_of(ddp, optimizer, 0, 3)
    state = hook.state_dict()
    part = state[f"rank{dist.get_rank()}"]
    assert any(bool(residual.any()) for residual in part["sums"].values())
    again = DDPHook(plan, dense_below=0)
    again.load_state_dict(state)
    after = wrapped(model, again)
    steps_of(after, torch.optim.SGD(after.parameters(), lr=0.01), 3, 6)
    assert same(parameters_of(after), whole) and same_on_all_ranks(whole)
    mine = again.state_dict()[f"rank{dist.get_rank()}"]
    own = [part["state"] if isinstance(part, dict) else part for field in ("residuals", "sums") for part in mine[field].values()]
    norms = [State._from_bytes(state.numpy()).norm() for state in own]
    assert again.stats().memory > 0 and abs(again.metrics()["residual_norm"] / math.hypot(*norms) - 1) < 1e-12
    again.scale_residuals(2.0)
    again.reset()
    assert again.metrics()["residual_norm"] == 0


def still_to_come(reduce, group=None):
    """[d] what later means of a group have besides their gradients: the mean of its residuals, and what owners kept of sums. f64"""
    n, found = dist.get_world_size(group), []
    sums = reduce._owned_states("sums")
    for name, state in reduce._all_states().items():
        parts = [(state, n), *([(sums[name], 1)] if name in sums else [])]
        found.append(sum(torch.from_numpy(part.residual.copy()).double() / by if part.memory.any() else torch.zeros(reduce._elements(name)) for part, by in parts))
    whole = torch.cat(found).double()
    dist.all_reduce(whole, group=group)
    return whole


@check("four")
def what_owners_kept_of_sums_is_loaded_by_another_number_of_ranks_and_by_other_owners():
    rank, plan = dist.get_rank(), BITS4 + " exchange=owner"
    pair, trio = dist.new_group([0, 1]), dist.new_group([0, 1, 2])

    def made(group, first=0, **options):
        reduce = AllReduce(options.pop("plan", plan), dense_below=0, group=group, **options)
        for step in range(first, first + 3):
            reduce(gradients(step, rank))
        return reduce

    for old, new, options in ((None, pair, {}), (pair, None, {}), (None, trio, {}), (None, None, {"frame_bytes": 4000}), (None, None, {"plan": BITS4})):
        before, after = (dist.get_world_size(group) for group in (old or dist.group.WORLD, new or dist.group.WORLD))
        state, expected = None, torch.zeros(3540, dtype=torch.float64)
        if rank < before:
            saver = made(old)
            state, expected = saver.state_dict(), still_to_come(saver, old)
            owned = torch.tensor(float(any(sums.memory.any() and sums.residual.any() for sums in saver._owned_states("sums").values())))
            dist.all_reduce(owned, group=old)
            assert owned > 1
        states = [None] * 4
        dist.all_gather_object(states, state)
        dist.broadcast(expected, 0)
        if rank < after:
            loaded = made(new, 9, **options)
            if rank < before:
                loaded.load_state_dict({**{key: value for other in states[:before] for key, value in other.items()}, **state})
            else:
                loaded.load_state_dict(state_for_new_rank(states[0]))
            assert torch.allclose(still_to_come(loaded, new), expected, rtol=1e-5, atol=1e-6), (before, after, options)
            x = gradients(3, rank)
            loaded(x)
            first = torch.cat(x)
            dist.broadcast(first, 0, group=new)
            assert same(first, torch.cat(x))
            single = still_to_come(loaded, new)
            loaded.scale_residuals(2.0)
            assert torch.equal(still_to_come(loaded, new), 2 * single)
        dist.barrier()


@check("two")
def sums_that_no_owner_kept_are_refused_and_change_nothing():
    rank, plan = dist.get_rank(), BITS4 + " exchange=owner"
    reduce = AllReduce(plan, dense_below=0)
    for step in range(3):
        reduce(gradients(step, rank))
    state, own = reduce.state_dict(), f"rank{rank}"
    name, saved = next(iter(state[own]["sums"].items()))
    spoiled, other = saved.clone(), state[own]["sums"]["1"]
    spoiled[-4:] = torch.tensor([0, 0, 0xC0, 0x7F], dtype=torch.uint8)
    for words, sums in [
        ("not finite", {name: spoiled}), ("is not a tensor of bytes", {name: None}), ("no such tensor", {"9": saved}),
        (f"the sums of {name} are of", {name: other}), (f"the sums of {name}", {name: torch.ones_like(saved)}),
    ]:  # fmt: skip
        with raises(deepreduce.ArgumentError, words):
            reduce.load_state_dict({**state, "step": 9, own: {"residuals": {}, "sums": {**state[own]["sums"], **sums}}})
        now = reduce.state_dict()
        assert now["step"] == 3 and all(same(now[own]["sums"][tensor], sums) for tensor, sums in state[own]["sums"].items()), words
        assert all(same(now[own]["residuals"][tensor]["state"], residual["state"]) for tensor, residual in state[own]["residuals"].items()), words


@check("two")
def a_nan_before_an_owner_is_named_by_all_and_nothing_of_the_others_is_lost():
    rank, plan = dist.get_rank(), BITS4 + " exchange=owner"
    reduce = AllReduce(plan, dense_below=0)
    for step in range(2):
        reduce({"a": gradients(step, rank, (3000,))[0], "b": gradients(step + 9, rank, (500,))[0]})
    before = {name: torch.from_numpy(state.residual.copy()) for name, state in reduce._all_states().items()}
    x = {"a": gradients(2, rank, (3000,))[0], "b": gradients(11, rank, (500,))[0]}
    given = {name: tensor.clone() for name, tensor in x.items()}
    if rank == 1:
        x["b"][3] = float("nan")
    with raises(deepreduce.PeerError, "rank 1: could not encode", "b:") as caught:
        reduce(x)
    assert caught[0].rank == 1 and caught[0].tensor == "b"
    if rank == 0:
        for name, state in reduce._all_states().items():
            assert torch.allclose(torch.from_numpy(state.residual), before[name] + given[name], atol=1e-4), name
    x = {name: tensor.clone() for name, tensor in given.items()}
    reduce(x)
    assert same_on_all_ranks(torch.cat(list(x.values())))


@check("two")
def a_slot_that_is_damaged_on_its_way_to_an_owner_fails_all_ranks():
    swap, plan = _slots.all_to_all, BITS4 + " exchange=owner"
    reduce = AllReduce(plan, dense_below=0)
    reduce(gradients(0, 0))

    def flipping(group, timeout, receive, send):
        send = send.clone()
        send[60] ^= 4  # in the frame for rank 0
        return swap(group, timeout, receive, send)

    if dist.get_rank() == 1:
        _slots.all_to_all = flipping
    try:
        with raises(deepreduce.PeerError, "rank 1: ") as caught:
            reduce(gradients(1, 0))
    finally:
        _slots.all_to_all = swap
    assert caught[0].rank == 1
    x = gradients(2, 0)
    reduce(x)
    assert same_on_all_ranks(torch.cat(x))


@check("two")
def ranks_at_other_steps_are_found_before_an_owner_adds_up():
    rank, reduce = dist.get_rank(), AllReduce(BITS4 + " exchange=owner", dense_below=0)
    reduce(gradients(0, 0))
    reduce._number += rank  # as after a state of another step
    with raises(OutOfStep, "rank 0 is at step 1, rank 1 at step 2") as caught:
        reduce(gradients(1, 0))
    assert caught[0].ranks == (0,) and caught[0].source == 1 and caught[0].step is None


@check("two")
def states_that_were_saved_before_the_sender_go_on_with_the_same_bits():
    """Written by 8ca0c0fe: three steps of an AllReduce and a ReduceScatter, and what it made of the fourth."""
    rank = dist.get_rank()
    saved = torch.load(FILES / f"torch_state_v2_rank{rank}.pt", weights_only=True)
    plan = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=raw"
    reduce, scatter = AllReduce({"1": "dgc", "*": plan}, dense_below=0), ReduceScatter(plan, dense_below=0)
    reduce.load_state_dict(saved["reduce"])
    scatter.load_state_dict(saved["scatter"])
    x = gradients(3, rank, (300, 40, 500))
    reduce(x)
    out = torch.empty(300)
    scatter(out, gradients(53, rank, (600,))[0], dist.group.WORLD, dist.ReduceOp.AVG)
    for ours, theirs in zip([*x, out], saved["next"]):
        assert same(ours, theirs)
    assert reduce.state_dict()["step"] == scatter.state_dict()["step"] == 4
