"""What deepreduce.outer.hivemind promises, with hivemind itself: peers find one another over its DHT and talk over its libp2p."""

import asyncio
import os
import time
import types

import hivemind
import numpy as np
import pytest
import torch
from hivemind.optim.grad_averager import GradientAverager as Plain
from hivemind.proto import averaging_pb2, runtime_pb2

import deepreduce
from deepreduce.outer.hivemind import GradientAverager, _Group

EXACT = "index=all value=raw"
SPARSE = "sparsify=topr(ratio=0.25) feedback=residual index=golomb value=raw"
N = 3000


@pytest.fixture(scope="module")
def nodes():
    """Three nodes of a DHT"""
    first = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    rest = [
        hivemind.DHT(initial_peers=first.get_visible_maddrs(), start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
        for _ in range(2)
    ]
    yield [first, *rest]
    for node in [*rest, first]:
        node.shutdown()


class Peer:
    """A peer of two parameters, whose gradients are random numbers by its number."""

    def __init__(self, node, number, prefix, plan, kind=GradientAverager, group=2, start=True, **options):
        self.parameters = [torch.nn.Parameter(torch.zeros(N)), torch.nn.Parameter(torch.zeros(4, 5))]
        random = torch.Generator().manual_seed(number)
        self.gradients = [torch.randn(parameter.shape, generator=random) for parameter in self.parameters]
        if kind is not Plain:
            options["plan"] = plan
        self.averager = kind(
            self.parameters, dht=node, prefix=prefix, start=start, target_group_size=group, min_group_size=group,
            min_matchmaking_time=3.0, request_timeout=1.0, client_mode=False, **options,
        )  # fmt: skip

    def begin(self, samples, timeout=40, allow_retries=True):
        for parameter, gradient in zip(self.parameters, self.gradients):
            parameter.grad = gradient.clone()
        self.averager.accumulate_grads_(batch_size=samples)
        return self.averager.step(wait=False, timeout=timeout, allow_retries=allow_retries)

    def means(self):
        with self.averager.use_averaged_gradients() as found:
            return [tensor.clone() for tensor in found]


@pytest.fixture
def peers(nodes, request):
    """Makes peers, and shuts them down."""
    made = []

    def make(*plans, **options):
        for i, plan in enumerate(plans):
            made.append(Peer(nodes[i], i, f"{request.node.name.split('[')[0]}{len(made) - i}", plan, **options))
        return made[-len(plans) :]

    yield make
    for peer in made:
        peer.averager.shutdown()


def step(group, samples=(1, 3, 2)):
    for control in [peer.begin(n) for peer, n in zip(group, samples)]:
        assert control.result(60) is not None
    return [peer.means() for peer in group]


def same(one, two):
    return all(torch.equal(a, b) for a, b in zip(one, two))


def weighted(group, samples):
    return [sum(n * peer.gradients[i] for peer, n in zip(group, samples)) / sum(samples) for i in range(2)]


@pytest.mark.parametrize("plan", [EXACT, None])
def test_an_exact_plan_is_the_weighted_mean_of_hivemind(peers, plan):
    group, usual = peers(plan, plan), peers(None, None, kind=Plain)
    (one, two), (theirs, _) = step(group), step(usual)
    assert same(one, two)
    for ours, mean, expected in zip(one, theirs, weighted(group, (1, 3))):
        assert torch.allclose(ours, mean, atol=1e-6) and torch.allclose(ours, expected, atol=1e-6)


def test_what_is_not_sent_is_sent_later(peers):
    group, steps = peers(SPARSE, SPARSE), 8
    total = [torch.zeros(N), torch.zeros(4, 5)]
    for _ in range(steps):
        one, two = step(group)
        assert same(one, two)
        assert 0.2 < np.count_nonzero(one[0]) / N < 0.5  # two times a quarter
        for sums, mean in zip(total, one):
            sums += mean
    expected = weighted(group, (1, 3))
    # (Without a residual only the largest quarter would ever arrive.)
    assert (total[0] / steps - expected[0]).norm() < 0.3 * expected[0].norm()
    sent, received = group[0].averager.sent, group[1].averager.received
    assert 0 < sent == received < 0.45 * steps * 4 * N


def test_peers_with_other_plans_do_not_meet(peers):
    group = peers(SPARSE, EXACT)
    for control in [peer.begin(1, timeout=6, allow_retries=False) for peer in group]:
        with pytest.raises(Exception, match="could not find a group"):
            control.result(60)
    assert [peer.averager.sent for peer in group] == [0, 0]


def test_a_gradient_that_is_not_finite_is_left_out(peers):
    group = peers(EXACT, EXACT)
    group[1].gradients[0][7] = float("nan")
    one, two = step(group)
    assert same(one, two) and same(one, group[0].gradients)


def test_a_peer_that_dies_is_left_out(nodes):
    group = [Peer(nodes[i], i, "dies", EXACT, group=3, sender_timeout=4.0, start=i < 2) for i in range(3)]
    group[2].averager._encode = lambda *arguments: os._exit(1)  # when it has joined the group
    group[2].averager.run_in_background(await_ready=True)
    try:
        controls = [peer.begin(n) for peer, n in zip(group, (1, 3, 2))]
        assert all(control.result(60) is not None for control in controls[:2])
        one, two = (peer.means() for peer in group[:2])
        assert same(one, two)
        assert all(torch.allclose(ours, expected, atol=1e-6) for ours, expected in zip(one, weighted(group[:2], (1, 3))))
    finally:
        for peer in group:
            peer.averager.shutdown()


def test_a_peer_that_sends_empty_parts_is_left_out(nodes):
    group = [Peer(nodes[i], i, "empty", EXACT, group=3, start=i < 2) for i in range(3)]  # without any timeout

    async def send_nothing(peer, group_id, message, exchange):
        async def parts():
            first = {"code": averaging_pb2.PART_FOR_AVERAGING, "group_id": group_id}
            while True:
                yield averaging_pb2.AveragingData(tensor_part=runtime_pb2.Tensor(buffer=b""), **first)
                await asyncio.sleep(0.5)

        stub = GradientAverager.get_stub(group[2].averager._p2p, peer, namespace="empty")
        async for _ in await stub.rpc_aggregate_part(parts()):
            pass

    group[2].averager._send = send_nothing
    group[2].averager.run_in_background(await_ready=True)
    try:
        controls = [peer.begin(n) for peer, n in zip(group, (1, 3, 2))]
        assert all(control.result(30) is not None for control in controls[:2])
        for peer in group[:2]:
            assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(peer.means(), weighted(group[:2], (1, 3))))
    finally:
        for peer in group:
            peer.averager.shutdown()


def test_a_slow_peer_does_not_postpone_leaving_out_a_silent_one():
    async def run():
        exchange = _Group(["slow", "silent"], 1 << 20, 0.5)
        refused = []

        async def slow_parts():
            for _ in range(100):  # 10 seconds
                yield averaging_pb2.AveragingData(tensor_part=runtime_pb2.Tensor(buffer=b"x"))
                await asyncio.sleep(0.1)
                # What a peer sends after it is left out is refused before it is read.
                if exchange._incoming["silent"].done():
                    refused.extend([answer.code async for answer in exchange.rpc_aggregate_part(no_parts(), peer("silent"))])
                    return

        async def no_parts():
            raise AssertionError("the exchange reads what a peer sends that is left out")
            yield

        async def confirmed():
            pass

        async def answers():
            return [answer.code async for answer in exchange.rpc_aggregate_part(slow_parts(), peer("slow"))]

        peer = lambda name: types.SimpleNamespace(remote_id=name)
        sent = asyncio.create_task(answers())
        received, reached = await exchange.exchange({"slow": confirmed(), "silent": confirmed()})
        assert await sent == [averaging_pb2.AVERAGED_PART] and refused == [averaging_pb2.PROTOCOL_VIOLATION]
        assert list(received) == ["slow"] and len(received["slow"]) < 50 and reached == 2

    asyncio.run(run())


def test_a_step_that_is_cancelled_while_it_encodes_is_tried_again(peers):
    usual = peers(SPARSE, SPARSE)
    slow = peers(SPARSE, SPARSE, allreduce_timeout=2.0, start=False)
    encode, calls = slow[0].averager._encode, []

    def encode_late(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            time.sleep(4)  # beyond allreduce_timeout
        return encode(*arguments)

    slow[0].averager._encode = encode_late
    for peer in slow:
        peer.averager.run_in_background(await_ready=True)
    # The call that was cancelled ends before the residual is restored; else the second try, or the next step, has a gradient twice.
    for pause in (0, 4):
        time.sleep(pause)
        for expected, found in zip(step(usual), step(slow)):
            assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(expected, found))


@pytest.mark.parametrize("options", [{"client_mode": True}, {"auxiliary": True}])
def test_peers_that_cannot_be_reached_are_refused(nodes, options):
    with pytest.raises(deepreduce.Unsupported, match="each other one"):
        GradientAverager([torch.nn.Parameter(torch.zeros(2))], plan=EXACT, dht=nodes[0], prefix="refused", **options)


def test_another_compression_is_refused(nodes):
    with pytest.raises(deepreduce.ArgumentError, match="the plan says"):
        GradientAverager(
            [torch.nn.Parameter(torch.zeros(2))], plan=EXACT, dht=nodes[0], prefix="refused",
            compression=hivemind.compression.Float16Compression(),
        )  # fmt: skip


def test_a_plan_that_needs_weights_is_refused_before_training(nodes):
    parameters = (torch.nn.Parameter(torch.zeros(size)) for size in (N, 5))  # an iterator, as model.parameters()
    with pytest.raises(deepreduce.Unsupported, match="compares with the weights"):
        GradientAverager(parameters, plan="pulseloco", dht=nodes[0], prefix="refused")


@pytest.mark.parametrize("name", ["bandwidth", "min_vector_size", "part_size_bytes", "reducer_timeout", "tensor_infos"])
def test_an_option_without_effect_is_refused(nodes, name):
    with pytest.raises(deepreduce.ArgumentError, match=f"{name}: of the shares"):
        GradientAverager([torch.nn.Parameter(torch.zeros(2))], plan=EXACT, dht=nodes[0], prefix="refused", **{name: 1})
