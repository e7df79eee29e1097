"""Writes the .npz files that the native tool reads, and reads those of numpy.savez."""

from __future__ import annotations

import math
import os
import zipfile
from typing import BinaryIO, Dict, Mapping, Union

import numpy

from .._native._types import Array

# The comment of an archive that was made from another file; the path of that file follows (tool/read/npz.hpp).
_MADE_OF = "deepreduce:input="
# Maximum bytes of all arrays per byte of a file, whose arrays may be compressed or share elements; bytes that are always accepted.
_BYTES_PER_BYTE, _BYTES_FREE = 16, 1 << 30


def made_of(path: str) -> str:
    """The `made_of` with which write_npz wrote the archive; "" for other files."""
    try:
        with zipfile.ZipFile(path) as archive:
            comment = archive.comment.decode("utf-8", "replace")
    except (OSError, zipfile.BadZipFile):
        return ""
    return comment[len(_MADE_OF) :] if comment.startswith(_MADE_OF) else ""


def write_npz(
    path: Union[str, os.PathLike[str]],
    arrays: Mapping[str, Array],
    deflate: bool = False,
    made_of: str = "",
) -> None:
    """As numpy.savez, except that the bytes depend on the arrays only, and with `deflate` also on the version of zlib.

    path     of the file
    arrays   member's name -> array, of any shape and type that needs no pickle; bfloat16 as void of two bytes
    made_of  the file from which the archive was made; the tool reports this name

    numpy.savez leaves some header fields to the platform and always adds zip64 fields, which a small reader may not
    support. Here the date, system and mode are fixed, and zip64 appears past 2 GiB only. Raises OSError.
    """
    method = zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method, compresslevel=9) as archive:
        archive.comment = os.fsencode(_MADE_OF + made_of)[:65535] if made_of else b""
        for name, array in arrays.items():
            member = zipfile.ZipInfo(name + ".npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.create_system = 3
            member.external_attr = 0o644 << 16
            member.compress_type = method
            with archive.open(member, "w", force_zip64=array.nbytes >= 1 << 31) as file:
                numpy.lib.format.write_array(file, array, version=(1, 0), allow_pickle=False)


def limit_of(size: int) -> int:
    """The maximum bytes of the arrays in a file of so many bytes."""
    return _BYTES_FREE + _BYTES_PER_BYTE * size


def read_npz(file: BinaryIO) -> Dict[str, Array]:
    """The arrays of an .npz, by name. It takes no memory for what the file cannot hold. Raises ValueError with the reason for a file
    that is none, or is damaged; OSError."""
    try:
        if file.read(6) == b"\x93NUMPY":
            raise ValueError("it is not a zip archive but one array, an .npy")
        size = file.seek(0, os.SEEK_END)
        with numpy.lib.npyio.NpzFile(file, allow_pickle=False) as members:
            _require_fit(zipfile.ZipFile(file), size)
            return {name: members[name] for name in members.files}
    except Exception as error:  # zipfile, zlib, tokenize and numpy raise many kinds
        if isinstance(error, OSError) and error.errno is not None:
            raise
        # (numpy's advice for what it does not know is to unpickle it)
        why = "it is not an .npz of numpy.savez, or is damaged" if "pickle" in str(error) else str(error) or type(error).__name__
        raise ValueError(why) from None


def _require_fit(archive: zipfile.ZipFile, size: int) -> None:
    """ValueError for members that are too large for the file, or whose header states more elements than they have."""
    found = sum(member.file_size for member in archive.infolist())
    if found > limit_of(size):
        raise ValueError(f"its members have {found} bytes, and a file of {size} bytes may hold {limit_of(size)}")
    for member in archive.infolist():
        with archive.open(member) as stream:
            if stream.read(6) != b"\x93NUMPY":
                continue
            version = stream.read(2)
            read_header = numpy.lib.format.read_array_header_1_0 if version[:1] == b"\1" else numpy.lib.format.read_array_header_2_0
            shape, _, dtype = read_header(stream)
            if math.prod(shape) * dtype.itemsize > member.file_size:
                raise ValueError(f"{member.filename[:100]}: its header states the shape {str(shape)[:100]} of {dtype}, and it has {member.file_size} bytes")
