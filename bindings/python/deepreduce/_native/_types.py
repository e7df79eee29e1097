"""What annotations call what has more than one type."""

from __future__ import annotations

from typing import Any, Dict

import numpy

Array = numpy.ndarray[Any, Any]  # numpy's, of any shape and type
DType = numpy.dtype[Any]
Options = Dict[str, Any]  # keyword arguments of a call, by name
Json = Dict[str, Any]  # a document or a row, as json has it
