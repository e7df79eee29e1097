"""Finds out what a text means, and refuses it where it means nothing: types, ranges, numbers of elements."""

from __future__ import annotations

import difflib
import math
import struct
from fractions import Fraction
from typing import Callable, Dict, List, Tuple

from . import _syntax
from ._program import Datum, E, Field, Local, Param, Program, Require
from ._syntax import LanguageError, Node, Place
from ._ranges import ALL, LARGEST_F32, MAX_VALUES, ONE, SELECTED, Int, Real, Type, by, most_whole, product, rounded, smallest
from ._words import walk

REDUCES = ("sum", "largest", "smallest", "count")
FUNCTIONS = (
    *REDUCES, "abs", "sqrt", "min", "max", "floor", "round", "f32", "f64", "power2", "bits", "of_bits", "bit_width", "random", "random_bits",
    "to_type", "positions", "keep", "spread", "kth_largest",
)  # fmt: skip
RESERVED = {"n", "type_max", *FUNCTIONS}
MAX_PARAMS = 8  # DR_FIELDS_MAX
MAX_BITS = 2**20  # of a power of numbers in the text


def fail(reason: str, place: Place, instead: str = "") -> LanguageError:
    return LanguageError(reason, place, instead)


def check(text: _syntax.Text) -> Program:
    """The program of a tree. LanguageError."""
    return _Checker(text).program


def _const(value: Fraction, place: Place, whole: bool) -> E:
    if whole:
        n = int(value)
        if not smallest(n, n):
            raise fail(f"{n} is not a number of 64 bits", place)
        return E("const", [], Int(n, n), ONE, place, value)
    try:
        x = float(value)
    except OverflowError:
        x = math.inf
    if math.isinf(x):
        raise fail("a number that no type holds", place)
    return E("const", [], Real(0, x, x), ONE, place, value)


def as_f32(x: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", x))[0]) if abs(x) <= LARGEST_F32 else math.copysign(math.inf, x)


def _f32_of(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def is_int(e: E) -> bool:
    return isinstance(e.type, Int)


def is_free(e: E) -> bool:
    """Whether it is a number of the text that takes the type of the other side: f32(0.1) and f64(0.1) have theirs."""
    return e.op == "const" and (is_int(e) or e.type.bits == 0)  # type: ignore[union-attr]


def shape_text(shape: str) -> str:
    """A shape in words."""
    if shape == ONE:
        return "one number"
    return {ALL: "one for each value", SELECTED: "one for each value that is kept"}.get(shape, f"one for each {shape[3:]} values")


class _Checker:
    def __init__(self, text: _syntax.Text) -> None:
        self.text = text
        self.scope: Dict[str, Datum] = {}
        self.side = ""  # encode, decode; "" in declarations
        self.program = Program(text.name, text.summary, [], [], text.value)
        if len(text.name) > 60:
            raise fail("a name of more than 60 letters", text.place)
        self.params()
        self.payload()
        self.encode()
        self.decode()
        self.unused()

    # ---- Declarations ------------------------------------------------------------------------------

    def number(self, node: Node, whole: bool) -> Fraction:
        e = self.expr(node)
        if e.op != "const":
            raise fail("a number is expected here", node.place, "limits and defaults are numbers: 1..2^20")
        if whole and not is_int(e):
            raise fail("a whole number is expected here", node.place)
        return Fraction(e.data)

    def name(self, name: str, place: Place) -> None:
        if name in RESERVED:
            raise fail(f"`{name}` is a word of the language", place, "choose another name")
        if name in self.scope:
            raise fail(f"a second `{name}`", place, "a name is given once")

    def params(self) -> None:
        for p in self.text.params:
            self.name(p.name, p.place)
            if p.kind == "choice":
                if len(set(p.choices)) != len(p.choices):
                    raise fail(f"`{p.name}` has a choice twice", p.place)
                if p.fallback not in p.choices:
                    raise fail(f"`{p.fallback}` is not a choice of `{p.name}`", p.place, "choices: " + ", ".join(p.choices))
                made = Param(p.name, "choice", False, 0, len(p.choices) - 1, p.choices.index(p.fallback), p.choices, p.summary)
                for i, choice in enumerate(p.choices):
                    if choice in self.scope and self.scope[choice] != ("choice", i):
                        raise fail(f"a second `{choice}`", p.place, "choices are names, too")
                    self.name(choice, p.place) if choice not in self.scope else None
                    self.scope[choice] = ("choice", i)
            else:
                assert p.low and p.high
                whole = p.kind == "int"
                low, high, fallback = (self.number(x, whole) for x in (p.low, p.high, p.fallback))
                if not low <= fallback <= high:
                    raise fail(f"the default of `{p.name}` is not in its range", p.place)
                if whole and (abs(low) > 2**53 or high > 2**53):
                    raise fail(f"the range of `{p.name}` goes beyond 2^53", p.place)
                if p.wire and low < 0:
                    raise fail(f"`{p.name}` may be negative, and a wire field may not", p.place)
                cast: Callable[[Fraction], Datum] = int if whole else float
                made = Param(p.name, p.kind, p.wire, cast(low), cast(high), cast(fallback), [], p.summary)
            self.program.params.append(made)
            self.scope[p.name] = ("param", made)
        if len(self.program.wires) > MAX_PARAMS:
            raise fail(f"more than {MAX_PARAMS} wire fields", self.text.params[-1].place)
        # (Wire fields are the first parameters: fields_are_params.)
        self.program.params.sort(key=lambda p: not p.wire)

    def partition(self, name: str, place: Place) -> str:
        """The shape of one for each NAME values."""
        kind, p = self.scope.get(name, ("", None))
        if kind != "param" or p.kind != "int" or p.low < 1:
            near = difflib.get_close_matches(name, [q.name for q in self.program.params if q.kind == "int" and q.low >= 1], 1)
            instead = f"did you mean `by {near[0]}`?" if near else f"declare it: wire {name}: int 1..2^20 = 512"
            raise fail(f"`by {name}`: not an int of 1 or more", place, instead)
        p.used = True
        if self.side != "encode" and not p.wire:
            raise fail(f"decode does not know `{name}`, a param", place, f"make it a wire field: wire {name}: …")
        return by(name)

    def payload(self) -> None:
        if len(self.text.payload) > 16:
            raise fail("more than 16 fields", self.text.payload[16].place)
        for f in self.text.payload:
            self.name(f.name, f.place)
            shape = ONE
            counted = self.program.counted
            if f.shape == "n":
                shape = self.partition(f.by, f.place) if f.by else ALL
            elif f.shape is not None:
                if counted is not None and f.shape == counted.name and f.by:
                    raise fail("values that are kept have no runs", f.place, f"write: [{f.shape}]")
                if counted is None or f.shape != counted.name:
                    raise fail(f"`[{f.shape}]` is not a length", f.place, "lengths: [n], [n by NAME], or [m] after a field `m: count`")
                shape = SELECTED
            made = Field(f.name, f.place, f.kind, shape, Int(0, 0), f.ranged, base=f.base, pad=f.pad)
            low = self.number(f.low, f.kind != "f32") if f.low else None
            high = self.number(f.high, f.kind != "f32") if f.high else None
            if f.kind == "f32":
                made.type = Real(
                    32,
                    as_f32(float(low)) if low is not None else -LARGEST_F32,
                    as_f32(float(high)) if high is not None else LARGEST_F32,
                )
                if not made.type.finite or made.type.low > made.type.high:
                    raise fail(f"no f32 is in the range of `{f.name}`", f.place)
            elif f.kind == "u":
                assert f.width
                width = self.expr(f.width)
                if not isinstance(width.type, Int) or width.shape != ONE:
                    raise fail("a width is a whole number", f.width.place)
                if width.type.low < 1 or width.type.high > 32:
                    raise fail(f"a width of {width.type.low} to {width.type.high} bits; it is 1 to 32", f.width.place)
                made.width = width
                made.type = Int(int(low or 0), min(int(high) if high is not None else 2**32, 2**width.type.high - 1))
                if made.type.low < 0 or made.type.low > made.type.high:
                    raise fail(f"no number of the type is in the range of `{f.name}`", f.place)
            elif f.kind == "base":
                if not 3 <= f.base <= 15 or f.base in (4, 8) or not 0 <= f.pad < f.base:
                    raise fail("a base is 3 to 15, and its padding a digit of it", f.place, "for a power of two: u1, u2, u4, u8")
                if shape != ALL or f.ranged:
                    raise fail("digits are of all values", f.place, f"write: {f.name}: base {f.base} pad {f.pad} [n]")
                made.type = Int(0, f.base - 1)
            elif f.kind == "count":
                if counted is not None or shape != ONE or f.ranged:
                    raise fail("one `count`, without a length", f.place)
                made.type = Int(0, 2**32 - 1)
            else:
                if shape != SELECTED or f.ranged:
                    raise fail("positions are of the values that are kept", f.place, "write: m: count, then: " + f.name + ": position[m]")
                if any(g.kind == "position" for g in self.program.fields):
                    raise fail("a second field of positions", f.place)
                made.type = Int(0, 2**32 - 1)
            self.program.fields.append(made)
            self.scope[f.name] = ("field", made)
        if self.program.counted and not any(f.kind == "position" for f in self.program.fields):
            raise fail("a count, but no positions", self.text.payload[0].place, "write: at: position[m]")
        if len([f for f in self.program.fields if f.shape == SELECTED and f.kind == "base"]) > 0:
            raise fail("digits of values that are kept", self.text.payload[0].place)

    # ---- Statements --------------------------------------------------------------------------------

    def encode(self) -> None:
        self.side = "encode"
        program = self.program
        outer = dict(self.scope)
        self.name(self.text.value, self.text.places["encode"])
        self.scope[self.text.value] = ("value", None)
        for s in self.text.encode:
            if s.kind == "give":
                raise fail("encode returns nothing", s.place, "give every field of the payload: " + ", ".join(f.name for f in program.fields))
            if s.kind == "require":
                program.encode_requires.append(self.require(s))
                continue
            kind, f = self.scope.get(s.name, ("", None))
            if kind == "field":
                if f.expr is not None:
                    raise fail(f"a second `{s.name}`", s.place, "a field is given once")
                if f.kind == "count":
                    raise fail(f"`{f.name}` is counted by the compiler", s.place, "leave the line out")
            else:
                self.name(s.name, s.place)
            e = self.expr(s.expr)
            local = Local(s.name, e, s.place, kind == "field")
            if kind == "field":
                f.expr = self.stored(f, e, s.place)
                local.expr = f.expr
            program.encode.append(local)
            self.scope[s.name] = ("local", local)
        for f in program.fields:
            if f.expr is None and f.kind != "count":
                raise fail(f"encode does not give the field `{f.name}`", self.text.places["encode"], f"write: {f.name} = …")
        if program.counted and program.mask is None:
            raise fail("which values are kept?", self.text.places["encode"], "write: chosen = abs(v) > …, then positions(chosen)")
        self.scope = outer

    def stored(self, f: Field, e: E, place: Place) -> E:
        """What goes into a field."""
        if f.kind == "f32":
            if is_int(e) or (isinstance(e.type, Real) and e.type.bits == 0):
                e = self.to_real(e, 32) if e.op == "const" else e
            if not isinstance(e.type, Real) or e.type.bits != 32:
                raise fail(f"`{f.name}` is an f32, this is {'a whole number' if is_int(e) else 'an f64'}", place, f"write: {f.name} = f32(…)")
        elif not isinstance(e.type, Int):
            raise fail(f"`{f.name}` holds whole numbers, this is a real one", place, "write: floor(…) or round(…)")
        if f.kind == "position" and e.op != "positions":
            raise fail(f"`{f.name}` holds positions", place, f"write: {f.name} = positions(chosen)")
        if not self.fits(e.shape, f.shape):
            raise fail(f"`{f.name}` is {shape_text(f.shape)}, but this is {shape_text(e.shape)}", place, self.advice(f.name, e.shape, f.shape))
        if isinstance(e.type, Int) and isinstance(f.type, Int) and f.kind != "position":
            if e.type.low > f.type.high or e.type.high < f.type.low:
                raise fail(f"`{f.name}` holds {f.limits}, this is {e.type.low} to {e.type.high}", place)
        return e

    @staticmethod
    def fits(shape: str, into: str) -> bool:
        return shape in (ONE, into) or (into == ALL and shape.startswith("by:"))

    @staticmethod
    def advice(name: str, shape: str, into: str) -> str:
        if into == SELECTED:
            return "write: keep(…, chosen)"
        if into != ONE:
            return "make them: sum(… by NAME)"
        one = "make one number of many: sum(…), largest(…), count(…)"
        if shape == SELECTED:
            return one
        return f"in payload: {name}: … [n{' by ' + shape[3:] if shape != ALL else ''}]; or {one}"

    def require(self, s: _syntax.Statement) -> Require:
        e = self.expr(s.expr)
        if not is_int(e):
            raise fail("a condition is expected after `require`", s.place)
        return Require(e, s.message or "a requirement is not met", s.place)

    def decode(self) -> None:
        self.side = "decode"
        program = self.program
        for f in program.fields:
            self.scope[f.name] = ("sent", f)
        for s in self.text.decode:
            if program.result is not None:
                raise fail("a statement after `return`", s.place)
            if s.kind == "require":
                program.decode_requires.append(self.require(s))
            elif s.kind == "give":
                e = self.expr(s.expr)
                if e.shape == SELECTED:
                    raise fail("decode returns one number for each value, these are those that are kept", s.place, "write: return spread(…, at)")
                if program.scattered and e.op != "spread":
                    raise fail("`spread` is all that is returned: nothing is added to it", s.place, "compute before: return spread(…, at)")
                program.result = e
            else:
                self.name(s.name, s.place)
                local = Local(s.name, self.expr(s.expr), s.place)
                program.decode.append(local)
                self.scope[s.name] = ("local", local)
        if program.result is None:
            raise fail("decode returns nothing", self.text.places["decode"], "write: return …")

    def unused(self) -> None:
        for local in (*self.program.encode, *self.program.decode):
            if not local.used:
                raise fail(f"`{local.name}` is not used", local.place, "leave the line out")
        for made in self.program.params:
            if not made.used:
                place = next(p.place for p in self.text.params if p.name == made.name)
                raise fail(f"`{made.name}` is not used", place, "leave the line out")
        for f in self.program.fields:
            if not f.used and f.kind != "count":
                raise fail(f"decode does not use the field `{f.name}`", f.place, "what decode does not need is not sent: leave the field out")

    # ---- Expressions -------------------------------------------------------------------------------

    def expr(self, node: Node) -> E:
        e = {
            "whole": lambda: _const(node.number, node.place, True),
            "real": lambda: _const(node.number, node.place, False),
            "name": lambda: self.named(node),
            "call": lambda: self.call(node),
            "unary": lambda: self.unary(node),
            "binary": lambda: self.binary(node),
            "power": lambda: self.power(node),
            "choose": lambda: self.choose(node),
        }[node.kind]()
        if isinstance(e.type, Int) and not smallest(e.type.low, e.type.high):
            raise fail("this may be a number of more than 64 bits", node.place, "bound it first: min(…, 2^20)")
        return e

    def named(self, node: Node) -> E:
        word, place = node.word, node.place
        if word == "n":
            return E("count_n", [], Int(1, MAX_VALUES), ONE, place)
        if word == "type_max":
            if not self.side:
                raise fail("`type_max` depends on the tensor's type, what is declared does not", place)
            return E("type_max", [], Real(64, 65504.0, LARGEST_F32), ONE, place)
        if word not in self.scope:
            if word in FUNCTIONS:
                raise fail(f"`{word}` is a function", place, f"write: {word}(…)")
            if self.side == "decode" and (word == self.text.value or any(s.name == word for s in self.text.encode)):
                raise fail(f"decode does not know `{word}`, which only encode has", place, "what decode needs is a field of the payload")
            if any(s.name == word for s in (self.text.encode if self.side == "encode" else self.text.decode)):
                raise fail(f"`{word}` is given below", place, "give it in a line above")
            near = difflib.get_close_matches(word, [*self.scope, *FUNCTIONS, "n", "type_max"], 1)
            raise fail(f"nothing is called `{word}`", place, f"did you mean `{near[0]}`?" if near else "")
        kind, x = self.scope[word]
        if kind == "choice":
            for p in self.program.params:
                p.used |= word in p.choices
            return _const(Fraction(x), place, True)
        if kind == "param":
            x.used = True
            if not x.wire and self.side != "encode":
                raise fail(f"decode does not know `{word}`, a param", place, f"what decode needs is a wire field: wire {word}: …")
            t: Type = Real(64, x.low, x.high) if x.kind == "real" else Int(x.low, x.high)
            return E("param", [], t, ONE, place, x)
        if kind == "value":
            return E("value", [], Real(32, -LARGEST_F32, LARGEST_F32), ALL, place)
        if kind == "field":
            if x.kind == "count" and self.side == "encode":
                raise fail(f"encode does not know `{word}`, which the compiler counts", place, "write: count(chosen)")
            if self.side == "encode":
                raise fail(f"the field `{word}` is not yet given", place, "give it in a line above")
            raise fail(f"`{word}` depends on data, a width does not", place)
        if kind == "sent":
            x.used = True
            if x.kind == "position":
                raise fail("positions are for `spread`", place, f"write: spread(…, {word})")
            return E("sent", [], x.type, x.shape, place, x)
        x.used = True
        return E("local", [], x.expr.type, x.expr.shape, place, x)

    def joined(self, args: List[E], place: Place) -> str:
        """The shape of an operation on these."""
        shapes = {a.shape for a in args} - {ONE}
        if not shapes:
            return ONE
        if SELECTED in shapes:
            if len(shapes) > 1:
                instead = "write: keep(…, chosen)" if self.side == "encode" else "send it with them, in a field of [m]: keep(…, chosen) in encode"
                raise fail("values that are kept, with others of another number", place, instead)
            return SELECTED
        return shapes.pop() if len(shapes) == 1 else ALL

    def to_real(self, e: E, bits: int) -> E:
        """The same number as a real one of 32 or 64 bits; of those in the text rounded."""
        t = e.type
        if e.op == "const":
            x = float(e.data)
            x = as_f32(x) if bits == 32 else x
            if math.isinf(x):
                raise fail("a number that f32 does not hold", e.place)
            return E("const", [], Real(bits, x, x), ONE, e.place, Fraction(x))
        if isinstance(t, Int):
            r = Real(64, float(t.low), float(t.high)) if max(abs(t.low), abs(t.high)) <= 2**53 else rounded(64, float(t.low), float(t.high), False)
            e = E("to_f64", [e], r, e.shape, e.place)
            t = r
        if t.bits == bits:
            return e
        if bits == 64:
            return E("to_f64", [e], Real(64, t.low, t.high, t.nan), e.shape, e.place)
        return E("to_f32", [e], rounded(32, t.low, t.high, t.nan), e.shape, e.place)

    def of_type(self, t: Type, e: E) -> E:
        """A number of the text as one of a type that was given to it."""
        return self.to_real(e, t.bits) if isinstance(t, Real) and t.bits else e

    def reals(self, args: List[E]) -> List[E]:
        """As real numbers of one type: f32 if all that are not in the text are; else f64."""
        typed = [a for a in args if not is_free(a)]
        narrow = bool(typed) and all(isinstance(a.type, Real) and a.type.bits == 32 for a in typed)
        return [self.to_real(a, 32 if narrow else 64) for a in args]

    def unary(self, node: Node) -> E:
        a = self.expr(node.args[0])
        if node.word == "not":
            self.whole([a], node)
            return E("not", [a], Int(0, 1, True), a.shape, node.place)
        if a.op == "const":
            return self.of_type(a.type, _const(-Fraction(a.data), node.place, is_int(a)))
        if isinstance(a.type, Int):
            return E("neg", [a], Int(-a.type.high, -a.type.low), a.shape, node.place)
        return E("neg", [a], Real(a.type.bits, -a.type.high, -a.type.low, a.type.nan), a.shape, node.place)

    def whole(self, args: List[E], node: Node) -> None:
        for a in args:
            if not is_int(a):
                raise fail(f"`{node.word}` is for whole numbers, this is a real one", a.place, "write: floor(…) or round(…)")

    def binary(self, node: Node) -> E:
        word, place = node.word, node.place
        a, b = (self.expr(x) for x in node.args)
        shape = self.joined([a, b], place)
        if word in ("and", "or"):
            self.whole([a, b], node)
            return E(word, [a, b], Int(0, 1, True), shape, place)
        if word in ("<", "<=", ">", ">=", "==", "!="):
            if not (is_int(a) and is_int(b)):
                a, b = self.reals([a, b])
            return E(word, [a, b], Int(0, 1, True), shape, place)
        if is_free(a) and is_free(b) and word in "+-*/":
            return self.folded(word, a, b, place)
        if word in ("div", "mod", "<<", ">>", "&", "|", "xor"):
            self.whole([a, b], node)
            return E(word, [a, b], self.of_whole(word, a, b, place), shape, place)
        if is_int(a) and is_int(b) and word != "/":
            assert isinstance(a.type, Int) and isinstance(b.type, Int)
            l, m = a.type, b.type
            if word == "+":
                t = Int(l.low + m.low, l.high + m.high)
            elif word == "-":
                t = Int(l.low - m.high, l.high - m.low)
            else:
                ends = [x * y for x in (l.low, l.high) for y in (m.low, m.high)]
                t = Int(min(ends), max(ends))
            return E(word, [a, b], t, shape, place)
        a, b = self.reals([a, b])
        return E(word, [a, b], self.of_reals(word, a.type, b.type, a, b), shape, place)

    def folded(self, word: str, a: E, b: E, place: Place) -> E:
        x, y = Fraction(a.data), Fraction(b.data)
        if word == "/" and y == 0:
            raise fail("a division by 0", place)
        value = {"+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y, "/": lambda: x / y}[word]()
        return _const(value, place, is_int(a) and is_int(b) and word != "/")

    def of_whole(self, word: str, a: E, b: E, place: Place) -> Int:
        assert isinstance(a.type, Int) and isinstance(b.type, Int)
        l, m = a.type, b.type
        if l.low < 0 or m.low < 0:
            raise fail(f"`{word}` of a number that may be negative", place, "write: max(…, 0)")
        if word in ("div", "mod"):
            if m.low < 1:
                raise fail("a division by what may be 0", place, "write: max(…, 1)")
            return Int(l.low // m.high, l.high // m.low) if word == "div" else Int(0, min(l.high, m.high - 1))
        if word in ("<<", ">>"):
            if m.high > 63:
                raise fail(f"a shift by up to {m.high} bits", place, "write: min(…, 31)")
            return Int(l.low << m.low, l.high << m.high) if word == "<<" else Int(l.low >> m.high, l.high >> m.low)
        if word == "&":
            return Int(0, min(l.high, m.high))
        return Int(0, 2 ** max(l.high.bit_length(), m.high.bit_length()) - 1)

    def of_reals(self, word: str, l: Type, m: Type, a: E, b: Datum) -> Real:
        assert isinstance(l, Real) and isinstance(m, Real)
        bits, nan = l.bits, l.nan or m.nan
        if word == "+":
            return rounded(bits, l.low + m.low, l.high + m.high, nan or not (l.finite and m.finite))
        if word == "-":
            return rounded(bits, l.low - m.high, l.high - m.low, nan or not (l.finite and m.finite))
        if word == "*":
            ends = [product(x, y) for x in (l.low, l.high) for y in (m.low, m.high)]
            low = 0.0 if _same(a, b) else min(ends)
            return rounded(bits, low, max(ends), nan or not (l.finite and m.finite))
        if m.low > 0 and m.finite and l.finite:
            ends = [x / y for x in (l.low, l.high) for y in (m.low, m.high)]
            return rounded(bits, min(ends), max(ends), nan)
        known = l.low >= 0 and m.low >= 0 and not _may_be_minus_zero(b)
        return Real(bits, 0.0 if known else -math.inf, math.inf, True)

    def power(self, node: Node) -> E:
        a, b = (self.expr(x) for x in node.args)
        if b.op != "const" or not is_int(b) or b.data < 0 or (b.data > (63 if a.op == "const" else 4)):
            raise fail("an exponent is a number in the text: 2, 3 or 4", node.place, "a power of two that is computed: power2(…)")
        if a.op == "const":
            number = Fraction(a.data)
            if b.data * max(number.numerator.bit_length(), number.denominator.bit_length()) > MAX_BITS:
                raise fail("a power that has more than 2^20 bits", node.place)
            return self.of_type(a.type, _const(number ** int(b.data), node.place, is_int(a)))
        if b.data < 1:
            raise fail("an exponent is 1 or more", node.place)
        t: Type = a.type
        for i in range(int(b.data) - 1):
            if isinstance(a.type, Int):
                assert isinstance(t, Int)
                ends = [x * y for x in (a.type.low, a.type.high) for y in (t.low, t.high)]
                t = Int(0 if i == 0 and a.type.low <= 0 <= a.type.high else min(abs(x) for x in ends) if i == 0 else min(ends), max(ends))
            else:
                assert isinstance(t, Real)
                t = self.of_reals("*", t, a.type, a, a if i == 0 else node.args[0])
        return E("power", [a], t, a.shape, node.place, int(b.data)) if b.data > 1 else a

    def choose(self, node: Node) -> E:
        c, a, b = (self.expr(x) for x in node.args)
        if not is_int(c):
            raise fail("a condition is expected after `if`", c.place, "write: x > 0")
        shape = self.joined([c, a, b], node.place)
        if isinstance(a.type, Int) and isinstance(b.type, Int):
            return E("choose", [c, a, b], Int(min(a.type.low, b.type.low), max(a.type.high, b.type.high)), shape, node.place)
        a, b = self.reals([a, b])
        assert isinstance(a.type, Real) and isinstance(b.type, Real)
        t = Real(a.type.bits, min(a.type.low, b.type.low), max(a.type.high, b.type.high), a.type.nan or b.type.nan)
        return E("choose", [c, a, b], t, shape, node.place)

    # ---- Functions ---------------------------------------------------------------------------------

    def call(self, node: Node) -> E:
        word, place = node.word, node.place
        if word not in FUNCTIONS:
            near = difflib.get_close_matches(word, FUNCTIONS, 1)
            hints = {"int": "floor", "exp2": "power2", "mean": "sum(…) / n", "float": "f32", "norm": "sqrt(sum(…^2))"}
            instead = f"did you mean `{hints.get(word) or near[0]}`?" if near or word in hints else "functions: " + ", ".join(FUNCTIONS)
            raise fail(f"no function `{word}`", place, instead)
        if node.by and word not in REDUCES:
            other = {"max": "largest", "min": "smallest"}.get(word)
            raise fail(f"`{word}` has no `by`", place, f"write: {other}(… by {node.by})" if other else "`by` is for " + ", ".join(REDUCES))
        count = len(node.args)
        takes = {"min": 2, "max": 2, "random": 0, "positions": 1, "keep": 2, "spread": 2, "kth_largest": 2}.get(word, 1)
        if count != takes:
            instead = f"of many numbers: {'largest' if word == 'max' else 'smallest'}(…)" if word in ("min", "max") and count == 1 else ""
            raise fail(f"`{word}` takes {takes or 'no'} argument{'s' * (takes != 1)}, not {count}", place, instead)
        if word in ("positions", "keep", "spread"):
            return self.selection(node)
        args = [self.expr(a) for a in node.args]
        if word in REDUCES:
            return self.reduce(node, args[0])
        if word in ("random", "random_bits"):
            return self.random(node, args)
        if word == "kth_largest":
            return self.kth(node, *args)
        return self.function(node, args, self.joined(args, place))

    def function(self, node: Node, args: List[E], shape: str) -> E:
        word, place = node.word, node.place
        a = args[0]
        t = a.type
        if word in ("min", "max"):
            return self.min_max(word, args, shape, place)
        if word == "abs":
            if isinstance(t, Int):
                low = 0 if t.low <= 0 <= t.high else min(abs(t.low), abs(t.high))
                return E("abs", [a], Int(low, max(abs(t.low), abs(t.high))), shape, place)
            a = self.reals([a])[0]
            assert isinstance(a.type, Real)
            t = a.type
            minimum = 0.0 if t.low <= 0 <= t.high else min(abs(t.low), abs(t.high))
            return E("abs", [a], Real(t.bits, minimum, max(abs(t.low), abs(t.high)), t.nan), shape, place)
        if word == "bits":
            if not isinstance(t, Real) or t.bits != 32:
                raise fail("`bits` is for an f32", place, "write: bits(f32(…))")
            return E("bits", [a], Int(0, 2**31 - 1 if t.low >= 0 else 2**32 - 1), shape, place)
        if word == "of_bits":
            if not isinstance(t, Int) or t.low < 0 or t.high >= 2**32:
                raise fail("`of_bits` takes the 32 bits of an f32, as a whole number", place, "write: of_bits(k << 23)")
            if t.high < 0x7F800000:
                return E("of_bits", [a], Real(32, _f32_of(t.low), _f32_of(t.high)), shape, place)
            return E("of_bits", [a], Real(32, -math.inf, math.inf, True), shape, place)
        if word == "bit_width":
            if not isinstance(t, Int) or t.low < 0:
                raise fail("`bit_width` is for a whole number that is not negative", place)
            return E("bit_width", [a], Int(t.low.bit_length(), t.high.bit_length()), shape, place)
        if word == "power2":
            if not isinstance(t, Int):
                raise fail("`power2` takes a whole number", place, "write: power2(floor(…))")
            if t.low < -1022 or t.high > 1023:
                raise fail(f"an exponent of {t.low} to {t.high}; it is -1022 to 1023", place, "bound it: power2(min(max(…, -149), 127))")
            return E("power2", [a], Real(64, 2.0**t.low, 2.0**t.high), shape, place)
        if word == "f32":
            return self.to_real(a, 32)
        if word == "f64":
            return self.to_real(a, 64)
        a = self.reals([a])[0]
        assert isinstance(a.type, Real)
        t = a.type
        if word == "sqrt":
            if t.high < 0:
                raise fail("the root of a negative number", place)
            nan = t.nan or t.low < 0
            return E("sqrt", [a], rounded(t.bits, math.sqrt(max(t.low, 0.0)), math.sqrt(t.high), nan), shape, place)
        if word == "to_type":
            limit, smallest_half = LARGEST_F32, 2.0**-24  # of f16 above 0
            bottom, top = (t.low * 1.01 - smallest_half if t.low < 0 else 0.0), max(t.high * 1.01, 0.0) + smallest_half
            return E("to_type", [a], Real(32, max(bottom, -limit), min(top, limit), t.nan), shape, place)
        # floor, round: what is beyond i32 is its end; what is not a number its lower end.
        ends = [-(2**31), most_whole(t.bits)]
        if t.low > ends[0]:
            ends[0] = min(math.floor(t.low) if word == "floor" else round(t.low), ends[1])
        if t.high < ends[1]:
            ends[1] = max(math.floor(t.high) if word == "floor" else round(t.high), ends[0])
        return E(word, [a], Int(ends[0], ends[1]), shape, place)

    def min_max(self, word: str, args: List[E], shape: str, place: Place) -> E:
        pick = min if word == "min" else max
        a, b = args
        if isinstance(a.type, Int) and isinstance(b.type, Int):
            return E(word, args, Int(pick(a.type.low, b.type.low), pick(a.type.high, b.type.high)), shape, place)
        a, b = self.reals(args)
        assert isinstance(a.type, Real) and isinstance(b.type, Real)
        # `a < b ? a : b`: b where one is not a number. So a range of a is not safe where b may be none.
        t = Real(a.type.bits, pick(a.type.low, b.type.low), pick(a.type.high, b.type.high), b.type.nan)
        if a.type.nan:
            t = Real(t.bits, min(t.low, b.type.low), max(t.high, b.type.high), t.nan)
        return E(word, [a, b], t, shape, place)

    def reduce(self, node: Node, a: E) -> E:
        word, place = node.word, node.place
        if a.shape == SELECTED:
            raise fail(f"`{word}` of values that are kept", place, "reduce before they are kept: sum(if chosen then … else 0)")
        if a.shape != ALL:
            raise fail(f"`{word}` of {shape_text(a.shape)}", place, f"`{word}` makes one number of those of all values")
        if self.side != "encode":
            raise fail(f"`{word}` in decode", place, "what decode needs is sent: compute it in encode, and make it a field")
        shape = self.partition(node.by, place) if node.by else ONE
        for part in walk([a]):
            if part.shape.startswith("by:") and node.by and part.shape != shape:
                raise fail(f"`by {node.by}` of numbers that are {shape_text(part.shape)}", place)
        limit = self.program.param(node.by).high if node.by else MAX_VALUES
        if word == "count":
            if not is_int(a):
                raise fail("`count` takes a condition", place, "write: count(v < 0)")
            return E("reduce", [E("!=", [a, _const(Fraction(0), place, True)], Int(0, 1, True), a.shape, place)], Int(0, limit), shape, place, "sum")
        if word == "sum":
            if isinstance(a.type, Int):
                return E("reduce", [a], Int(min(a.type.low * limit, 0), max(a.type.high * limit, 0)), shape, place, "sum")
            a = self.to_real(a, 64)
            assert isinstance(a.type, Real)
            low, high = product(a.type.low, limit), product(a.type.high, limit)
            low, high = (low if low < 0 else 0.0), (high if high > 0 else 0.0)
            return E("reduce", [a], rounded(64, low, high, a.type.nan or not a.type.finite or math.isinf(high - low)), shape, place, "sum")
        if not isinstance(a.type, Int):
            a = self.reals([a])[0]
        t = a.type
        if isinstance(t, Real) and t.nan:  # What is not a number is the last of all.
            t = Real(t.bits, -math.inf, t.high) if word == "largest" else Real(t.bits, t.low, math.inf)
        return E("reduce", [a], t, shape, place, word)

    def random(self, node: Node, args: List[E]) -> E:
        if self.side != "encode":
            raise fail("decode draws no random numbers", node.place, "what it needs of them is sent")
        which = self.program.randoms
        if which >= 16:
            raise fail("more than 16 random numbers a value", node.place)
        self.program.randoms += 1
        if node.word == "random":
            return E("random", [], Real(64, 0.0, 1 - 2.0**-24), ALL, node.place, which)
        width = args[0]
        if width.op != "const" or not is_int(width) or not 1 <= width.data <= 32:
            raise fail("`random_bits` takes a number of bits, 1 to 32", node.place)
        return E("random_bits", [], Int(0, 2 ** int(width.data) - 1), ALL, node.place, (which, int(width.data)))

    def kth(self, node: Node, a: E, k: E) -> E:
        if self.side != "encode":
            raise fail("`kth_largest` in decode", node.place)
        if a.shape != ALL or k.shape != ONE or not is_int(k):
            raise fail("`kth_largest` takes numbers of all values and one whole number", node.place, "write: kth_largest(abs(v), k)")
        a = self.reals([a])[0]
        assert isinstance(a.type, Real)
        if a.type.bits != 32 or a.type.low < 0 or a.type.nan:
            raise fail("`kth_largest` is for f32 that are not negative", node.place, "write: kth_largest(abs(v), k)")
        return E("kth", [a, k], a.type, ONE, node.place)

    def known(self, word: str) -> Tuple[str, Datum]:
        return self.scope.get(word, ("", None))  # type: ignore[no-any-return]

    def selection(self, node: Node) -> E:
        word, place = node.word, node.place
        if word == "spread":
            at = node.args[1]
            kind, f = self.known(at.word) if at.kind == "name" else self.known("")
            if kind != "sent" or f.kind != "position":
                raise fail("`spread` takes values that were kept, and the field of their positions", place, "write: spread(…, at)")
            f.used = True
            a = self.expr(node.args[0])
            if a.shape not in (SELECTED, ONE):
                raise fail("`spread` is for values that were kept", place)
            a = self.to_real(a, 64) if is_int(a) else self.reals([a])[0]
            if self.program.scattered:
                raise fail("a second `spread`", place)
            self.program.scattered = True
            assert isinstance(a.type, Real)
            t = Real(a.type.bits, min(a.type.low, 0.0), max(a.type.high, 0.0), a.type.nan)
            return E("spread", [a], t, ALL, place, f)
        if self.side != "encode":
            raise fail(f"`{word}` in decode", place, "what is kept is chosen in encode: a field of [m] sends what decode needs of it")
        chosen = node.args[-1]
        kind, local = self.known(chosen.word) if chosen.kind == "name" else self.known("")
        if kind != "local" or not is_int(local.expr) or local.expr.shape != ALL:
            call = "positions(chosen)" if word == "positions" else "keep(…, chosen)"
            raise fail(f"`{word}` takes the name of a condition on all values", place, f"write: chosen = abs(v) > …, then {call}")
        if self.program.mask not in (None, local):
            raise fail("two conditions of what is kept", place, "a codec keeps values once")
        if self.program.counted is None:
            raise fail("nothing counts the values that are kept", place, "declare in payload: m: count, and at: position[m]")
        local.used = True
        self.program.mask = local
        if word == "positions":
            return E("positions", [], Int(0, 2**32 - 1), SELECTED, place)
        a = self.expr(node.args[0])
        if a.shape == SELECTED:
            raise fail("values that are kept already", place)
        return E("keep", [a], a.type, SELECTED, place)


def _same(a: E, b: Datum) -> bool:
    """Whether both are the same number, so that their product is not negative."""
    if not isinstance(b, E):
        return False
    return a is b or (a.op == b.op == "local" and a.data is b.data) or (a.op == b.op == "value")


def _may_be_minus_zero(e: E) -> bool:
    """Whether a number whose range begins at 0 may be -0: a quotient by it is below 0."""
    stack, seen = [e], set()
    while stack:
        x = stack.pop()
        if id(x) in seen or not isinstance(x.type, Real) or x.type.low > 0:
            continue
        seen.add(id(x))
        square = x.op == "*" and _same(*x.args) or x.op == "power" and x.data % 2 == 0
        if square or x.op in ("abs", "kth") or (x.op == "reduce" and x.data == "sum"):
            continue
        below = any(isinstance(a.type, Real) and a.type.low < 0 for a in x.args)
        if x.op in ("value", "neg") or (x.op == "sent" and x.type.low < 0):
            return True
        if below and x.op in ("*", "/", "power", "to_f32", "to_type"):  # (What is below 0 may round to -0.)
            return True
        stack += [x.data.expr] if x.op == "local" else x.args[1:] if x.op == "choose" else x.args
    return False
