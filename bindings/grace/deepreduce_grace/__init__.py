"""deepreduce.grace: GRACE's interface (Xu et al., ICDCS 2021) over this library. Imported on request: it needs torch.

    grc = deepreduce.grace.grace_from_params({"compressor": "topk", "memory": "residual", "communicator": "allgather"})
    for name, parameter in model.named_parameters():
        parameter.grad.copy_(grc.step(parameter.grad, name))

grace_from_params, deepreduce_from_params   a communicator from a dict of parameters
Compressor, Memory, Communicator            the contracts, for your own subclasses
PlanCompressor, Sparsifier                  any plan; its payload is one frame, [n] uint8
NoneCompressor, HalfCompressor, RandomKCompressor, VoteCompressor, EFSignCompressor    others
ValueCompressor, IndexCompressor, DeepReduce    wrappers of a sparsifier
NoneMemory, ResidualMemory, EFSignSGDMemory, DgcMemory
Allreduce, Allgather, Broadcast, AllToAll
METHODS                                     GRACE's methods and ours by name: paper and plan
timer, volume, tensor_bits                  what was sent, and times
shim                                        modules named grace_dl, imported apart: import deepreduce.grace.shim

docs/GRACE.md explains how to move a program from GRACE, and the differences.
"""

from .addable import HalfCompressor, NoneCompressor, RandomKCompressor
from .collectives import Allgather, Allreduce, AllToAll, Broadcast
from .compressors import Context, EFSignCompressor, PlanCompressor, Sparsifier, VoteCompressor
from .contracts import Communicator, Compressor, Memory
from .factory import UnknownName, grace_from_params
from .memories import DgcMemory, EFSignSGDMemory, NoneMemory, ResidualMemory
from .meters import tensor_bits, timer, volume
from .method_table import METHODS, SYNONYMS
from .wrappers import DeepReduce, IndexCompressor, ValueCompressor, deepreduce_from_params

__all__ = [
    "METHODS",
    "SYNONYMS",
    "AllToAll",
    "Allgather",
    "Allreduce",
    "Broadcast",
    "Communicator",
    "Compressor",
    "Context",
    "DeepReduce",
    "DgcMemory",
    "EFSignCompressor",
    "EFSignSGDMemory",
    "HalfCompressor",
    "IndexCompressor",
    "Memory",
    "NoneCompressor",
    "NoneMemory",
    "PlanCompressor",
    "RandomKCompressor",
    "ResidualMemory",
    "Sparsifier",
    "UnknownName",
    "ValueCompressor",
    "VoteCompressor",
    "deepreduce_from_params",
    "grace_from_params",
    "tensor_bits",
    "timer",
    "volume",
]
