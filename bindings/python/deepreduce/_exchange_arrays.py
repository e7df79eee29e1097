"""The tensors of an exchange, and where its result goes, as the library sees them."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Sequence, Union

from ._bound_calls import require_in_place
from ._native import _abi
from ._tensors import Inputs, Shape, arrays_like, dense_outputs, name_outputs, read_inputs, shape_of
from .errors import ArgumentError
from .plan import Plan, as_plan
from .tensor import Sparse


def borrow(x: Any, plan: Union[str, Plan], out: Any, rows: Optional[int]) -> tuple[Inputs, Any, Any]:
    """dr_tensors of x, dr_tensor_outs, and the arrays that those are. rows: the most of each Sparse."""
    if isinstance(plan, (list, tuple)):
        raise ArgumentError("an exchange has one plan for all tensors")
    inputs = read_inputs(x, plan, None, None, False, name_outputs(out))
    if inputs.place is not None:
        raise ArgumentError("x is on a GPU; an exchange is of arrays on the CPU")
    require_in_place(x)
    if rows is not None:
        _require_rows(inputs, rows)
    shapes = [shape_of(tensor, each) for tensor, each in zip(inputs.tensors, x if inputs.is_list else [x])]
    if out is None and not any(isinstance(each, Sparse) for each in (x if inputs.is_list else [x])):
        out = arrays_like(x, _abi.DR_F32, None)
    outs, made = dense_outputs(shapes, out, inputs.is_list, _abi.DR_F32, None)
    inputs.alive += made  # and not the list, which is the caller's to change
    if as_plan(plan).info.transforms:
        _as_matrices(inputs.tensors, outs, shapes)
    return inputs, outs, out if out is not None else made if inputs.is_list else made[0]


def _as_matrices(tensors: Any, outs: Any, shapes: Sequence[Shape]) -> None:
    """A transform sees the first dimension by all others."""
    for tensor, out, each in zip(tensors, outs, shapes):
        rows = each.shape[0] if len(each.shape) > 1 and each.shape[0] else 1
        width = each.universe * each.width // rows
        if len(each.shape) > 1 and 0 < width < 2**32:
            tensor.universe = out.universe = rows
            tensor.width = out.width = width


def _require_rows(inputs: Inputs, rows: int) -> None:
    """ArgumentError for a Sparse of more rows."""
    if not any(each.index_dtype for each in inputs.tensors):
        raise ArgumentError(f"rows = {rows} is for a Sparse, and x has none")
    for i, each in enumerate(inputs.tensors):
        if each.index_dtype and each.count > rows:
            name = f"x[{i}]" if inputs.is_list else "x"
            raise ArgumentError(f"{name} has {each.count} rows, rows = {rows} is the most", tensor=i)


_NO_ROW = (ctypes.c_uint64 * 1)()  # where rows would be that nobody reads


def of_rows(tensors: Any, rows: int) -> Any:
    """dr_tensors like these, but with so many rows of each Sparse: to make room for."""
    most = type(tensors).from_buffer_copy(tensors)
    for each in most:
        if each.index_dtype:
            each.count, each.indices, each.values = rows, ctypes.addressof(_NO_ROW), ctypes.addressof(_NO_ROW)
    return most
