#!/usr/bin/env python3
"""Everything that only a GPU can show, in one command, what tells most first. Run by `./dev gpu`.

    gpu_run.py --out DIR [--quick] [--seconds N] [--rehearse]
    gpu_run.py --pack

In order: a build for this GPU alone; the gated rows of the benchmark, each compared with the CPU, beside what was predicted; a profile of five
rows; a sample of the tests, then the same with kernels that sleep at random; peers; then the rest. Every step writes what it has at once, so a
run that is cut off keeps it. A step that fails or runs out of time is noted, and the next goes on. DIR gets at most eight files: gpu.json
(machine, commit, the result of each step), gpu_gates.json, gpu_profile.csv and .json, gpu_peers.json, gpu_bench.json, table.md and log.txt.

Needs no network: what the machine lacks can be brought along. --pack fills .gpu/ (Debian's packages, newer headers of CUB) and .gpu-nvcomp/
(22 MB); both are unpacked to folders of their own here. The commit is DR_COMMIT, or git's word.

  --quick      up to the peers, and a short benchmark
  --seconds N  for all of it (570)
  --rehearse   without a GPU: what can be run where the CPU plays it; it measures nothing

Exit codes: 0 all passed, 1 something did not, 2 usage, 77 no CUDA device.
"""
import argparse
import concurrent.futures
import ctypes
import datetime
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gpu_profile  # noqa: E402
import model  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build-gpu"
JITTER = ROOT / "build-gpu-jitter"  # whose kernels sleep at random
EVERY = ROOT / "build-gpu-every"  # for all architectures
PACKED = ROOT / ".gpu"
NVCOMP = ROOT / ".gpu-nvcomp"
UNPACKED = ROOT / "build-gpu-packed"
PACKAGES = ["doctest-dev", "zlib1g-dev", "zlib1g", "libzstd-dev", "libzstd1", "pkgconf", "pkgconf-bin", "libpkgconf3"]
HEADERS = ["doctest/doctest.h", "zlib.h", "zstd.h"]  # that a build with tests needs
LOG_MAX = 2 << 20  # bytes of a step


def device_missing():
    """Why there is no CUDA device, or None."""
    for name in ("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"):
        try:
            cuda = ctypes.CDLL(name)
            break
        except OSError:
            continue
    else:
        return "no CUDA driver (libcuda.so.1)"
    if status := cuda.cuInit(0):
        return f"no CUDA device (cuInit says {status})"
    count = ctypes.c_int(0)
    if status := cuda.cuDeviceGetCount(ctypes.byref(count)):
        return f"no CUDA device (cuDeviceGetCount says {status})"
    return None if count.value else "no CUDA device"


def output_of(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def machine():
    gpu = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem", "--format=csv,noheader").splitlines()
    name, driver, memory, *clocks = (gpu[0].split(", ") if gpu else ["", "", "", ""])
    nvcc = re.search(r"release ([\d.]+)", output_of("nvcc", "--version"))
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    return {"GPU": name, "driver": driver, "memory": memory, "clocks at most": " ".join(clocks), "nvcc": nvcc.group(1) if nvcc else "",
            "compiler": (output_of("c++", "--version").splitlines() or [""])[0], "CPU": cpu.group(1) if cpu else "", "cores": len(os.sched_getaffinity(0))}


def commit():
    return os.environ.get("DR_COMMIT") or output_of("git", "describe", "--always", "--dirty", "--abbrev=12") or "unknown"


def pack():
    """Downloads what a bare machine with a compiler, Meson and ninja lacks."""
    PACKED.mkdir(exist_ok=True)
    done = subprocess.run(["apt-get", "download", *PACKAGES], cwd=PACKED)
    if done.returncode == 0:
        print(f"{PACKED}: {len(list(PACKED.glob('*.deb')))} packages; git ignores the folder, so bring it along by name")
    with tempfile.TemporaryDirectory() as folder:
        for to, packages in ((PACKED / "cccl.tar.xz", {"cuda-cccl": r".*/headers/(include/(?:cub|thrust|cuda|nv)/.*)"}),
                           (NVCOMP / "nvcomp.tar.xz", {"nvidia-libnvcomp-cu13": r"(nvidia/libnvcomp/(?:[^/]*\.py|lib64/libnvcomp\.so.*))",
                                                       "nvidia-nvcomp-cu13": r"(nvidia/nvcomp/(?:[^/]*\.py|.*cpython-31[12]-.*))"})):
            try:
                repack(Path(folder), to, packages)
                print(f"{to}: {to.stat().st_size / 1e6:.1f} MB")
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"{to.name}: not here: {error}", file=sys.stderr)  # a peer less
    return done.returncode


def repack(folder, to, packages):
    """Writes the files of wheels of the Python registry whose names match, under the group's name, and nothing else of them."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:xz") as tar:
        for package, pattern in packages.items():
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d", folder, package], check=True)
            wheel = next(folder.glob(package.replace("-", "_") + "-*.whl"))
            with zipfile.ZipFile(wheel) as archive:
                for item in archive.infolist():
                    if not item.is_dir() and (name := re.fullmatch(pattern, item.filename)):
                        entry = tarfile.TarInfo(name.group(1))
                        entry.size, entry.mode = item.file_size, 0o755 if ".so" in item.filename else 0o644
                        tar.addfile(entry, io.BytesIO(archive.read(item)))
    to.parent.mkdir(exist_ok=True)
    to.write_bytes(made.getvalue())


def has_header(name):
    """Whether the compiler finds it."""
    try:
        done = subprocess.run(["c++", "-E", "-x", "c++", "-"], input=f"#include <{name}>\n", capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def unpack():
    """Packages go to a folder of their own, never over the machine's; compilers and Meson get its path. Returns a result and a note."""
    prefix = UNPACKED / "root"
    packages = sorted(PACKED.glob("*.deb"))
    for archive, to in ((PACKED / "cccl.tar.xz", UNPACKED / "cccl"), (NVCOMP / "nvcomp.tar.xz", UNPACKED / "site")):
        if archive.exists() and not to.exists():
            with tarfile.open(archive) as tar:
                tar.extractall(to)
    if not packages:
        where = "has no packages" if PACKED.is_dir() else "is missing"
        lacking = [header for header in HEADERS if not has_header(header)]
        note = f".gpu/ {where}: git ignores it, so it must be brought along by name (./dev gpu-pack fills it)"
        if lacking:
            return "failed", f"{note}; and this machine lacks {', '.join(lacking)}"
        return "not here", f"{note}; the machine's own packages will do"
    for package in packages:
        subprocess.run(["dpkg", "-x", package, prefix], check=True)
    for path in prefix.rglob("*"):  # links that name a place below /
        if path.is_symlink() and os.readlink(path).startswith("/"):
            target = prefix / os.readlink(path).lstrip("/")
            path.unlink()
            path.symlink_to(os.path.relpath(target, path.parent))
    triple = next((p.name for p in (prefix / "usr/lib").iterdir() if p.name.endswith("-linux-gnu")), "x86_64-linux-gnu")
    libraries = [prefix / "usr/lib" / triple, prefix / "lib" / triple]
    for name, paths in {"PATH": [prefix / "usr/bin"], "CPATH": [prefix / "usr/include"], "LIBRARY_PATH": libraries, "LD_LIBRARY_PATH": libraries,
                        "PKG_CONFIG_PATH": [p / "pkgconfig" for p in libraries], "CMAKE_PREFIX_PATH": [prefix / "usr"]}.items():
        before = [os.environ[name]] if os.environ.get(name) else []
        # The machine's own come first where it has them.
        os.environ[name] = os.pathsep.join([*before, *map(str, paths)])
    return "passed", f"{len(packages)} packages in {prefix}"


class Run:
    def __init__(self, out, seconds):
        self.out, self.begin, self.end = out, time.monotonic(), time.monotonic() + seconds
        self.log = (out / "log.txt").open("w", encoding="utf-8", errors="replace")
        self.report = {"commit": commit(), "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "machine": machine(), "steps": []}
        os.environ["DR_COMMIT"] = self.report["commit"]
        self.save()

    def save(self):
        steps = self.report["steps"]
        self.report["passed"] = bool(steps) and all(s["result"] in ("passed", "skipped", "not here") for s in steps)
        (self.out / "gpu.json").write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")

    def note(self, name, result, seconds, note=""):
        self.report["steps"].append({"name": name, "result": result, "seconds": round(seconds, 1), "note": note})
        print(f"gpu: {self.seconds():.0f} s: {name}: {result} ({seconds:.0f} s) {note}", flush=True)
        self.save()
        self.table()

    def seconds(self):
        return time.monotonic() - self.begin

    def table(self):
        """What there is so far, as a page. False if it cannot be made."""
        done = subprocess.run([sys.executable, ROOT / "bench/gpu/gpu_table.py", self.out], capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            (self.out / "table.md").write_text(done.stdout, encoding="utf-8")
        else:
            self.log.write(f"==== table: {done.stderr}\n")
        return done.returncode == 0

    def call(self, name, command, limit, reserve=0, environment=None):
        """Runs a command for at most `limit` seconds, and so that `reserve` are left for what follows. Returns (status, seconds, output)."""
        limit = min(limit, self.end - time.monotonic() - reserve)
        begin = time.monotonic()
        if limit < 5:
            return "no time", 0, ""
        try:
            process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True,
                                       env={**os.environ, **(environment or {})})
        except OSError as error:
            return "absent", 0, str(error)
        try:
            output, _ = process.communicate(timeout=limit)
            status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            status = "timeout"
        text = output.decode("utf-8", "replace")
        seconds = time.monotonic() - begin
        shown = text if len(text) < LOG_MAX else text[:LOG_MAX // 2] + "\n[…]\n" + text[-LOG_MAX // 2:]
        self.log.write(f"==== {name}: {' '.join(map(str, command))}\n{shown}\n==== {name}: status {status}, {seconds:.1f} s\n\n")
        self.log.flush()
        return status, seconds, text

    def step(self, name, command, limit, reserve=0, environment=None, note=lambda text: ""):
        status, seconds, text = self.call(name, command, limit, reserve, environment)
        self.judge(name, status, seconds, text, limit, note)
        return status == 0

    def judge(self, name, status, seconds, text, limit, note=lambda text: ""):
        last = (text.strip().splitlines() or [""])[-1]
        if status == 0:
            self.note(name, "passed", seconds, note(text))
        elif status == 77:
            self.note(name, "skipped", seconds, last)
        elif status in ("no time", "timeout"):
            self.note(name, "failed", seconds, "no time was left for it" if status == "no time" else f"stopped after {seconds:.0f} s; {note(text)}".rstrip("; "))
        elif status == "absent":
            self.note(name, "failed", seconds, text)
        else:
            self.note(name, "failed", seconds, f"status {status}; {note(text) or last}")


def last_matching(pattern):
    def find(text):
        found = re.findall(pattern, text)
        return found[-1].strip() if found else ""
    return find


def build(run, jobs):
    """For this GPU alone, and only what measures and tests it: half of nvcc's work."""
    if not (BUILD / "build.ninja").exists():
        if not run.step("configure", ["meson", "setup", BUILD, *OPTIONS, "-Dgpu_arch=native"], 60):
            return False
    return run.step("build", ["ninja", "-C", BUILD, "-j", jobs, "tests/cuda/gpu_tests", "bench/gpu/gpu_bench"], 200, note=last_matching(NINJA_SAYS))


def gates(run, out, bench):
    """The rows that have a gate, each verified before it is timed, and what was predicted for them."""
    run.step("gates", [bench, "--gates", "--quick", "--json", out / "gpu_gates.json"], 100, note=last_matching(r"\d+ rows, [^\n]*"))
    compare(run, out, "gpu_gates.json")


def compare(run, out, name):
    status, seconds, text = run.call("predictions", [sys.executable, ROOT / "bench/gpu/model.py", "--compare", out / name], 20)
    run.judge("predictions", status, seconds, text, 20, last_matching(r"\n[^\n]* predicted[^\n]*"))
    print(text, flush=True)


def profile(run, out, bench):
    """One call of each of six rows, kernel by kernel. A row that fails leaves the others."""
    places = [Path(shutil.which("ncu") or "ncu"), Path("/usr/local/cuda/bin/ncu"), *sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"))]
    ncu = next((str(p) for p in places if p.is_file()), None)
    if not ncu:
        run.note("profile", "not here", 0, "no ncu")
        return
    raw, begin, done, report = out / "gpu_profile.csv", time.monotonic(), 0, gpu_profile.profile("")
    with raw.open("w", encoding="utf-8") as file:
        for row in gpu_profile.ROWS:
            status, _, text = run.call(f"profile: {row}", gpu_profile.command(ncu, bench, row), 40, 120)
            done += status == 0
            file.write(f"# row: {row}\n{text}\n")
            file.flush()
            report = gpu_profile.profile(raw.read_text(encoding="utf-8"))
            (out / "gpu_profile.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            if report["trouble"] and not report["rows"]:
                break  # no counters for us here
    gpu = model.gpu_of(run.report["machine"]["GPU"])
    if gpu and report["rows"]:
        run.log.write("\n".join(["==== profile: expected, measured", *model.compare_profile(report, gpu)]) + "\n\n")
    run.note("profile", "passed" if done == len(gpu_profile.ROWS) and not report["trouble"] else "failed", time.monotonic() - begin,
             f"{done} of {len(gpu_profile.ROWS)} rows, {len(report['rows'])} launches{'; ' + report['trouble'] if report['trouble'] else ''}")


def jitter(run, jobs):
    """The sample of the tests again, by kernels that sleep up to a microsecond around every atomic operation: other orders of blocks."""
    if not (JITTER / "build.ninja").exists():
        run.step("configure with jitter", ["meson", "setup", JITTER, *OPTIONS, "-Dtool=disabled", "-Dbench=disabled", "-Dgpu_arch=native", "-Dgpu_jitter=true"], 40, 100)
    if not run.step("build with jitter", ["ninja", "-C", JITTER, "-j", jobs, "tests/cuda/gpu_tests"], 120, 100, note=last_matching(NINJA_SAYS)):
        return
    begin, passed = time.monotonic(), 0
    for i in range(20):
        status, seconds, text = run.call(f"jitter, run {i + 1}", [JITTER / "tests/cuda/gpu_tests", "-ts=sample", "-d"], 30, 100, {"DR_TEST_SIZES": "small"})
        if status:
            run.judge(f"jitter, run {i + 1}", status, seconds, text, 30, last_matching(r"\[doctest\] test cases:[^\n]*"))
            return
        passed += 1
        if time.monotonic() - begin > 25:
            break
    run.note("jitter", "passed", time.monotonic() - begin, f"{passed} runs of the sample")


def peers(run, out, quick, reserve=0):
    environment = {}
    if (UNPACKED / "site").is_dir():
        environment["PYTHONPATH"] = os.pathsep.join([str(UNPACKED / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    run.step("peers", [sys.executable, ROOT / "bench/gpu/gpu_peers.py", "--json", out / "gpu_peers.json", *quick], 60, reserve, environment,
             note=last_matching(r"\n(nvCOMP is not here[^\n]*)"))


# (Such a machine has no cache of compilations.)
OPTIONS = ["--buildtype=release", "-Dfast_build=true", "-Dpython=disabled", "-Dmpi=disabled", "-Dreport=disabled", "-Dtests=enabled", "-Dcuda=enabled"]
NINJA_SAYS = r"\n(?:FAILED|ninja:|\[)[^\n]*"


def python_tests(run, limit, reserve):
    """The package on the device's arrays; without one, on those of the GPU that the CPU plays. They need numpy and pytest, and some torch."""
    own = ROOT / ".venv/bin/python"
    python = own if own.exists() else sys.executable

    def note(text):
        found = re.findall(r"\d+ (?:passed|failed)[^\n]*", text)
        missing = sorted(set(re.findall(r"(\w+) is missing: pip install", text)))
        return "; ".join(found[-1:] + [f"{python} has no {name}: the tests that need it were skipped" for name in missing])

    tests = [ROOT / "tests/python" / f"test_{name}.py" for name in ("device", "api")]
    library = {"DEEPREDUCE_LIBRARY": str(BUILD / "capi/libdeepreduce.so")}
    run.step("Python tests", [python, ROOT / "tests/python/run.py", "-rs", *tests], limit, reserve, library, note)
    training = ROOT / "tests/python/torch_gpu.py"
    if training.exists() and importlib.util.find_spec("torch"):
        run.step("PyTorch on the device", [sys.executable, training], 90, reserve, library)


SANITIZER_SAYS = r"(?:ERROR|RACECHECK) SUMMARY: [^\n]*"


def sanitizer():
    return shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"


def sanitize(run, tests):
    """compute-sanitizer's four tools at once, each on a sample of the tests."""
    tool = sanitizer()
    names = ["memcheck", "racecheck", "initcheck", "synccheck"]
    if not Path(tool).exists():
        for name in names:
            run.note(name, "not here", 0, "no compute-sanitizer")
        return
    options = {"memcheck": ["--leak-check", "no"], "racecheck": ["--racecheck-report", "all"]}
    environment = {"memcheck": {"DR_TEST_EXACT": "1"}, "initcheck": {"DR_TEST_EXACT": "1"}}
    limit = 100

    def check(name):
        command = [tool, "--tool", name, "--error-exitcode", "9", "--print-limit", "20", *options.get(name, []), tests, "-ts=sample", "-d"]
        return name, *run.call(name, command, limit, 15, {"DR_TEST_SIZES": "small", **environment.get(name, {})})

    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        for name, status, seconds, text in pool.map(check, names):
            run.judge(name, status, seconds, text, limit, last_matching(SANITIZER_SAYS))


def main():
    parser = argparse.ArgumentParser(prog="./dev gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=570)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--pack", action="store_true")
    args = parser.parse_args()
    if args.pack:
        return pack()
    if not args.out:
        parser.error("--out DIR is needed")
    if not args.rehearse and (why := device_missing()):
        print(f"gpu: unsupported here: {why}", file=sys.stderr)
        return 77
    args.out.mkdir(parents=True, exist_ok=True)
    out = args.out.resolve()
    if Path("/usr/local/cuda/bin").is_dir():
        os.environ["PATH"] += ":/usr/local/cuda/bin"
    run = Run(out, args.seconds)
    try:
        steps(run, args, out)
    except Exception as error:  # save the earlier results after any error
        run.note("the run itself", "failed", 0, f"{type(error).__name__}: {error}")
    return 0 if run.table() and run.report["passed"] else 1


def steps(run, args, out):
    begin = time.monotonic()
    jobs = len(os.sched_getaffinity(0))
    try:
        result, note = unpack()
        run.note("packages", result, time.monotonic() - begin, note)
    except (OSError, subprocess.CalledProcessError, tarfile.TarError) as error:
        run.note("packages", "failed", time.monotonic() - begin, str(error))
    if args.rehearse:
        rehearse(run, args, out, jobs)
        return
    built = build(run, jobs)
    tests, bench = BUILD / "tests/cuda/gpu_tests", BUILD / "bench/gpu/gpu_bench"
    output = last_matching(r"\[doctest\] test cases:[^\n]*")
    if built or bench.exists():
        gates(run, out, bench)
        profile(run, out, bench)
    if built or tests.exists():
        run.step("a sample of the tests", [tests, "-ts=sample", "-d"], 60, 100, note=output)
        jitter(run, jobs)
    peers(run, out, ["--quick"], 60)
    if args.quick:
        return
    if bench.exists():
        run.step("benchmark", [bench, "--json", out / "gpu_bench.json"], 120, 60, note=last_matching(r"\d+ rows, [^\n]*"))
        compare(run, out, "gpu_bench.json")
    if tests.exists():
        run.step("tests of a GPU", [tests, "-d"], 150, 60, note=output)
        if Path(sanitizer()).exists():
            run.step("hostile frames, memcheck", [sanitizer(), "--tool", "memcheck", "--error-exitcode", "9", "--print-limit", "20", "--leak-check", "no", tests, "-sf=*gpu_hostile*",
                                                  "-d"], 90, 30, {"DR_TEST_SIZES": "small", "DR_TEST_EXACT": "1"}, last_matching(SANITIZER_SAYS))
        sanitize(run, tests)
        python_tests(run, 60, 20)
    if not (EVERY / "build.ninja").exists():
        run.step("configure for all architectures", ["meson", "setup", EVERY, *OPTIONS], 40, 10)
    run.step("build for all architectures", ["ninja", "-C", EVERY, "-j", jobs], 150, 5, note=last_matching(NINJA_SAYS))
    run.step("device tests, the CPU playing the GPU", ["meson", "test", "-C", EVERY, "--no-rebuild", "--suite", "device", "--print-errorlogs"], 90, 5,
             note=last_matching(r"\n(?:Ok|Fail): [^\n]*"))


def rehearse(run, args, out, jobs):
    """The same steps in the same order, as far as there can be any without a GPU."""
    if not (BUILD / "build.ninja").exists():
        if not run.step("configure", ["meson", "setup", BUILD, "--buildtype=release", "-Dpython=disabled", "-Dtests=enabled", "-Dcuda=disabled"], 60):
            return
    run.step("build", ["ninja", "-C", BUILD, "-j", jobs, "tests/cuda/gpu_tests_emulated", "bench/gpu/gpu_bench_rehearsal"], 3600)
    bench, tests = BUILD / "bench/gpu/gpu_bench_rehearsal", BUILD / "tests/cuda/gpu_tests_emulated"
    gates(run, out, bench)
    profile(run, out, bench)
    run.step("a sample of the tests", [tests, "-ts=sample", "-d"], 120, 20, note=last_matching(r"\[doctest\] test cases:[^\n]*"))
    run.note("jitter", "not here", 0, "tests/device plays it")
    peers(run, out, ["--rehearse"])
    if args.quick:
        return
    run.step("benchmark", [bench, "--json", out / "gpu_bench.json"], 180, 10, note=last_matching(r"\d+ rows, [^\n]*"))
    compare(run, out, "gpu_bench.json")
    run.step("tests of a GPU", [tests, "-d"], 300, 20, note=last_matching(r"\[doctest\] test cases:[^\n]*"))
    python_tests(run, 120, 10)
    sanitize(run, tests)


if __name__ == "__main__":
    sys.exit(main())
