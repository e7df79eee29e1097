#!/usr/bin/env python3
"""The rules of dependency of docs/ARCHITECTURE.md, read off the #include lines; and that every codec is documented and registered.

    layering.py TREE [LIST]      LIST: a program that prints `role id name fields` of each built-in codec (list_codecs)
    layering.py --self-test TREE plants one violation after the other in a copy of the tree and sees each of them caught
    layering.py --graph TREE     which room includes which, from the bottom up

Prints each violation as file:line: sentence. Exit 0 if there is none.
"""
import functools
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = {".h", ".hpp", ".c", ".cpp", ".cu", ".cuh"}
MIDDLE = {"plan", "sparsify", "split", "patch", "stage", "container", "merge", "feedback", "dct"}
# What a folder of lib/, and capi, may include beside itself.
SEES = {"core": {"include"}, "primitive": {"include", "core"}, "cuda": {"include", "core", "primitive"},
        **{folder: {"include", "core", "primitive"} for folder in MIDDLE}, "pipeline": {"include", "core", "primitive", "cuda"} | MIDDLE,
        "api": {"include", "core", "primitive", "cuda", "pipeline"} | MIDDLE,
        "transform": {"include", "core", "primitive"}, "exchange": {"include", "core", "primitive", "pipeline", "api", "transform"}, "control": {"include", "core", "plan"}, "sender": {"include", "core", "primitive", "cuda", "feedback", "pipeline", "api", "exchange", "transform"},
        "capi": {"include", "core", "plan", "patch", "pipeline", "api", "exchange", "control", "transform", "sender"}}
# What a folder of tool/, and its main.cpp, may include beside itself and include/.
TOOL_SEES = {"show": set(), "read": {"show"}, "predict": {"show", "read"}, "compare": {"show", "read", "predict"},
             "calibrate": {"show", "read", "compare"}, "plugin_test": {"show", "read"}, "tool": {"show", "read", "predict", "compare", "calibrate", "plugin_test"}}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<([^>]+)>|"([^"]+)")', re.M)
CUDA = re.compile(r"^(cuda|cub/|thrust/|cooperative_groups|nvtx|curand|cublas|nccl|device_|sm_\d)")
STANDARD_C = {"stddef.h", "stdint.h"}
# What a public C header may include beside those. mpi.h and mpi_transport.h are inline functions, which the user's mpicc compiles.
PUBLIC_C = {"deepreduce.h": {"codec.h", "version.h"}, "exchange.h": {"deepreduce.h", "control.h", "transform.h"}, "transform.h": {"deepreduce.h"}, "control.h": {"deepreduce.h"}, "sender.h": {"deepreduce.h"},
            "mpi_transport.h": {"exchange.h", "mpi.h", "stdio.h", "stdlib.h", "string.h"},
            "mpi.h": {"mpi_transport.h", "mpi.h", "sched.h", "stdio.h", "stdlib.h", "string.h", "sys/select.h", "unistd.h"}}


def skipped(path):
    return any(part.startswith((".", "build")) or part == "__pycache__" for part in path.parts)


def without_comments(text):
    """The same lines, with block comments blanked: an #include in one is none."""
    return re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def text_of(path):
    stat = path.stat()
    return read_once(path, stat.st_mtime_ns, stat.st_size)


@functools.cache  # (the self-test reads a tree a hundred times)
def read_once(path, _changed, _size):
    return path.read_text(encoding="utf-8")


@functools.cache
def includes_of(text):
    """(line, name, whether it is quoted) of each include."""
    text = without_comments(text)
    found = []
    for match in INCLUDE.finditer(text):
        line = text.count("\n", 0, match.start(0) + len(match.group(0)) - len(match.group(0).lstrip())) + 1
        found.append((line, match.group(1) or match.group(2), match.group(2) is not None))
    return tuple(found)


class Tree:
    def __init__(self, root):
        self.root = root
        paths = (p.relative_to(root) for p in sorted(root.rglob("*")) if not skipped(p.relative_to(root)))
        self.files = [p for p in paths if (root / p).is_file()]
        self.known = set(self.files)
        self.by_name = {path.as_posix(): path for path in self.files}
        self.sources = [p for p in self.files if p.suffix in SOURCES]

    def includes(self, path):
        """(line, name, the file in the tree or None) of each include."""
        for line, name, quoted in includes_of(text_of(self.root / path)):
            yield line, name, self.find(path, name, quoted)

    def find(self, path, name, quoted):
        places = [path.parent.as_posix()] if quoted else []
        for place in [*places, ".", "lib", "include", "tests"]:
            found = self.by_name.get(posixpath.normpath(posixpath.join(place, name)))
            if found:
                return found
        return None


@functools.cache
def layer(path):
    """Where a file belongs: "include", "core", …, "codec index/golomb", "family golomb", "builtin", "capi", "tool", "tool predict", "bindings", "tests"."""
    parts = path.parts
    if parts[0] == "lib":
        return parts[1]
    if parts[:2] == ("codecs", "family") and len(parts) > 3:
        return f"family {parts[2]}"
    if parts[0] == "codecs":
        return f"codec {parts[1]}/{parts[2]}" if len(parts) > 3 else "builtin"
    if parts[0] == "tool" and len(parts) > 2:
        return f"tool {parts[1]}"
    return parts[0]


def is_standard(name):
    return "/" not in name and ("." not in name or name in STANDARD_C)


def is_family(folder):
    return folder is not None and folder.startswith("family ")


def is_free(tree, header):
    """Whether a family's header, and what it includes, keep to the standard library, primitive and families, as kernels do."""
    return is_family(header and layer(header)) and all(
        is_standard(name) if target is None else layer(target) == "primitive" or target.name == "host_device.hpp" or is_free(tree, target)
        for _, name, target in tree.includes(header))


def judge(tree, path, name, target):
    """Why `path` must not include `name`, or None."""
    mine = layer(path)
    theirs = layer(target) if target else None
    if target is None and CUDA.match(name) and path.suffix not in {".cu", ".cuh"}:
        return "CUDA's headers belong in .cu and .cuh"
    if target is None and name == "mpi.h" and not any(part in {"mpi", "deepreduce_mpi"} or part.startswith("mpi_") for part in path.with_suffix("").parts):
        return "MPI's header belongs in the MPI module"
    if path.name.endswith(("_kernel.hpp", "_tile.hpp")) and not (theirs == "primitive" or (target is None and is_standard(name))):
        own = target is not None and target.parent == path.parent and target.name.endswith(("_kernel.hpp", "_tile.hpp"))
        # The residual is added while the gradient is read.
        feeds = mine == "sparsify" and theirs == "feedback" and target.name.endswith("_kernel.hpp")
        return None if own or feeds or is_free(tree, target) else "a kernel or tile includes the standard library, primitive, headers of families that do so, and the kernels beside it only"
    if mine == "include":
        if path.suffix == ".h":
            allowed = STANDARD_C | PUBLIC_C.get(path.name, set())
            return None if name in allowed else f"a public C header includes {' and '.join(sorted(allowed))} only"
        if theirs not in {"include", None} or (target is None and not is_standard(name)):
            return "a public C++ header includes the standard library and public headers only"
    elif mine in SEES:
        launches = path.suffix == ".cu" or path.name.endswith("_device.cpp")
        if theirs not in SEES[mine] | {mine, None} | ({"cuda"} if launches else set()):
            return f"{mine} does not see {theirs}"
        if str(target) == "lib/feedback/feedback_kinds.hpp" and mine != "feedback":
            return "the list of built-ins alone names kinds of feedback: ask feedback_kind for a trait"
    elif is_family(mine):
        if theirs not in {"include", "core", "primitive", mine, None} and not is_family(theirs):
            return f"a family includes neither a codec nor more of the engine than core and primitive, so not {theirs}"
    elif mine.startswith("codec "):
        sparsifier = mine.startswith("codec sparsify/")
        own_list = "sparsifiers.hpp" if sparsifier else "builtin.hpp"
        if theirs == "builtin":
            return None if target.name == own_list else f"it includes {own_list} of codecs/ only"
        if theirs not in {"include", "core", "primitive", mine, None} | ({"sparsify"} if sparsifier else set()) | ({"cuda"} if path.suffix in {".cu", ".cuh"} else set()) and not is_family(theirs):
            return f"a codec includes neither another codec nor more of the engine than core and primitive, so not {theirs}"
    elif mine == "builtin" and path.stem == "small_calls" and target is not None and (target.name.endswith("_tile.hpp") or theirs == "cuda"):
        return None  # it lists the kernels of which a fused one consists
    elif mine == "builtin":
        if theirs not in {"include", "core", "builtin", None} and str(target) not in {"lib/sparsify/sparsifier.hpp", "lib/feedback/feedback_kinds.hpp"}:
            return f"the list of built-ins does not see {theirs}"
    elif mine.split()[0] == "tool":
        folder = theirs.removeprefix("tool ") if theirs else None
        if theirs not in {"include", mine, None} and folder not in TOOL_SEES.get(mine.removeprefix("tool "), set()):
            return f"{mine} sees include/ only" if not theirs.startswith("tool") else f"{mine} does not see {theirs}"
    elif mine in {"bindings", "examples"}:
        if theirs not in {"include", mine, None}:
            return f"{mine} sees include/ only"
    elif mine not in {"tests", "bench", "datasets"}:
        return f"no rule says what {mine} may include: give it one in layering.py"
    return None


# libstdc++ writes these with builtins that nvcc knows on the host alone; on a device they are silently constants. bits.hpp has its own.
BITS = re.compile(r"std::(bit_width|bit_floor|bit_ceil|has_single_bit|popcount|count[lr]_(?:zero|one))\b")


def check_bits(tree):
    for path in tree.sources:
        device = path.name.endswith(("_kernel.hpp", "_tile.hpp", ".cu", ".cuh")) or path.parts[:2] in {("lib", "primitive"), ("codecs", "family")}
        if not device or path.name == "bits.hpp":
            continue
        for number, line in enumerate(text_of(tree.root / path).splitlines(), 1):
            found = BITS.search(line)
            if found and "on the host only" not in line:
                yield f"{path}:{number}: std::{found.group(1)} is wrong on a GPU: take primitive/bits.hpp's, or say that it is used on the host only"


INSTRUCTIONS = re.compile(r"^DR_(AVX2|AVX512)_BEGIN|^#include .*\bneon_vectors\.hpp")


def check_twins(tree):
    """In codecs and primitive, code for more than the base CPU is in NAME_avx2.cpp, NAME_avx512.cpp or, inlined into these, NAME_vectors.hpp;
    everywhere, code of NEON is in NAME_neon.cpp or such a header, and has the instructions from neon_vectors.hpp (nvcc must not read them)."""
    for path in tree.sources:
        strict = path.parts[0] == "codecs" or path.parts[:2] == ("lib", "primitive")
        for number, line in enumerate(text_of(tree.root / path).splitlines(), 1):
            found = INSTRUCTIONS.match(line)
            if found and (strict or not found.group(1)):
                isa = found.group(1) or "NEON"
                if not path.name.endswith((f"_{isa.lower()}.cpp", "_vectors.hpp")):
                    yield f"{path}:{number}: code for {isa} belongs in a file NAME_{isa.lower()}.cpp, or NAME_vectors.hpp"
            if "<arm_neon.h>" in line and path.name != "neon_vectors.hpp":
                yield f"{path}:{number}: NEON's instructions come from primitive/neon_vectors.hpp"


def registry_rows(text):
    """(role, id, name, fields) of each row with a number."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [(r[0], int(r[1]), r[2].strip("`"), r[3] if len(r) > 3 else "") for r in rows if len(r) > 2 and r[1].isdigit()]


def check_codecs(tree, listed):
    folders = sorted({p.parts[:3] for p in tree.files if p.parts[0] == "codecs" and len(p.parts) > 3})
    registry = Path("codecs/REGISTRY.md")
    rows = registry_rows((tree.root / registry).read_text(encoding="utf-8")) if registry in tree.known else None
    for folder in folders:
        if folder[1] == "family":
            if Path(*folder) / "README.md" not in tree.known:
                yield f"{Path(*folder)}: no README.md"
            continue
        spec = Path(*folder) / "SPEC.md"
        if spec not in tree.known:
            yield f"{Path(*folder)}: no SPEC.md"
            continue
        heading = re.match(r"# (\w+) `(\w+)`, id (\d+)", (tree.root / spec).read_text(encoding="utf-8"))
        if not heading or heading.group(1, 2) != folder[1:]:
            yield f"{spec}:1: it does not begin with # {folder[1]} `{folder[2]}`, id N"
        elif rows is not None and (heading.group(1), int(heading.group(3)), heading.group(2)) not in {r[:3] for r in rows}:
            yield f"{spec}:1: {registry} has no row of {heading.group(1)}, {heading.group(3)}, {heading.group(2)}"
    if rows is None:
        return
    for i, row in enumerate(rows):
        for other in rows[:i]:
            if row[0] == other[0] and (row[1] == other[1] or row[2] == other[2]):
                yield f"{registry}: {row[0]} {row[1]} {row[2]}: id or name comes twice"
    for codec in listed or []:
        if codec not in rows:
            yield f"{registry}: no row of {' | '.join(map(str, codec))}, which the library has"


# Names of codecs that are English words, too: in a sentence they are not a codec.
WORDS = {"all", "block", "blocks", "changed", "chunks", "half", "history", "magnitude", "momentum", "natural", "none", "planes", "random", "raw", "residual",
         "seeded", "sign", "sketch", "ternary", "threshold"}
# What in lib/ may name codecs: presets, and the declarations of feedback.
NAMING = {"lib/plan/named_plans.cpp", "lib/plan/named_plans.hpp", "lib/feedback/feedback_kinds.cpp"}
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
TRAILING = re.compile(r'("(?:[^"\\\n]|\\.)*")|//.*')


def check_names(tree):
    """No file of lib names a codec in a string: a codec declares what the engine asks of it (lib/core/codec_notes.hpp), or has a trait."""
    registry = tree.root / "codecs/REGISTRY.md"
    if not registry.exists():
        return
    names = {name for _, _, name, _ in registry_rows(text_of(registry))}
    plain = "|".join(sorted(names - WORDS, key=len, reverse=True))
    every = "|".join(sorted(names, key=len, reverse=True))
    # `none` alone is a word of plans, too.
    pattern = re.compile(rf"(?<![\w-])(?:{plain})(?![\w-])|(?:index|value|order|bytes|sparsify|feedback)=(?:{every})\b|\b(?:{every})\(|^(?!none$)(?:{every})$")
    for path in tree.sources:
        if path.parts[0] != "lib" or str(path) in NAMING:
            continue
        for number, line in enumerate(without_comments(text_of(tree.root / path)).splitlines(), 1):
            if line.lstrip().startswith(("#", "//")):
                continue
            for literal in LITERAL.findall(TRAILING.sub(lambda m: m.group(1) or "", line)):
                if found := pattern.search(literal):
                    yield f'{path}:{number}: "{literal}" names the codec {found.group()}: ask for a trait, or a note of its declaration'


def graph(tree):
    """room: the rooms that it includes, for lib/, capi and codecs/. A codec is the room `codecs`, a family each its own."""
    sees = {}
    for path in tree.sources:
        if path.parts[0] in {"include", "lib", "codecs", "capi"}:
            mine = room(path)
            sees.setdefault(mine, set()).update(room(target) for _, _, target in tree.includes(path) if target)
            sees[mine].discard(mine)
    return sees


def room(path):
    name = layer(path)
    return "codecs" if name.startswith("codec ") or name == "builtin" else name


def circle(sees):
    """A list of nodes, each of which includes the next and the last the first; or []."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node):]
        if node in done:
            return []
        path.append(node)
        for other in sorted(sees.get(node, ())):
            if found := visit(other):
                return found
        done.add(path.pop())
        return []

    for node in sorted(sees):
        if found := visit(node):
            return found
    return []


def check_circles(tree):
    """Rooms, and headers, that include one another."""
    headers = {path: {target for _, _, target in tree.includes(path) if target} for path in tree.sources}
    for what, sees in (("rooms", graph(tree)), ("headers", headers)):
        if found := circle(sees):
            yield f"{found[0]}: a circle of {what}: {' -> '.join(map(str, [*found, found[0]]))}"


def print_graph(tree):
    """Rooms from the bottom up: each includes only rooms above its line."""
    sees, printed = graph(tree), set()
    while left := sorted(sees.keys() - printed):
        free = [name for name in left if sees[name] <= printed]
        if not free:
            sys.exit(f"a circle among {', '.join(left)}")
        for name in free:
            print(f"{name}: {' '.join(sorted(sees[name])) or '-'}")
        printed.update(free)


LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
CITED = re.compile(r"`([a-z0-9_]+(?:/[A-Za-z0-9_.]+)+\.(?:cpp|hpp|h|cu|cuh|md|py))`")


def check_documents(tree):
    """Links of every page lead somewhere; so do the paths that docs/ cites."""
    for path in tree.files:
        if path.suffix != ".md" or (tree.root / path).is_symlink():
            continue
        for number, line in enumerate(text_of(tree.root / path).splitlines(), 1):
            for name in LINK.findall(line):
                if not (tree.root / path.parent / name).exists():
                    yield f"{path}:{number}: the link to {name} leads nowhere"
            for name in CITED.findall(line) if path.parts[0] == "docs" else ():
                if not any((tree.root / place / name).exists() for place in (".", "lib")) and "NAME" not in name:
                    yield f"{path}:{number}: there is no {name}"


def check(root, listed=None):
    tree = Tree(root)
    for path in tree.sources:
        for line, name, target in tree.includes(path):
            why = judge(tree, path, name, target)
            if why:
                yield f"{path}:{line}: includes {name}: {why}"
    places = {}
    for path in tree.sources + [p for p in tree.files if p.suffix == ".py" and p.name not in {"__init__.py", "__main__.py"} and p.parts[-2:-1] != ("grace",)]:  # (an alias, of the names that it stands for)
        places.setdefault(path.name, []).append(path)
    for paths in places.values():
        if len(paths) > 1:
            yield f"{paths[1]}: the name is taken by {paths[0]}"
    yield from check_circles(tree)
    yield from check_bits(tree)
    yield from check_documents(tree)
    yield from check_twins(tree)
    yield from check_codecs(tree, listed)
    yield from check_names(tree)


def list_codecs(program):
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    cells = (line.split("\t") for line in lines)
    return [(role, int(number), name, fields) for role, number, name, fields in cells]


# ---- the test of the test --------------------------------------------------------------------------------

# (file, what is put at its end, or None to remove it, a part of the complaint that is expected)
PLANTS = [
    ("lib/primitive/planted.hpp", "inline int f(unsigned x) { return std::popcount(x); }", "std::popcount is wrong on a GPU"),
    ("include/deepreduce/codec.h", "#include <stdlib.h>", "public C header"),
    ("include/deepreduce/codec.h", '#include "version.h"', "public C header"),
    ("include/deepreduce/version.h", "#include <stdbool.h>", "public C header"),
    ("include/deepreduce/deepreduce.h", "#include <string.h>", "public C header"),
    ("include/deepreduce/mpi.h", "#include <pthread.h>", "public C header"),
    ("include/deepreduce/exchange.h", '#include "mpi_transport.h"', "public C header"),
    ("include/deepreduce/exchange.h", "#include <mpi.h>", "MPI"),
    ("include/deepreduce/codec.hpp", '#include "core/error.hpp"', "public C++ header"),
    ("include/deepreduce/deepreduce.hpp", "#include <zlib.h>", "public C++ header"),
    ("lib/core/error.hpp", '#include "primitive/bits.hpp"', "core does not see primitive"),
    ("lib/primitive/bits.hpp", '#include "stage/chain.hpp"', "primitive does not see stage"),
    ("lib/merge/merge.cpp", '#include "split/split.hpp"', "merge does not see split"),
    ("lib/split/split.cpp", "  #  include <container/frame.hpp>", "split does not see container"),
    ("lib/container/frame.cpp", '#include "pipeline/encode.hpp"', "container does not see pipeline"),
    ("lib/plan/syntax.cpp", '#include "codecs/builtin.hpp"', "plan does not see builtin"),
    ("lib/stage/chain.cpp", '#include "../merge/merge.hpp"', "stage does not see merge"),
    ("lib/pipeline/encode.cpp", '#include "codecs/value/qsgd/qsgd_kernel.hpp"', "pipeline does not see codec value/qsgd"),
    ("lib/pipeline/encode.cpp", '#include "capi/guard.hpp"', "pipeline does not see capi"),
    ("lib/pipeline/encode.cpp", '#include "api/context.hpp"', "pipeline does not see api"),
    ("lib/api/context.cpp", '#include "capi/handles.hpp"', "api does not see capi"),
    ("lib/api/context.cpp", '#include "exchange/rank_exchange.hpp"', "api does not see exchange"),
    ("lib/exchange/exchange.cpp", '#include "container/frame.hpp"', "exchange does not see container"),
    ("lib/exchange/exchange.cpp", '#include "capi/handles.hpp"', "exchange does not see capi"),
    ("lib/pipeline/bind.cpp", '#include "exchange/program.hpp"', "pipeline does not see exchange"),
    ("include/deepreduce/deepreduce.h", '#include "exchange.h"', "public C header"),
    ("include/deepreduce/transform.h", '#include "exchange.h"', "public C header"),
    ("lib/api/context.cpp", '#include "plan/syntax.hpp"', None),
    ("lib/api/library.cpp", '#include "codecs/builtin.hpp"', "api does not see builtin"),
    ("capi/capi_encode.cpp", '#include "pipeline/encode.hpp"', None),
    ("capi/capi_encode.cpp", '#include "container/frame.hpp"', "capi does not see container"),
    ("capi/capi_state.cpp", '#include "feedback/residual.hpp"', "capi does not see feedback"),
    ("capi/capi_context.cpp", '#include "primitive/cpu.hpp"', "capi does not see primitive"),
    ("codecs/value/qsgd/qsgd_kernel.hpp", '#include "deepreduce/codec.h"', "kernel"),
    ("codecs/value/qsgd/qsgd_kernel.hpp", "#include <zlib.h>", "kernel"),
    ("lib/sparsify/select_tile.hpp", '#include "feedback/feedback_kernel.hpp"', None),
    ("lib/sparsify/select_tile.hpp", '#include "feedback/residual.hpp"', "kernel"),
    ("lib/merge/merge_tile.hpp", '#include "feedback/feedback_kernel.hpp"', "kernel"),
    ("lib/sparsify/select.cpp", '#include "feedback/residual.hpp"', "sparsify does not see feedback"),
    ("lib/pipeline/keep_feedback.cpp", '#include "feedback/feedback_kinds.hpp"', "names kinds of feedback"),
    ("lib/pipeline/keep_feedback.cpp", '#include "feedback/feedback_kind.hpp"', None),
    ("codecs/index/bloom/bloom_kernel.hpp", '#include "core/error.hpp"', "kernel"),
    ("codecs/index/rice/rice_codec.cpp", '#include "codecs/index/bloom/bloom_kernel.hpp"', "another codec"),
    ("codecs/index/golomb/golomb_codec.cpp", '#include "container/frame.hpp"', "not container"),
    ("codecs/index/rice/rice_codec.cpp", '#include "sparsify/select.hpp"', "not sparsify"),
    ("codecs/index/rice/rice_codec.cpp", '#include "codecs/sparsifiers.hpp"', "builtin.hpp of codecs/ only"),
    ("codecs/sparsify/topr/topr_sparsifier.cpp", '#include "container/frame.hpp"', "not container"),
    ("codecs/value/qsgd/qsgd_kernel.hpp", '#include "codecs/family/golomb/golomb.hpp"', None),
    ("codecs/value/qsgd/qsgd_kernel.hpp", '#include "codecs/family/golomb/golomb_index.hpp"', "kernel"),  # it includes codec.hpp
    ("codecs/value/qsgd/qsgd_codec.cpp", '#include "codecs/family/golomb/golomb_index.hpp"', None),
    ("codecs/family/golomb/golomb_tile.hpp", '#include "deepreduce/codec.hpp"', "kernel"),
    ("codecs/family/golomb/golomb.hpp", '#include "codecs/index/bloom/bloom_kernel.hpp"', "not codec index/bloom"),
    ("codecs/family/golomb/golomb.hpp", '#include "stage/chain.hpp"', "not stage"),
    ("codecs/family/golomb/golomb.hpp", "inline int g(unsigned x) { return std::bit_width(x); }", "std::bit_width is wrong on a GPU"),
    ("codecs/family/huffman/level_huffman.hpp", '#include "codecs/family/levels/split_levels.hpp"', "a circle of rooms"),
    ("lib/pipeline/encode.cpp", '#include "codecs/family/golomb/golomb.hpp"', "pipeline does not see family golomb"),
    ("lib/primitive/bits.hpp", '#include "codecs/family/golomb/golomb.hpp"', "primitive does not see family golomb"),
    ("codecs/family/golomb/README.md", None, "codecs/family/golomb: no README.md"),
    ("codecs/value/qsgd/qsgd_payload_kernel.hpp", "DR_AVX2_BEGIN", "NAME_avx2.cpp"),
    ("codecs/value/qsgd/qsgd_avx2.cpp", "DR_AVX512_BEGIN", "NAME_avx512.cpp"),
    ("codecs/value/qsgd/qsgd_vectors.hpp", "DR_AVX512_BEGIN", None),
    ("codecs/value/qsgd/qsgd_kernel.hpp", '#include "primitive/neon_vectors.hpp"', "NAME_neon.cpp"),
    ("lib/sparsify/select.cpp", '#include "primitive/neon_vectors.hpp"', "NAME_neon.cpp"),
    ("codecs/value/qsgd/qsgd_neon.cpp", '#include "primitive/neon_vectors.hpp"', None),
    ("codecs/value/qsgd/qsgd_neon.cpp", "#include <arm_neon.h>", "neon_vectors.hpp"),
    ("codecs/order/bitpack/bitpack_codec.cpp", '#include "exchange/star.hpp"', None),  # there is no such file: no complaint
    ("codecs/builtin.cpp", '#include "sparsify/select.hpp"', "list of built-ins does not see sparsify"),
    ("codecs/builtin.cpp", '#include "sparsify/select_tile.hpp"', "list of built-ins does not see sparsify"),
    ("codecs/small_calls.cpp", '#include "pipeline/batch.hpp"', "list of built-ins does not see pipeline"),
    ("tool/main.cpp", '#include "core/pool.hpp"', "include/ only"),
    ("tool/compare/compare.cpp", '#include "core/pool.hpp"', "include/ only"),
    ("tool/predict/network.cpp", '#include "tool/compare/row.hpp"', "tool predict does not see tool compare"),
    ("tool/compare/compare.cpp", '#include "tool/options.hpp"', "tool compare does not see tool"),
    ("tool/calibrate/codec_costs.cpp", '#include "tool/compare/row.hpp"', None),
    ("bindings/python/deepreduce/fast.cpp", '#include "lib/core/error.hpp"', "include/ only"),
    ("examples/sgd_mpi.c", '#include "core/pool.hpp"', "include/ only"),
    ("lib/primitive/bits.hpp", "#include <cuda_runtime.h>", "CUDA"),
    ("lib/primitive/bits.hpp", "#include <cub/cub.cuh>", "CUDA"),
    ("lib/cuda/compact.cu", "#include <cub/cub.cuh>", None),
    ("lib/pipeline/decode.cpp", "#include <mpi.h>", "MPI"),
    ("bindings/mpi/driver.cpp", "#include <mpi.h>", None),
    ("lib/pipeline/decode.cpp", "/*\n#include <mpi.h>\n*/", None),
    ("lib/newcomer/new.cpp", '#include "core/error.hpp"', "no rule says what newcomer"),
    ("lib/core/error.hpp", '#include "core/registry.hpp"', "a circle of headers"),
    ("lib/split/merge.cpp", "", "the name is taken"),
    ("tests/lint/decoder.py", "", "the name is taken"),
    ("codecs/index/golomb/SPEC.md", None, "codecs/index/golomb: no SPEC.md"),
    ("codecs/index/delta/delta_codec.cpp", "", "codecs/index/delta: no SPEC.md"),
    ("codecs/value/qsgd/SPEC.md", "", "does not begin"),
    ("docs/ARCHITECTURE.md", "[nothing](nowhere.md)", "leads nowhere"),
    ("docs/ARCHITECTURE.md", "`pipeline/nowhere.cpp`", "there is no pipeline/nowhere.cpp"),
    ("codecs/REGISTRY.md", "| index | 2 | twice | |", "comes twice"),
    ("lib/pipeline/bind.cpp", 'const char* best = "bloom";', "names the codec bloom"),
    ("lib/plan/stage_words.cpp", 'const char* best = "one of rice, bitmap";', "names the codec rice"),
    ("lib/api/state.cpp", 'const char* plan = "needs sparsify=changed";', "names the codec sparsify=changed"),
    ("lib/api/state.cpp", 'const char* kind = "residual";', "names the codec residual"),
    ("lib/pipeline/bind.cpp", 'const char* plan = "half(type=bf16)";', "names the codec half("),
    ("lib/api/state.cpp", 'const char* said = "the residual, of all elements"; // "bloom"', None),
    ("lib/plan/named_plans.cpp", 'const char* preset = "index=rice";', None),
    ("tool/main.cpp", 'const char* plan = "index=rice";', None),
]


def is_circle(sentence):
    return sentence is not None and "circle" in sentence


def batches():
    """PLANTS in lists that are planted at a time: of a file one, what is allowed apart from what is not, and a circle alone, since the first
    one that is found is reported."""
    found = []
    for plant in PLANTS:
        name, _, sentence = plant
        alone = is_circle(sentence)
        for kind, batch in found:
            if not alone and kind == (sentence is None) and all(other[0] != name for other in batch):
                batch.append(plant)
                break
        else:
            found.append(("alone" if alone else sentence is None, [plant]))
    return [batch for _, batch in found]


def plant_into(copy, name, text):
    """Returns what takes it back; None where there is no such page."""
    path = copy / name
    old = path.read_text(encoding="utf-8") if path.exists() else None
    if text is not None and path.suffix == ".md" and old is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is None:
        path.unlink()
    else:
        path.write_text("" if text == "" else (old or "") + "\n" + text + "\n", encoding="utf-8")
    return path.unlink if old is None else functools.partial(path.write_text, old, encoding="utf-8")


def judged_right(plant, faults):
    name, _, sentence = plant
    if sentence is None:
        return not any(fault.startswith(f"{name}:") for fault in faults)
    return any(sentence in fault and (is_circle(sentence) or name in fault or str(Path(name).parent) in fault) for fault in faults)


def self_test(root):
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        for path in Tree(root).files:
            if path.suffix in SOURCES | {".py", ".md"}:
                (copy / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / path, copy / path)
        before = set(check(copy))
        for batch in batches():
            planted = {plant: plant_into(copy, *plant[:2]) for plant in batch}
            faults = sorted(set(check(copy)) - before)
            for plant, take_back in planted.items():
                if take_back:
                    take_back()
                    if not judged_right(plant, faults):
                        failures += 1
                        print(f"planted in {plant[0]}: {plant[1]}\n  expected: {plant[2] or 'nothing'}\n  said: {faults or 'nothing'}")
        missing = [(role, 99, name, fields) for role, _, name, fields in registry_rows((copy / "codecs/REGISTRY.md").read_text())[:1]] if (copy / "codecs/REGISTRY.md").exists() else []
        if missing and not any("no row of" in s for s in check(copy, missing)):
            failures += 1
            print("a codec of the library that REGISTRY.md does not have goes unnoticed")
        if set(check(copy)) != before:
            failures += 1
            print("the self-test leaves its copy changed")
    print(f"{len(PLANTS) - failures} of {len(PLANTS)} planted violations were judged right")
    return failures


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--self-test"]:
        sys.exit(self_test(Path(arguments[1]).resolve()) != 0)
    if arguments[:1] == ["--graph"]:
        return print_graph(Tree(Path(arguments[1]).resolve()))
    root = Path(arguments[0]).resolve()
    found = sorted(check(root, list_codecs(arguments[1]) if len(arguments) > 1 else None))
    print("\n".join(found) or "every include keeps to the rules")
    sys.exit(found != [])


if __name__ == "__main__":
    main()
