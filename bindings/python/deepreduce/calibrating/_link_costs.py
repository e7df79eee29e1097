"""Measures the link between ranks, and how much communication slows computation down. A round's time is the slowest rank's."""

from __future__ import annotations

import statistics
import time
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy

from .._native._types import Array, Json
from ._cost_fit import fit_affine
from ._rank_links import Ranks, Request, clock

_MIN_ROUNDS, _MAX_ROUNDS = 3, 40
_MAX_ROUND_NS = 3e9  # larger sizes are not measured once a round takes longer
# Seconds before each round. A backward pass also leaves the link idle before gradients are ready, and the token bucket of a
# shaped link fills in that time.
_IDLE = 3e-3
_TRIPS = 16  # round trips of one word: ranks that wait for one another do not sleep in an exchange
_SHORT, _LONG = 8, 40  # hops of two chains: their difference does not depend on how ranks leave a barrier
_MESSAGES = 4  # messages at the same time, compared with one
_SMALL = 64  # bytes of these messages
_BEYOND_BUFFERS = 1 << 16  # bytes
_REST = 50e-6  # seconds of a sleep between two polls in mpi.h and deepreduce.mpi
_MIN_BURST = 4096  # bytes: a smaller burst is noise
_MAX_SPEEDUP = 1000.0  # of a burst, times the rate
Sample = Tuple[int, float, float]  # size, median ns, q75 - q25


def sample_of(size: int, times: Sequence[float]) -> Sample:
    low, median, high = numpy.percentile(times, [25, 50, 75])
    return size, float(median), float(high - low)


class Rounds:
    """Times operations one after another, on all ranks at the same time, for about `seconds` per operation."""

    def __init__(self, ranks: Ranks, seconds: float) -> None:
        self._ranks, self._seconds = ranks, seconds

    def times(self, work: Callable[[], None]) -> List[float]:
        """The time of the slowest rank in each round, in ns. The first round, which opens connections, is not counted."""
        work()
        pilot = max(self._ranks.gather(self._once(work)))
        rounds = int(min(max(1e9 * self._seconds / (pilot + 1e9 * _IDLE), _MIN_ROUNDS), _MAX_ROUNDS))
        by_rank = self._ranks.gather([self._once(work) for _ in range(rounds)])
        return [max(times) for times in zip(*by_rank)]

    def _once(self, work: Callable[[], None]) -> float:
        time.sleep(_IDLE)
        self._ranks.barrier()
        begin = clock()
        work()
        return clock() - begin

    def over(self, sizes: Sequence[int], make: Callable[[int], Callable[[], None]]) -> List[Sample]:
        """Times make(size) for each size. Stops after the first size whose rounds take too long."""
        samples: List[Sample] = []
        for size in sizes:
            samples.append(sample_of(size, self.times(make(size))))
            if samples[-1][1] > _MAX_ROUND_NS:
                break
        return samples


def curve(samples: Sequence[Sample]) -> Json:
    fit = fit_affine([(size, ns) for size, ns, _ in samples])
    return {
        "floor_ns": fit.floor,
        "base_ns": fit.base,
        "per_byte_ns": fit.per_unit,
        "r2": fit.r2,
        "from": samples[0][0],
        "to": samples[-1][0],
        "samples": [list(sample) for sample in samples],
    }


def measure_link(ranks: Ranks, sizes: Sequence[int], seconds: float) -> Json:
    """Measures an entry of a profile's `links`. sizes: bytes, ascending; best are multiples of 4 * ranks"""
    rounds, n, own = Rounds(ranks, seconds), ranks.ranks, ranks.rank
    right, left = (own + 1) % n, (own - 1) % n

    def ping() -> None:
        word = numpy.zeros(8, numpy.uint8)
        for _ in range(_TRIPS):
            if own == 0:
                ranks.wait(ranks.send(1, word))
                ranks.wait(ranks.recv(1, word))
            elif own == 1:
                ranks.wait(ranks.recv(0, word))
                ranks.wait(ranks.send(0, word))

    def shift(size: int) -> Callable[[], None]:
        sent, received = numpy.zeros(size, numpy.uint8), numpy.zeros(size, numpy.uint8)
        return lambda: _wait_all(ranks, [ranks.recv(left, received), ranks.send(right, sent)])

    def spread(size: int) -> Callable[[], None]:
        others = [peer for peer in range(n) if peer != own]
        sent, received = numpy.zeros(size, numpy.uint8), numpy.zeros((n, size), numpy.uint8)
        return lambda: _wait_all(
            ranks, [ranks.recv(p, received[p]) for p in others] + [ranks.send(p, sent) for p in others]
        )

    def chain(hops: int, messages: int) -> Callable[[], None]:
        sent, received = numpy.zeros(_SMALL, numpy.uint8), numpy.zeros((messages, _SMALL), numpy.uint8)

        def work() -> None:
            for _ in range(hops):
                _wait_all(ranks, [ranks.recv(left, into) for into in received] + [ranks.send(right, sent) for _ in received])

        return work

    def hop(messages: int) -> float:
        # (Lower quartiles, because disturbances only make a chain longer, and the times are subtracted.)
        short, long = (float(numpy.percentile(rounds.times(chain(hops, messages)), 25)) for hops in (_SHORT, _LONG))
        return (long - short) / (_LONG - _SHORT) if long > short else long / _LONG

    def all_reduce(size: int) -> Callable[[], None]:
        data = numpy.zeros(max(size // 4, 1), numpy.float32)
        return lambda: ranks.wait(ranks.all_reduce(data))

    def all_gather(size: int) -> Callable[[], None]:
        sent, received = numpy.zeros(size, numpy.uint8), numpy.zeros(n * size, numpy.uint8)
        return lambda: ranks.wait(ranks.all_gather(received, sent))

    per_host = ranks.per_host()
    latency = statistics.median(rounds.times(ping)) / (2 * _TRIPS)
    one, several = hop(1), hop(_MESSAGES)
    transfers, spreads = rounds.over(sizes, shift), rounds.over(sizes, spread)
    burst, fast = burst_of(transfers)
    return {
        "transport": ranks.name,
        "ranks": n,
        "ranks_per_host": per_host,
        "latency_ns": latency,
        "bits_per_second": _rate(transfers, 1),
        "port_bits_per_second": _rate(spreads, n - 1),
        "ranks_per_machine": ranks.per_machine(),
        "hop_ns": one,
        "message_ns": max(0.0, several - one) / (_MESSAGES - 1),
        "rest_ns": rest_ns(),
        "burst_bytes": burst,
        "burst_bits_per_second": fast,
        "transfer": curve(transfers),
        "spread": curve(spreads),
        "allreduce": curve(rounds.over(sizes, all_reduce)),
        "allgather": curve(rounds.over(sizes, all_gather)),
    }


def _rate(samples: Sequence[Sample], messages: int) -> float:
    """The rate in bit/s: the median over pairs of neighbouring sizes of added bytes by added time.

    Sizes that fit into a token bucket or a buffer are left out. The median is used because, where a rank receives messages of
    several ranks at once, some of the largest are lost and sent again.
    """
    pairs = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(samples, samples[1:]) if a[0] >= _BEYOND_BUFFERS]
    rates = [8e9 * messages * size / ns for size, ns in pairs if ns > 0]
    if rates:
        return statistics.median(rates)
    smallest, largest = samples[0], samples[-1]
    if len(samples) > 1 and largest[1] > smallest[1]:
        return 8e9 * messages * (largest[0] - smallest[0]) / (largest[1] - smallest[1])
    return 8e9 * messages * largest[0] / largest[1]


def rest_ns() -> float:
    """The measured time of a sleep of 50 us, as a waiting rank sleeps between two polls; ns."""
    times = []
    for _ in range(40):
        begin = clock()
        time.sleep(_REST)
        times.append(clock() - begin)
    return statistics.median(times)


def burst_of(samples: Sequence[Sample]) -> Tuple[float, float]:
    """(bytes that an idle link passes faster than its rate, bit/s of these bytes); (0, 0): there is no such burst.

    samples  of single messages, sizes ascending. A message that fits into the token bucket of a shaped link takes hardly longer
             than the smallest one. The time of a larger message is that of the bytes beyond the bucket
    """
    if len(samples) < 3:
        return 0.0, 0.0
    fixed, rate = samples[0][1], _rate(samples, 1) / 8e9
    beyond = [(size, ns - fixed, size - rate * (ns - fixed)) for size, ns, _ in samples]
    limited = [i for i, (size, _, more) in enumerate(beyond) if more < 0.75 * size]
    if not limited or limited[0] == 0:
        return 0.0, 0.0
    burst = max(0.0, *(beyond[i][2] for i in limited[:2]))
    size, longer, _ = beyond[limited[0] - 1]  # the largest that passes
    fast = size / longer if longer > size / (_MAX_SPEEDUP * rate) else _MAX_SPEEDUP * rate
    return (burst, 8e9 * fast) if burst > _MIN_BURST and fast > 2 * rate else (0.0, 0.0)


def _wait_all(ranks: Ranks, requests: Sequence[object]) -> None:
    for request in requests:
        ranks.wait(request)


class _Backward:
    """The computation of a backward pass: two matrix products per layer, for the gradients of weights and of inputs."""

    def __init__(self, layers: int = 24, batch: int = 64, width: int = 384) -> None:
        draw = numpy.random.default_rng(1).standard_normal
        self._layers = layers
        self._weights = draw((width, width), numpy.float32) / numpy.float32(width) ** 0.5
        self._inputs = draw((batch, width), numpy.float32)

    def run(self, between: Callable[[], None]) -> float:
        """Runs one pass and returns its time in ns. Calls `between` after each product."""
        gradient, begin = self._inputs, clock()
        for _ in range(self._layers):
            self._inputs.T @ gradient
            between()
            gradient = gradient @ self._weights
            between()
        return clock() - begin


class _Traffic:
    """`count` all-reduces, one after the other. All ranks run the same number."""

    def __init__(self, ranks: Ranks, data: Array, count: int) -> None:
        self._ranks, self._data, self._left = ranks, data, count
        self._request: Optional[Request] = None

    def go_on(self) -> None:
        if self._left and (self._request is None or self._ranks.test(self._request)):
            self._request = self._ranks.all_reduce(self._data)
            self._left -= 1

    def finish(self) -> None:
        while self._left:
            self._ranks.wait(self._request)
            self.go_on()
        self._ranks.wait(self._request)


def measure_overlap(ranks: Ranks, seconds: float, size: int = 1 << 20) -> Dict[str, float]:
    """Measures how much longer a backward pass takes while the ranks communicate. Rounds without and with traffic alternate.

    size  bytes of an all-reduce. One is under way during the whole pass: enough all-reduces are run to fill twice the time of
          the pass alone
    """
    work, data, ratios = _Backward(), numpy.zeros(size // 4, numpy.float32), []
    nothing = lambda: None
    work.run(nothing)
    once = max(ranks.gather(work.run(nothing)))
    transfer = statistics.median(Rounds(ranks, 0.2).times(lambda: ranks.wait(ranks.all_reduce(data))))
    count = 1 + int(2 * once / transfer)
    for _ in range(int(min(max(1e9 * seconds / (once + max(2 * once, transfer)), 5), 100))):
        ranks.barrier()
        alone = work.run(nothing)
        ranks.barrier()
        traffic = _Traffic(ranks, data, count)
        traffic.go_on()
        busy = work.run(traffic.go_on)
        traffic.finish()
        pairs = ranks.gather((alone, busy))
        ratios.append(max(pair[1] for pair in pairs) / max(pair[0] for pair in pairs))
    low, median, high = numpy.percentile(ratios, [25, 50, 75])
    return {"slowdown": float(median), "spread": float((high - low) / median)}
