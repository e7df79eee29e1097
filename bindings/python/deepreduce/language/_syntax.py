"""The text of a codec becomes a tree. The parser is lark's (LALR), an optional dependency."""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from ..errors import ArgumentError, LibraryError

Untyped = Any  # of lark, an optional dependency: its module, parser, tokens and trees

# What one text may hold: a parser that recurses, and a compiler that follows it, end.
MAX_CHARACTERS, MAX_NESTED = 100_000, 60


class LanguageError(ArgumentError):
    """A text that is not a codec: what is wrong, its line and column, and often what to write instead."""

    def __init__(self, reason: str, place: Place, instead: str = "") -> None:
        super().__init__(reason)
        self.reason, self.place, self.instead = reason, place, instead

    def __reduce__(self) -> Tuple[object, ...]:
        return type(self), (self.reason, self.place, self.instead), {**self.__dict__, "args": self.args}

    def located(self, path: str, text: str) -> LanguageError:
        """The same, with the file's name and the line in the message."""
        lines = _lines(text)
        line = lines[self.place.line - 1] if 0 < self.place.line <= len(lines) else ""
        pointer = "".join("\t" if c == "\t" else " " for c in line[: self.place.column - 1]) + "^"
        message = f"{path}:{self.place.line}:{self.place.column}: {self.reason}\n  {line}\n  {pointer}"
        error = LanguageError(self.reason, self.place, self.instead)
        error.args = (message + (f"\n  {self.instead}" if self.instead else ""),)
        return error


def _lines(text: str) -> List[str]:
    """The lines as the parser counts them: str.splitlines also ends them at form feeds."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


@dataclass(frozen=True)
class Place:
    line: int
    column: int


@dataclass
class Node:
    """An expression. kind: whole, real, name, call, unary, binary, power, choose."""

    kind: str
    place: Place
    word: str = ""
    args: List[Node] = field(default_factory=list)
    number: Fraction = Fraction(0)
    by: Optional[str] = None


@dataclass
class Param:
    name: str
    place: Place
    kind: str  # int, real, choice
    wire: bool = False
    low: Optional[Node] = None
    high: Optional[Node] = None
    fallback: Untyped = None  # Node, or the name of a choice
    choices: List[str] = field(default_factory=list)
    summary: str = ""


@dataclass
class Field:
    name: str
    place: Place
    kind: str  # f32, u, base, count, position
    width: Optional[Node] = None
    base: int = 0
    pad: int = 0
    low: Optional[Node] = None
    high: Optional[Node] = None
    ranged: bool = False
    shape: Optional[str] = None
    by: Optional[str] = None


@dataclass
class Statement:
    kind: str  # let, require, give
    place: Place
    expr: Node
    name: str = ""
    message: str = ""


@dataclass
class Text:
    name: str
    place: Place
    summary: str
    params: List[Param] = field(default_factory=list)
    payload: List[Field] = field(default_factory=list)
    value: str = ""
    encode: List[Statement] = field(default_factory=list)
    decode: List[Statement] = field(default_factory=list)
    places: Dict[str, Place] = field(default_factory=dict)  # of sections


def _lark() -> Untyped:
    try:
        import lark
    except ImportError as e:
        raise LibraryError("the language of codecs needs the package lark: pip install lark") from e
    return lark


# Between these, and before or after these, a line goes on.
_OPEN, _CLOSE = {"LPAR", "LSQB"}, {"RPAR", "RSQB"}
_GOES_ON = {
    "OR", "AND", "NOT", "COMPARE", "AMPERSAND", "BAR", "XOR", "SHIFT", "PLUS", "MINUS", "TIMES", "OVER", "DIV", "MOD",
    "IF", "THEN", "ELSE", "EQUAL", "COMMA", "CIRCUMFLEX",
}  # fmt: skip
_BEGINS = _GOES_ON - {"IF", "NOT"}


class Lines:
    """Between lexer and parser: drops the ends of lines that go on, and refuses deep nesting."""

    always_accept = ("_NL",)

    def process(self, stream: Iterable[Untyped]) -> Iterator[Untyped]:
        depth, last, held = 0, "", None
        for token in stream:
            if token.type == "_NL":
                held = token
                continue
            if held is not None:
                if depth == 0 and last not in _GOES_ON and token.type not in _BEGINS:
                    yield held
                held = None
            depth += (token.type in _OPEN) - (token.type in _CLOSE)
            if depth > MAX_NESTED:
                raise LanguageError(f"more than {MAX_NESTED} brackets inside one another", _place(token), "give parts a name: part = …")
            depth = max(depth, 0)
            last = token.type
            yield token
        if held is not None:
            yield held


def _place(token: Untyped) -> Place:
    return Place(int(getattr(token, "line", 1) or 1), int(getattr(token, "column", 1) or 1))


def _words(token: Untyped) -> str:
    return str(token)[1:-1] if token is not None else ""


_parsers: List[Untyped] = []


def _parser() -> Untyped:
    if not _parsers:
        grammar = (pathlib.Path(__file__).parent / "grammar.lark").read_text()
        _parsers.append(
            _lark().Lark(grammar, parser="lalr", lexer="basic", propagate_positions=True, maybe_placeholders=True, postlex=Lines())
        )
    return _parsers[0]


def parse(text: str) -> Text:
    """The tree of a text. LanguageError."""
    lark = _lark()
    if len(text) > MAX_CHARACTERS:
        raise LanguageError(f"{len(text)} characters; a codec has at most {MAX_CHARACTERS}", Place(1, 1))
    try:
        tree = _parser().parse(text if text.endswith("\n") else text + "\n")
    except lark.exceptions.UnexpectedToken as e:
        raise _unexpected(e, text) from None
    except lark.exceptions.UnexpectedCharacters as e:
        raise LanguageError(f"the character {e.char!r} has no meaning here", Place(e.line, e.column), _instead(e.char)) from None
    try:
        return _Reader().read(tree)
    except RecursionError:
        raise LanguageError("an expression is too deep", Place(1, 1), "give parts a name: part = …") from None


def _instead(character: str) -> str:
    return {
        "%": "the rest of a division is `a mod b`",
        "~": "exclusive or is `a xor b`",
        "!": "not is `not`, unequal is `!=`",
        ";": "a statement ends with its line",
        "{": "there are no braces: a section goes on to the next one",
        "'": 'texts have double quotes: "…"',
        "?": "a choice is `if condition then a else b`",
    }.get(character, "names have small letters, digits and _" if character.isupper() else "")


_TOKENS = {
    "_NL": "the end of the line", "NAME": "a name", "INT": "a whole number", "REAL": "a number", "STRING": "a text", "LPAR": "(",
    "RPAR": ")", "LSQB": "[", "RSQB": "]", "EQUAL": "=", "COLON": ":", "COMMA": ",", "$END": "the end",
}  # fmt: skip
_SECTIONS = ("WIRE", "PARAM", "PAYLOAD", "ENCODE", "DECODE")


def _unexpected(e: Untyped, text: str) -> LanguageError:
    token, place = e.token, _place(e.token)
    if token.type == "$END":
        return LanguageError("the text ends here", Place(max(1, len(_lines(text))), 1), "a codec has: codec, payload, encode, decode")
    found = _TOKENS.get(token.type, f"`{token}`") if token.type in ("_NL", "STRING") else f"`{token}`"
    expected = set(e.accepts or e.expected or ())
    operand = {"INT", "REAL", "NAME", "LPAR"} <= expected
    words = []
    if operand:
        words.append("a number, a name or (")
        expected -= {"INT", "REAL", "NAME", "LPAR", "MINUS", "NOT", "IF", "RPAR"}
    if expected >= set(_SECTIONS):
        words.append("a section: wire, param, payload, encode, decode")
    expected -= set(_SECTIONS)
    operators = {"OR", "AND", "COMPARE", "AMPERSAND", "XOR", "SHIFT", "PLUS", "MINUS", "TIMES", "OVER", "DIV", "MOD", "CIRCUMFLEX"}
    if len(expected & operators) > 3:
        words.append("an operator")
        expected -= operators | {"BAR"}
    words += sorted(_TOKENS.get(t, f"`{t.lower()}`") for t in expected)
    instead = ""
    line = _lines(text)[place.line - 1 : place.line]
    before = line[0][: place.column - 1].rstrip() if line else ""
    if token.type in ("AMPERSAND", "BAR") and before.endswith(str(token)):
        instead = "`a and b`, `a or b`; `&` and `|` are for bits"
    elif str(token) == "/" and before.endswith("/"):
        instead = "`#` begins a comment; `a div b` divides whole numbers"
    elif token.type in ("INT", "REAL") and before.endswith(" by"):
        instead = f"name it: wire block: int 1..2^20 = {token}, then: by block"
    elif token.type == "EQUAL" and re.search(r": *(int|real)$", before):
        instead = "a range comes before the default: int 1..2^20 = 32"
    elif token.type in ("STRING", "_NL") and "EQUAL" in (e.accepts or e.expected or ()) and re.match(r" *(wire|param) ", before):
        instead = "a default comes after the range: int 1..2^20 = 32"
    elif re.fullmatch(r"[a-z]+", str(token)) and token.type != "NAME" and "NAME" in (e.accepts or e.expected or ()) and not operand:
        instead = f"`{token}` is a word of the language: choose another name"
    elif token.type == "EQUAL" and "an operator" in words:
        instead = "`a == b` compares; a statement is `name = expression`"
    elif token.type in ("IF", "THEN", "ELSE"):
        instead = "a choice is `if condition then a else b`, with both"
    elif token.type == "NAME" and str(token) in ("for", "while", "loop", "def", "return"):
        instead = "there are no loops: an expression of the values is one for each of them"
    return LanguageError(f"{found}, but expected {', or '.join(words[:5])}", place, instead)


class _Reader:
    """Lark's tree to ours."""

    def read(self, tree: Untyped) -> Text:
        header, *items = [c for c in tree.children if c is not None and getattr(c, "data", None) is not None]
        name, summary = header.children
        text = Text(str(name), _place(name), _words(summary))
        for item in items:
            kind = str(item.data)
            where = Place(item.meta.line, item.meta.column)
            if kind in ("wire", "param_int", "param_real", "param_choice"):
                text.params.append(self.param(kind, item.children))
                continue
            if kind in text.places:
                raise LanguageError(f"a second section `{kind}`", where, "a codec has one of each")
            text.places[kind] = where
            if kind == "payload":
                text.payload = [self.field(c.children) for c in item.children]
            elif kind == "encode":
                text.value = str(item.children[0])
                text.encode = [self.statement(c) for c in item.children[1:]]
            else:
                text.decode = [self.statement(c) for c in item.children]
        for kind, instead in (
            ("payload", 'payload\n    code: u8[n]'),
            ("encode", "encode v\n    code = …"),
            ("decode", "decode\n    return …"),
        ):
            if kind not in text.places:
                raise LanguageError(f"there is no section `{kind}`", text.place, f"write: {instead}")
        return text

    def param(self, kind: str, children: List[Untyped]) -> Param:
        name = children[0]
        p = Param(str(name), _place(name), {"wire": "int", "param_int": "int", "param_real": "real"}.get(kind, "choice"), kind == "wire")
        if p.kind == "choice":
            _, choices, fallback, summary = children
            p.choices = [str(c) for c in choices.children if c.type == "NAME"]
            p.fallback = str(fallback) if fallback is not None else p.choices[0]
        else:
            _, limits, fallback, summary = children
            p.low, p.high = self.range(limits)
            p.fallback = self.node(fallback)
            if p.high is None:
                raise LanguageError(f"`{p.name}` has no upper end", p.place, "write both: 1..100")
        p.summary = _words(summary)
        return p

    def range(self, tree: Untyped) -> Tuple[Optional[Node], Optional[Node]]:
        low, high = tree.children
        return self.node(low), self.node(high) if high is not None else None

    def field(self, children: List[Untyped]) -> Field:
        name, kind, limits, shape, _ = children
        f = Field(str(name), _place(name), "")
        if kind.data == "base_kind":
            f.kind, (f.base, f.pad) = "base", (_whole(str(digits), _place(digits)) for digits in kind.children)
        elif kind.data == "sized_kind":
            word = kind.children[0]
            if str(word) != "u":
                raise LanguageError(f"no type `{word}(…)`", _place(word), "bits of a width that is computed: u(width)")
            f.kind, f.width = "u", self.node(kind.children[1])
        else:
            word, f.kind = kind.children[0], str(kind.children[0])
            if f.kind[:1] == "u" and f.kind[1:].isdigit():
                f.width, f.kind = Node("whole", _place(word), number=Fraction(_whole(f.kind[1:], _place(word)))), "u"
            elif f.kind not in ("f32", "count", "position"):
                raise LanguageError(f"no type `{f.kind}`", _place(word), "types of a payload: f32, u1 to u32, u(width), base B pad D, count, position")
        if limits is not None:
            f.low, f.high = self.range(limits)
            f.ranged = True
        if shape is not None:
            f.shape = str(shape.children[0])
            f.by = str(shape.children[1]) if shape.children[1] is not None else None
        return f

    def statement(self, tree: Untyped) -> Statement:
        kind, place, c = str(tree.data), Place(tree.meta.line, tree.meta.column), tree.children
        if kind == "let":
            return Statement("let", place, self.node(c[1]), str(c[0]))
        if kind == "require":
            return Statement("require", place, self.node(c[0]), message=_words(c[1]))
        return Statement("give", place, self.node(c[0]))

    def node(self, tree: Untyped, depth: int = 0) -> Node:
        if depth > 3 * MAX_NESTED:
            raise LanguageError("an expression is too deep", Place(tree.meta.line, tree.meta.column), "give parts a name: part = …")
        c, kind = tree.children, str(tree.data)
        place = Place(tree.meta.line, tree.meta.column)
        down: Callable[[Untyped], Node] = lambda t: self.node(t, depth + 1)
        if kind == "whole":
            return Node("whole", place, number=Fraction(_whole(str(c[0]), place)))
        if kind == "real":
            return Node("real", place, number=_real(str(c[0]), place))
        if kind == "name":
            return Node("name", place, str(c[0]))
        if kind == "call":
            by = str(c[-1]) if c[-1] is not None else None
            return Node("call", place, str(c[0]), [down(a) for a in c[1:-1] if a is not None], by=by)
        if kind == "unary":
            return Node("unary", place, str(c[0]), [down(c[1])])
        if kind == "binary":
            return Node("binary", _place(c[1]), str(c[1]), [down(c[0]), down(c[2])])
        if kind == "power":
            return Node("power", place, "^", [down(c[0]), down(c[1])])
        return Node("choose", place, "if", [down(a) for a in c])


def _whole(digits: str, place: Place) -> int:
    if len(digits) > 20:
        raise LanguageError("a whole number of more than 20 digits", place)
    return int(digits)


def _real(digits: str, place: Place) -> Fraction:
    exponent = digits.lower().partition("e")[2]
    if len(digits) > 40 or (exponent and abs(int(exponent)) > 400):
        raise LanguageError("a number that no type holds", place)
    return Fraction(digits)
