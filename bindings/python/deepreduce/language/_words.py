"""Expressions as C++. Leaves depend on where they are written: in a loop of the CPU, or in a lane of a block."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Dict, List, Set

from ._program import E, Local
from ._syntax import LanguageError
from ._ranges import ALL, ONE, SELECTED, Int, Real, Type, most_whole, smallest


def literal(t: Type, value: Fraction) -> str:
    if isinstance(t, Int):
        n = int(value)
        if t.c in ("int32_t", "bool"):
            return f"({n})" if n < 0 and n != -(2**31) else "INT32_MIN" if n < 0 else str(n)
        if t.c == "uint32_t":
            return f"{n}u"
        return "INT64_MIN" if n == -(2**63) else f"{t.c}{{{n}{'u' if t.c == 'uint64_t' else ''}}}"
    x = float(value)
    text = repr(x)
    if "e" not in text and "." not in text:
        text += ".0"
    return f"({text}{'f' if t.bits == 32 else ''})" if x < 0 or math.copysign(1, x) < 0 else text + ("f" if t.bits == 32 else "")


def common(e: E, *types: Type) -> str:
    """The C++ type of an operation on whole numbers."""
    whole = [t for t in types if isinstance(t, Int)]
    c = smallest(min(t.low for t in whole), max(t.high for t in whole))
    if not c:
        raise LanguageError("numbers of more than 64 bits meet here", e.place, "bound them first: min(…, 2^20)")
    return c


def cast(text: str, have: str, want: str) -> str:
    return text if have == want else f"static_cast<{want}>({text})"


class Words:
    """Writes expressions. A leaf is what a subclass makes of it."""

    def leaf(self, e: E) -> str:
        raise NotImplementedError

    def __call__(self, e: E) -> str:
        return self.expression(e)

    def whole(self, e: E, c: str) -> str:
        return literal(_as(c), e.data) if e.op == "const" else cast(self(e), e.type.c, c)

    def condition(self, e: E) -> str:
        return self(e) if isinstance(e.type, Int) and e.type.truth else f"({self(e)} != 0)"

    def expression(self, e: E) -> str:
        op, args, t = e.op, e.args, e.type
        if op == "const":
            return literal(t, e.data)
        if op in ("value", "param", "local", "sent", "reduce", "kth", "random", "random_bits", "count_n", "type_max", "positions"):
            return self.leaf(e)
        if op in ("and", "or"):
            return f"({self.condition(args[0])} {'&' if op == 'and' else '|'} {self.condition(args[1])})"
        if op == "not":
            return f"(!{self.condition(args[0])})"
        if op == "choose":
            chosen = [self.whole(x, t.c) if isinstance(t, Int) else self(x) for x in args[1:]]
            if isinstance(t, Int) and t.truth:
                chosen = [self.condition(x) for x in args[1:]]
            return f"({self.condition(args[0])} ? {chosen[0]} : {chosen[1]})"
        if op in ("<", "<=", ">", ">=", "==", "!="):
            if isinstance(args[0].type, Int):
                c = common(e, args[0].type, args[1].type)
                return f"({self.whole(args[0], c)} {op} {self.whole(args[1], c)})"
            return f"({self(args[0])} {op} {self(args[1])})"
        if isinstance(t, Int) and all(isinstance(a.type, Int) for a in args):
            return self.of_whole(e)
        if op in ("+", "-", "*", "/"):
            return f"({self(args[0])} {op} {self(args[1])})"
        if op == "neg":
            return f"(-{self(args[0])})"
        if op == "power":
            return f"lang::power<{e.data}>({self(args[0])})"
        if op == "abs":
            return f"lang::magnitude_of({self(args[0])})"
        if op in ("min", "max"):
            return f"lang::{'lesser' if op == 'min' else 'greater'}({self(args[0])}, {self(args[1])})"
        if op == "sqrt":
            return f"lang::root({self(args[0])})"
        if op == "to_f64":
            x = args[0]
            return f"static_cast<double>({self.whole(x, 'int32_t') if isinstance(x.type, Int) and x.type.truth else self(x)})"
        if op == "to_f32":
            return f"static_cast<float>({self(args[0])})"
        if op == "to_type":
            return f"lang::to_type<T>({self(args[0])})"
        if op == "power2":
            return f"lang::power_of_2({self.whole(args[0], 'int32_t')})"
        if op == "of_bits":
            return f"std::bit_cast<float>({self.whole(args[0], 'uint32_t')})"
        if op == "bits":
            if isinstance(t, Int) and t.c == "int32_t":
                return f"lang::magnitude_bits({self(args[0])})"
            return f"std::bit_cast<uint32_t>({self(args[0])})"
        if op in ("floor", "round"):
            return self.to_whole(e)
        if op == "keep":
            return self(args[0])
        raise AssertionError(op)

    def of_whole(self, e: E) -> str:
        op, args, t = e.op, e.args, e.type
        assert isinstance(t, Int)
        if op == "bit_width":
            return f"static_cast<int32_t>(bit_width({self.whole(args[0], 'uint64_t')}))"
        c = common(e, t, *(a.type for a in args))
        if op in ("<<", ">>") and isinstance(args[1].type, Int) and args[1].type.high > 31 and c.endswith("32_t"):
            c = "int64_t"  # (C++ shifts by less than the width of a type.)
        if op == "neg":
            return cast(f"(-{self.whole(args[0], c)})", c, t.c)
        if op == "abs":
            return cast(f"lang::magnitude_of({self.whole(args[0], c)})", c, t.c)
        if op == "power":
            return cast(f"lang::power<{e.data}>({self.whole(args[0], c)})", c, t.c)
        if op == "keep":
            return self(args[0])
        a, b = (self.whole(x, c) for x in args)
        if op in ("min", "max"):
            return cast(f"lang::{'lesser' if op == 'min' else 'greater'}({a}, {b})", c, t.c)
        if op in ("<<", ">>"):
            # (Of a signed type the result fits, and the operands are not negative.)
            return cast(f"({a} {op} {self.whole(args[1], 'int32_t')})", c, t.c)
        sign = {"div": "/", "mod": "%", "xor": "^"}.get(op, op)
        return cast(f"({a} {sign} {b})", c, t.c)

    def to_whole(self, e: E) -> str:
        """floor, round: of what is out of range its end, of no number one of the ends."""
        a, t = e.args[0], e.type
        r = a.type
        assert isinstance(t, Int) and isinstance(r, Real)
        # (2147483647.5 rounds to 2^31.)
        inside = not r.nan and -(2.0**31) <= r.low and r.high <= 2**31 - 1
        name = e.op + ("_up" if e.op == "floor" and r.low >= 0 else "")
        x = self(a)
        if not inside:
            x = f"lang::within_3{1 if r.low >= 0 else 2}({x})"
        x = f"lang::{name}({x})"
        if r.nan:  # It is an end of 32 bits now, and becomes that of the range.
            if r.low >= 0 and t.high < most_whole(r.bits):
                x = f"lang::lesser({x}, {literal(_as('int32_t'), Fraction(t.high))})"
            elif t.low > -(2**31) and not r.low >= 0:
                x = f"lang::greater({x}, {literal(_as('int32_t'), Fraction(t.low))})"
        return cast(x, "int32_t", t.c)


def _as(c: str) -> Int:
    return {
        "int32_t": Int(-(2**31), 2**31 - 1),
        "uint32_t": Int(0, 2**32 - 1),
        "int64_t": Int(-(2**63), 2**63 - 1),
        "uint64_t": Int(0, 2**64 - 1),
        "bool": Int(0, 1, True),
    }[c]


# ---- What an expression needs ----------------------------------------------------------------------------


def walk(roots: List[E]) -> List[E]:
    """All expressions that are evaluated for these, each once, what is needed first; through names, not into reductions."""
    found: List[E] = []
    seen: Set[int] = set()
    stack = [(e, False) for e in reversed(roots)]
    while stack:
        e, done = stack.pop()
        if done:
            found.append(e)
            continue
        if id(e) in seen:
            continue
        seen.add(id(e))
        stack.append((e, True))
        if e.op == "local":
            stack.append((e.data.expr, False))
        elif e.op not in ("reduce", "kth"):
            stack += [(a, False) for a in reversed(e.args)]
    return found


def locals_in(roots: List[E], shape: str) -> List[Local]:
    """The names of a shape that are needed for these, in an order in which they can be computed."""
    found: Dict[int, Local] = {}
    for e in walk(roots):
        if e.op == "local" and e.data.expr.shape == shape:
            found.setdefault(id(e.data), e.data)
    return list(found.values())


def reduces_in(roots: List[E], shape: str) -> List[E]:
    return [e for e in walk(roots) if e.op in ("reduce", "kth") and e.shape == shape]


def partitions_in(roots: List[E]) -> List[str]:
    """The shapes `by:…` of what is read for these."""
    return sorted({e.shape for e in walk(roots)} - {ONE, ALL, SELECTED})


def through(e: E) -> E:
    """What a name stands for."""
    while e.op == "local":
        e = e.data.expr
    return e


def same(a: E, b: E) -> bool:
    """Whether two expressions are the same number."""
    a, b = through(a), through(b)
    if a is b or a.op != b.op or a.data != b.data or (a.type, a.shape) != (b.type, b.shape) or len(a.args) != len(b.args):
        return a is b
    return all(map(same, a.args, b.args))


class Stages:
    """In which pass over the values a number of a shape is known: 0 before any."""

    def __init__(self, shape: str) -> None:
        self.shape, self.known = shape, {}  # type: ignore[var-annotated]
        self.saved: List[E] = []  # those in `known`: their ids are not given to other expressions

    def of(self, e: E) -> int:
        """The passes that have to be over before e is known: through all reductions of the shape."""
        order, seen, stack = [], set(), [(e, False)]
        while stack:
            x, done = stack.pop()
            if done:
                order.append(x)
                continue
            if id(x) in seen or id(x) in self.known:
                continue
            seen.add(id(x))
            stack.append((x, True))
            stack += [(a, False) for a in ([x.data.expr] if x.op == "local" else x.args)]
        for x in order:
            below = [self.known[id(a)] for a in ([x.data.expr] if x.op == "local" else x.args)]
            self.known[id(x)] = max(below, default=0) + (x.op in ("reduce", "kth") and x.shape == self.shape)
            self.saved.append(x)
        return int(self.known[id(e)])
