#!/usr/bin/env python3
"""What `./dev gpu` keeps and shows: the rows of a rehearsal, and rows with invented times; steps that fail, hang, or are not there.

    gpu_reports.py REHEARSAL      the program gpu_bench_rehearsal
"""
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[2] / "bench/gpu"


def module(name):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


gpu_run, gpu_table = module("gpu_run"), module("gpu_table")


def invented(report):
    """Invents the times of a device: one gate is missed, one row failed, one is absent."""
    report["rehearsal"] = False
    report["copy_bytes_per_second"] = 4.3e12
    gates = [row for row in report["rows"] if "gate_us" in row]
    for row in gates:
        time = row["gate_us"] * (1.5 if row is gates[0] else 0.75)
        row["graph_us"] = {"median": time, "p10": time, "p90": time * 1.1, "n": 100}
        row["gate_met"] = time <= row["gate_us"]
    report["rows"][-1] = {"group": report["rows"][-1]["group"], "name": "|broken|", "failed": "the frame is not the CPU's"}
    report["rows"][-2] = {"group": report["rows"][-1]["group"], "name": "absent", "missing": "raw runs on the CPU only"}
    return report


def nowhere(folder):
    """Names what the machine lacks: the packages that the archive should hold, and Python packages."""
    gpu_run.PACKED = folder / ".gpu"
    result, note = gpu_run.unpack()
    assert result in ("not here", "failed") and ".gpu/ is missing" in note and "gpu-pack" in note, note
    gpu_run.PACKED.mkdir()
    gpu_run.HEADERS = ["no/such/header.h"]
    result, note = gpu_run.unpack()
    assert result == "failed" and "has no packages" in note and "no/such/header.h" in note, note

    # A Python of that repository, without packages; and one whose tests find no torch.
    run = gpu_run.Run(folder, 60)
    gpu_run.ROOT = folder
    (folder / "tests/python").mkdir(parents=True)
    (folder / "tests/python/run.py").write_text("print('skipped: python has no numpy'); raise SystemExit(77)")
    gpu_run.python_tests(run, 30, 0)
    (folder / "tests/python/run.py").write_text("import os; print(os.environ['DEEPREDUCE_LIBRARY'][-3:], 'torch is missing: pip install torch')\nprint('7 passed, 3 skipped')")
    gpu_run.python_tests(run, 30, 0)
    skipped, passed = json.loads((folder / "gpu.json").read_text())["steps"]
    assert skipped["result"] == "skipped" and "no numpy" in skipped["note"], skipped
    assert passed["result"] == "passed" and "7 passed" in passed["note"] and "has no torch" in passed["note"], passed


def main():
    rehearsal = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        run = gpu_run.Run(out, 60)
        assert run.step("benchmark", [rehearsal, "--json", out / "gpu_bench.json"], 300)
        assert not run.step("failing", ["sh", "-c", "echo words; exit 3"], 30)
        assert not run.step("hanging", ["sh", "-c", "sleep 100"], 6)
        assert not run.step("absent", ["/nonexistent/program"], 30)
        run.step("skipping", ["sh", "-c", "echo skipped: no moon; exit 77"], 30)
        run.end = 0
        run.step("late", ["true"], 30)
        saved = json.loads((out / "gpu.json").read_text())
        results = {s["name"]: s["result"] for s in saved["steps"]}
        assert results == {"benchmark": "passed", "failing": "failed", "hanging": "failed", "absent": "failed", "skipping": "skipped", "late": "failed"}, results
        assert saved["passed"] is False
        assert "status 3; words" in json.dumps(saved) and "no moon" in json.dumps(saved) and "no time was left" in json.dumps(saved)
        assert "sleep 100" in (out / "log.txt").read_text()

        report = json.loads((out / "gpu_bench.json").read_text())
        names = [(row["group"], row["name"]) for row in report["rows"]]
        assert len(names) == len(set(names)) and not any("failed" in row for row in report["rows"]), names
        for row in report["rows"]:
            assert row["verified"] and row["graph_us"]["p10"] <= row["graph_us"]["median"] <= row["graph_us"]["p90"], row
            assert "gate_met" not in row  # a rehearsal meets nothing
        text = "\n".join(gpu_table.table(out))
        assert "no time means anything" in text and "**missed**" not in text

        (out / "gpu_bench.json").write_text(json.dumps(invented(report)))
        torch = {"torch": "2", "rows": [{"name": "25.6e6, 1 %", "stream_us": {"median": 800.0}, "graph_us": {"median": 790.0}}, {"name": "x", "failed": "no memory"}]}
        (out / "torch_topk.json").write_text(json.dumps(torch))
        text = "\n".join(gpu_table.table(out))
        lines = text.splitlines()
        assert text.count("**missed**") == 1 and "| 85 **missed** |" in text, text
        assert "**failed**: the frame is not the CPU's" in text and "not here: raw runs" in text and "\\|broken\\|" in text
        assert "| 25.6e6, 1 % | 790.0 | 800.0 | 127.5 | 6.2 |" in text, text
        columns = [line.replace("\\|", "").count("|") for line in lines if line.startswith("|")]
        assert set(columns) <= {5, 6, 12}, columns
        (out / "gpu_bench.json").write_text("{ half a file")
        assert any("passed" in line for line in gpu_table.table(out))
    with tempfile.TemporaryDirectory() as folder:
        nowhere(Path(folder))
    done = subprocess.run([sys.executable, HERE / "gpu_run.py"], capture_output=True)
    assert done.returncode == 2, done
    print(f"{len(names)} rows, 6 steps")


if __name__ == "__main__":
    main()
