"""What deepreduce.outer promises to the ranks of a process group."""

import copy
import io
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch_ranks import check, make_model, parameters_of, raises, same, same_on_all_ranks

import deepreduce
from deepreduce.outer import Outer

SPARSE = "sparsify=topr(ratio=0.03) feedback=residual(beta=0.95) index=golomb value=lloyd(levels=4)"
DENSE = {"f32": None, "bf16": "index=all value=half(type=bf16)", "int8": "index=all value=uniform_quant(bits=8)"}


class Norms(nn.Module):
    """A model with buffers of all kinds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Tanh(), nn.Linear(30, 5))
        self.register_buffer("mask", torch.linspace(0, 1, 7), persistent=False)
        self.register_buffer("constant", torch.tensor([0.1, -0.0, 1 / 3]))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))

    def forward(self, x):
        return self.body(x)


def inner_steps(model, inner, outer, first, last, scale=1.0, **options):
    rounds = []
    for step in range(first, last):
        torch.manual_seed(1000 * step + dist.get_rank())
        inner.zero_grad()
        (scale * model(torch.randn(8, 20)).float().square().mean()).backward()
        inner.step()
        if outer.step(**{key: value(step) for key, value in options.items()}):
            rounds.append(step)
    return rounds


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def buffers_of(model):
    return torch.cat([value.detach().reshape(-1).double() for value in model.state_dict().values()])


@check("outer")
def a_round_ends_with_the_same_bits_on_all_ranks():
    for plan in (SPARSE, "sparseloco", "demo", "distro", "pulseloco", "transform=lowrank(rank=2) feedback=residual", "sparsify=topr(ratio=0.1) feedback=residual index=golomb exchange=owner", *DENSE.values()):
        for dtype in (None, torch.bfloat16):
            torch.manual_seed(dist.get_rank())  # each begins elsewhere
            model = make_model(dtype)
            with torch.no_grad():
                next(model.parameters()).add_(dist.get_rank())
            outer = Outer(model, plan, every=4)
            assert same_on_all_ranks(parameters_of(model)), plan
            inner = adam(model)
            for step in range(8):
                torch.manual_seed(step + 100 * dist.get_rank())
                inner.zero_grad()
                model(torch.randn(8, 20).to(dtype or torch.float32)).float().square().mean().backward()
                inner.step()
                if outer.step():
                    assert step in (3, 7) and same_on_all_ranks(parameters_of(model)), plan
                else:
                    assert not same_on_all_ranks(parameters_of(model)), plan
            assert outer.info.rounds == 2 and outer.info.last.workers == ("0", "1") and outer.info.sent > 0


@check("outer")
def a_dense_round_of_rate_one_is_the_mean_of_the_weights():
    model = make_model()
    outer = Outer(model, None, every=3, optimizer=lambda weights: torch.optim.SGD(weights, lr=1.0))
    inner = adam(model)
    inner_steps(model, inner, _Never(), 0, 3)
    mean = parameters_of(model)
    dist.all_reduce(mean)
    for _ in range(3):
        outer.step()
    assert torch.allclose(parameters_of(model), mean / 2, atol=1e-6)


class _Never:
    def step(self):
        return False


@check("outer")
def nesterov_and_a_residual_are_as_computed_by_hand():
    """Two rounds of DiLoCo's outer optimizer; and of Top-k, whose residual decays."""
    model, moves = nn.Linear(40, 40, bias=False), []
    start = torch.linspace(-1, 1, 1600).view(40, 40)
    model.weight.data.copy_(start)
    outer = Outer(model, None, every=1)
    momentum, expected = torch.zeros(40, 40), start.clone()
    for number in range(3):
        move = torch.randn(40, 40, generator=torch.Generator().manual_seed(number)) * (1 + dist.get_rank())
        model.weight.data.sub_(move)
        outer.step()
        mean = move * 1.5 / (1 + dist.get_rank())
        momentum = 0.9 * momentum + mean
        expected -= 0.7 * (mean + 0.9 * momentum)
        assert torch.allclose(model.weight.data, expected, atol=1e-4), number
    plan = "sparsify=topr(ratio=0.25) feedback=residual(beta=0.5) index=golomb value=raw"
    model.weight.data.copy_(start)
    outer, residual = Outer(model, plan, every=1), torch.zeros(1600)
    for number in range(4):
        move = torch.randn(1600, generator=torch.Generator().manual_seed(10 * number + dist.get_rank()))
        before = model.weight.data.clone()
        model.weight.data.sub_(move.view(40, 40))
        outer.step()
        total = 0.5 * residual + move
        sent = torch.zeros(1600)
        places = total.abs().topk(400).indices
        sent[places] = total[places]
        residual = total - sent
        dist.all_reduce(sent)
        moves.append(torch.dist(model.weight.data, before - sent.view(40, 40) / 2))
    assert max(moves) < 1e-4, moves


@check("outer3")
def pulseloco_sends_what_moves_weights_in_bf16_and_what_was_moved_adds_up():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = nn.Linear(60, 60, bias=False)
    start = model.weight.data.copy_(torch.linspace(-1, 1, 3600).view(60, 60)).clone()
    outer, residual, moved = Outer(model, "pulseloco", every=1), torch.zeros(60, 60), torch.zeros(60, 60, dtype=torch.float64)
    for number in range(5):
        before = model.weight.data.clone()
        model.weight.data.sub_(0.002 * torch.randn(60, 60, generator=torch.Generator().manual_seed(10 * number + rank)))
        move = before - model.weight.data  # (as rounded)
        moved += move
        outer.step()
        total = residual + move
        sent = torch.where((before - total).bfloat16() != before.bfloat16(), total, 0)
        assert 0.2 < sent.count_nonzero() / 3600 < 0.9, sent.count_nonzero()
        residual = total - sent
        dist.all_reduce(sent)
        assert torch.dist(model.weight.data, before - sent / ranks) < 1e-5, number
        assert same_on_all_ranks(parameters_of(model))
    part = outer.state_dict()["exchange"]["reduces"]["0"][f"rank{rank}"]["residuals"]["weight"]["state"]
    saved = torch.from_numpy(deepreduce.State._from_bytes(part.numpy()).residual.copy()).view(60, 60)
    assert torch.equal(saved, residual)
    left = moved - saved.double()
    dist.all_reduce(left)
    assert torch.dist(ranks * (start.double() - model.weight.data.double()), left) < 1e-5


@check("outer")
def weights_of_any_strides_are_exchanged():
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(2)
        model = nn.Conv2d(20, 30, 3).to(memory_format=layout)
        outer = Outer(model, "pulseloco", every=2)
        for _ in range(4):
            model.weight.data += 0.01 * (1 + dist.get_rank())
            outer.step()
        found.append(model.weight.detach().contiguous())
    assert model.weight.is_contiguous(memory_format=torch.channels_last) and torch.equal(*found)


@check("outer")
def a_resumed_run_goes_on_bit_for_bit():
    for options in (
        {"plan": SPARSE, "every": 5},
        {"plan": SPARSE, "every": 5, "overlap": 2},
        {"plan": SPARSE, "every": 6, "fragments": 3, "overlap": 1},
        {"plan": None, "every": 5},
        {"plan": "pulseloco", "every": 5, "dense_below": 0},
        {"plan": "pulseloco", "every": 6, "dense_below": 0, "fragments": 3, "overlap": 1},
        {"plan": "transform=lowrank(rank=2) feedback=residual", "every": 5},
        {"plan": "index=all value=uniform_quant(bits=4) feedback=residual exchange=owner", "every": 5},
    ):
        expected = None

        def weight(step):
            return 2.0 + dist.get_rank() * (1 + step % 7)

        for cut in (None, 8, 10, 11, 15):
            model = Norms()
            outer, inner = Outer(model, **options), adam(model)
            inner_steps(model, inner, outer, 0, cut or 20, weight=weight)
            if cut:
                file = io.BytesIO()
                torch.save([model.state_dict(), inner.state_dict(), outer.state_dict()], file)
                file.seek(0)
                states = torch.load(file)
                torch.manual_seed(17)
                model = Norms()
                model.body[0].weight.data.zero_()
                outer, inner = Outer(model, **options), adam(model)
                for part, state in zip((model, inner, outer), states):
                    part.load_state_dict(state)
                inner_steps(model, inner, outer, cut, 20, weight=weight)
            found = buffers_of(model)
            expected = found if expected is None else expected
            assert torch.equal(found.view(torch.int64), expected.view(torch.int64)), (options, cut)


@check("outer")
def buffers_become_the_mean_and_counters_those_of_the_first_rank():
    model = Norms()
    outer = Outer(model, SPARSE, every=2)
    model.seen += 5 + dist.get_rank()
    model.mask += dist.get_rank()
    inner_steps(model, adam(model), _Never(), 0, 2)
    mean = model.body[1].running_mean.clone()
    dist.all_reduce(mean)
    outer.step()
    assert outer.step()
    assert torch.allclose(model.body[1].running_mean, mean / 2, atol=1e-6)
    assert same_on_all_ranks(torch.cat([value.reshape(-1).float() for value in model.state_dict().values()]))
    assert model.seen.tolist() == [5] * 3 and float(model.mask[0]) == dist.get_rank()
    assert model.constant.view(torch.int32).tolist() == Norms().constant.view(torch.int32).tolist()


@check("outer")
def buffers_that_a_module_replaces_are_exchanged():
    """self.ema = 0.9 * self.ema + … leaves the tensor that Outer found at the beginning behind."""
    for overlap in (0, 1):
        model = nn.Linear(4, 4)
        model.register_buffer("ema", torch.zeros(4))
        model.register_buffer("seen", torch.zeros(2, dtype=torch.int64))
        outer = Outer(model, None, every=2, overlap=overlap)
        for step in range(1, 7):
            model.ema = model.ema + 1.0 + dist.get_rank()
            model.seen = model.seen + 1 + dist.get_rank()
            landed = outer.step()
            if overlap and landed:  # with what it moved since the round was sent on top
                assert model.ema.tolist() == [1.5 * (step - 1) + 1.0 + dist.get_rank()] * 4, (step, model.ema)
            elif landed:
                assert model.ema.tolist() == [1.5 * step] * 4 and model.seen.tolist() == [step] * 2, (step, model.ema, model.seen)
        assert outer.info.rounds == 3 - overlap


@check("outer")
def buffers_of_every_type_are_those_of_the_first_rank():
    kinds = "int8 int16 int32 uint8 uint16 uint32 uint64 bool float64 complex64 float8_e4m3fn float8_e5m2".split()
    model, rank = nn.Linear(4, 4), dist.get_rank()
    for kind in kinds:
        if hasattr(torch, kind):  # (by bytes: not all types have arithmetic)
            model.register_buffer(kind, torch.full((2, 3, 8), rank, dtype=torch.uint8).view(getattr(torch, kind)))
    model.register_buffer("scalar", torch.tensor(rank, dtype=torch.int16))
    model.register_buffer("strided", torch.full((2, 3, 4, 5), rank, dtype=torch.int16).to(memory_format=torch.channels_last))
    model.register_buffer("empty", torch.zeros(0, dtype=torch.int16))
    model.register_buffer("one of a column", torch.full((5, 5), rank, dtype=torch.int16)[:1, 0])

    def first_bytes():
        return {int(torch.as_strided(buffer.cpu(), (1,), (1,)).view(torch.uint8)[0]) for buffer in model.buffers() if buffer.numel()}

    outer = Outer(model, None, every=1)
    assert first_bytes() == {0}
    for buffer in model.buffers():
        if buffer.numel():
            torch.as_strided(buffer.data, (buffer.numel(),), (1,)).view(torch.uint8).fill_(1 + rank)
    outer.step()
    assert first_bytes() == {1} and outer.info.rounds == 1


@check("outer")
def an_infinite_value_that_does_not_change_moves_by_0():
    """A mask of attention that is saved: the difference of two infinities is NaN."""
    for overlap in (0, 1):
        model = nn.Linear(4, 4)
        model.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
        outer = Outer(model, None, every=2, overlap=overlap, optimizer=lambda weights: torch.optim.SGD(weights, lr=1.0))
        for _ in range(5):
            with torch.no_grad():
                model.weight += 1.0 + dist.get_rank()
                model.mask += 1.0
            outer.step()
        assert outer.info.rounds == 2
        assert torch.equal(model.mask, torch.full((4, 4), float("-inf")).triu(1) + torch.full((4, 4), 5.0).tril()), (overlap, model.mask)
        model.mask[0, 0] = float("inf")
        with raises(deepreduce.PeerError, "mask"):
            while True:
                outer.step()


@check("outer")
def ranks_at_another_h_plan_or_model_are_named_with_the_difference():
    rank = dist.get_rank()
    with raises(deepreduce.ArgumentError, "rank 1 has every 6, others 5") as caught:
        Outer(make_model(), SPARSE, every=5 + rank)
    assert caught[0].rank == 1
    with raises(deepreduce.ArgumentError, "rank 1 has plan", "ratio=0.5"):
        Outer(make_model(), SPARSE.replace("0.03", "0.5") if rank else SPARSE, every=5)
    with raises(deepreduce.ArgumentError, "rank 1 has the tensor weight [5, 4] torch.float32, others [4, 5]"):
        Outer(nn.Linear(4, 5) if rank else nn.Linear(5, 4), SPARSE, every=5)
    with raises(deepreduce.ArgumentError, "rank 1 has optimizer Adam"):
        Outer(make_model(), SPARSE, every=5, optimizer=torch.optim.Adam if rank else None)


@check("outer")
def ranks_that_load_states_of_other_steps_are_named():
    model = make_model()
    outer, inner = Outer(model, SPARSE, every=4), adam(model)
    states = []
    for step in range(0, 8, 2):
        inner_steps(model, inner, outer, step, step + 2)
        states.append(outer.state_dict())
    other = copy.deepcopy(states[2])
    other["agreed"]["weights"]["0.bias"] += 1
    for state, words in (
        (states[0], "rank 1 is at inner step 4, round 0; rank 0 at inner step 8, round 1"),
        (states[3], "rank 0 is at inner step 8, round 1; rank 1 at inner step 12, round 2"),
        (other, "has other agreed weights than rank"),
    ):
        model = make_model()
        outer = Outer(model, SPARSE, every=4)
        outer.load_state_dict(state if dist.get_rank() else states[2])
        with raises(deepreduce.OutOfStep, words):
            while True:
                outer.step()


def residuals_of(outer):
    """Of feedback, by place: bytes."""
    state, found = outer.state_dict()["exchange"], {}
    for at, reduce in state["reduces"].items():
        part = reduce.get(f"rank{dist.get_rank()}", {})
        for kind in ("residuals", "sums"):
            for name, saved in part.get(kind, {}).items():
                found[at, kind, name] = (saved["state"] if kind == "residuals" else saved).clone()
    return found


def everything_agreed(outer):
    """The weights, buffers and outer optimizer, as one tensor of bytes."""
    return torch.cat([torch.from_numpy(array.copy()).view(torch.uint8) for array in outer._agreed.arrays().values()])


@check("outer3")
def ranks_that_are_behind_catch_up_and_keep_their_residuals():
    """Rank 1 is newest; rank 0 has an older state, rank 2 none."""
    rank = dist.get_rank()

    def momentum(weights):
        return torch.optim.SGD(weights, lr=0.7, momentum=0.9, nesterov=True)

    for options in (
        {"plan": SPARSE, "every": 4},
        {"plan": SPARSE, "every": 4, "fragments": 2, "overlap": 1},
        {"plan": "sparsify=topr(ratio=0.1) feedback=residual index=golomb exchange=owner", "every": 4},
        {"plan": "transform=lowrank(rank=2) feedback=residual", "every": 4},
        {"plan": None, "every": 4},
    ):
        for fails in (False, True):
            model = Norms()
            outer, inner = Outer(model, optimizer=momentum, **options), adam(model)
            states = []
            for last in range(1, 11):
                inner_steps(model, inner, outer, 2 * last - 2, 2 * last)
                states.append(copy.deepcopy([model.state_dict(), outer.state_dict()]))
            torch.manual_seed(rank)
            model = Norms()
            outer, inner = Outer(model, optimizer=momentum, **options), adam(model)
            if rank < 2:  # rank 0 within round 2, rank 1 after round 4
                for part, state in zip((model, outer), states[[4, 9 if fails else 7][rank]]):
                    part.load_state_dict(copy.deepcopy(state))
            if fails:
                with raises(deepreduce.OutOfStep, "or call catch_up() on all ranks"):
                    while True:
                        outer.step()
            before, residuals = everything_agreed(outer), residuals_of(outer)
            assert outer.catch_up() == (rank != 1), options
            assert rank != 1 or same(everything_agreed(outer), before)
            assert same_on_all_ranks(everything_agreed(outer).float()), options
            now = residuals_of(outer)
            assert all(torch.equal(saved, now[place]) for place, saved in residuals.items()), options
            if rank != 1:
                assert same(buffers_of(model), torch.cat([tensor.reshape(-1).double() for tensor in agreed_state(outer, model)]))
            assert outer.catch_up() is False
            rounds = outer.info.rounds
            inner_steps(model, inner, outer, 0, 8)
            assert outer.info.rounds > rounds and same_on_all_ranks(everything_agreed(outer).float()), options
            assert outer.info.last.workers == ("0", "1", "2")


def agreed_state(outer, model):
    both = {**outer._agreed.weights, **outer._agreed.means, **outer._agreed.copies}
    return [both[name] for name in model.state_dict()]


@check("outer3")
def ranks_at_another_inner_step_of_one_round_keep_what_they_trained():
    rank, model = dist.get_rank(), make_model()
    outer, inner = Outer(model, SPARSE, every=6), adam(model)
    inner_steps(model, inner, outer, 0, 8 + rank)
    before = parameters_of(model).clone()
    assert outer.catch_up() is False and same(parameters_of(model), before) and not same_on_all_ranks(before)
    inner_steps(model, inner, outer, 10, 12)
    assert outer.info.rounds == 2 and same_on_all_ranks(parameters_of(model))
    with raises(deepreduce.ArgumentError, "a round is under way"):
        outer = Outer(model, SPARSE, every=2, overlap=1)
        outer.step()
        outer.step()
        outer.catch_up()
    outer.step()
    assert outer.catch_up() is False


@check("outer4")
def islands_train_dense_inside_a_host_and_exchange_rounds_between_hosts():
    """As docs/OUTER.md has it: ranks 0 and 1 are a host, 2 and 3 another; the first of each is its leader."""
    rank = dist.get_rank()
    hosts = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    leaders = dist.new_group([0, 2])
    host, leader = hosts[rank // 2], rank // 2 * 2

    def share(model):
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, leader, group=host)

    for options in ({}, {"overlap": 2}, {"fragments": 2}):
        torch.manual_seed(rank)
        model = Norms()
        ddp = nn.parallel.DistributedDataParallel(model, process_group=host)
        inner = adam(model)
        if rank == leader:
            outer = Outer(model, SPARSE, every=4, group=leaders, **options)
        else:
            with raises(deepreduce.ArgumentError, f"rank {rank} is not in the group"):
                Outer(model, SPARSE, every=4, group=leaders)
        share(model)
        assert same_on_all_ranks(buffers_of(model))
        alike, states = [], []
        for step in range(12):
            torch.manual_seed(1000 * step + rank)
            inner.zero_grad()
            ddp(torch.randn(8, 20)).square().mean().backward()
            inner.step()
            landed = torch.tensor([rank == leader and outer.step()])
            dist.broadcast(landed, leader, group=host)
            if landed:
                share(model)
                states.append(outer.state_dict() if rank == leader else {})
            there = [torch.empty_like(parameters_of(model)) for _ in range(2)]
            dist.all_gather(there, parameters_of(model), group=host)
            assert same(*there), (options, step)
            alike.append(same_on_all_ranks(buffers_of(model)))
        if not options:
            assert alike == [False, False, False, True] * 3
        if rank == leader and not options:  # one of them is behind, and keeps its residuals
            if rank == 2:
                outer.load_state_dict(states[0])
            assert outer.catch_up() == (rank == 2)
            now, then = (state["exchange"]["reduces"]["0"][f"rank{rank}"]["residuals"] for state in (outer.state_dict(), states[0 if rank == 2 else -1]))
            assert now.keys() == then.keys() != set() and all(torch.equal(now[name]["state"], then[name]["state"]) for name in then)
        if rank == leader:
            assert outer.info.last.workers == ("0", "2") and outer.info.rounds == (6 if "fragments" in options else 2 if "overlap" in options else 3), options


@check("outer")
def overlap_counts_each_inner_step_once():
    """With a dense plan and rate 1, what is applied late is what ranks moved, and what they moved meanwhile stays."""
    model = nn.Linear(30, 30, bias=False)
    model.weight.data.zero_()
    outer = Outer(model, None, every=4, overlap=3, optimizer=lambda weights: torch.optim.SGD(weights, lr=1.0))
    landed = []
    for step in range(15):
        model.weight.data += 1.0 + dist.get_rank()
        if outer.step():
            landed.append(step)
    # Sent at steps 3, 7 and 11, of 4 steps each; landed three later, when three are on top.
    assert landed == [6, 10, 14], landed
    assert torch.equal(model.weight.data, torch.full((30, 30), 12 * 1.5 + 3 * (1.0 + dist.get_rank())))


@check("outer")
def fragments_travel_in_turn():
    model = make_model()
    outer = Outer(model, None, every=6, fragments=3, optimizer=lambda weights: torch.optim.SGD(weights, lr=1.0))
    parts = outer._fragments
    names = dict(model.named_parameters())
    assert sorted(sum(parts, [])) == sorted(names) and all(parts)
    for step in range(12):
        for parameter in names.values():
            parameter.data += 1.0 + dist.get_rank()
        assert outer.step() == (step % 2 == 1)
        if step % 2 == 1:
            for i, part in enumerate(parts):
                alike = same_on_all_ranks(torch.cat([names[name].detach().reshape(-1) for name in part]))
                assert alike == (i == (step // 2) % 3), (step, i)


@check("outer")
def weights_are_those_of_the_mean():
    for plan in (None, SPARSE.replace("0.03", "1")):
        model = nn.Linear(30, 30, bias=False)
        model.weight.data.zero_()
        outer = Outer(model, plan, every=2, optimizer=lambda weights: torch.optim.SGD(weights, lr=1.0))
        for _ in range(2):
            model.weight.data += 1.0 + dist.get_rank()
            outer.step(weight=[100, 300][dist.get_rank()])
        assert torch.allclose(model.weight.data, torch.full((30, 30), (2 * 100 + 4 * 300) / 400), atol=1e-5)


@check("outer")
def only_the_proportions_of_weights_count_also_in_residuals():
    """The ranks move alike, so the mean is what they move, whatever their weights are. Half way they resume; in one case from a
    state of an earlier version, whose residual was multiplied by the weight."""
    rank, cases = dist.get_rank(), {"one": lambda at: 1.0, "equal": lambda at: 2.0**22, "unlike": lambda at: [1.0 + at * 5 % 8, 3.0][dist.get_rank()]}
    owner = "feedback=residual exchange=owner"
    for plan, near in {
        "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw": 1e-5,
        f"sparsify=topr(ratio=0.1) index=golomb {owner}": 1e-5,
        f"index=all value=uniform_quant(bits=4) {owner}": 1e-2,
        "transform=lowrank(rank=2) feedback=residual": 1e-4,
        "sparseloco": 0.1,
        "pulseloco": 1e-2,
        "index=all value=half": 1e-3,
        None: 1e-5,
    }.items():
        found = {}
        for case, weight in cases.items():
            generator = torch.Generator().manual_seed(0)
            drift = 0.02 * torch.randn(60, 60, generator=generator)

            def made():
                model = {"w": torch.zeros(60, 60)}
                return model, Outer(model, plan, every=1, dense_below=0, optimizer=lambda weights: torch.optim.SGD(weights, lr=1.0))

            model, outer = made()
            for at in range(16):
                if at == 8:
                    trained = model["w"].clone()
                    if case == "equal":
                        for reduce in outer._exchange._reduces:
                            if reduce.keeps:
                                reduce.scale_residuals(weight(at))
                    state = outer.state_dict()
                    if case == "equal":
                        del state["exchange"]["factors"], state["exchange"]["usual"]
                    model, outer = made()
                    model["w"].copy_(trained)
                    outer.load_state_dict(state)
                model["w"] += drift + 0.01 * torch.randn(60, 60, generator=generator)
                outer.step(weight(at))
            assert same_on_all_ranks(model["w"])
            found[case] = model["w"]
        assert torch.equal(found["equal"], found["one"]), (rank, plan, torch.dist(found["equal"], found["one"]))
        assert torch.dist(found["unlike"], found["one"]) < near * found["one"].norm(), (plan, torch.dist(found["unlike"], found["one"]))


@check("outer")
def weights_of_a_fragment_are_those_of_all_steps_since_it_was_sent():
    """Of two fragments the second moves for 4 steps before it is sent first; then each moves for 4."""

    def made():
        model = {name: torch.zeros(100) for name in "ab"}
        return model, Outer(model, None, every=4, fragments=2, optimizer=lambda weights: torch.optim.SGD(weights, lr=1.0))

    for cut in (None, "new", "old"):
        model, outer = made()
        for step in range(8):
            if cut and step == 5:
                state = outer.state_dict()
                assert state["weights"][0][1] == 3 and state["weights"][1][1] == 1
                trained = {name: weight.clone() for name, weight in model.items()}
                if cut == "old":
                    state["weight"] = state.pop("weights")[1][0]
                model, outer = made()
                for name, weight in trained.items():
                    model[name].copy_(weight)
                outer.load_state_dict(state)
            for weight in model.values():
                weight += 1.0 - dist.get_rank()
            outer.step(weight=1.0 if dist.get_rank() else [1, 1, 3, 3, 5, 5, 1, 1][step])
        # Rank 0 moves, with mean weights (1 + 1) / 2, (1 + 1 + 3 + 3) / 4, (3 + 3 + 5 + 5) / 4, (5 + 5 + 1 + 1) / 4; rank 1 has 1.
        second = 4 * 5 / 6 if cut == "old" else 4 * 4 / 5  # by the state of an earlier version with the weights since the last round
        expected = {"a": 2 * 1 / 2 + second + 2 * (1 - dist.get_rank()), "b": 4 * 2 / 3 + 4 * 3 / 4}
        for name, value in expected.items():
            assert torch.allclose(model[name], torch.tensor(value)), (cut, name, model[name][0], value)


@check("outer")
def a_rank_whose_weights_are_not_finite_is_named_and_goes_on():
    for plan in (SPARSE, None):
        model = make_model()
        outer = Outer(model, plan, every=4, overlap=2)
        for step in range(16):
            with torch.no_grad():
                next(model.parameters()).add_(0.01 * (1 + dist.get_rank()))
                if step == 5 and dist.get_rank():
                    model[3].weight.data[2, 2] = float("nan")
            if step == 9:  # (where the round lands)
                with raises(deepreduce.PeerError, "rank 1", "3.weight"):
                    outer.step()
                assert bool(parameters_of(model).isfinite().all())
            else:
                assert outer.step() == (step in (5, 13)), step
        assert outer.info.rounds == 3 and bool(parameters_of(model).isfinite().all())
        model = make_model()
        outer = Outer(model, plan, every=2)
        before = parameters_of(model).clone()
        if dist.get_rank():
            model[3].weight.data[2, 2] = float("nan")
        inner = torch.optim.SGD(model.parameters(), lr=0.01)
        outer.step()
        with raises(deepreduce.PeerError, "rank 1", "3.weight"):
            outer.step()
        assert same(parameters_of(model), before)
        inner_steps(model, inner, outer, 0, 2)
        assert same_on_all_ranks(parameters_of(model)) and bool(parameters_of(model).isfinite().all()) and outer.info.rounds == 2


@check("outer")
def the_defaults_are_by_the_plan():
    found = {}
    for name, plan in {"sparse": SPARSE, "dense": None, "bits": DENSE["int8"]}.items():
        options = Outer(make_model(), plan, every=2).optimizer.defaults
        found[name] = (options["lr"], options["momentum"], options["nesterov"])
    assert found == {"sparse": (1.0, 0.0, False), "dense": (0.7, 0.9, True), "bits": (0.7, 0.9, True)}


@check("outer")
def what_makes_no_sense_is_refused():
    model = make_model()
    for options, words in (
        ({"every": 0}, "every = 0 is not in 1"),
        ({"every": 5, "fragments": 2}, "every is 5, not a multiple of fragments, 2"),
        ({"every": 5, "fragments": 90}, "fragments is 90; the model has 10 parameters"),
        ({"every": 5, "overlap": 5}, "overlap is 5, not from 0 to below 5"),
        ({"every": 5, "optimizer": lambda weights: None}, "not a torch.optim.Optimizer"),
    ):
        with raises(deepreduce.ArgumentError, words):
            Outer(model, SPARSE, **options)
    with raises(deepreduce.Unsupported, "is a tensor of torch.float64"):
        Outer([torch.zeros(3, dtype=torch.float64)], SPARSE, every=2)
    with raises(deepreduce.ArgumentError, "nothing is trained"):
        Outer(make_model().requires_grad_(False), SPARSE, every=2)
    outer = Outer(model, SPARSE, every=2)
    with raises(deepreduce.ArgumentError, "weight is nan"):
        outer.step(weight=float("nan"))
    state = outer.state_dict()
    with raises(deepreduce.ArgumentError, "of another model"):
        Outer(nn.Linear(3, 3), SPARSE, every=2).load_state_dict(copy.deepcopy(state))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outer.load_state_dict(state)


# ---- Frames that are made where the weights are: here on an emulated device, whose memory is the CPU's ----

TOP = "sparsify=topr(ratio=0.03) feedback=residual(beta=0.95) index=golomb value=qsgd"
HALVES = "index=all value=half(type=bf16) feedback=residual"
FACTORS = "transform=lowrank(rank=2) feedback=residual"


def on_device(outer, frame_bytes=None):
    for reduce in (*outer._exchange._reduces, outer._exchange._buffers):
        reduce._emulated, reduce._frame_bytes = 0, frame_bytes
    return outer


def places_of(outer):
    return {reduce.stats().place for reduce in outer._exchange._reduces}


@check("outer")
def rounds_whose_frames_are_made_on_a_device_are_those_of_the_cpu():
    for plan in (TOP, HALVES, FACTORS):
        for options in ({}, {"fragments": 2, "overlap": 1}):
            found = []
            for place in (lambda outer: outer, on_device):
                model = Norms()
                outer, inner = place(Outer(model, plan, every=4, **options)), adam(model)
                inner_steps(model, inner, outer, 0, 12)
                saved = copy.deepcopy((model.state_dict(), inner.state_dict(), outer.state_dict()))
                inner_steps(model, inner, outer, 12, 20)
                found.append((parameters_of(model), buffers_of(model), outer, saved))
            (here, buffers, on_cpu, _), (there, others, emulated, saved) = found
            assert (places_of(on_cpu), places_of(emulated)) == ({"cpu"}, {"emulated"})
            assert on_cpu.info.rounds == emulated.info.rounds > 4
            model = Norms()
            resumed, inner = Outer(model, plan, every=4, **options), adam(model)  # on the CPU
            for target, state in zip((model, inner, resumed), saved):
                target.load_state_dict(state)
            inner_steps(model, inner, resumed, 12, 20)
            assert places_of(resumed) == {"cpu"}
            if plan == FACTORS:  # sums in another order
                assert torch.allclose(here, there, atol=1e-3) and torch.allclose(parameters_of(model), there, atol=1e-3), options
                assert options or same_on_all_ranks(there)  # (with overlap a round is under way)
            else:
                assert same(here, there) and torch.equal(buffers, others) and same(parameters_of(model), there), (plan, options)


def own_residuals(outer):
    """{name: [d] f64} of this rank."""
    found, reduce = {}, outer._exchange._reduces[0]
    for name, state in reduce._all_states().items():
        values = torch.from_numpy(state.residual.copy()) if state.memory.any() else torch.zeros(reduce._elements(name))
        found[name] = values.double()
    return found


@check("outer")
def a_round_that_a_unit_on_a_device_spoils_moves_nothing_and_loses_nothing():
    """Its fault is known when the device has merged: that of a gradient which with its residual exceeds f32, say."""
    from deepreduce.outer import _group

    rank, first_bad, spoiled = dist.get_rank(), _group._first_bad, "6.bias"
    for plan, beta in ((TOP, 0.95), (HALVES, 1), (FACTORS, 1)):
        model = make_model()
        outer, inner = on_device(Outer(model, plan, every=2), 6000), adam(model)
        inner_steps(model, inner, outer, 0, 2)
        reduce = outer._exchange._reduces[0]
        assert len(reduce._units) > 1
        agreed, before = everything_agreed(outer), own_residuals(outer)
        weights = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
        inner_steps(model, inner, outer, 2, 3)
        moved = {name: (weights[name] - tensor.detach()).view(-1).double() for name, tensor in model.named_parameters()}
        if rank == 1:
            with torch.no_grad():
                dict(model.named_parameters())[spoiled][0] = float("nan")
        _group._first_bad = lambda tensors: 0
        try:
            with raises(deepreduce.PeerError, "rank 1", spoiled) as caught:
                outer.step()
        finally:
            _group._first_bad = first_bad
        assert caught[0].rank == 1 and caught[0].tensor == spoiled
        assert torch.equal(everything_agreed(outer), agreed) and outer.info.rounds == 2
        assert all(torch.equal(tensor, weights[name]) for name, tensor in model.named_parameters())
        # Over all ranks nothing is lost that a unit without a fault sent. (The sum of halves was rounded once more.)
        failed, after = [item.name for item in reduce._where[spoiled][0].items], own_residuals(outer)
        for name, values in after.items():
            expected = beta * before[name] + moved[name]
            for total in (values, expected):
                dist.all_reduce(total)
            assert name in failed or torch.allclose(values, expected, atol=2e-4 if plan == HALVES else 1e-5), (plan, name)
        inner_steps(model, inner, outer, 4, 8)
        assert same_on_all_ranks(parameters_of(model)) and outer.info.rounds == 4


@check("outer")
def copies_to_the_cpu_are_said_once():
    rank = dist.get_rank()
    for plan, warns in ((SPARSE.replace("lloyd(levels=4)", "dynamic_tree"), True), (None, False)):  # (a dense plan makes no frames)
        model = Norms()
        outer = on_device(Outer(model, plan, every=4, fragments=2))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            inner_steps(model, adam(model), outer, 0, 8)
        found = [warning for warning in seen if "frames are made on the CPU" in str(warning.message)]
        assert len(found) == (1 if warns and rank == 0 else 0), [str(warning.message) for warning in found]
        assert all("dynamic_tree runs on the CPU only" in str(warning.message) and warning.filename == __file__ for warning in found)
        assert places_of(outer) == {"cpu"}
