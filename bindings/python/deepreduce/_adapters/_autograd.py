"""What torch's autograd reports of a backward in progress, by two functions that have no public name: tried with torch 2.13."""

from __future__ import annotations

from typing import Any, Callable

import torch

from ..errors import Unsupported


def graph_task() -> int:
    """The number of the backward that runs in this thread; -1: none."""
    try:
        number: int = torch._C._current_graph_task_id()
    except AttributeError:
        raise _missing("torch._C._current_graph_task_id") from None
    return number


def after_backward(callback: Callable[[], Any]) -> None:
    """Calls the function when the backward in progress has ended without an exception."""
    try:
        queue = torch.autograd.Variable._execution_engine.queue_callback
    except AttributeError:
        raise _missing("torch.autograd.Variable._execution_engine.queue_callback") from None
    queue(callback)


def _missing(name: str) -> Unsupported:
    return Unsupported(f"torch {torch.__version__} has no {name}, by which deepreduce follows a backward: use torch 2.13")
