"""What deepreduce.grace promises on three ranks of which one refuses a tensor: all of them raise, at once, and go on."""

import time

import torch
import torch.distributed as dist
from torch_ranks import check, gradients, raises, same_on_all_ranks

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
    refused(grc, None, "is no tensor but None")
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
        with raises(deepreduce.PeerError, "rank 1: ", NAME, "int64", "(and so did ranks 2)"):
            grc.step(torch.ones(10), NAME)
