"""`deepreduce figure`: a picture of saved rows."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from deepreduce import figure

ROWS = [("golomb", "raw", 1000, 0.5), ("golomb", "qsgd", 600, 0.52), ("raw", "raw", 2000, 0.5), ("bloom(fpr=0.01)", "raw", 900, 0.6)]


def saved(path, rows=ROWS, **extra):
    made = [{"input": "g.npz", "tensor": "*", "step": 1, "plan": f"sparsify=topr(ratio=0.01) index={index} value={value}", "bytes": size, "total_error": error, **extra}
            for index, value, size, error in rows]
    path.write_text(json.dumps({"rows": [{"plan": "memcpy", "bytes": 9999}, *made]}))
    return str(path)


needs_matplotlib = pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="no matplotlib")


@needs_matplotlib
def test_an_svg_has_the_points_and_names_the_front(tmp_path, capsys):
    out = tmp_path / "x.svg"
    assert figure.main([saved(tmp_path / "rows.json"), "--output", str(out)]) == 0
    text = out.read_text("utf-8")
    named = re.findall(r"<text[^>]*>([^<]* · [^<]*)</text>", text)
    assert sorted(named) == ["golomb · qsgd", "golomb · raw"]  # raw · raw and bloom · raw are beaten
    assert "total error" in text and "index golomb" in text and "value qsgd" in text
    assert figure.main([saved(tmp_path / "rows.json"), "--output", str(tmp_path / "y.svg")]) == 0
    assert (tmp_path / "y.svg").read_bytes() == out.read_bytes()  # the same rows draw the same picture


def test_a_codec_has_the_colour_and_the_mark_of_its_name_as_in_the_report():
    page = (Path(__file__).resolve().parents[2] / "tool/compare/page/page_styles.js").read_text("utf-8")
    for name in ("INDEX_CODECS", "VALUE_CODECS"):
        assert re.findall(r'"(\w+)"', re.search(rf"const {name} = \[(.*?)\]", page, re.DOTALL)[1]) == list(getattr(figure, name))
    assert len(figure.INDEX_CODECS) == 2 * len(figure.COLOURS) and len(figure.VALUE_CODECS) == len(figure.MARKS) == len(set(figure.MARKS))
    alone, among = (figure.places_of(names, figure.INDEX_CODECS) for names in (["auto", "mine"], ["raw", "auto", "mine", "golomb"]))
    assert alone.items() <= among.items() and len(set(among.values())) == 4
    everything = [*figure.VALUE_CODECS, *(f"codec{i}" for i in range(3))]
    assert set(figure.places_of(everything, figure.VALUE_CODECS).values()) == set(range(len(figure.MARKS)))
    assert figure.codec_of("sparsify=topr(ratio=0.01) index=golomb(adaptive=1) value=half+huffman", "index") == "golomb"
    assert figure.codec_of("transform=lowrank(rank=4)", "index") == "none"


@needs_matplotlib
def test_labels_cover_neither_marks_nor_bars_nor_each_other():
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    drawn = Figure(figsize=(4, 3), layout="constrained")
    axes = drawn.subplots()
    marks = [(1 + 0.01 * i, 1 + 0.02 * (i % 3)) for i in range(6)] + [(2, 2)]
    bars = [(x, y - 0.1, x, y + 0.1) for x, y in marks]
    axes.errorbar(*zip(*marks), [0.1] * len(marks), fmt="o")
    drawn.draw_without_rendering()
    figure.place_labels(axes, [(x, y, f"name {i}") for i, (x, y) in enumerate(marks)], marks, 7, bars)
    assert {text.get_text() for text in axes.texts} >= {"name 0", "name 1", "name 2", "name 6"}
    boxes = []
    for text in axes.texts:
        text.get_window_extent()
        boxes.append(Text.get_window_extent(text))
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
    for (x, low, _, high), box in ((bar, box) for bar in bars for box in boxes):
        (at, bottom), (_, top) = axes.transData.transform([(x, low), (x, high)])
        assert not (box.x0 < at < box.x1 and box.y0 < top and box.y1 > bottom)


@needs_matplotlib
def test_a_reader_with_dark_pages_gets_other_colours(tmp_path):
    out = tmp_path / "x.svg"
    assert figure.main([saved(tmp_path / "rows.json"), "--output", str(out)]) == 0
    text = out.read_text("utf-8")
    dark = re.search(r"@media \(prefers-color-scheme: dark\) \{(.*?)\n\}", text, flags=re.S)[1]
    used = {colour for kind, colour in re.findall(r"(fill|stroke): (#[0-9a-f]{6})", text.replace(dark, ""))}
    greys = {colour for colour in used if len({colour[1:3], colour[3:5], colour[5:7]}) == 1 and not 0x80 <= int(colour[1:3], 16) < 0xE0}
    assert {"#ffffff", "#e4e4e4"} <= greys
    for colour in greys:
        assert f'"fill: {colour}"' in dark and f'"stroke: {colour}"' in dark, colour


@needs_matplotlib
def test_a_png_is_one(tmp_path):
    out = tmp_path / "x.png"
    assert figure.main([saved(tmp_path / "rows.json", encode_ns=5, decode_ns=7), "--output", str(out), "--y", "encode_ns+decode_ns"]) == 0
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size > 10000


def test_points_and_front_are_those_of_the_rows(tmp_path):
    rows = figure.read_rows([saved(tmp_path / "rows.json")])
    points = figure.points_of(rows, "bytes", "total_error")
    assert [p[:2] for p in points] == [(600, 0.52), (900, 0.6), (1000, 0.5), (2000, 0.5)]
    assert [p[:2] for p in figure.pareto_front(points)] == [(600, 0.52), (1000, 0.5)]


@pytest.mark.parametrize(("arguments", "words"), [
    (["--output", "x.gif"], "--output x.gif: not one of .svg, .png, .pdf"),
    (["--output", "svg"], "--output svg: not one of .svg, .png, .pdf"),
    (["--output", "x.svg", "--x", "size"], "column 'size': in none of the rows"),
    (["--output", "x.svg", "--tensor", "fc"], "no rows left to draw"),
])
def test_errors_name_what_is_wrong(tmp_path, capsys, arguments, words):
    assert figure.main([saved(tmp_path / "rows.json"), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_files_that_are_no_rows_are_refused(tmp_path, capsys):
    (tmp_path / "a.json").write_text("[1]")
    for name, words in (("a.json", "not a document of"), ("b.json", "cannot be read: No such file")):
        assert figure.main([str(tmp_path / name), "--output", str(tmp_path / "x.svg")]) == 2
        assert words in capsys.readouterr().err


STRANGE = [{"plan": 5}, {"tensor": "\ud800"}, {"input": ["a"]}, {"tensor": {}}, {"step": "a"}]


@pytest.mark.parametrize("fields", STRANGE, ids=str)
def test_rows_of_strange_names_are_refused(tmp_path, capsys, fields):
    assert figure.main([saved(tmp_path / "a.json", **fields), "--output", str(tmp_path / "x.svg")]) == 2
    assert "not a document of" in capsys.readouterr().err


def test_a_ratio_that_is_no_number_is_named_as_it_is():
    assert figure.name_beside("sparsify=topr(ratio=x) index=raw value=raw") == "topr(ratio=x) · raw · raw"
    assert figure.name_beside("sparsify=topr(ratio=0.05) index=raw value=raw") == "topr(5 %) · raw · raw"


def test_numbers_that_are_too_large_are_none():
    assert figure.value({"bytes": 10**400}, "bytes") is None and figure.value({"bytes": 1e308}, "bytes+bytes") is None
    assert figure.value({"bytes": float("nan")}, "bytes") is None


def test_a_name_with_dollars_is_no_formula(tmp_path):
    assert figure.main([saved(tmp_path / "a.json", tensor="$_$"), "--output", str(tmp_path / "x.svg")]) == 0
    assert "$_$" in (tmp_path / "x.svg").read_text()


def test_a_figure_is_of_one_tensor(tmp_path, capsys):
    other = saved(tmp_path / "b.json", tensor="fc")
    assert figure.main([saved(tmp_path / "a.json"), other, "--output", str(tmp_path / "x.svg")]) == 2
    assert "2 values of tensor ('*', 'fc'): a figure shows one; select it with --tensor" in capsys.readouterr().err


def test_without_matplotlib_it_says_how_to_get_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert figure.main([saved(tmp_path / "rows.json"), "--output", str(tmp_path / "x.svg")]) == 77
    assert "unsupported" in capsys.readouterr().err
