"""Decode as loops of the CPU: judges what is sent, then makes values of it."""

from __future__ import annotations

from typing import Callable, List, Optional

from ._loops import Loops, block_of, c_text, float_limit
from ._program import E, Field, Program, Require
from ._ranges import EACH, KEPT, ONE, Int, Real
from ._words import locals_in, partitions_in, walk


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
        kept = result.op == "spread"
        requires = [r for r in p.decode_requires if r.expr.shape != ONE]
        if kept:
            position = result.data
            out("std::memset(values, 0, n * sizeof(typename T::bits));")
            self.loop([r for r in requires if r.expr.shape == KEPT], result.args[0], "kept", position)
            requires = [r for r in requires if r.expr.shape != KEPT]
            if requires:
                self.loop(requires, None, "n", None)
        else:
            kept_requires = [r for r in requires if r.expr.shape == KEPT]
            if kept_requires:
                self.loop(kept_requires, None, "kept", None)
            requires = [r for r in requires if r.expr.shape != KEPT]
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
        count = {ONE: "1", EACH: "n", KEPT: "kept"}.get(f.shape) or f"ceil_div(n, static_cast<uint64_t>({f.shape[3:]}_))"
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
        for f in fields:
            if f.kind == "f32" or (f.kind == "u" and f.fixed_width in (8, 16, 32)):
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

        def before() -> None:
            for k in range(len(requires)):
                out(f"uint32_t unmet_{k} = 0;")
            for f in fields:
                at = f"a.in + l.{f.name}_at"
                if f.kind == "base":
                    out(f"lang::unpack_digits<{f.base}>({at} + first / {f.digits}, length, {f.name}_codes);")
                elif f.kind == "u" and f.fixed_width not in (8, 16, 32):
                    out(f"unpack_bits.best()({at} + first / 8 * l.{f.name}_bits, a.in + a.size, length, l.{f.name}_bits, {f.name}_codes);")

        def body() -> None:
            for k, r in enumerate(requires):
                out(f"unmet_{k} |= !{self.words.condition(r.expr)};")
            if result is not None:
                t = result.type
                x = self.words(result)
                if isinstance(t, Int):
                    x, fine = f"static_cast<double>({self.words.whole(result, t.c if not t.truth else 'int32_t')})", True
                else:
                    fine = not t.nan and -3.4e38 < t.low and t.high < 3.4e38 or t.finite and t.bits == 32
                    if t.bits == 0:
                        x = f"static_cast<double>({x})"
                kind = "_finite<T>" if fine else "<T, false>" if isinstance(t, Real) and t.nan else "<T, true>"
                narrow = self.narrow(result) if isinstance(t, Real) and t.bits == 64 else ""
                to = "i" if position is None else f"load<uint32_t>(a.in + l.{position.name}_at + 4 * i)"
                if narrow:
                    out("if constexpr (std::is_same_v<T, f32_type>)")
                    out(f"  values[{to}] = lang::returned{kind}({narrow});")
                    out("else")
                    out(f"  values[{to}] = lang::returned{kind}({x});")
                else:
                    out(f"values[{to}] = lang::returned{kind}({x});")

        def after() -> None:
            for k, r in enumerate(requires):
                message = c_text(f"{p.name}: {r.message}")
                out(f"if (unmet_{k}) return {{{message}, first, 0}};")

        out("{")
        self.tiles("0", count, self.block, roots, parts, body, before, after)
        out("}")

    def narrow(self, e: E) -> str:
        """The same, rounded to f32 as early as that makes no difference."""
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
        if len(fields) != 1 or partitions_in([result]) or result.shape != EACH:
            return False
        f = fields[0]
        if not (f.kind == "base" and f.base == 3 or f.kind == "u" and f.fixed_width == 1):
            return False
        kinds = 3 if f.kind == "base" else 2
        out("{")
        out(f"typename T::bits kinds[{kinds}];")
        out(f"for (int32_t {f.name}_ = 0; {f.name}_ < {kinds}; ++{f.name}_) {{")
        for local in locals_in([result], EACH):
            out(f"const {local.expr.type.c} {local.name}_ = {self.words(local.expr)};")
        t = result.type
        x = self.words(result) if isinstance(t, Real) and t.bits else f"static_cast<double>({self.words.whole(result, 'int64_t') if isinstance(t, Int) else self.words(result)})"
        out(f"kinds[{f.name}_] = lang::returned<T, false>({x});")
        out("}")
        call = "ternary_unpack<typename T::bits>.best()" if f.kind == "base" else "lang::unpack_two"
        out(f"{call}(a.in + l.{f.name}_at, n, kinds, values);")
        out("}")
        return True

    def fields_of(self, roots: List[E]) -> List[Field]:
        found: List[Field] = []
        for e in walk(roots):
            if e.op == "sent" and e.shape in (EACH, KEPT) and e.data not in found:
                found.append(e.data)
        return found

    def sent(self, roots: List[E]) -> None:
        out = self.out
        for f in self.fields_of(roots):
            at = f"{f.name}_in"
            if f.kind == "f32":
                out(f"const float {f.name}_ = load<float>({at} + 4 * i);")
            elif f.kind == "u" and f.fixed_width in (8, 16, 32):
                out(f"const auto {f.name}_ = static_cast<{f.type.c}>(load<uint{f.fixed_width}_t>({at} + {f.fixed_width // 8} * i));")
            else:
                out(f"const auto {f.name}_ = static_cast<{f.type.c}>({f.name}_codes[i - first]);")
        for local in locals_in(roots, KEPT):
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
