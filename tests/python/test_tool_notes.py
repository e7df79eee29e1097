"""The tool `deepreduce`: what stands below a table, and what it is computed from."""

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

from test_tool import SYNTH, TOOL, TOPR, compare, run  # noqa: E402

pytestmark = pytest.mark.skipif(not TOOL, reason="DEEPREDUCE_TOOL does not name the tool")


def times_of(line):
    """Bytes, and sparsify, encode and merge in ns, of a line of a table (which has no fallback)."""
    cells = line.split()
    times = [1e3 * float(cell.split("±")[0]) for cell in cells if "±" in cell]
    sparsify = 1e3 * float(cells[[i for i, cell in enumerate(cells) if "±" in cell][0] - 1])
    return int(next(cell for cell in cells if "," in cell).replace(",", "")), sparsify, times[0], times[2]


def test_pays_below_is_of_an_all_gather_against_a_ring():
    """(n - 1) (64 d / n - 8 bytes) / (sparsify + encode + merge), of the times in the same line."""
    factor = {"Mb/s": 1e6, "Gb/s": 1e9}
    for arguments, n in (([], 8), (["--ranks", 2], 2), (["--ranks", 64], 64)):
        table = compare("synth:d=2000000,values=laplace,seed=7", *arguments, form="table", repeat=5)
        assert f"n = {n} ranks" in table
        line = next(line for line in table.splitlines() if "index=golomb value=raw" in line)
        size, sparsify, encode, merge = times_of(line)
        saved = (n - 1) * (64 * 2000000 / n - 8 * size)
        speed, unit = line.split()[-2:]
        assert float(speed) * factor[unit] == pytest.approx(saved / (1e-9 * (sparsify + encode + merge)), rel=0.02)
    # 128 frames of 2 % are more than two dense tensors.
    table = compare(SYNTH, "--ranks", 128, plans=[TOPR + "index=raw value=raw"], form="table")
    assert "never" in table


def test_what_a_preset_lacks_is_said_where_it_is_listed_and_below_the_table():
    note = "there is no MinMaxSketch"
    assert note in run("presets").stdout.decode()
    table = run("compare", SYNTH, "--preset", "SketchML", "--repeat", 1).stdout.decode()
    assert "SketchML: index=all value=sketch(buckets=64)+huffman" in table and note in table
    assert note not in run("compare", SYNTH, "--preset", "QSGD", "--repeat", 1).stdout.decode()
    assert max(map(len, table.splitlines())) <= 140


def test_a_sparse_tensor_without_its_shape_is_told(tmp_path):
    numpy.savez(tmp_path / "s.npz", **{"e.indices": numpy.arange(9), "e.values": numpy.ones(9, "f4"), "i.indices": numpy.arange(3)})
    notes = run("convert", tmp_path / "s.npz", "--output", tmp_path / "s.safetensors").stderr.decode()
    assert notes.count("a sparse tensor has e.shape, too: here e.values is a tensor by itself") == notes.count("a sparse tensor") == 1
