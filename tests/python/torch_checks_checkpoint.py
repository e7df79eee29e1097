"""What a checkpoint of torch.distributed.checkpoint holds, what another number of ranks loads from it, and states of earlier versions."""

import contextlib
import logging
import pathlib
import sys
import warnings
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch_ranks import check, factor_residual, gradients, make_model, parameters_of, part_of, raises, same, steps_of, wrapped

import deepreduce
from deepreduce import accelerate
from deepreduce.torch import AllReduce, DDPHook, ReduceScatter, load_checkpoint, state_for_new_rank

EXACT_TOP = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=raw"
LOWRANK = "transform=lowrank(rank=2) feedback=residual"
DGC = "sparsify=topr(ratio=0.05) feedback=dgc index=golomb value=raw"
FILES = pathlib.Path(__file__).parent / "torch_states"


def folder(name):
    """The same on all ranks, and removed with the suite's."""
    return str(pathlib.Path(sys.argv[4]).parent / name)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def matrices(step, rank):
    return [gradient.view(-1, 10) for gradient in gradients(step, rank)]


def residuals_of(exchange):
    """[d] what this rank keeps, f64."""
    found = [
        torch.from_numpy(state.residual.copy()) if state.memory.any() else torch.zeros(exchange._elements(name))
        for name, state in exchange._states.items()
    ]
    for unit in exchange._units:
        if unit.kind == "factors":
            found += [torch.from_numpy(factor_residual(exchange, item.name)) for item in unit.items]
    return torch.cat(found).double()


def summed(x, group=None):
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x


def new_groups(size):
    """(a group of the first ranks, whether this rank is in it)"""
    return dist.new_group(list(range(size))), dist.get_rank() < size


@contextlib.contextmanager
def logged():
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("deepreduce.torch")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


@check("two")
def one_checkpoint_of_all_ranks_has_the_residuals_of_each_and_goes_on_with_the_same_bits():
    for number, plan in enumerate((EXACT_TOP, LOWRANK, DGC)):
        hook = DDPHook(plan, dense_below=0)
        ddp = wrapped(make_model(), hook)
        optimizer = sgd(ddp)
        steps_of(ddp, optimizer, 0, 3)
        path = folder(f"same{number}")
        saved = {"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict(), "hook": hook.state_dict() if number else hook}
        dcp.save(saved, checkpoint_id=path)
        steps_of(ddp, optimizer, 3, 6)
        for way in ("filled by dcp", "before the tensors are known", "when they are"):
            again, model = DDPHook(plan, dense_below=0), make_model()
            if way == "before the tensors are known":
                load_checkpoint(again, path)
            other = wrapped(model, again)
            restored = sgd(other)
            steps_of(other, restored, 0, 1)  # (so that the optimizer has a state to fill)
            if way != "before the tensors are known":
                again.reset()
            else:
                load_checkpoint(again, path)
            taken = {"model": model.state_dict(), "optimizer": restored.state_dict(), **({"hook": again} if way == "filled by dcp" else {})}
            dcp.load(taken, checkpoint_id=path)
            if way == "when they are":
                load_checkpoint(again, path)
            model.load_state_dict(taken["model"])
            restored.load_state_dict(taken["optimizer"])
            steps_of(other, restored, 3, 6)
            assert same(parameters_of(other), parameters_of(ddp)), (plan, way)
            assert torch.equal(residuals_of(again), residuals_of(hook)), (plan, way)


@check("two")
def a_loop_and_a_reduce_scatter_are_loaded_before_they_know_their_tensors():
    rank = dist.get_rank()
    reduce, scatter = AllReduce(EXACT_TOP, dense_below=0), ReduceScatter(EXACT_TOP, dense_below=0)

    def scattered(comm, step):
        out = torch.empty(2000)
        comm(out, torch.cat(gradients(step, rank, (2000, 2000))), dist.group.WORLD, dist.ReduceOp.AVG)
        return out

    for step in range(2):
        reduce(matrices(step, rank)), scattered(scatter, step)
    path = folder("loop")
    dcp.save({"a": reduce, "b": scatter}, checkpoint_id=path)
    again, others = AllReduce(EXACT_TOP, dense_below=0), ReduceScatter(EXACT_TOP, dense_below=0)
    with raises(deepreduce.ArgumentError, "2 ranks", "load_checkpoint loads all"):
        dcp.load({"a": again}, checkpoint_id=path)
    with raises(deepreduce.ArgumentError, "the checkpoint has no hook, but a, b"):
        load_checkpoint(again, path)
    load_checkpoint(again, path, "a")
    load_checkpoint(others, dcp.FileSystemReader(path), "b")
    found = [matrices(2, rank) for _ in range(2)]
    reduce(found[0]), again(found[1])
    assert all(map(torch.equal, *found))
    assert torch.equal(scattered(scatter, 2), scattered(others, 2))


@check("two")
def what_dcp_did_not_fill_is_no_state():
    reduce, rank = AllReduce(EXACT_TOP, dense_below=0), dist.get_rank()
    reduce(matrices(0, rank))
    path = folder("less")
    dcp.save({"hook": reduce}, checkpoint_id=path)
    fewer = AllReduce(EXACT_TOP, dense_below=0)
    fewer(matrices(0, rank)[:2])
    with raises(deepreduce.ArgumentError, f"rank{rank} of the state holds `residuals 2`, and `residuals 3` was saved"):
        dcp.load({"hook": fewer}, checkpoint_id=path)


@check("two")
def a_state_is_a_copy_that_a_later_step_does_not_change():
    for plan in (EXACT_TOP, LOWRANK):
        reduce = AllReduce(plan, dense_below=0)
        reduce(matrices(0, dist.get_rank()))
        part = part_of(reduce.state_dict())
        tensors = [entry["state"] for entry in part["residuals"].values()] + [*part.get("transforms", {}).values()]
        before = [tensor.clone() for tensor in tensors]
        reduce(matrices(1, dist.get_rank()))
        assert tensors and all(map(torch.equal, tensors, before))


@check("two")
def a_checkpoint_that_is_written_beside_later_steps_is_of_the_step_that_it_was_asked_at():
    rank, path = dist.get_rank(), folder("beside")
    reduce, again = AllReduce(EXACT_TOP, dense_below=0), AllReduce(EXACT_TOP, dense_below=0)
    reduce(matrices(0, rank))
    residuals = residuals_of(reduce)
    writing = dcp.async_save({"hook": reduce}, checkpoint_id=path, process_group=dist.new_group(backend="gloo"))
    for step in range(1, 4):
        reduce(matrices(step, rank))
    writing.result()
    dist.barrier()
    again(matrices(0, rank))
    load_checkpoint(again, path)
    assert again.state_dict()["step"] == 1 and torch.equal(residuals_of(again), residuals)


@check("four")
def residuals_add_to_the_mean_of_another_number_of_ranks_what_they_would_have_added():
    """The mean over n ranks of residuals is what is still to be sent; m ranks that load them have the same mean."""
    rank = dist.get_rank()
    for number, plan in enumerate((EXACT_TOP, LOWRANK)):
        for before, after in ((4, 2), (2, 4), (4, 3), (3, 1)):
            (old, was), (new, is_here) = new_groups(before), new_groups(after)
            path, mean = folder(f"ranks{number}{before}{after}"), torch.zeros(3540, dtype=torch.float64)
            if was:
                saver = AllReduce(plan, dense_below=0, group=old)
                for step in range(3):
                    saver(matrices(step, rank))
                mean = summed(residuals_of(saver), old) / before
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    dcp.save({"hook": saver}, checkpoint_id=path, process_group=old)
            dist.broadcast(mean, 0)
            dist.barrier()
            if is_here:
                loaded = AllReduce(plan, dense_below=0, group=new)
                with logged() as lines:
                    load_checkpoint(loaded, path)
                    loaded([torch.zeros_like(matrix) for matrix in matrices(0, rank)])  # (it learns of its tensors)
                    load_checkpoint(loaded, path)
                assert not lines and loaded.state_dict()["step"] == 3
                own = residuals_of(loaded)
                assert torch.allclose(summed(own, new) / after, mean, rtol=1e-5, atol=1e-7), (plan, before, after)
                assert own.any() == (rank < before)
                x = matrices(3, rank)
                loaded(x)
                first = x[0].clone()
                dist.broadcast(first, 0, group=new)
                assert same(first, x[0])
            dist.barrier()


@check("four")
def one_checkpoint_of_several_groups_has_the_residuals_of_each():
    """As HSDP's: groups of ranks that exchange apart from each other, and one checkpoint."""
    rank = dist.get_rank()
    for number, groups in enumerate(([[0, 1], [2, 3]], [[0, 3], [1, 2]], [[0, 1, 2], [3]])):
        group = next(made for members, made in [(members, dist.new_group(members)) for members in groups] if rank in members)
        size, path = dist.get_world_size(group), folder(f"groups{number}")
        exchanges = [AllReduce(EXACT_TOP, dense_below=0, group=group), ReduceScatter(EXACT_TOP, dense_below=0)]

        def stepped(exchanges, step):
            x, out = matrices(step, rank), torch.empty(600)
            exchanges[0](x), exchanges[1](out, torch.cat(gradients(step, rank, (600,) * size)), group, dist.ReduceOp.AVG)
            return [*x, out]

        def new():
            return [AllReduce(EXACT_TOP, dense_below=0, group=group), ReduceScatter(EXACT_TOP, dense_below=0)]

        for step in range(2):
            stepped(exchanges, step)
        states = [exchange.state_dict() for exchange in exchanges]
        dcp.save({"a": exchanges[0], "b": exchanges[1]}, checkpoint_id=path)
        expected = stepped(exchanges, 2)
        for options in ({}, {"group": group}):
            for known in (False, True):
                loaded = new()
                if known:
                    stepped(loaded, 9)
                for key, exchange in zip("ab", loaded):
                    load_checkpoint(exchange, path, key, **options)
                assert all(map(same, stepped(loaded, 2), expected)), (groups, options, known)
        loaded = new()
        stepped(loaded, 9)
        dcp.load(dict(zip("ab", loaded)), checkpoint_id=path)
        assert all(map(same, stepped(loaded, 2), expected)), groups
        loaded = new()  # as a version saved it that named ranks by their numbers in the group
        for exchange, state in zip(loaded, states):
            part = {key: value for key, value in part_of(state).items() if key not in ("group", "holds")}
            exchange.load_state_dict({"version": 2, "step": 2, "ranks": size, f"rank{dist.get_rank(group)}": part})
        assert all(map(same, stepped(loaded, 2), expected)), groups


@check("four")
def a_checkpoint_of_groups_is_refused_by_others():
    rank, path = dist.get_rank(), folder("others")
    pairs, crossed = ([dist.new_group(members) for members in groups] for groups in (([0, 1], [2, 3]), ([0, 2], [1, 3])))
    reduce, world, other = (AllReduce(EXACT_TOP, dense_below=0, group=group) for group in (pairs[rank // 2], None, crossed[rank % 2]))
    for exchange in (reduce, world, other):
        exchange(matrices(0, rank))
    before = [exchange.state_dict() for exchange in (reduce, world, other)]
    dcp.save({"hook": reduce}, checkpoint_id=path)
    of_pair = f"of several groups, {[0, 1] if rank < 2 else [2, 3]} and others"
    with raises(deepreduce.ArgumentError, of_pair, "this group is [0, 1, 2, 3] of 4 ranks", "as they were"):
        load_checkpoint(world, path)
    with raises(deepreduce.ArgumentError, of_pair, f"this group is {[0, 2] if rank % 2 == 0 else [1, 3]} of 4 ranks"):
        load_checkpoint(other, path)
    with raises(deepreduce.ArgumentError, of_pair, "of 2 ranks"), mock.patch.object(dist, "get_world_size", lambda *_: 2):
        load_checkpoint(reduce, path)  # (the other group is gone)
    late = AllReduce(EXACT_TOP, dense_below=0)
    load_checkpoint(late, path)  # (it takes this rank's group to be the same, until it knows)
    with raises(deepreduce.ArgumentError, of_pair, "this group is [0, 1, 2, 3] of 4 ranks"):
        late(matrices(1, rank))
    for exchange, state in zip((reduce, world, other), before):
        now, then = part_of(exchange.state_dict()), part_of(state)
        assert all(same(now["residuals"][name]["state"], then["residuals"][name]["state"]) for name in then["residuals"])


@check("four")
def ranks_of_plain_files_that_are_gone_are_named_in_the_log_unless_their_state_is_given():
    rank, files = dist.get_rank(), folder("plain")
    saver = AllReduce(EXACT_TOP, dense_below=0)
    for step in range(2):
        saver(matrices(step, rank))
    torch.save(saver.state_dict(), f"{files}{rank}.pt")
    mean = summed(residuals_of(saver)) / 4
    group, is_here = new_groups(2)
    dist.barrier()
    if is_here:
        own, gone = (torch.load(f"{files}{number}.pt", weights_only=True) for number in (rank, rank + 2))
        for state, warnings_ in ((own, [f"residuals of rank {rank + 2} of 4 are lost: the state has none"]), ({**gone, **own}, [])):
            reduce = AllReduce(EXACT_TOP, dense_below=0, group=group)
            reduce(matrices(0, rank))
            with logged() as lines:
                reduce.load_state_dict(state)
            assert lines == warnings_, lines
        assert torch.allclose(summed(residuals_of(reduce), group) / 2, mean, rtol=1e-5, atol=1e-7)
    dist.barrier()


@check("four")
def accelerates_files_lose_no_residuals_where_ranks_are_gone():
    rank, path = dist.get_rank(), pathlib.Path(folder("accelerate"))
    saver = AllReduce(EXACT_TOP, dense_below=0)
    for step in range(2):
        saver(matrices(step, rank))
    path.mkdir(exist_ok=True)
    accelerate._save(saver, path, rank)
    dist.barrier()
    mean = summed(residuals_of(saver)) / 4
    group, is_here = new_groups(3)
    reduce = AllReduce(EXACT_TOP, dense_below=0, group=group)
    if is_here:
        reduce(matrices(0, rank))
    world, torch.distributed.get_world_size = torch.distributed.get_world_size, lambda *_: 3  # of a job of 3 ranks
    try:
        if is_here:
            accelerate._load(reduce, path, rank)
    finally:
        torch.distributed.get_world_size = world
    if is_here:
        assert torch.allclose(summed(residuals_of(reduce), group) / 3, mean, rtol=1e-5, atol=1e-7)
    dist.barrier()


@check("four")
def accelerates_files_of_ranks_that_were_gone_at_the_save_are_not_read():
    """4 ranks write a folder, then 2, then 4 load it. Files of another model in the folder stay."""
    rank, path = dist.get_rank(), pathlib.Path(folder("stale"))
    path.mkdir(exist_ok=True)
    saver = AllReduce(EXACT_TOP, dense_below=0)
    saver(matrices(0, rank))
    accelerate._save(saver, path, rank, number=1)
    accelerate._save(saver, path, rank)
    dist.barrier()
    group, is_here = new_groups(2)
    fewer = AllReduce(EXACT_TOP, dense_below=0, group=group)
    if is_here:
        for step in range(3):
            fewer(matrices(step, rank))
        stale = (path / "deepreduce_3.pt").read_bytes()
        dist.barrier(group)
        world, torch.distributed.get_world_size = torch.distributed.get_world_size, lambda *_: 2  # of a job of 2 ranks
        try:
            accelerate._save(fewer, path, rank)
        finally:
            torch.distributed.get_world_size = world
    dist.barrier()
    names = [f"deepreduce_{number}{model}.pt" for number in range(4) for model in ("", "_model1") if model or number < 2]
    assert sorted(file.name for file in path.iterdir()) == sorted(names)
    dist.barrier()
    if rank == 0:
        (path / "deepreduce_3.pt").write_bytes(stale)  # as an earlier version left it
    dist.barrier()
    more = AllReduce(EXACT_TOP, dense_below=0)
    accelerate._load(more, path, rank)
    state = more.state_dict()
    assert state["step"] == 3 and ("any" in state) == (rank >= 2)
    dist.barrier()


@check("two")
def states_of_version_1_are_loaded():
    """Loads files that an AllReduce of 2 ranks wrote before states had keys by rank, with the result of its next step."""
    rank = dist.get_rank()
    for part in torch.load(FILES / f"torch_state_v1_rank{rank}.pt", weights_only=True).values():
        assert part["state"]["version"] == 1
        x = [[g.view(-1, 10) for g in gradients(3, rank, (300, 40))] for _ in range(2)]
        known, waiting = AllReduce(part["plan"], dense_below=0), AllReduce(part["plan"], dense_below=0)
        known([torch.zeros_like(g) for g in x[0]])
        for reduce, tensors in zip((known, waiting), x):
            reduce.load_state_dict(part["state"])
            reduce(tensors)
            assert all(map(same, tensors, part["then"])), part["plan"]


@check("two")
def a_state_that_no_state_dict_gave_is_an_argument_error_and_changes_nothing():
    """Numbers beyond sense would be waited for, or scale residuals to something else; wrong types are not a KeyError."""
    rank = dist.get_rank()
    reduce = AllReduce(EXACT_TOP, dense_below=0)
    reduce(matrices(0, rank))
    good, own = reduce.state_dict(), f"rank{rank}"
    part = good[own]
    name, saved = next(iter(part["residuals"].items()))

    def residual(**changed):
        return {own: {**part, "residuals": {**part["residuals"], name: {**saved, **changed}}}}

    for message, changed in [
        *[(f"{key} of the state is", {key: value}) for key in ("step", "ranks") for value in (-1, "1", None, 0.5, 10**30, 10**5000)],
        ("ranks of the state is 10000000, not a number from 0 to 65536", {"ranks": 10**7}),
        *[("scale of the state is", {"scale": value}) for value in (float("nan"), "x", 10**5000)],
        (f"scale of {own} is inf", {own: {**part, "scale": float("inf")}}),
        ("scale of the state is inf", {"scale": 1e200, own: {**part, "scale": 1e200}}),
        (f"failures of {own} is", {own: {**part, "failures": float("nan")}}),
        (f"{own} of the state is of type", {own: None}),
        (f"{own} of the state is of type", {own: [1]}),
        *[(f"group of {own} is", {own: {**part, "group": value}}) for value in (None, 2, "01", [rank, rank], [1 - rank], [rank, -1], [rank, 10**6])],
        *[(f"the state of {name} is not a tensor of bytes", residual(state=value)) for value in (None, "x", saved["state"].float())],
        (f"the state of {name} is not a tensor of bytes", residual(state=saved["state"].reshape(2, -1))),
        (f"the residual of {name} is of None elements", residual(elements=None)),
    ]:
        with raises(deepreduce.ArgumentError, message):
            reduce.load_state_dict({**good, **changed})
        now = reduce.state_dict()
        assert now["step"] == good["step"] and same(now[own]["residuals"][name]["state"], saved["state"]), message
    with logged() as lines:
        reduce.load_state_dict({**good, "ranks": 65536})
    assert len(lines) == 1 and len(lines[0]) < 300 and "and 32751 more of 65536" in lines[0], lines


@check("two")
def a_state_with_a_value_that_is_not_finite_changes_nothing():
    rank = dist.get_rank()
    own = f"rank{rank}"
    for plan in (EXACT_TOP, f"{EXACT_TOP} exchange=owner", "feedback=momentum index=all value=raw", LOWRANK):
        reduce = AllReduce(plan, dense_below=0)
        reduce(matrices(0, rank))
        saved = reduce.state_dict()
        name, last = list(saved[own]["residuals"].items())[-1]
        state = last["state"].clone()
        state.view(torch.float32)[-1] = float("nan")
        reduce(matrices(1, rank))
        before = reduce.state_dict()
        with raises(deepreduce.ArgumentError, f"the state of {name} has a value that is not finite"):
            reduce.load_state_dict({**saved, own: {**saved[own], "residuals": {**saved[own]["residuals"], name: {**last, "state": state}}}})
        after = reduce.state_dict()
        assert after["step"] == before["step"] == 2
        for key, residual in before[own]["residuals"].items():
            assert same(after[own]["residuals"][key]["state"], residual["state"]), (plan, key)


@check("four")
def a_reduce_scatter_refuses_the_residuals_of_another_number_of_ranks():
    """Shards of 2000 elements for 2 ranks are as long as those of 1000 for 4; FSDP2 puts other parameters in them."""
    rank, path = dist.get_rank(), folder("shards")
    group, was = new_groups(2)

    def scattered(comm, ranks, members):
        out = torch.empty(4000 // ranks)
        comm(out, torch.cat(gradients(0, rank, (4000,))), members, dist.ReduceOp.AVG)
        return out

    for number, plan in enumerate((EXACT_TOP, "feedback=momentum index=all value=raw", None)):
        saver = ReduceScatter(plan, dense_below=0)
        if was:
            scattered(saver, 2, group)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dcp.save({"hook": saver}, checkpoint_id=f"{path}{number}", process_group=group)
        found = [saver.state_dict()]
        dist.broadcast_object_list(found)
        part = {key: value for key, value in found[0]["rank0"].items() if key not in ("group", "holds")}
        own = saver.state_dict() if was else {**found[0], f"rank{rank}": part}
        known, waiting, fresh = (ReduceScatter(plan, dense_below=0) for _ in range(3))
        scattered(known, 4, None)
        if plan is not None:
            before = known.state_dict()
            with raises(deepreduce.ArgumentError, "of shards for 2 ranks, and 4 ranks are here"):
                known.load_state_dict(own)
            after = known.state_dict()
            assert after["step"] == before["step"] and same(part_of(after)["states"][0], part_of(before)["states"][0])
            waiting.load_state_dict(own)
            with raises(deepreduce.ArgumentError, "of shards for 2 ranks, and 4 ranks are here"):
                scattered(waiting, 4, None)
            dist.barrier()
            if was:
                with raises(deepreduce.ArgumentError, "of shards for 2 ranks"):
                    load_checkpoint(known, f"{path}{number}")
            else:
                load_checkpoint(known, f"{path}{number}")
                assert not part_of(known.state_dict())["states"][0].any()
            own = state_for_new_rank(own)
        for comm in (known, waiting):
            comm.load_state_dict(own)
            assert torch.equal(scattered(comm, 4, None), scattered(fresh, 4, None)) and comm.state_dict()["step"] == 2
            fresh = ReduceScatter(plan, dense_below=0)
