"""Estimates from messages on a GPU: launches of the kernels in ``kernels_triton``.

On the way back, gradients of outputs are written for :data:`CHUNK` numbers at a time: large enough to keep the GPU
busy, small beside the messages.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fishnets.algebra.packing import packed_size
from fishnets.ops.dispatch import HAS_TRITON, num_multiprocessors, on_device
from fishnets.ops.schedule import owners, schedule
from fishnets.ops.segment_information import fused_triton as segments
from fishnets.ops.segment_information.fused_triton import FORMS, STEPS, add_rest, dense

__all__ = ["backward", "forward", "obstacle", "outputs_obstacle"]

MAX_PARAMS = 10  # outputs and sums of a message fill the registers of a lane
MAX_CHANNELS = 128
CHUNK = 54_000_000  # numbers: 0.2 GiB
TILE, LANES = 128, 64
WINDOW = 2048  # groups: their sums are written together
PRECISIONS = {"highest": "tf32x3", "high": "tf32", "medium": "tf32"}


def obstacle(x: Tensor, lin: Tensor, num_params: int) -> str | None:
    """Why these messages and their layer cannot be fused, or None when they can."""
    if not HAS_TRITON:
        return "Triton is not installed"
    if x.ndim != 2:
        return f"messages have {x.ndim} dimensions and those of shape (n, C) are fused"
    if x.dtype not in (torch.float32, torch.bfloat16) or lin.dtype != x.dtype:
        return f"messages are {x.dtype}, weights {lin.dtype}, and float32 or bfloat16 of both are fused"
    if num_params > MAX_PARAMS or x.shape[1] > MAX_CHANNELS:
        return (
            f"there are {num_params} parameters and {x.shape[1]} channels, and at most {MAX_PARAMS} and {MAX_CHANNELS} "
            "are fused"
        )
    return None


def outputs_obstacle(x: Tensor, num_params: int) -> str | None:
    """Why the outputs of a layer cannot be summed and solved in one go, or None when they can."""
    if x.ndim != 2:
        return f"messages have {x.ndim} dimensions and those of shape (n, C) are fused"
    return segments.unsupported(x, num_params)  # captured updates have a schedule: groups are those of earlier ones


@on_device
def forward(
    rows: Tensor,
    lin: Tensor | None,
    bias: Tensor,
    prior: Tensor,
    ptr: Tensor,
    form: str,
    weight: Tensor | None,
    order: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Features (g, 2p), and sums of information (p + p(p+1)/2, g), which the gradient needs.

    Rows are messages (n, C) or, without a layer, its outputs (n, p + p(p+1)/2) before the bias is added.
    """
    from fishnets.ops.estimate_messages import kernels_triton as kernels

    p, num_groups = len(prior), len(ptr) - 1
    weight, order, bias, prior = dense(weight), dense(order), bias.contiguous(), prior.contiguous()
    features = rows.new_empty((num_groups, 2 * p), dtype=torch.float32)
    if lin is None:
        total = segments.forward(rows.unsqueeze(0), p, ptr, "full", form, weight, order, bias)[0].mT
    else:
        total = _sum_messages(rows.contiguous(), lin, bias, p, ptr, form, weight, order)
    if num_groups:
        grid = (-(-num_groups // LANES),)
        kernels.solve_nodes[grid](total, prior, features, num_groups, P=p, LANES=LANES, num_warps=2)
    return features, total


def _sum_messages(
    x: Tensor,
    lin: Tensor,
    bias: Tensor,
    num_params: int,
    ptr: Tensor,
    form: str,
    weight: Tensor | None,
    order: Tensor | None,
) -> Tensor:
    """Sums of information (p + p(p+1)/2, g)."""
    from fishnets.ops.estimate_messages import kernels_triton as kernels

    num_groups = len(ptr) - 1
    total = x.new_empty((num_params + packed_size(num_params), num_groups), dtype=torch.float32)
    if num_groups == 0:
        return total
    lanes = 4 if len(x) < 128 * num_groups else 16
    tile = {"num_warps": 1, "num_stages": 3} if num_params <= 8 else {"num_warps": 4, "num_stages": 2}
    items = 32 * tile["num_warps"] // lanes
    cut = schedule(ptr, STEPS * lanes, WINDOW)
    options = _options(x, lin, num_params, form, weight) | {"HAS_ORDER": order is not None}
    given, sizes = (x, order, weight, lin.contiguous(), bias), lin.shape
    runs = (cut.first.starts, cut.first.stops, cut.first.place, total, num_groups, num_groups)
    grid = (-(-num_groups // items),)
    kernels.sum_messages[grid](*given, *runs, *sizes, **options, ITEMS=items, LANES=lanes, **tile)
    if cut.rest is not None:
        count, tile = len(cut.rest.starts), {"num_warps": 4, "num_stages": 2}
        parts = total.new_empty((1, total.shape[0], count))
        runs = (cut.rest.starts, cut.rest.stops, cut.rest.place, parts, count, count)
        kernels.sum_messages[(count,)](*given, *runs, *sizes, **options, ITEMS=1, LANES=TILE, **tile)
        add_rest(parts, cut.heavy, cut.bounds, total.unsqueeze(0))
    return total


@on_device
def backward(
    grad: Tensor,
    rows: Tensor,
    lin: Tensor | None,
    bias: Tensor,
    prior: Tensor,
    ptr: Tensor,
    form: str,
    weight: Tensor | None,
    order: Tensor | None,
    features: Tensor,
    total: Tensor,
    need_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of rows, layer, bias, prior and weights of rows; that of nothing, or not needed, is (0,)."""
    from fishnets.ops.estimate_messages import kernels_triton as kernels

    num_groups, p = len(features), len(prior)
    weight, order, bias, prior = dense(weight), dense(order), bias.contiguous(), prior.contiguous()
    node, grad_weight = features.new_empty((3 * p, num_groups)), features.new_empty(len(rows) if need_weight else 0)
    grad_prior = features.new_empty((-(-num_groups // LANES), p))
    if num_groups:
        given = (grad.contiguous(), total, prior, features, node, grad_prior, num_groups)
        kernels.nodes_backward[(len(grad_prior),)](*given, P=p, LANES=LANES, num_warps=2)
    options = (bias, p, owners(ptr, len(rows), order), form, weight, grad_weight)
    found = _outputs_backward(node, rows, *options) if lin is None else _messages_backward(node, rows, lin, *options)
    return *found, grad_prior.sum(0).to(prior), grad_weight


def _outputs_backward(
    node: Tensor,
    raw: Tensor,
    bias: Tensor,
    num_params: int,
    group: Tensor,
    form: str,
    weight: Tensor | None,
    grad_weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of outputs, of no layer, and of the bias."""
    from fishnets.ops.estimate_messages import kernels_triton as kernels

    raw, num_rows = raw.mT.contiguous(), len(raw)  # columns one behind the other, as they mostly are
    grad = torch.empty_like(raw)
    if num_rows:
        given = (node, raw, weight, None, bias, group, grad, grad_weight)
        shape: dict[str, Any] = {"CP": 1, "A": 1, "B": 0, "P": num_params, "FORM": FORMS[form], "PRECISION": "ieee"}
        flags: dict[str, Any] = {"HAS_LAYER": False, "HAS_WEIGHT": weight is not None}
        flags |= {"NEED_WEIGHT": len(grad_weight) > 0, "M": TILE, "num_warps": 4}
        sizes = (node.shape[1], 0, num_rows, num_rows, len(raw), 1)
        kernels.outputs_backward[(-(-num_rows // TILE),)](*given, *sizes, **shape, **flags)
    return grad.mT, node.new_empty(0), grad.sum(1, dtype=torch.float32).to(bias)


def _messages_backward(
    node: Tensor,
    x: Tensor,
    lin: Tensor,
    bias: Tensor,
    num_params: int,
    group: Tensor,
    form: str,
    weight: Tensor | None,
    grad_weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of messages, layer and bias."""
    from fishnets.ops.estimate_messages import kernels_triton as kernels

    (num_rows, channels), num_outputs = x.shape, len(lin)
    grad_lin, grad_bias = torch.empty_like(lin), torch.empty_like(bias)  # of their own: an operation returns no views
    x, lin, grad_x = x.contiguous(), lin.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_chunks = max(1, -(-num_rows * num_outputs // CHUNK))
    stride = max(1, -(-num_rows // (num_chunks * TILE))) * TILE
    columns = node.new_empty((num_outputs, stride))
    options = _options(x, lin, num_params, form, weight) | {"HAS_LAYER": True, "NEED_WEIGHT": len(grad_weight) > 0}
    padded, wide = -(-num_outputs // 16) * 16, options["CP"]
    precision = "tf32" if x.dtype == torch.bfloat16 else options["PRECISION"]
    product = {"KP": padded, "C": channels, "CP": wide, "PRECISION": precision, "M": 32, "num_warps": wide // 16}
    # as many programs of 64 channels as fit on the GPU at once, by their registers
    programs = (3 if padded <= 48 else 2) * num_multiprocessors(x.device)
    parts = node.new_empty((programs, padded * wide + padded))
    given = (node, x, weight, lin, bias, group, columns, grad_weight, node.shape[1])
    for start in range(0, num_rows, stride):
        length = min(stride, num_rows - start)
        sizes = (start, length, stride, num_outputs)
        kernels.outputs_backward[(-(-length // TILE),)](*given, *sizes, channels, **options, M=TILE, num_warps=4)
        if length < stride:
            columns[:, length:] = 0
        kernels.layer_backward[(programs,)](columns, x, parts, *sizes, **product)
        gradients, place = columns[:, :length].mT, grad_x[start : start + length]
        if x.dtype == columns.dtype:
            torch.mm(gradients, lin, out=place)
        else:
            place.copy_(gradients @ lin.to(columns))
    total = parts.sum(0) if num_rows else parts.new_zeros(parts.shape[1])
    grad_lin.copy_(total[: padded * wide].view(padded, wide)[:num_outputs, :channels])
    grad_bias.copy_(total[padded * wide :][:num_outputs])
    return grad_x, grad_lin, grad_bias


def _options(x: Tensor, lin: Tensor, num_params: int, form: str, weight: Tensor | None) -> dict[str, Any]:
    """What kernels are compiled for."""
    one, two = _products(len(lin))
    precision = PRECISIONS[torch.get_float32_matmul_precision()] if x.dtype == torch.float32 else "ieee"
    shape = {"CP": max(16, _power(x.shape[1])), "A": one, "B": two, "P": num_params, "FORM": FORMS[form]}
    return shape | {"HAS_WEIGHT": weight is not None, "PRECISION": precision}


def _products(num_outputs: int) -> tuple[int, int]:
    """Outputs of two products, powers of two, or of one and none.

    Example:
        >>> _products(44), _products(65), _products(14)
        ((64, 0), (64, 16), (16, 0))
    """
    one = _power(num_outputs)
    rest = max(16, _power(num_outputs - one // 2))
    return (one // 2, rest) if one >= 32 and 4 * rest <= one else (max(16, one), 0)


def _power(n: int) -> int:
    """The least power of two that is not less."""
    return 1 << (n - 1).bit_length()
