"""Hosts with limited links on one machine: a network namespace a rank, a bridge between them, tbf on both ends of a link.

    with ShapedLinks(4, "100mbit") as links: links.pool() …

Needs root, `ip` and `tc` (Debian's iproute2). Names begin with drt and the process's number; they are gone at the end,
and what a killed run left is removed by the next one.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, List, Tuple

from bench.train.rank_pool import RankPool

RATES = {"10mbit": 10e6, "100mbit": 100e6, "1gbit": 1e9, "unshaped": 0.0}  # bits a second
BURST = {"10mbit": "8kb", "100mbit": "32kb", "1gbit": "128kb"}  # what a full bucket lets through at once: small beside a message
NETWORK = "10.77.0"
# Of the rate, what a socket gets: below 1, for headers travel, too; busy machines fill 1 Gbit/s less well.
MIN_SHARE, MAX_SHARE = 0.7, 1.02
PREFIX = "drt"


class Unsupported(RuntimeError):
    """No namespaces or no shaping here."""


class WrongRate(RuntimeError):
    """The link does not have the rate that it was given."""


def run(*words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(words, capture_output=True, text=True)
    if check and done.returncode:
        raise Unsupported(f"`{' '.join(words)}` fails here: {done.stderr.strip() or done.returncode}")
    return done


def remove(owner: int) -> None:
    """The namespaces of the process `owner`, and with them links, shaping and addresses."""
    listed = run("ip", "netns", "list", check=False).stdout
    for name in re.findall(rf"^({PREFIX}{owner}n\w+)", listed, re.MULTILINE):
        for pid in run("ip", "netns", "pids", name, check=False).stdout.split():  # what still runs there keeps it alive
            os.kill(int(pid), signal.SIGKILL)
        run("ip", "netns", "del", name, check=False)


def remove_abandoned() -> None:
    listed = run("ip", "netns", "list", check=False).stdout
    for owner in {int(pid) for pid in re.findall(rf"^{PREFIX}(\d+)n", listed, re.MULTILINE)}:
        if not Path(f"/proc/{owner}").exists():
            remove(owner)


class ShapedLinks:
    """rate: of RATES. measured: bits a second that a socket got, from rank 0 to rank 1."""

    def __init__(self, ranks: int, rate: str) -> None:
        self.ranks, self.rate, self.measured = ranks, rate, 0.0

    def __enter__(self) -> "ShapedLinks":
        if sys.platform != "linux" or os.geteuid() != 0:
            raise Unsupported("network namespaces need Linux and root")
        for tool in ("ip", "tc"):
            if not shutil.which(tool):
                raise Unsupported(f"no {tool} here: apt-get install iproute2")
        remove_abandoned()
        try:
            self._make()
            self.measured = self._measure()
        except BaseException:
            remove(os.getpid())
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        remove(os.getpid())

    def name(self, rank: int) -> str:
        return self.name_of(str(rank))

    def name_of(self, what: str) -> str:
        return f"{PREFIX}{os.getpid()}n{what}"

    def pool(self) -> RankPool:
        return RankPool(self.ranks, f"{NETWORK}.1", "eth0", lambda rank: ["ip", "netns", "exec", self.name(rank)])

    def sent(self, rank: int) -> int:
        """Bytes that the rank's device has sent, headers and acknowledgements too."""
        count = run("ip", "netns", "exec", self.name(rank), "cat", "/sys/class/net/eth0/statistics/tx_bytes")
        return int(count.stdout)

    def _make(self) -> None:
        hub = self.name_of("hub")
        run("ip", "netns", "add", hub)
        run("ip", "-n", hub, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "br0", "up")
        for rank in range(self.ranks):
            here = self.name(rank)
            run("ip", "netns", "add", here)
            run("ip", "link", "add", "eth0", "netns", here, "type", "veth", "peer", "name", f"p{rank}", "netns", hub)
            run("ip", "-n", here, "link", "set", "lo", "up")
            run("ip", "-n", here, "addr", "add", f"{NETWORK}.{rank + 1}/24", "dev", "eth0")
            run("ip", "-n", here, "link", "set", "eth0", "up")
            run("ip", "-n", hub, "link", "set", f"p{rank}", "master", "br0")
            run("ip", "-n", hub, "link", "set", f"p{rank}", "up")
        self._shape()

    def shape(self, rate: str) -> float:
        """Sets another rate, of RATES, while programs run there; returns what a socket gets now."""
        self.rate = rate
        self._shape()
        self.measured = self._measure()
        return self.measured

    def _shape(self) -> None:
        for space, device in self._spaces():
            if RATES[self.rate]:
                shape = ["tbf", "rate", self.rate, "burst", BURST[self.rate], "latency", "50ms"]
                run("tc", "-n", space, "qdisc", "replace", "dev", device, "root", *shape)
            else:
                run("tc", "-n", space, "qdisc", "del", "dev", device, "root", check=False)

    def _spaces(self) -> List[Tuple[str, str]]:
        """(namespace, device) of both ends of each link."""
        return [end for rank in range(self.ranks) for end in ((self.name(rank), "eth0"), (self.name_of("hub"), f"p{rank}"))]

    def _measure(self) -> float:
        size = int(max(2e6, RATES[self.rate] / 8))  # a second's worth
        if not RATES[self.rate]:
            size = 1 << 28
        measured = socket_rate(self.name(0), self.name(1), f"{NETWORK}.2", size)
        nominal = RATES[self.rate]
        if nominal and not MIN_SHARE * nominal <= measured <= MAX_SHARE * nominal:
            raise WrongRate(
                f"a link of {self.rate} carries {measured / 1e6:.1f} Mbit/s, not {MIN_SHARE} to {MAX_SHARE} of what it should"
            )
        return measured


def socket_rate(sender: str, receiver: str, address: str, size: int) -> float:
    """Bits a second of `size` bytes over one socket, from namespace to namespace: from the first byte to the answer
    that all have arrived."""
    words = lambda name, *more: [
        "ip",
        "netns",
        "exec",
        name,
        sys.executable,
        str(Path(__file__).with_name("link_rate.py")),
        *map(str, more),
    ]
    sink = subprocess.Popen(words(receiver, "sink", address, size), stdout=subprocess.PIPE, text=True)
    try:
        assert sink.stdout
        port: List[str] = sink.stdout.readline().split()
        if not port:
            raise Unsupported(f"no socket in namespace {receiver}")
        done = subprocess.run(
            words(sender, "source", address, size, port[0]), capture_output=True, text=True, timeout=120
        )
    except subprocess.TimeoutExpired:
        raise WrongRate(f"{size} bytes from {sender} to {receiver} did not arrive in 120 s") from None
    finally:
        sink.kill()
        sink.wait()
    if done.returncode:
        raise Unsupported(f"no transfer from {sender} to {receiver}: {done.stderr.strip()}")
    return float(done.stdout)
