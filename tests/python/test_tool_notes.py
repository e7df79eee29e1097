"""The tool `deepreduce`: what stands below a table, and what it is computed from."""

import json
import re

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

from tool_runs import SYNTH, TOOL, TOPR, compare, rows_of, run, words_of  # noqa: E402

pytestmark = pytest.mark.skipif(not TOOL, reason="DEEPREDUCE_TOOL does not name the tool")


def test_pays_below_is_of_an_all_gather_against_a_ring(tmp_path):
    """(n - 1) (64 d / n - 8 bytes) / (sparsify + encode + merge) against f32; the table has that against bf16."""
    factor = {"Mb/s": 1e6, "Gb/s": 1e9}
    d = 2000000
    for arguments, n in (([], 8), (["--ranks", 2], 2), (["--ranks", 64], 64)):
        report = compare(f"synth:d={d},values=laplace,seed=7", *arguments, repeat=5)
        row, = rows_of(report)
        computing = 1e-9 * (row["sparsify_ns"] + row["encode_ns"] + row["merge_ns"])
        for column, bits in (("pays_below", 64), ("pays_below_bf16", 32)):
            saved = (n - 1) * (bits * d / n - 8 * (row["bytes"] + 256))
            assert row[column] == pytest.approx(saved / computing, rel=1e-3)
        (tmp_path / "rows.json").write_text(json.dumps(report))
        table = run("compare", "--from", tmp_path / "rows.json").stdout.decode()
        assert f"on slower links than this, {n} ranks finish sooner than with dense bf16" in words_of(table)
        speed, unit = re.search(r"([\d.]+) ([MG]b/s)$", table, flags=re.M).groups()
        assert float(speed) * factor[unit] == pytest.approx(row["pays_below_bf16"], rel=0.006)
    # 128 frames of 2 % are more than two dense tensors.
    table = compare(SYNTH, "--ranks", 128, plans=[TOPR + "index=raw value=raw"], form="table")
    assert "never" in table


def test_what_a_preset_lacks_is_said_where_it_is_listed_and_below_the_table():
    note = "there is no MinMaxSketch"
    assert note in run("presets").stdout.decode()
    table = run("compare", SYNTH, "--preset", "SketchML", "--repeat", 1).stdout.decode()
    assert "SketchML: index=all value=sketch(buckets=64)+huffman" in words_of(table) and note in table
    assert note not in run("compare", SYNTH, "--preset", "QSGD", "--repeat", 1).stdout.decode()
    assert max(map(len, table.splitlines())) <= 140


def test_a_sparse_tensor_without_its_shape_is_told(tmp_path):
    numpy.savez(tmp_path / "s.npz", **{"e.indices": numpy.arange(9), "e.values": numpy.ones(9, "f4"), "i.indices": numpy.arange(3)})
    notes = run("convert", tmp_path / "s.npz", "--output", tmp_path / "s.safetensors").stderr.decode()
    assert notes.count("a sparse tensor has e.shape, too: here e.values is a tensor by itself") == notes.count("a sparse tensor") == 1
