"""Compressors by plan. The payload is a frame.

They follow the rules of a deepreduce.Sender (sender.h): random numbers depend on the name; a tag has tensor and step; all ranks report
the same ranks as out of step; means are added in float32 in rank order and rounded once.

They cannot use a Sender, because GRACE's interface splits a step. The error of a payload belongs to a memory of the caller, which decodes
the payload before it is sent. A plan may differ between ranks and steps (the rate of a Bloom filter depends on how many elements a
threshold selects). A payload is decoded by itself, without ranks. Tensors are passed one at a time, so several never share a frame, the
rule for small tensors does not apply, and a clip sees the norm of one tensor.
"""

from __future__ import annotations

import zlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy
import torch
import torch.distributed as dist
from torch import Tensor

from deepreduce.batch import Batch
from deepreduce.decoding import decode
from deepreduce.encoding import encode
from deepreduce.errors import ArgumentError, CorruptFrame, Error
from deepreduce.header import inspect
from deepreduce.merging import merge
from deepreduce.plan import Plan, as_plan
from deepreduce.tensor import Sparse, State
from .contracts import Compressor, Memory, Options, SavedPart, SavedState, rank_of
from .meters import count
from .rank_wire import compare_tags

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_HEADER = 4096  # maximum bytes of a frame in addition to its values; up to 300 were measured


def frame_bound(elements: int) -> int:
    """Maximum bytes of a frame, for any plan: a tensor that would become larger than the dense one is sent dense."""
    return _HEADER + 4 * elements


class Context(NamedTuple):
    """The facts of a payload that all ranks know: shape and type of its tensor, and the tag that its frame must have, from name
    and step; None: any tag."""

    shape: torch.Size
    dtype: torch.dtype
    tag: Optional[int]


def tag_of(what: str, step: int) -> int:
    """The tag of a sender: a digest of `what`, times 2^32, plus the step."""
    return zlib.crc32(what.encode()) << 32 | step % 2**32


class Steps:
    """The number of compressions of every name. Random numbers depend on it and on the name."""

    def __init__(self) -> None:
        self.steps: Dict[str, int] = {}

    def next(self, name: str) -> Tuple[int, int]:
        """(step, key) of this compress."""
        step = self.steps.get(name, 0)
        self.steps[name] = step + 1
        return step, zlib.crc32(name.encode()) + 1  # the key of a sender


def require_keys(owner: object, state: SavedPart, *keys: str, optional: Sequence[str] = ()) -> None:
    """ArgumentError unless a saved state has these keys."""
    if set(state) - set(optional) != set(keys):
        found = ", ".join(sorted(map(str, state))) or "nothing"
        raise ArgumentError(f"the state has {found}; {type(owner).__name__} requires {', '.join(keys)}")


def flat_on_host(tensor: Tensor, name: str) -> Tensor:
    """[d], contiguous on the CPU; it shares the tensor's memory if possible. name: the tensor's in errors"""
    if tensor.layout != torch.strided or tensor.dtype not in _FLOATS:
        raise ArgumentError(f"{name} is {tensor.dtype}, {tensor.layout}: dense float32, float16 and bfloat16 are compressed")
    return tensor.detach().to("cpu").reshape(-1)


def bytes_of(payload: Sequence[Tensor], name: str = "the payload") -> Tensor:
    """The frame of a payload, on the CPU."""
    if len(payload) != 1 or payload[0].dtype != torch.uint8 or payload[0].dim() != 1:
        found = ", ".join(f"{tensor.dtype} of shape {tuple(tensor.shape)}" for tensor in payload)
        raise ArgumentError(f"{name} must be one tensor of bytes, a frame, not [{found}]")
    if not payload[0].numel():
        raise CorruptFrame(f"{name} is empty: a frame has a header at least")
    return payload[0].to("cpu")


class PlanCompressor(Compressor):
    """Compresses with any plan. The payload is one frame, [n] uint8 of at least one byte, which contains its codecs, size and type.

    plan     text, the name of a preset, or a Plan; or a function that returns one for a number of elements
    average  as in Compressor
    seed     of random numbers, the same on every rank. Random numbers also depend on name, step and rank. The random
             generators of torch are not used
    group    the group whose ranks draw private random numbers; None: torch.distributed's own

    The frames of all ranks for a name and a step have the same tag. If ranks are at different steps, all ranks raise OutOfStep;
    at different names, ArgumentError. A plan with feedback stores a State for each name, and cannot be combined with another
    memory that stores what was not sent.
    """

    linear: Optional[bool] = False

    def __init__(
        self,
        plan: Union[str, Plan, Callable[[int], str]],
        average: bool = True,
        *,
        seed: int = 0,
        group: Optional[dist.ProcessGroup] = None,
    ) -> None:
        self._plan, self._seed, self._group = plan, seed, group
        sample = self.plan_for(1024)
        self.sparse = sample.name_of("index") != "all"
        self.keeps, self._returns = sample.info.feedback, sample.info.residual
        # Without a support the size does not depend on the values, except that zeros alone are shorter: they are padded.
        self._uniform = sample.info.fixed_size and not self.sparse
        self._votes = sample.info.votes
        super().__init__(average and not self._votes, self._uniform)
        self._steps = Steps()
        self._states: Dict[str, State] = {}
        self._forms: Dict[str, Tuple[int, torch.dtype]] = {}  # elements and type of the states' tensors
        self._loaded: Dict[str, bytes] = {}
        self._sizes: Dict[Tuple[int, torch.dtype], int] = {}  # bytes of payloads, if all have one size

    def plan_for(self, elements: int) -> Plan:
        """The plan of a tensor of `elements` elements."""
        return as_plan(self._plan(elements) if callable(self._plan) else self._plan)

    def compress(self, tensor: Tensor, name: str) -> Tuple[List[Tensor], Context]:
        """Returns ([frame], Context). Raises ArgumentError for values that the plan cannot encode, such as a NaN with a lossy codec."""
        step, key = self._steps.next(name)
        flat = flat_on_host(tensor, name)
        tag = tag_of(f"{name} {flat.numel()} {flat.dtype}", step)
        ctx = Context(tensor.shape, tensor.dtype, tag)
        plan = self.plan_for(flat.numel())
        options: Options = {
            "step": step, "seed": self._seed, "private_seed": rank_of(self._group), "key": key, "tag": tag,
        }  # fmt: skip
        try:
            options["state"] = self._state(name, plan, flat)
            payload = [self._encode(flat, plan, options).to(tensor.device)]
        except Error as error:
            error.args = (f"{name}: {error}",)
            raise
        count(payload, tensor)
        return payload, ctx

    def bound(self, elements: int) -> int:
        return frame_bound(elements)

    def skip(self, name: str) -> None:
        self._steps.next(name)

    def take_back(self, name: str, tensors: Sequence[Tensor], ctx: Context) -> None:
        if self._returns and name in self._states:
            merge([bytes_of(tensors)], out=self._states[name].residual, tag=ctx.tag, coefficients=True)  # as the residual is

    def _encode(self, flat: Tensor, plan: Plan, options: Options) -> Tensor:
        if not self._uniform:
            return torch.frombuffer(bytearray(encode(flat, plan, **options)), dtype=torch.uint8)
        form = flat.numel(), flat.dtype
        size = self._sizes.get(form)
        if size is None:
            size = self._sizes[form] = Batch(flat, plan).bound
        payload = torch.zeros(size, dtype=torch.uint8)
        encode(flat, plan, out=payload, **options)
        return payload

    def decompress(self, tensors: Sequence[Tensor], ctx: Context) -> Tensor:
        out = torch.empty(ctx.shape, dtype=ctx.dtype)
        decode(bytes_of(tensors), out=out.view(-1), tag=ctx.tag)
        return out.to(tensors[0].device)

    def decompress_add(self, tensors: Sequence[Tensor], ctx: Context, out: Tensor, scale: float = 1.0) -> None:
        host = out.detach().to("cpu").view(-1)
        merge([bytes_of(tensors)], weights=[scale], out=host, tag=ctx.tag)
        if out.device != host.device:
            out.copy_(host.view_as(out))

    def merge(self, payloads: Sequence[Sequence[Tensor]], ctx: Context) -> Tensor:
        """The sum in rank order, in float32. The library needs one dense tensor for any number of ranks."""
        if type(self).aggregate is not PlanCompressor.aggregate:  # a subclass overrides it
            return super().merge(payloads, ctx)
        total, frames = torch.zeros(ctx.shape, dtype=torch.float32), [bytes_of(payload) for payload in payloads]
        try:
            merge(frames, out=total.view(-1), tag=ctx.tag)
        except ArgumentError:
            if ctx.tag is not None:
                compare_tags([inspect(frame).tag or 0 for frame in frames], self._group)
            raise
        return self.finish(total).to(payloads[0][0].device)

    def aggregate(self, tensors: Sequence[Tensor]) -> Tensor:
        total = torch.zeros(tensors[0].shape, dtype=torch.float32, device=tensors[0].device)
        for tensor in tensors:
            total += tensor
        return self.finish(total).to(tensors[0].dtype)

    def finish(self, total: Tensor) -> Tensor:
        """Converts the sum over ranks, in float32, to the result: its signs for a plan with merge=vote. May change it in place."""
        return torch.where(total >= 0, 1.0, -1.0) if self._votes else total

    def refuses(self, memory: Memory) -> Optional[str]:
        plan = self.plan_for(1024)
        if not getattr(memory, "keeps_what_was_not_sent", False):
            return None
        if self._votes:
            return f"the vote of signs has no scale, so the residual of a tensor less its sign only grows: {plan}. Use memory none"
        if self.keeps and plan.name_of("feedback") != "momentum":
            return f"the plan has a feedback of its own: {plan}. Use memory none"
        return None

    # ---- State ----

    def _state(self, name: str, plan: Plan, flat: Tensor) -> Optional[State]:
        if not self.keeps:
            return None
        form, before = (flat.numel(), flat.dtype), self._forms.get(name)
        if before is not None and before != form:
            raise ArgumentError(
                f"it has {form[0]} elements of {form[1]}, its state has {before[0]} of {before[1]}:"
                f" size and type of a name must not change; the communicator's reset({name!r}) forgets it"
            )
        state = self._states.get(name)
        if state is None:
            state = State(flat, plan)
            if name in self._loaded:
                state.load_state_dict({"state": numpy.frombuffer(self._loaded[name], numpy.uint8)})
                state.check(flat, plan)
                del self._loaded[name]
            self._states[name], self._forms[name] = state, form
        return state

    @property
    def kind(self) -> str:
        """The plan without its parameters: a state may be loaded with another ratio."""
        stages = [stage for stage in self.plan_for(1024).stages.values() if not stage.is_default]
        return " ".join(f"{stage.role}={'+'.join((stage.name, *(codec.name for codec in stage.behind)))}" for stage in stages)

    @property
    def nbytes(self) -> int:
        return sum(state.size for state in self._states.values()) + sum(map(len, self._loaded.values()))

    def reset(self, name: Optional[str] = None) -> None:
        for by_name in (self._states, self._forms, self._loaded):
            if name is None:
                by_name.clear()
            else:
                by_name.pop(name, None)

    def state_dict(self) -> SavedState:
        # States that were loaded and are not used yet are saved, too.
        found = {name: torch.frombuffer(bytearray(data), dtype=torch.uint8) for name, data in self._loaded.items()}
        states = {**found, **{name: torch.from_numpy(state.state_dict()["state"]) for name, state in self._states.items()}}
        forms = {name: [elements, str(dtype).removeprefix("torch.")] for name, (elements, dtype) in self._forms.items()}
        return {"steps": dict(self._steps.steps), "states": states, "about": forms}

    def load_state_dict(self, state: SavedState) -> None:
        require_keys(self, state, "steps", "states", optional=("about",))
        if state["states"] and not self.keeps:
            raise ArgumentError(f"the state has feedback of {', '.join(state['states'])}, but the plan has none: {self.plan_for(1024)}")
        self.reset()
        self._steps.steps = dict(state["steps"])
        self._forms = {name: (elements, getattr(torch, dtype)) for name, (elements, dtype) in state.get("about", {}).items()}
        self._loaded = {name: saved.cpu().numpy().tobytes() for name, saved in state["states"].items()}


class Sparsifier(PlanCompressor):
    """A plan in three parts, so that a wrapper can replace its codecs (`wrappers`).

    sparsify  a function of the number of elements that returns the stage `sparsify=`
    index, value  the codecs of the two streams
    """

    def __init__(
        self, sparsify: Callable[[int], str], index: str = "golomb", value: str = "raw", average: bool = True, **options: Any
    ) -> None:
        self.sparsify, self.index, self.value = sparsify, index, value
        super().__init__(lambda elements: f"sparsify={sparsify(elements)} index={index} value={value}", average, **options)


def count_of(ratio: float, elements: int) -> int:
    """GRACE's k of a ratio: int(elements * ratio), at least 1 if there are elements."""
    return min(elements, max(1, int(elements * ratio)))


def require_ratio(ratio: float) -> float:
    if not 0 < ratio <= 1:
        raise ArgumentError(f"compress_ratio is {ratio!r}, not above 0 and at most 1")
    return ratio


class VoteCompressor(PlanCompressor):
    """Signs. The result is the sign of the majority; a tie is +1 (SignSGD with majority vote, Bernstein et al. 2019)."""

    def __init__(self, plan: str, **options: Any) -> None:
        super().__init__(plan, average=False, **options)
        self._votes = True

    def finish(self, total: Tensor) -> Tensor:
        return torch.where(total >= 0, 1.0, -1.0)


class EFSignCompressor(PlanCompressor):
    """Scaled signs of a tensor that EFSignSGDMemory has multiplied by lr. The result is the mean over ranks, divided by lr again, so
    that an optimizer with this lr makes the paper's step (Karimireddy et al. 2019). GRACE returns the sum over ranks."""

    def __init__(self, plan: str, lr: float, **options: Any) -> None:
        super().__init__(plan, **options)
        self.lr = lr

    @property
    def lr(self) -> float:
        """The learning rate of the next step. `set_lr` of the communicator sets that of the memory, too."""
        return self._lr

    @lr.setter
    def lr(self, lr: float) -> None:
        if not lr > 0:
            raise ArgumentError(f"lr is {lr!r}, not above 0")
        self._lr = lr

    def finish(self, total: Tensor) -> Tensor:
        return total.div_(self.lr)

    def refuses(self, memory: Memory) -> Optional[str]:
        if getattr(memory, "lr", None) != self.lr:
            return f"the result is divided by lr = {self.lr:g}: it requires memory efsignsgd of the same lr, which multiplies by it"
        return None


def sparse_of(frame: object, like: Tensor) -> Sparse:
    """The tensor of a frame of one, as indices and values. like: a tensor of their type"""
    return decode(frame, sparse=True, like=like, tensors=0)
