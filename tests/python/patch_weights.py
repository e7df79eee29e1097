"""Weights of a small model, and a step of its training."""

import numpy


def weights():
    """Three tensors of a model, normal weights of float32."""
    rng = numpy.random.default_rng(3)
    return {
        "embed": rng.normal(0, 0.02, (300, 32)).astype(numpy.float32),
        "layer.0": rng.normal(0, 0.02, (64, 64)).astype(numpy.float32),
        "bias": rng.normal(0, 0.02, 7).astype(numpy.float32),
    }


def stepped(model, seed=0):
    """The model after a step: some elements of each tensor differ, the first among them."""
    rng, new = numpy.random.default_rng(seed), {}
    for name, x in model.items():
        where = rng.random(x.shape) < 0.02
        where.reshape(-1)[0] = True
        new[name] = numpy.where(where, x * numpy.float32(1.001) + numpy.float32(1e-6), x).astype(x.dtype)
    return new


def bits(model):
    return {name: x.tobytes() for name, x in model.items()}


def copied(model):
    return {name: x.copy() for name, x in model.items()}
