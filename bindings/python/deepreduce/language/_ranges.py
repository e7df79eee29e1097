"""Types: whole numbers and real numbers, each with the range that the compiler has proved, and how many there are of them."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Union

LARGEST_F32, LARGEST_F64 = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0], float.fromhex("0x1.fffffffffffffp1023")
MAX_VALUES = 2**40  # of a tensor; `need` refuses more

ONE, ALL, SELECTED = "one", "n", "kept"  # one number; one for each value, for each selected one; and by:NAME, for each run of NAME values


def by(name: str) -> str:
    return "by:" + name


@dataclass(frozen=True)
class Int:
    low: int
    high: int
    truth: bool = False  # of a comparison

    @property
    def c(self) -> str:
        """The C++ type."""
        if self.truth:
            return "bool"
        return smallest(self.low, self.high)


def smallest(low: int, high: int) -> str:
    """The C++ type that holds a range; "" if none does."""
    for name, lower, upper in (
        ("int32_t", -(2**31), 2**31 - 1),
        ("uint32_t", 0, 2**32 - 1),
        ("int64_t", -(2**63), 2**63 - 1),
        ("uint64_t", 0, 2**64 - 1),
    ):
        if lower <= low and high <= upper:
            return name
    return ""


@dataclass(frozen=True)
class Real:
    bits: int  # 32, 64; 0: of a number in the text, which takes the type of the other operand
    low: float
    high: float
    nan: bool = False  # it may be no number

    @property
    def c(self) -> str:
        return "float" if self.bits == 32 else "double"

    @property
    def finite(self) -> bool:
        limit = LARGEST_F32 if self.bits == 32 else LARGEST_F64
        return not self.nan and -limit <= self.low and self.high <= limit


Type = Union[Int, Real]


def rounded(bits: int, low: float, high: float, nan: bool) -> Real:
    """The result of an operation that rounds: its range, a little wider, for a bound is rounded here, too."""
    little = 2.0**-20 if bits == 32 else 2.0**-48
    minimum = 2.0**-140 if bits == 32 else 2.0**-1000
    if math.isnan(low):
        low = -math.inf
    if math.isnan(high):
        high = math.inf
    # (0 stays 0: sums, products and quotients of numbers that are not below it are not, rounded or not.)
    low = low - abs(low) * little - minimum if low else low
    high = high + abs(high) * little + minimum if high else high
    limit = LARGEST_F32 if bits == 32 else LARGEST_F64
    return Real(bits, -math.inf if low < -limit else low, math.inf if high > limit else high, nan)


def most_whole(bits: int) -> int:
    """The largest number of 32 bits that a real one of so many bits can be."""
    return 2**31 - 128 if bits == 32 else 2**31 - 1


def product(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b
