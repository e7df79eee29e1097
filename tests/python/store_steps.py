"""Weights of a small model from step to step, and stores of them."""

import hashlib

import numpy

from deepreduce.patch import _store_files
from deepreduce.patch import Store


def model(seed=0):
    rng = numpy.random.default_rng(seed)
    return {
        "embed": rng.normal(0, 0.02, (400, 64)).astype(numpy.float32),
        "half": rng.normal(0, 0.02, 5000).astype(numpy.float16),
        "count": numpy.zeros((), numpy.int64),
    }


def step_on(weights, step, share=0.01):
    rng = numpy.random.default_rng(step)
    for name in ("embed", "half"):
        x = weights[name]
        where = rng.random(x.shape) < share
        x[where] = (x[where] * 1.01 + 1e-5).astype(x.dtype)
    weights["count"] += 1


def digest(weights):
    made = hashlib.sha256()
    for name in sorted(weights):
        made.update(weights[name].tobytes())
    return made.hexdigest()


def copied(weights):
    return {name: x.copy() for name, x in weights.items()}


def written(folder, steps, anchor_every=64, begin=0):
    """The sender's digests of so many steps that were put."""
    weights, digests = model(), {}
    with Store(folder, anchor_every=anchor_every) as store:
        for step in range(begin + steps):
            if step:
                step_on(weights, step)
            if step >= begin:
                store.put(step, weights)
                digests[step] = digest(weights)
    return digests


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != _store_files.LOCK)
