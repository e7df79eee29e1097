"""Plan books: which tensor has which plan, in a text file that `deepreduce plan` writes.

    # comment, at the beginning of a line or behind a blank
    layer4.*: sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw
    *.bias: dense

A line is `pattern: plan`; the colon is its last one. Patterns are those of fnmatch.fnmatchcase (* ? [abc] [!abc], no
escapes), and the first that matches a tensor's name counts. `dense` leaves a tensor as it is; so does no match.
DDPHook and AllReduce of deepreduce.torch, and NamedAllReduce of deepreduce.mpi, take a book as their plan, or
"book:PATH".

>>> book = deepreduce.book.parse("head.*: dense\\n*: index=golomb value=raw")
>>> book.plan_of("head.weight"), str(book.plan_of("body.weight"))
(None, 'index=golomb value=raw')
"""

from __future__ import annotations

import fnmatch
import os
import pathlib
import re
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from ._whole_file import whole_file
from .errors import ArgumentError, Error
from .plan import Plan, as_plan

__all__ = ["Book", "as_book", "parse", "read"]

_PREFIX = "book:"
Pairs = Iterable[Tuple[str, Union[None, str, Plan]]]


class Book(Sequence[Tuple[str, Optional[Plan]]]):
    """(pattern, plan) after (pattern, plan), of which the first that matches counts. None: dense.

    ArgumentError for a pattern or a plan that is none, or that a line cannot hold.
    """

    def __init__(self, pairs: Pairs) -> None:
        self._pairs: List[Tuple[str, Optional[Plan]]] = []
        for pattern, plan in pairs:
            if not isinstance(pattern, str) or not pattern:
                raise ArgumentError(f"a pattern is {pattern!r}, no text or none")
            if pattern != pattern.strip(" \t\r") or re.search(r"[\n]|(^|[ \t\r])#", pattern):
                raise ArgumentError(f"pattern {pattern!r}: a book has none with a line's end, a blank at an end, or ' #'")
            self._pairs.append((pattern, None if plan is None or plan == "dense" else as_plan(plan)))

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
        text = "".join(f"{pattern}: {'dense' if plan is None else plan}\n" for pattern, plan in self._pairs)
        return "\n" + text if text.startswith("\ufeff") else text  # of the first line a mark would be taken off

    def plan_of(self, name: str) -> Optional[Plan]:
        """None: dense."""
        return next((plan for pattern, plan in self._pairs if fnmatch.fnmatchcase(name, pattern)), None)

    def groups(self, names: Iterable[str]) -> Dict[Optional[Plan], List[str]]:
        """Names by their plans, both in the order of the names."""
        groups: Dict[Optional[Plan], List[str]] = {}
        for name in names:
            groups.setdefault(self.plan_of(name), []).append(name)
        return groups

    def write(self, path: Union[str, os.PathLike[str]], comment: str = "") -> None:
        """The file is there whole or not at all. OSError. comment: lines at its beginning"""
        with whole_file(path) as partial:
            partial.write_text("".join(f"# {line}\n" for line in comment.splitlines()) + str(self), "utf-8")


def parse(text: str, where: str = "book") -> Book:
    """The book of a text. ArgumentError "WHERE: line 3: …" for a line that is none, or a plan that the library does not know."""
    pairs = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = re.split(r"(?:^|(?<=[ \t\r]))#", line, maxsplit=1)[0].strip(" \t\r")
        if not line:
            continue
        pattern, colon, plan = (part.strip(" \t\r") for part in line.rpartition(":"))
        try:
            if not colon:
                raise ArgumentError(f"'{line}' is no `pattern: plan`")
            if not pattern:
                raise ArgumentError("no pattern before the colon")
            if not plan:
                raise ArgumentError("no plan behind the colon; `dense` leaves a tensor as it is")
            pairs.append((pattern, None if plan == "dense" else as_plan(plan)))
        except Error as error:
            raise ArgumentError(f"{where}: line {number}: {error}") from None
    return Book(pairs)


def read(path: Union[str, os.PathLike[str]]) -> Book:
    """The book in a file. ArgumentError, also for a file that cannot be read or is no UTF-8."""
    name = os.fspath(path)
    try:
        text = pathlib.Path(path).read_text("utf-8")
    except OSError as error:
        raise ArgumentError(f"{name}: cannot be opened: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{name}: byte {error.start}: no UTF-8, so no plan book") from None
    return parse(text, name)


def as_book(plan: Any) -> Optional[Book]:
    """A Book as it is, and what "book:PATH" names; None for anything else."""
    if isinstance(plan, Book):
        return plan
    if isinstance(plan, str) and plan.startswith(_PREFIX):
        return read(plan[len(_PREFIX) :])
    return None
