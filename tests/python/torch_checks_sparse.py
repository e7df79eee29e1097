"""What DDPHook and AllReduce promise of gradients that arrive sparse (Embedding(sparse=True))."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch_ranks import LOSSLESS, LOSSY, check, raises, same, same_on_all_ranks

import deepreduce
from deepreduce.torch import AllReduce, DDPHook

LOWRANK = "transform=lowrank(rank=2) feedback=residual"
OPTIONS: tuple = ({}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}, {"static_graph": True})


def sparse(indices, values, shape):
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


class Words(nn.Module):
    """Two tables, one of them of words that come again and again."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.words, self.few = nn.Embedding(500, 8, sparse=True), nn.EmbeddingBag(7, 6, sparse=True, mode="sum")
        self.head = nn.Linear(14, 5)

    def forward(self, x):
        return self.head(torch.cat([self.words(x).mean(1), self.few(x % 7)], 1))


def run(hook, steps=5, **options):
    """(parameters, gradients of the last step)"""
    model = Words()
    ddp = DDP(model, **options)
    if hook is not None:
        hook.register(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.001)
    for step in range(steps):
        torch.manual_seed(100 * step + dist.get_rank())
        optimizer.zero_grad()
        words = 3 + 4 * ((step + dist.get_rank()) % 3)  # rows differ by rank and step
        ddp(torch.randint(500, (words, 5))).square().sum().backward()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]), [parameter.grad for parameter in model.parameters()]


@check("two")
def a_sparse_gradient_by_an_exact_plan_is_that_of_plain_ddp_bit_for_bit():
    for options in OPTIONS:
        expected, theirs = run(None, **options)
        for plan in (LOSSLESS, None, {"words*": None, "*": LOSSLESS}):
            for start in (0, 2):
                hook = DDPHook(plan, start=start)
                got, ours = run(hook, **options)
                assert same(got, expected), (plan, options, start)
                for a, b in zip(ours, theirs):
                    assert a.layout == b.layout and torch.equal(a.to_dense(), b.to_dense())
                    assert a.layout == torch.strided or (a.is_coalesced() and a._nnz() == b._nnz())


class Places(nn.Module):
    """The gradient of a table's output is also that of the layer beside it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.words, self.layer = nn.Embedding(20, 10), nn.Linear(10, 8)
        self.places, self.head = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(self.words(x)) + self.places(x))


@check("two")
def dense_steps_leave_what_backward_still_reads_as_it_is():
    """Plain DDP divides the values of a sparse gradient in their memory, which the gradients behind it share."""

    def loss_of(model, step, rank):
        torch.manual_seed(10 * step + rank)
        return model(torch.randint(20, (5,))).square().mean()

    n = dist.get_world_size()
    for plan, options in ((LOSSLESS, {"start": 2}), ("auto", {}), ([None, LOSSLESS], {"control": "steps(each=9)"})):
        for bucket_cap_mb in (25, 0.0003):
            model = Places()
            ddp = DDP(model, bucket_cap_mb=bucket_cap_mb)
            DDPHook(plan, **options).register(ddp)
            for step in range(3):
                ddp.zero_grad()
                loss_of(ddp, step, dist.get_rank()).backward()
                alone = Places()
                sum(loss_of(alone, step, rank) / n for rank in range(n)).backward()
                for got, expected in zip(model.parameters(), alone.parameters()):
                    assert got.grad.is_sparse == expected.grad.is_sparse
                    assert torch.allclose(got.grad.to_dense(), expected.grad.to_dense(), atol=1e-6), (plan, step)


@check("two")
def rows_travel_and_not_the_table():
    hook = DDPHook("index=golomb value=half", dense_below=0)
    got, gradients = run(hook)
    assert same_on_all_ranks(got) and gradients[0].is_sparse
    last = hook.stats().last
    assert 0 < last.frame < 2500 and last.sent < 5000 < 500 * 8 * 4
    assert hook.stats().total.repeats <= 8  # (rows grow by a factor of 3 within the steps)


@check("two")
def lossy_plans_and_lowrank_train_a_sparse_table():
    expected, _ = run(None)
    for plan in (LOSSY, LOWRANK, "8bit", "sparsify=topr(ratio=0.1) feedback=residual index=bloom(policy=p0,fpr=0.001) value=qsgd"):
        hook = DDPHook([("words*", plan), ("few*", plan), ("*", None)])
        got, _ = run(hook)
        assert same_on_all_ranks(got), plan
        assert (got - expected).norm() < 0.05 * expected.norm(), plan
        assert not any(name.startswith(("words", "few")) for name in hook._states)


@check("four")
def means_of_sparse_tensors_are_those_of_their_sum_in_rank_order():
    n = dist.get_world_size()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        reduce = AllReduce(LOSSLESS, dense_below=0)
        for step in range(4):
            drawn = []
            for rank in range(n):
                torch.manual_seed(10 * step + rank)
                rows = rank * step * 5  # none of rank 0, nor at step 0
                indices = torch.randint(40, (1, rows))
                drawn.append(sparse(indices, torch.randn(rows, 3, 2).to(dtype), (40, 3, 2)))
            x = {"table": drawn[dist.get_rank()].clone(), "dense": torch.full((5,), float(dist.get_rank()))}
            expected = sum(gradient.coalesce().to_dense().float() / n for gradient in drawn).to(dtype)
            reduce(x)
            assert x["table"].is_sparse and x["table"].is_coalesced() and x["table"].dtype == dtype
            assert torch.equal(x["table"].to_dense(), expected), (dtype, step)
            union = set(torch.cat([gradient._indices()[0] for gradient in drawn]).tolist())
            assert x["table"].indices()[0].tolist() == sorted(union)
            assert torch.equal(x["dense"], torch.full((5,), (n - 1) / 2))


@check("two")
def a_value_of_a_row_that_cannot_be_encoded_is_named_by_all():
    rank = dist.get_rank()
    reduce = AllReduce("index=golomb value=log_quant")

    def rows(bad):
        values = torch.ones(2, 4)
        values[1, 2] = float("nan") if bad else 1.0
        return {"table": sparse(torch.tensor([[3, 5]]), values, (10, 4))}

    reduce(rows(False))
    x = rows(rank == 1)
    with raises(deepreduce.PeerError, "rank 1: ", "table: ", "NaN"):
        reduce(x)
    assert rank == 1 or torch.equal(x["table"].to_dense()[5], torch.ones(4))  # untouched
    x = rows(False)
    reduce(x)
    assert torch.allclose(x["table"].to_dense()[5], torch.ones(4))


@check("two")
def what_cannot_be_done_with_rows_names_the_tensor_and_a_way_out():
    def table():
        return {"words.weight": sparse(torch.tensor([[1]]), torch.ones(1, 4), (9, 4))}

    out = "{'words.weight': None, '*': …}"
    for plan, why in (
        ("index=all value=sign merge=vote", "votes"), ("dgc", "momentum"),
        ("feedback=momentum index=all value=raw", "momentum"), ("sparsify=topr(ratio=0.1) value=fit_poly", "width 1"),
    ):  # fmt: skip
        with raises(deepreduce.Unsupported, "words.weight: ", why, out):
            AllReduce(plan)(table())
        x = table()
        AllReduce({"words*": None, "*": plan})(x)
        assert torch.equal(x["words.weight"].to_dense(), table()["words.weight"].to_dense())
    reduce = AllReduce(LOSSLESS)
    reduce(table())
    with raises(deepreduce.ArgumentError, "words.weight: sparse in one call and dense in another"):
        reduce({"words.weight": torch.ones(9, 4)})
    with raises(deepreduce.Unsupported, "tensor 0", "one sparse dimension", ".to_dense()"):
        AllReduce(LOSSLESS)([torch.eye(3).to_sparse()])
    shared = table()["words.weight"]
    with raises(deepreduce.ArgumentError, "memory in common"):
        AllReduce(LOSSLESS)([shared, shared])


@check("two")
def a_ladder_and_auto_go_on_with_sparse_gradients():
    hook = DDPHook([None, LOSSLESS, LOSSY], control="fit(target_ms=0.001)", dense_below=1000)
    got, gradients = run(hook, 12)
    assert same_on_all_ranks(got) and gradients[0].is_sparse
    auto = DDPHook("auto", dense_below=0)
    got, gradients = run(auto, 13)
    assert auto.choice is not None and same_on_all_ranks(got) and gradients[0].is_sparse


@check("two")
def a_table_is_no_part_of_a_state():
    hook = DDPHook(LOSSY, dense_below=0)
    run(hook)
    again = DDPHook(LOSSY, dense_below=0)
    again.load_state_dict(hook.state_dict())
    assert same_on_all_ranks(run(again)[0]) and set(again._states) == {"head.weight", "head.bias"}
