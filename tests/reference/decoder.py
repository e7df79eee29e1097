"""A second decoder of DeepReduce frames, version 1: a specification in code.

Written from lib/container/FORMAT.md and codecs/*/*/SPEC.md alone, in plain Python, without a look at the
library. It is slow. Where a document leaves a choice, a comment that begins with "Reading:" names the one taken.

    frame = decode_frame(data)         Corrupt: the bytes are not a frame; Unsupported: a newer version or codec
    frame.tensors[0].indices           ascending; of the tensor, not of the segment
    frame.tensors[0].values            bit patterns (ints), width for each index
    dense(frame.tensors[0])            bit patterns, universe * width
    decode_frame(patch, [base, ...])   of each tensor that is a patch the receiver's bit patterns; WrongBase: another one is meant
"""
from __future__ import annotations

import ctypes
import itertools
import math
import struct
import zlib
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Callable

MASK32, MASK64 = 2**32 - 1, 2**64 - 1
PHI = 0x9e3779b97f4a7c15
TYPES = {1: "f32", 2: "f16", 3: "bf16"}
WORDS = TYPES | {4: "u32", 8: "f64", 9: "u8", 10: "u16"}                 # of patches
EXPONENT_BITS = {"f32": 8, "f16": 5, "bf16": 8}
MANTISSA_BITS = {"f32": 23, "f16": 10, "bf16": 7}
VALUE_SIZE = {"f32": 4, "f16": 2, "bf16": 2, "u32": 4, "f64": 8, "u8": 1, "u16": 2}
SHORT, TAG, LIST, STATUS = 1, 2, 4, 8


class Corrupt(Exception):
    """The bytes are not a frame of version 1."""


class WrongBase(Exception):
    """The patch is for another base."""


class Unsupported(Exception):
    """A version or a codec that these documents do not describe."""


def refuse(condition, message):
    if condition:
        raise Corrupt(message)


def unknown(condition, message):
    """Room for later."""
    if condition:
        raise Unsupported(message)


@dataclass
class Codec:
    role: str
    name: str
    fields: tuple = ()                    # (name, lowest, highest, default) of each wire field
    fixed: Callable | None = None         # (shape, fields) -> size in bytes
    bound: Callable | None = None         # as fixed, the most it may write
    decode: Callable | None = None        # (payload, shape, fields) -> indices | bit patterns | order
    unpack: Callable | None = None        # of role bytes: (data, the size is exactly this, size) -> bytes
    grown: Callable | None = None         # of role bytes: bound of the codec before it -> its own
    reorders: bool = False
    replaces: bool = False
    carries: bool = False
    width_one: bool = False
    needs_base: bool = False
    exact: bool = False                   # and does not reorder: a patch takes it


@dataclass
class Stage:
    codec: Codec
    fields: dict


@dataclass
class Entry:
    """An entry of the plan table."""
    dtype: str
    width: int
    carries: bool                         # the keys carry the order
    value: list
    order: list
    index: list                           # without `block`
    block: int = 1                        # elements of one: what a key of the index list stands for
    patch: bool = False
    transform: tuple | None = None        # (size, columns): its values are coefficients; columns 0: a vector


@dataclass
class Shape:
    """What a codec knows of its row."""
    universe: int
    count: int
    support: int
    width: int = 1
    dtype: str = "f32"
    carries: bool = False
    base: list | None = None              # of a patch: for an index codec all words, for a value codec those at the support
    history: list | None = None           # a byte for each of these; None: all 0


@dataclass
class Row:
    """A row of the tensor table of the header; sizes are those of the sections."""
    entry: Entry
    mode: int
    continues: bool
    universe: int
    count: int
    support: int
    sizes: dict
    check: int | None = None

    def shape(self):
        e = self.entry
        return Shape(self.universe, self.count, self.support, e.width, e.dtype, e.carries)

    def key_shape(self):
        """What the index list knows of its row: blocks."""
        return in_blocks(self.shape(), self.entry.block)


def in_blocks(shape, block):
    universe, count, support = (-(-n // block) for n in (shape.universe, shape.count, shape.support))
    return replace(shape, universe=universe, count=count, support=support)


def expand(blocks, block, universe):
    """The elements of blocks, of which the last one of a universe may be short."""
    return [i for k in blocks for i in range(k * block, min((k + 1) * block, universe))]


@dataclass
class Tensor:
    universe: int
    width: int
    dtype: str
    indices: list = field(default_factory=list)
    values: list = field(default_factory=list)
    rows: list = field(default_factory=list)      # the Row of each segment: mode, count, support, sizes


@dataclass
class Frame:
    version: int
    flags: int
    tag: int | None
    status: int
    message: str
    tensors: list
    size: int                             # bytes of the frame; what lies behind is not part of it


# ---- bytes and bits ----

class Reader:
    def __init__(self, data, position=0):
        self.data, self.position = data, position

    def take(self, n):
        refuse(n > len(self.data) - self.position, f"ends at byte {len(self.data)}, {self.position + n} needed")
        self.position += n
        return self.data[self.position - n:self.position]

    def uint(self, size):
        return int.from_bytes(self.take(size), "little")

    def varint(self):
        value = 0
        for i in range(10):
            byte = self.uint(1)
            value |= (byte & 127) << 7 * i
            if byte < 128:
                refuse(i > 0 and byte == 0, "varint with superfluous zero groups")
                refuse(value > MASK64, "varint above 64 bits")    # Reading: ten bytes hold 70 bits; 64 are meant
                return value
        raise Corrupt("varint of more than 10 bytes")

    def zeros_to(self, multiple, what):
        refuse(any(self.take(-self.position % multiple)), f"{what}: padding is not zero")


class Bits:
    """Bit strings, low bit of a byte first."""

    def __init__(self, data):
        self.data, self.position = data, 0

    def take(self, n):
        first, self.position = self.position, self.position + n
        refuse(self.position > 8 * len(self.data), "bit string ends too early")
        return int.from_bytes(self.data[first >> 3:(self.position + 7) >> 3], "little") >> (first & 7) & ((1 << n) - 1)

    def pad(self):
        refuse(self.take(-self.position % 8), "bit string: padding is not zero")


def log2_ceil(n):
    return (n - 1).bit_length()


# ---- check ----

def mix64(x):
    x ^= x >> 30
    x = x * 0xbf58476d1ce4e5b9 & MASK64
    x ^= x >> 27
    x = x * 0x94d049bb133111eb & MASK64
    return x ^ x >> 31


CHECK_FACTORS = [mix64((i + 1) * PHI & MASK64) >> 32 | 1 for i in range(1024)]


def check(data):
    """data: a multiple of 4 bytes."""
    total = 0
    for c, start in enumerate(range(0, len(data), 4096)):
        chunk = data[start:start + 4096]
        words = struct.unpack(f"<{len(chunk) // 4}I", chunk)
        total += mix64(sum((w + 1) * t for w, t in zip(words, CHECK_FACTORS)) + c * PHI & MASK64)
    return total & MASK64


def without_check(data):
    return data[:4] + bytes(8) + data[12:]


# ---- numbers ----

def round_to(x, dtype):
    """The bit pattern of a double rounded once to the type: to nearest, ties to even; beyond the largest number to infinity."""
    exponent_bits, mantissa_bits = EXPONENT_BITS[dtype], MANTISSA_BITS[dtype]
    bits = struct.unpack("<Q", struct.pack("<d", x))[0]
    sign = bits >> 63 << (exponent_bits + mantissa_bits)
    exponent, mantissa = bits >> 52 & 2047, bits & (1 << 52) - 1
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    if exponent == 2047:
        return sign | infinity | (1 << mantissa_bits - 1 if mantissa else 0)
    if exponent:
        mantissa |= 1 << 52
    else:
        exponent = 1                                        # subnormal: no leading one
    # |x| = mantissa * 2^(exponent - 1075). One unit of the type's last place is 2^(e - bias - mantissa_bits), where e,
    # the stored exponent, is at least 1: below that the numbers are subnormal and equally spaced.
    bias = (1 << exponent_bits - 1) - 1
    e = max(1, exponent - 1023 + bias)
    shift = e - bias - mantissa_bits - (exponent - 1075)
    units, rest, half = mantissa >> shift, mantissa & (1 << shift) - 1, 1 << shift - 1
    if rest > half or rest == half and units & 1:
        units += 1
    # units holds the leading one where there is one, and a carry out of the mantissa is the next exponent
    return sign | min(((e - 1) << mantissa_bits) + units, infinity)


def to_double(bits, dtype):
    if dtype == "f16":
        return struct.unpack("<e", struct.pack("<H", bits))[0]
    return struct.unpack("<f", struct.pack("<I", bits << 16 if dtype == "bf16" else bits))[0]


def convert(bits, source, target):
    """A finite number of one type in another: clamped, then rounded once."""
    top = largest(target)
    return round_to(max(-top, min(top, to_double(bits, source))), target)


def largest(dtype):
    return to_double((((1 << EXPONENT_BITS[dtype]) - 1) << MANTISSA_BITS[dtype]) - 1, dtype)


def finite_f32(data):
    x = struct.unpack("<f", data)[0]
    refuse(x != x or abs(x) == float("inf"), "a number that is not finite")
    return x


def murmur3(data, seed):
    """murmur3_x86_32"""
    def rotate(x, r):
        return (x << r | x >> 32 - r) & MASK32

    h, whole = seed, len(data) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i:i + 4], "little")
        h ^= rotate(k * 0xcc9e2d51 & MASK32, 15) * 0x1b873593 & MASK32
        h = rotate(h, 13) * 5 + 0xe6546b64 & MASK32
    tail = int.from_bytes(data[whole:], "little")
    h ^= rotate(tail * 0xcc9e2d51 & MASK32, 15) * 0x1b873593 & MASK32
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85ebca6b & MASK32
    h = (h ^ h >> 13) * 0xc2b2ae35 & MASK32
    return h ^ h >> 16


# ---- index codecs ----

def decode_index_raw(payload, shape, fields):
    keys = list(struct.unpack(f"<{shape.count}I", payload))
    refuse(any(key >= shape.universe for key in keys), "index raw: a key is not below universe")
    refuse(len(set(keys)) != len(keys), "index raw: a key comes twice")
    refuse(not shape.carries and keys != sorted(keys), "index raw: keys do not ascend")
    return keys


def golomb_parameter(span, n):
    return max(1, ((2 * span - n) * 22713 + n * 32768) // (n * 65536))


def rice_parameter(span, n):
    m = golomb_parameter(span, n)
    return 1 << ((2 * m * m).bit_length() - 1) // 2


def clustered_parameter(m):
    power = 1 << m.bit_length() - 1
    return power - max(1, power // 16)


def decode_split(parameter, may_cluster):
    def decode(payload, shape, fields):
        size, reader, indices = 1 << fields["block"], Reader(payload), []
        counts = [min(size, shape.count - i) for i in range(0, shape.count, size)]
        if len(counts) == 1:
            lone = reader.varint()
            refuse(lone // 2 > shape.universe, "split: a block ends below 0")
            table = [(shape.universe - lone // 2, lone & 1)]
            bodies = [payload[reader.position:]]
        else:
            table = [(reader.uint(4), reader.uint(2)) for _ in counts]
            bodies = [reader.take(body_size & 0x7fff) for _, body_size in table]
            table = [(end, body_size >> 15) for end, body_size in table]
            refuse(reader.position != len(payload), "split: bytes behind the last body")
        base = 0
        for n, (end, clustered), body in zip(counts, table, bodies):
            refuse(len(body) > 32767, "split: a body of 2^15 bytes or more")
            refuse(end > shape.universe, "split: a block ends above universe")
            refuse(end - base < n, "split: a span shorter than its number of indices")
            m = parameter(end - base, n)
            if clustered and fields.get("adaptive"):
                indices += decode_adaptive_block(body, n, base, end)
                base = end
                continue
            refuse(clustered and (m == 1 or not may_cluster), "split: a block cannot be clustered")
            indices += decode_split_block(body, n, base, end, clustered_parameter(m) if clustered else m)
            base = end
        return indices
    return decode


def decode_split_block(body, n, base, end, m):
    c = log2_ceil(m)
    k, s = max(c, 1) - 1, (1 << c) - m
    bits = Bits(body)
    vs = [bits.take(k) for _ in range(n)]
    bits.pad()
    qs = []
    for _ in range(n):
        q = 0
        while not bits.take(1):
            q += 1
        qs.append(q)
    bits.pad()
    indices, x = [], base - 1
    for v, q in zip(vs, qs):
        r = 0 if m == 1 else v if v < s else 2 * v + bits.take(1) - s
        x += q * m + r + 1
        refuse(x >= end, "split: an index past the end of its block")
        indices.append(x)
    bits.pad()
    refuse(bits.position != 8 * len(body), "split: a body that is not used up")
    refuse(x != end - 1, "split: a block that does not reach its end")
    return indices


def decode_adaptive_block(body, n, base, end):
    bits = Bits(body)
    levels = [bits.take(4) for _ in range(0, n, 32)]
    bits.pad()
    divisors = [1 << level if level < 2 else (1 << level) - max(1, (1 << level) // 16) for level in levels]
    vs = [bits.take(max(log2_ceil(divisors[i // 32]), 1) - 1) for i in range(n)]
    bits.pad()
    qs = []
    for _ in range(n):
        qs.append(0)
        while not bits.take(1):
            qs[-1] += 1
    bits.pad()
    indices, x = [], base - 1
    for i, (v, q) in enumerate(zip(vs, qs)):
        m = divisors[i // 32]
        s = (1 << log2_ceil(m)) - m
        r = 0 if m == 1 else v if v < s else 2 * v + bits.take(1) - s
        x += q * m + r + 1
        refuse(x >= end, "split: an index past the end of its block")
        indices.append(x)
    bits.pad()
    refuse(bits.position != 8 * len(body), "split: a body that is not used up")
    refuse(x != end - 1, "split: a block that does not reach its end")
    return indices


def log2_above(universe, count):
    x = 2**16 * universe // count + 1
    e = x.bit_length() - 1
    return 2**16 * (e - 16) + (x - 2**e) * 2**16 // 2**e + 5644


def split_bound(shape, fields):
    pairs = [(0, 69671), (39949, 54673), (156010, 26412), (254861, 12417), (340545, 5864), (414547, 2877)]
    bits = [shape.count * (log2_above(shape.universe, shape.count) + 191366)] + [shape.count * p + shape.universe * q for p, q in pairs]
    return ((min(bits) >> 16) + 1) // 8 + 1 + 9 * -(-shape.count >> fields["block"])


def bloom_bits(shape, fields):
    refuse(fields["choice"] and fields["policy"], "bloom: both a policy and a choice")
    refuse(fields["layout"] and fields["k"] != 8, "bloom: split blocks of k other than 8")
    refuse(not fields["layout"] and fields["k"] > 1 + (fields["c"] * 45427 >> 32), "bloom: more hashes than go with so many bits")
    granule = 256 if fields["layout"] else 32
    m = max(granule, ((shape.count * fields["c"] >> 16) + granule - 1) // granule * granule)
    refuse(m >= 2**32, "bloom: more than 2^32 - 1 bits")
    refuse(m > 16 * shape.universe + 4096, "bloom: more than 16 bits for each element of the universe")
    return m


def bloom_size(shape, fields):
    return bloom_bits(shape, fields) // 8 + (4 if fields["choice"] >= 3 else 0)


BLOOM_SALT = [0x47b6137b, 0x44974d91, 0x8824ad5b, 0xa2b7289d, 0x705495c7, 0x2df1424b, 0x9efc4947, 0x5c6bfb31]


def bloom_places(i, m, fields):
    """The bits of element i, one for each hash."""
    key, seed = i.to_bytes(4, "little"), fields["seed"]
    if not fields["layout"]:
        return [murmur3(key, seed + j & MASK32) % m for j in range(fields["k"])]
    h = murmur3(key, seed)
    g = murmur3(h.to_bytes(4, "little"), seed)
    block = h * (m // 256) >> 32
    return [256 * block + 32 * j + ((g * BLOOM_SALT[j] & MASK32) >> 27) for j in range(8)]


def bloom_scores(positives, m, fields):
    """p2: (sure, score) of each positive."""
    members = {}
    for i in positives:
        for b in bloom_places(i, m, fields):
            members.setdefault(b, []).append(i)
    sure = {s[0] for s in members.values() if len(s) == 1}
    open_sets = [s for s in members.values() if not sure.intersection(s)]
    claim, score = dict.fromkeys(positives, 0), dict.fromkeys(positives, 0)
    for s in open_sets:
        for i in s:
            claim[i] += 65536 // min(len(s), 65535)
    for s in open_sets:
        max_claim = max(claim[i] for i in s)
        for i in s:
            score[i] += 65536 // min(len(s), 65535) if claim[i] == max_claim else 0
    return {i: (i in sure, score[i]) for i in positives}


def bloom_positives_max(shape):
    return min(shape.universe, 4 * shape.count + shape.universe // 32 + 4096)


def decode_bloom(payload, shape, fields):
    m, positives, r = bloom_bits(shape, fields), [], shape.count
    for i in range(shape.universe):
        if all(payload[b >> 3] >> (b & 7) & 1 for b in bloom_places(i, m, fields)):
            positives.append(i)
    choice = ("policy", "middle", "rightmost", "p1", "p2")[fields["choice"]]
    if choice == "policy" and fields["policy"] == 1:
        refuse(len(positives) != shape.support, f"bloom p0: {len(positives)} positives, the frame says {shape.support}")
        return positives
    refuse(shape.support != r, "bloom: support is not count")
    refuse(len(positives) < r, "bloom: fewer positives than count")
    if choice == "policy":
        return positives[:r]
    if choice == "rightmost":
        return positives[len(positives) - r:]
    refuse(len(positives) > bloom_positives_max(shape), "bloom: more positives than may be chosen from")
    if choice == "middle":
        first = (len(positives) - r) // 2
        return positives[first:first + r]
    salt = int.from_bytes(payload[m // 8:], "little")
    scores = bloom_scores(positives, m, fields) if choice == "p2" else dict.fromkeys(positives, 0)
    return sorted(sorted(positives, key=lambda i: (scores[i], murmur3(i.to_bytes(4, "little"), salt)))[len(positives) - r:])


def decode_bitmap(payload, shape, fields):
    bits = Bits(payload)
    indices = [i for i in range(shape.universe) if bits.take(1)]
    bits.pad()
    refuse(len(indices) != shape.count, f"bitmap: {len(indices)} ones, the frame says {shape.count}")
    return indices


def rle_unit(code):
    """Bytes of a unit and the escape, of the codes that are not packed."""
    size = (1, 2, 4)[(code - 1) % 3]
    return size, 256**size - 1


def decode_rle(payload, shape, fields):
    code, reader, longest = fields["code"], Reader(payload), 0
    if code == 0:
        width = reader.uint(1)
        refuse(width > 32, "rle: lengths of more than 32 bits")
        bits = Bits(payload[1:])

    def length():
        if code == 0:
            return bits.take(width)
        total, (size, escape) = 0, rle_unit(code)
        while (unit := reader.uint(size)) == escape:
            total += escape
        return total + unit

    indices, at = [], 0
    while len(indices) < shape.count:
        zeros = length()
        ones = 1 if code >= 4 else length()
        refuse(code < 4 and (not ones or indices and not zeros), "rle: a run of nothing")
        at, longest = at + zeros, max(longest, zeros, ones)
        refuse(at + ones > shape.universe, "rle: a run beyond universe")
        refuse(len(indices) + ones > shape.count, "rle: more ones than count")
        indices += range(at, at + ones)
        at += ones
    if code == 0:
        bits.pad()
        refuse(bits.position != 8 * len(payload) - 8, "rle: bytes behind the last run")
        refuse(longest.bit_length() != width, "rle: more bits than the longest run needs")
    else:
        refuse(reader.position != len(payload), "rle: bytes behind the last run")
    return indices


def rle_bound(shape, fields):
    code, runs = fields["code"], min(shape.count, shape.universe // 2 + 1)
    if code == 0:
        return 1 + (2 * runs * shape.universe.bit_length() + 7) // 8
    size, escape = rle_unit(code)
    return size * ((shape.count if code >= 4 else 2 * runs) + shape.universe // escape)


def elias_fano_low(universe, count):
    return (universe // count).bit_length() - 1


def decode_elias_fano(payload, shape, fields):
    l, bits, indices = elias_fano_low(shape.universe, shape.count), Bits(payload), []
    low = [bits.take(l) for _ in range(shape.count)]
    bits.pad()
    high = payload[bits.position // 8:]
    refuse(not high or not high[-1], "elias_fano: no one in the last byte")
    ones = [8 * i + b for i, byte in enumerate(high) for b in range(8) if byte >> b & 1]
    refuse(len(ones) != shape.count, f"elias_fano: {len(ones)} ones, the frame says {shape.count}")
    indices = [(p - i) << l | x for i, (p, x) in enumerate(zip(ones, low))]
    refuse(any(b <= a for a, b in zip(indices, indices[1:])), "elias_fano: indices do not ascend")
    refuse(indices[-1] >= shape.universe, "elias_fano: an index not below universe")
    return indices


def elias_fano_bound(shape, fields):
    def size(count):
        l = elias_fano_low(shape.universe, count)
        return (count * l + 7) // 8 + ((shape.universe - 1 >> l) + count - 1) // 8 + 1
    # Of counts with the same l the largest has the most bytes.
    return max(size(min(shape.count, shape.universe >> l)) for l in range(32) if shape.universe >> l)


CHUNK_QUOTIENT_MAX = 24


def chunk_elements(universe, size):
    return [min(size, universe - first) for first in range(0, universe, size)]


def usual_count(c, n, size):
    return max(1, c * n // size) if c else 0


def chunk_divisor(m, r):
    return m if r == 1 else max(1, (2 * (m - r) + r + 1) * ((22713 << 16) // (r + 1)) + 2**31 >> 32)


def decode_chunks(payload, shape, fields):
    reader, size = Reader(payload), fields["size"]
    elements = chunk_elements(shape.universe, size)
    c, named, chunk, counts = 0, 0, -1, [shape.count]
    if len(elements) > 1:
        c, named = reader.varint(), reader.varint()
        counts = [usual_count(c, n, size) for n in elements]
    refuse(c > size, f"chunks: {c} indices of {size} elements")
    for _ in range(named):
        chunk += 1 + reader.varint()
        refuse(chunk >= len(elements), "chunks: a chunk beyond the last")
        k = reader.varint()
        refuse(k > elements[chunk] or k == counts[chunk], f"chunks: chunk {chunk} has {k}")
        counts[chunk] = k
    refuse(sum(counts) != shape.count, f"chunks: {sum(counts)} indices, the frame says {shape.count}")
    bits, indices = Bits(payload[reader.position:]), []
    for chunk, (n, k) in enumerate(zip(elements, counts)):
        m, at = n, chunk * size
        for r in range(k, 0, -1):
            gap = chunk_gap(bits, m, r) if r < m else 0
            refuse(gap > m - r, "chunks: a gap beyond its chunk")
            at += gap + 1
            m -= gap + 1
            indices.append(at - 1)
    bits.pad()
    refuse(bits.position != 8 * len(bits.data), "chunks: bytes behind the last gap")
    return indices


def chunk_gap(bits, m, r):
    divisor, q = chunk_divisor(m, r), 0
    if r > 1:
        while q < CHUNK_QUOTIENT_MAX and not bits.take(1):
            q += 1
        if q == CHUNK_QUOTIENT_MAX:
            gap = bits.take(15)
            refuse(gap // divisor < q, "chunks: a gap in 15 bits that has a quotient")
            return gap
    if divisor == 1:
        return q
    b = log2_ceil(divisor)
    t = 2**b - divisor
    v = bits.take(b - 1)
    return q * divisor + (v if v < t else 2 * v + bits.take(1) - t)


def from_gaps(gaps, universe, name):
    indices, at = [], -1
    for gap in gaps:
        at += gap + 1
        refuse(at >= universe, f"{name}: an index not below universe")
        indices.append(at)
    return indices


def decode_delta_varint(payload, shape, fields):
    reader = Reader(payload)
    indices = from_gaps((reader.varint() for _ in range(shape.count)), shape.universe, "delta_varint")
    refuse(reader.position != len(payload), "delta_varint: bytes behind the last gap")
    return indices


def decode_delta_bitpack(payload, shape, fields):
    blocks = [min(128, shape.count - i) for i in range(0, shape.count, 128)]
    reader, gaps = Reader(payload), []
    widths = reader.take(len(blocks))
    bits = Bits(payload[len(blocks):])
    for n, width in zip(blocks, widths):
        refuse(width > 32, "delta_bitpack: gaps of more than 32 bits")
        block = [bits.take(width) for _ in range(n)]
        refuse(max(block).bit_length() != width, "delta_bitpack: more bits than the widest gap needs")
        gaps += block
        bits.pad()
    refuse(bits.position != 8 * len(bits.data), "delta_bitpack: bytes behind the last block")
    return from_gaps(gaps, shape.universe, "delta_bitpack")


def delta_bitpack_bound(shape, fields):
    blocks = -(-shape.count // 128)
    return blocks + (min(shape.count, 128) * sum(min(blocks, shape.universe >> k - 1) for k in range(1, 33)) + 7) // 8


def read_gap_lengths(bits):
    """Lengths of the symbols that have a word."""
    last, lengths, symbol, length = bits.take(6), {}, 0, 3
    while symbol <= last:
        ones = 0
        while ones < 4 and bits.take(1):
            ones += 1
        if ones == 3:
            zeros = 0
            while not bits.take(1):
                zeros += 1
            symbol += (1 << zeros) + bits.take(zeros)
            refuse(symbol > last, "gap_huffman: a run that reaches the last symbol")
            continue
        if ones == 4:
            length = bits.take(4)
        elif ones:
            length += -ones if bits.take(1) else ones
        refuse(not 1 <= length <= 11, "gap_huffman: a length that is not 1 to 11")
        lengths[symbol] = length
        symbol += 1
    bits.pad()
    refuse(sum(2**(11 - length) for length in lengths.values()) != 2**11, "gap_huffman: lengths of no complete code")
    return lengths


def take_symbols(body, n, words):
    symbols = []
    for _ in range(n):
        word = ""
        while word not in words:
            word += str(body.take(1))
        symbols.append(words[word])
    body.pad()
    return symbols


def decode_gap_huffman(payload, shape, fields):
    reader, indices, words, base = Reader(payload), [], None, 0
    counts = [min(4096, shape.count - i) for i in range(0, shape.count, 4096)]
    if len(counts) == 1:
        before = reader.varint()
        refuse(before > shape.universe, "gap_huffman: a block ends below 0")
        table = [(shape.universe - before, 1 << 15 | len(payload) - reader.position)]
        refuse(len(payload) - reader.position >= 1 << 15, "gap_huffman: a body of 2^15 bytes or more")
    else:
        table = [(reader.uint(4), reader.uint(2)) for _ in counts]
    for n, (end, size) in zip(counts, table):
        refuse(end > shape.universe, "gap_huffman: a block ends above universe")
        refuse(end - base < n, "gap_huffman: a span shorter than its number of indices")
        body = Bits(reader.take(size & 0x7fff))
        if size >> 15:
            words = huffman_codes(read_gap_lengths(body))
        refuse(words is None, "gap_huffman: no code")
        strings = [min(512, n - i) for i in range(0, n, 512)]
        sizes, symbols = [body.take(16) for _ in strings[1:]], []
        for string, bytes_ in zip(strings, sizes + [None]):
            start = body.position
            symbols += take_symbols(body, string, words)
            refuse(bytes_ is not None and body.position != start + 8 * bytes_, "gap_huffman: a string that is not used up")
        x = base - 1
        for symbol in symbols:
            width = max(0, symbol // 2 - 1)
            x += ((symbol - 2 * width) << width) + body.take(width) + 1
            refuse(x >= end, "gap_huffman: an index past the end of its block")
            indices.append(x)
        body.pad()
        refuse(body.position != 8 * len(body.data), "gap_huffman: a body that is not used up")
        refuse(x != end - 1, "gap_huffman: a block that does not reach its end")
        base = end
    refuse(reader.position != len(payload), "gap_huffman: bytes behind the last body")
    return indices


def gap_huffman_bound(shape, fields):
    extras = shape.count * log2_above(shape.universe, shape.count) >> 19
    return 17 * -(-shape.count // 4096) + 3 * -(-shape.count // 512) + (6 * shape.count + 7) // 8 + extras + 129


def decode_delta_pfor(payload, shape, fields):
    blocks = [min(128, shape.count - i) for i in range(0, shape.count, 128)]
    reader, gaps = Reader(payload), []
    heads = [reader.uint(2) for _ in blocks]
    bits = Bits(payload[reader.position:])
    for n, head in zip(blocks, heads):
        b, w, c = head & 63, head >> 6 & 31, head >> 11
        refuse(b > 32, "delta_pfor: gaps of more than 32 bits")
        refuse(n // 8 < c < 31, "delta_pfor: a list of so many exceptions")
        refuse(w if c == 0 else b == 32 or b + w > 32, "delta_pfor: upper bits that do not fit")
        block = [bits.take(b) for _ in range(n)]
        bits.pad()
        uppers = {}
        if c == 31:
            places = [i for i, one in enumerate([bits.take(1) for _ in range(n)]) if one]
            bits.pad()
            refuse(len(places) <= n // 8, "delta_pfor: a bitmap of so few exceptions")
            for i in places:
                uppers[i] = bits.take(w)
        else:
            for _ in range(c):
                i = bits.take(log2_ceil(n))
                refuse(i >= n or i <= max(uppers, default=-1), "delta_pfor: positions do not ascend below the block's end")
                uppers[i] = bits.take(w)
        bits.pad()
        widest, needed = (max(uppers.values()), w) if c else (max(block), b)
        refuse(widest.bit_length() != needed, "delta_pfor: more bits than the widest needs")
        gaps += [low + (uppers[i] + 1 << b) if i in uppers else low for i, low in enumerate(block)]
    refuse(bits.position != 8 * len(bits.data), "delta_pfor: bytes behind the last block")
    return from_gaps(gaps, shape.universe, "delta_pfor")


def delta_pfor_bound(shape, fields):
    return delta_bitpack_bound(shape, fields) + -(-shape.count // 128)


def decode_seeded(payload, shape, fields):
    key, universe = int.from_bytes(payload, "little"), shape.universe
    refuse(not 1 <= shape.support <= universe, "seeded: a support of nothing, or above universe")
    count, drawn, i = min(shape.support, universe - shape.support), set(), 0
    if shape.support <= universe // 2:
        count = shape.support
    while len(drawn) < count:
        refuse(i == 4 * count + 256, "seeded: a key that draws the same again and again")
        drawn.add(mix64(key + (i + 1) * PHI & MASK64) * universe >> 64)
        i += 1
    return sorted(drawn) if shape.support <= universe // 2 else [i for i in range(universe) if i not in drawn]


def decode_all(payload, shape, fields):
    refuse(shape.support != shape.universe, "all: the support is not universe")
    return list(range(shape.universe))


# ---- value codecs: bit patterns in the order decoded ----

def word_key(word, dtype):
    if dtype == "f64":
        return min(255, max(0, (word >> 52 & 0x7ff) - 896))
    return {4: word >> 23 & 255, 2: word >> 7 & 255, 1: word << 1 & 255}[VALUE_SIZE[dtype]]


def read_classes(reader):
    count = reader.uint(1)
    refuse(not 1 <= count <= 8, f"{count} classes")
    thresholds = list(reader.take(count - 1))
    refuse(thresholds != sorted(set(thresholds)) or 0 in thresholds, "thresholds do not ascend")
    return lambda word, dtype: sum(word_key(word, dtype) >= t for t in thresholds), count


def read_rans_table(reader, max_symbols):
    symbols = reader.uint(1) + 1
    refuse(symbols > max_symbols, f"a table of {symbols} symbols")
    frequencies = [reader.varint() for _ in range(symbols - 1)]
    refuse(sum(frequencies) >= 4096, "frequencies of 4096 or more")
    return frequencies + [4096 - sum(frequencies)]


def read_rans(data, tables):
    """The symbols of a string, of which symbol i is of tables[i]."""
    reader, lanes = Reader(data), 1 if len(tables) < 2048 else 16
    states = [reader.uint(4) for _ in range(lanes)]
    refuse(min(states) < 65536, "a state below 2^16")
    out = []
    for i, table in enumerate(tables):
        x, low, symbol = states[i % lanes], 0, 0
        while low + table[symbol] <= x % 4096:
            low += table[symbol]
            symbol += 1
        x = table[symbol] * (x // 4096) + x % 4096 - low
        states[i % lanes] = x if x >= 65536 else x << 16 | reader.uint(2)
        out.append(symbol)
    refuse(any(x != 65536 for x in states) or reader.position != len(data), "coded symbols that do not end where they began")
    return out


def decode_magnitude(payload, shape, fields):
    refuse(shape.width != 1, "magnitude takes width 1")
    reader = Reader(payload)
    class_of, count = read_classes(reader)
    words, changed, classes = shape.universe, shape.count, []
    for c in range(count):
        n, r = (reader.varint(), reader.varint()) if c < count - 1 else (words, changed)
        refuse(n > words or r > changed or r > n, "classes have more than there is")
        words, changed = words - n, changed - r
        classes.append((n, r, reader.varint() if r else None))
    refuse(words or changed, "classes have less than there is")
    last = max(c for c in range(count) if classes[c][1])
    ranks = []
    for c, (n, r, coded_size) in enumerate(classes):
        ranks.append([])
        if not r:
            continue
        coder, size = coded_size & 3, coded_size >> 2
        refuse(coder == 3 or bool(size) == (c == last), "a class of another coder or size")
        body = reader.take(len(payload) - reader.position if c == last else size)
        if coder < 2:
            ranks[c] = decode_split(golomb_parameter, coder == 0)(body, Shape(n, r, r), {"block": 12, "adaptive": coder})
            continue
        refuse(n < 32768, "a bitmap of a small class")
        inner = Reader(body)
        table = read_rans_table(inner, 256)
        bits = read_rans(body[inner.position:], [table] * ((n + 7) // 8))
        ranks[c] = [8 * i + k for i, byte in enumerate(bits) for k in range(8) if byte >> k & 1]
        refuse(len(ranks[c]) != r or ranks[c][-1] >= n, "a bitmap of another number of ones")
    refuse(reader.position != len(payload), "bytes behind the last class")
    places = [[] for _ in range(count)]
    for i, word in enumerate(shape.base):
        places[class_of(word, shape.dtype)].append(i)
    refuse([len(place) for place in places] != [n for n, _, _ in classes], "the classes are those of another base")
    return sorted(places[c][rank] for c in range(count) for rank in ranks[c])


GRADES_MAX = 4 + 16 + 5 + 150                                         # bytes of a check and a map


def history_check(history):
    data, total = bytes(history) + bytes(-len(history) % 8), 0
    for j in range(len(data) // 8):
        w = int.from_bytes(data[8 * j:8 * j + 8], "little")
        total += mix64((w + (j + 1) * PHI) % 2**64) if w else 0
    return total % 2**64 >> 32


def since(h):
    """When a word changed last, in 7 states."""
    return sum((h & 31) >= t for t in (1, 2, 3, 5, 9, 17))


def since_and_stood(h):
    return since(h) and 4 * since(h) - 3 + (h >> 5 & 3)


def read_grades(reader, shape, states, state_of):
    """The grade of each word of the base."""
    history = shape.history or [0] * len(shape.base)
    refuse(reader.uint(4) != history_check(history), "the history is another one")
    groups = reader.uint(1)
    refuse(groups > 16, "more than 16 groups of keys")
    if not groups:
        return [0] * len(shape.base)
    begin = [0] + [reader.uint(1) for _ in range(groups - 1)]
    refuse(any(a >= b for a, b in zip(begin, begin[1:])), "groups that do not ascend")
    listed = reader.varint()
    refuse(not listed & 1 or listed >> states, "states that there are not, or without state 0")
    bits = Bits(reader.take((3 * groups * bin(listed).count("1") + 7) // 8))
    grades = {s: [bits.take(3) for _ in begin] for s in range(states) if listed >> s & 1}
    bits.pad()
    return [grades.get(state_of(h), grades[0])[sum(word_key(word, shape.dtype) >= b for b in begin[1:])]
            for word, h in zip(shape.base, history)]


def decode_history_index(payload, shape, fields):
    refuse(shape.width != 1, "history takes width 1")
    reader = Reader(payload)
    grades = read_grades(reader, shape, 25, since_and_stood)
    return decode_magnitude(payload[reader.position:], replace(shape, dtype="u8", base=grades), fields)


def word_of_grade(grade, dtype):
    """A word with this key."""
    return {1: grade, 2: grade << 7, 4: grade << 23, 8: grade and grade + 896 << 52}[VALUE_SIZE[dtype]]


def decode_history_value(payload, shape, fields):
    reader = Reader(payload)
    grades = read_grades(reader, shape, 7, since)
    keys = [word_of_grade(grade, shape.dtype) for grade in grades]
    numbers = decode_changes(lambda _, z, __: z)(payload[reader.position:], replace(shape, base=keys), fields)
    return [apply_ulp(word, turned(z, h, shape.dtype), shape.dtype)
            for word, z, h in zip(shape.base, numbers, shape.history or [0] * len(numbers))]


def turned(z, h, dtype):
    """The number of a distance d, of that of d the way that the word went before."""
    if not h & 128 or z in (0, 2**(8 * VALUE_SIZE[dtype]) - 1):
        return z
    return z + 1 if z & 1 else z - 1


def in_order(word, dtype):
    bits = 8 * VALUE_SIZE[dtype]
    return word if dtype in ("u16", "u32") or not word >> bits - 1 else word ^ (1 << bits - 1) - 1


def decode_changes(apply):
    def decode(payload, shape, fields):
        size, n = VALUE_SIZE[shape.dtype], shape.support * shape.width
        if payload[:1] == b"\0":
            refuse(len(payload) != 1 + n * size, "words of another size")
            return decode_value_raw(payload[1:], shape, fields)
        reader = Reader(payload)
        class_of, count = read_classes(reader)
        tables = [read_rans_table(reader, 256 if size == 1 else 11 + 8 * size) for _ in range(count)]
        apart = size > 1 and any(len(table) > 14 for table in tables)
        coded = reader.take(reader.varint() if apart else len(payload) - reader.position)
        symbols = read_rans(coded, [tables[class_of(word, shape.dtype)] for word in shape.base])
        bits = Bits(payload[reader.position:])
        numbers = [s if size == 1 or s < 14 else 1 << s - 11 | bits.take(s - 11) for s in symbols]
        bits.pad()
        refuse(bits.position != 8 * len(bits.data), "bytes behind the bits apart")
        return [apply(word, z, shape.dtype) for word, z in zip(shape.base, numbers)]
    return decode


def apply_ulp(word, z, dtype):
    d = -(z + 1) // 2 if z & 1 else z // 2
    return in_order((in_order(word, dtype) + d) % 2**(8 * VALUE_SIZE[dtype]), dtype)


def decode_planes(payload, shape, fields):
    reader, size, out = Reader(payload), VALUE_SIZE[shape.dtype], []
    blocks = [min(2**18, shape.support * shape.width - first) for first in range(0, shape.support * shape.width, 2**18)]
    sizes = [reader.uint(4) for _ in blocks[1:]]
    for i, n in enumerate(blocks):
        inner = Reader(reader.take(sizes[i] if i < len(sizes) else len(payload) - reader.position))
        modes, planes = inner.take(size), {}
        for p, mode in enumerate(modes):
            refuse(mode > 2, f"a plane of mode {mode}")
            if mode == 0:
                planes[p] = bytes(inner.take(n))
        for p, mode in enumerate(modes):
            if mode == 2:
                refuse(n == 1, "a constant plane of one word")
                planes[p] = bytes(inner.take(1)) * n
            elif mode == 1:
                planes[p] = read_coded_plane(inner, n)
        refuse(inner.position != len(inner.data), "bytes behind a block")
        words = (int.from_bytes(word, "little") for word in zip(*(planes[p] for p in range(size))))
        numbers = shape.dtype in ("f32", "f16", "bf16", "f64")
        out += [word >> 1 | (word & 1) << 8 * size - 1 for word in words] if numbers else words
    return out


def planes_bound(n, size):
    return n * size + (n + 2**18 - 1) // 2**18 * (size + 4)


def read_coded_plane(reader, n):
    table = read_rans_table(reader, 256)
    names = reader.take(len(table))
    refuse(0 in table, "a symbol that does not occur")
    refuse(any(a >= b for a, b in zip(names, names[1:])), "names of symbols that do not ascend")
    strings = 1 if n < 2**16 else 4
    share = -(-n // (64 * strings)) * 64
    counts = [share] * (strings - 1) + [n - (strings - 1) * share]
    sizes = [reader.uint(4) for _ in counts]
    return bytes(names[s] for count, size in zip(counts, sizes) for s in read_rans(reader.take(size), [table] * count))


def decode_value_raw(payload, shape, fields):
    letter = {4: "I", 8: "Q", 1: "B", 2: "H"}[VALUE_SIZE[shape.dtype]]
    return list(struct.unpack(f"<{shape.support * shape.width}{letter}", payload))


def qsgd_size(shape, fields):
    n = shape.support * shape.width
    return 4 * -(-n // fields["bucket"]) + (n * (1 + log2_ceil(fields["levels"] + 1)) + 7) // 8


def decode_qsgd(payload, shape, fields):
    n, levels, bucket = shape.support * shape.width, fields["levels"], fields["bucket"]
    reader, norms, values = Reader(payload), [], []
    for _ in range(0, n, bucket):
        word = reader.take(4)
        refuse(word[3] & 128, "qsgd: a negative norm")
        norms.append(finite_f32(word))
    bits, width = Bits(payload[reader.position:]), 1 + log2_ceil(levels + 1)
    for i in range(n):
        code = bits.take(width)
        level = code >> 1
        refuse(level > levels, "qsgd: a level above levels")
        y = norms[i // bucket] * level / levels
        # Reading: a norm above the largest number of a 16-bit type is allowed, and rounds to infinity.
        values.append(round_to(-y if code & 1 else y, shape.dtype))
    bits.pad()
    return values


def fit_poly_segments(positives, n, middle=None):
    """(is positive, points) of each segment, in the order of the payload. middle: values behind a jump, positive None."""
    smallest_state, extremes = (31, [1]) if middle is None else (16, [1, 1])
    middle = middle or 0

    def pieces(n):
        """Towards the extreme."""
        lengths = sorted((n // f for f in (5, 10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000) if n // f >= smallest_state), reverse=True)
        lengths.insert(0, n - sum(lengths))
        if n >= smallest_state:
            lengths[-1:] = [lengths[-1] - len(extremes), *extremes]
        return lengths if n else []

    return ([(True, length) for length in reversed(pieces(positives))] + [(None, length) for length in (middle // 2, middle - middle // 2) if length]
            + [(False, length) for length in pieces(n - positives - middle)])


def gram(u, n, j, p, p_before):
    """P_{j+1} at u, from P_j and P_{j-1}."""
    return u * p - gram_b(n, j) * p_before


def gram_b(n, j):
    jj = float(j * j)
    return (jj * (1.0 - jj / (float(n) * float(n)))) / (4.0 * jj - 1.0)


def fit_poly_pieces(reader, sides):
    """The segments, if the payload has knots. sides: (is positive, points)."""
    segments = []
    for positive, left in sides:
        if left == 0:
            continue
        pieces = reader.uint(1)
        refuse(not 1 <= pieces <= 64, f"fit_poly: {pieces} pieces")
        for _ in range(pieces - 1):
            length = reader.varint()
            refuse(not 0 < length < left, "fit_poly: a piece without points")
            segments.append((positive, length))
            left -= length
        segments.append((positive, left))
    return segments


def decode_fit_poly(payload, shape, fields):
    reader, values, top = Reader(payload), [], largest(shape.dtype)
    in_order = fields["sign"] == 1
    positives = shape.support if in_order else reader.uint(4)
    refuse(positives > shape.support, "fit_poly: more positives than values")
    jump = fields["knots"] == 2
    if jump:
        middle = reader.uint(4)
        refuse(middle > shape.support - positives * (not in_order), "fit_poly: more values about zero than values")
        segments = fit_poly_segments(shape.support - middle if in_order else positives, shape.support, middle)
    elif fields["knots"]:
        segments = fit_poly_pieces(reader, [(True, positives), (False, shape.support - positives)])
    else:
        segments = fit_poly_segments(positives, shape.support)
    sizes = [min(fields["degree"], n - 1) + 1 for _, n in segments]
    expected = reader.position + (2 if jump else 4) * sum(sizes) + (shape.support + 7) // 8 * in_order
    refuse(len(payload) != expected, f"fit_poly: {len(payload)} bytes instead of {expected}")
    for (positive, n), size in zip(segments, sizes):
        # A bf16 is the upper half of an f32.
        coefficients = [finite_f32(bytes(2) + bytes(reader.take(2)) if jump else reader.take(4)) for _ in range(size)]
        for x in range(n):
            y = gram_value(coefficients, x, n)
            if y < 0 if positive or in_order else y > 0 and positive is False:
                y = 0.0
            # Reading: a y of -0 (only c_0 = -0 makes it) is neither, and stays.
            values.append(round_to(max(-top, min(top, y)), shape.dtype))
    if in_order:
        bits, sign = Bits(reader.take((shape.support + 7) // 8)), 1 << 8 * VALUE_SIZE[shape.dtype] - 1
        values = [v & sign - 1 | bits.take(1) * sign for v in values]
        bits.pad()
    return values


def gram_value(coefficients, x, n):
    u = (2 * x - (n - 1)) / n
    y, p_before, p = coefficients[0], 1.0, u
    for j in range(1, len(coefficients)):
        y = y + coefficients[j] * p
        p_before, p = p, gram(u, n, j, p, p_before)
    return y


# The doubles nearest to ln(2)^k / k!, ln 2 = sum of 1 / (k 2^k)
LN2 = sum(Fraction(1, k << k) for k in range(1, 100))
EXP2 = [float(LN2**k / math.factorial(k)) for k in range(14)]


def exp2(x):
    whole = (x + 6755399441055744.0) - 6755399441055744.0
    f, s = x - whole, EXP2[13]
    for k in range(12, -1, -1):
        s = EXP2[k] + f * s
    return math.ldexp(s, int(whole))


def fit_dexp_size(shape, fields):
    return 16 + (shape.support + 7) // 8 if fields["sign"] else 36


def fit_dexp_values(curve, positive, n, dtype):
    def power(rate, x):
        return exp2(-min(1000.0, abs(rate) * ((2.0 * (n - 1 - x if rate > 0 else x)) / n)))
    a, b, c, d = curve
    top, out = largest(dtype), []
    for x in range(n):
        y = a * power(b, x) + c * power(d, x)
        if y < 0 if positive else y > 0:
            y = 0.0
        out.append(round_to(max(-top, min(top, y)), dtype))
    return out


def decode_fit_dexp(payload, shape, fields):
    reader, n, in_order = Reader(payload), shape.support, fields["sign"] == 1
    positives = n if in_order else reader.uint(4)
    refuse(positives > n, "fit_dexp: more positives than values")
    values = []
    for positive, count in [(True, positives)] + [(False, n - positives)] * (not in_order):
        words = [reader.take(4) for _ in range(4)]
        curve = [finite_f32(word) for word in words]
        refuse(count == 0 and any(b"".join(words)), "fit_dexp: parameters of no values")
        values += fit_dexp_values(curve, positive, count, shape.dtype)
    if in_order:
        bits, sign = Bits(reader.take((n + 7) // 8)), 1 << 8 * VALUE_SIZE[shape.dtype] - 1
        values = [v & sign - 1 | bits.take(1) * sign for v in values]
        bits.pad()
    return values


def rank_fit_size(shape, fields):
    n = shape.support * shape.width
    return 4 * min(fields["degree"] + 1, 1 << fields["bits"]) + (n + 7) // 8 + (n * fields["bits"] + 7) // 8


def rank_fit_levels(coefficients, fields, dtype):
    """Bit patterns."""
    levels, top = 1 << fields["bits"], largest(dtype)
    curve = [gram_value(coefficients, i, levels) for i in range(levels)]
    return [round_to(min(top, exp2(max(-160.0, min(130.0, t)))), dtype) for t in curve]


def decode_rank_fit(payload, shape, fields):
    reader, n = Reader(payload), shape.support * shape.width
    coefficients = [finite_f32(reader.take(4)) for _ in range(min(fields["degree"] + 1, 1 << fields["bits"]))]
    levels, sign = rank_fit_levels(coefficients, fields, shape.dtype), 1 << 8 * VALUE_SIZE[shape.dtype] - 1
    signs = Bits(reader.take((n + 7) // 8))
    codes = Bits(reader.take((n * fields["bits"] + 7) // 8))
    values = [levels[codes.take(fields["bits"])] | sign * signs.take(1) for _ in range(n)]
    signs.pad()
    codes.pad()
    return values


HALVES = ("f16", "bf16")


def decode_half(payload, shape, fields):
    half = HALVES[fields["type"]]
    numbers = struct.unpack(f"<{shape.support * shape.width}H", payload)
    refuse(any(not abs(to_double(number, half)) < float("inf") for number in numbers), "half: a number that is not finite")
    return [convert(number, half, shape.dtype) for number in numbers]


def decode_sketch(payload, shape, fields):
    reader, top = Reader(payload), largest(shape.dtype)
    means = [finite_f32(reader.take(4)) for _ in range(reader.uint(1) + 1)]
    codes = reader.take(shape.support * shape.width)
    refuse(reader.position != len(payload), "sketch: bytes behind the last code")
    refuse(any(code >= len(means) for code in codes), "sketch: a code that is not below the number of buckets")
    return [round_to(max(-top, min(top, means[code])), shape.dtype) for code in codes]


def decode_three_lc(payload, shape, fields):
    refuse(len(payload) < 4, "three_lc: no scale")
    refuse(payload[3] & 128, "three_lc: a negative scale")
    scale, n, digits = min(finite_f32(payload[:4]), largest(shape.dtype)), shape.support * shape.width, []
    for byte in payload[4:]:
        if byte >= 243:
            digits += [1] * 5 * (byte - 241)
        else:
            digits += [byte // 81, byte // 27 % 3, byte // 9 % 3, byte // 3 % 3, byte % 3]
    refuse(len(digits) != (n + 4) // 5 * 5, f"three_lc: {len(digits)} digits for {n} values")
    refuse(any(digit != 1 for digit in digits[n:]), "three_lc: padding is not zero")
    return [round_to((-scale, 0.0, scale)[digit], shape.dtype) for digit in digits[:n]]


def decode_natural(payload, shape, fields):
    highest, codes, top = payload[0], payload[1:], largest(shape.dtype)
    refuse(highest < 104, "natural: the highest power is below 104")
    sizes = [min(top, math.ldexp(1.0, highest + (c & 127) - 254)) if c & 127 else 0.0 for c in codes]
    return [round_to(math.copysign(size, -1 if c & 128 else 1), shape.dtype) for c, size in zip(codes, sizes)]


def dynamic_tree_entry(c):
    """From the seven bits of a code: zeros, a one, a fraction."""
    if not c:
        return 0.0
    text = f"{c:07b}"
    k, j = text.index("1"), text[text.index("1") + 1:]
    return float((Fraction(1, 10) + Fraction(9, 10) * Fraction(2 * int(j or "0", 2) + 1, 2 << len(j))) / 10**k)


def decode_dynamic_tree(payload, shape, fields):
    refuse(payload[3] & 128, "dynamic_tree: a negative scale")
    scale, top = finite_f32(payload[:4]), largest(shape.dtype)
    sizes = [min(top, dynamic_tree_entry(c & 127) * scale) for c in payload[4:]]
    return [round_to(math.copysign(size, -1 if c & 128 else 1), shape.dtype) for c, size in zip(payload[4:], sizes)]


def decode_inceptionn(payload, shape, fields):
    reader, n, size = Reader(payload), shape.support * shape.width, VALUE_SIZE[shape.dtype]
    bits = Bits(reader.take((n + 3) // 4))
    tags = [bits.take(2) for _ in range(n)]
    bits.pad()
    shorts = iter(reader.take(tags.count(1)))
    longs = iter(struct.unpack(f"<{tags.count(2)}H", reader.take(2 * tags.count(2))))
    raws = iter([reader.uint(size) for _ in range(tags.count(3))])
    refuse(reader.position != len(payload), "inceptionn: bytes behind the last value")

    def coded(code, sign):
        fraction = fields["fraction"] if fields["fraction"] < 127 else 7 if sign == 128 else 15
        number = min(largest(shape.dtype), math.ldexp(code & sign - 1, -fraction))
        return round_to(math.copysign(number, -1 if code & sign else 1), shape.dtype)
    values = [0 if tag == 0 else coded(next(shorts), 128) if tag == 1 else coded(next(longs), 32768) if tag == 2 else next(raws) for tag in tags]
    refuse(any(not abs(to_double(v, shape.dtype)) < float("inf") for v, tag in zip(values, tags) if tag == 3), "inceptionn: a number that is not finite")
    return values


def sign_size(shape, fields):
    refuse(fields["means"] and fields["level"] != 0x3f800000, "sign: a level beside means")
    return 4 * fields["means"] + (shape.support * shape.width + 7) // 8


def decode_sign(payload, shape, fields):
    means, top = fields["means"], largest(shape.dtype)
    refuse(any(word & 128 for word in payload[3:4 * means:4]), "sign: a negative mean")
    numbers = [finite_f32(payload[4 * k:4 * k + 4]) for k in range(means)] or [to_double(fields["level"], "f32")]
    below, other = round_to(-min(top, numbers[0]), shape.dtype), round_to(min(top, numbers[-1]), shape.dtype)
    bits = Bits(payload[4 * means:])
    values = [below if bits.take(1) else other for _ in range(shape.support * shape.width)]
    bits.pad()
    return values


def decode_ternary(payload, shape, fields):
    refuse(payload[3] & 128, "ternary: a negative scale")
    scale, n = min(finite_f32(payload[:4]), largest(shape.dtype)), shape.support * shape.width
    refuse(any(byte > 242 for byte in payload[4:]), "ternary: a byte that is no five digits")
    digits = [byte // 3**(4 - k) % 3 for byte in payload[4:] for k in range(5)]
    refuse(any(digit != 1 for digit in digits[n:]), "ternary: padding is not zero")
    return [round_to((-scale, 0.0, scale)[digit], shape.dtype) for digit in digits[:n]]


# ---- quantisers ----

def decode_split_levels(body, n, m):
    c = log2_ceil(m)
    k, s = max(c, 1) - 1, (1 << c) - m
    bits, levels = Bits(body), []
    vs = [bits.take(k) for _ in range(n)]
    bits.pad()
    for _ in range(n):
        q = 0
        while not bits.take(1):
            q += 1
        levels.append(q * m)
    bits.pad()
    for i, v in enumerate(vs):
        if m > 1:
            levels[i] += v if v < s else 2 * v - s + bits.take(1)
        refuse(levels[i] > 65535, "levels: one above 65535")
    bits.pad()
    refuse(bits.position != 8 * len(body), "levels: a body that is not used up")
    return levels


def level_divisor(total, n):
    return min(4096, max(1, ((2 * total + n) * 22713 + n * 32768) // (n * 65536)))


def decode_runs(body, n, units):
    refuse(units > n, "levels: more units than levels")
    refuse(not units and body, "levels: a body that is not used up")
    levels, at = [0] * n, 0
    for gap in decode_split_levels(body, units, level_divisor(n, units)) if units else []:
        at += gap
        refuse(at >= n, "levels: a unit behind the last level")
        levels[at] += 1
    return levels


def read_levels(reader, n, raw=None):
    """A list for each block: levels, or what raw(body, values) makes of a body with code 0."""
    counts = [min(4096, n - i) for i in range(0, n, 4096)]
    table = [(reader.uint(2), reader.uint(2)) for _ in counts] if len(counts) > 1 else [(reader.varint(), None)]
    blocks = []
    for (code, size), count in zip(table, counts):
        body = reader.take(len(reader.data) - reader.position if size is None else size)
        refuse(len(body) > 16384, "levels: a body above 16384 bytes")
        refuse(code > 8193 or code == 0 and not raw, "levels: no such code")
        if code == 0:
            blocks.append(raw(body, count))
        elif code % 2:
            blocks.append(decode_runs(body, count, code // 2))
        else:
            blocks.append(decode_split_levels(body, count, code // 2))
    refuse(reader.position != len(reader.data), "levels: bytes behind the last body")
    return blocks


def read_huffman(reader, n, count):
    bits = Bits(reader.take((count + 1) // 2))
    lengths = [bits.take(4) for _ in range(count)]
    bits.pad()
    refuse(max(lengths) > 11 or sum(2**(11 - length) for length in lengths if length) != 2**11, "huffman: lengths of no complete code")
    words, code, before = {}, 0, 0
    for length, level in sorted((length, level) for level, length in enumerate(lengths) if length):
        code <<= length - before
        words[length, code] = level
        code, before = code + 1, length
    counts = [min(4096, n - i) for i in range(0, n, 4096)]
    sizes = [reader.uint(2) for _ in counts] if len(counts) > 1 else [len(reader.data) - reader.position]
    levels = []
    for size, count in zip(sizes, counts):
        refuse(size > 5656, "huffman: a body above 5656 bytes")
        body = Reader(reader.take(size))
        strings = [min(512, count - i) for i in range(0, count, 512)]
        ends = [body.uint(2) for _ in strings[1:]]
        for string, number in zip(ends + [None], strings):
            bits = Bits(body.take(len(body.data) - body.position if string is None else string))
            for _ in range(number):
                code, length = bits.take(1), 1
                while (length, code) not in words:
                    code, length = 2 * code + bits.take(1), length + 1
                levels.append(words[length, code])
            bits.pad()
            refuse(bits.position != 8 * len(bits.data), "huffman: a string that is not used up")
    refuse(reader.position != len(reader.data), "huffman: bytes behind the last body")
    return levels


def read_table_levels(reader, n, count, huffman):
    levels = read_huffman(reader, n, count) if huffman else [x for block in read_levels(reader, n) for x in block]
    refuse(any(level >= count for level in levels), "a level that has no number")
    return levels


def finite_values(data, shape):
    size, bits = VALUE_SIZE[shape.dtype], EXPONENT_BITS[shape.dtype] + MANTISSA_BITS[shape.dtype]
    values = [int.from_bytes(data[i:i + size], "little") for i in range(0, len(data), size)]
    refuse(any(v & (1 << bits) - 1 >= ((1 << EXPONENT_BITS[shape.dtype]) - 1) << MANTISSA_BITS[shape.dtype] for v in values), "a value that is not finite")
    return values


def read_signs(reader, n):
    bits = Bits(reader.take((n + 7) // 8))
    signs = [bits.take(1) for _ in range(n)]
    bits.pad()
    return signs


def f32_of(x):
    """A double rounded to f32, as a double."""
    return to_double(round_to(x, "f32"), "f32")


def signed(magnitude, sign, shape):
    """A magnitude in the type, saturated, with a sign bit."""
    return round_to(min(magnitude, largest(shape.dtype)), shape.dtype) | sign << EXPONENT_BITS[shape.dtype] + MANTISSA_BITS[shape.dtype]


def magnitude_f32(reader):
    word = reader.take(4)
    refuse(word[3] & 128, "a negative number")
    return finite_f32(word)


def read_kind_raw(payload, shape):
    """The values of a payload of kind 0; else None."""
    refuse(not payload, "no kind")
    if payload[0]:
        return None
    refuse(len(payload) != 1 + shape.support * shape.width * VALUE_SIZE[shape.dtype], "raw values of another length")
    return finite_values(payload[1:], shape)


def decode_uniform_quant(payload, shape, fields):
    values, n = read_kind_raw(payload, shape), shape.support * shape.width
    if values is not None:
        return values
    reader = Reader(payload)
    refuse(reader.uint(1) != 1, "uniform_quant: no such kind")
    base, step = magnitude_f32(reader), magnitude_f32(reader)
    signs = read_signs(reader, n)

    class Magnitude(int):
        pass

    def raw(body, count):
        refuse(len(body) != count * VALUE_SIZE[shape.dtype], "uniform_quant: a raw block of another size")
        magnitudes = finite_values(body, shape)
        refuse(any(m >> EXPONENT_BITS[shape.dtype] + MANTISSA_BITS[shape.dtype] for m in magnitudes), "uniform_quant: a magnitude with a sign")
        return [Magnitude(m) for m in magnitudes]

    out = []
    for level, sign in zip((x for block in read_levels(reader, n, raw) for x in block), signs):
        if isinstance(level, Magnitude):
            out.append(level | sign << EXPONENT_BITS[shape.dtype] + MANTISSA_BITS[shape.dtype])
        else:
            # f32 products and sums of f32 numbers: exact in double but for one rounding (Figueroa 1995), which the second undoes
            out.append(signed(min(f32_of(base + f32_of(step * level)), largest("f32")), sign, shape))
    return out


def decode_log_quant(payload, shape, fields):
    values, n = read_kind_raw(payload, shape), shape.support * shape.width
    if values is not None:
        return values
    reader = Reader(payload)
    kind = reader.uint(1)
    bits = kind >> 3
    refuse(not kind & 1 or not 1 <= bits <= 6, "log_quant: no such kind")
    low, high = magnitude_f32(reader), magnitude_f32(reader)
    refuse(low > high or not low and high, "log_quant: no such range")
    g = high / low if low < high else 1.0
    for _ in range(bits + 1):
        g = math.sqrt(g)
    p, table = low, []
    for _ in range(2**bits):
        p *= g
        table.append(f32_of(p))
        p *= g
    if kind & 4:
        table[0] = magnitude_f32(reader)
    signs = read_signs(reader, n)
    return [signed(table[level], sign, shape) for level, sign in zip(read_table_levels(reader, n, len(table), kind & 2), signs)]


def decode_lloyd(payload, shape, fields):
    values, n = read_kind_raw(payload, shape), shape.support * shape.width
    if values is not None:
        return values
    reader = Reader(payload)
    kind = reader.uint(1)
    refuse(not kind & 1 or kind & 128, "lloyd: no such kind")
    dtype = shape.dtype if kind & 64 else "bf16"
    numbers = [reader.uint(VALUE_SIZE[dtype]) for _ in range((kind >> 2 & 15) + 1)]
    infinity = (1 << EXPONENT_BITS[dtype]) - 1 << MANTISSA_BITS[dtype]
    refuse(any(number >= infinity for number in numbers), "lloyd: a magnitude with a sign or not finite")
    table = [to_double(number, dtype) for number in numbers]
    signs = read_signs(reader, n)
    return [signed(table[level], sign, shape) for level, sign in zip(read_table_levels(reader, n, len(table), kind & 2), signs)]


# ---- order and bytes codecs ----

def bitpack_size(shape, fields):
    return (shape.support * log2_ceil(max(1, shape.support)) + 7) // 8


def decode_bitpack(payload, shape, fields):
    n, bits = shape.support, Bits(payload)
    order = [bits.take(log2_ceil(max(1, n))) for _ in range(n)]
    bits.pad()
    refuse(any(position >= n for position in order), "bitpack: a position that is not below the number of values")
    refuse(len(set(order)) != n, "bitpack: a position comes twice")
    return order


def inflate(data, exact, bound):
    stream = zlib.decompressobj(-15)
    try:
        out = stream.decompress(data, bound + 1)
    except zlib.error as error:
        raise Corrupt(f"deflate: {error}") from None
    refuse(len(out) > bound, "deflate: more bytes than the codec before it may write")
    refuse(not stream.eof or stream.unused_data, "deflate: the stream does not end with the payload")
    refuse(exact and len(out) != bound, f"deflate: {len(out)} bytes instead of {bound}")
    return out


def unzstd(data, exact, bound):
    """Uses the system's libzstd: Python has its own only since 3.14."""
    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError:
        raise Unsupported("zstd: there is no libzstd.so.1") from None
    find, decompress, is_error = library.ZSTD_findFrameCompressedSize, library.ZSTD_decompress, library.ZSTD_isError
    find.restype = decompress.restype = ctypes.c_size_t
    find.argtypes, is_error.argtypes = (ctypes.c_char_p, ctypes.c_size_t), (ctypes.c_size_t,)
    decompress.argtypes = (ctypes.c_char_p, ctypes.c_size_t) * 2
    refuse(data[:4] != b"\x28\xb5\x2f\xfd", "zstd: no frame")
    refuse(find(data, len(data)) != len(data), "zstd: the frame does not end with the payload")
    out = ctypes.create_string_buffer(bound + 1)
    size = decompress(out, bound + 1, data, len(data))
    refuse(is_error(size), "zstd: a damaged frame, or more bytes than the codec before it may write")
    refuse(size > bound, "zstd: more bytes than the codec before it may write")
    refuse(exact and size != bound, f"zstd: {size} bytes instead of {bound}")
    return out.raw[:size]


def huffman_codes(lengths):
    """{the code as text, its highest bit first: byte} of {byte: length}."""
    codes, code, before = {}, -1, 0
    for length, byte in sorted((length, byte) for byte, length in lengths.items()):
        code = (code + 1) << (length - before)
        codes[format(code, f"0{length}b")] = byte
        before = length
    return codes


def unhuffman(data, exact, bound):
    reader = Reader(data)
    head = reader.varint()
    n = head >> 1
    refuse(n > bound, "huffman: more bytes than the codec before it may write")
    refuse(exact and n != bound, f"huffman: {n} bytes instead of {bound}")
    if not head & 1:
        refuse(len(data) - reader.position != n, "huffman: not as many stored bytes as it says")
        return reader.take(n)
    refuse(n == 0, "huffman: a code for nothing")
    last = reader.uint(1)
    bits, lengths, length = Bits(data[reader.position:]), {}, 0
    for byte in range(last + 1):
        zeros = 0
        while not bits.take(1):
            zeros += 1
        s = 1 << zeros | bits.take(zeros)
        length += s >> 1 if s & 1 else -(s >> 1)
        refuse(not 0 <= length <= 11, "huffman: a length below 0 or above 11")
        if length:
            lengths[byte] = length
    bits.pad()
    reader.position += bits.position // 8
    if not lengths:
        refuse(reader.position != len(data), "huffman: bytes behind the code of a single byte")
        return bytes([last]) * n
    refuse(last not in lengths, "huffman: last has no code")
    refuse(sum(2**(11 - length) for length in lengths.values()) != 2**11, "huffman: the code is not complete")
    codes = huffman_codes(lengths)
    if n <= 4096:
        parts, sizes = [n], [len(data) - reader.position]
    else:
        parts = []
        for start in range(0, n, 32768):
            m = min(32768, n - start)
            part = (m + 7) // 8
            parts += [max(0, min(part, m - s * part)) for s in range(8)]
        sizes = [reader.uint(2) for _ in parts]
    out = bytearray()
    for part, size in zip(parts, sizes):
        stream = Bits(reader.take(size))
        for _ in range(part):
            code = ""
            while code not in codes:
                code += str(stream.take(1))
            out.append(codes[code])
        stream.pad()
        refuse(stream.position != 8 * size, "huffman: a stream that is not used up")
    refuse(reader.position != len(data), "huffman: bytes behind the last stream")
    return bytes(out)


def varint_size(x):
    return max(1, (x.bit_length() + 6) // 7)


def fit_poly_bound(shape, fields):
    n, sides = shape.support, 1 if fields["sign"] else 2
    size, parts, knots = [(4, 12 * sides, 0), (4, 64 * sides, sides + 63 * sides * varint_size(n)), (2, 13 * sides + 2, 4)][fields["knots"]]
    return (-(-n // 8) if fields["sign"] else 4) + knots + size * min(n, parts * (fields["degree"] + 1))


def uniform_quant_bound(shape, _):
    n = shape.support * shape.width
    blocks = -(-n // 4096)
    return 9 + -(-n // 8) + VALUE_SIZE[shape.dtype] * n + (2 if blocks == 1 else 4 * blocks)


def table_bound(head):
    def bound(shape, _):
        n = shape.support * shape.width
        return head + -(-n // 8) + -(-11 * n // 8) + 28 * -(-n // 4096)
    return bound


def chunks_bound(shape, fields):
    r, chunks = shape.count, -(-shape.universe // fields["size"])
    e = min(chunks, 2 * r + 1)
    return 16 + 2 * e + min(chunks // 127, 4 * e) + r // 127 + 5 * r


BLOCK = (("block", 9, 13, 12),)
CODECS = {
    ("value", 1): Codec("value", "raw", decode=decode_value_raw, exact=True,
                        fixed=lambda shape, _: shape.support * shape.width * VALUE_SIZE[shape.dtype]),
    ("value", 2): Codec("value", "qsgd", (("levels", 1, 32767, 127), ("bucket", 1, 2**20, 512)), decode=decode_qsgd,
                        fixed=qsgd_size),
    ("value", 3): Codec("value", "fit_poly", (("degree", 0, 9, 5), ("knots", 0, 2, 0), ("sign", 0, 1, 0)), decode=decode_fit_poly,
                        reorders=True, width_one=True,
                        bound=fit_poly_bound),
    ("value", 4): Codec("value", "half", (("type", 0, 1, 0),), decode=decode_half, fixed=lambda shape, _: 2 * shape.support * shape.width),
    ("value", 5): Codec("value", "sketch", decode=decode_sketch,
                        bound=lambda shape, _: 1 + 4 * min(256, shape.support * shape.width) + shape.support * shape.width),
    ("value", 6): Codec("value", "three_lc", decode=decode_three_lc, bound=lambda shape, _: 4 + (shape.support * shape.width + 4) // 5),
    ("value", 7): Codec("value", "fit_dexp", (("sign", 0, 1, 0),), decode=decode_fit_dexp, reorders=True, width_one=True,
                        fixed=fit_dexp_size),
    ("value", 8): Codec("value", "rank_fit", (("bits", 1, 8, 4), ("degree", 0, 7, 5)), decode=decode_rank_fit, fixed=rank_fit_size),
    ("value", 9): Codec("value", "uniform_quant", decode=decode_uniform_quant, bound=uniform_quant_bound),
    ("value", 10): Codec("value", "log_quant", decode=decode_log_quant, bound=table_bound(45)),
    ("value", 11): Codec("value", "lloyd", decode=decode_lloyd, bound=table_bound(73)),
    ("value", 14): Codec("value", "natural", decode=decode_natural, fixed=lambda shape, _: 1 + shape.support * shape.width),
    ("value", 15): Codec("value", "dynamic_tree", decode=decode_dynamic_tree, fixed=lambda shape, _: 4 + shape.support * shape.width),
    ("value", 16): Codec("value", "inceptionn", (("fraction", 0, 127, 9),), decode=decode_inceptionn,
                         bound=lambda shape, _: (shape.support * shape.width + 3) // 4 + VALUE_SIZE[shape.dtype] * shape.support * shape.width),
    ("value", 12): Codec("value", "sign", (("means", 0, 2, 0), ("level", 1, 0x7f7fffff, 0x3f800000)), decode=decode_sign, fixed=sign_size),
    ("value", 13): Codec("value", "ternary", decode=decode_ternary, fixed=lambda shape, _: 4 + -(-shape.support * shape.width // 5)),
    ("order", 1): Codec("order", "bitpack", decode=decode_bitpack, fixed=bitpack_size),
    ("index", 1): Codec("index", "raw", decode=decode_index_raw, carries=True, fixed=lambda shape, _: 4 * shape.count),
    ("index", 2): Codec("index", "golomb", BLOCK + (("adaptive", 0, 1, 0),), decode=decode_split(golomb_parameter, True), bound=split_bound),
    ("index", 3): Codec("index", "rice", BLOCK, decode=decode_split(rice_parameter, False), bound=split_bound),
    ("index", 4): Codec("index", "bloom", (("policy", 0, 1, 0), ("k", 1, 64, 1), ("c", 1, MASK32, 1),
                                           ("seed", 0, MASK32, 0), ("choice", 0, 4, 0), ("layout", 0, 1, 0)),
                        decode=decode_bloom, replaces=True, fixed=bloom_size),
    ("index", 5): Codec("index", "bitmap", decode=decode_bitmap, fixed=lambda shape, _: (shape.universe + 7) // 8),
    ("index", 6): Codec("index", "rle", (("code", 0, 6, 0),), decode=decode_rle, bound=rle_bound),
    ("index", 7): Codec("index", "elias_fano", decode=decode_elias_fano, bound=elias_fano_bound),
    ("index", 8): Codec("index", "delta_varint", decode=decode_delta_varint,
                        bound=lambda shape, _: shape.count + sum(min(shape.count, shape.universe >> 7 * k) for k in range(1, 5))),
    ("index", 9): Codec("index", "delta_bitpack", decode=decode_delta_bitpack, bound=delta_bitpack_bound),
    ("index", 10): Codec("index", "seeded", decode=decode_seeded, replaces=True, fixed=lambda *_: 8),
    ("index", 11): Codec("index", "all", decode=decode_all, replaces=True, fixed=lambda *_: 0),
    ("index", 12): Codec("index", "gap_huffman", decode=decode_gap_huffman, bound=gap_huffman_bound),
    ("index", 13): Codec("index", "delta_pfor", decode=decode_delta_pfor, bound=delta_pfor_bound),
    ("index", 14): Codec("index", "block", (("log2_size", 1, 5, 3),)),
    ("bytes", 1): Codec("bytes", "deflate", unpack=inflate, grown=lambda b: b + (b >> 12) + (b >> 14) + (b >> 25) + 5 * (b >> 13) + 64),
    ("bytes", 2): Codec("bytes", "zstd", unpack=unzstd, grown=lambda b: b + (b >> 8) + (2**17 - b >> 11 if b < 2**17 else 0)),
    ("bytes", 3): Codec("bytes", "huffman", unpack=unhuffman, grown=lambda b: b + varint_size(2 * b + 1)),
    ("index", 15): Codec("index", "magnitude", decode=decode_magnitude, needs_base=True, width_one=True,
                         bound=lambda shape, f: 8 + split_bound(shape, {"block": 12})),
    ("index", 17): Codec("index", "chunks", (("size", 1, 32768, 4096),), decode=decode_chunks, bound=chunks_bound),
    ("index", 16): Codec("index", "history", decode=decode_history_index, needs_base=True, width_one=True,
                         bound=lambda shape, f: GRADES_MAX + 8 + split_bound(shape, {"block": 12})),
    ("value", 20): Codec("value", "history", decode=decode_history_value, needs_base=True, exact=True,
                         bound=lambda shape, _: GRADES_MAX + 1 + shape.support * shape.width * VALUE_SIZE[shape.dtype]),
    ("value", 17): Codec("value", "ulp", decode=decode_changes(apply_ulp), needs_base=True, exact=True,
                         bound=lambda shape, _: 1 + shape.support * shape.width * VALUE_SIZE[shape.dtype]),
    ("value", 19): Codec("value", "planes", decode=decode_planes, exact=True,
                         bound=lambda shape, _: planes_bound(shape.support * shape.width, VALUE_SIZE[shape.dtype])),
    ("value", 18): Codec("value", "xor", decode=decode_changes(lambda word, z, _: word ^ z), needs_base=True, exact=True,
                         bound=lambda shape, _: 1 + shape.support * shape.width * VALUE_SIZE[shape.dtype]),
}


# ---- stage lists ----

def read_stage(reader, role):
    number = reader.varint()
    # Reading: an id that no document names is Unsupported, not Corrupt; ids are counted for each role.
    codec = CODECS.get((role, number >> 1))
    if codec is None:
        raise Unsupported(f"{role} codec {number >> 1}")
    fields = {name: default for name, _, _, default in codec.fields}
    if number & 1:
        length = reader.uint(1)
        refuse(length == 0, f"{codec.name}: wire fields of no bytes")
        wire = Reader(reader.take(length))
        last = None
        for name, low, high, default in codec.fields:
            if wire.position == length:
                break
            fields[name] = wire.varint()
            refuse(not low <= fields[name] <= high, f"{codec.name}: {name} = {fields[name]}")
            last = fields[name] == default
        refuse(wire.position != length, f"{codec.name}: more wire fields than it has")
        refuse(last, f"{codec.name}: a last field that equals its default")
    return Stage(codec, fields)


def read_entry(reader):
    counts, kind = reader.uint(1), reader.uint(1)
    values, indices, orders = counts & 7, counts >> 3 & 7, counts >> 6
    types = WORDS if kind & 64 else TYPES
    unknown((kind & 15) > 3 and (kind & 15) not in types or kind >> 6 == 3, f"type {kind:#x}")
    unknown(not 1 <= values <= 5 or not 1 <= indices <= 5, f"{values} value and {indices} index codecs")
    refuse((kind & 15) not in types, f"type {kind & 15}")
    width = 1
    if kind & 32:
        width = reader.varint()
        refuse(width < 2, "a written width below 2")
    transform = None
    if kind & 128:
        form = reader.uint(1)
        unknown(form >> 4 != 1 or not 1 <= form & 15 <= 6, f"transform {form:#x}")
        transform = 1 << (form & 15), reader.varint()
        refuse(transform[1] > MASK32, "too many columns")
        refuse(kind & 15 != 1 or width != 1, "a transform of another type than f32, or of rows")
    entry = Entry(types[kind & 15], width, bool(kind & 16), [], [], [], patch=bool(kind & 64), transform=transform)
    for role, n in (("value", values), ("order", orders), ("index", indices)):
        stages = getattr(entry, role)
        for left in reversed(range(n)):
            stages.append(read_stage(reader, "bytes" if stages else role))
            if stages[0].codec.name == "block":
                refuse(entry.block > 1 or left == 0, "block before no other index codec")
                entry.block = 1 << stages.pop().fields["log2_size"]
    first = entry.value[0].codec
    if entry.patch:
        key = entry.index[0].codec
        refuse(not first.exact or entry.block > 1 or key.replaces and key.name != "all", "codecs that a patch does not support")
    else:
        refuse(first.needs_base or entry.index[0].codec.needs_base, "a codec that needs a base, but no patch")
    refuse(entry.carries and not (first.reorders and entry.index[0].codec.carries and entry.block == 1), "the keys cannot carry the order")
    refuse(bool(orders) != (first.reorders and not entry.carries), "an order list too many, or none")
    refuse(width != 1 and (first.width_one or entry.index[0].codec.width_one), f"a codec of rows of one value, width {width}")
    return entry


def is_fixed(stages):
    return all(stage.codec.fixed for stage in stages)


def replaces(entry):
    return entry.index[0].codec.replaces


def run_list(stages, data, shape):
    """Undoes the codecs of a list, the last one first."""
    limits = []                           # for each stage: (the size is exactly this, size)
    for stage in stages:
        codec = stage.codec
        if codec.role == "bytes":
            limits.append((False, codec.grown(limits[-1][1])))
        else:
            limits.append((bool(codec.fixed), (codec.fixed or codec.bound)(shape, stage.fields)))
    for stage, limit in zip(reversed(stages[1:]), reversed(limits[:-1])):
        data = stage.codec.unpack(data, *limit)
    return stages[0].codec.decode(data, shape, stages[0].fields)


# ---- headers ----

def settle_row(row, stored_support, stored):
    """Checks what a header stores of a row against the rules, and sets support and the sizes of its sections."""
    entry = row.entry
    refuse(row.mode == 1 and entry.patch, "a patch with raw indices")
    refuse(row.universe > MASK32, "universe above 2^32 - 1")
    refuse(row.count > row.universe, "count above universe")
    if row.mode == 2:
        refuse(stored_support, "a stored support in mode 2")
        row.support = row.universe
    else:
        row.support = row.count if stored_support is None else stored_support
        refuse(row.support > row.universe, "support above universe")
        refuse((row.mode == 1 or not replaces(entry)) and row.support != row.count, "support is not count")
        refuse(row.count == 0 and row.support, "support without count")
        refuse(row.count and row.support == 0, "count without support")
    shape = row.shape()
    if row.mode == 0 and row.count:
        refuse(any(n % entry.block not in (0, row.universe % entry.block) for n in (row.count, row.support)), "no whole blocks")
    for role in ("value", "order", "index"):
        stages = getattr(entry, role)
        used = stages and row.mode != 2 and row.count and not (role == "index" and row.mode == 1)
        # Reading: in a size column, the entry of a list of fixed size is 0.
        refuse(stored[role] and (not used or is_fixed(stages)), f"a stored {role} size where none belongs")
        shape_ = row.key_shape() if role == "index" else shape
        row.sizes[role] = stages[0].codec.fixed(shape_, stages[0].fields) if used and is_fixed(stages) else stored[role]
    if row.mode == 1:
        row.sizes["index"] = 4 * row.count
    if row.mode == 2:
        row.sizes["value"] = row.universe * entry.width * VALUE_SIZE[entry.dtype]
    return row


def read_short_header(reader, flags):
    refuse(flags & ~(SHORT | LIST | 112), f"flags {flags:#x}")
    unknown(flags >> 4 & 3 == 3, "mode 3")
    size = 2 if flags & 64 else 3
    universe, count = reader.uint(3), reader.uint(size)
    entry = read_entry(reader)
    support = reader.uint(size) if replaces(entry) else None
    stored = {role: 0 if is_fixed(getattr(entry, role)) else reader.uint(size) for role in ("value", "order", "index")}
    reader.zeros_to(4, "header")
    return [settle_row(Row(entry, flags >> 4 & 3, False, universe, count, 0, {}), support, stored)]


def read_general_header(reader, flags):
    """Returns status, tag, message, rows."""
    refuse(flags & ~(TAG | LIST | STATUS), f"flags {flags:#x}")
    n_rows, status, zero, table_size, widths = (reader.uint(size) for size in (4, 1, 1, 2, 4))
    refuse(zero, "byte 17 is not zero")
    tag = reader.uint(8) if flags & TAG else None
    if flags & STATUS:
        refuse(not 1 <= status <= 7, f"status {status}")
        refuse(n_rows or widths, "a status frame with rows")
        refuse(table_size > 255, "a message of more than 255 bytes")
        message = reader.take(table_size)
        reader.zeros_to(4, "header")
        return status, tag, message.decode("utf-8", errors="replace"), []
    refuse(status, "a status in a frame that is not a status frame")

    table = Reader(reader.take(table_size))
    nibbles = [widths >> 4 * i & 15 for i in range(8)]
    refuse(nibbles[0] not in (1, 2) or not 1 <= nibbles[1] <= 8 or max(nibbles[2:7]) > 8 or nibbles[7],
           f"column widths {widths:#x}")
    infos = reader.position + (8 * n_rows if n_rows != 1 else 0)
    unknown(any(info & 3 == 3 for info in reader.data[infos:infos + nibbles[0] * n_rows:nibbles[0]]), "mode 3")
    entries = []
    while table.position < table_size:
        entries.append(read_entry(table))
    refuse(n_rows and bool(nibbles[3]) != any(replaces(entry) for entry in entries), "the support column is missing or in excess")
    names = ["check", "info", "universe", "count", "support", "value", "order", "index"]
    columns = {}
    for name, width in zip(names, [8 if n_rows != 1 else 0] + nibbles):
        data = reader.take(width * n_rows)
        if width:
            columns[name] = [int.from_bytes(data[i:i + width], "little") for i in range(0, len(data), width)]
    reader.zeros_to(4, "header")

    rows = []
    for i in range(n_rows):
        stored = {name: column[i] for name, column in columns.items()}
        info = stored["info"]
        refuse(info >> 3 >= len(entries), f"entry {info >> 3} of a plan table of {len(entries)}")
        row = Row(entries[info >> 3], info & 3, bool(info & 4), stored["universe"], stored.get("count", 0), 0, {},
                  stored.get("check"))
        if row.continues:
            refuse(not rows, "the first row continues")
            before = rows[-1].entry
            refuse((before.dtype, before.width, before.patch) != (row.entry.dtype, row.entry.width, row.entry.patch),
                   "a continuing row of another type or width")
            refuse(row.entry.patch and rows[-1].universe % 4096, "a segment of a patch at no multiple of 4096 rows")
        refuse(rows and row.entry.patch != rows[0].entry.patch, "some rows are patches, and others are not")
        rows.append(settle_row(row, stored.get("support"), {role: stored.get(role, 0) for role in ("value", "order", "index")}))
    return 0, tag, "", rows


# ---- rows and frames ----

def check_of_words(words, dtype):
    data = b"".join(word.to_bytes(VALUE_SIZE[dtype], "little") for word in words)
    return check(data + bytes(-len(data) % 4))


def later_history(history, base, result, dtype):
    """The history after a patch that turns the words `base` into `result`."""
    out = []
    for h, old, new in zip(history, base, result):
        age = h & 31 and min((h & 31) + 1, 31)
        if old == new:
            out.append(h & 224 | age)
            continue
        stood = 0 if age in (0, 31) else 1 if age <= 3 else 2 if age <= 9 else 3
        bits = 8 * VALUE_SIZE[dtype]
        down = (in_order(new, dtype) - in_order(old, dtype)) % 2**bits >> bits - 1
        out.append(down << 7 | stood << 5 | 1)
    return out


def decode_patch(row, payload, base, history=None):
    entry, reader = row.entry, Reader(payload)
    expected, becomes = reader.uint(8), reader.uint(8)
    here = check_of_words(base, entry.dtype)
    if here != expected:
        raise WrongBase(f"the base has the check {here:#x}, the patch is for {expected:#x}")
    indices, values = decode_row(row, payload[16:], base, history)
    result, width = list(base), entry.width
    for j, i in enumerate(indices):
        result[i * width:(i + 1) * width] = values[j * width:(j + 1) * width]
    refuse(check_of_words(result, entry.dtype) != becomes, "the patch makes something else than its sender had")
    return indices, values


def decode_row(row, payload, base=None, history=None):
    """Returns the indices, ascending, and the bit patterns, width for each."""
    shape, entry, reader = row.shape(), row.entry, Reader(payload)
    shape.base, shape.history, width = base, history, entry.width
    value, order, index = (reader.take(row.sizes[role]) for role in ("value", "order", "index"))
    if row.mode == 2:
        return list(range(row.universe)), decode_value_raw(value, shape, {})
    if row.count == 0:
        return [], []
    if row.mode == 1:
        indices = decode_index_raw(index, shape, {})
    else:
        indices = expand(run_list(entry.index, index, replace(row.key_shape(), base=base, history=history)), entry.block, row.universe)
        refuse(len(indices) != row.support, "the blocks have another number of elements")
    if base is not None:
        shape.base = [word for i in indices for word in base[i * width:(i + 1) * width]]
        shape.history = history and [h for i in indices for h in history[i * width:(i + 1) * width]]
    values = run_list(entry.value, value, shape)
    if entry.carries:
        position_of = {key: i for i, key in enumerate(sorted(indices))}
        permutation = [position_of[key] for key in indices]
    elif entry.order:
        permutation = run_list(entry.order, order, shape)
    else:
        return indices, values
    placed = [0] * len(values)
    for j, position in enumerate(permutation):
        placed[position * width:(position + 1) * width] = values[j * width:(j + 1) * width]
    return sorted(indices), placed


def decode_frame(data, bases=(), histories=()):
    data = bytes(data)
    reader = Reader(data)
    refuse(reader.take(2) != b"DR", "does not begin with DR")
    version = reader.uint(1)
    if version != 1:
        raise Unsupported(f"version {version}")
    flags, stored_check = reader.uint(1), reader.uint(8)
    if flags & SHORT:
        status, tag, message, rows = 0, None, "", read_short_header(reader, flags)
    else:
        status, tag, message, rows = read_general_header(reader, flags)
    header_size = reader.position

    payloads = []
    for row in rows:
        start = reader.position
        reader.take(sum(row.sizes.values()) + (16 if row.entry.patch else 0))
        reader.zeros_to(4, "payload")
        payloads.append(data[start:reader.position])
    covered = reader.position if len(rows) == 1 else header_size
    refuse(check(without_check(data[:covered])) != stored_check, "the check of the header differs")
    refuse(any(row.check is not None and check(p) != row.check for row, p in zip(rows, payloads)),
           "the check of a row differs")

    tensors = []
    for row, payload in zip(rows, payloads):
        if not row.continues:
            tensors.append(Tensor(0, row.entry.width, row.entry.dtype))
        tensor = tensors[-1]
        if row.entry.patch:
            if len(bases) < len(tensors):
                raise ValueError(f"tensor {len(tensors) - 1} is a patch: its base is needed")
            begin, end = (k * row.entry.width for k in (tensor.universe, tensor.universe + row.universe))
            history = histories[len(tensors) - 1] if histories else None
            indices, values = decode_patch(row, payload, bases[len(tensors) - 1][begin:end], history and history[begin:end])
        else:
            indices, values = decode_row(row, payload)
        tensor.indices += [tensor.universe + i for i in indices]
        tensor.values += values
        tensor.universe += row.universe
        tensor.rows.append(row)
        refuse(row.entry.transform != tensor.rows[0].entry.transform, "a segment of another transform")
    for tensor in tensors:
        columns = tensor.rows[0].entry.transform[1] if tensor.rows[0].entry.transform else 0
        refuse(columns and tensor.universe % columns, "a matrix of no whole rows")
    return Frame(version, flags, tag, status, message, tensors, reader.position)


# ---- transforms: FORMAT.md ----

def pieces(n, size):
    """(first, length) of the pieces of a dimension."""
    out = [(first, size) for first in range(0, n - size + 1, size)]
    first = n - n % size
    while first < n:
        length = 1 << (n - first).bit_length() - 1
        out.append((first, length))
        first += length
    return out


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0] if abs(x) < 2.0**128 else math.copysign(math.inf, x)


def dct_factor(n, m, k, i):
    return f32(math.sqrt(2 / n) * math.cos(math.pi * (2 * k + 1) * (2 * i + 1) / (2 * m)))


def inverse_run(coefficients):
    """The values of a run, every product and sum rounded to f32."""
    n = len(coefficients)
    values, m = [f32(f32(math.sqrt(1 / n)) * coefficients[0])], 2
    while m <= n:
        odd = []
        for i in range(m // 2):
            total = None
            for k in range(m // 2):
                term = f32(dct_factor(n, m, k, i) * coefficients[(2 * k + 1) * (n // m)])
                total = term if total is None else f32(total + term)
            odd.append(total)
        values = [f32(e + o) for e, o in zip(values, odd)] + [f32(e - o) for e, o in reversed(list(zip(values, odd)))]
        m *= 2
    return values


def inverse(coefficients, size, columns):
    """The elements of a tensor of such coefficients."""
    if not columns:
        return [x for first, n in pieces(len(coefficients), size) for x in inverse_run(coefficients[first:first + n])]
    out, at = [0.0] * len(coefficients), 0
    tiles = list(itertools.product(pieces(len(coefficients) // columns, size), pieces(columns, size)))
    for (top, h), (left, w) in sorted(tiles, key=lambda t: t[0][1] < size or t[1][1] < size):     # (stable)
        tile, at = coefficients[at:at + h * w], at + h * w
        across = [inverse_run([tile[v * h + u] for v in range(w)]) for u in range(h)]
        for x in range(w):
            for y, value in enumerate(inverse_run([across[u][x] for u in range(h)])):
                out[(top + y) * columns + left + x] = value
    return out


def dense(tensor):
    """Bit patterns. Of coefficients the elements."""
    if tensor.rows and tensor.rows[0].entry.transform:
        found = inverse([to_double(bits, "f32") for bits in dense_coefficients(tensor)], *tensor.rows[0].entry.transform)
        return [0x7fc00000 if math.isnan(x) else struct.unpack("<I", struct.pack("<f", x))[0] for x in found]
    return dense_coefficients(tensor)


def dense_coefficients(tensor):
    out, width = [0] * (tensor.universe * tensor.width), tensor.width
    for j, i in enumerate(tensor.indices):
        out[i * width:(i + 1) * width] = tensor.values[j * width:(j + 1) * width]
    return out
