"""What annotations call what has more than one type."""

from __future__ import annotations

import threading
from typing import Any, Dict, Mapping, Protocol

import numpy

Array = numpy.ndarray[Any, Any]  # numpy's, of any shape and type
DType = numpy.dtype[Any]
Tensor = Any  # an array of a framework: numpy, torch, CuPy, or one that speaks DLPack, buffers or __cuda_array_interface__
DTypeLike = Any  # what numpy, or the framework of an array, takes for a type
Weights = Any  # tensors by name, in the structure that the caller gave: a dict, a state_dict
Pointer = Any  # of ctypes: a pointer, or a struct or number that it takes for one; an opaque handle
Structs = Any  # of ctypes: an array of structs, [n]
CType = Any  # a type of ctypes, as argtypes and restype have them
Options = Dict[str, Any]  # keyword arguments of a call, by name
Json = Dict[str, Any]  # a document or a row, as json has it
SavedState = Dict[str, Any]  # of state_dict: numbers, texts, arrays and tensors of bytes, and dicts and lists of these
SavedPart = Mapping[str, Any]  # the same, to be read


class Locked(Protocol):
    """An object that serves one call at a time."""

    lock: threading.Lock
