r"""Messages along edges as one operation for autograd, with kernels for the CPU behind it.

With the gradient :math:`g` of the messages, where :math:`x_{u(e)} + a_e` is positive, and zero elsewhere,

.. math:: \partial a_e = g_e, \qquad \partial x_u = \sum_{e : u(e) = u} g_e .

Which ones are positive is computed anew. Gradients of gradients are taken through the reference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fishnets.ops.dispatch import HAS_NUMBA, eager_operation, through_reference, transforms_active
from fishnets.ops.edge_messages import fused_cpu, reference

__all__ = ["edge_messages", "obstacle"]


def obstacle(x: Tensor, edge: Tensor) -> str | None:
    """Why the kernels cannot run on these features, or None when they can."""
    if transforms_active() or torch.compiler.is_compiling():
        return "a function transform or the compiler is active, through which the kernels cannot be seen"
    if x.device.type != "cpu" or edge.device.type != "cpu":
        return f"`x` is on {x.device}, `edge` on {edge.device}, and there are kernels for the CPU"
    if x.dtype != torch.float32 or edge.dtype != torch.float32:
        return f"`x` is {x.dtype}, `edge` {edge.dtype}, and the kernels take float32"
    return None if HAS_NUMBA else "Numba is not installed; pip install 'fishnets[fast]'"


def edge_messages(x: Tensor, edge: Tensor, source: Tensor, offset: float) -> Tensor:
    """Messages (E, C) of edges; see :func:`fishnets.ops.edge_messages.edge_messages`."""
    out: Tensor = _operation(x, edge, source, offset)
    return out


def _remember(ctx: Any, inputs: tuple[Any, ...], _: Tensor) -> None:
    *tensors, ctx.offset = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 4
    x, edge, source = ctx.saved_tensors
    if torch.is_grad_enabled():  # a gradient of this gradient is wanted
        again = reference.edge_messages(x, edge, source, ctx.offset)
        return *through_reference(again, (x, edge), grad), None, None
    return *fused_cpu.backward(grad, x, edge, source), None, None


_operation = eager_operation(fused_cpu.forward, _remember, _backward)
