"""Packs: the inputs of a corpus in one file, each behind its length in four bytes, low first. pack.hpp reads them, too."""
import hashlib


def read(path):
    data, at, inputs = path.read_bytes(), 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        if at + 4 + size > len(data):
            raise ValueError(f"{path}: byte {at}: an input of {size} bytes goes beyond the end at {len(data)}")
        inputs.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return inputs


def write(path, inputs, max_bytes=None):
    """The inputs in their order, as many fit in `max_bytes` bytes. Returns the bytes."""
    packed = b""
    for data in inputs:
        if max_bytes is None or len(packed) + 4 + len(data) <= max_bytes:
            packed += len(data).to_bytes(4, "little") + data
    path.write_bytes(packed)
    return len(packed)


def unpack(path, folder):
    """A file an input, named by what is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for data in read(path) if path.exists() else []:
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)
