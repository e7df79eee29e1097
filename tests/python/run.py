"""Runs pytest for Meson: 77 (skipped) where a package that every test needs is missing."""

import importlib.util
import sys

missing = [name for name in ("pytest", "numpy") if not importlib.util.find_spec(name)]
if missing:
    print(f"skipped: {sys.executable} has no {' and no '.join(missing)}")
    sys.exit(77)

import pytest  # noqa: E402

sys.dont_write_bytecode = True
code = pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]])
sys.exit(77 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code)
