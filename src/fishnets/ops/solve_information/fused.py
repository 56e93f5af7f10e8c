r"""The solve as one operation for autograd and the compiler, with kernels for CPU and GPU behind it.

With :math:`\lambda = A^{-1} g` for the gradient :math:`g` of the estimate and :math:`h` that of the log-determinant,

.. math:: \partial t = \lambda, \qquad \partial A = -\tfrac12 (\lambda z^\top + z \lambda^\top) + h A^{-1},

whose packed entries off the diagonal count both halves. Gradients of gradients are taken through the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fishnets.ops.dispatch import eager_operation, transforms_active
from fishnets.ops.solve_information import fused_cpu, fused_triton, reference

__all__ = ["obstacle", "solve_systems"]


def obstacle(score: Tensor) -> str | None:
    """Why the fused kernels cannot run on these systems, or None when they can."""
    if transforms_active():
        return "a function transform is active, through which the fused kernels cannot be seen"
    if score.device.type == "cpu":
        return fused_cpu.obstacle(score)
    if score.is_cuda:
        return fused_triton.obstacle(score)
    return f"the systems are on {score.device} and kernels exist for CPU and CUDA"


def solve_systems(score: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Estimates (n, p) and log-determinants (n,) of scores (n, p) and packed precisions (n, p(p+1)/2)."""
    call: Any = _forward if torch.compiler.is_compiling() else _eager
    estimate, log_determinant = call(score, precision)
    return estimate, log_determinant


def _kernels(score: Tensor) -> Any:
    return fused_triton if score.is_cuda else fused_cpu


def _compute(score: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = _kernels(score).forward(score, precision)
    return found[0].contiguous(), found[1]


_forward = torch.library.custom_op("fishnets::solve_information", _compute, mutates_args=())


@_forward.register_fake
def _(score: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    return score.new_empty(score.shape), score.new_empty(score.shape[0])


def _compute_gradients(
    grad_estimate: Tensor, grad_log_determinant: Tensor | None, precision: Tensor, estimate: Tensor
) -> tuple[Tensor, Tensor]:
    found = _kernels(estimate).backward(grad_estimate, grad_log_determinant, precision, estimate)
    return found[0].contiguous(), found[1].contiguous()


_gradients = torch.library.custom_op("fishnets::solve_information_backward", _compute_gradients, mutates_args=())


@_gradients.register_fake
def _(
    grad_estimate: Tensor, grad_log_determinant: Tensor | None, precision: Tensor, estimate: Tensor
) -> tuple[Tensor, Tensor]:
    return estimate.new_empty(estimate.shape), precision.new_empty(precision.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[0])
    ctx.set_materialize_grads(False)


def _backward(
    gradients: Callable[..., Any], ctx: Any, grad_estimate: Tensor | None, grad_log: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    score, precision, estimate = ctx.saved_tensors
    if grad_estimate is None and grad_log is None:
        return None, None
    if torch.is_grad_enabled():  # a gradient of this gradient is wanted
        return _differentiable(score, precision, grad_estimate, grad_log)
    given = torch.zeros_like(estimate) if grad_estimate is None else grad_estimate
    found: tuple[Tensor, Tensor] = gradients(given, grad_log, precision, estimate)
    return found


def _differentiable(
    score: Tensor, precision: Tensor, grad_estimate: Tensor | None, grad_log: Tensor | None
) -> tuple[Tensor, Tensor]:
    outputs = reference.solve_information(score, precision)
    pairs = [(out, grad) for out, grad in zip(outputs, (grad_estimate, grad_log), strict=True) if grad is not None]
    chosen, given = zip(*pairs, strict=True)
    options = {"create_graph": True, "materialize_grads": True}
    found = torch.autograd.grad(chosen, [score, precision], given, **options)
    return found[0], found[1]


_forward.register_autograd(partial(_backward, _gradients), setup_context=_remember)
_eager = eager_operation(_compute, _remember, partial(_backward, _compute_gradients))
