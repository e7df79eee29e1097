"""Codecs written in Python, to be compared with the library's own before anybody writes C++.

    import numpy, deepreduce.codec

    @deepreduce.codec.index("gaps")
    class Gaps:
        def encode(self, indices, universe):
            return deepreduce.codec.varints(numpy.diff(indices, prepend=-1) - 1)

        def decode(self, data, count, universe):
            return numpy.cumsum(deepreduce.codec.from_varints(data) + 1) - 1

From then on plans of deepreduce.compare may say `index=gaps`, and those of `deepreduce compare --python-codec FILE`, too.
Frames never hold such a codec: encode and decode do not know it. docs/PYTHON_CODEC.md goes on to the same codec in C++.

index, value   register a codec
check          whether a codec keeps what it promises; compare does it, too
varints, from_varints   LEB128, which many codecs want
"""

from .comparing import compare
from .comparing._codecs import Broken, Registered, check, from_varints, index, registered, value, varints

__all__ = ["Broken", "Registered", "check", "compare", "from_varints", "index", "registered", "value", "varints"]
