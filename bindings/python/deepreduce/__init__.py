"""DeepReduce: sparse gradient compression.

encode sparsifies a gradient (or receives it sparse), codes its indices and values, and returns a frame: bytes that any
rank can decode. A plan, one line of text, names the methods. Examples here and below assume `import numpy, deepreduce`.

>>> gradient = numpy.linspace(-1, 1, 1000, dtype=numpy.float32)
>>> plan = "sparsify=topr(ratio=0.01) index=golomb value=qsgd(levels=127)"
>>> frame = deepreduce.encode(gradient, plan, step=1, private_seed=0)
>>> gradient.nbytes, len(frame) < 100
(4000, True)
>>> deepreduce.decode(frame).shape
(1000,)

encode, decode, merge   tensors to frames and back; arrays on a GPU to a DeviceFrame there
Batch                   encode, decode and merge, prepared for tensors of known shapes; Batch.bind returns a Bound
Sender                  one rank's side of the exchange of many named tensors; adapters of frameworks use it
inspect, frame_size     the contents of a frame, and its size
Plan, codecs            the methods; Plan.stages maps roles to Stage objects, Plan.with_ changes parameters, load_plugin adds codecs
presets                 plans of the literature, whose names every `plan` argument accepts
State                   the memory of feedback from step to step
Sparse                  a sparse tensor
compare                 bytes, errors and times of plans on gradients: Rows, a list with frame, best, plot and report
codec                   the module for codecs written in Python, for compare only; codecs() lists those of the library, as Codec
patch                   exact differences of weights, which update the weights of a receiver
book                    plan books: files that assign plans to tensors
Error                   base of the exceptions
stats                   numbers of the hooks for TensorBoard, wandb and other loggers
torch                   frames over torch.distributed: DDP, FSDP2, loops. Import it by itself: import deepreduce.torch
outer                   outer loops, which exchange the changes of many steps over slow links: import deepreduce.outer
jax, keras, flower, lightning, accelerate   adapters of these frameworks (docs/FRAMEWORKS.md); import them by themselves

The library is loaded on first use: from the path in the environment's DEEPREDUCE_LIBRARY, from beside this package, or from
the system. Any number of threads may use plans and functions; every other object allows one call at a time (docs/PYTHON.md).
"""

from . import book, codec, patch, stats
from ._native._abi import DR_VERSION_STRING as __version__
from ._native._call import Trace, trim
from .batch import Batch
from .bound import Bound
from .comparing import Rows, compare
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
    PlanError,
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
    "PlanError",
    "PlanInfo",
    "Rows",
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
    "stats",
    "trim",
]
