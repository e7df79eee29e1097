"""What ranks do for the proof of predictions, over MPI: they calibrate, or time exchanges. `mpiexec -n N python mpi_job.py JOB`

JOB is a file of json; rank 0 writes its answer to JOB.out. A rank ends without MPI_Finalize, which hangs over TCP (MPICH 4.0).
"""

import json
import os
import pathlib
import sys
import time
from typing import Any, Dict, List

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bindings" / "python"))

import numpy  # noqa: E402

from deepreduce import calibrating  # noqa: E402
from deepreduce._link_costs import measure_overlap  # noqa: E402
from deepreduce._rank_links import MpiRanks  # noqa: E402
from deepreduce.mpi import AllReduce  # noqa: E402

WARM_UP = 3
IDLE = 3e-3  # seconds: a shaped link's bucket fills, as it does while a step computes


def calibrate(ranks: MpiRanks, job: Dict[str, Any]) -> Dict[str, Any]:
    profile: Dict[str, Any] = job["profile"]
    calibrating.add_link(profile, ranks, job["bytes"], job["link_time"])
    profile["overlap"] = measure_overlap(ranks, 10 * job["link_time"])
    return profile


def exchange(ranks: MpiRanks, job: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Seconds of each round, the slowest rank's; plans take turns. job: elements, plans, rounds"""
    draw = numpy.random.default_rng([ranks.rank, 1])
    x = (draw.standard_normal(job["elements"]) ** 3).astype(numpy.float32)  # heavy tails, as gradients have
    means = {plan: AllReduce(x, plan, timeout=120) for plan in job["plans"]}
    seconds: Dict[str, List[float]] = {plan: [] for plan in means}
    for number in range(WARM_UP + job["rounds"]):
        for plan, mean in means.items():
            time.sleep(IDLE)
            ranks.barrier()
            begin = time.perf_counter()
            mean(number)
            took = time.perf_counter() - begin
            if number >= WARM_UP:
                seconds[plan].append(took)
    told = ranks.gather(seconds)
    sent = ranks.gather({plan: mean.exchange.info().sent for plan, mean in means.items()})
    return [
        {
            "plan": plan,
            "seconds": [max(each) for each in zip(*(rank[plan] for rank in told))],
            "sent": max(rank[plan] for rank in sent),
        }
        for plan in means
    ]


def main() -> None:
    path = pathlib.Path(sys.argv[1])
    job, ranks = json.loads(path.read_text("utf-8")), MpiRanks()
    answer = {"calibrate": calibrate, "exchange": exchange}[job["kind"]](ranks, job)
    if ranks.rank == 0:
        pathlib.Path(f"{path}.out").write_text(json.dumps(answer), "utf-8")
    ranks.barrier()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
