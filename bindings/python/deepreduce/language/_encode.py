"""Encode as loops of the CPU: a pass for numbers of all values, and one that writes."""

from __future__ import annotations

from fractions import Fraction
from typing import Callable, Dict, List, Optional

from ._loops import SUM_TILE, Loops, block_of, c_text, float_limit
from ._program import E, Field, Program, Require
from ._ranges import ALL, ONE, SELECTED, Int, Real
from ._words import cast, literal, locals_in, partitions_in, reduces_in, same, through


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
        if p.lists:
            out(f'if (n > 0xffffffff) return {{{c_text(f"{p.name}: more than 2^32 values")}, 0, 0}};')
            out("auto* const list = reinterpret_cast<uint32_t*>(a.scratch);  // positions")
            out("[[maybe_unused]] auto* const keys = reinterpret_cast<int32_t*>(list + n + lang::list_spare);")
            out("uint64_t listed = 0;")
        needed = p.encode
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

    def everything(self) -> List[E]:
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

    def reduce(self, reductions: List[Reduction], begin: str, end: str, parts: List[str], declare: bool) -> None:
        """One loop over values for reductions whose terms are known in it."""
        out, roots = self.out, [r.term for r in reductions]
        scattered, self.words.scattered = self.words.scattered, False
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
                self.of_value(roots)
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
        self.words.scattered = scattered

    def kth(self, e: E) -> None:
        """The k-th largest number: a sample tells what it is likely to reach, and only those that do are put in order."""
        out, name = self.out, self.named(e).name
        roots = [e.args[0]]
        key: Callable[[], str] = lambda: f"lang::magnitude_bits({self.words(e.args[0])})"
        out(f"float {name} = 0;")
        out("if (n > 0) {")
        out(f"const uint64_t rank = lang::rank_of(n, {self.words.whole(e.args[1], 'int64_t')});")
        out("lang::sample sample(n, rank);")
        self.pick("0", "sample.count", "j * sample.step", roots, lambda: out(f"sample.keys[j] = {key()};"))
        out("do {")
        out("const int32_t low = sample.lower();")
        self.list_where(roots, lambda: f"({key()} >= low)")
        out("} while (listed <= rank);")
        self.pick("0", "listed", "list[j]", roots, lambda: out(f"keys[j] = {key()};"))
        out(f"{name} = std::bit_cast<float>(lang::ranked(keys, listed, rank));")
        out("}")
        self.candidates = e

    candidates: Optional[E] = None  # the k-th largest number; the list has the positions of all that reach it

    def list_where(self, roots: List[E], condition: Callable[[], str]) -> None:
        """Lists the positions of values that meet a condition."""
        out, parts = self.out, partitions_in(roots)
        out("{")
        out("listed = 0;")
        out(f"alignas(64) uint8_t chosen[{self.block} + lang::list_spare];")
        self.buffers(roots, self.block)
        self.runs(parts, roots)
        nothing: Callable[[], None] = lambda: None

        def after() -> None:
            out("std::memset(chosen + length, 0, lang::list_spare);")
            out("listed += lang::list_chosen.best()(chosen, length, static_cast<uint32_t>(first), list + listed);")

        self.tiles("0", "n", self.block, roots, parts, lambda: out(f"chosen[i - first] = static_cast<uint8_t>({condition()});"), nothing, after)
        out("}")

    def pick(self, begin: str, end: str, position: str, roots: List[E], body: Callable[[], None]) -> None:
        """A loop over some values, in their order."""
        out, parts = self.out, partitions_in(roots)
        out("{")
        self.runs(parts, roots)
        self.words.scattered = True
        if not parts:
            self.divisors(roots)
        out(f"for (uint64_t j = {begin}; j < {end}; ++j) {{")
        out(f"[[maybe_unused]] const uint64_t i = {position};")
        for part in parts:
            self.enter(part, roots, inside=True)
        if parts:
            self.divisors(roots)
        self.of_value(roots)
        for local in locals_in(roots, SELECTED):
            out(f"const {local.expr.type.c} {local.name}_ = {self.words(local.expr)};")
        body()
        out("}")
        out("}")
        self.words.scattered = False

    # ---- Runs of values that share a number ----

    def shared(self, part: str, roots: List[E]) -> List[E]:
        """Of a partition: the reductions that are needed for these, with what they need themselves."""
        found: List[E] = []
        new = reduces_in(roots, part)
        while new:
            found += [e for e in new if e not in found]
            new = [x for e in new for x in reduces_in([e.args[0]], part) if x not in found]
        return found

    def runs(self, parts: List[str], roots: List[E]) -> None:
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

    def enter(self, part: str, roots: List[E], inside: bool = False) -> None:
        """Where a run begins, or inside it: its numbers."""
        out, name = self.out, part[3:]
        out(f"if ({'i >=' if inside else 'at =='} {name}_end) {{")
        out(f"const uint64_t begin = {f'i - i % static_cast<uint64_t>({name}_)' if inside else 'at'};")
        out(f"{name}_end = std::min<uint64_t>(n, begin + static_cast<uint64_t>({name}_));")
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
            out(f'if ({bad}) return {{{c_text(f"{self.program.name}: `{f.name}` is not in its range, {f.limits}")}, {where}, 0}};')
        if f.kind == "f32":
            out(f"store<float>(a.out + l.{f.name}_at{f' + 4 * ({index})' if index else ''}, {self.sent_as(f, x)});")
        elif index:
            out(f"{f.name}_writer.put(static_cast<uint64_t>({x}), {self.width(f)});")
        else:
            out(f"{{ uint64_t number = static_cast<uint64_t>({x}); std::memcpy(a.out + l.{f.name}_at, &number, lang::bits_size(1, {self.width(f)})); }}")

    def write(self) -> None:
        """The last passes: every value's numbers into the payload."""
        p, out = self.program, self.out
        self.limits = {}
        counted = p.counted
        if counted:
            self.list_kept()
        out(f"const layout l(a, n{', listed' if counted else ''});")
        for f in p.fields:
            if f.shape == ONE and f.kind != "count":
                self.put_one(f, self.local(f), "")
        if counted:
            out(f"store<uint32_t>(a.out + l.{counted.name}_at, static_cast<uint32_t>(listed));")
        of_kept = [r for r in p.encode_requires if r.expr.shape == SELECTED]
        self.write_all([r for r in p.encode_requires if r.expr.shape not in (ONE, SELECTED)])
        if counted:
            self.write_kept(of_kept)

    def limits_of(self, fields: List[Field]) -> Dict[str, Optional[str]]:
        """Of each field, when its number does not fit."""
        bad = {f.name: self.checked(f, f"{f.name}_", self.local(f)) for f in fields if f.kind != "position"}
        for f in fields:
            if f.name in self.limits and bad.get(f.name):
                self.out(f"[[maybe_unused]] const auto {f.name}_most = {self.limits[f.name]};")
        return bad

    def clear(self, requires: List[Require], faults: List[Field]) -> None:
        """Of a block: nothing is bad yet."""
        for f in faults:
            self.out(f"uint32_t {f.name}_bad = 0;")
        for k in range(len(requires)):
            self.out(f"uint32_t unmet_{k} = 0;")

    def put_all(self, fields: List[Field], bad: Dict[str, Optional[str]], requires: List[Require], i: str) -> None:
        """The numbers of value `i` of a block, noted where they are bad."""
        for f in fields:
            if bad.get(f.name):
                self.out(f"{f.name}_bad |= static_cast<uint32_t>({bad[f.name]});")
            self.put(f, i, f"{i} - first")
        for k, r in enumerate(requires):
            self.out(f"unmet_{k} |= !{self.words.condition(r.expr)};")

    def judge(self, requires: List[Require], faults: List[Field], first: str) -> None:
        for k, r in enumerate(requires):
            self.out(f'if (unmet_{k}) return {{{c_text(f"{self.program.name}: {r.message}")}, {first}, 0}};')
        for f in faults:
            self.out(f'if ({f.name}_bad) return {{{c_text(f"{self.program.name}: `{f.name}` is not in its range, {f.limits}")}, {first}, 0}};')

    def put(self, f: Field, to: str, from_block: str) -> None:
        """A value's number into a field, or into its codes of a block."""
        out, x = self.out, f"{f.name}_"
        if f.kind == "f32":
            out(f"store<float>({f.name}_out + 4 * {to}, {self.sent_as(f, x)});")
        elif f.kind == "position":
            out(f"store<uint32_t>({f.name}_out + 4 * {to}, {x});")
        elif f.kind == "base" or f.fixed_width == 1:
            out(f"{f.name}_codes[{from_block}] = static_cast<uint8_t>({x});")
        elif self.direct(f):
            c = f"uint{f.fixed_width}_t"
            out(f"store<{c}>({f.name}_out + {f.fixed_width // 8} * {to}, static_cast<{c}>({x}));")
        else:
            out(f"{f.name}_codes[{from_block}] = static_cast<uint32_t>({x});")

    def pack(self, f: Field, first: str, length: str) -> None:
        """The codes of a block into the payload."""
        if f.kind == "base":
            self.out(f"lang::pack_digits<{f.base}>({f.name}_codes, {length}, {f.pad}, a.out + l.{f.name}_at + {first} / {f.digits});")
        elif f.kind == "u" and f.fixed_width == 1:
            self.out(f"lang::pack_ones({f.name}_codes, {length}, a.out + l.{f.name}_at + {first} / 8);")
        elif not self.direct(f):
            bits = f"l.{f.name}_bits"
            self.out(f"pack_bits.best()({f.name}_codes, {length}, {bits}, a.out + l.{f.name}_at + {first} / 8 * {bits});")

    def places(self, fields: List[Field]) -> None:
        for f in fields:
            if self.direct(f):
                self.out(f"uint8_t* const __restrict {f.name}_out = a.out + l.{f.name}_at;")
            elif f.kind == "base" or f.fixed_width == 1:
                self.out(f"alignas(64) uint8_t {f.name}_codes[{self.block + 64}];")
            else:
                self.out(f"alignas(64) uint32_t {f.name}_codes[{self.block + 16}];")

    @staticmethod
    def direct(f: Field) -> bool:
        return f.kind in ("f32", "position") or (f.kind == "u" and f.fixed_width in (8, 16, 32))

    def write_all(self, requires: List[Require]) -> None:
        """What there is of every value, and of runs."""
        p, out = self.program, self.out
        fields = [f for f in p.fields if f.shape == ALL]
        runs = [f for f in p.fields if f.shape.startswith("by:")]
        roots = [self.local(f) for f in fields] + [r.expr for r in requires]
        parts = sorted(set(partitions_in(roots)) | {f.shape for f in runs})
        roots += [self.local(f) for f in runs]
        if not roots:
            return
        out("{")
        for f in runs:
            if f.kind == "u":
                out(f"bit_writer {f.name}_writer(a.out + l.{f.name}_at);")
        bad = self.limits_of(fields)
        faults = [f for f in fields if bad.get(f.name)]
        self.buffers(roots, self.block)
        self.places(fields)
        self.writing = True
        self.runs(parts, roots)

        def after() -> None:
            self.judge(requires, faults, "first")
            for f in fields:
                self.pack(f, "first", "length")

        self.tiles("0", "n", self.block, roots, parts, lambda: self.put_all(fields, bad, requires, "i"), lambda: self.clear(requires, faults), after)
        self.writing = False
        for f in runs:
            if f.kind == "u":
                out(f"{f.name}_writer.finish();")
        out("}")

    # ---- Values that are kept ----

    def list_kept(self) -> None:
        """The positions of values that are kept: among those that reach the k-th largest, if the others cannot be."""
        p, out = self.program, self.out
        assert p.mask
        mask = E("local", [], p.mask.expr.type, ALL, p.mask.place, p.mask)
        if self.candidates and reaches(mask, self.candidates):
            out("{")
            out("uint64_t kept = 0;")

            def body() -> None:
                out("list[kept] = static_cast<uint32_t>(i);")
                out(f"kept += {self.words.condition(mask)};")

            self.pick("0", "listed", "list[j]", [mask], body)
            out("listed = kept;")
            out("}")
        else:
            self.list_where([mask], lambda: self.words.condition(mask))

    def write_kept(self, requires: List[Require]) -> None:
        out = self.out
        fields = [f for f in self.program.fields if f.shape == SELECTED]
        roots = [self.local(f) for f in fields] + [r.expr for r in requires]
        out("{")
        bad = self.limits_of(fields)
        faults = [f for f in fields if bad.get(f.name)]
        self.places(fields)
        out(f"for (uint64_t first = 0; first < listed; first += {self.block}) {{")
        out(f"const uint64_t last = std::min<uint64_t>(first + {self.block}, listed);")
        self.clear(requires, faults)
        self.pick("first", "last", "list[j]", roots, lambda: self.put_all(fields, bad, requires, "j"))
        self.judge(requires, faults, "list[first]")
        for f in fields:
            self.pack(f, "first", "last - first")
        out("}")
        out("}")


def reaches(mask: E, kth: E) -> bool:
    """Whether a condition holds of numbers only that reach their k-th largest."""
    mask = through(mask)
    if mask.op == "and":
        return any(reaches(x, kth) for x in mask.args)
    if mask.op not in (">=", ">", "<=", "<"):
        return False
    key, bound = mask.args if mask.op[0] == ">" else reversed(mask.args)
    return same(bound, kth) and same(key, kth.args[0])
