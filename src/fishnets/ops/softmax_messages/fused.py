r"""Sums weighted by a softmax as one operation for autograd, with kernels for CPU and GPU behind it.

With the shares :math:`w_e` of a group, its sum :math:`y` and the gradient :math:`g` of that,

.. math:: \partial x_e = g\,w_e \big(1 + \tau (x_e - y)\big), \qquad \partial\tau = \sum_e g\,w_e\,x_e (x_e - y) .

Gradients of gradients are taken through the reference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fishnets.ops.dispatch import eager_operation, through_reference, transforms_active
from fishnets.ops.softmax_messages import fused_cpu, fused_triton, reference

__all__ = ["obstacle", "softmax_messages"]


def obstacle(x: Tensor) -> str | None:
    """Why the kernels cannot run on these messages, or None when they can."""
    if transforms_active() or torch.compiler.is_compiling():
        return "a function transform or the compiler is active, through which the kernels cannot be seen"
    if x.device.type not in ("cpu", "cuda"):
        return f"the messages are on {x.device} and kernels exist for CPU and CUDA"
    if x.dtype != torch.float32:
        return f"sums are in {x.dtype} and those in float32 are fused"
    return fused_triton.obstacle(x) if x.is_cuda else fused_cpu.obstacle()


def softmax_messages(x: Tensor, temperature: Tensor, ptr: Tensor, order: Tensor | None) -> Tensor:
    """Sums (g, C) of messages (n, C); see :func:`fishnets.ops.softmax_messages.softmax_messages`."""
    out: Tensor = _operation(x, temperature, ptr, order)[0]
    return out


def _compute(x: Tensor, temperature: Tensor, ptr: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor]:
    kernels: Any = fused_triton if x.is_cuda else fused_cpu
    found: tuple[Tensor, Tensor] = kernels.forward(x, temperature, ptr, order)
    return found


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
        return *through_reference(again, (x, temperature), grad), None, None
    kernels: Any = fused_triton if x.is_cuda else fused_cpu
    return *kernels.backward(grad, x, temperature, ptr, order, out, log_total), None, None


_operation = eager_operation(_compute, _remember, _backward)
