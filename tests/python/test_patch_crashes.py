"""A process that writes to a store is killed, or the disk is full: the steps that were put can be read, and the next put works."""

import builtins
import errno
import io
import os
import shutil

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

from store_steps import digest, model, names, step_on, written  # noqa: E402

from deepreduce.patch import _store_files  # noqa: E402
from deepreduce.patch import Store  # noqa: E402

CALLS = "open pwrite fsync replace rename unlink close ftruncate mkdir".split()


class Counter:
    """Ends the process before its n-th call into the system, of a write in the middle."""

    def __init__(self, last):
        self.left = last

    def before(self, half=None):
        self.left -= 1
        if not self.left:
            if half is not None:
                half()
            os._exit(9)

    def of_os(self, name):
        real = getattr(os, name)

        def call(*arguments, **options):
            data = memoryview(arguments[1]) if name == "pwrite" else b""
            self.before(lambda: data and real(arguments[0], data[: len(data) // 2], arguments[2]))
            return real(*arguments, **options)

        return call

    def open(self, path, mode="r", *_, **__):
        counter = self
        counter.before()

        class File(io.FileIO):
            def write(self, data):
                data = memoryview(data)
                counter.before(lambda: io.FileIO.write(self, data[: len(data) // 2]))
                return io.FileIO.write(self, data)

        return File(path, mode.replace("b", ""))


def killed_at(number, work):
    """Runs work in a child, which is killed at call `number`. Returns whether the child made that many calls."""
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 9)
        return status == 9
    counter = Counter(number)
    try:
        for name in CALLS:
            setattr(os, name, counter.of_os(name))
        io.open = builtins.open = counter.open
        work()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.parametrize("what", ["first", "patch", "anchor", "prune"])
def test_killed_at_any_call_the_store_still_reads(tmp_path, what):
    begin = tmp_path / "begin"
    begin.mkdir()
    digests = written(begin, 6, anchor_every=3) if what != "first" else {}
    weights = Store(begin).read(5) if digests else model()
    step_on(weights, 6)
    digests[6] = digest(weights)
    seen = set()
    for number in range(1, 1000):
        folder = tmp_path / str(number)
        shutil.copytree(begin, folder)

        def work():
            with Store(folder, anchor_every=1 if what == "anchor" else 64) as store:  # noqa: B023
                store.prune(keep=1) if what == "prune" else store.put(6, weights)

        was_killed = killed_at(number, work)
        store = Store(folder)
        steps = store.steps()
        seen.add(tuple(steps))
        for step in steps:
            assert digest(store.read(step)) == digests[step]
        if what != "prune" and 6 not in steps:
            work()  # the files that were left do not disturb it
            assert digest(store.read(6)) == digests[6]
        with store:
            store.prune(keep=1)
            assert names(folder) == sorted([*_store_files.read_manifest(folder).files, _store_files.MANIFEST])
        shutil.rmtree(folder)
        if not was_killed:
            break
    before, after = tuple(range(6)), (6,) if what == "first" else (3, 4, 5) if what == "prune" else tuple(range(7))
    assert seen == {() if what == "first" else before, after}
    assert number > (15 if what != "prune" else 8)


@pytest.mark.parametrize("call", ["fsync", "pwrite", "replace"])
def test_a_full_disk_is_an_error_that_loses_nothing(tmp_path, monkeypatch, call):
    digests = written(tmp_path, 3)
    weights = Store(tmp_path).read(2)
    real = getattr(os, call)
    with Store(tmp_path, anchor_every=1) as store:
        step_on(weights, 3)
        store.prune(keep=10)
        before = names(tmp_path)
        for fails in range(1, 30):
            left = fails

            def full(*arguments, **options):
                nonlocal left
                left -= 1
                if not left:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return real(*arguments, **options)

            monkeypatch.setattr(os, call, full)
            try:
                store.put(3, weights)
            except OSError as error:
                assert error.errno == errno.ENOSPC
            finally:
                monkeypatch.setattr(os, call, real)
            if store.latest() == 3:
                break
            assert names(tmp_path) == before
            assert {step: digest(Store(tmp_path).read(step)) for step in store.steps()} == digests
        assert fails > 1
        step_on(weights, 4)
        store.put(4, weights)
    assert digest(Store(tmp_path).read(4)) == digest(weights)


def test_files_are_on_the_disk_before_the_manifest_names_them(tmp_path, monkeypatch):
    progress = []
    replace, fsync = os.replace, os.fsync

    def named(a, b):
        progress.append("manifest" if os.path.basename(b) == _store_files.MANIFEST else "name")
        replace(a, b)

    def synced(handle):
        progress.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        fsync(handle)

    monkeypatch.setattr(os, "replace", named)
    monkeypatch.setattr(os, "fsync", synced)
    written(tmp_path, 2)
    anchor = patch = ["file", "name", "folder", "file", "manifest", "folder"]
    assert progress == anchor + patch
