"""DeepReduce: sparse gradient compression.

A gradient is sparsified (or arrives sparse), its indices and values are coded, and what comes out is a frame:
bytes that any rank can decode. A plan, one line of text, says what is done. Examples here and below assume
`import numpy, deepreduce`.

>>> gradient = numpy.linspace(-1, 1, 1000, dtype=numpy.float32)
>>> plan = "sparsify=topr(ratio=0.01) index=golomb value=qsgd(levels=127)"
>>> frame = deepreduce.encode(gradient, plan, step=1, private_seed=0)
>>> gradient.nbytes, len(frame) < 100
(4000, True)
>>> deepreduce.decode(frame).shape
(1000,)

encode, decode, merge   tensors to frames and back; of arrays on a GPU, to a DeviceFrame there
Batch                   the same, prepared for tensors of known shapes; Batch.bind binds it to arrays, a Bound
Sender                  one rank's side of the exchange of many named tensors; adapters of frameworks are made of it
inspect, frame_size     what a frame holds, and where it ends
Plan, codecs            what can be done; Plan.stages says it, each a Stage; load_plugin adds to it
presets                 plans of the literature: their names stand for plans everywhere
State                   what feedback keeps from step to step
Sparse                  a sparse tensor
compare                 what plans do to gradients: bytes, errors and times, a row each
codec                   codecs written in Python, for compare alone
patch                   weights that changed, exactly: what takes the weights that a receiver has to new ones
book                    plan books: files that say which tensor has which plan
Error                   base of the exceptions
torch                   frames over torch.distributed: DDP, FSDP2, loops. Of its own: import deepreduce.torch
outer                   outer loops: what weights moved in many steps, over slow links. Of its own: import deepreduce.outer
jax, keras, flower, lightning, accelerate   the same for these frameworks (docs/FRAMEWORKS.md), each of its own

The library is loaded on first use: from the environment's DEEPREDUCE_LIBRARY, from beside this package, or from
the system. Plans and functions serve all threads at once; every other object serves one call at a time (docs/PYTHON.md).
"""

from . import book, codec, patch
from ._native._abi import DR_VERSION_STRING as __version__
from ._native._call import Trace, trim
from .batch import Batch
from .bound import Bound
from .comparing import compare
from .decoding import decode
from .encoding import encode
from .errors import (
    ArgumentError,
    CapacityError,
    ConcurrentUse,
    CorruptFrame,
    DeviceError,
    Error,
    InternalError,
    LibraryError,
    MissingRank,
    OutOfMemory,
    OutOfStep,
    PeerError,
    Unsupported,
    WrongBase,
)
from .frame import DeviceFrame
from .header import Frame, FrameTensor, frame_size, inspect
from .merging import merge
from .plan import Codec, Parameter, Plan, PlanInfo, Stage, codecs, load_plugin, presets
from .sender import Sender
from .tensor import Sparse, State

__all__ = [
    "ArgumentError",
    "Batch",
    "Bound",
    "CapacityError",
    "Codec",
    "ConcurrentUse",
    "CorruptFrame",
    "DeviceError",
    "DeviceFrame",
    "Error",
    "Frame",
    "FrameTensor",
    "InternalError",
    "LibraryError",
    "MissingRank",
    "OutOfMemory",
    "OutOfStep",
    "Parameter",
    "PeerError",
    "Plan",
    "PlanInfo",
    "Sender",
    "Sparse",
    "Stage",
    "State",
    "Trace",
    "Unsupported",
    "WrongBase",
    "__version__",
    "book",
    "codec",
    "codecs",
    "compare",
    "decode",
    "encode",
    "frame_size",
    "inspect",
    "load_plugin",
    "merge",
    "patch",
    "presets",
    "trim",
]
