"""Plan books: text files that assign plans to tensors. `deepreduce plan` writes them.

    # comment, at the beginning of a line or behind a blank
    layer4.*: sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw
    *.bias: dense

A line is `pattern: plan`; the colon is its last one. Patterns are those of fnmatch.fnmatchcase (* ? [abc] [!abc], no
escapes), and the first that matches a tensor's name counts. `dense`, or no match: the tensor is sent exactly.
DDPHook and AllReduce of deepreduce.torch, and NamedAllReduce of deepreduce.mpi, accept a book as their plan, or
"book:PATH".

>>> book = deepreduce.book.parse("head.*: dense\\n*: index=golomb value=raw")
>>> book.plan_of("head.weight"), str(book.plan_of("body.weight"))
(None, 'index=golomb value=raw')
"""

from __future__ import annotations

import ctypes
import os
import pathlib
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from ._files._whole_file import whole_file
from ._native import _abi, _abi_plan, _library
from ._native._call import c_string, check, new, require_kind, text
from ._native._types import Pointer
from .errors import ArgumentError
from .plan import Plan, as_plan

__all__ = ["Book", "as_book", "parse", "read"]

_PREFIX = "book:"
_USES = {_abi_plan.DR_LINE_UNMATCHED: "unmatched", _abi_plan.DR_LINE_UNREACHED: "unreached"}
Pairs = Iterable[Tuple[str, Union[None, str, Plan]]]


class Book(Sequence[Tuple[str, Optional[Plan]]]):
    """A sequence of pairs (pattern, plan), of which the first match counts. None: dense.

    Raises ArgumentError for a pattern or a plan that is not valid, or that a line cannot hold.
    """

    def __init__(self, pairs: Pairs) -> None:
        self._read_lines(_parsed("", "book"))
        if isinstance(pairs, (str, bytes)) or not isinstance(pairs, Iterable):
            raise ArgumentError(f"pairs is {pairs!r}, not pairs of a pattern and a plan")
        for pair in pairs:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise ArgumentError(f"{pair!r} is not a pair of a pattern and a plan")
            pattern, plan = pair
            if not isinstance(pattern, str) or not pattern:
                raise ArgumentError(f"a pattern is a text of at least one character, not {pattern!r}")
            method, error = None if plan is None or plan == "dense" else as_plan(plan), new(_abi.dr_error)
            line = c_string(pattern, f"pattern {pattern!r}"), 0, None if method is None else method.handle
            check(_library.load().dr_book_add(self._handle, *line, error), error)
            self._pairs.append((pattern, method))

    def _read_lines(self, handle: object) -> None:
        """Makes this book that of `handle`, which it owns from now on."""
        self._handle, self._destroy = handle, _library.load().dr_book_destroy
        self._pairs: List[Tuple[str, Optional[Plan]]] = []
        for i in range(_library.load().dr_book_line_count(handle)):
            line, error = new(_abi_plan.dr_book_line), new(_abi.dr_error)
            check(_library.load().dr_book_line_at(handle, i, line, error), error)
            plan = as_plan(text(_library.load().dr_plan_text(line.plan))) if line.plan else None
            self._pairs.append((os.fsdecode(line.pattern), plan))

    def __getitem__(self, i: Any) -> Any:
        return self._pairs[i]

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[Tuple[str, Optional[Plan]]]:
        return iter(self._pairs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Book) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __repr__(self) -> str:
        return f"Book({self._pairs!r})"

    def __str__(self) -> str:
        return text(_library.load().dr_book_text(self._handle))

    def __reduce__(self) -> Tuple[object, ...]:
        return Book, (self._pairs,)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._destroy(self._handle)

    def find(self, name: str) -> Optional[int]:
        """The position of the first line whose pattern matches the name; None: no line does."""
        line, error = new(_abi_plan.dr_book_line), new(_abi.dr_error)
        check(_library.load().dr_book_match(self._handle, c_string(name, "the name"), line, error), error)
        return None if line.position == _abi_plan.DR_NO_LINE else line.position

    def plan_of(self, name: str) -> Optional[Plan]:
        """The plan of a name; None: dense."""
        found = self.find(name)
        return None if found is None else self._pairs[found][1]

    def groups(self, names: Iterable[str]) -> Dict[Optional[Plan], List[str]]:
        """{plan: names}, both in the order of the names."""
        groups: Dict[Optional[Plan], List[str]] = {}
        for name in names:
            groups.setdefault(self.plan_of(name), []).append(name)
        return groups

    def uses(self, names: Sequence[str]) -> List[str]:
        """For each line "used", "unmatched" (its pattern matches none of the names) or "unreached" (lines before it match all
        names that it matches)."""
        given = (ctypes.c_char_p * len(names))(*(c_string(name, "a name") for name in names))
        uses, error = (ctypes.c_uint32 * (len(self) or 1))(), new(_abi.dr_error)
        check(_library.load().dr_book_uses(self._handle, given, len(names), uses, error), error)
        return [_USES.get(use, "used") for use in uses[: len(self)]]

    def write(self, path: Union[str, os.PathLike[str]], comment: str = "") -> None:
        """Writes the file whole or not at all. comment: lines at its beginning. Raises OSError."""
        with whole_file(path) as partial:
            partial.write_text("".join(f"# {line}\n" for line in comment.splitlines()) + str(self), "utf-8")


def parse(text: str, where: str = "book") -> Book:
    """The book of a text. Raises ArgumentError or Unsupported, "WHERE: line 3: …", for a line that is not valid, or a plan
    that the library does not know."""
    require_kind(text, "text", str)
    book = Book.__new__(Book)
    book._read_lines(_parsed(text, where))
    return book


def _parsed(content: Union[str, bytes], where: str) -> Pointer:
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    handle, error = ctypes.POINTER(_abi_plan.dr_book)(), new(_abi.dr_error)
    place = c_string(where, "where")
    check(_library.load().dr_book_parse(data, len(data), place, ctypes.byref(handle), error), error)
    return handle


def read(path: Union[str, os.PathLike[str]]) -> Book:
    """The book in a file. Raises the errors of `parse`, and ArgumentError for a file that cannot be read or is not UTF-8."""
    name = os.fspath(path)
    try:
        content = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise ArgumentError(f"{name}: cannot be opened: {error.strerror}") from None
    except ValueError:
        raise ArgumentError(f"{name!r}: cannot be opened: it has a zero byte") from None
    book = Book.__new__(Book)
    book._read_lines(_parsed(content, name))
    return book


def as_book(plan: object) -> Optional[Book]:
    """The Book itself, or the book that "book:PATH" names; None for another plan."""
    if isinstance(plan, Book):
        return plan
    if isinstance(plan, str) and plan.startswith(_PREFIX):  # (plan text: it names a file)
        return read(plan[len(_PREFIX) :])
    return None
