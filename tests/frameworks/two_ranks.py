"""Runs a program on two ranks, as torchrun does."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest


def run(program, *arguments, timeout=300):
    """What the ranks printed. A rank that fails is an error with what both printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared.update(GLOO_SOCKET_IFNAME="lo", NODE_RANK="0", GROUP_RANK="0", OMP_NUM_THREADS="1")
    words = [sys.executable, "-B", str(program), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    ranks = [
        subprocess.Popen(words, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **pipes)
        for rank in range(2)
    ]
    try:
        printed = [rank.communicate(timeout=timeout)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), "\n----\n".join(output[-6000:] for output in printed)
    return printed


def trainings(program):
    """A fixture: runs a program whose argument is a folder, where each rank r writes NAMEr.npy after each training.
    {name of a training: parameters of each rank}"""

    @pytest.fixture(scope="module")
    def trained(tmp_path_factory):
        folder = tmp_path_factory.mktemp(program.stem)
        run(program, folder)
        names = {path.stem[:-1] for path in folder.glob("*.npy")}
        return {name: [np.load(folder / f"{name}{rank}.npy") for rank in range(2)] for name in names}

    return trained
