"""Lets torch.distributed.destroy_process_group end its group, where it is imported before init_process_group.

The defaults of torch.distributed.nn's functions are the process group that is there when it is imported, and the first
step of an optimizer imports it: that group and its threads then live until the interpreter ends, where a thread that still
frees a tensor aborts the process ("terminate called without an active exception"; torch 2.13). So it is imported early.
"""

import torch.distributed as dist

if dist.is_available() and not dist.is_initialized():
    import torch.distributed.nn  # noqa: F401
