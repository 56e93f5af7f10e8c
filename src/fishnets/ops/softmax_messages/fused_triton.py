"""Sums weighted by a softmax on a GPU: launches of the kernels in ``kernels_triton``."""

from __future__ import annotations

import torch
from torch import Tensor

from fishnets.ops.dispatch import HAS_TRITON, on_device
from fishnets.ops.segment_information.fused_triton import dense

__all__ = ["backward", "forward", "obstacle"]

MAX_CHANNELS = 256
TILE = 2048  # numbers of a step


def obstacle(x: Tensor) -> str | None:
    """Why these kernels cannot run, or None when they can."""
    if not HAS_TRITON:
        return "Triton is not installed"
    if x.shape[1] > MAX_CHANNELS:
        return f"there are {x.shape[1]} channels and at most {MAX_CHANNELS} are fused"
    return None


@on_device
def forward(x: Tensor, temperature: Tensor, ptr: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums (g, C), and logarithms of what their weights are divided by (g, C), which the gradient needs."""
    from fishnets.ops.softmax_messages import kernels_triton as kernels

    x, ptr, order, num_groups = x.contiguous(), ptr.contiguous(), dense(order), len(ptr) - 1
    out, log_total = x.new_empty((num_groups, x.shape[1])), x.new_empty((num_groups, x.shape[1]))
    if num_groups:
        given = (x, temperature, ptr, order, out, log_total, x.shape[1])
        kernels.sum_softmax[(num_groups,)](*given, HAS_ORDER=order is not None, **_tile(x))
    return out, log_total


@on_device
def backward(
    grad: Tensor, x: Tensor, temperature: Tensor, ptr: Tensor, order: Tensor | None, out: Tensor, log_total: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of messages (n, C) and of the temperature (1,)."""
    from fishnets.ops.softmax_messages import kernels_triton as kernels

    x, ptr, order, grad_slope = x.contiguous(), ptr.contiguous(), dense(order), torch.empty_like(out)
    grad_x = torch.empty_like(x)
    if len(out):
        given = (grad.contiguous(), x, temperature, ptr, order, out, log_total, grad_x, grad_slope, x.shape[1])
        kernels.softmax_backward[(len(out),)](*given, HAS_ORDER=order is not None, **_tile(x))
    return grad_x, grad_slope.sum().view_as(temperature)


def _tile(x: Tensor) -> dict[str, int]:
    """Sizes that kernels are compiled for."""
    wide = max(16, 1 << (x.shape[1] - 1).bit_length())
    return {"CP": wide, "ROWS": TILE // wide, "num_warps": 4}
