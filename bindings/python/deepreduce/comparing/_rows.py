"""The rows that compare returns: a list with what people do next."""

from __future__ import annotations

import difflib
import html
import json
import os
import pathlib
import tempfile
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Sequence, SupportsIndex, Tuple, Union, overload

from .. import figure
from .._native import _tool
from .._native._call import real, require_kind
from .._native._sizes import count_text
from .._native._types import Json
from ..errors import ArgumentError, Error, LibraryError

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

Row = Json

_SHOWN = 60  # rows of a table in a notebook or a terminal
_TITLES = ("plan", "smaller", "coding error", "encode + decode", "pays below")


class Rows(List[Row]):
    """Rows of compare: a list of dicts, a dict for each plan and tensor, with the columns of `deepreduce help columns`.

    rows      dicts; or a saved document, json.load(file)
    document  the rest of the document of `deepreduce compare --format json`: machine, settings, …

    `print` and notebooks show five columns, as the command does: the plan; how many times smaller its frame is than dense float32;
    the error against the selected values; the time of encode, with the sparsifier, and decode; and the speed of a rank's link below which an exchange is faster
    than an all-reduce in bfloat16 (a model). The row of memcpy is not shown. Slices and sums are Rows, too; a sum has the document
    of its first part.

    >>> rows = deepreduce.Rows([{"plan": "index=golomb value=raw", "bytes": 900, "d": 20_000, "relative_l2_error": 0.0},
    ...                         {"plan": "index=golomb value=half", "bytes": 500, "d": 20_000, "relative_l2_error": 0.0003}])
    >>> rows
    <Rows 2 plans>
    >>> rows.best(error=0.001)["plan"], rows.best(error=0)["plan"]
    ('index=golomb value=half', 'index=golomb value=raw')
    """

    def __init__(self, rows: Union[Iterable[Row], Json] = (), document: Optional[Json] = None) -> None:
        given: Any = rows
        if isinstance(given, Mapping):
            if "rows" not in given:
                raise ArgumentError("rows is a dict without 'rows', not a document of `deepreduce compare --format json`")
            given, document = given["rows"], given if document is None else document
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise ArgumentError(f"rows is {given!r}, not dicts or a document of `deepreduce compare --format json`")
        super().__init__(given)
        for i, row in enumerate(self):
            require_kind(row, f"rows[{i}]", dict)
        self.document: Json = {name: value for name, value in (document or {}).items() if name != "rows"}

    @overload
    def __getitem__(self, at: SupportsIndex) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> Rows: ...
    def __getitem__(self, at: Union[SupportsIndex, slice]) -> Union[Row, Rows]:
        return Rows(super().__getitem__(at), self.document) if isinstance(at, slice) else super().__getitem__(at)

    def __add__(self, other: List[Row]) -> Rows:  # type: ignore[override]
        return Rows(super().__add__(other), self.document)

    def select(self, *, input: Optional[str] = None, tensor: Optional[str] = None, step: Optional[int] = None) -> Rows:
        """The rows of an input, a tensor or a step, by their names in the rows."""
        asked = {name: value for name, value in (("input", input), ("tensor", tensor), ("step", step)) if value is not None}
        return Rows((row for row in self if all(row.get(name) == value for name, value in asked.items())), self.document)

    def best(
        self,
        *,
        error: Optional[float] = None,
        total_error: Optional[float] = None,
        by: str = "bytes",
        input: Optional[str] = None,
        tensor: Optional[str] = None,
    ) -> Row:
        """The row of the smallest frame, or with `by` of the least of another column.

        error          maximum of the coding error, relative_l2_error: against the values that the sparsifier selected
        total_error    maximum of the error against the dense tensor. With feedback the rest is sent in later steps
        by             a column, or a sum of columns: "encode_ns+decode_ns"
        input, tensor  selects rows, as select does: the rows must be of one tensor

        Plans with several ratios differ in what they select, which the coding error does not count: limit total_error, too.
        Raises ArgumentError if no row is within the limits, of the tensor, or has the column.
        """
        require_kind(by, "by", str)
        found = self._selected(input=input, tensor=tensor)
        _require_columns(found, by)
        rows = [row for row in found if figure.value(row, by) is not None]
        _require_one_tensor(rows, "best chooses among the plans of one", "input", "tensor", "step")
        if not rows:
            raise ArgumentError(f"there is no row with a number in '{by}'")
        for column, title, limit in (("relative_l2_error", "coding error", error), ("total_error", "total error", total_error)):
            if limit is None:
                continue
            real(limit, f"the {title}")
            errors = [number for row in rows if (number := figure.value(row, column)) is not None]
            rows = [row for row in rows if (number := figure.value(row, column)) is not None and number <= limit]
            if not rows:
                nearest = f"the smallest is {min(errors):.3g}" if errors else "it is not known of any"
                raise ArgumentError(f"no plan has a {title} of at most {limit:g}: {nearest}")
        return min(rows, key=lambda row: figure.value(row, by) or 0.0)

    def frame(self) -> pandas.DataFrame:
        """A pandas.DataFrame with a row for each plan, memcpy included, without the column `samples`. Times are in ns.

        Raises LibraryError if pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise LibraryError(f"frame: {error}; install it: pip install pandas") from None
        return pandas.DataFrame([{name: value for name, value in row.items() if name != "samples"} for row in self])

    def plot(
        self,
        output: Union[None, str, os.PathLike[str]] = None,
        *,
        x: str = "bytes",
        y: Optional[str] = None,
        input: Optional[str] = None,
        tensor: Optional[str] = None,
        step: Optional[int] = None,
    ) -> Figure:
        """A picture of two columns, as `deepreduce figure` draws it: a mark for each plan, and the line of those that no other
        plan beats.

        output               a file to write, too: .svg, .png or .pdf
        x, y                 columns, or sums of columns: "encode_ns+decode_ns". y: None is total_error, or the coding error if
                             all plans have the same sparsifier
        input, tensor, step  select rows, as select does: a picture shows one tensor. step: None is the last

        Returns a matplotlib Figure, which notebooks show. Raises LibraryError if matplotlib is not installed, ArgumentError if
        there is nothing to draw.
        """
        rows = self._selected(input=input, tensor=tensor, step=step)
        _require_one_tensor(rows, "a picture shows one", "input", "tensor")
        rows = figure.of_step(rows)
        y = figure.usual_y(rows) if y is None else y
        require_kind(x, "x", str)
        require_kind(y, "y", str)
        try:
            return figure.picture(figure.points_of(rows, x, y), x, y, figure.title_of(rows), None if output is None else os.fspath(output))
        except figure.FigureError as error:
            raise ArgumentError(f"plot: {error}") from None
        except ImportError as error:
            raise LibraryError(f"plot: {error}; install it: pip install matplotlib") from None

    def report(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the page of `deepreduce compare --report`: charts and all rows in one HTML file that loads nothing.

        Raises LibraryError if the tool is not installed, Error if the page cannot be written.
        """
        with tempfile.TemporaryDirectory(prefix="deepreduce-") as folder:
            saved = pathlib.Path(folder) / "rows.json"
            saved.write_text(json.dumps({**self.document, "rows": list(self)}), "utf-8")
            done = _tool.run_quietly(["compare", "--from", str(saved), "--report", os.fspath(path)])
        if done.returncode:
            sentence = done.stderr.decode("utf-8", "replace").strip().replace("deepreduce: ", "")
            raise (ArgumentError if done.returncode == 2 else Error)(f"report: {sentence}")

    def __repr__(self) -> str:
        plans = {row.get("plan") for row in self._of_plans()}
        groups = self._groups()
        return f"<Rows {count_text(len(plans), 'plan')}{f' of {len(groups):,} tensors' if len(groups) > 1 else ''}>"

    def __str__(self) -> str:
        lines = []
        for title, rows in self._shown():
            cells = [_TITLES, *map(_cells, rows)]
            widths = [max(len(line[i]) for line in cells) for i in range(len(_TITLES))]
            lines += [title] * bool(title)
            lines += ["  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]) for line in cells]
        return "\n".join([*lines, *self._left_out()]) or repr(self)

    def _repr_html_(self) -> str:
        parts = []
        for title, rows in self._shown():
            lines = ["<tr>" + "".join(f"<th>{html.escape(title)}</th>" for title in _TITLES) + "</tr>"]
            for row in rows:
                plan, *numbers = map(html.escape, _cells(row))
                lines.append(f'<tr><td style="text-align: left">{plan}</td>' + "".join(f"<td>{number}</td>" for number in numbers) + "</tr>")
            parts.append(f"<table><caption>{html.escape(title)}</caption>{''.join(lines)}</table>")
        return "\n".join([*parts, *(f"<p>{html.escape(line)}</p>" for line in self._left_out())]) or html.escape(repr(self))

    def _of_plans(self) -> List[Row]:
        """Without the rows of memcpy."""
        return [row for row in self if row.get("plan") != "memcpy"]

    def _selected(self, **asked: Union[None, str, int]) -> List[Row]:
        """As select does, without the rows of memcpy. ArgumentError if none is left."""
        rows = self._of_plans()
        for name, value in asked.items():
            there = list(dict.fromkeys(row.get(name) for row in rows))
            rows = [row for row in rows if value is None or row.get(name) == value]
            if there and not rows:
                near = difflib.get_close_matches(str(value), map(str, there), 1)
                joined = " (all tensors of an input, joined: per_tensor=True compares each)" if there == ["*"] else ""
                hint = f"; is it {near[0]!r}?" if near else f"; the rows have {_some(there)}{joined}"
                raise ArgumentError(f"no row has {name}={value!r}{hint}")
        return rows

    def _groups(self) -> Dict[Tuple[object, ...], List[Row]]:
        """{(input, tensor, step): rows}"""
        groups: Dict[Tuple[object, ...], List[Row]] = {}
        for row in self._of_plans():
            groups.setdefault((row.get("input"), row.get("tensor"), row.get("step")), []).append(row)
        return groups

    def _shown(self) -> List[Tuple[str, List[Row]]]:
        """(title, rows) of the tables: at most _SHOWN rows in all."""
        shown, room = [], _SHOWN
        for rows in self._groups().values():
            if room > 0:
                shown.append((_title(rows[0]), rows[:room]))
            room -= len(rows)
        return shown

    def _left_out(self) -> List[str]:
        number = len(self._of_plans()) - _SHOWN
        return [f"… and {count_text(number, 'row')} more"] if number > 0 else []


def _require_one_tensor(rows: Sequence[Row], what: str, *names: str) -> None:
    for name in names:
        values = list(dict.fromkeys(row.get(name) for row in rows))
        if len(values) > 1:
            raise ArgumentError(f"{len(values)} values of {name} ({_some(values)}): {what}; select it with {name}=")


def _require_columns(rows: Sequence[Row], columns: str) -> None:
    """columns: as of `best`. ArgumentError for one that no row has."""
    known = {name for row in rows for name in row}
    for name in columns.split("+"):
        if rows and name not in known:
            near = difflib.get_close_matches(name, sorted(known), 1)
            raise ArgumentError(f"column '{name}': in none of the rows; {f'is it {near[0]!r}?' if near else '`deepreduce help columns` lists them'}")


def _some(values: Sequence[object]) -> str:
    return ", ".join(map(repr, values[:3])) + (", …" if len(values) > 3 else "")


def _title(row: Row) -> str:
    """g.npz conv1.weight: 330,260 f32"""
    names = [str(row[name]) for name in ("input", "tensor") if row.get(name) not in (None, "", "*")]
    size = f"{row['d']:,} {row.get('dtype') or ''}".strip() if row.get("d") else ""
    return ": ".join(filter(None, (" ".join(names), size)))


def _cells(row: Row) -> Tuple[str, ...]:
    size, dense, loss = (figure.value(row, name) for name in ("bytes", "d", "relative_l2_error"))
    time, speed = _time(row), figure.value(row, "pays_below_bf16")
    return (
        str(row.get("plan", "")),
        f"×{4 * dense / size:.3g}" if size and dense else "",
        "" if loss is None else "0" if loss == 0 else f"{100 * loss:.2g} %",
        "" if time is None else _of_unit(time, 1000, ("ns", "µs", "ms", "s")),
        "" if speed is None else _of_unit(speed, 1000, ("b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s")) if speed else "never",
    )


def _time(row: Row) -> Optional[float]:
    """Of encode, with the sparsifier, and decode: ns."""
    coding = figure.value(row, "encode_ns+decode_ns")
    return None if coding is None else coding + (figure.value(row, "sparsify_ns") or 0.0)


def _of_unit(number: float, factor: int, units: Sequence[str]) -> str:
    power = 0
    while power < len(units) - 1 and number / factor**power >= 0.9995 * factor:  # (three digits)
        power += 1
    return f"{number / factor**power:.3g} {units[power]}"
