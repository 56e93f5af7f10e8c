r"""The fused sum as one operation for autograd and the compiler, with kernels for CPU and GPU behind it.

Nothing but the raw outputs is kept for the gradient. With :math:`g_v` and :math:`S_v` the gradients of a group's score
and of its Fisher matrix, those of a row are in closed form,

.. math:: \partial L = 2 S_v L + \begin{cases} 0 \\ g_v a^\top \\ g_v (L^\top a)^\top + a (L^\top g_v)^\top \end{cases}
          \qquad
          \partial a = \begin{cases} g_v & \text{score} \\ L^\top g_v & \text{regression} \\
          L L^\top g_v & \text{location} \end{cases}

on the entries of the factor that exist. Gradients of gradients are taken through the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fishnets.algebra.packing import packed_size
from fishnets.ops.dispatch import eager_operation, transforms_active
from fishnets.ops.memory import unremembered
from fishnets.ops.segment_information import fused_cpu, fused_triton, reference

__all__ = ["obstacle", "sum_information"]


def obstacle(raw: Tensor, num_params: int, kind: str, form: str) -> str | None:
    """Why the fused kernels cannot run on these outputs, or None when they can."""
    if transforms_active():
        return "a function transform is active, through which the fused kernels cannot be seen"
    if raw.device.type == "cpu":
        return fused_cpu.obstacle(raw, num_params, kind, form)
    if raw.is_cuda:
        return fused_triton.obstacle(raw, num_params)
    return f"the outputs are on {raw.device} and kernels exist for CPU and CUDA"


def sum_information(
    raw: Tensor,
    num_params: int,
    ptr: Tensor,
    kind: str,
    form: str,
    weight: Tensor | None,
    order: Tensor | None,
) -> Tensor:
    """Sums (B, g, p + p(p+1)/2) over groups of raw outputs (B, n, p + w), in float32 or better."""
    call: Any = _forward if torch.compiler.is_compiling() else _eager
    total: Tensor = call(raw, ptr, weight, order, num_params, kind, form)
    return total


def _compute(
    raw: Tensor,
    ptr: Tensor,
    weight: Tensor | None,
    order: Tensor | None,
    num_params: int,
    kind: str,
    form: str,
) -> Tensor:
    kernels: Any = fused_triton if raw.is_cuda else fused_cpu
    total: Tensor = kernels.forward(raw, num_params, ptr, kind, form, weight, order)
    return total


_forward = torch.library.custom_op("fishnets::segment_information", unremembered(_compute), mutates_args=())


@_forward.register_fake
def _(
    raw: Tensor,
    ptr: Tensor,
    weight: Tensor | None,
    order: Tensor | None,
    num_params: int,
    kind: str,
    form: str,
) -> Tensor:
    dtype = torch.promote_types(raw.dtype, torch.float32)
    shape = (raw.shape[0], ptr.numel() - 1, num_params + packed_size(num_params))
    if raw.is_cuda:
        return raw.new_empty((shape[0], shape[2], shape[1]), dtype=dtype).mT
    return raw.new_empty(shape, dtype=dtype)


def _compute_gradients(
    grad: Tensor,
    raw: Tensor,
    ptr: Tensor,
    weight: Tensor | None,
    order: Tensor | None,
    num_params: int,
    kind: str,
    form: str,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    kernels: Any = fused_triton if raw.is_cuda else fused_cpu
    given = (raw, num_params, ptr, kind, form, weight, order)
    grad_raw, grad_weight = kernels.backward(grad, *given, need_weight=need_weight)
    return grad_raw, raw.new_empty(0) if grad_weight is None else grad_weight


_gradients = torch.library.custom_op(
    "fishnets::segment_information_backward", unremembered(_compute_gradients), mutates_args=()
)


@_gradients.register_fake
def _(
    grad: Tensor,
    raw: Tensor,
    ptr: Tensor,
    weight: Tensor | None,
    order: Tensor | None,
    num_params: int,
    kind: str,
    form: str,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    empty = raw.new_empty(raw.shape[1] if need_weight else 0, dtype=grad.dtype if need_weight else raw.dtype)
    return torch.empty_like(raw), empty


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, num_params, kind, form = inputs
    ctx.save_for_backward(*tensors)
    ctx.options = num_params, kind, form


def _backward(gradients: Callable[..., Any], ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    raw, ptr, weight, order = ctx.saved_tensors
    options: tuple[int, str, str] = ctx.options
    need_weight = bool(ctx.needs_input_grad[2])
    if torch.is_grad_enabled():  # a gradient of this gradient is wanted
        found = reference.gradients(grad, raw, ptr, weight, order, *options, need_weight)
    else:
        found = gradients(grad, raw, ptr, weight, order, *options, need_weight)
    grad_weight = found[1].to(weight) if need_weight else None
    return found[0], None, grad_weight, None, None, None, None


_forward.register_autograd(partial(_backward, _gradients), setup_context=_remember)
_eager = eager_operation(_compute, _remember, partial(_backward, _compute_gradients))
