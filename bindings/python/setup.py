"""Builds libdeepreduce with Meson and puts it into the wheel, beside the package."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).resolve().parents[2]

# No MPI: one wheel runs everywhere. With CUDA, too (DEEPREDUCE_CUDA=enabled; building takes nvcc, loading nothing). What
# else is off would not be in the wheel.
OPTIONS = ["--buildtype=release", "--default-library=shared"] + [
    f"-D{feature}=disabled" for feature in ("tests", "bench", "python", "mpi")
]
OPTIONS.append(f"-Dcuda={os.environ.get('DEEPREDUCE_CUDA', 'disabled')}")


def build_library(destination: pathlib.Path) -> None:
    """Builds the project at ROOT and copies its shared library to the file `destination`."""
    if not (ROOT / "include/deepreduce/deepreduce.h").is_file() or not (ROOT / "meson.build").is_file():
        raise SystemExit(
            f"deepreduce: the library's sources are not in {ROOT}. This package builds them: install it from a"
            " checkout of the whole project, `pip install ./bindings/python`."
        )
    with tempfile.TemporaryDirectory(prefix="deepreduce-") as build:
        run("meson", "setup", build, str(ROOT), *OPTIONS)
        library = shared_library(build)
        run("ninja", "-C", build, os.path.relpath(library, build))
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library, destination)


def shared_library(build: str) -> str:
    """Path of the file that Meson will make for the shared library `deepreduce`."""
    targets = json.loads(subprocess.check_output(["meson", "introspect", "--targets", build]))
    for target in targets:
        if target["name"] == "deepreduce" and target["type"] == "shared library":
            return os.path.realpath(target["filename"][0])
    raise SystemExit("deepreduce: the Meson project has no shared library `deepreduce`")


def run(*command: str) -> None:
    print("deepreduce:", *command, flush=True)
    subprocess.run(command, check=True)


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            # The package is used where it lies; nothing is written there.
            print("deepreduce: an editable install has no library; set DEEPREDUCE_LIBRARY to one")
        else:
            build_library(pathlib.Path(self.build_lib) / "deepreduce" / "libdeepreduce.so")


class AnyPython(bdist_wheel):
    """py3-none-PLATFORM: the library is native, but knows nothing of Python."""

    def get_tag(self) -> "tuple[str, str, str]":
        return "py3", "none", super().get_tag()[2]


class WithLibrary(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": AnyPython}, distclass=WithLibrary)
