"""What deepreduce.outer.torchft promises, with torchft itself: replicas are processes, with a lighthouse of their own."""

import json
import pathlib
import subprocess
import sys

import pytest
from torchft.coordination import LighthouseServer

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = HERE / "torchft_replicas.py"
TOGETHER = ["torchft", "exact", "dense", "sparse", "nan", "unmerged", "saved", "restarted", "sizes", "overflow", "plans"]


def lighthouse(replicas):
    return LighthouseServer(
        bind="127.0.0.1:0", min_replicas=replicas, join_timeout_ms=2000, quorum_tick_ms=20, heartbeat_timeout_ms=1500
    )


def start(replica, replicas, folder, addresses, *words):
    log = open(folder / f"log.{replica}.{len(words)}", "w")
    command = [sys.executable, "-B", str(PROGRAM), str(replica), str(replicas), str(folder), json.dumps(addresses), *words]
    return subprocess.Popen(command, stdout=log, stderr=log)


def wait(processes, folder, timeout=240):
    try:
        for process in processes:
            process.wait(timeout)
    finally:
        for process in processes:
            process.kill()
    logs = "\n----\n".join(path.read_text()[-4000:] for path in sorted(folder.glob("log.*")))
    assert all(process.returncode in (0, -9) for process in processes), logs


def read(folder, scenario):
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{scenario}.*.json"))]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """{scenario: [what each of two replicas wrote]}"""
    folder, servers = tmp_path_factory.mktemp("torchft"), {name: lighthouse(2) for name in TOGETHER}
    addresses = {name: server.address() for name, server in servers.items()}
    wait([start(replica, 2, folder, addresses) for replica in range(2)], folder)
    for server in servers.values():
        server.shutdown()
    return {name: read(folder, name) for name in TOGETHER}


@pytest.mark.parametrize("name", ["exact", "dense"])
def test_an_exact_plan_trains_as_torchft_does(trained, name):
    ours, theirs = trained[name], trained["torchft"]
    assert [replica["weights"] for replica in ours] == [replica["weights"] for replica in theirs]
    assert [replica["losses"] for replica in ours] == [replica["losses"] for replica in theirs]
    assert ours[0]["commits"] == [True] * 6


def test_replicas_end_with_the_same_weights(trained):
    one, two = trained["sparse"]
    assert one["weights"] == two["weights"]
    assert one["losses"][-1] < 0.8 * one["losses"][0]


def test_bytes_are_those_that_were_sent(trained):
    one, two = trained["sparse"]
    assert one["sent"] == two["received"] and two["sent"] == one["received"]
    assert 0 < one["sent"] < 0.1 * 8 * 4 * len(one["weights"])
    exact = trained["exact"][0]["sent"]
    assert exact > 3 * 4 * len(one["weights"])  # six rounds of halves


def test_what_is_not_sent_is_in_the_residual(trained):
    for replica in trained["sparse"]:
        assert replica["missing"] < 1e-5


def test_residuals_are_saved(trained):
    assert all(replica["same"] for replica in trained["sparse"])


def test_a_replica_that_is_not_finite_is_refused_and_recovers(trained):
    one, two = trained["nan"]
    assert one["commits"] == [True] * 4 and two["commits"].count(False) == 1
    assert one["weights"] == two["weights"]
    assert one["missing"] < 1e-5


@pytest.mark.parametrize("name", ["unmerged", "saved", "restarted"])
def test_a_round_that_the_others_applied_is_not_sent_again(trained, name):
    """Nor where the replica saves its residuals before it recovers, or is started again with them."""
    one, two = trained[name]
    assert one["commits"].count(False) == 0 and two["commits"].count(False) == 1
    assert one["weights"] == two["weights"]
    assert one["missing"] < 1e-5 and two["missing"] < 1e-5


def test_a_size_that_the_plan_cannot_have_is_refused_by_all(trained):
    for replica in trained["sizes"]:
        assert replica["commits"] == [False, False, True, True]
        assert all("CorruptFrame: replica " in error and " bytes" in error for error in replica["errors"]), replica["errors"]
        assert len(replica["errors"]) == 2 and " announces -1 bytes" in replica["errors"][1]


def test_a_replica_that_cannot_encode_is_refused_by_all_with_tensor_and_reason(trained):
    one, two = trained["overflow"]
    assert one["commits"] == [True] * 5 and two["commits"].count(False) == 1
    assert "0.0.weight" in two["errors"][0] and "infinite" in two["errors"][0], two["errors"]
    assert one["weights"] == two["weights"]
    assert one["missing"] < 1e-5 and two["missing"] < 1e-5


def test_replicas_with_other_plans_do_not_commit(trained):
    for replica in trained["plans"]:
        assert replica["commits"] == [False, False] or replica["commits"] == [False]
        assert "max_retries" in replica["raised"]


def test_a_killed_replica_costs_a_round_and_may_return(tmp_path):
    server = lighthouse(2)
    addresses = {"killed": server.address()}
    processes = [start(replica, 3, tmp_path, addresses) for replica in range(3)]
    processes[2].wait(200)
    processes.append(start(2, 3, tmp_path, addresses, "again"))
    wait(processes, tmp_path)
    server.shutdown()
    one, two, again = read(tmp_path, "killed")
    for survivor in (one, two):
        assert False in survivor["commits"]
        assert survivor["missing"] < 1e-5
    assert one["weights"] == two["weights"]
    assert again["weights"] == one["weights"]
