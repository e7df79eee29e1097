"""Memories: what was not sent, by name, on the tensor's device. They are saved, restored, freed and measured."""

from __future__ import annotations

from typing import Dict, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch import Tensor

from deepreduce.errors import ArgumentError
from .contracts import Compressor, Ctx, Memory, SavedState
from .rank_wire import Wire


class NoneMemory(Memory):
    """Forgets what was not sent."""

    def compensate(self, tensor: Tensor, name: str) -> Tensor:
        return tensor


class KeptMemory(Memory):
    """Tensors by name, in the dicts that `_slots` names.

    A tensor of another shape or type than the first under its name is an ArgumentError: the communicator's `reset(name)`
    forgets the old one.
    """

    keeps_what_was_not_sent = True
    _slots: Tuple[str, ...] = ("residuals",)

    def __init__(self) -> None:
        self.residuals: Dict[str, Tensor] = {}

    def reset(self, name: Optional[str] = None) -> None:
        """Forgets a name, or all of them, and frees their memory."""
        for slot in self._slots:
            kept: Dict[str, Tensor] = getattr(self, slot)
            if name is None:
                kept.clear()
            else:
                kept.pop(name, None)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept, of all names."""
        return sum(each.numel() * each.element_size() for slot in self._slots for each in getattr(self, slot).values())

    def state_dict(self) -> SavedState:
        return {slot: {name: each.clone() for name, each in getattr(self, slot).items()} for slot in self._slots}

    def load_state_dict(self, state: SavedState) -> None:
        if set(state) != set(self._slots):
            raise ArgumentError(
                f"the state has {', '.join(sorted(state)) or 'nothing'}; {type(self).__name__} keeps {', '.join(self._slots)}"
            )
        for slot in self._slots:
            setattr(self, slot, {name: each.clone() for name, each in state[slot].items()})

    def _kept(self, kept: Dict[str, Tensor], tensor: Tensor, name: str) -> Optional[Tensor]:
        """What is kept under the name, beside this tensor; None if that is the first."""
        found = kept.get(name)
        if found is None:
            return None
        of = self._type_of(name, found, tensor)
        if found.shape != tensor.shape or of != tensor.dtype:
            one, other = (tuple(tensor.shape), tuple(found.shape)) if found.shape != tensor.shape else (tensor.dtype, of)
            what, verb = ("shape", "has shape") if found.shape != tensor.shape else ("type", "is")
            raise ArgumentError(
                f"{name} {verb} {one}, its residual {other}: names are of one {what}; the communicator's reset({name!r}) forgets it"
            )
        return found.to(tensor.device)

    def _type_of(self, name: str, kept: Tensor, tensor: Tensor) -> torch.dtype:
        """The type of the tensors of which `kept` is left."""
        return kept.dtype


def without_infinities(kept: Tensor) -> Tensor:
    """The tensor, with 0 in the place of what is not finite: that would stay for good, and make all later steps NaN."""
    return kept.masked_fill_(~kept.isfinite(), 0)


def require_lr(lr: float) -> float:
    if not lr > 0:
        raise ArgumentError(f"lr is {lr!r}, not above 0")
    return lr


class ResidualMemory(KeptMemory):
    """Error feedback (Seide et al. 2014; Stich et al. 2018): beta * residual + gamma * tensor, residual = that less what was
    sent, as the receivers decode it. The first residual is 0, as is one that would not be finite.

    dtype  of the residuals; None: that of the tensors. torch.float16 halves the memory, and rounds
    """

    def __init__(self, beta: float = 1.0, gamma: float = 1.0, *, dtype: Optional[torch.dtype] = None) -> None:
        super().__init__()
        self.beta, self._gamma, self._dtype = beta, gamma, dtype
        self._types: Dict[str, torch.dtype] = {}  # of the tensors, where residuals have another

    @property
    def gamma(self) -> float:
        """The factor of the next tensors."""
        return self._gamma

    @gamma.setter
    def gamma(self, gamma: float) -> None:
        self._gamma = gamma

    def compensate(self, tensor: Tensor, name: str) -> Tensor:
        kept = self._kept(self.residuals, tensor, name)
        if kept is None:
            return tensor if self.gamma == 1 else self.gamma * tensor
        return self.beta * kept.to(tensor.dtype) + self.gamma * tensor

    def update(self, tensor: Tensor, name: str, compressor: Compressor, tensor_compressed: Sequence[Tensor], ctx: Ctx) -> None:
        self._add(tensor.detach(), name, compressor, tensor_compressed, ctx, -1)
        self._types[name] = tensor.dtype

    def take_back(self, name: str, compressor: Compressor, tensor_compressed: Sequence[Tensor], ctx: Ctx) -> None:
        if name in self.residuals:
            self._add(self.residuals[name], name, compressor, tensor_compressed, ctx, 1)

    def _add(self, base: Tensor, name: str, compressor: Compressor, payload: Sequence[Tensor], ctx: Ctx, scale: float) -> None:
        # A copy even where it is the caller's alone: memory and gradient must not be one.
        residual = base.clone(memory_format=torch.contiguous_format)
        compressor.decompress_add(payload, ctx, residual, scale)
        if self._dtype is None:
            self.residuals[name] = without_infinities(residual)
            return
        kept = residual.to(self._dtype)  # (which may be a type that does not know isfinite)
        lost = ~kept.to(residual.dtype).isfinite()
        self.residuals[name] = residual.masked_fill_(lost, 0).to(self._dtype) if lost.any() else kept

    def _type_of(self, name: str, kept: Tensor, tensor: Tensor) -> torch.dtype:
        return kept.dtype if self._dtype is None else self._types.get(name, tensor.dtype)

    def reset(self, name: Optional[str] = None) -> None:
        super().reset(name)
        self._types = {} if name is None else {each: kind for each, kind in self._types.items() if each != name}

    def load_state_dict(self, state: SavedState) -> None:
        super().load_state_dict(state)
        self._types.clear()


class EFSignSGDMemory(ResidualMemory):
    """residual + lr * tensor, from the first step on (Karimireddy et al. 2019). It goes with compressor efsignsgd, which
    divides by the same lr.

    lr  may be set, before a step; `set_lr` of the communicator sets both. The residual is of parameters, so it stays as it is
    """

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__(1.0, require_lr(lr))

    @property
    def lr(self) -> float:
        """The learning rate of the next step, by which tensors are multiplied. ArgumentError if it is not above 0."""
        return self._gamma

    @lr.setter
    def lr(self, lr: float) -> None:
        self._gamma = require_lr(lr)

    gamma = lr  # what scales the tensor

    def update(self, tensor: Tensor, name: str, compressor: Compressor, tensor_compressed: Sequence[Tensor], ctx: Ctx) -> None:
        reason = self.refuses(getattr(compressor, "inner", compressor))
        if reason:  # one of the two was set
            raise ArgumentError(f"{name}: {reason}: set_lr of the communicator sets both")
        super().update(tensor, name, compressor, tensor_compressed, ctx)

    def refuses(self, compressor: Compressor) -> Optional[str]:
        if getattr(compressor, "lr", None) != self.lr:
            return f"what it multiplies by lr = {self.lr:g} only compressor efsignsgd of the same lr divides by it again"
        return None


class DgcMemory(KeptMemory):
    """DGC's momentum correction (Lin et al. 2018): u = momentum * u + tensor, v = v + u; v is sent. Where an element was
    sent, u becomes 0 (momentum factor masking), and v what the receivers do not see of it: 0 of exact values.

    momentum            0.9, say
    gradient_clipping   False; True: elements are cut to the root of the mean, over ranks, of the squared norm of the
                        tensor, which takes an all-reduce a tensor, as GRACE has it; a number N: a tensor whose L2 norm is
                        above N / sqrt(ranks) is scaled down to that, without an exchange. The paper's norm is of a node's
                        whole gradient: torch.nn.utils.clip_grad_norm_ before the steps clips by that
    world_size, group   ranks that clipping counts; None: torch.distributed's own

    residuals is u, gradients is v, by name. If an exchange fails, what was sent goes back to v.
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
        self._next: Dict[str, Tuple[Tensor, Tensor]] = {}  # u and v of a step that is not sent yet

    def compensate(self, tensor: Tensor, name: str) -> Tensor:
        clipped = self._clipped(tensor.detach(), name)  # first: the other ranks reduce a norm, whatever this one refuses
        before = self._kept(self.residuals, tensor, name)
        tensor = clipped
        momentum = tensor.clone() if before is None else self.momentum * before + tensor
        velocity = momentum.clone() if before is None else self.gradients[name].to(tensor.device) + momentum
        # Not kept before `update`: a NaN that no compressor takes must not stay.
        self._next[name] = momentum, velocity
        return velocity

    def skip(self, name: str) -> None:
        """Takes part in the other ranks' norm."""
        if self.gradient_clipping is True:
            self._clipped(torch.zeros(1, device=Wire(self.group, name).device if self._grouped else None), name)

    def update(self, tensor: Tensor, name: str, compressor: Compressor, tensor_compressed: Sequence[Tensor], ctx: Ctx) -> None:
        decoded = compressor.decompress(tensor_compressed, ctx)
        if isinstance(ctx, tuple) and len(ctx) == 3 and torch.is_tensor(ctx[1]) and ctx[1].dtype == torch.bool:
            sent = ctx[1].view(tensor.shape)  # GRACE's ctx: (shape, mask, number of elements)
        else:
            sent = decoded != 0
        momentum, velocity = self._next.pop(name)
        # Out of place: `tensor` is v, which the caller has.
        self.gradients[name] = without_infinities(velocity - decoded.view(velocity.shape))
        self.residuals[name] = without_infinities(momentum.masked_fill(sent, 0))

    def take_back(self, name: str, compressor: Compressor, tensor_compressed: Sequence[Tensor], ctx: Ctx) -> None:
        if name in self.gradients:
            velocity = self.gradients[name].clone(memory_format=torch.contiguous_format)
            compressor.decompress_add(tensor_compressed, ctx, velocity)
            self.gradients[name] = without_infinities(velocity)

    def refuses(self, compressor: Compressor) -> Optional[str]:
        if compressor.sparse is False:
            return "it forgets the elements that were sent, and this compressor sends all of them, roughly"
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
