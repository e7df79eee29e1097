"""What ranks do for the proof of predictions, over MPI: they calibrate the link. `mpiexec -n N python mpi_job.py JOB`

JOB is a file of json; rank 0 writes its answer to JOB.out. A rank ends without MPI_Finalize, which hangs over TCP
(MPICH 4.0).
"""

import json
import os
import pathlib
import sys
from typing import Any, Dict

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bindings" / "python"))

from deepreduce import calibrating  # noqa: E402
from deepreduce.calibrating._link_costs import measure_overlap  # noqa: E402
from deepreduce.calibrating._rank_links import MpiRanks  # noqa: E402


def calibrate(ranks: MpiRanks, job: Dict[str, Any]) -> Dict[str, Any]:
    """job: profile, which gets the link; bytes, link_time"""
    profile: Dict[str, Any] = job["profile"]
    calibrating.add_link(profile, ranks, job["bytes"], job["link_time"])
    profile["overlap"] = measure_overlap(ranks, 10 * job["link_time"])
    return profile


def main() -> None:
    path = pathlib.Path(sys.argv[1])
    job, ranks = json.loads(path.read_text("utf-8")), MpiRanks()
    answer = calibrate(ranks, job)
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
