"""docs/TUTORIAL.md as it is written: its programs are saved under their names, its commands run in order, and the losses are near those of its table.

Of calibrate's plans and sizes a few are measured: the rest takes 15 seconds of a quiet machine.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
pytest.importorskip("torch", reason="torch is missing: ./dev setup")
if not os.environ.get("DEEPREDUCE_TOOL"):
    pytest.skip("DEEPREDUCE_TOOL does not name the tool", allow_module_level=True)

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/TUTORIAL.md").read_text("utf-8")
SHORTER = {"calibrate": "--time 0 --sizes 4096,262144", "compare": "--time 0.01"}


def run_blocks(folder):
    """{command as written: what it printed}"""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name, words in (("deepreduce", "-m deepreduce"), ("python", ""), ("torchrun", "-m torch.distributed.run --standalone")):
        (bin_folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        (bin_folder / name).chmod(0o755)
    packages = os.pathsep.join(filter(None, (str(ROOT / "bindings/python"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": packages, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    printed = {}
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", TEXT, flags=re.S | re.M):
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", block)[1]
            (folder / name).write_text(block)
            continue
        for line in re.sub(r"\\\n *", "", block).splitlines():  # (a long command has several lines)
            shorter = next((f" {options}" for word, options in SHORTER.items() if line.startswith(f"deepreduce {word} ")), "")
            done = subprocess.run(["sh", "-c", line + shorter], cwd=folder, env=environment, capture_output=True, text=True, timeout=250)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            printed[line] = done.stdout
    return printed


def test_the_tutorial_runs_and_its_losses_are_those_of_its_table(tmp_path):
    printed = run_blocks(tmp_path)
    assert len(list((tmp_path / "gradients").glob("*.npz"))) == 2 and (tmp_path / "report.html").stat().st_size > 100_000
    assert "smaller" in printed["python choose.py"] and "value=log_quant" in printed["python choose.py"].splitlines()[-1]
    slow, fast = [output for line, output in printed.items() if " predict " in line]
    assert "pays" in slow and slow != fast
    runs = [re.search(r"loss (\S+); a rank sends (\S+) bytes", output) for line, output in printed.items() if line.startswith("torchrun")]
    found = [(float(run[1]), int(run[2].replace(",", ""))) for run in runs]
    written = re.findall(r"^\| (?:dense|4 bits|`recommended`|Top-1 %) \| (\S+) % \| (\S+) \|$", TEXT, flags=re.M)
    assert len(found) == 4 and len(written) == 4
    by_bytes = sorted(found, key=lambda run: -run[1])  # as the table is sorted
    for (loss, size), (share, expected) in zip(by_bytes, written):
        assert abs(loss - float(expected)) < 0.08, (loss, expected)
        assert size / by_bytes[0][1] == pytest.approx(float(share) / 100, rel=0.15)
