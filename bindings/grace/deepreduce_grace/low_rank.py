"""PowerSGD under GRACE's contracts (Vogels et al. 2019): the library's Transform, whose factors are all-reduced."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type

import torch
import torch.distributed as dist
from torch import Tensor

from deepreduce.errors import ArgumentError, Error, Unsupported
from deepreduce.plan import as_plan
from .compressors import flat_on_host
from .contracts import Compressor, Ctx, Memory, SavedState
from .memories import ResidualMemory, without_infinities
from .meters import count
from .rank_wire import Wire

if TYPE_CHECKING:
    from deepreduce.transform import Transform


class Reduced(NamedTuple):
    """The mean over ranks, which `compress` computes: a matrix of rank r, or exact if factors would not be smaller."""

    shape: torch.Size
    dtype: torch.dtype
    mean: Tensor
    exact: bool


class PowerSGDCompressor(Compressor):
    """Means of rank `rank`. The factors of a name's last step begin its next step. `compress` reduces the factors, so its payload is empty,
    and the communicator must be allreduce. Tensors of one dimension are reduced uncompressed.

    rank                    of the factors, from 1
    use_memory, world_size  arguments of GRACE, without effect here: the mean is over all ranks
    group                   a process group; None: torch.distributed's own
    """

    linear, sparse, reduces = True, False, True

    def __init__(self, rank: int = 1, use_memory: bool = False, world_size: int = 1, *, seed: int = 0, group: Optional[dist.ProcessGroup] = None) -> None:
        super().__init__()
        try:
            self._kind: Type[Transform] = importlib.import_module("deepreduce.transform").Transform
        except ModuleNotFoundError:
            raise Unsupported("powersgd: this package has no deepreduce.transform (transform=lowrank)") from None
        self._plan, self._seed, self._group = as_plan(f"transform=lowrank(rank={rank})"), seed, group
        self._transforms: Dict[str, Transform] = {}
        self._loaded: Dict[str, Tensor] = {}
        self._sizes: Dict[str, int] = {}  # elements of first factors, on which all ranks have agreed

    def compress(self, tensor: Tensor, name: str) -> Tuple[List[Tensor], Reduced]:
        return self._run(tensor, name, None)

    def refuse(self, name: str, error: Exception) -> None:
        """Takes part in the other ranks' reduction, reports the error to them, and raises."""
        self._run(torch.empty(0), name, error)

    def _run(self, tensor: Tensor, name: str, error: Optional[Exception]) -> Tuple[List[Tensor], Reduced]:
        wire, transform, factor = Wire(self._group, name), None, torch.empty(0)
        # One element per rank is reduced with the tensor: 1 if the rank cannot begin, so that no rank waits.
        marks, mean = torch.zeros(wire.size), torch.empty(0)
        if error is None:
            try:
                x = flat_on_host(tensor, name).float().view(tensor.shape or (1,))
                found, mean = self._transform(name, x, wire.size), torch.empty_like(x)
                found.begin([x, marks], [mean, marks])
                transform, factor = found, torch.from_numpy(found.factor())
            except Exception as caught:  # of any kind: the other ranks wait
                if isinstance(caught, Error) and not str(caught).startswith(f"{name} "):
                    caught.args = (f"{name}: {caught}",)
                error = caught
        try:
            if name not in self._sizes:
                wire.agree_on(factor.numel(), error, "factors of powersgd, by an all-reduce", "numbers")
                self._sizes[name] = factor.numel()
            if error is not None:
                factor = torch.zeros(self._sizes[name])
                factor[wire.rank - wire.size] = 1
            sent = [self._reduce(factor, wire)]
            if factor[-wire.size :].any():
                wire.raise_failure(error)
            assert transform is not None
            while not transform.next(1 / wire.size):
                sent.append(self._reduce(torch.from_numpy(transform.factor()), wire))
        except BaseException:
            if transform is not None:
                transform.cancel()
            raise
        count(sent, tensor)
        exact = transform.info.matrices == 0
        return [], Reduced(tensor.shape, tensor.dtype, mean.to(tensor.device), exact)

    def _reduce(self, factor: Tensor, wire: Wire) -> Tensor:
        """The sum over ranks, in place."""
        moved = factor.to(wire.device)
        wire.all_reduce(moved)
        if moved is not factor:
            factor.copy_(moved)
        return factor

    def _transform(self, name: str, x: Tensor, ranks: int) -> Transform:
        shapes = [tuple(x.shape), (ranks,)]
        transform = self._transforms.get(name)
        if transform is None:
            transform = self._kind(shapes, self._plan, seed=self._seed)
            if name in self._loaded:
                transform.load_state_dict({"state": self._loaded.pop(name).cpu().numpy()})
            self._transforms[name] = transform
        if transform.shapes != shapes:
            raise ArgumentError(
                f"{name} has shape {tuple(x.shape)} on {ranks} ranks, its factors are of {transform.shapes}:"
                f" the shape of a name must not change; the communicator's reset({name!r}) forgets it"
            )
        return transform

    def decompress(self, tensors: Sequence[Tensor], ctx: Reduced) -> Tensor:
        return ctx.mean.to(ctx.dtype, copy=True).view(ctx.shape)

    def refuses(self, memory: Memory) -> Optional[str]:
        if getattr(memory, "keeps_what_was_not_sent", False) and not isinstance(memory, PowerSGDMemory):
            return "it would store the error of the mean, not of this rank: use memory powersgd or none"
        return None

    @property
    def nbytes(self) -> int:
        """Bytes of the factors and of the memory for their computation."""
        factors: int = sum(transform.info.memory for transform in self._transforms.values())
        return factors + sum(map(len, self._loaded.values()))

    def reset(self, name: Optional[str] = None) -> None:
        for by_name in (self._transforms, self._loaded, self._sizes):
            if name is None:
                by_name.clear()
            else:
                by_name.pop(name, None)

    def state_dict(self) -> SavedState:
        # States that were loaded and are not used yet are saved, too.
        return {**self._loaded, **{name: torch.from_numpy(found.state_dict()["state"]) for name, found in self._transforms.items()}}

    def load_state_dict(self, state: SavedState) -> None:
        self._transforms.clear()
        self._loaded = dict(state)


class PowerSGDMemory(ResidualMemory):
    """Error feedback (algorithm 2 of the paper): residual = residual + tensor - mean over ranks, and 0 if the mean is exact.

    q_memory, compress_rank  arguments of GRACE, without effect here: the compressor stores its factors itself
    """

    def __init__(self, q_memory: object = None, compress_rank: int = 1) -> None:
        super().__init__()

    def update(self, tensor: Tensor, name: str, compressor: Compressor, tensor_compressed: Sequence[Tensor], ctx: Ctx) -> None:
        if ctx.exact:
            self.residuals.pop(name, None)
        else:
            super().update(tensor, name, compressor, tensor_compressed, ctx)

    def keep(self, tensor: Tensor, name: str) -> None:
        self.residuals[name] = without_infinities(tensor.detach().clone(memory_format=torch.contiguous_format))

    def refuses(self, compressor: Compressor) -> Optional[str]:
        return None if isinstance(compressor, PowerSGDCompressor) else "it requires compressor powersgd"
