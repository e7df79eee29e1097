"""Training whose tensors are on a GPU, for a machine that has one: `python torch_gpu.py`. bench/gpu/gpu_run.py runs it.

One rank over NCCL, where frames are in the GPU's memory for the collective, and made there; one with both backends; and two over gloo that share the GPU. Prints
a line for each check; exit code 1 if one failed, 77 where there is no GPU.
"""

import ctypes
import datetime
import os
import pathlib
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "bindings" / "python"), str(HERE)]
sys.dont_write_bytecode = True

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch_ranks import LOSSLESS, LOSSY, make_model, parameters_of, wrapped  # noqa: E402

import deepreduce  # noqa: E402
from deepreduce import patch  # noqa: E402
from deepreduce.exchange import Exchange, Loopback  # noqa: E402
from deepreduce.outer import Outer  # noqa: E402
from deepreduce.torch import AllReduce, DDPHook, ReduceScatter  # noqa: E402
from deepreduce.torch._on_device import place_of  # noqa: E402


def train(hook, steps=8):
    model = make_model().cuda()
    ddp = wrapped(model, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    losses = []
    for step in range(steps):
        torch.manual_seed(1000 * step + dist.get_rank())
        optimizer.zero_grad()
        x = torch.randn(8, 20).cuda()
        loss = (ddp(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return parameters_of(ddp).cpu(), losses


def same_everywhere(x):
    parts = [torch.empty_like(x.cuda()) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.cuda())
    return all(torch.equal(part, parts[0]) for part in parts)


def a_lossless_plan_trains_as_plain_ddp_does():
    assert torch.equal(train(DDPHook(LOSSLESS))[0], train(None)[0])


def a_lossy_plan_trains_alike_on_all_ranks_and_each_time():
    first, losses = train(DDPHook(LOSSY), 60)
    assert same_everywhere(first)
    assert losses[-1] < 0.5 * losses[0], losses
    assert torch.equal(train(DDPHook(LOSSY), 60)[0], first)


def a_tensor_on_the_gpu_gives_what_one_on_the_cpu_does():
    torch.manual_seed(dist.get_rank())
    x = torch.randn(50_000)
    for plan in (LOSSLESS, LOSSY, "sparsify=topr(ratio=0.02) feedback=residual index=rice value=qsgd"):
        here, there = AllReduce(plan, seed=3), AllReduce(plan, seed=3)
        for _ in range(3):
            on_cpu, on_gpu = x.clone(), x.cuda()
            here([on_cpu])
            there([on_gpu])
            assert on_gpu.is_cuda and torch.equal(on_gpu.cpu(), on_cpu), plan


def steps_are_ordered_with_the_streams_of_the_caller():
    stream = torch.cuda.Stream()
    reduce = AllReduce(LOSSLESS)
    x = torch.ones(1 << 20, device="cuda")
    for _ in range(5):
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            x.mul_(3)  # late, on another stream
            reduce([x])
        torch.cuda.default_stream().wait_stream(stream)
    assert torch.equal(x.cpu(), torch.full((1 << 20,), 243.0))


# ---- Frames that the GPU makes: over NCCL ---------------------------------------------------------

PLACED = {"dense_below": 0}
TOP = "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=qsgd"


def elapsed(call, steps=20):
    """Milliseconds of a step, on the GPU and of the host."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    started = time.perf_counter()
    begin.record()
    for _ in range(steps):
        call()
    end.record()
    host = time.perf_counter() - started
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / steps, 1000 * host / steps


def frames_are_made_on_the_gpu_and_no_step_waits():
    reduce = AllReduce(TOP, **PLACED)
    xs = [torch.randn(n, device="cuda") for n in (3_000_000, 500_000, 7)]
    reduce(xs)
    assert reduce.stats().place == "cuda", reduce.stats().place
    passed = torch.cuda.Event()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(100):
            passed.record()
            while not passed.query():  # (a host that is a step ahead would wait)
                pass
            reduce(xs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert reduce._sender.info.waits == 0
    reduce.check()


def a_rank_that_cannot_encode_on_the_gpu_is_named_a_step_later():
    reduce = AllReduce(TOP, **PLACED)
    x = torch.randn(100_000, device="cuda")
    reduce([x])
    x.normal_()
    x[17] = float("nan")
    reduce([x])
    assert not x.any()
    try:
        reduce([torch.ones_like(x)])
    except deepreduce.PeerError as error:
        assert error.rank == 0 and "at 17, value nan" in str(error), error
    else:
        raise AssertionError("no PeerError")
    x.normal_()
    reduce([x])
    reduce.check()


def the_hook_beside_the_way_through_the_cpu():
    """Prints; 25.6e6 values, as of ResNet-50."""
    x = torch.randn(25_600_000, device="cuda")
    there, here = AllReduce(TOP, **PLACED), AllReduce(TOP, **PLACED)
    here._new_home = lambda engine: (None, "")
    (gpu, host), (old, old_host) = elapsed(lambda: there([x])), elapsed(lambda: here([x]), 5)
    assert (there.stats().place, here.stats().place) == ("cuda", "cpu")
    print(f"25.6e6 f32: on the GPU {gpu:.3f} ms, host {host:.3f} ms; through the CPU {old:.1f} ms, host {old_host:.1f} ms: {old / gpu:.0f} times")


HALVES = ("index=all value=half(type=bf16)", "index=all value=half feedback=residual")
LOWRANK = "transform=lowrank(rank=4) feedback=residual"


def on_cpu(plan, **options):
    """An AllReduce whose frames and numbers are made on the CPU."""
    made = AllReduce(plan, **options)
    made._new_home = lambda engine: (None, "")
    return made


def no_step_waits(call):
    """Runs 100 steps, of which none may wait."""
    passed = torch.cuda.Event()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(100):
            passed.record()
            while not passed.query():  # (a host that is a step ahead would wait)
                pass
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def drawn(step, dtype):
    torch.manual_seed(step)
    return [(torch.randn(shape) * scale).to("cuda", dtype) for shape, scale in (((3000, 1000), 1.0), ((500, 30), 1e-6), ((7,), 100.0))]


def halves_of_the_gpu_have_the_bits_of_the_cpu_and_no_step_waits():
    for plan in HALVES:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            there, here = AllReduce(plan), on_cpu(plan)
            for step in range(4):
                x, y = drawn(step, dtype), drawn(step, dtype)
                there(x)
                here(y)
                assert all(torch.equal(a, b) for a, b in zip(x, y)), (plan, dtype, step)
            there.check()
            mine, other = there.state_dict()["rank0"]["residuals"], here.state_dict()["rank0"]["residuals"]
            assert all(torch.equal(mine[name]["state"], other[name]["state"]) for name in other), (plan, dtype)
            assert (there.stats().place, here.stats().place) == ("cuda", "cpu")
            before = there._sender.info.waits
            no_step_waits(lambda there=there, x=x: there(x))
            assert there._sender.info.waits == before
            there.check()


def factors_of_the_gpu_are_those_of_the_cpu_and_no_step_waits():
    for dtype in (torch.float32, torch.bfloat16):
        there, here = AllReduce(LOWRANK), on_cpu(LOWRANK)
        for step in range(4):
            x, y = drawn(step, dtype), drawn(step, dtype)
            there(x)
            here(y)
            for a, b in zip(x, y):
                # (Sums of up to 3000 products in another order, without TF32; then a rounding to the type.)
                assert (a.float() - b.float()).abs().max() <= max(1e-4, 2 * torch.finfo(dtype).eps) * b.float().abs().max(), (dtype, step)
        there.check()
        saved = there.state_dict()
        here.load_state_dict(saved)
        assert here.metrics()["residual_norm"] == there.metrics()["residual_norm"]
        before = there._sender.info.waits
        no_step_waits(lambda there=there, x=x: there(x))
        assert there._sender.info.waits == before
        there.check()


def numbers_that_are_not_finite_on_the_gpu_are_named_a_step_later():
    for plan in (HALVES[1], LOWRANK):
        reduce = AllReduce(plan)
        reduce(drawn(0, torch.float32))
        x = drawn(1, torch.float32)
        x[1][17, 3] = float("nan")
        reduce(x)
        assert not any(tensor.any() for tensor in (x if plan == LOWRANK else x[1:]))
        try:
            reduce(drawn(2, torch.float32))
        except deepreduce.PeerError as error:
            assert error.rank == 0 and error.tensor == "1" and "not finite" in str(error), error
        else:
            raise AssertionError("no PeerError")
        reduce(drawn(3, torch.float32))
        reduce.check()


def numbers_beside_the_way_through_the_cpu():
    """Prints; 25.6e6 values in matrices, as of ResNet-50."""
    xs = [torch.randn(2048, 500, device="cuda") for _ in range(25)]
    for plan in (*HALVES, LOWRANK):
        there, here = AllReduce(plan), on_cpu(plan)
        (gpu, host), (old, old_host) = elapsed(lambda there=there: there(xs)), elapsed(lambda here=here: here(xs), 3)
        assert (there.stats().place, here.stats().place) == ("cuda", "cpu")
        print(f"{plan}: on the GPU {gpu:.3f} ms, host {host:.3f} ms; through the CPU {old:.1f} ms, host {old_host:.1f} ms: {old / gpu:.0f} times")


def rounds_of_an_outer_loop_are_coded_on_the_gpu():
    for plan in (TOP, HALVES[1], LOWRANK):
        found = []
        for on_gpu in (True, False):
            model = make_model().to(device="cuda")
            outer = Outer(model, plan, every=3)
            for reduce in outer._exchange._reduces:
                if not on_gpu:
                    reduce._new_home = lambda engine: (None, "")
            inner = torch.optim.SGD(model.parameters(), lr=0.05)
            for step in range(9):
                torch.manual_seed(step)
                inner.zero_grad()
                model(torch.randn(8, 20).to(device="cuda")).square().mean().backward()
                inner.step()
                outer.step()
            found.append(parameters_of(model).cpu())
            assert outer._exchange._reduces[0].stats().place == ("cuda", "cpu")[not on_gpu] and outer.info.rounds == 3
        assert torch.allclose(*found, atol=1e-3) if plan == LOWRANK else torch.equal(*found), plan


def eight_ranks_on_one_gpu_have_the_bits_of_the_cpu():
    ranks, shapes = 8, {"a": ((300_000,), "float32"), "b": ((7_000,), "float32")}
    home = torch.device("cuda", torch.cuda.current_device())
    for plan in (TOP, TOP.replace("qsgd", "raw")):
        options = {"ranks": ranks, "seed": 3, **PLACED}
        here = [deepreduce.Sender(shapes, plan, rank=rank, **options) for rank in range(ranks)]
        there = [deepreduce.Sender(shapes, plan, rank=rank, _place=place_of(home, None), **options) for rank in range(ranks)]
        bound = there[0].units[0].bound
        assert len(there[0].units) == 1
        slots = torch.empty(ranks, bound, dtype=torch.uint8, device=home)
        where = [(slot.data_ptr(), bound) for slot in slots]
        for step in range(3):
            torch.manual_seed(step)
            given = [[torch.randn(*shape) for shape, _ in shapes.values()] for _ in range(ranks)]
            frames, means = [], [[torch.empty_like(x) for x in given[0]] for _ in range(2)]
            means[1] = [x.to(home) for x in means[1]]
            alive = [[x.to(home) for x in xs] for xs in given]
            torch.cuda.synchronize()
            for rank in range(ranks):
                here[rank].place(dict(zip(shapes, given[rank])), dict(zip(shapes, means[0])))
                frames.append(torch.empty(here[rank].units[0].bound, dtype=torch.uint8))
                here[rank].encode(0, step, frames[rank])
                for i, x in enumerate(alive[rank]):
                    there[rank]._place_at(i, 1, (ctypes.c_void_p * 1)(x.data_ptr()), (ctypes.c_void_p * 1)(means[1][i].data_ptr()))
                there[rank]._encode_at(0, step, *where[rank], rank)
            for rank in range(ranks):
                here[rank].merge(0, step, frames)
                there[rank]._merge_at(0, step, where)
            for rank in range(ranks):
                there[rank]._check_step(step)
            torch.cuda.synchronize()
            assert all(torch.equal(a, b.cpu()) for a, b in zip(*means)), plan
            assert all((here[0].read_state(name) == there[0].read_state(name)).all() for name in shapes), plan


def owners_on_the_gpu_have_the_bits_of_the_cpu():
    for plan in ("index=golomb value=uniform_quant(bits=4) feedback=residual exchange=owner", f"{TOP} exchange=owner"):
        here, there = AllReduce(plan, seed=3, **PLACED), AllReduce(plan, seed=3, **PLACED)
        here._new_home = lambda engine: (None, "")
        for step in range(3):
            torch.manual_seed(10 * step + dist.get_rank())
            x = torch.randn(300_000, device="cuda")
            y = x.clone()
            here([x])
            there([y])
            assert torch.equal(x, y), (plan, step)
        assert (there.stats().place, here.stats().place) == ("cuda", "cpu")
        assert there._sender.info.waits == 0
        there.check()


def all_elements_and_small_tensors_are_sent_from_the_gpu():
    for plan in ("index=all value=uniform_quant(bits=8) feedback=residual", "index=all value=uniform_quant(bits=4) feedback=residual exchange=owner"):
        here, there = on_cpu(plan, seed=3), AllReduce(plan, seed=3)
        for step in range(3):
            torch.manual_seed(10 * step + dist.get_rank())
            xs = [torch.randn(n, device="cuda") for n in (3_000_000, 700, 1)]
            ys = [x.clone() for x in xs]
            here(xs)
            there(ys)
            assert all(torch.equal(x, y) for x, y in zip(xs, ys)), (plan, step)
        assert (there.stats().place, here.stats().place) == ("cuda", "cpu")
        assert there._sender.info.waits == 0
        there.check()


# ---- FSDP2's reduce-scatter ---------------------------------------------------------------------


def a_shard(comm, whole, op=dist.ReduceOp.AVG):
    out = torch.empty(whole.numel() // dist.get_world_size(), dtype=whole.dtype, device=whole.device)
    comm(out, whole, dist.group.WORLD, op)
    return out


def a_gradient_on_the_gpu_gives_the_shard_of_one_on_the_cpu():
    for plan in (LOSSLESS, LOSSY, TOP):
        for dtype in (torch.float32, torch.bfloat16):
            here, there = ReduceScatter(plan, dense_below=0), ReduceScatter(plan, dense_below=0)
            for step in range(3):
                torch.manual_seed(10 * step + dist.get_rank())
                x = torch.randn(60_006).to(dtype)
                assert torch.equal(a_shard(there, x.cuda()).cpu(), a_shard(here, x)), (plan, dtype, step)
            there.check()


def a_model_of_fsdp2_trains_alike_each_time():
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    found = []
    for _ in range(2):
        model, comms = make_model().cuda(), []
        for layer in (model[0], model[3], model):
            fully_shard(layer, mesh=mesh)
            comms.append(ReduceScatter(TOP.replace("0.01", "0.2"), dense_below=0))
            layer.set_custom_reduce_scatter(comms[-1])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(5):
            torch.manual_seed(step)
            optimizer.zero_grad()
            (model(torch.randn(8, 20).cuda()) - 1).square().mean().backward()
            optimizer.step()
        for comm in comms:
            comm.check()
        assert all(comm.stats().place == "cuda" and comm.stats().steps == 5 for comm in comms)
        found.append(torch.cat([parameter.detach().full_tensor().reshape(-1) for parameter in model.parameters()]))
    assert torch.equal(*found)


def a_reduce_scatter_is_made_on_the_gpu_and_does_not_wait():
    comm, x = ReduceScatter(TOP, dense_below=0), torch.randn(3_000_000, device="cuda")
    out = torch.empty(x.numel() // dist.get_world_size(), device="cuda")
    for _ in range(2):
        comm(out, x, dist.group.WORLD, dist.ReduceOp.AVG)
    assert comm.stats().place == "cuda", comm.stats().place
    passed, stream = torch.cuda.Event(), torch.cuda.Stream()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(100):
            passed.record()
            while not passed.query():
                pass
            with torch.cuda.stream(stream if step % 2 else torch.cuda.default_stream()):
                comm(out, x, dist.group.WORLD, dist.ReduceOp.AVG)
            torch.cuda.default_stream().wait_stream(stream)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert comm._sender.info.waits == 0
    comm.check()


def a_shard_that_the_gpu_cannot_encode_is_named_by_the_next_call():
    comm, x = ReduceScatter(TOP, dense_below=0), torch.randn(100_000, device="cuda")
    a_shard(comm, x)
    x[17] = float("nan")
    assert not a_shard(comm, x).any()
    try:
        a_shard(comm, torch.ones_like(x))
    except deepreduce.PeerError as error:
        assert error.rank == 0 and "value nan" in str(error), error
    else:
        raise AssertionError("no PeerError")
    a_shard(comm, torch.ones_like(x))
    comm.check()


def patches_made_and_applied_on_the_gpu_are_those_of_the_cpu(device="cuda"):
    old = {"w": torch.randn(300_000).bfloat16(), "b": torch.randn(40_000)}
    new = {name: tensor.clone() for name, tensor in old.items()}
    for tensor in new.values():
        bits = tensor.view(torch.int16 if tensor.dtype == torch.bfloat16 else torch.int32)
        bits[torch.rand(tensor.numel()) < 0.02] += 1
    for plan in ("sparsify=changed index=golomb value=ulp", "sparsify=changed index=rice value=raw"):
        there, changed = ({name: tensor.to(device=device) for name, tensor in of.items()} for of in (old, new))
        data = patch.encode(there, changed, plan)
        assert data == patch.encode(old, new, plan), plan
        patch.apply(there, data)
        assert all(torch.equal(there[name].cpu().view(torch.int16), new[name].view(torch.int16)) for name in new), plan


def an_exchange_of_tensors_on_the_gpu_has_the_bits_of_the_cpu(device="cuda"):
    plan = "sparsify=topr(ratio=0.02) feedback=residual index=golomb value=qsgd exchange=owner"
    here = [torch.empty(30_000) for _ in range(2)]
    there = [torch.empty(30_000, device=device) for _ in range(2)]
    nets, sides = [], []
    for tensors in (here, there):
        nets.append(Loopback(2))
        sides.append([Exchange(x, plan, nets[-1].transport(rank)) for rank, x in enumerate(tensors)])
    for step in range(3):
        for rank in range(2):
            here[rank].copy_(torch.randn(30_000))
            there[rank].copy_(here[rank])
        for net, exchanges in zip(nets, sides):
            for exchange in exchanges:
                exchange.start(step)
            assert net.run(exchanges) == [None, None]
        assert all(torch.equal(b.out.cpu(), torch.as_tensor(a.out)) for a, b in zip(*sides))


def memory_that_is_dropped_while_a_stream_works_is_not_used_again():
    plan = "sparsify=topr(ratio=0.1) index=golomb value=raw"
    x = torch.randn(1 << 20)
    expected, there, side = deepreduce.encode(x, plan), x.cuda(), torch.cuda.Stream()
    for _ in range(5):
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)  # some 30 ms
            batch = deepreduce.Batch(there, plan)
            frame = batch.frame()
            batch.encode(there, frame)
            copy = frame.buffer.clone()
        size = frame.buffer.numel()
        del batch, frame
        fills = [torch.full((size,), 255, dtype=torch.uint8, device="cuda") for _ in range(8)]
        fills += [torch.full((1 << 20,), 255, dtype=torch.uint8, device="cuda") for _ in range(32)]
        side.synchronize()
        assert bytes(copy[: len(expected)].cpu().numpy()) == expected


PLACED_CHECKS = [
    patches_made_and_applied_on_the_gpu_are_those_of_the_cpu,
    an_exchange_of_tensors_on_the_gpu_has_the_bits_of_the_cpu,
    memory_that_is_dropped_while_a_stream_works_is_not_used_again,
    frames_are_made_on_the_gpu_and_no_step_waits,
    a_rank_that_cannot_encode_on_the_gpu_is_named_a_step_later,
    the_hook_beside_the_way_through_the_cpu,
    halves_of_the_gpu_have_the_bits_of_the_cpu_and_no_step_waits,
    factors_of_the_gpu_are_those_of_the_cpu_and_no_step_waits,
    numbers_that_are_not_finite_on_the_gpu_are_named_a_step_later,
    numbers_beside_the_way_through_the_cpu,
    rounds_of_an_outer_loop_are_coded_on_the_gpu,
    eight_ranks_on_one_gpu_have_the_bits_of_the_cpu,
    owners_on_the_gpu_have_the_bits_of_the_cpu,
    all_elements_and_small_tensors_are_sent_from_the_gpu,
    a_model_of_fsdp2_trains_alike_each_time,
    a_reduce_scatter_is_made_on_the_gpu_and_does_not_wait,
    a_shard_that_the_gpu_cannot_encode_is_named_by_the_next_call,
]
CHECKS = [
    a_lossless_plan_trains_as_plain_ddp_does,
    a_lossy_plan_trains_alike_on_all_ranks_and_each_time,
    a_tensor_on_the_gpu_gives_what_one_on_the_cpu_does,
    steps_are_ordered_with_the_streams_of_the_caller,
    a_gradient_on_the_gpu_gives_the_shard_of_one_on_the_cpu,
]
NEED_THE_CPU = [a_tensor_on_the_gpu_gives_what_one_on_the_cpu_does, a_gradient_on_the_gpu_gives_the_shard_of_one_on_the_cpu]


def rank_main(rank, ranks, backend, store):
    torch.cuda.set_device(0)
    dist.init_process_group(backend, f"file://{store}", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=60))
    failed = 0
    for check in [*CHECKS, *(PLACED_CHECKS if backend == "nccl" else [])]:
        if backend == "nccl" and check in NEED_THE_CPU:
            continue  # it has no collective for the CPU
        try:
            check()
            outcome = "passed"
        except Exception:
            failed, outcome = 1, "FAILED\n" + traceback.format_exc()
        print(f"{backend}, rank {rank} of {ranks}: {check.__name__}: {outcome}", flush=True)
        if failed:
            break  # the others would wait
    dist.destroy_process_group()
    if failed:
        sys.exit(1)


def main():
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return 77
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    failed = 0
    for ranks, backend in ((1, "nccl"), (1, "cpu:gloo,cuda:nccl"), (2, "gloo")):
        with tempfile.TemporaryDirectory() as folder:
            try:
                torch.multiprocessing.spawn(rank_main, (ranks, backend, os.path.join(folder, "store")), ranks)
            except Exception as error:
                print(f"{backend}, {ranks} ranks: {error}")
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
