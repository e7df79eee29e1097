"""Finds and loads libdeepreduce, on first use."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import pathlib
import threading
from typing import List, Optional

from ..errors import LibraryError
from . import _abi, _abi_plan

ENVIRONMENT = "DEEPREDUCE_LIBRARY"
SONAME = f"libdeepreduce.so.{_abi.DR_ABI_VERSION}"

_lock = threading.Lock()
_loaded: Optional[ctypes.CDLL] = None


def candidates() -> List[str]:
    """Paths and names to try, in order. If the environment names a library, only that one."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return [named]
    package = pathlib.Path(__file__).parents[1]
    found = [str(path) for path in sorted(package.glob("libdeepreduce.so*"))] or [str(package / "libdeepreduce.so")]
    found.append(SONAME)  # found by the dynamic linker: LD_LIBRARY_PATH, ld.so.cache
    system = ctypes.util.find_library("deepreduce")
    if system and system not in found:
        found.append(system)
    return found


def open_library(path: str) -> ctypes.CDLL:
    """Loads one library and declares its functions. OSError if it cannot be loaded or is of another version."""
    library = ctypes.CDLL(path)
    try:
        library.dr_abi_version.restype = ctypes.c_uint32
        version = library.dr_abi_version()
        if version != _abi.DR_ABI_VERSION:
            raise OSError(f"its ABI is {version}, this package needs {_abi.DR_ABI_VERSION}")
        _abi.declare(library)
        _abi.declare(library, _abi_plan.FUNCTIONS)
    except AttributeError as error:
        raise OSError(f"not a libdeepreduce of this version ({error})") from None
    return library


def load() -> ctypes.CDLL:
    """The library. LibraryError, with every path tried, if there is none; the next call tries again."""
    global _loaded
    with _lock:
        if _loaded is None:
            tried = []
            for path in candidates():
                try:
                    _loaded = open_library(path)
                    break
                except OSError as error:
                    tried.append(f"\n  {path}: {error}")
            else:
                hint = "" if os.environ.get(ENVIRONMENT) else f"\nSet {ENVIRONMENT} to the path of libdeepreduce.so."
                raise LibraryError("no usable libdeepreduce; tried:" + "".join(tried) + hint)
        return _loaded
