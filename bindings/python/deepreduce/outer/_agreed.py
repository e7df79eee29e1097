"""The state that is the same on all workers: the last agreed weights and buffers, and the outer optimizer."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Union

import numpy
import torch

from .. import patch
from .._native._call import unsigned
from .._native._memory import tensor_bytes
from .._native._types import Array, SavedPart, SavedState
from ..errors import ArgumentError, CorruptFrame, Unsupported

Tensors = Dict[str, torch.Tensor]
Model = Union[torch.nn.Module, Mapping[str, torch.Tensor], Iterable[torch.Tensor]]
MakeOptimizer = Callable[[List[torch.Tensor]], torch.optim.Optimizer]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_META, _META_BYTES = "meta", 1024  # all but the tensors, as JSON, padded to a multiple of these bytes, so that its size seldom changes


class Local:
    """The tensors of a worker: a model's parameters that require gradients, and the buffers that it saves.

    weights  parameters
    means    buffers that are averaged over the workers: those of 16 and 32 bits of floating point
    copies   all other buffers: they are copied from the first worker
    """

    def __init__(self, model: Model) -> None:
        self.means: Tensors = {}
        self.copies: Tensors = {}
        self._model = model if isinstance(model, torch.nn.Module) else None
        if isinstance(model, torch.nn.Module):
            self.weights: Tensors = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
            saved = model.state_dict(keep_vars=True)
            for name, buffer in model.named_buffers():
                if name in saved:
                    (self.means if buffer.dtype in _FLOATS else self.copies)[name] = buffer
        elif isinstance(model, Mapping):
            self.weights = dict(model)
        elif isinstance(model, Iterable):
            self.weights = {str(i): tensor for i, tensor in enumerate(model)}
        else:
            raise ArgumentError(f"model is {model!r}, not a torch.nn.Module or parameters")
        if not self.weights:
            raise ArgumentError("there are no parameters that require gradients: nothing is trained")
        for name, tensor in self.weights.items():
            if not isinstance(tensor, torch.Tensor):
                raise ArgumentError(f"{name} is of type {type(tensor).__name__}, not a torch.Tensor")
            if tensor.dtype not in _FLOATS or tensor.layout != torch.strided or hasattr(tensor, "to_local"):
                kind = type(tensor).__name__ if hasattr(tensor, "to_local") else f"tensor of {tensor.dtype}"
                raise Unsupported(f"{name} is a {kind}; dense tensors of float32, float16 and bfloat16 are exchanged")

    def require_same(self) -> None:
        """ArgumentError if a parameter of the model was replaced: it would be trained, and an old one exchanged. A buffer may be
        replaced (self.ema = 0.9 * self.ema + …) by one of the same shape and type: from here on it is the one that is exchanged."""
        if self._model is None:
            return
        now = dict(self._model.named_parameters())
        for name, parameter in self.weights.items():
            if now.get(name) is not parameter:
                what = "replaced (load_state_dict(assign=True) does that)" if name in now else "removed"
                raise ArgumentError(f"{name}: this parameter was {what} after Outer was made: create a new Outer, or load into the old ones")
        buffers = dict(self._model.named_buffers(remove_duplicate=False))
        for name, was in {**self.means, **self.copies}.items():
            if name not in buffers:
                raise ArgumentError(f"{name}: this buffer was removed after Outer was made: create a new Outer")
            if _description(buffers[name]) != _description(was):
                before, here = _description(was), _description(buffers[name])
                raise ArgumentError(f"{name}: this buffer was {before} when Outer was made, and is {here}: create a new Outer")
        for group in (self.means, self.copies):
            group.update({name: buffers[name] for name in group})

    def descriptions(self) -> Dict[str, str]:
        """Shape and type of each tensor, to compare workers by."""
        tensors = {**self.weights, **self.means, **self.copies}
        return {name: _description(tensor) for name, tensor in tensors.items()}

    def fragments(self, count: int) -> List[List[str]]:
        """The names of weights, cut into `count` runs of about the same number of elements."""
        if not 1 <= unsigned(count, "fragments") <= len(self.weights):
            raise ArgumentError(f"fragments is {count}; the model has {len(self.weights)} parameters")
        total, found, before = sum(tensor.numel() for tensor in self.weights.values()), [[] for _ in range(count)], 0  # type: ignore[var-annotated]
        names = list(self.weights)
        for i, name in enumerate(names):
            # In the fragment of its middle element, but so that none is empty.
            middle = before + self.weights[name].numel() / 2
            at = int(count * middle / total) if total else 0
            found[min(max(at, count - (len(names) - i), 0), min(i, count - 1))].append(name)
            before += self.weights[name].numel()
        return found


class Agreed:
    """The last agreed weights (float32, beside the model's), buffers, and the outer optimizer that changes the weights."""

    def __init__(self, local: Local, make_optimizer: MakeOptimizer) -> None:
        with torch.no_grad():
            self.weights = {name: contiguous(tensor, torch.float32) for name, tensor in local.weights.items()}
            self.means = {name: contiguous(tensor, torch.float32) for name, tensor in local.means.items()}
            self.copies = {name: contiguous(tensor) for name, tensor in local.copies.items()}
        self._on_cpu: Tensors = {}
        self._check = ""  # "": they have changed since it was computed
        if not callable(make_optimizer):
            raise ArgumentError(f"optimizer is {make_optimizer!r}, not a function that returns a torch.optim.Optimizer of the weights")
        self.optimizer = make_optimizer(list(self.weights.values()))
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            raise ArgumentError(f"optimizer returned a {type(self.optimizer).__name__}, not a torch.optim.Optimizer")

    def apply(self, moves: Mapping[str, Any], means: Mapping[str, Any], copies: Optional[Mapping[str, Any]]) -> None:
        """Applies a round: the mean pseudo-gradients of some weights, the moves of buffers, and copied buffers."""
        self._check = ""
        with torch.no_grad():
            for name, move in moves.items():
                self.weights[name].grad = move.to(self.weights[name].device)
            self.optimizer.step()
            for weight in self.weights.values():
                weight.grad = None
            for name, move in means.items():
                self.means[name].sub_(move.to(self.means[name].device))
            for name, value in (copies or {}).items():
                self.copies[name].copy_(value)

    def on_cpu(self, names: Iterable[str]) -> Tensors:
        """These weights, on the CPU, at the same places in each call: plans with sparsify=visible read them."""
        for name in names:
            weight = self.weights[name]
            if weight.device.type == "cpu":
                self._on_cpu[name] = weight
            else:
                self._on_cpu.setdefault(name, torch.empty_like(weight, device="cpu")).copy_(weight)
        return {name: self._on_cpu[name] for name in names}

    def describe(self) -> str:
        """The outer optimizer, to compare workers by."""
        words = {key: value for key, value in self.optimizer.defaults.items() if isinstance(value, (bool, int, float, tuple))}
        return f"{type(self.optimizer).__name__}{sorted(words.items())}"

    # ---- The whole state, as arrays by name: for patch.Store ----

    def check(self) -> str:
        """A hash of weights and buffers, in 16 hexadecimal digits. It is computed once until they change."""
        if not self._check:
            self._check = self._compute_check()
        return self._check

    def _compute_check(self) -> str:
        arrays = self._tensors()
        sums = patch.Sums(arrays)
        lines = "\n".join(f"{name} {sums.check(name):016x}" for name in sorted(arrays))
        return hashlib.blake2b(lines.encode(), digest_size=8).hexdigest()

    def _tensors(self) -> Dict[str, Array]:
        groups = {"weight": self.weights, "mean": self.means, "copy": self.copies}
        return {f"{kind}/{name}": _array(tensor) for kind, group in groups.items() for name, tensor in group.items()}

    def arrays(self) -> Dict[str, Array]:
        """Weights, buffers and the optimizer's state, as arrays by name."""
        found, state = self._tensors(), self.optimizer.state_dict()
        rest: Dict[str, Any] = {"groups": state["param_groups"], "state": {}, "shapes": {}}
        for i, fields in state["state"].items():
            for key, value in fields.items():
                if isinstance(value, torch.Tensor):
                    found[f"optimizer/{i}/{key}"] = _array(value)
                    rest["shapes"][f"{i}/{key}"] = [list(value.shape), str(value.dtype)]
                else:
                    rest["state"].setdefault(str(i), {})[key] = value
        text = json.dumps(rest).encode()
        room = -(-len(text) // _META_BYTES) * _META_BYTES
        found[_META] = numpy.frombuffer(text.ljust(room), numpy.uint8)
        return found

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Loads what `arrays` returned. Raises CorruptFrame for the arrays of another model; then nothing has changed."""
        here = self._tensors()
        self._check = ""
        others = [name for name in arrays if name != _META and not name.startswith("optimizer/")]
        if sorted(others) != sorted(here) or any(arrays[name].nbytes != here[name].nbytes for name in here):
            raise CorruptFrame("the stored weights are of another model")
        try:
            self._load_optimizer(arrays)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CorruptFrame(f"the state of the outer optimizer is damaged: {error!r}") from None
        with torch.no_grad():
            for kind, group in (("weight", self.weights), ("mean", self.means), ("copy", self.copies)):
                for name, tensor in group.items():
                    tensor.copy_(_tensor(arrays[f"{kind}/{name}"], tensor))

    def _load_optimizer(self, arrays: Mapping[str, Array]) -> None:
        rest = json.loads(bytes(arrays[_META]).decode())
        state: Dict[int, Dict[str, Any]] = {int(i): dict(fields) for i, fields in rest["state"].items()}
        for place, (shape, dtype) in rest["shapes"].items():
            i, _, key = place.partition("/")
            kind = getattr(torch, dtype.rpartition(".")[2])
            state.setdefault(int(i), {})[key] = _tensor(arrays[f"optimizer/{place}"], torch.empty(shape, dtype=kind, device="meta"))
        self.optimizer.load_state_dict({"state": state, "param_groups": rest["groups"]})

    # ---- Checkpoints ----

    def state_dict(self) -> SavedState:
        groups = {"weights": self.weights, "means": self.means, "copies": self.copies}
        found: Dict[str, Any] = {kind: {name: tensor.clone() for name, tensor in group.items()} for kind, group in groups.items()}
        return {**found, "optimizer": copy.deepcopy(self.optimizer.state_dict())}

    def load_state_dict(self, state: SavedPart) -> None:
        groups = {"weights": self.weights, "means": self.means, "copies": self.copies}
        for kind, group in groups.items():
            require_same_tensors(state[kind], group, f"the state's {kind}")
        self._check = ""
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        with torch.no_grad():
            for kind, group in groups.items():
                for name, tensor in group.items():
                    tensor.copy_(state[kind][name])


def require_same_tensors(given: Mapping[str, Any], here: Mapping[str, torch.Tensor], what: str) -> None:
    """ArgumentError unless names and shapes are the same."""
    if set(given) != set(here):
        lacks, more = sorted(set(here) - set(given)), sorted(set(given) - set(here))
        raise ArgumentError(f"{what} are of another model: without {lacks[:5]}, and with {more[:5]}")
    for name, tensor in here.items():
        if tuple(given[name].shape) != tuple(tensor.shape):
            raise ArgumentError(f"{what} are of another model: {name} is {list(given[name].shape)}, here {list(tensor.shape)}")


def _description(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype}"


def contiguous(tensor: torch.Tensor, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    """A copy, contiguous whatever the tensor's strides (channels_last, say)."""
    return tensor.detach().to(dtype or tensor.dtype, copy=True, memory_format=torch.contiguous_format)


def less(a: torch.Tensor, b: torch.Tensor, out: Optional[torch.Tensor] = None) -> torch.Tensor:
    """a less b, and 0 where they are equal: of infinite values too (the mask of an attention), whose difference is NaN. The
    elements are compared only where a sum shows that there may be such values."""
    found = torch.sub(a, b, out=out)
    if not math.isfinite(found.sum().item()):
        found.masked_fill_(a == b, 0)
    return found


def sgd(rate: float, momentum: float) -> MakeOptimizer:
    """The outer optimizers of the defaults: Nesterov's, where there is a momentum."""
    return lambda weights: torch.optim.SGD(weights, lr=rate, momentum=momentum, nesterov=momentum > 0)


def bytes_of(tensors: Sequence[torch.Tensor]) -> bytes:
    """The bytes of tensors of any type, one after the other."""
    return b"".join(_array(tensor).tobytes() for tensor in tensors)


def tensors_from(data: bytes, like: Mapping[str, torch.Tensor]) -> Tensors:
    """The tensors of which bytes_of returned `data`, on the CPU."""
    found, at = {}, 0
    for name, tensor in like.items():
        size = tensor.numel() * tensor.element_size()
        found[name] = _tensor(numpy.frombuffer(data[at : at + size], numpy.uint8), tensor)
        at += size
    return found


def _array(tensor: torch.Tensor) -> Array:
    """A flat array on the CPU: of float32, or of bytes for all other types."""
    held = tensor.detach().cpu().contiguous()
    found: Array = (held.reshape(-1) if held.dtype == torch.float32 else tensor_bytes(held)).numpy()
    return found


def _tensor(array: Array, like: torch.Tensor) -> torch.Tensor:
    if not array.size and not like.numel():  # (of no elements torch makes a tensor that cannot be viewed as another type)
        return torch.empty_like(like, device="cpu", memory_format=torch.contiguous_format)
    return torch.from_numpy(array.copy()).view(torch.uint8).view(like.dtype).reshape(like.shape)
