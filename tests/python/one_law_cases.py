"""One law for named tensors: the cases of test_one_law.py, and their means by numpy, for any way of sending.

All is in float32 here, in values that the tensors' types have; an adapter of the test makes arrays of its own of them. Needs no framework.
"""

import dataclasses
import zlib
from typing import Any, Callable, Dict, Optional

import numpy as np

import deepreduce

LARGE = {"w": ((40, 50), "float32"), "small": ((10,), "float32")}


@dataclasses.dataclass
class Case:
    """A few steps of data-parallel training.

    tensors    {name: (shape, dtype)}
    gradient   f(step, rank, name) → float32 of the shape
    expected   f(case, ranks, numbers) → [step]{name: float32 array}: the means. numbers: the ranks' private seeds
    below, flat  the options `dense_below` and `flat`
    atol       how far off a mean may be; 0: not a bit
    """

    tensors: Dict[str, Any]
    plan: str
    gradient: Callable[..., Any]
    expected: Callable[..., Any]
    steps: int = 3
    below: Optional[int] = None
    flat: Optional[bool] = None
    atol: float = 0

    def gradients(self, step, rank):
        return {name: self.gradient(step, rank, name).reshape(shape) for name, (shape, _) in self.tensors.items()}

    def means(self, ranks, numbers=None):
        return self.expected(self, ranks, range(ranks) if numbers is None else numbers)


def rounded(x, dtype):
    """The nearest value of a type, ties to even."""
    x = np.asarray(x, np.float32)
    if dtype == "float16":
        return x.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = x.view(np.uint32).astype(np.uint64)
        return (((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)
    return x


def random(case_or_tensors, scale=1.0):
    """Gradients that differ from step to step, rank to rank, and name to name."""

    def gradient(step, rank, name):
        shape, dtype = case_or_tensors[name]
        seed = zlib.crc32(name.encode())
        return rounded(scale * np.random.default_rng([step, rank, seed]).laplace(size=shape).astype(np.float32), dtype)

    return gradient


def mean(arrays, dtype="float32"):
    """Added in the order of the ranks in float32, and rounded once."""
    total = np.zeros(arrays[0].shape, np.float32)
    for x in arrays:
        total += np.float32(1 / len(arrays)) * x
    return rounded(total, dtype)


def top(x, count):
    selected_values, where = np.zeros_like(x), np.argsort(-np.abs(x), kind="stable")[:count]
    selected_values[where] = x[where]
    return selected_values


def selected(together, exactly=(), count=40, beta=1.0, gamma=1.0):
    """The means of Top-r with a residual. together: lists of names that are one tensor. exactly: names of tensors that are sent whole."""

    def expected(case, ranks, numbers):
        residuals, found = {}, []
        for step in range(case.steps):
            sent = [{} for _ in range(ranks)]
            for rank in range(ranks):
                given = case.gradients(step, rank)
                for names in together:
                    whole = np.concatenate([given[name].ravel() for name in names]) * np.float32(gamma)
                    whole = whole + np.float32(beta) * residuals.get((rank, *names), np.float32(0))
                    selected_values = top(whole, count)
                    residuals[(rank, *names)] = whole - selected_values
                    ends = np.cumsum([given[name].size for name in names])[:-1]
                    sent[rank].update(zip(names, np.split(selected_values, ends)))
                sent[rank].update({name: np.float32(gamma) * given[name].ravel() for name in exactly})
            shapes = {name: shape for name, (shape, _) in case.tensors.items()}
            found.append({name: mean([parts[name] for parts in sent]).reshape(shape) for name, shape in shapes.items()})
        return found

    return expected


def plainly(case, ranks, numbers):
    """The means of an exact plan."""
    return [
        {name: mean([case.gradients(step, rank)[name] for rank in range(ranks)], dtype) for name, (_, dtype) in case.tensors.items()}
        for step in range(case.steps)
    ]


def drawn(case, ranks, numbers):
    """The means of frames by the function `encode`, tensor by tensor, with the key of its name."""
    found = []
    for step in range(case.steps):
        found.append({})
        for name in case.tensors:
            frames = [
                deepreduce.encode(
                    case.gradients(step, rank)[name], case.plan, step=step, private_seed=number, key=zlib.crc32(name.encode()) + 1
                )
                for rank, number in enumerate(numbers)
            ]
            found[-1][name] = mean([deepreduce.decode(frame).reshape(case.tensors[name][0]) for frame in frames])
    return found


def clipped(case, ranks, numbers):
    """The means of gradients clipped by the norm of a rank's whole gradient, over all frames."""
    found = []
    for step in range(case.steps):
        scaled = []
        for rank in range(ranks):
            given = case.gradients(step, rank)
            norm = np.sqrt(sum(float((array.astype(np.float64) ** 2).sum()) for array in given.values()))
            assert norm > 1
            scaled.append({name: (array / norm).astype(np.float32) for name, array in given.items()})
        found.append({name: mean([gradients[name] for gradients in scaled]) for name in case.tensors})
    return found


def voted(case, ranks, numbers):
    """A rank votes 1 for a value that is not below zero, else -1; a tie is 1."""
    return [
        {
            name: np.where(sum(np.where(case.gradients(step, rank)[name] >= 0, 1, -1) for rank in range(ranks)) >= 0, 1, -1).astype("f")
            for name in case.tensors
        }
        for step in range(case.steps)
    ]


TOP = "sparsify=topr(count=40) feedback=residual index=golomb value=raw"
TWO = {"v": ((40, 30), "float32"), "w": ((40, 50), "float32")}
TYPES = {"a": ((2000,), "float32"), "b": ((1500,), "float16")}
BF16 = {"w": ((3000,), "bfloat16")}
ONE = {"w": ((2000,), "float32")}

MATRIX = {"m": ((40, 50), "float32"), "small": ((10,), "float32")}


def product(step, rank, name):
    """A matrix of rank 1, equal on all ranks but for a factor."""
    x = random(MATRIX)(step, 0, name)
    return x if name == "small" else np.float32(0.01 * (rank + 1)) * np.outer(x[:, 0], x[0]).astype("f")


# Sparse rows of a table [60, 4]: how many differs from step to step and rank to rank.
ROWS_SHAPE, ROWS_STEPS = (60, 4), 3


def rows(step, rank):
    """(indices, values)"""
    draw = np.random.default_rng([step, rank, 60])
    at = np.sort(draw.choice(60, size=draw.integers(0, 20), replace=False)).astype(np.int64)
    return at, draw.standard_normal((len(at), 4)).astype("f")


def mean_of_rows(step, ranks):
    """(the union of the ranks' indices, the mean of the table)"""
    total, union = np.zeros(ROWS_SHAPE, "f"), set()
    for rank in range(ranks):
        at, values = rows(step, rank)
        total[at] += np.float32(1 / ranks) * values
        union |= set(at.tolist())
    return sorted(union), total


CASES = {
    "small tensors have the weight of the gradient": Case(
        LARGE, "sparsify=topr(count=40) feedback=residual(beta=0.5,gamma=0.5) index=golomb value=raw",
        lambda step, rank, name: np.ones(10, "f") if name == "small" else random(LARGE)(step, rank, name),
        selected([["w"]], ["small"], beta=0.5, gamma=0.5), below=1000,
    ),
    "below dense_below tensors travel exactly": Case(LARGE, TOP, random(LARGE), selected([["w"]], ["small"]), below=1000),
    "tensors of a plan that sparsifies are one": Case(TWO, TOP, random(TWO), selected([["v", "w"]])),
    "unless flat says that they are not": Case(TWO, TOP, random(TWO), selected([["v"], ["w"]]), below=0, flat=False),
    "random numbers go by name": Case(TWO, "index=all value=qsgd(levels=3)", random(TWO), drawn),
    "wherever the tensor stands": Case(ONE, "index=all value=qsgd(levels=3)", random(ONE), drawn),
    "a clip is of the norm of all frames": Case(
        TYPES, "feedback=dgc(clip=1,momentum=0) index=all value=raw", random(TYPES), clipped, atol=1e-4
    ),
    "votes are counted, and a tie is one": Case(LARGE, "signsgd", random(LARGE), voted),
    "values as halves are near the mean": Case(ONE, "index=all value=half feedback=residual", random(ONE), plainly, atol=0.05),
    "factors of a gradient of rank 1 are its mean": Case(
        MATRIX, "transform=lowrank(rank=2) feedback=residual", product, plainly, atol=1e-4
    ),
    "halves are rounded once": Case(BF16, "index=all value=raw", random(BF16), plainly),
}  # fmt: skip

# What fails, and the rank that is at fault: 1. gradients(step, rank) of NAN has a NaN there at step 1.
NAN = Case(
    ONE, "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=log_quant",
    lambda step, rank, name: np.where(np.arange(2000) == 7, np.nan if (step, rank) == (1, 1) else 1, random(ONE)(step, rank, name)).astype("f"),
    plainly,
)  # fmt: skip
STEP = Case(ONE, TOP, random(ONE), plainly)
