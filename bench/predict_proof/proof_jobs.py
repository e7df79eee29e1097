"""The jobs of ranks for the proof of predictions, over gloo: they calibrate, compute the gradients of a model, and train in rounds."""

import time
from typing import Any, Callable, Dict


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


def rounds(job: Dict[str, Any]) -> Dict[str, Any]:
    """Outer loops of a network of three layers, of job["widths"], that learns to copy: {"rows": [{"plan", "every",
    "local": seconds of steps without an exchange, "seconds": of rounds, "waited": those in their exchange, "sent": bytes}]}. The first round of
    each loop, which compares terms, is left out."""
    import torch
    import torch.distributed as dist

    from deepreduce.outer import Outer

    def trainee() -> Any:
        torch.manual_seed(job["seed"])
        layers: Any = []
        for inputs, outputs in zip(job["widths"], job["widths"][1:]):
            layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers[:-1])
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    generator = torch.Generator().manual_seed(dist.get_rank())

    def train(model: Any, inner: Any) -> None:
        data = torch.randn(job["batch"], job["widths"][0], generator=generator)
        torch.nn.functional.mse_loss(model(data), data[:, : job["widths"][-1]]).backward()
        inner.step()
        inner.zero_grad()

    def timed(call: Callable[[], None]) -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    def loop(plan: Any, every: int) -> Dict[str, Any]:
        model, inner = trainee()
        dist.barrier()
        local = [timed(lambda: train(model, inner)) for _ in range(job["local"] + 2)][2:]
        model, inner = trainee()
        outer = Outer(model, plan, every=every)

        def one_round() -> None:
            while True:
                train(model, inner)
                if outer.step():
                    return

        one_round()
        seconds, waited = [], []
        for _ in range(job["rounds"]):
            seconds.append(timed(one_round))
            last: Any = outer.info.last
            waited.append(last.waited)
        return {"plan": plan, "every": every, "local": local, "seconds": seconds, "waited": waited, "sent": last.sent}

    return {"rows": [loop(plan, every) for plan in job["plans"] for every in job["every"]]}
