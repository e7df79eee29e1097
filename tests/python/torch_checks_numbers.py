"""Halves and factors that are made where the gradients are: here on a device whose memory is the CPU's."""

import contextlib
import copy
import warnings

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch_ranks import check, gradients, part_of, raises, same, same_on_all_ranks, train

import deepreduce
from deepreduce.tensor import State
from deepreduce.torch import AllReduce, DDPHook, OutOfStep
from torch_checks_device import on_device, residual_of, states_of

BF16, F16 = "index=all value=half(type=bf16)", "index=all value=half"
HALVES = (BF16, F16, f"{BF16} feedback=residual", f"{F16} feedback=residual")
TYPES = (torch.float32, torch.float16, torch.bfloat16)
TOP = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=qsgd"


def whole(tensors):
    return torch.cat([tensor.reshape(-1).float() for tensor in tensors])


def all_equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def both(plan, **options):
    """AllReduces whose numbers are made on the CPU and on a device."""
    return AllReduce(plan, **options), on_device(AllReduce(plan, **options))


@check("numbers", "four")
def halves_made_on_a_device_have_the_bits_of_those_of_the_cpu():
    rank = dist.get_rank()
    two = dist.get_world_size() == 2
    for plan in HALVES:
        for dtype in TYPES if two else TYPES[:1]:
            for options in ({"frame_bytes": 4000}, {}) if two else ({},):
                here, there = both(plan, **options)
                for number in range(4):
                    # (Some are too large for f16, some are as small as numbers get.)
                    scales, limit = (1e5, 1e-6, 1.0), torch.finfo(dtype).max
                    x, y = ([(g * scale).clamp(-limit, limit).to(dtype) for g, scale in zip(gradients(number, rank), scales)] for _ in range(2))
                    here(x)
                    there(y)
                    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(x, y)), (plan, dtype, number)
                there.check()
                mine, others = here.stats(), there.stats()
                assert (mine.place, others.place) == ("cpu", "emulated") and mine.memory == others.memory
                for field in ("sent", "received", "frame", "dense"):
                    assert getattr(mine.total, field) == getattr(others.total, field), field
                assert all_equal(states_of(here.state_dict()), states_of(there.state_dict())), plan


@check("numbers")
def a_model_trains_alike_with_halves_made_on_a_device():
    for plan in (BF16, f"{F16} feedback=residual"):
        for dtype in (None, torch.bfloat16):
            found = []
            for hook in (DDPHook(plan), on_device(DDPHook(plan))):
                found.append(train(hook, 6, "SGD", dtype))
                assert len(hook._units) > 1 and hook.stats().steps == 6
            assert same(*found) and same_on_all_ranks(found[1])


@check("numbers")
def halves_beside_frames_on_a_device_have_the_bits_of_those_of_the_cpu():
    rank, plans = dist.get_rank(), [("0", f"{BF16} feedback=residual"), ("1", TOP), ("*", F16)]
    here, there = both(plans, dense_below=0, flat=False, seed=5)
    for number in range(4):
        x, y = gradients(number, rank), gradients(number, rank)
        here(x)
        there(y)
        assert all(map(same, x, y)), number
    there.check()
    assert {unit.kind for unit in there._units} == {"halves", "frames"} and there.stats().place == "emulated"
    assert here.stats().memory == there.stats().memory
    assert all_equal(states_of(here.state_dict()), states_of(there.state_dict()))


def spoiled(number, rank, at, value=float("nan")):
    """The gradients, of which one of rank 1 is not finite."""
    x = gradients(number, rank)
    if rank == 1:
        x[at][17] = value
    return x


@check("numbers")
def a_rank_whose_half_is_not_finite_on_a_device_is_named_in_the_next_step():
    rank = dist.get_rank()
    for plan in (f"{BF16} feedback=residual", F16):
        here, there = both(plan, frame_bytes=2200)  # tensors 1 and 2 are one unit
        for reduce in (here, there):
            reduce(gradients(0, rank))
        with raises(deepreduce.PeerError, "rank 1") as caught:
            here(spoiled(1, rank, 2, float("inf")))
        x, before = spoiled(1, rank, 2, float("inf")), states_of(there.state_dict())
        there(x)  # it does not know yet
        assert x[0].any() and not x[1].any() and not x[2].any()  # an optimizer uses zeros, the same on all ranks
        given = gradients(2, rank)
        with raises(deepreduce.PeerError, "rank 1") as late:
            there(given)
        assert (str(caught[0]), caught[0].rank, caught[0].tensor) == (str(late[0]), late[0].rank, late[0].tensor)
        assert all(map(same, given, gradients(2, rank)))  # nothing was encoded
        after, sent = states_of(there.state_dict()), gradients(1, rank)
        for name in ("1", "2") if before else ():  # of rank 1 the gradient of the step is lost
            assert torch.equal(residual_of(after[name]), residual_of(before[name]) + sent[int(name)] * (rank == 0))
        assert there.state_dict()["step"] == 2
        for number in (3, 4):
            y = gradients(number, rank)
            there(y)
            assert same_on_all_ranks(whole(y))
        there.check()
        there(spoiled(5, rank, 0))
        with raises(deepreduce.PeerError, "rank 1: 0: "):
            there.check()
        there(gradients(6, rank))
        there.check()
        assert there._engine.failures == there._sender.info.failures == 2


@check("numbers")
def a_fault_of_one_kind_of_unit_counts_for_all_units_of_a_device():
    rank = dist.get_rank()
    reduce = on_device(AllReduce([("0", f"{BF16} feedback=residual"), ("*", TOP)], dense_below=0, flat=False))
    reduce(gradients(0, rank))
    for number, at in ((1, 0), (2, 1), (3, 0)):
        x = spoiled(number, rank, at)
        reduce(x)
        assert [bool(tensor.any()) for tensor in x] == ([False, True, True] if at == 0 else [True, False, False])
        with raises(deepreduce.PeerError, "rank 1: ", f"{at}: "):
            reduce.check()
        info = reduce._sender._frames.info
        assert (info.failures, info.failed) == tuple(reduce._sender.counts) == (number, number)
    y = gradients(4, rank)
    reduce(y)
    reduce.check()
    assert same_on_all_ranks(whole(y))


@contextlib.contextmanager
def summing(rank, change):
    """On that rank `change` gets what an all-reduce returned, before it is looked at."""
    from deepreduce.torch._engine import Engine

    issue, wait, pending = Engine.issue, Engine.wait, {}

    def noting(self, what, collective, *tensors):
        work = issue(self, what, collective, *tensors)
        pending[id(work)] = tensors[0]
        return work

    def changed(self, what, work, deadline):
        wait(self, what, work, deadline)
        change(pending.pop(id(work)))

    if dist.get_rank() == rank:
        Engine.issue, Engine.wait = noting, changed
    try:
        yield
    finally:
        Engine.issue, Engine.wait = issue, wait


@check("numbers")
def a_rank_that_alone_got_damaged_sums_on_a_device_is_behind():
    rank = dist.get_rank()
    for plan in (f"{BF16} feedback=residual", "transform=lowrank(rank=2) feedback=residual"):
        reduce = on_device(AllReduce(plan))
        given = lambda number: [x.view(-1, 20) for x in gradients(number, rank)]
        reduce(given(0))

        def damage(sums):  # rank 1's head is the last one
            if sums.numel() % 2 == 0:
                sums[-3] += 1

        with summing(0, damage):
            x = given(1)
            reduce(x)
        assert bool(whole(x).any()) == (rank == 1)
        if rank == 0:  # it knows first, and step 2 has not begun
            with raises(deepreduce.CorruptFrame, "rank 1: its head among the sums is damaged"):
                reduce(given(2))
        reduce(given(2))
        with raises(OutOfStep, "rank 0 is behind", "did not complete step 1, which rank 1 completed", "copy") as caught:
            reduce(given(3))
        assert (caught[0].rank, caught[0].ranks, caught[0].source, caught[0].step) == (0, (0,), 1, 1)
        for number in (3, 4):
            x = given(number)
            reduce(x)
            assert same_on_all_ranks(whole(x))
        reduce.check()


@check("numbers")
def numbers_of_ranks_out_of_step_on_a_device_are_told_as_on_the_cpu():
    for plan in (BF16, "transform=lowrank(rank=1)"):
        found = []
        for reduce in both(plan):
            reduce(gradients(0, 0))
            if dist.get_rank() == 1:
                reduce._number += 1
            with raises(OutOfStep, "rank 0 is at step 1, rank 1 at step 2") as caught:
                reduce(gradients(1, 0))
                reduce.check()
            found.append(str(caught[0]))
        assert found[0] == found[1]


@check("numbers")
def a_step_of_numbers_that_is_canceled_goes_back():
    rank = dist.get_rank()
    for plan in (f"{BF16} feedback=residual", "transform=lowrank(rank=2) feedback=residual"):
        for reduce in both(plan, dense_below=0):
            given = lambda number: [x.view(-1, 20) for x in gradients(number, rank)]
            reduce(given(0))
            before = states_of(reduce.state_dict())
            reduce.start(given(1))
            reduce.cancel()
            after, sent = states_of(reduce.state_dict()), given(1)
            for name in before:
                old = residual_of(before[name]) if before[name].any() else 0
                left = residual_of(after[name]) - old - sent[int(name)].view(-1)
                dist.all_reduce(left)  # (of factors their mean goes back, in equal parts)
                assert left.abs().max() < 1e-5
            for number in range(2, 6):
                x = given(number)
                reduce.start(x)
                reduce.cancel()
            x = given(6)
            reduce(x)
            reduce.check()
            assert same_on_all_ranks(whole(x))


@check("numbers")
def halves_of_a_checkpoint_move_between_a_device_and_the_cpu():
    rank, plan = dist.get_rank(), f"{BF16} feedback=residual"
    first = on_device(AllReduce(plan))
    for number in range(3):
        first(gradients(number, rank))
    saved = copy.deepcopy(first.state_dict())
    here, there = both(plan)
    for other in (here, there):
        other.load_state_dict(saved)
    for other in (first, here, there):
        other.scale_residuals(0.3)
    for number in range(3, 5):
        found = [gradients(number, rank) for _ in range(3)]
        for reduce, x in zip((first, here, there), found):
            reduce(x)
        assert all(map(same, found[0], found[1])) and all(map(same, found[0], found[2]))
    assert all_equal(states_of(here.state_dict()), states_of(there.state_dict()))
    there.reset()
    assert not any(bool(state.any()) for state in states_of(there.state_dict()).values())
    state = State._from_bytes(saved[f"rank{rank}"]["residuals"]["0"]["state"].numpy())
    saved[f"rank{rank}"]["residuals"]["0"]["state"] = torch.from_numpy(state.memory[:-4].copy())
    with raises(deepreduce.ArgumentError, "the state of 0 has"):
        there.load_state_dict(saved)


class NoWaits(TorchDispatchMode):
    """Refuses what would wait for a device: a number for the host, or a copy to another device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        waits = ("_local_scalar_dense", "aten.item", "nonzero", "masked_select", "is_nonzero", "equal.default", "unique")
        assert not any(word in name for word in waits), name
        devices = {x.device for x in [*args, *(kwargs or {}).values()] if isinstance(x, torch.Tensor)}
        assert len(devices) <= 1 and (kwargs or {}).get("device") in (None, torch.device("cpu"), "cpu"), name
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def no_waits():
    """Nothing in it waits for a device. (numpy() and tolist() of the CPU's tensors dispatch nothing.)"""
    names, hidden = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__"), {}

    def refused(name):
        def call(self, *args, **kwargs):
            raise AssertionError(f"{name}() of a tensor waits for a device")

        return call

    for name in names:
        hidden[name] = torch.Tensor.__dict__.get(name)
        setattr(torch.Tensor, name, refused(name))
    try:
        with NoWaits():
            yield
    finally:
        for name, old in hidden.items():
            delattr(torch.Tensor, name) if old is None else setattr(torch.Tensor, name, old)


@check("numbers")
def no_step_of_numbers_waits_for_a_device():
    rank = dist.get_rank()
    plans = (*HALVES, "transform=lowrank(rank=2)", "transform=lowrank(rank=2) feedback=residual(beta=0.9,gamma=0.5)")
    for i, plan in enumerate(plans):
        for dtype in dict.fromkeys([torch.float32, TYPES[i % 3]]):
            reduce = on_device(AllReduce(plan, frame_bytes=9000 if dtype == torch.float32 else 4000))
            x = [tensor.view(-1, 20).to(dtype) for tensor in gradients(0, rank)]
            reduce(x)
            with no_waits():
                for _ in range(2):
                    reduce(x)
            assert len(reduce._units) > 1 and reduce._sender.info.waits == 0
            if reduce.keeps:
                with raises(AssertionError, "waits for a device"), no_waits():
                    reduce.state_dict()
            reduce.check()
    assert reduce._sender.info.waits > 0  # of state_dict


# ---- Factors ------------------------------------------------------------------------------------

LOWRANK = "transform=lowrank(rank=2) feedback=residual"
SHAPES = [(30, 20), (30,), (8, 3, 5, 5), (2, 2), (30, 20), (300, 40), (30, 20), (), (0, 4)]


def drawn(step, rank, dtype=torch.float32):
    random = np.random.default_rng([step, rank])
    return [torch.from_numpy(random.standard_normal(shape).astype(np.float32)).to(dtype) for shape in SHAPES]


def close(x, y, bound=2e-5):
    """Both sides compute sums of at most 300 products in f32, of numbers around 1, in another order: an error of 300 / 2^24 at most,
    and the largest of the steps' is around a tenth of it."""
    return all(bool(((a.float() - b.float()).abs() <= bound * max(1.0, float(b.float().abs().max()) if b.numel() else 0)).all()) for a, b in zip(x, y))


@check("numbers", "four")
def factors_made_on_a_device_are_those_of_the_cpu_up_to_the_order_of_sums():
    rank = dist.get_rank()
    for plan in (LOWRANK, "transform=lowrank(rank=4)", "transform=lowrank(rank=1) feedback=residual(beta=0.5,gamma=0.75)"):
        for options in ({"dense_below": 0}, {"dense_below": 0, "frame_bytes": 5000, "seed": 7}, {})[: 3 if dist.get_world_size() == 2 else 1]:
            here, there = both(plan, **options)
            for step in range(5):
                x, y = drawn(step, rank), drawn(step, rank)
                here(x)
                there(y)
                assert close(y, x), (plan, options, step)
                assert same_on_all_ranks(whole(y)), (plan, options, step)
            there.check()
            mine, others = here.stats(), there.stats()
            assert others.place == "emulated" and mine.memory == others.memory
            for field in ("sent", "received", "frame", "dense"):
                assert getattr(mine.total, field) == getattr(others.total, field), field
            one, other = states_of(here.state_dict()), states_of(there.state_dict())
            assert one.keys() == other.keys() and bool(one) == ("feedback" in plan)
            for name in one:
                assert one[name].any() == other[name].any(), name
                if one[name].any():
                    assert close([residual_of(other[name])], [residual_of(one[name])], 1e-4), name
            warm = part_of(here.state_dict())["warm"], part_of(there.state_dict())["warm"]
            assert warm[0].keys() == warm[1].keys()
            for name, start in warm[0].items():  # two bases of one space
                a, b = (part.view(torch.float32).view(int(plan[23]), -1).double() for part in (start, warm[1][name]))
                assert torch.allclose(a.t() @ a, b.t() @ b, atol=1e-4), name


@check("numbers")
def factors_on_a_device_of_half_types_are_those_of_f32_rounded_once():
    for dtype in (torch.float16, torch.bfloat16):
        halves, exact = (on_device(AllReduce(LOWRANK, dense_below=0)) for _ in range(2))
        for step in range(3):
            x = drawn(step, dist.get_rank(), dtype)
            expected = [tensor.float() for tensor in x]
            halves(x)
            exact(expected)
            assert all(torch.equal(tensor, mean.to(dtype)) and tensor.dtype == dtype for tensor, mean in zip(x, expected))


@check("numbers")
def residuals_of_factors_on_a_device_send_what_was_left_out():
    """The same gradient at each step: the mean of what comes out goes to the mean of the gradients."""
    rank = dist.get_rank()
    random = np.random.default_rng(5 + rank)
    left, right = np.linalg.qr(random.standard_normal((60, 60)))[0], np.linalg.qr(random.standard_normal((80, 60)))[0]
    gradient = torch.from_numpy((left * 0.8 ** np.arange(60) @ right.T).astype(np.float32))
    mean = gradient.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    errors = []
    for reduce in both(LOWRANK):
        total, found = torch.zeros_like(mean), []
        for step in range(40):
            x = gradient.clone()
            reduce([x])
            total += x
            found.append(((total / (step + 1) - mean).norm() / mean.norm()).item())
        errors.append(found)
    here, there = errors
    assert there[39] < 0.2 * there[0], (there[0], there[39])
    assert all(abs(a / b - 1) < 1e-3 for a, b in zip(here, there)), errors


@check("numbers")
def a_model_trains_by_factors_made_on_a_device():
    for options in ({}, {"bucket_cap_mb": 25}):
        found = []
        for hook in (DDPHook(LOWRANK, start=2), on_device(DDPHook(LOWRANK, start=2))):
            found.append(train(hook, 8, "SGD", **options))
            assert hook.stats().steps == 8 and 0 < hook.stats().last.frame < hook.stats().last.dense
        assert same_on_all_ranks(found[1]) and torch.allclose(*found, rtol=1e-4, atol=1e-5)


@check("numbers")
def gradients_of_low_rank_and_of_zeros_come_out_of_a_device_whole():
    """Columns that depend on one another, and those that are zero, spoil none that do not."""
    rank, reduce = dist.get_rank(), on_device(AllReduce("transform=lowrank(rank=4) feedback=residual", dense_below=0))
    random = torch.Generator().manual_seed(3)
    u, v = torch.randn(50, 1, generator=random), torch.randn(1, 70, generator=random)
    for step in range(6):
        x = [(rank + 1) * u @ v if step != 2 else torch.zeros(50, 70), torch.zeros(40, 30)]
        expected = 1.5 * u @ v if step != 2 else torch.zeros(50, 70)
        reduce(x)
        assert torch.allclose(x[0], expected, atol=1e-4) and not x[1].any(), step
        assert same_on_all_ranks(whole(x))
    reduce.check()
    later = torch.randn(40, 4, generator=random) @ torch.randn(4, 30, generator=random)
    for _ in range(2):  # what was zero for long begins to move
        x = [u @ v, later.clone()]
        reduce(x)
    assert torch.allclose(x[1], later, atol=1e-3)


@check("numbers")
def a_rank_whose_factors_are_not_finite_on_a_device_is_named_in_the_next_step():
    rank = dist.get_rank()
    here, there = both(LOWRANK, dense_below=0)
    for at in (2, 1):  # of a matrix, of a tensor that is sent as it is
        there.reset()
        here.reset()
        for reduce in (here, there):
            reduce(drawn(0, rank))
        x = drawn(1, rank)
        if rank == 1:
            x[at].view(-1)[17] = float("nan")
        y, before = [tensor.clone() for tensor in x], there.state_dict()
        with raises(deepreduce.PeerError, f"rank 1: {at}: ") as caught:
            here(x)
        there(y)
        assert not whole(y).any()
        with raises(deepreduce.PeerError, f"rank 1: {at}: ", "not finite") as late:
            there(drawn(2, rank))
        assert (caught[0].rank, caught[0].tensor) == (late[0].rank, late[0].tensor)
        assert rank == 1 or str(caught[0]) == str(late[0])
        after = there.state_dict()
        assert all_equal(part_of(before)["warm"], part_of(after)["warm"])
        for name, old in states_of(before).items():
            given = drawn(1, rank)[int(name)].view(-1) * (rank == 0)
            values = residual_of(old) if old.any() else torch.zeros_like(given)
            new = states_of(after)[name]
            assert torch.equal(residual_of(new) if new.any() else torch.zeros_like(given), values + given), name
        for step in (2, 3):  # the next steps work, and bring what the failed one had
            x = drawn(step, rank)
            there(x)
            assert same_on_all_ranks(whole(x))
        there.check()


@check("numbers")
def sums_of_factors_beyond_f32_are_refused_on_a_device_by_all():
    for at, value, words in ((1, 3e38, "first factor"), (0, 1e30, "second factor")):
        here, there = both(LOWRANK, dense_below=0)
        given = lambda: [torch.full((40, 30), value if at == 0 else 1.0), torch.full((5,), value if at else 1.0)]
        for reduce in (here, there):
            reduce([torch.ones(40, 30), torch.ones(5)])
        with raises(deepreduce.ArgumentError, words, "after the all-reduce") as caught:
            here(given())
        x = given()
        there(x)
        assert not whole(x).any()
        with raises(deepreduce.ArgumentError, words, "after the all-reduce") as late:
            there.check()
        # (A sum of products differs in its last bits, and so may its sign: that of a basis.)
        assert at == 0 or str(caught[0]) == str(late[0])
        there.reset()
        there([torch.randn(40, 30), torch.randn(5)])
        there.check()


@check("numbers")
def factors_of_a_checkpoint_move_between_a_device_and_the_cpu():
    rank = dist.get_rank()
    for first in both(LOWRANK, dense_below=0):
        for step in range(3):
            first(drawn(step, rank))
        saved = copy.deepcopy(first.state_dict())
        here, there = both(LOWRANK, dense_below=0)
        for other in (here, there):
            other.load_state_dict(saved)
            found = other.state_dict()
            assert all_equal(part_of(saved)["warm"], part_of(found)["warm"]) and all_equal(states_of(saved), states_of(found))
        like_first = there if first._home is not None else here
        for step in range(3, 6):
            x, y, z = (drawn(step, rank) for _ in range(3))
            first(x)
            here(y)
            there(z)
            assert close(z, y), step
            assert all(map(same, x, z if like_first is there else y)), step
        there.scale_residuals(0.5)
        scaled, full = states_of(there.state_dict()), states_of(like_first.state_dict() if like_first is here else first.state_dict())
        assert close([residual_of(scaled["5"])], [0.5 * residual_of(full["5"])], 1e-4)
    fresh = on_device(AllReduce(LOWRANK, dense_below=0))
    fresh(drawn(9, rank))
    fresh.reset()
    other = on_device(AllReduce(LOWRANK, dense_below=0))
    for step in range(2):
        x, y = drawn(step, rank), drawn(step, rank)
        fresh(x)
        other(y)
        assert all(map(same, x, y))
    wrong = copy.deepcopy(saved)
    part_of(wrong)["warm"]["2"][:4] = torch.tensor([0, 0, 128, 127], dtype=torch.uint8)  # an infinity
    with raises(deepreduce.ArgumentError, "the factors of 2"):
        other.load_state_dict(wrong)


@check("numbers")
def what_numbers_on_a_device_do_not_do_runs_on_the_cpu_and_is_said():
    rank = dist.get_rank()
    for plan in (BF16, LOWRANK):
        here, there = both(plan, nonfinite="skip")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for number in range(2):
                x, y = gradients(number, rank), gradients(number, rank)
                here(x)
                there(y)
                assert all(map(same, x, y))
        found = [str(warning.message) for warning in seen if "frames are made on the CPU" in str(warning.message)]
        assert len(found) == (1 if rank == 0 else 0) and all("runs on the CPU only" in words for words in found), found
        assert there.stats().place == "cpu"


@check("numbers")
def factors_of_ranks_whose_products_may_differ_are_made_on_the_cpu():
    import deepreduce.torch._exchange as exchange

    rank, before = dist.get_rank(), exchange.products_on
    exchange.products_on = lambda home: f"{before(home)} {rank}"
    try:
        here, there = both(LOWRANK, dense_below=0)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for step in range(2):
                x, y = drawn(step, rank), drawn(step, rank)
                here(x)
                there(y)
                assert all(map(torch.equal, x, y))
        found = [str(warning.message) for warning in seen if "frames are made on the CPU" in str(warning.message)]
        assert len(found) == (1 if rank == 0 else 0) and all("rank 1 has another GPU" in words for words in found), found
        assert there.stats().place == "cpu"
        halves = on_device(AllReduce(BF16))  # these have the same bits everywhere
        halves(drawn(0, rank))
        assert halves.stats().place == "emulated"
    finally:
        exchange.products_on = before
