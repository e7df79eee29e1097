"""deepreduce.torch: compressed gradients for torch.distributed. Imported on request, so that the package needs no torch.

    hook = deepreduce.torch.DDPHook("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=log_quant")
    hook.register(ddp_model)                      # the training loop does not change

DDPHook        gradients of DistributedDataParallel
ReduceScatter  gradients of FSDP2 (fully_shard)
AllReduce      tensors of a loop without either; all_reduce does it once
load_checkpoint  loads residuals from a checkpoint of torch.distributed.checkpoint that any number of ranks saved
state_for_new_rank  the state for a rank that has none, when a training resumes with more ranks
record         writes when a model's gradients become ready, for `deepreduce predict` and `plan`; see Recording
MissingRank, ExchangeError  the errors of a failed exchange, raised on all remaining ranks. PeerError and CorruptFrame also
               name the rank
OutOfStep      raised on all ranks if one is at another step, or did not complete a step that others completed

All work runs on the caller's thread. A step encodes and starts one asynchronous collective. At the end of backward it
waits, with a deadline, and merges in rank order. Tested over gloo, on the CPU. On a GPU, over NCCL, frames are made and merged
in its memory where the plan has a path there; otherwise gradients are copied to the CPU, encoded there, and copied back
(docs/PYTORCH.md).
"""

from ..recording._model_times import Recording, record
from ._all_reduce import AllReduce, all_reduce
from ._checkpoint import load_checkpoint
from ._ddp import DDPHook, _hook
from ..errors import OutOfStep
from ._engine import ExchangeError, MissingRank, Stats, Step
from ._rules import OnePlan, Plans
from ._saved import state_for_new_rank
from ._shards import ReduceScatter

__all__ = [
    "AllReduce",
    "DDPHook",
    "ExchangeError",
    "MissingRank",
    "OnePlan",
    "OutOfStep",
    "Plans",
    "Recording",
    "ReduceScatter",
    "Stats",
    "Step",
    "all_reduce",
    "load_checkpoint",
    "record",
    "state_for_new_rank",
]

# Pickles (of a model with its hook, say) and tracebacks name the public module, not the file.
for _public in (AllReduce, DDPHook, _hook, ExchangeError, MissingRank, ReduceScatter, Stats, Step):
    _public.__module__ = __name__
del _public
