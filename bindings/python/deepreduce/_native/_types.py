"""Names for the annotations of values that may have several types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, Protocol

import numpy

if TYPE_CHECKING:
    from ._call import OneCall

Array = numpy.ndarray[Any, Any]  # numpy's, of any shape and type
DType = numpy.dtype[Any]
Tensor = Any  # an array of numpy, torch or CuPy, or one with DLPack, the buffer protocol or __cuda_array_interface__
DTypeLike = Any  # a type of elements, as numpy or the framework of an array accepts it
Weights = Any  # tensors by name, in the structure of the caller: a dict, a state_dict
Pointer = Any  # of ctypes: a pointer, or a struct or number that it accepts as one; an opaque handle
Structs = Any  # of ctypes: an array of structs, [n]
CType = Any  # of ctypes: a type in argtypes or restype
Options = Dict[str, Any]  # keyword arguments of a call, by name
Json = Dict[str, Any]  # a document or a row of json
SavedState = Dict[str, Any]  # of a state_dict: numbers, texts, arrays, tensors of bytes, and dicts and lists of these
SavedPart = Mapping[str, Any]  # the same, read only


class Locked(Protocol):
    """An object that allows one call at a time."""

    lock: OneCall
