"""One end of a transfer between two namespaces; shaped_links.py starts both. Times the bytes behind the first 256 KiB,
which a link's bucket and the socket's buffers take at once.

    link_rate.py sink ADDRESS SIZE            prints the port it listens on
    link_rate.py source ADDRESS SIZE PORT     prints bits a second
"""

import socket
import sys
import time

FIRST = 1 << 18
TIMEOUT = 60.0


def receive(link: socket.socket, size: int) -> None:
    room = bytearray(1 << 16)
    while size:
        size -= link.recv_into(room, min(size, len(room))) or sys.exit("the other end closed")


def sink(address: str, size: int) -> None:
    with socket.create_server((address, 0)) as listening:
        listening.settimeout(TIMEOUT)
        print(listening.getsockname()[1], flush=True)
        with listening.accept()[0] as link:
            link.settimeout(TIMEOUT)
            for part in (FIRST, size):
                receive(link, part)
                link.sendall(b".")


def source(address: str, size: int, port: int) -> None:
    with socket.create_connection((address, port), timeout=TIMEOUT) as link:
        link.sendall(bytes(FIRST))
        receive(link, 1)
        begin = time.perf_counter()
        link.sendall(bytes(size))
        receive(link, 1)
        print(8 * size / (time.perf_counter() - begin))


if sys.argv[1] == "sink":
    sink(sys.argv[2], int(sys.argv[3]))
else:
    source(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
