"""deepreduce.flower over Flower's own network: a SuperLink and two SuperNodes on this machine, each round a process of a
client. Its state, residuals among it, is the SuperNode's meanwhile."""

import io
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

import flower_network_app as app
import numpy as np
import pytest

from deepreduce.flower import LocalGrid

HERE, SCRIPTS = pathlib.Path(__file__).resolve().parent, pathlib.Path(sys.executable).parent
SECONDS = 240
PROJECT = """
[project]
name = "network"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "nobody"
[tool.flwr.app.components]
serverapp = "flower_network_app:server"
clientapp = "flower_network_app:client"
[tool.flwr.app.config]
port = {port}
"""
LINK = """
[superlink]
default = "here"
[superlink.here]
address = "127.0.0.1:{port}"
insecure = true
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture
def start(tmp_path):
    """Starts Flower's programs, which end with the test."""
    environment = {**os.environ, "HOME": str(tmp_path), "FLWR_HOME": str(tmp_path / "home"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PATH"] = f"{SCRIPTS}{os.pathsep}{environment['PATH']}"  # they start others by name
    running = []

    def started(*words, **options):
        log = open(tmp_path / f"log{len(running)}", "w")  # noqa: SIM115
        running.append(subprocess.Popen(words, env=environment, stderr=subprocess.STDOUT, start_new_session=True, **{"stdout": log, **options}))
        return running[-1]

    yield started
    for process in reversed(running):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    for process in running:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def test_over_the_network_models_are_those_of_one_process(start, tmp_path):
    port, folder = free_port(), tmp_path / "app"
    folder.mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(LINK.format(port=port))
    shutil.copy(HERE / "flower_network_app.py", folder)
    link = start(
        "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port), "--disable-runtime-dependency-installation",
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in link.stdout:
        if "running on" in line:
            break
    assert link.poll() is None
    for i in range(2):
        start("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port", str(free_port()), "--node-config", f"part={i}")
    with socket.create_server(("127.0.0.1", 0)) as answers:
        answers.settimeout(SECONDS)
        (folder / "pyproject.toml").write_text(PROJECT.format(port=answers.getsockname()[1]))
        run = start("flwr", "run", str(folder), "here")
        try:
            assert run.wait(SECONDS) == 0
            there, _ = answers.accept()
        except (AssertionError, TimeoutError):
            pytest.fail("\n----\n".join(path.read_text()[-3000:] for path in tmp_path.glob("log*")))
        with there:
            received = np.load(io.BytesIO(b"".join(iter(lambda: there.recv(1 << 16), b""))))
    grid = LocalGrid(app.client, 2)
    for i, context in enumerate(grid.contexts.values()):
        context.node_config["part"] = i
    model, traffic = app.federated(grid)
    assert received["model"].tobytes() == model.tobytes() and np.any(model)
    assert tuple(received["traffic"]) == tuple(traffic) and traffic.up < traffic.dense_up / 10
