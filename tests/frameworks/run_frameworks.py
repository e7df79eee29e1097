"""Runs a file of tests in .venv-frameworks: FILE MODULE… are the arguments. Exit 77 where the environment or a module is missing."""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = HERE.parents[1] / ".venv-frameworks" / "bin" / "python"
FIND = "import importlib.util, sys; print(*(each for each in sys.argv[1:] if not importlib.util.find_spec(each)))"


def main() -> None:
    file, *modules = sys.argv[1:]
    if not PYTHON.exists():
        print("skipped: there is no .venv-frameworks; './dev test frameworks' installs it")
        sys.exit(77)
    found = subprocess.run([PYTHON, "-c", FIND, *modules], check=True, capture_output=True, text=True)
    if found.stdout.strip():
        print(f"skipped: .venv-frameworks has no {found.stdout.strip()}; './dev test frameworks' installs it")
        sys.exit(77)
    package = str(HERE.parents[1] / "bindings" / "python")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", OMP_NUM_THREADS="1", FLWR_TELEMETRY_ENABLED="0")
    os.execv(PYTHON, [str(PYTHON), "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / file)])


if __name__ == "__main__":
    main()
