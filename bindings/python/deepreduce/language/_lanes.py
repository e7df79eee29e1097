"""Compares the kernels of a plug-in with its loops: frames of an emulated device and of the CPU, bit by bit. A process of its own."""

from __future__ import annotations

import sys
import warnings
from typing import Iterator, List, Tuple

import numpy

from .. import codecs, decode, encode, load_plugin
from .._native import _device
from .._native._testing import Emulated, emulated
from .._native._types import Array
from ..errors import ArgumentError, Error


def calls(name: str) -> List[str]:
    """The codec with its defaults, and with each parameter at its ends."""
    codec = [c for c in codecs() if c.role == "value" and c.name in (name, f"plugin.{name}")][-1]
    found = [""]
    for p in codec.parameters:
        found += [f"({p.name}={x})" for x in (p.choices if p.type == "choice" else [f"{x:.17g}" for x in p.range or ()])]
    # (A selection has no zeros.)
    return [f"{before} value=plugin.{name}{call}" for before in ("sparsify=topr(ratio=0.9) index=golomb", "index=all") for call in found]


def inputs(name: str, seed: int) -> Iterator[Tuple[str, Array, str]]:
    """Plans and values, zeros of both signs among them, and words for an error."""
    random = numpy.random.default_rng(seed)
    for plan in calls(name):
        for n in (1, 2, 7, 64, 1025, 2049, 9001):
            for dtype in ("f4", "f2"):
                x = (random.standard_normal(n) * 0.1).astype(dtype)
                x[::5] = 0
                x[3::5] = -0.0
                yield plan, x, f"{plan}: {n} values of {dtype}"


def check(path: str, name: str) -> int:
    """How many frames are the same. AssertionError at the first that is not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_plugin(path)
    same = 0
    for seed in (1, 2):
        with emulated(seed):
            for plan, x, what in inputs(name, seed):
                try:
                    expected = encode(x, plan, step=1, seed=seed)
                except ArgumentError:
                    continue  # the codec refuses these values
                frame = encode(Emulated(x), plan, step=1, seed=seed)
                assert bytes(frame) == expected, f"{what}: another frame"
                values = decode(frame)
                array = _device.framework_of(values).to_host(values)
                assert bytes(array) == decode(expected).tobytes(), f"{what}: other values"
                same += 1
    return same


def main() -> int:
    try:
        same = check(sys.argv[1], sys.argv[2])
    except (AssertionError, Error) as e:
        print(f"  FAILED kernels: {e}")
        return 1
    print(f"  {'kernels':<13} ok  {same:>8}  frames of an emulated GPU, and what it decodes, are those of the CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
