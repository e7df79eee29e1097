"""Codecs written in Python, to compare them with the library's own before writing C++.

    import numpy, deepreduce.codec

    @deepreduce.codec.index("gaps")
    class Gaps:
        def encode(self, indices, universe):
            return deepreduce.codec.varints(numpy.diff(indices, prepend=-1) - 1)

        def decode(self, data, count, universe):
            return numpy.cumsum(deepreduce.codec.from_varints(data) + 1) - 1

Then plans of deepreduce.compare, and of `deepreduce compare --python-codec FILE`, may contain `index=gaps`. Frames never
contain such a codec: encode and decode do not know it. docs/PYTHON_CODEC.md continues with the same codec in C++.

index, value   register a codec
check          tests whether a codec does what it declares; compare runs it, too
varints, from_varints   LEB128, which many codecs use
"""

from .comparing import compare
from .comparing._codecs import Broken, Registered, check, from_varints, index, registered, value, varints

__all__ = ["Broken", "Registered", "check", "compare", "from_varints", "index", "registered", "value", "varints"]
