"""Memories store what was not sent, by name, on the tensor's device. They can be saved, restored, freed and measured."""

from __future__ import annotations

from typing import Dict, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch import Tensor

from deepreduce.errors import ArgumentError
from .contracts import Compressor, Ctx, Memory, SavedState
from .rank_wire import Wire


class NoneMemory(Memory):
    """Stores nothing: what was not sent is lost."""

    def compensate(self, tensor: Tensor, name: str) -> Tensor:
        return tensor


class TensorMemory(Memory):
    """Stores tensors by name, in the dicts that `_slots` lists.

    A tensor of another shape or type than the first of its name is an ArgumentError, until the communicator's `reset(name)` drops the
    first.
    """

    keeps_what_was_not_sent = True
    _slots: Tuple[str, ...] = ("residuals",)

    def __init__(self) -> None:
        self.residuals: Dict[str, Tensor] = {}

    def reset(self, name: Optional[str] = None) -> None:
        """Drops the tensors of a name, or of all names, and frees their memory."""
        for slot in self._slots:
            stored: Dict[str, Tensor] = getattr(self, slot)
            if name is None:
                stored.clear()
            else:
                stored.pop(name, None)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored tensors, for all names."""
        return sum(stored.numel() * stored.element_size() for slot in self._slots for stored in getattr(self, slot).values())

    def state_dict(self) -> SavedState:
        return {slot: {name: stored.clone() for name, stored in getattr(self, slot).items()} for slot in self._slots}

    def load_state_dict(self, state: SavedState) -> None:
        if set(state) != set(self._slots):
            raise ArgumentError(
                f"the state has {', '.join(sorted(state)) or 'nothing'}; {type(self).__name__} requires {', '.join(self._slots)}"
            )
        for slot in self._slots:
            setattr(self, slot, {name: saved.clone() for name, saved in state[slot].items()})

    def _stored(self, slot: Dict[str, Tensor], tensor: Tensor, name: str) -> Optional[Tensor]:
        """The stored tensor of a name, or None, on the device of `tensor`. ArgumentError if its shape or type differs."""
        found = slot.get(name)
        if found is None:
            return None
        of = self._type_of(name, found, tensor)
        if found.shape != tensor.shape or of != tensor.dtype:
            one, other = (tuple(tensor.shape), tuple(found.shape)) if found.shape != tensor.shape else (tensor.dtype, of)
            what, verb = ("shape", "has shape") if found.shape != tensor.shape else ("type", "is")
            raise ArgumentError(
                f"{name} {verb} {one}, its residual {other}: the {what} of a name must not change; the communicator's reset({name!r}) forgets it"
            )
        return found.to(tensor.device)

    def _type_of(self, name: str, stored: Tensor, tensor: Tensor) -> torch.dtype:
        """The type of the tensors whose residual is `stored`."""
        return stored.dtype


def without_infinities(residual: Tensor) -> Tensor:
    """Sets values that are not finite to 0, in place, and returns the tensor: they would make all later steps NaN."""
    return residual.masked_fill_(~residual.isfinite(), 0)


def require_lr(lr: float) -> float:
    if not lr > 0:
        raise ArgumentError(f"lr is {lr!r}, not above 0")
    return lr


class ResidualMemory(TensorMemory):
    """Error feedback (Seide et al. 2014; Stich et al. 2018): compensated = beta * residual + gamma * tensor; the new residual is
    compensated less what was sent, as receivers decode it. The first residual is 0. Values that are not finite become 0.

    dtype  type of the residuals; None: that of the tensors. torch.float16 halves the memory, and rounds
    """

    def __init__(self, beta: float = 1.0, gamma: float = 1.0, *, dtype: Optional[torch.dtype] = None) -> None:
        super().__init__()
        self.beta, self._gamma, self._dtype = beta, gamma, dtype
        self._types: Dict[str, torch.dtype] = {}  # types of the tensors, if residuals have another

    @property
    def gamma(self) -> float:
        """The factor of the next tensors."""
        return self._gamma

    @gamma.setter
    def gamma(self, gamma: float) -> None:
        self._gamma = gamma

    def compensate(self, tensor: Tensor, name: str) -> Tensor:
        residual = self._stored(self.residuals, tensor, name)
        if residual is None:
            return tensor if self.gamma == 1 else self.gamma * tensor
        return self.beta * residual.to(tensor.dtype) + self.gamma * tensor

    def update(self, tensor: Tensor, name: str, compressor: Compressor, tensor_compressed: Sequence[Tensor], ctx: Ctx) -> None:
        self._add(tensor.detach(), name, compressor, tensor_compressed, ctx, -1)
        self._types[name] = tensor.dtype

    def take_back(self, name: str, compressor: Compressor, tensor_compressed: Sequence[Tensor], ctx: Ctx) -> None:
        if name in self.residuals:
            self._add(self.residuals[name], name, compressor, tensor_compressed, ctx, 1)

    def _add(self, base: Tensor, name: str, compressor: Compressor, payload: Sequence[Tensor], ctx: Ctx, scale: float) -> None:
        # Always a copy: the residual must not share memory with the gradient.
        residual = base.clone(memory_format=torch.contiguous_format)
        compressor.decompress_add(payload, ctx, residual, scale)
        if self._dtype is None:
            self.residuals[name] = without_infinities(residual)
            return
        narrow = residual.to(self._dtype)  # (isfinite may not support this type)
        lost = ~narrow.to(residual.dtype).isfinite()
        self.residuals[name] = residual.masked_fill_(lost, 0).to(self._dtype) if lost.any() else narrow

    def _type_of(self, name: str, stored: Tensor, tensor: Tensor) -> torch.dtype:
        return stored.dtype if self._dtype is None else self._types.get(name, tensor.dtype)

    def reset(self, name: Optional[str] = None) -> None:
        super().reset(name)
        self._types = {} if name is None else {other: dtype for other, dtype in self._types.items() if other != name}

    def load_state_dict(self, state: SavedState) -> None:
        super().load_state_dict(state)
        self._types.clear()


class EFSignSGDMemory(ResidualMemory):
    """Compensated = residual + lr * tensor, from the first step on (Karimireddy et al. 2019). It requires compressor efsignsgd, which
    divides by the same lr.

    lr  can be set between steps; `set_lr` of the communicator sets both. The residual has the scale of parameters, so it does not change
    """

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__(1.0, require_lr(lr))

    @property
    def lr(self) -> float:
        """The learning rate of the next step, the factor of its tensors. ArgumentError if it is not above 0."""
        return self._gamma

    @lr.setter
    def lr(self, lr: float) -> None:
        self._gamma = require_lr(lr)

    gamma = lr  # the factor of the tensor

    def update(self, tensor: Tensor, name: str, compressor: Compressor, tensor_compressed: Sequence[Tensor], ctx: Ctx) -> None:
        reason = self.refuses(getattr(compressor, "inner", compressor))
        if reason:  # the lr of only one was set
            raise ArgumentError(f"{name}: {reason}: set_lr of the communicator sets both")
        super().update(tensor, name, compressor, tensor_compressed, ctx)

    def refuses(self, compressor: Compressor) -> Optional[str]:
        if getattr(compressor, "lr", None) != self.lr:
            return f"it multiplies by lr = {self.lr:g}, and only compressor efsignsgd of the same lr divides by it again"
        return None


class DgcMemory(TensorMemory):
    """DGC's momentum correction (Lin et al. 2018): u = momentum * u + tensor, v = v + u; v is sent. For an element that was sent u
    becomes 0 (momentum factor masking), and v becomes its error after decoding, which is 0 for exact values.

    momentum            such as 0.9
    gradient_clipping   False; True: limits elements to the root of the mean, over ranks, of the tensor's squared norm, as GRACE does,
                        with an all-reduce per tensor; a number N: scales a tensor whose L2 norm is above N / sqrt(ranks) down to
                        that norm, without an exchange. The paper's norm is that of a node's whole gradient: for it, call
                        torch.nn.utils.clip_grad_norm_ before the steps
    world_size, group   the ranks that clipping counts; None: those of torch.distributed's default group

    residuals has u, gradients has v, by name. If an exchange fails, what was sent is added to v again.
    """

    _slots = ("residuals", "gradients")

    def __init__(
        self, momentum: float = 0.9, gradient_clipping: Union[bool, float] = False, world_size: Optional[int] = None, *, group: Optional[dist.ProcessGroup] = None
    ) -> None:
        super().__init__()
        if gradient_clipping is not True and not float(gradient_clipping) >= 0:
            raise ArgumentError(f"gradient_clipping is {gradient_clipping!r}: False, True or a norm above 0")
        self.momentum, self.gradient_clipping, self.world_size, self.group = momentum, gradient_clipping, world_size, group
        self.gradients: Dict[str, Tensor] = {}
        self._next: Dict[str, Tuple[Tensor, Tensor]] = {}  # u and v of a step, before it is sent

    def compensate(self, tensor: Tensor, name: str) -> Tensor:
        clipped = self._clipped(tensor.detach(), name)  # first: the other ranks reduce a norm, even if this one raises below
        before = self._stored(self.residuals, tensor, name)
        tensor = clipped
        momentum = tensor.clone() if before is None else self.momentum * before + tensor
        velocity = momentum.clone() if before is None else self.gradients[name].to(tensor.device) + momentum
        # Stored by `update` only: a NaN that the compressor refuses must not remain.
        self._next[name] = momentum, velocity
        return velocity

    def skip(self, name: str) -> None:
        """Takes part in the all-reduce of the other ranks' norm."""
        if self.gradient_clipping is True:
            self._clipped(torch.zeros(1, device=Wire(self.group, name).device if self._grouped else None), name)

    def update(self, tensor: Tensor, name: str, compressor: Compressor, tensor_compressed: Sequence[Tensor], ctx: Ctx) -> None:
        decoded = compressor.decompress(tensor_compressed, ctx)
        if isinstance(ctx, tuple) and len(ctx) == 3 and torch.is_tensor(ctx[1]) and ctx[1].dtype == torch.bool:
            sent = ctx[1].view(tensor.shape)  # GRACE's ctx: (shape, mask, number of elements)
        else:
            sent = decoded != 0
        momentum, velocity = self._next.pop(name)
        # Not in place: `tensor` is v, which the caller uses.
        self.gradients[name] = without_infinities(velocity - decoded.view(velocity.shape))
        self.residuals[name] = without_infinities(momentum.masked_fill(sent, 0))

    def take_back(self, name: str, compressor: Compressor, tensor_compressed: Sequence[Tensor], ctx: Ctx) -> None:
        if name in self.gradients:
            velocity = self.gradients[name].clone(memory_format=torch.contiguous_format)
            compressor.decompress_add(tensor_compressed, ctx, velocity)
            self.gradients[name] = without_infinities(velocity)

    def refuses(self, compressor: Compressor) -> Optional[str]:
        if compressor.sparse is False:
            return "it clears elements that were sent, and this compressor sends all of them, inexactly"
        return None

    @property
    def _grouped(self) -> bool:
        return bool(dist.is_available() and dist.is_initialized())

    def _clipped(self, tensor: Tensor, name: str) -> Tensor:
        clip = self.gradient_clipping
        if clip is False or clip == 0:
            return tensor
        ranks = self.world_size or (dist.get_world_size(self.group) if self._grouped else 1)
        if clip is not True:
            norm = torch.linalg.vector_norm(tensor.float())
            return tensor * torch.clamp(clip / (ranks**0.5 * norm), max=1).to(tensor.dtype)
        squares = tensor.float().square().sum()
        if self._grouped:
            Wire(self.group, name).all_reduce(squares)
        bound = (squares / ranks).sqrt().to(tensor.dtype)
        return torch.minimum(torch.maximum(tensor, -bound), bound)
