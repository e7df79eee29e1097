"""What test_one_law.py runs on each rank under mpiexec: OUT is the argument, a file's name with {rank}. It gets an npz of what this rank
found by NamedAllReduce: of each case the means of all steps, and the words of errors."""

import sys

import numpy as np
from one_law_cases import CASES, NAN, STEP

from deepreduce.mpi import MPI, NamedAllReduce

try:
    import torch
except ImportError:  # numpy has no bfloat16
    torch = None

RANK = MPI.COMM_WORLD.Get_rank()


def array_of(x, dtype):
    return torch.tensor(x, dtype=torch.bfloat16) if dtype == "bfloat16" else np.array(x, dtype)


class Named:
    def __init__(self, case):
        self.case = case
        self.x = {name: array_of(array, case.tensors[name][1]) for name, array in case.gradients(0, RANK).items()}
        self.mean = NamedAllReduce(self.x, case.plan, dense_below=case.below, flat=case.flat, timeout=30)

    def __call__(self, step, number=None):
        for name, array in self.case.gradients(step, RANK).items():
            self.x[name][...] = array_of(array, self.case.tensors[name][1])
        return self.mean(step if number is None else number)

    def words(self, *arguments):
        try:
            self(*arguments)
        except Exception as error:
            return f"{error.rank} {type(error).__name__}: {error}"
        return "no error"


def main():
    found = {}
    for label, case in CASES.items():
        if torch is None and any(dtype == "bfloat16" for _, dtype in case.tensors.values()):
            continue
        run = Named(case)
        for step in range(case.steps):
            for name, array in run(step).items():
                found[f"Named/{label}/{step}/{name}"] = np.array(array if isinstance(array, np.ndarray) else array.float(), np.float32)
    run = Named(NAN)
    run(0)
    found["Named/nan"] = run.words(1)
    run = Named(STEP)
    run(0)
    found["Named/step"] = run.words(1, 0 if RANK == 1 else 1)
    np.savez(sys.argv[1].format(rank=RANK), **found)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
