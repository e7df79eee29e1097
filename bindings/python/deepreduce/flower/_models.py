"""deepreduce.flower: models, which are arrays by name, in Flower's records; and what may be averaged with what."""

from __future__ import annotations

from typing import Dict, Iterable, List

import numpy
from flwr.app import Array, ArrayRecord
from .._native._types import DType

Model = Dict[str, Array]


def read(record: ArrayRecord) -> Model:
    return {name: array.numpy() for name, array in record.items()}


def write(model: Model) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in model.items()})


def copy(record: ArrayRecord) -> ArrayRecord:
    """Another record of the same arrays: an app may remove the arrays from the record that it receives."""
    return ArrayRecord(dict(record))


def difference(new: Model, old: Model, names: Iterable[str]) -> List[Array]:
    # (For arrays without a dimension numpy returns scalars.)
    return [numpy.asarray(numpy.subtract(new[name], old[name], dtype=numpy.float32)) for name in names]


def moved(model: Model, names: Iterable[str], by: Iterable[Array]) -> Model:
    """The model with differences added: the same bits on both sides."""
    found = {name: numpy.asarray(model[name] + move, model[name].dtype) for name, move in zip(names, by)}
    return {name: found.get(name, array) for name, array in model.items()}


def of_type(array: Array, dtype: DType) -> Array:
    """Converts an average to the model's type: an average of integers is of floats, and FedAdam's models are float64."""
    return numpy.asarray(numpy.rint(array) if array.dtype.kind == "f" and dtype.kind in "iu" else array, dtype)


def holds(dtype: DType, array: Array) -> bool:
    """Whether all numbers are finite in a type: 1e300 is infinite in float32, 2^62 in float16."""
    if dtype.kind in "iu":  # (the array may be of floats, and have a NaN)
        limits = numpy.iinfo(dtype)
        return bool(((array >= limits.min) & (array < limits.max + 1)).all())
    with numpy.errstate(over="ignore", invalid="ignore"):
        return dtype.kind not in "fc" or bool(numpy.isfinite(array.astype(dtype)).all())


def finite(model: Model, names: Iterable[str]) -> bool:
    return all(holds(model[name].dtype, model[name]) for name in names)


def same_kind(one: Model, other: Model) -> bool:
    return one.keys() == other.keys() and all(
        one[name].shape == other[name].shape and one[name].dtype == other[name].dtype for name in one
    )


def fits(one: Model, other: Model) -> bool:
    """Whether `one` can be averaged with `other`; an app may train in another type."""
    return one.keys() == other.keys() and all(
        array.shape == other[name].shape and array.dtype.kind in "fiu" + other[name].dtype.kind for name, array in one.items()
    )
