r"""Sums weighted by a softmax on a GPU: one operation for autograd, and launches of the kernels in ``kernels_triton``.

With the shares :math:`w_e` of a group, its sum :math:`y` and the gradient :math:`g` of that,

.. math:: \partial x_e = g\,w_e \big(1 + \tau (x_e - y)\big), \qquad \partial\tau = \sum_e g\,w_e\,x_e (x_e - y) .

Gradients of gradients are taken through the reference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fishnets.ops.dispatch import HAS_TRITON, eager_operation, on_device, transforms_active
from fishnets.ops.segment_information.fused_triton import dense
from fishnets.ops.softmax_messages import reference

__all__ = ["obstacle", "softmax_messages"]

MAX_CHANNELS = 256
TILE = 2048  # numbers of a step


def obstacle(x: Tensor, temperature: Tensor) -> str | None:
    """Why the kernels cannot run on these messages, or None when they can."""
    if not HAS_TRITON or not x.is_cuda:
        return "Triton is not installed" if x.is_cuda else f"the messages are on {x.device} and kernels exist for CUDA"
    if transforms_active() or torch.compiler.is_compiling():
        return "a function transform or the compiler is active, through which the kernels cannot be seen"
    if x.dtype != torch.float32 or temperature.dtype != torch.float32:
        return f"messages are {x.dtype}, the temperature {temperature.dtype}, and float32 of both is fused"
    if x.shape[1] > MAX_CHANNELS:
        return f"there are {x.shape[1]} channels and at most {MAX_CHANNELS} are fused"
    return None


def softmax_messages(x: Tensor, temperature: Tensor, ptr: Tensor, order: Tensor | None) -> Tensor:
    """Sums (g, C) of messages (n, C); see :func:`fishnets.ops.softmax_messages.softmax_messages`."""
    out: Tensor = _operation(x, temperature, ptr, order)[0]
    return out


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


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs, *output)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 4
    x, temperature, ptr, order, out, log_total = ctx.saved_tensors
    if torch.is_grad_enabled():  # a gradient of this gradient is wanted
        again = reference.softmax_messages(x, temperature, ptr, order)
        needed = [one for one in (x, temperature) if one.requires_grad]
        found = iter(torch.autograd.grad(again, needed, grad, create_graph=True))
        return *(next(found) if one.requires_grad else None for one in (x, temperature)), None, None
    return *backward(grad, x, temperature, ptr, order, out, log_total), None, None


_operation = eager_operation(forward, _remember, _backward)
