"""A link whose delay varies: two network namespaces, and between their TAP devices a process that keeps each packet for a while.

    with DelayedLinks(2, "100mbit") as links: links.pool() …

Every TURN seconds the delay of a direction is drawn again: log-normal, MEDIAN seconds in the middle, at most LONGEST, the same at each
run. Packets do not overtake. A rank shapes what it sends, as over ShapedLinks. (Linux has netem for that, where the kernel was built with it.)
Needs root, `ip`, `tc` and /dev/net/tun.
"""

import collections
import ctypes
import fcntl
import math
import os
import random
import select
import struct
import subprocess
import sys
import time
from typing import Any, Deque, Iterator, List, Tuple

from bench.train.shaped_links import NETWORK, ShapedLinks, Unsupported, run

MEDIAN, SIGMA, LONGEST, TURN = 0.002, 1.0, 0.03, 0.02  # 90 % of the delays are below 7.2 ms
MTU = 9000  # an Ethernet's jumbo frame: a seventh of the packets of 1500, each of which this process touches
NEW_NETWORK, SET_INTERFACE, TAP, NO_INFO = 0x40000000, 0x400454CA, 2, 0x1000  # setns(2), linux/if_tun.h


class DelayedLinks(ShapedLinks):
    """Two ranks."""

    def _make(self) -> None:
        if self.ranks != 2:
            raise ValueError(f"ranks {self.ranks}: this link has two ends")
        if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            raise Unsupported("no /dev/net/tun here")
        names = [self.name(rank) for rank in range(2)]
        for name in names:
            run("ip", "netns", "add", name)
        self._line = subprocess.Popen([sys.executable, "-m", "bench.train.delayed_links", *names], stdout=subprocess.PIPE, text=True)
        assert self._line.stdout
        if not self._line.stdout.readline():
            raise Unsupported("no TAP devices here")
        for rank, name in enumerate(names):
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "addr", "add", f"{NETWORK}.{rank + 1}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "mtu", str(MTU), "up")
        self._shape()

    def _spaces(self) -> List[Tuple[str, str]]:
        return [(self.name(rank), "eth0") for rank in range(2)]

    def __exit__(self, *error: Any) -> None:
        self._line.kill()
        self._line.wait()
        super().__exit__(*error)


def delays(seed: int) -> Iterator[float]:
    draw = random.Random(seed)
    while True:
        yield min(LONGEST, draw.lognormvariate(math.log(MEDIAN), SIGMA))


def tap(namespace: str) -> int:
    """The file of a TAP device eth0 in the namespace, where this process is from now on."""
    with open(f"/run/netns/{namespace}") as space:
        if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, SET_INTERFACE, struct.pack("16sH22x", b"eth0", TAP | NO_INFO))
    return file


def carry(ends: List[int]) -> None:
    """Takes packets from either end and gives them to the other when their time has come, until an end is closed."""
    waiting: List[Deque[Tuple[float, bytes]]] = [collections.deque(), collections.deque()]
    draws = [delays(way) for way in range(2)]
    delay, turn, last = [next(draw) for draw in draws], time.monotonic(), [0.0, 0.0]
    while True:
        now = time.monotonic()
        for _ in range(int((now - turn) / TURN)):
            delay, turn = [next(draw) for draw in draws], turn + TURN
        for way, packets in enumerate(waiting):
            while packets and packets[0][0] <= now:
                os.write(ends[1 - way], packets.popleft()[1])
        first = min((packets[0][0] for packets in waiting if packets), default=now + 1)
        ready = select.select(ends, [], [], max(0.0, first - now))[0]
        now = time.monotonic()
        for way, end in enumerate(ends):
            if end in ready:
                packet = os.read(end, MTU + 64)
                if not packet:
                    return
                last[way] = max(last[way], now + delay[way])
                waiting[way].append((last[way], packet))


if __name__ == "__main__":
    both = [tap(name) for name in sys.argv[1:]]
    print("ready", flush=True)
    carry(both)
