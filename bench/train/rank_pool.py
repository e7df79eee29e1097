"""Ranks as processes, each of one thread, that stay for many runs: importing torch takes as long as a short run."""

import json
import os
import selectors
import socket
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional

from bench.train.task import ROOT


class RankError(RuntimeError):
    """A rank failed, or did not answer in time."""


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


class RankPool:
    """`with RankPool(2) as pool: answers = pool.run(job)`: one answer a rank.

    host        where rank 0 listens, as the others see it
    interface   that gloo uses
    wrap(rank)  words before a rank's command
    """

    def __init__(
        self,
        ranks: int,
        host: str = "127.0.0.1",
        interface: str = "lo",
        wrap: Optional[Callable[[int], List[str]]] = None,
    ) -> None:
        self.ranks, self.host, self.interface = ranks, host, interface
        self.wrap = wrap or (lambda rank: [])
        self.processes: List[subprocess.Popen[str]] = []

    def __enter__(self) -> "RankPool":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def run(self, job: Dict[str, Any], timeout: float) -> List[Dict[str, Any]]:
        """Raises RankError, after which the next run starts new ranks. timeout: seconds."""
        if not self.processes:
            self._start()
        try:
            for process in self.processes:
                assert process.stdin
                process.stdin.write(json.dumps(job) + "\n")
                process.stdin.flush()
            answers = self._answers(time.monotonic() + timeout)
        except BaseException as error:
            self.close()
            if isinstance(error, BrokenPipeError):
                raise RankError("a rank is gone; what it said is above") from None
            raise
        errors = [answer["error"] for answer in answers if "error" in answer]
        if errors:
            self.close()
            raise RankError("; ".join(errors))
        return answers

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                try:
                    if pipe:
                        pipe.close()
                except BrokenPipeError:
                    pass
        self.processes = []

    def _start(self) -> None:
        path = [str(ROOT), str(ROOT / "bindings" / "python"), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "GLOO_SOCKET_IFNAME": self.interface,
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        address = f"tcp://{self.host}:{free_port()}"
        for rank in range(self.ranks):
            words = [
                *self.wrap(rank),
                sys.executable,
                "-m",
                "bench.train.rank_worker",
                str(rank),
                str(self.ranks),
                address,
            ]
            self.processes.append(
                subprocess.Popen(
                    words,
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    bufsize=1,
                )
            )

    def _answers(self, deadline: float) -> List[Dict[str, Any]]:
        answers: Dict[int, Dict[str, Any]] = {}
        with selectors.DefaultSelector() as ready:
            for rank, process in enumerate(self.processes):
                assert process.stdout
                ready.register(process.stdout, selectors.EVENT_READ, rank)
            while len(answers) < self.ranks:
                events = ready.select(max(0.0, deadline - time.monotonic()))
                if not events:
                    late = sorted(set(range(self.ranks)) - set(answers))
                    raise RankError(f"no answer in time from rank {late}")
                for key, _ in events:
                    line = key.fileobj.readline()  # type: ignore[union-attr]
                    ready.unregister(key.fileobj)
                    if not line:
                        errors = [answer["error"] for answer in answers.values() if "error" in answer]
                        raise RankError("; ".join([f"rank {key.data} is gone; what it said is above", *errors]))
                    answers[key.data] = json.loads(line)
                    if "error" in answers[key.data]:
                        deadline = min(deadline, time.monotonic() + 5)  # the others fail soon, or never
        return [answers[rank] for rank in range(self.ranks)]
