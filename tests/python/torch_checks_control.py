"""Checks of control= on two ranks: what the exchange does as its rung changes. What a step took is made up, so that it is the
same on every machine."""

import contextlib
import json
import pathlib
import re
from unittest import mock

import deepreduce
import torch
import torch.distributed as dist
from deepreduce.torch import _ladder
from deepreduce.torch import AllReduce, DDPHook
from torch_ranks import check, factor_residual, gradients, make_model, part_of, raises, same, same_on_all_ranks, steps_of, train, wrapped

TEN = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=log_quant"
ONE = "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw"
LADDER = [None, "feedback=residual index=all value=half", TEN, ONE]


@contextlib.contextmanager
def link(seconds_per_byte, latency=1e-4):
    """Steps wait as long as on a link of seconds_per_byte(). Rank 1 reports a longer wait, as if it had arrived early."""

    class Measured(_ladder.Controller):
        def observe(self, size, seconds):
            late = 0.5 * dist.get_rank()
            super().observe(size, latency + late if size == 0 else latency + late + size * seconds_per_byte())

    with mock.patch.object(_ladder, "Controller", Measured):
        yield


def residual_sum(reduce):
    """[d] over ranks, f64; of states that nothing was kept in yet zeros."""
    own = torch.zeros(sum(state.size // 4 - 4 for state in reduce._states.values()), dtype=torch.float64)
    with contextlib.suppress(deepreduce.ArgumentError):
        own = torch.cat([torch.from_numpy(state.residual.copy()) for state in reduce._states.values()]).double()
    dist.all_reduce(own)
    return own


def exchanged(reduce, step):
    """One step; its result and the mean of the ranks' gradients."""
    x = gradients(step, dist.get_rank())
    ranks = [torch.cat(gradients(step, rank)).double() for rank in range(dist.get_world_size())]
    reduce(x)
    return torch.cat(x), sum(ranks) / len(ranks)


@check("control")
def control_goes_down_and_up_and_nothing_is_lost():
    for law in ("aimd", "fit"):
        slow = [True]
        with link(lambda: 1e-5 if slow[0] else 1e-8):
            reduce = AllReduce(LADDER, control=f"{law}(target_ms=20)", dense_below=100)
            rungs, given, received = [], 0, 0
            for step in range(60):
                slow[0] = step < 25
                rungs.append(reduce.control.rung)
                got, mean = exchanged(reduce, step)
                given, received = given + mean, received + got.double()
                assert same_on_all_ranks(got)
                # The sum of the gradients is the sum of the means plus the residuals.
                left = (given - received) * dist.get_world_size()
                names = [int(name) for name in reduce._states]
                residual = torch.cat([left.split([3000, 40, 500])[i] for i in names])
                assert torch.allclose(residual, residual_sum(reduce), atol=1e-3), (step, rungs)
            assert rungs[0] == 0 and rungs[24] == 2 and rungs[-1] == 0, rungs
            assert all(abs(a - b) <= 1 for a, b in zip(rungs, rungs[1:]))
            assert residual_sum(reduce).abs().max() == 0  # dense, and the residuals are sent
            got, mean = exchanged(reduce, 99)
            assert torch.allclose(got.double(), mean, atol=1e-5)
            assert reduce.control.info.reason.startswith("stays: time to spare at the densest")


LOWRANK = "transform=lowrank(rank=2) feedback=residual"
MIXED = [None, "feedback=residual index=all value=uniform_quant(bits=8)", LOWRANK, LOWRANK.replace("2", "1"), ONE]


def matrices(step, rank):
    return [gradient.reshape(shape) for gradient, shape in zip(gradients(step, rank, (3000, 40, 600)), ((60, 50), (40,), (20, 30)))]


def residuals_of(reduce):
    """[d] over ranks, f64: the residuals of frames and of transforms, in the order of the tensors."""
    own = []
    for i, size in enumerate((3000, 40, 600)):
        state = reduce._states[str(i)]
        residual = torch.from_numpy(state.residual.copy()).double() if state.memory.any() else torch.zeros(size).double()
        if reduce._where[str(i)][0].kind == "factors":
            assert not residual.any()  # a residual is in one place
            residual = torch.from_numpy(factor_residual(reduce, str(i))).double()
        own.append(residual)
    total = torch.cat(own)
    dist.all_reduce(total)
    return total


@check("control")
def control_carries_residuals_to_factors_and_back():
    slow = [True]
    with link(lambda: 1e-4 if slow[0] else 1e-9):
        reduce = AllReduce(MIXED, control="aimd(target_ms=5)", dense_below=100)
        rungs, given, received = [], 0, 0
        for step in range(60):
            slow[0] = step < 25
            rungs.append(reduce.control.rung)
            x = matrices(step, dist.get_rank())
            reduce(x)
            got = torch.cat([tensor.reshape(-1) for tensor in x])
            ranks = [torch.cat([matrix.reshape(-1) for matrix in matrices(step, r)]).double() for r in range(dist.get_world_size())]
            given, received = given + sum(ranks) / len(ranks), received + got.double()
            assert same_on_all_ranks(got)
            left = (given - received) * dist.get_world_size()
            assert torch.allclose(left, residuals_of(reduce), atol=2e-3), (step, rungs)
        assert set(rungs) == set(range(5)) and rungs[-1] == 0, rungs
        assert residuals_of(reduce).abs().max() == 0
        reduce.reset()
        assert not residuals_of(reduce).any() and reduce.control.rung == 0


BITS = "feedback=residual index=all value=uniform_quant(bits=8) exchange=owner"
OWNERS = [None, BITS, BITS.replace("8", "4"), TEN + " exchange=owner"]


@check("control")
def control_carries_what_owners_kept_of_their_sums():
    """A sum is of means, so what its owner keeps counts as often as there are ranks."""
    n, slow = dist.get_world_size(), [True]
    with link(lambda: 1e-4 if slow[0] else 1e-9):
        reduce = AllReduce(OWNERS, control="aimd(target_ms=5)", dense_below=100)
        rungs, given, received, owned = [], 0, 0, 0
        for step in range(50):
            slow[0] = step < 20
            rungs.append(reduce.control.rung)
            got, mean = exchanged(reduce, step)
            given, received = given + mean, received + got.double()
            assert same_on_all_ranks(got)
            residual = torch.zeros(3540, dtype=torch.float64)
            sums = reduce._owned_states("sums")
            for states, times in ((reduce._all_states(), 1), (sums, n)):
                for name, state in states.items():
                    if state.memory.any():
                        residual.split([3000, 40, 500])[int(name)].add_(torch.from_numpy(state.residual.copy()), alpha=times)
            owned += any(state.memory.any() and state.residual.any() for state in sums.values())
            dist.all_reduce(residual)
            assert torch.allclose((given - received) * n, residual, atol=2e-3), (step, rungs)
        assert owned and set(rungs) == set(range(4)) and rungs[-1] == 0, rungs
        assert not residual.any()


@check("control")
def control_with_factors_goes_on_from_a_saved_state():
    with link(lambda: 1e-4):
        for stop in (2, 3, 4, 8):
            first, second = (AllReduce(MIXED, control="aimd(target_ms=5,smallest=3)", dense_below=100) for _ in range(2))
            for step in range(stop):
                first(matrices(step, dist.get_rank()))
            second(matrices(0, dist.get_rank()))  # (it has tensors, and a rung of its own)
            saved = first.state_dict()
            second.load_state_dict(saved)
            assert second.control.rung == first.control.rung
            assert torch.equal(residuals_of(first), residuals_of(second))
            x, y = matrices(stop, dist.get_rank()), matrices(stop, dist.get_rank())
            first(x)
            second(y)
            assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(x, y)), stop
            assert torch.allclose(residuals_of(first), residuals_of(second), atol=1e-4)


@check("control")
def control_with_factors_trains_in_ddp():
    with link(lambda: 1e-5):
        hook = DDPHook(MIXED, control="aimd(target_ms=5)", dense_below=100)
        assert same_on_all_ranks(train(hook, steps=14)) and hook.control.rung >= 3


@check("control")
def control_of_a_ddp_training_is_the_same_on_all_ranks():
    with link(lambda: 1e-5):
        hook = DDPHook(LADDER, control="aimd(target_ms=20)", start=2, dense_below=100)
        lines = []
        made = train(hook, steps=14)
        hook.control.log = lines.append
        assert same_on_all_ranks(made)
        assert hook.control.rung >= 2
        assert hook.control.info.decisions == 12
        trace = torch.tensor(hook.control.state_dict()["trace"], dtype=torch.int64)
        assert same_on_all_ranks(trace.float())


@check("control")
def control_at_the_densest_rung_is_what_ddp_does():
    with link(lambda: 1e-9):
        assert same(train(DDPHook(LADDER, control="fit(target_ms=20)")), train(DDPHook(None, start=100)))


@check("control")
def control_at_one_rung_is_that_plan():
    with link(lambda: 1e-5):
        held = train(DDPHook([None, TEN], control="aimd(target_ms=1,densest=1)", dense_below=100))
    assert same(held, train(DDPHook(TEN, dense_below=100)))


@check("control")
def control_goes_on_from_a_saved_state():
    """With the rung and all that the controller knew; times of steps are measured again from then on."""
    with link(lambda: 4e-6):
        for stop in (1, 5, 12):
            first, second = (AllReduce(LADDER, control="aimd(target_ms=20)", dense_below=100) for _ in range(2))
            for step in range(stop):
                exchanged(first, step)
            saved = first.state_dict()
            second.load_state_dict(saved)
            got, expected = (exchanged(hook_, stop)[0] for hook_ in (second, first))
            assert torch.allclose(got, expected, atol=1e-6)
            assert torch.equal(part_of(second.state_dict())["control"][: 4 * stop], part_of(saved)["control"])
            assert second.control.info.decisions == stop + 1
            assert torch.equal(residual_sum(first), residual_sum(second))
            with raises(deepreduce.ArgumentError, "is before"):
                other = {"residuals": part_of(saved)["residuals"], "control": torch.tensor([9, 1, 1, 0, 5, 1, 1, 0])}
                second.load_state_dict({**saved, f"rank{dist.get_rank()}": other})
            assert second.control.info.decisions == stop + 1
            assert torch.equal(residual_sum(first), residual_sum(second))


@check("control")
def control_as_documented_runs():
    page = pathlib.Path(__file__).resolve().parents[2] / "docs" / "CONTROL.md"
    (block,) = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)
    names = {"ddp": wrapped(make_model(), None), "print": lambda line: lines.append(line)}
    lines = []
    exec(compile(block, "docs/CONTROL.md", "exec"), names)
    steps_of(names["ddp"], torch.optim.SGD(names["ddp"].parameters(), lr=0.1), 0, 3)
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    assert all(f'"{key}":' in page.read_text("utf-8") for key in ("transfer_ns", "median_ns", "bytes", "empty_ns"))


@check("control")
def control_names_a_rank_with_other_terms_before_the_first_step():
    rank, same = dist.get_rank(), "fit(target_ms=20)"
    for ladder, options, word in (
        (LADDER, "fit(target_ms=20,interval=2)", "rank 1 has control fit(target_ms=20,interval=2), others fit(target_ms=20);"),
        (LADDER[:3], same, "control: rank 1 has a ladder of 3 rungs, others one of 4"),
        ([None, TEN, LADDER[1], ONE], same, "rank 1 has plan '*': "),
        (ONE, None, "control: rank 1 has no control, and others have"),
    ):
        with raises(deepreduce.ArgumentError, word) as caught:
            hook = DDPHook(ladder, control=options) if rank else DDPHook(LADDER, control=same)
            wrapped(make_model(), hook)
        assert caught[0].rank == 1
    reduce = AllReduce(LADDER, control=same, dense_below=100, start=rank, timeout=5)
    for _ in range(2):  # no step was made, and no state
        with raises(deepreduce.ArgumentError, "rank 1 has start 1, others 0;"):
            reduce(gradients(0, rank))


@check("control")
def control_refuses_what_makes_no_ladder():
    error = deepreduce.ArgumentError
    with raises(error, "a ladder"):
        AllReduce(TEN, control="fit(target_ms=1)")
    with raises(error, "rung 1 is dense"):
        DDPHook([ONE, None], control="fit(target_ms=1)")
    with raises(error, "not pairs of a pattern and a plan"):
        DDPHook([("*.weight", TEN), ("*", None)], control="fit(target_ms=1)")
    for pairs in ([("*",)], ["index=golomb value=raw"], [(1, TEN)], [5]):
        with raises(error, "pairs of a pattern and a plan"):
            DDPHook(pairs)
    with raises(error, "no law 'dc2'"):
        AllReduce([None, TEN], control="dc2(target_ms=1)")
    with raises(error, "target_ms"):
        AllReduce([None, TEN], control="fit")
    with raises(error, "keeps no residual"):
        AllReduce([None, "index=all value=half", TEN], control="fit(target_ms=1)")(gradients(0, 0))
    with raises(error, "share one residual"):
        AllReduce([None, TEN.replace("residual", "residual(beta=0.9)"), ONE], control="fit(target_ms=1)")(gradients(0, 0))
