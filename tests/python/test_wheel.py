"""The sdist holds what builds the library and the tool, and the wheel what runs them. No network.

Building the library takes minutes, so a wheel is built from an sdist only if DEEPREDUCE_TEST_WHEEL is set. Else it is made
of the library and the tool of the build that runs the tests: the same files in the same places, installed in a fresh environment.
"""

import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

pytest.importorskip(
    "setuptools.command.bdist_wheel", reason="setuptools 70.1 or newer is missing: pip install setuptools"
)
import setuptools  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "bindings" / "python"
DATA = [
    f"datasets/accumulators/{name}.npz"
    for name in ("lstm_docs_residual_top1_step0250", "neumf_names_residual_top1_step1000",
                 "resnet20_digits_residual_top1_step0225", "transformer_docs_residual_top1_step0400")
]  # fmt: skip

if int(setuptools.__version__.split(".")[0]) < 77:
    pytest.skip("setuptools 77 or newer is missing: pip install setuptools", allow_module_level=True)


def version():
    return re.search(r'DR_VERSION_STRING "(.*)"', (ROOT / "include/deepreduce/version.h").read_text()).group(1)


def copy_of_the_package(to):
    """A copy like a checkout: setup.py must not write beside the original."""
    for name in ("bindings/python", "capi", "codecs", "include", "lib", "tests/meson.build", "tool",
                 "datasets/manifest.json", *DATA, "meson.build", "meson_options.txt", "LICENSE", "README.md"):  # fmt: skip
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name,
                to / name,
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"),
            )
        else:
            shutil.copy(ROOT / name, to / name)
    return to / "bindings" / "python"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The tree of an sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    code = f"import setuptools.build_meta as backend; backend.build_sdist({str(folder)!r})"
    subprocess.run(
        [sys.executable, "-c", code], cwd=copy_of_the_package(folder / "tree"), check=True, capture_output=True
    )
    (archive,) = folder.glob("*.tar.gz")
    assert archive.name == f"deepreduce-{version()}.tar.gz"
    with tarfile.open(archive) as tar:
        names = tar.getnames()
        assert all(member.isfile() or member.isdir() for member in tar.getmembers())  # no link to what is not there
        tar.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    assert len(names) == len(set(names))
    return folder / f"deepreduce-{version()}"


def test_an_sdist_holds_the_package_and_its_papers(unpacked):
    assert (unpacked / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (unpacked / "README.md").read_bytes() == (PACKAGE / "README.md").read_bytes()
    for path in [*sorted((PACKAGE / "deepreduce").rglob("*.py")), PACKAGE / "deepreduce/py.typed", PACKAGE / "NOTICE"]:
        assert (unpacked / path.relative_to(PACKAGE)).read_bytes() == path.read_bytes()
    metadata = (unpacked / "PKG-INFO").read_text(encoding="utf-8")
    assert f"Version: {version()}\n" in metadata and "License-Expression: Apache-2.0" in metadata and "# DeepReduce" in metadata


def test_an_sdist_configures_without_the_checkout(unpacked, tmp_path):
    """Meson looks for every source that it names; headers are looked for here."""
    if shutil.which("meson") is None or shutil.which("ninja") is None:
        pytest.skip("meson or ninja is missing")
    source, build = unpacked / "source", tmp_path / "build"
    subprocess.run(["meson", "setup", build, source, *setup_script().OPTIONS], check=True, capture_output=True)
    # A process may have another zlib than ours (Python's own, for example), which would then write deflate's bytes.
    archive = lambda name: subprocess.check_output(["cc", f"-print-file-name={name}"], text=True).strip()  # noqa: E731
    if shutil.which("cc") and all(os.path.isabs(archive(name)) for name in ("libz.a", "libzstd.a")):
        rules = (build / "build.ninja").read_text("utf-8").split("\nbuild ")
        [link] = [rule for rule in rules if rule.startswith("capi/libdeepreduce.so") and "-soname," in rule]
        assert "/libz.a" in link and "/libzstd.a" in link and "deepreduce.map" in link, link
    for path in source.rglob("*.[ch]pp"):
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(encoding="utf-8"), flags=re.M):
            if (path.parent / f"{name}.in").is_file():
                continue  # Meson makes it
            assert any((base / name).is_file() for base in (source, source / "lib", source / "include", path.parent)), (
                path,
                name,
            )


def setup_script():
    """setup.py, of which nothing is run."""
    spec = importlib.util.spec_from_file_location("deepreduce_setup", PACKAGE / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tag_says_what_the_libraries_need(tmp_path):
    compiler = shutil.which(os.environ.get("CC", "cc").split()[0])
    if compiler is None or shutil.which("objdump") is None:
        pytest.skip("no C compiler, or no objdump")
    setup = setup_script()
    tag = lambda: setup.platform_tag(tmp_path, "linux_x86_64")  # noqa: E731
    assert tag() == "linux_x86_64"  # no library, no promise

    def build(name, source, *options):
        (tmp_path / "source.c").write_text(source)
        subprocess.run(
            [compiler, "-shared", "-fPIC", tmp_path / "source.c", "-o", tmp_path / name, *options], check=True
        )

    build("libinner.so.1", "int inner(void) { return 1; }", "-Wl,-soname,libinner.so.1")
    inner = tmp_path / "libinner.so.1"
    build("libdeepreduce.so", "#include <stdlib.h>\nint inner(void); int f(void) { return inner() + abs(atoi(\"3\")); }",
          inner, "-Wl,-rpath,$ORIGIN")  # fmt: skip
    match = re.fullmatch(r"manylinux_2_(\d+)_x86_64", tag())
    assert match and setup.oldest_glibc([tmp_path / "libdeepreduce.so"]) == (2, int(match[1]))
    assert setup.platform_tag(tmp_path, "macosx_11_0_arm64") == "macosx_11_0_arm64"
    away = inner.rename(tmp_path / "elsewhere")
    assert tag() == "linux_x86_64"
    away.rename(inner)
    assert tag() == match[0]


def test_what_a_build_lacks_is_said_before_it_starts(tmp_path, monkeypatch):
    if not all(map(shutil.which, ("meson", "objdump", "c++", "ninja"))):
        pytest.skip("no compiler, meson, ninja or objdump")
    setup = setup_script()
    (tmp_path / "bin").mkdir()
    for name in ("meson", "ninja", "objdump"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(setup, "run", lambda *command: pytest.fail(f"it starts: {command}"))
    with pytest.raises(SystemExit, match="for want of pkg-config, a compiler of C\\+\\+20.*apt-get install pkg-config g\\+\\+$"):
        setup.build_library(tmp_path / "made")
    # A compiler, and a pkg-config that knows nothing: headers are asked for, which are not there.
    monkeypatch.undo()
    for name, text in (("pkg-config", "exit 1"), ("c++", 'source=$(cat); case "$source" in *zstd*|*Eigen*|*CLI11*|*CLI/CLI*) exit 1;; esac')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(setup, "COMMAND", "enabled")
    monkeypatch.setenv("PATH", str(tmp_path / "bin") + os.pathsep + os.environ["PATH"])
    assert setup.lacking(False) == [("Zstandard", "libzstd-dev"), ("Eigen", "libeigen3-dev"), ("CLI11", "libcli11-dev")]
    assert "DEEPREDUCE_COMMAND" not in setup.refusal(setup.lacking(False))
    assert setup.refusal([("CLI11", "libcli11-dev")]).endswith("apt-get install libcli11-dev. Without the command `deepreduce`: DEEPREDUCE_COMMAND=disabled pip install …")
    monkeypatch.setattr(setup, "COMMAND", "disabled")  # the library alone
    assert setup.lacking(False) == [("Zstandard", "libzstd-dev"), ("Eigen", "libeigen3-dev")]
    assert setup.lacking(True) == []
    monkeypatch.setenv("DEEPREDUCE_BUILD", str(tmp_path))
    with pytest.raises(SystemExit, match="DEEPREDUCE_BUILD is .*not a build folder of Meson"):
        setup.build_library(tmp_path / "made")


def test_the_page_of_the_package_has_no_link_that_breaks_elsewhere():
    """A package index shows it by itself: no relative link, no picture of the tree."""
    text = (PACKAGE / "README.md").read_text("utf-8")
    assert not (PACKAGE / "README.md").is_symlink()
    assert [link for link in re.findall(r"\]\(([^)]+)\)|src=\"([^\"]+)\"", text) if not any(part.startswith("https://") for part in link)] == []
    [example] = re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M)
    packages = [package for *_, package in setup_script().LIBRARIES + setup_script().LIBRARIES_OF_THE_TOOL]
    assert all(package in text for package in ("g++", *packages)), packages
    done = subprocess.run([sys.executable, "-B", "-c", example], env={**os.environ, "PYTHONPATH": str(PACKAGE)}, capture_output=True, text=True)
    if os.environ.get("DEEPREDUCE_TOOL"):
        assert done.returncode == 0 and "golomb+log_quant" in done.stdout and "smaller" in done.stdout, done.stderr


def make_wheel(source, target, **variables):
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-build-isolation", "--no-deps",
         "--no-index", "-w", target, source], check=True, env={**os.environ, **variables})  # fmt: skip
    (wheel,) = target.glob("*.whl")
    return wheel


def test_a_wheel_runs_by_itself(unpacked, tmp_path):
    if not os.environ.get("DEEPREDUCE_TEST_WHEEL"):
        pytest.skip("DEEPREDUCE_TEST_WHEEL is not set: it builds the library, which takes minutes")
    wheel = make_wheel(unpacked, tmp_path, DEEPREDUCE_COMMAND="enabled")
    assert re.fullmatch(rf"deepreduce-{version()}-py3-none-manylinux_2_\d+_\w+\.whl", wheel.name)
    look_at_a_wheel(wheel, tmp_path)


def test_a_wheel_of_this_build_runs_in_a_fresh_environment(tmp_path):
    tool = os.environ.get("DEEPREDUCE_TOOL")
    if not tool:
        pytest.skip("DEEPREDUCE_TOOL does not name the tool of a build")
    build = pathlib.Path(tool).resolve().parents[1]
    if shutil.which("meson") is None or not (build / "meson-private").is_dir():
        pytest.skip("meson is missing, or the tool lies in no build folder")
    look_at_a_wheel(make_wheel(copy_of_the_package(tmp_path / "tree"), tmp_path, DEEPREDUCE_BUILD=str(build)), tmp_path)


def test_a_wheel_of_deepreduce_grace_fits_this_deepreduce(tmp_path):
    shutil.copytree(ROOT / "bindings/grace", tmp_path / "grace", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    wheel = make_wheel(tmp_path / "grace", tmp_path)
    assert wheel.name == f"deepreduce_grace-{version()}-py3-none-any.whl"
    info = f"deepreduce_grace-{version()}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"{info}/METADATA").decode("utf-8")
    files = {f"deepreduce_grace/{path.name}" for path in (ROOT / "bindings/grace/deepreduce_grace").glob("*.py")}
    assert files | {"deepreduce_grace/py.typed", f"{info}/licenses/LICENSE"} <= names and not any(name.startswith("deepreduce/") for name in names)
    assert f"Requires-Dist: deepreduce=={version()}\n" in metadata and "Requires-Dist: torch\n" in metadata
    if not importlib.util.find_spec("torch"):
        pytest.skip("torch is missing: pip install torch")
    # In one folder with the package, as pip puts them.
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    shutil.copytree(PACKAGE / "deepreduce", tmp_path / "site/deepreduce", ignore=shutil.ignore_patterns("__pycache__", "*.so*"))
    (tmp_path / "script.py").write_text("import grace_dl, deepreduce.grace; print(deepreduce.grace.NoneMemory.__module__)", encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-B", "-W", "error", "-m", "deepreduce.grace.shim", tmp_path / "script.py"],
        env={**environment, "PYTHONPATH": str(tmp_path / "site")}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "deepreduce_grace.memories\n", done.stderr


def look_at_a_wheel(wheel, tmp_path):
    assert re.fullmatch(rf"deepreduce-{version()}-py3-none-\w+\.whl", wheel.name)
    assert wheel.stat().st_size < 12e6
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert "# DeepReduce" in archive.read(f"deepreduce-{version()}.dist-info/METADATA").decode("utf-8")
    info = f"deepreduce-{version()}.dist-info"
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE", "deepreduce/py.typed", "deepreduce/deepreduce",
            "deepreduce/recording/_capture_site/sitecustomize.py", "deepreduce/_native/_abi.py", "deepreduce/torch/__init__.py", "deepreduce/grace/__init__.py"} <= names  # fmt: skip
    assert {f"deepreduce/{path}" for path in DATA} <= names
    # One of the system's SONAME would serve the whole process, or another of that name this package.
    assert [re.sub(r"\d+$", "N", name) for name in names if ".so" in name] == ["deepreduce/libdeepreduce.so.N"]

    if shutil.which("readelf"):
        with zipfile.ZipFile(wheel) as archive:
            files = [archive.extract(name, tmp_path / "elf") for name in names if ".so" in name or name == "deepreduce/deepreduce"]
        assert len(files) == 2
        for file in files:  # as tests/install/check.sh has it of a build: both parse hostile bytes
            output = subprocess.run(["readelf", "-dWl", "--dyn-syms", file], check=True, capture_output=True, text=True).stdout
            assert re.search(r"\(FLAGS(_1)?\).*NOW", output) and "GNU_RELRO" in output and "__stack_chk_fail" in output, f"{file} is not hardened"

    # numpy comes from the environment that runs the tests: there is no network.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", python, "install", "--no-deps",
                    "--no-index", wheel], check=True)  # fmt: skip
    import numpy

    clean = {key: value for key, value in os.environ.items() if not key.startswith(("DEEPREDUCE_", "PYTHON"))}
    clean["PYTHONPATH"] = str(pathlib.Path(numpy.__file__).parents[1])

    def run(*command):
        done = subprocess.run(command, env=clean, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    code = (
        "import deepreduce as d, numpy, pathlib\n"
        "x = numpy.arange(1000, dtype=numpy.float32)\n"
        "for plan in ('index=golomb+deflate', 'index=raw value=raw+zstd'): assert (d.decode(d.encode(x, plan)) == x).all()\n"
        "numpy.savez('my.npz', x=x)\n"
        "maps = pathlib.Path('/proc/self/maps').read_text()\n"
        "print(sorted({line.split()[-1] for line in maps.splitlines() if '/libdeepreduce.so' in line}))"
    )
    assert str(tmp_path / "venv") in run(python, "-B", "-c", code)
    plan = ["--plan", "index=golomb value=raw", "--repeat", "1", "--format", "csv"]
    command = tmp_path / "venv/bin/deepreduce"
    assert run(command, "--version").splitlines()[0] == f"deepreduce {version()}"
    for way in ([command], [python, "-m", "deepreduce"]):
        assert "index=golomb value=raw" in run(*way, "compare", "my.npz", *plan)
    bundled = run(command, "compare", *plan)
    assert all(pathlib.Path(path).name in bundled for path in DATA)
    python_of_readme, pays = readme_blocks()
    assert len(run(python, "-B", "-c", python_of_readme)) > 100
    # The commands as they stand, and of calibrate's 15 seconds two tenths.
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    for line in pays:
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "deepreduce" and words[1] in ("calibrate", "predict", "plan")
        run(command, *words[1:], *(("--time", "0", "--sizes", "1024,65536") if words[1] == "calibrate" else ()))
    assert json.loads((tmp_path / "profile.json").read_text("utf-8"))["conditions"]["data"] == "bundled accumulators"
    assert (tmp_path / "book.txt").read_text("utf-8")


# As DDPHook(plan, record="model.json") writes it.
MODEL = {"schema": "deepreduce-model-1", "name": "two layers", "date": "", "ranks": 2, "batch": 64, "forward_ns": 1e6,
         "backward_ns": 2e6, "rest_ns": 1e5, "tensors": [
             {"name": "w", "elements": 200_000, "dtype": "f32", "ready_ns": 2e6}, {"name": "b", "elements": 500, "dtype": "f32", "ready_ns": 1e6}]}  # fmt: skip


def readme_blocks():
    """The example of "From Python", and the commands of "Does it pay?"."""
    text = (ROOT / "README.md").read_text("utf-8")
    section = lambda title: text.split(f"\n## {title}\n")[1].split("\n## ")[0]  # noqa: E731
    [example] = re.findall(r"^```python\n(.*?)^```", section("From Python"), flags=re.S | re.M)
    [commands] = re.findall(r"^```\n(.*?)^```", section("Does it pay?"), flags=re.S | re.M)
    return example, commands.splitlines()
