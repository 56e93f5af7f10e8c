"""The sum of information over groups on a GPU: launches of the kernels in ``kernels_triton``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fishnets.algebra.cholesky import factor_rank
from fishnets.algebra.packing import packed_size
from fishnets.ops.dispatch import HAS_TRITON, on_device
from fishnets.ops.schedule import owners, schedule

__all__ = ["FORMS", "MAX_PARAMS", "add_rest", "backward", "dense", "forward", "obstacle", "unsupported"]

MAX_PARAMS = 16
MAX_BATCH = 1024  # the second dimension of a grid ends at 65,535
STEPS = 64  # of the loop over a group's first item
FORMS = {"score": 0, "regression": 1, "location": 2}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def obstacle(raw: Tensor, num_params: int) -> str | None:
    """Why the kernels cannot run on these outputs, or None when they can."""
    if not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured, and kernels are scheduled by the host"
    return unsupported(raw, num_params)


def unsupported(raw: Tensor, num_params: int) -> str | None:
    """Why there are no kernels for these outputs, or None when there are; they run where they have a schedule."""
    if not HAS_TRITON:
        return "Triton is not installed"
    if raw.dtype not in DTYPES:
        return f"the outputs are {raw.dtype} and float32, bfloat16 and float16 are fused on a GPU"
    if num_params > MAX_PARAMS:
        return f"there are {num_params} parameters and at most {MAX_PARAMS} are fused"
    if raw.shape[:-2].numel() > MAX_BATCH:
        return f"there are {raw.shape[:-2].numel()} batches of rows and at most {MAX_BATCH} are fused"
    return None


@on_device
def forward(
    raw: Tensor,
    num_params: int,
    ptr: Tensor,
    kind: str,
    form: str,
    weight: Tensor | None = None,
    order: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Sums of the groups, float32, shape (B, g, p + p(p+1)/2), columns one behind the other in memory.

    A bias (p + w,) is added to every row first.
    """
    from fishnets.ops.segment_information import kernels_triton as kernels

    (batch, num_rows, _), num_groups = raw.shape, len(ptr) - 1
    weight, order = dense(weight), dense(order)
    width = num_params + packed_size(num_params)
    out = raw.new_empty((batch, width, num_groups), dtype=torch.float32)
    if num_groups == 0 or batch == 0:
        return out.mT
    lanes = _lanes(num_rows / num_groups / 4, 8)
    cut = schedule(ptr, STEPS * lanes, 1)  # columns lie one behind the other: groups side by side share their lines
    options = _options(raw, num_params, kind, form, weight)
    options |= {"HAS_ORDER": order is not None, "HAS_BIAS": bias is not None}
    given, tile = (raw, order, weight, bias), {"ITEMS": 32 // lanes, "LANES": lanes, "num_warps": 1}
    items, grid = cut.first, (-(-num_groups * lanes // 32), batch)
    runs = (items.starts, items.stops, items.place, out, num_groups, num_groups)
    kernels.sum_rows[grid](*given, *runs, *raw.stride(), **options, **tile)
    if cut.rest is not None:
        items, count = cut.rest, len(cut.rest.starts)
        parts = out.new_empty((batch, width, count))
        runs = (items.starts, items.stops, items.place, parts, count, count)
        kernels.sum_rows[count, batch](*given, *runs, *raw.stride(), **options, ITEMS=1, LANES=128, num_warps=4)
        add_rest(parts, cut.heavy, cut.bounds, out)
    return out.mT


def add_rest(parts: Tensor, heavy: Tensor, bounds: Tensor, out: Tensor) -> None:
    """Adds the sums (B, W, items) of items beyond the first to those of their groups (B, W, g), in order."""
    from fishnets.ops.segment_information import kernels_triton as kernels

    columns = parts.shape[0] * parts.shape[1]
    sizes = (parts.shape[2], out.shape[2], columns)
    kernels.add_parts[(len(heavy) * columns,)](parts, heavy, bounds, out, *sizes, LANES=128, num_warps=4)


@on_device
def backward(
    grad: Tensor,
    raw: Tensor,
    num_params: int,
    ptr: Tensor,
    kind: str,
    form: str,
    weight: Tensor | None = None,
    order: Tensor | None = None,
    need_weight: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the outputs, in their layout, and of the weights (n,) where they are needed."""
    from fishnets.ops.segment_information import kernels_triton as kernels

    (batch, num_rows, _), num_groups = raw.shape, len(ptr) - 1
    weight, order = dense(weight), dense(order)
    grad_raw = torch.empty_like(raw)  # keeps the strides of a dense tensor
    grad_weight = raw.new_empty((batch, num_rows), dtype=torch.float32) if need_weight else None
    if num_rows and batch:
        rows = grad.to(torch.float32).contiguous()
        options = _options(raw, num_params, kind, form, weight)
        flags = {"NEED_WEIGHT": need_weight, "LANES": 64, "num_warps": 2}
        given = (rows, raw, weight, owners(ptr, num_rows, order), grad_raw, grad_weight, num_groups, num_rows)
        strides = (*raw.stride(), *grad_raw.stride())
        kernels.rows_backward[-(-num_rows // 64), batch](*given, *strides, **options, **flags)
    return grad_raw, None if grad_weight is None else grad_weight.sum(0)


def dense(column: Tensor | None) -> Tensor | None:
    """A column of numbers one behind the other, as kernels read it; columns of a table are not."""
    return None if column is None else column.contiguous()


def _lanes(typical: float, least: int) -> int:
    """Lanes for a group of typical size: a power of two, at most a warp."""
    return next(size for size in (4, 8, 16, 32) if size >= least and (size >= typical or size == 32))


def _options(raw: Tensor, num_params: int, kind: str, form: str, weight: Tensor | None) -> dict[str, Any]:
    """What kernels are compiled for."""
    number = {"full": 0, "diagonal": 1}.get(kind, 2)
    shape = {"P": num_params, "R": factor_rank(kind, num_params), "KIND": number, "FORM": FORMS[form]}
    return shape | {"HAS_WEIGHT": weight is not None}
