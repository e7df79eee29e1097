"""What annotations call what has more than one type."""

from __future__ import annotations

from typing import Any, Dict, Mapping

import numpy

Array = numpy.ndarray[Any, Any]  # numpy's, of any shape and type
DType = numpy.dtype[Any]
Tensor = Any  # an array of a framework: numpy, torch, CuPy, or one that speaks DLPack, buffers or __cuda_array_interface__
Pointer = Any  # of ctypes: a pointer or byref to a struct or number that the library writes to
Options = Dict[str, Any]  # keyword arguments of a call, by name
Json = Dict[str, Any]  # a document or a row, as json has it
SavedState = Dict[str, Any]  # of state_dict: numbers, texts, arrays and tensors of bytes, and dicts and lists of these
SavedPart = Mapping[str, Any]  # the same, to be read
