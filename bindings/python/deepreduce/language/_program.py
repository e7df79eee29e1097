"""What a text means: expressions with types, in the order of the text. The compiler's two halves meet here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Optional

from ._syntax import Place
from ._ranges import LARGEST_F32, Int, Type


Datum = Any  # what an expression or a name stands for: its kind says which


@dataclass(eq=False)
class E:
    """An expression. `op` says what `args` and `data` are (_check.py makes them, _emit.py writes them as C++)."""

    op: str
    args: List[E]
    type: Type
    shape: str
    place: Place
    data: Datum = None


@dataclass(eq=False)
class Local:
    """A name of encode or decode."""

    name: str
    expr: E
    place: Place
    used: bool = False


@dataclass(eq=False)
class Param:
    name: str
    kind: str  # int, real, choice
    wire: bool
    low: Datum
    high: Datum
    fallback: Datum
    choices: List[str]
    summary: str
    used: bool = False


@dataclass(eq=False)
class Field:
    """A field of the payload. kind: f32, u, base, count, position."""

    name: str
    place: Place
    kind: str
    shape: str
    type: Type
    ranged: bool = False
    width: Optional[E] = None  # of u: bits
    base: int = 0
    pad: int = 0
    expr: Optional[E] = None  # in encode
    used: bool = False

    @property
    def limits(self) -> str:
        """Its range in words."""
        if isinstance(self.type, Int):
            return f"{self.type.low} to {self.type.high}"
        low, high = ("" if abs(x) == LARGEST_F32 else f"{x:g}" for x in (self.type.low, self.type.high))
        return f"{low}..{high}" if low or high else "f32, finite"

    @property
    def digits(self) -> int:
        """Of a base: digits a byte."""
        k = 1
        while self.base ** (k + 1) <= 256:
            k += 1
        return k

    @property
    def fixed_width(self) -> int:
        """Of u: the bits, if they are a number; else 0."""
        assert self.width is not None
        return int(self.width.data) if self.width.op == "const" else 0


@dataclass(eq=False)
class Require:
    expr: E
    message: str
    place: Place


@dataclass(eq=False)
class Program:
    name: str
    summary: str
    params: List[Param]
    fields: List[Field]
    value: str
    encode: List[Local] = field(default_factory=list)
    encode_requires: List[Require] = field(default_factory=list)
    decode: List[Local] = field(default_factory=list)
    decode_requires: List[Require] = field(default_factory=list)
    result: Optional[E] = None
    mask: Optional[Local] = None  # which values are kept
    randoms: int = 0
    scattered: bool = False

    @property
    def wires(self) -> List[Param]:
        return [p for p in self.params if p.wire]

    @property
    def counted(self) -> Optional[Field]:
        return next((f for f in self.fields if f.kind == "count"), None)

    @property
    def sorts(self) -> bool:
        """Whether encode needs a k-th largest number."""
        stack, seen = [local.expr for local in self.encode] + [r.expr for r in self.encode_requires], set()
        while stack:
            e = stack.pop()
            if e.op == "kth":
                return True
            if id(e) not in seen:
                seen.add(id(e))
                stack += e.args + ([e.data.expr] if e.op == "local" else [])
        return False

    @property
    def lists(self) -> bool:
        """Whether encode lists positions of values."""
        return self.counted is not None or self.sorts

    def param(self, name: str) -> Param:
        return next(p for p in self.params if p.name == name)
