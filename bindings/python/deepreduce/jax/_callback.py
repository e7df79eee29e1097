"""deepreduce.jax: Python functions that XLA calls on its own memory, through its C interface for foreign functions
(xla/ffi/api/c_api.h).

jax.pure_callback copies every array, twice, and takes 20 times as long as an encode of a million elements
(bench/python/jax_call.py). A handler in C++ would have to be compiled for each user; this one is a ctypes function.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from typing import Any, Callable, Dict, List, Sequence, Tuple

import jax
import numpy

from .._native._memory import bfloat16
from .._native._types import Array, DType, Pointer

Arrays = List[Array]
Function = Callable[[Arrays, Arrays], None]  # (arguments, results): it must not change arguments, and fills results

_TARGET = "deepreduce_call"
_METADATA, _EXECUTE, _SCALAR, _S64, _INTERNAL = 1, 3, 3, 5, 13  # enumerators
_MAJOR = 0  # of the interface; fields are only added at its structs' ends


# The structs, line by line; struct_size and extension_start begin each.
class _Extension(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p)]


class _Version(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    ]


class _Metadata(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("version", _Version), ("traits", ctypes.c_uint32)]


class _MetadataExtension(ctypes.Structure):
    _fields_ = [("base", _Extension), ("metadata", ctypes.POINTER(_Metadata))]


class _ErrorArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    ]


class _Api(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("version", _Version),
        ("internal", ctypes.c_void_p),
        ("error_create", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorArgs))),
    ]


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    ]


class _Buffers(ctypes.Structure):
    """Args and Rets."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("pointers", ctypes.POINTER(ctypes.POINTER(_Buffer))),
    ]


class _Scalar(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int), ("value", ctypes.POINTER(ctypes.c_int64))]


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.POINTER(ctypes.c_int)),
        ("names", ctypes.c_void_p),
        ("pointers", ctypes.POINTER(ctypes.POINTER(_Scalar))),
    ]


class _Frame(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.POINTER(_MetadataExtension)),
        ("api", ctypes.POINTER(_Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    ]


@functools.cache
def _dtypes() -> Dict[int, DType]:
    """NumPy types by XLA's numbers."""
    found = {4: "int32", 6: "uint8", 8: "uint32", 10: "float16", 11: "float32", 16: bfloat16()}
    return {number: numpy.dtype(dtype) for number, dtype in found.items() if dtype is not None}


def _arrays(buffers: _Buffers, writable: bool) -> Arrays:
    """Arrays over XLA's memory, valid during the call."""
    found = []
    for i in range(buffers.size):
        buffer = buffers.pointers[i].contents
        dtype, shape = _dtypes()[buffer.dtype], tuple(buffer.dims[: buffer.rank])
        size = math.prod(shape) * dtype.itemsize
        memory = (ctypes.c_char * size).from_address(buffer.data) if size else bytearray()
        array = numpy.frombuffer(memory, dtype).reshape(shape)
        array.flags.writeable = writable
        found.append(array)
    return found


_functions: Dict[int, Function] = {}
_numbers = itertools.count(1)


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Frame))  # type: ignore[untyped-decorator]
def _handler(at: Pointer) -> Any:
    frame = at.contents
    if frame.extension_start and frame.extension_start.contents.base.type == _METADATA:
        metadata, here = frame.extension_start.contents.metadata.contents, frame.api.contents.version
        metadata.version.major, metadata.version.minor, metadata.traits = _MAJOR, here.minor, 0
        return None
    if frame.stage != _EXECUTE:
        return None
    try:
        attributes = frame.attributes
        if attributes.size != 1 or attributes.types[0] != _SCALAR or attributes.pointers[0].contents.dtype != _S64:
            raise RuntimeError("the attributes of the call are not those that deepreduce.jax passed")
        function = _functions[attributes.pointers[0].contents.value[0]]
        function(_arrays(frame.arguments, False), _arrays(frame.results, True))
    except BaseException as error:  # no exception may pass through XLA's stack frames
        words = f"{type(error).__name__}: {error}".encode()
        return frame.api.contents.error_create(_ErrorArgs(ctypes.sizeof(_ErrorArgs), None, words, _INTERNAL))
    return None


@functools.cache
def _register() -> None:
    jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(_handler), platform="cpu")


def number_of(function: Function) -> int:
    """Registers the function under a number, by which XLA's programs call it. It stays registered until the process ends,
    since JAX does not report when the last compiled program is deleted."""
    number = next(_numbers)
    _functions[number] = function
    return number


def call(number: int, results: Sequence[jax.ShapeDtypeStruct], arguments: Sequence[jax.Array], aliases: Dict[int, int]) -> Tuple[jax.Array, ...]:
    """Calls the function of that number with arrays, traced or not. It must be pure; vmap calls it sequentially.

    results  jax.ShapeDtypeStruct of each result
    aliases  {argument: result} that may share memory; then the result holds the argument's values at the start
    """

    def on_cpu(*arrays: jax.Array) -> Sequence[jax.Array]:
        _register()
        there = jax.ffi.ffi_call(_TARGET, list(results), vmap_method="sequential", input_output_aliases=aliases)
        return tuple(there(*arrays, handle=numpy.int64(number)))

    def elsewhere(*arrays: jax.Array) -> Sequence[jax.Array]:
        return tuple(jax.pure_callback(by_copies, list(results), *arrays, vmap_method="sequential"))

    def by_copies(*arrays: jax.Array) -> Arrays:
        copied = [numpy.asarray(array) for array in arrays]
        made = [numpy.empty(result.shape, result.dtype) for result in results]
        for i, o in aliases.items():
            made[o] = copied[i] = numpy.array(copied[i])
        _functions[number](copied, made)
        return made

    found: Tuple[jax.Array, ...] = jax.lax.platform_dependent(*arguments, cpu=on_cpu, default=elsewhere)
    return found
