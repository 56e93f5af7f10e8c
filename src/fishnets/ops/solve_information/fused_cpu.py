"""Small systems on a CPU: LAPACK forward, and a gradient in closed form in place of that of a factorisation."""

from __future__ import annotations

import torch
from torch import Tensor

from fishnets.algebra.packing import lower_indices, unpack_symmetric
from fishnets.ops.solve_information import reference

__all__ = ["backward", "forward", "obstacle"]


def obstacle(score: Tensor) -> str | None:
    """Why LAPACK cannot run on these systems, or None when it can."""
    if score.dtype not in (torch.float32, torch.float64):
        return f"the systems are {score.dtype} and float32 and float64 are fused on a CPU"
    return None


def forward(score: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Estimates (n, p) and log-determinants (n,) of scores (n, p) and packed precisions (n, p(p+1)/2)."""
    return reference.solve_information(score, precision)


def backward(
    grad_estimate: Tensor, grad_log_determinant: Tensor | None, precision: Tensor, estimate: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of scores (n, p) and packed precisions (n, p(p+1)/2)."""
    num_params = estimate.shape[-1]
    factor = torch.linalg.cholesky_ex(unpack_symmetric(precision))[0]
    towards = torch.cholesky_solve(grad_estimate.unsqueeze(-1), factor).squeeze(-1)
    rows, cols = lower_indices(num_params, precision.device)
    one, other = towards[:, rows] * estimate[:, cols], towards[:, cols] * estimate[:, rows]
    below = rows != cols  # a packed entry off the diagonal stands for both halves
    grad = -torch.where(below, one + other, one)
    if grad_log_determinant is not None:
        inverse = torch.cholesky_inverse(factor)[:, rows, cols]
        grad = grad + grad_log_determinant.unsqueeze(-1) * torch.where(below, 2 * inverse, inverse)
    return towards, grad
