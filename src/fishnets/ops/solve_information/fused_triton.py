"""Small systems on a GPU: launches of the kernels in ``kernels_triton``."""

from __future__ import annotations

import torch
from torch import Tensor

from fishnets.algebra.packing import packed_size
from fishnets.ops.dispatch import HAS_TRITON, on_device

__all__ = ["MAX_PARAMS", "backward", "forward", "obstacle"]

MAX_PARAMS = 16
LANES = 64


def obstacle(score: Tensor) -> str | None:
    """Why the kernels cannot run on these systems, or None when they can."""
    if not HAS_TRITON:
        return "Triton is not installed"
    if score.dtype != torch.float32:
        return f"the systems are {score.dtype} and float32 is fused on a GPU"
    if score.shape[-1] > MAX_PARAMS:
        return f"there are {score.shape[-1]} parameters and at most {MAX_PARAMS} are fused"
    return None


@on_device
def forward(score: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Estimates (n, p) and log-determinants (n,) of scores (n, p) and packed precisions (n, p(p+1)/2)."""
    from fishnets.ops.solve_information import kernels_triton as kernels

    num_systems, num_params = score.shape
    estimate, log_determinant = score.new_empty((num_params, num_systems)), score.new_empty(num_systems)
    if num_systems:
        matrices = (score.mT.contiguous(), precision.mT.contiguous())
        grid = (-(-num_systems // LANES),)
        options = {"P": num_params, "LANES": LANES, "num_warps": LANES // 32}
        kernels.solve[grid](*matrices, estimate, log_determinant, num_systems, **options)
    return estimate.mT, log_determinant


@on_device
def backward(
    grad_estimate: Tensor, grad_log_determinant: Tensor | None, precision: Tensor, estimate: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of scores (n, p) and packed precisions (n, p(p+1)/2)."""
    from fishnets.ops.solve_information import kernels_triton as kernels

    num_systems, num_params = estimate.shape
    grad_score = estimate.new_empty((num_params, num_systems))
    grad_precision = estimate.new_empty((packed_size(num_params), num_systems))
    if num_systems:
        columns = (precision.mT.contiguous(), estimate.mT.contiguous(), grad_score, grad_precision)
        options = {"P": num_params, "LANES": LANES, "num_warps": LANES // 32}
        kernels.solve_backward[-(-num_systems // LANES),](
            grad_estimate.mT.contiguous(),
            grad_log_determinant,
            *columns,
            num_systems,
            NEED_LOG=grad_log_determinant is not None,
            **options,
        )
    return grad_score.mT, grad_precision.mT
