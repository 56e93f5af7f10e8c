r"""The fused estimate as one operation for autograd and the compiler.

Only messages, weights and the sums of groups are kept for the gradient, which is of rank two per group. With
:math:`\lambda_v = A_v^{-1} g_v` for the gradient :math:`g_v` of an estimate, :math:`h_v` that of the diagonal
:math:`d_v` of its Fisher matrix, :math:`u = L^\top z_v` and :math:`v = L^\top \lambda_v`, a message's outputs have

.. math:: \partial a = \begin{cases} \lambda_v \\ v \\ L v \end{cases} \qquad
          \partial L = 2 \operatorname{diag}(h_v) L - \begin{cases}
          \lambda_v u^\top + z_v v^\top & \text{score} \\
          \lambda_v (u - a)^\top + z_v v^\top & \text{regression} \\
          \lambda_v (u - L^\top a)^\top + (z_v - a) v^\top & \text{location} \end{cases}

on the entries that exist, times softplus' slope on the diagonal. The prior has
:math:`-\sum_v (\lambda_v z_v + h_v d_v / P)`. Gradients
of gradients are taken through the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fishnets.algebra.packing import packed_size
from fishnets.ops.dispatch import eager_operation, through_reference, transforms_active
from fishnets.ops.estimate_messages import fused_cpu, fused_triton, reference
from fishnets.ops.memory import unremembered
from fishnets.ops.segment_information import ScoreForm

__all__ = ["drawback", "estimate_messages", "obstacle", "outputs_obstacle"]


def obstacle(x: Tensor, lin: Tensor, num_params: int) -> str | None:
    """Why these messages and their layer cannot be fused, or None when they can."""
    if transforms_active():
        return "a function transform is active, through which the fused kernels cannot be seen"
    kernels: Any = fused_triton if x.is_cuda else fused_cpu
    reason: str | None = kernels.obstacle(x, lin, num_params)
    return reason


def drawback(x: Tensor, lin: Tensor) -> str | None:
    """Why these messages and their layer are better not fused, though they can be; None when there is no reason."""
    return None if x.is_cuda else fused_cpu.drawback(x, lin)


def outputs_obstacle(x: Tensor, num_params: int, form: str) -> str | None:
    """Why the outputs of a layer cannot be summed and solved in one go, or None when they can."""
    if transforms_active():
        return "a function transform is active, through which the fused kernels cannot be seen"
    if x.is_cuda:
        return fused_triton.outputs_obstacle(x, num_params)
    return fused_cpu.outputs_obstacle(x, num_params, form)


def estimate_messages(
    rows: Tensor,
    lin: Tensor | None,
    bias: Tensor,
    prior: Tensor,
    ptr: Tensor,
    form: ScoreForm,
    weight: Tensor | None,
    order: Tensor | None,
) -> Tensor:
    """Features (g, 2p) of groups of messages (n, C) or, without a layer, of its outputs (n, K)."""
    call: Any = _forward if torch.compiler.is_compiling() else _eager
    features: Tensor = call(rows, lin, bias, prior, ptr, weight, order, form)[0]
    return features


def _compute(
    rows: Tensor,
    lin: Tensor | None,
    bias: Tensor,
    prior: Tensor,
    ptr: Tensor,
    weight: Tensor | None,
    order: Tensor | None,
    form: str,
) -> tuple[Tensor, Tensor]:
    kernels: Any = fused_triton if rows.is_cuda else fused_cpu
    found: tuple[Tensor, Tensor] = kernels.forward(rows, lin, bias, prior, ptr, form, weight, order)
    return found


_forward = torch.library.custom_op("fishnets::estimate_messages", unremembered(_compute), mutates_args=())


@_forward.register_fake
def _(
    rows: Tensor,
    lin: Tensor | None,
    bias: Tensor,
    prior: Tensor,
    ptr: Tensor,
    weight: Tensor | None,
    order: Tensor | None,
    form: str,
) -> tuple[Tensor, Tensor]:
    p, num_groups = prior.shape[0], ptr.shape[0] - 1
    dtype = torch.promote_types(rows.dtype, torch.float32)
    features = rows.new_empty((num_groups, 2 * p), dtype=dtype)
    shape = (p + packed_size(p), num_groups) if rows.is_cuda else (num_groups, p + packed_size(p))
    return features, rows.new_empty(shape, dtype=dtype)


def _compute_gradients(
    grad: Tensor,
    rows: Tensor,
    lin: Tensor | None,
    bias: Tensor,
    prior: Tensor,
    ptr: Tensor,
    weight: Tensor | None,
    order: Tensor | None,
    features: Tensor,
    total: Tensor,
    form: str,
    need_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    given = (rows, lin, bias, prior, ptr, form, weight, order, features, total, need_weight)
    kernels: Any = fused_triton if rows.is_cuda else fused_cpu
    found: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = kernels.backward(grad, *given)
    return found


_gradients = torch.library.custom_op(
    "fishnets::estimate_messages_backward", unremembered(_compute_gradients), mutates_args=()
)


@_gradients.register_fake
def _(
    grad: Tensor,
    rows: Tensor,
    lin: Tensor | None,
    bias: Tensor,
    prior: Tensor,
    ptr: Tensor,
    weight: Tensor | None,
    order: Tensor | None,
    features: Tensor,
    total: Tensor,
    form: str,
    need_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if rows.is_cuda:
        grad_rows = rows.new_empty(rows.shape[::-1]).mT if lin is None else rows.new_empty(rows.shape)
    else:
        grad_rows = torch.empty_like(rows)
    layer = features.new_empty(0) if lin is None else torch.empty_like(lin)
    weights = features.new_empty(rows.shape[0] if need_weight else 0)
    return grad_rows, layer, torch.empty_like(bias), torch.empty_like(prior), weights


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.form = inputs
    ctx.set_materialize_grads(False)  # there is none of the sums
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _backward(gradients: Callable[..., Any], ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 8
    rows, lin, bias, prior, ptr, weight, order, *kept = ctx.saved_tensors
    need_weight = bool(ctx.needs_input_grad[5])
    found: list[Any]
    if torch.is_grad_enabled():  # a gradient of this gradient is wanted
        outputs = reference.estimate_messages(rows, lin, bias, prior, ptr, ctx.form, weight, order, "reference")
        found = through_reference(outputs, (rows, lin, bias, prior, weight), grad)
    else:
        given = (rows, lin, bias, prior, ptr, weight, order, *kept, ctx.form, need_weight)
        found = list(gradients(grad, *given))
        found[1] = None if lin is None else found[1]
        found[4] = found[4].to(weight) if need_weight else None
    return *found[:4], None, found[4], None, None


_forward.register_autograd(partial(_backward, _gradients), setup_context=_remember)
_eager = eager_operation(_compute, _remember, partial(_backward, _compute_gradients))
