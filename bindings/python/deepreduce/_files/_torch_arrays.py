"""PyTorch's tensors as numpy arrays for an .npz: gradients of a live run, and tensors of .pt files."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import zipfile
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Tuple, Union

import numpy

from .._native._types import Array
from ..errors import ArgumentError, LibraryError
from ._npz import limit_of, write_npz

if TYPE_CHECKING:
    import torch

Arrays = Dict[str, "Array"]

PICKLES = (".pt", ".pth")
# Limits of a file. Nested lists may be shared, so a few bytes can stand for 2^50 lists: all occurrences count.
_MAX_DEPTH, _MAX_MEMBERS = 50, 1_000_000
# Maximum bytes of a name, which a zip member's name can hold; maximum characters of all names.
_MAX_NAME, _MAX_NAMES = 60_000, 100_000_000
_MAX_DIMENSIONS = 64 if int(numpy.__version__.partition(".")[0]) > 1 else 32  # of numpy; torch has no limit
# Types of tensors that are read. numpy has no bfloat16: it becomes two bytes, which the tool reads.
_TYPES = "float32 float16 bfloat16 float64 int8 uint8 int16 int32 int64 bool".split()


def add_tensor(arrays: Arrays, name: str, tensor: torch.Tensor) -> bool:
    """Adds a tensor to `arrays`: one array `name`; for a sparse tensor `name.indices`, `name.values` and `name.shape`.
    Returns False if its type is not supported.
    """
    tensor = _local(tensor)
    if not _is_read(tensor):
        return False
    arrays.update({part: array_of(found) for part, found in _dense_parts(name, tensor).items()})
    return True


def _local(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # of a DTensor: the part of this rank


def _dense_parts(name: str, tensor: torch.Tensor) -> Dict[str, torch.Tensor]:
    """The tensor by its name; of a sparse tensor `name.indices`, `name.values` and `name.shape`."""
    import torch

    if tensor.layout == torch.strided:
        return {name: tensor}
    if tensor.layout != torch.sparse_coo:
        tensor = tensor.to_sparse_coo()
    stem = name + "." if name else ""
    shape = torch.tensor(tuple(tensor.shape), dtype=torch.int64)
    return {stem + "indices": tensor._indices(), stem + "values": tensor._values(), stem + "shape": shape}


def _has_bits(tensor: torch.Tensor) -> bool:
    return not (tensor.is_nested or tensor.is_quantized or tensor.device.type == "meta")


def _is_read(tensor: torch.Tensor) -> bool:
    return _has_bits(tensor) and str(tensor.dtype)[len("torch.") :] in _TYPES and tensor.dim() <= _MAX_DIMENSIONS


def array_of(tensor: torch.Tensor) -> Array:
    """A dense tensor as an array of its shape, in C order, on the CPU; it shares the memory if possible."""
    import torch

    tensor = tensor.detach().to("cpu").contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("V2")  # type: ignore[no-any-return]
    return tensor.numpy()  # type: ignore[no-any-return]


def unwrapped(module: object) -> torch.nn.Module:
    """The module, without wrappers of torch.nn.parallel and torch.compile around it."""
    from torch import nn

    # (Importing dynamo takes seconds; before its first import nothing is compiled.)
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
    those of torch.compile around it or its parts, are not part of a name."""
    found = unwrapped(module)
    if not hasattr(found, "named_parameters"):
        raise ArgumentError(f"model is {found!r}, not a torch.nn.Module")
    named = found.named_parameters()
    return [(name.replace("_orig_mod.", ""), parameter) for name, parameter in named]


def _why_refused(torch_message: str) -> str:
    """The reason why torch.load(weights_only=True) rejects a file, without torch's advice on unsafe loading."""
    found = re.search(r"GLOBAL (\S+)", torch_message)
    if found:
        return f"it holds a {found[1]}, not tensors alone, and is not read, for a pickle of one can run any code"
    return "torch.load(weights_only=True) cannot read it: it is damaged, or was not written by torch.save"


def read_file(path: Union[str, os.PathLike[str]]) -> Tuple[Arrays, List[str]]:
    """The tensors of a .pt or .pth file of torch.save, and a sentence for each object in it that is not a tensor.

    The file holds a tensor, or nested dicts or lists of tensors, whose names are joined by dots. Sparse tensors stay sparse.
    torch.load(weights_only=True) reads it, so no pickle runs code. Raises LibraryError without PyTorch; ArgumentError for a
    file that cannot be read so, that holds no tensor, or whose tensors are too large for its size.
    """
    arrays: Arrays = {}
    notes: List[str] = []
    for member, what, value in _tensors_of(os.fspath(path), _ADVICE_GRADIENTS, _is_read, notes):
        _require_new(member, arrays, what)
        if not add_tensor(arrays, member, value):
            notes.append(f"{what}: skipped, {_kind_of(value)} is not read")
    if not arrays:
        more = f"; {notes[0]}" if notes else ""
        raise ArgumentError(f"{os.fspath(path)}: holds no tensor that is read{more}")
    return arrays, notes


def read_weights(path: Union[str, os.PathLike[str]]) -> Tuple[Dict[str, torch.Tensor], List[str]]:
    """As read_file, but all tensors, of any type and as torch's. ArgumentError for one that has no bits of its own: it is
    quantised by torch, nested, or without memory."""
    tensors: Dict[str, torch.Tensor] = {}
    notes: List[str] = []
    for member, what, value in _tensors_of(os.fspath(path), _ADVICE_WEIGHTS, _has_bits, notes):
        _require_new(member, tensors, what)
        if not _has_bits(value):
            raise ArgumentError(f"{what}: {_kind_of(value)} is not read")
        tensors.update(_dense_parts(member, _local(value)))
    if not tensors:
        more = f"; {notes[0]}" if notes else ""
        raise ArgumentError(f"{os.fspath(path)}: holds no tensor{more}")
    return tensors, notes


_ADVICE_GRADIENTS = "torch.save({name: p.grad for name, p in model.named_parameters()}, path)"
_ADVICE_WEIGHTS = "torch.save(model.state_dict(), path)"


def _require_new(member: str, found: Mapping[str, object], what: str) -> None:
    if member in found or not can_name(member):
        raise ArgumentError(f"{what[:200]}: two tensors have this name, or it cannot be that of a member")


def _tensors_of(
    name: str, advice: str, counts: Callable[[torch.Tensor], bool], notes: List[str]
) -> Iterator[Tuple[str, str, torch.Tensor]]:
    """(name, name for errors, tensor) of those in a file. counts: whether its bytes count for the limit"""
    try:
        import torch
    except ImportError:
        raise LibraryError(f"{name}: reading it needs PyTorch: pip install torch") from None
    try:
        with contextlib.ExitStack() as opened:
            file: Any = name
            if not _is_utf8(name):  # which torch requires of a path
                file = opened.enter_context(open(name, "rb"))
            mapped = file is name and zipfile.is_zipfile(name)
            loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped or None)
    except OSError as error:
        raise ArgumentError(f"{name}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # torch raises many kinds
        raise ArgumentError(f"{name}: {_why_refused(str(error))}; save tensors alone: {advice}") from None
    size, limit = 0, limit_of(os.path.getsize(name))
    for member, value in _flatten(loaded, name):
        what = f"{name}: {member}" if member else name
        if not isinstance(value, torch.Tensor):
            notes.append(f"{what}: skipped, is not a tensor but {type(value).__name__}")
            continue
        size += _bytes_of(value) if counts(value) else 0
        if size > limit:
            raise ArgumentError(
                f"{what[:200]}: with it the tensors are {size} bytes, and a file of {os.path.getsize(name)} bytes may hold {limit}"
            )
        yield member, what, value


def can_name(member: str) -> bool:
    """Whether an .npz can hold an array of that name."""
    return "\0" not in member and _is_utf8(member) and len(member.encode()) <= _MAX_NAME


def _is_utf8(text: str) -> bool:
    """Whether UTF-8 has the text: not half a pair of UTF-16, nor other bytes of a path."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind_of(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.device.type == "meta":
        return f"a tensor of {tensor.dtype} on the device meta"
    return str(tensor.dtype) + (f" of {tensor.dim()} dimensions" if tensor.dim() > _MAX_DIMENSIONS else "")


def _bytes_of(tensor: torch.Tensor) -> int:
    """The approximate bytes of its arrays: a tensor's elements may share memory."""
    import torch

    if tensor.layout == torch.strided:
        return int(tensor.numel() * tensor.element_size())
    values = tensor._values() if tensor.layout == torch.sparse_coo else tensor.values()
    indices = tensor._indices().numel() if tensor.layout == torch.sparse_coo else 2 * values.numel()
    return int(8 * indices + values.numel() * values.element_size())


def _flatten(loaded: object, file: str) -> List[Tuple[str, torch.Tensor]]:
    """[(name, leaf)] in order. ArgumentError as soon as a limit is exceeded."""
    found: List[Tuple[str, torch.Tensor]] = []
    members, characters = 0, 0

    def add(value: object, name: str, depth: int) -> None:
        nonlocal members, characters
        members, characters = members + 1, characters + len(name)
        if depth > _MAX_DEPTH:
            raise ArgumentError(f"{file}: {name[:100]}: more than {_MAX_DEPTH} nested dicts or lists")
        if members > _MAX_MEMBERS or characters > _MAX_NAMES:
            raise ArgumentError(
                f"{file}: {name[:100]}: more than {_MAX_MEMBERS} members, or {_MAX_NAMES} characters of names"
            )
        if not isinstance(value, (Mapping, list, tuple)):
            found.append((name, value))
            return
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            add(item, f"{name}.{key}" if name else str(key), depth + 1)

    add(loaded, "", 0)
    return found


def is_pickle(path: str) -> bool:
    """Whether the path is that of an existing .pt or .pth file."""
    return path.lower().endswith(PICKLES) and os.path.isfile(path)


def convert_file(path: str, target: Union[str, os.PathLike[str]]) -> str:
    """Writes the tensors of a .pt or .pth file to an .npz; the tool reports the name of the first. Returns the path of the .npz.
    Prints notes on skipped objects to stderr. Raises the errors of read_file, and OSError."""
    arrays, notes = read_file(path)
    for note in notes:
        print(f"deepreduce: note: {note}", file=sys.stderr)
    write_npz(target, arrays, made_of=path)
    return os.fspath(target)
