"""The store of patches: any step can be read, whichever process is killed and when, and writers notice one another."""

import contextlib
import errno
import json
import logging
import os
import pathlib
import pickle
import resource
import threading

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

from store_steps import copied, digest, model, names, step_on, written  # noqa: E402

import deepreduce  # noqa: E402
from deepreduce._files import _whole_file  # noqa: E402
from deepreduce.patch import _model_files, _patch_file, _store_files  # noqa: E402
from deepreduce.patch import Store  # noqa: E402


# ---- Reading -------------------------------------------------------------------------------------


def test_a_chain_of_100_patches_with_late_joiners(tmp_path):
    weights, digests, followers = model(), {}, {}
    with Store(tmp_path) as store:
        for step in range(101):
            if step:
                step_on(weights, step)
            store.put(step, weights)
            digests[step] = digest(weights)
            if step in (0, 1, 50, 63, 64, 65, 99):  # who joins
                held = {name: numpy.zeros_like(x) for name, x in weights.items()}
                followers[step] = (held, Store(tmp_path).follow(held))
            for held, steps in followers.values():
                assert next(steps) == step
                assert digest(held) == digests[step]
    reader = Store(tmp_path)
    assert reader.latest() == 100 and reader.steps() == list(range(101))
    for step in range(101):
        assert digest(reader.read(step)) == digests[step]
    manifest = _store_files.read_manifest(tmp_path)
    assert [anchor.step for anchor in manifest.anchors] == [0, 64] and len(manifest.patches) == 100
    one = manifest.anchors[0].size
    assert sum(patch.size for patch in manifest.patches) < 1.6 * one  # 100 steps of which each changed 1 %
    for entry in (*manifest.anchors, *manifest.patches):
        assert (tmp_path / entry.file).stat().st_size == entry.size


def test_a_follower_that_was_away_takes_the_shorter_way(tmp_path):
    digests = written(tmp_path, 3)
    held = {name: numpy.zeros_like(x) for name, x in model().items()}
    steps = Store(tmp_path).follow(held)
    assert next(steps) == 2
    with Store(tmp_path, anchor_every=1) as store:
        weights = store.read(2)
        for step in range(3, 20):
            step_on(weights, step, share=0.9)
            store.put(step, weights)
        store.prune(keep=2)
        assert store.steps() == [18, 19]
    assert next(steps) == 19 and digest(held) == digest(weights) != digests[2]


def test_read_into_arrays_of_the_reader(tmp_path):
    digests = written(tmp_path, 4)
    held = {name: numpy.ones_like(x) for name, x in model(1).items()}
    assert Store(tmp_path).read(3, out=held) is held
    assert digest(held) == digests[3]
    held.pop("half")
    with pytest.raises(deepreduce.ArgumentError, match="has 'half', out does not"):
        Store(tmp_path).read(3, out=held)


def test_torch_weights(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is missing: ./dev setup")
    weights = {"w": torch.randn(100, 100, dtype=torch.bfloat16), "norm": torch.ones(100)}
    with Store(tmp_path) as store:
        store.put(0, weights)
        weights["w"][::9] *= 1.01
        store.put(1, weights)
    held = {name: torch.zeros_like(x) for name, x in weights.items()}
    Store(tmp_path).read(1, out=held)
    assert all(torch.equal(held[name], weights[name]) for name in weights)
    Store(tmp_path).checkout(1, tmp_path / "out.safetensors")
    if deepreduce._native._memory.bfloat16() is not None:
        assert Store(tmp_path).read(1)["w"].tobytes() == weights["w"].view(torch.uint8).numpy().tobytes()
    else:
        with pytest.raises(deepreduce.ArgumentError, match="w is bfloat16, which numpy has only with ml_dtypes"):
            Store(tmp_path).read(1)


def test_tied_weights_are_read_into_one_memory(tmp_path):
    with Store(tmp_path) as store:
        for step in range(4):
            one = numpy.full(5000, step, numpy.float32)
            store.put(step, {"in": one, "out": one})
    held = numpy.zeros(5000, numpy.float32)
    steps = store.follow({"in": held, "out": held}, threads=2)
    assert next(steps) == 3 and (held == 3).all()
    with store:
        store.put(4, {"in": one, "out": one + 1})
        with pytest.raises(deepreduce.ArgumentError, match="'in' and 'out' are the same memory"):
            store.read(4, out={"in": held, "out": held})


def test_threads_read_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(_patch_file, "PIECE", 1 << 14)
    digests = written(tmp_path, 5)
    for threads in (None, 3):
        assert digest(Store(tmp_path).read(4, threads=threads)) == digests[4]
        Store(tmp_path).checkout(4, tmp_path / f"{threads}.safetensors", threads=threads)
    assert (tmp_path / "None.safetensors").read_bytes() == (tmp_path / "3.safetensors").read_bytes()


def test_one_array_is_a_model_too(tmp_path):
    with Store(tmp_path) as store:
        for step in range(3):
            store.put(step, numpy.full(1000, step, numpy.float32))
    assert (Store(tmp_path).read(2) == 2).all()


def test_new_names_or_shapes_begin_with_an_anchor(tmp_path):
    weights = model()
    with Store(tmp_path) as store:
        store.put(0, weights)
        weights["adapter"] = numpy.ones(10, numpy.float32)
        store.put(5, weights)
        step_on(weights, 5)
        store.put(6, weights)
    assert digest(Store(tmp_path).read(6)) == digest(weights)
    manifest = _store_files.read_manifest(tmp_path)
    assert [anchor.step for anchor in manifest.anchors] == [0, 5] and [(patch.base, patch.step) for patch in manifest.patches] == [(5, 6)]


def test_follow_refuses_weights_that_something_else_has_changed(tmp_path):
    weights = model()
    with Store(tmp_path) as store:
        store.put(0, weights)
        held = {name: numpy.zeros_like(x) for name, x in weights.items()}
        steps = store.follow(held)
        assert next(steps) == 0
        for name in ("embed", "half", "count"):
            step_on(weights, store.latest() + 1)
            store.put(store.latest() + 1, weights)
            steps = Store(tmp_path).follow(held, step=store.latest() - 1)
            at = store.latest()
            assert next(steps) == at
            held[name].reshape(-1)[:1] += 1  # by the engine, say
            step_on(weights, at + 1)
            store.put(at + 1, weights)
            before = digest(held)
            with pytest.raises(deepreduce.WrongBase, match=f"^weights: they are not those of step {at}, something else has changed them: .*{name}"):
                next(steps)
            assert digest(held) == before
            assert next(store.follow(held)) == at + 1 and digest(held) == digest(weights)
        step_on(weights, 99)
        store.put(99, weights)
        held.pop("count")
        with pytest.raises(deepreduce.ArgumentError, match="^weights: its 2 tensors are not those of"):
            next(store.follow(held, step=at + 1))


@pytest.mark.parametrize("wait", [-1.5, float("nan"), float("inf"), "long"])
def test_follow_refuses_a_wait_that_is_none_at_the_call(tmp_path, wait):
    with pytest.raises(deepreduce.ArgumentError, match=f"^wait (= {wait} s|is '{wait}')"):
        Store(tmp_path).follow(model(), wait=wait)


def test_what_is_not_there_is_said(tmp_path):
    assert Store(tmp_path / "none").latest() is None
    with pytest.raises(deepreduce.ArgumentError, match="no such folder"):
        Store(tmp_path / "none").read(0)
    written(tmp_path, 3)
    with pytest.raises(deepreduce.ArgumentError, match="step 7: the store has no such step; it has 3 from 0 to 2"):
        Store(tmp_path).read(7)
    with Store(tmp_path) as store:
        with pytest.raises(deepreduce.ArgumentError, match="step 2 is not above the last one, 2: .* new folder"):
            store.put(2, model())


# ---- Writers -------------------------------------------------------------------------------------


def test_a_writer_goes_on_where_another_ended(tmp_path):
    written(tmp_path, 3)
    weights = Store(tmp_path).read(2)
    with Store(tmp_path) as store:
        step_on(weights, 3)
        store.put(3, weights)
        assert digest(store.read(3)) == digest(weights)
    assert len(_store_files.read_manifest(tmp_path).patches) == 3


def test_two_writers_notice_each_other(tmp_path):
    with Store(tmp_path) as one, Store(tmp_path) as two:
        one.put(0, model())
        with pytest.raises(deepreduce.ConcurrentUse, match=rf"process {os.getpid()} on .* writes to it: another Store of this process; close\(\) it"):
            two.put(1, model())
        one.close()
        two.put(1, model())
        with pytest.raises(deepreduce.ConcurrentUse):
            one.prune(keep=1)


def test_a_store_that_nobody_has_any_more_holds_no_lock(tmp_path):
    store = Store(tmp_path)
    store.put(0, model())
    store = Store(tmp_path)
    store.put(1, model())
    del store
    with Store(tmp_path) as store:
        store.put(2, model())


def test_a_copy_of_a_store_is_another_store(tmp_path):
    with Store(tmp_path, anchor_every=3) as store:
        store.put(0, model())
        made = pickle.loads(pickle.dumps(store))
        assert digest(made.read(0)) == digest(model()) and made._every == 3
        with pytest.raises(deepreduce.ConcurrentUse):
            made.put(1, model())


def test_a_second_thread_in_put_prune_or_close_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    weights, refused = model(), []
    encode = _patch_file._encode

    with Store(tmp_path) as store:
        store.put(0, weights)

        def slow(*arguments):
            if refused:  # (of a thread that should have been refused)
                return encode(*arguments)
            before = names(tmp_path)
            for call in (lambda: store.put(2, model(2)), lambda: store.prune(1), store.close):
                with pytest.raises(deepreduce.ConcurrentUse, match="the store is in another call"):
                    refused.append(None)
                    thread = threading.Thread(target=lambda: refused.append(caught(call)))  # noqa: B023
                    thread.start()
                    thread.join()
                    raise refused[-1]
            assert names(tmp_path) == before
            return encode(*arguments)

        monkeypatch.setattr(_patch_file, "_encode", slow)
        step_on(weights, 1)
        store.put(1, weights)
    assert refused and Store(tmp_path).steps() == [0, 1] and digest(Store(tmp_path).read(1)) == digest(weights)


def caught(call):
    try:
        call()
    except Exception as error:
        return error


@pytest.mark.parametrize("anchor_every", [64, 1])
@pytest.mark.parametrize("shape", [5000, (30, 3)])
def test_weights_that_are_trained_on_while_they_are_put_do_not_damage_later_steps(tmp_path, monkeypatch, anchor_every, shape):
    """Of one tensor and of several that share a frame. Whatever `put` reads of a step, later steps are those of the trainer."""
    weights = {name: numpy.zeros(shape, numpy.float32) for name in "abc"[: 1 if shape == 5000 else 3]}
    encode, write = _patch_file._encode, Store._write

    def trained_on(*arguments):
        found = encode(*arguments)
        for x in weights.values():
            x += 1
        return found

    def written_and_trained_on(*arguments):
        made = write(*arguments)
        for x in weights.values():
            x += 1
        return made

    monkeypatch.setattr(_patch_file, "_encode", trained_on)
    monkeypatch.setattr(Store, "_write", written_and_trained_on)
    with Store(tmp_path, anchor_every=anchor_every) as store:
        for step in range(5):
            began = {name: x.copy() for name, x in weights.items()}
            store.put(step, weights)
            assert digest(store.read(step)) == digest(began), step
            for x in weights.values():
                x[::7] += step


def unsupported(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.mark.parametrize("flock", [lambda *_: None, unsupported])
def test_two_writers_notice_each_other_where_there_are_no_locks(tmp_path, monkeypatch, flock):
    monkeypatch.setattr(_store_files.fcntl, "flock", flock)
    with Store(tmp_path) as one, Store(tmp_path) as two:
        one.put(0, model())
        two.put(1, model())
        with pytest.raises(deepreduce.ConcurrentUse, match="another writer has changed it"):
            one.put(1, model())
    assert Store(tmp_path).steps() == [0, 1]


def test_a_writer_goes_on_while_a_child_of_its_process_lives(tmp_path):
    """A worker of a DataLoader, say: it has the lock's descriptor."""
    store = Store(tmp_path)
    store.put(0, model())
    until, end = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        os.read(until, 1)  # until the parent closes it
        store.close()
        os._exit(0)
    try:
        store.close()
        store.put(1, model())
        os.close(end)
        os.waitpid(child, 0)
        with pytest.raises(deepreduce.ConcurrentUse):  # the child's close took no lock of the parent
            Store(tmp_path).put(2, model())
    finally:
        with contextlib.suppress(OSError):
            os.close(end)
        os.close(until)
        store.close()


def test_a_chain_may_have_more_patches_than_a_process_may_have_files(tmp_path):
    digests = written(tmp_path, 100)
    held = {name: numpy.zeros_like(x) for name, x in model().items()}
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, limits[1]))
    try:
        assert digest(Store(tmp_path).read(63)) == digests[63]
        held.update(Store(tmp_path).read(1))
        assert next(Store(tmp_path).follow(held, step=1)) == 99 and digest(held) == digests[99]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_writer_that_was_killed_leaves_no_lock(tmp_path):
    child = os.fork()
    if not child:
        Store(tmp_path).put(0, model())
        os._exit(0)
    os.waitpid(child, 0)
    with Store(tmp_path) as store:
        store.put(1, model())


def test_prune_keeps_what_the_last_steps_need(tmp_path):
    digests = written(tmp_path, 10, anchor_every=4)
    with Store(tmp_path) as store:
        (tmp_path / "0000000003-01234567.drpatch").write_bytes(b"left by a crash")
        (tmp_path / ".0000000003-01234567.drpatch.77").write_bytes(b"left by a crash")
        (tmp_path / "notes.txt").write_text("mine")
        store.prune(keep=4)
        assert store.steps() == [4, 5, 6, 7, 8, 9]
        for step in store.steps():
            assert digest(store.read(step)) == digests[step]
        manifest = _store_files.read_manifest(tmp_path)
        assert names(tmp_path) == sorted([*manifest.files, _store_files.MANIFEST, "notes.txt"])
        weights = store.read(9)
        step_on(weights, 10)
        store.put(10, weights)
    assert digest(Store(tmp_path).read(10)) == digest(weights)


def test_a_prune_of_no_folder_makes_none(tmp_path):
    with pytest.raises(deepreduce.ArgumentError, match="no such folder"):
        Store(tmp_path / "mistyped").prune(1)
    assert not (tmp_path / "mistyped").exists()


def test_a_prune_while_somebody_reads(tmp_path, monkeypatch):
    """Between the reading of the manifest and that of a file, another process removes the file and adds a step."""
    digests = written(tmp_path, 6, anchor_every=3)
    reader = Store(tmp_path)
    path_to, done = _store_files.Manifest.path_to, []

    def slow(manifest, step):
        found = path_to(manifest, step)
        if not done:
            done.append(True)
            with Store(tmp_path, anchor_every=1) as store:
                store.put(9, model())
                store.prune(keep=2)
        return found

    monkeypatch.setattr(_store_files.Manifest, "path_to", slow)
    assert digest(reader.read(5)) == digests[5] and done


# ---- Damage --------------------------------------------------------------------------------------


@pytest.fixture(params=["safetensors", _store_files.ANCHOR_PLAN])
def anchors(request, monkeypatch):
    """Both ways in which an anchor may be written."""
    monkeypatch.setattr(_store_files, "ANCHOR_PLAN", request.param)


def test_anchors_of_both_kinds_read_alike(tmp_path, anchors):
    digests = written(tmp_path, 7, anchor_every=3)
    manifest = _store_files.read_manifest(tmp_path)
    assert {anchor.plan for anchor in manifest.anchors} == {_store_files.ANCHOR_PLAN}
    for step in range(7):
        assert digest(Store(tmp_path).read(step)) == digests[step]
        Store(tmp_path).checkout(step, tmp_path / f"{step}.safetensors")
        with _model_files.open_model(str(tmp_path / f"{step}.safetensors")) as made:
            whole = {name: tensor.part(0, tensor.length, name).copy() for name, tensor in made.tensors.items()}
            assert digest(whole) == digests[step] and not made.metadata


def test_an_anchor_takes_fewer_bytes_than_its_weights(tmp_path):
    x = numpy.random.default_rng(0).normal(0, 0.02, 1 << 19).astype(numpy.float32)
    bf16 = (x.view(numpy.uint32) >> 16).astype(numpy.uint16).view("V2")
    with Store(tmp_path) as store:
        store.put(0, bf16)
        (anchor,) = _store_files.read_manifest(tmp_path).anchors
        assert anchor.size < 0.67 * bf16.nbytes
        held = numpy.zeros(bf16.size, "V2")
        assert store.read(0, out=held).tobytes() == bf16.tobytes()


def test_damaged_files_are_named(tmp_path, anchors):
    written(tmp_path, 3)
    manifest = _store_files.read_manifest(tmp_path)
    for entry in (*manifest.anchors, *manifest.patches):
        path = tmp_path / entry.file
        whole = path.read_bytes()
        for at in (3, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            for read in (lambda: Store(tmp_path).read(2), lambda: Store(tmp_path).checkout(2, tmp_path / "out.safetensors")):
                with pytest.raises((deepreduce.CorruptFrame, deepreduce.Unsupported), match=entry.file):
                    read()
            assert not (tmp_path / "out.safetensors").exists()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(deepreduce.CorruptFrame, match=entry.file):
            Store(tmp_path).read(2)
        path.unlink()
        with pytest.raises(OSError, match=entry.file):
            Store(tmp_path).read(2)
        path.write_bytes(whole)
    one, two = (tmp_path / patch.file for patch in manifest.patches)
    whole = two.read_bytes()
    two.write_bytes(one.read_bytes())
    with pytest.raises(deepreduce.CorruptFrame, match="a patch from '0' to '1', not from '1' to '2'"):
        Store(tmp_path).read(2)


def test_a_trainer_goes_on_with_an_anchor_if_the_last_step_is_damaged_or_missing(tmp_path, caplog):
    weights = model()
    for step, spoil in enumerate((lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-9]))):
        with Store(tmp_path) as store:
            for number in (3 * step, 3 * step + 1):
                step_on(weights, number)
                store.put(number, weights)
        spoil(tmp_path / _store_files.read_manifest(tmp_path).patches[-1].file)
        with Store(tmp_path) as store, caplog.at_level(logging.WARNING, "deepreduce.patch"):
            caplog.clear()
            step_on(weights, 3 * step + 2)
            store.put(3 * step + 2, weights)
            assert f"step {3 * step + 1} cannot be read, so the next one is stored whole: " in caplog.text
            assert digest(store.read(3 * step + 2)) == digest(weights)
        assert _store_files.read_manifest(tmp_path).anchors[-1].step == 3 * step + 2
    held = {name: numpy.zeros_like(x) for name, x in weights.items()}
    assert next(Store(tmp_path).follow(held)) == 5 and digest(held) == digest(weights)


@pytest.mark.parametrize(
    "change, kind, why",
    [
        (lambda d: "{", "CorruptFrame", "not JSON"),
        (lambda d: "[]", "CorruptFrame", "it has no format"),
        (lambda d: {**d, "format": "deepreduce-store-2"}, "Unsupported", "deepreduce-store-2"),
        (lambda d: {**d, "anchors": 3}, "CorruptFrame", "is not a list"),
        (lambda d: {**d, "patches": [3]}, "CorruptFrame", "is not a list"),
        (lambda d: {**d, "patches": [{"base": 0}]}, "CorruptFrame", "an entry of patches has"),
        (lambda d: {**d, "patches": [{**d["patches"][0], "file": "../../etc/passwd"}]}, "CorruptFrame", "not the name of a file"),
        (lambda d: {**d, "patches": [{**d["patches"][0], "size": "1"}]}, "CorruptFrame", "not a number"),
        (lambda d: {**d, "patches": [{**d["patches"][0], "step": -1}]}, "CorruptFrame", "not a number"),
        (lambda d: {**d, "patches": [{**d["patches"][0], "base": 1}]}, "CorruptFrame", "from step 1 to 1"),
        (lambda d: {**d, "patches": d["patches"][::-1]}, "CorruptFrame", "do not ascend"),
        (lambda d: {**d, "anchors": [{**d["anchors"][0], "plan": "index=all value=new"}]}, "Unsupported", "has plan"),
    ],
)
def test_a_hostile_manifest_is_refused(tmp_path, change, kind, why):
    written(tmp_path, 3)
    path = tmp_path / _store_files.MANIFEST
    made = change(json.loads(path.read_text()))
    path.write_text(made if isinstance(made, str) else json.dumps(made))
    with pytest.raises(getattr(deepreduce, kind), match=why):
        Store(tmp_path).read(2)
    with pytest.raises(getattr(deepreduce, kind), match=why):
        Store(tmp_path).put(3, model())


def test_follow_waits_for_a_store_to_begin(tmp_path):
    weights = model()
    held = copied(weights)

    def write():
        with Store(tmp_path / "new") as store:
            step_on(weights, 1)
            store.put(1, weights)

    timer = threading.Timer(0.2, write)
    timer.start()
    assert next(Store(tmp_path / "new").follow(held, wait=0.01)) == 1
    timer.join()
    assert digest(held) == digest(weights)


def test_a_failed_replacement_leaves_the_file(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(OSError):
        with _whole_file.whole_file(tmp_path / "a", durable=True):
            pass  # nothing was written
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == ["a"]


def test_a_pipe_and_a_device_are_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with _whole_file.whole_file(tmp_path / "pipe") as made:
        made.write_bytes(b"patch")
    assert os.read(reader, 9) == b"patch" and (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 1
    os.close(reader)
    with _whole_file.whole_file("/dev/null") as made:
        made.write_bytes(b"patch")
    assert pathlib.Path("/dev/null").is_char_device()


def test_two_threads_that_replace_a_file_do_not_share_what_they_write(tmp_path):
    with _whole_file.whole_file(tmp_path / "a") as one:
        with _whole_file.whole_file(tmp_path / "a") as two:
            one.write_text("one")
            two.write_text("two")
        assert (tmp_path / "a").read_text() == "two"
    assert (tmp_path / "a").read_text() == "one" and names(tmp_path) == ["a"]


@pytest.mark.parametrize("name", ["a" * 255, "é" * 127])
def test_a_file_of_the_longest_name_is_replaced(name, tmp_path):
    for text in ("old", "new"):
        with _whole_file.whole_file(tmp_path / name) as made:
            made.write_text(text)
    assert (tmp_path / name).read_text() == "new" and names(tmp_path) == [name]
