"""What DDPHook promises while all goes well."""

import contextlib
import copy
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch_ranks import (
    DDP,
    LOSSLESS,
    LOSSY,
    check,
    gradients,
    make_model,
    parameters_of,
    part_of,
    raises,
    same,
    same_on_all_ranks,
    steps_of,
    train,
    wrapped,
)

import deepreduce
from deepreduce.torch import AllReduce, DDPHook, state_for_new_rank


# ---- DDP: as plain DDP --------------------------------------------------------------------------


@check("two")
def a_lossless_plan_trains_as_plain_ddp_does():
    for kind in ("Adam", "SGD"):
        expected = train(None, kind=kind)
        for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"bucket_cap_mb": 25}):
            for flat in (True, False):
                hook = DDPHook(LOSSLESS, flat=flat)
                assert same(train(hook, kind=kind, **options), expected), (kind, options, flat)
                assert hook.stats().total.repeats == 0 and hook.stats().steps == 8


@check("two", "four")
def half_types_are_rounded_once():
    n, rank = dist.get_world_size(), dist.get_rank()
    for dtype in (torch.bfloat16, torch.float16):
        gradients_of_ranks = [torch.cat(gradients(3, other)).to(dtype) for other in range(n)]
        x = gradients_of_ranks[rank].clone()
        AllReduce(LOSSLESS)([x])
        assert torch.equal(x, sum(part.float() / n for part in gradients_of_ranks).to(dtype))
        assert same_on_all_ranks(train(DDPHook(LOSSY), kind="SGD", dtype=dtype))
    if n == 2:
        expected = train(None, kind="SGD", dtype=torch.bfloat16)
        assert same(train(DDPHook(LOSSLESS), kind="SGD", dtype=torch.bfloat16), expected)


@check("two")
def types_may_be_mixed():
    def model():
        return nn.ModuleDict({"a": make_model(), "b": make_model(torch.bfloat16)})

    def run(hook):
        ddp = wrapped(Both(model()), hook)
        steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.01), 0, 4)
        return parameters_of(ddp)

    assert same(run(DDPHook(LOSSLESS)), run(None))


def Both(parts):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = parts

        def forward(self, x):
            return self.parts["a"](x) + self.parts["b"](x.to(torch.bfloat16)).float()

    return Sum()


@check("two")
def unused_parameters_and_no_sync_are_as_in_plain_ddp():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.stem, self.a, self.b, self.never = (nn.Linear(20, 20) for _ in range(4))

        def forward(self, x, branch):
            return (self.a if branch else self.b)(self.stem(x))

    def run(hook):
        ddp = wrapped(Branches(), hook, find_unused_parameters=True, bucket_cap_mb=0.002)
        optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
        for step in range(8):
            torch.manual_seed(10 * step + dist.get_rank())
            optimizer.zero_grad()
            with ddp.no_sync() if step % 3 == 1 else contextlib.nullcontext():
                ddp(torch.randn(4, 20), step % 2).square().mean().backward()
            if step % 3 == 1:  # a second part of the batch, whose gradients are added
                ddp(torch.randn(4, 20), (step + dist.get_rank()) % 2).square().mean().backward()
            optimizer.step()
        return parameters_of(ddp)

    expected = run(None)
    hook = DDPHook(LOSSLESS, dense_below=0)
    assert same(run(hook), expected)
    assert hook.stats().steps == 8
    assert same_on_all_ranks(run(DDPHook(LOSSY, dense_below=0)))


@check("two")
def memory_layouts_other_than_row_major_work():
    def run(hook):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3)).to(
            memory_format=torch.channels_last
        )
        ddp = wrapped(model, hook)
        for step in range(3):
            torch.manual_seed(step + 9 * dist.get_rank())
            ddp.zero_grad()
            ddp(torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)).square().mean().backward()
        return torch.cat([parameter.grad.reshape(-1) for parameter in ddp.parameters()])

    assert same(run(DDPHook(LOSSLESS, dense_below=0)), run(None))


@check("two")
def a_memory_layout_that_changes_after_register_is_refused():
    for steps in (0, 1):  # DDP makes its buckets by the parameters, and once more after the first step
        hook, model = DDPHook(LOSSY, dense_below=0), nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3))
        ddp = wrapped(model, hook, gradient_as_bucket_view=steps == 0)
        for _ in range(steps):
            ddp(torch.randn(2, 3, 8, 8)).square().mean().backward()
        ddp.zero_grad()
        ddp.to(memory_format=torch.channels_last)
        with raises(deepreduce.ArgumentError, ".weight has changed since register"):
            ddp(torch.randn(2, 3, 8, 8)).square().mean().backward()


@check("two")
def a_hook_that_a_model_refuses_may_be_registered_with_another():
    saver, taken = DDPHook(LOSSY, dense_below=0), DDPHook(LOSSY, dense_below=0)
    first = wrapped(make_model(), saver)
    steps_of(first, torch.optim.SGD(first.parameters(), lr=0.01), 0, 2)
    taken.load_state_dict(saver.state_dict())
    for _ in range(2):
        with raises(RuntimeError, "can only be called once"):
            taken.register(first)
        assert str(taken.state_dict()) == str(saver.state_dict())
    again = wrapped(make_model(), taken)
    steps_of(again, torch.optim.SGD(again.parameters(), lr=0.01), 2, 3)
    assert taken.state_dict()["step"] == 3 and same_on_all_ranks(parameters_of(again))


@check("two")
def a_state_of_another_memory_layout_is_refused_by_name():
    """Residuals and factors are saved in the order of memory: of another layout each value would be of another element."""

    def stepped(plan, layout, state=None):
        torch.manual_seed(3)
        hook, model = DDPHook(plan, dense_below=0), nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)).to(memory_format=layout)
        ddp = wrapped(model, hook)
        if state is None:
            ddp(torch.randn(2, 3, 8, 8)).square().mean().backward()
        else:
            hook.load_state_dict(state)
        return hook.state_dict()

    rows, last = torch.contiguous_format, torch.channels_last
    own = f"rank{dist.get_rank()}"
    for plan in (LOSSY, LOSSY + " exchange=owner", "transform=lowrank(rank=2)", "transform=lowrank(rank=2) feedback=residual"):
        states = {layout: stepped(plan, layout) for layout in (rows, last)}
        assert states[last][own]["orders"] == {"0.weight": "0 2 3 1", "1.weight": "0 2 3 1"} and "orders" not in states[rows][own]
        for layout, state in states.items():
            assert str(stepped(plan, layout, state)) == str(state)
        with raises(deepreduce.ArgumentError, ".weight is by dimensions 0 2 3 1 in memory, and the tensor here is row by row"):
            stepped(plan, rows, states[last])
        with raises(deepreduce.ArgumentError, ".weight is row by row in memory, and the tensor here is by dimensions 0 2 3 1"):
            stepped(plan, last, states[rows])
        before = {key: value for key, value in states[last][own].items() if key not in ("orders", "holds")}
        assert "orders" in stepped(plan, last, {**states[last], "version": 2, own: before})[own]  # as earlier versions saved it
    stepped(LOSSY, rows, state_for_new_rank(stepped(LOSSY, last)))
    state = stepped(LOSSY, rows)
    part = {key: value for key, value in state[own].items() if key != "holds"}
    with raises(deepreduce.ArgumentError, "orders of the state is 3, not"):
        stepped(LOSSY, rows, {**state, own: {**part, "orders": 3}})


@check("two")
def first_steps_may_be_dense():
    for steps in (3, 4):
        hook = DDPHook(LOSSY, start=3)
        assert same(train(hook, steps), train(None, steps)) == (steps == 3)
    total = hook.stats().total
    assert total.dense == 4 * 4 * parameters_of(make_model()).numel() and total.frame > 0


@check("two")
def small_parameters_travel_exactly():
    plain, ddp = wrapped(make_model(), None), wrapped(make_model(), DDPHook("sparsify=topr(count=3)", dense_below=1000))
    for model in (plain, ddp):
        torch.manual_seed(dist.get_rank())
        model(torch.randn(8, 20)).square().mean().backward()
    exact = {
        name: same(a.grad, b.grad) for (name, a), b in zip(plain.module.named_parameters(), ddp.module.parameters())
    }
    large = {name for name, parameter in plain.module.named_parameters() if parameter.numel() >= 1000}
    assert large and {name for name, equal in exact.items() if not equal} == large


@check("two")
def plans_go_by_name():
    plain = wrapped(make_model(), None)
    rules = [("0.*", None), ("*.bias", LOSSLESS), ("3.weight", "sparsify=threshold(value=1e30)"), ("5.*", LOSSLESS)]
    for plan in (rules, dict(rules)):
        ddp = wrapped(make_model(), DDPHook(plan, dense_below=0))
        for model in (plain, ddp):
            torch.manual_seed(dist.get_rank())
            model.zero_grad()
            model(torch.randn(8, 20)).square().mean().backward()
        for (name, a), b in zip(plain.module.named_parameters(), ddp.module.parameters()):
            assert same(b.grad, torch.zeros_like(b) if name == "3.weight" else a.grad), name


# ---- DDP: what is its own -----------------------------------------------------------------------


@check("two", "four")
def all_ranks_have_the_same_parameters():
    for plan in (
        LOSSY,
        "sparsify=random(ratio=0.1) feedback=residual index=golomb",
        "index=seeded(ratio=0.1) value=raw",
        "sparsify=topr(ratio=0.05) feedback=residual index=bloom(policy=p2,fpr=0.01) value=qsgd",
        "sparsify=topr(ratio=0.05) feedback=residual index=auto value=auto(error=0.02)",
    ):
        for flat in (True, False) if dist.get_world_size() == 2 else (True,):
            assert same_on_all_ranks(train(DDPHook(plan, flat=flat, seed=5), 4)), (plan, flat)


@check("two")
def random_numbers_follow_rank_and_step():
    # Shared ones: all ranks keep the same positions, so the mean has no more than each of them.
    x = torch.ones(10000)
    reduce, results = AllReduce("sparsify=random(ratio=0.01) index=golomb", dense_below=0), []
    for _ in range(2):
        x.fill_(1.0)
        reduce([x])
        results.append(x.nonzero().flatten())
        assert len(results[-1]) == 100 and (x[results[-1]] == 1).all()
    assert not torch.equal(*results)
    # Not the same positions in each frame.
    twins = [torch.ones(10000), torch.ones(10000)]
    AllReduce("sparsify=random(ratio=0.01) index=golomb", frame_bytes=40000)(twins)
    assert not torch.equal(*twins) and all(twin.sum() == 100 for twin in twins)
    # Private ones: of the same gradient, ranks round differently.
    x = torch.full((16000,), 0.3)
    AllReduce("index=all value=qsgd(levels=1,bucket=16)", dense_below=0)([x])
    assert len(x.unique()) == 3  # both ranks round down, one of them up, both up


@check("two")
def a_resumed_training_is_the_same():
    drawn = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=qsgd"
    for plan, flat in ((LOSSY, True), (drawn, True), (drawn, False)):
        hook = DDPHook(plan, flat=flat)
        whole = wrapped(make_model(), hook)
        optimizer, saved = torch.optim.Adam(whole.parameters(), lr=0.01), {}
        for step in range(6):
            saved[step] = copy.deepcopy((whole.module.state_dict(), optimizer.state_dict(), hook.state_dict()))
            steps_of(whole, optimizer, step, step + 1)
        for step in (1, 2, 5):
            model, again = make_model(), DDPHook(plan, flat=flat)
            if step == 2:
                again.load_state_dict(saved[step][2])  # before it knows the parameters, or behind
            ddp = wrapped(model, again)
            other = torch.optim.Adam(ddp.parameters(), lr=0.01)
            if step != 2:
                again.load_state_dict(saved[step][2])
            model.load_state_dict(saved[step][0])
            other.load_state_dict(saved[step][1])
            steps_of(ddp, other, step, 6)
            assert same(parameters_of(ddp), parameters_of(whole)), (plan, flat, step)


@check("two")
def a_state_goes_through_torch_save():
    hook = DDPHook(LOSSY)
    train(hook, 3)
    path = pathlib.Path(sys.argv[4]).parent / f"state{dist.get_rank()}"
    torch.save(hook.state_dict(), path)
    loaded, saved = torch.load(path, weights_only=True), hook.state_dict()
    saved_residuals, read = part_of(saved)["residuals"], part_of(loaded)["residuals"]
    assert loaded["step"] == 3 and read.keys() == saved_residuals.keys() != set()
    for name, residual in saved_residuals.items():
        assert torch.equal(read[name]["state"], residual["state"])


@check("two")
def a_state_of_something_else_is_refused_by_name():
    hook, other = DDPHook(LOSSY), DDPHook(LOSSY)
    train(hook, 2)
    state, mine = hook.state_dict(), f"rank{dist.get_rank()}"
    residuals = state[mine]["residuals"]
    wrapped(nn.Sequential(nn.Linear(20, 61)), other)
    with raises(deepreduce.ArgumentError, "0.weight", "1200", "1220"):
        other.load_state_dict({**state, mine: {"residuals": {"0.weight": residuals["0.weight"]}}})
    with raises(deepreduce.ArgumentError, "3.weight", "no such tensor"):
        other.load_state_dict({**state, mine: {"residuals": {"3.weight": residuals["3.weight"]}}})
    with raises(deepreduce.ArgumentError, f"the state is of rank {1 - dist.get_rank()}, this is rank", "each rank has its own"):
        hook.load_state_dict({**{key: state[key] for key in state if key != mine}, f"rank{1 - dist.get_rank()}": state[mine]})
    with raises(deepreduce.ArgumentError, "version 9"):
        hook.load_state_dict({**state, "version": 9})
    unsaved = DDPHook(LOSSLESS)
    unsaved.load_state_dict(state)
    for _ in range(2):
        with raises(deepreduce.ArgumentError, "its plan requires 0"):
            wrapped(make_model(), unsaved)
    unsaved.reset()
    wrapped(make_model(), unsaved)


@check("two")
def reset_begins_anew():
    hook, model = DDPHook("sparsify=random(ratio=0.1) feedback=residual index=golomb"), make_model()
    ddp, results = wrapped(model, hook), []
    for _ in range(2):
        model.load_state_dict(make_model().state_dict())
        hook.reset()
        steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.01), 0, 4)
        results.append(parameters_of(ddp))
    assert same(*results) and hook.stats().steps == 4


@check("two")
def figures_are_of_what_happened():
    hook = DDPHook(LOSSY, dense_below=0)
    train(hook, 5, bucket_cap_mb=25)
    stats, elements = hook.stats(), parameters_of(make_model()).numel()
    assert stats.steps == 5 and stats.last.dense == 4 * elements and stats.total.dense == 20 * elements
    assert stats.last.kept == elements // 20 or stats.last.kept == -(-elements // 20)
    assert 0 < stats.last.frame < stats.last.sent == stats.last.received < stats.last.frame * 1.5 + 100
    for name in ("encode", "wait", "merge", "own"):
        assert 0 < getattr(stats.last, name) < getattr(stats.total, name) < 5


@check("two")
def two_models_and_two_groups_do_not_meet():
    other = dist.new_group([0, 1])
    expected = [train(None), train(None, kind="SGD")]
    models = [wrapped(make_model(), DDPHook(LOSSLESS)), wrapped(make_model(), DDPHook(LOSSLESS), process_group=other)]
    optimizers = [torch.optim.Adam(models[0].parameters(), lr=0.01), torch.optim.SGD(models[1].parameters(), lr=0.01)]
    for step in range(8):
        for model, optimizer in zip(models, optimizers):
            steps_of(model, optimizer, step, step + 1)
    assert all(same(parameters_of(model), parameters) for model, parameters in zip(models, expected))


@check("two")
def ranks_may_have_uneven_inputs():
    """DDP's join: a rank that has no more batches takes part with zeros."""

    def run(hook):
        ddp = wrapped(make_model(), hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        with ddp.join(divide_by_initial_world_size=True):
            for step in range(4 if dist.get_rank() else 6):
                torch.manual_seed(step + 9 * dist.get_rank())
                optimizer.zero_grad()
                ddp(torch.randn(8, 20)).square().mean().backward()
                optimizer.step()
        return parameters_of(ddp)

    expected = run(None)
    hook = DDPHook(LOSSLESS)
    assert same(run(hook), expected) and hook.stats().steps == 6
    assert same_on_all_ranks(run(DDPHook(LOSSY)))


@check("two")
def wrong_uses_are_refused():
    hook = DDPHook(LOSSY)
    with raises(deepreduce.ArgumentError, "Sequential"):
        hook.register(make_model())
    wrapped(make_model(), hook)
    with raises(deepreduce.ArgumentError, "already"):
        wrapped(make_model(), hook)
    with raises(deepreduce.PlanError, "plan:"):
        DDPHook("nonsense")
    frozen = DDP(make_model())
    frozen.module[0].weight.requires_grad_(False)
    DDPHook(LOSSY).register(frozen)
    frozen.module[0].weight.requires_grad_(True)
    with raises(deepreduce.ArgumentError, "shape (60, 20)", "at register"):
        steps_of(frozen, torch.optim.SGD(frozen.parameters(), lr=0.01), 0, 1)
    with raises(deepreduce.ArgumentError, "6.bias is float64", "float32"):
        wrapped(make_model(torch.float64), DDPHook(LOSSY))
