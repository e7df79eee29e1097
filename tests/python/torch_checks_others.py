"""What deepreduce.torch promises beside torch.compile and FSDP2."""

import copy
import os
import pathlib
import re
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch_ranks import (
    LOSSLESS,
    LOSSY,
    check,
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
from deepreduce.torch import DDPHook, ReduceScatter


@check("two")
def a_plan_that_compresses_nothing_is_a_warning():
    for plan, options, warns in (
        (LOSSY, {"dense_below": 10**9}, True), ({"module.typo*": LOSSY}, {}, True), ("signsgd", {"dense_below": 10**9}, False),
        (LOSSY, {}, False), (LOSSLESS, {}, False), (None, {}, False),
    ):  # fmt: skip
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            deepreduce.torch.AllReduce(plan, **options)({"conv": torch.ones(3000), "b": torch.ones(7)})
        files = [warning.filename for warning in caught if "nothing is compressed: each of 2 tensors" in str(warning.message)]
        assert files == [__file__] * warns, plan  # the user's line


# ---- torch.compile ------------------------------------------------------------------------------


@check("two")
def compiled_models_train_as_plain_ddp_does():
    import torch._dynamo

    expected = train(None, 4)
    for optimize_ddp in (True, False):
        for backend in ("eager", "aot_eager"):
            torch._dynamo.reset()
            with torch._dynamo.config.patch(optimize_ddp=optimize_ddp):
                ddp = wrapped(make_model(), DDPHook(LOSSLESS), bucket_cap_mb=2)
                compiled = torch.compile(ddp, backend=backend)
                steps_of(compiled, torch.optim.Adam(ddp.parameters(), lr=0.01), 0, 4)
            assert same(parameters_of(ddp), expected), (optimize_ddp, backend)
    torch._dynamo.reset()
    hook = DDPHook(LOSSY)
    ddp = wrapped(torch.compile(make_model(), backend="eager"), hook, bucket_cap_mb=2)
    steps_of(ddp, torch.optim.Adam(ddp.parameters(), lr=0.01), 0, 2)
    assert set(part_of(hook.state_dict())["residuals"]) == {name for name, _ in make_model().named_parameters()}


@check("two")
def inductor_trains():
    import torch._dynamo

    torch._dynamo.reset()
    ddp = wrapped(make_model(), DDPHook(LOSSLESS), bucket_cap_mb=25)
    try:
        steps_of(torch.compile(ddp), torch.optim.SGD(ddp.parameters(), lr=0.01), 0, 2)
    except Exception as error:
        if "compiler" in str(error).lower():
            return "skipped: inductor has no C++ compiler"
        raise
    assert same_on_all_ranks(parameters_of(ddp))
    assert torch.allclose(parameters_of(ddp), train(None, 2, "SGD"), atol=1e-5)


@check("two")
def compiled_autograd_is_refused_by_name():
    import torch._dynamo

    torch._dynamo.reset()
    with torch._dynamo.config.patch(optimize_ddp="python_reducer", compiled_autograd=True):
        ddp = wrapped(make_model(), DDPHook(LOSSY))
        compiled = torch.compile(ddp, backend="eager")
        try:
            steps_of(compiled, torch.optim.SGD(ddp.parameters(), lr=0.01), 0, 1)
        except Exception as error:
            assert "python_reducer" in str(error), error
            return None
    raise AssertionError("nothing was raised")


# ---- FSDP2 --------------------------------------------------------------------------------------


def shard(model, plan, dense_below=0):
    mesh, found = init_device_mesh("cpu", (dist.get_world_size(),)), []
    for layer in [model[0], model[3], model]:
        fully_shard(layer, mesh=mesh)
        if plan is not None:
            found.append(ReduceScatter(plan, dense_below=dense_below))
            layer.set_custom_reduce_scatter(found[-1])
    return model, found


def sharded_parameters(model):
    return torch.cat([parameter.detach().full_tensor().reshape(-1) for parameter in model.parameters()])


@check("two")
def fsdp2_with_a_lossless_plan_trains_as_without():
    results = []
    for plan in (None, LOSSLESS, LOSSY):
        model, comms = shard(make_model(), plan)
        steps_of(model, torch.optim.Adam(model.parameters(), lr=0.01), 0, 6)
        results.append(sharded_parameters(model))
        assert same_on_all_ranks(results[-1])
    assert same(results[1], results[0]) and not same(results[2], results[0])
    assert all(comm.stats().steps == 6 and 0 < comm.stats().last.frame < comm.stats().last.dense for comm in comms)


@check("two")
def fsdp1_is_refused_by_name():
    sharded = FullyShardedDataParallel(torch.nn.Linear(8, 8), device_id=torch.device("cpu"))
    with raises(deepreduce.ArgumentError, "not a FullyShardedDataParallel", "FSDP2"):
        DDPHook(LOSSLESS).register(sharded)


@check("two")
def fsdp2_goes_on_from_a_state():
    def run(model, comms, optimizer, first, last):
        steps_of(model, optimizer, first, last)
        return sharded_parameters(model)

    whole, comms = shard(make_model(), LOSSY)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.01)
    run(whole, comms, optimizer, 0, 3)
    saved = copy.deepcopy([whole.state_dict(), *(comm.state_dict() for comm in comms)])
    expected = run(whole, comms, optimizer, 3, 6)
    again, others = shard(make_model(), LOSSY)
    again.load_state_dict(saved[0])
    for comm, state in zip(others, saved[1:]):
        comm.load_state_dict(state)
    assert same(run(again, others, torch.optim.SGD(again.parameters(), lr=0.01), 3, 6), expected)
    with raises(deepreduce.ArgumentError, "bytes"):
        others[0].load_state_dict(others[1].state_dict())
    state, other = others[0].state_dict(), f"rank{1 - dist.get_rank()}"
    with raises(deepreduce.ArgumentError, "each rank has its own"):
        others[0].load_state_dict({"version": state["version"], "step": 3, "ranks": 2, other: part_of(state)})


@check("two")
def fsdp2_names_the_option_that_differs():
    rank, n = dist.get_rank(), dist.get_world_size()
    for plan, options, words in [
        (LOSSLESS, {}, f"has plan {deepreduce.Plan(LOSSLESS)}, others {deepreduce.Plan(LOSSY)}"),
        (LOSSY, {"seed": 5}, "has seed 5, others 0"),
        (LOSSY, {"dense_below": 3000}, "has dense_below 3000, others 0"),
    ]:
        comm = ReduceScatter(plan, **{"dense_below": 0, **options}) if rank == 1 else ReduceScatter(LOSSY, dense_below=0)
        for _ in range(2):
            with raises(deepreduce.ArgumentError, "rank 1", words):
                comm(torch.empty(2000), torch.randn(n * 2000), dist.group.WORLD, dist.ReduceOp.AVG)


@check("two")
def fsdp2_names_a_rank_that_cannot_encode():
    comm, n = ReduceScatter(LOSSY, dense_below=0), dist.get_world_size()
    x, out = torch.randn(n * 2000), torch.empty(2000)
    comm(out, x, dist.group.WORLD, dist.ReduceOp.AVG)
    if dist.get_rank() == 1:
        x[2500] = float("nan")
    with raises(deepreduce.PeerError, "rank 1", "NaN"):
        comm(out, x, dist.group.WORLD, dist.ReduceOp.AVG)
    with raises(deepreduce.Unsupported, "MAX"):
        comm(out, x, dist.group.WORLD, dist.ReduceOp.MAX)
    with raises(deepreduce.Unsupported, "async_op"):
        comm(out, x, dist.group.WORLD, dist.ReduceOp.AVG, async_op=True)
    with raises(deepreduce.ArgumentError, "serves one module", "had no gradient in some step", "modules of their own"):
        comm(torch.empty(10), torch.empty(10 * n), dist.group.WORLD, dist.ReduceOp.AVG)


# ---- The document -------------------------------------------------------------------------------

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "PYTORCH.md"


def example(words):
    """The Python of docs/PYTORCH.md that has these words."""
    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), flags=re.S | re.M)
    (found,) = (block for block in blocks if words in block)
    return found


@check("two")
def the_document_does_what_it_says():
    code, names = example("init_process_group"), {}
    for line in ('dist.init_process_group("gloo")', "dist.destroy_process_group()"):
        assert line in code
        code = code.replace(line, "")
    os.chdir(pathlib.Path(sys.argv[4]).parent)
    exec(code, names)
    assert names["hook"].stats().steps == 5 and same_on_all_ranks(parameters_of(names["model"]))
    saved = torch.load(f"checkpoint{dist.get_rank()}.pt", weights_only=True)["hook"]
    assert saved["step"] == 3 and part_of(saved)["residuals"].keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}

    model = names["model"] = make_model()
    names["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    names["loss_of"] = lambda model: model(torch.randn(8, 20)).square().mean()
    exec(example("AllReduce"), names)
    assert names["reduce"].stats().steps == 3 and same_on_all_ranks(parameters_of(model))

    names["model"] = make_model()
    names["mesh"] = init_device_mesh("cpu", (dist.get_world_size(),))
    exec(example("fully_shard"), names)
    steps_of(names["model"], torch.optim.SGD(names["model"].parameters(), lr=0.1), 0, 2)
    assert same_on_all_ranks(sharded_parameters(names["model"]))
