"""The jobs of ranks for the proof of predictions, over gloo: they calibrate, and compute the gradients of a model."""

from typing import Any, Dict


def calibrate(job: Dict[str, Any]) -> Dict[str, Any]:
    """{"profile": …}, on rank 0. job: plans, sizes, time of the costs and perhaps data, or a profile in their place; bytes, link_time."""
    from deepreduce import calibrating
    from deepreduce.calibrating._link_costs import measure_overlap
    from deepreduce.calibrating._rank_links import GlooRanks

    ranks = GlooRanks()
    profile = job.get("profile")
    if profile is None:
        words = [word for plan in job["plans"] for word in ("--plan", plan)]
        words += ["--evict", str(job.get("evict", 8))]
        words += [word for path in job.get("data", []) for word in ("--data", path)]
        profile = calibrating.measure_costs(
            ranks, [*words, "--sizes", ",".join(map(str, job["sizes"])), "--time", str(job["time"])]
        )
    else:
        calibrating.add_link(profile, ranks, job["bytes"], job["link_time"])
        profile["overlap"] = measure_overlap(ranks, 10 * job["link_time"])
    return {"profile": profile if ranks.rank == 0 else None}


def gradients(job: Dict[str, Any]) -> Dict[str, Any]:
    """{"tensors": their number}, and in the file job["path"] what rank 0 has of its own in step job["steps"] of a training by
    dense f32: `compare` reads it."""
    import numpy

    from bench.train.one_run import Trainee
    from deepreduce.recording import gradients as taken

    trainee = Trainee(job["model"], "dense", job["seed"], job["steps"])
    for _ in range(job["steps"] - 1):
        trainee.train()
    with trainee.module.no_sync():
        trainee.train()
    arrays: Dict[str, Any] = taken(list(trainee.module.module.named_parameters()))
    if trainee.rank == 0:
        numpy.savez(job["path"], **arrays)
    return {"tensors": len(arrays)}
