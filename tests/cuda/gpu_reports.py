#!/usr/bin/env python3
"""What `./dev gpu` keeps and shows: the rows of a rehearsal, and rows with invented times; steps that fail, hang, or are not there; a profile.

    gpu_reports.py REHEARSAL      the program gpu_bench_rehearsal
"""
import importlib.util
import json
import os
import re
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


sys.path.insert(0, str(HERE))
gpu_run, gpu_table, gpu_profile, model = module("gpu_run"), module("gpu_table"), module("gpu_profile"), module("model")

# What ncu 2025.3 prints with --csv --page raw, a launch a line behind a line of units; shortened to the columns that are read, and two more.
RAW = """==PROF== Connected to process 4711 (/root/build-gpu/bench/gpu/gpu_bench)
-- a dense tensor of 25.6 million to a frame
==PROF== Profiling "entry" - 0: 0%....50%....100% - 9 passes
==PROF== Profiling "entry" - 1: 0%....50%....100% - 9 passes
profiled: 25.6e6, 1 %
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","dram__bytes_read.sum","dram__bytes_write.sum","gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum","launch__block_size","launch__grid_size","launch__registers_per_thread","launch__shared_mem_per_block_static","sm__throughput.avg.pct_of_peak_sustained_elapsed","sm__warps_active.avg.pct_of_peak_sustained_active","smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio","smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio","smsp__average_warps_issue_stalled_selected_per_issue_active.ratio","smsp__inst_executed.sum"
"","","","","","","","","","","","byte","byte","%","ns","","block","register/thread","byte/block","%","%","inst","inst","inst","inst"
"0","4711","gpu_bench","127.0.0.1","void dr::entry<dr::select_filter<unsigned int, (bool)0, (unsigned long)40> >(T1::args)","1","13","(256, 1, 1)","(3125, 1, 1)","0","9.0","102,400,256","2,355,200","74.52","45,344","256","3,125","53","17,584","41.2","48.9","0.5","4.25","1.00","9,213,440"
"1","4711","gpu_bench","127.0.0.1","void dr::entry<dr::golomb_encode_tile<dr::tile_args<dr::golomb_common<&dr::golomb_rule>, (unsigned long)40> > >(T1::args)","1","13","(512, 1, 1)","(63, 1, 1)","0","9.0","n/a","12,288","0.40","10,912","512","63","61","27,208","9.87","24.4","6.5","2.25","1.00","1,204,112"
"""
# The same program without --page raw, of an older ncu, with units for people; a kernel of CUB's.
DETAILS = """"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","4712","gpu_bench","127.0.0.1","void cub::DeviceRadixSortOnesweepKernel<cub::Policy900, (bool)0>(const T1 *)","1","7","(384, 1, 1)","(66, 2, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","Mbyte","3.07"
"0","4712","gpu_bench","127.0.0.1","void cub::DeviceRadixSortOnesweepKernel<cub::Policy900, (bool)0>(const T1 *)","1","7","(384, 1, 1)","(66, 2, 1)","0","9.0","GPU Speed Of Light Throughput","Duration","us","12.5"
"0","4712","gpu_bench","127.0.0.1","void cub::DeviceRadixSortOnesweepKernel<cub::Policy900, (bool)0>(const T1 *)","1","7","(384, 1, 1)","(66, 2, 1)","0","9.0","Occupancy","Achieved Occupancy","%","31.4"
"""
REFUSED = """==PROF== Connected to process 4713 (/root/build-gpu/bench/gpu/gpu_bench)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target device 0.
==PROF== Disconnected from process 4713
"""


def profiles():
    """Kernels, units and stalls of both of ncu's forms; ncu's own words where it refuses, with what was before."""
    report = gpu_profile.profile("# row: 25.6e6, 1 %\n" + RAW + "# row: a frame of 256e3, added\n" + DETAILS)
    assert report["trouble"] is None and [r["kernel"] for r in report["rows"]] == ["select_filter", "golomb_encode_tile", "DeviceRadixSortOnesweepKernel"], report
    read, encode, sort = report["rows"]
    assert (read["row"], read["us"], read["read"], read["written"]) == ("25.6e6, 1 %", 45.344, 102400256, 2355200), read
    assert (read["blocks"], read["lanes"], read["registers"], read["shared"]) == (3125, 256, 53, 17584), read
    assert (read["dram_percent"], read["occupancy_percent"], read["stall"], read["stall_share"]) == (74.52, 48.9, "long_scoreboard", 0.895), read
    assert encode["read"] is None and encode["stall"] == "barrier" and encode["us"] == 10.912, encode  # n/a
    assert (sort["row"], sort["us"], sort["read"], sort["blocks"], sort["stall"]) == ("a frame of 256e3, added", 12.5, 3.07e6, 132, None), sort
    lines = list(gpu_profile.table(report))
    assert {line.count("|") for line in lines} == {12}, lines
    assert "| select_filter | 45.3 | 102.40 | 2.36 | 75 % | 41 % | 49 % | long scoreboard 90 % | 3125 × 256 | 53 | 17,584 |" in lines, lines
    assert any(line.startswith("| **25.6e6, 1 %** | 56.3 | 102.4 |") for line in lines), lines

    refused = gpu_profile.profile("# row: 25.6e6, 1 %\n" + REFUSED)
    assert not refused["rows"] and "permission" in refused["trouble"], refused
    half = gpu_profile.profile("# row: a\n" + RAW + "# row: b\n" + REFUSED)
    assert len(half["rows"]) == 2 and "permission" in half["trouble"] and "permission" in "\n".join(gpu_profile.table(half))
    assert gpu_profile.profile("")["trouble"] and gpu_profile.profile(RAW.splitlines()[0])["trouble"]
    words = gpu_profile.command("ncu", "gpu_bench", "36,864, 1 %")
    assert words[-2:] == ["--profile", "36,864, 1 %"] and words[words.index("--clock-control") + 1] == "none", words


def models():
    """Every gated row has launches, a prediction and a time above its floor; and a comparison says what it should."""
    predicted = model.predictions((HERE / "PREDICTIONS.md").read_text(encoding="utf-8"))
    assert set(predicted) == set(model.launches()) and all(set(p) == set(model.GPUS) for p in predicted.values()), predicted
    for row in model.launches():
        for gpu, of in model.GPUS.items():
            launches = list(model.table(row, gpu))
            floor = 1e6 * sum(launch["bytes"] for launch in launches) / of["read"]
            assert floor < model.expected(row, gpu) and all(launch["us"] > 0 and launch["resident"] > 0 for launch in launches), (row, gpu)
    # Blocks of 512 lanes at 61 registers and 27 KB: two on a processor.
    assert model.per_processor(61, 27208, 512) == 2 and model.per_processor(32, 0, 256) == 8
    row = {"group": "g", "name": "25.6e6, 1 %", "graph_us": {"median": 2 * predicted["25.6e6, 1 %"]["H100"]}, "floor_us": 30.0, "gate_us": 85.0}
    lines, wrong = model.compare({"device": "NVIDIA H100 80GB HBM3", "rows": [row]}, predicted)
    assert not wrong and "why?" in lines[1] and "0 of 1 rows" in lines[-1], lines
    low = {**row, "floor_us": 1e6}
    lines, wrong = model.compare({"device": "NVIDIA H200", "rows": [low, {**row, "name": "new"}]}, predicted)
    assert len(wrong) == 2 and "below its floor" in wrong[0] and "no prediction" in wrong[1], wrong
    lines, wrong = model.compare({"device": "another", "rows": [row]}, predicted)
    assert not wrong and "no predicted times for another" in lines[-1], lines
    text = "\n".join(model.compare_profile(gpu_profile.profile("# row: 25.6e6, 1 %\n" + RAW), "H100"))
    assert "select_filter" in text and "45.3" in text, text


def invented(report):
    """Invents the times of a device: one gate is missed, one row failed, one is absent."""
    report["rehearsal"] = False
    report["copy_bytes_per_second"] = 4.3e12
    gates = [row for row in report["rows"] if "gate_us" in row]
    for row in gates:
        time = row["gate_us"] * (1.5 if row is gates[0] else 0.75)
        row["graph_us"] = {"median": time, "p10": time, "p90": time * 1.1, "n": 100}
        row["gate_met"] = time <= row["gate_us"]
    assert report["rows"][-1]["name"] == "  by ulp: applied"
    report["rows"][-2] = {"group": report["rows"][-2]["group"], "name": "|broken|", "failed": "the frame is not the CPU's"}
    report["rows"][-3] = {"group": report["rows"][-3]["group"], "name": "absent", "missing": "raw runs on the CPU only"}
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


def options():
    """The options of the builds on a device are Meson's, or this project's: a wrong one would be seen there only."""
    known = re.findall(r"^option\('(\w+)'", (HERE.parents[1] / "meson_options.txt").read_text(encoding="utf-8"), re.M)
    given = re.findall(r"-D(\w+)=", (HERE / "gpu_run.py").read_text(encoding="utf-8"))
    assert len(given) > 8 and set(given) <= set(known), (given, known)


def gated(rehearsal, out):
    """--gates: these rows and no others; --profile: one row, or an error. The file is there before the run ends."""
    run = gpu_run.Run(out, 300)
    gpu_run.gates(run, out, rehearsal)
    steps = {s["name"]: s["result"] for s in json.loads((out / "gpu.json").read_text())["steps"]}
    assert steps == {"gates": "passed", "predictions": "passed"}, steps
    report = json.loads((out / "gpu_gates.json").read_text())
    names = [row["name"] for row in report["rows"] if row["group"] != "machine"]
    assert sorted(names) == sorted([*model.launches(), "one tensor as large as ResNet-50"]), names
    assert report["first_call_ms"]["second"] > 0 and report["read_bytes_per_second"] > 0, report
    for row in report["rows"]:
        if "topr" in row["plan"] and row["group"] != "frames to a dense tensor":
            assert row["bytes"] == 4 * row["elements"] * (3 if "residual" in row["name"] else 1) + row["frame_bytes"], row
    assert "back_to_back_us" not in next(row for row in report["rows"] if "residual" in row["name"])
    # An ncu that says what the real one says, and one that may not.
    fake = out / "ncu"
    for says, result in ((RAW, "passed"), (REFUSED, "failed")):
        fake.write_text(f"#!/bin/sh\ncat <<'END'\n{says}END\n")
        fake.chmod(0o755)
        before = os.environ["PATH"]
        os.environ["PATH"] = f"{out}:{before}"
        run.report["machine"]["GPU"] = "NVIDIA H200"
        gpu_run.profile(run, out, rehearsal)
        os.environ["PATH"] = before
        step = json.loads((out / "gpu.json").read_text())["steps"][-1]
        saved = json.loads((out / "gpu_profile.json").read_text())
        assert step["name"] == "profile" and step["result"] == result, step
        assert len(saved["rows"]) == (2 * len(gpu_profile.ROWS) if says is RAW else 0) and (says is RAW or "permission" in step["note"]), saved
        assert (out / "gpu_profile.csv").read_text().count("# row: ") == (len(gpu_profile.ROWS) if says is RAW else 1)
    assert "expected, measured" in (out / "log.txt").read_text() and "| select_filter |" in "\n".join(gpu_profile.table(gpu_profile.profile("# row: x\n" + RAW)))
    for row in gpu_profile.ROWS:
        done = subprocess.run([rehearsal, "--quick", "--profile", row], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.count("profiled: ") == 1 and f"profiled: {row}" in done.stdout, done
    assert subprocess.run([rehearsal, "--profile", "none such"], capture_output=True).returncode == 1


def main():
    rehearsal = Path(sys.argv[1]).resolve()
    profiles()
    models()
    options()
    with tempfile.TemporaryDirectory() as folder:
        gated(rehearsal, Path(folder))
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
        torch = {"torch": "2", "nvcomp": "6", "rows": [
            {"group": "torch", "name": "25.6e6, 1 %", "stream_us": {"median": 800.0}, "graph_us": {"median": 790.0}}, {"group": "torch", "name": "x", "failed": "no memory"},
            {"group": "plain", "name": "zero_", "stream_us": {"median": 25.0}},
            {"group": "nvCOMP", "name": "ANS, values", "stream_us": {"median": 100.0}, "decode_us": {"median": 50.0}, "bytes": 900000, "raw_bytes": 1000000},
            {"group": "nvCOMP", "name": "Bitcomp", "failed": "no"}]}
        (out / "gpu_peers.json").write_text(json.dumps(torch))
        (out / "gpu_profile.json").write_text(json.dumps(gpu_profile.profile("# row: 25.6e6, 1 %\n" + RAW)))
        text = "\n".join(gpu_table.table(out))
        lines = text.splitlines()
        assert text.count("**missed**") == 1 and "| 85 **missed** |" in text, text
        assert "**failed**: the frame is not the CPU's" in text and "not here: raw runs" in text and "\\|broken\\|" in text
        assert "| 25.6e6, 1 % | 790.0 | 800.0 | 127.5 | 6.2 |" in text, text
        columns = [line.replace("\\|", "").count("|") for line in lines if line.startswith("|")]
        assert set(columns) <= {5, 6, 8, 12, 13}, columns
        assert "| ANS, values | 900,000 | 90 % | 100.0 | 10.0 | 50.0 | 20.0 |" in text and "| Bitcomp | **failed**: no |" in text, text
        assert "| select_filter | 45.3 |" in text and "Milliseconds of the host" in text and "a byte more costs as at" in text, text
        (out / "gpu_bench.json").write_text("{ half a file")
        assert any("passed" in line for line in gpu_table.table(out))
    with tempfile.TemporaryDirectory() as folder:
        nowhere(Path(folder))
    done = subprocess.run([sys.executable, HERE / "gpu_run.py"], capture_output=True)
    assert done.returncode == 2, done
    print(f"{len(names)} rows, 6 steps")


if __name__ == "__main__":
    main()
