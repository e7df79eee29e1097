"""Arguments of a wrong kind: an ArgumentError that names the argument and its value, at once, in place of an error from deep inside."""

import re

import numpy
import pytest

import deepreduce
from deepreduce import book, patch
from deepreduce.control import Controller
from deepreduce.exchange import Loopback

TOP = "sparsify=topr(ratio=0.01) index=golomb value=raw"


def refused(words, call, *args, **options):
    with pytest.raises(deepreduce.ArgumentError, match=re.escape(words)):
        call(*args, **options)


def test_books_senders_loopbacks_and_controllers_name_what_is_no_list():
    refused("pairs is 3, not pairs of a pattern and a plan", book.Book, 3)
    refused("pairs is '*', not pairs", book.Book, "*")
    refused("None is not a pair of a pattern and a plan", book.Book, [None])
    refused("text is None, not a str", book.parse, None)
    refused("tensors is 3, not arrays or a dict of arrays", deepreduce.Sender, 3, TOP)
    sender = deepreduce.Sender({"w": numpy.zeros(2000, numpy.float32)}, TOP)
    refused("arrays are 3, not a list or a dict of arrays", sender.place, 3)
    loopback = Loopback(2)
    refused("exchanges is 3, not a list of exchanges", loopback.run, 3)
    refused("exchanges[1] is 'x', not an Exchange", loopback.run, [None, "x"])
    refused("log is 3, not lines of a log", Controller("fit(target_ms=1)", 2).replay, 3)


def test_patches_name_a_base_a_history_and_sums_that_are_none(tmp_path):
    w = numpy.zeros(100, numpy.float32)
    data = patch.encode(w, w + 1)
    refused("base is 7, not a str", patch.encode, w, w, base=7)
    refused("result is None, not a str", patch.encode, w, w, result=None)
    for call, args in ((patch.encode, (w, w)), (patch.apply, (w, data)), (patch.changes, (data, w))):
        refused("history is 'h', not a History", call, *args, history="h")
        if call is not patch.changes:
            refused("sums is {}, not a Sums", call, *args, sums={})
    refused("sums: there is no tensor 'nope'", patch.Sums({"w": w}).check, "nope")
    store = patch.Store(tmp_path / "store")
    store.put(1, w)
    refused("step is '1', not an integer", lambda: next(iter(store.follow(w, "1"))))
    refused("wait is 'long', not a number", lambda: next(iter(store.follow(w, wait="long"))))
    assert not w.any()


def test_a_single_array_has_no_name_in_errors():
    w = numpy.zeros(100, numpy.float32)
    for call in (lambda: patch.encode(w, w.astype(numpy.float16)), lambda: patch.apply(numpy.zeros(99, numpy.float32), patch.encode(w, w + 1))):
        with pytest.raises(deepreduce.ArgumentError) as caught:
            call()
        assert re.match("(old|weights) has F32 of shape", str(caught.value))


def test_rows_name_limits_and_columns_that_are_none():
    rows = deepreduce.Rows([{"plan": "index=golomb", "bytes": 10, "relative_l2_error": 0.0, "total_error": 0.0}])
    refused("the coding error is 'low', not a number", rows.best, error="low")
    refused("the total error is [], not a number", rows.best, total_error=[])
    refused("by is 3, not a str", rows.best, by=3)
    refused("x is None, not a str", rows.plot, x=None)
    refused("y is 3, not a str", rows.plot, y=3)
    refused("plans is 3, not a plan or plans", deepreduce.compare, numpy.ones(9, numpy.float32), 3)


def test_hooks_folders_and_outer_loops_name_what_is_no_plan_number_or_model(tmp_path):
    torch = pytest.importorskip("torch")
    import deepreduce.outer
    import deepreduce.torch

    for kind in (deepreduce.torch.DDPHook, deepreduce.torch.AllReduce):
        refused("plan is 3, not a plan, a book, or plans by pattern of name", kind, 3)
    refused("timeout = 0.0 s is not above 0", deepreduce.torch.ReduceScatter, TOP, timeout=0)
    refused("tensors is 3, not a list of tensors", deepreduce.torch.AllReduce(TOP), 3)
    for load in (deepreduce.torch.state_for_new_rank, deepreduce.torch.AllReduce(TOP).load_state_dict):
        refused("the state is 3, not what state_dict() returns", load, 3)
    refused("the state has no step or ranks", deepreduce.torch.state_for_new_rank, {})
    refused("model is 3, not a torch.nn.Module", deepreduce.torch.record, 3, tmp_path / "model.json")
    for option in ("steps", "skip", "batch"):
        refused(f"{option} is 'few', not an integer", deepreduce.torch.Recording, tmp_path / "model.json", **{option: "few"})
    refused("the name of a worker is 3", deepreduce.outer.Folder, tmp_path, 3)
    refused("deadline = 0.0 s is not above 0", deepreduce.outer.Folder, tmp_path, "a", 0)
    refused("norm_bound = 1 is not above 1", deepreduce.outer.Folder, tmp_path, "a", norm_bound=1)
    refused("store_every = 0 is not in 1 …", deepreduce.outer.Folder, tmp_path, "a", store_every=0)
    model = torch.nn.Linear(3, 3)
    refused("model is 3, not a torch.nn.Module or parameters", deepreduce.outer.Outer, 3, TOP, every=2)
    for option in ("every", "overlap", "fragments"):
        refused(f"{option} is 'few', not an integer", deepreduce.outer.Outer, model, TOP, **{"every": 2, option: "few"})
    refused("every = 0 is not in 1 …", deepreduce.outer.Outer, model, TOP, every=0)
    refused("optimizer is 3, not a function", deepreduce.outer.Outer, model, TOP, every=2, optimizer=3)
    compress = deepreduce.outer.TopKCompressor().compress
    refused("x is array([[1., 1.]]), not a Tensor", compress, numpy.ones((1, 2)), 2)
    refused("topk is 2.5, not an integer", compress, torch.ones(4, 4), 2.5)
