"""Draws saved rows of `deepreduce compare` as a picture: the Pareto chart of two columns. Needs matplotlib."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Union

from ._native._types import Json
from .errors import ArgumentError
from .plan import Stage, Stages, read_stages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Json
Point = Tuple[float, float, str]  # x, y, plan

# Okabe and Ito's colours, which people with colour blindness can distinguish; the report uses them, too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#b8a800", "#000000")
MARKS = ("o", "s", "^", "D", "*", "v", "X", "p", ">", "P", "<", "d")
# The colour of an index codec and the mark of a value codec are those of its name, as in the report (page_styles.js has these lists, too).
INDEX_CODECS = ("golomb", "bloom", "all", "auto", "raw", "rice", "gap_huffman", "none", "elias_fano", "delta_varint", "delta_bitpack", "delta_pfor", "bitmap", "rle", "seeded", "block")  # the second half: hollow
VALUE_CODECS = ("raw", "log_quant", "qsgd", "half", "uniform_quant", "auto", "lloyd", "none", "ternary", "natural", "sketch", "sign")
# A colour of these pictures, and what takes its place where the reader's pages are dark.
DARK = {"#ffffff": "#131416", "#000000": "#d6d6d6", "#e4e4e4": "#3a3d42", "#e8e8e8": "#2c2f33", "#333333": "#d6d6d6", "#555555": "#a8a8a8", "#666666": "#a8a8a8", "#777777": "#a8a8a8"}
TITLES = {"bytes": "bytes", "total_error": "total error", "relative_l2_error": "coding error"}
FORMATS = ("svg", "png", "pdf")


class FigureError(Exception):
    """Input or arguments that cannot be drawn."""


def stages_of(plan: str) -> Stages:
    """The stages of a row's plan; empty if it is not a plan."""
    try:
        return read_stages(plan)
    except ArgumentError:
        return {}


def short_name(plan: str) -> str:
    found = stages_of(plan)
    return " · ".join(_without_role(found[role]) for role in ("index", "value") if role in found) or plan


def _without_role(stage: Stage) -> str:
    return stage.text[len(stage.role) + 1 :]


def name_beside(plan: str) -> str:
    """The name of a plan beside plans of other sparsifiers: topr(1 %) · golomb · raw; dense · half; lowrank(rank=4)."""
    found = stages_of(plan)
    if not {"index", "value"} & set(found):
        return _without_role(found["transform"]) if "transform" in found else plan
    sparsifier = found.get("sparsify")
    if sparsifier is None or sparsifier.name == "none":
        dense = found["index"].name == "all" if "index" in found else False
        return f"dense · {_without_role(found['value'])}" if dense and "value" in found else short_name(plan)
    short = _without_role(sparsifier)
    if set(sparsifier.given) == {"ratio"}:
        with contextlib.suppress(ValueError):  # rows may have any text
            short = f"{sparsifier.name}({100 * float(str(sparsifier.parameters['ratio'])):g} %)"
    return f"{short} · {short_name(plan)}"


def sparsifier_of(plan: str) -> str:
    """topr(ratio=0.01); none."""
    found = stages_of(plan).get("sparsify")
    return "none" if found is None else _without_role(found)


def read_rows(paths: Sequence[str]) -> List[Row]:
    """Rows of plans in documents of `compare --format json`. Raises FigureError."""
    rows: List[Row] = []
    for path in paths:
        try:
            document = json.loads(Path(path).read_text("utf-8"))
            rows += [row for row in document["rows"] if _plan_of(row) != "memcpy"]
        except OSError as error:
            raise FigureError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise FigureError(f"{path}: not a document of `deepreduce compare --format json`") from None
    return rows


def _plan_of(row: Row) -> str:
    """Raises TypeError if what names a row is of another type than in a document of the tool, ValueError for half a character."""
    names = [row["plan"], *(row[key] for key in ("input", "tensor") if row.get(key) is not None)]
    if not all(isinstance(name, str) for name in names) or type(row.get("step") or 1) is not int:
        raise TypeError("a row of strange names")
    "".join(names).encode()
    return str(row["plan"])


def value(row: Row, column: str) -> Optional[float]:
    """A column of a row, or a sum of columns: "encode_ns+decode_ns". None if one is missing or not finite."""
    total = 0.0
    for name in column.split("+"):
        cell = row.get(name)
        if not isinstance(cell, (int, float)):
            return None
        try:
            total += cell
        except OverflowError:
            return None
    return total if math.isfinite(total) else None


def points_of(rows: Sequence[Row], x: str, y: str) -> List[Point]:
    """The points of rows. Raises FigureError if there is no row, no such column, or more than one tensor or step."""
    if not rows:
        raise FigureError("no rows left to draw")
    for column in (name for text in (x, y) for name in text.split("+")):
        if not any(column in row for row in rows):
            raise FigureError(f"column '{column}': in none of the rows")
    for name in ("input", "tensor", "step"):
        values = {row.get(name) for row in rows}
        if len(values) > 1:
            some = ", ".join(sorted(map(repr, values))[:3]) + (", …" if len(values) > 3 else "")
            raise FigureError(f"{len(values)} values of {name} ({some}): a figure shows one; select it with --{name}")
    found = [(value(row, x), value(row, y), row["plan"]) for row in rows]
    points = [(a, b, plan) for a, b, plan in found if a is not None and b is not None]
    if not points:
        raise FigureError(f"no row has numbers in both {x} and {y}")
    return sorted(points)


def pareto_front(points: Sequence[Point]) -> List[Point]:
    """The points that no other point beats in both columns, sorted by x."""
    front: List[Point] = []
    for point in sorted(points):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def usual_y(rows: Sequence[Row]) -> str:
    """total_error; or the coding error if all plans have one sparsifier, since the total error is about the same then."""
    known = all(value(row, "relative_l2_error") is not None for row in rows)
    return "relative_l2_error" if known and len({sparsifier_of(row["plan"]) for row in rows}) == 1 else "total_error"


def of_step(rows: Sequence[Row], step: Optional[int] = None) -> List[Row]:
    """The rows of a step; None: of the last."""
    last = max((row.get("step") or 1 for row in rows), default=1)
    return [row for row in rows if (row.get("step") or 1) == (step or last)]


def title_of(rows: Sequence[Row]) -> str:
    """The file, without its folders, and the tensor."""
    names = [str(rows[0].get(name) or "") for name in ("input", "tensor")] if rows else []
    if names and not names[0].startswith("synth:"):
        names[0] = names[0].replace("\\", "/").rpartition("/")[2]
    return " ".join(name for name in names if name not in ("", "*"))


def picture(points: Sequence[Point], x: str, y: str, title: str, output: Optional[str] = None) -> Figure:
    """The figure, which is also written to `output`, in the format of its suffix. Raises FigureError, ImportError."""
    if output is not None and _suffix_of(output) not in FORMATS:
        raise FigureError(f"{output}: not one of .{', .'.join(FORMATS)}")
    import matplotlib
    from matplotlib.figure import Figure

    class Picture(Figure):  # type: ignore[misc, unused-ignore]
        def _repr_png_(self) -> bytes:  # of notebooks; pyplot is not needed
            data = io.BytesIO()
            self.savefig(data, format="png", dpi=120)
            return data.getvalue()

    style: Dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "deepreduce", "font.size": 9, "axes.grid": True}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "grid.color": "#e4e4e4", "axes.axisbelow": True}
    with matplotlib.rc_context(style):
        figure = Picture(figsize=(6.4, 4.4), layout="constrained")
        _draw(figure, points, x, y, title)
        if output is not None:
            try:
                figure.savefig(output, dpi=200, metadata={"Date": None} if output.endswith(".svg") else None)
                if output.endswith(".svg"):
                    adapt_to_dark(output)
            except OSError as error:
                raise FigureError(f"{output}: cannot be written: {error.strerror}") from None
    return figure


def _suffix_of(path: str) -> str:
    """svg of "x.svg"; "" of a name without a suffix, such as "svg", to which matplotlib adds one of its own."""
    return Path(path).suffix[1:]


def places_of(names: Sequence[str], known: Sequence[str]) -> Dict[str, int]:
    """A name's place in `known`, else one that its letters choose, which no other has if one is free."""
    places = {name: known.index(name) for name in names if name in known}
    for name in sorted(set(names) - set(known)):
        place = functools.reduce(lambda hashed, letter: (31 * hashed + ord(letter)) % 65521, name, 7) % len(known)
        while place in places.values() and len(set(places.values())) < len(known):
            place = (place + 1) % len(known)
        places[name] = place
    return places


def codec_of(plan: str, role: str) -> str:
    stage = stages_of(plan).get(role)
    return "none" if stage is None else stage.name


def _draw(figure: Figure, points: Sequence[Point], x: str, y: str, title: str) -> None:
    from matplotlib.lines import Line2D

    axes, front = figure.subplots(), pareto_front(points)
    axes.step([p[0] for p in front], [p[1] for p in front], where="post", color="#777777", linewidth=1)
    codecs = [(codec_of(plan, "index"), codec_of(plan, "value")) for _, _, plan in points]
    colours = places_of([index for index, _ in codecs], INDEX_CODECS)
    marks = places_of([value for _, value in codecs], VALUE_CODECS)

    def of_index(name: str) -> Dict[str, Any]:
        shade, hollow = COLOURS[colours[name] % len(COLOURS)], colours[name] >= len(COLOURS)
        return {"color": shade, "markerfacecolor": "white" if hollow else shade, "markeredgecolor": shade if hollow else "white"}

    for (a, b, _), (index, value) in zip(points, codecs):
        axes.plot(a, b, MARKS[marks[value]], markersize=6, **of_index(index))
    handles = [Line2D([], [], marker="s", linestyle="", label=f"index {name}", **of_index(name)) for name in dict.fromkeys(index for index, _ in codecs)]
    handles += [Line2D([], [], color="#555555", marker=MARKS[marks[name]], linestyle="", label=f"value {name}") for name in dict.fromkeys(value for _, value in codecs)]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=7)
    for which, column in (("x", x), ("y", y)):
        numbers = [p[0] if which == "x" else p[1] for p in points]
        if min(numbers) > 0 and max(numbers) > 3 * min(numbers):
            axes.set(**{f"{which}scale": "log"})
        axes.set(**{f"{which}label": TITLES.get(column, column)})
    axes.set_title(title, fontsize=9, loc="left", parse_math=False)  # names of files and tensors may have a $
    axes.margins(0.08)
    varied = len({sparsifier_of(plan) for _, _, plan in points}) > 1
    figure.draw_without_rendering()  # the layout, by which labels have their places
    named = [(a, b, name_beside(plan) if varied else short_name(plan)) for a, b, plan in front]
    steps = [line for (a, b, _), (c, d, _) in zip(front, front[1:]) for line in ((a, b, c, b), (c, b, c, d))]
    place_labels(axes, named, [(a, b) for a, b, _ in points], 7, steps)


def place_labels(
    axes: Any, labels: Sequence[Point], marks: Sequence[Tuple[float, float]], size: float, lines: Sequence[Tuple[float, float, float, float]] = ()
) -> None:
    """Writes labels beside their marks, where they cover neither a mark nor a line nor another label nor the edge; a label that
    has no such place near its mark goes farther away, with a line to it; one that has none there either is left out.

    axes    of a figure whose layout is done
    labels  (x, y, words), those that matter most first
    lines   (x, y, x, y) of the ends of lines that are upright or level
    """
    to_points = 72 / axes.figure.dpi
    room = axes.get_window_extent()
    reach = 3.5 / to_points
    taken = [_box(x - reach, y - reach, x + reach, y + reach) for x, y in (axes.transData.transform(mark) for mark in marks)]
    for left, bottom, right, top in lines:
        (left, bottom), (right, top) = axes.transData.transform([(left, bottom), (right, top)])
        taken.append(_box(min(left, right) - 1, min(bottom, top) - 1, max(left, right) + 1, max(bottom, top) + 1))
    for x, y, words in labels:
        for far, (dx, dy) in enumerate(_OFFSETS):
            side = "left" if dx > 0 else "right" if dx < 0 else "center"
            line = {"arrowstyle": "-", "color": "#777777", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3} if far >= _NEAR else None
            label = axes.annotate(
                words, (x, y), (dx, dy), textcoords="offset points", fontsize=size, color="#333333", ha=side,
                va="bottom" if dy > 0 else "top" if dy < 0 else "center", arrowprops=line, annotation_clip=False,
            )  # fmt: skip
            box = label.get_window_extent() if line is None else _text_box(label)
            inside = room.x0 - 2 <= box.x0 and box.x1 <= room.x1 + 8 / to_points and room.y0 <= box.y0 and box.y1 <= room.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box.padded(2 / to_points))
                break
            label.remove()


# Where a label may be, in points from its mark: beside it, then farther away.
_NEAR = 8
_OFFSETS: List[Tuple[float, float]] = [(5, 0), (-5, 0), (4, 3), (-4, 3), (4, -3), (-4, -3), (0, 5), (0, -5)]
_OFFSETS += [(dx, dy) for far in (12, 20, 28, 38, 50) for dx, dy in ((far, far / 2), (-far, far / 2), (far, -far / 2), (-far, -far / 2), (6, far), (-6, far), (6, -far), (-6, -far))]


def _box(left: float, bottom: float, right: float, top: float) -> Any:
    from matplotlib.transforms import Bbox

    return Bbox([[left, bottom], [right, top]])


def _text_box(label: Any) -> Any:
    """The place of an annotation's words, without its line."""
    from matplotlib.text import Text

    label.get_window_extent()  # moves the words to their place
    return Text.get_window_extent(label)


def adapt_to_dark(path: Union[str, Path]) -> None:
    """Gives a picture of matplotlib (.svg) other colours where the reader's pages are dark."""
    rules = [f'[style*="{kind}: {light}"] {{ {kind}: {dark} !important }}' for light, dark in DARK.items() for kind in ("fill", "stroke")]
    style = "\n".join(["@media (prefers-color-scheme: dark) {", f"text {{ fill: {DARK['#000000']} !important }}", *rules, "}"])
    picture = Path(path).read_text("utf-8")
    Path(path).write_text(picture.replace("</style>", f"\n{style}\n</style>", 1), "utf-8")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="deepreduce figure", description=__doc__)
    parser.add_argument("rows", nargs="+", metavar="ROWS.json", help="saved by `deepreduce compare --format json`")
    parser.add_argument("--output", required=True, metavar="FILE", help="the picture: .svg, .png or .pdf")
    parser.add_argument("--x", default="bytes", metavar="COLUMN", help="across; default: bytes")
    parser.add_argument("--y", metavar="COLUMN", help="up; a sum is encode_ns+decode_ns; default: total_error; relative_l2_error if all plans have one sparsifier")  # fmt: skip
    for name in ("input", "tensor"):
        parser.add_argument(f"--{name}", metavar="NAME", help=f"only rows of this {name}")
    parser.add_argument("--step", type=int, metavar="N", help="only rows of this step; default: the last")
    parser.add_argument("--sparsify", metavar="TEXT", help="only plans with this sparsifier, as 'topr(ratio=0.01)'")
    return parser.parse_args(argv)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """`deepreduce figure`. Returns the exit status: 0, 2 for usage and input, 77 without matplotlib."""
    given = arguments(sys.argv[1:] if argv is None else argv)
    try:
        if _suffix_of(given.output) not in FORMATS:
            raise FigureError(f"--output {given.output}: not one of .{', .'.join(FORMATS)}")
        rows = read_rows(given.rows)
        for name in ("input", "tensor"):
            selected = getattr(given, name)
            rows = [row for row in rows if selected is None or row.get(name) == selected]
        rows = of_step(rows, given.step)
        if given.sparsify:
            rows = [row for row in rows if sparsifier_of(row["plan"]) == given.sparsify]
        if not rows:
            raise FigureError("no rows left to draw; see --input, --tensor, --step and --sparsify")
        y = given.y or usual_y(rows)
        picture(points_of(rows, given.x, y), given.x, y, title_of(rows), given.output)
    except FigureError as error:
        print(f"deepreduce figure: {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"deepreduce figure: unsupported: {error}; install it: pip install matplotlib", file=sys.stderr)
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
