"""Small systems on a CPU: plain loops, and a gradient in closed form in place of that of a factorisation."""

from __future__ import annotations

import torch
from torch import Tensor

from fishnets.ops.dispatch import HAS_NUMBA
from fishnets.ops.solve_information.kernels_numba import backward_kernel, solve_kernel

__all__ = ["backward", "forward", "obstacle"]


def obstacle(score: Tensor) -> str | None:
    """Why the kernels cannot run on these systems, or None when they can."""
    if score.dtype not in (torch.float32, torch.float64):
        return f"the systems are {score.dtype} and float32 and float64 are fused on a CPU"
    if not HAS_NUMBA:
        return "Numba is not installed; pip install 'fishnets[fast]'"
    return None


def forward(score: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Estimates (n, p) and log-determinants (n,) of scores (n, p) and packed precisions (n, p(p+1)/2)."""
    estimate, log_determinant = torch.empty(score.shape, dtype=score.dtype), score.new_empty(len(score))
    solve_kernel()(*_arrays(score, precision, estimate, log_determinant))
    return estimate, log_determinant


def backward(
    grad_estimate: Tensor, grad_log_determinant: Tensor | None, precision: Tensor, estimate: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of scores (n, p) and packed precisions (n, p(p+1)/2)."""
    grad_log = estimate.new_empty(0) if grad_log_determinant is None else grad_log_determinant
    grads = torch.empty(estimate.shape, dtype=estimate.dtype), torch.empty(precision.shape, dtype=precision.dtype)
    backward_kernel()(*_arrays(grad_estimate, grad_log, precision, estimate, *grads))
    return grads


def _arrays(*tensors: Tensor) -> list[object]:
    """Contiguous, so that a kernel is compiled once; those that are written to are so already."""
    return [tensor.detach().contiguous().numpy() for tensor in tensors]
