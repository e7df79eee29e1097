"""Loops of the CPU: what encode and decode share."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional

from ._program import E, Program
from ._ranges import ALL, Int, Real

from ._words import Stages, Words, cast, locals_in, walk

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


def lower_bound(e: E) -> float:
    """A bound below all magnitudes of a number other than 0; 0 if there is none known."""
    found: Dict[int, float] = {}
    for part in walk([e]):
        if part.op == "to_f64":
            bound = 1.0 if isinstance(part.args[0].type, Int) else 2.0**-149
        elif part.op == "const":
            bound = abs(float(part.data))
        elif part.op == "*":
            bound = found[id(part.args[0])] * found[id(part.args[1])]
        elif part.op in ("neg", "abs"):
            bound = found[id(part.args[0])]
        else:
            bound = found[id(part.data.expr)] if part.op == "local" else 0.0
        found[id(part)] = bound
    return found[id(e)]


def is_shared_divisor(e: E) -> bool:
    """Whether a quotient of f64 has a divisor of few bits that all values of a loop share: then a product with its inverse,
    corrected once, is the quotient, rounded (codecs/family/language/drc_runtime.hpp)."""
    a, b = e.args
    if b.op != "to_f64" or b.shape == ALL or not isinstance(b.type, Real) or b.type.low < 0:
        return False
    few = b.args[0].type
    if isinstance(few, Int) and few.high > 2**40:
        return False
    assert isinstance(a.type, Real)
    return lower_bound(a) > 2.0**-600 and max(-a.type.low, a.type.high) < 2.0**600


class CpuWords(Words):
    def __init__(self) -> None:
        self.names: Dict[int, str] = {}  # of reductions
        self.divisors: Dict[int, str] = {}
        self.quotients: Dict[int, str] = {}  # that are rounded to f32 at once
        self.scattered = False  # in a loop over some values: draws are not those of a tile

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
            return f"lang::unit_24({f'lang::drawn_24(lang::key_of(a.key, {e.data}), i)' if self.scattered else f'drawn_{e.data}[i - first]'})"
        if e.op == "random_bits":
            which, width = e.data
            word = f"lang::drawn_half(lang::key_of(a.key, {which}), i)" if self.scattered else f"drawn_{which}[i - even]"
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
    block, digits = 2048, [f.digits for f in program.fields if f.kind == "base"]
    while any(block % k for k in digits):
        block += 512
    return block


class Loops:
    """What encode and decode share: loops over tiles of values, cut where runs of values begin."""

    def __init__(self, program: Program) -> None:
        self.program, self.out, self.words = program, Lines(), CpuWords()
        self.stages: Dict[str, Stages] = {}

    def stage(self, e: E, shape: str) -> int:
        return self.stages.setdefault(shape, Stages(shape)).of(e)

    def tiles(self, begin: str, end: str, block: int, roots: List[E], parts: List[str], body: Callable[[], None],
              before: Callable[[], None], after: Callable[[], None], fold: Optional[Callable[[], None]] = None) -> None:  # fmt: skip
        out = self.out
        out(f"for (uint64_t first = {begin}; first < {end}; first += {block}) {{")
        out(f"const uint64_t last = std::min<uint64_t>(first + {block}, {end}), length = last - first;")
        every = walk(roots)
        seen = {e.data if e.op == "random" else e.data[0]: e.op for e in every if e.op in ("random", "random_bits")}
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
        if fold is not None:
            fold()
        out(f"for (uint64_t i = {'at; i < to' if parts else 'first; i < last'}; ++i) {{")
        self.of_value(roots)
        body()
        out("}")
        if fold is not None:
            out("}")
        if parts:
            out("}")
        after()
        out("}")

    def divisors(self, roots: List[E]) -> None:
        """What all values of a loop are divided by: its inverse is computed once."""
        for e in walk(roots):
            if e.op == "/" and e.shape == ALL and is_shared_divisor(e):
                name = self.words.divisors.setdefault(id(e), f"divisor_{len(self.words.divisors)}")
                self.out(f"const lang::divisor<wide> {name}({self.words(e.args[1])});")

    def of_value(self, roots: List[E]) -> None:
        """The names of one value."""
        if any(e.op == "value" for e in walk(roots)):
            self.out("const float v = T::to_f32(values[i]);")
        self.sent(roots)
        for local in locals_in(roots, ALL):
            e = local.expr
            self.out(f"const {e.type.c} {local.name}_ = {self.words(e)};")

    def sent(self, roots: List[E]) -> None:
        """Fields of one value, in decode."""

    def enter(self, part: str, roots: List[E]) -> None:
        raise NotImplementedError

    def buffers(self, roots: List[E], block: int) -> None:
        for which, op in sorted({e.data if e.op == "random" else e.data[0]: e.op for e in walk(roots) if e.op in ("random", "random_bits")}.items()):
            if op == "random_bits":
                self.out(f"alignas(64) uint64_t halves_{which}[{block // 2 + 1}];")
                self.out(f"const auto* const drawn_{which} = reinterpret_cast<const lang::half_word*>(halves_{which});")
            else:
                self.out(f"alignas(64) uint32_t drawn_{which}[{block}];")


def c_text(text: str) -> str:
    safe = "".join(c if 32 <= ord(c) < 127 and c not in '"\\?' else "'" if c == '"' else "." for c in text)
    return f'"{safe}"'
