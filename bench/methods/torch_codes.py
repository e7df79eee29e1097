"""Compression methods in plain torch, as a user of torch writes them from the papers: what ours are timed beside.

A code's encode(x) returns the tensors that would be sent, decode(tensors, d) the dense [d] float32. Nothing is packed below
a byte, as in GRACE: signs and ternaries travel as 8 bits, an element of a sparse tensor as 4 bytes of value and 4 of index.
"""

import functools
import math
from dataclasses import dataclass
from typing import Callable, Dict, Tuple

import torch

Parts = Tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Code:
    """exact: two runs, and ours, decode to the same; else only in distribution."""

    encode: Callable[[torch.Tensor], Parts]
    decode: Callable[[Parts, int], torch.Tensor]
    exact: bool = False


def size_of(parts: Parts) -> int:
    """Bytes that travel."""
    return sum(part.numel() * part.element_size() for part in parts)


# ---- sparsifiers: the share RATIO of the elements -----------------------------------------------------------------

RATIO = 0.01


def sparse_decode(parts: Parts, d: int) -> torch.Tensor:
    values, indices = parts
    return torch.zeros(d).index_put_((indices.long(),), values)


def top_encode(x: torch.Tensor) -> Parts:
    indices = torch.topk(x.abs(), max(1, int(RATIO * len(x))), sorted=False).indices
    return x[indices], indices.int()


def dgc_encode(x: torch.Tensor) -> Parts:
    """Lin et al. 2017: the threshold of a sample of 1 %, mended until 0.7 to 1.3 times the share is kept, ten times at most."""
    size, target = x.abs(), RATIO * len(x)
    sample = size[torch.randint(len(x), (max(1, len(x) // 100),))]
    threshold = torch.topk(sample, max(1, int(RATIO * len(sample))), sorted=False).values.min()
    selected = size >= threshold
    for _ in range(10):
        count = int(selected.sum())
        if 0.7 * target <= count <= 1.3 * target:
            break
        threshold = threshold * (1.3 if count > target else 0.7)
        selected = size >= threshold
    indices = selected.nonzero().flatten()
    return x[indices], indices.int()


# ---- quantisers ---------------------------------------------------------------------------------------------------

LEVELS, BUCKET = 127, 512  # of QSGD


def qsgd_encode(x: torch.Tensor) -> Parts:
    """Alistarh et al. 2017: |x| LEVELS / (norm of its bucket), rounded up with the probability of its fraction."""
    rows = torch.nn.functional.pad(x, (0, -len(x) % BUCKET)).view(-1, BUCKET)
    norms = rows.norm(dim=1, keepdim=True)
    levels = rows.abs() * (LEVELS / norms).nan_to_num(posinf=0.0)
    low = levels.floor()
    low += torch.rand_like(low) < levels - low
    return (low * rows.sign()).to(torch.int8).flatten()[: len(x)], norms.flatten()


def qsgd_decode(parts: Parts, d: int) -> torch.Tensor:
    codes, norms = parts
    rows = torch.nn.functional.pad(codes, (0, -d % BUCKET)).view(-1, BUCKET)
    return (rows * (norms / LEVELS).unsqueeze(1)).flatten()[:d]


def ternary_encode(x: torch.Tensor) -> Parts:
    """Wen et al. 2017: clipped to 2.5 standard deviations; a sign with probability |x| / max |x|, else 0."""
    limit = 2.5 * x.std(correction=0)
    clipped = x.clamp(-limit, limit)
    scale = clipped.abs().max()
    nonzero = torch.rand_like(clipped) * scale < clipped.abs()
    return (clipped.sign() * nonzero).to(torch.int8), scale.view(1)


def onebit_encode(x: torch.Tensor) -> Parts:
    """Seide et al. 2014: the mean of the negatives, the mean of the others."""
    negative = x < 0
    return negative.byte(), torch.stack([x[negative].mean(), x[~negative].mean()])


def onebit_decode(parts: Parts, d: int) -> torch.Tensor:
    return torch.where(parts[0].bool(), parts[1][0], parts[1][1])


def sign_encode(x: torch.Tensor) -> Parts:
    return ((x >= 0).byte(),)


def sign_decode(parts: Parts, d: int) -> torch.Tensor:
    return parts[0].float() * 2 - 1


NATURAL_BASE = 109  # codes 1 to 127 are 2^-108 to 2^18, 0 is zero


def natural_encode(x: torch.Tensor, nearest: bool = False) -> Parts:
    """Horvath et al. 2019: a power of two, up with probability |x| / 2^e - 1; a byte of sign and exponent."""
    mantissa, exponent = torch.frexp(x.abs())  # |x| = mantissa 2^exponent, 0.5 <= mantissa < 1
    up = mantissa >= 0.75 if nearest else torch.rand_like(mantissa) < 2 * mantissa - 1
    code = (exponent - 1 + up + NATURAL_BASE).clamp(0, 127) * (x != 0)
    return ((code + 128 * (x < 0)).byte(),)


def natural_decode(parts: Parts, d: int) -> torch.Tensor:
    code = parts[0].int()
    exponent = code & 127
    size = ((exponent - NATURAL_BASE + 127) << 23).view(torch.float32) * (exponent != 0)  # a float32's own exponent
    return torch.where(code >= 128, -size, size)


def half_encode(x: torch.Tensor) -> Parts:
    return (x.half(),)


def half_decode(parts: Parts, d: int) -> torch.Tensor:
    return parts[0].float()


@functools.cache
def dynamic_tree() -> torch.Tensor:
    """[128] Dettmers 2015, ascending: 0, and for n = 0 to 6 zero bits, which are 10^-n, the middles of 2^(6-n) equal parts
    of [0.1, 1)."""
    values = [0.0]
    for zeros in range(7):
        edges = torch.linspace(0.1, 1.0, 2 ** (6 - zeros) + 1, dtype=torch.float64)
        values += ((edges[1:] + edges[:-1]) / 2 * 10.0**-zeros).tolist()
    return torch.tensor(sorted(values), dtype=torch.float32)


def tree_encode(x: torch.Tensor) -> Parts:
    scale = x.abs().max()
    table = dynamic_tree()
    codes = torch.bucketize(x.abs() / scale, (table[1:] + table[:-1]) / 2)
    return (codes * x.sign()).to(torch.int8), scale.view(1)


def tree_decode(parts: Parts, d: int) -> torch.Tensor:
    codes, scale = parts[0].int(), parts[1]
    return dynamic_tree()[codes.abs()] * codes.sign() * scale


# ---- low rank -----------------------------------------------------------------------------------------------------

RANK = 4


def matrix_shape(d: int) -> Tuple[int, int]:
    """The most square one of d elements."""
    n = next(n for n in range(math.isqrt(d), 0, -1) if d % n == 0)
    return n, d // n


@functools.cache
def start_of(m: int) -> torch.Tensor:
    """[m, RANK] PowerSGD's Q before the first step."""
    return torch.randn(m, RANK, generator=torch.Generator().manual_seed(1))


def power_encode(x: torch.Tensor) -> Parts:
    """Vogels et al. 2019, one step from start_of: P = orth(M Q), Q = M^T P."""
    matrix = x.view(matrix_shape(len(x)))
    p = torch.linalg.qr(matrix @ start_of(matrix.shape[1])).Q
    return p, matrix.T @ p


def power_decode(parts: Parts, d: int) -> torch.Tensor:
    return (parts[0] @ parts[1].T).flatten()


# By names of bench/train/grace_methods.py.
CODES: Dict[str, Code] = {
    "half": Code(half_encode, half_decode, exact=True),
    "topk": Code(top_encode, sparse_decode, exact=True),
    "dgc": Code(dgc_encode, sparse_decode),
    "qsgd": Code(qsgd_encode, qsgd_decode),
    "terngrad": Code(ternary_encode, lambda parts, d: parts[0] * parts[1]),
    "onebit": Code(onebit_encode, onebit_decode, exact=True),
    "signsgd": Code(sign_encode, sign_decode, exact=True),
    "efsignsgd": Code(
        lambda x: (*sign_encode(x), x.abs().mean().view(1)), lambda parts, d: sign_decode(parts, d) * parts[1], exact=True
    ),
    "natural": Code(natural_encode, natural_decode),
    "natural_nearest": Code(lambda x: natural_encode(x, nearest=True), natural_decode, exact=True),
    "8bit": Code(tree_encode, tree_decode, exact=True),
    "powersgd4": Code(power_encode, power_decode),
}
