"""Puts the package on the path, and skips what needs the library where there is none.

Meson names the library in DEEPREDUCE_LIBRARY. If it does and the library cannot be loaded, tests fail. A run in
which everything was skipped exits 77, so that Meson counts it as skipped.
"""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bindings" / "python"), str(ROOT / "bindings" / "grace")]
sys.dont_write_bytecode = True
os.environ["LC_ALL"] = "C.UTF-8"  # in locale C the tool writes ASCII

from report_pages import browser, report  # noqa: E402, F401 (fixtures)

NEED_THE_LIBRARY = (
    "test_api.py",
    "test_book.py",
    "test_bound.py",
    "test_device.py",
    "test_example_scripts.py",
    "test_examples.py",
    "test_exchange.py",
    "test_handles.py",
    "test_grace.py",
    "test_grace_methods.py",
    "test_grace_params.py",
    "test_inputs.py",
    "test_methods_buckets.py",
    "test_methods_natural.py",
    "test_methods_sign.py",
    "test_memories.py",
    "test_patch.py",
    "test_patch_crashes.py",
    "test_patch_files.py",
    "test_patch_hostile.py",
    "test_patch_layout.py",
    "test_patch_store.py",
    "test_presets.py",
    "test_rows.py",
    "test_store_forged.py",
    "test_python_codec.py",
    "test_torch.py",
    "test_train.py",
    "test_vocabulary.py",
)


def missing_library():
    """Why there is no library; None if there is one, or if one was promised."""
    from deepreduce import LibraryError
    from deepreduce._native import _library

    if os.environ.get(_library.ENVIRONMENT):
        return None
    try:
        _library.load()
    except LibraryError as error:
        return str(error)
    return None


def pytest_configure(config):
    # An old spelling of our own (_native/_renamed.py) is an error in tests; test_vocabulary.py has those that are meant.
    config.addinivalue_line("filterwarnings", "error:.*until version 0.4:DeprecationWarning")


def pytest_collection_modifyitems(items):
    affected = [item for item in items if item.path.name in NEED_THE_LIBRARY]
    reason = missing_library() if affected else None
    if reason:
        for item in affected:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    # OK, or nothing collected since whole files were skipped.
    if exitstatus in (0, 5) and reporter and reporter.stats.get("skipped") and not reporter.stats.get("passed"):
        session.exitstatus = 77
