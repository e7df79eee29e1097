"""Writes the .npz files that the native tool reads."""

from __future__ import annotations

import os
import zipfile
from typing import Mapping, Union

import numpy

from .._native._types import Array

# The comment of an archive that was made from another file; the path of that file follows (tool/read/npz.hpp).
_MADE_OF = "deepreduce:input="


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
