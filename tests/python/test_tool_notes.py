"""The tool `deepreduce`: what stands below a table, and what it is computed from."""

import pytest
from test_tool import SYNTH, TOOL, TOPR, compare, run

pytestmark = pytest.mark.skipif(not TOOL, reason="DEEPREDUCE_TOOL does not name the tool")


def test_pays_below_is_of_an_all_gather_against_a_ring():
    """(n - 1) (64 d / n - 8 bytes) / (sparsify + encode + n decode), of the times in the same line."""
    factor = {"Mb/s": 1e6, "Gb/s": 1e9}
    for arguments, n in (([], 8), (["--ranks", 2], 2), (["--ranks", 64], 64)):
        table = compare("synth:d=2000000,values=laplace,seed=7", *arguments, form="table")
        assert f"n = {n} ranks" in table
        line = next(line for line in table.splitlines() if "index=golomb value=raw" in line).split()
        sparsify, encode, decode = (1e-6 * float(word) for word in line[-5:-2])
        saved = (n - 1) * (64 * 2000000 / n - 8 * int(line[2].replace(",", "")))
        assert float(line[-2]) * factor[line[-1]] == pytest.approx(saved / (sparsify + encode + n * decode), rel=0.02)
    # 128 frames of 2 % are more than two dense tensors.
    table = compare(SYNTH, "--ranks", 128, plans=[TOPR + "index=raw value=raw"], form="table")
    assert "never" in table


def test_what_a_preset_lacks_is_said_where_it_is_listed_and_below_the_table():
    note = "there is no MinMaxSketch"
    assert note in run("presets").stdout.decode()
    table = run("compare", SYNTH, "--preset", "SketchML", "--repeat", 1).stdout.decode()
    assert "index=all value=sketch(buckets=64)+huffman" in table and note in table
    assert note not in run("compare", SYNTH, "--preset", "QSGD", "--repeat", 1).stdout.decode()
    assert max(map(len, table.splitlines())) <= 140
