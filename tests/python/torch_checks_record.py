"""When gradients become ready, as DDPHook(record=…) and record write it."""

import contextlib
import io
import json
import pathlib
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch_ranks import DDP, LOSSY, check, make_model, parameters_of, raises, same, steps_of, train

import deepreduce
from deepreduce.recording._skew import skew_of
from deepreduce.torch import DDPHook, Recording, record

try:
    import jsonschema
except ImportError:  # the fields below are looked at all the same
    jsonschema = None

SCHEMA = json.loads((pathlib.Path(__file__).resolve().parents[2] / "docs" / "model.schema.json").read_text("utf-8"))
DELAY = 0.02  # seconds


def shared_folder():
    """The same on all ranks; the caller removes it."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    return pathlib.Path(folder[0])


def read(path):
    dist.barrier()
    model = json.loads(path.read_text("utf-8"))
    if jsonschema:
        jsonschema.validate(model, SCHEMA, cls=jsonschema.Draft202012Validator)
    return model


class Slow(torch.autograd.Function):
    """Its backward takes DELAY."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(DELAY)
        return gradient


class Late(nn.Module):
    """The gradients of `first` are ready DELAY after those of `last`."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(20, 2000), nn.Linear(2000, 5)

    def forward(self, x):
        return self.last(Slow.apply(self.first(x)))


@check("two")
def ready_times_are_those_of_backward():
    path = shared_folder() / "model.json"
    ddp = DDP(Late(), bucket_cap_mb=0.001)
    DDPHook(None, record=Recording(path, name="late", batch=8, steps=3, skip=1)).register(ddp)
    steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.01), 0, 5)
    model = read(path)
    assert (model["name"], model["batch"], model["ranks"], model["steps"]) == ("late", 8, 2, 3)
    ready = {tensor["name"]: tensor["ready_ns"] for tensor in model["tensors"]}
    assert list(ready) == ["first.weight", "first.bias", "last.weight", "last.bias"]
    assert all(ready[f"first.{of}"] - ready["last.weight"] >= 1e9 * DELAY for of in ("weight", "bias"))
    assert 1e9 * DELAY <= model["backward_ns"] == max(ready.values())
    sizes = {tensor["name"]: (tensor["elements"], tensor["dtype"]) for tensor in model["tensors"]}
    assert sizes["first.weight"] == (40000, "f32") and sizes["last.bias"] == (5, "f32")
    assert model["tensors"][0]["shape"] == [2000, 20]


@check("two")
def what_a_hook_takes_is_no_part_of_backward():
    class Slowly(DDPHook):
        def _arrive(self, bucket, buffer):
            arrived.append(bucket.index())
            time.sleep(long)
            super()._arrive(bucket, buffer)

    path, arrived, long = shared_folder() / "model.json", [], 5 * DELAY
    ddp = DDP(make_model(), bucket_cap_mb=0.008)
    Slowly(LOSSY, record=Recording(path, steps=3, skip=1)).register(ddp)
    steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.01), 0, 6)
    model, buckets = read(path), max(arrived) + 1
    assert len(model["tensors"]) == 10 and buckets > 2
    assert model["backward_ns"] < 1e9 * long * (buckets - 1), model  # the last bucket waits for the others


@check("two")
def plain_ddp_is_recorded_and_not_changed():
    path, expected = shared_folder() / "model.json", train(None, kind="SGD")
    ddp = DDP(make_model(), bucket_cap_mb=0.008)
    recorder = record(ddp, Recording(path, steps=4, skip=2))
    steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.01), 0, 8)
    assert same(parameters_of(ddp), expected)
    model = read(path)
    assert model["steps"] == 4 and len(model["tensors"]) == 10
    assert not recorder._handles and not any(parameter._post_accumulate_grad_hooks for parameter in ddp.parameters())


@check("two")
def the_slowest_rank_is_told():
    class Uneven(nn.Module):
        """Rank 1 computes DELAY longer."""

        def __init__(self):
            super().__init__()
            self.all = nn.Linear(20, 5)

        def forward(self, x):
            return self.all(x) if dist.get_rank() == 0 else Slow.apply(self.all(x))

    path = shared_folder() / "model.json"
    for model, slow in ((Uneven(), 1), (make_model(), 0)):
        side_by_side = record(model, Recording(path, steps=3, skip=1))  # without an exchange
        dist.barrier()  # which would report to rank 0 that rank 1 records, too
        steps_of(model, torch.optim.SGD(model.parameters(), lr=0.01), 0, 6)
        recording = read(path)
        assert recording["ranks"] == 2 and not side_by_side._handles, recording
        # (A machine that does other things, too, adds what it likes.)
        assert recording["skew_ns"] >= 0.8e9 * DELAY if slow else recording["skew_ns"] >= 0, recording
        dist.barrier()
    ddp = DDP(Uneven())
    DDPHook(None, record=Recording(path, steps=3, skip=1)).register(ddp)
    steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.01), 0, 6)
    assert read(path)["skew_ns"] >= 0.8e9 * DELAY


@check("two")
def a_rank_that_records_alone_waits_for_nobody():
    path, model = shared_folder() / "model.json", make_model()
    if dist.get_rank() == 0:
        record(model, Recording(path, steps=3, skip=1))
        began = time.perf_counter()
    steps_of(model, torch.optim.SGD(model.parameters(), lr=0.01), 0, 6)
    if dist.get_rank() == 0:
        assert time.perf_counter() - began < 20
    assert "skew_ns" not in read(path)


@check("two")
def the_skew_is_of_medians_and_never_negative():
    assert skew_of([[3, 1, 2], [4, 1, 5]]) == 4 - 2
    assert skew_of([[9, 9, 9], [4, 1, 5]]) == 0
    assert skew_of([[1, 2, 9], [3]]) == 3 - 1  # the steps that all ranks had
    assert skew_of([[1], []]) is None


@check("two")
def a_file_that_cannot_be_written_ends_no_training():
    folder, printed = shared_folder() / "gone", io.StringIO()
    if dist.get_rank() == 0:
        folder.mkdir()
    dist.barrier()
    hook = DDPHook(LOSSY, record=Recording(folder / "model.json", steps=2, skip=0))
    dist.barrier()
    if dist.get_rank() == 0:
        folder.rmdir()
    with contextlib.redirect_stderr(printed):
        made = train(hook, steps=5)
    assert same(made, train(DDPHook(LOSSY), steps=5)) and not folder.exists()
    line = f"deepreduce: record: {folder / 'model.json'}: not written: No such file or directory\n"
    assert printed.getvalue() == (line if dist.get_rank() == 0 else ""), printed.getvalue()


@check("two")
def a_recording_that_cannot_be_made_says_so():
    if dist.get_rank() == 0:  # which writes
        with raises(deepreduce.ArgumentError, "its folder does not exist", "nowhere"):
            DDPHook(None, record="nowhere/at/all.json")
        with raises(deepreduce.ArgumentError, "it is a folder"):
            DDPHook(None, record=tempfile.gettempdir())
    with raises(deepreduce.ArgumentError, "steps = 0"):
        Recording("x.json", steps=0)
    with raises(deepreduce.Unsupported, "weight", "float64"):
        record(nn.Linear(2, 2).double(), "x.json")
