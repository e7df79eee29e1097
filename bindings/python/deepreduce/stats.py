"""Numbers of the hooks for loggers: TensorBoard, Weights & Biases, MLflow, Lightning's and Accelerate's.

    hook = deepreduce.torch.DDPHook("recommended").register(ddp)
    for step, batch in enumerate(loader):
        …
        if rank == 0 and step % 50 == 0:
            deepreduce.stats.log(writer, hook, step)
"""

from __future__ import annotations

from typing import Callable, Dict, Mapping, Optional, Protocol, Union

from .errors import ArgumentError


class Measured(Protocol):
    """A hook of deepreduce.torch, or another object with such a method."""

    def metrics(self) -> Dict[str, float]: ...


def scalars(hook: Union[Measured, Mapping[str, float]], prefix: str = "deepreduce/") -> Dict[str, float]:
    """{name: number} of the last step, in one flat dict: bytes sent, times smaller, milliseconds, the norm of the residuals.

    hook    DDPHook, AllReduce or ReduceScatter of deepreduce.torch, whose metrics() describes the names; or such a dict
    prefix  goes before each name: loggers show names with a common "prefix/" together

    Raises ArgumentError for other objects, and within a step. It reads the residuals, so call it every so many steps.

    >>> deepreduce.stats.scalars({"bytes_sent": 2068, "ratio": 193.4})
    {'deepreduce/bytes_sent': 2068.0, 'deepreduce/ratio': 193.4}
    """
    metrics = getattr(hook, "metrics", None)
    if isinstance(hook, Mapping):
        found: Mapping[str, float] = hook
    elif callable(metrics):
        found = metrics()
    else:
        raise ArgumentError(f"the hook is a {type(hook).__name__}, which has no metrics()")
    return {prefix + name: float(value) for name, value in found.items()}


def log(writer: object, hook: Union[Measured, Mapping[str, float]], step: Optional[int] = None, prefix: str = "deepreduce/") -> None:
    """Writes the numbers of scalars() to a logger.

    writer  an object with one of these methods, looked for in this order: add_scalar(name, value, step) of TensorBoard;
            log_metrics(dict, step=…) of mlflow and Lightning's loggers; log(dict, step=…) of wandb and Accelerator
    step    None: the number of steps of the hook

    The numbers are those of this rank; the hooks send nothing for them, so one rank may log alone. Raises ArgumentError.

    >>> class Writer:
    ...     def add_scalar(self, name, value, step):
    ...         print(step, name, value)
    >>> deepreduce.stats.log(Writer(), {"bytes_sent": 2068}, 50)
    50 deepreduce/bytes_sent 2068.0
    """
    found = scalars(hook, prefix)
    at = int(found.get(prefix + "steps", 0)) if step is None else step
    add: Optional[Callable[[str, float, int], object]] = getattr(writer, "add_scalar", None)
    if add is not None:
        for name, value in found.items():
            add(name, value, at)
        return
    for method in ("log_metrics", "log"):
        write: Optional[Callable[..., object]] = getattr(writer, method, None)
        if write is not None:
            write(found, step=at)
            return
    raise ArgumentError(f"the writer is a {type(writer).__name__}, which has none of add_scalar, log_metrics and log")
