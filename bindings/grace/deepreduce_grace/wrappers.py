"""DeepReduce as in its paper (Kostopoulou et al., NeurIPS 2021): a wrapper around a sparsifier of GRACE, which codes indices,
values, or both. Names and keys are those of its scripts; the frames are the library's."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from deepreduce.encoding import encode
from deepreduce.errors import ArgumentError
from deepreduce.header import inspect
from deepreduce.plan import Plan, as_plan
from deepreduce.tensor import Sparse
from .compressors import Context, PlanCompressor, Steps, bytes_of, flat_on_host, frame_bound, require_keys, sparse_of, tag_of
from .contracts import Communicator, Compressor, Ctx, Options, Params, SavedState, rank_of
from .factory import UnknownName, grace_from_params, require_params
from .meters import count


SMALL = 1000  # elements; up to this size indices and values are sent in a frame as they are

_POLICIES = {"leftmost": "leftmost", "random": "p1", "p0": "p0", "p1": "p1", "p2": "p2", "naive": "naive",
             "middle": "middle", "rightmost": "rightmost"}  # fmt: skip


def _bloom(params: Params) -> str:
    policy = params.get("policy") or "leftmost"
    if policy not in list(_POLICIES):
        raise UnknownName(f"no policy is called {policy!r}; there are: {', '.join(_POLICIES)}")
    try:
        fpr = float(params.get("fpr") or 0)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"fpr is {params['fpr']!r}, not a number") from None
    # Without fpr, `SparseWrapper` replaces {fpr} by a tenth of the density.
    return f"bloom(policy={_POLICIES[policy]}" + (f",fpr={fpr!r})" if fpr else ",fpr={fpr})")


def _qsgd(params: Params) -> str:
    return f"qsgd(levels={params.get('quantum_num', 127)},bucket={params.get('bucket_size', 512)})"


INDEX: Dict[str, Callable[[Params], str]] = {
    "bloom": _bloom,
    "bloom_cpu": _bloom,
    "rle": lambda params: "rle",
    "huffman": lambda params: "raw+huffman",
    "gzip": lambda params: "raw+deflate",
}

VALUE: Dict[str, Callable[[Params], str]] = {
    "polyfit": lambda params: f"fit_poly(degree={params.get('poly_degree', 5)})",
    "polyfit_cpu": lambda params: f"fit_poly(degree={params.get('poly_degree', 5)},knots=chord,segments=5)",
    "qsgd": _qsgd,
    "gzip": lambda params: "raw+deflate",
}


def codec_of(role: str, name: object, params: Params) -> str:
    """The text of a codec, for a name of DeepReduce or the text of a codec in a plan, such as "golomb(adaptive=1)". Raises UnknownName."""
    known = INDEX if role == "index" else VALUE
    if name in known:
        return known[name](params)
    try:
        as_plan(f"{role}={name}")
    except ArgumentError as error:
        raise UnknownName(f"no {role} codec is called {name!r}; there are: {', '.join(known)}, and those of plans: {error}") from None
    return str(name)


class SparseWrapper(Compressor):
    """Base of the wrappers.

    sparsifier  topk or threshold, or any other compressor whose `compress` returns (values, indices) and a ctx. Of a sparsifier of
                this package only the stage `sparsify=` is used: the support is selected once, and false positives of a Bloom filter
                have the values of the dense tensor. With other sparsifiers false positives are 0
    params      the keys of deepreduce_from_params

    The payload is a frame. Tensors of up to 1000 elements are sent as keys and values.
    """

    coded: Tuple[str, ...] = ()
    linear, sparse = False, True

    def __init__(self, sparsifier: Compressor, params: Params) -> None:
        if getattr(sparsifier, "sparse", None) is False:
            raise ArgumentError(f"{type(sparsifier).__name__} sends all elements: DeepReduce wraps a sparsifier, topk or threshold")
        super().__init__(sparsifier.average, tensors_size_are_same=False)
        texts = {"index": "raw", "value": "raw"}
        inner = sparsifier
        if isinstance(sparsifier, SparseWrapper):  # its codecs are used, too
            texts = {"index": sparsifier.index, "value": sparsifier.value}
            inner = sparsifier.sparsifier
        self.sparsifier: Compressor = inner
        defaults = {"index": "bloom", "value": "polyfit"}
        texts.update({role: codec_of(role, params.get(role, defaults[role]), params) for role in self.coded})
        self.index: str = texts["index"]
        self.value: str = texts["value"]
        if hasattr(inner, "sparsify"):
            self.sparsify: Callable[[int], str] = inner.sparsify
        self._fpr = "0"  # false-positive rate, as in a plan
        self._steps, self._prints = Steps(), bool(params.get("micro-benchmark"))
        self._draws: Options = {key: getattr(inner, f"_{key}", params.get(key, default)) for key, default in (("seed", 0), ("group", None))}
        self._plans: PlanCompressor = PlanCompressor(self._plan, inner.average, **self._draws)

    def _plan(self, elements: int) -> str:
        sparsify = self.sparsify(elements) if hasattr(self, "sparsify") else "none"
        if elements <= SMALL:
            return f"sparsify={sparsify} index=raw value=raw"
        return f"sparsify={sparsify} index={self.index.replace('{fpr}', self._fpr)} value={self.value}"

    def _set_fpr(self, count: int, elements: int) -> None:
        """Sets the paper's default, rounded to two digits, so that a plan is parsed once for many steps."""
        self._fpr = f"{0.1 * max(count, 1) / max(elements, 1):.1e}"

    def compress(self, tensor: Tensor, name: str) -> Tuple[List[Tensor], Ctx]:
        begin = time.perf_counter()
        if hasattr(self, "sparsify"):
            if "{fpr}" in self.index and hasattr(self.sparsify, "count"):
                self._set_fpr(self.sparsify.count(tensor), tensor.numel())
            payload, ctx = self._plans.compress(tensor, name)
        else:
            payload, ctx = self._compress_another(tensor, name)
        if self._prints:
            self._print(tensor, payload, begin)
        return payload, ctx

    def bound(self, elements: int) -> int:
        return frame_bound(elements)

    def skip(self, name: str) -> None:
        if hasattr(self, "sparsify"):
            self._plans.skip(name)
        else:
            self._steps.next(name)
            getattr(self.sparsifier, "skip", lambda _: None)(name)

    def _compress_another(self, tensor: Tensor, name: str) -> Tuple[List[Tensor], Ctx]:
        step, key = self._steps.next(name)
        (values, indices), inner = self.sparsifier.compress(tensor, name)
        elements = tensor.numel()
        sparse = Sparse(indices.detach().to("cpu"), flat_on_host(values, name), (elements,))
        self._set_fpr(indices.numel(), elements)
        plan: Plan = as_plan(self._plan(elements))
        draws = {"seed": self._draws["seed"], "private_seed": rank_of(self._draws["group"])}
        tag = tag_of(f"{name} {elements} {values.dtype}", step)
        frame = encode(sparse, plan, step=step, key=key, tag=tag, **draws)
        payload = [torch.frombuffer(bytearray(frame), dtype=torch.uint8).to(tensor.device)]
        count(payload, tensor)
        return payload, (Context(tensor.shape, tensor.dtype, tag), inner)

    def decompress(self, tensors: Sequence[Tensor], ctx: Ctx) -> Tensor:
        begin = time.perf_counter()
        if isinstance(ctx, Context):
            dense = self._plans.decompress(tensors, ctx)
        else:
            form, inner = ctx
            device = tensors[0].device
            found = sparse_of(bytes_of(tensors), torch.empty(0, dtype=form.dtype))
            dense = self.sparsifier.decompress((found.values.to(device), found.indices.to(device)), inner)
        if self._prints:
            print(f"decompress: {1e3 * (time.perf_counter() - begin):.3f} ms")
        return dense

    def decompress_add(self, tensors: Sequence[Tensor], ctx: Ctx, out: Tensor, scale: float = 1.0) -> None:
        if isinstance(ctx, Context):
            self._plans.decompress_add(tensors, ctx, out, scale)
        else:
            super().decompress_add(tensors, ctx, out, scale)

    def merge(self, payloads: Sequence[Sequence[Tensor]], ctx: Ctx) -> Tensor:
        begin = time.perf_counter()
        if not isinstance(ctx, Context):
            return super().merge(payloads, ctx)
        total = self._plans.merge(payloads, ctx)
        if self._prints:
            print(f"decompress: {1e3 * (time.perf_counter() - begin):.3f} ms, {len(payloads)} ranks")
        return total

    def aggregate(self, tensors: Sequence[Tensor]) -> Tensor:
        return self.sparsifier.aggregate(tensors)

    def _print(self, tensor: Tensor, payload: Sequence[Tensor], begin: float) -> None:
        """The paper's micro-benchmark: times, and volumes relative to the dense tensor."""
        seconds = time.perf_counter() - begin
        (info,) = inspect(bytes_of(payload)).tensors
        dense = max(1, tensor.numel() * tensor.element_size())
        print(
            f"compress: {1e3 * seconds:.3f} ms, {tensor.numel()} elements, {info.support} sent; relative volume: "
            f"indices {(info.index_size + info.order_size) / dense:.5f}, values {info.value_size / dense:.5f}, "
            f"frame {payload[0].numel() / dense:.5f}"
        )

    def state_dict(self) -> SavedState:
        return {"plans": self._plans.state_dict(), "steps": dict(self._steps.steps), "sparsifier": self.sparsifier.state_dict()}

    @property
    def kind(self) -> str:
        return f"{type(self).__name__} of {self.sparsifier.kind}: {self._plans.kind}"

    @property
    def nbytes(self) -> int:
        return self._plans.nbytes + self.sparsifier.nbytes

    def reset(self, name: Optional[str] = None) -> None:
        self._plans.reset(name)
        self.sparsifier.reset(name)

    def load_state_dict(self, state: SavedState) -> None:
        require_keys(self, state, "plans", "steps", "sparsifier")
        self._plans.load_state_dict(state["plans"])
        self._steps.steps = dict(state["steps"])
        self.sparsifier.load_state_dict(state["sparsifier"])


class ValueCompressor(SparseWrapper):
    """Codes the values: params["value"] is polyfit (default), polyfit_cpu, qsgd, gzip, or a value codec of a plan."""

    coded = ("value",)


class IndexCompressor(SparseWrapper):
    """Codes the indices: params["index"] is bloom (default), bloom_cpu, rle, huffman, gzip, or an index codec of a plan."""

    coded = ("index",)


class DeepReduce(SparseWrapper):
    """Codes both. The permutation of a value codec that sorts is packed into the minimum number of bits."""

    coded = ("index", "value")


WRAPPERS = {"value": ValueCompressor, "index": IndexCompressor, "both": DeepReduce}


def deepreduce_from_params(params: Params, **options: Any) -> Communicator:
    """grace_from_params, with a wrapper around the compressor by params["deepreduce"]: None, "value", "index" or "both".

    value, poly_degree (5), quantum_num (127), bucket_size (512)  the codec of the values
    index, policy (leftmost), fpr (a tenth of the density)        the codec of the indices
    micro-benchmark                                               True: prints times and volumes
    sort, hash_table, dense_tensor                                have no effect here: there is no hash table, and codecs sort
                                                                  by themselves
    options                                                       those of grace_from_params

    The sparsifier is topk or threshold; dgc and randomk are accepted, too. Raises the errors of grace_from_params.

    >>> import deepreduce.grace
    >>> grc = deepreduce.grace.deepreduce_from_params({
    ...     "compressor": "topk", "memory": "residual", "communicator": "allgather", "compress_ratio": 0.01,
    ...     "deepreduce": "index", "index": "bloom", "policy": "p0"})
    """
    require_params(params)
    mode = params.get("deepreduce")
    if mode is not None and mode not in list(WRAPPERS):
        raise UnknownName(f"deepreduce is {mode!r}; there are: None, {', '.join(WRAPPERS)}")
    grace = grace_from_params({key: value for key, value in params.items() if key != "deepreduce"}, **options)
    if mode is not None:
        grace.compressor = WRAPPERS[mode](grace.compressor, params)
    return grace
