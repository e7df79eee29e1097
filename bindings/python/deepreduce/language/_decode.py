"""Decode as loops of the CPU: judges what is sent, then makes values of it."""

from __future__ import annotations

from typing import Callable, List, Optional, Tuple

from ._loops import Loops, block_of, c_text, float_limit
from ._program import E, Field, Program, Require
from ._ranges import ALL, ONE, SELECTED, Int, Real
from ._words import locals_in, partitions_in, same, through, walk


class Decode(Loops):
    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.block = block_of(program)

    def text(self) -> str:
        p, out = self.program, self.out
        result = p.result
        assert result
        out("// Reads a payload that may be anything.")
        out("template <class T, bool wide>")
        out("DRC_BOTH lang::verdict decode_with(const decode_args& a) {")
        out("typename T::bits* const __restrict values = static_cast<typename T::bits*>(a.values);")
        out("const uint64_t n = a.n;")
        for q in p.wires:
            out(f"[[maybe_unused]] const auto {q.name}_ = a.{q.name}_;")
        counted = p.counted
        if counted:
            out(f"if (a.size < layout::least(a, n)) return {{{c_text(p.name + ': the payload ends early')}, a.size, 0}};")
            out(f"const uint64_t kept = load<uint32_t>(a.in + layout(a, n, 0).{counted.name}_at);")
            out(f"if (kept > n) return {{{c_text(p.name + ': more values are kept than there are')}, 0, kept}};")
            out(f"[[maybe_unused]] const auto {counted.name}_ = static_cast<uint32_t>(kept);")
        out(f"const layout l(a, n{', kept' if counted else ''});")
        out(f"if (a.size != l.size) return {{{c_text(p.name + ': the payload has another size')}, a.size, l.size}};")
        for f in p.fields:
            self.judge(f)
        for local in p.decode:
            if local.expr.shape == ONE:
                out(f"[[maybe_unused]] const {local.expr.type.c} {local.name}_ = {self.words(local.expr)};")
        for r in p.decode_requires:
            if r.expr.shape == ONE:
                out(f'if (!{self.words.condition(r.expr)}) return {{{c_text(f"{p.name}: {r.message}")}, 0, 0}};')
        spread = result.op == "spread"
        requires = [r for r in p.decode_requires if r.expr.shape != ONE]
        if spread:
            position = result.data
            out("std::memset(values, 0, n * sizeof(typename T::bits));")
            self.loop([r for r in requires if r.expr.shape == SELECTED], result.args[0], "kept", position)
            requires = [r for r in requires if r.expr.shape != SELECTED]
            if requires:
                self.loop(requires, None, "n", None)
        else:
            selected_requires = [r for r in requires if r.expr.shape == SELECTED]
            if selected_requires:
                self.loop(selected_requires, None, "kept", None)
            requires = [r for r in requires if r.expr.shape != SELECTED]
            if requires or not self.by_table(result):
                self.loop(requires, result, "n", None)
        out("return {};")
        out("}")
        return out.text()

    def judge(self, f: Field) -> None:
        """What of a field is judged before values are made."""
        p, out = self.program, self.out
        at = f"a.in + l.{f.name}_at"
        text: Callable[[str], str] = lambda what: c_text(f"{p.name}: `{f.name}` {what}")
        if f.kind == "count":
            return
        if f.kind == "base":
            out(f"if (auto bad = lang::check_digits<{f.base}>({at}, n, {f.pad}, {text('has a byte that holds no digits')}); bad.what) {{")
            out(f"bad.where += l.{f.name}_at;")
            out("return bad;")
            out("}")
            return
        count = {ONE: "1", ALL: "n", SELECTED: "kept"}.get(f.shape) or f"ceil_div(n, static_cast<uint64_t>({f.shape[3:]}_))"
        if f.kind == "u":
            out(f"if (!padding_is_zero({at}, {count} * l.{f.name}_bits))")
            out(f"  return {{{text('is padded with ones')}, l.{f.name}_at, 0}};")
        if f.shape == ONE:
            if f.kind == "f32":
                out(f"[[maybe_unused]] const float {f.name}_ = load<float>({at});")
            else:
                assert isinstance(f.type, Int)
                out(f"uint64_t {f.name}_sent = 0;")
                out(f"std::memcpy(&{f.name}_sent, {at}, lang::bits_size(1, l.{f.name}_bits));")
                out(f"[[maybe_unused]] const auto {f.name}_ = static_cast<{f.type.c}>({f.name}_sent);")
            wide = f"{f.name}_" if f.kind == "f32" else f"{f.name}_sent"
            out(f"if ({self.beyond(f, wide)}) return {{{text('is not in its range')}, l.{f.name}_at, 0}};")
        elif f.shape.startswith("by:") or f.kind in ("f32", "position") or self.ranged(f):
            # In a loop of its own: nothing depends on what is out of range.
            self.judge_list(f, count, text("is not in its range") if f.kind != "position" else text("does not ascend below the count"))

    def ranged(self, f: Field) -> bool:
        """Whether the bits of a field hold numbers that are not in its range."""
        assert isinstance(f.type, Int)
        if f.width is None:
            return False
        assert isinstance(f.width.type, Int)
        return f.type.low > 0 or f.type.high < 2**f.width.type.high - 1

    def beyond(self, f: Field, x: str) -> str:
        if f.kind == "f32":
            assert isinstance(f.type, Real)
            return f"lang::beyond({x}, {float_limit(f.type.low)}, {float_limit(f.type.high)})"
        assert isinstance(f.type, Int)
        low = f"{x} < {f.type.low}u || " if f.type.low > 0 else ""
        return f"{low}{x} > {f.type.high}u"

    def judge_list(self, f: Field, count: str, message: str) -> None:
        out = self.out
        at = f"a.in + l.{f.name}_at"
        out("{")
        if f.kind == "f32":
            out("uint32_t bad = 0;")
            out(f"for (uint64_t i = 0; i < {count}; ++i) bad |= static_cast<uint32_t>({self.beyond(f, f'load<float>({at} + 4 * i)')});")
            out(f"if (bad) return {{{message}, l.{f.name}_at, 0}};")
        elif f.kind == "position":
            out("uint64_t before = 0;")
            out(f"for (uint64_t i = 0; i < {count}; ++i) {{")
            out(f"const uint64_t at = load<uint32_t>({at} + 4 * i);")
            out(f"if (at < before || at >= n) return {{{message}, l.{f.name}_at + 4 * i, at}};")
            out("before = at + 1;")
            out("}")
        else:
            out(f"bit_reader reader({at}, {count} * l.{f.name}_bits);")
            out(f"for (uint64_t i = 0; i < {count}; ++i) {{")
            out(f"[[maybe_unused]] const uint64_t number = reader.get(l.{f.name}_bits);")
            out(f"if ({self.beyond(f, 'number')}) return {{{message}, l.{f.name}_at, number}};")
            out("}")
        out("}")

    def loop(self, requires: List[Require], result: Optional[E], count: str, position: Optional[Field]) -> None:
        out, p = self.out, self.program
        conditions = [r.expr for r in requires]
        roots = conditions + ([result] if result is not None else [])
        parts = partitions_in(roots)
        fields = self.fields_of(roots)
        for f in fields:
            if f.kind == "u" and f.fixed_width not in (8, 16, 32) or f.kind == "base":
                out(f"alignas(64) uint32_t {f.name}_codes[{self.block + 64}];")
        packed = [f for f in fields if f.kind == "u" and f.fixed_width not in (8, 16, 32)]
        step = self.step(result) if result is not None and position is None and len(packed) == len(fields) == 1 else None
        for f in fields:
            if step or f.kind == "f32" or (f.kind == "u" and f.fixed_width in (8, 16, 32)):
                out(f"const uint8_t* const __restrict {f.name}_in = a.in + l.{f.name}_at;")
        for part in parts:
            out(f"uint64_t {part[3:]}_end = 0;")
            for f in p.fields:
                if f.shape == part and any(e.op == "sent" and e.data is f for e in walk(roots)):
                    out(f"{f.type.c} {f.name}_ = 0;")
                    if f.kind == "u":
                        out(f"bit_reader {f.name}_reader(a.in + l.{f.name}_at, ceil_div(n, static_cast<uint64_t>({part[3:]}_)) * l.{f.name}_bits);")
            for local in locals_in(roots, part):
                out(f"{local.expr.type.c} {local.name}_ = 0;")

        def unpack() -> None:
            for f in packed:
                out(f"unpack_bits.best()(a.in + l.{f.name}_at + first / 8 * l.{f.name}_bits, a.in + a.size, length, l.{f.name}_bits, {f.name}_codes);")

        def before() -> None:
            for k, r in enumerate(requires):
                out(f"int32_t most_{k} = INT32_MIN;" if self.bounds(r) else f"uint32_t unmet_{k} = 0;")
            for f in fields:
                if f.kind == "base":
                    out(f"lang::unpack_digits<{f.base}>(a.in + l.{f.name}_at + first / {f.digits}, length, {f.name}_codes);")
            if step:
                out("bool unpacked = false;")
            else:
                unpack()

        def in_f32() -> None:
            """Codes of a byte each, and quotients that f32 has, too."""
            assert step
            quotient, number, level, levels = step
            out(f"const lang::step<T, wide> step({self.words(number)}, {self.words(levels)}, f32_rounds);")
            out("if (step.rounds) {")
            out(f"for (uint64_t i = {'at; i < to' if parts else 'first; i < last'}; ++i) {{")
            self.bytes, self.words.quotients = True, {id(quotient): f"lang::over({self.words.whole(level, 'int32_t')}, step)"}
            self.of_value(roots)
            body()
            self.bytes, self.words.quotients = False, {}
            out("}")
            out("} else {")
            out("if (!unpacked) {")
            unpack()
            out("unpacked = true;")
            out("}")

        def body() -> None:
            for k, r in enumerate(requires):
                if self.bounds(r):
                    out(f"most_{k} = lang::greater(most_{k}, {self.words(r.expr.args[0])});")
                else:
                    out(f"unmet_{k} |= !{self.words.condition(r.expr)};")
            if result is not None:
                to = "i" if position is None else f"load<uint32_t>(a.in + l.{position.name}_at + 4 * i)"
                if isinstance(result.type, Real) and result.type.bits == 64:
                    out("if constexpr (std::is_same_v<T, f32_type>)")
                    out(f"  values[{to}] = {self.returned(result, True)};")
                    out("else")
                    out(f"  values[{to}] = {self.returned(result, False)};")
                else:
                    out(f"values[{to}] = {self.returned(result, False)};")

        def after() -> None:
            for k, r in enumerate(requires):
                message = c_text(f"{p.name}: {r.message}")
                unmet = f"most_{k} > {self.words.whole(r.expr.args[1], 'int32_t')}" if self.bounds(r) else f"unmet_{k}"
                out(f"if ({unmet}) return {{{message}, first, 0}};")

        out("{")
        if step:
            out(f"const bool f32_rounds = l.{packed[0].name}_bits == 8 && lang::f32_rounds({self.words(step[3])});")
        self.tiles("0", count, self.block, roots, parts, body, before, after, in_f32 if step else None)
        out("}")

    @staticmethod
    def bounds(r: Require) -> bool:
        """Whether numbers of all values have to be at most one: then their largest is."""
        e = r.expr
        return e.op == "<=" and all(isinstance(a.type, Int) and a.type.c == "int32_t" for a in e.args) and e.args[1].shape == ONE

    bytes = False  # in a loop over codes of 8 bits where they lie

    def step(self, result: E) -> Optional[Tuple[E, E, E, E]]:
        """A quotient f64(number) * level / levels that is returned, and its parts: of a number that many values share, a level
        that is required to be at most the levels, and these (drc_runtime.hpp: step)."""
        for e in walk([result]):
            if e.op != "/" or e.shape != ALL or through(e.args[0]).op != "*" or not self.only_narrow(result, e):
                continue
            product, levels = through(e.args[0]), through(e.args[1])
            for number, level in (product.args, reversed(product.args)):
                a, k = through(number), through(level)
                if not all(x.op == "to_f64" for x in (a, k, levels)) or a.shape == ALL or levels.shape != ONE:
                    continue
                a, k, d = a.args[0], k.args[0], levels.args[0]
                if not isinstance(a.type, Real) or not a.type.finite or a.type.low < 0 or not isinstance(k.type, Int) or not isinstance(d.type, Int):
                    continue
                if k.type.low < 0 or k.type.high > 2**20 or d.type.low < 1 or d.type.high > 2**20:
                    continue
                if any(r.expr.op == "<=" and same(r.expr.args[0], k) and same(r.expr.args[1], d) for r in self.program.decode_requires):
                    return e, a, k, d
        return None

    def only_narrow(self, result: E, quotient: E) -> bool:
        """Whether what is returned is a number or its negative, rounded to f32 at once."""
        e = through(result)
        if e.op == "choose":
            return self.only_narrow(e.args[1], quotient) and self.only_narrow(e.args[2], quotient)
        return e is quotient or e.op == "neg" and self.only_narrow(e.args[0], quotient)

    def returned(self, e: E, narrow: bool) -> str:
        """The bits of what decode returns. `narrow`: rounded to f32 as early as that makes no difference."""
        t, x = through(e), e
        if t.op == "choose" and isinstance(t.type, Real) and not t.type.nan:
            # Of two numbers that differ in their sign one is made.
            condition, first, second = t.args
            for one, other, flip in ((first, second, ""), (second, first, " ^ 0x80000000")):
                if through(one).op == "neg" and same(through(one).args[0], other):
                    return f"lang::flipped<T>({self.returned(other, narrow)}, {self.sign(condition)}{flip})"
        if id(t) in self.words.quotients:
            return f"lang::returned_finite<T>({self.words.quotients[id(t)]})"
        if isinstance(x.type, Int):
            return f"lang::returned_finite<T>(static_cast<double>({self.words.whole(x, x.type.c if not x.type.truth else 'int32_t')}))"
        r = x.type
        text = self.narrow(x) if narrow else f"static_cast<double>({self.words(x)})" if r.bits == 0 else self.words(x)
        if not r.nan and -3.4e38 < r.low and r.high < 3.4e38 or r.finite and r.bits == 32:
            return f"lang::returned_finite<T>({text})"
        return f"lang::returned<T, lang::{'any' if r.nan else 'up' if r.low >= 0 else 'number'}>({text})"

    def sign(self, condition: E) -> str:
        """A condition as the sign of 32 bits. (Of a bit of a code no truth is made: gcc would widen codes twice.)"""
        e = through(condition)
        x, by = e.args if len(e.args) == 2 else (e, e)
        if isinstance(x.type, Int) and 0 <= x.type.low and x.type.high < 2**31 and by.op == "const":
            word = f"static_cast<uint32_t>({self.words(x)})"
            if e.op == "&" and by.data == 1:
                return f"({word} << 31)"
            if e.op == ">>" and by.data < 31 and x.type.high < 2 << int(by.data):
                return f"({word} << {31 - int(by.data)} & 0x80000000)"
        return f"(static_cast<uint32_t>({self.words.condition(condition)}) << 31)"

    def narrow(self, e: E) -> str:
        """The same, rounded to f32 as early as that makes no difference."""
        e = through(e) if id(through(e)) in self.words.quotients else e
        if id(e) in self.words.quotients:
            return self.words.quotients[id(e)]
        if isinstance(e.type, Real) and e.type.bits == 32:
            return self.words(e)
        if e.op == "choose":
            return f"({self.words.condition(e.args[0])} ? {self.narrow(e.args[1])} : {self.narrow(e.args[2])})"
        if e.op == "neg":
            return f"(-{self.narrow(e.args[0])})"
        if e.op == "to_f64" and isinstance(e.args[0].type, Real):
            return self.narrow(e.args[0])
        if e.op == "local" and e.data.expr.op in ("choose", "neg", "to_f64"):
            return self.narrow(e.data.expr)
        return f"static_cast<float>({self.words(e)})"

    def by_table(self, result: E) -> bool:
        """Decodes values of few kinds: each is computed once."""
        out, fields = self.out, self.fields_of([result])
        if len(fields) != 1 or partitions_in([result]) or result.shape != ALL:
            return False
        f = fields[0]
        if not (f.kind == "base" and f.base == 3 or f.kind == "u" and f.fixed_width == 1):
            return False
        kinds = 3 if f.kind == "base" else 2
        out("{")
        out(f"typename T::bits kinds[{kinds}];")
        out(f"for (int32_t {f.name}_ = 0; {f.name}_ < {kinds}; ++{f.name}_) {{")
        for local in locals_in([result], ALL):
            out(f"const {local.expr.type.c} {local.name}_ = {self.words(local.expr)};")
        t = result.type
        x = self.words(result) if isinstance(t, Real) else self.words.whole(result, t.c if not t.truth else "int32_t")
        x = x if isinstance(t, Real) and t.bits else f"static_cast<double>({x})"
        out(f"kinds[{f.name}_] = lang::returned<T, lang::any>({x});")
        out("}")
        call = "ternary_unpack<typename T::bits>.best()" if f.kind == "base" else "lang::unpack_two"
        out(f"{call}(a.in + l.{f.name}_at, n, kinds, values);")
        out("}")
        return True

    def fields_of(self, roots: List[E]) -> List[Field]:
        found: List[Field] = []
        for e in walk(roots):
            if e.op == "sent" and e.shape in (ALL, SELECTED) and e.data not in found:
                found.append(e.data)
        return found

    def sent(self, roots: List[E]) -> None:
        out = self.out
        for f in self.fields_of(roots):
            at = f"{f.name}_in"
            if f.kind == "f32":
                out(f"const float {f.name}_ = load<float>({at} + 4 * i);")
            elif f.kind == "u" and (self.bytes or f.fixed_width in (8, 16, 32)):
                size = 1 if self.bytes else f.fixed_width // 8
                out(f"const auto {f.name}_ = static_cast<{f.type.c}>(load<uint{8 * size}_t>({at} + {size} * i));")
            else:
                out(f"const auto {f.name}_ = static_cast<{f.type.c}>({f.name}_codes[i - first]);")
        for local in locals_in(roots, SELECTED):
            out(f"const {local.expr.type.c} {local.name}_ = {self.words(local.expr)};")

    def enter(self, part: str, roots: List[E]) -> None:
        out, name = self.out, part[3:]
        out(f"if (at == {name}_end) {{")
        out(f"[[maybe_unused]] const uint64_t run = at / static_cast<uint64_t>({name}_);")
        out(f"{name}_end = std::min<uint64_t>(n, at + static_cast<uint64_t>({name}_));")
        for f in self.program.fields:
            if f.shape == part and any(e.op == "sent" and e.data is f for e in walk(roots)):
                if f.kind == "f32":
                    out(f"{f.name}_ = load<float>(a.in + l.{f.name}_at + 4 * run);")
                else:
                    out(f"{f.name}_ = static_cast<{f.type.c}>({f.name}_reader.get(l.{f.name}_bits));")
        for local in locals_in(roots, part):
            out(f"{local.name}_ = {self.words(local.expr)};")
        out("}")
