"""Encode and decode as loops of the CPU."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional

from ._program import E, Field, Program
from ._types import EACH, KEPT, ONE, Int, Real
from fractions import Fraction

from ._words import Stages, Words, cast, literal, locals_in, partitions_in, reduces_in, walk

SUM_TILE = 1024


class Lines:
    """C++ that is being written."""

    def __init__(self) -> None:
        self.lines: List[str] = []
        self.depth = 0

    def __call__(self, line: str) -> None:
        if line.startswith("}"):
            self.depth -= 1
        self.lines.append("  " * self.depth + line if line else "")
        if line.endswith("{"):
            self.depth += 1

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def float_limit(x: float) -> str:
    return f"{x!r}f"


def least(e: E) -> float:
    """A bound below all magnitudes of a number other than 0; 0 if there is none known."""
    if e.op == "to_f64":
        return 1.0 if isinstance(e.args[0].type, Int) else 2.0**-149
    if e.op == "const":
        return abs(float(e.data))
    if e.op == "*":
        return least(e.args[0]) * least(e.args[1])
    return least(e.args[0]) if e.op in ("neg", "abs") else least(e.data.expr) if e.op == "local" else 0.0


def is_shared_divisor(e: E) -> bool:
    """Whether a quotient of f64 has a divisor of few bits that all values of a loop share: then a product with its inverse,
    corrected once, is the quotient, rounded (drc_runtime.hpp)."""
    a, b = e.args
    if b.op != "to_f64" or b.shape == EACH or not isinstance(b.type, Real) or b.type.low < 0:
        return False
    few = b.args[0].type
    if isinstance(few, Int) and few.high > 2**40:
        return False
    assert isinstance(a.type, Real)
    return least(a) > 2.0**-600 and max(-a.type.low, a.type.high) < 2.0**600


class CpuWords(Words):
    def __init__(self) -> None:
        self.names: Dict[int, str] = {}  # of reductions
        self.divisors: Dict[int, str] = {}

    def expression(self, e: E) -> str:
        if id(e) in self.divisors:
            return f"lang::over({self(e.args[0])}, {self.divisors[id(e)]})"
        return super().expression(e)

    def leaf(self, e: E) -> str:
        if e.op == "value":
            return "v"
        if e.op in ("local", "sent", "param"):
            return f"{e.data.name}_"
        if e.op in ("reduce", "kth"):
            return self.names[id(e)]
        if e.op == "random":
            return f"lang::unit_24(drawn_{e.data}[i - first])"
        if e.op == "random_bits":
            which, width = e.data
            word = f"drawn_{which}[i - even]"
            word = word if width == 32 else f"({word} >> {32 - width})"
            assert isinstance(e.type, Int)
            return cast(word, "uint32_t", e.type.c)
        if e.op == "count_n":
            return "static_cast<int64_t>(n)"
        if e.op == "positions":
            return "static_cast<uint32_t>(i)"
        assert e.op == "type_max"
        return "T::largest"


def block_of(program: Program) -> int:
    """Values that are coded together: whole bytes of every packed field."""
    block = 2048
    for f in program.fields:
        if f.kind == "base":
            while block % f.digits:
                block += 512
    return block


class Loops:
    """What encode and decode share: loops over tiles of values, cut where runs of values begin."""

    def __init__(self, program: Program) -> None:
        self.program, self.out, self.words = program, Lines(), CpuWords()
        self.stages: Dict[str, Stages] = {}

    def stage(self, e: E, shape: str) -> int:
        return self.stages.setdefault(shape, Stages(shape)).of(e)

    def tiles(self, begin: str, end: str, block: int, roots: "List[E]", parts: "List[str]", body: Callable[[], None],
              before: Callable[[], None], after: Callable[[], None], fold: Optional[Callable[[], None]] = None) -> None:  # fmt: skip
        out = self.out
        out(f"for (uint64_t first = {begin}; first < {end}; first += {block}) {{")
        out(f"const uint64_t last = std::min<uint64_t>(first + {block}, {end}), length = last - first;")
        seen = {e.data if e.op == "random" else e.data[0]: e.op for e in walk(roots) if e.op in ("random", "random_bits")}
        if "random_bits" in seen.values():
            out("const uint64_t even = first & ~uint64_t{1};")
        for which, op in sorted(seen.items()):
            key = f"lang::key_of(a.key, {which})"
            if op == "random":
                out(f"lang::draw_24({key}, first, length, drawn_{which});")
            else:
                out(f"lang::draw_halves({key}, even, last - even, halves_{which});")
        before()
        if parts:
            out("for (uint64_t at = first, to; at < last; at = to) {")
            for part in parts:
                self.enter(part, roots)
            ends = ", ".join(f"{part[3:]}_end" for part in parts)
            out(f"to = std::min({{last, {ends}}});")
            self.divisors(roots)
            out("for (uint64_t i = at; i < to; ++i) {")
        else:
            self.divisors(roots)
            if fold is not None:
                fold()
            out("for (uint64_t i = first; i < last; ++i) {")
        self.each(roots)
        body()
        out("}")
        if fold is not None and not parts:
            out("}")
        if parts:
            out("}")
        after()
        out("}")

    def divisors(self, roots: "List[E]") -> None:
        """What all values of a loop are divided by: its inverse is computed once."""
        for e in walk(roots):
            if e.op == "/" and e.shape == EACH and is_shared_divisor(e):
                name = self.words.divisors.setdefault(id(e), f"divisor_{len(self.words.divisors)}")
                self.out(f"const lang::divisor<wide> {name}({self.words(e.args[1])});")

    def each(self, roots: "List[E]") -> None:
        """The names of one value."""
        if any(e.op == "value" for e in walk(roots)):
            self.out("const float v = T::to_f32(values[i]);")
        self.sent(roots)
        for local in locals_in(roots, EACH):
            e = local.expr
            self.out(f"const {e.type.c} {local.name}_ = {self.words(e)};")

    def sent(self, roots: "List[E]") -> None:
        """Fields of one value, in decode."""

    def enter(self, part: str, roots: "List[E]") -> None:
        raise NotImplementedError

    def buffers(self, roots: "List[E]", block: int) -> None:
        for which, op in sorted({e.data if e.op == "random" else e.data[0]: e.op for e in walk(roots) if e.op in ("random", "random_bits")}.items()):
            if op == "random_bits":
                self.out(f"alignas(64) uint64_t halves_{which}[{block // 2 + 1}];")
                self.out(f"const auto* const drawn_{which} = reinterpret_cast<const lang::half_word*>(halves_{which});")
            else:
                self.out(f"alignas(64) uint32_t drawn_{which}[{block}];")


# ---- Reductions ------------------------------------------------------------------------------------------


class Reduction:
    """A sum, or the largest or smallest of numbers, as a loop computes it."""

    def __init__(self, e: E, name: str) -> None:
        self.e, self.name, self.term = e, name, e.args[0]
        self.real = isinstance(self.term.type, Real)
        self.kind = e.data
        t = self.term.type
        if self.real:
            assert isinstance(t, Real)
            self.c = "double" if self.kind == "sum" else ("int32_t" if t.bits == 32 else "int64_t")
        else:
            assert isinstance(t, Int)
            self.c = e.type.c if self.kind == "sum" else ("int32_t" if t.truth else t.c)
            if self.kind != "sum":
                self.c = t.c if not t.truth else "int32_t"

    def start(self) -> str:
        if self.kind == "sum":
            return "0"
        t = self.term.type
        if isinstance(t, Real):
            sign = "-" if self.kind == "largest" else ""
            infinity = f"std::numeric_limits<{t.c}>::infinity()"
            return f"lang::in_order({sign}{infinity})"
        return f"std::numeric_limits<{self.c}>::{'lowest' if self.kind == 'largest' else 'max'}()"

    def small(self) -> bool:
        """Whether a tile's sum fits 32 bits."""
        t = self.term.type
        return isinstance(t, Int) and max(abs(t.low), abs(t.high)) * 2 * SUM_TILE < 2**31


class Encode(Loops):
    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.block = block_of(program)
        self.count = 0

    def text(self) -> str:
        p, out = self.program, self.out
        out("// Writes a payload of the values.")
        out("template <class T, bool wide>")
        out("DRC_BOTH lang::verdict encode_with(const encode_args& a) {")
        out("const typename T::bits* const __restrict values = static_cast<const typename T::bits*>(a.values);")
        out("const uint64_t n = a.n;")
        for q in p.params:
            if self.reads(q.name):
                out(f"const auto {q.name}_ = a.{q.name}_;")
        needed = [local for local in p.encode]
        last_stage = max((self.stage(e, ONE) for e in self.everything()), default=0)
        made: Dict[str, bool] = {}
        for stage in range(last_stage + 1):
            if stage:
                self.reduce_all(stage)
            for local in needed:
                if local.expr.shape == ONE and local.name not in made and self.stage(local.expr, ONE) == stage:
                    made[local.name] = True
                    out(f"const {local.expr.type.c} {local.name}_ = {self.words(local.expr)};")
            for r in p.encode_requires:
                if r.expr.shape == ONE and self.stage(r.expr, ONE) == stage:
                    out(f'if (!{self.words.condition(r.expr)}) return {{{c_text(f"{p.name}: {r.message}")}, 0, 0}};')
        self.write()
        out("return {};")
        out("}")
        return out.text()

    def everything(self) -> "List[E]":
        return [local.expr for local in self.program.encode] + [r.expr for r in self.program.encode_requires]

    def reads(self, name: str) -> bool:
        """Whether encode reads a parameter: also as the length of runs."""
        seen, stack = set(), [*self.everything(), *(f.width for f in self.program.fields if f.width)]
        while stack:
            e = stack.pop()
            if id(e) in seen:
                continue
            seen.add(id(e))
            if (e.op == "param" and e.data.name == name) or e.shape == "by:" + name:
                return True
            stack += e.args + ([e.data.expr] if e.op == "local" else [])
        return any(f.shape == "by:" + name for f in self.program.fields)

    # ---- Numbers that all values decide ----

    def named(self, e: E) -> Reduction:
        self.count += 1
        name = f"{e.data or 'kth'}_{self.count}"
        self.words.names[id(e)] = name
        return Reduction(e, name)

    def reduce_all(self, stage: int) -> None:
        """One pass over the values: all reductions of a stage."""
        out = self.out
        every: List[E] = []
        for root in self.everything():
            stack, seen = [root], set()
            while stack:
                e = stack.pop()
                if id(e) in seen:
                    continue
                seen.add(id(e))
                if e.op in ("reduce", "kth") and e.shape == ONE and self.stage(e, ONE) == stage and id(e) not in self.words.names:
                    if e not in every:
                        every.append(e)
                stack += e.args + ([e.data.expr] if e.op == "local" else [])
        reductions = [self.named(e) for e in every if e.op == "reduce"]
        if reductions:
            self.reduce(reductions, "0", "n", partitions_in([r.term for r in reductions]), declare=True)
        for e in every:
            if e.op == "kth":
                self.kth(e)

    def reduce(self, reductions: "List[Reduction]", begin: str, end: str, parts: "List[str]", declare: bool) -> None:
        """One loop over values for reductions whose terms are known in it."""
        out, roots = self.out, [r.term for r in reductions]
        for r in reductions:
            out(f"{r.c if r.real or r.kind != 'sum' else r.e.type.c} {r.name}_so_far = {r.start()};")
        out("{")
        self.buffers(roots, SUM_TILE)
        for r in reductions:
            if r.real and r.kind == "sum":
                out(f"alignas(64) double {r.name}_tile[{SUM_TILE}];")
        self.runs(parts, roots)

        def before() -> None:
            for r in reductions:
                if r.kind == "sum" and not r.real:
                    out(f"{'int32_t' if r.small() else r.e.type.c} {r.name}_part = 0;")

        def body(k: int = -1) -> None:
            for r in reductions:
                if r.real and r.kind == "sum":
                    to = f"{r.name}_tile[i - first]" if k < 0 else f"{r.name}_of[{k}]"
                    out(f"{to} = {self.words(r.term)};")
                elif r.kind == "sum":
                    out(f"{r.name}_part += {self.words.whole(r.term, 'int32_t' if r.small() else r.e.type.c)};")
                else:
                    x = self.words(r.term)
                    if r.real:
                        assert isinstance(r.term.type, Real)
                        if r.term.type.nan:
                            sign = "-" if r.kind == "largest" else ""
                            x = f"lang::or_else({x}, {sign}std::numeric_limits<{r.term.type.c}>::infinity())"
                        x = f"lang::in_order({x})"
                    else:
                        x = self.words.whole(r.term, r.c)
                    choose = "greater" if r.kind == "largest" else "lesser"
                    out(f"{r.name}_so_far = lang::{choose}({r.name}_so_far, {x});")

        sums = [r for r in reductions if r.real and r.kind == "sum"]

        def fold() -> None:
            """Of a tile of 2^k values: the first two steps of its sums while its terms are in registers."""
            out("uint64_t left = length;")
            out("if (left >= 64 && (left & (left - 1)) == 0) {")
            out("left /= 4;")
            out("for (uint64_t j = 0; j < left; ++j) {")
            for r in sums:
                out(f"double {r.name}_of[4];")
            for k in range(4):
                out("{")
                out(f"const uint64_t i = first + j{f' + {k} * left' if k else ''};")
                self.each(roots)
                body(k)
                out("}")
            for r in sums:
                out(f"{r.name}_tile[j] = ({r.name}_of[0] + {r.name}_of[2]) + ({r.name}_of[1] + {r.name}_of[3]);")
            out("}")
            out("} else {")

        def after() -> None:
            for r in reductions:
                if r.real and r.kind == "sum":
                    out(f"{r.name}_so_far += lang::tile_sum({r.name}_tile, {'length' if parts else 'left'});")
                elif r.kind == "sum":
                    out(f"{r.name}_so_far += {r.name}_part;")

        self.tiles(begin, end, SUM_TILE, roots, parts, body, before, after, fold if sums and not parts else None)
        out("}")
        for r in reductions:
            x = f"{r.name}_so_far"
            if r.real and r.kind != "sum":
                x = f"lang::of_order({x})"
            else:
                x = cast(x, r.c, r.e.type.c)
            out(f"{'const ' + r.e.type.c + ' ' if declare else ''}{r.name} = {x};")

    def kth(self, e: E) -> None:
        """The k-th largest number: an order of all is not needed."""
        out, name = self.out, self.named(e).name
        roots = [e.args[0]]
        out("auto* const keys = reinterpret_cast<uint32_t*>(a.scratch);")
        out("{")
        self.buffers(roots, SUM_TILE)
        self.runs(partitions_in(roots), roots)
        nothing: Callable[[], None] = lambda: None
        body = lambda: out(f"keys[i] = std::bit_cast<uint32_t>({self.words(e.args[0])});")
        self.tiles("0", "n", SUM_TILE, roots, partitions_in(roots), body, nothing, nothing)
        out("}")
        k = self.words.whole(e.args[1], "int64_t")
        out(f"const float {name} = lang::kth_largest(keys, n, {k});")

    # ---- Runs of values that share a number ----

    def shared(self, part: str, roots: "List[E]") -> "List[E]":
        """Of a partition: the reductions that are needed for these, with what they need themselves."""
        found: List[E] = []
        new = reduces_in(roots, part)
        while new:
            found += [e for e in new if e not in found]
            new = [x for e in new for x in reduces_in([e.args[0]], part) if x not in found]
        return found

    def runs(self, parts: "List[str]", roots: "List[E]") -> None:
        """Declares the numbers of runs."""
        out = self.out
        for part in parts:
            out(f"uint64_t {part[3:]}_end = 0;")
            reductions = self.shared(part, roots)
            for e in reductions:
                if id(e) not in self.words.names:
                    self.named(e)
                out(f"{e.type.c} {self.words.names[id(e)]} = 0;")
            for local in locals_in(roots + [e.args[0] for e in reductions], part):
                out(f"{local.expr.type.c} {local.name}_ = 0;")

    def enter(self, part: str, roots: "List[E]") -> None:
        """Where a run begins: its numbers."""
        out, name = self.out, part[3:]
        out(f"if (at == {name}_end) {{")
        out(f"const uint64_t begin = at;")
        out(f"{name}_end = std::min<uint64_t>(n, at + static_cast<uint64_t>({name}_));")
        reductions = self.shared(part, roots)
        names = locals_in(roots + [e.args[0] for e in reductions], part)
        last = max([self.stage(e, part) for e in reductions] + [0])
        made: List[str] = []
        for stage in range(last + 1):
            now = [Reduction(e, self.words.names[id(e)]) for e in reductions if self.stage(e, part) == stage]
            if now:
                self.reduce(now, "begin", f"{name}_end", [], declare=False)
            for local in names:
                if local.name not in made and self.stage(local.expr, part) <= stage:
                    made.append(local.name)
                    out(f"{local.name}_ = {self.words(local.expr)};")
        self.entered(part)
        out("}")

    def entered(self, part: str) -> None:
        """Writes the fields of a run, in the last pass."""
        if not self.writing:
            return
        for f in self.program.fields:
            if f.shape == part and f.expr is not None:
                self.put_one(f, self.local(f), f"begin / static_cast<uint64_t>({part[3:]}_)")

    writing = False

    # ---- The payload ----

    def local(self, f: Field) -> E:
        """The name of a field's number, as an expression."""
        local = next(x for x in self.program.encode if x.name == f.name)
        return E("local", [], local.expr.type, local.expr.shape, f.place, local)

    def checked(self, f: Field, x: str, e: E) -> Optional[str]:
        """A condition that the number does not fit its field; None if the compiler knows that it does."""
        if f.kind == "f32":
            t, own = e.type, f.type
            assert isinstance(t, Real) and isinstance(own, Real)
            if t.finite and own.low <= t.low and t.high <= own.high:
                return None
            return f"!({x} >= {float_limit(own.low)} && {x} <= {float_limit(own.high)})"
        t, own = e.type, f.type
        assert isinstance(t, Int) and isinstance(own, Int)
        if f.kind == "base":
            high, limit = own.high, str(own.high)
        else:
            assert f.width is not None and isinstance(f.width.type, Int)
            high = min(own.high, 2**f.width.type.low - 1)
            limit = str(own.high) if f.width.op == "const" else f"std::min<int64_t>(low_mask({self.width(f)}), {own.high})"
        conditions = []
        if t.low < own.low:
            conditions.append(f"{x} < {literal(t, Fraction(own.low))}")
        if t.high > high:
            conditions.append(f"{x} > {f.name}_most")
            limit = f"static_cast<{t.c}>(std::min<int64_t>({limit}, {literal(Int(2**62, 2**62), Fraction(min(t.high, 2**62)))}))"
        if not conditions:
            return None
        self.limits[f.name] = limit
        return " | ".join(f"({c})" for c in conditions)

    limits: Dict[str, str] = {}

    def width(self, f: Field) -> str:
        return f"l.{f.name}_bits"

    @staticmethod
    def sent_as(f: Field, x: str) -> str:
        """A real number on its way into a field: no -0 where the range begins at 0."""
        own = f.type
        return f"({x} + 0.0f)" if isinstance(own, Real) and own.low >= 0 else x

    def put_one(self, f: Field, e: E, index: str) -> None:
        """A number of a run, or of the tensor (index "")."""
        out, x = self.out, self.words(e)
        bad = self.checked(f, x, e)
        where = index if index else "0"
        if bad:
            if f.name in self.limits:
                bad = bad.replace(f"{f.name}_most", self.limits[f.name])
            out(f'if ({bad}) return {{{c_text(f"{self.program.name}: `{f.name}` is not in its range")}, {where}, 0}};')
        if f.kind == "f32":
            out(f"store<float>(a.out + l.{f.name}_at{f' + 4 * ({index})' if index else ''}, {self.sent_as(f, x)});")
        elif index:
            out(f"{f.name}_writer.put(static_cast<uint64_t>({x}), {self.width(f)});")
        else:
            out(f"{{ uint64_t number = static_cast<uint64_t>({x}); std::memcpy(a.out + l.{f.name}_at, &number, lang::bits_size(1, {self.width(f)})); }}")

    def write(self) -> None:
        """The last pass: every value's numbers into the payload."""
        p, out = self.program, self.out
        self.limits = {}
        counted = p.counted
        if counted:
            assert p.mask is not None
            self.count_kept()
        out(f"const layout l(a, n{', kept' if counted else ''});")
        for f in p.fields:
            if f.shape == ONE and f.kind != "count":
                self.put_one(f, self.local(f), "")
        if counted:
            out(f"store<uint32_t>(a.out + l.{counted.name}_at, static_cast<uint32_t>(kept));")
        fields = [f for f in p.fields if f.shape in (EACH, KEPT)]
        runs = [f for f in p.fields if f.shape.startswith("by:")]
        requires = [r for r in p.encode_requires if r.expr.shape != ONE]
        roots = [self.local(f) for f in fields] + [r.expr for r in requires]
        parts = sorted(set(partitions_in(roots)) | {f.shape for f in runs})
        roots += [self.local(f) for f in runs]
        if not fields and not parts and not requires:
            return
        if p.mask and counted:
            roots.append(E("local", [], p.mask.expr.type, EACH, p.mask.place, p.mask))
        if p.mask and counted:
            self.kept_buffers(fields)
        for f in runs:
            if f.kind == "u":
                out(f"bit_writer {f.name}_writer(a.out + l.{f.name}_at);")
        bad = {f.name: self.checked(f, f"{f.name}_", self.local(f)) for f in fields if f.kind != "position"}
        for name, limit in self.limits.items():
            if bad.get(name):
                out(f"[[maybe_unused]] const auto {name}_most = {limit};")
        self.buffers(roots, self.block)
        for f in fields:
            if f.shape == EACH and f.kind == "base":
                out(f"alignas(64) uint8_t {f.name}_codes[{self.block + 64}];")
            elif f.shape == EACH and not self.direct(f) and f.kind != "f32":
                out(f"alignas(64) uint32_t {f.name}_codes[{self.block + 16}];")
            elif f.shape == EACH:
                out(f"uint8_t* const __restrict {f.name}_out = a.out + l.{f.name}_at;")
        self.writing = True
        self.runs(parts, roots)
        faults = [f for f in fields if bad.get(f.name)]

        def before() -> None:
            for f in faults:
                out(f"uint32_t {f.name}_bad = 0;")
            for k in range(len(requires)):
                out(f"uint32_t unmet_{k} = 0;")

        def body() -> None:
            for f in fields:
                if f.shape == KEPT:
                    continue
                x = f"{f.name}_"
                if f in faults:
                    out(f"{f.name}_bad |= static_cast<uint32_t>({bad[f.name]});")
                if f.kind == "f32":
                    out(f"store<float>({f.name}_out + 4 * i, {self.sent_as(f, x)});")
                elif f.kind == "base":
                    out(f"{f.name}_codes[i - first] = static_cast<uint8_t>({x});")
                elif self.direct(f):
                    c = f"uint{f.fixed_width}_t"
                    out(f"store<{c}>({f.name}_out + {f.fixed_width // 8} * i, static_cast<{c}>({x}));")
                else:
                    out(f"{f.name}_codes[i - first] = static_cast<uint32_t>({x});")
            for k, r in enumerate(requires):
                out(f"unmet_{k} |= !{self.words.condition(r.expr)};")
            self.keep(fields, faults, bad)

        def after() -> None:
            for k, r in enumerate(requires):
                out(f'if (unmet_{k}) return {{{c_text(f"{p.name}: {r.message}")}, first, 0}};')
            for f in faults:
                out(f'if ({f.name}_bad) return {{{c_text(f"{p.name}: `{f.name}` is not in its range")}, first, 0}};')
            for f in fields:
                if f.shape == KEPT:
                    continue
                if f.kind == "base":
                    out(f"lang::pack_digits<{f.base}>({f.name}_codes, length, {f.pad}, a.out + l.{f.name}_at + first / {f.digits});")
                elif f.kind != "f32" and not self.direct(f):
                    out(f"pack_bits.best()({f.name}_codes, length, {self.width(f)}, a.out + l.{f.name}_at + first / 8 * {self.width(f)});")
            self.flush(fields)

        self.tiles("0", "n", self.block, roots, parts, body, before, after)
        self.writing = False
        for f in runs:
            if f.kind == "u":
                out(f"{f.name}_writer.finish();")
        self.finish(fields)

    @staticmethod
    def direct(f: Field) -> bool:
        return f.kind == "u" and f.fixed_width in (8, 16, 32)

    # ---- Values that are kept ----

    def count_kept(self) -> None:
        p, out = self.program, self.out
        assert p.mask
        mask = E("local", [], p.mask.expr.type, EACH, p.mask.place, p.mask)
        e = E("reduce", [E("!=", [mask, E("const", [], Int(0, 0), ONE, mask.place, 0)], Int(0, 1, True), EACH, mask.place)],
              Int(0, 2**40), ONE, mask.place, "sum")  # fmt: skip
        r = self.named(e)
        self.reduce([r], "0", "n", partitions_in([r.term]), declare=True)
        out(f"const auto kept = static_cast<uint64_t>({r.name});")
        out(f'if (n > 0xffffffff) return {{{c_text(f"{p.name}: more than 2^32 values")}, 0, 0}};')

    def kept_buffers(self, fields: "List[Field]") -> None:
        for f in fields:
            if f.shape != KEPT:
                continue
            self.out(f"alignas(64) uint32_t {f.name}_codes[{2 * self.block + 16}];")
        self.out("uint64_t kept_at = 0, kept_here = 0;")
        self.out(f"alignas(64) uint8_t chosen[{self.block}];")

    def keep(self, fields: "List[Field]", faults: "List[Field]", bad: "Dict[str, Optional[str]]") -> None:
        kept = [f for f in fields if f.shape == KEPT]
        if not kept:
            return
        assert self.program.mask
        out = self.out
        out(f"if ({self.program.mask.name}_) {{")
        for f in kept:
            x = f"{f.name}_" if f.kind != "position" else "static_cast<uint32_t>(i)"
            if f.kind != "position":
                local = next(z for z in self.program.encode if z.name == f.name)
                out(f"const {local.expr.type.c} {x} = {self.words(local.expr)};")
                if f in faults:
                    out(f"{f.name}_bad |= static_cast<uint32_t>({bad[f.name]});")
            code = f"std::bit_cast<uint32_t>({self.sent_as(f, x)})" if f.kind == "f32" else f"static_cast<uint32_t>({x})"
            out(f"{f.name}_codes[kept_here] = {code};")
        out("++kept_here;")
        out("}")

    def flush(self, fields: "List[Field]") -> None:
        kept = [f for f in fields if f.shape == KEPT]
        if not kept:
            return
        out = self.out
        out("const uint64_t whole = kept_here & ~uint64_t{7};")
        for f in kept:
            bits = "32" if f.kind in ("f32", "position") else self.width(f)
            out(f"pack_bits.best()({f.name}_codes, whole, {bits}, a.out + l.{f.name}_at + kept_at / 8 * {bits});")
            out(f"std::copy({f.name}_codes + whole, {f.name}_codes + kept_here, {f.name}_codes);")
        out("kept_at += whole;")
        out("kept_here -= whole;")

    def finish(self, fields: "List[Field]") -> None:
        for f in fields:
            if f.shape == KEPT:
                bits = "32" if f.kind in ("f32", "position") else self.width(f)
                self.out(f"pack_bits.best()({f.name}_codes, kept_here, {bits}, a.out + l.{f.name}_at + kept_at / 8 * {bits});")


def c_text(text: str) -> str:
    safe = "".join(c if 32 <= ord(c) < 127 and c not in '"\\?' else "'" if c == '"' else "." for c in text)
    return f'"{safe}"'


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
        text = lambda what: c_text(f"{p.name}: `{f.name}` {what}")
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

    def loop(self, requires: "List[object]", result: Optional[E], count: str, position: Optional[Field]) -> None:
        out, p = self.out, self.program
        conditions = [r.expr for r in requires]  # type: ignore[attr-defined]
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
                out(f"unmet_{k} |= !{self.words.condition(r.expr)};")  # type: ignore[attr-defined]
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
                message = c_text(f"{p.name}: {r.message}")  # type: ignore[attr-defined]
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

    def fields_of(self, roots: "List[E]") -> "List[Field]":
        found: List[Field] = []
        for e in walk(roots):
            if e.op == "sent" and e.shape in (EACH, KEPT) and e.data not in found:
                found.append(e.data)
        return found

    def sent(self, roots: "List[E]") -> None:
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

    def enter(self, part: str, roots: "List[E]") -> None:
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
