"""The sum of information over groups on a GPU: launches of the kernels in ``kernels_triton``.

The first ``FIRST`` positions of a group are one item; what a larger group has beyond is cut into items of ``REST``,
whose sums are added in order. So a group with all rows does not serialise the GPU, nothing is added atomically, and results are the
same from run to run. How many items there are is bounded by the number of rows: the host never waits for the GPU.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fishnets.algebra.cholesky import factor_rank
from fishnets.algebra.packing import packed_size

__all__ = ["MAX_PARAMS", "backward", "forward", "obstacle"]

MAX_PARAMS = 16
FIRST, REST = 1024, 4096
FORMS = {"score": 0, "regression": 1, "location": 2}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, eq=False)
class Items:
    """Runs of positions (items,), the group of each and the items of each group where those are not the groups."""

    starts: Tensor
    stops: Tensor
    group: Tensor | None = None
    bounds: Tensor | None = None


def obstacle(raw: Tensor, num_params: int) -> str | None:
    """Why the kernels cannot run on these outputs, or None when they can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if raw.dtype not in DTYPES:
        return f"the outputs are {raw.dtype} and float32, bfloat16 and float16 are fused on a GPU"
    if num_params > MAX_PARAMS:
        return f"there are {num_params} parameters and at most {MAX_PARAMS} are fused"
    return None


def forward(
    raw: Tensor,
    num_params: int,
    ptr: Tensor,
    kind: str,
    form: str,
    weight: Tensor | None = None,
    order: Tensor | None = None,
) -> Tensor:
    """Sums of the groups, float32, shape (B, g, p + p(p+1)/2), columns one behind the other in memory."""
    from fishnets.ops.segment_information import kernels_triton as kernels

    (batch, num_rows, _), num_groups = raw.shape, len(ptr) - 1
    width = num_params + packed_size(num_params)
    out = raw.new_empty((batch, width, num_groups), dtype=torch.float32)
    if num_groups == 0 or batch == 0:
        return out.mT
    options = _options(raw, num_params, kind, form, weight, order)
    for items in _items(ptr, num_rows):
        count, grid, tile = len(items.starts), *_tile(items, batch, num_rows)
        total = out if items.group is None else out.new_empty((batch, width, count))
        runs = (items.starts, items.stops, total, count)
        kernels.sum_rows[grid](raw, order, weight, *runs, *raw.stride(), **options, **tile)
        if items.group is not None:
            runs = (total, items.group, items.bounds, out, count, num_groups)
            kernels.add_parts[count, batch * width](*runs, LANES=32, num_warps=1)
    return out.mT


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
    grad_raw = torch.empty_like(raw)  # keeps the strides of a dense tensor
    grad_weight = raw.new_empty((batch, num_rows), dtype=torch.float32) if need_weight else None
    if num_rows == 0 or batch == 0:
        return grad_raw, None if grad_weight is None else grad_weight.sum(0)
    columns = grad.to(torch.float32).mT.contiguous()
    options = _options(raw, num_params, kind, form, weight, order) | {"NEED_WEIGHT": need_weight}
    for items in _items(ptr, num_rows):
        count, grid, tile = len(items.starts), *_tile(items, batch, num_rows)
        runs = (items.starts, items.stops, items.group, grad_raw, grad_weight, count, num_groups, num_rows)
        kernels.rows_backward[grid](
            columns, raw, order, weight, *runs, *raw.stride(), **options, **tile, HAS_GROUP=items.group is not None
        )
    return grad_raw, None if grad_weight is None else grad_weight.sum(0)


def _options(
    raw: Tensor, num_params: int, kind: str, form: str, weight: Tensor | None, order: Tensor | None
) -> dict[str, Any]:
    """What kernels are compiled for."""
    number = {"full": 0, "diagonal": 1}.get(kind, 2)
    shape = {"P": num_params, "R": factor_rank(kind, num_params), "KIND": number, "FORM": FORMS[form]}
    return shape | {"HAS_ORDER": order is not None, "HAS_WEIGHT": weight is not None}


def _items(ptr: Tensor, num_rows: int) -> list[Items]:
    """The first positions of every group and, where a group can be larger, the rest of them."""
    starts, stops = ptr[:-1], ptr[1:]
    first = Items(starts, torch.minimum(stops, starts + FIRST))
    count = num_rows // FIRST  # more items than there can be
    if count == 0:
        return [first]
    pieces = (stops - starts - FIRST).clamp(min=0).add(REST - 1).div(REST, rounding_mode="floor")
    bounds = torch.cat([pieces.new_zeros(1), pieces.cumsum(0)])
    item = torch.arange(count, device=ptr.device)
    group = torch.searchsorted(bounds, item, right=True) - 1  # beyond the last item: the number of groups
    within = group.clamp(max=len(starts) - 1)
    begin = starts[within] + FIRST + (item - bounds[within]) * REST
    end = torch.minimum(begin + REST, stops[within])
    return [first, Items(begin, torch.where(group < len(starts), end, begin), group, bounds)]


def _tile(items: Items, batch: int, num_rows: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and shape of a program: a warp for several small items, four for a piece of a large one."""
    count = len(items.starts)
    if items.group is not None:
        return (count, batch), {"ITEMS": 1, "LANES": 128, "num_warps": 4}
    typical = num_rows / count / 4
    lanes = next(size for size in (4, 8, 16, 32) if size >= typical or size == 32)
    return (-(-count * lanes // 32), batch), {"ITEMS": 32 // lanes, "LANES": lanes, "num_warps": 1}
