"""`deepreduce patch`: patches of model files, and stores of them."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import sys
from typing import List, Sequence, Tuple

from .._files._whole_file import require_no_input, whole_file
from .._native._call import thread_count
from ..errors import ArgumentError, CorruptFrame, Error, InternalError, OutOfMemory, WrongBase
from ..header import inspect
from ..plan import as_plan
from ._model_files import open_model, write_patched
from ._patch_file import names_of, open_patch, write_patch
from ._progress import Progress, without_controls
from ._word_frames import named

_COMMANDS = ("apply", "show", "log", "checkout")
_DESCRIPTION = """Writes the patch that changes the weights OLD to NEW, bit for bit. Weights are a .safetensors file, the
.safetensors.index.json of shards, a folder that holds one of these, .npz or .pt."""
_COMMANDS_HELP = """others:
  patch apply BASE FILE [-o NEW]        BASE with the patch FILE; without -o in place of BASE
  patch show FILE                       what is in a patch
  patch log STORE                       what is in a store of patches (deepreduce.patch.Store)
  patch checkout STORE STEP -o FILE     the weights of a step, as .safetensors
`deepreduce patch COMMAND --help` describes them. Write ./apply for a file with the name of a command."""


def main(words: Sequence[str]) -> int:
    """Runs `deepreduce patch …` and returns the exit status: 1 for a patch or store that is damaged or for other weights, 2 for
    errors of usage, input and output."""
    command = words[0] if words[:1] and words[0] in _COMMANDS else ""
    options = _parser(command).parse_args(list(words[1:] if command else words))
    try:
        {"": _make, "apply": _apply, "show": _show, "log": _log, "checkout": _checkout}[command](options)
    except (CorruptFrame, WrongBase, InternalError, OutOfMemory) as error:
        return _failed(str(error), 1)
    except Error as error:
        return _failed(str(error), 2)
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        return _failed(f"patch: {what}cannot be written or read: {error.strerror or error}", 2)
    return 0


def _failed(why: str, status: int) -> int:
    print(f"deepreduce: {without_controls(why)}", file=sys.stderr)
    return status


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"deepreduce patch {command}".strip(),
        description=_DESCRIPTION if not command else _HELP[command],
        epilog=None if command else _COMMANDS_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for name, text in _ARGUMENTS[command]:
        parser.add_argument(name, metavar=name.upper(), help=text)
    if command in ("", "apply", "checkout"):
        what = {"": "the patch", "apply": "the new weights; a folder, if BASE is in shards; default: in place of BASE, if that is .safetensors"}
        parser.add_argument(
            "-o", "--output", metavar="FILE", default="", required=command != "apply", help=what.get(command, "the weights")
        )
        parser.add_argument("--threads", type=_threads, metavar="N", help="number of threads; default: one")
    if not command:
        parser.add_argument("--plan", default="patch", metavar="PLAN", help="one with sparsify=changed; default: patch")
    return parser


_ARGUMENTS = {
    "": [("old", "the weights that the receiver has"), ("new", "the weights that it shall have")],
    "apply": [("base", "the weights that the patch is for"), ("file", "the patch")],
    "show": [("file", "a patch")],
    "log": [("store", "a folder")],
    "checkout": [("store", "a folder"), ("step", "a number")],
}
_HELP = {
    "apply": "Applies a patch to BASE and writes the new weights, whole or not at all, also in place of BASE.",
    "show": "Lists the tensors of a patch, with the share that changed and the bytes; whole: all of it is sent, as\nit is. Small tensors share a row.",
    "log": "Lists the steps of a store: their anchors, patches and bytes.",
    "checkout": "Writes the weights of a step.",
}


def _threads(text: str) -> int:
    try:
        return max(1, thread_count(int(text)))
    except (ValueError, Error):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of threads") from None


def _make(options: argparse.Namespace) -> None:
    plan = as_plan(options.plan)
    with contextlib.ExitStack() as stack:
        old, new = (stack.enter_context(open_model(path)) for path in (options.old, options.new))
        require_no_input(options.output, [*old.files, *new.files])
        names = _name_of(options.old), _name_of(options.new)
        progress = stack.enter_context(Progress(new.size))
        with whole_file(options.output, durable=True) as partial, open(partial, "wb") as file:
            write_patch(file, old.tensors, new.tensors, plan, names, None, options.threads, progress, listed=True)


def _name_of(path: str) -> str:
    """The name of a file for the patch, which has valid text."""
    return os.path.basename(os.path.normpath(path)).encode("utf-8", "replace").decode()


def _apply(options: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        base = stack.enter_context(open_model(options.base))
        patch = open_patch(options.file)
        require_no_input(options.output, [options.file])
        progress = stack.enter_context(Progress(base.size))
        write_patched(base, [patch], options.output, options.threads, progress)


def _show(options: argparse.Namespace) -> None:
    patch = open_patch(options.file)
    entries = patch.entries or {}
    units = iter(patch.units(entries) if entries else [])
    rows: List[Tuple[str, ...]] = []
    changed = whole = whole_bytes = 0  # words of frames that list what changed; words and bytes of the others
    for number, (row, frame) in enumerate(patch.frames()):
        unit = next(units, None)
        unnamed = f"{number + 1}: {row.parts} tensors" if row.parts > 1 else str(number + 1)
        name, kind = without_controls(names_of(unit.parts) if unit else unnamed), unit.parts[0].dtype if unit else ""
        if not row.size:
            rows.append((name, kind, "0", "0 %", "0", "-", ""))
            continue
        try:
            (tensor,) = inspect(frame).tensors
        except Error as error:
            raise named(error, f"{patch.where}: {name}") from None
        if tensor.fallback == "dense":  # how many of them changed is not in it
            whole, whole_bytes = whole + tensor.universe, whole_bytes + row.size
            rows.append((name, kind or tensor.dtype, "whole", "", str(row.size), "-", tensor.plan))
            continue
        changed += tensor.support
        share = _share(tensor.support, tensor.universe)
        rows.append((name, kind or tensor.dtype, str(tensor.support), share, str(row.size), _bits(row.size, tensor.support), tensor.plan))
    titles = [without_controls(name) or "(no name)" for name in (patch.base, patch.result)]
    print(f"{titles[0]} -> {titles[1]}")
    words = sum(entry.length for entry in entries.values()) - whole
    of = f" of {words}" if words else ""
    share = f" ({_share(changed, words)})" if words else ""
    more = f"; {whole} others are sent whole, in {whole_bytes} bytes" if whole else ""
    print(f"{patch.size} bytes: {changed}{of} words changed{share}, {_bits(patch.size - whole_bytes, changed)} bits each{more}")
    _table(("tensors", "type", "changed", "share", "bytes", "bits", "plan"), rows)


def _share(some: int, all: int) -> str:
    return f"{100 * some / max(all, 1):.3g} %"


def _bits(size: int, changed: int) -> str:
    return f"{8 * size / changed:.2f}" if changed else "-"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def _log(options: argparse.Namespace) -> None:
    from ._store_files import MANIFEST, read_manifest

    folder = pathlib.Path(options.store)
    manifest = read_manifest(folder)
    if not (folder / MANIFEST).exists():
        raise ArgumentError(f"{folder}: not a store: it has no {MANIFEST}")
    rows = [(anchor.step, "anchor", "", anchor.size, anchor.file) for anchor in manifest.anchors]
    rows += [(patch.step, "patch", f"from {patch.base}", patch.size, patch.file) for patch in manifest.patches]
    _table(("step", "kind", "", "bytes", "file"), [tuple(map(str, row)) for row in sorted(rows)])


def _checkout(options: argparse.Namespace) -> None:
    from . import Store

    if not options.step.isdecimal() or len(options.step) > 20:  # (as many digits as 2^64 has)
        raise ArgumentError(f"checkout: the step is {options.step!r}, not a number")
    require_no_input(options.output, pathlib.Path(options.store).glob("*"))
    Store(options.store).checkout(int(options.step), options.output, threads=options.threads)
