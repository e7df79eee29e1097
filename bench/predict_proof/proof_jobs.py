"""What ranks do for the proof of predictions, over gloo: they calibrate, and record a model."""

import pathlib
import tempfile
from typing import Any, Dict

import torch.distributed as dist

from bench.predict_proof.proof_grid import RECORDED
from bench.train.one_run import Trainee

SKIPPED = 6  # steps of a recording


def calibrate(job: Dict[str, Any]) -> Dict[str, Any]:
    """{"profile": …}, on rank 0. job: plans, sizes, time of the costs, or a profile in their place; bytes, link_time."""
    from deepreduce import calibrating
    from deepreduce._link_costs import measure_overlap
    from deepreduce._rank_links import GlooRanks

    ranks = GlooRanks()
    profile = job.get("profile")
    if profile is None:
        words = [word for plan in job["plans"] for word in ("--plan", plan)]
        profile = calibrating.measure_costs(
            ranks, [*words, "--sizes", ",".join(map(str, job["sizes"])), "--time", str(job["time"])]
        )
    else:
        calibrating.add_link(profile, ranks, job["bytes"], job["link_time"])
        profile["overlap"] = measure_overlap(ranks, 10 * job["link_time"])
    return {"profile": profile if ranks.rank == 0 else None}


def record(job: Dict[str, Any]) -> Dict[str, Any]:
    """{"model": …}, on rank 0: all ranks train at the same time, but nothing is exchanged, so that backward is alone."""
    import json

    import deepreduce.torch

    trainee = Trainee(job["model"], "local", 1, RECORDED)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.json")
        settings = deepreduce.torch.Recording(path, name=job["model"], steps=RECORDED - SKIPPED, skip=SKIPPED)
        recorder = deepreduce.torch.record(trainee.module, settings)
        for _ in range(RECORDED):
            trainee.train()
        recorder.finish()
        return {"model": json.loads(path.read_text("utf-8")) if dist.get_rank() == 0 else None}
