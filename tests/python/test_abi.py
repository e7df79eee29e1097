"""deepreduce._native._abi and _abi_*.py agree with the headers: constants, structs, functions. Needs no library.

The headers are read with a few regular expressions, and once more by the C compiler, which prints sizes and
offsets.
"""

import ctypes
import functools
import importlib
import inspect
import os
import pathlib
import re
import shutil
import subprocess
import types

import pytest

pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

from deepreduce import errors  # noqa: E402
from deepreduce._native import _abi, _abi_control, _abi_exchange, _abi_plan, _abi_sender, _abi_transform  # noqa: E402

MODULES = (_abi, _abi_plan, _abi_exchange, _abi_transform, _abi_control, _abi_sender)
MIRROR = types.SimpleNamespace(
    **{
        **{name: value for module in MODULES for name, value in vars(module).items()},
        "FUNCTIONS": {name: types_ for module in MODULES for name, types_ in module.FUNCTIONS.items()},
    }
)

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"
HEADERS = ("version.h", "codec.h", "deepreduce.h", "exchange.h", "transform.h", "control.h", "sender.h")

# Of codec.h: what only codecs written in C use.
NOT_MIRRORED = {
    "dr_value",
    "dr_params",
    "dr_job",
    "dr_size_rule",
    "dr_need",
    "dr_kernel",
    "dr_sort",
    "dr_exec",
    "dr_ops",
    "dr_host",
}
NOT_MIRRORED_TYPEDEFS = {"dr_plugin_fn"}

SCALARS = {
    "char": ctypes.c_char,
    "double": ctypes.c_double,
    "float": ctypes.c_float,
    "int32_t": ctypes.c_int32,
    "size_t": ctypes.c_size_t,
    "uint8_t": ctypes.c_uint8,
    "uint16_t": ctypes.c_uint16,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
}


# ---- A reader of these headers ------------------------------------------------------------------


def header(name):
    text = (INCLUDE / "deepreduce" / name).read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"//[^\n]*", " ", text)


TEXT = "\n".join(header(name) for name in HEADERS)


def constant(text):
    """Value of a C constant: a number, a shift, a string, UINT64_MAX."""
    text = text.strip()
    if text.startswith('"'):
        return text.strip('"')
    if text == "UINT64_MAX":
        return 2**64 - 1
    plain = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)[uUlL]*\b", r"\1", text)
    assert re.fullmatch(r"[0-9a-fA-Fx\s<()|+-]+", plain), f"unforeseen constant: {text}"
    return eval(plain)  # noqa: S307 (digits and operators only, as just checked)


@functools.cache
def macros():
    """Object-like macros with a value, but for the include guards and DR_API."""
    found = dict(re.findall(r"^[ \t]*#define[ \t]+(DR_\w+)[ \t]+(\S[^\n]*)$", TEXT, flags=re.M))
    found.pop("DR_API", None)
    return {name: constant(value) for name, value in found.items() if not name.startswith("DR_API")}


def enumerators():
    found = {}
    for body in re.findall(r"\benum\s*\w*\s*\{([^}]*)\}", TEXT):
        following = 0
        for entry in filter(None, (text.strip() for text in body.split(","))):
            name, _, value = (part.strip() for part in entry.partition("="))
            found[name] = constant(value) if value else following
            following = found[name] + 1
    return found


@functools.cache
def typedefs():
    """Names for scalars: typedef int32_t dr_status."""
    return {name: kind for kind, name in re.findall(r"\btypedef\s+(\w+)\s+(dr_\w+)\s*;", TEXT)}


def opaque():
    return set(re.findall(r"\btypedef\s+struct\s+(\w+)\s+\1\s*;", TEXT))


def bodies():
    """name: text between the braces of a struct"""
    found = re.findall(r"\btypedef\s+struct\s+(\w+)\s*\{(.*?)\}\s*\1\s*;", TEXT, flags=re.S)
    return {name: " ".join(body.split()) for name, body in found}


def structs():
    """name: [(member, its ctypes type)]"""
    return {
        name: [member for declaration in body.split(";") if declaration.strip() for member in members(declaration.strip())]
        for name, body in bodies().items()
        if name not in NOT_MIRRORED
    }


def members(declaration):
    """[(name, type)] of `uint64_t a, b`, `const T *a, *b`, `char a[8]`, `R (*f)(A, B)`."""
    pointer = re.fullmatch(r"(.+?)\(\s*\*\s*(\w+)\s*\)\s*\((.*)\)", declaration)
    if pointer:
        result, name, arguments = pointer.groups()
        return [(name, function_type(result, arguments))]
    base, declarators = re.fullmatch(r"((?:const\s+)?\w+)\s*(.*)", declaration).groups()
    found = []
    for declarator in declarators.split(","):
        stars, name, length = re.fullmatch(r"\s*((?:\*|const|\s)*)(\w+)\s*(?:\[(\w+)\])?\s*", declarator).groups()
        kind = ctype(base + " " + stars)
        if length:
            kind = kind * (int(length) if length.isdigit() else macros()[length])
        found.append((name, kind))
    return found


def ctype(text):
    """The ctypes type of a C type: void* and pointers to unknown things are c_void_p, char* is c_char_p."""
    words = text.replace("*", " * ").replace("const", " ").split()
    base, depth = words[0], words.count("*")
    assert len(words) == 1 + depth, f"unforeseen type: {text}"
    if base == "void":
        if depth == 0:
            return None
        kind, depth = ctypes.c_void_p, depth - 1
    elif base == "char" and depth:
        kind, depth = ctypes.c_char_p, depth - 1
    elif base in SCALARS:
        kind = SCALARS[base]
    elif base in typedefs():
        kind = SCALARS[typedefs()[base]]
    else:
        kind = getattr(MIRROR, base)
    for _ in range(depth):
        kind = ctypes.POINTER(kind)
    return kind


def function_type(result, arguments):
    return ctypes.CFUNCTYPE(ctype(result), *argument_types(arguments))


def argument_types(text):
    """Types of `const dr_plan *plan, size_t n`, names or not."""
    text = " ".join(text.split())
    if text in ("", "void"):
        return []
    found = []
    for argument in text.split(","):
        type_only = re.fullmatch(r"\s*((?:const\s+)?\w+\s*(?:\*|const|\s)*?(?:\*\s*)*)\s*(\w+)?\s*", argument)
        found.append(ctype(type_only.group(1)))
    return found


def functions():
    """name: (restype, argtypes)"""
    found = {}
    for result, name, arguments in re.findall(
        r"^DR_API\s+((?:const\s+)?\w+[\s*]*?)\s*\b(dr_\w+)\s*\(([^;]*)\)\s*;", TEXT, flags=re.M
    ):
        found[name] = (ctype(result), argument_types(arguments))
    return found


# ---- The reader reads all there is --------------------------------------------------------------


def test_the_reader_misses_no_function():
    assert len(functions()) == len(re.findall(r"^DR_API\b", TEXT, flags=re.M)) > 20


def test_the_reader_misses_no_struct():
    assert len(bodies()) + len(opaque()) == len(re.findall(r"\btypedef\s+struct\b", TEXT)) > 20


def test_the_reader_misses_no_typedef():
    plain = re.findall(r"\btypedef\b(?!\s+struct\b)[^;]*;", TEXT)
    assert len(typedefs()) + len(NOT_MIRRORED_TYPEDEFS) == len(plain)


def test_the_reader_misses_no_constant():
    names = set(re.findall(r"\bDR_[A-Z0-9_]+\b", "".join(re.findall(r"\benum\s*\w*\s*\{([^}]*)\}", TEXT))))
    assert names == set(enumerators())


# ---- Comparison ---------------------------------------------------------------------------------


def test_constants():
    expected = {**macros(), **enumerators()}
    mirrored = {name: value for name, value in vars(MIRROR).items() if name.startswith("DR_")}
    assert mirrored == expected


def test_typedefs():
    for name, kind in typedefs().items():
        assert getattr(MIRROR, name) is SCALARS[kind], name


def test_structs_are_all_there():
    expected = set(structs()) | opaque()
    mirrored = {
        name
        for name, value in vars(MIRROR).items()
        if isinstance(value, type) and issubclass(value, ctypes.Structure) and value is not ctypes.Structure
    }
    assert mirrored - {"dr_ops"} == expected
    assert NOT_MIRRORED <= set(bodies())


@pytest.mark.parametrize("name", sorted(structs()))
def test_struct(name):
    mirrored = [(field[0], field[1]) for field in getattr(MIRROR, name)._fields_]
    assert [field for field, _ in mirrored] == [field for field, _ in structs()[name]]
    for (field, kind), (_, expected) in zip(mirrored, structs()[name]):
        assert kind is expected, f"{name}.{field}: {kind} in _abi.py, {expected} in the header"


@pytest.mark.parametrize("name", sorted(set(functions()) | set(MIRROR.FUNCTIONS)))
def test_function(name):
    assert name in functions(), "not in the header"
    assert name in MIRROR.FUNCTIONS, "not in _abi.py"
    assert MIRROR.FUNCTIONS[name] == functions()[name]


def test_a_struct_that_may_grow_begins_with_its_size():
    for name, fields in structs().items():
        if "struct_size" in dict(fields):
            assert fields[0] == ("struct_size", ctypes.c_size_t), name


def printed_by_the_compiler(statements, tmp_path):
    """{name: text} of what a C program of these statements prints, a name and a text a line."""
    compiler = shutil.which(os.environ.get("CC", "cc").split()[0])
    if compiler is None:
        pytest.skip("no C compiler (CC, or cc in PATH)")
    lines = [*(f"#include <deepreduce/{name}>" for name in HEADERS), "#include <stdio.h>", "int main(void) {", *statements, "  return 0;", "}", ""]
    (tmp_path / "layout.c").write_text("\n".join(lines))
    subprocess.run([compiler, "-std=c11", "-I", INCLUDE, tmp_path / "layout.c", "-o", tmp_path / "layout"], check=True)
    return dict(line.split() for line in subprocess.check_output([tmp_path / "layout"], text=True).splitlines())


def test_sizes_and_offsets_are_those_of_the_compiler(tmp_path):
    statements, mirrored = [], {}
    for name in sorted(structs()):
        struct = getattr(MIRROR, name)
        statements.append(f'  printf("{name} %zu\\n", sizeof({name}));')
        mirrored[name] = str(ctypes.sizeof(struct))
        for field, _ in structs()[name]:
            statements.append(f'  printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
            mirrored[f"{name}.{field}"] = str(getattr(struct, field).offset)
    assert mirrored == printed_by_the_compiler(statements, tmp_path)


def test_constants_are_those_of_the_compiler(tmp_path):
    statements, mirrored = [], {}
    for name in {**macros(), **enumerators()}:
        value = getattr(MIRROR, name)
        mirrored[name] = str(value)
        statements.append(
            f'  printf("{name} %s\\n", {name});'
            if isinstance(value, str)
            else f'  printf("{name} %llu\\n", (unsigned long long){name});'
        )
    assert mirrored == printed_by_the_compiler(statements, tmp_path)


# ---- What holds the ABI itself ------------------------------------------------------------------


def field_names(body):
    """`const T *a, *b` has a and b, `R (*f)(A, B)` has f."""
    for declaration in filter(None, (text.strip() for text in body.split(";"))):
        pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)", declaration)
        names = [pointer.group(1)] if pointer else [part.partition("[")[0].split()[-1] for part in declaration.split(",")]
        yield from (name.lstrip("*") for name in names)


def test_layout_holds_every_struct_field_and_constant():
    """tests/abi/layout.cpp has every field and constant: one that is missing there is not checked."""
    layout = (INCLUDE.parent / "tests/abi/layout.cpp").read_text(encoding="utf-8")
    sizes = set(re.findall(r"^SIZE\((\w+), ", layout, flags=re.M))
    fields = set(re.findall(r"^FIELD\((\w+), (\w+), ", layout, flags=re.M))
    values = set(re.findall(r"^VALUE\((\w+), ", layout, flags=re.M))
    assert sizes == set(bodies())
    assert fields == {(name, field) for name, body in bodies().items() for field in field_names(body)}
    assert values >= set(enumerators())
    for name, struct in structs().items():  # both readers of fields agree
        assert [field for field, _ in struct] == list(field_names(bodies()[name]))


def test_symbols_are_the_functions_of_the_headers():
    symbols = (INCLUDE.parent / "tests/abi/symbols.txt").read_text(encoding="utf-8").split()
    assert symbols == sorted(functions())


def test_exceptions_have_the_numbers_of_dr_status():
    """errors.py has them as numbers: it stands below the room that knows the ABI."""
    found = re.findall(r"code(?:: int)? = (\d+)  # (DR_E_\w+)", inspect.getsource(errors))
    assert len(found) == len(re.findall(r"^    code(?:: int)? = ", inspect.getsource(errors), re.MULTILINE)) == 12
    assert all(int(number) == getattr(MIRROR, name) for number, name in found) and {int(number) for number, _ in found} == set(errors.BY_CODE)


# What programs import, since 0.3, beside deepreduce's own names.
PUBLIC = {
    "batch": "Batch", "book": "Book as_book parse read", "bound": "Bound", "calibrating": "main", "codec": "Broken check compare from_varints index value varints",
    "comparing": "compare", "control": "AdaptiveExchange ControlInfo Controller ladder_of", "decoding": "decode", "encoding": "encode", "errors": "Error PeerError",
    "exchange": "Exchange ExchangeInfo Loopback Transport", "figure": "main", "frame": "DeviceFrame", "header": "Frame FrameTensor frame_size inspect", "merging": "merge",
    "patch": "History Store Sums apply changes encode", "plan": "Codec Plan PlanInfo Stage codecs read_stages", "recording": "Recorder Settings gradients start write_npz",
    "tensor": "Sparse State", "transform": "Transform TransformInfo",
}  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_stay_where_programs_import_them_from(module):
    found = importlib.import_module(f"deepreduce.{module}")
    assert [name for name in PUBLIC[module].split() if not hasattr(found, name)] == []
