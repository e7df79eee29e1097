"""What a training gets back after an exception, an overflow or a checkpoint from elsewhere."""

import contextlib
import copy
import io
import pathlib
import pickle
import sys
import tempfile

import numpy as np
import torch
import torch.distributed as dist
from torch_ranks import LOSSLESS, check, factor_residual, gradients, make_model, parameters_of, part_of, raises, same, same_on_all_ranks, steps_of, wrapped

import deepreduce
import deepreduce.grace
from deepreduce import accelerate
from deepreduce.torch import AllReduce, DDPHook, ReduceScatter

EXACT_TOP = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=raw"


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def residuals_of_named(hook, name):
    return torch.from_numpy(hook._states[name].residual.copy())


def residuals_of(hook):
    return {name: residuals_of_named(hook, name) for name in hook._states}


@check("two")
def a_step_that_an_exception_of_the_users_ended_goes_back_to_the_residuals():
    for plan in (EXACT_TOP, "transform=lowrank(rank=2) feedback=residual"):
        hook = DDPHook(plan, dense_below=0)
        ddp = wrapped(make_model(), hook)
        steps_of(ddp, sgd(ddp), 0, 2)
        alone, before, refusals = copy.deepcopy(ddp.module), residuals_of(hook), []

        def fails(gradient, hook=hook, refusals=refusals):
            try:
                hook.state_dict()
            except deepreduce.ArgumentError as error:
                refusals.append(str(error))
            raise ValueError("a check of the user's")

        ddp.module[0].weight.register_hook(fails)
        with raises(ValueError, "of the user's"):
            steps_of(ddp, sgd(ddp), 2, 3)
        assert hook._pending and refusals == ["a step is under way: this is its backward"]
        state = hook.state_dict()
        assert state["step"] == 3 and hook.stats().steps == 3
        steps_of(alone, sgd(alone), 2, 3)
        if before:  # frames, not factors
            given = dict(alone.named_parameters())["6.weight"].grad.view(-1)
            assert torch.allclose(residuals_of(hook)["6.weight"], before["6.weight"] + given, atol=1e-6)
        hook.load_state_dict(state)
        hook.reset()
        again = DDPHook(plan, dense_below=0)
        again.load_state_dict(state)
        ddp = wrapped(make_model(), again)
        steps_of(ddp, sgd(ddp), 3, 5)
        assert again.state_dict()["step"] == 5 and same_on_all_ranks(parameters_of(ddp))


@check("two")
def a_rank_whose_exception_came_before_its_step_goes_on_with_the_others():
    """Rank 0 has begun the step, missed rank 1 in it, and counts it as failed. On rank 1 it did not begin."""
    rank = dist.get_rank()
    for plan in (EXACT_TOP, "transform=lowrank(rank=2) feedback=residual", None):
        hook, reduce = DDPHook(plan, dense_below=0), AllReduce(plan, dense_below=0)
        ddp = wrapped(make_model(), hook)
        steps_of(ddp, sgd(ddp), 0, 2)
        for step in range(2):
            reduce([x.view(-1, 20) for x in gradients(step, rank)])
        for left in (hook, reduce):
            for _ in range(1 - rank):
                left._abort()
                left._end_step(False)
        hook_again, reduce_again = DDPHook(plan, dense_below=0), AllReduce(plan, dense_below=0)
        hook_again.load_state_dict(hook.state_dict())
        reduce_again.load_state_dict(reduce.state_dict())
        ddp = wrapped(copy.deepcopy(ddp.module), hook_again)
        steps_of(ddp, sgd(ddp), 3, 5)
        reduce_again([x.view(-1, 20) for x in gradients(3, rank)])
        assert same_on_all_ranks(parameters_of(ddp)) and hook_again.state_dict()["step"] == 5
        assert reduce_again.state_dict()["step"] == 4
    comm = ReduceScatter(EXACT_TOP, dense_below=0)
    reduce_scatter(comm)
    state = comm.state_dict()
    if rank == 0:
        state = {**state, "step": 2, "rank0": {**part_of(state), "failures": 1, "failed": 1}}
    again = ReduceScatter(EXACT_TOP, dense_below=0)
    again.load_state_dict(state)
    reduce_scatter(again)
    assert again.state_dict()["step"] == 3


class TwoHeads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(50, 60), torch.nn.Linear(50, 60)

    def forward(self, x):
        return self.a(x).sum(), self.b(x).sum()


@check("two")
def a_step_of_two_backwards_is_not_given_up_between_them():
    for start in (0, 5):
        hook = DDPHook(EXACT_TOP, dense_below=0, start=start)
        ddp = wrapped(TwoHeads(), hook)
        half_done = 0
        for _ in range(3):
            first, second = ddp(torch.ones(3, 50))
            second.backward()
            if hook._futures:  # DDP has begun to send
                half_done += 1
                with raises(deepreduce.ArgumentError, "a step is under way"):
                    hook.state_dict()
            first.backward()
        assert half_done and hook.state_dict()["step"] == 3


@check("two")
def a_step_that_may_still_go_on_is_canceled_by_the_user():
    """An exception of its second backward, before the hook is called in it."""

    def fails(gradient):
        raise ValueError("a check of the user's")

    hook = DDPHook(EXACT_TOP, dense_below=0, frame_bytes=1000)
    ddp = wrapped(TwoHeads(), hook, bucket_cap_mb=0.0001)
    for _ in range(2):
        first, second = ddp(torch.ones(3, 50))
        second.backward(), first.backward()
    before = residuals_of_named(hook, "b.weight")
    first, second = ddp(torch.ones(3, 50))
    second.backward()
    first.register_hook(fails)
    with raises(ValueError, "of the user's"):
        first.backward()
    with raises(deepreduce.ArgumentError, "a step is under way", "cancel() abandons it"):
        hook.state_dict()
    for _ in range(2):  # then there is none
        hook.cancel()
        assert hook.state_dict()["step"] == hook.stats().steps == 3
    assert not torch.equal(residuals_of_named(hook, "b.weight"), before)


@check("two")
def what_a_copy_has_is_the_plan_in_force():
    with tempfile.TemporaryDirectory() as folder:
        book = pathlib.Path(folder, "book.txt")
        book.write_text("*.bias: dense\n*: " + EXACT_TOP + "\n", encoding="utf-8")
        hook = DDPHook(f"book:{book}")
    assert str(copy.deepcopy(hook)._rules[0]) == str(hook._rules[0])

    class Mine(DDPHook):
        def __init__(self, name):
            super().__init__(EXACT_TOP)
            self.name = name

    assert copy.deepcopy(Mine("x")).name == "x"
    with raises(deepreduce.ArgumentError, "with a group cannot be copied"):
        copy.deepcopy(AllReduce(EXACT_TOP, group=dist.group.WORLD))


@check("two")
def a_pickle_names_the_public_place_and_one_of_release_0_3_is_read():
    """The file: pickle.dumps((DDPHook(TOP, seed=7), its function, AllReduce("index=raw", start=3))) by 0.3.0, when deepreduce.torch was one module."""
    file = pathlib.Path(__file__).parent / "torch_states" / "hook_and_loop.pickle"
    found = pickle.loads(file.read_bytes())
    again = pickle.dumps(found)
    assert b"deepreduce.torch" in again and b"deepreduce.torch._" not in again
    for hook, function, loop in (found, pickle.loads(again)):
        assert type(hook) is DDPHook and hook._arguments["seed"] == 7 and "topr(ratio=0.01)" in str(hook)
        assert type(loop) is AllReduce and loop._arguments["start"] == 3
        assert function is deepreduce.torch._hook


@check("two")
def a_model_with_a_hook_is_copied_and_saved():
    for plan in (EXACT_TOP, {"0.*": None, "*": deepreduce.Plan(EXACT_TOP)}, "transform=lowrank(rank=2) feedback=residual"):
        hook = DDPHook(plan, dense_below=0)
        ddp = wrapped(make_model(), hook)
        steps_of(ddp, sgd(ddp), 0, 2)
        file = io.BytesIO()
        torch.save(ddp, file)
        file.seek(0)
        averaged = torch.optim.swa_utils.AveragedModel(ddp).module
        results = []
        for copied in (copy.deepcopy(ddp), averaged, torch.load(file, weights_only=False), ddp):
            model, again = make_model(), copied._comm_hooks[0][1] if copied is not ddp else hook
            model.load_state_dict(copied.module.state_dict())
            if copied is not ddp:  # a hook that is not registered, with the state
                assert type(again) is DDPHook and again.state_dict()["step"] == 2
                copied = wrapped(model, again)
            steps_of(copied, sgd(copied), 2, 4)
            results.append(parameters_of(copied))
        assert all(torch.equal(result, results[-1]) for result in results), plan
    reduce, x = AllReduce(EXACT_TOP, dense_below=0, frame_bytes=4000), gradients(0, dist.get_rank())
    reduce([tensor.clone() for tensor in x])
    other = copy.deepcopy(reduce)
    found = [[tensor.clone() for tensor in x] for _ in range(2)]
    reduce(found[0]), other(found[1])
    assert all(map(torch.equal, *found))


# ---- Residuals that are scaled ------------------------------------------------------------------


@check("two")
def residuals_of_factors_are_scaled_too():
    reduce = AllReduce("transform=lowrank(rank=1) feedback=residual", dense_below=0)
    reduce([torch.randn(30, 20), torch.randn(7)])
    before = [factor_residual(reduce, name) for name in "01"]
    reduce.scale_residuals(0.3)
    assert before[0].any() and all(np.allclose(factor_residual(reduce, str(i)), 0.3 * before[i]) for i in range(2))
    reduce([torch.zeros(30, 20), torch.zeros(7)])


@check("two")
def what_a_rank_that_is_behind_withdraws_was_scaled_as_its_residual():
    rank = dist.get_rank()
    behind, sound = (AllReduce(EXACT_TOP, dense_below=0) for _ in range(2))
    for step in range(2):
        for reduce in (behind, sound):
            reduce(gradients(step, rank))
    if rank == 1:
        behind._sender.take_back(behind._number - 1)  # say, its other units failed
    for reduce in (behind, sound):
        reduce.scale_residuals(0.1)
    x = gradients(2, rank)
    with raises(deepreduce.OutOfStep, "rank 1"):
        behind([tensor.clone() for tensor in x])
    for i, tensor in enumerate(x):
        now, completed = (reduce._states[str(i)].residual for reduce in (behind, sound))
        assert completed.any() and np.allclose(now, completed + tensor.numpy(), atol=1e-5)


@check("two")
def a_state_that_waits_for_its_tensors_is_scaled_too():
    for plan in (EXACT_TOP, "transform=lowrank(rank=1) feedback=residual"):
        x = [gradient.view(-1, 10) for gradient in gradients(0, dist.get_rank())]
        saver = AllReduce(plan, dense_below=0)
        saver(x)
        found = []
        for order in ("scale first", "scale then", "through another"):
            reduce, state = AllReduce(plan, dense_below=0), saver.state_dict()
            if order == "scale then":
                reduce([torch.zeros_like(tensor) for tensor in x])
            reduce.load_state_dict(state)
            reduce.scale_residuals(2.0)
            reduce.scale_residuals(0.15)
            if order == "through another":
                state, reduce = reduce.state_dict(), AllReduce(plan, dense_below=0)
                reduce.load_state_dict(state)
            zeros = [torch.zeros_like(tensor) for tensor in x]
            reduce(zeros)
            found.append(torch.cat([tensor.view(-1) for tensor in zeros]))
        assert found[0].any() and all(torch.allclose(result, found[0], atol=1e-6) for result in found)


@check("two")
def a_plan_without_residuals_has_none_to_scale():
    for plan in (LOSSLESS, "sparsify=topr(ratio=0.1)", "feedback=momentum value=sign(scale=one)"):
        reduce = AllReduce(plan)
        for _ in range(2):
            with raises(deepreduce.ArgumentError, "keeps no residual"):
                reduce.scale_residuals(0.5)
            reduce(gradients(0, dist.get_rank()))
    mixed = AllReduce([("0", "feedback=momentum index=all value=raw"), ("*", EXACT_TOP)], dense_below=0, flat=False)
    mixed(gradients(0, dist.get_rank()))
    before = residuals_of_named(mixed, "1")
    mixed.scale_residuals(0.5)
    assert torch.equal(residuals_of_named(mixed, "1"), 0.5 * before)


# ---- States of something else, or from elsewhere ------------------------------------------------


class Far(torch.Tensor):
    """One that numpy cannot see, as on a GPU."""

    def numpy(self):
        raise TypeError("can't convert a tensor that is elsewhere to numpy")

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def far(state):
    """A state as torch.load(map_location="cuda") returns it."""
    if isinstance(state, torch.Tensor):
        return state.as_subclass(Far)
    if isinstance(state, dict):
        return {key: far(item) for key, item in state.items()}
    return [far(item) for item in state] if isinstance(state, list) else state


@check("two")
def a_state_may_be_loaded_to_another_device():
    x = gradients(0, dist.get_rank())
    for plan in (EXACT_TOP, "transform=lowrank(rank=1) feedback=residual"):
        saver = AllReduce(plan, dense_below=0)
        saver([tensor.view(-1, 10) for tensor in x])
        other = AllReduce(plan, dense_below=0)
        other.load_state_dict(far(saver.state_dict()))
        found = [[torch.zeros(tensor.numel() // 10, 10) for tensor in x] for _ in range(2)]
        saver(found[0]), other(found[1])
        assert all(map(torch.equal, *found))
    saver, other = (ReduceScatter(EXACT_TOP, dense_below=0) for _ in range(2))
    reduce_scatter(saver)
    other.load_state_dict(far(saver.state_dict()))
    assert torch.equal(reduce_scatter(saver), reduce_scatter(other))
    for keys in ({"compressor": "plan", "plan": EXACT_TOP}, {"compressor": "powersgd", "memory": "powersgd", "communicator": "allreduce"}):
        saver, other = (deepreduce.grace.grace_from_params({"communicator": "allgather", **keys}) for _ in range(2))
        saver.step(x[0].view(-1, 10), "w")
        state = saver.state_dict()
        other.load_state_dict({**state, "compressor": far(state["compressor"])})
        assert torch.equal(saver.step(x[0].view(-1, 10), "w"), other.step(x[0].view(-1, 10), "w"))


@check("two")
def a_training_goes_on_with_more_ranks_than_before():
    # Alone, and then with a second rank, which has no file.
    for plan in (EXACT_TOP, "transform=lowrank(rank=1) feedback=residual"):
        ranks = [0]
        group, folder = dist.new_group(ranks), pathlib.Path(sys.argv[4]).parent
        with tempfile.TemporaryDirectory(dir=folder) if dist.get_rank() == 0 else contextlib.nullcontext() as own:
            shared = [own]
            dist.broadcast_object_list(shared)
            if dist.get_rank() in ranks:
                hook = DDPHook(plan, dense_below=0)
                before = wrapped(make_model(), hook, process_group=group)
                steps_of(before, sgd(before), 0, 3)
            if dist.get_rank() == 0:
                accelerate._save(hook, own, 0)
            dist.barrier()
            again = DDPHook(plan, dense_below=0)
            ddp = wrapped(make_model(), again)
            accelerate._load(again, shared[0], dist.get_rank())
            dist.barrier()
        memories = [state.memory for state in again._states.values()]
        if not memories:
            memories = [factor_residual(again, item.name) for unit in again._units for item in unit.items]
        assert any(memory.any() for memory in memories) == (dist.get_rank() == 0)
        steps_of(ddp, sgd(ddp), 3, 5)
        assert again.state_dict()["step"] == 5 and same_on_all_ranks(parameters_of(ddp))


def reduce_scatter(comm):
    n = dist.get_world_size()
    out = torch.empty(2000)
    comm(out, torch.cat(gradients(0, dist.get_rank(), (2000,) * n)), dist.group.WORLD, dist.ReduceOp.AVG)
    return out


@check("two")
def a_reduce_scatter_refuses_a_state_of_another_feedback_when_it_is_loaded():
    # (Their states have the same size.)
    saver, other = ReduceScatter(EXACT_TOP, dense_below=0), ReduceScatter("feedback=momentum index=all value=raw", dense_below=0)
    reduce_scatter(saver)
    reduce_scatter(other)
    with raises(deepreduce.ArgumentError, "feedback=residual", "feedback=momentum"):
        other.load_state_dict(saver.state_dict())
    reduce_scatter(other)
    waiting = ReduceScatter("feedback=momentum index=all value=raw", dense_below=0)
    waiting.load_state_dict(saver.state_dict())
    with raises(deepreduce.ArgumentError, "feedback=residual", "feedback=momentum"):
        reduce_scatter(waiting)


@check("two")
def an_exchange_that_refused_a_state_does_not_know_its_tensors_yet():
    """Residuals of the tensors that were refused were kept for the next ones; frames of larger ones wrote past them."""
    rank, lowrank = dist.get_rank(), "transform=lowrank(rank=1) feedback=residual"
    small, large, many = (3000, 40, 500), (3000, 70, 500), (9000, 70, 800, 30)
    given = lambda step, sizes: [gradient.view(-1, 10) for gradient in gradients(step, rank, sizes)]
    for plan, options in (
        (EXACT_TOP, {}),
        (EXACT_TOP + " exchange=owner", {}),
        (lowrank, {}),
        ([EXACT_TOP, lowrank], {"control": "fit(target_ms=20)"}),
    ):
        new = lambda plan=plan, options=options: AllReduce(plan, dense_below=0, **options)
        saver, first, second = new(), new(), new()
        saver(given(0, small))
        for reduce in (first, second):
            reduce.load_state_dict(saver.state_dict())
            for _ in range(2):
                with raises(deepreduce.ArgumentError, "the residual of 1 is of 40 elements, but it has 70 elements here"):
                    reduce(given(1, large))
            assert reduce.stats().memory == 0 and reduce.state_dict()["step"] == 1
        found = [given(1, small) for _ in range(2)]
        saver(found[0]), first(found[1])
        assert all(map(same, *found)), plan
        second.reset()
        fresh, found = new(), [given(2, many) for _ in range(2)]
        fresh(found[0]), second(found[1])
        assert all(map(same, *found)) and fresh.stats().memory == second.stats().memory, plan
        parts = [part_of(reduce.state_dict())["residuals"] for reduce in (fresh, second)]
        assert parts[0].keys() == parts[1].keys() and all(same(parts[0][name]["state"], parts[1][name]["state"]) for name in parts[0]), plan
    hook, saver = DDPHook(EXACT_TOP, dense_below=0), AllReduce(EXACT_TOP, dense_below=0)
    saver({"0.weight": torch.randn(7), "x": torch.randn(9000)})
    hook.load_state_dict(saver.state_dict())
    ddp = wrapped(make_model(), None)
    for _ in range(2):
        with raises(deepreduce.ArgumentError, "the residual of 0.weight is of 7 elements"):
            hook.register(ddp)
        assert hook._group is None  # a model of any group may come
    hook.reset()
    big = wrapped(torch.nn.Sequential(torch.nn.Linear(200, 300)), hook)
    big(torch.randn(3, 200)).sum().backward()
    assert hook._states.keys() == {"0.weight", "0.bias"} and hook._states["0.weight"].residual.size == 60000
