"""What sparsifiers select, in plain Python: `values` are bit patterns of a type, results ascending positions.

Written from codecs/sparsify/*/SPEC.md, FORMAT.md (Random numbers) and REGISTRY.md, without a look at the code.
"""

import math

from decoder import EXPONENT_BITS, MANTISSA_BITS, MASK64, PHI, mix64, round_to, to_double

IDS = {"none": 0, "topr": 1, "threshold": 2, "random": 3, "dgc": 4, "blocks": 5, "adaq": 6, "changed": 7, "chunks": 8, "visible": 9}


def magnitudes(values, dtype):
    """Bit patterns without their sign: they order as the numbers do, NaN above infinity."""
    mask = (1 << EXPONENT_BITS[dtype] + MANTISSA_BITS[dtype]) - 1
    return [v & mask for v in values]


def combine(key, part):
    return mix64((key ^ part) + PHI & MASK64)


def draw(key, i):
    return mix64(key + (i + 1) * PHI & MASK64)


def key_of(sparsifier, seed, step=0, tensor=0):
    return combine(combine(combine(combine(0, seed), step), tensor), IDS[sparsifier])


def target(d, ratio=0, count=0):
    """How many of d to select: at least one. 1e-9, for 0.1 · 30 is below 3 in binary."""
    return min(d, count) if count else min(d, max(1, math.floor(ratio * d + 1e-9)))


def none(values, dtype):
    return [i for i, m in enumerate(magnitudes(values, dtype)) if m]


def topr(values, dtype, **how_many):
    m = magnitudes(values, dtype)
    order = sorted(none(values, dtype), key=lambda i: -m[i])  # stable: ties by lower index
    return sorted(order[:target(len(values), **how_many)])


def chunks(values, dtype, size=4096, **how_many):
    whole = target(size, **how_many)
    out = []
    for at in range(0, len(values), size):
        part = values[at:at + size]
        out += [at + i for i in topr(part, dtype, count=max(1, whole * len(part) // size))]
    return out


def threshold(values, dtype, value):
    m = magnitudes(values, dtype)
    return [i for i in none(values, dtype) if not to_double(m[i], dtype) < value]  # so NaN, too


def adaq(values, dtype, ratio):
    m = magnitudes(values, dtype)
    signs = [[i for i in none(values, dtype) if (values[i] != m[i]) == below] for below in (False, True)]
    return sorted(i for side in signs if side
                  for i in sorted(side, key=lambda i: -m[i])[:target(len(side), ratio)])  # stable: ties by lower index


def energy(numbers, block):
    """f32 sum of squares of f32 numbers: halves are added until one is left. (Sums and products of two f32 in f64, rounded, are f32's own.)"""
    t = [to_double(round_to(x * x, "f32"), "f32") for x in numbers] + [0.0] * (block - len(numbers))
    while len(t) > 1:
        half = len(t) // 2
        t = [to_double(round_to(a + b, "f32"), "f32") for a, b in zip(t[:half], t[half:])]
    return t[0]


def blocks(values, dtype, block, ratio=0, count=0):
    """For finite values and a known size."""
    d = len(values)
    numbers = [to_double(v, dtype) for v in values]
    energies = [energy(numbers[i:i + block], block) for i in range(0, d, block)]
    count_of_blocks = -(-count // block) if count else max(1, math.floor(ratio * d / block + 1e-9))
    order = sorted((b for b, e in enumerate(energies) if e), key=lambda b: -energies[b])  # stable: ties by lower index
    return [i for b in sorted(order[:count_of_blocks]) for i in range(b * block, min(d, (b + 1) * block))]


def random(values, dtype, key, **how_many):
    d = len(values)
    count = target(d, **how_many)
    others = count > d // 2
    drawn = set()
    i = 0
    while len(drawn) < (d - count if others else count):
        drawn.add(draw(key, i) * d >> 64)
        i += 1
    return [i for i in range(d) if (i in drawn) != others]


def dgc(values, dtype, key, ratio, sample=0.01, corrections=10):
    m, d, count = magnitudes(values, dtype), len(values), target(len(values), ratio)
    sampled = min(d, max(1024, math.floor(sample * d + 1e-9)))
    if sampled == d or count == d:
        return topr(values, dtype, count=count)
    stretch = [d * i // sampled for i in range(sampled + 1)]
    drawn = [m[a + draw(key, i) % (b - a)] for i, (a, b) in enumerate(zip(stretch, stretch[1:]))]
    low = max(1, sorted(drawn, reverse=True)[max(1, count * sampled // d) - 1])

    def reached():
        return [i for i in range(d) if m[i] >= low]

    infinity = ((1 << EXPONENT_BITS[dtype]) - 1) << MANTISSA_BITS[dtype]
    if corrections == 0:
        return reached()
    for _ in range(corrections):
        if len(reached()) >= count - 3 * count // 10 or low == 1:
            break
        threshold = 0.7 * to_double(min(low, infinity - 1), dtype)
        low = round_to(threshold, dtype)
        low += to_double(low, dtype) < threshold  # the smallest number that is not below it
    return topr(values, dtype, count=count) if len(reached()) > count + 3 * count // 10 else reached()


def visible(values, weights, dtype, of="bf16", rate=1.0):
    """The indices that move a weight to another number of type `of`, or are not finite. Products and differences are of f32."""
    def f32(x):
        return to_double(round_to(x, "f32"), "f32")
    selected, infinity = [], ((1 << EXPONENT_BITS[dtype]) - 1) << MANTISSA_BITS[dtype]
    for i, (m, v, w) in enumerate(zip(magnitudes(values, dtype), values, weights)):
        old = to_double(w, dtype)
        before = round_to(old, of)
        after = round_to(f32(old - f32(f32(rate) * to_double(v, dtype))), of) if m < infinity else before
        if m >= infinity or before != after and (before | after) & 0x7fff:
            selected.append(i)
    return selected


def changed(values, base, width=1):
    """Rows of bit patterns that differ from those of a base."""
    return [i for i in range(len(values) // width) if values[i * width:(i + 1) * width] != base[i * width:(i + 1) * width]]
