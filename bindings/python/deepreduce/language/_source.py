"""The source of a plug-in: everything around the loops."""

from __future__ import annotations

from typing import List

from ._decode import Decode
from ._encode import Encode
from ._loops import CpuWords, Lines, c_text
from ._program import Param, Program
from ._ranges import ALL, ONE, SELECTED, Int
from ._tiles import Kernels

RUNTIME, TILES = "codecs/family/language/drc_runtime.hpp", "codecs/family/language/drc_tiles.hpp"


def c_type(p: Param) -> str:
    return "double" if p.kind == "real" else Int(p.low, p.high).c


def arguments(program: Program) -> str:
    out = Lines()
    out("struct wire_args {  // what decode knows, too")
    for p in program.wires:
        out(f"{c_type(p)} {p.name}_;")
    out("};")
    out("struct encode_args : wire_args {")
    for p in program.params:
        if not p.wire:
            out(f"{c_type(p)} {p.name}_;")
    out("const void* values;")
    out("uint64_t n, key;")
    out("uint8_t* out;")
    out("std::byte* scratch;")
    out("};")
    out("struct decode_args : wire_args {")
    out("void* values;")
    out("uint64_t n, size;")
    out("const uint8_t* in;")
    out("};")
    return out.text()


def layout(program: Program) -> str:
    """Where fields begin: `need` is their end, in closed form."""
    out, words = Lines(), CpuWords()
    counted = program.counted is not None
    out("// Where the fields of n values begin; all that is written ends at `size`.")
    out("struct layout {")
    for f in program.fields:
        out(f"uint64_t {f.name}_at;")
        if f.kind == "u":
            out(f"unsigned {f.name}_bits;")
    out("uint64_t size;")
    out("")
    out(f"DR_HD layout([[maybe_unused]] const wire_args& a, [[maybe_unused]] uint64_t n{', uint64_t kept' if counted else ''}) {{")
    for p in program.wires:
        out(f"[[maybe_unused]] const auto {p.name}_ = a.{p.name}_;")
    out("uint64_t at = 0;")
    for f in program.fields:
        count = {ONE: "1", ALL: "n", SELECTED: "kept"}.get(f.shape) or f"ceil_div(n, static_cast<uint64_t>({f.shape[3:]}_))"
        out(f"{f.name}_at = at;")
        if f.kind in ("f32", "position", "count"):
            out(f"at += 4 * {count};" if count != "1" else "at += 4;")
        elif f.kind == "base":
            out(f"at += ceil_div(n, {f.digits});")
        else:
            assert f.width is not None
            out(f"{f.name}_bits = static_cast<unsigned>({words(f.width)});")
            out(f"at += lang::bits_size({count}, {f.name}_bits);")
    out("size = at;")
    out("}")
    if counted:
        out("static uint64_t least(const wire_args& a, uint64_t n) { return layout(a, n, 0).size; }")
    out("};")
    return out.text()


def operations(program: Program) -> str:
    p, out = program, Lines()
    selected = ", n" if p.counted else ""
    out("wire_args wires_of([[maybe_unused]] const dr_params& p) {")
    out("wire_args a{};")
    for i, q in enumerate(p.wires):
        out(f"a.{q.name}_ = static_cast<{c_type(q)}>(p.fields[{i}]);")
    out("return a;")
    out("}")
    out("")
    out("bool need(const dr_params& p, const dr_job& job, dr_need& need) {")
    out("if (!lang::fits(job)) return false;")
    out("const uint64_t n = job.count_max * job.width;")
    out(f"need.payload = layout(wires_of(p), n{selected}).size;")
    if p.lists:
        out(f"need.encode_scratch = {'8' if p.sorts else '4'} * n + 4 * lang::list_spare;")
    out("return true;")
    out("}")
    out("")
    out("void encode(const dr_params& p, const dr_job& job, [[maybe_unused]] std::byte* scratch) {")
    out("encode_args a{};")
    out("static_cast<wire_args&>(a) = wires_of(p);")
    for i, q in enumerate(p.params):
        if not q.wire:
            out(f"a.{q.name}_ = static_cast<{c_type(q)}>(param_value(p, {i}).number);")
    out("a.values = job.in;")
    out("a.n = lang::values_of(job);")
    out("a.key = job.private_key;")
    out("a.out = job_out<uint8_t>(job);")
    out("a.scratch = scratch;")
    out("const lang::verdict v = with_value_type(job.dtype, [&](auto type) { return encode_at<decltype(type)>.best()(a); });")
    out("if (v.what) {")
    out("fault(job, DR_E_ARGUMENT, v.where, v.found, v.what);")
    out("return;")
    out("}")
    size = f"layout(a, a.n{', load<uint32_t>(a.out + layout(a, a.n, 0).' + p.counted.name + '_at)' if p.counted else ''}).size"
    out(f"*job.out_size = {size};")
    out("}")
    out("")
    out("void decode(const dr_params& p, const dr_job& job, std::byte*) {")
    out("decode_args a{};")
    out("static_cast<wire_args&>(a) = wires_of(p);")
    out("a.values = job.out;")
    out("a.n = lang::values_of(job);")
    out("a.in = job_in<uint8_t>(job);")
    out("a.size = job_in_size(job);")
    out("const lang::verdict v = with_value_type(job.dtype, [&](auto type) { return decode_at<decltype(type)>.best()(a); });")
    out("if (v.what) {")
    out("fault(job, DR_E_CORRUPT, v.where, v.found, v.what);")
    out("return;")
    out("}")
    out("*job.out_size = a.n * value_size(job.dtype);")
    out("}")
    return out.text()


def tables(program: Program, identity: str, cuda: str, room: str) -> str:
    p, out = program, Lines()
    if p.params:
        out("constexpr dr_param params[] = {")
        for q in p.params:
            summary = c_text(q.summary or q.name)
            if q.kind == "choice":
                out(f'  param_choice("{q.name}", {summary}, "{"|".join(q.choices)}", {q.fallback}),')
            else:
                out(f'  param_{q.kind}("{q.name}", {summary}, {float(q.low)!r}, {float(q.high)!r}, {float(q.fallback)!r}),')
        out("};")
    if p.wires:
        out("constexpr dr_field fields[] = {")
        for q in p.wires:
            out(f'  wire_field("{q.name}", {q.low}u, {q.high}u, {q.fallback}u),')
        out("};")
    resolve = f"fields_are_params<{len(p.wires)}>" if p.wires else ""
    out(f"constexpr dr_ops operations = cpu_ops<need, encode, decode>({resolve});")
    traits = ["DR_NEEDS_FINITE"] + ([] if p.counted else ["DR_FIXED_SIZE"]) + (["DR_PRIVATE_RANDOM"] if p.randoms else [])
    out("")
    out(f"}}  // namespace {room}")
    out("")
    out('extern "C" __attribute__((visibility("default"))) const dr_codec* const* dr_plugin_v2(const dr_host* host, size_t* count) {')
    out(f"using namespace {room};")
    parts = [".dtypes = all_value_dtypes"]
    if p.params:
        parts.append(".params = params")
    if p.wires:
        parts.append(".fields = fields")
    if cuda:
        parts.append(f".cuda = {cuda}")
    out(f'static const dr_codec codec = make_codec("{p.name}", {c_text(p.summary or p.name)}, dr_private_id({c_text(identity)}),')
    out(f"  DR_ROLE_VALUE, {' | '.join(traits)}, &operations, {{{', '.join(parts)}}});")
    out("static const dr_codec* const all[] = {&codec};")
    out("if (host->codec_abi != DR_CODEC_ABI_VERSION) return nullptr;")
    out("*count = 1;")
    out("return all;")
    out("}")
    return out.text()


def write(program: Program, origin: str, identity: str, kernels: bool = False) -> str:
    """The source of the plug-in of a program. `origin`: the name of its text. `identity`: what the codec's id is made of.
    `kernels`: with CUDA operations. NoKernels if it can have none."""
    made = Kernels(program) if kernels else None
    device = made.text() if made else ""
    room = f"drc_{program.name}"
    entries = [f"DR_DEVICE_JOB_KERNEL({room}::{name}, {room}::common_args)" for name in made.names()] if made else []
    if entries:
        entries = ["", "#if defined(DR_WITH_CUDA)", '#include "cuda/entry.cuh"', *entries, "#endif"]
    parts: List[str] = [
        f"// The codec {program.name}, made by `deepreduce codec` from {c_text(origin)[1:-1]}: change that, not this.",
        "#include <limits>",
        "",
        f'#include "{TILES if kernels else RUNTIME}"',
        "",
        "using namespace dr;",
        f"namespace {room} {{",
        "",
        arguments(program),
        layout(program),
        Encode(program).text(),
        Decode(program).text(),
        "DRC_TWINS(encode, encode_args)",
        "DRC_TWINS(decode, decode_args)",
        "",
        operations(program),
        device,
        tables(program, identity, "&device_operations" if kernels else "", room),
        *entries,
    ]
    return "\n".join(parts)

