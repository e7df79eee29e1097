"""What all workers have alike: the last agreed weights and buffers, and the outer optimizer."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Union

import numpy
import torch

from .. import patch
from .._native._types import Array
from ..errors import ArgumentError, CorruptFrame, Unsupported

Tensors = Dict[str, torch.Tensor]
Model = Union[torch.nn.Module, Mapping[str, torch.Tensor], Iterable[torch.Tensor]]
MakeOptimizer = Callable[[List[torch.Tensor]], torch.optim.Optimizer]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_META, _META_BYTES = "meta", 1024  # what is no tensor, as JSON: in a multiple of so many bytes, so that its size stays


class Local:
    """The tensors that a worker trains: of a model its parameters that require gradients, and the buffers that it saves.

    weights  parameters
    means    buffers that become the workers' mean: those of 16 and 32 bits of floating point
    copies   all other buffers: they become those of the first worker
    """

    def __init__(self, model: Model) -> None:
        self.means: Tensors = {}
        self.copies: Tensors = {}
        if isinstance(model, torch.nn.Module):
            self.weights: Tensors = {name: each for name, each in model.named_parameters() if each.requires_grad}
            saved = model.state_dict(keep_vars=True)
            for name, each in model.named_buffers():
                if name in saved:
                    (self.means if each.dtype in _FLOATS else self.copies)[name] = each
        elif isinstance(model, Mapping):
            self.weights = dict(model)
        else:
            self.weights = {str(i): each for i, each in enumerate(model)}
        if not self.weights:
            raise ArgumentError("there are no parameters that require gradients: nothing is trained")
        for name, each in self.weights.items():
            if not isinstance(each, torch.Tensor):
                raise ArgumentError(f"{name} is of type {type(each).__name__}, not a torch.Tensor")
            if each.dtype not in _FLOATS or each.layout != torch.strided or hasattr(each, "to_local"):
                kind = type(each).__name__ if hasattr(each, "to_local") else f"tensor of {each.dtype}"
                raise Unsupported(f"{name} is a {kind}; dense tensors of float32, float16 and bfloat16 are exchanged")

    def fragments(self, count: int) -> List[List[str]]:
        """The names of weights, in `count` runs of about as many elements each."""
        if not 1 <= count <= len(self.weights):
            raise ArgumentError(f"fragments is {count}; the model has {len(self.weights)} parameters")
        total, found, before = sum(each.numel() for each in self.weights.values()), [[] for _ in range(count)], 0  # type: ignore[var-annotated]
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
            self.weights = {name: each.detach().to(torch.float32, copy=True) for name, each in local.weights.items()}
            self.means = {name: each.detach().to(torch.float32, copy=True) for name, each in local.means.items()}
            self.copies = {name: each.detach().clone() for name, each in local.copies.items()}
        self.optimizer = make_optimizer(list(self.weights.values()))
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            raise ArgumentError(f"optimizer gave a {type(self.optimizer).__name__}, not a torch.optim.Optimizer")

    def apply(self, moves: Mapping[str, Any], means: Mapping[str, Any], copies: Optional[Mapping[str, Any]]) -> None:
        """A round: the mean pseudo-gradients of some weights, and what buffers move."""
        with torch.no_grad():
            for name, each in moves.items():
                self.weights[name].grad = each.to(self.weights[name].device)
            self.optimizer.step()
            for each in self.weights.values():
                each.grad = None
            for name, each in means.items():
                self.means[name].sub_(each.to(self.means[name].device))
            for name, each in (copies or {}).items():
                self.copies[name].copy_(each)

    def describe(self) -> str:
        """The outer optimizer, to compare workers by."""
        words = {key: value for key, value in self.optimizer.defaults.items() if isinstance(value, (bool, int, float, tuple))}
        return f"{type(self.optimizer).__name__}{sorted(words.items())}"

    # ---- All of it, as arrays by name: for patch.Store ----

    def check(self) -> str:
        """16 digits that differ where weights or buffers do."""
        arrays = self._tensors()
        sums = patch.Sums(arrays)
        told = "\n".join(f"{name} {sums.check(name):016x}" for name in sorted(arrays))
        return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()

    def _tensors(self) -> Dict[str, Array]:
        groups = {"weight": self.weights, "mean": self.means, "copy": self.copies}
        return {f"{kind}/{name}": _array(each) for kind, group in groups.items() for name, each in group.items()}

    def arrays(self) -> Dict[str, Array]:
        """All, also the optimizer's state."""
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
        """Takes what arrays gave. Raises CorruptFrame for those of another model; then nothing has changed."""
        here = self._tensors()
        others = [name for name in arrays if name != _META and not name.startswith("optimizer/")]
        if sorted(others) != sorted(here) or any(arrays[name].nbytes != here[name].nbytes for name in here):
            raise CorruptFrame("the stored weights are of another model")
        rest = json.loads(bytes(arrays[_META]).decode())
        state: Dict[int, Dict[str, Any]] = {int(i): dict(fields) for i, fields in rest["state"].items()}
        for place, (shape, dtype) in rest["shapes"].items():
            i, _, key = place.partition("/")
            kind = getattr(torch, dtype.rpartition(".")[2])
            value = torch.from_numpy(arrays[f"optimizer/{place}"].copy()).view(torch.uint8).view(kind).reshape(shape)
            state.setdefault(int(i), {})[key] = value
        self.optimizer.load_state_dict({"state": state, "param_groups": rest["groups"]})
        with torch.no_grad():
            for kind, group in (("weight", self.weights), ("mean", self.means), ("copy", self.copies)):
                for name, each in group.items():
                    each.copy_(_tensor(arrays[f"{kind}/{name}"], each))

    # ---- Checkpoints ----

    def state_dict(self) -> Dict[str, Any]:
        groups = {"weights": self.weights, "means": self.means, "copies": self.copies}
        found: Dict[str, Any] = {kind: {name: each.clone() for name, each in group.items()} for kind, group in groups.items()}
        return {**found, "optimizer": copy.deepcopy(self.optimizer.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        groups = {"weights": self.weights, "means": self.means, "copies": self.copies}
        for kind, group in groups.items():
            require_same_tensors(state[kind], group, f"the state's {kind}")
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        with torch.no_grad():
            for kind, group in groups.items():
                for name, each in group.items():
                    each.copy_(state[kind][name])


def require_same_tensors(given: Mapping[str, Any], here: Mapping[str, torch.Tensor], what: str) -> None:
    """ArgumentError unless names and shapes are the same."""
    if set(given) != set(here):
        lacks, more = sorted(set(here) - set(given)), sorted(set(given) - set(here))
        raise ArgumentError(f"{what} are of another model: without {lacks[:5]}, and with {more[:5]}")
    for name, each in here.items():
        if tuple(given[name].shape) != tuple(each.shape):
            raise ArgumentError(f"{what} are of another model: {name} is {list(given[name].shape)}, here {list(each.shape)}")


def sgd(rate: float, momentum: float) -> MakeOptimizer:
    """The outer optimizers of the defaults: Nesterov's, where there is a momentum."""
    return lambda weights: torch.optim.SGD(weights, lr=rate, momentum=momentum, nesterov=momentum > 0)


def bytes_of(tensors: Sequence[torch.Tensor]) -> bytes:
    """Of tensors of any type, one behind the other."""
    return b"".join(_array(each).tobytes() for each in tensors)


def tensors_from(data: bytes, like: Mapping[str, torch.Tensor]) -> Tensors:
    """What bytes_of was given, on the CPU."""
    found, at = {}, 0
    for name, each in like.items():
        size = each.numel() * each.element_size()
        found[name] = _tensor(numpy.frombuffer(data[at : at + size], numpy.uint8), each)
        at += size
    return found


def _array(tensor: torch.Tensor) -> Array:
    """Flat, on the CPU; float32 as it is, all else as bytes."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    found: Array = (flat if flat.dtype == torch.float32 else flat.view(torch.uint8)).numpy()
    return found


def _tensor(array: Array, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(array.copy()).view(torch.uint8).view(like.dtype).reshape(like.shape)
