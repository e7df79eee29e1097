#!/usr/bin/env python3
"""Runs a program under mpiexec, MPICH's or Open MPI's, and ends all of it when its time is over.

    run_ranks.py [--lost RANK | --by-status | --fails] [--seconds S] MPIEXEC RANKS PROGRAM [ARGUMENT…]

Each rank ends with a line "rank R: good", or with its faults. With --lost that rank is killed or stops on the way; the others
must be good, and statuses do not count. With --by-status nothing but the status counts;
with --fails it must not be 0, and mpiexec must end by itself.
Exit 0 or 1, or 77 if a rank prints "skipped: …".
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

MARK = "DEEPREDUCE_RANKS_OF"  # in the environment of all that a run starts


def command(mpiexec, ranks, loses):
    """The words before the program."""
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=30, env={**os.environ, **AS_ROOT}).stdout
    if re.search("open mpi|prte", version, re.I):
        # --with-ft: mpiexec does not end all ranks because one was killed.
        words = [mpiexec, "--oversubscribe", *(["--with-ft", "ulfm"] if loses else []), "-n", str(ranks)]
    else:
        words = [mpiexec, "-n", str(ranks)]
    # MPICH's, even with -disable-auto-cleanup, mostly ends all when a rank is killed. So it sees a shell, which stays.
    return words + (["sh", "-c", '"$@" || sleep 60', "sh"] if loses else [])


# Open MPI does not run as root unless it is allowed to twice. MPICH does not care.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def kill_all(mark):
    """Kills every process of a run, stopped ones and orphans too."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                os.kill(int(place.name), signal.SIGKILL)
        except OSError:
            pass  # gone, or not ours


def run(words, seconds, enough=lambda lines: False, on_line=lambda line: None):
    """(lines, status or None if it was killed: the time was over, or the lines were enough)"""
    mark = uuid.uuid4().hex
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             env={**os.environ, **AS_ROOT, MARK: mark}, start_new_session=True)
    lines, read = [], threading.Event()

    def read_lines():
        for line in child.stdout:
            lines.append(line)
            on_line(line)
            if enough(lines):
                break
        read.set()

    threading.Thread(target=read_lines, daemon=True).start()
    try:
        read.wait(seconds)
        ended = read.is_set() and not enough(lines)
        return lines, child.wait(10) if ended else None
    except subprocess.TimeoutExpired:
        return lines, None
    finally:
        kill_all(mark)
        child.kill()
        child.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mpiexec")
    parser.add_argument("ranks", type=int)
    parser.add_argument("--lost", type=int)
    parser.add_argument("--by-status", action="store_true")
    parser.add_argument("--fails", action="store_true")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    expected = set(range(asked.ranks)) - {asked.lost}
    words = command(asked.mpiexec, asked.ranks, asked.lost is not None) + asked.program
    # Not at the beginning of a line: mpiexec mixes what ranks write at once.
    good = lambda lines: {int(rank) for rank in re.findall(r"rank (\d+): good", "".join(lines))}
    lines, status = run(words, asked.seconds, (lambda lines: good(lines) >= expected) if asked.lost is not None else lambda lines: False)
    print("".join(lines), end="")
    if any(line.startswith("skipped: ") for line in lines):
        return 77
    missing = sorted(expected - good(lines))
    if status is None and (missing or asked.lost is None):
        print(f"killed after {asked.seconds} s")
    if asked.fails:
        return status in (None, 0)
    if asked.by_status:
        return status != 0
    if missing:
        print(f"no good word of rank {', '.join(map(str, missing))}")
    return 1 if missing or (asked.lost is None and status != 0) else 0


if __name__ == "__main__":
    sys.exit(main())
