"""Frames that are made where the gradients are: here on an emulated device, whose memory is the CPU's."""

import warnings

import torch
import torch.distributed as dist
from torch_checks_faults import receiving
from torch_checks_others import shard, sharded_parameters
from torch_ranks import check, gradients, make_model, part_of, raises, same, same_on_all_ranks, steps_of, train

import deepreduce
from deepreduce.tensor import State
from deepreduce.torch import AllReduce, DDPHook, OutOfStep, ReduceScatter

TOP = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value="
PLANS = (
    TOP + "raw",
    TOP + "qsgd",
    "sparsify=topr(ratio=0.1) feedback=residual(beta=0.5,gamma=0.75) index=rice value=qsgd(levels=7)",
    "sparsify=topr(ratio=0.3) index=raw value=raw",
    "index=all value=uniform_quant(bits=8) feedback=residual",
)
OPTIONS = {"flat": False, "dense_below": 0}


def on_device(made, seed=0):
    made._emulated = seed
    return made


def states_of(saved):
    return {name: part["state"] for name, part in part_of(saved)["residuals"].items()}


def residual_of(state):
    return torch.from_numpy(State._from_bytes(state.numpy()).residual.copy())


@check("two")
def frames_made_on_a_device_have_the_bits_of_those_of_the_cpu():
    rank = dist.get_rank()
    for plan in PLANS:
        for dtype in (torch.float32, torch.bfloat16):
            for size in (4000, None):
                # (By default the tensors of a unit are one.)
                options = {"frame_bytes": size} if dtype == torch.bfloat16 else {**OPTIONS, "frame_bytes": size}
                here, there = AllReduce(plan, **options), on_device(AllReduce(plan, **options), 7)
                for number in range(4):
                    x, y = ([g.to(dtype) for g in gradients(number, rank)] for _ in range(2))
                    here(x)
                    there(y)
                    assert all(map(same, x, y)), (plan, dtype, number)
                there.check()
                assert (here.stats().place, there.stats().place) == ("cpu", "emulated")
                assert here.stats().memory == there.stats().memory
                mine, others = states_of(here.state_dict()), states_of(there.state_dict())
                assert mine.keys() == others.keys() and all(same(mine[name], others[name]) for name in mine), plan


@check("two")
def a_model_trains_alike_with_frames_made_on_a_device():
    for plan in PLANS[:2]:
        found = []
        for made in (DDPHook(plan), on_device(DDPHook(plan), 3)):
            found.append(train(made, 6, "SGD"))
            assert len(made._units) > 1 and made.stats().steps == 6
        assert same(*found) and same_on_all_ranks(found[1])


@check("two")
def parameters_that_go_exactly_stay_on_a_device_without_a_warning():
    for plan, options in (
        (PLANS[4], {}),  # by its default small ones do
        (TOP + "qsgd", {"flat": False, "dense_below": 1000}),
        ({"*.bias": None, "*": TOP + "qsgd"}, {}),
        (OWNER.replace("golomb", "all"), {}),
    ):
        here, there = DDPHook(plan, **options), on_device(DDPHook(plan, **options), 3)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found = [train(made, 4, "SGD") for made in (here, there)]
        words = [str(warning.message) for warning in seen]
        assert not any("on the CPU" in sentence for sentence in words), words
        assert same(*found) and same_on_all_ranks(found[1]), plan
        assert (here.stats().place, there.stats().place) == ("cpu", "emulated")
        assert sum(unit.frames for unit in there._sender.units) > len(there._sender.units)  # exact ones beside the others


@check("two")
def a_rank_that_cannot_encode_on_a_device_is_named_in_the_next_step():
    rank = dist.get_rank()
    plan = PLANS[1]
    here, there = AllReduce(plan, **OPTIONS, frame_bytes=4000), on_device(AllReduce(plan, **OPTIONS, frame_bytes=4000))

    def spoiled(number):
        x = gradients(number, rank)
        if rank == 1:
            x[2][17] = float("nan")
        return x

    for reduce in (here, there):
        reduce(gradients(0, rank))
    with raises(deepreduce.PeerError, "rank 1") as caught:
        here(spoiled(1))
    x, unit = spoiled(1), there._where["2"][0]
    before = states_of(there.state_dict())
    there(x)  # it does not know yet
    for item in unit.items:  # an optimizer uses zeros, the same on all ranks
        assert not x[int(item.name)].any(), item.name
    assert all(bool(x[int(item.name)].isfinite().all()) for other in there._units for item in other.items)
    given = gradients(2, rank)
    with raises(deepreduce.PeerError, "rank 1") as late:
        there(given)
    assert (str(caught[0]), caught[0].rank, caught[0].tensor) == (str(late[0]), late[0].rank, late[0].tensor)
    assert all(map(same, given, gradients(2, rank)))  # nothing was encoded
    # What was sent is in the residuals again.
    if rank == 0:
        after, expected = states_of(there.state_dict()), gradients(1, rank)
        for item in unit.items:
            old, new = residual_of(before[item.name]), residual_of(after[item.name])
            assert torch.allclose(new, old + expected[int(item.name)], atol=1e-6)
    assert there.state_dict()["step"] == 2  # the error was of step 1; this one has not begun
    for number in (3, 4):
        y = gradients(number, rank)
        there(y)
        assert same_on_all_ranks(torch.cat([part.view(-1) for part in y]))
    there.check()
    there(spoiled(5))
    with raises(deepreduce.PeerError, "rank 1"):
        there.check()
    there(gradients(6, rank))
    there.check()


@check("two")
def a_rank_that_alone_got_damaged_bytes_on_a_device_is_behind():
    rank = dist.get_rank()
    reduce = on_device(AllReduce(PLANS[0], **OPTIONS))
    reduce(gradients(0, rank))

    def flip(slots):
        slots[1, 200] ^= 4

    with receiving(0, flip):
        reduce(gradients(1, rank))
    if rank == 0:  # it knows first, and step 2 has not begun
        with raises(deepreduce.CorruptFrame, "rank 1"):
            reduce(gradients(2, rank))
    reduce(gradients(2, rank))
    with raises(OutOfStep, "rank 0 is behind", "did not complete step 1, which rank 1 completed", "copy") as caught:
        reduce(gradients(3, rank))
    assert (caught[0].rank, caught[0].ranks, caught[0].source, caught[0].step) == (0, (0,), 1, 1)
    for number in (3, 4):
        x = gradients(number, rank)
        reduce(x)
        assert same_on_all_ranks(torch.cat(x))
    reduce.check()


@check("two")
def a_step_on_a_device_that_is_canceled_goes_back():
    rank = dist.get_rank()
    reduce = on_device(AllReduce(PLANS[0], **OPTIONS, frame_bytes=4000))
    reduce(gradients(0, rank))
    before = states_of(reduce.state_dict())
    reduce.start(gradients(1, rank))
    reduce.cancel()
    after, given = states_of(reduce.state_dict()), gradients(1, rank)
    for name in before:
        assert torch.allclose(residual_of(after[name]), residual_of(before[name]) + given[int(name)], atol=1e-6)
    reduce(gradients(2, rank))
    reduce.check()


@check("two")
def a_checkpoint_moves_between_a_device_and_the_cpu():
    rank = dist.get_rank()
    first = on_device(AllReduce(PLANS[1], **OPTIONS))
    for number in range(3):
        first(gradients(number, rank))
    saved = first.state_dict()
    here, there = AllReduce(PLANS[1], **OPTIONS), on_device(AllReduce(PLANS[1], **OPTIONS), 2)
    for other in (here, there):
        other.load_state_dict(saved)
    first.scale_residuals(0.5)
    for other in (here, there):
        other.scale_residuals(0.5)
    for number in range(3, 5):
        found = [gradients(number, rank) for _ in range(3)]
        for reduce, x in zip((first, here, there), found):
            reduce(x)
        assert all(map(same, found[0], found[1])) and all(map(same, found[0], found[2]))
    there.reset()
    assert not any(bool(state.any()) for state in states_of(there.state_dict()).values())


@check("two")
def no_step_waits_for_a_device():
    rank = dist.get_rank()
    reduce = on_device(AllReduce(PLANS[1], **OPTIONS, frame_bytes=4000))
    x = gradients(0, rank)
    for _ in range(100):
        reduce(x)
    assert len(reduce._units) > 1 and reduce._sender.info.waits == 0
    total = reduce.stats().total
    assert 0 < total.frame < total.sent <= 100 * sum(unit.max_bytes for unit in reduce._units)
    reduce.state_dict()  # it does
    assert reduce._sender.info.waits > 0


@check("two")
def a_plan_without_a_path_on_a_device_is_named_once_and_runs_on_the_cpu():
    rank = dist.get_rank()
    for plan, options, words in (
        (TOP + "dynamic_tree", {}, "0: dynamic_tree runs on the CPU only"),
        ("index=golomb value=dynamic_tree feedback=residual exchange=owner", {}, "0: dynamic_tree runs on the CPU only"),
        (TOP + "qsgd", {"nonfinite": "skip"}, "DR_SENDER_SKIP runs on the CPU only"),
    ):
        here, there = AllReduce(plan, **OPTIONS, **options), on_device(AllReduce(plan, **OPTIONS, **options))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for number in range(2):
                x, y = gradients(number, rank), gradients(number, rank)
                here(x)
                there(y)
                assert all(map(same, x, y))
        found = [str(warning.message) for warning in seen if "frames are made on the CPU" in str(warning.message)]
        assert len(found) == (1 if rank == 0 else 0), found
        assert all(words in sentence and seen[0].filename == __file__ for sentence in found), (found, seen[0].filename)
        assert there.stats().place == "cpu"


@check("two")
def tensors_on_another_device_than_those_of_the_first_call_are_refused():
    """A device would read their addresses as its own. (The emulated one's memory is the CPU's, so the first call's device is
    renamed.)"""
    rank, reduce = dist.get_rank(), on_device(AllReduce(PLANS[1], **OPTIONS))
    reduce(gradients(0, rank))
    reduce._devices = {torch.device("cuda", 0)}
    with raises(deepreduce.ArgumentError, "tensor 0 is on cpu; frames are made on cuda:0, where all were in the first call"):
        reduce(gradients(1, rank))
    reduce._devices = {torch.device("cpu")}
    reduce(gradients(1, rank))
    reduce.check()
    assert reduce.state_dict()["step"] == 2


@check("two")
def all_reduce_raises_the_error_of_its_only_step():
    rank = dist.get_rank()
    on_device(AllReduce)
    try:
        with raises(deepreduce.PeerError, "rank 1: "):
            deepreduce.torch.all_reduce([torch.full((4000,), float("nan") if rank else 1.0)], "index=all value=qsgd", dense_below=0)
    finally:
        on_device(AllReduce, None)


# ---- exchange=owner -----------------------------------------------------------------------------

OWNER = "index=golomb value=uniform_quant(bits=4) feedback=residual exchange=owner"


@check("two")
def sums_made_on_a_device_have_the_bits_of_those_of_the_cpu():
    rank = dist.get_rank()
    for plan in (OWNER, OWNER.replace("golomb", "all"), TOP + "qsgd exchange=owner"):
        for dtype in (torch.float32, torch.bfloat16):
            here, there = AllReduce(plan, **OPTIONS, frame_bytes=4000), on_device(AllReduce(plan, **OPTIONS, frame_bytes=4000), 3)
            for number in range(4):
                x, y = ([g.to(dtype) for g in gradients(number, rank)] for _ in range(2))
                here(x)
                there(y)
                assert all(map(same, x, y)), (plan, dtype, number)
            assert here.stats().total.frame - here.stats().last.frame == there.stats().total.frame  # a step later
            there.check()
            assert there.stats().place == "emulated" and {unit.kind for unit in there._units} == {"owner"}
            assert here.stats().memory == there.stats().memory
            mine, others = part_of(here.state_dict()), part_of(there.state_dict())
            assert all(same(mine["sums"][name], others["sums"][name]) for name in mine["sums"])
            assert all(same(mine["residuals"][name]["state"], others["residuals"][name]["state"]) for name in mine["residuals"])
            again = AllReduce(plan, **OPTIONS, frame_bytes=4000)
            again.load_state_dict(there.state_dict())
            x, y = ([g.to(dtype) for g in gradients(9, rank)] for _ in range(2))
            again(x)
            there(y)
            assert all(map(same, x, y))


@check("two")
def a_model_trains_alike_with_sums_made_on_a_device():
    hooks = DDPHook(OWNER, dense_below=0), on_device(DDPHook(OWNER, dense_below=0), 3)
    found = [train(made, 6, "SGD") for made in hooks]
    assert same(*found) and same_on_all_ranks(found[1]) and hooks[1].stats().place == "emulated"


@check("two")
def a_rank_that_cannot_encode_for_an_owner_on_a_device_is_named_in_the_next_step():
    rank = dist.get_rank()
    here, there = AllReduce(OWNER, **OPTIONS), on_device(AllReduce(OWNER, **OPTIONS))

    def spoiled(number):
        x = gradients(number, rank)
        if rank == 1:
            x[2][17] = float("nan")
        return x

    for reduce in (here, there):
        reduce(gradients(0, rank))
    with raises(deepreduce.PeerError, "rank 1") as caught:
        here(spoiled(1))
    x = spoiled(1)
    there(x)
    assert not any(bool(part.any()) for part in x)
    with raises(deepreduce.PeerError, "rank 1") as late:
        there(gradients(2, rank))
    assert (str(caught[0]), caught[0].rank, caught[0].tensor) == (str(late[0]), late[0].rank, late[0].tensor)
    for number in (2, 3):
        y = gradients(number, rank)
        there(y)
        assert same_on_all_ranks(torch.cat([part.view(-1) for part in y]))
    there.check()


@check("two")
def no_step_by_owners_waits_for_a_device():
    rank = dist.get_rank()
    reduce = on_device(AllReduce(OWNER, **OPTIONS, frame_bytes=4000))
    x = gradients(0, rank)
    for _ in range(100):
        reduce(x)
    assert len(reduce._units) > 1 and reduce._sender.info.waits == 0
    total = reduce.stats().total
    assert 0 < total.frame < total.sent + 100 * sum(unit.max_bytes for unit in reduce._units)
    reduce.check()


# ---- ReduceScatter ------------------------------------------------------------------------------

SHARD = 2001  # so that the second one begins anywhere


def scatter_of(comm, number, dtype=torch.float32, op=dist.ReduceOp.AVG, spoiled=()):
    """This rank's shard, of the gradients of a step. spoiled: (rank, element) of a NaN"""
    n, rank = dist.get_world_size(), dist.get_rank()
    whole, out = torch.cat(gradients(number, rank, (SHARD,) * n)).to(dtype), torch.ones(SHARD, dtype=dtype)
    if spoiled and spoiled[0] == rank:
        whole[spoiled[1]] = float("nan")
    comm(out, whole, dist.group.WORLD, op)
    return out


def scatters(plan, seed=0):
    return ReduceScatter(plan, dense_below=0), on_device(ReduceScatter(plan, dense_below=0), seed)


def state_of(comm):
    (state,) = part_of(comm.state_dict())["states"]
    return state


@check("two")
def shards_made_on_a_device_have_the_bits_of_those_of_the_cpu():
    for plan in (*PLANS, "index=golomb value=uniform_quant(bits=4) feedback=residual"):
        for dtype in (torch.float32, torch.bfloat16):
            for op in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
                here, there = scatters(plan, 5)
                for number in range(3):
                    assert torch.equal(*(scatter_of(comm, number, dtype, op) for comm in (here, there))), (plan, dtype, op, number)
                there.check()
                assert (here.stats().place, there.stats().place) == ("cpu", "emulated")
                assert here.stats().memory == there.stats().memory and here.stats().total.frame == there.stats().total.frame
                if here._keeps:
                    assert same(state_of(here), state_of(there)) and here.metrics()["residual_norm"] == there.metrics()["residual_norm"]


@check("two")
def shards_that_go_exactly_are_made_on_a_device_without_a_warning():
    for plan, options in ((None, {}), (TOP + "qsgd", {"dense_below": SHARD + 1})):
        here, there = ReduceScatter(plan, **options), on_device(ReduceScatter(plan, **options), 5)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for number in range(2):
                assert torch.equal(*(scatter_of(comm, number) for comm in (here, there))), (plan, number)
        assert not any("on the CPU" in str(warning.message) for warning in seen)
        assert (here.stats().place, there.stats().place) == ("cpu", "emulated")
        there.check()


@check("two")
def fsdp2_trains_alike_with_shards_made_on_a_device():
    for plan in PLANS[:2]:
        found = []
        for seed in (None, 4):
            model, comms = shard(make_model(), plan)
            for comm in comms:
                comm._emulated = seed
            steps_of(model, torch.optim.SGD(model.parameters(), lr=0.01), 0, 4)
            for comm in comms:
                comm.check()
            found.append(sharded_parameters(model))
        assert same(*found) and same_on_all_ranks(found[1])
        assert all(comm.stats().place == "emulated" and comm.stats().steps == 4 for comm in comms)


@check("two")
def a_rank_that_cannot_encode_a_shard_on_a_device_is_named_by_the_next_call():
    here, there = scatters(PLANS[1])
    for comm in (here, there):
        scatter_of(comm, 0)
    spoiled = (1, SHARD + 17)  # rank 0 gets nothing of that shard
    with raises(deepreduce.PeerError, "rank 1", "from element 2001 on", "NaN") as caught:
        scatter_of(here, 1, spoiled=spoiled)
    assert not scatter_of(there, 1, spoiled=spoiled).any()  # it does not know yet
    out = torch.ones(SHARD)
    with raises(deepreduce.PeerError, "rank 1") as late:
        there(out, torch.zeros(SHARD * 2), dist.group.WORLD, dist.ReduceOp.AVG)
    assert (str(caught[0]), caught[0].rank) == (str(late[0]), late[0].rank)
    assert bool((out == 1).all()) and there.state_dict()["step"] == 2  # that call has not begun
    if dist.get_rank() == 0:  # (of its shard the other keeps the sum of gradient and residual, on a device)
        assert same(state_of(here), state_of(there))
    for number in (2, 3):
        scatter_of(there, number)
    there.check()
    scatter_of(there, 4, spoiled=spoiled)
    with raises(deepreduce.PeerError, "rank 1"):
        there.check()
    scatter_of(there, 5)
    there.check()


@check("two")
def a_rank_that_alone_got_a_damaged_shard_on_a_device_is_behind():
    rank, comm = dist.get_rank(), scatters(PLANS[0])[1]
    scatter_of(comm, 0)

    def flip(slots):
        slots[1, 200] ^= 4

    with receiving(0, flip):
        scatter_of(comm, 1)
    if rank == 0:
        with raises(deepreduce.CorruptFrame, "rank 1"):
            scatter_of(comm, 2)
    scatter_of(comm, 2)
    with raises(OutOfStep, "rank 0 is behind", "did not complete step 1, which rank 1 completed") as caught:
        scatter_of(comm, 3)
    assert (caught[0].rank, caught[0].ranks, caught[0].source, caught[0].step) == (0, (0,), 1, 1)
    for number in (3, 4):
        scatter_of(comm, number)
    comm.check()


@check("two")
def a_checkpoint_of_shards_moves_between_a_device_and_the_cpu():
    _, first = scatters(PLANS[1])
    for number in range(2):
        scatter_of(first, number)
    (here, there), (back, _) = scatters(PLANS[1], 2), scatters(PLANS[1])
    for comm in (here, there):
        comm.load_state_dict(first.state_dict())
    for number in (2, 3):
        found = [scatter_of(comm, number) for comm in (first, here, there)]
        assert same(found[0], found[1]) and same(found[0], found[2])
    back.load_state_dict(there.state_dict())
    assert same(scatter_of(back, 4), scatter_of(there, 4))


@check("two")
def no_reduce_scatter_waits_for_a_device():
    comm = scatters(PLANS[1])[1]
    for number in range(100):
        scatter_of(comm, number % 7)
    assert comm._sender.info.waits == 0
    total = comm.stats().total
    assert 0 < total.frame < 2 * total.sent == 200 * comm._unit.max_bytes and comm.stats().steps == 100
    comm.check()
    comm.state_dict()  # it does
    assert comm._sender.info.waits > 0


@check("two")
def shards_by_a_plan_without_a_path_on_a_device_go_through_the_cpu_with_one_warning():
    here, there = scatters(TOP + "dynamic_tree")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for number in range(2):
            assert same(scatter_of(here, number), scatter_of(there, number))
    found = [warning for warning in seen if "frames are made on the CPU" in str(warning.message)]
    assert len(found) == (1 if dist.get_rank() == 0 else 0)
    assert all("the gradient: dynamic_tree runs on the CPU only" in str(one.message) and one.filename == __file__ for one in found)
    assert there.stats().place == "cpu"


@check("two")
def shards_elsewhere_are_copied_and_their_slots_go_there():
    """Like a GPU with NCCL of which the plan makes no use, except that everything is in the CPU's memory."""
    from deepreduce.torch import _engine

    plan = TOP + "dynamic_tree"
    here, there = ReduceScatter(plan, dense_below=0), ReduceScatter(plan, dense_below=0)
    for number in range(3):
        expected = scatter_of(here, number)
        _engine.HOST.clear()
        try:
            assert same(scatter_of(there, number), expected)
        finally:
            _engine.HOST.add("cpu")
    assert not there._unit._is_here and there._unit._device is not None
