"""`deepreduce calibrate`: the profile follows docs/profile.schema.json, for one process and for ranks over gloo and MPI."""

import importlib.util
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest
from test_torch import free_port
from tool_runs import needs_tool, run, write_npy

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
jsonschema = pytest.importorskip("jsonschema", reason="no package jsonschema")

from deepreduce import ArgumentError, Error, calibrating  # noqa: E402
from deepreduce.calibrating._cost_fit import fit_affine  # noqa: E402
from deepreduce.calibrating._link_costs import _rate, burst_of  # noqa: E402
from deepreduce.calibrating._rank_links import Ranks  # noqa: E402

pytestmark = needs_tool
ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "profile.schema.json").read_text("utf-8"))
PLAN = "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw"
SMALL = ("--plan", PLAN, "--sizes", "1024,4096,32768", "--time", "0")


def valid(profile):
    jsonschema.validators.validator_for(SCHEMA).check_schema(SCHEMA)
    jsonschema.validate(profile, SCHEMA, cls=jsonschema.Draft202012Validator)
    return profile


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    file = tmp_path_factory.mktemp("profile") / "profile.json"
    run("calibrate", *SMALL, "--plan", "index=all value=raw", "-o", file)
    return valid(json.loads(file.read_text("utf-8")))


def test_a_profile_is_as_described(profile):
    assert [(cost["plan"], cost["operation"]) for cost in profile["costs"]] == [
        (plan, operation) for plan in (PLAN, "index=all value=raw") for operation in ("encode", "merge", "decode")
    ] + [("index=all value=raw", "add")]
    for cost in profile["costs"]:
        assert [sample[0] for sample in cost["samples"]] == [1024, 4096, 32768] == [cost["from"], 4096, cost["to"]]
    exact = profile["frames"][1]
    assert exact["per_element_bytes"] == pytest.approx(4, rel=0.01) and 0 < exact["base_bytes"] < 64
    assert [ranks for ranks, _ in exact["sum_growth"]] == [2, 4, 8]
    assert all(factor == 1 for _, factor in exact["sum_growth"])
    assert profile["conditions"] == {"ranks": 1, "threads": 1, "data": "bundled"}


def test_without_gradients_it_takes_the_accumulators_that_a_package_bundles(tmp_path, monkeypatch):
    """A wheel has datasets/accumulators alone."""
    (tmp_path / "accumulators").mkdir()
    shutil.copy(ROOT / "datasets/accumulators/resnet20_digits_residual_top1_step0225.npz", tmp_path / "accumulators")
    monkeypatch.setenv("DEEPREDUCE_DATASETS", str(tmp_path))
    profile = valid(json.loads(run("calibrate", "--plan", "index=all value=raw", "--sizes", "1024,4096", "--time", "0").stdout))
    assert profile["conditions"]["data"] == "bundled accumulators"
    assert profile["frames"][0]["per_element_bytes"] == pytest.approx(4, rel=0.01)


def test_both_languages_fit_alike(profile):
    for cost in profile["costs"]:
        fit = fit_affine([(n, ns) for n, ns, _ in cost["samples"]])
        figures = [cost[key] for key in ("floor_ns", "base_ns", "per_element_ns", "r2")]
        assert figures == pytest.approx(list(fit), rel=1e-6, abs=1e-9)


def test_a_cost_of_one_size_is_in_proportion():
    assert fit_affine([(2**20, 5e6)]).at(2**22) == fit_affine([(2**20, 5e6), (2**20, 6e6)]).at(2**22) == 2e7


def test_supports_that_do_not_meet_make_larger_sums(tmp_path):
    for rank in range(2):
        gradient = numpy.zeros(8000, "f4")
        gradient[1000 * rank : 1000 * rank + 500] = 1
        numpy.save(tmp_path / f"rank{rank}.npy", gradient)
    data = [word for rank in range(2) for word in ("--data", tmp_path / f"rank{rank}.npy")]
    profile = valid(json.loads(run("calibrate", "--plan", "index=bitmap value=raw", "--sizes", "1.024e3", "--time", "0", *data).stdout))
    [[ranks, factor]] = profile["frames"][0]["sum_growth"]
    assert ranks == 2 and 1.2 < factor < 2  # twice the values, the same bitmap


@pytest.mark.parametrize("words, sentence", [
    (("--plan", "index=none_such"), "none_such"), (("--preset", "nobody"), "'nobody': no such name"),
    (("--sizes", "3"), "--sizes"), (("--data", "nowhere.npz"), "nowhere.npz"), (("--ranks", "0"), "--ranks"),
    (("--sizes", "1024", "--plan", PLAN, "--time", "0", "-o", "nowhere/p.json"), "nowhere/p.json"),
])  # fmt: skip
def test_misuse_is_named(words, sentence):
    assert sentence in run("calibrate", *words, status=2).stderr.decode()


def command(*words, **variables):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "bindings/python"), "OMP_NUM_THREADS": "1", **variables}
    return {"args": [sys.executable, "-m", "deepreduce", "calibrate", *map(str, words)], "env": environment}


LINK = ("--link", "--overlap", "--link-time", "0.01", "--bytes", "1024,16384,65536")


def check_ranks(file, transport):
    profile = valid(json.loads(file.read_text("utf-8")))
    [link] = profile["links"]
    assert (link["transport"], link["ranks"], link["ranks_per_host"]) == (transport, 2, 2)
    assert profile["conditions"]["ranks"] == link["ranks_per_machine"] == 2 and len(profile["costs"]) == 3
    assert link["message_ns"] >= 0 and 0 < link["hop_ns"] < 1e9 and link["rest_ns"] >= 50e3
    assert link["transfer"]["from"] == link["spread"]["from"] == 1024
    for name in ("allreduce", "allgather"):
        assert 1 <= len(link[name]["samples"]) and link[name]["from"] == 1024
    assert math.isfinite(profile["overlap"]["slowdown"])
    return profile


def test_an_output_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path):
    begin = time.monotonic()
    for output, words in ((tmp_path, "directory"), (tmp_path / "none" / "p.json", "No such file")):
        done = run("calibrate", "--time", "3600", "-o", output, status=2)
        assert words in done.stderr.decode() and words.lower() in calibrating._refusal(str(output)).lower()
    assert time.monotonic() - begin < 240
    assert calibrating._refusal("") == calibrating._refusal(str(tmp_path / "p.json")) == calibrating._refusal("p.json") == ""
    assert "'nan' is not a number" in run("calibrate", "--time", "nan", status=2).stderr.decode()


def test_too_few_data_for_8_ranks_give_no_growth_of_sums(tmp_path):
    words = ("--plan", PLAN, "--sizes", "4096", "--time", "0")
    few = run("calibrate", *words, "--data", write_npy(tmp_path / "few.npy", [float(i % 91) for i in range(8000)]))
    assert json.loads(few.stdout)["frames"][0]["sum_growth"] == [] and "8000 elements are too few" in few.stderr.decode()
    many = run("calibrate", *words, "--data", write_npy(tmp_path / "many.npy", [math.sin(i * i) for i in range(16000)]))
    assert [ranks for ranks, _ in json.loads(many.stdout)["frames"][0]["sum_growth"]] == [2, 4, 8]


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is missing: pip install torch")
def test_after_an_error_no_thread_of_gloo_is_left_to_abort_the_process():
    """One that frees a tensor while the interpreter ends wants its lock: "terminate called without an active exception"."""
    code = """
import os, torch.distributed as dist
from deepreduce import ArgumentError, calibrating
threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()
try:
    calibrating.main(["--link"])
except ArgumentError as error:
    assert "at least 2 ranks" in str(error)
    print(before == threads(), dist.is_initialized())
"""
    words = command(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), GLOO_SOCKET_IFNAME="lo")
    words["env"] = {k: v for k, v in words["env"].items() if not k.startswith(("PMI", "OMPI", "MPI"))}
    done = subprocess.run([sys.executable, "-c", code], env=words["env"], capture_output=True, text=True, timeout=240)
    assert done.stdout.split() == ["True", "False"], done.stderr


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is missing: pip install torch")
def test_ranks_over_gloo_write_one_profile_and_add_a_link_to_it(tmp_path):
    file = tmp_path / "profile.json"

    def start(*words):
        port = str(free_port())
        started = [
            subprocess.Popen(**command(*words, "-o", file, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                                       MASTER_PORT=port, GLOO_SOCKET_IFNAME="lo"), cwd=tmp_path)
            for rank in range(2)
        ]  # fmt: skip
        try:
            assert [process.wait(120) for process in started] == [0, 0]
        finally:
            for process in started:
                process.kill()

    start(*SMALL, *LINK)
    profile = check_ranks(file, "gloo")
    start("--costs", file, "--link", "--link-time", "0.01", "--bytes", "4096")
    again = valid(json.loads(file.read_text("utf-8")))
    assert again["costs"] == profile["costs"] and [link["allreduce"]["to"] for link in again["links"]] == [4096]


@pytest.mark.skipif(not importlib.util.find_spec("mpi4py"), reason="mpi4py is missing: pip install mpi4py mpich")
def test_ranks_over_mpi_write_one_profile(tmp_path):
    mpiexec = shutil.which("mpiexec", path=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
    if not mpiexec:
        pytest.skip("no mpiexec")
    call = command(*SMALL, *LINK, "-o", tmp_path / "profile.json")
    done = subprocess.run([mpiexec, "-n", "2", *call["args"]], env=call["env"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    check_ranks(tmp_path / "profile.json", "mpi")


def test_a_transform_has_costs_and_no_frames(tmp_path):
    lowrank = "transform=lowrank(rank=4) feedback=residual"
    profile = valid(json.loads(run("calibrate", "--plan", lowrank, "--plan", PLAN, "--sizes", "1024,16384", "--time", "0").stdout))
    assert [cost["operation"] for cost in profile["costs"] if cost["plan"] == lowrank] == ["encode", "merge", "decode"]
    assert [frame["plan"] for frame in profile["frames"]] == [PLAN]
    errors = {error["plan"]: error["error"] for error in profile["errors"]}
    assert set(errors) == {lowrank, PLAN} and all(0 < e < 1 for e in errors.values())


def test_errors_are_of_the_datas_tensors_by_their_elements(tmp_path):
    random = numpy.random.default_rng(3)
    large, small = (random.standard_normal((n, 100)).astype("f4") for n in (300, 20))
    left, right = random.standard_normal((200, 2)), random.standard_normal((2, 150))
    numpy.savez(tmp_path / "g.npz", large=1000 * large, small=small, low=(left @ right).astype("f4"), tiny=numpy.ones(10, "f4"))
    plan, exact, low = "sparsify=topr(ratio=0.1) index=golomb value=raw", "index=golomb value=raw", "transform=lowrank(rank=2)"
    plans = [word for plan_text in (plan, exact, low) for word in ("--plan", plan_text)]
    profile = valid(json.loads(run("calibrate", *plans, "--data", tmp_path / "g.npz", "--sizes", "1024", "--time", "0").stdout))
    errors = {error["plan"]: error["error"] for error in profile["errors"]}

    def of_top(g):
        squares = numpy.sort(g.reshape(-1).astype("f8") ** 2)
        return squares[: len(squares) - len(squares) // 10].sum() / squares.sum()

    tensors = (1000 * large, small, (left @ right).astype("f4"))
    expected = sum(g.size * of_top(g) for g in tensors) / sum(g.size for g in tensors)
    assert errors[plan] == pytest.approx(expected**0.5, rel=1e-3) and errors[exact] == 0
    # A matrix of rank 2 arrives whole by factors of rank 2; the others do not.
    assert (1 - 30_000 / 62_000) ** 0.5 * 0.9 < errors[low] < (32_000 / 62_000) ** 0.5


def test_the_error_of_a_transform_is_that_of_matrices(tmp_path):
    """Of vectors it was 0, by which predict recommended it for matrices."""
    random = numpy.random.default_rng(3)
    numpy.save(tmp_path / "v.npy", random.standard_normal(5000).astype("f4"))
    matrix = random.standard_normal((60, 70)).astype("f4")
    numpy.savez(tmp_path / "m.npz", m=matrix)
    numpy.savez(tmp_path / "mv.npz", m=matrix, v=random.standard_normal(5000).astype("f4"))
    low, exact = "transform=lowrank(rank=2)", "index=all value=raw"
    errors = {}
    for file in ("v.npy", "m.npz", "mv.npz"):
        words = ("--plan", low, "--plan", exact, "--data", tmp_path / file, "--sizes", "1024", "--time", "0", "-o", tmp_path / "profile.json")
        printed = run("calibrate", *words).stderr.decode()
        errors[file] = {error["plan"]: error["error"] for error in valid(json.loads((tmp_path / "profile.json").read_text()))["errors"]}
        assert ("no matrix of 1,000 elements or more" in printed and "errors of 1 of 2 plans are unknown" in printed) == (file == "v.npy")
    assert errors["v.npy"] == {exact: 0} and errors["m.npz"] == errors["mv.npz"] and 0.5 < errors["m.npz"][low] < 1


@pytest.mark.parametrize("value", [numpy.nan, numpy.inf])
def test_errors_of_data_that_are_not_finite_are_unknown(value, tmp_path):
    """They were 0 for a NaN, by which the smallest plan was recommended, and for an infinity null, which predict refuses."""
    g = numpy.random.default_rng(3).standard_normal(5000).astype("f4")
    g[7] = value
    numpy.save(tmp_path / "g.npy", g)
    plan, exact = "sparsify=topr(ratio=0.1) index=golomb value=raw", "index=all value=raw"
    words = ("--plan", plan, "--plan", exact, "--data", tmp_path / "g.npy", "--sizes", "1024", "--time", "0", "-o", tmp_path / "profile.json")
    printed = run("calibrate", *words).stderr.decode()
    profile = valid(json.loads((tmp_path / "profile.json").read_text()))
    assert profile["errors"] == [{"plan": exact, "error": 0}] and "errors of 1 of 2 plans are unknown" in printed
    report = run("predict", tmp_path / "profile.json", "--sizes", "1M", "--link", "1Gb/s", "--ranks", 2, "--format", "json").stdout
    assert {row["candidate"]: row["relative_error"] for row in json.loads(report)["rows"]}[plan] is None


def test_without_ranks_it_says_how_to_start_them():
    words = command("--link")
    words["env"] = {k: v for k, v in words["env"].items() if not k.startswith(("PMI", "OMPI", "RANK", "WORLD"))}
    done = subprocess.run(**words, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2 and "mpiexec -n 2 deepreduce calibrate --link" in done.stderr


def test_a_rank_that_cannot_measure_is_an_error_on_all_ranks(monkeypatch):
    """It ended alone, and the others with a traceback of gloo."""

    class Two(Ranks):
        rank, ranks = 1, 2

        def gather(self, value):
            return [{}, value]

    monkeypatch.setenv("DEEPREDUCE_TOOL", "/no/such/tool")
    with pytest.raises(Error, match=r"calibrate: rank 1: no native tool `deepreduce`; tried:\n  /no/such/tool"):
        calibrating.measure_costs(Two(), [])


def test_a_device_in_a_folder_of_others_can_be_the_output(monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path == os.devnull)
    assert calibrating._refusal(os.devnull) == ""
    monkeypatch.setattr(os, "access", lambda path, mode: path == os.path.dirname(os.devnull))
    assert calibrating._refusal(os.devnull) == f"{os.devnull}: cannot be written: Permission denied"


def test_what_a_busy_machine_leaves_behind_is_told():
    def disturbance(r2, spread, link_r2=1.0):
        cost = {"plan": "p", "operation": "encode", "r2": r2, "samples": [[1000, 10.0, 3.0], [2000, 20.0, 20 * spread]]}
        link = {"ranks": 2, "allreduce": {"r2": link_r2, "samples": [[1024, 10.0, 1.0]]}}
        return calibrating.disturbance({"costs": [cost], "links": [link]})

    assert disturbance(0.95, 0.3) == ""
    assert disturbance(0.5, 0.1).startswith("r2 is below 0.9 of 1 of 2 fits (least 0.50: encode of 'p'). A machine")
    assert disturbance(1.0, 0.1, 0.8).startswith("r2 is below 0.9 of 1 of 2 fits (least 0.80: allreduce of the link)")
    assert disturbance(1.0, 0.5).startswith("quartiles are more than 30 % of the median apart in 1 of 3 samples (most 50 %: encode of 'p', 2000)")


def test_costs_of_ranks_are_medians():
    def of(ns):
        samples = [[1000, ns, 1], [2000, 2 * ns, 1], [4000, 4 * ns, 1]]
        return {"costs": [{"plan": "p", "operation": "encode", "samples": samples}], "frames": []}

    [cost] = calibrating.pooled([of(10), of(50), of(20)])["costs"]
    assert [sample[1] for sample in cost["samples"]] == [20, 40, 80]
    assert cost["per_element_ns"] == pytest.approx(0.02) and cost["r2"] == pytest.approx(1)


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "other"}', "[" * 100_000, *(f'{{"schema": "{calibrating.SCHEMA}", "links": {x}}}' for x in ("5", "[5]"))],
                         ids=lambda text: text[:60])  # fmt: skip
def test_what_is_no_profile_is_refused(text, tmp_path):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ArgumentError, match="p.json: not a profile"):
        calibrating.read_profile(str(tmp_path / "p.json"))


def test_a_link_takes_the_place_of_its_like_alone(monkeypatch):
    """A link of another writer may lack ranks_per_host, which predict reads as not known."""
    link = {"transport": "gloo", "ranks": 2, "ranks_per_host": 1}
    monkeypatch.setattr(calibrating, "measure_link", lambda *_: dict(link))
    profile = {"links": [{"transport": "gloo", "ranks": 2}, {**link, "old": True}]}
    calibrating.add_link(profile, None)
    assert profile["links"] == [{"transport": "gloo", "ranks": 2}, link]


def test_the_bucket_of_a_shaped_link_is_found_and_a_plain_link_has_none():
    sizes, rate, bucket = [1 << power for power in range(10, 23, 2)], 12.5e6 / 1e9, 28_000  # bytes a ns
    shaped = [(size, 80e3 + max(0, size - bucket) / rate, 0.0) for size in sizes]
    burst, fast = burst_of(shaped)
    assert burst == pytest.approx(bucket, rel=0.02) and fast > 8e9 * 100 * rate
    assert burst_of([(size, 80e3 + size / rate, 0.0) for size in sizes]) == (0.0, 0.0)
    assert burst_of(shaped[:2]) == (0.0, 0.0)


def test_a_rate_is_what_most_sizes_have():
    samples = [(size, 50e3 + 8 * size, 0.0) for size in (1 << 10, 1 << 16, 1 << 18, 1 << 20)] + [(1 << 22, 100e6, 0.0)]
    assert _rate(samples, 3) == pytest.approx(3e9)  # the largest collapsed
    assert _rate(samples[:2], 1) == pytest.approx(1e9)
