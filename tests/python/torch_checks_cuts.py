"""What deepreduce.torch promises for any cut of tensors into units and slots, and by the kind of plan."""

import copy
import logging

import torch
import torch.distributed as dist
from torch_ranks import check, make_model, raises, residual_sum, same, same_on_all_ranks, steps_of

from deepreduce.torch import _slots
from deepreduce.torch._slots import PIECE
from deepreduce.errors import PeerError
from deepreduce.torch import AllReduce, DDPHook, OutOfStep

EIGHT_BIT = "index=all value=uniform_quant(bits=8) feedback=residual"
# Of one tensor with levels of its own: the same plans without `flat` and `dense_below`.
LEVELS = (
    EIGHT_BIT,
    "index=all value=uniform_quant(bits=4)",
    "index=all value=log_quant(bits=4) feedback=residual",
    "onebit",
    "terngrad",
    "8bit",
    "qsgd",
)
TOP = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=log_quant"


def several(step, rank):
    """A dict of tensors of other scales: large and small, matrices and a bias."""
    random = torch.Generator().manual_seed(100 * step + rank)
    shapes = {"head": (40, 100), "body": (50, 60), "layer": (30, 50), "bias": (50,)}
    scales = {"head": 100.0, "body": 1.0, "layer": 0.01, "bias": 0.1}
    return {name: scales[name] * torch.randn(shape, generator=random) for name, shape in shapes.items()}


def exchanged(plan, steps=3, **options):
    reduce, found = AllReduce(plan, **options), []
    for step in range(steps):
        x = several(step, dist.get_rank())
        reduce(x)
        found.append(torch.cat([tensor.reshape(-1) for tensor in x.values()]))
    return torch.cat(found), reduce


@check("two")
def levels_do_not_depend_on_how_tensors_are_cut():
    for plan in LEVELS:
        expected, _ = exchanged(plan)
        for frame_bytes in (1, 16000, 30000):
            assert same(exchanged(plan, frame_bytes=frame_bytes)[0], expected), (plan, frame_bytes)


@check("two")
def levels_do_not_depend_on_bucket_sizes():
    for plan in (EIGHT_BIT, "onebit"):
        found = []
        for cap in (25, 0.008, 0.002):
            hook = DDPHook(plan, dense_below=0)
            ddp = torch.nn.parallel.DistributedDataParallel(make_model(), bucket_cap_mb=cap)
            hook.register(ddp)
            steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.01), 0, 3)
            found.append(torch.cat([parameter.grad.reshape(-1) for parameter in ddp.parameters()]))
        assert all(same(found[0], result) for result in found[1:]), plan


@check("two")
def a_large_tensor_does_not_spoil_the_levels_of_others():
    n = dist.get_world_size()
    mean = sum(several(0, rank)["layer"] for rank in range(n)) / n
    for flat in (None, True):
        x = several(0, dist.get_rank())
        AllReduce("index=all value=uniform_quant(bits=4)", flat=flat)(x)
        error = float((x["layer"] - mean).norm() / mean.norm())
        assert error > 0.5 if flat else error < 0.1, (flat, error)


@check("two")
def a_plan_decides_whether_its_tensors_are_one():
    for plan, flat in (
        (TOP, True), ("sparsify=threshold(value=0.5) index=golomb value=uniform_quant", True), ("index=golomb value=raw", True),
        ("index=all value=half", True), *((level, False) for level in LEVELS),
    ):  # fmt: skip
        expected, by_plan = exchanged(plan, flat=flat)
        found, reduce = exchanged(plan)
        assert same(found, expected) and reduce.stats().total.sent == by_plan.stats().total.sent, plan
    assert not same(exchanged(TOP, flat=False)[0], exchanged(TOP)[0])
    assert not same(exchanged(EIGHT_BIT, flat=True)[0], exchanged(EIGHT_BIT)[0])


@check("two")
def small_tensors_travel_exactly_beside_levels_of_their_own_only():
    n = dist.get_world_size()
    mean = sum(several(0, rank)["bias"] / n for rank in range(n))
    for plan, below, exact in ((TOP, None, False), (TOP, 1000, True), (EIGHT_BIT, None, True), (EIGHT_BIT, 0, False)):
        x = several(0, dist.get_rank())
        AllReduce(plan, dense_below=below)(x)
        assert torch.allclose(x["bias"], mean, rtol=1e-6, atol=1e-8) is exact, (plan, below)


# ---- Slots --------------------------------------------------------------------------------------


class Seen:
    """The bytes of each all-gather of slots, while it is open."""

    def __enter__(self):
        self.sizes, self._gather = [], _slots.all_gather

        def seen(group, timeout, received, sent):
            self.sizes.append(len(sent))
            return self._gather(group, timeout, received, sent)

        _slots.all_gather = seen
        return self

    def __exit__(self, *_):
        _slots.all_gather = self._gather


@check("two", "four")
def large_slots_travel_in_pieces_of_at_most_2_mb():
    n, rank, elements = dist.get_world_size(), dist.get_rank(), 1_400_000
    x = lambda other: torch.randn(elements, generator=torch.Generator().manual_seed(other))
    expected = sum(torch.tensor(1 / n) * x(other) for other in range(n))
    with Seen() as seen:
        reduce = AllReduce("index=golomb value=raw")  # of no fixed size: a first slot, and its rest
        for _ in range(2):
            own = x(rank)
            reduce([own])
            assert torch.allclose(own, expected, atol=1e-6) and same_on_all_ranks(own)
    assert seen.sizes[0] < 100 and max(seen.sizes) <= PIECE and len(seen.sizes) == 1 + 3 + 3, seen.sizes
    assert 4 * elements < sum(seen.sizes[4:]) < 4.2 * elements


@check("two")
def frames_of_one_size_need_no_room_and_no_second_collective():
    for plan in ("index=all value=half(type=bf16) feedback=residual", "onebit", "8bit"):
        with Seen() as seen:
            reduce = AllReduce(plan, dense_below=0, flat=True, start=0)
            for step in range(4):
                reduce([several(step, dist.get_rank())["head"]])
        stats = reduce.stats()
        assert stats.total.repeats == 0 and len(seen.sizes) <= 4, (plan, seen.sizes)
        assert stats.total.sent < 1.02 * (dist.get_world_size() - 1) * stats.total.frame + 4 * 128, (plan, stats)
    for plan in ("threshold", "index=raw value=raw", TOP):  # of one size only if as many elements are found
        with Seen() as seen:
            reduce = AllReduce(plan, dense_below=0)
            for _ in range(2):
                x = torch.zeros(20000)
                x[:100] = 1.0
                reduce([x])
        assert sum(seen.sizes) < 3000, (plan, seen.sizes)


@check("two")
def only_the_rest_of_a_frame_that_outgrew_its_slot_is_sent():
    rank, reduce = dist.get_rank(), AllReduce("sparsify=threshold(value=0.5) index=golomb value=raw", dense_below=0)
    for count, second in ((100, True), (100, False), (5000, True), (5000, False)):
        x = torch.zeros(20000)
        x[:count] = torch.arange(1, count + 1) * (1 if rank else 3)
        with Seen() as seen:
            reduce([x])
        assert same(x[:count], torch.arange(1, count + 1) * 2.0), count
        assert len(seen.sizes) == 1 + second and reduce.stats().last.sent == sum(seen.sizes) * (dist.get_world_size() - 1)
        assert not second or sum(seen.sizes) < reduce.stats().last.frame + 200, seen.sizes


# ---- Halves -------------------------------------------------------------------------------------

BF16, F16 = "index=all value=half(type=bf16)", "index=all value=half"


@check("two", "four")
def halves_travel_by_an_all_reduce():
    """In half of the bytes that frames take among four ranks, and all ranks get the same bits."""
    n, rank = dist.get_world_size(), dist.get_rank()
    for plan, dtype in ((BF16, torch.bfloat16), (F16, torch.float16), (f"{BF16} feedback=residual", torch.bfloat16)):
        x, reduce = several(0, rank), AllReduce(plan)
        shares = [{name: (tensor / n).to(dtype) for name, tensor in several(0, other).items()} for other in range(n)]
        with Seen() as seen:
            reduce(x)
        elements = sum(tensor.numel() for tensor in x.values())
        assert not seen.sizes and 0 <= reduce.stats().last.sent - 2 * (n - 1) * 2 * elements // n < 400, plan
        for name, tensor in x.items():
            expected = sum(share[name].float() for share in shares)
            sums = 2.0**-8 * sum(share[name].float().abs() for share in shares)  # each addition is rounded
            assert same_on_all_ranks(tensor) and bool(((tensor - expected).abs() <= n * sums + 1e-7).all()), name
            assert same(tensor, tensor.to(dtype).float()) and (n > 2 or same(tensor, expected.to(dtype).float())), name


@check("two")
def what_rounding_lost_stays_in_the_residual():
    """A sum of two shares of equal gradients is exact: the gradients are the means that arrived plus the residuals."""
    flat = lambda x: torch.cat([tensor.reshape(-1) for tensor in x.values()]).double()
    n, given, sent = dist.get_world_size(), 0, 0
    reduce, plain = AllReduce(f"{BF16} feedback=residual"), AllReduce(BF16)
    for step in range(6):
        x, y = several(step, 0), several(step, 0)
        given = given + n * flat(x)
        reduce(x)
        plain(y)
        sent = sent + n * flat(x)
    left = residual_sum(reduce)
    assert left.any() and torch.allclose(sent + left, given, rtol=1e-5, atol=1e-3)
    again = AllReduce(f"{BF16} feedback=residual")
    again.load_state_dict(reduce.state_dict())
    x, y = several(6, 0), several(6, 0)
    reduce(x)
    again(y)
    assert same(flat(x).float(), flat(y).float())


@check("two")
def a_half_that_is_not_finite_is_named_by_all_and_the_step_goes_back():
    rank, reduce = dist.get_rank(), AllReduce(f"{BF16} feedback=residual")
    reduce(several(0, rank))
    before = {name: torch.from_numpy(state.residual.copy()) for name, state in reduce._states.items()}
    x = several(1, rank)
    if rank == 1:
        x["layer"][3, 5] = float("nan")
    with raises(PeerError, "rank 1: layer", "not finite") as caught:
        reduce(x)
    assert caught[0].rank == 1 and reduce.state_dict()["step"] == 2
    for name, state in reduce._states.items():  # of rank 1 the gradient of the step is lost
        gradient = several(1, rank)[name].reshape(-1) * (rank == 0)
        assert torch.equal(torch.from_numpy(state.residual), before[name] + gradient), name
    x = several(2, rank)
    reduce(x)
    assert all(same_on_all_ranks(tensor) for tensor in x.values())


@check("two")
def halves_that_ranks_reduce_out_of_step_are_told():
    reduce = AllReduce(BF16)
    reduce(several(0, 0))
    if dist.get_rank() == 1:
        reduce._number += 1
    with raises(OutOfStep, "rank 0 is at step 1, rank 1 at step 2"):
        reduce(several(1, 0))


@check("two")
def values_too_large_for_a_half_are_its_largest():
    x = torch.full((2000,), 1e6)
    AllReduce(F16)([x])
    assert (x == 65504).all()
    half = torch.full((2000,), 3.0, dtype=torch.bfloat16)
    AllReduce(F16)([half])
    assert half.dtype == torch.bfloat16 and (half == 3).all()


@check("two")
def halves_that_are_a_rung_have_the_residual_of_the_others():
    rank, ladder = dist.get_rank(), [None, f"{BF16} feedback=residual", TOP]
    reduce = AllReduce(ladder, control="fit(target_ms=0.000001)")
    for step in range(40):
        x = several(step, rank)
        reduce(x)
        assert same_on_all_ranks(torch.cat([tensor.reshape(-1) for tensor in x.values()]))
    assert reduce.control.rung == 2


@check("two")
def a_step_of_halves_that_overflowed_is_skipped():
    rank, plans = dist.get_rank(), {"layer": TOP, "*": f"{BF16} feedback=residual"}
    reduce, bad = AllReduce(plans, nonfinite="skip", frame_bytes=16000), {1: "head", 2: "layer", 3: "bias"}
    for step in range(5):
        before = {name: state.memory.copy() for name, state in reduce._states.items()}
        x = several(step, rank)
        if step in bad and rank == step % 2:
            x[bad[step]].view(-1)[7] = float("inf")
        reduce(x)
        whole = torch.cat([tensor.reshape(-1) for tensor in x.values()])
        assert same_on_all_ranks(whole) and whole.isnan().all() == (step in bad), step
        if step in bad:
            assert all((before[name] == state.memory).all() for name, state in reduce._states.items()), step
    assert reduce.stats().total.skipped == len(bad)


# ---- Units --------------------------------------------------------------------------------------


def wide_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(*(torch.nn.Linear(600, 600) for _ in range(4)))  # 5.8 MB


@check("two")
def units_are_the_same_whatever_buckets_are():
    """So a plan means the same: that of one large bucket, and of many."""
    found, units = [], []
    for cap in (25, 2, 0.5):
        hook = DDPHook(TOP)
        ddp = torch.nn.parallel.DistributedDataParallel(wide_model(), bucket_cap_mb=cap)
        hook.register(ddp)
        for step in range(3):
            torch.manual_seed(10 * step + dist.get_rank())
            ddp.zero_grad()
            ddp(torch.randn(4, 600)).square().mean().backward()
        found.append(torch.cat([parameter.grad.reshape(-1) for parameter in ddp.parameters()]))
        units.append([[item.name for item in unit.items] for unit in hook._units])
    assert all(same(found[0], result) for result in found[1:])
    assert units[0] == units[1] == units[2] and [len(unit) for unit in units[0]] == [5, 3], units[0]
    hook = DDPHook(TOP, frame_bytes=1 << 20)
    hook.register(torch.nn.parallel.DistributedDataParallel(wide_model()))
    again = copy.deepcopy(hook)
    again.register(torch.nn.parallel.DistributedDataParallel(wide_model()))
    assert [len(unit.items) for unit in again._units] == [len(unit.items) for unit in hook._units] and len(hook._units) == 8


@check("two")
def a_bucket_that_has_the_gradient_at_the_end_of_backward_is_told_once():
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    log = logging.getLogger("deepreduce.torch")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        for cap, model in ((25, wide_model()), (4, wide_model()), (25, make_model()), (None, wide_model())):
            DDPHook(TOP).register(torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=cap))
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    lines = [line for line in lines if "bucket_cap_mb" in line]
    assert len(lines) == 2 * (dist.get_rank() == 0), lines
    for line, size in zip(lines, ("5.5", "4.1")):  # by default the first bucket has 1 MiB and what is left of a parameter
        assert f"(bucket_cap_mb=25) has {size} MiB of a gradient of 5.5 MiB" in line and "bucket_cap_mb=4)" in line, line
