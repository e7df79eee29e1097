"""What `./dev` promises: nothing is installed unnamed, both builds are tested by CI, and `quick` picks what a change can break."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = os.environ.get("DEEPREDUCE_BUILD", str(ROOT / "build"))


@pytest.fixture
def bare(tmp_path):
    """Runs `dev` on a machine without packages, where apt-get (and sudo) prints its call and fails."""
    shutil.copy(ROOT / "dev", tmp_path / "dev")
    (tmp_path / "bin").mkdir()
    for name, body in (("dpkg-query", "exit 1"), ("apt-get", f'echo "apt ran: $*"; echo "$*" >>{tmp_path}/calls; exit 1'),
                       ("sudo", 'while [[ $1 == -* ]]; do shift; done; exec "$@"')):
        program = tmp_path / "bin" / name
        program.write_text(f"#!/usr/bin/env bash\n{body}\n")
        program.chmod(0o755)

    def run(*words, **more):
        environment = {key: value for key, value in os.environ.items() if key != "DEV_NO_INSTALL"}
        environment["PATH"] = f"{tmp_path}/bin:{environment['PATH']}"
        return subprocess.run([tmp_path / "dev", *words], env={**environment, **more}, capture_output=True, text=True)

    run.folder = tmp_path
    return run


@pytest.mark.parametrize("command", ["setup", "test", "quick", "compare"])
def test_no_install_names_what_is_missing_and_stops(bare, command):
    done = bare(command, DEV_NO_INSTALL="1")
    assert done.returncode == 1
    assert "not installed:" in done.stderr and "zlib1g-dev" in done.stderr and "(from apt)" in done.stderr
    assert ("numpy" in done.stderr and "(pip, into .venv)" in done.stderr) == (command != "compare")
    assert not (bare.folder / "calls").exists() and not (bare.folder / ".venv").exists() and not list(bare.folder.glob("build*"))


def test_all_is_named_before_anything_is_installed(bare):
    done = bare("setup")
    assert done.returncode == 1  # this apt-get fails
    named, _, after = done.stderr.partition("apt ran:")
    assert after and "installing" in named and "zlib1g-dev" in named and "doctest-dev" in named and "numpy" in named and "torch" in named
    assert not (bare.folder / ".venv").exists()


def test_the_first_pages_say_what_installs():
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "DEV_NO_INSTALL=1" in (ROOT / page).read_text(encoding="utf-8")


def test_ci_tests_both_builds_and_fails_if_either_does(tmp_path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    for failing, status in (("", 0), ("test", 1), ("test --asan", 1)):
        (tmp_path / "dev").write_text(f'#!/usr/bin/env bash\necho "$*" >>{tmp_path}/calls\n[[ "$*" != "{failing}" ]]\n')
        (tmp_path / "dev").chmod(0o755)
        assert subprocess.run([tmp_path / ".ci" / "run"]).returncode == status
        assert (tmp_path / "calls").read_text().splitlines() == ["test", "test --asan"]
        (tmp_path / "calls").unlink()


def test_a_build_that_fails_or_is_not_here_stands_in_the_tally(tmp_path):
    (tmp_path / "a" / "meson-logs").mkdir(parents=True)
    (tmp_path / "a" / "meson-logs" / "testlog.json").write_text(json.dumps({"name": "unit", "result": "OK"}) + "\n")
    done = subprocess.run([sys.executable, ROOT / "tests" / "suite.py", "tally", "a=0", "b=build", "build-arm=absent"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["failed in b: it does not build", "skipped: build-arm: what it needs is not here", "1 passed, 1 failed, 1 skipped"]


def test_all_of_the_matrix_runs_whatever_fails_in_it(tmp_path):
    """`./dev test --all`, of which each build fails."""
    text = (ROOT / "dev").read_text(encoding="utf-8")
    begin, end = text.index("test_builds() {"), text.index("cmd_quick() {")
    arm = text[text.index("arm_tests=") : text.index("# Prints each Python from 3.9 on")]
    (tmp_path / "part").write_text(f"""set -euo pipefail
ran=() names=() arch=() asan=options sanitized=(options)
meson() {{ :; }}
test_build() {{ echo "$1"; ran+=("$1=build"); return 1; }}
uname() {{ echo x86_64; }}
need_arm() {{ return 0; }}
test_pythons() {{ echo pythons; return 1; }}
root=.
{arm}
{text[begin:end]}
test_builds all || true
echo "${{ran[*]}}"
""")
    done = subprocess.run(["bash", tmp_path / "part"], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "build", "build-asan", "build-clang", "build-tsan", "build-arm", "pythons", "build=build build-asan=build build-clang=build build-tsan=build build-arm=build",
    ], done.stderr  # fmt: skip


def quick(*files):
    done = subprocess.run([sys.executable, ROOT / "tests" / "quick.py", BUILD, "--list", *files], capture_output=True, text=True)
    if "ninja" in done.stderr and "FileNotFoundError" in done.stderr or not shutil.which("git"):
        pytest.skip("no ninja or no git here")
    head, *lines = done.stdout.splitlines()
    return head, {name: rest for name, _, rest in (line.partition(": ") for line in lines)}, done


@pytest.fixture
def asked_for(monkeypatch):
    """(tests, codecs) of a changed file; in one process, which reads each module once."""
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    import quick as script

    return lambda name: script.asked_for(pathlib.Path(BUILD).resolve(), {name})


def test_quick_picks_the_properties_of_a_codec_that_changed(asked_for):
    head, tests, _ = quick("codecs/value/qsgd/qsgd_codec.cpp")
    assert {"golden", "properties", "coupling"} <= tests.keys() and head.endswith("codecs: value/qsgd")
    tests, codecs = asked_for("codecs/family/golomb/golomb.hpp")  # of a family: the codecs that include it
    assert {"index/golomb", "index/rice"} <= codecs and "value/qsgd" not in codecs
    assert tests["kernels_avx512"] == ["tests/kernels/golomb_levels.cpp"]  # and no other cases of that program


def test_quick_picks_python_tests_by_what_they_import(asked_for):
    tests, _ = asked_for("bindings/python/deepreduce/transform.py")
    assert "python transform" in tests and "python book" not in tests
    tests, _ = asked_for("bindings/python/deepreduce/encoding.py")
    assert {"python api", "python torch", "python grace"} <= tests.keys() and "man page" not in tests
    tests, _ = asked_for("bindings/python/deepreduce/torch/_ddp.py")  # of a room: by its door
    assert "python torch" in tests and "python api" not in tests
    tests, _ = asked_for("bindings/grace/deepreduce_grace/memories.py")
    assert "python grace memories" in tests and "python api" not in tests
    tests, _ = asked_for("tests/python/tool_runs.py")
    assert "tool answers" in tests and "python api" not in tests
    tests, _ = asked_for("examples/compare_plans.py")
    assert "example scripts" in tests


def test_quick_names_only_tests_and_folders_that_are_there(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    import quick as script

    tests = script.suite.introspect(BUILD, "--tests")
    for folder, names in script.TESTS.items():
        assert (ROOT / folder).is_dir(), folder
        script.suite.matching(tests, *names)  # exits for a name that no test has


def test_quick_refuses_a_file_that_is_not_there():
    done = subprocess.run([sys.executable, ROOT / "tests" / "quick.py", BUILD, "--list", "lib/nowhere.cpp"], capture_output=True, text=True)
    assert done.returncode == 2 and "lib/nowhere.cpp" in done.stderr


def test_rooms_of_a_python_package_stand_above_what_they_import(tmp_path):
    package = tmp_path / "house"
    (package / "cellar").mkdir(parents=True)
    for name, text in (("__init__", "from .roof import show"), ("roof", "from . import wall, left\nfrom house.cellar.stone import STONE"), ("wall", "def f():\n    from .cellar import stone"),
                       ("left", "from .right import r"), ("right", "import house.left"), ("cellar/__init__", ""), ("cellar/stone", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..roof import show")):  # fmt: skip
        (package / f"{name}.py").write_text(text)
    done = subprocess.run([sys.executable, ROOT / "tests/lint/python_rooms.py", package], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    at = lines.index("modules")
    above, lines = lines[:at], lines[at:]
    assert above[:3] == ["rooms", "floor 3", "  roof 2: wall cellar left"] and "  cellar 3: -" in above and "circle: left right" in above
    assert lines[-2] == "5 rooms, 3 floors, 6 arrows, 1 circles"
    assert lines[lines.index("floor 3") + 1] == "  roof 2: wall cellar.stone left"
    assert lines[lines.index("floor 2") + 1] == "  wall 2: cellar.stone"
    assert lines[lines.index("floor 1") + 1 :][:4] == ["  cellar 0: -", "  cellar.stone 3: -", "  left 1: right", "  right 1: left"]
    assert "circle: left right" in lines and lines[-1].startswith("6 modules, 9 lines, 3 floors, 6 arrows, 1 circles")


def test_figures_of_a_tree_are_of_the_files_that_people_write(tmp_path):
    header = "DR_API dr_status dr_go(dr_thing *);\ntypedef struct dr_thing {\n  int n;\n} dr_thing;\nenum { DR_ONE = 1, DR_TWO };\n/* DR_API dr_no */\n"
    for name, text in (("lib/core/a.cpp", "int a;\nint b;\n"), ("lib/core/deep/b.hpp", "int c;\n"), ("bench/results/table.md", "| many |\n" * 300),
                       ("include/deepreduce/x.h", header), ("bindings/python/deepreduce/__init__.py", "__all__ = ['go']\n"), ("bindings/python/deepreduce/go.py", "")):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    (tmp_path / "lib/core/untracked.cpp").write_text("int d;\n")
    done = subprocess.run([sys.executable, ROOT / "tests/lint/rooms.py", "--json", tmp_path], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["rooms"] == {"bindings/python/deepreduce": [2, 1], "include/deepreduce": [1, 6], "lib/core": [2, 3]}
    assert report["c"] == {"headers": 1, "functions": 1, "types": 1, "constants": 2}
    assert (report["python"]["modules"], report["python"]["at the top"], report["python"]["public names"]) == (1, 2, 1)


def test_no_two_rooms_of_the_package_import_one_another():
    done = subprocess.run([sys.executable, ROOT / "tests/lint/python_rooms.py"], capture_output=True, text=True, check=True)
    assert "circle:" not in done.stdout, done.stdout


def test_a_long_file_is_a_warning_and_no_failure(tmp_path):
    (tmp_path / "long.py").write_text("x = 1\n" * 401)
    (tmp_path / "short.py").write_text("x = 1\n" * 400)
    done = subprocess.run([sys.executable, ROOT / "tests/lint/long_files.py", tmp_path], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "warning: long.py: 401 lines, more than 400\n")
