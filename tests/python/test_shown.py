"""What objects show of themselves in a notebook or a log."""

import pytest

np = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
import deepreduce.control  # noqa: E402
import deepreduce.exchange  # noqa: E402
import deepreduce.outer  # noqa: E402
import deepreduce.patch  # noqa: E402
import deepreduce.transform  # noqa: E402

PLAN = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw"


def test_objects_that_exchange_show_tensors_ranks_and_plans():
    x = np.zeros(5000, "f4")
    sender = deepreduce.Sender({"a": x, "b": x[:10]}, {"a": PLAN, "b": None}, ranks=4, rank=2)
    assert repr(sender) == f"<Sender 2 tensors, 1 unit, rank 2 of 4: {sender.plan_of('a')}; {sender.plan_of('b')}>"
    loopback = deepreduce.exchange.Loopback(1)
    exchange = deepreduce.exchange.Exchange(x, PLAN, loopback.transport(0))
    assert repr(exchange) == f"<Exchange 1 tensor, 0 calls: {PLAN}>"
    adaptive = deepreduce.control.AdaptiveExchange(x, [None, PLAN], "fit(target_ms=20)", deepreduce.exchange.Loopback(1).transport(0))
    assert repr(adaptive).startswith("<AdaptiveExchange <Controller fit(target_ms=20), rung 0 of 2, decides at step ")
    transform = deepreduce.transform.Transform([(20, 30), (7,)], "transform=lowrank(rank=2) feedback=residual")
    assert repr(transform) == "<Transform 2 tensors: transform=lowrank(rank=2) feedback=residual>"


def test_objects_of_a_folder_show_its_path(tmp_path):
    with deepreduce.patch.Store(tmp_path / "weights") as store:
        assert repr(store) == f"<Store {tmp_path / 'weights'}>"
        store.put(0, {"w": np.zeros(10, "f4")})
        assert repr(store) == f"<Store {tmp_path / 'weights'}, locked for writing>"
    assert repr(store) == f"<Store {tmp_path / 'weights'}>"
    assert repr(deepreduce.outer.Folder(tmp_path, "alice")) == f"<Folder {tmp_path}, worker alice>"
