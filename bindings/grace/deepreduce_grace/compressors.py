"""Compressors by plan: a frame is the payload.

They go by the law of a deepreduce.Sender (sender.h): random numbers by name, a tag of tensor and step, ranks out of step named alike by
all, means added in float32 in rank order and rounded once. They are no Sender, for GRACE's interface takes a step apart: what a payload
loses belongs to a memory of the caller, which decodes it before it is sent; a plan may differ from rank to rank and step to step (a Bloom
filter's rate by what a threshold has selected); and a payload decodes by itself, without ranks. One tensor at a time comes, so that
tensors are never one frame, none is small beside others, and a clip knows one norm.
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
_HEADER = 4096  # bytes of a frame beside its values, at most; found are up to 300


def frame_bound(elements: int) -> int:
    """Bytes of a frame: whatever the plan, what is larger than the dense tensor is sent dense."""
    return _HEADER + 4 * elements


class Context(NamedTuple):
    """What all ranks know of a payload: shape and type of its tensor, and the tag that its frame must have, made of name
    and step; None: any."""

    shape: torch.Size
    dtype: torch.dtype
    tag: Optional[int]


def tag_of(what: str, step: int) -> int:
    """As a sender's: a digest of what is sent, times 2^32, plus the step."""
    return zlib.crc32(what.encode()) << 32 | step % 2**32


class Steps:
    """How often each name was compressed: what random numbers depend on, beside the name."""

    def __init__(self) -> None:
        self.steps: Dict[str, int] = {}

    def next(self, name: str) -> Tuple[int, int]:
        """(step, key) of this compress."""
        step = self.steps.get(name, 0)
        self.steps[name] = step + 1
        return step, zlib.crc32(name.encode()) + 1  # a sender's key


def require_keys(kept: object, state: SavedPart, *keys: str, optional: Sequence[str] = ()) -> None:
    """ArgumentError for a state of something else."""
    if set(state) - set(optional) != set(keys):
        found = ", ".join(sorted(map(str, state))) or "nothing"
        raise ArgumentError(f"the state has {found}; {type(kept).__name__} keeps {', '.join(keys)}")


def flat_on_host(tensor: Tensor, name: str) -> Tensor:
    """[d] on the CPU, contiguous; the tensor's own memory where that is so. Errors call it `name`."""
    if tensor.layout != torch.strided or tensor.dtype not in _FLOATS:
        raise ArgumentError(f"{name} is {tensor.dtype}, {tensor.layout}: dense float32, float16 and bfloat16 are compressed")
    return tensor.detach().to("cpu").reshape(-1)


def bytes_of(payload: Sequence[Tensor], name: str = "the payload") -> Tensor:
    """The frame of a payload, on the CPU."""
    if len(payload) != 1 or payload[0].dtype != torch.uint8 or payload[0].dim() != 1:
        found = ", ".join(f"{each.dtype} of shape {tuple(each.shape)}" for each in payload)
        raise ArgumentError(f"{name} is one tensor of bytes, a frame, not [{found}]")
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
        # Without a support there is nothing that data changes the size of; zeros alone are shorter, and are padded.
        self._uniform = sample.info.fixed_size and not self.sparse
        self._votes = sample.info.votes
        super().__init__(average and not self._votes, self._uniform)
        self._steps = Steps()
        self._states: Dict[str, State] = {}
        self._about: Dict[str, Tuple[int, torch.dtype]] = {}  # elements and type of the states' tensors
        self._loaded: Dict[str, bytes] = {}
        self._rooms: Dict[Tuple[int, torch.dtype], int] = {}

    def plan_for(self, elements: int) -> Plan:
        """The plan of a tensor of so many elements."""
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
            merge([bytes_of(tensors)], out=self._states[name].residual, tag=ctx.tag)

    def _encode(self, flat: Tensor, plan: Plan, options: Options) -> Tensor:
        if not self._uniform:
            return torch.frombuffer(bytearray(encode(flat, plan, **options)), dtype=torch.uint8)
        about = flat.numel(), flat.dtype
        room = self._rooms.get(about)
        if room is None:
            room = self._rooms[about] = Batch(flat, plan).bound
        payload = torch.zeros(room, dtype=torch.uint8)
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
        """The sum in rank order, by the library: one dense tensor, in float32, for any number of ranks."""
        if type(self).aggregate is not PlanCompressor.aggregate:  # a subclass has its own
            return super().merge(payloads, ctx)
        total, frames = torch.zeros(ctx.shape, dtype=torch.float32), [bytes_of(each) for each in payloads]
        try:
            merge(frames, out=total.view(-1), tag=ctx.tag)
        except ArgumentError:
            if ctx.tag is not None:
                compare_tags([inspect(each).tag or 0 for each in frames], self._group)
            raise
        return self.finish(total).to(payloads[0][0].device)

    def aggregate(self, tensors: Sequence[Tensor]) -> Tensor:
        total = torch.zeros(tensors[0].shape, dtype=torch.float32, device=tensors[0].device)
        for each in tensors:
            total += each
        return self.finish(total).to(tensors[0].dtype)

    def finish(self, total: Tensor) -> Tensor:
        """Converts the sum over ranks, in float32, to the result: its signs for a plan with merge=vote. May change it in place."""
        return torch.where(total >= 0, 1.0, -1.0) if self._votes else total

    def refuses(self, memory: Memory) -> Optional[str]:
        plan = self.plan_for(1024)
        if not getattr(memory, "keeps_what_was_not_sent", False):
            return None
        if self._votes:
            return f"the vote of signs has no scale, so what is left of a tensor without its sign only grows: {plan}. Take memory none"
        if self.keeps and plan.name_of("feedback") != "momentum":
            return f"the plan has a feedback of its own: {plan}. Take memory none"
        return None

    # ---- State ----

    def _state(self, name: str, plan: Plan, flat: Tensor) -> Optional[State]:
        if not self.keeps:
            return None
        about, before = (flat.numel(), flat.dtype), self._about.get(name)
        if before is not None and before != about:
            raise ArgumentError(
                f"it has {about[0]} elements of {about[1]}, its state is of {before[0]} of {before[1]}:"
                f" names are of one size and type; the communicator's reset({name!r}) forgets it"
            )
        state = self._states.get(name)
        if state is None:
            state = State(flat, plan)
            if name in self._loaded:
                state.load_state_dict({"state": numpy.frombuffer(self._loaded[name], numpy.uint8)})
                state.check(flat, plan)
                del self._loaded[name]
            self._states[name], self._about[name] = state, about
        return state

    @property
    def kind(self) -> str:
        """The plan, less its parameters: another ratio may go on."""
        stages = [each for each in self.plan_for(1024).stages.values() if not each.is_default]
        return " ".join(f"{each.role}={'+'.join((each.name, *(more.name for more in each.behind)))}" for each in stages)

    @property
    def nbytes(self) -> int:
        return sum(each.size for each in self._states.values()) + sum(map(len, self._loaded.values()))

    def reset(self, name: Optional[str] = None) -> None:
        for kept in (self._states, self._about, self._loaded):
            if name is None:
                kept.clear()
            else:
                kept.pop(name, None)

    def state_dict(self) -> SavedState:
        # What was loaded and not used yet is kept as well.
        found = {name: torch.frombuffer(bytearray(data), dtype=torch.uint8) for name, data in self._loaded.items()}
        states = {**found, **{name: torch.from_numpy(state.state_dict()["state"]) for name, state in self._states.items()}}
        about = {name: [elements, str(dtype).removeprefix("torch.")] for name, (elements, dtype) in self._about.items()}
        return {"steps": dict(self._steps.steps), "states": states, "about": about}

    def load_state_dict(self, state: SavedState) -> None:
        require_keys(self, state, "steps", "states", optional=("about",))
        if state["states"] and not self.keeps:
            raise ArgumentError(f"the state has feedback of {', '.join(state['states'])}, the plan keeps none: {self.plan_for(1024)}")
        self.reset()
        self._steps.steps = dict(state["steps"])
        self._about = {name: (elements, getattr(torch, dtype)) for name, (elements, dtype) in state.get("about", {}).items()}
        self._loaded = {name: each.cpu().numpy().tobytes() for name, each in state["states"].items()}


class Sparsifier(PlanCompressor):
    """A plan in three parts, so that a wrapper can put other codecs in the place of its own (`wrappers`).

    sparsify  a function of the number of elements that gives the stage `sparsify=`
    index, value  the codecs of the two streams
    """

    def __init__(
        self, sparsify: Callable[[int], str], index: str = "golomb", value: str = "raw", average: bool = True, **options: Any
    ) -> None:
        self.sparsify, self.index, self.value = sparsify, index, value
        super().__init__(lambda elements: f"sparsify={sparsify(elements)} index={index} value={value}", average, **options)


def count_of(ratio: float, elements: int) -> int:
    """GRACE's k of a ratio: int(elements * ratio), at least one of what there is."""
    return min(elements, max(1, int(elements * ratio)))


def require_ratio(ratio: float) -> float:
    if not 0 < ratio <= 1:
        raise ArgumentError(f"compress_ratio is {ratio!r}, not above 0 and at most 1")
    return ratio


class VoteCompressor(PlanCompressor):
    """Signs, of which the majority counts; a tie is +1 (SignSGD with majority vote, Bernstein et al. 2019)."""

    def __init__(self, plan: str, **options: Any) -> None:
        super().__init__(plan, average=False, **options)
        self._votes = True

    def finish(self, total: Tensor) -> Tensor:
        return torch.where(total >= 0, 1.0, -1.0)


class EFSignCompressor(PlanCompressor):
    """Scaled signs of what EFSignSGDMemory has multiplied by lr: the mean of the ranks, divided by lr again, so that an
    optimizer with this lr makes the paper's step (Karimireddy et al. 2019). GRACE gives the ranks' sum."""

    def __init__(self, plan: str, lr: float, **options: Any) -> None:
        super().__init__(plan, **options)
        self.lr = lr

    @property
    def lr(self) -> float:
        """It may be set, before a step; `set_lr` of the communicator sets the memory's, too."""
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
            return f"the result is divided by lr = {self.lr:g}, which memory efsignsgd of the same lr multiplies by first"
        return None


def sparse_of(frame: object, like: Tensor) -> Sparse:
    """The one tensor of a frame, as indices and values of torch's."""
    return decode(frame, sparse=True, like=like, tensors=0)
