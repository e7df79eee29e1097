"""One rank: reads jobs as lines of json on stdin, writes answers as lines to stdout. rank_pool.py starts it.

python -m bench.train.rank_worker RANK RANKS tcp://ADDRESS:PORT
"""

import ctypes
import json
import os
import signal
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from bench.predict_proof import proof_jobs
from bench.train import changing_links, methods, one_run, outer_worker, tuned_run, which_plan

KINDS = {
    "quality": one_run.quality,
    "times": one_run.times,
    "calibrate": proof_jobs.calibrate,
    "gradients": proof_jobs.gradients,
    "rounds": proof_jobs.rounds,
    "control": changing_links.one_run,
    "outer": outer_worker.work,
    "tuned": tuned_run.train,
    "which": which_plan.train,
}

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a rank does not outlive who started it
    rank, ranks, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=address, rank=rank, world_size=ranks, timeout=timedelta(seconds=methods.WAIT)
    )
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = KINDS[job["kind"]](job)
            one_run.forget()
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"rank {rank}: {type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
        if "error" in answer:
            sys.stdout.flush()
            os._exit(1)  # the group is not to be trusted any more


if __name__ == "__main__":
    main()
