#!/usr/bin/env python3
"""Runs mpi_bench, with --rate each rank in a network namespace of its own, whose link has that rate: hosts of a slow network on one machine.

    links.py [--rate MBIT] [--ranks N] [--seconds S] [--mpiexec PATH] BENCH [OPTION OF MPI_BENCH…]

BENCH is the built mpi_bench. Each namespace has a pair of veth into a bridge, both ends shaped by tbf (burst 32 kb up to 200 Mbit/s,
128 kb above: larger bursts let small messages pass too fast). Before anything is measured the rate is asserted twice: of a plain TCP
stream here, of MPI's messages by mpi_bench. Rate 0: namespaces without shaping. Namespaces go with MPICH only.
Exit 77, with the reason, where namespaces are not to be had. What was set up is always taken down.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "mpi"))
from run_ranks import command, run  # noqa: E402

PREFIX = "drm"
HUB = f"{PREFIX}hub"
# Without UCX_TLS ranks would meet in shared memory, which namespaces do not part; without NOLOCAL collectives would count on it.
ENVIRONMENT = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0", "MPIR_CVAR_NOLOCAL": "1"}
IN_NAMESPACE = f'exec ip netns exec {PREFIX}$PMI_RANK "$@"'


def sh(command):
    subprocess.run(command.split(), check=True, capture_output=True, text=True)


def address(rank):
    return f"10.78.0.{rank + 1}"


def take_down():
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    for name in names:
        if name.startswith(PREFIX):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def set_up(ranks, rate):
    sh(f"ip netns add {HUB}")
    sh(f"ip -n {HUB} link add br0 type bridge")
    sh(f"ip -n {HUB} link set br0 up")
    for rank in range(ranks):
        here = f"{PREFIX}{rank}"
        sh(f"ip netns add {here}")
        sh(f"ip link add eth0 netns {here} type veth peer name p{rank} netns {HUB}")
        sh(f"ip -n {here} link set lo up")
        sh(f"ip -n {here} addr add {address(rank)}/24 dev eth0")
        sh(f"ip -n {here} link set eth0 up")
        sh(f"ip -n {HUB} link set p{rank} master br0")
        sh(f"ip -n {HUB} link set p{rank} up")
        if rate:
            shape = f"root tbf rate {rate}mbit burst {32 if rate <= 200 else 128}kb latency 20ms"
            sh(f"tc -n {here} qdisc replace dev eth0 {shape}")
            sh(f"tc -n {HUB} qdisc replace dev p{rank} {shape}")


def in_namespace(name, make):
    """Returns make()'s result from a thread in a namespace: a socket stays in the namespace that it was made in."""
    found = []

    def enter():
        with open(f"/run/netns/{name}") as namespace:
            import ctypes

            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), "setns")
        found.append(make())

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return found[0]


def stream_rate(seconds=1.0):
    """Mbit/s of a TCP stream from rank 0 to rank 1."""
    server = in_namespace(f"{PREFIX}1", lambda: socket.create_server((address(1), 7000)))
    server.settimeout(5)
    client = in_namespace(f"{PREFIX}0", lambda: socket.socket())
    client.settimeout(5)
    client.connect((address(1), 7000))
    end, _ = server.accept()
    end.settimeout(5)
    stop = threading.Event()

    def send():
        try:
            while not stop.is_set():
                client.sendall(bytes(65536))
        except OSError:
            pass

    threading.Thread(target=send, daemon=True).start()
    begin = received = None
    first = time.monotonic()
    while True:
        count = len(end.recv(1 << 20))
        now = time.monotonic()
        if begin is None and now - first > 0.3:  # what fits the buckets is through
            begin, received = now, 0
        elif begin is not None:
            received += count
            if now - begin >= seconds:
                break
    stop.set()
    for namespace in (end, client, server):
        namespace.close()
    return 8e-6 * received / (now - begin)


def surroundings(rate):
    """Facts for readers of the rows that mpi_bench does not know."""
    described = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=pathlib.Path(__file__).parent)
    models = re.findall(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": described.stdout.strip(),
        "machine": f"{models[0] if models else '?'}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
        "rate_megabits": rate,
    }


def measure(words, asked, json_path):
    before = surroundings(asked.rate)
    _, status = run(words, asked.seconds, on_line=lambda line: print(line, end="", flush=True))
    if status is None:
        print(f"killed after {asked.seconds} s")
    elif status == 0 and json_path:
        json_path.write_text(json.dumps({**before, **json.loads(json_path.read_text())}, indent=1) + "\n")
    return 1 if status is None else status


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, help="Mbit/s; 0: unshaped; left out: no namespaces")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=600, help="then all is killed")
    parser.add_argument("--mpiexec", default=shutil.which("mpiexec"))
    parser.add_argument("bench")
    asked, rest = parser.parse_known_args()
    if not asked.mpiexec:
        print("skipped: no mpiexec")
        return 77
    bench = [asked.bench, *rest]
    json_path = pathlib.Path(rest[rest.index("--json") + 1]) if "--json" in rest[:-1] else None
    if asked.rate is None:
        return measure([*command(asked.mpiexec, asked.ranks, False), *bench], asked, json_path)
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            print(f"skipped: no {tool} (apt-get install iproute2)")
            return 77
    take_down()
    try:
        try:
            set_up(asked.ranks, asked.rate)
        except subprocess.CalledProcessError as error:
            print(f"skipped: no namespaces here: {' '.join(error.cmd)}: {error.stderr.strip()}")
            return 77
        rate = stream_rate()
        print(f"# {asked.ranks} namespaces, tbf at {asked.rate} Mbit/s; a TCP stream runs at {rate:.1f} Mbit/s", flush=True)
        if asked.rate and not 0.75 * asked.rate <= rate <= 1.05 * asked.rate:
            print(f"the link is not what was asked for: {rate:.1f} Mbit/s, not {asked.rate}")
            return 1
        expected = ["--expect-megabits", str(asked.rate)] if asked.rate else []
        words = [asked.mpiexec, "-launcher", "fork", "-disable-auto-cleanup", "-n", str(asked.ranks), "sh", "-c", IN_NAMESPACE, "sh"]
        os.environ.update(ENVIRONMENT)
        return measure([*words, *bench, "--no-finalize", *expected], asked, json_path)
    finally:
        take_down()


if __name__ == "__main__":
    sys.exit(main())
