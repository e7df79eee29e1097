"""Compares the loops of a plug-in under each set of instructions: frames, and what they decode to. A process for each."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import warnings
from typing import Dict

from .. import decode, encode, load_plugin
from ..errors import ArgumentError, Error
from ._lanes import inputs

LEVELS = ("scalar", "avx2", "avx512")  # a CPU that lacks one uses the next smaller one


def compare(path: str, name: str, env: Dict[str, str]) -> int:
    """Prints how many frames are the same under all levels, or the first that is not. Returns the exit status."""
    command = [sys.executable, "-m", __name__, path, name]
    running = [subprocess.Popen(command, env={**env, "DEEPREDUCE_CPU": level}, stdout=subprocess.PIPE, text=True) for level in LEVELS]
    outputs = [process.communicate()[0].splitlines() for process in running]
    for level, process, lines in zip(LEVELS, running, outputs):
        if process.returncode:
            print(f"  FAILED instructions: {level}: {lines[-1] if lines else f'exit status {process.returncode}'}")
            return 1
        for line, first in zip(lines, outputs[0]):
            if line != first:
                print(f"  FAILED instructions: {line.rsplit(': ', 1)[0]}: under {level} other bytes than under {LEVELS[0]}")
                return 1
    same = sum(not line.endswith(": refused") for line in outputs[0])
    print(f"  {'instructions':<13} ok  {same:>8}  frames, and what they decode to, are the same under {', '.join(LEVELS)}", flush=True)
    return 0


def main() -> int:
    """Prints a line for each input, with a hash of what becomes of it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_plugin(sys.argv[1])
        for plan, x, what in inputs(sys.argv[2], 1):
            try:
                frame = encode(x, plan, step=1, seed=1)
                print(f"{what}: {hashlib.sha256(frame + decode(frame).tobytes()).hexdigest()}")
            except ArgumentError:
                print(f"{what}: refused")
    except Error as e:
        print(e)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
