"""PyTorch's tensors as numpy arrays for an .npz: gradients of a live run, and those of .pt files."""

from __future__ import annotations

import os
import re
import sys
import zipfile
from typing import TYPE_CHECKING, Dict, List, Mapping, Tuple, Union

import numpy

from .._native._types import Array
from ..errors import ArgumentError, LibraryError
from ._npz import write_npz

if TYPE_CHECKING:
    import torch

Arrays = Dict[str, "Array"]

PICKLES = (".pt", ".pth")
# Of a file. What is in one another may be shared, so that a few bytes stand for 2^50 lists: all that is met counts.
_DEPTH_MOST, _MEMBERS_MOST = 50, 1_000_000
# Bytes of a name, which that of a zip's member holds; and characters of all names.
_NAME_MOST, _NAMES_MOST = 60_000, 100_000_000
# Bytes that all tensors may have for each byte of the file, where many share their elements; and those that are always fine.
_BYTES_PER_BYTE, _BYTES_FREE = 16, 1 << 30
# What a tensor may hold; numpy has no bfloat16, so it is two bytes that the tool knows.
_TYPES = "float32 float16 bfloat16 float64 int8 uint8 int16 int32 int64 bool".split()


def add_tensor(arrays: Arrays, name: str, tensor: torch.Tensor) -> bool:
    """Adds a tensor's members to `arrays`: one array, of a sparse tensor `indices`, `values` and `shape` behind the name
    and a dot. False if it is of a type that is not read.
    """
    import torch

    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):  # a DTensor: what this rank holds
        tensor = tensor.to_local()
    if not _is_read(tensor):
        return False
    if tensor.layout == torch.strided:
        arrays[name] = array_of(tensor)
        return True
    if tensor.layout != torch.sparse_coo:
        tensor = tensor.to_sparse_coo()
    stem = name + "." if name else ""
    arrays[stem + "indices"] = array_of(tensor._indices())
    arrays[stem + "values"] = array_of(tensor._values())
    arrays[stem + "shape"] = numpy.array(tuple(tensor.shape), numpy.int64)
    return True


def _is_read(tensor: torch.Tensor) -> bool:
    return str(tensor.dtype)[len("torch.") :] in _TYPES and not tensor.is_quantized and tensor.device.type != "meta"


def array_of(tensor: torch.Tensor) -> Array:
    """[tensor's shape] of a dense tensor, C order, on the CPU; shares the memory where it can."""
    import torch

    tensor = tensor.detach().to("cpu").contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("V2")  # type: ignore[no-any-return]
    return tensor.numpy()  # type: ignore[no-any-return]


def unwrapped(module: object) -> torch.nn.Module:
    """The module, without wrappers of torch.nn.parallel and torch.compile around it."""
    from torch import nn

    # (Importing dynamo takes seconds; if nobody has, nothing is compiled.)
    compiled = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    while True:
        if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            module = module.module
        elif isinstance(module, compiled):
            module = module._orig_mod
        else:
            return module


def named_parameters_of(module: object) -> List[Tuple[str, torch.Tensor]]:
    """(name, parameter) in the order of `module.named_parameters()`. Wrappers of torch.nn.parallel around the module, and
    those of torch.compile around it or its parts, are no part of a name."""
    named = unwrapped(module).named_parameters()
    return [(name.replace("_orig_mod.", ""), parameter) for name, parameter in named]


def _why_refused(torch_says: str) -> str:
    """Why torch.load(weights_only=True) would not read a file, without its advice on how to load it unsafely."""
    found = re.search(r"GLOBAL (\S+)", torch_says)
    if found:
        return f"it holds a {found[1]}, not tensors alone, and is not read, for a pickle of one can run any code"
    return "torch.load(weights_only=True) cannot read it: it is damaged, or was not written by torch.save"


def read_file(path: Union[str, os.PathLike[str]]) -> Tuple[Arrays, List[str]]:
    """The tensors of a .pt or .pth file that torch.save wrote, and a sentence for each thing that is no tensor.

    A tensor, a dict or list of tensors, or such in one another: names are joined by dots. Sparse tensors stay sparse.
    Only torch.load(weights_only=True) reads it, so that no pickle runs code. Raises LibraryError without PyTorch,
    ArgumentError for a file that cannot be read so, that holds no tensor, or that is small and stands for very much.
    """
    name = os.fspath(path)
    try:
        import torch
    except ImportError:
        raise LibraryError(f"{name}: reading it needs PyTorch: pip install torch") from None
    try:
        loaded = torch.load(name, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(name) or None)
    except Exception as error:  # torch raises many kinds
        raise ArgumentError(
            f"{name}: {_why_refused(str(error))}; save tensors alone:"
            " torch.save({name: p.grad for name, p in model.named_parameters()}, path)"
        ) from None
    arrays: Arrays = {}
    notes = []
    size, most = 0, _BYTES_FREE + _BYTES_PER_BYTE * os.path.getsize(name)
    for member, value in _flatten(loaded, name):
        what = f"{name}: {member}" if member else name
        if not isinstance(value, torch.Tensor):
            notes.append(f"{what}: skipped, is no tensor but {type(value).__name__}")
            continue
        if member in arrays or "\0" in member or len(member.encode()) > _NAME_MOST:
            raise ArgumentError(f"{what[:200]}: two tensors have this name, or it cannot be that of a member")
        size += _bytes_of(value)
        if size > most:
            raise ArgumentError(
                f"{what[:200]}: with it the tensors are {size} bytes, and a file of {os.path.getsize(name)} bytes may hold {most}"
            )
        if not add_tensor(arrays, member, value):
            notes.append(f"{what}: skipped, {value.dtype} is not read")
    if not arrays:
        more = f"; {notes[0]}" if notes else ""
        raise ArgumentError(f"{name}: holds no tensor that is read{more}")
    return arrays, notes


def _bytes_of(tensor: torch.Tensor) -> int:
    """About what its arrays take, if it is read: a tensor's elements may be one and the same."""
    import torch

    if not _is_read(tensor):
        return 0
    if tensor.layout == torch.strided:
        return int(tensor.numel() * tensor.element_size())
    values = tensor._values() if tensor.layout == torch.sparse_coo else tensor.values()
    indices = tensor._indices().numel() if tensor.layout == torch.sparse_coo else 2 * values.numel()
    return int(8 * indices + values.numel() * values.element_size())


def _flatten(loaded: object, file: str) -> List[Tuple[str, torch.Tensor]]:
    """(name, leaf) in order. ArgumentError if there is too much, as soon as that is known."""
    found: List[Tuple[str, torch.Tensor]] = []
    met, characters = 0, 0

    def add(value: object, name: str, depth: int) -> None:
        nonlocal met, characters
        met, characters = met + 1, characters + len(name)
        if depth > _DEPTH_MOST:
            raise ArgumentError(f"{file}: {name[:100]}: more than {_DEPTH_MOST} dicts or lists in one another")
        if met > _MEMBERS_MOST or characters > _NAMES_MOST:
            raise ArgumentError(
                f"{file}: {name[:100]}: more than {_MEMBERS_MOST} members, or {_NAMES_MOST} characters of names"
            )
        if not isinstance(value, (Mapping, list, tuple)):
            found.append((name, value))
            return
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            add(each, f"{name}.{key}" if name else str(key), depth + 1)

    add(loaded, "", 0)
    return found


def is_pickle(path: str) -> bool:
    """Whether it is a .pt or .pth file that is there."""
    return path.lower().endswith(PICKLES) and os.path.isfile(path)


def convert_file(path: str, target: Union[str, os.PathLike[str]]) -> str:
    """Writes the tensors of a .pt or .pth file to an .npz, which the tool calls by the first path, and returns the path of
    that. What is skipped is said on stderr. Raises as read_file does, and OSError."""
    arrays, notes = read_file(path)
    for note in notes:
        print(f"deepreduce: note: {note}", file=sys.stderr)
    write_npz(target, arrays, made_of=path)
    return os.fspath(target)
