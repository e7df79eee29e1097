"""What deepreduce.grace promises on three ranks where something is wrong: all of them raise, at once, nothing is lost, and they go on."""

import time

import torch
import torch.distributed as dist
from torch_ranks import check, gradients, raises, same, same_on_all_ranks

import deepreduce
from deepreduce import grace
from deepreduce.grace.rank_wire import Wire

BAD, NAME = 1, "conv.weight"
SECONDS = 20  # far less than the process group's timeout
PAIRS = [
    ("none", "allreduce"), ("fp16", "allreduce"), ("randomk", "allreduce"), ("powersgd", "allreduce"),
    ("qsgd", "allgather"), ("topk", "allgather"), ("randomk", "broadcast"), ("topk", "broadcast"), ("qsgd", "broadcast"),
    ("qsgd", "alltoall"), ("topk", "alltoall"),
]  # fmt: skip


def good(step):
    return gradients(step, dist.get_rank())[0].view(-1, 10)


def grace_of(compressor, communicator, memory="none", **more):
    if memory == "residual" and compressor == "powersgd":
        memory = "powersgd"
    return grace.grace_from_params(
        {"compressor": compressor, "communicator": communicator, "memory": memory, "compress_ratio": 0.1, **more}
    )


def refused(grc, bad, *words, kind=deepreduce.ArgumentError):
    """The bad rank raises its own error; the others name the rank, the tensor and the reason."""
    begin = time.monotonic()
    if dist.get_rank() == BAD:
        with raises(kind, *words) as caught:
            grc.step(bad, NAME)
        assert getattr(caught[0], "rank", BAD) == BAD
    else:
        with raises(deepreduce.PeerError, f"rank {BAD}: ", NAME, *words) as caught:
            grc.step(good(1), NAME)
        assert caught[0].rank == BAD
    assert time.monotonic() - begin < SECONDS


@check("grace")
def a_tensor_of_a_wrong_type_is_an_error_of_all_ranks():
    for compressor, communicator in PAIRS:
        for before in range(2):  # steps of the name that went well
            grc = grace_of(compressor, communicator)
            for step in range(before):
                grc.step(good(step), NAME)
            refused(grc, torch.arange(3000).view(-1, 10), "int64")
            assert same_on_all_ranks(grc.step(good(2), NAME)), (compressor, communicator, before)


@check("grace")
def a_tensor_of_another_shape_than_its_residual_is_an_error_of_all_ranks():
    for compressor, communicator in PAIRS:
        grc, other = (grace_of(compressor, communicator, "residual") for _ in range(2))
        assert same_on_all_ranks(grc.step(good(0), NAME)), (compressor, communicator)
        refused(grc, torch.ones(7, 7), "(7, 7)", "(300, 10)")
        found = grc.step(good(2), NAME)
        assert same_on_all_ranks(found), (compressor, communicator)
        if compressor in ("none", "topk"):  # the others draw random numbers by step, or have a warm start
            other.step(good(0), NAME)
            taken_back = good(1) if dist.get_rank() != BAD else 0
            assert torch.allclose(found, other.step(taken_back + good(2), NAME), atol=1e-5), (compressor, communicator)


@check("grace")
def a_plan_with_feedback_gets_back_what_was_not_received():
    plan = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw"
    grc = grace_of("plan", "allgather", plan=plan)
    grc.step(good(0), NAME)
    state = grc.compressor._states[NAME]
    before = torch.tensor(state.residual)
    refused(grc, torch.arange(3000).view(-1, 10), "int64")
    expected = before if dist.get_rank() == BAD else before + good(1).view(-1)
    assert torch.allclose(torch.tensor(state.residual).view(-1), expected, atol=1e-5)


@check("grace")
def a_size_that_no_payload_has_is_that_ranks_error_and_nothing_is_lost():
    """Before anybody makes room for it: 2^45 bytes are of no tensor of 3000 elements, nor are -7."""
    gather = Wire.gather_numbers
    for compressor, communicator in (("topk", "allgather"), ("threshold", "broadcast"), ("topk", "alltoall")):
        for size in (2**45, 2**62, 20000, -7):
            grc, other = (grace_of(compressor, communicator, "residual") for _ in range(2))
            grc.step(good(0), NAME)
            if dist.get_rank() == BAD:
                Wire.gather_numbers = lambda self, numbers, size=size: gather(self, [size, *list(numbers)[1:]])
            try:
                with raises(deepreduce.CorruptFrame, f"rank {BAD}: ", NAME, f"{size} bytes") as caught:
                    grc.step(good(1), NAME)
            finally:
                Wire.gather_numbers = gather
            assert caught[0].rank == BAD
            other.step(good(0), NAME)
            found, expected = grc.step(good(2), NAME), other.step(good(1) + good(2), NAME)
            assert same_on_all_ranks(found) and torch.allclose(found, expected, atol=1e-5), (compressor, communicator, size)


@check("grace")
def what_a_users_compressor_raises_where_it_decodes_takes_nothing_from_a_memory():
    class Moody(grace.NoneCompressor):
        moody = False

        def decompress(self, tensors, ctx):
            if self.moody:
                raise RuntimeError("not today")
            return 0.5 * super().decompress(tensors, ctx)

        def decompress_add(self, tensors, ctx, out, scale=1.0):
            out.add_(0.5 * tensors[0].view_as(out), alpha=scale)

    grc = grace.Allgather(Moody(), grace.ResidualMemory())
    grc.step(good(0), NAME)
    expected = grc.memory.residuals[NAME] + good(1)
    grc.compressor.moody = True
    with raises(RuntimeError, "not today"):
        grc.step(good(1), NAME)
    assert torch.allclose(grc.memory.residuals[NAME], expected, atol=1e-5)


@check("grace")
def a_norm_of_all_ranks_does_not_wait_for_one_that_refuses():
    grc = grace_of("topk", "allgather", "dgc", gradient_clipping=True)
    grc.step(good(0), NAME)
    refused(grc, torch.ones(7, 7), "(7, 7)", "(300, 10)")
    refused(grc, None, "is not a tensor but None")
    assert same_on_all_ranks(grc.step(good(2), NAME))


@check("grace")
def payloads_of_one_size_that_have_another_are_an_error_of_all_ranks():
    for compressor, communicator in (("none", "allgather"), ("none", "broadcast"), ("none", "allreduce"), ("qsgd", "allgather")):
        grc = grace_of(compressor, communicator)
        with raises(deepreduce.ArgumentError, NAME, "one size", "rank 1 "):
            grc.step(good(0)[: 300 - dist.get_rank() % 2], NAME)
        grc.step(good(0), NAME)
        refused(grc, good(1)[:7], "before it had")
        assert same_on_all_ranks(grc.step(good(2), NAME))


@check("grace")
def what_a_users_compressor_raises_is_an_error_of_all_ranks():
    class Moody(grace.NoneCompressor):
        def compress(self, tensor, name):
            if tensor.isnan().any():
                raise RuntimeError("not today")
            return super().compress(tensor, name)

    for kind in (grace.Allreduce, grace.Allgather, grace.Broadcast):
        grc = kind(Moody(), grace.NoneMemory())
        refused(grc, good(0) * float("nan"), "not today", kind=RuntimeError)
        assert same_on_all_ranks(grc.step(good(0), NAME))


@check("grace")
def all_ranks_that_refuse_are_named():
    grc = grace_of("topk", "allgather")
    if dist.get_rank():
        with raises(deepreduce.ArgumentError, "int64"):
            grc.step(torch.arange(10), NAME)
    else:
        with raises(deepreduce.PeerError, "rank 1: ", NAME, "int64", "(ranks 2 failed, too)"):
            grc.step(torch.ones(10), NAME)


@check("grace")
def ranks_with_other_compressors_are_told_at_once():
    rank, x = dist.get_rank(), torch.randn(1000)
    for one, other, communicator in (("topk", "qsgd", "allgather"), ("none", "qsgd", "allgather"), ("topk", "qsgd", "broadcast"),
                                     ("none", "fp16", "allreduce"), ("none", "powersgd", "allreduce")):  # fmt: skip
        begin, grc = time.monotonic(), grace_of(other if rank == 1 else one, communicator)
        with raises(deepreduce.ArgumentError, NAME, "rank 0 sends ", "rank 1 sends ", "the same on all ranks"):
            grc.step(x, NAME)
        assert time.monotonic() - begin < SECONDS, (one, other)
        assert same_on_all_ranks(grace_of(one, communicator).step(x, NAME))
    grc = grace_of("none", "broadcast" if rank == 2 else "allgather", "residual")
    with raises(deepreduce.ArgumentError, "rank 2 sends payloads of one size, torch.float32, by broadcasts"):
        grc.step(x, NAME)
    assert same(grc.memory.residuals[NAME], x)  # what was not received


@check("grace")
def what_is_no_tensor_or_no_name_is_an_error_of_all_ranks():
    for compressor, communicator in (("topk", "allgather"), ("none", "allreduce"), ("powersgd", "allreduce"), ("qsgd", "alltoall")):
        grc = grace_of(compressor, communicator)
        refused(grc, None, "is not a tensor but None: omit parameters without a gradient")
        refused(grc, [1.0], "is not a tensor but list")
        with raises(deepreduce.ArgumentError, "the name of a tensor must be a str, not 3"):
            grc.step(torch.ones(300, 10), 3)
        assert same_on_all_ranks(grc.step(gradients(2, dist.get_rank())[0].view(-1, 10), NAME))


@check("grace")
def a_name_that_is_reset_may_have_another_shape_as_the_error_says():
    for compressor, communicator, memory in (
        ("none", "allgather", "residual"), ("none", "allreduce", "none"), ("fp16", "allreduce", "residual"),
        ("qsgd", "broadcast", "residual"), ("topk", "allgather", "dgc"), ("topk", "alltoall", "residual"),
        ("powersgd", "allreduce", "powersgd"), ("powersgd", "allreduce", "none"), ("signum", "allgather", "none"),
    ):  # fmt: skip
        grc = grace_of(compressor, communicator, memory)
        for name in (NAME, "other"):
            grc.step(torch.randn(20, 30), name)
        before = grc.nbytes
        with raises(deepreduce.ArgumentError, NAME, f"communicator's reset('{NAME}') forgets it"):
            grc.step(torch.randn(40, 30), NAME)
        grc.reset(NAME)
        assert grc.nbytes < before or before == 0, compressor
        assert same_on_all_ranks(grc.step(torch.randn(40, 30), NAME)) and same_on_all_ranks(grc.step(torch.randn(20, 30), "other"))
        grc.reset()
        assert grc.nbytes == 0 and same_on_all_ranks(grc.step(torch.randn(7, 3), "other")), compressor


@check("grace")
def what_dgc_sent_in_vain_goes_back():
    grc = grace_of("topk", "allgather", "dgc", momentum=0.5)
    grc.step(good(0), NAME)
    before = grc.memory.gradients[NAME] + 0.5 * grc.memory.residuals[NAME] + good(1)
    refused(grc, torch.ones(7, 7), "(7, 7)", "(300, 10)")
    if dist.get_rank() != 1:
        assert torch.allclose(grc.memory.gradients[NAME], before, atol=1e-5)


@check("grace")
def what_powersgd_did_not_send_is_kept():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for shape in ((300, 10), (3000,)):  # of factors, and exact
        def given(step, rank=rank, shape=shape):
            return gradients(step, rank)[0].view(shape)

        grc = grace_of("powersgd", "allreduce", "powersgd")
        total = grc.step(given(0), NAME) + 0
        nan = given(1) * float("nan")
        with raises(deepreduce.ArgumentError if rank == 1 else deepreduce.PeerError, NAME, "finite values"):
            grc.step(nan if rank == 1 else given(1), NAME)
        for step in (2, 3):
            total += grc.step(given(step), NAME)
        residual = grc.memory.residuals.get(NAME, torch.zeros(shape)) / ranks
        dist.all_reduce(residual)
        everything = sum(given(step, other) for step in range(4) for other in range(ranks) if (step, other) != (1, 1)) / ranks
        assert torch.allclose(total + residual, everything, atol=1e-4), shape


@check("grace")
def all_to_all_loses_nothing_of_the_sums_for_good():
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for compressor, memory in (("topk", "residual"), ("qsgd", "residual"), ("onebit", "residual"), ("efsignsgd", "efsignsgd")):
        lr = 0.1 if memory == "efsignsgd" else 1.0
        grc, given, total = grace_of(compressor, "alltoall", memory, lr=0.1), 0, 0
        for step in range(12):
            if memory == "efsignsgd" and step == 6:
                grc.set_lr(lr := 0.03)
            given = given + lr * sum(gradients(step, other)[0] for other in range(ranks)) / ranks
            total = total + lr * grc.step(gradients(step, rank)[0], "w")
            if step == 5:
                saved = grc.state_dict()
        residual, sums = grc.memory.residuals["w"] / ranks, [torch.empty(0)] * ranks
        dist.all_reduce(residual)
        dist.all_gather_object(sums, grc.sums["w"])
        assert torch.allclose(total + residual + torch.cat(sums), given, atol=1e-3), compressor
        assert torch.cat(sums).norm() > 0.001 * given.norm()  # it would have been lost
        assert grc.nbytes == 4 * (3000 + len(sums[rank]))
        other = grace_of(compressor, "alltoall", memory, lr=0.1)
        other.load_state_dict(saved)
        again = grace_of(compressor, "alltoall", memory, lr=0.1)
        again.load_state_dict(other.state_dict())
        assert same(other.step(gradients(6, rank)[0], "w"), again.step(gradients(6, rank)[0], "w"))
        grc.reset("w")
        assert grc.nbytes == 0
    without = grace_of("topk", "alltoall")
    without.step(gradients(0, rank)[0], "w")
    assert without.nbytes == 0  # as no other loss is kept
    with raises(deepreduce.ArgumentError, "only grows"):
        grace.AllToAll(grace.PlanCompressor("signsgd"), grace.ResidualMemory())
