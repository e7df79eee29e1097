"""Runs of the tool `deepreduce`, and files for it."""

import csv
import io
import json
import os
import re
import struct
import subprocess
import zipfile
from pathlib import Path

import pytest

TOOL = os.environ.get("DEEPREDUCE_TOOL")
needs_tool = pytest.mark.skipif(not TOOL, reason="DEEPREDUCE_TOOL does not name the tool")

DATASETS = Path(__file__).resolve().parents[2] / "datasets"
SYNTH = "synth:d=20000,values=laplace,seed=7"
TOPR = "sparsify=topr(ratio=0.01) "
EXACT = TOPR + "index=golomb value=raw"
LOSSY = TOPR + "index=golomb value=qsgd"
NO_SPARSIFIER = "index=golomb value=raw"

# Stable: what others read. New names may join at any place.
COLUMNS = """input tensor step dtype d r support plan preset choice fallback bytes index_bytes value_bytes order_bytes header_bytes
    relative_volume index_bits_per_nonzero value_bits_per_nonzero index_bound_bits_per_nonzero total_error energy_recall
    index_recall relative_l2_error max_relative_error cosine_similarity contraction missed false_positives rounds sparsify_ns
    encode_ns decode_ns merge_ns sparsify_ns_spread encode_ns_spread decode_ns_spread merge_ns_spread encode_cpu_ns
    decode_cpu_ns choose_ns index_ns regather_ns value_ns order_ns pays_below pays_below_bf16 step_ns gather_step_ns
    dense_step_ns bf16_step_ns verdict""".split()
# Those that differ from run to run.
TIMED = {name for name in COLUMNS if "_ns" in name} | {"rounds", "pays_below", "pays_below_bf16", "verdict"}


def run(*arguments, status=0, **options):
    done = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, timeout=120, **options)
    assert done.returncode == status, done.stderr.decode(errors="replace")
    return done


def compare(*arguments, plans=(EXACT,), status=0, form="json", repeat=2, **options):
    """The report: an object (json), a list of dicts (csv) or text (table, or wide: the table of all columns)."""
    if form == "wide":
        arguments, form = (*arguments, "--wide"), "table"
    chosen = [word for plan in plans for word in ("--plan", plan)]
    done = run("compare", *arguments, *chosen, "--format", form, "--repeat", repeat, status=status, **options)
    text = done.stdout.decode()
    if form == "json":
        return json.loads(text)
    return list(csv.DictReader(io.StringIO(text, newline=""))) if form == "csv" else text


def words_of(text):
    """Without its line breaks."""
    return " ".join(text.split())


def plan_column(table):
    """The first cells of all lines of a table, whose plans may take several, in one word."""
    return "".join(re.split(r"\s{2,}", line.strip())[0] for line in table.splitlines()).replace(" ", "")


def rows_of(report):
    """Without memcpy."""
    return [row for row in report["rows"] if row["plan"] != "memcpy"]


def refusal(*arguments, status=2, **options):
    """The one line on stderr of a run that fails and prints nothing on stdout."""
    done = run(*arguments, status=status, **options)
    assert done.stdout == b""
    return done.stderr.decode()


def write_npy(path, values, dtype="<f4", code="f"):
    """Without numpy: version 1.0, one dimension."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({len(values)},), }}"
    header = header.ljust((64 - 10) % 64 - 1 + 64 * (len(header) // 64 + 1)) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
                     + struct.pack(f"<{len(values)}{code}", *values))
    return path


def write_npz(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, file in members.items():
            archive.write(file, f"{name}.npy")
    return path
