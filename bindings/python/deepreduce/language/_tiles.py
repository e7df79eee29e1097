"""Encode and decode as kernels over a block of lanes: what a GPU runs, and here the CPU that emulates one."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from ._encode import Encode
from ._loops import Lines, block_of, float_limit
from ._program import E, Field, Program
from ._ranges import ALL, ONE, Int, Real
from ._words import Stages, Words, cast, locals_in, partitions_in, walk


class NoKernels(Exception):
    """Why a program has none."""


class LaneWords(Words):
    def __init__(self) -> None:
        self.names: Dict[int, str] = {}

    def leaf(self, e: E) -> str:
        if e.op == "value":
            return "v"
        if e.op == "param" or (e.op in ("local", "sent") and e.shape == ONE):
            return f"k.{e.data.name}_"
        if e.op in ("local", "sent"):
            return f"{e.data.name}_"
        if e.op == "reduce":
            name = self.names[id(e)]
            return f"k.{name}" if e.shape == ONE else f"{name}"
        if e.op == "random":
            return f"unit_interval(draw(lang::key_of(k.key, {e.data}), i))"
        if e.op == "random_bits":
            which, width = e.data
            assert isinstance(e.type, Int)
            word = f"static_cast<uint32_t>(draw(lang::key_of(k.key, {which}), i / 2) >> 32 * (i % 2))"
            return cast(word if width == 32 else f"({word} >> {32 - width})", "uint32_t", e.type.c)
        if e.op == "count_n":
            return "static_cast<int64_t>(k.n)"
        assert e.op == "type_max"
        return "T::largest"


def reductions_of(program: Program) -> List[E]:
    """All of them, what is needed first."""
    found: List[E] = []
    seen = set()
    stack: List[Tuple[E, bool]] = [(local.expr, False) for local in reversed(program.encode)]
    stack = [(r.expr, False) for r in program.encode_requires] + stack
    while stack:
        e, done = stack.pop()
        if done:
            found.append(e)
            continue
        if id(e) in seen:
            continue
        seen.add(id(e))
        stack.append((e, True))
        stack += [(a, False) for a in reversed(e.args)] + ([(e.data.expr, False)] if e.op == "local" else [])
    return [e for e in found if e.op in ("reduce", "kth")]


def rule(program: Program) -> str:
    """The statements that set the rule of a payload's size."""
    strings = [f for f in program.fields if f.shape == ALL and f.kind in ("u", "f32")]
    digits = [f for f in program.fields if f.kind == "base"]
    runs = [f for f in program.fields if f.shape.startswith("by:")]
    whole = [f for f in strings if f.kind == "f32" or f.fixed_width % 8 == 0 and f.fixed_width]
    if len(strings) - len(whole) > 1 or len(digits) > 1 or (digits and runs) or len({f.shape for f in runs}) > 1:
        raise NoKernels("the size of its payload is not one that a GPU can tell")
    if any(f.kind == "u" and (f.fixed_width % 8 or not f.fixed_width) for f in runs):
        raise NoKernels("numbers of runs that are not whole bytes")
    rate = " + ".join("32" if f.kind == "f32" else f"l.{f.name}_bits" for f in strings) or "0"
    lines = [f"dr_size_rule rule = fixed_rate(uint64_t{{{rate}}} * job.width);" if strings else "dr_size_rule rule = fixed_rate(0);"]
    if digits or runs:
        lines.append(f"rule.bucket = {digits[0].digits if digits else f'static_cast<uint32_t>(a.{runs[0].shape[3:]}_)'};")
        lines.append("rule.row_values = job.width;")
        lines.append(f"rule.bucket_bytes = {1 if digits else sum(4 if f.kind == 'f32' else f.fixed_width // 8 for f in runs)};")
    ones = [f for f in program.fields if f.shape == ONE]
    beside = " + ".join("4" if f.kind == "f32" else f"lang::bits_size(1, l.{f.name}_bits)" for f in ones)
    if beside:
        lines.append(f"rule.beside = static_cast<uint32_t>({beside});")
    lines.append("set_rule(need, rule);")
    return "\n".join(lines)


class Kernels:
    def __init__(self, program: Program) -> None:
        p = self.program = program
        if p.counted:
            raise NoKernels("it keeps some of the values")
        self.rule = rule(p)
        self.reductions = reductions_of(p)
        if any(e.op == "kth" for e in self.reductions):
            raise NoKernels("it sorts")
        for e in self.reductions:
            if e.shape == ONE and partitions_in([e.args[0]]):
                raise NoKernels("a number of all values depends on those of runs")
        self.out, self.words, self.block = Lines(), LaneWords(), block_of(p)
        self.stages = Stages(ONE)
        self.of_runs: Dict[str, Stages] = {}
        for k, e in enumerate(self.reductions):
            self.words.names[id(e)] = f"{e.data}_{k}"
        self.all = [e for e in self.reductions if e.shape == ONE]
        self.runs = [e for e in self.reductions if e.shape != ONE]
        self.sums = [e for e in self.all if self.is_real_sum(e)]
        self.last = max((self.stages.of(e) for e in self.all), default=0)
        self.decls = Encode(p)

    @staticmethod
    def is_real_sum(e: E) -> bool:
        return e.data == "sum" and isinstance(e.args[0].type, Real)

    def name(self, e: E) -> str:
        return self.words.names[id(e)]

    def run_stage(self, e: E) -> int:
        return self.of_runs.setdefault(e.shape, Stages(e.shape)).of(e)

    # ---- What lanes know ----

    def known(self) -> None:
        p, out = self.program, self.out
        out("struct common_args : wire_args {")
        for q in p.params:
            if not q.wire:
                out(f"{'double' if q.kind == 'real' else Int(q.low, q.high).c} {q.name}_;")
        out("std::byte* scratch;")
        out("uint32_t dtype, flags;")
        out("};")
        out("struct known : common_args {  // of a job")
        out("const void* values;")
        out("uint64_t n, key;")
        out("lang::room room;")
        for e in self.all:
            out(f"{e.type.c} {self.name(e)};")
        for local in p.encode:
            if local.expr.shape == ONE:
                out(f"{local.expr.type.c} {local.name}_;")
        out("};")
        out(f"constexpr uint64_t words_count = {len(self.all)}, sums_count = {len(self.sums)};")
        out("DR_HD uint64_t runs_size([[maybe_unused]] const wire_args& a, [[maybe_unused]] uint64_t n) {")
        parts = [f"ceil_div(n, static_cast<uint64_t>(a.{e.shape[3:]}_))" for e in self.runs]
        out(f"return {' + '.join(parts) or '0'};")
        out("}")
        out("DR_HD uint64_t scratch_size(const wire_args& a, uint64_t n) {")
        out("return 8 * words_count + 64 + 8 * (sums_count * ceil_div(n, sum_tile) + runs_size(a, n));")
        out("}")
        out("")
        for stage in range(self.last + 1):
            out("template <class T>")
            out(f"DR_HD void scalars_{stage}([[maybe_unused]] known& k) {{")
            for e in self.all:
                if self.stages.of(e) == stage:
                    out(f"k.{self.name(e)} = {self.from_word(e, f'k.room.words[{self.all.index(e)}]')};")
            for local in p.encode:
                if local.expr.shape == ONE and self.stages.of(local.expr) == stage:
                    out(f"k.{local.name}_ = {self.words(local.expr)};")
            out("}")
        out("// What is known after so many passes over the values.")
        out("template <class T>")
        out("DR_HD void learn(known& k, uint32_t passes) {")
        for stage in range(self.last + 1):
            out(f"{f'if (passes >= {stage}) ' if stage else ''}scalars_{stage}<T>(k);")
        out("}")
        out("DR_HD known known_of(const common_args& a, const tile_job& job) {")
        out("known k{};")
        out("static_cast<common_args&>(k) = a;")
        out("k.values = job.in;")
        out("k.n = live_count(job) * job.width;")
        out("k.key = drawn_key(job, a.flags);")
        out("k.room = lang::room::of(a.scratch + uint64_t{64} * job.extra, k.n, words_count, sums_count);")
        out("return k;")
        out("}")
        for e in self.reductions:
            self.term(e)

    def from_word(self, e: E, word: str) -> str:
        t = e.args[0].type
        if self.is_real_sum(e):
            return f"std::bit_cast<double>({word})"
        if e.data == "sum":
            return f"static_cast<{e.type.c}>({word})"
        word = f"~{word}" if e.data == "smallest" else word
        if isinstance(t, Real):
            return f"lang::of_order(lang::of_order_word<int{t.bits}_t>({word}))"
        assert isinstance(t, Int)
        c = "int32_t" if t.truth else t.c
        return cast(f"lang::of_order_word<{c}>({word})", c, e.type.c)

    def to_word(self, e: E, x: str) -> str:
        t = e.args[0].type
        if isinstance(t, Real):
            if t.nan:
                x = f"lang::or_else({x}, {'-' if e.data == 'largest' else ''}std::numeric_limits<{t.c}>::infinity())"
            x = f"lang::in_order({x})"
        else:
            assert isinstance(t, Int)
            x = cast(x, t.c, "int32_t" if t.truth else t.c)
        return f"{'~' if e.data == 'smallest' else ''}lang::order_word({x})"

    def of_value(self, roots: List[E]) -> None:
        """The names of value i."""
        out = self.out
        if any(e.op == "value" for e in walk(roots)):
            out("const float v = number_at<T>(k.values, i);")
        for part in partitions_in(roots):
            out(f"[[maybe_unused]] const uint64_t {part[3:]}_run = i / static_cast<uint64_t>(k.{part[3:]}_);")
            self.of_run(part, roots)
        for local in locals_in(roots, ALL):
            out(f"const {local.expr.type.c} {local.name}_ = {self.words(local.expr)};")

    def of_run(self, part: str, roots: List[E]) -> None:
        """The numbers of run {part}_run."""
        out = self.out
        for e in walk(roots):
            if e.op == "reduce" and e.shape == part:
                out(f"const {e.type.c} {self.name(e)} = {self.from_word(e, f'{self.run_words(e)}[{part[3:]}_run]')};")
        for local in locals_in(roots, part):
            out(f"const {local.expr.type.c} {local.name}_ = {self.words(local.expr)};")

    def run_words(self, e: E) -> str:
        """Where the words of a reduction of runs begin."""
        before = [f"ceil_div(k.n, static_cast<uint64_t>(k.{x.shape[3:]}_))" for x in self.runs[: self.runs.index(e)]]
        return f"(k.room.runs + {' + '.join(before) or '0'})"

    def term(self, e: E) -> None:
        """What of value i is added up, or compared: a double, or a word."""
        out = self.out
        real = self.is_real_sum(e)
        out("template <class T>")
        out(f"DR_HD {'double' if real else 'uint64_t'} {self.name(e)}_term(const known& k, uint64_t i) {{")
        self.of_value([e.args[0]])
        x = self.words(e.args[0])
        if real:
            out(f"return {x};")
        elif e.data == "sum":
            t = e.args[0].type
            assert isinstance(t, Int)
            out(f"return static_cast<uint64_t>({'static_cast<int64_t>(' + x + ')' if t.c != 'uint64_t' else x});")
        else:
            out(f"return {self.to_word(e, x)};")
        out("}")

    # ---- Kernels ----

    def begin(self, name: str, shared: List[str]) -> None:
        out = self.out
        out("template <class Args>")
        out(f"struct {name} {{")
        out(f'static constexpr const char* name = "{self.program.name}_{name}";')
        out("static constexpr unsigned lanes = 256, grid_phases = 1;")
        out("using args = Args;")
        out("struct shared {")
        for line in shared:
            out(line)
        out("};")
        out("")
        out("template <class Block>")
        out("DR_HD static void run(Block& b, [[maybe_unused]] shared& s, const args& a, unsigned) {")
        out("const tile_job& job = job_of_tile(a, b.index());")
        out("const uint32_t tile = b.index() - job.first_tile;")

    def end(self) -> None:
        self.out("}")
        self.out("};")
        self.out("")

    def learned(self, passes: int) -> None:
        self.out("known k = known_of(a.common, job);")
        self.out(f"with_value_type(a.common.dtype, [&](auto type) {{ learn<decltype(type)>(k, {passes}); }});")

    def survey(self, stage: int) -> None:
        out = self.out
        now = [e for e in self.all if self.stages.of(e) == stage]
        self.begin(f"survey_{stage}", ["double part[256], total;"])
        self.learned(stage - 1)
        out("const uint64_t begin = uint64_t{tile} * lang::survey_values;")
        out("if (begin >= k.n) return;")
        out("const auto length = static_cast<uint32_t>(std::min<uint64_t>(k.n - begin, lang::survey_values));")
        for e in now:
            word = self.all.index(e)
            if self.is_real_sum(e):
                out(f"put_tile_sums(b, s.part, length, k.room.sums + {self.sums.index(e)} * ceil_div(k.n, sum_tile) + begin / sum_tile, [&](uint32_t i) {{")
                out(f"return with_value_type(a.common.dtype, [&](auto type) {{ return {self.name(e)}_term<decltype(type)>(k, begin + i); }});")
                out("});")
                continue
            out("{")
            out("typename Block::template each<uint64_t> own;")
            out("b.phase([&](unsigned lane) {")
            out("uint64_t x = 0;")
            out("with_value_type(a.common.dtype, [&](auto type) {")
            out("for (uint32_t i = lane; i < length; i += lanes) {")
            out(f"const uint64_t term = {self.name(e)}_term<decltype(type)>(k, begin + i);")
            out(f"x = {'x + term' if e.data == 'sum' else 'term > x ? term : x'};")
            out("}")
            out("});")
            out("own[lane] = x;")
            out("});")
            out(f"const uint64_t all = b.{'sum' if e.data == 'sum' else 'max'}(own);")
            out("b.phase([&](unsigned lane) {")
            out(f"if (lane == 0) atomic_{'add' if e.data == 'sum' else 'max'}(k.room.words + {word}, all);")
            out("});")
            out("}")
        real = [e for e in now if self.is_real_sum(e)]
        if real:
            out(f"if (!last_of(b, k.room.done + {stage}, static_cast<uint32_t>(ceil_div(k.n, lang::survey_values)))) return;")
            for e in real:
                out(f"add_tile_sums(b, s.part, s.total, k.room.sums + {self.sums.index(e)} * ceil_div(k.n, sum_tile), ceil_div(k.n, sum_tile));")
                out("b.phase([&](unsigned lane) {")
                out(f"if (lane == 0) k.room.words[{self.all.index(e)}] = std::bit_cast<uint64_t>(s.total);")
                out("});")
        self.end()

    def of_run_kernel(self, part: str, stage: int) -> None:
        out, name = self.out, part[3:]
        self.begin(f"runs_{name}_{stage}", ["double part[256], total;"])
        self.learned(self.last)
        out(f"const auto size = static_cast<uint64_t>(k.{name}_), runs = ceil_div(k.n, size);")
        out("const uint64_t each = runs_of_block(size), first = tile * each;")
        out("for (uint64_t r = first; r < first + each && r < runs; ++r) {")
        out("const uint64_t begin = r * size, length = std::min(k.n - begin, size);")
        for e in self.runs:
            if e.shape != part or self.run_stage(e) != stage:
                continue
            call = f"with_value_type(a.common.dtype, [&](auto type) {{ return {self.name(e)}_term<decltype(type)>(k, begin + i); }})"
            if self.is_real_sum(e):
                out(f"lang::run_sum(b, s.part, s.total, length, [&](uint64_t i) {{ return {call}; }});")
                out("b.phase([&](unsigned lane) {")
                out(f"if (lane == 0) {self.run_words(e)}[r] = std::bit_cast<uint64_t>(s.total);")
                out("});")
                continue
            out("{")
            out("typename Block::template each<uint64_t> own;")
            out("b.phase([&](unsigned lane) {")
            out("uint64_t x = 0;")
            out("for (uint64_t i = lane; i < length; i += lanes) {")
            out(f"const uint64_t term = {call};")
            out(f"x = {'x + term' if e.data == 'sum' else 'term > x ? term : x'};")
            out("}")
            out("own[lane] = x;")
            out("});")
            out(f"const uint64_t all = b.{'sum' if e.data == 'sum' else 'max'}(own);")
            out("b.phase([&](unsigned lane) {")
            out(f"if (lane == 0) {self.run_words(e)}[r] = all;")
            out("});")
            out("}")
        out("}")
        self.end()

    def refuse(self, condition: str, where: str) -> None:
        self.out(f"if ({condition}) raise(job.fault, DR_E_ARGUMENT, DR_STREAM_VALUE, {where}, 0);")

    def condition(self, f: Field, x: str) -> Optional[str]:
        self.decls.limits = {}
        bad = self.decls.checked(f, x, self.decls.local(f))
        if bad and f.name in self.decls.limits:
            bad = bad.replace(f"{f.name}_most", self.decls.limits[f.name])
        return bad

    def put(self, f: Field, x: str, at: str) -> None:
        """A number of whole bytes."""
        if f.kind == "f32":
            self.out(f"lang::put<float>({at}, {self.decls.sent_as(f, x)});")
        else:
            self.out(f"lang::put<uint{f.fixed_width}_t>({at}, static_cast<uint{f.fixed_width}_t>({x}));")

    def write(self) -> None:
        p, out = self.program, self.out
        fields = [f for f in p.fields if f.shape == ALL]
        packed = [f for f in fields if f.kind == "base" or f.kind == "u" and f.fixed_width not in (8, 16, 32)]
        requires = [r for r in p.encode_requires if r.expr.shape != ONE]
        self.begin("write", [f"uint32_t {f.name}_codes[{self.block}];" for f in packed])
        self.learned(self.last)
        out(f"const uint64_t begin = uint64_t{{tile}} * {self.block};")
        out("if (begin >= k.n && begin > 0) return;")
        out(f"const auto length = static_cast<uint32_t>(std::min<uint64_t>(k.n - begin, {self.block}));")
        out("[[maybe_unused]] const layout l(k, k.n);")
        out("[[maybe_unused]] auto* const to = static_cast<uint8_t*>(job.out);")
        out("b.phase([&](unsigned lane) {")
        out("with_value_type(a.common.dtype, [&](auto type) {")
        out("using T [[maybe_unused]] = decltype(type);")
        out("if (begin == 0 && lane == 0) {")
        for r in p.encode_requires:
            if r.expr.shape == ONE:
                self.refuse(f"k.n && !{self.words.condition(r.expr)}", "0")
        out("if (k.n) {")
        for f in p.fields:
            if f.shape == ONE:
                x = f"k.{f.name}_"
                bad = self.condition(f, x)
                if bad:
                    self.refuse(bad, "0")
                if f.kind == "f32":
                    self.put(f, x, f"to + l.{f.name}_at")
                else:
                    out(f"for (unsigned byte = 0; byte < lang::bits_size(1, l.{f.name}_bits); ++byte)")
                    out(f"  to[l.{f.name}_at + byte] = static_cast<uint8_t>(static_cast<uint64_t>({x}) >> 8 * byte);")
        out("}")
        out("if (job.fault->code == DR_OK) *job.out_size = k.n ? l.size : 0;")
        out("}")
        for part in sorted({f.shape for f in p.fields if f.shape.startswith("by:")}):
            name, own = part[3:], [f for f in p.fields if f.shape == part]
            out("{")
            out(f"const auto size = static_cast<uint64_t>(k.{name}_);")
            out(f"for (uint64_t {name}_run = ceil_div(begin, size) + lane; {name}_run < ceil_div(begin + length, size); {name}_run += lanes) {{")
            roots = [self.decls.local(f) for f in own]
            self.of_run(part, roots)
            for f in own:
                x = self.words(self.decls.local(f))
                bad = self.condition(f, x)
                if bad:
                    self.refuse(bad, f"{name}_run")
                self.put(f, x, f"to + l.{f.name}_at + {4 if f.kind == 'f32' else f.fixed_width // 8} * {name}_run")
            out("}")
            out("}")
        roots = [self.decls.local(f) for f in fields] + [r.expr for r in requires]
        if roots:
            out("for (uint32_t at = lane; at < length; at += lanes) {")
            out("[[maybe_unused]] const uint64_t i = begin + at;")
            self.of_value(roots)
            for r in requires:
                self.refuse(f"!{self.words.condition(r.expr)}", "i")
            for f in fields:
                x = self.words(self.decls.local(f))
                bad = self.condition(f, x)
                if bad:
                    self.refuse(bad, "i")
                if f in packed:
                    mask = f" & static_cast<uint32_t>(low_mask(l.{f.name}_bits))" if f.kind == "u" else ""
                    out(f"s.{f.name}_codes[at] = static_cast<uint32_t>({x}){mask};")
                else:
                    self.put(f, x, f"to + l.{f.name}_at + {4 if f.kind == 'f32' else f.fixed_width // 8} * i")
            out("}")
        out("});")
        out("});")
        if packed:
            out("b.phase([&](unsigned lane) {")
            for f in packed:
                if f.kind == "base":
                    out(f"for (uint32_t g = lane; g < ceil_div(length, {f.digits}); g += lanes)")
                    out(f"  to[l.{f.name}_at + begin / {f.digits} + g] = lang::digits_byte<{f.base}>(s.{f.name}_codes, length, g, {f.pad});")
                else:
                    out(f"for (uint32_t g = lane; g < lang::bits_size(length, l.{f.name}_bits); g += lanes)")
                    out(f"  to[l.{f.name}_at + begin / 8 * l.{f.name}_bits + g] = lang::packed_byte(s.{f.name}_codes, length, l.{f.name}_bits, g);")
            out("});")
        self.end()

    # ---- Decode ----

    def corrupt(self, condition: str, where: str) -> None:
        self.out(f"if ({condition}) raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, {where}, 0);")

    def in_range(self, f: Field, x: str, where: str) -> None:
        """Raises a fault of a number, and goes on with one that is in range."""
        if f.kind == "f32":
            assert isinstance(f.type, Real)
            bad = f"lang::beyond({x}, {float_limit(f.type.low)}, {float_limit(f.type.high)})"
            self.out(f"if ({bad}) {{")
            self.out(f"raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, {where}, std::bit_cast<uint32_t>({x}));")
            self.out(f"{x} = {float_limit(f.type.low)};")
            self.out("}")
            return
        assert isinstance(f.type, Int)
        conditions = [f"{x} > {f.type.high}u"] + ([f"{x} < {f.type.low}u"] if f.type.low > 0 else [])
        self.out(f"if ({' || '.join(conditions)}) {{")
        self.out(f"raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, {where}, {x});")
        self.out(f"{x} = {f.type.low}u;")
        self.out("}")

    def load(self, f: Field, index: str) -> None:
        out, at = self.out, f"in + l.{f.name}_at"
        if f.kind == "f32":
            out(f"float {f.name}_ = lang::get<float>({at} + 4 * ({index}));")
            self.in_range(f, f"{f.name}_", f"l.{f.name}_at + 4 * ({index})")
            return
        assert isinstance(f.type, Int)
        if f.kind == "base":
            out(f"const uint8_t {f.name}_byte = ({at})[({index}) / {f.digits}];")
            self.corrupt(f"{f.name}_byte >= lang::digits_bytes<{f.base}>", f"l.{f.name}_at + ({index}) / {f.digits}")
            out(f"const auto {f.name}_ = static_cast<{f.type.c}>(lang::digit_of<{f.base}>({f.name}_byte, static_cast<uint32_t>(({index}) % {f.digits})));")
            return
        out(f"uint32_t {f.name}_sent = lang::number_of_bits({at}, {index}, l.{f.name}_bits);")
        self.in_range(f, f"{f.name}_sent", f"l.{f.name}_at")
        out(f"const auto {f.name}_ = static_cast<{f.type.c}>({f.name}_sent);")

    def read(self) -> None:
        p, out = self.program, self.out
        assert p.result is not None
        words = ReadWords()
        words.names = self.words.names
        self.words, before = words, self.words
        self.begin("read", [])
        out("wire_args k = a.common;")
        out("const uint64_t n = live_count(job) * job.width;")
        out(f"const uint64_t begin = uint64_t{{tile}} * {self.block};")
        out("[[maybe_unused]] const layout l(k, n);")
        out("const bool fits = n == 0 || *job.in_size == l.size;")
        out("const auto* const in = static_cast<const uint8_t*>(job.in);")
        out("b.phase([&](unsigned lane) {")
        out("if (begin == 0 && lane == 0 && job.fault->code == DR_OK) {")
        out("if (!fits)")
        out("  raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, 0, *job.in_size);")
        out("else")
        out("  *job.out_size = n * value_size(a.common.dtype);")
        out("}")
        out("if (!fits || n == 0) return;")
        out("if (begin == 0 && lane == 0) {")
        for f in p.fields:
            count = {ONE: "1", ALL: "n"}.get(f.shape) or f"ceil_div(n, static_cast<uint64_t>(k.{f.shape[3:]}_))"
            if f.kind == "u" and (not f.fixed_width or f.fixed_width % 8):
                self.corrupt(f"{count} * l.{f.name}_bits % 8 && (in + l.{f.name}_at)[{count} * l.{f.name}_bits / 8] >> {count} * l.{f.name}_bits % 8", f"l.{f.name}_at")
            if f.kind == "base":
                out(f"for (uint64_t i = n; i % {f.digits}; ++i)")
                self.corrupt(f"lang::digit_of<{f.base}>(in[l.{f.name}_at + n / {f.digits}], static_cast<uint32_t>(i % {f.digits})) != {f.pad}", f"l.{f.name}_at")
        out("}")
        out("with_value_type(a.common.dtype, [&](auto type) {")
        out("using T = decltype(type);")
        out("[[maybe_unused]] auto* const values = static_cast<typename T::bits*>(job.out);")
        for f in p.fields:
            if f.shape == ONE:
                self.load(f, "0")
        for local in p.decode:
            if local.expr.shape == ONE:
                out(f"[[maybe_unused]] const {local.expr.type.c} {local.name}_ = {self.words(local.expr)};")
        for r in p.decode_requires:
            if r.expr.shape == ONE:
                self.corrupt(f"!{self.words.condition(r.expr)}", "0")
        out(f"for (uint64_t i = begin + lane; i < n && i < begin + {self.block}; i += lanes) {{")
        for part in sorted({f.shape for f in p.fields if f.shape.startswith("by:")} | set(partitions_in([p.result]))):
            out(f"[[maybe_unused]] const uint64_t {part[3:]}_run = i / static_cast<uint64_t>(k.{part[3:]}_);")
            for f in p.fields:
                if f.shape == part:
                    self.load(f, f"{part[3:]}_run")
            for local in p.decode:
                if local.expr.shape == part:
                    out(f"[[maybe_unused]] const {local.expr.type.c} {local.name}_ = {self.words(local.expr)};")
        for f in p.fields:
            if f.shape == ALL:
                self.load(f, "i")
        for local in p.decode:
            if local.expr.shape == ALL:
                out(f"[[maybe_unused]] const {local.expr.type.c} {local.name}_ = {self.words(local.expr)};")
        for r in p.decode_requires:
            if r.expr.shape != ONE:
                self.corrupt(f"!{self.words.condition(r.expr)}", "i")
        t = p.result.type
        if isinstance(t, Int):
            x, kind = f"static_cast<double>({self.words.whole(p.result, t.c if not t.truth else 'int32_t')})", "number"
        else:
            x = self.words(p.result)
            kind = "any" if t.nan else "number"
            x = f"static_cast<double>({x})" if t.bits == 0 else x
        out(f"values[i] = lang::returned<T, lang::{kind}>({x});")
        out("}")
        out("});")
        out("});")
        self.end()
        self.words = before

    # ---- The host's side ----

    def host(self) -> None:
        p, out = self.program, self.out
        out("bool device_need(const dr_params& p, const dr_job& job, dr_need& need) {")
        out("if (!lang::fits(job)) return false;")
        out("const wire_args a = wires_of(p);")
        out("const uint64_t n = job.count_max * job.width;")
        out("const layout l(a, n);")
        out("need.payload = l.size;")
        out("need.encode_scratch = scratch_size(a, n);")
        for line in self.rule.splitlines():
            out(line)
        out("return true;")
        out("}")
        out("")
        out("template <template <class> class K, class Tiles>")
        out("dr_status launch_all(const dr_exec& exec, const common_args& a, const dr_job* jobs, size_t n, Tiles&& tiles) {")
        out("uint64_t at = 0;")
        out("return launch_jobs<K>(exec, jobs, n, a, [&](size_t i, tile_job& t) {")
        out("const dr_job& job = *dr_job_at(jobs, i);")
        out("const uint64_t values = job.count_max * job.width;")
        out("t.width = job.width;")
        out("t.extra = static_cast<uint32_t>(at);")
        out("at += ceil_div(scratch_size(a, values), 64);")
        out("return std::max<uint64_t>(1, tiles(job, t, values));")
        out("});")
        out("}")
        out("")
        out("dr_status device_encode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {")
        out("common_args a{};")
        out("static_cast<wire_args&>(a) = wires_of(*p);")
        for i, q in enumerate(p.params):
            if not q.wire:
                c = "double" if q.kind == "real" else Int(q.low, q.high).c
                out(f"a.{q.name}_ = static_cast<{c}>(param_value(*p, {i}).number);")
        out("a.scratch = static_cast<std::byte*>(exec->scratch);")
        out("a.dtype = dr_job_at(jobs, 0)->dtype;")
        out("a.flags = exec->reserved;")
        out("dr_status s = DR_OK;")
        for stage in range(1, self.last + 1):
            self.launched(f"survey_{stage}", "ceil_div(values, lang::survey_values)")
        for part, stage in self.run_kernels():
            size = f"static_cast<uint64_t>(a.{part[3:]}_)"
            self.launched(f"runs_{part[3:]}_{stage}", f"ceil_div(ceil_div(values, {size}), runs_of_block({size}))")
        self.launched("write", f"ceil_div(values, {self.block})")
        out("return s;")
        out("}")
        out("dr_status device_decode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {")
        out("common_args a{};")
        out("static_cast<wire_args&>(a) = wires_of(*p);")
        out("a.dtype = dr_job_at(jobs, 0)->dtype;")
        out("return launch_all<read>(*exec, a, jobs, n, [&](const dr_job& job, tile_job& t, uint64_t values) {")
        out("t.in_size = job.in_size;")
        out(f"return ceil_div(values, {self.block});")
        out("});")
        out("}")
        launches = self.last + len(self.run_kernels()) + 1
        out(f"constexpr dr_ops device_operations = cuda_ops<device_need>(device_encode, device_decode, {launches}, 1);")

    def launched(self, name: str, tiles: str) -> None:
        self.out("if (s == DR_OK)")
        self.out(f"  s = launch_all<{name}>(*exec, a, jobs, n, [&](const dr_job& job, tile_job& t, uint64_t values) {{")
        self.out("t.key = job.private_key;")
        self.out(f"return {tiles};")
        self.out("});")

    def run_kernels(self) -> List[Tuple[str, int]]:
        return sorted({(e.shape, self.run_stage(e)) for e in self.runs})

    def names(self) -> List[str]:
        return [f"survey_{s}" for s in range(1, self.last + 1)] + [f"runs_{p[3:]}_{s}" for p, s in self.run_kernels()] + ["write", "read"]

    def text(self) -> str:
        out = self.out
        self.known()
        out("// Runs that a block adds up.")
        out("DR_HD constexpr uint64_t runs_of_block(uint64_t size) { return size < 4096 ? 4096 / size : 1; }")
        out("")
        for stage in range(1, self.last + 1):
            self.survey(stage)
        for part, stage in self.run_kernels():
            self.of_run_kernel(part, stage)
        self.write()
        self.read()
        self.host()
        return out.text()


class ReadWords(LaneWords):
    """Of decode: everything is a name."""

    def leaf(self, e: E) -> str:
        if e.op == "param":
            return f"k.{e.data.name}_"
        if e.op in ("local", "sent"):
            return f"{e.data.name}_"
        if e.op == "count_n":
            return "static_cast<int64_t>(n)"
        return super().leaf(e)
