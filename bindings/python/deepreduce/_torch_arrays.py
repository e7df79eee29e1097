"""PyTorch's tensors as numpy arrays for an .npz: gradients of a live run, and those of .pt files."""

from __future__ import annotations

import os
import re
import sys
import zipfile
from typing import Any, Dict, Iterator, List, Mapping, Tuple, Union

import numpy

from .errors import ArgumentError, LibraryError

Arrays = Dict[str, "numpy.ndarray[Any, Any]"]

# What a tensor may hold; numpy has no bfloat16, so it is two bytes that the tool knows.
_DEPTH_MOST = 50
_TYPES = "float32 float16 bfloat16 float64 int8 uint8 int16 int32 int64 bool".split()


def add_tensor(arrays: Arrays, name: str, tensor: Any) -> bool:
    """Adds a tensor's members to `arrays`: one array, of a sparse tensor `indices`, `values` and `shape` behind the name
    and a dot. False if it is of a type that is not read.
    """
    import torch

    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):  # a DTensor: what this rank holds
        tensor = tensor.to_local()
    if str(tensor.dtype)[len("torch.") :] not in _TYPES or tensor.is_quantized or tensor.device.type == "meta":
        return False
    if tensor.layout == torch.strided:
        arrays[name] = _array(tensor)
        return True
    if tensor.layout != torch.sparse_coo:
        tensor = tensor.to_sparse_coo()
    stem = name + "." if name else ""
    arrays[stem + "indices"] = _array(tensor._indices())
    arrays[stem + "values"] = _array(tensor._values())
    arrays[stem + "shape"] = numpy.array(tuple(tensor.shape), numpy.int64)
    return True


def _array(tensor: Any) -> numpy.ndarray[Any, Any]:
    """[tensor's shape], C order, on the CPU; shares the memory where it can."""
    import torch

    tensor = tensor.to("cpu").contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("V2")  # type: ignore[no-any-return]
    return tensor.numpy()  # type: ignore[no-any-return]


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
    ArgumentError for a file that cannot be read so, or that holds no tensor.
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
    for member, value in _flatten(loaded, name):
        what = f"{name}: {member}" if member else name
        if not isinstance(value, torch.Tensor):
            notes.append(f"{what}: skipped, is no tensor but {type(value).__name__}")
        elif member in arrays or "\0" in member or len(member.encode()) > 60000:
            raise ArgumentError(f"{what[:200]}: two tensors have this name, or it cannot be that of a member")
        elif not add_tensor(arrays, member, value):
            notes.append(f"{what}: skipped, {value.dtype} is not read")
    if not arrays:
        more = f"; {notes[0]}" if notes else ""
        raise ArgumentError(f"{name}: holds no tensor that is read{more}")
    return arrays, notes


def _flatten(value: Any, file: str, name: str = "", depth: int = 0) -> Iterator[Tuple[str, Any]]:
    """(name, leaf) in order."""
    if depth > _DEPTH_MOST:
        raise ArgumentError(f"{file}: {name[:100]}: more than {_DEPTH_MOST} dicts or lists in one another")
    if isinstance(value, Mapping):
        items: Any = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        yield name, value
        return
    for key, each in items:
        yield from _flatten(each, file, f"{name}.{key}" if name else str(key), depth + 1)


def warn(notes: List[str]) -> None:
    """As the tool says it."""
    for note in notes:
        print(f"deepreduce: note: {note}", file=sys.stderr)
