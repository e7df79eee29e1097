"""Builds libdeepreduce and the tool `deepreduce` with Meson and puts them into the wheel, beside the package.

What the build lacks is reported before it starts, by the names of Debian's packages. DEEPREDUCE_COMMAND=disabled builds the
library alone, without the tool and what that needs (CLI11, nlohmann-json, fmt). With the tool goes an accumulator of each
bundled model, for `deepreduce compare` and `calibrate` without an input. DEEPREDUCE_BUILD names a Meson build folder whose library and tool are taken as
they are, instead of building.
zlib and Zstandard are linked statically, and hidden: a process may have others of their names. Where only shared ones
are there, the wheel needs the machine's. Otherwise it is tagged for the oldest glibc that it runs with: manylinux_2_N, N
read from the symbols. The sources are two levels up in a checkout, and in `source` in an sdist.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import typing

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE / "source" if (HERE / "source").is_dir() else HERE.parents[1]

# No MPI: one wheel runs everywhere. With CUDA, too (DEEPREDUCE_CUDA=enabled; building takes nvcc, loading nothing).
# What else is off would not be in the wheel.
OPTIONS = ["--buildtype=release", "--default-library=shared"] + [
    f"-D{feature}=disabled" for feature in ("tests", "python", "mpi", "bench")
]
# (The old spelling, DEEPREDUCE_BENCH, works until version 0.4.)
COMMAND = os.environ.get("DEEPREDUCE_COMMAND", os.environ.get("DEEPREDUCE_BENCH", "enabled"))
OPTIONS.append(f"-Dtool={COMMAND}")
OPTIONS.append(f"-Dcuda={os.environ.get('DEEPREDUCE_CUDA', 'disabled')}")
OPTIONS.append("-Dprefer_static=true")
OPTIONS.append("-Dfast_build=true")
# The C++ runtime goes into the library, too (what is not used of it goes again, and with it a newer glibc's functions).
# The tool looks for the library beside it.
OPTIONS.append("-Dcpp_link_args=['-static-libstdc++', '-static-libgcc', '-Wl,--gc-sections', '-Wl,-rpath,$ORIGIN']")

# What every manylinux machine has (PEP 600): glibc's own.
GLIBC = {
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}

# What Meson reads of the tree to build the library.
SOURCES = ("capi", "codecs", "include", "lib", "tool")
SOURCE_SUFFIXES = {
    ".cpp",
    ".cu",
    ".cuh",
    ".h",
    ".hpp",
    ".map",
    ".md",
    ".sh",
    ".build",
    ".in",
    ".html",
    ".css",
    ".js",
    ".json",
    ".txt",
    ".py",
}
# 3 MB: one accumulator in the middle of the training of each model.
DATA = tuple(
    f"datasets/accumulators/{model}_residual_top1_step{step}.npz"
    for model, step in [("lstm_docs", "0250"), ("neumf_names", "1000"), ("resnet20_digits", "0225"), ("transformer_docs", "0400")]
)  # fmt: skip
# What a plug-in made by `deepreduce codec` is compiled with (language/_build.py), beside the package in `headers`.
HEADERS = (
    "include/deepreduce/*.h*",
    "lib/core/host_device.hpp",
    "lib/primitive/*.hpp",
    "lib/primitive/packing_*.cpp",
    "codecs/family/language/*.hpp",
    "codecs/family/ternary/*.[ch]pp",
)
SOURCE_FILES = (
    "LICENSE",
    "README.md",
    "meson.build",
    "meson_options.txt",
    "tests/meson.build",
    "datasets/manifest.json",
    *DATA,
)


# ---- What the build needs -----------------------------------------------------------------------

# (name in pkg-config, what is included to find it without, name in words, Debian's package)
LIBRARIES = [
    ("zlib", "zlib.h", "zlib", "zlib1g-dev"),
    ("libzstd", "zstd.h", "Zstandard", "libzstd-dev"),
    ("eigen3", "Eigen/Core", "Eigen", "libeigen3-dev"),
]
LIBRARIES_OF_THE_TOOL = [
    ("CLI11", "CLI/CLI.hpp", "CLI11", "libcli11-dev"),
    ("nlohmann_json", "nlohmann/json.hpp", "nlohmann-json", "nlohmann-json3-dev"),
    ("fmt", "fmt/core.h", "fmt", "libfmt-dev"),
]
Lacking = typing.List[typing.Tuple[str, str]]  # in words, and Debian's package


def lacking(ready: bool) -> Lacking:
    """What is missing here to build, or with `ready` to take what was built."""
    missing = [program for program in (("meson", "meson"), ("objdump", "binutils")) if not shutil.which(program[0])]
    if ready:
        return missing
    if not any(shutil.which(name) for name in ("ninja", "ninja-build", "samu")):
        missing.append(("ninja", "ninja-build"))
    if not shutil.which("pkg-config") and not shutil.which("cmake"):
        missing.append(("pkg-config", "pkg-config"))
    # As Meson looks for it.
    compiler = shlex.split(os.environ.get("CXX", "")) or [next(filter(shutil.which, ("c++", "g++", "clang++")), "")]
    if not compiles(compiler, "#include <concepts>\n#include <span>\ntemplate <std::integral T> void f(std::span<T>);"):
        return [*missing, ("a compiler of C++20 (GCC 11 or newer)", "g++")]
    libraries = LIBRARIES + (LIBRARIES_OF_THE_TOOL if COMMAND == "enabled" else [])
    for name, header, words, package in libraries:
        known = shutil.which("pkg-config") and not subprocess.run(["pkg-config", "--exists", name], check=False).returncode
        if not known and not compiles(compiler, f"#include <{header}>", "-I/usr/include/eigen3"):
            missing.append((words, package))
    return missing


def compiles(compiler: "list[str]", source: str, *options: str) -> bool:
    command = [*compiler, "-std=c++20", "-x", "c++", "-fsyntax-only", *options, "-"]
    return bool(shutil.which(compiler[0])) and not subprocess.run(
        command, input=source, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    ).returncode


def refusal(missing: Lacking) -> str:
    words, packages = ", ".join(words for words, _ in missing), " ".join(package for _, package in missing)
    sentence = f"deepreduce: cannot be built here, for want of {words}. On Debian or Ubuntu: apt-get install {packages}"
    if all(package in [debian for *_, debian in LIBRARIES_OF_THE_TOOL] for _, package in missing):
        sentence += ". Without the command `deepreduce`: DEEPREDUCE_COMMAND=disabled pip install …"
    return sentence


# ---- The library --------------------------------------------------------------------------------


def build_library(folder: pathlib.Path) -> None:
    """Builds the project at ROOT; copies its shared library, and what that needs beside glibc, into `folder`."""
    if not (ROOT / "include/deepreduce/deepreduce.h").is_file() or not (ROOT / "meson.build").is_file():
        raise SystemExit(
            f"deepreduce: the library's sources are not in {ROOT}. This package builds them: install it from a"
            " checkout of the whole project, `pip install ./bindings/python`, or from its sdist."
        )
    ready = os.environ.get("DEEPREDUCE_BUILD")
    if ready and not pathlib.Path(ready, "meson-private").is_dir():
        raise SystemExit(f"deepreduce: DEEPREDUCE_BUILD is {ready}, which is not a build folder of Meson")
    missing = lacking(bool(ready))
    if missing:
        raise SystemExit(refusal(missing))
    if ready:
        take(os.path.abspath(ready), folder)
        return
    print("deepreduce: compiles the library and the tool, which takes minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="deepreduce-") as build:
        run("meson", "setup", build, str(ROOT), *OPTIONS)
        targets = [target for target in (library_of(build), tool_of(build)) if target]
        run("ninja", "-C", build, *[os.path.relpath(target, build) for target in targets])
        take(build, folder)


def take(build: str, folder: pathlib.Path) -> None:
    """Copies what was built in `build`, and with the tool the data."""
    library, tool = library_of(build), tool_of(build)
    if library is None:
        raise SystemExit(f"deepreduce: {build} has no shared library `deepreduce`: build it first")
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in HEADERS:
        for path in sorted(ROOT.glob(pattern)):
            target = folder / "headers" / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    # Under the name that the tool asks for.
    shutil.copyfile(library, folder / soname(library))
    if tool is None:
        print("deepreduce: without the tool: the wheel has no command `deepreduce compare`")
        return
    shutil.copy(tool, folder / "deepreduce")
    for path in DATA:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)


def target_file(build: str, kind: str) -> "str | None":
    """Path of the file that Meson makes for the target `deepreduce` of a kind; None if there is none."""
    targets = json.loads(subprocess.check_output(["meson", "introspect", "--targets", build]))
    for target in targets:
        if target["name"] == "deepreduce" and target["type"] == kind:
            return os.path.realpath(target["filename"][0])
    return None


def library_of(build: str) -> "str | None":
    return target_file(build, "shared library")


def tool_of(build: str) -> "str | None":
    return target_file(build, "executable")


def run(*command: str) -> None:
    print("deepreduce:", *command, flush=True)
    subprocess.run(command, check=True)


# ---- What a library needs -----------------------------------------------------------------------


def headers(library: "str | os.PathLike[str]") -> str:
    """What objdump, which comes with every compiler, tells of an ELF file."""
    return subprocess.check_output(["objdump", "-p", os.fspath(library)], text=True, env={**os.environ, "LC_ALL": "C"})


def soname(library: str) -> str:
    found = re.search(r"^\s+SONAME\s+(\S+)", headers(library), flags=re.M)
    return found[1] if found else os.path.basename(library)


def needed(library: "str | os.PathLike[str]") -> "set[str]":
    return set(re.findall(r"^\s+NEEDED\s+(\S+)", headers(library), flags=re.M))


def oldest_glibc(libraries: "list[pathlib.Path]") -> "tuple[int, int]":
    """The newest version of glibc that any symbol of theirs asks for."""
    asked = [
        (int(major), int(minor))
        for library in libraries
        for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", headers(library))
    ]
    return max(asked, default=(2, 17))


def platform_tag(folder: pathlib.Path, otherwise: str) -> str:
    """manylinux_2_N_ARCH for the libraries in `folder`, if there is all that they need; else `otherwise`."""
    libraries = sorted(folder.glob("*.so*")) + [path for path in [folder / "deepreduce"] if path.is_file()]
    others = {name for library in libraries for name in needed(library)} - GLIBC - {library.name for library in libraries}
    if not otherwise.startswith("linux_") or not libraries or others:
        return otherwise
    return "manylinux_{}_{}_".format(*oldest_glibc(libraries)) + otherwise[len("linux_") :]


# ---- Commands of setuptools ---------------------------------------------------------------------


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            # The package is used where it lies; nothing is written there.
            print("deepreduce: an editable install has no library; set DEEPREDUCE_LIBRARY to one")
        else:
            build_library(pathlib.Path(self.build_lib) / "deepreduce")


class AnyPython(bdist_wheel):
    """py3-none-PLATFORM: the library is native, but knows nothing of Python."""

    def get_tag(self) -> "tuple[str, str, str]":
        # By now the library is built (bdist_wheel.run).
        built = pathlib.Path(self.get_finalized_command("build_py").build_lib) / "deepreduce"
        return "py3", "none", platform_tag(built, super().get_tag()[2])


class WithSources(sdist):
    """The package, and in `source` as much of the tree as builds the library."""

    def make_release_tree(self, base_dir: str, files: "list[str]") -> None:
        super().make_release_tree(base_dir, files)
        here, source = pathlib.Path(base_dir), pathlib.Path(base_dir) / "source"
        (here / "LICENSE").unlink(missing_ok=True)  # a link, in a checkout
        shutil.copyfile(ROOT / "LICENSE", here / "LICENSE")
        for path in source_files():
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, source / path)


def source_files() -> "list[str]":
    found = list(SOURCE_FILES)
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in SOURCE_SUFFIXES:
                found.append(str(path.relative_to(ROOT)))
    return found


class WithLibrary(Distribution):
    def has_ext_modules(self) -> bool:
        return True


if __name__ == "__main__":
    setup(
        cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": AnyPython, "sdist": WithSources},
        distclass=WithLibrary,
    )
